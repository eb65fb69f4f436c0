//! Classes of clients at a database: shares by user, and changes of class.

use super::gate::gate;
use super::*;
use crate::support::http::{address_of, get};
use std::io::{Read, Write};

/// Two classes by user, the first with four times the weight.
pub(in crate::exec) const WEB_AND_BATCH: [&str; 4] = [
    "--client-class",
    r#"name = "web", weight = 4, match = [{ user = "web" }]"#,
    "--client-class",
    r#"name = "batch", weight = 1, match = [{ user = "batch" }]"#,
];

/// Returns a number of a class in the state of a gate.
pub(in crate::exec) fn of_client_class(state: &Value, class: &str, key: &str) -> u64 {
    let classes = state["client_classes"].as_array().unwrap();
    let found = classes.iter().find(|one| one["name"] == class);
    found.unwrap_or_else(|| panic!("no class {class}: {state}"))[key].as_u64().unwrap()
}

/// Waits until both classes are saturated, and then until `web` has had 400 turns more. Asserts
/// that it had a larger share than `batch`, which had one, too.
pub(in crate::exec) fn assert_shares(mut state: impl FnMut() -> Value) {
    let mut first = Value::Null;
    wait_for("clients of both classes at the gate", || {
        first = state();
        ["web", "batch"].iter().all(|class| {
            of_client_class(&first, class, "connections") >= 6
                && of_client_class(&first, class, "turns") > 0
        })
    });
    let mut last = Value::Null;
    let had = |last: &Value, class| {
        of_client_class(last, class, "turns") - of_client_class(&first, class, "turns")
    };
    wait_for("turns", || {
        last = state();
        had(&last, "web") >= 400
    });
    let (web, batch) = (had(&last, "web"), had(&last, "batch"));
    assert!(batch > 0, "the class of lower weight starves: {last}");
    // Four to one, except for turns in which one of them had no waiting connection.
    assert!(web > 2 * batch, "{web} to {batch} turns: {last}");
    assert!(of_client_class(&last, "batch", "waits") > 0, "{last}");
}

/// Clients that are ended with the test.
pub(super) struct Clients(Vec<Child>);

impl Drop for Clients {
    fn drop(&mut self) {
        for client in &mut self.0 {
            let _ = client.kill();
            let _ = client.wait();
        }
    }
}

impl Database {
    pub(super) fn add_users(&self) {
        for user in ["web", "batch"] {
            self.admin(&format!("create user {user}; grant all on sbtest.* to {user}"));
        }
    }

