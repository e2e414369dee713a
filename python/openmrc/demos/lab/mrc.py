"""The MRC run: the ring of writes through the schedule, and what the hosts' EV events say about it."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from openmrc.demos.director import Fault
from openmrc.demos.lab.director import LabDirector, Log
from openmrc.demos.lab.recording import Dead, Event, FaultRecord, Recording, Verdict
from openmrc.demos.lab.ring import Ring
from openmrc.demos.lab.scene import RING, broken_links, dead, neighbours, pairs, paths_over
from openmrc.fabric import Path
from openmrc.lab import Lab
from openmrc.lab.tap import Tap
from openmrc.localise import smallest_cover
from openmrc.verbs import EvState

_Key = tuple[str, str, int]
"""Source, destination, entropy value: a path."""

_SUSPECTED_AFTER = 2
"""A lossy path is suspected once it has been condemned this often."""


def run(
    lab: Lab,
    faults: Sequence[Fault],
    rate_bps: float,
    log: Log,
    tick: Callable[[Recording], None],
    *,
    srv6: bool = False,
) -> Recording:
    """Runs it; with ``srv6``, the NICs build SRv6 frames themselves.

    Raises:
        Error: if a queue pair broke.
    """
    with Ring(lab, rate_bps, srv6=srv6) as ring:
        director = _Director(lab, ring, log, tick)
        try:
            return director.run(faults)
        finally:
            director.close()


class _Director(LabDirector):
    """Watches dead paths and collects EV events."""

    def __init__(self, lab: Lab, ring: Ring, log: Log, tick: Callable[[Recording], None]) -> None:
        super().__init__(lab, ring, log, tick)
        self._ring = ring
        self._taps: list[Tap] = []
        self._streams = {(stream.src, stream.qp.qp_num): stream for stream in ring.streams}
        self._paths = {
            (path.src, path.dst, path.ev): path
            for src, dst in pairs(RING)
            for path in lab.fabric.paths(src, dst)
        }
        self._bad: set[_Key] = set()

    def before(self, fault: Fault) -> None:
        self._take_events()
        if dead(fault):
            self._taps = taps(self.lab, RING, broken_links(self.lab.layout, fault))

    def after(self, record: FaultRecord) -> None:
        # Without the events of now, whose paths the fault may have condemned.
        bad = set(self._bad)
        record.events = events_since(record.began_ns, self._take_events(), bad)
        if dead(record.fault):
            record.dead = self._read_taps(record.began_ns)
        if record.fault.kind == "port":
            host, _, port = record.fault.what.partition(":p")
            rows = self._ring.contexts[host].path_stats()
            last = max(row["last_tx_ns"] for row in rows if row["port"] == int(port))
            record.own_port_last_ns = max(last, record.began_ns)
        else:
            truth = broken_links(self.lab.layout, record.fault)
            record.verdict = judge(self._paths, truth, record, bad)

    def settle(self) -> None:
        self._take_events()

    def close(self) -> None:
        for tap in self._taps:
            tap.close()
        self._taps = []

    def _read_taps(self, began_ns: int) -> Dead:
        seen = [each for tap in self._taps for each in tap.seen() if each.time_ns >= began_ns]
        self.close()
        return Dead(
            sorted(each.time_ns for each in seen if each.is_data),
            sorted(each.time_ns for each in seen if each.is_feedback),
        )

    def _take_events(self) -> list[Event]:
        found = []
        for host, context in self._ring.contexts.items():
            while (event := context.ev_events.poll()) is not None:
                stream = self._streams.get((host, event.qp_num))
                if stream is None:
                    continue
                path = self._ring.path(stream.src, stream.dst, event.port, event.ev)
                condemned = event.state is EvState.ASSUMED_BAD
                found.append((event.time_ns, stream.src, stream.dst, path.ev, condemned))
        found.sort()
        for _, *key, condemned in found:
            _note(self._bad, key, condemned)
        return found


def events_since(began_ns: int, events: Sequence[Event], bad: set[_Key]) -> list[Event]:
    """The events from a moment on, of some in order of time; earlier ones change the condemned paths."""
    for when, *key, condemned in events:
        if when < began_ns:
            _note(bad, key, condemned)
    return [event for event in events if event[0] >= began_ns]


def judge(paths: Mapping[_Key, Path], truth: set[str], record: FaultRecord, bad: set[_Key]) -> Verdict:
    """Locates a fault after each event, as a controller would, and compares with the links that are broken.

    Args:
        paths: Every path of the ring.
        truth: The broken links.
        record: The fault and the events after it.
        bad: Paths that were condemned before it; changed by the events.
    """
    lossy = record.fault.kind == "loss"
    times: Counter[_Key] = Counter()
    since = None
    for when, src, dst, ev, condemned in record.events:
        key = (src, dst, ev)
        times[key] += condemned
        # A path that loses few packets comes back between its losses, so coming back does not clear it.
        # One that was condemned only once may have had bad luck.
        if not lossy:
            _note(bad, key, condemned)
        elif times[key] >= _SUSPECTED_AFTER:
            bad.add(key)
        links = _located(paths, bad)
        if not (links and truth.issuperset(links)):
            since = None
        elif since is None:
            since = when
    links = _located(paths, bad)
    tellers = {src for src, dst, ev in bad if truth.intersection(paths[src, dst, ev].links)}
    hosts = [host for host in RING if host in tellers]
    return Verdict(links, hosts, since, right=bool(links) and truth.issuperset(links))


def _located(paths: Mapping[_Key, Path], bad: set[_Key]) -> list[str]:
    dead = [paths[key] for key in bad]
    return smallest_cover(dead, [path for key, path in paths.items() if key not in bad])


def _note(bad: set[_Key], key: Iterable[Any], condemned: bool) -> None:
    (bad.add if condemned else bad.discard)(tuple(key))


def taps(lab: Lab, hosts: Sequence[str], links: set[str]) -> list[Tap]:
    """A tap for each host port of a ring from which dead paths begin, except the port that fails."""
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
