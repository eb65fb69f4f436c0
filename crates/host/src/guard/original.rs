//! A value outside of Lull that it changes, before the first change.

use super::cpuset;
use crate::apps::ProcessId;
use crate::drivers::cgroup::CgroupFile;
use crate::drivers::cpufreq::PolicyState;
use crate::drivers::ethtool::Coalescing;
use crate::drivers::systemd::{UnitProperty, UnitState};
use crate::files::read_value;
use crate::sys::sched;
use crate::{LiveThread, Roots};
use lull_control::CoreSet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Something that Lull is about to change, as it is before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Original {
    /// How a thread is scheduled.
    Thread {
        /// Its number.
        tid: i32,
        /// Its start time.
        start_time_ticks: u64,
        /// Its process.
        pid: i32,
        /// The cores it may run on.
        affinity: CoreSet,
        /// `SCHED_*`, with the bit `SCHED_RESET_ON_FORK` where it is set.
        policy: u32,
        /// Priority of `SCHED_FIFO` and `SCHED_RR`; else 0.
        rt_priority: u32,
        /// Nice value.
        nice: i32,
        /// The time slice that its owner set, in nanoseconds; 0 if it has the kernel's.
        #[serde(default)]
        slice_ns: u64,
        /// Whether it had the cores of its cpuset, and so follows the cpuset; `None` if the
        /// cpuset could not be read.
        follows_cpuset: Option<bool>,
    },
    /// The kernel's throttle on real-time threads.
    RealTimeThrottle {
        /// `sched_rt_runtime_us` below `proc`.
        path: PathBuf,
        /// Its value; -1 is off.
        runtime_us: i64,
        /// Lull's values, as in [`Original::Text`].
        #[serde(default)]
        ours: Vec<String>,
    },
    /// A file of the kernel that takes and shows one text.
    Text {
        /// The file.
        path: PathBuf,
        /// Its text.
        text: String,
        /// The value that is safe for every objective, if it is not the text itself.
        safe: Option<String>,
        /// The texts that the file has if Lull, and no other program, has set it: Lull's former one
        /// and the next. Empty in ledgers of versions that did not save them; the value is then
        /// restored whatever the file has.
        #[serde(default)]
        ours: Vec<String>,
    },
    /// A resctrl group that Lull makes and must remove.
    Group {
        /// Its directory.
        path: PathBuf,
    },
    /// Interrupt coalescing of a network interface.
    Coalescing {
        /// The interface.
        nic: String,
        /// All that it was set to.
        was: Coalescing,
        /// Lull's values, as in [`Original::Text`], one parameter each.
        #[serde(default)]
        ours: Vec<String>,
    },
    /// The frequency of some cores.
    CpuFreq {
        /// Governor, bounds and speed.
        #[serde(flatten)]
        state: PolicyState,
        /// Lull's values, as in [`Original::Text`], of any of its files.
        #[serde(default)]
        ours: Vec<String>,
    },
    /// A file of a cgroup.
    Cgroup(CgroupFile),
    /// A limit of a systemd unit.
    Unit(UnitState),
    /// A running process that Lull stops (SIGSTOP) and must continue.
    Stopped {
        /// Its number.
        pid: i32,
        /// Its start time.
        start_time_ticks: u64,
    },
    /// A process that Lull started and must end with itself.
    Started {
        /// Its number, also that of its process group.
        pid: i32,
        /// Its start time.
        start_time_ticks: u64,
    },
}

/// The owner of an original value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Key {
    /// How this thread is scheduled.
    Thread(i32, u64),
    /// How threads are scheduled that cannot be named.
    Threads,
    /// This file or directory of the kernel.
    File(PathBuf),
    /// Interrupt coalescing of this network interface.
    Nic(String),
    /// Whether this process is stopped.
    Stopped(ProcessId),
    /// Whether this process is there.
    Started(ProcessId),
    /// This file of the cgroup with this id.
    Cgroup(PathBuf, u64),
    /// This limit of the systemd unit with this name.
    Unit(String, UnitProperty),
}

impl Original {
    /// The state of a thread now.
    ///
    /// # Errors
    /// The kernel's error: `ESRCH` if the thread is gone.
    pub fn of_thread(thread: LiveThread) -> io::Result<Self> {
        let affinity = sched::affinity_of(thread.tid)?;
        let state = sched::scheduling_of(thread.tid)?;
        let allowed = cpuset::cores_of_process(&Roots::default(), thread.pid);
        Ok(Self::Thread {
            tid: thread.tid,
            start_time_ticks: thread.start_ticks,
            pid: thread.pid,
            follows_cpuset: allowed.map(|allowed| allowed == affinity),
            affinity,
            policy: state.policy,
            rt_priority: state.rt_priority,
            nice: state.nice,
            slice_ns: sched::own_slice_of(thread.tid)?,
        })
    }

