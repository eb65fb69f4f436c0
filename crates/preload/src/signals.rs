//! Waking by signal, as REEF does (SoCC'25, section 4: 2.35 us each), for comparison.
//!
//! A worker sleeps in `rt_sigtimedwait` on a real-time signal that its process does not
//! use: it blocks the signal, publishes its thread's number, looks at its gate entry once more,
//! and restores its mask when it is awake. No handler is installed, so that the server's
//! dispositions stay; but a signal that arrived after the mask was restored would end the
//! process. So a waker *claims* the sleeper first, and a claimed sleeper does not continue
//! before its signal has arrived:
//!
//! ```text
//!   worker   AWAKE ──▶ its thread's number ───────────────────────────▶ AWAKE
//!                            │ waker                                    ▲
//!                            └──▶ the number, claimed ──tgkill──▶ taken ┘
//! ```
//!
//! A number is published only while its thread is in that wait, so that a number which the
//! kernel has given to another thread is never signalled. The numbers are in this process's
//! memory and not in the page, which other processes may write: the agent and other
//! processes cannot signal. The slots that they would hand on are found by the workers,
//! which look at the gate at their deadlines
//! ([`Gate::deadline_ns`](lull_oncall::Gate::deadline_ns)) and at least once a second. In a
//! process that forks after its workers have slept, and in its child, workers sleep by
//! futex from then on, since each process may have to wake the other's.
//!
//! The signal is chosen when the first worker sleeps: the highest that has its default
//! disposition and that the worker does not block, except the very highest, which valgrind
//! uses. A worker that blocks it, or whose server has begun to handle it, sleeps by futex.
//! A signal from another sender that arrives during a sleep is sent to the worker again
//! when it is awake.

use crate::real::errno;
use crate::{clock, process};
use lull_oncall::sync::AtomicU32 as Word;
use lull_oncall::{CONNECTIONS, Id};
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering, fence};

/// No thread sleeps by signal for this connection.
const AWAKE: u32 = 0;
/// Set beside a thread's number: a waker has claimed that thread and will signal it. The
/// kernel's numbers have 22 bits.
const CLAIMED: u32 = 1 << 31;

/// Indexed by connection: the number of the thread that sleeps by signal, or `AWAKE`.
static SLEEPERS: [AtomicU32; CONNECTIONS] = [const { AtomicU32::new(AWAKE) }; CONNECTIONS];

/// `SIGNAL`: none was chosen yet.
const NOT_YET: c_int = 0;
/// `SIGNAL`: none can be used.
const NONE: c_int = -1;

static SIGNAL: AtomicI32 = AtomicI32::new(NOT_YET);
/// Set before a fork and inherited by the child: each process may have to wake the other's
/// workers.
static HAS_FORKED: AtomicBool = AtomicBool::new(false);

/// The longest sleep before a worker looks at its gate entry: a process that is not a child of this
/// one may have changed it without being able to signal.
const NAP_NS: u64 = 1_000_000_000;

/// How often, and for how long each time, a claimed worker waits for its signal. The waker
/// sends it right after the claim, unless it is preempted, or its virtual machine is.
const LOOKS: u32 = 6_000;
const LOOK_NS: u64 = 10_000_000;

/// Bytes in the kernel's set of signals.
const MASK_BYTES: usize = size_of::<u64>();

/// Why a sleep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SleepEnd {
    /// The worker was woken, or there was nothing to sleep for.
    Woken,
    /// Its time was up.
    TimedOut,
    /// A signal from another sender arrived, or the kernel does not know the call.
    Interrupted,
}

/// Sleeps while the word holds this value, until `until_ns` at the latest. Returns `None`
/// if no signal can wake this thread.
pub(crate) fn wait(id: Id, word: &Word, value: u32, until_ns: u64) -> Option<SleepEnd> {
    if HAS_FORKED.load(Ordering::Relaxed) {
        return None;
    }
    let sleeper = SLEEPERS.get(id.index())?;
    let mut asleep = SleepingThread::begin(sleeper, signal()?)?;
    // Either a thread that changes the word finds this sleeper, or this sleeper finds the
    // word changed. The same holds for a thread that forks.
    fence(Ordering::SeqCst);
    let may_sleep = !HAS_FORKED.load(Ordering::Relaxed);
    let ended = may_sleep.then(|| asleep.sleep_while(word, value, until_ns));
    asleep.end();
    ended
}

