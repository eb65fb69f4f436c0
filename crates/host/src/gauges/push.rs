//! Latency and progress that apps and load clients push over a unix socket.
//!
//! The messages are those of [`lull_measure::push`]. Many clients may push
//! for one app; their windows are merged. A window belongs to the epoch in
//! which it ended. One that arrives after its epoch was closed counts in the
//! next, so that no request is lost.
//!
//! Epochs may be shorter than windows. An epoch in which no window ended, but
//! one could not have been due yet (the last ended less than two lengths ago),
//! is not silence: it has no requests of its own and shows the rates and the
//! waiting requests of the last windows. After that, latency is missing.
//!
//! The lines are read and decoded by a [`PushSource`]: this process ([`PushGauge::listen`]), or
//! another one that has no right to write knobs ([`PushGauge::fed_by`]). The messages of either
//! are checked here.

mod client;
mod intake;
mod socket;
mod totals;
mod windows;

pub use client::ClientId;
pub use intake::{Intake, PushSource};
pub use socket::{PushSocket, PushSocketError};

use intake::{CLIENTS_MAX, OwnIntake};
use lull_control::{AppId, AppSpec, LatencyObservation, Progress};
use lull_measure::push::Message;
use lull_measure::{Gauge, Nanos};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use totals::Totals;
use windows::Windows;

/// Notices kept until they are taken; later ones are only counted.
const NOTICES_MAX: usize = 64;
/// Most clients that push for one app in one epoch, those included that have disconnected.
const PUSHERS_MAX: usize = 1024;
/// How far ahead of the agent's clock an instant may lie.
const AHEAD_MAX: Nanos = Nanos::from_secs(1);
/// Windows that ended longer ago say nothing about now.
const AGE_MAX: Nanos = Nanos::from_secs(10);

/// The agent's end of the push protocol.
#[derive(Debug)]
pub struct PushGauge {
    source: Box<dyn PushSource>,
    table: Table,
    notices: Notices,
    /// Whether the last drain found that nothing had been pushed.
    is_silent: bool,
}

/// The apps, and the reports pushed for each.
#[derive(Debug)]
struct Table {
    names: BTreeMap<String, AppId>,
    apps: Vec<Pushed>,
    /// Clients of which a message was ignored.
    ignored: BTreeSet<u64>,
}

/// The reports pushed for one app.
#[derive(Debug, Default)]
struct Pushed {
    latency: Windows,
    progress: Totals,
}

/// Errors for the journal.
#[derive(Debug, Default)]
struct Notices {
    texts: Vec<String>,
    unsaid: u64,
}

/// Instants that decide where a message belongs, `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy)]
struct Clock {
    now: Nanos,
    /// End of the current epoch.
    deadline: Nanos,
}

impl PushGauge {
    /// Listens at `path`, which only the agent's user may write to, and decodes in this process.
    ///
    /// A socket that a killed agent left there is replaced.
    ///
    /// # Errors
    /// If another agent listens there, or the socket cannot be made.
    pub fn listen(path: &Path, apps: &[AppSpec]) -> Result<Self, PushSocketError> {
        let socket = PushSocket::bind(path)?;
        let listener = socket.listener().try_clone();
        let failed = |source| PushSocketError::Kernel { path: path.to_owned(), source };
        let intake = Intake::accepting(listener.map_err(failed)?);
        Ok(Self::fed_by(Box::new(OwnIntake { socket, intake }), apps))
    }

    /// Takes the messages of a source.
    pub fn fed_by(source: Box<dyn PushSource>, apps: &[AppSpec]) -> Self {
        let names = lull_control::numbered(apps).map(|(id, app)| (app.name.clone(), id));
        let table = Table {
            names: names.collect(),
            apps: apps.iter().map(|_| Pushed::default()).collect(),
            ignored: BTreeSet::new(),
        };
        Self { source, table, notices: Notices::default(), is_silent: false }
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        self.source.path()
    }

    /// Takes in all that has been pushed, without waiting.
    ///
    /// `deadline` is the end of the current epoch: windows that end later wait
    /// for the next. A client that breaks the protocol is dropped and noticed.
    pub fn drain(&mut self, now: Nanos, deadline: Nanos) {
        let clock = Clock { now, deadline };
        let Self { source, table, notices, is_silent } = self;
        let mut ignored = Vec::new();
        let mut is_empty = true;
        let mut take = |client: ClientId, message: Message| {
            is_empty = false;
            let is_recent = table.take(client.number, message, clock)?;
            if !is_recent && table.is_first_ignored(client.number) {
                ignored.push(client);
            }
            Ok(())
        };
        let has_all = source.drain(&mut take, &mut |text| notices.add(text));
        *is_silent = is_empty && has_all;
        for client in ignored {
            let what = "pushes windows that ended more than 10 s ago, which are ignored";
            notices.add(format!("{client} {what}"));
        }
    }

