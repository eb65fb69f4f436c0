//! The fewest workers with the highest throughput, found by trials.
//!
//! REEF (Li et al., SoCC'25, section 3.3) adopts from AppleS that a server needs MinN_worker, "the
//! fewest concurrent worker threads that maximise throughput", and prints no search. Ours:
//!
//! ```text
//! 1, 2, 4, ... workers, until a doubling gains less than 2 %
//! between them by halving: the fewest within 2 % of the best, median of three windows
//! then every 15 windows: one fewer, kept if within 2 % of the best;
//!     if that was too few, one more if the device has room, kept if it gains 2 %
//! ```
//!
//! The last step follows drift: the best throughput is measured again when it is exceeded or no
//! longer reached, so the cap moves if the device becomes slower or queries become cheaper.

use lull_control::admission::GateObservation;
use lull_measure::Nanos;

/// The gain that counts, and the allowed loss against the best.
const GAIN: f64 = 1.02;
const LOSS: f64 = 0.98;
/// Looks at each cap of the halving.
const LOOKS: usize = 3;
/// Windows between two tries at another cap.
const REST: u32 = 15;
/// Share of the device above which more workers cannot help (section 3.1).
const FULL: f64 = 0.95;

/// A search for a cap, or a cap that was given.
#[derive(Debug, Clone)]
pub(crate) struct Knee {
    cap: u32,
    most: u32,
    window: Nanos,
    stage: Stage,
    /// Throughputs by cap, of the doubling.
    curve: Vec<(u32, f64)>,
    looks: Vec<f64>,
    /// When the present window begins to count, its first quarter left out;
    /// since when it counts; queries and device time since.
    settles: Option<Nanos>,
    since: Option<Nanos>,
    last: Nanos,
    queries: u64,
    device_s: f64,
    /// Throughput at the cap that holds.
    best_per_s: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    /// The limit is given and not searched.
    Given,
    /// The next is twice as many.
    Doubling,
    /// The knee is above `low` and at most `high`.
    Halving { low: u32, high: u32 },
    /// This many windows are left until the next try.
    Holding { rest: u32 },
    /// One fewer is tried.
    Fewer,
    /// One more is tried.
    More,
}

/// One window's measurement.
#[derive(Debug, Clone, Copy)]
struct WindowRate {
    per_s: f64,
    device: Option<f64>,
}

impl Knee {
    /// Keeps `cap`, or searches up to `most` if that is 0.
    pub(crate) fn new(cap: u32, most: u32, window: Nanos) -> Self {
        let stage = if cap > 0 { Stage::Given } else { Stage::Doubling };
        Self {
            cap: cap.max(1),
            most: most.max(1),
            window,
            stage,
            curve: Vec::new(),
            looks: Vec::new(),
            settles: None,
            since: None,
            last: Nanos::ZERO,
            queries: 0,
            device_s: 0.0,
            best_per_s: 0.0,
        }
    }

    /// The cap to use now.
    pub(crate) fn cap(&self) -> u32 {
        self.cap
    }

    /// Whether the search has ended (drift is followed still).
    pub(crate) fn has_settled(&self) -> bool {
        !matches!(self.stage, Stage::Doubling | Stage::Halving { .. })
    }

    /// Throughput at the cap that holds; `None` before it is known.
    pub(crate) fn best_per_s(&self) -> Option<f64> {
        (self.best_per_s > 0.0).then_some(self.best_per_s)
    }

    /// Notes the answers.
    pub(crate) fn note(&mut self, seen: &GateObservation<'_>) {
        let span = seen.now.saturating_sub(self.last);
        self.last = seen.now;
        let Some(settles) = self.settles else {
            return self.begin(seen.now);
        };
        let Some(since) = self.since else {
            // Queries answered up to now do not count: the window begins now.
            self.since = (seen.now >= settles).then_some(seen.now);
            return;
        };
        self.queries += seen.answered.iter().map(|one| u64::from(one.queries)).sum::<u64>();
        self.device_s += seen.device.as_ref().map_or(f64::NAN, |share| share * span.as_secs_f64());
        let took = seen.now - since;
        if took.0 * 4 < self.window.0 * 3 {
            return;
        }
        let seconds = took.as_secs_f64();
        let device = (self.device_s / seconds).min(1.0);
        let look = WindowRate {
            per_s: self.queries as f64 / seconds,
            device: device.is_finite().then_some(device),
        };
        self.judge(look);
        self.begin(seen.now);
    }

