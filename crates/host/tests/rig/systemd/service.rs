//! `lull.service`: ready, reloaded, stopped, stuck, and on a machine that has no room.

use super::machine::{
    ALL, CONFIG, RECORDS, configure, cores_of, is_active, log_of, outcome, pid_of, printed,
    processes_of_lull, property, remove_unit, run, settle, signal, start_apps, systemctl,
    wait_until_steered, write_unit,
};
use crate::scene::wait_for;
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A drop-in: the pause before a restart is long enough for a look at what was restored.
const SLOW_RESTART: &str = "lull.service.d/slow.conf";
const PAUSE: &str = "[Service]\nRestartSec=20\n";

pub(super) fn ready() {
    configure("even");
    start_apps();
    assert_eq!(cores_of("web.service"), ALL);
    systemctl(&["start", "lull"]);
    assert!(is_active("lull"), "{}", log_of("lull"));
    assert_eq!(property("lull", "StatusText"), "policy even");
    assert_eq!(property("lull", "WatchdogUSec"), "1min 30s");
    wait_until_steered("web.service");
    wait_until_steered("worker@1.service");
    let record = fs::read_dir(RECORDS).unwrap().flatten().next().unwrap();
    assert_eq!(record.metadata().unwrap().mode() & 0o777, 0o600);
}

pub(super) fn restarts() {
    settle();
    let former = pid_of("web.service");
    systemctl(&["restart", "web.service"]);
    assert_ne!(pid_of("web.service"), former);
    wait_until_steered("web.service");
    assert!(is_active("lull"));
}

pub(super) fn instances() {
    settle();
    systemctl(&["start", "worker@late.service"]);
    wait_until_steered("worker@late.service");
    systemctl(&["stop", "worker@late.service", "worker@2.service"]);
    systemctl(&["restart", "worker@1.service"]);
    wait_until_steered("worker@1.service");
    systemctl(&["stop", "worker@1.service"]);
    // The other app has the machine to itself.
    wait_for("all cores for the app that is left", || cores_of("web.service") == ALL);
    systemctl(&["start", "worker@1.service", "worker@2.service"]);
    wait_until_steered("worker@2.service");
    wait_until_steered("web.service");
}

pub(super) fn daemon_reload() {
    settle();
    let (agent, cores) = (pid_of("lull"), cores_of("web.service"));
    systemctl(&["daemon-reload"]);
    systemctl(&["daemon-reexec"]);
    wait_for("systemd again", || is_active("lull"));
    assert_eq!(pid_of("lull"), agent);
    assert_eq!(cores_of("web.service"), cores);
    assert_eq!(property("lull", "StatusText"), "policy even");
}

pub(super) fn reload() {
    settle();
    let agent = pid_of("lull");
    configure("unmanaged");
    systemctl(&["reload", "lull"]);
    wait_for("cores as before", || cores_of("web.service") == ALL);
    configure("none-such");
    let broken = outcome("systemctl", &["reload", "lull"]);
    assert!(!broken.status.success(), "a broken config is not an error: {}", printed(&broken));
    assert!(log_of("lull").contains("none-such"), "{}", log_of("lull"));
    configure("even");
    systemctl(&["reload", "lull"]);
    wait_until_steered("web.service");
    assert!(is_active("lull"));
    assert_eq!(pid_of("lull"), agent, "restarted and not reloaded");
}

/// An app whose unit is masked waits, beside another one that is steered, until it is unmasked and
/// started.
pub(super) fn masked() {
    settle();
    systemctl(&["stop", "lull"]);
    systemctl(&["mask", "late.service"]);
    let config = fs::read_to_string(CONFIG).unwrap();
    assert!(config.contains("worker@*.service"));
    fs::write(CONFIG, config.replace("worker@*.service", "late.service")).unwrap();
    systemctl(&["start", "lull"]);
    assert!(is_active("lull"), "{}", log_of("lull"));
    let why = "unit `late.service`, which is masked: `systemctl unmask late.service` lets it start";
    wait_for("the reason in the log", || log_of("lull").contains(why));
    assert_eq!(cores_of("web.service"), ALL, "the only app that runs has all cores");
    systemctl(&["unmask", "late.service"]);
    write_unit("late.service", "[Service]\nExecStart=/bin/sleep infinity\n");
    systemctl(&["start", "late.service"]);
    wait_until_steered("late.service");
    wait_until_steered("web.service");
    systemctl(&["stop", "late.service"]);
    remove_unit("late.service");
    // Other apps take a new agent.
    systemctl(&["stop", "lull"]);
}

