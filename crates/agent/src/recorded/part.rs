//! A part of a run under one policy, and its entropy.

use super::database::open;
use super::run::{EpochRow, Run};
use super::series::Series;
use super::space_time::SpaceTime;
use anyhow::bail;
use lull_control::AppSpec;
use lull_measure::entropy::{
    BeReading, LcReading, RelativeImportance, SystemEntropy, system_entropy,
};
use lull_measure::statistics::Estimate;
use lull_measure::{Latency, Nanos};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Number of intervals that a part with one phase is divided into.
const STRETCHES: usize = 10;

/// The epochs of one part, phase by phase.
#[derive(Debug)]
pub struct Part<'a> {
    /// The policy that was followed.
    pub name: String,
    phases: Vec<Vec<&'a EpochRow>>,
}

/// One phase of a part by itself: a block of a comparison.
#[derive(Debug, Clone)]
pub struct Phase {
    /// E_S, E_LC, E_BE over the phase.
    pub entropy: SystemEntropy,
    /// Share of epochs in which some app missed its bound.
    pub missed: Option<f64>,
    /// Indexed by app: tail in ms of a latency-critical one, progress in percent of alone of a
    /// best-effort one.
    pub apps: Vec<Option<f64>>,
}

/// All epochs of one app in a part.
#[derive(Debug, Clone, Default)]
pub struct AppResult {
    /// All its requests.
    pub latency: Latency,
    /// Mean of its work per second.
    pub progress_per_s: Option<f64>,
}

/// The results of one part.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PartResult {
    /// The policy, or what the phases are called.
    pub name: String,
    /// The record.
    pub file: String,
    /// Cores that might be used.
    pub cores: f64,
    /// Epochs that count.
    pub epochs: usize,
    /// E_S over the whole part.
    pub system: Option<f64>,
    /// E_LC over the whole part.
    pub lc: Option<f64>,
    /// E_BE over the whole part.
    pub be: Option<f64>,
    /// Mean of the epochs' E_S with its interval.
    pub mean_system: Option<Estimate>,
    /// Share of epochs in which the tail of some app was above its bound.
    pub missed: Option<f64>,
    /// Whether every latency-critical app with a bound has a tail: only then does an E_LC of 0
    /// show that all kept their bounds.
    #[serde(skip)]
    pub has_all_tails: bool,
    /// The use of the cores' time.
    pub space_time: SpaceTime,
}

impl PartResult {
    /// The results of all parts of a record; the first `skip` of each phase is left out.
    ///
    /// # Errors
    /// If the file is not a record, or no epoch is left.
    pub fn read(file: &Path, skip: Nanos) -> anyhow::Result<Vec<Self>> {
        let run = Run::read(file)?;
        let series = Series::read(&open(file)?, &run, &SpaceTime::METRICS)?;
        let parts = Part::all_of(&run, skip)?;
        Ok(parts.iter().map(|part| part.find(&run, &series)).collect())
    }
}

impl<'a> Part<'a> {
    /// The parts of a run; the first `skip` of each phase is left out.
    pub fn all_of(run: &'a Run, skip: Nanos) -> anyhow::Result<Vec<Self>> {
        let phases = in_phases(run.epochs.iter().map(|epoch| (epoch.phase.clone(), epoch)));
        let mut parts: BTreeMap<String, Vec<Vec<&EpochRow>>> = BTreeMap::new();
        for (phase, epochs) in phases {
            let begin = epochs[0].time + skip;
            let counted =
                epochs.into_iter().filter(|epoch| skip == Nanos::ZERO || epoch.time > begin);
            let counted: Vec<_> = counted.collect();
            if !counted.is_empty() {
                parts.entry(name_of(&phase, &run.policy)).or_default().push(counted);
            }
        }
        if parts.is_empty() {
            bail!("{} has no epoch left: was it shorter than --skip?", run.file.display());
        }
        Ok(parts.into_iter().map(|(name, phases)| Self { name, phases }).collect())
    }

