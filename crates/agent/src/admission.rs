//! An admission controller at the gate of a live server: the code that the simulator runs.
//!
//! Under `lull exec` it takes turns with everything else that is done there;
//! under `lull run` each has a thread of its own ([`threads`]), since it decides
//! more often than epochs end.
//!
//! Where workers rest, C and N are those of the admission controller, and so is D, but for the
//! break-even, below which nobody rests. Their latency counts from when their
//! query can have come at the earliest, so that whoever compares latencies sees
//! what a rest costs, or somewhat more.

mod promises;
mod threads;

pub use promises::Promise;
pub use threads::{Changed, Order, Threads};

use lull_control::admission::{Admission, Answered, Pace, RoundLimits, RoundSeen, Seen};
use lull_control::{Objective, PolicyError};
use lull_host::oncall::{Runtime, Statistics};
use lull_measure::{Gauge, Missing, Nanos};
use lull_oncall::{BREAK_EVEN_NS, CAP_MAX, Counters, Mode, Settings};
use lull_policies::ADMISSION_CONTROLLERS;
use lull_policies::admission::{Site, Workers};
use promises::Places;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between decisions of an admission controller that goes by rounds: the library
/// does not tell when each ends.
const ROUND: Duration = Duration::from_millis(100);
/// The same where it says who of them has a turn.
const ROUND_OF_EACH: Duration = Duration::from_millis(10);

/// Which admission controller, at what gate.
#[derive(Debug, Clone)]
pub struct Post {
    /// The admission controller's name.
    pub name: String,
    /// Its keys.
    pub keys: toml::Table,
    /// The gate as it is when it is closed.
    pub closed: Settings,
    /// What its workers may be made to do.
    pub workers: Workers,
    /// What is asked of the server as a whole.
    pub asked: Vec<Objective>,
    /// What some of its clients are promised, each alone. Without any, all
    /// connections are one to the admission controller.
    pub promises: Vec<Promise>,
}

/// What decides, and what it decided last.
pub struct LiveAdmission {
    name: String,
    admission: Box<dyn Admission>,
    runtime: Arc<Runtime>,
    statistics: Statistics,
    /// Who is who, where it tells connections apart.
    places: Option<Places>,
    limits: RoundLimits,
    closed: Settings,
    /// The pause that was told last.
    told_ns: u64,
    begun: Instant,
    next: Instant,
    /// When it decided last, and what the gate had done by then.
    decided: Nanos,
    counted: Counters,
}

/// What workers may be made to do, where it was said whether they rest or wait, or
/// nothing was: then whatever helps, if a bound says how long they may rest.
pub fn workers(rests: Option<bool>, asked: &[Objective]) -> Workers {
    match rests {
        Some(true) => Workers::Rest,
        None if asked.iter().any(Objective::minds_latency) => Workers::WaitOrRest,
        Some(false) | None => Workers::Wait,
    }
}

impl Post {
    /// The admission controller that was asked for.
    ///
    /// # Errors
    /// No such admission controller, a key at fault, one that must know its connections
    /// beforehand, or that makes no sense at this gate.
    pub fn admission(&self) -> Result<Box<dyn Admission>, PolicyError> {
        let objectives = self.objectives();
        let site =
            Site { asked: &self.asked, workers: self.workers, ..Site::new(&objectives, cores()) };
        let admission = ADMISSION_CONTROLLERS.build(&self.name, &self.keys, &site)?;
        if self.name == "open" && !self.workers.may_wait() {
            let message = "`open` never closes the gate, so that no worker would rest".to_owned();
            return Err(PolicyError::Config { key: "name".to_owned(), message });
        }
        Ok(admission)
    }

    /// What each connection is promised, as the admission controller counts them.
    fn objectives(&self) -> Vec<Option<Objective>> {
        match self.promises.as_slice() {
            // There are as many of the one as a search may end at.
            [] => vec![None; CAP_MAX as usize],
            promises => Places::objectives(promises),
        }
    }
}

impl LiveAdmission {
    /// Takes its post before a server's gate, which is open until it decides.
    ///
    /// # Errors
    /// As [`Post::admission`].
    pub fn new(post: &Post, runtime: Arc<Runtime>) -> Result<Self, PolicyError> {
        let tells_apart = !post.promises.is_empty();
        Ok(Self {
            name: post.name.clone(),
            admission: post.admission()?,
            statistics: runtime.statistics(),
            places: tells_apart.then(|| Places::new(&post.promises)),
            limits: RoundLimits::open(post.objectives().len()),
            closed: post.closed,
            told_ns: runtime.settings().isr_delay_ns,
            begun: Instant::now(),
            next: Instant::now(),
            decided: Nanos::ZERO,
            counted: runtime.counters(),
            runtime,
        })
    }

