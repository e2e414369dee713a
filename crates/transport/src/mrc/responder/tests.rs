use super::*;

/// The sizes of a message's packets: full ones, and a last one of `rest`.
fn has_rest(total: u32, rest: u32, path_mtu: u32) -> bool {
    (0..).map(|full| full * path_mtu + rest).take_while(|&sum| sum <= total).any(|sum| sum == total)
}

#[test]
fn every_packet_has_the_length_that_its_place_in_a_message_of_this_length_demands() {
    let path_mtu = 4;
    for (len, dma_len) in (0..12).flat_map(|len| (0..24).map(move |dma_len| (len, dma_len))) {
        let fits = |position| {
            let write = Write {
                position,
                rqmsn: openmrc_wire::Msn(0),
                msn: openmrc_wire::Msn(0),
                timestamp: None,
                va: 0,
                rkey: 0,
                dma_len,
                imm: None,
            };
            has_right_length(&write, len, path_mtu)
        };
        let full = len == 4 && dma_len >= 4;
        assert_eq!((fits(Position::First), fits(Position::Middle)), (full, full), "{len} of {dma_len}");
        assert_eq!(fits(Position::Only), len == dma_len && len <= 4, "{len} of {dma_len}");
        // The length is that of the message or of the packet alone, and a last packet is not empty.
        let rest = (1..=4).contains(&len) && has_rest(dma_len, len, path_mtu);
        assert_eq!(fits(Position::Last), rest, "{len} of {dma_len}");
    }
}

#[test]
fn what_is_owed_what_is_trimmed_and_how_many_acks_were_sent_do_not_touch_each_other() {
    let mut flags = Flags::default();
    assert_eq!((flags.is_owed(), flags.is_trimmed(), flags.acks()), (false, false, 0));
    for sent in 1..=ACKS_ALONE {
        flags.owe();
        flags.set_trimmed(true);
        flags.set_trimmed(true);
        flags.owe();
        flags.count_ack();
        assert_eq!((flags.is_owed(), flags.is_trimmed(), flags.acks()), (true, true, sent));
        assert!(flags.take_owed() && !flags.take_owed());
        assert_eq!((flags.is_owed(), flags.is_trimmed(), flags.acks()), (false, true, sent));
    }
    flags.owe();
    flags.reported();
    assert_eq!((flags.is_owed(), flags.is_trimmed(), flags.acks()), (false, true, 0));
    flags.set_trimmed(false);
    flags.set_trimmed(false);
    flags.count_ack();
    assert_eq!((flags.is_owed(), flags.is_trimmed(), flags.acks()), (false, false, 1));
}
