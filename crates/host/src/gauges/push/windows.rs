//! Latency windows of one app, merged into epochs.

use super::check_room;
use lull_control::LatencyObservation;
use lull_measure::push::LatencyWindow;
use lull_measure::{Buckets, Gauge, Latency, Missing, Nanos, RequestSample};
use std::collections::BTreeMap;

/// A window is overdue this many of its lengths after the last one ended.
const OVERDUE_LENGTHS: u64 = 2;
/// A window is overdue after this time in any case: one long window must not hide silence.
const OVERDUE_MAX: Nanos = Nanos::from_secs(120);
/// Most requests in the sample of one app and epoch: 16 a second and app at
/// epochs of a second keep a record below 2 MB an hour and app.
const SAMPLE_MAX: usize = 16;

/// The windows that were pushed for one app and not observed yet.
#[derive(Debug, Default)]
pub(super) struct Windows {
    /// Windows that ended in the current epoch or before.
    current: Batch,
    /// Windows that ended after it.
    next: Batch,
    /// The state of each client at its last window.
    pushers: BTreeMap<u64, Pusher>,
    heard: Option<Nanos>,
}

/// Windows of one epoch.
#[derive(Debug, Default)]
struct Batch {
    /// A histogram takes 200 kB: there is none before the first window, whose
    /// own becomes the sum.
    merged: Option<Latency>,
    buckets: Buckets,
    sample: RequestSample,
    sums: BTreeMap<u64, Sums>,
}

/// One client's windows of one epoch.
#[derive(Debug, Default)]
struct Sums {
    due: u64,
    completed: u64,
    errors: u64,
    covered: Nanos,
    end: Nanos,
    length: Nanos,
    outstanding: u64,
    oldest: Nanos,
}

#[derive(Debug)]
struct Pusher {
    offered_per_s: f64,
    completed_per_s: f64,
    errors_per_s: f64,
    outstanding: u64,
    oldest: Nanos,
    overdue: Nanos,
}

impl Windows {
    /// Files a window under the epoch that ends at `deadline`, or the next.
    ///
    /// # Errors
    /// If too many other clients push for the app.
    pub(super) fn add(
        &mut self,
        client: u64,
        window: LatencyWindow,
        deadline: Nanos,
    ) -> Result<(), String> {
        let end = end_of(&window);
        let batch = if end <= deadline { &mut self.current } else { &mut self.next };
        check_room(&batch.sums, client)?;
        batch.sums.entry(client).or_default().add(&window);
        if let Some(sample) = &window.sample {
            batch.sample.merge(sample);
            batch.sample.thin(SAMPLE_MAX);
        }
        batch.buckets.merge(&window.buckets);
        match &mut batch.merged {
            Some(merged) => merged.merge(&window.histogram),
            None => batch.merged = Some(window.histogram),
        }
        self.heard = self.heard.max(Some(end));
        Ok(())
    }

    /// Returns the latency observed in the epoch that ended at `deadline`.
    pub(super) fn harvest(&mut self, deadline: Nanos) -> Gauge<LatencyObservation> {
        self.pushers.retain(|_, pusher| deadline < pusher.overdue);
        let Batch { merged, buckets, sample, sums } =
            std::mem::replace(&mut self.current, std::mem::take(&mut self.next));
        self.pushers.extend(sums.into_iter().map(|(client, sums)| (client, sums.close())));
        if self.pushers.is_empty() {
            return Err(self.silence(deadline));
        }
        let sum = |rate: fn(&Pusher) -> f64| self.pushers.values().map(rate).sum();
        let oldest = self.pushers.values().map(|one| one.oldest).max();
        Ok(LatencyObservation {
            window: merged.unwrap_or_default(),
            buckets,
            offered_per_s: sum(|one| one.offered_per_s),
            completed_per_s: sum(|one| one.completed_per_s),
            errors_per_s: sum(|one| one.errors_per_s),
            outstanding: self.pushers.values().map(|one| one.outstanding).sum(),
            oldest: oldest.filter(|age| *age > Nanos::ZERO),
            sample,
            reported: None,
        })
    }

    fn silence(&self, deadline: Nanos) -> Missing {
        match self.heard {
            Some(heard) if heard > deadline => Missing::because(
                "nothing was pushed for this epoch, and something for the next one",
            ),
            Some(heard) => {
                let silent = (deadline - heard).as_secs_f64();
                Missing::because(format!("no push for {silent:.1} s: is the client still running?"))
            }
            None => Missing::because(
                "nothing was pushed yet: does a client push to the agent's socket?",
            ),
        }
    }
}

