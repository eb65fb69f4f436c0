//! Affinity and scheduling class of one thread.

use lull_control::{CoreId, CoreSet};
use rustix::io::Errno;
use rustix::process::{Pid, getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;

/// How the kernel schedules a thread (`sched_getattr(2)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedState {
    /// `SCHED_*`, with the bit `SCHED_RESET_ON_FORK` where it is set.
    pub policy: u32,
    /// Priority of `SCHED_FIFO` and `SCHED_RR`, 1 to 99; else 0.
    pub rt_priority: u32,
    /// Nice value, -20 to 19. It has no effect under `SCHED_FIFO` and `SCHED_RR`, but the
    /// kernel keeps it.
    pub nice: i32,
}

/// `SCHED_RESET_ON_FORK`: children of the thread start as `SCHED_OTHER`.
pub const RESET_ON_FORK: u32 = libc::SCHED_RESET_ON_FORK.cast_unsigned();

impl SchedState {
    /// The policy without the bit `SCHED_RESET_ON_FORK`.
    pub const fn class(self) -> u32 {
        self.policy & !RESET_ON_FORK
    }
}

/// The cores that a thread may run on, offline ones left out.
///
/// # Errors
/// The kernel's error: `ESRCH` if there is no such thread.
pub fn affinity_of(tid: i32) -> io::Result<CoreSet> {
    mask_of(tid).map(|mask| cores_of(&mask))
}

/// Sets the cores that a thread may run on.
///
/// # Errors
/// The kernel's error: `ESRCH` if there is no such thread, `EPERM` if it is
/// another user's, `EINVAL` if no core of the set is online and allowed.
pub fn set_affinity(tid: i32, cores: &CoreSet) -> io::Result<()> {
    set_mask(tid, &mask_from(cores))
}

/// Lets a thread run on all cores of its cpuset, also when that changes. Setting those same cores
/// would not do that.
///
/// # Errors
/// As [`set_affinity`].
pub fn unbind(tid: i32) -> io::Result<()> {
    set_mask(tid, &all_ones())
}

/// The mask by which a thread follows its cpuset ([`unbind`]).
pub fn all_ones() -> CpuSet {
    mask_from(&CoreSet::first(max_cores()))
}

/// As [`affinity_of`], in the kernel's form: cheap to read and to compare.
///
/// # Errors
/// As [`affinity_of`].
pub fn mask_of(tid: i32) -> io::Result<CpuSet> {
    Ok(sched_getaffinity(Some(thread(tid)?))?)
}

/// As [`set_affinity`], in the kernel's form.
///
/// # Errors
/// As [`set_affinity`].
pub fn set_mask(tid: i32, mask: &CpuSet) -> io::Result<()> {
    Ok(sched_setaffinity(Some(thread(tid)?), mask)?)
}

/// The cores of a mask.
pub fn cores_of(mask: &CpuSet) -> CoreSet {
    let is_set = |core: &u16| mask.is_set(usize::from(*core));
    (0..max_cores()).filter(is_set).map(CoreId).collect()
}

/// The mask of some cores; those beyond the kernel's 1024 are left out.
pub fn mask_from(cores: &CoreSet) -> CpuSet {
    let mut mask = CpuSet::new();
    for core in cores.iter().filter(|core| core.0 < max_cores()) {
        mask.set(usize::from(core.0));
    }
    mask
}

/// How a thread is scheduled.
///
/// # Errors
/// The kernel's error: `ESRCH` if there is no such thread.
pub fn scheduling_of(tid: i32) -> io::Result<SchedState> {
    let attr = attributes_of(tid)?;
    let reset = attr.sched_flags & libc::SCHED_FLAG_RESET_ON_FORK as u64 != 0;
    // `sched_getattr` reports 0 for policies that do not use the nice value.
    let nice = match is_fair(attr.sched_policy) {
        true => attr.sched_nice,
        false => getpriority_process(Some(thread(tid)?))?,
    };
    Ok(SchedState {
        policy: attr.sched_policy | if reset { RESET_ON_FORK } else { 0 },
        rt_priority: attr.sched_priority,
        nice,
    })
}

