//! The rate limits of connections with and without objectives.
//!
//! PSLO and UTSLO meet the objectives of a few connections and leave the rest of the server to
//! best-effort ones (REEF, Li et al., SoCC'25, sections 5.1 and 5.2). Neither controller was
//! available; this loop is ours and serves both, which differ only in how a late request counts:
//!
//! ```text
//! c_i = mean of marks over the last W requests / the allowed mean
//!     percentile (PSLO): mark 1 for a request beyond the bound, allowed 1 - p
//!     disengagement (UTSLO): mark g(latency), allowed the ratio
//! every second:
//!     c_i > 1          interval between turns of i times 0.7, best-effort rate minus 10 %
//!     c_i < 0.5        interval between turns of i times 1.05
//!     max c_i < 0.8    best-effort rate plus 2 % of the server
//! ```
//!
//! A connection with an objective is served first, but its rate is limited: its clients send again
//! at once, and a few of them would use the whole server (in the simulator 16 of 512 took 99.9 %).
//! With one query a turn its latency is about the interval between its turns, which starts at a
//! quarter of the bound and stays below half of it. Best-effort connections take turns.

use lull_control::Objective;
use lull_control::admission::{Allowance, Seen};
use lull_measure::Nanos;
use lull_measure::compliance::Patience;
use std::collections::VecDeque;

/// Shortest time between two turns of a promised connection.
const OFTEN: Nanos = Nanos::from_millis(1);
/// Rate that may be saved up, as time.
const SAVED: Nanos = Nanos::from_millis(50);

/// What is promised to one connection, and how it is kept.
#[derive(Debug, Clone)]
struct Promise {
    connection: u32,
    objective: Objective,
    marks: VecDeque<f64>,
    sum: f64,
    /// Time between its turns, and when it last had one.
    every: Nanos,
    last: Option<Nanos>,
}

/// Promises and what they leave.
#[derive(Debug, Clone)]
pub(crate) struct Quota {
    promises: Vec<Promise>,
    /// Index among the promises of each connection.
    promised: Vec<Option<usize>>,
    patience: Patience,
    window: usize,
    period: Nanos,
    /// Queries in a turn of a best-effort connection.
    batch: u32,
    /// Best-effort queries per second; `None`: no limit yet.
    rate_per_s: Option<f64>,
    carry: f64,
    hand: usize,
    last: Nanos,
    since: Nanos,
    best_effort: u64,
    all: u64,
}

impl Quota {
    /// Promises for these connections.
    pub(crate) fn new(
        objectives: &[Option<Objective>],
        patience: Patience,
        (window, batch): (usize, u32),
        period: Nanos,
    ) -> Self {
        let minded = objectives.iter().enumerate();
        let minded = minded.filter_map(|(index, one)| Some((index as u32, (*one)?)));
        let promises: Vec<Promise> = minded
            .filter(|(_, objective)| objective.minds_latency())
            .map(|(connection, objective)| Promise {
                connection,
                objective,
                marks: VecDeque::new(),
                sum: 0.0,
                every: Nanos(limit(objective, patience).0 / 4).max(OFTEN),
                last: None,
            })
            .collect();
        let mut promised = vec![None; objectives.len()];
        for (index, promise) in promises.iter().enumerate() {
            promised[promise.connection as usize] = Some(index);
        }
        Self {
            promises,
            promised,
            patience,
            window,
            period,
            batch,
            rate_per_s: None,
            carry: 0.0,
            hand: 0,
            last: Nanos::ZERO,
            since: Nanos::ZERO,
            best_effort: 0,
            all: 0,
        }
    }

    /// Promises other things to the same connections; `false` if they are others.
    /// What was late by the old bound says nothing of the new one.
    pub(crate) fn retarget(&mut self, objectives: &[Option<Objective>]) -> bool {
        let minded = |one: &Option<Objective>| one.filter(Objective::minds_latency);
        let now: Vec<_> = objectives.iter().map(minded).collect();
        let same = now.len() == self.promised.len()
            && now.iter().zip(&self.promised).all(|(now, then)| now.is_some() == then.is_some());
        if !same {
            return false;
        }
        for promise in &mut self.promises {
            let Some(objective) = now[promise.connection as usize] else { continue };
            if objective != promise.objective {
                promise.objective = objective;
                promise.marks.clear();
                promise.sum = 0.0;
                let half = limit(objective, self.patience) / 2;
                promise.every = promise.every.min(half).max(OFTEN);
            }
        }
        true
    }

