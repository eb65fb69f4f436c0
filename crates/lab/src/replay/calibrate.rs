//! Fits the model of the machine to the epochs recorded under one policy.
//!
//! There are two layers. For a given scheduler, each parameter of the apps follows from
//! matching one quantity, for all apps at once, in a few rounds:
//!
//! - mean work: from the CPU time per request,
//! - mean delay: from the tenth percentile of latency, which is that of requests that got a
//!   core immediately; the median already depends on the scheduler,
//! - spread: from the distance of p95 and p99 to the median.
//!
//! What concerns all apps (the share of wake-ups that take a core immediately, slice,
//! the clients' share of CPU time, stretches of other work) is searched over a
//! short list of values each, one after another, beginning with Linux's, then
//! again, the first two near the best, and these a third time nearer.
//! Candidates are compared by all judged figures, by low percentiles of latency,
//! and by how long threads waited for cores: these distinguish waiting from
//! delay, which other policies change in different ways. Where a record gives no evidence
//! (no core is ever contended), the first value stays.

use super::Replay;
use super::figures::figures;
use super::model::{AppFit, Fit, Known};
use super::play::ReplayError;
use super::tally::{AppTally, Tally};
use super::windows::Cut;
use crate::progress::Progress;
use lull_measure::{Nanos, Percentile};

/// Rounds of matching for each candidate.
const ROUNDS: usize = 4;
/// A candidate is given up if its error is this factor above the least so far
/// (`HOPELESS`) and a round of matching leaves more than a share of it (`STUCK`). Of 110
/// candidates of three records none that was given up would have become the best, and a
/// third of all rounds is saved.
const HOPELESS: f64 = 1.05;
const STUCK: f64 = 0.85;
/// A candidate whose error is this factor above the least is given up after one round.
const FAR: f64 = 3.0;
/// Further rounds for the best one.
const LAST_ROUNDS: usize = 6;
/// Bounds on the spread of work and delay: nearly constant to heavy-tailed.
const CV2: std::ops::RangeInclusive<f64> = 0.01..=30.0;
/// Largest factor by which a round changes a parameter, up or down.
const STEP: f64 = 3.0;
/// A value other than Linux's must reduce the error at least by this factor.
const BETTER: f64 = 0.97;

/// Percentiles below the median that are compared.
const LOW: [f64; 2] = [10.0, 25.0];
/// Waiting for cores, in cores, that counts as none.
const HARDLY: f64 = 0.02;

/// How often all are searched, and how many there are.
const TURNS: std::ops::Range<u32> = 0..3;
const DIMENSIONS: std::ops::Range<u32> = 0..4;
const SLICES_MS: [f64; 5] = [3.0, 1.5, 6.0, 0.75, 12.0];
/// The second time, times the best slice, or share of wake-ups that wait.
const NEAR: [f64; 4] = [0.7, 0.85, 1.2, 1.4];
/// The third time.
const NEARER: [f64; 2] = [0.92, 1.08];
/// Shares of wake-ups that take a core immediately.
const CHANCES: [f64; 7] = [1.0, 0.0, 0.99, 0.97, 0.94, 0.88, 0.75];
const OTHERS_MS: [f64; 3] = [2.0, 20.0, 0.2];
const CLIENT_SHARES: [f64; 3] = [1.0, 0.5, 0.2];

/// A fit and its error.
struct Candidate {
    fit: Fit,
    error: f64,
}

/// The rounds that a candidate may take.
#[derive(Debug, Clone, Copy)]
struct Allowance {
    rounds: usize,
    /// The least error so far.
    beat: f64,
}

impl Allowance {
    /// Whether another round is useless after these errors.
    fn cannot_improve(self, errors: &[f64]) -> bool {
        let least = errors.iter().copied().fold(f64::INFINITY, f64::min);
        match errors {
            [] => false,
            [first] => *first > FAR * self.beat,
            [.., before, last] => least > HOPELESS * self.beat && *last > STUCK * before,
        }
    }
}

/// The measurements that a calibration must reproduce.
struct Aim {
    cut: Cut,
    measured: Tally,
}

