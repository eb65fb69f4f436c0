//! An admission controller at the gate of a live server: the code that the simulator runs.
//!
//! Under `lull exec` the controller runs in the main loop of the command; under `lull run`
//! each controller has its own thread (`threads`), because it decides more often than
//! epochs end.
//!
//! If workers rest (sleep until they are woken), the admission controller sets the concurrency
//! limit C, the batch size N and the inter-round delay D as usual; D is raised to at least the
//! break-even time, below which a rest saves nothing. The latency of a query that arrived
//! during a rest is counted from the earliest time at which it can have arrived, so that a
//! measured latency includes the whole cost of a rest, or slightly more.

mod promises;
mod threads;
mod turn;

pub use promises::Promise;
pub use threads::{AdmissionSetups, Changed, Order, Threads};

use lull_control::admission::{
    Admission, Answered, GateObservation, Pace, RoundLimits, RoundObservation,
};
use lull_control::{Objective, PolicyError};
use lull_host::Roots;
use lull_host::oncall::{DeviceClock, Runtime, ServerClock, Statistics, describe_bypass};
use lull_measure::{Gauge, Missing, Nanos};
use lull_oncall::{BREAK_EVEN_NS, CAP_MAX, Counters, Mode, PARK_MAX_NS, Settings};
use lull_policies::ADMISSION_CONTROLLERS;
use lull_policies::admission::{Site, Workers};
use promises::ConnectionIndices;
use std::sync::Arc;
use std::time::{Duration, Instant};
use turn::SurveyTurn;

/// Time between decisions of an admission controller that works in rounds. The library
/// does not report the end of each round, so the controller decides periodically.
const ROUND: Duration = Duration::from_millis(100);
/// The same for a controller that sets an allowance for each connection.
const ROUND_OF_EACH: Duration = Duration::from_millis(10);

/// Shortest time without a decision after which a setting that is only tried gives way to the open
/// gate.
const TRIED_FOR: Nanos = Nanos::from_secs(2);
/// The same in intervals between decisions, if a survey continues after a gap.
const TRIED_INTERVALS: u32 = 10;

/// Time between two checks of whether a bypass has ended.
const BYPASSED: Duration = Duration::from_millis(500);

/// The configuration of an admission controller and of the gate that it controls.
#[derive(Debug, Clone)]
pub struct AdmissionSetup {
    /// The admission controller's name.
    pub name: String,
    /// Its keys.
    pub keys: toml::Table,
    /// The settings of the gate when it limits concurrency.
    pub closed: Settings,
    /// Whether workers beyond the limit wait or rest.
    pub workers: Workers,
    /// Objectives of the server as a whole.
    pub objectives: Vec<Objective>,
    /// Objectives that hold for each connection of some clients. If empty, the admission
    /// controller treats all connections as one.
    pub promises: Vec<Promise>,
    /// Seed of what the controller draws.
    pub seed: u64,
}

/// A running admission controller and the state of its last decision.
pub struct LiveAdmission {
    name: String,
    admission: Box<dyn Admission>,
    runtime: Arc<Runtime>,
    statistics: Statistics,
    clock: ServerClock,
    device: DeviceClock,
    /// The index of each connection, if the controller distinguishes connections.
    places: Option<ConnectionIndices>,
    limits: RoundLimits,
    closed: Settings,
    /// The pause that was reported last.
    reported_ns: u64,
    begun: Instant,
    next: Instant,
    /// Whether an operator bypassed the gate at the last call.
    is_bypassed: bool,
    /// Time of the last decision; `counted` holds the gate's counters at that time.
    decided: Nanos,
    counted: Counters,
    /// The last decision with its evidence.
    decision: Option<String>,
    survey_turn: SurveyTurn,
    /// Whether the gate is being surveyed.
    is_surveyed: bool,
    /// Whether a decision changed the settings since [`LiveAdmission::take_has_moved`].
    has_moved: bool,
}

/// The longest wait at a gate, over the tightest bound on latency.
const WAIT_SHARE: u64 = 4;

/// Returns the tightest bound on the latency of a server with these objectives, if it has one.
pub fn tightest_bound(objectives: &[Objective]) -> Option<Nanos> {
    let bound = |objective: &Objective| match objective {
        Objective::Tail { bound, .. } => Some(*bound),
        Objective::Throughput { .. } | Objective::Disengagement { .. } => None,
    };
    objectives.iter().filter_map(bound).min()
}

