"""The names that a platform has for the ports of a switch."""

import pytest

from openmrc.fabric import Fabric, Specification
from openmrc.switchconf.interfaces import Interfaces


def names_of(platform, **switch):
    """The names and the cages of the ports of a switch with eight hosts."""
    fabric = Fabric(
        Specification.model_validate(
            {"hosts": 8, "nic": {"rate": "800G"}, "planes": 2, "tiers": 1, "switch": {"radix": 8, **switch}}
        )
    )
    interfaces = Interfaces(fabric, platform)
    ports = fabric.ports(fabric.switch("p0/t0-0"))
    return [interfaces.name(port) for port in ports], [interfaces.cage(port) for port in ports]


@pytest.mark.parametrize(
    ("platform", "cages", "names"),
    [
        ("linux", 8, [f"down{n}" for n in range(8)]),
        ("frr", 2, [f"down{n}" for n in range(8)]),
        ("sonic", 8, [f"Ethernet{8 * n}" for n in range(8)]),
        ("sonic", 4, [f"Ethernet{4 * n}" for n in range(8)]),
        ("sonic", 2, [f"Ethernet{2 * n}" for n in range(8)]),
        ("eos", 8, [f"Ethernet{n}/1" for n in range(1, 9)]),
        ("eos", 4, [f"Ethernet{cage}/{lane}" for cage in (1, 2, 3, 4) for lane in (1, 5)]),
        ("eos", 2, [f"Ethernet{cage}/{lane}" for cage in (1, 2) for lane in (1, 3, 5, 7)]),
        ("cumulus", 8, [f"swp{n}" for n in range(1, 9)]),
        ("cumulus", 4, [f"swp{cage}s{place}" for cage in (1, 2, 3, 4) for place in (0, 1)]),
        ("cumulus", 2, [f"swp{cage}s{place}" for cage in (1, 2) for place in (0, 1, 2, 3)]),
    ],
)
def test_ports_are_named_by_cage_and_lane_as_their_system_does(platform, cages, names):
    per_cage = 8 // cages
    assert names_of(platform, cages=cages) == (names, [1 + n // per_cage for n in range(8)])


@pytest.mark.parametrize(("platform", "first"), [("eos", "Ethernet1/8"), ("cumulus", "swp1s7")])
def test_eight_ports_of_a_cage_have_a_lane_each(platform, first):
    device = {"eos": "7060X6-64PE-B", "cumulus": "SN5640"}[platform]
    names, cages = names_of(platform, cages=1, device=device)
    assert (names[-1], len(set(names)), cages) == (first, 8, [1] * 8)


def test_the_ports_of_a_known_table_have_its_names_and_labels():
    fabric = Fabric(
        Specification.model_validate(
            {
                "hosts": 4,
                "nic": {"rate": "800G"},
                "planes": 8,
                "tiers": 1,
                "switch": {"capacity": "51.2T", "device": "SN5640"},
            }
        )
    )
    known, unknown = Interfaces(fabric, "sonic"), Interfaces(fabric, "cumulus")
    ports = fabric.ports(fabric.switch("p0/t0-0"))
    assert [(known.name(port), known.row(port).alias) for port in ports] == [
        (f"Ethernet{n}", f"etp1{letter}") for n, letter in enumerate("abcd")
    ]
    assert [unknown.row(port) for port in ports] == [None] * 4
