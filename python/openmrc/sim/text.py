"""Figures of a run as text, for tables on a terminal and in reports."""

import re

from openmrc.sim.results import Results, Summary

_HOST_LINKS = re.compile(r"p\d+/t0-\d+(:down\d+)?|h\d+(:p\d+)?")
"""Names of T0 switches, and of links between hosts and T0 switches."""


def micros(value: float | None) -> str:
    """A time in a unit that keeps it short."""
    if value is None:
        return "-"
    if value >= 1e6:
        return f"{value / 1e6:,.3f} s"
    return f"{value / 1e3:,.3f} ms" if value >= 1e4 else f"{value:,.2f} us"


def percentile(value: float | None) -> str:
    """A percentile of completion times; ``None`` if it falls on a message that was not delivered."""
    return "not delivered" if value is None else micros(value)


def rate_unit(most: float) -> tuple[float, str]:
    """The unit of rates up to ``most`` bit/s, and the factor from bit/s to it."""
    return (1e-12, "Tb/s") if most >= 1e13 else (1e-9, "Gb/s")


def gbps(value: float | None) -> str:
    """A rate in Gb/s, from 10 Tb/s on in Tb/s, as in pictures; small ones in Mb/s."""
    if value is None:
        return "-"
    factor, unit = (1e-6, "Mb/s") if 0 < value < 1e9 else rate_unit(value)
    return f"{value * factor:,.1f} {unit}"


def count(number: int, what: str) -> str:
    """A number of things: 1 tier, 2 tiers."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def headline(results: Results) -> list[tuple[str, str]]:
    """The most important figures, with their names."""
    summary, totals = results.summary(), results.totals
    rows = [
        ("messages delivered", f"{summary.delivered:,} of {summary.messages:,}"),
        ("completion time, median", percentile(summary.median_us)),
        ("99th percentile", percentile(summary.p99_us)),
        ("last", micros(summary.last_us)),
        ("base RTT", micros(results.base_rtt_ps * 1e-6)),
        ("goodput, all hosts", gbps(summary.goodput_bps)),
        ("goodput, per host", gbps(_per_host(results, summary))),
    ]
    if summary.fairness is not None:
        rows.append(("fairness of the senders (Jain)", f"{summary.fairness:.3f}"))
    if summary.goodput_bps is None and totals["end_ps"]:
        sent = totals["data_bytes"] * 8 / (totals["end_ps"] * 1e-12) / results.scenario.topology.hosts
        rows.append(("payload sent so far, per host", gbps(sent)))
    took = [step.took_us for step in results.steps if step.took_us is not None]
    if took:
        rows.append(
            (
                "step time, least / mean / most",
                f"{micros(min(took))} / {micros(sum(took) / len(took))} / {micros(max(took))}",
            )
        )
    for each in results.collectives:
        # Patterns beside each other are told apart by their place in the traffic.
        name = (
            f"{each.operation}, traffic.{each.pattern}"
            if len(results.scenario.traffic) > 1
            else each.operation
        )
        rows += [
            (f"{name}, time", micros(each.time_us)),
            (f"{name}, algbw / busbw", f"{gbps(each.algbw_bps)} / {gbps(each.busbw_bps)}"),
        ]
        if each.steps > 1:
            figures = (each.step_least_us, each.step_mean_us, each.step_most_us)
            rows.append((f"{name}, step, least / mean / most", " / ".join(map(micros, figures))))
    if results.scenario.engine == "flow":
        return [*rows, ("engine", "flow: no packets, no queues")]
    if results.skipped is not None:
        rows.append(("without packets", str(results.skipped)))
    full = totals["dropped_data"] + totals["dropped_control"] + totals["overflowed"]
    rows += [
        ("data packets", f"{totals['data_packets']:,}"),
        ("retransmitted", f"{totals['retransmits']:,}"),
        ("ECN-marked", f"{totals['marked']:,}"),
        ("trimmed, in the fabric / last hop", f"{totals['trimmed']:,} / {totals['trimmed_last_hop']:,}"),
        (
            "dropped, full / down / lossy",
            f"{full:,} / {totals['dropped_down']:,} / {totals['dropped_lossy']:,}",
        ),
        ("paths condemned", f"{totals['condemned']:,}"),
        ("queue pairs failed", f"{totals['fatal']:,}"),
        *_life(results),
    ]
    return rows


def _life(results: Results) -> list[tuple[str, str]]:
    """What connections did beside sending messages, where the transport asks for it."""
    transport, life = results.scenario.transport, results.life
    if transport.kind != "mrc" or not life:
        return []
    rows = []
    if transport.prove_mtu:
        rows.append(("path MTU, proofs / refused", f"{life['mtu_proofs']:,} / {life['mtu_refused']:,}"))
    if transport.linger:
        rows.append(
            (
                "lingering, queue pairs / most at a host / packets",
                f"{life['lingered']:,} / {life['lingering_most']:,} / {life['lingering_packets']:,}",
            )
        )
    if transport.receives is not None:
        waits = life["receive_waits"]
        mean = life["receive_waited_ps"] * 1e-6 / waits if waits else None
        rows.append(("waits for a receive, mean", f"{waits:,}, {micros(mean)}"))
    return rows


def _per_host(results: Results, summary: Summary) -> float | None:
    return None if summary.goodput_bps is None else summary.goodput_bps / results.scenario.topology.hosts


def notes(results: Results) -> list[str]:
    """Lines that say what a reader of :func:`summary` would wonder about."""
    return [*_down_at_hosts(results), *_without_effect(results)]


def _down_at_hosts(results: Results) -> list[str]:
    """Why no path was condemned although links were down: they were all links of hosts."""
    down = [target for fault in results.scenario.faults if fault.kind == "down" for target in fault.targets]
    if not down or results.totals["condemned"] or not all(map(_HOST_LINKS.fullmatch, down)):
        return []
    why = "the host sees it go down and sends on the others"
    return [f"note: no path is condemned for a host's own port: {why}"]


def _without_effect(results: Results) -> list[str]:
    """A line for each fault and pattern that would have begun after the run's end."""
    end = results.totals["end_ps"] * 1e-6
    scenario = results.scenario
    if results.interrupted:
        return []
    starts = [(f"traffic.{i}: {p.kind}", p.start_us) for i, p in enumerate(scenario.traffic)]
    starts += [(f"faults.{i}: {f.kind}", f.at_us) for i, f in enumerate(scenario.faults)]
    return [
        f"note: {what} at {micros(at)} is after the run's end at {micros(end)}"
        for what, at in starts
        if at > 0 and at >= end
    ]
