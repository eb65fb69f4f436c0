//! Where the kubelet puts the cgroups of pods and containers, and whether a pod has cores of its
//! own.
//!
//! The kubelet names them by one of two drivers (`pkg/kubelet/cm/cgroup_manager_linux.go` and
//! `libcontainer/cgroups/systemd`; containers by the runtimes):
//!
//! ```text
//! systemd   kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/
//!           cri-containerd-ID.scope
//! cgroupfs  kubepods/burstable/podUID/ID
//! ```
//!
//! Guaranteed pods are directly below `kubepods`. With systemd the `-` of a UID become `_`, and a
//! slice has the names of all above it. A `--cgroup-root` is a prefix of both.

use crate::message::{ContainerId, PodOrder, Runtime, Service};
use lull_host::Roots;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The paths at which the cgroup of a pod or of its container may be, below the mount of cgroups.
pub(crate) fn candidates(order: &PodOrder, root: &Path) -> Vec<PathBuf> {
    let root: Vec<&str> = root.iter().filter_map(|part| part.to_str()).collect();
    let root: Vec<&str> = root.into_iter().filter(|part| *part != "/").collect();
    let pod = format!("pod{}", order.uid);
    let service = match order.service {
        Service::Guaranteed => None,
        Service::Burstable => Some("burstable"),
        Service::BestEffort => Some("besteffort"),
    };
    let names: Vec<&str> =
        root.iter().copied().chain(["kubepods"]).chain(service).chain([pod.as_str()]).collect();
    let drivers = [of_systemd(&names), names.iter().collect::<PathBuf>()];
    let Some(container) = order.container else { return drivers.to_vec() };
    let [systemd, cgroupfs] = drivers;
    let hex = hex(&container);
    let (scope, plain) = match container.runtime {
        Runtime::Containerd => (format!("cri-containerd-{hex}.scope"), hex),
        Runtime::CriO => (format!("crio-{hex}.scope"), format!("crio-{hex}")),
        Runtime::Docker => (format!("docker-{hex}.scope"), hex),
    };
    vec![systemd.join(scope), cgroupfs.join(plain)]
}

/// The slices of these names, each within the one before it.
fn of_systemd(names: &[&str]) -> PathBuf {
    let mut path = PathBuf::new();
    let mut slice = String::new();
    for name in names {
        if !slice.is_empty() {
            slice.push('-');
        }
        slice.push_str(&name.replace('-', "_"));
        path.push(format!("{slice}.slice"));
    }
    path
}

