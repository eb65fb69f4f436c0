//! Trees of kernel files for tests, a ledger in memory, a gate whose workers are not woken, and
//! threads that sleep.

use crate::guard::{LedgerError, Original, ThreadWrite};
use crate::knobs::SaveOld;
use crate::sys::sched::affinity_of;
use crate::{LiveThread, Roots};
use lull_control::CoreSet;
use lull_oncall::{GateEntry, Id, Wake};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use tempfile::TempDir;

/// A directory with `proc` and `sys`, gone when dropped.
pub(crate) struct Tree {
    dir: TempDir,
}

impl Tree {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots::under(self.dir.path())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file and the directories above it; an open file sees the new content.
    pub(crate) fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Writes the `stat` of a process that is in group 7.
    pub(crate) fn write_member_of_7(&self, pid: i32, start_ticks: u64) {
        let before = "S 1 7 7 0 -1 4194560 1 0 0 0 2 3 0 0 20 0 1 0";
        self.write(&format!("proc/{pid}/stat"), &format!("{pid} (a) {before} {start_ticks} 1"));
    }

    /// Writes the `stat` of a thread, of its process too if it is the main one.
    pub(crate) fn write_thread(&self, pid: i32, tid: i32) {
        let stat = format!("{tid} (a) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 70 0\n");
        self.write(&format!("proc/{pid}/task/{tid}/stat"), &stat);
        if pid == tid {
            self.write(&format!("proc/{pid}/stat"), &stat);
        }
    }

    pub(crate) fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap();
    }
}

/// A tree with these files of cgroups, by path below the hierarchy's root, and no process.
pub(crate) fn cgroup_tree(files: &[(&str, &str)]) -> (TempDir, Roots) {
    let tree = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = tree.path().join("sys/fs/cgroup").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let roots = Roots::under(tree.path());
    std::fs::create_dir_all(&roots.proc).unwrap();
    (tree, roots)
}

/// Wakes no worker.
pub(crate) struct NoWake;

impl Wake for NoWake {
    fn wake(&self, _: Id, _: &GateEntry) {}
}

/// A ledger in memory; a full one saves nothing.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    pub(crate) originals: Vec<Original>,
    /// How often an old value was saved.
    pub(crate) batches: usize,
    pub(crate) is_full: bool,
}

impl SaveOld for Saved {
    fn threads(&mut self, _: &[ThreadWrite]) -> Result<(), LedgerError> {
        Ok(())
    }

    fn changed_threads(&mut self, _: &[LiveThread]) -> Result<(), LedgerError> {
        Ok(())
    }

    fn owners(&self, _: LiveThread) -> Option<Original> {
        None
    }

    fn values(&mut self, originals: &[Original]) -> Result<(), LedgerError> {
        if self.is_full {
            let (path, source) = ("/full/ledger".into(), std::io::ErrorKind::StorageFull.into());
            return Err(LedgerError::Write { path, source });
        }
        let before = self.originals.len();
        for original in originals {
            match self.originals.iter_mut().find(|known| known.key() == original.key()) {
                Some(known) => {
                    known.take_ours(original);
                }
                None => self.originals.push(original.clone()),
            }
        }
        self.batches += usize::from(self.originals.len() > before);
        Ok(())
    }
}

/// A thread that sleeps until this is dropped.
pub(crate) struct Sleeper {
    pub(crate) tid: i32,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sleeper {
    pub(crate) fn new() -> Self {
        let (end, ends) = channel::<()>();
        let tid = Arc::new(AtomicI32::new(0));
        let theirs = Arc::clone(&tid);
        let thread = std::thread::spawn(move || {
            theirs.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
            let _ = ends.recv();
        });
        while tid.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        Self { tid: tid.load(Ordering::Acquire), end: Some(end), thread: Some(thread) }
    }

    pub(crate) fn cores(&self) -> CoreSet {
        affinity_of(self.tid).unwrap()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        drop(self.end.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// A cpuset (version 1) of this test's own, for one process; `None` where none can be made.
pub(crate) struct Cpuset(PathBuf);

impl Cpuset {
    pub(crate) fn new(process: i32, cores: &CoreSet) -> Option<Self> {
        let top = Path::new("/sys/fs/cgroup/cpuset");
        let memory = std::fs::read_to_string(top.join("cpuset.mems")).ok()?;
        let dir = top.join(format!("lull-test-{process}"));
        std::fs::create_dir(&dir).ok()?;
        let cpuset = Self(dir);
        std::fs::write(cpuset.0.join("cpuset.mems"), memory).ok()?;
        cpuset.allow(cores);
        std::fs::write(cpuset.0.join("cgroup.procs"), process.to_string()).ok()?;
        Some(cpuset)
    }

    pub(crate) fn allow(&self, cores: &CoreSet) {
        std::fs::write(self.0.join("cpuset.cpus"), cores.to_string()).unwrap();
    }
}

impl Drop for Cpuset {
    fn drop(&mut self) {
        let processes = std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for process in processes.lines() {
            let _ = std::fs::write("/sys/fs/cgroup/cpuset/cgroup.procs", process);
        }
        let _ = std::fs::remove_dir(&self.0);
    }
}
