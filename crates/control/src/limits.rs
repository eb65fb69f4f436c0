//! The limits that keep a policy from harmful fast changes: bounds, dwell, hysteresis.

use crate::{Capability, CoreSet, Dwell, Knob, Machine, Setting, Value};
use lull_measure::{Hertz, Nanos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Limits on every plan. The SLO-safe state is exempt from dwell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Shortest time between two changes of one kind of knob.
    pub dwell: Nanos,
    /// Relative change of a numeric knob below which it is not written, in 0 to 1, below 1.
    #[schemars(extend("x-unit" = "share"))]
    pub hysteresis: f64,
    /// Cores that Lull may use; all if absent.
    #[schemars(with = "Option<String>", example = "0-3,8")]
    pub cores: Option<CoreSet>,
    /// Lowest frequency that Lull may set.
    #[schemars(example = "2.2GHz")]
    pub frequency_min: Option<Hertz>,
    /// Highest frequency that Lull may set.
    #[schemars(example = "3GHz")]
    pub frequency_max: Option<Hertz>,
}

impl Default for Limits {
    /// 100 ms dwell, 1 % hysteresis, no bounds.
    fn default() -> Self {
        Self {
            dwell: Nanos::from_millis(100),
            hysteresis: 0.01,
            cores: None,
            frequency_min: None,
            frequency_max: None,
        }
    }
}

/// Why the limits cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct LimitsError {
    /// The key below `[limits]`.
    pub key: &'static str,
    /// The error and the correction.
    pub message: String,
}

/// The result of applying the limits to one requested setting.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// The setting may be applied; if a bound changed it, the text names the bound.
    Pass(Setting, Option<String>),
    /// The setting equals the one in force, or nearly so.
    Same,
    /// The setting must wait, for this reason.
    Wait(String),
    /// The setting is refused, for this reason.
    Hold(String),
}

impl Limits {
    /// Checks the limits against a machine.
    ///
    /// # Errors
    /// If the core list names no core of the machine, a bound is upside down
    /// or the hysteresis is outside [0, 1).
    pub fn check(&self, machine: &Machine) -> Result<(), LimitsError> {
        let fail = |key, message| Err(LimitsError { key, message });
        if !(0.0..1.0).contains(&self.hysteresis) {
            return fail("hysteresis", format!("{} is outside 0 to 1", self.hysteresis));
        }
        if let Some(cores) = &self.cores {
            let all = machine.all_cores();
            if cores.is_empty() || !cores.is_subset(&all) {
                return fail("cores", format!("`{cores}` is not part of this machine's `{all}`"));
            }
        }
        match (self.frequency_min, self.frequency_max) {
            (Some(min), Some(max)) if min > max => {
                fail("frequency_min", format!("{min} is above frequency_max {max}"))
            }
            _ => Ok(()),
        }
    }

    /// Brings a setting within the bounds; says so if that changed it.
    fn bound(&self, wanted: &Setting) -> Verdict {
        let to = match wanted {
            Setting::Cores(app, cores) => match &self.cores {
                Some(allowed) => Setting::Cores(*app, cores.intersection(allowed)),
                None => wanted.clone(),
            },
            Setting::Frequency(domain, hertz) => {
                let at_least = self.frequency_min.map_or(*hertz, |min| min.max(*hertz));
                let bounded = self.frequency_max.map_or(at_least, |max| max.min(at_least));
                Setting::Frequency(*domain, bounded)
            }
            other => other.clone(),
        };
        if matches!(&to, Setting::Cores(_, cores) if cores.is_empty()) {
            return Verdict::Hold("none of the requested cores is in limits.cores".to_owned());
        }
        let note = (to != *wanted).then(|| format!("limits turned {wanted} into {to}"));
        Verdict::Pass(to, note)
    }

    /// Whether two settings of one knob differ too little to be written.
    fn same(&self, old: &Setting, new: &Setting) -> bool {
        let near = |a: f64, b: f64| (a - b).abs() <= self.hysteresis * a.abs();
        match (old.value(), new.value()) {
            (Value::Frequency(a), Value::Frequency(b)) => near(a.0 as f64, b.0 as f64),
            (a, b) => a == b,
        }
    }
}

/// The unit of a dwell time: a kind of knob, or one knob of a kind.
type Kind = (Capability, Option<u16>);

const fn kind(knob: Knob) -> Kind {
    let row = knob.row();
    let alone = match row.dwell {
        Dwell::Together => None,
        Dwell::Each => Some(knob.number()),
    };
    (row.capability, alone)
}

/// Remembers what changed when, and applies [`Limits`] to plans.
#[derive(Debug, Clone)]
pub(crate) struct Gatekeeper {
    limits: Limits,
    changed: Vec<(Kind, Nanos)>,
}

