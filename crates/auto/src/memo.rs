//! How long messages of one kind took, and whether that is known well enough.

use std::collections::HashMap;

use openmrc_transport::random::mix;

/// Times kept of a kind.
const MOST: usize = 256;
/// Bytes of a row whose time is kept.
const STRETCH: f64 = (1 << 20) as f64;

/// Between what no difference is made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Kind {
    pub what: What,
    /// The tier in which its paths turn. Beside others the ports of hosts decide, and this and the load are 0.
    pub turn: u8,
    /// How many hosts beneath a T0 use its uplinks, in eighths; 0 if it does not.
    pub load: u8,
    /// Whether its sender receives too, and sends SACKs beside it.
    pub receives: bool,
}

/// What is timed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum What {
    /// A message of this length, alone at the ports of its hosts.
    Message { bytes: u32 },
    /// Messages of a connection that leave one after the other.
    Row(Others),
}

/// How many others send at those ports of a connection's hosts, out of its sender or into its receiver, where most do.
pub(crate) type Others = u8;

/// When the times of a kind count as known.
#[derive(Clone, Copy)]
struct Limits {
    /// Times needed at least.
    least: usize,
    /// The standard error of their mean, as a share of it.
    error: f64,
    /// Times that deviate more, as a share of their mean, depend on more than their kind says.
    deviation: f64,
}

impl What {
    const fn limits(self) -> Limits {
        match self {
            What::Message { .. } => Limits { least: 4, error: 0.001, deviation: 0.005 },
            // Rows are recorded by the dozen, and those of one connection are alike.
            What::Row(0) => Limits { least: 32, error: 0.001, deviation: 0.005 },
            What::Row(1..) => Limits { least: 32, error: 0.003, deviation: 0.02 },
        }
    }
}

/// How long a message took, picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    /// From its begin until its last byte was in place.
    pub delivered: u64,
    /// From then until its sender knew.
    pub answer: u32,
}

/// The number of a kind in its memo.
pub(crate) type KindId = u32;

/// The times of a kind; of a row, those of [`STRETCH`] bytes.
struct Times {
    limits: Limits,
    is_row: bool,
    all: Vec<Taken>,
    sum: f64,
    squares: f64,
    standing: Standing,
}

impl Times {
    fn add(&mut self, taken: Taken) {
        if self.all.len() < MOST {
            let time = taken.delivered as f64;
            self.sum += time;
            self.squares += time * time;
            self.all.push(taken);
            self.standing = self.find_standing();
        }
    }

    fn mean(&self) -> f64 {
        self.sum / self.all.len() as f64
    }

    /// The standard deviation as a share of the mean.
    fn deviation(&self) -> f64 {
        let variance = self.squares / self.all.len() as f64 - self.mean() * self.mean();
        variance.max(0.0).sqrt() / self.mean()
    }

    fn find_standing(&self) -> Standing {
        let n = self.all.len();
        if n < self.limits.least {
            return Standing::Unknown;
        }
        let deviation = self.deviation();
        match deviation {
            _ if n == MOST && deviation > self.limits.deviation => Standing::Scattered,
            _ if deviation <= self.limits.deviation && deviation / (n as f64).sqrt() <= self.limits.error => {
                Standing::Known
            }
            _ if n == MOST => Standing::Scattered,
            _ => Standing::Unknown,
        }
    }
}

/// What is known of a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// Too little.
    Unknown,
    /// Its times.
    Known,
    /// That its times differ too much.
    Scattered,
}

/// The times of all kinds.
#[derive(Default)]
pub(crate) struct Memo {
    ids: HashMap<Kind, KindId>,
    /// By number.
    kinds: Vec<Times>,
    /// Times recorded.
    pub recorded: u64,
}

impl Memo {
    /// The number of a kind.
    pub fn id(&mut self, kind: Kind) -> KindId {
        *self.ids.entry(kind).or_insert_with(|| {
            let limits = kind.what.limits();
            let is_row = matches!(kind.what, What::Row(_));
            let (all, standing) = (Vec::new(), Standing::Unknown);
            let none = Times { limits, is_row, all, sum: 0.0, squares: 0.0, standing };
            self.kinds.push(none);
            self.kinds.len() as KindId - 1
        })
    }

    /// A message of this kind took this long.
    pub fn record(&mut self, kind: KindId, taken: Taken) {
        self.recorded += 1;
        self.kinds[kind as usize].add(taken);
    }

