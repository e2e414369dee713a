"""The enumerations of verbs, with the names and numbers of ibverbs, without the prefixes.

READ, SEND, atomics and shared receive queues are not here: MRC does not have them.
"""

import enum


class QpState(enum.IntEnum):
    """State of a queue pair (``ibv_qp_state``)."""

    RESET = 0
    """Just made, or reset: nothing can be posted."""
    INIT = 1
    """Receives can be posted."""
    RTR = 2
    """Ready to receive."""
    RTS = 3
    """Ready to send as well."""
    ERROR = 6
    """Broken, or set by the application: outstanding requests complete with WR_FLUSH_ERR."""


class WcStatus(enum.IntEnum):
    """How a work request ended (``ibv_wc_status``)."""

    SUCCESS = 0
    """Done. A send is done when the peer has acknowledged all of it."""
    LOC_LEN_ERR = 1
    """The message is longer than the queue pair can send."""
    LOC_PROT_ERR = 4
    """A scatter list names memory that is not, or no longer, registered in the queue pair's protection
    domain."""
    WR_FLUSH_ERR = 5
    """Not executed, because the queue pair went to ERROR first."""
    REM_INV_REQ_ERR = 9
    """The peer did not understand the request."""
    REM_ACCESS_ERR = 10
    """The peer's memory refused the write: key, bounds, access rights or protection domain."""
    REM_OP_ERR = 11
    """The peer could not execute it: no receive posted, or too many immediates in flight."""
    RETRY_EXC_ERR = 12
    """The peer did not answer on any path during all retries."""


class WcOpcode(enum.IntEnum):
    """Kind of a completed work request (``ibv_wc_opcode``)."""

    RDMA_WRITE = 1
    """A send, with or without an immediate."""
    RECV_RDMA_WITH_IMM = 129
    """A receive: a write with immediate of the peer, and all its writes before, have arrived."""


class WrOpcode(enum.IntEnum):
    """What a send does (``ibv_wr_opcode``)."""

    RDMA_WRITE = 0
    """Write into the peer's memory."""
    RDMA_WRITE_WITH_IMM = 1
    """Write, then complete one of the peer's receives with a 32-bit value."""


class SendFlags(enum.IntFlag):
    """How a send is executed (``ibv_send_flags``)."""

    NONE = 0
    SIGNALED = 2
    """Raise a completion. A send that fails raises one in any case."""
    SOLICITED = 4
    """Ask for a solicited event at the peer."""
    INLINE = 8
    """The data are bytes-like objects that are copied while posting. They need no registration and may change
    right after."""


class AccessFlags(enum.IntFlag):
    """Access rights of a memory region (``ibv_access_flags``). This side may always read."""

    NONE = 0
    LOCAL_WRITE = 1
    """Writing by this side; REMOTE_WRITE needs it."""
    REMOTE_WRITE = 2
    """Writing by the peers of queue pairs in the region's protection domain."""


class Capabilities(enum.IntFlag):
    """What one end can do as responder, and dynamic MPR, which both ends must enable.

    The two directions of a queue pair may differ.
    """

    NONE = 0
    TRIM_NACK = 1
    """Trimmed packets are answered with a NACK."""
    DYNAMIC_MPR = 2
    """The responder may change the in-flight window that it grants at any time."""
    SERVICE_TIME = 4
    """The responder takes its service time out of the timestamps that it reflects."""
    OVERFLOW_REPORTS = 8
    """By a penalty of 64 or more (``rcv_cwnd_pen``) the responder means that its receive buffer dropped
    packets, so that their paths are not condemned. The specification does not know this meaning: openmrc's
    handshake agrees on it."""
    ALL = 15


class AsyncEventType(enum.StrEnum):
    """Kind of an asynchronous event (``ibv_event_type``)."""

    PORT_ACTIVE = "port_active"
    """A port came up."""
    PORT_ERR = "port_err"
    """A port went down."""
    PEER_PORTS = "peer_ports"
    """A port status update of a peer arrived; MRC's own event."""
    QP_FATAL = "qp_fatal"
    """A queue pair went to ERROR because of a fault."""
    PEER_SILENT = "peer_silent"
    """The peer of a queue pair with keepalive does not answer; MRC's own event."""
    PEER_HEARD = "peer_heard"
    """A peer that was silent is heard again; MRC's own event."""
    CQ_ERR = "cq_err"
    """A completion queue overran; its queue pairs are in ERROR."""


class EvState(enum.StrEnum):
    """State of a path at a queue pair (docs/spec/paths.md, "EV set")."""

    GOOD = "good"
    """In rotation, or in reserve."""
    SKIP = "skip"
    """Congested: skipped for one turn."""
    ASSUMED_BAD = "assumed_bad"
    """Believed broken: out of rotation, and probed."""
    DENIED = "denied"
    """Disabled by the controller."""
