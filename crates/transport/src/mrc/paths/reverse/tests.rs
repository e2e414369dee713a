use std::sync::Arc;

use openmrc_wire::Ev;

use super::*;
use crate::mrc::config::QpConfig;
use crate::mrc::{CcProfile, PathConfig, PathModel};
use crate::profile::{EvProfile, PathEntry};

const RTT: Span = Span::from_micros(10);
const UP: PortSet = PortSet::first(2);

/// Four paths in each of some planes, and their reverse paths, of which the first of each plane works.
fn confirmed(planes: u8, now: Time) -> (Paths, ReversePaths) {
    let list: Vec<_> = (0..4u32)
        .flat_map(|i| (0..planes).map(move |port| PathEntry { ev: Ev(i << 4 | u32::from(port)), port }))
        .collect();
    let profile = Arc::new(EvProfile::new(&list).unwrap());
    let config = PathConfig {
        active: list.len() as u16,
        backup: 0,
        ..PathConfig::new(profile, PathModel::new(RTT, true))
    };
    let paths = Paths::new(&QpConfig::new(1, 2, config, Arc::new(CcProfile::FixedWindow(1))));
    let mut reverse = ReversePaths::new(&paths);
    for index in 0..EvIndex::from(planes) {
        reverse.confirm(now, &paths, index);
    }
    (paths, reverse)
}

/// Answers a probe after some data packets; the path.
fn answer(reverse: &mut ReversePaths, paths: &Paths, now: Time, received: u32) -> EvIndex {
    reverse.next_for_answer(now, paths, UP, received, RTT).unwrap()
}

#[test]
fn a_path_whose_answer_was_lost_is_left_and_all_others_are_tried() {
    let mut now = Time(1 << 40);
    let (paths, mut reverse) = confirmed(1, now);
    assert_eq!(answer(&mut reverse, &paths, now, 5), 0);
    // The same question on another path: its answer is not lost yet.
    assert_eq!(answer(&mut reverse, &paths, now + RTT.over(2), 5), 0);
    let mut tried = Vec::new();
    for _ in 0..4 {
        now += RTT.times(2);
        tried.push(answer(&mut reverse, &paths, now, 5));
    }
    assert_ne!(tried[0], 0);
    tried.sort_unstable();
    assert_eq!(tried, [0, 1, 2, 3]);
    reverse.confirm(now, &paths, 2);
    assert_eq!(answer(&mut reverse, &paths, now, 5), 2);
}

#[test]
fn a_question_after_more_data_doubts_nothing() {
    let mut now = Time(1 << 40);
    let (paths, mut reverse) = confirmed(1, now);
    for received in 0..10 {
        assert_eq!(answer(&mut reverse, &paths, now, received), 0);
        now += RTT.times(3);
    }
}

#[test]
fn of_two_planes_the_one_that_lost_the_answer_is_left() {
    let mut now = Time(1 << 40);
    let (paths, mut reverse) = confirmed(2, now);
    let lost = answer(&mut reverse, &paths, now, 5);
    now += RTT.times(2);
    let other = answer(&mut reverse, &paths, now, 5);
    assert_ne!(paths.plane_of(lost), paths.plane_of(other));
    // From now on all feedback takes the other plane.
    for _ in 0..4 {
        assert_eq!(reverse.next(now, &paths, UP, false), Some(other));
    }
}

#[test]
fn times_are_told_apart_however_long_nothing_was_sent() {
    let units = |n: u64| Span(n << 20);
    for start in [2, 1 << 31, (1 << 32) - 5, 7 << 30].map(|n: u64| Time(n << 20)) {
        for (later, leaves) in [(units(0), false), (RTT.over(2), false), (RTT.times(2), true)] {
            let (paths, mut reverse) = confirmed(1, start);
            let path = answer(&mut reverse, &paths, start, 5);
            assert_eq!(answer(&mut reverse, &paths, start + later, 5) != path, leaves, "{start:?} {later:?}");
        }
        // More than half of the range later.
        let (paths, mut reverse) = confirmed(1, start);
        let path = answer(&mut reverse, &paths, start, 5);
        assert_ne!(answer(&mut reverse, &paths, start + Span::from_secs(4000), 5), path);
    }
}

