//! The keys of `bayop`.

use crate::config::{config, fraction, positive_time, text, wrong};
use crate::search::{Method, PriorMean, Protocol, SearchPoint, Space, first_tail};
use lull_control::{AppSpec, Capability, PolicyError};
use lull_measure::Nanos;
use serde::{Deserialize, Serialize};

config! {
    /// The paper's numbers, and the choices it leaves open.
    struct Config checked by check {
        /// How settings are chosen: "apart" (ours), "penalty" (the paper's), "front" (of power,
        /// tail below the bound and best-effort progress, by expected hypervolume), "random".
        method: Method = Method::Apart,
        /// Knobs to search, gate-cap, gate-batch and gate-delay among them; if empty what the
        /// machine has of coalescing, frequency, cores and uncore-frequency, and of idle-latency
        /// and energy-preference where they matter.
        knobs: Vec<Capability> = Vec::new(),
        /// Whether the adaptive mode of network drivers is searched beside fixed delays (ours).
        adaptive: bool = false,
        /// Trials of a search (section 5.2.1: 30).
        trials: usize = 30,
        /// Time after a change during which nothing counts (ours).
        #[serde(serialize_with = "text")]
        settle: Nanos = Nanos::from_secs(1),
        /// Length of a trial (the authors' scripts: 20 s).
        #[serde(serialize_with = "text")]
        window: Nanos = Nanos::from_secs(20),
        /// Probability of being within 1.2 bounds that a setting must have to be tried (ours).
        floor: f64 = 0.9,
        /// Probability that one more trial meets the bound that it must have to stay (ours).
        final_floor: f64 = 0.95,
        /// Trials that measure a setting again before it can stay; in a short search a quarter of
        /// its trials (ours).
        confirm: usize = 5,
        /// Prior mean of the model, far from all trials: "constant", or the "response" model (eqs.
        /// 1 to 3).
        prior: PriorMean = PriorMean::Constant,
        /// Expected saving below which, five times running, a search ends; 0 for never (ours).
        stop_below: f64 = 0.0,
        /// Share of a search's requests that may be late before it tries only settings that are
        /// almost certain to meet the bound (ours).
        harm_max: f64 = 0.05,
        /// Whether a search tries no new setting whose trial exceeds twice the bound with a
        /// probability of more than 5 %, "apart" and "front" only (ours).
        safe: bool = false,
        /// A trial over this many bounds after a quarter of its window ends there (ours).
        cut: f64 = 2.0,
        /// How often to search again (section 5.1.1: every hour).
        #[serde(serialize_with = "text")]
        every: Nanos = Nanos::from_secs(3600),
        /// Relative change of load after which a setting is given up (ours).
        load_change: f64 = 0.15,
        /// Windows over the bound in a row that begin a search (ours).
        patience: u32 = 3,
        /// Whether a model may stand in for an energy meter.
        allow_modelled: bool = false,
        /// Settings that are known from before, as `lull tune` stores them.
        known: Vec<KnownSetting> = Vec::new(),
    }
}

/// A setting that was found at a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KnownSetting {
    /// Requests per second.
    pub(super) rate_per_s: f64,
    /// The knobs' values, in the order of the search: microseconds, GHz, cores, ways,
    /// workers, transactions, 0 to 255.
    pub(super) values: Vec<f64>,
    /// The knobs of the values; those of the search if empty. Values of fewer knobs are used once
    /// the other knobs were refused and have left the search.
    #[serde(default)]
    pub(super) knobs: Vec<Capability>,
    /// Share of late requests that its trials exceeded with a probability of 1 % at most.
    /// Without it, or if it is above what the objective allows, a search begins with these
    /// values instead of trusting them.
    #[serde(default)]
    pub(super) late_at_most: Option<f64>,
    /// Probability that one more trial meets the bound, if it is known. Below `final_floor` a
    /// search begins with these values instead of trusting them.
    #[serde(default)]
    pub(super) probability: Option<f64>,
    /// Whether a search has refuted these values at this load: they are not tried again.
    #[serde(default)]
    pub(super) refuted: bool,
}

impl KnownSetting {
    /// Whether its evidence shows that it meets an objective that allows this share of late
    /// requests.
    pub(super) fn is_shown(&self, allowed: f64, final_floor: f64) -> bool {
        self.late_at_most.is_some_and(|late| late <= allowed)
            && self.probability.is_none_or(|probability| probability >= final_floor)
    }

    /// Names the knobs of a setting without them: those of the search.
    ///
    /// # Errors
    /// If the number of values is another one than that of knobs.
    pub(super) fn name_knobs(&mut self, space: &Space) -> Result<(), PolicyError> {
        if self.knobs.is_empty() {
            self.knobs = space.dimensions().iter().map(|it| it.knob).collect();
        }
        let (found, wanted) = (self.values.len(), self.knobs.len());
        match found == wanted {
            true => Ok(()),
            false => {
                let message = format!(
                    "a known setting has {found} values; this search has \
                                       {wanted}"
                );
                Err(wrong("known", message))
            }
        }
    }

    /// Returns the point nearest to the values in a space; `None` if they belong to other knobs, or
    /// to a mode that is not searched.
    pub(super) fn point(&self, space: &Space) -> Option<SearchPoint> {
        let searched = space.dimensions().iter().map(|it| &it.knob);
        searched.eq(&self.knobs).then(|| space.stored(&self.values)).flatten()
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("window", config.window)?;
    positive_time("every", config.every)?;
    for (key, share) in [
        ("floor", config.floor),
        ("final_floor", config.final_floor),
        ("stop_below", config.stop_below),
        ("harm_max", config.harm_max),
        ("load_change", config.load_change),
    ] {
        fraction(key, share)?;
    }
    if config.trials == 0 || config.patience == 0 {
        let key = if config.trials == 0 { "trials" } else { "patience" };
        return Err(wrong(key, format!("`{key}` is 0: write at least 1")));
    }
    if config.safe {
        config.method.check_safe().map_err(|error| wrong("safe", error.to_string()))?;
    }
    // A NaN is not above 1 either.
    if config.cut.is_nan() || config.cut < 1.0 {
        return Err(wrong("cut", format!("`cut` is {}: write 1 or more", config.cut)));
    }
    match config.known.iter().any(|spot| !spot.rate_per_s.is_finite() || spot.rate_per_s <= 0.0) {
        true => Err(wrong("known", "a known setting has a rate above 0".to_owned())),
        false => Ok(()),
    }
}

impl Config {
    /// How the first app with a tail objective is tried; `None` where there is none.
    pub(super) fn protocol(&self, apps: &[AppSpec]) -> Option<Protocol> {
        let (app, percentile, bound) = first_tail(apps)?;
        let Self { settle, window, cut, allow_modelled, .. } = *self;
        Some(Protocol { app, percentile, bound, settle, window, cut, allow_modelled })
    }
}
