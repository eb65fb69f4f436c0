//! Waking by signal, as REEF does (SoCC'25, section 4: 2.35 us each), to compare with.
//!
//! A worker sleeps in `rt_sigtimedwait` on a real-time signal that its process
//! does not use: it blocks the signal, says that it sleeps, looks at its seat
//! once more, and puts its mask back when it is awake. There is no handler, so
//! nothing of the server's dispositions is touched; but a signal that came a
//! moment too late would end the process. So who wakes *claims* the sleeper
//! first, and one that is claimed does not go before its signal is there:
//!
//! ```text
//!   worker   AWAKE ──▶ its thread's number ───────────────────────────▶ AWAKE
//!                            │ waker                                    ▲
//!                            └──▶ the number, claimed ──tgkill──▶ taken ┘
//! ```
//!
//! So a number stands here only while its thread is in that wait, and one that
//! the kernel has given to another thread is never signalled. The numbers are
//! this process's own and not in the page, which anybody may have written: the
//! agent and other processes cannot signal. What they would have handed on, the
//! workers find out when they look by themselves, as they do when the agent is
//! dead ([`Gate::deadline_ns`](lull_oncall::Gate::deadline_ns)), and once a second
//! in any case. A process that forks after its workers have slept has them sleep by
//! futex from then on, and its child too: either wakes the other's.
//!
//! The signal is chosen when the first worker sleeps: the highest that has its
//! default meaning and that the worker does not block, but for the very highest,
//! which is valgrind's. Where a worker blocks it, or the server has begun to
//! handle it, that worker sleeps by futex. One that comes from somebody else
//! while a worker sleeps is handed on to the worker when it is awake.

use crate::parking::Ended;
use crate::real::errno;
use crate::{clock, process};
use lull_oncall::sync::AtomicU32 as Word;
use lull_oncall::{CONNECTIONS, Id};
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering, fence};

/// Nobody sleeps there by signal.
const AWAKE: u32 = 0;
/// Beside a thread's number: somebody has taken it on to wake that thread. The
/// kernel's numbers have 22 bits.
const CLAIMED: u32 = 1 << 31;

/// By connection: the thread that sleeps by signal, if one does.
static SLEEPERS: [AtomicU32; CONNECTIONS] = [const { AtomicU32::new(AWAKE) }; CONNECTIONS];

/// No signal was chosen yet.
const NOT_YET: c_int = 0;
/// There is none that could be.
const NONE: c_int = -1;

static SIGNAL: AtomicI32 = AtomicI32::new(NOT_YET);
/// Set before a fork, and copied by it: another process may have to wake us.
static HAS_FORKED: AtomicBool = AtomicBool::new(false);

/// After so long a worker looks at its seat by itself: a process that was not
/// made by a fork of this one may have changed it.
const NAP_NS: u64 = 1_000_000_000;

/// How often, and for how long each, one that was claimed waits for its signal.
/// Who claimed it sends it in its next instruction, unless the kernel takes the
/// core away from it, or the machine's host does.
const LOOKS: u32 = 6_000;
const LOOK_NS: u64 = 10_000_000;

/// Bytes in the kernel's set of signals.
const MASK_BYTES: usize = size_of::<u64>();

/// Sleeps while the word holds this value, until `until_ns` at the latest;
/// `None` if no signal can wake this thread.
pub(crate) fn wait(id: Id, word: &Word, value: u32, until_ns: u64) -> Option<Ended> {
    if HAS_FORKED.load(Ordering::Relaxed) {
        return None;
    }
    let place = SLEEPERS.get(id.index())?;
    let mut asleep = Asleep::begin(place, signal()?)?;
    // Who changes the word after this look finds who sleeps, and the other way round.
    fence(Ordering::SeqCst);
    // And who forks finds who sleeps, or is found out here.
    let may_sleep = !HAS_FORKED.load(Ordering::Relaxed);
    let ended = may_sleep.then(|| asleep.nap(word, value, until_ns));
    asleep.end();
    ended
}

/// Wakes the worker that sleeps by signal for this connection; `false` if none
/// of this process does.
pub(crate) fn wake(id: Id) -> bool {
    let Some(place) = SLEEPERS.get(id.index()) else { return false };
    fence(Ordering::SeqCst);
    let tid = place.load(Ordering::Relaxed);
    if tid == AWAKE || tid & CLAIMED != 0 || !step(place, tid, tid | CLAIMED) {
        // One that somebody else has claimed is woken by that one, and looks.
        return false;
    }
    let signal = SIGNAL.load(Ordering::Relaxed);
    // SAFETY: a signal to a thread of this process that waits for it: it cannot
    // go before it has it. Only numbers are handed over.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, process::pid(), tid, signal) };
    if sent != 0 {
        // The user has as many signals pending as it may: it looks by itself.
        step(place, tid | CLAIMED, tid);
    }
    sent == 0
}

