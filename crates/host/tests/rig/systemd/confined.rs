//! A server that AppArmor confines.

use super::machine::{
    log_of, outcome, pid_of, printed, remove_unit, run, settle, signal, systemctl, write_unit,
};
use crate::scene::wait_for;
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};

const PAGE: &str = "/run/lull-confined";
const LIBRARY: &str = "/usr/local/lib/lull";
const PROFILE: &str = "/etc/apparmor.d/confined";
/// The permissions that a memcached needs by itself.
const OWN_RULES: &str = "network,\n capability,\n signal,\n /usr/bin/memcached mr,\n \
                         /usr/lib/** mr,\n /etc/** r,\n /proc/** r,\n /sys/** r,\n /dev/** rw,\n";
/// As docs/on-call.md has them.
const RULES: &str = " /run/lull-confined/page rw,\n /usr/local/lib/lull/liblull_preload.so mr,\n";
const ADDRESS: &str = "127.0.0.1:11299";

/// Restarts the server under a profile with these rules besides its own.
fn restart(rules: &str) {
    fs::write(PROFILE, format!("profile confined {{\n {OWN_RULES}{rules}}}\n")).unwrap();
    run("apparmor_parser", &["--replace", "--skip-cache", PROFILE]);
    systemctl(&["restart", "confined"]);
    wait_for("memcached", || TcpStream::connect(ADDRESS).is_ok());
    let label = fs::read_to_string(format!("/proc/{}/attr/current", pid_of("confined"))).unwrap();
    assert_eq!(label.trim_end(), "confined (enforce)", "{}", log_of("confined"));
}

/// Whether the server has mapped the page.
fn is_mapped() -> bool {
    let maps = fs::read_to_string(format!("/proc/{}/maps", pid_of("confined"))).unwrap();
    maps.contains(&format!("{PAGE}/page"))
}

/// A profile without rules for page and library is named in a notice, and one with them is enough.
pub(super) fn by_a_profile() {
    settle();
    let attach = ["attach", PAGE, "--library", LIBRARY];
    fs::create_dir_all(LIBRARY).unwrap();
    let environment = run("lull", &[&attach[..], &["--environment"]].concat());
    fs::write("/etc/lull-confined.env", environment).unwrap();
    write_unit(
        "confined.service",
        "[Service]\nEnvironmentFile=/etc/lull-confined.env\nAppArmorProfile=confined\n\
         ExecStart=/usr/bin/memcached -u memcache -l 127.0.0.1 -p 11299\n",
    );
    let mut agent = Command::new("lull");
    agent.args(attach).args(["--for", "120s"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut agent = agent.spawn().unwrap();
    // It looks at servers that start from then on.
    wait_for("the agent", || {
        printed(&outcome("lull", &["gate", "status", PAGE])).contains("agent     process")
    });
    restart("");
    assert!(!is_mapped(), "{}", log_of("confined"));
    let mut shown = Vec::new();
    let mut lines = BufReader::new(agent.stderr.take().unwrap()).lines().map(Result::unwrap);
    let notice = "It is confined as `confined (enforce)`";
    let mut until_then = lines.by_ref().inspect(|line| shown.push(line.clone()));
    let is_named = until_then.any(|line| line.contains(notice));
    signal(agent.id().cast_signed(), Signal::INT);
    agent.wait().unwrap();
    assert!(is_named, "{shown:?}");
    restart(RULES);
    assert!(is_mapped(), "{}", log_of("confined"));
    systemctl(&["stop", "confined"]);
    remove_unit("confined.service");
    run("apparmor_parser", &["--remove", PROFILE]);
    fs::remove_dir_all(PAGE).unwrap();
}
