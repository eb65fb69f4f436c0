//! When a setting that the plant refused or clamped is tried again.
//!
//! Many policies request the same settings at every epoch. Without a pause, a knob that the
//! hardware does not have would be written, and journalled, at every epoch for as long as Lull
//! runs. What stood in the way may also go: the pause doubles from 1 s to 1 min.

use crate::{Knob, Outcome, Setting};
use lull_measure::Nanos;
use std::collections::BTreeMap;

const PAUSE_FIRST: Nanos = Nanos::from_secs(1);
const PAUSE_MAX: Nanos = Nanos::from_secs(60);

/// The settings that are not in force after their last attempt, by knob.
#[derive(Debug, Default)]
pub(super) struct Retries {
    unmet: BTreeMap<Knob, Unmet>,
}

#[derive(Debug)]
struct Unmet {
    wanted: Setting,
    /// The setting in force after the attempt, if known.
    in_force: Option<Setting>,
    why: String,
    pause: Nanos,
    /// The time of the next attempt.
    next: Nanos,
}

impl Retries {
    /// Takes note of an attempt at `time`; `in_force` is the knob's setting after it.
    pub(super) fn note(&mut self, outcome: &Outcome, in_force: Option<&Setting>, time: Nanos) {
        let knob = outcome.wanted.knob();
        let former = self.unmet.remove(&knob).filter(|former| former.wanted == outcome.wanted);
        let Some(why) = outcome.failure(in_force) else { return };
        let pause =
            former.map_or(PAUSE_FIRST, |former| (former.pause + former.pause).min(PAUSE_MAX));
        let unmet = Unmet {
            wanted: outcome.wanted.clone(),
            in_force: in_force.cloned(),
            why,
            pause,
            next: time + pause,
        };
        self.unmet.insert(knob, unmet);
    }

    /// Returns why a setting is not tried at `time`: the same attempt failed shortly before, and
    /// the knob has not changed since.
    pub(super) fn why_paused(
        &self,
        setting: &Setting,
        in_force: Option<&Setting>,
        time: Nanos,
    ) -> Option<&str> {
        let unmet = self.unmet.get(&setting.knob())?;
        let is_same = unmet.wanted == *setting && unmet.in_force.as_ref() == in_force;
        (is_same && time < unmet.next).then_some(unmet.why.as_str())
    }

    /// Forgets the attempts at these knobs.
    pub(super) fn forget(&mut self, is_forgotten: impl Fn(Knob) -> bool) {
        self.unmet.retain(|knob, _| !is_forgotten(*knob));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApplyOutcome, DomainId};
    use lull_measure::Hertz;

    fn frequency(mhz: u64) -> Setting {
        Setting::Frequency(DomainId(0), Hertz::from_khz(1000 * mhz))
    }

    fn clamped() -> Outcome {
        let got =
            ApplyOutcome::Clamped { to: frequency(1000), why: "the limit of heat".to_owned() };
        Outcome { wanted: frequency(2000), got }
    }

    #[test]
    fn a_clamped_setting_pauses_until_the_knob_or_the_wish_changes() {
        let (slow, at) = (frequency(1000), Nanos::from_secs(9));
        let mut retries = Retries::default();
        retries.note(&clamped(), Some(&slow), at);
        let why = retries.why_paused(&frequency(2000), Some(&slow), at).unwrap();
        assert!(why.contains("the limit of heat"), "{why}");
        assert_eq!(retries.why_paused(&frequency(1500), Some(&slow), at), None);
        let foreign = frequency(1200);
        assert_eq!(retries.why_paused(&frequency(2000), Some(&foreign), at), None);
        assert_eq!(retries.why_paused(&frequency(2000), Some(&slow), at + PAUSE_FIRST), None);
    }

    #[test]
    fn an_attempt_that_succeeds_ends_the_pauses() {
        let (slow, at) = (frequency(1000), Nanos::from_secs(9));
        let mut retries = Retries::default();
        retries.note(&clamped(), Some(&slow), at);
        retries.note(&clamped(), Some(&slow), at);
        assert!(retries.why_paused(&frequency(2000), Some(&slow), at + PAUSE_FIRST).is_some());
        retries.note(&Outcome { got: ApplyOutcome::Done, ..clamped() }, Some(&frequency(2000)), at);
        retries.note(&clamped(), Some(&slow), at);
        assert_eq!(retries.why_paused(&frequency(2000), Some(&slow), at + PAUSE_FIRST), None);
    }
}
