//! The agent with the config of the chart, read by its metrics and its journal.

use super::node;
use super::runtime;
use super::server::{END, Process, Server, tail};
use crate::{wait_or, wait_until};
use lull_measure::push::{LatencyWindow, Message};
use lull_measure::{Latency, Nanos};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Instant, SystemTime};

/// A running agent.
pub(crate) struct RunningAgent {
    child: Child,
    page: SocketAddr,
    otlp: SocketAddr,
    /// For pushed latency.
    socket: PathBuf,
    log: PathBuf,
    begun: Instant,
}

/// The usage of a process so far.
pub(crate) struct Usage {
    pub(crate) cpu_s: f64,
    pub(crate) resident_mb: f64,
    /// Of these, what is of no file: the rest are pages of the program, which processes share.
    pub(crate) own_mb: f64,
    /// The same with its part of each page that it shares.
    pub(crate) proportional_mb: f64,
}

impl Usage {
    /// Reads it, with the name of the process; `None` if it has ended.
    fn read(pid: u32) -> Option<(String, Self)> {
        let file = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
        let stat = file("stat")?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
        let (status, shares) = (file("status")?, file("smaps_rollup")?);
        let megabytes = |text: &str, name: &str| {
            let size = text.lines().find_map(|line| line.strip_prefix(name))?;
            let kb: f64 = size.split_whitespace().next()?.parse().ok()?;
            Some(kb / 1e3)
        };
        let used = Self {
            cpu_s: (ticks(11)? + ticks(12)?) / 100.0,
            resident_mb: megabytes(&status, "VmRSS:")?,
            own_mb: megabytes(&status, "RssAnon:")?,
            proportional_mb: megabytes(&shares, "Pss:")?,
        };
        Some((file("comm")?.trim().to_owned(), used))
    }
}

impl RunningAgent {
    pub(crate) fn start(server: &Server) -> Self {
        let place = server.place.path();
        let page = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let own = |name: &str| place.join(name).display().to_string();
        let config = server.config();
        let otlp = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = config.replace("0.0.0.0:7077", &page.to_string());
        let config = config.replace("[agent]\n", &format!("[agent]\notlp = \"{otlp}\"\n"));
        let config = config.replace("/var/run/nri/nri.sock", &runtime::socket(server));
        let config = config.replace("/run/lull", &own("state"));
        let config = config.replace("/var/lib/lull/runs", &own("runs"));
        let path = place.join("lull.toml");
        std::fs::write(&path, config).unwrap();
        let log = place.join("agent.log");
        let output = File::create(&log).unwrap();
        let child = command(server, &path)
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let socket = place.join("state/push.sock");
        let agent = Self { child, page, otlp, socket, log, begun: Instant::now() };
        wait_until("the agent serves its page", || agent.get("/healthz").contains(" 200 "));
        agent
    }

    /// Starts another agent of the node, which must be refused: with the state directory of this
    /// one, and with one of its own.
    pub(crate) fn a_second_one_is_refused(&self, server: &Server) {
        self.is_refused(server, "state");
        self.is_refused(server, "other-state");
    }

    /// Starts an agent with this state directory. Its page and its receiver have ports of their
    /// own, as those of another pod have.
    fn is_refused(&self, server: &Server, state: &str) {
        let place = server.place.path();
        let mut config = std::fs::read_to_string(place.join("lull.toml")).unwrap();
        let own = |name: &str| format!("state = \"{}\"", place.join(name).display());
        config = config.replace(&own("state"), &own(state));
        for address in [self.page, self.otlp] {
            let other = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            config = config.replace(&address.to_string(), &other.to_string());
        }
        let path = place.join("second.toml");
        std::fs::write(&path, config).unwrap();
        let log = place.join("second.log");
        let output = File::create(&log).unwrap();
        let second = command(server, &path).stdout(Stdio::null()).stderr(output).spawn().unwrap();
        let mut second = Process(second);
        let written = || std::fs::read_to_string(&log).unwrap();
        let what = || format!("the second agent has ended: {}", written());
        wait_or(what, || second.0.try_wait().unwrap().is_some());
        let (status, text) = (second.0.wait().unwrap(), written());
        assert_eq!(status.code(), Some(1), "{text}");
        assert!(text.contains("another agent already controls the pods of this node"), "{text}");
    }