#[test]
fn without_a_path_that_works_every_packet_is_worth_a_probe() {
    let mut now = Time(1 << 40);
    let (paths, mut reverse) = confirmed(1, now);
    assert!(reverse.path_to_probe(now, &paths, 0, RTT, 7).is_some());
    now += AT_LATEST.times(2);
    assert_eq!(reverse.path_to_probe(now, &paths, 1, RTT, 7), None, "one packet, and a path that works");
    reverse.doubt(&paths, 0);
    assert!(reverse.path_to_probe(now, &paths, 1, RTT, 7).is_some());
    assert_eq!(reverse.path_to_probe(now + RTT, &paths, 2, RTT, 7), None, "one probe in two round trips");
    now += RTT.times(3);
    assert_eq!(reverse.path_to_probe(now, &paths, 1, RTT, 7), None, "nothing was received since");
    assert!(reverse.path_to_probe(now, &paths, 2, RTT, 7).is_some());
}

/// The planes of the next reports.
fn planes_of_reports<const N: usize>(reverse: &mut ReversePaths, paths: &Paths, now: Time) -> [usize; N] {
    let up = PortSet::first(paths.plane_count());
    [(); N].map(|()| paths.plane_of(reverse.next(now, paths, up, false).unwrap()))
}

#[test]
fn reports_take_turns_over_planes_and_can_be_told_where_to_go_on() {
    let now = Time(1 << 40);
    let (paths, mut known) = confirmed(3, now);
    let mut unknown = ReversePaths::new(&paths);
    for reverse in [&mut known, &mut unknown] {
        assert_eq!(planes_of_reports(reverse, &paths, now), [0, 1, 2, 0, 1, 2, 0]);
        reverse.prefer(0);
        assert_eq!(planes_of_reports(reverse, &paths, now), [0, 1]);
        reverse.prefer(1);
        assert_eq!(planes_of_reports(reverse, &paths, now), [1, 2, 0]);
    }
    // Planes that are down lose their turn.
    let up = PortSet::first(3).without(1);
    let next = [(); 4].map(|()| paths.plane_of(known.next(now, &paths, up, false).unwrap()));
    assert_eq!(next, [2, 0, 2, 0]);
    assert_eq!(known.next(now, &paths, PortSet::EMPTY, false), None);
}

#[test]
fn a_plane_whose_paths_are_unknown_tries_each_in_turn() {
    let now = Time(1 << 40);
    let (paths, _) = confirmed(2, now);
    let mut reverse = ReversePaths::new(&paths);
    let taken = [(); 10].map(|()| reverse.next(now, &paths, UP, false).unwrap());
    assert_eq!(taken, [2, 3, 4, 5, 6, 7, 0, 1, 2, 3]);
}

#[test]
fn confirmations_count_at_all_times_until_they_are_20_ms_old() {
    // The origin, where times look like the words for unknown and doubted paths, and where they do so again.
    for confirmed_at in [0, 1, 1 << 20, 1 << 21, 1 << 40, 1 << 52, (1 << 52) + (1 << 20)].map(Time) {
        let (paths, mut reverse) = confirmed(1, confirmed_at);
        assert!(reverse.path_to_probe(confirmed_at, &paths, 0, RTT, 7).is_none_or(|index| index < 4));
        for later in [Span::ZERO, Span::from_millis(19)] {
            let now = confirmed_at + later;
            assert!(!reverse.is_blind(now), "{confirmed_at:?} {later:?}");
            assert_eq!(reverse.next(now, &paths, UP, true), Some(0));
        }
        assert!(reverse.is_blind(confirmed_at + Span::from_millis(21)), "{confirmed_at:?}");
    }
}

