//! Compares mixes of core types under EETL at one target and load: which cores to buy.
//!
//! Source: EETL (Haque et al., MICRO 2017), section 6.7: with cores chosen by target and
//! load, energy falls with both. The core types are those of the paper's Table 4.

use super::system::{DispatchBench, DispatchCell, scenario};
use crate::prelude::*;
use lull_control::dispatcher::DispatcherError;
use lull_measure::{Nanos, Watts};
use lull_sim::dispatch::{CORES_MAX, DispatchModel, RequestWork};
use lull_sim::stats::Estimate;
use serde::Serialize;

/// A mix meets the target if its mean p99 is at most this factor above it, which is the
/// controller's own noise.
const WITHIN: f64 = 1.03;

/// Some cores of some types.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mix {
    /// Its name: `1F-8S`, or as given.
    pub name: String,
    /// Types of Table 4 with their numbers, slow first.
    pub cores: Vec<(String, u32)>,
    /// Peak power of all cores; the slow core's is 1 W.
    pub peak_watts: Watts,
}

/// A mix that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MixError {
    /// The text is not TYPE:NUMBER, joined by commas.
    #[error(
        "`{0}` is not a mix: write types with their numbers, slow first, such as \
             slow:8,fast:1"
    )]
    Shape(String),
    /// More cores than a simulated machine has.
    #[error("`{0}` has more cores than a machine can have, {CORES_MAX}: take fewer")]
    Cores(String),
    /// A type that Table 4 does not have.
    #[error("there is no core type `{name}`; there are: {known}")]
    Unknown {
        /// The name.
        name: String,
        /// All names.
        known: String,
    },
    /// A type before a slower one, or twice.
    #[error("`{0}`: list each type once, from slow to fast")]
    Order(String),
}

/// One mix at one target and load.
#[derive(Debug, Clone, Serialize)]
pub struct Compared {
    /// The mix.
    pub mix: Mix,
    /// Energy a request in mJ; `None` where the fastest core misses the target.
    pub energy_mj: Option<Estimate>,
    /// Its p99 in ms.
    pub tail_ms: Option<Estimate>,
    /// Whether the target is met, within the controller's noise (3 %).
    pub meets: bool,
}

/// Section 6.7's six mixes of about the same peak power.
pub fn paper_mixes() -> Vec<Mix> {
    let six = [
        ("15S", "slow:15"),
        ("1F-8S", "slow:8,fast:1"),
        ("1F-1M(-)-5S", "slow:5,medium-:1,fast:1"),
        ("1F-1M-4S", "slow:4,medium:1,fast:1"),
        ("1F-1M(+)-3S", "slow:3,medium+:1,fast:1"),
        ("2F", "fast:2"),
    ];
    let named = |(name, text): (&str, &str)| {
        let mix = parse(text).expect("a test reads all six");
        Mix { name: name.to_owned(), ..mix }
    };
    six.map(named).to_vec()
}

/// Reads a mix such as `slow:8,fast:1`.
///
/// # Errors
/// If it is not of that form, or names a type that Table 4 does not have.
pub fn parse(text: &str) -> Result<Mix, MixError> {
    let types = scenario().amp;
    let (mut cores, mut last, mut peak) = (Vec::new(), None, 0.0);
    let mut all = 0;
    for part in text.split(',') {
        let wrong = || MixError::Shape(text.to_owned());
        let (name, number) = part.trim().split_once(':').ok_or_else(wrong)?;
        let number: u32 = number.parse().map_err(|_| wrong())?;
        if number == 0 {
            return Err(wrong());
        }
        all += u64::from(number);
        if all > CORES_MAX.into() {
            return Err(MixError::Cores(text.to_owned()));
        }
        let index = types.iter().position(|one| one.name == name).ok_or_else(|| {
            let known = types.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ");
            MixError::Unknown { name: name.to_owned(), known }
        })?;
        if last.is_some_and(|last| last >= index) {
            return Err(MixError::Order(text.to_owned()));
        }
        last = Some(index);
        peak += f64::from(number) * types[index].watts.0;
        cores.push((name.to_owned(), number));
    }
    Ok(Mix { name: text.to_owned(), cores, peak_watts: Watts(peak) })
}