    /// The real-time throttle now, to which Lull will write `next_us`.
    ///
    /// # Errors
    /// If the kernel's file cannot be read.
    pub fn of_real_time_throttle(roots: &Roots, next_us: i64) -> io::Result<Self> {
        let path = roots.proc.join("sys/kernel/sched_rt_runtime_us");
        let runtime_us: i64 = read_value(&path)?;
        let ours = vec![runtime_us.to_string(), next_us.to_string()];
        Ok(Self::RealTimeThrottle { path, runtime_us, ours })
    }

    /// A file that has this text, to which Lull will write `next`.
    pub(crate) fn of_text(path: PathBuf, text: String, next: &str) -> Self {
        let ours = vec![text.clone(), next.to_owned()];
        Self::Text { path, text, safe: None, ours }
    }

    /// Takes over Lull's next value; returns whether that must be saved.
    pub(crate) fn take_ours(&mut self, next: &Self) -> bool {
        let (Some(ours), Some(next)) = (self.ours_mut(), next.ours()) else { return false };
        let is_new = next.iter().any(|text| !ours.contains(text));
        if is_new {
            *ours = next.to_vec();
        }
        is_new
    }

    fn ours(&self) -> Option<&[String]> {
        match self {
            Self::RealTimeThrottle { ours, .. }
            | Self::Text { ours, .. }
            | Self::Coalescing { ours, .. }
            | Self::CpuFreq { ours, .. } => Some(ours),
            _ => None,
        }
    }

    const fn ours_mut(&mut self) -> Option<&mut Vec<String>> {
        match self {
            Self::RealTimeThrottle { ours, .. }
            | Self::Text { ours, .. }
            | Self::Coalescing { ours, .. }
            | Self::CpuFreq { ours, .. } => Some(ours),
            _ => None,
        }
    }

    /// The same state for another thread; itself if it is not a thread's.
    pub(super) fn for_thread(&self, thread: LiveThread) -> Self {
        let mut same = self.clone();
        if let Self::Thread { tid, start_time_ticks, pid, .. } = &mut same {
            (*tid, *start_time_ticks, *pid) = (thread.tid, thread.start_ticks, thread.pid);
        }
        same
    }

    /// Whether what it is the state of is still there.
    ///
    /// # Errors
    /// If that cannot be read, as without a free descriptor.
    pub(super) fn has_owner(&self, roots: &Roots) -> io::Result<bool> {
        match self {
            Self::Thread { tid, pid, start_time_ticks, .. } => {
                LiveThread { pid: *pid, tid: *tid, start_ticks: *start_time_ticks }.look(roots)
            }
            Self::RealTimeThrottle { .. }
            | Self::Text { .. }
            | Self::Coalescing { .. }
            | Self::CpuFreq { .. }
            | Self::Unit(_) => Ok(true),
            Self::Cgroup(file) => file.is_there(),
            Self::Group { path } => path.try_exists(),
            Self::Stopped { pid, start_time_ticks: start_ticks }
            | Self::Started { pid, start_time_ticks: start_ticks } => {
                let process = ProcessId { pid: *pid, start_ticks: *start_ticks };
                Ok(process.look(roots)?.is_some())
            }
        }
    }

    /// Returns the owner of the value.
    pub fn key(&self) -> Key {
        match self {
            Self::Thread { tid, start_time_ticks, .. } => Key::Thread(*tid, *start_time_ticks),
            Self::RealTimeThrottle { path, .. }
            | Self::Text { path, .. }
            | Self::Group { path } => Key::File(path.clone()),
            Self::Coalescing { nic, .. } => Key::Nic(nic.clone()),
            Self::CpuFreq { state, .. } => Key::File(state.dir.clone()),
            Self::Cgroup(file) => Key::Cgroup(file.path.clone(), file.cgroup),
            Self::Unit(state) => Key::Unit(state.unit.clone(), state.property),
            Self::Stopped { pid, start_time_ticks } => {
                Key::Stopped(ProcessId { pid: *pid, start_ticks: *start_time_ticks })
            }
            Self::Started { pid, start_time_ticks } => {
                Key::Started(ProcessId { pid: *pid, start_ticks: *start_time_ticks })
            }
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Thread(tid, _) => write!(f, "thread {tid}"),
            Self::Threads => f.write_str("the scheduling of threads"),
            Self::File(path) | Self::Cgroup(path, _) => path.display().fmt(f),
            Self::Unit(unit, property) => write!(f, "{property} of {unit}"),
            Self::Nic(nic) => write!(f, "coalescing of {nic}"),
            Self::Stopped(process) => write!(f, "stopped {process}"),
            Self::Started(process) => write!(f, "started {process}"),
        }
    }
}
