"""An open device: the engine thread, and the parent of everything made on it."""

import contextlib
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from openmrc import _core
from openmrc.closing import Closable
from openmrc.errors import ArgumentError, ClosedError
from openmrc.observe.publication import publish_if_wanted
from openmrc.observe.schema import ContextStats, PathStats
from openmrc.verbs.attr import QpHint
from openmrc.verbs.comp_channel import CompletionChannel
from openmrc.verbs.cq import CompletionQueue
from openmrc.verbs.events import AsyncEvent, AsyncEvents, EventQueue, EvEvent, EvEvents
from openmrc.verbs.hint import SharedQpHint
from openmrc.verbs.limits import DeviceAttr
from openmrc.verbs.pd import ProtectionDomain

# An import circle, for type checkers only: what is made on a context, a domain or a queue names its maker, as
# the structures of ibverbs do. When the program runs, only the maker imports what it makes.
if TYPE_CHECKING:
    from openmrc.verbs.attr import SocketAddress
    from openmrc.verbs.device import Device


class Context(Closable):
    """An open device (``ibv_context``); made by :meth:`Device.open`.

    It owns a thread, the engine, which sends and receives for all queue pairs. The engine never holds the
    GIL, and it sleeps when there is nothing to do. Closing the context, or leaving its ``with`` block, closes
    every object made on it, also while data are in flight. In the child of a fork it is closed, with all that
    was made on it: the child opens a device of its own.
    """

    def __init__(self, device: "Device") -> None:
        self.device = device
        self._core: _core.Context = device._core.open()
        self._srv6_peers: set[tuple[SocketAddress, ...]] = set()
        self._pds: set[ProtectionDomain] = set()
        self._cqs: set[CompletionQueue] = set()
        self._channels: set[CompletionChannel] = set()
        self._hints: set[SharedQpHint] = set()
        self.async_events: EventQueue[AsyncEvent] = AsyncEvents(self._core)
        """Asynchronous events (``ibv_get_async_event``)."""
        self.ev_events: EventQueue[EvEvent] = EvEvents(self._core)
        """Every path condemned or brought back, of all queue pairs; a controller filters them by profile."""
        # A program that ends without closing must still stop its engine before memory is freed.
        self._finalizer = weakref.finalize(self, self._core.close)
        self._publication = publish_if_wanted(self)

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._core.closed

    @property
    def name(self) -> str:
        """Name of the device."""
        return self.device.name

    @property
    def addresses(self) -> "list[SocketAddress]":
        """Where peers reach it, by port: their queue pairs' ``remote`` attribute."""
        return self.device.addresses

    @property
    def receive_buffer(self) -> int:
        """Bytes of the receive buffers of all ports, as granted by the kernel."""
        return self._core.receive_buffer

    def alloc_pd(self) -> ProtectionDomain:
        """A protection domain (``ibv_alloc_pd``).

        Raises:
            ClosedError: if the context is closed.
        """
        pd = ProtectionDomain(self, self._core.alloc_pd())
        self._pds.add(pd)
        return pd

    def create_cq(
        self,
        cqe: int = 1024,
        *,
        channel: CompletionChannel | None = None,
        comp_vector: int = 0,
        cq_context: Any = None,
    ) -> CompletionQueue:
        """A completion queue that holds ``cqe`` completions, 1 to 4194304 (``ibv_create_cq``).

        Args:
            cqe: Number of completions.
            channel: Where its events come; its own descriptor if not given.
            comp_vector: Less than :attr:`DeviceAttr.num_comp_vectors`.
            cq_context: Anything; kept as :attr:`CompletionQueue.cq_context`.

        Raises:
            ArgumentError: if a number is out of range, or the channel is of another context.
            DeviceError: if descriptors have run out.
            ClosedError: if the context or the channel is closed.
        """
        vectors = self.query_device().num_comp_vectors
        if not 0 <= comp_vector < vectors:
            raise ArgumentError(f"comp_vector is {comp_vector}: 0 to {vectors - 1} is allowed")
        if channel is not None and channel.context is not self:
            raise ArgumentError("the completion channel belongs to another context")
        cq = CompletionQueue(self, self._core.create_cq(cqe), channel, cq_context)
        if channel is not None:
            channel._add(cq)
        self._cqs.add(cq)
        return cq

    def create_comp_channel(self) -> CompletionChannel:
        """A completion channel (``ibv_create_comp_channel``).

        Raises:
            ClosedError: if the context is closed.
        """
        self._check_open()
        channel = CompletionChannel(self)
        self._channels.add(channel)
        return channel

    def create_qp_hint(self, hint: QpHint | None = None, *, vendor_cfg: bytes = b"") -> SharedQpHint:
        """A hint that several queue pairs share and that can be changed (``mrc_create_qp_hint``).

        Args:
            hint: What it says at first.
            vendor_cfg: At most 128 bytes, which are ignored.

        Raises:
            ArgumentError: if ``vendor_cfg`` is longer.
            StateError: if the context has 16384 hints.
            ClosedError: if the context is closed.
        """
        self._check_open()
        return SharedQpHint(self, hint or QpHint(), vendor_cfg)

    def query_device(self) -> DeviceAttr:
        """What the device offers (``mrc_query_device``, ``ibv_query_device``)."""
        most = self.device.max_qps
        ports = len(self.device.ports)
        return DeviceAttr(num_ports=ports) if most is None else DeviceAttr(num_ports=ports, max_qp=most)

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("the context is closed")

    @contextlib.contextmanager
    def polling(self) -> Iterator[None]:
        """In the block, polling threads drive the engine instead of its own thread: lowest latency.

        Nothing is sent or received unless a thread keeps calling :meth:`CompletionQueue.poll` or
        :meth:`progress`.
        """
        guard = self._core.polling()
        try:
            yield
        finally:
            guard.close()

    def progress(self) -> None:
        """Runs one turn of the engine in this thread, if inside :meth:`polling`."""
        self._core.progress()

    def ports_up(self) -> list[int]:
        """Ports that are up: enabled, with their address on an interface that is running.

        Raises:
            ClosedError: if the context is closed.
        """
        return self._core.ports_up()

    def stats(self) -> ContextStats:
        """All counters of the NIC; they only grow.

        Raises:
            ClosedError: if the context is closed.
        """
        return self._core.stats()

    def path_stats(self) -> list[PathStats]:
        """Counters per path. In SRv6 mode an entropy value names a different path to each peer.

        Raises:
            ClosedError: if the context is closed.
        """
        return self._core.path_stats()

    @property
    def srv6(self) -> bool:
        """Whether it builds SRv6 frames."""
        return self.device.is_srv6

    def path_states(self) -> list[tuple[int, list[str], list[tuple[int, int, str]]]]:
        """What the queue pairs believe of their paths.

        Returns:
            For each connected queue pair its number, the peer's addresses by port, and port, entropy value
            and state (:class:`openmrc.verbs.EvState`) of every path.
        """
        found = []
        for qp in [qp for pd in list(self._pds) for qp in list(pd._qps)]:
            with contextlib.suppress(ClosedError):  # Closed since it was listed.
                states, remote = qp.ev_states(), qp.query().attr.remote
                if states and remote:
                    rows = [(port, ev, str(state)) for port, ev, state in states]
                    found.append((qp.qp_num, [address for address, _ in remote], rows))
        return found

    def deny_path(self, qp_num: int, port: int, ev: int, *, denied: bool) -> bool:
        """Takes a path out of a queue pair's rotation, or back; whether the queue pair has it."""
        for qp in [qp for pd in list(self._pds) for qp in list(pd._qps)]:
            with contextlib.suppress(ClosedError):
                if qp.qp_num == qp_num:
                    return qp.set_ev_denied(port, ev, denied=denied)
        return False

    def probe_paths(self, qp_num: int, paths: Sequence[tuple[int, int]], timeout: float) -> list[int | None]:
        """Sends an EV probe on each of these paths to the peer of a queue pair, and waits for answers.

        Args:
            qp_num: The queue pair.
            paths: Port and entropy value of each.
            timeout: For the answers, seconds.

        Returns:
            Round-trip times, nanoseconds, in the order of the paths; ``None``: no answer came in time.

        Raises:
            ArgumentError: if the device has no such connected queue pair, or no such path.
            ClosedError: if the context is closed.
        """
        for qp in [qp for pd in list(self._pds) for qp in list(pd._qps)]:
            with contextlib.suppress(ClosedError):
                if qp.qp_num == qp_num and (remote := qp.query().attr.remote):
                    break
        else:
            raise ArgumentError(f"queue pair {qp_num}: there is none of this number that is connected")
        return _core.Controller(self._core).ev_probe(list(remote), list(paths), timeout)

    def _know_paths_to(self, addresses: "Iterable[SocketAddress]") -> None:
        """In SRv6 mode, makes an EV profile for this node if there is none."""
        if self.device.paths_to is None or not self.device.is_srv6:
            return
        peer = tuple((addr, udp_port) for addr, udp_port in addresses)
        if peer in self._srv6_peers:
            return
        paths = self.device.paths_to(list(peer))
        _core.Controller(self._core).create_ev_profile(
            [(path.plane, path.ev) for path in paths.entries],
            active=paths.active,
            min_active=None,
            routes=[(path.address, None) for path in paths.entries],
            peer=peer,
        )
        self._srv6_peers.add(peer)

    def close(self) -> None:
        """Closes everything made on it, stops the engine and closes the sockets (``ibv_close_device``).

        Outstanding work is dropped without completions. Threads and tasks that wait for a completion or an
        event get a ClosedError. Closing twice is harmless.
        """
        if self._publication is not None:
            self._publication.close()
        for pd in list(self._pds):
            pd.close()
        for cq in list(self._cqs):
            cq.close()
        for channel in list(self._channels):
            channel.close()
        for hint in list(self._hints):
            hint.close()
        self.async_events.close()
        self.ev_events.close()
        self._finalizer()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.device.ports)} ports"
        return f"<Context of {self.device.name}, {state}>"
