//! The page, its JSON, its events and its orders, as any HTTP client uses them.

use crate::runs::started;
use crate::support::agent::Agent;
use crate::support::http::{Viewer, address_of, exchange, get, get_as, order};
use crate::support::record::{Record, epochs_so_far};
use crate::support::scene::Scene;
use crate::support::{cores, free_port, skip};
use serde_json::{Value, json};
use std::io::Write;

/// An agent that serves its page at a free port.
pub(crate) fn serving(scene: &Scene, policy: &str, agent: &str) -> (Agent, String) {
    let lines = format!("http = \"127.0.0.1:0\"\n{agent}");
    let mut agent = scene.agent(&scene.config(&lines, &started(policy, free_port())));
    let address = address_of(&mut agent);
    agent.wait_for("an epoch", || get(&address, "/api/epoch").status == 200);
    (agent, address)
}

#[test]
fn page_json_and_metrics_are_served_and_say_the_same() {
    let scene = Scene::new();
    let (agent, address) = serving(&scene, "arq", "");
    let page = get(&address, "/");
    assert_eq!(page.status, 200);
    assert!(page.head.contains("text/html") && page.body.contains("<title>Lull</title>"));
    assert!(page.head.contains("content-security-policy: default-src 'none'"), "{}", page.head);
    let run = get(&address, "/api/run").json();
    let apps: Vec<_> = run["apps"].as_array().unwrap().iter().map(|app| &app["name"]).collect();
    assert_eq!(apps, ["server", "burner"]);
    assert_eq!((&run["control"], &run["apps"][0]["percentile"]), (&json!(false), &json!("p95")));
    let past = get(&address, "/api/history?series=cpu_ratio,region_cores&epochs=2").json();
    let epochs = past["times_s"].as_array().unwrap().len();
    assert!((1..=2).contains(&epochs));
    assert_eq!(past["values"]["cpu_ratio"]["burner"].as_array().unwrap().len(), epochs);
    assert_eq!(past["values"].as_object().unwrap().len(), 2, "only what was asked for");
    let regions = past["values"]["region_cores"].as_object().unwrap();
    let in_all: f64 = regions.values().map(|column| column[0].as_f64().unwrap()).sum();
    assert_eq!(in_all, cores() as f64, "every core is of one region");
    let epoch = get(&address, "/api/epoch").json();
    assert_eq!(epoch["policy"], "arq");
    let missing = get(&address, "/api/missing").json();
    assert!(missing.as_array().unwrap().iter().all(|one| one[2].is_string()), "{missing}");
    metrics_are_of_the_catalogue(&scene, &address);
    agent.interrupt().well();
    scene.wait_until_quiet();
}

fn metrics_are_of_the_catalogue(scene: &Scene, address: &str) {
    let ask = |accept: &str| {
        let head = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
        exchange(address, &format!("{head}Accept: {accept}\r\n\r\n"))
    };
    let new = ask("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
    assert!(new.head.contains("application/openmetrics-text"), "{}", new.head);
    assert!(new.body.ends_with("# EOF\n"));
    assert!(ask("*/*").head.contains("text/plain; version=0.0.4"));
    let listed = scene.run(&["metrics", "--json"]).well().json();
    let known: Vec<&str> =
        listed.as_array().unwrap().iter().filter_map(|one| one["prometheus"].as_str()).collect();
    for line in new.body.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let is_of_agent = ["lull_agent", "lull_epoch_age_seconds"].contains(&name)
            || name.starts_with("lull_request_latency_seconds_");
        assert!(known.contains(&name) || is_of_agent, "{line}");
        assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
    }
    assert!(new.body.contains("lull_epoch_age_seconds 0."), "{}", new.body);
    assert!(new.body.contains("lull_cpu_ratio{app=\"server\"}"), "{}", new.body);
}

