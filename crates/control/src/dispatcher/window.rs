//! The last requests: their tail and their rate.

use lull_measure::{Nanos, Percentile};

/// A moving window over the last arrivals and answers (EETL, Haque et al., MICRO-50,
/// section 5.4: 2000 of them).
#[derive(Debug, Clone)]
pub struct Window {
    latencies: Ring,
    arrivals: Ring,
    /// Space to select the tail without allocating.
    scratch: Vec<u64>,
}

/// The last values of a series, oldest overwritten first.
#[derive(Debug, Clone)]
struct Ring {
    values: Vec<u64>,
    next: usize,
    length: usize,
}

impl Ring {
    fn new(length: usize) -> Self {
        Self { values: Vec::with_capacity(length), next: 0, length }
    }

    #[inline]
    fn push(&mut self, value: u64) {
        if self.values.len() < self.length {
            self.values.push(value);
            return;
        }
        self.values[self.next] = value;
        self.next = if self.next + 1 == self.length { 0 } else { self.next + 1 };
    }

    fn oldest(&self) -> Option<u64> {
        self.values.get(self.next).copied()
    }

    fn newest(&self) -> Option<u64> {
        let last = (self.next + self.length - 1) % self.length;
        self.values.get(last).or(self.values.last()).copied()
    }
}

impl Window {
    /// A window over this many requests, at least two.
    pub fn new(requests: usize) -> Self {
        let length = requests.max(2);
        let scratch = Vec::with_capacity(length);
        Self { latencies: Ring::new(length), arrivals: Ring::new(length), scratch }
    }

    /// Takes note of an arrival.
    #[inline]
    pub fn arrived(&mut self, now: Nanos) {
        self.arrivals.push(now.0);
    }

    /// Takes note of an answer.
    #[inline]
    pub fn answered(&mut self, latency: Nanos) {
        self.latencies.push(latency.0);
    }

    /// Answers in the window.
    pub fn samples(&self) -> usize {
        self.latencies.values.len()
    }

    /// The tail over the window: the smallest latency of the window that an answer exceeds with
    /// a probability of no more than 1 - percentile; `None` without answers.
    ///
    /// The k-th of n is exceeded with a probability of 1 - k/(n + 1). By the share of the
    /// answers in the window, k/n, a controller that settles on a p99 would let 1.05 % of all
    /// answers be late with 2000 of them.
    pub fn tail(&mut self, percentile: Percentile) -> Option<Nanos> {
        let count = self.latencies.values.len();
        if count == 0 {
            return None;
        }
        self.scratch.clone_from(&self.latencies.values);
        // Rounded against products such as 0.99 * 2000 = 1980.0000000000002.
        let rank = (percentile.fraction() * (count + 1) as f64 - 1e-9).ceil() as usize;
        let place = rank.clamp(1, count);
        Some(Nanos(*self.scratch.select_nth_unstable(place - 1).1))
    }

    /// Share of the answers in the window that took longer than this; `None`
    /// without answers. Unlike the tail it is a mean, and so not skewed.
    pub fn late(&self, bound: Nanos) -> Option<f64> {
        let all = &self.latencies.values;
        let late = all.iter().filter(|latency| **latency > bound.0).count();
        (!all.is_empty()).then(|| late as f64 / all.len() as f64)
    }

    /// Arrivals per second over the window; `None` with fewer than two, or
    /// if all have the same time.
    pub fn rate_per_s(&self) -> Option<f64> {
        let span_ns = self.arrivals.newest()?.saturating_sub(self.arrivals.oldest()?);
        let gaps = self.arrivals.values.len() - 1;
        (gaps > 0 && span_ns > 0).then(|| gaps as f64 * 1e9 / span_ns as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_window_knows_nothing() {
        let mut window = Window::new(10);
        assert_eq!((window.tail(Percentile::P99), window.rate_per_s()), (None, None));
        assert_eq!(window.late(Nanos(1)), None);
        window.arrived(Nanos(5));
        assert_eq!(window.rate_per_s(), None, "one arrival has no rate");
        window.arrived(Nanos(5));
        assert_eq!(window.rate_per_s(), None, "no time has passed");
    }

    #[test]
    fn the_tail_is_that_of_the_last_answers() {
        let mut window = Window::new(100);
        for latency in 1..=100 {
            window.answered(Nanos(latency));
        }
        assert_eq!(window.tail(Percentile::P99), Some(Nanos(100)));
        assert_eq!(window.tail(Percentile::P50), Some(Nanos(51)), "an answer has no other median");
        assert_eq!(window.late(Nanos(90)), Some(0.1));
        for latency in 101..=150 {
            window.answered(Nanos(latency));
        }
        assert_eq!(window.samples(), 100);
        assert_eq!(window.tail(Percentile::P99), Some(Nanos(150)), "51 to 150 are left");
    }

    #[test]
    fn a_controller_that_settles_on_the_tail_lets_the_promised_share_be_late() {
        // Windows of evenly distributed latencies: the mean of their tails is the percentile.
        let mut state: u64 = 1;
        let mut draw = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            Nanos(state >> 44)
        };
        let mut window = Window::new(200);
        let mut sum = 0.0;
        for _ in 0..2000 {
            (0..200).for_each(|_| window.answered(draw()));
            sum += window.tail(Percentile::P99).map_or(0.0, |tail| tail.0 as f64);
        }
        let level = sum / 2000.0 / f64::from(1 << 20);
        assert!((level - 0.99).abs() < 1e-3, "by the share of the answers it is .985: {level}");
    }

    #[test]
    fn the_rate_is_that_of_the_last_arrivals() {
        let mut window = Window::new(3);
        for (at, rate) in [(0, None), (500, Some(2.0)), (1000, Some(2.0)), (1100, Some(1.0 / 0.3))]
        {
            window.arrived(Nanos::from_millis(at));
            assert_eq!(window.rate_per_s(), rate, "{at}");
        }
    }
}
