//! Tiers of which some are machines with cores: stations and machines on one clock.
//!
//! The servers of a tier with a `host` are machines of one description each. The steps of an
//! app name that tier as any other; every piece of work of a call is a task of the machine's app
//! of the tier's name, whose activity is `called`. Its threads serve those tasks in order of
//! arrival, beside all other apps of the machine. A request that waits for a call holds no
//! thread of the machine; `threads` of the tier bounds the requests that it has admitted.
//!
//! The engine of stations runs up to the next event of any machine, so that calls cross at the
//! nanosecond. A machine that no call reaches costs its own events only.
//!
//! Policies steer a station's server as ever, and a machine as a [`MachinePlant`]; each decides at
//! the ends of its own epochs.

mod check;

use crate::engine::{Engine, ServerTotals, Stop, Totals};
use crate::machine::{
    Controllers, MachineModel, MachinePlant, MachinePlantError, MachineSimulation,
};
use crate::model::{Model, ModelError};
use crate::order::{Key, NEVER_NS};
use crate::plant::{ControllerTurn, PlantSpec, PlantSpecError, Steering, System, UnmanagedPlant};
use crate::replication::{Replication, StreamPurpose, split_mix};
use crate::tree::WinnerTree;
use lull_control::{AppSpec, Controller, EpochRule, LimitsError, Plant, Policy, Rules};
use lull_measure::Nanos;
use std::collections::BTreeMap;

/// Machines of one description under tiers, and the apps that policies watch on each.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// The machine and its apps.
    pub model: MachineModel,
    /// Apps that policies watch, of those of the machine.
    pub apps: Vec<AppSpec>,
}

/// Why a system with hosts cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HostError {
    /// The tiers or a machine.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The apps that policies watch on a machine.
    #[error("host.{host}: {error}")]
    Plant {
        /// Name of the host.
        host: String,
        /// The error.
        error: MachinePlantError,
    },
}

/// A system of stations and machines, each under its controllers.
pub struct HostedSystem {
    system: System,
    streams: Replication,
    machines: Vec<HostedMachine>,
    /// The next event of each machine, and how often one was set.
    clocks: WinnerTree,
    sequence: u64,
    /// The machine and the app on it of each server of the engine; `None` of a station.
    machine_of_server: Vec<Option<(usize, usize)>>,
}

/// One machine under a server of each of its tiers.
struct HostedMachine {
    host: String,
    plant: MachinePlant,
    /// The server of the engine of each app that a tier calls.
    servers: BTreeMap<usize, u32>,
    steering: Option<Steering>,
    /// When its controller decides next; never without one.
    due: Nanos,
}

impl HostedSystem {
    /// A replication without controllers, of machines without gates and dispatchers.
    ///
    /// # Errors
    /// If the model or a host cannot be simulated, or a tier and its host do not fit.
    pub fn new(
        model: &Model,
        hosts: &BTreeMap<String, Host>,
        streams: Replication,
    ) -> Result<Self, HostError> {
        Self::behind(model, hosts, streams, |_| Controllers::default())
    }

    /// The same of machines that may have them: `controllers` makes those of one machine of the
    /// host of this name.
    ///
    /// # Errors
    /// As `new`, and if a part lacks its controller or a controller its part.
    pub fn behind(
        model: &Model,
        hosts: &BTreeMap<String, Host>,
        streams: Replication,
        controllers: impl Fn(&str) -> Controllers,
    ) -> Result<Self, HostError> {
        check::check(model, hosts)?;
        let engine = Engine::hosted(model, streams.seed, streams.number)?;
        let machine_of_server = vec![None; engine.server_count()];
        let system = System::on(engine, streams);
        let mut new = Self {
            system,
            streams,
            machines: Vec::new(),
            clocks: WinnerTree::new(0),
            sequence: 0,
            machine_of_server,
        };
        for (name, host) in hosts {
            new.add_host(model, name, host, || controllers(name))?;
        }
        new.clocks = WinnerTree::new(new.machines.len());
        (0..new.machines.len()).for_each(|machine| new.find_next(machine));
        Ok(new)
    }

