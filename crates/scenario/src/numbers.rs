//! Numbers of a scenario, with their units and ranges. A number out of its range is refused as it is read.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use openmrc_transport::{Span, Time};
use openmrc_workload::Workload;

/// A whole number from `LEAST` to `MOST`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Whole<const LEAST: u64, const MOST: u64>(u64);

/// The number of a host.
pub type Host = Whole<0, U32>;
/// A count of 32 bits.
pub type Count = Whole<1, U32>;
/// Bytes of anything but one message.
pub type Amount = Whole<1, { 1 << 53 }>;
/// Bytes, or none.
pub type AmountOrNone = Whole<0, { 1 << 53 }>;
/// Length of a message, bytes.
pub type Bytes = Whole<1, LONGEST_MESSAGE>;
/// The MTU of a link, bytes: at least what IPv6 needs (RFC 8200).
pub type Mtu = Whole<1280, 65_535>;
/// The seed of a random generator.
pub type Seed = Whole<0, { u64::MAX }>;

/// The seed of what names none.
pub(crate) const fn first_seed() -> Seed {
    Whole::of(1)
}

/// Most that 32 bits hold.
pub const U32: u64 = u32::MAX as u64;
/// Longest message, bytes.
pub const LONGEST_MESSAGE: u64 = Workload::MAX_BYTES as u64;

impl<const LEAST: u64, const MOST: u64> Whole<LEAST, MOST> {
    /// A number that is known to be in range.
    ///
    /// # Panics
    /// If it is not.
    pub const fn of(value: u64) -> Self {
        assert!(LEAST <= value && value <= MOST, "the number is out of its range");
        Whole(value)
    }

    /// The nearest number in range.
    pub const fn nearest(value: u64) -> Self {
        Whole(if value < LEAST {
            LEAST
        } else if value > MOST {
            MOST
        } else {
            value
        })
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number in 32 bits, where its range fits them.
    pub const fn u32(self) -> u32 {
        const { assert!(MOST <= u32::MAX as u64) };
        self.0 as u32
    }

    /// The number in 16 bits, where its range fits them.
    pub const fn u16(self) -> u16 {
        const { assert!(MOST <= u16::MAX as u64) };
        self.0 as u16
    }

    /// The number in 8 bits, where its range fits them.
    pub const fn u8(self) -> u8 {
        const { assert!(MOST <= u8::MAX as u64) };
        self.0 as u8
    }
}

impl<const LEAST: u64, const MOST: u64> Serialize for Whole<LEAST, MOST> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de, const LEAST: u64, const MOST: u64> Deserialize<'de> for Whole<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number<const LEAST: u64, const MOST: u64>;

        impl<const LEAST: u64, const MOST: u64> Visitor<'_> for Number<LEAST, MOST> {
            type Value = Whole<LEAST, MOST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from {LEAST} to {MOST}")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
                if (LEAST..=MOST).contains(&value) {
                    return Ok(Whole(value));
                }
                Err(E::custom(format!("{value} is out of range: {LEAST} to {MOST}")))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
                match u64::try_from(value) {
                    Ok(value) => self.visit_u64(value),
                    Err(_) => Err(E::custom(format!("{value} is out of range: {LEAST} to {MOST}"))),
                }
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
                // What has more than 64 bits arrives as a fraction.
                let whole = value.fract() == 0.0 && value.abs() > u64::MAX as f64 / 2.0;
                let wrong = if whole { "out of range" } else { "not a whole number" };
                Err(E::custom(format!("{} is {wrong}: {LEAST} to {MOST}", short(value))))
            }
        }

        deserializer.deserialize_u64(Number)
    }
}

impl<const LEAST: u64, const MOST: u64> JsonSchema for Whole<LEAST, MOST> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Whole{LEAST}To{MOST}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": LEAST, "maximum": MOST})
    }
}

/// A number as people write it: no needless zeros, an exponent where it would be long.
pub(crate) fn short(value: f64) -> String {
    let text = format!("{value:?}");
    text.strip_suffix(".0").map_or(text.clone(), ToOwned::to_owned)
}

/// Which numbers a kind of fraction allows.
struct Range {
    low: f64,
    /// Whether `low` itself is allowed.
    from_low: bool,
    high: f64,
    /// Whether `high` itself is allowed.
    to_high: bool,
}

impl Range {
    fn contains(&self, value: f64) -> bool {
        let above = if self.from_low { value >= self.low } else { value > self.low };
        above && if self.to_high { value <= self.high } else { value < self.high }
    }

    fn schema(&self) -> Schema {
        let low = if self.from_low { "minimum" } else { "exclusiveMinimum" };
        let high = if self.to_high { "maximum" } else { "exclusiveMaximum" };
        json_schema!({"type": "number", low: self.low, high: self.high})
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = (short(self.low), short(self.high));
        match (self.from_low, self.to_high) {
            (true, true) => write!(f, "{low} to {high}"),
            (true, false) => write!(f, "from {low}, below {high}"),
            (false, true) => write!(f, "above {low}, at most {high}"),
            (false, false) => write!(f, "above {low}, below {high}"),
        }
    }
}

