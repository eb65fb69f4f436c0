//! Whether the load has become another, as far as that shows with the setting in force.
//!
//! A limit hides what the open gate would do, so that its cost does not show in throughput alone.
//! What shows beside it: how many are under way, CPU time a transaction, the run queue, and how
//! many transactions in service neither run nor wait for a core, which are those that wait for
//! locks, the disk, or their client. Each is compared with what it was in the first minute of the
//! setting, in means over a second and a half; three in a row that are far off on the same side are
//! a change.

use super::window::WindowReading;
use lull_control::admission::GateObservation;
use lull_measure::Nanos;

/// Time over which values are averaged.
const SPAN: Nanos = Nanos::from_millis(1500);
/// Means in a row that make a change: a stall of less than a span touches two of them.
const MEANS: u32 = 3;
/// Means that make up the usual value: a minute.
const USUAL: f64 = 40.0;
/// Standard deviations of means that are far off.
const FAR: f64 = 4.0;
/// Weight of the last mean in their variance.
const NEW: f64 = 0.1;

/// A signal, with the change in it that always counts as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Throughput,
    UnderWay,
    CpuTime,
    RunQueue,
    Asleep,
}

impl Kind {
    const ALL: [Self; 5] =
        [Self::Throughput, Self::UnderWay, Self::CpuTime, Self::RunQueue, Self::Asleep];

    /// The least change that is one: of a logarithm, or of a share.
    fn least(self) -> f64 {
        match self {
            Self::Throughput | Self::CpuTime => 1.2_f64.ln(),
            // How many are under way follows latency, which scatters more.
            Self::UnderWay => 2.0_f64.ln(),
            Self::RunQueue => 1.4_f64.ln(),
            Self::Asleep => 0.2,
        }
    }

    const fn describe(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::UnderWay => "the number under way",
            Self::CpuTime => "CPU time a transaction",
            Self::RunQueue => "the run queue",
            Self::Asleep => "the share of transactions that wait for locks, the disk or clients",
        }
    }
}

/// The deviation of one signal from its usual value.
#[derive(Debug, Clone)]
struct Signal {
    kind: Kind,
    usual: f64,
    variance: f64,
    means: f64,
    /// The time since which values are averaged, their sum and their number.
    since: Option<Nanos>,
    sum: f64,
    count: f64,
    /// The side on which the last means were far off, and how many; zero if the last was not.
    side: f64,
    far: u32,
}

impl Signal {
    fn new(kind: Kind) -> Self {
        let variance = (0.5 * kind.least() / FAR).powi(2);
        let (usual, means, since) = (0.0, 0.0, None);
        Self { kind, usual, variance, means, since, sum: 0.0, count: 0.0, side: 0.0, far: 0 }
    }

    /// Takes a value, and returns whether it makes a change.
    fn note(&mut self, now: Nanos, value: f64) -> bool {
        let since = *self.since.get_or_insert(now);
        self.sum += value;
        self.count += 1.0;
        if now.saturating_sub(since) < SPAN {
            return false;
        }
        let mean = self.sum / self.count;
        (self.since, self.sum, self.count) = (Some(now), 0.0, 0.0);
        self.takes_mean(mean)
    }

    fn takes_mean(&mut self, mean: f64) -> bool {
        if self.means == 0.0 {
            (self.usual, self.means) = (mean, 1.0);
            return false;
        }
        let off = mean - self.usual;
        let bound = self.kind.least().max(FAR * self.variance.sqrt());
        if off.abs() <= bound {
            self.far = 0;
            if self.means < USUAL {
                self.means += 1.0;
                self.usual += off / self.means;
                self.variance += NEW * (off * off - self.variance);
            }
            return false;
        }
        self.far = if self.side == off.signum() { self.far + 1 } else { 1 };
        self.side = off.signum();
        self.far >= MEANS
    }
}

/// The queries answered since the server's times were read last.
#[derive(Debug, Clone, Copy, Default)]
struct Answers {
    queries: f64,
    latency_s: f64,
}

/// All signals of a setting in force.
#[derive(Debug, Clone)]
pub(super) struct Change {
    signals: Vec<Signal>,
    answers: Answers,
    /// The time at which transactions admitted under the former setting had ended.
    since: Nanos,
}

impl Change {
    /// Begins with the setting that was in force alone from `since` on.
    pub(super) fn new(since: Nanos) -> Self {
        let signals = Kind::ALL.into_iter().map(Signal::new).collect();
        Self { signals, answers: Answers::default(), since }
    }

