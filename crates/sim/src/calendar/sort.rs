//! Sorts the events of a node, which are nearly in order: they have been spread over buckets by time.

use crate::event::Event;

/// Sorts events by time and by [`Event::tie`]. Events that are equal in both keep their order.
#[inline(always)]
pub(super) fn finish(events: &mut [Event]) {
    // Insertion sort costs a comparison an event, unless many events share a bucket.
    let mut moves_left = 8 * events.len();
    let mut in_order = 1;
    // The first event that belongs before its predecessor. All events before that one are in order.
    while let Some(ahead) = events.windows(2).skip(in_order - 1).position(|pair| pair[1].is_before(&pair[0]))
    {
        let i = in_order + ahead;
        in_order = i + 1;
        let event = events[i];
        let mut place = i;
        while place > 0 && event.is_before(&events[place - 1]) {
            events[place] = events[place - 1];
            place -= 1;
        }
        events[place] = event;
        moves_left = moves_left.saturating_sub(i - place);
        if moves_left == 0 {
            events.sort_by_key(|event| (event.time, event.tie()));
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Kind;
    use proptest::prelude::*;

    proptest! {
        /// Events nearly in order or in none, some of the same time.
        #[test]
        fn sorts_by_time_and_port_and_equal_ones_as_they_were(
            times in proptest::collection::vec(0u64..1 << 20, 0..2000),
            squeeze in 0u32..20,
            sorted in proptest::bool::ANY,
        ) {
            let mut times: Vec<u64> = times.into_iter().map(|time| time >> squeeze).collect();
            if sorted {
                times.sort_by_key(|time| time >> 3);
            }
            // Three ports; the connection tells in which order the events of a port were scheduled.
            let mut events: Vec<_> = times
                .iter()
                .zip(0..)
                .map(|(&time, id)| Event { connection: id, ..Event::plain(time, Kind::Wake, id * 7 % 3, 0) })
                .collect();
            let mut expected = events.clone();
            expected.sort_by_key(|event| (event.time, event.at, event.connection));
            finish(&mut events);
            prop_assert_eq!(events, expected);
        }
    }
}
