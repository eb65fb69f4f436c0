//! auto: tries caps beside the open gate, and closes it only where that helps.
//!
//! REEF (seed 000, section 3.3) sets C by a search for the knee of throughput,
//! and never asks whether there should be a gate at all. On a server whose
//! queries are short and do not contend there should not: point selects lose
//! half of their throughput to any gate (docs/on-call.md). So this one compares
//! each cap with the open gate, on the server at work, and stays open unless
//! the comparisons leave no doubt that the cap is better:
//!
//! ```text
//! open, 64, 32, 16, 8, open, 32, 16, open, 32, 16, open   a window each, three rounds,
//!       │                                                 up to nine where in doubt
//!       │  each over the mean of the open windows before and after
//!       ├─ far worse: neither it nor a smaller one is tried again
//!       ├─ hardly better, or not among the best two: not tried again
//!       └─ surely better, by all rounds' mean and scatter: the best holds; else open
//! then it holds, and asks again after 60 s, 120 s, ... 16 min while the answer
//! stays the same; at once when the load has changed; and for as long as makes
//! three percent of the time go into trying, where windows are long
//! ```
//!
//! What *better* is, is the goal: more throughput; a lower p99 for at most a
//! stated loss of throughput; or either without harm to the other (the default).
//! What is counted is what the gate admits: transactions live, queries simulated.
//!
//! A window is at least four mean latencies long, for what was admitted under
//! the last setting ends under this one; its first quarter does not count. It is
//! up to four times as long where that gives it more of the answers it wants. The
//! worst that a try can do is bounded: a cap that loses a fifth is left after
//! one window, and retries grow rarer: less than 2 % of the time (a test).
//!
//! A window in which the clients stopped or came back for some of the time is
//! not judged: the end of one run and the beginning of the next looked like
//! another load, and the time went into surveys. Nor is a survey judged during
//! which the load changed: if the open gate lets through half or twice of what it
//! did a round before, it begins anew, three times at most. Without this rule the
//! statements that 512 clients prepare when they connect decided.
//!
//! What did not work: comparing with one open window only, for the load's own
//! drift then looks like a gain; three rounds of all caps, which took more than
//! 75 s with transactions of a second; windows of a fixed length, which had some
//! 400 transactions of 64 connections, whose p99 is that of four; and to take a
//! cap that was better in each of three rounds, however little: where windows
//! scatter by a tenth one survey in four found such a one though all were alike,
//! and one in five missed .73 of the p99 for a single look.
//!
//! Checked against: its tests, and MariaDB in `cargo xtask bench preload`.

use super::Entry;
use crate::beside::within;
use crate::config::{config, read, some_time, text, wrong};
use crate::registry::ConfigOf;
use crate::toolkit::gain::Gain;
use lull_control::PolicyError;
use lull_control::regulator::{Admission, Allowance, Pace, Regulator, Seen};
use lull_measure::{Latency, Nanos, Percentile};
use serde::{Deserialize, Serialize};

/// The registry's entry.
pub(crate) static ENTRY: Entry = Entry {
    name: "auto",
    paper: "ours, on the gate of REEF, SoCC'25 (seed 000), section 3.3",
    summary: "Tries caps beside the open gate on the server at work, and closes it only where \
              that helps.",
    needs: "",
    config: ConfigOf::of::<Config>(),
    make: |table, _| Ok(Box::new(Auto::new(read(table)?))),
};

config! {
    /// What is tried, for how long, and what it is for.
    struct Config checked by check {
        /// `throughput`, `tail` (p99, for at most `loss_percent` of throughput), or `both`:
        /// either without harm to the other.
        goal: Goal = Goal::Both,
        /// The largest C that is tried; the next is half of it (ours).
        most_cap: u32 = 64,
        /// The smallest (ours).
        least_cap: u32 = 8,
        /// Comparisons of each cap with the open gate; up to three times as many where they
        /// leave a doubt (ours).
        rounds: u32 = 3,
        /// Least time that each setting is measured; more where latencies are long (ours).
        #[serde(serialize_with = "text")]
        window: Nanos = Nanos::from_millis(500),
        /// Throughput that a lower p99 may cost with `goal = "tail"`, in percent (ours).
        loss_percent: f64 = 25.0,
        /// Time to the first retry; doubled while the answer stays the same (ours).
        #[serde(serialize_with = "text")]
        retry: Nanos = Nanos::from_secs(60),
        /// Time between two looks at what was answered (ours).
        #[serde(serialize_with = "text")]
        look: Nanos = Nanos::from_millis(100),
    }
}

