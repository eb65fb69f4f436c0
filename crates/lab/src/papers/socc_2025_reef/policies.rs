//! Figs. 12 to 16: REEF compared with the server alone, AppleS, PSLO and UTSLO.

use super::SEED_FILE;
use super::os::FAIR;
use super::system::{
    GateBench, GateCell, choices, ee_p99, ee_p999, hertz, in_c6, mongo, mysql, p99_ms, p999_ms,
    self_serving, throughput, tpp, watts,
};
use crate::prelude::*;
use lull_control::Objective;
use lull_measure::compliance::{Patience, compliance, late_share};
use lull_measure::{Latency, Nanos, Percentile};
use lull_sim::oversubscribed::{ConnectionClass, GatedTotals, OversubscribedModel};
use lull_sim::stats::Estimate;

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
         controllers are not published. The held rows guard what the mechanism gives over the \
         server alone, of which the paper prints nothing; rows against AppleS, PSLO and UTSLO \
         compare what the paper compares, with at least half of the printed change"
            .to_owned(),
    );
    report.choices.push(
        "PSLO and UTSLO alone have no cap on workers: their threads are self-serving (section \
         5.4). They limit the queries of best effort in service, for PSLO coordinates \"the level \
         of IO concurrency and arrival rate\" (its abstract); under REEF, which caps workers \
         itself, they limit its rate. The last rows have a fair queue a core with a group a thread \
         (Cgroup(cpu)) under PSLO+REEF and UTSLO+REEF, and PSLO and UTSLO without it, as printed"
            .to_owned(),
    );
    report.rows = alike(setup, &model)?;
    report.rows.extend(promised(setup, &model)?);
    report.rows.extend(users(setup, &model)?);
    let (mysql, others) = mysql();
    report.choices.extend(crate::sourced::choices(&others));
    report.rows.extend(on_mysql(setup, &mysql)?);
    Ok(report)
}

/// 512 connections alike: Figs. 12 and 14.
fn alike(setup: &Setup<'_>, model: &OversubscribedModel) -> Result<Vec<Row>, LabError> {
    let bench = GateBench::searching(setup, 20, 6);
    let window = "window = \"500ms\"";
    let open = bench.cell(model, "open", "")?;
    let reef = bench.cell(model, "reef", &format!("batch = 2\n{window}"))?;
    let apples = bench.cell(&self_serving(model), "apples", window)?;
    let plain = bench.cell(model, "gate-fifo", window)?;
    let mut rows = against_alone(&reef, &open);
    rows.push(Row::held(
        "AppleS: throughput over the server alone",
        "1",
        "no lower",
        apples.over(&open, throughput),
        AtLeast(0.98),
    ));
    let fair = |served: &GatedTotals| served.fairness().unwrap_or(f64::NAN);
    rows.push(Row::held(
        "AppleS: Jain's index of the connections",
        "1",
        "fair",
        apples.mean(fair),
        AtLeast(0.99),
    ));
    rows.extend(against_apples(&reef, &apples));
    rows.extend(against("a gate of single queries", &reef, &plain));
    Ok(rows)
}

const TURNS: &str = "turns of N have a p99 of N means: REEF's 2 against AppleS' 4 or a plain \
                     gate's 1, none of which is printed";

/// REEF against self-serving threads, held to what the mechanism gives.
fn against_alone(reef: &GateCell, open: &GateCell) -> Vec<Row> {
    let percent = |text: &str, value: fn(&GatedTotals) -> f64, held| {
        Row::held(text, "%", Printed::Nothing, reef.change_percent(open, value), held)
    };
    let ratio = |text: &str, value: fn(&GatedTotals) -> f64, held| {
        Row::held(text, "1", Printed::Nothing, reef.over(open, value), held)
    };
    let c6 = reef.minus(open, 100.0, in_c6);
    vec![
        percent("power, REEF against the server alone", watts, Between(-16.0, -8.0)),
        Row::held("C6 residency, the same", "points", Printed::Nothing, c6, AtLeast(15.0)),
        percent("CPU frequency, the same", hertz, AtMost(-20.0)),
        percent("EE(TPP), the same", tpp, AtLeast(8.0)),
        ratio("EE(P99), the same", ee_p99, Between(1.8, 3.0)),
        ratio("EE(P99.9), the same", ee_p999, Between(2.5, 5.0)),
        percent("throughput, the same", throughput, AtLeast(-3.0)),
    ]
}