impl Replay<'_> {
    /// Fits the node to the recorded policy's part of the run.
    ///
    /// # Errors
    /// If it cannot be simulated, or a stop is requested.
    pub fn calibrate(&self, progress: &Progress<'_>) -> Result<Fit, ReplayError> {
        let cut = Cut::new(self.recording, self.effort.calibration_requests);
        let aim = Aim { cut, measured: self.recorded_of(cut, 0..1) };
        let first = Fit::first(self.recording);
        let all = TURNS.flat_map(|turn| DIMENSIONS.map(move |dimension| (turn, dimension)));
        let counts = all.clone().map(|at| candidates(&first, &self.known, at).len());
        progress.expect((ROUNDS * (1 + counts.sum::<usize>()) + LAST_ROUNDS) as u64);
        let plain = first.apps.clone();
        let usual = Allowance { rounds: ROUNDS, beat: f64::INFINITY };
        let mut best = self.settle(first, &aim, usual, progress)?;
        for at in all {
            for mut fit in candidates(&best.fit, &self.known, at) {
                if fit == best.fit {
                    continue;
                }
                // The spread fitted so far explains the tail and would hide this effect.
                if at == (0, 0) {
                    fit.apps.clone_from(&plain);
                }
                let allowed = Allowance { beat: best.error, ..usual };
                let found = self.settle(fit, &aim, allowed, progress)?;
                if found.error < best.error * BETTER {
                    best = found;
                }
            }
        }
        let longer = Allowance { rounds: LAST_ROUNDS, ..usual };
        let last = self.settle(best.fit.clone(), &aim, longer, progress)?;
        Ok(if last.error < best.error { last.fit } else { best.fit })
    }

    /// Matches the apps' own parameters under these common ones; the best of all rounds.
    fn settle(
        &self,
        mut fit: Fit,
        aim: &Aim,
        allowed: Allowance,
        progress: &Progress<'_>,
    ) -> Result<Candidate, ReplayError> {
        let Aim { cut, measured } = aim;
        let mut best: Option<Candidate> = None;
        let mut errors = Vec::new();
        for _ in 0..allowed.rounds {
            if allowed.cannot_improve(&errors) {
                progress.step();
                continue;
            }
            let played = self.play(&fit, &self.recorded, *cut, 0)?;
            progress.step();
            let error = self.mismatch(measured, &played);
            errors.push(error);
            if best.as_ref().is_none_or(|best| error < best.error) {
                best = Some(Candidate { fit: fit.clone(), error });
            }
            for (app, own) in fit.apps.iter_mut().enumerate() {
                if let Some(own) = own {
                    matched(own, &measured.apps[app], &played.apps[app]);
                }
            }
        }
        Ok(best.unwrap_or(Candidate { fit, error: f64::INFINITY }))
    }

    /// Root of the mean square of all judged errors, each at most 4: one app
    /// far off must not hide all others.
    fn mismatch(&self, measured: &Tally, played: &Tally) -> f64 {
        let specs = &self.recording.apps;
        let importance = self.recording.rules.importance;
        let cores = self.recording.machine.cores.len();
        let (mut sum, mut count) = (0.0, 0.0);
        for figure in figures(specs) {
            let was = figure.value(measured, specs, importance);
            let is = figure.value(played, &self.specs, importance);
            if let Some(error) = figure.error(was, is, measured, cores) {
                sum += error.min(4.0).powi(2);
                count += 1.0;
            }
        }
        for (was, is) in measured.apps.iter().zip(&played.apps) {
            for error in finer([(was, measured.span_s), (is, played.span_s)]) {
                sum += error.min(4.0).powi(2);
                count += 1.0;
            }
        }
        f64::sqrt(sum / f64::max(count, 1.0))
    }
}

/// Errors that distinguish waiting from delay: low percentiles of latency, and the
/// time that threads waited for cores.
fn finer([(was, was_s), (is, is_s)]: [(&AppTally, f64); 2]) -> Vec<f64> {
    let off = |a: f64, b: f64| (a / b).max(b / a) - 1.0;
    let quantiles = LOW.iter().filter_map(|percent| {
        let percentile = Percentile::new(*percent).ok()?;
        let at = |app: &AppTally| Some(app.latency.quantile(percentile)?.0 as f64);
        Some(off(at(was)?, at(is)?))
    });
    let waiting = off(was.waiting_s / was_s + HARDLY, is.waiting_s / is_s + HARDLY);
    quantiles.chain([waiting]).collect()
}

