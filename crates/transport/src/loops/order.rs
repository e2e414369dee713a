//! Which loop is probed next: all in turn, and those that have lately lost something more often.
//!
//! The rate is the same in any case. While some loops are suspected, every fourth probe is one of theirs, and every
//! fourth one of the other loops of their ports: a cable that loses little is told apart from a link behind it by what
//! else crosses it.

use super::counts::Count;

/// Intervals for which a loop stays suspected after a loss: ten seconds. A link that loses a thousandth loses another of
/// its loop's probes in that time.
const SUSPECTED_FOR: u8 = 40;

/// Some loops, in turn.
#[derive(Default)]
struct Turn {
    loops: Vec<usize>,
    next: usize,
}

impl Turn {
    fn set(&mut self, loops: impl Iterator<Item = usize>) {
        self.loops.clear();
        self.loops.extend(loops);
        if self.next >= self.loops.len() {
            self.next = 0;
        }
    }

    /// The next one. There must be one.
    fn take(&mut self) -> usize {
        let found = self.loops[self.next];
        self.next = (self.next + 1) % self.loops.len();
        found
    }
}

/// The turn of the loops.
pub struct Order {
    /// By loop: its port of the host.
    ports: Vec<u32>,
    /// By loop: intervals for which it is still suspected.
    suspected: Vec<u8>,
    all: Turn,
    suspects: Turn,
    /// Loops of the suspects' ports that are not suspected themselves.
    beside: Turn,
    /// Whether the last probe was an extra one.
    extra: bool,
    /// Whether the next extra one is of a loop beside the suspects.
    beside_next: bool,
}

impl Order {
    /// The loops in turn, by their ports. There is one at least.
    pub fn new(ports: &[u32]) -> Self {
        Order {
            ports: ports.to_vec(),
            suspected: vec![0; ports.len()],
            all: Turn { loops: (0..ports.len()).collect(), next: 0 },
            suspects: Turn::default(),
            beside: Turn::default(),
            extra: false,
            beside_next: false,
        }
    }

    /// Learns what an interval has brought. If all loops lose, none is probed more than another.
    pub fn learn(&mut self, counts: &[Count]) {
        for (left, count) in self.suspected.iter_mut().zip(counts) {
            *left = if count.received < count.sent { SUSPECTED_FOR } else { left.saturating_sub(1) };
        }
        let (suspected, ports) = (&self.suspected, &self.ports);
        self.suspects.set((0..suspected.len()).filter(|&index| suspected[index] > 0));
        let suspects = &self.suspects.loops;
        let has_suspect = |port| suspects.iter().any(|&suspect| ports[suspect] == port);
        let beside = (0..suspected.len()).filter(|&index| suspected[index] == 0 && has_suspect(ports[index]));
        self.beside.set(beside);
    }

    /// The next loop.
    pub fn next_loop(&mut self) -> usize {
        self.extra = !self.extra && !self.suspects.loops.is_empty();
        if !self.extra {
            return self.all.take();
        }
        let beside = self.beside_next && !self.beside.loops.is_empty();
        self.beside_next = !self.beside_next;
        if beside { self.beside.take() } else { self.suspects.take() }
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
        assert_eq!(turns(&mut Order::new(&[0, 0, 1]), 7), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn a_suspect_has_half_of_the_probes_besides_its_turn() {
        let mut order = Order::new(&[0, 1, 2, 3]);
        order.learn(&lost(4, &[2]));
        assert_eq!(turns(&mut order, 8), [2, 0, 2, 1, 2, 2, 2, 3]);
    }

    #[test]
    fn the_other_loops_of_a_suspects_port_have_a_quarter_of_the_probes() {
        let mut order = Order::new(&[0, 0, 0, 1, 1]);
        order.learn(&lost(5, &[1]));
        assert_eq!(turns(&mut order, 8), [1, 0, 0, 1, 1, 2, 2, 3]);
        order.learn(&lost(5, &[0, 1, 2]));
        assert_eq!(turns(&mut order, 4), [0, 4, 1, 0]);
    }

    #[test]
    fn a_loop_that_loses_no_more_is_suspected_for_a_while() {
        let mut order = Order::new(&[0, 1, 2, 3]);
        order.learn(&lost(4, &[2]));
        (0..SUSPECTED_FOR - 1).for_each(|_| order.learn(&lost(4, &[])));
        assert_eq!(turns(&mut order, 2), [2, 0]);
        order.learn(&lost(4, &[]));
        assert_eq!(turns(&mut order, 4), [1, 2, 3, 0]);
    }

    #[test]
    fn a_turn_goes_on_where_it_was_as_far_as_there_is_something() {
        let mut turn = Turn::default();
        turn.set([4, 5, 6].into_iter());
        assert_eq!([turn.take(), turn.take()], [4, 5]);
        turn.set([4, 5, 7].into_iter());
        assert_eq!([turn.take(), turn.take(), turn.take()], [7, 4, 5]);
        turn.set([8, 9].into_iter());
        assert_eq!(turn.take(), 8);
    }

    #[test]
    fn suspects_may_become_fewer() {
        let mut order = Order::new(&[0, 1, 2, 3]);
        order.learn(&lost(4, &[1, 2, 3]));
        turns(&mut order, 4);
        (0..SUSPECTED_FOR).for_each(|_| order.learn(&lost(4, &[3])));
        assert_eq!(turns(&mut order, 4), [3, 2, 3, 3]);
    }
}
