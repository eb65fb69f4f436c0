//! Classes of clients at the gate of a server: as an agent sets them, and as they fare.

use super::seen::{Counts, class_of};
use lull_control::ClientClassObservation;
use lull_measure::Percentile;
use lull_oncall::{
    AddressPrefix, BYPASS_CLASS, BYPASS_RULES, CLASS_NAME_BYTES, CLIENT_CLASSES, CLIENT_RULES,
    ClassShare, ClientRule, GateEntry, NameHash, Names, Page, Record,
};
use std::io;

/// The name of the class of all clients that no class names.
pub const OTHER_CLIENTS: &str = "others";

/// The name under which all clients of a gate without classes are shown.
pub(super) const ALL_CLIENTS: &str = "all";

/// A class of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientClass {
    /// Its name.
    pub name: String,
    /// How it is served.
    pub share: ClassShare,
    /// Its clients: those that fit one of these. Without any, it is the class of all clients
    /// that fit no other class.
    pub clients: Vec<ClientMatch>,
}

/// Clients that have all that is named here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientMatch {
    /// The user of the server.
    pub user: Option<String>,
    /// The database at the login.
    pub database: Option<String>,
    /// The application, as its client names it.
    pub application: Option<String>,
    /// The client's address.
    pub from: Option<AddressPrefix>,
    /// The server's port.
    pub port: Option<u16>,
    /// The number of the user that runs the client, on a unix socket.
    pub unix_user: Option<u32>,
}

impl ClientMatch {
    fn rule(&self, class: u8) -> ClientRule {
        let hash = |name: &Option<String>| {
            name.as_ref()
                .map_or_else(NameHash::default, |name| NameHash::from_bytes(name.as_bytes()))
        };
        ClientRule {
            class,
            names: Names {
                user: hash(&self.user),
                database: hash(&self.database),
                application: hash(&self.application),
            },
            from: self.from,
            port: self.port,
            unix_user: self.unix_user,
        }
    }
}

/// Checks that a page can hold these classes of clients.
///
/// # Errors
/// The fault, and the index of the class.
pub fn check_client_classes(classes: &[ClientClass]) -> Result<(), (usize, String)> {
    let has_clients = |class: &&ClientClass| !class.clients.is_empty();
    for (at, class) in classes.iter().enumerate() {
        let before = &classes[..at];
        let fail = |message: String| Err((at, message));
        if class.name.is_empty() || class.name.len() > CLASS_NAME_BYTES {
            return fail(format!("needs a name of 1 to {CLASS_NAME_BYTES} bytes"));
        }
        if before.iter().any(|other| other.name == class.name) {
            return fail(format!("has the name `{}` of an earlier class", class.name));
        }
        let is_for_all = class.clients.is_empty();
        if is_for_all && before.iter().any(|other| other.clients.is_empty()) {
            return fail("is a second class of all other clients: write `match`".to_owned());
        }
        if !is_for_all && class.name == OTHER_CLIENTS {
            return fail(format!("`{OTHER_CLIENTS}` is the class of all other clients"));
        }
    }
    let most = CLIENT_CLASSES - 1;
    if classes.iter().filter(has_clients).count() > most {
        return Err((most, format!("is one too many: at most {most} classes have a `match`")));
    }
    if classes.iter().map(|class| class.clients.len()).sum::<usize>() > CLIENT_RULES {
        let last = classes.len() - 1;
        return Err((last, format!("has too many clients: at most {CLIENT_RULES} in all classes")));
    }
    Ok(())
}

/// Where users are, a line each: `NAME:x:NUMBER:...`.
const USERS: &str = "/etc/passwd";

/// Returns the number of a user by its name in `/etc/passwd`, or as it is written.
pub fn user_number(name: &str) -> Option<u32> {
    let users = || std::fs::read_to_string(USERS).unwrap_or_default();
    name.parse().ok().or_else(|| number_in(&users(), name))
}

fn number_in(users: &str, name: &str) -> Option<u32> {
    users.lines().find_map(|line| {
        let mut words = line.split(':');
        let is_it = words.next() == Some(name);
        words.nth(1).filter(|_| is_it)?.parse().ok()
    })
}

/// Returns the names of the classes of a gate in the order of their numbers: first that of all
/// other clients. None if it has no classes.
pub fn client_class_names(classes: &[ClientClass]) -> Vec<String> {
    numbered(classes).into_iter().map(|(name, _)| name.to_owned()).collect()
}

/// Returns name and share of each class in the order of their numbers.
fn numbered(classes: &[ClientClass]) -> Vec<(&str, ClassShare)> {
    if classes.is_empty() {
        return Vec::new();
    }
    let others = classes.iter().find(|class| class.clients.is_empty());
    let first = others
        .map_or((OTHER_CLIENTS, ClassShare::default()), |class| (class.name.as_str(), class.share));
    let rest = named(classes).map(|class| (class.name.as_str(), class.share));
    std::iter::once(first).chain(rest).collect()
}

/// Returns the classes that name their clients.
fn named(classes: &[ClientClass]) -> impl Iterator<Item = &ClientClass> {
    classes.iter().filter(|class| !class.clients.is_empty())
}

