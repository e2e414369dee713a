//! The queues of a switch port: the presets of the transports (docs/spec/congestion.md, "Switch settings";
//! docs/spec/baselines.md), and the fields of a scenario that replace them.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::error::ScenarioError;
use crate::numbers::{
    Amount, AmountOrNone, Factor, PartialShare, Probability, QueueLength, Threshold, Whole, short,
};
use crate::read;
use crate::run::{EcnMarking, NetworkConfig, Overflow, PfcConfig, Scheduling, SlowQueues, SwitchConfig};

/// Queues of a switch port. What is left open is as the preset has it. Lengths without a unit are multiples of a
/// plane's bandwidth-delay product: port rate x base RTT, where the base RTT follows from cables and switches.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Switch {
    /// What the transport is meant for if left open.
    pub preset: Option<Preset>,
    /// What becomes of data that would have to wait behind more than `trim`.
    pub overflow: Option<Overflow>,
    /// Longest data queue.
    pub trim: Option<QueueLength>,
    /// The same in bytes, instead of `trim`.
    pub trim_bytes: Option<Amount>,
    /// Longest data queue towards a host.
    pub trim_last_hop: Option<QueueLength>,
    /// The same in bytes, instead of `trim_last_hop`.
    pub trim_last_hop_bytes: Option<Amount>,
    /// Longest control queue; what is beyond is dropped.
    pub control: Option<QueueLength>,
    /// The control queue's share of the port under weighted scheduling; control goes first if left open.
    pub control_share: Option<PartialShare>,
    /// Whether switches mark packets.
    pub ecn: Option<bool>,
    /// Marking begins at this length, looked at when a packet leaves the queue.
    pub ecn_min: Option<Threshold>,
    /// From this length on every packet is marked; equal to `ecn_min` for a step.
    pub ecn_max: Option<Threshold>,
    /// Kmin in bytes, instead of `ecn_min`.
    pub ecn_min_bytes: Option<Amount>,
    /// Kmax in bytes, instead of `ecn_max`.
    pub ecn_max_bytes: Option<Amount>,
    /// Probability just below `ecn_max`: Pmax.
    pub ecn_probability: Option<Probability>,
    /// Whether ports towards hosts mark too.
    pub ecn_last_hop: Option<bool>,
    /// PFC, with its defaults or others; `false` turns the preset's off.
    pub pfc: Option<PfcChoice>,
    /// Queues of a link that a fault makes slow: `configured` bytes, as switches have them, or `scaled` with the rate.
    /// PFC's thresholds stay.
    pub slow_queues: SlowQueues,
    /// Real queues instead of departures computed on arrival: about twice as slow. PFC and `control_share` have them
    /// anyway.
    pub exact: bool,
}

/// MRC's thresholds (docs/spec/congestion.md, "Switch settings"), as multiples of a plane's bandwidth-delay product.
/// Switch configurations have the same.
pub mod mrc {
    /// Data that would have to wait behind more than this is trimmed.
    pub const TRIM: f64 = 1.0;
    /// The same towards a host.
    pub const TRIM_LAST_HOP: f64 = 1.5;
    /// Marking begins at this queue length.
    pub const ECN_MIN: f64 = 0.2;
    /// Every packet is marked from this queue length on.
    pub const ECN_MAX: f64 = 0.8;
}

/// Settings that switches are run with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Trimming, ECN but not towards hosts, control first (docs/spec/congestion.md, "Switch settings").
    Mrc,
    /// PFC, and DCQCN's marking on every hop (docs/spec/baselines.md).
    Rocev2,
    /// The same marking; packets beyond a long queue are dropped instead of PFC.
    Rocev2Lossy,
    /// PFC, no ECN.
    Adaptive,
}

/// Priority flow control on, off, or on with settings.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum PfcChoice {
    /// On with its defaults, or off.
    On(bool),
    /// On with these settings.
    With(Pfc),
}

impl<'de> Deserialize<'de> for PfcChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Bool(on) => Ok(PfcChoice::On(on)),
            settings => read::inner(settings).map(PfcChoice::With),
        }
    }
}

