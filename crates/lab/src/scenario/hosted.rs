//! Scenarios of tiers of which some are machines with cores: `[host.NAME]` beside `[[tier]]`.
//!
//! A `[[policy]]` steers stations, and its table `hosts` names a policy for the machines of each
//! host, so that both decide at once, each at the ends of its own epochs.

mod backlog;

use super::check::check_events;
use super::choice::{Described, Labelled};
use super::colocated::{check_amount, check_presence, complete};
use super::file::{NODE_WARMUP, PolicySection, epoch_of};
use super::frame::{Contents, Frame};
use super::quantity::{
    Answers, MeasuredQuantity, Quantity, Response, percent, quantity, responses, tier_figures,
};
use super::run::RunError;
use super::{Choice, InvalidKey, Outcome, ScenarioFile, check_tiers, model, specs};
use crate::bounds::BACKLOG_MAX;
use crate::cells::Sample;
use crate::colocation::{GateKeepers, RequestDispatcher};
use crate::policy_source::PolicySource;
use crate::progress::Progress;
use crate::trial::{Control, rules};
use backlog::run_within;
use lull_control::{AppSpec, Plant, PolicyError};
use lull_measure::Latency;
use lull_sim::hosts::{Host, HostError, HostedSystem};
use lull_sim::machine::{Activity, Controllers, MachineAppTotals, MachineTotals};
use lull_sim::model::{Model, Source};
use lull_sim::plant::PlantSpec;
use lull_sim::{Replication, Totals};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A checked scenario of tiers and machines.
#[derive(Debug, Clone)]
pub struct HostedScenario {
    pub(super) frame: Frame<HostedVariant, HostedFigure>,
    model: Model,
    /// Apps of the tiers that policies of stations watch.
    apps: Vec<AppSpec>,
    hosts: BTreeMap<String, Host>,
    tier_figures: Vec<MeasuredQuantity>,
}

/// One entry of the comparison: a policy of stations, and one for each steered host.
#[derive(Debug, Clone)]
pub(super) struct HostedVariant {
    label: String,
    /// All its policies, those of hosts with their epochs.
    name: String,
    stations: Control,
    hosts: BTreeMap<String, HostSteering>,
    key: String,
}

/// The policies over the machines of a host.
#[derive(Debug, Clone)]
struct HostSteering {
    control: Control,
    admission: GateKeepers,
    dispatcher: Option<RequestDispatcher>,
}

/// A figure of tiers and machines. Hosts and their apps are numbered in order.
#[derive(Debug, Clone, Copy)]
pub(super) enum HostedFigure {
    /// Number of a figure of tiers.
    Tier(usize),
    Response(usize, usize, Response),
    Progress(usize, usize),
    /// Power of all machines of a host.
    Power(usize),
}

/// The counts of the machines of a host.
struct HostTotals {
    machines: Vec<MachineTotals>,
    watts: f64,
}

impl HostedScenario {
    /// Checks a scenario; `base` is the directory of files that it names.
    ///
    /// # Errors
    /// The first key that cannot be simulated.
    pub fn new(file: ScenarioFile, base: &Path, choice: &Choice) -> Result<Self, InvalidKey> {
        let (model, apps) = (model(&file, base)?, specs(&file.app)?);
        let seed = choice.seed.unwrap_or(file.run.seed);
        let mut hosts: BTreeMap<String, Host> =
            file.host.iter().map(|(name, it)| (name.clone(), it.host(name))).collect();
        let streams = Replication { seed, number: 0 };
        start_hosts(&model, hosts.clone(), &BTreeMap::new(), streams)
            .map_err(|error| host_error(error, "hosts"))?;
        check_names(&model, &hosts)?;
        let mut notices = Vec::new();
        for (name, host) in &mut hosts {
            check_amount(&host.model, file.run.node_span())
                .map_err(|wrong| wrong_in_host(name, wrong))?;
            for (at, spec) in host.apps.iter_mut().enumerate() {
                let key = format!("host.{name}.app[{at}]");
                complete(spec, &key, &host.model, seed, &mut notices)?;
            }
        }
        let tier_figures = tier_figures(&model, &apps);
        let contents = Contents {
            title: file.title,
            notices,
            variants: variants(&file.policy, &model, choice)?,
            figures: figures(&tier_figures, &hosts),
        };
        let frame = Frame::new(contents, &file.run, choice, NODE_WARMUP)?;
        for (name, host) in &hosts {
            check_presence(&host.model, frame.warmup, frame.length)
                .map_err(|wrong| wrong_in_host(name, wrong))?;
        }
        check_events(&model, frame.warmup.saturating_add(frame.length), "run.length")?;
        let scenario = Self { frame, model, apps, hosts, tier_figures };
        for variant in &scenario.frame.contents.variants {
            scenario.start(variant, 0)?;
        }
        Ok(scenario)
    }

