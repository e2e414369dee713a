use std::sync::{Arc, Mutex};

use super::*;
use crate::mrc::paths::tests::{paths, select, sent_per_plane, with_config};
use crate::mrc::{Choice, CustomSelector, LoadBalancing, PathSelector};

/// Paths on some planes, as many on each, without a reserve.
fn without_reserve(planes: u8, active: u16) -> Paths {
    paths(planes, active, 0, 1)
}

#[test]
fn four_condemned_in_a_row_condemn_a_plane_unless_it_is_the_only_one() {
    for (planes, fourth) in [(1, Condemned::Path), (2, Condemned::Plane)] {
        let mut paths = paths(planes, 16, 16, 1);
        let on_plane: Vec<_> = paths.on_plane(0).collect();
        let condemned: Vec<_> = on_plane[..5].iter().map(|&index| paths.condemn(index)).collect();
        assert_eq!(condemned[..3], [Condemned::Path; 3]);
        assert_eq!(condemned[3..], [fourth; 2], "{planes} planes");
    }
}

#[test]
fn a_path_is_condemned_until_it_is_restored_or_denied() {
    let mut paths = paths(2, 8, 8, 1);
    assert!(!paths.any_condemned());
    assert_eq!([paths.condemn(0), paths.condemn(1), paths.condemn(1)], {
        [Condemned::Path, Condemned::Path, Condemned::Unchanged]
    });
    assert!(paths.restore(0, EvInput::ProbesGood));
    assert!(!paths.restore(0, EvInput::ProbesGood), "it is in use already");
    assert!(paths.any_condemned());
    paths.set_denied(1, true);
    paths.set_denied(1, true);
    assert!(!paths.any_condemned(), "the controller's word counts");
    assert!(!paths.restore(1, EvInput::ProbesGood) && paths.state(1) == EvState::Denied);
    paths.set_denied(1, false);
    paths.set_denied(2, true);
    paths.set_denied(2, false);
    assert!(!paths.any_condemned());
    assert_eq!([0, 1, 2].map(|index| paths.state(index)), [EvState::Good; 3]);
    paths.condemn(2);
    assert!(paths.any_condemned());
    assert!(paths.restore(2, EvInput::ProbesMarked) && paths.state(2) == EvState::Skip);
    assert!(!paths.any_condemned());
}

#[test]
fn a_plane_that_returns_neither_makes_up_for_what_it_missed_nor_is_preferred() {
    let mut paths = without_reserve(2, 8);
    let both = PortSet::first(2);
    sent_per_plane(&mut paths, both, 10);
    let on_plane: Vec<_> = paths.on_plane(0).collect();
    on_plane.iter().for_each(|&index| _ = paths.condemn(index));
    assert_eq!(sent_per_plane(&mut paths, both, 100), [0, 100]);
    for index in on_plane {
        assert!(paths.restore(index, EvInput::ProbesGood));
        assert!(!paths.restore(index, EvInput::ProbesGood));
    }
    let planes: Vec<_> = (0..100).map(|_| select(&mut paths, both).unwrap() % 2).collect();
    assert_eq!(planes, [1, 0].repeat(50));
}

#[test]
fn a_path_that_returns_to_a_plane_in_use_changes_no_shares() {
    let mut paths = without_reserve(2, 8);
    for _ in 0..10 {
        paths.condemn(0);
        assert!(paths.restore(0, EvInput::ProbesGood));
    }
    assert_eq!(sent_per_plane(&mut paths, PortSet::first(2), 100), [50, 50]);
}

#[test]
fn a_plane_that_returns_takes_its_share_of_the_planes_in_use_whatever_others_have_sent() {
    let mut paths = without_reserve(3, 12);
    assert_eq!(sent_per_plane(&mut paths, PortSet::one(0), 100), [100, 0, 0]);
    for index in paths.on_plane(0).chain(paths.on_plane(2)) {
        paths.condemn(index);
    }
    for index in paths.on_plane(2) {
        assert!(paths.restore(index, EvInput::ProbesGood));
    }
    // It is not preferred either: the other plane is one packet ahead.
    assert_eq!(sent_per_plane(&mut paths, PortSet::first(3), 101), [0, 51, 50]);
}

/// Times of the trials of path 0, which is condemned again at once, in units of the round-trip time; at `good` trials it
/// delivers before.
fn trials(mut paths: Paths, rtt: Span, number: usize, good: &[usize]) -> Vec<u64> {
    let up = PortSet::first(2);
    let mut now = Time::ZERO;
    let mut times = Vec::new();
    while times.len() < number {
        if let Some(index) = paths.try_condemned(now, up, rtt) {
            assert_eq!((index, paths.state(index)), (0, EvState::Good));
            if good.contains(&times.len()) {
                paths.alive(index);
            }
            paths.condemn(index);
            times.push(now.0 / rtt.0);
            assert_eq!(paths.try_condemned(Time((now + rtt).0 - 1), up, rtt), None, "within a round trip");
        }
        now += rtt;
    }
    times
}

