"""The extension headers after the BTH, for each kind of packet."""

import enum
from typing import Any, ClassVar

from openmrc.wire.value import (
    I16,
    U4,
    U7,
    U8,
    U15,
    U16,
    U24,
    U32,
    Hex8,
    Hex16,
    Hex32,
    Hex64,
    Value,
    header,
)


class Position(enum.StrEnum):
    """The part of its message that a data packet carries."""

    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"
    ONLY = "only"


class Mark(enum.StrEnum):
    """The state of the path of the packet that triggered a SACK (SETH.m)."""

    NONE = "none"
    SKIP_ONCE = "skip_once"
    """The packet was ECN-marked."""
    ALWAYS_SKIP = "always_skip"
    """The path is to be given up."""


class NackReason(enum.StrEnum):
    """Why a packet was refused (NETH.reason)."""

    TRIMMED = "trimmed"
    TRIMMED_LAST_HOP = "trimmed_last_hop"
    NO_BITMAP = "no_bitmap"
    NO_PKT_BUFFER = "no_pkt_buffer"
    NO_RESOURCE = "no_resource"
    PSN_OOR_WINDOW = "psn_oor_window"
    UNEXPECTED_EVENT = "unexpected_event"


class EndpointOp(enum.StrEnum):
    """The kind of an endpoint request."""

    PORT_STATUS_UPDATE = "port_status_update"
    EV_PROBE = "ev_probe"


@header
class Timestamp(Value):
    """A transmit timestamp of 16 bits; it wraps every 8.4 ms, and only its sender interprets it."""

    ticks: U16 = 0
    tsr: bool = False
    """Timestamp resolution: false is 128 ns, true is defined by the sender's implementation."""


@header
class Write(Value):
    """MRC RDMA WRITE: METH, TSETH if there is a timestamp, RETH, ImmDt."""

    kind: ClassVar[str] = "Write"

    position: Position = Position.ONLY
    rqmsn: U16 = 0
    msn: U16 = 0
    timestamp: Timestamp | None = None
    va: Hex64 = 0
    """Virtual address of this packet's first byte."""
    rkey: Hex32 = 0
    dma_len: U32 = 0
    """Bytes of the whole message."""
    imm: Hex32 | None = None
    """Only on LAST and ONLY."""

    @property
    def name(self) -> str:
        """Name of the opcode."""
        return f"WRITE_{self.position.name}" + ("_IMM" if self.imm is not None else "")

    def summary(self) -> str:
        """The important fields as a short text."""
        text = f"msn {self.msn}" + (
            f" rqmsn {self.rqmsn} imm 0x{self.imm:08x}" if self.imm is not None else ""
        )
        return f"{text} va 0x{self.va:x} dma_len {self.dma_len}"


@header
class RcWrite(Value):
    """RoCEv2 RC RDMA WRITE: RETH on FIRST and ONLY, ImmDt."""

    kind: ClassVar[str] = "RcWrite"

    position: Position = Position.ONLY
    va: Hex64 = 0
    rkey: Hex32 = 0
    dma_len: U32 = 0
    imm: Hex32 | None = None

    @property
    def name(self) -> str:
        """Name of the opcode."""
        return f"RC_WRITE_{self.position.name}" + ("_IMM" if self.imm is not None else "")

    def summary(self) -> str:
        """The important fields as a short text."""
        text = f"imm 0x{self.imm:08x} " if self.imm is not None else ""
        if self.position in (Position.FIRST, Position.ONLY):
            text += f"va 0x{self.va:x} dma_len {self.dma_len}"
        return text.strip()


@header
class _Aeth(Value):
    """AETH: transport ACK or NAK."""

    kind: ClassVar[str]

    syndrome: Hex8 = 0x1F
    msn: U24 = 0

    def summary(self) -> str:
        """The important fields as a short text."""
        known = {
            0x60: "NAK PSN sequence error",
            0x61: "NAK invalid request",
            0x62: "NAK remote access error",
            0x63: "NAK remote operational error",
            0x65: "NAK in-flight WriteImm limit exceeded",
        }
        verdict = (
            "ACK" if self.syndrome < 0x20 else known.get(self.syndrome, f"syndrome 0x{self.syndrome:02x}")
        )
        return f"msn {self.msn} {verdict}"


@header
class Ack(_Aeth):
    """MRC RDMA transport ACK or NAK."""

    kind: ClassVar[str] = "Ack"
    name: ClassVar[str] = "ACK"


@header
class RcAck(_Aeth):
    """RoCEv2 RC acknowledge."""

    kind: ClassVar[str] = "RcAck"
    name: ClassVar[str] = "RC_ACK"


@header
class CcState(Value):
    """CC_STATE of a SACK (NSCC)."""

    timestamp: U16 = 0
    ooo_count: U15 = 0
    """Packets received above the cumulative point."""
    restore_cwnd: bool = False
    rcv_cwnd_pen: U7 = 0
    rcvd_bytes: U24 = 0
    """Units of 256 bytes."""


