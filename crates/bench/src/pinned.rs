//! One core for all servers that are measured.

use super::process::threads_at_work;
use anyhow::{Context as _, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps this thread, and children that it starts, on one core until it goes.
pub(crate) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// The last core that may be used: the first has most of the interrupts.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn to_last_core() -> Result<Self> {
        let last = cores(&sched_getaffinity(None)?).last();
        Self::to(last.context("this process may use no core")?)
    }

    /// One of the cores that may be used, counted from 0.
    ///
    /// # Errors
    /// If there are not so many, or the kernel refuses.
    pub(crate) fn to_core(number: usize) -> Result<Self> {
        Self::to(usable_core(number)?)
    }

    fn to(core: usize) -> Result<Self> {
        let before = sched_getaffinity(None)?;
        sched_setaffinity(None, &only(core))?;
        Ok(Self { before })
    }
}

/// Keeps a server's threads, and those that they start, on one core until it goes.
pub(crate) struct PinnedServer {
    pid: u32,
    before: CpuSet,
}

impl PinnedServer {
    /// `pid` is the server itself, or an agent above it that stays on its cores.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn to(pid: u32, core: usize) -> Result<Self> {
        let before = sched_getaffinity(threads_at_work(pid)?.first().copied())?;
        let pinned = Self { pid, before };
        pinned.allow(&only(core))?;
        Ok(pinned)
    }

    fn allow(&self, cores: &CpuSet) -> Result<()> {
        for thread in threads_at_work(self.pid)? {
            match sched_setaffinity(Some(thread), cores) {
                // The thread has ended meanwhile.
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Drop for PinnedServer {
    fn drop(&mut self) {
        // All threads had this mask before.
        let _ = self.allow(&self.before);
    }
}

/// One of the cores that this process may use, counted from 0.
///
/// # Errors
/// If there are not so many.
pub(crate) fn usable_core(number: usize) -> Result<usize> {
    let core = cores(&sched_getaffinity(None)?).nth(number);
    core.with_context(|| format!("this needs {} cores", number + 1))
}

fn only(core: usize) -> CpuSet {
    let mut only = CpuSet::new();
    only.set(core);
    only
}

fn cores(set: &CpuSet) -> impl Iterator<Item = usize> + '_ {
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core))
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Restores the former mask.
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

    #[test]
    fn a_servers_threads_are_left_one_core_and_not_the_agents_above_it() {
        // The shell is the agent, and what it starts and waits for the server.
        let mut agent =
            std::process::Command::new("sh").args(["-c", "sleep 60; true"]).spawn().unwrap();
        let pid = agent.id();
        let allowed = |thread| sched_getaffinity(Some(thread)).unwrap().count();
        let own = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        let server = loop {
            match threads_at_work(pid).unwrap().as_slice() {
                [thread] if *thread != own => break *thread,
                _ => std::thread::sleep(std::time::Duration::from_millis(5)),
            }
        };
        let (all, pinned) = (allowed(own), PinnedServer::to(pid, usable_core(0).unwrap()).unwrap());
        assert_eq!((allowed(own), allowed(server)), (all, 1));
        drop(pinned);
        assert_eq!((allowed(own), allowed(server)), (all, all));
        rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
        agent.wait().unwrap();
    }
}
