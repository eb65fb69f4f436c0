//! The rate limits of connections with and without objectives.
//!
//! PSLO and UTSLO meet the objectives of a few connections and leave the rest of the server to
//! best-effort ones (REEF, Li et al., SoCC'25, sections 5.1 and 5.2). Neither controller is
//! published; this loop is ours and serves both, which differ only in how a late request counts:
//!
//! ```text
//! m   mark of a request
//!     percentile (PSLO): 1 beyond the bound, else 0; allowed mean a = 1 - p
//!     disengagement (UTSLO): g(latency); allowed mean a = the ratio
//! with each answer of connection i:
//!     interval between turns of i += (0.9 a - m) / m(2 l) * l / 10, l the bound or g's start
//! every second:
//!     no mark of i yet                    interval between turns of i times 1.05
//!     mean m, over all connections with an objective,
//!         significantly above a           best-effort rate minus 10 %, all begins again
//!         at most a, for each objective   best-effort rate plus 2 % of the server, and at most
//!         that has a mark, at least one   97 % of the rate at which m was last above a
//! ```
//!
//! A connection with an objective is served first, but its rate is limited: its clients send again
//! at once, and a few of them would use the whole server (in the simulator 16 of 512 took 99.9 %).
//! With one query a turn its latency is about the interval between its turns, plus what the server
//! takes. A step up with each answer and ten steps' worth down with a late one are in balance where
//! the share of late answers is 0.9 of the allowed one (stochastic approximation of a quantile;
//! Robbins and Monro 1951), so that a connection is served no more often than its objective needs.
//!
//! The best-effort rate concerns all connections, so that answers of connections with the same
//! objective are evidence together. It falls on significant evidence only, three standard errors of
//! the mean mark, because it is tested every second; and only on answers since it moved last,
//! because marks of the time before say nothing about the new rate. For the second after a cut, in
//! which the queue of before drains, nothing counts. Clients that send nothing have no marks.
//!
//! A rate that best effort does not use up says nothing, and stays as it is: if it fell with what
//! is used, connections that send again after a pause would have 1.25 queries per second (so 128
//! of them did not finish their first queries in 30 s in `cargo xtask bench classes`). Nor is it
//! cut in a period without an answer of best effort, whose queries may be longer: marks are kept
//! for the next one with an answer, until best effort has been silent for ten seconds.
//!
//! What best effort is limited by is a rate, or with [`Limits::Level`] the queries that it has in
//! service at a time: PSLO has both, "the level of IO concurrency and arrival rate" (its abstract).
//! A queue then remains before the device, as far as objectives allow. The same steps move the
//! level, with two differences. Its queue does not drain after a cut, so that intervals stay as
//! they are: longer ones would make answers late, and those would cut the level further. It grows
//! only while the mean marks are at most 0.9 a, above which intervals have no room left.
//!
//! The mean marks are near 0.9 a at any rate that the server sustains, so the rate grows while they
//! are allowed ones. Above what the server sustains late answers come in bursts, each of them more
//! than an objective of 99.9 % allows in minutes. So the loop returns to 97 % of the rate that was
//! too high, and tries more only after a minute, and after twice as long each time that this fails.

use lull_control::Objective;
use lull_control::admission::{Allowance, Seen};
use lull_measure::Nanos;
use lull_measure::compliance::Patience;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

mod marks;

use marks::Marks;

/// Shortest time between two turns of a promised connection.
const OFTEN: Nanos = Nanos::from_millis(1);
/// Rate that may be saved up, as time.
const SAVED: Nanos = Nanos::from_millis(50);
/// Share of the allowed mean mark at which the interval between turns settles.
const AIM: f64 = 0.9;
/// An answer at twice the limit shortens the interval by the limit over this.
const STEPS: f64 = 10.0;
/// Share of a best-effort rate that was too high at which the rate stays.
const SAFE: f64 = 0.97;
/// Time without an answer after which best effort does nothing (ours).
const PAUSE_S: f64 = 10.0;
/// When a rate is tried again that was too high, at first and at the latest.
const RETRY: Nanos = Nanos::from_secs(60);
const LATEST_RETRY: Nanos = Nanos::from_secs(600);

/// What best effort is limited by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Limits {
    /// Queries a second.
    Rate,
    /// Queries in service at a time.
    Level,
}

