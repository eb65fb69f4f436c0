//! What `auto` does between surveys: it watches the load, and compares a limit with the open gate.

use super::change::Change;
use super::confirmation::{Confirmation, Verdict};
use super::window::Look;
use super::{Auto, Hold, LATE_FOR, REST, SCOUTING, Setting, Stage};
use lull_control::admission::Seen;
use lull_measure::Nanos;

/// Part of what a promise leaves that open blocks may take while a limit is held.
const PART: f64 = 0.2;

impl Auto {
    /// Holds what surveys from `begun` to `now` found.
    pub(super) fn hold(&mut self, begun: Nanos, now: Nanos, usual_per_s: Option<f64>) {
        let retry = Nanos(self.config.retry.0.saturating_mul(self.patience));
        let rest = now.saturating_sub(begun).scale(1.0 / self.open_share());
        let until = now + retry.max(rest);
        let hold = Hold { until, usual_per_s, change: Change::new(), late_since: None };
        self.stage = Stage::Holding(Box::new(hold));
    }

    /// Returns the share of the time in which other settings than the one in force may hold: behind
    /// a limit whose tail counts, promised or not, what open blocks may take of it.
    pub(super) fn open_share(&self) -> f64 {
        let objective = self.aim.objective();
        let is_limit = matches!(self.setting, Setting::Flow { .. });
        let keeps = is_limit && self.aim.minds_tail();
        let usual = 1.0 / REST as f64;
        if keeps { usual.min(PART * (1.0 - objective.at.fraction())) } else { usual }
    }

    /// Returns whether the gate is open for a block beside the limit in force.
    pub(super) fn is_checked_open(&self) -> bool {
        self.confirmation.as_ref().is_some_and(Confirmation::is_open)
    }

    /// Takes what the server used since the last reading.
    pub(super) fn note_times(&mut self, seen: &Seen<'_>) {
        let is_paired = self.confirmation.as_ref().is_some_and(Confirmation::is_under_way);
        let Stage::Holding(hold) = &mut self.stage else { return };
        if is_paired {
            return hold.change.restart();
        }
        let cap = match self.setting {
            Setting::Flow { cap, .. } => Some(cap),
            Setting::Open | Setting::Rests { .. } => None,
        };
        if let Some(what) = hold.change.takes_times(seen, cap, self.cores) {
            self.search_again(what);
            self.window.restart(seen.now);
        }
    }

    /// Takes a window between surveys.
    pub(super) fn judge_held(&mut self, now: Nanos, look: Look) {
        if self.confirmation.as_ref().is_some_and(Confirmation::is_under_way) {
            return self.judge_pair(now, look);
        }
        if self.breaks_bound(now, look) {
            if let Setting::Rests { pause } = self.setting {
                self.decide_on(Setting::half_rest(pause), "the rest broke the bound");
                self.patience = 1;
                self.hold(now, now, None);
            }
            return;
        }
        let Stage::Holding(hold) = &mut self.stage else { return };
        hold.usual_per_s.get_or_insert(look.per_s);
        if let Some(what) = hold.change.takes_window(now, look) {
            return self.search_again(what);
        }
        if now >= hold.until {
            self.stage = SCOUTING;
            return;
        }
        // An open block may lose its length, and must leave enough for a survey.
        let may_try = self.ledger.allows_survey_after(now, self.window.length());
        if let Some(one) = self.confirmation.as_mut().filter(|one| may_try && one.is_due(now)) {
            one.begin(&mut self.rng);
        }
    }

    fn search_again(&mut self, what: &str) {
        self.patience = 1;
        self.decision = Some(format!("a survey begins, because {what} changed"));
        self.stage = SCOUTING;
    }

    /// Whether a rest has broken the bound for long enough.
    fn breaks_bound(&mut self, now: Nanos, look: Look) -> bool {
        let rests = matches!(self.setting, Setting::Rests { .. });
        let bound_s = self.aim.objective().bound_s.filter(|_| rests);
        let Stage::Holding(hold) = &mut self.stage else { return false };
        let is_late = bound_s.is_some_and(|bound_s| look.tail_s > bound_s);
        let first = hold.late_since.filter(|_| is_late);
        hold.late_since = is_late.then(|| first.unwrap_or(now));
        first.is_some_and(|since| now.saturating_sub(since) >= LATE_FOR)
    }

    /// Takes a block of a pair of the limit in force and the open gate.
    fn judge_pair(&mut self, now: Nanos, look: Look) {
        let (share, aim, setting) = (self.open_share(), self.aim, self.setting);
        let Stage::Holding(hold) = &mut self.stage else { return };
        let Some(one) = &mut self.confirmation else { return };
        hold.change.restart();
        if one.is_open() {
            let lost = 1.0 - look.per_s / hold.usual_per_s.unwrap_or(look.per_s);
            self.ledger.note(now, Setting::Open, lost * look.span.as_secs_f64());
        }
        match one.takes(now, look, |open| aim.must_remain(setting, open), share) {
            None => {}
            Some(Verdict::Confirmed(why)) => {
                self.decision = Some(format!("{}: {why}", setting.describe()));
            }
            Some(Verdict::Refuted(why)) => {
                self.decide_on(Setting::Open, &why);
                self.hold(now, now, None);
            }
        }
    }

    /// Ends an open block beside the limit in force that has lost what may be lost.
    pub(super) fn check_open_block(&mut self, now: Nanos) {
        let share = self.open_share();
        let Stage::Holding(hold) = &self.stage else { return };
        let Some(usual_per_s) = hold.usual_per_s else { return };
        let Some(one) = self.confirmation.as_mut().filter(|one| one.is_open()) else { return };
        let lost_s = self.window.lacking_s(now, usual_per_s);
        if lost_s < self.ledger.left_s(now) {
            return;
        }
        one.abandon(now, self.window.length().scale(1.0 / share));
        self.ledger.note(now, Setting::Open, lost_s);
        self.window.restart(now);
    }
}
