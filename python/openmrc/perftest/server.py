"""The end that is measured against."""

import contextlib
from collections.abc import Callable
from typing import Any

from openmrc import handshake
from openmrc.channel import Channel, parse
from openmrc.closing import Closable
from openmrc.errors import ConnectError
from openmrc.handshake import GreetingError, Listener
from openmrc.perftest import protocol as p
from openmrc.perftest.endpoint import Endpoint
from openmrc.perftest.settings import Settings

OnResult = Callable[[dict[str, Any]], None]


class Server(Closable):
    """Listens for one client after the other.

    Args:
        settings: This end's planes and impairments; the client says what is measured.
        host: Address to listen on; empty: all.
        port: TCP port; 0: any free one.

    Raises:
        DeviceError: if it cannot listen there.
    """

    def __init__(self, settings: Settings, host: str = "", port: int = p.DEFAULT_PORT) -> None:
        self._settings = settings
        self._listener = Listener(p.PROTOCOL, host, port)
        self.port: int = self._listener.address[1]
        """TCP port it listens on."""

    def serve(self, on_result: OnResult = lambda result: None) -> None:
        """Serves one client, from its connection to its end. Connections that are no clients are dropped.

        Args:
            on_result: Called with the figures of each run.

        Raises:
            ConnectError: if the client went away before its end, or was refused.
        """
        while True:
            with self._listener.accept() as channel, contextlib.ExitStack() as stack:
                try:
                    endpoint = self._connect(channel, stack)
                except GreetingError:
                    continue  # A port scan, say. The next may be the client.
                self._serve(endpoint, channel, on_result)
                return

    def close(self) -> None:
        """Stops listening."""
        self._listener.close()

    def _connect(self, channel: Channel[Any], stack: contextlib.ExitStack) -> Endpoint:
        settings, planes = self._settings, self._settings.planes
        with handshake.answering(channel, p.PROTOCOL) as answering:
            request = answering.request
            wanted = parse(p.Wanted, request.data, channel.peer)
            if wanted.test != settings.test:
                raise ConnectError(f"this is a server for {settings.test}, not for {wanted.test}")
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
            largest = planes.path_mtu(context.addresses, request.addresses, largest=request.path_mtu)
            endpoint.aim(answering.offer(endpoint.end(largest)))
        return endpoint

    def _serve(self, endpoint: Endpoint, channel: Channel[Any], on_result: OnResult) -> None:
        while True:
            message = channel.receive()
            match message:
                case p.Run():
                    self._run(message, endpoint, channel, on_result)
                case p.Bye():
                    return
                case _:
                    raise channel.unexpected(message)

    def _run(self, run: p.Run, endpoint: Endpoint, channel: Channel[Any], on_result: OnResult) -> None:
        endpoint.prepare()
        channel.send(p.Started())
        sent: dict[str, Any] | None = None
        if self._settings.test == "write-lat":
            endpoint.latency(run, channel, client=False)
        elif run.bidirectional:
            sent = endpoint.bandwidth(run, channel)
        channel.expect(p.Finished, None)
        channel.send(p.Counted(sent=sent))
        on_result(channel.expect(p.Result).result)
