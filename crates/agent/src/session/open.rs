//! Opening a session: check everything first, then start, then take the knobs.

pub(super) mod checks;
pub(super) mod launch;
pub(super) mod outside;
pub(super) mod sources;

use super::areas::AppAreas;
use super::discovered::{Discovered, TemplateSlots, template_slots};
use super::gates::Gates;
use super::keeper::FindingsWriter;
use super::pod_apps::PodApps;
use super::policy::{
    check_store, limits_error, policy_of, read_store, rebuild_of, remember, shadow_of,
    shadow_policy,
};
use super::{Session, Steered, reference};
use crate::admission::{AdmissionSetup, AdmissionSetups, Threads};
use crate::config::{AppSection, Config, LatencySource, OwnPolicy, PolicyRole};
use crate::discovery::Discovery;
use crate::frontend::Frontend;
use crate::guarded;
use crate::library::Library;
use crate::limited::limited;
use crate::live::BoundServer;
use crate::record::Recorder;
use anyhow::Context;
use checks::{check_kernel, check_own, check_pids, check_present};
use launch::{Launcher, Surroundings, TemplateSources, registrar_of};
use lull_control::{
    ControlLoop, Controller, Machine, Plant, PlantError, ReferenceCheck, Rng, Totals,
};
use lull_host::HostError;
use lull_host::apps::{AppHandle, Ended, GRACE};
use lull_host::gauges::push::{PushGauge, PushSocket};
use lull_host::guard::{GuardCommand, GuardHandle, Ledger, Patience, StateDir};
use lull_host::oncall::{GATE_MEANS, Watch};
use lull_host::plant::{HostConfig, HostPlant, Stop};
use lull_host::register::Registrar;
use lull_host::sys::memory::{self, ProgramPages};
use lull_host::{Roots, apps, probe};
use lull_lab::CustomPolicy;
use lull_oncall::{Mode, Settings};
use outside::Listeners;
use rand::SeedableRng;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An agent that is not started yet: a config, and what its caller hands in.
///
/// ```no_run
/// # fn main() -> anyhow::Result<()> {
/// use lull_agent::{Agent, config::Config};
/// let config = Config::load("lull.toml".as_ref())?;
/// let mut session = Agent::new(config).notify(&|text| eprintln!("{text}")).start()?;
/// for epoch in session.epochs().take(100) {
///     eprintln!("entropy {}", epoch?.assessment.entropy.system);
/// }
/// session.close()?;
/// # Ok(())
/// # }
/// ```
pub struct Agent<'a> {
    config: Config,
    dry_run: bool,
    program: Option<PathBuf>,
    stop: Option<Stop>,
    say: &'a dyn Fn(&str),
    adjust: &'a dyn Fn(&mut HostPlant),
    discovery: Option<Box<dyn Discovery>>,
}

/// Everything that is started before the plant exists.
struct Started {
    ledger: Ledger,
    guard: GuardHandle,
    push: PushGauge,
    frontend: Frontend,
    apps: Vec<(AppHandle, Option<Watch>)>,
    library: Option<Library>,
    registrar: Option<Registrar>,
    pod_slots: TemplateSlots,
}

/// The parts of a session besides its plant.
struct SessionParts {
    roots: Roots,
    recorder: Recorder,
    guard: GuardHandle,
    loads: Vec<AppHandle>,
    server: Option<BoundServer>,
    frontend: Frontend,
    library: Option<Library>,
    setups: AdmissionSetups,
    gates: Gates,
    areas: AppAreas,
    pod_slots: TemplateSlots,
    pod_apps: PodApps,
    launcher: Launcher,
}

