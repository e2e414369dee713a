//! Whose turn it is: queue pairs that are READY, served round robin (spec: congestion, QP scheduling).

use std::collections::VecDeque;

/// Queue pairs that want to be served, each at most once, in the order in which they asked.
#[derive(Clone, Debug, Default)]
pub struct ReadyRing {
    turns: VecDeque<u32>,
    waiting: Vec<bool>,
}

impl ReadyRing {
    /// A ring with nobody in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts queue pair `index` at the end, unless it waits already.
    pub fn push(&mut self, index: u32) {
        let slot = index as usize;
        if slot >= self.waiting.len() {
            self.waiting.resize(slot + 1, false);
        }
        if !self.waiting[slot] {
            self.waiting[slot] = true;
            self.turns.push_back(index);
        }
    }

    /// The queue pair whose turn it is; it has to be pushed again to get another.
    pub fn pop(&mut self) -> Option<u32> {
        let index = self.turns.pop_front()?;
        self.waiting[index as usize] = false;
        Some(index)
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.turns.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_go_round_and_nobody_waits_twice() {
        let mut ring = ReadyRing::new();
        for i in [3, 1, 3, 2, 1] {
            ring.push(i);
        }
        assert_eq!(ring.len(), 3);
        assert_eq!([ring.pop(), ring.pop()], [Some(3), Some(1)]);
        ring.push(3);
        assert_eq!([ring.pop(), ring.pop(), ring.pop()], [Some(2), Some(3), None]);
    }
}
