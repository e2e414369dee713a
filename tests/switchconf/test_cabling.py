"""The list of cables, and LLDP output held against it, in the forms that lldpd and EOS print."""

import csv
import json
from types import SimpleNamespace

import pytest

from openmrc import Error
from openmrc.cli import main
from openmrc.fabric import Fabric, Specification, plan
from openmrc.switchconf import FILES, cabling, lldp, render

BASE = {"hosts": 16, "nic": {"rate": "400G"}, "planes": 2, "switch": {"radix": 8}, "tiers": 2}
FORMS = ["lldpctl", "json0", "eos"]


def fabric_of(**changes):
    return Fabric(Specification.model_validate({**BASE, **changes}))


def cables_of(fabric, platform="sonic"):
    return list(cabling.cables(fabric, platform, plan(fabric).asked))


def lldpctl(neighbours):
    """As ``lldpctl -f json`` of lldpd 1.0.16 prints it: a list, or the only interface by itself."""
    entries = [
        {
            interface: {
                "via": "LLDP",
                "rid": "1",
                "age": "0 day, 00:00:02",
                "chassis": {device: {"id": {"type": "mac", "value": "5e:8e:d1:c9:48:31"}, "mgmt-iface": "3"}},
                "port": {"id": {"type": "mac", "value": "9a:f8:c6:fd:f2:86"}, "descr": port, "ttl": "4"},
            }
        }
        for interface, device, port in neighbours
    ]
    return {"lldp": {"interface": entries[0] if len(entries) == 1 else entries}}


def json0(neighbours):
    entries = [
        {
            "name": interface,
            "via": "LLDP",
            "chassis": [{"id": [{"type": "mac", "value": "5e:8e:d1:c9:48:31"}], "name": [{"value": device}]}],
            "port": [{"id": [{"type": "local", "value": port}], "descr": [{"value": "a port"}]}],
        }
        for interface, device, port in neighbours
    ]
    return {"lldp": [{"interface": entries}]}


def eos(neighbours):
    entries = [
        {"port": interface, "neighborDevice": device, "neighborPort": port, "ttl": 120}
        for interface, device, port in neighbours
    ]
    return {"lldpNeighbors": entries, "tablesLastChangeTime": 1.0}


PRINT = {"lldpctl": lldpctl, "json0": json0, "eos": eos}


def heard(cables):
    """Switch -> (interface, neighbour, its port), if every cable is where it should be."""
    found = {}
    for cable in cables:
        found.setdefault(cable.upper, []).append((cable.upper_port, cable.lower, cable.lower_port))
        if not cable.to_host:
            found.setdefault(cable.lower, []).append((cable.lower_port, cable.upper, cable.upper_port))
    return found


def save(found, directory, form="lldpctl"):
    directory.mkdir(exist_ok=True)
    for device, neighbours in found.items():
        (directory / f"{device}.json").write_text(json.dumps(PRINT[form](neighbours)))


def by_hand(lower, upper):
    """A cable between two ports ``switch:port``, whose labels are the ports' names in capitals."""
    ends = [(*end.split(":"), end.partition(":")[2].upper()) for end in (lower, upper)]
    layer = "host-T0" if lower.startswith("h") else "T0-T1"
    return cabling.Cable(f"{lower}--{upper}", layer, *ends[0], *ends[1], "400G", "3", "", "")


TRIANGLE = [
    by_hand("s-1:a", "s-2:c"),
    by_hand("s-1:b", "s-10:e"),
    by_hand("s-2:d", "s-10:f"),
    by_hand("h1:p0", "s-1:g"),
    by_hand("h2:p0", "s-1:i"),
]


@pytest.fixture
def cables():
    return cables_of(fabric_of(parallel_links=1))


@pytest.mark.parametrize("platform", FILES)
@pytest.mark.parametrize(
    "changes", [{}, {"parallel_links": 2}, {"hosts": 50, "tiers": 3}, {"hosts": 5, "tiers": 1}]
)
def test_both_ends_of_every_cable_are_those_of_the_switches(platform, changes):
    fabric = fabric_of(**changes)
    listed = cables_of(fabric, platform)
    interfaces = cabling.Interfaces(fabric, platform)
    # Each switch's own view of its ports, by link.
    ends = {}
    for switch in fabric.switches():
        for port in fabric.ports(switch):
            side = "lower" if port.is_uplink else "upper"
            ends[port.link, side] = (cabling.device(str(switch)), interfaces.name(port))
    assert len(listed) == sum(fabric.core.links_per_layer) * fabric.planes
    for cable in listed:
        assert ends.pop((cable.link, "upper")) == (cable.upper, cable.upper_port)
        if cable.to_host:
            assert (cable.lower, cable.lower_port) == tuple(cable.link.partition("--")[0].split(":"))
        else:
            assert ends.pop((cable.link, "lower")) == (cable.lower, cable.lower_port)
    assert ends == {}


