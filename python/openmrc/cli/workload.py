"""``openmrc workload``: what the ranks of a training job compute and send."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from openmrc.cli import _common, _complete
from openmrc.cli._simulation import EngineOption, check_outputs, contents_of, progress
from openmrc.units import parse_rate, size

if TYPE_CHECKING:
    from openmrc.sim import Results
    from openmrc.workload import Row, StepResults, Volume, Workload
    from openmrc.workload.layout import Schedule

_MODELS = "gpt3-175b|llama3-8b|llama3-70b|llama3-405b|mixtral-8x7b|mixtral-8x22b|deepseek-v3"
_GPUS = "a100|h100|b200|gb200"
_SCHEDULES = "1f1b|interleaved|zero-bubble"
_PLACEMENTS = "t0|rail|random"
_FORMATS = "openmrc|goal|chakra"

workload = typer.Typer(add_completion=False, no_args_is_help=True)

FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A workload: as generate writes it, GOAL, text of SimAI or AICB, the prefix of Chakra traces.",
    ),
]
GpusOption = Annotated[
    int | None,
    typer.Option("--gpus", metavar="N", help="Ranks, for files of AICB whose first line has no all_gpus."),
]
ScenarioOption = Annotated[
    Path | None,
    typer.Option(
        metavar="SCENARIO.yaml",
        help="Fabric, transport and faults; its traffic is replaced. Default: as many hosts as ranks on 8"
        " planes, MRC.",
    ),
]
RateOption = Annotated[
    str, typer.Option("--rate", metavar="RATE", help="What a rank's NIC sends, over all its ports.")
]


@workload.callback()
def group() -> None:
    """Workloads: what each rank of a training job computes, sends and receives, and in which order."""


@workload.command("generate")
def generate(
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help=f"One of {_MODELS.replace('|', ', ')}.",
            autocompletion=_complete.choices(*_MODELS.split("|")),
        ),
    ],
    gpus: Annotated[int, typer.Option(metavar="N", help="Ranks: one GPU with one NIC each.")],
    out: Annotated[Path, _common.out_option("FILE", "File to write, JSON Lines.")],
    tp: Annotated[int, typer.Option(help="Tensor-parallel size, with sequence parallelism.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    dp: Annotated[
        int | None, typer.Option(help="Replicas; default what is left of the ranks.", metavar="N")
    ] = None,
    cp: Annotated[int, typer.Option(help="Ranks over which each sequence is spread (context).")] = 1,
    ep: Annotated[int, typer.Option(help="Ranks over which the experts of a layer are spread.")] = 1,
    microbatches: Annotated[int, typer.Option(help="Microbatches of a replica in a step.")] = 1,
    microbatch: Annotated[int, typer.Option(help="Sequences of a microbatch.")] = 1,
    schedule: Annotated[
        str,
        typer.Option(
            metavar=_SCHEDULES,
            help="Order of the pipeline.",
            autocompletion=_complete.choices(*_SCHEDULES.split("|")),
        ),
    ] = "1f1b",
    chunks: Annotated[
        int, typer.Option(help="Of the schedule interleaved: parts of the model at each stage.")
    ] = 1,
    gpu: Annotated[
        str,
        typer.Option(
            metavar=_GPUS,
            help="Accelerator: how fast it computes, and its scale-up domain.",
            autocompletion=_complete.choices(*_GPUS.split("|")),
        ),
    ] = "h100",
    domain: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Ranks of a scale-up domain; default that of the accelerator, 1: none."
        ),
    ] = None,
    json: _common.JsonOption = False,
) -> None:
    """Write a training step of a published transformer: one program for each rank."""
    from openmrc.workload import Layout, preset, save
    from openmrc.workload import generate as make

    if schedule not in _SCHEDULES.split("|"):
        raise typer.BadParameter(f"--schedule {schedule}: not one of {_SCHEDULES.replace('|', ', ')}")
    if dp is None:
        dp = max(gpus // (tp * cp * pp), 1) if min(tp, cp, pp) > 0 else 1
    layout = Layout(gpus, tp, pp, dp, ep, microbatches, microbatch, cast("Schedule", schedule), chunks, cp)
    step = make(preset(model), layout, gpu=gpu, domain=domain)
    save(step, out)
    figures = {"file": out, "ranks": gpus, "programs": len(step.programs), "nodes": step.nodes()}
    if json:
        _common.print_json(figures)
    else:
        _common.console().print(
            f"{out}: {gpus:,} ranks, {len(step.programs)} programs, {step.nodes():,} nodes;"
            f" look at it with: openmrc workload show {out}"
        )


@workload.command("show")
def show(
    file: FileArgument,
    gpus: GpusOption = None,
    rate: RateOption = "800G",
    json: _common.JsonOption = False,
) -> None:
    """Show counts, bytes of a rank by kind, and the least time that computing and sending need."""
    from openmrc.workload import require, volume

    found = _load(file, gpus)
    require(found, file)
    figures = volume(found, parse_rate(rate) / 1e9)
    if json:
        _common.print_json(figures.to_dict())
        return
    groups = ", ".join(f"{count:,} {role}" for role, count in sorted(figures.groups.items())) or "none"
    console = _common.console()
    console.print(f"{figures.ranks:,} ranks, {figures.nodes:,} nodes; groups: {groups}")
    rows = [_row(each.ranks, each.first, row) for each in figures.classes for row in each.rows]
    _common.print_table(
        ["ranks like", "ranks", "kind", "group", "size", "nodes", "sent by a rank", "over", "ms"],
        rows,
        left=1,
    )
    for line in _summary(figures):
        console.print(line)


@workload.command("check")
def check(file: FileArgument, gpus: GpusOption = None, json: _common.JsonOption = False) -> None:
    """Check that a workload can run: groups, peers, sizes, what ranks agree on, cycles, deadlocks."""
    from openmrc.workload import problems

    found = _load(file, gpus)
    wrong = list(problems(found))
    if json:
        listed = [
            {"rank": each.rank, "node": each.node, "field": each.field, "message": each.message}
            for each in wrong
        ]
        _common.print_json({"file": file, "ranks": len(found.ranks), "problems": listed})
    elif wrong:
        more = f"; and {len(wrong) - 1:,} more, see --json" if len(wrong) > 1 else ""
        _common.print_error(f"{file}: {wrong[0]}{more}")
    else:
        _common.console().print(f"{file}: {len(found.ranks):,} ranks, {found.nodes():,} nodes: it can run")
    if wrong:
        raise typer.Exit(_common.EXIT_FAILURE)


@workload.command("run")
def run(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Workloads: as generate writes them, GOAL, text of SimAI or AICB, prefixes of Chakra traces."
            " Several are jobs that share the fabric.",
        ),
    ],
    scenario: ScenarioOption = None,
    placement: Annotated[
        str,
        typer.Option(
            metavar=_PLACEMENTS,
            help="Hosts of the ranks: in order, so that consecutive ranks share a T0; the ranks with the same"
            " place in their scale-up domains beside each other; or at random by the scenario's seed.",
            autocompletion=_complete.choices(*_PLACEMENTS.split("|")),
        ),
    ] = "t0",
    engine: EngineOption = None,
    gpus: GpusOption = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="Write when each node of each rank began and ended, for ui.perfetto.dev.",
        ),
    ] = None,
    json: _common.JsonOption = False,
) -> None:
    """Run a workload on a fabric in virtual time: step time, exposed communication, and where the time went.

    The critical path is what the end of the step waited for. Ctrl-C ends the run and prints what is known so
    far.
    """
    from openmrc import sim
    from openmrc.workload import require, run_jobs, write_timeline

    if placement not in _PLACEMENTS.split("|"):
        raise typer.BadParameter(f"--placement {placement}: not one of {_PLACEMENTS.replace('|', ', ')}")
    check_outputs([timeline])
    jobs = [_load(file, gpus) for file in files]
    for file, job in zip(files, jobs, strict=True):
        require(job, file)
    fabric = None if scenario is None else sim.load(scenario)
    with contents_of(scenario), progress() as advance:
        steps = run_jobs(jobs, fabric, advance, placement, engine)
    if json:
        found = [step.to_dict() for step in steps]
        _common.print_json(found[0] if len(files) == 1 else {"jobs": found})
    else:
        for number, step in enumerate(steps):
            if len(steps) > 1:
                _common.console().print(f"job {number}: {files[number]}, {len(jobs[number].ranks):,} ranks")
            _print_step(step)
            _print_where(step)
        _print_totals(steps[0].results)
    if timeline is not None:
        write_timeline(
            timeline, [(step.times, step.hosts) for step in steps], steps[0].results.scenario.faults
        )
    if steps[0].results.interrupted:
        raise typer.Exit(_common.EXIT_INTERRUPTED)
    for number, step in enumerate(steps):
        if not step.finished:
            of = f" of job {number}" if len(steps) > 1 else ""
            _common.print_error(f"the step{of} has not ended after {_ms(step.step_us)} ms of virtual time")
            raise typer.Exit(_common.EXIT_FAILURE)


@workload.command("compare")
def compare(
    file: FileArgument,
    scenario: ScenarioOption = None,
    transports: Annotated[
        str,
        typer.Option(
            "--transports",
            metavar="LIST",
            help="Comma-separated, such as mrc,mrc:evs=16,rocev2:qps=8. Default: the scenario's.",
        ),
    ] = "",
    planes: Annotated[
        str,
        typer.Option(
            "--planes",
            metavar="LIST",
            help="Numbers of planes of the same total bandwidth, such as 1,4,8. Default: the scenario's.",
        ),
    ] = "",
    placements: Annotated[
        str,
        typer.Option("--placements", metavar="LIST", help=f"Of {_PLACEMENTS.replace('|', ', ')}."),
    ] = "t0",
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs of each, with the scenario's seed and the following ones.")
    ] = 1,
    engine: EngineOption = None,
    gpus: GpusOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Run one workload with every combination of transports, numbers of planes and placements.

    Each transport runs on the network that it is meant for. With several seeds the table has means. Ctrl-C
    ends the run and prints what is known so far.
    """
    from openmrc import sim
    from openmrc.workload import compare as compare_all
    from openmrc.workload import require, variants

    found = _load(file, gpus)
    require(found, file)
    fabric = None if scenario is None else sim.load(scenario)
    wanted = variants(_listed(transports), _numbers(planes), _listed(placements))
    with contents_of(scenario), progress() as advance:
        comparison = compare_all(
            found, wanted, fabric, seeds, lambda name, so_far: advance(so_far, name), engine
        )
    if json:
        _common.print_json(comparison.to_dict())
    else:
        _common.print_table(comparison.columns, comparison.rows())
    if comparison.interrupted:
        raise typer.Exit(_common.EXIT_INTERRUPTED)


