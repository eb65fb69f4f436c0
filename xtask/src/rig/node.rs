//! The additional parts of the machine with a kubelet: an API server outside of the guest, and a
//! disk with containerd, the kubelet, the agent and the test.
//!
//! An API server beside a kubelet is too slow under emulation. QEMU's user networking leads from
//! the guest to the loopback addresses of this machine.

use crate::command::done;
use crate::kubernetes;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The test of `crates/fleet/tests/kubelet.rs` that is an API server.
const SERVER: &str = "an_api_server_serves_a_guest_until_standard_input_ends";
/// The first start of an API server makes keys and all resources.
const START: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(100);
/// Room for the programs; the image is sparse.
const SIZE: &str = "800M";

/// The programs that are built for that machine.
pub(super) struct NodePrograms {
    /// The test, which starts all others.
    tests: PathBuf,
    lull: PathBuf,
    /// containerd with its programs, the kubelet and the program of containers, all in the cache.
    of_runtime: Vec<PathBuf>,
}

impl NodePrograms {
    /// Builds test and program with `build`, and other programs unless the cache has them.
    pub(super) fn build(
        root: &Path,
        place: &Path,
        build: impl Fn(&[&str]) -> Result<PathBuf>,
    ) -> Result<Self> {
        let mut of_runtime = kubernetes::provide_node()?;
        of_runtime.extend(kubernetes::provide_server(root)?.pop());
        let tests = build(&["test", "--package", "lull-fleet", "--test", "kubelet", "--no-run"])?;
        let built = build(&["build", "--package", "lull-cli", "--bin", "lull", "-F", "fleet"])?;
        // Other machines have the program without that feature, which is built to the same place.
        std::fs::create_dir_all(place)?;
        let lull = place.join("lull");
        std::fs::copy(built, &lull)?;
        Ok(Self { tests, lull, of_runtime })
    }

    /// Starts the API server and writes the disk, whose kubeconfig names that server.
    pub(super) fn start(&self, place: &Path) -> Result<Node> {
        let server = ApiServer::start(self, place)?;
        let root = place.join("node");
        if root.exists() {
            std::fs::remove_dir_all(&root)?;
        }
        for program in &self.of_runtime {
            let within = program.strip_prefix(xtask::cache())?;
            add(program, &root.join("cache").join(within))?;
        }
        add(self.of_runtime.last().context("no program of containers")?, &root.join("pause"))?;
        add(&self.tests, &root.join("tests"))?;
        add(&self.lull, &root.join("lull"))?;
        add(&server.kubeconfig, &root.join("kubeconfig"))?;
        let disk = place.join("node.ext4");
        if disk.exists() {
            std::fs::remove_file(&disk)?;
        }
        let mut format = Command::new("mke2fs");
        format.args(["-q", "-t", "ext4", "-d"]).args([&root, &disk]).arg(SIZE);
        done(&mut format)?;
        std::fs::remove_dir_all(root)?;
        Ok(Node { disk, _server: server })
    }
}

fn add(file: &Path, to: &Path) -> Result<()> {
    let place = to.parent().context("a file has a directory")?;
    std::fs::create_dir_all(place)?;
    std::fs::copy(file, to).with_context(|| format!("cannot copy {}", file.display()))?;
    Ok(())
}

/// A disk with programs, and the API server for which they are set up.
pub(super) struct Node {
    pub(super) disk: PathBuf,
    _server: ApiServer,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.disk);
    }
}

/// The test that runs an API server until its standard input ends.
struct ApiServer {
    child: Child,
    kubeconfig: PathBuf,
}

impl ApiServer {
    fn start(programs: &NodePrograms, place: &Path) -> Result<Self> {
        let kubeconfig = place.join("kubeconfig");
        // The file may be that of an earlier server.
        let _ = std::fs::remove_file(&kubeconfig);
        let mut test = Command::new(&programs.tests);
        test.args(["--exact", SERVER, "--nocapture"]).stdin(Stdio::piped());
        test.env("LULL_FLEET_SERVE", place).env("LULL_PROGRAM", &programs.lull);
        let child = test.spawn().context("cannot start the API server's test")?;
        let mut server = Self { child, kubeconfig };
        let begun = Instant::now();
        while !server.kubeconfig.exists() {
            if let Some(status) = server.child.try_wait()? {
                bail!("the test that starts an API server ended early: {status}");
            }
            if begun.elapsed() > START {
                bail!("no API server within {} s", START.as_secs());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(server)
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        // The end of its input ends the test, which ends its server.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
