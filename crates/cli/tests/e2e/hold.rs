//! `lull hold` on the interfaces that any machine has.

use crate::support::agent::Ended;
use crate::support::scene::Scene;
use crate::support::{is_root, send, skip};
use rustix::process::Signal;
use std::path::{Path, PathBuf};

/// Runs `lull hold` with a state directory of the scene.
fn hold(scene: &Scene, request: &str, command: &[&str]) -> Ended {
    let state = scene.path("state").display().to_string();
    scene.run(&[&["hold", "--state", &state, request, "--"][..], command].concat())
}

/// A cgroup of this test's own with a CPU controller; `None` where none can be had.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(name: &str) -> Option<Self> {
        let top = Path::new("/sys/fs/cgroup");
        let controllers = std::fs::read_to_string(top.join("cgroup.subtree_control")).ok()?;
        let dir = top.join(format!("lull-test-{name}-{}", std::process::id()));
        let has_cpu = controllers.split_whitespace().any(|one| one == "cpu");
        (has_cpu && std::fs::create_dir(&dir).is_ok()).then_some(Self(dir))
    }

    fn name(&self) -> &str {
        self.0.file_name().unwrap().to_str().unwrap()
    }

    fn weight(&self) -> String {
        std::fs::read_to_string(self.0.join("cpu.weight")).unwrap().trim().to_owned()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_wish_that_is_none_is_bad_usage_and_says_what_there_is() {
    let scene = Scene::new();
    let ended = hold(&scene, "turbo=off", &["true"]);
    assert_eq!(ended.code(), 2, "{}", ended.err);
    assert!(ended.err.contains("wake-latency"), "{}", ended.err);
}

#[test]
fn a_knob_that_is_not_here_is_refused_and_nothing_is_run() {
    let scene = Scene::new();
    let mark = scene.write("mark", "");
    std::fs::remove_file(&mark).unwrap();
    let mark = mark.display().to_string();
    let ended = hold(&scene, "power-limit=no-such-domain:5", &["touch", &mark]);
    assert_eq!(ended.code(), 1, "{}", ended.err);
    assert!(!Path::new(&mark).exists());
}

#[test]
fn a_command_that_an_interrupt_ends_has_failed() {
    let file = "/dev/cpu_dma_latency";
    if std::fs::File::options().write(true).open(file).is_err() {
        return skip("no wake-up latency to hold here");
    }
    let scene = Scene::new();
    let (state, mark) = (scene.path("state").display().to_string(), scene.path("mark"));
    let script = format!("touch {}; exec sleep 600", mark.display());
    let hold = ["hold", "--state", &state, "wake-latency=100us", "--", "sh", "-c", &script];
    let mut holder = scene.start(scene.lull(&hold));
    holder.wait_for("the command", || mark.exists());
    holder.interrupt().refused(1, "`sh` ended with signal: 15");
}

#[test]
fn a_cgroup_is_held_while_the_command_runs_and_put_back() {
    let Some(cgroup) = Cgroup::new("held").filter(|_| is_root()) else {
        return skip("no cgroup v2 with a CPU controller to write here");
    };
    let scene = Scene::new();
    let before = cgroup.weight();
    let request = format!("cgroup={}:cpu.weight:7", cgroup.name());
    let file = cgroup.0.join("cpu.weight").display().to_string();
    let ended = hold(&scene, &request, &["cat", &file]).well();
    assert_eq!(ended.out.trim(), "7");
    assert_eq!(cgroup.weight(), before);
    let failed = hold(&scene, &request, &["false"]);
    assert_eq!(failed.code(), 1);
    assert_eq!(cgroup.weight(), before);
}

#[test]
fn a_core_has_its_wake_up_latency_bounded_while_the_command_runs() {
    let file = "/sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us";
    let read = || std::fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    let before = read();
    if before.is_empty() || !is_root() {
        return skip("no per-core latency bound to write here");
    }
    let scene = Scene::new();
    let request =
        if before == "4711" { "resume-latency=0:4712us" } else { "resume-latency=0:4711us" };
    let ended = hold(&scene, request, &["cat", file]).well();
    assert_eq!(ended.out.trim(), if before == "4711" { "4712" } else { "4711" });
    assert_eq!(read(), before);
    assert!(ended.err.contains("1 values restored"), "{}", ended.err);
}

/// The command of a killed `lull hold` would run without the settings that it was given.
#[test]
fn a_lost_guard_of_a_hold_is_replaced_and_ends_the_command_of_a_killed_hold() {
    let file = "/sys/devices/system/cpu/cpu1/power/pm_qos_resume_latency_us";
    let read = || std::fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    let before = read();
    if before.is_empty() || !is_root() {
        return skip("no latency bound of a second core to write here");
    }
    let scene = Scene::new();
    let state = scene.path("state").display().to_string();
    let request = "resume-latency=1:4713us";
    let arguments = ["hold", "--state", &state, request, "--", "sleep", "3000"];
    let mut hold = scene.start(scene.lull(&arguments));
    hold.wait_for("the command", || scene.process_with(&["sleep", "3000"]).is_some());
    hold.wait_for("its line in the ledger", || {
        let ledger = std::fs::read_to_string(scene.path("state/ledger")).unwrap_or_default();
        ledger.contains("\"started\"")
    });
    for (signal, words) in [(Signal::KILL, "signal: 9"), (Signal::STOP, "signal: 19")] {
        let lost = scene.process_with(&["guard"]).unwrap();
        send(lost, signal);
        hold.wait_until_printed(words);
        assert!(!scene.processes().contains(&lost), "the lost guard has ended");
    }
    assert_eq!(read(), "4713");
    hold.signal(Signal::KILL);
    hold.wait();
    scene.wait_until_quiet();
    assert_eq!(read(), before);
}
