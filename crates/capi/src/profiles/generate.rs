//! Entropy values that the device draws within the bounds of a profile's fields (spec: wire, EV profile expansion).

use openmrc_transport::random::mix;
use openmrc_wire::expansion::{EvField, EvString};

use crate::abi::ctl::{EV_MAX_BYTES, MrcCtlEv};

/// The string of bits that the numbers of the masked bits of each field form.
fn string(fields: &[EvField], numbers: impl Iterator<Item = u32>) -> EvString {
    let mut bytes = [0u8; EV_MAX_BYTES];
    let mut at = 0;
    for (field, number) in fields.iter().zip(numbers) {
        for bit in (0..field.mask.count_ones()).rev() {
            if number >> bit & 1 == 1 {
                bytes[at / 8] |= 0x80 >> (at % 8);
            }
            at += 1;
        }
    }
    EvString(bytes)
}

/// Bounds of the number of each field; (0, 0) for a constant one.
fn bounds(field: &EvField) -> (u32, u32) {
    field.bounds().unwrap_or((0, 0))
}

/// How many values the fields allow, saturating.
fn combinations(fields: &[EvField]) -> u64 {
    fields.iter().map(bounds).fold(1u64, |n, (low, high)| n.saturating_mul(u64::from(high - low) + 1))
}

/// `count` entropy values in turn over `ports` ports. No two are equal while the fields allow that, and while there are
/// enough, no two ports share one; `usable` says whether packets can carry one. Empty if none is usable.
pub fn draw(
    fields: &[EvField],
    count: usize,
    ports: usize,
    seed: u64,
    usable: impl Fn(&EvString) -> bool,
) -> Vec<MrcCtlEv> {
    /// Up to this many combinations are listed; of more, a sample is drawn.
    const LISTED: u64 = 1 << 14;
    let of_number = |mut number: u64| {
        let numbers = fields.iter().map(|field| {
            let (low, high) = bounds(field);
            let choices = u64::from(high - low) + 1;
            let chosen = low + (number % choices) as u32;
            number /= choices;
            chosen
        });
        string(fields, numbers)
    };
    let all = combinations(fields);
    let mut values: Vec<EvString> = if all <= LISTED {
        let mut order: Vec<u64> = (0..all).collect();
        order.sort_by_key(|&number| mix(seed ^ mix(number + 1)));
        order.into_iter().map(of_number).filter(&usable).collect()
    } else {
        let mut drawn = std::collections::BTreeSet::new();
        (0..4 * count as u64 + 64)
            .map(|i| {
                let numbers = fields.iter().enumerate().map(|(place, field)| {
                    let (low, high) = bounds(field);
                    let number = mix(seed ^ mix(i * 256 + place as u64));
                    low + (number % (u64::from(high - low) + 1)) as u32
                });
                string(fields, numbers)
            })
            .filter(|value| usable(value) && drawn.insert(value.0))
            .collect()
    };
    values.truncate(count);
    let share = count / ports.max(1);
    if values.is_empty() {
        return Vec::new();
    }
    let place = |i: usize, port: usize| MrcCtlEv {
        val: values[(port * share + i) % values.len()].0,
        port: port as u8 + 1,
    };
    (0..share).flat_map(|i| (0..ports).map(move |port| (i, port))).map(|(i, port)| place(i, port)).collect()
}