/// Returns the longest wait at the gate of a server with these objectives: four times its tightest
/// bound, and at most five seconds. A worker that has waited for this long runs without a slot.
///
/// A limit near the bound would admit all workers of a server that is overloaded, when the gate is
/// needed most.
pub fn longest_wait(objectives: &[Objective]) -> Nanos {
    let longest = tightest_bound(objectives).map(|bound| Nanos(bound.0.saturating_mul(WAIT_SHARE)));
    longest.unwrap_or(Nanos::MAX).clamp(Nanos::from_millis(10), Nanos(PARK_MAX_NS))
}

/// Returns whether workers rest or wait.
///
/// `rests` is the explicit choice of the config. Without one the admission controller may use
/// both if a latency objective limits how long a rest may last; otherwise workers wait.
pub fn workers(rests: Option<bool>, objectives: &[Objective]) -> Workers {
    match rests {
        Some(true) => Workers::Rest,
        None if objectives.iter().any(Objective::bounds_latency) => Workers::WaitOrRest,
        Some(false) | None => Workers::Wait,
    }
}

impl AdmissionSetup {
    /// Builds the admission controller that is configured here.
    ///
    /// # Errors
    /// If no admission controller has this name, a key is invalid, the controller must know
    /// its connections beforehand, or the controller does not fit this gate.
    pub fn admission(&self) -> Result<Box<dyn Admission>, PolicyError> {
        let objectives = self.connection_objectives();
        let site = Site {
            server_objectives: &self.objectives,
            workers: self.workers,
            seed: self.seed,
            is_live: true,
            ..Site::new(&objectives, cores())
        };
        let admission = ADMISSION_CONTROLLERS.build(&self.name, &self.keys, &site)?;
        if self.name == "open" && !self.workers.may_wait() {
            let message = "`open` never closes the gate, so that no worker would rest".to_owned();
            return Err(PolicyError::Config { key: "name".to_owned(), message });
        }
        Ok(admission)
    }

    /// The objective of each connection, by the index that the admission controller uses.
    fn connection_objectives(&self) -> Vec<Option<Objective>> {
        match self.promises.as_slice() {
            // One entry for each slot that the concurrency limit can reach.
            [] => vec![None; CAP_MAX as usize],
            promises => ConnectionIndices::objectives(promises),
        }
    }
}

impl LiveAdmission {
    /// Attaches an admission controller to a server's gate, which is open until the first
    /// decision.
    ///
    /// # Errors
    /// As [`AdmissionSetup::admission`].
    pub fn new(setup: &AdmissionSetup, runtime: Arc<Runtime>) -> Result<Self, PolicyError> {
        let distinguishes = !setup.promises.is_empty();
        let places = ConnectionIndices::new(&setup.promises, |name| runtime.client_class(name));
        let places = places.map_err(|name| {
            let message = format!("the config has no class of clients `{name}` for the promise");
            PolicyError::Config { key: "promise".to_owned(), message }
        })?;
        Ok(Self {
            name: setup.name.clone(),
            admission: setup.admission()?,
            statistics: runtime.statistics(),
            clock: ServerClock::new(&Roots::default()),
            device: DeviceClock::new(&Roots::default()),
            places: distinguishes.then_some(places),
            limits: RoundLimits::open(setup.connection_objectives().len()),
            closed: setup.closed,
            reported_ns: runtime.settings().isr_delay_ns,
            begun: Instant::now(),
            next: Instant::now(),
            is_bypassed: false,
            decided: Nanos::ZERO,
            counted: runtime.counters(),
            decision: None,
            survey_turn: SurveyTurn::new(&Roots::default()),
            is_surveyed: false,
            has_moved: false,
            runtime,
        })
    }

    /// The admission controller's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The last decision that the controller reported with its evidence; `None` while it
    /// gathers evidence for the first one.
    pub fn decision(&self) -> Option<&str> {
        self.decision.as_deref()
    }

    /// Returns whether the gate is being surveyed, or would be as soon as it has a result.
    pub const fn is_surveyed(&self) -> bool {
        self.is_surveyed
    }

