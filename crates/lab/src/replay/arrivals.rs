//! Arrivals as recorded: the rate of every epoch, and the irregularity of gaps.

use super::recording::RecordedEpoch;
use lull_measure::{Nanos, RequestSample};
use lull_sim::machine::LoadStep;
use lull_workload::arrivals::Process;

/// Range of the squared coefficient of variation that is accepted from a sample: the range
/// of a generalised Pareto of shape -0.97 to 0.49.
const CV2: std::ops::RangeInclusive<f64> = 0.34..=50.0;
/// Within this factor of 1, gaps count as exponential.
const ABOUT_POISSON: f64 = 1.3;
/// Least number of gaps that a sample must have.
const FEW: usize = 50;
/// Largest latency, as a share of the mean sampled gap, of a sample that is used.
const PROMPT: f64 = 0.1;

/// The load of an app over these epochs, from zero on: a step an epoch.
pub(super) fn load<'a>(
    epochs: impl Iterator<Item = &'a RecordedEpoch>,
    app: usize,
) -> (Vec<LoadStep>, Nanos) {
    let mut from = Nanos::ZERO;
    let mut steps: Vec<LoadStep> = Vec::new();
    for epoch in epochs.filter(|epoch| epoch.length > Nanos::ZERO) {
        let rate = epoch.apps.get(app).and_then(|app| app.offered_per_s).unwrap_or(0.0);
        steps.push(LoadStep { from, rate_per_s: rate.max(0.0) });
        from += epoch.length;
    }
    (steps, from)
}

/// How gaps vary, by the samples of requests: the squared coefficient of
/// variation of one gap. `None` if there are too few.
///
/// A sample has one request in `one_in`, so that one of its gaps is the sum of
/// that many, whose cv² is smaller by that factor. Gaps are compared with the
/// mean gap of their own epoch: what the rate does from epoch to epoch is no
/// irregularity of gaps. Samples are every so many *answers*: where latencies
/// come near the gap, they overtake each other and would look irregular.
pub(super) fn irregularity<'a>(samples: impl Iterator<Item = &'a RequestSample>) -> Option<f64> {
    let (mut sum, mut gaps) = (0.0, 0_usize);
    for sample in samples {
        let mut due: Vec<u64> = sample.requests.iter().map(|request| request.due_ns.0).collect();
        due.sort_unstable();
        let (Some(first), Some(last)) = (due.first(), due.last()) else { continue };
        let count = due.len() - 1;
        let mean = (last - first) as f64 / count as f64;
        let slowest = sample.requests.iter().map(|request| request.latency_ns.0).max();
        let is_prompt = slowest.is_some_and(|slowest| slowest as f64 <= PROMPT * mean);
        if count < 2 || mean <= 0.0 || !is_prompt {
            continue;
        }
        let square = |pair: &[u64]| ((pair[1] - pair[0]) as f64 / mean - 1.0).powi(2);
        // The mean is these gaps' own: it takes one degree of freedom.
        let own: f64 = due.windows(2).map(square).sum::<f64>() * count as f64 / (count - 1) as f64;
        sum += own * sample.one_in as f64;
        gaps += count;
    }
    (gaps >= FEW).then(|| sum / gaps as f64)
}

/// The process with this squared coefficient of variation.
///
/// A generalised Pareto from zero with shape `k` has `cv² = 1/(1 - 2k)`.
pub(super) fn process(cv2: Option<f64>) -> Process {
    let cv2 = cv2.unwrap_or(1.0).clamp(*CV2.start(), *CV2.end());
    if (1.0 / ABOUT_POISSON..=ABOUT_POISSON).contains(&cv2) {
        return Process::Poisson;
    }
    let shape = 0.5 * (1.0 - 1.0 / cv2);
    Process::GeneralisedPareto { shape, loc: 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::recording::RecordedAppEpoch;
    use super::*;
    use lull_measure::SampledRequest;
    use lull_workload::arrivals::{Arrivals, Schedule};
    use rand::SeedableRng;

    /// Samples of one request in eight, an epoch of half a second each.
    fn samples(process: Process) -> Vec<RequestSample> {
        let rng = lull_control::Rng::seed_from_u64(3);
        let schedule = Schedule::constant(1_000.0).unwrap();
        let due: Vec<Nanos> = Arrivals::new(process, schedule, rng).take(200_000).collect();
        let kept = due
            .iter()
            .step_by(8)
            .map(|due| SampledRequest { due_ns: *due, ..SampledRequest::default() });
        let kept: Vec<_> = kept.collect();
        let epochs = kept.chunk_by(|a, b| a.due_ns.0 / 500_000_000 == b.due_ns.0 / 500_000_000);
        epochs.map(|all| RequestSample { one_in: 8, requests: all.to_vec() }).collect()
    }

    #[test]
    fn a_thinned_sample_distinguishes_regular_and_irregular_arrivals() {
        for (text, cv2) in [("poisson", 1.0), ("gpareto:-0.5", 0.5), ("gpareto:0.25", 2.0)] {
            let samples = samples(text.parse().unwrap());
            let found = irregularity(samples.iter()).unwrap();
            assert!((found / cv2 - 1.0).abs() < 0.2, "{text}: {found}");
        }
        let mut some = samples(Process::Poisson);
        some[0].requests.truncate(16);
        assert_eq!(irregularity(some[..1].iter()), None, "too few");
        let late =
            |sample: &mut RequestSample| sample.requests[0].latency_ns = Nanos::from_millis(9);
        some.iter_mut().for_each(late);
        assert_eq!(irregularity(some.iter()), None, "slower than the gaps of 8 ms");
    }

    #[test]
    fn every_epoch_keeps_its_rate_and_all_together_their_number() {
        let rates = [800.0, 0.0, 1600.0, 20.0, 3_000.0];
        let epoch = |rate: &f64| RecordedEpoch {
            length: Nanos::from_millis(500),
            apps: vec![RecordedAppEpoch {
                offered_per_s: Some(*rate),
                ..RecordedAppEpoch::default()
            }],
            busy_cores: None,
        };
        let epochs: Vec<RecordedEpoch> = rates.iter().map(epoch).collect();
        let (steps, end) = load(epochs.iter(), 0);
        assert_eq!(end, Nanos::from_millis(2_500));
        let points: Vec<_> =
            steps.iter().map(|step| (step.from.as_secs_f64(), step.rate_per_s)).collect();
        let schedule = Schedule::steps(&points).unwrap();
        let mut counts = [0_u32; 5];
        for seed in 0..20 {
            let rng = lull_control::Rng::seed_from_u64(seed);
            let due = Arrivals::new(Process::Poisson, schedule.clone(), rng);
            due.take_while(|due| *due < end)
                .for_each(|due| counts[(due.0 / 500_000_000) as usize] += 1);
        }
        for (count, rate) in counts.iter().zip(rates) {
            let wanted = 20.0 * rate * 0.5;
            // Five standard deviations of a Poisson count.
            let off = (f64::from(*count) - wanted).abs();
            assert!(off <= 5.0 * f64::sqrt(wanted), "{count} of {wanted}");
        }
    }

    #[test]
    fn the_process_of_an_irregularity_has_it() {
        assert_eq!(process(None), Process::Poisson);
        assert_eq!(process(Some(1.1)), Process::Poisson);
        for cv2 in [0.5, 2.0, 4.0] {
            let Process::GeneralisedPareto { shape, .. } = process(Some(cv2)) else {
                panic!("{cv2}")
            };
            assert!((1.0 / (1.0 - 2.0 * shape) - cv2).abs() < 1e-9);
        }
    }
}
