//! The agent's side of the watcher: starts it, checks its messages, finds the cgroups of pods, and
//! hands pods to the session.
//!
//! A watcher that ends is started again, with growing waits. Until a new one has sent all pods of
//! the node, those that are known stay, as they do while the API server is away. A pod is handed
//! on once its cgroup exists, and only while it may use all cores of the node or is in the pool
//! that pods share (`pool`).

mod known;

use crate::cgroup::{self, Hierarchy};
use crate::child::WatcherChild;
use crate::message::{Begin, FromWatcher, Kind, PODS_MAX, PodOrder, ToWatcher, one_line};
use crate::node_lock::NodeLock;
use crate::pool::Cpusets;
use anyhow::Context;
use known::{KnownPod, Standing};
use lull_agent::discovery::{Discovery, Finding, Report};
use lull_agent::frontend::channel::ChannelError;
use lull_agent::frontend::ending::EndingChild;
use lull_host::Roots;
use lull_host::sandbox::Gap;
use lull_measure::Nanos;
use rustix::event::epoll;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The interval at which the cpuset of a managed pod is checked.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// The wait before the second start in a row; each further one doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Shortest time between two watchers that connect to the same socket of a container runtime, which
/// ends a connection without an answer in time and keeps its socket.
const RUNTIME_RETRY: Duration = Duration::from_secs(300);
/// Most findings that wait for the session.
const FINDINGS_MAX: usize = 8_192;

/// The settings with which a link starts.
#[derive(Debug)]
pub(crate) struct Setup {
    /// The `lull` program.
    pub(crate) program: PathBuf,
    /// The first message to each watcher.
    pub(crate) begin: Begin,
    /// For each template of the message, its number in the config.
    pub(crate) templates: Vec<usize>,
    /// Where the kernel's files are.
    pub(crate) roots: Roots,
    /// The kubelet's `--cgroup-root`.
    pub(crate) cgroup_root: PathBuf,
}

/// The agent's handle of its watcher.
#[derive(Debug)]
pub(crate) struct Link {
    _lock: NodeLock,
    setup: Setup,
    child: Option<WatcherChild>,
    /// Watchers whose channel has ended, and which may still run.
    ending: Vec<EndingChild>,
    /// The hierarchy of cgroups, once a pod was looked at, and when it is read again.
    hierarchy: Option<Hierarchy>,
    hierarchy_due: Instant,
    /// The cpusets of all pods, once a pod had a smaller one than the node's in the present poll.
    cpusets: OnceCell<Cpusets>,
    /// Readable when the channel of the watcher is.
    wakes: OwnedFd,
    due: Option<Instant>,
    wait: Duration,
    /// Whether the watcher follows the container runtime, once it has reported that.
    follows_runtime: Option<bool>,
    /// The socket of the container runtime that the watcher has found.
    socket: Option<SocketIdentity>,
    /// When the last watcher was started.
    spawned: Instant,
    /// Indexed by UID.
    pods: BTreeMap<String, KnownPod>,
    next_id: u64,
    /// The pods that the present watcher has sent.
    announced: BTreeSet<String>,
    /// When the API server last answered, or the link began.
    heard: Instant,
    lost: Option<(Instant, String)>,
    findings: Vec<Finding>,
}

/// Identifies a socket, also if it was made again: its inode and the time of its change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SocketIdentity(u64, i64, i64);

impl Link {
    /// Starts a watcher.
    ///
    /// # Errors
    /// If another agent controls the pods of the node, or the program cannot be started.
    pub(crate) fn start(setup: Setup) -> anyhow::Result<Self> {
        let program = setup.program.display().to_string();
        let mut link = Self {
            _lock: NodeLock::take(&setup.roots, &setup.cgroup_root)?,
            setup,
            child: None,
            ending: Vec::new(),
            hierarchy: None,
            hierarchy_due: Instant::now(),
            cpusets: OnceCell::new(),
            wakes: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            due: None,
            wait: Duration::ZERO,
            follows_runtime: None,
            socket: None,
            spawned: Instant::now(),
            pods: BTreeMap::new(),
            next_id: 0,
            announced: BTreeSet::new(),
            heard: Instant::now(),
            lost: None,
            findings: Vec::new(),
        };
        link.spawn()
            .with_context(|| format!("cannot start `{program} pods`, which watches pods"))?;
        Ok(link)
    }

