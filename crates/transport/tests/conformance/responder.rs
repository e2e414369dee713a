//! What a responder answers.

use openmrc_transport::mrc::{DEFAULT_PATH_MTU, OutOfWindow, QueuePair, SackBatching};
use openmrc_transport::{Fatal, Received, Span, Time, Transport as _, Trim};
use openmrc_wire::{Aeth, Body, Mark, Msn, NackReason, Packet, Position, Probe, Psn, Timestamp, Write};

use super::bench::{
    Bench, aeths, asking, config, is_trimmed, named, reasons, received, sacks, the_sack, write,
};

#[test]
fn small_packets_count_as_1024_bytes_and_more_than_16_kib_trigger_a_sack() {
    let mut bench = Bench::new(&config());
    for psn in 0..16 {
        assert_eq!(bench.hear_packet(write(psn, 64)), [], "packet {psn}");
    }
    // The 17th: 17 x 1024 > 16384. The counter starts anew.
    the_sack(&bench.hear_packet(write(16, 64)));
    for psn in 17..33 {
        assert_eq!(bench.hear_packet(write(psn, 64)), [], "packet {psn}");
    }
    the_sack(&bench.hear_packet(write(33, 64)));
}

#[test]
fn a_sack_for_another_reason_starts_the_byte_counter_anew() {
    let mut bench = Bench::new(&config());
    (0..10).for_each(|psn| assert_eq!(bench.hear_packet(write(psn, 64)), []));
    the_sack(&bench.hear_packet(asking(write(10, 64))));
    (11..27).for_each(|psn| assert_eq!(bench.hear_packet(write(psn, 64)), [], "packet {psn}"));
    the_sack(&bench.hear_packet(write(27, 64)));
}

#[test]
fn a_gap_and_its_end_trigger_nothing() {
    let mut bench = Bench::new(&config());
    for psn in [5, 90, 89, 4, 3, 2, 1, 0, 88] {
        assert_eq!(bench.hear_packet(write(psn, 64)), [], "packet {psn}");
    }
}

#[test]
fn every_sack_of_a_report_names_exactly_the_packets_that_its_bits_mean() {
    let mut bench = Bench::new(&config());
    let early = [3, 5, 66, 67, 130, 132];
    for psn in early {
        assert_eq!(bench.hear_packet(write(psn, 64)), [], "packet {psn}");
    }
    // Far beyond the first bitmap: one SACK for what is around the trigger, and further ones for what came before.
    let answer = bench.hear_packet(asking(write(300, 64)));
    let sacks = sacks(&answer);
    assert_eq!(sacks.len(), 4);
    // The one that has the trigger in its bitmap is the last.
    assert_eq!(sacks[3].bitmap, 1 << 55);
    let mut named = named(&answer);
    named.sort_unstable();
    assert_eq!(named, [3, 5, 66, 67, 130, 132, 300]);
}

#[test]
fn what_lies_around_the_bitmap_of_the_trigger_is_named_too() {
    // The bitmap of the trigger 300 begins with packet 245 and ends before 309.
    for early in [[250, 309], [244, 309], [245, 308], [308, 310], [309, 372], [181, 244]] {
        let mut bench = Bench::new(&config());
        early.iter().for_each(|&psn| assert_eq!(bench.hear_packet(write(psn, 64)), [], "packet {psn}"));
        let mut named = named(&bench.hear_packet(asking(write(300, 64))));
        named.sort_unstable();
        named.dedup();
        let mut right = [early[0], early[1], 300];
        right.sort_unstable();
        assert_eq!(named, right);
    }
}

#[test]
fn the_answer_to_a_probe_names_every_packet_above_the_first_gap() {
    let mut bench = Bench::new(&config());
    let early = [3, 5, 66, 100, 131, 200];
    (0..2).chain(early).for_each(|psn| assert_eq!(bench.hear_packet(write(psn, 64)), [], "packet {psn}"));
    let timestamp = Timestamp { ticks: 0x1234, tsr: false };
    let probe = Probe { vendor_info: 0xFF, probe_id: 9, spdcid: 1, dpdcid: 2, timestamp };
    let answer = bench.hear_packet(Packet::new(0x11, Psn::new(12345), Body::Probe(probe)));
    let mut named = named(&answer);
    named.sort_unstable();
    named.dedup();
    assert_eq!(named, early);
}

