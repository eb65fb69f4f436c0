//! The front end: a process that parses input from outside, separate from the one that writes
//! knobs.
//!
//! The agent opens the listening sockets (push socket, page, OTLP) and never accepts from them. It
//! starts the `lull` program once more (`lull frontend`), hands the sockets over by a socket
//! pair, and the new process gives up its rights ([`lull_host::sandbox`]) before it accepts its
//! first connection. From then on:
//!
//! ```text
//!   agent (knobs, ledger) ── epochs, answers, "drain", replies of Prometheus ──▶ front end
//!                         ◀── push messages, tails, orders, notices ────────────
//! ```
//!
//! The agent decodes only the messages of `message`: numbers and short texts in a fixed
//! order, with a bound on each. It checks every value again, since a front end that was taken
//! over may send anything. An order counts only with the operators' token, of which the front
//! end has no more than a digest.
//!
//! Connections of processes that register themselves are the exception: the agent accepts them,
//! because the kernel reports which process has connected only where they are accepted, and has
//! their lines parsed (`registrations`).
//!
//! The agent never waits for the front end, but for at most `DRAIN_MAX` when it collects push
//! messages. A front end that ends is started again, with growing waits if it ends repeatedly.
//! Meanwhile clients are queued by the kernel, and no knob is written because of it.

pub mod channel;
mod child;
pub mod ending;
pub mod frames;
mod handover;
mod message;
mod names;
mod orders;
mod process;
mod protection;
mod pushed;
mod query;
mod registrations;
mod restart;
mod taken;

pub use orders::{Live, Order};
pub use process::run;
pub(crate) use protection::ProtectionFiles;
#[doc(hidden)]
pub use taken::{sample_messages, take_messages};

use crate::VERSION;
use crate::discovery::PodIdentity;
use crate::live::{Page, Serve};
use crate::otlp::OtlpSource;
use crate::prometheus::QueryPurpose;
use channel::ChannelError;
use child::{FrontendChild, Lost};
use ending::EndingChild;
use handover::Listeners;
use lull_host::gauges::push::{ClientId, PushSocket, PushSource};
use lull_host::gauges::reported::Answer;
use lull_host::sandbox::Gap;

use message::{FromFrontend, Report, ToFrontend, shorten};
use orders::UncheckedOrder;
use query::{Query, answer_to};
use restart::Restart;
use std::collections::BTreeMap;
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the first front end may take to get ready; a loaded machine is slow.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the push messages that had come.
const DRAIN_MAX: Duration = Duration::from_millis(20);
/// Between two looks whether a front end has ended, at the start.
const PAUSE: Duration = Duration::from_millis(2);
/// How long a front end may leave requests unanswered before it is replaced.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// Most orders that wait for the end of the epoch; further ones are refused.
const ORDERS_MAX: usize = 8;
/// Most push messages in one drain: ten a second of 256 clients, three times over. Each costs
/// the loop a histogram, so what comes beyond is dropped.
const PUSHED_MAX: usize = 4_096;
/// Most notices that wait; what comes beyond is dropped.
const NOTICES_MAX: usize = 256;

/// Why no front end runs.
#[derive(Debug, thiserror::Error)]
pub enum FrontendError {
    /// The front end cannot be started.
    #[error(
        "cannot start `{} frontend`, which serves the page and the push socket: {cause}",
        program.display()
    )]
    Start {
        /// The program.
        program: PathBuf,
        /// The error of the operating system.
        cause: io::Error,
    },
    /// The front end ended, or did not get ready in time.
    #[error(
        "`{} frontend`, which serves the page and the push socket, did not get ready: {why}; \
         the program must be `lull` of this version",
        program.display()
    )]
    NotReady {
        /// The program.
        program: PathBuf,
        /// How it ended.
        why: String,
    },
}

