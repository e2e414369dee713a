"""What the map makes of paths that queue pairs have condemned, and of loops that cross the same links."""

import pytest

from openmrc.fabric import Fabric
from openmrc.localise import Kind, loops_of_host
from openmrc.operate.linkmap import Evidence, Map, Topology
from openmrc.operate.model import LoopSeen, Report
from tests.helpers.controllers import BOOT, seen
from tests.helpers.labs import RING, specification


@pytest.fixture(scope="module")
def fabric(tmp_path_factory):
    return Fabric.load(specification(tmp_path_factory.mktemp("fabric"), "mapped"))


def loops(fabric, host, silent=(), lost_of_1000=1000):
    """Loops of a host; those over silent links lose all their probes, or so many."""
    found = []
    for loop in loops_of_host(fabric, host):
        lost = lost_of_1000 if any(c.kind is Kind.LINK and c.name in silent for c in loop.components) else 0
        found.append(LoopSeen(plane=loop.plane, uplink=loop.uplink, sent=1000, lost=lost))
    return found


def verdicts(fabric, dead, silent=(), *, probed=True, lost_of_1000=1000):
    """What is named where these links kill paths in the eyes of queue pairs, and these lose probes."""
    links = Map(Topology(fabric))
    for src, dst in zip(RING, RING[1:] + RING[:1], strict=True):
        shown = loops(fabric, src, silent, lost_of_1000) if probed else []
        assert links.take(seen(fabric, src, dst, dead, loops=shown), 0.0, 0.0)
    for number in range(fabric.hosts):
        if probed and f"h{number}" not in RING:
            idle = Report(
                host=f"h{number}", boot=BOOT, sequence=1, loops=loops(fabric, number, silent, lost_of_1000)
            )
            assert links.take(idle, 0.0, 0.0)
    named, evidence = links.evaluate(links.collect(0.0, 5.0))
    accused = {link for link, each in evidence.items() if each not in (Evidence.GOOD, Evidence.UNKNOWN)}
    return [verdict.component for verdict in named if verdict.component], accused


def test_a_path_that_a_queue_pair_condemns_accuses_no_link_whose_loops_lose_nothing(fabric):
    link = fabric.paths("h0", "h4")[0].links[1]
    assert verdicts(fabric, [link]) == ([], set())


def test_a_path_accuses_no_cable_of_a_host_whose_loops_lose_nothing_either(fabric):
    cable = fabric.paths("h0", "h4")[0].links[0]
    assert verdicts(fabric, [cable]) == ([], set())
    assert (Kind.LINK, cable) in verdicts(fabric, [cable], [cable])[0]


def test_the_last_losses_of_a_link_that_was_repaired_do_not_name_it_with_a_path_that_is_still_dead(fabric):
    link = fabric.paths("h0", "h4")[0].links[1]
    assert verdicts(fabric, [link], [link], lost_of_1000=1) == ([], set())
    assert verdicts(fabric, [link], [link], lost_of_1000=10) == ([(Kind.LINK, link)], {link})


def test_what_loops_lose_on_a_broken_link_is_no_evidence_against_the_cable_before_it(fabric):
    cable, link = fabric.paths("h0", "h4")[0].links[:2]
    assert verdicts(fabric, [cable, link], [link]) == ([(Kind.LINK, link)], {link})


def test_what_kills_paths_and_loops_is_named_and_so_is_what_kills_paths_where_nothing_is_probed(fabric):
    link = fabric.paths("h0", "h4")[0].links[1]
    for found in (verdicts(fabric, [link], [link]), verdicts(fabric, [link], probed=False)):
        assert (found[0], found[1]) == ([(Kind.LINK, link)], {link})
