"""Connecting queue pairs out of band: both ends exchange over TCP what RDMA needs.

    server                                             client
    with listen("0.0.0.0", 18515) as listener:
        peer = listener.accept(qp, buffers=[region])   peer = connect("server", 18515, qp)
                                                       qp.write(b"hello", peer.buffers[0])

One call takes the queue pairs from INIT (or RESET) to RTS at both ends and returns when both are there.
The handshake is :mod:`openmrc.handshake`. With a :class:`Token` each end proves to the other that it has it,
and what is said over TCP cannot be changed on the way. RDMA writes themselves are neither authenticated nor
encrypted.
"""

import time
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import JsonValue

from openmrc import handshake
from openmrc.closing import Closable
from openmrc.control import Channel, Message, Token, dial
from openmrc.control import Listener as ControlListener
from openmrc.control.reception import OnRefused
from openmrc.handshake import Accept, AddressRule, End, Offer, Options, Protocol
from openmrc.printable import printable
from openmrc.verbs import MemoryRegion, QueuePair, RemoteBuffer, SocketAddress

DEFAULT_PORT = 18515
"""TCP port, that of perftest."""


class _Data(Message):
    type: Literal["data"] = "data"
    value: JsonValue = None


class _Barrier(Message):
    type: Literal["barrier"] = "barrier"


PROTOCOL = Protocol("openmrc-connect", 1, _Data, _Barrier)


class Peer(Closable):
    """The other end of a connection, and the channel to it."""

    def __init__(self, channel: Channel[Any], theirs: Offer | Accept) -> None:
        self._channel = channel
        self.device = theirs.device
        """Name of its device."""
        self.addresses: list[SocketAddress] = theirs.addresses
        """Address and UDP port of each of its ports."""
        self.qp_nums = [qp.qp_num for qp in theirs.qps]
        """Numbers of its queue pairs, in the order of ours."""
        self.buffers = [RemoteBuffer(b.addr, b.length, b.rkey) for b in theirs.buffers]
        """What this end may write there, in the peer's order."""
        self.data: Any = theirs.data
        """What it passed as ``data``."""

    def send(self, value: JsonValue) -> None:
        """Sends a value that JSON can carry, for :meth:`receive` at the other end.

        Raises:
            ConnectError: if the connection is gone.
        """
        self._channel.send(_Data(value=value))

    def receive(self, timeout: float | None = None) -> Any:
        """The next value that the other end sends.

        Raises:
            ConnectError: if none arrives within ``timeout`` seconds, the connection is gone, or what arrives
                is malformed.
        """
        return self._channel.expect(_Data, timeout).value

    def barrier(self, timeout: float | None = None) -> None:
        """Returns once both ends have called it.

        Raises:
            ConnectError: as :meth:`receive`.
        """
        self._channel.send(_Barrier())
        self._channel.expect(_Barrier, timeout)

    def close(self) -> None:
        """Closes the channel; the queue pairs stay connected. Closing twice is harmless."""
        self._channel.close()

    def __repr__(self) -> str:
        return f"<Peer {printable(self.device)} at {self.addresses[0][0]}, {len(self.qp_nums)} queue pairs>"


class Listener(Closable):
    """Waits for peers; made by :func:`listen`."""

    def __init__(
        self,
        host: str,
        port: int,
        token: Token | None,
        allow_addresses: Sequence[str],
        on_refused: OnRefused,
    ) -> None:
        self._addresses = AddressRule(allow_addresses)
        self._listener = ControlListener(PROTOCOL, host, port, token=token, on_refused=on_refused)

    @property
    def address(self) -> tuple[str, int]:
        """Address and port it listens on; the real port if 0 was asked for."""
        return self._listener.address

    def accept(
        self,
        qps: QueuePair | Sequence[QueuePair],
        *,
        buffers: Sequence[MemoryRegion | RemoteBuffer] = (),
        data: JsonValue = None,
        options: Options | None = None,
        receives: int = 0,
        timeout: float | None = None,
    ) -> Peer:
        """Takes the next peer and connects ``qps`` to its queue pairs, one to one in their order.

        Strangers are sent away side by side, and a peer waits for none of them.

        After an error the listener can accept the next peer, and queue pairs that were taken out of RESET are
        back there.

        Args:
            qps: As :func:`connect`, and so are the others.
            buffers: What the peer may write.
            data: For the peer.
            options: What this end offers.
            receives: Receives to post on each queue pair before the peer can send.
            timeout: Seconds until a peer connects, and again for the handshake with it. ``None``: no limit
                for the first, :data:`openmrc.handshake.TIMEOUT` for the second.

        Raises:
            DeadlineError: if no peer connects in time.
            ClosedError: if the listener is closed.
            ConnectError, StateError, ArgumentError: as :func:`connect`.
        """
        end = End(_as_list(qps), buffers=buffers, data=data, options=options, receives=receives)
        channel = self._listener.accept(timeout)
        try:
            limit = handshake.TIMEOUT if timeout is None else timeout
            with handshake.answering(channel, addresses=self._addresses, timeout=limit) as answering:
                theirs = answering.offer(end)
        except BaseException:
            channel.close()
            raise
        return Peer(channel, theirs)

    def close(self) -> None:
        """Stops listening. Closing twice is harmless."""
        self._listener.close()


