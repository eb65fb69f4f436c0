//! Checks of a machine and its apps against the length of a run, before anything is simulated.

use crate::bounds::REQUESTS_MAX;
use crate::scenario::InvalidKey;
use lull_control::RosterEvent;
use lull_measure::Nanos;
use lull_sim::machine::{
    Activity, ClosedClients, DutyCycle, LoadStep, MachineApp, MachineModel, Query, Traffic,
};
use lull_sim::model::Distribution;

/// Refuses apps that serve calls on a machine that is under no tier.
pub(super) fn check_no_calls(model: &MachineModel) -> Result<(), InvalidKey> {
    let is_called = |app: &MachineApp| matches!(app.activity, Activity::Called);
    let Some(at) = model.app.iter().position(is_called) else { return Ok(()) };
    let message = "only an app of a host under tiers is `called`: write [host.NAME], or what its \
                   requests are";
    Err(InvalidKey::at(format!("app[{at}].activity"), message))
}

/// Rejects a replication of more requests, or of more pauses of cores, than can be simulated in
/// half an hour.
pub(in super::super) fn check_amount(model: &MachineModel, span: Nanos) -> Result<(), InvalidKey> {
    let bound = |key: String, count: f64, what: &str, less: &str| {
        if count <= REQUESTS_MAX {
            return Ok(());
        }
        let message = format!(
            "a replication of {span} would take about {count:.1e} {what}, at most \
             {REQUESTS_MAX:.0e} are simulated: {less}, or run shorter (run.length)"
        );
        Err(InvalidKey::at(key, message))
    };
    let check = |key: String, count: f64| bound(key, count, "requests", "send less");
    for (at, gate) in model.gate.iter().enumerate() {
        let several = model.gate.len() > 1;
        let at = if several { format!("node.gate[{at}]") } else { "node.gate".to_owned() };
        let Query { before, io, after, round_trip } = gate.query;
        let connections = model.behind(gate).map(|(_, app)| app.threads).sum();
        if gate.load.is_empty() {
            let most = per_s(connections, &[before, io, after, round_trip]);
            let most = most.min(per_s(model.cores.into(), &[before, after]));
            check(format!("{at}.query"), most * span.as_secs_f64())?;
        } else {
            check(format!("{at}.load"), arrivals(&gate.load, span))?;
        }
        let sleep = gate.polling.map(|polling| Distribution::constant(polling.every));
        let looks = sleep.map_or(0.0, |sleep| per_s(connections, &[sleep]) * span.as_secs_f64());
        let key = format!("{at}.polling.every");
        bound(key, looks, "looks of workers", "look less often")?;
    }
    if let Some(DutyCycle { cores, period, .. }) = &model.duty_cycle {
        let pauses = cores.len() as f64 * span.as_secs_f64() / period.as_secs_f64();
        let key = "node.duty-cycle.period".to_owned();
        bound(key, pauses, "pauses of cores", "give a longer period")?;
    }
    for (at, app) in model.app.iter().enumerate() {
        if let Activity::EventLoops(loops) = &app.activity
            && let Traffic::Open { load, .. } = &loops.traffic
        {
            let key = format!("app[{at}].activity.event-loops.traffic.open.load");
            check(key, arrivals(load, span))?;
        }
        let Activity::Requests { load, closed, work, delay, .. } = &app.activity else { continue };
        let key = |rest| format!("app[{at}].activity.requests.{rest}");
        let Some(ClosedClients { clients, think }) = *closed else {
            check(key("load"), arrivals(load, span))?;
            continue;
        };
        let delay = delay.unwrap_or(Distribution::constant(Nanos::ZERO));
        let most = per_s(clients, &[think, *work, delay]);
        let most = most.min(per_s(app.threads.min(model.cores.into()), &[*work]));
        check(key("closed.clients"), most * span.as_secs_f64())?;
    }
    Ok(())
}

/// Requests of these load steps up to the end of a span.
fn arrivals(load: &[LoadStep], span: Nanos) -> f64 {
    let ends = load.iter().skip(1).map(|step| step.from).chain([Nanos::MAX]);
    let requests = load.iter().zip(ends).map(|(step, end)| {
        let time = end.min(span).0.saturating_sub(step.from.min(span).0);
        step.rate_per_s * Nanos(time).as_secs_f64()
    });
    requests.sum()
}

/// Requests a second of this many clients or cores that each spend this on one and never wait.
fn per_s(count: u32, parts: &[Distribution]) -> f64 {
    f64::from(count) / parts.iter().map(|part| part.mean.as_secs_f64()).sum::<f64>()
}

/// Refuses changes after the end of a replication, which would never happen, and apps that are
/// absent for all of the counted time, which would have no figures.
pub(in super::super) fn check_presence(
    model: &MachineModel,
    warmup: Nanos,
    length: Nanos,
) -> Result<(), InvalidKey> {
    let end = warmup.saturating_add(length);
    for (at, app) in model.app.iter().enumerate() {
        let changes = app.presence.changes();
        if let Some((time, _, key)) = changes.iter().find(|(time, ..)| *time >= end) {
            let message = format!(
                "{time} is not before the end of a replication, which is at {end} (warm-up and \
                 length)"
            );
            return Err(InvalidKey::at(format!("app[{at}].{key}"), message));
        }
        let counted = |(time, ..): &&(Nanos, RosterEvent, &str)| *time <= warmup;
        let before = changes.iter().rfind(counted).map(|(_, event, _)| *event);
        let is_present =
            before.map_or(app.presence.begins_present(), |event| event != RosterEvent::Departed);
        let later = &changes[changes.iter().filter(counted).count()..];
        if !is_present && later.is_empty() {
            let message = format!("the app is absent after the warm-up of {warmup}");
            return Err(InvalidKey::at(format!("app[{at}].leaves"), message));
        }
    }
    Ok(())
}
