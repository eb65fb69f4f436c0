//! A small threaded server (`threads.c`) that shows on request the rare behaviour of a
//! database, such as ending its connections, in both modes of the gate.

mod admission;
mod attach;
mod cancel;
mod crowd;
mod kernel;
mod needs_openssl;
mod races;
mod signals;

use super::{Server, logs, of_class, sanitised};
use crate::support::scene::Scene;
use crate::support::{free_port, wait_for};
use lull_control::Rng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

const MODES: [&str; 2] = ["post", "epoll"];
const WAKES: [&str; 2] = ["futex", "signal"];

/// Builds a server; returns its path.
fn built(scene: &Scene, name: &str) -> String {
    built_with(scene, name, &[])
}

/// As [`built`], with further options of the compiler.
fn built_with(scene: &Scene, name: &str, more: &[&str]) -> String {
    let source = format!("{}/tests/e2e/exec/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let program = scene.path(name);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", &source, "-o"]);
    assert!(cc.arg(&program).args(more).status().unwrap().success());
    program.to_str().unwrap().to_owned()
}

/// Starts the server under a gate of one slot, with `before` before its command line.
fn start(scene: &Scene, mode: &str, before: &[&str], idle_ms: &str) -> Server {
    start_with(scene, &["--mode", mode, "--concurrency", "1"], before, idle_ms)
}

/// As [`start`], with all options of the gate.
fn start_with(scene: &Scene, gate: &[&str], before: &[&str], idle_ms: &str) -> Server {
    let (program, port) = (built(scene, "threads"), free_port());
    let at = port.to_string();
    let options = [gate, &["--protocol", "mysql"]].concat();
    let command = [before, &[&program, &at, idle_ms]].concat();
    Server::start(scene, &options, &command, port)
}

/// A connection.
struct Client(TcpStream);

impl Client {
    fn connect(server: &Server) -> Self {
        Self::connect_to(server.port)
    }

    fn connect_to(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(80))).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut client = Self(stream);
        client.packet().expect("a greeting");
        let login = [&0x0200_u32.to_le_bytes()[..], &[0; 32]].concat();
        client.send(1, &login);
        assert_eq!(client.packet().expect("an answer to the login")[0], 0);
        client
    }

    fn send(&mut self, sequence: u8, payload: &[u8]) {
        let head = [payload.len() as u8, 0, 0, sequence];
        // The missing answer shows that a connection has ended.
        let _ = self.0.write_all(&[&head, payload].concat());
    }

    fn packet(&mut self) -> Option<Vec<u8>> {
        let mut head = [0; 4];
        self.0.read_exact(&mut head).ok()?;
        let mut payload = vec![0; usize::from(head[0])];
        self.0.read_exact(&mut payload).ok()?;
        Some(payload)
    }

    fn ask(&mut self, text: &str) {
        self.send(0, &[&[3], text.as_bytes()].concat());
    }

    /// Sends a command that has no answer.
    fn close_statement(&mut self) {
        self.send(0, &[0x19, 1, 0, 0, 0]);
    }

    /// Sends a query; returns the number in its answer, or `None` if the connection ended.
    fn query(&mut self, text: &str) -> Option<u8> {
        self.ask(text);
        self.packet().map(|payload| payload[1])
    }

    /// Whether the server has ended it.
    fn is_over(&mut self) -> bool {
        self.packet().is_none()
    }

    /// Disconnects, and waits until the server has also closed the connection: by then all its
    /// queries are counted, including the last.
    fn leave(mut self) {
        self.0.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(self.is_over());
    }
}

/// Loads the server with this many concurrent connections and queries for each. A pause
/// before each query is long enough for its worker to start a rest.
fn load(port: u16, connections: usize, queries: usize) {
    std::thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(move || {
                let mut client = Client::connect_to(port);
                for _ in 0..queries {
                    std::thread::sleep(Duration::from_millis(2));
                    assert!(client.query("work").is_some());
                }
                client.leave();
            });
        }
    });
}

fn called(seen: &Value) -> u64 {
    seen["gate"]["called"].as_u64().unwrap()
}

#[test]
fn workers_that_rest_are_called_for_every_query_and_for_none_twice() {
    let scene = Scene::new();
    let server = start(&scene, "epoll", &[], "-1");
    load(server.port, 8, 50);
    let seen = server.seen();
    let gated = of_class(&seen, "gated");
    assert_eq!(gated.iter().filter(|queries| **queries == 50).count(), 8, "{seen}");
    // A worker rests at most before each query and before the end; it does not rest if its
    // next query has already arrived.
    assert!((1..=8 * 51).contains(&called(&seen)), "{seen}");
    assert_eq!(
        (seen["mode"].as_str(), &seen["gate"]["waited_too_long"]),
        (Some("epoll"), &0.into())
    );
}

