//! What was answered under one setting, for as long as it is looked at.

use lull_control::admission::Seen;
use lull_measure::{Latency, Nanos, Percentile};

/// Mean latencies in a window, those at its beginning that do not count, and its longest. What was
/// under way when it began ends meanwhile, and what then waits at a gate is admitted.
const LATENCIES: f64 = 3.5;
const WASH_OUT: f64 = 2.6;
const WINDOW_MAX: Nanos = Nanos::from_secs(8);
/// From one window to the next its length falls to this share at most: what a long latency has
/// left behind takes time to end.
const SHRINKS: f64 = 0.5;
/// Answers whose tail is worth having; many windows are compared. With fewer a window goes on,
/// for so many times its length; so few must do then, within so many.
const ANSWERS: u64 = 200;
const LONGER: u64 = 4;
const ANSWERS_LEAST: u64 = 50;
const PATIENCE: u64 = 8;
/// Answers that must have been missed in a row, at the window's own rate, for
/// the clients to have stopped: by chance that is once in e^20 windows.
const MISSED: f64 = 20.0;

/// Time between two looks, in the usual time, that is no delay of the agent's: its machine was
/// suspended, its process stopped, or the clock was set. What was answered meanwhile had no setting
/// that is known, because a gate without an agent is open.
const GAP: u64 = 10;
const GAP_MIN: Nanos = Nanos::from_secs(1);

/// What one window showed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) per_s: f64,
    /// How many were under way at a time, in the mean: L = X W (Little's law).
    pub(super) crowd: f64,
    /// Latency at the percentile of the objective.
    pub(super) tail_s: f64,
    /// Share of the time in which all workers rested, if that is known.
    pub(super) rested: Option<f64>,
    /// Length of the window, with the part that does not count.
    pub(super) span: Nanos,
}

/// What was answered under the present setting.
#[derive(Debug)]
pub(super) struct Window {
    /// Its length, and the shortest.
    length: Nanos,
    least: Nanos,
    /// What does not count at its start.
    wash_out: Nanos,
    mean_s: f64,
    at: Percentile,
    /// Since when the setting is in force, or it was last looked at with a result.
    since_result: Option<Nanos>,
    /// When it began, and when it began to count.
    begun: Option<Nanos>,
    counts_since: Option<Nanos>,
    latency: Latency,
    /// Answers since the last result, counted or not.
    answers: u64,
    /// Time of which it is known how much was rest, and that much, in seconds.
    known_s: f64,
    rested_s: f64,
    /// The last look, the time without answers up to it, and the longest such.
    looked: Nanos,
    /// The usual time between two looks.
    usual_gap: Nanos,
    quiet: Nanos,
    pause: Nanos,
}

impl Window {
    /// Windows of this length at least, for the latency at this percentile.
    pub(super) fn new(least: Nanos, usual_gap: Nanos, at: Percentile) -> Self {
        Self {
            length: least,
            least,
            wash_out: least / 4,
            mean_s: 0.0,
            at,
            since_result: None,
            begun: None,
            counts_since: None,
            latency: Latency::default(),
            answers: 0,
            known_s: 0.0,
            rested_s: 0.0,
            looked: Nanos::ZERO,
            usual_gap,
            quiet: Nanos::ZERO,
            pause: Nanos::ZERO,
        }
    }

    /// Takes in what was answered; what the window showed, once it is over.
    pub(super) fn note(&mut self, seen: &Seen<'_>) -> Option<Look> {
        if self.is_gap(seen.now) {
            self.looked = seen.now;
            self.restart(seen.now);
            return None;
        }
        let begun = *self.begun.get_or_insert(seen.now);
        self.since_result.get_or_insert(seen.now);
        let passed = self.listen(seen);
        self.answers += seen.answered.iter().map(|one| u64::from(one.queries)).sum::<u64>();
        let settles = begun + self.wash_out;
        let Some(since) = self.counts_since else {
            // What was answered up to now was answered before it counts.
            self.counts_since = (seen.now >= settles && seen.now > begun).then_some(seen.now);
            self.pause = Nanos::ZERO;
            return None;
        };
        self.count(seen, passed);
        let took = seen.now.saturating_sub(since);
        if seen.now.saturating_sub(begun) < self.length || took == Nanos::ZERO {
            return None;
        }
        self.close(seen.now, took)
    }