    /// Every phase by itself, in the order of the run.
    pub fn phases(&self, run: &Run) -> Vec<Phase> {
        let solo = solo_rates(run);
        let phase = |epochs: &Vec<&EpochRow>| Phase {
            entropy: entropy(&run.apps, &solo, epochs),
            missed: share_missed(&run.apps, epochs),
            apps: (0..run.apps.len()).map(|app| figure(run, &solo, app, epochs)).collect(),
        };
        self.phases.iter().map(phase).collect()
    }

    /// Numbers of its epochs, phase by phase, in the order of the run.
    pub fn numbers(&self) -> Vec<Vec<i64>> {
        let of = |phase: &Vec<&EpochRow>| phase.iter().map(|epoch| epoch.number).collect();
        self.phases.iter().map(of).collect()
    }

    /// All requests of an app, phase by phase, in the order of the run.
    pub fn latencies(&self, app: usize) -> Vec<Latency> {
        self.phases.iter().map(|phase| merged(app, phase.iter().copied())).collect()
    }

    /// Every app over the whole part.
    pub fn apps(&self, run: &Run) -> Vec<AppResult> {
        let epochs = || self.phases.iter().flatten();
        let of = |app: usize| {
            let latency = merged(app, epochs().copied());
            let mut whole = AppResult { latency, ..AppResult::default() };
            let rates = epochs().filter_map(|epoch| epoch.apps[app].progress_per_s);
            let rates: Vec<f64> = rates.collect();
            let mean = rates.iter().sum::<f64>() / rates.len() as f64;
            whole.progress_per_s = (!rates.is_empty()).then_some(mean);
            whole
        };
        (0..run.apps.len()).map(of).collect()
    }

    /// Its entropy, whole and by epoch, and its space-time, which is empty if `series` was not read
    /// with [`SpaceTime::METRICS`].
    pub fn find(&self, run: &Run, series: &Series) -> PartResult {
        let epochs: Vec<&EpochRow> = self.phases.iter().flatten().copied().collect();
        let solo = solo_rates(run);
        let whole = entropy(&run.apps, &solo, &epochs);
        let is_known = whole.lc.is_some() || whole.be.is_some();
        PartResult {
            name: self.name.clone(),
            file: run.file.display().to_string(),
            cores: run.cores.0.len() as f64,
            epochs: epochs.len(),
            system: is_known.then_some(whole.system),
            lc: whole.lc,
            be: whole.be,
            mean_system: Estimate::from_values(&self.means(run, &solo)),
            missed: share_missed(&run.apps, &epochs),
            has_all_tails: has_all_tails(&run.apps, &epochs),
            space_time: SpaceTime::of_epochs(series, run, &self.numbers().concat()),
        }
    }

    /// Mean E_S of each phase, or of stretches of the only one.
    fn means(&self, run: &Run, solo: &[f64]) -> Vec<f64> {
        let only = self.phases.len() == 1;
        let size = if only { self.phases[0].len().div_ceil(STRETCHES) } else { usize::MAX };
        let pieces = self.phases.iter().flat_map(|phase| phase.chunks(size.max(1)));
        let mean = |piece: &[&EpochRow]| {
            let each = piece.iter().map(|epoch| entropy(&run.apps, solo, &[epoch]));
            let known: Vec<f64> = each
                .filter(|one| one.lc.is_some() || one.be.is_some())
                .map(|one| one.system)
                .collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
        };
        pieces.filter_map(mean).collect()
    }
}

/// Epochs with the phase each is of, in order, as the phases that they make up.
pub(super) fn in_phases<E>(epochs: impl Iterator<Item = (String, E)>) -> Vec<(String, Vec<E>)> {
    let mut phases: Vec<(String, Vec<E>)> = Vec::new();
    for (phase, epoch) in epochs {
        match phases.last_mut() {
            Some((last, epochs)) if *last == phase => epochs.push(epoch),
            _ => phases.push((phase, vec![epoch])),
        }
    }
    phases
}

/// `arq-0` belongs to the part `arq`; a phase without a number belongs to the run's policy.
pub(super) fn name_of(phase: &str, policy: &str) -> String {
    match phase.rsplit_once('-') {
        Some((name, number))
            if !number.is_empty() && number.bytes().all(|it| it.is_ascii_digit()) =>
        {
            name.to_owned()
        }
        _ => policy.to_owned(),
    }
}

