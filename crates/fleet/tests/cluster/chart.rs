//! The chart as `helm template` renders it, without an API server.

use super::server;
use lull_agent::config::Config;
use lull_measure::Nanos;
use std::path::Path;
use std::process::{Command, Stdio};

/// Settings with which the receiver of OTLP is open.
const OTLP: &str = "otlp.enabled=true,otlp.secret=lull-otlp";
/// The receiver behind a Service, and not at the address of the node.
const SERVICE: &str = "otlp.service.enabled=true,otlp.hostPort=false";

/// Renders the chart with the values of the cluster test and these settings.
///
/// # Errors
/// What helm says.
fn render(helm: &Path, settings: &[&str]) -> Result<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(helm);
    command.args(["template", "lull"]).arg(root.join("packaging/helm/lull"));
    // A helm that was built as a library claims to know an old Kubernetes only.
    command.args(["--namespace", "monitors", "--kube-version", "1.34.0", "--values"]);
    command.arg(root.join("crates/fleet/tests/cluster/values.yaml"));
    for setting in settings {
        command.args(["--set", setting]);
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    output.status.success().then(|| text(&output.stdout)).ok_or_else(|| text(&output.stderr))
}

/// The manifest of a kind.
fn manifest<'a>(rendered: &'a str, kind: &str) -> Option<&'a str> {
    let kind = format!("\nkind: {kind}\n");
    rendered.split("\n---\n").find(|one| one.contains(&kind))
}

/// The config in the manifests, as the agent reads it.
fn config(rendered: &str) -> Config {
    let map = manifest(rendered, "ConfigMap").unwrap();
    let (_, text) = map.split_once("  lull.toml: |\n").unwrap();
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("lull.toml");
    std::fs::write(&file, lines.join("\n")).unwrap();
    Config::load(&file).unwrap()
}

#[test]
fn the_port_of_the_receiver_is_open_only_where_it_is_enabled() {
    let helm = match server::helm() {
        Ok(helm) => helm,
        Err(why) => return lull_testing::skip(&why),
    };
    let closed = render(&helm, &["otlp.service.enabled=true"]).unwrap();
    assert_eq!(manifest(&closed, "Service"), None, "no receiver, no Service");
    let policy = manifest(&closed, "NetworkPolicy").unwrap();
    assert!(policy.contains("port: page") && !policy.contains("port: otlp"), "{policy}");
    assert!(!manifest(&closed, "DaemonSet").unwrap().contains("name: otlp"));
    let open = render(&helm, &[OTLP]).unwrap();
    assert_eq!(manifest(&open, "Service"), None, "a Service only if it is requested");
    let policy = manifest(&open, "NetworkPolicy").unwrap();
    let (ingress, _) = policy.split_once("egress:").unwrap();
    assert_eq!(ingress.matches("port: otlp").count(), 1, "{policy}");
    assert_eq!(ingress.matches("port:").count(), 2, "the page and the receiver: {policy}");
    let set = manifest(&open, "DaemonSet").unwrap();
    assert!(set.contains("containerPort: 4318, hostPort: 4318"), "{set}");
    assert!(config(&open).agent.otlp.is_some());
}

#[test]
fn an_agent_that_only_watches_has_long_epochs_unless_others_are_set() {
    let helm = match server::helm() {
        Ok(helm) => helm,
        Err(why) => return lull_testing::skip(&why),
    };
    let epoch = |own: &str| config(&render(&helm, &[OTLP, own]).unwrap()).agent.epoch;
    assert_eq!(epoch("policy=unmanaged"), Some(Nanos::from_secs(2)));
    assert_eq!(epoch("policy=tide"), None);
    assert_eq!(epoch("extraAgentConfig=epoch = \"100ms\""), Some(Nanos::from_millis(100)));
}

#[test]
fn the_socket_of_the_runtime_is_mounted_only_where_it_is_named() {
    let helm = match server::helm() {
        Ok(helm) => helm,
        Err(why) => return lull_testing::skip(&why),
    };
    let with = render(&helm, &[OTLP, "kubernetes.nri=/run/other/nri.sock"]).unwrap();
    let set = manifest(&with, "DaemonSet").unwrap();
    assert!(set.contains("{ name: nri, mountPath: \"/run/other\", readOnly: true }"), "{set}");
    assert!(set.contains("hostPath: { path: \"/run/other\", type: DirectoryOrCreate }"), "{set}");
    let socket = config(&with).kubernetes.nri;
    assert_eq!(socket.as_deref(), Some(Path::new("/run/other/nri.sock")));
    let without = render(&helm, &[OTLP, "kubernetes.nri=null"]).unwrap();
    assert!(!manifest(&without, "DaemonSet").unwrap().contains("nri"), "{without}");
    assert_eq!(config(&without).kubernetes.nri, None);
    let relative = render(&helm, &[OTLP, "kubernetes.nri=nri.sock"]);
    assert!(relative.is_err(), "the schema wants a path");
}

#[test]
fn values_of_an_older_release_keep_the_port_of_the_node_open() {
    let helm = match server::helm() {
        Ok(helm) => helm,
        Err(why) => return lull_testing::skip(&why),
    };
    // `--reuse-values` has no keys that are new; null removes those of values.yaml.
    let old = render(&helm, &[OTLP, "otlp.service=null,otlp.hostPort=null"]).unwrap();
    assert_eq!(manifest(&old, "Service"), None);
    let set = manifest(&old, "DaemonSet").unwrap();
    assert!(set.contains("containerPort: 4318, hostPort: 4318"), "{set}");
    assert_eq!(config(&old).agent.http_names, ["page.example"], "as in the values of the test");
    // The Service with such values.
    let own = "extraAgentConfig=null";
    assert!(manifest(&render(&helm, &[OTLP, SERVICE, own]).unwrap(), "Service").is_some());
}

#[test]
fn a_service_leads_to_the_receiver_of_the_same_node_under_names_that_it_accepts() {
    let helm = match server::helm() {
        Ok(helm) => helm,
        Err(why) => return lull_testing::skip(&why),
    };
    let names = "httpNames={page.example}";
    let own = "extraAgentConfig=export_period = \"20s\"";
    let rendered = render(&helm, &[OTLP, SERVICE, names, own]).unwrap();
    let service = manifest(&rendered, "Service").unwrap();
    for part in [
        "name: lull-otlp",
        "namespace: monitors",
        "internalTrafficPolicy: Local",
        "{ name: otlp, port: 4318, targetPort: otlp, protocol: TCP }",
        "app.kubernetes.io/instance: lull",
    ] {
        assert!(service.contains(part), "{part}: {service}");
    }
    let set = manifest(&rendered, "DaemonSet").unwrap();
    assert!(set.contains("{ name: otlp, containerPort: 4318 }"), "no port of the node: {set}");
    let service = "lull-otlp.monitors.svc";
    let names = ["page.example", service, &format!("{service}.cluster.local")];
    let config = config(&rendered);
    assert_eq!(config.agent.http_names, names);
    let twice = render(&helm, &[OTLP, SERVICE, "extraAgentConfig=http_names = [\"a\"]"]);
    assert!(twice.unwrap_err().contains("write these names into httpNames"));
    let wrong = render(&helm, &["otlp.service.type=NodePort"]);
    assert!(wrong.is_err(), "the schema knows what a Service has");
    let secretless = render(&helm, &["otlp.enabled=true"]);
    assert!(secretless.is_err(), "without certificate and token it would not serve");
}
