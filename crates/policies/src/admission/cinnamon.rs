//! A PID controller on queueing time, after Uber's Cinnamon.
//!
//! Cinnamon sheds load with a PID controller whose gains need no tuning by service, because the
//! quantity that it controls has no unit (Uber Engineering, "PID Controller for Cinnamon",
//! 2023). Here the controlled quantity is the time that transactions wait at the gate over the
//! time that they are in service, and the limit is what moves:
//!
//! ```text
//! error      = (wait - target * service) / (wait + target * service), between -1 and 1
//! ln limit  += kp (e - e1) + ki e + kd (e - 2 e1 + e2)
//! no change    while less than half of the limit is used
//! ```
//!
//! Differences: Cinnamon rejects by priority and adjusts the share that it rejects; this gate
//! rejects nothing, so that with clients in a closed loop a limit of `clients / (1 + target)`
//! follows, whatever the server does with it. Cinnamon also has a limit of requests in flight:
//! a form of TCP Vegas with a test of the covariance of requests in flight and throughput
//! ("Cinnamon Auto-Tuner", 2023), which is not here. Gains are ours, and the limit never falls
//! below the number of cores.
//!
//! Checked by its tests, and beside `auto` and the other limiters by
//! `lull lab run gate-limiters`.

use super::AdmissionKind;
use super::windowed::{LIMIT_MAX, Limiter, Range, Sample, Windowed};
use crate::config::{config, read, text, within};
use crate::entry::{ConfigSchema, Entry};
use lull_control::PolicyError;
use lull_measure::Nanos;

/// The registry's entry.
pub(crate) static ENTRY: Entry<AdmissionKind> = Entry {
    name: "cinnamon",
    paper: "ours, after Uber's Cinnamon (PID Controller for Cinnamon, 2023)",
    summary: "Holds the wait at the gate at a multiple of the time in service, with a PID loop.",
    kind: AdmissionKind { needs: "" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site, _| {
        let config: Config = read(table)?;
        let least = site.cores.clamp(1, config.most);
        let initial = config.initial.max(least);
        let (window, look) = (config.window, config.look);
        let limiter = Cinnamon { limit: f64::from(initial), least, errors: [0.0; 2], config };
        Ok(Box::new(Windowed::new(limiter, initial, window, look)))
    },
};

config! {
    /// The target, the gains and the range of the limit.
    struct Config checked by check {
        /// First limit (ours), at least the number of cores.
        initial: u32 = 20,
        /// Highest limit (ours: as many as a gate keeps).
        most: u32 = LIMIT_MAX,
        /// Wait at the gate over the time in service (ours).
        target: f64 = 1.0,
        /// Proportional gain (ours).
        kp: f64 = 0.2,
        /// Integral gain (ours).
        ki: f64 = 0.05,
        /// Derivative gain (ours).
        kd: f64 = 0.0,
        /// Length of a window (ours).
        #[serde(serialize_with = "text")]
        window: Nanos = Nanos::from_millis(500),
        /// Time between two observations of the answers (ours).
        #[serde(serialize_with = "text")]
        look: Nanos = Nanos::from_millis(100),
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    let Config { initial, most, window, look, .. } = *config;
    Range { initial, least: 1, most, window, look }.check()?;
    within("target", config.target, 0.01..=100.0)?;
    within("kp", config.kp, 0.0..=10.0)?;
    within("ki", config.ki, 0.0..=10.0)?;
    within("kd", config.kd, 0.0..=10.0)
}

struct Cinnamon {
    config: Config,
    limit: f64,
    least: u32,
    /// The last two errors, the latest first.
    errors: [f64; 2],
}

impl Limiter for Cinnamon {
    fn update(&mut self, sample: Sample) -> f64 {
        if sample.in_service * 2.0 < self.limit {
            return self.limit;
        }
        let Config { most, target, kp, ki, kd, .. } = self.config;
        let wanted_s = target * sample.service_s;
        let error = (sample.wait_s - wanted_s) / (sample.wait_s + wanted_s);
        let [last, before] = self.errors;
        let change = kp * (error - last) + ki * error + kd * (error - 2.0 * last + before);
        self.errors = [error, last];
        // The limit itself is the integral, so that its range ends the wind-up.
        let limit = self.limit * change.exp();
        self.limit = limit.clamp(f64::from(self.least), f64::from(most));
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, ClosedLoop, build};

    fn gate(clients: u32, config: &str) -> ClosedLoop {
        let bench = Bench::best_effort(4);
        ClosedLoop::new(build("cinnamon", config, &bench), bench, clients)
    }

    #[test]
    fn transactions_wait_as_long_as_they_are_served() {
        for (target, cap) in [(1.0, 100), (3.0, 50)] {
            let mut gate = gate(200, &format!("target = {target:.1}"));
            gate.run(300, |running| 0.01 * (running / 40.0).max(1.0));
            assert!(gate.cap().abs_diff(cap) <= 3, "{target}: {}", gate.cap());
        }
    }

    #[test]
    fn the_limit_stays_at_the_cores_at_least_and_returns_at_once_from_either_end() {
        let mut gate = gate(46, "");
        gate.run(300, |_| 0.01);
        assert!((22..=24).contains(&gate.cap()), "{}", gate.cap());
        let mut crowded = self::gate(5_000, "");
        crowded.run(300, |_| 0.01);
        assert_eq!(crowded.cap(), 256);
        crowded.clients = 200;
        crowded.run(30, |_| 0.01);
        assert!(crowded.cap() < 130, "no wind-up: {}", crowded.cap());
    }

    #[test]
    fn a_server_that_does_not_use_half_of_the_limit_does_not_move_it() {
        let mut gate = gate(9, "initial = 40");
        gate.run(60, |_| 0.01);
        assert_eq!(gate.cap(), 40);
    }
}
