//! What makes a path good or bad, and when it is probed.

use openmrc_transport::mrc::{EvState, PathConfig, QpConfig};
use openmrc_transport::{EvChange, PortSet, Span, Time, TrafficClass, Transmit, Transport as _};
use openmrc_wire::{Body, Ev, Mark, Sack};

use super::bench::{Bench, config, received, sack, write};

/// Everything that a queue pair does by time is done within this: due times are kept in units of 2 us.
const SOON: Span = Span::from_micros(5);

fn always_skip(psn: u32, sent: &[Transmit]) -> Sack {
    Sack { mark: Mark::AlwaysSkip, ..sack(psn, sent[psn as usize].ev) }
}

/// All 20 packets have arrived, and their messages are complete.
fn acknowledge(bench: &mut Bench, sent: &[Transmit]) {
    bench.hear_sack(sack(19, sent[19].ev));
    bench.hear_aeth(0x1F, 19, 20);
}

/// Sends 20 packets; the peer gives up the paths of the first `count` of them on port 0. Returns all.
fn condemned(bench: &mut Bench, count: usize) -> (Vec<Transmit>, Vec<Ev>) {
    let sent = bench.send_packets(20);
    let psns: Vec<_> = (0..8).filter(|&psn| sent[psn as usize].port == 0).take(count).collect();
    psns.iter().for_each(|&psn| drop(bench.hear_sack(always_skip(psn, &sent))));
    acknowledge(bench, &sent);
    let evs: Vec<_> = psns.iter().map(|&psn| sent[psn as usize].ev).collect();
    assert!(evs.iter().all(|&ev| bench.state(ev) == EvState::AssumedBad));
    bench.log.sent.clear();
    (sent, evs)
}

/// Entropy values and ids of the probes that are sent now.
fn probes(bench: &mut Bench) -> Vec<(Ev, u16)> {
    bench.qp.handle_timeout(bench.now, &mut bench.log);
    let probe = |transmit: Transmit| match transmit.packet.body {
        Body::Probe(probe) => Some((transmit.ev, probe.probe_id)),
        _ => None,
    };
    bench.log.sent.drain(..).filter_map(probe).collect()
}

/// Waits for the next probe of a path; returns its id.
fn next_probe(bench: &mut Bench, ev: Ev) -> u16 {
    for _ in 0..100 {
        bench.now = bench.qp.poll_timeout().max(bench.now + Span(1));
        if let Some((_, id)) = probes(bench).into_iter().find(|probe| probe.0 == ev) {
            return id;
        }
    }
    panic!("{ev:?} is not probed");
}

fn answer_probe(bench: &mut Bench, ev: Ev) {
    let id = next_probe(bench, ev);
    bench.hear_sack(Sack { probe_reply: true, ack_psn_offset: id as i16, ..sack(19, ev) });
}

fn changes(bench: &Bench) -> Vec<(Ev, EvChange)> {
    bench.log.events.iter().map(|event| (event.ev, event.change)).collect()
}

#[test]
fn a_path_whose_lost_packet_arrives_after_all_is_good_again_and_both_are_told() {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(20);
    let lost = sent[1];
    assert_eq!(sent[17].ev, lost.ev);
    // All but PSN 1, by a packet that took its path later.
    let bitmap = (1 << 19) - 2;
    bench.hear_sack(Sack { ack_psn_offset: 17, bitmap, ..sack(0, lost.ev) });
    assert_eq!(
        (bench.state(lost.ev), changes(&bench)),
        (EvState::AssumedBad, vec![(lost.ev, EvChange::AssumedBad)])
    );
    bench.hear_sack(sack(19, sent[19].ev));
    assert_eq!(bench.state(lost.ev), EvState::Good);
    assert_eq!(changes(&bench), [(lost.ev, EvChange::AssumedBad), (lost.ev, EvChange::Good)]);
    let told = bench.log.events[0];
    assert_eq!((told.port, told.path), (lost.port, lost.path));
    assert_eq!((bench.qp.stats().condemned, bench.qp.stats().spurious), (1, 1));
}

