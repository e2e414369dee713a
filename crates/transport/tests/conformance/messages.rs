//! Where a responder sees messages end, how long they are, and when they complete.

use openmrc_transport::mrc::QpConfig;
use openmrc_transport::{Fatal, NoReceive, Transport as _};
use openmrc_wire::{Body, NackReason, Packet, Position, Psn, Write};

use super::bench::{Bench, MTU, aeths, asking, config, named, reasons, sacks, the_sack, write};

/// Packet `psn` of a message of full packets from `first` to `last`, which carries an immediate.
fn part(psn: u32, (first, last): (u32, u32)) -> Packet {
    let mut packet = write(psn, MTU);
    if let Body::Write(write) = &mut packet.body {
        let position = match (psn == first, psn == last) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        };
        let imm = (psn == last).then_some(last);
        *write = Write { position, imm, dma_len: (last - first + 1) * u32::from(MTU), ..*write };
    }
    packet
}

/// The values and lengths of the messages that have completed.
fn lengths(bench: &Bench) -> Vec<(u32, u32)> {
    bench.log.received.iter().map(|done| (done.imm, done.byte_len / u32::from(MTU))).collect()
}

#[test]
fn messages_end_where_they_said_when_they_began_whatever_lies_beyond_the_window_then() {
    // The window has 1024 packets. The long message begins first, then the one in front of it, then the one before that.
    let messages = [(0, 99), (100, 199), (200, 2500)];
    let backwards = [200, 100];
    // The third message begins while the end of the first is near and the second has not begun.
    let skipping = [(0, 2999), (3000, 3004), (3005, 5000)];
    let (before, early) = (0..=2500, [3005]);
    let in_order = |messages: [(u32, u32); 3]| {
        messages.into_iter().flat_map(|message| (message.0..=message.1).map(move |psn| (psn, message)))
    };
    let first = |messages: [(u32, u32); 3], psn| messages.into_iter().find(|m| m.0 == psn).unwrap();

    let mut bench = Bench::new(&config());
    backwards.iter().for_each(|&psn| drop(bench.hear_packet(part(psn, first(messages, psn)))));
    in_order(messages).for_each(|(psn, message)| drop(bench.hear_packet(part(psn, message))));
    assert_eq!((bench.qp.error(), lengths(&bench)), (None, vec![(99, 100), (199, 100), (2500, 2301)]));

    let mut bench = Bench::new(&config());
    let (sooner, later): (Vec<_>, Vec<_>) = in_order(skipping).partition(|(psn, _)| before.contains(psn));
    sooner.into_iter().for_each(|(psn, message)| drop(bench.hear_packet(part(psn, message))));
    early.iter().for_each(|&psn| drop(bench.hear_packet(part(psn, first(skipping, psn)))));
    later.into_iter().for_each(|(psn, message)| drop(bench.hear_packet(part(psn, message))));
    assert_eq!((bench.qp.error(), lengths(&bench)), (None, vec![(2999, 3000), (3004, 5), (5000, 1996)]));
}

#[test]
fn two_messages_that_both_end_beyond_the_window_cannot_begin_in_it() {
    let mut bench = Bench::new(&config());
    bench.hear_packet(part(0, (0, 2999)));
    assert_eq!(aeths(&bench.hear_packet(part(500, (500, 2500)))), [(0x61, 500)]);
    assert_eq!(bench.qp.error(), Some(Fatal::InvalidRequest));
}

#[test]
fn a_message_with_more_or_fewer_packets_than_its_length_is_refused_at_the_first_wrong_one() {
    for count in [2, 64, 65, 1500, 3000] {
        for wrong in [count - 1, count - 2] {
            let mut bench = Bench::new(&config());
            for psn in 0..wrong {
                bench.hear_packet(part(psn, (0, count - 1)));
            }
            assert_eq!(bench.qp.error(), None);
            let mut packet = part(wrong, (0, count - 1));
            if let Body::Write(write) = &mut packet.body {
                // The last one says that another follows, or the one before it that none does.
                write.position = match (wrong == count - 1, wrong) {
                    (true, _) => Position::Middle,
                    (false, 0) => Position::Only,
                    (false, _) => Position::Last,
                };
                write.imm = None;
            }
            assert_eq!(aeths(&bench.hear_packet(packet)), [(0x61, wrong)], "{wrong} of {count}");
            assert_eq!(bench.qp.error(), Some(Fatal::InvalidRequest), "{wrong} of {count}");
        }
    }
}

