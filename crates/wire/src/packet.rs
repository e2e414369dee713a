//! The fields of a packet as plain values: one `Copy` struct for every MRC and RoCEv2 RC packet (docs/spec/wire.md,
//! "Opcodes and header order").
//!
//! They are the fields after the UDP header. Addresses, entropy, DSCP and ECN belong to the layers before it and are
//! passed beside the packet.

use crate::seq::{Msn, Psn};
use serde::{Deserialize, Serialize};

/// An entropy value, which identifies one path: 16 bits in UDP mode, 32 bits in structured and SRv6 modes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Ev(pub u32);

/// A transmit timestamp on the wire: 16 bits, in units of 128 ns unless TSR is set, which wrap every 8.4 ms. Only its
/// sender interprets it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Timestamp {
    /// The time.
    pub ticks: u16,
    /// TSR, the resolution: false is 128 ns, true is defined by the sender's implementation.
    pub tsr: bool,
}

/// One packet after the UDP header: BTH, extension headers, and the length of the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Destination queue pair number, 24 bits.
    pub dest_qp: u32,
    /// BTH.PSN; its meaning depends on the body (docs/spec/wire.md, "BTH").
    pub psn: Psn,
    /// Partition key.
    pub pkey: u16,
    /// Payload bytes without padding. Zero for packets without payload.
    pub payload_len: u16,
    /// BTH.A: the requestor asks for feedback now.
    pub ack_req: bool,
    /// BTH.RTX: this packet is a retransmission (MRC only).
    pub rtx: bool,
    /// BTH.SE: solicited event. In a received MRC packet either of the bits SE and M sets it.
    pub solicited: bool,
    /// BTH.M: migration state (RoCEv2 only; MRC sends 0).
    pub migrated: bool,
    /// BTH byte 4, FECN and BECN in RoCEv2; masked in the iCRC; zero in MRC.
    pub variant: u8,
    /// Opcode and extension headers.
    pub body: Body,
}

impl Packet {
    /// The default partition key.
    pub const DEFAULT_PKEY: u16 = 0xFFFF;

    /// A packet with default BTH flags and no payload.
    pub const fn new(dest_qp: u32, psn: Psn, body: Body) -> Self {
        Packet {
            dest_qp,
            psn,
            pkey: Self::DEFAULT_PKEY,
            payload_len: 0,
            ack_req: false,
            rtx: false,
            solicited: false,
            migrated: false,
            variant: 0,
            body,
        }
    }
}

/// Opcode and extension headers of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Body {
    /// 0xC6..0xCB: MRC RDMA WRITE, with or without immediate.
    Write(Write),
    /// 0xD1: MRC RDMA transport acknowledgement or NAK.
    Ack(Aeth),
    /// 0xD8: endpoint request.
    EndpointRequest(Erth),
    /// 0xD9: endpoint response.
    EndpointResponse(Eeth),
    /// 0xDC: reliability SACK with congestion state.
    Sack(Sack),
    /// 0xDD: reliability NACK.
    Nack(Nack),
    /// 0xDE: reliability probe request.
    Probe(Probe),
    /// 0x06..0x0B: RoCEv2 RC RDMA WRITE.
    RcWrite(RcWrite),
    /// 0x11: RoCEv2 RC acknowledgement or NAK.
    RcAck(Aeth),
    /// 0x81: RoCEv2 congestion notification packet.
    Cnp,
}

/// Position of a data packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Position {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether the message begins with this packet.
    pub const fn is_first(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// Whether the message ends with this packet.
    pub const fn is_last(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }
}

/// MRC data packet: METH, TSETH (exactly when `timestamp` is given, BTH.TS), RETH, ImmDt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Write {
    /// Position in the message. Only [`Position::Last`] and [`Position::Only`] can have an immediate.
    pub position: Position,
    /// METH.RQMSN: counts messages with immediate, and is the same in all packets of one; 0 and without meaning in
    /// other messages.
    pub rqmsn: Msn,
    /// METH.MSN: counts messages.
    pub msn: Msn,
    /// TSETH.
    pub timestamp: Option<Timestamp>,
    /// RETH: virtual address of this packet's first byte.
    pub va: u64,
    /// RETH: key of the remote region.
    pub rkey: u32,
    /// RETH: length of the whole message.
    pub dma_len: u32,
    /// ImmDt.
    pub imm: Option<u32>,
}

impl Write {
    /// The headers of a duplicate with `len` bytes of payload, sent at `ticks`: its PSN is one that has arrived, so a
    /// responder places nothing, whatever the address, and answers with a SACK.
    pub const fn duplicate(len: u16, ticks: u16) -> Self {
        Write {
            position: Position::Only,
            rqmsn: Msn(0),
            msn: Msn(0),
            timestamp: Some(Timestamp { ticks, tsr: false }),
            va: 0,
            rkey: 0,
            dma_len: len as u32,
            imm: None,
        }
    }
}

/// RoCEv2 RC RDMA WRITE: RETH on First and Only, ImmDt on Last and Only with immediate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RcWrite {
    /// Position in the message.
    pub position: Position,
    /// RETH fields, present on First and Only: virtual address.
    pub va: u64,
    /// RETH: key of the remote region.
    pub rkey: u32,
    /// RETH: length of the whole message.
    pub dma_len: u32,
    /// ImmDt.
    pub imm: Option<u32>,
}

/// AETH: transport acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Aeth {
    /// ACK below 0x20, otherwise a NAK code.
    pub syndrome: u8,
    /// Messages completed, 24 bits.
    pub msn: u32,
}

