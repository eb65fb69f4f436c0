//! The window: the answers under one setting, for as long as it is observed.
//!
//! Throughput is of all that ends after the wash-out. Latencies are of the transactions that were
//! admitted under the setting (`survival.rs`), where the gate shows which are under way; elsewhere
//! of all that ends.

use super::cpu_time::CpuTime;
use super::survival::Survival;
use lull_control::admission::GateObservation;
use lull_measure::{Latency, Nanos, Percentile};

/// Lengths in mean latencies: of a window, of the part at its beginning that does not count at
/// most, and of its longest. Transactions under way when it began end meanwhile, and waiting ones
/// are then admitted; as soon as all of those have ended, or after the p99 of the window before,
/// the window counts.
const LATENCIES: f64 = 3.0;
const WASH_OUT: f64 = 2.4;
const WINDOW_MAX: Nanos = Nanos::from_secs(8);
/// The smallest share to which the length falls from one window to the next: the effects of a long
/// latency take time to end.
const SHRINKS: f64 = 0.5;
/// The fewest answers for a useful tail; many windows are compared. A window with fewer continues,
/// for this many times its length; then this smaller number must do, within this many lengths.
const ANSWERS: u64 = 200;
const LONGER: u64 = 4;
const ANSWERS_LEAST: u64 = 50;
const PATIENCE: u64 = 8;
/// Answers that must have been missed in a row, at the window's own rate, for
/// the clients to have stopped: by chance that is once in e^20 windows.
const MISSED: f64 = 20.0;

/// Share of those that are usually under way that must be for clients to be there although none
/// has an answer. A backup or a replica may be under way all the time.
const PRESENT: f64 = 0.25;
/// Length of a window in its bound, where that is more: transactions that are admitted at its
/// beginning can come to be late in it.
const BOUNDS: f64 = 1.25;

/// Ages, in those of the window, up to which a transaction under way counts where their number
/// shows how long they take: a backup or a replica may be under way all the time.
const YOUNG: f64 = 3.0;
/// Age, in lengths of the window, of a transaction at the window's beginning that is not waited
/// for: a backup or a replica, again. A latency counts as so long at most, or one transaction that
/// its client held open for an hour would make the mean.
const AGED: f64 = 10.0;

/// Least length of a window that shows CPU time, which a live server shows once a second.
const LEAST_OF_CPU_TIME: Nanos = Nanos::from_secs(1);

/// Time between two looks, in units of the usual time, that is not a delay of the agent's: its
/// machine was suspended, its process stopped, or the clock was set. Answers meanwhile had no known
/// setting, because a gate without an agent is open.
const GAP: u64 = 10;
const GAP_MIN: Nanos = Nanos::from_secs(1);

/// The observations of one window.
#[derive(Debug, Clone, Copy)]
pub(super) struct WindowReading {
    pub(super) per_s: f64,
    /// How many were under way at a time, in the mean: L = X W (Little's law).
    pub(super) under_way_mean: f64,
    /// Latency at the percentile of the objective.
    pub(super) tail_s: f64,
    /// Share of transactions over the bound, if there is one.
    pub(super) late: Option<f64>,
    /// Share of the time in which all workers rested, if that is known.
    pub(super) rested: Option<f64>,
    /// CPU time a transaction, if a reading of it lay in the window.
    pub(super) cpu_s: Option<f64>,
    /// Number of connections when the window began, and transactions that arrived a second, where
    /// these are known.
    pub(super) connections: Option<f64>,
    pub(super) offered_per_s: Option<f64>,
    /// Length of the window, with the part that does not count.
    pub(super) span: Nanos,
}

#[cfg(test)]
impl WindowReading {
    /// Returns the observations of a window of 300 ms of 64 transactions at a time with this
    /// throughput.
    pub(super) fn of_rate(per_s: f64) -> Self {
        Self {
            per_s,
            under_way_mean: 64.0,
            tail_s: 0.1,
            late: None,
            rested: None,
            cpu_s: None,
            connections: None,
            offered_per_s: None,
            span: Nanos::from_millis(300),
        }
    }
}

