//! The log of a simulated server behind a network card.

use super::{Log, MOST, Row};
use crate::cli::IntlogArgs;
use crate::commands::UsageError;
use crate::commands::sweep::read;
use lull_agent::located::Located;
use lull_lab::server::{ServerScenario, ServerSetting};
use lull_measure::Nanos;
use lull_sim::netserver::{InterruptRecord, MachineSimulation, NetServerModel};
use std::path::Path;

/// Simulates a scenario's server.
pub(super) fn log(path: &Path, args: &IntlogArgs) -> anyhow::Result<Log> {
    let scenario = read(&Located::read(path)?)?;
    let server = simulated(&scenario, args)?;
    let model = &scenario.model;
    let rows = |core: usize| server.interrupts(core).iter().map(row).collect();
    Ok(Log {
        states: model.idle.iter().map(|state| state.name.clone()).collect(),
        cores: (0..usize::from(model.cores)).map(|core| (core, rows(core))).collect(),
        span: scenario.run.length,
        is_live: false,
        notes: Vec::new(),
    })
}

fn row(it: &InterruptRecord) -> Row {
    Row {
        time: it.time,
        counts: [it.rx_packets, it.rx_bytes, it.tx_packets, it.tx_bytes].map(Some),
        cycles: Some(it.cycles),
        idle: it.idle.clone(),
        delay: Some(it.delay),
        interrupt: None,
        handler: None,
    }
}

/// Refuses a delay that the card cannot be set to, and a frequency that the cores do not have.
fn check_setting(model: &NetServerModel, args: &IntlogArgs) -> Result<(), UsageError> {
    if let Some(delay) = args.delay.filter(|delay| *delay > model.nic.delay_max) {
        let longest = model.nic.delay_max;
        return Err(UsageError(format!("--delay {delay}: the card's longest is {longest}")));
    }
    let (lowest, highest) = (model.lowest(), model.highest());
    match args.frequency.filter(|hertz| !(lowest..=highest).contains(hertz)) {
        Some(hertz) => Err(UsageError(format!(
            "--frequency {hertz}: the cores have frequencies from {lowest} to {highest}"
        ))),
        None => Ok(()),
    }
}

/// The server after the scenario's length, with its log from the warm-up on.
fn simulated(scenario: &ServerScenario, args: &IntlogArgs) -> anyhow::Result<MachineSimulation> {
    let rates: Vec<f64> = args.rate.into_iter().chain(scenario.rates_per_s.clone()).collect();
    crate::commands::check_rates(&rates)?;
    let Some(rate_per_s) = rates.first() else {
        return Err(UsageError("no load: give --rate".to_owned()).into());
    };
    let run = scenario.run;
    crate::commands::check_amount(scenario, &[*rate_per_s])?;
    check_setting(&scenario.model, args)?;
    let model = scenario.model.at_rate(*rate_per_s);
    let mut server = model.simulation(run.seed, run.replication)?;
    let setting = ServerSetting {
        delay_us: args.delay.map(Nanos::as_micros_f64),
        frequency_ghz: args.frequency.map(lull_measure::Hertz::as_ghz),
    };
    setting.apply_to(&model, &mut server);
    server.run_until(run.warmup);
    server.keep_interrupts(MOST);
    server.run_until(run.warmup + run.length);
    Ok(server)
}
