//! A limit in force, compared with the open gate in pairs of blocks while it is held.
//!
//! A survey closes the gate when the throughput that must remain is kept in the mean, and nearly
//! kept for certain. That is provisional: pairs of a block of the limit and one of the open gate,
//! in an order that is drawn, continue until all of it is shown to remain. Then the limit is
//! *confirmed*, and pairs continue to notice if that ceases to hold. If it is shown not to remain,
//! the limit is *refuted*.
//!
//! Open blocks have the tail that the limit is there to avoid. With the time in which what they
//! admitted ends, they take a fifth of what the percentile leaves, `1 - p` of the time, or a small
//! share of it where the tail does not count, and the ledger pays for them.

use super::aim::Proof;
use super::window::WindowReading;
use lull_control::Rng;
use lull_measure::Nanos;
use lull_measure::statistics::{Side, SignTest};
use rand::RngExt;
use std::f64::consts::LN_2;

/// Error probability with which a limit is refuted, in pairs between two wrong ones in the mean.
const REFUTES: f64 = 0.001;

/// Where a pair is.
#[derive(Debug, Clone, Copy)]
enum Stage {
    Waits,
    First { is_open: bool },
    Second { is_open: bool, first: WindowReading },
}

/// The result of a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Confirmed(String),
    Refuted(String),
}

/// The comparison of a limit with the open gate while it is held.
#[derive(Debug, Clone)]
pub(super) struct Confirmation {
    /// Error probability of a confirmation.
    alpha: f64,
    /// Evidence of the survey, and of pairs, that the throughput that must remain does.
    log_carried: f64,
    kept: SignTest,
    /// Evidence that it does not, since it last spoke for the limit.
    lost: SignTest,
    /// Logarithms of the throughputs over those of the open gate.
    sum: f64,
    pairs: u32,
    /// Sums of the logarithms of throughput and tail of open blocks, and how many there were.
    open: [f64; 2],
    open_blocks: f64,
    is_confirmed: bool,
    stage: Stage,
    next: Nanos,
}

impl Confirmation {
    /// Begins with the evidence of a survey; the first pair begins after `wait`.
    pub(super) fn new(proof: Proof, now: Nanos, wait: Nanos) -> Self {
        // The mean of two capitals is one: half of the survey's, and half that begins now.
        let log_carried = (0.5 + 0.5 * proof.log_capital.min(500.0).exp()).ln();
        let is_confirmed = log_carried >= -proof.alpha.ln();
        Self {
            alpha: proof.alpha,
            log_carried,
            kept: SignTest::new(0.0, Side::Above, LN_2),
            lost: SignTest::new(0.0, Side::Below, LN_2),
            sum: 0.0,
            pairs: 0,
            open: [0.0; 2],
            open_blocks: 0.0,
            is_confirmed,
            stage: Stage::Waits,
            next: now + wait,
        }
    }

    pub(super) const fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    /// Returns whether the gate is open now for a block of a pair.
    pub(super) const fn is_open(&self) -> bool {
        matches!(self.stage, Stage::First { is_open: true } | Stage::Second { is_open: true, .. })
    }

    /// Returns whether a pair is under way.
    pub(super) const fn is_under_way(&self) -> bool {
        !matches!(self.stage, Stage::Waits)
    }

    pub(super) fn is_due(&self, now: Nanos) -> bool {
        !self.is_under_way() && now >= self.next
    }

    /// Begins a pair.
    pub(super) fn begin(&mut self, rng: &mut Rng) {
        self.stage = Stage::First { is_open: rng.random_bool(0.5) };
    }

    /// Ends the pair without a result; the next one begins after `wait`.
    pub(super) fn abandon(&mut self, now: Nanos, wait: Nanos) {
        (self.stage, self.next) = (Stage::Waits, now + wait);
    }

    /// Ends the pair because its open block has used up its allowed loss. It counts in favour of
    /// the limit, by as much as one pair can; the next one begins after `wait`.
    pub(super) fn takes_loss(&mut self, now: Nanos, wait: Nanos) -> Option<Verdict> {
        self.abandon(now, wait);
        self.sum += LN_2;
        self.pairs += 1;
        self.judge(LN_2)
    }

    /// Takes a block. `must_remain` is the share of the open gate's throughput, given what all its
    /// blocks show, and `share` that of the time that open blocks may take.
    pub(super) fn takes(
        &mut self,
        now: Nanos,
        look: WindowReading,
        must_remain: impl FnOnce(WindowReading) -> f64,
        share: f64,
    ) -> Option<Verdict> {
        let (open, held) = match self.stage {
            Stage::Waits => return None,
            Stage::First { is_open } => {
                self.stage = Stage::Second { is_open: !is_open, first: look };
                return None;
            }
            Stage::Second { is_open: true, first } => (look, first),
            Stage::Second { is_open: false, first } => (first, look),
        };
        self.abandon(now, open_time(open).scale(1.0 / share));
        let log = (held.per_s / open.per_s).ln();
        let least = must_remain(self.pool_open(open));
        let kept = (log - least.ln()).clamp(-LN_2, LN_2);
        self.sum += log.clamp(-LN_2, LN_2);
        self.pairs += 1;
        self.judge(kept)
    }

    /// Adds an open block, and returns the geometric mean of all of them.
    fn pool_open(&mut self, open: WindowReading) -> WindowReading {
        self.open_blocks += 1.0;
        let logs = [open.per_s.ln(), open.tail_s.ln()];
        self.open.iter_mut().zip(logs).for_each(|(sum, log)| *sum += log);
        let [per_s, tail_s] = self.open.map(|sum| (sum / self.open_blocks).exp());
        WindowReading { per_s, tail_s, ..open }
    }

