//! The real Prometheus scrapes an agent.

use crate::http::serving;
use crate::support::agent::Agent;
use crate::support::http::get;
use crate::support::scene::Scene;
use crate::support::{free_port, wait_for};
use serde_json::Value;
use std::process::Command;

/// A Prometheus that scrapes this address every 200 ms; itself and its address.
pub(crate) fn prometheus(scene: &Scene, target: &str) -> (Agent, String) {
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
    command.arg(format!("--web.listen-address={address}"));
    let mut agent = scene.start(command);
    agent.wait_for("Prometheus", || {
        std::net::TcpStream::connect(&address).is_ok() && get(&address, "/-/ready").status == 200
    });
    (agent, address)
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
        assert!(!query(&address, name).is_empty(), "Prometheus has no {name}");
    }
    agent.interrupt().well();
}
