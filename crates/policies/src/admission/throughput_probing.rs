//! MongoDB's throughput probing: tries one step more or less and keeps the limit with more
//! throughput.
//!
//! MongoDB's execution control, by its architecture guide:
//!
//! ```text
//! stable   note the throughput; with all tickets taken, try (1 + step) times the stable limit,
//!          else (1 - step) times
//! up/down  more throughput than in the stable window: the stable limit moves towards the tried
//!          one, by its weight in a moving average; in any case go back to the stable limit
//! ```
//!
//! One window decides, so that noise is as likely to move the limit as the server is.
//! Differences: MongoDB has one pool of tickets for reads and one for writes, which share the
//! limit; this gate has one for both, so that the range is that of both together. Tickets count
//! as taken by the mean of a window, where MongoDB takes its peak. The first limit is the number
//! of cores. A step is one transaction at least.
//!
//! Checked by its tests, and beside `auto` and the other limiters by
//! `lull lab run gate-limiters`.

use super::AdmissionKind;
use super::windowed::{LIMIT_MAX, Limiter, Range, Sample, Windowed};
use crate::config::{config, fraction, read, text, within};
use crate::entry::{ConfigSchema, Entry};
use lull_control::PolicyError;
use lull_measure::Nanos;

/// The registry's entry.
pub(crate) static ENTRY: Entry<AdmissionKind> = Entry {
    name: "throughput-probing",
    paper: "MongoDB, execution control, throughput probing",
    summary: "Tries a step more or less, and keeps what has more throughput in one window.",
    kind: AdmissionKind { needs: "" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site, _| {
        let config: Config = read(table)?;
        let initial = site.cores.clamp(config.least, config.most);
        let (window, look) = (config.window, config.look);
        let limiter =
            Probing { stable: f64::from(initial), stable_per_s: 0.0, tried: None, config };
        Ok(Box::new(Windowed::new(limiter, initial, window, look)))
    },
};

config! {
    /// The range of the limit, and how it is probed.
    struct Config checked by check {
        /// Lowest limit (MongoDB: 4 for reads and 4 for writes).
        least: u32 = 8,
        /// Highest limit (MongoDB: 128 for reads and 128 for writes).
        most: u32 = LIMIT_MAX,
        /// Size of a step, as a share of the limit (MongoDB's default).
        step: f64 = 0.1,
        /// Weight of a tried limit in the moving average of limits (MongoDB's default).
        weight: f64 = 0.2,
        /// Length of a window (MongoDB's default).
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
    within("step", config.step, 0.01..=1.0)?;
    fraction("weight", config.weight)
}

struct Probing {
    config: Config,
    stable: f64,
    stable_per_s: f64,
    /// The limit that is tried; `None` in a stable window.
    tried: Option<f64>,
}

impl Probing {
    fn clamp(&self, limit: f64) -> f64 {
        limit.clamp(f64::from(self.config.least), f64::from(self.config.most))
    }
}

impl Limiter for Probing {
    fn update(&mut self, sample: Sample) -> f64 {
        if let Some(tried) = self.tried.take() {
            if sample.per_s > self.stable_per_s {
                let weight = self.config.weight;
                self.stable = tried * weight + self.stable * (1.0 - weight);
                self.stable_per_s = sample.per_s;
            }
            return self.stable;
        }
        self.stable_per_s = sample.per_s;
        let step = (self.config.step * self.stable).max(1.0);
        let is_at_most = self.stable >= f64::from(self.config.most);
        let wanted = if sample.is_full && !is_at_most { step } else { -step };
        let tried = self.clamp(self.stable + wanted);
        self.tried = ((tried - self.stable).abs() > 0.0).then_some(tried);
        tried
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, ClosedLoop, build};

    fn gate(clients: u32, config: &str) -> ClosedLoop {
        let bench = Bench::best_effort(4);
        ClosedLoop::new(build("throughput-probing", config, &bench), bench, clients)
    }

    #[test]
    fn it_starts_with_the_cores_and_tries_a_tenth_more_while_tickets_are_taken() {
        let mut gate = gate(500, "");
        let caps = gate.run(1, |_| 0.01);
        assert_eq!((caps[0], caps[3]), (23, 25));
    }

    #[test]
    fn it_climbs_while_that_gains_and_stays_where_it_does_not() {
        let mut gate = gate(500, "");
        // Forty run at once; more gain nothing.
        gate.run(120, |running| 0.01 * (running / 40.0).max(1.0));
        assert!((36..=48).contains(&gate.cap()), "{}", gate.cap());
    }

    #[test]
    fn with_free_tickets_it_probes_downwards_and_keeps_only_a_gain() {
        let mut gate = gate(20, "");
        let caps = gate.run(60, |_| 0.01);
        assert!(caps.contains(&20), "a tenth less than 23");
        assert!([20, 23].contains(&gate.cap()), "nothing was gained: {}", gate.cap());
    }

    #[test]
    fn where_fewer_are_faster_it_needs_free_tickets_to_find_out() {
        // Contention: throughput falls beyond 16. All tickets are taken, so it only probes up.
        let mut gate = gate(500, "");
        gate.run(120, |running| 0.001 * (1.0 + (running / 16.0).powi(2)));
        assert!(gate.cap() >= 23, "{}", gate.cap());
    }
}
