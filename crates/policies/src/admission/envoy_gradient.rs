//! Envoy's gradient controller: compares latency with that of a few requests at a time.
//!
//! The adaptive concurrency filter of Envoy, by its documentation:
//!
//! ```text
//! every 60 s (+ jitter), and after 5 windows in a row at the lowest limit:
//!     limit = lowest until 50 answers have come; minRTT is their latency
//! every 100 ms otherwise:
//!     gradient = minRTT (1 + buffer) / sampleRTT, between .5 and 2
//!     limit    = gradient * limit + sqrt(gradient * limit)
//! ```
//!
//! Envoy's documentation warns of more rejected requests while minRTT is measured; here it costs
//! throughput, since this gate delays what Envoy rejects. Differences: the latencies are means
//! of the time in service (`windowed.rs`), where Envoy takes a percentile, by default the
//! median; a window has at least 11 answers; the limit is 256 at most. Envoy disregards requests
//! that it admitted before a measurement of minRTT. The agent does not see when a transaction was
//! admitted: it disregards whole windows until as many transactions have been answered as were in
//! service when the limit fell, and at least one window.
//!
//! Checked by its tests, and beside `auto` and the other limiters by
//! `lull lab run gate-limiters`.

use super::AdmissionKind;
use super::windowed::{LIMIT_MAX, Limiter, Range, Sample, Windowed};
use crate::config::{config, positive_time, read, text, within};
use crate::entry::{ConfigSchema, Entry};
use lull_control::{PolicyError, Rng};
use lull_measure::Nanos;
use rand::{RngExt, SeedableRng};