impl Sums {
    fn add(&mut self, window: &LatencyWindow) {
        self.due = self.due.saturating_add(window.due);
        self.completed = self.completed.saturating_add(window.completed);
        self.errors = self.errors.saturating_add(window.errors);
        self.covered = self.covered.saturating_add(window.length_ns);
        if end_of(window) >= self.end {
            (self.end, self.length) = (end_of(window), window.length_ns);
            (self.outstanding, self.oldest) = (window.outstanding, window.oldest_ns);
        }
    }

    /// Rates are over the time that the windows cover, not over the epoch:
    /// the number of windows that end in one epoch varies by one.
    fn close(self) -> Pusher {
        // The protocol refuses windows without length.
        let per_s = |count: u64| count as f64 / self.covered.as_secs_f64();
        let patience = Nanos(self.length.0.saturating_mul(OVERDUE_LENGTHS)).min(OVERDUE_MAX);
        Pusher {
            offered_per_s: per_s(self.due),
            completed_per_s: per_s(self.completed),
            errors_per_s: per_s(self.errors),
            outstanding: self.outstanding,
            oldest: self.oldest,
            overdue: self.end.saturating_add(patience),
        }
    }
}

fn end_of(window: &LatencyWindow) -> Nanos {
    window.start_ns.saturating_add(window.length_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::SampledRequest;
    use lull_measure::push::{COUNT_MAX, LENGTH_MAX, LENGTH_MIN, SPAN_MAX};
    use proptest::prelude::*;

    const LENGTH: Nanos = Nanos::from_millis(100);

    fn millis(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    fn window(end: Nanos, latencies: &[u64]) -> LatencyWindow {
        let count = latencies.len() as u64;
        LatencyWindow {
            app: "a".to_owned(),
            start_ns: end - LENGTH,
            length_ns: LENGTH,
            due: count + 1,
            completed: count,
            outstanding: 1,
            oldest_ns: millis(3),
            histogram: latencies.iter().copied().map(millis).collect(),
            ..LatencyWindow::default()
        }
    }

    #[test]
    fn windows_of_several_clients_are_merged() {
        let mut windows = Windows::default();
        for end in [600, 700, 800, 900, 1000] {
            windows.add(1, window(millis(end), &[1, 2]), millis(1000)).unwrap();
        }
        windows.add(2, window(millis(950), &[9]), millis(1000)).unwrap();
        let seen = windows.harvest(millis(1000)).unwrap();
        assert_eq!(seen.window.count(), 11);
        assert_eq!(seen.completed_per_s, 20.0 + 10.0);
        assert_eq!(seen.offered_per_s, 30.0 + 20.0);
        assert_eq!((seen.outstanding, seen.oldest), (2, Some(millis(3))));
    }

    #[test]
    fn samples_of_an_epoch_are_merged_and_bounded() {
        let mut windows = Windows::default();
        let request = SampledRequest { due_ns: millis(1), ..SampledRequest::default() };
        let sample = RequestSample { one_in: 4, requests: vec![request; 10] };
        for end in [800, 900, 1000] {
            let window =
                LatencyWindow { sample: Some(sample.clone()), ..window(millis(end), &[1]) };
            windows.add(1, window, millis(1000)).unwrap();
        }
        let seen = windows.harvest(millis(1000)).unwrap().sample;
        assert_eq!((seen.one_in, seen.requests.len()), (8, 15));
        assert!(windows.harvest(millis(1050)).unwrap().sample.is_empty(), "counted twice");
    }

    #[test]
    fn a_window_belongs_to_the_epoch_in_which_it_ended() {
        let mut windows = Windows::default();
        windows.add(1, window(millis(1000), &[1]), millis(1000)).unwrap();
        windows.add(1, window(millis(1001), &[2, 2]), millis(1000)).unwrap();
        assert_eq!(windows.harvest(millis(1000)).unwrap().window.count(), 1);
        assert_eq!(windows.harvest(millis(1100)).unwrap().window.count(), 2);
    }

    #[test]
    fn a_window_without_requests_is_not_silence() {
        let mut windows = Windows::default();
        let idle = LatencyWindow {
            due: 0,
            outstanding: 0,
            oldest_ns: Nanos::ZERO,
            ..window(millis(100), &[])
        };
        windows.add(1, idle, millis(1000)).unwrap();
        let seen = windows.harvest(millis(1000)).unwrap();
        assert_eq!((seen.window.count(), seen.offered_per_s, seen.oldest), (0, 0.0, None));
    }

    #[test]
    fn silence_is_missing_once_a_window_is_overdue() {
        let mut windows = Windows::default();
        let never = windows.harvest(millis(500)).unwrap_err();
        assert!(never.reason.contains("nothing was pushed yet"));
        windows.add(1, window(millis(1000), &[1]), millis(1000)).unwrap();
        windows.harvest(millis(1000)).unwrap();
        // Epochs of 50 ms: every other one sees no window end.
        let between = windows.harvest(millis(1050)).unwrap();
        assert_eq!((between.window.count(), between.completed_per_s), (0, 10.0));
        assert_eq!(between.outstanding, 1);
        assert!(windows.harvest(millis(1150)).is_ok());
        let silent = windows.harvest(millis(2200)).unwrap_err();
        assert!(silent.reason.contains("no push for 1.2 s"), "{silent}");
        windows.add(1, window(millis(2300), &[1]), millis(2250)).unwrap();
        let next = windows.harvest(millis(2250)).unwrap_err();
        assert!(next.reason.contains("something for the next one"), "{next}");
    }

    #[test]
    fn one_silent_client_of_two_is_left_out_of_the_rates() {
        let mut windows = Windows::default();
        for client in [1, 2] {
            windows.add(client, window(millis(1000), &[1]), millis(1000)).unwrap();
        }
        assert_eq!(windows.harvest(millis(1000)).unwrap().completed_per_s, 20.0);
        windows.add(1, window(millis(1950), &[1]), millis(2000)).unwrap();
        let seen = windows.harvest(millis(2000)).unwrap();
        assert_eq!((seen.completed_per_s, seen.outstanding), (10.0, 1));
    }

    #[test]
    fn a_long_window_does_not_hide_silence() {
        let mut windows = Windows::default();
        let long =
            LatencyWindow { length_ns: Nanos::from_secs(3_600), ..window(millis(1000), &[1]) };
        windows.add(1, long, Nanos::from_secs(3_601)).unwrap();
        assert!(windows.harvest(Nanos::from_secs(3_602)).is_ok());
        assert!(windows.harvest(Nanos::from_secs(3_800)).is_err());
    }

    proptest! {
        // A histogram is 200 kB, so a case takes a while.
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Any values that the protocol allows, and samples that it does not.
        #[test]
        fn extreme_values_keep_rates_finite_and_samples_bounded(
            counts in prop::collection::vec((0..=COUNT_MAX, any::<u64>(), 0usize..64), 1..12),
            length in prop::sample::select(vec![LENGTH_MIN, LENGTH, LENGTH_MAX]),
        ) {
            let mut windows = Windows::default();
            let end = LENGTH_MAX + Nanos::from_secs(1);
            for (client, (count, one_in, requests)) in counts.iter().enumerate() {
                let request =
                    SampledRequest { due_ns: end, wait_ns: SPAN_MAX, latency_ns: SPAN_MAX };
                let sample = RequestSample { one_in: *one_in, requests: vec![request; *requests] };
                let extreme = LatencyWindow {
                    start_ns: end - length,
                    length_ns: length,
                    due: *count,
                    completed: *count,
                    errors: *count,
                    outstanding: *count,
                    oldest_ns: SPAN_MAX,
                    sample: Some(sample),
                    ..window(end, &[1])
                };
                windows.add(client as u64 % 3, extreme, end).unwrap();
            }
            let seen = windows.harvest(end).unwrap();
            let rates = [seen.offered_per_s, seen.completed_per_s, seen.errors_per_s];
            prop_assert!(rates.iter().all(|rate| rate.is_finite()), "{rates:?}");
            prop_assert!(seen.sample.requests.len() <= SAMPLE_MAX);
        }

        #[test]
        fn every_request_is_seen_once_whatever_the_epochs(
            ends_ms in prop::collection::vec(0u64..3000, 0..40),
            epoch_ms in 20u64..700,
        ) {
            let mut windows = Windows::default();
            let mut unsent: Vec<_> = ends_ms.clone();
            let mut seen = 0;
            let mut deadline = epoch_ms;
            while deadline < 4000 {
                // Up to 300 ms early or late, as clocks and scheduling have it.
                let due = unsent.extract_if(.., |end| *end < deadline + 300);
                for end in due.collect::<Vec<_>>() {
                    let (end_at, now) = (millis(1000 + end), millis(1000 + deadline));
                    windows.add(end % 3, window(end_at, &[5]), now).unwrap();
                }
                let now = windows.harvest(millis(1000 + deadline));
                seen += now.map_or(0, |now| now.window.count());
                deadline += epoch_ms;
            }
            prop_assert_eq!(seen, ends_ms.len() as u64);
        }
    }
}
