//! The cores that the threads of a server have without a request under way.

use crate::sys::sched::mask_of;
use rustix::thread::CpuSet;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The cores of each thread with a request under way, as they were before its first one.
#[derive(Debug, Default)]
pub(super) struct OwnCores(Mutex<BTreeMap<i32, Own>>);

#[derive(Debug)]
struct Own {
    /// Requests of the thread that are under way.
    requests: u32,
    /// `None` if it is not known: the kernel refuses to report it, or the thread was started by
    /// one with a request, and has inherited the cores of that request.
    mask: Option<CpuSet>,
}

impl OwnCores {
    /// Notes a request of a thread, which must not be on its core yet; `is_given` finds the cores
    /// that requests are given.
    pub(super) fn begin(&self, tid: i32, is_given: impl Fn(&CpuSet) -> bool) {
        let own_mask = || mask_of(tid).ok().filter(|mask| !is_given(mask));
        let mut all = self.lock();
        let own = all.entry(tid).or_insert_with(|| Own { requests: 0, mask: own_mask() });
        own.requests += 1;
    }

    /// Notes the end of a request; returns the cores that its thread had before, if they are
    /// known.
    pub(super) fn end(&self, tid: i32) -> Option<CpuSet> {
        let mut all = self.lock();
        let own = all.get_mut(&tid)?;
        let mask = own.mask;
        own.requests = own.requests.saturating_sub(1);
        if own.requests == 0 {
            all.remove(&tid);
        }
        mask
    }

    /// Forgets a thread that has ended; its number may be another's.
    pub(super) fn forget(&self, tid: i32) {
        self.lock().remove(&tid);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, Own>> {
        // The state is consistent between any two statements above.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
