"""One end of a connection that is being made: what it offers, and how its queue pairs reach RTS."""

import contextlib
import errno
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from pydantic import JsonValue, ValidationError

from openmrc import _core
from openmrc.control.messages import problem
from openmrc.errors import ArgumentError, ConnectError, DeviceError, Error
from openmrc.handshake.messages import Accept, Buffer, Located, Offer, QpEnd
from openmrc.planes import path_mtu
from openmrc.printable import printable
from openmrc.verbs import (
    Capabilities,
    Context,
    MemoryRegion,
    QpAttr,
    QpState,
    QueuePair,
    RemoteBuffer,
    SocketAddress,
)
from openmrc.wire import EvFormat

_SRV6 = {EvFormat.SRV6, EvFormat.SRV6_SRH}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one end offers; names and units as in :class:`QpAttr`. ``None``: the NIC's default.

    Both ends use the smaller of two offered values, and a path MTU that the routes of both carry. The others
    concern this end only.
    """

    path_mtu: int | None = None
    mpr: int | None = None
    mpr_dest: int | None = None
    max_wimm: int | None = None
    max_wimm_dest: int | None = None
    caps: Capabilities = Capabilities.ALL
    """SERVICE_TIME is offered only by a device with ``svc_time``."""
    timeout: int | None = None
    linear_cnt: int | None = None
    exp_cnt: int | None = None
    keepalive_ms: int | None = None
    ev_profile_id: int | None = None
    cc_profile_id: int | None = None
    seed: int | None = None

    def offered(self, name: str) -> int:
        """What is offered for a field: its value, or the NIC's default."""
        value = getattr(self, name)
        return _core.QP_DEFAULTS[name] if value is None else value


