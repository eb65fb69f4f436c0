//! Regulators: tail and power over the number of connections of a database
//! with more threads than cores, beside the server alone (`open`).

use super::{PortraitError, SEED};
use crate::figure::{Axis, Figure, Look, Point};
use crate::papers::socc_2025_reef::stand_in;
use lull_control::Objective;
use lull_measure::{Nanos, Percentile};
use lull_policies::regulators::{self, Site};
use lull_sim::oversubscribed::{Served, Server, ServerModel};
use rayon::prelude::*;

/// What every regulator is drawn beside.
const BESIDE: &str = "open";
const CONNECTIONS: [u32; 5] = [32, 64, 128, 256, 512];
/// Long enough for regulators that search for their cap.
const WARMUP: Nanos = Nanos::from_secs(12);
const LENGTH: Nanos = Nanos::from_secs(4);

/// Keys as the lab's own table of regulators has them.
fn config(regulator: &str) -> &'static str {
    match regulator {
        "reef" => "batch = 2\nwindow = \"500ms\"",
        "apples" => "window = \"500ms\"",
        _ => "",
    }
}

/// What connections are promised where a regulator keeps promises: half a
/// second at the p99, or that one user in twenty may be driven away.
fn promise(regulator: &str) -> Option<Objective> {
    let bound = Nanos::from_millis(500);
    match regulator {
        "pslo" => Some(Objective::Tail { percentile: Percentile::P99, bound }),
        "utslo" => Some(Objective::Disengagement { ratio: 0.05 }),
        _ => None,
    }
}

pub(super) fn panels(regulator: &str) -> Result<Vec<Figure>, PortraitError> {
    let connections = || Axis::log("connections").ticks(CONNECTIONS.map(f64::from));
    let title =
        format!("{regulator}: p99 latency over the connections, each a thread of the server");
    let mut tails = Figure::new(title, connections(), Axis::log("p99 (ms)"));
    let mut power = Figure::new("Power", connections(), Axis::linear("power (W)"));
    let mut rate = Figure::new("Throughput", connections(), Axis::linear("queries/s"));
    let both = [regulator, BESIDE];
    for name in if regulator == BESIDE { &both[..1] } else { &both[..] } {
        let measured = |connections: &u32| {
            Ok((f64::from(*connections), measured(name, &stand_in(*connections))?))
        };
        let all: Vec<Result<(f64, Served), PortraitError>> =
            CONNECTIONS.par_iter().map(measured).collect();
        let all = all.into_iter().collect::<Result<Vec<_>, _>>()?;
        let curve = |value: fn(&Served) -> f64| {
            all.iter().map(move |(x, served)| Point::at(*x, value(served)))
        };
        let tail = |served: &Served| {
            let tail = served.latency().quantile(Percentile::P99);
            tail.map_or(f64::NAN, Nanos::as_millis_f64)
        };
        tails = tails.with(*name, Look::Line, curve(tail));
        power = power.with(*name, Look::Line, curve(|served| served.power().0));
        rate = rate.with(*name, Look::Line, curve(Served::throughput_per_s));
    }
    Ok(vec![tails, power, rate])
}

fn measured(regulator: &str, model: &ServerModel) -> Result<Served, PortraitError> {
    let mut model = model.clone();
    model.class.iter_mut().for_each(|class| class.objective = promise(regulator));
    let objectives = model.objectives();
    // One core is left to the system.
    let site = Site { objectives: &objectives, cores: model.cores.max(2) - 1 };
    let config: toml::Table = config(regulator).parse().expect("configs of portraits are TOML");
    let built = regulators::build(regulator, &config, &site)?;
    Ok(Server::measure(&model, built, (SEED, 0), (WARMUP, LENGTH))?)
}
