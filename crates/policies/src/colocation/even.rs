//! Even: everything divided evenly between the apps that are present.
//!
//! Ah-Q (Liu et al. 2024), section VIII, "Even Allocation Strategy": isolation
//! without priority. Each app gets the same number of cores of its own, the
//! first `C mod k` of `k` apps one more (the order is that of the config; the
//! paper gives none). The paper divides cores only; where the machine can,
//! cache ways are divided likewise into runs, because an app whose cores are
//! isolated and whose cache is not is hardly isolated. `ways = false` is the
//! paper's version.
//!
//! It never adjusts to what it measures: the DIP study is about what isolation
//! alone does. When apps come and go it divides again, so that no share is idle.
//!
//! Checked against: section VIII's rule (shares differ by one at most, nothing
//! is shared).

use crate::config::{accept_any, config, read};
use crate::entry::{ConfigSchema, Entry, Family, PolicyKind};
use crate::toolkit::regions::{Kind, Regions};
use crate::toolkit::revise;
use lull_control::{
    AppId, AppSpec, Capability, Machine, Observation, Plan, Policy, PolicyError, Reason, Rng,
    RosterChange, Setting, numbered,
};

/// The registry's entry.
pub(crate) static ENTRY: Entry<PolicyKind> = Entry {
    name: "even",
    paper: "Ah-Q (Liu et al. 2024), section VIII, Even Allocation Strategy",
    summary: "Gives every present app the same number of cores and cache ways of its own.",
    kind: PolicyKind {
        needs: &[Capability::Cores],
        uses: &[Capability::CacheWays],
        dip: Some(crate::Dip::DI),
        ..PolicyKind::new(Family::Colocation)
    },
    config: ConfigSchema::new::<Config>(),
    make: |table, machine, apps| Ok(Box::new(Even::new(&read(table)?, machine, apps)?)),
};

config! {
    /// The resources to divide.
    struct Config checked by accept_any {
        /// Whether cache ways are divided too, where the machine can
        /// (section VIII divides cores only).
        ways: bool = true,
    }
}

/// The policy: one plan for each set of present apps.
struct Even {
    machine: Machine,
    kinds: &'static [Kind],
    /// The apps that the plan divides the machine between.
    present: Vec<AppId>,
    plan: Plan,
}

impl Even {
    fn new(config: &Config, machine: &Machine, apps: &[AppSpec]) -> Result<Self, PolicyError> {
        let kinds: &'static [Kind] =
            if config.ways { &[Kind::Cores, Kind::Ways] } else { &[Kind::Cores] };
        let mut even =
            Self { machine: machine.clone(), kinds, present: Vec::new(), plan: Plan::keep() };
        match even.divide(numbered(apps).map(|(app, _)| app).collect()) {
            true => Ok(even),
            false => Err(too_many(machine, apps.len())),
        }
    }

    /// Divides the machine between these apps; `false` if there is too little for all.
    fn divide(&mut self, present: Vec<AppId>) -> bool {
        let Some(regions) = Regions::even(&self.machine, present.len(), self.kinds) else {
            return false;
        };
        let of_present = |setting: Setting| {
            let app = present.get(setting.knob().app()?.index())?;
            (setting.knob().row().knob)(app.0).set_to(setting.value())
        };
        let settings = regions.settings().into_iter().filter_map(of_present).collect();
        self.plan = Plan::keep();
        revise(&mut self.plan, settings, &Reason::Fixed);
        self.present = present;
        true
    }
}

fn too_many(machine: &Machine, apps: usize) -> PolicyError {
    let cores = machine.cores.len();
    let ways = machine.cache.as_ref().map(|cache| format!(" and {} cache ways", cache.ways));
    let message = format!(
        "{apps} apps cannot each have a share of {cores} cores{}: \
         run fewer apps, or choose `arq`, which also shares",
        ways.unwrap_or_default()
    );
    PolicyError::Apps { policy: "even", message }
}

impl Policy for Even {
    /// Each decision follows from which apps are present.
    fn roster_changed(&mut self, _: &[RosterChange]) -> bool {
        true
    }

    fn decide(&mut self, seen: &Observation, _: &mut Rng) -> Plan {
        let ids = (0u16..).map(AppId).zip(&seen.apps);
        let present: Vec<_> = ids.filter(|(_, now)| now.alive).map(|(app, _)| app).collect();
        if present != self.present {
            let fits = self.divide(present);
            debug_assert!(fits, "fewer apps than at the start have more each");
        }
        self.plan.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::conformance::{MemoryApp, MemoryPlant};
    use lull_control::{CoreSet, Knob, Plant};
    use lull_measure::Nanos;
    use rand::SeedableRng;

    fn plant(cores: u16, apps: usize) -> MemoryPlant {
        let app = |number| MemoryApp {
            spec: AppSpec::best_effort(&format!("app{number}")),
            demand_cores: 0.0,
            service: Nanos::from_millis(1),
            threads: 4,
        };
        MemoryPlant::new(cores, (0..apps).map(app).collect())
    }

    fn plan(plant: &mut MemoryPlant, config: &str) -> Plan {
        let table = config.parse().unwrap();
        let mut policy = ENTRY.build(&table, plant.machine(), plant.apps()).unwrap();
        let seen = plant.observe(Nanos::from_secs(1)).unwrap();
        policy.decide(&seen, &mut Rng::seed_from_u64(1))
    }

    fn cores(plan: &Plan, app: u16) -> CoreSet {
        match plan.setting(Knob::Cores(AppId(app))) {
            Some(Setting::Cores(_, cores)) => cores.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn shares_differ_by_one_at_most_and_nothing_is_shared() {
        let plan = plan(&mut plant(8, 3), "");
        let all: Vec<_> = (0..3).map(|app| cores(&plan, app)).collect();
        assert_eq!(all.iter().map(CoreSet::len).collect::<Vec<_>>(), [3, 3, 2]);
        let union = all.iter().fold(CoreSet::default(), |sum, one| sum.union(one));
        assert_eq!(union, CoreSet::first(8), "every core belongs to exactly one app");
    }

    #[test]
    fn the_papers_version_leaves_the_cache_alone() {
        let has_ways = |plan: &Plan| plan.setting(Knob::CacheWays(AppId(0))).is_some();
        assert!(has_ways(&plan(&mut plant(4, 2), "")));
        assert!(!has_ways(&plan(&mut plant(4, 2), "ways = false")));
    }

    #[test]
    fn more_apps_than_cores_is_an_error_that_says_so() {
        let plant = plant(2, 3);
        let refused = ENTRY.build(&toml::Table::new(), plant.machine(), plant.apps()).err();
        let text = refused.unwrap().to_string();
        assert!(text.contains("3 apps") && text.contains("2 cores"), "{text}");
    }

    #[test]
    fn the_share_of_an_app_that_is_absent_goes_to_the_others() {
        let mut plant = plant(4, 3);
        plant.end(AppId(1));
        let after = plan(&mut plant, "");
        assert_eq!(after.setting(Knob::Cores(AppId(1))), None);
        assert_eq!([0, 2].map(|app| cores(&after, app).len()), [2, 2]);
        assert!(cores(&after, 0).intersection(&cores(&after, 2)).is_empty());
    }
}
