//! `auto` between surveys: it watches the load, and compares a limit with the open gate.

use super::change::Change;
use super::confirmation::{Confirmation, Verdict};
use super::window::WindowReading;
use super::{Auto, Hold, LATE_FOR, REST, SCOUTING, Setting, Stage};
use lull_control::admission::GateObservation;
use lull_measure::Nanos;

/// Part of what a promise leaves that open blocks may take while a limit is held.
const PART: f64 = 0.2;
/// Share of the time that searches after changes of the load may take.
const CHANGES: f64 = 0.1;

impl Auto {
    /// Holds what surveys from `begun` to `now` found.
    pub(super) fn hold(&mut self, begun: Nanos, now: Nanos, usual_per_s: Option<f64>) {
        let retry = Nanos(self.config.retry.0.saturating_mul(self.patience));
        let rest = now.saturating_sub(begun).scale(1.0 / self.open_share());
        let until = now + retry.max(rest);
        self.end_search(begun, now);
        self.window.require_cpu_time(false);
        let change = Change::new(now + self.window.wash_out());
        let hold = Hold { until, usual_per_s, change, late_since: None };
        self.stage = Stage::Holding(Box::new(hold));
    }

    /// Sets the earliest time of the next survey if a change of the load began this search.
    pub(super) fn end_search(&mut self, begun: Nanos, now: Nanos) {
        if std::mem::take(&mut self.is_after_change) {
            self.earliest = now + now.saturating_sub(begun).scale(1.0 / CHANGES);
        }
    }

    /// Returns the share of the time in which other settings than the one in force may hold: behind
    /// a limit whose tail counts, promised or not, what open blocks may take of it.
    pub(super) fn open_share(&self) -> f64 {
        let objective = self.aim.objective();
        let is_limit = matches!(self.setting, Setting::Flow { .. });
        let keeps = is_limit && self.aim.counts_tail();
        let usual = 1.0 / REST as f64;
        if keeps { usual.min(PART * (1.0 - objective.at.fraction())) } else { usual }
    }

    /// Returns whether the gate is open for a block beside the limit in force.
    pub(super) fn is_checked_open(&self) -> bool {
        self.confirmation.as_ref().is_some_and(Confirmation::is_open)
    }

    /// Returns whether a pair of the limit in force and the open gate is under way.
    pub(super) fn is_paired(&self) -> bool {
        self.confirmation.as_ref().is_some_and(Confirmation::is_under_way)
    }

    /// Takes what the server used since the last reading.
    pub(super) fn note_times(&mut self, seen: &GateObservation<'_>) {
        let is_paired = self.is_paired();
        let Stage::Holding(hold) = &mut self.stage else { return };
        if is_paired {
            return hold.change.restart(seen.now + self.window.wash_out());
        }
        let cap = match self.setting {
            Setting::Flow { cap, .. } => Some(cap),
            Setting::Open | Setting::Rests { .. } => None,
        };
        if let Some(what) = hold.change.takes_times(seen, cap, self.cores) {
            self.search_again(seen.now, what);
            self.window.restart(seen.now);
        }
    }

    /// Takes a window between surveys.
    pub(super) fn judge_held(&mut self, now: Nanos, look: WindowReading) {
        if self.is_paired() {
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
            return self.search_again(now, what);
        }
        // Without the second condition a setting would be lost until a survey may begin.
        let is_over = now >= hold.until;
        let is_allowed = self.turn.is_allowed;
        if is_over && is_allowed && self.may_survey(now) {
            self.stage = SCOUTING;
            return;
        }
        let may_try = is_allowed && self.ledger.allows_open_block(now, self.window.length());
        if let Some(one) = self.confirmation.as_mut().filter(|one| may_try && one.is_due(now)) {
            one.begin(&mut self.rng);
        }
    }

    /// Returns whether a survey may begin now, where no other gate is surveyed.
    pub(super) fn may_survey(&self, now: Nanos) -> bool {
        now >= self.earliest && self.ledger.allows_survey(now)
    }

    /// Opens the gate, because the evidence on a limit was of another load, until a survey may
    /// begin.
    pub(super) fn search_again(&mut self, now: Nanos, what: &str) {
        let begins = if self.may_survey(now) {
            "a survey begins"
        } else {
            "the gate is open until a survey may begin"
        };
        self.decision = Some(format!("{begins}, because {what} changed"));
        self.patience = 1;
        self.is_after_change = true;
        self.stage = SCOUTING;
    }

    /// Whether a rest has broken the bound for long enough.
    fn breaks_bound(&mut self, now: Nanos, look: WindowReading) -> bool {
        let rests = matches!(self.setting, Setting::Rests { .. });
        let bound_s = self.aim.objective().bound_s.filter(|_| rests);
        let Stage::Holding(hold) = &mut self.stage else { return false };
        let is_late = bound_s.is_some_and(|bound_s| look.tail_s > bound_s);
        let first = hold.late_since.filter(|_| is_late);
        hold.late_since = is_late.then(|| first.unwrap_or(now));
        first.is_some_and(|since| now.saturating_sub(since) >= LATE_FOR)
    }

    /// Takes a block of a pair of the limit in force and the open gate.
    fn judge_pair(&mut self, now: Nanos, look: WindowReading) {
        let (share, aim, setting) = (self.open_share(), self.aim, self.setting);
        let Stage::Holding(hold) = &mut self.stage else { return };
        let Some(one) = &mut self.confirmation else { return };
        hold.change.restart(now + self.window.wash_out());
        if one.is_open() {
            let lost = 1.0 - look.per_s / hold.usual_per_s.unwrap_or(look.per_s);
            self.ledger.note(now, Setting::Open, lost * look.span.as_secs_f64());
        }
        let verdict = one.takes(now, look, |open| aim.must_remain(setting, open), share);
        self.note_verdict(now, verdict);
    }

