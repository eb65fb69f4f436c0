//! The watcher's process: reads how to reach the API server, gives up its rights, then watches.
//!
//! It keeps the right to connect to the port of the API server and to read the directory of its
//! token, which the kubelet renews. It ends with the channel to its agent.

mod api;
mod backoff;
mod health;
mod out;
mod publisher;

use crate::message::{Begin, FromWatcher, Kind, TO_MAX, ToWatcher, one_line};
use crate::nri::{self, ContainerChange, PluginError, Reports};
use crate::objective::LatencyObjective;
use crate::pods::{PodFacts, WatchedPod};
use crate::table::{Outcome, PodEvent, Table};
use anyhow::Context;
use api::{Change, Changes};
use backoff::Throttle;
use futures_util::StreamExt;
use futures_util::future::{LocalBoxFuture, OptionFuture};
use health::Health;
use kube::Resource;
use kube::runtime::watcher::{self, Event};
use lull_agent::VERSION;
use lull_agent::frontend::frames::Frames;
use lull_host::sandbox::{self, Gap, Layer};
use lull_host::sys::memory::{self, ProgramPages};
use out::Out;
use publisher::Publisher;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, stdin};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::task::LocalSet;

/// How often the API server is queried, while the watches are silent.
const PROBE_EVERY: Duration = Duration::from_secs(30);
/// The same while it did not answer.
const PROBE_WHILE_LOST: Duration = Duration::from_secs(3);
/// How long the first listing of the container runtime is awaited.
const LISTING_WAIT: Duration = Duration::from_secs(1);

/// Runs a watcher until its agent ends; what the program's `pods` subcommand calls. The agent's
/// channel is the standard input.
///
/// Gives up the rights of the whole process, so nothing else belongs in it.
///
/// # Errors
/// If it was not started by an agent of this version, or it is not known how to reach an API
/// server.
pub fn run() -> anyhow::Result<()> {
    let mut channel = StdUnixStream::from(stdin().as_fd().try_clone_to_owned()?);
    let mut frames = Frames::new(TO_MAX);
    let begin = first(&mut channel, &mut frames)?;
    let _ = rustix::process::setsid();
    std::env::set_current_dir("/")?;
    let _ = rustix::thread::set_name(c"lull-pods");
    channel.set_nonblocking(true)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().enable_time().build();
    let runtime = runtime.context("cannot start the async runtime")?;
    let config = runtime.block_on(api::config_of(&begin));
    let inside = runtime.enter();
    let channel = UnixStream::from_std(channel)?;
    drop(inside);
    let rights = config.as_ref().map(api::rights_of).unwrap_or_default();
    // The socket of the container runtime is root's.
    let container_runtime = begin.nri.as_deref().map(connect);
    // They cannot be found any more once it is confined.
    let pages = ProgramPages::find();
    let gaps = confine(&begin, &rights);
    let table = Table::new(&begin).map_err(anyhow::Error::msg)?;
    let out = Out::new(&channel);
    LocalSet::new().block_on(&runtime, async {
        out.send(&[FromWatcher::Ready(gaps)]).await?;
        let config = match config {
            Ok(config) => config,
            Err(error) => {
                // The agent starts another watcher later.
                let why = format!("it is not known how to reach an API server: {error:#}");
                return out.send(&[FromWatcher::Lost(one_line(why))]).await;
            }
        };
        let mut watcher = Watcher::new(begin.node, config, table, out)?;
        watcher.start_pages = Some(pages);
        watcher.follow_runtime(container_runtime);
        watcher.await_listing().await?;
        watcher.serve(frames).await
    })
}

/// Connects to a container runtime.
///
/// # Errors
/// The reason why it cannot be followed.
fn connect(socket: &str) -> Result<StdUnixStream, String> {
    let connected = nri::connect(Path::new(socket));
    connected.map_err(|error| format!("cannot connect to {socket}: {error}"))
}

/// Reads the first message.
fn first(channel: &mut StdUnixStream, frames: &mut Frames) -> anyhow::Result<Begin> {
    let mut bytes = [0; 4096];
    loop {
        if let Some(message) = frames.next_message()? {
            let ToWatcher::Begin(begin) = message else { anyhow::bail!("the agent did not begin") };
            let version = &begin.version;
            anyhow::ensure!(
                version == VERSION,
                "the agent is of version {version}, and this program of {VERSION}"
            );
            return Ok(begin);
        }
        let count = channel.read(&mut bytes).context("this command is for the agent")?;
        anyhow::ensure!(count > 0, "this command is for the agent, which starts it");
        frames.add(&bytes[..count]);
    }
}