def listen(
    host: str = "",
    port: int = DEFAULT_PORT,
    *,
    token: Token | None = None,
    allow_addresses: Sequence[str] = (),
    on_refused: OnRefused = lambda peer, reason: None,
) -> Listener:
    """Listens for peers.

    Args:
        host: Address of this host; default: all.
        port: TCP port; 0: one that is free.
        token: What peers must have; default: none, and a peer that has one is refused.
        allow_addresses: Addresses and networks that a peer may offer for its ports besides its own address.
            By default peers with the token may offer any, other peers none.
        on_refused: Called by the thread in ``accept`` with the address of each stranger that is sent away
            (no greeting, another protocol or version, another token), and the reason.

    Raises:
        DeviceError: if the address or the port cannot be used.
        ArgumentError: if something in ``allow_addresses`` is neither an address nor a network.
    """
    return Listener(host, port, token, allow_addresses, on_refused)


def connect(
    host: str,
    port: int,
    qps: QueuePair | Sequence[QueuePair],
    *,
    buffers: Sequence[MemoryRegion | RemoteBuffer] = (),
    data: JsonValue = None,
    options: Options | None = None,
    receives: int = 0,
    token: Token | None = None,
    allow_addresses: Sequence[str] = (),
    timeout: float = 10.0,
) -> Peer:
    """Connects queue pairs to those of a peer that listens; both ends are in RTS when it returns.

    Args:
        host: Name or address of the peer, for TCP.
        port: Its TCP port.
        qps: One queue pair or several, in RESET or INIT, all of one context.
        buffers: What the peer may write, all of it or parts (:meth:`MemoryRegion.remote`).
        data: Anything that JSON can carry, for the peer; with the rest at most 4 MiB.
        options: What this end offers.
        receives: Receives to post on each queue pair before the peer can send; an immediate that finds none
            is an error in MRC.
        token: As :func:`listen`: both ends have the same, or none.
        allow_addresses: As :func:`listen`.
        timeout: Seconds for all of it, the peer's start included.

    Raises:
        ConnectError: if the peer cannot be reached or does not answer in time, speaks another version or
            another protocol, has another token, offers addresses that are not its own, has another number of
            queue pairs, or refuses; the message says which.
        StateError, ArgumentError: if the queue pairs here cannot be connected so; the peer is notified.

    After an error, queue pairs that were taken out of RESET are back there.
    """
    end = End(_as_list(qps), buffers=buffers, data=data, options=options, receives=receives)
    deadline = time.monotonic() + timeout
    hint = "is the other end listening?"
    rule = AddressRule(allow_addresses)
    channel = dial(PROTOCOL, host, port, hint, token=token, patience=timeout, timeout=timeout)
    try:
        with handshake.calling(
            channel,
            end.context,
            path_mtu=end.options.path_mtu,
            addresses=rule,
            timeout=max(0.1, deadline - time.monotonic()),
        ) as calling:
            calling.accept(end)
    except BaseException:
        channel.close()
        raise
    return Peer(channel, calling.offer)


def _as_list(qps: QueuePair | Sequence[QueuePair]) -> list[QueuePair]:
    return [qps] if isinstance(qps, QueuePair) else list(qps)


__all__ = ["DEFAULT_PORT", "PROTOCOL", "Listener", "Options", "Peer", "Token", "connect", "listen"]
