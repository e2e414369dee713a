//! Arbitrary bytes as the life of queue pairs whose peer sends what it likes: packets of every kind between calls of a
//! driver that behaves. The same entry runs as a property test in `crates/transport/tests/rogue.rs`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/transport/tests/arbitrary/mod.rs"]
mod arbitrary;

fuzz_target!(|input: &[u8]| {
    arbitrary::drive_arbitrary(input);
});