/// The time slice of `SCHED_OTHER`, `SCHED_BATCH` or `SCHED_IDLE` that a thread's owner set, in
/// nanoseconds; 0 if it has the kernel's, as all have before Linux 6.12, or another policy. The
/// kernel does not say which slices were set: one that process 1 has, too, is the kernel's.
///
/// # Errors
/// The kernel's error: `ESRCH` if there is no such thread.
pub fn own_slice_of(tid: i32) -> io::Result<u64> {
    let found = attributes_of(tid)?;
    let usual_ns = attributes_of(1).map_or(0, |usual| usual.sched_runtime);
    let is_own = is_fair(found.sched_policy) && found.sched_runtime != usual_ns;
    Ok(if is_own { found.sched_runtime } else { 0 })
}

/// Sets the time slice of a thread of `SCHED_OTHER`, `SCHED_BATCH` or `SCHED_IDLE`, in
/// nanoseconds; 0 is the kernel's. Policy and nice value stay. Before Linux 6.12 it does nothing.
///
/// # Errors
/// As [`set_scheduling`].
pub fn set_slice(tid: i32, slice_ns: u64) -> io::Result<()> {
    let mut attr = attributes_of(tid)?;
    if attr.sched_runtime == slice_ns {
        return Ok(());
    }
    attr.sched_runtime = slice_ns;
    set_attributes(tid, &attr)
}

/// Sets policy and priority, without the bit `SCHED_RESET_ON_FORK`. That bit, the nice value and
/// the slice that the owner set stay.
///
/// # Errors
/// As [`set_scheduling`].
pub fn set_class(tid: i32, policy: u32, rt_priority: u32) -> io::Result<()> {
    let fork_bit = scheduling_of(tid)?.policy & RESET_ON_FORK;
    // By the older call the kernel keeps nice value and slice. `sched_setattr` requires both, and
    // its flag SCHED_FLAG_KEEP_PARAMS keeps the policy, too (Linux 6.18). musl's function of this
    // name always fails. Only a `renice` during the call itself can be undone.
    let param: libc::c_int = rt_priority.cast_signed();
    let pointer: *const libc::c_int = &raw const param;
    // SAFETY: the kernel reads a `struct sched_param`, which is one int.
    let done =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, policy | fork_bit, pointer) };
    check(done)
}

/// Sets the nice value. Policy and priority stay.
///
/// # Errors
/// As [`set_scheduling`].
pub fn set_nice(tid: i32, nice: i32) -> io::Result<()> {
    Ok(setpriority_process(Some(thread(tid)?), nice)?)
}

/// Whether a policy uses the nice value.
const fn is_fair(policy: u32) -> bool {
    let policy = policy.cast_signed();
    matches!(policy, libc::SCHED_OTHER | libc::SCHED_BATCH | libc::SCHED_IDLE)
}

/// Sets how a thread is scheduled.
///
/// # Errors
/// The kernel's error: `ESRCH` if there is no such thread, `EPERM` if the
/// class, priority or nice value needs `CAP_SYS_NICE` or a higher limit.
pub fn set_scheduling(tid: i32, state: SchedState) -> io::Result<()> {
    let mut attr = attributes();
    attr.sched_policy = state.class();
    attr.sched_priority = state.rt_priority;
    attr.sched_nice = state.nice;
    if state.policy != state.class() {
        attr.sched_flags = libc::SCHED_FLAG_RESET_ON_FORK as u64;
    }
    set_attributes(tid, &attr)
}

fn attributes_of(tid: i32) -> io::Result<libc::sched_attr> {
    let mut attr = attributes();
    let size = attr.size;
    let pointer: *mut libc::sched_attr = &raw mut attr;
    // SAFETY: the kernel writes at most `size` bytes to `attr`, which is that long.
    let done = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, pointer, size, 0) };
    check(done)?;
    Ok(attr)
}

fn set_attributes(tid: i32, attr: &libc::sched_attr) -> io::Result<()> {
    let pointer: *const libc::sched_attr = attr;
    // SAFETY: the kernel reads `attr.size` bytes of `attr`, which is that long.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, pointer, 0) };
    check(done)
}

/// Attributes of the size that every kernel since 3.14 knows.
fn attributes() -> libc::sched_attr {
    libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    }
}