#[test]
fn with_no_path_that_works_every_second_report_goes_where_the_peer_was_heard() {
    let now = Time(1 << 40);
    let (paths, mut reverse) = confirmed(3, now);
    (0..3).for_each(|index| reverse.doubt(&paths, index));
    reverse.heard_on(1);
    assert_eq!(planes_of_reports(&mut reverse, &paths, now), [1, 0, 1, 1, 1, 2, 1, 0, 1]);
    // A packet on another port does not change whose turn it is.
    reverse.heard_on(2);
    assert_eq!(planes_of_reports(&mut reverse, &paths, now), [1, 2, 2, 2, 0, 2, 1]);
    reverse.heard_on(0);
    reverse.heard_on(1);
    assert_eq!(planes_of_reports(&mut reverse, &paths, now), [1, 2, 1, 0]);
}

#[test]
fn a_path_in_doubt_is_left_to_others_of_its_plane_that_are_not_condemned() {
    let now = Time(1 << 40);
    let (mut paths, mut reverse) = confirmed(1, now);
    reverse.doubt(&paths, 0);
    paths.condemn(0);
    let mut next = |paths: &Paths| reverse.next(now, paths, UP, true);
    paths.condemn(1);
    assert_eq!([(); 4].map(|()| next(&paths)), [2, 3, 2, 3].map(Some));
    // Where all are condemned each is tried in turn, but none that is denied.
    paths.set_denied(3, true);
    paths.condemn(2);
    assert_eq!([(); 4].map(|()| next(&paths)), [0, 1, 2, 0].map(Some));
    (1..3).for_each(|index| paths.set_denied(index, true));
    assert_eq!([(); 2].map(|()| next(&paths)), [0, 0].map(Some));
    paths.set_denied(0, true);
    assert_eq!(next(&paths), None);
}

#[test]
fn a_denied_path_is_replaced_by_others_of_its_plane_and_a_denied_plane_loses_its_turn() {
    let now = Time(1 << 40);
    let (mut paths, mut reverse) = confirmed(2, now);
    paths.set_denied(0, true);
    // The path on plane 1 is known to work; those of plane 0 are tried when nothing else is up.
    assert_eq!(reverse.next(now, &paths, UP, false), Some(1));
    assert_eq!(reverse.next(now, &paths, PortSet::one(0), false), Some(2));
    let mut unknown = ReversePaths::new(&paths);
    assert_eq!([(); 3].map(|()| unknown.next(now, &paths, UP, false)), [2, 3, 4].map(Some));
    [2, 4, 6].into_iter().for_each(|index| paths.set_denied(index, true));
    let mut unknown = ReversePaths::new(&paths);
    assert_eq!([(); 3].map(|()| unknown.next(now, &paths, UP, false)), [3, 5, 7].map(Some));
    assert_eq!(unknown.next(now, &paths, PortSet::one(0), false), None);
}

#[test]
fn a_path_that_takes_the_place_of_a_denied_one_is_not_known_to_work_until_it_is_confirmed() {
    let now = Time(1 << 40);
    let (mut paths, mut reverse) = confirmed(1, now);
    paths.set_denied(0, true);
    let next = |reverse: &mut ReversePaths| reverse.next(now, &paths, UP, false);
    assert_eq!([(); 4].map(|()| next(&mut reverse)), [1, 2, 3, 1].map(Some));
    assert!(reverse.is_blind(now));
    reverse.confirm(now, &paths, 3);
    assert!(!reverse.is_blind(now));
    assert_eq!([(); 3].map(|()| next(&mut reverse)), [3, 3, 3].map(Some));
}