/// Waits until an agent has ended, and until its knobs are as before it.
fn wait_until_undone(agent: i32) {
    wait_for("the end of the agent", || !processes_of_lull().contains(&agent));
    wait_for("knobs as before", || cores_of("web.service") == ALL);
    assert_eq!(cores_of("worker@1.service"), ALL);
}

fn restarts_of_service() -> u32 {
    property("lull", "NRestarts").parse().unwrap()
}

pub(super) fn stopped() {
    settle();
    write_unit(SLOW_RESTART, PAUSE);
    let (agent, before) = (pid_of("lull"), restarts_of_service());
    signal(agent, Signal::STOP);
    wait_until_undone(agent);
    wait_for("a restart by systemd", || restarts_of_service() > before && is_active("lull"));
    wait_until_steered("web.service");
}

pub(super) fn watchdog() {
    write_unit(SLOW_RESTART, &format!("{PAUSE}WatchdogSec=15\nTimeoutAbortSec=5\n"));
    settle();
    // The watchdog's time is that of the start.
    systemctl(&["restart", "lull"]);
    wait_until_steered("web.service");
    let (agent, before) = (pid_of("lull"), restarts_of_service());
    signal(agent, Signal::STOP);
    let guards = processes_of_lull().into_iter().filter(|pid| *pid != agent);
    guards.for_each(|guard| signal(guard, Signal::KILL));
    wait_until_undone(agent);
    assert!(log_of("lull").contains("Watchdog timeout"), "{}", log_of("lull"));
    wait_for("a restart by systemd", || restarts_of_service() > before && is_active("lull"));
    wait_until_steered("web.service");
    remove_unit(SLOW_RESTART);
    systemctl(&["restart", "lull"]);
}

pub(super) fn broken_config() {
    settle();
    systemctl(&["stop", "lull"]);
    configure("none-such");
    assert!(!outcome("systemctl", &["start", "lull"]).status.success(), "it started");
    // Not "activating", which is the pause before another try.
    assert_eq!(property("lull", "ActiveState"), "failed");
    assert!(log_of("lull").contains("none-such"), "{}", log_of("lull"));
    assert_eq!(cores_of("web.service"), ALL);
    settle();
}

/// Starts the service, which fails, and checks that nothing of the apps was changed.
fn fails_to_start() {
    assert!(!outcome("systemctl", &["start", "lull"]).status.success(), "it started");
    assert_eq!(cores_of("web.service"), ALL);
}

pub(super) fn read_only_var() {
    settle();
    systemctl(&["stop", "lull"]);
    run("mount", &["--bind", "/var", "/var"]);
    run("mount", &["-o", "remount,bind,ro", "/var"]);
    fails_to_start();
    run("umount", &["--lazy", "/var"]);
    let log = log_of("lull");
    assert!(log.contains("Read-only file system"), "{log}");
    // systemd tries again.
    wait_for("the agent", || is_active("lull"));
    wait_until_steered("web.service");
}

pub(super) fn full_run() {
    settle();
    systemctl(&["stop", "lull"]);
    let filler = Path::new("/run/filler");
    // Its end is the error that the file system is full.
    outcome("dd", &["if=/dev/zero", "of=/run/filler", "bs=4096"]);
    fails_to_start();
    fs::remove_file(filler).unwrap();
    let log = log_of("lull");
    assert!(log.contains("No space left"), "{log}");
    wait_for("the agent", || is_active("lull"));
    wait_until_steered("web.service");
}
