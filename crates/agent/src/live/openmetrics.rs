//! Metrics as text: OpenMetrics 1.0, and the older format of Prometheus.

use super::exposition::{Family, Format, Labels, Values};
use lull_control::LatencyTotals;
use lull_measure::catalogue::histogram::LATENCY_BOUNDS_NS;
use lull_measure::escape::prometheus_label as escaped;
use std::fmt::Write;

/// Returns the text of all families.
pub(super) fn write(families: &[Family<'_>], format: Format) -> String {
    let mut text = String::with_capacity(32_768);
    for family in families {
        head(&mut text, family, format);
        let name = &family.name;
        match &family.values {
            Values::Gauges(values) => each(&mut text, name, values),
            Values::Counters(values) => each(&mut text, &format!("{name}_total"), values),
            Values::Histograms(all) => {
                all.iter().for_each(|(labels, one)| histogram(&mut text, name, labels, one));
            }
        }
    }
    text.push_str("# EOF\n");
    text
}

fn head(text: &mut String, family: &Family<'_>, format: Format) {
    let (kind, suffix) = match family.values {
        Values::Gauges(_) => ("gauge", ""),
        // The older format names the sample, and OpenMetrics the family.
        Values::Counters(_) if format == Format::Text => ("counter", "_total"),
        Values::Counters(_) => ("counter", ""),
        Values::Histograms(_) => ("histogram", ""),
    };
    let name = format!("{}{suffix}", family.name);
    // Writing to a text cannot fail.
    let _ = writeln!(text, "# TYPE {name} {kind}");
    if let Some(unit) = family.unit {
        let _ = writeln!(text, "# UNIT {name} {unit}");
    }
    let _ = writeln!(text, "# HELP {name} {}", escaped(family.help));
}

fn each(text: &mut String, name: &str, values: &[(Labels<'_>, f64)]) {
    for (labels, value) in values {
        let _ = writeln!(text, "{name}{} {value}", in_braces(labels));
    }
}

fn in_braces(labels: &[(&'static str, &str)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let each = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    format!("{{{}}}", each.collect::<Vec<_>>().join(","))
}

fn histogram(text: &mut String, name: &str, labels: &Labels<'_>, latencies: &LatencyTotals) {
    let mut below = 0_u64;
    for (bound, count) in LATENCY_BOUNDS_NS.iter().zip(&latencies.classic) {
        below = below.saturating_add(*count);
        let bound = format!("{:?}", *bound as f64 / 1e9);
        let of_bucket = [labels.as_slice(), &[("le", bound.as_str())]].concat();
        let _ = writeln!(text, "{name}_bucket{} {below}", in_braces(&of_bucket));
    }
    let (count, labels_of_all) = (latencies.count, [labels.as_slice(), &[("le", "+Inf")]].concat());
    let _ = writeln!(text, "{name}_bucket{} {count}", in_braces(&labels_of_all));
    let labels = in_braces(labels);
    let _ = writeln!(text, "{name}_sum{labels} {}", latencies.sum_s);
    let _ = writeln!(text, "{name}_count{labels} {count}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_break_out_of_their_quotes() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    #[test]
    fn buckets_are_cumulative_and_end_with_all_requests() {
        let mut classic = vec![0; LATENCY_BOUNDS_NS.len() + 1];
        (classic[0], classic[3], classic[22]) = (2, 3, 1);
        let latencies = LatencyTotals { classic, count: 6, sum_s: 200.5, ..Default::default() };
        let family = Family {
            name: "lull_x_seconds".to_owned(),
            help: "Help.",
            unit: Some("seconds"),
            values: Values::Histograms(vec![(vec![("app", "a")], &latencies)]),
        };
        let text = write(&[family], Format::OpenMetrics);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "# TYPE lull_x_seconds histogram");
        assert_eq!(lines[3], "lull_x_seconds_bucket{app=\"a\",le=\"1e-5\"} 2");
        assert_eq!(lines[6], "lull_x_seconds_bucket{app=\"a\",le=\"0.0001\"} 5");
        assert_eq!(lines[25], "lull_x_seconds_bucket{app=\"a\",le=\"+Inf\"} 6");
        assert_eq!(lines[26], "lull_x_seconds_sum{app=\"a\"} 200.5");
        assert_eq!(lines[27], "lull_x_seconds_count{app=\"a\"} 6");
    }

    #[test]
    fn the_head_of_a_counter_names_what_its_format_wants() {
        let family = || Family {
            name: "lull_x".to_owned(),
            help: "Help.",
            unit: None,
            values: Values::Counters(vec![(Vec::new(), 3.0)]),
        };
        let new = write(&[family()], Format::OpenMetrics);
        assert!(new.starts_with("# TYPE lull_x counter\n") && new.contains("\nlull_x_total 3\n"));
        assert!(write(&[family()], Format::Text).starts_with("# TYPE lull_x_total counter\n"));
    }
}
