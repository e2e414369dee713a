//! The output of a port: a control queue with strict priority, a data queue, a rate (docs/spec/congestion.md, "Switch
//! settings"). Time is in nanoseconds of any clock that never goes back.

use std::collections::VecDeque;

use openmrc_wire::dscp::DscpClass;
use openmrc_wire::ip::{IPV6_LEN, PROTOCOL_IPV6};
use openmrc_wire::link::ETHERNET_LEN;
use openmrc_wire::{DscpMap, LinkType, trim};
use rand::{Rng, RngExt as _};

use crate::config::PortConfig;

/// A frame, at the front of a buffer.
#[derive(Debug)]
pub struct Frame {
    /// The buffer.
    pub buffer: Box<[u8]>,
    /// Length of the frame.
    pub len: usize,
}

impl Frame {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[..self.len]
    }
}

/// What happened to an arriving frame.
#[derive(Debug)]
pub enum Verdict {
    /// It is in the data queue.
    Data,
    /// It is in the control queue.
    Control,
    /// It was trimmed, and its headers are in the control queue.
    Trimmed,
    /// The data queue was full and the frame could not be trimmed.
    DataFull(Frame),
    /// The control queue was full; `true` if the frame had just been trimmed.
    ControlFull(Frame, bool),
}

/// A port that runs late, because its process woke up late, catches up on at most this much sending time.
const CATCH_UP_NS: u64 = 200_000;

/// A port's queues.
pub struct PortQueue {
    data: VecDeque<Frame>,
    control: VecDeque<Frame>,
    data_bytes: u64,
    control_bytes: u64,
    /// When the link is free again.
    free_at: u64,
    config: PortConfig,
}

impl PortQueue {
    /// Empty queues.
    pub fn new(config: PortConfig) -> Self {
        PortQueue {
            data: VecDeque::new(),
            control: VecDeque::new(),
            data_bytes: 0,
            control_bytes: 0,
            free_at: 0,
            config,
        }
    }

    /// Queues a frame, or its headers.
    pub fn push(&mut self, mut frame: Frame, map: &DscpMap, udp_port: u16) -> Verdict {
        let class = map.class(dscp(frame.bytes()));
        if matches!(class, Some(DscpClass::Control | DscpClass::Trimmed | DscpClass::TrimmedLastHop)) {
            return match self.push_control(frame) {
                Ok(()) => Verdict::Control,
                Err(frame) => Verdict::ControlFull(frame, false),
            };
        }
        if self.data_bytes < self.config.thresholds.trim {
            self.data_bytes += frame.len as u64;
            self.data.push_back(frame);
            return Verdict::Data;
        }
        match trim::trim(frame.bytes_mut(), LinkType::Ethernet, udp_port, map, self.config.last_hop) {
            Err(_) => Verdict::DataFull(frame),
            Ok(len) => {
                frame.len = len;
                match self.push_control(frame) {
                    Ok(()) => Verdict::Trimmed,
                    Err(frame) => Verdict::ControlFull(frame, true),
                }
            }
        }
    }

    fn push_control(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.control_bytes + frame.len as u64 > self.config.thresholds.control {
            return Err(frame);
        }
        self.control_bytes += frame.len as u64;
        self.control.push_back(frame);
        Ok(())
    }

    /// When the next frame can leave; `None` if the queues are empty.
    pub fn next_departure(&self) -> Option<u64> {
        (!self.control.is_empty() || !self.data.is_empty()).then_some(self.free_at)
    }

    /// Removes the next frame if it can leave now; the flag says whether it was marked. Control packets go first. ECN
    /// marks data at dequeue.
    pub fn pop(&mut self, now: u64, rng: &mut impl Rng) -> Option<(Frame, bool)> {
        if self.free_at > now {
            return None;
        }
        let (frame, marked) = if let Some(frame) = self.control.pop_front() {
            self.control_bytes -= frame.len as u64;
            (frame, false)
        } else {
            let mut frame = self.data.pop_front()?;
            self.data_bytes -= frame.len as u64;
            let marked = self.marks(rng) && mark(frame.bytes_mut());
            (frame, marked)
        };
        if let Some(rate) = self.config.rate_bps {
            let duration = frame.len as u64 * 8 * 1_000_000_000 / rate;
            self.free_at = self.free_at.max(now.saturating_sub(CATCH_UP_NS)) + duration;
        }
        Some((frame, marked))
    }

    /// Whether to mark the departing packet, by the data queue behind it.
    fn marks(&self, rng: &mut impl Rng) -> bool {
        let t = self.config.thresholds;
        if self.config.last_hop || self.data_bytes < t.ecn_min {
            return false;
        }
        let probability = (self.data_bytes - t.ecn_min) as f64 / (t.ecn_max - t.ecn_min) as f64;
        rng.random::<f64>() < probability
    }

    /// Bytes in the data and in the control queue.
    pub fn queued_bytes(&self) -> (u64, u64) {
        (self.data_bytes, self.control_bytes)
    }
}

/// The DSCP of a forwarded frame, which is IPv6 in Ethernet.
fn dscp(frame: &[u8]) -> u8 {
    (frame[ETHERNET_LEN] & 0x0F) << 2 | frame[ETHERNET_LEN + 1] >> 6
}

/// Marks a frame "congestion experienced" if its sender supports ECN; returns whether it did.
///
/// The inner header is marked too, for receivers that do not merge the outer mark into it when they decapsulate (RFC
/// 6040).
fn mark(frame: &mut [u8]) -> bool {
    const NEXT_HEADER: usize = 6;
    let inner = ETHERNET_LEN + IPV6_LEN;
    let outer_marked = mark_ip(&mut frame[ETHERNET_LEN..]);
    if frame[ETHERNET_LEN + NEXT_HEADER] == PROTOCOL_IPV6 && frame.len() >= inner + IPV6_LEN {
        mark_ip(&mut frame[inner..]);
    }
    outer_marked
}

/// The ECN field is bits 5 and 4 of the second octet (RFC 8200, RFC 3168).
fn mark_ip(header: &mut [u8]) -> bool {
    const ECN: u8 = 0b0011_0000;
    let capable = header[0] >> 4 == 6 && header[1] & ECN != 0;
    if capable {
        header[1] |= ECN;
    }
    capable
}
