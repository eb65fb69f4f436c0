//! Whether a request to register is accepted.

use super::newcomer::{Connection, TakenSlot};
use super::peer::{Peer, identify};
use super::{Offer, OwnerOf, Registrar, refuse};
use crate::apps::above_lull;
use lull_measure::Nanos;
use lull_measure::register::{Reason, Refusal, Request};
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// How long the templates of a user are known before `/etc/passwd` is read again.
const USERS_AGE_MAX: Nanos = Nanos::from_secs(10);
/// Average time between two registrations of one user: each makes the agent look for the
/// process's threads and children among all processes.
const INTERVAL: Nanos = Nanos::from_millis(250);
/// How far a user may be ahead of that: 64 registrations at once.
const AHEAD_MAX: Nanos = Nanos::from_secs(16);

/// The templates that each user may name, kept so that a flood of connections does not read
/// `/etc/passwd` each time, and the rate at which the user registers.
#[derive(Debug, Default)]
pub(super) struct Users {
    of: BTreeMap<u32, Vec<usize>>,
    read: Nanos,
    /// When the registrations of each user would be over at one an `INTERVAL`.
    paid_until: BTreeMap<u32, Nanos>,
}

impl Users {
    /// The numbers of the templates that a user may name.
    pub(super) fn offers(&mut self, uid: u32, time: Nanos, templates: &[Offer]) -> &[usize] {
        if time >= self.read.saturating_add(USERS_AGE_MAX) {
            self.read = time;
            self.of.clear();
            self.paid_until.retain(|_, until| *until > time);
        }
        self.of.entry(uid).or_insert_with(|| {
            let all = templates.iter().enumerate();
            all.filter(|(_, offer)| offer.users.is_match(uid)).map(|(number, _)| number).collect()
        })
    }

    /// Counts one registration of a user; false if the user registers too often.
    fn count(&mut self, uid: u32, time: Nanos) -> bool {
        let until = self.paid_until.entry(uid).or_insert(time);
        let next = (*until).max(time).saturating_add(INTERVAL);
        if next > time.saturating_add(AHEAD_MAX) {
            return false;
        }
        *until = next;
        true
    }
}

impl Registrar {
    /// Carries out a request. Returns the handle of a process that is registered by it, and
    /// `None` after a departure.
    ///
    /// # Errors
    /// The reason for the refusal; nothing has changed then.
    pub(super) fn decide(
        &mut self,
        connection: &mut Connection,
        request: Result<Request, Refusal>,
        owner: OwnerOf<'_>,
    ) -> Result<Option<OwnedFd>, Refusal> {
        match request? {
            Request::Register { template } => {
                self.slot(connection, template.as_deref(), owner).map(Some)
            }
            Request::Leave => match connection.slot.take() {
                Some(slot) => {
                    self.templates[slot.template].slots.free(slot.index);
                    Ok(None)
                }
                None => refuse(Reason::Process, "this connection has registered no process"),
            },
        }
    }

    fn slot(
        &mut self,
        connection: &mut Connection,
        name: Option<&str>,
        owner: OwnerOf<'_>,
    ) -> Result<OwnedFd, Refusal> {
        if let Some(app) = connection.app() {
            let message = format!("the process is registered as `{app}` already");
            return refuse(Reason::Registered, message);
        }
        let number = self.template(connection, name)?;
        let peer = identify(connection, &self.roots)?;
        self.check_process(connection, &peer)?;
        let mut slots = self.connections.values().filter_map(|one| one.slot.as_ref());
        if let Some(TakenSlot { app, .. }) = slots.find(|slot| slot.process == peer.process) {
            let message = format!("the process is registered as `{app}` by another connection");
            return refuse(Reason::Registered, message);
        }
        if let Some(app) = owner(peer.process) {
            let message = format!("the process belongs to app `{app}`, or an ancestor of it does");
            return refuse(Reason::Owned, message);
        }
        if !self.users.count(connection.uid(), self.served) {
            let message = format!("user {} registers too often: try again later", connection.uid());
            return refuse(Reason::Busy, message);
        }
        let slots = &self.templates[number].slots;
        let Some(index) = slots.take(peer.process) else {
            let (count, template) = (slots.count(), slots.template());
            let message = format!("all {count} apps of `{template}` have a process: raise `most`");
            return refuse(Reason::Full, message);
        };
        let app = format!("{}-{}", slots.template(), index + 1);
        let process = peer.process;
        connection.slot = Some(TakenSlot { template: number, index, process, app });
        Ok(peer.handle)
    }

    /// The number of the template that is meant, which the user may name.
    fn template(&mut self, of: &Connection, name: Option<&str>) -> Result<usize, Refusal> {
        let offered = self.users.offers(of.uid(), of.since, &self.templates).to_vec();
        let is_named = |number: &usize| {
            name.is_none_or(|name| self.templates[*number].slots.template() == name)
        };
        let named: Vec<usize> = offered.iter().copied().filter(is_named).collect();
        let names = || {
            let name = |number: &usize| format!("`{}`", self.templates[*number].slots.template());
            offered.iter().map(name).collect::<Vec<_>>().join(", ")
        };
        match (named.as_slice(), name) {
            ([one], _) => Ok(*one),
            (_, None) => refuse(Reason::Template, format!("name one of {}", names())),
            (_, Some(name)) if self.slots(name).is_some() => {
                let message = format!("user {} may not register as `{name}`", of.uid());
                refuse(Reason::User, message)
            }
            (_, Some(name)) => {
                let message = format!("there is no template `{name}`: name one of {}", names());
                refuse(Reason::Template, message)
            }
        }
    }

    /// Refuses processes that no app is made of, or whose threads may not be set.
    fn check_process(&self, of: &Connection, peer: &Peer) -> Result<(), Refusal> {
        if let Some(what) = above_lull(peer.process.pid, &self.roots) {
            let message = format!("the process is {what}, which cannot be an app");
            return refuse(Reason::Process, message);
        }
        if !geteuid().is_root() && of.uid() != geteuid().as_raw() {
            let message = "the agent is neither root nor of the same user, so that it may not set \
                           the process's threads";
            return refuse(Reason::Process, message);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_registers_64_times_at_once_then_four_times_a_second_and_others_as_before() {
        let (mut users, start) = (Users::default(), Nanos::from_secs(100));
        let at_once = (0..100).filter(|_| users.count(1000, start)).count();
        assert_eq!(at_once, 64);
        assert!(users.count(1001, start));
        let mut time = start;
        let later = (0..100).filter(|_| {
            time = time.saturating_add(Nanos::from_millis(50));
            users.count(1000, time)
        });
        assert_eq!(later.count(), 20);
    }

    #[test]
    fn users_that_have_not_registered_for_long_are_forgotten() {
        let mut users = Users::default();
        assert!(users.count(1000, Nanos::from_secs(100)));
        users.offers(1000, Nanos::from_secs(200), &[]);
        assert!(users.paid_until.is_empty());
    }
}
