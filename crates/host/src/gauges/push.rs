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

mod client;
mod socket;
mod totals;
mod windows;

pub use socket::PushSocketError;

use client::{Client, Drained};
use lull_control::{AppId, AppSpec, LatencySeen, Progress};
use lull_measure::push::Message;
use lull_measure::{Gauge, Nanos};
use socket::Socket;
use std::collections::BTreeMap;
use std::path::Path;
use totals::Totals;
use windows::Windows;

/// Clients served at once; each may hold up to one line of memory.
const CLIENTS_MAX: usize = 256;
/// Notices kept until they are taken; later ones are only counted.
const NOTICES_MAX: usize = 64;
/// How far ahead of the agent's clock an instant may lie.
const AHEAD_MAX: Nanos = Nanos::from_secs(1);
/// Windows that ended longer ago say nothing about now.
const AGE_MAX: Nanos = Nanos::from_secs(10);

/// The agent's end of the push protocol.
#[derive(Debug)]
pub struct PushGauge {
    socket: Socket,
    clients: Vec<Client>,
    next_client: u64,
    names: BTreeMap<String, AppId>,
    apps: Vec<Pushed>,
    notices: Vec<String>,
    unsaid: u64,
}

/// What was pushed for one app.
#[derive(Debug, Default)]
struct Pushed {
    latency: Windows,
    progress: Totals,
}

/// Instants that decide where a message belongs, `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy)]
struct Clock {
    now: Nanos,
    /// End of the current epoch.
    deadline: Nanos,
}

impl PushGauge {
    /// Listens at `path`, which only the agent's user may write to.
    ///
    /// A socket that a killed agent left there is replaced.
    ///
    /// # Errors
    /// If another agent listens there, or the socket cannot be made.
    pub fn listen(path: &Path, apps: &[AppSpec]) -> Result<Self, PushSocketError> {
        let names = lull_control::numbered(apps).map(|(id, app)| (app.name.clone(), id));
        Ok(Self {
            socket: Socket::bind(path)?,
            clients: Vec::new(),
            next_client: 0,
            names: names.collect(),
            apps: apps.iter().map(|_| Pushed::default()).collect(),
            notices: Vec::new(),
            unsaid: 0,
        })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        self.socket.path()
    }

    /// Takes in all that has been pushed, without waiting.
    ///
    /// `deadline` is the end of the current epoch: windows that end later wait
    /// for the next. A client that breaks the protocol is dropped and noticed.
    pub fn drain(&mut self, now: Nanos, deadline: Nanos) {
        self.accept();
        let clock = Clock { now, deadline };
        for mut client in std::mem::take(&mut self.clients) {
            let id = client.id;
            let mut ignored = 0;
            let drained = client.drain(|message| {
                ignored += u64::from(!self.take(id, message, clock)?);
                Ok(())
            });
            if ignored > 0 && client.is_first_ignored() {
                let what = "pushes what ended more than 10 s ago, which is ignored";
                self.notice(format!("{client} {what}"));
            }
            match drained {
                Drained::Open => self.clients.push(client),
                Drained::Closed => {}
                Drained::Bad(why) => self.notice(format!("{client} was dropped: {why}")),
            }
        }
    }

    /// Latency of an app in the epoch that ended at `deadline`; starts the next.
    pub fn latency(&mut self, app: AppId, deadline: Nanos) -> Gauge<LatencySeen> {
        self.apps[app.index()].latency.harvest(deadline)
    }

    /// Progress of an app in the epoch that ended at `deadline`; starts the next.
    pub fn progress(&mut self, app: AppId, deadline: Nanos) -> Gauge<Progress> {
        self.apps[app.index()].progress.harvest(deadline)
    }

    /// What went wrong since the last call, for the journal.
    pub fn take_notices(&mut self) -> Vec<String> {
        let unsaid = std::mem::take(&mut self.unsaid);
        let mut notices = std::mem::take(&mut self.notices);
        if unsaid > 0 {
            notices.push(format!("{unsaid} more push clients were dropped"));
        }
        notices
    }

    fn notice(&mut self, text: String) {
        if self.notices.len() < NOTICES_MAX {
            self.notices.push(text);
        } else {
            self.unsaid += 1;
        }
    }

    fn accept(&mut self) {
        while let Some(stream) = self.socket.accept() {
            let client = Client::new(self.next_client, stream);
            self.next_client += 1;
            if self.clients.len() < CLIENTS_MAX {
                self.clients.push(client);
            } else {
                self.notice(format!("{client} was dropped: {CLIENTS_MAX} clients push already"));
            }
        }
    }

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
                    pushed.latency.add(client, *window, clock.deadline);
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
