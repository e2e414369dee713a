use std::collections::BTreeMap;

use super::*;
use crate::mrc::LoadBalancing;
use crate::mrc::paths::tests::{paths, select, with_config};

const ONE: PortSet = PortSet::first(1);
const TWO: PortSet = PortSet::first(2);

/// Some paths on one plane, all in rotation. And the order in which they take turns.
fn one_plane(active: u16) -> (Paths, Vec<EvIndex>) {
    let mut paths = paths(1, active, 0, 1);
    let order = (0..active).map(|_| select(&mut paths, ONE).unwrap()).collect();
    (paths, order)
}

#[test]
fn a_pause_ends_a_burst_of_which_eight_packets_were_sent() {
    for sent in 1..16 {
        let mut paths = paths(2, 16, 16, 16);
        assert_eq!(paths.burst_plane(), None);
        let burst: Vec<_> = (0..sent).map(|_| select(&mut paths, TWO).unwrap()).collect();
        assert!(burst.iter().all(|index| *index == burst[0]));
        let plane = paths.plane_of(burst[0]);
        assert_eq!(paths.burst_plane(), Some(plane));
        paths.pause_burst();
        let lasts = sent < 8;
        assert_eq!(paths.burst_plane(), lasts.then_some(plane), "after {sent} packets");
        assert_eq!(select(&mut paths, TWO) == Some(burst[0]), lasts, "after {sent} packets");
    }
}

#[test]
fn a_pause_does_not_end_short_bursts_and_the_plane_of_the_last_one_is_known() {
    for burst in [1, 7] {
        let mut paths = paths(4, 16, 16, burst);
        for _ in 0..20 {
            let index = select(&mut paths, PortSet::first(4)).unwrap();
            paths.pause_burst();
            assert_eq!(paths.burst_plane(), Some(paths.plane_of(index)));
        }
    }
    let mut paths = with_config(4, |config| config.paths.load_balancing = LoadBalancing::EvSkip);
    select(&mut paths, PortSet::first(4)).unwrap();
    assert_eq!(paths.burst_plane(), None, "only MRC's rule knows bursts");
}

#[test]
fn a_random_path_is_any_of_those_in_rotation() {
    for how in [LoadBalancing::Oblivious, LoadBalancing::Reps] {
        let mut paths = with_config(4, |config| {
            (config.paths.active, config.paths.backup) = (32, 32);
            config.paths.load_balancing = how.clone();
        });
        let mut taken = vec![0; paths.len()];
        for _ in 0..3200 {
            taken[usize::from(select(&mut paths, PortSet::first(4)).unwrap())] += 1;
        }
        // 100 each, and five standard deviations.
        assert!(taken[..32].iter().all(|n| (50..150).contains(n)), "{how:?}: {taken:?}");
        assert_eq!(taken[32..], [0; 32], "{how:?}: the reserve is not used");
    }
}

#[test]
fn one_packet_lets_one_congested_path_miss_a_turn() {
    let (mut paths, order) = one_plane(4);
    let [a, b, c, d] = order[..] else { panic!("{order:?}") };
    [a, b, c].iter().for_each(|&index| paths.mark(index, 1));
    assert_eq!(select(&mut paths, ONE), Some(d));
    assert_eq!([a, b, c].map(|index| paths.state(index)), [EvState::Good, EvState::Skip, EvState::Skip]);
    // b misses its turn on the way to the second d, and c on the way to the third one.
    let taken: Vec<_> = (0..8).map(|_| select(&mut paths, ONE).unwrap()).collect();
    assert_eq!(taken, [a, d, a, b, d, a, b, c]);
}

#[test]
fn every_new_order_is_equally_likely() {
    let mut paths = with_config(1, |config| {
        (config.paths.active, config.paths.backup, config.paths.rotation_turns) = (3, 0, 1);
    });
    while paths.planes[0].cursor != 0 {
        select(&mut paths, ONE);
    }
    let mut turn = || [(); 3].map(|()| select(&mut paths, ONE).unwrap());
    let mut last = turn();
    let mut changes = BTreeMap::new();
    for _ in 0..1200 {
        let next = turn();
        // Where in the last order each place has its path from.
        let from = next.map(|index| last.iter().position(|&before| before == index).unwrap());
        *changes.entry(from).or_insert(0) += 1;
        last = next;
    }
    // Each of six permutations 200 times, and five standard deviations.
    assert_eq!(changes.len(), 6, "{changes:?}");
    assert!(changes.values().all(|n| (135..265).contains(n)), "{changes:?}");
}

#[test]
fn condemned_paths_are_tried_in_turn_and_first_of_all_one_that_has_answered() {
    let mut paths = paths(2, 8, 0, 1);
    let next = |paths: &mut Paths, times| -> Vec<_> {
        (0..times).map(|_| paths.next_condemned(|_| true).unwrap()).collect()
    };
    assert_eq!(paths.next_condemned(|_| true), None);
    for index in 0..7 {
        paths.condemn(index);
    }
    assert_eq!(next(&mut paths, 9), [1, 2, 3, 4, 5, 6, 0, 1, 2]);
    paths.record_mut(5).set_probing(1, 0);
    assert!(paths.has_succeeded(5) && !paths.has_succeeded(4));
    assert_eq!(next(&mut paths, 3), [5, 5, 5]);
    assert_eq!(paths.next_condemned(|port| port == 0), Some(6), "path 5 is on port 1");
    paths.record_mut(5).set_probing(0, 1);
    assert!(!paths.has_succeeded(5));
    assert_eq!(next(&mut paths, 3), [0, 1, 2]);
}

#[test]
fn a_probe_of_a_plane_takes_a_usable_path_or_a_condemned_one_but_none_that_is_denied() {
    let mut paths = paths(2, 8, 0, 1);
    for plane in [0, 1] {
        let mut probed: Vec<_> = (0..4).map(|_| paths.choose_to_probe(plane).unwrap()).collect();
        probed.sort_unstable();
        assert!(probed.into_iter().eq(paths.on_plane(plane)), "each in turn");
        assert_eq!(paths.condemned_to_probe(plane), None);
    }
    for index in [0, 1, 3, 5] {
        paths.condemn(index);
    }
    assert_eq!([(); 3].map(|()| paths.condemned_to_probe(0)), [Some(0); 3]);
    assert_eq!([(); 4].map(|()| paths.condemned_to_probe(1)), [1, 3, 5, 1].map(Some));
    assert_eq!([(); 2].map(|()| paths.choose_to_probe(1)), [7, 7].map(Some), "it is still usable");
    paths.set_denied(7, true);
    assert_eq!([(); 3].map(|()| paths.choose_to_probe(1)), [3, 5, 1].map(Some));
    for index in [1, 3, 5] {
        assert!(paths.any_allowed(1));
        paths.set_denied(index, true);
    }
    assert!(paths.any_allowed(0) && !paths.any_allowed(1));
    assert_eq!((paths.choose_to_probe(1), paths.condemned_to_probe(1)), (None, None));
    assert_eq!(paths.condemned_to_probe(0), Some(0));
}