/// A kind of fraction: its range is `from` or `above` a number, `to` or `below` another.
macro_rules! fraction {
    (@ from) => { true };
    (@ above) => { false };
    (@ to) => { true };
    (@ below) => { false };
    ($(#[$doc:meta])* $name:ident: $first:ident $low:literal $last:ident $high:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
        pub struct $name(f64);

        impl $name {
            const RANGE: Range = Range {
                low: $low,
                from_low: fraction!(@ $first),
                high: $high,
                to_high: fraction!(@ $last),
            };

            /// A number that is known to be in range.
            ///
            /// # Panics
            /// If it is not.
            pub fn of(value: f64) -> Self {
                assert!(Self::RANGE.contains(value), "{value} is out of its range: {}", Self::RANGE);
                $name(value)
            }

            /// A number, if it is in range.
            pub fn new(value: f64) -> Option<Self> {
                Self::RANGE.contains(value).then_some($name(value))
            }

            /// The number.
            pub const fn get(self) -> f64 {
                self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_f64(self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let value = f64::deserialize(deserializer)?;
                $name::new(value).ok_or_else(|| {
                    de::Error::custom(format!("{} is out of range: {}", short(value), Self::RANGE))
                })
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                Self::RANGE.schema()
            }
        }
    };
}

fraction!(
    /// A moment, or a time that may be zero, microseconds.
    Micros: from 0.0 to 1e9
);
fraction!(
    /// A time of at least a picosecond, the smallest unit there is, microseconds.
    Duration: from 1e-6 to 1e9
);
fraction!(
    /// A time that may be zero, nanoseconds.
    Nanos: from 0.0 to 4e6
);
fraction!(
    /// A length of a cable, metres.
    Metres: from 0.0 to 8e5
);
fraction!(
    /// A rate of any size, bit/s.
    BitRate: above 0.0 to 1e15
);
fraction!(
    /// A probability.
    Probability: from 0.0 to 1.0
);
fraction!(
    /// A share of a whole, not nothing of it.
    Share: above 0.0 to 1.0
);
fraction!(
    /// A share of a whole, neither nothing nor all of it.
    PartialShare: above 0.0 below 1.0
);
fraction!(
    /// The length of a queue, as a multiple of a plane's bandwidth-delay product.
    QueueLength: above 0.0 to 64.0
);
fraction!(
    /// A threshold of ECN, as a multiple of a plane's bandwidth-delay product.
    Threshold: from 0.0 to 1024.0
);
fraction!(
    /// A factor.
    Factor: above 0.0 to 1024.0
);
fraction!(
    /// Packets a round trip.
    PacketsPerRtt: above 0.0 to 1e6
);
fraction!(
    /// The load of a host, as a share of its rate.
    Load: above 0.0 to 2.0
);

/// Picoseconds of a time in microseconds.
fn picos(micros: f64) -> u64 {
    (micros * 1e6).round() as u64
}

impl Micros {
    /// Time zero, or no time.
    pub const ZERO: Micros = Micros(0.0);

    /// The moment.
    pub fn time(self) -> Time {
        Time(picos(self.0))
    }

    /// The time that passes.
    pub fn span(self) -> Span {
        Span(picos(self.0))
    }
}

impl Default for Micros {
    fn default() -> Self {
        Micros::ZERO
    }
}

impl Duration {
    /// The moment that this time after the start is.
    pub fn time(self) -> Time {
        Time(picos(self.0))
    }

    /// The time that passes.
    pub fn span(self) -> Span {
        Span(picos(self.0))
    }

    /// The time that passes, in microseconds.
    pub fn from_span(span: Span) -> Self {
        Duration::of(span.0 as f64 / 1e6)
    }
}

impl Nanos {
    /// The time that passes.
    pub fn span(self) -> Span {
        Span((self.0 * 1e3).round() as u64)
    }
}

impl Metres {
    /// How long a signal takes: 5 ns/m in fibre, and nearly the same in copper.
    pub fn delay(self) -> Span {
        Span((self.0 * 5e3).round() as u64)
    }
}

/// A count with its digits in groups of three.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with three digits that count.
pub(crate) fn three_digits(value: f64) -> String {
    let decimals = if value > 0.0 { (2.0 - value.log10().floor()).clamp(0.0, 12.0) } else { 0.0 };
    format!("{value:.*}", decimals as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message<T: for<'de> Deserialize<'de>>(json: &str) -> String {
        serde_json::from_str::<T>(json).err().expect("an error").to_string()
    }

    #[test]
    fn a_number_out_of_range_is_refused_with_its_range() {
        assert!(message::<Whole<1, 16>>("17").starts_with("17 is out of range: 1 to 16"));
        assert!(message::<Whole<1, 16>>("-1").starts_with("-1 is out of range"));
        assert!(message::<Seed>("18446744073709551616").starts_with("1.8446744073709552e19 is out of range"));
        assert!(message::<Whole<1, 16>>("1.5").starts_with("1.5 is not a whole number"));
        assert!(message::<Share>("0").starts_with("0 is out of range: above 0, at most 1"));
        assert!(message::<PartialShare>("1").starts_with("1 is out of range: above 0, below 1"));
        assert!(message::<Duration>("1e-9").starts_with("1e-9 is out of range: 1e-6 to 1000000000"));
    }

    #[test]
    fn numbers_come_back_bit_for_bit() {
        for value in [0.1, 1.0 / 3.0, 1048.576, 5e-324, 1e300] {
            let back: f64 = serde_json::from_str(&serde_json::to_string(&value).unwrap()).unwrap();
            assert_eq!(back.to_bits(), f64::to_bits(value));
        }
        let seed: Seed = serde_json::from_str("18446744073709551615").unwrap();
        assert_eq!(serde_json::to_string(&seed).unwrap(), "18446744073709551615");
    }

    #[test]
    fn numbers_are_shown_as_people_write_them() {
        assert_eq!(grouped(1_099_511_627_776), "1,099,511,627,776");
        assert_eq!((grouped(100), grouped(1000)), ("100".into(), "1,000".into()));
        assert_eq!(three_digits(0.001_220_7), "0.00122");
        assert_eq!((short(5.0), short(1e300)), ("5".into(), "1e300".into()));
    }
}