/// The queries answered under the present setting.
#[derive(Debug)]
pub(super) struct Window {
    /// Its length, and the shortest.
    length: Nanos,
    least: Nanos,
    /// Length that the last window was to have: it may have ended earlier.
    last_length: Nanos,
    /// The longest part at its start that is not counted.
    wash_out: Nanos,
    mean_s: f64,
    /// How long transactions take by how many were under way in the last window and how many
    /// ended in it (Little's law), in seconds; zero if it is not known how many.
    stay_s: f64,
    /// How many were under way in the last window.
    under_way_mean: f64,
    at: Percentile,
    bound: Option<Nanos>,
    /// The time since which the setting is in force, or of its last look with a result.
    since_result: Option<Nanos>,
    /// When it began, and when it began to count.
    begun: Option<Nanos>,
    counts_since: Option<Nanos>,
    latency: Latency,
    /// The transactions that were admitted under the setting.
    admitted: Survival,
    /// The time since which nothing was charged to the ledger, and answers since then, counted or
    /// not.
    charged: Option<Nanos>,
    answers: u64,
    /// Time of which it is known how much was rest, and that much, in seconds.
    known_s: f64,
    rested_s: f64,
    /// CPU time, and whether a window waits for a reading of it.
    cpu: CpuTime,
    needs_cpu_time: bool,
    /// Time that transactions which are not too old were under way, of all of them, in seconds.
    young_s: f64,
    /// Number of connections when the window began, which its setting has not moved, and at the
    /// last look.
    connections: Option<u32>,
    last_connections: Option<u32>,
    /// How many were under way when it began to count.
    under_way_before: Option<usize>,
    /// Time since the last charge in which no transaction was under way and none ended, and
    /// whether that was so at the last look.
    deserted: Nanos,
    is_deserted: bool,
    /// The last look, the time without answers up to it, and the longest such.
    looked: Nanos,
    /// The usual time between two looks.
    usual_gap: Nanos,
    quiet: Nanos,
    pause: Nanos,
}

impl Window {
    /// Windows of this length at least, for the latency at this percentile and the share of
    /// transactions over a bound.
    pub(super) fn new(
        least: Nanos,
        usual_gap: Nanos,
        at: Percentile,
        bound: Option<Nanos>,
    ) -> Self {
        let least = bound.map_or(least, |bound| least.max(bound.scale(BOUNDS).min(WINDOW_MAX)));
        Self {
            length: least,
            least,
            last_length: least,
            wash_out: least / 4,
            mean_s: 0.0,
            stay_s: 0.0,
            under_way_mean: 0.0,
            at,
            bound,
            since_result: None,
            begun: None,
            counts_since: None,
            latency: Latency::default(),
            admitted: Survival::default(),
            charged: None,
            answers: 0,
            known_s: 0.0,
            rested_s: 0.0,
            cpu: CpuTime::default(),
            needs_cpu_time: false,
            young_s: 0.0,
            connections: None,
            last_connections: None,
            under_way_before: None,
            deserted: Nanos::ZERO,
            is_deserted: false,
            looked: Nanos::ZERO,
            usual_gap,
            quiet: Nanos::ZERO,
            pause: Nanos::ZERO,
        }
    }

    /// Takes in the answers; returns the observations of the window, once it is over.
    pub(super) fn note(&mut self, seen: &GateObservation<'_>) -> Option<WindowReading> {
        self.last_connections = seen.connections.as_ref().ok().copied();
        if self.is_gap(seen.now) {
            self.looked = seen.now;
            let before = self.connections;
            self.restart(seen.now);
            self.connections = before;
            return None;
        }
        self.cpu.note(seen, self.counts_since);
        let begun = *self.begun.get_or_insert(seen.now);
        self.since_result.get_or_insert(seen.now);
        self.charged.get_or_insert(seen.now);
        let passed = self.listen(seen);
        self.answers += seen.answered.iter().map(|one| u64::from(one.queries)).sum::<u64>();
        let Some(since) = self.counts_since else {
            // Queries answered up to now do not count: the window begins now.
            let settles = seen.now >= begun + self.wash_out || self.has_turned_over(seen, begun);
            self.counts_since = (settles && seen.now > begun).then_some(seen.now);
            self.under_way_before = seen.under_way.as_ref().ok().map(|ages| ages.len());
            self.pause = Nanos::ZERO;
            return None;
        };
        self.count(seen, passed, since);
        let took = seen.now.saturating_sub(since);
        if !self.is_over(seen.now.saturating_sub(begun), took) {
            return None;
        }
        self.close(seen, took)
    }