    fn judge(&mut self, kept: f64) -> Option<Verdict> {
        self.kept.push(kept);
        self.lost.push(kept);
        if self.lost.is_shown(REFUTES) {
            let loss = self.describe();
            return Some(Verdict::Refuted(format!("the limit is refuted while held: {loss}")));
        }
        if self.lost.log_capital() < 0.0 {
            self.lost = SignTest::new(0.0, Side::Below, LN_2);
        }
        let log_capital = self.log_carried + self.kept.log_capital();
        if self.is_confirmed || log_capital < -self.alpha.ln() {
            return None;
        }
        self.is_confirmed = true;
        Some(Verdict::Confirmed(format!("confirmed while held: {}", self.describe())))
    }

    fn describe(&self) -> String {
        let mean = (self.sum / f64::from(self.pairs.max(1))).exp();
        format!("throughput times {mean:.2} in {} pairs of blocks", self.pairs)
    }
}

/// Returns the time of a block of the open gate, with that in which its transactions end.
fn open_time(open: WindowReading) -> Nanos {
    open.span + Nanos::from_secs_f64(open.under_way_mean / open.per_s).min(open.span)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    fn look(per_s: f64) -> WindowReading {
        WindowReading { under_way_mean: 0.1 * per_s, tail_s: 0.2, ..WindowReading::of_rate(per_s) }
    }

    /// Pairs until a verdict, at most so many, of a limit with this throughput.
    fn pairs(throughput: f64, most: u32) -> (Confirmation, Option<Verdict>) {
        let proof = Proof { alpha: 0.001, log_capital: 0.0 };
        let mut now = Nanos::ZERO;
        let mut one = Confirmation::new(proof, now, Nanos::from_secs(1));
        let mut rng = Rng::seed_from_u64(3);
        for _ in 0..most {
            now = one.next;
            assert!(one.is_due(now));
            one.begin(&mut rng);
            let before = now;
            for _ in 0..2 {
                let per_s = if one.is_open() { 1000.0 } else { 1000.0 * throughput };
                now += Nanos::from_millis(300);
                let verdict = one.takes(now, look(per_s), |_| 0.98, 0.002);
                if verdict.is_some() {
                    return (one, verdict);
                }
            }
            // 300 ms, and 100 ms until what was admitted has ended, are .2 % of 200 s.
            assert_eq!(one.next - before, Nanos::from_millis(200_600));
        }
        (one, None)
    }

    #[test]
    fn a_limit_is_confirmed_or_refuted_and_open_blocks_take_their_share_of_the_time() {
        let (one, verdict) = pairs(1.2, 60);
        let Some(Verdict::Confirmed(text)) = verdict else { panic!("{verdict:?}") };
        assert!(one.is_confirmed(), "{text}");
        assert!(text.starts_with("confirmed while held: throughput times 1.20 in 1"), "{text}");
        let (_, verdict) = pairs(0.85, 60);
        let Some(Verdict::Refuted(text)) = verdict else { panic!("{verdict:?}") };
        assert!(text.contains("refuted while held: throughput times 0.85 in 1"), "{text}");
        assert_eq!(pairs(0.98, 60).1, None, "neither is shown at the limit");
    }

    #[test]
    fn what_must_remain_rests_on_all_open_blocks_and_not_on_the_last() {
        let proof = Proof { alpha: 0.001, log_capital: 0.0 };
        let mut one = Confirmation::new(proof, Nanos::ZERO, Nanos::ZERO);
        let mut rng = Rng::seed_from_u64(5);
        let mut seen = Vec::new();
        for tail_s in [0.1, 0.1, 0.1, 1.6] {
            one.begin(&mut rng);
            for _ in 0..2 {
                let block = WindowReading { tail_s, ..look(1000.0) };
                let must_remain = |open: WindowReading| {
                    seen.push(open.tail_s);
                    0.98
                };
                one.takes(Nanos::from_secs(1), block, must_remain, 0.002);
            }
        }
        assert!((seen[2] - 0.1).abs() < 1e-9 && (seen[3] - 0.2).abs() < 1e-9, "{seen:?}");
    }

    #[test]
    fn what_a_survey_has_shown_for_certain_needs_no_more_pairs() {
        let proof = Proof { alpha: 0.001, log_capital: 8.0 };
        assert!(Confirmation::new(proof, Nanos::ZERO, Nanos::ZERO).is_confirmed());
    }

    #[test]
    fn open_blocks_that_lose_too_much_confirm_the_limit() {
        let proof = Proof { alpha: 0.001, log_capital: 0.0 };
        let mut one = Confirmation::new(proof, Nanos::ZERO, Nanos::ZERO);
        let verdicts = (1..20).map(|at| {
            let now = Nanos::from_secs(at);
            one.begin(&mut Rng::seed_from_u64(at));
            let verdict = one.takes_loss(now, Nanos::from_secs(1));
            assert!(!one.is_under_way() && !one.is_due(now));
            verdict
        });
        let verdicts: Vec<Verdict> = verdicts.flatten().collect();
        let [Verdict::Confirmed(text)] = verdicts.as_slice() else { panic!("{verdicts:?}") };
        assert!(text.starts_with("confirmed while held: throughput times 2.00 in 1"), "{text}");
    }

    #[test]
    fn a_pair_that_is_abandoned_leaves_the_limit_in_force() {
        let proof = Proof { alpha: 0.001, log_capital: 0.0 };
        let mut one = Confirmation::new(proof, Nanos::ZERO, Nanos::ZERO);
        one.begin(&mut Rng::seed_from_u64(1));
        one.abandon(Nanos::from_secs(1), Nanos::from_secs(9));
        assert!(!one.is_open() && !one.is_due(Nanos::from_secs(9)));
        assert!(one.is_due(Nanos::from_secs(10)));
    }
}
