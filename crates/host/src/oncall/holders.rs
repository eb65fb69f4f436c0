//! The processes whose connections a page has, also those of another PID namespace.
//!
//! A record has the number by which its process knows itself. To an agent outside of the server's
//! container this is the number of another process, or of none. The kernel lists the numbers of a
//! process from the reader's namespace inwards (`NSpid` of `/proc/PID/status`, `man 5 proc`), and
//! the library leaves its namespace in the header of the page.

use super::unmapped::Maps;
use crate::Roots;
use crate::apps::{Facts, ProcessId};
use crate::sys::page::SharedPage;
use rustix::fs::fstat;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The state of the process of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// The process runs, under this number of the agent's namespace.
    Runs(ProcessId),
    /// The process has ended.
    Ended,
    /// The process cannot be seen from here.
    Hidden,
}

/// Finds the processes of a page, and remembers those of another namespace by their own numbers.
#[derive(Debug, Default)]
pub(super) struct Holders {
    /// The namespace in which any process was seen (0: none yet), and its processes.
    known: Mutex<(u32, BTreeMap<u32, ProcessId>)>,
}

impl Holders {
    /// Returns the processes that have these numbers for themselves. The numbers must be read
    /// before the call, so that a process that starts meanwhile does not count as ended.
    pub(super) fn find(
        &self,
        page: &SharedPage,
        numbers: &BTreeSet<u32>,
        roots: &Roots,
    ) -> BTreeMap<u32, Holder> {
        let namespace = page.header().pid_namespace();
        let ours = namespace_of(&roots.proc.join("self"));
        if namespace == 0 || ours.is_none_or(|ours| ours == namespace) {
            return numbers.iter().map(|own| (*own, by_number(*own, roots))).collect();
        }
        let mut guard = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (seen_in, known) = &mut *guard;
        if *seen_in != namespace {
            known.clear();
        }
        let runs = |process: &ProcessId| process.facts(roots).is_some();
        let mut is_visible = true;
        if !numbers.iter().all(|own| known.get(own).is_some_and(runs)) {
            let inside = processes_of(namespace, roots);
            if !inside.is_empty() {
                *seen_in = namespace;
            }
            // Where processes were seen and none is left, all have ended.
            is_visible = *seen_in == namespace;
            *known = inside;
        }
        let holder = |own: &u32| match known.get(own) {
            Some(process) if runs(process) => Holder::Runs(*process),
            // A process of the agent's own namespace may use the page, too.
            _ if maps_page(*own, page, roots) => by_number(*own, roots),
            _ if is_visible => Holder::Ended,
            _ => Holder::Hidden,
        };
        numbers.iter().map(|own| (*own, holder(own))).collect()
    }
}

/// Returns the process of the agent's own namespace with this number.
fn by_number(own: u32, roots: &Roots) -> Holder {
    let pid = own.cast_signed();
    match Facts::of_process(roots, pid) {
        Ok(facts) if facts.is_ended() => Holder::Ended,
        Ok(facts) => Holder::Runs(ProcessId { pid, start_ticks: facts.start_ticks }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Holder::Ended,
        Err(_) => Holder::Hidden,
    }
}

/// Returns the inode number of the PID namespace of a process, whose directory this is. The
/// kernel's are below 2^32.
fn namespace_of(process: &Path) -> Option<u32> {
    std::fs::metadata(process.join("ns/pid")).ok().map(|found| found.ino() as u32)
}

/// Returns the processes of a namespace by their numbers in it.
fn processes_of(namespace: u32, roots: &Roots) -> BTreeMap<u32, ProcessId> {
    let entries = std::fs::read_dir(&roots.proc).into_iter().flatten().flatten();
    let of_entry = |entry: std::fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let place = entry.path();
        if namespace_of(&place) != Some(namespace) {
            return None;
        }
        let process = ProcessId::lookup(roots, pid).ok()?;
        Some((own_number(&place)?, process))
    };
    entries.filter_map(of_entry).collect()
}

