//! The on-call runtime of one app of a control loop.

use super::accounts::ShownNames;
use super::{
    AccountWaits, ClassSeen, LongWaits, PageDirectory, Rules, Runtime, Statistics, UnmappedServers,
    accounts, classes, describe_bypass, now,
};
use crate::Roots;
use lull_control::{ClientAccountObservation, ClientClassObservation, LatencyObservation};
use lull_measure::{Gauge, Nanos};
use lull_oncall::Settings;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The time between two searches for processes that were killed; each reads the process of
/// every connection.
const REAPING: Nanos = Nanos::from_secs(1);

/// One app's on-call runtime, read at the end of each epoch.
///
/// When it is dropped, the app continues with an open gate.
#[derive(Debug)]
pub struct Watch {
    runtime: Arc<Runtime>,
    statistics: Statistics,
    unmapped: Box<UnmappedServers>,
    roots: Roots,
    reaped: Nanos,
    /// The classes of clients at the last reading.
    classes: Vec<ClassSeen>,
    /// The waits of accounts at the last reading.
    accounts: Vec<AccountWaits>,
    shown_names: ShownNames,
    long_waits: Box<LongWaits>,
    /// The time since which the gate was bypassed, as of the last look.
    bypassed_since_s: Option<u64>,
}

impl Watch {
    /// Makes the app's page. The caller starts the app with [`Watch::environment`].
    ///
    /// # Errors
    /// As [`Runtime::start`].
    pub fn start(settings: &Settings, rules: &Rules, roots: &Roots) -> io::Result<Self> {
        Self::new(Runtime::start(settings, rules)?, roots)
    }

    /// Takes over the page of a directory, for servers that Lull does not start.
    ///
    /// # Errors
    /// As [`PageDirectory::open`] and [`Runtime::attach`].
    pub fn attach(
        directory: &Path,
        settings: &Settings,
        rules: &Rules,
        roots: &Roots,
    ) -> io::Result<Self> {
        let directory = PageDirectory::open(directory, None).map_err(io::Error::other)?;
        Self::new(Runtime::attach(&directory, settings, rules, roots)?, roots)
    }

    fn new(runtime: Runtime, roots: &Roots) -> io::Result<Self> {
        let statistics = runtime.statistics();
        let unmapped = Box::new(runtime.unmapped_servers(roots)?);
        let (runtime, roots) = (Arc::new(runtime), roots.clone());
        let long_waits = Box::new(runtime.long_waits());
        Ok(Self {
            statistics,
            unmapped,
            roots,
            reaped: now(),
            classes: read_classes(&runtime),
            accounts: accounts::read(&runtime.page),
            shown_names: ShownNames::default(),
            long_waits,
            bypassed_since_s: None,
            runtime,
        })
    }

    /// Returns messages, each once: about servers that were started with the page and do not use
    /// it, about turns that waited long at the gate, and about the beginning and the end of an
    /// operator's bypass.
    pub(crate) fn notices(&mut self) -> Vec<String> {
        let mut notices: Vec<String> =
            self.unmapped.look().iter().map(ToString::to_string).collect();
        notices.extend(self.long_waits.report());
        let now = self.runtime.bypassed_since_s();
        let before = std::mem::replace(&mut self.bypassed_since_s, now);
        if now != before {
            notices.push(format!("the gate is {}", describe_change(now)));
        }
        notices
    }

    /// Returns the time since which an operator bypasses the gate, in seconds since 1970.
    pub(crate) fn bypassed_since_s(&self) -> Option<u64> {
        self.runtime.bypassed_since_s()
    }

    /// Returns the variables that the app's environment needs besides the agent's own.
    pub fn environment(&self, library: &Path) -> Vec<(String, String)> {
        self.runtime.environment(library)
    }

    /// The runtime itself, for an admission controller.
    pub fn runtime(&self) -> Arc<Runtime> {
        Arc::clone(&self.runtime)
    }

    /// Returns the settings of its gate; `None` if no worker waits there.
    pub(crate) fn gate(&self) -> Option<Settings> {
        Some(self.runtime.settings()).filter(|settings| settings.mode.gates())
    }

    /// Sets its gate, from the next turn on.
    pub(crate) fn set_gate(&self, settings: &Settings) {
        self.runtime.set(settings);
    }

    /// Returns its latency since the last reading, on the server: from when a worker read a
    /// query to the end of the reply, with the wait at the gate.
    pub(crate) fn latency(&mut self) -> Gauge<LatencyObservation> {
        let now = now();
        if now >= self.reaped.saturating_add(REAPING) {
            self.reaped = now;
            self.runtime.reap(&self.roots);
        }
        self.statistics.latency()
    }

