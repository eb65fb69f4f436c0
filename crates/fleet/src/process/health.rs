//! Whether the API server answers, as it is reported to the agent: each change once, and a sign
//! of life at most once a second.

use crate::message::{FromWatcher, one_line};
use kube::runtime::watcher::Event;
use std::time::{Duration, Instant};

/// Shortest time between two signs of life.
const HEARD_EVERY: Duration = Duration::from_secs(1);

/// The state of the connection to the API server.
#[derive(Debug, Default)]
pub(super) struct Health {
    lost: Option<String>,
    /// Whether it was an answer that no other answer outweighs.
    is_refused: bool,
    heard: Option<Instant>,
    messages: Vec<FromWatcher>,
}

impl Health {
    /// Notes that the server has answered.
    pub(super) fn note_answer(&mut self, now: Instant) {
        let was_lost = self.lost.take().is_some();
        self.is_refused = false;
        let is_due = |at: Instant| now.saturating_duration_since(at) >= HEARD_EVERY;
        if was_lost || self.heard.is_none_or(is_due) {
            self.heard = Some(now);
            self.messages.push(FromWatcher::Heard);
        }
    }

    /// A watch has an event. It makes `Init` by itself, before it sends a request.
    pub(super) fn note_event<K>(&mut self, event: &Event<K>) {
        if !matches!(event, Event::Init) {
            self.note_answer(Instant::now());
        }
    }

    /// Notes that the server did not answer, or refused what the watches need.
    pub(super) fn lose(&mut self, why: String, is_refused: bool) {
        self.is_refused = is_refused;
        let why = one_line(why);
        if self.lost.as_ref() != Some(&why) {
            self.messages.push(FromWatcher::Lost(why.clone()));
            self.lost = Some(why);
        }
    }

    /// Something else for the journal.
    pub(super) fn note(&mut self, text: String) {
        self.messages.push(FromWatcher::Notice(one_line(text)));
    }

    /// Whether the container runtime reports its containers.
    pub(super) fn report_runtime(&mut self, is_followed: bool) {
        self.messages.push(FromWatcher::Runtime(is_followed));
    }

    pub(super) const fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Whether it answers, and refuses what the watches need. They begin again by themselves.
    pub(super) const fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Returns, once, what the agent has to know.
    pub(super) fn take(&mut self) -> Vec<FromWatcher> {
        std::mem::take(&mut self.messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_reported_once() {
        let begin = Instant::now();
        let mut health = Health::default();
        health.note_answer(begin);
        health.note_answer(begin + HEARD_EVERY / 2);
        assert!(matches!(&health.take()[..], [FromWatcher::Heard]));
        health.note_answer(begin + HEARD_EVERY);
        assert!(matches!(&health.take()[..], [FromWatcher::Heard]));
        health.lose("refused".to_owned(), true);
        health.lose("refused".to_owned(), true);
        assert!(health.is_refused());
        assert!(matches!(&health.take()[..], [FromWatcher::Lost(why)] if why == "refused"));
        assert!(health.is_lost());
        health.note_answer(begin + HEARD_EVERY);
        assert!(matches!(&health.take()[..], [FromWatcher::Heard]), "at once after a loss");
        assert!(!health.is_lost() && !health.is_refused() && health.take().is_empty());
    }
}