/// Gives up all rights but these.
fn confine(begin: &Begin, rights: &sandbox::ClientRights) -> Vec<Gap> {
    let mut gaps = sandbox::confine(&[Layer::User]);
    if begin.ends_with_thread {
        // A change of the user has reset it.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
    gaps.extend(sandbox::confine_client(rights));
    gaps
}

/// The state of the process.
struct Watcher<'a> {
    node: String,
    config: kube::Config,
    client: kube::Client,
    table: Table,
    publisher: Publisher,
    health: Health,
    throttle: Throttle,
    /// The reports of the container runtime, if it is followed.
    reports: Option<Reports>,
    /// When the client was made.
    renewed: Instant,
    /// The query of the API server that has no answer yet.
    probe: Option<Probe>,
    /// When such a query began or was answered last.
    probed: Instant,
    /// Resources of a listing that has begun.
    listed: Option<BTreeSet<(String, String)>>,
    /// Whether the journal has that there are no rules, or that they are awaited.
    has_no_rules: bool,
    awaits_rules: bool,
    /// Pages of the program, until those that only the start has used are given back.
    start_pages: Option<ProgramPages>,
    out: Out<'a>,
}

/// A query of whether the API server answers.
type Probe = LocalBoxFuture<'static, Result<(), String>>;

/// Whether the watches continue unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoesOn,
    Restarts,
    /// The process ends, and the agent starts another one, which reads its files again.
    Ends,
}

impl<'a> Watcher<'a> {
    fn new(node: String, config: kube::Config, table: Table, out: Out<'a>) -> anyhow::Result<Self> {
        let throttle = Throttle::default();
        let client =
            api::client(&config, &throttle).context("cannot make a client of the API server")?;
        let publisher = Publisher::new(&node, client.clone(), throttle.clone());
        Ok(Self {
            node,
            config,
            client,
            table,
            publisher,
            health: Health::default(),
            throttle,
            reports: None,
            renewed: Instant::now(),
            probe: None,
            probed: Instant::now(),
            listed: None,
            has_no_rules: false,
            awaits_rules: false,
            start_pages: None,
            out,
        })
    }

    /// Follows the container runtime, if there is to be one. Must be called in a local set.
    fn follow_runtime(&mut self, connected: Option<Result<StdUnixStream, String>>) {
        let Some(connected) = connected else { return };
        let followed = connected.and_then(|it| nri::follow(it).map_err(|error| error.to_string()));
        match followed {
            Ok(reports) => self.reports = Some(reports),
            Err(why) => self.lose_runtime(&why),
        }
    }

    /// Takes in the first listing of the container runtime, before there is one of the pods. In the
    /// other order each pod would be judged by its status first, and those of which the runtime
    /// knows more would end and begin again whenever a watcher starts.
    async fn await_listing(&mut self) -> anyhow::Result<()> {
        match nri::first(self.reports.as_mut(), LISTING_WAIT).await {
            Some(report) => self.take_report(report),
            None if self.reports.is_some() => self.health.note(
                "the container runtime has not listed its containers yet; what the API server \
                 reports counts until then"
                    .to_owned(),
            ),
            None => {}
        }
        self.flush().await
    }

    fn lose_runtime(&mut self, why: &str) {
        self.reports = None;
        self.table.lose_containers();
        self.health.note(format!(
            "the container runtime is not followed: {why}; what the API server reports counts"
        ));
        self.health.report_runtime(false);
    }

    /// Takes in what the container runtime has reported.
    fn take_report(&mut self, report: Result<Vec<ContainerChange>, PluginError>) {
        let changes = match report {
            Ok(changes) => changes,
            Err(why) => return self.lose_runtime(&why.to_string()),
        };
        for change in changes {
            if let ContainerChange::All(all) = &change {
                let count = all.len();
                let text = format!("the container runtime reports its containers: {count} run");
                self.health.note(text);
                self.health.report_runtime(true);
            }
            self.table.take_containers(change);
        }
    }

