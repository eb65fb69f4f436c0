//! Clients that bypass a gate unless a config says otherwise: monitors, replication, cluster
//! managers and administrators.
//!
//! These clients check the health of a server, or repair it. A monitor whose query waits at a
//! saturated gate reports a server as dead that is only busy, and a cluster manager then moves its
//! load to another one. Their queries are few, so that the gate loses nothing by letting them
//! pass. A superuser that logs in over TCP is not among them, because applications do so, too.
//!
//! Replication itself needs no rule, because the protocols show it (`lull_oncall::protocol`).

use super::classes::{ClientClass, ClientMatch, user_number};
use lull_oncall::BYPASS_RULES;

/// The most clients that a config adds to [`DEFAULT_BYPASS`].
pub const BYPASS_MAX: usize = BYPASS_RULES - DEFAULT_BYPASS.len();

/// Clients that bypass a gate by default: all that is named here must fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultBypass {
    /// The user of the server.
    pub user: Option<&'static str>,
    /// The application, as its client names it.
    pub application: Option<&'static str>,
    /// The user that runs the client, on a unix socket.
    pub unix_user: Option<&'static str>,
    /// The activity of these clients.
    pub what: &'static str,
}

const fn user(name: &'static str, what: &'static str) -> DefaultBypass {
    DefaultBypass { user: Some(name), application: None, unix_user: None, what }
}

const fn application(name: &'static str, what: &'static str) -> DefaultBypass {
    DefaultBypass { user: None, application: Some(name), unix_user: None, what }
}

/// An account of the server that the user of the same name uses over a unix socket.
const fn local(name: &'static str, what: &'static str) -> DefaultBypass {
    DefaultBypass { user: Some(name), application: None, unix_user: Some(name), what }
}

const METRICS: &str = "reads the server's metrics";
const CHECK: &str = "checks whether the server is alive";
const REPLICA: &str = "reads the server's state before it replicates";
const MANAGER: &str = "manages a cluster";
const ADMIN: &str = "administrates the server";

/// The clients that bypass a gate by default; `docs/on-call.md` has the same list.
pub const DEFAULT_BYPASS: &[DefaultBypass] = &[
    user("mysqld_exporter", METRICS),
    user("postgres_exporter", METRICS),
    user("exporter", METRICS),
    user("pmm", METRICS),
    user("datadog", METRICS),
    user("newrelic", METRICS),
    user("netdata", METRICS),
    user("telegraf", METRICS),
    user("zbx_monitor", METRICS),
    user("nagios", METRICS),
    user("monitor", CHECK),
    user("monitor_user", CHECK),
    user("haproxy", CHECK),
    user("maxscale", CHECK),
    user("proxysql_monitor", CHECK),
    user("clustercheck", CHECK),
    user("clustercheckuser", CHECK),
    user("pgpool", CHECK),
    user("pgbouncer", "reads passwords for logins"),
    user("sstuser", "copies a node of Galera"),
    user("repl", REPLICA),
    user("replica", REPLICA),
    user("replication", REPLICA),
    user("replicator", REPLICA),
    application("mysqld", REPLICA),
    user("orchestrator", MANAGER),
    user("patroni", MANAGER),
    user("rewind_user", MANAGER),
    user("repmgr", MANAGER),
    application("Patroni heartbeat", MANAGER),
    application("Patroni restapi", MANAGER),
    application("repmgr", MANAGER),
    user("debian-sys-maint", ADMIN),
    application("mysqladmin", ADMIN),
    local("root", ADMIN),
    local("mysql", ADMIN),
    local("postgres", ADMIN),
];

impl DefaultBypass {
    /// Returns the clients in the form of a gate; `None` if the machine has no such user.
    fn clients(&self) -> Option<ClientMatch> {
        let unix_user = match self.unix_user {
            Some(name) => Some(user_number(name)?),
            None => None,
        };
        Some(ClientMatch {
            user: self.user.map(str::to_owned),
            application: self.application.map(str::to_owned),
            unix_user,
            ..ClientMatch::default()
        })
    }

    /// Whether a class names the same user or application.
    fn is_named_in(&self, clients: &ClientMatch) -> bool {
        let is = |ours: Option<&str>, theirs: &Option<String>| {
            ours.is_some() && ours == theirs.as_deref()
        };
        is(self.user, &clients.user) || is(self.application, &clients.application)
    }
}

