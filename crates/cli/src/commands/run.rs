//! `lull run`: the agent.

mod display;
mod prove;

use crate::cli::RunArgs;
use crate::commands::UsageError;
use crate::say;
use crate::signals::stop_request;
use anyhow::bail;
use display::Display;
use lull_agent::config::Config;
use lull_agent::session::{Agent, Session, TurnError};
use lull_control::{Epoch, PlantError};

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let mut config = Config::load(&args.config)?;
    config.agent.http = args.http.or(config.agent.http);
    config.agent.control |= args.control;
    config.agent.shadow = args.shadow.clone().or(config.agent.shadow);
    if config.agent.control && config.agent.http.is_none() {
        let what = "--control needs an address over which orders come: --http 127.0.0.1:7077";
        return Err(UsageError(what.to_owned()).into());
    }
    let plan = args.prove.map(|time| prove::Plan::from_args(args, &config, time)).transpose()?;
    if plan.is_some() {
        // Orders of an operator would distort the comparison.
        config.agent.control = false;
    }
    let say = |text: &str| say::notice(text);
    let mut session =
        Agent::new(config).dry_run(args.dry_run).stop(stop_request()?).notify(&say).start()?;
    say(&format!("recording to {}", session.record().display()));
    session.page().into_iter().for_each(say);
    let mut blocks = None;
    let ended = match plan {
        Some(plan) => prove::alternate(&mut session, args, plan, &mut blocks),
        None => control(&mut session, args),
    };
    let record = session.record().display().to_string();
    let mut proof = None;
    let closed = session.close_with(|| {
        proof = blocks.map(prove::Blocks::judge);
        let text = proof.as_ref().map(serde_json::to_string).transpose()?;
        Ok(text.map(|text| ("prove", text)))
    })?;
    closed.tell(&ended, &say)?;
    if let Some(proof) = &proof {
        prove::tell(proof, args.json)?;
    }
    ended?;
    say(&format!("knobs are as they were; the record is {record}"));
    Ok(())
}

/// Runs epochs until a signal stops the run, the time is over, or no app is left.
fn control(session: &mut Session, args: &RunArgs) -> anyhow::Result<()> {
    let mut display = Display::new(args.json);
    let phase = if args.dry_run { "dry-run" } else { "on" };
    let mut begin = None;
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
        check_alive(session, &epoch)?;
    }
}

fn check_alive(session: &Session, epoch: &Epoch) -> anyhow::Result<()> {
    if epoch.seen.apps.iter().all(|app| !app.alive) {
        bail!("all apps have exited; their output is in {}", session.logs().display());
    }
    Ok(())
}
