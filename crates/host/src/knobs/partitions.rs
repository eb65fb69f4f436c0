//! Cache ways and memory bandwidth of an app: a resctrl group for its threads.
//!
//! A group is created when a share is first set, and removed at the end of the run:
//! its threads are then in the root group again, which is why an app without a group
//! reads as the root group. Threads of the app that are in a group of another program
//! (libvirt, intel-cmt-cat) are not moved out of it. All sockets get the same share.

use super::{KnobError, SaveOld, Threads};
use crate::drivers::resctrl::{Offer, Resctrl, file_name, parse_mask, remove};
use crate::guard::{Key, Original};
use crate::threads::LiveThread;
use lull_control::{AppId, WayMask};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Listings before giving up on an app that makes threads all the time.
const LISTINGS_MAX: usize = 16;

/// A share of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// Cache ways.
    Ways(WayMask),
    /// Memory bandwidth in percent.
    Percent(u8),
}

/// The groups of this run.
#[derive(Debug)]
pub(crate) struct Partitions {
    resctrl: Resctrl,
    /// `None` where nothing can be divided.
    offer: Option<Offer>,
    groups: BTreeMap<AppId, Group>,
    /// Every group made so far, for what the ledger says of it later.
    made: BTreeMap<AppId, PathBuf>,
}

#[derive(Debug)]
struct Group {
    dir: PathBuf,
    /// Threads that were put into it, or were born in it.
    known: BTreeSet<LiveThread>,
    ways: Option<WayMask>,
    percent: Option<u8>,
}

/// A share that another writer has set since.
#[derive(Debug, PartialEq)]
pub(crate) struct Taken {
    pub(crate) ours: Share,
    pub(crate) found: Share,
    pub(crate) whom: String,
    pub(crate) key: Key,
}

impl Partitions {
    pub(crate) fn new(sys: &Path) -> Self {
        let resctrl = Resctrl::new(sys);
        let offer = resctrl.is_mounted().then(|| resctrl.offer().ok()).flatten();
        Self { resctrl, offer, groups: BTreeMap::new(), made: BTreeMap::new() }
    }

    /// The ways that an app has in all domains; where there are none, those of the first.
    pub(crate) fn ways(&self, app: AppId) -> Option<WayMask> {
        self.ways_of(self.dir(app))
    }

    fn ways_of(&self, dir: &Path) -> Option<WayMask> {
        let each = self.each(dir, "L3")?;
        let masks = || each.iter().filter_map(|mask| parse_mask(mask));
        let common = masks().reduce(|all, one| WayMask(all.0 & one.0));
        common.filter(|common| common.0 != 0).or(masks().next())
    }

    /// Returns the share of a group in each domain of a resource (sockets, or parts of them).
    fn each(&self, dir: &Path, resource: &str) -> Option<Vec<String>> {
        Some(self.resctrl.schemata(dir).ok()?.remove(resource)?.into_values().collect())
    }

    /// The bandwidth of an app in percent: the least of all domains.
    pub(crate) fn percent(&self, app: AppId) -> Option<u8> {
        self.percent_of(self.dir(app))
    }

    fn percent_of(&self, dir: &Path) -> Option<u8> {
        self.each(dir, "MB")?.iter().filter_map(|value| self.percent_at(value)).min()
    }

    fn percent_at(&self, value: &str) -> Option<u8> {
        Some(self.offer.as_ref()?.bandwidth.as_ref()?.percent(value.parse().ok()?))
    }

    fn dir(&self, app: AppId) -> &Path {
        self.groups.get(&app).map_or(&self.resctrl.root, |group| &group.dir)
    }

    /// The app's own group, if it has one.
    pub(crate) fn group(&self, app: AppId) -> Option<&Path> {
        self.groups.get(&app).map(|group| group.dir.as_path())
    }