fn check(done: libc::c_long) -> io::Result<()> {
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn thread(tid: i32) -> io::Result<Pid> {
    Pid::from_raw(tid).ok_or_else(|| Errno::SRCH.into())
}

const fn max_cores() -> u16 {
    CpuSet::MAX_CPU as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs on a thread of its own, since the settings outlive the test otherwise.
    fn on_own_thread(test: fn(i32)) {
        let thread =
            std::thread::spawn(move || test(rustix::thread::gettid().as_raw_nonzero().get()));
        thread.join().unwrap();
    }

    #[test]
    fn an_affinity_reads_back() {
        on_own_thread(|me| {
            let all = affinity_of(me).unwrap();
            let one: CoreSet = all.iter().take(1).collect();
            set_affinity(me, &one).unwrap();
            assert_eq!(affinity_of(me).unwrap(), one);
            set_affinity(me, &all).unwrap();
            assert_eq!(affinity_of(me).unwrap(), all);
        });
    }

    #[test]
    fn a_class_reads_back_with_its_nice_value_and_fork_bit() {
        on_own_thread(|me| {
            let wanted = SchedState {
                policy: libc::SCHED_BATCH as u32 | RESET_ON_FORK,
                rt_priority: 0,
                nice: 7,
            };
            set_scheduling(me, wanted).unwrap();
            assert_eq!(scheduling_of(me).unwrap(), wanted);
            assert_eq!(wanted.class(), libc::SCHED_BATCH as u32);
        });
    }

    #[test]
    fn a_class_is_set_without_the_nice_value_and_the_reverse() {
        on_own_thread(|me| {
            let batch = libc::SCHED_BATCH as u32;
            let wanted = SchedState { policy: batch | RESET_ON_FORK, rt_priority: 0, nice: 7 };
            set_scheduling(me, wanted).unwrap();
            set_class(me, libc::SCHED_OTHER as u32, 0).unwrap();
            let class = SchedState { policy: RESET_ON_FORK, ..wanted };
            assert_eq!(scheduling_of(me).unwrap(), class);
            set_nice(me, 9).unwrap();
            assert_eq!(scheduling_of(me).unwrap(), SchedState { nice: 9, ..class });
        });
    }

    #[test]
    fn a_slice_that_was_set_survives_a_change_of_class() {
        on_own_thread(|me| {
            let slice_ns = 5_000_000;
            set_slice(me, slice_ns).unwrap();
            let now_ns = || attributes_of(me).unwrap().sched_runtime;
            if now_ns() != slice_ns {
                return lull_testing::skip("threads have slices of their own since Linux 6.12");
            }
            for policy in [libc::SCHED_IDLE, libc::SCHED_OTHER] {
                set_class(me, policy.cast_unsigned(), 0).unwrap();
                assert_eq!((now_ns(), own_slice_of(me).unwrap()), (slice_ns, slice_ns));
            }
            set_slice(me, 0).unwrap();
            assert_eq!(own_slice_of(me).unwrap(), 0);
        });
    }

    /// Only a privileged process may set a real-time policy.
    #[test]
    fn a_nice_value_survives_a_real_time_policy() {
        on_own_thread(|me| {
            set_nice(me, 5).unwrap();
            let round_robin = libc::SCHED_RR as u32;
            if set_class(me, round_robin, 3).is_err() {
                return;
            }
            let real_time = SchedState { policy: round_robin, rt_priority: 3, nice: 5 };
            assert_eq!(scheduling_of(me).unwrap(), real_time);
            set_nice(me, 6).unwrap();
            set_class(me, libc::SCHED_OTHER as u32, 0).unwrap();
            let fair = SchedState { policy: 0, rt_priority: 0, nice: 6 };
            assert_eq!(scheduling_of(me).unwrap(), fair);
        });
    }

    #[test]
    fn a_thread_that_is_gone_is_no_such_process() {
        let gone =
            std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get()).join().unwrap();
        // Joining a thread returns a moment before the kernel removes it.
        let task = format!("/proc/self/task/{gone}");
        while std::path::Path::new(&task).exists() {
            std::thread::yield_now();
        }
        let is_gone = |error: io::Error| assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
        is_gone(affinity_of(gone).unwrap_err());
        is_gone(scheduling_of(gone).unwrap_err());
        is_gone(set_affinity(0, &CoreSet::first(1)).unwrap_err());
    }
}
