//! One core for everybody who is measured.

use anyhow::{Context as _, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps this thread, and children that it starts, on one core until it goes.
pub(in crate::bench) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// The last core that may be used: the first has most of the interrupts.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(in crate::bench) fn to_last_core() -> Result<Self> {
        let last = cores(&sched_getaffinity(None)?).last();
        Self::to(last.context("this process may use no core")?)
    }

    /// One of the cores that may be used, counted from 0.
    ///
    /// # Errors
    /// If there are not so many, or the kernel refuses.
    pub(in crate::bench) fn to_core(number: usize) -> Result<Self> {
        let core = cores(&sched_getaffinity(None)?).nth(number);
        Self::to(core.with_context(|| format!("this needs {} cores", number + 1))?)
    }

    fn to(core: usize) -> Result<Self> {
        let before = sched_getaffinity(None)?;
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only)?;
        Ok(Self { before })
    }
}

fn cores(set: &CpuSet) -> impl Iterator<Item = usize> + '_ {
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core))
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Where all cores were allowed before they are allowed again.
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_core_is_left_until_the_end() {
        let before = sched_getaffinity(None).unwrap();
        let pinned = Pinned::to_last_core().unwrap();
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        drop(pinned);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
