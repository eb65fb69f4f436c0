//! Grafana dashboards: every metric of a machine, and the counters of a fleet.
//!
//! Each scope has a row and each metric a panel, so that a new line in the catalogue also
//! adds the metric to the dashboard. A bound is drawn in the panel of the metric that it
//! limits. The fleet's dashboard has sums over machines, which only counters allow. As the rules of
//! `packaging/prometheus` do, it adds pods up by namespace and workload.

use lull_measure::catalogue::histogram::{LATENCY_HELP, LATENCY_HISTOGRAM};
use lull_measure::catalogue::{
    FAILED_REQUESTS, LATE_REQUESTS, Metric, REQUESTS, Scope, TAIL_BOUND, TAIL_LATENCY, Unit,
    counters, gauges,
};
use serde_json::{Value, json};

/// Width of Grafana's grid.
const COLUMNS: u64 = 24;
const WIDTH: u64 = 8;
const HEIGHT: u64 = 7;

/// The dashboard as Grafana imports it.
pub(super) fn dashboard() -> Value {
    let mut panels = Panels::default();
    let scopes = [
        ("The machine", Scope::Machine),
        ("Apps", Scope::App),
        ("Classes of clients", Scope::ClientClass),
        ("Accounts of clients", Scope::ClientAccount),
        ("Cores", Scope::Core),
    ];
    for (title, scope) in scopes {
        panels.row(title);
        let of_scope = gauges().filter(|metric| metric.scope == scope);
        of_scope.filter(|metric| metric.name != TAIL_BOUND.name).for_each(|it| panels.add(it));
    }
    let about = "Tail latency against its bounds, entropy, energy, and the cores of each app";
    whole("Lull", "lull", about, &panels)
}

/// The dashboard of all machines: late requests, latency, energy, and what needs attention.
pub(super) fn fleet() -> Value {
    let mut panels = Panels::default();
    panels.row("Objectives");
    let per_s = |total: &Metric| rate_of_apps(total, "app, namespace");
    let app = "{{namespace}} {{app}}";
    panels.chart(&Chart {
        title: "Late requests",
        about: LATE_REQUESTS.help,
        unit: "percentunit",
        queries: &[(format!("{} / {}", per_s(LATE_REQUESTS), per_s(REQUESTS)), app)],
    });
    panels.chart(&Chart {
        title: "Latency of all machines",
        about: LATENCY_HELP,
        unit: "s",
        queries: &[
            (quantile_of_apps(0.5), "{{namespace}} {{app}} p50"),
            (quantile_of_apps(0.99), "{{namespace}} {{app}} p99"),
        ],
    });
    panels.chart(&Chart {
        title: "Requests",
        about: REQUESTS.help,
        unit: "reqps",
        queries: &[
            (per_s(REQUESTS), app),
            (per_s(FAILED_REQUESTS), "{{namespace}} {{app}} failed"),
        ],
    });
    panels.row("Counters");
    let shown = [REQUESTS, LATE_REQUESTS, FAILED_REQUESTS];
    for total in counters().filter(|total| shown.iter().all(|it| it.name != total.name)) {
        let (query, legend) = match total.scope.label_names() {
            [] => {
                let rate = rate(&total.prometheus_name());
                (format!("sum by (instance) ({rate})"), "{{instance}}".to_owned())
            }
            names => {
                let legend = format!("{{{{namespace}}}} {}", legend_of(total.scope));
                (rate_of_apps(total, &format!("{}, namespace", names.join(", "))), legend)
            }
        };
        let title = capitalised(total.name);
        panels.chart(&Chart {
            title: &title,
            about: total.help,
            unit: if total.unit == Unit::Joules { "watt" } else { unit_of_rate(total.unit) },
            queries: &[(query, &legend)],
        });
    }
    add_agents(&mut panels);
    let about = "Late requests, latency, energy and what needs attention, over all machines";
    whole("Lull: fleet", "lull-fleet", about, &panels)
}