/// What a cap is to be better at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Goal {
    Throughput,
    Tail,
    Both,
}

/// A gain in throughput, and a p99 over that of the open gate, that are wanted.
const GAIN: f64 = 1.03;
const LOWER: f64 = 0.9;
/// Times the rounds that are made where none is surely better, or surely not.
const DOUBTS: u32 = 3;
/// What may be lost of throughput where only the tail is better, and nobody
/// said that it may cost anything.
const HARMLESS: f64 = 0.97;
/// A cap that keeps less than this of what may be kept is not tried on.
const HOPELESS: f64 = 0.8;
/// Candidates that go on after the first round.
const FINALISTS: usize = 2;
/// Mean latencies in a window, and its longest.
const LATENCIES: f64 = 4.0;
const WINDOW_MAX: Nanos = Nanos::from_secs(8);
/// Answers whose p99 is worth having: it is that of ten. With fewer a window
/// goes on, for so many times its length; so few must do then, within so many.
const ANSWERS: u64 = 1_000;
const LONGER: u64 = 4;
const ANSWERS_LEAST: u64 = 100;
const PATIENCE: u64 = 8;
/// Answers that must have been missed in a row, at the window's own rate, for
/// the clients to have stopped: by chance that is once in e^20 windows.
const MISSED: f64 = 20.0;
/// Time without trying after a survey, at least, over what the survey took.
const REST: u64 = 32;
/// Longest time between retries, in first ones, where surveys are short.
const RETRIES_MAX: u64 = 16;
/// Change of throughput, either way, that is another load if two windows and
/// all of this time show it: clients that connect take two seconds or three.
const OTHER_LOAD: f64 = 1.5;
const OTHER_LOAD_FOR: Nanos = Nanos::from_secs(4);
/// Change from one open window of a survey to the next, with caps in between,
/// that makes it begin anew; a contended server's own scatter is 1.5.
const TORN: f64 = 2.0;
/// So often at most: where the load never stands still, trying would not end.
const BEGINNINGS_MAX: u32 = 4;

fn check(config: &Config) -> Result<(), PolicyError> {
    some_time("window", config.window)?;
    some_time("look", config.look)?;
    some_time("retry", config.retry)?;
    within("most_cap", f64::from(config.most_cap), (1.0, 256.0))?;
    within("least_cap", f64::from(config.least_cap), (1.0, 256.0))?;
    within("rounds", f64::from(config.rounds), (1.0, 100.0))?;
    within("loss_percent", config.loss_percent, (0.0, 90.0))?;
    if config.least_cap > config.most_cap {
        return Err(wrong("least_cap", "`least_cap` is above `most_cap`".to_owned()));
    }
    Ok(())
}

/// What one window showed.
#[derive(Debug, Clone, Copy)]
struct Look {
    per_s: f64,
    p99_s: f64,
    mean_s: f64,
}

/// A cap's look over that of the open gate.
#[derive(Debug, Clone, Copy)]
struct Ratio {
    throughput: f64,
    tail: f64,
}

/// What was answered under the present setting.
#[derive(Debug, Default)]
struct Window {
    length: Nanos,
    /// When it began, and when it began to count.
    begun: Option<Nanos>,
    counts_since: Option<Nanos>,
    latency: Latency,
    /// The last look, the time without answers up to it, and the longest such.
    looked: Nanos,
    quiet: Nanos,
    pause: Nanos,
}

/// The comparison under way.
#[derive(Debug, Default)]
struct Survey {
    /// When its first window was over.
    begun: Option<Nanos>,
    /// 0: open; n: the n-th of those that are tried still.
    at: usize,
    /// Candidates that are tried still, the largest first.
    alive: Vec<usize>,
    before: Option<Look>,
    tried: Vec<Look>,
    /// By candidate.
    ratios: Vec<Vec<Ratio>>,
    /// How often it has begun anew.
    anew: u32,
}