    /// The worst compliance; `None` without promises or answers.
    pub(crate) fn worst(&self) -> Option<f64> {
        let all = self.promises.iter().filter_map(Promise::compliance);
        all.max_by(f64::total_cmp)
    }

    /// Best-effort queries per second that are let in; `None`: all.
    #[cfg(test)]
    pub(crate) fn rate_per_s(&self) -> Option<f64> {
        self.rate_per_s
    }

    /// Takes note of what was answered, and moves the rate once a period.
    pub(crate) fn note(&mut self, seen: &Seen<'_>) {
        for answered in seen.answered {
            let queries = u64::from(answered.queries);
            self.all += queries;
            match self.promised[answered.connection as usize] {
                Some(index) => {
                    let promise = &mut self.promises[index];
                    let mark = promise.mark(answered.latency, self.patience);
                    (0..queries).for_each(|_| promise.note(mark, self.window));
                }
                None => self.best_effort += queries,
            }
        }
        let took = seen.now.saturating_sub(self.since);
        if took >= self.period {
            self.adjust(took.as_secs_f64());
            (self.since, self.best_effort, self.all) = (seen.now, 0, 0);
        }
    }

    fn adjust(&mut self, seconds: f64) {
        let had_per_s = self.best_effort as f64 / seconds;
        let all_per_s = self.all as f64 / seconds;
        let Some(worst) = self.worst() else { return };
        let rate = self.rate_per_s.unwrap_or(had_per_s);
        if worst > 1.0 {
            self.rate_per_s = Some((0.9 * rate).max(1.0));
        } else if worst < 0.8 {
            // A rate that is not used up does not grow: it would say nothing.
            let grown = rate + 0.02 * all_per_s;
            self.rate_per_s = self.rate_per_s.map(|_| grown.min(1.25 * had_per_s.max(1.0)));
        }
        for promise in &mut self.promises {
            promise.adjust(limit(promise.objective, self.patience));
        }
    }

    /// What each connection may do until the next decision.
    pub(crate) fn allow(&mut self, seen: &Seen<'_>, allow: &mut [Allowance]) {
        let span = seen.now.saturating_sub(self.last);
        self.last = seen.now;
        for promise in &mut self.promises {
            let index = promise.connection as usize;
            let queries = promise.due(seen.now, seen.waiting[index] > 0);
            allow[index] = Allowance { queries, batch: 1, first: true };
        }
        let Some(rate) = self.rate_per_s else {
            for (one, promised) in allow.iter_mut().zip(&self.promised) {
                if promised.is_none() {
                    *one = Allowance::turns_of(self.batch);
                }
            }
            return;
        };
        let most = (rate * SAVED.as_secs_f64()).max(f64::from(self.batch));
        self.carry = (self.carry + rate * span.as_secs_f64()).min(most);
        self.share_out(seen.waiting, allow);
    }

    /// Gives turns to best-effort connections that wait, in order, as far as
    /// the rate goes.
    fn share_out(&mut self, waiting: &[u32], allow: &mut [Allowance]) {
        let count = allow.len();
        let start = self.hand;
        for step in 0..count {
            let index = (start + step) % count;
            if self.promised[index].is_some() {
                continue;
            }
            let turn = f64::from(self.batch);
            let gets = waiting[index] > 0 && self.carry >= turn;
            let queries = if gets { self.batch } else { 0 };
            allow[index] = Allowance { queries, batch: self.batch, first: false };
            if gets {
                self.carry -= turn;
                self.hand = (index + 1) % count;
            }
        }
    }
}

/// The latency that an objective is about.
fn limit(objective: Objective, patience: Patience) -> Nanos {
    match objective {
        Objective::Tail { bound, .. } => bound,
        Objective::Disengagement { .. } => patience.start,
        Objective::Throughput { .. } => Nanos::MAX,
    }
}

impl Promise {
    /// Queries that it may run until the next decision: one if its time has come.
    fn due(&mut self, now: Nanos, waits: bool) -> u32 {
        let due = self.last.is_none_or(|last| now.saturating_sub(last) >= self.every);
        if due && waits {
            self.last = Some(now);
        }
        u32::from(due)
    }

