"""Switches that are known by name: breakouts, chips, SKUs and port tables; and tables that are given."""

import pytest
from pydantic import ValidationError

from openmrc import Error
from openmrc.fabric import Fabric, Specification
from openmrc.switchconf import with_switch
from openmrc.switchconf.devices import (
    HwSku,
    breakout,
    hardware,
    known,
    port_config_path,
    read_port_config,
    sku_rows,
)

BASE = {"hosts": 4, "nic": {"rate": "800G"}, "planes": 2, "tiers": 1}
SKUS = [sku.name for sku in known().hwskus]


def fabric_of(switch, **changes):
    return Fabric(Specification.model_validate({**BASE, "switch": switch, **changes}))


def table_of(tmp_path, text):
    path = tmp_path / "ports"
    path.write_text(text)
    return path


def test_what_is_known_of_switches_cannot_be_changed():
    for entry in (known(), known().asics[0], known().devices[0], known().hwskus[0]):
        for name in type(entry).model_fields:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(entry, name, None)


def test_every_sku_is_of_a_device_that_runs_sonic_and_every_device_has_a_chip():
    for sku in known().hwskus:
        assert "sonic" in known().device(sku.device).platforms
        assert sku.ports in known().device(sku.device).breakouts
    assert all(known().asic(device.asic).name == device.asic for device in known().devices)
    assert (known().asic("none"), known().device("none"), known().hwsku("none")) == (None, None, None)


# --- choice -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        ({}, ("SN5640", None, "ports", "spectrum5")),
        ({"device": "SN5600"}, ("SN5600", None, "ports", "spectrum5")),
        ({"hwsku": "Some-SKU"}, (None, "Some-SKU", None, "spectrum5")),
        ({"hwsku": "Some-SKU", "device": "SN5600"}, ("SN5600", "Some-SKU", None, "spectrum5")),
    ],
)
def test_a_switch_that_is_named_later_comes_instead_of_the_specifications(given, choice):
    switch = {"radix": 8, "device": "SN5640", "port_config": "ports", "asic": "spectrum5"}
    before = fabric_of(switch)
    named = with_switch(before, **given).spec.switch
    port_config = str(named.port_config) if named.port_config else None
    assert (named.device, named.hwsku, port_config, named.asic) == choice
    assert (named.radix, before.spec.switch.device) == (8, "SN5640")


@pytest.mark.parametrize(
    ("switch", "per_cage"),
    [
        ({"radix": 8}, 1),
        ({"radix": 8, "cages": 8}, 1),
        ({"radix": 8, "cages": 7}, 2),
        ({"radix": 8, "cages": 4}, 2),
        ({"radix": 8, "cages": 3}, 4),
        ({"radix": 8, "cages": 2}, 4),
        ({"radix": 8, "cages": 1}, 8),
        ({"radix": 9, "cages": 1}, 8),
        ({"radix": 64, "device": "SN5640"}, 1),
        ({"radix": 65, "device": "SN5640"}, 2),
        ({"radix": 128, "device": "SN5640"}, 2),
        ({"radix": 128, "device": "SN5640", "cages": 128}, 1),
        ({"radix": 8, "device": "unknown"}, 1),
        ({"capacity": "51.2T"}, 2),
    ],
)
def test_a_cage_is_broken_out_as_little_as_the_ports_need(switch, per_cage):
    assert breakout(fabric_of(switch)) == per_cage


@pytest.mark.parametrize("platform", ["linux", "frr"])
def test_the_switch_of_a_linux_machine_has_no_name(platform):
    assert hardware(fabric_of({"radix": 8, "device": "unknown", "cages": 1}), platform) == (None,) * 4


@pytest.mark.parametrize(
    ("platform", "switch", "device", "asic"),
    [
        ("eos", {"device": "7060X6-64PE"}, "7060X6-64PE", "tomahawk5"),
        ("eos", {}, None, None),
        # Only SONiC has SKUs; of another system they may be unknown.
        ("eos", {"hwsku": "Some-SKU"}, None, None),
        ("cumulus", {"device": "SN5610"}, "SN5610", "spectrum4"),
        ("cumulus", {"hwsku": "Mellanox-SN5600-O128"}, "SN5600", "spectrum4"),
        ("cumulus", {"device": "SN5610", "asic": "tomahawk5"}, "SN5610", "spectrum4"),
        ("sonic", {}, None, None),
        ("sonic", {"asic": "tomahawk6"}, None, "tomahawk6"),
    ],
)
def test_a_named_switch_decides_its_chip_and_only_sonic_needs_its_ports(platform, switch, device, asic):
    found = hardware(fabric_of({"radix": 8, **switch}), platform)
    assert (found.device and found.device.name, found.asic and found.asic.name) == (device, asic)
    assert (found.hwsku, found.rows) == (None, None)


