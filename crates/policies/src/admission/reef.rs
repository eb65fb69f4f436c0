//! REEF: few workers at a time, a few queries each, and a rest in between.
//!
//! Li and others, REEF: Energy-efficient, application-QoS-aware thread
//! processing in oversubscribed server environments, SoCC'25,
//! sections 3.2 to 3.4. Worker threads are on call: they run when a round gives
//! them a batch of N queries, no more than C of them at a time. Between two
//! rounds the gate rests for D, the ISR delay, so that cores find idle times
//! beyond the break-even of their deep state. Fewer runnable threads mean less
//! contention; fewer I/Os at a time shorter and steadier ones.
//!
//! - **C** is the fewest workers with the highest throughput, and below the
//!   number of cores (section 3.3); the search is ours ([`crate::toolkit::knee`]). At a live server
//!   it is the fewest that cost nothing beside the open gate ([`crate::toolkit::descent`]).
//! - **D** is the longest with which the load limit lambda is still had, and no
//!   shorter than the break-even; lambda is 105 % of what a busy device gives
//!   ([`crate::toolkit::load_limit`]). At a live server there is no rest while its cores or its
//!   device are busy, and lambda is 105 % of what the open gate gives; where the gate is never
//!   open, D is the break-even.
//! - **N** is at most 8 for throughput; for tails 2 where D reaches the
//!   break-even (section 3.4). A connection with one query at a time keeps its
//!   turn over its round trips, for else N would never exceed 1.
//! - The **turn** of each connection may be set by another admission controller (`policy`);
//!   cap and pause are applied after it.
//!
//! What a round is, the paper says in two ways: one turn for each that has
//! tokens, C at a time (section 4), or the C that may dispatch (section 3.3:
//! "discrete scheduling rounds, during which only C worker threads may
//! dispatch"). With the second, a rest of 1 ms after every 46 queries of the
//! simulated server costs 24 % of its throughput; the first rests once in 1024
//! queries, loses none, and is the default. `turns = "cap"` is the second, and
//! the only one in which rounds may follow each other by lambda alone.
//!
//! Objectives of single connections need the second, because a policy's turns
//! take effect at the start of a round, and a round of all connections takes
//! longer than their bounds. A round ends with its slowest turn, so that all
//! cores are idle in the rest after it. Where there is no rest to come, nothing
//! is gained by waiting for it, and the slots of the other turns are empty
//! meanwhile: 14 % of the simulated server's throughput. Rounds of `turns =
//! "cap"` without a rest therefore follow each other without a gap: a slot that
//! becomes free takes the next turn, until the mean over D_max exceeds lambda
//! and a rest is due (docs/design/reef.md).
//!
//! With closed-loop clients, a share 1/N of all queries waits for a whole cycle
//! of the ring and the others hardly at all, so the p99 is N mean latencies.
//! This is exact enough to be a test, and it is why N = 2 has about four times
//! the EE(P99) of N = 8 (Fig. 10).
//!
//! Checked against: `lull lab run reef-batch`, `reef-lambda`, `reef-policies`.

use super::cap_search::CapSearch;
use super::{AdmissionKind, Site};
use crate::config::{config, positive_time, read, text, within, wrong};
use crate::entry::{ConfigSchema, Entry, Registry};
use crate::toolkit::load_limit::LoadLimit;
use lull_control::admission::{
    Admission, Allowance, GateObservation, Pace, RoundLimits, RoundObservation,
};
use lull_control::{Objective, PolicyError};
use lull_measure::Nanos;
use serde::{Deserialize, Serialize};

