//! The real Prometheus scrapes an agent.

mod needs_openssl;

use crate::http::serving;
use crate::runs::attached;
use crate::support::agent::Agent;
use crate::support::http::get;
use crate::support::record::{Record, epochs_so_far};
use crate::support::scene::Scene;
use crate::support::victim::Victim;
use crate::support::{free_port, wait_for};
use serde_json::Value;
use std::process::Command;

/// Starts a Prometheus that scrapes this address every 200 ms. Returns it and its address.
pub(crate) fn prometheus(scene: &Scene, target: &str) -> (Agent, String) {
    prometheus_with(scene, target, &[])
}

/// The same with further flags.
fn prometheus_with(scene: &Scene, target: &str, flags: &[&str]) -> (Agent, String) {
    let (mut agent, address) = start(scene, target, flags);
    agent.wait_for("Prometheus", || {
        std::net::TcpStream::connect(&address).is_ok() && get(&address, "/-/ready").status == 200
    });
    (agent, address)
}

/// The same, which may not be ready yet.
fn start(scene: &Scene, target: &str, flags: &[&str]) -> (Agent, String) {
    let config = scene.write(
        "prometheus.yml",
        &format!(
            "scrape_configs:\n  - job_name: lull\n    scrape_interval: 200ms\n    \
             scrape_timeout: 200ms\n    static_configs:\n      - targets: ['{target}']\n"
        ),
    );
    let address = format!("127.0.0.1:{}", free_port());
    let mut command = Command::new("prometheus");
    command.arg(format!("--config.file={}", config.display()));
    command.arg(format!("--storage.tsdb.path={}", scene.path("tsdb").display()));
    command.arg(format!("--web.listen-address={address}")).args(flags);
    (scene.start(command), address)
}

/// The result of an instant query.
fn query(address: &str, text: &str) -> Vec<Value> {
    let answer = get(address, &format!("/api/v1/query?query={text}"));
    let Ok(value) = serde_json::from_str::<Value>(&answer.body) else { return Vec::new() };
    value["data"]["result"].as_array().cloned().unwrap_or_default()
}

#[test]
fn prometheus_scrapes_every_metric_that_there_is() {
    let scene = Scene::new();
    let (agent, target) = serving(&scene, "arq", "");
    let (_prometheus, address) = prometheus(&scene, &target);
    wait_for("a scrape", || !query(&address, "lull_cpu_ratio").is_empty());
    let up = query(&address, "up%7Bjob%3D%22lull%22%7D");
    assert_eq!(up[0]["value"][1], "1", "{up:?}");
    let answer = get(&address, "/api/v1/targets?state=active");
    assert_eq!(answer.json()["data"]["activeTargets"][0]["lastError"], "", "{}", answer.body);
    let apps = query(&address, "lull_cpu_ratio");
    let apps: Vec<&str> = apps.iter().filter_map(|one| one["metric"]["app"].as_str()).collect();
    assert_eq!(apps, ["burner", "server"]);
    let text = get(&target, "/metrics").body;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    for name in lines.map(|line| line.split(['{', ' ']).next().unwrap()) {
        // A busy machine has no idle gap in some epochs, so one scrape may lack its length.
        // A long answer would be sent in chunks, so the series are counted.
        let scraped = format!("count(last_over_time({name}%5B5m%5D))");
        wait_for(&format!("Prometheus to have {name}"), || !query(&address, &scraped).is_empty());
    }
    agent.interrupt().well();
}

#[test]
fn a_prometheus_with_native_histograms_stores_those_of_latency() {
    let scene = Scene::new();
    let (agent, target) = serving(&scene, "unmanaged", "");
    let (_prometheus, address) =
        prometheus_with(&scene, &target, &["--enable-feature=native-histograms"]);
    let number = |text: &str| {
        let result = query(&address, text);
        result.first().and_then(|one| one["value"][1].as_str()?.parse::<f64>().ok())
    };
    let counts = || number("histogram_count(lull_request_latency_seconds)");
    wait_for("requests in a native histogram", || counts().is_some_and(|count| count > 0.0));
    let tail = number("histogram_quantile(0.95,lull_request_latency_seconds)").unwrap();
    assert!((1e-7..10.0).contains(&tail), "{tail} s");
    agent.interrupt().well();
}

/// The expressions of a dashboard, for the machines and the interval of a test.
fn expressions(dashboard: &str) -> Vec<String> {
    let path = format!("{}/../../docs/{dashboard}", env!("CARGO_MANIFEST_DIR"));
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let exprs = targets.map(|target| target["expr"].as_str().unwrap());
    exprs.map(|it| it.replace("$instance", ".+").replace("$__rate_interval", "10s")).collect()
}

