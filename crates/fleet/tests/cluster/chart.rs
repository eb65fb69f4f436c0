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
/// helm's error.
fn render(helm: &Path, settings: &[&str]) -> Result<String, String> {
    render_for(helm, "1.34.0", settings)
}

/// The same for a version of Kubernetes.
fn render_for(helm: &Path, kubernetes: &str, settings: &[&str]) -> Result<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut command = Command::new(helm);
    command.args(["template", "lull"]).arg(root.join("packaging/helm/lull"));
    // A helm that was built as a library claims to know an old Kubernetes only.
    command.args(["--namespace", "monitors", "--kube-version", kubernetes, "--values"]);
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
fn files_that_the_config_names_come_by_volumes_that_the_agent_only_reads() {
    let helm = match server::helm() {
        Ok(helm) => helm,
        Err(why) => return lull_testing::skip(&why),
    };
    let rendered = render(&helm, &[]).unwrap();
    let set = manifest(&rendered, "DaemonSet").unwrap();
    let mount = r#"- {"mountPath":"/etc/lull-prometheus","name":"prometheus","readOnly":true}"#;
    let (container, pod) = set.split_once("\n      volumes:\n").unwrap();
    assert!(container.contains(mount), "{set}");
    let volume = "        - name: prometheus\n          secret:\n";
    assert!(pod.contains(volume) && pod.contains("secretName: lull-prometheus\n"), "{set}");
    let old = render(&helm, &["extraVolumes=null,extraVolumeMounts=null"]).unwrap();
    assert!(!manifest(&old, "DaemonSet").unwrap().contains("prometheus"), "{old}");
    for wrong in [
        "extraVolumeMounts[0].readOnly=false",
        "extraVolumeMounts[0].mountPath=lull-prometheus",
        "extraVolumes[0].name=",
    ] {
        assert!(render(&helm, &[wrong]).is_err(), "{wrong}");
    }
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

#[test]
fn an_agent_that_steers_may_write_below_sys_and_one_that_reads_may_not() {
    let helm = match server::helm() {
        Ok(helm) => helm,
        Err(why) => return lull_testing::skip(&why),
    };
    let annotation = "container.apparmor.security.beta.kubernetes.io/lull: unconfined";
    let field = "appArmorProfile: { type: Unconfined }";
    let cases = [
        ("1.34.0", "steering=true", false, true, "readOnly: false }"),
        ("1.30.1-gke.100", "steering=true", false, true, "readOnly: false }"),
        ("1.29.4", "steering=true", true, false, "readOnly: false }"),
        (
            "1.34.0",
            "steering=false",
            false,
            false,
            "readOnly: true, recursiveReadOnly: IfPossible }",
        ),
        ("1.29.4", "steering=false", false, false, "readOnly: true }"),
    ];
    for (kubernetes, steering, has_annotation, has_field, mount) in cases {
        let rendered = render_for(&helm, kubernetes, &[steering]).unwrap();
        let set = manifest(&rendered, "DaemonSet").unwrap();
        assert_eq!(set.contains(annotation), has_annotation, "{kubernetes} {steering}: {set}");
        assert_eq!(set.contains(field), has_field, "{kubernetes} {steering}: {set}");
        let mount = format!("{{ name: sys, mountPath: /sys, {mount}");
        assert!(set.contains(&mount), "{kubernetes} {steering}: {set}");
    }
}

#[test]
fn only_an_agent_in_the_network_of_the_node_may_change_its_network_cards() {
    let helm = match server::helm() {
        Ok(helm) => helm,
        Err(why) => return lull_testing::skip(&why),
    };
    let set = |settings: &[&str]| {
        let rendered = render(&helm, settings).unwrap();
        manifest(&rendered, "DaemonSet").unwrap().to_owned()
    };
    let own = set(&["steering=true"]);
    assert!(!own.contains("NET_ADMIN") && !own.contains("hostNetwork"), "{own}");
    let of_node = set(&["steering=true", "hostNetwork=true"]);
    let network = "      hostNetwork: true\n      dnsPolicy: ClusterFirstWithHostNet\n";
    assert!(of_node.contains("\"SYS_ADMIN\",\"NET_ADMIN\"]"), "{of_node}");
    assert!(of_node.contains(network), "{of_node}");
    let reading = set(&["hostNetwork=true"]);
    assert!(!reading.contains("NET_ADMIN") && reading.contains(network), "{reading}");
}

#[test]
fn the_service_account_has_these_rights_and_no_others() {
    let helm = match server::helm() {
        Ok(helm) => helm,
        Err(why) => return lull_testing::skip(&why),
    };
    let rendered = render(&helm, &[]).unwrap();
    let roles = rendered.split("\n---\n").filter(|one| one.contains("\nkind: ClusterRole\n"));
    let rules = roles.filter_map(|role| Some(role.split_once("\nrules:\n")?.1.trim_end()));
    let rules: Vec<&str> = rules.collect();
    let of_agent = r#"  - apiGroups: [""]
    resources: [pods]
    verbs: [list, watch]
  - apiGroups: [lull.dev]
    resources: [latencyobjectives]
    verbs: [list, watch]
  - apiGroups: [events.k8s.io]
    resources: [events]
    verbs: [create]"#;
    let of_owners = r#"  - apiGroups: [lull.dev]
    resources: [latencyobjectives]
    verbs: [get, list, watch, create, update, patch, delete]"#;
    assert_eq!(rules, [of_agent, of_owners]);
    assert!(!rendered.contains("kind: Role\n") && !rendered.contains("kind: RoleBinding\n"));
}

#[test]
fn a_prometheus_has_the_rules_of_the_packages_if_they_are_requested() {
    let helm = match server::helm() {
        Ok(helm) => helm,
        Err(why) => return lull_testing::skip(&why),
    };
    let settings = ["prometheusRule.enabled=true", "prometheusRule.labels.release=main"];
    let rendered = render(&helm, &settings).unwrap();
    let rule = manifest(&rendered, "PrometheusRule").unwrap();
    assert!(rule.contains("    release: main\n"), "{rule}");
    let (_, spec) = rule.split_once("\nspec:\n").unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rules = std::fs::read_to_string(root.join("packaging/prometheus/lull.rules.yaml")).unwrap();
    let shifted = spec.lines().map(|line| line.strip_prefix("  ").unwrap_or(line).trim_end());
    assert!(shifted.eq(rules.lines()), "{spec}");
    assert!(spec.contains("- alert: LullDiscoverySilent"), "{spec}");
    for settings in ["prometheusRule.enabled=false", "prometheusRule=null"] {
        assert_eq!(manifest(&render(&helm, &[settings]).unwrap(), "PrometheusRule"), None);
    }
}

#[test]
fn a_prometheus_scrapes_the_port_that_the_probes_and_the_policy_name() {
    let helm = match server::helm() {
        Ok(helm) => helm,
        Err(why) => return lull_testing::skip(&why),
    };
    let settings = ["podMonitor.enabled=true", "podMonitor.labels.release=main", "page.port=7078"];
    let rendered = render(&helm, &settings).unwrap();
    let monitor = manifest(&rendered, "PodMonitor").unwrap();
    for part in [
        "    release: main\n",
        "  scrapeClassicHistograms: true\n",
        "    - port: page\n      path: /metrics\n      interval: 15s\n",
        "      honorLabels: true\n",
        "targetLabel: instance }",
    ] {
        assert!(monitor.contains(part), "{part}: {monitor}");
    }
    let old = render(&helm, &[settings[0], "podMonitor.classicHistograms=null"]).unwrap();
    assert!(!old.contains("scrapeClassicHistograms"), "an operator that lacks it");
    let set = manifest(&rendered, "DaemonSet").unwrap();
    assert!(set.contains("{ name: page, containerPort: 7078 }"), "{set}");
    let probe = "Probe:\n            httpGet: { path: /healthz, port: page }\n";
    assert_eq!(set.matches(probe).count(), 3, "start, life and readiness: {set}");
    let policy = manifest(&rendered, "NetworkPolicy").unwrap();
    let (ingress, egress) = policy.split_once("  egress:\n").unwrap();
    assert!(ingress.contains("kubernetes.io/metadata.name: monitoring"), "{policy}");
    assert!(ingress.contains("ports: [{ port: page, protocol: TCP }]"), "{policy}");
    for port in ["443, protocol: TCP", "6443, protocol: TCP", "53, protocol: UDP"] {
        assert!(egress.contains(&format!("{{ port: {port} }}")), "{port}: {policy}");
    }
    assert!(egress.contains("port: 9090"), "the rules of `networkPolicy.egress`: {policy}");
    let none = render(&helm, &["networkPolicy.enabled=false"]).unwrap();
    assert_eq!(manifest(&none, "NetworkPolicy"), None);
    assert_eq!(manifest(&none, "PodMonitor"), None, "only if it is requested");
}