    /// Clients of a user, each with many short transactions.
    pub(super) fn crowd(&self, user: &str, clients: usize) -> Clients {
        let client = |_| {
            let port = format!("--port={}", self.server.port);
            let mut client = Command::new("mariadb");
            let user = format!("--user={user}");
            client.args(["-N", &user, "--host=127.0.0.1", &port, "--skip-ssl", "sbtest"]);
            client.args(["-e", &"do sleep(0.001);".repeat(4000)]);
            client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        Clients((0..clients).map(client).collect())
    }
}

#[test]
fn two_users_share_a_saturated_gate_by_their_weights_and_neither_starves() {
    let scene = Scene::new();
    let options = [&["--concurrency", "2"][..], &WEB_AND_BATCH].concat();
    let database = Database::start(&scene, &options);
    database.add_users();
    let pid = database.pid().to_string();
    let (web, batch) = (database.crowd("web", 8), database.crowd("batch", 8));
    assert_shares(|| gate(&scene, "status", &pid));
    let text = scene.run(&["gate", "status", &pid]).well().out;
    assert!(text.contains("class     web: weight 4"), "{text}");
    drop((web, batch));
    let seen = database.server.seen();
    let by_class = |class: &str| {
        let all = seen["by_connection"].as_array().unwrap();
        all.iter().filter(|one| one["client_class"] == class).count()
    };
    assert_eq!((by_class("web"), by_class("batch")), (8, 8), "{seen}");
    assert!(of_client_class(&seen, "web", "turns") >= 400, "{seen}");
}

#[test]
fn a_connection_of_a_class_with_a_promise_has_more_turns_than_others_behind_pslo_and_utslo() {
    for (admission, objective) in [("pslo", "p95 = \"20ms\""), ("utslo", "disengagement = 0.001")] {
        let scene = Scene::new();
        let promise =
            format!("client_class = \"web\", connections = 2, objective = {{ {objective} }}");
        let class = r#"name = "web", match = [{ user = "web" }]"#;
        let gate_options = ["--concurrency", admission, "--key", "cap=1", "--promise", &promise];
        let options = [&gate_options[..], &["--client-class", class]].concat();
        let database = Database::start(&scene, &options);
        database.add_users();
        let pid = database.pid().to_string();
        let clients = (database.crowd("web", 2), database.crowd("batch", 48));
        let mut first = Value::Null;
        wait_for("clients of both classes at the gate", || {
            first = gate(&scene, "status", &pid);
            let of = |class: &str, key: &str| of_client_class(&first, class, key);
            of("web", "connections") == 2 && of("others", "connections") >= 48
        });
        let (mut web, mut others) = (0, 0);
        wait_for("turns", || {
            let last = gate(&scene, "status", &pid);
            let had = |class: &str| {
                of_client_class(&last, class, "turns") - of_client_class(&first, class, "turns")
            };
            (web, others) = (had("web"), had("others"));
            web + others >= 1000
        });
        drop(clients);
        // In rotation each would have one of 50 turns, and wait for longer than its objective
        // allows.
        assert!(web * 48 > others * 2, "{admission}: {web} of 2 connections to {others} of 48");
    }
}

#[test]
fn clients_without_a_promise_that_return_after_a_pause_are_not_starved() {
    let scene = Scene::new();
    let class = r#"name = "web", match = [{ user = "web" }]"#;
    let promise = r#"client_class = "web", connections = 1, objective = { p95 = "20ms" }"#;
    let keys = ["--key", "cap=1", "--key", "answers=20", "--key", r#"period="200ms""#];
    let gate_options = ["--concurrency", "pslo", "--promise", promise, "--longest-wait", "5s"];
    let options = [&gate_options[..], &keys, &["--client-class", class]].concat();
    let database = Database::start(&scene, &options);
    database.add_users();
    let pid = database.pid().to_string();
    let turns = || of_client_class(&gate(&scene, "status", &pid), "others", "turns");
    let mut web = Session::log_in(database.server.port, "web", "shop");
    let others = database.crowd("batch", 12);
    wait_for("turns of the others", || turns() >= 50);
    // The objective is missed, so that the others have a limited rate from now on.
    (0..10).for_each(|_| web.query("do sleep(0.03)"));
    drop(others);
    // The objective is met while the others pause.
    (0..100).for_each(|_| web.query("do 1"));
    let before = turns();
    let others = database.crowd("batch", 12);
    wait_for("turns of the others after a pause", || turns() >= before + 200);
    drop(others);
    let seen = database.server.seen();
    assert_eq!(seen["gate"]["waited_too_long"], 0, "{seen}");
}

#[test]
fn a_run_has_its_classes_of_clients_in_metrics_and_record() {
    let scene = Scene::new();
    let classes = "concurrency = { name = \"manual\", cap = 2 }\n\
                   client_class = [{ name = \"admin\", match = [{ user = \"root\" }] }]";
    let (mut agent, port) = run_for(&scene, classes, &["--http", "127.0.0.1:0"]);
    let address = address_of(&mut agent);
    let count = |name: &str| {
        let start = format!("{name}{{app=\"db\",client_class=\"admin\"}} ");
        let metrics = get(&address, "/metrics").body;
        metrics.lines().find_map(|line| line.strip_prefix(&start)?.parse::<f64>().ok())
    };
    wait_for("turns and waits of the class", || {
        let clients: Vec<Child> =
            (0..6).map(|_| client(port, "mysql", &"do sleep(0.001);".repeat(20))).collect();
        clients.into_iter().map(ended).for_each(drop);
        let at_least_one = |name: &str| count(name).is_some_and(|count| count > 0.0);
        at_least_one("lull_client_turns_total") && at_least_one("lull_client_waits_total")
    });
    assert!(count("lull_client_connections").is_some(), "a gauge of the same labels");
    let epoch = get(&address, "/api/epoch").json();
    let gate = &epoch["gates"][0];
    let limit = "2 transactions at a time";
    assert_eq!((&gate["app"], &gate["limit"]), (&"db".into(), &limit.into()), "{epoch}");
    assert_eq!(gate["decision"], format!("manual: {limit}"), "{epoch}");
    assert!(gate["waiting"].is_number() && gate["under_way"].is_number(), "{epoch}");
    agent.signal(Signal::INT);
    agent.wait().well();
    let record = Record::open(&scene.records()[0]);
    let rows = "SELECT count(*) FROM client_class_epochs WHERE app = 'db' AND client_class = ";
    let turns = format!("{rows}'admin' AND client_turns_per_second > 0");
    let waits = format!("{rows}'admin' AND client_wait_p99_seconds > 0");
    assert!(record.number(&turns) > 0 && record.number(&waits) > 0);
    assert!(record.number(&format!("{rows}'others'")) > 0, "the class of all others");
    scene.wait_until_quiet();
}

/// A connection whose packets a test writes itself, to change its user.
pub(super) struct Session(TcpStream);

const PROTOCOL_41: u32 = 0x200;
const SECURE_CONNECTION: u32 = 0x8000;
const CONNECT_WITH_DB: u32 = 8;
const PLUGIN_AUTH: u32 = 1 << 19;
const CONNECT_ATTRS: u32 = 1 << 20;
const PLUGIN: &[u8] = b"mysql_native_password\0";

impl Session {
    pub(super) fn log_in(port: u16, user: &str, program: &str) -> Self {
        let mut session = Self(TcpStream::connect(("127.0.0.1", port)).unwrap());
        session.read();
        let capabilities =
            PROTOCOL_41 | SECURE_CONNECTION | CONNECT_WITH_DB | PLUGIN_AUTH | CONNECT_ATTRS;
        let mut login = capabilities.to_le_bytes().to_vec();
        login.extend((1_u32 << 24).to_le_bytes());
        login.push(45);
        login.extend([0; 23]);
        login.extend(Self::names(user, &[]));
        login.extend(PLUGIN);
        login.extend(Self::attributes(program));
        session.send(1, &login);
        session
    }

    /// User, empty password, database and, for a change of user, a character set.
    fn names(user: &str, character_set: &[u8]) -> Vec<u8> {
        [user.as_bytes(), b"\0\0sbtest\0", character_set].concat()
    }

    fn attributes(program: &str) -> Vec<u8> {
        let pair = ["program_name", program];
        let counted = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
        let pair: Vec<u8> = pair.into_iter().flat_map(counted).collect();
        [&[pair.len() as u8][..], &pair].concat()
    }

    pub(super) fn change_user(&mut self, user: &str, program: &str) {
        let names = Self::names(user, &45_u16.to_le_bytes());
        let change = [&[0x11], &names[..], PLUGIN, &Self::attributes(program)].concat();
        self.send(0, &change);
    }

    pub(super) fn query(&mut self, sql: &str) {
        self.send(0, &[&[3], sql.as_bytes()].concat());
    }

    /// Sends a packet and reads the OK that answers it. If the server requests the password again,
    /// the empty password is sent again.
    fn send(&mut self, sequence: u8, payload: &[u8]) {
        self.write(sequence, payload);
        let (sequence, mut answer) = self.read();
        if answer.first() == Some(&0xfe) {
            self.write(sequence + 1, &[]);
            (_, answer) = self.read();
        }
        assert_eq!(answer.first(), Some(&0), "{}", String::from_utf8_lossy(&answer));
    }

    fn write(&mut self, sequence: u8, payload: &[u8]) {
        let length = (payload.len() as u32).to_le_bytes();
        let packet = [&length[..3], &[sequence], payload].concat();
        self.0.write_all(&packet).unwrap();
    }

    /// Reads a packet; returns its sequence and its payload.
    fn read(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 4];
        self.0.read_exact(&mut head).unwrap();
        let mut payload = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
        self.0.read_exact(&mut payload).unwrap();
        (head[3], payload)
    }
}

#[test]
fn a_client_is_of_the_class_of_its_user_program_and_address_until_one_changes() {
    let scene = Scene::new();
    let report = r#"name = "report", match = [{ user = "web", application = "report" }]"#;
    let local = r#"name = "local", match = [{ from = "127.0.0.0/8", database = "sbtest" }]"#;
    let [class, web, ..] = WEB_AND_BATCH;
    let classes = [class, report, class, web, class, local, "--concurrency", "4"];
    let database = Database::start(&scene, &classes);
    database.add_users();
    let pid = database.pid().to_string();
    let of = |name: &str| of_client_class(&gate(&scene, "status", &pid), name, "connections");
    let mut session = Session::log_in(database.server.port, "web", "shop");
    session.query("do 1");
    assert_eq!((of("web"), of("report"), of("local")), (1, 0, 0));
    session.change_user("web", "report");
    assert_eq!((of("web"), of("report")), (0, 1));
    session.change_user("batch", "report");
    session.query("do 1");
    assert_eq!((of("report"), of("local")), (0, 1), "by its address and database");
    assert!(of_client_class(&gate(&scene, "status", &pid), "local", "turns") > 0);
    drop(session);
}

#[test]
fn an_agent_that_attaches_with_other_classes_puts_open_connections_into_them() {
    let scene = Scene::new();
    let database = attach::free(&scene);
    database.add_users();
    let mut session = Session::log_in(database.server.port, "web", "shop");
    let of = |name: &str| of_client_class(&gate(&scene, "status", "page/"), name, "connections");
    let agent = attach::attached(&scene, &[&["--concurrency", "1"][..], &WEB_AND_BATCH].concat());
    session.query("do 1");
    assert_eq!(of("web"), 1);
    agent.interrupt().well();
    let [class, _, _, batch] = WEB_AND_BATCH;
    let agent = attach::attached(&scene, &["--concurrency", "1", class, batch]);
    session.query("do 1");
    assert_eq!((of("others"), of("batch")), (1, 0));
    agent.interrupt().well();
    let agent = attach::attached(&scene, &["--concurrency", "1"]);
    assert_eq!(gate(&scene, "status", "page/")["client_classes"], serde_json::json!([]));
    session.query("do 1");
    agent.interrupt().well();
}
