//! The keys of `auto`.

use crate::config::{config, positive_time, text, within, wrong};
use lull_control::PolicyError;
use lull_measure::Nanos;
use lull_measure::ideal_batch::C6_BREAK_EVEN;
use serde::{Deserialize, Serialize};

config! {
    /// The settings that `auto` tries, for how long, and for which goal.
    struct Config checked by check {
        /// `throughput`, `tail` (for at most `loss_percent` of throughput), `both`: either
        /// without harm to the other; or `objectives`: by what the server is promised, a
        /// bound, a floor of throughput, or nothing.
        goal: Goal = Goal::Objectives,
        /// The largest C that is tried; none is tried that cannot bind (ours).
        most_cap: u32 = 256,
        /// The smallest, and C while workers rest (ours).
        least_cap: u32 = 8,
        /// The largest N tried with a C that helps, after 2 (section 3.4: 8 for throughput, 2 for
        /// tails, where no larger one is tried); 1: none.
        most_batch: u32 = 8,
        /// The longest D that is tried where workers can rest; each is twice the one
        /// before, from the break-even on (section 3.2: 1 ms).
        #[serde(serialize_with = "text")]
        most_pause: Nanos = Nanos::from_millis(64),
        /// Pairs of blocks at most, of a setting and the reference (ours).
        pairs: u32 = 60,
        /// Least length of a block; more where latencies are long (ours).
        #[serde(serialize_with = "text")]
        window: Nanos = Nanos::from_millis(300),
        /// Throughput that a lower tail may cost with `goal = "tail"`, in percent (ours).
        loss_percent: f64 = 25.0,
        /// Time to the first retry; doubled while the answer stays the same (ours).
        #[serde(serialize_with = "text")]
        retry: Nanos = Nanos::from_secs(60),
        /// Time between two observations of the answers (ours).
        #[serde(serialize_with = "text")]
        look: Nanos = Nanos::from_millis(100),
    }
}

/// The goal at which a setting is to be better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Goal {
    Throughput,
    Tail,
    Both,
    Objectives,
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("window", config.window)?;
    positive_time("look", config.look)?;
    positive_time("retry", config.retry)?;
    within("most_cap", f64::from(config.most_cap), 1.0..=256.0)?;
    within("least_cap", f64::from(config.least_cap), 1.0..=256.0)?;
    within("most_batch", f64::from(config.most_batch), 1.0..=1024.0)?;
    within("pairs", f64::from(config.pairs), 1.0..=1000.0)?;
    within("loss_percent", config.loss_percent, 0.0..=90.0)?;
    if config.least_cap > config.most_cap {
        return Err(wrong("least_cap", "`least_cap` is above `most_cap`".to_owned()));
    }
    if !(C6_BREAK_EVEN..=Nanos::from_millis(100)).contains(&config.most_pause) {
        return Err(wrong("most_pause", "`most_pause` is not within 1ms and 100ms".to_owned()));
    }
    Ok(())
}
