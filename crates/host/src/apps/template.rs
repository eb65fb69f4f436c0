//! Apps by template: of what a search finds, each process, unit or cgroup is an app of its own.
//!
//! A template has a fixed number of *slots*, each an app of the run with a fixed id. What is
//! found takes the first free slot and keeps it until its last process has ended. What is found
//! when no slot is free is not managed until one is. All slots are filled together, from one
//! listing of the processes.

use super::search::{GroupKey, Search, SearchError};
use super::table::ProcessTable;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a template's search finds, and which slot has it.
#[derive(Debug)]
struct Template {
    search: Search,
    slots: Vec<Option<Group>>,
    /// Whether more was found than there are slots.
    has_more: bool,
    /// Why the last search has failed, until it is returned.
    failed: Option<SearchError>,
    /// The listing of the processes from which the slots are filled.
    listing: u64,
}

/// One thing that was found, with its processes now.
#[derive(Debug)]
struct Group {
    key: GroupKey,
    pids: BTreeSet<i32>,
}

/// One slot of a template.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    template: Arc<Mutex<Template>>,
    index: usize,
    /// Whether the search compares what processes run.
    by_description: bool,
}

impl Slot {
    /// The slots of a template with this search.
    pub(super) fn all(search: Search, count: usize) -> Vec<Self> {
        let by_description = matches!(search, Search::Pattern { .. });
        let slots = (0..count).map(|_| None).collect();
        let template = Template { search, slots, has_more: false, failed: None, listing: 0 };
        let template = Arc::new(Mutex::new(template));
        let slot = |index| Self { template: Arc::clone(&template), index, by_description };
        (0..count).map(slot).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Template> {
        // A template is whole between any two statements of its methods.
        self.template.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The processes that have this slot, as of a fresh table. An error, which leaves all slots
    /// free, is returned to one slot for each listing.
    pub(super) fn processes(&self, table: &ProcessTable) -> Result<BTreeSet<i32>, SearchError> {
        let mut template = self.lock();
        template.update(table);
        if let Some(error) = template.failed.take() {
            return Err(error);
        }
        let group = template.slots[self.index].as_ref();
        Ok(group.map(|group| group.pids.clone()).unwrap_or_default())
    }

    /// Whether something else has this slot, as of a fresh table, than what has these processes:
    /// a match was found or is gone.
    pub(super) fn has_news(&self, table: &ProcessTable, had: &BTreeSet<i32>) -> bool {
        let mut template = self.lock();
        template.update(table);
        match &template.slots[self.index] {
            Some(group) => group.pids.is_disjoint(had),
            None => !had.is_empty(),
        }
    }

    /// Says that more was found than there are slots; of one slot of the template only.
    pub(super) fn complaint(&self) -> Option<String> {
        let template = self.lock();
        let speaks = self.index == 0 && template.has_more;
        speaks.then(|| {
            let (what, most) = (template.search.describe(), template.slots.len());
            format!("more than {most} {what}: the others are not managed; raise `most`")
        })
    }

    pub(super) const fn goes_by_description(&self) -> bool {
        self.by_description
    }

    /// Whether it is not the first of its template.
    pub(super) const fn is_spare(&self) -> bool {
        self.index > 0
    }

    pub(super) fn describe(&self) -> String {
        let template = self.lock();
        format!("{} (one of {})", template.search.describe(), template.slots.len())
    }
}

impl Template {
    /// Frees the slots of what is gone, and gives what is new the first free ones.
    fn update(&mut self, table: &ProcessTable) {
        if self.listing == table.listing() {
            return;
        }
        self.listing = table.listing();
        let (mut groups, failed) = match self.search.groups(table) {
            Ok(groups) => (groups, None),
            Err(error) => (BTreeMap::new(), Some(error)),
        };
        self.failed = failed;
        for slot in &mut self.slots {
            let kept = slot.take().and_then(|Group { key, .. }| {
                let pids = groups.remove(&key)?;
                Some(Group { key, pids })
            });
            *slot = kept;
        }
        let mut new = groups.into_iter();
        for slot in self.slots.iter_mut().filter(|slot| slot.is_none()) {
            let Some((key, pids)) = new.next() else { break };
            *slot = Some(Group { key, pids });
        }
        self.has_more = new.next().is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::super::search::PROCESSES_MAX;
    use super::*;
    use crate::testing::Tree;
    use std::path::Path;

    fn slots(tree: &Tree, count: usize) -> (Vec<Slot>, ProcessTable) {
        std::fs::create_dir_all(tree.path("proc")).unwrap();
        let search = Search::cgroup(Path::new("app.slice/web-*")).unwrap();
        let table = ProcessTable::new(&tree.roots()).unwrap();
        (Slot::all(search, count), table)
    }

    fn pids(slots: &[Slot], table: &mut ProcessTable) -> Vec<Vec<i32>> {
        table.refresh().unwrap();
        let of = |slot: &Slot| slot.processes(table).unwrap().into_iter().collect();
        slots.iter().map(of).collect()
    }

    fn cgroup(tree: &Tree, name: &str, pids: &str) {
        tree.write(&format!("sys/fs/cgroup/app.slice/{name}/cgroup.procs"), pids);
    }

    #[test]
    fn what_is_found_keeps_its_slot_until_it_is_gone() {
        let tree = Tree::new();
        let (slots, mut table) = slots(&tree, 2);
        assert_eq!(pids(&slots, &mut table), [vec![0; 0], vec![]], "nothing is there yet");
        cgroup(&tree, "web-b", "7\n8\n");
        assert_eq!(pids(&slots, &mut table), [vec![7, 8], vec![]]);
        // Earlier in the order, and later: the one that has a slot stays.
        cgroup(&tree, "web-a", "5\n");
        assert_eq!(pids(&slots, &mut table), [vec![7, 8], vec![5]]);
        cgroup(&tree, "web-b", "8\n9\n");
        assert_eq!(pids(&slots, &mut table), [vec![8, 9], vec![5]]);
        cgroup(&tree, "web-b", "");
        assert_eq!(pids(&slots, &mut table), [vec![], vec![5]], "an empty cgroup has no slot");
        cgroup(&tree, "web-c", "3\n");
        assert_eq!(pids(&slots, &mut table), [vec![3], vec![5]]);
    }

    #[test]
    fn what_finds_no_free_slot_is_reported_and_has_one_later() {
        let tree = Tree::new();
        let (slots, mut table) = slots(&tree, 2);
        for (name, pid) in [("web-a", "1"), ("web-b", "2"), ("web-c", "3")] {
            cgroup(&tree, name, pid);
        }
        assert_eq!(pids(&slots, &mut table), [vec![1], vec![2]]);
        let text = slots[0].complaint().unwrap();
        assert!(text.contains("more than 2 cgroups app.slice/web-*"), "{text}");
        assert_eq!(slots[1].complaint(), None, "said once");
        cgroup(&tree, "web-a", "");
        assert_eq!(pids(&slots, &mut table), [vec![3], vec![2]]);
        assert_eq!(slots[0].complaint(), None);
    }

    #[test]
    fn a_slot_has_news_when_a_match_arrives_departs_or_follows_another() {
        let tree = Tree::new();
        let (slots, mut table) = slots(&tree, 2);
        let mut news = |slot: &Slot, had: &[i32]| {
            table.refresh().unwrap();
            slot.has_news(&table, &had.iter().copied().collect())
        };
        assert!(!news(&slots[0], &[]), "nothing is there yet");
        cgroup(&tree, "web-a", "5\n6\n");
        assert!(news(&slots[0], &[]), "it has arrived");
        assert!(!news(&slots[0], &[5]), "a further process of the same is not urgent");
        assert!(!news(&slots[1], &[]));
        cgroup(&tree, "web-a", "");
        assert!(news(&slots[0], &[5, 6]), "it has departed");
        cgroup(&tree, "web-b", "7\n");
        assert!(news(&slots[0], &[5, 6]), "another one has its slot");
    }

    #[test]
    fn all_slots_are_filled_from_one_listing() {
        let tree = Tree::new();
        let (slots, mut table) = slots(&tree, 2);
        cgroup(&tree, "web-a", "1\n");
        let of = |slot: &Slot, table: &ProcessTable| slot.processes(table).unwrap();
        assert_eq!(of(&slots[0], &table), BTreeSet::from([1]));
        cgroup(&tree, "web-b", "2\n");
        assert_eq!(of(&slots[1], &table), BTreeSet::new());
        table.refresh().unwrap();
        assert_eq!(of(&slots[1], &table), BTreeSet::from([2]));
    }

    #[test]
    fn too_many_processes_leave_all_slots_free_and_are_reported_once() {
        let tree = Tree::new();
        let (slots, mut table) = slots(&tree, 2);
        cgroup(&tree, "web-a", "1\n");
        assert_eq!(pids(&slots, &mut table), [vec![1], vec![]]);
        let all: String = (2..=PROCESSES_MAX + 2).map(|pid| format!("{pid}\n")).collect();
        cgroup(&tree, "web-b", &all);
        table.refresh().unwrap();
        let text = slots[0].processes(&table).unwrap_err().to_string();
        assert!(text.contains("at most 5000"), "{text}");
        assert_eq!(slots[1].processes(&table).unwrap(), BTreeSet::new());
    }
}
