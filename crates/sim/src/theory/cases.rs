//! Models whose steady state is known exactly, ready to be simulated.

use super::{ClosedNetwork, erlang_b, mg1, mm1, mm1_priority, mmc, mmck, mva};
use crate::engine::Totals;
use crate::model::{
    App, Cores, Discipline, Distribution, HardwareModel, Model, Pool, Shape, Source, Step, Tier,
};
use lull_measure::Nanos;

/// A model, a quantity of it, and the value that theory gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Its name: `M/M/1, load 0.8`.
    pub name: String,
    /// The model.
    pub model: Model,
    /// The compared quantity.
    pub quantity: Quantity,
    /// Its exact value.
    pub expected: f64,
    /// Requests per second of the model, to choose the length of a run.
    pub requests_per_s: f64,
}

/// A quantity that a run counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Mean response time of an app's answered requests, in seconds.
    ResponseSeconds {
        /// The app.
        app: usize,
    },
    /// Answered requests per second of an app.
    ThroughputPerSecond {
        /// The app.
        app: usize,
    },
    /// Share of an app's requests that were refused.
    Lost {
        /// The app.
        app: usize,
    },
    /// Busy share of a server's cores.
    Utilisation {
        /// The server.
        server: usize,
    },
}

impl Quantity {
    /// Returns its value in one replication; NaN if nothing was counted.
    pub fn value(self, totals: &Totals) -> f64 {
        match self {
            Self::ResponseSeconds { app } => {
                let app = &totals.apps[app];
                app.response_ns as f64 / 1e9 / app.answered as f64
            }
            Self::ThroughputPerSecond { app } => {
                totals.apps[app].answered as f64 / totals.span.as_secs_f64()
            }
            Self::Lost { app } => {
                let app = &totals.apps[app];
                app.lost as f64 / (app.lost + app.answered) as f64
            }
            Self::Utilisation { server } => totals.servers[server].utilisation(totals.span),
        }
    }
}

impl Case {
    /// Length of a run that has about this many requests.
    pub fn length(&self, requests: u64) -> Nanos {
        Nanos::from_secs_f64(requests as f64 / self.requests_per_s)
    }
}

/// Mean work of all open cases.
const WORK: Nanos = Nanos::from_millis(1);
/// The same in seconds.
const WORK_S: f64 = 0.001;
/// The mean response of the first app's requests.
const RESPONSE: Quantity = Quantity::ResponseSeconds { app: 0 };

/// All cases.
pub fn cases() -> Vec<Case> {
    let mut all = single_server();
    all.extend(several_servers());
    all.extend(losses());
    all.extend(priorities());
    all.extend(closed());
    all
}

fn single_server() -> Vec<Case> {
    let mut all = Vec::new();
    for load in [0.5, 0.8, 0.9] {
        let exact = mm1(load / WORK_S, WORK_S).map_or(f64::NAN, |queue| queue.response_s);
        let model = queue(load, 1, Discipline::Fcfs, Shape::Exponential);
        all.push(open(format!("M/M/1, load {load}"), load, model.clone(), RESPONSE, exact));
        let busy = Quantity::Utilisation { server: 0 };
        all.push(open(format!("utilisation law, load {load}"), load, model, busy, load));
    }
    let shapes = [
        ("M/D/1", Shape::Constant),
        ("M/E3/1", Shape::Erlang { stages: 3 }),
        ("M/G/1 lognormal cv² 2", Shape::Lognormal { cv2: 2.0 }),
        ("M/G/1 gamma cv² 0.5", Shape::Gamma { cv2: 0.5 }),
        ("M/H2/1 cv² 4", Shape::HyperExponential { cv2: 4.0 }),
        ("M/H2/1 cv² 10", Shape::HyperExponential { cv2: 10.0 }),
    ];
    let load = 0.7;
    for (name, shape) in shapes {
        let exact = mg1(load / WORK_S, WORK_S, shape.cv2()).map_or(f64::NAN, |q| q.response_s);
        let model = queue(load, 1, Discipline::Fcfs, shape);
        all.push(open(format!("{name}, load {load}"), load, model, RESPONSE, exact));
        let exact = mm1(load / WORK_S, WORK_S).map_or(f64::NAN, |queue| queue.response_s);
        let model = queue(load, 1, Discipline::Sharing, shape);
        let name = format!("processor sharing is insensitive: {name}, load {load}");
        all.push(open(name, load, model, RESPONSE, exact));
    }
    all
}

fn several_servers() -> Vec<Case> {
    [2, 4, 16]
        .into_iter()
        .map(|cores| {
            let load = 0.8 * f64::from(cores);
            let exact = mmc(load / WORK_S, WORK_S, cores).map_or(f64::NAN, |q| q.response_s);
            let model = queue(load, cores, Discipline::Fcfs, Shape::Exponential);
            open(format!("M/M/{cores}, load 0.8"), load, model, RESPONSE, exact)
        })
        .collect()
}