    /// Returns whether all that was under way when the window began has ended.
    fn has_turned_over(&self, seen: &GateObservation<'_>, begun: Nanos) -> bool {
        let age = seen.now.saturating_sub(begun);
        let aged = age + self.length.scale(AGED);
        let is_awaited = |one: &Nanos| *one > age && *one < aged;
        let is_over = seen.under_way.as_ref().is_ok_and(|ages| !ages.iter().any(is_awaited));
        is_over && age >= self.length / 4
    }

    /// Whether the clock jumped since the last look.
    pub(super) fn is_gap(&self, now: Nanos) -> bool {
        let most = (self.usual_gap * GAP).max(GAP_MIN);
        self.begun.is_some() && (now < self.looked || now - self.looked > most)
    }

    /// Sets whether a window waits for a reading of CPU time, for as long as it waits for
    /// answers. Returns whether it did.
    pub(super) const fn require_cpu_time(&mut self, is_required: bool) -> bool {
        std::mem::replace(&mut self.needs_cpu_time, is_required)
    }

    /// Returns the shortest length of a window.
    fn least(&self) -> Nanos {
        if self.needs_cpu_time { self.least.max(LEAST_OF_CPU_TIME) } else { self.least }
    }

    /// Returns the length of a window, with the part that does not count.
    pub(super) const fn length(&self) -> Nanos {
        self.length
    }

    /// Returns the length that the last window was to have, with the part that does not count.
    pub(super) const fn last_length(&self) -> Nanos {
        self.last_length
    }

    /// Returns the part of a window that does not count.
    pub(super) const fn wash_out(&self) -> Nanos {
        self.wash_out
    }

    /// Whether a window of this age, of which this much counts, is over: earlier if the
    /// transactions under way when it began ended early.
    fn is_over(&self, age: Nanos, counted: Nanos) -> bool {
        let most = self.length.saturating_sub(self.wash_out);
        counted > Nanos::ZERO && age >= self.least() && (counted >= most || age >= self.length)
    }

    /// Returns for how long the setting has been in force without a result.
    pub(super) fn passed(&self, now: Nanos) -> Nanos {
        now.saturating_sub(self.since_result.unwrap_or(now))
    }

    /// Returns whether that is so long that none can be expected: clients stop and start, or there
    /// are too few answers.
    pub(super) fn is_overdue(&self, now: Nanos) -> bool {
        // The longest window, and the part before it that does not count.
        self.passed(now) > self.length * (PATIENCE + 1)
    }

    /// Returns whether clients have been there in all of the window, as far as answers show it.
    pub(super) fn is_answering(&self, expected_per_s: f64) -> bool {
        expected_per_s * self.pause.max(self.quiet).as_secs_f64() < MISSED
    }

    fn count(&mut self, seen: &GateObservation<'_>, passed: Nanos, since: Nanos) {
        let begun = self.begun.unwrap_or(since);
        // A transaction ended at some time since the last look: it may have begun so early.
        let looked = seen.now.saturating_sub(passed);
        let counted = looked.saturating_sub(since) + passed / 2;
        for one in seen.answered {
            let (latency, queries) = (one.latency, u64::from(one.queries));
            self.latency.record_many(latency.min(self.length.scale(AGED)), queries);
            let is_known = seen.under_way.is_ok();
            if !is_known {
                self.admitted.add_ended(Nanos::ZERO, latency, queries);
            } else if begun.saturating_add(latency) <= looked {
                self.admitted.add_ended(latency.saturating_sub(counted), latency, queries);
            }
        }
        if let Ok(share) = seen.rested {
            self.known_s += passed.as_secs_f64();
            self.rested_s += share * passed.as_secs_f64();
        }
        if let Ok(ages) = &seen.under_way {
            let oldest = seen.now.saturating_sub(begun).scale(YOUNG);
            let young = ages.iter().filter(|age| **age <= oldest).count();
            self.young_s += young as f64 * passed.as_secs_f64();
        }
    }