@workload.command("convert")
def convert(
    file: FileArgument,
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="File to write; of Chakra traces the prefix of all ranks.")
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar=_FORMATS,
            help="Format to write; of an OUT that ends with .jsonl or .goal it need not be said.",
            autocompletion=_complete.choices(*_FORMATS.split("|")),
        ),
    ] = "",
    gpus: GpusOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Write a workload in another format: JSON Lines of openmrc, GOAL, or Chakra traces.

    GOAL has the messages of collectives, Chakra whole microseconds.
    """
    from openmrc.workload import convert as write
    from openmrc.workload import require

    to = to or {".jsonl": "openmrc", ".goal": "goal"}.get(out.suffix, "")
    if to not in _FORMATS.split("|"):
        raise typer.BadParameter(
            f"--to {to}: not one of {_FORMATS.replace('|', ', ')}"
            if to
            else "--to: it is needed for this OUT"
        )
    found = _load(file, gpus)
    require(found, file)
    files = write(found, out, to)
    if json:
        _common.print_json({"files": files, "ranks": len(found.ranks), "nodes": found.nodes()})
    else:
        _common.console().print(f"{out}: {len(found.ranks):,} ranks, {found.nodes():,} nodes, as {to}")


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in _listed(text)]
    except ValueError:
        raise typer.BadParameter(f"--planes {text}: write numbers like 1,4,8") from None


def _print_step(step: "StepResults") -> None:
    rows = [
        ["step", _ms(step.step_us), ""],
        ["without a network", _ms(step.ideal_us), "computing, scale-up domains, waiting for stages"],
        ["exposed communication", _ms(step.exposed_us), f"{step.exposed_us / step.step_us:.1%} of the step"]
        if step.finished
        else ["so far", "", "the step has not ended"],
        ["computing", _ms(step.compute_us), "of the busiest rank"],
    ]
    _common.print_table(["", "ms", ""], rows, prose=True)


def _print_totals(results: "Results") -> None:
    totals = results.totals
    if results.scenario.engine == "flow":
        _common.console().print(f"{totals['data_bytes']:,} bytes as shares of links, no packets")
    else:
        _common.console().print(
            f"{totals['data_packets']:,} data packets, {totals['retransmits']:,} sent again"
        )
    if results.skipped is not None:
        _common.console().print(f"without packets: {results.skipped}")


def _ms(micros: float) -> str:
    return f"{micros / 1e3:,.3f}"


_SHOWN = 8
"""Rows of a table, the largest first; ``--json`` has all."""


def _print_where(done: "StepResults") -> None:
    """Where the time of a step went."""
    from openmrc.workload.waits import operations, waited_for

    path = done.critical_path_us()
    if path:
        rows = [[what, _ms(us), f"{us / done.step_us:.1%}"] for what, us in path.items()]
        _common.print_table(["critical path", "ms", "of the step"], rows[:_SHOWN])
        _say_rest(len(rows))
    found = operations(done.times)
    if found:
        _common.print_table(
            ["over the fabric", "ranks", "bytes", "count", "median ms", "p99", "longest", "waited"],
            [
                [row.what, f"{row.ranks:,}", size(row.bytes), f"{row.count:,}"]
                + [_ms(us) for us in (row.median_us, row.p99_us, row.most_us, row.waited_us)]
                for row in found[:_SHOWN]
            ],
        )
        _say_rest(len(found))
    for waited in waited_for(done.times)[:1]:
        _common.console().print(
            f"most was waited for rank {waited.rank}: {_ms(waited.us)} ms by all others in"
            f" {waited.count:,} operations"
        )


def _say_rest(rows: int) -> None:
    if rows > _SHOWN:
        _common.console().print(f"and {rows - _SHOWN} more rows; --json has all")


def _load(file: Path, gpus: int | None) -> "Workload":
    from openmrc.workload import load

    return load(file, gpus)


def _row(ranks: int, first: int, row: "Row") -> list[str]:
    return [
        str(first),
        f"{ranks:,}",
        row.operation or row.kind,
        row.group or "-",
        str(row.size) if row.kind == "collective" else "-",
        f"{row.nodes:,}",
        size(row.bytes_sent) if row.bytes_sent else "-",
        ("scale-up" if row.inside else "fabric") if row.bytes_sent else "-",
        f"{row.ns / 1e6:,.3f}" if row.ns else "-",
    ]


def _summary(figures: "Volume") -> list[str]:
    return [
        f"all ranks send {size(figures.fabric_bytes)} over the fabric and {size(figures.inside_bytes)} within"
        " scale-up domains",
        f"link bound: {figures.link_ns / 1e6:,.3f} ms at {figures.rate_gbps:g} Gb/s a rank",
        f"without a network: {figures.ideal_ns / 1e6:,.3f} ms, of which the busiest rank computes"
        f" {figures.compute_ns / 1e6:,.3f} ms",
    ]