/// How a survey stands after a look.
#[derive(Debug, Clone, Copy)]
enum Progress {
    GoesOn,
    /// The best candidate, if one is better than the open gate, and the throughput
    /// that is usual with it.
    Found(Option<usize>, f64),
    /// The load did not stand still for long enough.
    Torn,
}

#[derive(Debug)]
enum Stage {
    Surveying(Survey),
    Holding {
        until: Nanos,
        /// Throughput that it was settled at; none if nothing could be said of it.
        usual_per_s: Option<f64>,
        /// When the first of the windows in a row ended that were of another load.
        odd_since: Option<Nanos>,
    },
}

struct Auto {
    config: Config,
    /// Candidates, the largest first.
    caps: Vec<u32>,
    window: Window,
    stage: Stage,
    /// What holds outside of surveys; `None`: open.
    cap: Option<u32>,
    /// Retries of the same answer: the next is this many first ones away.
    patience: u64,
}

impl Auto {
    fn new(config: Config) -> Self {
        let halves = std::iter::successors(Some(config.most_cap), |cap| Some(cap / 2));
        let caps: Vec<u32> = halves.take_while(|cap| *cap >= config.least_cap).collect();
        Self {
            window: Window::new(config.window),
            stage: Stage::Surveying(Survey::of(caps.len())),
            caps,
            config,
            cap: None,
            patience: 1,
        }
    }

    /// The cap of the present window.
    fn present(&self) -> Option<u32> {
        match &self.stage {
            Stage::Surveying(survey) => survey.candidate().map(|at| self.caps[at]),
            Stage::Holding { .. } => self.cap,
        }
    }

    fn judge(&mut self, now: Nanos, look: Look) {
        let length = Nanos::from_secs_f64(LATENCIES * look.mean_s);
        self.window.length = length.clamp(self.config.window, WINDOW_MAX.max(self.config.window));
        match &mut self.stage {
            Stage::Surveying(survey) => {
                let begun = *survey.begun.get_or_insert(now);
                match survey.takes(look, &self.config) {
                    Progress::GoesOn => {}
                    Progress::Found(best, per_s) => {
                        let cap = best.map(|at| self.caps[at]);
                        self.settle((begun, now), cap, Some(per_s));
                    }
                    Progress::Torn => self.settle((begun, now), self.cap, None),
                }
            }
            Stage::Holding { until, usual_per_s, odd_since } => {
                let usual_per_s = *usual_per_s.get_or_insert(look.per_s);
                let change = look.per_s / usual_per_s;
                let is_odd = !(1.0 / OTHER_LOAD..=OTHER_LOAD).contains(&change);
                let first = odd_since.filter(|_| is_odd);
                *odd_since = is_odd.then(|| first.unwrap_or(now));
                let other_load = first.is_some_and(|since| now - since >= OTHER_LOAD_FOR);
                if other_load {
                    self.patience = 1;
                }
                if other_load || now >= *until {
                    self.stage = Stage::Surveying(Survey::of(self.caps.len()));
                }
            }
        }
    }

    /// Holds what a survey from `begun` to `now` found.
    fn settle(&mut self, (begun, now): (Nanos, Nanos), cap: Option<u32>, usual_per_s: Option<f64>) {
        self.patience = if cap == self.cap { (self.patience * 2).min(RETRIES_MAX) } else { 1 };
        self.cap = cap;
        let retry = Nanos(self.config.retry.0.saturating_mul(self.patience));
        let rest = Nanos((now - begun).0.saturating_mul(REST));
        let until = now + retry.max(rest);
        self.stage = Stage::Holding { until, usual_per_s, odd_since: None };
    }
}

impl Config {
    /// Throughput that a cap with a better tail may leave, over that of the open gate.
    fn kept(&self) -> f64 {
        match self.goal {
            Goal::Tail => 1.0 - self.loss_percent / 100.0,
            Goal::Throughput => 1.0,
            Goal::Both => HARMLESS,
        }
    }

