"""Queue pairs: states, attributes, work requests."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from openmrc import _core
from openmrc.closing import Closable
from openmrc.errors import ArgumentError
from openmrc.verbs.attr import QpAttr, QpCap, QpHint, QpInfo
from openmrc.verbs.enums import AccessFlags, Capabilities, EvState, QpState, SendFlags
from openmrc.verbs.hint import SharedQpHint, check_vendor_cfg
from openmrc.verbs.memory import MemoryRegion
from openmrc.verbs.work import RecvWR, RemoteBuffer, SendWR, Sge, part

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from openmrc.verbs.cq import CompletionQueue
    from openmrc.verbs.pd import ProtectionDomain

Offsets = int | Sequence[int]
"""One number for all writes, or a sequence with one per write; a NumPy array of int64 is read without making
Python numbers."""


class QueuePair(Closable):
    """A queue pair (``ibv_qp``); made by :meth:`ProtectionDomain.create_qp`.

    :mod:`openmrc.connect` connects two. Alternatively, exchange :attr:`qp_num`, a PSN per direction and
    :attr:`Context.addresses` by other means, and call :meth:`modify` three times at each end. Several threads
    may call the methods.
    """

    def __init__(
        self,
        pd: "ProtectionDomain",
        send_cq: "CompletionQueue",
        recv_cq: "CompletionQueue",
        cap: QpCap,
        *,
        sq_sig_all: bool,
        hint: QpHint | SharedQpHint | None,
    ) -> None:
        self.pd = pd
        self.context = pd.context
        self.send_cq = send_cq
        self.recv_cq = recv_cq
        self._hint = hint
        if isinstance(hint, SharedQpHint):
            hint.query()  # It must be open.
            if hint.context is not pd.context:
                raise ArgumentError("the hint belongs to another context")
        for cq in (send_cq, recv_cq):
            if cq.context is not pd.context:
                raise ArgumentError(f"completion queue {cq.handle} belongs to another context")
            cq._check_open()
        self._core = pd._core.create_qp(send_cq._core, recv_cq._core, cap, sq_sig_all)
        pd._qps.add(self)
        if isinstance(hint, SharedQpHint):
            hint._qps.add(self)

    @property
    def hint(self) -> QpHint | None:
        """What traffic is expected, at present."""
        return self._hint.query() if isinstance(self._hint, SharedQpHint) else self._hint

    @property
    def qp_num(self) -> int:
        """Its number, 24 bits: the peer's ``dest_qp_num``."""
        return self._core.qp_num

    @property
    def state(self) -> QpState:
        """Its state."""
        return QpState(self._core.state)

    @property
    def cap(self) -> QpCap:
        """Its capacities."""
        return QpCap(**self._core.cap)

    @property
    def send_outstanding(self) -> int:
        """Sends that have not completed; at most ``cap.max_send_wr``."""
        return self._core.send_outstanding

    @property
    def silent_for(self) -> float | None:
        """Seconds since PEER_SILENT was raised; ``None`` while the peer is heard."""
        return self._core.silent_for

    def modify(
        self, state: QpState, attr: QpAttr | None = None, *, vendor_cfg: bytes = b"", **attributes: Any
    ) -> None:
        """Takes it to another state, with the attributes that the step needs (``ibv_modify_qp``).

        The attributes are those of :class:`QpAttr`, as an object, as keywords, or both. To ERROR: outstanding
        requests are flushed. To RESET: they are dropped without completions. ``vendor_cfg`` must be all 0, at
        most 128 bytes.

        Raises:
            StateError: if the step does not exist, lacks an attribute, or does not take one of those given;
                then nothing has changed.
            ArgumentError: if a value is out of range; then nothing has changed.
            UnsupportedError: if ``vendor_cfg`` is not all 0; then nothing has changed.
            ClosedError: if the queue pair is closed.
        """
        check_vendor_cfg(vendor_cfg)
        try:
            attr = dataclasses.replace(attr or QpAttr(), **attributes)
        except TypeError as error:
            names = {field.name for field in dataclasses.fields(QpAttr)}
            unknown = ", ".join(sorted(attributes.keys() - names))
            raise ArgumentError(
                f"a queue pair has no attribute {unknown}; it has {', '.join(sorted(names))}"
            ) from error
        if state == QpState.RTS and attr.mpr is None and self.hint is not None:
            path_mtu = self.query().attr.path_mtu or _core.QP_DEFAULTS["path_mtu"]
            attr = dataclasses.replace(attr, mpr=self.hint.mpr(self.context.receive_buffer, path_mtu))
        if state == QpState.RTR and attr.ev_profile_id is None and attr.remote is not None:
            self.context._know_paths_to(attr.remote)
        self._core.modify(int(state), attr)

    def query(self) -> QpInfo:
        """State, attributes that are set, and capacities (``ibv_query_qp``).

        Raises:
            ClosedError: if it is closed.
        """
        info = self._core.query()
        attr = info["attr"]
        if attr["access"] is not None:
            attr["access"] = AccessFlags(attr["access"])
        if attr["caps"] is not None:
            attr["caps"] = Capabilities(attr["caps"])
        return QpInfo(QpState(info["state"]), QpAttr(**attr), QpCap(**info["cap"]), info["sq_sig_all"])

    def post_send(self, requests: SendWR | Iterable[SendWR]) -> None:
        """Posts sends, all of them or none (``ibv_post_send``).

        Needs RTS. In ERROR they are accepted and complete with WR_FLUSH_ERR. A scatter list that names memory
        without permission does not fail here; it completes with LOC_PROT_ERR, as in ibverbs.

        Raises:
            StateError: in any other state.
            QueueFullError: if the send queue has no room for all of them.
            ArgumentError: if a request is too long, has too many pieces, or has a number out of range.
            ClosedError: if the queue pair is closed.
        """
        self._core.post_send([requests] if isinstance(requests, SendWR) else list(requests))

    def post_recv(self, requests: RecvWR | Iterable[RecvWR] | int) -> None:
        """Posts receives, all of them or none (``ibv_post_recv``). Needs INIT, RTR or RTS.

        Args:
            requests: Work requests, or a number of receives with ``wr_id`` 0.

        Raises:
            StateError, QueueFullError, ClosedError: as :meth:`post_send`.
        """
        if isinstance(requests, int):
            self._core.post_recv_many(requests)
        else:
            self._core.post_recv([requests] if isinstance(requests, RecvWR) else list(requests))

    def write(
        self,
        source: "MemoryRegion | Sge | Buffer",
        remote: RemoteBuffer,
        *,
        imm_data: int | None = None,
        wr_id: int = 0,
        send_flags: SendFlags = SendFlags.SIGNALED,
    ) -> None:
        """Posts one write of the whole ``source`` to the beginning of ``remote``.

        Args:
            source: A region, a piece of one (:meth:`MemoryRegion.sge`), or bytes, which are copied (inline).
            remote: The destination; :meth:`RemoteBuffer.at` selects a part of a buffer.
            imm_data: Value for a receive of the peer.
            wr_id: Returned in the completion.
            send_flags: INLINE is added for bytes.

        Raises:
            ArgumentError: if ``source`` does not fit ``remote``, or for inline data longer than the queue
                pair takes.
            StateError, QueueFullError, ClosedError: as :meth:`post_send`.
        """
        if isinstance(source, MemoryRegion):
            source = source.sge()
        if isinstance(source, Sge):
            length = source.length
        else:
            length = memoryview(source).nbytes
            send_flags |= SendFlags.INLINE
        part(f"remote buffer 0x{remote.rkey:08x}", remote.length, 0, length)
        self.post_send(
            SendWR(
                sg_list=(source,),
                remote_addr=remote.addr,
                rkey=remote.rkey,
                imm_data=imm_data,
                wr_id=wr_id,
                send_flags=send_flags,
            )
        )

    def post_writes(
        self,
        source: MemoryRegion,
        remote: RemoteBuffer,
        *,
        length: Offsets,
        count: int | None = None,
        offset: Offsets = 0,
        remote_offset: Offsets = 0,
        stride: int = 0,
        remote_stride: int = 0,
        wr_id: int = 0,
        signal_every: int | None = None,
    ) -> int:
        """Posts many writes in one call, without a Python object for each; returns their number.

        Write ``i`` copies ``length`` bytes from ``offset + i * stride`` in the region to ``remote_offset + i
        * remote_stride`` in the remote buffer and has ``wr_id + i``. All are posted or none.

        Args:
            source: Where the bytes come from.
            remote: Where they go.
            length: Bytes of each write, one number or one per write.
            count: Number of writes; needed if ``length`` and the offsets are single numbers.
            offset: Beginning of the first write, or of each, in ``source``.
            remote_offset: The same in ``remote``.
            stride: Distance between the beginnings of two writes in ``source``; 0: all write the same bytes.
            remote_stride: The same in ``remote``.
            wr_id: Of the first write.
            signal_every: One write in this many raises a completion; 1: every write; ``None``: only the last.
                The last always raises one: it says that all are done.

        Raises:
            ArgumentError: if a write exceeds ``source`` or ``remote``, or sequences differ in length.
            ClosedError: if the region or the queue pair is closed.
            StateError, QueueFullError: as :meth:`post_send`.
        """
        source._check_open()
        return self._core.post_writes(
            source._core,
            (remote.addr, remote.length, remote.rkey),
            length=length,
            count=count,
            offset=offset,
            remote_offset=remote_offset,
            stride=stride,
            remote_stride=remote_stride,
            wr_id=wr_id,
            signal_every=signal_every,
        )

    def stats(self) -> dict[str, int]:
        """Counters of the transport by name; zero before RTR. Times in nanoseconds, sizes in bytes.

        Raises:
            ClosedError: if it is closed.
        """
        return self._core.stats()

    def ev_states(self) -> list[tuple[int, int, EvState]]:
        """Port, entropy value and state of every path that it may use; empty before RTR.

        Raises:
            ClosedError: if it is closed.
        """
        return [(port, ev, EvState(state)) for port, ev, state in self._core.ev_states()]

    def set_ev_denied(self, port: int, ev: int, *, denied: bool) -> bool:
        """Takes a path out of this queue pair's rotation, or back; whatever its EV profile says.

        Args:
            port: Of the path.
            ev: Its entropy value.
            denied: Whether it must not be used.

        Returns:
            Whether the queue pair has the path.

        Raises:
            ClosedError: if it is closed.
        """
        return self._core.set_ev_denied(port, ev, denied)

    def prove_path_mtu(self) -> None:
        """Proves that packets of the path MTU reach the peer on every port, before anything was sent.

        Takes a round trip, and up to a second where a port does not answer. A port on which nothing is
        answered is not counted: it is down, whatever the MTU. ICMP messages are not believed.

        Raises:
            ArgumentError: names the path MTU and the addresses that only shorter packets reach.
            StateError: if it is not in RTS.
            ClosedError: if it is closed.
        """
        self._core.prove_path_mtu()

    def ports_up(self) -> list[int]:
        """Ports in use: up here, up at the peer as far as this end knows, with an address at both ends.

        Raises:
            ClosedError: if it is closed.
        """
        return self._core.ports_up()

    def close(self) -> None:
        """Closes it (``ibv_destroy_qp``); outstanding requests are dropped without completions."""
        self._core.close()
        self.pd._qps.discard(self)
        if isinstance(self._hint, SharedQpHint):
            self._hint._qps.discard(self)

    def __repr__(self) -> str:
        return f"<QueuePair 0x{self.qp_num:06x} in {self.state.name}>"