#[test]
fn the_end_of_a_gap_pays_the_report_that_was_asked_for_above_it() {
    let mut bench = Bench::new(&config());
    // The report that is asked for above the gap cannot acknowledge its message, so one follows when the gap ends.
    the_sack(&bench.hear_packet(asking(write(2, 64))));
    assert_eq!(bench.hear_packet(write(1, 64)), []);
    assert_eq!(bench.hear_packet(write(3, 64)), []);
    let (_, sack) = the_sack(&bench.hear_packet(write(0, 64)));
    assert_eq!(sack.cack_psn, Psn::new(3));
    // It is paid once.
    assert_eq!(bench.hear_packet(write(5, 64)), []);
    assert_eq!(bench.hear_packet(write(4, 64)), []);
}

/// Packet `psn` of a message of `count` full packets that begins with PSN 0.
fn part(psn: u32, count: u32) -> Packet {
    let mut packet = write(psn, DEFAULT_PATH_MTU);
    if let Body::Write(write) = &mut packet.body {
        write.dma_len = count * u32::from(DEFAULT_PATH_MTU);
        write.position = match psn {
            0 => Position::First,
            _ if psn + 1 == count => Position::Last,
            _ => Position::Middle,
        };
    }
    packet
}

#[test]
fn the_end_of_a_gap_acknowledges_all_behind_it_across_words_and_the_end_of_the_ring() {
    // Longer than the window of 1024 packets, so that the message's end lies beyond the ring when it begins.
    let count = 3_000;
    for run in [1, 2, 63, 64, 65, 127, 700, 1000] {
        let mut bench = Bench::new(&config());
        for first in (0..count).step_by(run as usize) {
            let end = (first + run).min(count);
            let behind: Vec<_> =
                (first + 1..end).flat_map(|psn| bench.hear_packet(part(psn, count))).collect();
            assert!(aeths(&behind).is_empty());
            let answer = bench.hear_packet(asking(part(first, count)));
            assert_eq!(the_sack(&answer).1.cack_psn, Psn::new(end - 1), "runs of {run}");
            let complete: &[_] = if end == count { &[(Aeth::ACK, count - 1)] } else { &[] };
            assert_eq!(aeths(&answer), complete, "runs of {run}, up to {end}");
        }
        assert_eq!(bench.qp.error(), None);
    }
}

#[test]
fn a_mark_rtx_and_a_probe_trigger_a_sack_at_once() {
    let mut bench = Bench::new(&config());
    let marked = Received { ecn_ce: true, ..received(write(0, 64)) };
    assert_eq!(the_sack(&bench.hear(&marked)).1.mark, Mark::SkipOnce);
    let again = Packet { rtx: true, ..write(1, 64) };
    let (packet, sack) = the_sack(&bench.hear_packet(again));
    assert!(packet.rtx && sack.mark == Mark::None, "RTX is that of the trigger");
    assert!(!the_sack(&bench.hear_packet(asking(write(2, 64)))).0.rtx);
    let timestamp = Timestamp { ticks: 77, tsr: false };
    // Other ids than expected, and a PSN: neither is looked at.
    let probe = Probe { vendor_info: 0xFF, probe_id: 9, spdcid: 1, dpdcid: 2, timestamp };
    let probe = Packet::new(0x11, Psn::new(12345), Body::Probe(probe));
    let answer = bench.hear_packet(probe);
    let (_, sack) = the_sack(&answer);
    assert!(sack.probe_reply && sack.ack_psn_offset == 9 && sack.mark == Mark::None);
    assert_eq!((sack.cc.timestamp, aeths(&answer).len()), (77, 1), "with the latest ACK");
    // A switch had to trim it, and lost nothing.
    let trimmed = Received { trim: Some(Trim::Fabric), ..received(probe) };
    assert_eq!(the_sack(&bench.hear(&trimmed)).1.mark, Mark::SkipOnce);
    assert_eq!(bench.qp.stats().peer.other_ids, 2);
}

