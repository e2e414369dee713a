"""The end that is measured against."""

import contextlib
import socket
from collections.abc import Callable
from typing import Any

from openmrc.errors import ConnectError, Error
from openmrc.outofband import Channel, Message, Refused, listen, plain_address
from openmrc.perftest import protocol as p
from openmrc.perftest.endpoint import Endpoint
from openmrc.perftest.settings import Settings
from openmrc.planes import path_mtu

OnResult = Callable[[dict[str, Any]], None]


class Server:
    """Listens for one client after the other.

    Args:
        settings: This end's planes and impairments; what is measured, the client says.
        host: Address to listen on; empty: all.
        port: TCP port; 0: any free one.

    Raises:
        DeviceError: if it cannot listen there.
    """

    def __init__(self, settings: Settings, host: str = "", port: int = p.DEFAULT_PORT) -> None:
        self._settings = settings
        self._listener: socket.socket = listen(host, port)
        self.port: int = self._listener.getsockname()[1]
        """TCP port it listens on."""

    def serve(self, on_result: OnResult = lambda result: None) -> None:
        """Serves one client, from its coming to its going.

        Args:
            on_result: Called with the figures of each run.

        Raises:
            ConnectError: if the client went away in the middle, or was refused.
        """
        connection, address = self._listener.accept()
        peer = f"{plain_address(address[0])}:{address[1]}"
        with contextlib.ExitStack() as stack:
            channel: Channel[Message] = Channel(connection, peer, p.MESSAGES)
            stack.callback(channel.close)
            endpoint = self._introduce(channel, stack)
            while True:
                message = channel.receive()
                match message:
                    case p.Run():
                        self._run(message, endpoint, channel, on_result)
                    case p.Bye():
                        return
                    case _:
                        raise channel.unexpected(message)

    def close(self) -> None:
        """Stops listening."""
        self._listener.close()

    def _introduce(self, channel: Channel[Message], stack: contextlib.ExitStack) -> Endpoint:
        hello = channel.expect(p.Hello)
        try:
            if hello.version != p.VERSION:
                raise ConnectError(
                    f"protocol version {hello.version} was offered, {p.VERSION} is spoken here"
                )
            if hello.test != self._settings.test:
                raise ConnectError(f"this is a server for {self._settings.test}, not for {hello.test}")
            context = self._settings.planes.open(
                channel.local_address(), channel.remote_address(), count=hello.planes
            )
            endpoint = stack.enter_context(
                Endpoint(
                    context,
                    qps=hello.qps,
                    depth=hello.depth,
                    buffer=hello.buffer,
                    impairments=self._settings.impairments,
                )
            )
            channel.send(p.Offer(ends=endpoint.ends, buffer=endpoint.inbox))
            accept = channel.expect(p.Accept)
            mtu = path_mtu(context.addresses, accept.ends[0].addresses, largest=accept.path_mtu)
            endpoint.connect(accept.ends, accept.buffer, mtu)
        except (Error, OSError) as error:
            with contextlib.suppress(ConnectError):
                channel.send(Refused(reason=str(error)))
            raise
        channel.send(p.Connected(path_mtu=mtu))
        return endpoint

    def _run(self, run: p.Run, endpoint: Endpoint, channel: Channel[Message], on_result: OnResult) -> None:
        endpoint.prepare()
        channel.send(p.Going())
        sent: dict[str, Any] | None = None
        if self._settings.test == "write-lat":
            endpoint.latency(run, channel, client=False)
        elif run.bidirectional:
            sent = endpoint.bandwidth(run, channel)
        channel.expect(p.Finished, None)
        channel.send(p.Ran(sent=sent))
        on_result(channel.expect(p.Result).result)