    /// Ends the window if enough was answered in it, and clients were there all the time.
    fn close(&mut self, seen: &GateObservation<'_>, took: Nanos) -> Option<WindowReading> {
        let (now, lengths) = (seen.now, took.0 / self.length.0);
        if !self.has_enough(seen, lengths) {
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
        let mean_s = seconds(self.latency.mean());
        let p99_s = seconds(self.latency.quantile(Percentile::P99));
        let tail = self.tail(seen, took);
        self.stay_s = self.young_s / self.latency.count() as f64;
        let look = WindowReading {
            per_s,
            under_way_mean: per_s * mean_s,
            tail_s: seconds(tail),
            late: self.bound.map(|bound| self.admitted.late(bound)),
            rested: (self.known_s > 0.0).then(|| self.rested_s / self.known_s),
            cpu_s: self.cpu.per_transaction_s(),
            connections: self.connections.filter(|all| *all > 0).map(f64::from),
            offered_per_s: self.offered_per_s(seen, took),
            span: now.saturating_sub(self.begun.unwrap_or(now)),
        };
        self.restart(now);
        self.under_way_mean = look.under_way_mean;
        // Queries that were admitted under the last setting end under this one.
        self.last_length = self.length;
        self.set_lengths(mean_s.max(SHRINKS * self.mean_s), p99_s);
        Some(look)
    }

    /// Returns how many transactions arrived a second: those that ended, and those by which more
    /// are under way than before.
    fn offered_per_s(&self, seen: &GateObservation<'_>, took: Nanos) -> Option<f64> {
        let under_way = seen.under_way.as_ref().ok()?.len() as f64;
        let offered = self.latency.count() as f64 + under_way - self.under_way_before? as f64;
        (offered > 0.0).then(|| offered / took.as_secs_f64())
    }

    /// Makes windows as long as this mean latency demands. When the p99 is over, nearly all that
    /// was admitted before has ended.
    fn set_lengths(&mut self, mean_s: f64, p99_s: f64) {
        self.mean_s = mean_s;
        let length = Nanos::from_secs_f64(LATENCIES * mean_s);
        self.length = length.clamp(self.least(), WINDOW_MAX.max(self.least()));
        let wash_out_s = (WASH_OUT * mean_s).min(p99_s.max(mean_s));
        self.wash_out =
            Nanos::from_secs_f64(wash_out_s).clamp(self.length / 4, self.length.scale(0.75));
    }

    /// Makes the present window as long as the number of transactions under way demands. While
    /// clients have just connected only the shortest transactions have ended, and their latencies
    /// say little of how long the others take.
    pub(super) fn extend_to_under_way(&mut self) {
        if self.stay_s > self.mean_s {
            self.set_lengths(self.stay_s, f64::INFINITY);
        }
    }

    /// Returns whether there are enough answers for a result after this many lengths.
    ///
    /// Little is known, and late, of a server that is slow and has its clients under way, but a
    /// window without a result would look as if the clients had left.
    fn has_enough(&self, seen: &GateObservation<'_>, lengths: u64) -> bool {
        let lacks_cpu_time = self.needs_cpu_time && self.cpu.per_transaction_s().is_none();
        if lacks_cpu_time && lengths < PATIENCE {
            return false;
        }
        let under_way = seen.under_way.as_ref().map_or(0, |ages| ages.len() as u64);
        match (self.latency.count(), lengths) {
            (0, _) => false,
            (answers, ..LONGER) => answers >= ANSWERS,
            (answers, ..PATIENCE) => answers >= ANSWERS_LEAST,
            (answers, _) => answers.max(under_way) >= ANSWERS_LEAST,
        }
    }

    /// Returns the tail of transactions that were admitted under the setting, with the unfinished
    /// ones among them.
    fn tail(&mut self, seen: &GateObservation<'_>, took: Nanos) -> Option<Nanos> {
        let Ok(ages) = &seen.under_way else { return self.latency.quantile(self.at) };
        let begun = self.begun.unwrap_or(seen.now);
        let since = seen.now.saturating_sub(begun);
        for age in ages.iter().filter(|age| **age <= since) {
            self.admitted.add_unfinished(age.saturating_sub(took), *age);
        }
        self.admitted.quantile(self.at).or_else(|| self.latency.quantile(self.at))
    }

    /// Notes for how long nothing has been answered; the time since the last look.
    fn listen(&mut self, seen: &GateObservation<'_>) -> Nanos {
        let passed = seen.now.saturating_sub(self.looked);
        self.looked = seen.now;
        let is_quiet = seen.answered.is_empty() && !self.is_present(seen);
        self.quiet = if is_quiet { self.quiet + passed } else { Nanos::ZERO };
        self.pause = self.pause.max(self.quiet);
        self.is_deserted = is_quiet && seen.under_way.is_ok();
        if self.is_deserted {
            self.deserted += passed;
        }
        passed
    }

    /// Returns whether clients wait for answers, as far as that is known.
    fn is_present(&self, seen: &GateObservation<'_>) -> bool {
        let least = (PRESENT * self.under_way_mean).max(1.0);
        seen.under_way.as_ref().is_ok_and(|ages| ages.len() as f64 >= least)
    }

    /// Returns whether the clients are known to be away: no setting is to blame for that.
    pub(super) const fn is_deserted(&self) -> bool {
        self.is_deserted
    }

    /// Returns the lack of throughput against the expected one, in seconds of it, from the last
    /// result or charge to the last look, while clients were present. Answers since that look are
    /// not counted yet.
    pub(super) fn lacking_s(&self, expected_per_s: f64) -> f64 {
        let span = self.looked.saturating_sub(self.charged.unwrap_or(self.looked));
        span.saturating_sub(self.deserted).as_secs_f64() - self.answers as f64 / expected_per_s
    }

    /// Returns the same, which is charged by that.
    pub(super) fn charge_s(&mut self, expected_per_s: f64) -> f64 {
        let lost_s = self.lacking_s(expected_per_s);
        self.begin_charge();
        lost_s
    }

    /// Begins a window of a setting that begins now, or continues after a result.
    pub(super) fn restart(&mut self, now: Nanos) {
        self.since_result = Some(now);
        // The number is read before the setting can have changed it; a window that begins again
        // keeps it.
        self.connections = self.last_connections;
        self.begin_charge();
        self.begin(now);
    }

    /// Begins the time that is charged next.
    const fn begin_charge(&mut self) {
        (self.charged, self.answers, self.deserted) = (Some(self.looked), 0, Nanos::ZERO);
    }

    /// Begins the window again. The time without a result continues.
    pub(super) fn begin(&mut self, now: Nanos) {
        self.begun = Some(now);
        self.counts_since = None;
        (self.latency, self.admitted) = (Latency::default(), Survival::default());
        self.cpu.begin();
        (self.known_s, self.rested_s, self.young_s) = (0.0, 0.0, 0.0);
    }
}

fn seconds(nanos: Option<Nanos>) -> f64 {
    nanos.map_or(0.0, Nanos::as_secs_f64).max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::admission::Answered;
    use lull_measure::Missing;

    /// A look that shows these answers and ages.
    fn seen<'a>(
        now: Nanos,
        answered: &'a [Answered],
        under_way: &'a [Nanos],
    ) -> GateObservation<'a> {
        let missing = || Missing::because("there is no server");
        GateObservation {
            now,
            answered,
            waiting: &[0],
            connections: Err(missing()),
            under_way: Ok(under_way),
            device: Err(missing()),
            round: None,
            rested: Err(missing()),
            server: Err(missing()),
        }
    }

    /// Looks every tenth of a second until there is a result: 512 transactions are under way since
    /// the first look and for `before`, and 50 a look have ended, after 50 ms each.
    fn first_result(before: Nanos) -> Window {
        let mut window =
            Window::new(Nanos::from_millis(300), Nanos::from_millis(100), Percentile::P99, None);
        let latency = Nanos::from_millis(50);
        let answered = [Answered { connection: 0, latency, queries: 50 }];
        let has_result = (1..100).any(|tenths| {
            let now = Nanos::from_millis(100 * tenths);
            window.note(&seen(now, &answered, &[now + before; 512])).is_some()
        });
        assert!(has_result);
        window
    }

    #[test]
    fn clients_that_have_just_connected_make_the_next_window_as_long_as_their_number_demands() {
        let mut window = first_result(Nanos::ZERO);
        assert_eq!(window.length(), Nanos::from_millis(300), "those that ended took 50 ms");
        window.extend_to_under_way();
        // 512 under way at 500 a second take 1.02 s.
        let length_s = window.length().as_secs_f64();
        assert!((length_s / (LATENCIES * 1.024) - 1.0).abs() < 0.01, "{length_s}");
        let wash_out_s = window.wash_out().as_secs_f64();
        assert!(wash_out_s > 0.5 * length_s, "{wash_out_s} of {length_s}");
    }

    #[test]
    fn transactions_that_never_end_make_no_window_longer() {
        let mut window = first_result(Nanos::from_secs(3600));
        window.extend_to_under_way();
        assert_eq!(window.length(), Nanos::from_millis(300));
    }

    #[test]
    fn a_transaction_that_was_open_for_an_hour_makes_no_window_longer() {
        let ms = Nanos::from_millis;
        let mut window = Window::new(ms(300), ms(100), Percentile::P99, None);
        let usual = Answered { connection: 0, latency: ms(50), queries: 50 };
        let held = Answered { latency: Nanos::from_secs(3600), queries: 1, ..usual };
        let look = (1..100)
            .find_map(|tenths| window.note(&seen(ms(100 * tenths), &[usual, held], &[ms(20); 25])));
        let look = look.unwrap();
        assert!(look.under_way_mean < 100.0, "{look:?}");
        assert!(window.length() < ms(500), "{:?}", window.length());
    }

    #[test]
    fn what_arrives_is_what_ends_and_what_is_under_way_in_addition() {
        let ms = Nanos::from_millis;
        let mut window = Window::new(ms(300), ms(100), Percentile::P99, None);
        let answered = [Answered { connection: 0, latency: ms(50), queries: 50 }];
        let mut next = |tenths: usize| {
            let under_way = vec![ms(20); 20 + 5 * tenths];
            let all = seen(ms(100 * tenths as u64), &answered, &under_way);
            window.note(&GateObservation { connections: Ok(7 * tenths as u32), ..all })
        };
        let looks: Vec<(usize, WindowReading)> =
            (1..20).filter_map(|tenths| Some((tenths, next(tenths)?))).collect();
        let offered = looks.iter().filter_map(|(_, look)| look.offered_per_s);
        assert!(looks.len() > 1 && offered.clone().count() == looks.len(), "{looks:?}");
        offered.for_each(|per_s| assert!((per_s - 550.0).abs() < 1e-6, "{per_s}"));
        // The second window begins when the first one ends.
        assert_eq!(looks[1].1.connections, Some(7.0 * looks[0].0 as f64));
    }

    #[test]
    fn a_backup_that_is_under_way_all_the_time_makes_no_wash_out_longer() {
        let ms = Nanos::from_millis;
        let ends = |age: Nanos| {
            let mut window = Window::new(ms(300), ms(100), Percentile::P99, None);
            window.set_lengths(1.0, f64::INFINITY);
            (1..100).find(|tenths| {
                let now = ms(100 * tenths);
                window.note(&seen(now, &[], &[now + age]));
                window.counts_since.is_some()
            })
        };
        // The window begins with the first look, and a quarter of 3 s is the shortest wash-out.
        assert_eq!(ends(Nanos::from_secs(3600)), Some(9));
        assert_eq!(ends(Nanos::from_secs(2)), Some(24), "three quarters of it at most");
    }

    #[test]
    fn silence_lacks_throughput_only_while_clients_wait() {
        let silent_for = |under_way: &[Nanos]| {
            let mut window = first_result(Nanos::ZERO);
            let begun = window.looked;
            (1..=10).for_each(|tenths| {
                window.note(&seen(begun + Nanos::from_millis(100 * tenths), &[], under_way));
            });
            assert_eq!(window.is_deserted(), under_way.is_empty());
            window.lacking_s(500.0)
        };
        assert_eq!(silent_for(&[]), 0.0);
        assert!((silent_for(&[Nanos::from_secs(1); 512]) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_wash_out_lasts_for_the_p99_at_most() {
        let mut window =
            Window::new(Nanos::from_millis(300), Nanos::from_millis(100), Percentile::P99, None);
        let ms = Nanos::from_millis;
        window.set_lengths(1.0, 1.2);
        assert_eq!(window.length(), Nanos::from_secs_f64(LATENCIES));
        assert_eq!(window.wash_out(), ms(1200));
        window.set_lengths(1.0, 9.0);
        assert!(window.wash_out() > ms(1200));
        // Half of the mean before counts where that is more.
        window.set_lengths(1.0, 0.1);
        assert_eq!(window.wash_out(), ms(1000));
    }
}
