//! Entropy values that the device draws within the bounds of a profile's fields (docs/spec/wire.md, "EV profile
//! expansion").

use std::collections::BTreeSet;

use openmrc_transport::random::mix;
use openmrc_wire::expansion::{EV_BITS, EvField, EvString};

use super::layout::EvName;

/// Up to this many combinations are listed; of more, a sample is drawn.
const LISTED: u64 = 1 << 14;

/// The string of bits that the numbers of the masked bits of each field form.
fn string(fields: &[EvField], numbers: impl Iterator<Item = u32>) -> EvString {
    let mut bytes = [0u8; EV_BITS as usize / 8];
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

/// `count` entropy values in turn over the ports. No two are equal while the fields allow that, and while there are
/// enough, no two ports share one; `usable` says whether packets can carry one. Empty if none is usable.
pub(super) fn draw(
    fields: &[EvField],
    count: usize,
    ports: &[u8],
    seed: u64,
    usable: impl Fn(&EvString) -> bool,
) -> Vec<EvName> {
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
        let mut drawn = BTreeSet::new();
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
    let share = count / ports.len().max(1);
    if values.is_empty() {
        return Vec::new();
    }
    let entry = |i: usize, place: usize| EvName {
        value: values[(place * share + i) % values.len()],
        port: ports[place],
    };
    (0..share).flat_map(|i| (0..ports.len()).map(move |place| (i, place))).map(|(i, p)| entry(i, p)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use openmrc_wire::EvFormat;
    use openmrc_wire::expansion::expand;

    use super::*;

    /// The source ports of all values that a field allows, drawn for one port.
    fn source_ports(field: EvField, count: usize, seed: u64) -> Vec<u32> {
        let port = |value: &EvString| expand(EvFormat::Udp, &[16], &[field], value).unwrap().udp().0;
        let drawn = draw(&[field], count, &[0], seed, |value| port(value) != 0);
        drawn.iter().map(|ev| port(&ev.value)).collect()
    }

    /// The number that the bits of a value under a mask form.
    fn masked(value: u32, mask: u32) -> u32 {
        (0..16).rev().filter(|i| mask >> i & 1 == 1).fold(0, |number, i| number << 1 | value >> i & 1)
    }

    #[test]
    fn drawn_values_keep_within_the_bounds_of_the_masked_bits_and_differ_while_they_can() {
        for seed in 0..300u64 {
            let random = |n: u64, below: u64| (mix(seed * 16 + n) % below) as u32;
            let mask = random(0, 1 << 16);
            let most = ((1u64 << mask.count_ones()) - 1) as u32;
            let (one, other) = (random(1, u64::from(most) + 1), random(2, u64::from(most) + 1));
            let (min, max) = (one.min(other), one.max(other));
            let field = EvField { width: 16, init: random(3, 1 << 16), min, max, mask };
            let (low, high) = if max == 0 { (0, most) } else { (min, max) };
            let possible: HashSet<u32> = (1..1 << 16)
                .filter(|value| (value ^ field.init) & !mask & 0xFFFF == 0)
                .filter(|&value| (low..=high).contains(&masked(value, mask)))
                .collect();
            let count = 200;
            let drawn = source_ports(field, count, seed);
            let different: HashSet<u32> = drawn.iter().copied().collect();
            assert!(different.is_subset(&possible), "{field:x?}");
            // Of more combinations than are listed, a sample has `count` different ones.
            assert_eq!(different.len(), count.min(possible.len()), "{field:x?}");
            assert_eq!(drawn.len(), if possible.is_empty() { 0 } else { count });
        }
    }

    #[test]
    fn ports_share_no_value_while_there_are_enough_and_repeat_them_otherwise() {
        let narrow = [EvField { width: 16, init: 0x8000, min: 0, max: 3, mask: 3 }];
        for (count, different) in [(4, 1), (16, 4), (32, 4)] {
            let evs = draw(&narrow, count, &[0, 1, 4, 5], 7, |_| true);
            assert_eq!(evs.len(), count);
            for port in [0, 1, 4, 5] {
                let of_port: Vec<_> = evs.iter().filter(|ev| ev.port == port).map(|ev| ev.value).collect();
                assert_eq!(of_port.len(), count / 4);
                assert_eq!(of_port.into_iter().collect::<HashSet<_>>().len(), different);
            }
            assert_eq!(evs.iter().map(|ev| ev.value).collect::<HashSet<_>>().len(), 4);
        }
    }

    #[test]
    fn the_seed_decides_which_values_are_drawn() {
        let wide = [EvField { width: 16, init: 0, min: 0, max: 0, mask: 0xFFFF }];
        let values = |seed| draw(&wide, 64, &[0, 1], seed, |_| true);
        assert_eq!(values(3), values(3));
        assert_ne!(values(3), values(4));
    }
}
