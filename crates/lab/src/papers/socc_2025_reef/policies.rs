//! Figs. 12 to 16: REEF compared with the server alone, AppleS, PSLO and UTSLO.

use super::SEED_FILE;
use super::system::{
    GateBench, GateCell, choices, ee_p99, ee_p999, hertz, in_c6, mongo, tail_ms, throughput, tpp,
    watts,
};
use crate::prelude::*;
use lull_control::Objective;
use lull_measure::compliance::{Patience, compliance, late_share};
use lull_measure::{Nanos, Percentile};
use lull_sim::oversubscribed::{ConnectionClass, OversubscribedModel, OversubscribedTotals};

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "reef-policies",
    paper: "Li et al. 2025, Figs. 12 to 16 and section 5.2",
    seed_file: SEED_FILE,
    summary: "REEF against self-serving threads, AppleS, PSLO and UTSLO, 512 connections",
    run,
};

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (model, parameters) = mongo();
    let mut report = EXPERIMENT.report("REEF, Figs. 12 to 16", setup);
    report.choices = choices(&parameters);
    report.choices.push(
        "AppleS, PSLO and UTSLO are ours after one paragraph each (docs/policies.md): their \
         controllers are not published. The paper compares with AppleS and PSLO; whether REEF \
         wins on tails against them depends on turns that are ours, so the held rows compare with \
         the server alone, and the others are reported"
            .to_owned(),
    );
    report.rows = alike(setup, &model)?;
    report.rows.extend(promised(setup, &model)?);
    report.rows.extend(users(setup, &model)?);
    Ok(report)
}

/// 512 connections alike: Figs. 12 and 14.
fn alike(setup: &Setup<'_>, model: &OversubscribedModel) -> Result<Vec<Row>, LabError> {
    let bench = GateBench::searching(setup, 20, 6);
    let window = "window = \"500ms\"";
    let open = bench.cell(model, "open", "")?;
    let reef = bench.cell(model, "reef", &format!("batch = 2\n{window}"))?;
    let apples = bench.cell(model, "apples", window)?;
    let plain = bench.cell(model, "gate-fifo", window)?;
    let mut rows = against_alone(&reef, &open);
    rows.push(Row::held(
        "AppleS: throughput over the server alone",
        "1",
        "no lower",
        apples.over(&open, throughput),
        AtLeast(0.98),
    ));
    let fair = |served: &OversubscribedTotals| served.fairness().unwrap_or(f64::NAN);
    rows.push(Row::held(
        "AppleS: Jain's index of the connections",
        "1",
        "fair",
        apples.mean(fair),
        AtLeast(0.99),
    ));
    rows.extend(against("AppleS (turns of 4)", &reef, &apples, TURNS));
    rows.extend(against("a gate of single queries", &reef, &plain, TURNS));
    Ok(rows)
}

const TURNS: &str = "turns of N have a p99 of N means: REEF's 2 against AppleS' 4 or a plain \
                     gate's 1, none of which is printed";

/// REEF against self-serving threads, held to what the mechanism gives.
fn against_alone(reef: &GateCell, open: &GateCell) -> Vec<Row> {
    let percent = |text: &str, printed, value: fn(&OversubscribedTotals) -> f64, held| {
        let ours = reef.change_percent(open, value);
        Row::held(text, "%", printed, ours, held)
    };
    let ratio = |text: &str, printed, value: fn(&OversubscribedTotals) -> f64, held| {
        Row::held(text, "1", printed, reef.over(open, value), held)
    };
    vec![
        percent("power, REEF against the server alone", -12.10, watts, Between(-16.0, -8.0)),
        Row::held(
            "C6 residency, the same",
            "points",
            28.86,
            reef.minus(open, 100.0, in_c6),
            AtLeast(15.0),
        ),
        percent("CPU frequency, the same", -42.25, hertz, AtMost(-20.0)),
        percent("EE(TPP), the same", 29.39, tpp, AtLeast(8.0)),
        ratio("EE(P99), the same", 2.18, ee_p99, Between(1.8, 3.0)),
        ratio("EE(P99.9), the same", 2.99, ee_p999, Between(2.5, 5.0)),
        percent("throughput, the same", 2.99, throughput, AtLeast(-3.0)),
    ]
}

/// The same figures against a baseline of ours.
fn against(name: &str, ours: &GateCell, theirs: &GateCell, why: &'static str) -> Vec<Row> {
    let percent = |what: &str, printed: Option<f64>, value: fn(&OversubscribedTotals) -> f64| {
        let row = format!("{what}, REEF against {name}");
        Row::reported(row, "%", printed, ours.change_percent(theirs, value), why)
    };
    let ratio = |what: &str, value: fn(&OversubscribedTotals) -> f64| {
        let row = format!("{what}, REEF against {name}");
        Row::reported(row, "1", Printed::Nothing, ours.over(theirs, value), why)
    };
    vec![
        percent("power", None, watts),
        percent("CPU frequency", None, hertz),
        percent("EE(TPP)", None, tpp),
        ratio("EE(P99)", ee_p99),
        ratio("EE(P99.9)", ee_p999),
    ]
}