/// Priority flow control of the data class: senders are stopped, nothing is dropped for want of room.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pfc {
    /// Buffer of a switch, bytes; as its capacity suggests if left open ([`PfcConfig::BUFFER_TIME`]).
    pub buffer: Option<Amount>,
    /// What a port may hold of the shared buffer, as a multiple of what is free.
    pub alpha: Factor,
    /// Static threshold beside that, bytes; none if left open.
    pub xoff: Option<Amount>,
    /// A port's peer may go on when the port holds this many bytes less than its threshold; two full packets if left
    /// open (Zhu et al., SIGCOMM 2015, section 4).
    pub xon_offset: Option<AmountOrNone>,
    /// Set aside for each port, bytes; what its cable and the longest packets need if left open.
    pub headroom: Option<AmountOrNone>,
}

impl Default for Pfc {
    fn default() -> Self {
        // With alpha 1 ECN acts before PFC (Zhu et al., SIGCOMM 2015, section 4).
        Pfc { buffer: None, alpha: Factor::of(1.0), xoff: None, xon_offset: None, headroom: None }
    }
}

impl Pfc {
    fn filled(self, config: &NetworkConfig) -> Self {
        let two_packets = AmountOrNone::nearest(2 * u64::from(config.full_packet_bytes()));
        Pfc { xon_offset: self.xon_offset.or(Some(two_packets)), ..self }
    }

    fn config(&self, full_packet_bytes: u32) -> PfcConfig {
        let two_packets = 2 * u64::from(full_packet_bytes);
        PfcConfig {
            buffer: self.buffer.map(Whole::get),
            alpha: self.alpha.get(),
            xoff: self.xoff.map(Whole::get),
            xon_offset: self.xon_offset.map_or(two_packets, Whole::get),
            headroom: self.headroom.map(Whole::get),
        }
    }
}

/// A pair of fields of which only one may be set: the scenario's, or else the preset's.
fn either<A, B>(own: (Option<A>, Option<B>), preset: (Option<A>, Option<B>)) -> (Option<A>, Option<B>) {
    if own.0.is_some() || own.1.is_some() { own } else { preset }
}

impl NetworkConfig {
    /// The switch settings MRC was designed for (docs/spec/congestion.md, "Switch settings").
    pub fn default_switch(&self) -> SwitchConfig {
        Switch::default().config(self, Preset::Mrc)
    }

    /// The switch settings RoCEv2 with DCQCN is run with (docs/spec/baselines.md), lossless.
    pub fn rocev2_switch(&self) -> SwitchConfig {
        Switch::default().config(self, Preset::Rocev2)
    }

    /// The same without PFC.
    pub fn lossy_rocev2_switch(&self) -> SwitchConfig {
        Switch::default().config(self, Preset::Rocev2Lossy)
    }
}

impl PfcConfig {
    /// PFC as a scenario has it by default, for full packets of this size.
    pub fn new(full_packet_bytes: u32) -> Self {
        Pfc::default().config(full_packet_bytes)
    }
}

impl Preset {
    /// Everything that the preset says, for ports of a network.
    fn switch(self, config: &NetworkConfig) -> Switch {
        // Published for 100 Gb/s, scaled with the rate (Zhu et al., SIGCOMM 2015; docs/spec/baselines.md).
        let scaled = |bytes: u64| {
            let bytes = u128::from(bytes) * u128::from(config.port_rate_bps) / 100_000_000_000;
            Amount::nearest(u64::try_from(bytes).unwrap_or(u64::MAX))
        };
        let (kmin, kmax) = (scaled(400_000), scaled(1_600_000));
        let mrc = Switch {
            preset: Some(self),
            overflow: Some(Overflow::Trim),
            trim: Some(QueueLength::of(mrc::TRIM)),
            trim_last_hop: Some(QueueLength::of(mrc::TRIM_LAST_HOP)),
            control: Some(QueueLength::of(1.0)),
            ecn: Some(true),
            ecn_min: Some(Threshold::of(mrc::ECN_MIN)),
            ecn_max: Some(Threshold::of(mrc::ECN_MAX)),
            ecn_probability: Some(Probability::of(1.0)),
            // Marks on the last hop would report an incast, which no other path avoids.
            ecn_last_hop: Some(false),
            pfc: Some(PfcChoice::On(false)),
            ..Switch::default()
        };
        // Four times the length from which everything is marked.
        let drop_at = Some(Amount::nearest(4 * kmax.get()));
        let rocev2_lossy = Switch {
            overflow: Some(Overflow::Drop),
            trim: None,
            trim_bytes: drop_at,
            trim_last_hop: None,
            trim_last_hop_bytes: drop_at,
            ecn_min: None,
            ecn_max: None,
            ecn_min_bytes: Some(kmin),
            ecn_max_bytes: Some(kmax),
            ecn_probability: Some(Probability::of(0.2)),
            ecn_last_hop: Some(true),
            ..mrc.clone()
        };
        let lossless = Some(PfcChoice::On(true));
        match self {
            Preset::Mrc => mrc,
            Preset::Rocev2 => Switch { pfc: lossless, ..rocev2_lossy },
            Preset::Rocev2Lossy => rocev2_lossy,
            Preset::Adaptive => Switch { ecn: Some(false), pfc: lossless, ..mrc },
        }
    }
}

