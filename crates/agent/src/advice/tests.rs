//! The decision on simulated servers whose true gain is known, and on every kind of watch.

use super::*;
use lull_control::Rng;
use lull_measure::{Missing, Nanos};
use rand::{RngExt, SeedableRng};

const CORES: usize = 2;
/// Transactions that a limit leaves under way.
const LIMIT: usize = 4 * CORES;
const INTERVAL_S: f64 = 0.05;
const WATCHED_S: f64 = 20.0;

/// A server whose clients send their next query after a while, on the server's cores.
#[derive(Debug, Clone, Copy)]
struct Simulated {
    clients: usize,
    /// Time of a client between an answer and its next query.
    think_s: f64,
    /// CPU time of a query at the server: alone, and more for each query under way.
    base_s: f64,
    slope_s: f64,
    /// CPU time of a query at its client.
    client_s: f64,
    /// Whether the number of clients varies.
    varies: bool,
}

/// Read-write transactions on MariaDB: the line through its rows of 64, 256 and 512 connections
/// in `docs/on-call-measurements.md`, half of which are under way (measured at 64).
const READ_WRITE: Simulated = Simulated {
    clients: 512,
    think_s: 3e-3,
    base_s: 25e-6,
    slope_s: 0.16e-6,
    client_s: 15e-6,
    varies: true,
};

impl Simulated {
    /// Watches the simulated server for this long, with at most `limit` queries under way.
    fn watch(&self, seconds: f64, limit: usize, rng: &mut Rng) -> Observation {
        let (mut now, mut under_way, mut waiting, mut busy_s) = (0.0, 0_usize, 0_usize, 0.0);
        let (mut active, mut next_change) = (self.clients, 0.0);
        let mut intervals = vec![Interval::default()];
        while now < seconds {
            if self.varies && now >= next_change {
                active = (rng.random_range(0.1..1.0) * self.clients as f64) as usize;
                next_change = now + rng.random_range(0.2..1.0);
            }
            let thinking = active.saturating_sub(under_way + waiting) as f64;
            let cost_s = self.base_s + self.slope_s * under_way as f64;
            let busy = under_way.min(CORES) as f64;
            let (arrivals, answers) = (thinking / self.think_s, busy / (cost_s + self.client_s));
            let wait_s = -rng.random_range(1e-12..1.0_f64).ln() / (arrivals + answers);
            // Without memory, a step may end before the next event.
            let step_s = wait_s.min(INTERVAL_S / 10.0);
            if intervals.last().unwrap().seconds >= INTERVAL_S {
                intervals.push(Interval::default());
            }
            let last = intervals.last_mut().unwrap();
            last.seconds += step_s;
            last.under_way += step_s * under_way as f64;
            busy_s += step_s * busy;
            now += step_s;
            if step_s < wait_s {
                continue;
            }
            if rng.random_bool(arrivals / (arrivals + answers)) {
                let is_admitted = under_way < limit;
                under_way += usize::from(is_admitted);
                waiting += usize::from(!is_admitted);
                continue;
            }
            last.answered += 1;
            last.cpu_seconds += cost_s;
            if waiting > 0 {
                waiting -= 1;
            } else {
                under_way -= 1;
            }
        }
        intervals.iter_mut().for_each(|one| one.under_way /= one.seconds);
        observation(intervals, busy_s / now)
    }

    /// Throughput with the limit over that without.
    fn true_gain(&self, seed: u64) -> f64 {
        let rate = |limit| {
            let seen = self.watch(WATCHED_S, limit, &mut Rng::seed_from_u64(seed));
            seen.queries.unwrap().sums.answered as f64
        };
        rate(LIMIT) / rate(usize::MAX)
    }

    fn decide(&self, seed: u64) -> Decision {
        decide(&self.watch(WATCHED_S, usize::MAX, &mut Rng::seed_from_u64(seed)), None)
    }
}

