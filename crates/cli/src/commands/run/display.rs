//! Where the epochs of a run are shown: a status line, or JSON.

use crate::say;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lull_agent::session::Session;
use lull_agent::status;
use lull_control::{Epoch, samples};
use lull_measure::catalogue::Scope;
use lull_measure::{Nanos, escape};
use std::io::{IsTerminal, Write};

/// Interval of status lines if stderr is not a terminal.
const PLAIN_PERIOD: Nanos = Nanos::from_secs(10);

/// Where epochs are shown.
pub(super) struct Display {
    json: bool,
    bar: Option<ProgressBar>,
    plain_due: Nanos,
}

impl Display {
    pub(super) fn new(json: bool) -> Self {
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

    /// Shows one epoch; `of` names the block or phase that it is part of.
    pub(super) fn show(&mut self, session: &Session, epoch: &Epoch) -> anyhow::Result<()> {
        let mut lines = session.take_notices();
        if self.json {
            self.lines(&lines);
            return print_epoch(session, epoch);
        }
        lines.extend(epoch.entries.iter().map(|entry| status::describe(session.apps(), entry)));
        lines.extend(session.shadow_lines());
        self.lines(&lines);
        let line = || status::line(session.policy(), session.apps(), session.state(), epoch);
        match &self.bar {
            Some(bar) => bar.set_message(escape::visible_line(&line()).into_owned()),
            None if epoch.seen.time >= self.plain_due => {
                self.plain_due = epoch.seen.time + PLAIN_PERIOD;
                say::line(line());
            }
            None => {}
        }
        Ok(())
    }

    fn lines(&self, texts: &[String]) {
        match &self.bar {
            Some(bar) => texts.iter().for_each(|text| bar.println(escape::visible(text))),
            None => say::lines(texts),
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

/// Prints one line of JSON an epoch: every metric by scope and label, and the journal.
fn print_epoch(session: &Session, epoch: &Epoch) -> anyhow::Result<()> {
    // An app may have the name `0` or `machine`, so that each scope has its own names.
    let mut metrics = serde_json::json!({
        "machine": {},
        "apps": {},
        "cores": {},
        "client_classes": {},
        "client_accounts": {},
    });
    for sample in samples(session.apps(), session.state(), &epoch.seen, &epoch.assessment) {
        let value = match &sample.value {
            Ok(value) => serde_json::json!(value),
            Err(why) => serde_json::json!({ "missing": why.reason }),
        };
        let of = match sample.metric.scope {
            Scope::Machine => &mut metrics["machine"],
            Scope::App => &mut metrics["apps"][sample.label.as_str()],
            Scope::Core => &mut metrics["cores"][sample.label.as_str()],
            Scope::ClientClass => &mut metrics["client_classes"][sample.label.as_str()],
            Scope::ClientAccount => &mut metrics["client_accounts"][sample.label.as_str()],
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
    let line = line.to_string();
    writeln!(std::io::stdout(), "{}", escape::json(&line))
        .context("cannot write to standard output")?;
    Ok(())
}
