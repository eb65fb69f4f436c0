//! Tails that another program computes and that a thread of the agent requests.
//!
//! The control loop never waits for that program: it takes the replies that have
//! arrived by the end of an epoch. If no new tail is due yet, the epoch has no
//! request of its own and is not treated as silent. After `patience` without a
//! tail, latency is missing.
//!
//! A program that computes from old data still replies, with a tail that does not change or is
//! none. So the age of the data may be requested beside the tail: without it, data that has
//! stopped cannot be distinguished from an app without requests.
//!
//! An app may become another workload ([`Generation`]): replies about the former one do not count.

use lull_control::{LatencyObservation, ReportedTail};
use lull_measure::{Gauge, Missing, Nanos, Percentile};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// The number of the workload that an app is, in order.
#[derive(Debug, Clone, Default)]
pub struct Generation(Arc<AtomicU64>);

impl Generation {
    /// The app is another workload from now on.
    pub fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the present number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One reply.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The generation of the app when the request was made.
    pub generation: u64,
    /// When it arrived, `CLOCK_MONOTONIC`.
    pub received_at: Nanos,
    /// The requested reply, and its value.
    pub reply: Reply,
}

/// The value of a reply; each may be unknown for a reason.
#[derive(Debug, Clone)]
pub enum Reply {
    /// The tail; `None` if no request was answered lately.
    Tail(Gauge<Option<Nanos>>),
    /// Requests per second; `None` if no number results.
    Load(Gauge<Option<f64>>),
    /// Age of the newest sample that the tail is computed from.
    Age(Gauge<Option<Nanos>>),
}

/// The requested value, and how long the loop waits for it.
#[derive(Debug, Clone, Copy)]
pub struct Expected {
    /// The percentile of the tails.
    pub at: Percentile,
    /// Longest time between two tails.
    pub patience: Nanos,
    /// Largest age of the data, if its age is requested.
    pub age_max: Option<Nanos>,
}

/// The loop's end.
#[derive(Debug)]
pub struct Reported {
    expected: Expected,
    generation: Generation,
    /// The generation that everything below is about.
    seen: u64,
    answers: Receiver<Answer>,
    /// The last tail, and when it arrived.
    tail: Option<(Nanos, Gauge<Option<Nanos>>)>,
    load_per_s: Option<f64>,
    age: Gauge<Option<Nanos>>,
}

impl Reported {
    /// Creates a gauge; replies must be sent through the sender.
    pub fn new(expected: Expected, generation: Generation) -> (Sender<Answer>, Self) {
        let (sender, answers) = channel();
        let seen = generation.get();
        let age = Err(unanswered());
        (sender, Self { expected, generation, seen, answers, tail: None, load_per_s: None, age })
    }

    /// Returns the reports up to the end of the epoch, `now`; starts the next.
    pub fn harvest(&mut self, now: Nanos) -> Gauge<LatencyObservation> {
        let is_new = self.take_answers();
        let Some((received_at, tail)) = &self.tail else {
            return Err(Missing::because("the source of the tail has not answered yet"));
        };
        let tail = tail.clone()?;
        let age = now.saturating_sub(*received_at);
        if !is_new && age > self.expected.patience {
            let why = format!("the source of the tail has not answered for {age:.1}");
            return Err(Missing::because(why));
        }
        self.check_age()?;
        let tail = tail.filter(|_| is_new);
        let per_s = self.load_per_s;
        let rate_per_s = per_s.unwrap_or_default();
        Ok(LatencyObservation {
            offered_per_s: rate_per_s,
            completed_per_s: rate_per_s,
            reported: Some(ReportedTail { at: self.expected.at, tail, per_s }),
            ..LatencyObservation::default()
        })
    }

    /// Takes the replies that have arrived; `true` if a tail is among them.
    fn take_answers(&mut self) -> bool {
        let mut is_new = false;
        let present = self.generation.get();
        if present != self.seen {
            (self.seen, self.tail, self.load_per_s) = (present, None, None);
            self.age = Err(unanswered());
        }
        for Answer { generation, received_at, reply } in self.answers.try_iter() {
            if generation != present {
                continue;
            }
            match reply {
                Reply::Tail(tail) => (self.tail, is_new) = (Some((received_at, tail)), true),
                Reply::Load(load) => self.load_per_s = load.ok().flatten(),
                Reply::Age(age) => self.age = age,
            }
        }
        is_new
    }

    /// Checks that the tail is current, if the age of its data is requested.
    fn check_age(&self) -> Gauge<()> {
        let Some(most) = self.expected.age_max else { return Ok(()) };
        let because = |why: String| Err(Missing::because(why));
        match &self.age {
            Ok(Some(age)) if *age <= most => Ok(()),
            Ok(Some(age)) => because(format!(
                "the newest sample is {age:.1} old, and {most} is the most: is the app scraped, \
                 and up?"
            )),
            Ok(None) => because("the query for the age of the data returned no number".to_owned()),
            Err(why) => because(format!("the age of the data is unknown: {why}")),
        }
    }
}

