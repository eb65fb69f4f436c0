//! The models on which the simulator's speed is measured.
//!
//! The library reads no clock: a benchmark measures process CPU time around
//! [`BenchModel::run`]. The same models run in other
//! simulators for comparison: M/M/1, a closed tandem network, a closed network
//! of processor-sharing stations, and the n-tier system of Wang and others
//! (TRIOS 2013) under DVFS controllers.

use lull_control::{
    DomainId, Limits, Machine, Observation, Plan, Policy, Reason, Rng, Rules, Setting,
};
use lull_measure::{Hertz, Nanos, Watts};
use lull_sim::model::{
    App, Cores, Discipline, Distribution, HardwareModel, Model, PState, Pool, Routing, Source,
    Step, Tier,
};
use lull_sim::plant::{PlantSpec, PlantSpecError, System};
use lull_sim::stats::Failure;

/// A model to be timed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BenchModel {
    /// Name for tables.
    pub(super) name: &'static str,
    /// The model.
    pub(super) model: Model,
    /// Tiers whose servers are under a DVFS controller each.
    pub(super) steered: Vec<&'static str>,
    /// Simulated time before the timing starts.
    pub(super) warmup: Nanos,
    /// Simulated time that is timed.
    pub(super) length: Nanos,
}

/// Counts of a timed run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BenchCounts {
    /// Events.
    pub(super) events: u64,
    /// Requests answered.
    pub(super) answered: u64,
}

/// All benchmark models.
pub(super) fn benches() -> Vec<BenchModel> {
    let steered = vec!["tomcat", "mysql"];
    let bench = |name, model, warmup_s, length_s, steered: &[&'static str]| BenchModel {
        name,
        model,
        steered: steered.to_vec(),
        warmup: Nanos::from_secs(warmup_s),
        length: Nanos::from_secs(length_s),
    };
    vec![
        bench("mm1", mm1(), 100, 5_000, &[]),
        bench("closed", closed(100, 10, &[100, 120, 80], Discipline::Fcfs), 1_000, 200_000, &[]),
        bench("sharing", sharing(), 100, 10_000, &[]),
        bench("ntier-1/2/1/2", ntier([1, 2, 1, 2], 7_000), 20, 200, &steered),
        bench("ntier-8/32/8/32", ntier([8, 32, 8, 32], 7_000), 14, 20, &steered),
        bench("ntier-10000", ntier([1250, 3750, 1250, 3750], 4_000), 2, 1, &steered),
    ]
}

impl BenchModel {
    /// A system that has run its warm-up.
    ///
    /// # Errors
    /// Never for the models of this module, unless a bound is reached.
    pub(super) fn start(&self, seed: u64) -> Result<System, Failure> {
        let mut system = System::new(&self.model, seed, 0)?;
        let setup = |error: PlantSpecError| Failure::Setup(error.to_string());
        for tier in &self.steered {
            let servers = system.engine().servers_of(tier).map_or(0, |servers| servers.len());
            for server in 0..servers {
                let spec = PlantSpec { tier: (*tier).to_owned(), server, apps: Vec::new() };
                let side = system.plant(&self.model, &spec).map_err(setup)?;
                let policy = Box::new(Steps::on(side.machine()));
                system.manage(side, policy, at_once(), Nanos::from_millis(50))?;
            }
        }
        let stopped = |stop| Failure::Stopped { replication: 0, stop };
        system.run_until(self.warmup).map_err(stopped)?;
        system.engine_mut().forget();
        Ok(system)
    }

    /// Runs the timed part of a started system.
    ///
    /// # Errors
    /// If a bound is reached.
    pub(super) fn run(&self, system: &mut System) -> Result<BenchCounts, Failure> {
        let before = system.engine().events();
        let until = self.warmup + self.length;
        system.run_until(until).map_err(|stop| Failure::Stopped { replication: 0, stop })?;
        let answered = (0..system.engine().app_count()).map(|app| system.engine().responses(app).0);
        Ok(BenchCounts { events: system.engine().events() - before, answered: answered.sum() })
    }
}

/// M/M/1 at load 0.8.
fn mm1() -> Model {
    let steps = vec![Step::visit("queue", exponential(1_000))];
    Model {
        tier: vec![Tier::named("queue")],
        app: vec![app("app", Source::poisson(800.0), steps)],
        ..Model::default()
    }
}

/// Clients that think and then visit stations in a row, work in milliseconds.
fn closed(clients: u32, think_s: u64, work_ms: &[u64], discipline: Discipline) -> Model {
    let name = |number: usize| format!("station{number}");
    let tier = |number| Tier { discipline, ..Tier::named(&name(number)) };
    let visit = |(number, ms): (usize, &u64)| Step::visit(&name(number), exponential(ms * 1_000));
    let steps = work_ms.iter().enumerate().map(visit).collect();
    Model {
        tier: (0..work_ms.len()).map(tier).collect(),
        app: vec![app("app", Source::clients(clients, Nanos::from_secs(think_s)), steps)],
        ..Model::default()
    }
}

