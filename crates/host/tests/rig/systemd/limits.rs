//! Limits of a unit's cgroup, and a server that a unit starts.

use super::machine::{
    log_of, pid_of, processes_of_lull, property, remove_unit, run, settle, signal, systemctl,
    write_unit,
};
use crate::scene::{read, wait_for};
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

const CGROUP: &str = "/sys/fs/cgroup/system.slice/web.service";
/// A drop-in of the owner, which systemd reads after the `50-CPUWeight.conf` of a runtime
/// property.
const LIMITS: &str = "web.service.d/limits.conf";
const OWNERS: &str = "[Service]\nCPUWeight=200\nCPUQuota=80%\n";
/// Where systemd keeps runtime properties.
const RUNTIME: &str = "/run/systemd/system.control/web.service.d";
const STATE: &str = "/run/lull-hold";
/// Weight and quota, as files of the cgroup.
type Values = (String, String);

fn control(name: &str) -> String {
    read(Path::new(CGROUP).join(name))
}

fn values() -> Values {
    (control("cpu.weight"), control("cpu.max"))
}

/// Waits for values, which systemd writes a moment after it has answered.
fn wait_for_values(weight: &str, most: &str) {
    let wanted = (weight.to_owned(), most.to_owned());
    wait_for(&format!("{wanted:?} and not {:?}", values()), || values() == wanted);
}

/// Holds limits of the unit while a command runs, and returns what both print.
fn hold(target: &str, command: &str) -> String {
    let (weight, most) =
        (format!("{target}:cpu.weight:50"), format!("{target}:cpu.max:20ms/100ms"));
    let requests = ["hold", "--state", STATE, &weight, &most, "--", "sh", "-c", command];
    run("lull", &requests)
}

/// A command that waits until the limits are Lull's, and fails if they never are.
fn lulls() -> String {
    format!(
        "for try in $(seq 600); do [ \"$(cat {CGROUP}/cpu.weight {CGROUP}/cpu.max)\" = \
         \"50\n20000 100000\" ] && exit 0; sleep 0.1; done; cat {CGROUP}/cpu.weight; exit 1"
    )
}

pub(super) fn held() {
    settle();
    write_unit(LIMITS, OWNERS);
    wait_for_values("200", "80000 100000");
    for target in ["unit=web.service", "cgroup=/system.slice/web.service"] {
        let printed = hold(target, &lulls());
        assert!(printed.contains("web.service: CPUWeight 200 -> 50, by systemd"), "{printed}");
        wait_for_values("200", "80000 100000");
        assert_eq!(property("web.service", "CPUWeight"), "200");
        assert!(!Path::new(RUNTIME).exists(), "a drop-in is left");
    }
    assert_eq!(fs::read_to_string(Path::new("/etc/systemd/system").join(LIMITS)).unwrap(), OWNERS);
    remove_unit(LIMITS);
}

/// A reload of systemd keeps properties that Lull set, and then those of the owner.
pub(super) fn reloaded() {
    settle();
    systemctl(&["set-property", "--runtime", "web.service", "CPUWeight=300", "CPUQuota=70%"]);
    wait_for_values("300", "70000 100000");
    let texts =
        || ["50-CPUWeight.conf", "50-CPUQuota.conf"].map(|name| read(format!("{RUNTIME}/{name}")));
    let before = texts();
    hold("unit=web.service", &format!("systemctl daemon-reload; {}", lulls()));
    wait_for_values("300", "70000 100000");
    assert_eq!(texts(), before);
    systemctl(&["daemon-reload"]);
    wait_for_values("300", "70000 100000");
    systemctl(&["revert", "web.service"]);
}

/// After a reload a drop-in of the owner with a later name wins, until Lull looks again.
pub(super) fn overridden() {
    settle();
    write_unit(LIMITS, OWNERS);
    let undone = format!(
        "{{ {}; }}; systemctl daemon-reload; systemctl show --value -p CPUWeight web.service; {}",
        lulls().replace("exit 0", "break").replace("; exit 1", ""),
        lulls()
    );
    let printed = hold("unit=web.service", &undone);
    assert!(printed.contains("CPUWeight 50 is set again after a reload"), "{printed}");
    wait_for_values("200", "80000 100000");
    assert!(!Path::new(RUNTIME).exists(), "a drop-in is left");
    remove_unit(LIMITS);
}

pub(super) fn of_the_owner() {
    settle();
    let command = "systemctl set-property --runtime web.service CPUWeight=77; sleep 3";
    let printed = hold("unit=web.service", command);
    assert!(
        printed.contains("left as another program set it: CPUWeight of web.service: 77"),
        "{printed}"
    );
    assert_eq!(property("web.service", "CPUWeight"), "77");
    wait_for_values("77", "max 100000");
    systemctl(&["revert", "web.service"]);
}

/// Holds a weight until it is killed; with its guard, too, if that is wanted.
fn hold_and_kill(with_guard: bool) {
    let mut holder = Command::new("lull");
    holder.args(["hold", "--state", STATE, "unit=web.service:cpu.weight:50"]);
    let mut holder = holder.stdin(Stdio::null()).spawn().unwrap();
    wait_for("a weight by Lull", || control("cpu.weight") == "50");
    let is_child = |pid: &i32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line == format!("PPid:\t{}", holder.id()))
    };
    let guards: Vec<i32> = processes_of_lull().into_iter().filter(is_child).collect();
    assert_eq!(guards.len(), 1);
    if with_guard {
        signal(guards[0], Signal::STOP);
    }
    holder.kill().unwrap();
    holder.wait().unwrap();
    if with_guard {
        signal(guards[0], Signal::KILL);
    }
}

