//! Limits of a unit's cgroup, and a server that a unit starts.

use super::machine::{log_of, pid_of, property, remove_unit, run, settle, systemctl, write_unit};
use crate::scene::{read, wait_for};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

const CGROUP: &str = "/sys/fs/cgroup/system.slice/web.service";
/// A drop-in that makes systemd set limits of the unit, and so have the controllers.
const LIMITS: &str = "web.service.d/limits.conf";

fn control(name: &str) -> String {
    read(Path::new(CGROUP).join(name))
}

/// Holds limits of the unit while `command` runs, whose output is returned.
fn hold(command: &str) -> String {
    let cgroup = "cgroup=/system.slice/web.service";
    let (weight, most) =
        (format!("{cgroup}:cpu.weight:50"), format!("{cgroup}:cpu.max:20ms/100ms"));
    let state = ["hold", "--state", "/run/lull-hold"];
    run("lull", &[&state[..], &[&weight, &most, "--", "sh", "-c", command]].concat())
}

pub(super) fn held() {
    settle();
    write_unit(LIMITS, "[Service]\nCPUWeight=200\nCPUQuota=80%\n");
    assert_eq!((control("cpu.weight"), control("cpu.max")), ("200".into(), "80000 100000".into()));
    let read = format!("cat {CGROUP}/cpu.weight {CGROUP}/cpu.max");
    let during = hold(&read);
    assert!(during.contains("50\n20000 100000\n"), "{during}");
    assert_eq!((control("cpu.weight"), control("cpu.max")), ("200".into(), "80000 100000".into()));
    assert_eq!(property("web.service", "CPUWeight"), "200");
    remove_unit(LIMITS);
}

/// systemd writes the properties of a unit again when it is reloaded. Lull leaves them alone
/// then, as it does what any other program writes.
pub(super) fn of_the_unit() {
    settle();
    systemctl(&["set-property", "--runtime", "web.service", "CPUWeight=300", "CPUQuota=70%"]);
    let values = || (control("cpu.weight"), control("cpu.max"));
    assert_eq!(values(), ("300".into(), "70000 100000".into()));
    let said = hold(&format!("systemctl daemon-reload; cat {CGROUP}/cpu.weight"));
    assert!(said.contains("300\n"), "{said}");
    assert_eq!(values(), ("300".into(), "70000 100000".into()));
    assert_eq!(property("web.service", "CPUWeight"), "300");
    systemctl(&["revert", "web.service"]);
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
}

fn query(client: &mut BufReader<TcpStream>) {
    client.get_mut().write_all(b"get key\r\n").unwrap();
    let mut line = String::new();
    client.read_line(&mut line).unwrap();
    assert_eq!(line, "END\r\n");
}
