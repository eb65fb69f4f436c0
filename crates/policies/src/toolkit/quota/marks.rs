//! Sums over the marks of answers, and whether their mean is significantly above a limit.

/// Standard errors above the allowed mean mark that limit best effort.
const ERRORS: f64 = 3.0;

/// Count, sum and sum of squares of marks.
#[derive(Debug, Clone, Default)]
pub(super) struct Marks {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Marks {
    /// Adds a mark, or removes it (weight -1).
    pub(super) fn note(&mut self, mark: f64, weight: f64) {
        self.count += weight;
        self.sum += weight * mark;
        self.squares += weight * mark * mark;
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.squares += other.squares;
    }

    /// The mean mark. Sums of differences may end a hair below zero.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.count > 0.0).then_some((self.sum / self.count).max(0.0))
    }

    /// Whether the mean is significantly above a limit.
    pub(super) fn is_above(&self, limit: f64) -> bool {
        let Some(mean) = self.mean().filter(|_| self.count > 1.0) else { return false };
        let variance = (self.squares - self.count * mean * mean) / (self.count - 1.0);
        mean - ERRORS * (variance.max(0.0) / self.count).sqrt() > limit
    }
}
