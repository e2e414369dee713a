"""The files for EOS and Cumulus Linux, held against public documentation: no such system is here."""

import re

import pytest

from openmrc import Error
from openmrc.fabric import Fabric, Specification
from openmrc.switchconf import render, render_switch
from openmrc.switchconf.facts import Facts

ALL_CODES = set(range(64))


def fabric_of(switch, **changes):
    base = {"hosts": 1024, "nic": {"rate": "800G"}, "planes": 8, "tiers": 2, "switch": switch}
    return Fabric(Specification.model_validate({**base, **changes}))


def text_of(fabric, platform, switch="p0/t0-0"):
    ((_, text),) = render_switch(Facts(fabric, platform).of(fabric.switch(switch)), platform)
    return text


SMALL = fabric_of({"radix": 8}, hosts=16, nic={"rate": "400G"}, planes=2)
BROKEN_OUT = fabric_of({"capacity": "51.2T", "device": "7060X6-64PE-B"})
CUMULUS = fabric_of({"capacity": "51.2T", "device": "SN5640"})


# --- EOS ----------------------------------------------------------------------------------------------------


def test_a_cage_that_is_not_broken_out_is_named_by_its_first_lane():
    text = text_of(SMALL, "eos")
    names = re.findall(r"^interface (Ethernet\S+)$", text, re.M)
    assert names == [f"Ethernet{n}/1" for n in range(1, 9)]
    assert "   speed " not in text


def test_a_broken_out_port_has_its_speed_and_one_lane():
    sections = text_of(BROKEN_OUT, "eos").split("\ninterface ")[1:]
    ports = [section for section in sections if section.startswith("Ethernet")]
    assert [port.partition("\n")[0] for port in ports[:9]] == [
        *(f"Ethernet1/{lane}" for lane in range(1, 9)),
        "Ethernet2/1",
    ]
    assert all("\n   speed 100g-1\n" in port for port in ports)


def test_eos_maps_every_code_point():
    lines = re.findall(r"^qos map dscp ([\d ]+) to traffic-class (\d)$", text_of(SMALL, "eos"), re.M)
    codes = {traffic_class: [int(code) for code in listed.split()] for listed, traffic_class in lines}
    assert sorted(code for listed in codes.values() for code in listed) == sorted(ALL_CODES)
    assert (codes["1"], codes["6"]) == ([4, 8], [12, 16, 46])


def test_data_queues_have_no_priority_on_any_port_and_mark_only_in_the_fabric():
    profiles = dict(re.findall(r"^qos profile (\S+)\n((?: .*\n)+)", text_of(SMALL, "eos"), re.M))
    assert profiles.keys() == {"marking", "last-hop"}
    for name, body in profiles.items():
        for queue in (0, 1):
            assert f"   uc-tx-queue {queue}\n      no priority\n" in body
        assert body.count("random-detect ecn") == (2 if name == "marking" else 0)


def test_the_usids_of_eos_are_in_its_global_block():
    fabric = fabric_of({"radix": 8}, hosts=32, nic={"rate": "400G"}, planes=2)
    usids = [
        int(usid, 16)
        for switch in fabric.switches()
        for usid in re.findall(r"end usid (0x[0-9a-f]{4})$", text_of(fabric, "eos", str(switch)), re.M)
    ]
    assert usids
    assert all(0x1 <= usid <= 0xDFFF for usid in usids)


def test_trimming_on_eos_is_a_marked_gap_and_nothing_invented():
    text = text_of(BROKEN_OUT, "eos")
    gap = [line for line in text.splitlines() if line.startswith("! GAP: ")]
    assert len(gap) == 1
    assert "packet trimming" in gap[0]
    assert "cut to 206 bytes" in text  # the only size of the chip of this switch
    assert not [line for line in text.splitlines() if "trim" in line and not line.startswith("!")]


# --- Cumulus Linux ------------------------------------------------------------------------------------------


def test_addresses_are_ipv6_addresses():
    lines = text_of(SMALL, "cumulus").splitlines()
    assert (
        len([line for line in lines if re.fullmatch(r"nv set interface swp\d ipv6 address \S+/127", line)])
        == 8
    )
    assert not [line for line in lines if " ip address " in line]


def test_cumulus_maps_every_code_point_and_none_to_the_priority_of_trimmed_packets():
    pattern = r"^nv set qos mapping default-global dscp (\S+) switch-priority (\d)$"
    lines = re.findall(pattern, text_of(SMALL, "cumulus"), re.M)
    codes = {priority: [int(code) for code in listed.split(",")] for listed, priority in lines}
    assert sorted(code for listed in codes.values() for code in listed) == sorted(ALL_CODES)
    assert codes.keys() == {"0", "1", "6"}


def test_cumulus_trims_data_on_all_ports_and_nothing_else():
    for switch in ("p0/t0-0", "p1/t1-0"):
        text = text_of(SMALL, "cumulus", switch)
        eligible = re.findall(r"^nv set interface (\S+) packet-trim egress-eligibility (.*)$", text, re.M)
        # What carries data has priority 1, and that goes to traffic class 1.
        assert eligible == [("swp1,swp2,swp3,swp4,swp5,swp6,swp7,swp8", "traffic-class 1")]
        assert "nv set qos egress-queue-mapping default-global switch-priority 1 traffic-class 1\n" in text
        # Control, and what has been trimmed, is in another class.
        for priority in (5, 6):
            line = (
                f"nv set qos egress-queue-mapping default-global switch-priority {priority} traffic-class 6\n"
            )
            assert line in text


def test_data_classes_share_the_bandwidth():
    text = text_of(SMALL, "cumulus")
    assert "nv set qos egress-scheduler default-global traffic-class 0,1 mode dwrr\n" in text
    assert "nv set qos egress-scheduler default-global traffic-class 0,1 bw-percent 50\n" in text


def test_last_hops_do_not_have_the_default_profile_which_marks():
    text = text_of(SMALL, "cumulus")
    assert "nv set qos congestion-control last-hop traffic-class 0 ecn disabled\n" in text
    assert "nv set interface swp1,swp2,swp3,swp4 qos congestion-control profile last-hop\n" in text
    assert "nv set qos congestion-control marking traffic-class 0,1 ecn enabled\n" in text


def test_512_ports_of_100g_are_eight_per_cage():
    text = text_of(CUMULUS, "cumulus")
    cages = ",".join(f"swp{cage}" for cage in range(1, 65))
    assert f"nv set interface {cages} link breakout 8x\n" in text


def test_more_locators_than_cumulus_has_are_refused(tmp_path):
    # 512 hosts in two T0s: all 256 uplinks of a T0 could go to one T1, or to two.
    fits = fabric_of({"capacity": "51.2T", "device": "SN5640"}, hosts=512, parallel_links=256)
    assert text_of(fits, "cumulus").count(" behavior uN\n") == 256
    wide = fabric_of(
        {"radix": 1024, "cages": 128}, hosts=1024, planes=8, parallel_links=512, nic={"rate": "800G"}
    )
    with pytest.raises(Error, match="name yours"):
        render(wide, "cumulus", tmp_path / "out")
    wide = fabric_of({"radix": 1024}, hosts=1024, planes=8, parallel_links=512)
    with pytest.raises(Error, match="512 uSIDs of its own, but Cumulus Linux has 256 locators at most"):
        render(wide, "cumulus", tmp_path / "out")
    assert not (tmp_path / "out").exists()