fn losses() -> Vec<Case> {
    let lost = Quantity::Lost { app: 0 };
    let mut all = Vec::new();
    for (cores, room, load) in [(1, 4, 0.9), (3, 8, 3.5), (12, 12, 10.0)] {
        let exact = mmck(load / WORK_S, WORK_S, cores, room);
        let mut model = queue(load, cores, Discipline::Fcfs, Shape::Exponential);
        model.tier[0].threads = Some(room);
        model.tier[0].backlog = Some(0);
        let name = format!("M/M/{cores}/{room}, load {load}");
        all.push(open(format!("{name}: loss"), load, model.clone(), lost, exact.lost));
        all.push(open(format!("{name}: response"), load, model, RESPONSE, exact.response_s));
    }
    for shape in [Shape::Exponential, Shape::Constant, Shape::HyperExponential { cv2: 4.0 }] {
        let (permits, load) = (12, 10.0);
        // The tier has as many cores as permits, so that only the pool refuses.
        let mut model = queue(load, permits, Discipline::Fcfs, shape);
        let backlog = Some(0);
        model.pool = vec![Pool { name: "pool".into(), size: permits, per: None, backlog }];
        let steps = std::mem::take(&mut model.app[0].steps);
        model.app[0].steps = vec![Step::Hold { pool: "pool".into(), steps }];
        let name = format!("Erlang loss pool of {permits}, {shape:?}, load {load}");
        all.push(open(name, load, model, lost, erlang_b(load, permits)));
    }
    all
}

fn priorities() -> Vec<Case> {
    let (high, low) = ((300.0, 1e-3), (200.0, 2e-3));
    let mut all = Vec::new();
    for (discipline, preemptive) in [(Discipline::Priority, false), (Discipline::Preemptive, true)]
    {
        let mut model = queue(0.0, 1, discipline, Shape::Exponential);
        let app = |name: &str, priority, (rate, work_s): (f64, f64)| App {
            name: name.to_owned(),
            source: Source::poisson(rate),
            priority,
            steps: vec![visit("queue", Nanos::from_secs_f64(work_s), Shape::Exponential)],
        };
        model.app = vec![app("high", 0, high), app("low", 9, low)];
        let exact = mm1_priority(high, low, preemptive).unwrap_or((f64::NAN, f64::NAN));
        for (app, name, expected) in [(0, "high", exact.0), (1, "low", exact.1)] {
            all.push(Case {
                name: format!("M/M/1 {discipline:?}, {name} class"),
                model: model.clone(),
                quantity: Quantity::ResponseSeconds { app },
                expected,
                requests_per_s: high.0 + low.0,
            });
        }
    }
    all
}

fn closed() -> Vec<Case> {
    let mut all = Vec::new();
    for customers in [10, 100, 200] {
        all.push(network(customers, &[(0.10, 1), (0.12, 1), (0.08, 1)], 10.0, Discipline::Fcfs));
        all.push(network(customers, &[(0.10, 1), (0.12, 1), (0.08, 1)], 10.0, Discipline::Sharing));
    }
    all.push(network(60, &[(0.30, 2), (0.50, 4), (0.10, 1)], 4.0, Discipline::Fcfs));
    all
}

/// A closed network of stations, one after the other.
fn network(customers: u32, stations: &[(f64, u32)], think_s: f64, discipline: Discipline) -> Case {
    let exact = mva(&ClosedNetwork { think_s, stations: stations.to_vec() }, customers);
    let work = |work_s: f64| Nanos::from_secs_f64(work_s);
    let mut model = Model::default();
    let mut steps = Vec::new();
    for (number, (work_s, cores)) in stations.iter().enumerate() {
        let name = format!("station{number}");
        steps.push(visit(&name, work(*work_s), Shape::Exponential));
        add_tier(&mut model, &name, *cores, discipline);
    }
    let source = Source::clients(customers, Nanos::from_secs_f64(think_s));
    model.app = vec![App { name: "app".to_owned(), source, priority: 0, steps }];
    Case {
        name: format!(
            "closed network of {} stations, {discipline:?}, {customers} customers",
            stations.len()
        ),
        model,
        quantity: Quantity::ThroughputPerSecond { app: 0 },
        expected: exact.throughput_per_s,
        requests_per_s: exact.throughput_per_s,
    }
}

/// One tier with Poisson arrivals that bring `load` cores' worth of work.
fn queue(load: f64, cores: u32, discipline: Discipline, shape: Shape) -> Model {
    let mut model = Model::default();
    add_tier(&mut model, "queue", cores, discipline);
    model.app = vec![App {
        name: "app".to_owned(),
        source: Source::poisson(load / WORK_S),
        priority: 0,
        steps: vec![visit("queue", WORK, shape)],
    }];
    model
}

fn add_tier(model: &mut Model, name: &str, cores: u32, discipline: Discipline) {
    let machine = format!("of {cores}");
    let group = Cores { count: cores, ..Cores::default() };
    let kind = HardwareModel { cores: vec![group], ..HardwareModel::default() };
    model.machine.insert(machine.clone(), kind);
    model.tier.push(Tier { machine: Some(machine), discipline, ..Tier::named(name) });
}

fn visit(tier: &str, mean: Nanos, shape: Shape) -> Step {
    Step::visit(tier, Distribution { mean, shape })
}

fn open(name: String, load: f64, model: Model, quantity: Quantity, expected: f64) -> Case {
    Case { name, model, quantity, expected, requests_per_s: load / WORK_S }
}