/// This fit with other values of one common parameter.
fn candidates(fit: &Fit, known: &Known, at: (u32, u32)) -> Vec<Fit> {
    let slice = |ms: f64| Fit { slice: Nanos::from_micros((1e3 * ms) as u64), ..fit.clone() };
    let near = |near: f64| slice(near * fit.slice.as_millis_f64());
    let waits = |times: f64| waiting(fit, times);
    // Longer waits of fewer, or shorter ones of more: alone, either makes a tail worse.
    let rarer = |times: f64| waiting(&near(times), 1.0 / times);
    match at {
        (0, 0) => CHANCES.map(|wakeup_chance| Fit { wakeup_chance, ..fit.clone() }).to_vec(),
        (1, 0) => NEAR.map(waits).to_vec(),
        (2, 0) => NEARER.map(waits).to_vec(),
        (0, 1) => SLICES_MS.map(slice).to_vec(),
        (1, 1) => [NEAR.map(near), NEAR.map(rarer)].concat(),
        (2, 1) => [NEARER.map(near), NEARER.map(rarer)].concat(),
        (0 | 1, 2) if known.has_clients() => {
            CLIENT_SHARES.map(|client_share| Fit { client_share, ..fit.clone() }).to_vec()
        }
        (0 | 1, 3) => OTHERS_MS
            .map(|ms| Fit { others_work: Nanos::from_micros((1e3 * ms) as u64), ..fit.clone() })
            .to_vec(),
        _ => Vec::new(),
    }
}

/// The same with this many times the share of wake-ups that take no core immediately.
fn waiting(fit: &Fit, times: f64) -> Fit {
    let share = times * (1.0 - fit.wakeup_chance);
    Fit { wakeup_chance: 1.0 - share.min(1.0), ..fit.clone() }
}

/// Moves an app's parameters to the values that match the last round.
fn matched(own: &mut AppFit, measured: &AppTally, played: &AppTally) {
    let per_request = |app: &AppTally| 1e9 * app.cpu_s / app.answered;
    let (was, is) = (per_request(measured), per_request(played));
    // Both contain the cost of context switches; the rest is work.
    let switches = is - own.work_ns;
    let work = if switches < was { was - switches } else { was * own.work_ns / is };
    own.work_ns = step(own.work_ns, work).max(100.0);
    let at = |app: &AppTally, percentile| app.latency.quantile(percentile).map(|it| it.0 as f64);
    let low = Percentile::new(LOW[0]).unwrap_or(Percentile::P50);
    let quantiles = |app| {
        let [p50, p95, p99] = [Percentile::P50, Percentile::P95, Percentile::P99];
        Some([at(app, p50)?, at(app, p95)?, at(app, p99)?, at(app, low)?])
    };
    let (Some(was), Some(is)) = (quantiles(measured), quantiles(played)) else { return };
    own.delay_ns = (own.delay_ns + was[3] - is[3]).max(0.0);
    let spread = |all: [f64; 4]| (all[1] - all[0]).max(1.0).ln() + (all[2] - all[0]).max(1.0).ln();
    let factor = (0.5 * (spread(was) - spread(is))).exp();
    own.cv2 = step(own.cv2, own.cv2 * factor).clamp(*CV2.start(), *CV2.end());
}

/// Moves `from` towards `to` by at most a factor of [`STEP`].
fn step(from: f64, to: f64) -> f64 {
    if to.is_finite() { to.clamp(from / STEP, from * STEP) } else { from }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_far_behind_and_gains_no_more_is_given_up() {
        let allowed = Allowance { rounds: ROUNDS, beat: 0.1 };
        assert!(!allowed.cannot_improve(&[]) && !allowed.cannot_improve(&[0.29]));
        assert!(allowed.cannot_improve(&[0.31]), "too far for one round");
        assert!(!allowed.cannot_improve(&[0.3, 0.2]), "it still falls");
        assert!(allowed.cannot_improve(&[0.3, 0.2, 0.19]));
        assert!(!allowed.cannot_improve(&[0.104, 0.119]), "near enough for chance");
        let usual = Allowance { beat: f64::INFINITY, ..allowed };
        assert!(!usual.cannot_improve(&[9.0]) && !usual.cannot_improve(&[9.0, 9.0]));
    }
}
