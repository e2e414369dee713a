"""Runs a controller: lease, HTTP, evaluation, until a signal."""

import asyncio
import contextlib
import logging
import signal
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from typing import Any

import uvicorn

from openmrc.control import Token
from openmrc.control.tcp import listen
from openmrc.errors import ArgumentError
from openmrc.fabric import Fabric
from openmrc.operate.alerts import Alerts
from openmrc.operate.api import application
from openmrc.operate.metrics import of_controller
from openmrc.operate.otlp import Otlp
from openmrc.operate.service import Service, Settings
from openmrc.operate.simulated import Simulated
from openmrc.operate.store import Store

DEFAULT_PORT = 18517
_MOST_CONNECTIONS = 2048
_SWITCH_S = 5e-4
_log = logging.getLogger("openmrc.controller")
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "[::1]"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where and how a controller listens."""

    bind: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    is_loopback: bool = True
    """Whether only this machine can connect."""
    certificate: Path | None = None
    """TLS: a file in PEM with the chain; ``None``: without TLS."""
    key: Path | None = None
    waits: bool = False
    """Whether it waits for another controller's lease."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Whom a controller tells what it knows, without waiting for them."""

    alerts: Alerts | None = None
    otlp: Otlp | None = None


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The program's own handlers end everything in order; uvicorn's would kill it before."""
        yield


def run(
    fabric: Fabric,
    store: Store,
    settings: Settings,
    listening: Listening,
    token: Token | None,
    *,
    simulated: Simulated | None = None,
    duration_s: float | None = None,
    alertmanagers: Sequence[str] = (),
    otlp: str | None = None,
    ready: Callable[[str], Any] = lambda _: None,
    waiting: Callable[[str], Any] = lambda _: None,
    finished: Callable[[Service], Any] = lambda _: None,
) -> None:
    """Serves until SIGINT or SIGTERM, or for a time.

    Args:
        fabric: The fabric.
        store: Its database.
        settings: How the controller works.
        listening: Where it listens.
        token: The operators'.
        simulated: Hosts that report to it.
        duration_s: Ends after this time, seconds, by itself; ``None``: it does not.
        alertmanagers: Addresses of Alertmanagers that are told of faults.
        otlp: Address of an OpenTelemetry receiver that gets the metrics.
        ready: Called with the page's address.
        waiting: Called with the name of another controller that has the lease.
        finished: Called with the controller's state once it has ended without an error.

    Raises:
        ArgumentError: if certificate and key, or the address of an Alertmanager or a receiver, are wrong.
        openmrc.DeviceError: if it cannot listen.
        openmrc.StateError: if another controller has the fabric, or has taken it over.
    """
    # An evaluation is a thread that computes; at the default of 5 ms agents would wait for it at every turn.
    sys.setswitchinterval(_SWITCH_S)
    alerts = Alerts(alertmanagers, fabric.spec.name) if alertmanagers else None
    name = fabric.spec.name
    receiver = None
    if otlp is not None:
        receiver = Otlp(otlp, "openmrc-controller", f"{name}@{gethostname()}", {"openmrc.fabric": name})
    beside = Beside(alerts, receiver)
    service = asyncio.run(
        _run(fabric, store, settings, listening, token, simulated, duration_s, beside, ready, waiting)
    )
    if service is not None:
        finished(service)


async def _run(
    fabric: Fabric,
    store: Store,
    settings: Settings,
    listening: Listening,
    token: Token | None,
    simulated: Simulated | None,
    duration_s: float | None,
    told: Beside,
    ready: Callable[[str], Any],
    waiting: Callable[[str], Any],
) -> Service | None:
    """The controller's state at the end; ``None``: it ended before it had the lease."""
    service = Service(fabric, store, settings)
    service.alerts = alerts = told.alerts
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(ended.wait())]
    beside: list[asyncio.Task[Any]] = []
    try:
        lease = asyncio.create_task(service.take_lease(waiting=waiting if listening.waits else None))
        await asyncio.wait([lease, tasks[0]], return_when=asyncio.FIRST_COMPLETED)
        if not lease.done():
            lease.cancel()
            return None
        lease.result()
        server, socket = _server(service, listening, token)
        tasks.append(asyncio.create_task(server.serve(sockets=[socket])))
        tasks.append(asyncio.create_task(service.run()))
        if simulated is not None:
            tasks.append(asyncio.create_task(simulated.run(service)))
        while not server.started and not any(task.done() for task in tasks):
            await asyncio.sleep(0.01)
        scheme = "https" if listening.certificate else "http"
        host = f"[{listening.bind}]" if ":" in listening.bind else listening.bind or "localhost"
        page = f"{scheme}://{host}:{socket.getsockname()[1]}/"
        if alerts is not None:
            alerts.page = page
            beside.append(asyncio.create_task(_alerting(alerts, service)))
        if told.otlp is not None:
            beside.append(asyncio.create_task(told.otlp.run(lambda: of_controller(service))))
        ready(page)
        if duration_s is not None:
            tasks.append(asyncio.create_task(asyncio.sleep(duration_s)))
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        failed = [task for task in tasks if task.done() and task.exception()]
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(tasks[1]), 5)
        if failed:
            failed[0].result()
        return service
    finally:
        for task in (*tasks, *beside):
            task.cancel()
        await asyncio.gather(*tasks, *beside, return_exceptions=True)
        await service.close()


async def _alerting(alerts: Alerts, service: Service) -> None:
    """A controller without alerts is better than none."""
    while True:
        try:
            await alerts.run(service.faults.open.values)
        except Exception:
            _log.exception("alerts begin again")
            await asyncio.sleep(1.0)


def _server(service: Service, listening: Listening, token: Token | None) -> tuple[_Server, Any]:
    names = _LOOPBACK | {listening.bind.lower()} if listening.is_loopback else None
    tls: dict[str, Any] = {}
    if listening.certificate is not None:
        tls = {"ssl_certfile": listening.certificate, "ssl_keyfile": listening.key}
    config = uvicorn.Config(
        application(service, token, names=names),
        log_level="warning",
        access_log=False,
        lifespan="off",
        http="h11",
        ws="none",
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        h11_max_incomplete_event_size=16 << 10,
        timeout_graceful_shutdown=1,
        **tls,
    )
    try:
        config.load()
    except (ssl.SSLError, OSError) as error:
        raise ArgumentError(f"{listening.certificate}: no certificate with its key ({error})") from None
    return _Server(config), listen(listening.bind, listening.port)
