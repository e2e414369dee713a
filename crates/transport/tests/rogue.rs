//! A queue pair whose peer is a rogue: arbitrary packets in arbitrary order.

mod arbitrary;

use arbitrary::{Tally, drive_arbitrary};
use proptest::collection::vec;
use proptest::prelude::*;
use rand::{Rng, RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_a_peer_sends_makes_a_queue_pair_misbehave(bytes in vec(any::<u8>(), 0..1500)) {
        drive_arbitrary(&bytes);
    }
}

#[test]
fn nor_does_a_long_conversation_with_a_rogue() {
    let mut dice = Xoshiro256PlusPlus::seed_from_u64(0xF00D);
    let mut total = Tally::default();
    for _ in 0..1000 {
        let mut bytes = vec![0; dice.random_range(1..40_000)];
        dice.fill_bytes(&mut bytes);
        let tally = drive_arbitrary(&bytes);
        total.queue_pairs += tally.queue_pairs;
        total.placed += tally.placed;
        total.received += tally.received;
        total.sent += tally.sent;
        total.completed += tally.completed;
        total.feedback += tally.feedback;
        total.failed += tally.failed;
    }
    // The rogue's packets are plausible enough to reach every part of the queue pair.
    let least = [total.placed, total.received, total.sent, total.completed, total.feedback, total.failed];
    assert!(least.iter().all(|&n| n > 1000), "{total:?}");
}

#[test]
fn nor_does_silence() {
    drive_arbitrary(&[]);
    drive_arbitrary(&[0; 5000]);
    drive_arbitrary(&[0xFF; 5000]);
}
