//! The scheduling of the threads of a process, as in proc(5).

use std::collections::BTreeMap;
use std::fs;

/// The cores and the scheduling of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ThreadState {
    /// `Cpus_allowed_list`.
    pub(crate) cores: String,
    pub(crate) nice: String,
    pub(crate) rt_priority: String,
    /// 0 is SCHED_OTHER, 2 is SCHED_RR.
    pub(crate) policy: String,
}

/// The threads of a process by number; empty if it has ended.
pub(crate) fn threads(pid: i32) -> BTreeMap<i32, ThreadState> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return BTreeMap::new() };
    let tids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
    tids.filter_map(|tid| Some((tid, thread(pid, tid)?))).collect()
}

/// The cores that the main thread of a process may use.
pub(crate) fn cores_of(pid: i32) -> String {
    thread(pid, pid).map(|thread| thread.cores).unwrap_or_default()
}

fn thread(pid: i32, tid: i32) -> Option<ThreadState> {
    let directory = format!("/proc/{pid}/task/{tid}");
    let status = fs::read_to_string(format!("{directory}/status")).ok()?;
    let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let stat = fs::read_to_string(format!("{directory}/stat")).ok()?;
    // The name in brackets may hold blanks; field 3 is the first after it.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 2..].split(' ').collect();
    let field = |number: usize| fields.get(number - 3).map(|field| (*field).to_owned());
    Some(ThreadState {
        cores: cores.trim().to_owned(),
        nice: field(19)?,
        rt_priority: field(40)?,
        policy: field(41)?,
    })
}
