"""``openmrc fabric``: what a controller knows, and what it is to do."""

import getpass
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openmrc.cli import _common, _peers
from openmrc.cli._asking import AuthorityOption, ControllerOption, client
from openmrc.cli.controller import require
from openmrc.cli.validate import of_fabric
from openmrc.errors import ConnectError, Error
from openmrc.printable import printable
from openmrc.units import rate, size

if TYPE_CHECKING:
    from openmrc.operate.model import FaultCost, JobInfo, NamedFault, Outcome

fabric = typer.Typer(
    help="Ask the controller of a fabric, and tell it what to do.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
)
link = typer.Typer(
    help="Show a link, deny it, or allow it again.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
)
fabric.add_typer(link, name="link")
fabric.command("validate")(of_fabric)

TokenOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the operators' token. Default: the environment variable OPENMRC_TOKEN.",
    ),
]
WhyOption = Annotated[str, typer.Option("--why", help="The reason, for the audit log.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Also below the floor of capacity.")]
LinkArgument = Annotated[
    str, typer.Argument(metavar="LINK|PORT", help="A link or one of its ports (p0/t0-1:up2, h3:p0).")
]
WhatArgument = Annotated[
    str, typer.Argument(metavar="LINK|PORT|SWITCH", help="A link, one of its ports, or a switch (p0/t1-2).")
]


@fabric.command()
def status(
    controller: ControllerOption = None, authority: AuthorityOption = None, json: _common.JsonOption = False
) -> None:
    """Show the fabric in a few figures; the exit code is 1 if there are faults."""
    with client(controller, authority) as asked:
        found = asked.status()
    if json:
        _common.print_json(found.model_dump())
    else:
        links = ", ".join(f"{count:,} {name}" for name, count in found.links.items() if count)
        out = ", ".join(f"{count} {name}" for name, count in found.decisions.items() if count)
        print(f"fabric {printable(found.fabric)}: {found.faults} faults; links: {links}")
        print(f"{found.hosts_heard} of {found.hosts} hosts heard; links out: {out or 'none'}")
        for drain in found.drains:
            users = f", used by {', '.join(drain.users)}" if drain.users else ""
            print(printable(f"{drain.what}: {drain.state}{users} ({drain.who}: {drain.why})"))
        if found.store_error:
            print(f"nothing can be stored: {printable(found.store_error)}")
    if found.faults:
        raise typer.Exit(1)


@fabric.command()
def faults(
    over: Annotated[bool, typer.Option("--over", help="Those that are over.")] = False,
    controller: ControllerOption = None,
    authority: AuthorityOption = None,
    json: _common.JsonOption = False,
) -> None:
    """List the faults, the one that costs most first."""
    with client(controller, authority) as asked:
        found = asked.faults(over=over)
    if json:
        _common.print_json([fault.model_dump() for fault in found])
    elif found:
        _common.print_table(
            ("KIND", "NAME", "LOST", "CONFIDENCE", "COST", "SINCE"), [_row(fault) for fault in found], left=2
        )
    else:
        print("no faults" if not over else "no faults that are over")


@fabric.command()
def jobs(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="Show this one: each plane, and what faults cost it."),
    ] = None,
    controller: ControllerOption = None,
    authority: AuthorityOption = None,
    json: _common.JsonOption = False,
) -> None:
    """List jobs with their goodput, or show one with each plane and what named faults cost it.

    A process names its job in OPENMRC_JOB. Goodput is what all processes of a job receive.
    """
    with client(controller, authority) as asked:
        found = asked.jobs()
    if name is not None:
        found = [job for job in found if job.job == name]
        if not found:
            raise Error(f"no job {printable(name)[:64]!r} has been heard; `openmrc fabric jobs` lists them")
    if json:
        _common.print_json([job.model_dump() for job in found])
    elif name is not None:
        _show_job(found[0])
    elif found:
        columns = ("JOB", "HOSTS", "PROCESSES", "GOODPUT", "LEAST PLANE", "MOST PLANE", "FAULTS THAT COST")
        _common.print_table(columns, [_job_row(job) for job in found])
    else:
        print("no jobs: a process names its job in OPENMRC_JOB and publishes its devices (OPENMRC_OBSERVE=1)")