    /// How good a cap is; `None` if it is not better than the open gate: `surely`, or
    /// not even perhaps.
    fn worth(&self, ratios: &[Ratio], surely: bool) -> Option<f64> {
        let more = Gain::of(ratios.iter().map(|one| one.throughput));
        let shorter = Gain::of(ratios.iter().map(|one| 1.0 / one.tail));
        let gains = more.is(GAIN, surely) && (more.is_sure() || !surely);
        let lowers = shorter.is(1.0 / LOWER, surely) && (shorter.is_sure() || !surely);
        let is_cheap = more.is(self.kept(), surely);
        let harms_nobody = shorter.is(1.0, surely);
        let (is_better, worth) = match self.goal {
            Goal::Throughput => (gains, more.ratio()),
            Goal::Tail => (lowers && is_cheap, shorter.ratio()),
            Goal::Both => {
                let is_better = (gains && harms_nobody) || (lowers && is_cheap);
                (is_better, more.ratio() * shorter.ratio())
            }
        };
        is_better.then_some(worth)
    }
}

impl Survey {
    fn of(candidates: usize) -> Self {
        Self {
            alive: (0..candidates).collect(),
            ratios: vec![Vec::new(); candidates],
            ..Self::default()
        }
    }

    /// Which candidate is tried now; `None`: the open gate.
    fn candidate(&self) -> Option<usize> {
        self.alive.get(self.at.checked_sub(1)?).copied()
    }

    /// Takes the look at the present setting and goes on to the next.
    fn takes(&mut self, look: Look, config: &Config) -> Progress {
        if self.at == 0 {
            return self.takes_open(look, config);
        }
        let open_per_s = self.before.map_or(0.0, |before| before.per_s);
        if look.per_s < HOPELESS * config.kept() * open_per_s {
            self.alive.truncate(self.at - 1);
        } else {
            self.tried.push(look);
        }
        self.at = if self.at < self.alive.len() { self.at + 1 } else { 0 };
        Progress::GoesOn
    }

    /// The same for a look at the open gate, which ends a round.
    fn takes_open(&mut self, look: Look, config: &Config) -> Progress {
        let before = self.before.replace(look);
        self.at = 1;
        let Some(before) = before else { return Progress::GoesOn };
        if !(1.0 / TORN..=TORN).contains(&(look.per_s / before.per_s)) {
            return self.begins_anew();
        }
        for (candidate, tried) in self.alive.iter().zip(self.tried.drain(..)) {
            self.ratios[*candidate].push(tried.over(before, look));
        }
        self.narrow(config);
        if self.is_over(config) { self.best(look.per_s, config) } else { Progress::GoesOn }
    }

    fn is_over(&self, config: &Config) -> bool {
        let doubts = if self.worths(config, true).is_empty() { DOUBTS } else { 1 };
        let rounds = (config.rounds * doubts) as usize;
        self.alive.first().is_none_or(|one| self.ratios[*one].len() >= rounds)
    }

    /// Forgets all but the last look at the open gate, which is the first now.
    fn begins_anew(&mut self) -> Progress {
        let anew = self.anew + 1;
        let Self { begun, at, before, .. } = *self;
        *self = Self { begun, at, before, anew, ..Self::of(self.ratios.len()) };
        if anew < BEGINNINGS_MAX { Progress::GoesOn } else { Progress::Torn }
    }

    /// Those that are better, surely or perhaps, and how good they are.
    fn worths(&self, config: &Config, surely: bool) -> Vec<(usize, f64)> {
        let worth = |at: &usize| Some((*at, config.worth(&self.ratios[*at], surely)?));
        self.alive.iter().filter_map(worth).collect()
    }

    /// Leaves the best two of those that may still be better.
    fn narrow(&mut self, config: &Config) {
        let mut worths = self.worths(config, false);
        worths.sort_by(|one, other| other.1.total_cmp(&one.1));
        self.alive = worths.into_iter().take(FINALISTS).map(|(at, _)| at).collect();
        self.alive.sort_unstable();
    }

