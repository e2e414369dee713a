//! A seeded random number generator. The same seed gives the same numbers on every machine.

use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use openmrc_transport::Span;

/// A seeded random number generator.
pub struct Dice(Xoshiro256PlusPlus);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    pub fn u64(&mut self) -> u64 {
        self.0.random()
    }

    /// True with probability `p`. Draws no number if the result is certain.
    pub fn chance(&mut self, p: f64) -> bool {
        p > 0.0 && (p >= 1.0 || self.0.random_bool(p))
    }

    /// A number in `0..n`; zero if `n` is zero.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.0.random_range(0..n) }
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.0.random_range(low..=high)
    }

    /// A number in `low..=high`, evenly distributed on a logarithmic scale: 1..10 as often as 10..100.
    pub fn log_between(&mut self, low: u64, high: u64) -> u64 {
        let (low_ln, high_ln) = ((low.max(1) as f64).ln(), (high.max(1) as f64).ln());
        let drawn = (low_ln + (high_ln - low_ln) * self.0.random::<f64>()).exp();
        (drawn as u64).clamp(low, high)
    }

    /// A probability between `low` and `high`, evenly distributed on a logarithmic scale.
    pub fn log_probability(&mut self, low: f64, high: f64) -> f64 {
        (low.ln() + (high.ln() - low.ln()) * self.0.random::<f64>()).exp()
    }

    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A duration up to `most`.
    pub fn span(&mut self, most: Span) -> Span {
        Span(self.below(most.0.saturating_add(1)))
    }
}
