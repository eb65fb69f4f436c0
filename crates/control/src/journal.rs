//! The decision journal: what changed, why, the expected effect and the measured one.

use crate::{
    ApplyOutcome, Correction, Direction, Expectation, ForeignChange, Outcome, Reason, Setting,
};
use lull_measure::Nanos;
use serde::{Deserialize, Serialize};

/// One entry of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// End of the epoch it belongs to, since the plant began.
    pub time: Nanos,
    /// The event.
    pub event: Event,
}

/// The events that an epoch may have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A knob was set, clamped or refused.
    Decision(Decision),
    /// A wanted setting was not applied: a limit, or a dry run.
    Held {
        /// The requested setting.
        wanted: Setting,
        /// Why the policy wanted it.
        reason: Reason,
        /// Why it was not applied.
        why: String,
    },
    /// The measured effect of the last plan, against its expectation.
    Effect(Effect),
    /// Another writer changed a knob.
    Foreign {
        /// The foreign change.
        change: ForeignChange,
        /// Whether Lull leaves the knob alone from now on.
        yielded: bool,
    },
    /// The policy is not followed from here on.
    SafeBegins {
        /// Why.
        cause: String,
    },
    /// The policy is followed again.
    SafeEnds,
    /// The gate of a server is surveyed, and the policy decides nothing without need.
    SurveyBegins,
    /// The policy decides in each epoch again.
    SurveyEnds,
    /// All threads of an app are gone. The app is absent until it has processes again.
    AppExited {
        /// The app's name.
        app: String,
    },
    /// An app has no process when the run begins.
    AppWaiting {
        /// The app's name.
        app: String,
    },
    /// An absent app has processes.
    AppArrived {
        /// The app's name.
        app: String,
    },
    /// All processes of an app were replaced between two observations.
    AppRestarted {
        /// The app's name.
        app: String,
    },
    /// The policy was rebuilt, because it could not adapt to a change of the roster.
    PolicyRebuilt {
        /// The names of the apps that arrived, departed or were restarted.
        apps: String,
        /// The reason why it could not be built, so that the former policy continues.
        failed: Option<String>,
    },
    /// An admission controller has changed what an app's gate does.
    #[serde(alias = "regulated")]
    GateChanged {
        /// The app's name.
        app: String,
        /// The admission controller's.
        #[serde(alias = "regulator")]
        admission: String,
        /// The state of the gate as text.
        gate: String,
    },
    /// The cores of the classes of an app's clients have changed.
    AreasChanged {
        /// The app's name.
        app: String,
        /// The source of the areas: `fixed`, or the policy that divides cores between classes.
        by: String,
        /// The areas and the reason as text.
        areas: String,
    },
    /// The run has refuted a reference of an app, which is replaced.
    ReferenceCorrected {
        /// The app's name.
        app: String,
        /// The reference before and from now on.
        correction: Correction,
    },
    /// A discovery has found an app, or lost one, or cannot reach its source.
    Discovery {
        /// The event as text.
        text: String,
    },
    /// The operator took a hand in the run.
    Operator(OperatorAct),
}

impl Event {
    /// Returns whether the event changes the machine or its work: a knob has another setting than
    /// before, or an app arrived or departed.
    pub fn changes_machine(&self) -> bool {
        match self {
            Self::Decision(decision) => match &decision.outcome.got {
                ApplyOutcome::Done => true,
                // A policy may request a setting repeatedly that is clamped to the present one.
                ApplyOutcome::Clamped { to, .. } => decision.from.as_ref() != Some(to),
                ApplyOutcome::Already | ApplyOutcome::Refused { .. } => false,
            },
            Self::Foreign { .. }
            | Self::AppExited { .. }
            | Self::AppArrived { .. }
            | Self::AppRestarted { .. } => true,
            Self::Operator(act) => {
                matches!(act, OperatorAct::Restored { .. } | OperatorAct::Switched { .. })
            }
            _ => false,
        }
    }
}

/// The acts that an operator may take while the loop runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorAct {
    /// No decision is made and no knob is set until [`OperatorAct::Resumed`].
    Paused,
    /// The policy is followed again.
    Resumed,
    /// Every knob was restored, and the loop is paused.
    Restored {
        /// The values that could not be restored, as text; empty if all were.
        left: Vec<String>,
    },
    /// Every knob was restored, and another policy begins.
    Switched {
        /// The policy's name.
        to: String,
        /// The values that could not be restored, as text; empty if all were.
        left: Vec<String>,
    },
    /// A changed config was applied.
    Reloaded {
        /// The keys that have changed.
        changed: Vec<String>,
    },
}

