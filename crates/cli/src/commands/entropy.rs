//! `lull entropy`: E_S and its parts of recorded runs, and how many more cores one policy
//! needs than another for the same E_S.
//!
//! A run is one part, or several if its phases have names (`lull demo`,
//! `lull compare`): `arq-0`, `arq-1`, ... belong to the part `arq`. The entropy
//! of a part is computed from its tails over all its requests and its mean progress (Ah-Q,
//! Liu et al. 2024, section V-B). The interval is Student's t over its phases, or over ten
//! intervals of equal length if it has only one phase. Epochs are correlated, so that an
//! interval over epochs would be too narrow.
//!
//! The second table is what became of the cores ([`SpaceTime`], Figs. 4 and 9).

use crate::cli::EntropyArgs;
use crate::commands::UsageError;
use crate::text::{estimate, number, table};
use lull_agent::recorded::{PartResult, SpaceTime};
use lull_measure::equivalence::{Measured, equivalence};
use serde::Serialize;

/// The result as JSON.
#[derive(Debug, Serialize)]
struct Report {
    parts: Vec<PartResult>,
    /// Indexed by pair of parts that were recorded with several numbers of cores.
    equivalence: Vec<CoreEquivalence>,
}

/// How many more cores one part needs than another for the same E_S.
#[derive(Debug, Serialize)]
struct CoreEquivalence {
    /// The part that needs more cores.
    of: String,
    /// The part that needs fewer cores.
    than: String,
    /// The E_S of the comparison.
    entropy: f64,
    /// Additional cores that `of` needs; negative if it needs fewer. `None` if one of the
    /// parts was not measured on both sides of this entropy.
    cores: Option<f64>,
}

pub(crate) fn run(args: &EntropyArgs) -> anyhow::Result<()> {
    if let Some(at) = args.at.filter(|at| !(0.0..=1.0).contains(at)) {
        return Err(UsageError(format!("--at {at}: entropy lies between 0 and 1")).into());
    }
    let mut parts = Vec::new();
    for file in &args.runs {
        parts.extend(PartResult::read(file, args.skip)?);
    }
    let equivalence = equivalences(&parts, args.at);
    let report = Report { parts, equivalence };
    if args.json {
        return super::print_json(&report);
    }
    print(&report);
    Ok(())
}

/// Every pair of parts that were recorded with several numbers of cores.
fn equivalences(parts: &[PartResult], at: Option<f64>) -> Vec<CoreEquivalence> {
    let mut names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let points = |name: &str| -> Vec<Measured> {
        let own = parts.iter().filter(|part| part.name == name);
        own.filter_map(|part| Some(Measured { amount: part.cores, entropy: part.system? }))
            .collect()
    };
    let curves: Vec<_> = names.into_iter().map(|name| (name, points(name))).collect();
    let has_several = |points: &[Measured]| {
        points.iter().any(|point| Some(point.amount) != points.first().map(|first| first.amount))
    };
    let curves: Vec<_> = curves.into_iter().filter(|(_, points)| has_several(points)).collect();
    let mut all = Vec::new();
    for (index, (of, first)) in curves.iter().enumerate() {
        for (than, second) in &curves[index + 1..] {
            let Some(entropy) = at.or_else(|| between(first, second)) else { continue };
            let cores = equivalence(entropy, first, second);
            let (of, than) = ((*of).to_owned(), (*than).to_owned());
            all.push(CoreEquivalence { of, than, entropy, cores });
        }
    }
    all
}

/// Returns the middle of the entropies that both parts reach; `None` if the ranges do not
/// overlap.
fn between(first: &[Measured], second: &[Measured]) -> Option<f64> {
    let range = |points: &[Measured]| {
        let of = |start, pick: fn(f64, f64) -> f64| {
            points.iter().map(|point| point.entropy).fold(start, pick)
        };
        (of(f64::INFINITY, f64::min), of(f64::NEG_INFINITY, f64::max))
    };
    let (a, b) = (range(first), range(second));
    let (low, high) = (a.0.max(b.0), a.1.min(b.1));
    (low < high).then_some((low + high) / 2.0)
}

fn print(report: &Report) {
    let part = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
    let rows = report.parts.iter().map(|found| {
        vec![
            found.name.clone(),
            number(found.cores),
            found.epochs.to_string(),
            part(found.system),
            estimate(found.mean_system),
            part(found.lc),
            part(found.be),
            found.missed.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", 100.0 * share)),
        ]
    });
    let header =
        ["part", "cores", "epochs", "E_S", "E_S by epoch", "E_LC", "E_BE", "epochs missed"];
    println!("{}", table(&header, rows));
    print_space_time(&report.parts);
    if report.equivalence.is_empty() {
        println!(
            "\nTo see how many cores a policy saves, give runs of two policies, each with \
             several numbers of cores (limits.cores)."
        );
        return;
    }
    let rows = report.equivalence.iter().map(|worth| {
        let cores = worth.cores.map_or_else(|| "not measured on both sides".to_owned(), number);
        vec![worth.of.clone(), worth.than.clone(), number(worth.entropy), cores]
    });
    println!("\n{}", table(&["policy", "needs more cores than", "for E_S", "by"], rows));
}

/// Prints the use of the cores' time in each part.
fn print_space_time(parts: &[PartResult]) {
    let part = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
    let rows = parts.iter().map(|found| {
        let SpaceTime { used_cores, crosses, waste_cores_at_most, switches_per_second } =
            found.space_time;
        let marks = [used_cores, crosses, waste_cores_at_most, switches_per_second].map(part);
        [found.name.clone(), number(found.cores)].into_iter().chain(marks).collect()
    });
    let header =
        ["part", "cores", "used", "threads without a core", "waste at most", "switches (1/s)"];
    println!("\n{}", table(&header, rows));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, cores: f64, system: f64) -> PartResult {
        PartResult { name: name.to_owned(), cores, system: Some(system), ..PartResult::default() }
    }

    #[test]
    fn a_policy_is_worth_the_cores_that_the_other_needs_more() {
        let parts = [
            found("unmanaged", 6.0, 0.55),
            found("unmanaged", 7.0, 0.19),
            found("arq", 5.0, 0.45),
            found("arq", 6.0, 0.05),
            found("even", 6.0, 0.3),
        ];
        let all = equivalences(&parts, Some(0.25));
        assert_eq!(all.len(), 1, "even was recorded with one number of cores only");
        assert_eq!((all[0].of.as_str(), all[0].than.as_str()), ("arq", "unmanaged"));
        assert!((all[0].cores.unwrap() - (5.5 - 6.8333)).abs() < 1e-3);
        let unasked = equivalences(&parts, None);
        assert!((unasked[0].entropy - 0.32).abs() < 1e-9, "the middle of 0.19 and 0.45");
        assert_eq!(equivalences(&parts, Some(0.9))[0].cores, None);
    }
}
