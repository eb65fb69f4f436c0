//! A thread in an area, and the cores that it gets back.

use crate::Roots;
use crate::guard::cores_of_process;
use crate::sys::sched::{affinity_of, set_affinity, unbind};
use lull_control::CoreSet;
use std::io;

/// A thread in an area.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) process: u32,
    /// The number of its client's class.
    pub(super) class: usize,
    /// The area that it was moved to last, or the cores that it was found with.
    pub(super) area: CoreSet,
    /// The cores that it had before Lull moved it.
    pub(super) own: CoreSet,
    /// Whether these were all of its cpuset: it follows that when it changes.
    follows: bool,
    /// The mask as the kernel has it since the last move.
    pub(super) set: CoreSet,
}

impl Moved {
    /// A thread that has cores `present` now, and cores `own` without Lull.
    pub(super) fn new(
        process: u32,
        class: usize,
        own: CoreSet,
        present: CoreSet,
        roots: &Roots,
    ) -> Self {
        let follows = allowed(process, roots).as_ref() == Some(&own);
        Self { process, class, area: present.clone(), own, follows, set: present }
    }

    /// Lets its thread run on those cores of an area that it may use. Returns `false` if there is
    /// none: it runs on its own ones then.
    pub(super) fn move_to(&mut self, tid: i32, area: &CoreSet, roots: &Roots) -> io::Result<bool> {
        self.area.clone_from(area);
        let present = affinity_of(tid)?;
        if !self.is_set_by_lull(&present, roots) {
            // Another program has set the thread since; its value is the one to restore.
            self.follows = allowed(self.process, roots).as_ref() == Some(&present);
            self.own = present;
        }
        let within = area.intersection(&self.own);
        let is_usable = !within.is_empty();
        if is_usable {
            set_affinity(tid, &within)?;
        } else {
            self.give_back(tid)?;
        }
        // The kernel leaves out cores that the thread's cgroup does not have.
        self.set = affinity_of(tid)?;
        Ok(is_usable)
    }

    /// Notes that its thread is in no area, if it has its own cores.
    pub(super) fn forget_area_if_free(&mut self, tid: i32) {
        if affinity_of(tid).is_ok_and(|present| present == self.own) {
            self.set.clone_from(&self.own);
            self.area.clone_from(&self.own);
        }
    }

    /// Gives its thread its own cores back, unless another program has set them since. A thread
    /// that has ended has no affinity.
    pub(super) fn release(&self, tid: i32, roots: &Roots) {
        let is_set_by_lull = |present: CoreSet| self.is_set_by_lull(&present, roots);
        if self.set != self.own && affinity_of(tid).is_ok_and(is_set_by_lull) {
            let _ = self.give_back(tid);
        }
    }

    fn give_back(&self, tid: i32) -> io::Result<()> {
        if self.follows { unbind(tid) } else { set_affinity(tid, &self.own) }
    }

    /// Whether its thread has these cores by Lull's last move. If its cpuset has changed since, the
    /// kernel leaves out those that the cpuset does not have, and takes all of the cpuset where
    /// none is left.
    fn is_set_by_lull(&self, present: &CoreSet, roots: &Roots) -> bool {
        let is_limited = |allowed: CoreSet| {
            let left = self.set.intersection(&allowed);
            *present == if left.is_empty() { allowed } else { left }
        };
        *present == self.set || allowed(self.process, roots).is_some_and(is_limited)
    }
}

/// Gives a thread the cores of its process. If these are all of its cpuset, it follows that when it
/// changes.
pub(super) fn set_own_cores(
    tid: i32,
    process: u32,
    whole: &CoreSet,
    roots: &Roots,
) -> io::Result<()> {
    let follows = allowed(process, roots).as_ref() == Some(whole);
    if follows { unbind(tid) } else { set_affinity(tid, whole) }
}

/// Returns the cores of the cpuset of a process.
fn allowed(process: u32, roots: &Roots) -> Option<CoreSet> {
    cores_of_process(roots, process.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Sleeper, Tree};
    use lull_control::CoreId;

    /// A thread, and a machine whose cpuset of this process the test writes.
    struct Scene {
        tree: Tree,
        thread: Sleeper,
        first: CoreSet,
        second: CoreSet,
        all: CoreSet,
    }

    impl Scene {
        /// `None` on a machine with one core.
        fn new() -> Option<Self> {
            let (tree, thread) = (Tree::new(), Sleeper::new());
            let all = thread.cores();
            let [first, second, ..] = all.iter().collect::<Vec<CoreId>>()[..] else {
                lull_testing::skip("areas need two cores");
                return None;
            };
            let one = |core: CoreId| [core].into_iter().collect();
            tree.write("sys/devices/system/cpu/online", &format!("{all}\n"));
            tree.write(&format!("proc/{}/cpuset", std::process::id()), "/a\n");
            Some(Self { tree, thread, first: one(first), second: one(second), all })
        }

        fn set_cpuset(&self, cores: &CoreSet) {
            self.tree.write("sys/fs/cgroup/a/cpuset.cpus.effective", &format!("{cores}\n"));
        }

        /// A thread with these cores of its own, which is in the area of the second core.
        fn moved(&self, own: &CoreSet) -> Moved {
            set_affinity(self.thread.tid, &self.second).unwrap();
            let (own, present) = (own.clone(), self.second.clone());
            Moved::new(std::process::id(), 0, own, present, &self.tree.roots())
        }

        /// Releases the thread, and returns its cores among those of the test.
        fn release(&self, moved: &Moved) -> CoreSet {
            moved.release(self.thread.tid, &self.tree.roots());
            self.thread.cores().intersection(&self.all)
        }
    }

    #[test]
    fn a_thread_that_had_all_of_its_cpuset_follows_it_again_and_another_one_does_not() {
        let Some(scene) = Scene::new() else { return };
        scene.set_cpuset(&scene.first);
        let moved = scene.moved(&scene.first);
        // All ones are written, of which the kernel takes those of the real cpuset.
        assert_eq!(scene.release(&moved), scene.all);
        scene.set_cpuset(&scene.all);
        let moved = scene.moved(&scene.first);
        assert_eq!(scene.release(&moved), scene.first);
    }

    #[test]
    fn a_thread_whose_cpuset_has_shrunk_gets_its_cores_back_and_keeps_those_of_another_program() {
        let Some(scene) = Scene::new() else { return };
        scene.set_cpuset(&scene.all);
        let mut moved = scene.moved(&scene.all);
        // As the kernel does where a cpuset has no core of the area any more.
        set_affinity(scene.thread.tid, &scene.first).unwrap();
        assert_eq!(scene.release(&moved), scene.first, "another program has set it");
        scene.set_cpuset(&scene.first);
        assert_eq!(scene.release(&moved), scene.all, "its cpuset has shrunk");
        set_affinity(scene.thread.tid, &scene.first).unwrap();
        let roots = scene.tree.roots();
        assert!(moved.move_to(scene.thread.tid, &scene.first, &roots).unwrap());
        assert_eq!(moved.own, scene.all, "its own cores are those that it had before");
    }
}
