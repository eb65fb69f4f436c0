//! References that are measured before control begins: the undisturbed performance of each app.
//!
//! A best-effort app's solo progress is measured before Lull's own loads start,
//! with the other best-effort apps paused; load from other clients continues. A
//! latency-critical app's ideal tail is measured under load with every best-effort app paused.
//! Only apps that Lull started are paused.

use crate::config::{AppOrigin, Config, Reference};
use crate::located::InputError;
use crate::text::number;
use anyhow::bail;
use lull_control::{AppId, AppSpec, Objective, Plant, Progress, numbered};
use lull_host::plant::HostPlant;
use lull_measure::{Latency, Nanos};

const EPOCH: Nanos = Nanos::from_millis(500);
/// Epochs that are left out while things settle.
const SETTLE: u32 = 2;
/// Epochs that count.
const COUNTED: u32 = 6;
/// The largest number of measurements of ideals. A run corrects errors that remain.
const ATTEMPTS: u32 = 3;

/// Checks that the references that the config has measured can be measured.
pub(super) fn check(config: &Config) -> Result<(), InputError> {
    let needs_quiet = config.apps.iter().enumerate().find_map(|(index, app)| {
        let ideal = app.ideal.is_some_and(|ideal| ideal.known().is_none());
        let solo = app.solo.is_some_and(|solo| solo.known().is_none());
        (ideal || solo).then(|| format!("app[{index}].{}", if ideal { "ideal" } else { "solo" }))
    });
    let Some(key) = needs_quiet else { return Ok(()) };
    let foreign = config.apps.iter().find(|app| {
        let is_started = matches!(app.origin(), Ok(AppOrigin::Start(_)));
        app.class == lull_control::Class::BestEffort && !is_started
    });
    match foreign {
        Some(app) => Err(config.source.error(
            &key,
            format!(
                "measuring needs best-effort apps paused, and Lull only pauses apps it started, \
                 not `{}`: give the number instead",
                app.name
            ),
        )),
        None => Ok(()),
    }
}

/// Returns bounds that are equally strict on every machine: a multiple of each app's ideal
/// tail. An app whose ideal tail is unknown keeps its bound.
pub fn bound_by_ideal(plant: &mut HostPlant, room: f64) {
    let set = |spec: &mut AppSpec| {
        let Some(ideal) = spec.ideal else { return };
        for objective in &mut spec.objectives {
            if let Objective::Tail { bound, .. } = objective {
                *bound = ideal.scale(room);
            }
        }
    };
    for app in 0..plant.apps().len() as u16 {
        plant.update_spec(AppId(app), set);
    }
}

/// Measures solo progress where the config has `solo = "measure"`.
pub(super) fn measure_solo(
    config: &Config,
    plant: &mut HostPlant,
    say: &dyn Fn(&str),
) -> anyhow::Result<()> {
    let wanted = |index: usize| {
        let solo: Option<Reference<f64>> = config.apps[index].solo;
        solo.is_some_and(|solo| solo.known().is_none())
    };
    for app in best_effort(plant).into_iter().filter(|app| wanted(app.index())) {
        say(&format!("measuring {} alone", plant.apps()[app.index()].name));
        let others: Vec<_> = best_effort(plant).into_iter().filter(|other| *other != app).collect();
        let solo = with_paused(plant, &others, |plant| mean_progress(plant, app))?;
        let (name, rate) = (&plant.apps()[app.index()].name, number(solo.per_s));
        say(&format!("{name} alone: {rate} {} a second", solo.source));
        plant.update_spec(app, |spec| spec.solo_per_s = Some(solo.per_s));
    }
    Ok(())
}

/// Measures ideal tails where the config has `ideal = "measure"`. An ideal above all tails that
/// follow beside best-effort apps was disturbed, and is measured again.
pub(super) fn measure_ideal(
    config: &Config,
    plant: &mut HostPlant,
    say: &dyn Fn(&str),
) -> anyhow::Result<()> {
    let open =
        |app: &AppId| config.apps[app.index()].ideal.is_some_and(|ideal| ideal.known().is_none());
    let mut wanted: Vec<AppId> = numbered(plant.apps()).map(|(app, _)| app).filter(open).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let quiet = best_effort(plant);
    say("measuring tail latency without best-effort work");
    for attempt in 1.. {
        let alone = with_paused(plant, &quiet, |plant| collect_latency(plant, &wanted))?;
        for (app, epochs) in wanted.iter().zip(&alone) {
            set_ideal(plant, *app, epochs, say)?;
        }
        if quiet.is_empty() || attempt == ATTEMPTS {
            break;
        }
        let beside = collect_latency(plant, &wanted)?;
        let each = wanted.iter().copied().zip(&beside);
        let refuted = each.filter(|(app, epochs)| is_refuted(&plant.apps()[app.index()], epochs));
        let refuted: Vec<AppId> = refuted.map(|(app, _)| app).collect();
        let Some(first) = refuted.first() else { break };
        say(&format!(
            "the ideal of `{}` is above its tail beside best-effort apps: measuring again",
            plant.apps()[first.index()].name
        ));
        wanted = refuted;
    }
    Ok(())
}