def _job_row(job: "JobInfo") -> tuple[str, ...]:
    rates = [rate(round(each / 8), 1) for each in (job.goodput_bps, min(job.planes_bps), max(job.planes_bps))]
    costly = sum(cost.outcome == "cost" for cost in job.costs)
    return printable(job.job), str(job.hosts), str(job.processes), *rates, str(costly)


def _show_job(job: "JobInfo") -> None:
    hosts = f"{job.hosts} host{'' if job.hosts == 1 else 's'}"
    print(printable(f"{job.job}: {hosts}, {job.processes} process{'' if job.processes == 1 else 'es'}"))
    planes = [(f"plane {plane}", rate(round(each / 8), 1)) for plane, each in enumerate(job.planes_bps)]
    _common.print_table(("", "GOODPUT"), [*planes, ("all", rate(round(job.goodput_bps / 8), 1))])
    for cost in job.costs:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(cost.since))
        lasted = "still open" if cost.until is None else f"for {cost.until - cost.since:.0f} s"
        print(printable(f"{when}  {cost.kind} {cost.name}, {lasted}: {_cost_told(cost)}"))


def _cost_told(cost: "FaultCost") -> str:
    if cost.outcome == "unknown" or cost.before_bps is None or cost.during_bps is None:
        return "too little goodput before or during it to compare"
    rates = [rate(round(each / 8), 1) for each in (cost.during_bps, cost.before_bps)]
    others = "; other faults at the same time" if cost.together else ""
    if cost.outcome == "none":
        return f"no difference beyond the job's own variation ({rates[1]} before){others}"
    return f"{rates[0]} instead of {rates[1]}, {size(cost.lost_bytes)} less{others}"


@fabric.command()
def incident(
    number: Annotated[
        int, typer.Argument(metavar="ID", min=1, help="The fault's id, as `fabric faults --json` has it.")
    ],
    out: Annotated[
        Path | None, _common.out_option("FILE", "Write it to this file instead of standard output.")
    ] = None,
    controller: ControllerOption = None,
    authority: AuthorityOption = None,
) -> None:
    """Export a fault with what was recorded around it, as JSON: for a ticket, and for `openmrc replay`.

    It has the fabric's file, the evidence, the history of the links concerned and the decisions about them,
    from a minute before the fault to a minute after it.
    """
    from openmrc.files import write_text
    from openmrc.operate.incident import collect

    with client(controller, authority) as asked:
        text = collect(asked, number, time.time()).model_dump_json(indent=2)
    if out is None:
        print(text)
    else:
        write_text(out, text + "\n")


def _row(fault: "NamedFault") -> tuple[str, ...]:
    unknown = fault.kind == "unknown"
    name = " or ".join(suspect.name for suspect in fault.suspects[:4]) if unknown else fault.name
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(fault.since))
    return (
        printable(fault.kind),
        printable(name),
        f"{fault.loss:.2%}",
        f"{fault.confidence:.2f}",
        rate(round(fault.cost_bps / 8), 1),
        since,
    )


