//! Tests of every knob of files against every error of a kernel: Lull's error names the
//! file and the kernel's error, and earlier writes are undone and in the ledger.
//!
//! Most errors are injected before the write, because no tree of files produces them; a
//! read-only mount, a missing file and a directory in place of a file are real. Real
//! drivers refuse in the rig (tests/rig/hold.rs, performance.rs).

use super::{HoldRequest, grant};
use crate::drivers::cpufreq::tests::policy;
use crate::drivers::text::{FileError, faults};
use crate::guard::{Key, Restored};
use crate::knobs::KnobError;
use crate::testing::{Saved, Tree};
use std::path::Path;
use std::process::Command;

/// The errors that kernels return to a write.
const ANSWERS: [i32; 8] = [
    libc::EACCES,
    libc::EBUSY,
    libc::EINVAL,
    libc::EIO,
    libc::ENODEV,
    libc::ENOENT,
    libc::ENOSPC,
    libc::EROFS,
];

/// A request, and a file that is written for it, the last one of several.
type Row = (&'static str, &'static str);

const ROWS: [Row; 11] = [
    ("governor=performance", "policy1/scaling_governor"),
    ("energy-preference=power", "policy1/energy_performance_preference"),
    ("idle-latency=10us", "cpu1/cpuidle/state1/disable"),
    ("idle-state=POLL", "cpu1/cpuidle/state1/disable"),
    ("resume-latency=0-1:20us", "cpu1/power/pm_qos_resume_latency_us"),
    ("power-limit=package-0:45", "intel-rapl:0/constraint_0_power_limit_uw"),
    ("power-limit=package-0:45", OPTIONAL),
    ("irq=24:1", "irq/24/smp_affinity_list"),
    ("cgroup=web:cpu.weight:7", "web/cpu.weight"),
    ("cgroup=web:cpu.max:20ms/100ms", "web/cpu.max"),
    ("cgroup=web:cpuset.cpus:1", "web/cpuset.cpus"),
];

/// A domain without this file is always enabled.
const OPTIONAL: &str = "intel-rapl:0/enabled";

/// Granted before the request of a row: what a refusal has to undo.
const FIRST: &str = "irq=7:1";

const FILES: [(&str, &str); 22] = [
    ("proc/irq/7/smp_affinity_list", "0-1"),
    ("proc/irq/24/smp_affinity_list", "0-1"),
    ("sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL"),
    ("sys/devices/system/cpu/cpu0/cpuidle/state0/latency", "0"),
    ("sys/devices/system/cpu/cpu0/cpuidle/state0/disable", "0"),
    ("sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C6"),
    ("sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "90"),
    ("sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "0"),
    ("sys/devices/system/cpu/cpu1/cpuidle/state0/name", "POLL"),
    ("sys/devices/system/cpu/cpu1/cpuidle/state0/latency", "0"),
    ("sys/devices/system/cpu/cpu1/cpuidle/state0/disable", "0"),
    ("sys/devices/system/cpu/cpu1/cpuidle/state1/name", "C6"),
    ("sys/devices/system/cpu/cpu1/cpuidle/state1/latency", "90"),
    ("sys/devices/system/cpu/cpu1/cpuidle/state1/disable", "0"),
    ("sys/devices/system/cpu/cpu0/power/pm_qos_resume_latency_us", "0"),
    ("sys/devices/system/cpu/cpu1/power/pm_qos_resume_latency_us", "0"),
    ("sys/class/powercap/intel-rapl:0/name", "package-0"),
    ("sys/class/powercap/intel-rapl:0/constraint_0_name", "long_term"),
    ("sys/class/powercap/intel-rapl:0/constraint_0_max_power_uw", "65000000"),
    ("sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw", "28000000"),
    ("sys/class/powercap/intel-rapl:0/enabled", "0"),
    ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu"),
];

fn machine() -> Tree {
    let tree = Tree::new();
    for number in [0, 1] {
        let dir = format!("sys/devices/system/cpu/cpufreq/policy{number}");
        policy(&tree, &dir, "powersave performance");
        let preference = format!("{dir}/energy_performance");
        tree.write(&format!("{preference}_available_preferences"), "performance power\n");
        tree.write(&format!("{preference}_preference"), "performance\n");
    }
    for (name, text) in FILES {
        tree.write(name, &format!("{text}\n"));
    }
    for (name, text) in [("cpu.weight", "100"), ("cpu.max", "max 100000"), ("cpuset.cpus", "0-1")] {
        tree.write(&format!("sys/fs/cgroup/web/{name}"), &format!("{text}\n"));
    }
    tree
}

/// All files with their texts.
fn texts(dir: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(texts(&path));
        } else if path.is_file() {
            let text = std::fs::read_to_string(&path).unwrap().trim().to_owned();
            found.push((path.display().to_string(), text));
        }
    }
    found.sort();
    found
}