    /// Returns whether a decision has changed the settings of the gate since the last call. What a
    /// survey tries is not a decision, and a controller that sets other limits all the time has
    /// none.
    pub const fn take_has_moved(&mut self) -> bool {
        std::mem::replace(&mut self.has_moved, false)
    }

    /// Time of the next decision.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Decides if a decision is due. Returns a description of the gate's new settings if they
    /// changed enough to be reported. While an operator bypasses the gate, it measures and
    /// decides nothing.
    pub fn poll(&mut self) -> Option<String> {
        if Instant::now() < self.next {
            return None;
        }
        if let Some(since_s) = self.runtime.bypassed_since_s() {
            self.next = Instant::now() + BYPASSED;
            return self.begin_bypass(since_s);
        }
        if std::mem::take(&mut self.is_bypassed) {
            self.skip();
        }
        let changed = self.decide(true);
        self.next = Instant::now() + again(self.limits.pace, self.places.is_some());
        changed
    }

    /// Opens the gate, so that no limit is in the page when the bypass ends. Returns the report
    /// of a bypass that is new.
    fn begin_bypass(&mut self, since_s: u64) -> Option<String> {
        if self.is_bypassed {
            return None;
        }
        self.is_bypassed = true;
        self.end_survey_turn();
        self.runtime.set(&Settings { mode: Mode::Stats, ..self.runtime.settings() });
        Some(describe_bypass(since_s))
    }

    /// Prepares for a time without decisions: what a comparison tries ends, and the gate has the
    /// setting that others are compared with. Returns a description of the new settings.
    pub fn pause(&mut self) -> Option<String> {
        let changed = match self.runtime.bypassed_since_s() {
            Some(since_s) => self.begin_bypass(since_s),
            None if self.is_surveyed => self.decide(false),
            None => None,
        };
        self.end_survey_turn();
        changed
    }

    /// Lets another gate be surveyed while this one decides nothing.
    fn end_survey_turn(&mut self) {
        self.survey_turn.update(false);
        self.is_surveyed = false;
        self.runtime.expire_after(None);
    }

    /// Notifies the admission controller that a knob of the machine was set, or an app arrived or
    /// departed.
    pub fn machine_changed(&mut self) {
        self.admission.machine_changed();
    }