/// Compares mixes at a target and a load.
///
/// `work` is of one request alone on a slow core; `None` takes the paper's
/// Lucene.
///
/// # Errors
/// If a simulation fails; a mix that cannot meet the target is not an error.
pub fn compare_at(
    setup: &Setup<'_>,
    mixes: &[Mix],
    work: Option<&RequestWork>,
    target: Nanos,
    rate_per_s: f64,
) -> Result<Vec<Compared>, LabError> {
    let lucene = RequestWork::Drawn(scenario().lucene);
    compare(&DispatchBench::new(setup, target), mixes, work.unwrap_or(&lucene), rate_per_s)
}

pub(crate) fn compare(
    bench: &DispatchBench<'_>,
    mixes: &[Mix],
    work: &RequestWork,
    rate_per_s: f64,
) -> Result<Vec<Compared>, LabError> {
    let scenario = scenario();
    let one = |mix: &Mix| {
        let cores: Vec<_> =
            mix.cores.iter().map(|(name, number)| (name.as_str(), *number)).collect();
        let model = DispatchModel { work: work.clone(), ..scenario.amp(&cores) };
        let cell = under_eetl(bench, &model, rate_per_s)?;
        let tail_ms = cell.as_ref().map(DispatchCell::tail);
        let limit_ms = WITHIN * bench.target.as_millis_f64();
        Ok(Compared {
            mix: mix.clone(),
            energy_mj: cell.as_ref().map(DispatchCell::energy),
            tail_ms,
            meets: tail_ms.is_some_and(|tail| tail.mean <= limit_ms),
        })
    };
    mixes.iter().map(one).collect()
}

/// EETL on one mix; `None` where the fastest core misses the target.
fn under_eetl(
    bench: &DispatchBench<'_>,
    model: &DispatchModel,
    rate_per_s: f64,
) -> Result<Option<DispatchCell>, LabError> {
    // A single type has no threshold to control.
    let dispatcher = if model.types.len() == 1 { "tl" } else { "eetl" };
    match bench.cell(model, dispatcher, "", rate_per_s) {
        Ok(cell) => Ok(Some(cell)),
        Err(LabError::Dispatcher(DispatcherError::Unreachable { .. })) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the number of the mix with the least energy among those that meet the target.
pub fn best_mix(compared: &[Compared]) -> Option<usize> {
    let energy = |index: &usize| compared[*index].energy_mj.map_or(f64::INFINITY, |it| it.mean);
    let meets = (0..compared.len()).filter(|index| compared[*index].meets);
    meets.min_by(|a, b| energy(a).total_cmp(&energy(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_mixes_have_about_the_same_peak_power() {
        let six = paper_mixes();
        assert_eq!(six.len(), 6);
        for mix in six {
            assert!((13.6 - 1e-9..=15.0).contains(&mix.peak_watts.0), "{mix:?}");
        }
    }

    #[test]
    fn a_mix_is_read_from_slow_to_fast_or_refused_with_what_there_is() {
        assert_eq!(parse("slow:13, fast:2").unwrap().peak_watts, Watts(26.6));
        for text in ["", "slow", "slow:", "slow:0", "slow:-1", "slow:1.5"] {
            assert_eq!(parse(text), Err(MixError::Shape(text.to_owned())), "{text}");
        }
        assert!(parse("big:1").unwrap_err().to_string().contains("medium-"));
        assert!(parse("fast:1,slow:1").unwrap_err().to_string().contains("from slow to fast"));
        assert!(parse("slow:1,slow:2").is_err());
        assert!(parse("slow:60,fast:4").is_ok());
        assert_eq!(parse("slow:60,fast:5"), Err(MixError::Cores("slow:60,fast:5".to_owned())));
    }

    #[test]
    fn loose_targets_want_slow_cores_and_tight_ones_fast_cores() {
        let setup = Setup { quick: true, ..Setup::new("test") };
        let compared = |target_ms| {
            compare_at(&setup, &paper_mixes(), None, Nanos::from_millis(target_ms), 20.0).unwrap()
        };
        let tight = compared(160);
        assert_eq!(tight[0].energy_mj.is_some(), tight[0].tail_ms.is_some());
        assert!(!tight[0].meets, "15 slow cores take 276 ms for the p99");
        let loose = compared(400);
        assert!(loose[0].meets && best_mix(&loose) != Some(5), "{loose:?}");
        let hopeless = compared(100);
        assert_eq!(best_mix(&hopeless), None, "{hopeless:?}");
    }
}