    /// Starts a window: its first quarter is for settling.
    fn begin(&mut self, now: Nanos) {
        self.settles = Some(now + self.window / 4);
        self.since = None;
        self.queries = 0;
        self.device_s = 0.0;
    }

    fn judge(&mut self, look: WindowRate) {
        match self.stage {
            Stage::Given => self.best_per_s = look.per_s,
            Stage::Doubling => self.double(look.per_s),
            Stage::Halving { low, high } => self.halve(low, high, look.per_s),
            Stage::Holding { rest } => self.hold(rest, look),
            Stage::Fewer => self.fewer(look),
            Stage::More => self.more(look),
        }
    }

    fn double(&mut self, per_s: f64) {
        let before = self.curve.last().map_or(0.0, |(_, per_s)| *per_s);
        self.curve.push((self.cap, per_s));
        if per_s >= GAIN * before && self.cap < self.most {
            self.cap = (self.cap * 2).min(self.most);
            return;
        }
        let best = self.curve.iter().map(|(_, per_s)| *per_s).fold(0.0, f64::max);
        self.best_per_s = best;
        let enough = |(_, per_s): &&(u32, f64)| *per_s >= LOSS * best;
        let high = self.curve.iter().find(enough).map_or(self.cap, |(cap, _)| *cap);
        let below = self.curve.iter().rev().find(|(cap, _)| *cap < high);
        self.halve_on(below.map_or(0, |(cap, _)| *cap), high);
    }

    fn halve_on(&mut self, low: u32, high: u32) {
        self.looks.clear();
        if high - low <= 1 {
            self.cap = high;
            self.stage = Stage::Holding { rest: REST };
        } else {
            self.cap = low + (high - low) / 2;
            self.stage = Stage::Halving { low, high };
        }
    }

    fn halve(&mut self, low: u32, high: u32, per_s: f64) {
        self.looks.push(per_s);
        if self.looks.len() < LOOKS {
            return;
        }
        self.looks.sort_unstable_by(f64::total_cmp);
        if self.looks[LOOKS / 2] >= LOSS * self.best_per_s {
            self.halve_on(low, self.cap);
        } else {
            self.halve_on(self.cap, high);
        }
    }

    fn hold(&mut self, rest: u32, look: WindowRate) {
        // A moving mean over about four windows. Within the tolerated loss the best
        // stays, for else a large cap would lose 2 % with every step down.
        if look.per_s > self.best_per_s || look.per_s < LOSS * self.best_per_s {
            self.best_per_s += (look.per_s - self.best_per_s) / 4.0;
        }
        self.stage = Stage::Holding { rest: rest.saturating_sub(1) };
        if rest > 1 {
            return;
        }
        if self.cap > 1 {
            self.cap -= 1;
            self.stage = Stage::Fewer;
        } else {
            self.try_more(look);
        }
    }

    fn fewer(&mut self, look: WindowRate) {
        if look.per_s >= LOSS * self.best_per_s {
            self.stage = Stage::Holding { rest: REST };
            return;
        }
        self.cap += 1;
        self.try_more(look);
    }

    fn try_more(&mut self, look: WindowRate) {
        self.stage = Stage::Holding { rest: REST };
        if look.device.is_none_or(|share| share < FULL) && self.cap < self.most {
            self.cap += 1;
            self.stage = Stage::More;
        }
    }