/// The registry's entry.
pub(crate) static ENTRY: Entry<AdmissionKind> = Entry {
    name: "reef",
    paper: "REEF (Li et al., SoCC'25), sections 3.2 to 3.4",
    summary: "Admits batches in rounds of few workers, and rests between them so that cores sleep.",
    kind: AdmissionKind { needs: "a core that other apps do not use" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site, all| Ok(Box::new(Reef::new(read(table)?, site, all)?)),
};

config! {
    /// Rounds, batches and the load limit.
    struct Config checked by check {
        /// The purpose of batches: `throughput` (N up to 8) or `tail` (N = 2).
        goal: Goal = Goal::Tail,
        /// N, queries in one turn at most; 0: by the goal (section 3.4).
        batch: u32 = 0,
        /// C, turns at a time; 0: searched for, below the number of cores.
        cap: u32 = 0,
        /// Connections that have a turn in one round: `all` that wait, or as many as `cap`.
        turns: Turns = Turns::All,
        /// lambda over the mean throughput of a busy device, in percent (Fig. 9: 105).
        load_percent: f64 = 105.0,
        /// That mean throughput, per second; 0: found online.
        load_per_s: f64 = 0.0,
        /// D_min, and the break-even of the deep idle state (section 3.2: 1 ms);
        /// 0 never rests where that costs throughput.
        #[serde(serialize_with = "text")]
        least_pause: Nanos = Nanos::from_millis(1),
        /// D_max (ours).
        #[serde(serialize_with = "text")]
        most_pause: Nanos = Nanos::from_millis(100),
        /// Whether rounds follow each other by lambda alone, with no hard cap
        /// and although the one before may not have ended.
        overlap: bool = false,
        /// How long throughput is measured for each step of a search (ours).
        #[serde(serialize_with = "text")]
        window: Nanos = Nanos::from_secs(2),
        /// Another admission controller that sets each connection's turn; empty: all alike.
        policy: String = String::new(),
    }
}

/// The purpose of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Goal {
    Throughput,
    Tail,
}

/// How many have a turn in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Turns {
    Cap,
    All,
}

/// Time between two decisions while rounds follow each other without a rest (ours).
const LOOK: Nanos = Nanos::from_millis(10);
/// The same while the gate is open (ours).
const OPEN_LOOK: Nanos = Nanos::from_millis(100);
/// Cores that must be idle in the mean for a rest to cost nothing (ours).
const IDLE: f64 = 0.5;
/// Share of the device above which a rest costs throughput (section 3.1).
const DEVICE_FULL: f64 = 0.95;
/// Batches for throughput and for tails (section 3.4).
const LARGE: u32 = 8;
const SMALL: u32 = 2;

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("window", config.window)?;
    within("batch", f64::from(config.batch), 0.0..=1e6)?;
    within("cap", f64::from(config.cap), 0.0..=1e6)?;
    within("load_percent", config.load_percent, 1.0..=1000.0)?;
    within("load_per_s", config.load_per_s, 0.0..=1e9)?;
    if config.least_pause > config.most_pause {
        let message = "`most_pause` is shorter than `least_pause`".to_owned();
        return Err(wrong("most_pause", message));
    }
    if config.overlap && config.turns == Turns::All {
        let message = "`overlap` needs `turns = \"cap\"`: a round of all has no length beforehand";
        return Err(wrong("overlap", message.to_owned()));
    }
    if config.policy == ENTRY.name {
        return Err(wrong("policy", "`policy` cannot be `reef` itself".to_owned()));
    }
    Ok(())
}

struct Reef {
    config: Config,
    search: CapSearch,
    limit: LoadLimit,
    policy: Option<Box<dyn Admission>>,
    pause: Nanos,
    /// The stretch without a rest that is under way.
    stretch: Option<Stretch>,
    cores: u32,
    /// Whether rests must cost nothing, and how many cores the server keeps busy, if that is known.
    is_live: bool,
    busy: Option<f64>,
    /// Whether its device has hardly any throughput left, as far as that is known.
    is_device_full: bool,
    /// Whether lambda follows what the closed gate lets through: a live server may answer less
    /// because the gate itself rests.
    follows_gate: bool,
}

/// Rounds that follow each other without a rest, since a time.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    since: Nanos,
    queries: u32,
}

impl Reef {
    fn new(
        config: Config,
        site: &Site<'_>,
        all: &Registry<AdmissionKind>,
    ) -> Result<Self, PolicyError> {
        let policy = match config.policy.as_str() {
            "" => None,
            name => {
                let built =
                    all.find(name).and_then(|entry| all.build(name, &entry.defaults(), site));
                Some(built.map_err(|error| match error {
                    PolicyError::Config { key, message } if key == "name" => {
                        wrong("policy", message)
                    }
                    other => other,
                })?)
            }
        };
        let pauses = (config.least_pause, config.most_pause);
        let limit = LoadLimit::new(config.load_percent / 100.0, pauses, config.window);
        let limit = match config.load_per_s {
            given if given > 0.0 => limit.given(given),
            _ => limit,
        };
        let most = site.cores.min(site.objectives.len() as u32);
        let pause = config.least_pause;
        let search = CapSearch::new(config.cap, most, config.window, site);
        let (cores, is_live) = (site.cores, site.is_live && site.workers.may_wait());
        Ok(Self {
            search,
            config,
            limit,
            policy,
            pause,
            stretch: None,
            cores,
            is_live,
            busy: None,
            is_device_full: false,
            follows_gate: !site.is_live,
        })
    }

