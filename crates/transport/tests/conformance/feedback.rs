//! What a responder's SACKs say, field by field, and what it counts.

use openmrc_transport::mrc::SackBatching;
use openmrc_transport::{Pressure, Received, Transport as _, Trim};
use openmrc_wire::{Body, Mark, NackReason, Packet, Position, Probe, Psn, Timestamp, Write};

use super::bench::{
    Bench, MTU, QP, aeths, asking, config, is_trimmed, named, reasons, received, sacks, the_sack, write,
};

fn probe(probe_id: u16) -> Packet {
    let timestamp = Timestamp { ticks: 0x1234, tsr: false };
    let probe = Probe { vendor_info: 0, probe_id, spdcid: 0x22, dpdcid: 0x11, timestamp };
    Packet::new(QP, Psn::new(0), Body::Probe(probe))
}

/// Packets that come in without an answer.
fn quietly(bench: &mut Bench, psns: impl IntoIterator<Item = u32>) {
    psns.into_iter().for_each(|psn| assert_eq!(bench.hear_packet(write(psn, 64)), [], "packet {psn}"));
}

#[test]
fn the_bitmap_begins_at_the_first_gap_as_long_as_the_trigger_fits_in() {
    // The first gap is PSN 0, one above the cumulative point. Beyond 64 packets the bitmap begins 55 before the trigger.
    for (trigger, offset, bit) in [(0u32, 1, None), (62, 1, Some(62)), (63, 1, Some(63)), (64, 10, Some(55))]
    {
        let (_, sack) = the_sack(&Bench::new(&config()).hear_packet(asking(write(trigger, 64))));
        let bitmap = bit.map_or(0, |bit: u32| 1 << bit);
        assert_eq!((sack.sack_offset, sack.bitmap), (offset, bitmap), "trigger {trigger}");
    }
}

#[test]
fn of_the_sacks_of_a_report_the_first_has_the_mark_and_all_name_the_trigger() {
    let mut bench = Bench::new(&config());
    quietly(&mut bench, [3, 66]);
    let sacks = sacks(&bench.hear(&Received { ecn_ce: true, ..received(write(300, 64)) }));
    let said: Vec<_> = sacks.iter().map(|s| (s.mark, s.probe_reply, s.ack_psn_offset)).collect();
    // The cumulative point is the PSN below 0.
    assert_eq!(said, [(Mark::SkipOnce, false, 301), (Mark::None, false, 301)]);
}

#[test]
fn of_the_sacks_that_answer_a_probe_only_the_last_says_so() {
    let mut bench = Bench::new(&config());
    quietly(&mut bench, [0, 3, 80, 150]);
    let sacks = sacks(&bench.hear(&Received { ecn_ce: true, ..received(probe(0xFEDC)) }));
    let said: Vec<_> = sacks.iter().map(|s| (s.mark, s.probe_reply, s.ack_psn_offset as u16)).collect();
    assert_eq!(said, [(Mark::None, false, 0), (Mark::None, false, 0), (Mark::SkipOnce, true, 0xFEDC)]);
}

#[test]
fn a_bitmap_that_reaches_beyond_the_window_has_no_bits_from_its_beginning() {
    let mut config = config();
    config.responder.mpr_dest = 1;
    let mut bench = Bench::new(&config);
    quietly(&mut bench, 1..8);
    let mut named = named(&bench.hear_packet(asking(write(127, 64))));
    named.sort_unstable();
    named.dedup();
    assert_eq!(named, [1, 2, 3, 4, 5, 6, 7, 127]);
}

#[test]
fn packets_above_the_cumulative_point_are_counted() {
    let mut bench = Bench::new(&config());
    let mut message = |psn: u32| {
        let mut packet = asking(write(psn, MTU));
        if let Body::Write(write) = &mut packet.body {
            let position = [Position::First, Position::Middle, Position::Last][psn as usize % 3];
            *write = Write { position, dma_len: 3 * u32::from(MTU), ..*write };
        }
        let (_, sack) = the_sack(&bench.hear_packet(packet));
        (sack.cack_psn.get(), sack.cc.ooo_count)
    };
    let none = 0xFF_FFFF;
    // Two messages of three packets; the first packet of each comes late.
    let of = [(1, (none, 1)), (2, (none, 2)), (4, (none, 3)), (0, (2, 1)), (5, (2, 2)), (3, (5, 0))];
    for (psn, expected) in of {
        assert_eq!(message(psn), expected, "packet {psn}");
    }
}

