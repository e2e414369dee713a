//! The life of a queue pair: before it can send, retries, failure and the end.

use std::sync::Arc;

use openmrc_transport::mrc::{PathConfig, QpConfig, QueuePair, RequestorConfig};
use openmrc_transport::{
    EvProfile, Fatal, PathEntry, PortSet, PostError, Readiness, SendStatus, Span, Time, Transport as _,
    WorkRequest,
};
use openmrc_wire::{Body, Ev, NackReason, Packet, Probe, Psn, Timestamp};

use super::bench::{Bench, PEER, QP, aeths, asking, config, nack, sack, sacks, the_sack, write};

/// As [`config`], with other entropy values.
fn other_paths() -> QpConfig {
    let config = config();
    let path = |i: u32| PathEntry { ev: Ev(0xF0 + i), port: (i % 2) as u8 };
    let profile = Arc::new(EvProfile::new(&(0..8).map(path).collect::<Vec<_>>()).unwrap());
    QpConfig { paths: PathConfig { profile, ..config.paths.clone() }, ..config }
}

/// The entropy values of the next 8 packets, in order.
fn values(bench: &mut Bench) -> Vec<u32> {
    let mut values: Vec<_> = bench.send_packets(8).iter().map(|transmit| transmit.ev.0).collect();
    values.sort_unstable();
    values
}

#[test]
fn a_queue_pair_that_receives_can_send_over_the_paths_with_which_its_requestor_starts() {
    let mut bench = Bench::receiving(&config());
    the_sack(&bench.hear_packet(asking(write(0, 64))));
    let wr = WorkRequest { handle: 1, len: 1, remote_va: 0, rkey: 0, imm: None, solicited: false };
    let mut invalid = other_paths();
    invalid.requestor.mpr = 0;
    let refusal = bench.qp.start_requestor(bench.now, &invalid).map_err(|error| error.name);
    assert_eq!(refusal, Err("mpr"));
    assert_eq!(bench.qp.post_send(bench.now, wr), Err(PostError::NotReady));
    assert_eq!((bench.qp.outstanding(), bench.qp.readiness()), (0, Readiness::Idle));

    let to_another = QpConfig { remote_qp: 0x99, ..other_paths() };
    bench.qp.start_requestor(bench.now, &to_another).unwrap();
    assert_eq!(values(&mut bench), (0xF0..0xF8).collect::<Vec<_>>());
    bench.post(9, 1, None);
    assert_eq!(bench.send()[0].packet.dest_qp, 0x99);
    // The responder goes on where it was.
    assert_eq!(the_sack(&bench.hear_packet(asking(write(1, 64)))).1.cack_psn, Psn::new(1));
}

#[test]
fn a_queue_pair_from_a_checkpoint_gets_its_profile_back() {
    let mut bench = Bench::new(&config());
    let other = other_paths();
    bench.qp.rejoin(&other.paths.profile, &other.cc);
    assert_eq!(values(&mut bench), (0xF0..0xF8).collect::<Vec<_>>());
}

#[test]
fn work_is_outstanding_until_it_is_acknowledged() {
    let mut bench = Bench::new(&config());
    let state = |bench: &Bench| (bench.qp.outstanding(), bench.qp.is_waiting());
    assert_eq!(state(&bench), (0, false));
    (0..3).for_each(|handle| bench.post(handle, 1, None));
    assert_eq!(state(&bench), (3, false), "the peer owes nothing for what was not sent");
    let sent = bench.send();
    assert_eq!(state(&bench), (3, true));
    bench.hear_sack(sack(2, sent[2].ev));
    assert_eq!(state(&bench), (3, true), "an ACK is owed");
    bench.hear_aeth(0x1F, 1, 2);
    assert_eq!(state(&bench), (1, true));
    bench.hear_aeth(0x1F, 2, 3);
    assert_eq!(state(&bench), (0, false));
    let receiving = Bench::receiving(&config());
    assert_eq!(state(&receiving), (0, false));
}

#[test]
fn retries_can_be_changed_while_the_peer_is_silent() {
    let mut bench = Bench::new(&config());
    bench.send_packets(1);
    let begun = bench.now;
    let retries = RequestorConfig {
        timeout: Span::from_micros(100),
        linear_cnt: 2,
        exp_cnt: 0,
        ..RequestorConfig::default()
    };
    bench.qp.set_retries(&retries);
    while bench.log.fatal.is_none() && bench.now < begun + Span::from_millis(10) {
        bench.now = bench.qp.poll_timeout().max(bench.now + Span(1));
        bench.timers();
    }
    // An interval before each retry, and one twice as long after the last.
    assert_eq!((bench.log.fatal, bench.now), (Some(Fatal::RetryExceeded), begun + Span::from_micros(400)));
    // Without a requestor there are none.
    let mut receiving = Bench::receiving(&config());
    receiving.qp.set_retries(&retries);
    assert_eq!(receiving.qp.poll_timeout(), Time::NEVER);
}