    /// N for this pause.
    fn batch(&self) -> u32 {
        match (self.config.batch, self.config.goal) {
            (0, Goal::Throughput) => LARGE,
            (0, Goal::Tail) if self.pause < self.config.least_pause => LARGE,
            (0, Goal::Tail) => SMALL,
            (given, _) => given,
        }
    }

    /// Returns whether a rest may cost throughput: at a live server all cores that the server uses
    /// are busy, as far as that is known, or the device is.
    fn must_work(&self) -> bool {
        let has_idle = |busy: f64| busy <= f64::from(self.cores) - IDLE;
        self.is_live && (self.is_device_full || !self.busy.is_some_and(has_idle))
    }

    /// D: the break-even while C is searched for, then as long as lambda allows.
    fn rest(&mut self, seen: &GateObservation<'_>) -> Nanos {
        if self.must_work() {
            return Nanos::ZERO;
        }
        if !self.search.has_settled() {
            return self.config.least_pause;
        }
        match (self.follows_gate, self.search.best_per_s(), self.search.open_per_s()) {
            (true, Some(best_per_s), _) => self.limit.start(best_per_s),
            (false, _, Some(open_per_s)) => self.limit.follow(open_per_s),
            _ => {}
        }
        let round = seen.round.or_else(|| self.stretched(seen));
        self.limit.pause(round)
    }

    /// Rounds without a rest as one round, once they have lasted for D_max.
    fn stretched(&mut self, seen: &GateObservation<'_>) -> Option<RoundObservation> {
        let stretch = self.stretch.as_mut()?;
        stretch.queries += seen.answered.iter().map(|one| one.queries).sum::<u32>();
        let took = seen.now.saturating_sub(stretch.since);
        if took < self.config.most_pause {
            return None;
        }
        let queries = stretch.queries;
        self.stretch = Some(Stretch { since: seen.now, queries: 0 });
        Some(RoundObservation { turns: 0, queries, took })
    }

    /// How the next turns follow each other.
    fn pace(&mut self, now: Nanos, turns: u32, every: Option<Nanos>) -> Pace {
        let is_gapless = (self.config.turns == Turns::Cap || self.is_live) && every.is_none();
        if is_gapless && self.pause == Nanos::ZERO {
            self.stretch.get_or_insert(Stretch { since: now, queries: 0 });
            return Pace::Flow { again: LOOK };
        }
        self.stretch = None;
        Pace::Rounds { turns, pause: self.pause, every }
    }
}

impl Admission for Reef {
    fn decide(&mut self, seen: &GateObservation<'_>, admission: &mut RoundLimits) {
        self.search.note(seen);
        if self.follows_gate {
            self.limit.note(seen);
        }
        self.is_device_full = seen.device.as_ref().is_ok_and(|share| *share > DEVICE_FULL);
        if let Ok(times) = &seen.server
            && times.span > Nanos::ZERO
        {
            self.busy = Some(times.cpu.as_secs_f64() / times.span.as_secs_f64());
        }
        self.pause = self.rest(seen);
        let cap = self.search.cap();
        if cap.is_none() && self.policy.is_none() {
            self.stretch = None;
            admission.allow.fill(Allowance::turns_of(u32::MAX));
            (admission.cap, admission.pace) = (u32::MAX, Pace::Open { again: OPEN_LOOK });
            return;
        }
        match &mut self.policy {
            // The first search breaks promises; they are kept once it has ended.
            Some(policy) if self.search.has_settled() => policy.decide(seen, admission),
            _ => admission.allow.fill(Allowance::turns_of(u32::MAX)),
        }
        let (batch, cap) = (self.batch(), cap.unwrap_or(u32::MAX));
        let turns = match self.config.turns {
            Turns::Cap => cap,
            Turns::All => u32::MAX,
        };
        let every = self.limit.every(cap.saturating_mul(batch)).filter(|_| self.config.overlap);
        admission.cap = if every.is_some() { u32::MAX } else { cap };
        admission.pace = self.pace(seen.now, turns, every);
        // A round has one turn of each connection. Without rounds what a connection may run counts
        // until the next decision, and its turns follow each other.
        let is_round = matches!(admission.pace, Pace::Rounds { .. });
        for allow in &mut admission.allow {
            allow.batch = allow.batch.min(allow.queries).min(batch);
            if is_round {
                allow.queries = allow.batch;
            }
        }
    }