@link.command()
def show(
    name: LinkArgument,
    controller: ControllerOption = None,
    authority: AuthorityOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Show a link with its history."""
    with client(controller, authority) as asked:
        found = asked.link(name)
    if json:
        _common.print_json(found.model_dump())
        return
    denied = f" by {found.denied_by}: {found.denied_why}" if found.denied_by else ""
    print(printable(f"{found.name}: {found.evidence}, {found.lower} to {found.upper}"))
    if found.decision != "none":
        print(printable(f"{found.decision}{denied}"))
    if found.path_changes:
        print(f"paths over it were condemned or taken back {found.path_changes:,} times")
    for change in found.history:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change.time))
        decision = "" if change.decision == "none" else f", {change.decision}"
        print(printable(f"{when}  {change.evidence}{decision}  {change.detail}").rstrip())


@link.command()
def deny(
    name: LinkArgument,
    why: WhyOption,
    dry_run: DryRunOption = False,
    force: ForceOption = False,
    token_file: TokenOption = None,
    controller: ControllerOption = None,
    authority: AuthorityOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Tell hosts not to use a link."""
    _act("deny", name, why, (controller, authority, token_file), json=json, dry_run=dry_run, force=force)


@link.command()
def allow(
    name: LinkArgument,
    why: WhyOption,
    dry_run: DryRunOption = False,
    token_file: TokenOption = None,
    controller: ControllerOption = None,
    authority: AuthorityOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Let hosts use a denied link again."""
    _act("allow", name, why, (controller, authority, token_file), json=json, dry_run=dry_run)


@fabric.command()
def drain(
    what: WhatArgument,
    why: WhyOption,
    dry_run: DryRunOption = False,
    force: ForceOption = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until no host uses it.")] = False,
    token_file: TokenOption = None,
    controller: ControllerOption = None,
    authority: AuthorityOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Take a switch or link out for maintenance.

    It is empty when every host that is heard has the deny list and no queue pair has a path over it.
    """
    where = (controller, authority, token_file)
    _act("drain", what, why, where, json=json, dry_run=dry_run, force=force)
    if not wait or dry_run:
        return
    with client(controller, authority) as asked:
        name = what if "/t" in what and ":" not in what and "--" not in what else asked.link(what).name
        while (found := next((d for d in asked.status().drains if d.what == name), None)) is not None:
            if found.state == "empty":
                print(f"{name} is empty")
                return
            time.sleep(0.5)
    raise Error(f"{name} is not drained any more")


@fabric.command()
def undrain(
    what: WhatArgument,
    why: WhyOption,
    token_file: TokenOption = None,
    controller: ControllerOption = None,
    authority: AuthorityOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Take a switch or link back into use."""
    _act("undrain", what, why, (controller, authority, token_file), json=json)


def _act(
    action: str,
    what: str,
    why: str,
    where: tuple[str | None, Path | None, Path | None],
    *,
    json: bool,
    **options: Any,
) -> None:
    require("asking a controller", "httpx")
    from openmrc.operate.client import bearer_of
    from openmrc.operate.model import Action, Request

    controller, authority, token_file = where
    bearer = bearer_of(_peers.token(token_file))
    request = Request(action=Action(action), what=what, why=why, who=getpass.getuser(), **options)
    with client(controller, authority, bearer) as asked:
        outcome = asked.act(request)
    if json:
        _common.print_json(outcome.model_dump())
    else:
        print(printable(_told(outcome)))
    if not outcome.done and not (outcome.dry_run and not outcome.reason):
        raise typer.Exit(1)


def _told(outcome: "Outcome") -> str:
    count = f"{len(outcome.links)} link{'' if len(outcome.links) == 1 else 's'}"
    if outcome.done:
        return f"{outcome.action} {outcome.what}: done ({count})"
    if outcome.reason:
        return f"{outcome.action} {outcome.what}: not done: {outcome.reason}"
    return f"{outcome.action} {outcome.what}: would be done ({count})"


@fabric.command()
def log(
    controller: ControllerOption = None, authority: AuthorityOption = None, json: _common.JsonOption = False
) -> None:
    """Show the audit log: who decided what, and why."""
    with client(controller, authority) as asked:
        found = asked.decisions()
    if json:
        _common.print_json([each.model_dump() for each in found])
        return
    for each in found:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.time))
        print(printable(f"{when}  {each.who}  {_told(each)}; {each.why}"))


@fabric.command()
def dashboards(
    out: Annotated[Path, _common.out_option("DIR", "A directory that is empty or does not exist.")],
    controllers: Annotated[
        list[str] | None,
        typer.Option(
            "--controller-metrics",
            metavar="HOST:PORT",
            help="A controller that Prometheus scrapes; may be repeated. Default: localhost:18517.",
        ),
    ] = None,
    agents: Annotated[
        list[str] | None,
        typer.Option(
            "--agent-metrics",
            metavar="HOST:PORT",
            help="An agent with --metrics that Prometheus scrapes; may be repeated.",
        ),
    ] = None,
    json: _common.JsonOption = False,
) -> None:
    """Write a dashboard for Grafana, alert rules for Prometheus, and a configuration that uses them."""
    from openmrc.errors import ArgumentError
    from openmrc.files import new_directory, write_text
    from openmrc.operate import monitoring

    controllers, agents = controllers or ["localhost:18517"], agents or []
    for target in (*controllers, *agents):
        if not monitoring.is_target(target):
            raise ArgumentError(f"{printable(target)[:100]}: a target is HOST:PORT, such as 10.0.0.1:18517")
    files = {
        monitoring.DASHBOARD_FILE: monitoring.dashboard(),
        monitoring.RULES_FILE: monitoring.rules(),
        monitoring.SCRAPE_FILE: monitoring.scrape(controllers, agents),
    }
    with new_directory(out) as directory:
        for name, text in files.items():
            write_text(directory / name, text)
    if json:
        _common.print_json({"files": [str(out / name) for name in files]})
    else:
        print("\n".join(str(out / name) for name in files))


@fabric.command()
def events(
    follow: Annotated[bool, typer.Option("--follow", help="Go on until interrupted.")] = False,
    controller: ControllerOption = None,
    authority: AuthorityOption = None,
    json: _common.JsonOption = False,
) -> None:
    """Show the open faults and, with --follow, every change as it comes."""
    from openmrc.operate.events import unpacked
    from openmrc.operate.model import MOST_NAMES, Decision, Evidence, NamedFault, Outcome

    with client(controller, authority) as asked:
        for fault in asked.faults():
            _event("fault", fault.model_dump(), _fault_told(fault), json=json)
        if not follow:
            return
        names: dict[int, str | None] = {}
        for kind, content in asked.events():
            if kind == "map" and not json:
                try:
                    cells = [
                        (n, Evidence(byte & 15), Decision(byte >> 4))
                        for n, byte in unpacked(content["cells"])
                    ]
                except (KeyError, TypeError, ValueError):
                    raise ConnectError(f"{asked.address}: an event of the map is malformed") from None
                for number, evidence, decision in cells:
                    if number not in names:
                        first = number - number % MOST_NAMES
                        names |= enumerate(asked.names(first, MOST_NAMES), first)
                    out = f", {decision.name.lower()}" if decision else ""
                    _event(kind, content, f"{names.get(number)}: {evidence.name.lower()}{out}", json=False)
                continue
            told = ""
            if kind == "fault":
                told = _fault_told(NamedFault(**content))
            elif kind == "decision":
                outcome = Outcome(**content)
                told = f"{outcome.who}: {_told(outcome)}; {outcome.why}"
            elif kind == "drain":
                told = f"{content['what']}: {content['state']}"
            _event(kind, content, told, json=json)


def _fault_told(fault: "NamedFault") -> str:
    names = [each.name for each in fault.suspects[:4]] if fault.kind == "unknown" else [fault.name]
    ended = "over: " if fault.until is not None else ""
    return (
        f"{ended}{fault.kind} {' or '.join(names)}: {fault.loss:.2%} lost, confidence {fault.confidence:.2f}"
    )


def _event(kind: str, content: dict[str, Any], told: str, *, json: bool) -> None:
    if json:
        _common.print_json_line({"event": kind, **content})
    else:
        print(printable(f"{time.strftime('%H:%M:%S')}  {kind:8}  {told}"), flush=True)