#[test]
fn an_overflow_is_told_by_two_reports_even_if_it_is_over_by_then() {
    let mut bench = Bench::new(&config());
    bench.qp.set_receive_pressure(Pressure::OVERFLOW);
    bench.qp.set_receive_pressure(Pressure::NONE);
    let mut told = |psn| {
        let cc = the_sack(&bench.hear_packet(asking(write(psn, 64)))).1.cc;
        Pressure { penalty: cc.rcv_cwnd_pen, restore: cc.restore_cwnd }
    };
    let reports: Vec<_> = (0..4).map(&mut told).collect();
    assert_eq!(reports, [Pressure::OVERFLOW, Pressure::OVERFLOW, Pressure::NONE, Pressure::NONE]);
    // What is no overflow is told as long as it lasts.
    bench.qp.set_receive_pressure(Pressure::HOLD);
    let cc = the_sack(&bench.hear_packet(asking(write(4, 64)))).1.cc;
    assert_eq!((cc.rcv_cwnd_pen, cc.restore_cwnd), (1, false));
    bench.qp.set_receive_pressure(Pressure::GROW);
    let cc = the_sack(&bench.hear_packet(asking(write(5, 64)))).1.cc;
    assert_eq!((cc.rcv_cwnd_pen, cc.restore_cwnd), (0, false));
}

#[test]
fn what_a_responder_sends_and_refuses_is_counted() {
    let mut bench = Bench::new(&config());
    (0..3).for_each(|psn| drop(bench.hear_packet(asking(write(psn, 64)))));
    (5..7).for_each(|psn| drop(bench.hear(&is_trimmed(write(psn, 64), Trim::Fabric))));
    bench.hear_packet(write(1, 64));
    bench.hear_packet(write(2000, 64));
    let stats = bench.qp.stats();
    assert_eq!((stats.sacks_sent, stats.nacks_sent), (4, 3));
    assert_eq!((stats.data_packets_in, stats.duplicates_in), (7, 1));
    assert_eq!((stats.trimmed_in, stats.refused_in), (2, 1));
}

#[test]
fn a_trimmed_packet_in_a_gap_is_refused() {
    let mut bench = Bench::new(&config());
    quietly(&mut bench, [5]);
    for (psn, expected) in [(3, vec![NackReason::Trimmed]), (5, vec![]), (6, vec![NackReason::Trimmed])] {
        let answer = bench.hear(&is_trimmed(write(psn, 64), Trim::Fabric));
        assert_eq!(reasons(&answer), expected, "packet {psn}");
    }
}

#[test]
fn only_a_message_with_immediate_is_acknowledged_unasked_and_only_if_that_is_chosen() {
    for (chosen, imm) in [(false, None), (false, Some(1)), (true, None), (true, Some(1))] {
        let mut config = config();
        config.acks_immediates = chosen;
        let mut bench = Bench::new(&config);
        let mut packet = write(0, 64);
        if let Body::Write(write) = &mut packet.body {
            write.imm = imm;
        }
        let answer = bench.hear_packet(packet);
        let expected = if chosen && imm.is_some() { vec![(0x1F, 0)] } else { vec![] };
        assert_eq!(aeths(&answer), expected, "{chosen} {imm:?}");
        assert_eq!(sacks(&answer).len(), expected.len(), "{chosen} {imm:?}");
    }
}

#[test]
fn a_later_packet_that_asks_does_not_put_off_the_delayed_sack() {
    let mut config = config();
    config.responder.batching = SackBatching::BehindData;
    let half = config.responder.ack_delay.over(2);
    let mut bench = Bench::new(&config);
    quietly(&mut bench, [0]);
    bench.now += half;
    assert_eq!(bench.hear_packet(asking(write(1, 64))), []);
    assert_eq!(bench.timers(), []);
    bench.now += half;
    the_sack(&bench.timers());
}

#[test]
fn a_retransmission_is_answered_at_once_even_if_a_message_behind_it_waits_for_data() {
    let mut config = config();
    config.responder.batching = SackBatching::BehindData;
    let mut bench = Bench::new(&config);
    assert_eq!(bench.hear_packet(asking(write(0, 64))), []);
    assert_eq!(aeths(&bench.behind_data()), [(0x1F, 0)]);
    assert_eq!(bench.hear_packet(Packet { rtx: true, ..write(1, 64) }), []);
    assert_eq!(bench.hear_packet(asking(write(2, 64))), []);
    the_sack(&bench.timers());
}