    /// The admission controller's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// When it is to decide next.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Decides if it is time to; what the gate does now, in words, if that is news.
    pub fn attend(&mut self) -> Option<String> {
        if Instant::now() < self.next {
            return None;
        }
        let changed = self.decide();
        self.next = Instant::now() + again(self.limits.pace, self.places.is_some());
        changed
    }

    /// Forgets what was answered since the last decision: it was under another gate.
    pub fn skip(&mut self) {
        if self.places.is_some() {
            self.statistics.connections();
        }
        self.statistics.transactions();
        self.decided = self.now();
        self.counted = self.runtime.counters();
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn decide(&mut self) -> Option<String> {
        let now = self.now();
        let span = now.saturating_sub(self.decided).max(Nanos(1));
        self.decided = now;
        let counters = self.runtime.counters();
        let did = counters.since(self.counted);
        self.counted = counters;
        let gate = self.runtime.settings();
        let all = if self.places.is_some() { Vec::new() } else { self.answered() };
        if let Some(places) = &mut self.places {
            places.see(&self.statistics.connections());
        }
        let each = self.places.as_ref().map(|it| (it.answered.as_slice(), it.waiting.as_slice()));
        let (answered, waiting) = each.unwrap_or((&all, &[]));
        let queries = answered.iter().map(|one| u64::from(one.queries)).sum();
        let seen = Seen {
            now,
            answered,
            waiting,
            device: Err(Missing::because("the library sees no device")),
            round: round(&did, &gate, span, queries),
            rested: rested(&did, &gate, span),
        };
        self.admission.decide(&seen, &mut self.limits);
        self.tell_each();
        let settings = settings(&self.limits, &self.closed, self.places.is_some());
        if settings == gate {
            self.runtime.pump();
            return None;
        }
        self.runtime.set(&settings);
        let is_news = is_news(&gate, self.told_ns, &settings);
        if is_news {
            self.told_ns = settings.isr_delay_ns;
        }
        is_news.then(|| in_words(&settings))
    }

    /// What all connections together had answered since the last decision.
    fn answered(&mut self) -> Vec<Answered> {
        let took = self.statistics.transactions();
        let answered = |(latency, queries)| Answered { connection: 0, latency, queries };
        took.buckets().map(answered).collect()
    }

    /// Tells each connection what it may do, where it does not go for all alike.
    fn tell_each(&self) {
        let Some(places) = &self.places else { return };
        let in_rounds = matches!(self.limits.pace, Pace::Rounds { .. });
        for (id, allowance) in places.allowances(&self.limits.allow) {
            // Where there are rounds its queries are those of one, of which there are
            // many until the next decision.
            let is_limited = allowance.queries == 0 || (!in_rounds && allowance.queries < u32::MAX);
            let queries = is_limited.then_some(allowance.queries);
            self.runtime.allow(id, Some(allowance.batch.max(1)), queries, allowance.first);
        }
    }
}

/// Share of a span in which all workers rested, where they do.
fn rested(did: &Counters, gate: &Settings, span: Nanos) -> Gauge<f64> {
    match gate.mode {
        // A rest counts when it ends, which may have begun before the span.
        Mode::Epoll => Ok((did.rested_ns as f64 / span.0 as f64).min(1.0)),
        _ => Err(Missing::because("at this gate no worker rests")),
    }
}

/// How the rounds of a span went, in which so many queries were answered: each as
/// all of them in the mean, for the library tells how many there were and no more.
fn round(did: &Counters, gate: &Settings, span: Nanos, queries: u64) -> Option<RoundSeen> {
    if did.rounds == 0 || !gate.mode.gates() {
        return None;
    }
    let each = |all: u64| u32::try_from(all / did.rounds).unwrap_or(u32::MAX);
    let took = Nanos(span.0 / did.rounds).saturating_sub(Nanos(gate.isr_delay_ns));
    Some(RoundSeen { turns: each(did.admissions), queries: each(queries), took })
}

/// What was allowed to single connections is no more when nobody decides on it.
impl Drop for LiveAdmission {
    fn drop(&mut self) {
        if let Some(places) = &self.places {
            places.seated().for_each(|id| self.runtime.allow(id, None, None, false));
            self.runtime.pump();
        }
    }
}

/// Settings of the gate for what an admission controller wants, who may tell connections apart.
fn settings(limits: &RoundLimits, closed: &Settings, tells_apart: bool) -> Settings {
    let (mode, pause) = match limits.pace {
        Pace::Open { .. } => (Mode::Stats, Nanos::ZERO),
        Pace::Flow { .. } => (closed.mode, Nanos::ZERO),
        Pace::Rounds { pause, .. } => (closed.mode, pause),
        Pace::Rests { pause, .. } => (Mode::Epoll, pause),
    };
    let pause = if mode == Mode::Epoll { pause.max(Nanos(BREAK_EVEN_NS)) } else { pause };
    let batch = limits.allow.first().map_or(1, |allowance| allowance.batch);
    Settings {
        mode,
        cap: limits.cap.clamp(1, CAP_MAX),
        batch: batch.max(1),
        isr_delay_ns: pause.0,
        ranks: tells_apart && limits.allow.iter().any(|allowance| allowance.first),
        ..*closed
    }
}

/// Whether a person would want to know: a pause that follows the load changes a
/// little with every round.
fn is_news(before: &Settings, told_ns: u64, now: &Settings) -> bool {
    let same_pause = Settings { isr_delay_ns: before.isr_delay_ns, ..*now };
    same_pause != *before || told_ns.abs_diff(now.isr_delay_ns) > told_ns / 4
}

fn in_words(settings: &Settings) -> String {
    let turns = match settings.batch {
        1 => String::new(),
        batch => format!(", turns of {batch}"),
    };
    let cap = settings.cap;
    match (settings.mode, settings.isr_delay_ns) {
        (Mode::Epoll, pause_ns) => {
            let pause = Nanos(pause_ns);
            format!("workers rest, {cap} at a time are called every {pause} at most{turns}")
        }
        (Mode::Post, 0) => format!("{cap} transactions at a time{turns}"),
        (Mode::Post, pause_ns) => {
            let pause = Nanos(pause_ns);
            format!("{cap} transactions at a time, a pause of {pause} between rounds{turns}")
        }
        _ => "the gate is open".to_owned(),
    }
}

/// Time to the next decision; a gate without rounds that end has none of its own.
fn again(pace: Pace, tells_apart: bool) -> Duration {
    match pace {
        Pace::Open { again } | Pace::Flow { again } | Pace::Rests { again, .. } => {
            Duration::from_nanos(again.0)
        }
        Pace::Rounds { .. } if tells_apart => ROUND_OF_EACH,
        Pace::Rounds { .. } => ROUND,
    }
}

/// Cores that workers may use.
fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::admission::Allowance;
    use lull_host::oncall::Rules;
    use lull_measure::Percentile;

