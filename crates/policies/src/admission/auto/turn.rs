//! Whether a gate may be surveyed now, and blocks in which something else changed.
//!
//! One gate of a machine at a time is surveyed, pairs of a limit in force included: settings that
//! another gate tries would count for those of this one. A block of a survey or pair in which
//! another knob was set, or an app arrived or departed, is dropped.

use super::{Auto, Stage, candidates};
use lull_measure::Nanos;

/// Blocks in a row that a survey may lose because knobs change, before it begins again.
const DROPS_MAX: u64 = 9;

/// Whether this gate may be surveyed, and what disturbed the present block.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) is_allowed: bool,
    /// Whether it might at the last decision: what the survey tries has been in force since.
    was_allowed: bool,
    /// Whether the controller would survey now if it may.
    pub(super) is_wanted: bool,
    /// Whether the last block of the open gate left something to try.
    pub(super) has_candidates: bool,
    pub(super) is_disturbed: bool,
    /// Blocks in a row that were dropped.
    pub(super) dropped: u64,
}

impl Default for Turn {
    /// Returns the turn of a gate that has no other beside it.
    fn default() -> Self {
        let (is_allowed, is_wanted, has_candidates) = (true, true, true);
        let was_allowed = is_allowed;
        Self { is_allowed, was_allowed, is_wanted, has_candidates, is_disturbed: false, dropped: 0 }
    }
}

impl Auto {
    /// Returns whether there is a setting to try with this many under way.
    pub(super) fn has_candidates(&self, under_way_mean: f64) -> bool {
        let allowed = self.config.least_cap..=self.config.most_cap;
        let has_caps = !candidates::caps(self.cores, under_way_mean, &allowed).is_empty();
        (self.workers.may_wait() && has_caps)
            || !candidates::pauses(&self.config, &self.aim, self.workers).is_empty()
    }

    /// Returns whether the gate needs the turn. Without results for a long time (no load, or too
    /// little) nothing can be surveyed: other gates may be until there is a result again.
    pub(super) fn needs_turn(&self, now: Nanos) -> bool {
        self.would_survey(now) && !self.window.is_overdue(now)
    }

    /// Returns whether a survey or a pair is under way, or would begin now.
    fn would_survey(&self, now: Nanos) -> bool {
        match &self.stage {
            Stage::Scouting { is_reported } => {
                (!is_reported || self.turn.has_candidates) && self.may_survey(now)
            }
            Stage::Surveying { .. } => true,
            Stage::Holding(hold) => {
                let is_due = self.confirmation.as_ref().is_some_and(|one| one.is_due(now));
                let may_try = self.ledger.allows_open_block(now, self.window.length());
                self.is_paired()
                    || (now >= hold.until && self.may_survey(now))
                    || (is_due && may_try)
            }
        }
    }

    /// Returns whether the gate has a setting for the purpose of comparison.
    pub(super) fn is_surveying(&self) -> bool {
        self.is_paired() || matches!(self.stage, Stage::Surveying { .. })
    }

    /// Drops the present block of a survey or pair if a knob changed in it, or the gate lost its
    /// turn. A survey whose blocks are dropped time after time does not end by itself, and begins
    /// again.
    ///
    /// Windows outside of surveys count: under a policy that sets a knob in each epoch the setting
    /// in force could not be watched otherwise.
    pub(super) fn drop_disturbed(&mut self, now: Nanos) {
        let is_disturbed = std::mem::take(&mut self.turn.is_disturbed);
        let was_allowed = std::mem::replace(&mut self.turn.was_allowed, self.turn.is_allowed);
        let has_lost_turn = !self.turn.is_allowed && self.is_surveying();
        if !is_disturbed && !has_lost_turn {
            return;
        }
        if self.is_paired() {
            let open = if self.is_checked_open() { self.window.passed(now) } else { Nanos::ZERO };
            return self.end_pair(now, open, false);
        }
        if !self.is_surveying() {
            return;
        }
        // Results without the turn are not used, but show that there is load. So knobs that change
        // meanwhile drop none.
        if has_lost_turn && !was_allowed {
            return;
        }
        if is_disturbed {
            self.charge_dropped(now, was_allowed);
        }
        // The time without a result continues, so that a gate without load requests no turn.
        self.window.begin(now);
        if has_lost_turn {
            return;
        }
        self.turn.dropped += 1;
        if self.turn.dropped < DROPS_MAX {
            return self.check_ledger(now);
        }
        self.turn.dropped = 0;
        self.window.restart(now);
        let Stage::Surveying { survey, .. } = &mut self.stage else { return };
        let progress = survey.gives_up(&self.aim, &mut self.rng);
        self.goes_on(now, progress);
        self.check_ledger(now);
    }