/// 16 connections with percentiles (section 5.2), 496 best effort.
pub(super) fn latency_sensitive(model: &OversubscribedModel) -> OversubscribedModel {
    let class = |name: &str, connections, objective| ConnectionClass {
        name: name.to_owned(),
        connections,
        objective,
    };
    let tail = |percentile, bound_ms| {
        Some(Objective::Tail { percentile, bound: Nanos::from_millis(bound_ms) })
    };
    OversubscribedModel {
        class: vec![
            class("p95 20 ms", 4, tail(Percentile::P95, 20)),
            class("p99 40 ms", 4, tail(Percentile::P99, 40)),
            class("p99.9 60 ms", 8, tail(Percentile::P999, 60)),
            class("best effort", 496, None),
        ],
        ..model.clone()
    }
}

/// The worst compliance of the classes with objectives.
fn worst(model: &OversubscribedModel) -> impl Fn(&OversubscribedTotals) -> f64 {
    let promised: Vec<_> = model.class.iter().map(|class| class.objective).collect();
    move |served| {
        let each =
            promised.iter().zip(&served.classes).filter_map(
                |(objective, class)| match (*objective)? {
                    Objective::Tail { percentile, bound } => {
                        Some(compliance(late_share(&class.latency, bound)?, percentile))
                    }
                    Objective::Disengagement { ratio } => {
                        Some(Patience::OURS.ratio(&class.latency)? / ratio)
                    }
                    Objective::Throughput { .. } => None,
                },
            );
        each.fold(f64::NAN, f64::max)
    }
}

/// REEF with another policy: rounds of C turns, for a round of all takes longer
/// than the bounds, and no shortest rest, which would cost a quarter of them.
pub(super) fn short_rounds(policy: &str) -> String {
    format!(
        "window = \"500ms\"\nbatch = 2\nturns = \"cap\"\nleast_pause = \"0s\"\npolicy = \
         \"{policy}\""
    )
}

/// Throughput of the last class, best effort.
fn best_effort(served: &OversubscribedTotals) -> f64 {
    served.class_per_s(served.classes.len() - 1)
}

/// Throughput of the classes with objectives.
fn promised_per_s(served: &OversubscribedTotals) -> f64 {
    served.throughput_per_s() - best_effort(served)
}

fn promised(setup: &Setup<'_>, model: &OversubscribedModel) -> Result<Vec<Row>, LabError> {
    let model = latency_sensitive(model);
    let bench = GateBench::searching(setup, 30, 10);
    let open = bench.cell(&model, "open", "")?;
    let pslo = bench.cell(&model, "pslo", "window = \"500ms\"")?;
    let reef = bench.cell(&model, "reef", &short_rounds("pslo"))?;
    let missed = Row::reported(
        "worst compliance, the server alone",
        "1",
        Printed::Nothing,
        open.mean(worst(&model)),
        "above 1: promises are missed without PSLO",
    );
    let mut rows = vec![missed];
    rows.extend(promise_rows("PSLO", &model, &pslo, &reef));
    let p99_ms = |served: &OversubscribedTotals| tail_ms(served, Percentile::P99);
    let p999_ms = |served: &OversubscribedTotals| tail_ms(served, Percentile::P999);
    let why = "PSLO's controller is ours";
    for (what, printed, value) in [
        ("EE(TPP)", 29.39, tpp as fn(&OversubscribedTotals) -> f64),
        ("throughput", 2.99, throughput),
        ("p99", -42.20, p99_ms),
        ("p99.9", -56.33, p999_ms),
        ("EE(P99)", 118.0, ee_p99),
        ("EE(P99.9)", 199.0, ee_p999),
        ("power", -18.08, watts),
        ("CPU frequency", -66.09, hertz),
    ] {
        let row = format!("{what}, PSLO+REEF against PSLO");
        let ours = reef.change_percent(&pslo, value);
        rows.push(Row::reported(row, "%", printed, ours, why));
    }
    Ok(rows)
}

/// Whether promises are kept, by a policy alone and under REEF.
fn promise_rows(
    name: &'static str,
    model: &OversubscribedModel,
    alone: &GateCell,
    reef: &GateCell,
) -> Vec<Row> {
    let held = |text: String, ours| Row::held(text, "1", "kept", ours, AtMost(1.0));
    let why = "how much the promised get is decided by a controller that is ours";
    vec![
        held(format!("worst compliance, {name}"), alone.mean(worst(model))),
        held(format!("worst compliance, {name}+REEF"), reef.mean(worst(model))),
        Row::reported(
            format!("promised connections' throughput, {name}+REEF against {name}"),
            "%",
            "down to -51.47",
            reef.change_percent(alone, promised_per_s),
            why,
        ),
        Row::reported(
            format!("best-effort throughput, {name}+REEF against {name}"),
            "%",
            "up to +31.17",
            reef.change_percent(alone, best_effort),
            why,
        ),
    ]
}

/// 16 connections with a disengagement ratio of 0.1 %, 496 best effort: Fig. 16.
fn users(setup: &Setup<'_>, model: &OversubscribedModel) -> Result<Vec<Row>, LabError> {
    let class = |name: &str, connections, objective| ConnectionClass {
        name: name.to_owned(),
        connections,
        objective,
    };
    let ratio = Some(Objective::Disengagement { ratio: 0.001 });
    let model = OversubscribedModel {
        class: vec![class("users", 16, ratio), class("best effort", 496, None)],
        ..model.clone()
    };
    let bench = GateBench::searching(setup, 30, 10);
    let utslo = bench.cell(&model, "utslo", "window = \"500ms\"")?;
    let reef = bench.cell(&model, "reef", &short_rounds("utslo"))?;
    Ok(promise_rows("UTSLO", &model, &utslo, &reef))
}