impl Switch {
    pub(crate) fn check(&self) -> Result<(), ScenarioError> {
        let shares = self.ecn_min.zip(self.ecn_max).map(|(min, max)| (min.get(), max.get()));
        if let Some((min, max)) = shares.filter(|(min, max)| max < min) {
            let message = format!("{} is below ecn_min, {}", short(max), short(min));
            return Err(ScenarioError::at("ecn_max", message));
        }
        let bytes = self.ecn_min_bytes.zip(self.ecn_max_bytes).map(|(min, max)| (min.get(), max.get()));
        if let Some((min, max)) = bytes.filter(|(min, max)| max < min) {
            return Err(ScenarioError::at("ecn_max_bytes", format!("{max} is below ecn_min_bytes, {min}")));
        }
        for (field, bytes, twice) in [
            ("ecn_min", "ecn_min_bytes", self.ecn_min.is_some() && self.ecn_min_bytes.is_some()),
            ("ecn_max", "ecn_max_bytes", self.ecn_max.is_some() && self.ecn_max_bytes.is_some()),
            ("trim", "trim_bytes", self.trim.is_some() && self.trim_bytes.is_some()),
            (
                "trim_last_hop",
                "trim_last_hop_bytes",
                self.trim_last_hop.is_some() && self.trim_last_hop_bytes.is_some(),
            ),
        ] {
            if twice {
                return Err(ScenarioError::at(bytes, format!("stands instead of {field}, not beside it")));
            }
        }
        Ok(())
    }

    /// The same with what is left open as the preset has it.
    pub(crate) fn filled(&self, config: &NetworkConfig, meant_for: Preset) -> Self {
        let preset = self.preset.unwrap_or(meant_for);
        let other = preset.switch(config);
        let (trim, trim_bytes) = either((self.trim, self.trim_bytes), (other.trim, other.trim_bytes));
        let (trim_last_hop, trim_last_hop_bytes) = either(
            (self.trim_last_hop, self.trim_last_hop_bytes),
            (other.trim_last_hop, other.trim_last_hop_bytes),
        );
        let (ecn_min, ecn_min_bytes) =
            either((self.ecn_min, self.ecn_min_bytes), (other.ecn_min, other.ecn_min_bytes));
        let (ecn_max, ecn_max_bytes) =
            either((self.ecn_max, self.ecn_max_bytes), (other.ecn_max, other.ecn_max_bytes));
        Switch {
            preset: Some(preset),
            overflow: self.overflow.or(other.overflow),
            trim,
            trim_bytes,
            trim_last_hop,
            trim_last_hop_bytes,
            control: self.control.or(other.control),
            control_share: self.control_share,
            ecn: self.ecn.or(other.ecn),
            ecn_min,
            ecn_max,
            ecn_min_bytes,
            ecn_max_bytes,
            ecn_probability: self.ecn_probability.or(other.ecn_probability),
            ecn_last_hop: self.ecn_last_hop.or(other.ecn_last_hop),
            pfc: match self.pfc.clone().or(other.pfc) {
                Some(PfcChoice::On(true)) => Some(PfcChoice::With(Pfc::default().filled(config))),
                Some(PfcChoice::With(pfc)) => Some(PfcChoice::With(pfc.filled(config))),
                off => off,
            },
            slow_queues: self.slow_queues,
            exact: self.exact,
        }
    }

