//! Adaptive DVFS: step DVFS whose period follows the bursts.
//!
//! Wang et al., TRIOS'13, section 5.2, equations 1 and 2: a second
//! controller above `step-dvfs`. It takes each change from the lowest to the
//! highest P-state for a confirmed burst, predicts the next interval between
//! bursts as the mean of the last k, and sets the adjustment period to the
//! tenth part of it, within 50 and 500 ms. As climbing takes two periods, a
//! burst cycle is then five times as long as the climb ("always", the paper
//! says; not where a bound holds).
//!
//! [`lull_control::Rhythm`] has the two equations, with what the paper leaves
//! open. What is counted is exact: an arrival at the highest state counts if
//! the lowest was visited since the last arrival, intermediate states or not.
//!
//! Everything below the period is `step-dvfs`; its two readings of "down" and
//! "windows" apply. In a prototype the adaptive controller left 5 to 20 % of
//! the throughput loss with scaled windows, 2 to 36 % with fixed ones; the
//! abstract says 25 % or less. Scaled windows are therefore the default here;
//! they need epochs of 5 ms.
//!
//! Checked against: equations 1 and 2 (in `lull_control`); the fall of the
//! error at the worst burst cycle on a fluid model here, and table by table on
//! the simulator by `lull lab`.

use super::step_dvfs::{self, Down, Start, Stepper, Windows};
use crate::config::{config, read, text, wrong};
use crate::entry::{ConfigSchema, Entry, Family, LatencyDetail, NaturalEpoch, PolicyKind};
use crate::toolkit::domains::{Choice, Governor, Load, PerDomain, Table};
use lull_control::{Capability, PolicyError, Rhythm, RhythmRule};
use lull_measure::Nanos;

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "adaptive-dvfs",
    paper: "Wang et al., TRIOS'13, section 5.2, equations 1 and 2",
    summary: "Step DVFS whose adjustment period is a tenth of the burst interval it sees.",
    kind: PolicyKind {
        needs: &[Capability::Frequency, Capability::Utilisation],
        latency: LatencyDetail::EveryRequest,
        epoch: NaturalEpoch::Key("window"),
        ..PolicyKind::new(Family::Frequency)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, _| {
        let config: Config = read(table)?;
        Ok(Box::new(PerDomain::new(machine, || Adaptive::new(&config))))
    },
};

