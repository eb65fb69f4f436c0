//! Gradient2: lowers the limit while latency is above its long-term average.
//!
//! Netflix's concurrency-limits library, `Gradient2Limit`, by its documentation:
//!
//! ```text
//! once a window   gradient = max(.5, min(1, long / short))     short: this window's mean latency
//!                 new      = limit * gradient + queue          long: average of 600 windows
//!                 limit    = limit * (1 - smoothing) + new * smoothing
//! no change       while less than half of the limit is used
//! long *= .9      while it is more than twice the short one
//! ```
//!
//! Where latency grows slowly the average follows it, so that the limit grows under a mild
//! overload. Differences: this gate delays what the library rejects; latency is the mean time
//! in service (`windowed.rs`), and the limit is 256 at most.
//!
//! Checked by its tests, and beside `auto` and the other limiters by
//! `lull lab run gate-limiters`.

use super::AdmissionKind;
use super::windowed::{Limiter, Range, Sample, Windowed};
use crate::config::{config, fraction, read, text, within};
use crate::entry::{ConfigSchema, Entry};
use lull_control::PolicyError;
use lull_measure::Nanos;

/// The registry's entry.
pub(crate) static ENTRY: Entry<AdmissionKind> = Entry {
    name: "gradient2",
    paper: "Netflix concurrency-limits, Gradient2Limit",
    summary: "Lowers the limit while latency is above its long-term average.",
    kind: AdmissionKind { needs: "" },
    config: ConfigSchema::new::<Config>(),
    make: |table, _, _| {
        let config: Config = read(table)?;
        let (initial, window, look) = (config.initial, config.window, config.look);
        let limiter = Gradient2 { limit: f64::from(initial), long: LongAverage::default(), config };
        Ok(Box::new(Windowed::new(limiter, initial, window, look)))
    },
};

config! {
    /// The range of the limit, and how fast it moves.
    struct Config checked by check {
        /// First limit (the library's default).
        initial: u32 = 20,
        /// Lowest limit (the library's default).
        least: u32 = 20,
        /// Highest limit (the library's default).
        most: u32 = 200,
        /// Growth of the limit in a window without queueing, before it is smoothed (the library's
        /// default).
        queue: f64 = 4.0,
        /// Weight of the new limit (the library's default).
        smoothing: f64 = 0.2,
        /// Windows of the long-term average (the library's default).
        long_windows: u32 = 600,
        /// Length of a window (`WindowedLimit`'s default).
        #[serde(serialize_with = "text")]
        window: Nanos = Nanos::from_secs(1),
        /// Time between two observations of the answers (ours).
        #[serde(serialize_with = "text")]
        look: Nanos = Nanos::from_millis(100),
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    let Config { initial, least, most, window, look, .. } = *config;
    Range { initial, least, most, window, look }.check()?;
    within("queue", config.queue, 0.0..=100.0)?;
    within("long_windows", f64::from(config.long_windows), 1.0..=1e6)?;
    fraction("smoothing", config.smoothing)
}

/// Windows whose plain mean begins the average.
const WARM_UP: u32 = 10;
/// Least gradient: one window at most halves the limit.
const GRADIENT_MIN: f64 = 0.5;
/// The long-term latency falls by this factor a window while it is this many times the short one.
const FALLS: f64 = 0.9;
const FAR_ABOVE: f64 = 2.0;

/// An exponential average that begins as a mean.
#[derive(Debug, Default)]
struct LongAverage {
    count: u32,
    value: f64,
}

impl LongAverage {
    fn add(&mut self, sample: f64, windows: u32) -> f64 {
        let weight = if self.count < WARM_UP {
            self.count += 1;
            1.0 / f64::from(self.count)
        } else {
            2.0 / (f64::from(windows) + 1.0)
        };
        self.value += weight * (sample - self.value);
        self.value
    }
}

struct Gradient2 {
    config: Config,
    limit: f64,
    long: LongAverage,
}

impl Limiter for Gradient2 {
    fn update(&mut self, sample: Sample) -> f64 {
        let Config { least, most, queue, smoothing, long_windows, .. } = self.config;
        let short_s = sample.service_s;
        let long_s = self.long.add(short_s, long_windows);
        if long_s / short_s > FAR_ABOVE {
            self.long.value *= FALLS;
        }
        if sample.in_service < self.limit / 2.0 {
            return self.limit;
        }
        let gradient = (long_s / short_s).clamp(GRADIENT_MIN, 1.0);
        let wanted = self.limit * gradient + queue;
        let smoothed = self.limit * (1.0 - smoothing) + wanted * smoothing;
        self.limit = smoothed.clamp(f64::from(least), f64::from(most));
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, ClosedLoop, build, refused};

    fn gate(config: &str) -> ClosedLoop {
        let bench = Bench::best_effort(4);
        ClosedLoop::new(build("gradient2", config, &bench), bench, 200)
    }

    #[test]
    fn the_limit_grows_by_a_fifth_of_the_queue_while_latency_is_constant() {
        let mut gate = gate("");
        gate.run(11, |_| 0.01);
        // Ten windows of 4 * .2.
        assert!((27..=28).contains(&gate.cap()), "{}", gate.cap());
    }

    #[test]
    fn a_window_of_twice_the_latency_takes_a_tenth_and_one_of_twenty_times_no_more() {
        for factor in [2.0, 20.0] {
            let mut gate = gate("queue = 0.0\nleast = 1\ninitial = 100");
            gate.run(12, |_| 0.01);
            gate.run(2, |_| factor * 0.01);
            assert!((89..=92).contains(&gate.cap()), "{}", gate.cap());
        }
    }

    #[test]
    fn a_server_that_does_not_use_half_of_the_limit_does_not_raise_it() {
        let bench = Bench::best_effort(4);
        let mut gate = ClosedLoop::new(build("gradient2", "", &bench), bench, 9);
        gate.run(60, |_| 0.01);
        assert_eq!(gate.cap(), 20);
    }

    #[test]
    fn under_a_mild_overload_the_average_follows_and_the_limit_grows() {
        // Latency in proportion to the limit: what is above 20 is only queueing.
        let mut gate = gate("long_windows = 60");
        gate.run(600, |running| 0.01 * running / 20.0);
        assert!(gate.cap() > 60, "{}", gate.cap());
    }

    #[test]
    fn a_range_that_is_none_is_refused() {
        let bench = Bench::best_effort(1);
        for (config, key) in
            [("least = 30", "initial"), ("most = 500", "most"), ("smoothing = 2.0", "smoothing")]
        {
            let text = refused("gradient2", config, &bench).to_string();
            assert!(text.contains(&format!("`{key}` is ")), "{text}");
        }
    }
}
