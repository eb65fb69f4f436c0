//! Where a server listens for TCP connections, and how many it has.

use crate::Roots;
use procfs::net::{TcpNetEntries, TcpNetEntry, TcpState};
use procfs::{FromBufReadSI, current_system_info};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Where a server listens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listener {
    /// The number of its network namespace.
    pub namespace: u32,
    /// TCP ports.
    pub ports: BTreeSet<u16>,
}

impl Listener {
    /// Finds where these processes listen, in the network namespace of the first that does.
    pub fn find(roots: &Roots, processes: impl Iterator<Item = i32>) -> Option<Self> {
        let mut found: Option<Self> = None;
        for pid in processes {
            let process = roots.proc.join(pid.to_string());
            let Some(namespace) = namespace(&process) else { continue };
            if found.as_ref().is_some_and(|found| found.namespace != namespace) {
                continue;
            }
            let ports = ports(&process);
            if !ports.is_empty() {
                let listener = found.get_or_insert(Self { namespace, ports: BTreeSet::new() });
                listener.ports.extend(ports);
            }
        }
        found
    }

    /// How many connections are open to these ports, in the network namespace of a process.
    pub fn connections(&self, roots: &Roots, pid: i32) -> usize {
        let process = roots.proc.join(pid.to_string());
        let is_own = |entry: &TcpNetEntry| {
            entry.state == TcpState::Established && self.ports.contains(&entry.local_address.port())
        };
        tables(&process).filter(is_own).count()
    }
}

/// The number of a process's network namespace.
fn namespace(process: &Path) -> Option<u32> {
    u32::try_from(process.join("ns/net").metadata().ok()?.ino()).ok()
}

/// The TCP ports that a process listens at.
fn ports(process: &Path) -> BTreeSet<u16> {
    let listens = tables(process).filter(|entry| entry.state == TcpState::Listen);
    let listening: Vec<(u64, u16)> =
        listens.map(|entry| (entry.inode, entry.local_address.port())).collect();
    let own = if listening.is_empty() { BTreeSet::new() } else { sockets(process) };
    listening.into_iter().filter(|(inode, _)| own.contains(inode)).map(|(_, port)| port).collect()
}

/// The TCP sockets in a process's network namespace.
fn tables(process: &Path) -> impl Iterator<Item = TcpNetEntry> {
    ["net/tcp", "net/tcp6"].into_iter().flat_map(|table| entries(&process.join(table)))
}

fn entries(table: &Path) -> Vec<TcpNetEntry> {
    let Ok(file) = File::open(table) else { return Vec::new() };
    let entries = TcpNetEntries::from_buf_read(BufReader::new(file), current_system_info());
    entries.map_or_else(|_| Vec::new(), |entries| entries.0)
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
    fn an_app_is_where_its_processes_listen_and_no_other_process() {
        let tree = Tree::new();
        process(&tree, 5, &[71, 73]);
        process(&tree, 6, &[]);
        process(&tree, 7, &[72]);
        let found = Listener::find(&tree.roots(), [4, 5, 6].into_iter()).unwrap();
        assert_eq!(found.ports, BTreeSet::from([3306]));
        assert_eq!(Some(found.namespace), namespace(&tree.path("proc/5")));
        assert_eq!(Listener::find(&tree.roots(), [4, 6].into_iter()), None);
        // In the tests' tree each process is in a namespace of its own.
        let first = Listener::find(&tree.roots(), [7, 5].into_iter()).unwrap();
        assert_eq!(first.ports, BTreeSet::from([8080]));
        assert_eq!(
            (found.connections(&tree.roots(), 5), first.connections(&tree.roots(), 5)),
            (1, 0)
        );
    }
}
