"""The MRC half: the ring of writes through the schedule, and what the hosts' events say about it."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from openmrc.lab import Lab
from openmrc.lab.demo.director import Say, direct
from openmrc.lab.demo.ring import Ring
from openmrc.lab.demo.scene import RING, Fault, broken_links, neighbours, pairs, paths_over
from openmrc.lab.demo.trace import Broken, Event, Half
from openmrc.lab.locate import locate
from openmrc.lab.tap import Tap
from openmrc.verbs import EvState

_Key = tuple[str, str, int]
"""Source, destination, entropy value: a path."""

_AGAIN = 2
"""Times that a lossy path is given up before it is suspected."""

WARM_UP = 1.0
"""Seconds before the schedule begins."""


def run(
    lab: Lab,
    faults: Sequence[Fault],
    rate_bps: float,
    say: Say,
    tick: Callable[[Half], None],
    *,
    srv6: bool = False,
) -> Half:
    """Runs it; with ``srv6``, NICs build their frames themselves.

    Raises:
        Error: if a queue pair broke.
    """
    ring = Ring(lab, rate_bps, srv6=srv6)
    watcher = _Watcher(lab, ring)
    try:
        ring.start()
        time.sleep(WARM_UP)
        direct(lab, faults, watcher, say, lambda: tick(ring.half))
        return ring.stop()
    finally:
        watcher.close()
        ring.close()


class _Watcher:
    """Watches dead paths and collects events."""

    def __init__(self, lab: Lab, ring: Ring) -> None:
        self._lab = lab
        self._ring = ring
        self.half = ring.half
        self._taps: list[Tap] = []
        self._ways = {(way.src, way.qp.qp_num): way for way in ring.ways}
        self._every = {
            (path.src, path.dst, path.ev): path
            for src, dst in pairs(RING)
            for path in lab.fabric.paths(src, dst)
        }
        self._bad: set[_Key] = set()

    def check(self) -> None:
        self._ring.check()

    def before(self, fault: Fault) -> None:
        self._take_events()
        if fault.dead:
            self._taps = taps(self._lab, RING, broken_links(self._lab.layout, fault))

    def after(self, broken: Broken) -> None:
        bad = set(self._bad)
        broken.events = [event for event in self._take_events() if event[0] >= broken.began_ns]
        if broken.fault.dead:
            self._read_taps(broken)
        if broken.fault.kind == "port":
            host, _, port = broken.fault.what.partition(":p")
            rows = self._ring.contexts[host].path_stats()
            last = max(row["last_tx_ns"] for row in rows if row["port"] == int(port))
            broken.own_port_last_ns = max(last, broken.began_ns)
        else:
            self._name(broken, bad)

    def settle(self) -> None:
        self._take_events()

    def close(self) -> None:
        for tap in self._taps:
            tap.close()
        self._taps = []

    def _read_taps(self, broken: Broken) -> None:
        seen = [each for tap in self._taps for each in tap.seen() if each.time_ns >= broken.began_ns]
        self.close()
        broken.dead_data_ns = sorted(each.time_ns for each in seen if each.is_data)
        broken.dead_feedback_ns = sorted(each.time_ns for each in seen if each.is_feedback)

    def _take_events(self) -> list[Event]:
        found = []
        for host, context in self._ring.contexts.items():
            while (event := context.ev_events.poll()) is not None:
                way = self._ways.get((host, event.qp_num))
                if way is None:
                    continue
                path = self._ring.path(way.src, way.dst, event.port, event.ev)
                given_up = event.state is EvState.ASSUMED_BAD
                found.append((event.time_ns, way.src, way.dst, path.ev, given_up))
        found.sort()
        for _, *key, given_up in found:
            _note(self._bad, key, given_up)
        return found

    def _name(self, broken: Broken, bad: set[_Key]) -> None:
        """Asks what the events have in common, after each of them, as a controller would."""
        truth = broken_links(self._lab.layout, broken.fault)
        lossy = broken.fault.kind == "loss"
        times: Counter[_Key] = Counter()
        for when, src, dst, ev, given_up in broken.events:
            key = (src, dst, ev)
            times[key] += given_up
            # A path that loses little comes back between its losses, so it is not above suspicion for that;
            # but one that was given up only once may have had bad luck.
            if not lossy:
                _note(bad, key, given_up)
            elif times[key] >= _AGAIN:
                bad.add(key)
            named = self._located(bad)
            if not (named and truth.issuperset(named)):
                broken.named_ns = None
            elif broken.named_ns is None:
                broken.named_ns = when
        broken.named = self._located(bad)
        broken.right = bool(broken.named) and truth.issuperset(broken.named)
        tellers = {src for src, dst, ev in bad if truth.intersection(self._every[src, dst, ev].links)}
        broken.named_by = [host for host in RING if host in tellers]

    def _located(self, bad: set[_Key]) -> list[str]:
        return locate(
            [self._every[key] for key in bad], [path for key, path in self._every.items() if key not in bad]
        )


def _note(bad: set[_Key], key: Iterable[Any], given_up: bool) -> None:
    (bad.add if given_up else bad.discard)(tuple(key))


def taps(lab: Lab, hosts: Sequence[str], links: set[str]) -> list[Tap]:
    """One for each port of a ring's host from which dead paths begin, unless it is the port that fails."""
    made = []
    for host in hosts:
        for plane in range(lab.fabric.planes):
            paths = [
                path
                for peer in neighbours(host, hosts)
                for path in paths_over(lab.layout, host, peer, links)
                if path.plane == plane and path.links[0] not in links
            ]
            if paths:
                made.append(Tap(lab.layout, lab.name, paths))
    return made
