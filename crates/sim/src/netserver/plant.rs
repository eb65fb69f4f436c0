//! The plant of a network server.

use super::parts::CoreSums;
use super::{NetServer, NetServerModel, Traffic};
use crate::model::ModelError;
use lull_control::{
    AppSeen, AppSpec, Applied, Capabilities, Capability, Coalescing, Core, CoreId, CoreSeen,
    CoreSet, CoreType, DomainId, EnergySeen, EnergySource, FrequencyDomain, Got, LatencySeen,
    Machine, Nic, NicId, Observation, Outcome, Plant, PlantError, Setting,
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
        let none = || Missing::because("an epoch of no length");
        let per_s = |count: u64| match epoch {
            Nanos::ZERO => Err(none()),
            _ => Ok(count as f64 / epoch.as_secs_f64()),
        };
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
        let (interrupts, rx) = (count(|sums| sums.interrupts), count(|sums| sums.rx_packets));
        let packets: u64 = rx + count(|sums| sums.tx_packets);
        Observation {
            time: self.snapshot.time,
            epoch,
            apps: vec![self.app_observation(&before, epoch)],
            cores,
            energy: Ok(energy),
            interrupts_per_s: per_s(interrupts),
            packets_per_s: per_s(packets),
            ..Observation::unknown(self.snapshot.time, epoch, &unread)
        }
    }

    fn core_observation(&self, core: usize, before: &NetServerSnapshot, epoch: Nanos) -> CoreSeen {
        let package = core / usize::from(self.server.model.cores_a_package());
        let (now, then) = (&self.snapshot.cores[core], &before.cores[core]);
        let share = |part_ns: u64| match epoch {
            Nanos::ZERO => Err(Missing::because("an epoch of no length")),
            _ => Ok((part_ns as f64 / epoch.0 as f64).min(1.0)),
        };
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
        let Some(to) = self.machine.domain(id).and_then(|domain| domain.nearest(wanted)) else {
            return Got::Refused { why: format!("there is no frequency domain {}", id.0) };
        };
        let package = usize::from(id.0);
        let state = &self.server.packages[package];
        let same = state.held && state.frequency == to;
        self.server.set_frequency(package, Some(to));
        let clamped = Setting::Frequency(id, to);
        answer(same, (to != wanted).then_some((clamped, format!("{wanted} is no step"))))
    }

    fn set_coalescing(&mut self, id: NicId, wanted: Coalescing) -> Got {
        let Some(nic) = self.machine.nic(id) else {
            return Got::Refused { why: format!("there is no network interface {}", id.0) };
        };
        let to = match wanted {
            Coalescing::Adaptive => None,
            Coalescing::Delay(delay) => Some(nic.nearest(delay)),
        };
        let same = self.server.delay() == to;
        if !same {
            self.server.set_delay(to);
        }
        let became = to.map_or(Coalescing::Adaptive, Coalescing::Delay);
        let why = format!("delays are steps of {} up to {}", nic.delay_step, nic.delay_max);
        let clamped = (Setting::Coalescing(id, became), why);
        answer(same, (became != wanted).then_some(clamped))
    }
}

/// Returns the result of a setting.
fn answer(same: bool, clamped: Option<(Setting, String)>) -> Got {
    match clamped {
        Some((to, why)) => Got::Clamped { to, why },
        None if same => Got::Already,
        None => Got::Done,
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
        let how = self.server.delay().map_or(Coalescing::Adaptive, Coalescing::Delay);
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
    let domain = |package: u16| FrequencyDomain {
        id: DomainId(package),
        cores: (package * each..(package + 1) * each).map(CoreId).collect::<CoreSet>(),
        steps: model.frequencies.clone(),
        continuous: false,
    };
    Machine {
        name: format!("simulated {}", model.name),
        cores: (0..model.cores).map(core).collect(),
        core_types: vec![CoreType { name: "core".to_owned(), speed: 1.0 }],
        domains: (0..model.packages).map(domain).collect(),
        cache: None,
        bandwidth: None,
        nics: vec![Nic {
            id: NicId(0),
            name: "simulated".to_owned(),
            delay_max: model.nic.delay_max,
            delay_step: model.nic.delay_step,
        }],
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
    found.into_iter().fold(Capabilities::default(), |all, (what, there, why)| match there {
        true => all.with_capability(what, means),
        false => all.without(what, Missing::because(why)),
    })
}