fn hex(container: &ContainerId) -> String {
    container.number.iter().fold(String::new(), |mut text, byte| {
        // A string takes whatever is written.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The hierarchy of version 2. What it says of all cgroups is read once for many pods.
#[derive(Debug)]
pub(crate) struct Hierarchy {
    /// Where it is mounted: alone, or beside version 1.
    mount: PathBuf,
    /// The cores that cgroups may use; `None` without the controller.
    cores: Option<usize>,
    /// The list of cores of the machine.
    online: PathBuf,
}

impl Hierarchy {
    /// Reads it.
    pub(crate) fn read(roots: &Roots) -> Self {
        let alone = roots.sys.join("fs/cgroup");
        let is_alone = alone.join("cgroup.procs").exists();
        let mount = if is_alone { alone } else { alone.join("unified") };
        let online = roots.sys.join("devices/system/cpu/online");
        Self { cores: count(&mount), mount, online }
    }

    /// Returns the one of these paths that is a cgroup.
    pub(crate) fn find(&self, candidates: &[PathBuf]) -> Option<PathBuf> {
        let exists = |path: &&PathBuf| self.mount.join(path).join("cgroup.procs").exists();
        candidates.iter().find(exists).cloned()
    }

    /// Why the processes of a cgroup are another program's to place, if they are: it or a cgroup
    /// directly below it may use fewer cores than the node has.
    pub(crate) fn confined(&self, cgroup: &Path) -> Option<String> {
        let all = self.cores?;
        let place = self.mount.join(cgroup);
        let below = std::fs::read_dir(&place).ok()?.flatten();
        let directories = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let places = std::iter::once(place.clone()).chain(directories.map(|entry| entry.path()));
        let fewest = places.filter_map(|place| count(&place)).min()?;
        (fewest < all).then(|| {
            format!(
                "its cpuset has {fewest} of the node's {all} cores: another program, such as the \
                 kubelet's CPU manager, has placed it"
            )
        })
    }

    /// Why a pod is another program's to place, if it is: its runtime has set these cores for one
    /// of its containers, and the node has more.
    pub(crate) fn placed(&self, cpus: &str) -> Option<String> {
        let few = cores(cpus).filter(|few| *few > 0)?;
        let online = || std::fs::read_to_string(&self.online).ok();
        let all = self.cores.or_else(|| cores(&online()?)).filter(|all| few < *all)?;
        Some(format!(
            "its container runtime has set the cores {cpus}, {few} of the node's {all}: another \
             program, such as the kubelet's CPU manager, has placed it"
        ))
    }
}

/// The number of cores that a cgroup may use; `None` without a cpuset.
fn count(place: &Path) -> Option<usize> {
    cores(&std::fs::read_to_string(place.join("cpuset.cpus.effective")).ok()?)
}

/// The number of cores of a list such as `0-3,7`.
pub(crate) fn cores(text: &str) -> Option<usize> {
    let ranges = text.trim().split(',').filter(|range| !range.is_empty());
    ranges
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
            Some(usize::from(last.checked_sub(first)?) + 1)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::tests::order;

    fn paths(order: &PodOrder, root: &str) -> Vec<String> {
        let all = candidates(order, Path::new(root));
        all.into_iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn pods_are_where_either_driver_puts_them() {
        let mut pod = order("1f0c-22");
        assert_eq!(
            paths(&pod, ""),
            [
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f0c_22.slice",
                "kubepods/burstable/pod1f0c-22",
            ]
        );
        pod.service = Service::BestEffort;
        assert!(paths(&pod, "")[0].ends_with("/kubepods-besteffort-pod1f0c_22.slice"));
        pod.service = Service::Guaranteed;
        let guaranteed = ["kubepods.slice/kubepods-pod1f0c_22.slice", "kubepods/pod1f0c-22"];
        assert_eq!(paths(&pod, "/"), guaranteed);
        // As kind starts its kubelets.
        assert_eq!(
            paths(&pod, "/kubelet"),
            [
                "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod1f0c_22.slice",
                "kubelet/kubepods/pod1f0c-22",
            ]
        );
    }

    #[test]
    fn containers_are_named_by_their_runtimes() {
        let mut pod = order("1f0c-22");
        let names = [
            (Runtime::Containerd, "cri-containerd-", ""),
            (Runtime::CriO, "crio-", "crio-"),
            (Runtime::Docker, "docker-", ""),
        ];
        for (runtime, scope, plain) in names {
            pod.container = Some(ContainerId { runtime, number: [0xab; 32] });
            let hex = "ab".repeat(32);
            let [systemd, cgroupfs] = &paths(&pod, "")[..] else { panic!("two drivers") };
            assert!(
                systemd.ends_with(&format!("pod1f0c_22.slice/{scope}{hex}.scope")),
                "{systemd}"
            );
            assert!(cgroupfs.ends_with(&format!("pod1f0c-22/{plain}{hex}")), "{cgroupfs}");
        }
    }

    #[test]
    fn a_pod_with_fewer_cores_than_the_node_is_another_programs() {
        let tree = tempfile::tempdir().unwrap();
        let roots = Roots::under(tree.path());
        let write = |path: &str, text: &str| {
            let place = roots.sys.join("fs/cgroup").join(path);
            std::fs::create_dir_all(&place).unwrap();
            std::fs::write(place.join("cgroup.procs"), "").unwrap();
            std::fs::write(place.join("cpuset.cpus.effective"), text).unwrap();
        };
        write("", "0-7\n");
        write("kubepods/pod1", "0-7\n");
        write("kubepods/pod1/a", "0-7\n");
        let hierarchy = Hierarchy::read(&roots);
        let pod = [PathBuf::from("kubepods.slice/pod1"), PathBuf::from("kubepods/pod1")];
        let found = hierarchy.find(&pod).unwrap();
        assert_eq!(found, pod[1]);
        assert_eq!(hierarchy.confined(&found), None);
        write("kubepods/pod1/b", "2,4-5\n");
        let why = hierarchy.confined(&found).unwrap();
        assert!(why.contains("3 of the node's 8 cores"), "{why}");
        assert_eq!(hierarchy.placed(""), None, "the runtime has set none");
        assert_eq!(hierarchy.placed("0-7"), None, "all");
        let why = hierarchy.placed("2,4-5").unwrap();
        assert!(why.contains("the cores 2,4-5, 3 of the node's 8"), "{why}");
        // Without the controller the list of the machine's cores counts.
        let bare = tempfile::tempdir().unwrap();
        let roots = Roots::under(bare.path());
        assert_eq!(Hierarchy::read(&roots).confined(Path::new("a")), None);
        assert_eq!(Hierarchy::read(&roots).placed("2"), None);
        std::fs::create_dir_all(roots.sys.join("devices/system/cpu")).unwrap();
        std::fs::write(roots.sys.join("devices/system/cpu/online"), "0-1\n").unwrap();
        assert!(Hierarchy::read(&roots).placed("1").is_some());
    }
}
