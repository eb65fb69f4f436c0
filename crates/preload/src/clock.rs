//! `CLOCK_MONOTONIC` at the cost of reading the processor's counter.
//!
//! libc's clock takes 23 ns with warm caches, a third of what tracking a query costs, and
//! more in a server that returns from the kernel with cold ones. Where the kernel derives its
//! own time from the time stamp counter (x86-64, clock source `tsc`), this module reads the
//! counter and extrapolates from the last time at which it read both, for at most
//! [`SPAN_NS`]. The result is the time that other processes and the agent read, but for the
//! drift in that span: less than a microsecond, most of it the time between the two readings.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// The longest extrapolation.
const SPAN_NS: u64 = 2_000_000;
/// The shortest time from which a rate is computed: in less, the time that the readings
/// themselves take would distort it.
const SHORTEST_NS: u64 = 1_000_000;
/// The longest time from which a rate is computed: in more, the machine may have slept.
const LONGEST_NS: u64 = 1_000_000_000;
/// A rate is in nanoseconds per count, times 2^32.
const RATE_BITS: u32 = 32;
/// Rates from 10 GHz to 500 MHz; a rate outside results from a disturbance.
const RATES: std::ops::RangeInclusive<u64> = (1 << RATE_BITS) / 10..=2 << RATE_BITS;
/// The readings count as simultaneous if the counter advanced by at most this much.
const TOGETHER: u64 = 2_000;

static NOW: Clock = Clock::new();

/// Returns `CLOCK_MONOTONIC` in nanoseconds, which is the same for all processes.
#[inline]
pub(crate) fn now_ns() -> u64 {
    NOW.now()
}

/// Determines whether the counter may be used, before the program runs.
pub(crate) fn load() {
    NOW.may_count.store(kernel_uses_counter(), Ordering::Relaxed);
}

/// Resets the clock in a child that `fork` made, since another thread of the parent may
/// have held it.
pub(crate) fn after_fork() {
    NOW.span.store(0, Ordering::Relaxed);
    NOW.is_busy.store(false, Ordering::Relaxed);
}