    /// Returns how its classes of clients have fared since the last reading, or how all of its
    /// clients have if its gate has no classes.
    pub(crate) fn client_classes(&mut self) -> Vec<ClientClassObservation> {
        let since = |(before, now): (&mut ClassSeen, ClassSeen)| {
            // The name is the agent's own, since a server can write any into the page.
            let now = ClassSeen { name: before.name.clone(), ..now };
            let mut class = now.clone();
            class.subtract(&std::mem::replace(before, now));
            class.summary()
        };
        let now = read_classes(&self.runtime);
        if now.len() != self.classes.len() {
            // A server may write any number of classes into the page.
            return Vec::new();
        }
        self.classes.iter_mut().zip(now).map(since).collect()
    }

    /// Returns how long turns have waited by user and database since the last reading, for accounts
    /// of which any did.
    pub(crate) fn client_accounts(&mut self) -> Vec<ClientAccountObservation> {
        let now = accounts::read(&self.runtime.page);
        let before = std::mem::replace(&mut self.accounts, now.clone());
        let accounts = self.shown_names.limit(accounts::since(now, &before));
        accounts.iter().map(AccountWaits::summary).collect()
    }
}

/// Returns the classes of clients, or all clients as one if there are none.
fn read_classes(runtime: &Runtime) -> Vec<ClassSeen> {
    let classes = runtime.client_classes();
    if classes.is_empty() { vec![classes::read_all(&runtime.page)] } else { classes }
}

/// Describes the beginning of a bypass, or its end.
fn describe_change(since_s: Option<u64>) -> String {
    since_s.map_or_else(|| "no longer bypassed".to_owned(), describe_bypass)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oncall::{ClientClass, ClientMatch};
    use lull_oncall::{ClassShare, Id, NameHash, Names};

    #[test]
    fn classes_of_clients_are_read_by_epoch_and_by_the_names_that_the_agent_has() {
        let clients = vec![ClientMatch { port: Some(3307), ..ClientMatch::default() }];
        let web = ClientClass { name: "web".to_owned(), share: ClassShare::default(), clients };
        let rules = Rules { client_classes: vec![web], ..Rules::default() };
        let mut watch = Watch::start(&Settings::default(), &rules, &Roots::default()).unwrap();
        let page = Arc::clone(&watch.runtime.page);
        page.gate().entry(Id(3)).unwrap().set_client_class(1);
        page.turn_waited(Id(3), 1_000_000);
        page.turn_waited(Id(3), 1_000_000);
        // A server may write any name.
        page.client_rules().set(&[], ["strange", "names"].into_iter());
        let seen = watch.client_classes();
        let names: Vec<&str> = seen.iter().map(|class| class.name.as_str()).collect();
        assert_eq!(names, ["others", "web"]);
        assert_eq!([seen[0].waits, seen[1].waits], [0, 2]);
        let (p50, p99) = seen[1].wait_quantiles.unwrap();
        assert!(p50 == p99 && p50.0.abs_diff(1_000_000) < 40_000, "{p50}");
        let later = watch.client_classes();
        assert_eq!((later[1].waits, later[1].wait_quantiles), (0, None));
        page.client_classes().set(&[]);
        assert!(watch.client_classes().is_empty());
    }

    #[test]
    fn all_clients_of_a_gate_without_classes_are_read_by_epoch() {
        let rules = Rules::default();
        let mut watch = Watch::start(&Settings::default(), &rules, &Roots::default()).unwrap();
        let page = Arc::clone(&watch.runtime.page);
        page.turn_waited(Id(3), 1_000_000);
        let seen = watch.client_classes();
        assert_eq!(
            seen.iter().map(|one| (one.name.as_str(), one.waits)).collect::<Vec<_>>(),
            [("all", 1)]
        );
        assert_eq!(watch.client_classes()[0].waits, 0);
    }

    #[test]
    fn waits_of_accounts_are_read_by_epoch() {
        let rules = Rules::default();
        let mut watch = Watch::start(&Settings::default(), &rules, &Roots::default()).unwrap();
        let page = Arc::clone(&watch.runtime.page);
        assert_eq!(watch.client_accounts(), []);
        let names = Names { user: NameHash::from_bytes(b"web"), ..Names::default() };
        let row = page.accounts().open(&names);
        page.accounts().waited(row, 1_000_000);
        page.accounts().waited(row, 1_000_000);
        let seen = watch.client_accounts();
        assert_eq!((seen.len(), seen[0].waits), (1, 2));
        assert_eq!(seen[0].name, "?@?", "no message has shown the names");
        assert_eq!(watch.client_accounts(), [], "none since");
    }
}