    /// Adds the machines of a host, as many as each of its tiers has servers.
    fn add_host(
        &mut self,
        model: &Model,
        name: &str,
        host: &Host,
        controllers: impl Fn() -> Controllers,
    ) -> Result<(), HostError> {
        let tiers = model.tier.iter().filter(|tier| tier.host.as_deref() == Some(name));
        let called: Vec<_> = tiers
            .filter_map(|tier| {
                let servers = self.engine().servers_of(&tier.name)?;
                Some((host.model.app_named(&tier.name)?, servers))
            })
            .collect();
        let count = called.first().map_or(0, |(_, servers)| servers.len());
        for number in 0..count {
            let machine = self.machines.len();
            // Random numbers of its own: the engine's streams have the same purposes.
            let mut seed = self.streams.seed ^ (1 + machine as u64).rotate_left(32);
            let streams = Replication { seed: split_mix(&mut seed), ..self.streams };
            let plant = MachinePlant::behind(&host.model, &host.apps, controllers(), streams);
            let plant = plant.map_err(|error| plant_error(name, error))?;
            let mut servers = BTreeMap::new();
            for (app, of_tier) in &called {
                let server = of_tier.start + number;
                servers.insert(*app, server as u32);
                self.machine_of_server[server] = Some((machine, *app));
            }
            let host = name.to_owned();
            let (steering, due) = (None, Nanos::MAX);
            self.machines.push(HostedMachine { host, plant, servers, steering, due });
        }
        Ok(())
    }

    /// Returns the stations, for reading. Servers that are machines count their calls there.
    pub fn engine(&self) -> &Engine {
        self.system.engine()
    }

    /// The numbers of a host's machines.
    pub fn machines_of<'s>(&'s self, host: &'s str) -> impl Iterator<Item = usize> + 's {
        let all = self.machines.iter().enumerate();
        all.filter(move |(_, machine)| machine.host == host).map(|(number, _)| number)
    }

    /// Returns one of the machines.
    pub fn machine(&self, number: usize) -> &MachinePlant {
        &self.machines[number].plant
    }

    /// Returns one of the machines, to read its totals.
    pub fn machine_mut(&mut self, number: usize) -> &mut MachinePlant {
        &mut self.machines[number].plant
    }

    /// Prepares a station's server as a plant.
    ///
    /// # Errors
    /// If the model lacks the server or an app, or the server is a machine.
    pub fn plant(
        &mut self,
        model: &Model,
        spec: &PlantSpec,
    ) -> Result<UnmanagedPlant, PlantSpecError> {
        let server = self.engine().servers_of(&spec.tier).and_then(|mut all| all.nth(spec.server));
        if server.is_some_and(|server| self.machine_of_server[server].is_some()) {
            return Err(PlantSpecError::NoServer { tier: spec.tier.clone(), server: spec.server });
        }
        self.system.plant(model, spec)
    }

    /// Puts a station's server under a policy, from now on.
    ///
    /// # Errors
    /// If the limits of the rules do not fit its machine.
    pub fn manage(
        &mut self,
        plant: UnmanagedPlant,
        policy: Box<dyn Policy>,
        rules: Rules,
        epoch: impl Into<EpochRule>,
    ) -> Result<usize, LimitsError> {
        self.system.manage(plant, policy, rules, epoch)
    }

    /// Puts a machine under a policy, from now on.
    ///
    /// # Errors
    /// If the limits of the rules do not fit the machine.
    pub fn manage_machine(
        &mut self,
        number: usize,
        policy: Box<dyn Policy>,
        rules: Rules,
        epoch: impl Into<EpochRule>,
    ) -> Result<(), LimitsError> {
        let now = self.engine().now();
        let machine = &mut self.machines[number];
        let controller = Controller::new(policy, rules, &machine.plant)?;
        // Numbered after the plants of the stations, of which there are fewer.
        let rng = self.streams.stream(StreamPurpose::Policy, FIRST_MACHINE + number);
        let steering = Steering::new(controller, rng, epoch);
        machine.due = steering.next_turn(now);
        machine.steering = Some(steering);
        Ok(())
    }