#[test]
fn a_doubt_concerns_the_plane_only_if_the_path_is_its_own_or_none_is_known() {
    let now = Time(1 << 40);
    let (paths, mut reverse) = confirmed(2, now);
    reverse.doubt(&paths, 2);
    assert_eq!(planes_of_reports(&mut reverse, &paths, now), [0, 1, 0, 1], "path 0 is plane 0's");
    reverse.doubt(&paths, 0);
    assert_eq!(planes_of_reports(&mut reverse, &paths, now), [1, 1, 1]);
    let mut unknown = ReversePaths::new(&paths);
    unknown.confirm(now, &paths, 1);
    unknown.doubt(&paths, 4);
    assert_eq!(planes_of_reports(&mut unknown, &paths, now), [1, 1, 1]);
}

/// Reverse paths of two planes whose last probe was sent at `now`, with `received` packets.
fn just_probed(now: Time, received: u32) -> (Paths, ReversePaths) {
    let (paths, mut reverse) = confirmed(2, now);
    (reverse.due, reverse.from) = (now, received);
    assert!(reverse.path_to_probe(now + AT_LATEST, &paths, received, RTT, 7).is_some());
    (paths, reverse)
}

#[test]
fn one_packet_in_100_is_worth_a_probe_of_a_reverse_path_and_at_low_rates_16_in_a_millisecond() {
    let begin = Time(1 << 40);
    let due = begin + AT_LATEST + RTT.times(2);
    let before = |time: Time| Time(time.0 - 1);
    for already in [0, 1000, u32::MAX - 50] {
        for (now, more, is_sent) in [
            (due, 99, false),
            (due, 100, true),
            (before(due), 1000, false),
            (before(due + AT_LATEST), 99, false),
            (due + AT_LATEST, 99, true),
            (due + AT_LATEST, 16, true),
            (due + AT_LATEST, 15, false),
        ] {
            let (paths, mut reverse) = just_probed(begin, already);
            let received = already.wrapping_add(more);
            let probe = reverse.path_to_probe(now, &paths, received, RTT, 7);
            assert_eq!(probe.is_some(), is_sent, "{more} more than {already} at {now:?}");
        }
    }
}

#[test]
fn a_path_whose_probe_was_not_answered_is_in_doubt_at_the_next_one() {
    let mut now = Time(1 << 40);
    for (answered, expected) in [(None, [1, 1]), (Some(1), [1, 1]), (Some(0), [0, 1])] {
        let (paths, mut reverse) = just_probed(now, 0);
        reverse.probing(0);
        if let Some(index) = answered {
            reverse.confirm(now, &paths, index);
        }
        assert_eq!(planes_of_reports(&mut reverse, &paths, now), [0, 1], "it is not late yet");
        now += AT_LATEST.times(3);
        assert!(reverse.path_to_probe(now, &paths, 100, RTT, 7).is_some());
        assert_eq!(planes_of_reports(&mut reverse, &paths, now), expected, "{answered:?} answered");
        // It is doubted once: a confirmation that follows holds.
        reverse.confirm(now, &paths, 0);
        now += AT_LATEST.times(3);
        assert!(reverse.path_to_probe(now, &paths, 200, RTT, 7).is_some());
        assert_eq!(planes_of_reports(&mut reverse, &paths, now), [0, 1]);
    }
}

#[test]
fn over_time_each_path_is_probed_about_as_often_but_none_that_is_denied() {
    let mut now = Time(1 << 40);
    for seed in [0, 7, u64::from(u32::MAX)] {
        let (mut paths, mut reverse) = confirmed(2, now);
        paths.set_denied(5, true);
        let mut probed = [0; 8];
        for round in 1..=800 {
            now += RTT.times(200);
            reverse.confirm(now, &paths, 0);
            if let Some(index) = reverse.path_to_probe(now, &paths, 100 * round, RTT, seed) {
                probed[usize::from(index)] += 1;
            }
        }
        assert_eq!(std::mem::replace(&mut probed[5], 100), 0);
        // 100 each, and five standard deviations.
        assert!(probed.iter().all(|n| (53..147).contains(n)), "{probed:?}");
    }
}