    fn spawn(&mut self) -> io::Result<()> {
        (self.follows_runtime, self.socket) = (None, self.runtime_socket());
        let mut child = WatcherChild::start(&self.setup.program)?;
        if let Some(channel) = child.channel() {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&self.wakes, channel, data, epoll::EventFlags::IN)?;
        }
        let ends_with_thread = rustix::thread::gettid() == rustix::process::getpid();
        child.send(&[ToWatcher::Begin(Begin { ends_with_thread, ..self.setup.begin.clone() })]);
        self.announced.clear();
        self.spawned = Instant::now();
        self.child = Some(child);
        Ok(())
    }

    /// Starts a watcher again if the last one has ended and a start is due.
    fn revive(&mut self, now: Instant) {
        if self.child.is_some() || self.due.is_some_and(|due| due > now) {
            return;
        }
        if let Err(error) = self.spawn() {
            self.put_off(now);
            self.notice(format!("the watcher of the pods cannot be started again: {error}"));
        }
    }

    /// The socket of the container runtime as it is now.
    fn runtime_socket(&self) -> Option<SocketIdentity> {
        let metadata = std::fs::metadata(self.setup.begin.nri.as_ref()?).ok()?;
        Some(SocketIdentity(metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
    }

    /// Starts another watcher if this one does not follow the container runtime, and the runtime
    /// has made a new socket since, or [`RUNTIME_RETRY`] has passed: only a watcher that has not
    /// given up its rights can connect to it. Each watcher lists all pods, so that a runtime that
    /// is restarted again and again is joined ever more rarely.
    fn rejoin_runtime(&mut self, now: Instant) {
        if self.follows_runtime != Some(false) {
            return;
        }
        let socket = self.runtime_socket();
        let is_new = socket != self.socket;
        let wait = if is_new { self.wait } else { RUNTIME_RETRY };
        if socket.is_some() && now.saturating_duration_since(self.spawned) >= wait {
            self.ending.extend(self.child.take().map(WatcherChild::end));
            (self.follows_runtime, self.due) = (None, None);
            self.note_lifetime(now);
            self.lengthen_wait();
            let place = if is_new { "at its new socket" } else { "again" };
            let why = format!("to follow the container runtime {place}");
            self.notice(format!("the watcher of the pods is started again, {why}"));
        }
    }

    fn put_off(&mut self, now: Instant) {
        self.due = Some(now + self.wait);
        self.lengthen_wait();
    }

    fn lengthen_wait(&mut self) {
        self.wait = (self.wait * 2).clamp(FIRST_WAIT, LONGEST_WAIT);
    }

    /// Begins with short waits again if the last watcher has worked. One that only sends its pods
    /// before it ends has not.
    fn note_lifetime(&mut self, now: Instant) {
        if now.saturating_duration_since(self.spawned) >= LONGEST_WAIT {
            self.wait = Duration::ZERO;
        }
    }

    fn lose(&mut self, why: &ChannelError, now: Instant) {
        self.ending.extend(self.child.take().map(WatcherChild::end));
        self.note_lifetime(now);
        self.put_off(now);
        let count = self.pods.len();
        self.notice(format!(
            "the watcher of the pods is started again: {why}; the {count} pods that are known stay"
        ));
    }

    fn take(&mut self, message: FromWatcher, now: Instant) {
        match message {
            FromWatcher::Ready(gaps) => {
                for Gap { layer, why } in gaps {
                    let why = one_line(why);
                    self.notice(format!("the watcher of the pods runs without {layer}: {why}"));
                }
            }
            FromWatcher::Pod(order) => self.accept(*order, now),
            FromWatcher::Gone(uid) => self.remove(&uid),
            FromWatcher::Synced => {
                let all = self.pods.keys();
                let gone: Vec<String> =
                    all.filter(|uid| !self.announced.contains(*uid)).cloned().collect();
                gone.iter().for_each(|uid| self.remove(uid));
            }
            FromWatcher::Heard => self.note_answer(now),
            FromWatcher::Lost(why) => {
                let why = one_line(why);
                if self.lost.as_ref().is_none_or(|(_, known)| *known != why) {
                    let count = self.pods.len();
                    self.notice(format!("{why}; the {count} pods that are known stay"));
                }
                let since = self.lost.take().map_or(now, |(since, _)| since);
                self.lost = Some((since, why));
            }
            FromWatcher::Runtime(follows) => self.follows_runtime = Some(follows),
            FromWatcher::Notice(text) => self.notice(one_line(text)),
        }
    }

    fn note_answer(&mut self, now: Instant) {
        self.heard = now;
        if let Some((since, _)) = self.lost.take() {
            let away_s = now.saturating_duration_since(since).as_secs();
            self.notice(format!("the API server answers again, after {away_s} s"));
        }
    }

    fn accept(&mut self, order: PodOrder, now: Instant) {
        let objectives = match order.check(self.setup.templates.len()) {
            Ok(objectives) => objectives,
            Err(why) => return self.notice(format!("the watcher of the pods sent {why}")),
        };
        let uid = order.uid.clone();
        if !self.pods.contains_key(&uid) && self.pods.len() >= PODS_MAX {
            return;
        }
        self.announced.insert(uid.clone());
        match self.pods.get_mut(&uid) {
            Some(pod) => {
                if pod.order.cpus != order.cpus {
                    self.cpusets.take();
                }
                if !pod.take_order(order, objectives, &self.setup, now) {
                    self.findings.extend(pod.renew(&self.setup).map(Finding::Present));
                    return;
                }
            }
            None => {
                self.cpusets.take();
                self.next_id += 1;
                let pod = KnownPod::new(self.next_id, order, objectives, &self.setup, now);
                self.pods.insert(uid.clone(), pod);
            }
        }
        self.settle(&uid, now);
    }

    fn remove(&mut self, uid: &str) {
        self.announced.remove(uid);
        if let Some(pod) = self.pods.remove(uid)
            && let Standing::Present(_) = pod.standing
        {
            self.findings.push(Finding::Gone(pod.id));
        }
    }

    /// Has the cpusets of pods read again, and now and then what hardly ever changes.
    fn forget_cgroups(&mut self, now: Instant) {
        self.cpusets.take();
        if now >= self.hierarchy_due {
            (self.hierarchy, self.hierarchy_due) = (None, now + CHECK_EVERY);
        }
        self.hierarchy.iter_mut().for_each(Hierarchy::forget_pods);
    }

    /// Looks again at pods whose cgroup did not exist, and now and then at the others.
    fn look(&mut self, now: Instant) {
        let is_due = |pod: &KnownPod| match pod.standing {
            Standing::Waits => true,
            Standing::Present(_) | Standing::LeftAlone(_) => {
                now.saturating_duration_since(pod.checked) >= CHECK_EVERY
            }
        };
        let due: Vec<String> =
            self.pods.iter().filter(|(_, pod)| is_due(pod)).map(|(uid, _)| uid.clone()).collect();
        due.iter().for_each(|uid| self.settle(uid, now));
    }

    /// Compares the standing of a pod with what the session knows.
    fn settle(&mut self, uid: &str, now: Instant) {
        let Some(pod) = self.pods.get(uid) else { return };
        let read = || Hierarchy::read(&self.setup.roots);
        let hierarchy = &*self.hierarchy.get_or_insert_with(read);
        let cpusets = || {
            self.cpusets.get_or_init(|| {
                let mut all = hierarchy.cpusets_of_pods(&self.setup.cgroup_root).clone();
                let pods = self.pods.iter();
                pods.for_each(|(uid, pod)| all.add(uid, pod.order.service, pod.set_cores()));
                all
            })
        };
        let found = pod.standing_now(&self.setup, hierarchy, cpusets);
        let Some(pod) = self.pods.get_mut(uid) else { return };
        pod.checked = now;
        let standing = match found {
            Ok(Standing::Waits) if pod.is_overdue(now) => {
                Standing::LeftAlone(cgroup::describe_missing(&pod.order, &self.setup.cgroup_root))
            }
            Ok(standing) => {
                pod.placed = None;
                standing
            }
            Err(_) if pod.may_join_pool(now) => return,
            Err(why) => Standing::LeftAlone(why),
        };
        // A cgroup that has gone took its processes with it; the API server says when the pod has.
        let has_gone = standing == Standing::Waits && !pod.order.is_starting;
        if has_gone || standing == pod.standing {
            return;
        }
        let before = pod.replace_standing(standing.clone());
        let (id, title) = (pod.id, pod.order.title());
        if let Standing::Present(workload) = standing {
            return self.findings.push(Finding::Present(workload));
        }
        if let Standing::Present(_) = before {
            self.findings.push(Finding::Gone(id));
        }
        if let Standing::LeftAlone(why) = standing {
            self.notice(format!("{title} is left alone: {why}"));
            let (uid, kind) = (uid.to_owned(), Kind::Unmanaged);
            self.publish(&[ToWatcher::Report { uid, kind, text: one_line(why) }]);
        }
    }

    /// Has the watcher publish these reports.
    fn publish(&mut self, reports: &[ToWatcher]) {
        if let Some(child) = &mut self.child {
            child.send(reports);
        }
    }

    /// A report about a pod for the watcher; `None` if the pod is gone.
    fn message_of(&self, report: Report) -> Option<ToWatcher> {
        let (uid, _) = self.pods.iter().find(|(_, pod)| pod.id == report.workload)?;
        let (kind, text) = (report.kind.into(), one_line(report.text));
        Some(ToWatcher::Report { uid: uid.clone(), kind, text })
    }

    fn notice(&mut self, text: String) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding::Notice(text));
        }
    }
}

impl Discovery for Link {
    fn poll(&mut self) -> Vec<Finding> {
        let now = Instant::now();
        self.forget_cgroups(now);
        self.ending.retain_mut(|process| process.end_status(now).is_none());
        self.rejoin_runtime(now);
        self.revive(now);
        if let Some(child) = &mut self.child {
            let (messages, received) = child.receive();
            for message in messages {
                self.take(message, now);
            }
            if let Err(why) = received {
                self.lose(&why, now);
            }
        }
        self.look(now);
        std::mem::take(&mut self.findings)
    }

    fn report(&mut self, reports: Vec<Report>) {
        let messages = reports.into_iter().filter_map(|report| self.message_of(report));
        let messages: Vec<ToWatcher> = messages.collect();
        self.publish(&messages);
    }

    fn silence(&self) -> Nanos {
        Nanos::from(self.heard.elapsed())
    }

    fn wakes(&self) -> Option<OwnedFd> {
        self.wakes.try_clone().ok()
    }
}

#[cfg(test)]
mod tests;
