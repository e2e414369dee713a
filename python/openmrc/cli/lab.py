"""``openmrc lab``: a fabric in network namespaces of this machine. Needs root."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from openmrc.cli import _common, _complete, _values
from openmrc.cli import locate as _locate
from openmrc.colours import FAILED, IMPAIRED
from openmrc.errors import ArgumentError, Error
from openmrc.extras import pip_install
from openmrc.files import write_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from openmrc.lab import Lab

lab = typer.Typer(
    help="Run a fabric in network namespaces of this machine. Needs root.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
)

LAB_DEMO = "openmrc-lab-demo"

FileArgument = Annotated[Path, typer.Argument(metavar="FABRIC.yaml", help="The fabric's specification.")]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--lab", metavar="NAME", help="Name of the lab, if several are up.", autocompletion=_complete.labs
    ),
]
WhatArgument = Annotated[
    str,
    typer.Argument(
        metavar="LINK|PORT|SWITCH",
        help="A link, one of its ports (p0/t0-1:up2, h3:p0), or a switch (p0/t1-2).",
        autocompletion=_complete.links_and_switches,
    ),
]
NodeArgument = Annotated[
    str,
    typer.Argument(metavar="NODE", help="A host, such as h3, or a switch.", autocompletion=_complete.nodes),
]
LinkArgument = Annotated[
    str,
    typer.Argument(
        metavar="LINK|PORT",
        help="A link or one of its ports (p0/t0-1:up2, h3:p0).",
        autocompletion=_complete.links,
    ),
]


@lab.command()
def up(
    file: FileArgument,
    hosts: Annotated[int | None, typer.Option(min=1, help="Number of hosts. Default: the file's.")] = None,
) -> None:
    """Bring a fabric up: a namespace per switch and host, a veth pair per link, static SRv6 routes."""
    from openmrc.fabric import Fabric
    from openmrc.lab import Lab

    remarks = _common.console(stderr=True)
    fabric = Fabric.load(file, hosts=hosts)
    began = time.monotonic()
    made = Lab.up(fabric, progress=lambda what: remarks.print(f"  {what}", style="dim"))
    nodes = f"{fabric.switch_count} switches, {fabric.hosts} hosts, {len(made.layout.links)} links"
    _common.console().print(f"lab {made.name} is up after {time.monotonic() - began:.1f} s: {nodes}")


@lab.command()
def down(name: NameOption = None) -> None:
    """Take a lab down, and end all processes in it."""
    from openmrc.lab.lab import remove
    from openmrc.lab.state import the_name
    from openmrc.lab.system import require_root

    require_root()
    name = the_name(name)
    remove(name)
    _common.console().print(f"lab {name} is down")


@lab.command()
def status(name: NameOption = None, json: _common.JsonOption = False) -> None:
    """Show the hosts of a lab with their addresses, and what has failed."""
    from openmrc.lab import Lab

    found = Lab.open(name)
    state, layout = found.state, found.layout
    addresses = {host: found.addresses(host) for host in layout.hosts}
    if json:
        _common.print_json(
            {
                "name": found.name,
                "switches": len(layout.switches),
                "links": len(layout.links),
                "hosts": {
                    host: {"namespace": found.namespace(host), "addresses": addresses[host]}
                    for host in layout.hosts
                },
                "cut": state.cut,
                "stopped": state.stopped,
                "loss": state.loss,
                "direction": state.direction,
                "delay_s": state.delay,
                "rate_bps": state.rate,
                "soft": sorted(state.soft),
            }
        )
        return
    planes = [f"p{plane}" for plane in range(found.fabric.planes)]
    _common.print_table(["host", *planes], [(host, *each) for host, each in addresses.items()], left=99)
    console = _common.console()
    console.print(f"lab {found.name}: {len(layout.switches)} switches, {len(layout.links)} links")
    for what in sorted(state.soft):
        console.print(f"{what}: a soft switch")
    for what in state.stopped:
        console.print(f"{what}: stopped", style="red")
    for what in state.cut:
        console.print(f"{what}: cut", style="red")
    from openmrc.lab.graph import described

    for what in state.impaired:
        console.print(f"{what}: {', '.join(described(state, what))}", style="yellow")


@lab.command(name="locate")
def locate_(
    follow: _locate.FollowOption = False,
    window: _locate.WindowOption = 0.5,
    name: NameOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Name the broken cable of a lab, from what the processes in it believe of their paths.

    It knows nothing of what was cut: `openmrc lab status` and `graph` show that. Exit codes are those of
    `openmrc locate`.
    """
    from openmrc.lab import Lab

    _locate.look(Lab.open(name).fabric, follow=follow, window=window, json=json)


