//! The thread of an agent: opens the session, runs its epochs, and closes it.

use super::feed::{End, EpochObservation, Facts, Failure, Feed};
use crate::observation::Numbers;
use lull_agent::config::{Config, PolicyRole};
use lull_agent::error::describe;
use lull_agent::session::{Session, TurnError};
use lull_agent::{Agent, Stop, status};
use lull_control::{Epoch, Plant, PlantError};
use lull_lab::CustomPolicy;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

/// The arguments with which an agent starts.
pub(super) struct Start {
    pub(super) config: Config,
    pub(super) program: PathBuf,
    pub(super) dry_run: bool,
    pub(super) own: Option<OwnPolicy>,
    pub(super) stop: Stop,
}

/// A policy in Python, its role, and how long a decision may take.
pub(super) struct OwnPolicy {
    pub(super) policy: CustomPolicy,
    pub(super) role: PolicyRole,
    pub(super) limit: Duration,
}

/// Runs an agent to its end, which is reported in any case.
pub(super) fn run(start: Start, feed: &Feed) {
    let ended = catch_unwind(AssertUnwindSafe(|| follow(start, feed)));
    feed.close(ended.unwrap_or_else(|_| {
        let text = "the agent panicked (the reason is on standard error): its guard ends this \
                    process within seconds, and restores the knobs";
        Err(Failure::Other(text.to_owned()))
    }));
}

fn follow(start: Start, feed: &Feed) -> End {
    let Start { config, program, dry_run, own, stop } = start;
    let notify = |text: &str| feed.notice(text);
    let agent = Agent::new(config).dry_run(dry_run).program(program).stop(stop).notify(&notify);
    let agent = match &own {
        Some(OwnPolicy { policy, role, limit }) => agent.policy(policy, *role, *limit),
        None => agent,
    };
    let mut session = agent.start()?;
    feed.open(Facts {
        record: session.record().to_owned(),
        page: session.page().map(str::to_owned),
        machine: session.plant().machine().clone(),
        apps: session.apps().to_vec(),
    });
    let ended = turn(&mut session, feed, if dry_run { "dry-run" } else { "on" });
    let closed = session.close()?;
    let outcome = closed.outcome();
    let left = closed.left().to_vec();
    match closed.report_notices(&ended, &notify) {
        Err(error) => Err(Failure::Left(describe(&error), left)),
        Ok(()) => ended.map(|()| outcome).map_err(Failure::from),
    }
}

/// Runs epochs until a stop is requested, or nothing is left that could be steered.
fn turn(session: &mut Session, feed: &Feed, phase: &str) -> anyhow::Result<()> {
    loop {
        let epoch = match session.turn(phase) {
            Ok(epoch) => epoch,
            Err(TurnError::Plant(PlantError::Stopped)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let is_over = session.is_over(&epoch);
        session.take_notices().iter().for_each(|text| feed.notice(text));
        feed.push(seen(session, &epoch));
        if is_over {
            let logs = session.logs();
            anyhow::bail!("all apps have exited; their output is in {}", logs.display());
        }
    }
}

fn seen(session: &Session, epoch: &Epoch) -> EpochObservation {
    let journal = epoch.entries.iter().map(|entry| status::describe(session.apps(), entry));
    EpochObservation {
        number: epoch.number,
        journal: journal.map(|line| line.trim_start().to_owned()).collect(),
        shadow: session.shadow_lines().iter().map(|line| line.trim_start().to_owned()).collect(),
        entropy: epoch.assessment.entropy,
        policy: session.policy().to_owned(),
        is_safe: epoch.safe,
        settings: session.state().values().cloned().collect(),
        numbers: Numbers::new(&epoch.seen, session.apps()),
    }
}