    /// Discards the measurements since the last decision, because other gate settings were in
    /// force. For the controller no time has passed, and the block of a comparison is lost.
    pub fn skip(&mut self) {
        if self.places.is_some() {
            self.statistics.connections();
        }
        self.statistics.transactions();
        let passed = self.now().saturating_sub(self.decided);
        self.begun += Duration::from_nanos(passed.0);
        self.counted = self.runtime.counters();
        self.admission.machine_changed();
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn tried_for(&self) -> Nanos {
        let interval = again(self.limits.pace, self.places.is_some());
        let most = u64::try_from((interval * TRIED_INTERVALS).as_nanos()).unwrap_or(u64::MAX);
        TRIED_FOR.max(Nanos(most))
    }

    /// Decides, and compares settings only if it may.
    fn decide(&mut self, may_survey: bool) -> Option<String> {
        let now = self.now();
        let span = now.saturating_sub(self.decided).max(Nanos(1));
        self.decided = now;
        let counters = self.runtime.counters();
        let did = counters.since(self.counted);
        self.counted = counters;
        let gate = self.runtime.settings();
        let all = if self.places.is_some() { Vec::new() } else { self.answered() };
        if let Some(places) = &mut self.places {
            places.update(&self.statistics.connections());
        }
        let each = self.places.as_ref().map(|it| (it.answered.as_slice(), it.waiting.as_slice()));
        let (answered, waiting) = each.unwrap_or((&all, &[]));
        let queries = answered.iter().map(|one| u64::from(one.queries)).sum();
        let under_way = self.runtime.transactions_under_way();
        let wants_survey = self.admission.wants_survey();
        let may_survey = may_survey && self.survey_turn.update(wants_survey);
        let refusal = self.survey_turn.report_refusal(wants_survey && !may_survey, now);
        self.admission.allow_survey(may_survey);
        self.is_surveyed = wants_survey && may_survey;
        let seen = GateObservation {
            now,
            answered,
            waiting,
            connections: Ok(self.runtime.connections()),
            under_way: Ok(&under_way),
            device: self.device.read(),
            round: round(&did, &gate, span, queries),
            rested: rested(&did, &gate, span),
            server: self.clock.read(&self.runtime),
        };
        self.admission.decide(&seen, &mut self.limits);
        self.runtime.expire_after(self.is_surveyed.then(|| self.tried_for()));
        // The time of the former setting may have run out since `gate` was read.
        let in_force = self.runtime.settings();
        self.apply_allowances();
        let settings = settings(&self.limits, &self.closed, self.places.is_some());
        let decision = self.admission.take_decision();
        if decision.is_some() {
            self.decision.clone_from(&decision);
        }
        self.has_moved |= decision.is_some() && settings != gate;
        let is_reportable = settings != gate && is_reportable(&gate, self.reported_ns, &settings);
        match settings == in_force {
            true => self.runtime.pump(),
            false => self.runtime.set(&settings),
        }
        if is_reportable {
            self.reported_ns = settings.isr_delay_ns;
        }
        let changed = report(is_reportable.then(|| describe_gate(&settings)), decision);
        if let Some(changed) = &changed {
            self.runtime.note(&format!("{}: {changed}", self.name));
        }
        changed
            .into_iter()
            .chain(refusal)
            .reduce(|changed, refusal| format!("{changed}; {refusal}"))
    }

    /// Returns the queries of all connections answered since the last decision.
    fn answered(&mut self) -> Vec<Answered> {
        let took = self.statistics.transactions();
        let answered = |(latency, queries)| Answered { connection: 0, latency, queries };
        took.buckets().map(answered).collect()
    }

    /// Applies the allowance of each connection, if the controller distinguishes connections.
    fn apply_allowances(&self) {
        let Some(places) = &self.places else { return };
        let in_rounds = matches!(self.limits.pace, Pace::Rounds { .. });
        for (id, allowance) in places.allowances(&self.limits.allow) {
            // In rounds, the number of queries applies to each round, and many rounds pass before
            // the next decision, so it cannot limit the total.
            let is_limited = allowance.queries == 0 || (!in_rounds && allowance.queries < u32::MAX);
            let queries = is_limited.then_some(allowance.queries);
            self.runtime.allow(id, Some(allowance.batch.max(1)), queries, allowance.first);
        }
    }
}

/// Returns the report of new gate settings and of a decision with its evidence.
fn report(gate: Option<String>, decision: Option<String>) -> Option<String> {
    match (gate, decision) {
        (gate, None) => gate,
        (None, Some(decision)) => Some(format!("decided: {decision}")),
        (Some(gate), Some(decision)) => Some(format!("{gate}; decided: {decision}")),
    }
}

/// Returns the share of a span in which all workers rested.
fn rested(did: &Counters, gate: &Settings, span: Nanos) -> Gauge<f64> {
    match gate.mode {
        // A rest is counted when it ends and may have begun before the span.
        Mode::Epoll => Ok((did.rested_ns as f64 / span.0 as f64).min(1.0)),
        _ => Err(Missing::because("at this gate no worker rests")),
    }
}

/// Returns the mean round of a span in which `queries` queries were answered. The library
/// counts rounds but does not record each one.
fn round(did: &Counters, gate: &Settings, span: Nanos, queries: u64) -> Option<RoundObservation> {
    if did.rounds == 0 || !gate.mode.gates() {
        return None;
    }
    let each = |all: u64| u32::try_from(all / did.rounds).unwrap_or(u32::MAX);
    let took = Nanos(span.0 / did.rounds).saturating_sub(Nanos(gate.isr_delay_ns));
    Some(RoundObservation { turns: each(did.admissions), queries: each(queries), took })
}

/// Removes the allowances of single connections when the admission controller ends, and the time
/// limit of a setting that it tried.
impl Drop for LiveAdmission {
    fn drop(&mut self) {
        self.runtime.expire_after(None);
        if let Some(places) = &self.places {
            places.indexed().for_each(|id| self.runtime.allow(id, None, None, false));
            self.runtime.pump();
        }
    }
}

/// Converts a controller's decision to gate settings; `distinguishes` is whether the controller
/// distinguishes connections.
fn settings(limits: &RoundLimits, closed: &Settings, distinguishes: bool) -> Settings {
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
        ranks: distinguishes && limits.allow.iter().any(|allowance| allowance.first),
        ..*closed
    }
}

