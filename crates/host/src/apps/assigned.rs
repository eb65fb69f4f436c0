//! Apps whose cgroups a discovery assigns: a fixed number of *berths* for each template.
//!
//! The discovery (the pods of a Kubernetes node, for example) knows which cgroups have come and
//! gone. It gives a cgroup a berth and takes it away; the app of the berth has the processes of
//! that cgroup and of those below it.

use super::search::{Search, SearchError};
use super::table::ProcessTable;
use crate::Roots;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The berths of one template. Clones share them.
#[derive(Debug, Clone)]
pub struct Berths {
    template: Arc<str>,
    cgroups: Arc<Mutex<Vec<Option<PathBuf>>>>,
}

/// One berth, which is one app of the run.
#[derive(Debug, Clone)]
pub(super) struct Berth {
    berths: Berths,
    index: usize,
    /// The cgroup that had it when it was looked at last.
    seen: Option<PathBuf>,
}

impl Berths {
    /// So many free berths of a template.
    pub fn new(template: &str, count: usize) -> Self {
        Self { template: template.into(), cgroups: Arc::new(Mutex::new(vec![None; count])) }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Whether all are taken.
    pub fn is_full(&self) -> bool {
        self.lock().iter().all(Option::is_some)
    }

    /// Gives a cgroup (a directory, or a path below a hierarchy) the first free berth and returns
    /// its number; `None` if all are taken. The cgroup need not exist yet.
    pub fn take(&self, cgroup: &Path) -> Option<usize> {
        let mut cgroups = self.lock();
        let free = cgroups.iter().position(Option::is_none)?;
        cgroups[free] = Some(cgroup.to_owned());
        Some(free)
    }

    /// Frees a berth. Processes of its cgroup that still run get back what they had before.
    pub fn free(&self, index: usize) {
        if let Some(berth) = self.lock().get_mut(index) {
            *berth = None;
        }
    }

    pub(super) fn each(&self) -> impl Iterator<Item = Berth> + '_ {
        (0..self.count()).map(|index| Berth { berths: self.clone(), index, seen: None })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<PathBuf>>> {
        // Each write is a single assignment.
        self.cgroups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Berth {
    /// A berth that no discovery knows, so that it stays free.
    pub(super) fn unassigned() -> Self {
        Self { berths: Berths::new("", 1), index: 0, seen: None }
    }

    fn cgroup(&self) -> Option<PathBuf> {
        self.berths.lock().get(self.index).cloned().flatten()
    }

    /// Whether it has a cgroup.
    pub(super) fn is_taken(&self) -> bool {
        self.berths.lock().get(self.index).is_some_and(Option::is_some)
    }

    /// Whether another cgroup has it than when it was looked at last.
    pub(super) fn has_news(&self) -> bool {
        self.berths.lock().get(self.index).is_some_and(|now| *now != self.seen)
    }

    /// Notes which cgroup has it; returns whether another one had it before.
    pub(super) fn look(&mut self) -> bool {
        let now = self.cgroup();
        let has_changed = now != self.seen;
        self.seen = now;
        has_changed
    }

    /// The processes of its cgroup; none if it is free, or if the cgroup does not exist.
    pub(super) fn processes(&self, table: &ProcessTable) -> Result<BTreeSet<i32>, SearchError> {
        match &self.seen {
            Some(cgroup) => Search::Cgroup(cgroup.clone()).processes(table),
            None => Ok(BTreeSet::new()),
        }
    }

    /// Whether its cgroup may have processes.
    pub(super) fn may_have_processes(&self, roots: &Roots) -> bool {
        let cgroup = self.cgroup();
        cgroup.is_some_and(|cgroup| Search::Cgroup(cgroup).may_have_processes(roots))
    }

    /// Whether it is not the first of its template.
    pub(super) const fn is_spare(&self) -> bool {
        self.index > 0
    }

    pub(super) fn describe(&self) -> String {
        match &self.seen {
            Some(cgroup) => format!("cgroup {}", cgroup.display()),
            None => {
                let (template, count) = (&self.berths.template, self.berths.count());
                format!("berth {} of {count} of `{template}`", self.index + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn a_berth_has_one_cgroup_at_a_time_and_its_app_sees_every_change() {
        let tree = Tree::new();
        std::fs::create_dir_all(tree.path("proc")).unwrap();
        tree.write("sys/fs/cgroup/kubepods/a/cgroup.procs", "11\n");
        tree.write("sys/fs/cgroup/kubepods/a/main/cgroup.procs", "12\n");
        let table = ProcessTable::new(&tree.roots()).unwrap();
        let berths = Berths::new("pod", 2);
        let mut all: Vec<Berth> = berths.each().collect();
        assert_eq!(berths.take(Path::new("kubepods/a")), Some(0));
        assert_eq!(berths.take(Path::new("kubepods/b")), Some(1));
        assert_eq!(berths.take(Path::new("kubepods/c")), None);
        assert!(all[0].has_news() && all[0].look() && !all[0].look());
        assert_eq!(all[0].processes(&table).unwrap(), BTreeSet::from([11, 12]));
        assert!(all[0].may_have_processes(&tree.roots()));
        all[1].look();
        assert!(!all[1].may_have_processes(&tree.roots()), "its cgroup does not exist yet");
        assert!(all[1].processes(&table).unwrap().is_empty());
        berths.free(0);
        berths.free(9);
        assert!(all[0].has_news() && !all[0].is_taken() && all[0].look());
        assert!(all[0].processes(&table).unwrap().is_empty());
        assert_eq!(berths.take(Path::new("kubepods/c")), Some(0));
        assert!(all[0].describe().contains("berth 1 of 2 of `pod`"));
        assert!(all[1].is_spare() && !all[0].is_spare());
    }
}
