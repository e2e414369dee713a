//! The switch without sockets and clock: takes frames in, and returns them when they can leave.

use openmrc_wire::DscpMap;
use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::config::{Config, ConfigError, Mac};
use crate::forward::{Forwarding, Refusal};
use crate::queue::{Frame, PortQueue, Verdict};

/// Counters of a switch, in frames.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Queued for forwarding.
    pub forwarded: u64,
    /// Of those, trimmed.
    pub trimmed: u64,
    /// Of those, marked "congestion experienced" on departure.
    pub marked: u64,
    /// Dropped: the data queue was full and the packet could not be trimmed.
    pub dropped_data_full: u64,
    /// Dropped: the control queue was full.
    pub dropped_control_full: u64,
    /// Dropped: trimmed, but the control queue was full.
    pub dropped_trimmed: u64,
    /// Dropped: the uSID list ended at this switch.
    pub dropped_end_of_path: u64,
    /// Dropped: no entry for the next uSID.
    pub dropped_no_route: u64,
    /// Dropped: the hop limit had run out.
    pub dropped_hop_limit: u64,
    /// Dropped: the interface did not take it.
    pub dropped_at_interface: u64,
}

impl Counters {
    /// Every counter with its name.
    pub fn named(&self) -> [(&'static str, u64); 10] {
        [
            ("forwarded", self.forwarded),
            ("trimmed", self.trimmed),
            ("marked", self.marked),
            ("dropped_data_full", self.dropped_data_full),
            ("dropped_control_full", self.dropped_control_full),
            ("dropped_trimmed", self.dropped_trimmed),
            ("dropped_end_of_path", self.dropped_end_of_path),
            ("dropped_no_route", self.dropped_no_route),
            ("dropped_hop_limit", self.dropped_hop_limit),
            ("dropped_at_interface", self.dropped_at_interface),
        ]
    }
}

struct Port {
    queue: PortQueue,
    mac: Mac,
    peer: Mac,
}

/// A switch.
pub struct Switch {
    forwarding: Forwarding,
    ports: Vec<Port>,
    dscp: DscpMap,
    udp_port: u16,
    rng: Xoshiro256PlusPlus,
    /// Its counters.
    pub counters: Counters,
}

impl Switch {
    /// A switch with empty queues.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration is not valid.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        config.validate()?;
        let ports = config.ports.iter().map(|port| Port {
            queue: PortQueue::new(port.clone()),
            mac: port.mac,
            peer: port.peer,
        });
        Ok(Switch {
            forwarding: Forwarding::new(config),
            ports: ports.collect(),
            dscp: config.dscp,
            udp_port: config.udp_port,
            rng: Xoshiro256PlusPlus::seed_from_u64(config.seed),
            counters: Counters::default(),
        })
    }

    /// Takes a frame received on a port. Returns it if it was not queued.
    pub fn receive(&mut self, ingress: usize, mut frame: Frame) -> Option<Frame> {
        if frame.bytes().first_chunk::<6>() != Some(&self.ports[ingress].mac) {
            return Some(frame);
        }
        let len = frame.len;
        let egress = match self.forwarding.forward(&mut frame.buffer[..len]) {
            Ok(port) => port,
            Err(refusal) => {
                match refusal {
                    Refusal::NotOurs => {}
                    Refusal::EndOfPath => self.counters.dropped_end_of_path += 1,
                    Refusal::NoRoute => self.counters.dropped_no_route += 1,
                    Refusal::HopLimit => self.counters.dropped_hop_limit += 1,
                }
                return Some(frame);
            }
        };
        let port = &mut self.ports[egress];
        frame.buffer[..6].copy_from_slice(&port.peer);
        frame.buffer[6..12].copy_from_slice(&port.mac);
        let counters = &mut self.counters;
        match port.queue.push(frame, &self.dscp, self.udp_port) {
            Verdict::Data | Verdict::Control => counters.forwarded += 1,
            Verdict::Trimmed => {
                counters.forwarded += 1;
                counters.trimmed += 1;
            }
            Verdict::DataFull(frame) => {
                counters.dropped_data_full += 1;
                return Some(frame);
            }
            Verdict::ControlFull(frame, trimmed) => {
                if trimmed {
                    counters.dropped_trimmed += 1;
                } else {
                    counters.dropped_control_full += 1;
                }
                return Some(frame);
            }
        }
        None
    }

    /// Removes the next frame of a port if it can leave at `now` (nanoseconds).
    pub fn transmit(&mut self, port: usize, now: u64) -> Option<Frame> {
        let (frame, marked) = self.ports[port].queue.pop(now, &mut self.rng)?;
        self.counters.marked += u64::from(marked);
        Some(frame)
    }

    /// When the next frame of any port can leave; `None` if all queues are empty.
    pub fn next_departure(&self) -> Option<u64> {
        self.ports.iter().filter_map(|port| port.queue.next_departure()).min()
    }

    /// Bytes in the data and in the control queue of a port.
    pub fn queued_bytes(&self, port: usize) -> (u64, u64) {
        self.ports[port].queue.queued_bytes()
    }
}
