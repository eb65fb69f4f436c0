//! `/metrics`: the last epoch in the text format of OpenMetrics 1.0, from the
//! catalogue. Comments apart it is the older text format of Prometheus, too.

use super::moment::{Head, Moment};
use crate::VERSION;
use lull_measure::catalogue::{ALL, Metric, Sample, Unit};
use lull_measure::escape::prometheus_label as escaped;
use std::fmt::Write;
use std::time::Duration;

/// The type of OpenMetrics' text.
pub(super) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The type of the older text.
pub(super) const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns the exposition of one epoch that ended `age` ago, without the values that are missing.
pub(super) fn exposition(moment: &Moment, age: Duration) -> String {
    let mut text = String::with_capacity(16_384);
    for metric in ALL {
        let samples = moment.samples.iter().filter(|sample| sample.metric.name == metric.name);
        let known: Vec<(&Sample, f64)> = samples
            .filter_map(|sample| sample.value.as_ref().ok().map(|value| (sample, *value)))
            .collect();
        if !known.is_empty() {
            family(&mut text, metric, &known);
        }
    }
    agent(&mut text, &moment.head);
    epoch_age(&mut text, age);
    text.push_str("# EOF\n");
    text
}

fn family(text: &mut String, metric: &Metric, samples: &[(&Sample, f64)]) {
    let name = metric.prometheus_name();
    head(text, &name, unit(metric.unit), metric.help);
    for (sample, value) in samples {
        // Writing to a text cannot fail.
        let _ = match metric.scope.label() {
            Some(label) => {
                writeln!(text, "{name}{{{label}=\"{}\"}} {value}", escaped(&sample.label))
            }
            None => writeln!(text, "{name} {value}"),
        };
    }
}

/// Writes facts that are not metrics: version, policy, state, source of energy.
fn agent(text: &mut String, now: &Head) {
    let name = "lull_agent";
    head(text, name, None, "Always 1; its labels say what runs and how.");
    let state = match now {
        Head { paused: true, .. } => "paused",
        Head { safe: true, .. } => "safe",
        _ => "policy",
    };
    let _ = writeln!(
        text,
        "{name}{{version=\"{}\",policy=\"{}\",state=\"{state}\",energy_source=\"{}\"}} 1",
        escaped(VERSION),
        escaped(&now.policy),
        escaped(&now.energy_source),
    );
}

/// Writes how old the values are: those of an agent that is stuck stay as they were.
fn epoch_age(text: &mut String, age: Duration) {
    let name = "lull_epoch_age_seconds";
    head(text, name, Some("seconds"), "Time since the last epoch ended, which all values are of.");
    let _ = writeln!(text, "{name} {}", age.as_secs_f64());
}

fn head(text: &mut String, name: &str, unit: Option<&str>, help: &str) {
    let _ = writeln!(text, "# TYPE {name} gauge");
    if let Some(unit) = unit {
        let _ = writeln!(text, "# UNIT {name} {unit}");
    }
    let _ = writeln!(text, "# HELP {name} {}", escaped(help));
}

/// OpenMetrics wants the unit to be how the name ends.
fn unit(unit: Unit) -> Option<&'static str> {
    unit.suffix().strip_prefix('_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_break_out_of_their_quotes() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    #[test]
    fn the_unit_is_the_end_of_every_name() {
        for metric in ALL {
            if let Some(unit) = unit(metric.unit) {
                assert!(metric.prometheus_name().ends_with(&format!("_{unit}")));
            }
        }
    }
}