/// Returns whether a change should be reported. A pause that follows the load changes slightly
/// with every round, so a change of the pause by at most a quarter is not reported.
fn is_reportable(before: &Settings, reported_ns: u64, now: &Settings) -> bool {
    let same_pause = Settings { isr_delay_ns: before.isr_delay_ns, ..*now };
    same_pause != *before || reported_ns.abs_diff(now.isr_delay_ns) > reported_ns / 4
}

/// Describes gate settings for users.
pub(crate) fn describe_gate(settings: &Settings) -> String {
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

/// Returns the time to the next decision. A controller that works in rounds does not choose it.
fn again(pace: Pace, distinguishes: bool) -> Duration {
    match pace {
        Pace::Open { again } | Pace::Flow { again } | Pace::Rests { again, .. } => {
            Duration::from_nanos(again.0)
        }
        Pace::Rounds { .. } if distinguishes => ROUND_OF_EACH,
        Pace::Rounds { .. } => ROUND,
    }
}

/// Returns the number of cores that workers may use.
fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

#[cfg(test)]
mod wait_tests {
    use super::*;
    use lull_measure::Percentile;

    #[test]
    fn the_longest_wait_is_four_times_the_tightest_bound_and_never_more_than_five_seconds() {
        let tail = |bound| Objective::Tail { percentile: Percentile::P99, bound };
        let [ms_50, ms_200] = [50, 200].map(|ms| tail(Nanos::from_millis(ms)));
        assert_eq!(longest_wait(&[ms_200, ms_50]), Nanos::from_millis(200));
        assert_eq!(tightest_bound(&[ms_200, ms_50]), Some(Nanos::from_millis(50)));
        assert_eq!(longest_wait(&[tail(Nanos::from_secs(9))]), Nanos::from_secs(5));
        assert_eq!(longest_wait(&[tail(Nanos(1))]), Nanos::from_millis(10));
        let floor = Objective::Throughput { floor_per_s: 100.0 };
        assert_eq!(
            (longest_wait(&[]), longest_wait(&[floor])),
            (Nanos::from_secs(5), Nanos::from_secs(5))
        );
        assert_eq!(tightest_bound(&[floor]), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::admission::Allowance;
    use lull_host::oncall::{OperatorPage, PageDirectory, Rules};
    use lull_measure::Percentile;
    use std::sync::atomic::{AtomicU32, Ordering};

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
        assert!(describe_gate(&long).contains("every 3ms"), "{}", describe_gate(&long));
        assert_eq!(at(Mode::Epoll, Pace::Open { again }, 4).mode, Mode::Stats);
    }

    #[test]
    fn an_admission_controller_may_let_workers_rest_whose_gate_else_makes_them_wait() {
        let again = Nanos::from_millis(100);
        let rests = under(Pace::Rests { pause: Nanos::from_millis(2), again }, 8);
        assert_eq!((rests.mode, rests.cap, rests.isr_delay_ns), (Mode::Epoll, 8, 2_000_000));
        assert_eq!(under(Pace::Flow { again }, 8).mode, Mode::Post);
        assert_eq!(
            describe_gate(&under(Pace::Flow { again }, 8)),
            "8 transactions at a time, turns of 2"
        );
    }

    fn setup(name: &str, workers: Workers, objectives: &[Objective]) -> AdmissionSetup {
        let closed = Settings { mode: Mode::Post, ..Settings::default() };
        let keys = toml::Table::new();
        AdmissionSetup {
            name: name.to_owned(),
            keys,
            closed,
            workers,
            objectives: objectives.to_vec(),
            promises: vec![],
            seed: 1,
        }
    }

    #[test]
    fn controllers_that_do_not_fit_a_gate_are_rejected() {
        let bound = Nanos::from_millis(20);
        let objectives = [Objective::Tail { percentile: Percentile::P99, bound }];
        let fits =
            |name, workers, objectives: &[_]| setup(name, workers, objectives).admission().is_ok();
        for name in ["auto", "manual", "gate-fifo", "apples", "reef", "open"] {
            assert!(fits(name, Workers::Wait, &[]), "{name}");
            assert!(fits(name, Workers::WaitOrRest, &objectives), "{name}");
            assert_eq!(fits(name, Workers::Rest, &objectives), name != "open", "{name}");
        }
        assert!(!fits("auto", Workers::Rest, &[]));
    }

    #[test]
    fn promises_to_single_connections_are_kept_by_admission_controllers_that_do_such_things() {
        let promise = "port = 3307\nconnections = 2\nobjective = { p95 = \"20ms\" }";
        let promised = AdmissionSetup {
            promises: vec![toml::from_str(promise).unwrap()],
            ..setup("pslo", Workers::Wait, &[])
        };
        assert!(setup("pslo", Workers::Wait, &[]).admission().is_err());
        let runtime = Runtime::start(&Settings::default(), &Rules::default()).unwrap();
        let mut pslo = LiveAdmission::new(&promised, Arc::new(runtime)).unwrap();
        pslo.poll();
        let settings = pslo.runtime.settings();
        assert_eq!((settings.mode, settings.ranks), (Mode::Post, true));
        let behind = AdmissionSetup { name: "reef".to_owned(), ..promised };
        let keys = "policy = \"pslo\"\nturns = \"cap\"".parse().unwrap();
        assert!(AdmissionSetup { keys, ..behind }.admission().is_ok());
    }

    #[test]
    fn a_pause_that_follows_the_load_is_reported_when_it_has_changed_much() {
        let paused =
            |pause_us: u64| Settings { isr_delay_ns: 1000 * pause_us, ..Settings::default() };
        let reported = |reported_us: u64, now_us| {
            is_reportable(&paused(2400), 1000 * reported_us, &paused(now_us))
        };
        assert!(!reported(2000, 2400) && reported(2000, 2600) && reported(0, 1));
        assert!(is_reportable(&paused(2000), 2_000_000, &Settings { cap: 3, ..paused(2000) }));
    }

    #[test]
    fn a_round_is_the_mean_of_those_of_a_span() {
        let gate = at(Mode::Post, Pace::Rounds { turns: 9, pause: BREAK_EVEN, every: None }, 9);
        let did =
            Counters { rounds: 4, admissions: 40, rested_ns: 30_000_000, ..Counters::default() };
        let span = Nanos::from_millis(20);
        let took = Nanos::from_millis(4);
        let seen = RoundObservation { turns: 10, queries: 20, took };
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
    fn under_a_bypass_no_limit_is_written_until_it_ends() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = PageDirectory::open(&temporary.path().join("db"), None).unwrap();
        let (open, roots) =
            (Settings { mode: Mode::Stats, ..Settings::default() }, Roots::default());
        let runtime = Runtime::attach(&directory, &open, &Rules::default(), &roots).unwrap();
        let operator = OperatorPage::in_directory(directory.path()).unwrap();
        let manual = AdmissionSetup {
            keys: "cap = 3".parse().unwrap(),
            ..setup("manual", Workers::Wait, &[])
        };
        let mut live = LiveAdmission::new(&manual, Arc::new(runtime)).unwrap();
        operator.bypass();
        for _ in 0..2 {
            let report = live.poll().unwrap();
            assert!(report.starts_with("bypassed by the operator since "), "{report}");
            assert_eq!(live.runtime.settings().mode, Mode::Stats, "no limit is in the page");
            live.next = Instant::now();
            assert_eq!(live.poll(), None, "it is reported once");
            operator.end_bypass();
            live.next = Instant::now();
            assert_eq!(live.poll().unwrap(), "3 transactions at a time");
            assert_eq!(live.runtime.settings().mode, Mode::Post);
            operator.bypass();
            live.next = Instant::now();
        }
        assert_eq!(operator.status(&roots).decision, "manual: 3 transactions at a time");
    }

    /// A controller that counts how often it is notified of changes of the machine.
    struct Notified(Arc<AtomicU32>);

    impl Admission for Notified {
        fn decide(&mut self, _: &GateObservation<'_>, _: &mut RoundLimits) {}

        fn machine_changed(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_controller_is_notified_that_its_gate_had_other_settings_meanwhile() {
        let runtime = Runtime::start(&Settings::default(), &Rules::default()).unwrap();
        let open = setup("open", Workers::Wait, &[]);
        let mut live = LiveAdmission::new(&open, Arc::new(runtime)).unwrap();
        let changes = Arc::new(AtomicU32::new(0));
        live.admission = Box::new(Notified(Arc::clone(&changes)));
        live.poll();
        assert_eq!(changes.load(Ordering::Relaxed), 0);
        live.skip();
        assert_eq!(changes.load(Ordering::Relaxed), 1);
    }

    /// A controller that is surveyed, and sets a limit, with these decisions one after the other.
    struct Deciding(Vec<Option<&'static str>>, u32);

    impl Admission for Deciding {
        fn decide(&mut self, _: &GateObservation<'_>, limits: &mut RoundLimits) {
            self.1 += 1;
            (limits.cap, limits.pace) = (self.1, Pace::Flow { again: Nanos::from_millis(100) });
        }

        fn take_decision(&mut self) -> Option<String> {
            self.0.pop().flatten().map(str::to_owned)
        }

        fn wants_survey(&self) -> bool {
            true
        }
    }

    /// A gate of a controller that surveys and makes these decisions, the last one first; its
    /// survey turns are in this tree.
    fn surveying(decisions: Vec<Option<&'static str>>) -> (LiveAdmission, tempfile::TempDir) {
        let runtime = Runtime::start(&Settings::default(), &Rules::default()).unwrap();
        let open = setup("open", Workers::Wait, &[]);
        let mut live = LiveAdmission::new(&open, Arc::new(runtime)).unwrap();
        let tree = tempfile::tempdir().unwrap();
        live.survey_turn = SurveyTurn::new(&Roots::under(tree.path()));
        live.admission = Box::new(Deciding(decisions, 8));
        (live, tree)
    }

    #[test]
    fn a_gate_moves_with_a_decision_and_not_with_what_a_survey_tries() {
        let (mut live, _tree) = surveying(vec![Some("it is decided"), None]);
        assert!(!live.is_surveyed());
        live.poll();
        assert!(live.is_surveyed() && !live.take_has_moved());
        live.next = Instant::now();
        live.poll();
        assert!(live.take_has_moved() && !live.take_has_moved());
        live.end_survey_turn();
        assert!(!live.is_surveyed());
    }

    #[test]
    fn a_setting_that_is_tried_does_not_outlive_a_controller_that_comes_to_a_halt() {
        let (mut live, _tree) = surveying(vec![None]);
        live.poll();
        assert_eq!(live.runtime.settings().mode, Mode::Post);
        let begun = Instant::now();
        while live.runtime.settings().mode != Mode::Stats {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is still in force");
            std::thread::yield_now();
        }
        // It is set again when the controller continues.
        live.next = Instant::now();
        live.poll();
        assert_eq!(live.runtime.settings().mode, Mode::Post);
    }

    /// A controller that keeps a limit, and whose second decision takes as long as the limit may
    /// be tried.
    struct Slow(Arc<Runtime>, u32);

    impl Admission for Slow {
        fn decide(&mut self, _: &GateObservation<'_>, limits: &mut RoundLimits) {
            let (begun, is_late) = (Instant::now(), self.1 > 0);
            while is_late && self.0.settings().mode != Mode::Stats {
                assert!(begun.elapsed() < Duration::from_secs(60), "the limit does not expire");
                std::thread::yield_now();
            }
            self.1 += 1;
            (limits.cap, limits.pace) = (3, Pace::Flow { again: Nanos::from_millis(100) });
        }

        fn wants_survey(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_limit_that_is_kept_is_in_force_although_its_time_ran_out_within_the_decision() {
        let (mut live, _tree) = surveying(vec![]);
        live.admission = Box::new(Slow(Arc::clone(&live.runtime), 0));
        live.poll();
        assert_eq!((live.runtime.settings().mode, live.runtime.settings().cap), (Mode::Post, 3));
        // After a pause no further decision would correct it.
        live.pause();
        assert_eq!((live.runtime.settings().mode, live.runtime.settings().cap), (Mode::Post, 3));
    }

    #[test]
    fn the_decision_of_a_controller_becomes_the_settings_of_the_gate() {
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
