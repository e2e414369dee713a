//! Which loop is probed next: all in turn, and those that have lately lost something more often.
//!
//! The rate is the same in any case. While some loops are suspected, every second probe is one of theirs.

use crate::counts::Count;

/// Intervals for which a loop stays suspected after a loss.
const SUSPECTED_FOR: u8 = 8;

/// The turn of the loops.
pub struct Order {
    /// By loop: intervals for which it is still suspected.
    suspected: Vec<u8>,
    next: usize,
    suspects: Vec<usize>,
    next_suspect: usize,
    /// Whether the last probe was a suspect's extra one.
    extra: bool,
}

impl Order {
    /// The loops in turn. There is one at least.
    pub fn new(loops: usize) -> Self {
        Order { suspected: vec![0; loops], next: 0, suspects: Vec::new(), next_suspect: 0, extra: false }
    }

    /// Learns what an interval has brought. If all loops lose, none is probed more than another.
    pub fn learn(&mut self, counts: &[Count]) {
        for (left, count) in self.suspected.iter_mut().zip(counts) {
            *left = if count.received < count.sent { SUSPECTED_FOR } else { left.saturating_sub(1) };
        }
        self.suspects.clear();
        let suspected = self.suspected.iter().enumerate().filter(|(_, left)| **left > 0);
        self.suspects.extend(suspected.map(|(index, _)| index));
        if self.next_suspect >= self.suspects.len() {
            self.next_suspect = 0;
        }
    }

    /// The next loop.
    pub fn next_loop(&mut self) -> usize {
        self.extra = !self.extra && !self.suspects.is_empty();
        let (place, len) = match self.extra {
            true => (&mut self.next_suspect, self.suspects.len()),
            false => (&mut self.next, self.suspected.len()),
        };
        let found = *place;
        *place = (found + 1) % len;
        if self.extra { self.suspects[found] } else { found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(order: &mut Order, n: usize) -> Vec<usize> {
        (0..n).map(|_| order.next_loop()).collect()
    }

    fn lost(loops: usize, losing: &[usize]) -> Vec<Count> {
        (0..loops).map(|index| Count { sent: 4, received: 4 - u32::from(losing.contains(&index)) }).collect()
    }

    #[test]
    fn all_loops_have_their_turn() {
        assert_eq!(turns(&mut Order::new(3), 7), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn a_suspect_has_half_of_the_probes_besides_its_turn() {
        let mut order = Order::new(4);
        order.learn(&lost(4, &[2]));
        assert_eq!(turns(&mut order, 8), [2, 0, 2, 1, 2, 2, 2, 3]);
    }

    #[test]
    fn a_loop_that_loses_no_more_is_suspected_for_a_while() {
        let mut order = Order::new(4);
        order.learn(&lost(4, &[2]));
        (0..SUSPECTED_FOR - 1).for_each(|_| order.learn(&lost(4, &[])));
        assert_eq!(turns(&mut order, 2), [2, 0]);
        order.learn(&lost(4, &[]));
        assert_eq!(turns(&mut order, 4), [1, 2, 3, 0]);
    }

    #[test]
    fn suspects_may_become_fewer() {
        let mut order = Order::new(4);
        order.learn(&lost(4, &[1, 2, 3]));
        turns(&mut order, 4);
        (0..SUSPECTED_FOR).for_each(|_| order.learn(&lost(4, &[3])));
        assert_eq!(turns(&mut order, 4), [3, 2, 3, 3]);
    }
}
