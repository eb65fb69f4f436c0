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
//! The limit of best effort is a rate, or with [`Limits::Level`] the queries that it has in
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
use lull_control::admission::{Allowance, GateObservation};
use lull_measure::Nanos;
use lull_measure::compliance::Patience;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

mod marks;
#[cfg(test)]
mod tests;

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
/// Time without an answer after which best effort counts as idle (ours).
const PAUSE_S: f64 = 10.0;
/// When a rate is tried again that was too high, at first and at the latest.
const RETRY: Nanos = Nanos::from_secs(60);
const LATEST_RETRY: Nanos = Nanos::from_secs(600);

/// The limit of best effort.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Limits {
    /// Queries a second.
    Rate,
    /// Queries in service at a time.
    Level,
}

/// The objective of one connection, and how well it is met.
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

/// Objectives of some connections, and the rest for the others.
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
        let stated = objectives.iter().enumerate();
        let stated = stated.filter_map(|(index, one)| Some((index as u32, (*one)?)));
        let promises: Vec<Promise> = stated
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

    /// Notes the answers, and moves the rate once a period.
    pub(crate) fn note(&mut self, seen: &GateObservation<'_>) {
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

    /// Sets the turns of each connection until the next decision.
    pub(crate) fn allow(&mut self, seen: &GateObservation<'_>, allow: &mut [Allowance]) {
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
