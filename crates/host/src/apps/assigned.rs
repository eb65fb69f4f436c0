//! Apps whose cgroups a discovery assigns: a fixed number of *slots* for each template.
//!
//! The discovery (the pods of a Kubernetes node, for example) knows which cgroups have come and
//! gone. It gives a cgroup a slot and takes it away; the app of the slot has the processes of
//! that cgroup and of those below it, which are listed again when something may have changed
//! ([`CgroupActivity`]).

use super::activity::{Activity, CgroupActivity};
use super::cgroup::{self, CgroupError};
use super::search::{Search, SearchError, listed};
use super::table::ProcessTable;
use crate::{Roots, monotonic};
use lull_measure::Nanos;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Time after which a cgroup is listed again in any case, as all processes of the machine are.
const LIST_AGAIN: Nanos = Nanos::from_secs(30);

/// The slots of one template. Clones share them.
#[derive(Debug, Clone)]
pub struct CgroupSlots {
    template: Arc<str>,
    cgroups: Arc<Mutex<Vec<Option<Assigned>>>>,
}

/// A cgroup that has a slot.
#[derive(Debug, Clone)]
struct Assigned {
    cgroup: Arc<Path>,
    /// Whether processes are looked for in it while it has none.
    is_looked_for: bool,
}

/// One slot, which is one app of the run.
#[derive(Debug)]
pub(super) struct CgroupSlot {
    slots: CgroupSlots,
    index: usize,
    /// The cgroup of the slot at the last check.
    seen: Option<Arc<Path>>,
    /// The directory of that cgroup once it was found, and what shows when to list it again.
    place: Option<(PathBuf, CgroupActivity)>,
    /// The time of the directory's last listing, and its activity before that.
    listed: Option<(Nanos, Activity)>,
    /// Its activity when it was read last.
    latest: Option<Activity>,
}

/// The changes in a cgroup since it was listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SinceListing {
    /// No task of the cgroup has run.
    Idle,
    /// Processes may have come or gone, unless those that were listed have this many threads.
    Tasks(u64),
    /// The cgroup must be listed again.
    Unknown,
}

impl CgroupSlots {
    /// Creates this many free slots of a template.
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

    /// Gives a cgroup (a directory, or a path below a hierarchy) the first free slot and returns
    /// its number; `None` if all are taken. The cgroup need not exist yet.
    pub fn take(&self, cgroup: &Path) -> Option<usize> {
        let mut cgroups = self.lock();
        let free = cgroups.iter().position(Option::is_none)?;
        cgroups[free] = Some(Assigned { cgroup: cgroup.into(), is_looked_for: true });
        Some(free)
    }

    /// Ends the search for processes in the cgroup of a slot: the discovery has reported that the
    /// cgroup is gone, and will free the slot.
    pub fn end_search(&self, index: usize) {
        if let Some(Some(assigned)) = self.lock().get_mut(index) {
            assigned.is_looked_for = false;
        }
    }

    /// Whether processes are looked for in the cgroup of a slot while it has none.
    pub fn is_looked_for(&self, index: usize) -> bool {
        matches!(self.lock().get(index), Some(Some(Assigned { is_looked_for: true, .. })))
    }

    /// Frees a slot. Processes of its cgroup that still run get their former values back.
    pub fn free(&self, index: usize) {
        if let Some(slot) = self.lock().get_mut(index) {
            *slot = None;
        }
    }