    /// Refuses what the hardware cannot do.
    pub(crate) fn check(&self, share: Share) -> Result<(), String> {
        let cache = self.offer.as_ref().and_then(|offer| offer.cache.as_ref());
        match (share, cache) {
            (Share::Percent(0 | 101..), _) => Err(format!("{share} is not within 1 to 100 %")),
            (Share::Ways(mask), Some(cache)) => {
                let all = WayMask::run(0, cache.ways);
                if mask.0 & !all.0 != 0 || mask.count() < cache.min_ways {
                    let (ways, least) = (cache.ways, cache.min_ways);
                    return Err(format!("{share} are not {least} to {ways} of the ways {all}"));
                }
                if cache.contiguous && !mask.is_contiguous() {
                    return Err(format!("{share} are not one run, which this hardware requires"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Sets a share of an app; a group that cannot be filled is removed again.
    pub(crate) fn set(
        &mut self,
        app: AppId,
        name: &str,
        share: Share,
        threads: &mut impl Threads,
        save: &mut impl SaveOld,
    ) -> Result<(), KnobError> {
        if !self.groups.contains_key(&app) {
            let group = self.make(&group_name(app, name), threads, save)?;
            self.made.insert(app, group.dir.clone());
            self.groups.insert(app, group);
            if let Err(error) = self.write(app, share) {
                let made = self.groups.remove(&app).expect("it was inserted above");
                // If this fails too, the ledger still has the group.
                let _ = remove(&made.dir);
                return Err(error);
            }
            return Ok(());
        }
        self.write(app, share)
    }

    fn make(
        &self,
        name: &str,
        threads: &mut impl Threads,
        save: &mut impl SaveOld,
    ) -> Result<Group, KnobError> {
        let dir = self.resctrl.root.join(name);
        threads.refresh();
        self.refuse_foreign(threads.list(), &dir)?;
        save.values(&[Original::Group { path: dir.clone() }])?;
        self.resctrl.make(&dir)?;
        // An app must not get bandwidth that its owner withheld because Lull sets its ways.
        let copied = self.resctrl.copy_shares(&dir).map_err(KnobError::from);
        match copied.and_then(|()| self.fill(&dir, threads)) {
            Ok(known) => Ok(Group { dir, known, ways: None, percent: None }),
            Err(error) => {
                let _ = remove(&dir);
                Err(error)
            }
        }
    }

    /// Refuses threads in other groups, and other threads in ours, because another program
    /// manages them.
    fn refuse_foreign(&self, threads: &[LiveThread], ours: &Path) -> Result<(), KnobError> {
        let all: BTreeSet<i32> = threads.iter().map(|thread| thread.tid).collect();
        for group in self.resctrl.groups() {
            let tasks = self.resctrl.tasks(&group)?;
            let name = file_name(&group).unwrap_or_default();
            let theirs = match group == ours {
                true => tasks.difference(&all).next(),
                false => tasks.intersection(&all).next(),
            };
            if let Some(tid) = theirs {
                return Err(KnobError::Nonsense(format!(
                    "thread {tid} is in the resctrl group {name} of another program: end that \
                     program, or remove the group (rmdir {})",
                    group.display()
                )));
            }
        }
        Ok(())
    }

    fn fill(
        &self,
        dir: &Path,
        threads: &mut impl Threads,
    ) -> Result<BTreeSet<LiveThread>, KnobError> {
        let mut known = BTreeSet::new();
        for _ in 0..LISTINGS_MAX {
            let new: Vec<_> =
                threads.list().iter().copied().filter(|one| !known.contains(one)).collect();
            if new.is_empty() {
                break;
            }
            for thread in new {
                self.resctrl.add_task(dir, thread.tid)?;
                known.insert(thread);
            }
            threads.refresh();
        }
        Ok(known)
    }

    /// Writes one share and reads it back; if it is not kept, the share before it.
    fn write(&mut self, app: AppId, share: Share) -> Result<(), KnobError> {
        let before = match share {
            Share::Ways(_) => self.ways(app).map(Share::Ways),
            Share::Percent(_) => self.percent(app).map(Share::Percent),
        };
        let (resource, value) = self.value(share);
        let Some(group) = self.groups.get_mut(&app) else { return Ok(()) };
        self.resctrl.set(&group.dir, resource, &value)?;
        let kept = self.resctrl.schemata(&group.dir)?.remove(resource).unwrap_or_default();
        if let Some(found) = kept.values().find(|kept| !is_same(share, kept, &value)) {
            let what = format!("{resource} of {}", group.dir.display());
            let error = KnobError::NotKept { what, wanted: value, found: found.clone() };
            if let Some(before) = before {
                let (resource, value) = self.value(before);
                let _ = self.resctrl.set(self.dir(app), resource, &value);
            }
            return Err(error);
        }
        match share {
            Share::Ways(mask) => group.ways = Some(mask),
            Share::Percent(percent) => group.percent = Some(percent),
        }
        Ok(())
    }

    fn value(&self, share: Share) -> (&'static str, String) {
        let bandwidth = self.offer.as_ref().and_then(|offer| offer.bandwidth.as_ref());
        match share {
            Share::Ways(mask) => ("L3", format!("{:x}", mask.0)),
            Share::Percent(percent) => {
                let value = bandwidth.map_or(u64::from(percent), |offer| offer.value(percent));
                ("MB", value.to_string())
            }
        }
    }

    /// Puts new threads into the app's group, and finds changes by other programs.
    pub(crate) fn watch(
        &mut self,
        app: AppId,
        threads: &[LiveThread],
    ) -> Result<Vec<Taken>, KnobError> {
        let Some(group) = self.groups.get(&app) else { return Ok(Vec::new()) };
        let taken = self.taken(group);
        if !taken.is_empty() {
            self.groups.remove(&app);
            return Ok(taken);
        }
        let new: Vec<_> =
            threads.iter().copied().filter(|one| !group.known.contains(one)).collect();
        let dir = group.dir.clone();
        let outcome = new.iter().try_for_each(|one| self.resctrl.add_task(&dir, one.tid).map(drop));
        if let Some(group) = self.groups.get_mut(&app) {
            // A thread that cannot be moved is reported once.
            group.known = threads.iter().copied().collect();
        }
        Ok(outcome.map(|()| Vec::new())?)
    }

    /// Moves a thread that has left its app back to the root group.
    pub(crate) fn dismiss(&self, app: AppId, thread: LiveThread) -> Result<(), KnobError> {
        if self.groups.contains_key(&app) {
            self.resctrl.add_task(&self.resctrl.root, thread.tid)?;
        }
        Ok(())
    }

    /// Removes the group of an app that was removed from the run, whose threads are in the root
    /// group again.
    ///
    /// # Errors
    /// If the kernel keeps the group; the ledger still has it.
    pub(crate) fn remove_group(&mut self, app: AppId) -> Result<(), String> {
        let Some(group) = self.groups.remove(&app) else { return Ok(()) };
        let failed =
            |error: std::io::Error| format!("{} cannot be removed: {error}", group.dir.display());
        remove(&group.dir).map(drop).map_err(failed)
    }

    fn taken(&self, group: &Group) -> Vec<Taken> {
        let is_gone = !group.dir.exists();
        let dir = if is_gone { &self.resctrl.root } else { &group.dir };
        // A domain with another share than Lull's is preferred.
        let found = |ours: Share| {
            let (resource, value) = self.value(ours);
            let each = self.each(dir, resource)?;
            let found = each.iter().find(|kept| !is_same(ours, kept, &value)).or(each.first())?;
            match ours {
                Share::Ways(_) => parse_mask(found).map(Share::Ways),
                Share::Percent(_) => self.percent_at(found).map(Share::Percent),
            }
        };
        let ours = group.ways.map(Share::Ways).into_iter();
        let ours = ours.chain(group.percent.map(Share::Percent));
        let changed = |ours: Share| {
            let found = found(ours)?;
            let is_so = self.value(ours) == self.value(found) && !is_gone;
            let state = if is_gone { "was removed" } else { "was changed" };
            let whom = format!("the group {} {state}", group.dir.display());
            let key = Key::File(group.dir.clone());
            (!is_so).then_some(Taken { ours, found, whom, key })
        };
        ours.filter_map(changed).collect()
    }

    /// Forgets the groups, after they were removed.
    pub(crate) fn restored(&mut self) {
        self.groups.clear();
    }

    /// Whether the ledger's name is that of this app's group.
    pub(crate) fn is_of(&self, app: AppId, key: &Key) -> bool {
        matches!((key, self.made.get(&app)), (Key::File(path), Some(dir)) if path == dir)
    }
}

/// Returns the name of an app's group. Apps whose names differ have groups of different names,
/// also where a character of the app's name cannot be in that of a group.
fn group_name(app: AppId, name: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    let plain: String = name.chars().map(|one| if is_plain(one) { one } else { '_' }).collect();
    if plain == name { format!("lull-{plain}") } else { format!("lull-{plain}.{}", app.0) }
}

fn is_same(share: Share, kept: &str, value: &str) -> bool {
    match share {
        Share::Ways(_) => parse_mask(kept) == parse_mask(value),
        Share::Percent(_) => kept == value,
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ways(mask) => write!(f, "cache ways {mask}"),
            Self::Percent(percent) => write!(f, "memory bandwidth {percent} %"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::resctrl::tests::{group, mounted};
    use crate::drivers::text::{self, faults};
    use crate::guard::Restored;
    use crate::testing::{Saved, Tree};

    const APP: AppId = AppId(0);
    const GROUP: &str = "sys/fs/resctrl/lull-web_1.0";

    struct Listed(Vec<LiveThread>);

    impl Threads for Listed {
        fn list(&self) -> &[LiveThread] {
            &self.0
        }

        fn refresh(&mut self) {}
    }

    fn thread(tid: i32) -> LiveThread {
        LiveThread { pid: 10, tid, start_ticks: 1 }
    }

    /// A tree makes no files in a new directory, so the group's are there before.
    fn scene() -> (Tree, Partitions, Saved) {
        let tree = Tree::new();
        mounted(&tree);
        group(&tree, "lull-web_1.0");
        let partitions = Partitions::new(&tree.roots().sys);
        (tree, partitions, Saved::default())
    }

    fn set(partitions: &mut Partitions, saved: &mut Saved, share: Share) -> Result<(), KnobError> {
        let mut threads = Listed(vec![thread(11)]);
        partitions.set(APP, "web/1", share, &mut threads, saved)
    }

    #[test]
    fn a_share_is_set_in_all_domains_after_it_is_in_the_ledger() {
        let (tree, mut partitions, mut saved) = scene();
        assert_eq!(partitions.ways(APP), Some(WayMask(0xff)), "as the group at the top");
        set(&mut partitions, &mut saved, Share::Ways(WayMask(0xf))).unwrap();
        assert_eq!(partitions.ways(APP), Some(WayMask(0xf)));
        assert_eq!(text::read(&tree.path(&format!("{GROUP}/tasks"))).unwrap(), "11");
        assert_eq!(saved.originals, [Original::Group { path: tree.path(GROUP) }]);
        partitions.restored();
        assert_eq!(partitions.ways(APP), Some(WayMask(0xff)));
    }

    #[test]
    fn a_group_begins_with_what_the_owner_gave_the_root_group() {
        let (tree, mut partitions, mut saved) = scene();
        tree.write("sys/fs/resctrl/schemata", "MB:0=50;1=70\nL3:0=ff;1=f\n");
        let owners = (Some(WayMask(0xf)), Some(50));
        assert_eq!((partitions.ways(APP), partitions.percent(APP)), owners, "the least of both");
        let group = partitions.make("lull-web_1.0", &mut Listed(Vec::new()), &mut saved).unwrap();
        let written = text::read(&tree.path(&format!("{GROUP}/schemata"))).unwrap();
        assert_eq!(written, "L3:0=ff;1=f\nMB:0=50;1=70");
        partitions.groups.insert(APP, group);
        assert_eq!((partitions.ways(APP), partitions.percent(APP)), owners);
    }

    #[test]
    fn apps_whose_names_differ_in_a_dot_have_groups_of_their_own() {
        let names = [(APP, "web.1"), (AppId(1), "web_1"), (AppId(2), "web/1")];
        let names = names.map(|(app, name)| group_name(app, name));
        assert_eq!(names, ["lull-web_1.0", "lull-web_1", "lull-web_1.2"]);
        let tree = Tree::new();
        mounted(&tree);
        names[..2].iter().for_each(|name| group(&tree, name));
        let mut partitions = Partitions::new(&tree.roots().sys);
        for (app, name, tid) in [(APP, "web.1", 11), (AppId(1), "web_1", 12)] {
            let mut threads = Listed(vec![thread(tid)]);
            let share = Share::Ways(WayMask(1));
            partitions.set(app, name, share, &mut threads, &mut Saved::default()).unwrap();
        }
    }

    #[test]
    fn what_the_hardware_cannot_do_is_refused_before_the_kernel_sees_it() {
        let (_tree, partitions, _) = scene();
        for mask in [0, 0x100, 0b101] {
            assert!(partitions.check(Share::Ways(WayMask(mask))).is_err(), "{mask:#x}");
        }
        assert!(partitions.check(Share::Ways(WayMask(0xff))).is_ok());
        for percent in [0, 101, 255] {
            assert!(partitions.check(Share::Percent(percent)).is_err(), "{percent}");
        }
    }

    #[test]
    fn a_refused_share_leaves_no_group() {
        for errno in [libc::EINVAL, libc::EBUSY, libc::EACCES, libc::EROFS] {
            for file in ["schemata", "tasks"] {
                let (tree, mut partitions, mut saved) = scene();
                faults::refuse(file, 0, errno);
                let error = set(&mut partitions, &mut saved, Share::Ways(WayMask(1))).unwrap_err();
                faults::clear();
                assert!(error.to_string().contains(file), "{error}");
                assert!(partitions.groups.is_empty());
                assert_eq!(partitions.ways(APP), Some(WayMask(0xff)));
                // A kernel's directory goes with its files; a tree's does not.
                assert!(saved.originals.contains(&Original::Group { path: tree.path(GROUP) }));
            }
        }
    }

    #[test]
    fn threads_in_a_group_of_another_program_are_left_there() {
        let (tree, mut partitions, mut saved) = scene();
        group(&tree, "virt-7");
        tree.write("sys/fs/resctrl/virt-7/tasks", "11\n");
        let error = set(&mut partitions, &mut saved, Share::Percent(50)).unwrap_err().to_string();
        assert!(error.contains("virt-7") && error.contains("thread 11"), "{error}");
        assert_eq!(saved.originals, []);
    }

    #[test]
    fn new_threads_follow_and_another_writer_is_reported_once() {
        let (tree, mut partitions, mut saved) = scene();
        set(&mut partitions, &mut saved, Share::Ways(WayMask(3))).unwrap();
        assert_eq!(partitions.watch(APP, &[thread(11), thread(12)]).unwrap(), []);
        assert_eq!(text::read(&tree.path(&format!("{GROUP}/tasks"))).unwrap(), "12");
        tree.write(&format!("{GROUP}/schemata"), "L3:0=f;1=f\n");
        let taken = partitions.watch(APP, &[thread(11)]).unwrap();
        assert_eq!((taken.len(), taken[0].found), (1, Share::Ways(WayMask(0xf))));
        assert_eq!(partitions.watch(APP, &[thread(11)]).unwrap(), []);
    }

    #[test]
    fn another_writer_at_the_second_domain_alone_is_reported() {
        let (tree, mut partitions, mut saved) = scene();
        set(&mut partitions, &mut saved, Share::Ways(WayMask(3))).unwrap();
        assert_eq!(partitions.watch(APP, &[thread(11)]).unwrap(), []);
        tree.write(&format!("{GROUP}/schemata"), "L3:0=3;1=f\n");
        let taken = partitions.watch(APP, &[thread(11)]).unwrap();
        assert_eq!((taken.len(), taken[0].found), (1, Share::Ways(WayMask(0xf))));
    }

    #[test]
    fn a_group_that_another_program_removed_reads_as_the_top() {
        let (tree, mut partitions, mut saved) = scene();
        set(&mut partitions, &mut saved, Share::Ways(WayMask(3))).unwrap();
        std::fs::remove_dir_all(tree.path(GROUP)).unwrap();
        let taken = partitions.watch(APP, &[thread(11)]).unwrap();
        assert_eq!(taken[0].found, Share::Ways(WayMask(0xff)));
        assert!(taken[0].whom.contains("removed"));
        let group = &saved.originals[0];
        assert_eq!(group.restore(&tree.roots()), Restored::Already);
    }
}