@lab.command()
def graph(
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE.svg|png", help="Draw it into a file.")
    ] = None,
    name: NameOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Show the planes, switches, hosts and cables of a lab, and what has failed."""
    from openmrc.lab import Lab
    from openmrc.lab import graph as graphs

    found = Lab.open(name)
    if picture is not None:
        try:
            from openmrc.fabric import drawing
        except ModuleNotFoundError as error:
            raise Error(f"--picture needs {error.name}: {pip_install('plots')}") from None
        drawing.save(found.fabric, picture, marks=_marks(found), legend=_LEGEND)
        _common.console(stderr=True).print(f"wrote {picture}", markup=False)
    if json:
        _common.print_json(graphs.as_dict(found.layout, found.state))
    elif picture is None:
        width = min(_common.console().width, graphs.WIDTH)
        for line in graphs.lines(found.layout, found.state, width):
            print(line)


_LEGEND = "dashed: cut or stopped (red), lossy, delayed or slow (amber)"


def _marks(found: "Lab") -> dict[str, str]:
    """Colours of what has failed, by name."""
    state = found.state
    marks = dict.fromkeys(state.impaired, IMPAIRED)
    for switch in state.stopped:
        marks |= dict.fromkeys((link.name for link in found.layout.links_of(switch)), FAILED)
    return marks | dict.fromkeys((*state.cut, *state.stopped), FAILED)


@lab.command(name="exec", context_settings={"ignore_unknown_options": True})
def execute(
    node: NodeArgument,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="The command and its arguments.")
    ],
    name: NameOption = None,
) -> None:
    """Run a command at a host or switch."""
    from openmrc.lab import Lab

    line = Lab.open(name).command(node, command)
    os.execvp(line[0], line)


@lab.command()
def shell(
    node: NodeArgument,
    name: NameOption = None,
) -> None:
    """Open a shell at a host or switch; its prompt names the node.

    The shell is that of the variable SHELL. In it every command runs at the node, and the lab's hosts have
    their names.
    """
    from openmrc.lab import Lab

    found = Lab.open(name)
    line = found.command(node, _shell(node, found.state.directory))
    os.execvp(line[0], line)


def _shell(node: str, directory: Path) -> list[str]:
    program = os.environ.get("SHELL") or "/bin/sh"
    if Path(program).name != "bash":
        return ["env", f"PS1={node}$ ", program]
    # The user's own settings first: they would replace the prompt.
    start = directory / f"bashrc-{node.replace('/', '-')}"
    write_text(start, f'[ -f ~/.bashrc ] && . ~/.bashrc\nPS1="({node}) $PS1"\n')
    return [program, "--rcfile", str(start)]


@lab.command()
def fail(what: WhatArgument, name: NameOption = None) -> None:
    """Cut a link, or stop a switch: ports lose their carrier."""
    from openmrc.lab import Lab

    Lab.open(name).fail(what)


@lab.command()
def degrade(
    what: LinkArgument,
    loss: Annotated[
        float | None,
        typer.Option(
            "--loss", help="Lose packets, such as 1% or 0.01; 100% is a silent cut.", **_values.share()
        ),
    ] = None,
    delay: Annotated[
        float | None,
        typer.Option(
            "--delay", help="Delay packets in each direction, such as 5ms.", **_values.time(needs_unit=True)
        ),
    ] = None,
    rate: Annotated[
        int | None, typer.Option("--rate", help="Carry at most this much, such as 100M.", **_values.rate())
    ] = None,
    direction: Annotated[
        Literal["both", "up", "down"],
        typer.Option(
            "--direction", help="Where packets are lost: away from the hosts (up), towards them (down)."
        ),
    ] = "both",
    name: NameOption = None,
) -> None:
    """Make a link lose or delay packets, or slow; its ports stay up.

    What is not given stays as it is. `openmrc lab repair` ends all of it.
    """
    from openmrc.lab import Lab

    if loss is None and delay is None and rate is None:
        raise typer.BadParameter("say how: --loss, --delay or --rate")
    if direction != "both" and loss is None:
        raise typer.BadParameter("--direction is that of --loss: say how much")
    Lab.open(name).degrade(what, loss=loss, delay=delay, rate=rate, direction=direction)


@lab.command()
def repair(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="LINK|PORT|SWITCH",
            help="A link, one of its ports, or a switch. Default: everything.",
            autocompletion=_complete.links_and_switches,
        ),
    ] = None,
    name: NameOption = None,
) -> None:
    """Repair links and switches."""
    from openmrc.lab import Lab

    for each in Lab.open(name).repair(what):
        _common.console().print(f"{each} repaired")


@lab.command()
def flap(
    what: WhatArgument,
    down_s: Annotated[
        float, typer.Option("--down", help="How long each cut lasts.", **_values.time())
    ] = "1s",  # type: ignore[assignment]
    up_s: Annotated[float, typer.Option("--up", help="Time between cuts.", **_values.time())] = "1s",  # type: ignore[assignment]
    count: Annotated[int, typer.Option("--count", "-c", min=1, help="Number of cuts.")] = 5,
    name: NameOption = None,
) -> None:
    """Cut and repair a link or switch repeatedly; at the end, also after Ctrl-C, it is repaired."""
    from openmrc.lab import Lab

    found = Lab.open(name)
    for turn in range(count):
        found.fail(what)
        try:
            time.sleep(down_s)
        finally:
            found.repair(what)
        if turn + 1 < count:
            time.sleep(up_s)


@lab.command()
def soft(
    switch: Annotated[
        str,
        typer.Argument(
            metavar="SWITCH", help="The switch, such as p0/t1-2.", autocompletion=_complete.switches
        ),
    ],
    rate: Annotated[
        int | None,
        typer.Option("--rate", help="Rate of every port, such as 200M. Default: no limit.", **_values.rate()),
    ] = None,
    base_rtt: Annotated[
        float | None,
        typer.Option(
            "--base-rtt",
            help="Base RTT, such as 1ms; thresholds are shares of rate x base RTT.",
            **_values.time(1e-9, needs_unit=True),
        ),
    ] = None,
    off: Annotated[
        bool, typer.Option("--off", help="Let the kernel forward again, and show the counters.")
    ] = False,
    name: NameOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Replace a switch by a soft switch: with a rate, queues, ECN marking, packet trimming."""
    from openmrc.lab import Lab

    if json and not off:
        raise typer.BadParameter("--json goes with --off, which shows the counters")
    found = Lab.open(name)
    if off:
        counted = found.stop_soft_switch(switch)
        if json:
            _common.print_json(counted)
            return
        for what, count in counted.items():
            _common.console().print(f"{what.replace('_', ' '):24}{count:12,}")
        return
    base_rtt_us = None if base_rtt is None else base_rtt * 1e6
    found.start_soft_switch(switch, rate=rate, base_rtt_us=base_rtt_us)