    /// Runs events and controllers up to `until`.
    ///
    /// # Errors
    /// If a bound of the model's limits is reached.
    pub fn run_until(&mut self, until: Nanos) -> Result<(), Stop> {
        loop {
            let station = self.system.next_turn().unwrap_or(Nanos::MAX);
            let (machine_due, machine) = self.next_machine_turn();
            let next = station.min(machine_due);
            if next >= until {
                return self.advance(until);
            }
            self.advance(next)?;
            if station <= machine_due {
                self.system.take_turn(&mut |_: &ControllerTurn<'_>| {});
            } else {
                self.machine_turn(machine);
            }
        }
    }

    /// When the next controller of a machine is due, and which.
    fn next_machine_turn(&self) -> (Nanos, usize) {
        let all = self.machines.iter().enumerate().map(|(number, it)| (it.due, number));
        all.min().unwrap_or((Nanos::MAX, 0))
    }

    /// Runs all events before `until` of the stations and of all machines.
    fn advance(&mut self, until: Nanos) -> Result<(), Stop> {
        loop {
            self.hand_over();
            let due = self.clocks.first();
            let due_ns = due.time_ns();
            let engine = self.system.engine_mut();
            engine.run_until(Nanos(due_ns).min(until))?;
            if engine.has_away() {
                continue;
            }
            if due_ns >= until.0 {
                break;
            }
            let machine = due.owner() as usize;
            self.machines[machine].simulation().step();
            self.collect(machine);
        }
        for machine in &mut self.machines {
            machine.simulation().advance(until.0);
        }
        Ok(())
    }

    /// Passes the work that has reached servers to their machines, now.
    fn hand_over(&mut self) {
        let engine = self.system.engine_mut();
        let now_ns = engine.now().0;
        for work in engine.take_away() {
            let found = self.machine_of_server[work.server as usize];
            let (number, app) = found.expect("only work of machines leaves the engine");
            let machine = self.machines[number].simulation();
            machine.advance(now_ns);
            machine.call(app, work.request, work.work_ns);
            self.find_next(number);
        }
    }

    /// Lets the requests continue whose work a machine has finished.
    fn collect(&mut self, number: usize) {
        let machine = &mut self.machines[number];
        for (app, request) in machine.simulation().take_returned() {
            let server = machine.servers[&app];
            self.system.engine_mut().work_returns(server, request);
        }
        self.find_next(number);
    }

    /// Notes when the next event of a machine is due.
    fn find_next(&mut self, number: usize) {
        let key = match self.machines[number].simulation().next_ns() {
            NEVER_NS => Key::NEVER,
            next_ns => {
                self.sequence += 1;
                Key::new(next_ns, self.sequence, number as u32)
            }
        };
        self.clocks.set(number, key);
    }

    /// Lets the controller of a machine decide, now.
    fn machine_turn(&mut self, number: usize) {
        let now = self.engine().now();
        let HostedMachine { plant, steering, due, .. } = &mut self.machines[number];
        let Some(steering) = steering else { return };
        let seen = plant.seen_after(Nanos::ZERO);
        steering.decide(&seen, |changes| plant.apply(changes));
        *due = steering.next_turn(now);
        self.collect(number);
    }

    /// Restarts all counts, at the end of a warm-up. Controllers of machines that are due decide
    /// before, because their epoch ends now and is observed in these counts.
    pub fn forget(&mut self) {
        let now = self.engine().now();
        for number in 0..self.machines.len() {
            if self.machines[number].due <= now {
                self.machine_turn(number);
            }
        }
        self.system.engine_mut().forget();
        self.machines.iter_mut().for_each(|machine| machine.plant.forget());
    }

    /// Returns everything counted up to now. Cores and busy time of a server that is a machine
    /// are those of the machine, with all apps on it.
    pub fn totals(&self) -> Totals {
        let mut totals = self.engine().totals();
        for (server, found) in totals.servers.iter_mut().zip(&self.machine_of_server) {
            if let Some((machine, _)) = found {
                add_cores(server, &self.machines[*machine].plant, totals.span);
            }
        }
        totals
    }
}

/// The error of a machine, with its key among those of all hosts.
fn plant_error(host: &str, error: MachinePlantError) -> HostError {
    match error {
        MachinePlantError::Model(error) => HostError::Model(check::in_host(host, error)),
        error => HostError::Plant { host: host.to_owned(), error },
    }
}

/// The first number of the random streams of machines' policies.
const FIRST_MACHINE: usize = 1 << 20;

/// Replaces the cores of a server, which the engine does not know, by those of its machine.
fn add_cores(server: &mut ServerTotals, plant: &MachinePlant, span: Nanos) {
    let of_machine = plant.simulation().totals();
    let busy_share: f64 = of_machine.utilisation.iter().sum();
    server.cores = of_machine.utilisation.len() as u32;
    for domain in &mut server.domains {
        domain.cores = server.cores;
        domain.busy = Nanos((busy_share * span.0 as f64) as u64);
    }
}

impl HostedMachine {
    fn simulation(&mut self) -> &mut MachineSimulation {
        self.plant.simulation_mut()
    }
}