/// Returns the number by which a process knows itself.
fn own_number(process: &Path) -> Option<u32> {
    let status = std::fs::read_to_string(process.join("status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

/// Whether the process of the agent's own namespace with this number has mapped the page.
pub(super) fn maps_page(pid: u32, page: &SharedPage, roots: &Roots) -> bool {
    let maps = std::fs::read_to_string(roots.proc.join(format!("{pid}/maps"))).ok();
    let inode = fstat(page.file()).ok().map(|found| found.st_ino);
    maps.zip(inode).is_some_and(|(maps, inode)| Maps(maps).has_inode(inode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    /// A process that knows itself by 7 and started 5 ticks after the machine.
    fn write_process(tree: &Tree, pid: u32) {
        let stat =
            format!("{pid} (mariadbd) S 1 7 7 0 -1 0{} 5{}", " 0".repeat(12), " 0".repeat(30));
        tree.write(&format!("proc/{pid}/stat"), &stat);
        tree.write(&format!("proc/{pid}/status"), &format!("Pid:\t{pid}\nNSpid:\t{pid}\t7\n"));
        tree.write(&format!("proc/{pid}/ns/pid"), "");
    }

    fn namespace(tree: &Tree, process: &str) -> u32 {
        namespace_of(&tree.path(&format!("proc/{process}"))).unwrap()
    }

    /// The number of no namespace of the tree.
    fn unknown_namespace(tree: &Tree) -> u32 {
        let numbers = ["self", "70"].map(|process| namespace(tree, process));
        (1..).find(|one| !numbers.contains(one)).unwrap()
    }

    fn found(holders: &Holders, page: &SharedPage, tree: &Tree) -> [Holder; 2] {
        let found = holders.find(page, &BTreeSet::from([7, 8]), &tree.roots());
        [found[&7], found[&8]]
    }

    #[test]
    fn a_process_of_another_namespace_is_found_by_the_number_that_it_has_there() {
        let (tree, page, holders) =
            (Tree::new(), SharedPage::create().unwrap(), Holders::default());
        tree.write("proc/self/ns/pid", "");
        write_process(&tree, 70);
        page.header().set_pid_namespace(namespace(&tree, "70"));
        let unknown = unknown_namespace(&tree);
        let runs = Holder::Runs(ProcessId { pid: 70, start_ticks: 5 });
        assert_eq!(found(&holders, &page, &tree), [runs, Holder::Ended]);
        std::fs::remove_dir_all(tree.path("proc/70")).unwrap();
        for _ in 0..2 {
            assert_eq!(found(&holders, &page, &tree), [Holder::Ended; 2], "it was seen before");
        }
        page.header().set_pid_namespace(unknown);
        assert_eq!(found(&holders, &page, &tree), [Holder::Hidden; 2], "it was of another one");
    }

    #[test]
    fn where_no_process_of_the_namespace_can_be_seen_none_counts_as_ended() {
        let (tree, page) = (Tree::new(), SharedPage::create().unwrap());
        tree.write("proc/self/ns/pid", "");
        write_process(&tree, 70);
        page.header().set_pid_namespace(unknown_namespace(&tree));
        assert_eq!(found(&Holders::default(), &page, &tree), [Holder::Hidden; 2]);
    }

    #[test]
    fn in_the_agents_own_namespace_a_number_is_that_of_the_process() {
        let (tree, page, holders) =
            (Tree::new(), SharedPage::create().unwrap(), Holders::default());
        tree.write("proc/self/ns/pid", "");
        write_process(&tree, 8);
        let runs = Holder::Runs(ProcessId { pid: 8, start_ticks: 5 });
        for own in [0, namespace(&tree, "self")] {
            page.header().set_pid_namespace(own);
            assert_eq!(found(&holders, &page, &tree), [Holder::Ended, runs]);
        }
    }
}
