//! What the tests share: a scene, the agent, victims, records.

pub(crate) mod agent;
pub(crate) mod browser;
pub(crate) mod http;
pub(crate) mod record;
pub(crate) mod scene;
pub(crate) mod threads;
pub(crate) mod victim;

pub(crate) use lull_testing::skip;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest wait for an event that must happen; only a fault takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(20);

/// The program under test.
pub(crate) const LULL: &str = env!("CARGO_BIN_EXE_lull");

/// Waits for a condition; panics with `what` if it does not become true.
pub(crate) fn wait_for(what: &str, mut has_come: impl FnMut() -> bool) {
    wait_or(|| format!("did not come: {what}"), &mut has_come);
}

/// As [`wait_for`], with a message that is built only when it is needed.
pub(crate) fn wait_or(complaint: impl Fn() -> String, has_come: &mut dyn FnMut() -> bool) {
    let begun = Instant::now();
    while !has_come() {
        assert!(begun.elapsed() < PATIENCE, "{}", complaint());
        sleep(PAUSE);
    }
}

/// Whether the tests run as root.
pub(crate) fn is_root() -> bool {
    geteuid().is_root()
}

/// Whether the kernel reports forks to an agent of these tests: to root of the machine's own
/// namespaces, whose inodes are fixed.
pub(crate) fn has_forks() -> bool {
    use std::os::unix::fs::MetadataExt;
    let is_first = |(path, inode): (&str, u64)| {
        std::fs::metadata(path).is_ok_and(|namespace| namespace.ino() == inode)
    };
    let first = [("/proc/self/ns/pid", 0xEFFF_FFFC), ("/proc/self/ns/user", 0xEFFF_FFFD)];
    is_root() && first.into_iter().all(is_first)
}

/// Whether this user may observe sockets with eBPF; prints the reason if not.
pub(crate) fn has_ebpf(scene: &scene::Scene) -> bool {
    let ended = scene.run(&["exec", "--ebpf", "--", "true"]);
    let is_refused = ended.code() == 2 && ended.err.contains("cannot be watched");
    if is_refused {
        skip(&ended.err);
        return false;
    }
    ended.well();
    true
}

/// Number of cores of this machine.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Sends a signal to a process; does nothing if the process has ended.
pub(crate) fn send(pid: i32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}

/// Returns a TCP port on which no process listens.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The arguments of a process; empty if it has ended.
pub(crate) fn arguments(pid: i32) -> Vec<String> {
    let bytes = std::fs::read(PathBuf::from(format!("/proc/{pid}/cmdline"))).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    text.split_terminator('\0').map(str::to_owned).collect()
}
