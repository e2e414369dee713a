//! What a RoCEv2 queue pair is told, and the defaults (spec: baselines, "RoCEv2 RC").

use openmrc_wire::Ev;

use super::dcqcn::DcqcnParams;
use crate::mrc::DEFAULT_PATH_MTU;
use crate::time::Span;

/// What is sent again when a packet is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovery {
    /// Everything from the missing packet on.
    GoBackN,
    /// The missing packet.
    SelectiveRepeat,
}

/// What a queue pair is told.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RcConfig {
    /// This queue pair's number.
    pub local_qp: u32,
    /// The peer's.
    pub remote_qp: u32,
    /// Payload bytes per packet.
    pub path_mtu: u16,
    /// What ECMP hashes: the UDP source port, fixed for the queue pair.
    pub ev: Ev,
    /// The port it uses.
    pub port: u8,
    /// Packets that may be in flight.
    pub window: u32,
    /// Work requests that may be outstanding.
    pub max_send_wr: usize,
    /// What is sent again.
    pub recovery: Recovery,
    /// Congestion control; `None` sends at line rate.
    pub dcqcn: Option<DcqcnParams>,
    /// An ACK for every so many packets, and for the last of each message.
    pub ack_every: u32,
    /// Retransmission timeout.
    pub timeout: Span,
    /// Timeouts in a row before the connection ends; 255 is for ever.
    pub retry_count: u8,
}

impl RcConfig {
    /// Defaults: go-back-N, DCQCN for a port of this rate, an ACK for four packets, seven retries after 1 ms each - the order of
    /// magnitude of `ib_qp_attr.timeout` 8 (4.096 us x 2^8).
    pub fn new(local_qp: u32, remote_qp: u32, line_rate_bps: u64) -> Self {
        RcConfig {
            local_qp,
            remote_qp,
            path_mtu: DEFAULT_PATH_MTU,
            ev: Ev(0),
            port: 0,
            window: 4096,
            max_send_wr: 128,
            recovery: Recovery::GoBackN,
            dcqcn: Some(DcqcnParams::for_rate(line_rate_bps)),
            ack_every: 4,
            timeout: Span::from_nanos(4096 << 8),
            retry_count: 7,
        }
    }
}
