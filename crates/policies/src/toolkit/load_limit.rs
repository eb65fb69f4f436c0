//! The load limit and the pause between rounds that follows from it.
//!
//! REEF (Li et al., SoCC'25, section 3.4): the limit is `lambda = share * mean lambda`,
//! where mean lambda is the throughput seen while the device is above 95 % of
//! its own; 105 % of it is best (Fig. 9). The pause between two rounds is the
//! longest that still allows it. A round that answered q queries and took T
//! allows
//!
//! ```text
//! q / (T + D) = lambda        D = max(q / lambda - T, D_min)
//! ```
//!
//! so no search is needed: D follows from the round before. D_min is the
//! break-even of the deep idle state, by default 1 ms; where lambda cannot be
//! had with it, D is D_min and the gate limits the throughput, which is the
//! paper's default and can be turned off with D_min = 0.

use lull_control::admission::{GateObservation, RoundObservation};
use lull_measure::Nanos;

/// Share of the device above which throughput counts (section 3.1).
const HIGH: f64 = 0.95;

/// Estimates mean lambda and returns the pause.
#[derive(Debug, Clone)]
pub(crate) struct LoadLimit {
    /// lambda over mean lambda.
    share: f64,
    least: Nanos,
    most: Nanos,
    window: Nanos,
    /// Mean lambda; given, or found.
    mean_per_s: Option<f64>,
    given: bool,
    since: Option<Nanos>,
    last: Nanos,
    queries: u64,
    device_s: f64,
}

impl LoadLimit {
    /// Finds mean lambda online, over windows of this length.
    pub(crate) fn new(share: f64, (least, most): (Nanos, Nanos), window: Nanos) -> Self {
        Self {
            share,
            least,
            most,
            window,
            mean_per_s: None,
            given: false,
            since: None,
            last: Nanos::ZERO,
            queries: 0,
            device_s: 0.0,
        }
    }

    /// Takes mean lambda as given.
    #[must_use]
    pub(crate) fn given(self, mean_per_s: f64) -> Self {
        Self { mean_per_s: Some(mean_per_s), given: true, ..self }
    }

    /// Starts with this mean lambda and follows its observations.
    pub(crate) fn start(&mut self, mean_per_s: f64) {
        if self.mean_per_s.is_none() {
            self.mean_per_s = Some(mean_per_s);
        }
    }

    /// Takes this mean lambda from now on, unless one was given.
    pub(crate) fn follow(&mut self, mean_per_s: f64) {
        if !self.given {
            self.mean_per_s = Some(mean_per_s);
        }
    }

    /// lambda; `None` before it is known.
    pub(crate) fn per_s(&self) -> Option<f64> {
        self.mean_per_s.map(|mean| mean * self.share)
    }

    /// Notes the answers.
    pub(crate) fn note(&mut self, seen: &GateObservation<'_>) {
        let span = seen.now.saturating_sub(self.last);
        self.last = seen.now;
        let Some(since) = self.since.filter(|_| !self.given) else {
            self.since = Some(seen.now);
            return;
        };
        self.queries += seen.answered.iter().map(|one| u64::from(one.queries)).sum::<u64>();
        self.device_s += seen.device.as_ref().map_or(0.0, |share| share * span.as_secs_f64());
        let took = seen.now - since;
        if took < self.window {
            return;
        }
        let seconds = took.as_secs_f64();
        let per_s = self.queries as f64 / seconds;
        if self.device_s / seconds > HIGH {
            // A moving mean over about five windows.
            let mean = self.mean_per_s.get_or_insert(per_s);
            *mean += (per_s - *mean) / 5.0;
        }
        (self.since, self.queries, self.device_s) = (Some(seen.now), 0, 0.0);
    }

    /// The pause after the next round, which is taken to go as the last did;
    /// the shortest while lambda is not known.
    pub(crate) fn pause(&self, round: Option<RoundObservation>) -> Nanos {
        let (Some(per_s), Some(round)) = (self.per_s(), round) else { return self.least };
        let wanted = Nanos::from_secs_f64(f64::from(round.queries) / per_s);
        wanted.saturating_sub(round.took).min(self.most).max(self.least)
    }

    /// Time from the start of a round of this many queries to the next.
    pub(crate) fn every(&self, queries: u32) -> Option<Nanos> {
        self.per_s().map(|per_s| Nanos::from_secs_f64(f64::from(queries) / per_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::admission::Answered;
    use proptest::prelude::*;

    const LEAST: Nanos = Nanos::from_millis(1);
    const MOST: Nanos = Nanos::from_millis(100);

    fn limit() -> LoadLimit {
        LoadLimit::new(1.05, (LEAST, MOST), Nanos::from_secs(1))
    }

    fn round(queries: u32, took_us: u64) -> Option<RoundObservation> {
        Some(RoundObservation { turns: queries, queries, took: Nanos::from_micros(took_us) })
    }

    fn see(limit: &mut LoadLimit, per_s: f64, device: f64, windows: u64) {
        let start = limit.last.0 / 100_000_000;
        for look in start + 1..=start + 10 * windows {
            let queries = (per_s / 10.0) as u32;
            let answers = Answered { connection: 0, latency: LEAST, queries };
            limit.note(&GateObservation {
                now: Nanos::from_millis(100 * look),
                answered: &[answers],
                waiting: &[],
                device: Ok(device),
                round: None,
                rested: Ok(0.0),
                connections: Err(lull_measure::Missing::because("no server")),
                under_way: Err(lull_measure::Missing::because("no server")),
                server: Err(lull_measure::Missing::because("no server")),
            });
        }
    }

    #[test]
    fn mean_lambda_is_that_of_a_busy_device() {
        let mut limit = limit();
        see(&mut limit, 5000.0, 0.90, 20);
        assert_eq!(limit.per_s(), None, "90 % is not busy");
        see(&mut limit, 10_000.0, 0.97, 20);
        assert!((limit.per_s().unwrap() / 10_500.0 - 1.0).abs() < 0.02);
        see(&mut limit, 8000.0, 0.97, 40);
        assert!((limit.per_s().unwrap() / 8400.0 - 1.0).abs() < 0.02, "it follows");
    }

    #[test]
    fn a_given_mean_is_kept() {
        let mut limit = limit().given(1000.0);
        see(&mut limit, 10_000.0, 1.0, 20);
        limit.follow(5000.0);
        assert_eq!(limit.per_s(), Some(1050.0));
    }

    #[test]
    fn the_pause_is_what_the_limit_leaves() {
        let limit = limit().given(10_000.0 / 1.05);
        // 40 queries at 10,000/s are 4 ms, of which the round took 1.5.
        assert_eq!(limit.pause(round(40, 1500)), Nanos::from_micros(2500));
        assert_eq!(limit.pause(round(40, 3900)), LEAST, "no less than the break-even");
        assert_eq!(limit.pause(round(40_000, 1500)), MOST);
        assert_eq!(limit.pause(None), LEAST);
        assert_eq!(limit.every(40).unwrap().0 / 1000, 4000);
    }

    proptest! {
        #[test]
        fn a_higher_limit_or_smaller_batches_never_lengthen_the_pause(
            per_s in 100.0f64..1e5,
            more in 1.0f64..3.0,
            queries in 1u32..500,
            fewer in 0u32..500,
            took_us in 0u64..50_000,
        ) {
            let (low, high) = (limit().given(per_s), limit().given(per_s * more));
            let many = round(queries, took_us);
            prop_assert!(high.pause(many) <= low.pause(many));
            let few = round(queries.saturating_sub(fewer), took_us);
            prop_assert!(low.pause(few) <= low.pause(many));
        }
    }
}
