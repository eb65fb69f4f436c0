//! Which Events are published: each once in a while, and few at a time.
//!
//! Events are kept in the cluster's store, where a node that sends many harms all. The same text
//! about the same object is published again after [`REPEAT`] at the earliest; the node publishes
//! [`BURST`] warnings at once and one a [`GAP`] in the long run, and as many other Events, so that
//! the arrival of many pods does not hold warnings back. What exceeds these rates waits, as does
//! what the API server did not take: at most [`WAITING_MAX`] Events, and the latest of each object
//! and topic.

use crate::message::Kind;
use crate::table::PodEvent;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// Shortest time between two Events of the same text about an object.
const REPEAT: Duration = Duration::from_secs(600);
/// Most Events at once.
const BURST: u32 = 25;
/// Time in which one more may be published.
const GAP: Duration = Duration::from_secs(6);
/// Most texts that are remembered.
const REMEMBERED_MAX: usize = 4_096;
/// Most Events that wait.
const WAITING_MAX: usize = 1_024;

/// The limits of Events, and the Events that wait for them.
#[derive(Debug)]
pub(crate) struct EventLimits {
    /// When each text was published: by the UID of its object, its kind and itself.
    published: BTreeMap<(String, Kind, String), Instant>,
    warnings: Budget,
    others: Budget,
    /// The oldest first.
    waiting: VecDeque<PodEvent>,
    /// Events that began to wait since the last report.
    added: usize,
    /// Events that were dropped since then, because too many wait.
    dropped: usize,
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

    fn fill(&mut self, now: Instant) {
        let new = now.saturating_duration_since(self.filled).as_secs() / GAP.as_secs();
        let new = u32::try_from(new).unwrap_or(u32::MAX);
        self.filled += GAP.saturating_mul(new);
        self.left = self.left.saturating_add(new).min(BURST);
    }
}

impl EventLimits {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            published: BTreeMap::new(),
            warnings: Budget::new(now),
            others: Budget::new(now),
            waiting: VecDeque::new(),
            added: 0,
            dropped: 0,
        }
    }

    /// Adds an Event, unless the same one waits or was published a short time ago. It replaces one
    /// that waits and that it makes obsolete.
    pub(crate) fn add(&mut self, event: PodEvent, now: Instant) {
        if self.waiting.contains(&event) {
            return;
        }
        self.waiting.retain(|one| !is_of_one_topic(one, &event));
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < REPEAT;
        if !self.published.get(&key(&event)).is_some_and(is_recent) {
            self.wait(event);
        }
    }

    /// Adds an Event again that was due and could not be sent, unless a later one has made it
    /// obsolete.
    pub(crate) fn put_back(&mut self, event: PodEvent) {
        let key = key(&event);
        let at = self.published.remove(&key);
        let is_later = |((uid, kind, _), other): (&(String, Kind, String), &Instant)| {
            *uid == key.0 && topic(*kind) == topic(key.1) && at.is_none_or(|at| at < *other)
        };
        let is_obsolete = self.waiting.iter().any(|one| is_of_one_topic(one, &event))
            || self.published.iter().any(is_later);
        if !is_obsolete {
            self.wait(event);
        }
    }

    fn wait(&mut self, event: PodEvent) {
        if self.waiting.len() >= WAITING_MAX {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.waiting.push_back(event);
        self.added += 1;
    }

    /// Returns the Events that are to be published now, and drops those of objects that are gone.
    pub(crate) fn due(
        &mut self,
        now: Instant,
        is_known: impl Fn(&PodEvent) -> bool,
    ) -> Vec<PodEvent> {
        let Self { warnings, others, waiting, .. } = self;
        warnings.fill(now);
        others.fill(now);
        let mut due = Vec::new();
        // Hundreds may wait, and this is called at each message: those that go on waiting stay
        // where they are.
        waiting.retain(|event| {
            let budget = if event.kind == Kind::Managed { &mut *others } else { &mut *warnings };
            if budget.left == 0 {
                return true;
            }
            if is_known(event) {
                budget.left -= 1;
                due.push(event.clone());
            }
            false
        });
        due.iter().for_each(|event| self.remember(event, now));
        due
    }

    fn remember(&mut self, event: &PodEvent, now: Instant) {
        if self.published.len() >= REMEMBERED_MAX {
            self.published.retain(|_, at| now.saturating_duration_since(*at) < REPEAT);
        }
        if self.published.len() < REMEMBERED_MAX {
            self.published.insert(key(event), now);
        }
    }

    /// Reports, once, the Events that began to wait and those that were dropped.
    pub(crate) fn report(&mut self) -> Option<String> {
        let waiting = self.waiting.len();
        let added = std::mem::take(&mut self.added).min(waiting);
        let dropped = std::mem::take(&mut self.dropped);
        (added + dropped > 0).then(|| {
            format!(
                "{waiting} Events wait to be published, because a node publishes few at once; \
                 {dropped} older ones were dropped"
            )
        })
    }
}

fn key(event: &PodEvent) -> (String, Kind, String) {
    (event.regarding.uid.clone().unwrap_or_default(), event.kind, event.text.clone())
}

/// Events of one topic make each other obsolete: a pod that is managed again has no other reason
/// for not being managed.
const fn topic(kind: Kind) -> Kind {
    match kind {
        Kind::Managed => Kind::Unmanaged,
        other => other,
    }
}