#[test]
fn connections_that_follow_each_other_on_one_descriptor_are_distinguished() {
    for mode in MODES {
        let scene = Scene::new();
        let server = start(&scene, mode, &[], "-1");
        for queries in 1..=40 {
            let mut client = Client::connect(&server);
            (0..queries).for_each(|_| assert!(client.query("work").is_some()));
            client.leave();
        }
        let mut gated = of_class(&server.seen(), "gated");
        gated.retain(|queries| *queries > 0);
        gated.sort_unstable();
        assert_eq!(gated, (1..=40).collect::<Vec<u64>>(), "{mode}");
    }
}

#[test]
fn a_client_that_goes_away_ends_its_worker_whether_it_rests_or_waits() {
    for mode in MODES {
        let scene = Scene::new();
        let server = start(&scene, mode, &[], "-1");
        let mut holder = Client::connect(&server);
        holder.query("begin").unwrap();
        let idle = Client::connect(&server);
        let mut waiter = Client::connect(&server);
        waiter.ask("work");
        drop((idle, waiter));
        wait_for("their end", || holder.query("work") == Some(1));
        holder.query("commit").unwrap();
        assert_eq!(server.seen()["gate"]["waited_too_long"], 0, "{mode}");
    }
}

#[test]
fn a_query_without_an_answer_takes_a_turn_too() {
    let scene = Scene::new();
    let gate = ["--mode", "post", "--concurrency", "1", "--slot-lease", "1s"];
    let server = start_with(&scene, &gate, &[], "-1");
    let mut holder = Client::connect(&server);
    // Several rounds: on a machine that stalls the slot may be overdue first.
    for round in 1..=5 {
        holder.query("begin").unwrap();
        let mut goes = Client::connect(&server);
        goes.close_statement();
        drop(goes);
        // Long enough for a worker that checks whether its client has disconnected.
        std::thread::sleep(Duration::from_millis(200));
        holder.query("commit").unwrap();
        wait_for("the statement's end", || holder.query("closed") == Some(round));
    }
    wait_for("the clients' end", || holder.query("work") == Some(1));
    let seen = server.seen();
    assert!(seen["gate"]["admissions_after_a_wait"].as_u64().unwrap() > 0, "{seen}");
}

#[test]
fn a_query_behind_one_without_an_answer_has_the_same_turn() {
    let rounds = 20;
    for mode in MODES {
        let scene = Scene::new();
        let gate = ["--mode", mode, "--concurrency", "1", "--slot-lease", "1s"];
        let server = start_with(&scene, &gate, &[], "-1");
        let (mut first, mut second) = (Client::connect(&server), Client::connect(&server));
        for round in 1..=rounds {
            first.close_statement();
            assert_eq!(first.query("closed"), Some(round), "{mode}");
            assert_eq!(second.query("work"), Some(2), "{mode}");
        }
        let seen = server.seen();
        // A turn that is not given back is overdue in every round; on a machine that stalls,
        // only a few are.
        let overdue = seen["gate"]["slots_overdue"].as_u64().unwrap();
        assert!(overdue < u64::from(rounds) / 2, "{mode}: {seen}");
    }
}

#[test]
fn a_server_that_ends_connections_ends_those_whose_workers_rest_or_wait() {
    for mode in MODES {
        let scene = Scene::new();
        let server = start(&scene, mode, &[], "-1");
        let mut admin = Client::connect(&server);
        admin.query("begin").unwrap();
        let (mut idle, mut waiter) = (Client::connect(&server), Client::connect(&server));
        waiter.ask("work");
        admin.query("shutdown").unwrap();
        assert!(idle.is_over(), "{mode}");
        // The answer may have arrived before.
        assert!(waiter.is_over() || waiter.is_over(), "{mode}");
        wait_for("their end", || admin.query("work") == Some(1));
        drop(server.seen());
    }
}

#[test]
fn a_worker_that_rests_gives_up_when_its_time_is_over() {
    let scene = Scene::new();
    // Long enough for a client on a machine that stalls.
    let server = start(&scene, "epoll", &[], "1500");
    let mut client = Client::connect(&server);
    assert!(client.query("work").is_some());
    assert!(client.is_over(), "nothing was asked for 1.5 s");
    assert!(Client::connect(&server).query("work").is_some());
}

#[test]
fn a_child_goes_on_with_a_connection_and_a_program_is_executed() {
    for mode in MODES {
        let scene = Scene::new();
        let server = start(&scene, mode, &[], "-1");
        let (mut stays, mut leaves) = (Client::connect(&server), Client::connect(&server));
        assert!(leaves.query("exec").is_some() && leaves.query("fork").is_some(), "{mode}");
        for _ in 0..20 {
            assert!(leaves.query("work").is_some() && stays.query("work").is_some(), "{mode}");
        }
        drop(leaves);
        assert!(stays.query("work").is_some(), "{mode}");
        drop(server.seen());
    }
}