/// The registry's entry.
pub(crate) static ENTRY: Entry<AdmissionKind> = Entry {
    name: "envoy-gradient",
    paper: "Envoy, adaptive concurrency filter, gradient controller",
    summary: "Compares latency with that of a few transactions at a time, measured every minute.",
    kind: AdmissionKind { needs: "" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site, _| {
        let config: Config = read(table)?;
        let (least, window, look) = (config.least, config.window, config.look);
        let limiter = EnvoyGradient::new(config, site.seed);
        Ok(Box::new(Windowed::new(limiter, least, window, look)))
    },
};

config! {
    /// The range of the limit, and the windows in which the least latency is measured.
    struct Config checked by check {
        /// Lowest limit, and the limit while minRTT is measured (Envoy's default).
        least: u32 = 3,
        /// Highest limit (Envoy: 1000; a gate keeps 256).
        most: u32 = LIMIT_MAX,
        /// Time between two measurements of minRTT (Envoy's example).
        #[serde(serialize_with = "text")]
        interval: Nanos = Nanos::from_secs(60),
        /// How much later the next one begins at most, in percent of the interval (Envoy's
        /// default).
        jitter_percent: f64 = 15.0,
        /// Answers of a measurement of minRTT (Envoy's default).
        requests: u32 = 50,
        /// How much latency may vary, in percent of minRTT (Envoy's default).
        buffer_percent: f64 = 25.0,
        /// Length of a window (Envoy's example).
        #[serde(serialize_with = "text")]
        window: Nanos = Nanos::from_millis(100),
        /// Time between two observations of the answers (ours).
        #[serde(serialize_with = "text")]
        look: Nanos = Nanos::from_millis(50),
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    let Config { least, most, window, look, .. } = *config;
    Range { initial: least, least, most, window, look }.check()?;
    positive_time("interval", config.interval)?;
    within("jitter_percent", config.jitter_percent, 0.0..=100.0)?;
    within("buffer_percent", config.buffer_percent, 0.0..=1000.0)?;
    within("requests", f64::from(config.requests), 1.0..=1e6)
}

/// Windows in a row at the lowest limit after which minRTT is measured again.
const AT_LEAST_MAX: u32 = 5;
const GRADIENT: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// A measurement of minRTT: its answers, and the sum of their latencies.
#[derive(Debug, Clone, Copy)]
struct Measured {
    /// Transactions that were admitted before it and may not be answered yet. Windows up to the
    /// one that answers the last of them do not count.
    former: f64,
    answers: u64,
    sum_s: f64,
}

struct EnvoyGradient {
    config: Config,
    /// The limit outside of measurements of minRTT.
    limit: f64,
    min_rtt_s: f64,
    /// The measurement under way.
    measured: Option<Measured>,
    next: Nanos,
    /// Windows in a row at the lowest limit.
    at_least: u32,
    rng: Rng,
}

impl Measured {
    /// Begins a measurement while this many transactions are in service.
    fn begin(in_service: f64) -> Self {
        // At least one window is not counted.
        Self { former: in_service.max(1.0), answers: 0, sum_s: 0.0 }
    }
}

impl EnvoyGradient {
    fn new(config: Config, seed: u64) -> Self {
        Self {
            limit: f64::from(config.least),
            config,
            min_rtt_s: 0.0,
            measured: Some(Measured::begin(0.0)),
            next: Nanos::ZERO,
            at_least: 0,
            rng: Rng::seed_from_u64(seed),
        }
    }

    /// Adds to the measurement of minRTT. Returns the limit.
    fn measure(&mut self, sample: Sample, so_far: Measured) -> f64 {
        if so_far.former > 0.0 {
            let former = so_far.former - sample.answers as f64;
            self.measured = Some(Measured { former, ..so_far });
            return f64::from(self.config.least);
        }
        let answers = so_far.answers + sample.answers;
        let sum_s = so_far.sum_s + sample.answers as f64 * sample.service_s;
        if answers < u64::from(self.config.requests) {
            self.measured = Some(Measured { answers, sum_s, ..so_far });
            return f64::from(self.config.least);
        }
        self.min_rtt_s = sum_s / answers as f64;
        let late = self.rng.random_range(0.0..=1.0) * self.config.jitter_percent / 100.0;
        self.next = sample.now + self.config.interval.scale(1.0 + late);
        (self.measured, self.at_least) = (None, 0);
        self.limit
    }
}

impl Limiter for EnvoyGradient {
    fn update(&mut self, sample: Sample) -> f64 {
        if let Some(so_far) = self.measured {
            return self.measure(sample, so_far);
        }
        let least = f64::from(self.config.least);
        let allowed_s = self.min_rtt_s * (1.0 + self.config.buffer_percent / 100.0);
        let gradient = (allowed_s / sample.service_s).clamp(*GRADIENT.start(), *GRADIENT.end());
        let scaled = gradient * self.limit;
        self.limit = (scaled + scaled.sqrt()).clamp(least, f64::from(self.config.most));
        self.at_least = if self.limit <= least { self.at_least + 1 } else { 0 };
        if self.at_least >= AT_LEAST_MAX || sample.now >= self.next {
            self.measured = Some(Measured::begin(sample.in_service));
            return least;
        }
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, ClosedLoop, build};
    use super::*;

    fn gate(config: &str) -> ClosedLoop {
        let bench = Bench::best_effort(4);
        ClosedLoop::new(build("envoy-gradient", config, &bench), bench, 500)
    }

    #[test]
    fn it_measures_the_least_latency_at_three_at_a_time_and_then_grows() {
        let mut gate = gate("");
        let caps = gate.run(1, |_| 0.01);
        assert_eq!(caps.first(), Some(&3));
        gate.run(10, |_| 0.01);
        assert!(gate.cap() > 100, "nothing queues: {}", gate.cap());
    }

    #[test]
    fn it_settles_where_latency_is_the_least_with_buffer_and_headroom() {
        // Ten run at once. limit = 12.5 + sqrt(12.5) while latency is as low as at ten.
        let mut gate = gate("");
        gate.run(30, |running| 0.01 * (running / 10.0).max(1.0));
        assert!((14..=18).contains(&gate.cap()), "{}", gate.cap());
    }

    #[test]
    fn every_minute_it_goes_back_to_three_for_fifty_answers() {
        let mut gate = gate("");
        gate.run(30, |_| 0.01);
        let caps = gate.run(60, |_| 0.01);
        let measuring = caps.iter().filter(|cap| **cap == 3).count();
        // 300 transactions a second: the 256 of the former limit, a window, and fifty.
        assert!((1..=26).contains(&measuring), "{measuring} looks of 50 ms");
        assert_eq!(caps.iter().filter(|cap| **cap > 200).count() + measuring, caps.len());
    }

    /// A window that ended at `at_s`, with so many answers of this latency in seconds.
    fn sample(at_s: u64, answers: u64, service_s: f64) -> Sample {
        Sample {
            now: Nanos::from_secs(at_s),
            per_s: answers as f64 / 0.1,
            service_s,
            wait_s: 0.0,
            in_service: 200.0,
            is_full: true,
            answers,
        }
    }

    #[test]
    fn what_the_former_limit_admitted_is_not_measured_as_the_least_latency() {
        let mut limiter = EnvoyGradient::new(Config::default(), 1);
        let mut limit = |one| limiter.update(one);
        assert_eq!(limit(sample(0, 30, 0.001)), 3.0, "what was admitted before the first limit");
        assert_eq!(limit(sample(1, 30, 0.01)), 3.0);
        assert_eq!(limit(sample(1, 30, 0.01)), 3.0, "sixty answers: the limit that was before");
        let grown = limit(sample(2, 30, 0.01));
        assert!(grown > 3.0);
        assert_eq!(limit(sample(90, 30, 0.01)), 3.0, "200 are in service as the limit falls");
        // The first two windows answer those, in so short a time each that minRTT would halve.
        for (answers, service_s) in [(150, 0.001), (60, 0.001), (30, 0.01)] {
            assert_eq!(limit(sample(91, answers, service_s)), 3.0, "{answers}");
        }
        assert!(limit(sample(91, 30, 0.01)) > 3.0, "fifty answers of the lowest limit");
        let kept = limiter.min_rtt_s;
        assert!((kept - 0.01).abs() < 1e-9, "{kept}");
    }

    #[test]
    fn five_windows_at_the_lowest_limit_begin_a_measurement() {
        let mut gate = gate("interval = \"1h\"");
        gate.run(10, |_| 0.01);
        // Ten times slower: the limit falls to the lowest, and the new latency becomes minRTT.
        gate.run(20, |_| 0.1);
        assert!(gate.cap() > 20, "{}", gate.cap());
    }
}
