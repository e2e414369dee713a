//! How many endpoint requests are answered (docs/spec/transport.md, "Endpoint operations"). Their source addresses may
//! be forged, so what they cost must be bounded, in packets and in memory.

use crate::random::mix;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Endpoint requests that are answered per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RequestRates {
    /// Of one node that no queue pair is connected to.
    pub unknown: u32,
    /// Of all such nodes together.
    pub all_unknown: u32,
    /// Of one peer.
    pub peer: u32,
}

impl Default for RequestRates {
    /// The specification's rates for unknown nodes. A peer may send as many as all of them together: one probe in each
    /// round trip of 10 us.
    fn default() -> Self {
        RequestRates { unknown: 10_000, all_unknown: 100_000, peer: 100_000 }
    }
}

/// Requests that may come at once.
const BURST: u64 = 64;
/// Unknown nodes that are told apart. Others share their rates: memory must not grow with the number of addresses.
const SOURCES: usize = 1024;

/// A rate and what was used of it: the time at which the next request would come if all came at this rate.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Bucket {
    next: Time,
}

impl Bucket {
    /// Takes a request at a rate per second, if the rate allows it.
    pub fn take(&mut self, now: Time, per_second: u32) -> bool {
        if per_second == 0 {
            return false;
        }
        let interval = Span::from_secs(1).over(per_second.into());
        let is_allowed = self.next.since(now) <= interval.times(BURST);
        if is_allowed {
            self.next = self.next.max(now) + interval;
        }
        is_allowed
    }
}

/// Requests of unknown nodes.
#[derive(Serialize, Deserialize)]
pub(super) struct UnknownNodes {
    rates: RequestRates,
    together: Bucket,
    /// By a hash of the source; allocated when the first of them asks.
    sources: Box<[Bucket]>,
    seed: u64,
}

impl UnknownNodes {
    pub fn new(rates: RequestRates, seed: u64) -> Self {
        UnknownNodes { rates, together: Bucket::default(), sources: Box::default(), seed }
    }

    /// Whether a request of an unknown node with this name is answered.
    pub fn allow(&mut self, now: Time, source: u64) -> bool {
        if self.sources.is_empty() {
            self.sources = vec![Bucket::default(); SOURCES].into();
        }
        let slot = mix(self.seed ^ mix(source)) as usize % SOURCES;
        // A source over its own rate takes nothing from the others.
        let mut of_source = self.sources[slot];
        if !of_source.take(now, self.rates.unknown) || !self.together.take(now, self.rates.all_unknown) {
            return false;
        }
        self.sources[slot] = of_source;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests answered of `count`, one every `interval`, of a number of sources in turn.
    fn answered(count: u64, interval: Span, sources: u64) -> u64 {
        let mut nodes = UnknownNodes::new(RequestRates::default(), 1);
        (0..count).filter(|&i| nodes.allow(Time(i * interval.0), i % sources)).count() as u64
    }

    #[test]
    fn an_unknown_node_gets_its_rate_and_all_of_them_theirs() {
        // A second of a million requests.
        let flood = |sources| answered(1_000_000, Span::from_micros(1), sources);
        assert!((10_000..10_100).contains(&flood(1)), "{}", flood(1));
        assert!((100_000..100_100).contains(&flood(1_000_000)), "{}", flood(1_000_000));
        // Below its rate everything is answered.
        assert_eq!(answered(1000, Span::from_micros(101), 1), 1000);
    }

    #[test]
    fn a_rate_of_zero_answers_nothing() {
        let rates = RequestRates { unknown: 0, ..RequestRates::default() };
        assert!(!UnknownNodes::new(rates, 1).allow(Time(5), 1));
    }

    #[test]
    fn sources_are_told_apart_whatever_the_seed() {
        let rates = RequestRates { unknown: 1, all_unknown: u32::MAX, peer: 0 };
        for seed in [0, 1, 0x5555_5555_5555_5555, u64::MAX] {
            let mut nodes = UnknownNodes::new(rates, seed);
            // One source after the other uses its rate up; hardly ever do two share one.
            let mut all_of =
                |source| (0..200).filter(|i| nodes.allow(Time(1000 * (200 * source + i)), source)).count();
            let answered: Vec<_> = (0..20).map(&mut all_of).collect();
            let whole = answered.iter().filter(|&&count| count as u64 == BURST + 1).count();
            assert!(whole >= 18, "seed {seed}: {answered:?}");
        }
    }
}
