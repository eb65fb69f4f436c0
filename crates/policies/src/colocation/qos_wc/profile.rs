//! TP(c): the throughput of all apps by the number of cores they share.

use lull_measure::Nanos;

/// Less than this share of the throughput before is fewer cores than needed.
const KNEE: f64 = 0.95;

/// A profile, given or being measured.
///
/// Measured from all cores down, halving, so that no trial but the last has
/// fewer cores than the apps need; below it throughput goes straight to zero
/// with the cores, which for contended apps is too little and never too much.
#[derive(Debug, Clone)]
pub(super) struct Profile {
    cores: usize,
    length: Nanos,
    /// Cores and throughput of the trials so far.
    points: Vec<(usize, f64)>,
    /// How long the trial under way has run; amount and span that count.
    spent: Nanos,
    amount: f64,
    counted: Nanos,
    /// Indexed by cores, from 0; empty while it is measured.
    per_s: Vec<f64>,
}

impl Profile {
    /// Throughput on 1, 2, ... cores, the last number for all beyond; measured if none is given.
    pub(super) fn new(given: &[f64], cores: usize, length: Nanos) -> Self {
        let points: Vec<_> = given.iter().enumerate().map(|(at, per_s)| (at + 1, *per_s)).collect();
        let per_s = if given.is_empty() { Vec::new() } else { curve(&points, cores) };
        let (spent, counted) = (Nanos::ZERO, Nanos::ZERO);
        Self { cores, length, points: Vec::new(), spent, amount: 0.0, counted, per_s }
    }

    /// Number and cores of the trial under way; `None` if there is none.
    pub(super) fn trial(&self) -> Option<(u32, usize)> {
        let number = self.points.len();
        let cores = self.cores >> number;
        (self.per_s.is_empty() && cores > 0).then_some((number as u32 + 1, cores))
    }

    /// An epoch of the trial under way.
    pub(super) fn note(&mut self, per_s: f64, epoch: Nanos) {
        let Some((_, cores)) = self.trial() else { return };
        // No throughput on all cores means that no app receives requests.
        if self.points.is_empty() && per_s <= 0.0 {
            return;
        }
        if self.spent >= self.length / 2 {
            self.amount += per_s * epoch.as_secs_f64();
            self.counted += epoch;
        }
        self.spent += epoch;
        if self.spent < self.length || self.counted == Nanos::ZERO {
            return;
        }
        let mean_per_s = self.amount / self.counted.as_secs_f64();
        let before = self.points.last().map(|(_, per_s)| *per_s);
        self.points.push((cores, mean_per_s));
        (self.spent, self.amount, self.counted) = (Nanos::ZERO, 0.0, Nanos::ZERO);
        let too_few = before.is_some_and(|before| mean_per_s < KNEE * before);
        if too_few || cores == 1 {
            self.points.reverse();
            self.per_s = curve(&self.points, self.cores);
        }
    }

    /// TP(c); 0 for none and while it is measured.
    pub(super) fn at(&self, cores: usize) -> f64 {
        self.per_s.get(cores).copied().unwrap_or(0.0)
    }
}

/// Straight lines from nothing through all points, never falling.
fn curve(points: &[(usize, f64)], cores: usize) -> Vec<f64> {
    let mut all = vec![0.0; cores + 1];
    let mut last = (0, 0.0);
    for (at, per_s) in points.iter().map(|(at, per_s)| (*at.min(&cores), *per_s)) {
        let next = (at, per_s.max(last.1));
        let between = all.iter_mut().enumerate().take(at + 1).skip(last.0 + 1);
        for (cores, per_s) in between {
            let share = (cores - last.0) as f64 / (at - last.0) as f64;
            *per_s = last.1 + share * (next.1 - last.1);
        }
        last = (at.max(last.0), next.1);
    }
    all[last.0..].fill(last.1);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIAL: Nanos = Nanos::from_secs(1);

    /// Measures a server that does 1000/s a core on 5 cores at most.
    fn measured(cores: usize) -> (Profile, Vec<usize>) {
        let mut profile = Profile::new(&[], cores, TRIAL);
        let mut tried = Vec::new();
        while let Some((_, cores)) = profile.trial() {
            tried.push(cores);
            (0..10).for_each(|_| profile.note(1000.0 * cores.min(5) as f64, TRIAL / 10));
        }
        (profile, tried)
    }

    #[test]
    fn it_is_measured_down_to_the_first_number_that_is_too_few() {
        let (profile, tried) = measured(24);
        assert_eq!(tried, [24, 12, 6, 3]);
        assert_eq!([0, 3, 6, 24].map(|cores| profile.at(cores)), [0.0, 3000.0, 5000.0, 5000.0]);
        assert!((profile.at(4) - 3666.67).abs() < 0.01, "{}", profile.at(4));
        assert_eq!(measured(1).1, [1]);
    }

    #[test]
    fn a_given_one_never_falls_and_goes_on_level() {
        let profile = Profile::new(&[10.0, 8.0, 30.0], 5, TRIAL);
        assert_eq!(profile.trial(), None);
        let all: Vec<_> = (0..=5).map(|cores| profile.at(cores)).collect();
        assert_eq!(all, [0.0, 10.0, 10.0, 30.0, 30.0, 30.0]);
    }

    #[test]
    fn the_first_half_of_a_trial_is_forgotten() {
        let mut profile = Profile::new(&[], 1, TRIAL);
        (0..5).for_each(|_| profile.note(7.0, TRIAL / 10));
        (0..5).for_each(|_| profile.note(100.0, TRIAL / 10));
        assert!((profile.at(1) - 100.0).abs() < 1e-9);
    }
}
