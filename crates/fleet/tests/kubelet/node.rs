//! containerd and a kubelet, and what they leave behind.

use super::control::ControlPlane;
use super::image;
use crate::cluster::server::{Process, built, free_ports, installed, of_nri, spawn, tail};
use crate::wait_until;
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use kube::Api;
use kube::api::PostParams;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The node's name.
pub(crate) const NAME: &str = "whole-node-of-the-test";
/// Settings of the kernel that a kubelet changes.
const SETTINGS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// The programs of the node.
pub(crate) struct NodePrograms {
    containerd: PathBuf,
    ctr: PathBuf,
    kubelet: PathBuf,
    runc: PathBuf,
    pause: PathBuf,
}

impl NodePrograms {
    /// Finds them.
    ///
    /// # Errors
    /// The missing part.
    pub(crate) fn find() -> Result<Self, String> {
        if is_node() {
            return Err("this machine has a kubelet of its own".to_owned());
        }
        built("containerd-2.4.2/bin/containerd-shim-runc-v2")?;
        // A guest does not have the sources by which the cache names it.
        let named = std::env::var_os("LULL_FLEET_PAUSE");
        Ok(Self {
            containerd: built("containerd-2.4.2/bin/containerd")?,
            ctr: built("containerd-2.4.2/bin/ctr")?,
            kubelet: built("kubernetes-1.34.2/bin/kubelet")?,
            runc: installed("runc")?,
            pause: named.map_or_else(|| of_nri("pause"), |path| Ok(PathBuf::from(path)))?,
        })
    }
}

/// A node whose kubelet runs.
pub(crate) struct Node {
    programs: NodePrograms,
    place: PathBuf,
    containerd: Option<Process>,
    kubelet: Option<Process>,
    /// The UIDs of its pods.
    uids: RefCell<Vec<String>>,
    /// Settings of the kernel as they were.
    settings: Vec<(PathBuf, String)>,
}

impl Node {
    pub(crate) fn start(server: &ControlPlane, programs: NodePrograms) -> Self {
        let place = server.place.path().join("node");
        std::fs::create_dir_all(&place).unwrap();
        let settings = SETTINGS.iter().filter_map(|name| {
            let path = Path::new("/proc/sys").join(name);
            Some((path.clone(), std::fs::read_to_string(path).ok()?))
        });
        let settings = settings.collect();
        let (containerd, kubelet, uids) = (None, None, RefCell::default());
        let mut node = Self { programs, place, containerd, kubelet, uids, settings };
        node.run_containerd();
        node.run_kubelet(server);
        node
    }

    /// Where the runtime waits for plug-ins.
    pub(crate) fn nri_socket(&self) -> PathBuf {
        self.place.join("nri.sock")
    }

    fn file(&self, name: &str) -> String {
        self.place.join(name).display().to_string()
    }

    fn run_containerd(&mut self) {
        let config = format!(
            r#"
version = 3
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
address = "{socket}"
[ttrpc]
address = "{socket}.ttrpc"
[plugins.'io.containerd.cri.v1.images']
snapshotter = "native"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{image}"
[plugins.'io.containerd.cri.v1.runtime']
disable_apparmor = true
# As far as this process may lower it.
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = {by_systemd}
[plugins.'io.containerd.nri.v1.nri']
disable = false
socket_path = "{nri}"
# Emulation is slow.
plugin_request_timeout = "30s"
plugin_registration_timeout = "60s"
plugin_path = "{place}/plug-ins"
plugin_config_path = "{place}/plug-ins"
"#,
            root = self.file("root"),
            state = self.file("state"),
            socket = self.file("containerd.sock"),
            image = image::NAME,
            runc = self.programs.runc.display(),
            by_systemd = is_by_systemd(),
            nri = self.nri_socket().display(),
            place = self.place.display(),
        );
        std::fs::write(self.place.join("containerd.toml"), config).unwrap();
        let mut containerd = Command::new(&self.programs.containerd);
        containerd.args(["--config", &self.file("containerd.toml")]);
        let shims = self.programs.containerd.parent().unwrap();
        let path = std::env::var("PATH").unwrap();
        containerd.env("PATH", format!("{}:{path}", shims.display()));
        self.containerd = Some(spawn(&mut containerd, &self.place.join("containerd.log"), &[]));
        let archive = image::write(&self.programs.pause, &self.place);
        let what = format!("containerd takes an image: {}", self.file("containerd.log"));
        wait_until(&what, || self.ctr(&["images", "import", &archive.display().to_string()]));
    }