/// The settings with which a front end starts.
#[derive(Debug)]
pub struct Setup<'a> {
    /// The `lull` program.
    pub program: PathBuf,
    /// The push socket.
    pub push: &'a PushSocket,
    /// The page's address.
    pub page: Option<&'a TcpListener>,
    /// Names of the apps.
    pub apps: Vec<String>,
    /// The receiver of OTLP, if an app reads from it.
    pub(crate) otlp: Option<OtlpSetup<'a>>,
    /// Where lines of processes that register arrive, if some may.
    pub(crate) lines: Option<UnixDatagram>,
}

/// The settings with which a receiver of OTLP starts.
#[derive(Debug)]
pub(crate) struct OtlpSetup<'a> {
    /// Its address.
    pub(crate) listener: &'a TcpListener,
    /// The series that each app reads.
    pub(crate) sources: Vec<OtlpSource>,
    /// Host names under which it may be requested, beside addresses.
    pub(crate) names: Vec<String>,
    /// The files of its TLS certificate, key and token.
    pub(crate) protection: ProtectionFiles,
}

/// The agent's handle of its front end. Clones share it; the last one ends it.
#[derive(Debug, Clone)]
pub struct Frontend {
    shared: Arc<Mutex<Supervisor>>,
}

#[derive(Debug)]
struct Supervisor {
    program: PathBuf,
    listeners: Listeners,
    apps: Vec<String>,
    /// The series that apps read by OTLP, and the host names of the receiver.
    otlp: (Vec<OtlpSource>, Vec<String>),
    /// The files that protect the receiver, if there is one.
    protection: Option<ProtectionFiles>,
    /// The pods that are apps, by the app's number.
    pods: BTreeMap<u16, PodIdentity>,
    /// The content of the page, once it is known.
    page: Option<Serve>,
    child: Option<FrontendChild>,
    /// Front ends that are no longer used, and which may still run.
    ending: Vec<EndingChild>,
    restart: Restart,
    /// How many front ends there were before. Each numbers its clients and orders from 0.
    generation: u32,
    /// The layers that do not confine it; `None` until it is ready.
    gaps: Option<Vec<Gap>>,
    drains: u32,
    drained: u32,
    /// When the first request was made that is not answered yet.
    unanswered: Option<Instant>,
    pushed: Vec<(ClientId, Report)>,
    /// Push messages beyond [`PUSHED_MAX`].
    dropped: u64,
    notices: Vec<String>,
    orders: Vec<UncheckedOrder>,
    /// Queries of Prometheus servers, by their numbers.
    queries: Vec<Query>,
}

impl Frontend {
    /// Starts a front end and waits until it is confined and serves the push socket.
    ///
    /// # Errors
    /// If the program is not `lull` of this version, or the kernel refuses to start it.
    pub fn start(setup: Setup<'_>) -> Result<Self, FrontendError> {
        let Setup { program, push, page, apps, otlp, lines } = setup;
        let failed = |cause| FrontendError::Start { program: program.clone(), cause };
        let push = push.listener().try_clone().map_err(failed)?;
        let page = page.map(TcpListener::try_clone).transpose().map_err(failed)?;
        let receiver = otlp.as_ref().map(|otlp| otlp.listener.try_clone()).transpose();
        let listeners = Listeners { push, page, otlp: receiver.map_err(failed)?, lines };
        let mut supervisor = Supervisor::new(program.clone(), listeners, apps);
        if let Some(OtlpSetup { sources, names, protection, .. }) = otlp {
            (supervisor.otlp, supervisor.protection) = ((sources, names), Some(protection));
        }
        supervisor.start().map_err(failed)?;
        let deadline = Instant::now() + READY_TIMEOUT;
        while supervisor.gaps.is_none() {
            let Some(child) = &supervisor.child else {
                supervisor.wait_for_ends(deadline);
                let why = supervisor.notices.join("; ");
                return Err(FrontendError::NotReady { program, why });
            };
            if Instant::now() > deadline {
                let why = format!("nothing within {} s", READY_TIMEOUT.as_secs());
                return Err(FrontendError::NotReady { program, why });
            }
            child.wait_for(deadline);
            supervisor.receive();
        }
        Ok(Self { shared: Arc::new(Mutex::new(supervisor)) })
    }

