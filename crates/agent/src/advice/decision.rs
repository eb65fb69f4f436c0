//! Whether a concurrency limit is likely to help, decided from a watch of the server without
//! one. A pure function: what was observed in, verdict with its reasons out.
//!
//! A limit raises throughput where queries that are under way together cost more each. Two
//! costs are compared between many and few under way ([`cost`](super::cost)): the CPU time of a
//! query, which a stalled disk or a slow client does not raise, and the time between two
//! answers of the server, which is what a limit has to shorten. `LikelyHelps` needs both: one
//! of them alone rises also where nothing is gained, such as when other programs take the
//! cores, or when the clients have the time that the server saves. `UnlikelyToHelp` needs
//! that neither rises.

use super::cost::saving;
use super::observation::{Interval, Observation, Queries};
use serde::Serialize;

/// Queries under way that a limit leaves for each core. Fewer leave cores idle while answers
/// travel to clients and back (`docs/on-call-measurements.md`).
pub const UNDER_WAY_PER_CORE: f64 = 4.0;
/// Queries under way for each core from which on the cost is compared.
const BUSY_UNDER_WAY_PER_CORE: f64 = 2.0;
/// CPU time by which the gate makes a transaction more expensive, at most: of the rows of
/// `docs/on-call-measurements.md` in which no limit helps, one with 16 costs 7 to 10 us more.
const GATE_COST_S: f64 = 10e-6;
/// Gain above which a limit is worth a restart.
const GAIN_MIN: f64 = 1.05;
/// Share of the cores' time above which cores limit the throughput.
const SATURATED: f64 = 0.85;
/// Share of the cores' time below which, without eBPF, no limit is needed.
const IDLE: f64 = 0.5;
/// Fewest answers a second that say something about contention.
const ANSWERS_PER_S_MIN: f64 = 20.0;
/// Largest over smallest number under way, without a twentieth at both ends, from which on
/// the cost is compared.
const VARIATION_MIN: f64 = 1.25;

/// A limit is called unlikely to help only if fewer than this many times its queries were seen
/// under way: the line is not extrapolated further to a verdict against the limit.
const FEW_LIMITS: f64 = 2.0;

/// Whether a concurrency limit is likely to raise the throughput.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// A limit is likely to raise the throughput by more than 5 %.
    LikelyHelps,
    /// A limit is unlikely to do so, or cannot be set.
    UnlikelyToHelp,
    /// The watch does not decide it.
    CannotTell,
}

/// The next step, which would answer the question that a verdict leaves open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NextStep {
    /// No next step.
    None,
    /// Watch the server again under its usual load.
    WatchAgain,
    /// Preload the library, for its statistics only.
    Statistics,
    /// Let the controller `auto` compare limits with the open gate.
    TryAuto,
}

/// A verdict with its evidence.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// The verdict.
    pub verdict: Verdict,
    /// Why.
    pub reason: String,
    /// Throughput with a limit over that without, if it was estimated: from the lower of the
    /// two ends to the higher.
    pub gain: Option<Gain>,
    /// The recommended next step.
    pub next_step: NextStep,
}

/// An estimate of throughput with a limit over that without.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gain {
    /// Queries under way for which the lower end was estimated: as few as were seen, and not
    /// fewer than a limit leaves.
    pub under_way: f64,
    /// Lower end of a 90 % interval, at which both costs agree and all that the estimate does
    /// not know is against the limit: each query is a transaction that pays for the gate, and
    /// other programs' CPU time is that of the clients.
    pub low: f64,
    /// Upper end, at which one of the costs suffices and all that is for the limit.
    pub high: f64,
    /// The estimate by the server's CPU time a query alone.
    pub by_cpu_time: f64,
    /// The estimate by the time between two answers alone.
    pub by_throughput: f64,
}