    /// One replication with all controllers.
    fn start(&self, variant: &HostedVariant, replication: u64) -> Result<HostedSystem, InvalidKey> {
        let streams = Replication { seed: self.frame.seed, number: replication };
        let started = start_hosts(&self.model, self.hosts.clone(), &variant.hosts, streams);
        let mut system = started.map_err(|error| host_error(error, &variant.key_of("hosts")))?;
        let control = &variant.stations;
        let of_stations = |message: String| InvalidKey::at(variant.key_of(""), message);
        for tier in &control.tiers {
            for server in 0..system.engine().servers_of(tier).map_or(0, |range| range.len()) {
                let spec = PlantSpec { tier: tier.clone(), server, apps: self.apps.clone() };
                let plant = system.plant(&self.model, &spec);
                let plant = plant.map_err(|error| of_stations(error.to_string()))?;
                let built = control.policy.build(&control.config, plant.machine(), plant.apps());
                let policy = built.map_err(|error| variant.policy_error(error))?;
                let managed = system.manage(plant, policy, rules(), control.epoch.clone());
                managed.map_err(|error| of_stations(error.to_string()))?;
            }
        }
        for (host, HostSteering { control, .. }) in &variant.hosts {
            let wrong = |error: PolicyError| variant.host_error(host, error);
            for machine in system.machines_of(host).collect::<Vec<_>>() {
                let plant = system.machine(machine);
                let built = control.policy.build(&control.config, plant.machine(), plant.apps());
                let policy = built.map_err(wrong)?;
                let managed =
                    system.manage_machine(machine, policy, rules(), control.epoch.clone());
                managed.map_err(|error| of_stations(error.to_string()))?;
            }
        }
        Ok(system)
    }

    /// Runs all policies on the same replications. The result is the same to
    /// the last bit on any number of threads.
    ///
    /// # Errors
    /// The first simulation that fails.
    pub fn run(&self, progress: &Progress<'_>) -> Result<Outcome, RunError> {
        let open = |app: &lull_sim::model::App| matches!(app.source, Source::Open(_));
        let apps: Vec<_> =
            self.model.app.iter().map(|app| (app.name.as_str(), open(app))).collect();
        self.frame.run(&apps, progress, |variant, replication| self.replicate(variant, replication))
    }

    fn replicate(&self, variant: &HostedVariant, replication: u64) -> Result<Sample, String> {
        let mut system = self.start(variant, replication).map_err(|wrong| wrong.to_string())?;
        let end = self.frame.warmup.saturating_add(self.frame.length);
        run_within(&mut system, &self.hosts, self.frame.warmup, BACKLOG_MAX)?;
        system.forget();
        run_within(&mut system, &self.hosts, end, BACKLOG_MAX)?;
        let totals = system.totals();
        let hosts: Vec<_> = self.hosts.keys().map(|name| host_totals(&mut system, name)).collect();
        let requests = totals.apps.iter().map(|app| {
            let ended = (app.answered + app.lost).cast_signed();
            (app.arrived, app.arrived.cast_signed() - ended)
        });
        let requests = requests.collect();
        let values = self.frame.figures().map(|what| self.value(what, &totals, &hosts));
        Ok(Sample { values: values.collect(), requests })
    }