#[test]
fn when_the_agent_is_killed_workers_that_rest_or_wait_run_on() {
    for mode in MODES {
        let scene = Scene::new();
        let server = start(&scene, mode, &[], "-1");
        let mut holder = Client::connect(&server);
        holder.query("begin").unwrap();
        let (mut idle, mut waiter) = (Client::connect(&server), Client::connect(&server));
        waiter.ask("work");
        server.signal(Signal::KILL);
        assert!(waiter.packet().is_some() && idle.query("work").is_some(), "{mode}");
        assert!(holder.query("commit").is_some() && idle.query("work").is_some(), "{mode}");
    }
}

/// Overwrites part of the page that an agent shares with its server.
fn overwrite(server: &Server, from: u64, random: &mut Rng) {
    let place = format!("/proc/{}/fd", server.agent.as_ref().unwrap().pid());
    let all = std::fs::read_dir(place).unwrap().flatten().map(|one| one.path());
    let mut pages = all.filter(|path| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("lull-page"))
    });
    let page = File::options().read(true).write(true).open(pages.next().unwrap()).unwrap();
    let mut bytes = vec![0; (page.metadata().unwrap().len() - from) as usize];
    random.fill(&mut bytes[..]);
    page.write_all_at(&bytes, from).unwrap();
}

#[test]
fn random_bytes_in_the_page_keep_no_query_from_its_answer() {
    for (seed, mode) in MODES.into_iter().enumerate() {
        let scene = Scene::new();
        let server = start(&scene, mode, &[], "-1");
        let mut random = Rng::seed_from_u64(seed as u64);
        let mut clients: Vec<Client> = (0..4).map(|_| Client::connect(&server)).collect();
        // First all except header and settings, at a closed gate; then those as well.
        for from in [512, 512, 512, 0] {
            clients.iter_mut().for_each(|client| assert!(client.query("work").is_some()));
            overwrite(&server, from, &mut random);
            clients.iter_mut().for_each(|client| client.ask("work"));
            clients.iter_mut().for_each(|client| assert!(client.packet().is_some(), "{mode}"));
        }
        assert!(Client::connect(&server).query("work").is_some());
        // The page holds random numbers, but the agent must still read and print them.
        assert!(server.seen()["queries"].is_u64());
    }
}

/// Runs a server with these words before its command line, under this many connections
/// with this many queries each, in both modes and both ways of waking; calls `check` after
/// each run.
fn does_all(
    before: impl Fn(&Scene) -> Vec<String>,
    (connections, queries): (usize, usize),
    check: impl Fn(&Scene, &str),
) {
    for (mode, wake) in MODES.into_iter().flat_map(|mode| WAKES.map(|wake| (mode, wake))) {
        let scene = Scene::new();
        let gate = ["--mode", mode, "--concurrency", "1", "--wake", wake];
        let before = before(&scene);
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        let server = start_with(&scene, &gate, &before, "-1");
        load(server.port, connections, queries);
        let mut client = Client::connect(&server);
        assert!(client.query("signals").is_some());
        assert!(client.query("exec").is_some() && client.query("fork").is_some());
        assert!(client.query("work").is_some());
        drop(client);
        let gated = of_class(&server.seen(), "gated");
        assert!(gated.iter().filter(|all| **all == queries as u64).count() >= connections);
        check(&scene, &format!("{mode}, {wake}"));
    }
}

#[test]
#[ignore = "slow: builds the library once more"]
fn the_sanitizer_finds_no_fault_in_the_library_in_a_threaded_server() {
    let before = |scene: &Scene| sanitised::before(scene, "").to_vec();
    does_all(before, (16, 50), |scene, way| {
        assert_eq!(sanitised::findings(scene), [""; 0], "{way}");
    });
}

#[test]
#[ignore = "slow: builds the library once more"]
fn the_sanitizer_sees_what_the_library_reads() {
    let scene = Scene::new();
    // Disable the sanitizer's own check of `send`, so that the library's read is found.
    let before = sanitised::before(&scene, "intercept_send=0");
    let server = start(&scene, "post", &before.each_ref().map(String::as_str), "-1");
    Client::connect(&server).ask("stray");
    let is_found = |finding: &String| {
        finding.contains("heap-buffer-overflow") && finding.contains("lull_preload")
    };
    wait_for("a finding", || sanitised::findings(&scene).iter().any(is_found));
}

mod needs_valgrind {
    use super::*;

    #[test]
    #[ignore = "slow: a server in valgrind, four times"]
    fn valgrind_finds_no_fault_in_a_threaded_server_with_the_library() {
        let before = |scene: &Scene| {
            let log = format!("--log-file={}", scene.path("valgrind-%p").display());
            // The exit status is valgrind's: 99 after a fault.
            ["valgrind", "--error-exitcode=99", "--quiet", &log].map(str::to_owned).to_vec()
        };
        does_all(before, (6, 20), |scene, way| {
            logs(scene, "valgrind-").iter().for_each(|printed| assert_eq!(printed, "", "{way}"));
        });
    }
}