/// 1000 clients that think for 7 s and share stations of 4, 6.5 and 5 ms.
fn sharing() -> Model {
    let mut model = closed(1000, 7, &[4, 6, 5], Discipline::Sharing);
    model.app[0].steps[1] = Step::visit("station1", exponential(6_500));
    model
}

/// Creates a system with these numbers of Apache, Tomcat, C-JDBC and MySQL servers, and of clients
/// per Tomcat: 4000 are half of its capacity, 7000 saturate it. Every Tomcat has 75 threads and 50
/// connections to the tiers behind.
fn ntier([web, app_servers, middle, data]: [u32; 4], clients_each: u32) -> Model {
    let tier = |name: &str, servers, threads, machine: Option<&str>| Tier {
        servers,
        threads,
        machine: machine.map(ToOwned::to_owned),
        discipline: Discipline::Sharing,
        routing: Routing::RoundRobin,
        ..Tier::named(name)
    };
    let call = |tier: &str, steps| Step::Call { tier: tier.to_owned(), steps };
    let work = |micros| Step::Work(exponential(micros));
    let query = call("cjdbc", vec![work(100), Step::visit("mysql", exponential(1_060))]);
    let slice = vec![
        work(480),
        Step::Hold { pool: "connections".to_owned(), steps: vec![query] },
        work(480),
    ];
    let steps = vec![call("apache", vec![work(150), call("tomcat", slice)])];
    let clients = app_servers.saturating_mul(clients_each);
    Model {
        machine: [("dvfs".to_owned(), dvfs_machine())].into(),
        tier: vec![
            tier("apache", web, None, None),
            tier("tomcat", app_servers, Some(75), Some("dvfs")),
            tier("cjdbc", middle, None, None),
            tier("mysql", data, None, Some("dvfs")),
        ],
        pool: vec![Pool {
            name: "connections".to_owned(),
            size: 50,
            per: Some("tomcat".to_owned()),
            backlog: None,
        }],
        app: vec![app("rubbos", Source::clients(clients, Nanos::from_secs(7)), steps)],
        ..Model::default()
    }
}

/// One core with the P-states P0, P4 and P8 of the paper's Xeon; starts in P8.
fn dvfs_machine() -> HardwareModel {
    let states = [(2_260_000, 1.35), (1_729_000, 1.05), (1_197_000, 0.75)];
    let pstate = |(khz, volts)| PState { frequency: Hertz::from_khz(khz), volts };
    let cores = Cores { pstates: states.map(pstate).to_vec(), start: 2, ..Cores::default() };
    HardwareModel { cores: vec![cores], static_watts: Watts(0.0), transition: Nanos::ZERO }
}

fn app(name: &str, source: Source, steps: Vec<Step>) -> App {
    App { name: name.to_owned(), source, priority: 0, steps }
}

fn exponential(micros: u64) -> Distribution {
    Distribution::exponential(Nanos::from_micros(micros))
}

/// Plans take effect immediately, as in the paper's model.
fn at_once() -> Rules {
    Rules { limits: Limits { dwell: Nanos::ZERO, ..Limits::default() }, ..Rules::default() }
}

/// The controller that loads the benchmark: ten busy windows in a row step one
/// P-state up, one idle window drops to the slowest.
struct Steps {
    domain: DomainId,
    steps: Vec<Hertz>,
    at: usize,
    busy_windows: u32,
}

impl Steps {
    fn on(machine: &Machine) -> Self {
        let domain = &machine.domains[0];
        Self { domain: domain.id, steps: domain.steps.clone(), at: 0, busy_windows: 0 }
    }
}

impl Policy for Steps {
    fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
        let used = seen.cores[0].utilisation.as_ref().map_or(1.0, |used| *used);
        self.busy_windows = if used > 0.80 { self.busy_windows + 1 } else { 0 };
        if self.busy_windows == 10 {
            self.busy_windows = 0;
            self.at = (self.at + 1).min(self.steps.len() - 1);
        } else if used < 0.65 {
            self.at = 0;
        }
        let mut plan = Plan::keep();
        plan.set(Setting::Frequency(self.domain, self.steps[self.at]), Reason::Fixed);
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmark_models_run_under_their_controllers() {
        for bench in benches().into_iter().take(4) {
            let warmup = bench.warmup.scale(0.1);
            let short = BenchModel { length: bench.warmup, warmup, ..bench };
            let mut system = short.start(1).unwrap();
            let done = short.run(&mut system).unwrap();
            assert!(done.events > done.answered && done.answered > 100, "{}: {done:?}", short.name);
            let servers = 0..system.engine().server_count();
            let switches: u64 =
                servers.map(|server| system.engine().domain_totals(server, 0).switches).sum();
            assert_eq!(switches > 0, !short.steered.is_empty(), "{}", short.name);
        }
    }
}