impl Gatekeeper {
    /// Keeps these limits.
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, changed: Vec::new() }
    }

    /// Continues with other limits.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Judges one wanted setting against the knob's state at `now`.
    ///
    /// Dwell counts per kind of knob, so that the parts of one move (a core
    /// from one app to another) pass or wait together; frequency domains move
    /// alone and count alone. With `urgent` it does not count, nor for a knob of an app
    /// whose state is unknown because the app has just arrived.
    pub(crate) fn judge(
        &self,
        wanted: &Setting,
        state: &BTreeMap<Knob, Setting>,
        now: Nanos,
        urgent: bool,
    ) -> Verdict {
        let Verdict::Pass(to, note) = self.limits.bound(wanted) else {
            return self.limits.bound(wanted);
        };
        if state.get(&to.knob()).is_some_and(|old| self.limits.same(old, &to)) {
            return Verdict::Same;
        }
        let has_arrived = to.knob().app().is_some() && !state.contains_key(&to.knob());
        let urgent = urgent || has_arrived;
        let kind = kind(to.knob());
        let last = self.changed.iter().find(|(changed, _)| *changed == kind);
        match last {
            Some((_, at)) if !urgent && now < *at + self.limits.dwell => {
                Verdict::Wait(format!("dwell: changed less than {} ago", self.limits.dwell))
            }
            _ => Verdict::Pass(to, note),
        }
    }

    /// Notes that a knob changed at `now`.
    pub(crate) fn note_change(&mut self, knob: Knob, now: Nanos) {
        let kind = kind(knob);
        self.changed.retain(|(changed, _)| *changed != kind);
        self.changed.push((kind, now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AppId, DomainId};

    const GHZ: fn(u64) -> Setting =
        |tenths| Setting::Frequency(DomainId(0), Hertz(tenths * 100_000_000));

    fn gate(limits: Limits) -> Gatekeeper {
        Gatekeeper::new(limits)
    }

    fn state(setting: Setting) -> BTreeMap<Knob, Setting> {
        BTreeMap::from([(setting.knob(), setting)])
    }

    #[test]
    fn a_bound_clamps_and_says_so() {
        let limits = Limits { frequency_max: Some(Hertz(2_000_000_000)), ..Limits::default() };
        let verdict = gate(limits).judge(&GHZ(30), &BTreeMap::new(), Nanos::ZERO, false);
        let Verdict::Pass(to, Some(note)) = verdict else { panic!("{verdict:?}") };
        assert_eq!(to, GHZ(20));
        assert!(note.contains("3GHz") && note.contains("2GHz"), "{note}");
    }

    #[test]
    fn cores_outside_the_allowed_are_never_used() {
        let limits = Limits { cores: Some("1-2".parse().unwrap()), ..Limits::default() };
        let want = |text: &str| Setting::Cores(AppId(0), text.parse().unwrap());
        let judge =
            |text| gate(limits.clone()).judge(&want(text), &BTreeMap::new(), Nanos(0), false);
        assert!(matches!(judge("0-1"), Verdict::Pass(to, Some(_)) if to == want("1")));
        assert!(matches!(judge("0,3"), Verdict::Hold(_)));
    }

    #[test]
    fn a_change_within_the_hysteresis_is_no_change() {
        let limits = Limits { hysteresis: 0.1, ..Limits::default() };
        let old = state(GHZ(20));
        let judge = |new| gate(limits.clone()).judge(&GHZ(new), &old, Nanos::ZERO, false);
        assert_eq!(judge(21), Verdict::Same);
        assert!(matches!(judge(23), Verdict::Pass(..)));
    }

    #[test]
    fn dwell_holds_a_kind_of_knob_but_never_the_safe_state() {
        let mut gate = gate(Limits { dwell: Nanos::from_secs(1), ..Limits::default() });
        gate.note_change(Knob::Cores(AppId(7)), Nanos::from_secs(10));
        let cores = |count| Setting::Cores(AppId(0), CoreSet::first(count));
        let (old, soon) = (state(cores(1)), Nanos::from_millis(10_500));
        assert!(matches!(gate.judge(&cores(2), &old, soon, false), Verdict::Wait(_)));
        assert!(matches!(gate.judge(&cores(2), &old, soon, true), Verdict::Pass(..)));
        let later = Nanos::from_secs(11);
        assert!(matches!(gate.judge(&cores(2), &old, later, false), Verdict::Pass(..)));
    }

    #[test]
    fn one_domains_dwell_is_not_anothers() {
        let mut gate = gate(Limits { dwell: Nanos::from_secs(1), ..Limits::default() });
        gate.note_change(Knob::Frequency(DomainId(7)), Nanos::from_secs(10));
        let (old, soon) = (state(GHZ(20)), Nanos::from_millis(10_500));
        assert!(matches!(gate.judge(&GHZ(30), &old, soon, false), Verdict::Pass(..)));
        gate.note_change(Knob::Frequency(DomainId(0)), Nanos::from_secs(10));
        assert!(matches!(gate.judge(&GHZ(30), &old, soon, false), Verdict::Wait(_)));
    }
}
