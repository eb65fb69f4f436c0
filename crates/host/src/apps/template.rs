//! Apps by template: each process, unit or cgroup that a search finds is an app of its own.
//!
//! A template has a fixed number of *slots*, each an app of the run with a fixed id. What is
//! found takes the first free slot and keeps it until its last process has ended. What is found
//! when no slot is free is not managed until one is. All slots are filled together, from one
//! listing of the processes.

use super::described::Detail;
use super::search::{GroupKey, Search, SearchError};
use super::table::ProcessTable;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The processes that a template's search finds, and the slot of each.
#[derive(Debug)]
struct Template {
    search: Search,
    slots: Vec<Option<Group>>,
    /// The update that last changed each slot.
    changed_at: Vec<u64>,
    /// Number of updates.
    updates: u64,
    /// Whether more was found than there are slots.
    has_more: bool,
    /// Whether every match has a slot.
    is_complete: bool,
    /// Why the last search has failed, until it is returned.
    failed: Option<SearchError>,
    /// The listing of the processes from which the slots are filled.
    listing: u64,
}

/// One match, with its present processes.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    key: GroupKey,
    pids: BTreeSet<i32>,
}

/// One slot of a template.
#[derive(Debug)]
pub(super) struct Slot {
    template: Arc<Mutex<Template>>,
    index: usize,
    /// Which parts of processes its search compares; `None` if it has no pattern.
    needed_description: Option<Detail>,
    /// The update after which it had no news, if it had none at the last comparison.
    quiet_at: Option<u64>,
}

