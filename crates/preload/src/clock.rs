//! `CLOCK_MONOTONIC` at the price of the processor's counter.
//!
//! libc's clock is a third of what watching a query costs: it takes 23 ns warm, and
//! a server that comes out of the kernel finds it cold. Where the kernel takes its
//! own time from the time stamp counter (x86-64, clock source `tsc`), the counter
//! is read instead, and counted on from where both were read last, never longer
//! ago than [`SPAN_NS`]. What is told is the same clock's nanoseconds, which
//! other processes and the agent read too, but for what the two drift apart in that
//! time: less than a microsecond, of which the most is how far apart they were read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// For so long it is counted on.
const SPAN_NS: u64 = 2_000_000;
/// In less, what it takes to read both would show in their ratio.
const SHORTEST_NS: u64 = 1_000_000;
/// In more, a machine may have slept.
const LONGEST_NS: u64 = 1_000_000_000;
/// Nanoseconds a count are kept in 2^-32.
const RATE_BITS: u32 = 32;
/// From 10 GHz to 500 MHz; what is beyond was read while something else happened.
const RATES: std::ops::RangeInclusive<u64> = (1 << RATE_BITS) / 10..=2 << RATE_BITS;
/// Both were read together if the counter went on by no more.
const TOGETHER: u64 = 2_000;

static NOW: Clock = Clock::new();

/// `CLOCK_MONOTONIC`, in nanoseconds: the same for all processes.
#[inline]
pub(crate) fn now_ns() -> u64 {
    NOW.now()
}

/// Before the program runs: whether the counter may be used.
pub(crate) fn load() {
    NOW.may_count.store(kernel_counts(), Ordering::Relaxed);
}

/// In a child that `fork` made while another thread may have been at it.
pub(crate) fn after_fork() {
    NOW.span.store(0, Ordering::Relaxed);
    NOW.is_busy.store(false, Ordering::Relaxed);
}

/// Where counter and clock were read last.
///
/// Who reads while another writes sees that `version` is odd or has changed.
struct Clock {
    version: AtomicU64,
    count: AtomicU64,
    /// 0 before the first reading.
    ns: AtomicU64,
    /// Nanoseconds a count; 0 while that is not known.
    rate: AtomicU64,
    /// For so many counts it is counted on.
    span: AtomicU64,
    is_busy: AtomicBool,
    may_count: AtomicBool,
}

impl Clock {
    const fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            count: AtomicU64::new(0),
            ns: AtomicU64::new(0),
            rate: AtomicU64::new(0),
            span: AtomicU64::new(0),
            is_busy: AtomicBool::new(false),
            may_count: AtomicBool::new(false),
        }
    }

    #[inline]
    fn now(&self) -> u64 {
        let counted = || self.counted(counter());
        let is_known = self.span.load(Ordering::Relaxed) > 0;
        is_known.then(counted).flatten().unwrap_or_else(|| self.read())
    }

    /// The time when the counter was there, if it can be told.
    #[inline]
    fn counted(&self, count: u64) -> Option<u64> {
        let version = self.version.load(Ordering::Acquire);
        let [then, ns, rate, span] = [&self.count, &self.ns, &self.rate, &self.span]
            .map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version & 1 == 0 && self.version.load(Ordering::Relaxed) == version;
        // One that went back has passed nearly all that there are.
        let passed = count.wrapping_sub(then);
        (is_whole && passed < span).then(|| ns.wrapping_add(passed.wrapping_mul(rate) >> RATE_BITS))
    }

    /// Asks libc, and where the counter is by that.
    #[cold]
    fn read(&self) -> u64 {
        let may_count = self.may_count.load(Ordering::Relaxed);
        // One thread at a time, and no handler that interrupts it.
        if !may_count || self.is_busy.swap(true, Ordering::Acquire) {
            return clock_ns();
        }
        let before = counter();
        let ns = clock_ns();
        let apart = counter().wrapping_sub(before);
        if apart <= TOGETHER {
            self.learn(before.wrapping_add(apart / 2), ns);
        }
        self.is_busy.store(false, Ordering::Release);
        ns
    }

    /// The counter was there at that time.
    fn learn(&self, count: u64, ns: u64) {
        let (then, was_ns, old) = (&self.count, &self.ns, &self.rate);
        let counts = count.wrapping_sub(then.load(Ordering::Relaxed));
        let was_ns = was_ns.load(Ordering::Relaxed);
        let passed_ns = ns.saturating_sub(was_ns);
        if was_ns > 0 && passed_ns < SHORTEST_NS {
            return;
        }
        let old = old.load(Ordering::Relaxed);
        let rate = if was_ns > 0 { rate(old, counts, passed_ns) } else { 0 };
        let span = (SPAN_NS << RATE_BITS).checked_div(rate).unwrap_or(0);
        let version = self.version.load(Ordering::Relaxed) | 1;
        self.version.store(version, Ordering::Relaxed);
        fence(Ordering::Release);
        let words = [(&self.count, count), (&self.ns, ns), (&self.rate, rate), (&self.span, span)];
        words.into_iter().for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        self.version.store(version.wrapping_add(1), Ordering::Release);
    }
}