    /// Moves the time between its turns.
    fn adjust(&mut self, limit: Nanos) {
        match self.compliance() {
            Some(value) if value > 1.0 => self.every = self.every.scale(0.7).max(OFTEN),
            Some(value) if value < 0.5 => self.every = self.every.scale(1.05).min(limit / 2),
            _ => {}
        }
    }

    fn mark(&self, latency: Nanos, patience: Patience) -> f64 {
        match self.objective {
            Objective::Tail { bound, .. } => f64::from(u8::from(latency > bound)),
            Objective::Disengagement { .. } => patience.gone(latency),
            Objective::Throughput { .. } => 0.0,
        }
    }

    fn note(&mut self, mark: f64, window: usize) {
        self.marks.push_back(mark);
        self.sum += mark;
        if self.marks.len() > window {
            self.sum -= self.marks.pop_front().unwrap_or(0.0);
        }
    }

    /// Mean of its marks over what is allowed.
    fn compliance(&self) -> Option<f64> {
        let allowed = match self.objective {
            Objective::Tail { percentile, .. } => 1.0 - percentile.fraction(),
            Objective::Disengagement { ratio } => ratio,
            Objective::Throughput { .. } => return None,
        };
        let count = self.marks.len() as f64;
        // Sums of differences may end a hair below zero.
        (count > 0.0).then(|| (self.sum / count).max(0.0) / allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::admission::Answered;
    use lull_measure::Percentile;
    use proptest::prelude::*;

    const BOUND: Nanos = Nanos::from_millis(40);

    fn quota(promised: usize, best_effort: usize) -> Quota {
        let tail = Some(Objective::Tail { percentile: Percentile::P99, bound: BOUND });
        let objectives = [vec![tail; promised], vec![None; best_effort]].concat();
        Quota::new(&objectives, Patience::OURS, (100, 2), Nanos::from_secs(1))
    }

    /// Ten looks a second for this many seconds, with this latency of the
    /// promised connection 0 and this many best-effort answers a look.
    fn run(quota: &mut Quota, latency_ms: u64, best_effort: u32, seconds: u64) {
        let start = quota.since.0 / 100_000_000;
        for look in start + 1..=start + 10 * seconds {
            let answer = |connection, latency_ms, queries| Answered {
                connection,
                latency: Nanos::from_millis(latency_ms),
                queries,
            };
            quota.note(&Seen {
                now: Nanos::from_millis(100 * look),
                answered: &[answer(0, latency_ms, 10), answer(1, 1, best_effort)],
                waiting: &[0, 1],
                device: Ok(1.0),
                round: None,
                rested: Ok(0.0),
            });
        }
    }

    fn seen(now_ms: u64, waiting: &[u32]) -> Seen<'_> {
        Seen {
            now: Nanos::from_millis(now_ms),
            answered: &[],
            waiting,
            device: Ok(1.0),
            round: None,
            rested: Ok(0.0),
        }
    }

    #[test]
    fn a_broken_promise_takes_from_best_effort_until_it_is_kept() {
        let mut quota = quota(1, 1);
        run(&mut quota, 50, 100, 1);
        assert_eq!(quota.worst().map(f64::round), Some(100.0), "all are late, 1 % may be");
        assert_eq!(quota.rate_per_s(), Some(900.0), "10 % less than the 1000/s it had");
        run(&mut quota, 50, 90, 1);
        assert_eq!(quota.rate_per_s().map(f64::round), Some(810.0));
        run(&mut quota, 10, 81, 5);
        let kept = quota.rate_per_s().unwrap();
        assert!(kept > 810.0 && quota.worst() == Some(0.0), "{kept}");
    }

    #[test]
    fn a_tightened_promise_is_judged_anew_and_others_are_another_quota() {
        let mut quota = quota(1, 1);
        run(&mut quota, 30, 100, 1);
        assert_eq!(quota.worst(), Some(0.0));
        let bound = Nanos::from_millis(20);
        let tight = Some(Objective::Tail { percentile: Percentile::P99, bound });
        assert!(quota.retarget(&[tight, None]));
        assert_eq!(quota.worst(), None);
        run(&mut quota, 30, 100, 1);
        assert_eq!(quota.worst().map(f64::round), Some(100.0), "30 ms is late now");
        assert!(!quota.retarget(&[None, tight]));
    }

    #[test]
    fn a_rate_that_is_not_used_does_not_grow_away() {
        let mut quota = quota(1, 1);
        run(&mut quota, 50, 100, 1);
        run(&mut quota, 10, 10, 100);
        assert!(quota.rate_per_s().unwrap() <= 125.0 + 1e-9, "{:?}", quota.rate_per_s());
    }

    #[test]
    fn without_a_broken_promise_nothing_is_limited() {
        let mut quota = quota(1, 2);
        run(&mut quota, 10, 100, 10);
        assert_eq!(quota.rate_per_s(), None);
        let mut allow = vec![Allowance::turns_of(1); 3];
        quota.allow(&seen(10_000, &[0, 1, 1]), &mut allow);
        assert!(allow[0].first && !allow[1].first);
        assert_eq!(allow[1], Allowance::turns_of(2));
    }

    #[test]
    fn a_promised_connection_comes_as_often_as_its_bound_needs() {
        let mut quota = quota(1, 1);
        let mut allow = vec![Allowance::turns_of(1); 2];
        let mut served = |quota: &mut Quota, from_ms: u64| -> u32 {
            (from_ms..from_ms + 100)
                .map(|now_ms| {
                    quota.allow(&seen(now_ms, &[1, 1]), &mut allow);
                    allow[0].queries
                })
                .sum()
        };
        assert_eq!(served(&mut quota, 1000), 10, "a quarter of 40 ms");
        run(&mut quota, 50, 100, 3);
        assert_eq!(quota.promises[0].every, Nanos(3_430_000), "0.7 a second while late");
        assert!(served(&mut quota, 10_000) > 20);
        // The window of 100 answers is forgotten in a second.
        run(&mut quota, 10, 100, 60);
        assert_eq!(quota.promises[0].every, Nanos::from_millis(20), "half of the bound");
    }

    #[test]
    fn best_effort_shares_its_rate_in_turn() {
        let mut quota = quota(1, 4);
        quota.rate_per_s = Some(400.0);
        let mut allow = vec![Allowance::turns_of(1); 5];
        let mut turns = |now_ms, waiting: &[u32]| -> Vec<u32> {
            quota.allow(&seen(now_ms, waiting), &mut allow);
            allow[1..].iter().map(|one| one.queries).collect()
        };
        // 10 ms at 400/s are 4 queries: 2 turns of 2.
        assert_eq!(turns(10, &[0, 1, 1, 1, 1]), [2, 2, 0, 0]);
        assert_eq!(turns(20, &[0, 1, 1, 1, 1]), [0, 0, 2, 2]);
        assert_eq!(turns(30, &[0, 0, 1, 0, 1]), [0, 2, 0, 2], "only who waits");
    }

    #[test]
    fn disengagement_counts_by_how_long_users_wait() {
        let users = Some(Objective::Disengagement { ratio: 0.001 });
        let mut quota = Quota::new(&[users, None], Patience::OURS, (100, 1), Nanos::from_secs(1));
        run(&mut quota, 15, 10, 1);
        assert_eq!(quota.worst(), Some(0.0), "no connection leaves within 20 ms");
        run(&mut quota, 40, 10, 1);
        // 1 - exp(-20 ms / 2 s) = 0.995 % of an allowed 0.1 %.
        assert!((quota.worst().unwrap() - 9.95).abs() < 0.01);
    }

    proptest! {
        #[test]
        fn no_more_is_let_in_than_the_rate_and_what_was_saved(
            steps in prop::collection::vec((1u64..30, prop::collection::vec(0u32..2, 8)), 1..60),
            rate in 50.0f64..5000.0,
        ) {
            let mut quota = quota(0, 8);
            quota.rate_per_s = Some(rate);
            let (mut now_ms, mut given) = (0, 0.0);
            let mut allow = vec![Allowance::turns_of(1); 8];
            for (step_ms, waiting) in &steps {
                now_ms += step_ms;
                quota.allow(&seen(now_ms, waiting), &mut allow);
                given += allow.iter().map(|one| f64::from(one.queries)).sum::<f64>();
            }
            prop_assert!(given <= rate * now_ms as f64 / 1e3 + 2.0 + 1e-6, "{given}");
        }
    }
}
