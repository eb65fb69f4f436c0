//! The scheduling class of an app: policy, priority and nice value of each of
//! its threads.
//!
//! An app reads as the class of its first thread. `SCHED_BATCH` reads as
//! `SCHED_OTHER` and `SCHED_FIFO` as `SCHED_RR`, of which they differ only in
//! slices; each thread gets back exactly what it had. A thread of
//! `SCHED_DEADLINE` has a contract with the kernel that Lull leaves alone.

use super::KnobError;
use super::threads::{Deviation, Limits, ThreadValue, values};
use crate::Roots;
use crate::files::read_text;
use crate::guard::{FieldValue, Original};
use crate::sys::sched::{RESET_ON_FORK, SchedState, scheduling_of, set_class, set_nice};
use crate::threads::LiveThread;
use lull_control::Scheduling;
use std::collections::BTreeSet;
use std::io;

const OTHER: u32 = libc::SCHED_OTHER.cast_unsigned();
const BATCH: u32 = libc::SCHED_BATCH.cast_unsigned();
const IDLE: u32 = libc::SCHED_IDLE.cast_unsigned();
const FIFO: u32 = libc::SCHED_FIFO.cast_unsigned();
const RR: u32 = libc::SCHED_RR.cast_unsigned();

impl ThreadValue for SchedState {
    const WHAT: &'static str = "scheduling class";
    type Wanted = Scheduling;
    type Limit = ();

    fn get(tid: i32) -> io::Result<Self> {
        scheduling_of(tid)
    }

    fn set(self, tid: i32) -> io::Result<()> {
        let found = scheduling_of(tid)?;
        if (self.class(), self.rt_priority) != (found.class(), found.rt_priority) {
            set_class(tid, self.class(), self.rt_priority)?;
        }
        if self.nice == found.nice { Ok(()) } else { set_nice(tid, self.nice) }
    }

    fn fields(self, found: Self) -> Vec<FieldValue> {
        let mut fields = Vec::new();
        let class = |state: Self| (state.class(), state.rt_priority);
        if class(self) != class(found) {
            let (policy, rt_priority) = class(self);
            fields.push(FieldValue::Class { policy, rt_priority });
        }
        if self.nice != found.nice {
            fields.push(FieldValue::Nice(self.nice));
        }
        fields
    }

    fn aim(wanted: &Scheduling, found: Self) -> Self {
        if read(found).is_none() {
            return found;
        }
        // Only a privileged process may clear the fork bit, and there is no need to.
        let fork_bit = found.policy & RESET_ON_FORK;
        let (class, rt_priority, nice) = match *wanted {
            Scheduling::Normal { nice } => (OTHER, 0, i32::from(nice)),
            Scheduling::Idle => (IDLE, 0, found.nice),
            Scheduling::RoundRobin { priority } => (RR, u32::from(priority), found.nice),
        };
        Self { policy: class | fork_bit, rt_priority, nice }
    }

    fn owners(original: &Original, found: Self) -> Option<Self> {
        let Original::Thread { policy, rt_priority, nice, .. } = *original else { return None };
        // The fork bit stays, as in `aim`.
        let policy = policy & !RESET_ON_FORK | found.policy & RESET_ON_FORK;
        let own = Self { policy, rt_priority, nice };
        (read(found).is_some() && read(own).is_some()).then_some(own)
    }

    fn is_within(_: Self, _: Self) -> bool {
        false
    }

    fn limit(_: &Roots, _: i32) {}

    fn deviation(_: &Scheduling, _: Self, _: Self, _: &Limits<'_, ()>) -> Deviation {
        Deviation::Foreign
    }

    fn show(self) -> String {
        let Self { policy, rt_priority, nice } = self;
        format!("policy {policy:#x}, priority {rt_priority}, nice {nice}")
    }
}

/// The class of the first of these threads that lives.
pub(crate) fn scheduling(threads: &[LiveThread]) -> Option<Scheduling> {
    values::<SchedState>(threads).find_map(|(_, state)| read(state))
}

fn read(state: SchedState) -> Option<Scheduling> {
    scheduling_from(state.policy, state.rt_priority, state.nice)
}

/// The class of a thread with these attributes (`sched_getattr(2)`); `None` if Lull has no name
/// for its policy.
pub(crate) fn scheduling_from(policy: u32, rt_priority: u32, nice: i32) -> Option<Scheduling> {
    match policy & !RESET_ON_FORK {
        OTHER | BATCH => Some(Scheduling::Normal { nice: nice.try_into().ok()? }),
        IDLE => Some(Scheduling::Idle),
        RR | FIFO => Some(Scheduling::RoundRobin { priority: rt_priority.try_into().ok()? }),
        _ => None,
    }
}

