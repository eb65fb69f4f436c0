//! `lull compare`: several policies on the same apps, in turn.
//!
//! Every round has one block of each policy in random order, so that neither drift nor the
//! after-effects of the block before favour one. Figures are
//! computed for blocks, intervals over rounds, and differences within rounds. The record has
//! the usual form, with the phases `POLICY-ROUND`.

mod result;

use crate::cli::CompareArgs;
use crate::commands::UsageError;
use crate::commands::save::{self, Destination};
use crate::order::draw_order;
use crate::signals::stop_request;
use crate::{progress, say};
use indicatif::ProgressBar;
use lull_agent::config::Config;
use lull_agent::recorded::{Part, Run};
use lull_agent::session::{Agent, Session, TurnError, bound_by_ideal, policy_of};
use lull_control::Rng;
use lull_host::plant::HostPlant;
use lull_measure::Nanos;
use rand::SeedableRng;
use result::{Refused, Report};
use std::path::PathBuf;

pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let mut config = Config::load(&args.config)?;
    // Orders of an operator would distort the comparison.
    config.agent.control = false;
    check(args, &config)?;
    let table_at = args.markdown.as_deref().map(Destination::new).transpose()?;
    let say = |text: &str| say::notice(text);
    let adjust =
        |plant: &mut HostPlant| args.room.into_iter().for_each(|room| bound_by_ideal(plant, room));
    // The session starts with a policy that runs on any machine.
    let agent =
        Agent::new(config.under("unmanaged")).stop(stop_request()?).notify(&say).adjust(&adjust);
    let mut session = agent.start()?;
    let (policies, refused) = suited(args, &config, &session);
    refused.iter().for_each(|one| say::notice(format!("{}: {}", one.policy, one.why)));
    let ended = alternate(args, &config, &mut session, &policies);
    let record: PathBuf = session.record().to_owned();
    session.close()?.report_notices(&ended, &say)?;
    ended?;
    // All knobs are restored: from here on a closed pipe may end the process.
    sigpipe::reset();
    let run = Run::read(&record)?;
    let parts = Part::all_of(&run, args.settling())?;
    let report = Report::from_parts(&run, &policies, &parts, refused, record);
    if let Some(to) = &table_at {
        save::all(&[(to, report.markdown().into_bytes())])?;
    }
    if args.json {
        return super::print_json(&report);
    }
    report.print();
    Ok(())
}

/// Checks the policies before anything starts, so that an invalid comparison fails early.
fn check(args: &CompareArgs, config: &Config) -> anyhow::Result<()> {
    for name in &args.policies {
        lull_policies::POLICIES
            .find(name)
            .map_err(|error| UsageError(format!("--policies: {error}")))?;
    }
    let twice = |at: &usize| args.policies[..*at].contains(&args.policies[*at]);
    if let Some(at) = (0..args.policies.len()).find(twice) {
        return Err(UsageError(format!("--policies names `{}` twice", args.policies[at])).into());
    }
    if args.policies.len() < 2 {
        let what = "--policies names one policy, and there is nothing to compare it with: add \
                    another, such as unmanaged";
        return Err(UsageError(what.to_owned()).into());
    }
    let epoch = |policy: &String| config.under(policy).epoch_rule().longest();
    let longest = args.policies.iter().map(epoch).max().unwrap_or_default();
    if args.block < longest * 4 {
        let problem = format!("--block {} has less than four epochs", args.block);
        return Err(UsageError(problem).into());
    }
    if args.block.saturating_sub(args.settling()) < longest * 3 {
        let (settle, block) = (args.settling(), args.block);
        let problem = format!(
            "--settle {settle} leaves less than three epochs of {longest} of a block of {block}: \
             choose a shorter one, or a longer --block"
        );
        return Err(UsageError(problem).into());
    }
    if args.room.is_some_and(|room| !(room > 1.0 && room.is_finite())) {
        return Err(UsageError("--room must be above 1: it multiplies the ideal".to_owned()).into());
    }
    Ok(())
}

/// The policies that can run here, and why the others cannot.
fn suited(args: &CompareArgs, config: &Config, session: &Session) -> (Vec<String>, Vec<Refused>) {
    let (mut policies, mut refused) = (Vec::new(), Vec::new());
    for policy in &args.policies {
        match policy_for(config, policy, session) {
            Ok(_) => policies.push(policy.clone()),
            Err(error) => {
                refused.push(Refused { policy: policy.clone(), why: error.to_string() });
            }
        }
    }
    (policies, refused)
}

fn policy_for(
    config: &Config,
    policy: &str,
    session: &Session,
) -> Result<Box<dyn lull_control::Policy>, lull_agent::located::InputError> {
    let plant = session.plant();
    policy_of(
        &config.under(policy),
        lull_control::Plant::machine(plant),
        lull_control::Plant::apps(plant),
    )
}

fn alternate(
    args: &CompareArgs,
    config: &Config,
    session: &mut Session,
    policies: &[String],
) -> anyhow::Result<()> {
    anyhow::ensure!(!policies.is_empty(), "none of these policies can run here");
    let blocks = f64::from(args.rounds) * policies.len() as f64;
    let bar = progress::seconds((blocks * args.block.as_secs_f64()) as u64);
    let mut rng = Rng::seed_from_u64(session.config().agent.seed());
    for round in 0..args.rounds {
        for policy in draw_order(policies.len(), &mut rng).into_iter().map(|at| &policies[at]) {
            bar.set_message(format!("round {} of {}, {policy}", round + 1, args.rounds));
            let built = policy_for(config, policy, session)?;
            session.switch(policy, built);
            session.pace_by(policy);
            one_block(args.block, &format!("{policy}-{round}"), session, &bar)?;
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn one_block(
    length: Nanos,
    phase: &str,
    session: &mut Session,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let mut elapsed = Nanos::ZERO;
    while elapsed < length {
        let epoch = session.turn(phase).map_err(TurnError::cut_short)?;
        elapsed += epoch.seen.epoch;
        bar.inc(epoch.seen.epoch.as_secs_f64().round() as u64);
        progress::print_notices(session, &epoch, bar);
    }
    Ok(())
}
