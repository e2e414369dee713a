//! Sorts the events of a node, which are nearly in order: they have been spread over buckets by time.

use crate::event::Event;

/// Sorts events by time. Events of the same time keep their order.
#[inline(always)]
pub(super) fn finish(events: &mut [Event]) {
    // Insertion sort costs a comparison an event, unless many events share a bucket.
    let mut moves_left = 8 * events.len();
    let mut latest = 0;
    let mut in_order = 0;
    // The first event that is earlier than one before it.
    while let Some(ahead) = events[in_order..].iter().position(|event| {
        let is_early = event.time < latest;
        latest = latest.max(event.time);
        is_early
    }) {
        let i = in_order + ahead;
        in_order = i + 1;
        let event = events[i];
        let mut place = i;
        while place > 0 && events[place - 1].time > event.time {
            events[place] = events[place - 1];
            place -= 1;
        }
        events[place] = event;
        moves_left = moves_left.saturating_sub(i - place);
        if moves_left == 0 {
            events.sort_by_key(|event| event.time);
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
        fn sorts_by_time_and_equal_times_as_they_were(
            times in proptest::collection::vec(0u64..1 << 20, 0..2000),
            squeeze in 0u32..20,
            sorted in proptest::bool::ANY,
        ) {
            let mut times: Vec<u64> = times.into_iter().map(|time| time >> squeeze).collect();
            if sorted {
                times.sort_by_key(|time| time >> 3);
            }
            let mut events: Vec<_> =
                times.iter().zip(0..).map(|(&time, id)| Event::plain(time, Kind::Wake, id, 0)).collect();
            let mut expected = events.clone();
            expected.sort_by_key(|event| (event.time, event.at));
            finish(&mut events);
            prop_assert_eq!(events, expected);
        }
    }
}