#[test]
fn a_peer_gives_up_a_path_only_where_its_port_is_up() {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(20);
    bench.qp.set_ports_up(bench.now, PortSet::first(2), PortSet::one(0));
    for psn in 0..2 {
        bench.hear_sack(always_skip(psn, &sent));
        let expected = if sent[psn as usize].port == 0 { EvState::AssumedBad } else { EvState::Good };
        assert_eq!(bench.state(sent[psn as usize].ev), expected);
    }
    assert_eq!(bench.log.events.len(), 1);
}

#[test]
fn with_too_few_usable_paths_a_condemned_one_is_tried_once_in_a_round_trip() {
    let with = |min_active| {
        let config = config();
        Bench::new(&QpConfig { paths: PathConfig { min_active, ..config.paths.clone() }, ..config })
    };
    for (min_active, tried) in [(6, false), (8, true)] {
        let mut bench = with(min_active);
        let sent = bench.send_packets(20);
        bench.hear_sack(always_skip(0, &sent));
        assert_eq!(bench.state(sent[0].ev) == EvState::Good, tried, "at least {min_active}");
        let both = [(sent[0].ev, EvChange::AssumedBad), (sent[0].ev, EvChange::Good)];
        assert_eq!(changes(&bench), both[..1 + usize::from(tried)]);
        // Not again at once, but later.
        bench.hear_sack(always_skip(1, &sent));
        assert_eq!(bench.state(sent[1].ev), EvState::AssumedBad);
        bench.wait(11);
        bench.hear_sack(sack(2, sent[2].ev));
        let good = [0, 1].iter().filter(|&&psn: &&usize| bench.state(sent[psn].ev) == EvState::Good).count();
        assert_eq!(good, if tried { 2 } else { 0 });
    }
}

#[test]
fn when_every_path_is_condemned_the_one_that_delivers_is_good_and_the_others_of_its_plane_are_probed() {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(20);
    (0..8).for_each(|psn| drop(bench.hear_sack(always_skip(psn, &sent))));
    assert!(sent.iter().all(|transmit| bench.state(transmit.ev) == EvState::AssumedBad));
    assert_eq!(bench.qp.stats().condemned, 8);
    bench.log.events.clear();
    bench.hear_sack(sack(8, sent[8].ev));
    assert_eq!(changes(&bench), [(sent[8].ev, EvChange::Good)]);
    bench.hear_sack(sack(9, sent[9].ev));
    assert_eq!(bench.state(sent[9].ev), EvState::AssumedBad, "there is a usable path");
    acknowledge(&mut bench, &sent);
    bench.log.sent.clear();
    bench.now += SOON;
    let mut probed: Vec<_> = probes(&mut bench).into_iter().map(|probe| probe.0).collect();
    let mut others: Vec<_> =
        sent[..8].iter().filter(|t| t.port == sent[8].port && t.ev != sent[8].ev).map(|t| t.ev).collect();
    probed.sort_unstable_by_key(|ev| ev.0);
    others.sort_unstable_by_key(|ev| ev.0);
    assert_eq!(probed, others);
}

#[test]
fn data_that_arrives_on_a_condemned_path_is_no_answered_probe() {
    let mut bench = Bench::new(&config());
    let sent = bench.send_packets(20);
    bench.hear_sack(always_skip(0, &sent));
    for psn in [1, 8, 9, 16, 17] {
        bench.hear_sack(sack(psn, sent[0].ev));
        assert_eq!(bench.state(sent[0].ev), EvState::AssumedBad);
    }
    // Nor does the answer to data on a good path start any probing.
    assert_eq!(bench.qp.stats().path_probes, 0);
    bench.hear_sack(sack(19, sent[19].ev));
    bench.hear_aeth(0x1F, 19, 20);
    let mut idle = Bench::new(&config());
    let sent = idle.send_packets(20);
    acknowledge(&mut idle, &sent);
    assert_eq!(idle.qp.poll_timeout(), Time::NEVER);
}

