//! Latency of an app's queries as the kernel sees them at its sockets, for apps
//! into which no library can be preloaded ([`crate::bpf::QueryWatch`]).
//!
//! The app's sockets are found by the ports on which it listens, which are read from
//! `/proc/PID/net/tcp` and the app's open files. The ports are searched for in every
//! epoch until there are some, and then at longer intervals.

use super::{check_lost, first_reading};
use crate::Roots;
use crate::bpf::{QueriesSeen, QueryWatch};
use crate::files::read_text;
use lull_control::{CoreSet, LatencySeen};
use lull_measure::{Gauge, Latency, Missing, Nanos};
use procfs::net::{TcpNetEntries, TcpState};
use procfs::{FromBufReadSI, current_system_info};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Time between two looks for ports where some are known.
const LOOKING: Nanos = Nanos::from_secs(10);

/// One app's queries, from one reading to the next.
#[derive(Debug)]
pub struct Queries {
    roots: Roots,
    watch: Gauge<QueryWatch>,
    looked: Option<Nanos>,
    last: Option<(Nanos, QueriesSeen)>,
}

/// Where an app listens.
#[derive(Debug, Default, PartialEq, Eq)]
struct Place {
    /// The number of its network namespace.
    namespace: u32,
    ports: BTreeSet<u16>,
}

impl Queries {
    /// Begins to watch, or says why that cannot be done.
    pub fn new(roots: &Roots) -> Self {
        let watch = begin(roots);
        Self { roots: roots.clone(), watch, looked: None, last: None }
    }

    /// Why nothing will be seen, if that is so.
    pub fn refusal(&self) -> Option<&Missing> {
        self.watch.as_ref().err()
    }

    /// By which means queries are seen, or why they cannot be: found out by doing it
    /// for a moment.
    ///
    /// # Errors
    /// If the kernel refuses, or the roots are not those of the kernel that runs.
    pub fn probe(roots: &Roots) -> Result<String, Missing> {
        begin(roots).map(|_| "eBPF at sock_recv_length, sock_send_length".to_owned())
    }

    /// Returns latencies since the last reading, `now` by `CLOCK_MONOTONIC`. `processes`
    /// returns the app's processes; it is called only when the ports are searched for.
    pub fn latency(
        &mut self,
        processes: impl FnOnce() -> BTreeSet<i32>,
        now: Nanos,
    ) -> Gauge<LatencySeen> {
        let watch = self.watch.as_mut().map_err(|why| why.clone())?;
        let is_due = self.looked.is_none_or(|looked| now >= looked.saturating_add(LOOKING));
        if is_due || watch.ports().is_empty() {
            self.looked = Some(now);
            if let Some(place) = Place::find(&self.roots, processes().into_iter()) {
                watch.set_listener(place.namespace, &place.ports)?;
            }
        }
        let seen = watch.read();
        let latency = match &self.last {
            _ if watch.ports().is_empty() => Err(Missing::because(
                "none of its processes listens at a TCP port: queries are seen at those alone",
            )),
            None => Err(first_reading()),
            Some((before, old)) => since((*before, old), (now, &seen)),
        };
        self.last = Some((now, seen));
        latency
    }
}

fn begin(roots: &Roots) -> Gauge<QueryWatch> {
    if *roots != Roots::default() {
        return Err(Missing::because("sockets are those of the running kernel alone"));
    }
    Ok(QueryWatch::begin(cores(roots)?)?)
}

/// How many numbers of cores there can be.
fn cores(roots: &Roots) -> Gauge<usize> {
    let path = roots.sys.join("devices/system/cpu/possible");
    let text = read_text(&path).map_err(|error| super::unreadable(&path, &error))?;
    let cores: Option<CoreSet> = text.parse().ok();
    let last = cores.and_then(|cores| cores.iter().last());
    let last = last.ok_or_else(|| Missing::because(format!("{}: `{text}`", path.display())))?;
    Ok(usize::from(last.0) + 1)
}

/// Returns the queries between two readings.
fn since(
    (before, old): (Nanos, &QueriesSeen),
    (now, new): (Nanos, &QueriesSeen),
) -> Gauge<LatencySeen> {
    let answered = new.latencies.since(&old.latencies);
    let lost = new.lost.saturating_sub(old.lost);
    check_lost(answered.count(), lost, "queries", "too many connections ask at once")?;
    let mut window = Latency::default();
    answered.means().for_each(|(latency, queries)| window.record_many(latency, queries));
    let (outstanding, begun) = new.pending;
    let pending = (outstanding, begun.map(|begun| now.saturating_sub(begun)));
    Ok(LatencySeen::on_server(window, now.saturating_sub(before), pending, old.pending.0))
}

impl Place {
    /// Finds where these processes listen, in the network namespace of the first that does.
    fn find(roots: &Roots, processes: impl Iterator<Item = i32>) -> Option<Self> {
        let mut found: Option<Self> = None;
        for pid in processes {
            let process = roots.proc.join(pid.to_string());
            let Some(namespace) = namespace(&process) else { continue };
            if found.as_ref().is_some_and(|found| found.namespace != namespace) {
                continue;
            }
            let ports = ports(&process);
            if !ports.is_empty() {
                let place = found.get_or_insert(Self { namespace, ports: BTreeSet::new() });
                place.ports.extend(ports);
            }
        }
        found
    }
}

