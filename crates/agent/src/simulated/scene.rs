//! Apps and clients as the simulator's apps, and errors of the simulator as keys of the files.

use super::demand::{self, Demand};
use super::gated::{GatedApp, NO_TIME};
use super::load::OpenLoad;
use super::{Simulated, left_out, load, machine};
use crate::config::{AppSection, ClientSection, EPOCH_MIN, MemorySection};
use crate::located::InputError;
use lull_control::{AppSpec, EpochRule, LatencyOf};
use lull_lab::scenario::{ConnectionGroup, GateKeeper, GateKeepers, InvalidKey, NodeScene};
use lull_measure::Nanos;
use lull_sim::machine::{Activity, ClosedClients, MachineApp, MachineModel};
use lull_sim::model::Distribution;
use lull_workload::arrivals::{Process, Rate};
use std::path::Path;

/// The policy that every other is compared with.
const REFERENCE: &str = "unmanaged";

/// The apps of a simulated config.
pub(super) struct Scene<'a> {
    simulated: &'a Simulated,
    model: MachineModel,
    apps: Vec<AppSpec>,
    /// The number in the config of each app.
    numbers: Vec<usize>,
    notices: Vec<String>,
    /// The apps whose gates the machine has, and what decides at each.
    gated: Vec<GatedApp<'a>>,
    admission: Vec<GateKeeper>,
}

impl<'a> Scene<'a> {
    /// Describes the machine and its apps to the simulator.
    ///
    /// # Errors
    /// The first key that cannot be simulated.
    pub(super) fn new(simulated: &'a Simulated, base: &Path) -> Result<Self, InputError> {
        let described = machine::described(&simulated.machine)
            .map_err(|(key, why)| simulated.machine_text.error(&format!("machine.{key}"), why))?;
        let gated = GatedApp::find_all(simulated);
        let notices = left_out::left_out(simulated, &described, &gated);
        let keepers: Vec<_> = gated.iter().map(GatedApp::keeper).collect();
        let mut scene = Self {
            simulated,
            model: described.model,
            apps: Vec::new(),
            numbers: Vec::new(),
            notices,
            gated,
            admission: Vec::new(),
        };
        for (at, keeper) in keepers.into_iter().enumerate() {
            let error = |(key, why)| scene.gate_error(at, &format!("gate.{key}"), why);
            let keeper = keeper.map_err(error)?;
            scene.admission.push(keeper);
        }
        for (number, app) in simulated.config.apps.iter().enumerate() {
            scene.add(number, app, base)?;
        }
        Ok(scene)
    }

    /// The scene with the policies to compare: the config's against doing nothing, where the gate
    /// is open.
    pub(super) fn node_scene(&self) -> NodeScene {
        let config = &self.simulated.config;
        let mut policy = config.policy_keys.clone();
        policy.insert("name".to_owned(), config.policy.clone().into());
        let has_gate = !self.gated.is_empty();
        let mut reference = toml::Table::from_iter([("name".to_owned(), REFERENCE.into())]);
        if has_gate {
            let open = toml::Table::from_iter([("name".to_owned(), "open".into())]);
            reference.insert("admission".to_owned(), open.into());
        }
        let is_reference = config.policy == REFERENCE;
        if is_reference && has_gate {
            let keepers = self.admission.iter().map(|keeper| keeper.name.as_str());
            let label: Vec<_> = [REFERENCE].into_iter().chain(keepers).collect();
            policy.insert("label".to_owned(), label.join(" + ").into());
        }
        let reference = (!is_reference || has_gate).then_some(reference);
        let agent = &config.agent;
        let adaptive = agent.adaptive_epoch.clone().map(EpochRule::Adaptive);
        NodeScene {
            title: format!("{} on {}", config.source.name(), self.model.name),
            run: self.simulated.run.clone(),
            model: self.model.clone(),
            apps: self.apps.clone(),
            rules: config.rules(false),
            policies: reference.into_iter().chain([policy]).collect(),
            epoch: adaptive.or_else(|| agent.epoch.map(EpochRule::Fixed)),
            admission: GateKeepers(self.admission.clone()),
            groups: self.groups(),
            shortest_epoch: EPOCH_MIN,
            notices: self.notices.clone(),
        }
    }

    /// The connections with figures of their own, gate by gate.
    fn groups(&self) -> Vec<ConnectionGroup> {
        let mut first = 0;
        let of_gate = |(gated, keeper): (&GatedApp<'_>, &GateKeeper)| {
            let groups = gated.groups(keeper, first);
            first += gated.connections as usize;
            groups
        };
        self.gated.iter().zip(&self.admission).flat_map(of_gate).collect()
    }