/// Writes the classes into a page, and the clients that bypass its gate; no classes end those that
/// it has.
pub(super) fn write(
    page: &Page,
    classes: &[ClientClass],
    bypass: &[ClientMatch],
) -> io::Result<()> {
    check_client_classes(classes).map_err(|(_, message)| io::Error::other(message))?;
    if bypass.len() > BYPASS_RULES {
        let message = format!("{} clients bypass the gate, more than {BYPASS_RULES}", bypass.len());
        return Err(io::Error::other(message));
    }
    let all = numbered(classes);
    let rules = named(classes)
        .enumerate()
        .flat_map(|(at, class)| class.clients.iter().map(move |it| it.rule((at + 1) as u8)));
    // The first rule that fits decides: a monitor of the network of a class does not wait.
    let bypass = bypass.iter().map(|clients| clients.rule(BYPASS_CLASS));
    let rules: Vec<ClientRule> = bypass.chain(rules).collect();
    // A page that never had rules keeps its version, so that its servers compare nothing.
    if !(classes.is_empty() && rules.is_empty()) || page.client_rules().version() != 0 {
        page.client_rules().set(&rules, all.iter().map(|(name, _)| *name));
        let shares: Vec<ClassShare> = all.iter().map(|(_, share)| *share).collect();
        page.client_classes().set(&shares);
    }
    Ok(())
}

/// How a class of clients fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassSeen {
    /// Its name.
    pub name: String,
    /// How it is served.
    pub share: ClassShare,
    /// Its connections.
    pub connections: usize,
    /// Its connections that run a query or have a transaction open, and do not wait.
    pub under_way: usize,
    /// Its connections that wait for a slot.
    pub waiting: usize,
    /// Turns that it has begun.
    pub turns: u64,
    /// How long those turns waited that did.
    pub waits: Counts,
}

/// Reads the classes of a page, whose counts are since the page was made; none if it has none.
pub(super) fn read(page: &Page) -> Vec<ClassSeen> {
    let (classes, gate) = (page.client_classes(), page.gate());
    let count = classes.count();
    if count == 0 {
        return Vec::new();
    }
    let mut all: Vec<ClassSeen> = (0..count)
        .map(|at| {
            let name = page.client_rules().name(at, &mut [0; CLASS_NAME_BYTES]).to_owned();
            let share = classes.share(at).unwrap_or_default();
            ClassSeen { share, turns: classes.turns(at), ..ClassSeen::empty(page, name, at) }
        })
        .collect();
    for (id, record) in page.records().filter(|(_, record)| record.pid() != 0) {
        let Some(entry) = gate.entry(id) else { continue };
        // A client that bypasses the gate is in none.
        if let Some(class) = all.get_mut(class_of(page, entry)) {
            class.count(entry, record);
        }
    }
    all
}

/// Reads all clients of a page without classes as one.
pub(super) fn read_all(page: &Page) -> ClassSeen {
    let gate = page.gate();
    let turns = page.control().counters().admissions;
    let mut all = ClassSeen { turns, ..ClassSeen::empty(page, ALL_CLIENTS.to_owned(), 0) };
    for (id, record) in page.records().filter(|(_, record)| record.pid() != 0) {
        if let Some(entry) = gate.entry(id) {
            all.count(entry, record);
        }
    }
    all
}

/// Whether a connection runs a query or has a transaction open.
pub(super) fn is_under_way(record: &Record) -> bool {
    record.pending_since_ns().is_some() || record.in_transaction()
}

impl ClassSeen {
    /// Creates the reading without connections and turns, with the waits of the class of this
    /// number.
    fn empty(page: &Page, name: String, at: usize) -> Self {
        let waits = page.class_waits(at).map(|waits| Counts::read(waits.counts()));
        Self {
            name,
            share: ClassShare::default(),
            connections: 0,
            under_way: 0,
            waiting: 0,
            turns: 0,
            waits: waits.unwrap_or_default(),
        }
    }

    /// Counts a connection.
    fn count(&mut self, entry: &GateEntry, record: &Record) {
        self.connections += 1;
        self.waiting += usize::from(entry.is_waiting());
        self.under_way += usize::from(!entry.is_waiting() && is_under_way(record));
    }

    /// Subtracts the counts of an earlier reading.
    pub fn subtract(&mut self, before: &Self) {
        self.turns = self.turns.wrapping_sub(before.turns);
        self.waits.subtract(&before.waits);
    }