def test_every_cable_of_a_small_fabric_is_listed_with_its_parts():
    rows = [
        SimpleNamespace(name="host-T0", rate=2 * 10**11, length=2.5, cable="DAC", transceiver=None),
        SimpleNamespace(name="T0-T1", rate=2 * 10**11, length=30.0, cable=None, transceiver="SR / DR"),
    ]
    fabric = fabric_of(hosts=4, planes=2, hosts_per_t0=2, switch={"radix": 4}, parallel_links=1)
    listed = list(cabling.cables(fabric, "eos", SimpleNamespace(link_rows=rows)))
    assert len(listed) == 2 * (4 + 4)
    host, up = next(c for c in listed if c.lower == "h3"), listed[7]
    assert host == cabling.Cable(
        "h3:p0--p0/t0-1:down1",
        "host-T0",
        *("h3", "p0", "p0"),
        *("p0-t0-1", "Ethernet2/1", "Ethernet2/1"),
        *("200G", "2.5", "DAC", ""),
    )
    assert up == cabling.Cable(
        "p0/t0-1:up1--p0/t1-1",
        "T0-T1",
        *("p0-t0-1", "Ethernet4/1", "Ethernet4/1"),
        *("p0-t1-1", "Ethernet2/1", "Ethernet2/1"),
        *("200G", "30", "", "SR / DR"),
    )
    assert [c.to_host for c in listed] == ([True] * 4 + [False] * 4) * 2
    assert len({(c.upper, c.upper_port) for c in listed} | {(c.lower, c.lower_port) for c in listed}) == 32


def test_a_list_needs_only_the_names_of_both_ends(tmp_path):
    path = tmp_path / "cables.csv"
    columns = "upper_alias,upper_port,upper,lower_alias,lower_port,lower,layer,link,colour"
    path.write_text(f"{columns}\nU1,u1,s-1,L1,l1,h1,host-T0,x,blue\n,u2,s-1,,l2,s-2,,\n")
    first, second = cabling.read(path)
    assert first == cabling.Cable("x", "host-T0", "h1", "l1", "L1", "s-1", "u1", "U1", "", "", "", "")
    assert second == cabling.Cable("", "", "s-2", "l2", "", "s-1", "u2", "", "", "", "", "")
    assert (first.to_host, second.to_host) == (True, False)
    path.write_text("")
    with pytest.raises(
        Error, match=r"cables.csv:1: no column link; `openmrc plan --cabling` writes the list"
    ):
        cabling.read(path)
    path.write_text(columns.replace("upper_alias,", "") + "\n")
    with pytest.raises(Error, match="no column upper_alias"):
        cabling.read(path)


def test_the_list_is_csv_and_is_read_back(cables, tmp_path):
    path = tmp_path / "cables.csv"
    assert cabling.write(path, iter(cables)) == len(cables) == 32 + 32
    assert cabling.read(path) == cables
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert rows[0]["link"] == "h0:p0--p0/t0-0:down0"
    assert (rows[0]["rate"], rows[0]["metres"], rows[0]["cable"]) == ("200G", "3", "mmf")
    assert {row["layer"] for row in rows} == {"host-T0", "T0-T1"}


@pytest.mark.parametrize("form", FORMS)
def test_cables_in_their_places_are_right(cables, form, tmp_path):
    save(heard(cables), tmp_path, form)
    result = lldp.check(cables, tmp_path)
    assert [str(problem) for problem in result.problems] == []
    assert (result.cables, result.seen, result.silent, result.unnamed) == (64, 64, [], [])