    /// Charges what the candidate of a dropped block has lost up to the last look, if it was in
    /// force; without the turn the reference was.
    fn charge_dropped(&mut self, now: Nanos, was_in_force: bool) {
        let Stage::Surveying { survey, .. } = &self.stage else { return };
        let Some(expected_per_s) = survey.expected_per_s(&self.aim) else { return };
        let lost_s = self.window.charge_s(expected_per_s);
        if was_in_force {
            self.ledger.note(now, survey.setting(), lost_s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::aim::Proof;
    use super::super::confirmation::Confirmation;
    use super::super::{Config, Setting, Site, Workers};
    use super::*;
    use lull_control::Objective;
    use lull_control::admission::{Admission, Answered, GateObservation, RoundLimits};
    use lull_measure::{Missing, Percentile};

    /// A gate in front of a server with 64 clients that a limit helps.
    struct Gate {
        auto: Auto,
        limits: RoundLimits,
        now: Nanos,
    }

    impl Gate {
        fn new() -> Self {
            Self::from_auto(Auto::new(Config::default(), &Site::new(&[None], 2)).unwrap())
        }

        fn from_auto(auto: Auto) -> Self {
            Self { auto, limits: RoundLimits::open(1), now: Nanos::ZERO }
        }

        /// A tenth of a second with load.
        fn look(&mut self) {
            let (queries, latency_ms) =
                if self.auto.present() == Setting::Open { (100, 60) } else { (140, 40) };
            let latency = Nanos::from_millis(latency_ms);
            self.look_at(&[Answered { connection: 0, latency, queries }]);
        }

        /// A tenth of a second in which a knob changed, and so many were answered in 60 ms each.
        fn look_after_change(&mut self, queries: u32) {
            let latency = Nanos::from_millis(60);
            self.auto.machine_changed();
            self.look_at(&[Answered { connection: 0, latency, queries }]);
        }

        /// A tenth of a second in which this was answered.
        fn look_at(&mut self, answered: &[Answered]) {
            self.now += Nanos::from_millis(100);
            let missing = || Missing::because("this server does not exist");
            let seen = GateObservation {
                now: self.now,
                answered,
                waiting: &[0],
                connections: Err(missing()),
                under_way: Err(missing()),
                device: Err(missing()),
                round: None,
                rested: Err(missing()),
                server: Err(missing()),
            };
            self.auto.decide(&seen, &mut self.limits);
        }

        /// Looks until a condition holds; returns how many, or `None` within two minutes.
        fn until(&mut self, is_so: impl Fn(&Auto) -> bool) -> Option<u32> {
            (0..1200).find(|_| {
                self.look();
                is_so(&self.auto)
            })
        }
    }

    #[test]
    fn a_gate_whose_turn_has_not_come_stays_open_and_keeps_asking() {
        let mut gate = Gate::new();
        gate.auto.allow_survey(false);
        assert_eq!(gate.until(|auto| auto.is_surveying() || !auto.wants_survey()), None);
        assert_eq!(gate.auto.present(), Setting::Open);
        gate.auto.allow_survey(true);
        assert!(gate.until(Auto::is_surveying).is_some());
        assert!(gate.until(|auto| !auto.is_surveying()).is_some());
        assert!(matches!(gate.auto.setting, Setting::Flow { .. }), "{:?}", gate.auto.setting);
        // After the pair that is due another gate may be surveyed.
        assert!(gate.until(|auto| !auto.wants_survey()).is_some());
    }

    #[test]
    fn a_gate_without_load_leaves_the_turn_to_others_until_it_has_load() {
        let mut gate = Gate::new();
        let is_left = |gate: &mut Gate| {
            (0..1200).any(|_| {
                gate.look_at(&[]);
                !gate.auto.wants_survey()
            })
        };
        assert!(is_left(&mut gate));
        gate.auto.allow_survey(false);
        for _ in 0..100 {
            gate.look_at(&[]);
            assert!(!gate.auto.wants_survey());
        }
        assert!(gate.until(Auto::wants_survey).is_some());
        gate.auto.allow_survey(true);
        assert!(gate.until(Auto::is_surveying).is_some());
        assert!(is_left(&mut gate), "the load ended in a survey");
        gate.auto.allow_survey(false);
        for _ in 0..100 {
            gate.look_at(&[]);
            assert!(!gate.auto.wants_survey());
        }
    }

    #[test]
    fn a_survey_that_loses_its_turn_shows_the_reference_until_it_has_it_again() {
        let mut gate = Gate::new();
        let tries = |auto: &Auto| auto.is_surveying() && auto.present() != Setting::Open;
        assert!(gate.until(tries).is_some());
        gate.auto.allow_survey(false);
        for _ in 0..100 {
            gate.look();
            assert_eq!((gate.auto.present(), gate.auto.wants_survey()), (Setting::Open, true));
        }
        for _ in 0..1200 {
            gate.look_at(&[]);
        }
        assert!(!gate.auto.wants_survey(), "there is no load");
        assert!(gate.until(Auto::wants_survey).is_some());
        gate.auto.allow_survey(true);
        assert!(gate.until(|auto| !auto.is_surveying()).is_some());
        assert!(matches!(gate.auto.setting, Setting::Flow { .. }));
    }

    #[test]
    fn a_load_that_comes_back_requests_the_turn_though_knobs_change_all_the_time() {
        let mut gate = Gate::new();
        let shows_reference = |auto: &Auto| auto.is_surveying() && auto.present() == Setting::Open;
        assert!(gate.until(shows_reference).is_some());
        (0..1200).for_each(|_| gate.look_at(&[]));
        assert!(gate.auto.is_surveying() && !gate.auto.wants_survey(), "there is no load");
        gate.auto.allow_survey(false);
        let is_back = (0..1200).any(|_| {
            gate.auto.machine_changed();
            gate.look();
            gate.auto.wants_survey()
        });
        assert!(is_back);
    }

    #[test]
    fn a_block_in_which_a_knob_changed_is_dropped_and_takes_the_survey_no_further() {
        let mut gate = Gate::new();
        assert!(gate.until(Auto::is_surveying).is_some());
        let setting = gate.auto.present();
        // Less than a block passes between two changes: there is never a result.
        for _ in 0..6 {
            gate.auto.machine_changed();
            gate.look();
            assert_eq!(gate.auto.present(), setting);
        }
        assert!(gate.until(|auto| !auto.is_surveying()).is_some());
        assert!(matches!(gate.auto.setting, Setting::Flow { .. }));
    }

    #[test]
    fn a_survey_under_a_policy_that_never_rests_ends_without_a_decision() {
        let mut gate = Gate::new();
        assert!(gate.until(Auto::is_surveying).is_some());
        for _ in 0..100 {
            gate.auto.machine_changed();
            gate.look();
        }
        assert!(!gate.auto.is_surveying() && gate.auto.setting == Setting::Open);
        let decision = gate.auto.decision.take().unwrap();
        assert_eq!(decision, "open: the load did not stand still");
    }

    #[test]
    fn a_candidate_whose_blocks_are_all_dropped_pays_for_what_it_lost() {
        let mut gate = Gate::new();
        let tries = |auto: &Auto| auto.is_surveying() && auto.present() != Setting::Open;
        assert!(gate.until(tries).is_some());
        let left_s = gate.auto.ledger.left_s(gate.now);
        // A third of what the open gate let through, in nearly a second.
        (0..3).for_each(|_| gate.look_after_change(30));
        let lost_s = left_s - gate.auto.ledger.left_s(gate.now);
        assert!((0.1..0.3).contains(&lost_s), "each is charged at once: {lost_s}");
        (3..DROPS_MAX).for_each(|_| gate.look_after_change(30));
        let lost_s = left_s - gate.auto.ledger.left_s(gate.now);
        assert!((0.4..0.9).contains(&lost_s), "{lost_s}");
    }

    #[test]
    fn an_open_block_of_a_pair_that_is_dropped_pays_for_what_it_lost() {
        let mut auto = Auto::new(Config::default(), &Site::new(&[None], 2)).unwrap();
        auto.setting = Setting::Flow { cap: 16, batch: 1 };
        auto.hold(Nanos::ZERO, Nanos::ZERO, Some(1000.0));
        let proof = Proof { alpha: 0.001, log_capital: 0.0 };
        let mut pair = Confirmation::new(proof, Nanos::ZERO, Nanos::ZERO);
        while !pair.is_open() {
            pair.begin(&mut auto.rng);
        }
        auto.confirmation = Some(pair);
        let mut gate = Gate::from_auto(auto);
        let latency = Nanos::from_millis(60);
        let few = [Answered { connection: 0, latency, queries: 30 }];
        // The block begins with the first look.
        gate.look_at(&[]);
        (0..2).for_each(|_| gate.look_at(&few));
        let left_s = gate.auto.ledger.left_s(gate.now);
        assert!(gate.auto.is_checked_open());
        gate.auto.machine_changed();
        gate.look_at(&few);
        assert!(!gate.auto.is_paired());
        // 60 answers in .2 s, of 1,000 a second; the look that follows is no longer of the block.
        let lost_s = left_s - gate.auto.ledger.left_s(gate.now);
        assert!((0.13..0.15).contains(&lost_s), "{lost_s}");
    }

    #[test]
    fn a_candidate_that_loses_its_turn_pays_for_the_time_in_which_it_was_tried() {
        let mut gate = Gate::new();
        let tries = |auto: &Auto| auto.is_surveying() && auto.present() != Setting::Open;
        assert!(gate.until(tries).is_some());
        let left_s = gate.auto.ledger.left_s(gate.now);
        let few = [Answered { connection: 0, latency: Nanos::from_millis(60), queries: 30 }];
        (0..2).for_each(|_| gate.look_at(&few));
        gate.auto.allow_survey(false);
        gate.look_at(&few);
        // 60 answers in .2 s, of 1,000 a second.
        let lost_s = left_s - gate.auto.ledger.left_s(gate.now);
        assert!((0.13..0.15).contains(&lost_s), "{lost_s}");
        // The reference is in force, and clients stop.
        (0..15).for_each(|_| gate.look_at(&[]));
        gate.auto.allow_survey(true);
        gate.look();
        assert!(gate.auto.is_surveying());
        assert_eq!(left_s - gate.auto.ledger.left_s(gate.now), lost_s);
    }

    #[test]
    fn a_rest_that_breaks_the_bound_is_halved_under_a_policy_that_never_rests() {
        let bound = Nanos::from_millis(20);
        let server_objectives = [Objective::Tail { percentile: Percentile::P99, bound }];
        let site = Site {
            server_objectives: &server_objectives,
            workers: Workers::WaitOrRest,
            ..Site::new(&[None], 2)
        };
        let mut auto = Auto::new(Config::default(), &site).unwrap();
        let pause = Nanos::from_millis(8);
        auto.setting = Setting::Rests { pause };
        auto.hold(Nanos::ZERO, Nanos::ZERO, None);
        let mut gate = Gate::from_auto(auto);
        let is_halved = (0..100).any(|_| {
            gate.look_after_change(100);
            gate.auto.setting == Setting::half_rest(pause)
        });
        assert!(is_halved, "{:?}", gate.auto.setting);
    }
}