    pub(super) fn each(&self) -> impl Iterator<Item = CgroupSlot> + '_ {
        (0..self.count()).map(|index| CgroupSlot::new(self.clone(), index))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Assigned>>> {
        // Each write is a single assignment.
        self.cgroups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CgroupSlot {
    const fn new(slots: CgroupSlots, index: usize) -> Self {
        Self { slots, index, seen: None, place: None, listed: None, latest: None }
    }

    /// A slot that no discovery knows, so that it stays free.
    pub(super) fn unassigned() -> Self {
        Self::new(CgroupSlots::new("", 1), 0)
    }

    fn cgroup(&self) -> Option<Arc<Path>> {
        self.slots.lock().get(self.index)?.as_ref().map(|assigned| assigned.cgroup.clone())
    }

    /// Whether processes are looked for in its cgroup while it has none.
    pub(super) fn is_looked_for(&self) -> bool {
        self.slots.is_looked_for(self.index)
    }

    /// Whether the slot has another cgroup than at the last check.
    pub(super) fn has_news(&self) -> bool {
        let all = self.slots.lock();
        let Some(now) = all.get(self.index) else { return false };
        match (now.as_ref().map(|assigned| &assigned.cgroup), &self.seen) {
            // Nearly always it is the same text, which is not compared byte by byte.
            (Some(now), Some(seen)) => !Arc::ptr_eq(now, seen) && now != seen,
            (now, seen) => now.is_some() != seen.is_some(),
        }
    }

    /// Notes the cgroup of the slot; returns whether it had another one before.
    pub(super) fn look(&mut self) -> bool {
        let has_changed = self.has_news();
        if has_changed {
            *self = Self { seen: self.cgroup(), ..Self::new(self.slots.clone(), self.index) };
        }
        has_changed
    }

    /// Lists the processes of its cgroup but those of which no app is made; none if it is free, or
    /// if the cgroup does not exist.
    pub(super) fn processes(&mut self, table: &ProcessTable) -> Result<BTreeSet<i32>, SearchError> {
        (self.listed, self.latest) = (None, None);
        let Some((place, activity)) = self.find(table.roots())? else {
            return Ok(BTreeSet::new());
        };
        // Read before the listing, so that a change during the listing is found by the next look.
        let before = activity.read();
        // The agent's own pod can have a slot.
        let found = listed(place, table)?;
        Search::Cgroup(place.clone()).check_count(found.len())?;
        self.latest = before;
        // A process that the table does not know yet must be found by another listing.
        let are_known = found.iter().all(|pid| table.facts(*pid).is_some());
        self.listed = before.filter(|_| are_known).map(|before| (monotonic(), before));
        Ok(found)
    }

    /// Returns the events in its cgroup since the last listing.
    pub(super) fn since_listing(&mut self) -> SinceListing {
        let (Some((time, before)), Some((_, activity))) = (self.listed, &mut self.place) else {
            return SinceListing::Unknown;
        };
        if monotonic() >= time.saturating_add(LIST_AGAIN) {
            return SinceListing::Unknown;
        }
        self.latest = activity.read();
        match self.latest {
            Some(Activity::Tasks(count)) => SinceListing::Tasks(count),
            now if now == Some(before) => SinceListing::Idle,
            _ => SinceListing::Unknown,
        }
    }

    /// Returns the CPU time that its cgroup had used at the last check, in microseconds, if it was
    /// read.
    pub(super) const fn usage_us(&self) -> Option<u64> {
        match self.latest {
            Some(Activity::UsageUs(usage_us)) => Some(usage_us),
            _ => None,
        }
    }

    /// Has the cgroup listed again by the next look.
    pub(super) const fn forget_listing(&mut self) {
        self.listed = None;
    }

    /// Whether its cgroup may have processes of which an app is made.
    pub(super) fn may_have_processes(&mut self, table: &ProcessTable) -> bool {
        let Ok(Some((place, _))) = self.find(table.roots()) else { return false };
        // A cgroup that was removed stays assigned until the discovery reports its end.
        place.exists() && listed(place, table).is_ok_and(|pids| !pids.is_empty())
    }

    /// Finds the directory of its cgroup. A cgroup that is made again is where it was.
    fn find(
        &mut self,
        roots: &Roots,
    ) -> Result<Option<&mut (PathBuf, CgroupActivity)>, CgroupError> {
        if let (None, Some(cgroup)) = (&self.place, &self.seen) {
            self.place = match cgroup::find(roots, cgroup) {
                Ok(place) => {
                    let activity = CgroupActivity::new(&place);
                    Some((place, activity))
                }
                Err(CgroupError::NotFound { .. }) => None,
                Err(error) => return Err(error),
            };
        }
        Ok(self.place.as_mut())
    }

    /// Whether it is not the first of its template.
    pub(super) const fn is_spare(&self) -> bool {
        self.index > 0
    }

    pub(super) fn describe(&self) -> String {
        match &self.seen {
            Some(cgroup) => format!("cgroup {}", cgroup.display()),
            None => {
                let (template, count) = (&self.slots.template, self.slots.count());
                format!("slot {} of {count} of `{template}`", self.index + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;
    use std::process::{Command, Stdio};

    #[test]
    fn a_berth_has_one_cgroup_at_a_time_and_its_app_sees_every_change() {
        let tree = Tree::new();
        std::fs::create_dir_all(tree.path("proc")).unwrap();
        tree.write("sys/fs/cgroup/kubepods/a/cgroup.procs", "11\n");
        tree.write("sys/fs/cgroup/kubepods/a/main/cgroup.procs", "12\n");
        let table = ProcessTable::new(&tree.roots()).unwrap();
        let slots = CgroupSlots::new("pod", 2);
        let mut all: Vec<CgroupSlot> = slots.each().collect();
        assert_eq!(slots.take(Path::new("kubepods/a")), Some(0));
        assert_eq!(slots.take(Path::new("kubepods/b")), Some(1));
        assert_eq!(slots.take(Path::new("kubepods/c")), None);
        assert!(all[0].has_news() && all[0].look() && !all[0].look());
        assert_eq!(all[0].processes(&table).unwrap(), BTreeSet::from([11, 12]));
        assert!(all[0].may_have_processes(&table));
        all[1].look();
        assert!(!all[1].may_have_processes(&table), "its cgroup does not exist yet");
        assert!(all[1].processes(&table).unwrap().is_empty());
        assert!(all[0].is_looked_for());
        slots.end_search(0);
        assert!(!all[0].is_looked_for() && !all[0].has_news(), "it has its slot until then");
        assert!(!all[0].processes(&table).unwrap().is_empty());
        slots.free(0);
        slots.free(9);
        assert!(all[0].has_news() && !all[0].is_looked_for() && all[0].look());
        assert!(all[0].processes(&table).unwrap().is_empty());
        assert_eq!(slots.take(Path::new("kubepods/c")), Some(0));
        assert!(all[0].is_looked_for() && all[0].describe().contains("slot 1 of 2 of `pod`"));
        assert!(all[1].is_spare() && !all[0].is_spare());
    }

    #[test]
    fn a_berth_of_the_agents_own_pod_leaves_the_agent_out() {
        let tree = Tree::new();
        let roots = Roots { proc: Roots::default().proc, ..tree.roots() };
        let mut app = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (own, pid) = (std::process::id(), app.id());
        tree.write("sys/fs/cgroup/kubepods/a/cgroup.procs", &format!("1\n{own}\n{pid}\n"));
        let table = ProcessTable::new(&roots).unwrap();
        let slots = CgroupSlots::new("pod", 1);
        slots.take(Path::new("kubepods/a"));
        let mut slot = slots.each().next().unwrap();
        slot.look();
        let (found, may_have_any) = (slot.processes(&table), slot.may_have_processes(&table));
        app.kill().unwrap();
        app.wait().unwrap();
        assert_eq!(found.unwrap(), BTreeSet::from([pid.cast_signed()]));
        assert!(may_have_any);
        tree.write("sys/fs/cgroup/kubepods/a/cgroup.procs", &format!("1\n{own}\n"));
        assert!(!slot.may_have_processes(&table), "the agent is not an app");
    }

    #[test]
    fn a_listing_holds_for_a_while_and_for_one_cgroup() {
        let tree = Tree::new();
        std::fs::create_dir_all(tree.path("proc")).unwrap();
        for group in ["a", "b"] {
            tree.write(&format!("sys/fs/cgroup/kubepods/{group}/cgroup.procs"), "");
            tree.write(&format!("sys/fs/cgroup/kubepods/{group}/cpu.stat"), "usage_usec 7\n");
        }
        let table = ProcessTable::new(&tree.roots()).unwrap();
        let slots = CgroupSlots::new("pod", 1);
        let mut slot = slots.each().next().unwrap();
        slots.take(Path::new("kubepods/a"));
        slot.look();
        assert_eq!(slot.since_listing(), SinceListing::Unknown, "it was not listed yet");
        slot.processes(&table).unwrap();
        assert_eq!((slot.since_listing(), slot.usage_us()), (SinceListing::Idle, Some(7)));
        slot.forget_listing();
        assert_eq!(slot.since_listing(), SinceListing::Unknown);
        slot.processes(&table).unwrap();
        let (_, activity) = slot.listed.unwrap();
        slot.listed = Some((Nanos::ZERO, activity));
        assert_eq!(slot.since_listing(), SinceListing::Unknown, "it is too long ago");
        slot.processes(&table).unwrap();
        slots.free(0);
        slots.take(Path::new("kubepods/b"));
        assert!(slot.has_news() && slot.look() && slot.usage_us().is_none());
        assert_eq!(slot.since_listing(), SinceListing::Unknown, "it is another one");
        slot.processes(&table).unwrap();
        slots.free(0);
        slots.take(Path::new("kubepods/b"));
        assert!(!slot.has_news() && !slot.look(), "the same has it again");
        assert_eq!(slot.since_listing(), SinceListing::Idle);
    }
}