/// Before `fork`: whoever sleeps by signal shall sleep by futex.
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

/// In a child that `fork` made: none of its parent's threads sleep here.
pub(crate) fn after_fork() {
    if SIGNAL.load(Ordering::Relaxed) > 0 {
        let taken = SLEEPERS.iter().filter(|place| place.load(Ordering::Relaxed) != AWAKE);
        taken.for_each(|place| place.store(AWAKE, Ordering::Relaxed));
    }
}

fn step(place: &AtomicU32, from: u32, to: u32) -> bool {
    place.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// The signal that wakes, if there is one.
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
    // Whoever chose first has chosen for all.
    first.err().unwrap_or(free)
}

/// Whether the process does nothing of its own about a signal.
fn has_default(signal: c_int) -> bool {
    // SAFETY: all zeros are a sigaction.
    let mut now: libc::sigaction = unsafe { zeroed() };
    // SAFETY: nothing is set, and what is set now may be written to `now`.
    let asked = unsafe { libc::sigaction(signal, null(), &raw mut now) };
    asked == 0 && now.sa_sigaction == libc::SIG_DFL
}

/// A signal in the kernel's set of them.
const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Changes this thread's mask of signals; what it was.
fn change_mask(how: c_int, mask: u64) -> u64 {
    let (mut before, mask) = (0u64, &raw const mask);
    let at = &raw mut before;
    // Not through libc, which keeps some of its own signals out of every mask.
    // SAFETY: one set is read and the other may be written, each of that size.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, mask, at, MASK_BYTES) };
    before
}

/// A thread that sleeps by signal.
struct Asleep<'a> {
    place: &'a AtomicU32,
    signal: c_int,
    /// Its mask before.
    mask: u64,
    /// Whether the signal has come that somebody had claimed it for.
    was_woken: bool,
    /// What came that was somebody else's.
    foreign: Option<libc::siginfo_t>,
}

impl<'a> Asleep<'a> {
    /// Says that this thread sleeps; `None` if the signal is the server's here, or
    /// another thread sleeps for the same connection.
    fn begin(place: &'a AtomicU32, signal: c_int) -> Option<Self> {
        let mask = change_mask(libc::SIG_BLOCK, bit(signal));
        if mask & bit(signal) != 0 {
            return None;
        }
        if !has_default(signal) || !step(place, AWAKE, process::tid()) {
            change_mask(libc::SIG_SETMASK, mask);
            return None;
        }
        Some(Self { place, signal, mask, was_woken: false, foreign: None })
    }

    /// Sleeps while the word holds this value, and looks at it now and then.
    fn nap(&mut self, word: &Word, value: u32, until_ns: u64) -> Ended {
        while word.load(Ordering::Acquire) == value {
            let soon = clock::now_ns().saturating_add(NAP_NS);
            match self.wait(until_ns.min(soon)) {
                Ended::Late if soon < until_ns => {}
                ended => return ended,
            }
        }
        Ended::Woken
    }

    fn wait(&mut self, until_ns: u64) -> Ended {
        match take(self.signal, until_ns) {
            Ok(info) if self.is_ours(&info) => {
                self.was_woken = true;
                Ended::Woken
            }
            Ok(info) => {
                self.foreign = Some(info);
                Ended::Interrupted
            }
            Err(libc::EAGAIN) => Ended::Late,
            Err(_) => Ended::Interrupted,
        }
    }

    fn is_ours(&self, info: &libc::siginfo_t) -> bool {
        // SAFETY: a signal that a process sent says which, whatever its code is.
        let sender = unsafe { info.si_pid() };
        let is_own = info.si_code == libc::SI_TKILL && sender.cast_unsigned() == process::pid();
        is_own && self.place.load(Ordering::Acquire) == process::tid() | CLAIMED
    }

    /// From now on nobody signals this thread; `false` if somebody was about to,
    /// and has not for a long time.
    fn rise(&mut self) -> bool {
        let tid = process::tid();
        for _ in 0..LOOKS {
            let from = if self.was_woken { tid | CLAIMED } else { tid };
            if step(self.place, from, AWAKE) {
                return true;
            }
            self.wait(clock::now_ns().saturating_add(LOOK_NS));
        }
        false
    }