    /// The layers of its confinement that are not in force.
    pub fn gaps(&self) -> Vec<Gap> {
        self.lock().gaps.clone().unwrap_or_default()
    }

    /// Its process number, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.lock().child.as_ref().map(FrontendChild::pid)
    }

    /// Serves the page until the returned handle is dropped.
    pub fn serve(&self, page: Page) -> Live {
        let Page { description, serve, token } = page;
        let mut supervisor = self.lock();
        supervisor.send(&ToFrontend::Serve(Box::new(serve.clone())));
        supervisor.page = Some(serve);
        drop(supervisor);
        Live { description, token, frontend: self.clone() }
    }

    /// Notes which pod an app is from now on, by which senders of its latency are recognised.
    pub(crate) fn assign(&self, app: u16, pod: Option<PodIdentity>) {
        let mut supervisor = self.lock();
        match &pod {
            Some(pod) => supervisor.pods.insert(app, pod.clone()),
            None => supervisor.pods.remove(&app),
        };
        supervisor.send(&ToFrontend::Assign { app, pod });
    }

    /// Returns the source of pushed reports for the plant. Each drain also checks the front end.
    pub fn push_source(&self, socket: PushSocket) -> Box<dyn PushSource> {
        Box::new(pushed::Source { frontend: self.clone(), socket })
    }

    /// Returns a function that has a reply of a Prometheus server parsed, whose number then goes to
    /// `to`. The function returns `false` once the front end is no longer needed.
    pub(crate) fn reply_parser(
        &self,
        server: String,
        purpose: QueryPurpose,
        to: Sender<Answer>,
    ) -> impl Fn(u64, Vec<u8>) -> bool + Send + use<> {
        let mut supervisor = self.lock();
        let query = u32::try_from(supervisor.queries.len()).unwrap_or(u32::MAX);
        supervisor.queries.push(Query { server, purpose, to });
        let shared = Arc::downgrade(&self.shared);
        move |generation, bytes| {
            let Some(shared) = shared.upgrade() else { return false };
            Self { shared }.lock().send(&ToFrontend::Reply { query, generation, bytes });
            true
        }
    }

    fn lock(&self) -> MutexGuard<'_, Supervisor> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Supervisor {
    fn new(program: PathBuf, listeners: Listeners, apps: Vec<String>) -> Self {
        Self {
            program,
            listeners,
            apps,
            otlp: (Vec::new(), Vec::new()),
            protection: None,
            pods: BTreeMap::new(),
            page: None,
            child: None,
            ending: Vec::new(),
            restart: Restart::new(Instant::now()),
            generation: 0,
            gaps: None,
            drains: 0,
            drained: 0,
            unanswered: None,
            pushed: Vec::new(),
            dropped: 0,
            notices: Vec::new(),
            orders: Vec::new(),
            queries: Vec::new(),
        }
    }

    fn start(&mut self) -> io::Result<()> {
        let mut child = FrontendChild::start(&self.program, &self.listeners)?;
        child.send(&ToFrontend::Begin {
            version: VERSION.to_owned(),
            apps: self.apps.clone(),
            otlp: self.otlp.0.clone(),
            names: self.otlp.1.clone(),
            protection: self.protection.as_ref().map(|it| it.read.clone()).unwrap_or_default(),
            ends_with_thread: rustix::thread::gettid() == rustix::process::getpid(),
        });
        for (app, pod) in &self.pods {
            child.send(&ToFrontend::Assign { app: *app, pod: Some(pod.clone()) });
        }
        if let Some(page) = &self.page {
            child.send(&ToFrontend::Serve(Box::new(page.clone())));
        }
        self.child = Some(child);
        Ok(())
    }

    /// Starts a front end again if the last one has ended and a start is due.
    fn revive(&mut self) {
        if self.child.is_some() || !self.restart.take_due(Instant::now()) {
            return;
        }
        if let Err(error) = self.start() {
            self.restart.ended(Instant::now());
            self.notices.push(format!("the front end cannot be started again: {error}"));
        }
    }

    fn send(&mut self, message: &ToFrontend) {
        if let Some(child) = &mut self.child {
            child.send(message);
        }
    }

    /// Takes in the messages that have come.
    fn receive(&mut self) {
        let Some(child) = &mut self.child else { return };
        let mut messages = Vec::new();
        let received = child.receive(|message| messages.push(message));
        for message in messages {
            self.take(message);
        }
        if let Err(lost) = received {
            self.lose(&lost);
        }
    }

    fn lose(&mut self, lost: &Lost) {
        let Some(child) = self.child.take() else { return };
        // The clients that wait for answers to orders of the former process are gone.
        self.orders.clear();
        self.generation = self.generation.wrapping_add(1);
        (self.drained, self.unanswered) = (self.drains, None);
        self.restart.ended(Instant::now());
        self.ending.push(match lost {
            Lost::Channel(ChannelError::Ended) => child.end(),
            Lost::Silent | Lost::Channel(_) => child.kill(),
        });
        self.notices.push(format!(
            "the front end, which serves the page and the push socket, is started again: {lost}"
        ));
        self.report_ends();
    }

    /// Reports how front ends that are no longer used have ended since the last call.
    fn report_ends(&mut self) {
        let Self { ending, notices, .. } = self;
        let now = Instant::now();
        ending.retain_mut(|process| {
            let status = process.end_status(now);
            let texts = status.iter();
            notices.extend(texts.map(|status| format!("the former front end: {status}")));
            status.is_none()
        });
    }

    /// Waits until it is known how front ends have ended, or the deadline.
    fn wait_for_ends(&mut self, deadline: Instant) {
        while !self.ending.is_empty() && Instant::now() < deadline {
            std::thread::sleep(PAUSE);
            self.report_ends();
        }
    }

    fn take(&mut self, message: FromFrontend) {
        match message {
            FromFrontend::Ready(gaps) => self.gaps = Some(gaps),
            // Possibly late, but it answers.
            FromFrontend::Drained(number) => (self.drained, self.unanswered) = (number, None),
            FromFrontend::Notice(text) if self.notices.len() < NOTICES_MAX => {
                self.notices.push(shorten(text));
            }
            FromFrontend::Pushed { client, pid, report } if self.pushed.len() < PUSHED_MAX => {
                let number = self.number_of(client);
                self.pushed.push((ClientId { number, pid }, report));
            }
            FromFrontend::Pushed { .. } => self.dropped += 1,
            FromFrontend::Notice(_) => {}
            FromFrontend::Order { number, token, order } => {
                if self.orders.len() < ORDERS_MAX {
                    let (generation, command) = (self.generation, order.into());
                    self.orders.push(UncheckedOrder { generation, number, token, command });
                } else {
                    let answer = Err("too many orders wait already".to_owned());
                    self.send(&ToFrontend::Answer { order: number, answer });
                }
            }
            FromFrontend::Number { query, generation, number } => {
                if let Some(query) = self.queries.get(query as usize) {
                    let _ = query.to.send(answer_to(query, generation, number));
                }
            }
        }
    }

    /// The number of a push client, which no client of another front end has.
    fn number_of(&self, client: u64) -> u64 {
        u64::from(self.generation) << 32 | client & u64::from(u32::MAX)
    }

    /// The number that the front end has given a push client; `None` if it has ended since.
    fn client_of(&self, number: u64) -> Option<u64> {
        let client = number & u64::from(u32::MAX);
        (self.number_of(client) == number).then_some(client)
    }

    /// Disconnects a push client, unless its front end has ended.
    fn disconnect(&mut self, number: u64) {
        if let Some(client) = self.client_of(number) {
            self.send(&ToFrontend::Disconnect(client));
        }
    }

    /// Answers an order, unless its front end has ended.
    fn answer(&mut self, generation: u32, order: u32, answer: Result<String, String>) {
        if generation == self.generation {
            self.send(&ToFrontend::Answer { order, answer });
        }
    }

    /// Sends the certificate and the token of the receiver again if they have changed.
    fn renew_protection(&mut self) {
        let Some(files) = &mut self.protection else { return };
        match files.renew(Instant::now()) {
            Ok(None) => {}
            Ok(Some(protection)) => self.send(&ToFrontend::Protect(protection)),
            Err(why) => {
                self.notices.push(format!("the receiver of OTLP continues unchanged: {why}"));
            }
        }
    }

    /// Whether a front end runs that has answered the last drain.
    const fn has_answered(&self) -> bool {
        self.child.is_some() && self.drained == self.drains
    }

    /// Collects the pushed reports, and checks the front end.
    fn drain(&mut self) -> Vec<(ClientId, Report)> {
        self.report_ends();
        self.revive();
        self.renew_protection();
        if self.gaps.is_some() && self.child.is_some() {
            let deadline = Instant::now() + DRAIN_MAX;
            self.drains = self.drains.wrapping_add(1);
            self.unanswered.get_or_insert_with(Instant::now);
            self.send(&ToFrontend::Drain(self.drains));
            self.receive();
            while self.drained != self.drains && Instant::now() < deadline {
                if let Some(child) = &self.child {
                    child.wait_for(deadline);
                }
                self.receive();
            }
            if self.unanswered.is_some_and(|since| since.elapsed() > SILENT_MAX) {
                self.lose(&Lost::Silent);
            }
        } else {
            self.receive();
        }
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            self.notices.push(format!(
                "{dropped} push messages are lost: more than {PUSHED_MAX} arrived at once"
            ));
        }
        std::mem::take(&mut self.pushed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Token;
    use lull_host::gauges::reported::Reply;
    use lull_measure::Nanos;
    use message::Ordered;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc;

    fn supervisor(place: &tempfile::TempDir) -> Supervisor {
        let push = UnixListener::bind(place.path().join("push")).unwrap();
        let listeners = Listeners { push, page: None, otlp: None, lines: None };
        Supervisor::new("/bin/true".into(), listeners, vec!["server".to_owned()])
    }

    #[test]
    fn a_program_that_is_no_front_end_is_named() {
        let place = tempfile::tempdir().unwrap();
        let push = PushSocket::bind(&place.path().join("push")).unwrap();
        for (program, words) in [("/bin/true", "it ended"), ("/nowhere/lull", "No such file")] {
            let apps = Vec::new();
            let program_path = program.into();
            let (page, otlp, lines) = (None, None, None);
            let setup = Setup { program: program_path, push: &push, page, apps, otlp, lines };
            let refused = Frontend::start(setup).unwrap_err().to_string();
            assert!(refused.contains(words) && refused.contains(program), "{refused}");
        }
    }

    #[test]
    fn a_front_end_that_runs_and_does_not_answer_is_replaced() {
        let place = tempfile::tempdir().unwrap();
        let mut supervisor = supervisor(&place);
        // It writes without end and reads nothing.
        supervisor.program = "/usr/bin/yes".into();
        supervisor.start().unwrap();
        supervisor.gaps = Some(Vec::new());
        supervisor.drain();
        assert!(supervisor.child.is_some() && supervisor.unanswered.is_some());
        supervisor.unanswered = Instant::now().checked_sub(SILENT_MAX + DRAIN_MAX);
        supervisor.drain();
        assert!(supervisor.child.is_none());
        assert!(supervisor.notices[0].contains("did not answer for 10 s"));
        supervisor.drain();
        assert!(supervisor.child.is_some(), "the first new start is due immediately");
        while !supervisor.ending.is_empty() {
            supervisor.drain();
        }
        assert!(supervisor.notices[1].contains("signal: 9"), "{:?}", supervisor.notices);
    }

    #[test]
    fn an_answer_that_is_late_shows_that_the_front_end_runs() {
        let place = tempfile::tempdir().unwrap();
        let mut supervisor = supervisor(&place);
        (supervisor.drains, supervisor.unanswered) = (2, Some(Instant::now()));
        supervisor.take(FromFrontend::Drained(1));
        assert_eq!((supervisor.drained, supervisor.unanswered), (1, None));
    }

    #[test]
    fn numbers_of_a_front_end_that_has_ended_are_no_others() {
        let place = tempfile::tempdir().unwrap();
        let mut supervisor = supervisor(&place);
        let pushed = |supervisor: &mut Supervisor| {
            let report = Report::Progress { app: 0, unit: "u".to_owned(), total: 1.0, time_ns: 7 };
            supervisor.take(FromFrontend::Pushed { client: 3, pid: None, report });
            supervisor.pushed.pop().unwrap().0.number
        };
        let first = pushed(&mut supervisor);
        assert_eq!(supervisor.client_of(first), Some(3));
        supervisor.start().unwrap();
        supervisor.lose(&Lost::Silent);
        let second = pushed(&mut supervisor);
        assert_ne!(second, first);
        assert_eq!((supervisor.client_of(first), supervisor.client_of(second)), (None, Some(3)));
    }

    #[test]
    fn an_order_counts_only_with_the_token_and_few_wait() {
        let place = tempfile::tempdir().unwrap();
        let mut supervisor = supervisor(&place);
        let token = Token::make(&place.path().join("token")).unwrap();
        let right = std::fs::read_to_string(place.path().join("token")).unwrap();
        let right = right.trim().to_owned();
        let order = |number, token: &str| FromFrontend::Order {
            number,
            token: token.to_owned(),
            order: Ordered::Policy("arq".to_owned()),
        };
        supervisor.take(order(0, &right));
        supervisor.take(order(1, "guessed"));
        (2..100).for_each(|number| supervisor.take(order(number, &right)));
        assert_eq!(supervisor.orders.len(), ORDERS_MAX);
        let frontend = Frontend { shared: Arc::new(Mutex::new(supervisor)) };
        let live = Live { description: String::new(), token: Some(token), frontend };
        let orders = live.orders();
        let numbers: Vec<u32> = orders.iter().map(|order| order.number).collect();
        assert_eq!(numbers, [0, 2, 3, 4, 5, 6, 7]);
        assert!(live.orders().is_empty());
        let without =
            Live { token: None, description: String::new(), frontend: live.frontend.clone() };
        without.frontend.lock().take(order(7, &right));
        assert!(without.orders().is_empty(), "the page is read-only");
    }

    #[test]
    fn what_a_front_end_sends_is_bounded() {
        let place = tempfile::tempdir().unwrap();
        let mut supervisor = supervisor(&place);
        let (to, tails) = mpsc::channel();
        let server = "http://p:9090".to_owned();
        supervisor.queries.push(Query { server, purpose: QueryPurpose::Tail, to });
        for client in 0..10_000 {
            let unit = "u".to_owned();
            let report = Report::Progress { app: 9, unit, total: 1.0, time_ns: 7 };
            supervisor.take(FromFrontend::Pushed { client, pid: None, report });
            supervisor.take(FromFrontend::Notice("x".repeat(10_000)));
        }
        assert_eq!(supervisor.pushed.len(), PUSHED_MAX);
        assert_eq!(supervisor.dropped, 10_000 - PUSHED_MAX as u64);
        assert_eq!(supervisor.notices.len(), NOTICES_MAX);
        assert!(supervisor.notices.iter().all(|text| text.len() <= message::TEXT_MAX));
        let number = |query, number| FromFrontend::Number { query, generation: 3, number };
        supervisor.take(number(0, Ok(Some(7e-9))));
        supervisor.take(number(0, Ok(Some(1e300))));
        supervisor.take(number(0, Err("why".to_owned())));
        supervisor.take(number(1, Ok(Some(7.0))));
        let tails: Vec<_> = tails
            .try_iter()
            .map(|answer| match (answer.generation, answer.reply) {
                (3, Reply::Tail(tail)) => tail,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(tails[0], Ok(Some(Nanos(7))));
        assert!(tails[1].is_err(), "it is implausible");
        assert!(tails[2].as_ref().unwrap_err().reason.starts_with("http://p:9090: why"));
        assert_eq!(tails.len(), 3, "no query has number 1");
    }
}