#[test]
fn a_duplicate_below_the_cumulative_point_brings_the_latest_ack_again() {
    let mut bench = Bench::new(&config());
    assert_eq!(aeths(&bench.hear_packet(asking(write(0, 64)))), [(0x1F, 0)]);
    bench.hear_packet(write(2, 64));
    let answer = bench.hear_packet(write(0, 64));
    the_sack(&answer);
    assert_eq!(aeths(&answer), [(0x1F, 0)]);
    let answer = bench.hear_packet(write(2, 64));
    the_sack(&answer);
    assert_eq!(aeths(&answer), [], "the ACK for packet 2 is not due yet");
}

#[test]
fn beyond_the_window_one_nack_comes_in_a_round_trip() {
    let mut bench = Bench::new(&config());
    assert_eq!(reasons(&bench.hear_packet(write(1024, 64))), [NackReason::PsnOorWindow]);
    bench.wait(5);
    assert_eq!(bench.hear_packet(write(1025, 64)), []);
    bench.wait(6);
    assert_eq!(reasons(&bench.hear_packet(write(1025, 64))), [NackReason::PsnOorWindow]);
    assert_eq!(bench.qp.stats().refused_in, 3);
    let mut silent = config();
    silent.responder.options.out_of_window = OutOfWindow::Silent;
    let mut bench = Bench::new(&silent);
    assert_eq!(bench.hear_packet(write(1024, 64)), []);
    // The sign of the 24-bit difference tells ahead from behind.
    the_sack(&bench.hear_packet(write(0xFF_FFFF, 64)));
}

#[test]
fn a_trimmed_packet_is_answered_by_what_is_known_of_its_psn() {
    let mut bench = Bench::new(&config());
    let trimmed = |psn, trim| is_trimmed(write(psn, 64), trim);
    assert_eq!(reasons(&bench.hear(&trimmed(3, Trim::Fabric))), [NackReason::Trimmed]);
    let again = is_trimmed(Packet { rtx: true, ..write(3, 64) }, Trim::LastHop);
    let answer = bench.hear(&again);
    assert_eq!(reasons(&answer), [NackReason::TrimmedLastHop]);
    assert!(answer[0].rtx, "RTX is that of the refused packet");
    assert_eq!(bench.hear(&trimmed(1024, Trim::Fabric)), [], "outside the window nothing is verified");
    bench.hear_packet(write(3, 64));
    let answer = bench.hear(&trimmed(3, Trim::Fabric));
    the_sack(&answer);
    assert_eq!(reasons(&answer), []);
    let mut without = config();
    without.responder.options.trim_nack = false;
    assert_eq!(Bench::new(&without).hear(&trimmed(0, Trim::Fabric)), []);
}

fn at(psn: u32, timestamp: Option<Timestamp>) -> Packet {
    let mut packet = write(psn, 64);
    if let Body::Write(write) = &mut packet.body {
        write.timestamp = timestamp;
    }
    packet
}

#[test]
fn the_timestamp_of_the_trigger_comes_back_and_zero_where_it_has_none() {
    let mut bench = Bench::new(&config());
    let of = |bench: &mut Bench, packet| the_sack(&bench.hear_packet(packet)).1.cc.timestamp;
    let at_once = Timestamp { ticks: 0xFFFF, tsr: false };
    assert_eq!(of(&mut bench, asking(at(0, Some(at_once)))), 0xFFFF);
    assert_eq!(of(&mut bench, asking(at(1, None))), 0);
    let other_unit = Timestamp { ticks: 5, tsr: true };
    assert_eq!(of(&mut bench, asking(at(2, Some(other_unit)))), 5);
    assert_eq!(reasons(&bench.hear(&is_trimmed(at(9, None), Trim::Fabric))), [NackReason::Trimmed]);
}