fn unanswered() -> Missing {
    Missing::because("it has not been answered yet")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    fn reported() -> (Sender<Answer>, Reported) {
        let expected = Expected { at: Percentile::P95, patience: SECOND * 2, age_max: None };
        Reported::new(expected, Generation::default())
    }

    fn answer(came_s: u64, tail: Gauge<Option<Nanos>>) -> Answer {
        about(0, came_s, Reply::Tail(tail))
    }

    fn about(generation: u64, came_s: u64, reply: Reply) -> Answer {
        Answer { generation, received_at: Nanos::from_secs(came_s), reply }
    }

    fn millis(count: u64) -> Gauge<Option<Nanos>> {
        Ok(Some(Nanos::from_millis(count)))
    }

    fn tail(seen: &Gauge<LatencyObservation>) -> Option<Nanos> {
        seen.as_ref().unwrap().tail(Percentile::P95)
    }

    #[test]
    fn the_newest_answer_is_the_tail_and_of_one_percentile_only() {
        let (sender, mut reported) = reported();
        assert!(reported.harvest(SECOND).is_err(), "nothing was reported yet");
        sender.send(answer(1, millis(7))).unwrap();
        sender.send(answer(2, millis(9))).unwrap();
        let seen = reported.harvest(SECOND * 2);
        assert_eq!(tail(&seen), Some(Nanos::from_millis(9)));
        assert_eq!(seen.unwrap().tail(Percentile::P99), None);
    }

    #[test]
    fn an_epoch_between_two_answers_is_no_silence_and_a_long_one_is() {
        let (sender, mut reported) = reported();
        sender.send(answer(1, millis(7))).unwrap();
        assert!(tail(&reported.harvest(SECOND)).is_some());
        assert_eq!(tail(&reported.harvest(SECOND * 2)), None);
        assert_eq!(tail(&reported.harvest(SECOND * 3)), None);
        let why = reported.harvest(SECOND * 4).unwrap_err().to_string();
        assert!(why.contains("has not answered for 3.0s"), "{why}");
        drop(sender);
        assert!(reported.harvest(SECOND * 5).is_err());
    }

    #[test]
    fn a_reason_holds_until_something_else_is_reported() {
        let (sender, mut reported) = reported();
        sender.send(answer(1, Err(Missing::because("status 503")))).unwrap();
        for _ in 0..2 {
            assert_eq!(reported.harvest(SECOND).unwrap_err().to_string(), "status 503");
        }
        sender.send(answer(2, Ok(None))).unwrap();
        assert_eq!(tail(&reported.harvest(SECOND * 2)), None, "idle is not silent");
    }

    #[test]
    fn old_data_is_missing_and_an_idle_app_is_not() {
        let expected =
            Expected { at: Percentile::P95, patience: SECOND * 2, age_max: Some(SECOND * 15) };
        let (sender, mut reported) = Reported::new(expected, Generation::default());
        let mut harvest = |age: Gauge<Option<Nanos>>| {
            sender.send(answer(1, Ok(None))).unwrap();
            sender.send(about(0, 1, Reply::Age(age))).unwrap();
            reported.harvest(SECOND)
        };
        assert_eq!(tail(&harvest(Ok(Some(SECOND * 3)))), None, "no requests, by new data");
        let why = harvest(Ok(Some(SECOND * 40))).unwrap_err().to_string();
        assert!(why.contains("40.0s old") && why.contains("15"), "{why}");
        assert!(harvest(Ok(None)).is_err());
        let why = harvest(Err(Missing::because("status 503"))).unwrap_err().to_string();
        assert!(why.contains("age of the data is unknown: status 503"), "{why}");
        assert!(harvest(Ok(Some(SECOND))).is_ok());
    }

    #[test]
    fn replies_about_a_former_workload_do_not_count() {
        let generation = Generation::default();
        let expected =
            Expected { at: Percentile::P95, patience: SECOND * 2, age_max: Some(SECOND * 15) };
        let (sender, mut reported) = Reported::new(expected, generation.clone());
        let send = |generation, reply| sender.send(about(generation, 1, reply)).unwrap();
        send(0, Reply::Age(Ok(Some(SECOND))));
        send(0, Reply::Load(Ok(Some(9.0))));
        send(0, Reply::Tail(millis(7)));
        assert!(tail(&reported.harvest(SECOND)).is_some());
        generation.advance();
        // It was requested before, and arrives afterwards.
        send(0, Reply::Tail(millis(8)));
        let why = reported.harvest(SECOND).unwrap_err().to_string();
        assert!(why.contains("not answered yet"), "{why}");
        send(1, Reply::Tail(millis(9)));
        let why = reported.harvest(SECOND).unwrap_err().to_string();
        assert!(why.contains("age of the data is unknown"), "{why}");
        send(1, Reply::Age(Ok(Some(SECOND))));
        send(1, Reply::Tail(millis(9)));
        let seen = reported.harvest(SECOND);
        assert_eq!(tail(&seen), Some(Nanos::from_millis(9)));
        assert!(!seen.unwrap().has_rates(), "the load was that of the former one");
    }

    #[test]
    fn a_load_gives_rates_and_none_gives_none() {
        let (sender, mut reported) = reported();
        let mut harvest = |load: Gauge<Option<f64>>| {
            sender.send(answer(1, millis(7))).unwrap();
            sender.send(about(0, 1, Reply::Load(load))).unwrap();
            reported.harvest(SECOND).unwrap()
        };
        let seen = harvest(Ok(Some(1_250.0)));
        assert!(seen.has_rates());
        assert_eq!((seen.offered_per_s, seen.completed_per_s), (1_250.0, 1_250.0));
        assert!(!harvest(Err(Missing::because("status 503"))).has_rates());
    }
}
