//! Figs. 18 to 20: areas of cores by objective (QoS-WC), compared with Demeter's zones.

use super::SEED_FILE;
use super::policies::{latency_sensitive, short_rounds, without_cap};
use super::steered::{Course, ObservedSecond as Second, Scheme, Times, before_change, courses};
use super::system::{
    GateBench, GateCell, choices, ee_p99, ee_p999, hertz, in_c6, mongo, p99_ms, p999_ms,
    self_serving, throughput, tpp, variation, watts,
};
use crate::prelude::*;
use lull_control::Objective;
use lull_measure::{Nanos, Percentile};
use lull_sim::oversubscribed::{GatedTotals, OversubscribedModel};
use lull_sim::stats::Estimate;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "reef-qoswc",
    paper: "Li et al. 2025, Figs. 18 to 20 and section 5.4",
    seed_file: SEED_FILE,
    summary: "QoS-WC's areas against Demeter's zones, promises tightened at 85 s",
    run,
};

/// Best effort's floor, in queries per second.
pub(crate) const FLOOR_PER_S: f64 = 12_500.0;
/// When promises are tightened in a [`portrait`].
pub(crate) const PORTRAIT_CHANGE_S: u64 = 40;
/// Turns at a time, ours: as many as the device has channels. A worker that waits for the device
/// needs no core.
const CAP: u32 = 40;
/// C below the number of cores, as in section 3.3; one scheme is run with it, too.
const PRINTED_CAP: u32 = 23;
/// Cores on which the profile is measured.
const PROFILED: std::ops::RangeInclusive<u32> = 1..=8;

/// Returns the model with a floor, and the objectives of each class from 85 s on.
fn promised() -> (OversubscribedModel, Vec<Option<Objective>>) {
    let mut model = latency_sensitive(&mongo().0);
    if let Some(last) = model.class.last_mut() {
        let floor_per_s = FLOOR_PER_S / f64::from(last.connections);
        last.objective = Some(Objective::Throughput { floor_per_s });
    }
    let tight = |objective: Objective| match objective {
        Objective::Tail { percentile, bound } => {
            let cut_ms = if percentile == Percentile::P95 { 0 } else { 10 };
            Objective::Tail { percentile, bound: bound - Nanos::from_millis(cut_ms) }
        }
        other => other,
    };
    let later = model.class.iter().map(|class| class.objective.map(tight)).collect();
    (model, later)
}

/// TP(c) of the self-serving server, as a config states it.
fn profile(setup: &Setup<'_>, model: &OversubscribedModel) -> Result<String, LabError> {
    let bench = GateBench::settled(setup);
    let on = |cores: u32| {
        let packed = OversubscribedModel { cores, ..model.clone() };
        Ok(format!("{:?}", bench.cell(&packed, "open", "")?.mean(throughput).mean))
    };
    let all: Result<Vec<String>, LabError> = PROFILED.map(on).collect();
    Ok(format!("profile = [{}]", all?.join(", ")))
}

/// A search for C would meet a machine that the policy is just dividing.
fn rounds(cap: u32) -> String {
    format!("{}\ncap = {cap}", short_rounds("pslo"))
}

fn schemes(model: &OversubscribedModel, profile: String) -> [Scheme; 3] {
    let scheme = |name, gate, policy| Scheme { name, gate, policy: Some(policy) };
    let pslo = ("pslo", without_cap(model));
    let reef = ("reef", rounds(CAP));
    [
        scheme("PSLO+Demeter", pslo, ("demeter", String::new())),
        scheme("PSLO+REEF+Demeter", reef.clone(), ("demeter", String::new())),
        scheme("PSLO+REEF+QoS-WC", reef, ("qos-wc", profile)),
    ]
}

