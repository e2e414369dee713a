use std::sync::Arc;

use openmrc_wire::Ev;

use super::*;
use crate::mrc::{CcProfile, LoadBalancing, PathConfig, PathModel};
use crate::nobody::Nobody;
use crate::profile::{EvProfile, PathEntry};

const NOW: Time = Time(1 << 40);
const RTT: Span = Span::from_micros(10);

/// Two planes with two paths each.
fn shared(trimming: bool, load_balancing: LoadBalancing) -> Shared {
    let path = |i: u32| PathEntry { ev: Ev(i), port: (i % 2) as u8 };
    let profile = Arc::new(EvProfile::new(&(0..4).map(path).collect::<Vec<_>>()).unwrap());
    let paths = PathConfig { load_balancing, ..PathConfig::new(profile, PathModel::new(RTT, trimming)) };
    Shared::new(NOW, &QpConfig::new(1, 2, paths, Arc::new(CcProfile::FixedWindow(1))))
}

#[test]
fn a_round_trip_moves_the_mean_by_an_eighth_and_tells_how_much_longer_than_the_shortest_it_was() {
    let mut rtt = RttEstimate::new(Span(800));
    for (sample, longer, smoothed, shortest) in
        [(1600, 800, 900, 800), (500, 0, 850, 500), (650, 150, 825, 500)]
    {
        assert_eq!(rtt.update(Span(sample)), Span(longer));
        assert_eq!((rtt.smoothed, rtt.shortest), (Span(smoothed), Span(shortest)));
    }
}

#[test]
fn a_marked_path_misses_one_turn_and_two_more_for_each_target_delay_by_which_it_is_slower() {
    let shared = shared(true, LoadBalancing::EvStates);
    let target = shared.config.target_qdelay;
    assert_eq!(target, Span::from_nanos(7500));
    for (half_targets, turns) in [(0, 1), (1, 2), (2, 3), (3, 4), (14, 15), (15, 16), (16, 16), (1000, 16)] {
        let slower = RTT + target.over(2).times(half_targets);
        assert_eq!(shared.turns_to_miss(slower), turns, "{half_targets} halves");
        if half_targets > 0 && turns < 16 {
            assert_eq!(shared.turns_to_miss(slower - Span(1)), turns - 1, "{half_targets} halves");
        }
    }
    assert_eq!(shared.turns_to_miss(Span::ZERO), 1, "a path that is quicker than the others");
}

#[test]
fn a_loss_is_a_drop_only_on_a_usable_path_whose_losses_do_not_stand_out_where_switches_drop() {
    let lost = |shared: &mut Shared, index| shared.path_lost(NOW, index, RTT, &mut Nobody);
    // Where switches trim, the path has failed.
    let mut trimming = shared(true, LoadBalancing::EvStates);
    assert!(lost(&mut trimming, 0));
    assert_eq!(trimming.paths.state(0), EvState::AssumedBad);
    // Also under a rule that condemns no path.
    let mut other = shared(true, LoadBalancing::Oblivious);
    assert!(lost(&mut other, 0));
    assert_eq!(other.paths.state(0), EvState::Good);

    // Two losses in a row on a path whose plane loses nothing stand out.
    let mut dropping = shared(false, LoadBalancing::EvStates);
    assert!(!lost(&mut dropping, 0));
    assert_eq!(dropping.paths.state(0), EvState::Good);
    assert!(lost(&mut dropping, 0));
    assert_eq!(dropping.paths.state(0), EvState::AssumedBad);
    // What is lost on a path that is condemned already has failed with it.
    assert!(lost(&mut dropping, 0));
    assert!(!lost(&mut dropping, 1));
    // A port that is down has failed.
    dropping.set_ports_up(NOW, PortSet::one(0), PortSet::first(2));
    assert!(lost(&mut dropping, 1));
    assert_eq!(dropping.paths.state(1), EvState::Good);
}
