//! Invalid pages: the program reports them and runs without a gate.

use crate::support::scene::Scene;
use lull_agent::library::Library;
use lull_oncall::{MAGIC, PAGE_BYTES, VERSION};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Runs a program with the preloaded library and this page.
fn run(page: &Path) -> Output {
    let mut command = Command::new("echo");
    let library = Library::write().unwrap();
    command.arg("ran").env("LD_PRELOAD", library.path()).env("LULL_PAGE", page);
    command.output().unwrap()
}

/// Returns sealed memory of a page's size that starts with `head` and cannot be truncated.
fn sealed(head: &[u8]) -> File {
    let memory = memfd_create("hostile", MemfdFlags::ALLOW_SEALING).unwrap();
    let mut file = File::from(memory);
    file.write_all(head).unwrap();
    file.set_len(PAGE_BYTES as u64).unwrap();
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    file
}

fn is_refused(output: &Output) {
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    assert_eq!(output.stdout, b"ran\n");
    assert!(printed.contains("running without it"), "{printed}");
}

#[test]
fn a_file_that_could_be_truncated_is_refused() {
    let scene = Scene::new();
    is_refused(&run(&scene.write("page", "no page")));
}

#[test]
fn a_page_of_another_version_or_of_any_bytes_is_refused() {
    let magic = MAGIC.to_le_bytes();
    let other = [&magic[..], &(VERSION + 1).to_le_bytes()].concat();
    let noise: Vec<u8> = (0..PAGE_BYTES).map(|at| (at * 31 % 251) as u8).collect();
    for head in [&other, &noise] {
        let file = sealed(head);
        let own = std::process::id();
        is_refused(&run(Path::new(&format!("/proc/{own}/fd/{}", file.as_raw_fd()))));
    }
}

#[test]
fn a_page_that_is_gone_with_its_agent_is_no_matter() {
    let output = run(Path::new("/proc/self/fd/987"));
    assert!(output.status.success());
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"ran\n"[..], &b""[..]));
}

#[test]
fn a_program_without_a_loader_has_no_gate() {
    let scene = Scene::new();
    let program = scene.path("static");
    let mut elf = vec![0u8; 128];
    elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
    std::fs::write(&program, elf).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let options: [&[&str]; 3] =
        [&["--concurrency", "4"], &["--mode", "epoll"], &["--concurrency", "auto"]];
    for options in options {
        let command = ["--", program.to_str().unwrap()];
        let ended = scene.run(&[&["exec"], options, &command].concat());
        ended.refused(2, "linked statically");
    }
}

#[test]
fn an_invalid_admission_controller_is_refused_before_the_server_starts() {
    let scene = Scene::new();
    let marker = scene.path("started");
    let cases: [(&[&str], &str); 10] = [
        (&["--mode", "stats", "--concurrency", "manual"], "nothing to control"),
        (&["--mode", "epoll", "--concurrency", "auto"], "state a tail objective"),
        (&["--mode", "epoll", "--concurrency", "open"], "`open` never closes"),
        (&["--objective", "p99=50ms"], "--concurrency"),
        (&["--concurrency", "auto", "--objective", "p99=fast"], "--objective p99=fast"),
        (&["--mode", "epoll", "--concurrency", "utslo"], "--concurrency utslo: "),
        (&["--concurrency", "autoo"], "no admission controller is called `autoo`"),
        (&["--concurrency", "pslo"], "none is promised a percentile"),
        (&["--concurrency", "auto", "--key", "goal=tail"], "--key goal=tail"),
        (&["--concurrency", "auto", "--key", "goal=\"tale\""], "tale"),
    ];
    for (options, words) in cases {
        let command = ["--", "touch", marker.to_str().unwrap()];
        scene.run(&[&["exec"], options, &command].concat()).refused(2, words);
    }
    assert!(!marker.exists());
}

#[test]
fn waking_by_signal_is_refused_if_workers_are_processes_or_none_waits() {
    let scene = Scene::new();
    let marker = scene.path("started");
    let cases: [(&[&str], &str); 3] = [
        (&["--wake", "signal"], "--wake signal: in mode stats no worker waits"),
        (
            &["--wake", "signal", "--concurrency", "4", "--protocol", "postgres"],
            "--wake signal: PostgreSQL's workers are processes",
        ),
        (&["--wake", "bell", "--concurrency", "4"], "bell"),
    ];
    for (options, words) in cases {
        let command = ["--", "touch", marker.to_str().unwrap()];
        scene.run(&[&["exec"], options, &command].concat()).refused(2, words);
    }
    assert!(!marker.exists());
}

#[test]
fn a_time_out_of_the_gates_range_is_refused_before_the_server_starts() {
    let scene = Scene::new();
    let marker = scene.path("started");
    let cases: [(&[&str], &str); 6] = [
        (&["--delay", "101ms"], "--delay is 101ms, not in 0ns to 100ms"),
        (&["--delay", "5"], "--delay"),
        (&["--mode", "epoll", "--delay", "500us"], "--delay is 500us, not in 1ms to 100ms"),
        (&["--mode", "epoll", "--delay", "0s"], "spends more than it saves"),
        (&["--slot-lease", "0s"], "--slot-lease is 0ns, not in 1ms to 1s"),
        (&["--slot-lease", "2s"], "--slot-lease is 2s, not in 1ms to 1s"),
    ];
    for (options, words) in cases {
        let command = ["--", "touch", marker.to_str().unwrap()];
        scene.run(&[&["exec"], options, &command].concat()).refused(2, words);
    }
    assert!(!marker.exists());
}