@header
class Sack(Value):
    """MRC reliability SACK: SETH and CC_STATE."""

    kind: ClassVar[str] = "Sack"
    name: ClassVar[str] = "SACK"

    mark: Mark = Mark.NONE
    probe_reply: bool = False
    ack_psn_offset: I16 = 0
    """Distance from cack_psn to the PSN that triggered this SACK; the probe id if ``probe_reply``."""
    entropy: Hex32 = 0
    """The triggering packet's EV, reflected."""
    spdcid: Hex16 = 0
    dpdcid: Hex16 = 0
    cack_psn: U24 = 0
    cc_type: U4 = 0
    """0 is NSCC; with another ``cc`` has no known meaning."""
    cc_flags: U4 = 0
    mpr: U8 = 0
    """Units of 128 PSNs; 0 without Dynamic MPR."""
    sack_offset: I16 = 0
    bitmap: Hex64 = 0
    """Bit i: PSN cack_psn + sack_offset + i has arrived."""
    cc: CcState = CcState()

    def summary(self) -> str:
        """The important fields as a short text."""
        about = f"probe {self.ack_psn_offset & 0xFFFF}" if self.probe_reply else f"ack {self.acked_psn}"
        text = f"cack {self.cack_psn} {about}"
        if self.bitmap:
            base = (self.cack_psn + self.sack_offset) & 0xFFFFFF
            text += f" sack {base}+0x{self.bitmap:x}"
        if self.mark is not Mark.NONE:
            text += f" {self.mark.name}"
        return f"{text} ev 0x{self.entropy:x}"

    @property
    def acked_psn(self) -> int:
        """The PSN that triggered this SACK; meaningless if ``probe_reply``."""
        return (self.cack_psn + self.ack_psn_offset) & 0xFFFFFF


@header
class Nack(Value):
    """MRC reliability NACK: NETH."""

    kind: ClassVar[str] = "Nack"
    name: ClassVar[str] = "NACK"

    reason: NackReason
    vendor_info: Hex8 = 0
    entropy: Hex32 = 0
    spdcid: Hex16 = 0
    dpdcid: Hex16 = 0
    nack_psn: U24 = 0
    cc_flags: U4 = 0
    timestamp: U16 = 0

    def summary(self) -> str:
        """The important fields as a short text."""
        return f"refuses {self.nack_psn} {self.reason.name} ev 0x{self.entropy:x}"


@header
class Probe(Value):
    """MRC reliability probe request: PETH."""

    kind: ClassVar[str] = "Probe"
    name: ClassVar[str] = "PROBE"

    vendor_info: Hex8 = 0
    probe_id: U16 = 0
    spdcid: Hex16 = 0
    dpdcid: Hex16 = 0
    timestamp: Timestamp = Timestamp()

    def summary(self) -> str:
        """The important fields as a short text."""
        return f"probe {self.probe_id}"


@header
class EndpointRequest(Value):
    """MRC endpoint request: ERTH. The request id is the packet's PSN."""

    kind: ClassVar[str] = "EndpointRequest"
    name: ClassVar[str] = "ENDPOINT_REQUEST"

    op: EndpointOp = EndpointOp.EV_PROBE
    vendor_info: Hex8 = 0
    port_status_mask: Hex32 = 0
    """Bit p: port p+1 is up."""
    timestamp: Timestamp = Timestamp()

    def summary(self) -> str:
        """The important fields as a short text."""
        ports = f" ports 0x{self.port_status_mask:x}" if self.op is EndpointOp.PORT_STATUS_UPDATE else ""
        return self.op.name + ports


@header
class EndpointResponse(Value):
    """MRC endpoint response: EETH. The request id is the packet's PSN."""

    kind: ClassVar[str] = "EndpointResponse"
    name: ClassVar[str] = "ENDPOINT_RESPONSE"

    op: EndpointOp = EndpointOp.EV_PROBE
    timestamp: U16 = 0

    def summary(self) -> str:
        """The important fields as a short text."""
        return self.op.name


@header
class Cnp(Value):
    """RoCEv2 congestion notification packet."""

    kind: ClassVar[str] = "Cnp"
    name: ClassVar[str] = "CNP"

    def summary(self) -> str:
        """The important fields as a short text."""
        return ""


Body = Write | Ack | EndpointRequest | EndpointResponse | Sack | Nack | Probe | RcWrite | RcAck | Cnp

_BODIES: dict[str, type[Value]] = {
    each.kind: each
    for each in (Write, Ack, EndpointRequest, EndpointResponse, Sack, Nack, Probe, RcWrite, RcAck, Cnp)
}


def body_from_core(kind: str, fields: dict[str, Any]) -> Body:
    """The body for the core's pair of kind and fields."""
    return _BODIES[kind]._from_core(fields)  # type: ignore[return-value]  # every class of the table is in Body
