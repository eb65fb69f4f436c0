//! Three arrangements of the machine, and the mean E_S that each has reached.
//!
//! Restricting best-effort work costs progress at every level: the cache of the lanes, and the
//! context switches of low priority. Whether E_S improves depends on how scarce resources are at
//! the current loads. While loads are steady the other arrangements are tried in turns, and the
//! one with the least E_S is kept: a bandit with three arms.

use lull_measure::Nanos;

/// How latency-critical apps are protected from best-effort ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrangement {
    /// They run first, have cache lanes, and the level limits the other apps.
    Fenced,
    /// They go first, and all else is shared.
    First,
    /// No policy: the machine as the kernel runs it.
    Open,
}

/// A turn of one arrangement (ours: ten half seconds).
const TURN: Nanos = Nanos::from_secs(5);

/// Time after a change of loads whose observations do not predict later ones (ours).
const TRANSIENT: Nanos = Nanos::from_secs(5);

/// Entropy times seconds that a turn may cost beyond another arrangement (ours: one half second in
/// which two of three apps are at half of their target).
const COST: f64 = 0.15;

/// Periods that the past weighs at most (ours: a minute of half seconds).
const MEMORY: u32 = 120;

/// The arrangements of a machine, and which holds.
#[derive(Debug, Clone)]
pub(super) struct Arrangements {
    all: Vec<ArrangementValue>,
    /// Index of the one that holds.
    now: usize,
    /// When the loads last changed, and when the turn began.
    changed: Nanos,
    turn: Nanos,
    /// The cost of the turn so far.
    cost: f64,
    times: Times,
}

/// How long loads must stay, and how long observations count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) settled: Nanos,
    pub(super) memory: Nanos,
}

/// The value of one arrangement at the loads so far.
#[derive(Debug, Clone, Copy)]
struct ArrangementValue {
    what: Arrangement,
    mean: f64,
    /// Sum of squared distances from the mean (Welford).
    squares: f64,
    periods: u32,
    last: Nanos,
}

impl ArrangementValue {
    const fn new(what: Arrangement) -> Self {
        Self { what, mean: 0.0, squares: 0.0, periods: 0, last: Nanos::ZERO }
    }

    fn note(&mut self, entropy: f64, now: Nanos) {
        if self.periods == MEMORY {
            self.periods -= 1;
            self.squares *= f64::from(MEMORY - 1) / f64::from(MEMORY);
        }
        self.periods += 1;
        let before = entropy - self.mean;
        self.mean += before / f64::from(self.periods);
        self.squares += before * (entropy - self.mean);
        self.last = now;
    }

    /// The least entropy that it may have, one standard error below the mean; an unknown one may be
    /// 0.
    fn at_best(&self) -> f64 {
        let periods = f64::from(self.periods);
        match self.periods {
            0 => f64::NEG_INFINITY,
            1 => self.mean,
            _ => self.mean - (self.squares / (periods - 1.0) / periods).sqrt(),
        }
    }
}

impl Arrangements {
    /// Creates the arrangements that differ on a machine, the fences first.
    pub(super) fn new(has_priority: bool, has_lanes: bool, times: Times) -> Self {
        let mut all = vec![ArrangementValue::new(Arrangement::Fenced)];
        if has_priority {
            all.push(ArrangementValue::new(Arrangement::First));
        }
        if has_priority || has_lanes {
            all.push(ArrangementValue::new(Arrangement::Open));
        }
        let (changed, turn) = (Nanos::ZERO, Nanos::ZERO);
        Self { all, now: 0, changed, turn, cost: 0.0, times }
    }

    /// Returns the present arrangement.
    pub(super) fn now(&self) -> Arrangement {
        self.all[self.now].what
    }

    /// How many have been tried, and the mean entropy of the one that holds if it has.
    pub(super) fn known(&self) -> (u32, Option<f64>) {
        let tried = self.all.iter().filter(|one| one.periods > 0).count() as u32;
        let here = self.all[self.now];
        (tried, (here.periods > 0).then_some(here.mean))
    }

    /// Other loads are another matter: back to the fences.
    pub(super) fn forget(&mut self, now: Nanos) {
        self.all.iter_mut().for_each(|one| *one = ArrangementValue::new(one.what));
        (self.now, self.changed, self.turn, self.cost) = (0, now, now, 0.0);
    }

    /// A period with this entropy has ended.
    pub(super) fn note(&mut self, entropy: f64, length: Nanos, now: Nanos) {
        if now.saturating_sub(self.changed) <= TRANSIENT {
            return;
        }
        let memory = self.times.memory;
        for one in &mut self.all {
            if now.saturating_sub(one.last) > memory {
                *one = ArrangementValue::new(one.what);
            }
        }
        self.all[self.now].note(entropy, now);
        let others = self.all.iter().enumerate().filter(|(at, _)| *at != self.now);
        let known = others.filter(|(_, one)| one.periods > 0).map(|(_, one)| one.mean);
        if let Some(best) = known.reduce(f64::min) {
            self.cost += (entropy - best) * length.as_secs_f64();
        }
    }

