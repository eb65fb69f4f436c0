//! The properties of a thread that Lull sets, one field at a time.
//!
//! A restoration writes back a field only if Lull set that field, so that a `renice` or a
//! `taskset` of another program during the run stays.

use super::original::Original;
use crate::LiveThread;
use crate::sys::sched;
use lull_control::CoreSet;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// One property of a thread that can be set without the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// The cores that it may run on.
    Cores,
    /// Its scheduling policy, with the priority of real-time policies.
    Class,
    /// Its nice value.
    Nice,
}

/// The value of one field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldValue {
    /// The cores that the thread may run on.
    Cores(CoreSet),
    /// Its scheduling policy.
    Class {
        /// `SCHED_*`, without the bit `SCHED_RESET_ON_FORK`.
        policy: u32,
        /// Priority of `SCHED_FIFO` and `SCHED_RR`; else 0.
        rt_priority: u32,
    },
    /// Its nice value.
    Nice(i32),
}

/// The fields of a thread that Lull is about to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadWrite {
    /// The thread.
    pub thread: LiveThread,
    /// The written values, one a field; empty if none was.
    pub values: Vec<FieldValue>,
}

impl Field {
    /// Every field.
    pub(super) const ALL: [Self; 3] = [Self::Cores, Self::Class, Self::Nice];

    /// The value that a thread has now.
    ///
    /// # Errors
    /// The kernel's error: `ESRCH` if there is no such thread.
    pub(super) fn read(self, tid: i32) -> io::Result<FieldValue> {
        Ok(match self {
            Self::Cores => FieldValue::Cores(sched::affinity_of(tid)?),
            Self::Class => {
                let state = sched::scheduling_of(tid)?;
                FieldValue::Class { policy: state.class(), rt_priority: state.rt_priority }
            }
            Self::Nice => FieldValue::Nice(sched::scheduling_of(tid)?.nice),
        })
    }
}

impl FieldValue {
    /// Returns the field of the value.
    pub const fn field(&self) -> Field {
        match self {
            Self::Cores(_) => Field::Cores,
            Self::Class { .. } => Field::Class,
            Self::Nice(_) => Field::Nice,
        }
    }

    /// Gives a thread this value and leaves its other fields alone.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn write(&self, tid: i32) -> io::Result<()> {
        match self {
            Self::Cores(cores) => sched::set_affinity(tid, cores),
            Self::Class { policy, rt_priority } => sched::set_class(tid, *policy, *rt_priority),
            Self::Nice(nice) => sched::set_nice(tid, *nice),
        }
    }
}

impl Original {
    /// The value of one field of a thread; `None` if it is not a thread's.
    pub(super) fn field(&self, field: Field) -> Option<FieldValue> {
        let Self::Thread { affinity, policy, rt_priority, nice, .. } = self else { return None };
        Some(match field {
            Field::Cores => FieldValue::Cores(affinity.clone()),
            Field::Class => FieldValue::Class {
                policy: policy & !sched::RESET_ON_FORK,
                rt_priority: *rt_priority,
            },
            Field::Nice => FieldValue::Nice(*nice),
        })
    }
}

impl Original {
    /// The state of a thread before Lull, which has this state now: the fields that have one
    /// of Lull's `values` are as in `inherited`, the others are as they are now.
    pub(super) fn before(&self, values: &[FieldValue], inherited: &Self) -> Self {
        let mut before = self.clone();
        let (
            Self::Thread { affinity, policy, rt_priority, nice, slice_ns, follows_cpuset, .. },
            Self::Thread {
                affinity: cores,
                policy: class,
                rt_priority: priority,
                nice: niceness,
                slice_ns: slice,
                follows_cpuset: follows,
                ..
            },
        ) = (&mut before, inherited)
        else {
            return before;
        };
        let limits = [cores.clone()];
        let is_lulls = |field| {
            let found = self.field(field);
            let found = found.as_ref();
            found.is_some_and(|found| values.iter().any(|value| found.is_of(value, &limits)))
        };
        if is_lulls(Field::Cores) {
            (*affinity, *follows_cpuset) = (cores.clone(), *follows);
        }
        if is_lulls(Field::Class) {
            (*policy, *rt_priority, *slice_ns) = (*class, *priority, *slice);
        }
        if is_lulls(Field::Nice) {
            *nice = *niceness;
        }
        before
    }
}

impl FieldValue {
    /// Whether a field that shows this value may have been set to `written`. The kernel
    /// leaves out of a set of cores those outside a limit: offline, or not in the cpuset.
    pub(super) fn is_of(&self, written: &Self, limits: &[CoreSet]) -> bool {
        match (self, written) {
            (Self::Cores(found), Self::Cores(wanted)) => {
                let is_limited = |limit: &CoreSet| *found == wanted.intersection(limit);
                found == wanted || limits.iter().any(is_limited)
            }
            _ => self == written,
        }
    }
}

impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cores(cores) => write!(f, "cores {cores}"),
            Self::Class { policy, rt_priority: 0 } => f.write_str(name_of(*policy)),
            Self::Class { policy, rt_priority } => {
                write!(f, "{} with priority {rt_priority}", name_of(*policy))
            }
            Self::Nice(nice) => write!(f, "nice {nice}"),
        }
    }
}

const fn name_of(policy: u32) -> &'static str {
    match policy.cast_signed() {
        libc::SCHED_OTHER => "SCHED_OTHER",
        libc::SCHED_BATCH => "SCHED_BATCH",
        libc::SCHED_IDLE => "SCHED_IDLE",
        libc::SCHED_FIFO => "SCHED_FIFO",
        libc::SCHED_RR => "SCHED_RR",
        _ => "another scheduling policy",
    }
}