impl<'a> Agent<'a> {
    /// An agent for this config, which applies its plans and reports nothing.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            dry_run: false,
            program: None,
            stop: None,
            say: &|_| {},
            adjust: &|_| {},
            discovery: None,
        }
    }

    /// Whether plans are only recorded and no knob is written.
    #[must_use]
    pub fn dry_run(self, dry_run: bool) -> Self {
        Self { dry_run, ..self }
    }

    /// The `lull` program, which runs as guard and load client, and as any app whose `start` names
    /// `lull`. The default is the running executable, which must then be `lull`.
    #[must_use]
    pub fn program(self, lull: impl Into<PathBuf>) -> Self {
        Self { program: Some(lull.into()), ..self }
    }

    /// A policy of the caller, whose decisions take `limit` at most: it acts instead of the
    /// config's policy, or decides beside it and changes no knob. While it fails or does not
    /// return in time, the SLO-safe state is in force, and the journal says why. It is rebuilt
    /// when an app arrives or objectives change.
    #[must_use]
    pub fn policy(mut self, policy: &CustomPolicy, role: PolicyRole, limit: Duration) -> Self {
        self.config.set_own(OwnPolicy { policy: limited(policy, limit), role });
        self
    }

    /// A request to this ends the run after the epoch, or while it starts.
    #[must_use]
    pub fn stop(self, stop: Stop) -> Self {
        Self { stop: Some(stop), ..self }
    }

    /// Called with each message for the user while the agent starts.
    #[must_use]
    pub fn notify(self, say: &'a dyn Fn(&str)) -> Self {
        Self { say, ..self }
    }

    /// Called once the apps' references are measured; may change their specifications.
    #[must_use]
    pub fn adjust(self, adjust: &'a dyn Fn(&mut HostPlant)) -> Self {
        Self { adjust, ..self }
    }

    /// Sets the discovery for `[[match]]` with `pods`; required if the config has `agent.discover`.
    #[must_use]
    pub fn discovery(self, discovery: Box<dyn Discovery>) -> Self {
        Self { discovery: Some(discovery), ..self }
    }

    /// Checks the config against this machine as a start does, and starts nothing.
    ///
    /// # Errors
    /// The first key of the config that cannot be used here, or whose app is not there.
    pub fn check(&self) -> anyhow::Result<()> {
        let roots = Roots::default();
        let machine = self.checked(&roots)?;
        check_store(&self.config, &machine)?;
        Ok(check_present(&self.config, &roots)?)
    }

    fn checked(&self, roots: &Roots) -> anyhow::Result<Machine> {
        check_own(&self.config)?;
        self.check_discovery()?;
        let machine = probe::machine(roots)?.with_gates(self.config.gates(), GATE_MEANS);
        policy_of(&self.config, &machine, &self.config.specs())?;
        if let Some(name) = &self.config.agent.shadow {
            shadow_policy(&self.config, name, &machine, &self.config.specs())?;
        }
        let limits = self.config.limits.check(&machine);
        limits.map_err(|error| limits_error(&self.config, &error))?;
        self.config.check_area_cores(&machine)?;
        self.config.check_load_cores(&machine)?;
        reference::check(&self.config)?;
        check_pids(&self.config, roots)?;
        self.check_programs()?;
        check_kernel(&self.config, roots, &|_| true)?;
        Ok(machine)
    }

    /// Checks the config against the machine, starts the apps, measures references, and
    /// takes the knobs.
    ///
    /// # Errors
    /// If a key of the config, a program, a gauge, the ledger or the record cannot be used. No
    /// knob is written in this case, and all processes that were started are ended again.
    pub fn start(self) -> anyhow::Result<Session> {
        let roots = Roots::default();
        let machine = self.checked(&roots)?;
        read_store(&self.config, &machine)?;
        let stop = self.stop.clone().map_or_else(Stop::new, Ok)?;
        let place = StateDir::locate(self.config.agent.state.as_deref())?;
        let server = self.bind_page(&place)?;
        let otlp = self.bind_otlp()?;
        let recorder = outside::record_of(&self.config, &machine)?;
        let socket = self.socket(&place);
        let power = self.config.power_model()?;
        let listeners = Listeners { page: server.as_ref(), otlp: otlp.as_ref() };
        let started = self.start_apps(place, &roots, &socket, &stop, listeners)?;
        let Started { ledger, guard, push, frontend, apps, library, registrar, pod_slots } =
            started;
        let (setups, gates) = (self.setups(&apps), self.gates(&apps));
        let areas = AppAreas::new(&self.config, &apps);
        let pod_apps = PodApps::new(frontend.clone(), &self.config);
        let plant = HostPlant::new(HostConfig {
            apps: self.host_apps(apps, &machine, &roots, &pod_apps),
            push: Some(push),
            power,
            ledger,
            foreign_wins: !self.config.agent.override_foreign,
            stop,
            roots: roots.clone(),
        });
        let mut plant = plant.map_err(|error| self.shared_process(error))?;
        plant.set_guard(guard.clone());
        plant.set_registrar(registrar);
        plant.set_discovery(self.discovery.as_ref().and_then(|discovery| discovery.wakes()));
        plant.waiting().iter().for_each(|text| (self.say)(text));
        if self.config.agent.events {
            plant.watch_events(self.config.agent.break_even);
        }
        let loads = match self.prepare(&mut plant, &roots, &socket) {
            Ok(loads) => loads,
            Err(error) => {
                report_remaining(&plant.close(GRACE)?, self.say);
                return Err(with_stop_context(error));
            }
        };
        let parts = SessionParts {
            roots,
            recorder,
            guard,
            loads,
            server,
            frontend,
            library,
            setups,
            gates,
            areas,
            pod_slots,
            pod_apps,
            launcher: self.launcher(&socket),
        };
        let session = self.control(plant, parts)?;
        // Most of what a start needs is not needed again.
        memory::return_freed();
        ProgramPages::find().release();
        Ok(session)
    }

    /// Names the entry of the config whose app has a process of another app.
    fn shared_process(&self, error: HostError) -> anyhow::Error {
        let HostError::Shared { second, .. } = &error else { return error.into() };
        let mut apps = self.config.apps.iter().enumerate();
        let key = apps.find(|(_, app)| app.name == *second).map(|(index, app)| app.entry(index));
        self.config.source.error(&key.unwrap_or_default(), error.to_string()).into()
    }

    /// Measures references that need an unloaded machine, starts the load, and measures the
    /// references that need load.
    fn prepare(
        &self,
        plant: &mut HostPlant,
        roots: &Roots,
        socket: &Path,
    ) -> anyhow::Result<Vec<AppHandle>> {
        reference::measure_solo(&self.config, plant, self.say)?;
        let mut loads = Vec::new();
        match self.load_and_measure(plant, roots, socket, &mut loads) {
            Ok(()) => Ok(loads),
            Err(error) => {
                report_remaining(&apps::stop(&mut loads, roots, GRACE), self.say);
                Err(error)
            }
        }
    }

    fn load_and_measure(
        &self,
        plant: &mut HostPlant,
        roots: &Roots,
        socket: &Path,
        loads: &mut Vec<AppHandle>,
    ) -> anyhow::Result<()> {
        for (number, load) in self.config.loads.iter().enumerate() {
            // Each start takes a moment, and there may be many.
            plant.beat(Patience::Long).map_err(anyhow::Error::msg)?;
            let launch = self.load_launch(number, load, socket)?;
            loads.push(AppHandle::start(&launch, roots, plant.ledger_mut())?);
        }
        reference::measure_ideal(&self.config, plant, self.say)?;
        (self.adjust)(plant);
        Ok(())
    }

    fn control(self, plant: HostPlant, parts: SessionParts) -> anyhow::Result<Session> {
        let SessionParts { roots, mut recorder, guard, loads, server, frontend, gates, .. } = parts;
        let SessionParts { library, setups, mut areas, pod_slots, pod_apps, launcher, .. } = parts;
        guard.beat(Patience::Long)?;
        let admission_controllers = self.start_admission(setups)?;
        areas.start(self.dry_run, self.say)?;
        let (mut config, discovery) = (self.config, self.discovery);
        let discovered = discovery.map(|it| Discovered::new(it, pod_slots, &config));
        let place = remember(&mut config, plant.machine(), plant.apps(), self.say)?;
        // A dry run applies no settings, so its measurements must not be stored as findings.
        let keeper = FindingsWriter::new(place.filter(|_| !self.dry_run));
        let policy = policy_of(&config, plant.machine(), plant.apps())?;
        let rules = config.rules(self.dry_run);
        let shadow = shadow_of(&config, &rules, &plant)?;
        if let Some(shadow) = &shadow {
            recorder.note("shadow", shadow.name())?;
        }
        let mut controller = Controller::new(policy, rules, &plant)
            .map_err(|error| limits_error(&config, &error))?;
        controller.set_rebuild(rebuild_of(&config, plant.machine()));
        controller.reserve(areas.knobs());
        recorder.describe_apps(plant.apps())?;
        let facts = server
            .as_ref()
            .map(BoundServer::takes_orders)
            .map(|orders| outside::facts(&config, &plant, &recorder, orders, self.dry_run));
        let page = server.zip(facts).map(|(server, facts)| server.open(&facts)).transpose()?;
        let live = page.map(|page| frontend.serve(page));
        let rng = Rng::seed_from_u64(config.agent.seed());
        let control = ControlLoop::new(plant, controller, config.epoch_rule(), rng);
        let exporter = outside::exporter(&config.agent)?;
        let steered = Steered::new(&config.policy);
        guard.report(&format!("READY=1\nSTATUS=policy {}", config.policy));
        Ok(Session {
            config,
            roots,
            control,
            recorder,
            guard,
            loads,
            live,
            steered,
            dry_run: self.dry_run,
            keeper,
            shadow,
            shadowed: Vec::new(),
            references: ReferenceCheck::default(),
            totals: Totals::default(),
            exporter,
            discovered,
            pod_apps,
            admission_controllers,
            gates,
            areas,
            launcher,
            _library: library,
        })
    }

    /// Returns the apps whose gates have an admission controller.
    fn setups(&self, apps: &[(AppHandle, Option<Watch>)]) -> AdmissionSetups {
        let setup = |(app, (_, watch)): (&AppSection, &(AppHandle, Option<Watch>))| {
            let setup =
                AdmissionSetup { seed: self.config.agent.seed(), ..app.admission_setup().ok()?? };
            Some((app.name.clone(), setup, watch.as_ref()?.runtime()))
        };
        self.config.apps.iter().zip(apps).filter_map(setup).collect()
    }

    /// Returns the gates of all servers that have the library.
    fn gates(&self, apps: &[(AppHandle, Option<Watch>)]) -> Gates {
        let mut gates = Gates::default();
        for (app, (_, watch)) in self.config.apps.iter().zip(apps) {
            let Some(watch) = watch else { continue };
            let setup = app.admission_setup().ok().flatten().filter(|_| !self.dry_run);
            gates.add(&app.name, &watch.runtime(), setup.as_ref().map(|setup| setup.name.as_str()));
        }
        gates
    }

    /// Starts the admission controllers; a dry run starts none.
    fn start_admission(&self, setups: AdmissionSetups) -> anyhow::Result<Threads> {
        let mut admission_controllers = Threads::default();
        for (app, setup, runtime) in setups {
            if self.dry_run {
                let name = &setup.name;
                (self.say)(&format!("{app}: a dry run does not start {name}; its gate is open"));
            } else {
                let why = || format!("app `{app}`: its admission controller cannot be started");
                admission_controllers.start(&app, &setup, runtime).with_context(why)?;
            }
        }
        Ok(admission_controllers)
    }

    fn start_apps(
        &self,
        place: StateDir,
        roots: &Roots,
        socket: &Path,
        stop: &Stop,
        listeners: Listeners<'_>,
    ) -> anyhow::Result<Started> {
        let state = place.path().to_owned();
        let (mut ledger, guard) = guarded::open_ledger(place, roots, self.guard(), self.say)?;
        let registrar = registrar_of(&self.config, &state, roots)?;
        ledger.forks().subscribe();
        // The socket must exist before any app starts, so that no pushed latency is lost.
        let push = PushSocket::bind(socket)?;
        let frontend = self.start_frontend(&push, listeners, registrar.as_ref())?;
        let push = PushGauge::fed_by(frontend.push_source(push), &self.config.specs());
        let library = self.library()?;
        let pod_slots = template_slots(&self.config);
        let found_by = TemplateSources { registrar: registrar.as_ref(), pod_slots: &pod_slots };
        let mut started: Vec<(AppHandle, Option<Watch>)> = Vec::new();
        let mut slots = VecDeque::new();
        for app in &self.config.apps {
            let surroundings = Surroundings { roots, socket, stop, library: library.as_ref() };
            let one = match app.slot {
                Some(slot) => self.attach_slot(slot, roots, found_by, &mut slots),
                None => self.start_app(app, &surroundings, &mut ledger),
            };
            match one {
                Ok(one) => started.push(one),
                Err(error) => {
                    let mut handles: Vec<_> = started.into_iter().map(|(app, _)| app).collect();
                    report_remaining(&apps::stop(&mut handles, roots, GRACE), self.say);
                    ledger.close()?;
                    return Err(error);
                }
            }
        }
        Ok(Started { ledger, guard, push, frontend, apps: started, library, registrar, pod_slots })
    }

    /// Writes the preloaded library to a file, if an app needs it.
    fn library(&self) -> anyhow::Result<Option<Library>> {
        let needs = |app: &AppSection| app.latency == LatencySource::Preload && app.start.is_some();
        self.config.apps.iter().any(needs).then(Library::write).transpose()
    }

    fn guard(&self) -> GuardCommand {
        let usual = GuardCommand::default();
        let program = self.program.clone().unwrap_or(usual.program);
        GuardCommand { program, ..usual }
    }

    fn socket(&self, place: &StateDir) -> PathBuf {
        self.config.agent.socket.clone().unwrap_or_else(|| place.path().join("push.sock"))
    }
}

