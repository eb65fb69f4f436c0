//! The limiters of RPC servers and databases beside `auto` and fixed limits, at one gate.
//!
//! Three simulated servers, each with two cores and 64 connections in a closed loop: where 64
//! transactions at once take 1.6 times and 4 times the work of one, and where they take the
//! same. The gate is the on-call gate of live servers, and every limiter starts with its
//! defaults.

use crate::papers::socc_2025_reef::mongo_with_connections;
use crate::prelude::*;
use lull_measure::{Nanos, Percentile};
use lull_policies::ADMISSION_CONTROLLERS;
use lull_policies::admission::Site;
use lull_sim::model::{Distribution, Shape};
use lull_sim::oversubscribed::{
    Contention, Costs, Device, GatedTotals, Order, OversubscribedModel, Query,
};
use lull_sim::{Replication, RunLength};
use rayon::prelude::*;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "gate-limiters",
    paper: "Gradient2, Vegas (Netflix), Envoy, MongoDB, Cinnamon (Uber); not compared in any paper",
    seed_file: "",
    summary: "limiters of RPC servers and databases at the gate, beside auto and fixed limits",
    run,
};

const CONNECTIONS: u32 = 64;

/// Controllers with the name of each in the table; the first is what the others are compared
/// with.
const CONTENDERS: [(&str, &str, &str); 10] = [
    ("open", "open", ""),
    ("cap 8", "manual", "cap = 8"),
    ("cap 16", "manual", "cap = 16"),
    ("cap 32", "manual", "cap = 32"),
    ("auto", "auto", ""),
    ("gradient2", "gradient2", ""),
    ("vegas", "vegas", ""),
    ("envoy-gradient", "envoy-gradient", ""),
    ("throughput-probing", "throughput-probing", ""),
    ("cinnamon", "cinnamon", ""),
];

/// Servers, with the work of each of 64 transactions at once over that of one alone.
const SERVERS: [(&str, f64); 3] = [("contended", 1.6), ("convoy", 4.0), ("alike", 1.0)];

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let mut report = EXPERIMENT.report("Limiters at one gate", setup);
    report.choices = vec![
        "servers are ours: two cores, 64 connections in a closed loop, transactions of 4 ms on \
         a core around an I/O of 1 ms; work grows with the square of the transactions in \
         service"
            .to_owned(),
        "limiters of RPC servers reject what this gate delays; they measure the time in service \
         by Little's law"
            .to_owned(),
        "counted after 90 s, which every limiter has to find its limit".to_owned(),
    ];
    for (server, work) in SERVERS {
        let model = model(work);
        let mut cells = Vec::new();
        for (name, controller, config) in CONTENDERS {
            cells.push((name, cell(setup, &model, controller, config)?));
        }
        let Some(((_, open), others)) = cells.split_first() else { continue };
        for (name, runs) in others {
            report.rows.extend(rows(server, name, runs, open));
        }
    }
    Ok(report)
}

/// Throughput and p99 of one controller over those of the open gate.
fn rows(server: &str, name: &str, runs: &[GatedTotals], open: &[GatedTotals]) -> [Row; 2] {
    let throughput = paired_ratio(runs, open, GatedTotals::throughput_per_s);
    let tail = paired_ratio(runs, open, p99_s);
    let row = |what: &str| format!("{server}, {name}: {what} over the open gate's");
    // `auto` must lose nothing where no limit helps, and must find a gain where there is one.
    let least = match (name, server) {
        ("auto", "alike") => Some(0.97),
        ("auto", _) => Some(1.2),
        _ => None,
    };
    let throughput = match least {
        Some(least) => Row::held(
            row("throughput"),
            "1",
            "no limit that costs, and every large gain",
            throughput,
            AtLeast(least),
        ),
        None => Row::reported(row("throughput"), "1", Printed::Nothing, throughput, WHY),
    };
    [throughput, Row::reported(row("p99"), "1", Printed::Nothing, tail, WHY)]
}

const WHY: &str = "no paper compares these limiters at one gate";

fn p99_s(served: &GatedTotals) -> f64 {
    served.latency().quantile(Percentile::P99).map_or(f64::NAN, Nanos::as_secs_f64)
}

fn cell(
    setup: &Setup<'_>,
    model: &OversubscribedModel,
    controller: &str,
    config: &str,
) -> Result<Vec<GatedTotals>, LabError> {
    let objectives = model.objectives();
    let config: toml::Table = config.parse().expect("configs of experiments are TOML");
    let (warmup, counted) = setup.either((90, 30), (2, 2));
    let length = RunLength { warmup: Nanos::from_secs(warmup), counted: Nanos::from_secs(counted) };
    let replications = setup.either(4, 1);
    setup.progress.expect(replications);
    let run = |number| {
        let site = Site { seed: setup.seed + number, ..Site::new(&objectives, model.cores) };
        let admission = ADMISSION_CONTROLLERS.build(controller, &config, &site)?;
        let streams = Replication { seed: setup.seed, number };
        let served = model.measure(admission, streams, length)?;
        setup.progress.step();
        Ok(served)
    };
    let runs: Vec<Result<_, LabError>> = (0..replications).into_par_iter().map(run).collect();
    runs.into_iter().collect()
}

/// The server on which 64 transactions at once take `work` times the work of one each.
fn model(work: f64) -> OversubscribedModel {
    let most = f64::from(CONNECTIONS);
    let spread = |mean, cv2| Distribution { mean, shape: Shape::Lognormal { cv2 } };
    let millis = Nanos::from_millis;
    OversubscribedModel {
        cores: 2,
        device: Device {
            channels: CONNECTIONS,
            rate_per_s: 1e6,
            burst: 64.0,
            order: Order::Random,
        },
        contention: Contention {
            sigma: 0.0,
            kappa: (work - 1.0) / (most * (most - 1.0)),
            most: CONNECTIONS,
            spins_on: None,
        },
        costs: Costs::default(),
        query: Query {
            before: spread(millis(2), 0.25),
            io: spread(millis(1), 1.0),
            after: spread(millis(2), 0.25),
            round_trip: spread(Nanos::from_micros(200), 0.25),
        },
        ..mongo_with_connections(CONNECTIONS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_are_sound_and_differ_in_the_work_of_many_only() {
        for (_, work) in SERVERS {
            let model = model(work);
            assert_eq!(model.check(), Ok(()));
            assert!((model.contention.instructions(CONNECTIONS) - work).abs() < 1e-9);
            assert!(model.contention.instructions(4) < 1.05);
        }
    }
}