impl Slot {
    /// The slots of a template with this search.
    pub(super) fn all(search: Search, count: usize) -> Vec<Self> {
        let needed_description = search.needed_description();
        let template = Template {
            search,
            slots: (0..count).map(|_| None).collect(),
            changed_at: vec![0; count],
            updates: 0,
            has_more: false,
            is_complete: false,
            failed: None,
            listing: 0,
        };
        let template = Arc::new(Mutex::new(template));
        let slot = |index| Self {
            template: Arc::clone(&template),
            index,
            needed_description,
            quiet_at: None,
        };
        (0..count).map(slot).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Template> {
        // A template is whole between any two statements of its methods.
        self.template.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The processes that have this slot, as of a fresh table. An error is returned to one slot for
    /// each listing. It leaves all slots free, but for a cgroup that cannot be read.
    pub(super) fn processes(&self, table: &ProcessTable) -> Result<BTreeSet<i32>, SearchError> {
        let mut template = self.lock();
        template.update(table);
        if let Some(error) = template.failed.take() {
            return Err(error);
        }
        let group = template.slots[self.index].as_ref();
        Ok(group.map(|group| group.pids.clone()).unwrap_or_default())
    }

    /// Returns the number of the update that last changed the processes of this slot, as of a fresh
    /// table; `None` if an update has failed, which is still to be returned.
    pub(super) fn changed_at(&self, table: &ProcessTable) -> Option<u64> {
        let mut template = self.lock();
        template.update(table);
        template.failed.is_none().then(|| template.changed_at[self.index])
    }

    /// Whether a fresh table gives this slot to another match than the one with these processes: a
    /// match was found or is gone.
    pub(super) fn has_news(
        &mut self,
        table: &ProcessTable,
        had: impl FnOnce() -> BTreeSet<i32>,
    ) -> bool {
        let mut template = self.lock();
        template.update(table);
        // Between two comparisons the app's processes change only when it takes those of the slot,
        // so the result is the same as long as the slot is. What a failed listing hides is found at
        // the end of the epoch, when every app takes them.
        if self.quiet_at.is_some_and(|at| template.changed_at[self.index] <= at) {
            return false;
        }
        let had = had();
        let has_news = match &template.slots[self.index] {
            Some(group) => group.pids.is_disjoint(&had),
            None => !had.is_empty(),
        };
        let updates = template.updates;
        drop(template);
        self.quiet_at = (!has_news).then_some(updates);
        has_news
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

    pub(super) const fn needed_description(&self) -> Option<Detail> {
        self.needed_description
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
    /// Frees the slots of processes that have departed, and gives those that have arrived the first
    /// free ones, as long as each is a match by itself; returns false if that does not suffice.
    ///
    /// So matches that come and go cost no look at all others.
    fn follow(&mut self, changed: &BTreeSet<i32>, table: &ProcessTable) -> bool {
        let mut arrived = Vec::new();
        for pid in changed {
            let key = self.search.alone(*pid, table).map(GroupKey::Process);
            if key.is_none() && self.search.finds(*pid) {
                return false;
            }
            let has_it = |(_, slot): &(usize, &mut Option<Group>)| {
                slot.as_ref().is_some_and(|group| group.pids.contains(pid))
            };
            if let Some((at, slot)) = self.slots.iter_mut().enumerate().find(has_it) {
                let is_single = slot.as_ref().is_some_and(|group| group.pids.len() == 1);
                if !is_single {
                    return false;
                }
                if slot.as_ref().map(|group| &group.key) == key.as_ref() {
                    continue;
                }
                *slot = None;
                self.changed_at[at] = self.updates;
            }
            arrived.extend(key.map(|key| Group { key, pids: BTreeSet::from([*pid]) }));
        }
        let mut free = self.slots.iter_mut().enumerate().filter(|(_, slot)| slot.is_none());
        for group in arrived {
            let Some((at, slot)) = free.next() else { return false };
            *slot = Some(group);
            self.changed_at[at] = self.updates;
        }
        true
    }

    /// Frees the slots of matches that are gone, and gives new matches the first free ones.
    fn update(&mut self, table: &ProcessTable) {
        if self.listing == table.listing() {
            return;
        }
        self.listing = table.listing();
        self.updates += 1;
        let changed = self.search.changed(table).filter(|_| self.is_complete);
        if changed.is_some_and(|changed| self.follow(&changed, table)) {
            return;
        }
        let (groups, failed) = match self.search.groups(table) {
            Ok(groups) => (groups, None),
            // What cannot be read is not gone.
            Err(error @ SearchError::Cgroup(_)) => {
                (self.is_complete, self.failed) = (false, Some(error));
                return;
            }
            Err(error) => (BTreeMap::new(), Some(error)),
        };
        self.is_complete = failed.is_none();
        self.failed = failed;
        self.refill(groups);
    }

    /// Gives each slot the present processes of its match, and new matches the free slots.
    fn refill(&mut self, mut groups: BTreeMap<GroupKey, BTreeSet<i32>>) {
        let group = |(key, pids)| Group { key, pids };
        for (slot, changed_at) in self.slots.iter_mut().zip(&mut self.changed_at) {
            let before = slot.take();
            let now = before.as_ref().and_then(|before| groups.remove_entry(&before.key));
            *slot = now.map(group);
            if *slot != before {
                *changed_at = self.updates;
            }
        }
        let mut new = groups.into_iter().map(group);
        let both = self.slots.iter_mut().zip(&mut self.changed_at);
        for (slot, changed_at) in both.filter(|(slot, _)| slot.is_none()) {
            let Some(group) = new.next() else { break };
            (*slot, *changed_at) = (Some(group), self.updates);
        }
        self.has_more = new.next().is_some();
        self.is_complete &= !self.has_more;
    }
}

#[cfg(test)]
mod tests {
    use super::super::search::PROCESSES_MAX;
    use super::*;
    use crate::apps::ProcessPattern;
    use crate::testing::Tree;
    use proptest::prelude::*;
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
    fn a_cgroup_that_cannot_be_read_leaves_the_slots_of_all_as_they_are() {
        let tree = Tree::new();
        let (slots, mut table) = slots(&tree, 2);
        cgroup(&tree, "web-a", "5\n");
        cgroup(&tree, "web-b", "7\n");
        assert_eq!(pids(&slots, &mut table), [vec![5], vec![7]]);
        let unread = "sys/fs/cgroup/app.slice/web-a/cgroup.procs";
        tree.remove(unread);
        std::fs::create_dir(tree.path(unread)).unwrap();
        table.refresh().unwrap();
        assert!(slots[0].processes(&table).is_err());
        assert_eq!(slots[1].processes(&table).unwrap(), BTreeSet::from([7]));
        std::fs::remove_dir(tree.path(unread)).unwrap();
        cgroup(&tree, "web-a", "5\n6\n");
        assert_eq!(pids(&slots, &mut table), [vec![5, 6], vec![7]]);
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
        let (mut slots, mut table) = slots(&tree, 2);
        let mut news = |slot: &mut Slot, had: &[i32]| {
            table.refresh().unwrap();
            slot.has_news(&table, || had.iter().copied().collect())
        };
        assert!(!news(&mut slots[0], &[]), "nothing is there yet");
        cgroup(&tree, "web-a", "5\n6\n");
        assert!(news(&mut slots[0], &[]), "it has arrived");
        assert!(!news(&mut slots[0], &[5]), "a further process of the same is not urgent");
        assert!(!news(&mut slots[1], &[]));
        cgroup(&tree, "web-a", "");
        assert!(news(&mut slots[0], &[5, 6]), "it has departed");
        cgroup(&tree, "web-b", "7\n");
        assert!(news(&mut slots[0], &[5, 6]), "another one has its slot");
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

    /// Makes a process that is younger than any, so that every listing reads it again.
    fn process(tree: &Tree, pid: i32, parent: i32, args: &str) {
        let stat = format!("{pid} (a) S {parent} {pid} 0 0 -1 0{} {} 0", " 0".repeat(12), u64::MAX);
        tree.write(&format!("proc/{pid}/stat"), &stat);
        tree.write(&format!("proc/{pid}/cmdline"), args);
    }

    fn by_args(tree: &Tree) -> (Vec<Slot>, ProcessTable) {
        std::fs::create_dir_all(tree.path("proc")).unwrap();
        let args = Some("match*".to_owned());
        let pattern = ProcessPattern { exe: None, args, user: None };
        let mut table = ProcessTable::new(&tree.roots()).unwrap();
        table.describe(i32::MAX, Detail::Args);
        (Slot::all(Search::pattern(&pattern).unwrap(), 3), table)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn following_what_has_changed_fills_the_slots_as_a_look_at_all_does(
            steps in prop::collection::vec(
                prop::collection::vec((0_usize..8, 0_u8..4, any::<bool>()), 1..4),
                1..10,
            ),
        ) {
            let tree = Tree::new();
            let (mut followed, mut table) = by_args(&tree);
            let (looked_at, _) = by_args(&tree);
            let mut had = vec![BTreeSet::new(); followed.len()];
            let (mut alive, mut next) = (Vec::<i32>::new(), 100);
            for (round, step) in steps.into_iter().enumerate() {
                for (which, what, is_match) in step {
                    let args = if is_match { "match" } else { "other" };
                    let one = (!alive.is_empty()).then(|| alive[which % alive.len().max(1)]);
                    match (what, one) {
                        (0, Some(pid)) => {
                            std::fs::remove_dir_all(tree.path(&format!("proc/{pid}"))).unwrap();
                            alive.retain(|other| *other != pid);
                        }
                        (1, Some(pid)) => process(&tree, pid, 1, args),
                        (2, Some(parent)) => process(&tree, next, parent, args),
                        _ => process(&tree, next, 1, args),
                    }
                    if tree.path(&format!("proc/{next}")).exists() {
                        alive.push(next);
                        next += 1;
                    }
                }
                table.refresh().unwrap();
                for (slot, had) in followed.iter_mut().zip(&mut had) {
                    let has_news = slot.has_news(&table, || had.clone());
                    slot.quiet_at = None;
                    prop_assert_eq!(has_news, slot.has_news(&table, || had.clone()));
                    // At the end of an epoch every app takes what its slot has.
                    if has_news || round % 3 == 0 {
                        *had = slot.processes(&table).unwrap();
                    }
                }
                looked_at[0].lock().is_complete = false;
                let of = |slot: &Slot| slot.processes(&table).unwrap();
                let all = |slots: &[Slot]| slots.iter().map(of).collect::<Vec<_>>();
                prop_assert_eq!(all(&followed), all(&looked_at));
                prop_assert_eq!(followed[0].complaint(), looked_at[0].complaint());
            }
        }
    }
}
