//! Compares the live dispatch state with the simulated node, under the same dispatcher
//! and the same requests.
//!
//! Both must call a dispatcher at the same times. The node runs a model without
//! interference and without costs of moving. The live state gets the same arrivals from a
//! simulated clock: threads are numbers, and their progress is computed from the state's
//! orders. Every move must be the same, at the same age to a microsecond, and every answer
//! must have the same latency.

use lull_control::CoreSet;
use lull_control::dispatcher::{
    Answer, CoreChoice, CoreSpeed, DecisionScope, DispatchRequest, Dispatcher, Ladder,
    MeasurementRule,
};
use lull_control::dispatcher::{DispatchObservation, Supply};
use lull_host::dispatch::{DispatchState, Floor, Order};
use lull_measure::{Nanos, Percentile};
use lull_policies::DISPATCHERS;
use lull_policies::dispatch::Site;
use lull_sim::dispatch::{DispatchModel, DispatchSimulation, RequestWork};
use lull_sim::model::{Distribution, Shape};
use lull_sim::{Replication, RunLength};
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};

const ANSWERS: usize = 3000;
const STREAMS: Replication = Replication { seed: 21, number: 0 };
const NEAR_NS: u64 = 1000;

/// A move that a dispatcher decided on.
#[derive(Debug, Clone, Copy)]
struct Move {
    age: Nanos,
    from: Option<usize>,
    to: usize,
    older: usize,
    active: usize,
}

/// Reports the moves of a dispatcher.
struct Spy {
    inner: Box<dyn Dispatcher>,
    ladder: Ladder,
    tell: Sender<Move>,
}

impl Dispatcher for Spy {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        let answer = self.inner.place(request);
        if let CoreChoice::On(to) = answer.place
            && request.on != Some(to)
            && request.can(to, &self.ladder)
        {
            let (age, from, older, active) =
                (request.age, request.on, request.older, request.active);
            self.tell.send(Move { age, from, to, older, active }).unwrap();
        }
        answer
    }

    fn decision_scope(&self) -> DecisionScope {
        self.inner.decision_scope()
    }

    fn measurement_rule(&self) -> Option<MeasurementRule> {
        self.inner.measurement_rule()
    }

    fn adjust(&mut self, seen: &DispatchObservation) {
        self.inner.adjust(seen);
    }

    fn first_come(&self) -> bool {
        self.inner.first_come()
    }

    fn thresholds(&self) -> &[Nanos] {
        self.inner.thresholds()
    }
}

/// Moves, latencies and the busy time of each core.
struct Outcome {
    moves: Vec<Move>,
    latencies_ns: Vec<u64>,
    busy_s: Vec<f64>,
}

/// A thread that serves a request.
struct Running {
    id: u64,
    arrival: Nanos,
    /// Work left at `since`, in nanoseconds at speed 1.
    left_ns: f64,
    since: Nanos,
    core: Option<u16>,
}

/// A dispatch state, and the threads and cores that execute its orders.
struct Stage {
    state: DispatchState,
    now: Nanos,
    speeds: Vec<f64>,
    /// The type of each core.
    kinds: Vec<usize>,
    threads: BTreeMap<i32, Running>,
}

impl Stage {
    fn new(ladder: &Ladder, dispatcher: Box<dyn Dispatcher>) -> Self {
        let all = ladder.all_cores() as u16;
        let (sets, kinds) = match ladder.supply() {
            Supply::Any(cores) => (vec![CoreSet::first(all)], vec![0; *cores as usize]),
            Supply::Fixed(cores) => {
                let kinds = cores.iter().enumerate();
                let kinds = kinds.flat_map(|(kind, cores)| vec![kind; *cores as usize]);
                let kinds: Vec<usize> = kinds.collect();
                let of = |kind: usize| {
                    CoreSet::first(all)
                        .iter()
                        .filter(|core| kinds[core.0 as usize] == kind)
                        .collect()
                };
                ((0..cores.len()).map(of).collect(), kinds)
            }
        };
        let floor = Floor { ladder: ladder.clone(), cores: sets, abandon: Nanos::from_secs(3600) };
        Self {
            state: DispatchState::new(floor, dispatcher).unwrap(),
            now: Nanos::ZERO,
            speeds: ladder.types().iter().map(|one| one.speed).collect(),
            kinds,
            threads: BTreeMap::new(),
        }
    }

    fn speed(&self, core: u16) -> f64 {
        self.speeds[self.kinds[usize::from(core)]]
    }

    /// Brings the work left of every thread up to now.
    fn progress(&mut self) {
        let (now, speeds, kinds) = (self.now, &self.speeds, &self.kinds);
        for thread in self.threads.values_mut() {
            if let Some(core) = thread.core {
                let spent_ns = now.saturating_sub(thread.since).0 as f64;
                thread.left_ns -= spent_ns * speeds[kinds[usize::from(core)]];
            }
            thread.since = now;
        }
    }

    fn obey(&mut self) {
        self.progress();
        for order in self.state.take_orders() {
            match order {
                Order::Speed(core, kind) => self.kinds[usize::from(core.0)] = kind,
                Order::On(tid, core) => self.threads.get_mut(&tid).unwrap().core = Some(core.0),
                Order::Slowest(tid) => panic!("{tid} is given up on"),
            }
        }
    }