@pytest.mark.parametrize(
    ("switch", "planes", "sku", "asic"),
    [
        ({"device": "SN5640"}, 8, "Mellanox-SN5640-C512S2", "spectrum5"),
        ({"device": "SN5600"}, 4, "Mellanox-SN5600-V256", "spectrum4"),
        ({"device": "SN5600"}, 2, "Mellanox-SN5600-O128", "spectrum4"),
        ({"device": "7060X6-64PE-B"}, 2, "Arista-7060X6-64PE-B-O128", "tomahawk5"),
        ({"hwsku": "Mellanox-SN5600-V256"}, 4, "Mellanox-SN5600-V256", "spectrum4"),
        ({"hwsku": "Mellanox-SN5600-V256", "device": "SN5600"}, 4, "Mellanox-SN5600-V256", "spectrum4"),
        ({"hwsku": "Mellanox-SN5600-V256", "asic": "tomahawk6"}, 4, "Mellanox-SN5600-V256", "tomahawk6"),
    ],
)
def test_sonic_has_the_ports_of_the_sku_that_is_named_or_the_devices_only_one(switch, planes, sku, asic):
    found = hardware(fabric_of({"capacity": "51.2T", **switch}, planes=planes), "sonic")
    assert (found.hwsku, found.asic.name, found.device.name) == (sku, asic, known().hwsku(sku).device)
    assert found.rows == sku_rows(known().hwsku(sku))


PER_CAGE = "ports of 400G are 8 per cage, which few switches have; name yours, here or with --device: "


@pytest.mark.parametrize(
    ("platform", "switch", "message"),
    [
        ("eos", {"radix": 8, "cages": 1}, f"switch.device: 8 {PER_CAGE}7060X6-64PE-B"),
        ("cumulus", {"radix": 8, "cages": 1, "port_config": "ports"}, f"switch.device: 8 {PER_CAGE}SN5640"),
        ("sonic", {"radix": 8, "cages": 1}, f"switch.device: 8 {PER_CAGE}7060X6-64PE-B, SN5640"),
        (
            "sonic",
            {"radix": 8, "hwsku": "Some-SKU"},
            f"switch.hwsku: the port table of Some-SKU is not known (known: {', '.join(SKUS)}); "
            "give it as switch.port_config, the port_config.ini of the switch",
        ),
        (
            "cumulus",
            {"radix": 8, "hwsku": "Mellanox-SN5600-V256", "device": "SN5640"},
            "switch.hwsku: Mellanox-SN5600-V256 is a SN5600, not a SN5640",
        ),
        (
            "eos",
            {"radix": 8, "device": "SN5640"},
            "switch.device: SN5640 runs cumulus and sonic, not eos; eos runs on 7060X6-64PE, 7060X6-64PE-B",
        ),
        (
            "cumulus",
            {"radix": 512, "cages": 64, "device": "SN5600"},
            "switch.device: 512 ports of 400G need 8 per cage; SN5600 has 64 cages with 1, 2, 4 ports, "
            "256 at most; possible on 7060X6-64PE-B, SN5640",
        ),
        (
            "cumulus",
            {"radix": 513, "cages": 65, "device": "SN5600"},
            "switch.device: 513 ports of 400G need 8 per cage; SN5600 has 64 cages with 1, 2, 4 ports, "
            "256 at most",
        ),
        (
            "sonic",
            {"radix": 8, "asic": "none"},
            "switch.asic: none is not known; known are tomahawk5, tomahawk6, spectrum4, spectrum5",
        ),
        (
            "sonic",
            {"radix": 8, "device": "SN5610"},
            "switch.hwsku: no known SKU of SN5610 has 1 ports of 400G per cage (known: none); "
            "give its table as switch.port_config",
        ),
        (
            "sonic",
            {"radix": 256, "device": "SN5600"},
            "switch.hwsku: no known SKU of SN5600 has 4 ports of 400G per cage "
            "(known: Mellanox-SN5600-O128, Mellanox-SN5600-V256); give its table as switch.port_config",
        ),
        (
            "sonic",
            {"radix": 256, "device": "7060X6-64PE"},
            "switch.hwsku: no known SKU of 7060X6-64PE has 4 ports of 400G per cage "
            "(known: Arista-7060X6-64PE-O128S2); give its table as switch.port_config",
        ),
        (
            "sonic",
            {"radix": 256, "hwsku": "Mellanox-SN5600-V256"},
            "switch.hwsku: Mellanox-SN5600-V256 has 0 ports of 400G, a switch of this fabric needs 4",
        ),
    ],
)
def test_what_a_switch_cannot_do_is_refused_with_what_others_can(platform, switch, message):
    with pytest.raises(Error) as refused:
        hardware(fabric_of(switch), platform)
    assert str(refused.value) == message