    /// Whether the last drain found that nothing had been pushed.
    pub(crate) const fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Latency of an app in the epoch that ended at `deadline`; starts the next.
    pub fn latency(&mut self, app: AppId, deadline: Nanos) -> Gauge<LatencyObservation> {
        self.table.apps[app.index()].latency.harvest(deadline)
    }

    /// Progress of an app in the epoch that ended at `deadline`; starts the next.
    pub fn progress(&mut self, app: AppId, deadline: Nanos) -> Gauge<Progress> {
        self.table.apps[app.index()].progress.harvest(deadline)
    }

    /// Accepts reports for an app of this name from now on, and discards those for the app that had
    /// this id.
    pub fn add_app(&mut self, app: AppId, name: &str) {
        self.remove_app(app);
        let count = self.table.apps.len().max(app.index() + 1);
        self.table.apps.resize_with(count, Pushed::default);
        self.table.names.insert(name.to_owned(), app);
    }

    /// Refuses reports for an app from now on, and discards earlier ones.
    pub fn remove_app(&mut self, app: AppId) {
        self.table.names.retain(|_, one| *one != app);
        if let Some(pushed) = self.table.apps.get_mut(app.index()) {
            *pushed = Pushed::default();
        }
    }

    /// Returns the errors since the last call, for the journal.
    pub fn take_notices(&mut self) -> Vec<String> {
        let Notices { mut texts, unsaid } = std::mem::take(&mut self.notices);
        if unsaid > 0 {
            texts.push(format!("{unsaid} more push clients were dropped"));
        }
        texts
    }
}

impl Notices {
    fn add(&mut self, text: String) {
        if self.texts.len() < NOTICES_MAX {
            self.texts.push(text);
        } else {
            self.unsaid += 1;
        }
    }
}

impl Table {
    /// Files a message; `false` if it is too old to count.
    fn take(&mut self, client: u64, message: Message, clock: Clock) -> Result<bool, String> {
        let app = *self.names.get(message.app()).ok_or_else(|| {
            let known: Vec<_> = self.names.keys().map(String::as_str).collect();
            format!("no app is called `{}`: the apps are {}", message.app(), known.join(", "))
        })?;
        let pushed = &mut self.apps[app.index()];
        match message {
            Message::Latency(window) => {
                let end = window.start_ns.saturating_add(window.length_ns);
                let recent = is_recent(end, clock.now)?;
                if recent {
                    pushed.latency.add(client, *window, clock.deadline)?;
                }
                Ok(recent)
            }
            Message::Progress(progress) => {
                let recent = is_recent(progress.time_ns, clock.now)?;
                if recent {
                    pushed.progress.add(client, &progress)?;
                }
                Ok(recent)
            }
        }
    }

    /// Whether this is the first time that a message of a client is ignored, as far as is known:
    /// the oldest of many clients are forgotten.
    fn is_first_ignored(&mut self, client: u64) -> bool {
        let is_first = self.ignored.insert(client);
        if self.ignored.len() > CLIENTS_MAX {
            self.ignored.pop_first();
        }
        is_first
    }
}

/// Refuses one more client of an app where many push already.
fn check_room<T>(pushers: &BTreeMap<u64, T>, client: u64) -> Result<(), String> {
    if pushers.len() >= PUSHERS_MAX && !pushers.contains_key(&client) {
        return Err(format!(
            "{PUSHERS_MAX} clients have pushed for this app in this epoch already"
        ));
    }
    Ok(())
}

/// Whether an instant is recent enough to count; an error if it lies ahead.
fn is_recent(end: Nanos, now: Nanos) -> Result<bool, String> {
    if end > now.saturating_add(AHEAD_MAX) {
        let ahead = end.saturating_sub(now);
        return Err(format!("it reports {ahead} ahead of time: instants are CLOCK_MONOTONIC"));
    }
    Ok(now.saturating_sub(end) <= AGE_MAX)
}

#[cfg(test)]
mod tests;