    fn add(&mut self, number: usize, app: &AppSection, base: &Path) -> Result<(), InputError> {
        let client = self.client_of(app).map(|(_, client)| client);
        if client.is_none() && app.slot.is_some() {
            let why = format!("`{}` is absent throughout: no [[client]] describes it", app.name);
            self.note(&app.entry(number), why);
            return Ok(());
        }
        if let Some(of) = app.latency_of().filter(|of| *of != LatencyOf::Requests) {
            let why = format!(
                "bounds {}, which the simulator does not measure: bound a percentile of requests",
                of.name()
            );
            return Err(self.error(number, "objectives", why));
        }
        let gated = self.gated.iter().find(|gated| gated.number == number).copied();
        let threads = match gated {
            Some(gated) => gated.connections,
            None => self.threads(number, app, client)?,
        };
        let activity = match client.filter(|client| client.work.is_some()) {
            Some(client) => match gated {
                Some(gated) => {
                    let demand = self.demand(app, client, base)?;
                    let load = match gated.waits() {
                        true => OpenLoad::default(),
                        false => self.open(app, client, base)?,
                    };
                    self.model.gate.push(gated.model(demand, load));
                    Activity::Connections
                }
                None => self.requests(app, client, base)?,
            },
            None => {
                self.check_demandless(app, client)?;
                self.endless(number, app)?
            }
        };
        let memory = client.and_then(|client| client.memory).map(MemorySection::usage);
        self.model.app.push(MachineApp {
            memory: memory.unwrap_or_default(),
            ..MachineApp::new(&app.name, threads, activity)
        });
        self.apps.push(AppSpec { threads: Some(threads), solo_per_s: None, ..app.spec() });
        self.numbers.push(number);
        Ok(())
    }

    fn threads(
        &mut self,
        number: usize,
        app: &AppSection,
        client: Option<&ClientSection>,
    ) -> Result<u32, InputError> {
        let stated = client.and_then(|client| client.threads).or(app.threads);
        let cores = u32::from(self.model.cores);
        match stated {
            Some(threads) => Ok(threads),
            None if app.spec().is_latency_critical() => {
                let why = "is missing: a process that does not run has no threads to count; write \
                           how many serve requests, here or in its [[client]]";
                Err(self.error(number, "threads", why.to_owned()))
            }
            None => {
                let why = format!("assumed, since not stated: {cores} threads, one a core");
                self.note(&format!("{}.threads", app.entry(number)), why);
                Ok(cores)
            }
        }
    }

    /// Refuses a key of requests without their work.
    fn check_demandless(
        &self,
        app: &AppSection,
        client: Option<&ClientSection>,
    ) -> Result<(), InputError> {
        let Some(key) = client.and_then(ClientSection::key_of_requests) else { return Ok(()) };
        let why = "describes requests without their work: write work = { mean = \"1ms\" } or work \
                   = { record = \"runs/RUN.sqlite\" } in this [[client]], or leave the key out \
                   for work without end";
        Err(self.client_error(app, key, why.to_owned()))
    }

    /// Returns unlimited work for an app without a description.
    fn endless(&mut self, number: usize, app: &AppSection) -> Result<Activity, InputError> {
        if !app.spec().is_latency_critical() {
            return Ok(Activity::Endless);
        }
        let why = format!(
            "its requests are not described: write [[client]] with app = \"{}\", a rate and work \
             = {{ mean = \"1ms\" }} or work = {{ record = \"runs/RUN.sqlite\" }}",
            app.name
        );
        Err(self.simulated.config.source.error(&app.entry(number), why))
    }

    fn requests(
        &mut self,
        app: &AppSection,
        client: &ClientSection,
        base: &Path,
    ) -> Result<Activity, InputError> {
        let Demand { work, delay } = self.demand(app, client, base)?;
        let (load, arrivals, closed) = match client.clients {
            None => {
                let OpenLoad { steps, arrivals } = self.open(app, client, base)?;
                (steps, arrivals, None)
            }
            Some(clients) => {
                let think = client.think.unwrap_or(Distribution::constant(NO_TIME));
                (Vec::new(), Process::Poisson, Some(ClosedClients { clients, think }))
            }
        };
        Ok(Activity::Requests { work, load, closed, arrivals, delay, client: None })
    }

    /// Rate and gaps of clients that do not wait: the client's, else those of `[[load]]`.
    fn open(
        &self,
        app: &AppSection,
        client: &ClientSection,
        base: &Path,
    ) -> Result<OpenLoad, InputError> {
        let loads = &self.simulated.config.loads;
        let load = loads.iter().position(|load| load.app == app.name);
        let of_load = load.map(|at| &loads[at]);
        let end = self.simulated.run.node_span();
        let arrivals = client.arrivals.or(of_load.map(|load| load.arrivals)).unwrap_or_default();
        let steps = |rate: &Rate, base: &Path| load::steps(rate, base, end);
        if let Some(rate) = &client.rate {
            let steps = steps(rate, base).map_err(|why| self.client_error(app, "rate", why))?;
            return Ok(OpenLoad { steps, arrivals });
        }
        let (Some(at), Some(of_load)) = (load, of_load) else {
            let why = "has neither rate nor clients, and the app has no [[load]]: write rate = \
                       \"100/s\", or clients and think"
                .to_owned();
            return Err(self.client_error(app, "rate", why));
        };
        let error = |why| self.simulated.config.source.error(&format!("load[{at}].rate"), why);
        let steps = steps(&of_load.rate, Path::new(".")).map_err(error)?;
        Ok(OpenLoad { steps, arrivals })
    }