/// Decides from an observation. `obstacle` is the reason why the server cannot have a gate, if it
/// cannot.
pub fn decide(seen: &Observation, obstacle: Option<&str>) -> Decision {
    if let Some(why) = obstacle {
        return unlikely(why.to_owned());
    }
    match &seen.queries {
        Ok(queries) => decide_by_queries(seen, queries),
        Err(why) => decide_by_proc(seen, &why.to_string()),
    }
}

fn decide_by_queries(seen: &Observation, queries: &Queries) -> Decision {
    let seconds = seen.time.as_secs_f64();
    let cores = seen.cores.max(1) as f64;
    let (answered, sums) = (queries.sums.answered as f64, &queries.sums);
    if answered < ANSWERS_PER_S_MIN * seconds {
        let what = NextStep::WatchAgain;
        return undecided(
            what,
            format!(
                "{answered} queries were answered in {seconds:.0} s: watch it under its usual load"
            ),
        );
    }
    if 10.0 * queries.displaced as f64 > answered {
        return unlikely(
            "its threads serve several connections at a time: the gate does not act there"
                .to_owned(),
        );
    }
    let (most, limit) = (usual_range(&queries.intervals).1, UNDER_WAY_PER_CORE * cores);
    if most < limit {
        return unlikely(format!(
            "at 95 % of the answers at most {most:.1} queries are under way: a limit that keeps \
             {cores} cores busy leaves {limit:.0} and does not bind"
        ));
    }
    if seen.busy_cores < SATURATED * cores {
        let share = |part: f64| 100.0 * part / sums.lasted_seconds;
        return undecided(
            NextStep::TryAuto,
            format!(
                "{:.1} of {cores} cores are busy and do not limit the throughput: a query \
             spends {:.0} % of its time waiting for locks or other threads and {:.0} % for the \
             disk",
                seen.busy_cores,
                share(sums.blocked_seconds),
                share(sums.disk_seconds),
            ),
        );
    }
    decide_by_gain(seen, queries, limit)
}

/// Decides for a server whose cores are busy and that has more queries under way than a limit
/// would leave.
fn decide_by_gain(seen: &Observation, queries: &Queries, limit: f64) -> Decision {
    // With fewer queries under way, cores are idle at times, and the clients set the rate of
    // answers.
    let beyond = BUSY_UNDER_WAY_PER_CORE * seen.cores.max(1) as f64;
    let intervals = queries.intervals.iter().filter(|one| one.under_way >= beyond);
    let intervals: Vec<Interval> = intervals.copied().collect();
    let (few, many) = usual_range(&intervals);
    if many < VARIATION_MIN * few {
        return undecided(
            NextStep::TryAuto,
            format!(
                "between {few:.0} and {many:.0} queries were under way at all times: how much a \
                 query costs with fewer was not seen"
            ),
        );
    }
    let Some(gain) = gain(seen, &intervals, limit, few) else {
        return undecided(
            NextStep::WatchAgain,
            "too few intervals with answers: watch it for longer".to_owned(),
        );
    };
    let range = format!("times {:.2} to {:.2} (90 %)", gain.low, gain.high);
    let verdict = if gain.low > GAIN_MIN {
        Verdict::LikelyHelps
    } else if gain.high < GAIN_MIN && few < FEW_LIMITS * limit {
        Verdict::UnlikelyToHelp
    } else {
        Verdict::CannotTell
    };
    let reason = match verdict {
        Verdict::LikelyHelps => format!(
            "a query costs less while fewer are under way: throughput {range} with {:.0} under \
             way instead of {:.0}",
            gain.under_way,
            queries.under_way_at_answers()
        ),
        Verdict::UnlikelyToHelp => {
            format!("a query costs as much while fewer are under way: throughput {range}")
        }
        Verdict::CannotTell => format!(
            "throughput {range} with {limit:.0} under way, of {few:.0} to {many:.0} that were \
             seen: times {:.2} by CPU time, {:.2} by the rate of answers",
            gain.by_cpu_time, gain.by_throughput
        ),
    };
    let next_step = match verdict {
        Verdict::UnlikelyToHelp => NextStep::None,
        Verdict::LikelyHelps | Verdict::CannotTell => NextStep::TryAuto,
    };
    Decision { verdict, reason, gain: Some(gain), next_step }
}

