//! What a packet says, as plain values: one `Copy` struct for every MRC and RoCEv2 RC packet (spec: wire, opcodes and headers).
//!
//! These are the fields that follow the UDP header. Addresses, entropy, DSCP and ECN belong to the layers
//! outside and are carried beside the packet by whoever moves it.

use crate::seq::{Msn, Psn};

/// An entropy value: the name of one path. 16 bits are used in UDP mode, 32 in structured and SRv6 modes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Ev(pub u32);

/// A transmit timestamp on the wire: 16 bits, units of 128 ns, wrapping every 8.4 ms. Only its owner interprets it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Timestamp {
    /// Units of 128 ns.
    pub ticks: u16,
    /// TSR: the owner asks the responder to take its service time out of the reflected value.
    pub service_time: bool,
}

/// One packet after the UDP header: BTH, extension headers, and the length of the payload behind them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Destination queue pair number, 24 bits.
    pub dest_qp: u32,
    /// BTH.PSN; what it holds depends on the body (spec: wire, BTH).
    pub psn: Psn,
    /// Partition key.
    pub pkey: u16,
    /// Payload bytes, before padding to a multiple of four. Zero for packets that carry none.
    pub payload_len: u16,
    /// BTH.A: the requestor asks for feedback now.
    pub ack_req: bool,
    /// BTH.RTX: this packet is a retransmission (MRC only).
    pub rtx: bool,
    /// BTH.SE: solicited event.
    pub solicited: bool,
    /// BTH.M: migration state; kept for symmetry, unused by MRC.
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

/// Which part of its message a data packet is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// Part of the message. An immediate goes only with [`Position::Last`] and [`Position::Only`].
    pub position: Position,
    /// METH.RQMSN: counts messages with immediate; meaningful on them.
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

/// RoCEv2 RC RDMA WRITE: RETH on First and Only, ImmDt on Last and Only with immediate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RcWrite {
    /// Part of the message.
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

/// SETH.m: what the responder says about the path of the packet that triggered a SACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mark {
    /// Nothing to say.
    #[default]
    None,
    /// The packet was ECN-marked: miss a turn.
    SkipOnce,
    /// Give this path up.
    AlwaysSkip,
}

/// SETH and CC_STATE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sack {
    /// What is said about the triggering packet's path.
    pub mark: Mark,
    /// pr: this answers a reliability probe, and `ack_psn_offset` is its id.
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
    /// cc_flags, 4 bits.
    pub cc_flags: u8,
    /// The responder's MPR, units of 128 PSNs.
    pub mpr: u8,
    /// The bitmap begins at `cack_psn + sack_offset`.
    pub sack_offset: i16,
    /// Bit i: PSN base + i has arrived. A clear bit says nothing.
    pub bitmap: u64,
    /// Congestion state.
    pub cc: CcState,
}

/// CC_STATE of a SACK, type NSCC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nack {
    /// Why.
    pub reason: NackReason,
    /// Free for the vendor.
    pub vendor_info: u8,
    /// The refused packet's entropy value, reflected.
    pub entropy: Ev,
    /// Low 16 bits of the QP number of the sender of this NACK.
    pub spdcid: u16,
    /// Low 16 bits of the QP number of its receiver.
    pub dpdcid: u16,
    /// The PSN refused.
    pub nack_psn: Psn,
    /// cc_flags, 4 bits.
    pub cc_flags: u8,
    /// The refused packet's timestamp, reflected.
    pub timestamp: u16,
}

/// PETH: reliability probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// Free for the vendor.
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

/// What an endpoint request asks for (ERTH.op, EETH.op).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndpointOp {
    /// 0: the ports of the sender that are up.
    PortStatusUpdate,
    /// 1: is this path alive?
    EvProbe,
}

/// ERTH: endpoint request. The request id is in BTH.PSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Erth {
    /// What is asked.
    pub op: EndpointOp,
    /// Free for the vendor.
    pub vendor_info: u8,
    /// Bit p: port p+1 is up (bit 0 is the first plane's port).
    pub port_status_mask: u32,
    /// Transmit timestamp.
    pub timestamp: Timestamp,
}

/// EETH: endpoint response. The request id is in BTH.PSN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Eeth {
    /// What was asked.
    pub op: EndpointOp,
    /// The request's timestamp, reflected.
    pub timestamp: u16,
}