config! {
    /// Section 5.2's numbers above table 1's.
    struct Config checked by check {
        /// Burst intervals that are averaged, k (the paper is silent; it hardly matters).
        intervals: u32 = 5,
        /// Adjustment periods in a burst interval, n (section 5.2: 10).
        per_burst: f64 = 10.0,
        /// Shortest adjustment period, T_lb (section 5.2: 50 ms).
        #[serde(serialize_with = "text")]
        shortest: Nanos = Nanos::from_millis(50),
        /// Longest adjustment period, T_ub (section 5.2: 500 ms).
        #[serde(serialize_with = "text")]
        longest: Nanos = Nanos::from_millis(500),
        /// How the period is reached: `fixed` or `scaled` windows; see step-dvfs.
        windows: Windows = Windows::Scaled,
        /// Sampling window TW with fixed windows (table 1: 50 ms).
        #[serde(serialize_with = "text")]
        window: Nanos = Nanos::from_millis(50),
        /// Windows in a row for a step up, T_u, with scaled windows (table 1: 10).
        up_windows: u32 = 10,
        /// Windows in a row for a step down, T_d (table 1: 1).
        down_windows: u32 = 1,
        /// Reference utilisation u_ref (table 1: 0.8).
        reference: f64 = 0.8,
        /// How far above the reference counts as busy, TH_up (table 1: 0).
        above: f64 = 0.0,
        /// How far below the reference counts as idle, TH_down (table 1: 0.15).
        below: f64 = 0.15,
        /// How it goes down: `one-step` (equation 4) or straight to the `lowest` (section 3.1).
        down: Down = Down::OneStep,
        /// How many P-states are used, evenly spread over the machine's (appendix B: 3).
        states: u32 = 3,
        /// Where it starts: `lowest` or `highest` (the paper is silent).
        start: Start = Start::Lowest,
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    config.rhythm().check().map_err(|error| wrong(error.key, error.message))?;
    step_dvfs::check(&config.stepper())
}

impl Config {
    fn rhythm(&self) -> RhythmRule {
        let Self { intervals, per_burst, shortest, longest, .. } = *self;
        RhythmRule { intervals: intervals as usize, per_burst, shortest, longest }
    }

    /// The controller below, with the longest period until bursts are seen.
    fn stepper(&self) -> step_dvfs::Config {
        step_dvfs::Config {
            period: self.longest,
            windows: self.windows,
            window: self.window,
            up_windows: self.up_windows,
            down_windows: self.down_windows,
            reference: self.reference,
            above: self.above,
            below: self.below,
            down: self.down,
            states: self.states,
            start: self.start,
        }
    }
}

/// One domain's controller.
struct Adaptive {
    stepper: Stepper,
    rhythm: Rhythm,
    /// Whether the lowest state was visited since the last arrival at the highest.
    was_lowest: bool,
}

impl Adaptive {
    fn new(config: &Config) -> Self {
        let stepper = Stepper::new(config.stepper());
        Self { stepper, rhythm: Rhythm::new(config.rhythm()), was_lowest: false }
    }
}

impl Governor for Adaptive {
    fn window(&self) -> Nanos {
        self.stepper.window()
    }

    fn start(&mut self, table: &Table) -> Option<Choice> {
        let choice = self.stepper.start(table);
        self.was_lowest = self.stepper.is_lowest();
        choice
    }

    fn after(&mut self, table: &Table, load: Option<Load>, now: Nanos) -> Option<Choice> {
        let choice = self.stepper.after(table, load, now);
        self.was_lowest |= self.stepper.is_lowest();
        if self.stepper.is_highest() && std::mem::take(&mut self.was_lowest) {
            self.rhythm.burst(now);
        }
        self.stepper.set_period(self.rhythm.period(now));
        choice
    }
}

#[cfg(test)]
mod tests {
    use super::step_dvfs::fluid::mean_backlog_s;
    use super::*;
    use crate::toolkit::domains::testing::{run, xeon};

    fn adaptive(text: &str) -> Adaptive {
        Adaptive::new(&read(&text.parse().unwrap()).unwrap())
    }

    fn stepper() -> Stepper {
        Stepper::new(step_dvfs::Config::default())
    }

    /// Loads that drive P8 to P0 and back once in this many windows.
    fn bursts(busy: usize, idle: usize, times: usize) -> Vec<f64> {
        let one = [vec![1.0; busy], vec![0.1; idle]].concat();
        one.repeat(times)
    }

    #[test]
    fn two_bursts_set_the_period_to_a_tenth_of_their_interval() {
        let mut governor = adaptive("windows = \"fixed\"");
        run(&mut governor, &xeon(), &bursts(20, 20, 1));
        assert_eq!(governor.rhythm.interval(), None);
        run_on(&mut governor, &bursts(20, 20, 1));
        // 40 windows of 50 ms lie between the two arrivals at P0.
        assert_eq!(governor.rhythm.interval(), Some(Nanos::from_secs(2)));
        assert_eq!(governor.window() * 4, Nanos::from_millis(200));
    }

    /// Goes on after [`run`] of 40 windows, without a new start.
    fn run_on(governor: &mut Adaptive, loads: &[f64]) {
        let mut now = Nanos::from_secs(2);
        for busy in loads {
            let length = governor.window();
            now += length;
            let load = Load { busiest: *busy, mean: *busy, length, frequency: xeon().lowest() };
            governor.after(&xeon(), Some(load), now);
        }
    }

    #[test]
    fn a_return_to_p0_from_p4_is_no_burst() {
        let mut governor = adaptive("windows = \"fixed\"");
        // One idle window leads to P4 only; the next climb starts there.
        run(&mut governor, &xeon(), &bursts(20, 1, 4));
        assert_eq!(governor.rhythm.interval(), None);
    }

    #[test]
    fn at_the_worst_cycle_less_than_half_of_the_error_is_left() {
        let plain = mean_backlog_s(&mut stepper(), 2.0);
        for windows in ["scaled", "fixed"] {
            let mut governor = adaptive(&format!("windows = \"{windows}\""));
            let left = mean_backlog_s(&mut governor, 2.0);
            assert!(left < 0.5 * plain, "{windows}: {left} of {plain}");
        }
    }

    #[test]
    fn when_bursts_cease_the_longest_period_returns() {
        let mut governor = adaptive("windows = \"fixed\"");
        run(&mut governor, &xeon(), &bursts(20, 20, 1));
        run_on(&mut governor, &bursts(20, 20, 1));
        assert_eq!(governor.stepper.window() * 4, Nanos::from_millis(200));
        let quiet = Nanos::from_secs(60);
        governor.after(&xeon(), None, quiet);
        assert_eq!(governor.rhythm.period(quiet), Nanos::from_millis(500));
    }

    #[test]
    fn the_rules_of_both_controllers_are_checked() {
        for (text, at) in [
            ("intervals = 0", "intervals"),
            ("shortest = \"2s\"", "shortest"),
            ("up_windows = 0", "up_windows"),
        ] {
            let error = read::<Config>(&text.parse().unwrap()).unwrap_err();
            assert!(matches!(&error, PolicyError::Config { key, .. } if key == at), "{error:?}");
        }
    }
}
