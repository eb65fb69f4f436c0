//! `lull advise`: what cannot be watched, and a server that ends while it is watched.

use crate::support::agent::Agent;
use crate::support::scene::Scene;
use crate::support::{is_root, send, skip};
use rustix::process::Signal;
use std::process::Command;

/// A thread of the kernel, if this machine shows one.
fn kernel_thread() -> Option<i32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    // The program of a thread of the kernel has neither arguments nor a file.
    pids.into_iter().find(|pid: &i32| {
        let place = std::path::PathBuf::from(format!("/proc/{pid}"));
        std::fs::read(place.join("cmdline")).is_ok_and(|arguments| arguments.is_empty())
            && std::fs::read_to_string(place.join("status"))
                .is_ok_and(|status| !status.contains("VmSize:") && !status.contains("(zombie)"))
    })
}

/// A process that does nothing.
fn sleeper(scene: &Scene) -> Agent {
    let mut sleep = Command::new("sleep");
    sleep.arg("600");
    scene.start(sleep)
}

#[test]
fn what_cannot_be_watched_is_refused_with_the_reason() {
    let scene = Scene::new();
    scene.run(&["advise", "999999999"]).refused(1, "no process 999999999");
    scene.run(&["advise", ""]).refused(2, "name a process number or a systemd unit");
    scene.run(&["advise", "/run/db"]).refused(2, "name a process number or a systemd unit");
    let own = std::process::id().to_string();
    scene.run(&["advise", &own, "--seconds", "0"]).refused(2, "--seconds");
    let none = scene.run(&["advise", "no-such-unit-of-ours", "--seconds", "1"]);
    none.refused(1, "no-such-unit-of-ours.service");
    let Some(kernel) = kernel_thread() else { return skip("no thread of the kernel is shown") };
    scene.run(&["advise", &kernel.to_string()]).refused(1, "a thread of the kernel");
}

#[test]
fn a_program_that_is_no_database_is_unlikely_to_be_helped() {
    let scene = Scene::new();
    let other = sleeper(&scene);
    let pid = other.pid().to_string();
    let advice = scene.run(&["advise", &pid, "--seconds", "1", "--json"]).well().json();
    assert_eq!(
        (&advice["verdict"], &advice["source"]),
        (&"unlikely-to-help".into(), &"proc".into())
    );
    assert!(advice["reason"].as_str().unwrap().contains("protocol of `sleep`"), "{advice}");
    // With a protocol given, the observation still finds no queries.
    let arguments = ["advise", &pid, "--seconds", "1", "--protocol", "mysql", "--json"];
    let advice = scene.run(&arguments).well().json();
    assert!(advice["reason"].as_str().unwrap().contains("listens at no TCP port"), "{advice}");
}

#[test]
fn a_server_that_ends_while_it_is_watched_is_an_error_and_no_advice() {
    let scene = Scene::new();
    let other = sleeper(&scene);
    let pid = other.pid();
    let mut watch = scene.start(scene.lull(&["advise", &pid.to_string(), "--seconds", "3600"]));
    watch.wait_until_printed("watching process");
    send(pid, Signal::KILL);
    // Until its parent has waited for it, a process that has ended is still listed.
    drop(other);
    let ended = watch.wait().refused(1, "ended while it was watched");
    assert_eq!(ended.out, "");
}

#[test]
fn another_users_process_is_refused_without_root() {
    if !is_root() {
        return skip("needs root to run as another user");
    }
    let scene = Scene::with_program_for_all();
    let other = sleeper(&scene);
    let pid = other.pid().to_string();
    let ended = scene.start(scene.lull_as_nobody(&["advise", &pid])).wait();
    ended.refused(1, "run Lull as that user");
}
