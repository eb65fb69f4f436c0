//! A Grafana dashboard of every metric, from the catalogue.
//!
//! Each scope has a row and each metric a panel, so that a new line in the catalogue also
//! adds the metric to the dashboard. A bound is drawn in the panel of the metric that it
//! limits.

use lull_measure::catalogue::{ALL, Metric, Scope, TAIL_BOUND, TAIL_LATENCY, Unit};
use serde_json::{Value, json};

/// Width of Grafana's grid.
const COLUMNS: u64 = 24;
const WIDTH: u64 = 8;
const HEIGHT: u64 = 7;

/// The dashboard as Grafana imports it.
pub(super) fn dashboard() -> Value {
    let mut panels = Panels::default();
    let scopes = [("The machine", Scope::Machine), ("Apps", Scope::App), ("Cores", Scope::Core)];
    for (title, scope) in scopes {
        panels.row(title);
        let of_scope = ALL.iter().filter(|metric| metric.scope == scope);
        of_scope.filter(|metric| metric.name != TAIL_BOUND.name).for_each(|it| panels.add(it));
    }
    json!({
        "title": "Lull",
        "uid": "lull",
        "description": "Tail latency against its bounds, entropy, energy, and who has which cores",
        "tags": ["lull"],
        "schemaVersion": 39,
        "refresh": "5s",
        "time": { "from": "now-15m", "to": "now" },
        "templating": { "list": [
            { "name": "datasource", "label": "Prometheus", "type": "datasource",
              "query": "prometheus" },
            { "name": "instance", "label": "Machine", "type": "query", "includeAll": true,
              "multi": true, "refresh": 2, "datasource": datasource(),
              "query": "label_values(lull_agent, instance)" },
        ]},
        "panels": panels.all,
    })
}

#[derive(Default)]
struct Panels {
    all: Vec<Value>,
    x: u64,
    y: u64,
}

impl Panels {
    fn row(&mut self, title: &str) {
        self.y += if self.x > 0 { HEIGHT } else { 0 };
        self.x = 0;
        self.all.push(json!({
            "id": self.all.len() + 1, "type": "row", "title": title, "collapsed": false,
            "gridPos": { "x": 0, "y": self.y, "w": COLUMNS, "h": 1 }, "panels": [],
        }));
        self.y += 1;
    }

    fn add(&mut self, metric: &'static Metric) {
        let mut targets = vec![target("A", metric, "")];
        if metric.name == TAIL_LATENCY.name {
            targets.push(target("B", TAIL_BOUND, " bound"));
        }
        self.all.push(json!({
            "id": self.all.len() + 1,
            "type": "timeseries",
            "title": title(metric),
            "description": format!("{} From: {}.", metric.help, metric.source),
            "datasource": datasource(),
            "gridPos": { "x": self.x, "y": self.y, "w": WIDTH, "h": HEIGHT },
            "fieldConfig": { "defaults": { "unit": unit(metric.unit) }, "overrides": [] },
            "targets": targets,
        }));
        self.x += WIDTH;
        if self.x == COLUMNS {
            (self.x, self.y) = (0, self.y + HEIGHT);
        }
    }
}

fn datasource() -> Value {
    json!({ "type": "prometheus", "uid": "${datasource}" })
}

fn target(id: &str, metric: &Metric, suffix: &str) -> Value {
    let label = metric.scope.label().map(|label| format!("{{{{{label}}}}}")).unwrap_or_default();
    json!({
        "refId": id,
        "datasource": datasource(),
        "expr": format!("{}{{instance=~\"$instance\"}}", metric.prometheus_name()),
        "legendFormat": format!("{{{{instance}}}} {label}{suffix}").replace("  ", " "),
    })
}

fn title(metric: &Metric) -> String {
    let words = metric.name.replace('_', " ");
    let mut letters = words.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Grafana's name of a unit.
const fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Seconds => "s",
        Unit::Joules => "joule",
        Unit::Watts => "watt",
        Unit::Hertz => "hertz",
        Unit::Ratio => "percentunit",
        Unit::PerSecond => "short",
        Unit::Bytes => "bytes",
        Unit::BytesPerSecond => "Bps",
        Unit::Count => "none",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_metric_is_asked_for_once_and_no_other() {
        let dashboard = dashboard();
        let panels = dashboard["panels"].as_array().unwrap();
        let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
        let asked: Vec<&str> =
            targets.map(|it| it["expr"].as_str().unwrap().split('{').next().unwrap()).collect();
        let wanted: BTreeSet<_> = ALL.iter().map(|metric| metric.prometheus_name()).collect();
        assert_eq!(asked.len(), wanted.len());
        assert!(asked.iter().all(|name| wanted.contains(*name)), "{asked:?}");
    }

    #[test]
    fn panels_do_not_overlap_and_have_their_own_numbers() {
        let dashboard = dashboard();
        let panels = dashboard["panels"].as_array().unwrap();
        let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
        assert_eq!(ids.len(), panels.len());
        let mut cells = BTreeSet::new();
        for place in panels.iter().map(|panel| &panel["gridPos"]) {
            let of = |key: &str| place[key].as_u64().unwrap();
            for x in of("x")..of("x") + of("w") {
                for y in of("y")..of("y") + of("h") {
                    assert!(x < COLUMNS && cells.insert((x, y)), "{place}");
                }
            }
        }
    }
}