@pytest.mark.parametrize(("hosts", "fits"), [(64, True), (65, False)])
def test_only_the_ports_in_use_must_fit_into_the_device(hosts, fits):
    fabric = fabric_of({"radix": 66, "cages": 66, "device": "SN5640"}, hosts=hosts, tiers=1)
    if fits:
        assert hardware(fabric, "cumulus").device.name == "SN5640"
    else:
        with pytest.raises(Error, match=r"66 ports of 400G need 1 per cage; SN5640 has 64 .* 512 at most$"):
            hardware(fabric, "cumulus")


def test_every_port_of_a_device_may_be_in_use():
    fabric = fabric_of({"radix": 512, "device": "SN5640"}, hosts=512)
    assert hardware(fabric, "cumulus").device.name == "SN5640"


def test_uplinks_need_ports_too():
    racks = {"hosts": 6, "hosts_per_t0": 3, "tiers": 2, "parallel_links": 1}
    fabric = fabric_of({"radix": 8, "hwsku": "Mellanox-SN5600-V256"}, **racks)
    with pytest.raises(Error, match="has 0 ports of 400G, a switch of this fabric needs 6"):
        hardware(fabric, "sonic")


# --- port tables --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SKUS)
def test_a_port_table_has_every_lane_once_and_equal_ports(name):
    sku = known().hwsku(name)
    rows, width = sku_rows(sku), 8 // sku.ports
    lanes = [row.lanes.split(",") for row in rows]
    assert {len(each) for each in lanes} == {width}
    every = sorted(int(lane) for each in lanes for lane in each)
    assert every == list(range(every[0], every[0] + 512))
    assert [row.name for row in rows] == [f"Ethernet{n * width}" for n in range(len(rows))]
    assert [row.index for row in rows] == [str(n // sku.ports + 1) for n in range(len(rows))]
    assert {(row.speed, row.fec) for row in rows} == {(str(sku.speed // 10**6), "rs")}
    assert len({row.alias for row in rows}) == len(rows) == 64 * sku.ports


def test_the_only_port_of_a_cage_has_no_letter():
    sku = HwSku(
        name="X", device="SN5600", ports=1, speed="800G", lanes="sn5000-64", alias="etp{cage}{letter}"
    )
    first, second, *_ = sku_rows(sku)
    assert (first.alias, first.lanes, second.alias) == ("etp1", "0,1,2,3,4,5,6,7", "etp2")


def test_a_given_table_is_beside_its_specification(tmp_path):
    switch = {"radix": 8, "port_config": "tables/ports"}
    assert str(port_config_path(fabric_of(switch).spec)) == "tables/ports"
    assert port_config_path(fabric_of({"radix": 8}).spec) is None
    file = tmp_path / "fabric.yaml"
    text = "hosts: 4\nnic: {rate: 800G}\nplanes: 2\ntiers: 1\nswitch: {radix: 8"
    file.write_text(text + ", port_config: tables/ports}\n")
    assert port_config_path(Fabric.load(file).spec) == tmp_path / "tables" / "ports"
    file.write_text(text + "}\n")
    assert port_config_path(Fabric.load(file).spec) is None


ROWS = [("Ethernet0", "0,1", "one", "1", "200000", "rs"), ("Ethernet2", "2,3", "two", "7", "200000", "rs")]


@pytest.mark.parametrize(
    "text",
    [
        "# name lanes alias index speed\nEthernet0 0,1 one 1 200000\nEthernet2 2,3 two 7 200000\n",
        # As some of sonic-buildimage write the header, and in another order.
        "#lanes name alias index speed\n0,1 Ethernet0 one 1 200000\n2,3 Ethernet2 two 7 200000\n",
        "#speed fec index name alias lanes\n200000 rs 1 Ethernet0 one 0,1\n200000 rs 7 Ethernet2 two 2,3\n",
        "# name of ports\n\nEthernet0 0,1 one 1 200000\n  \n# lanes\nEthernet2 2,3 two 7 200000 rs\n",
        "Ethernet0 0,1 one 1 200000\nEthernet2 2,3 two 7 200000 rs",
        "# name lanes speed alias index fec\nEthernet0 0,1 200000 one 1\nEthernet2 2,3 200000 two 7 rs\n",
    ],
)
def test_a_table_is_read_by_its_header_or_in_the_usual_order(text, tmp_path):
    rows = read_port_config(table_of(tmp_path, text))
    assert [(r.name, r.lanes, r.alias, r.index, r.speed, r.fec) for r in rows] == ROWS


def test_a_port_without_label_and_number_has_its_name_and_its_place(tmp_path):
    text = "# name lanes speed\nEthernet0 0 100000\nEthernet4 4 100000\n"
    rows = read_port_config(table_of(tmp_path, text))
    assert [(r.alias, r.index, r.fec) for r in rows] == [("Ethernet0", "0", "rs"), ("Ethernet4", "1", "rs")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Ethernet0 0,x one 1 200000", "1: lanes and a speed in Mb/s expected: Ethernet0 0,x one 1 200000"),
        ("Ethernet0 0,1 one 1", "1: lanes and a speed in Mb/s expected: Ethernet0 0,1 one 1"),
        ("\nEthernet0 0,0 one 1 200000", "2: lane 0 is already used in line 2"),
        ("Ethernet0 0 one 1 1\nEthernet1 1,0 two 1 1", "2: lane 0 is already used in line 1"),
        ("Ethernet0 0 one 1 1\nEthernet0 1 two 1 1", "2: name Ethernet0 is already used in line 1"),
        ("Ethernet0 0 one 1 1\nEthernet1 1 one 2 1", "2: alias one is already used in line 1"),
        ("# name lanes speed\nEthernet0 0 1 2", "2: 4 columns, the header has 3"),
        (
            "# name lanes speed\n\n",
            " no ports; a port_config.ini has lines such as `Ethernet0 0,1 etp1a 1 200000`",
        ),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(text, message, tmp_path):
    path = table_of(tmp_path, text)
    with pytest.raises(Error) as refused:
        read_port_config(path)
    assert str(refused.value) == f"{path}:{message}"


TABLE = "".join(f"Ethernet{n} {n} port{n} 1 400000\n" for n in range(6)) + "Ethernet6 6,7 last 1 800000\n"


def with_table(tmp_path, **switch):
    table_of(tmp_path, TABLE)
    fields = "".join(f", {name}: {value}" for name, value in switch.items())
    path = tmp_path / "fabric.yaml"
    path.write_text(
        "hosts: 6\nnic: {rate: 800G}\nplanes: 2\ntiers: 1\n"
        f"switch: {{radix: 8, cages: 1, port_config: ports{fields}}}\n"
    )
    return path


def test_a_given_table_says_what_eight_ports_of_a_cage_are(tmp_path):
    found = hardware(Fabric.load(with_table(tmp_path)), "sonic")
    assert [row.name for row in found.rows] == [f"Ethernet{n}" for n in range(6)]
    assert (found.device, found.asic, found.hwsku) == (None, None, None)


@pytest.mark.parametrize(
    ("switch", "name"), [({}, "port_config: ports"), ({"hwsku": "Mine"}, "port_config: Mine")]
)
def test_a_given_table_with_too_few_ports_of_the_rate_is_refused(switch, name, tmp_path):
    with pytest.raises(Error) as refused:
        hardware(Fabric.load(with_table(tmp_path, **switch), hosts=7), "sonic")
    assert str(refused.value) == f"switch.{name} has 6 ports of 400G, a switch of this fabric needs 7"


@pytest.mark.parametrize(
    ("switch", "queue"),
    [
        ({"asic": "tomahawk5"}, 9),
        ({"asic": "tomahawk5", "hwsku": "Mine-C448O16"}, 4),
        ({"asic": "tomahawk5", "hwsku": "Mine-C512"}, 4),
        ({"asic": "tomahawk5", "hwsku": "Mine-O128"}, 9),
        ({"asic": "tomahawk6", "hwsku": "Mine-C512"}, 7),
        ({"asic": "spectrum4", "hwsku": "Mine-C512"}, None),
    ],
)
def test_a_sku_may_have_another_queue_for_trimmed_packets_than_its_chip(switch, queue, tmp_path):
    found = hardware(Fabric.load(with_table(tmp_path, **switch)), "sonic")
    assert (found.asic.name, found.asic.trim_queue) == (switch["asic"], queue)
    assert found.hwsku == switch.get("hwsku")


def test_a_sku_without_a_known_chip_has_none(tmp_path):
    assert hardware(Fabric.load(with_table(tmp_path, hwsku="Mine-C512")), "sonic").asic is None