    /// The best of those that are better, over the open gate that lets through so much.
    fn best(&self, open_per_s: f64, config: &Config) -> Progress {
        let worths = self.worths(config, true).into_iter();
        let best = worths.max_by(|one, other| one.1.total_cmp(&other.1)).map(|(at, _)| at);
        let gain = best.and_then(|at| self.ratios[at].last()).map_or(1.0, |last| last.throughput);
        Progress::Found(best, open_per_s * gain)
    }
}

impl Look {
    /// Over the geometric mean of those of the open gate before and after.
    fn over(self, before: Self, after: Self) -> Ratio {
        let over = |of: fn(&Self) -> f64| of(&self) / (of(&before) * of(&after)).sqrt();
        Ratio { throughput: over(|one| one.per_s), tail: over(|one| one.p99_s) }
    }
}

impl Window {
    fn new(length: Nanos) -> Self {
        Self { length, ..Self::default() }
    }

    /// Takes in what was answered; what the window showed, once it is over.
    fn note(&mut self, seen: &Seen<'_>) -> Option<Look> {
        let begun = *self.begun.get_or_insert(seen.now);
        self.listen(seen);
        let settles = begun + self.length / 4;
        let Some(since) = self.counts_since else {
            // What was answered up to now was answered before it counts.
            self.counts_since = (seen.now >= settles && seen.now > begun).then_some(seen.now);
            self.pause = Nanos::ZERO;
            return None;
        };
        for one in seen.answered {
            self.latency.record_many(one.latency, u64::from(one.queries));
        }
        let took = seen.now.saturating_sub(since);
        if seen.now.saturating_sub(begun) < self.length || took == Nanos::ZERO {
            return None;
        }
        let lengths = took.0 / self.length.0;
        let enough = if lengths < LONGER { ANSWERS } else { ANSWERS_LEAST };
        if self.latency.count() < enough {
            if lengths >= PATIENCE {
                self.restart(seen.now);
            }
            return None;
        }
        let per_s = self.latency.count() as f64 / took.as_secs_f64();
        if per_s * self.pause.as_secs_f64() >= MISSED {
            self.restart(seen.now);
            return None;
        }
        let seconds = |nanos: Option<Nanos>| nanos.map_or(0.0, Nanos::as_secs_f64).max(1e-9);
        let look = Look {
            per_s,
            p99_s: seconds(self.latency.quantile(Percentile::P99)),
            mean_s: seconds(self.latency.mean()),
        };
        self.restart(seen.now);
        Some(look)
    }

    /// Notes for how long nothing has been answered.
    fn listen(&mut self, seen: &Seen<'_>) {
        let passed = seen.now.saturating_sub(self.looked);
        self.looked = seen.now;
        self.quiet = if seen.answered.is_empty() { self.quiet + passed } else { Nanos::ZERO };
        self.pause = self.pause.max(self.quiet);
    }

    fn restart(&mut self, now: Nanos) {
        self.begun = Some(now);
        self.counts_since = None;
        self.latency = Latency::default();
    }
}