#[test]
fn where_other_paths_are_usable_each_trial_in_vain_doubles_the_time_to_the_next() {
    let too_few = || {
        let mut paths = with_config(2, |config| {
            (config.paths.active, config.paths.backup, config.paths.min_active) = (8, 0, 8);
        });
        paths.condemn(0);
        paths
    };
    let rtt = Span::from_micros(10);
    assert_eq!(trials(too_few(), rtt, 7, &[]), [0, 1, 3, 7, 15, 31, 63]);
    // The interval was set before the path delivered.
    assert_eq!(trials(too_few(), rtt, 7, &[2]), [0, 1, 3, 7, 8, 10, 14]);
    // No interval is longer than a second, however many trials were in vain.
    let rtt = Span::from_millis(125);
    let expected: Vec<_> = [0, 1, 3].into_iter().chain((0..70).map(|i| 7 + 8 * i)).collect();
    assert_eq!(trials(too_few(), rtt, 73, &[]), expected);
}

#[test]
fn with_nothing_else_usable_a_trial_is_made_every_round_trip() {
    let mut paths = without_reserve(2, 8);
    (1..8).for_each(|index| paths.set_denied(index, true));
    paths.condemn(0);
    assert_eq!(trials(paths, Span::from_micros(10), 30, &[]), (0..30).collect::<Vec<_>>());
}

/// Writes down what it is told.
struct Listener(Arc<Mutex<Vec<(&'static str, u16)>>>);

impl PathSelector for Listener {
    fn select(&mut self, _: &Choice) -> Option<u16> {
        None
    }
    fn acked(&mut self, path: u16) {
        self.0.lock().unwrap().push(("acked", path));
    }
    fn congested(&mut self, path: u16) {
        self.0.lock().unwrap().push(("congested", path));
    }
    fn lost(&mut self, path: u16) {
        self.0.lock().unwrap().push(("lost", path));
    }
}

fn own(told: &Arc<Mutex<Vec<(&'static str, u16)>>>) -> LoadBalancing {
    let told = Arc::clone(told);
    LoadBalancing::Custom(CustomSelector(Arc::new(move |_, _| Box::new(Listener(Arc::clone(&told))))))
}

fn selected_by(how: LoadBalancing) -> Paths {
    with_config(2, |config| config.paths.load_balancing = how)
}

#[test]
fn only_mrcs_rule_takes_paths_out_of_use_and_lets_them_miss_several_turns() {
    let told = Arc::default();
    let others = [LoadBalancing::Oblivious, LoadBalancing::Reps, LoadBalancing::EvSkip, own(&told)];
    for how in [LoadBalancing::EvStates].into_iter().chain(others) {
        let is_mrc = matches!(how, LoadBalancing::EvStates);
        let mut paths = selected_by(how.clone());
        let expected = if is_mrc { Condemned::Path } else { Condemned::Unchanged };
        assert_eq!(paths.condemn(0), expected, "{how:?}");
        assert_eq!(paths.state(0) == EvState::AssumedBad, is_mrc, "{how:?}");
        paths.mark(1, 5);
        let mut missed = 0;
        while paths.state(1) == EvState::Skip {
            paths.record_mut(1).pass_turn();
            missed += 1;
        }
        assert_eq!(missed, if is_mrc { 5 } else { 1 }, "{how:?}");
    }
}

#[test]
fn a_selector_of_ones_own_hears_what_became_of_packets() {
    let told = Arc::default();
    let mut paths = selected_by(own(&told));
    paths.alive(3);
    paths.mark(4, 2);
    paths.condemn(5);
    paths.alive(5);
    assert_eq!(*told.lock().unwrap(), [("acked", 3), ("congested", 4), ("lost", 5), ("acked", 5)]);
}

#[test]
fn recycled_paths_are_those_that_packets_arrived_on_unmarked() {
    let mut paths = selected_by(LoadBalancing::Reps);
    let plane = PortSet::one(1);
    paths.alive(9);
    paths.alive(21);
    paths.mark(21, 1);
    assert_eq!(select(&mut paths, plane), Some(9));
    // After a loss what is stored is used again and again.
    (0..8).for_each(|index| paths.alive(2 * index + 1));
    paths.condemn(7);
    let taken: Vec<_> = (0..16).map(|_| select(&mut paths, plane).unwrap()).collect();
    assert_eq!(taken, [1, 3, 5, 7, 9, 11, 13, 15].repeat(2));
}

#[test]
fn arrivals_matter_to_selectors_that_learn_from_them_and_once_paths_were_lost_on() {
    let told = Arc::default();
    for (how, learns) in [
        (LoadBalancing::EvStates, false),
        (LoadBalancing::Oblivious, false),
        (LoadBalancing::Reps, true),
        (LoadBalancing::EvSkip, false),
        (own(&told), true),
    ] {
        assert_eq!(selected_by(how.clone()).hears_arrivals(), learns, "{how:?}");
    }
    let mut condemned = without_reserve(2, 8);
    condemned.condemn(0);
    assert!(condemned.hears_arrivals());
    let mut dropping = with_config(2, |config| config.paths.model.trims = false);
    assert!(!dropping.hears_arrivals());
    dropping.blame(Time::ZERO, 0, PortSet::first(2), Span::from_micros(10));
    assert!(dropping.hears_arrivals());
}
