"""Verdicts from paths that queue pairs believe dead or alive."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmrc.fabric import Fabric
from openmrc.fabric.spec import Specification
from openmrc.localise import Kind, components_of_path, localise_paths

FABRIC = Fabric(
    Specification.model_validate(
        {
            "name": "seen",
            "hosts": 16,
            "nic": {"rate": "400G"},
            "planes": 4,
            "switch": {"radix": 8},
            "tiers": 2,
            "parallel_links": 1,
        }
    )
)
UPLINKS = sorted(
    port.link
    for switch in FABRIC.switches()
    if switch.tier == 0
    for port in FABRIC.ports(switch)
    if not port.peer.startswith("h")
)


def paths_between(pairs):
    return [path for src, dst in pairs for path in FABRIC.paths(src, dst)]


def divided(paths, broken):
    dead = [path for path in paths if not broken.isdisjoint(path.links)]
    return dead, [path for path in paths if broken.isdisjoint(path.links)]


def link_of(component):
    assert component.kind in (Kind.LINK, Kind.UPWARD, Kind.DOWNWARD), component
    return component.name


@given(st.sets(st.sampled_from(UPLINKS), min_size=1, max_size=3))
def test_one_pair_suspects_what_is_on_one_dead_path_and_never_a_host(broken):
    dead, alive = divided(paths_between([("h0", "h7")]), broken)
    verdicts = localise_paths(dead, alive)
    for verdict in verdicts:
        suspects = {component for component, _ in verdict.suspects}
        assert all(component.kind != Kind.HOST for component in suspects), (broken, verdict)
        assert any(suspects <= components_of_path(path) for path in dead), (broken, verdict)
    # A T1 whose two cables are broken explains one path, as its cables do.
    assert len(verdicts) == len(dead)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_several_pairs_name_each_broken_cable(count):
    broken = set(UPLINKS[:: len(UPLINKS) // count][:count])
    hosts = ["h0", "h4", "h8", "h12"]  # one below each T0
    paths = paths_between((src, dst) for src in hosts for dst in hosts if src != dst)
    verdicts = localise_paths(*divided(paths, broken))
    assert {link_of(verdict.component) for verdict in verdicts} == broken
    assert len(verdicts) == count