    fn demand(
        &mut self,
        app: &AppSection,
        client: &ClientSection,
        base: &Path,
    ) -> Result<Demand, InputError> {
        let work = client.work.clone().unwrap_or_default();
        if let Some(mean) = work.mean {
            let work = Distribution { mean, shape: work.shape.unwrap_or_default() };
            return Ok(Demand { work, delay: client.delay });
        }
        let record = base.join(work.record.unwrap_or_default());
        let demand = demand::fitted(&record, &app.name)
            .map_err(|why| self.client_error(app, "work.record", why))?;
        let delay = demand.delay.map_or(Nanos::ZERO, |delay| delay.mean);
        let mean = demand.work.mean;
        let cv2 = demand.work.shape.cv2();
        let why = format!("fitted to the record: {mean} of work, cv2 {cv2:.2}, {delay} of delay");
        let key = self.client_key(app, "work.record");
        self.notices.push(self.simulated.load_text.error(&key, why).to_string());
        Ok(demand)
    }

    fn client_of(&self, app: &AppSection) -> Option<(usize, &'a ClientSection)> {
        self.simulated.client_of(app)
    }

    fn client_key(&self, app: &AppSection, key: &str) -> String {
        let at = self.client_of(app).map_or(0, |(at, _)| at);
        format!("client[{at}].{key}")
    }

    fn client_error(&self, app: &AppSection, key: &str, why: String) -> InputError {
        self.simulated.load_text.error(&self.client_key(app, key), why)
    }

    fn note(&mut self, key: &str, why: String) {
        self.notices.push(self.simulated.config.source.error(key, why).to_string());
    }

    fn error(&self, number: usize, key: &str, why: String) -> InputError {
        let source = &self.simulated.config.source;
        source.error(&format!("{}.{key}", self.simulated.config.apps[number].entry(number)), why)
    }

    /// Converts an error of the simulator to one at the key of the file.
    pub(super) fn locate(&self, wrong: &InvalidKey) -> InputError {
        let simulated = self.simulated;
        let why = wrong.message.clone();
        let key = wrong.key.as_str();
        let (head, rest) = key.split_once('.').unwrap_or((key, ""));
        match head.split('[').next() {
            Some("node") if rest.starts_with("gate") => self.locate_gate(rest, why),
            Some("node") => simulated.machine_text.error(&format!("machine.{rest}"), why),
            Some("run") => simulated.run_text.error(key, why),
            Some("policy") if rest.is_empty() => simulated.config.source.error("policy", why),
            Some("policy") if rest.starts_with("admission") => {
                let (head, rest) = rest.split_once('.').unwrap_or((rest, ""));
                let key = format!("concurrency.{rest}");
                self.gate_error(index_of(head).unwrap_or(0), key.trim_end_matches('.'), why)
            }
            Some("policy") => simulated.config.source.error(&format!("policy.{rest}"), why),
            Some("app") => self.locate_app(index_of(head), rest, why),
            _ => simulated.config.source.error(key, why),
        }
    }

    /// An error at a key of the app whose gate is this one.
    fn gate_error(&self, gate: usize, key: &str, why: String) -> InputError {
        match self.gated.get(gate) {
            Some(gated) => self.error(gated.number, key, why),
            None => self.simulated.config.source.error("app", why),
        }
    }

    /// Converts an error of a simulated gate to one at the key of the client.
    fn locate_gate(&self, rest: &str, why: String) -> InputError {
        let (head, rest) = rest.split_once('.').unwrap_or((rest, ""));
        match self.gated.get(index_of(head).unwrap_or(0)) {
            Some(gated) => self.client_error(gated.app, &gated.client_key(rest), why),
            None => self.simulated.config.source.error("app", why),
        }
    }

    fn locate_app(&self, at: Option<usize>, rest: &str, why: String) -> InputError {
        let simulated = self.simulated;
        let number = at.and_then(|at| self.numbers.get(at).copied());
        let Some(number) = number else { return simulated.config.source.error("app", why) };
        let app = &simulated.config.apps[number];
        let of_client = rest
            .strip_prefix("activity.requests.closed.")
            .or_else(|| rest.strip_prefix("activity.requests."))
            .or_else(|| rest.starts_with("memory").then_some(rest))
            .or_else(|| {
                let stated = self.client_of(app).and_then(|(_, client)| client.threads);
                let waits = |gated: &GatedApp<'_>| gated.number == number && gated.waits();
                match rest {
                    "threads" if self.gated.iter().any(waits) => Some("clients"),
                    "threads" => stated.map(|_| rest),
                    _ => None,
                }
            });
        match of_client {
            Some("load") => self.client_error(app, "rate", why),
            Some(key) => self.client_error(app, &key.replace('-', "_"), why),
            None if rest.is_empty() => simulated.config.source.error(&app.entry(number), why),
            None => self.error(number, rest, why),
        }
    }
}

/// The number in `app[3]`.
fn index_of(head: &str) -> Option<usize> {
    head.split_once('[')?.1.strip_suffix(']')?.parse().ok()
}
