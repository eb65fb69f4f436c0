//! The plant of a network server.

use super::parts::CoreSums;
use super::{NetServer, NetServerModel, Traffic};
use crate::model::ModelError;
use crate::plant::toolkit;
use lull_control::{
    AppSeen, AppSpec, Applied, Capabilities, Capability, Coalescing, Core, CoreId, CoreSeen,
    CoreType, DomainId, EnergySeen, EnergySource, Got, LatencySeen, Machine, NicId, Observation,
    Outcome, Plant, PlantError, Setting,
};
use lull_measure::catalogue::{CPU, CYCLES};
use lull_measure::{Hertz, Joules, Missing, Nanos};

/// A simulated server under a policy: frequency of each package, ITR delay of
/// its card.
#[derive(Debug, Clone)]
pub struct NetServerPlant {
    server: NetServer,
    machine: Machine,
    apps: Vec<AppSpec>,
    snapshot: NetServerSnapshot,
}

/// Sums at the last observation.
#[derive(Debug, Clone)]
struct NetServerSnapshot {
    time: Nanos,
    energy: Joules,
    cores: Vec<CoreSums>,
}

impl NetServerPlant {
    /// A fresh replication. `app` is what policies know of the app that serves.
    ///
    /// # Errors
    /// If the model cannot be simulated.
    pub fn new(
        model: &NetServerModel,
        app: AppSpec,
        seed: u64,
        replication: u64,
    ) -> Result<Self, ModelError> {
        let server = NetServer::new(model, seed, replication)?;
        let machine = machine_of(model, &app);
        Ok(Self { snapshot: NetServerSnapshot::take(&server), server, machine, apps: vec![app] })
    }

    /// The simulation, to look at.
    pub fn server(&self) -> &NetServer {
        &self.server
    }

    /// The simulation, to forget a warm-up or to keep a log.
    pub fn server_mut(&mut self) -> &mut NetServer {
        &mut self.server
    }

    fn observation(&mut self) -> Observation {
        let before = std::mem::replace(&mut self.snapshot, NetServerSnapshot::take(&self.server));
        let epoch = self.snapshot.time - before.time;
        let pairs = || self.snapshot.cores.iter().zip(&before.cores);
        let count = |of: fn(&CoreSums) -> u64| pairs().map(|(now, then)| of(now) - of(then)).sum();
        let energy = EnergySeen {
            energy: self.snapshot.energy - before.energy,
            source: EnergySource::Measured("the simulated packages' counters".to_owned()),
        };
        let cores =
            (0..self.server.cores.len()).map(|core| self.core_observation(core, &before, epoch));
        let cores = cores.collect();
        let unread = Missing::because("the simulated server has no such gauge");
        let (interrupts, packets) =
            (count(|sums| sums.card.interrupts), count(|sums| sums.card.packets()));
        Observation {
            time: self.snapshot.time,
            epoch,
            apps: vec![self.app_observation(&before, epoch)],
            cores,
            energy: Ok(energy),
            interrupts_per_s: toolkit::rate_per_s(interrupts, epoch),
            packets_per_s: toolkit::rate_per_s(packets, epoch),
            ..Observation::unknown(self.snapshot.time, epoch, &unread)
        }
    }

    fn core_observation(&self, core: usize, before: &NetServerSnapshot, epoch: Nanos) -> CoreSeen {
        let package = core / usize::from(self.server.model.cores_a_package());
        let (now, then) = (&self.snapshot.cores[core], &before.cores[core]);
        let share = |part_ns: u64| toolkit::share(u128::from(part_ns), epoch);
        CoreSeen {
            utilisation: share(now.busy_ns - then.busy_ns),
            idle_residency: share(now.idle.idle().0.saturating_sub(then.idle.idle().0)),
            deep_idle_residency: share(now.idle.deepest().0.saturating_sub(then.idle.deepest().0)),
            c6_opportunity: Err(Missing::because("the simulated server sums up its sleeps")),
            frequency: Ok(self.server.frequency(package)),
        }
    }

    fn app_observation(&mut self, before: &NetServerSnapshot, epoch: Nanos) -> AppSeen {
        let unread = Missing::because("the simulated server has no such gauge");
        let unknown = AppSeen { alive: true, ..AppSeen::unknown(&unread) };
        let window = self.server.take_window();
        if epoch == Nanos::ZERO {
            return unknown;
        }
        let seconds = epoch.as_secs_f64();
        let pairs = || self.snapshot.cores.iter().zip(&before.cores);
        let sum =
            |of: fn(&CoreSums) -> u64| pairs().map(|(now, then)| of(now) - of(then)).sum::<u64>();
        let waiting = self.server.cores.iter().map(super::core::Core::outstanding);
        let (outstanding, oldest) = waiting.fold((0, None), |(all, first), (count, oldest)| {
            (all + count, [first, oldest].into_iter().flatten().min())
        });
        let latency = LatencySeen {
            window,
            offered_per_s: sum(|sums| sums.arrived) as f64 / seconds,
            completed_per_s: sum(|sums| sums.answered) as f64 / seconds,
            errors_per_s: 0.0,
            outstanding,
            oldest: oldest
                .map(|arrived_ns: u64| self.snapshot.time.saturating_sub(Nanos(arrived_ns))),
            ..LatencySeen::default()
        };
        let cycles: f64 = pairs().map(|(now, then)| now.cycles - then.cycles).sum();
        AppSeen { latency: Ok(latency), threads: Ok(u32::from(self.server.model.cores)), ..unknown }
            .with_reading(CPU, Ok(sum(|sums| sums.busy_ns) as f64 / 1e9 / seconds))
            .with_reading(CYCLES, Ok(cycles / seconds))
    }

