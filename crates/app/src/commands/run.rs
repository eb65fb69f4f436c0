//! `lull run`: the agent.

use crate::cli::RunArgs;
use crate::commands::UsageError;
use crate::config::Config;
use crate::session::{Opening, Session, TurnError};
use crate::{say, status};
use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lull_control::{Epoch, PlantError, samples};
use lull_measure::Nanos;
use lull_measure::catalogue::Scope;
use std::io::{IsTerminal, Write};

/// How often a line goes to a stderr that is no terminal.
const PLAIN_PERIOD: Nanos = Nanos::from_secs(10);

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<()> {
    let mut config = Config::load(&args.config)?;
    config.agent.http = args.http.or(config.agent.http);
    config.agent.control |= args.control;
    config.agent.shadow = args.shadow.clone().or(config.agent.shadow);
    if config.agent.control && config.agent.http.is_none() {
        let what = "--control needs an address over which orders come: --http 127.0.0.1:7077";
        return Err(UsageError(what.to_owned()).into());
    }
    let say = |text: &str| say::told(text);
    let mut session =
        Opening { config, dry_run: args.dry_run, say: &say, adjust: &|_| {} }.open()?;
    say(&format!("recording to {}", session.record().display()));
    session.page().into_iter().for_each(say);
    let ended = control(&mut session, args);
    let record = session.record().display().to_string();
    session.close()?.tell(&ended, &say)?;
    ended?;
    say(&format!("knobs are as they were; the record is {record}"));
    Ok(())
}

/// Turns until told to stop, until the time is over, or until no app is left.
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
        if epoch.seen.apps.iter().all(|app| !app.alive) {
            bail!("all apps have exited; their output is in {}", session.logs().display());
        }
    }
}

/// Where epochs are shown.
struct Display {
    json: bool,
    bar: Option<ProgressBar>,
    plain_due: Nanos,
}

impl Display {
    fn new(json: bool) -> Self {
        let on_terminal = std::io::stderr().is_terminal() && !json;
        let bar = on_terminal.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { json, bar, plain_due: Nanos::ZERO }
    }

    fn show(&mut self, session: &Session, epoch: &Epoch) -> anyhow::Result<()> {
        for notice in session.plant().take_notices() {
            self.line(&notice);
        }
        if self.json {
            return print_epoch(session, epoch);
        }
        for entry in &epoch.entries {
            self.line(&status::describe(session.apps(), entry));
        }
        for line in session.shadow_lines() {
            self.line(&line);
        }
        let line = status::line(session.policy(), session.apps(), session.state(), epoch);
        match &self.bar {
            Some(bar) => bar.set_message(line),
            None if epoch.seen.time >= self.plain_due => {
                self.plain_due = epoch.seen.time + PLAIN_PERIOD;
                say::line(line);
            }
            None => {}
        }
        Ok(())
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => say::line(text),
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// One line of JSON an epoch: every metric by scope and label, and the journal.
fn print_epoch(session: &Session, epoch: &Epoch) -> anyhow::Result<()> {
    // An app may be called `0` or `machine`: each scope has its own names.
    let mut metrics = serde_json::json!({ "machine": {}, "apps": {}, "cores": {} });
    for sample in samples(session.apps(), session.state(), &epoch.seen, &epoch.standing) {
        let value = match &sample.value {
            Ok(value) => serde_json::json!(value),
            Err(why) => serde_json::json!({ "missing": why.reason }),
        };
        let of = match sample.metric.scope {
            Scope::Machine => &mut metrics["machine"],
            Scope::App => &mut metrics["apps"][&sample.label],
            Scope::Core => &mut metrics["cores"][&sample.label],
        };
        of[sample.metric.json_key()] = value;
    }
    let line = serde_json::json!({
        "epoch": epoch.number,
        "time_ns": epoch.seen.time.0,
        "safe": epoch.safe,
        "metrics": metrics,
        "journal": epoch.entries,
    });
    writeln!(std::io::stdout(), "{line}").context("cannot write to standard output")?;
    Ok(())
}
