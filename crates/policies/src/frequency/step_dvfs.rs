//! `step-dvfs`: steps up after many busy windows, down after one idle window.
//!
//! A model of the Dell BIOS controller, fitted to measurements. In every window TW = 50 ms,
//! with u the CPU utilisation:
//!
//! ```text
//! u - 0.80 > 0      for T_u = 10 windows in a row:  one step up    (P8 -> P4 -> P0)
//! u - 0.80 < -0.15  for T_d = 1 window:             one step down
//! ```
//!
//! Climbing from P8 to P0 takes two adjustment periods of 500 ms and falling takes 100 ms. If
//! bursts arrive about every 2 s, the server has just become slow when the next burst arrives
//! (section 4, "anti-synchrony").
//!
//! Two readings of *down*: equation 4 goes down one step (`down = "one-step"`, the default);
//! section 3.1 says that a change of load "triggers the DVFS adjustment from P0 to P8"
//! (`down = "lowest"`). At 14,000 and 16,000 clients a prototype lost at most 1 % of throughput
//! with the first, and 17 and 16 % with the second and bounded Tomcat threads (table 2: 18.7 and
//! 18.9 %). The published parameters alone do not give the published losses.
//!
//! Two readings of *period*, which figures 13 and 14 vary: `windows = "fixed"` keeps TW and sets
//! T_u = period/TW (figure 13's "125 ms is enough" holds: over 99 % of full speed in a
//! prototype); `"scaled"` keeps T_u and sets TW = period/T_u (figure 14's growth of switches
//! holds). At 500 ms they are the same.
//!
//! Ours: utilisation is the mean over a domain's cores. The P-states are three of the machine's,
//! evenly spread, as the appendix uses P8, P4 and P0. The start is the lowest. A window that does
//! not qualify, or whose load is unknown, resets its counter; a step resets both.
//!
//! Source: Wang et al., TRIOS'13, appendix B, equations 4 and 5, table 1. Checked against table 1,
//! section 4.2, and figure 8's worst burst cycle on a fluid model and by `lull lab`.

use crate::config::{config, fraction, positive_time, read, text, wrong};
use crate::entry::{ConfigSchema, Entry, Family, LatencyDetail, NaturalEpoch, PolicyKind};
use crate::toolkit::domains::{Choice, Governor, Load, PerDomain, Table};
use lull_control::{Capability, PolicyError, Reason};
use lull_measure::catalogue::CORE_UTILISATION;
use lull_measure::{Hertz, Nanos};
use serde::{Deserialize, Serialize};

#[cfg(test)]
pub(crate) mod fluid;
#[cfg(test)]
mod tests;

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "step-dvfs",
    paper: "Wang et al., TRIOS'13, appendix B, equations 4 and 5, table 1",
    summary: "Steps up after ten busy windows in a row, down after one idle window.",
    kind: PolicyKind {
        needs: &[Capability::Frequency, Capability::Utilisation],
        latency: LatencyDetail::EveryRequest,
        epoch: NaturalEpoch::Key("window"),
        ..PolicyKind::new(Family::Frequency)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, _| {
        let config: Config = read(table)?;
        Ok(Box::new(PerDomain::new(machine, || Stepper::new(config.clone()))))
    },
};

config! {
    /// Table 1, and the choices it leaves open.
    struct Config checked by check {
        /// Time to confirm a step up, T_u TW (section 4.2: 500 ms).
        #[serde(serialize_with = "text")]
        period: Nanos = Nanos::from_millis(500),
        /// How the period is reached: `fixed` (windows of TW, as many as fit) or `scaled`
        /// (T_u windows, as long as fits).
        windows: Windows = Windows::Fixed,
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

/// How an adjustment period is divided into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Windows {
    /// Windows keep their length, their number follows the period.
    Fixed,
    /// Windows keep their number, their length follows the period.
    Scaled,
}

/// How far down goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Down {
    /// A step to the next lower state.
    OneStep,
    /// A step to the lowest state.
    Lowest,
}

/// The first state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Start {
    /// P8 of the paper.
    Lowest,
    /// P0.
    Highest,
}

