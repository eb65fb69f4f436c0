//! The package: installed, upgraded, downgraded and removed while the agent runs.

use super::machine::{
    ALL, CONFIG, RECORDS, cores_of, is_active, log_of, pid_of, processes_of_lull, property, run,
    settle, signal, systemctl, wait_until_steered,
};
use crate::init::BROUGHT;
use crate::scene::wait_for;
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};

/// The version that is installed first.
const FORMER: &str = "0.0.1";

/// The Debian packages that the guest has brought along: the former, and the present one.
pub(super) fn brought() -> (PathBuf, PathBuf) {
    of_kind("deb")
}

fn of_kind(kind: &str) -> (PathBuf, PathBuf) {
    let files = fs::read_dir(BROUGHT).unwrap().flatten().map(|file| file.path());
    let packages = files.filter(|path| path.extension().is_some_and(|end| end == kind));
    let (former, present): (Vec<_>, Vec<_>) =
        packages.partition(|path| path.to_string_lossy().contains(FORMER));
    (former[0].clone(), present[0].clone())
}

pub(super) fn dpkg_install(package: &Path) {
    run("dpkg", &["--install", &package.to_string_lossy()]);
}

fn installed_version() -> String {
    run("dpkg-query", &["--show", "--showformat=${Version}", "lull"])
}

pub(super) fn install() {
    dpkg_install(&brought().0);
    assert_eq!(installed_version(), FORMER);
    assert!(run("lull", &["--version"]).starts_with("lull "));
    assert_eq!(property("lull", "LoadState"), "loaded");
    assert_eq!(property("lull", "UnitFileState"), "disabled");
    assert_eq!(property("lull", "ActiveState"), "inactive");
    for file in ["/usr/share/doc/lull/operating.md", "/usr/share/lull/config.schema.json"] {
        assert!(Path::new(file).exists(), "{file}");
    }
}

pub(super) fn no_config() {
    systemctl(&["start", "lull"]);
    assert_eq!(property("lull", "ConditionResult"), "no");
    assert_eq!(property("lull", "ActiveState"), "inactive");
    assert_eq!(property("lull", "Result"), "success");
}

/// Replaces the package under a running agent and checks what must not change.
fn replace(package: &Path) {
    settle();
    let (agent, config) = (pid_of("lull"), fs::read_to_string(CONFIG).unwrap());
    let records = fs::read_dir(RECORDS).unwrap().count();
    dpkg_install(package);
    wait_for("a new agent", || is_active("lull") && pid_of("lull") != agent);
    let program = fs::read_link(format!("/proc/{}/exe", pid_of("lull"))).unwrap();
    assert_eq!(program, Path::new("/usr/bin/lull"), "the agent runs a file that is gone");
    wait_until_steered("web.service");
    assert_eq!(fs::read_to_string(CONFIG).unwrap(), config);
    assert!(fs::read_dir(RECORDS).unwrap().count() > records, "the records of before are gone");
    assert!(log_of("lull").contains("knobs are as they were"), "{}", log_of("lull"));
}

pub(super) fn upgrade() {
    let (former, present) = brought();
    dpkg_install(&former);
    replace(&present);
    assert_ne!(installed_version(), FORMER);
}

pub(super) fn downgrade() {
    replace(&brought().0);
    assert_eq!(installed_version(), FORMER);
}

/// Removes the package; the config and the records stay.
fn remove(how: &str) {
    run("dpkg", &[how, "lull"]);
    check_removed();
}

fn check_removed() {
    assert!(!Path::new("/usr/bin/lull").exists());
    assert!(Path::new(CONFIG).exists(), "the config is gone");
    assert!(fs::read_dir(RECORDS).unwrap().next().is_some(), "the records are gone");
}

pub(super) fn remove_running() {
    settle();
    remove("--remove");
    assert_eq!(cores_of("web.service"), ALL);
    assert_eq!(cores_of("worker@1.service"), ALL);
    assert!(!is_active("lull"));
}

/// Agent and guard are killed, and the agent was started by hand: nothing but the package's
/// own script restores then.
pub(super) fn remove_killed() {
    settle();
    systemctl(&["stop", "lull"]);
    let unit = ["--unit=byhand", "--property=KillMode=process", "--collect"];
    let agent = ["/usr/bin/lull", "run", CONFIG];
    run("systemd-run", &[&unit[..], &agent[..]].concat());
    wait_until_steered("web.service");
    let processes = processes_of_lull();
    assert!(processes.len() >= 2, "agent and guard: {processes:?}");
    // Stopped first, so that neither sees the end of the other.
    processes.iter().for_each(|pid| signal(*pid, Signal::STOP));
    processes.iter().for_each(|pid| signal(*pid, Signal::KILL));
    wait_for("the end of agent and guard", || processes_of_lull().is_empty());
    assert_ne!(cores_of("web.service"), ALL, "restored by nobody");
    remove("--remove");
    assert_eq!(cores_of("web.service"), ALL);
}

pub(super) fn purge() {
    settle();
    remove("--purge");
    assert_eq!(cores_of("web.service"), ALL);
    assert_eq!(property("lull", "LoadState"), "not-found");
}

/// rpm on a Debian knows no package that the scripts could depend on.
fn rpm(arguments: &[&str], package: &Path) {
    run(
        "rpm",
        &[arguments, &["--nodeps", "--force-debian"], &[&package.to_string_lossy()]].concat(),
    );
}

pub(super) fn of_rpm() {
    if Path::new("/usr/bin/lull").exists() {
        run("dpkg", &["--purge", "lull"]);
    }
    let (former, present) = of_kind("rpm");
    rpm(&["--install"], &former);
    assert_eq!(property("lull", "UnitFileState"), "disabled");
    assert_eq!(property("lull", "ActiveState"), "inactive");
    settle();
    let agent = pid_of("lull");
    rpm(&["--upgrade"], &present);
    assert_eq!(run("rpm", &["--query", "--queryformat", "%{VERSION}", "lull"]), present_version());
    assert_ne!(pid_of("lull"), agent, "the agent of before");
    wait_until_steered("web.service");
    systemctl(&["enable", "lull"]);
    run("rpm", &["--erase", "--force-debian", "lull"]);
    check_removed();
    assert_eq!(cores_of("web.service"), ALL);
    assert_eq!(property("lull", "LoadState"), "not-found");
}

/// Reads the version from the file's name.
fn present_version() -> String {
    let file = of_kind("deb").1;
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    name.split('_').nth(1).unwrap().to_owned()
}
