//! The config of `tide`.

use crate::config::{config, fraction, positive_time, text, wrong};
use lull_control::PolicyError;
use lull_measure::Nanos;
use lull_measure::entropy::RelativeImportance;

config! {
    /// Defaults are the paper's where it states them, and ours otherwise.
    struct Config checked by check {
        /// Longest time between adjustments (Ah-Q, section VI-B: 500 ms).
        #[serde(serialize_with = "text")]
        period: Nanos = Nanos::from_millis(500),
        /// Shortest period, used where the load's bursts are frequent (Wang et al. 2013, eq. 2: 50
        /// ms).
        #[serde(serialize_with = "text")]
        period_min: Nanos = Nanos::from_millis(50),
        /// Slack below which best-effort work gives way (Ah-Q, section VI-B: 0.05).
        ebb_below: f64 = 0.05,
        /// Slack above which it may take more (Ah-Q, section VI-B: 0.1).
        flow_above: f64 = 0.1,
        /// How far above its bound chance may carry a tail (ours).
        overshoot: f64 = 0.1,
        /// Slack above which chance is left alone: an app with few requests misses in some
        /// periods whatever is done (ours).
        ease: f64 = 0.2,
        /// Standard deviations that are chance (ours: 1.96, a 95 % interval).
        chance: f64 = 1.96,
        /// How long a level that broke an app is not tried again at its load, first (ours).
        #[serde(serialize_with = "text")]
        hold: Nanos = Nanos::from_secs(10),
        /// The longest hold (Ah-Q spares victims for 60 s).
        #[serde(serialize_with = "text")]
        hold_max: Nanos = Nanos::from_secs(60),
        /// How long loads must stay before another arrangement is tried (ours).
        #[serde(serialize_with = "text")]
        settled: Nanos = Nanos::from_secs(20),
        /// How long the value of an arrangement is kept while the loads stay (ours).
        #[serde(serialize_with = "text")]
        memory: Nanos = Nanos::from_secs(300),
        /// Whether best-effort apps become SCHED_IDLE where the machine can (theorem 1: scarce
        /// resources need priority).
        priority: bool = true,
        /// Relative importance of latency-critical apps in E_S (section V-B: 0.8).
        importance: RelativeImportance = RelativeImportance::default(),
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("period_min", config.period_min)?;
    positive_time("settled", config.settled)?;
    if config.period < config.period_min {
        let message = "`period` is shorter than `period_min`".to_owned();
        return Err(wrong("period", message));
    }
    fraction("ebb_below", config.ebb_below)?;
    fraction("flow_above", config.flow_above)?;
    fraction("overshoot", config.overshoot)?;
    fraction("ease", config.ease)?;
    if config.ebb_below > config.flow_above {
        let message = "`ebb_below` is above `flow_above`: the level would never rest";
        return Err(wrong("ebb_below", message.to_owned()));
    }
    if !(config.chance >= 0.0 && config.chance.is_finite()) {
        let message = format!("`chance` is {}: write a number such as 1.96", config.chance);
        return Err(wrong("chance", message));
    }
    Ok(())
}
