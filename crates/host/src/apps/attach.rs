//! Finding an app that Lull does not start: by pid, cgroup, systemd unit or pattern.
//!
//! A process must run; a cgroup, unit or pattern may have no process yet.
//!
//! Tested on Linux 6.18 with real processes and a real version 1 cgroup, and under the systemd of
//! Debian 12 (`cargo xtask rig systemd`). Other tests use a program that answers as `man 1
//! systemctl` documents it.

use super::cgroup::{self, CgroupError};
use super::globs::{self, GlobError};
use super::identity::{Facts, ProcessId};
use super::members::Scope;
use super::pattern::ProcessPattern;
use super::search::Search;
use super::table::ProcessTable;
use crate::Roots;
use rustix::process::geteuid;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The criterion that finds an app which Lull does not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Its first process; its descendants belong to it.
    Pid(i32),
    /// A cgroup with the cgroups below it, or all that match a glob.
    Cgroup(PathBuf),
    /// A systemd unit, or all that match a glob.
    Unit(String),
    /// All processes that match.
    Pattern(ProcessPattern),
}

/// Why an app cannot be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No such process.
    #[error(
        "no process {pid}: it has ended, or the number is wrong; `pgrep -a NAME` finds one by name"
    )]
    Gone {
        /// The number.
        pid: i32,
    },
    /// A process that no app is made of.
    #[error("process {pid} is {what}, which cannot be an app")]
    NoApp {
        /// The number.
        pid: i32,
        /// A description of the process.
        what: &'static str,
    },
    /// Its threads cannot be bound.
    #[error("process {pid} belongs to user {owner}: run Lull as that user or as root")]
    Foreign {
        /// The number.
        pid: i32,
        /// Its owner.
        owner: u32,
    },
    /// The cgroup cannot be used.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A glob is none.
    #[error(transparent)]
    Glob(#[from] GlobError),
    /// systemd cannot be queried.
    #[error("cannot query systemd for unit `{unit}`: {source}; attach by pid or cgroup instead")]
    NoSystemd {
        /// The unit.
        unit: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Processes cannot be listed.
    #[error("cannot list processes in {path}: {source}", path = .path.display())]
    Unreadable {
        /// Where.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Where the processes of a target are found.
pub(super) fn scope_of(target: &Target, roots: &Roots) -> Result<Scope, AttachError> {
    match target {
        Target::Pid(pid) => scope_of_pid(*pid, roots),
        _ => search_for(target, roots).map(Scope::Search),
    }
}

/// How a target is found repeatedly; a process, which has no successor, is refused.
pub(super) fn search_for(target: &Target, roots: &Roots) -> Result<Search, AttachError> {
    match target {
        Target::Pid(pid) => Err(AttachError::NoApp { pid: *pid, what: "one process" }),
        Target::Cgroup(path) => search_for_cgroup(path, roots),
        Target::Unit(unit) => search_for_unit(unit, Path::new("systemctl"), roots),
        Target::Pattern(pattern) => Ok(Search::pattern(pattern)?),
    }
}

fn scope_of_pid(pid: i32, roots: &Roots) -> Result<Scope, AttachError> {
    let unreadable = |source| AttachError::Unreadable { path: roots.proc.clone(), source };
    let facts = match Facts::of_process(roots, pid) {
        Ok(facts) if facts.is_ended() => return Err(AttachError::Gone { pid }),
        Ok(facts) => facts,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(AttachError::Gone { pid });
        }
        Err(error) => return Err(unreadable(error)),
    };
    let refused = |what| Err(AttachError::NoApp { pid, what });
    if facts.is_kernels {
        return refused("a thread of the kernel");
    }
    if let Some(what) = above_lull(pid, roots) {
        return refused(what);
    }
    // A thread has a directory by its number too, but is not listed.
    if ProcessTable::new(roots).map_err(unreadable)?.facts(pid).is_none() {
        return refused("one thread of a process");
    }
    let owner = std::fs::metadata(roots.proc.join(pid.to_string())).map_err(unreadable)?.uid();
    if !geteuid().is_root() && owner != geteuid().as_raw() {
        return Err(AttachError::Foreign { pid, owner });
    }
    let root = ProcessId { pid, start_ticks: facts.start_ticks };
    Ok(Scope::Tree { root, with_group: false })
}

/// Describes a process whose tree contains Lull; returns `None` for all others. Settings of such an
/// app would be inherited by Lull itself and by every program that its owner starts.
pub fn above_lull(pid: i32, roots: &Roots) -> Option<&'static str> {
    if pid == 1 {
        return Some("the first process of the machine or container");
    }
    if !roots.is_own_proc() {
        return None;
    }
    let mut process = rustix::process::getpid().as_raw_nonzero().get();
    if pid == process {
        return Some("Lull itself");
    }
    while process != pid {
        // The parent of process 1 is 0, which is not a process.
        process = Facts::of_process(roots, process).ok()?.parent;
    }
    Some("an ancestor of Lull")
}

/// Refuses a directory that is not a cgroup, and a threaded one; it may be missing or empty.
fn search_for_cgroup(path: &Path, roots: &Roots) -> Result<Search, AttachError> {
    if !globs::is_glob(&path.to_string_lossy()) {
        match cgroup::find(roots, path) {
            Ok(directory) => drop(cgroup::processes(&directory)?),
            Err(CgroupError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Search::cgroup(path)?)
}

/// Finds a unit by its cgroup's name, and where systemd answers, at the place that it says.
fn search_for_unit(unit: &str, systemctl: &Path, roots: &Roots) -> Result<Search, AttachError> {
    if globs::is_glob(unit) {
        return Ok(Search::unit(unit, None)?);
    }
    let state = match state_of_unit(unit, systemctl) {
        Ok(state) => state,
        // A tree of units shows that systemd runs, or did: in a container, for one.
        Err(_) if cgroup::has_units(roots) => UnitFacts::default(),
        Err(error) => return Err(error),
    };
    Ok(Search::unit(unit, state.cgroup)?.with_obstacle(state.obstacle))
}

/// The cgroup of a unit and whether the unit can start, as systemd reports them.
#[derive(Debug, Default, PartialEq, Eq)]
struct UnitFacts {
    /// Its cgroup, if it has one now.
    cgroup: Option<PathBuf>,
    /// Why it cannot start.
    obstacle: Option<String>,
}

/// Reads from systemd where a unit is, and whether it can start.
fn state_of_unit(unit: &str, systemctl: &Path) -> Result<UnitFacts, AttachError> {
    let name = || unit.to_owned();
    let mut command = Command::new(systemctl);
    command.args(["show", "--property=ControlGroup,LoadState", "--", unit]);
    let answer =
        command.output().map_err(|source| AttachError::NoSystemd { unit: name(), source })?;
    let text = String::from_utf8_lossy(&answer.stdout);
    if !answer.status.success() {
        let message = String::from_utf8_lossy(&answer.stderr).trim().to_owned();
        let source = io::Error::other(message);
        return Err(AttachError::NoSystemd { unit: name(), source });
    }
    let property = |key: &str| {
        let value = |line: &str| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned);
        text.lines().find_map(value).unwrap_or_default()
    };
    let path = property("ControlGroup");
    let obstacle = match property("LoadState").as_str() {
        "masked" => Some(format!("which is masked: `systemctl unmask {unit}` lets it start")),
        "not-found" => Some("of which systemd knows no file".to_owned()),
        _ => None,
    };
    Ok(UnitFacts { cgroup: (!path.is_empty()).then(|| path.into()), obstacle })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that answers as `systemctl show` does.
    fn systemctl(script: &str) -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("systemctl");
        // Written by another process: a child that a test beside this one forks
        // meanwhile would hold it open, and what is open for writing does not run.
        let mut writer = Command::new("sh");
        writer.args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\""]);
        assert!(writer.arg(&path).arg(script).status().unwrap().success());
        place
    }

    fn facts_from(script: &str) -> Result<UnitFacts, AttachError> {
        let place = systemctl(script);
        state_of_unit("a.service", &place.path().join("systemctl"))
    }

    fn cgroup_from(script: &str) -> Result<Option<PathBuf>, AttachError> {
        facts_from(script).map(|facts| facts.cgroup)
    }

    #[test]
    fn a_unit_is_found_by_its_cgroup() {
        let script = "test \"$1 $3 $4\" = 'show -- a.service' || exit 1\n\
                      echo ControlGroup=/system.slice/a.service";
        let found = cgroup_from(script).unwrap();
        assert_eq!(found.as_deref(), Some(Path::new("/system.slice/a.service")));
    }

    #[test]
    fn a_unit_without_processes_has_no_cgroup_and_a_machine_without_systemd_says_so() {
        assert_eq!(cgroup_from("echo ControlGroup=").unwrap(), None);
        let not_booted = "echo 'System has not been booted with systemd' >&2; exit 1";
        assert!(cgroup_from(not_booted).unwrap_err().to_string().contains("not been booted"));
        let missing = state_of_unit("a.service", Path::new("/nonexistent/systemctl"));
        assert!(matches!(missing, Err(AttachError::NoSystemd { .. })));
        let tree = tempfile::tempdir().unwrap();
        let roots = Roots::under(tree.path());
        let nowhere = Path::new("/nonexistent/systemctl");
        assert!(search_for_unit("a.service", nowhere, &roots).is_err());
        std::fs::create_dir_all(roots.sys.join("fs/cgroup/system.slice")).unwrap();
        std::fs::write(roots.sys.join("fs/cgroup/cgroup.procs"), "").unwrap();
        assert!(search_for_unit("a.service", nowhere, &roots).is_ok());
    }

    #[test]
    fn a_unit_that_cannot_start_waits_and_the_reason_is_reported() {
        let masked = systemctl("echo ControlGroup=; echo LoadState=masked");
        let tree = tempfile::tempdir().unwrap();
        let roots = Roots::under(tree.path());
        let program = masked.path().join("systemctl");
        std::fs::create_dir(&roots.proc).unwrap();
        let table = ProcessTable::new(&roots).unwrap();
        let mut search = search_for_unit("a.service", &program, &roots).unwrap();
        let why = search.describe();
        assert!(why.contains("masked") && why.contains("systemctl unmask a.service"), "{why}");
        assert!(!search.may_have_processes(&table));
        let unknown = facts_from("echo ControlGroup=; echo LoadState=not-found").unwrap();
        assert!(unknown.obstacle.unwrap().contains("knows no file"));
        // Unmasked and started meanwhile.
        let group = roots.sys.join("fs/cgroup/system.slice/a.service");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(roots.sys.join("fs/cgroup/cgroup.procs"), "").unwrap();
        std::fs::write(group.join("cgroup.procs"), "7\n").unwrap();
        assert!(search.may_have_processes(&table));
        assert_eq!(search.describe(), "unit `a.service`");
    }

    #[test]
    fn what_is_no_app_is_refused() {
        let roots = Roots::default();
        let me = ProcessId::own(&roots).unwrap().pid;
        let refused = |pid| scope_of_pid(pid, &roots).unwrap_err();
        assert!(matches!(refused(me), AttachError::NoApp { what: "Lull itself", .. }));
        assert!(matches!(refused(i32::MAX), AttachError::Gone { .. }));
        let mine = std::thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            scope_of_pid(tid, &Roots::default()).unwrap_err().to_string()
        });
        assert!(mine.join().unwrap().contains("one thread of a process"));
        let kthreadd = Facts::of_process(&roots, 2);
        if kthreadd.is_ok_and(|facts| facts.is_kernels) {
            assert!(refused(2).to_string().contains("thread of the kernel"));
        }
    }
}
