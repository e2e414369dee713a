"""What switches are told, as numbers: queues, rates and prefixes, for all platforms."""

import pytest

from openmrc import Error
from openmrc.fabric import Fabric, Specification
from openmrc.switchconf import FILES
from openmrc.switchconf.devices import known
from openmrc.switchconf.facts import TRIMMED, Facts, QosFacts, prefix_text

BASE = {"hosts": 16, "nic": {"rate": "400G"}, "planes": 2, "switch": {"radix": 8}, "tiers": 2}


def fabric_of(**changes):
    return Fabric(Specification.model_validate({**BASE, **changes}))


def facts_of(platform="linux", name="p0/t0-0", **changes):
    fabric = fabric_of(**changes)
    return Facts(fabric, platform).of(fabric.switch(name))


@pytest.mark.parametrize(
    ("rate", "rtt", "product"),
    [("400G", 12.0, 300_000), ("20M", 12.0, 15), ("400G", 0.4, 10_000), ("6.4T", 10_000.0, 4_000_000_000)],
)
def test_queues_are_shares_of_the_bandwidth_delay_product_to_the_byte(rate, rtt, product):
    shares = {"ecn_min": 0.2, "ecn_max": 0.6, "trim": 2.0, "trim_last_hop": 4.0}
    fabric = fabric_of(nic={"rate": rate}, qos={"base_rtt_us": rtt, **shares})
    qos = QosFacts.of(fabric.spec, fabric.port_rate)
    assert (qos.ecn_min, qos.ecn_max) == (product // 5, product * 3 // 5)
    assert (qos.limit, qos.limit_last_hop, qos.control_limit) == (product * 2, product * 4, product)


def test_every_code_point_is_data_or_control_or_another():
    qos = facts_of().qos
    assert sorted((*qos.data_codes, *qos.control_codes, *qos.other_codes)) == list(range(64))
    assert set(qos.plain_codes) <= set(qos.other_codes)
    # SONiC writes code points by class: no two of them share one, nor that of what the switch trims itself.
    assert len({*qos.classes.values(), TRIMMED}) == len(qos.classes) + 1 == 7
    assert qos.classes.keys() == {*qos.plain_codes, *qos.data_codes, *qos.control_codes}


@pytest.mark.parametrize(("rate", "mbit"), [("20M", 10), ("5G", 2_500), ("60G", 30_000), ("400G", 34_359)])
def test_red_is_told_the_rate_of_the_port_up_to_the_most_that_it_takes(rate, mbit):
    # 2**32 - 1 bytes per second are 34,359.7 Mbit/s.
    assert (2**32 - 1) * 8 // 10**6 == 34_359
    assert facts_of(nic={"rate": rate}).red_mbit == mbit


@pytest.mark.parametrize(
    ("part", "share"),
    [(1, 0), (2, 1), (128, 7), (512, 7), (1 / 2, -1), (1 / 16, -4), (1 / 256, -8), (1 / 4096, -8), (0, -8)],
)
def test_a_queue_takes_the_nearest_share_that_sonic_has_of_the_free_pool(part, share):
    facts = facts_of("sonic", switch={"radix": 8, "asic": "spectrum4"})
    pool = known().asic("spectrum4").shared_pool
    assert facts.threshold(round(pool * part)) == ("dynamic_th", share)


def test_a_queue_is_in_bytes_where_no_pool_is_known():
    for switch in ({"radix": 8}, {"radix": 8, "asic": "tomahawk5"}):
        assert facts_of("sonic", switch=switch).threshold(12_345) == ("static_th", 12_345)


@pytest.mark.parametrize(
    ("asic", "size", "queue"), [(None, 256, 6), ("tomahawk6", 392, 7), ("spectrum5", 256, 6)]
)
def test_a_chip_decides_size_and_queue_of_trimmed_packets_if_it_has_only_one(asic, size, queue):
    facts = facts_of("sonic", switch={"radix": 8, **({"asic": asic} if asic else {})})
    assert (facts.trim_size, facts.trim_queue) == (size, queue)


def test_several_usids_of_a_switch_need_a_newer_frr():
    assert [(len(f.own), f.frr) for f in (facts_of(parallel_links=n) for n in (1, 2))] == [
        (1, "10.3"),
        (2, "10.5"),
    ]


def test_ports_mark_ecn_except_towards_hosts():
    down, up = [f"down{n}" for n in range(4)], [f"up{n}" for n in range(4)]
    rack, top = facts_of(), facts_of(name="p0/t1-0")
    assert (rack.marking, rack.last_hop, rack.interfaces) == (up, down, down + up)
    assert (top.marking, top.last_hop) == (top.interfaces, [])
    assert [port.uplink for port in rack.ports] == [False] * 4 + [True] * 4


def test_prefixes_are_of_the_block():
    fabric = fabric_of(addressing={"block": "2001:db8::/32"}, parallel_links=1)
    assert prefix_text(fabric) == "2001:db8:"
    facts = Facts(fabric, "linux").of(fabric.switch("p0/t0-0"))
    table = fabric.table(fabric.switch("p0/t0-0"))
    assert facts.own == [f"2001:db8:{usid:x}::/48" for usid in table.own]
    assert [route.prefix for route in facts.routes] == [f"2001:db8:{usid:x}::/48" for usid, _ in table.routes]


@pytest.mark.parametrize("platform", FILES)
def test_a_fabric_of_one_switch_has_facts(platform):
    facts = facts_of(platform, hosts=5, tiers=1, planes=1)
    assert (facts.name, facts.hostname, len(facts.ports), len(facts.own)) == ("p0/t0-0", "p0-t0-0", 5, 1)


def test_cumulus_has_256_locators_and_the_others_have_more():
    def wide(parallel):
        switch = {"radix": 4 * parallel, "cages": 4 * parallel}
        return fabric_of(hosts=4, planes=1, hosts_per_t0=2, switch=switch, parallel_links=parallel)

    assert Facts(wide(256), "cumulus")
    with pytest.raises(Error, match="257 uSIDs of its own, but Cumulus Linux has 256 locators at most"):
        Facts(wide(257), "cumulus")
    assert Facts(wide(257), "frr")
