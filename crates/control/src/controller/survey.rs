//! Epochs in which the policy decides nothing, because the gate of a server is surveyed.
//!
//! An admission controller that compares settings of its gate changes the latency of its app. A
//! policy that answers with a knob would spoil the comparison, and learn from what it did not
//! cause.
//! The policy decides all the same before its first decision, in an epoch with a broken bound, a
//! foreign change or an app that arrived or departed, in the SLO-safe state, and after two minutes.

use super::{Controller, Turn};
use crate::assess::AppAssessment;
use crate::journal::Event;
use lull_measure::Nanos;

/// Longest time in a row in which the policy skips epochs.
const SKIPPED_MAX: Nanos = Nanos::from_secs(120);

/// The effect of a survey on the policy.
#[derive(Debug, Default)]
pub(super) struct SurveyPause {
    /// Whether a gate is surveyed, and the first epoch in which it was.
    is_surveyed: bool,
    since: Option<Nanos>,
    /// Whether the policy has decided at all, and whether it skipped the last epoch.
    pub(super) has_decided: bool,
    is_skipping: bool,
}

impl Controller {
    /// Sets whether the gate of a server is surveyed in the next epoch, so that the policy changes
    /// no knob without need.
    pub(crate) fn set_surveyed(&mut self, is_surveyed: bool) {
        self.survey.is_surveyed = is_surveyed;
    }

    /// Returns whether the policy skips this epoch, and notes in the journal when that begins and
    /// ends.
    pub(super) fn skips_survey(&mut self, turn: &mut Turn) -> bool {
        let breaks_bound =
            |one: &AppAssessment| one.lc.is_some_and(|reading| reading.untolerated() > 0.0);
        let is_urgent = self.safe
            || !self.survey.has_decided
            || turn.assessment.apps.iter().any(breaks_bound)
            || turn.entries.iter().any(|entry| entry.event.changes_machine());
        let survey = &mut self.survey;
        if !survey.is_surveyed {
            survey.since = None;
        } else if survey.since.is_none() {
            survey.since = Some(turn.time);
        }
        let is_short =
            survey.since.is_some_and(|since| turn.time.saturating_sub(since) < SKIPPED_MAX);
        let skips = is_short && !is_urgent;
        match (std::mem::replace(&mut survey.is_skipping, skips), skips) {
            (false, true) => turn.push(Event::SurveyBegins),
            (true, false) => turn.push(Event::SurveyEnds),
            _ => {}
        }
        skips
    }
}