#[test]
fn the_delayed_sack_moves_the_timestamp_on_by_the_time_it_waited() {
    let mut config = config();
    config.responder.ack_delay = Span::from_nanos(1280);
    let delayed = |bench: &mut Bench| {
        bench.now += Span::from_nanos(1280);
        the_sack(&bench.timers()).1.cc.timestamp
    };
    let mut bench = Bench::new(&config);
    bench.hear_packet(at(0, Some(Timestamp { ticks: 0xFFFE, tsr: false })));
    assert_eq!(delayed(&mut bench), 8, "10 units of 128 ns, modulo 2^16");
    bench.hear_packet(at(1, Some(Timestamp { ticks: 100, tsr: true })));
    assert_eq!(delayed(&mut bench), 100, "another unit");
    bench.hear_packet(at(2, None));
    assert_eq!(delayed(&mut bench), 0);
    // A batched SACK is due at once; only a responder that takes its service time out moves it on.
    for (service_time, expected) in [(false, 100), (true, 110)] {
        config.responder.batching = SackBatching::Turn;
        config.responder.options.service_time = service_time;
        let mut bench = Bench::new(&config);
        let again = Packet { rtx: true, ..at(0, Some(Timestamp { ticks: 100, tsr: false })) };
        assert_eq!(bench.hear_packet(again), []);
        assert_eq!(delayed(&mut bench), expected);
    }
}

#[test]
fn the_delayed_sack_comes_sooner_after_a_trimmed_packet_until_one_that_asks_has_arrived() {
    let config = config();
    let delay = config.responder.ack_delay;
    let trim = |bench: &mut Bench, psn| bench.hear(&is_trimmed(asking(write(psn, 64)), Trim::Fabric)).len();
    // A SACK after just this time.
    let after = |bench: &mut Bench, delay: Span| {
        bench.now += delay - Span(1);
        assert_eq!(bench.timers(), []);
        bench.now += Span(1);
        the_sack(&bench.timers());
    };
    let mut bench = Bench::new(&config);
    bench.hear_packet(write(0, 64));
    after(&mut bench, delay);
    assert_eq!(trim(&mut bench, 9), 1, "the NACK");
    bench.now += delay;
    assert_eq!(bench.timers(), [], "there is nothing to report");
    for psn in 1..3 {
        bench.hear_packet(write(psn, 64));
        after(&mut bench, delay.over(4));
    }
    the_sack(&bench.hear_packet(asking(write(3, 64))));
    bench.hear_packet(write(4, 64));
    after(&mut bench, delay);
    // What waits is brought forward, and never put off.
    bench.hear_packet(write(5, 64));
    trim(&mut bench, 9);
    after(&mut bench, delay.over(4));
    the_sack(&bench.hear_packet(asking(write(6, 64))));
    bench.hear_packet(write(7, 64));
    bench.now += delay - delay.over(8);
    trim(&mut bench, 9);
    after(&mut bench, delay.over(8));
}

#[test]
fn a_batching_responder_answers_a_message_of_one_packet_with_the_delayed_sack() {
    let mut config = config();
    config.responder.batching = SackBatching::Turn;
    let mut bench = Bench::new(&config);
    assert_eq!(bench.hear_packet(asking(write(0, 64))), []);
    assert_eq!(bench.timers(), []);
    bench.now += config.responder.ack_delay;
    the_sack(&bench.timers());
    // Any other packet is answered as soon as timers are handled.
    let mut first = asking(write(1, config.path_mtu));
    if let Body::Write(write) = &mut first.body {
        *write = Write { position: Position::First, dma_len: 2 * u32::from(config.path_mtu), ..*write };
    }
    assert_eq!(bench.hear_packet(first), []);
    the_sack(&bench.timers());
}

#[test]
fn a_message_of_one_packet_that_asks_is_acknowledged_behind_the_next_data_if_that_is_chosen() {
    for behind_data in [true, false] {
        let mut config = config();
        config.responder.batching = if behind_data { SackBatching::BehindData } else { SackBatching::Turn };
        let mut bench = Bench::new(&config);
        assert_eq!(bench.hear_packet(write(0, 64)), []);
        assert_eq!(bench.behind_data(), [], "nobody asked");
        assert_eq!(bench.hear_packet(asking(write(1, 64))), []);
        let answer = bench.behind_data();
        assert_eq!(answer.is_empty(), !behind_data);
        if behind_data {
            let [Packet { psn, body: Body::Ack(aeth), .. }] = answer[..] else { panic!("{answer:?}") };
            assert_eq!((psn.get(), aeth.msn), (1, 2), "the ACK alone: it is cumulative too");
            assert_eq!(bench.behind_data(), [], "once");
        }
        // The SACK comes as late as ever, and repeats an ACK that may be lost.
        bench.now += config.responder.ack_delay;
        let report = bench.timers();
        the_sack(&report);
        assert!(report.iter().any(|packet| matches!(packet.body, Body::Ack(_))));
    }
}