/// Sets the ideal of an app to the tail of these epochs, if it is below the present one.
fn set_ideal(
    plant: &mut HostPlant,
    app: AppId,
    epochs: &[Latency],
    say: &dyn Fn(&str),
) -> anyhow::Result<()> {
    let spec = &plant.apps()[app.index()];
    let Some((percentile, bound)) = spec.tail() else { return Ok(()) };
    let mut all = Latency::default();
    epochs.iter().for_each(|epoch| all.merge(epoch));
    let Some(ideal) = all.quantile(percentile) else {
        // A further measurement without a request leaves the ideal of the one before.
        if spec.ideal.is_some() {
            return Ok(());
        }
        bail!(
            "no latency of `{}` arrived to measure its ideal: is its load running and \
             pushing to the agent's socket?",
            spec.name
        );
    };
    if ideal > bound {
        // The measurement may have been disturbed, so the run starts all the same.
        say(&format!(
            "`{}` has {percentile} {ideal:.2} even alone, above its bound {bound}: no policy \
             can meet it unless the load falls; raise the bound or give it more cores",
            spec.name
        ));
    }
    let ideal = ideal.min(bound).min(spec.ideal.unwrap_or(bound));
    plant.update_spec(app, |spec| spec.ideal = Some(ideal));
    Ok(())
}

/// Returns whether the tail beside other apps was below the ideal in each epoch with requests.
fn is_refuted(spec: &AppSpec, beside: &[Latency]) -> bool {
    let (Some(ideal), Some((percentile, _))) = (spec.ideal, spec.tail()) else { return false };
    let mut tails = beside.iter().filter_map(|epoch| epoch.quantile(percentile)).peekable();
    tails.peek().is_some() && tails.all(|tail| tail < ideal)
}

fn best_effort(plant: &HostPlant) -> Vec<AppId> {
    let quiet = |spec: &AppSpec| !spec.is_latency_critical();
    numbered(plant.apps()).filter(|(_, spec)| quiet(spec)).map(|(app, _)| app).collect()
}

/// Pauses apps, runs `work`, and resumes the apps whether `work` succeeds or fails.
fn with_paused<T>(
    plant: &mut HostPlant,
    apps: &[AppId],
    work: impl FnOnce(&mut HostPlant) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let paused: Result<(), _> = apps.iter().try_for_each(|app| plant.pause(*app));
    let done = paused.map_err(Into::into).and_then(|()| work(plant));
    for app in apps {
        plant.resume(*app)?;
    }
    done
}

fn mean_progress(plant: &mut HostPlant, app: AppId) -> anyhow::Result<Progress> {
    let mut seen = Vec::new();
    for epoch in 0..SETTLE + COUNTED {
        let progress = plant.observe(EPOCH)?.apps.swap_remove(app.index()).progress;
        if epoch >= SETTLE {
            seen.push(progress);
        }
    }
    let known: Vec<&Progress> = seen.iter().flatten().collect();
    let mean = known.iter().map(|progress| progress.per_s).sum::<f64>() / known.len() as f64;
    if mean > 0.0 {
        return Ok(Progress { per_s: mean, ..known[0].clone() });
    }
    let why = seen.into_iter().find_map(Result::err).map(|why| why.to_string());
    bail!(
        "`{}` made no progress alone{}",
        plant.apps()[app.index()].name,
        why.map(|why| format!(": {why}")).unwrap_or_default()
    )
}

/// Returns the latency of each app in each epoch that counts.
fn collect_latency(plant: &mut HostPlant, apps: &[AppId]) -> anyhow::Result<Vec<Vec<Latency>>> {
    let mut all = vec![Vec::new(); apps.len()];
    for epoch in 0..SETTLE + COUNTED {
        let seen = plant.observe(EPOCH)?;
        if epoch < SETTLE {
            continue;
        }
        for (app, epochs) in apps.iter().zip(&mut all) {
            let latency = seen.app(*app).and_then(|app| app.latency.as_ref().ok());
            epochs.extend(latency.map(|latency| latency.window.clone()));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::Percentile;

    #[test]
    fn an_ideal_is_refuted_by_lower_tails_in_all_epochs_with_requests() {
        let epoch = |millis: &[u64]| millis.iter().copied().map(Nanos::from_millis).collect();
        let (low, high): (Latency, Latency) = (epoch(&[1, 2]), epoch(&[1, 30]));
        let none = Latency::default();
        let bound = Nanos::from_millis(50);
        let mut spec = AppSpec::latency_critical("lc", Percentile::P95, bound);
        spec.ideal = Some(Nanos::from_millis(25));
        let refuted = |epochs: &[&Latency]| {
            let epochs: Vec<Latency> = epochs.iter().copied().cloned().collect();
            is_refuted(&spec, &epochs)
        };
        assert!(refuted(&[&low, &none, &low]));
        assert!(!refuted(&[&low, &high, &low]), "the tail is not lower in each epoch");
        assert!(!refuted(&[&none]) && !refuted(&[]), "nothing was seen");
    }
}