@lab.command()
def demo(
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="mrc|frr",
            help="Run only this half.",
            show_default=False,
            autocompletion=_complete.choices("mrc", "frr"),
        ),
    ] = None,
    duration: Annotated[
        float,
        typer.Option("--duration", "-D", help="Length of each run's schedule of faults.", **_values.time(10)),
    ] = "30s",  # type: ignore[assignment]
    rate: Annotated[int, typer.Option("--rate", help="Offered load of each host.", **_values.rate())] = "40M",  # type: ignore[assignment]
    nic: Annotated[
        str,
        typer.Option(
            "--nic",
            metavar="srv6|udp",
            help="srv6: the NIC builds SRv6 frames; udp: UDP sockets and the hosts' routes.",
            autocompletion=_complete.choices("srv6", "udp"),
        ),
    ] = "udp",
    bfd_interval: Annotated[
        float,
        typer.Option(
            "--bfd-interval",
            help="FRR: BFD interval; three missing packets end a session; 0: no BFD.",
            **_values.time(needs_unit=True),
        ),
    ] = "100ms",  # type: ignore[assignment]
    bgp_hold: Annotated[
        float, typer.Option("--bgp-hold", help="FRR: BGP's hold time, whole seconds.", **_values.time(3))
    ] = "9s",  # type: ignore[assignment]
    out: _common.DemoOutOption = None,
    no_picture: Annotated[
        bool, typer.Option("--no-picture", help="Do not draw the goodput over time.")
    ] = False,
    operate: Annotated[
        bool,
        typer.Option(
            "--operate",
            help="Run a controller with its page and an agent instead, and compare what they name.",
        ),
    ] = False,
    json: _common.JsonOption = False,
) -> None:
    """Break links under MRC, and under BGP with BFD and ECMP; compare the outages.

    Eight hosts in two planes write to each other in a ring. Meanwhile a link is cut, another one dies
    silently, a switch stops, a NIC port is lost, and a link loses 1 %. First over MRC and static source
    routes; then TCP and UDP behind FRR (Debian: apt install frr), on the same links and with the same faults.
    The exit code is 0 only if every byte written over MRC was right.

    With --operate a controller and an agent watch the same faults over MRC. The page's address comes first,
    at the end a table of what was named when, rightly or wrongly. A fault lasts until it is named, at most a
    fifth of --duration.
    """
    if nic not in ("srv6", "udp"):
        raise ArgumentError(f"--nic {nic}: srv6 or udp is allowed")
    if operate:
        if only is not None:
            raise ArgumentError("--only and --operate exclude each other: --operate runs over MRC alone")
        _operated(duration, rate, nic, out, json=json)
        return
    from openmrc.cli import _demo
    from openmrc.demos.lab import analysis, report
    from openmrc.demos.lab.frr import Timers
    from openmrc.demos.lab.run import Settings, run

    if only not in (None, "mrc", "frr"):
        raise ArgumentError(f"--only {only}: mrc or frr is allowed")
    if bgp_hold != int(bgp_hold) or bgp_hold > 65535:
        raise ArgumentError(f"--bgp-hold: whole seconds up to 65535, not {bgp_hold:g}")
    bfd_ms = round(bfd_interval * 1e3)

    def draw(file: Path) -> None:
        from openmrc.demos.lab import picture

        picture.draw(outcome.mrc, outcome.conventional, timers, file)

    drawn = _demo.drawer(draw, wanted=not no_picture)
    settings = Settings(
        only,  # type: ignore[arg-type]
        duration,
        rate,
        nic == "srv6",
        Timers(bfd_ms, int(bgp_hold)),
    )
    remarks = _common.console(stderr=True)
    timers = settings.timers.described
    with _demo.directory(out, LAB_DEMO) as where:
        with report.Progress(remarks) as progress:
            outcome = run(settings, progress)
        results = {
            "mrc": outcome.mrc and analysis.as_dict(outcome.mrc),
            "conventional": outcome.conventional and analysis.as_dict(outcome.conventional),
            "timers": {"bfd_interval_ms": bfd_ms, "bgp_hold_s": int(bgp_hold)},
            "offered_bps_per_host": rate,
        }
        if outcome.remark:
            remarks.print(outcome.remark, markup=False)
        for recording in (outcome.mrc, outcome.conventional):
            if recording is not None and (busy := analysis.too_busy(recording)):
                remarks.print(busy, style="yellow", markup=False)
        _demo.present(
            results,
            where,
            "lab-demo",
            draw=drawn,
            summary=lambda: report.summary(outcome.mrc, outcome.conventional, timers, rate),
            json=json,
        )
    if outcome.mrc is not None and outcome.mrc.wrong:
        raise Error(f"{outcome.mrc.wrong} writes arrived with wrong data")