def test_names_of_ports_may_be_interface_alias_or_link(tmp_path):
    fabric = fabric_of(
        hosts=1024, nic={"rate": "800G"}, planes=8, switch={"capacity": "51.2T", "device": "SN5640"}
    )
    cables = [c for c in cables_of(fabric) if c.lower == "p0-t0-0"][:3]
    assert cables[0].lower_alias == "etp33a"
    found = heard(cables)
    names = [cables[0].lower_port, cables[1].lower_alias, cables[2].link]
    (upper,) = {c.upper for c in cables}
    found[upper] = [(port, device, name) for (port, device, _), name in zip(found[upper], names, strict=True)]
    save(found, tmp_path)
    result = lldp.check(cables, tmp_path)
    assert (result.problems, result.seen, result.unnamed) == ([], 3, [])


@pytest.mark.parametrize("form", FORMS)
def test_two_exchanged_cables_are_named_with_their_places(cables, form, tmp_path):
    found = heard(cables)
    a, b = [i for i, (_, device, _) in enumerate(found["p0-t0-0"]) if device in ("p0-t1-0", "p0-t1-1")]
    mine = found["p0-t0-0"]
    mine[a], mine[b] = (mine[a][0], *mine[b][1:]), (mine[b][0], *mine[a][1:])
    for upper, other in (("p0-t1-0", mine[b]), ("p0-t1-1", mine[a])):
        place = next(i for i, (_, device, _) in enumerate(found[upper]) if device == "p0-t0-0")
        found[upper][place] = (found[upper][place][0], "p0-t0-0", other[0])
    save(found, tmp_path, form)
    assert [str(p) for p in lldp.check(cables, tmp_path).problems] == [
        "p0-t0-0: Ethernet32: is connected to p0-t1-1 Ethernet0, expected p0-t1-0 Ethernet0 "
        "(this cable belongs to Ethernet40)",
        "p0-t0-0: Ethernet40: is connected to p0-t1-0 Ethernet0, expected p0-t1-1 Ethernet0 "
        "(this cable belongs to Ethernet32)",
        "p0-t1-0: Ethernet0: is connected to p0-t0-0 Ethernet40, expected p0-t0-0 Ethernet32",
        "p0-t1-1: Ethernet0: is connected to p0-t0-0 Ethernet32, expected p0-t0-0 Ethernet40",
    ]


def test_two_planes_of_a_host_exchanged_are_named(cables, tmp_path):
    found = heard(cables)
    found["p0-t0-0"][1], found["p0-t0-0"][2] = (
        (found["p0-t0-0"][1][0], "h2", "p0"),
        (found["p0-t0-0"][2][0], "h1", "p0"),
    )
    save(found, tmp_path)
    problems = lldp.check(cables, tmp_path).problems
    assert [(p.device, p.port) for p in problems] == [("p0-t0-0", "Ethernet8"), ("p0-t0-0", "Ethernet16")]
    assert problems[0].text == "is connected to h2, expected h1 p0 (this cable belongs to Ethernet16)"


def test_a_missing_cable_a_cable_too_many_and_a_missing_switch_are_named(cables, tmp_path):
    found = heard(cables)
    found["p1-t0-1"] = [entry for entry in found["p1-t0-1"] if entry[1] != "p1-t1-3"]
    found["p1-t0-1"].append(("Ethernet200", "p0-t0-0", "Ethernet201"))
    found["p1-t0-1"].append(("eth0", "management-7", "ge-0/0/1"))
    del found["p0-t1-2"]
    save(found, tmp_path)
    result = lldp.check(cables, tmp_path)
    assert [str(p) for p in result.problems] == [
        f"p0-t1-2: -: no LLDP output in {tmp_path}",
        "p1-t0-1: Ethernet56: has no LLDP neighbour, expected p1-t1-3 Ethernet8",
        "p1-t0-1: Ethernet200: is connected to p0-t0-0, expected no cable",
    ]
    # The other ends report them: one end is enough.
    assert result.seen == 64


def test_hosts_without_lldp_are_counted_and_no_problem(cables, tmp_path):
    found = {
        device: [entry for entry in entries if not entry[1].startswith("h")]
        for device, entries in heard(cables).items()
    }
    save(found, tmp_path)
    result = lldp.check(cables, tmp_path)
    assert (result.ok, result.seen, len(result.silent)) == (True, 32, 32)


def test_a_port_without_a_known_name_is_counted(cables, tmp_path):
    found = heard(cables)
    found["p0-t0-0"] = [
        (port, device, "uplink to the spine" if device == "p0-t1-0" else name)
        for port, device, name in found["p0-t0-0"]
    ]
    save(found, tmp_path)
    result = lldp.check(cables, tmp_path)
    assert (result.ok, result.unnamed) == (True, ["p0/t0-0:up0--p0/t1-0"])