    fn get(&self, path: &str) -> String {
        let Ok(mut stream) = TcpStream::connect(self.page) else { return String::new() };
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.page);
        let mut answer = String::new();
        let written = stream.write_all(request.as_bytes());
        let _ = written.and_then(|()| stream.read_to_string(&mut answer));
        answer
    }

    fn metric(&self, name: &str) -> Option<f64> {
        let text = self.get("/metrics");
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
        lines.next()?.split_whitespace().next()?.parse().ok()
    }

    /// Apps that have a process.
    pub(crate) fn present(&self) -> usize {
        let text = self.get("/metrics");
        let is_present = |line: &&str| line.starts_with("lull_present{") && line.ends_with(" 1");
        text.lines().filter(is_present).count()
    }

    pub(crate) fn wait_for_present(&self, count: usize) {
        let what = || format!("{count} pods, and there are {}", self.present());
        wait_or(what, || self.present() == count);
    }

    pub(crate) fn wait_for_metric(&self, name: &str, value: f64) {
        wait_until(&format!("{name} is {value}"), || {
            self.metric(name).is_some_and(|now| (now - value).abs() < 1e-9)
        });
    }

    /// Waits until so many more epochs have passed.
    pub(crate) fn wait_for_epochs(&self, count: usize) {
        let mut seen = 0;
        let mut last = None;
        wait_until(&format!("{count} more epochs"), || {
            let now = self.metric("lull_epoch_seconds");
            seen += usize::from(now.is_some() && now != last);
            last = now;
            seen > count
        });
    }

    /// Waits until a metric is there and above zero, after `each` was called once more.
    pub(crate) fn wait_for_growth(&self, name: &str, mut each: impl FnMut()) {
        wait_until(&format!("{name} is above zero"), || {
            each();
            self.metric(name).is_some_and(|now| now > 0.0)
        });
    }

    /// Pushes requests of the last tenth of a second for an app, which took 7 ms.
    pub(crate) fn push(&self, app: &str, requests: u64) {
        let length_ns = Nanos::from_millis(100);
        let mut histogram = Latency::default();
        histogram.record_many(Nanos::from_millis(7), requests);
        let mut line = Vec::new();
        let window = LatencyWindow {
            app: app.to_owned(),
            start_ns: lull_host::monotonic().saturating_sub(length_ns),
            length_ns,
            due: requests,
            sent: requests,
            completed: requests,
            histogram,
            ..LatencyWindow::default()
        };
        Message::Latency(Box::new(window)).encode(&mut line).unwrap();
        UnixStream::connect(&self.socket).unwrap().write_all(&line).unwrap();
    }

    /// Exports a histogram of a pod by OTLP, as JSON, with this many requests since its start.
    pub(crate) fn export(&self, pod_uid: &str, requests: u64) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let point = json!({
            "startTimeUnixNano": "1700000000000000000",
            "timeUnixNano": now.as_nanos().to_string(),
            "count": requests, "bucketCounts": [requests, 0], "explicitBounds": [0.01],
        });
        let text = |text: &str| json!({ "stringValue": text });
        let export = json!({ "resourceMetrics": [{
            "resource": { "attributes": [{ "key": "k8s.pod.uid", "value": text(pod_uid) }] },
            "scopeMetrics": [{ "metrics": [{
                "name": "http.server.request.duration", "unit": "s",
                "histogram": { "aggregationTemporality": 2, "dataPoints": [point] },
            }] }],
        }] });
        let body = export.to_string();
        let mut stream = TcpStream::connect(self.otlp).unwrap();
        let head = format!(
            "POST /v1/metrics HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            self.otlp,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("{}"), "{answer}");
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn assert_printed(&self, text: &str) {
        self.wait_until_printed(text);
    }

    pub(crate) fn wait_until_printed(&self, text: &str) {
        wait_until(&format!("`{text}` in {}", self.log.display()), || self.log().contains(text));
    }

    /// Describes the usage of the agent's processes.
    pub(crate) fn costs(&self) -> String {
        let all = self.usage().into_iter().map(|(name, Usage { cpu_s, resident_mb, .. })| {
            format!("{name} used {cpu_s:.2} s and has {resident_mb:.1} MB")
        });
        let run_s = self.begun.elapsed().as_secs_f64();
        format!("in {run_s:.0} s {}", all.collect::<Vec<_>>().join(", "))
    }

    /// Returns the usage of the agent and the processes that it has started, by their names.
    pub(crate) fn usage(&self) -> BTreeMap<String, Usage> {
        let pid = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
        children.chain([pid]).filter_map(Usage::read).collect()
    }

    /// Ends the agent, which must end well.
    pub(crate) fn stop(mut self) {
        let pid = rustix::process::Pid::from_raw(self.child.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let begun = Instant::now();
        wait_until("the agent ends", || {
            assert!(begun.elapsed() < END, "{}", self.log());
            self.child.try_wait().unwrap().is_some()
        });
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
    }
}

/// An agent of the node with a config, not started yet.
fn command(server: &Server, config: &Path) -> Command {
    let mut command = Command::new(&server.programs.lull);
    command.arg("run").arg(config).arg("--dry-run");
    // A test that runs in a pod is not a client of its cluster.
    command.env_remove("KUBERNETES_SERVICE_HOST");
    command.env("KUBECONFIG", server.place.path().join("agent.yaml"));
    command.env("NODE_NAME", node::NAME).stdin(Stdio::null());
    command
}

impl Drop for RunningAgent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", tail(&self.log));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