class End:
    """This end of a connection that is being made: its queue pairs, and what the peer may know of them.

    Args:
        qps: Queue pairs in RESET or INIT, all of one context.
        buffers: What the peer may write.
        data: What the protocol adds.
        options: What this end offers.
        receives: Receives to post on each queue pair before the peer can send.

    Raises:
        ArgumentError: if there is no queue pair, they are of several contexts, or an option is out of range.
    """

    def __init__(
        self,
        qps: Sequence[QueuePair],
        *,
        buffers: Sequence[MemoryRegion | RemoteBuffer] = (),
        data: JsonValue = None,
        options: Options | None = None,
        receives: int = 0,
    ) -> None:
        if not qps:
            raise ArgumentError("connecting needs at least one queue pair")
        self.context = qps[0].context
        if any(qp.context is not self.context for qp in qps):
            raise ArgumentError("the queue pairs of one connection must belong to one context")
        self.qps = list(qps)
        self.options = options or Options()
        self._receives = receives
        self._touched: list[QueuePair] = []
        regions = [buffer.remote() if isinstance(buffer, MemoryRegion) else buffer for buffer in buffers]
        try:
            self._offer = Offer(
                addresses=list(self.context.addresses),
                ev_format=self.context.device.ev_format,
                path_mtu=self.options.offered("path_mtu"),
                device=self.context.device.name,
                qps=[self._describe(qp) for qp in self.qps],
                buffers=[Buffer(addr=b.addr, length=b.length, rkey=b.rkey) for b in regions],
                data=data,
            )
        except ValidationError as error:
            raise ArgumentError(f"this end cannot offer that: {problem(error)}") from error

    def offer(self) -> Offer:
        """What the listener sends."""
        return self._offer

    def accept(self) -> Accept:
        """What the caller sends."""
        return Accept.model_validate(self._offer.model_dump(exclude={"type"}))

    def limit_path_mtu(self, theirs: Located) -> None:
        """Lowers what is offered to what the peer can use and the routes to it carry.

        Raises:
            DeviceError: if there is no route, or it carries less than 256 bytes of payload.
        """
        largest = min(self._offer.path_mtu, theirs.path_mtu)
        if self.context.device.ev_format not in _SRV6:  # There, the user of the source routes asks for them.
            largest = _carried(self.context.addresses, theirs.addresses, largest)
        self._offer = self._offer.model_copy(update={"path_mtu": largest})

    def connect(self, theirs: Offer | Accept) -> None:
        """Takes every queue pair to RTS; after an error, those it has touched are in RESET.

        Raises:
            ConnectError: if the peer has another number of queue pairs, or a device of another kind.
            StateError, ArgumentError: if a queue pair cannot be connected.
        """
        mine = self._offer
        if len(mine.qps) != len(theirs.qps):
            raise ConnectError(
                f"{printable(theirs.device)} has {len(theirs.qps)} queue pairs, this end has {len(mine.qps)}:"
                " both must have the same number"
            )
        check_device(self.context, theirs)
        with self.reset_on_error():
            for qp, own, other in zip(self.qps, mine.qps, theirs.qps, strict=True):
                self._bring_up(qp, own, other, theirs)

    @contextlib.contextmanager
    def reset_on_error(self) -> Iterator[None]:
        """Takes the queue pairs that :meth:`connect` touched back to RESET if the block raises."""
        try:
            yield
        except BaseException:
            for qp in self._touched:
                with contextlib.suppress(Error):  # It may be closed; the first cause is the one to raise.
                    qp.modify(QpState.RESET)
            self._touched.clear()
            raise

    def prove_path_mtu(self) -> None:
        """Checks that packets of the path MTU arrive, once the peer's queue pairs are in RTR.

        Raises:
            ArgumentError: names the path MTU and the addresses that it does not reach.
        """
        self.qps[0].prove_path_mtu()

    def _describe(self, qp: QueuePair) -> QpEnd:
        offered = self.options.offered
        # As a number: the complement of a flag has no unknown bits, and those have to be refused.
        caps = int(self.options.caps)
        if not self.context.device.svc_time:
            caps &= ~int(Capabilities.SERVICE_TIME)
        mpr = offered("mpr")
        if qp.hint is not None:
            mpr = qp.hint.mpr(self.context.receive_buffer, offered("path_mtu"))
        return QpEnd(
            qp_num=qp.qp_num,
            psn=secrets.randbits(24),
            mpr=mpr,
            mpr_dest=offered("mpr_dest"),
            max_wimm=offered("max_wimm"),
            max_wimm_dest=offered("max_wimm_dest"),
            caps=caps,
        )

    def _bring_up(self, qp: QueuePair, own: QpEnd, other: QpEnd, theirs: Offer | Accept) -> None:
        options = self.options
        if qp.state is not QpState.INIT:
            qp.modify(QpState.INIT)
        self._touched.append(qp)
        if self._receives:
            qp.post_recv(self._receives)
        qp.modify(
            QpState.RTR,
            QpAttr(
                remote=theirs.addresses,
                dest_qp_num=other.qp_num,
                rq_psn=other.psn,
                path_mtu=min(self._offer.path_mtu, theirs.path_mtu),
                mpr_dest=own.mpr_dest,
                max_wimm_dest=own.max_wimm_dest,
                caps=_caps(own, other),
                ev_profile_id=options.ev_profile_id,
                cc_profile_id=options.cc_profile_id,
                seed=options.seed,
            ),
        )
        qp.modify(
            QpState.RTS,
            QpAttr(
                sq_psn=own.psn,
                mpr=min(own.mpr, other.mpr_dest),
                max_wimm=min(own.max_wimm, other.max_wimm_dest),
                timeout=options.timeout,
                linear_cnt=options.linear_cnt,
                exp_cnt=options.exp_cnt,
                keepalive_ms=options.keepalive_ms,
            ),
        )


def _carried(local: Sequence[SocketAddress], remote: Sequence[SocketAddress], largest: int) -> int:
    try:
        return path_mtu(local, remote, largest)
    except DeviceError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        # The device is in another network namespace, whose routes cannot be asked for from here.
        return largest


def _caps(own: QpEnd, other: QpEnd) -> Capabilities:
    """What the peer can do; only dynamic MPR needs both ends."""
    both = own.caps & other.caps & Capabilities.DYNAMIC_MPR
    return Capabilities(other.caps & ~Capabilities.DYNAMIC_MPR | both)


def check_device(context: Context, theirs: Located) -> None:
    """Refuses a peer whose packets this device would not understand."""
    ours, others = (ip_address(end[0][0]).version for end in (context.addresses, theirs.addresses))
    if ours != others:
        raise ConnectError(
            f"the other end has IPv{others} ports, this end IPv{ours}: both must have the same"
        )
    own = context.device.ev_format
    if own is not theirs.ev_format and not {own, theirs.ev_format} <= _SRV6:
        raise ConnectError(
            f"the other end has entropy values of format {theirs.ev_format.value}, this end {own.value}:"
            " both must have the same"
        )