/// Progress alone by app: as recorded, else the best of all epochs.
fn solo_rates(run: &Run) -> Vec<f64> {
    let best = |app: usize| {
        let all = run.epochs.iter().filter_map(|epoch| epoch.apps[app].progress_per_s);
        all.fold(0.0, f64::max)
    };
    let of = |(app, spec): (usize, &AppSpec)| spec.solo_per_s.unwrap_or_else(|| best(app));
    run.apps.iter().enumerate().map(of).collect()
}

fn entropy(apps: &[AppSpec], solo: &[f64], epochs: &[&EpochRow]) -> SystemEntropy {
    let (mut lc, mut be) = (Vec::new(), Vec::new());
    for (app, spec) in apps.iter().enumerate() {
        if spec.is_latency_critical() {
            lc.extend(tail_reading(spec, app, epochs));
            continue;
        }
        let rates = epochs.iter().filter_map(|epoch| epoch.apps[app].progress_per_s);
        let rates: Vec<f64> = rates.collect();
        if !rates.is_empty() && solo[app] > 0.0 {
            let real = rates.iter().sum::<f64>() / rates.len() as f64;
            be.push(BeReading { solo: solo[app], real });
        }
    }
    system_entropy(&lc, &be, RelativeImportance::default())
}

/// All requests of an app in these epochs.
fn merged<'a>(app: usize, epochs: impl Iterator<Item = &'a EpochRow>) -> Latency {
    let mut all = Latency::default();
    epochs
        .filter_map(|epoch| epoch.apps[app].latency.as_ref())
        .for_each(|latency| all.merge(&latency.unpack()));
    all
}

/// The tail over all requests of these epochs. Q does not depend on the
/// ideal, so that the bound may stand in for one that was not recorded.
fn tail_reading(spec: &AppSpec, app: usize, epochs: &[&EpochRow]) -> Option<LcReading> {
    let (percentile, bound) = spec.tail()?;
    let all = merged(app, epochs.iter().copied());
    let ideal = spec.ideal.unwrap_or(bound).min(bound);
    LcReading::new(ideal, all.quantile(percentile)?, bound).ok()
}

fn has_all_tails(apps: &[AppSpec], epochs: &[&EpochRow]) -> bool {
    let bounded = apps.iter().enumerate().filter(|(_, spec)| spec.is_latency_critical());
    let mut bounded = bounded.filter(|(_, spec)| spec.tail().is_some());
    bounded.all(|(app, spec)| tail_reading(spec, app, epochs).is_some())
}

fn share_missed(apps: &[AppSpec], epochs: &[&EpochRow]) -> Option<f64> {
    let judged: Vec<bool> = epochs.iter().filter_map(|epoch| missed(apps, epoch)).collect();
    let count = judged.iter().filter(|missed| **missed).count();
    (!judged.is_empty()).then(|| count as f64 / judged.len() as f64)
}

/// The one figure of an app that a table shows: see [`Phase::apps`].
fn figure(run: &Run, solo: &[f64], app: usize, epochs: &[&EpochRow]) -> Option<f64> {
    let spec = &run.apps[app];
    if spec.is_latency_critical() {
        return tail_reading(spec, app, epochs).map(|it| it.measured().as_millis_f64());
    }
    let rates = epochs.iter().filter_map(|epoch| epoch.apps[app].progress_per_s);
    let rates: Vec<f64> = rates.collect();
    let is_known = !rates.is_empty() && solo[app] > 0.0;
    is_known.then(|| 100.0 * rates.iter().sum::<f64>() / rates.len() as f64 / solo[app])
}

/// Whether some app missed its bound; `None` if none answered a request.
fn missed(apps: &[AppSpec], epoch: &EpochRow) -> Option<bool> {
    let judge = |(app, spec): (usize, &AppSpec)| {
        let (percentile, bound) = spec.tail().filter(|_| spec.is_latency_critical())?;
        let tail = epoch.apps[app].latency.as_ref()?.unpack().quantile(percentile)?;
        Some(tail > bound)
    };
    let judged: Vec<bool> = apps.iter().enumerate().filter_map(judge).collect();
    (!judged.is_empty()).then(|| judged.contains(&true))
}

