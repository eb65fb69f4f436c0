//! The paper's machines and apps as models, and scenes on them.

use super::paper::{Paper, ms, paper};
use super::sourced::{Parameter, read};
pub(super) use crate::colocation::Scene;
use crate::trial::rules;
use lull_control::AppSpec;
use lull_measure::{Nanos, Percentile};
use lull_sim::machine::{Activity, LoadStep, MachineModel, MachineSimulation};
use lull_sim::stats::Failure;

/// Platform A with its apps; the file states which values the paper prints.
pub(super) const TEXT: &str = include_str!("platform-a.toml");
/// Ways that the paper's machine has; work is measured with all of them.
pub(super) const WAYS: u32 = 20;
/// Counted time of a best-effort app alone; it is steady from the start.
const ALONE: Nanos = Nanos::from_secs(10);

/// A machine with all its apps.
pub(super) struct Platform {
    model: MachineModel,
    pub(super) parameters: Vec<Parameter>,
    paper: Paper,
}

/// Load of an app: since when, and which share of its max load.
pub(super) type LoadProfile = Vec<(Nanos, f64)>;

/// The same share of the max load all the time.
pub(super) fn steady(share: f64) -> LoadProfile {
    vec![(Nanos::ZERO, share)]
}

impl Platform {
    /// Platform A (Table III).
    pub(super) fn a() -> Self {
        let (model, parameters) = read(TEXT);
        Self { model, parameters, paper: paper() }
    }

    /// These apps on this many cores and ways. Apps without a load are best-effort.
    ///
    /// # Errors
    /// If the best-effort apps cannot be run alone.
    pub(super) fn scene(
        &self,
        cores: u16,
        ways: u32,
        loads: &[(&str, LoadProfile)],
        best_effort: &[&str],
    ) -> Result<Scene, Failure> {
        let mut model = self.model.clone();
        model.cores = cores;
        if let Some(cache) = &mut model.cache {
            cache.reference_ways = Some(cache.ways);
            cache.ways = ways;
        }
        let load_of = |name: &str| loads.iter().find(|(app, _)| *app == name).map(|it| &it.1);
        model
            .app
            .retain(|app| load_of(&app.name).is_some() || best_effort.contains(&app.name.as_str()));
        let mut apps = Vec::new();
        for app in &mut model.app {
            let Activity::Requests { load, .. } = &mut app.activity else {
                apps.push(self.best_effort(&app.name, app.threads)?);
                continue;
            };
            let unknown = || Failure::Setup(format!("Table IV has no {}", app.name));
            let printed = self.paper.app(&app.name).ok_or_else(unknown)?;
            let step = |(from, share): &(Nanos, f64)| LoadStep {
                from: *from,
                rate_per_s: share * printed.max_load,
            };
            *load = load_of(&app.name).map_or_else(Vec::new, |it| it.iter().map(step).collect());
            let bound = ms(printed.bound_ms);
            let mut spec = AppSpec::latency_critical(&app.name, Percentile::P95, bound);
            spec.threads = Some(app.threads);
            spec.ideal = self.paper.ideal(&app.name);
            spec.max_load_per_s = Some(printed.max_load);
            apps.push(spec);
        }
        Ok(Scene { model, apps, rules: rules(), groups: Vec::new() })
    }

    /// A best-effort app, with its progress alone on the whole machine.
    fn best_effort(&self, name: &str, threads: u32) -> Result<AppSpec, Failure> {
        let mut alone = self.model.clone();
        alone.app.retain(|app| app.name == name);
        let mut node = MachineSimulation::new(&alone, 0, 0)?;
        node.run_until(ALONE);
        let mut spec = AppSpec::best_effort(name);
        spec.threads = Some(threads);
        spec.solo_per_s = Some(node.totals().apps[0].work_per_s);
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sourced::ParameterSource;
    use super::*;

    #[test]
    fn the_embedded_machine_is_a_model_and_every_number_has_a_source() {
        let platform = Platform::a();
        let loads = [("xapian", steady(0.2)), ("moses", steady(0.4))];
        let scene = platform.scene(6, 8, &loads, &["stream"]).unwrap();
        assert_eq!(scene.model.check(), Ok(()));
        let names: Vec<_> = scene.apps.iter().map(|app| app.name.as_str()).collect();
        assert_eq!(names, ["xapian", "moses", "stream"]);
        let cache = scene.model.cache.unwrap();
        assert_eq!((cache.ways, cache.reference_ways), (8, Some(WAYS)));
        // Ten threads share a memory that carries six or seven of them.
        let solo = scene.apps[2].solo_per_s.unwrap();
        assert!((5.0..8.0).contains(&solo), "{solo}");
        for source in [ParameterSource::Printed, ParameterSource::Fitted, ParameterSource::Ours] {
            assert!(platform.parameters.iter().any(|parameter| parameter.source == source));
        }
    }
}