    fn note_verdict(&mut self, now: Nanos, verdict: Option<Verdict>) {
        match verdict {
            None => {}
            Some(Verdict::Confirmed(why)) => {
                self.decision = Some(format!("{}: {why}", self.setting.describe()));
            }
            Some(Verdict::Refuted(why)) => {
                self.decide_on(Setting::Open, &why);
                self.hold(now, now, None);
            }
        }
    }

    /// Ends a pair whose open block has used up its allowed loss, or that has no result for too
    /// long.
    pub(super) fn check_pair(&mut self, now: Nanos) {
        let Stage::Holding(hold) = &self.stage else { return };
        if !self.is_paired() {
            return;
        }
        let is_open = self.is_checked_open();
        let usual_per_s = hold.usual_per_s.filter(|_| is_open);
        let lost_s = usual_per_s.map(|usual_per_s| self.window.lacking_s(usual_per_s));
        let open = if is_open { self.window.passed(now) } else { Nanos::ZERO };
        if lost_s.is_some_and(|lost_s| lost_s >= self.ledger.left_s(now)) {
            // Without clients nothing is answered under any setting.
            let is_evidence = usual_per_s.is_some_and(|per_s| self.window.is_answering(per_s));
            self.end_pair(now, open, is_evidence);
        } else if self.window.is_overdue(now) {
            self.end_pair(now, open, false);
        }
    }

    /// Ends a pair in the middle of a block. `open` is how long the gate was open in that block;
    /// if too much was lost in it, it is evidence for the limit.
    pub(super) fn end_pair(&mut self, now: Nanos, open: Nanos, is_evidence: bool) {
        let wait = open.max(self.window.length()).scale(1.0 / self.open_share());
        if open > Nanos::ZERO {
            self.charge_open_block(now);
        }
        self.window.restart(now);
        let Some(one) = &mut self.confirmation else { return };
        if is_evidence {
            let verdict = one.takes_loss(now, wait);
            return self.note_verdict(now, verdict);
        }
        one.abandon(now, wait);
    }

    /// Charges the loss of an open block that has no result, up to the last look. If the clients
    /// left in it, its loss is unknown, unless it is all that may be lost.
    fn charge_open_block(&mut self, now: Nanos) {
        let Stage::Holding(hold) = &self.stage else { return };
        let Some(usual_per_s) = hold.usual_per_s else { return };
        let lost_s = self.window.lacking_s(usual_per_s);
        if self.window.is_answering(usual_per_s) || lost_s >= self.ledger.left_s(now) {
            self.ledger.note(now, Setting::Open, lost_s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::aim::Proof;
    use super::super::{Config, Site};
    use super::*;
    use lull_control::admission::{Admission, RoundLimits};
    use lull_measure::Missing;

    const LIMIT: Setting = Setting::Flow { cap: 16, batch: 1 };

    /// Holds the limit from the start on.
    fn held() -> Auto {
        let mut auto = Auto::new(Config::default(), &Site::new(&[None], 2)).unwrap();
        auto.setting = LIMIT;
        auto.hold(Nanos::ZERO, Nanos::ZERO, Some(1000.0));
        auto
    }

    fn look() -> WindowReading {
        WindowReading::of_rate(1000.0)
    }

    #[test]
    fn a_limit_stays_in_force_while_the_ledger_allows_no_survey() {
        let (mut auto, at) = (held(), Nanos::from_secs);
        auto.ledger.note(at(1), Setting::Flow { cap: 8, batch: 1 }, 3.0);
        for now in [61, 300, 601] {
            auto.judge(at(now), look());
            assert_eq!(auto.present(), LIMIT, "at {now} s");
        }
        auto.judge(at(602), look());
        assert!(matches!(auto.stage, Stage::Scouting { .. }), "the loss is ten minutes ago");
    }

    #[test]
    fn a_search_after_a_change_is_followed_by_ten_times_as_long_without_one() {
        let (mut auto, at) = (held(), Nanos::from_secs);
        auto.search_again(at(10), "throughput");
        let decision = auto.decision.take().unwrap();
        assert_eq!(decision, "a survey begins, because throughput changed");
        auto.hold(at(10), at(22), Some(1000.0));
        assert_eq!(auto.present(), LIMIT);
        auto.search_again(at(30), "throughput");
        let decision = auto.decision.take().unwrap();
        assert!(decision.starts_with("the gate is open until a survey may begin"), "{decision}");
        assert_eq!(auto.present(), Setting::Open);
        assert!(!auto.may_survey(at(141)) && auto.may_survey(at(142)));
    }

    #[test]
    fn a_pair_ends_with_a_gap_between_two_looks() {
        let missing = || Missing::because("there is no server");
        let seen = |seconds| GateObservation {
            now: Nanos::from_secs(seconds),
            answered: &[],
            waiting: &[0],
            connections: Err(missing()),
            under_way: Err(missing()),
            device: Err(missing()),
            round: None,
            rested: Err(missing()),
            server: Err(missing()),
        };
        let (mut auto, mut limits) = (held(), RoundLimits::open(1));
        let proof = Proof { alpha: 0.001, log_capital: 0.0 };
        let mut one = Confirmation::new(proof, Nanos::ZERO, Nanos::ZERO);
        one.begin(&mut auto.rng);
        auto.confirmation = Some(one);
        auto.decide(&seen(1), &mut limits);
        assert!(auto.is_paired());
        auto.decide(&seen(100), &mut limits);
        assert!(!auto.is_paired());
        assert_eq!(auto.present(), LIMIT);
    }
}
