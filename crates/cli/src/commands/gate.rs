//! `lull gate`: an operator bypasses the gate of a running server, with or without an agent.

use super::UsageError;
use super::exec::{AccountResult, ClassResult};
use super::print_json;
use crate::cli::{GateAction, GateCommandArgs};
use anyhow::Context;
use lull_control::CoreSet;
use lull_host::Roots;
use lull_host::apps::Target;
use lull_host::oncall::{ClassCores, GateStatus, OperatorPage, describe_bypass};
use lull_measure::Nanos;
use lull_oncall::Mode;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// An agent notices the end of a bypass at its next beat, of which it has at least one a second.
const AGENT_PATIENCE: Duration = Duration::from_millis(1_500);
const AGENT_PAUSE: Duration = Duration::from_millis(10);

pub(crate) fn run(args: &GateCommandArgs) -> anyhow::Result<()> {
    let roots = Roots::default();
    let page = open(&args.server, &roots)?;
    match args.action {
        GateAction::Off => drop(page.bypass()),
        GateAction::On if page.end_bypass() => wait_for_agent(&page, &roots),
        GateAction::On | GateAction::Status => {}
    }
    let state = State::from_status(&page.status(&roots));
    if args.json {
        return print_json(&state);
    }
    println!("{state}");
    Ok(())
}

/// Waits until the agent has closed the gate again, as long as it usually takes at most.
fn wait_for_agent(page: &OperatorPage, roots: &Roots) {
    let begun = Instant::now();
    let is_pending = |state: &State| state.limit.is_some() && state.gate == "open";
    while begun.elapsed() < AGENT_PATIENCE && is_pending(&State::from_status(&page.status(roots))) {
        sleep(AGENT_PAUSE);
    }
}

/// Opens the page of a server: a number is a process, a name of an existing directory or with a
/// slash is a page directory, and any other name is a unit.
fn open(server: &str, roots: &Roots) -> anyhow::Result<OperatorPage> {
    if let Ok(pid) = server.parse() {
        return Ok(OperatorPage::of_server(&Target::Pid(pid), roots)?);
    }
    if server.contains('/') || Path::new(server).is_dir() {
        return OperatorPage::in_directory(directory_of(Path::new(server))).with_context(|| {
            format!(
                "no page of a gate in {server}: name the directory given to `lull attach`, a \
                 process number, or a unit"
            )
        });
    }
    if server.is_empty() {
        let what = "name a server: the directory of its page, a process number, or a unit";
        return Err(UsageError(what.to_owned()).into());
    }
    let unit = if server.contains('.') { server.to_owned() } else { format!("{server}.service") };
    Ok(OperatorPage::of_server(&Target::Unit(unit), roots)?)
}

/// Returns the directory of a page that is named by its file, as `status` prints it.
fn directory_of(server: &Path) -> &Path {
    let is_page = server.is_file() && server.file_name().is_some_and(|name| name == "page");
    server.parent().filter(|_| is_page).unwrap_or(server)
}

/// The state of a gate in its printed form.
#[derive(Debug, Serialize)]
struct State {
    page: String,
    protocol: Option<&'static str>,
    workers: usize,
    waiting: usize,
    under_way: usize,
    /// `closed` while workers may have to wait, `open`, or `bypassed`.
    gate: &'static str,
    bypassed_since_unix_seconds: Option<u64>,
    /// The limit that the agent has set; it applies while the gate is closed.
    limit: Option<Limit>,
    /// The process of the agent.
    agent: Option<u32>,
    /// The last decision of the admission controller.
    decision: Option<String>,
    /// The classes of clients, whose counts are since the page was made.
    client_classes: Vec<ClassResult>,
    /// Where the threads of its classes may run, while an agent moves threads.
    cores_by_class: Vec<CoresResult>,
    /// Waits by user and database since the page was made, for those that had any.
    waits_by_account: Vec<AccountResult>,
}

/// The cores of a class of clients.
#[derive(Debug, Serialize)]
struct CoresResult {
    client_class: String,
    cores: CoreSet,
    threads: usize,
}

#[derive(Debug, Serialize)]
struct Limit {
    cap: u32,
    batch: u32,
    delay_seconds: f64,
}

impl CoresResult {
    fn new(class: &ClassCores) -> Self {
        let ClassCores { client_class, cores, threads } = class.clone();
        Self { client_class, cores, threads }
    }
}

impl State {
    fn from_status(status: &GateStatus) -> Self {
        let settings = &status.settings;
        let limit = Limit {
            cap: settings.cap,
            batch: settings.batch,
            delay_seconds: Nanos(settings.isr_delay_ns).as_secs_f64(),
        };
        let has_limit = status.agent.is_some() && matches!(settings.mode, Mode::Post | Mode::Epoll);
        Self {
            page: status.page.display().to_string(),
            protocol: status.protocol.map(lull_oncall::protocol::Protocol::name),
            workers: status.workers,
            waiting: status.waiting,
            under_way: status.under_way,
            gate: match (status.bypassed_since_s, status.is_closed) {
                (Some(_), _) => "bypassed",
                (None, true) => "closed",
                (None, false) => "open",
            },
            bypassed_since_unix_seconds: status.bypassed_since_s,
            limit: has_limit.then_some(limit),
            agent: status.agent,
            decision: Some(status.decision.clone()).filter(|decision| !decision.is_empty()),
            client_classes: ClassResult::all(&status.classes),
            cores_by_class: status.class_cores.iter().map(CoresResult::new).collect(),
            waits_by_account: AccountResult::all(&status.accounts),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { page, workers, waiting, under_way, .. } = self;
        let protocol = self.protocol.unwrap_or("no server connected");
        writeln!(out, "{page}")?;
        writeln!(
            out,
            "  server    {protocol}, {workers} workers: {under_way} under way, {waiting} waiting"
        )?;
        match self.bypassed_since_unix_seconds {
            Some(since_s) => writeln!(out, "  gate      {}", describe_bypass(since_s))?,
            None => writeln!(out, "  gate      {}", self.gate)?,
        }
        match &self.limit {
            Some(Limit { cap, batch, delay_seconds }) => {
                let holds = if self.gate == "closed" { "" } else { " (not in force)" };
                let delay = Nanos::from_secs_f64(*delay_seconds);
                writeln!(
                    out,
                    "  limit     {cap} at a time, turns of {batch}, delay {delay}{holds}"
                )?;
            }
            None => writeln!(out, "  limit     none")?,
        }
        match self.agent {
            Some(agent) => writeln!(out, "  agent     process {agent}")?,
            None => writeln!(out, "  agent     none is attached")?,
        }
        write!(out, "  decision  {}", self.decision.as_deref().unwrap_or("none"))?;
        self.client_classes.iter().try_for_each(|class| write!(out, "\n  class     {class}"))?;
        for CoresResult { client_class, cores, threads } in &self.cores_by_class {
            write!(out, "\n  cores     {client_class}: {cores}, {threads} threads")?;
        }
        let mut accounts = self.waits_by_account.iter();
        accounts.try_for_each(|account| write!(out, "\n  waits     {account}"))
    }
}
