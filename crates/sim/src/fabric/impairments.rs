//! What faults do to ports, and which packets impaired ports lose.

use openmrc_scenario::run::{Change, Effect, Encapsulation};
use serde::{Deserialize, Serialize};

use std::collections::HashMap;

use super::ports::{Port, port_flag};
use crate::event::Event;
use crate::hash::chance;

/// What faults do to a port now.
#[derive(Serialize, Deserialize)]
struct Impairment {
    /// The effects that are on, each as often as it has begun and not ended.
    effects: Vec<Effect>,
    /// Probability that a packet is not lost.
    packet_survives: f64,
    /// Probability that a bit is not damaged.
    bit_survives: f64,
    /// Longest IP packet that is not lost, bytes.
    mtu: u32,
    /// Picoseconds that a byte takes when the port is not slow.
    full_picos_per_byte: u16,
}

impl Impairment {
    fn new(port: &Port) -> Self {
        Impairment {
            effects: Vec::new(),
            packet_survives: 1.0,
            bit_survives: 1.0,
            mtu: u32::MAX,
            full_picos_per_byte: port.picos_per_byte,
        }
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Begins(effect) => self.effects.push(effect),
            Change::Ends(effect) => {
                if let Some(place) = self.effects.iter().position(|&on| on == effect) {
                    self.effects.remove(place);
                }
            }
        }
    }

    /// Makes the port what all effects together make it.
    fn impair(&mut self, port: &mut Port) {
        port.flags &= !(port_flag::DOWN | port_flag::LOSSY);
        (self.packet_survives, self.bit_survives, self.mtu) = (1.0, 1.0, u32::MAX);
        let mut least = 1.0f64;
        for effect in &self.effects {
            match *effect {
                Effect::Down => port.flags |= port_flag::DOWN,
                Effect::Loss(p) => {
                    port.flags |= port_flag::LOSSY;
                    self.packet_survives *= 1.0 - p;
                }
                Effect::BitErrors(p) => {
                    port.flags |= port_flag::LOSSY;
                    self.bit_survives *= 1.0 - p;
                }
                Effect::Slow(share) => least = least.min(share),
                Effect::Mtu(bytes) => {
                    port.flags |= port_flag::LOSSY;
                    self.mtu = self.mtu.min(bytes.into());
                }
            }
        }
        let picos = f64::from(self.full_picos_per_byte) / least;
        port.picos_per_byte = picos.round().min(f64::from(u16::MAX)) as u16;
    }
}

/// Impaired ports.
#[derive(Serialize, Deserialize)]
pub(crate) struct Impairments {
    /// By port.
    ports: HashMap<u32, Impairment>,
    seed: u64,
}

impl Impairments {
    /// No impaired ports.
    pub fn new(seed: u64) -> Self {
        Impairments { ports: HashMap::new(), seed }
    }

    /// Changes a port.
    pub fn apply(&mut self, port: &mut Port, number: u32, change: Change) {
        let impairment = self.ports.entry(number).or_insert_with(|| Impairment::new(port));
        impairment.change(change);
        impairment.impair(port);
        if impairment.effects.is_empty() {
            self.ports.remove(&number);
        }
    }

    /// Whether every packet from this port is lost, although it may have a carrier.
    pub fn loses_everything(&self, number: u32) -> bool {
        self.ports.get(&number).is_some_and(|impairment| impairment.packet_survives <= 0.0)
    }

    /// Whether a packet gets over the cable of the lossy port `from`.
    pub fn survives(&self, event: &Event, from: u32) -> bool {
        let Some(Impairment { packet_survives, bit_survives, mtu, .. }) = self.ports.get(&from) else {
            return true;
        };
        if Encapsulation::ip_bytes(event.bytes.into()) > *mtu {
            return false;
        }
        let bits = f64::from(u32::from(event.bytes) - Encapsulation::BETWEEN_FRAMES) * 8.0;
        let whole = packet_survives * bit_survives.powf(bits);
        chance(self.seed ^ u64::from(event.connection) << 32, from, event.time) < whole
    }
}
