//! The front end, which parses what comes from outside: its rights, its end, its new start.

use crate::http::serving;
use crate::runs::{attached, started};
use crate::support::http::{address_of, get, order};
use crate::support::record::epochs_so_far;
use crate::support::scene::Scene;
use crate::support::victim::Victim;
use crate::support::{cores, free_port, send, skip, wait_for};
use rustix::process::Signal;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeMap;

impl Scene {
    fn frontend(&self) -> Option<i32> {
        self.process_with(&["frontend"])
    }
}

/// A field of the status of a process.
fn status(pid: i32, field: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    line.unwrap_or_else(|| panic!("no {field}: {status}")).trim().to_owned()
}

#[test]
fn the_front_end_has_no_rights_and_no_file() {
    let scene = Scene::new();
    let (agent, address) = serving(&scene, "unmanaged", "control = true");
    if agent.err().contains("runs without") {
        return skip("the kernel lacks Landlock or seccomp");
    }
    let frontend = scene.frontend().unwrap();
    assert_eq!(status(frontend, "CapEff"), "0000000000000000");
    assert_eq!(
        (status(frontend, "NoNewPrivs"), status(frontend, "Seccomp")),
        ("1".into(), "2".into())
    );
    assert_eq!(status(frontend, "Threads"), "1");
    if rustix::process::geteuid().is_root() {
        assert_eq!(status(frontend, "Uid"), "65534\t65534\t65534\t65534");
        assert_eq!(status(frontend, "Groups"), "");
    }
    // It has sockets, its channel and what the runtime waits with, and nowhere the token.
    let token = std::fs::read_to_string(scene.path("state/token")).unwrap();
    let memory = readable_memory(frontend);
    let is_found = memory.windows(token.trim().len()).any(|part| part == token.trim().as_bytes());
    assert!(memory.len() > 100_000 && !is_found, "the token is in the memory of the front end");
    let lines = ["Authorization: Bearer 0", "Content-Type: application/json"];
    let refused = order(&address, &lines, r#"{"do":"pause"}"#);
    assert_eq!(refused.status, 401);
    agent.interrupt().well();
    scene.wait_until_quiet();
}

/// The writable memory of a process.
fn readable_memory(pid: i32) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut all = Vec::new();
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let (from, rest) = line.split_once('-').unwrap();
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let (from, to) = (number(from), number(rest.split_once(' ').unwrap().0));
        let mut part = vec![0; usize::try_from(to - from).unwrap()];
        if memory.read_exact_at(&mut part, from).is_ok() {
            all.extend(part);
        }
    }
    all
}

#[test]
fn a_killed_front_end_is_replaced_and_no_knob_is_touched() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let lines = "http = \"127.0.0.1:0\"\nsilence = \"1h\"";
    let mut agent = scene.agent(&scene.config(lines, &attached("even", &server, &batch)));
    let address = address_of(&mut agent);
    agent.wait_for("settings", || server.is_changed() && batch.is_changed());
    agent.wait_for("an epoch", || get(&address, "/api/epoch").status == 200);
    let knobs = || (server.now(), batch.now());
    let before = knobs();
    for _ in 0..2 {
        let first = scene.frontend().unwrap();
        let seen = epochs_so_far(scene.records().first());
        send(first, Signal::KILL);
        agent.wait_for("another front end", || {
            assert_eq!(knobs(), before);
            scene.frontend().is_some_and(|pid| pid != first)
        });
        agent.wait_for("an epoch on the page", || {
            assert_eq!(knobs(), before);
            get(&address, "/api/epoch").status == 200
        });
        assert!(epochs_so_far(scene.records().first()) > seen, "the run went on");
        assert_eq!(get(&address, "/").status, 200);
    }
    let ended = agent.interrupt().well();
    assert!(
        ended.err.contains("the front end") || ended.out.contains("the front end"),
        "{ended:?}"
    );
    server.wait_until_as_before();
    batch.wait_until_as_before();
    scene.wait_until_quiet();
}

#[test]
fn what_is_pushed_arrives_again_after_the_front_end_was_killed() {
    let scene = Scene::new();
    let (mut agent, address) = serving(&scene, "unmanaged", "silence = \"1h\"");
    let is_pushed = || {
        let metrics = get(&address, "/metrics").body;
        metrics.lines().any(|line| line.starts_with("lull_tail_latency_seconds"))
    };
    agent.wait_for("a latency", is_pushed);
    let counted = || {
        let metrics = get(&address, "/metrics").body;
        let count = |name| metrics.lines().find_map(|line: &str| line.strip_prefix(name));
        let requests = count("lull_requests_total{app=\"server\"} ");
        let epochs = count("lull_epochs_total ");
        requests.zip(epochs).map(|both| [both.0, both.1].map(|it| it.parse::<f64>().unwrap()))
    };
    let before = counted().unwrap();
    send(scene.frontend().unwrap(), Signal::KILL);
    agent.wait_for("an end of the page", || {
        std::net::TcpStream::connect(&address).is_ok() && scene.frontend().is_some()
    });
    agent.wait_for("a latency of a client that has connected again", is_pushed);
    let after = counted().unwrap();
    assert!(after[0] >= before[0] && after[1] > before[1], "counters go on: {before:?} {after:?}");
    agent.interrupt().well();
    scene.wait_until_quiet();
}

/// Makes the kernel one without Landlock and seccomp, for this thread and what it starts.
fn forget_confinement() {
    let calls = [libc::SYS_landlock_create_ruleset, libc::SYS_seccomp];
    let rules: BTreeMap<_, _> = calls.into_iter().map(|call| (call, Vec::new())).collect();
    let missing = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, missing, arch).unwrap();
    let filter: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&filter).unwrap();
}

#[test]
fn a_kernel_without_landlock_and_seccomp_is_reported_and_served() {
    let run = || {
        forget_confinement();
        let scene = Scene::new();
        let (agent, address) = serving(&scene, "unmanaged", "");
        assert_eq!(get(&address, "/").status, 200);
        assert_eq!(get(&address, "/metrics").status, 200);
        for layer in ["Landlock: the kernel is older than 5.13", "(seccomp): "] {
            assert!(agent.err().contains(layer), "{layer}: {}", agent.err());
        }
        let frontend = scene.frontend().unwrap();
        assert_eq!(status(frontend, "CapEff"), "0000000000000000");
        let check = scene.run(&["check"]).well();
        assert!(check.out.contains("older than 5.13"), "{}", check.out);
        agent.interrupt().well();
        scene.wait_until_quiet();
    };
    std::thread::spawn(run).join().unwrap();
}

#[test]
fn a_program_that_is_no_front_end_is_refused_before_anything_starts() {
    let scene = Scene::new();
    scene.run(&["frontend"]).refused(1, "this command is for the agent");
    let config = scene.config("", &started("unmanaged", free_port()));
    scene.run_for(&config, "1s").well();
    wait_for("the end of the front end", || scene.frontend().is_none());
}