    /// Watches until the agent has ended.
    async fn serve(mut self, mut frames: Frames) -> anyhow::Result<()> {
        loop {
            let changes = api::watch(&self.client, &self.node, &self.throttle);
            match self.follow(changes, &mut frames).await? {
                None => return Ok(()),
                Some(Next::GoesOn) => {}
                Some(Next::Ends) => anyhow::bail!("the client certificate was refused"),
                // A new client reads the token again, and leaves connections that hang.
                Some(Next::Restarts) => {
                    self.renewed = Instant::now();
                    (self.probe, self.probed) = (None, self.renewed);
                    if let Ok(client) = api::client(&self.config, &self.throttle) {
                        self.publisher.reconnect(client.clone(), self.throttle.clone());
                        self.client = client;
                    }
                }
            }
        }
    }

    /// Follows watches until they have to begin again; `None` once the agent has ended.
    async fn follow(
        &mut self,
        mut changes: Changes,
        frames: &mut Frames,
    ) -> anyhow::Result<Option<Next>> {
        let mut bytes = vec![0; 16 << 10];
        loop {
            let pause = if self.health.is_lost() { PROBE_WHILE_LOST } else { PROBE_EVERY };
            let probe_in = pause.saturating_sub(self.probed.elapsed());
            let mut next = Next::GoesOn;
            tokio::select! {
                change = changes.next() => match change {
                    Some(change) => next = self.take(change),
                    None => next = Next::Restarts,
                },
                ready = self.out.channel().readable() => {
                    ready?;
                    if !self.read(frames, &mut bytes)? {
                        return Ok(None);
                    }
                }
                report = nri::next(self.reports.as_mut()) => self.take_report(report),
                Some(answer) = OptionFuture::from(self.probe.as_mut()) => {
                    (self.probe, self.probed) = (None, Instant::now());
                    next = self.take_answer(answer);
                }
                () = tokio::time::sleep(probe_in), if self.probe.is_none() => self.begin_probe(),
            }
            self.flush().await?;
            if next != Next::GoesOn {
                return Ok(Some(next));
            }
        }
    }