    fn value(&self, what: HostedFigure, totals: &Totals, hosts: &[HostTotals]) -> f64 {
        let of_app = |host: usize, app: usize| {
            hosts[host].machines.iter().map(move |machine| &machine.apps[app])
        };
        // An app comes and goes at the same times on all machines of a host.
        let present = |host: usize, app: usize| {
            of_app(host, app).map(|totals| totals.present).max().unwrap_or_default()
        };
        match what {
            HostedFigure::Tier(number) => self.tier_figures[number].value(totals),
            HostedFigure::Response(host, app, response) => {
                let mut latency = Latency::default();
                of_app(host, app).for_each(|totals| latency.merge(&totals.latency));
                response.value(Answers::new(&latency, present(host, app)))
            }
            HostedFigure::Progress(host, app) => {
                let Some(described) = self.hosts.values().nth(host) else { return f64::NAN };
                let solo = described.apps[app].solo_per_s.unwrap_or(f64::NAN);
                let connects = matches!(described.model.app[app].activity, Activity::Connections);
                let present = present(host, app);
                // Scales from a second of the counted time to a second of presence.
                let scale = totals.span.0 as f64 / present.0 as f64;
                let done_per_s = |it: &MachineAppTotals| match connects {
                    true => it.answered as f64 / present.as_secs_f64(),
                    false => it.work_per_s * scale,
                };
                let machines = hosts[host].machines.len() as f64;
                percent(of_app(host, app).map(done_per_s).sum(), solo * machines)
            }
            HostedFigure::Power(host) => hosts[host].watts,
        }
    }
}

/// Why tiers and hosts cannot be started.
enum StartError {
    Host(HostError),
    /// An admission controller or a dispatcher of this host.
    Controller(String, PolicyError),
}

/// Tiers and machines with the admission controllers and dispatchers of their hosts. A host for
/// which none is named has an open gate, and the kernel's scheduler places its threads.
fn start_hosts(
    model: &Model,
    mut hosts: BTreeMap<String, Host>,
    steering: &BTreeMap<String, HostSteering>,
    streams: Replication,
) -> Result<HostedSystem, StartError> {
    for (name, host) in &mut hosts {
        if steering.get(name).is_none_or(|steering| steering.dispatcher.is_none()) {
            host.model.dispatch = None;
        }
    }
    let open = GateKeepers::default();
    let build = |name: &str| {
        let (host, steering) = (&hosts[name], steering.get(name));
        let keeper = steering.map_or(&open, |steering| &steering.admission);
        let admission = keeper.build(&host.model, &host.apps, streams.seed)?;
        let dispatcher = steering.and_then(|steering| steering.dispatcher.as_ref());
        let dispatcher = dispatcher.map(|it| it.build(&host.model, &host.apps, streams.seed));
        Ok::<_, PolicyError>(Controllers { admission, dispatcher: dispatcher.transpose()? })
    };
    for name in hosts.keys() {
        build(name).map_err(|error| StartError::Controller(name.clone(), error))?;
    }
    let controllers = |name: &str| build(name).expect("the same controllers were built above");
    HostedSystem::behind(model, &hosts, streams, controllers).map_err(StartError::Host)
}

/// The error of tiers and hosts with the key in the file, where a machine's parts are in `node`,
/// and those of controllers are below `steering`.
fn host_error(error: StartError, steering: &str) -> InvalidKey {
    let error = match error {
        StartError::Host(HostError::Model(error)) => error,
        StartError::Host(error) => return InvalidKey::at("host", error.to_string()),
        StartError::Controller(host, PolicyError::Config { key, message }) => {
            return InvalidKey::at(format!("{steering}.{host}.{key}"), message);
        }
        StartError::Controller(host, error) => {
            return InvalidKey::at(format!("{steering}.{host}"), error.to_string());
        }
    };
    let key = match error.key.strip_prefix("host.").and_then(|rest| rest.split_once('.')) {
        Some((host, key)) if key.starts_with("app") => {
            format!("host.{host}.{}", key.replace("presence.", ""))
        }
        Some((host, key)) => format!("host.{host}.node.{key}"),
        None => error.key,
    };
    InvalidKey::at(key, error.problem.to_string())
}

