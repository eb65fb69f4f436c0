//! CPU time of a whole process, its exited threads included.

use lull_measure::Nanos;
use rustix::io::Errno;
use std::io;

/// CPU time that a process has used since it began, exact to the nanosecond.
///
/// The clock of any process may be read, by any user. `/proc/PID/stat` shows the same sum
/// rounded to 10 ms.
///
/// # Errors
/// `ESRCH` if there is no such process.
pub fn process_cpu_time(pid: i32) -> io::Result<Nanos> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that the kernel may write; a clock that does
    // not exist is an error.
    let done = unsafe { libc::clock_gettime(process_clock(pid), &raw mut time) };
    if done == -1 {
        let error = io::Error::last_os_error();
        // The kernel reports the clock of a process that does not exist as invalid.
        let is_gone = error.raw_os_error() == Some(libc::EINVAL);
        return Err(if is_gone { Errno::SRCH.into() } else { error });
    }
    Ok(Nanos(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()))
}

/// The clock's number as the kernel composes it (`MAKE_PROCESS_CPUCLOCK` with
/// `CPUCLOCK_SCHED`, linux/posix-timers.h); `clock_getcpuclockid(3)` does the
/// same after one more system call.
const fn process_clock(pid: i32) -> libc::clockid_t {
    const CPUCLOCK_SCHED: i32 = 2;
    (!pid << 3) | CPUCLOCK_SCHED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exited_threads_stay_in_the_sum() {
        let me = std::process::id().cast_signed();
        let before = process_cpu_time(me).unwrap();
        let spin = || {
            let begin = std::time::Instant::now();
            while begin.elapsed().as_millis() < 20 {
                std::hint::black_box(begin);
            }
        };
        std::thread::spawn(spin).join().unwrap();
        assert!(process_cpu_time(me).unwrap() > before);
    }

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id().cast_signed();
        child.wait().unwrap();
        assert_eq!(process_cpu_time(pid).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }
}