    const BREAK_EVEN: Nanos = Nanos(BREAK_EVEN_NS);

    fn at(mode: Mode, pace: Pace, cap: u32) -> Settings {
        let limits = RoundLimits { allow: vec![Allowance::turns_of(2)], cap, pace };
        settings(&limits, &Settings { mode, ..Settings::default() }, false)
    }

    fn under(pace: Pace, cap: u32) -> Settings {
        at(Mode::Post, pace, cap)
    }

    #[test]
    fn workers_that_rest_are_never_called_sooner_than_it_pays() {
        let again = Nanos::from_millis(100);
        let flow = at(Mode::Epoll, Pace::Flow { again }, 4);
        assert_eq!((flow.mode, flow.cap, flow.batch), (Mode::Epoll, 4, 2));
        assert_eq!(flow.isr_delay_ns, BREAK_EVEN.0);
        let rounds = |pause| at(Mode::Epoll, Pace::Rounds { turns: 4, pause, every: None }, 4);
        assert_eq!(rounds(Nanos::from_micros(200)).isr_delay_ns, BREAK_EVEN.0);
        let long = rounds(Nanos::from_millis(3));
        assert_eq!((long.mode, long.isr_delay_ns), (Mode::Epoll, 3_000_000));
        assert!(in_words(&long).contains("every 3ms"), "{}", in_words(&long));
        assert_eq!(at(Mode::Epoll, Pace::Open { again }, 4).mode, Mode::Stats);
    }

    #[test]
    fn an_admission_controller_may_let_workers_rest_whose_gate_else_makes_them_wait() {
        let again = Nanos::from_millis(100);
        let rests = under(Pace::Rests { pause: Nanos::from_millis(2), again }, 8);
        assert_eq!((rests.mode, rests.cap, rests.isr_delay_ns), (Mode::Epoll, 8, 2_000_000));
        assert_eq!(under(Pace::Flow { again }, 8).mode, Mode::Post);
        assert_eq!(
            in_words(&under(Pace::Flow { again }, 8)),
            "8 transactions at a time, turns of 2"
        );
    }