/// Whether a setting exists and its way back too.
///
/// # Errors
/// [`KnobError::Nonsense`], or [`KnobError::NoWayBack`] without `CAP_SYS_NICE`.
pub(crate) fn check(
    wanted: Scheduling,
    threads: &[LiveThread],
    is_privileged: bool,
    roots: &Roots,
) -> Result<(), KnobError> {
    match wanted {
        Scheduling::Normal { nice } if !(-20..=19).contains(&nice) => {
            return Err(KnobError::Nonsense(format!("nice {nice} is not in -20 to 19")));
        }
        Scheduling::RoundRobin { priority } if !(1..=99).contains(&priority) => {
            return Err(KnobError::Nonsense(format!("priority {priority} is not in 1 to 99")));
        }
        _ => {}
    }
    for (thread, state) in values::<SchedState>(threads) {
        if read(state).is_none() {
            let tid = thread.tid;
            let why = format!("thread {tid} has its own contract (policy {})", state.class());
            return Err(KnobError::Nonsense(why));
        }
    }
    if is_privileged { Ok(()) } else { check_way_back(threads, roots) }
}

/// The kernel lets an unprivileged process lower a nice value, and leave
/// `SCHED_IDLE`, only down to `20 - RLIMIT_NICE` of the thread's process.
fn check_way_back(threads: &[LiveThread], roots: &Roots) -> Result<(), KnobError> {
    let mut lowest: BTreeSet<(i32, i32)> = BTreeSet::new();
    lowest.extend(values::<SchedState>(threads).map(|(at, state)| (at.pid, state.nice)));
    for (pid, nice) in lowest {
        let limit = 20 - nice;
        if nice_limit(roots, pid).is_some_and(|allowed| allowed < limit) {
            let what = format!("{} of process {pid}", SchedState::WHAT);
            return Err(KnobError::NoWayBack { what, nice, limit });
        }
    }
    Ok(())
}

/// `RLIMIT_NICE` of a process; `None` if it is gone.
fn nice_limit(roots: &Roots, pid: i32) -> Option<i32> {
    let limits = read_text(&roots.proc.join(format!("{pid}/limits"))).ok()?;
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max nice priority"))?;
    let soft = soft.split_whitespace().next()?;
    soft.parse().ok().or_else(|| (soft == "unlimited").then_some(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::sched::RESET_ON_FORK;
    use crate::testing::Tree;
    use proptest::prelude::*;

    fn state(policy: u32, rt_priority: u32, nice: i32) -> SchedState {
        SchedState { policy, rt_priority, nice }
    }

    #[test]
    fn near_classes_read_as_those_a_plan_can_name() {
        assert_eq!(read(state(BATCH, 0, 5)), Some(Scheduling::Normal { nice: 5 }));
        assert_eq!(read(state(FIFO, 7, 0)), Some(Scheduling::RoundRobin { priority: 7 }));
        assert_eq!(read(state(6, 0, 0)), None, "SCHED_DEADLINE");
        assert_eq!(read(state(IDLE | RESET_ON_FORK, 0, 3)), Some(Scheduling::Idle));
    }

    #[test]
    fn a_thread_with_a_contract_of_its_own_is_left_alone() {
        let deadline = state(6, 0, 0);
        for wanted in [Scheduling::Idle, Scheduling::Normal { nice: 5 }] {
            let aim = SchedState::aim(&wanted, deadline);
            assert_eq!((aim, aim.fields(deadline)), (deadline, Vec::new()));
        }
    }

    #[test]
    fn what_cannot_be_is_refused_before_it_is_tried() {
        let check = |wanted| check(wanted, &[], true, &Roots::default());
        assert!(check(Scheduling::Normal { nice: 20 }).is_err());
        assert!(check(Scheduling::RoundRobin { priority: 0 }).is_err());
        assert!(check(Scheduling::RoundRobin { priority: 100 }).is_err());
        assert!(check(Scheduling::RoundRobin { priority: 99 }).is_ok());
    }

    #[test]
    fn a_class_that_could_not_be_put_back_is_not_set() {
        let tree = Tree::new();
        let me = rustix::thread::gettid().as_raw_nonzero().get();
        let pid = std::process::id().cast_signed();
        let threads = [LiveThread { pid, tid: me, start_ticks: 1 }];
        let limits = |soft: &str| {
            let text =
                format!("Limit  Soft Limit  Hard Limit  Units\nMax nice priority  {soft}  0\n");
            tree.write(&format!("proc/{pid}/limits"), &text);
            check(Scheduling::Idle, &threads, false, &tree.roots())
        };
        let nice = scheduling_of(me).unwrap().nice;
        let refused = limits(&(19 - nice).to_string()).unwrap_err();
        assert!(refused.to_string().contains("raise its RLIMIT_NICE"), "{refused}");
        assert!(limits(&(20 - nice).to_string()).is_ok());
        assert!(limits("unlimited").is_ok());
        assert!(check(Scheduling::Idle, &threads, true, &tree.roots()).is_ok());
    }

    proptest! {
        #[test]
        fn what_is_aimed_at_reads_as_wanted(
            nice in -20i8..20,
            priority in 1u8..100,
            found_nice in -20i32..20,
            fork in any::<bool>(),
        ) {
            let found = state(OTHER | if fork { RESET_ON_FORK } else { 0 }, 0, found_nice);
            let round_robin = Scheduling::RoundRobin { priority };
            for wanted in [Scheduling::Normal { nice }, Scheduling::Idle, round_robin] {
                let aim = SchedState::aim(&wanted, found);
                prop_assert_eq!(read(aim), Some(wanted));
                prop_assert_eq!(aim.policy & RESET_ON_FORK, found.policy & RESET_ON_FORK);
            }
        }
    }
}