/// The error of a check of a machine with its key in the file.
fn wrong_in_host(host: &str, wrong: InvalidKey) -> InvalidKey {
    InvalidKey::at(format!("host.{host}.{}", wrong.key), wrong.message)
}

/// Figures are named by apps, so that no two may have one name.
fn check_names(model: &Model, hosts: &BTreeMap<String, Host>) -> Result<(), InvalidKey> {
    let mut names: BTreeSet<&str> = model.app.iter().map(|app| app.name.as_str()).collect();
    for (host, it) in hosts {
        for (at, app) in it.model.app.iter().enumerate() {
            if !names.insert(&app.name) {
                let message = format!(
                    "the name `{}` is taken by another app, and both have figures: choose another",
                    app.name
                );
                return Err(InvalidKey::at(format!("host.{host}.app[{at}].name"), message));
            }
        }
    }
    Ok(())
}

fn host_totals(system: &mut HostedSystem, name: &str) -> HostTotals {
    let numbers: Vec<_> = system.machines_of(name).collect();
    let mut watts = 0.0;
    let machines = numbers.into_iter().map(|number| {
        let machine = system.machine_mut(number);
        watts += machine.gated_totals().power().0;
        machine.simulation().totals()
    });
    HostTotals { machines: machines.collect(), watts }
}

/// All figures: of the tiers, then host by host.
fn figures(
    tiers: &[MeasuredQuantity],
    hosts: &BTreeMap<String, Host>,
) -> Vec<(Quantity, HostedFigure)> {
    let of_tiers = tiers.iter().enumerate();
    let mut all: Vec<_> =
        of_tiers.map(|(at, it)| (it.quantity.clone(), HostedFigure::Tier(at))).collect();
    for (number, (name, host)) in hosts.iter().enumerate() {
        for (app, spec) in host.apps.iter().enumerate() {
            if spec.is_latency_critical() {
                let of_app = responses(&spec.name, spec.tail()).into_iter();
                let figure = |response| HostedFigure::Response(number, app, response);
                all.extend(of_app.map(|(quantity, response)| (quantity, figure(response))));
            } else {
                let words = "progress, of that alone";
                let quantity = quantity("progress", Some(&spec.name), words, "%");
                all.push((quantity, HostedFigure::Progress(number, app)));
            }
        }
        if host.model.power.is_some() {
            let quantity = quantity("power", Some(name), "power of its machines", "W");
            all.push((quantity, HostedFigure::Power(number)));
        }
    }
    all
}

/// The policies of the file, or those that the command line names.
fn variants(
    tables: &[toml::Table],
    model: &Model,
    choice: &Choice,
) -> Result<Vec<HostedVariant>, InvalidKey> {
    let mut written = Vec::new();
    for (at, table) in tables.iter().enumerate() {
        let (key, mut table) = (format!("policy[{at}]"), table.clone());
        let hosts = table.remove("hosts");
        let section = PolicySection::read(table, &key)?;
        let label = section.label.clone().unwrap_or_else(|| section.name.clone());
        let stations = control(section, &key, |tiers| stations(tiers, model, &key))?;
        let hosts = host_controls(hosts, model, &key)?;
        let name = all_names(&stations, &hosts);
        written.push(HostedVariant { label, name, stations, hosts, key });
    }
    let first = written.first().map(|first: &HostedVariant| first.stations.epoch.clone());
    choice.choose(written, |name| {
        let (policy, config) = (choice.source(name)?, toml::Table::new());
        let epoch = epoch_of(None, &policy, &config, first.as_ref());
        let stations = Control { policy, config, tiers: steerable(model), epoch };
        let (label, key) = (name.to_owned(), "--policy".to_owned());
        Ok(HostedVariant { label, name: name.to_owned(), stations, hosts: BTreeMap::new(), key })
    })
}

fn all_names(stations: &Control, hosts: &BTreeMap<String, HostSteering>) -> String {
    let of_hosts = hosts.iter().map(|(host, HostSteering { control, .. })| {
        format!("; {} every {} on {host}", control.policy.name(), control.epoch)
    });
    stations.policy.name().to_owned() + &of_hosts.collect::<String>()
}

