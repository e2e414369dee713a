//! Which hosts, planes and switches there are (docs/spec/fabric.md).

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use openmrc_fabric::{Fabric, Sizing};
use openmrc_transport::Span;

use crate::error::ScenarioError;
use crate::numbers::{Count, Metres, U32, Whole};

/// The smallest fabric for these numbers; counts left open are computed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Hosts, each with a port in every plane.
    pub hosts: Whole<2, U32>,
    /// The hosts' network cards; 100 Gb/s for each plane if left open.
    #[serde(default)]
    pub nic: Option<Nic>,
    /// Planes.
    #[serde(default = "one_plane")]
    pub planes: Whole<1, 16>,
    /// Tiers of switches.
    #[serde(default = "two_tiers")]
    pub tiers: Whole<1, 4>,
    /// Ports of a switch.
    pub radix: Count,
    /// Downlinks of a T0; as many as fit if left open.
    #[serde(default)]
    pub hosts_per_t0: Option<Count>,
    /// Uplinks of a T0; as many as the oversubscription asks for if left open.
    #[serde(default)]
    pub uplinks_per_t0: Option<Count>,
    /// T0s of a pod; as many as fit if left open.
    #[serde(default)]
    pub t0s_per_pod: Option<Count>,
    /// Links from one T0 (with three tiers: pod) to one top switch; as many as save top switches if left open.
    #[serde(default)]
    pub parallel_links: Option<Count>,
    /// Downlink to uplink bandwidth of a T0; of T0, T1 and T2 as a list.
    #[serde(default)]
    pub oversubscription: Oversubscription,
    /// Lengths of cables.
    #[serde(default)]
    pub cables: Cables,
}

/// The hosts' network cards.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// All ports together, bit/s: one port for each plane.
    pub rate: Whole<1, { u64::MAX }>,
}

/// Rate of a port of the reference fabric (docs/spec/fabric.md), bit/s.
pub const DEFAULT_PORT_RATE_BPS: u64 = 100_000_000_000;

/// Length of the cables of each layer, metres.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Cables {
    /// From host to T0.
    pub host_t0: Metres,
    /// From T0 to T1.
    pub t0_t1: Metres,
    /// From T1 to T2.
    pub t1_t2: Metres,
    /// From T2 to T3.
    pub t2_t3: Metres,
}

impl Default for Cables {
    /// Long for a rack and short for a hall: as hops of the reference network of NSCC.
    fn default() -> Self {
        let length = Metres::of(100.0);
        Cables { host_t0: length, t0_t1: length, t1_t2: length, t2_t3: length }
    }
}

impl Cables {
    /// Propagation delay of the cables of each layer.
    pub(crate) fn delays(&self) -> [Span; 4] {
        [self.host_t0, self.t0_t1, self.t1_t2, self.t2_t3].map(Metres::delay)
    }
}

/// A network without multiple planes.
const fn one_plane() -> Whole<1, 16> {
    Whole::of(1)
}

/// As the reference fabric has (docs/spec/fabric.md).
const fn two_tiers() -> Whole<1, 4> {
    Whole::of(2)
}

impl Topology {
    /// The fabric.
    ///
    /// # Errors
    /// If these numbers are no fabric.
    pub fn fabric(&self) -> Result<Fabric, ScenarioError> {
        let (hosts, planes) = (self.hosts.u32(), u32::from(self.planes.u8()));
        let mut sizing = Sizing::new(hosts, planes, self.tiers.u8(), self.radix.u32());
        for (tier, ratio) in sizing.oversubscription.iter_mut().zip(&self.oversubscription.0) {
            *tier = ratio.0;
        }
        sizing.parallel = self.parallel_links.map(Whole::u32);
        sizing.hosts_per_t0 = self.hosts_per_t0.map(Whole::u32);
        sizing.uplinks_per_t0 = self.uplinks_per_t0.map(Whole::u32);
        sizing.t0s_per_pod = self.t0s_per_pod.map(Whole::u32);
        let fabric = sizing.smallest().and_then(Fabric::new);
        fabric.map_err(|error| ScenarioError::of_field(&["topology"], error))
    }