pub(crate) fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("period", config.period)?;
    positive_time("window", config.window)?;
    fraction("reference", config.reference)?;
    fraction("above", config.above)?;
    fraction("below", config.below)?;
    for (key, count) in [("up_windows", config.up_windows), ("down_windows", config.down_windows)] {
        if count == 0 {
            return Err(wrong(key, format!("`{key}` is 0: at least one window confirms a step")));
        }
    }
    if config.states < 2 {
        return Err(wrong("states", "`states` must be at least 2, to have a choice".to_owned()));
    }
    Ok(())
}

/// One domain's controller.
pub(crate) struct Stepper {
    config: Config,
    /// The windows of the current period.
    window: Nanos,
    up_windows: u32,
    /// Frequencies used, ascending; filled at the start.
    states: Vec<Hertz>,
    level: usize,
    busy_in_a_row: u32,
    idle_in_a_row: u32,
}

impl Stepper {
    pub(crate) fn new(config: Config) -> Self {
        let period = config.period;
        let mut stepper = Self {
            config,
            window: Nanos::ZERO,
            up_windows: 0,
            states: Vec::new(),
            level: 0,
            busy_in_a_row: 0,
            idle_in_a_row: 0,
        };
        stepper.set_period(period);
        stepper
    }

    /// Changes the adjustment period; windows counted so far still count.
    pub(crate) fn set_period(&mut self, period: Nanos) {
        let Config { windows, window, up_windows, .. } = self.config;
        (self.window, self.up_windows) = match windows {
            Windows::Scaled => (Nanos(period.0 / u64::from(up_windows)).max(Nanos(1)), up_windows),
            // If not even one whole window fits, it is as long as the period.
            Windows::Fixed if period < window => (period, 1),
            Windows::Fixed => {
                let fit = (period.0 as f64 / window.0 as f64).round();
                (window, fit as u32)
            }
        };
    }

    /// Whether it is in its lowest state.
    pub(crate) fn is_lowest(&self) -> bool {
        self.level == 0
    }

    /// Whether it is in its highest state.
    pub(crate) fn is_highest(&self) -> bool {
        self.level + 1 >= self.states.len()
    }

    /// Equation 5: counts windows, and steps when enough are in a row.
    fn step(&mut self, busy: f64) -> Option<(usize, f64)> {
        let Config { reference, above, below, .. } = self.config;
        let count = |counter: u32, goes_on: bool| if goes_on { counter + 1 } else { 0 };
        self.busy_in_a_row = count(self.busy_in_a_row, busy - reference > above);
        self.idle_in_a_row = count(self.idle_in_a_row, busy - reference < -below);
        if self.busy_in_a_row >= self.up_windows && !self.is_highest() {
            return Some((self.level + 1, reference + above));
        }
        if self.idle_in_a_row >= self.config.down_windows && !self.is_lowest() {
            let to = match self.config.down {
                Down::OneStep => self.level - 1,
                Down::Lowest => 0,
            };
            return Some((to, reference - below));
        }
        None
    }
}

impl Governor for Stepper {
    fn window(&self) -> Nanos {
        self.window
    }

    fn start(&mut self, table: &Table) -> Option<Choice> {
        self.states = table.spread(self.config.states as usize);
        self.level = match self.config.start {
            Start::Lowest => 0,
            Start::Highest => self.states.len() - 1,
        };
        Some(Choice { frequency: self.states[self.level], reason: Reason::Start })
    }

    fn after(&mut self, _: &Table, load: Option<Load>, _: Nanos) -> Option<Choice> {
        let Some(Load { mean: value, .. }) = load else {
            (self.busy_in_a_row, self.idle_in_a_row) = (0, 0);
            return None;
        };
        let (level, threshold) = self.step(value)?;
        (self.busy_in_a_row, self.idle_in_a_row) = (0, 0);
        self.level = level;
        let metric = CORE_UTILISATION;
        let reason = Reason::Threshold { metric, app: None, value, threshold };
        Some(Choice { frequency: self.states[level], reason })
    }
}