    /// The thread that ends first, and when.
    fn first_end(&self) -> Option<(Nanos, i32)> {
        let end = |(tid, thread): (&i32, &Running)| {
            let left_ns = (thread.left_ns.max(0.0) / self.speed(thread.core?)).ceil() as u64;
            Some((Nanos(thread.since.0 + left_ns), *tid))
        };
        self.threads.iter().filter_map(end).min()
    }

    /// Plays the requests until so many are answered; their latencies.
    fn play(&mut self, requests: &[(Nanos, Nanos)], answers: usize) -> Vec<u64> {
        let (mut latencies_ns, mut coming) = (Vec::new(), requests.iter().enumerate().peekable());
        while latencies_ns.len() < answers {
            let (arrival, due) = (coming.peek().unwrap().1.0, self.state.next_due());
            match self.first_end() {
                Some((end, tid)) if end <= due && end <= arrival => {
                    self.now = end;
                    self.progress();
                    let thread = self.threads.remove(&tid).unwrap();
                    latencies_ns.push((end - thread.arrival).0);
                    self.state.leave(end, thread.id);
                }
                _ if due <= arrival => {
                    self.now = due;
                    self.state.tick(due);
                }
                _ => {
                    let (number, (_, work)) = coming.next().unwrap();
                    self.now = arrival;
                    let tid = number as i32 + 1;
                    let id = self.state.arrive(arrival, arrival, tid);
                    let (left_ns, since) = (work.0 as f64, arrival);
                    let thread = Running { id, arrival, left_ns, since, core: None };
                    self.threads.insert(tid, thread);
                }
            }
            self.obey();
        }
        latencies_ns
    }
}

fn model(supply: Supply, rate_per_s: f64) -> DispatchModel {
    let types = vec![CoreSpeed::new("slow", 1.0, 1.0), CoreSpeed::new("fast", 2.0, 6.8)];
    let work = Distribution { mean: Nanos(94_400_000), shape: Shape::Gamma { cv2: 0.37 } };
    DispatchModel::new(types, supply, rate_per_s, RequestWork::Drawn(work))
}

fn dispatcher(
    model: &DispatchModel,
    (name, config): (&str, &str),
    tell: Sender<Move>,
) -> Box<dyn Dispatcher> {
    let ladder = model.ladder().unwrap();
    let profile = model.profile(2000, 9).unwrap();
    let (percentile, target) = (Percentile::P99, Nanos::from_millis(200));
    let site = Site { ladder: &ladder, percentile, target, profile: &profile };
    let inner = DISPATCHERS.build(name, &config.parse().unwrap(), &site).unwrap();
    Box::new(Spy { inner, ladder, tell })
}

fn simulated(model: &DispatchModel, which: (&str, &str)) -> Outcome {
    let (tell, received) = channel();
    let outcome = DispatchSimulation::measure(
        model,
        dispatcher(model, which, tell),
        STREAMS,
        RunLength { warmup: 0, counted: ANSWERS as u64 },
    );
    let outcome = outcome.unwrap();
    let (latencies_ns, busy_s) = (outcome.latencies_ns, outcome.busy_s);
    Outcome { moves: received.iter().collect(), latencies_ns, busy_s }
}

fn live(model: &DispatchModel, which: (&str, &str)) -> Outcome {
    let (tell, received) = channel();
    let mut stage = Stage::new(&model.ladder().unwrap(), dispatcher(model, which, tell));
    let requests = model.requests(2 * ANSWERS, STREAMS).unwrap();
    let latencies_ns = stage.play(&requests, ANSWERS);
    let now = stage.now;
    let busy_s = stage.state.take_tally(now).spent.busy_s;
    Outcome { moves: received.try_iter().collect(), latencies_ns, busy_s }
}

fn decide_alike(model: &DispatchModel, which: (&str, &str)) {
    let (node, state) = (simulated(model, which), live(model, which));
    for (number, (there, here)) in node.moves.iter().zip(&state.moves).enumerate() {
        let same = (there.from, there.to, there.older, there.active)
            == (here.from, here.to, here.older, here.active);
        let near = there.age.0.abs_diff(here.age.0) <= NEAR_NS;
        assert!(same && near, "{which:?}, move {number}: {there:?} and {here:?}");
    }
    assert_eq!(node.moves.len(), state.moves.len(), "{which:?}");
    assert!(node.moves.len() >= ANSWERS, "each request got a core");
    for (there, here) in node.latencies_ns.iter().zip(&state.latencies_ns) {
        assert!(there.abs_diff(*here) <= NEAR_NS, "{which:?}: {there} and {here} ns");
    }
    for (there, here) in node.busy_s.iter().zip(&state.busy_s) {
        assert!((there - here).abs() <= 1e-5 * (1.0 + there), "{which:?}: {there} and {here} s");
    }
}

#[test]
fn on_cores_of_fixed_types_live_and_simulated_decisions_are_the_same() {
    let model = model(Supply::Fixed(vec![4, 2]), 45.0);
    for name in ["eetl", "s2f", "tl", "ee", "just-in-time"] {
        decide_alike(&model, (name, ""));
    }
    decide_alike(&model, ("eetl", "epoch = 100\nwindow = 500"));
}

#[test]
fn on_cores_that_take_every_speed_live_and_simulated_decisions_are_the_same() {
    let model = model(Supply::Any(4), 25.0);
    for name in ["eetl", "s2f", "tl", "just-in-time", "pegasus", "rubik"] {
        decide_alike(&model, (name, ""));
    }
}
