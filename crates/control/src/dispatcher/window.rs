//! The last requests: their tail and their rate.

use lull_measure::{Nanos, Percentile};

/// A moving window over the last arrivals and answers (EETL, Haque et al., MICRO-50,
/// section 5.4: 2000 of them).
#[derive(Debug, Clone)]
pub struct Window {
    latencies: Ring,
    arrivals: Ring,
    /// For picking the tail without allocating.
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

    /// The tail over the window: the smallest latency that this share of the
    /// answers does not exceed; `None` without answers.
    pub fn tail(&mut self, percentile: Percentile) -> Option<Nanos> {
        let count = self.latencies.values.len();
        self.scratch.clone_from(&self.latencies.values);
        // Rounded against 0.99 * 2000 = 1980.0000000000002.
        let place = (percentile.fraction() * count as f64 - 1e-9).ceil().max(1.0) as usize;
        if count == 0 {
            return None;
        }
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
        assert_eq!(window.tail(Percentile::P99), Some(Nanos(99)));
        assert_eq!(window.tail(Percentile::P50), Some(Nanos(50)));
        assert_eq!(window.late(Nanos(90)), Some(0.1));
        for latency in 101..=150 {
            window.answered(Nanos(latency));
        }
        assert_eq!(window.samples(), 100);
        assert_eq!(window.tail(Percentile::P99), Some(Nanos(149)), "51 to 150 are left");
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
