//! Fig. 4: which app runs on each core, looked at every millisecond.

use super::super::play::{EVEN, LC_FIRST, Scene, Strategy, start};
use crate::prelude::*;
use lull_measure::Nanos;
use lull_sim::stats::Failure;

/// The time before the first time-slice that is drawn.
const SETTLED: Nanos = Nanos::from_secs(5);
/// Length of a time-slice, and how many are drawn.
const TIME_SLICE: Nanos = Nanos::from_millis(1);
const TIME_SLICES: u64 = 60;

/// The apps of a scene, the critical one first, under priority alone and under isolation alone.
pub(super) fn figures(scene: &Scene, seed: u64) -> Result<Vec<Figure>, LabError> {
    let panels = [
        ("Fig. 4(c): priority without isolation, ", LC_FIRST),
        ("Fig. 4(d): isolation without priority, ", EVEN),
    ];
    let draw = |(title, strategy): (&str, Strategy)| {
        figure(&format!("{title}{}", strategy.name), scene, &strategy, seed)
    };
    panels.into_iter().map(draw).collect()
}

fn figure(title: &str, scene: &Scene, strategy: &Strategy, seed: u64) -> Result<Figure, LabError> {
    let mut control = start(scene, strategy, seed, 0, false)?;
    while control.plant().simulation().now() < SETTLED {
        control.turn().map_err(|error| Failure::Setup(error.to_string()))?;
    }
    let machine = control.plant_mut().simulation_mut();
    let cores = usize::from(scene.model.cores);
    let mut of_apps = vec![Vec::new(); scene.model.app.len()];
    let mut waste = Vec::new();
    for time_slice in 1..=TIME_SLICES {
        machine.run_until(machine.now() + TIME_SLICE);
        let mut waiting = machine.waiting_threads();
        for core in 0..cores {
            let at = Point::at(time_slice as f64, core as f64 + 1.0);
            match machine.running_on(core) {
                Some(app) => of_apps[app].push(at),
                None if waiting > 0 => {
                    waiting -= 1;
                    waste.push(at);
                }
                None => {}
            }
        }
    }
    let x = Axis::linear("time (ms)");
    let y = Axis::linear("core").between(0.5, cores as f64 + 0.5);
    let y = y.ticks((1..=cores).map(|core| core as f64));
    let axes = Figure::new(title, x.between(0.0, TIME_SLICES as f64 + 1.0), y);
    let names = scene.model.app.iter().map(|app| app.name.as_str());
    let curves = names.zip(of_apps).chain([("waste", waste)]);
    Ok(curves
        .fold(axes, |figure, (name, points)| figure.with_curve(name, CurveStyle::Points, points)))
}