/// The number of a process's network namespace.
fn namespace(process: &Path) -> Option<u32> {
    u32::try_from(process.join("ns/net").metadata().ok()?.ino()).ok()
}

/// The TCP ports that a process listens at.
fn ports(process: &Path) -> BTreeSet<u16> {
    let listening: Vec<(u64, u16)> =
        ["net/tcp", "net/tcp6"].iter().flat_map(|table| listeners(&process.join(table))).collect();
    let own = if listening.is_empty() { BTreeSet::new() } else { sockets(process) };
    listening.into_iter().filter(|(inode, _)| own.contains(inode)).map(|(_, port)| port).collect()
}

/// Inode and port of each socket of a table that listens.
fn listeners(table: &Path) -> Vec<(u64, u16)> {
    let Ok(file) = File::open(table) else { return Vec::new() };
    let entries = TcpNetEntries::from_buf_read(BufReader::new(file), current_system_info());
    let entries = entries.map_or_else(|_| Vec::new(), |entries| entries.0);
    let listens = entries.into_iter().filter(|entry| entry.state == TcpState::Listen);
    listens.map(|entry| (entry.inode, entry.local_address.port())).collect()
}

/// Inodes of the sockets that a process has open.
fn sockets(process: &Path) -> BTreeSet<u64> {
    let Ok(files) = process.join("fd").read_dir() else { return BTreeSet::new() };
    let links = files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok());
    let inode =
        |link: &Path| link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
    links.filter_map(|link| inode(&link)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;
    use std::os::unix::fs::symlink;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
        retrnsmt   uid  timeout inode\n   \
        0: 0100007F:0CEA 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 \
        71 1 0 100 0 0 10 0\n   \
        1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 \
        72 1 0 100 0 0 10 0\n   \
        2: 0100007F:0CEA 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 \
        73 1 0 100 0 0 10 0\n";

    fn process(tree: &Tree, pid: i32, sockets: &[u64]) {
        tree.write(&format!("proc/{pid}/net/tcp"), TABLE);
        tree.write(&format!("proc/{pid}/ns/net"), "");
        std::fs::create_dir_all(tree.path(&format!("proc/{pid}/fd"))).unwrap();
        for inode in sockets {
            let link = tree.path(&format!("proc/{pid}/fd/{inode}"));
            symlink(format!("socket:[{inode}]"), link).unwrap();
        }
    }

    #[test]
    fn an_app_is_where_its_processes_listen_and_nobody_else() {
        let tree = Tree::new();
        process(&tree, 5, &[71, 73]);
        process(&tree, 6, &[]);
        process(&tree, 7, &[72]);
        let place = Place::find(&tree.roots(), [4, 5, 6].into_iter()).unwrap();
        assert_eq!(place.ports, BTreeSet::from([3306]));
        assert_eq!(Some(place.namespace), namespace(&tree.path("proc/5")));
        assert_eq!(Place::find(&tree.roots(), [4, 6].into_iter()), None);
        // In the tests' tree each process is in a namespace of its own.
        let first = Place::find(&tree.roots(), [7, 5].into_iter()).unwrap();
        assert_eq!(first.ports, BTreeSet::from([8080]));
    }

    fn seen(latencies_us: &[u64], lost: u64, pending: (u64, Option<Nanos>)) -> QueriesSeen {
        let mut all = QueriesSeen { lost, pending, ..QueriesSeen::default() };
        latencies_us.iter().for_each(|us| all.latencies.add(Nanos::from_micros(*us)));
        all
    }

    #[test]
    fn rates_and_latencies_are_those_of_the_epoch() {
        let second = Nanos::from_secs(1);
        let old = seen(&[5_000], 0, (1, Some(Nanos(1))));
        let new = seen(&[5_000, 100, 100, 900], 0, (2, Some(second)));
        let seen = since((second, &old), (second * 3, &new)).unwrap();
        assert_eq!((seen.window.count(), seen.completed_per_s), (3, 1.5));
        assert_eq!((seen.offered_per_s, seen.outstanding), (2.0, 2));
        assert_eq!(seen.oldest, Some(second * 2));
        let longest = seen.window.quantile(lull_measure::Percentile::P99).unwrap();
        assert!(longest.0.abs_diff(900_000) < 10_000, "{longest:?}");
    }

    #[test]
    fn queries_are_missing_where_too_many_were_lost() {
        let second = Nanos::from_secs(1);
        let (old, many) = (seen(&[], 0, (0, None)), vec![100; 1000]);
        assert!(since((Nanos::ZERO, &old), (second, &seen(&many, 10, (0, None)))).is_ok());
        let lossy = since((Nanos::ZERO, &old), (second, &seen(&many, 11, (0, None))));
        let why = lossy.unwrap_err().to_string();
        assert!(why.contains("11 of 1011 queries"), "{why}");
    }

    #[test]
    fn a_tree_of_files_has_no_sockets() {
        let tree = Tree::new();
        let mut queries = Queries::new(&tree.roots());
        let why = queries.latency(|| [1].into(), Nanos(1)).unwrap_err().to_string();
        assert!(why.contains("running kernel"), "{why}");
    }
}