#[test]
fn a_peer_that_gives_the_path_up_between_two_probes_starts_the_row_of_successes_anew() {
    let mut bench = Bench::new(&config());
    let (_, evs) = condemned(&mut bench, 1);
    answer_probe(&mut bench, evs[0]);
    answer_probe(&mut bench, evs[0]);
    bench.hear_sack(Sack { mark: Mark::AlwaysSkip, ..sack(19, evs[0]) });
    for _ in 0..2 {
        answer_probe(&mut bench, evs[0]);
        assert_eq!(bench.state(evs[0]), EvState::AssumedBad);
    }
    answer_probe(&mut bench, evs[0]);
    assert_eq!(bench.state(evs[0]), EvState::Good);
}

#[test]
fn when_a_path_recovers_the_others_of_its_plane_are_probed_at_once() {
    let mut bench = Bench::new(&config());
    let (_, evs) = condemned(&mut bench, 2);
    let [recovers, waits] = evs[..] else { panic!("two paths") };
    // Unanswered, the second path is probed at growing intervals.
    let begun = bench.now;
    for _ in 0..4 {
        next_probe(&mut bench, waits);
    }
    assert!(bench.now > begun + Span::from_micros(150));
    (0..3).for_each(|_| answer_probe(&mut bench, recovers));
    assert_eq!(bench.state(recovers), EvState::Good);
    bench.now += SOON;
    assert_eq!(probes(&mut bench).into_iter().map(|probe| probe.0).collect::<Vec<_>>(), [waits]);
}

#[test]
fn when_a_port_comes_up_its_condemned_paths_are_probed_at_once() {
    for comes_up in [false, true] {
        let mut bench = Bench::new(&config());
        let (_, evs) = condemned(&mut bench, 1);
        for _ in 0..5 {
            next_probe(&mut bench, evs[0]);
        }
        let both = PortSet::first(2);
        // The other port says nothing about this one.
        let down = PortSet::one(if comes_up { 1 } else { 0 });
        bench.qp.set_ports_up(bench.now, down, both);
        bench.qp.set_ports_up(bench.now, both, both);
        bench.now += SOON;
        assert_eq!(probes(&mut bench).len(), usize::from(comes_up));
    }
}

#[test]
fn a_condemned_path_is_probed_within_the_budget_of_the_node() {
    let mut bench = Bench::new(&config());
    let (_, evs) = condemned(&mut bench, 2);
    bench.log.budget_is_spent = true;
    bench.wait(100);
    assert_eq!((probes(&mut bench), bench.qp.stats().path_probes), (vec![], 0));
    // A queue pair that does not send asks again after 24 round trips.
    let pause = Span::from_nanos(bench.qp.stats().srtt_ns * 24);
    let due = bench.qp.poll_timeout();
    assert!(due > bench.now + pause.over(10).times(9) && due < bench.now + pause + SOON, "{due:?}");
    bench.log.budget_is_spent = false;
    bench.now = due;
    let probed = probes(&mut bench);
    assert_eq!((probed.len(), bench.qp.stats().path_probes, bench.qp.stats().probes), (2, 2, 2));
    assert!(probed.iter().all(|probe| evs.contains(&probe.0)));
}

#[test]
fn a_port_that_cannot_send_packets_of_full_size_loses_all_its_paths() {
    for mut bench in [Bench::new(&config()), Bench::receiving(&config())] {
        let mut narrow = |port| bench.qp.port_is_narrow(bench.now, port, &mut bench.log);
        narrow(7);
        narrow(1);
        let told: Vec<_> = bench.log.events.iter().map(|event| (event.port, event.change)).collect();
        assert_eq!(told, [(1, EvChange::AssumedBad); 4]);
        let bad: Vec<_> = (0xE0..0xE8).filter(|&ev| bench.state(Ev(ev)) == EvState::AssumedBad).collect();
        assert_eq!(bad, [0xE1, 0xE3, 0xE5, 0xE7]);
    }
    // A port that is down explains it.
    let mut bench = Bench::new(&config());
    bench.qp.set_ports_up(bench.now, PortSet::one(0), PortSet::first(2));
    bench.qp.port_is_narrow(bench.now, 1, &mut bench.log);
    assert_eq!(bench.log.events, []);
}

// --- paths for feedback ----------------------------------------------------------------------------------------------