/// Fig. 14 and section 5.2: REEF against AppleS.
fn against_apples(reef: &GateCell, apples: &GateCell) -> Vec<Row> {
    let percent = |what: &str, printed, value: fn(&GatedTotals) -> f64| {
        let row = format!("{what}, REEF against AppleS");
        Row::change(row, "%", printed, reef.change_percent(apples, value)).because(TURNS)
    };
    let c6 = reef.minus(apples, 100.0, in_c6);
    let mut rows = vec![
        percent("power", -12.10, watts),
        percent("CPU frequency", -42.25, hertz),
        Row::change("C6 residency, REEF against AppleS", "points", 28.86, c6).because(TURNS),
    ];
    rows.extend(improved("", reef, apples));
    let more = reef.change_percent(apples, throughput);
    let name = "throughput, REEF against AppleS";
    rows.push(Row::compared(name, "%", "enhanced", more, AtLeast(0.0)).because(TURNS));
    rows
}

/// The three coefficients of efficiency of REEF over those of AppleS.
fn improved(server: &str, reef: &GateCell, apples: &GateCell) -> [Row; 3] {
    let row = |what: &str, value: fn(&GatedTotals) -> f64| {
        let row = format!("{server}{what}, REEF against AppleS");
        let ours = reef.over(apples, value);
        Row::compared(row, "1", "improved", ours, AtLeast(1.0)).because(TURNS)
    };
    [row("EE(TPP)", tpp), row("EE(P99)", ee_p99), row("EE(P99.9)", ee_p999)]
}

/// Figs. 13 and 14 on MySQL, of which the text says that it is similar to MongoDB.
fn on_mysql(setup: &Setup<'_>, model: &OversubscribedModel) -> Result<Vec<Row>, LabError> {
    let bench = GateBench::searching(setup, 20, 6);
    let window = "window = \"500ms\"";
    let reef = bench.cell(model, "reef", &format!("batch = 2\n{window}"))?;
    let apples = bench.cell(&self_serving(model), "apples", window)?;
    let mut rows = improved("MySQL: ", &reef, &apples).to_vec();
    let c6 = reef.minus(&apples, 100.0, in_c6);
    let name = |what: &str| format!("MySQL: {what}, REEF against AppleS");
    let as_mongo = |what: &str, unit, printed, ours| {
        Row::change(name(what), unit, printed, ours).because(TURNS)
    };
    let [power, frequency, more] =
        [watts, hertz, throughput].map(|value| reef.change_percent(&apples, value));
    rows.push(as_mongo("power", "%", -12.10, power));
    rows.push(as_mongo("CPU frequency", "%", -42.25, frequency));
    rows.push(as_mongo("C6 residency", "points", 28.86, c6));
    let kept = Row::compared(name("throughput"), "%", "not degraded", more, AtLeast(0.0));
    rows.push(kept.because(TURNS));
    Ok(rows)
}

/// The same figures against a baseline that the paper does not have.
fn against(name: &str, ours: &GateCell, theirs: &GateCell) -> Vec<Row> {
    let row = |what: &str, unit, value| {
        let name = format!("{what}, REEF against {name}");
        Row::reported(name, unit, Printed::Nothing, value, TURNS)
    };
    vec![
        row("power", "%", ours.change_percent(theirs, watts)),
        row("CPU frequency", "%", ours.change_percent(theirs, hertz)),
        row("EE(TPP)", "%", ours.change_percent(theirs, tpp)),
        row("EE(P99)", "1", ours.over(theirs, ee_p99)),
        row("EE(P99.9)", "1", ours.over(theirs, ee_p999)),
    ]
}

fn class(name: &str, connections: u32, objective: Option<Objective>) -> ConnectionClass {
    ConnectionClass { name: name.to_owned(), connections, objective }
}

