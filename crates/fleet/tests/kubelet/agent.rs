//! The agent of the node, which steers.

use super::control::ControlPlane;
use super::node::{self, Node};
use crate::cluster::server::{Process, tail};
use crate::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A running agent.
pub(crate) struct SteeringAgent {
    process: Process,
    log: PathBuf,
}

impl SteeringAgent {
    pub(crate) fn start(server: &ControlPlane, node: &Node) -> Self {
        let place = server.place.path();
        let config = place.join("lull.toml");
        let (state, record) = (place.join("state"), place.join("runs"));
        let text = format!(
            r#"
[agent]
discover = "kubernetes"
state = "{}"
record = "{}"

[kubernetes]
nri = "{}"

[policy]
name = "tide"

[[match]]
name = "critical"
class = "latency-critical"
pods = "app=critical"
objectives = [{{ memory_pressure = "50%" }}]
most = 1

[[match]]
name = "batch"
class = "best-effort"
pods = "app=batch"
most = 5
"#,
            state.display(),
            record.display(),
            node.nri_socket().display(),
        );
        std::fs::write(&config, text).unwrap();
        let log = place.join("agent.log");
        let output = File::create(&log).unwrap();
        // As the chart starts it: root with these capabilities, and no way to more.
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", &capabilities_of_chart(), "--no-new-privs"]);
        command.arg(&server.lull).arg("run").arg(&config).stdin(Stdio::null());
        command.env_remove("KUBERNETES_SERVICE_HOST").env("NODE_NAME", node::NAME);
        command.env("KUBECONFIG", &server.kubeconfig);
        command.stdout(output.try_clone().unwrap()).stderr(output);
        Self { process: Process(command.spawn().unwrap()), log }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn wait_until_printed(&self, text: &str) {
        wait_until(&format!("`{text}` in {}", self.log.display()), || self.has_printed(text));
    }

    pub(crate) fn has_printed(&self, text: &str) -> bool {
        self.log().contains(text)
    }

    /// Ends the agent, which restores every knob.
    pub(crate) fn stop(mut self) {
        let pid = Pid::from_raw(self.process.0.id().cast_signed()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        wait_until("the agent ends", || self.process.0.try_wait().unwrap().is_some());
        let status = self.process.0.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
    }
}

/// The capabilities that the chart gives to an agent that steers, as `setpriv` takes them.
fn capabilities_of_chart() -> String {
    let values = include_str!("../../../../packaging/helm/lull/values.yaml");
    let each = |key: &str| {
        let (_, rest) = values.split_once(&format!("\n  {key}: [")).unwrap();
        let (names, _) = rest.split_once(']').unwrap();
        names.split(", ").map(|name| format!(",+{}", name.to_lowercase()))
    };
    let all = ["reading", "steering"].into_iter().flat_map(each);
    all.fold("-all".to_owned(), |all, one| all + &one)
}

impl Drop for SteeringAgent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", tail(&self.log));
        }
    }
}
