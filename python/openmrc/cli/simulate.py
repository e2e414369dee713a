"""``openmrc simulate``: a scenario in virtual time, with its summary."""

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmrc.cli import _common
from openmrc.cli._progress import progress

if TYPE_CHECKING:
    from rich.table import Table

    from openmrc.sim import Results

FileArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[SCENARIO.yaml]", help="The scenario; without it a permutation, as the options say."
    ),
]


def simulate(
    file: FileArgument = None,
    hosts: Annotated[int, typer.Option(min=2, help="Hosts, where no scenario is given.")] = 1024,
    planes: Annotated[int, typer.Option(min=1, max=16, help="Planes of 100 Gb/s each.")] = 8,
    radix: Annotated[int, typer.Option(min=2, help="Ports of a switch.")] = 512,
    size: Annotated[int, typer.Option(min=1, help="Bytes that each host sends.")] = 1 << 20,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed, instead of the scenario's.")] = None,
    json: _common.JsonOption = False,
) -> None:
    """Run a fabric in virtual time, packet by packet, with the transport that real endpoints run.

    Prints when messages were complete, the goodput, and what the network did on the way.
    """
    from openmrc import sim

    if file is not None:
        scenario = sim.load(file)
    else:
        scenario = sim.Scenario(
            topology=sim.Topology(hosts=hosts, planes=planes, radix=radix),
            traffic=[sim.Permutation(bytes=size)],
        )
    if seed is not None:
        scenario = scenario.model_copy(update={"seed": seed})
    began = perf_counter()
    with progress("messages") as advance:
        results = sim.run(scenario, lambda so_far: advance(so_far.finished, so_far.messages))
    seconds = perf_counter() - began
    if json:
        _common.print_json(_as_dict(results, seconds))
    else:
        _common.console().print(_table(results, seconds))


def _as_dict(results: "Results", seconds: float) -> dict[str, Any]:
    return {
        "summary": asdict(results.summary()),
        "totals": dict(results.totals),
        "base_rtt_us": results.base_rtt_ps * 1e-6,
        "wall_seconds": seconds,
    }


def _table(results: "Results", seconds: float) -> "Table":
    from rich.table import Table

    summary, totals = results.summary(), results.totals
    hosts = results.scenario.topology.hosts

    def micros(value: float | None) -> str:
        return "-" if value is None else f"{value:,.2f} us"

    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(justify="right")
    goodput = summary.goodput_bps
    rows = [
        ("messages delivered", f"{summary.delivered:,} of {summary.messages:,}"),
        ("completion time, median", micros(summary.median_us)),
        ("99th percentile", micros(summary.p99_us)),
        ("last", micros(summary.last_us)),
        ("base RTT", micros(results.base_rtt_ps * 1e-6)),
        ("goodput, all hosts", "-" if goodput is None else f"{goodput / 1e9:,.1f} Gb/s"),
        ("goodput, per host", "-" if goodput is None else f"{goodput / 1e9 / hosts:,.2f} Gb/s"),
        ("data packets", f"{totals['data_packets']:,}"),
        ("retransmitted", f"{totals['retransmits']:,}"),
        ("ECN-marked", f"{totals['marked']:,}"),
        ("trimmed, in the fabric / last hop", f"{totals['trimmed']:,} / {totals['trimmed_last_hop']:,}"),
        ("dropped, full / down / lossy", _drops(totals)),
        ("paths condemned", f"{totals['condemned']:,}"),
        ("queue pairs failed", f"{totals['fatal']:,}"),
        (
            "simulated",
            f"{totals['data_packets'] / max(seconds, 1e-9) / 1e6:.2f} M data packets/s, {seconds:.1f} s",
        ),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _drops(totals: Any) -> str:
    full = totals["dropped_data"] + totals["dropped_control"]
    return f"{full:,} / {totals['dropped_down']:,} / {totals['dropped_lossy']:,}"