/// Nanoseconds a count, if so many took so long; 0 if that is not to be believed.
fn rate(old: u64, counts: u64, passed_ns: u64) -> u64 {
    if passed_ns > LONGEST_NS {
        return old;
    }
    let found = (passed_ns << RATE_BITS).checked_div(counts).unwrap_or(0);
    // After a move to another machine it has to be found anew.
    let is_as_before = old == 0 || found.abs_diff(old) <= old / 64;
    if RATES.contains(&found) && is_as_before { found } else { 0 }
}

/// The processor's counter.
#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: every processor of this kind has it, and no process is without it that
    // has not itself asked the kernel to be (`PR_SET_TSC`).
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// There is none that is used.
#[cfg(not(target_arch = "x86_64"))]
const fn counter() -> u64 {
    0
}

/// Whether the kernel takes its own time from that counter: then all cores have
/// the same, and it goes on at one pace.
fn kernel_counts() -> bool {
    if !cfg!(target_arch = "x86_64") {
        return false;
    }
    let path = c"/sys/devices/system/clocksource/clocksource0/current_clocksource";
    // SAFETY: the path ends with a zero.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return false;
    }
    let mut name = [0u8; 8];
    // Not through our own hooks, which know nothing of it.
    // SAFETY: the buffer is that long, and the descriptor is ours.
    let read = unsafe { libc::syscall(libc::SYS_read, fd, name.as_mut_ptr(), name.len()) };
    // SAFETY: it is ours.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    read == 4 && name.starts_with(b"tsc\n")
}

/// What libc says.
fn clock_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` may be written, and the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_000_000_000_000;

    /// Three counts a nanosecond, known since two readings.
    fn clock() -> Clock {
        let clock = Clock::new();
        clock.learn(7, START);
        assert_eq!(clock.counted(8), None);
        clock.learn(7 + 6_000_000, START + 2_000_000);
        clock
    }

    #[test]
    fn it_counts_on_from_the_last_reading_for_two_milliseconds() {
        let clock = clock();
        let near = |count: u64, ns: u64| {
            let found = clock.counted(7 + 6_000_000 + count).unwrap();
            assert!(found.abs_diff(START + 2_000_000 + ns) <= 1, "{found}");
        };
        near(0, 0);
        near(3_000, 1_000);
        near(5_999_000, 1_999_666);
        assert_eq!(clock.counted(7 + 6_000_000 + 6_001_000), None);
    }

    #[test]
    fn a_counter_that_went_back_is_not_believed() {
        assert_eq!(clock().counted(6), None);
    }

    #[test]
    fn a_reading_too_soon_changes_nothing() {
        let clock = clock();
        clock.learn(7 + 6_000_900, START + 2_400_000);
        assert!(clock.counted(7 + 6_003_000).unwrap().abs_diff(START + 2_001_000) <= 1);
    }

    #[test]
    fn another_pace_is_believed_when_it_was_seen_by_itself() {
        let clock = clock();
        // It was moved to where there are two counts a nanosecond, and others.
        clock.learn(1 << 60, START + 4_000_000);
        assert_eq!(clock.counted((1 << 60) + 1), None);
        clock.learn((1 << 60) + 4_000_000, START + 6_000_000);
        let found = clock.counted((1 << 60) + 4_002_000).unwrap();
        assert!(found.abs_diff(START + 6_001_000) <= 1, "{found}");
    }

    #[test]
    fn a_sleep_leaves_the_pace_as_it_was() {
        let clock = clock();
        let (count, ns) = (1 << 50, START + 90_000_000_000);
        clock.learn(count, ns);
        assert!(clock.counted(count + 3_000).unwrap().abs_diff(ns + 1_000) <= 1);
    }

    /// Against libc's, from four threads that learn and count at once.
    #[test]
    fn what_is_counted_is_what_libc_says() {
        const OFF_NS: u64 = 50_000;
        load();
        let look = || {
            let begun = clock_ns();
            while clock_ns() < begun + 100_000_000 {
                let (before, now, after) = (clock_ns(), now_ns(), clock_ns());
                assert!(before - OFF_NS <= now && now <= after + OFF_NS, "{before} {now} {after}");
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(look))));
        assert_eq!(NOW.rate.load(Ordering::Relaxed) > 0, kernel_counts());
    }
}