#[test]
fn what_an_ack_cannot_say_is_said_by_a_sack_behind_data() {
    let mut config = config();
    config.responder.batching = SackBatching::BehindData;
    // A packet is missing.
    let mut bench = Bench::new(&config);
    assert_eq!(bench.hear_packet(asking(write(1, 64))), []);
    let (_, sack) = the_sack(&bench.behind_data());
    assert_eq!(sack.bitmap, 1 << 1);
    // Round trips and paths are to be known.
    let mut bench = Bench::new(&config);
    let answers = (0..9).map(|psn| {
        bench.hear_packet(asking(write(psn, 64)));
        bench.behind_data()
    });
    let with_sack = answers.map(|answer| answer.iter().any(|packet| matches!(packet.body, Body::Sack(_))));
    assert_eq!(with_sack.collect::<Vec<_>>(), [vec![false; 8], vec![true]].concat());
}

/// Whoever waits for the answer and for the data in turn finds the data there when the answer comes.
#[test]
fn the_timer_of_what_was_acknowledged_alone_does_not_send_the_next_answer_in_front_of_the_data() {
    let mut config = config();
    config.responder.batching = SackBatching::BehindData;
    let mut bench = Bench::new(&config);
    bench.hear_packet(asking(write(0, 64)));
    assert_eq!(bench.behind_data().len(), 1);
    bench.now += config.responder.ack_delay;
    bench.hear_packet(asking(write(1, 64)));
    assert_eq!(bench.timers(), []);
    // But a peer that goes on without an answer gets one in time.
    bench.now += config.responder.ack_delay.over(2);
    bench.hear_packet(asking(write(2, 64)));
    bench.now += config.responder.ack_delay.over(2);
    the_sack(&bench.timers());
}

#[test]
fn the_window_is_told_with_dynamic_mpr_only() {
    for (dynamic, told) in [(false, 0), (true, 8)] {
        let mut config = config();
        config.caps.dynamic_mpr = dynamic;
        let mut bench = Bench::new(&config);
        assert_eq!(the_sack(&bench.hear_packet(asking(write(0, 64)))).1.mpr, told);
        // A smaller window that the application asks for, and one beyond what was agreed.
        for (psn, wish) in [(1, 4), (2, 200)] {
            bench.qp.set_advertised_mpr(wish);
            let said = the_sack(&bench.hear_packet(asking(write(psn, 64)))).1.mpr;
            assert_eq!(said, if dynamic { wish.min(8) } else { 0 });
        }
    }
}

fn with_imm(psn: u32, rqmsn: u16, imm: u32) -> Packet {
    let mut packet = write(psn, 64);
    if let Body::Write(write) = &mut packet.body {
        *write = Write { rqmsn: Msn(rqmsn), msn: Msn(0xABCD), imm: Some(imm), ..*write };
    }
    packet
}

#[test]
fn immediates_are_ordered_by_psn_wherever_a_peers_counters_start() {
    for start in [0u16, 1, 0xFFFF, 0x1234] {
        let mut bench = Bench::new(&config());
        for i in [3u32, 1, 2, 0, 4] {
            bench.hear_packet(with_imm(i, start.wrapping_add(i as u16), 100 + i));
        }
        let order: Vec<_> = bench.log.received.iter().map(|done| done.imm).collect();
        assert_eq!(order, [100, 101, 102, 103, 104], "from {start}");
    }
}