    /// Chooses the arrangement whose turn it is.
    pub(super) fn choose(&mut self, now: Nanos) {
        let is_bad = self.cost > COST;
        let is_over = now.saturating_sub(self.turn) >= TURN;
        let is_settled = now.saturating_sub(self.changed) >= self.times.settled;
        if !is_settled || !(is_bad || is_over) {
            return;
        }
        let least = |at: &usize| self.all[*at].at_best();
        let stays = |at: &usize| !(is_bad && *at == self.now);
        let every = (0..self.all.len()).filter(stays);
        let best = every.min_by(|a, b| least(a).total_cmp(&least(b)));
        (self.now, self.turn, self.cost) = (best.unwrap_or(self.now), now, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Arrangement::{Fenced, First, Open};

    const HALF: Nanos = Nanos::from_millis(500);
    const TIMES: Times = Times { settled: Nanos::from_secs(20), memory: Nanos::from_secs(300) };

    fn whole() -> Arrangements {
        Arrangements::new(true, true, TIMES)
    }

    /// Plays half seconds up to a time, in which each arrangement has its entropy; returns
    /// the arrangement that held at each.
    fn play(
        all: &mut Arrangements,
        from_s: u64,
        to_s: u64,
        entropy: impl Fn(Arrangement, u64) -> f64,
    ) -> Vec<(Arrangement, u64)> {
        let mut held = Vec::new();
        for half in 2 * from_s + 1..=2 * to_s {
            all.note(entropy(all.now(), half), HALF, HALF * half);
            all.choose(HALF * half);
            if held.last().is_none_or(|(last, _)| *last != all.now()) {
                held.push((all.now(), half));
            }
        }
        held
    }

    #[test]
    fn where_loads_stay_each_has_a_turn_and_the_least_entropy_is_kept() {
        let kept = |fenced: f64, first: f64, open: f64| {
            let mut all = whole();
            let held = play(&mut all, 0, 100, |what, _| match what {
                Fenced => fenced,
                First => first,
                Open => open,
            });
            assert_eq!(held[..3], [(Fenced, 1), (First, 40), (Open, 50)]);
            assert!(held.len() <= 4 && all.known().0 == 3, "{held:?}");
            all.now()
        };
        assert_eq!(kept(0.03, 0.02, 0.01), Open);
        assert_eq!(kept(0.03, 0.02, 0.04), First);
        assert_eq!(kept(0.02, 0.03, 0.04), Fenced);
        assert_eq!(kept(0.02, 0.02, 0.02), Fenced, "nothing is changed for nothing");
    }

    #[test]
    fn loads_that_change_within_the_time_see_no_trial() {
        let mut all = whole();
        for step in 0..10 {
            all.forget(Nanos::from_secs(15 * step));
            let held = play(&mut all, 15 * step, 15 * (step + 1), |_, _| 0.1);
            assert_eq!(held.len(), 1);
        }
        let held = play(&mut all, 150, 158, |_, _| 0.1);
        assert_eq!(held[1].0, First, "twenty seconds after the last change");
        all.forget(Nanos::from_secs(158));
        assert_eq!((all.now(), all.known()), (Fenced, (0, None)));
    }

    #[test]
    fn a_turn_that_costs_too_much_ends_at_once() {
        let mut all = whole();
        let held = play(&mut all, 0, 60, |what, _| if what == Fenced { 0.02 } else { 0.4 });
        // 0.38 more for half a second is 0.19.
        assert_eq!(held, [(Fenced, 1), (First, 40), (Open, 41), (Fenced, 42)]);
    }

    #[test]
    fn what_may_be_better_but_for_chance_has_another_turn() {
        // Both swing; in its first turn the one that is better in the end was worse.
        let entropy = |what, half: u64| match what {
            Fenced => 0.06 + if half.is_multiple_of(2) { 0.03 } else { -0.03 },
            First if half < 50 => 0.07 + if half.is_multiple_of(2) { 0.06 } else { -0.06 },
            First => 0.03,
            Open => 0.5,
        };
        let mut all = whole();
        play(&mut all, 0, 120, entropy);
        assert_eq!(all.now(), First);
    }

    #[test]
    fn what_was_seen_long_ago_is_tried_again() {
        let mut all = whole();
        let held = play(&mut all, 0, 400, |what, half| match what {
            Open if half < 400 => 0.2,
            Open => 0.01,
            Fenced | First => 0.02,
        });
        assert_eq!(held.last().map(|(what, _)| *what), Some(Open));
        assert!(held.last().is_some_and(|(_, half)| *half > 600), "{held:?}");
    }

    #[test]
    fn the_seconds_after_a_change_of_loads_do_not_count() {
        let mut all = whole();
        play(&mut all, 0, 5, |_, _| 0.9);
        assert_eq!(all.known(), (0, None));
        play(&mut all, 5, 10, |_, _| 0.1);
        assert!(all.known().1.is_some_and(|mean| (mean - 0.1).abs() < 1e-12));
    }

    #[test]
    fn a_machine_has_the_arrangements_that_differ_on_it() {
        let count = |priority, lanes| Arrangements::new(priority, lanes, TIMES).all.len();
        assert_eq!([count(true, true), count(true, false), count(false, true)], [3, 3, 2]);
        let mut only = Arrangements::new(false, false, TIMES);
        assert_eq!(play(&mut only, 0, 60, |_, half| half as f64 / 120.0), [(Fenced, 1)]);
    }
}