def test_two_devices_at_one_port_are_named(cables, tmp_path):
    found = heard(cables)
    port = found["p0-t1-0"][0][0]
    found["p0-t1-0"].append((port, "p0-t0-3", "Ethernet0"))
    save(found, tmp_path)
    (problem,) = lldp.check(cables, tmp_path).problems
    assert problem.text == "has several LLDP neighbours, p0-t0-0, p0-t0-3; expected p0-t0-0 Ethernet32"


def test_files_in_the_directories_of_config_are_found(cables, tmp_path):
    save(heard(cables), tmp_path)
    for path in list(tmp_path.glob("*.json")):
        plane, _, name = path.stem.partition("-")
        (tmp_path / plane).mkdir(exist_ok=True)
        path.rename(tmp_path / plane / f"{name}.lldp.json")
    assert lldp.check(cables, tmp_path).ok


CHASSIS = {"id": {"type": "mac", "value": "5e:8e:d1:c9:48:31"}}


@pytest.mark.parametrize(
    ("chassis", "port", "device", "ports"),
    [
        # lldpctl -f json: the key is the system name; without one the fields are there themselves.
        ({"h3": CHASSIS}, {"id": {"type": "ifname", "value": "eth0"}}, "h3", {"eth0"}),
        (CHASSIS, {"id": {"type": "local", "value": 7}}, "5e:8e:d1:c9:48:31", {"7"}),
        (
            {"h3": CHASSIS},
            {"descr": "to p0", "id": {"type": "ifname", "value": "eth0"}},
            "h3",
            {"to p0", "eth0"},
        ),
        ({"h3": CHASSIS}, {"descr": "", "id": {"type": "mac", "value": "9a:f8:c6:fd:f2:86"}}, "h3", set()),
        ({"h3": CHASSIS}, {"descr": "p0", "id": {"type": "ip", "value": "192.0.2.1"}}, "h3", {"p0"}),
        ({"h3": CHASSIS}, {"ttl": "120"}, "h3", set()),
        # json0: lists of values; a switch may have several identifiers.
        (
            [{"id": [{"type": "mac", "value": "5e:8e:d1:c9:48:31"}], "name": [{"value": "h3"}]}],
            [
                {
                    "descr": [{"value": "to p0"}],
                    "id": [
                        {"type": "ifname", "value": "eth0"},
                        {"type": "ip", "value": "::1"},
                        {"value": "x"},
                    ],
                }
            ],
            "h3",
            {"to p0", "eth0", "x"},
        ),
        (
            [{"id": [{"type": "local", "value": "first"}, {"type": "local", "value": "second"}]}],
            [{}],
            "first",
            set(),
        ),
        ([{"id": [{"value": "first"}], "name": [{"value": ""}]}], [{}], "first", set()),
    ],
)
def test_a_neighbour_has_its_name_or_identifier_and_all_names_of_its_port(
    chassis, port, device, ports, tmp_path
):
    path = tmp_path / "switch.json"
    interface = {"swp1": {"chassis": chassis, "port": port}}
    if isinstance(chassis, list):
        interface = {"name": "swp1", "chassis": chassis, "port": port}
    path.write_text(json.dumps({"lldp": {"interface": interface}}))
    assert lldp.read(path) == {"swp1": [lldp.Neighbour(device, frozenset(ports))]}


def test_a_port_may_have_several_neighbours(tmp_path):
    path = tmp_path / "switch.json"
    path.write_text(json.dumps(eos([("Ethernet1/1", "a", "x"), ("Ethernet1/1", "b", "y")])))
    assert [neighbour.device for neighbour in lldp.read(path)["Ethernet1/1"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["s-1", "s-2.json", "s-10.lldp.json"], True),
        (["s/1.json", "s/2", "s-10.json"], True),
        (["s/1/lldp.json", "s-2.json", "s-10.json"], False),
        (["s-1.json", "s-2.json", "s-10.json", "README", "old/s-7.json"], True),
        (["s-1.json", "s-2.json", "old/s-10.json"], True),
    ],
)
def test_the_file_of_a_switch_has_its_name_also_in_directories(names, found, tmp_path):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(lldpctl([("x", "unknown", "y")])))
    problems = lldp.check(TRIANGLE, tmp_path).problems
    assert (not any("no LLDP output" in problem.text for problem in problems)) == found


