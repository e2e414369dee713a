"""``openmrc controller``: the live map of a fabric, named faults, decisions, metrics and a page."""

import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openmrc.cli import _common, _complete, _peers, _values
from openmrc.errors import ArgumentError
from openmrc.extras import import_optional

if TYPE_CHECKING:
    from openmrc.operate.score import Score

AUTOMATIC = ("off", "dry-run", "on")
OtlpOption = Annotated[
    str | None,
    typer.Option(
        "--otlp",
        metavar="URL",
        help="Send the metrics to this OpenTelemetry receiver (OTLP over HTTP), such as "
        "http://collector:4318.",
    ),
]
PACKAGES = ("fastapi", "uvicorn", "sqlalchemy", "prometheus_client", "httpx")


def require(what: str, *modules: str) -> None:
    """Checks that the packages of openmrc[operate] are there.

    Raises:
        Error: if one is missing; the message has the command that installs it.
    """
    for module in modules:
        import_optional(module, what, "openmrc[operate]")


def controller(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FABRIC.yaml]", help="The fabric's specification; --simulate has one."),
    ] = None,
    bind: Annotated[
        str, typer.Option("--bind", metavar="ADDRESS", help="Listen on this address.")
    ] = _peers.LOOPBACK,
    port: Annotated[int, typer.Option("--port", "-p", help="TCP port.", **_values.port())] = 18517,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the operators' token, at least 16 characters. Default: the environment variable "
            "OPENMRC_TOKEN; without it nothing can be changed.",
        ),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(
            "--database",
            metavar="FILE|URL",
            help="A file of SQLite, or postgresql+psycopg://USER@HOST/NAME. Default: openmrc-FABRIC.db here.",
        ),
    ] = None,
    automatic: Annotated[
        str,
        typer.Option(
            "--automatic",
            metavar="|".join(AUTOMATIC),
            help="What to do about broken links: nothing, say what would be denied, or deny them.",
            autocompletion=_complete.choices(*AUTOMATIC),
        ),
    ] = "dry-run",
    floor: Annotated[
        float,
        typer.Option(
            "--floor", help="Share of each T0's uplinks and each host's ports that stays.", **_values.share()
        ),
    ] = "50%",  # type: ignore[assignment]
    hold: Annotated[
        float,
        typer.Option(
            "--hold", help="How long a denied link must be good, doubled each time.", **_values.time(0.1)
        ),
    ] = "30s",  # type: ignore[assignment]
    keep_days: Annotated[
        int, typer.Option("--keep-days", min=1, help="How long the history of links is kept.")
    ] = 30,
    certificate: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="TLS: the certificate chain, PEM.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="TLS: the private key, PEM.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait while another controller has the fabric, and take over.")
    ] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Hosts that do not exist report, and faults are drawn.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="With --simulate: of the faults.")] = 1,
    duration: Annotated[
        float | None,
        typer.Option(
            "--duration",
            "-D",
            help="With --simulate: end after this time. Default: at Ctrl-C.",
            **_values.time(1),
        ),
    ] = None,
    json: _common.JsonOption = False,
    alertmanager: Annotated[
        list[str] | None,
        typer.Option(
            "--alertmanager",
            metavar="URL",
            help="Tell this Alertmanager of faults that begin and end; may be repeated.",
        ),
    ] = None,
    otlp: OtlpOption = None,
    agent_tokens: Annotated[
        str | None,
        typer.Option(
            "--agent-tokens",
            metavar="HOST,HOST|all",
            help="Print the tokens of these hosts' agents, and end.",
        ),
    ] = None,
) -> None:
    """Run the controller of a fabric: live map, named faults, deny lists, drains, audit log, metrics, page.

    Whoever reaches it may look. Changes need the operators' token, reports of agents the token of their host.
    Beyond this machine it listens only with a token.

    With --simulate and without a file: 256 hosts in 8 planes, in memory, and the page's address with a token.
    At its end it prints what was named when, rightly or wrongly; with --json as JSON, after the address.
    """
    if automatic not in AUTOMATIC:
        raise ArgumentError(f"--automatic {automatic}: {', '.join(AUTOMATIC)} are allowed")
    if (certificate is None) != (key is None):
        raise ArgumentError("--tls-cert and --tls-key belong together")
    if file is None and not simulate:
        raise ArgumentError("name the fabric's specification, or say --simulate")
    if not simulate and (json or duration is not None):
        raise ArgumentError("--json and --duration go with --simulate")
    token = _peers.token(token_file)
    if agent_tokens is not None:
        _print_tokens(file, agent_tokens, token)
        return
    require("the controller", *PACKAGES)
    import secrets

    from openmrc.control import Token
    from openmrc.fabric import Fabric
    from openmrc.operate import score
    from openmrc.operate import simulated as simulation
    from openmrc.operate.policy import Rules
    from openmrc.operate.server import Listening, run
    from openmrc.operate.service import Service, Settings
    from openmrc.operate.store import Retention, Store

    loopback = _peers.is_loopback(bind)
    if token is None and not loopback:
        raise ArgumentError(
            f"--bind {bind} lets other machines connect: name a token (--token-file or OPENMRC_TOKEN)"
        )
    made = None
    if token is None and simulate:
        made = secrets.token_hex(16)
        token = Token(made)
    if token is not None:
        token.in_clear()
    remarks = _common.console(stderr=True)
    fabric = Fabric.load(file) if file is not None else simulation.fabric()
    hosts = simulation.Simulated(fabric, seed=seed) if simulate else None
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s")
    with tempfile.TemporaryDirectory(prefix="openmrc-") as scratch:
        place = database or (f"{scratch}/simulated.db" if simulate else f"openmrc-{fabric.spec.name}.db")
        url = place if "://" in place else f"sqlite:///{Path(place).absolute()}"
        store = Store(url, fabric.spec.name, retention=Retention(changes=keep_days))
        settings = Settings(
            automatic=automatic,
            rules=Rules(floor=floor, hold_s=hold),
            read_only=token is None,
            simulated=simulate,
        )

        def ready(address: str) -> None:
            # The fragment stays in the browser.
            print(f"{address}{f'#token={made}' if made else ''}", flush=True)
            if settings.read_only:
                remarks.print(
                    "read-only: without a token nothing can be changed, and only local agents report"
                )

        def finished(service: Service) -> None:
            if hosts is not None:
                named = [*service.faults.over, *service.faults.ranked()]
                _print_score(score.score(hosts.injected(time.monotonic()), named), json=json)

        run(
            fabric,
            store,
            settings,
            Listening(
                bind=bind,
                port=port,
                is_loopback=loopback,
                certificate=certificate,
                key=key,
                waits=wait,
            ),
            token,
            simulated=hosts,
            duration_s=duration,
            alertmanagers=alertmanager or (),
            otlp=otlp,
            ready=ready,
            waiting=lambda holder: remarks.print(f"waiting: controller {holder} has the fabric"),
            finished=finished,
        )


def _print_score(found: "Score", *, json: bool) -> None:
    from openmrc.operate import score

    if json:
        _common.print_json(score.as_dict(found))
        return
    screen = _common.console()
    screen.print(score.table(found))
    screen.print(score.summary(found), markup=False)


def _print_tokens(file: Path | None, wanted: str, token: "object") -> None:
    from openmrc.control import Token
    from openmrc.fabric import Fabric
    from openmrc.operate.tokens import agent_token

    if file is None or not isinstance(token, Token):
        raise ArgumentError("--agent-tokens needs FABRIC.yaml and the operators' token (--token-file)")
    fabric = Fabric.load(file)
    names = range(fabric.hosts) if wanted == "all" else [fabric.host(name) for name in wanted.split(",")]
    for number in names:
        print(f"h{number} {agent_token(token, f'h{number}')}")