/// The probes that it sends when it receives packets with these PSNs.
fn probes_while_receiving(bench: &mut Bench, psns: std::ops::Range<u32>) -> Vec<Transmit> {
    bench.log.sent.clear();
    for psn in psns {
        bench.qp.handle_packet(bench.now, &received(write(psn, 64)), &mut bench.log);
    }
    bench.log.sent.drain(..).filter(|transmit| matches!(transmit.packet.body, Body::Probe(_))).collect()
}

/// The answer to a probe.
fn answer(probe: &Transmit) -> Sack {
    let Body::Probe(asked) = probe.packet.body else { panic!("{probe:?}") };
    Sack { probe_reply: true, ack_psn_offset: asked.probe_id as i16, ..sack(0, probe.ev) }
}

#[test]
fn a_queue_pair_that_only_receives_probes_its_paths_in_proportion() {
    let mut bench = Bench::receiving(&config());
    let mut expect = |pause: u64, psns: std::ops::Range<u32>, count: usize| {
        bench.wait(pause);
        let probes = probes_while_receiving(&mut bench, psns.clone());
        assert_eq!(probes.len(), count, "{psns:?}");
        for probe in probes {
            assert_eq!(probe.class, TrafficClass::Data);
            bench.hear_sack(answer(&probe));
        }
    };
    expect(0, 0..1, 1);
    // At most one in two round trips.
    expect(19, 1..500, 0);
    expect(1, 500..501, 1);
    // One in 100 packets ...
    expect(50, 501..600, 0);
    expect(0, 600..601, 1);
    // ... or after a millisecond one in 16.
    expect(1019, 601..617, 0);
    expect(1, 617..618, 1);
    expect(2000, 618..633, 0);
    expect(0, 633..634, 1);
    // Whoever sends learns it from the answers to its data.
    let mut sending = Bench::new(&config());
    sending.send_packets(1);
    assert_eq!(probes_while_receiving(&mut sending, 0..500), []);
}

#[test]
fn before_it_can_send_the_answer_to_a_probe_tells_of_its_path_and_nothing_else_does() {
    type Change = fn(Sack) -> Sack;
    let plain: Change = |sack| sack;
    let cases: [(&str, Change, bool); 6] = [
        ("as it is", plain, true),
        ("with ids that are not known to be wrong yet", |sack| Sack { spdcid: 7, dpdcid: 8, ..sack }, true),
        ("no answer to a probe", |sack| Sack { probe_reply: false, ..sack }, false),
        // The path has the 9 low bits of an id, the sequence the 7 above.
        ("a probe that is still to come", |s| Sack { ack_psn_offset: s.ack_psn_offset + 512, ..s }, false),
        ("a path beyond the last", |s| Sack { ack_psn_offset: s.ack_psn_offset & !511 | 8, ..s }, false),
        ("no path's entropy value", |sack| Sack { entropy: Ev(0x5555_5555), ..sack }, false),
    ];
    for (what, change, is_taken) in cases {
        let mut bench = Bench::receiving(&config());
        let probe = probes_while_receiving(&mut bench, 0..1)[0];
        let answer = Sack { mark: Mark::AlwaysSkip, ..answer(&probe) };
        bench.hear_sack(change(answer));
        let state = if is_taken { EvState::AssumedBad } else { EvState::Good };
        assert_eq!(
            (bench.state(probe.ev), bench.qp.stats().invalid),
            (state, u32::from(!is_taken)),
            "{what}"
        );
        assert_eq!(bench.log.events.len(), usize::from(is_taken), "{what}");

        // Other ids than the peer's, after its own.
        let mut bench = Bench::receiving(&config());
        assert_eq!(probes_while_receiving(&mut bench, 0..1), [probe], "the same configuration");
        bench.hear_sack(Sack { mark: Mark::None, ..answer });
        bench.hear_sack(Sack { spdcid: 7, dpdcid: 8, ..answer });
        assert_eq!((bench.state(probe.ev), bench.qp.stats().invalid), (EvState::Good, 1));
    }
    // Nothing was asked.
    let mut bench = Bench::receiving(&config());
    bench.hear_sack(Sack { probe_reply: true, mark: Mark::AlwaysSkip, ..sack(0, Ev(0xE0)) });
    assert_eq!((bench.log.events.len(), bench.qp.stats().invalid), (0, 1));
}