    /// Returns the part that is shown and recorded.
    pub(super) fn summary(self) -> ClientClassObservation {
        let wait_quantiles =
            self.waits.quantile(Percentile::P50).zip(self.waits.quantile(Percentile::P99));
        ClientClassObservation {
            name: self.name,
            connections: self.connections as u64,
            under_way: self.under_way as u64,
            waiting: self.waiting as u64,
            turns: self.turns,
            waits: self.waits.count(),
            wait_quantiles,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oncall::{Rules, Runtime};
    use lull_oncall::{Client, Id, Peer, Settings};

    fn class(name: &str, weight: u32, clients: Vec<ClientMatch>) -> ClientClass {
        let share = ClassShare { weight, ..ClassShare::default() };
        ClientClass { name: name.to_owned(), share, clients }
    }

    fn user(name: &str) -> ClientMatch {
        ClientMatch { user: Some(name.to_owned()), ..ClientMatch::default() }
    }

    fn runtime(client_classes: Vec<ClientClass>) -> io::Result<Runtime> {
        Runtime::start(&Settings::default(), &Rules { client_classes, ..Rules::default() })
    }

    #[test]
    fn classes_are_read_from_the_page_with_the_clients_that_they_have() {
        let classes =
            vec![class("web", 4, vec![user("web"), user("shop")]), class("rest", 2, vec![])];
        assert_eq!(client_class_names(&classes), ["rest", "web"]);
        let runtime = runtime(classes).unwrap();
        let page = &runtime.page;
        let names = Names { user: NameHash::from_bytes(b"shop"), ..Names::default() };
        let client = Client { names, ..Client::default() };
        assert_eq!(page.client_rules().classify(&client).unwrap().0, 1);
        for (id, at) in [(0, 1), (1, 0), (2, 77), (3, BYPASS_CLASS.into())] {
            assert_eq!(page.header().offer_record(), Id(id));
            assert!(page.record(Id(id)).unwrap().claim(1, 3, Peer::default(), 0));
            page.gate().entry(Id(id)).unwrap().set_client_class(at);
        }
        page.record(Id(0)).unwrap().query_arrived(1, 5);
        page.turn_waited(Id(0), 5_000_000);
        page.turn_waited(Id(2), 5_000_000);
        // The last connection bypasses the gate, and is none of a class.
        let seen = runtime.client_classes();
        let names: Vec<_> = seen.iter().map(|one| (one.name.as_str(), one.share.weight)).collect();
        assert_eq!(names, [("rest", 2), ("web", 4)]);
        let counts: Vec<_> =
            seen.iter().map(|it| (it.connections, it.under_way, it.waits.count())).collect();
        assert_eq!(counts, [(2, 0, 1), (1, 1, 1)], "no class: the first");
        let connections = runtime.statistics().connections();
        let classes: Vec<_> = connections.iter().map(|one| one.client_class).collect();
        assert_eq!(classes, [1, 0, 0, usize::from(BYPASS_CLASS)]);
    }

    #[test]
    fn a_page_without_classes_has_none_and_keeps_the_version_of_its_rules() {
        let runtime = runtime(vec![]).unwrap();
        assert_eq!(client_class_names(&[]), [""; 0]);
        assert_eq!(runtime.client_classes(), []);
        assert_eq!(runtime.page.client_rules().version(), 0);
    }

    #[test]
    fn all_clients_of_a_page_without_classes_are_read_as_one() {
        let runtime = runtime(vec![]).unwrap();
        let page = &runtime.page;
        for id in [Id(0), Id(1)] {
            assert_eq!(page.header().offer_record(), id);
            assert!(page.record(id).unwrap().claim(1, 3, Peer::default(), 0));
        }
        page.record(Id(0)).unwrap().query_arrived(1, 5);
        page.turn_waited(Id(1), 5_000_000);
        let all = read_all(page);
        assert_eq!((all.name.as_str(), all.connections), (ALL_CLIENTS, 2));
        assert_eq!((all.under_way, all.waiting, all.waits.count()), (1, 0, 1));
    }

    #[test]
    fn a_user_has_the_number_behind_its_name() {
        let users = "root:x:0:0:root:/root:/bin/bash\nmysql:x:106:110::/var:/bin/false\nodd:x\n";
        assert_eq!(number_in(users, "mysql"), Some(106));
        assert_eq!(number_in(users, "root"), Some(0));
        for unknown in ["odd", "mysq", "x", ""] {
            assert_eq!(number_in(users, unknown), None, "{unknown}");
        }
        assert_eq!(user_number("1000"), Some(1000));
    }

    #[test]
    fn classes_that_no_page_can_hold_are_refused() {
        let error = |classes: &[ClientClass]| check_client_classes(classes).unwrap_err().1;
        let one = class("web", 1, vec![user("web")]);
        assert!(error(&[class("", 1, vec![])]).contains("name"));
        assert!(error(&[one.clone(), one.clone()]).contains("earlier"));
        assert!(error(&[class("a", 1, vec![]), class("b", 1, vec![])]).contains("second"));
        assert!(error(&[class(OTHER_CLIENTS, 1, vec![user("web")])]).contains("all other"));
        let many = |count: usize| -> Vec<_> {
            (0..count).map(|at| class(&format!("c{at}"), 1, vec![user("a")])).collect()
        };
        assert!(error(&many(CLIENT_CLASSES)).contains("too many"));
        assert!(error(&[class("web", 1, vec![user("a"); CLIENT_RULES + 1])]).contains("too many"));
        assert_eq!(check_client_classes(&many(CLIENT_CLASSES - 1)), Ok(()));
        assert!(runtime(many(CLIENT_CLASSES)).is_err());
    }
}