    fn note(&mut self, now: Nanos, values: &[(Kind, f64)]) -> Option<&'static str> {
        let mut found = None;
        for signal in &mut self.signals {
            let value =
                values.iter().find(|(kind, value)| *kind == signal.kind && value.is_finite());
            if value.is_some_and(|(_, value)| signal.note(now, *value)) {
                found = found.or(Some(signal.kind.describe()));
            }
        }
        found
    }

    /// Takes a window with the setting in force; returns a change, if there is one.
    pub(super) fn takes_window(&mut self, now: Nanos, look: WindowReading) -> Option<&'static str> {
        let values =
            [(Kind::Throughput, look.per_s.ln()), (Kind::UnderWay, look.under_way_mean.ln())];
        self.note(now, &values)
    }

    /// Takes the times of the server since the last reading, with at most `cap` transactions in
    /// service; returns a change, if there is one.
    ///
    /// A live server is read once a second, also during surveys. A reading that began under another
    /// setting does not count: its times are of a longer span than the answers here.
    pub(super) fn takes_times(
        &mut self,
        seen: &GateObservation<'_>,
        cap: Option<u32>,
        cores: u32,
    ) -> Option<&'static str> {
        for one in seen.answered {
            let queries = f64::from(one.queries);
            self.answers.queries += queries;
            self.answers.latency_s += queries * one.latency.as_secs_f64();
        }
        let times = seen.server.as_ref().ok()?;
        let Answers { queries, latency_s } = std::mem::take(&mut self.answers);
        if seen.now.saturating_sub(times.span) < self.since {
            return None;
        }
        let span_s = times.span.as_secs_f64();
        if span_s <= 0.0 || queries < 1.0 {
            return None;
        }
        let cpu_s = times.cpu.as_secs_f64();
        let queued = times.run_queue.as_secs_f64() / span_s;
        let mut values = vec![
            (Kind::CpuTime, (cpu_s / queries).ln()),
            (Kind::RunQueue, (1.0 + queued / f64::from(cores.max(1))).ln()),
        ];
        // Without a limit, transactions under way are those in service.
        let in_service = (latency_s / span_s).min(cap.map_or(f64::INFINITY, f64::from));
        if in_service > 0.0 {
            let awake = (cpu_s / span_s + queued) / in_service;
            values.push((Kind::Asleep, 1.0 - awake.min(1.0)));
        }
        self.note(seen.now, &values)
    }

    /// Discards answers under another setting, which affects answers until `since`.
    pub(super) fn restart(&mut self, since: Nanos) {
        (self.answers, self.since) = (Answers::default(), since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::admission::{Answered, ServerTimes};
    use lull_measure::Missing;

    /// A tenth of a second that ends now, with 100 answers, and times of a longer span or none.
    fn tenth(
        change: &mut Change,
        now: Nanos,
        latency_ms: u64,
        times: Option<ServerTimes>,
    ) -> Option<&'static str> {
        let latency = Nanos::from_millis(latency_ms);
        let answered = [Answered { connection: 0, latency, queries: 100 }];
        let missing = || Missing::because("times are read once a second");
        let seen = GateObservation {
            now,
            answered: &answered,
            waiting: &[0],
            connections: Err(missing()),
            under_way: Err(missing()),
            device: Err(missing()),
            round: None,
            rested: Err(missing()),
            server: times.ok_or_else(missing),
        };
        change.takes_times(&seen, None, 2)
    }

    /// Returns the use of two cores by ten runnable threads in this span.
    fn busy(span: Nanos) -> ServerTimes {
        ServerTimes { span, cpu: span * 2, run_queue: span * 10 }
    }

    #[test]
    fn a_reading_that_began_under_another_setting_is_no_part_of_what_is_usual() {
        for begun in 0..10 {
            let at = |tenths: u64| Nanos::from_millis(100 * tenths);
            let mut change = Change::new(at(begun) + Nanos::from_millis(75));
            for tenths in begun + 1..600 {
                let times = tenths.is_multiple_of(10).then(|| busy(Nanos::from_secs(1)));
                let changed = tenth(&mut change, at(tenths), 100, times);
                assert_eq!(changed, None, "begun at {begun} tenths, changed at {tenths}");
                // A block of another setting beside it, for half of a second.
                if (300..305).contains(&tenths) {
                    change.restart(at(tenths) + Nanos::from_millis(75));
                }
            }
        }
    }

    #[test]
    fn transactions_that_come_to_wait_for_locks_are_a_change() {
        let mut change = Change::new(Nanos::ZERO);
        let span = Nanos::from_millis(100);
        // 12 threads run or are runnable: of 12 transactions in service, and then of 24.
        let mut step =
            |at: u64, latency_ms| tenth(&mut change, span * at, latency_ms, Some(busy(span)));
        assert!((1..600).all(|at| step(at, 12).is_none()));
        let changed = (600..700).find_map(|at| step(at, 24).map(|what| (at, what)));
        let (at, what) = changed.unwrap();
        assert_eq!(what, Kind::Asleep.describe());
        assert!(at <= 660, "{at}");
    }

    fn after(values: impl IntoIterator<Item = f64>) -> Option<usize> {
        let mut signal = Signal::new(Kind::Throughput);
        let mut now = Nanos::ZERO;
        values.into_iter().position(|value| {
            now += Nanos::from_millis(500);
            signal.note(now, value)
        })
    }

    #[test]
    fn a_change_that_lasts_is_noticed_within_six_seconds_and_a_stall_is_none() {
        let steady = || std::iter::repeat_n(5.0, 100);
        let changed = after(steady().chain(std::iter::repeat_n(5.3, 100))).unwrap();
        assert!((100..=112).contains(&changed), "{changed}");
        let stall = std::iter::repeat_n(3.0, 3);
        assert_eq!(after(steady().chain(stall).chain(steady())), None);
        let around = [4.7, 5.3].into_iter().cycle().take(400);
        assert_eq!(after(around), None, "means over a span");
    }

    #[test]
    fn a_slow_drift_is_noticed_once_it_is_far() {
        let drift = (0..2000).map(|at| 5.0 + 0.0002 * f64::from(at));
        assert!(after(drift).is_some_and(|at| at < 1200));
    }
}