impl Regulator for Auto {
    fn decide(&mut self, seen: &Seen<'_>, admission: &mut Admission) {
        if let Some(look) = self.window.note(seen) {
            self.judge(seen.now, look);
        }
        admission.allow.fill(Allowance::turns_of(1));
        let again = self.config.look;
        (admission.cap, admission.pace) = match self.present() {
            None => (u32::MAX, Pace::Open { again }),
            Some(cap) => (cap, Pace::Flow { again }),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, build, refused};
    use super::*;
    use proptest::prelude::*;

    /// Throughput and latency of a server by cap.
    type Server = fn(Option<u32>) -> (f64, Nanos);

    /// MariaDB under read-write with 512 connections, as measured (docs/on-call.md), by tens.
    fn contended(cap: Option<u32>) -> (f64, Nanos) {
        let (per_s, p99_ms) = match cap {
            None => (555.0, 1600),
            Some(64) => (900.0, 900),
            Some(32) => (1055.0, 707),
            Some(16) => (1045.0, 658),
            Some(_) => (1025.0, 707),
        };
        (per_s, Nanos::from_millis(p99_ms))
    }

    /// Point selects: any gate loses.
    fn short(cap: Option<u32>) -> (f64, Nanos) {
        let per_s = if cap.is_none() { 61_000.0 } else { 28_000.0 };
        (per_s, Nanos::from_millis(1))
    }

    /// Read-write with 64 connections: a tail for throughput.
    fn traded(cap: Option<u32>) -> (f64, Nanos) {
        let (per_s, p99_ms) = match cap {
            None | Some(64) => (1355.0, 171),
            Some(32) => (1240.0, 109),
            Some(16) => (1075.0, 111),
            Some(_) => (1030.0, 107),
        };
        (per_s, Nanos::from_millis(p99_ms))
    }

    struct Run {
        bench: Bench,
        auto: Box<dyn Regulator>,
        admission: Admission,
    }

    impl Run {
        fn new(config: &str) -> Self {
            let bench = Bench::best_effort(4);
            let auto = build("auto", config, &bench);
            Self { bench, auto, admission: Admission::open(4) }
        }

        fn cap(&self) -> Option<u32> {
            match self.admission.pace {
                Pace::Open { .. } => None,
                _ => Some(self.admission.cap),
            }
        }

        /// A decision and the time to the next one.
        fn look(&mut self, server: Server, noise: f64) {
            self.auto.decide(&self.bench.seen(), &mut self.admission);
            let (per_s, latency) = server(self.cap());
            self.bench.latency = latency;
            self.bench.pass(Nanos::from_millis(100), per_s * noise);
        }

        /// So many seconds on a server, each look's throughput times what `noise`
        /// gives; the share of them behind a closed gate.
        fn on(&mut self, server: Server, seconds: u32, noise: &mut dyn FnMut() -> f64) -> f64 {
            let mut closed = 0;
            for _ in 0..10 * seconds {
                self.look(server, noise());
                closed += u32::from(self.cap().is_some());
            }
            f64::from(closed) / f64::from(10 * seconds)
        }

        fn steadily(&mut self, server: Server, seconds: u32) -> f64 {
            self.on(server, seconds, &mut || 1.0)
        }
    }

    #[test]
    fn it_closes_the_gate_where_connections_contend() {
        for (goal, cap) in [("throughput", 32), ("tail", 16), ("both", 16)] {
            let mut run = Run::new(&format!("goal = \"{goal}\""));
            run.steadily(contended, 100);
            assert_eq!(run.cap(), Some(cap), "{goal}");
        }
    }

    #[test]
    fn short_queries_pass_an_open_gate_and_trying_costs_next_to_nothing() {
        let mut run = Run::new("");
        let closed = run.steadily(short, 900);
        assert_eq!(run.cap(), None);
        assert!(closed < 0.02, "{closed}");
    }

    #[test]
    fn a_tail_is_bought_with_throughput_only_if_that_was_asked_for() {
        for (goal, cap) in [("throughput", None), ("tail", Some(8)), ("both", None)] {
            let mut run = Run::new(&format!("goal = \"{goal}\""));
            run.steadily(traded, 120);
            assert_eq!(run.cap(), cap, "{goal}");
        }
        let mut thrifty = Run::new("goal = \"tail\"\nloss_percent = 10");
        thrifty.steadily(traded, 120);
        assert_eq!(thrifty.cap(), Some(32));
    }

    #[test]
    fn a_gate_that_has_become_a_burden_is_opened_at_once() {
        let mut run = Run::new("");
        run.steadily(contended, 100);
        assert_eq!(run.cap(), Some(16));
        run.steadily(short, 10);
        assert_eq!(run.cap(), None);
        run.steadily(contended, 100);
        assert_eq!(run.cap(), Some(16));
    }

    /// Clients that come for 10 s and stay away for 40, after a first long time.
    fn in_turns(config: &str, server: Server) -> (Run, f64) {
        let mut run = Run::new(config);
        run.steadily(server, 100);
        let mut closed = 0.0;
        for turn in 0..16 {
            let away = 400 + turn % 7;
            (0..away).for_each(|_| run.look(|_| (0.0, Nanos::from_millis(1)), 1.0));
            // Clients connect one by one.
            (0..12).for_each(|step| run.look(server, f64::from(step) / 12.0));
            closed += run.steadily(server, 10) / 16.0;
        }
        (run, closed)
    }

    #[test]
    fn clients_that_come_and_go_are_no_other_load() {
        let (run, closed) = in_turns("", contended);
        assert_eq!(run.cap(), Some(16));
        assert!(closed > 0.97, "behind the gate for {closed} of the time");
        let (run, closed) = in_turns("", short);
        assert_eq!(run.cap(), None);
        assert!(closed < 0.03, "behind a gate for {closed} of the time");
    }

    /// Clients prepare their statements, many a millisecond, and go on to transactions.
    #[test]
    fn what_clients_do_when_they_connect_does_not_decide_for_what_they_do_then() {
        for preparing in [2, 3, 5, 8] {
            let mut run = Run::new("goal = \"throughput\"");
            run.steadily(|_| (10_000.0, Nanos::from_millis(1)), preparing);
            run.steadily(contended, 60);
            assert_eq!(run.cap(), Some(32), "after {preparing} s");
        }
    }

    #[test]
    fn a_load_that_never_stands_still_is_left_alone() {
        let mut run = Run::new("");
        let mut closed = 0.0;
        for _ in 0..150 {
            closed += run.steadily(contended, 1) + run.steadily(short, 1);
        }
        assert!(closed / 300.0 < 0.2, "behind a gate for {} of the time", closed / 300.0);
    }

    #[test]
    fn transactions_of_a_second_are_decided_on_within_a_minute() {
        let slow: Server = |cap| (contended(cap).0, Nanos::from_millis(1200));
        let mut run = Run::new("");
        run.steadily(slow, 60);
        assert_eq!(run.cap(), Some(32));
        // Holding, and not just being tried.
        assert_eq!(run.steadily(slow, 60), 1.0);
    }

    #[test]
    fn a_survey_of_long_windows_is_not_soon_repeated() {
        let slow: Server = |cap| (contended(cap).0, contended(cap).1 * 5);
        let mut run = Run::new("retry = \"10s\"");
        run.steadily(slow, 160);
        let open = 1.0 - run.steadily(slow, 1600);
        assert!(open < 0.05, "without a gate for {open} of the time");
    }

    /// Every tenth of a second for itself.
    fn noise(seed: u64, least: f64) -> impl FnMut() -> f64 {
        let mut state = seed | 1;
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let share = (state >> 33) as f64 / f64::from(1u32 << 31);
            least + 2.0 * (1.0 - least) * share
        }
    }

