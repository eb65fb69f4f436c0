//! The interfaces to the outside: the page, the push socket, and the process that serves both.

use super::Agent;
use crate::config::{AgentSection, Config};
use crate::frontend::{Frontend, OtlpSetup, ProtectionFiles, Setup};
use crate::live::{self, BoundServer, Facts};
use crate::otlp::Exporter;
use crate::record::{Head, Recorder};
use crate::session::policy::policy_of;
use anyhow::Context;
use lull_control::{Machine, Plant};
use lull_host::gauges::push::PushSocket;
use lull_host::guard::StateDir;
use lull_host::plant::HostPlant;
use lull_host::register::Registrar;
use lull_host::sandbox::Gap;
use std::cell::RefCell;
use std::net::TcpListener;
use std::time::SystemTime;

/// What the front end serves besides the push socket, bound before anything is started.
pub(super) struct Listeners<'a> {
    pub(super) page: Option<&'a BoundServer>,
    pub(super) otlp: Option<&'a TcpListener>,
}

impl Agent<'_> {
    /// Binds the address of the page, before anything is started.
    pub(super) fn bind_page(&self, place: &StateDir) -> anyhow::Result<Option<BoundServer>> {
        let agent = &self.config.agent;
        let Some(address) = agent.http else { return Ok(None) };
        let token = agent.control.then(|| place.path().join("token"));
        let options = live::Options { address, names: agent.http_names.clone(), token };
        Ok(Some(BoundServer::bind(options)?))
    }

    /// Binds the address of the OTLP receiver, if there is one.
    pub(super) fn bind_otlp(&self) -> anyhow::Result<Option<TcpListener>> {
        let Some(address) = self.config.agent.otlp else { return Ok(None) };
        let is_encrypted = self.config.agent.otlp_access.certificate.is_some();
        let scheme = if is_encrypted { "https" } else { "http" };
        let listener = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            (self.say)(&format!(
                "receiver of OTLP at {scheme}://{}/v1/metrics",
                listener.local_addr()?
            ));
            Ok(listener)
        });
        let failed = || format!("cannot receive OTLP at {address}: choose another `agent.otlp`");
        listener.map(Some).with_context(failed)
    }

    /// Starts the process that serves push socket and page, and reports the layers that do not
    /// confine it.
    pub(super) fn start_frontend(
        &self,
        push: &PushSocket,
        Listeners { page, otlp }: Listeners<'_>,
        registrar: Option<&Registrar>,
    ) -> anyhow::Result<Frontend> {
        let sources = (0..).zip(&self.config.apps).filter_map(|(id, app)| app.otlp_source(id));
        let protect = |listener| {
            let access = self.config.agent.otlp_access.clone();
            let protection = ProtectionFiles::open(access).map_err(|why| {
                anyhow::anyhow!("the receiver of OTLP cannot be protected: {why}")
            })?;
            let names = self.config.agent.http_names.clone();
            anyhow::Ok(OtlpSetup { listener, sources: sources.collect(), names, protection })
        };
        let otlp = otlp.map(protect).transpose()?;
        let lines = registrar.map(Registrar::parser).transpose();
        let frontend = Frontend::start(Setup {
            program: self.guard().program,
            push,
            page: page.map(BoundServer::listener),
            apps: self.config.apps.iter().map(|app| app.name.clone()).collect(),
            otlp,
            lines: lines.context("processes cannot register")?,
        })?;
        for Gap { layer, why } in frontend.gaps() {
            (self.say)(&format!(
                "the front end, which serves the page and the push socket, runs without {layer}: \
                 {why}"
            ));
        }
        Ok(frontend)
    }
}

/// Collects the facts about the run that viewers receive.
pub(in crate::session) fn facts(
    config: &Config,
    plant: &HostPlant,
    recorder: &Recorder,
    takes_orders: bool,
    dry_run: bool,
) -> Facts {
    let (machine, apps) = (plant.machine(), plant.apps());
    let names = || lull_policies::POLICIES.names();
    let suits = |name: &&str| policy_of(&config.under(name), machine, apps).is_ok();
    let suited = || names().filter(suits).map(str::to_owned).collect();
    let name = recorder.file().file_stem().unwrap_or_default();
    Facts::new(live::Head {
        run: name.to_string_lossy().into_owned(),
        started_unix_ns: recorder.started_unix_ns(),
        dry_run,
        machine,
        apps,
        policies: takes_orders.then(suited),
    })
}

/// Starts what exports the agent's metrics, if the config names a collector.
pub(super) fn exporter(agent: &AgentSection) -> anyhow::Result<Option<RefCell<Exporter>>> {
    let access = agent.export_access.access();
    let start = |collector| Exporter::start(collector, access, agent.export_period);
    let exporter = agent.export.clone().map(start).transpose();
    Ok(exporter.context("cannot start the thread that exports metrics")?.map(RefCell::new))
}

/// Creates the record before anything is started, so that an unwritable directory fails early.
pub(super) fn record_of(config: &Config, machine: &Machine) -> anyhow::Result<Recorder> {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let head = Head {
        config: config.source.text(),
        machine,
        policy: &config.policy,
        seed: config.agent.seed(),
        started_unix_ns: u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX),
        keep: Some(config.agent.keep),
    };
    Ok(Recorder::create_in(&config.agent.record, &head)?)
}