def test_directories_without_the_files_of_switches_are_refused(tmp_path):
    for problem in (
        "is not a directory; it should have a file",
        "has no file named after a switch, such as s-1.json",
    ):
        with pytest.raises(Error, match=problem):
            lldp.check(TRIANGLE, tmp_path / "lldp")
        # A directory with the name of a switch is no file of it.
        (tmp_path / "lldp" / "s-2").mkdir(parents=True, exist_ok=True)
    for name in ("s-1.json", "s-1.txt"):
        (tmp_path / "lldp" / name).write_text("{}")
    with pytest.raises(Error, match=r"s-1.txt: .*s-1.json is for the same switch"):
        lldp.check(TRIANGLE, tmp_path / "lldp")


def test_switches_are_named_in_the_order_of_their_numbers(tmp_path):
    (tmp_path / "s-1.json").write_text(json.dumps(lldpctl([("g", "h1", "p0")])))
    problems = lldp.check(TRIANGLE, tmp_path).problems
    assert [(p.device, p.port) for p in problems] == [("s-1", "a"), ("s-1", "b"), ("s-2", "-"), ("s-10", "-")]
    assert str(problems[0]) == "s-1: a: has no LLDP neighbour, expected s-2 c"


@pytest.mark.parametrize("form", FORMS)
def test_a_switch_may_call_its_ports_by_their_labels(form, tmp_path):
    found = {
        device: [(port.upper(), peer, its_port) for port, peer, its_port in entries]
        for device, entries in heard(TRIANGLE).items()
    }
    save(found, tmp_path, form)
    result = lldp.check(TRIANGLE, tmp_path)
    assert (result.problems, result.seen, result.cables) == ([], 5, 5)


@pytest.mark.parametrize(
    ("port", "device", "its_port", "text"),
    [
        ("a", "s-10", "f", "is connected to s-10 f, expected s-2 c"),
        ("a", "s-10", "F", "is connected to s-10 f, expected s-2 c"),
        ("a", "s-10", "e", "is connected to s-10 e, expected s-2 c (this cable belongs to b)"),
        ("a", "s-10", "E", "is connected to s-10 e, expected s-2 c (this cable belongs to b)"),
        ("a", "s-10", "?", "is connected to s-10, expected s-2 c"),
        ("a", "s-2", "d", "is connected to s-2 d, expected s-2 c"),
        ("a", "h1", "eth0", "is connected to h1, expected s-2 c (this cable belongs to g)"),
        ("a", "stranger", "c", "is connected to stranger, expected s-2 c"),
        ("g", "h2", "p0", "is connected to h2, expected h1 p0 (this cable belongs to i)"),
        ("g", "s-2", "c", "is connected to s-2 c, expected h1 p0 (this cable belongs to a)"),
        ("z", "s-2", "c", "is connected to s-2, expected no cable"),
        ("z", "stranger", "c", None),
        ("z", "h1", "p0", None),
        ("a", "s-2", "C", None),
        ("a", "s-2", "s-1:a--s-2:c", None),
        ("g", "h1", "any", None),
    ],
)
def test_a_cable_in_a_wrong_place_is_named_with_what_the_list_knows_of_it(
    port, device, its_port, text, tmp_path
):
    found = heard(TRIANGLE)
    found["s-1"] = [entry for entry in found["s-1"] if entry[0] != port] + [(port, device, its_port)]
    save(found, tmp_path)
    problems = lldp.check(TRIANGLE, tmp_path).problems
    assert [str(problem) for problem in problems] == ([f"s-1: {port}: {text}"] if text else [])


def test_a_cable_is_seen_if_one_end_reports_it_and_counted_once(tmp_path):
    found = heard(TRIANGLE)
    for entries in found.values():
        entries.sort()
    found["s-2"] = [("c", "s-1", "unknown"), ("d", "s-10", "f")]
    found["s-1"].remove(("i", "h2", "p0"))
    save(found, tmp_path)
    result = lldp.check(TRIANGLE, tmp_path)
    assert (result.ok, result.cables, result.seen) == (True, 5, 4)
    assert (result.unnamed, result.silent) == (["s-1:a--s-2:c"], ["h2:p0--s-1:i"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "p0-t0-0.json:1: not JSON"),
        ("[]", "not the output of lldpctl"),
        ("{}", "not the output of lldpctl"),
        ("", "not the output of lldpctl"),
        ('{"lldp": {"interface": [{"x": 3}]}}', "not the output of lldpctl"),
        ("plain text", "not JSON: Expecting value; use lldpctl -f json"),
    ],
)
def test_any_other_file_is_refused(cables, text, message, tmp_path):
    save(heard(cables), tmp_path)
    (tmp_path / "p0-t0-0.json").write_text(text)
    with pytest.raises(Error, match=message):
        lldp.check(cables, tmp_path)


