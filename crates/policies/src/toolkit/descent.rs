//! The fewest transactions at a time that cost a live server nothing, from the open gate down.
//!
//! [`super::knee`] begins with one worker. On a live server that costs most of the throughput while
//! the search lasts, and it may end too low: the gate counts slots, and a slot whose client is on
//! its way keeps no core busy. Here the gate is open first:
//!
//! ```text
//! open     a window shows how many are under way (Little's law); the first limit is half of that
//! compare  windows of the limit and of the open gate in turn, six of each: the limit is kept if at
//!          least 97 % of the open gate's throughput remains, one standard error below the mean;
//!          then half of it, not below the number of cores, until one is not kept
//! hold     every 16th window is open; a limit that keeps less than 98 %, one standard error above
//!          the mean of the last six, is doubled
//! ```
//!
//! If no limit is kept, the gate stays open, and the search begins again after 60 windows. `auto`
//! decides by tests with an error probability; this is a search that does little harm, for the
//! controllers of others.

use lull_control::admission::GateObservation;
use lull_measure::Nanos;

/// Pairs of windows of a limit and the open gate.
const PAIRS: usize = 6;
/// Pairs at least that show a loss.
const PAIRS_OF_LOSS: usize = 4;
/// Share of the open gate's throughput that must remain for a limit to be kept, and below which it
/// is loosened.
const KEPT: f64 = 0.97;
const LOST: f64 = 0.98;
/// Windows between two open ones beside a limit, and of an open gate before the next search.
const REST: u32 = 15;
const RETRY: u32 = 60;
/// Windows over which the open gate's throughput is averaged.
const OPEN_WINDOWS: u32 = 8;
/// Answers of a window that count as a result.
const ANSWERS: u64 = 20;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    Open,
    Compare { is_open: bool },
    Hold { left: u32, is_open: bool },
}

/// A search from the open gate down.
#[derive(Debug, Clone)]
pub(crate) struct Descent {
    least: u32,
    window: Nanos,
    stage: Stage,
    /// The limit that is compared, and the last one that was kept.
    cap: u32,
    kept: Option<u32>,
    /// Whether the first search has ended.
    has_held: bool,
    /// Logarithms of the throughput in the limit's last window, and of ratios to the open gate's.
    limited: f64,
    ratios: Vec<f64>,
    /// Moving mean of the logarithm of the open gate's throughput, and its windows so far, up to
    /// [`OPEN_WINDOWS`].
    open: (f64, u32),
    /// How many are under way with an open gate.
    under_way_mean: f64,
    /// When the present window began, and since when it counts.
    begun: Option<Nanos>,
    since: Option<Nanos>,
    queries: u64,
    latency_s: f64,
}

impl Descent {
    /// Searches down to `least`, in windows of this length.
    pub(crate) const fn new(least: u32, window: Nanos) -> Self {
        Self {
            least,
            window,
            stage: Stage::Open,
            cap: u32::MAX,
            kept: None,
            has_held: false,
            limited: 0.0,
            ratios: Vec::new(),
            open: (0.0, 0),
            under_way_mean: 0.0,
            begun: None,
            since: None,
            queries: 0,
            latency_s: 0.0,
        }
    }

    /// Returns the limit to use now; `None` for an open gate.
    pub(crate) const fn cap(&self) -> Option<u32> {
        match self.stage {
            Stage::Compare { is_open: false } => Some(self.cap),
            Stage::Hold { is_open: false, .. } => self.kept,
            Stage::Open | Stage::Compare { .. } | Stage::Hold { .. } => None,
        }
    }

    /// Returns whether the first search has ended. A loss is noticed still, and without a limit a
    /// search begins now and then.
    pub(crate) const fn has_settled(&self) -> bool {
        self.has_held
    }

    /// Returns the throughput of the open gate in the mean of its last windows; `None` before it is
    /// known.
    pub(crate) fn open_per_s(&self) -> Option<f64> {
        let (mean, count) = self.open;
        (count > 0).then(|| mean.exp())
    }