/// The last reading of counter and clock, under a sequence lock: a reader that meets a
/// writer sees that `version` is odd or has changed.
#[repr(align(64))]
struct Clock {
    version: AtomicU64,
    count: AtomicU64,
    /// 0 before the first reading.
    ns: AtomicU64,
    /// Nanoseconds per count; 0 while unknown.
    rate: AtomicU64,
    /// The counts for which the reading may be extrapolated.
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
        let extrapolated = || self.extrapolate(counter());
        let is_known = self.span.load(Ordering::Relaxed) > 0;
        is_known.then(extrapolated).flatten().unwrap_or_else(|| self.read())
    }

    /// Returns the time at which the counter had this value, if the last reading allows it.
    #[inline]
    fn extrapolate(&self, count: u64) -> Option<u64> {
        let version = self.version.load(Ordering::Acquire);
        let [then, ns, rate, span] = [&self.count, &self.ns, &self.rate, &self.span]
            .map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version & 1 == 0 && self.version.load(Ordering::Relaxed) == version;
        // A counter that went back wraps to nearly the largest value.
        let passed = count.wrapping_sub(then);
        (is_whole && passed < span).then(|| ns.wrapping_add(passed.wrapping_mul(rate) >> RATE_BITS))
    }

    /// Reads libc's clock, and the counter with it.
    #[cold]
    fn read(&self) -> u64 {
        let may_count = self.may_count.load(Ordering::Relaxed);
        // One thread measures at a time, and no handler that interrupts it.
        if !may_count || self.is_busy.swap(true, Ordering::Acquire) {
            return clock_ns();
        }
        let before = counter();
        let ns = clock_ns();
        let elapsed = counter().wrapping_sub(before);
        if elapsed <= TOGETHER {
            self.update(before.wrapping_add(elapsed / 2), ns);
        }
        self.is_busy.store(false, Ordering::Release);
        ns
    }

    /// Stores a reading, and computes the rate since the last one.
    fn update(&self, count: u64, ns: u64) {
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

/// Returns the nanoseconds per count if `counts` took `passed_ns`; 0 if that is implausible.
fn rate(old: u64, counts: u64, passed_ns: u64) -> u64 {
    if passed_ns > LONGEST_NS {
        return old;
    }
    let found = (passed_ns << RATE_BITS).checked_div(counts).unwrap_or(0);
    // After a migration to another machine the rate is measured again from the start.
    let is_as_before = old == 0 || found.abs_diff(old) <= old / 64;
    if RATES.contains(&found) && is_as_before { found } else { 0 }
}

/// Reads the processor's counter.
#[cfg(target_arch = "x86_64")]
fn counter() -> u64 {
    // SAFETY: every processor of this kind has it, and a process may read it unless it has
    // itself disabled that (`PR_SET_TSC`).
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Other processors' counters are not used.
#[cfg(not(target_arch = "x86_64"))]
const fn counter() -> u64 {
    0
}

/// Whether the kernel derives its own time from that counter: then all cores share it, and
/// it advances at a constant rate.
fn kernel_uses_counter() -> bool {
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
    // Direct system calls, since `read` and `close` are hooks of this library.
    // SAFETY: the buffer is that long, and the descriptor is ours.
    let read = unsafe { libc::syscall(libc::SYS_read, fd, name.as_mut_ptr(), name.len()) };
    // SAFETY: the descriptor is ours.
    unsafe { libc::syscall(libc::SYS_close, fd) };
    read == 4 && name.starts_with(b"tsc\n")
}

/// Reads libc's clock.
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

    /// A clock of three counts a nanosecond, known from two readings.
    fn clock() -> Clock {
        let clock = Clock::new();
        clock.update(7, START);
        assert_eq!(clock.extrapolate(8), None);
        clock.update(7 + 6_000_000, START + 2_000_000);
        clock
    }

    #[test]
    fn a_reading_is_extrapolated_for_two_milliseconds() {
        let clock = clock();
        let near = |count: u64, ns: u64| {
            let found = clock.extrapolate(7 + 6_000_000 + count).unwrap();
            assert!(found.abs_diff(START + 2_000_000 + ns) <= 1, "{found}");
        };
        near(0, 0);
        near(3_000, 1_000);
        near(5_999_000, 1_999_666);
        assert_eq!(clock.extrapolate(7 + 6_000_000 + 6_001_000), None);
    }

    #[test]
    fn a_counter_that_went_back_is_not_used() {
        assert_eq!(clock().extrapolate(6), None);
    }

    #[test]
    fn a_reading_too_soon_changes_nothing() {
        let clock = clock();
        clock.update(7 + 6_000_900, START + 2_400_000);
        assert!(clock.extrapolate(7 + 6_003_000).unwrap().abs_diff(START + 2_001_000) <= 1);
    }

    #[test]
    fn another_rate_is_used_once_it_was_measured_by_itself() {
        let clock = clock();
        // Migrated to a machine of two counts a nanosecond, where the counter differs.
        clock.update(1 << 60, START + 4_000_000);
        assert_eq!(clock.extrapolate((1 << 60) + 1), None);
        clock.update((1 << 60) + 4_000_000, START + 6_000_000);
        let found = clock.extrapolate((1 << 60) + 4_002_000).unwrap();
        assert!(found.abs_diff(START + 6_001_000) <= 1, "{found}");
    }

    #[test]
    fn a_sleep_of_the_machine_leaves_the_rate() {
        let clock = clock();
        let (count, ns) = (1 << 50, START + 90_000_000_000);
        clock.update(count, ns);
        assert!(clock.extrapolate(count + 3_000).unwrap().abs_diff(ns + 1_000) <= 1);
    }

    /// Compared with libc's from four threads that read and update at once.
    #[test]
    fn the_clock_agrees_with_libcs() {
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
        assert_eq!(NOW.rate.load(Ordering::Relaxed) > 0, kernel_uses_counter());
    }
}
