"""Figures of a run by name, for claims about published results."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from openmrc.fabric import sizing
from openmrc.sim.frames import rate
from openmrc.sim.results import DROPS, IMPAIRED, NEVER, REPAIRED, LogEvent, Results

_INTERVALS = 10
"""Intervals of a run of which the worst is taken."""

_MINUTE_US = 60e6


def measures(results: Results) -> dict[str, float]:
    """Every figure that these results allow.

    Always: ``goodput_gbps``, and ``goodput_per_host_gbps`` of hosts that send; ``last_us``,
    ``median_us``, ``line_gbps`` (rate of a host's ports together), ``failed``, ``lost_per_host`` (packets
    dropped), ``pauses`` (of PFC), ``lost_per_connection`` (data packets that queue pairs missed). Where the
    scenario says how many hosts a T0 has: ``lost_per_crossing``, the same over the connections between
    different T0s. Of an all-reduce ``bus_gbps``, as nccl-tests counts it, 0 if it did not finish. Of training
    ``step_us``, the mean of the steps, and ``last_step_us``, 0 if the last has no end. Of pattern K
    ``goodputK_gbps``, ``evenK`` (first to last completion) and ``slowestK_gbps``, the rate of its slowest
    message.

    With a time series: ``first_minute_lost_per_crossing``, of the first minute only;
    ``late_losses_per_host_s``, packets that queue pairs missed after the first minute, per host and second;
    ``worstK_gbps``, the goodput of pattern K in the worst tenth of its time; ``late_gbps``, the goodput in
    the last fifth of the run; the goodput ``before_gbps``, ``during_gbps`` and ``after_gbps`` the faults,
    and ``final_gbps`` after the last of them has begun;
    ``affected_share``, of the connections between different T0s, those that have condemned a path over what
    is impaired by name, and ``lost_per_affected``, the data packets that queue pairs missed for each of them;
    ``recover_us``, from the last repair until the goodput is 95 % of that before; ``bypass_us``, from the
    first fault until the last queue pair has condemned its paths over the links that are impaired by name.
    """
    summary, totals, scenario = results.summary(), results.totals, results.scenario
    topology = scenario.topology
    lost = sum(totals[name] for name in DROPS)
    missed = totals["losses_seen"] - totals["spurious"]
    figures: dict[str, float | None] = {
        "goodput_gbps": _giga(summary.goodput_bps),
        "goodput_per_host_gbps": _giga(_per_sender(results, summary.goodput_bps)),
        "median_us": summary.median_us,
        "last_us": summary.last_us,
        "line_gbps": topology.planes * topology.port_rate / 1e9,
        "failed": totals["fatal"],
        "lost_per_host": lost / topology.hosts,
        "pauses": float(totals["pauses"]),
        "lost_per_connection": missed / len(_connected(results)),
    }
    crossing = _crossing(results)
    if crossing:
        figures["lost_per_crossing"] = missed / crossing
    took = [step.took_us for step in results.steps if step.took_us is not None]
    if took:
        figures["step_us"] = sum(took) / len(took)
        figures["last_step_us"] = results.steps[-1].took_us or 0.0
    for each in results.collectives:
        if "all-reduce" in each.operation:
            # An all-reduce that has not finished has no bandwidth.
            figures["bus_gbps"] = (each.busbw_bps or 0.0) / 1e9
    for number in range(len(scenario.traffic)):
        own = results.summary(number)
        figures[f"goodput{number}_gbps"] = _giga(own.goodput_bps)
        if own.first_us is not None and own.last_us:
            figures[f"even{number}"] = own.first_us / own.last_us
        figures[f"slowest{number}_gbps"] = _slowest(results, number)
    if results.series is not None:
        figures.update(_over_time(results))
    return {name: value for name, value in figures.items() if value is not None}


def _crossing(results: Results) -> int:
    """Connections between hosts under different T0s; 0 if the scenario leaves their size open."""
    below = results.scenario.topology.hosts_per_t0
    if below is None:
        return 0
    return sum(src // below != dst // below for src, dst in _connected(results))


def _connected(results: Results) -> set[tuple[int, int]]:
    """The ends of all connections, each pair once."""
    return set(zip(results.columns["src"], results.columns["dst"], strict=True))


def _per_sender(results: Results, goodput_bps: float | None) -> float | None:
    return None if goodput_bps is None else goodput_bps / len(set(results.columns["src"]))


def _slowest(results: Results, pattern: int) -> float:
    """The rate of a pattern's slowest message, Gb/s; 0 if one was not delivered."""
    columns = results.columns
    rates = [
        0.0 if delivered == NEVER else size * 8e3 / max(1, delivered - posted)
        for of, size, posted, delivered in zip(
            columns["pattern"], columns["bytes"], columns["posted_ps"], columns["delivered_ps"], strict=True
        )
        if of == pattern
    ]
    return min(rates, default=0.0)


def _giga(value: float | None) -> float | None:
    return None if value is None else value / 1e9