def test_an_empty_answer_means_no_neighbours(cables, tmp_path):
    save(heard(cables), tmp_path)
    (tmp_path / "p0-t1-0.json").write_text('{"lldp": {}}')
    problems = lldp.check(cables, tmp_path).problems
    assert len(problems) == 4
    assert all("has no LLDP neighbour" in problem.text for problem in problems)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("upper_port,", "port,", "cables.csv:1: no column upper_port"),
        (
            "p0-t0-0,Ethernet8,",
            "p0-t0-0,Ethernet0,",
            "cables.csv:3: Ethernet0 of p0-t0-0 already has a cable in line 2",
        ),
        (",h1,p0,", ",,p0,", "cables.csv:3: a cable needs a device and a port at both ends"),
    ],
)
def test_a_wrong_list_is_refused(cables, old, new, message, tmp_path):
    path = tmp_path / "cables.csv"
    cabling.write(path, iter(cables))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(Error, match=message):
        cabling.read(path)


def test_the_commands_write_the_list_and_check_it(cables, tmp_path, capsys):
    spec = tmp_path / "fabric.yaml"
    spec.write_text(
        "hosts: 16\nnic: {rate: 400G}\nplanes: 2\ntiers: 2\nparallel_links: 1\nswitch: {radix: 8}\n"
    )
    listed, directory = tmp_path / "cables.csv", tmp_path / "lldp"
    assert main(["plan", str(spec), "--cabling", str(listed), "--platform", "sonic"]) == 0
    assert [c.link for c in cabling.read(listed)] == [c.link for c in cables]
    found = heard(cables)
    save(found, directory)
    capsys.readouterr()
    assert main(["verify", str(listed), "--lldp", str(directory)]) == 0
    assert capsys.readouterr().out == "right: 64 of 64 cables seen\n"
    found["p0-t1-0"] = found["p0-t1-0"][1:]
    save(found, directory)
    assert main(["verify", str(listed), "--lldp", str(directory), "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["ok"], result["seen"], len(result["problems"])) == (False, 64, 1)
    assert main(["plan", str(spec), "--cabling", str(listed), "--platform", "junos"]) == 2
    assert main(["verify", str(listed)]) == 2
    assert "add --lldp DIR" in capsys.readouterr().err


def test_the_switch_can_be_named_on_the_command_line_where_its_ports_are(tmp_path, capsys):
    spec, listed = tmp_path / "fabric.yaml", tmp_path / "cables.csv"
    spec.write_text("hosts: 600\nnic: {rate: 800G}\nplanes: 8\ntiers: 2\nswitch: {capacity: 51.2T}\n")
    words = ["plan", str(spec), "--cabling", str(listed), "--platform", "sonic"]
    assert main(words) == 2
    assert "name yours, here or with --device: 7060X6-64PE-B, SN5640" in capsys.readouterr().err
    assert not listed.exists()
    assert main([*words, "--device", "SN5640"]) == 0
    aliases = {cable.lower_alias for cable in cabling.read(listed) if not cable.to_host}
    assert any(alias.startswith("etp") for alias in aliases)
    assert main(["plan", str(spec), "--device", "SN5640"]) == 2
    # What was written for a named switch, held against a plan that does not name it.
    words = [
        "config",
        str(spec),
        "--platform",
        "cumulus",
        "--device",
        "SN5640",
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(words) == 0
    words = ["verify", str(tmp_path / "out"), "--fabric", str(spec), "--platform", "cumulus"]
    assert main(words) == 2
    assert main([*words, "--device", "SN5640"]) == 0
    assert main(["verify", str(tmp_path / "out"), "--device", "SN5640"]) == 2


def test_a_directory_of_configurations_is_a_list_of_cables_too(cables, tmp_path, capsys):
    render(fabric_of(parallel_links=1), "sonic", tmp_path / "out")
    save(heard(cables), tmp_path / "lldp")
    assert main(["verify", str(tmp_path / "out"), "--lldp", str(tmp_path / "lldp")]) == 0
    assert capsys.readouterr().out == "right: 64 of 64 cables seen\n"