    fn ctr(&self, arguments: &[&str]) -> bool {
        let mut ctr = Command::new(&self.programs.ctr);
        ctr.args(["--address", &self.file("containerd.sock"), "--namespace", "k8s.io"]);
        ctr.args(arguments).output().is_ok_and(|output| output.status.success())
    }

    fn run_kubelet(&mut self, server: &ControlPlane) {
        let [port, ..] = free_ports();
        // JSON is YAML, too. What is nearly full here is no reason to evict a pod.
        let none = "0%";
        let driver = if is_by_systemd() { "systemd" } else { "cgroupfs" };
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": "127.0.0.1", "port": port, "healthzPort": 0,
            "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
            "authorization": { "mode": "AlwaysAllow" },
            "cgroupDriver": driver, "enforceNodeAllocatable": ["none"],
            "containerRuntimeEndpoint": format!("unix://{}", self.file("containerd.sock")),
            "cpuManagerPolicy": "static", "cpuManagerReconcilePeriod": "1s",
            "reservedSystemCPUs": "0",
            "evictionHard": {
                "memory.available": none, "nodefs.available": none, "nodefs.inodesFree": none,
                "imagefs.available": none, "imagefs.inodesFree": none,
            },
            "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
            "failSwapOn": false, "failCgroupV1": false, "makeIPTablesUtilChains": false,
            "podLogsDir": self.file("logs"), "resolvConf": "", "syncFrequency": "1s",
        });
        std::fs::write(self.place.join("kubelet.json"), config.to_string()).unwrap();
        let mut kubelet = Command::new(&self.programs.kubelet);
        kubelet.args(["--config", &self.file("kubelet.json")]);
        kubelet.args(["--root-dir", &self.file("kubelet")]);
        kubelet.args(["--cert-dir", &self.file("certificates")]);
        kubelet.args(["--hostname-override", NAME]);
        kubelet.arg("--kubeconfig").arg(&server.kubeconfig);
        let log = self.place.join("kubelet.log");
        self.kubelet = Some(spawn(&mut kubelet, &log, &[]));
        let nodes = Api::<NodeObject>::all(server.client());
        wait_until(&format!("the kubelet registers its node: {}", log.display()), || {
            server.runtime.block_on(nodes.get(NAME)).is_ok()
        });
    }

    /// Creates a pod with one container in the network of the host, whose label `app` is what its
    /// name begins with; with whole CPUs of its own if they are given.
    pub(crate) fn create(&self, server: &ControlPlane, name: &str, cpus: Option<&str>) {
        let app = name.split('-').next().unwrap_or_default();
        let resources = cpus.map(|cpus| json!({ "limits": { "cpu": cpus, "memory": "64Mi" } }));
        let pod = json!({
            "metadata": { "name": name, "labels": { "app": app } },
            "spec": {
                "nodeName": NAME, "hostNetwork": true, "automountServiceAccountToken": false,
                "enableServiceLinks": false, "terminationGracePeriodSeconds": 1,
                "tolerations": [{ "operator": "Exists" }],
                "containers": [{
                    "name": "main", "image": image::NAME, "imagePullPolicy": "Never",
                    "resources": resources.unwrap_or_else(|| json!({})),
                }],
            },
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let made = pods(server);
        let made = server.runtime.block_on(made.create(&PostParams::default(), &pod)).unwrap();
        self.uids.borrow_mut().extend(made.metadata.uid);
    }

    /// The process of the container of a pod, as the cgroup of version 2 has it.
    pub(crate) fn process(&self, server: &ControlPlane, name: &str) -> Option<i32> {
        let pod = server.runtime.block_on(pods(server).get(name)).ok()?;
        let uid = pod.metadata.uid?;
        let status = pod.status?.container_statuses?.pop()?;
        let id = status.container_id?.strip_prefix("containerd://")?.to_owned();
        let class = pod.spec.and_then(|spec| spec.containers.into_iter().next());
        let is_guaranteed =
            class.and_then(|one| one.resources).is_some_and(|it| it.limits.is_some());
        let class = (!is_guaranteed).then_some("besteffort");
        let cgroup = hierarchy().join(cgroup_of(class, &uid, &id, is_by_systemd()));
        let processes = std::fs::read_to_string(cgroup.join("cgroup.procs")).ok()?;
        processes.lines().next()?.parse().ok()
    }

    /// The scheduling class of that process.
    pub(crate) fn class(&self, server: &ControlPlane, name: &str) -> Option<String> {
        let pid = self.process(server, name)?;
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The fields after the name begin with the third.
        let class = stat.rsplit(')').next()?.split_whitespace().nth(41 - 3)?;
        Some(class.to_owned())
    }

    /// Gives all threads of that process the usual class, as another program would.
    pub(crate) fn set_normal(&self, server: &ControlPlane, name: &str) {
        let pid = self.process(server, name).unwrap().to_string();
        let mut change = Command::new("chrt");
        let status = change.args(["--all-tasks", "--other", "--pid", "0", &pid]).status().unwrap();
        assert!(status.success(), "chrt: {status}");
    }

    /// Kills a process of a container.
    pub(crate) fn kill(&self, pid: i32) {
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }

    /// Ends the processes that containerd has started: they name its socket, or are in the cgroup
    /// of a pod of the test.
    fn end_processes(&self) {
        let socket = self.file("containerd.sock");
        let uids = self.uids.borrow();
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        for entry in all {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let read = |name: &str| std::fs::read_to_string(entry.path().join(name));
            let is_shim = read("cmdline").is_ok_and(|line| line.contains(&socket));
            let names = |text: String| uids.iter().any(|uid| text.contains(uid));
            let is_of_pod = read("cgroup").is_ok_and(names);
            if (is_shim || is_of_pod)
                && let Some(pid) = Pid::from_raw(pid)
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in ["containerd.log", "kubelet.log"] {
                eprintln!("{}", tail(&self.place.join(log)));
            }
        }
        self.kubelet = None;
        self.containerd = None;
        // A shim that has ended leaves the processes of its container to themselves.
        for _ in 0..3 {
            self.end_processes();
            std::thread::sleep(Duration::from_millis(300));
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mounts = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        for mount in mounts.filter(|mount| Path::new(mount).starts_with(&self.place)) {
            let _ = Command::new("umount").args(["--lazy", mount]).status();
        }
        if is_by_systemd() {
            let _ = Command::new("systemctl").args(["stop", "kubepods.slice"]).status();
        }
        let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        let hierarchies = hierarchies.map(|entry| entry.path());
        for hierarchy in hierarchies.chain(["/sys/fs/cgroup".into()]) {
            remove_cgroups(&hierarchy.join("kubepods"));
        }
        for (path, value) in &self.settings {
            let _ = std::fs::write(path, value);
        }
    }
}

/// How long a process has run.
pub(crate) fn age(pid: i32) -> Duration {
    let read = |file: String| std::fs::read_to_string(file).unwrap();
    let (stat, uptime) = (read(format!("/proc/{pid}/stat")), read("/proc/uptime".to_owned()));
    // The fields after the name begin with the third; times are in hundredths of a second.
    let started = stat.rsplit(')').next().unwrap().split_whitespace().nth(22 - 3).unwrap();
    let up_s: f64 = uptime.split_whitespace().next().unwrap().parse().unwrap();
    let age_s = up_s - started.parse::<f64>().unwrap() / 100.0;
    Duration::from_secs_f64(age_s.max(0.0))
}

/// Whether a kubelet runs.
fn is_node() -> bool {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let name = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("comm"));
    all.filter_map(|entry| name(entry).ok()).any(|name| name.trim() == "kubelet")
}

/// The cgroup of a container below the hierarchy, as the driver `systemd` or `cgroupfs` names it.
fn cgroup_of(class: Option<&str>, uid: &str, id: &str, is_by_systemd: bool) -> PathBuf {
    if !is_by_systemd {
        let class = class.unwrap_or_default();
        return Path::new("kubepods").join(class).join(format!("pod{uid}")).join(id);
    }
    let within = class.map_or_else(String::new, |class| format!("-{class}"));
    let top = PathBuf::from("kubepods.slice");
    let of_class =
        class.map_or_else(|| top.clone(), |_| top.join(format!("kubepods{within}.slice")));
    let pod = format!("kubepods{within}-pod{}.slice", uid.replace('-', "_"));
    of_class.join(pod).join(format!("cri-containerd-{id}.scope"))
}

/// Whether systemd makes the cgroups of pods: where it is the first process and version 2 of
/// cgroups is alone, as nodes are set up.
fn is_by_systemd() -> bool {
    Path::new("/run/systemd/system").exists() && hierarchy() == Path::new("/sys/fs/cgroup")
}

/// Removes a cgroup and those below it, if they are empty.
fn remove_cgroups(place: &Path) {
    let below = std::fs::read_dir(place).into_iter().flatten().flatten();
    let directories = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.for_each(|entry| remove_cgroups(&entry.path()));
    let _ = std::fs::remove_dir(place);
}

/// Where the hierarchy of version 2 is mounted.
fn hierarchy() -> PathBuf {
    let alone = Path::new("/sys/fs/cgroup");
    if alone.join("cgroup.procs").exists() { alone.to_owned() } else { alone.join("unified") }
}

fn pods(server: &ControlPlane) -> Api<Pod> {
    Api::namespaced(server.client(), "default")
}