fn control(
    section: PolicySection,
    key: &str,
    tiers: impl FnOnce(Option<Vec<String>>) -> Result<Vec<String>, InvalidKey>,
) -> Result<Control, InvalidKey> {
    let PolicySection { name, tiers: named, epoch, config, .. } = section;
    let policy = PolicySource::registered(&name)
        .map_err(|error| InvalidKey::at(format!("{key}.name"), error.to_string()))?;
    let epoch = epoch_of(epoch, &policy, &config, None);
    Ok(Control { policy, config, tiers: tiers(named)?, epoch })
}

/// The policies of the hosts that an entry names.
fn host_controls(
    written: Option<toml::Value>,
    model: &Model,
    key: &str,
) -> Result<BTreeMap<String, HostSteering>, InvalidKey> {
    let wanted = "is not a table of hosts: write hosts.NAME = { name = \"arq\" }";
    let tables = match written {
        None => return Ok(BTreeMap::new()),
        Some(toml::Value::Table(tables)) => tables,
        Some(_) => return Err(InvalidKey::at(format!("{key}.hosts"), wanted)),
    };
    let mut all = BTreeMap::new();
    for (host, table) in tables {
        let key = format!("{key}.hosts.{host}");
        if !model.tier.iter().any(|tier| tier.host.as_ref() == Some(&host)) {
            return Err(InvalidKey::at(key, format!("no tier has the host `{host}`")));
        }
        let toml::Value::Table(mut table) = table else { return Err(InvalidKey::at(key, wanted)) };
        let admission = table.remove("admission").map(GateKeepers::read).transpose();
        let admission = admission.map_err(|why| InvalidKey::at(format!("{key}.admission"), why))?;
        let dispatcher = table.remove("dispatcher").map(RequestDispatcher::read).transpose();
        let dispatcher =
            dispatcher.map_err(|why| InvalidKey::at(format!("{key}.dispatcher"), why))?;
        let section = PolicySection::read(table, &key)?;
        let none = |tiers: Option<Vec<String>>| match tiers {
            None => Ok(Vec::new()),
            Some(_) => {
                let message = "a host has no tiers of its own: leave the key out";
                Err(InvalidKey::at(format!("{key}.tiers"), message))
            }
        };
        let control = control(section, &key, none)?;
        let admission = admission.unwrap_or_default();
        all.insert(host, HostSteering { control, admission, dispatcher });
    }
    Ok(all)
}

/// The tiers that a policy of stations steers: those named, or those whose cores have P-states.
fn stations(
    named: Option<Vec<String>>,
    model: &Model,
    key: &str,
) -> Result<Vec<String>, InvalidKey> {
    let Some(named) = named else { return Ok(steerable(model)) };
    check_tiers(&named, model, key)?;
    let is_host =
        |name: &String| model.tier.iter().any(|tier| tier.name == *name && tier.host.is_some());
    match named.iter().position(is_host) {
        None => Ok(named),
        Some(at) => {
            let message = "the servers of this tier are machines: name its host under `hosts`";
            Err(InvalidKey::at(format!("{key}.tiers[{at}]"), message))
        }
    }
}

/// Stations whose cores have P-states.
fn steerable(model: &Model) -> Vec<String> {
    let scales = |tier: &&lull_sim::model::Tier| {
        let of_tier = model.machine_of(tier);
        tier.host.is_none() && of_tier.cores.iter().any(|group| !group.pstates.is_empty())
    };
    model.tier.iter().filter(scales).map(|tier| tier.name.clone()).collect()
}

impl HostedVariant {
    /// The error of the policy of a host with the path of the key in the file.
    fn host_error(&self, host: &str, error: PolicyError) -> InvalidKey {
        match error {
            PolicyError::Config { key, message } => {
                InvalidKey::at(self.key_of(&format!("hosts.{host}.{key}")), message)
            }
            other => InvalidKey::at(self.key_of(&format!("hosts.{host}.name")), other.to_string()),
        }
    }
}

impl Labelled for HostedVariant {
    fn described(&self) -> Described<'_> {
        let epoch = Some(self.stations.epoch.clone());
        Described { label: &self.label, name: &self.name, key: &self.key, epoch }
    }
}
