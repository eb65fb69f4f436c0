//! Where the threads that serve each class of clients may run, as the kernel has it.

use super::holders::maps_page;
use super::seen::class_of;
use crate::Roots;
use crate::apps::Facts;
use crate::sys::page::SharedPage;
use crate::sys::sched::affinity_of;
use lull_control::CoreSet;
use lull_oncall::{CLASS_NAME_BYTES, Record};
use std::collections::BTreeMap;

/// The cores of the threads that serve a class of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassCores {
    /// The class.
    pub client_class: String,
    /// Cores that any of its threads may use.
    pub cores: CoreSet,
    /// Its threads.
    pub threads: usize,
}

/// Reads the cores of classes that have a thread; none unless an agent moves threads.
pub(super) fn read(page: &SharedPage, roots: &Roots) -> Vec<ClassCores> {
    if !page.header().is_dispatched() {
        return Vec::new();
    }
    let class = |at: usize| ClassCores {
        client_class: page.client_rules().name(at, &mut [0; CLASS_NAME_BYTES]).to_owned(),
        cores: CoreSet::default(),
        threads: 0,
    };
    let mut all: Vec<ClassCores> = (0..page.client_classes().count()).map(class).collect();
    let mut servers: BTreeMap<u32, bool> = BTreeMap::new();
    for (id, record) in page.records().filter(|(_, record)| record.pid() != 0) {
        let pid = record.pid();
        // In the agent's namespace the number may be another process's: a server can have a PID
        // namespace of its own.
        if !*servers.entry(pid).or_insert_with(|| maps_page(pid, page, roots)) {
            continue;
        }
        let class = page.gate().entry(id).map_or(0, |entry| class_of(page, entry));
        // A client that bypasses the gate is in none.
        if let (Some(class), Some(cores)) = (all.get_mut(class), cores_of(record, roots)) {
            class.cores = class.cores.union(&cores);
            class.threads += 1;
        }
    }
    all.retain(|class| class.threads > 0);
    all
}

/// Returns the cores of the thread that serves a connection, if it can be seen from here.
fn cores_of(record: &Record, roots: &Roots) -> Option<CoreSet> {
    let process = i32::try_from(record.pid()).ok()?;
    let tid = i32::try_from(record.tid()).ok().filter(|tid| *tid != 0)?;
    Facts::of_thread(roots, process, tid).ok()?;
    affinity_of(tid).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oncall::{ClientClass, ClientMatch, Rules, Runtime};
    use crate::sys::sched::set_affinity;
    use crate::testing::Sleeper;
    use lull_oncall::{ClassShare, Peer, Settings};

    #[test]
    fn classes_have_the_cores_of_their_threads_while_an_agent_moves_threads() {
        let clients = vec![ClientMatch { port: Some(1), ..ClientMatch::default() }];
        let class = ClientClass { name: "web".to_owned(), share: ClassShare::default(), clients };
        let rules = Rules { client_classes: vec![class], ..Rules::default() };
        let runtime = Runtime::start(&Settings::default(), &rules).unwrap();
        let (page, thread, roots) = (&runtime.page, Sleeper::new(), Roots::default());
        let first: CoreSet = thread.cores().iter().take(1).collect();
        set_affinity(thread.tid, &first).unwrap();
        let own = std::process::id();
        let threads = [(own, thread.tid.cast_unsigned()), (own, 1), (own, 0), (1, 1)];
        for (pid, tid) in threads {
            let id = page.header().offer_record();
            let record = page.record(id).unwrap();
            assert!(record.claim(pid, 3, Peer::default(), 0));
            record.query_arrived(tid, 1);
            page.gate().entry(id).unwrap().set_client_class(1);
        }
        assert_eq!(read(page, &roots), []);
        runtime.set_dispatched(true);
        let web = ClassCores { client_class: "web".to_owned(), cores: first, threads: 1 };
        let why = "the second is not a thread of this process, and the last has not mapped the \
                   page";
        assert_eq!(read(page, &roots), [web], "{why}");
    }
}
