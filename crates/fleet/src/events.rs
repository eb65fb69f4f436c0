//! Which Events are published on pods: each once in a while, and few at a time.
//!
//! Events are kept in the cluster's store, where a node that sends many harms all. The same text
//! about the same pod is published again after [`REPEAT`] at the earliest; the node publishes
//! [`BURST`] warnings at once and one a [`GAP`] in the long run, and as many other Events, so that
//! the arrival of many pods does not hold warnings back. What is not published is in the agent's
//! journal all the same.

use crate::message::Kind;
use crate::table::PodEvent;
use kube::runtime::events::{Event, EventType};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Shortest time between two Events of the same text about a pod.
const REPEAT: Duration = Duration::from_secs(600);
/// Most Events at once.
const BURST: u32 = 25;
/// Time in which one more may be published.
const GAP: Duration = Duration::from_secs(6);
/// Most texts that are remembered.
const REMEMBERED_MAX: usize = 4_096;

/// The limits of Events.
#[derive(Debug)]
pub(crate) struct EventLimits {
    said: BTreeMap<(String, Kind, String), Instant>,
    warnings: Budget,
    others: Budget,
    /// Events that the rate has held back since the last [`EventLimits::take_held`].
    held: u64,
}

/// How many Events of one kind may be published.
#[derive(Debug)]
struct Budget {
    left: u32,
    filled: Instant,
}

impl Budget {
    const fn new(now: Instant) -> Self {
        Self { left: BURST, filled: now }
    }

    /// Takes one, if there is one.
    fn take(&mut self, now: Instant) -> bool {
        let new = now.saturating_duration_since(self.filled).as_secs() / GAP.as_secs();
        let new = u32::try_from(new).unwrap_or(u32::MAX);
        self.filled += GAP.saturating_mul(new);
        self.left = self.left.saturating_add(new).min(BURST);
        let has_one = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has_one
    }
}

impl EventLimits {
    pub(crate) const fn new(now: Instant) -> Self {
        let (warnings, others) = (Budget::new(now), Budget::new(now));
        Self { said: BTreeMap::new(), warnings, others, held: 0 }
    }

    /// Whether an Event may be published now; notes that it is.
    pub(crate) fn admit(&mut self, event: &PodEvent, now: Instant) -> bool {
        let uid = event.regarding.uid.clone().unwrap_or_default();
        let key = (uid, event.kind, event.text.clone());
        let since = |at: &Instant| now.saturating_duration_since(*at);
        if self.said.get(&key).is_some_and(|at| since(at) < REPEAT) {
            return false;
        }
        let is_warning = event.kind != Kind::Managed;
        let budget = if is_warning { &mut self.warnings } else { &mut self.others };
        if !budget.take(now) {
            self.held += 1;
            return false;
        }
        if self.said.len() >= REMEMBERED_MAX {
            self.said.retain(|_, at| since(at) < REPEAT);
        }
        if self.said.len() < REMEMBERED_MAX {
            self.said.insert(key, now);
        }
        true
    }

    /// Returns, once, how many Events were held back by the rate.
    pub(crate) fn take_held(&mut self) -> u64 {
        std::mem::take(&mut self.held)
    }
}

/// An Event as the API server takes it.
pub(crate) fn described(event: &PodEvent) -> Event {
    let (type_, reason, action) = match event.kind {
        Kind::Managed => (EventType::Normal, "LullManaged", "Manage"),
        Kind::Unmanaged => (EventType::Warning, "LullUnmanaged", "LeaveAlone"),
        Kind::SafeState => (EventType::Warning, "LullSafeState", "Protect"),
        Kind::KnobRefused => (EventType::Warning, "LullKnobRefused", "Steer"),
        Kind::ForeignWriter => (EventType::Warning, "LullForeignWriter", "LeaveAlone"),
    };
    Event {
        type_,
        reason: reason.to_owned(),
        note: Some(event.text.clone()),
        action: action.to_owned(),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ObjectReference;

    fn event(uid: &str, text: &str) -> PodEvent {
        let regarding = ObjectReference { uid: Some(uid.to_owned()), ..ObjectReference::default() };
        PodEvent { regarding, kind: Kind::SafeState, text: text.to_owned() }
    }

    #[test]
    fn the_same_text_about_a_pod_is_published_once_in_ten_minutes() {
        let begin = Instant::now();
        let mut limits = EventLimits::new(begin);
        let one = event("1", "silent");
        assert!(limits.admit(&one, begin));
        assert!(!limits.admit(&one, begin + REPEAT - Duration::from_secs(1)));
        assert!(limits.admit(&event("2", "silent"), begin), "another pod");
        assert!(limits.admit(&event("1", "other"), begin), "another text");
        assert!(limits.admit(&PodEvent { kind: Kind::Managed, ..one.clone() }, begin));
        assert!(limits.admit(&one, begin + REPEAT));
        assert_eq!(limits.take_held(), 0, "a repetition is not held back by the rate");
    }

    #[test]
    fn a_storm_is_held_back_and_counted() {
        let begin = Instant::now();
        let mut limits = EventLimits::new(begin);
        let admitted = |limits: &mut EventLimits, from: u32, now| {
            let events = (from..from + 100).map(|number| event(&number.to_string(), "silent"));
            events.filter(|event| limits.admit(event, now)).count()
        };
        assert_eq!(admitted(&mut limits, 0, begin), BURST as usize);
        assert_eq!(limits.take_held(), 75);
        let arrival = PodEvent { kind: Kind::Managed, ..event("1", "as app `a`") };
        assert!(limits.admit(&arrival, begin), "arrivals have a budget of their own");
        let later = begin + GAP * 3;
        assert_eq!(admitted(&mut limits, 200, later), 3);
        let much_later = later + Duration::from_secs(86_400);
        assert_eq!(admitted(&mut limits, 400, much_later), BURST as usize);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut now = Instant::now();
        let mut limits = EventLimits::new(now);
        for number in 0..REMEMBERED_MAX + 100 {
            now += GAP;
            assert!(limits.admit(&event(&number.to_string(), "silent"), now));
            assert!(limits.said.len() <= REMEMBERED_MAX);
        }
    }
}
