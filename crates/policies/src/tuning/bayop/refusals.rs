//! `bayop`'s response to trials without a reading, and to loads with too few requests.

use super::{Bayop, Holding, Stage, TrialInProgress};
use crate::search::{Gather, Gathered, Protocol, Refusal};
use lull_control::{Capability, Plan, Reason, Rng, Setting};
use lull_measure::Nanos;

impl Bayop {
    /// Records settings that are not in force: the trial of one of them ends.
    pub(super) fn note_refused(&mut self, settings: &[(Setting, String)]) {
        let Stage::Trying(TrialInProgress { point, refused, .. }) = &mut self.stage else { return };
        let tried = self.space.settings(point);
        let of_trial = || settings.iter().filter(|(setting, _)| tried.contains(setting));
        of_trial().for_each(|(setting, _)| self.card_refusals.note(setting));
        let refusal = |(setting, why): &(Setting, String)| {
            Refusal::of_knob(setting.knob().capability(), why.clone())
        };
        *refused = of_trial().next().map(refusal);
    }

    /// Ends a trial that cannot be, because a setting of it is not in force.
    pub(super) fn give_up(&mut self, protocol: Protocol, now: Nanos, rng: &mut Rng) {
        let stage = std::mem::replace(&mut self.stage, Stage::Waiting);
        let Stage::Trying(TrialInProgress { mut search, point, refused: Some(why), load, .. }) =
            stage
        else {
            return;
        };
        search.tell(point, Err(why));
        let Some(knob) = search.useless_knob() else {
            return self.go_on(search, load, (protocol, now), rng);
        };
        let with_other_cards = match knob {
            Capability::Coalescing => self.card_refusals.without_refusing(&self.space),
            _ => None,
        };
        if let Some(left) = with_other_cards {
            self.space = left;
            self.plan = Plan::keep();
            return self.begin(protocol, now, rng);
        }
        match self.space.without(knob).map(|left| self.leave(knob, left)) {
            Some(true) => self.stage = Stage::Looking { gather: Gather::new(protocol.patient()) },
            Some(false) => self.begin(protocol, now, rng),
            None => self.go_on(search, load, (protocol, now), rng),
        }
    }

    /// Continues after a trial without a reading. If requests arrived, the meter has failed; if
    /// none did, the app is idle, and the trial waits for the load to return.
    pub(super) fn go_on_unread(
        &mut self,
        mut trial: TrialInProgress,
        end: &Gathered,
        protocol: Protocol,
    ) {
        let has_requests = trial.gather.has_requests();
        trial.gather = Gather::new(protocol);
        self.stage = Stage::Trying(trial);
        if let Gathered::Nothing(why) = end
            && has_requests
        {
            self.measure_fastest(protocol, &format!("the trial has no reading: {why}"));
        }
    }

    /// Drops the window in which the app was absent or has restarted: it lost requests and started
    /// cold.
    pub(super) fn note_restart(&mut self, protocol: Protocol) {
        match &mut self.stage {
            Stage::Waiting => {}
            Stage::Looking { gather } | Stage::Holding(Holding { gather, .. }) => {
                *gather = Gather::new(protocol.patient());
            }
            Stage::Trying(_) => {
                self.measure_fastest(protocol, "the app was absent or has restarted in the trial");
            }
        }
    }

    /// Measures the fastest setting in place of a trial whose missing reading no knob explains,
    /// because that setting may stay until there is a reading. The search may propose the setting
    /// of the trial again.
    fn measure_fastest(&mut self, protocol: Protocol, why: &str) {
        let Stage::Trying(trial) = &mut self.stage else { return };
        trial.point = self.space.fastest();
        trial.gather = Gather::new(protocol);
        trial.refused = None;
        let cause = format!("{why}; the fastest setting is measured next");
        for setting in self.space.settings(&trial.point) {
            self.plan.set(setting, Reason::Safe { cause: cause.clone() });
        }
    }

    /// Returns why trials at the load show nothing about the objective's percentile; `None` if
    /// they do, or the load is not known yet.
    pub(super) fn too_short(&self, protocol: Protocol) -> Option<String> {
        let (rate, least) = (self.rate_per_s, self.rules(protocol).least_requests() as f64);
        let Protocol { percentile, window, .. } = protocol;
        let is_short = rate > 0.0 && window.as_secs_f64() * rate < least;
        is_short.then(|| {
            let takes = Nanos::from_secs_f64((least / rate).ceil());
            format!(
                "trials of {window} at {rate:.1} requests/s are too short for {percentile}: write \
                 window = \"{takes}\" in [policy], or another percentile"
            )
        })
    }

    /// Keeps the fastest setting, because no search can show anything.
    pub(super) fn hold_fastest(&mut self, protocol: Protocol, now: Nanos, cause: String) {
        let fastest = self.space.fastest();
        self.hold(&fastest, false, (protocol, now), &Reason::Safe { cause });
    }
}