    /// So many bytes of a row took this long.
    pub fn record_row(&mut self, kind: KindId, bytes: u64, took: u64) {
        let delivered = (took as f64 / bytes as f64 * STRETCH) as u64;
        self.record(kind, Taken { delivered, answer: 0 });
    }

    /// Picoseconds of a byte of a row, if they are known.
    pub fn pace(&self, kind: KindId) -> Option<f64> {
        let times = &self.kinds[kind as usize];
        (times.standing == Standing::Known).then(|| times.mean() / STRETCH)
    }

    /// Whether a kind is of rows.
    pub fn is_row(&self, kind: KindId) -> bool {
        self.kinds[kind as usize].is_row
    }

    /// What is known of a kind.
    pub fn standing(&self, kind: KindId) -> Standing {
        self.kinds[kind as usize].standing
    }

    /// One of the times of a kind that is known. `salt` makes the choice.
    pub fn take(&self, kind: KindId, salt: u64) -> Taken {
        let times = &self.kinds[kind as usize].all;
        times[(mix(salt) % times.len() as u64) as usize]
    }

    /// The mean time of a message from begin to delivery.
    pub fn mean(&self, kind: KindId) -> Option<u64> {
        let times = &self.kinds[kind as usize];
        (!times.all.is_empty()).then(|| times.mean() as u64)
    }

    /// Number of kinds with recorded times.
    pub fn kinds(&self) -> u64 {
        self.kinds.iter().filter(|times| !times.all.is_empty()).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind { what: What::Message { bytes: 1 << 20 }, turn: 1, load: 4, receives: true };

    fn memo(times: impl Iterator<Item = u64>) -> (Memo, KindId) {
        let mut memo = Memo::default();
        let kind = memo.id(KIND);
        times.for_each(|delivered| memo.record(kind, Taken { delivered, answer: 1 }));
        (memo, kind)
    }

    fn standing(times: impl Iterator<Item = u64>) -> Standing {
        let (memo, kind) = memo(times);
        memo.standing(kind)
    }

    #[test]
    fn a_kind_is_known_when_its_mean_is() {
        assert_eq!(standing([1000; 3].into_iter()), Standing::Unknown);
        assert_eq!(standing([1000; 4].into_iter()), Standing::Known);
        // 0.4 % either way: 16 times bring the error of the mean to 0.1 %.
        let near = |n| (0..n).map(|i| if i % 2 == 0 { 99_600 } else { 100_400 });
        assert_eq!(standing(near(14)), Standing::Unknown);
        assert_eq!(standing(near(18)), Standing::Known);
        // One percent: never.
        let far = |n| (0..n).map(|i| if i % 2 == 0 { 99_000 } else { 101_000 });
        assert_eq!(standing(far(255)), Standing::Unknown);
        assert_eq!(standing(far(300)), Standing::Scattered);
    }

    #[test]
    fn rows_need_more_times_and_beside_others_a_byte_may_take_longer_than_another() {
        let mut memo = Memo::default();
        let alone = memo.id(Kind { what: What::Row(0), ..KIND });
        let beside = memo.id(Kind { what: What::Row(1), ..KIND });
        assert_ne!(alone, beside);
        for time in 0..32 {
            assert_eq!([alone, beside].map(|kind| memo.standing(kind)), [Standing::Unknown; 2]);
            assert_eq!(memo.pace(beside), None);
            memo.record_row(alone, 1 << 19, 1000);
            memo.record_row(beside, 1 << 21, if time % 2 == 0 { 7900 } else { 8100 });
        }
        assert_eq!([alone, beside].map(|kind| memo.standing(kind)), [Standing::Known; 2]);
        assert_eq!(memo.pace(alone).unwrap(), 1000.0 / f64::from(1 << 19));
        assert!((memo.pace(beside).unwrap() * f64::from(1 << 21) - 8000.0).abs() < 1.0);
    }

    #[test]
    fn times_are_those_recorded() {
        let (mut memo, kind) = memo((0..100).map(|i| 1000 + i));
        let taken: Vec<_> = (0..1000).map(|salt| memo.take(kind, salt).delivered).collect();
        assert!(taken.iter().all(|time| (1000..1100).contains(time)));
        let mean = taken.iter().sum::<u64>() as f64 / 1000.0;
        assert!((1045.0..1054.0).contains(&mean), "{mean}");
        let other = memo.id(Kind { what: What::Message { bytes: 1 }, ..KIND });
        assert_eq!((memo.mean(kind), memo.mean(other)), (Some(1049), None));
        assert_eq!(memo.kinds(), 1);
    }
}