    /// Cap and pause know no promises; the policy behind them may.
    fn retarget(&mut self, objectives: &[Option<Objective>]) -> bool {
        self.policy.as_mut().is_none_or(|policy| policy.retarget(objectives))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, build, refused};
    use lull_control::admission::{Pace, RoundLimits, RoundObservation, ServerTimes};
    use lull_measure::Nanos;

    fn decided(config: &str, bench: &mut Bench) -> RoundLimits {
        let mut admission = RoundLimits::open(bench.objectives.len());
        build("reef", config, bench).decide(&bench.seen(), &mut admission);
        admission
    }

    fn pause(admission: &RoundLimits) -> Nanos {
        match admission.pace {
            Pace::Rounds { pause, .. } => pause,
            other => panic!("{other:?}"),
        }
    }

    fn round(queries: u32, took_us: u64) -> Option<RoundObservation> {
        Some(RoundObservation { turns: queries, queries, took: Nanos::from_micros(took_us) })
    }

    #[test]
    fn batches_are_of_two_for_tails_and_of_eight_for_throughput() {
        let mut bench = Bench::best_effort(64);
        let batch = |admission: RoundLimits| (admission.allow[0].batch, admission.allow[0].queries);
        assert_eq!(batch(decided("cap = 20", &mut bench)), (2, 2));
        assert_eq!(batch(decided("cap = 20\ngoal = \"throughput\"", &mut bench)), (8, 8));
        assert_eq!(batch(decided("cap = 20\nbatch = 3", &mut bench)), (3, 3));
    }

    #[test]
    fn a_live_server_has_rests_only_while_a_core_is_idle() {
        let mut bench = Bench::best_effort(64);
        (bench.is_live, bench.round) = (true, round(40, 1500));
        let config = "cap = 20\nload_percent = 100.0\nload_per_s = 10000.0";
        let busy = |cores: u64| {
            let span = Nanos::from_millis(100);
            Ok(ServerTimes { span, cpu: span * cores, run_queue: Nanos::ZERO })
        };
        let flows = |admission: &RoundLimits| matches!(admission.pace, Pace::Flow { .. });
        assert!(flows(&decided(config, &mut bench)), "nothing is known of its cores");
        bench.server = busy(23);
        assert!(flows(&decided(config, &mut bench)));
        bench.server = busy(22);
        assert_eq!(pause(&decided(config, &mut bench)), Nanos::from_micros(2500));
        bench.device = 0.96;
        assert!(flows(&decided(config, &mut bench)), "a rest would leave the device idle");
    }

    #[test]
    fn a_live_server_whose_gate_is_never_open_rests_for_the_break_even() {
        let mut bench = Bench::best_effort(64);
        (bench.is_live, bench.device, bench.round) = (true, 1.0, round(40, 1500));
        bench.workers = super::super::Workers::Rest;
        let config = "cap = 20\nload_percent = 100.0\nwindow = \"100ms\"";
        let mut reef = build("reef", config, &bench);
        let mut admission = RoundLimits::open(64);
        let mut pauses = |per_s: f64| {
            for _ in 0..100 {
                bench.pass(Nanos::from_millis(100), per_s);
                reef.decide(&bench.seen(), &mut admission);
            }
            pause(&admission)
        };
        // With what its own rests leave as lambda, 40 queries at 1,000 a second would be 38.5 ms.
        assert_eq!(pauses(1000.0), Nanos::from_millis(1));
    }

    #[test]
    fn a_round_is_of_all_or_of_as_many_turns_as_may_be_held() {
        let mut bench = Bench::best_effort(64);
        let turns = |admission: RoundLimits| match admission.pace {
            Pace::Rounds { turns, .. } => (turns, admission.cap),
            other => panic!("{other:?}"),
        };
        assert_eq!(turns(decided("cap = 20", &mut bench)), (u32::MAX, 20));
        assert_eq!(turns(decided("cap = 20\nturns = \"cap\"", &mut bench)), (20, 20));
    }