/// A watch with these intervals, of a server whose queries sleep when they do not run.
fn observation(intervals: Vec<Interval>, busy_cores: f64) -> Observation {
    let sum = |of: fn(&Interval) -> f64| intervals.iter().map(of).sum::<f64>();
    let (seconds, cpu_seconds) = (sum(|one| one.seconds), sum(|one| one.cpu_seconds));
    let lasted_seconds = sum(|one| one.seconds * one.under_way);
    let sums = Sums {
        answered: intervals.iter().map(|one| one.answered).sum(),
        lasted_seconds,
        blocked_seconds: lasted_seconds - cpu_seconds,
        cpu_seconds,
        ..Sums::default()
    };
    Observation {
        time: Nanos::from_secs_f64(seconds),
        cores: CORES,
        busy_cores,
        server_cores: cpu_seconds / seconds,
        queued_threads: 0.0,
        connections: 64,
        queries: Ok(Queries { intervals, sums, displaced: 0 }),
    }
}

/// A steady server: this many queries under way, and this many answers, in each interval.
fn steady(under_way: f64, answered: u64, busy_cores: f64) -> Observation {
    let interval = Interval { seconds: INTERVAL_S, under_way, answered, cpu_seconds: 0.05 };
    observation(vec![interval; 400], busy_cores)
}

#[track_caller]
fn expect(decision: &Decision, verdict: Verdict, next_step: NextStep, reason: &str) {
    assert_eq!((decision.verdict, decision.next_step), (verdict, next_step), "{decision:?}");
    assert!(decision.reason.contains(reason), "{decision:?}");
}

#[test]
fn a_server_whose_queries_cost_more_together_is_likely_helped_by_as_much_as_it_is() {
    for seed in 0..3 {
        let decision = READ_WRITE.decide(seed);
        expect(&decision, Verdict::LikelyHelps, NextStep::TryAuto, "costs less");
        let (gain, truth) = (decision.gain.unwrap(), READ_WRITE.true_gain(seed));
        assert!(truth > 1.3 && gain.low < truth, "{truth}, {gain:?}");
    }
}

#[test]
fn a_server_whose_queries_cost_the_same_together_is_never_called_helped() {
    for seed in 0..10 {
        let alike = Simulated { slope_s: 0.0, ..READ_WRITE };
        let decision = alike.decide(seed);
        assert_ne!(decision.verdict, Verdict::LikelyHelps, "{seed}: {decision:?}");
    }
}

#[test]
fn a_server_with_fewer_queries_under_way_than_a_limit_leaves_is_not_helped() {
    let mut rng = Rng::seed_from_u64(1);
    for seed in 0..200 {
        // Point selects and reads: at most a few queries under way, whatever else is seen.
        let intervals = (0..100).map(|_| Interval {
            seconds: INTERVAL_S,
            under_way: rng.random_range(0.0..LIMIT as f64),
            answered: rng.random_range(10..10_000),
            cpu_seconds: rng.random_range(0.0..0.1),
        });
        let decision = decide(&observation(intervals.collect(), 2.0), None);
        expect(&decision, Verdict::UnlikelyToHelp, NextStep::None, "does not bind");
        assert_eq!(decision.gain, None, "{seed}");
    }
}

#[test]
fn an_estimate_is_finite_and_ordered_and_help_needs_all_of_its_evidence() {
    let mut rng = Rng::seed_from_u64(2);
    for _ in 0..2_000 {
        let count = rng.random_range(1..60);
        let most = 10_f64.powf(rng.random_range(-1.0..4.0));
        let interval = |_| Interval {
            seconds: INTERVAL_S,
            under_way: rng.random_range(0.0..most),
            answered: rng.random_range(0..500),
            cpu_seconds: rng.random_range(0.0..0.1),
        };
        let intervals = (0..count).map(interval).collect();
        let seen = observation(intervals, rng.random_range(0.0..2.0));
        let decision = decide(&seen, None);
        if let Some(gain) = decision.gain {
            let Gain { low, high, by_cpu_time, by_throughput, .. } = gain;
            assert!(0.0 < low && low <= high && high.is_finite(), "{gain:?}");
            assert!(by_cpu_time.max(by_throughput) <= high && gain.under_way >= LIMIT as f64);
        }
        if decision.verdict == Verdict::LikelyHelps {
            let gain = decision.gain.unwrap();
            assert!(gain.low > 1.05 && seen.busy_cores > 1.6, "{seen:?}");
        }
    }
}

