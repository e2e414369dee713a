//! Bytes <-> headers: MRC and RoCEv2 packet layouts, iCRC, entropy placement, SRv6 uSID addresses.
//!
//! No I/O, no clock, no allocation. Every other crate describes a packet by [`Packet`]: the simulator moves it as it
//! is, and the software NIC encodes and decodes it here.
#![forbid(unsafe_code)]

pub mod bth;
mod bytes;
mod codec;
pub mod difference;
mod distance;
pub mod dscp;
pub mod encap;
pub mod endpoint;
pub mod error;
pub mod ev;
pub mod expansion;
pub mod frame;
pub mod icrc;
pub mod ip;
pub mod layers;
pub mod link;
mod named;
pub mod packet;
pub mod rdma;
pub mod reliability;
pub mod seq;
pub mod srh;
pub mod trim;
pub mod udp;
pub mod usid;

pub use bth::{Bth, ENDPOINT_QP, opcode};
pub use codec::{CNP_RESERVED_LEN, DATA_OVERHEAD, MAX_HEADER_LEN};
pub use difference::{Difference, Differences};
pub use distance::Distances;
pub use dscp::{DscpClass, DscpMap};
pub use error::DecodeError;
pub use ev::{Entropy, EntropyOrder, EvFormat};
pub use frame::{Frame, FrameConfig, IcrcVerdict, Outer};
pub use icrc::{Icrc, IcrcSeed, change_identification};
pub use ip::Ecn;
pub use layers::Layers;
pub use link::LinkType;
pub use named::Named;
pub use packet::{
    Aeth, Body, CcState, Eeth, EndpointOp, Erth, Ev, Mark, Nack, NackReason, Packet, Position, Probe,
    RcWrite, Sack, Timestamp, Write,
};
pub use rdma::Syndrome;
pub use seq::{Msn, Psn};
pub use udp::{MRC_PORT, ROCE_PORT};
pub use usid::UsidAddress;
