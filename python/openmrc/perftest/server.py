"""The passive end of a measurement."""

import contextlib
from collections.abc import Callable
from typing import Any

from openmrc import handshake
from openmrc.closing import Closable
from openmrc.control import Budget, Channel, Listener, LostError
from openmrc.control.messages import parse
from openmrc.errors import ConnectError, Error
from openmrc.perftest import protocol as p
from openmrc.perftest.endpoint import Endpoint, Watch
from openmrc.perftest.results import checked
from openmrc.perftest.settings import Settings, memory

_INTERVAL = 0.001

MEMORY = 256 << 20
"""Bytes that a client without a token may ask for, if the server's own options do not ask for more."""

TRUSTED_MEMORY = 8 << 30
"""Bytes that a client with the token may ask for."""

OnResult = Callable[[dict[str, Any]], None]
OnRefused = Callable[[str, str], None]


class Server(Closable):
    """Listens for one client after the other.

    Args:
        settings: This end's planes, token and impairments; the client says what is measured.
        host: Address to listen on; empty: all.
        port: TCP port; 0: any free one.

    Raises:
        DeviceError: if it cannot listen there.
    """

    def __init__(self, settings: Settings, host: str = "", port: int = p.DEFAULT_PORT) -> None:
        self._settings = settings
        budget = Budget(TRUSTED_MEMORY, max(MEMORY, settings.memory))
        self._listener = Listener(p.PROTOCOL, host, port, token=settings.token, budget=budget)
        self.port: int = self._listener.address[1]
        """TCP port it listens on."""

    def serve(
        self,
        on_result: OnResult = lambda result: None,
        on_refused: OnRefused = lambda peer, reason: None,
    ) -> None:
        """Serves one client, from its connection to its end.

        Who is no client, or vanishes or falls silent in the handshake, is dropped, and the next is served. So
        is a client that cannot be served: anybody who reaches the port could ask for what is impossible.

        Args:
            on_result: Called with the figures of each run.
            on_refused: Called with the address of a client that cannot be served, and the reason.

        Raises:
            ConnectError: if the client went away or fell silent in a run.
        """
        while True:
            with self._listener.accept() as channel, contextlib.ExitStack() as stack:
                try:
                    endpoint = self._connect(channel, stack)
                except LostError:
                    continue  # A port scan, say. The next may be the client.
                except (Error, OSError) as error:
                    on_refused(channel.peer, handshake.describe(error))
                    continue
                self._serve(Watch(endpoint, channel, self._settings.max_time), endpoint, on_result)
                return

    def close(self) -> None:
        """Stops listening."""
        self._listener.close()

    def _connect(self, channel: Channel[Any], stack: contextlib.ExitStack) -> Endpoint:
        settings, planes = self._settings, self._settings.planes
        with handshake.answering(channel, addresses=settings.addresses) as answering:
            request = answering.request
            wanted = parse(p.Wanted, request.data, channel.peer)
            if wanted.test != settings.test:
                raise ConnectError(f"this is a server for {settings.test}, not for {wanted.test}")
            needed = memory(wanted.qps, wanted.depth, wanted.buffer)
            if channel.account is not None:
                channel.account.reserve(
                    needed, f"a test of {wanted.qps} queue pairs and {wanted.buffer} bytes"
                )
            context = planes.open(
                channel.local_address(), channel.remote_address(), count=len(request.addresses)
            )
            endpoint = stack.enter_context(
                Endpoint(
                    context,
                    qps=wanted.qps,
                    depth=wanted.depth,
                    buffer=wanted.buffer,
                    impairments=settings.impairments,
                )
            )
            answering.check(context)
            largest = planes.path_mtu(context.addresses, request.addresses, largest=request.path_mtu)
            endpoint.aim(answering.offer(endpoint.end(largest)))
        return endpoint

    def _serve(self, watch: Watch, endpoint: Endpoint, on_result: OnResult) -> None:
        channel = watch.channel
        while True:
            message = channel.receive(p.IDLE_TIMEOUT)
            match message:
                case p.Measurement():
                    self._run(message, endpoint, watch, on_result)
                case p.Bye():
                    return
                case _:
                    raise channel.unexpected(message)

    def _run(self, run: p.Measurement, endpoint: Endpoint, watch: Watch, on_result: OnResult) -> None:
        channel = watch.channel
        endpoint.prepare()
        channel.send(p.Started())
        sent: dict[str, Any] | None = None
        watch.interrupted = False
        if self._settings.test == "write-lat":
            endpoint.latency(run, watch, client=False)
        elif run.bidirectional:
            # Only the peak is taken from these intervals, and each costs memory.
            coarse = run.model_copy(update={"interval": max(run.interval, _INTERVAL)})
            sent = endpoint.bandwidth(coarse, watch)
        watch.expect(p.Finished)
        channel.send(p.Counted(sent=None if sent is None else p.Loop(**sent)))
        on_result(checked(self._settings.test, channel.expect(p.Result, p.IDLE_TIMEOUT).result, channel.peer))