/// The number of series that an expression has, of which a long list would be sent in chunks.
fn count(address: &str, expr: &str) -> usize {
    let each = |byte: u8| match byte {
        b'a'..=b'z' | b'0'..=b'9' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    let text: String = format!("count({expr})").bytes().map(each).collect();
    let answer = get(address, &format!("/api/v1/query?query={text}"));
    assert_eq!(answer.status, 200, "{expr}: {}", answer.body);
    let first = &answer.json()["data"]["result"][0]["value"][1];
    first.as_str().map_or(0, |number| number.parse().unwrap())
}

#[test]
fn prometheus_answers_every_expression_of_the_dashboards() {
    let scene = Scene::new();
    let (agent, target) = serving(&scene, "arq", "");
    let (_prometheus, address) = prometheus(&scene, &target);
    let all = [expressions("grafana.json"), expressions("grafana-fleet.json")].concat();
    assert!(all.len() > 60, "{}", all.len());
    let rates = all.iter().filter(|expr| {
        expr.contains("lull_requests_total") || expr.contains("lull_cpu_time_seconds_total")
    });
    for expr in rates {
        wait_for(&format!("series of {expr}"), || count(&address, expr) > 0);
    }
    for expr in &all {
        count(&address, expr);
    }
    agent.interrupt().well();
}

#[test]
fn the_fleet_shows_latency_where_prometheus_keeps_native_histograms_only() {
    let scene = Scene::new();
    let (agent, target) = serving(&scene, "unmanaged", "");
    let native = ["--enable-feature=native-histograms"];
    let (_prometheus, address) = prometheus_with(&scene, &target, &native);
    let all = expressions("grafana-fleet.json");
    let quantile = all.iter().find(|expr| expr.starts_with("histogram_quantile(0.99,")).unwrap();
    wait_for("a latency of the fleet", || count(&address, quantile) > 0);
    assert_eq!(count(&address, "lull_request_latency_seconds_bucket"), 0, "no classic buckets");
    agent.interrupt().well();
}

/// The tails of an app that a record holds, in nanoseconds.
fn tails(file: &std::path::Path, app: &str) -> Vec<String> {
    let sql = format!(
        "SELECT DISTINCT cast(round(tail_latency_seconds * 1e9) AS INTEGER) || '' \
         FROM app_epochs WHERE app = '{app}' AND tail_latency_seconds IS NOT NULL"
    );
    Record::open(file).text(&sql)
}

#[test]
fn the_tail_from_prometheus_is_the_one_that_was_scraped() {
    let (seen, blind) = (Scene::new(), Scene::new());
    let (first, target) = serving(&seen, "unmanaged", "");
    let (_prometheus, address) = prometheus(&seen, &target);
    wait_for("a scrape", || !query(&address, "lull_tail_latency_seconds").is_empty());
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let source = format!(
        "ideal = \"10us\"\nlatency = \"prometheus:http://{address}\"\n\
         query = 'max(lull_tail_latency_seconds{{app=\"server\"}})'"
    );
    let text = attached("even", &server, &batch).replacen("ideal = \"10us\"", &source, 1);
    let mut second = blind.agent(&blind.config("", &text));
    second.wait_for("some epochs", || epochs_so_far(blind.records().last()) > 12);
    let ended = second.interrupt().well();
    first.interrupt().well();
    let printed = tails(&blind.records()[0], "server");
    let pushed = tails(&seen.records()[0], "server");
    assert!(!printed.is_empty(), "{}", ended.err);
    for tail in &printed {
        assert!(pushed.contains(tail), "{tail} is none of {pushed:?}");
    }
    let record = Record::open(&blind.records()[0]);
    let made_up = "SELECT count(*) FROM app_epochs WHERE app = 'server' AND \
                   (completed_requests_per_second IS NOT NULL OR latency_p50_seconds IS NOT NULL)";
    assert_eq!(record.number(made_up), 0, "a tail tells nothing of rates");
    server.assert_as_before();
    batch.assert_as_before();
}

/// Prometheus continues to compute a tail from what it has scraped before its target ended.
#[test]
fn a_target_that_has_ended_means_the_safe_state_by_the_age_of_its_data() {
    let (seen, blind) = (Scene::new(), Scene::new());
    let (first, target) = serving(&seen, "unmanaged", "");
    let (_prometheus, address) = prometheus(&seen, &target);
    wait_for("a scrape", || !query(&address, "lull_tail_latency_seconds").is_empty());
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let tail = "lull_tail_latency_seconds{app=\"server\"}";
    let source = format!(
        "ideal = \"10us\"\nlatency = \"prometheus:http://{address}\"\n\
         query = 'max(max_over_time({tail}[10m]))'\n\
         prometheus = {{ age = 'time() - max(max_over_time(timestamp({tail})[1m:200ms]))', \
         age_max = \"3s\" }}"
    );
    let text = attached("even", &server, &batch).replacen("ideal = \"10us\"", &source, 1);
    let mut second = blind.agent(&blind.config("silence = \"1s\"", &text));
    // A record has no tables before its first epoch.
    second.wait_for("an epoch", || epochs_so_far(blind.records().last()) > 0);
    let record = blind.records().remove(0);
    second.wait_for("a tail", || !tails(&record, "server").is_empty());
    first.interrupt().well();
    let reasons = "SELECT reason FROM missing WHERE reason LIKE '%old, and%is the most%'";
    second.wait_for("data that is too old", || !Record::open(&record).text(reasons).is_empty());
    second.wait_until_printed("SLO-safe state");
    let tail = "max_over_time(lull_tail_latency_seconds%5B10m%5D)";
    assert!(!query(&address, tail).is_empty(), "Prometheus still has a tail");
    second.interrupt().well();
}

#[test]
fn a_prometheus_that_is_gone_means_the_safe_state() {
    let scene = Scene::new();
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let source = format!(
        "ideal = \"10us\"\nlatency = \"prometheus:http://127.0.0.1:{}\"\nquery = \"up\"",
        free_port()
    );
    let text = attached("even", &server, &batch).replacen("ideal = \"10us\"", &source, 1);
    let mut agent = scene.agent(&scene.config("silence = \"1s\"", &text));
    agent.wait_until_printed("SLO-safe state");
    agent.interrupt().well();
    let missing = Record::open(&scene.records()[0]).text("SELECT reason FROM missing");
    assert!(missing.iter().any(|why| why.contains("http://127.0.0.1:")), "{missing:?}");
}