/// What is promised to one connection, and how it is kept.
#[derive(Debug, Clone)]
struct Promise {
    connection: u32,
    objective: Objective,
    marks: Marks,
    recent: VecDeque<f64>,
    /// Whether an answer has had a mark, which ends the first, fast growth of `every`.
    marked: bool,
    /// Time between its turns, and when it last had one.
    every: Nanos,
    last: Option<Nanos>,
}

/// A best-effort limit with which objectives were missed.
#[derive(Debug, Clone, Copy)]
struct Ceiling {
    limit: f64,
    /// Until when the limit stays below it, and how long that is.
    until: Nanos,
    wait: Nanos,
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
    limits: Limits,
    /// Best-effort queries that are let in, per second or at a time; `None`: no limit yet.
    best_effort_limit: Option<f64>,
    /// The limit that was too high last.
    ceiling: Option<Ceiling>,
    /// Whether the queue of before the last cut still drains.
    drains: bool,
    carry: f64,
    hand: usize,
    last: Nanos,
    since: Nanos,
    best_effort: u64,
    all: u64,
    /// Time since the last period with an answer of best effort.
    idle_s: f64,
}

impl Quota {
    /// Promises for these connections.
    pub(crate) fn new(
        objectives: &[Option<Objective>],
        patience: Patience,
        window: usize,
        batch: u32,
        period: Nanos,
        limits: Limits,
    ) -> Self {
        let minded = objectives.iter().enumerate();
        let minded = minded.filter_map(|(index, one)| Some((index as u32, (*one)?)));
        let promises: Vec<Promise> = minded
            .filter(|(_, objective)| objective.bounds_latency())
            .map(|(connection, objective)| Promise {
                connection,
                objective,
                marks: Marks::default(),
                recent: VecDeque::new(),
                marked: false,
                every: first_interval(objective, patience),
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
            limits,
            best_effort_limit: None,
            ceiling: None,
            drains: false,
            carry: 0.0,
            hand: 0,
            last: Nanos::ZERO,
            since: Nanos::ZERO,
            best_effort: 0,
            all: 0,
            idle_s: f64::INFINITY,
        }
    }

    /// Sets other objectives of the same connections; `false` if the connections differ. Lateness
    /// by the old bound does not apply to the new one.
    pub(crate) fn retarget(&mut self, objectives: &[Option<Objective>]) -> bool {
        let on_latency = |one: &Option<Objective>| one.filter(Objective::bounds_latency);
        let now: Vec<_> = objectives.iter().map(on_latency).collect();
        let same = now.len() == self.promised.len()
            && now.iter().zip(&self.promised).all(|(now, then)| now.is_some() == then.is_some());
        if !same {
            return false;
        }
        for promise in &mut self.promises {
            let Some(objective) = now[promise.connection as usize] else { continue };
            if objective != promise.objective {
                promise.objective = objective;
                promise.forget();
                promise.marked = false;
                let first = first_interval(objective, self.patience);
                promise.every = promise.every.min(first);
                self.ceiling = None;
            }
        }
        true
    }

    /// The worst compliance of a connection; `None` without promises or answers.
    #[cfg(test)]
    pub(crate) fn worst(&self) -> Option<f64> {
        let all = self
            .promises
            .iter()
            .filter_map(|promise| Some(promise.marks.mean()? / allowed(promise.objective)?));
        all.max_by(f64::total_cmp)
    }

    /// The marks of each objective, over all connections that have it.
    fn pooled(&self) -> Vec<(Objective, Marks)> {
        let mut pools: Vec<(Objective, Marks)> = Vec::new();
        for promise in &self.promises {
            match pools.iter_mut().find(|(objective, _)| *objective == promise.objective) {
                Some((_, marks)) => marks.add(&promise.marks),
                None => pools.push((promise.objective, promise.marks.clone())),
            }
        }
        pools
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
                    let counted = if self.drains { 0 } else { queries };
                    for _ in 0..counted {
                        promise.note(mark, self.window);
                        promise.follow(mark, self.patience);
                    }
                }
                None => self.best_effort += queries,
            }
        }
        let took = seen.now.saturating_sub(self.since);
        if took >= self.period {
            self.adjust(took.as_secs_f64(), seen.now);
            (self.since, self.best_effort, self.all) = (seen.now, 0, 0);
        }
    }

    /// Takes no note: the period begins once answers count.
    pub(crate) fn wait(&mut self, now: Nanos) {
        self.since = now;
    }

    fn adjust(&mut self, seconds: f64, now: Nanos) {
        let (had, all) = match self.limits {
            Limits::Rate => (self.best_effort as f64 / seconds, self.all as f64 / seconds),
            // Connections that send again at once use a level up.
            Limits::Level => {
                let others = self.promised.len() - self.promises.len();
                let level = self.best_effort_limit.unwrap_or(others as f64);
                (level, level)
            }
        };
        let limit = self.best_effort_limit.unwrap_or(had);
        self.idle_s = if self.best_effort == 0 { self.idle_s + seconds } else { 0.0 };
        if std::mem::take(&mut self.drains) {
            return;
        }
        if self.is_broken() {
            if self.idle_s >= PAUSE_S {
                // Best effort did nothing, and is not the cause.
                self.promises.iter_mut().for_each(Promise::forget);
            } else if self.best_effort > 0 {
                self.cut(limit.min((1.25 * had).max(0.5 * limit)), now);
            }
        } else if self.is_met() {
            // A rate that is not used up says nothing: it neither grows nor falls.
            let grown = (limit + 0.02 * all).min((1.25 * had).max(limit));
            let ceiling = self.ceiling.filter(|ceiling| now < ceiling.until);
            let most = ceiling.map_or(f64::INFINITY, |ceiling| SAFE * ceiling.limit);
            // A limit of 0 would stop best effort until the ceiling ends.
            self.best_effort_limit = self.best_effort_limit.map(|_| grown.min(most).max(1.0));
        }
        for promise in self.promises.iter_mut().filter(|promise| !promise.marked) {
            let most = most_interval(promise.objective, self.patience);
            promise.every = promise.every.scale(1.05).min(most);
        }
    }

    /// Whether the mean mark of an objective is significantly above the allowed one.
    fn is_broken(&self) -> bool {
        let above = |(objective, marks): &(Objective, Marks)| {
            allowed(*objective).is_some_and(|allowed| marks.is_above(allowed))
        };
        self.pooled().iter().any(above)
    }

    /// Whether the mean mark of each objective that has marks lets best effort grow. Without any
    /// mark there is no evidence: `false`.
    fn is_met(&self) -> bool {
        let share = match self.limits {
            Limits::Rate => 1.0,
            Limits::Level => AIM,
        };
        let pools = self.pooled();
        let with_marks =
            |(objective, marks): &(Objective, Marks)| marks.mean().zip(allowed(*objective));
        let mut judged = pools.iter().filter_map(with_marks).peekable();
        judged.peek().is_some() && judged.all(|(mean, allowed)| mean <= share * allowed)
    }

    /// The best-effort limit was too high.
    fn cut(&mut self, limit: f64, now: Nanos) {
        let wait = match self.ceiling {
            Some(ceiling) if now >= ceiling.until => (ceiling.wait * 2).min(LATEST_RETRY),
            Some(ceiling) => ceiling.wait,
            None => RETRY,
        };
        self.ceiling = Some(Ceiling { limit, until: now + wait, wait });
        self.best_effort_limit = Some((0.9 * limit).max(1.0));
        self.drains = true;
        let (patience, limits) = (self.patience, self.limits);
        self.promises.iter_mut().for_each(|promise| promise.restart(patience, limits));
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
        let rate = self.best_effort_limit.filter(|_| self.limits == Limits::Rate);
        let Some(rate) = rate else {
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

    /// Turns at a time, of connections with objectives and of best effort; `None`: any number.
    pub(crate) fn level(&self) -> Option<u32> {
        let level = self.best_effort_limit.filter(|_| self.limits == Limits::Level)?;
        Some(level.round() as u32 + self.promises.len() as u32)
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

/// The longest interval between turns. A longer one would be late whatever the server does, or
/// (disengagement) drive one user in a hundred away.
fn most_interval(objective: Objective, patience: Patience) -> Nanos {
    let limit = limit(objective, patience);
    match objective {
        Objective::Disengagement { .. } => limit * 2,
        Objective::Tail { .. } | Objective::Throughput { .. } => limit,
    }
}

/// The interval between turns to begin with.
fn first_interval(objective: Objective, patience: Patience) -> Nanos {
    (limit(objective, patience) / 2).max(OFTEN)
}

/// The mean mark that an objective allows; `None` if it does not mind latency.
fn allowed(objective: Objective) -> Option<f64> {
    match objective {
        Objective::Tail { percentile, .. } => Some(1.0 - percentile.fraction()),
        Objective::Disengagement { ratio } => Some(ratio),
        Objective::Throughput { .. } => None,
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

    /// Moves the time between its turns after an answer.
    fn follow(&mut self, mark: f64, patience: Patience) {
        let Some(allowed) = allowed(self.objective) else { return };
        self.marked |= mark > 0.0;
        let limit = limit(self.objective, patience);
        // The mark of an answer at twice the limit, which is 1 for a percentile.
        let late = self.mark(limit * 2, patience);
        let step_ns = limit.0 as f64 / STEPS / late;
        let every_ns = self.every.0 as f64 + step_ns * (AIM * allowed - mark);
        let most = most_interval(self.objective, patience);
        self.every = Nanos(every_ns.max(0.0) as u64).clamp(OFTEN.min(most), most);
    }

    /// Starts again under another best-effort limit. The queue that a level leaves stays, and so
    /// do intervals, which would be too long for it.
    fn restart(&mut self, patience: Patience, limits: Limits) {
        self.forget();
        if limits == Limits::Rate {
            self.every = self.every.max(first_interval(self.objective, patience));
        }
        self.marked = false;
    }

    /// Forgets its marks: they say nothing about what comes.
    fn forget(&mut self) {
        self.recent.clear();
        self.marks = Marks::default();
    }

    fn mark(&self, latency: Nanos, patience: Patience) -> f64 {
        match self.objective {
            Objective::Tail { bound, .. } => f64::from(u8::from(latency > bound)),
            Objective::Disengagement { .. } => patience.gone(latency),
            Objective::Throughput { .. } => 0.0,
        }
    }

    fn note(&mut self, mark: f64, window: usize) {
        self.recent.push_back(mark);
        self.marks.note(mark, 1.0);
        if self.recent.len() > window {
            let oldest = self.recent.pop_front().unwrap_or(0.0);
            self.marks.note(oldest, -1.0);
        }
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
        Quota::new(&objectives, Patience::OURS, 100, 2, Nanos::from_secs(1), Limits::Rate)
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
                connections: Err(lull_measure::Missing::because("no server")),
                under_way: Err(lull_measure::Missing::because("no server")),
                server: Err(lull_measure::Missing::because("no server")),
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
            connections: Err(lull_measure::Missing::because("no server")),
            under_way: Err(lull_measure::Missing::because("no server")),
            server: Err(lull_measure::Missing::because("no server")),
        }
    }

    #[test]
    fn answers_are_counted_over_the_time_since_they_count() {
        let mut quota = quota(1, 1);
        quota.wait(Nanos::from_secs(3600));
        run(&mut quota, 90, 100, 2);
        let limit = quota.best_effort_limit.expect("every answer was late");
        assert!(limit > 500.0, "of 1,000 a second: {limit}");
    }

    #[test]
    fn a_broken_promise_takes_from_best_effort_until_it_is_kept() {
        let mut quota = quota(1, 1);
        run(&mut quota, 50, 100, 1);
        assert_eq!(quota.best_effort_limit, Some(900.0), "10 % less than the 1000/s it had");
        run(&mut quota, 50, 90, 1);
        assert_eq!(quota.best_effort_limit, Some(900.0), "the queue of before drains");
        run(&mut quota, 50, 90, 1);
        assert_eq!(quota.best_effort_limit.map(f64::round), Some(810.0));
        run(&mut quota, 10, 81, 5);
        let kept = quota.best_effort_limit.unwrap();
        assert!(kept > 810.0 && quota.worst() == Some(0.0), "{kept}");
    }

    #[test]
    fn late_answers_from_before_a_cut_are_no_reason_for_another() {
        let mut quota = quota(1, 1);
        run(&mut quota, 50, 100, 1);
        assert_eq!(quota.best_effort_limit, Some(900.0));
        // The window has room for the 100 late answers for one more second.
        run(&mut quota, 10, 90, 2);
        assert!(quota.best_effort_limit.unwrap() > 900.0, "{:?}", quota.best_effort_limit);
    }

    #[test]
    fn a_promised_connection_that_sends_nothing_does_not_keep_the_rate_from_growing() {
        let tail = |bound| Some(Objective::Tail { percentile: Percentile::P99, bound });
        let objectives = [tail(BOUND), None, tail(BOUND * 2)];
        let mut quota =
            Quota::new(&objectives, Patience::OURS, 100, 2, Nanos::from_secs(1), Limits::Rate);
        run(&mut quota, 50, 100, 1);
        assert_eq!(quota.best_effort_limit, Some(900.0));
        run(&mut quota, 10, 90, 2);
        let grown = quota.best_effort_limit.unwrap();
        assert!(grown > 900.0, "connection 2 had no answer: {grown}");
        quota.promises.iter_mut().for_each(Promise::forget);
        (quota.best_effort, quota.all) = (1000, 1000);
        quota.adjust(1.0, Nanos::from_secs(4));
        assert_eq!(quota.best_effort_limit, Some(grown), "no answer at all is no evidence");
    }

    #[test]
    fn best_effort_grows_at_the_marks_where_intervals_settle_up_to_what_was_too_much() {
        let mut quota = quota(1, 1);
        let mut moved_to = |late: u64, now_s: u64| {
            let limit = quota.best_effort_limit.unwrap_or(1000.0);
            let promise = &mut quota.promises[0];
            promise.forget();
            (0..1000 - late).for_each(|_| promise.note(0.0, 2000));
            (0..late).for_each(|_| promise.note(1.0, 2000));
            (quota.best_effort, quota.all) = (limit.round() as u64, 1000);
            quota.adjust(1.0, Nanos::from_secs(now_s));
            quota.best_effort_limit
        };
        assert_eq!(moved_to(9, 1), None, "no limit yet");
        assert_eq!(moved_to(60, 2), Some(900.0));
        assert_eq!(moved_to(60, 3), Some(900.0), "the queue of before drains");
        assert_eq!(moved_to(9, 4), Some(920.0), "0.9 of what is allowed");
        assert_eq!(moved_to(12, 5), Some(920.0), "too many are late, though not significantly");
        let settled = (6..20).map(|now_s| moved_to(9, now_s)).last();
        assert_eq!(settled, Some(Some(970.0)));
        assert_eq!(moved_to(9, 62), Some(990.0), "after a minute it tries more");
        assert_eq!(moved_to(60, 63), Some(891.0));
        moved_to(9, 64);
        let settled = (65..180).map(|now_s| moved_to(9, now_s)).last();
        assert_eq!(settled, Some(Some(SAFE * 990.0)), "and then waits for two");
    }

    /// One promised connection, and a hundred of best effort whose level is limited.
    fn levelled() -> Quota {
        let tail = Some(Objective::Tail { percentile: Percentile::P99, bound: BOUND });
        let objectives = [vec![tail], vec![None; 100]].concat();
        let second = Nanos::from_secs(1);
        Quota::new(&objectives, Patience::OURS, 2000, 2, second, Limits::Level)
    }

    #[test]
    fn a_level_limits_turns_at_a_time_and_moves_by_the_same_steps() {
        let mut quota = levelled();
        assert_eq!(quota.level(), None, "no promise is broken yet");
        run(&mut quota, 50, 100, 1);
        assert_eq!(quota.level(), Some(91), "90 of 100, and the promised connection");
        let mut allow = vec![Allowance::turns_of(1); 101];
        quota.allow(&seen(2000, &[1; 101]), &mut allow);
        assert_eq!(allow[1], Allowance::turns_of(2), "no rate is in force");
        run(&mut quota, 10, 90, 2);
        assert_eq!(quota.level(), Some(93), "2 % of 90 more");
    }

    #[test]
    fn a_cut_of_a_level_leaves_intervals_as_they_are() {
        let mut quota = levelled();
        quota.promises[0].every = OFTEN;
        run(&mut quota, 50, 100, 1);
        assert_eq!(quota.best_effort_limit, Some(90.0));
        assert!(quota.promises[0].every < OFTEN * 2, "a longer one is late behind the queue");
    }

    #[test]
    fn a_level_grows_only_while_intervals_have_room() {
        let mut quota = levelled();
        quota.best_effort_limit = Some(50.0);
        let mut moved_to = |late: u64, now_s: u64| {
            let promise = &mut quota.promises[0];
            promise.forget();
            (0..2000 - late).for_each(|_| promise.note(0.0, 2000));
            (0..late).for_each(|_| promise.note(1.0, 2000));
            quota.best_effort = 1000;
            quota.adjust(1.0, Nanos::from_secs(now_s));
            quota.best_effort_limit
        };
        assert_eq!(moved_to(19, 1), Some(50.0), "allowed, and above what intervals aim at");
        assert_eq!(moved_to(17, 2), Some(51.0));
    }

    #[test]
    fn a_single_late_answer_is_no_evidence() {
        let mut promise = quota(1, 0).promises.remove(0);
        let mut marks = |late: u32, timely: u32| {
            promise.forget();
            (0..late).for_each(|_| promise.note(1.0, 2000));
            (0..timely).for_each(|_| promise.note(0.0, 2000));
            promise.marks.is_above(0.01)
        };
        assert!(!marks(1, 30), "3 % late, with a standard error as large");
        assert!(!marks(15, 985), "1.5 % late, 1 % allowed");
        assert!(marks(30, 970) && marks(10, 10));
    }

    proptest! {
        /// The interval between turns settles where the share of late answers is just below
        /// the allowed one, whatever the server adds to it (here up to 28 ms in 99 % of cases).
        #[test]
        fn a_connection_is_served_as_often_as_its_objective_needs_and_no_more(
            seed in 0u64..1000,
            scatter_ms in 1.0f64..6.0,
        ) {
            let mut promise = quota(1, 0).promises.remove(0);
            let mut state = seed.wrapping_mul(2).wrapping_add(1);
            let mut late = 0_u32;
            for answer in 0..60_000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let share = (state >> 11) as f64 / (1_u64 << 53) as f64;
                let service = Nanos::from_secs_f64(-scatter_ms / 1e3 * (1.0 - share).ln());
                let mark = promise.mark(promise.every + service, Patience::OURS);
                promise.follow(mark, Patience::OURS);
                late += u32::from(answer >= 20_000 && mark > 0.0);
            }
            let compliance = f64::from(late) / 40_000.0 / 0.01;
            prop_assert!((0.6..=1.0).contains(&compliance), "{compliance}");
        }
    }

    #[test]
    fn a_tightened_promise_restarts_its_judgement_and_others_are_another_quota() {
        let mut quota = quota(1, 1);
        run(&mut quota, 30, 100, 1);
        assert_eq!(quota.worst(), Some(0.0));
        let bound = Nanos::from_millis(20);
        let tight = Some(Objective::Tail { percentile: Percentile::P99, bound });
        assert!(quota.retarget(&[tight, None]));
        assert_eq!(quota.worst(), None);
        run(&mut quota, 30, 100, 1);
        assert_eq!(quota.best_effort_limit, Some(900.0), "30 ms is late now");
        assert!(!quota.retarget(&[None, tight]));
    }

    #[test]
    fn a_rate_that_is_not_used_up_neither_grows_nor_falls() {
        let mut quota = quota(1, 1);
        run(&mut quota, 50, 100, 1);
        run(&mut quota, 10, 10, 100);
        assert_eq!(quota.best_effort_limit, Some(900.0));
    }

    #[test]
    fn a_cut_of_a_rate_that_is_not_used_up_is_one_of_what_is_used() {
        let mut quota = quota(1, 1);
        run(&mut quota, 50, 100, 1);
        run(&mut quota, 10, 60, 2);
        assert_eq!(quota.best_effort_limit, Some(900.0), "600 are used");
        run(&mut quota, 50, 60, 1);
        assert_eq!(quota.best_effort_limit, Some(0.9 * 750.0));
        run(&mut quota, 10, 60, 2);
        run(&mut quota, 50, 1, 1);
        assert!(
            quota.best_effort_limit.unwrap() > 300.0,
            "half at most: {:?}",
            quota.best_effort_limit
        );
    }

    #[test]
    fn best_effort_that_is_back_after_a_pause_has_the_rate_of_before() {
        let mut quota = quota(1, 1);
        run(&mut quota, 50, 100, 1);
        run(&mut quota, 10, 90, 2);
        let before = quota.best_effort_limit;
        assert!(before > Some(900.0));
        run(&mut quota, 10, 0, 100);
        assert_eq!(quota.best_effort_limit, before, "objectives were met in the pause");
        run(&mut quota, 50, 0, 100);
        assert_eq!(quota.best_effort_limit, before, "best effort was not why answers were late");
        run(&mut quota, 10, 90, 1);
        assert!(quota.best_effort_limit >= before, "answers of the pause are no evidence");
    }

    #[test]
    fn best_effort_whose_queries_are_longer_than_a_period_is_cut_for_a_broken_promise() {
        let mut quota = quota(1, 1);
        quota.best_effort_limit = Some(100.0);
        let mut breaks = |best_effort: u64, period: u64| {
            (0..10).for_each(|_| quota.promises[0].note(1.0, 100));
            (quota.best_effort, quota.all) = (best_effort, best_effort + 10);
            quota.adjust(1.01, Nanos::from_millis(1010 * period));
            quota.best_effort_limit
        };
        assert_eq!(breaks(1, 1), Some(45.0), "less than one a second");
        assert_eq!(breaks(1, 2), Some(45.0), "the queue of before drains");
        assert_eq!(breaks(0, 3), Some(45.0), "a query is under way");
        let cut = breaks(1, 4);
        assert!(cut < Some(45.0), "{cut:?}");
        // Best effort is silent for more than ten seconds: its last marks count no longer.
        let paused = (5..20).map(|period| breaks(0, period)).last();
        assert_eq!(paused, Some(cut));
        assert_eq!(quota.worst(), None);
    }

    #[test]
    fn a_promise_broken_without_best_effort_takes_nothing_from_it() {
        let mut quota = quota(1, 1);
        run(&mut quota, 50, 0, 3);
        assert_eq!(quota.best_effort_limit, None, "every answer was late");
        run(&mut quota, 50, 100, 1);
        assert_eq!(quota.best_effort_limit, Some(900.0));
    }

    #[test]
    fn without_a_broken_promise_nothing_is_limited() {
        let mut quota = quota(1, 2);
        run(&mut quota, 10, 100, 10);
        assert_eq!(quota.best_effort_limit, None);
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
        assert_eq!(served(&mut quota, 1000), 5, "half of 40 ms");
        run(&mut quota, 50, 100, 1);
        assert_eq!(served(&mut quota, 10_000), 5, "a cut begins again");
        (0..100).for_each(|_| quota.promises[0].follow(1.0, Patience::OURS));
        assert_eq!(quota.promises[0].every, OFTEN, "100 late answers");
        assert_eq!(served(&mut quota, 15_000), 100);
        run(&mut quota, 10, 100, 60);
        assert!(served(&mut quota, 80_000) < 5, "{}", quota.promises[0].every);
    }

    #[test]
    fn best_effort_shares_its_rate_in_turn() {
        let mut quota = quota(1, 4);
        quota.best_effort_limit = Some(400.0);
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
        let mut quota =
            Quota::new(&[users, None], Patience::OURS, 100, 1, Nanos::from_secs(1), Limits::Rate);
        run(&mut quota, 15, 10, 1);
        assert_eq!(quota.worst(), Some(0.0), "no connection leaves within 20 ms");
        let promise = &mut quota.promises[0];
        promise.forget();
        // 1 - exp(-20 ms / 2 s) = 0.995 % of an allowed 0.1 %.
        promise.note(promise.mark(Nanos::from_millis(40), Patience::OURS), 100);
        assert!((quota.worst().unwrap() - 9.95).abs() < 0.01);
    }

    proptest! {
        #[test]
        fn no_more_is_let_in_than_the_rate_and_what_was_saved(
            steps in prop::collection::vec((1u64..30, prop::collection::vec(0u32..2, 8)), 1..60),
            rate in 50.0f64..5000.0,
        ) {
            let mut quota = quota(0, 8);
            quota.best_effort_limit = Some(rate);
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
