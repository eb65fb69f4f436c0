//! A node of Kubernetes on cgroup v2: the test of crates/fleet, with containerd and a kubelet from
//! a second disk, and an API server outside of the guest.

use crate::Tests;
use rustix::mount::{MountFlags, mount};
use std::fs;
use std::path::Path;
use std::process::Command;

pub(crate) const TESTS: Tests =
    &[("kubelet::pods_are_steered_where_cgroup_v2_is_alone", pods_are_steered)];

/// The test of crates/fleet.
const TEST: &str = "pods_of_a_kubelet_are_steered_from_their_start_to_their_end";
const DISK: &str = "/dev/vdb";
const PLACE: &str = "/run/node";
/// The guest, and the machine outside with the API server: addresses of the network that
/// `cargo xtask rig` makes.
const GUEST: &str = "10.96.0.15/24";
const OUTSIDE: &str = "10.96.0.1";

fn pods_are_steered() {
    let is_alone = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    assert!(is_alone, "this guest has version 1 of cgroups as well");
    connect();
    // As the unit of containerd does. Without a unit that delegates, systemd withdraws the
    // controller `cpuset` from all cgroups.
    run("systemd-run", &["--quiet", "--property=Delegate=yes", "sleep", "infinity"]);
    fs::create_dir_all(PLACE).unwrap();
    mount(DISK, PLACE, "ext4", MountFlags::RDONLY, None).unwrap();
    let mut test = Command::new(format!("{PLACE}/tests"));
    test.args(["--exact", TEST, "--nocapture"]);
    let variables = [
        ("CACHE", "cache"),
        ("PROGRAM", "lull"),
        ("FLEET_PAUSE", "pause"),
        ("FLEET_KUBECONFIG", "kubeconfig"),
    ];
    for (name, file) in variables {
        test.env(format!("LULL_{name}"), format!("{PLACE}/{file}"));
    }
    let status = test.env("LULL_FLEET_KUBELET", "1").status().unwrap();
    assert!(status.success(), "{status}");
}

/// Gives the network card its address; the kubelet takes that of the way outside for the node's.
/// Makes the files of names, too, which containerd copies to pods.
fn connect() {
    fs::write("/etc/hosts", "127.0.0.1 localhost\n").unwrap();
    fs::write("/etc/resolv.conf", "# There is no name server.\n").unwrap();
    run("ip", &["address", "add", GUEST, "dev", "eth0"]);
    run("ip", &["link", "set", "eth0", "up"]);
    run("ip", &["route", "add", "default", "via", OUTSIDE]);
}

fn run(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    let status = status.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(status.success(), "{program} {arguments:?}: {status}");
}
