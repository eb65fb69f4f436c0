//! The weights of SATORI: they follow the goal that lost more, and average to one half.

use super::Goals;
use lull_measure::Nanos;

/// The weights of both goals.
#[derive(Debug, Clone)]
pub(super) struct Weights {
    prioritise: Nanos,
    equalise: Nanos,
    lowest: f64,
    throughput: f64,
    /// Begin of the current second and of the current ten; `None` before the first sample.
    began: Option<(Nanos, Nanos)>,
    /// Goals of this second so far.
    sum: Goals,
    samples: u32,
    /// Mean goals of the second before.
    before: Option<Goals>,
    /// W_T of the seconds of these ten.
    past: Vec<f64>,
}

impl Weights {
    /// Creates even weights.
    pub(super) fn new(prioritise: Nanos, equalise: Nanos, lowest: f64) -> Self {
        Self {
            prioritise,
            equalise,
            lowest,
            throughput: 0.5,
            began: None,
            sum: Goals { throughput: 0.0, fairness: 0.0 },
            samples: 0,
            before: None,
            past: Vec::new(),
        }
    }

    /// Returns both goals as one number.
    pub(super) fn join(&self, goals: Goals) -> f64 {
        self.throughput * goals.throughput + (1.0 - self.throughput) * goals.fairness
    }

    /// Takes note of one sample; at the end of a second the weights move.
    pub(super) fn note(&mut self, goals: Goals, now: Nanos) {
        let (second, ten) = *self.began.get_or_insert((now, now));
        self.sum.throughput += goals.throughput;
        self.sum.fairness += goals.fairness;
        self.samples += 1;
        if now < second + self.prioritise {
            return;
        }
        let count = f64::from(self.samples);
        let mean =
            Goals { throughput: self.sum.throughput / count, fairness: self.sum.fairness / count };
        let is_over = now >= ten + self.equalise;
        if is_over {
            self.past.clear();
        }
        let ten = if is_over { now } else { ten };
        let elapsed = now.saturating_sub(ten).as_secs_f64() / self.equalise.as_secs_f64();
        self.move_to(mean, elapsed);
        self.past.push(self.throughput);
        self.before = Some(mean);
        self.began = Some((now, ten));
        self.sum = Goals { throughput: 0.0, fairness: 0.0 };
        self.samples = 0;
    }

    fn move_to(&mut self, mean: Goals, elapsed: f64) {
        let (lowest, highest) = (self.lowest, 1.0 - self.lowest);
        let by_loss = lowest + (highest - lowest) * self.share_of_loss(mean);
        let owed = 0.5 * self.past.len() as f64 - self.past.iter().sum::<f64>();
        let evened = (0.5 + owed).clamp(lowest, highest);
        self.throughput = (1.0 - elapsed) * by_loss + elapsed * evened;
    }

    /// Returns the part of the loss since the second before that is throughput's.
    fn share_of_loss(&self, now: Goals) -> f64 {
        let Some(before) = self.before else { return 0.5 };
        let loss = |before: f64, now: f64| ((before - now) / before.max(1e-9)).max(0.0);
        let throughput = loss(before.throughput, now.throughput);
        let fairness = loss(before.fairness, now.fairness);
        if throughput + fairness > 0.0 { throughput / (throughput + fairness) } else { 0.5 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goals(throughput: f64, fairness: f64) -> Goals {
        Goals { throughput, fairness }
    }

    fn after(seconds: &[(f64, f64)]) -> Vec<f64> {
        let mut weights = Weights::new(Nanos::from_secs(1), Nanos::from_secs(10), 0.25);
        let each = (0u64..).map(Nanos::from_secs).zip(seconds);
        let weight = |(now, (throughput, fairness)): (Nanos, &(f64, f64))| {
            weights.note(goals(*throughput, *fairness), now);
            weights.throughput
        };
        each.map(weight).collect()
    }

    #[test]
    fn what_has_lost_more_gets_more_weight_within_the_range() {
        // The first two notes are the first second; then throughput loses, then fairness.
        let weights = after(&[(0.8, 0.8), (0.8, 0.8), (0.4, 0.8), (0.4, 0.4)]);
        assert_eq!(weights[..2], [0.5, 0.5]);
        // t = 2 s: 0.8 of 0.75 and 0.2 of an even 0.5.
        assert!((weights[2] - 0.7).abs() < 1e-12, "{weights:?}");
        // t = 3 s: 0.7 of 0.25 and 0.3 of max(0.25, 0.5 + 1 - 0.5 - 0.7).
        assert!((weights[3] - (0.7 * 0.25 + 0.3 * 0.3)).abs() < 1e-12, "{weights:?}");
    }

    #[test]
    fn over_ten_seconds_a_bias_is_paid_back() {
        // Throughput falls a little every second, so it is always given the most.
        let falling: Vec<_> = (0..11).map(|at| (1.0 - 0.02 * f64::from(at), 0.9)).collect();
        let weights = after(&falling);
        let mean = weights[..10].iter().sum::<f64>() / 10.0;
        assert!(weights[2] > 0.69 && (mean - 0.5).abs() < 0.02, "{weights:?}");
        let all = weights[1..].iter().all(|weight| (0.25..=0.75).contains(weight));
        assert!(all, "{weights:?}");
    }

    #[test]
    fn joined_goals_are_the_weighted_sum() {
        let weights = Weights::new(Nanos::from_secs(1), Nanos::from_secs(10), 0.25);
        assert_eq!(weights.join(goals(0.4, 0.8)), 0.5 * 0.4 + 0.5 * 0.8);
    }
}