    /// Notes the answers.
    pub(crate) fn note(&mut self, seen: &GateObservation<'_>) {
        let begun = *self.begun.get_or_insert(seen.now);
        let Some(since) = self.since else {
            // The first half of a window has what the setting before it admitted.
            let has_settled = seen.now.saturating_sub(begun) >= self.window / 2;
            self.since = has_settled.then_some(seen.now);
            return;
        };
        for one in seen.answered {
            self.queries += u64::from(one.queries);
            self.latency_s += f64::from(one.queries) * one.latency.as_secs_f64();
        }
        if seen.now.saturating_sub(begun) < self.window || seen.now <= since {
            return;
        }
        let took_s = (seen.now - since).as_secs_f64();
        let (queries, under_way_mean) = (self.queries, self.latency_s / took_s);
        (self.begun, self.since, self.queries, self.latency_s) = (Some(seen.now), None, 0, 0.0);
        if queries >= ANSWERS {
            self.judge((queries as f64 / took_s).ln(), under_way_mean);
        }
    }

    fn judge(&mut self, log_per_s: f64, under_way_mean: f64) {
        if self.cap().is_none() {
            let (mean, count) = self.open;
            let count = (count + 1).min(OPEN_WINDOWS);
            self.open = (mean + (log_per_s - mean) / f64::from(count), count);
        }
        self.stage = match self.stage {
            Stage::Open => {
                self.under_way_mean = under_way_mean;
                self.descend(under_way_mean.round() as u32)
            }
            Stage::Compare { is_open: false } => {
                self.limited = log_per_s;
                Stage::Compare { is_open: true }
            }
            Stage::Compare { is_open: true } => {
                self.ratios.push(self.limited - log_per_s);
                self.compare()
            }
            Stage::Hold { left, is_open: false } if self.kept.is_none() => match left {
                0 => Stage::Open,
                left => Stage::Hold { left: left - 1, is_open: false },
            },
            Stage::Hold { left, is_open: false } => {
                self.limited = log_per_s;
                Stage::Hold { left: left.saturating_sub(1), is_open: left <= 1 }
            }
            Stage::Hold { is_open: true, .. } => {
                self.ratios.push(self.limited - log_per_s);
                self.check();
                self.hold()
            }
        };
        self.has_held |= matches!(self.stage, Stage::Hold { .. });
    }

    /// Compares half of a limit next, or holds the kept one.
    fn descend(&mut self, from: u32) -> Stage {
        self.ratios.clear();
        self.cap = from / 2;
        if self.cap < self.least { self.hold() } else { Stage::Compare { is_open: false } }
    }

    const fn hold(&self) -> Stage {
        Stage::Hold { left: if self.kept.is_some() { REST } else { RETRY }, is_open: false }
    }

    fn compare(&mut self) -> Stage {
        if self.ratios.len() < PAIRS {
            return Stage::Compare { is_open: false };
        }
        let (mean, error) = mean_and_error(&self.ratios);
        if mean - error < KEPT.ln() {
            self.ratios.clear();
            return self.hold();
        }
        self.kept = Some(self.cap);
        self.descend(self.cap)
    }

    /// Loosens the limit in force if it is shown to cost something.
    fn check(&mut self) {
        if self.ratios.len() > PAIRS {
            self.ratios.remove(0);
        }
        let (mean, error) = mean_and_error(&self.ratios);
        if self.ratios.len() >= PAIRS_OF_LOSS && mean + error < LOST.ln() {
            self.ratios.clear();
            let looser = self.kept.map(|cap| cap.saturating_mul(2));
            self.kept = looser.filter(|cap| f64::from(*cap) < self.under_way_mean);
        }
    }
}

