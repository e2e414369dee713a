"""Paths, addresses and EV profiles, both ways."""

from collections import Counter
from ipaddress import IPv6Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmrc import Error
from openmrc.fabric import Fabric, Specification
from tests.helpers.repository import ROOT

EXAMPLES = ROOT / "examples" / "fabrics"


def fabric_of(**changes):
    base = {"hosts": 16, "nic": {"rate": "400G"}, "planes": 4, "switch": {"radix": 8}, "tiers": 2}
    return Fabric(Specification.model_validate({**base, **changes}))


@pytest.fixture(scope="module")
def reference():
    return Fabric.load(EXAMPLES / "reference.yaml")


FABRICS = [
    fabric_of(parallel_links=1),
    fabric_of(),  # two parallel links to each T1
    fabric_of(hosts=61, tiers=3, planes=2),
    fabric_of(hosts=20, hosts_per_t0=3, oversubscription=1.5),
    fabric_of(hosts=5, tiers=1),
]


@pytest.mark.parametrize("fabric", FABRICS, ids=repr)
def test_every_path_is_found_again_from_its_ev_and_from_its_address(fabric):
    for src in {0, fabric.hosts // 2}:
        for dst in range(fabric.hosts):
            if src == dst:
                continue
            paths = fabric.paths(src, dst)
            assert len({path.links for path in paths}) == len({path.ev for path in paths}) == len(paths)
            for path in paths:
                assert fabric.path_of(path.ev, src, dst) == path
                assert fabric.path_of(path.ev).plane == path.plane
                trace = fabric.path_of(path.address)
                assert trace.whole
                assert (trace.dst, trace.plane, trace.ev) == (f"h{dst}", path.plane, path.ev)
                assert trace.links == path.links[1:]
                assert [name for name, _ in trace.switches] == [hop.switch for hop in path.hops]


@pytest.mark.parametrize("fabric", FABRICS, ids=repr)
def test_every_host_is_found_by_each_of_its_addresses(fabric):
    found = {}
    for host in range(fabric.hosts):
        addresses = fabric.host_addresses(host)
        assert len(addresses) == fabric.planes
        found |= dict.fromkeys(addresses, f"h{host}")
    assert len(found) == fabric.hosts * fabric.planes
    assert all(fabric.host_of_address(address) == host for address, host in found.items())
    # The other ends of the same links belong to T0s.
    others = {port.address for switch in fabric.switches(0) for port in fabric.ports(switch)}
    assert {fabric.host_of_address(address) for address in others | {"::1", "fe80::1"}} == {None}
    with pytest.raises(Error, match=r"10\.0\.0\.1"):
        fabric.host_of_address("10.0.0.1")


@pytest.mark.parametrize("fabric", FABRICS, ids=repr)
def test_links_of_a_path_join_and_alternate(fabric):
    path = fabric.paths(0, fabric.hosts - 1)[-1]
    ends = [set(link.replace("--", " ").split()) for link in path.links]
    nodes = [{end.partition(":")[0] for end in pair} for pair in ends]
    assert "h0" in nodes[0]
    assert f"h{fabric.hosts - 1}" in nodes[-1]
    for a, b, hop in zip(nodes[:-1], nodes[1:], path.hops, strict=True):
        assert hop.switch in a & b


def test_each_switch_takes_its_usid_off_the_front(reference):
    path = reference.path("h0", "h131071", plane=3, uplinks=[200])
    assert path.address == IPv6Address("5f00:0:c01:ec9:e00:e0ff::")
    assert [str(a) for a in path.addresses] == [
        "5f00:0:c01:ec9:e00:e0ff::",
        "5f00:0:ec9:e00:e0ff::",
        "5f00:0:e00:e0ff::",
        "5f00:0:e0ff::",
    ]
    for address in path.addresses[1:-1]:
        trace = reference.path_of(address)
        assert (trace.dst, trace.plane) == ("h131071", 3)
    assert reference.path_of(path.addresses[-1]).dst is None


def test_the_reference_has_2048_paths_across_and_8_under_one_t0(reference):
    assert len(reference.paths("h0", "h131071")) == 2048
    assert len(reference.paths("h0", "h255")) == 8
    assert reference.paths(0, 1)[-1].plane == 7
    with pytest.raises(IndexError):
        reference.paths(0, 1)[8]


def test_three_tiers_fill_the_address_to_the_last_bit():
    path = FABRICS[2].paths(0, 60)[-1]
    assert len(path.usids) == 6
    assert all(path.usids)


@settings(max_examples=300)
@given(ev=st.integers(0, (1 << 32) - 1))
def test_an_ev_names_one_path_or_is_refused(ev):
    fabric = FABRICS[0]
    try:
        path = fabric.path("h0", "h15", ev=ev)
    except Error as error:
        assert f"{ev:#010x}" in str(error)  # noqa: PT017
    else:
        assert path.ev == ev


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("2001:db8:1:e000::", "not in the fabric's block 5f00::/32"),
        ("5f00:0:1:2:e000::", "no link joins p0/t0-0 and p0/t0-1"),
        ("5f00:0:1:5:4:e004::", "0xe004, which no switch or downlink of this fabric has"),
        ("5f00:0:1:0:4:e000::", "uSID 2 is 0, but another one follows it"),
        ("5f00:0:1:5:4::", "is not a downlink, but the list ends"),
        ("hello", '"hello" is not an IPv6 address'),
        (1, "EV 0x00000001: the low 28 bits are spare and must be zero"),
    ],
)
def test_what_is_no_path_is_refused_with_the_reason(what, message):
    with pytest.raises(Error, match=message):
        FABRICS[0].path_of(what)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        (("h0", "h16"), "h16"),
        (("h0", "h0"), "h0"),
        (("h0", "p0/t0-0"), "is a switch"),
        ((0, 99), "h99"),
        (("x", 0), "'?x"),
    ],
)
def test_what_is_no_pair_of_hosts_is_refused(ends, message):
    with pytest.raises(Error, match=message):
        FABRICS[0].paths(*ends)