/// Charts about the agents themselves.
fn add_agents(panels: &mut Panels) {
    panels.row("Agents");
    panels.chart(&Chart {
        title: "Time since the last epoch",
        about: "An agent that is stuck shows the same values again and again.",
        unit: "s",
        queries: &[(format!("lull_epoch_age_seconds{{{MACHINES}}}"), "{{instance}}")],
    });
    panels.chart(&Chart {
        title: "Agents by state",
        about: "What the agents do: follow their policy, the SLO-safe state, or a pause.",
        unit: "none",
        queries: &[(
            format!("count by (state, policy) (lull_agent{{{MACHINES}}})"),
            "{{state}} {{policy}}",
        )],
    });
}

/// A quantile of the latency of each app or workload. Prometheus stores native histograms, classic
/// buckets, or both. `label_replace` of Prometheus 2.42 loses native histograms, so that it follows
/// the quantile.
fn quantile_of_apps(at: f64) -> String {
    let native = |by: &str, pods: &str| {
        let selected = format!("{LATENCY_HISTOGRAM}{{{MACHINES},{pods}}}");
        format!("sum by ({by}, namespace) (rate({selected}[$__rate_interval]))")
    };
    let native =
        [native("app", "workload=\"\""), native("workload", "workload!=\"\"")].join(" or ");
    let classic = sum_of_apps(&format!("{LATENCY_HISTOGRAM}_bucket"), "app, namespace, le");
    format!(
        "histogram_quantile({at}, {classic}) or sum by (app, namespace) (label_replace(\
         histogram_quantile({at}, {native}), \"app\", \"$1\", \"workload\", \"(.+)\"))"
    )
}

/// Selects the machines that are chosen on the dashboard.
const MACHINES: &str = "instance=~\"$instance\"";

fn rate(name: &str) -> String {
    format!("rate({name}{{{MACHINES}}}[$__rate_interval])")
}

fn rate_of_apps(total: &Metric, by: &str) -> String {
    sum_of_apps(&total.prometheus_name(), by)
}

/// Adds up the rates of a counter or histogram of apps. The app of a pod (`critical-1`) is another
/// pod on each node, so its workload becomes its `app`; `berth` keeps the series of a workload
/// apart until they are added up.
fn sum_of_apps(name: &str, by: &str) -> String {
    let rate = rate(name);
    let kept = format!("label_replace({rate}, \"berth\", \"$1\", \"app\", \"(.+)\")");
    format!("sum by ({by}) (label_replace({kept}, \"app\", \"$1\", \"workload\", \"(.+)\"))")
}

/// Grafana's name of a counter's unit by second: seconds by second are a share.
const fn unit_of_rate(unit: Unit) -> &'static str {
    match unit {
        Unit::Seconds => "percentunit",
        _ => "short",
    }
}

/// One chart with its queries and their legends.
struct Chart<'a> {
    title: &'a str,
    about: &'a str,
    unit: &'a str,
    queries: &'a [(String, &'a str)],
}