    /// Rate of a port, bit/s.
    ///
    /// # Errors
    /// If the planes do not divide the rate of a network card evenly.
    pub fn port_rate_bps(&self) -> Result<u64, ScenarioError> {
        let Some(nic) = self.nic else { return Ok(DEFAULT_PORT_RATE_BPS) };
        let (rate, planes) = (nic.rate.get(), self.planes.get());
        if rate.is_multiple_of(planes) {
            return Ok(rate / planes);
        }
        let message = format!("{rate} b/s are not {planes} equal ports");
        Err(ScenarioError::at("rate", message).inside("nic").inside("topology"))
    }
}

/// Ratios of T0, T1 and T2, or of T0 alone; tiers that are left out are non-blocking.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Oversubscription(#[schemars(length(min = 1, max = 3))] Vec<Ratio>);

impl Default for Oversubscription {
    fn default() -> Self {
        Oversubscription(vec![Ratio::default()])
    }
}

impl<'de> Deserialize<'de> for Oversubscription {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let values = if let serde_json::Value::Array(values) = value { values } else { vec![value] };
        if !(1..=3).contains(&values.len()) {
            return Err(de::Error::custom(format!("{} ratios: one for T0, T1 and T2 each", values.len())));
        }
        let ratios = values.into_iter().map(|value| Ratio::deserialize(value).map_err(de::Error::custom));
        ratios.collect::<Result<_, _>>().map(Oversubscription)
    }
}

/// Downlink to uplink bandwidth: `2`, `1.5` or `"3:1"`, from 1:8 to 64:1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ratio(openmrc_fabric::Ratio);

/// Largest numerator and denominator of a ratio that is given as a decimal fraction.
const FINEST: u32 = 1024;

impl Default for Ratio {
    fn default() -> Self {
        Ratio(openmrc_fabric::Ratio::NON_BLOCKING)
    }
}

impl Ratio {
    fn new(down: u64, up: u64) -> Option<Self> {
        let in_range = up > 0 && down.checked_mul(8)? >= up && down <= up.checked_mul(64)?;
        let (down, up) = (u32::try_from(down).ok()?, u32::try_from(up).ok()?);
        in_range.then_some(Ratio(openmrc_fabric::Ratio { down, up }))
    }

    /// The fraction nearest to a number, with a small denominator.
    fn nearest(value: f64) -> Option<Self> {
        let near = |up: u32| {
            let down = (value * f64::from(up)).round();
            (down, up, (value - down / f64::from(up)).abs())
        };
        let (down, up, _) = (1..=FINEST).map(near).min_by(|a, b| a.2.total_cmp(&b.2))?;
        Ratio::new(down as u64, u64::from(up))
    }
}

impl Serialize for Ratio {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}:{}", self.0.down, self.0.up))
    }
}

impl<'de> Deserialize<'de> for Ratio {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = Ratio;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a ratio like 2, 1.5 or \"3:1\", from 1:8 to 64:1")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Ratio, E> {
                let (down, up) = text.split_once(':').unwrap_or((text, "1"));
                let ratio = down.trim().parse().ok().zip(up.trim().parse().ok());
                let ratio = ratio.and_then(|(down, up)| Ratio::new(down, up));
                ratio.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Ratio, E> {
                let ratio = Ratio::new(value, 1);
                ratio.ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(value), &self))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Ratio, E> {
                Ratio::nearest(value).ok_or_else(|| E::invalid_value(de::Unexpected::Float(value), &self))
            }
        }

        deserializer.deserialize_any(Text)
    }
}

impl JsonSchema for Ratio {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Ratio".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["string", "number"]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_read_as_people_write_it() {
        for (text, down, up) in
            [("2", 2, 1), ("1.5", 3, 2), ("\"3:1\"", 3, 1), ("0.125", 1, 8), ("64", 64, 1)]
        {
            let ratio: Ratio = serde_json::from_str(text).expect(text);
            assert_eq!(ratio, Ratio(openmrc_fabric::Ratio { down, up }), "{text}");
        }
        for text in ["65", "0", "-1", "\"1:9\"", "\"a\"", "\"1:0\"", "1e300"] {
            assert!(serde_json::from_str::<Ratio>(text).is_err(), "{text}");
        }
        let shown = serde_json::to_string(&Ratio(openmrc_fabric::Ratio { down: 3, up: 2 })).unwrap();
        assert_eq!(shown, "\"3:2\"");
    }
}
