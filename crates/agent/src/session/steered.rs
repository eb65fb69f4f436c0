//! Operators' orders to a running session, and how they appear in its record.

use super::{Session, policy_of};
use crate::admission::Order;
use crate::frontend::Live;
use crate::live::Command;
use lull_control::Plant;
use lull_control::journal::OperatorAct;
use std::borrow::Cow;

/// The policy that is followed, and the interventions of operators.
#[derive(Debug)]
pub(super) struct Steered {
    policy: String,
    paused: bool,
    /// Number of interventions.
    acts: u32,
}

impl Steered {
    /// Starts with the policy of the config and no intervention.
    pub(super) fn new(policy: &str) -> Self {
        Self { policy: policy.to_owned(), paused: false, acts: 0 }
    }

    /// Returns the policy that is followed now.
    pub(super) fn policy(&self) -> &str {
        &self.policy
    }

    /// Follows another policy, chosen by the command that runs the session.
    pub(super) fn follow(&mut self, policy: &str) {
        policy.clone_into(&mut self.policy);
    }

    /// Returns the phase of the present epoch for the record: the phase of the command until an
    /// operator intervenes. From then on phases are numbered by policy, like
    /// those of a comparison, so that readers of records can distinguish them.
    pub(super) fn phase<'a>(&self, phase: &'a str) -> Cow<'a, str> {
        match (self.acts, self.paused) {
            (0, _) => Cow::Borrowed(phase),
            (acts, true) => Cow::Owned(format!("paused-{acts}")),
            (acts, false) => Cow::Owned(format!("{}-{acts}", self.policy)),
        }
    }

    fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
        self.acts += 1;
    }
}

impl Session {
    /// Carries out the orders that operators sent since the last epoch.
    pub(super) fn carry_out_orders(&mut self) {
        for order in self.live.as_ref().map(Live::orders).unwrap_or_default() {
            let done = match order.command.clone() {
                Command::Pause => Ok(self.pause()),
                Command::Resume => Ok(self.resume()),
                Command::Restore => Ok(self.restore_now()),
                Command::Policy { name } => self.switch_to(&name),
            };
            order.answer(done);
        }
    }

    fn pause(&mut self) -> String {
        if !self.control.controller().is_paused() {
            self.control.pause();
            self.order(Order::Pause);
            self.steered.set_paused(true);
        }
        "paused: knobs stay as they are".to_owned()
    }

    fn resume(&mut self) -> String {
        if self.control.controller().is_paused() {
            self.control.resume();
            self.order(Order::Resume);
            self.steered.set_paused(false);
        }
        format!("{} is followed", self.steered.policy())
    }

    fn restore_now(&mut self) -> String {
        self.order(Order::Open);
        let restored = self.control.restore();
        let left = self.control.plant().unrestored(&restored);
        let answer = with_unrestored("all knobs are restored, and the policy is paused", &left);
        self.control.note(OperatorAct::Restored { left });
        self.steered.set_paused(true);
        answer
    }

    fn switch_to(&mut self, name: &str) -> Result<String, String> {
        let config = self.config.under(name);
        let plant = self.control.plant();
        let policy = policy_of(&config, plant.machine(), plant.apps());
        let policy = policy.map_err(|error| error.to_string())?;
        let left = self.switch(name, policy);
        self.pace_by(name);
        let done = with_unrestored(&format!("{name} is followed"), &left);
        self.control.note(OperatorAct::Switched { to: name.to_owned(), left });
        if self.control.controller().is_paused() {
            self.control.resume();
            self.order(Order::Resume);
        }
        self.steered.set_paused(false);
        Ok(done)
    }
}

fn with_unrestored(done: &str, left: &[String]) -> String {
    match left {
        [] => done.to_owned(),
        left => format!("{done}, but not restored: {}", left.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_numbered_by_policy_once_an_operator_intervenes() {
        let mut steered = Steered::new("arq");
        assert_eq!(steered.phase("on"), "on");
        steered.set_paused(true);
        assert_eq!(steered.phase("on"), "paused-1");
        steered.follow("tide");
        steered.set_paused(false);
        assert_eq!(steered.phase("on"), "tide-2");
    }
}
