//! Where the kubelet puts the cgroups of pods and containers, and which cores these may use.
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
//!
//! With `conmon_cgroup = "pod"` the cgroup of a pod also has `crio-conmon-ID`, that of the process
//! with which CRI-O monitors a container. It is not a container's.

use crate::message::{ContainerId, PodOrder, Runtime, Service};
use crate::pool::Cpusets;
use lull_control::CoreSet;
use lull_host::Roots;
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The paths at which the cgroup of a pod or of its container may be, below the mount of cgroups.
pub(crate) fn candidates(order: &PodOrder, root: &Path) -> Vec<PathBuf> {
    let pod = format!("pod{}", order.uid);
    let mut names = names(root, order.service);
    names.push(&pod);
    let drivers = by_drivers(&names);
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

/// Why a pod without a cgroup is left alone, and where it was looked for.
pub(crate) fn describe_missing(order: &PodOrder, root: &Path) -> String {
    let places = candidates(order, root).into_iter().map(|path| path.display().to_string());
    let places: Vec<String> = places.collect();
    format!(
        "its cgroup does not exist: cgroup_root in [kubernetes] must be the kubelet's \
         --cgroup-root, and cgroups of version 2 must be mounted; looked for {}",
        places.join(" and ")
    )
}

/// The names of the cgroups above the pods of a class, from the outermost on.
fn names(root: &Path, service: Service) -> Vec<&str> {
    let root = root.iter().filter_map(|part| part.to_str()).filter(|part| *part != "/");
    let class = match service {
        Service::Guaranteed => None,
        Service::Burstable => Some("burstable"),
        Service::BestEffort => Some("besteffort"),
    };
    root.chain(["kubepods"]).chain(class).collect()
}

/// The path of the cgroup with these names by systemd, and by cgroupfs.
fn by_drivers(names: &[&str]) -> [PathBuf; 2] {
    [of_systemd(names), names.iter().collect()]
}

/// The cgroups above all pods, as the two drivers name them.
pub(crate) fn tops(roots: &Roots, root: &Path) -> [PathBuf; 2] {
    by_drivers(&names(root, Service::Guaranteed)).map(|top| mount(roots).join(top))
}

/// Where version 2 of cgroups is mounted: alone, or beside version 1.
fn mount(roots: &Roots) -> PathBuf {
    let alone = roots.sys.join("fs/cgroup");
    let is_alone = alone.join("cgroup.procs").exists();
    if is_alone { alone } else { alone.join("unified") }
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
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The hierarchy of version 2. Common readings are read once for many pods.
#[derive(Debug)]
pub(crate) struct Hierarchy {
    /// Where it is mounted: alone, or beside version 1.
    mount: PathBuf,
    /// The cores of the node, and of no pod.
    node: Cpusets,
    /// Whether the controller of cpusets is on: else no cgroup has one.
    has_cpusets: bool,
    /// The cpusets of all pods, once they were read.
    pods: OnceCell<Cpusets>,
}

impl Hierarchy {
    /// Reads it.
    pub(crate) fn read(roots: &Roots) -> Self {
        let mount = mount(roots);
        let all = cpuset(&mount);
        let has_cpusets = all.is_some();
        // Without the controller of cpusets the list of the machine's cores counts.
        let online = || read_cores(&roots.sys.join("devices/system/cpu/online"));
        let node = Cpusets::new(all.or_else(online).unwrap_or_default());
        Self { mount, node, has_cpusets, pods: OnceCell::new() }
    }

    /// Has the cpusets of all pods read again.
    pub(crate) fn forget_pods(&mut self) {
        self.pods.take();
    }

    /// Returns the first of these paths that is a cgroup.
    pub(crate) fn find<'a>(&self, candidates: &'a [PathBuf]) -> Option<&'a Path> {
        let exists = |path: &&PathBuf| self.mount.join(path).join("cgroup.procs").exists();
        candidates.iter().find(exists).map(PathBuf::as_path)
    }

    /// Whether a container of a pod has processes, by the cgroup of the pod: one of its containers
    /// is the sandbox, which only holds the namespaces of the others.
    pub(crate) fn has_started(&self, pod: &Path) -> bool {
        containers(&self.mount.join(pod)).filter(|cgroup| is_populated(cgroup)).nth(1).is_some()
    }

    /// Returns the cpusets of a cgroup and of those directly below it that are smaller than the
    /// node's, with the one that a runtime has set.
    pub(crate) fn smaller_cpusets(&self, cgroup: &Path, set: Option<CoreSet>) -> BTreeSet<CoreSet> {
        let read = self.has_cpusets.then(|| cpusets(&self.mount.join(cgroup)));
        self.node.smaller(read.into_iter().flatten().chain(set))
    }

    /// Returns the cpusets of all pods below the kubelet's `--cgroup-root`.
    pub(crate) fn cpusets_of_pods(&self, root: &Path) -> &Cpusets {
        self.pods.get_or_init(|| {
            let mut all = self.node.clone();
            for service in [Service::Guaranteed, Service::Burstable, Service::BestEffort] {
                for parent in by_drivers(&names(root, service)) {
                    for path in directories(&self.mount.join(parent)) {
                        if let Some(uid) = uid_of(&path) {
                            all.add(uid, service, cpusets(&path));
                        }
                    }
                }
            }
            all
        })
    }
}

/// The UID in the name of the cgroup of a pod, as its driver writes it.
fn uid_of(cgroup: &Path) -> Option<&str> {
    let (_, uid) = cgroup.file_name()?.to_str()?.trim_end_matches(".slice").rsplit_once("pod")?;
    let is_part = |byte: u8| byte.is_ascii_hexdigit() || matches!(byte, b'-' | b'_');
    uid.bytes().all(is_part).then_some(uid)
}