    /// Reads what the agent has sent; `false` if it has ended.
    fn read(&mut self, frames: &mut Frames, bytes: &mut [u8]) -> anyhow::Result<bool> {
        match self.out.channel().try_read(bytes) {
            Ok(0) => return Ok(false),
            Ok(count) => frames.add(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        while let Some(message) = frames.next_message()? {
            if let ToWatcher::Report { uid, kind, text } = message
                && let Some(event) = self.table.event(&uid, kind, text)
            {
                self.publisher.add(event);
            }
        }
        Ok(true)
    }

    /// Queries the API server, unless it throttles. A server that hangs is given up after seconds,
    /// during which changes and reports continue.
    fn begin_probe(&mut self) {
        self.publisher.report().into_iter().for_each(|text| self.health.note(text));
        self.probed = Instant::now();
        if self.throttle.remaining(self.probed).is_zero() {
            let client = self.client.clone();
            self.probe = Some(Box::pin(async move { api::probe(&client).await }));
        }
    }

    /// Takes in the answer of the API server. After a time without answers the watches begin again,
    /// because their connections may hang. Watches that were refused begin again by themselves,
    /// with growing waits.
    fn take_answer(&mut self, answer: Result<(), String>) -> Next {
        match answer {
            Ok(()) if self.health.is_refused() => {}
            Ok(()) => {
                let was_lost = self.health.is_lost();
                self.health.note_answer(Instant::now());
                if was_lost {
                    return Next::Restarts;
                }
            }
            Err(why) => self.health.lose(why, false),
        }
        Next::GoesOn
    }

    /// Takes in a change. The watches begin again if the token was refused, at most once in
    /// [`PROBE_WHILE_LOST`]: until then a watch tries again by itself, with growing waits.
    fn take(&mut self, change: Change) -> Next {
        let pods = match change {
            Change::Pod(change) => *change,
            Change::Rule(change) => {
                self.take_rules(*change);
                return Next::GoesOn;
            }
        };
        match pods {
            Ok(event) => {
                self.health.note_event(&event);
                self.take_pod(event);
            }
            Err(error) => {
                // After a failed list an event follows. A continued watch may have no event for
                // hours, so it begins again with a list once the server answers.
                let is_list = matches!(error, watcher::Error::InitialListFailed(_));
                let is_refused = is_list && api::is_answer(&error);
                self.health.lose(api::describe(&error, "pods"), is_refused);
                if api::is_unauthorized(&error) && self.renewed.elapsed() >= PROBE_WHILE_LOST {
                    let has_certificate = self.config.auth_info.client_certificate_data.is_some();
                    return if has_certificate { Next::Ends } else { Next::Restarts };
                }
            }
        }
        Next::GoesOn
    }

    fn take_rules(&mut self, change: watcher::Result<Event<LatencyObjective>>) {
        match change {
            Ok(event) => {
                // The watcher reports no pods while they are refused.
                if !self.health.is_refused() {
                    self.health.note_event(&event);
                }
                self.take_rule(event);
            }
            // The server has not listed the rules yet, and the watch begins again.
            Err(error) if api::is_temporary(&error) => {
                if !std::mem::replace(&mut self.awaits_rules, true) {
                    let why = api::describe(&error, "LatencyObjectives");
                    self.health.note(format!("{why}: new pods wait for the LatencyObjectives"));
                }
            }
            // Without the definition there are no such resources; pods are managed all the same.
            Err(error) if api::is_answer(&error) => {
                self.table.end_rules();
                let has_none = api::is_refusal(&error) || api::is_unreadable(&error);
                if has_none && !std::mem::replace(&mut self.has_no_rules, true) {
                    let why = api::describe(&error, "LatencyObjectives");
                    self.health.note(format!("{why}: only annotations and templates apply"));
                }
            }
            Err(_) => {}
        }
    }

    fn take_pod(&mut self, event: Event<WatchedPod>) {
        match event {
            Event::Init => self.table.begin_list(),
            Event::InitDone => {
                self.table.end_list();
                self.release_start();
            }
            Event::InitApply(pod) | Event::Apply(pod) => {
                if let Some(facts) = PodFacts::read(pod) {
                    self.table.apply(facts);
                }
            }
            Event::Delete(pod) => {
                if let Some(uid) = &pod.metadata.uid {
                    self.table.delete(uid);
                }
            }
        }
    }

    /// Releases, once, resources that only the start and the first listing have needed: code that
    /// makes connections secure and reads configurations, and the memory of long answers.
    fn release_start(&mut self) {
        if let Some(pages) = self.start_pages.take() {
            memory::return_freed();
            pages.release();
        }
    }

    fn take_rule(&mut self, event: Event<LatencyObjective>) {
        let key = |rule: &LatencyObjective| {
            let metadata = &rule.metadata;
            Some((metadata.namespace.clone()?, metadata.name.clone()?))
        };
        match event {
            Event::Init => self.listed = Some(BTreeSet::new()),
            Event::InitDone => {
                let listed = self.listed.take().unwrap_or_default();
                self.table.retain_rules(&listed);
                self.table.end_rules();
                (self.has_no_rules, self.awaits_rules) = (false, false);
            }
            Event::InitApply(rule) | Event::Apply(rule) => {
                let Some((namespace, name)) = key(&rule) else { return };
                if let Some(text) = self.table.set_rule(&namespace, &name, Some(&rule.spec)) {
                    let regarding = rule.object_ref(&());
                    let kind = Kind::ObjectiveIgnored;
                    self.publisher.add(PodEvent { regarding, kind, text: one_line(text) });
                }
                if let Some(listed) = &mut self.listed {
                    listed.insert((namespace, name));
                }
            }
            Event::Delete(rule) => {
                if let Some((namespace, name)) = key(&rule) {
                    self.table.set_rule(&namespace, &name, None);
                }
            }
        }
    }

    /// Sends the results of the changes.
    async fn flush(&mut self) -> anyhow::Result<()> {
        let messages = self.messages();
        self.out.send(&messages).await
    }

    /// Returns what the agent has to know, to be sent at once: a message that the agent takes in
    /// alone makes the next one wait. Events are published, but wait while the API server is away.
    fn messages(&mut self) -> Vec<FromWatcher> {
        let Outcome { messages, events } = self.table.take();
        events.into_iter().for_each(|event| self.publisher.add(event));
        if !self.health.is_lost() {
            self.publisher.send(|event| self.table.knows(&event.regarding));
        }
        let mut all = self.health.take();
        all.extend(messages);
        all
    }
}

#[cfg(test)]
mod tests;
