//! Tails that somebody else reckons, and that a thread of the agent asks for.
//!
//! The loop never waits for the one who is asked: it takes in what answers
//! have come by the end of an epoch. An epoch without an answer that could not
//! be due yet is no silence, it has no request of its own. After `patience`
//! without an answer latency is missing.

use lull_control::{LatencySeen, ReportedTail};
use lull_measure::{Gauge, Missing, Nanos, Percentile};
use std::sync::mpsc::{Receiver, Sender, channel};

/// One answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// When it came, `CLOCK_MONOTONIC`.
    pub came: Nanos,
    /// The tail, `None` if no request was answered lately; or why it is not known.
    pub tail: Gauge<Option<Nanos>>,
}

/// The loop's end.
#[derive(Debug)]
pub struct Reported {
    at: Percentile,
    patience: Nanos,
    answers: Receiver<Answer>,
    last: Option<Answer>,
}

impl Reported {
    /// Tails at a percentile, to be told through the sender at least every `patience`.
    pub fn new(at: Percentile, patience: Nanos) -> (Sender<Answer>, Self) {
        let (sender, answers) = channel();
        (sender, Self { at, patience, answers, last: None })
    }

    /// What was told by the end of an epoch, now; starts the next.
    pub fn harvest(&mut self, now: Nanos) -> Gauge<LatencySeen> {
        let newest = self.answers.try_iter().last();
        let is_new = newest.is_some();
        self.last = newest.or(self.last.take());
        let Some(last) = &self.last else {
            return Err(Missing::because("who is asked for the tail has not answered yet"));
        };
        let tail = last.tail.clone()?;
        let age = now.saturating_sub(last.came);
        if !is_new && age > self.patience {
            let why = format!("who is asked for the tail has not answered for {age:.1}");
            return Err(Missing::because(why));
        }
        let tail = tail.filter(|_| is_new);
        let reported = Some(ReportedTail { at: self.at, tail });
        Ok(LatencySeen { reported, ..LatencySeen::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    fn answer(came_s: u64, tail: Gauge<Option<Nanos>>) -> Answer {
        Answer { came: Nanos::from_secs(came_s), tail }
    }

    fn millis(count: u64) -> Gauge<Option<Nanos>> {
        Ok(Some(Nanos::from_millis(count)))
    }

    fn tail(seen: &Gauge<LatencySeen>) -> Option<Nanos> {
        seen.as_ref().unwrap().tail(Percentile::P95)
    }

    #[test]
    fn the_newest_answer_is_the_tail_and_of_one_percentile_only() {
        let (sender, mut reported) = Reported::new(Percentile::P95, SECOND * 2);
        assert!(reported.harvest(SECOND).is_err(), "nothing was told yet");
        sender.send(answer(1, millis(7))).unwrap();
        sender.send(answer(2, millis(9))).unwrap();
        let seen = reported.harvest(SECOND * 2);
        assert_eq!(tail(&seen), Some(Nanos::from_millis(9)));
        assert_eq!(seen.unwrap().tail(Percentile::P99), None);
    }

    #[test]
    fn an_epoch_between_two_answers_is_no_silence_and_a_long_one_is() {
        let (sender, mut reported) = Reported::new(Percentile::P95, SECOND * 2);
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
    fn a_reason_stands_until_something_else_is_told() {
        let (sender, mut reported) = Reported::new(Percentile::P95, SECOND * 2);
        sender.send(answer(1, Err(Missing::because("status 503")))).unwrap();
        for _ in 0..2 {
            assert_eq!(reported.harvest(SECOND).unwrap_err().to_string(), "status 503");
        }
        sender.send(answer(2, Ok(None))).unwrap();
        assert_eq!(tail(&reported.harvest(SECOND * 2)), None, "idle is not silent");
    }
}