    #[test]
    fn the_rest_is_what_the_load_limit_leaves_and_no_less_than_the_break_even() {
        let mut bench = Bench::best_effort(64);
        bench.round = round(40, 1500);
        let config = "cap = 20\nload_percent = 100.0\nload_per_s = ";
        let slow = decided(&format!("{config}10000.0"), &mut bench);
        assert_eq!(pause(&slow), Nanos::from_micros(2500), "4 ms for 40 queries less 1.5 ms");
        let quick = decided(&format!("{config}20000.0"), &mut bench);
        assert_eq!(pause(&quick), Nanos::from_millis(1));
        let never = decided(&format!("{config}20000.0\nleast_pause = \"0s\""), &mut bench);
        assert_eq!(pause(&never), Nanos::from_micros(500));
        bench.round = round(20, 1500);
        let small = decided(&format!("{config}10000.0\nbatch = 1"), &mut bench);
        assert!(pause(&small) < pause(&slow), "smaller batches shorten the rest");
    }

    #[test]
    fn rounds_without_a_rest_leave_no_slot_empty_until_the_limit_is_exceeded() {
        let mut bench = Bench::best_effort(64);
        let config = "cap = 20\nload_percent = 100.0\nload_per_s = 10000.0\nturns = \"cap\"\n\
                      least_pause = \"0s\"";
        let mut reef = build("reef", config, &bench);
        let mut admission = RoundLimits::open(64);
        let mut run = |per_s: f64, looks: u32| -> Vec<Pace> {
            let mut decide = |_| {
                bench.pass(Nanos::from_millis(10), per_s);
                reef.decide(&bench.seen(), &mut admission);
                admission.pace
            };
            (0..looks).map(&mut decide).collect()
        };
        let flows = |pace: &Pace| matches!(pace, Pace::Flow { .. });
        assert!(run(9900.0, 100).iter().all(flows), "below the limit no rest is due");
        let above = run(12_000.0, 15);
        let rest = above.iter().find(|pace| !flows(pace)).expect("a rest is due");
        // 100 ms or less at 20 % above the limit.
        let due = |rest: Nanos| rest > Nanos::ZERO && rest <= Nanos::from_millis(20);
        assert!(matches!(rest, Pace::Rounds { turns: 20, pause, .. } if due(*pause)), "{rest:?}");
    }

    #[test]
    fn rounds_that_overlap_follow_the_limit_alone() {
        let mut bench = Bench::best_effort(64);
        let config = "cap = 20\nload_percent = 100.0\nload_per_s = 16000.0\nturns = \"cap\"\n\
                      overlap = true";
        let admission = decided(config, &mut bench);
        let every = Some(Nanos::from_micros(2500));
        assert!(matches!(admission.pace, Pace::Rounds { every: found, .. } if found == every));
        assert_eq!(admission.cap, u32::MAX);
    }

    #[test]
    fn the_search_stays_below_the_cores() {
        let mut bench = Bench::best_effort(64);
        bench.cores = 5;
        let mut reef = build("reef", "", &bench);
        let mut admission = RoundLimits::open(64);
        let mut caps = Vec::new();
        for _ in 0..2000 {
            let per_s = f64::from(admission.cap.min(64)) * 1000.0;
            bench.pass(Nanos::from_millis(100), per_s);
            reef.decide(&bench.seen(), &mut admission);
            caps.push(admission.cap);
        }
        assert_eq!(caps.iter().max(), Some(&5));
        // It tries one fewer now and then.
        assert!(caps[1000..].iter().all(|cap| *cap >= 4));
    }

    #[test]
    fn who_goes_first_is_the_policys_and_how_long_a_turn_at_most_is_its_own() {
        let mut bench = Bench::promised(1, 63);
        let admission = decided("cap = 20\npolicy = \"pslo\"", &mut bench);
        assert!(admission.allow[0].first && !admission.allow[1].first);
        assert!(admission.allow.iter().all(|one| one.batch <= 2));
        let mut alone = Bench::best_effort(4);
        let apples = decided("cap = 2\npolicy = \"apples\"\nbatch = 8", &mut alone);
        assert_eq!(apples.allow[0].batch, 4, "AppleS gives turns of 4");
    }

    #[test]
    fn strange_configs_are_refused_by_key() {
        let bench = Bench::best_effort(4);
        for (config, key) in [
            ("policy = \"reef\"", "policy"),
            ("policy = \"aples\"", "policy"),
            ("most_pause = \"1us\"", "most_pause"),
            ("overlap = true", "overlap"),
            ("load_percent = 0.0", "load_percent"),
            ("goal = \"speed\"", "goal"),
        ] {
            let error = refused("reef", config, &bench);
            let lull_control::PolicyError::Config { key: found, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!(found, key, "{error}");
        }
    }
}