def test_fabrics_that_cannot_be_addressed_say_so_with_the_numbers():
    four = fabric_of(hosts=200, tiers=4)
    with pytest.raises(Error, match="tiers: a path over 4 tiers needs 8 uSIDs, an address holds 6"):
        four.paths(0, 199)[0]
    large = Fabric(
        Specification.model_validate(
            {
                "hosts": 1_000_000,
                "nic": {"rate": "800G"},
                "planes": 8,
                "switch": {"capacity": "51.2T"},
                "tiers": 3,
            }
        )
    )
    with pytest.raises(Error, match="the limit is 0xdfff"):
        large.paths(0, 1)[0]


# --- EV profiles -------------------------------------------------------------------------------------------


def test_a_profile_has_128_active_and_128_backup_evs_equally_over_the_planes(reference):
    profile = reference.ev_set("h0", "h131071")
    assert (profile.active, profile.backup, profile.planes) == (128, 128, 8)
    assert set(Counter(profile.ports).values()) == {32}
    assert len(set(profile.evs)) == 256
    for entry in profile:
        path = reference.path_of(entry.ev, "h0", "h131071")
        assert (path.plane, path.address) == (entry.plane, entry.address)


def test_a_profile_takes_what_a_small_fabric_has():
    profile = FABRICS[0].ev_set(0, 15)
    assert (profile.active, profile.backup) == (16, 0)
    neighbours = FABRICS[0].ev_set(0, 1)
    assert (neighbours.active, neighbours.planes) == (4, 4)


def test_different_pairs_use_different_uplinks(reference):
    def uplinks(dst):
        return {reference.path_of(e.ev).uplinks for e in reference.ev_set(0, dst, backup=0) if e.plane == 0}

    assert len(uplinks(131_071)) == 16
    assert len(set.union(*(uplinks(131_071 - 256 * i) for i in range(64)))) > 200
    assert reference.ev_set(0, 300, seed=1).evs != reference.ev_set(0, 300, seed=2).evs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"active": 0}, "active: 0 is out of range: 1 to 256"),
        ({"active": 257}, "active: 257 is out of range"),
        ({"active": 7}, "active: 7 EVs are fewer than one for each of 8 planes"),
        ({"backup": -1}, "backup: -1 is out of range"),
    ],
)
def test_impossible_profiles_are_refused(reference, arguments, message):
    with pytest.raises(Error, match=message):
        reference.ev_set(0, 300, **arguments)