/// The cpusets of a cgroup and of the containers directly below it.
fn cpusets(cgroup: &Path) -> Vec<CoreSet> {
    std::iter::once(cgroup.to_owned())
        .chain(containers(cgroup))
        .filter_map(|path| cpuset(&path))
        .collect()
}

/// The cgroups of the containers of a pod.
fn containers(pod: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    directories(pod).filter(|path| !is_monitor(path))
}

/// Whether a cgroup is that of CRI-O's monitor of a container, `conmon`.
fn is_monitor(cgroup: &Path) -> bool {
    let name = cgroup.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.starts_with("crio-conmon-"))
}

/// Whether a cgroup, or one below it, has a process.
fn is_populated(cgroup: &Path) -> bool {
    let events = std::fs::read_to_string(cgroup.join("cgroup.events"));
    events.is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
}

fn directories(path: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let all = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    all.map(|entry| entry.path())
}

/// The cores that a cgroup may use; `None` without a cpuset.
fn cpuset(cgroup: &Path) -> Option<CoreSet> {
    read_cores(&cgroup.join("cpuset.cpus.effective"))
}

/// The cores of a file with a list such as `0-3,7`.
fn read_cores(file: &Path) -> Option<CoreSet> {
    std::fs::read_to_string(file).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::tests::order;
    use crate::pool::Placement;

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
    fn a_pod_is_placed_as_its_cpuset_and_those_of_others_say() {
        let tree = tempfile::tempdir().unwrap();
        let roots = Roots::under(tree.path());
        let write = |path: &str, text: &str| {
            let place = roots.sys.join("fs/cgroup").join(path);
            std::fs::create_dir_all(&place).unwrap();
            std::fs::write(place.join("cgroup.procs"), "").unwrap();
            std::fs::write(place.join("cpuset.cpus.effective"), text).unwrap();
        };
        let placement = |path: &str| {
            let hierarchy = Hierarchy::read(&roots);
            let own = hierarchy.smaller_cpusets(Path::new(path), None);
            hierarchy.cpusets_of_pods(Path::new("/kubelet")).placement(own)
        };
        let of_systemd = "kubelet.slice/kubelet-kubepods.slice";
        let burstable = format!("{of_systemd}/kubelet-kubepods-burstable.slice");
        let pods = [
            format!("{burstable}/kubelet-kubepods-burstable-pod1.slice"),
            "kubelet/kubepods/besteffort/pod2".to_owned(),
            format!("{of_systemd}/kubelet-kubepods-pod3.slice"),
        ];
        for path in ["", of_systemd, &burstable, &pods[0], &pods[1], &pods[2]] {
            write(path, "0-7\n");
        }
        let places: [PathBuf; 2] = ["kubepods/pod1".into(), pods[1].clone().into()];
        let hierarchy = Hierarchy::read(&roots);
        let found = hierarchy.find(&places);
        assert_eq!(found, Some(Path::new(&pods[1])));
        assert_eq!(placement(&pods[0]), Placement::Everywhere);
        write(&format!("{}/main", pods[0]), "0-1,4-7\n");
        assert!(matches!(placement(&pods[0]), Placement::Own(_)), "no other pod has it");
        write(&format!("{}/main", pods[1]), "0-1,4-7\n");
        write(&format!("{}/main", pods[2]), "2-3\n");
        let pool = Placement::Pool("0-1,4-7".parse().unwrap());
        assert_eq!((placement(&pods[0]), placement(&pods[1])), (pool.clone(), pool));
        let Placement::Own(why) = placement(&pods[2]) else { panic!("it has cores of its own") };
        assert!(why.contains("the cores 2-3 of the node's 0-7"), "{why}");
        write(&format!("{}/main", pods[2]), "3-4\n");
        assert!(matches!(placement(&pods[0]), Placement::Own(_)), "another pod has one of them");
        write(&format!("{}/main", pods[0]), "0-7\n");
        for monitor in ["crio-conmon-0f", "crio-conmon-0f.scope"] {
            write(&format!("{}/{monitor}", pods[0]), "0\n");
        }
        assert_eq!(placement(&pods[0]), Placement::Everywhere, "a monitor is not a container");
    }

    #[test]
    fn a_pod_has_started_once_two_of_its_containers_have_processes() {
        let tree = tempfile::tempdir().unwrap();
        let roots = Roots::under(tree.path());
        let write = |name: &str, populated: u8| {
            let place = roots.sys.join("fs/cgroup/pod").join(name);
            std::fs::create_dir_all(&place).unwrap();
            let events = format!("populated {populated}\nfrozen 0\n");
            std::fs::write(place.join("cgroup.events"), events).unwrap();
            std::fs::write(roots.sys.join("fs/cgroup/cgroup.procs"), "").unwrap();
        };
        let has_started = || Hierarchy::read(&roots).has_started(Path::new("pod"));
        assert!(!has_started(), "it has no cgroup yet");
        write("sandbox", 1);
        write("crio-conmon-0f", 1);
        write("main", 0);
        assert!(!has_started());
        write("main", 1);
        assert!(has_started());
    }

    #[test]
    fn without_the_controller_the_cores_of_the_machine_count() {
        let tree = tempfile::tempdir().unwrap();
        let roots = Roots::under(tree.path());
        let own = || {
            let set = Some("1".parse().unwrap());
            Hierarchy::read(&roots).smaller_cpusets(Path::new("a"), set).len()
        };
        assert_eq!(own(), 0, "the cores of the machine are not known");
        std::fs::create_dir_all(roots.sys.join("devices/system/cpu")).unwrap();
        std::fs::write(roots.sys.join("devices/system/cpu/online"), "0-1\n").unwrap();
        assert_eq!(own(), 1);
    }
}
