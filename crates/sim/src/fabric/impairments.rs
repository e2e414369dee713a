//! Ports that lose packets or are slow, and which packets they lose.

use openmrc_scenario::run::{Change, Encapsulation};

use std::collections::HashMap;

use super::ports::{Port, port_flag};
use crate::event::Event;
use crate::hash::chance;

/// Probabilities of losing a packet and of damaging a bit.
#[derive(Clone, Copy, Default)]
struct Loss {
    packet: f64,
    bit: f64,
}

/// Impaired ports. Ports that are down only have their flag.
pub(crate) struct Impairments {
    /// By port.
    lossy: HashMap<u32, Loss>,
    /// By slow port: the picoseconds that a byte takes when the port is not slow.
    slow: HashMap<u32, u16>,
    seed: u64,
}

impl Impairments {
    /// No impaired ports.
    pub fn new(seed: u64) -> Self {
        Impairments { lossy: HashMap::new(), slow: HashMap::new(), seed }
    }

    /// Changes a port.
    pub fn apply(&mut self, port: &mut Port, number: u32, change: Change) {
        match change {
            Change::Down => port.flags |= port_flag::DOWN,
            Change::Up => {
                port.flags &= !(port_flag::DOWN | port_flag::LOSSY);
                self.lossy.remove(&number);
                if let Some(picos) = self.slow.remove(&number) {
                    port.picos_per_byte = picos;
                }
            }
            Change::Loss(p) => {
                port.flags |= port_flag::LOSSY;
                self.lossy.entry(number).or_default().packet = p;
            }
            Change::BitErrors(p) => {
                port.flags |= port_flag::LOSSY;
                self.lossy.entry(number).or_default().bit = p;
            }
            Change::Slow(share) => {
                let full = *self.slow.entry(number).or_insert(port.picos_per_byte);
                port.picos_per_byte = (f64::from(full) / share).round().min(f64::from(u16::MAX)) as u16;
            }
        }
    }

    /// Whether a packet gets over the cable of the lossy port `from`.
    pub fn survives(&self, event: &Event, from: u32) -> bool {
        let Loss { packet, bit } = self.lossy.get(&from).copied().unwrap_or_default();
        let bits = f64::from(u32::from(event.bytes) - Encapsulation::BETWEEN_FRAMES) * 8.0;
        let whole = (1.0 - packet) * (1.0 - bit).powf(bits);
        chance(self.seed ^ u64::from(event.connection) << 32, from, event.time) < whole
    }
}