/// Runs one of the policies for the book, and returns the observations of every second.
pub(crate) fn portrait(policy: &'static str, seed: u64) -> Result<Vec<Second>, LabError> {
    let setup = Setup { seed, quick: true, ..Setup::new("portrait") };
    let (model, later) = promised();
    let config = if policy == "qos-wc" { profile(&setup, &model)? } else { String::new() };
    let gate = ("reef", rounds(CAP));
    let scheme = Scheme { name: policy, gate, policy: Some((policy, config)) };
    let times = Times { settled: 5, change: PORTRAIT_CHANGE_S, end: 60 };
    let mut courses = courses(&setup, &model, &later, &scheme, times)?;
    Ok(courses.swap_remove(0).looks)
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (model, later) = promised();
    let profile = profile(setup, &model)?;
    let times = match setup.quick {
        true => Times { settled: 20, change: 25, end: 30 },
        false => Times { settled: 60, change: 85, end: 105 },
    };
    let narrow = Scheme {
        name: "PSLO+REEF+QoS-WC, C = 23",
        gate: ("reef", rounds(PRINTED_CAP)),
        policy: Some(("qos-wc", profile.clone())),
    };
    let narrow = courses(setup, &model, &later, &narrow, times)?;
    let schemes = schemes(&model, profile);
    let alone = self_serving(&model);
    let all = schemes.iter().map(|scheme| {
        let model = if scheme.gate.0 == "pslo" { &alone } else { &model };
        courses(setup, model, &later, scheme, times)
    });
    let all = all.collect::<Result<Vec<_>, _>>()?;
    let mut report = EXPERIMENT.report("REEF, Figs. 18 to 20", setup);
    report.choices = choices(&mongo().1);
    report.choices.push(format!(
        "Demeter's and PSLO's controllers are ours (docs/policies.md), and so is how Algorithm 1 \
         is corrected; PSLO limits the rate of best effort, whose floor is a rate; each core is a \
         frequency domain, REEF makes rounds of C = {CAP} turns (one row has C = {PRINTED_CAP}, \
         below the number of cores), QoS-WC has the profile of the server alone on 1 to 8 cores. \
         Counted are 60 to 85 s, and from then to 105 s under tightened promises"
    ));
    report.rows = compared(&all);
    report.rows.extend(zones(&schemes, &all, times));
    report.rows.extend(promise_rows(&schemes, &all, times));
    let name = "QoS-WC with C = 23: best effort over its floor after 85 s";
    let narrow = over_floor(&narrow);
    let row = Row::compared(name, "1", "at least 1", narrow, AtLeast(1.0));
    report.rows.push(row.because(NARROW));
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &figures(&schemes, &all))?];
    Ok(report)
}

const DEMETER: &str = "Demeter's loop is ours: how near to the floor of best effort it goes \
                       decides on its power, and REEF's rests come on top of slow cores";

const ROUNDS: &str = "the paper does not state how rounds and areas are combined, and the \
                      controllers of PSLO and Demeter are ours";

/// Fig. 18: REEF under Demeter against PSLO under Demeter.
fn compared(all: &[Vec<Course>]) -> Vec<Row> {
    let [plain, reef, areas] = all else { return Vec::new() };
    let [plain, reef, areas] = [plain, reef, areas].map(|courses| before_change(courses));
    let change = |what: &str, printed, value: &dyn Fn(&GatedTotals) -> f64| {
        let row = format!("{what}, REEF under Demeter against PSLO under it");
        let ours = reef.change_percent(&plain, value);
        Row::change(row, "%", printed, ours).because(DEMETER)
    };
    let best_effort = |served: &GatedTotals| served.class_per_s(served.classes.len() - 1);
    let c6 = reef.minus(&plain, 100.0, in_c6);
    let mut rows = vec![
        change("EE(TPP)", 20.43, &tpp),
        change("EE(P99)", 75.16, &ee_p99),
        change("EE(P99.9)", 43.46, &ee_p999),
        change("P99", -27.91, &p99_ms),
        change("P99.9", -11.99, &p999_ms),
        change("CPU frequency", -43.02, &hertz),
        change("power", -18.24, &watts),
        Row::change("C6 residency, REEF under Demeter against PSLO under it", "points", 20.65, c6)
            .because(DEMETER),
        Row::change(
            "best-effort throughput, QoS-WC against PSLO under Demeter",
            "%",
            7.60,
            areas.change_percent(&plain, best_effort),
        )
        .because(ROUNDS),
        Row::held(
            "best-effort throughput, QoS-WC against REEF under Demeter",
            "%",
            7.60,
            areas.change_percent(&reef, best_effort),
            AtLeast(0.0),
        ),
    ];
    rows.extend(shape_rows([&plain, &reef, &areas]));
    rows
}

