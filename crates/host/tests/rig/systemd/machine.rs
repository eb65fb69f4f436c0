//! The guest's programs and units.

use super::packages;
use crate::scene::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// All cores of the guest.
pub(super) const ALL: &str = "0-1";
pub(super) const CONFIG: &str = "/etc/lull/lull.toml";
pub(super) const RECORDS: &str = "/var/lib/lull/runs";
const UNITS: &str = "/etc/systemd/system";

/// Runs a program to its end.
pub(super) fn outcome(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output();
    output.unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Returns the output of a program to both streams.
pub(super) fn printed(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// Runs a program that succeeds, and returns what it printed.
pub(super) fn run(program: &str, arguments: &[&str]) -> String {
    let output = outcome(program, arguments);
    assert!(output.status.success(), "{program} {arguments:?}: {}", printed(&output));
    printed(&output)
}

pub(super) fn systemctl(arguments: &[&str]) -> String {
    run("systemctl", arguments)
}

pub(super) fn property(unit: &str, name: &str) -> String {
    let option = format!("--property={name}");
    systemctl(&["show", "--value", &option, unit]).trim().to_owned()
}

pub(super) fn is_active(unit: &str) -> bool {
    property(unit, "ActiveState") == "active"
}

/// The main process of a unit that runs.
pub(super) fn pid_of(unit: &str) -> i32 {
    let pid = property(unit, "MainPID").parse().unwrap();
    assert_ne!(pid, 0, "{unit} does not run: {}", log_of(unit));
    pid
}

/// The cores that the main process of a unit may use.
pub(super) fn cores_of(unit: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", pid_of(unit))).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}

/// Waits until a policy has given a unit some of the cores.
pub(super) fn wait_until_steered(unit: &str) {
    wait_for(&format!("cores of {unit} by Lull: {}", log_of("lull")), || cores_of(unit) != ALL);
}

/// Returns recent output of a unit.
pub(super) fn log_of(unit: &str) -> String {
    printed(&outcome("journalctl", &["--unit", unit, "--lines=30", "--no-pager", "--quiet"]))
}

/// Agents and their guards, which all run the program of the package.
pub(super) fn processes_of_lull() -> Vec<i32> {
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let program = fs::read_link(entry.path().join("exe")).ok()?;
        program.to_str()?.starts_with("/usr/bin/lull").then_some(pid)
    });
    pids.collect()
}

pub(super) fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Writes a unit, or a drop-in of one, and has systemd read it.
pub(super) fn write_unit(name: &str, text: &str) {
    let path = Path::new(UNITS).join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    systemctl(&["daemon-reload"]);
}

pub(super) fn remove_unit(name: &str) {
    fs::remove_file(Path::new(UNITS).join(name)).unwrap();
    systemctl(&["daemon-reload"]);
}

/// Writes the config of the service with two apps under a policy: a unit, and a glob.
pub(super) fn configure(policy: &str) {
    let text = format!(
        "[agent]\nepoch = \"500ms\"\nrecord = \"{RECORDS}\"\nstate = \"/run/lull\"\n\
         [policy]\nname = \"{policy}\"\n\
         [[app]]\nname = \"web\"\nclass = \"best-effort\"\nunit = \"web.service\"\n\
         [[app]]\nname = \"worker\"\nclass = \"best-effort\"\nunit = \"worker@*.service\"\n"
    );
    fs::create_dir_all("/etc/lull").unwrap();
    fs::write(CONFIG, text).unwrap();
}

/// Starts the units that the config names.
pub(super) fn start_apps() {
    let service = "[Service]\nExecStart=/bin/sleep infinity\n";
    if !Path::new(UNITS).join("web.service").exists() {
        write_unit("web.service", service);
        write_unit("worker@.service", service);
    }
    systemctl(&["start", "web.service", "worker@1.service", "worker@2.service"]);
}

/// Brings the machine into the state that most tests begin with, whatever an earlier one has
/// left: the agent runs and has given each app a core.
pub(super) fn settle() {
    if !Path::new("/usr/bin/lull").exists() {
        packages::dpkg_install(&packages::brought().1);
    }
    configure("even");
    start_apps();
    let command = if is_active("lull") { "reload" } else { "restart" };
    systemctl(&[command, "lull"]);
    wait_until_steered("web.service");
    wait_until_steered("worker@1.service");
}

pub(super) fn is_up() {
    let failed = systemctl(&["list-units", "--failed", "--plain", "--no-legend"]);
    assert_eq!(failed, "");
    let first = fs::read_link("/proc/1/exe").unwrap();
    assert!(first.ends_with("systemd"), "{}", first.display());
    assert!(Path::new("/sys/fs/cgroup/system.slice/cgroup.procs").exists());
}