def _operated(duration: float, rate: int, nic: str, out: Path | None, *, json: bool) -> None:
    from openmrc.cli.controller import PACKAGES, require

    require("the controller", *PACKAGES)
    from openmrc.cli import _demo
    from openmrc.demos.lab import operated, report
    from openmrc.operate import score

    def summary() -> "RenderableType":
        from rich.console import Group

        counted = f"{outcome.pieces} writes arrived meanwhile, {outcome.wrong} with wrong data"
        return Group(score.table(outcome.score), score.summary(outcome.score), counted)

    with _demo.directory(out, LAB_DEMO) as where:
        with report.Progress(_common.console(stderr=True)) as progress:
            progress.phase = "MRC"
            outcome = operated.run(duration, rate, progress.log, srv6=nic == "srv6")
        results = {
            **score.as_dict(outcome.score),
            "writes": outcome.pieces,
            "wrong_writes": outcome.wrong,
            "too_busy": outcome.too_busy,
            "offered_bps_per_host": rate,
        }
        if outcome.too_busy:
            _common.console(stderr=True).print(outcome.too_busy, style="yellow", markup=False)
        _demo.present(results, where, "lab-operated", draw=None, summary=summary, json=json)
    if outcome.wrong:
        raise Error(f"{outcome.wrong} writes arrived with wrong data")