/// Returns the rows that Fig. 18 and the text show without a number.
fn shape_rows([plain, reef, areas]: [&GateCell; 3]) -> Vec<Row> {
    let mean_ms =
        |served: &GatedTotals| served.latency().mean().map_or(f64::NAN, Nanos::as_millis_f64);
    let promised =
        |served: &GatedTotals| throughput(served) - served.class_per_s(served.classes.len() - 1);
    let row = |what: &str, unit, claim, ours, near| {
        Row::compared(what, unit, claim, ours, near).because(DEMETER)
    };
    vec![
        row(
            "variation of the latency, REEF under Demeter over PSLO under it",
            "1",
            "reduced",
            reef.over(plain, variation),
            AtMost(1.0),
        ),
        row(
            "mean latency, REEF under Demeter over PSLO under it",
            "1",
            "stable",
            reef.over(plain, mean_ms),
            Between(0.9, 1.1),
        ),
        row(
            "promised connections' throughput, REEF under Demeter over PSLO under it",
            "1",
            "less",
            reef.over(plain, promised),
            AtMost(1.0),
        ),
        row(
            "power, QoS-WC against REEF under Demeter",
            "%",
            "close",
            areas.change_percent(reef, watts),
            Between(-5.0, 5.0),
        ),
        row(
            "power, QoS-WC against PSLO under Demeter",
            "%",
            "lower",
            areas.change_percent(plain, watts),
            AtMost(0.0),
        ),
    ]
}

