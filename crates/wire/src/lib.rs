//! Bytes <-> headers: MRC and RoCEv2 packet layouts, iCRC, entropy placement, SRv6 uSID addresses.
//!
//! No I/O, no clock, no allocation. [`Packet`] is the one description of a packet that every other
//! crate uses: the simulator moves it about as it is, the software NIC turns it into bytes here.
#![forbid(unsafe_code)]

pub mod packet;
pub mod seq;

pub use packet::{
    Aeth, Body, CcState, Eeth, EndpointOp, Erth, Ev, Mark, Nack, NackReason, Packet, Position, Probe, RcWrite, Sack,
    Timestamp, Write,
};
pub use seq::{Msn, Psn};
