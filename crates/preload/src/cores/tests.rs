//! A thread on one core, as if an agent had moved it.

use super::*;

/// How many cores this thread may use.
pub(crate) fn count() -> i32 {
    // SAFETY: a set of cores.
    unsafe { libc::CPU_COUNT(&present()) }
}

/// One of the cores of this thread.
pub(crate) fn one() -> libc::cpu_set_t {
    let cores = present();
    // SAFETY: a set of cores.
    let has = |core: &usize| unsafe { libc::CPU_ISSET(*core, &cores) };
    let first = (0..1024).find(has).unwrap();
    // SAFETY: all zeros are a set of cores.
    let mut one: libc::cpu_set_t = unsafe { zeroed() };
    // SAFETY: the core is within the set.
    unsafe { libc::CPU_SET(first, &mut one) };
    one
}

#[test]
fn a_thread_takes_back_the_cores_that_it_had_before_its_first_request() {
    let before = count();
    let thread = std::thread::spawn(|| {
        note();
        set(&one());
        note();
        let moved = count();
        take_back();
        (moved, count())
    });
    assert_eq!(thread.join().unwrap(), (1, before));
}

#[test]
fn a_thread_without_a_request_keeps_its_cores() {
    let thread = std::thread::spawn(|| {
        set(&one());
        take_back();
        count()
    });
    assert_eq!(thread.join().unwrap(), 1);
}