#[test]
fn what_is_not_of_this_agent_is_refused() {
    let scene = Scene::new();
    let (agent, address) = serving(&scene, "unmanaged", "http_names = [\"box.lan\"]");
    let port = address.rsplit(':').next().unwrap();
    for host in ["evil.example", "127.0.0.1.evil.example", "localhost.evil:80"] {
        for path in ["/", "/api/run", "/api/events", "/metrics"] {
            let answer = get_as(&address, host, path);
            assert_eq!(answer.status, 421, "{host} {path}");
            assert!(!answer.body.contains("server"), "{answer:?}");
        }
    }
    for host in ["localhost", &format!("[::1]:{port}"), "box.lan:1"] {
        assert_eq!(get_as(&address, host, "/api/run").status, 200, "{host}");
    }
    for head in [
        format!("GET /api/run HTTP/1.1\r\nHost: {address}\r\nHost: evil.example\r\n"),
        format!("GET http://evil.example/api/run HTTP/1.1\r\nHost: {address}\r\n"),
    ] {
        let answer = exchange(&address, &format!("{head}Connection: close\r\n\r\n"));
        assert!([400, 421].contains(&answer.status), "{head}: {answer:?}");
    }
    let nameless = exchange(&address, "GET /api/run HTTP/1.0\r\n\r\n");
    assert_eq!(nameless.status, 400);
    let paths = [
        "/../Cargo.toml",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/vendor/../../lull.toml",
        "//etc/passwd",
        "/vendor",
        "/api/../../etc/passwd",
    ];
    for path in paths {
        assert_eq!(get(&address, path).status, 404, "{path}");
    }
    assert_eq!(exchange(&address, "rubbish\r\n\r\n").status, 400);
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(100_000));
    assert!(matches!(exchange(&address, &long).status, 0 | 414 | 431));
    assert_eq!(get(&address, "/api/history?epochs=many").status, 400);
    let headers = ["Content-Type: application/json"];
    let answer = order(&address, &headers, r#"{"do":"pause"}"#);
    assert_eq!(answer.status, 403, "orders were not asked for");
    assert!(answer.body.contains("--control"));
    assert_eq!(get(&address, "/api/run").status, 200, "still at work");
    agent.interrupt().well();
    scene.wait_until_quiet();
}

/// Idle streams and unfinished heads took all connections, so that `/metrics` did not answer.
#[test]
fn metrics_and_health_answer_beside_idle_streams_and_slow_heads() {
    let scene = Scene::new();
    let (agent, address) = serving(&scene, "unmanaged", "");
    let open = |bytes: &str| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        stream.write_all(bytes.as_bytes()).unwrap();
        stream
    };
    let ask = format!("GET /api/events HTTP/1.1\r\nHost: {address}\r\n\r\n");
    let viewers: Vec<_> = (0..260).map(|_| open(&ask)).collect();
    // A server without room closes the connection, which is status 0 here.
    let all_answer = || {
        for path in ["/metrics", "/healthz", "/api/epoch"] {
            let answer = get(&address, path);
            assert_eq!(answer.status, 200, "{path}: {answer:?}");
        }
    };
    all_answer();
    let refused = get(&address, "/api/events");
    assert_eq!(refused.status, 429, "{refused:?}");
    let heads: Vec<_> = (0..500).map(|_| open("GET / HTTP/1.1\r\nHost: ")).collect();
    all_answer();
    let health = get(&address, "/healthz").json();
    assert_eq!(health["status"], "ok");
    assert!(health["epoch_age_seconds"].as_f64().unwrap() < 60.0, "{health}");
    drop((viewers, heads));
    agent.interrupt().well();
    scene.wait_until_quiet();
}

#[test]
fn a_port_in_use_is_an_error_before_anything_starts() {
    let scene = Scene::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let config = scene.config("", &started("arq", free_port()));
    let arguments = ["run".as_ref(), config.as_os_str(), "--http".as_ref(), address.as_ref()];
    let ended = scene.run(&arguments).refused(1, &format!("cannot listen at {address}"));
    assert!(ended.err.contains("--http or agent.http"), "{}", ended.err);
    assert_eq!(scene.records(), Vec::<std::path::PathBuf>::new());
    scene.wait_until_quiet();
}

#[test]
fn orders_need_an_address_and_names_must_be_names() {
    let scene = Scene::new();
    let body = started("arq", free_port());
    let config = scene.config("", &body);
    let arguments = ["run".as_ref(), config.as_os_str(), "--control".as_ref()];
    scene.run(&arguments).refused(2, "--control needs an address");
    let cases = [
        ("control = true", "agent.control: needs http"),
        ("http_names = [\"a b\"]", "agent.http_names: `a b` is not a host name"),
        ("http = \"7077\"", "agent.http: "),
    ];
    for (line, words) in cases {
        let config = scene.config(line, &body);
        scene.run(&["run".as_ref(), config.as_os_str()]).refused(2, words);
    }
}

/// A client with the token of the run.
struct Operator {
    address: String,
    token: String,
}

impl Operator {
    fn request(&self, body: &str) -> (u16, Value) {
        let lines =
            [&format!("Authorization: Bearer {}", self.token), "Content-Type: application/json"];
        let answer = order(&self.address, &lines, body);
        (answer.status, answer.json())
    }

    fn done(&self, body: &str) -> String {
        let (status, printed) = self.request(body);
        assert_eq!(status, 200, "{printed}");
        printed["done"].as_str().unwrap().to_owned()
    }
}

fn operated(scene: &Scene, policy: &str) -> (Agent, Operator) {
    let (agent, address) = serving(scene, policy, "control = true");
    let token = std::fs::read_to_string(scene.path("state/token")).unwrap().trim().to_owned();
    (agent, Operator { address, token })
}