#[test]
fn a_queue_pair_that_is_aborted_ends_its_work_with_the_reason() {
    use SendStatus::{FlushErr, RetryExceededErr};
    for (why, first) in [(Fatal::RetryExceeded, RetryExceededErr), (Fatal::Local, FlushErr)] {
        let mut bench = Bench::new(&config());
        bench.send_packets(2);
        let abort = |bench: &mut Bench, why| bench.qp.abort(bench.now, why, &mut bench.log);
        abort(&mut bench, why);
        let statuses: Vec<_> = bench.log.done.iter().map(|done| (done.handle, done.status)).collect();
        assert_eq!((statuses, bench.qp.error()), (vec![(0, first), (1, FlushErr)], Some(why)));
        abort(&mut bench, Fatal::UnexpectedEvent);
        assert_eq!((bench.qp.error(), bench.log.fatal, bench.log.done.len()), (Some(why), Some(why), 2));
        assert_eq!((bench.send(), bench.qp.poll_timeout()), (vec![], Time::NEVER));
        let mut receiving = Bench::receiving(&config());
        abort(&mut receiving, why);
        assert_eq!((receiving.qp.error(), receiving.log.fatal), (Some(why), Some(why)));
    }
}

#[test]
fn a_queue_pair_that_is_destroyed_reports_what_it_has_and_takes_nothing_more() {
    let retire = |bench: &mut Bench| {
        bench.qp.retire(bench.now, &mut bench.log);
        bench.take()
    };
    let mut bench = Bench::new(&config());
    bench.send_packets(3);
    assert_eq!(bench.hear_packet(write(0, 64)), []);
    let report = retire(&mut bench);
    assert_eq!((the_sack(&report).1.cack_psn, aeths(&report)), (Psn::new(0), vec![(0x1F, 0)]));
    assert_eq!((bench.log.done.len(), bench.qp.outstanding(), bench.qp.is_waiting()), (0, 0, false));
    // New data is not answered, nor taken; what was taken is.
    assert_eq!(bench.hear_packet(asking(write(1, 64))), []);
    let again = bench.hear_packet(write(0, 64));
    assert_eq!((the_sack(&again).1.cack_psn, aeths(&again)), (Psn::new(0), vec![(0x1F, 0)]));
    // What was reported before is not reported again.
    let mut bench = Bench::new(&config());
    the_sack(&bench.hear_packet(asking(write(0, 64))));
    assert_eq!(retire(&mut bench), []);
    let mut unused = Bench::receiving(&config());
    assert_eq!(retire(&mut unused), []);
}

#[test]
fn what_cannot_be_an_answer_is_counted_as_invalid() {
    // Before it can send there is nothing to acknowledge or to refuse.
    let mut bench = Bench::receiving(&config());
    bench.hear_aeth(0x1F, 0, 1);
    bench.hear_packet(nack(0, NackReason::Trimmed, Ev(0xE0)));
    bench.hear_sack(sack(0, Ev(0xE0)));
    assert_eq!((bench.qp.stats().invalid, bench.qp.error()), (3, None));
}

#[test]
fn a_probe_with_other_ids_is_not_answered_once_the_peer_has_sent_its_own() {
    let probe = |spdcid, dpdcid| {
        let probe = Probe { vendor_info: 0, probe_id: 3, spdcid, dpdcid, timestamp: Timestamp::default() };
        Packet::new(QP, Psn::new(0), Body::Probe(probe))
    };
    let (ours, peers) = (QP as u16, PEER as u16);
    let mut bench = Bench::new(&config());
    // (ids, whether it is answered, invalid packets by then)
    for (ids, answered, invalid) in [
        ((7, 8), true, 0),
        ((peers, ours), true, 0),
        ((7, 8), false, 1),
        ((ours, peers), true, 1),
        ((peers, 8), false, 2),
    ] {
        let answer = bench.hear_packet(probe(ids.0, ids.1));
        assert_eq!((!sacks(&answer).is_empty(), bench.qp.stats().invalid), (answered, invalid), "{ids:?}");
    }
    assert!(!bench.qp.stats().peer_ids_other);
}

#[test]
fn heap_memory_for_immediates_is_taken_when_the_first_arrives() {
    let mut config = config();
    config.responder.max_wimm_dest = 32;
    let mut bench = Bench::new(&config);
    let without = QueuePair::new(bench.now, &config).unwrap().state_bytes();
    assert_eq!(without.1, 0);
    bench.hear_packet(write(0, 64));
    assert_eq!(bench.qp.state_bytes().1, 0);
    let before = bench.qp.state_bytes().0;
    let mut packet = write(1, 64);
    if let Body::Write(write) = &mut packet.body {
        write.imm = Some(1);
    }
    bench.hear_packet(packet);
    let (all, immediates) = bench.qp.state_bytes();
    // A PSN, an immediate and a length for each.
    assert!(immediates >= 32 * 16, "{immediates}");
    assert_eq!(all - before, immediates);
}

#[test]
fn ports_that_are_down_are_not_used() {
    let mut bench = Bench::new(&config());
    bench.qp.set_ports_up(bench.now, PortSet::first(2), PortSet::one(1));
    assert!(bench.send_packets(8).iter().all(|transmit| transmit.port == 1));
}