fn is_of_one_topic(one: &PodEvent, other: &PodEvent) -> bool {
    one.regarding.uid == other.regarding.uid && topic(one.kind) == topic(other.kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ObjectReference;

    fn event(uid: &str, text: &str) -> PodEvent {
        let regarding = ObjectReference { uid: Some(uid.to_owned()), ..ObjectReference::default() };
        PodEvent { regarding, kind: Kind::SafeState, text: text.to_owned() }
    }

    fn due(limits: &mut EventLimits, now: Instant) -> usize {
        limits.due(now, |_| true).len()
    }

    #[test]
    fn the_same_text_about_a_pod_is_published_once_in_ten_minutes() {
        let begin = Instant::now();
        let mut limits = EventLimits::new(begin);
        let mut publishes = |event: &PodEvent, now| {
            limits.add(event.clone(), now);
            due(&mut limits, now) == 1
        };
        let one = event("1", "silent");
        assert!(publishes(&one, begin));
        assert!(!publishes(&one, begin + REPEAT - Duration::from_secs(1)));
        assert!(publishes(&event("2", "silent"), begin), "another pod");
        assert!(publishes(&event("1", "other"), begin), "another text");
        assert!(publishes(&PodEvent { kind: Kind::Managed, ..one.clone() }, begin));
        assert!(publishes(&one, begin + REPEAT));
        assert_eq!(limits.report(), None, "a repetition does not wait");
    }

    #[test]
    fn what_exceeds_the_rate_is_published_later() {
        let begin = Instant::now();
        let mut limits = EventLimits::new(begin);
        (0..100).for_each(|number| limits.add(event(&number.to_string(), "silent"), begin));
        assert_eq!(due(&mut limits, begin), BURST as usize);
        assert!(limits.report().unwrap().starts_with("75 Events wait"));
        assert_eq!(limits.report(), None, "reported once");
        limits.add(PodEvent { kind: Kind::Managed, ..event("1", "as app `a`") }, begin);
        assert_eq!(due(&mut limits, begin), 1, "arrivals have a budget of their own");
        assert_eq!(due(&mut limits, begin + GAP * 3), 3);
        limits.add(event("99", "silent"), begin + GAP * 3);
        let later = begin + GAP * 3 + Duration::from_secs(86_400);
        let rest: Vec<PodEvent> = (0..3)
            .flat_map(|day| limits.due(later + Duration::from_secs(86_400) * day, |_| true))
            .collect();
        assert_eq!(rest.len(), 72, "each once");
        assert_eq!(rest[0], event("28", "silent"), "the oldest first");
    }

    #[test]
    fn events_that_go_on_waiting_are_not_moved() {
        let begin = Instant::now();
        let mut limits = EventLimits::new(begin);
        (0..100).for_each(|number| limits.add(event(&number.to_string(), "silent"), begin));
        let last = |limits: &EventLimits| std::ptr::from_ref(limits.waiting.back().unwrap());
        due(&mut limits, begin);
        let before = last(&limits);
        assert_eq!(due(&mut limits, begin + GAP / 2), 0);
        assert_eq!((last(&limits), limits.waiting.len()), (before, 75));
    }

    #[test]
    fn only_the_latest_state_of_an_object_waits_and_of_none_that_is_gone() {
        let begin = Instant::now();
        let mut limits = EventLimits::new(begin);
        let unmanaged = PodEvent { kind: Kind::Unmanaged, ..event("1", "p99=fast") };
        let managed = PodEvent { kind: Kind::Managed, ..event("1", "as app `a`") };
        limits.add(unmanaged, begin);
        limits.add(managed.clone(), begin);
        limits.add(event("2", "silent"), begin);
        assert_eq!(limits.due(begin, |one| *one != event("2", "silent")), [managed]);
        assert!(limits.waiting.is_empty());
    }

    #[test]
    fn what_could_not_be_sent_is_due_again_unless_it_is_obsolete() {
        let begin = Instant::now();
        let mut limits = EventLimits::new(begin);
        let unmanaged = PodEvent { kind: Kind::Unmanaged, ..event("1", "p99=fast") };
        let publish = |limits: &mut EventLimits, event: &PodEvent, now| {
            limits.add(event.clone(), now);
            assert_eq!(limits.due(now, |_| true), std::slice::from_ref(event));
        };
        publish(&mut limits, &unmanaged, begin);
        limits.put_back(unmanaged.clone());
        assert_eq!(limits.due(begin, |_| true), std::slice::from_ref(&unmanaged));
        let managed = PodEvent { kind: Kind::Managed, ..event("1", "as app `a`") };
        publish(&mut limits, &managed, begin + GAP);
        limits.put_back(unmanaged);
        assert_eq!(due(&mut limits, begin + GAP), 0, "the pod is managed by now");
    }

    #[test]
    fn what_waits_and_what_is_remembered_is_bounded() {
        let mut now = Instant::now();
        let mut limits = EventLimits::new(now);
        let all = WAITING_MAX + BURST as usize + 5;
        (0..all).for_each(|number| limits.add(event(&number.to_string(), "silent"), now));
        assert_eq!(limits.waiting.len(), WAITING_MAX);
        assert!(limits.report().unwrap().ends_with("; 30 older ones were dropped"));
        for number in 0..REMEMBERED_MAX + 100 {
            now += GAP;
            limits.add(event(&number.to_string(), "loud"), now);
            assert_eq!(due(&mut limits, now).min(1), 1);
            assert!(limits.published.len() <= REMEMBERED_MAX);
        }
    }
}
