//! Tails that another program computes and that a thread of the agent requests.
//!
//! The control loop never waits for that program: it takes the answers that have
//! arrived by the end of an epoch. If no new answer is due yet, the epoch has no
//! request of its own and is not treated as silent. After `patience` without an
//! answer, latency is missing.

use lull_control::{LatencySeen, ReportedTail};
use lull_measure::{Gauge, Missing, Nanos, Percentile};
use std::sync::mpsc::{Receiver, Sender, channel};

/// One answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// When it arrived, `CLOCK_MONOTONIC`.
    pub received_at: Nanos,
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
    /// Creates a gauge of tails at a percentile; answers must be sent through the sender
    /// at least every `patience`.
    pub fn new(at: Percentile, patience: Nanos) -> (Sender<Answer>, Self) {
        let (sender, answers) = channel();
        (sender, Self { at, patience, answers, last: None })
    }

    /// Returns what was reported by the end of the epoch, `now`; starts the next.
    pub fn harvest(&mut self, now: Nanos) -> Gauge<LatencySeen> {
        let newest = self.answers.try_iter().last();
        let is_new = newest.is_some();
        self.last = newest.or(self.last.take());
        let Some(last) = &self.last else {
            return Err(Missing::because("the source of the tail has not answered yet"));
        };
        let tail = last.tail.clone()?;
        let age = now.saturating_sub(last.received_at);
        if !is_new && age > self.patience {
            let why = format!("the source of the tail has not answered for {age:.1}");
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
        Answer { received_at: Nanos::from_secs(came_s), tail }
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