/// A knob that was to be changed, and the result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The knob's state before, where known.
    pub from: Option<Setting>,
    /// Why it was to change.
    pub reason: Reason,
    /// The requested setting and the one that took effect.
    pub outcome: Outcome,
    /// The limit that changed the policy's setting, if one did.
    pub limit: Option<String>,
    /// The effect that the policy expects of the whole plan.
    pub expected: Option<Expectation>,
}

/// The expected effect of a plan and the effect observed in a later epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// The expected effect.
    pub expected: Expectation,
    /// The metric in the epoch before the plan.
    pub before: f64,
    /// The metric in the epoch after it.
    pub after: f64,
}

impl Effect {
    /// Returns by how much the metric moved.
    pub fn measured_change(&self) -> f64 {
        self.after - self.before
    }

    /// Whether it moved the expected way.
    pub fn as_expected(&self) -> bool {
        match self.expected.direction {
            Direction::Lower => self.measured_change() < 0.0,
            Direction::Higher => self.measured_change() > 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AppId, CoreSet};
    use lull_measure::catalogue::ENTROPY_SYSTEM;

    #[test]
    fn an_event_is_read_from_a_record_as_it_was_written() {
        let expected = Expectation {
            metric: ENTROPY_SYSTEM,
            app: None,
            direction: Direction::Lower,
            by: Some(0.5),
        };
        let reason = Reason::Threshold {
            metric: ENTROPY_SYSTEM,
            app: Some(AppId(1)),
            value: 0.5,
            threshold: 0.25,
        };
        let wanted = Setting::Cores(AppId(0), CoreSet::first(2));
        let outcome = Outcome { wanted: wanted.clone(), got: ApplyOutcome::Done };
        let expects = Some(expected.clone());
        let decision = Decision { from: None, reason, outcome, limit: None, expected: expects };
        let events = [
            Event::Decision(decision),
            Event::Held { wanted, reason: Reason::Start, why: "dry run".to_owned() },
            Event::Effect(Effect { expected, before: 0.5, after: 0.25 }),
            Event::SafeEnds,
            Event::SurveyBegins,
            Event::AreasChanged {
                app: "db".to_owned(),
                by: "qos-wc".to_owned(),
                areas: "web on cores 0".to_owned(),
            },
            Event::Operator(OperatorAct::Paused),
        ];
        let changing = events.iter().map(Event::changes_machine);
        assert_eq!(changing.collect::<Vec<_>>(), [true, false, false, false, false, false, false]);
        for event in events {
            let text = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event, "{text}");
        }
        let former = r#"{"regulated":{"app":"db","regulator":"auto","gate":"open"}}"#;
        let changed = Event::GateChanged {
            app: "db".to_owned(),
            admission: "auto".to_owned(),
            gate: "open".to_owned(),
        };
        assert_eq!(serde_json::from_str::<Event>(former).unwrap(), changed);
        let unknown = r#"{"effect":{"expected":{"metric":"no_such_thing","app":null,
                          "direction":"lower","by":null},"before":1,"after":2}}"#;
        let error = serde_json::from_str::<Event>(unknown).unwrap_err().to_string();
        assert!(error.contains("there is no metric `no_such_thing`"), "{error}");
    }

    #[test]
    fn a_setting_that_stays_clamped_changes_the_machine_once() {
        let share = |percent| Setting::MemoryBandwidth(AppId(0), percent);
        let changes = |from: Option<Setting>, got: ApplyOutcome| {
            let outcome = Outcome { wanted: share(5), got };
            let reason = Reason::Fixed;
            let decision = Decision { from, reason, outcome, limit: None, expected: None };
            Event::Decision(decision).changes_machine()
        };
        let clamped =
            || ApplyOutcome::Clamped { to: share(10), why: "shares begin at 10 %".to_owned() };
        assert!(changes(Some(share(100)), clamped()));
        assert!(changes(None, clamped()), "the former setting is unknown");
        assert!(!changes(Some(share(10)), clamped()));
        assert!(!changes(Some(share(10)), ApplyOutcome::Already));
        assert!(!changes(Some(share(10)), ApplyOutcome::Refused { why: "no such app".to_owned() }));
    }
}