def _over_time(results: Results) -> dict[str, float]:
    import numpy as np

    series = results.series
    assert series is not None
    times = np.asarray(series.times_us)
    seconds = np.diff(times, prepend=0) * 1e-6
    placed = series.array("placed")
    figures: dict[str, float] = {}
    for pattern in range(series.patterns):
        rows = [row for row, of in enumerate(results.columns["pattern"]) if of == pattern]
        ends = [results.columns["delivered_ps"][row] for row in rows]
        begin = results.scenario.traffic[pattern].start_us
        end = max((at * 1e-6 for at in ends if at != NEVER), default=times[-1])
        if end <= begin:
            continue
        edges = np.linspace(begin, end, _INTERVALS + 1)
        reached = np.interp(edges, times, placed[:, pattern].astype(float), left=0.0)
        figures[f"worst{pattern}_gbps"] = float(np.min(np.diff(reached) * 8 / np.diff(edges)) / 1e3)
    by_then = np.interp(times[-1] * 0.8, times, placed.sum(axis=1).astype(float), left=0.0)
    figures["late_gbps"] = float((placed[-1].sum() - by_then) * 8 / (times[-1] * 0.2) / 1e3)
    missed = np.asarray(series.columns["losses_seen"]) - np.asarray(series.columns["spurious"])
    first_minute = float(np.interp(_MINUTE_US, times, missed, left=0.0))
    if crossing := _crossing(results):
        figures["first_minute_lost_per_crossing"] = first_minute / crossing
    if times[-1] > _MINUTE_US:
        late = float(missed[-1]) - first_minute
        hosts = results.scenario.topology.hosts
        figures["late_losses_per_host_s"] = late / hosts / ((times[-1] - _MINUTE_US) * 1e-6)
    broken = [event.time_us for event in results.log if event.kind in IMPAIRED]
    if broken and broken[0] > 0:
        total = rate(placed.sum(axis=1), seconds) / 1e9
        repaired = [event.time_us for event in results.log if event.kind == REPAIRED]
        first, last = broken[0], repaired[-1] if repaired else times[-1]
        # The slow start and the end, when not every host sends, are left out of the comparison.
        full = times < _tail(results, times)
        _mean(figures, "before_gbps", total, (times > first * 0.25) & (times <= first))
        _mean(figures, "during_gbps", total, (times > first) & (times <= last))
        _mean(figures, "final_gbps", total, (times > broken[-1]) & full)
        # The time right after the repair has a figure of its own, recover_us.
        _mean(figures, "after_gbps", total, (times > (last + _tail(results, times)) / 2) & full)
        if repaired and "before_gbps" in figures:
            smooth = np.convolve(total, np.ones(9) / 9, mode="same")
            back = np.flatnonzero((times > last) & (smooth >= 0.95 * figures["before_gbps"]))
            figures["recover_us"] = float(times[back[0]] - last) if len(back) else math.inf
        condemned = _condemned(results)
        figures["bypass_us"] = _bypass(condemned, broken[0])
        # A receiver looks for a way back too, and condemns paths of its own.
        affected = len({(event.host, event.peer) for event in condemned} & _connected(results))
        if crossing:
            figures["affected_share"] = affected / crossing
        if affected:
            figures["lost_per_affected"] = float(missed[-1]) / affected
    return figures


def _condemned(results: Results) -> list[LogEvent]:
    """When queue pairs condemned a path over what is impaired by name.

    Other paths may be condemned too, where links are congested that have to carry more after a failure.
    """
    impaired = {event.where for event in results.log if event.kind in IMPAIRED}
    places_of = _places_of_paths(results)
    return [
        event
        for event in results.log
        if event.kind == "ev-bad" and (places_of is None or not impaired.isdisjoint(places_of(event)))
    ]


def _bypass(condemned: Iterable[LogEvent], fault_us: float) -> float:
    """From a fault until the last queue pair has condemned such a path, first times only."""
    last, seen = fault_us, set()
    for event in condemned:
        path = (event.host, event.peer, event.ev)
        if event.time_us >= fault_us and path not in seen:
            seen.add(path)
            last = event.time_us
    return last - fault_us


def _places_of_paths(results: Results) -> Callable[[LogEvent], set[str]] | None:
    """The links and switches of the path of an event; ``None`` for a planned fabric: every path counts."""
    topology = results.scenario.topology
    if topology.fabric is not None:
        return None
    fabric = sizing.build(
        topology.hosts,
        topology.planes,
        topology.tiers,
        topology.radix,
        oversubscription=topology.oversubscription,
        hosts_per_t0=topology.hosts_per_t0,
        uplinks_per_t0=topology.uplinks_per_t0,
        t0s_per_pod=topology.t0s_per_pod,
        parallel=topology.parallel_links,
    )

    def places(event: LogEvent) -> set[str]:
        assert event.host is not None
        assert event.peer is not None
        assert event.ev is not None
        *_, first_link, hops = fabric.path_of_ev(event.host, event.peer, event.ev)
        return {first_link, *(hop[0] for hop in hops), *(hop[-1] for hop in hops)}

    return places


def _tail(results: Results, times: Any) -> float:
    """The arrival of the first of the last messages, one for each host: later not every host sends."""
    ends = sorted(at for at in results.columns["delivered_ps"] if at != NEVER)
    hosts = min(results.scenario.topology.hosts, len(ends))
    return ends[-hosts] * 1e-6 if hosts > 1 else float(times[-1])


def _mean(figures: dict[str, float], name: str, values: Any, where: Any) -> None:
    if where.any():
        figures[name] = float(values[where].mean())