fn requests(texts: &[&str]) -> Vec<HoldRequest> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn refused(tree: &Tree, request: &str, saved: &mut Saved) -> FileError {
    match grant(&requests(&[FIRST, request]), &tree.roots(), saved) {
        Err(KnobError::File(error)) => error,
        other => panic!("{request}: {other:?}"),
    }
}

/// Asserts that the ledger has the written value and finds it undone already.
fn is_journalled(tree: &Tree, saved: &Saved, what: &str) {
    let first = Key::File(tree.path("proc/irq/7/smp_affinity_list"));
    let known = |original: &&crate::guard::Original| original.key() == first;
    let original = saved.originals.iter().find(known).unwrap_or_else(|| panic!("{what}: unsaved"));
    assert_eq!(original.restore(&tree.roots()), Restored::Already, "{what}");
}

#[test]
fn every_error_at_the_last_file_of_every_knob_undoes_the_plan_and_is_reported() {
    for (request, file) in ROWS {
        for errno in ANSWERS {
            let (tree, mut saved) = (machine(), Saved::default());
            let before = texts(&tree.path("."));
            faults::refuse(file, 0, errno);
            let error = refused(&tree, request, &mut saved);
            faults::clear();
            let what = format!("{request}: {error}");
            assert!(error.path.ends_with(file), "{what}");
            assert_eq!(error.source.raw_os_error(), Some(errno), "{what}");
            let reason = std::io::Error::from_raw_os_error(errno).to_string();
            assert!(what.contains(file) && what.contains(&reason), "{what}");
            assert_eq!(texts(&tree.path(".")), before, "{what}");
            is_journalled(&tree, &saved, &what);
        }
    }
}

#[test]
fn the_same_wishes_are_granted_and_put_back_where_nothing_refuses() {
    for (request, file) in ROWS {
        let (tree, mut saved) = (machine(), Saved::default());
        let before = texts(&tree.path("."));
        let held = grant(&requests(&[FIRST, request]), &tree.roots(), &mut saved).unwrap();
        let written = held.changes().iter().any(|line| line.contains(file));
        assert!(written, "{request} does not write {file}: {:?}", held.changes());
        for original in &saved.originals {
            let restored = original.restore(&tree.roots());
            assert!(matches!(restored, Restored::Done | Restored::Already), "{request}");
        }
        assert_eq!(texts(&tree.path(".")), before, "{request}");
    }
}

/// Hot-unplugged between two requests, or another kernel: nothing is there, or
/// something else.
#[test]
fn a_file_that_is_gone_or_a_directory_is_named_and_nothing_is_changed() {
    for (request, file) in ROWS.into_iter().filter(|(_, file)| *file != OPTIONAL) {
        for is_directory in [false, true] {
            let (tree, mut saved) = (machine(), Saved::default());
            let all = texts(&tree.path("."));
            let (gone, _) = all.iter().find(|(path, _)| Path::new(path).ends_with(file)).unwrap();
            std::fs::remove_file(gone).unwrap();
            if is_directory {
                std::fs::create_dir(gone).unwrap();
            }
            let before = texts(&tree.path("."));
            let result = grant(&requests(&[FIRST, request]), &tree.roots(), &mut saved);
            let error = result.map(|held| held.changes()).unwrap_err().to_string();
            let mut parts = Path::new(file).iter().map(|part| part.to_string_lossy());
            // An interrupt is looked for by its file.
            let names_file =
                parts.all(|part| error.contains(&*part)) || error.contains("no interrupt 24");
            assert!(names_file, "{request}: {error}");
            assert_eq!(texts(&tree.path(".")), before, "{request}: {error}");
        }
    }
}

/// Only root can mount; elsewhere the test puts the kernel's answer in place of a mount.
#[test]
fn a_read_only_mount_is_reported_as_such_for_every_knob() {
    for (request, _) in ROWS {
        let (tree, mut saved) = (machine(), Saved::default());
        let before = texts(&tree.path("."));
        let Some(_mount) = ReadOnly::over(&tree.path("")) else { return };
        let error = refused(&tree, request, &mut saved);
        assert_eq!(error.source.raw_os_error(), Some(libc::EROFS), "{error}");
        assert!(error.to_string().contains("mounted read-only"), "{error}");
        assert_eq!(texts(&tree.path(".")), before);
    }
}

/// A directory mounted over itself, read-only, until it is dropped.
struct ReadOnly(std::path::PathBuf);

impl ReadOnly {
    fn over(dir: &Path) -> Option<Self> {
        mount(&["--bind"], &[dir, dir]).then_some(())?;
        let mounted = Self(dir.to_owned());
        mount(&["-o", "remount,bind,ro"], &[dir]).then_some(mounted)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn mount(options: &[&str], places: &[&Path]) -> bool {
    let mut command = Command::new("mount");
    command.args(options).args(places).stderr(std::process::Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
