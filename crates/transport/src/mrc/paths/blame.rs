//! What an untrimmed loss says about its path. Where switches trim, it is a failure. Where they drop, it is more likely
//! congestion, and a path is taken for broken only if its losses stand out from those of its plane \[choice\].
//!
//! The import circle with `paths` is intended: the rule and the state that it needs stay in one file.

use super::{Condemned, EvIndex, PLANE_STREAK, Paths};
use crate::api::PortSet;
use crate::mrc::config::QpConfig;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Losses and arrivals over which the share of lost packets of a plane is averaged, as a shift.
const MEMORY: u32 = 6;
/// The largest share, 2^16 - 1, is that of a plane that loses everything.
const ALL: u16 = u16::MAX;

/// Shares of lost packets, and how many bursts in a row a path that loses no more than its plane still loses in one of
/// 10,000 cases: ln(1/10,000) / ln(share).
const STANDS_OUT: [(u16, u8); 5] =
    [(share(1), 2), (share(10), 4), (share(25), 7), (share(40), 10), (share(50), 14)];
const STANDS_OUT_ABOVE: u8 = 20;

const fn share(percent: u32) -> u16 {
    (ALL as u32 * percent / 100) as u16
}

/// What is known of the losses of a plane.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct PlaneLosses {
    /// Losses since the last arrival, and when the first of them was found.
    streak: u8,
    since: Time,
    /// Average share of lost packets before that.
    share: u16,
}

/// What is known of the losses of all planes, and how many packets follow each other on one path. An array, so that a
/// queue pair has one pointer to it.
#[derive(Serialize, Deserialize)]
pub(super) struct Losses {
    planes: [PlaneLosses; PortSet::MAX_PORTS],
    burst: u8,
}

impl Losses {
    /// Nothing where switches trim: an untrimmed loss is a failure there.
    pub fn new(config: &QpConfig) -> Option<Box<Self>> {
        let drops = !config.paths.model.trims || !config.caps.trim_nack;
        drops.then(|| Box::new(Losses { planes: Default::default(), burst: config.paths.burst.max(1) }))
    }
}

impl PlaneLosses {
    fn lost(&mut self, now: Time) {
        if self.streak == 0 {
            self.since = now;
        }
        self.streak = self.streak.saturating_add(1);
    }

    fn arrived(&mut self) {
        for _ in 0..std::mem::take(&mut self.streak) {
            self.share += (ALL - self.share) >> MEMORY;
        }
        self.share -= self.share >> MEMORY;
    }

    /// A plane that still delivers is not dead. Losses are found many at a time, so even more of them in a row than its
    /// share explains prove nothing until two round trips through full queues have passed.
    fn is_dead(&self, now: Time, rtt: Span, burst: u8) -> bool {
        self.streak >= self.losses_that_stand_out(burst).max(PLANE_STREAK)
            && now.since(self.since) >= rtt.times(2)
    }

    /// How many losses in a row the share does not explain, where packets of a burst are lost together.
    fn losses_that_stand_out(&self, burst: u8) -> u8 {
        let above = |&&(share, _): &&(u16, u8)| self.share < share;
        let bursts = STANDS_OUT.iter().find(above).map_or(STANDS_OUT_ABOVE, |&(_, bursts)| bursts);
        bursts.saturating_mul(burst)
    }
}

impl Paths {
    /// Whether an untrimmed loss may be congestion.
    pub(in crate::mrc) fn may_drop(&self) -> bool {
        self.losses.is_some()
    }

    /// A packet was lost on this path without being trimmed: what has failed. Ports `up` can be used, and a round trip
    /// takes up to `rtt`.
    pub(in crate::mrc) fn blame(&mut self, now: Time, index: EvIndex, up: PortSet, rtt: Span) -> Condemned {
        let plane = self.plane_of(index);
        // The last plane is not given up: there is nothing to use instead.
        let has_others = self.any_usable(up.without(self.planes[plane].port));
        let Some(losses) = &mut self.losses else { return Condemned::Path };
        self.condemned.ever = true;
        let burst = losses.burst;
        let losses = &mut losses.planes[plane];
        losses.lost(now);
        if has_others && losses.is_dead(now, rtt, burst) {
            return Condemned::Plane;
        }
        let limit = losses.losses_that_stand_out(burst);
        let record = self.record_mut(index);
        if !record.state().usable() {
            return Condemned::Unchanged;
        }
        if record.count_loss() < limit { Condemned::Unchanged } else { Condemned::Path }
    }

    /// A packet sent on this path has arrived: what was lost before is forgiven.
    pub(super) fn forgive(&mut self, index: EvIndex) {
        let plane = self.plane_of(index);
        if let Some(losses) = &mut self.losses {
            losses.planes[plane].arrived();
            self.record_mut(index).forget_losses();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mrc::paths::tests::with_config;

    #[test]
    fn a_plane_is_dead_only_after_two_round_trips_of_nothing_but_losses() {
        let rtt = Span::from_micros(100);
        let mut losses = PlaneLosses::default();
        let begin = Time(1);
        (0..100).for_each(|_| losses.lost(begin));
        assert!(!losses.is_dead(begin, rtt, 1), "found at once");
        losses.lost(begin + rtt);
        assert!(!losses.is_dead(begin + rtt, rtt, 1), "within a round trip");
        losses.lost(begin + rtt.times(2));
        assert!(losses.is_dead(begin + rtt.times(2), rtt, 1));
        losses.arrived();
        losses.lost(begin + rtt.times(9));
        assert!(!losses.is_dead(begin + rtt.times(9), rtt, 1));
    }

    #[test]
    fn the_more_a_plane_loses_the_more_must_a_path_lose_to_stand_out() {
        let after = |lost: usize| {
            let mut losses = PlaneLosses::default();
            for packet in 0..2000 {
                if packet % 100 < lost { losses.lost(Time(1)) } else { losses.arrived() }
            }
            // The average swings by the packets that it remembers.
            losses.losses_that_stand_out(1)
        };
        assert_eq!(after(0), 2);
        assert!(after(30) > after(0) && after(60) > after(30));
        assert_eq!(after(90), STANDS_OUT_ABOVE);
        assert_eq!(
            after(100),
            after(0),
            "nothing arrived: whether the plane is dead is asked, not its share"
        );
    }

    #[test]
    fn on_a_plane_that_loses_nothing_else_the_second_burst_lost_in_a_row_condemns_its_path() {
        for burst in [1, 4] {
            let mut paths = with_config(2, |config| {
                (config.paths.model.trims, config.paths.burst) = (false, burst);
            });
            let mut lose = |index| paths.blame(Time::ZERO, index, PortSet::first(2), Span::from_micros(10));
            assert_eq!(lose(2), Condemned::Unchanged, "each path has its own count");
            for _ in 1..2 * burst {
                assert_eq!(lose(0), Condemned::Unchanged);
            }
            assert_eq!(lose(0), Condemned::Path);
        }
    }
}
