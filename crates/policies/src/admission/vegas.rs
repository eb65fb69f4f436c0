//! Vegas: keeps a few transactions queued in the server, by its least latency.
//!
//! Netflix's concurrency-limits library, `VegasLimit`, after TCP Vegas, by its documentation:
//!
//! ```text
//! queue = limit * (1 - least / latency)           least: the lowest latency of any window
//! queue <= log10(limit)       limit += 6 log10(limit)
//! queue <  3 log10(limit)     limit += log10(limit)
//! queue >  6 log10(limit)     limit -= log10(limit)
//! no change                   while less than half of the limit is used
//! ```
//!
//! All logarithms are whole and at least 1. Every 15 to 30 times the limit windows the least
//! latency is taken from the present window, since it may have risen; where queueing is in
//! that window, it counts as none from then on. Differences: this gate delays what the library
//! rejects, and no transaction times out; latency is the mean time in service (`windowed.rs`),
//! and the limit is 256 at most. The limit is updated once a window, as behind the library's
//! `WindowedLimit`; `VegasLimit` alone is updated at every answer, so that it renews the least
//! latency after hundreds of answers and not after minutes.
//!
//! Checked by its tests, and beside `auto` and the other limiters by
//! `lull lab run gate-limiters`.

use super::AdmissionKind;
use super::windowed::{LIMIT_MAX, Limiter, Range, Sample, Windowed};
use crate::config::{config, read, text, within};
use crate::entry::{ConfigSchema, Entry};
use lull_control::{PolicyError, Rng};
use lull_measure::Nanos;
use rand::{RngExt, SeedableRng};

/// The registry's entry.
pub(crate) static ENTRY: Entry<AdmissionKind> = Entry {
    name: "vegas",
    paper: "Netflix concurrency-limits, VegasLimit, after TCP Vegas",
    summary: "Keeps a few transactions queued in the server, by its least latency.",
    kind: AdmissionKind { needs: "" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site, _| {
        let config: Config = read(table)?;
        let (initial, window, look) = (config.initial, config.window, config.look);
        let limiter = Vegas::new(config, site.seed);
        Ok(Box::new(Windowed::new(limiter, initial, window, look)))
    },
};

config! {
    /// The range of the limit, and how often the least latency is renewed.
    struct Config checked by check {
        /// First limit (the library's default).
        initial: u32 = 20,
        /// Lowest limit (the library's default).
        least: u32 = 1,
        /// Highest limit (the library: 1000; a gate keeps 256).
        most: u32 = LIMIT_MAX,
        /// The least latency is renewed after this many windows times the limit, or after half
        /// of that (the library's default).
        probe: f64 = 30.0,
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
    within("probe", config.probe, 0.01..=1e6)
}

/// Queues below which the limit grows fast and slowly, and above which it falls, in logarithms
/// of the limit.
const NONE: f64 = 1.0;
const SMALL: f64 = 3.0;
const LARGE: f64 = 6.0;

struct Vegas {
    config: Config,
    limit: f64,
    least_s: Option<f64>,
    /// Windows since the least latency was renewed.
    windows: u32,
    /// The share of `probe` after which it is renewed next.
    jitter: f64,
    rng: Rng,
}

impl Vegas {
    fn new(config: Config, seed: u64) -> Self {
        let mut rng = Rng::seed_from_u64(seed);
        let (limit, jitter) = (f64::from(config.initial), rng.random_range(0.5..1.0));
        Self { config, limit, least_s: None, windows: 0, jitter, rng }
    }
}

impl Limiter for Vegas {
    fn update(&mut self, sample: Sample) -> f64 {
        let latency_s = sample.service_s;
        self.windows += 1;
        if f64::from(self.windows) >= self.jitter * self.config.probe * self.limit {
            self.jitter = self.rng.random_range(0.5..1.0);
            (self.windows, self.least_s) = (0, Some(latency_s));
            return self.limit;
        }
        let Some(least_s) = self.least_s.filter(|least_s| latency_s >= *least_s) else {
            self.least_s = Some(latency_s);
            return self.limit;
        };
        if sample.in_service * 2.0 < self.limit {
            return self.limit;
        }
        let queue = (self.limit * (1.0 - least_s / latency_s)).ceil();
        let step = self.limit.log10().floor().max(1.0);
        let change = match queue {
            queue if queue <= NONE * step => LARGE * step,
            queue if queue < SMALL * step => step,
            queue if queue > LARGE * step => -step,
            _ => 0.0,
        };
        let (least, most) = (f64::from(self.config.least), f64::from(self.config.most));
        self.limit = (self.limit + change).clamp(least, most);
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, ClosedLoop, build};

    fn gate(config: &str, clients: u32) -> ClosedLoop {
        let bench = Bench::best_effort(4);
        ClosedLoop::new(build("vegas", config, &bench), bench, clients)
    }

    #[test]
    fn without_queueing_the_limit_grows_by_six_a_window() {
        let mut gate = gate("", 500);
        // The first sample is the least latency.
        gate.run(2, |_| 0.01);
        assert_eq!(gate.cap(), 20);
        gate.run(3, |_| 0.01);
        assert_eq!(gate.cap(), 38);
    }

    #[test]
    fn it_settles_where_three_to_six_are_queued() {
        // Ten run at once; each further one waits in the server.
        let mut gate = gate("initial = 8", 500);
        gate.run(120, |running| 0.01 * (running / 10.0).max(1.0));
        assert!((12..=17).contains(&gate.cap()), "{}", gate.cap());
    }

    #[test]
    fn a_server_that_does_not_use_half_of_the_limit_does_not_raise_it() {
        let mut gate = gate("", 9);
        gate.run(60, |_| 0.01);
        assert_eq!(gate.cap(), 20);
    }

    #[test]
    fn a_renewed_least_latency_counts_the_queue_of_that_time_as_none() {
        // Uber saw this drift under overload ("Cinnamon Auto-Tuner", 2023, figure 6).
        let mut renewed = gate("initial = 8\nprobe = 1.0", 500);
        renewed.run(400, |running| 0.01 * (running / 10.0).max(1.0));
        assert!(renewed.cap() > 30, "{}", renewed.cap());
    }
}