    fn set(&mut self, wanted: &Setting) -> Got {
        if let Err(why) = self.machine.capabilities.get(wanted.knob().capability()) {
            return Got::Refused { why: why.to_string() };
        }
        match wanted {
            Setting::Frequency(domain, hertz) => self.set_frequency(*domain, *hertz),
            Setting::Coalescing(nic, how) => self.set_coalescing(*nic, *how),
            _ => Got::Refused { why: "the simulated server has no such knob".to_owned() },
        }
    }

    fn set_frequency(&mut self, id: DomainId, wanted: Hertz) -> Got {
        let server = &mut self.server;
        toolkit::set_frequency(&self.machine, id, wanted, |domain, to| {
            let package = usize::from(domain.id.0);
            let state = &server.packages[package];
            let already = state.held && state.frequency == to;
            server.set_frequency(package, Some(to));
            already
        })
    }

    fn set_coalescing(&mut self, id: NicId, wanted: Coalescing) -> Got {
        let server = &mut self.server;
        toolkit::set_coalescing(&self.machine, id, wanted, |to| {
            let already = server.delay() == to;
            if !already {
                server.set_delay(to);
            }
            already
        })
    }
}

impl NetServerSnapshot {
    fn take(server: &NetServer) -> Self {
        Self { time: server.now(), energy: server.energy(), cores: server.sums() }
    }
}

impl Plant for NetServerPlant {
    fn machine(&self) -> &Machine {
        &self.machine
    }

    fn apps(&self) -> &[AppSpec] {
        &self.apps
    }

    fn observe(&mut self, epoch: Nanos) -> Result<Observation, PlantError> {
        self.server.run_until(self.server.now().saturating_add(epoch));
        Ok(self.observation())
    }

    /// A package that its governor steers has no frequency setting, as on a host.
    fn settings(&self) -> Vec<Setting> {
        let held = self.server.packages.iter().zip(&self.machine.domains);
        let frequencies = held.filter(|(package, _)| package.held);
        let how = toolkit::coalescing(self.server.delay());
        frequencies
            .map(|(package, domain)| Setting::Frequency(domain.id, package.frequency))
            .chain([Setting::Coalescing(NicId(0), how)])
            .collect()
    }

    fn apply(&mut self, wanted: &[Setting]) -> Applied {
        let outcomes = wanted.iter().map(|setting| {
            let got = self.set(setting);
            Outcome { wanted: setting.clone(), got }
        });
        Applied { outcomes: outcomes.collect() }
    }

    fn restore(&mut self) -> Applied {
        for package in 0..self.server.packages.len() {
            self.server.set_frequency(package, None);
        }
        self.apply(&[Setting::Coalescing(NicId(0), Coalescing::Adaptive)])
    }
}

fn machine_of(model: &NetServerModel, app: &AppSpec) -> Machine {
    let each = model.cores_a_package();
    let core =
        |id| Core { id: CoreId(id), core_type: 0, package: id / each, smt_leader: CoreId(id) };
    let domain = |package| toolkit::frequency_domain(package, each, model.frequencies.clone());
    Machine {
        name: format!("simulated {}", model.name),
        cores: (0..model.cores).map(core).collect(),
        core_types: vec![CoreType { name: "core".to_owned(), speed: 1.0 }],
        domains: (0..model.packages).map(domain).collect(),
        cache: None,
        bandwidth: None,
        nics: vec![toolkit::network_card(model.nic.delay_max, model.nic.delay_step)],
        dials: Vec::new(),
        gates: Vec::new(),
        capabilities: capabilities(model, app),
    }
}

/// Why no gate's numbers can be set.
const NO_GATE: &str = "the simulated server's threads are its cores': none waits at a gate";

fn capabilities(model: &NetServerModel, app: &AppSpec) -> Capabilities {
    let open = matches!(model.traffic, Traffic::Open { .. });
    let found = [
        (Capability::Frequency, true, ""),
        (Capability::Coalescing, true, ""),
        (Capability::TailLatency, app.is_latency_critical(), "the app has no objective"),
        (Capability::CpuTime, true, ""),
        (Capability::Utilisation, true, ""),
        (Capability::IdleResidency, true, ""),
        (Capability::Energy, true, ""),
        (Capability::Cores, false, "the app's threads are pinned, one a core"),
        (Capability::Scheduling, false, "the simulated server runs one app"),
        (Capability::RealTimeThrottle, false, "the simulated server runs one app"),
        (Capability::CacheWays, false, "the simulated server has no cache model"),
        (Capability::MemoryBandwidth, false, "the simulated server has no memory model"),
        (Capability::GateCap, false, NO_GATE),
        (Capability::GateBatch, false, NO_GATE),
        (Capability::GateDelay, false, NO_GATE),
        (Capability::Progress, false, "the simulated server has no best-effort app"),
        (Capability::Instructions, false, "the simulated server counts cycles only"),
        (Capability::SchedulerEvents, false, "the simulated server sums up its sleeps"),
    ];
    let means = if open { "simulated" } else { "simulated, one connection" };
    toolkit::capabilities(found, means)
}