impl Aeth {
    /// Syndrome of an ACK without credit information.
    pub const ACK: u8 = 0x1F;
    /// RoCEv2: PSN sequence error.
    pub const NAK_PSN_SEQUENCE: u8 = 0x60;
    /// Invalid request.
    pub const NAK_INVALID_REQUEST: u8 = 0x61;
    /// Remote access error.
    pub const NAK_REMOTE_ACCESS: u8 = 0x62;
    /// Remote operational error.
    pub const NAK_REMOTE_OPERATIONAL: u8 = 0x63;
    /// MRC: in-flight WriteImm limit exceeded. \[choice\]: public text names the NAK but not its number.
    pub const NAK_WIMM_LIMIT: u8 = 0x65;

    /// Whether this is an acknowledgement rather than a NAK.
    pub const fn is_ack(self) -> bool {
        self.syndrome < 0x20
    }
}

/// SETH.m: the responder's judgement of the path of the packet that triggered a SACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Mark {
    /// None.
    #[default]
    None,
    /// The packet was ECN-marked: skip the path once.
    SkipOnce,
    /// Stop using the path.
    AlwaysSkip,
}

/// SETH and CC_STATE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sack {
    /// Judgement of the triggering packet's path.
    pub mark: Mark,
    /// pr: this answers a reliability probe, whose id is in `ack_psn_offset`.
    pub probe_reply: bool,
    /// `cack_psn + ack_psn_offset` triggered this SACK; the probe id (as u16) when `probe_reply`.
    pub ack_psn_offset: i16,
    /// The triggering packet's entropy value, reflected.
    pub entropy: Ev,
    /// Low 16 bits of the QP number of the sender of this SACK.
    pub spdcid: u16,
    /// Low 16 bits of the QP number of its receiver.
    pub dpdcid: u16,
    /// Everything up to and including this PSN has arrived.
    pub cack_psn: Psn,
    /// cc_type, 4 bits. With another than [`Sack::CC_TYPE`], `cc` has no known meaning and must not be used.
    pub cc_type: u8,
    /// cc_flags, 4 bits.
    pub cc_flags: u8,
    /// The responder's MPR, units of 128 PSNs; 0 without Dynamic MPR.
    pub mpr: u8,
    /// The bitmap begins at `cack_psn + sack_offset`.
    pub sack_offset: i16,
    /// Bit i: PSN base + i has arrived. A clear bit has no meaning.
    pub bitmap: u64,
    /// Congestion state.
    pub cc: CcState,
}

/// CC_STATE of a SACK, type NSCC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CcState {
    /// The triggering packet's timestamp, reflected.
    pub timestamp: u16,
    /// Packets received above the cumulative point, 15 bits.
    pub ooo_count: u16,
    /// r_c: the saved congestion window may be restored.
    pub restore_cwnd: bool,
    /// Destination flow control, 0 = none .. 127.
    pub rcv_cwnd_pen: u8,
    /// Bytes received, 24 bits, units of 256 bytes, rounded up.
    pub rcvd_bytes: u32,
}

/// Why a packet was refused (NETH.reason).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NackReason {
    /// 0x01
    Trimmed,
    /// 0x02
    TrimmedLastHop,
    /// 0x06
    NoBitmap,
    /// 0x07
    NoPktBuffer,
    /// 0x0A
    NoResource,
    /// 0x0B
    PsnOorWindow,
    /// 0x19, fatal
    UnexpectedEvent,
}

/// NETH.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Nack {
    /// The reason.
    pub reason: NackReason,
    /// Vendor-specific.
    pub vendor_info: u8,
    /// The refused packet's entropy value, reflected.
    pub entropy: Ev,
    /// Low 16 bits of the QP number of the sender of this NACK.
    pub spdcid: u16,
    /// Low 16 bits of the QP number of its receiver.
    pub dpdcid: u16,
    /// The refused PSN.
    pub nack_psn: Psn,
    /// cc_flags, 4 bits.
    pub cc_flags: u8,
    /// The refused packet's timestamp, reflected.
    pub timestamp: u16,
}

/// PETH: reliability probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Probe {
    /// Vendor-specific.
    pub vendor_info: u8,
    /// Reflected by the answering SACK.
    pub probe_id: u16,
    /// Low 16 bits of the QP number of the sender.
    pub spdcid: u16,
    /// Low 16 bits of the QP number of the receiver.
    pub dpdcid: u16,
    /// Transmit timestamp.
    pub timestamp: Timestamp,
}

/// What an endpoint request asks for (ERTH.op, EETH.op). The C interface numbers the two the other way round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum EndpointOp {
    /// 0: the ports of the sender that are up.
    PortStatusUpdate,
    /// 1: whether this path works.
    EvProbe,
}

/// ERTH: endpoint request. The request id is in BTH.PSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Erth {
    /// The operation.
    pub op: EndpointOp,
    /// Vendor-specific.
    pub vendor_info: u8,
    /// Bit p: port p+1 is up (bit 0 is the first plane's port).
    pub port_status_mask: u32,
    /// Transmit timestamp.
    pub timestamp: Timestamp,
}

/// EETH: endpoint response. The request id is in BTH.PSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Eeth {
    /// The requested operation. A response is matched by its id and address, not by this: readings differ on the
    /// place of the field.
    pub op: EndpointOp,
    /// The request's timestamp, reflected.
    pub timestamp: u16,
}