    fn more(&mut self, look: WindowRate) {
        if look.per_s >= GAIN * self.best_per_s {
            self.best_per_s = look.per_s;
        } else {
            self.cap -= 1;
        }
        self.stage = Stage::Holding { rest: REST };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::admission::Answered;
    use proptest::prelude::*;

    /// A closed system in which each worker answers one query in `each_s`, up to `limit_per_s`.
    #[derive(Clone, Copy)]
    struct Closed {
        each_s: f64,
        limit_per_s: f64,
    }

    impl Closed {
        fn per_s(self, workers: u32) -> f64 {
            (f64::from(workers) / self.each_s).min(self.limit_per_s)
        }

        /// Fewest that come within 2 % of what `most` give.
        fn fewest(self, most: u32) -> u32 {
            (0.98 * self.each_s * self.per_s(most) - 1e-9).ceil().max(1.0) as u32
        }
    }

    /// Runs a search on a system for this many looks of 100 ms.
    fn run(knee: &mut Knee, system: Closed, from: u64, looks: u64) -> u64 {
        for look in from..from + looks {
            let per_s = system.per_s(knee.cap());
            let answers = Answered {
                connection: 0,
                latency: Nanos::from_millis(1),
                queries: (per_s / 10.0).round() as u32,
            };
            knee.note(&GateObservation {
                now: Nanos::from_millis(100 * look),
                answered: &[answers],
                waiting: &[0],
                device: Ok(per_s / system.limit_per_s),
                round: None,
                rested: Ok(0.0),
                connections: Err(lull_measure::Missing::because("no server")),
                under_way: Err(lull_measure::Missing::because("no server")),
                server: Err(lull_measure::Missing::because("no server")),
            });
        }
        from + looks
    }

    fn knee(most: u32) -> Knee {
        Knee::new(0, most, Nanos::from_secs(2))
    }

    #[test]
    fn it_finds_the_fewest_workers_of_a_closed_system() {
        let system = Closed { each_s: 0.7e-3, limit_per_s: 16_100.0 };
        let mut knee = knee(512);
        run(&mut knee, system, 0, 1500);
        assert!(knee.has_settled());
        assert_eq!(knee.cap(), 12, "0.98 * 0.7 ms * 16100/s = 11.04");
        assert!((knee.best_per_s().unwrap() / 16_100.0 - 1.0).abs() < 0.01);
    }

    #[test]
    fn it_goes_no_further_than_there_are_workers() {
        let system = Closed { each_s: 1e-3, limit_per_s: 1e6 };
        let mut knee = knee(24);
        run(&mut knee, system, 0, 1500);
        assert_eq!(knee.cap(), 24);
    }

    #[test]
    fn it_follows_a_device_that_becomes_slower_and_faster_again() {
        let fast = Closed { each_s: 1e-3, limit_per_s: 10_000.0 };
        let slow = Closed { limit_per_s: 8_000.0, ..fast };
        let mut knee = knee(512);
        let at = run(&mut knee, fast, 0, 1500);
        assert_eq!(knee.cap(), 10);
        let at = run(&mut knee, slow, at, 10_000);
        assert!((8..=9).contains(&knee.cap()), "{}", knee.cap());
        run(&mut knee, fast, at, 30_000);
        assert!((10..=11).contains(&knee.cap()), "{}", knee.cap());
    }

    #[test]
    fn a_given_cap_is_not_searched() {
        let mut knee = Knee::new(7, 512, Nanos::from_secs(2));
        run(&mut knee, Closed { each_s: 1e-3, limit_per_s: 1e4 }, 0, 3000);
        assert_eq!((knee.cap(), knee.has_settled()), (7, true));
        assert!((knee.best_per_s().unwrap() - 7000.0).abs() < 1.0);
    }

    proptest! {
        #[test]
        fn the_fewest_are_found_whatever_the_system(
            each_us in 100u32..500,
            workers in 1u32..200,
            most in 1u32..512,
        ) {
            let each_s = f64::from(each_us) / 1e6;
            let system = Closed { each_s, limit_per_s: f64::from(workers) / each_s };
            let mut knee = knee(most);
            let mut at = run(&mut knee, system, 0, 1200);
            prop_assert!(knee.has_settled());
            // A limit that is tried for a window was not found.
            while matches!(knee.stage, Stage::Fewer | Stage::More) {
                at = run(&mut knee, system, at, 1);
            }
            let wanted = system.fewest(most);
            prop_assert!(knee.cap().abs_diff(wanted) <= 1, "{} {wanted}", knee.cap());
        }
    }
}