fn whole(title: &str, uid: &str, about: &str, panels: &Panels) -> Value {
    json!({
        "title": title,
        "uid": uid,
        "description": about,
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

    fn chart(&mut self, chart: &Chart<'_>) {
        let target = |(place, (query, legend)): (usize, &(String, &str))| {
            let name = ["A", "B", "C"].get(place).copied().unwrap_or("D");
            json!({
                "refId": name,
                "datasource": datasource(),
                "expr": query,
                "legendFormat": legend,
            })
        };
        let targets: Vec<Value> = chart.queries.iter().enumerate().map(target).collect();
        self.push(chart.title, chart.about, chart.unit, &targets);
    }

    fn add(&mut self, metric: &'static Metric) {
        let mut targets = vec![target("A", metric, "")];
        if metric.name == TAIL_LATENCY.name {
            targets.push(target("B", TAIL_BOUND, " bound"));
        }
        let about = format!("{} From: {}.", metric.help, metric.source);
        self.push(&capitalised(metric.name), &about, unit(metric.unit), &targets);
    }

    fn push(&mut self, title: &str, about: &str, unit: &str, targets: &[Value]) {
        self.all.push(json!({
            "id": self.all.len() + 1,
            "type": "timeseries",
            "title": title,
            "description": about,
            "datasource": datasource(),
            "gridPos": { "x": self.x, "y": self.y, "w": WIDTH, "h": HEIGHT },
            "fieldConfig": { "defaults": { "unit": unit }, "overrides": [] },
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
    let label = legend_of(metric.scope);
    let pod = if label.contains("{{app}}") { POD } else { "" };
    json!({
        "refId": id,
        "datasource": datasource(),
        "expr": format!("{}{{instance=~\"$instance\"}}", metric.prometheus_name()),
        "legendFormat": format!("{{{{instance}}}} {pod}{label}{suffix}").replace("  ", " "),
    })
}

/// The labels of a pod in a legend, before the app that it is (`critical-1`). Grafana writes
/// nothing for a label that a series lacks, and its legends show several blanks as one, so that
/// outside of Kubernetes an app has its name alone. The label `container` is left out: where a
/// whole pod is the app, Prometheus adds the container of the agent, which it has scraped.
const POD: &str = "{{namespace}} {{pod}} ";

/// The labels of a scope in a legend: `{{app}}`.
fn legend_of(scope: Scope) -> String {
    let names: Vec<_> = scope.label_names().iter().map(|name| format!("{{{{{name}}}}}")).collect();
    names.join(" ")
}

fn capitalised(name: &str) -> String {
    let words = name.replace('_', " ");
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

    /// A field of every query of a dashboard.
    fn of_targets<'a>(dashboard: &'a Value, field: &'a str) -> impl Iterator<Item = &'a str> {
        let panels = dashboard["panels"].as_array().unwrap();
        let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
        targets.map(move |target| target[field].as_str().unwrap())
    }

    #[test]
    fn every_metric_is_queried_once_and_no_other() {
        let dashboard = dashboard();
        let queries = of_targets(&dashboard, "expr");
        let expressions: Vec<&str> =
            queries.map(|query| query.split('{').next().unwrap()).collect();
        let wanted: BTreeSet<_> = gauges().map(Metric::prometheus_name).collect();
        assert_eq!(expressions.len(), wanted.len());
        assert!(expressions.iter().all(|name| wanted.contains(*name)), "{expressions:?}");
    }

    #[test]
    fn a_legend_of_a_machine_names_the_pod_that_an_app_is() {
        let dashboard = dashboard();
        let (of_apps, others): (Vec<&str>, Vec<&str>) =
            of_targets(&dashboard, "legendFormat").partition(|legend| legend.contains("{{app}}"));
        let pod = "{{instance}} {{namespace}} {{pod}} {{app}}";
        assert!(of_apps.iter().all(|legend| legend.starts_with(pod)), "{of_apps:?}");
        assert!(of_apps.contains(&format!("{pod} bound").as_str()), "{of_apps:?}");
        assert!(others.iter().all(|legend| !legend.contains("pod")), "{others:?}");
    }

    #[test]
    fn the_fleet_has_every_counter_and_sums_them_by_their_rates() {
        let text = fleet().to_string();
        for total in counters() {
            let name = total.prometheus_name();
            assert!(text.contains(&format!("(rate({name}{{")), "{name}");
        }
    }

    #[test]
    fn the_fleet_adds_pods_up_by_workload_and_finds_native_histograms() {
        let fleet = fleet();
        let panels = fleet["panels"].as_array().unwrap();
        let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
        for expr in targets.map(|target| target["expr"].as_str().unwrap()) {
            let is_by_app = expr.contains("(app");
            assert_eq!(expr.contains("\"app\", \"$1\", \"workload\""), is_by_app, "{expr}");
            assert_eq!(expr.contains("namespace"), is_by_app, "{expr}");
            if expr.starts_with("histogram_quantile") {
                assert!(expr.contains("lull_request_latency_seconds_bucket{"), "{expr}");
                assert_eq!(expr.matches("histogram_quantile(").count(), 2, "{expr}");
                assert!(expr.contains("lull_request_latency_seconds{"), "{expr}");
            }
        }
    }

    #[test]
    fn panels_do_not_overlap_and_have_their_own_numbers() {
        [dashboard(), fleet()].iter().for_each(check_panels);
    }

    fn check_panels(dashboard: &Value) {
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
