//! Random numbers that follow from the seed.

use crate::clock::{RANDOM_STEP, mix};
use std::ops::Range;

#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        // Neighbouring seeds start far from each other.
        Dice(mix(seed.wrapping_add(RANDOM_STEP)))
    }
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(RANDOM_STEP);
        mix(self.0)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.roll() % n.max(1)
    }
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }
    /// Once in `n` times; never for 0.
    pub fn once_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
    /// Dice of their own.
    pub fn split(&mut self) -> Dice {
        Dice::new(self.roll())
    }
}