    #[test]
    fn a_scatter_of_a_tenth_seldom_looks_like_a_gain() {
        let same: Server = |_| (30_000.0, Nanos::from_millis(2));
        let is_fooled = |seed: &u64| {
            let mut run = Run::new("goal = \"throughput\"");
            run.on(same, 40, &mut noise(seed * 7919, 0.65));
            run.cap().is_some()
        };
        let fooled = (0..300).filter(is_fooled).count();
        assert!(fooled <= 9, "{fooled} of 300");
    }

    #[test]
    fn a_server_without_queries_has_an_open_gate() {
        let mut run = Run::new("");
        assert_eq!(run.steadily(|_| (0.0, Nanos::from_millis(1)), 300), 0.0);
    }

    #[test]
    fn caps_in_the_wrong_order_are_refused() {
        let text = refused("auto", "least_cap = 128", &Bench::best_effort(1)).to_string();
        assert!(text.contains("`least_cap` is above `most_cap`"), "{text}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]
        #[test]
        fn noise_hides_no_large_gain_and_no_large_loss(seed in any::<u64>()) {
            let mut noise = noise(seed, 0.95);
            let mut run = Run::new("goal = \"throughput\"");
            run.on(contended, 100, &mut noise);
            prop_assert!(run.cap().is_some());
            let mut run = Run::new("goal = \"throughput\"");
            let closed = run.on(short, 300, &mut noise);
            prop_assert!(run.cap().is_none() && closed < 0.04, "{closed}");
        }
    }
}
