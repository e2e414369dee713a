"""The files for SONiC: valid under SONiC's own schema, with the ports and the trimming of the hardware."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from openmrc import Error
from openmrc.fabric import Fabric, Specification
from openmrc.switchconf import devices, evidence, render, render_switch, verify
from openmrc.switchconf.devices import known, sku_rows
from openmrc.switchconf.facts import Facts
from tests.helpers import sonic_yang
from tests.helpers.repository import ROOT

SWITCH = ROOT / "tests" / "helpers" / "sonic_switch.py"

# What the switch has before `config load`: the ports of its hardware SKU, and the platform's buffer pool.
POOL = {"egress_lossy_pool": {"type": "egress", "mode": "dynamic", "size": "165335712"}}
REFERENCE = {"hosts": 1024, "nic": {"rate": "800G"}, "planes": 8, "tiers": 2}
SKUS = {
    "Arista-7060X6-64PE-B-C512S2": 8,
    "Arista-7060X6-64PE-B-O128": 2,
    "Arista-7060X6-64PE-O128S2": 2,
    "Mellanox-SN5600-O128": 2,
    "Mellanox-SN5600-V256": 4,
    "Mellanox-SN5640-C512S2": 8,
}


def fabric_of(switch, **changes):
    return Fabric(Specification.model_validate({**REFERENCE, "switch": switch, **changes}))


def tables_of(fabric, switch="p0/t0-0"):
    """The tables of one switch."""
    files = dict(render_switch(Facts(fabric, "sonic").of(fabric.switch(switch)), "sonic"))
    return json.loads(files["config_db.json"])


def with_preset(tables):
    """The tables on a switch after `config load`, for ports that the file leaves to the preset."""
    ports = {
        name: {"lanes": str(number), "speed": "200000", **fields}
        for number, (name, fields) in enumerate(tables["PORT"].items())
    }
    return {**tables, "PORT": ports, "BUFFER_POOL": POOL}


@pytest.mark.parametrize("release", sonic_yang.RELEASES)
@pytest.mark.parametrize("sku", [None, *SKUS])
def test_every_tier_is_valid_under_sonics_schema(sku, release, tmp_path):
    if reason := sonic_yang.missing():
        pytest.skip(reason)
    if sku is None:
        fabric = fabric_of({"radix": 8}, hosts=50, planes=2, nic={"rate": "400G"}, tiers=3)
    else:
        fabric = fabric_of({"capacity": "51.2T", "hwsku": sku}, planes=SKUS[sku])
    for tier in range(fabric.tiers):
        tables = with_preset(tables_of(fabric, f"p0/t{tier}-0"))
        assert sonic_yang.problems(tables, release, tmp_path) == []


# Whole fabrics, as `openmrc config` writes them: every file of every switch.
WHOLE = {
    "two tiers": {},
    "one link to each T1": {"parallel_links": 1},
    "uneven racks": {"hosts": 17, "hosts_per_t0": 3, "oversubscription": 1.5},
    "three tiers": {"hosts": 50, "tiers": 3},
    "one tier": {"hosts": 5, "tiers": 1},
    "another block": {"addressing": {"block": "2001:db8::/32", "links": "fd00:1::/32"}},
    "other code points": {"qos": {"dscp": {"control": 48, "data": 10}, "ecn_min": 0.3, "mtu": 1280}},
    "named": {
        "nic": {"rate": "800G"},
        "hosts": 600,
        "switch": {"capacity": "51.2T", "device": "SN5640"},
        "planes": 8,
    },
}


@pytest.mark.parametrize("release", sonic_yang.RELEASES)
@pytest.mark.parametrize("name", WHOLE)
def test_every_rendered_file_is_valid_under_sonics_schema(name, release, tmp_path):
    if reason := sonic_yang.missing():
        pytest.skip(reason)
    base = {"hosts": 16, "nic": {"rate": "400G"}, "planes": 2, "switch": {"radix": 8}, "tiers": 2}
    fabric = Fabric(Specification.model_validate({**base, **WHOLE[name]}))
    count = render(fabric, "sonic", tmp_path / "out")
    files = sorted((tmp_path / "out").rglob("config_db.json"))
    assert len(files) == count
    switches = [with_preset(json.loads(path.read_text())) for path in files]
    assert sonic_yang.problems_of(switches, release, tmp_path) == []
    # One wrong value in the last file is found among all of them.
    switches[-1]["SRV6_MY_SIDS"][next(iter(switches[-1]["SRV6_MY_SIDS"]))]["action"] = "End"
    assert sonic_yang.problems_of(switches, release, tmp_path)


@pytest.mark.parametrize("release", sonic_yang.RELEASES)
@pytest.mark.parametrize(
    ("table", "key", "field", "value"),
    [
        ("DEVICE_METADATA", "localhost", "bgp_asn", "None"),
        ("BUFFER_PROFILE", "DATA", "pool", "egress_pool"),
        ("SRV6_MY_SIDS", "own0|5f00:0:1::/48", "action", "End"),
        ("PORT", "Ethernet0", "fec", "reed-solomon"),
        ("TC_TO_DSCP_MAP", "FABRIC", "5", "64"),
    ],
)
def test_the_check_is_real_wrong_values_are_found(table, key, field, value, release, tmp_path):
    if reason := sonic_yang.missing():
        pytest.skip(reason)
    tables = with_preset(tables_of(fabric_of({"capacity": "51.2T", "hwsku": "Mellanox-SN5640-C512S2"})))
    assert key in tables[table]
    tables[table][key][field] = value
    assert sonic_yang.problems(tables, release, tmp_path)


def test_no_bgp_and_types_that_switches_of_these_tiers_have():
    fabric = fabric_of({"radix": 8}, hosts=50, planes=2, nic={"rate": "400G"}, tiers=3)
    for tier, name in enumerate(("ToRRouter", "LeafRouter", "SpineRouter")):
        metadata = tables_of(fabric, f"p0/t{tier}-0")["DEVICE_METADATA"]["localhost"]
        assert metadata == {
            "hostname": f"p0-t{tier}-0",
            "type": name,
            "docker_routing_config_mode": "separated",
        }


@pytest.mark.parametrize(
    ("sku", "port", "expected"),
    [
        # From port_config.ini of sonic-buildimage; the second half of the 7060X6 has another order of lanes.
        ("Arista-7060X6-64PE-B-C512S2", "Ethernet0", ("17", "Ethernet1/1", "1", "100000")),
        ("Arista-7060X6-64PE-B-C512S2", "Ethernet47", ("48", "Ethernet6/8", "6", "100000")),
        ("Arista-7060X6-64PE-B-C512S2", "Ethernet256", ("273", "Ethernet33/1", "33", "100000")),
        ("Arista-7060X6-64PE-B-C512S2", "Ethernet511", ("504", "Ethernet64/8", "64", "100000")),
        ("Arista-7060X6-64PE-O128S2", "Ethernet348", ("341,342,343,344", "Ethernet44/5", "44", "400000")),
        ("Mellanox-SN5640-C512S2", "Ethernet300", ("300", "etp38e", "38", "100000")),
        ("Mellanox-SN5600-V256", "Ethernet510", ("510,511", "etp64d", "64", "200000")),
        ("Mellanox-SN5600-O128", "Ethernet364", ("364,365,366,367", "etp46b", "46", "400000")),
    ],
)
def test_a_port_table_is_that_of_the_hardware(sku, port, expected):
    rows = {row.name: row for row in sku_rows(known().hwsku(sku))}
    row = rows[port]
    assert (row.lanes, row.alias, row.index, row.speed) == expected
    assert row.fec == "rs"


@pytest.mark.parametrize("sku", SKUS)
def test_every_lane_of_a_port_table_is_used_once(sku):
    lanes = [int(lane) for row in sku_rows(known().hwsku(sku)) for lane in row.lanes.split(",")]
    assert sorted(lanes) == list(range(min(lanes), min(lanes) + 512))


def test_the_ports_of_a_file_are_those_of_the_hardware():
    fabric = fabric_of({"capacity": "51.2T", "hwsku": "Arista-7060X6-64PE-B-C512S2"})
    assert tables_of(fabric)["PORT"]["Ethernet8"] == {
        "admin_status": "up",
        "alias": "Ethernet2/1",
        "description": "h8:p0--p0/t0-0:down8",
        "fec": "rs",
        "index": "2",
        "lanes": "1",
        "mtu": "9216",
        "pfc_asym": "off",
        "speed": "100000",
    }


def test_without_a_hardware_sku_the_preset_decides_lanes_and_speeds():
    fabric = fabric_of({"radix": 8}, hosts=16, planes=2, nic={"rate": "400G"})
    assert tables_of(fabric)["PORT"]["Ethernet8"].keys() == {
        "admin_status",
        "description",
        "mtu",
        "pfc_asym",
    }


def test_buffers_come_from_the_platforms_pool():
    tables = tables_of(fabric_of({"capacity": "51.2T", "device": "SN5640"}))
    assert "BUFFER_POOL" not in tables
    assert {profile["pool"] for profile in tables["BUFFER_PROFILE"].values()} == {"egress_lossy_pool"}


@pytest.mark.parametrize(
    ("switch", "rate", "planes", "thresholds"),
    [
        # Bytes: 100 Gb/s for 12 us are 150 kB.
        ({"hwsku": "Arista-7060X6-64PE-B-C512S2"}, "800G", 8, {"static_th": ["150000", "225000"]}),
        # Shares of the free pool: 2**-8 of 105 MB are 410 kB; 400 Gb/s for 12 us are 600 kB.
        ({"device": "SN5640"}, "800G", 8, {"dynamic_th": ["-8", "-8"]}),
        ({"hwsku": "Mellanox-SN5600-O128"}, "800G", 2, {"dynamic_th": ["-7", "-7"]}),
    ],
)
def test_thresholds_are_of_the_kind_that_the_buffer_model_takes(switch, rate, planes, thresholds):
    fabric = fabric_of({"capacity": "51.2T", **switch}, nic={"rate": rate}, planes=planes)
    profiles = tables_of(fabric)["BUFFER_PROFILE"]
    for field, values in thresholds.items():
        assert [profiles[name][field] for name in ("DATA", "DATA_LAST_HOP")] == values
        assert all(field in profile for profile in profiles.values())
    assert ("dynamic_th" in thresholds) == any("not exact" in n for n in evidence.notes(fabric, "sonic"))


@pytest.mark.parametrize(
    ("switch", "planes", "trimming"),
    [
        ({"capacity": "51.2T", "hwsku": "Arista-7060X6-64PE-B-C512S2"}, 8, ("206", "4")),
        ({"capacity": "51.2T", "hwsku": "Arista-7060X6-64PE-B-O128"}, 2, ("206", "9")),
        ({"capacity": "51.2T", "device": "SN5640"}, 8, ("512", "6")),
        ({"radix": 8, "asic": "tomahawk6"}, 8, ("392", "7")),
        ({"radix": 8}, 8, ("512", "6")),
        ({"radix": 8, "asic": "tomahawk5"}, 8, ("206", "9")),
    ],
)
def test_trimming_is_what_the_chip_can_do(switch, planes, trimming):
    fabric = fabric_of(
        switch, hosts=1024 if "capacity" in switch else 16, planes=planes, qos={"trim_size": 512}
    )
    tables = tables_of(fabric)
    size, queue = trimming
    given = {"size": size, "dscp_value": "from-tc", "tc_value": "5", "queue_index": queue}
    assert tables["SWITCH_TRIMMING"]["GLOBAL"] == given
    # Trimmed packets are sent before data, in any queue.
    assert tables["TC_TO_QUEUE_MAP"]["FABRIC"]["5"] == queue
    assert tables["QUEUE"][f"Ethernet0|{queue}"] == {"scheduler": "CONTROL"}
    assert tables["BUFFER_QUEUE"][f"Ethernet0|{queue}"] == {"profile": "CONTROL"}


@pytest.mark.parametrize(
    ("hwsku", "queue"),
    [
        ("Arista-7060X6-64PE-B-C448O16", "4"),
        ("Arista-7060X6-64PE-B-P64", "9"),
        ("Other-C448", "4"),
        (None, "9"),
    ],
)
def test_the_queue_of_trimmed_packets_is_that_of_the_sku_whose_table_is_given(hwsku, queue, tmp_path):
    fabric = with_table(tmp_path, hwsku=hwsku, asic="tomahawk5")
    assert tables_of(fabric)["SWITCH_TRIMMING"]["GLOBAL"]["queue_index"] == queue
    notes = " ".join(evidence.notes(fabric, "sonic"))
    assert ("before 202511 it is queue 7" in notes) == (queue == "9")
    assert "202505 has no sr0" in notes


def test_data_is_marked_with_certainty_from_the_upper_threshold_on():
    tables = tables_of(fabric_of({"capacity": "51.2T", "device": "SN5640"}))
    assert list(tables["WRED_PROFILE"]) == ["MARKING"]
    marking = tables["WRED_PROFILE"]["MARKING"]
    assert marking["green_drop_probability"] == "100"
    assert (marking["ecn"], marking["wred_green_enable"]) == ("ecn_all", "true")
    assert int(marking["green_min_threshold"]) < int(marking["green_max_threshold"])


def test_no_packet_loses_its_code_point():
    tables = tables_of(fabric_of({"radix": 8}, hosts=16, planes=2, nic={"rate": "400G"}))
    classes = tables["DSCP_TO_TC_MAP"]["FABRIC"]
    assert classes.keys() == {str(code) for code in range(64)}
    for name in ("FABRIC", "LAST_HOP"):
        written = tables["TC_TO_DSCP_MAP"][name]
        assert written.keys() == {str(tc) for tc in range(8)}
        # Data, retransmission, trimmed in the fabric or on a last hop, control: each leaves as it arrived.
        for code in ("0", "4", "8", "12", "16", "46"):
            assert written[classes[code]] == code
    # Only packets that this switch trims are in class 5.
    assert "5" not in classes.values()
    assert tables["TC_TO_DSCP_MAP"]["FABRIC"]["5"] == "12"
    assert tables["TC_TO_DSCP_MAP"]["LAST_HOP"]["5"] == "16"
    assert tables["TC_TO_QUEUE_MAP"]["FABRIC"].keys() == {str(tc) for tc in range(8)}


# --- loading ------------------------------------------------------------------------------------------------


class Switch:
    """A switch with the commands of tests/helpers/sonic_switch.py."""

    def __init__(self, directory, ports, hwsku):
        self.etc = directory / "etc"
        tools = directory / "tools"
        for path in (self.etc, tools):
            path.mkdir()
        for name in ("config", "sonic-cfggen", "sonic-db-cli"):
            tool = tools / name
            tool.write_text(f"#!{sys.executable}\n{SWITCH.read_text()}")
            tool.chmod(0o755)
        (self.etc / "ports.json").write_text(json.dumps(ports))
        old = {"DEVICE_METADATA": {"localhost": {"hwsku": hwsku}}, "VLAN": {"Vlan1000": {"vlanid": "1000"}}}
        for name in ("config_db.json", "database.json"):
            (self.etc / name).write_text(json.dumps(old))
        self.environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "SONIC": str(self.etc)}

    def run(self, script, *files):
        words = [str(script), *map(str, files)]
        return subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=120)

    def tables(self, name="config_db.json"):
        return json.loads((self.etc / name).read_text())


@pytest.mark.parametrize("hwsku", ["Mellanox-SN5640-C512S2", None])
def test_load_sh_leaves_ports_and_queues_of_the_plan_and_no_pfc(hwsku, tmp_path):
    if hwsku:
        fabric = fabric_of({"capacity": "51.2T", "hwsku": hwsku}, hosts=16, tiers=1)
        rows = {row.name: row for row in sku_rows(known().hwsku(hwsku))}
    else:
        fabric = fabric_of({"radix": 8}, hosts=16, planes=2, nic={"rate": "400G"})
        rows = {f"Ethernet{8 * n}": None for n in range(8)}
    render(fabric, "sonic", tmp_path / "out")
    ports = {
        name: {
            "lanes": row.lanes if row else str(n),
            "speed": row.speed if row else "200000",
            "index": str(n),
        }
        for n, (name, row) in enumerate(rows.items())
    }
    switch = Switch(tmp_path, ports, "Some-SKU")
    keep = tmp_path / "keep.json"
    keep.write_text('{"MGMT_INTERFACE": {"eth0|192.0.2.10/24": {"gwaddr": "192.0.2.1"}}}')
    file = tmp_path / "out" / "p0" / "t0-0" / "config_db.json"
    for _ in range(2):  # A second run ends in the same configuration.
        run = switch.run(tmp_path / "out" / "load.sh", file, keep)
        assert (run.returncode, run.stderr) == (0, "")
        tables, ours = switch.tables(), json.loads(file.read_text())
        assert switch.tables("database.json") == tables
        # All ports of the SKU, and ours as they are rendered; no entry of the platform beside or within ours.
        assert tables["PORT"].keys() == ports.keys()
        assert all(tables["PORT"][name].items() >= fields.items() for name, fields in ours["PORT"].items())
        assert all("lanes" in fields for fields in tables["PORT"].values())
        for table in ("PORT_QOS_MAP", "QUEUE", "BUFFER_QUEUE", "INTERFACE", "STATIC_ROUTE", "SRV6_MY_SIDS"):
            assert tables.get(table, {}) == ours[table]
        assert "pfc_enable" not in json.dumps(tables)
        assert not [key for key in tables["BUFFER_PG"] if key.endswith("|3-4")]
        assert {p["pool"] for p in tables["BUFFER_PROFILE"].values()} <= tables["BUFFER_POOL"].keys()
        assert tables["DEVICE_METADATA"]["localhost"]["hwsku"] == (hwsku or "Some-SKU")
        assert (tables["MGMT_INTERFACE"], "VLAN" in tables) == (
            json.loads(keep.read_text())["MGMT_INTERFACE"],
            False,
        )
        assert switch.tables("config_db.before.json")["VLAN"] == {"Vlan1000": {"vlanid": "1000"}}


def test_load_sh_changes_nothing_if_a_file_cannot_be_read(tmp_path):
    render(fabric_of({"radix": 8}, hosts=16, planes=2, nic={"rate": "400G"}), "sonic", tmp_path / "out")
    switch = Switch(tmp_path, {}, "Some-SKU")
    before = switch.tables()
    script, file = tmp_path / "out" / "load.sh", tmp_path / "out" / "p0" / "t0-0" / "config_db.json"
    for files, code, text in [((), 2, "usage"), ((file, tmp_path / "nothing"), 1, "load.sh: cannot read")]:
        run = switch.run(script, *files)
        assert (run.returncode, text in run.stderr) == (code, True)
        assert switch.tables() == before


# --- port tables and refusals -------------------------------------------------------------------------------

TABLE = """\
# name      lanes      alias   index   speed   fec
Ethernet0   8,9        one     1       200000  rs
Ethernet2   10,11      two     1       200000  rs
Ethernet4   0,1,2,3    three   2       400000  rs
Ethernet8   4,5        four    3       200000  rs
Ethernet10  6,7        five    3       200000  none
"""


def with_table(tmp_path, text=TABLE, **switch):
    (tmp_path / "ports").write_text(text)
    path = tmp_path / "fabric.yaml"
    fields = {"radix": 4, "hwsku": "Some-SKU", "port_config": "ports", **switch}
    path.write_text(f"hosts: 4\nnic: {{rate: 400G}}\nplanes: 2\ntiers: 2\nswitch: {json.dumps(fields)}\n")
    return Fabric.load(path)


def test_ports_are_taken_from_a_given_table_by_their_rate(tmp_path):
    fabric = with_table(tmp_path)
    render(fabric, "sonic", tmp_path / "out")
    ports = tables_of(fabric)["PORT"]
    assert [(name, port["lanes"], port["fec"]) for name, port in ports.items()] == [
        ("Ethernet0", "8,9", "rs"),
        ("Ethernet2", "10,11", "rs"),
        ("Ethernet8", "4,5", "rs"),
        ("Ethernet10", "6,7", "none"),
    ]
    # The table is copied, so that the directory can be verified alone.
    (tmp_path / "ports").unlink()
    assert verify(tmp_path / "out").ok
    file = tmp_path / "out" / "p0" / "t0-0" / "config_db.json"
    file.write_text(file.read_text().replace('"10,11"', '"12,13"'))
    (problem,) = verify(tmp_path / "out").problems
    assert (problem.line, problem.text) == (
        11,
        "Ethernet2 has lanes 12,13 and speed 200000, the port table has lanes 10,11 and speed 200000",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TABLE.replace("4,5 ", "8,5 "), "ports:5: lane 8 is already used in line 2"),
        (TABLE.replace("200000  none", "fast"), "ports:6: lanes and a speed in Mb/s expected"),
        (TABLE.replace("none", "none up"), "ports:6: 7 columns, the header has 6"),
        ("# nothing\n", "ports: no ports"),
        (TABLE.replace("one ", 'a"b'), r"ports:2: alias 'a\"b' is not the label of a port, such as etp1a"),
        (TABLE.replace("one ", "=1+1"), "ports:2: alias '=1\\+1' is not the label"),
        (TABLE.replace("two", "one"), "ports:3: alias one is already used in line 2"),
        (
            TABLE.replace("Ethernet2 ", 'eth2"  '),
            "ports:3: name .* is not the name of a port",
        ),
        (TABLE.replace("Ethernet2 ", "Ethernet0 "), "ports:3: name Ethernet0 is already used in line 2"),
        (TABLE.replace("one     1", "one     x"), "ports:2: index 'x' is not a number"),
        (TABLE.replace("none", "best"), "ports:6: fec 'best' is not one of rs, fc, none and auto"),
        (
            TABLE.replace("200000  none", "100000  none"),
            "Some-SKU has 3 ports of 200G, a switch of this fabric needs 4",
        ),
    ],
)
def test_a_wrong_port_table_is_refused(tmp_path, text, message):
    with pytest.raises(Error, match=message):
        render(with_table(tmp_path, text), "sonic", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_names_are_encoded_as_json_and_can_add_no_key(tmp_path, monkeypatch):
    hostile = 'a", "admin_status": "down'
    rows = [dataclasses.replace(row, alias=hostile) for row in devices.read_port_config(_written(tmp_path))]
    monkeypatch.setattr(devices, "read_port_config", lambda path: rows)
    for port in tables_of(with_table(tmp_path))["PORT"].values():
        assert (port["alias"], port["admin_status"]) == (hostile, "up")


def _written(tmp_path):
    (tmp_path / "ports").write_text(TABLE)
    return tmp_path / "ports"


@pytest.mark.parametrize(
    ("platform", "switch", "message"),
    [
        ("sonic", {"hwsku": "Arista-7060X6-64PE-O128S2"}, "possible on 7060X6-64PE-B, SN5640"),
        ("sonic", {"hwsku": "None-Such"}, "None-Such is not known .* switch.port_config"),
        ("sonic", {"device": "7060X6-64PE"}, "512 ports of 100G need 8 per cage"),
        ("sonic", {"hwsku": "Mellanox-SN5640-C512S2", "device": "SN5600"}, "is a SN5640, not a SN5600"),
        ("sonic", {"asic": "tomahawk1", "device": "SN5640"}, "tomahawk1 is not known"),
        ("cumulus", {"device": "SN5600"}, "SN5600 has 64 cages with 1, 2, 4 ports, 256 at most"),
        ("cumulus", {"device": "SN5610"}, "possible on 7060X6-64PE-B, SN5640"),
        ("cumulus", {"device": "7060X6-64PE-B"}, "runs eos and sonic, not cumulus; cumulus runs on SN5600"),
        ("eos", {"device": "7060X6-64PE"}, "7060X6-64PE has 64 cages with 1, 2, 4 ports, 256 at most"),
        ("eos", {"device": "SN9999"}, "SN9999 is not known; known are 7060X6-64PE, 7060X6-64PE-B"),
        ("eos", {}, "which few switches have; name yours, here or with --device: 7060X6-64PE-B"),
        ("cumulus", {}, "name yours, here or with --device: SN5640"),
        ("sonic", {}, "name yours, here or with --device: 7060X6-64PE-B, SN5640"),
    ],
)
def test_what_a_switch_cannot_do_is_refused(platform, switch, message, tmp_path):
    with pytest.raises(Error, match=message):
        render(fabric_of({"capacity": "51.2T", **switch}), platform, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("platform", "device", "name"),
    [
        ("eos", "7060X6-64PE-B", "Ethernet64/8"),
        ("cumulus", "SN5640", "swp64s7"),
        ("sonic", "7060X6-64PE-B", "Ethernet511"),
        ("sonic", "SN5640", "Ethernet511"),
    ],
)
def test_512_ports_of_100g_are_rendered_where_they_exist(platform, device, name):
    fabric = fabric_of({"capacity": "51.2T", "device": device}, parallel_links=1)
    facts = Facts(fabric, platform).of(fabric.switch("p0/t0-0"))
    assert len(facts.ports) == 512
    assert facts.ports[-1].interface == name
    assert all(name in text for _, text in render_switch(facts, platform))
