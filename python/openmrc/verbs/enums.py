"""The enumerations of verbs, with ibverbs' names and numbers without their prefixes.

What ibverbs has and MRC has not (READ, SEND, atomics, shared receive queues) is not here.
"""

import enum


class QpState(enum.IntEnum):
    """Where a queue pair is in its life (``ibv_qp_state``)."""

    RESET = 0
    """Just made, or reset: nothing can be posted."""
    INIT = 1
    """Receives can be posted."""
    RTR = 2
    """Ready to receive."""
    RTS = 3
    """Ready to send as well."""
    ERROR = 6
    """Broken, or closed on purpose: what is outstanding completes with WR_FLUSH_ERR."""


class WcStatus(enum.IntEnum):
    """How a work request ended (``ibv_wc_status``)."""

    SUCCESS = 0
    """Done; for a send: the peer has acknowledged all of it."""
    LOC_LEN_ERR = 1
    """The message is longer than the queue pair can send."""
    LOC_PROT_ERR = 4
    """A scatter list names memory that is not registered (any more) in the queue pair's protection domain."""
    WR_FLUSH_ERR = 5
    """Not executed: the queue pair went to ERROR before."""
    REM_INV_REQ_ERR = 9
    """The peer did not understand the request."""
    REM_ACCESS_ERR = 10
    """The peer's memory refused the write: key, bounds, access rights or protection domain."""
    REM_OP_ERR = 11
    """The peer could not execute it: no receive posted, or too many immediates in flight."""
    RETRY_EXC_ERR = 12
    """The peer did not answer on any path until the retries ended."""


class WcOpcode(enum.IntEnum):
    """What kind of work ended (``ibv_wc_opcode``)."""

    RDMA_WRITE = 1
    """A send, with immediate or without."""
    RECV_RDMA_WITH_IMM = 129
    """A receive: a peer's write with immediate, and every write before it, has arrived."""


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
    """Raise a completion. Sends that fail raise one in any case."""
    SOLICITED = 4
    """Ask for a solicited event at the peer."""
    INLINE = 8
    """The data are bytes-like objects, copied while posting: they need no registration and may change at
    once."""


class AccessFlags(enum.IntFlag):
    """What may be done with a memory region (``ibv_access_flags``). This side may always read."""

    NONE = 0
    LOCAL_WRITE = 1
    """Writing by this side; REMOTE_WRITE needs it."""
    REMOTE_WRITE = 2
    """Writing by the peers of queue pairs in the region's protection domain."""


class Capabilities(enum.IntFlag):
    """Optional behaviour of a queue pair, on only where both ends have it."""

    NONE = 0
    TRIM_NACK = 1
    """Trimmed packets are answered with a NACK."""
    DYNAMIC_MPR = 2
    """The responder may change the in-flight window it grants as it goes."""
    SERVICE_TIME = 4
    """The responder takes its own time out of the timestamps it reflects."""
    ALL = 7


class AsyncEventType(enum.StrEnum):
    """What an asynchronous event is about (``ibv_event_type``)."""

    PORT_ACTIVE = "port_active"
    """A port came up."""
    PORT_ERR = "port_err"
    """A port went down."""
    PEER_PORTS = "peer_ports"
    """A peer's ports changed; MRC's own, from a port status update."""
    QP_FATAL = "qp_fatal"
    """A queue pair went to ERROR by itself."""
    CQ_ERR = "cq_err"
    """A completion queue overran; its queue pairs are in ERROR."""


class EvState(enum.StrEnum):
    """What a queue pair believes of a path (spec: paths, EV set)."""

    GOOD = "good"
    """In rotation, or ready in reserve."""
    SKIP = "skip"
    """Congested: misses one turn."""
    ASSUMED_BAD = "assumed_bad"
    """Believed broken: out of rotation, and probed."""
    DENIED = "denied"
    """Switched off by the controller."""