pub(super) fn killed() {
    settle();
    write_unit(LIMITS, OWNERS);
    wait_for_values("200", "80000 100000");
    hold_and_kill(false);
    wait_for_values("200", "80000 100000");
    wait_for("no drop-in", || !Path::new(RUNTIME).exists());
    hold_and_kill(true);
    assert_eq!(control("cpu.weight"), "50");
    let printed = run("lull", &["restore", "--state", STATE]);
    wait_for_values("200", "80000 100000");
    assert!(!Path::new(RUNTIME).exists(), "a drop-in is left: {printed}");
    remove_unit(LIMITS);
}

/// Where systemd's sockets are not to be reached, as in a container.
pub(super) fn without_systemd() {
    settle();
    write_unit(LIMITS, OWNERS);
    wait_for_values("200", "80000 100000");
    let hold = format!(
        "mount -t tmpfs none /run/systemd && lull hold --state {STATE} \
         unit=web.service:cpu.weight:50 -- cat {CGROUP}/cpu.weight"
    );
    let printed = run("unshare", &["--mount", "sh", "-c", &hold]);
    assert!(
        printed.contains("50\n") && printed.contains("daemon-reload` undoes them"),
        "{printed}"
    );
    assert_eq!(control("cpu.weight"), "200");
    assert_eq!(property("web.service", "CPUWeight"), "200");
    remove_unit(LIMITS);
}

/// As docs/on-call.md has it for a server that drops its privileges itself.
pub(super) fn drop_in() {
    settle();
    let library = "/usr/local/lib/lull";
    let attach = ["attach", "/run/lull-cache", "--library", library];
    fs::create_dir_all(library).unwrap();
    let environment = run("lull", &[&attach[..], &["--environment"]].concat());
    fs::write("/etc/lull-cache.env", environment).unwrap();
    write_unit(
        "memcached.service.d/lull.conf",
        "[Service]\nEnvironmentFile=/etc/lull-cache.env\nExecStartPre=+/usr/bin/lull attach \
         /run/lull-cache --library /usr/local/lib/lull --environment\n",
    );
    systemctl(&["restart", "memcached"]);
    wait_for("memcached", || TcpStream::connect("127.0.0.1:11211").is_ok());
    let maps = fs::read_to_string(format!("/proc/{}/maps", pid_of("memcached"))).unwrap();
    for file in [library, "/run/lull-cache/page"] {
        assert!(maps.contains(file), "{file} is not mapped:\n{}", log_of("memcached"));
    }
    let mut agent = Command::new("lull");
    agent.args(attach).args(["--json", "--for", "10s"]).stdout(Stdio::piped());
    let mut agent = agent.spawn().unwrap();
    let mut client = BufReader::new(TcpStream::connect("127.0.0.1:11211").unwrap());
    // The agent counts what comes while it is attached.
    while agent.try_wait().unwrap().is_none() {
        query(&mut client);
    }
    let output = agent.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("\"queries\": 0,"), "{text}");
    assert!(text.contains("\"queries\": "), "{text}");
    remove_unit("memcached.service.d/lull.conf");
    systemctl(&["restart", "memcached"]);
    // A page takes an eighth of the guest's /run.
    fs::remove_dir_all("/run/lull-cache").unwrap();
}

/// As docs/on-call.md has it for a server that systemd executes as another user.
pub(super) fn drop_in_of_a_user() {
    settle();
    let attach = "attach /run/lull-owned --owner memcache --library /usr/local/lib/lull";
    let words: Vec<&str> = attach.split(' ').chain(["--environment"]).collect();
    fs::create_dir_all("/usr/local/lib/lull").unwrap();
    fs::write("/etc/lull-owned.env", run("lull", &words)).unwrap();
    // The page is gone, as after a restart of the machine: the unit creates it.
    fs::remove_dir_all("/run/lull-owned").unwrap();
    write_unit(
        "owned.service",
        &format!(
            "[Service]\nUser=memcache\nEnvironmentFile=/etc/lull-owned.env\n\
             ExecStartPre=+/usr/bin/lull {attach} --environment\n\
             ExecStart=/usr/bin/memcached -l 127.0.0.1 -p 11298 -U 0\n"
        ),
    );
    systemctl(&["restart", "owned"]);
    wait_for("memcached", || TcpStream::connect("127.0.0.1:11298").is_ok());
    let process = format!("/proc/{}", pid_of("owned"));
    let maps = fs::read_to_string(format!("{process}/maps")).unwrap();
    assert!(maps.contains("/run/lull-owned/page"), "{}\n{maps}", log_of("owned"));
    let owners =
        [process.as_str(), "/run/lull-owned/page"].map(|file| fs::metadata(file).unwrap().uid());
    assert!(owners[0] != 0 && owners[0] == owners[1], "{owners:?}");
    systemctl(&["stop", "owned"]);
    remove_unit("owned.service");
    fs::remove_dir_all("/run/lull-owned").unwrap();
}

fn query(client: &mut BufReader<TcpStream>) {
    client.get_mut().write_all(b"get key\r\n").unwrap();
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    assert_eq!(line, "END\r\n");
}
