//! Arbitrary bytes as the history of queue pairs with a hostile peer: a correct driver, and packets of every kind
//! between its calls. The same function runs as a property test in `crates/transport/tests/rogue.rs`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/transport/tests/arbitrary/mod.rs"]
mod arbitrary;

fuzz_target!(|input: &[u8]| {
    arbitrary::drive_arbitrary(input);
});