/// 16 connections with percentiles (section 5.2), 496 best effort.
pub(super) fn latency_sensitive(model: &OversubscribedModel) -> OversubscribedModel {
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

/// Late answers over those allowed, of the class that has most of them in the mean of the runs.
fn worst(cell: &GateCell, model: &OversubscribedModel) -> Estimate {
    let promised = model.class.iter().enumerate();
    let promised = promised.filter_map(|(index, class)| Some((index, class.objective?)));
    let each = promised.map(|(index, objective)| {
        cell.mean(|served| over_allowed(objective, &served.classes[index]).unwrap_or(f64::NAN))
    });
    let worst = each.filter(|it| it.mean.is_finite()).max_by(|a, b| a.mean.total_cmp(&b.mean));
    worst.unwrap_or_else(|| estimate_of(&[]))
}

/// The late answers of a class over the allowed ones; `None` without answers or a bound of latency.
fn over_allowed(objective: Objective, class: &Latency) -> Option<f64> {
    match objective {
        Objective::Tail { percentile, bound } => {
            Some(compliance(late_share(class, bound)?, percentile))
        }
        Objective::Disengagement { ratio } => Some(Patience::OURS.ratio(class)? / ratio),
        Objective::Throughput { .. } => None,
    }
}

/// PSLO or UTSLO alone. REEF turns their "self-serving threads (94 % of all threads) into on-call
/// threads" (section 5.4): without it there is no cap on workers.
pub(super) fn without_cap(model: &OversubscribedModel) -> String {
    format!("window = \"500ms\"\ncap = {}", model.connections())
}

/// The same with best effort limited by its queries in service.
fn by_level(model: &OversubscribedModel) -> String {
    without_cap(model) + "\nlimits = \"level\""
}

/// Steps of two seconds from all connections at a time down, the first retry of a higher level, and
/// enough answers that one in a thousand may be late.
fn lowering<'a>(setup: &'a Setup<'_>) -> GateBench<'a> {
    GateBench::searching(setup, 120, 30)
}

/// REEF with another policy: rounds of C turns, for a round of all takes longer
/// than the bounds, and no shortest rest, which would cost a quarter of them.
pub(super) fn short_rounds(policy: &str) -> String {
    format!(
        "window = \"500ms\"\nbatch = 2\nturns = \"cap\"\nleast_pause = \"0s\"\npolicy = \
         \"{policy}\""
    )
}

/// The same server under Cgroup(cpu).
fn in_cgroups(model: &OversubscribedModel) -> OversubscribedModel {
    OversubscribedModel { scheduler: FAIR, ..model.clone() }
}

/// Throughput of the last class, best effort.
fn best_effort(served: &GatedTotals) -> f64 {
    served.class_per_s(served.classes.len() - 1)
}

/// Throughput of the classes with objectives.
fn promised_per_s(served: &GatedTotals) -> f64 {
    served.throughput_per_s() - best_effort(served)
}

fn promised(setup: &Setup<'_>, model: &OversubscribedModel) -> Result<Vec<Row>, LabError> {
    let model = latency_sensitive(model);
    let bench = GateBench::searching(setup, 30, 10);
    let open = bench.cell(&model, "open", "")?;
    let pslo = lowering(setup).cell(&self_serving(&model), "pslo", &by_level(&model))?;
    let reef = bench.cell(&model, "reef", &short_rounds("pslo"))?;
    let missed = Row::reported(
        "worst compliance, the server alone",
        "1",
        Printed::Nothing,
        worst(&open, &model),
        "above 1: promises are missed without PSLO",
    );
    let mut rows = vec![missed];
    rows.extend(promise_rows("PSLO", &model, &pslo, &reef, [-51.47, 31.17]));
    let printed = [29.39, 2.99, -42.20, -56.33, 118.0, 199.0];
    rows.extend(like_for_like("PSLO", &pslo, &reef, printed));
    rows.extend(machine_rows("PSLO+REEF against PSLO", &pslo, &reef, [-18.08, -66.09]));
    let limited = bench.cell(&in_cgroups(&model), "reef", &short_rounds("pslo"))?;
    let printed = [19.68, -5.2, -28.06, -18.03, 76.15, 55.30];
    let which = "PSLO+REEF+Cgroup(cpu) against PSLO";
    rows.extend(changes(which, &pslo, &limited, printed));
    rows.extend(machine_rows(which, &pslo, &limited, [-18.53, -67.54]));
    Ok(rows)
}

/// Power and CPU frequency of one over those of another.
fn machine_rows(which: &str, alone: &GateCell, reef: &GateCell, printed: [f64; 2]) -> Vec<Row> {
    let figures: [(&str, Value); 2] = [("power", watts), ("CPU frequency", hertz)];
    let rows = figures.into_iter().zip(printed).map(|((what, value), printed)| {
        let row = format!("{what}, {which}");
        Row::change(row, "%", printed, reef.change_percent(alone, value)).because(OURS)
    });
    rows.collect()
}

/// Reads one value of a simulated run.
type Value = fn(&GatedTotals) -> f64;

const OURS: &str = "the controllers of PSLO and UTSLO are ours, and without noise of a real \
                    server they leave REEF less to improve (docs/design/reef.md)";

/// REEF with a policy over the policy alone: the changes that section 5.2 prints, of EE(TPP),
/// throughput, P99, P99.9, EE(P99) and EE(P99.9).
fn like_for_like(name: &str, alone: &GateCell, reef: &GateCell, printed: [f64; 6]) -> Vec<Row> {
    changes(&format!("{name}+REEF against {name}"), alone, reef, printed)
}

/// The same changes between any two.
fn changes(which: &str, alone: &GateCell, reef: &GateCell, printed: [f64; 6]) -> Vec<Row> {
    let figures: [(&str, Value); 6] = [
        ("EE(TPP)", tpp),
        ("throughput", throughput),
        ("p99", p99_ms),
        ("p99.9", p999_ms),
        ("EE(P99)", ee_p99),
        ("EE(P99.9)", ee_p999),
    ];
    let each = figures.into_iter().zip(printed);
    let rows = each.map(|((what, value), printed)| {
        let row = format!("{what}, {which}");
        Row::change(row, "%", printed, reef.change_percent(alone, value)).because(OURS)
    });
    rows.collect()
}

/// Whether promises are kept, by a policy alone and under REEF.
fn promise_rows(
    name: &str,
    model: &OversubscribedModel,
    alone: &GateCell,
    reef: &GateCell,
    printed: [f64; 2],
) -> Vec<Row> {
    let held = |system: String, cell: &GateCell, most| {
        let name = format!("worst compliance, {system}");
        Row::held(name, "1", "kept", worst(cell, model), AtMost(most))
    };
    // "Within or near" the objective (section 5.2): alone, the policies leave a queue.
    let mut rows = vec![held(name.to_owned(), alone, 1.1), held(format!("{name}+REEF"), reef, 1.0)];
    rows.extend(throughput_rows(&format!("{name}+REEF against {name}"), alone, reef, printed));
    rows
}

/// Throughput of connections with objectives and of best effort over that of another.
fn throughput_rows(which: &str, alone: &GateCell, reef: &GateCell, printed: [f64; 2]) -> Vec<Row> {
    let figures: [(&str, Value); 2] =
        [("promised connections'", promised_per_s), ("best-effort", best_effort)];
    let rows = figures.into_iter().zip(printed).map(|((what, value), printed)| {
        let row = format!("{what} throughput, {which}");
        Row::change(row, "%", printed, reef.change_percent(alone, value)).because(OURS)
    });
    rows.collect()
}

/// 16 connections with a disengagement ratio of 0.1 %, 496 best effort: Fig. 16.
fn users(setup: &Setup<'_>, model: &OversubscribedModel) -> Result<Vec<Row>, LabError> {
    let ratio = Some(Objective::Disengagement { ratio: 0.001 });
    let model = OversubscribedModel {
        class: vec![class("users", 16, ratio), class("best effort", 496, None)],
        ..model.clone()
    };
    let bench = GateBench::searching(setup, 30, 10);
    let utslo = lowering(setup).cell(&self_serving(&model), "utslo", &by_level(&model))?;
    let reef = bench.cell(&model, "reef", &short_rounds("utslo"))?;
    // The promised connections' change is 1.99 K to 1.16 K queries per second.
    let mut rows = promise_rows("UTSLO", &model, &utslo, &reef, [-41.7, 11.16]);
    let printed = [33.94, 4.98, -30.31, -75.10, 87.0, 433.0];
    rows.extend(like_for_like("UTSLO", &utslo, &reef, printed));
    let limited = bench.cell(&in_cgroups(&model), "reef", &short_rounds("utslo"))?;
    let printed = [29.39, 3.41, -20.00, -29.08, 57.22, 77.11];
    rows.extend(changes("UTSLO+REEF+Cgroup(cpu) against UTSLO", &utslo, &limited, printed));
    let model = in_cgroups(&self_serving(&model));
    let alone = lowering(setup).cell(&model, "utslo", &by_level(&model))?;
    // The users' change is 2.21 K to 1.10 K queries per second.
    let which = "UTSLO+REEF against UTSLO, both with Cgroup(cpu)";
    rows.extend(throughput_rows(which, &alone, &limited, [-50.2, 9.26]));
    Ok(rows)
}
