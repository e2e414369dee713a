"""``openmrc agent``: tells a controller what this host's processes see, and hands them its deny lists."""

import logging
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmrc import _core
from openmrc.cli import _common, _values
from openmrc.cli._asking import AuthorityOption
from openmrc.cli.controller import OtlpOption, require
from openmrc.errors import ArgumentError, ConnectError

if TYPE_CHECKING:
    from openmrc.fabric import Fabric


def agent(
    controller: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]",
            help="The controller. Default: the environment variable OPENMRC_CONTROLLER, or this machine.",
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="HOST",
            help="The host it speaks for; may be repeated, for a lab. Default: those of --token-file, or the "
            "one with this machine's addresses.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with lines HOST TOKEN, as `openmrc controller --agent-tokens` prints them.",
        ),
    ] = None,
    authority: AuthorityOption = None,
    fabric: Annotated[
        Path | None,
        typer.Option(
            "--fabric", metavar="FILE", help="The fabric's specification. Default: the controller's."
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="DIR", help="Directory that keeps the deny list over a restart."),
    ] = None,
    probe_rate: Annotated[
        int,
        typer.Option(
            "--probe-rate",
            metavar="N",
            min=0,
            max=_core.MAX_PROBE_RATE,
            help="Probes a second of each host: to itself over its T0s and their uplinks, or else EV "
            "probes of its queue pairs' paths; 0: none.",
        ),
    ] = 500,
    metrics: Annotated[
        int | None,
        typer.Option("--metrics", help="Serve /metrics on this port of 127.0.0.1.", **_values.port()),
    ] = None,
    otlp: OtlpOption = None,
    listen: Annotated[
        Path | None,
        typer.Option(
            "--socket",
            metavar="FILE",
            help="Listen here for processes of other users and containers that announce themselves. They "
            "look for /run/openmrc/agent.sock or what OPENMRC_AGENT names.",
        ),
    ] = None,
    user: Annotated[
        list[str] | None,
        typer.Option(
            "--user",
            metavar="NAME",
            help="With --socket: believe this user's processes, by name or number; may be repeated. Those of "
            "root and of the agent's own user are believed.",
        ),
    ] = None,
) -> None:
    """Tell a controller what the processes of this host see of the fabric; hand them its deny lists.

    It sees the devices that this user's processes publish (`openmrc devices`); root sees root's. With
    --socket it sees those of other users and of containers as well. With CAP_NET_RAW it also probes the links
    of its hosts. Without the controller it keeps the last deny list, and its processes go on.
    """
    require("the agent", "httpx", "prometheus_client")
    from openmrc.operate import agent as agents
    from openmrc.operate import announced
    from openmrc.operate.client import Client
    from openmrc.operate.tokens import read_agent_tokens
    from openmrc.sourceroutes import SourceRoutes

    tokens = read_agent_tokens(token_file) if token_file is not None else {}

    def connect(name: str) -> Client:
        return Client(controller, bearer=tokens.get(name), authority=authority, timeout_s=3.0)

    if user and listen is None:
        raise ArgumentError("--user is for processes that announce themselves: name a --socket")
    users = [announced.user(name) for name in user or ()]
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    known = _fabric(controller, authority, fabric, state)
    hosts = host or list(tokens) or [SourceRoutes.here(known).host]
    if tokens and (missing := [name for name in hosts if name not in tokens]):
        raise ArgumentError(f"{token_file} has no token of {', '.join(missing[:8])}")
    receiver = None
    if otlp is not None:
        from openmrc.operate.otlp import Otlp

        receiver = Otlp(otlp, "openmrc-agent", ",".join(hosts), {"openmrc.fabric": known.spec.name})
    with ExitStack() as stack:
        kept = None if state is None else state / "deny.json"
        told = None
        if listen is not None:
            told = stack.enter_context(announced.Announced(listen, users))
        running = agents.Agent(known, hosts, connect, state=kept, probe_rate=probe_rate, announced=told)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: running.close())
        if metrics is not None:
            from openmrc.operate import metrics as exposition
            from openmrc.operate.exporter import Exporter

            exporter = Exporter(
                "127.0.0.1",
                metrics,
                lambda: exposition.text(lambda: exposition.of_agent(running)),
                exposition.CONTENT_TYPE,
            )
            stack.enter_context(exporter)
            print(f"metrics: http://127.0.0.1:{exporter.port}/metrics", flush=True)
        if receiver is not None:
            from openmrc.operate import metrics as exposition
            from openmrc.operate.otlp import Sender

            stack.enter_context(Sender(receiver, lambda: exposition.of_agent(running)))
        running.run()


def _fabric(
    controller: str | None, authority: Path | None, file: Path | None, state: Path | None
) -> "Fabric":
    """The fabric of the file, else the controller's, else what was kept of it."""
    from openmrc.fabric import Fabric
    from openmrc.files import write_text
    from openmrc.operate.client import Client

    if file is not None:
        return Fabric.load(file)
    kept = None if state is None else state / "fabric.yaml"
    remarks = _common.console(stderr=True)
    told = False
    while True:
        try:
            with Client(controller, authority=authority, timeout_s=5.0) as client:
                text = client.specification()
        except ConnectError as error:
            if kept is not None and kept.exists():
                remarks.print(f"{error}; the fabric as it was is used")
                return Fabric.load(kept)
            if not told:
                remarks.print(f"{error}; waiting for it")
                told = True
            time.sleep(1.0)
            continue
        with tempfile.TemporaryDirectory(prefix="openmrc-") as scratch:
            place = Path(scratch, "fabric.yaml")
            write_text(place, text)
            found = Fabric.load(place)
        if kept is not None:
            kept.parent.mkdir(0o755, parents=True, exist_ok=True)
            write_text(kept, text)
        return found