/// Estimates the gain of a limit that leaves this many queries under way, where no fewer than `few`
/// were seen.
fn gain(seen: &Observation, intervals: &[Interval], limit: f64, few: f64) -> Option<Gain> {
    // The clients' use is at most that of all other programs.
    let others = (seen.busy_cores - seen.server_cores).max(0.0) / rate(intervals);
    let with_clients = |one: &Interval| one.cpu_seconds + others * one.answered as f64;
    let cpu_time = |one: &Interval| one.cpu_seconds;
    let time = |one: &Interval| one.seconds;
    // Within the data, and with the gate's CPU time, which delays answers by its share of the
    // cores.
    let under_way = limit.max(few);
    let delay = GATE_COST_S / seen.cores.max(1) as f64;
    let low = [
        saving(intervals, with_clients, under_way, GATE_COST_S)?,
        saving(intervals, time, under_way, delay)?,
    ];
    let high = [saving(intervals, cpu_time, limit, 0.0)?, saving(intervals, time, limit, 0.0)?];
    Some(Gain {
        under_way,
        low: low[0].low.min(low[1].low),
        high: high[0].high.max(high[1].high),
        by_cpu_time: high[0].value,
        by_throughput: high[1].value,
    })
}

/// Decides without queries: only whether cores are idle is known.
fn decide_by_proc(seen: &Observation, why: &str) -> Decision {
    let cores = seen.cores.max(1) as f64;
    if seen.busy_cores < IDLE * cores && seen.queued_threads < 1.0 {
        return unlikely(format!(
            "{:.1} of {cores} cores are busy and {:.1} threads wait for one; queries were not \
             seen ({why}), so that waits for locks are unknown",
            seen.busy_cores, seen.queued_threads
        ));
    }
    undecided(NextStep::Statistics, format!("queries were not seen: {why}"))
}

const fn unlikely(reason: String) -> Decision {
    let next_step = NextStep::None;
    Decision { verdict: Verdict::UnlikelyToHelp, reason, gain: None, next_step }
}

const fn undecided(next_step: NextStep, reason: String) -> Decision {
    Decision { verdict: Verdict::CannotTell, reason, gain: None, next_step }
}

impl Queries {
    /// Queries under way on average over the time.
    pub fn under_way(&self) -> f64 {
        let seconds: f64 = self.intervals.iter().map(|one| one.seconds).sum();
        let product = |one: &Interval| one.seconds * one.under_way;
        self.intervals.iter().map(product).sum::<f64>() / seconds.max(f64::MIN_POSITIVE)
    }

    /// Queries under way on average over the answers, so that idle times do not count.
    fn under_way_at_answers(&self) -> f64 {
        let product = |one: &Interval| one.answered as f64 * one.under_way;
        let answered: u64 = self.intervals.iter().map(|one| one.answered).sum();
        self.intervals.iter().map(product).sum::<f64>() / (answered as f64).max(1.0)
    }
}

/// Answers a second.
fn rate(intervals: &[Interval]) -> f64 {
    let seconds: f64 = intervals.iter().map(|one| one.seconds).sum();
    let answered: u64 = intervals.iter().map(|one| one.answered).sum();
    answered as f64 / seconds.max(f64::MIN_POSITIVE)
}

/// The number under way that one answer in twenty had at most, and at least.
fn usual_range(intervals: &[Interval]) -> (f64, f64) {
    let mut sorted: Vec<&Interval> = intervals.iter().collect();
    sorted.sort_by(|one, other| one.under_way.total_cmp(&other.under_way));
    let all: u64 = sorted.iter().map(|one| one.answered).sum();
    let at = |share: f64| {
        let mut left = share * all as f64;
        let reached = sorted.iter().find(|one| {
            left -= one.answered as f64;
            left <= 0.0
        });
        reached.map_or(0.0, |one| one.under_way)
    };
    (at(0.05), at(0.95))
}
