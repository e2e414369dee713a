//! Configuration of a RoCEv2 queue pair, and the defaults (docs/spec/baselines.md, "RoCEv2 RC").

use openmrc_wire::Ev;
use serde::{Deserialize, Serialize};

use super::dcqcn::DcqcnParams;
use crate::mrc::DEFAULT_PATH_MTU;
use crate::time::Span;

/// Packets that are retransmitted when one is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Recovery {
    /// The missing packet and all later ones.
    GoBackN,
    /// Only the missing packet.
    SelectiveRepeat,
}

/// Configuration of a queue pair.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct RcConfig {
    /// This queue pair's number.
    pub local_qp: u32,
    /// The peer's.
    pub remote_qp: u32,
    /// Payload bytes per packet.
    pub path_mtu: u16,
    /// Input of the ECMP hash: the UDP source port, fixed for the queue pair.
    pub ev: Ev,
    /// The port it uses.
    pub port: u8,
    /// Largest number of packets in flight.
    pub window: u32,
    /// Largest number of outstanding work requests.
    pub max_send_wr: usize,
    /// Retransmission scheme.
    pub recovery: Recovery,
    /// Congestion control; `None` sends at line rate.
    pub dcqcn: Option<DcqcnParams>,
    /// The responder sends an ACK for every `ack_every` packets, at most a window, and for the last packet of each
    /// message.
    pub ack_every: u32,
    /// Retransmission timeout.
    pub timeout: Span,
    /// Consecutive timeouts before the connection fails; with 255 it never fails.
    pub retry_count: u8,
}

impl RcConfig {
    /// Defaults: go-back-N, DCQCN for a port of this rate, an ACK per four packets, seven retries at intervals of about
    /// 1 ms, the interval of `ib_qp_attr.timeout` 8 (4.096 us x 2^8).
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
