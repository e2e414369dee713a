"""The capacities and attributes of a queue pair."""

from collections.abc import Sequence
from dataclasses import dataclass

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.verbs.enums import AccessFlags, Capabilities, QpState

SocketAddress = tuple[str, int]
"""IP address and UDP port of one port of a device."""

MIN_PATH_MTU, MAX_PATH_MTU = _core.DEVICE_LIMITS["min_path_mtu"], _core.DEVICE_LIMITS["max_path_mtu"]
"""Payload bytes per packet (docs/spec/transport.md, "Queue pair life")."""

_MPR_UNIT = _core.DEVICE_LIMITS["psns_per_mpr"]
"""PSNs (docs/spec/transport.md, "Queue pair life")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QpCap:
    """How much a queue pair can hold (``ibv_qp_cap``). The defaults come from the NIC."""

    max_send_wr: int = _core.QP_CAP_DEFAULTS["max_send_wr"]
    """Sends outstanding, 1 to 32768."""
    max_recv_wr: int = _core.QP_CAP_DEFAULTS["max_recv_wr"]
    """Receives posted, 0 to 65536."""
    max_send_sge: int = _core.QP_CAP_DEFAULTS["max_send_sge"]
    """Pieces in a scatter list, 1 to 16."""
    max_inline_data: int = _core.QP_CAP_DEFAULTS["max_inline_data"]
    """Bytes of an inline payload, 0 to 4096."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QpAttr:
    """Attributes of a queue pair: ``ibv_qp_attr`` and those of MRC.

    Source: docs/spec/transport.md, "Queue pair life".

    ``modify`` sets those that are given.

    | step | needs | takes besides |
    |---|---|---|
    | RESET to INIT, INIT to INIT | | access, ev_profile_id, cc_profile_id, seed |
    | INIT to RTR | remote, dest_qp_num, rq_psn | path_mtu, mpr_dest, max_wimm_dest, caps, access, |
    | | | ev_profile_id, cc_profile_id, seed |
    | RTR to RTS | sq_psn | mpr, max_wimm, timeout, linear_cnt, exp_cnt, |
    | | | keepalive_ms, receive_wait_ms, dfc |
    | any to RESET or ERROR | | |

    MRC's attributes, from ``mpr`` to ``cc_profile_id`` below, may also come at an earlier step than their
    own. One that is left out keeps its default.
    """

    access: AccessFlags | None = None
    """What the peer may do, with regions that allow it too; default REMOTE_WRITE."""
    dest_qp_num: int | None = None
    """The peer's queue pair number, 24 bits."""
    rq_psn: int | None = None
    """First PSN expected, 24 bits: the peer's ``sq_psn``."""
    sq_psn: int | None = None
    """First PSN sent, 24 bits."""
    remote: Sequence[SocketAddress] | None = None
    """The peer's :attr:`Context.addresses`, one per port. The ports that both ends have are used."""
    path_mtu: int | None = None
    """Payload bytes per packet, 256 to 8192; default 4096. With all headers it must fit the interfaces'
    MTU."""
    mpr: int | None = None
    """In-flight window as requestor, units of 128 PSNs; default 8. At most the peer's ``mpr_dest``."""
    mpr_dest: int | None = None
    """In-flight window as responder, units of 128 PSNs; default 8."""
    max_wimm: int | None = None
    """Writes with immediate in flight as requestor; default 128. At most the peer's ``max_wimm_dest``."""
    max_wimm_dest: int | None = None
    """Writes with immediate in flight as responder; default 128."""
    timeout: int | None = None
    """ACK timeout: 1.024 us x 2^timeout, 0 to 24; default 14, because a process may be descheduled for
    milliseconds."""
    linear_cnt: int | None = None
    """Retries at a fixed interval, at most 7; default 7."""
    exp_cnt: int | None = None
    """Retries with doubling interval after those, at most 25, which means no end; default 9. With the other
    defaults a write fails with RETRY_EXC_ERR after 34 s without an answer, so that a peer may be stopped for
    15 s."""
    keepalive_ms: int | None = None
    """Keepalive, milliseconds; 0, the default, is off. A peer that was silent for this long is probed, even
    while nothing is under way. If it does not answer four probes, one ACK timeout apart, PEER_SILENT is
    raised, and PEER_HEARD when it is heard again. The queue pair stays in RTS; writes under way end by their
    retries. A receiver, which sends nothing, learns only so that its peer is gone."""
    receive_wait_ms: int | None = None
    """Verbs' RNR, at both ends: how many milliseconds a write with immediate waits at this end for a receive
    before it is refused; 2^32 - 1 never refuses it. With any value but 0 a peer that waits does not use up
    the retries of this end. Default 0: MRC refuses it at once, with REM_OP_ERR."""
    caps: Capabilities | None = None
    """What the peer can do as responder, and DYNAMIC_MPR if both ends enable it; default all but
    OVERFLOW_REPORTS."""
    dfc: bool | None = None
    """Destination flow control: the receiver's penalty shrinks the window; default the device's."""
    ev_profile_id: int | None = None
    """EV profile; 0, the default, is the device's own."""
    cc_profile_id: int | None = None
    """Congestion control profile; 0, the default, is the device's own."""
    seed: int | None = None
    """Seed of the order of its paths and of the jitter of its probes, 64 bits; default random."""


@dataclass(frozen=True, slots=True)
class QpInfo:
    """What :meth:`QueuePair.query` returns."""

    state: QpState
    attr: QpAttr
    """The attributes that are set."""
    cap: QpCap
    sq_sig_all: bool
    """Whether every send raises a completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QpHint:
    """The traffic that an application expects. It decides the in-flight window where none is given.

    Peers can exhaust one resource of a software NIC: the receive buffers of its sockets. Packets that
    overflow them are lost, and the sender may take that for broken paths. So the queue pairs that write to
    one host at the same time share its buffers: see :meth:`mpr`.
    """

    num_qps_per_peer: int = 1
    """Queue pairs that write to the same peer while this one does."""
    num_send_peers: int = 1
    """Peers that this side writes to at the same time."""
    num_remote_recv_peers: int = 1
    """Queue pairs, of all senders, that write to this one's peer at the same time: the incast it sees."""

    def __post_init__(self) -> None:
        for name in ("num_qps_per_peer", "num_send_peers", "num_remote_recv_peers"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ArgumentError(f"{name} must be a number of at least 1, not {value!r}")

    def mpr(self, receive_buffer: int, path_mtu: int) -> int:
        """The window as requestor, 1 to 8 times 128 PSNs, that fits the peer's receive buffers.

        Args:
            receive_buffer: Bytes that all sockets of the peer can queue.
            path_mtu: Payload bytes per packet.
        """
        # The kernel accounts a packet at up to twice its size (skb truesize).
        sharing = max(self.num_remote_recv_peers, self.num_qps_per_peer)
        return max(1, min(_core.QP_DEFAULTS["mpr"], receive_buffer // (2 * sharing * _MPR_UNIT * path_mtu)))