/// Starts the on-call runtime of an app with `latency = "preload"`.
fn watch_of(app: &AppSection, roots: &Roots) -> anyhow::Result<Option<Watch>> {
    if app.latency != LatencySource::Preload {
        return Ok(None);
    }
    let open = Settings { mode: Mode::Stats, ..Settings::default() };
    // The config was checked when it was read.
    let settings = app
        .gate_settings()
        .map(|settings| settings.unwrap_or(open))
        .map_err(|(_, message)| anyhow::anyhow!("app `{}`: its gate {message}", app.name))?;
    let rules = app.gate_rules();
    let rules = rules.map_err(|message| anyhow::anyhow!("app `{}`: {message}", app.name))?;
    let watch = match &app.page {
        Some(directory) => Watch::attach(directory, &settings, &rules, roots),
        None => Watch::start(&settings, &rules, roots),
    };
    watch
        .map(Some)
        .with_context(|| format!("app `{}`: cannot set up the page that it shares", app.name))
}

/// Adds to a stop that no knob was changed yet.
fn with_stop_context(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref() {
        Some(PlantError::Stopped) => error.context("before any knob was taken"),
        _ => error,
    }
}

fn report_remaining(ended: &Ended, say: &dyn Fn(&str)) {
    for process in &ended.left {
        say(&format!("process {} does not end; kill it by hand", process.pid));
    }
}
