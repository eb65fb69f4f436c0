//! Threads that are created as the server's are, by libc's own function.

use super::*;
use crate::cores::tests::{count, one};
use std::ptr::{null, null_mut};

unsafe extern "C" {
    #[link_name = "pthread_create"]
    fn create(
        thread: *mut libc::pthread_t,
        attributes: *const libc::pthread_attr_t,
        start: Start,
        argument: *mut c_void,
    ) -> c_int;
}

/// How many cores a thread has that a thread on one core starts, with these for it.
fn cores_of_new_thread(cores: libc::cpu_set_t, start: Start) -> c_int {
    let creator = std::thread::spawn(move || {
        cores::set(&one());
        let (mut thread, mut found) = (0, 0);
        let argument = (&raw mut found).cast();
        let failed = create_on(cores, start, argument, |start, argument| {
            // SAFETY: the thread is joined before `found` goes.
            unsafe { create(&raw mut thread, null(), start, argument) }
        });
        assert_eq!(failed, 0);
        // SAFETY: the thread was created, and is joined once.
        assert_eq!(unsafe { libc::pthread_join(thread, null_mut()) }, 0);
        found
    });
    creator.join().unwrap()
}

/// Counts the cores of its thread.
///
/// # Safety
/// `to` may be written until the thread ends.
unsafe extern "C" fn counts(to: *mut c_void) -> *mut c_void {
    // SAFETY: the creator waits for this thread.
    unsafe { *to.cast() = count() };
    null_mut()
}

#[test]
fn a_new_thread_begins_with_the_cores_that_its_creator_had() {
    let all = cores::present();
    assert_eq!(cores_of_new_thread(all, counts), count());
}

#[test]
fn a_thread_that_cannot_be_created_is_reported() {
    let all = cores::present();
    assert_eq!(create_on(all, counts, null_mut(), |_, _| libc::EAGAIN), libc::EAGAIN);
}

#[test]
fn attributes_name_cores_only_if_they_were_set() {
    // SAFETY: all zeros may be initialised.
    let mut attributes: libc::pthread_attr_t = unsafe { zeroed() };
    // SAFETY: the attributes may be written.
    assert_eq!(unsafe { libc::pthread_attr_init(&raw mut attributes) }, 0);
    // SAFETY: the attributes are valid.
    assert!(!unsafe { names_cores(&raw const attributes) });
    let (length, cores) = (size_of::<libc::cpu_set_t>(), one());
    // SAFETY: the attributes may be written, and the set read.
    let failed =
        unsafe { libc::pthread_attr_setaffinity_np(&raw mut attributes, length, &raw const cores) };
    assert_eq!(failed, 0);
    // SAFETY: the attributes are valid.
    assert!(unsafe { names_cores(&raw const attributes) });
    // SAFETY: null names none.
    assert!(!unsafe { names_cores(null()) });
    // SAFETY: they were initialised, and are not used again.
    unsafe { libc::pthread_attr_destroy(&raw mut attributes) };
}