/// Wakes the worker that sleeps by signal for this connection. Returns `false` if no thread
/// of this process does.
pub(crate) fn wake(id: Id) -> bool {
    let Some(sleeper) = SLEEPERS.get(id.index()) else { return false };
    fence(Ordering::SeqCst);
    let tid = sleeper.load(Ordering::Relaxed);
    if tid == AWAKE || tid & CLAIMED != 0 || !step(sleeper, tid, tid | CLAIMED) {
        // Another waker's claim wakes the worker, too, and then the worker looks at its gate entry.
        return false;
    }
    let signal = SIGNAL.load(Ordering::Relaxed);
    debug_assert!(signal > 0, "a thread sleeps by a signal that was never chosen");
    // SAFETY: a signal to a thread of this process that waits for it and that cannot
    // continue without it. Only numbers are passed.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process::pid(), tid, signal) };
    if sent != 0 {
        // The user's limit of pending signals is reached: the worker looks by itself.
        step(sleeper, tid | CLAIMED, tid);
    }
    sent == 0
}

/// Makes workers that sleep by signal sleep by futex, before `fork`.
pub(crate) fn before_fork() {
    if SIGNAL.load(Ordering::Relaxed) <= 0 {
        return;
    }
    HAS_FORKED.store(true, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    for connection in 0..CONNECTIONS as u32 {
        wake(Id(connection));
    }
}

/// Forgets the parent's sleeping threads in a child that `fork` made.
pub(crate) fn after_fork() {
    if SIGNAL.load(Ordering::Relaxed) > 0 {
        let taken = SLEEPERS.iter().filter(|sleeper| sleeper.load(Ordering::Relaxed) != AWAKE);
        taken.for_each(|sleeper| sleeper.store(AWAKE, Ordering::Relaxed));
    }
}

fn step(sleeper: &AtomicU32, from: u32, to: u32) -> bool {
    sleeper.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Returns the signal that wakes workers, if one can be used.
fn signal() -> Option<c_int> {
    let signal = match SIGNAL.load(Ordering::Relaxed) {
        NOT_YET => choose(),
        chosen => chosen,
    };
    (signal > 0).then_some(signal)
}

#[cold]
fn choose() -> c_int {
    let blocked = change_mask(libc::SIG_BLOCK, 0);
    let is_free = |signal: &c_int| blocked & bit(*signal) == 0 && has_default(*signal);
    let free = (libc::SIGRTMIN()..libc::SIGRTMAX()).rev().find(is_free).unwrap_or(NONE);
    let first = SIGNAL.compare_exchange(NOT_YET, free, Ordering::Relaxed, Ordering::Relaxed);
    // The first choice holds for the whole process.
    first.err().unwrap_or(free)
}

/// Whether a signal has its default disposition.
fn has_default(signal: c_int) -> bool {
    // SAFETY: all zeros are a sigaction.
    let mut now: libc::sigaction = unsafe { zeroed() };
    // SAFETY: nothing is set, and what is set now may be written to `now`.
    let failed = unsafe { libc::sigaction(signal, null(), &raw mut now) };
    failed == 0 && now.sa_sigaction == libc::SIG_DFL
}

/// Returns the bit of a signal in the kernel's set of signals.
const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Changes this thread's signal mask. Returns the mask before.
fn change_mask(how: c_int, mask: u64) -> u64 {
    let (mut before, mask) = (0u64, &raw const mask);
    let at = &raw mut before;
    // A direct system call, since libc keeps signals of its own out of every mask.
    // SAFETY: one set is read and the other may be written, each of that size.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, mask, at, MASK_BYTES) };
    before
}

/// A thread that sleeps by signal.
struct SleepingThread<'a> {
    sleeper: &'a AtomicU32,
    signal: c_int,
    /// Its mask before.
    mask: u64,
    /// Whether the signal of the waker that claimed it has arrived.
    was_woken: bool,
    /// A signal from another sender that arrived meanwhile.
    foreign: Option<libc::siginfo_t>,
}

impl<'a> SleepingThread<'a> {
    /// Publishes that this thread sleeps. Returns `None` if the server uses the signal here,
    /// or another thread sleeps for the same connection.
    fn begin(sleeper: &'a AtomicU32, signal: c_int) -> Option<Self> {
        debug_assert_eq!(process::tid() & CLAIMED, 0, "the kernel's numbers have 22 bits");
        let mask = change_mask(libc::SIG_BLOCK, bit(signal));
        if mask & bit(signal) != 0 {
            return None;
        }
        if !has_default(signal) || !step(sleeper, AWAKE, process::tid()) {
            change_mask(libc::SIG_SETMASK, mask);
            return None;
        }
        Some(Self { sleeper, signal, mask, was_woken: false, foreign: None })
    }

    /// Sleeps while the word holds this value, and checks it at least every `NAP_NS`.
    fn sleep_while(&mut self, word: &Word, value: u32, until_ns: u64) -> SleepEnd {
        while word.load(Ordering::Acquire) == value {
            let soon = clock::now_ns().saturating_add(NAP_NS);
            match self.wait(until_ns.min(soon)) {
                SleepEnd::TimedOut if soon < until_ns => {}
                ended => return ended,
            }
        }
        SleepEnd::Woken
    }

    fn wait(&mut self, until_ns: u64) -> SleepEnd {
        match take(self.signal, until_ns) {
            Ok(info) if self.is_ours(&info) => {
                self.was_woken = true;
                SleepEnd::Woken
            }
            Ok(info) => {
                self.foreign = Some(info);
                SleepEnd::Interrupted
            }
            Err(libc::EAGAIN) => SleepEnd::TimedOut,
            Err(_) => SleepEnd::Interrupted,
        }
    }

    fn is_ours(&self, info: &libc::siginfo_t) -> bool {
        // SAFETY: the field is valid for every signal that a process sent.
        let sender = unsafe { info.si_pid() };
        let is_own = info.si_code == libc::SI_TKILL && sender.cast_unsigned() == process::pid();
        is_own && self.sleeper.load(Ordering::Acquire) == process::tid() | CLAIMED
    }

    /// Withdraws the published number, so that no waker signals this thread. Returns `false`
    /// if a waker has claimed it and has not signalled for a long time.
    fn rise(&mut self) -> bool {
        let tid = process::tid();
        for _ in 0..LOOKS {
            let from = if self.was_woken { tid | CLAIMED } else { tid };
            if step(self.sleeper, from, AWAKE) {
                return true;
            }
            self.wait(clock::now_ns().saturating_add(LOOK_NS));
        }
        false
    }

    /// Ends the sleep and restores the mask. If a claimed signal has still not arrived, it
    /// stays blocked, since it would end the process, and the entry stays claimed: no thread
    /// sleeps by signal for this connection again.
    fn end(mut self) {
        if !self.rise() {
            return;
        }
        change_mask(libc::SIG_SETMASK, self.mask);
        if let Some(info) = self.foreign {
            let (pid, tid) = (process::pid(), process::tid());
            let (call, info) = (libc::SYS_rt_tgsigqueueinfo, &raw const info);
            // SAFETY: the kernel's own description of the signal, sent to this thread itself.
            unsafe { libc::syscall(call, pid, tid, self.signal, info) };
        }
    }
}

/// Waits for the signal, which is blocked. Returns its description, or the error's number.
fn take(signal: c_int, until_ns: u64) -> Result<libc::siginfo_t, c_int> {
    let left_ns = until_ns.saturating_sub(clock::now_ns());
    let time = libc::timespec {
        tv_sec: (left_ns / 1_000_000_000).cast_signed(),
        tv_nsec: (left_ns % 1_000_000_000).cast_signed(),
    };
    let set = bit(signal);
    // SAFETY: all zeros are a siginfo_t.
    let mut info: libc::siginfo_t = unsafe { zeroed() };
    let (call, at) = (libc::SYS_rt_sigtimedwait, &raw mut info);
    let (set, time) = (&raw const set, &raw const time);
    // A direct system call, since libc's is a cancellation point.
    // SAFETY: a set and a time that are read, and room for the description.
    let taken = unsafe { libc::syscall(call, set, at, time, MASK_BYTES) };
    if taken < 0 { Err(errno()) } else { Ok(info) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn soon() -> u64 {
        clock::now_ns() + 5_000_000
    }

    fn in_a_minute() -> u64 {
        clock::now_ns() + 60_000_000_000
    }

    fn mask() -> u64 {
        change_mask(libc::SIG_BLOCK, 0)
    }

    /// Two threads hand each other a thousand turns; each ends with its mask.
    fn hand_turns(ids: [Id; 2]) {
        let turn = Word::new(0);
        let take_turns = |mine: u32| {
            let before = mask();
            for _ in 0..1_000 {
                while turn.load(Ordering::Acquire) != mine {
                    let ended = wait(ids[mine as usize], &turn, 1 - mine, in_a_minute());
                    assert_eq!(ended, Some(SleepEnd::Woken));
                }
                turn.store(1 - mine, Ordering::Release);
                wake(ids[1 - mine as usize]);
            }
            assert_eq!(mask(), before);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| take_turns(1));
            take_turns(0);
        });
    }

    /// One test, since all of it changes the signals of one process.
    #[test]
    fn a_sleeper_is_woken_once_and_leaves_the_signals_as_they_were() {
        let (word, before) = (Word::new(7), mask());
        assert_eq!(wait(Id(0), &word, 7, soon()), Some(SleepEnd::TimedOut));
        assert_eq!(
            wait(Id(0), &word, 8, in_a_minute()),
            Some(SleepEnd::Woken),
            "nothing to wait for"
        );
        assert!(!wake(Id(0)), "no thread sleeps there");
        assert_eq!(wait(Id(CONNECTIONS as u32), &word, 7, soon()), None);
        assert_eq!(mask(), before);
        hand_turns([Id(1), Id(2)]);
        a_late_signal_is_waited_for();
        let signal = signal().unwrap();
        assert!(has_default(signal));
        a_signal_of_the_servers_is_left_alone(signal);
        a_worker_sleeps_by_futex_after_a_fork();
        assert_eq!(mask(), before);
    }

    fn a_worker_sleeps_by_futex_after_a_fork() {
        let word = Word::new(7);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| wait(Id(5), &word, 7, in_a_minute()));
            while SLEEPERS[5].load(Ordering::Acquire) == AWAKE {
                std::thread::yield_now();
            }
            before_fork();
            // It was woken, or it found that the process forks before it fell asleep.
            let ended = sleeper.join().unwrap();
            assert!(matches!(ended, Some(SleepEnd::Woken) | None), "{ended:?}");
        });
        assert_eq!(wait(Id(5), &word, 7, in_a_minute()), None);
        HAS_FORKED.store(false, Ordering::Relaxed);
    }

    /// A worker whose time is up and that a waker has claimed does not continue before it is
    /// signalled.
    fn a_late_signal_is_waited_for() {
        let (sleeper, tid) = (&SLEEPERS[3], AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut asleep = SleepingThread::begin(sleeper, signal().unwrap()).unwrap();
                tid.store(process::tid(), Ordering::Release);
                while sleeper.load(Ordering::Acquire) & CLAIMED == 0 {
                    std::thread::yield_now();
                }
                assert!(asleep.rise());
                assert!(asleep.was_woken);
                assert_eq!(sleeper.load(Ordering::Acquire), AWAKE);
                change_mask(libc::SIG_SETMASK, asleep.mask);
            });
            while tid.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            let number = tid.load(Ordering::Acquire);
            assert!(
                SleepingThread::begin(sleeper, signal().unwrap()).is_none(),
                "another thread sleeps there"
            );
            assert!(step(sleeper, number, number | CLAIMED));
            std::thread::sleep(Duration::from_millis(20));
            let pid = process::pid();
            // SAFETY: to a thread that blocks the signal until it has taken it.
            let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid, number, signal().unwrap()) };
            assert_eq!(sent, 0);
        });
    }

    /// Where the signal is blocked, or has another disposition, no signal wakes a worker.
    fn a_signal_of_the_servers_is_left_alone(signal: c_int) {
        let word = Word::new(7);
        let before = change_mask(libc::SIG_BLOCK, bit(signal));
        assert_eq!(wait(Id(4), &word, 7, soon()), None);
        change_mask(libc::SIG_SETMASK, before);
        // SAFETY: nothing of this program uses the signal.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
        assert_eq!(wait(Id(4), &word, 7, soon()), None);
        // SAFETY: as above.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        assert_eq!(wait(Id(4), &word, 7, soon()), Some(SleepEnd::TimedOut));
    }
}
