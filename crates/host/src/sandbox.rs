//! Confinement of a process that parses what other programs and machines send.
//!
//! Three layers, of which each holds without the others:
//!
//! - **user**: a process of root becomes one of `nobody` and loses every capability;
//! - **files** (Landlock): no file can be opened, executed, made or removed, no address connected
//!   or bound, no process outside signalled;
//! - **system calls** (seccomp): only those pass that serve connections which already exist or
//!   are accepted (`system_calls`).
//!
//! A layer that the kernel does not offer is reported and left out: an old kernel is no reason to
//! serve nothing. Tried by `tests/processes/sandbox.rs`, which attempts what is forbidden.

mod system_calls;

use crate::Roots;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus,
    Scope,
};
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::PathBuf;

/// The user and the group that own nothing, on every distribution.
const NOBODY: u32 = 65_534;

/// One layer of the confinement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// The process has no rights of root.
    User,
    /// Landlock.
    Files,
    /// Seccomp.
    SystemCalls,
}

impl Layer {
    /// All of them, in the order in which they are applied.
    pub const ALL: [Self; 3] = [Self::User, Self::Files, Self::SystemCalls];
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "a user without rights",
            Self::Files => "Landlock",
            Self::SystemCalls => "a filter of system calls (seccomp)",
        })
    }
}

/// A layer that is not in force, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The layer.
    pub layer: Layer,
    /// Why it is not in force.
    pub why: String,
}

/// Gives up, for good, the rights that the layers take. Returns those that are not in force.
///
/// To be called while the process has one thread: every layer is of the calling thread and of
/// those that it makes.
pub fn confine(layers: &[Layer]) -> Vec<Gap> {
    let mut gaps = Vec::new();
    for layer in layers {
        let applied = match layer {
            Layer::User => drop_user(),
            Layer::Files => forbid_files(&ClientRights::default()),
            Layer::SystemCalls => system_calls::forbid(),
        };
        gaps.extend(applied.err().map(|why| Gap { layer: *layer, why }));
    }
    gaps
}

/// The rights that a process keeps if it connects to servers itself.
#[derive(Debug, Clone, Default)]
pub struct ClientRights {
    /// Files, and directories with all below them, that it may read. Missing ones are left out.
    pub files: Vec<PathBuf>,
    /// TCP ports, of any address, that it may connect to.
    pub ports: Vec<u16>,
}

/// As [`confine`] with the last two layers, for a process that keeps these rights: it may start
/// threads, open sockets, connect to the ports and read the files, and nothing else of what the
/// layers forbid.
pub fn confine_client(rights: &ClientRights) -> Vec<Gap> {
    let layers = [
        (Layer::Files, forbid_files(rights)),
        (Layer::SystemCalls, system_calls::forbid_for_client()),
    ];
    let gap =
        |(layer, applied): (Layer, Result<(), String>)| applied.err().map(|why| Gap { layer, why });
    layers.into_iter().filter_map(gap).collect()
}

/// Returns the layers that this kernel offers, by how, or why not.
pub fn offers(roots: &Roots) -> [(Layer, Result<String, String>); 2] {
    let seccomp = roots.proc.join("sys/kernel/seccomp/actions_avail");
    let actions = std::fs::read_to_string(&seccomp);
    let seccomp = match actions {
        Ok(actions) if actions.split_whitespace().any(|one| one == "errno") => {
            Ok("seccomp".to_owned())
        }
        Ok(_) => Err(format!("{} has no `errno`", seccomp.display())),
        Err(error) => Err(format!("cannot read {}: {error}", seccomp.display())),
    };
    [(Layer::Files, landlock_offer()), (Layer::SystemCalls, seccomp)]
}

/// Tries Landlock on a thread, which ends with its rules.
fn landlock_offer() -> Result<String, String> {
    let trial = std::thread::Builder::new().spawn(|| forbid_files(&ClientRights::default()));
    let trial = trial.map_err(|error| format!("cannot try it: {error}"))?;
    let tried = trial.join().map_err(|_| "cannot try it: the trial panicked".to_owned())?;
    tried.map(|()| "Landlock".to_owned())
}

fn drop_user() -> Result<(), String> {
    let dropped = if geteuid().is_root() { change_user() } else { Ok(()) };
    let none = CapabilitySet::empty();
    let without = CapabilitySets { effective: none, permitted: none, inheritable: none };
    let failed = |what: &str, error: io::Error| format!("cannot {what}: {error}");
    set_capabilities(None, without).map_err(|error| failed("drop capabilities", error.into()))?;
    set_no_new_privs(true).map_err(|error| failed("refuse new ones", error.into()))?;
    dropped.map_err(|error| {
        let what = "change its user, so that it stays root without capabilities";
        let needed = "CAP_SETUID, CAP_SETGID and, in a user namespace, a user 65534 are needed";
        format!("{}; {needed}", failed(what, error))
    })
}

fn change_user() -> io::Result<()> {
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    set_thread_groups(&[])?;
    set_thread_res_gid(group, group, group)?;
    Ok(set_thread_res_uid(user, user, user)?)
}

/// Handles every right that Landlock knows, and grants these.
fn forbid_files(rights: &ClientRights) -> Result<(), String> {
    let restrict = || -> Result<RulesetStatus, RulesetError> {
        let ruleset = Ruleset::default()
            .handle_access(AccessFs::from_all(ABI::V5))?
            .handle_access(AccessNet::from_all(ABI::V5))?
            .scope(Scope::from_all(ABI::V6))?;
        Ok(grant(ruleset.create()?, rights)?.restrict_self()?.ruleset)
    };
    match restrict() {
        // An older kernel supports fewer rights; the rights on files are supported by all.
        Ok(RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced) => Ok(()),
        Ok(RulesetStatus::NotEnforced) => {
            Err("the kernel is older than 5.13, or its `lsm=` leaves Landlock out".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

fn grant(
    mut ruleset: RulesetCreated,
    rights: &ClientRights,
) -> Result<RulesetCreated, RulesetError> {
    for path in &rights.files {
        let Ok(file) = PathFd::new(path) else { continue };
        let access: BitFlags<AccessFs> = match path.is_dir() {
            true => AccessFs::ReadFile | AccessFs::ReadDir,
            false => AccessFs::ReadFile.into(),
        };
        ruleset = ruleset.add_rule(PathBeneath::new(file, access))?;
    }
    // A kernel that does not know ports restricts none.
    ruleset = ruleset.set_compatibility(CompatLevel::BestEffort);
    for port in &rights.ports {
        ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
    }
    Ok(ruleset)
}