    fn post(name: &str, workers: Workers, asked: &[Objective]) -> Post {
        let closed = Settings { mode: Mode::Post, ..Settings::default() };
        let keys = toml::Table::new();
        Post {
            name: name.to_owned(),
            keys,
            closed,
            workers,
            asked: asked.to_vec(),
            promises: vec![],
        }
    }

    #[test]
    fn who_makes_no_sense_at_a_gate_is_kept_from_it() {
        let bound = Nanos::from_millis(20);
        let asked = [Objective::Tail { percentile: Percentile::P99, bound }];
        let fits = |name, workers, asked: &[_]| post(name, workers, asked).admission().is_ok();
        for name in ["auto", "manual", "gate-fifo", "apples", "reef", "open"] {
            assert!(fits(name, Workers::Wait, &[]), "{name}");
            assert!(fits(name, Workers::WaitOrRest, &asked), "{name}");
            assert_eq!(fits(name, Workers::Rest, &asked), name != "open", "{name}");
        }
        assert!(!fits("auto", Workers::Rest, &[]));
    }

    #[test]
    fn promises_to_single_connections_are_kept_by_admission_controllers_that_do_such_things() {
        let promise = "port = 3307\nconnections = 2\nobjective = { p95 = \"20ms\" }";
        let promised = Post {
            promises: vec![toml::from_str(promise).unwrap()],
            ..post("pslo", Workers::Wait, &[])
        };
        assert!(post("pslo", Workers::Wait, &[]).admission().is_err());
        let runtime = Runtime::start(&Settings::default(), &Rules::default()).unwrap();
        let mut pslo = LiveAdmission::new(&promised, Arc::new(runtime)).unwrap();
        pslo.attend();
        let settings = pslo.runtime.settings();
        assert_eq!((settings.mode, settings.ranks), (Mode::Post, true));
        let behind = Post { name: "reef".to_owned(), ..promised };
        let keys = "policy = \"pslo\"\nturns = \"cap\"".parse().unwrap();
        assert!(Post { keys, ..behind }.admission().is_ok());
    }

    #[test]
    fn a_pause_that_follows_the_load_is_told_when_it_has_changed_much() {
        let paused =
            |pause_us: u64| Settings { isr_delay_ns: 1000 * pause_us, ..Settings::default() };
        let told = |told_us: u64, now_us| is_news(&paused(2400), 1000 * told_us, &paused(now_us));
        assert!(!told(2000, 2400) && told(2000, 2600) && told(0, 1));
        assert!(is_news(&paused(2000), 2_000_000, &Settings { cap: 3, ..paused(2000) }));
    }

    #[test]
    fn a_round_is_the_mean_of_those_of_a_span() {
        let gate = at(Mode::Post, Pace::Rounds { turns: 9, pause: BREAK_EVEN, every: None }, 9);
        let did =
            Counters { rounds: 4, admissions: 40, rested_ns: 30_000_000, ..Counters::default() };
        let span = Nanos::from_millis(20);
        let took = Nanos::from_millis(4);
        let seen = RoundSeen { turns: 10, queries: 20, took };
        assert_eq!(round(&did, &gate, span, 80), Some(seen));
        assert_eq!(round(&Counters::default(), &gate, span, 80), None);
        let open = Settings { mode: Mode::Stats, ..gate };
        assert_eq!(round(&did, &open, span, 80), None);
        assert!(rested(&did, &gate, span).is_err());
        let rests = Settings { mode: Mode::Epoll, ..gate };
        assert_eq!(rested(&did, &rests, span), Ok(1.0), "a rest that began before");
        assert_eq!(rested(&did, &rests, span * 3), Ok(0.5));
    }

    #[test]
    fn what_an_admission_controller_wants_is_what_the_gate_is_told() {
        let again = Nanos::from_millis(100);
        assert_eq!(under(Pace::Open { again }, u32::MAX).mode, Mode::Stats);
        let flow = under(Pace::Flow { again }, 16);
        assert_eq!((flow.mode, flow.cap, flow.batch, flow.isr_delay_ns), (Mode::Post, 16, 2, 0));
        let pause = Nanos::from_millis(1);
        let rounds = under(Pace::Rounds { turns: 4, pause, every: None }, 4);
        assert_eq!((rounds.mode, rounds.cap, rounds.isr_delay_ns), (Mode::Post, 4, 1_000_000));
        assert_eq!(under(Pace::Flow { again }, u32::MAX).cap, CAP_MAX);
    }
}