#[test]
fn an_empty_message_with_immediate_has_no_bytes_also_where_each_packet_tells_its_own_length() {
    let alone = |psn, position, len: u16, imm| {
        let mut packet = write(psn, len);
        if let Body::Write(write) = &mut packet.body {
            *write = Write { position, imm, ..*write };
        }
        packet
    };
    let mut bench = Bench::new(&config());
    bench.hear_packet(alone(0, Position::First, MTU, None));
    bench.hear_packet(alone(1, Position::Last, 100, Some(1)));
    bench.hear_packet(alone(2, Position::Only, 0, Some(2)));
    bench.hear_packet(alone(3, Position::Only, 7, Some(3)));
    let lengths: Vec<_> = bench.log.received.iter().map(|done| (done.imm, done.byte_len)).collect();
    assert_eq!(lengths, [(1, u32::from(MTU) + 100), (2, 0), (3, 7)]);
}

// --- messages that wait for a receive --------------------------------------------------------------------------------

fn with_imm(psn: u32) -> Packet {
    part(psn, (psn, psn))
}

/// A queue pair without a receive, which has answered message 0.
fn waiting(config: &QpConfig) -> Bench {
    let mut bench = Bench::new(config);
    bench.log.no_receive = Some(NoReceive::Waits);
    let answer = bench.hear_packet(asking(with_imm(0)));
    // The packet has arrived, and is not below the cumulative point.
    assert_eq!((the_sack(&answer).1.cack_psn, named(&answer)), (Psn::new(0xFF_FFFF), vec![0]));
    assert_eq!((aeths(&answer), lengths(&bench)), (vec![], vec![]));
    bench
}

/// Receives are posted; what the queue pair sends then.
fn posted(bench: &mut Bench) -> Vec<Packet> {
    bench.qp.receives_posted(bench.now, &mut bench.log);
    bench.take()
}

#[test]
fn a_message_that_waits_for_a_receive_is_acknowledged_when_there_is_one() {
    let mut bench = waiting(&config());
    let again = bench.hear_packet(with_imm(0));
    the_sack(&again);
    assert_eq!(aeths(&again), [], "there is nothing to acknowledge yet");
    assert_eq!((bench.qp.stats().duplicates_in, posted(&mut bench)), (1, vec![]));
    bench.log.no_receive = None;
    let answer = posted(&mut bench);
    assert_eq!((aeths(&answer), sacks(&answer)), (vec![(0x1F, 0)], vec![]));
    assert_eq!(lengths(&bench), [(0, 1)]);
    assert_eq!(posted(&mut bench), [], "nothing waits any more");
    assert_eq!(bench.hear_packet(write(1, 64)), [], "what was asked for is answered");
}

#[test]
fn what_was_asked_above_a_gap_is_owed_until_the_gap_ends_also_when_a_message_before_it_has_waited() {
    let mut bench = waiting(&config());
    the_sack(&bench.hear_packet(asking(write(2, 64))));
    bench.log.no_receive = None;
    assert_eq!(aeths(&posted(&mut bench)), [(0x1F, 0)]);
    let answer = bench.hear_packet(write(1, 64));
    assert_eq!((the_sack(&answer).1.cack_psn, aeths(&answer)), (Psn::new(2), vec![(0x1F, 2)]));
    assert_eq!(bench.hear_packet(write(3, 64)), [], "it is paid once");
}

#[test]
fn behind_a_message_that_waits_the_window_is_as_large_as_ever() {
    let mut config = config();
    config.responder.mpr_dest = 1;
    let mut bench = waiting(&config);
    for psn in 1..128 {
        assert_eq!(reasons(&bench.hear_packet(write(psn, 64))), []);
    }
    assert_eq!(reasons(&bench.hear_packet(write(128, 64))), [NackReason::PsnOorWindow]);
    let stats = bench.qp.stats();
    assert_eq!((stats.duplicates_in, stats.refused_in), (0, 1));
}

#[test]
fn a_message_that_has_waited_for_too_long_is_refused_itself() {
    let mut bench = waiting(&config());
    bench.hear_packet(write(1, 64));
    bench.log.no_receive = Some(NoReceive::Refused);
    assert_eq!(aeths(&posted(&mut bench)), [(0x63, 0)]);
    assert_eq!((bench.qp.error(), bench.log.fatal), (Some(Fatal::NoReceive), Some(Fatal::NoReceive)));
    assert_eq!(posted(&mut bench), []);
}