#[test]
fn clients_that_have_the_time_that_the_server_saves_leave_the_verdict_open() {
    // CPU time a query rises from 20 to 100 us, and the rate of answers stays.
    let interval = |index: u64| {
        let under_way = 8.0 + (index % 40) as f64;
        let cpu_seconds = 1_000.0 * (20e-6 + 2e-6 * (under_way - 8.0));
        Interval { seconds: INTERVAL_S, under_way, answered: 1_000, cpu_seconds }
    };
    let decision = decide(&observation((0..400).map(interval).collect(), 2.0), None);
    expect(&decision, Verdict::CannotTell, NextStep::TryAuto, "by the rate of answers");
}

#[test]
fn stalls_that_cost_no_cpu_time_are_no_contention() {
    // Every eighth interval a disk stalls: many under way, few answers, the same CPU time each.
    let interval = |index: u64| {
        let (under_way, answered) =
            if index.is_multiple_of(8) { (60.0, 100) } else { (10.0, 1_000) };
        let cpu_seconds = answered as f64 * 50e-6;
        Interval { seconds: INTERVAL_S, under_way, answered, cpu_seconds }
    };
    let decision = decide(&observation((0..400).map(interval).collect(), 2.0), None);
    assert_ne!(decision.verdict, Verdict::LikelyHelps, "{decision:?}");
}

#[test]
fn what_an_observation_lacks_is_reported_with_the_step_that_shows_it() {
    let cannot = Verdict::CannotTell;
    let idle = decide(&steady(20.0, 0, 2.0), None);
    expect(&idle, cannot, NextStep::WatchAgain, "0 queries were answered in 20 s");
    let same = decide(&steady(20.0, 500, 2.0), None);
    expect(&same, cannot, NextStep::TryAuto, "between 20 and 20 queries were under way");
    let blocked = decide(&steady(20.0, 500, 1.0), None);
    expect(&blocked, cannot, NextStep::TryAuto, "1.0 of 2 cores are busy");
    assert!(blocked.reason.contains("waiting for locks"), "{blocked:?}");
}

#[test]
fn a_server_that_cannot_have_a_gate_is_not_helped_whatever_was_seen() {
    let mut seen = READ_WRITE.watch(WATCHED_S, usize::MAX, &mut Rng::seed_from_u64(1));
    let decision = decide(&seen, Some("x is linked statically"));
    expect(&decision, Verdict::UnlikelyToHelp, NextStep::None, "linked statically");
    let queries = seen.queries.as_mut().unwrap();
    queries.displaced = queries.sums.answered / 2;
    let decision = decide(&seen, None);
    expect(&decision, Verdict::UnlikelyToHelp, NextStep::None, "several connections at a time");
}

#[test]
fn without_queries_only_idle_cores_decide() {
    let why = || Err(Missing::because("not root"));
    let idle = Observation { queries: why(), ..steady(0.0, 0, 0.3) };
    expect(&decide(&idle, None), Verdict::UnlikelyToHelp, NextStep::None, "not root");
    let busy = Observation { queries: why(), ..steady(0.0, 0, 1.9) };
    expect(&decide(&busy, None), Verdict::CannotTell, NextStep::Statistics, "not root");
    let queued = Observation { queued_threads: 5.0, ..idle };
    expect(&decide(&queued, None), Verdict::CannotTell, NextStep::Statistics, "not root");
}

#[test]
fn times_without_queries_do_not_hide_the_busy_times() {
    let interval = |index: u64| {
        let (under_way, answered) = if index.is_multiple_of(2) { (12.0, 500) } else { (0.0, 0) };
        Interval { seconds: INTERVAL_S, under_way, answered, cpu_seconds: 0.0 }
    };
    let seen = observation((0..400).map(interval).collect(), 1.0);
    assert!(seen.queries.as_ref().unwrap().under_way() < LIMIT as f64);
    expect(&decide(&seen, None), Verdict::CannotTell, NextStep::TryAuto, "1.0 of 2 cores");
}
