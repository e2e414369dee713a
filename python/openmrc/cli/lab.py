"""``openmrc lab``: a fabric in network namespaces of this machine. Needs root."""

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from openmrc.cli import _common
from openmrc.errors import ArgumentError

lab = typer.Typer(
    help="Run a fabric in network namespaces of this machine. Needs root.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
)

FileArgument = Annotated[Path, typer.Argument(metavar="FABRIC.yaml", help="The fabric's specification.")]
NameOption = Annotated[
    str | None, typer.Option("--lab", metavar="NAME", help="Name of the lab, if several are up.")
]
WhatArgument = Annotated[
    str,
    typer.Argument(
        metavar="LINK|PORT|SWITCH",
        help="A link, one of its ports (p0/t0-1:up2, h3:p0), or a switch (p0/t1-2).",
    ),
]
LinkArgument = Annotated[
    str, typer.Argument(metavar="LINK|PORT", help="A link or one of its ports (p0/t0-1:up2, h3:p0).")
]


@lab.command()
def up(
    file: FileArgument,
    hosts: Annotated[int | None, typer.Option(min=1, help="Number of hosts instead of the file's.")] = None,
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
    for what, loss in state.loss.items():
        console.print(f"{what}: loses {100 * loss:g} %", style="yellow")


@lab.command(name="exec", context_settings={"ignore_unknown_options": True})
def execute(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A host, such as h3, or a switch.")],
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
def fail(what: WhatArgument, name: NameOption = None) -> None:
    """Cut a link, or stop a switch: ports lose their carrier."""
    from openmrc.lab import Lab

    Lab.open(name).fail(what)


@lab.command()
def degrade(
    what: LinkArgument,
    loss: Annotated[str, typer.Option(metavar="SHARE", help="Such as 1% or 0.01; 100% is a silent cut.")],
    name: NameOption = None,
) -> None:
    """Make a link lose random packets in both directions; its ports stay up."""
    from openmrc.lab import Lab

    Lab.open(name).degrade(what, loss=_share(loss))


@lab.command()
def repair(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[LINK|PORT|SWITCH]", help="Link, port or switch; default everything."),
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
    down_s: Annotated[float, typer.Option("--down", min=0, help="Seconds it is cut.")] = 1.0,
    up_s: Annotated[float, typer.Option("--up", min=0, help="Seconds of working between two cuts.")] = 1.0,
    count: Annotated[int, typer.Option(min=1, help="How often.")] = 5,
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
    switch: Annotated[str, typer.Argument(metavar="SWITCH", help="The switch, such as p0/t1-2.")],
    rate: Annotated[
        str | None, typer.Option(metavar="RATE", help="Rate of every port, such as 200M; default no limit.")
    ] = None,
    base_rtt: Annotated[
        float | None,
        typer.Option(
            "--base-rtt",
            min=0.001,
            help="Base RTT in microseconds; thresholds are shares of rate x base RTT.",
        ),
    ] = None,
    off: Annotated[
        bool, typer.Option("--off", help="Let the kernel forward again, and show the counters.")
    ] = False,
    name: NameOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Replace a switch by a soft switch: with a rate, queues, ECN marking, packet trimming."""
    from openmrc.fabric.units import parse_rate
    from openmrc.lab import Lab

    found = Lab.open(name)
    if off:
        counted = found.stop_soft_switch(switch)
        if json:
            _common.print_json(counted)
            return
        for what, count in counted.items():
            _common.console().print(f"{what.replace('_', ' '):24}{count:12,}")
        return
    try:
        speed = None if rate is None else parse_rate(rate)
    except ValueError as error:
        raise ArgumentError(f"rate: {error}") from None
    found.start_soft_switch(switch, rate=speed, base_rtt_us=base_rtt)


@lab.command()
def demo(
    only: Annotated[
        str | None, typer.Option("--only", metavar="mrc|frr", help="One half of it.", show_default=False)
    ] = None,
    duration: Annotated[
        float,
        typer.Option(
            "--duration", "-D", min=10, metavar="SECONDS", help="Seconds that the faults of each run take."
        ),
    ] = 30.0,
    rate: Annotated[str, typer.Option("--rate", metavar="RATE", help="Offered load of each host.")] = "40M",
    nic: Annotated[
        str,
        typer.Option(
            "--nic",
            metavar="srv6|udp",
            help="srv6: the NIC builds SRv6 frames; udp: UDP sockets and the hosts' routes.",
        ),
    ] = "udp",
    bfd_interval: Annotated[
        int,
        typer.Option(
            "--bfd-interval",
            min=0,
            metavar="MS",
            help="FRR: BFD interval; three missing packets end a session; 0: no BFD.",
        ),
    ] = 100,
    bgp_hold: Annotated[
        int, typer.Option("--bgp-hold", min=3, max=65535, metavar="SECONDS", help="FRR: BGP's hold time.")
    ] = 9,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", metavar="FILE", help="Goodput over time, PNG, SVG or PDF.", show_default=False
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="All figures.", show_default=False)
    ] = None,
) -> None:
    """Break links under MRC, and under BGP with BFD and ECMP; compare the outages.

    Eight hosts in two planes write to each other in a ring. Meanwhile a link is cut, another one dies
    silently, a switch stops, a NIC port is lost, and a link loses 1 %. First over MRC and static source
    routes; then TCP and UDP behind FRR (Debian: apt install frr), on the same links and with the same faults.
    The exit code is 0 only if every byte written over MRC was right.
    """
    import json as json_module

    from openmrc.demos.lab import analysis, report
    from openmrc.demos.lab.frr import Timers
    from openmrc.demos.lab.run import Settings, run
    from openmrc.errors import Error
    from openmrc.fabric.units import parse_rate

    if only not in (None, "mrc", "frr"):
        raise ArgumentError(f"--only {only}: mrc or frr is allowed")
    if nic not in ("srv6", "udp"):
        raise ArgumentError(f"--nic {nic}: srv6 or udp is allowed")
    try:
        speed = parse_rate(rate)
    except ValueError as error:
        raise ArgumentError(f"rate: {error}") from None
    for file in (picture, json):
        if file is not None and not file.parent.is_dir():
            raise ArgumentError(f"{file}: there is no directory {file.parent}")
    settings = Settings(
        only,  # type: ignore[arg-type]
        duration,
        speed,
        nic == "srv6",
        Timers(bfd_interval, bgp_hold),
    )
    remarks = _common.console(stderr=True)
    with report.Progress(remarks) as progress:
        outcome = run(settings, progress)
    timers = settings.timers.described
    _common.console().print(report.summary(outcome.mrc, outcome.conventional, timers, speed))
    if outcome.remark:
        remarks.print(outcome.remark, markup=False)
    if json is not None:
        results = {
            "mrc": outcome.mrc and analysis.as_dict(outcome.mrc, ["mrc"]),
            "conventional": outcome.conventional and analysis.as_dict(outcome.conventional, ["tcp", "udp"]),
            "timers": {"bfd_interval_ms": bfd_interval, "bgp_hold_s": bgp_hold},
            "offered_bps_per_host": speed,
        }
        json.write_text(json_module.dumps(results, indent=1, allow_nan=False) + "\n")
    if picture is not None:
        from openmrc.demos.lab.picture import draw

        draw(outcome.mrc, outcome.conventional, timers, picture)
    if outcome.mrc is not None and outcome.mrc.wrong:
        raise Error(f"{outcome.mrc.wrong} writes arrived with wrong data")


def _share(text: str) -> float:
    try:
        number: Any = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ArgumentError(f"loss: {text!r} is not a share; write 1% or 0.01") from None
    return float(number)
