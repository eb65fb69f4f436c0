//! `lull run`: the agent.

mod display;
mod prove;
mod reloads;

use crate::cli::RunArgs;
use crate::commands::{UsageError, ending};
use crate::say;
use crate::signals::{stop_or_reload, stop_request};
use anyhow::bail;
use display::Display;
use lull_agent::config::Config;
use lull_agent::session::{Agent, Session, TurnError};
use lull_control::{AppId, Epoch, PlantError};
use reloads::{Hangup, Reloads};

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let mut config = Config::load(&args.config)?;
    take_arguments(&mut config, args);
    if config.agent.control && config.agent.http.is_none() {
        let what = "--control needs an address at which orders arrive: --http 127.0.0.1:7077";
        return Err(UsageError(what.to_owned()).into());
    }
    let exit_with = args.exit_with.as_deref().map(|name| app_named(&config, name)).transpose()?;
    let plan = args.prove.map(|time| prove::Plan::from_args(args, &config, time)).transpose()?;
    if plan.is_some() {
        // Orders of an operator would distort the comparison.
        config.agent.control = false;
    }
    let say = |text: &str| say::notice(text);
    // A comparison is of one config, and SIGHUP ends it.
    let stop = if plan.is_some() { stop_request()? } else { stop_or_reload()? };
    let reloads = Reloads::new(stop.clone());
    let agent = with_discovery(Agent::new(config.clone()), &config)?;
    let mut session = agent.dry_run(args.dry_run).stop(stop).notify(&say).start()?;
    if plan.is_none() {
        Reloads::announce(&session);
    }
    let seed = session.config().agent.seed();
    say(&format!("recording to {}; the seed is {seed}", session.record().display()));
    session.page().into_iter().for_each(say);
    let mut blocks = None;
    let ended = match plan {
        Some(plan) => prove::alternate(&mut session, args, plan, &mut blocks),
        None => control(&mut session, args, exit_with, &reloads),
    };
    let record = session.record().display().to_string();
    let mut proof = None;
    let closed = session.close_with(|| {
        proof = blocks.map(prove::Blocks::judge);
        let text = proof.as_ref().map(serde_json::to_string).transpose()?;
        Ok(text.map(|text| ("prove", text)))
    })?;
    closed.report_notices(&ended, &say)?;
    if let Some(proof) = &proof {
        prove::tell(proof, args.json)?;
    }
    ended?;
    say(&ending(&closed, &record));
    Ok(())
}

/// Hands in what finds apps while the agent runs.
#[cfg(feature = "fleet")]
fn with_discovery<'a>(agent: Agent<'a>, config: &Config) -> anyhow::Result<Agent<'a>> {
    Ok(match crate::commands::pods::discovery(config)? {
        Some(discovery) => agent.discovery(discovery),
        None => agent,
    })
}

/// This program was built without anything that finds apps; the agent refuses a config for it.
#[cfg(not(feature = "fleet"))]
fn with_discovery<'a>(agent: Agent<'a>, _: &Config) -> anyhow::Result<Agent<'a>> {
    Ok(agent)
}

/// Lets the command line overrule the config.
fn take_arguments(config: &mut Config, args: &RunArgs) {
    config.agent.http = args.http.or(config.agent.http);
    config.agent.control |= args.control;
    if args.shadow.is_some() {
        config.agent.shadow.clone_from(&args.shadow);
    }
}

fn app_named(config: &Config, name: &str) -> Result<usize, UsageError> {
    let index = config.apps.iter().position(|app| app.name == name);
    index.ok_or_else(|| {
        let names: Vec<_> = config.apps.iter().map(|app| app.name.as_str()).collect();
        UsageError(format!("--exit-with {name}: there are the apps {}", names.join(", ")))
    })
}

/// Runs epochs until a signal stops the run, the time is over, the app has ended that was to
/// end it, or nothing is left that Lull started or that could come back.
fn control(
    session: &mut Session,
    args: &RunArgs,
    exit_with: Option<usize>,
    reloads: &Reloads,
) -> anyhow::Result<()> {
    let mut display = Display::new(args.json);
    let phase = if args.dry_run { "dry-run" } else { "on" };
    let mut begin = None;
    let mut was_present = false;
    loop {
        let epoch = match session.turn(phase) {
            Ok(epoch) => epoch,
            Err(TurnError::Plant(PlantError::Stopped)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        display.show(session, &epoch)?;
        let start = epoch.seen.time.saturating_sub(epoch.seen.epoch);
        let elapsed = epoch.seen.time.saturating_sub(*begin.get_or_insert(start));
        if args.duration.is_some_and(|duration| elapsed >= duration) {
            return Ok(());
        }
        if let Some(app) = exit_with {
            let is_present = epoch.seen.apps[app].alive;
            // An app that Lull started and that has ended before it was observed does not return
            // either.
            let may_run = session.plant().may_run(AppId(app as u16));
            // A reload may remove the app before it had a process.
            let is_removed = session.apps()[app].is_removed();
            if !is_present && (was_present || is_removed || !may_run) {
                return Ok(());
            }
            was_present |= is_present;
        }
        check_alive(session, &epoch)?;
        if reloads.handle_hangup(session, args) == Hangup::Ends {
            return Ok(());
        }
    }
}

fn check_alive(session: &Session, epoch: &Epoch) -> anyhow::Result<()> {
    if session.is_over(epoch) {
        bail!("all apps have exited; their output is in {}", session.logs().display());
    }
    Ok(())
}