#[test]
fn orders_need_the_token_and_the_agents_own_page() {
    let scene = Scene::new();
    let (agent, operator) = operated(&scene, "arq");
    let (address, token) = (&operator.address, format!("Authorization: Bearer {}", operator.token));
    let json = "Content-Type: application/json";
    let pause = r#"{"do":"pause"}"#;
    let own = format!("Origin: http://{address}");
    let cases: [(&[&str], &str, u16); 8] = [
        (&[json], pause, 401),
        (&[json, "Authorization: Bearer 00"], pause, 401),
        (&[&token], pause, 403),
        (&[&token, "Content-Type: text/plain"], pause, 403),
        (&[&token, json, "Origin: http://evil.example"], pause, 403),
        (&[&token, json, "Sec-Fetch-Site: cross-site"], pause, 403),
        (&[&token, json, &own], r#"{"do":"halt"}"#, 400),
        (&[&token, json], &format!("{{\"do\":\"{}\"}}", "a".repeat(10_000)), 413),
    ];
    for (lines, body, status) in cases {
        assert_eq!(order(address, lines, body).status, status, "{lines:?}");
    }
    let wrong = || order(address, &[json, "Authorization: Bearer 00"], pause);
    let refused = (0..8).map(|_| wrong()).find(|answer| answer.status != 401).unwrap();
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.head.contains("retry-after: "), "{refused:?}");
    let right = order(address, &[&token, json], r#"{"do":"halt"}"#);
    assert_eq!(right.status, 400, "the operator of this machine is locked out");
    assert_eq!(get(address, "/api/epoch").json()["paused"], false);
    assert!(!get(address, "/api/run").body.contains(&operator.token), "the token is told");
    agent.interrupt().well();
    assert!(!scene.path("state/token").exists(), "the token outlives its run");
    assert_eq!(Record::open(&scene.records()[0]).events("operator"), Vec::<Value>::new());
}

#[test]
fn an_operator_pauses_restores_and_switches_and_the_record_says_so() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let (agent, operator) = operated(&scene, "arq");
    assert!(operator.done(r#"{"do":"pause"}"#).contains("paused"));
    let (status, printed) = operator.request(r#"{"do":"policy","name":"evne"}"#);
    assert_eq!(status, 409);
    assert!(printed["error"].as_str().unwrap().contains("Did you mean `even`?"), "{printed}");
    assert_eq!(operator.done(r#"{"do":"policy","name":"even"}"#), "even is followed");
    let mut viewer = Viewer::open(&operator.address);
    let epoch = viewer.next().unwrap();
    assert_eq!((&epoch["policy"], &epoch["paused"]), (&json!("even"), &json!(false)));
    let restored = operator.done(r#"{"do":"restore"}"#);
    assert!(restored.starts_with("all knobs are restored, and the policy is paused"), "{restored}");
    while viewer.next().unwrap()["paused"] == false {}
    assert_eq!(operator.done(r#"{"do":"resume"}"#), "even is followed");
    while viewer.next().unwrap()["paused"] == true {}
    agent.interrupt().well();
    let record = Record::open(&scene.records()[0]);
    let acts = record.events("operator");
    let kinds: Vec<String> = acts
        .iter()
        .map(|act| match act {
            Value::String(kind) => kind.clone(),
            other => other.as_object().unwrap().keys().next().unwrap().clone(),
        })
        .collect();
    assert_eq!(kinds, ["paused", "switched", "resumed", "restored", "resumed"], "{acts:?}");
    let phases = record.text("SELECT DISTINCT phase FROM epochs ORDER BY number");
    assert_eq!(phases[0], "on");
    assert!(phases.iter().any(|phase| phase.starts_with("paused-")), "{phases:?}");
    assert!(phases.iter().any(|phase| phase.starts_with("even-")), "{phases:?}");
}

#[test]
fn viewers_that_read_nothing_hold_up_neither_the_loop_nor_others() {
    let scene = Scene::new();
    let (mut agent, address) = serving(&scene, "arq", "");
    let dead: Vec<Viewer> = (0..100).map(|_| Viewer::open(&address)).collect();
    let mut viewer = Viewer::open(&address);
    let first = viewer.next().unwrap()["epoch"].as_u64().unwrap();
    for number in first + 1..first + 12 {
        assert_eq!(viewer.next().unwrap()["epoch"], number, "an epoch was not shown");
    }
    let before = epochs_so_far(scene.records().last());
    agent.wait_for("further epochs", || epochs_so_far(scene.records().last()) > before + 5);
    drop(dead);
    assert_eq!(get(&address, "/api/run").status, 200);
    agent.interrupt().well();
    while viewer.next().is_some() {}
    scene.wait_until_quiet();
}
