"""``openmrc simulate``: a scenario in virtual time, with its summary."""

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmrc.cli import _common, _values
from openmrc.cli._simulation import EngineOption, check_outputs, contents_of, progress, with_record
from openmrc.errors import ArgumentError

if TYPE_CHECKING:
    from rich.table import Table

    from openmrc.sim import Progress, Results

HOSTS, PLANES, RADIX, SIZE = 1024, 8, 512, 1 << 20
"""The run without a scenario: part of the reference fabric (docs/spec/fabric.md), a mebibyte from every
host."""


def simulate(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="SCENARIO.yaml", help="The scenario. Default: a permutation on a small fabric."
        ),
    ] = None,
    hosts: Annotated[
        int | None, typer.Option(help=f"Without a scenario: number of hosts. Default {HOSTS}.")
    ] = None,
    planes: Annotated[
        int | None, typer.Option(help=f"Without a scenario: number of planes. Default {PLANES}.")
    ] = None,
    radix: Annotated[
        int | None, typer.Option(help=f"Without a scenario: ports per switch. Default {RADIX}.")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--size", "-s", help="Without a scenario: bytes each host sends. Default 1M.", **_values.size()
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed. Default: the scenario's.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads that simulate the network. Default: the scenario's, else 1.")
    ] = None,
    engine: EngineOption = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write one HTML file with pictures and figures.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write every frame as Parquet, and the summary.")
    ] = None,
    pictures: Annotated[Path | None, typer.Option(metavar="DIR", help="Write every picture as PNG.")] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            "-i",
            help="Virtual time between samples. Default: about 1,000 samples in all.",
            **_values.time(needs_unit=True),
        ),
    ] = None,
    capture: Annotated[
        Path | None,
        typer.Option(metavar="FILE.pcapng", help="Write the packets of the links named by --capture-link."),
    ] = None,
    capture_link: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LINK", help="Link to capture, such as h0:p0 or p0/t0-0:up1--p0/t1-1. May be repeated."
        ),
    ] = None,
    snaplen: Annotated[
        int | None,
        typer.Option(
            "--snaplen", help="Bytes kept of each packet captured. Default: all headers.", **_values.size()
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint", metavar="FILE", help="Write the state of the run, now and then and at its end."
        ),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            "--every", help="Time between two checkpoints. Default: 10 minutes.", **_values.time(0.0)
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="FILE", help="Go on from a checkpoint of the same scenario."),
    ] = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Show goodput and queues of every plane while it runs, on a terminal."),
    ] = False,
    schema: Annotated[bool, _common.schema_option("scenario")] = False,
    json: _common.JsonOption = False,
) -> None:
    """Run a fabric in virtual time: packet by packet with the transport that real endpoints run, or as flows.

    Prints completion times of messages, the goodput, and what the network did. Ctrl-C ends the run and prints
    what is known so far. A run with --checkpoint can go on from there with --resume, to the same end.
    """
    from openmrc import sim
    from openmrc.sim import results as results_module
    from openmrc.sim.text import notes

    check_outputs([report, capture, checkpoint], [parquet, pictures])
    if every is not None and checkpoint is None:
        raise ArgumentError("--every goes with --checkpoint FILE")
    state: dict[str, Any] = {"checkpoint": checkpoint, "resume": resume}
    if every is not None:
        state["every_s"] = every
    if file is not None:
        options = {"--hosts": hosts, "--planes": planes, "--radix": radix, "--size": size}
        for name, value in options.items():
            if value is not None:
                raise ArgumentError(f"{name}: only for a run without a scenario; {file} has its own")
        scenario = sim.load(file)
    else:
        scenario = sim.Scenario(
            topology=sim.Topology(
                hosts=HOSTS if hosts is None else hosts,
                planes=PLANES if planes is None else planes,
                radix=RADIX if radix is None else radix,
            ),
            traffic=[sim.Permutation(bytes=SIZE if size is None else size)],
        )
    if seed is not None:
        scenario = scenario.model_copy(update={"seed": seed})
    if threads is not None:
        scenario = scenario.model_copy(update={"threads": threads})
    if engine is not None:
        scenario = scenario.model_copy(update={"engine": engine})
    scenario = with_record(
        scenario,
        everything=bool(report or parquet or pictures),
        interval_us=None if interval is None else interval * 1e6,
        capture=capture,
        links=capture_link,
        snaplen=snaplen,
    )
    if report or pictures:
        from openmrc.sim import pictures as drawing

        drawing.require()
    if parquet:
        results_module.require_arrow()
    terminal = _common.console(stderr=True)
    if live and scenario.engine == "flow":
        raise ArgumentError("--live: the flow engine has no queues; see the progress without it")
    is_resumed = resume is not None
    resumed_at: list[sim.Progress] = []

    def remember(so_far: sim.Progress) -> None:
        if is_resumed and not resumed_at:
            resumed_at.append(so_far)

    began = perf_counter()
    if live and terminal.is_terminal:
        from openmrc.cli._live import Live

        with contents_of(file), Live(terminal) as watch:
            results = sim.run(scenario, remember, watch=watch, capture=capture, **state)
    else:
        with contents_of(file), progress(is_resumed=is_resumed) as advance:

            def each(so_far: sim.Progress) -> None:
                remember(so_far)
                advance(so_far)

            results = sim.run(scenario, each, capture=capture, **state)
    seconds = perf_counter() - began
    if json:
        _common.print_json({**results.to_dict(), "wall_seconds": seconds})
    else:
        _common.console().print(_table(results, seconds, resumed_at))
    written: list[Path] = []
    if parquet:
        written += results.to_parquet(parquet)
    if pictures:
        written += results.pictures(pictures)
    if report:
        results.report(report, file.stem if file else "openmrc simulate")
        written.append(report)
    if capture:
        written.append(capture)
    remarks = _common.console(stderr=True)
    for note in notes(results):
        remarks.print(note)
    for path in written:
        remarks.print(f"wrote {path}")
    if results.interrupted:
        raise typer.Exit(_common.EXIT_INTERRUPTED)


def _table(results: "Results", seconds: float, resumed_at: Sequence["Progress"]) -> "Table":
    """The figures of a run of so many seconds, which went on from that progress if there is one."""
    from rich.table import Table

    from openmrc.sim.text import headline

    table = Table(show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(justify="right")
    if results.interrupted:
        now = results.totals["end_ps"] * 1e-6
        table.add_row("interrupted", f"at {now:,.2f} us of virtual time")
    for row in headline(results):
        table.add_row(*row)
    counted, what = (
        ("events", "events") if results.scenario.engine == "flow" else ("data_packets", "data packets")
    )
    before = sum(getattr(progress, counted) for progress in resumed_at)
    speed = (results.totals[counted] - before) / max(seconds, 1e-9) / 1e6
    table.add_row("simulated", f"{speed:.2f} M {what}/s, {seconds:.1f} s")
    return table