    /// The thread is awake, and has its mask again. If its signal is still to
    /// come it keeps that one blocked, which would end the process, and its place
    /// stays claimed: nobody sleeps there by signal any more.
    fn end(mut self) {
        if !self.rise() {
            return;
        }
        change_mask(libc::SIG_SETMASK, self.mask);
        if let Some(info) = self.foreign {
            let (pid, tid) = (process::pid(), process::tid());
            let (call, info) = (libc::SYS_rt_tgsigqueueinfo, &raw const info);
            // SAFETY: what the kernel had told of the signal, to this thread itself.
            unsafe { libc::syscall(call, pid, tid, self.signal, info) };
        }
    }
}

/// Waits for the signal, which is blocked; what is known of it, or an error's number.
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
    // Not through libc, whose call is one where threads may be cancelled.
    // SAFETY: a set and a time that are read, and room for what is known of the signal.
    let came = unsafe { libc::syscall(call, set, at, time, MASK_BYTES) };
    if came < 0 { Err(errno()) } else { Ok(info) }
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

    /// A thousand turns that two threads hand each other; each ends with its mask.
    fn hand_turns(ids: [Id; 2]) {
        let turn = Word::new(0);
        let take_turns = |mine: u32| {
            let before = mask();
            for _ in 0..1_000 {
                while turn.load(Ordering::Acquire) != mine {
                    let ended = wait(ids[mine as usize], &turn, 1 - mine, in_a_minute());
                    assert_eq!(ended, Some(Ended::Woken));
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

    /// One test, for all of it is about the signals of one process.
    #[test]
    fn a_sleeper_is_woken_once_and_leaves_the_signals_as_they_were() {
        let (word, before) = (Word::new(7), mask());
        assert_eq!(wait(Id(0), &word, 7, soon()), Some(Ended::Late));
        assert_eq!(wait(Id(0), &word, 8, in_a_minute()), Some(Ended::Woken), "nothing to wait for");
        assert!(!wake(Id(0)), "nobody sleeps there");
        assert_eq!(wait(Id(CONNECTIONS as u32), &word, 7, soon()), None);
        assert_eq!(mask(), before);
        hand_turns([Id(1), Id(2)]);
        a_late_signal_is_waited_for();
        let signal = signal().unwrap();
        assert!(has_default(signal));
        a_signal_of_the_servers_is_left_alone(signal);
        whoever_sleeps_by_signal_sleeps_by_futex_after_a_fork();
        assert_eq!(mask(), before);
    }

    fn whoever_sleeps_by_signal_sleeps_by_futex_after_a_fork() {
        let word = Word::new(7);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| wait(Id(5), &word, 7, in_a_minute()));
            while SLEEPERS[5].load(Ordering::Acquire) == AWAKE {
                std::thread::yield_now();
            }
            before_fork();
            // Woken to look and sleep again, or it had not fallen asleep yet.
            let ended = sleeper.join().unwrap();
            assert!(matches!(ended, Some(Ended::Woken) | None), "{ended:?}");
        });
        assert_eq!(wait(Id(5), &word, 7, in_a_minute()), None);
        HAS_FORKED.store(false, Ordering::Relaxed);
    }

    /// Its time is up, and somebody has claimed it: it does not go before it is signalled.
    fn a_late_signal_is_waited_for() {
        let (place, tid) = (&SLEEPERS[3], AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut asleep = Asleep::begin(place, signal().unwrap()).unwrap();
                tid.store(process::tid(), Ordering::Release);
                while place.load(Ordering::Acquire) & CLAIMED == 0 {
                    std::thread::yield_now();
                }
                assert!(asleep.rise());
                assert!(asleep.was_woken);
                assert_eq!(place.load(Ordering::Acquire), AWAKE);
                change_mask(libc::SIG_SETMASK, asleep.mask);
            });
            while tid.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            let number = tid.load(Ordering::Acquire);
            assert!(Asleep::begin(place, signal().unwrap()).is_none(), "its place is taken");
            assert!(step(place, number, number | CLAIMED));
            std::thread::sleep(Duration::from_millis(20));
            let pid = process::pid();
            // SAFETY: to a thread that has it blocked until it has taken it.
            let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid, number, signal().unwrap()) };
            assert_eq!(sent, 0);
        });
    }

    /// Blocked, or with a disposition of its own: then no signal wakes.
    fn a_signal_of_the_servers_is_left_alone(signal: c_int) {
        let word = Word::new(7);
        let before = change_mask(libc::SIG_BLOCK, bit(signal));
        assert_eq!(wait(Id(4), &word, 7, soon()), None);
        change_mask(libc::SIG_SETMASK, before);
        // SAFETY: nothing of this program minds the signal.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
        assert_eq!(wait(Id(4), &word, 7, soon()), None);
        // SAFETY: as above.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        assert_eq!(wait(Id(4), &word, 7, soon()), Some(Ended::Late));
    }
}