/// The mean of a second's figure over part of a course.
fn during(course: &Course, (from, to): (u64, u64), value: fn(&Second) -> f64) -> f64 {
    let within = |look: &&Second| look.second > from as f64 && look.second <= to as f64;
    let values: Vec<f64> = course.looks.iter().filter(within).map(value).collect();
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The ten seconds before promises are tightened, and all seconds after.
fn spans(times: Times) -> [(u64, u64); 2] {
    [(times.change.saturating_sub(10), times.change), (times.change, times.end)]
}

/// Fig. 19: cores by zone.
fn zones(schemes: &[Scheme], all: &[Vec<Course>], times: Times) -> Vec<Row> {
    let mean = |courses: &[Course], span, value: fn(&Second) -> f64| {
        estimate_of(&courses.iter().map(|course| during(course, span, value)).collect::<Vec<_>>())
    };
    let [lax, tight] = spans(times);
    let mut rows = Vec::new();
    for (scheme, courses) in schemes.iter().zip(all) {
        let row = |what: &str| format!("{}: {what}", scheme.name);
        let silent = "the figure's axis cannot be read";
        let cold = mean(courses, lax, |look| look.cold);
        let cold_then = mean(courses, tight, |look| look.cold);
        let hot = mean(courses, lax, |look| look.hot);
        let row_of = |what: &str, ours: &Estimate| {
            Row::reported(row(what), "cores", Printed::Nothing, ours, silent)
        };
        rows.push(row_of("hot cores before 85 s", &hot));
        rows.push(row_of("hot cores after it", &mean(courses, tight, |look| look.hot)));
        rows.push(row_of("warm cores before 85 s", &mean(courses, lax, |look| look.warm)));
        rows.push(row_of("cold cores before 85 s", &cold));
        rows.push(row_of("cold cores after it", &cold_then));
    }
    let [plain, reef, areas] = all else { return rows };
    rows.extend(cold_rows(plain, reef, times));
    let moved = areas.iter().map(|course| {
        let hot = |span| during(course, span, |look| look.hot);
        (hot(tight) - hot(lax)).abs()
    });
    rows.push(Row::held(
        "QoS-WC: cores that move when promises are tightened",
        "cores",
        "stable areas",
        estimate_of(&moved.collect::<Vec<_>>()),
        AtMost(1.0),
    ));
    rows
}

/// Fig. 19: the cold area shrinks when promises are tightened, and is larger with REEF.
fn cold_rows(plain: &[Course], reef: &[Course], times: Times) -> Vec<Row> {
    let [lax, tight] = spans(times);
    let cold = |course: &Course, span| during(course, span, |look| look.cold);
    let shrunk = |courses: &[Course]| {
        let each = courses.iter().map(|course| cold(course, tight) - cold(course, lax));
        estimate_of(&each.collect::<Vec<_>>())
    };
    let pairs = reef.iter().zip(plain);
    let larger = pairs.map(|(reef, plain)| cold(reef, tight) - cold(plain, tight));
    let larger = estimate_of(&larger.collect::<Vec<_>>());
    let row =
        |name: &str, claim, ours, near| Row::compared(name, "cores", claim, ours, near).by_order();
    vec![
        row("PSLO+Demeter: cold cores after 85 s less before", "less", shrunk(plain), AtMost(0.0)),
        row(
            "PSLO+REEF+Demeter: cold cores after 85 s less before",
            "less",
            shrunk(reef),
            AtMost(0.0),
        ),
        row(
            "cold cores after 85 s, REEF under Demeter less PSLO under it",
            "larger",
            larger,
            AtLeast(0.0),
        ),
    ]
}

/// Seconds after the change in which a promise was missed.
fn missed(course: &Course, times: Times) -> f64 {
    let after = course.looks.iter().filter(|look| look.second > times.change as f64);
    after.filter(|look| look.worst > 1.0 || look.best_effort < FLOOR_PER_S).count() as f64
}

/// Fig. 20: promises.
fn promise_rows(schemes: &[Scheme], all: &[Vec<Course>], times: Times) -> Vec<Row> {
    let spikes = |courses: &[Course]| {
        estimate_of(&courses.iter().map(|course| missed(course, times)).collect::<Vec<_>>())
    };
    let counted = "a second has 480 answers of the p99.9 class, so one late answer is a spike";
    let mut rows: Vec<Row> = schemes
        .iter()
        .zip(all)
        .map(|(scheme, courses)| {
            let row = format!("{}: seconds with a missed promise after 85 s", scheme.name);
            Row::reported(row, "s", Printed::Nothing, spikes(courses), counted)
        })
        .collect();
    let [plain, reef, areas] = all else { return rows };
    let fewer = |theirs: &[Course]| {
        let pairs = areas.iter().zip(theirs);
        let each = pairs.map(|(ours, theirs)| missed(ours, times) - missed(theirs, times));
        estimate_of(&each.collect::<Vec<_>>())
    };
    for (name, theirs) in [("PSLO under Demeter", plain), ("REEF under Demeter", reef)] {
        rows.push(Row::held(
            format!("the same, QoS-WC less {name}"),
            "s",
            "fewest spikes",
            fewer(theirs),
            AtMost(0.0),
        ));
    }
    let (name, floor) = ("QoS-WC: best effort over its floor after 85 s", over_floor(areas));
    rows.push(Row::held(name, "1", "at least 1", floor, AtLeast(1.0)));
    rows
}

const NARROW: &str = "C below the number of cores, as in section 3.3";

/// Best effort's throughput over its floor after the change.
fn over_floor(courses: &[Course]) -> Estimate {
    let last = |course: &Course| course.after.classes.len() - 1;
    let floor = courses.iter().map(|course| course.after.class_per_s(last(course)) / FLOOR_PER_S);
    estimate_of(&floor.collect::<Vec<_>>())
}

fn figures(schemes: &[Scheme], all: &[Vec<Course>]) -> [Figure; 3] {
    let points = |courses: &[Course], value: fn(&Second) -> f64| -> Vec<Point> {
        let looks = courses.iter().take(1).flat_map(|course| &course.looks);
        looks.map(|look| Point::at(look.second, value(look))).collect()
    };
    let axis = || Axis::linear("time (s)");
    let with = |figure: Figure, value: fn(&Second) -> f64| {
        let each = schemes.iter().zip(all);
        each.fold(figure, |figure, (scheme, courses)| {
            figure.with_curve(scheme.name, CurveStyle::Line, points(courses, value))
        })
    };
    let figure = |title, y| Figure::new(title, axis(), Axis::linear(y));
    [
        with(figure("Hot cores", "cores"), |look| look.hot),
        with(figure("Cold cores", "cores"), |look| look.cold),
        with(figure("Late answers over those allowed", "1"), |look| look.worst),
    ]
}
