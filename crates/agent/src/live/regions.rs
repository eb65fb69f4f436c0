//! The division of cores and cache ways: isolated (used by one app), shared, unused.

use lull_control::{AppSpec, CoreSet, Knob, Machine, Setting, in_force};
use std::collections::BTreeMap;

/// The region of cores or ways that several apps may use.
pub(super) const SHARED: &str = "(shared)";
/// The region of cores or ways that no app may use.
pub(super) const FREE: &str = "(unused)";

/// A number by region: each app's own, shared, unused; in this order.
pub(super) type Regions = Vec<(String, f64)>;

/// Cores by region. An app without a setting may use all of them.
pub(super) fn cores(
    machine: &Machine,
    apps: &[AppSpec],
    state: &BTreeMap<Knob, Setting>,
) -> Regions {
    let all = machine.all_cores();
    let of = |app| match state.get(&Knob::Cores(app)) {
        Some(Setting::Cores(_, cores)) => cores.clone(),
        _ => all.clone(),
    };
    let sets: Vec<CoreSet> = in_force(apps).map(|(app, _)| of(app)).collect();
    let users = all.iter().map(|core| users(&sets, |cores| cores.contains(core)));
    by_region(apps, users)
}

/// Cache ways by region; empty where they cannot be divided.
pub(super) fn ways(
    machine: &Machine,
    apps: &[AppSpec],
    state: &BTreeMap<Knob, Setting>,
) -> Regions {
    let Some(cache) = &machine.cache else { return Regions::new() };
    let of = |app| match state.get(&Knob::CacheWays(app)) {
        Some(Setting::CacheWays(_, ways)) => ways.0,
        _ => u64::MAX,
    };
    let masks: Vec<u64> = in_force(apps).map(|(app, _)| of(app)).collect();
    let users = (0..cache.ways.min(64)).map(|way| users(&masks, |mask| mask >> way & 1 == 1));
    by_region(apps, users)
}

/// The apps that may use something.
fn users<T>(all: &[T], may: impl Fn(&T) -> bool) -> Vec<usize> {
    all.iter().enumerate().filter(|(_, one)| may(one)).map(|(app, _)| app).collect()
}

fn by_region(apps: &[AppSpec], users: impl Iterator<Item = Vec<usize>>) -> Regions {
    let names = in_force(apps).map(|(_, app)| app.name.as_str()).chain([SHARED, FREE]);
    let mut regions: Regions = names.map(|name| (name.to_owned(), 0.0)).collect();
    let count = regions.len() - 2;
    for users in users {
        let place = match users.as_slice() {
            [] => count + 1,
            [only] => *only,
            _ => count,
        };
        regions[place].1 += 1.0;
    }
    regions
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::conformance::{MemoryApp, MemoryPlant};
    use lull_control::{AppId, Plant, WayMask};
    use lull_measure::Nanos;

    fn plant() -> MemoryPlant {
        let app = |name: &str| MemoryApp {
            spec: AppSpec::best_effort(name),
            demand_cores: 1.0,
            service: Nanos::from_millis(1),
            threads: 2,
        };
        MemoryPlant::new(8, vec![app("a"), app("b")])
    }

    fn state(settings: Vec<Setting>) -> BTreeMap<Knob, Setting> {
        settings.into_iter().map(|setting| (setting.knob(), setting)).collect()
    }

    fn numbers(regions: &Regions) -> Vec<f64> {
        regions.iter().map(|(_, number)| *number).collect()
    }

    #[test]
    fn every_core_is_of_one_region() {
        let plant = plant();
        let set = |text: &str| text.parse::<CoreSet>().unwrap();
        let state =
            state(vec![Setting::Cores(AppId(0), set("0-3")), Setting::Cores(AppId(1), set("3-5"))]);
        let regions = cores(plant.machine(), plant.apps(), &state);
        assert_eq!(numbers(&regions), [3.0, 2.0, 1.0, 2.0]);
        let names: Vec<_> = regions.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b", SHARED, FREE]);
    }

    #[test]
    fn without_settings_all_is_shared() {
        let plant = plant();
        let nothing = BTreeMap::new();
        assert_eq!(numbers(&cores(plant.machine(), plant.apps(), &nothing)), [0.0, 0.0, 8.0, 0.0]);
        let ways = ways(plant.machine(), plant.apps(), &nothing);
        assert_eq!(ways[2].1, f64::from(plant.machine().cache.as_ref().unwrap().ways));
    }

    #[test]
    fn ways_are_divided_by_their_masks() {
        let plant = plant();
        let of = |app, first, count| Setting::CacheWays(AppId(app), WayMask::run(first, count));
        let state = state(vec![of(0, 0, 4), of(1, 3, 2)]);
        let regions = numbers(&ways(plant.machine(), plant.apps(), &state));
        let all = f64::from(plant.machine().cache.as_ref().unwrap().ways);
        assert_eq!(regions, [3.0, 1.0, 1.0, all - 5.0]);
    }
}