#[test]
fn too_many_immediates_are_refused_with_the_configured_syndrome() {
    for syndrome in [0x65, 0x61] {
        let mut config = config();
        config.responder.max_wimm_dest = 32;
        config.responder.options.wimm_nak_syndrome = syndrome;
        let mut bench = Bench::new(&config);
        // Packet 0 is missing, so nothing is complete.
        for psn in 1..=32 {
            assert_eq!(aeths(&bench.hear_packet(with_imm(psn, psn as u16, 0))), []);
        }
        assert_eq!(aeths(&bench.hear_packet(with_imm(33, 33, 0))), [(syndrome, 33)], "PSN refused");
        assert_eq!(bench.log.fatal, Some(Fatal::WimmLimit));
    }
    let mut other = config();
    other.responder.options.wimm_nak_syndrome = 0x60;
    assert!(QueuePair::new(Time::ZERO, &other).is_err());
}

#[test]
fn windows_of_zero_are_an_error_and_those_of_every_device_are_taken() {
    let make = |change: &dyn Fn(&mut openmrc_transport::mrc::QpConfig)| {
        let mut config = config();
        change(&mut config);
        QueuePair::new(Time::ZERO, &config).map(|_| ()).map_err(|e| e.name)
    };
    assert_eq!(make(&|c| c.requestor.mpr = 0), Err("mpr"));
    assert_eq!(make(&|c| c.responder.mpr_dest = 0), Err("mpr_dest"));
    assert_eq!(make(&|c| (c.requestor.mpr, c.responder.mpr_dest) = (8, 8)), Ok(()));
    assert_eq!(make(&|c| (c.requestor.max_wimm, c.responder.max_wimm_dest) = (32, 32)), Ok(()));
}

#[test]
fn a_peer_that_writes_the_length_of_each_packet_as_dma_length_is_served() {
    let mtu = u32::from(DEFAULT_PATH_MTU);
    let alone = |psn, position, len: u16, imm| {
        let mut packet = write(psn, len);
        if let Body::Write(write) = &mut packet.body {
            *write = Write { position, dma_len: len.into(), imm, ..*write };
        }
        packet
    };
    let full = DEFAULT_PATH_MTU;
    let message = [
        alone(0, Position::First, full, None),
        alone(1, Position::Middle, full, None),
        alone(2, Position::Middle, full, None),
        alone(3, Position::Last, 100, Some(7)),
        alone(4, Position::Only, 50, Some(8)),
        alone(5, Position::First, full, None),
        alone(6, Position::Last, full, Some(9)),
    ];
    // In order, and backwards: the end of the first message is known before its begin.
    for backwards in [false, true] {
        let mut bench = Bench::new(&config());
        let mut packets = message.to_vec();
        if backwards {
            packets.reverse();
        }
        for packet in packets {
            bench.hear_packet(packet);
        }
        assert_eq!(bench.qp.error(), None);
        let lengths: Vec<_> = bench.log.received.iter().map(|done| (done.imm, done.byte_len)).collect();
        assert_eq!(lengths, [(7, 3 * mtu + 100), (8, 50), (9, 2 * mtu)]);
    }
    // Shorter than its packet, no total of several packets, or a single packet that is not all of it: refused.
    for (position, len, dma_len) in
        [(Position::First, full, mtu - 1), (Position::Only, 100, 101), (Position::Only, 100, 99)]
    {
        let mut bench = Bench::new(&config());
        let mut packet = alone(0, position, len, None);
        if let Body::Write(write) = &mut packet.body {
            write.dma_len = dma_len;
        }
        bench.hear_packet(packet);
        assert_eq!(bench.qp.error(), Some(Fatal::InvalidRequest), "{position:?} {len} of {dma_len}");
    }
}

#[test]
fn a_message_that_begins_where_another_has_not_ended_is_refused() {
    // In order, and where the beginning has waited for the packet before it.
    for order in [[0, 1], [1, 0]] {
        let mut bench = Bench::new(&config());
        for psn in order {
            assert_eq!(bench.qp.error(), None);
            bench.hear_packet(if psn == 0 { part(0, 3) } else { write(1, 64) });
        }
        assert_eq!(bench.qp.error(), Some(Fatal::InvalidRequest), "{order:?}");
    }
    // What has ended is no hindrance.
    let mut bench = Bench::new(&config());
    (0..3).for_each(|psn| drop(bench.hear_packet(part(psn, 3))));
    bench.hear_packet(write(3, 64));
    assert_eq!(bench.qp.error(), None);
}
