//! What a proof says of blocks whose truth is known.

use super::*;
use lull_control::{
    AppObservation, Assessment, EnergyObservation, EnergySource, Epoch, LatencyObservation,
    Observation, Plan,
};
use lull_measure::entropy::SystemEntropy;
use lull_measure::{Joules, Latency, Missing};
use rand::SeedableRng;

fn apps() -> Vec<AppSpec> {
    vec![
        AppSpec::latency_critical("lc", Percentile::P95, Nanos::from_millis(10)),
        AppSpec::best_effort("be"),
    ]
}

/// An epoch of a second with 100 requests that took this long.
fn epoch(millis: u64, energy: Result<f64, Missing>) -> Epoch {
    let why = Missing::because("test");
    let window: Latency = std::iter::repeat_n(Nanos::from_millis(millis), 100).collect();
    let latency = Ok(LatencyObservation { window, ..LatencyObservation::default() });
    let second = Nanos::from_secs(1);
    let lc = AppObservation { latency, ..AppObservation::unknown(&why) };
    let energy = energy.map(|joules| EnergyObservation {
        energy: Joules(joules),
        source: EnergySource::Measured("a meter".to_owned()),
    });
    let seen = Observation {
        apps: vec![lc, AppObservation::unknown(&why)],
        energy,
        ..Observation::unknown(second, second, &why)
    };
    let entropy = SystemEntropy { lc: None, be: None, system: 0.0 };
    let assessment = Assessment { apps: vec![lull_control::AppAssessment::default(); 2], entropy };
    let (plan, entries) = (Plan::keep(), Vec::new());
    Epoch { number: 0, seen, assessment, plan, entries, safe: false }
}

fn block(millis: u64, energy: Result<f64, Missing>) -> Block {
    let mut block = Block::default();
    block.add(&epoch(millis, energy.clone()));
    block.add(&epoch(millis, energy));
    block
}

fn proof(pairs: &[Pair]) -> Proof {
    let design = Design {
        policy: "arq".to_owned(),
        against: AGAINST.to_owned(),
        block_ns: Nanos::from_secs(30),
        planned_pairs: pairs.len(),
        seed: 1,
    };
    Proof::from_pairs(design, &apps(), pairs, &mut Rng::seed_from_u64(1))
}

/// The table's rows and the notes, one a line.
fn lines(proof: &Proof) -> String {
    let rows = proof.figures.iter().map(|figure| proof.cells(figure).join("  "));
    rows.chain(proof.notes()).collect::<Vec<_>>().join("\n")
}

/// The line of the text that begins with these words.
fn line<'a>(text: &'a str, words: &str) -> &'a str {
    text.lines()
        .find(|line| line.trim_start().starts_with(words))
        .unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn a_plain_difference_is_claimed_with_its_size() {
    let pairs = (0..8).map(|pair| Pair {
        off: block(20 + pair, Ok(50.0 + pair as f64)),
        on: block(10 + pair % 3, Ok(40.0 + (pair % 2) as f64)),
    });
    let proof = proof(&pairs.collect::<Vec<_>>());
    let text = lines(&proof);
    for quantity in ["lc: p50", "lc: p95", "lc: p99", "power", "energy per request"] {
        assert!(line(&text, quantity).contains("yes: lower by "), "{text}");
    }
    assert!(line(&text, "lc: requests answered").contains("no difference shown"), "{text}");
    assert!(line(&text, "be: progress").contains("no value"), "{text}");
    assert!(text.contains("Energy measured by a meter."), "{text}");
    let power = proof.figures.iter().find(|figure| figure.quantity == "power").unwrap();
    assert_eq!(power.off, Some(53.5), "watts are joules over a second");
}

#[test]
fn energy_that_is_not_known_throughout_is_no_figure() {
    let missing = || Err(Missing::because("no meter"));
    let pair = |number| Pair {
        off: block(20, Ok(50.0)),
        on: block(10, if number == 3 { missing() } else { Ok(1.0) }),
    };
    let mut half = Block::default();
    half.add(&epoch(10, Ok(50.0)));
    half.add(&epoch(10, missing()));
    half.add(&epoch(10, Ok(50.0)));
    assert_eq!((half.power_w(), half.energy_per_request_j(&apps())), (None, None));
    let printed = lines(&proof(&(0..8).map(pair).collect::<Vec<_>>()));
    assert!(printed.contains("Energy: not measured here: no meter."), "{printed}");
    let none = |_| Pair { off: block(20, missing()), on: block(10, missing()) };
    let text = lines(&proof(&(0..8).map(none).collect::<Vec<_>>()));
    for quantity in ["power", "energy per request"] {
        let line = line(&text, quantity);
        assert!(line.contains("not measured here") && !line.contains('0'), "{text}");
    }
}

#[test]
fn apps_that_arrived_or_departed_are_named_with_their_epochs() {
    let epochs = |alive: [bool; 3], restarted: bool| {
        let mut block = Block::default();
        for alive in alive {
            let mut epoch = epoch(10, Ok(50.0));
            epoch.seen.apps[0].alive = alive;
            epoch.seen.restarted.extend(restarted.then_some(lull_control::AppId(0)));
            block.add(&epoch);
        }
        block
    };
    let pair = Pair { off: epochs([true; 3], false), on: epochs([true, false, false], false) };
    let text = lines(&proof(&[pair.clone(), pair]));
    assert!(text.contains("(under unmanaged, under arq): lc (0, 4)."), "{text}");
    assert!(!text.contains("be ("), "it was absent throughout: {text}");
    let pair = Pair { off: epochs([true; 3], true), on: epochs([true; 3], false) };
    let text = lines(&proof(&[pair]));
    assert!(text.contains("lc (3, 0)."), "{text}");
    let pair = Pair { off: epochs([true; 3], false), on: epochs([true; 3], false) };
    let text = lines(&proof(&[pair]));
    assert!(!text.contains("absent or restarted"), "{text}");
}

#[test]
fn without_enough_whole_pairs_the_proof_claims_nothing_and_reports_that() {
    let pair = || Pair { off: block(20, Ok(50.0)), on: block(10, Ok(40.0)) };
    let text = lines(&proof(&[pair(), pair(), pair()]));
    assert!(text.contains("6 pairs are the least") && !text.contains("yes"), "{text}");
    let text = lines(&proof(&[]));
    assert!(text.contains("0 of 0 pairs") && !text.contains("yes"), "{text}");
}

#[test]
fn either_half_goes_first_as_often_and_by_lot() {
    let of = |seed| order(10, &mut Rng::seed_from_u64(seed));
    assert_eq!(of(1).iter().filter(|on| **on).count(), 5);
    assert_eq!(of(1), of(1));
    assert!((2..12).any(|seed| of(seed) != of(1)), "it is no lot");
    let odd: Vec<_> = (0..40)
        .map(|seed| order(7, &mut Rng::seed_from_u64(seed)).iter().filter(|on| **on).count())
        .collect();
    assert!(odd.contains(&3) && odd.contains(&4), "{odd:?}");
}

#[test]
fn a_proof_is_read_from_a_record_as_it_was_written() {
    let pair = || Pair { off: block(20, Ok(50.0)), on: block(10, Ok(40.0)) };
    let proof = proof(&[pair(), pair()]);
    let text = serde_json::to_string(&proof).unwrap();
    assert_eq!(serde_json::from_str::<Proof>(&text).unwrap(), proof);
}

#[test]
fn sums_that_differ_in_the_last_digit_do_not_differ() {
    assert_eq!(less(30.0 + 3e-15, 30.0), 0.0);
    assert!(less(30.001, 30.0) > 0.0);
}