    /// The queues of a run.
    pub(crate) fn config(&self, config: &NetworkConfig, meant_for: Preset) -> SwitchConfig {
        let filled = self.filled(config, meant_for);
        let bdp = config.plane_bdp() as f64;
        let multiple = |factor: f64| (bdp * factor) as u64;
        let length = |share: Option<QueueLength>, bytes: Option<Amount>| {
            bytes.map_or_else(|| share.map_or(0, |share| multiple(share.get())), Whole::get)
        };
        let threshold = |share: Option<Threshold>, bytes: Option<Amount>| {
            bytes.map_or_else(|| share.map_or(0, |share| multiple(share.get())), Whole::get)
        };
        let min_bytes = threshold(filled.ecn_min, filled.ecn_min_bytes);
        let ecn = EcnMarking {
            min_bytes,
            max_bytes: threshold(filled.ecn_max, filled.ecn_max_bytes).max(min_bytes),
            probability: filled.ecn_probability.map_or(1.0, Probability::get),
            on_last_hop: filled.ecn_last_hop.unwrap_or(false),
        };
        SwitchConfig {
            data_bytes: length(filled.trim, filled.trim_bytes),
            last_hop_data_bytes: length(filled.trim_last_hop, filled.trim_last_hop_bytes),
            control_bytes: length(filled.control, None),
            overflow: filled.overflow.unwrap_or(Overflow::Trim),
            scheduling: match filled.control_share {
                None => Scheduling::Strict,
                Some(share) => Scheduling::Weighted((share.get() * 256.0).round().clamp(1.0, 255.0) as u8),
            },
            ecn: filled.ecn.unwrap_or(false).then_some(ecn),
            pfc: match filled.pfc {
                Some(PfcChoice::With(pfc)) => Some(pfc.config(config.full_packet_bytes())),
                _ => None,
            },
            slow_queues: filled.slow_queues,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openmrc_fabric::Fabric;
    use openmrc_transport::Span;

    /// A network whose base RTT takes any value.
    fn network(cable_ns: u64) -> NetworkConfig {
        let sizing = openmrc_fabric::Sizing::new(16, 2, 2, 8);
        let fabric = Fabric::new(sizing.smallest().expect("a shape")).expect("a fabric");
        let mut config = NetworkConfig::new(fabric, 100_000_000_000);
        config.cable = [Span::from_nanos(cable_ns); 4];
        config
    }

    #[test]
    fn multiples_of_the_bandwidth_delay_product_are_whole_bytes_of_it() {
        for cable_ns in 0..4000 {
            let config = network(cable_ns);
            let (bdp, switch) = (config.plane_bdp(), config.default_switch());
            assert_eq!((switch.data_bytes, switch.control_bytes), (bdp, bdp));
            assert_eq!(switch.last_hop_data_bytes, bdp + bdp / 2);
            let ecn = switch.ecn.expect("marking");
            assert_eq!((ecn.min_bytes, ecn.max_bytes), (bdp / 5, bdp * 4 / 5));
        }
    }

    #[test]
    fn what_a_preset_fills_in_gives_the_same_queues_again() {
        let config = network(500);
        for preset in [Preset::Mrc, Preset::Rocev2, Preset::Rocev2Lossy, Preset::Adaptive] {
            let open = Switch { preset: Some(preset), ..Switch::default() };
            let filled = open.filled(&config, Preset::Mrc);
            assert_eq!(filled.config(&config, Preset::Mrc), open.config(&config, Preset::Mrc));
            // Another preset has nothing left to say.
            let other = Switch { preset: Some(Preset::Adaptive), ..filled };
            assert_eq!(other.config(&config, Preset::Mrc), open.config(&config, Preset::Mrc));
        }
    }

    #[test]
    fn an_own_threshold_takes_the_place_of_the_presets_in_either_unit() {
        let config = network(500);
        let own = Switch { ecn_min: Some(Threshold::of(0.1)), ..Switch::default() };
        let queues = own.config(&config, Preset::Rocev2);
        assert_eq!(queues.ecn.expect("marking").min_bytes, config.plane_bdp() / 10);
        let own = Switch { trim_bytes: Some(Whole::of(5000)), ..Switch::default() };
        assert_eq!(own.config(&config, Preset::Mrc).data_bytes, 5000);
    }
}
