//! The properties of every plant whose apps come and go.

use super::{modest, plausible};
use crate::{AppId, ApplyOutcome, KNOBS, Observation, Plant, Rng, RosterEvent, Setting, numbered};
use lull_measure::Nanos;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

/// Lets apps of a plant depart, arrive and be restarted at random, `steps` times, while their
/// knobs are set; panics with what does not hold. `drive` makes one change happen.
///
/// A present app is observed as alive and has its knobs; an absent one is not and has none, and
/// refuses every setting. No change of one app touches what another one is set to. New
/// processes begin with what their owner gave them, or with what the app is set to. When all is
/// restored and every app is present, all knobs are as they were.
pub fn check_churn<P: Plant>(
    epoch: Nanos,
    steps: usize,
    plant: &mut P,
    mut drive: impl FnMut(&mut P, AppId, RosterEvent),
) {
    let mut rng = Rng::seed_from_u64(1);
    plant.observe(epoch).expect("the plant can be observed");
    let before = plant.settings();
    let mut present: Vec<bool> =
        numbered(plant.apps()).map(|(app, _)| plant.is_present(app)).collect();
    for _ in 0..steps {
        let _ = plant.apply(&some_of(&plausible(plant), &mut rng));
        let app = AppId(rng.random_range(0..present.len()) as u16);
        let choices = match present[app.index()] {
            true => [RosterEvent::Departed, RosterEvent::Restarted],
            false => [RosterEvent::Arrived; 2],
        };
        let event = *choices.choose(&mut rng).expect("there are two");
        let set = plant.settings();
        drive(plant, app, event);
        present[app.index()] = event != RosterEvent::Departed;
        let seen = plant.observe(epoch).expect("the plant can be observed");
        check_presence(plant, &seen, &present);
        let is_reported = seen.restarted.contains(&app);
        assert_eq!(is_reported, event == RosterEvent::Restarted, "{event:?} of {app:?}");
        check_settings(plant, (app, event), &set, &before);
    }
    for outcome in plant.restore().outcomes {
        assert!(outcome.in_force().is_some(), "not restored: {outcome:?}");
    }
    for (index, _) in present.into_iter().enumerate().filter(|(_, is_present)| !is_present) {
        drive(plant, AppId(index as u16), RosterEvent::Arrived);
    }
    plant.observe(epoch).expect("the plant can be observed");
    assert_eq!(plant.settings(), before, "knobs are not as they were before the changes");
}

fn some_of(settings: &[Setting], rng: &mut Rng) -> Vec<Setting> {
    settings.iter().filter(|_| rng.random_bool(0.5)).cloned().collect()
}

fn check_presence<P: Plant>(plant: &P, seen: &Observation, present: &[bool]) {
    let alive: Vec<bool> = seen.apps.iter().map(|app| app.alive).collect();
    assert_eq!(alive, present, "which apps are observed as alive");
    let ids = numbered(plant.apps()).map(|(app, _)| plant.is_present(app));
    assert_eq!(ids.collect::<Vec<_>>(), present, "which apps are present");
}

fn check_settings<P: Plant>(
    plant: &mut P,
    (app, event): (AppId, RosterEvent),
    set: &[Setting],
    before: &[Setting],
) {
    let now = plant.settings();
    let is_own = |setting: &&Setting| setting.knob().app() == Some(app);
    for other in set.iter().filter(|setting| !is_own(setting)) {
        assert!(now.contains(other), "{event:?} of {app:?} has changed {other:?}");
    }
    let own: Vec<&Setting> = now.iter().filter(is_own).collect();
    if event != RosterEvent::Departed {
        for setting in own {
            let is_known = before.contains(setting) || set.contains(setting);
            assert!(is_known, "new processes of {app:?} begin with {setting:?}");
        }
        return;
    }
    assert!(own.is_empty(), "{app:?} is absent and has knobs: {own:?}");
    let of_app = KNOBS.iter().filter(|row| plant.machine().capabilities.has(row.capability));
    let knobs = of_app.flat_map(|row| plant.machine().knobs(row, plant.apps().len()));
    let knobs: Vec<_> = knobs.filter(|knob| knob.app() == Some(app)).collect();
    let wanted = knobs.iter().filter_map(|knob| knob.set_to(modest(plant.machine(), *knob)?));
    let wanted: Vec<Setting> = wanted.collect();
    for outcome in plant.apply(&wanted).outcomes {
        let ApplyOutcome::Refused { why } = &outcome.got else {
            panic!("an absent app was set: {outcome:?}")
        };
        assert!(!why.is_empty(), "a refusal says why: {outcome:?}");
    }
    assert_eq!(plant.settings(), now, "a refused setting changed something");
}