#[cfg(test)]
mod tests {
    use super::super::run::{AllowedCores, AppEpoch, PackedLatency};
    use super::*;
    use lull_control::CoreSet;
    use lull_measure::Percentile;
    use std::path::PathBuf;

    /// Epochs of a second: phase, tail in ms, progress.
    fn run(epochs: &[(&str, u64, f64)]) -> Run {
        let bound = Nanos::from_millis(10);
        let be = AppSpec { solo_per_s: Some(100.0), ..AppSpec::best_effort("be") };
        let epoch = |(time, (phase, tail, progress)): (u64, &(&str, u64, f64))| {
            let latency: Latency = [Nanos::from_millis(*tail)].into_iter().collect();
            let latency = PackedLatency::new(latency.to_deflated()).unwrap();
            let lc = AppEpoch { latency: Some(latency), progress_per_s: None };
            let be = AppEpoch { latency: None, progress_per_s: Some(*progress) };
            EpochRow {
                number: time as i64,
                time: Nanos::from_secs(time),
                phase: (*phase).to_owned(),
                apps: vec![lc, be],
            }
        };
        Run {
            file: PathBuf::from("x.db"),
            policy: "arq".to_owned(),
            cores: AllowedCores(CoreSet::first(2)),
            apps: vec![AppSpec::latency_critical("lc", Percentile::P95, bound), be],
            epochs: (1..).zip(epochs).map(epoch).collect(),
        }
    }

    #[test]
    fn phases_with_numbers_are_parts_and_others_the_policys() {
        let run = run(&[("even-0", 5, 50.0), ("tide-0", 20, 50.0), ("even-1", 5, 50.0)]);
        let parts = Part::all_of(&run, Nanos::ZERO).unwrap();
        let names: Vec<_> =
            parts.iter().map(|part| (part.name.as_str(), part.phases.len())).collect();
        assert_eq!(names, [("even", 2), ("tide", 1)]);
        assert_eq!(name_of("run", "arq"), "arq");
        assert_eq!(name_of("lc-first", "arq"), "arq", "a dash is not a number");
        assert_eq!(name_of("lc-first-3", "arq"), "lc-first");
    }

    #[test]
    fn entropy_of_a_part_is_that_of_its_tail_and_mean_progress() {
        let run = run(&[("run", 20, 40.0), ("run", 20, 60.0)]);
        let found = Part::all_of(&run, Nanos::ZERO).unwrap()[0].find(&run, &Series::default());
        // Q = 1 - 10/20, E_BE = 1 - 0.5; the histogram is exact to 0.1 %.
        let close = |got: Option<f64>, want: f64| (got.unwrap() - want).abs() < 1e-3;
        assert!(close(found.lc, 0.5) && close(found.be, 0.5) && close(found.system, 0.5));
        assert_eq!((found.missed, found.epochs), (Some(1.0), 2));
    }

    #[test]
    fn an_app_that_reported_no_latency_lacks_its_tail() {
        let mut run = run(&[("run", 5, 40.0)]);
        let find = |run: &Run| {
            let found = Part::all_of(run, Nanos::ZERO).unwrap()[0].find(run, &Series::default());
            (found.lc, found.has_all_tails)
        };
        assert_eq!(find(&run), (Some(0.0), true));
        let bound = Nanos::from_millis(10);
        run.apps.push(AppSpec::latency_critical("silent", Percentile::P95, bound));
        run.epochs[0].apps.push(AppEpoch::default());
        assert_eq!(find(&run), (Some(0.0), false));
    }

    #[test]
    fn what_is_skipped_is_the_beginning_of_every_phase() {
        let run = run(&[("a-0", 20, 1.0), ("a-0", 5, 100.0), ("b-0", 20, 1.0), ("b-0", 5, 100.0)]);
        let parts = Part::all_of(&run, Nanos::from_millis(500)).unwrap();
        for part in &parts {
            let found = part.find(&run, &Series::default());
            assert_eq!((found.epochs, found.missed), (1, Some(0.0)), "{found:?}");
        }
        let error = Part::all_of(&run, Nanos::from_secs(60)).unwrap_err().to_string();
        assert!(error.contains("--skip"), "{error}");
    }
}