    /// Whether the clock jumped since the last look.
    pub(super) fn is_gap(&self, now: Nanos) -> bool {
        let most = (self.usual_gap * GAP).max(GAP_MIN);
        self.begun.is_some() && (now < self.looked || now - self.looked > most)
    }

    /// Returns the length of a window, with the part that does not count.
    pub(super) const fn length(&self) -> Nanos {
        self.length
    }

    /// Returns the part of a window that does not count.
    pub(super) const fn wash_out(&self) -> Nanos {
        self.wash_out
    }

    /// Returns for how long the setting has been in force without a result.
    pub(super) fn passed(&self, now: Nanos) -> Nanos {
        now.saturating_sub(self.since_result.unwrap_or(now))
    }

    /// Returns whether that is so long that none can be expected: clients stop and start, or there
    /// are too few answers.
    pub(super) fn is_overdue(&self, now: Nanos) -> bool {
        // The longest window, and what does not count before it.
        self.passed(now) > self.length * (PATIENCE + 1)
    }

    /// Returns whether clients have been there in all of the window, as far as answers show it.
    pub(super) fn is_answering(&self, expected_per_s: f64) -> bool {
        expected_per_s * self.pause.max(self.quiet).as_secs_f64() < MISSED
    }

    fn count(&mut self, seen: &Seen<'_>, passed: Nanos) {
        for one in seen.answered {
            self.latency.record_many(one.latency, u64::from(one.queries));
        }
        if let Ok(share) = seen.rested {
            self.known_s += passed.as_secs_f64();
            self.rested_s += share * passed.as_secs_f64();
        }
    }

    /// Ends the window if enough was answered in it, and clients were there all the time.
    fn close(&mut self, now: Nanos, took: Nanos) -> Option<Look> {
        let lengths = took.0 / self.length.0;
        let enough = if lengths < LONGER { ANSWERS } else { ANSWERS_LEAST };
        if self.latency.count() < enough {
            if lengths >= PATIENCE {
                self.begin(now);
            }
            return None;
        }
        let per_s = self.latency.count() as f64 / took.as_secs_f64();
        let were_there = per_s * self.pause.as_secs_f64() < MISSED;
        if !were_there {
            // The time that is lacking counts from the last result, and this is none.
            self.begin(now);
            return None;
        }
        let seconds = |nanos: Option<Nanos>| nanos.map_or(0.0, Nanos::as_secs_f64).max(1e-9);
        let mean_s = seconds(self.latency.mean());
        let look = Look {
            per_s,
            crowd: per_s * mean_s,
            tail_s: seconds(self.latency.quantile(self.at)),
            rested: (self.known_s > 0.0).then(|| self.rested_s / self.known_s),
            span: now.saturating_sub(self.begun.unwrap_or(now)),
        };
        self.restart(now);
        // What was admitted under the last setting ends under this one.
        self.mean_s = mean_s.max(SHRINKS * self.mean_s);
        let length = Nanos::from_secs_f64(LATENCIES * self.mean_s);
        self.length = length.clamp(self.least, WINDOW_MAX.max(self.least));
        self.wash_out = Nanos::from_secs_f64(WASH_OUT * self.mean_s)
            .clamp(self.length / 4, self.length.scale(0.75));
        Some(look)
    }

    /// Notes for how long nothing has been answered; the time since the last look.
    fn listen(&mut self, seen: &Seen<'_>) -> Nanos {
        let passed = seen.now.saturating_sub(self.looked);
        self.looked = seen.now;
        self.quiet = if seen.answered.is_empty() { self.quiet + passed } else { Nanos::ZERO };
        self.pause = self.pause.max(self.quiet);
        passed
    }

    /// Returns how much of the throughput that was expected is lacking since the last result, in
    /// seconds of it.
    pub(super) fn lacking_s(&self, now: Nanos, expected_per_s: f64) -> f64 {
        self.passed(now).as_secs_f64() - self.answers as f64 / expected_per_s
    }

    /// Begins a window of a setting that begins now, or goes on after a result.
    pub(super) fn restart(&mut self, now: Nanos) {
        (self.since_result, self.answers) = (Some(now), 0);
        self.begin(now);
    }

    fn begin(&mut self, now: Nanos) {
        self.begun = Some(now);
        self.counts_since = None;
        self.latency = Latency::default();
        (self.known_s, self.rested_s) = (0.0, 0.0);
    }
}