/// The mean of values and its standard error.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0) / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::admission::Answered;
    use lull_measure::Missing;

    /// Clients in a closed loop.
    const CLIENTS: u32 = 64;

    /// Runs a search for so many windows of two seconds; returns the limits in force, one a look.
    fn run(search: &mut Descent, now: &mut Nanos, windows: u32, per_s: fn(u32) -> f64) -> Vec<u32> {
        let missing = || Missing::because("there is no server");
        let looks = (0..20 * windows).map(|_| {
            let in_service = search.cap().unwrap_or(CLIENTS).min(CLIENTS);
            let per_s = per_s(in_service);
            let latency = Nanos::from_secs_f64(f64::from(CLIENTS) / per_s);
            let queries = (per_s / 10.0).round() as u32;
            *now += Nanos::from_millis(100);
            search.note(&GateObservation {
                now: *now,
                answered: &[Answered { connection: 0, latency, queries }],
                waiting: &[0],
                device: Err(missing()),
                round: None,
                rested: Err(missing()),
                connections: Err(missing()),
                under_way: Err(missing()),
                server: Err(missing()),
            });
            in_service
        });
        looks.collect()
    }

    fn search(cores: u32) -> (Descent, Nanos) {
        (Descent::new(cores, Nanos::from_secs(2)), Nanos::ZERO)
    }

    #[test]
    fn the_gate_is_open_first_and_the_fewest_that_cost_nothing_are_held() {
        let (mut search, mut now) = search(2);
        let needs_eight = |in_service: u32| 1000.0 * (f64::from(in_service) / 8.0).min(1.0);
        let limits = run(&mut search, &mut now, 60, needs_eight);
        assert_eq!(limits[0], CLIENTS);
        assert_eq!((search.has_settled(), search.kept), (true, Some(8)));
        assert!((search.open_per_s().unwrap() / 1000.0 - 1.0).abs() < 0.01);
        let lost: f64 = limits.iter().map(|cap| 1.0 - needs_eight(*cap) / 1000.0).sum();
        assert!(lost <= 0.5 * 20.0 * PAIRS as f64 + 1.0, "one limit that is too low: {lost}");
        let open = run(&mut search, &mut now, 160, needs_eight);
        let share = open.iter().filter(|cap| **cap == CLIENTS).count() as f64 / open.len() as f64;
        assert!((0.05..0.08).contains(&share), "{share}");
    }

    #[test]
    fn no_limit_is_below_the_number_of_cores() {
        let (mut search, mut now) = search(16);
        run(&mut search, &mut now, 60, |_| 1000.0);
        assert_eq!(search.kept, Some(16));
    }

    #[test]
    fn where_each_limit_costs_the_gate_stays_open() {
        let (mut search, mut now) = search(2);
        let limits = run(&mut search, &mut now, 60, |in_service| 20.0 * f64::from(in_service));
        assert_eq!((search.has_settled(), search.kept), (true, None));
        let closed = limits.iter().filter(|cap| **cap < CLIENTS).count();
        assert!(closed <= 21 * PAIRS, "{closed} looks");
    }

    #[test]
    fn a_search_that_begins_again_leaves_what_was_settled() {
        let (mut search, mut now) = search(2);
        let mut settled = Vec::new();
        let mut searches = 0;
        for _ in 0..200 {
            run(&mut search, &mut now, 1, |in_service| 20.0 * f64::from(in_service));
            settled.push(search.has_settled());
            searches += u32::from(search.stage == Stage::Open);
        }
        let first = settled.iter().position(|is| *is).unwrap();
        assert!((2 * PAIRS..20).contains(&first), "{first}");
        assert!(settled[first..].iter().all(|is| *is));
        assert!(searches >= 2, "it is to begin again");
    }

    #[test]
    fn a_limit_that_begins_to_cost_is_loosened_until_it_does_not() {
        let (mut search, mut now) = search(2);
        run(&mut search, &mut now, 60, |in_service| 125.0 * f64::from(in_service.min(8)));
        assert_eq!(search.kept, Some(8));
        run(&mut search, &mut now, 400, |in_service| 50.0 * f64::from(in_service.min(32)));
        assert_eq!(search.kept, Some(32));
        let open_per_s = search.open_per_s().unwrap();
        assert!((open_per_s / 1600.0 - 1.0).abs() < 0.05, "of the last windows: {open_per_s}");
        run(&mut search, &mut now, 200, |in_service| 20.0 * f64::from(in_service));
        assert_eq!(search.kept, None);
    }

    #[test]
    fn a_server_without_clients_decides_nothing() {
        let (mut search, mut now) = search(2);
        run(&mut search, &mut now, 100, |_| 1.0);
        assert_eq!((search.cap(), search.has_settled(), search.open_per_s()), (None, false, None));
    }
}