/// Returns the clients that bypass a gate with these classes by default: those of
/// [`DEFAULT_BYPASS`] whose user or application no class names.
pub fn default_bypass(classes: &[ClientClass]) -> Vec<ClientMatch> {
    let is_free = |one: &&DefaultBypass| {
        let mut named = classes.iter().flat_map(|class| &class.clients);
        !named.any(|clients| one.is_named_in(clients))
    };
    DEFAULT_BYPASS.iter().filter(is_free).filter_map(DefaultBypass::clients).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oncall::{Rules, Runtime};
    use lull_oncall::protocol::{Protocol, Reader};
    use lull_oncall::{BYPASS_CLASS, ClassShare, Client, Names, Settings};

    /// Reads the first message of a client.
    fn names_in(protocol: Protocol, message: &[u8]) -> Names {
        let mut names = Names::default();
        Reader::new(protocol).received(message, &mut names);
        names
    }

    fn postgres(user: &str, application: &str) -> Names {
        let pairs = format!("user\0{user}\0database\0app\0application_name\0{application}\0\0");
        let length = (pairs.len() as u32 + 8).to_be_bytes();
        let message = [&length[..], &196_608_u32.to_be_bytes(), pairs.as_bytes()].concat();
        names_in(Protocol::Postgres, &message)
    }

    /// A login with `CLIENT_PROTOCOL_41`, `CLIENT_SECURE_CONNECTION`, `CLIENT_CONNECT_WITH_DB`,
    /// `CLIENT_PLUGIN_AUTH` and `CLIENT_CONNECT_ATTRS`.
    fn mysql(user: &str, program: &str) -> Names {
        let capabilities: u32 = 0x200 | 0x8000 | 8 | 1 << 19 | 1 << 20;
        let counted = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
        let attributes = [counted("program_name"), counted(program)].concat();
        let payload = [
            &capabilities.to_le_bytes()[..],
            &[0; 28],
            user.as_bytes(),
            b"\0\0app\0mysql_native_password\0",
            &[attributes.len() as u8],
            &attributes,
        ];
        let payload = payload.concat();
        let header = [payload.len() as u8, 0, 0, 1];
        names_in(Protocol::Mysql, &[&header[..], &payload].concat())
    }

    fn runtime(client_classes: Vec<ClientClass>) -> Runtime {
        let bypass = default_bypass(&client_classes);
        let rules = Rules { client_classes, bypass, ..Rules::default() };
        Runtime::start(&Settings::default(), &rules).unwrap()
    }

    fn bypasses(runtime: &Runtime, names: Names, unix_user: Option<u32>) -> bool {
        let client = Client { names, unix_user, ..Client::default() };
        let (class, _) = runtime.page.client_rules().classify(&client).unwrap();
        class == u32::from(BYPASS_CLASS)
    }

    #[test]
    fn each_client_of_the_list_bypasses_the_gate_by_the_bytes_of_its_login() {
        let runtime = runtime(Vec::new());
        for one in DEFAULT_BYPASS.iter().filter(|one| one.unix_user.is_none()) {
            let (user, application) = (one.user.unwrap_or("x"), one.application.unwrap_or("y"));
            assert!(bypasses(&runtime, postgres(user, application), None), "{one:?}");
            assert!(bypasses(&runtime, mysql(user, application), None), "{one:?}");
        }
        for (user, application) in [("shop", "shop"), ("postgres", "psql"), ("root", "mysql")] {
            assert!(!bypasses(&runtime, postgres(user, application), None), "{user} over TCP");
            assert!(!bypasses(&runtime, mysql(user, application), None), "{user} over TCP");
        }
    }

    #[test]
    fn an_administrator_bypasses_the_gate_over_a_unix_socket_only() {
        let runtime = runtime(Vec::new());
        assert!(bypasses(&runtime, mysql("root", "mysql"), Some(0)));
        assert!(!bypasses(&runtime, mysql("root", "mysql"), Some(54_321)), "another user");
        assert!(!bypasses(&runtime, mysql("shop", "shop"), Some(0)), "another account");
    }

    #[test]
    fn an_account_that_a_class_names_waits_with_its_class_and_a_network_does_not_end_a_bypass() {
        let class = |name: &str, clients: ClientMatch| ClientClass {
            name: name.to_owned(),
            share: ClassShare::default(),
            clients: vec![clients],
        };
        let by_user = ClientMatch { user: Some("monitor".to_owned()), ..ClientMatch::default() };
        let by_database =
            ClientMatch { database: Some("app".to_owned()), ..ClientMatch::default() };
        let runtime = runtime(vec![class("own", by_user), class("all", by_database)]);
        assert!(!bypasses(&runtime, mysql("monitor", "x"), None));
        assert!(bypasses(&runtime, mysql("haproxy", "x"), None), "of the database of a class");
    }

    #[test]
    fn a_page_without_the_list_lets_none_of_it_pass() {
        let runtime = Runtime::start(&Settings::default(), &Rules::default()).unwrap();
        assert!(!bypasses(&runtime, mysql("monitor", "mysqladmin"), Some(0)));
        let too_many = vec![ClientMatch::default(); BYPASS_RULES + 1];
        let rules = Rules { bypass: too_many, ..Rules::default() };
        assert!(Runtime::start(&Settings::default(), &rules).is_err());
    }

    #[test]
    fn the_documentation_names_each_client_of_the_list() {
        let page = include_str!("../../../../docs/on-call.md");
        for one in DEFAULT_BYPASS {
            for name in [one.user, one.application].into_iter().flatten() {
                assert!(page.contains(&format!("`{name}`")), "{name}: {}", one.what);
            }
        }
    }
}
