//! Figs. 3 to 5, 7 and 15: bottlenecks that alternate between Tomcat and MySQL, window by window,
//! queues that fill and empty and are pushed back, and the response times that result.

use super::error::correlation;
use super::system::{Clock, DVFS_TIERS, Down, MYSQL, NTier, Windows, trial};
use crate::policy_source::PolicySource;
use crate::prelude::*;
use crate::trial::Control;
use lull_measure::Nanos;
use lull_sim::Engine;
use lull_sim::stats::{Estimate, Failure};

/// Windows of 50 ms in the eight seconds that Fig. 7 shows.
const SHOWN: usize = 160;
/// The span in which the paper counts waves.
const COUNTED_S: f64 = 7.0;
/// Requests at a MySQL server that count as full and as empty, as printed.
const FULL: u32 = 50;
const EMPTY: u32 = 0;
/// The interval at which queues are checked: windows of 50 ms seldom end while a queue is empty.
const LOOK: Nanos = Nanos::from_millis(1);
/// Looks in a window of 50 ms.
const LOOKS: u64 = 50;
/// P8 and P0 among the P-states.
const P0: usize = 0;
const P8: usize = 2;

/// The utilisations and queues of one replication, by server.
struct AlternationWatcher {
    /// Utilisation by server of both tiers, in it by window.
    busy: Vec<Vec<f64>>,
    /// The queue of each of these servers.
    queues: Vec<QueueWaves>,
    /// Whether the server is one of MySQL.
    is_mysql: Vec<bool>,
    /// Requests in the Tomcats and not in MySQL: while no MySQL is full, and while one is.
    held: [HeldRequests; 2],
    /// Mean response time of the windows in which requests were answered, in ms.
    responses_ms: Vec<f64>,
    /// Requests answered before the present window, and the sum of their times in ns.
    answered: (u64, u128),
    /// Windows that a Tomcat ended at each P-state.
    tomcat_states: [u64; 3],
}

/// Requests over a number of looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct HeldRequests {
    looks: u64,
    requests: u64,
}

/// How often a queue emptied after it had been full, and filled again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct QueueWaves {
    phase: Phase,
    count: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    /// The queue is not full yet.
    #[default]
    Start,
    Full,
    /// Empty after having been full.
    Emptied,
}

impl QueueWaves {
    fn note(&mut self, present: u32) {
        self.phase = match self.phase {
            Phase::Full if present == EMPTY => Phase::Emptied,
            Phase::Start | Phase::Emptied if present >= FULL => {
                self.count += u64::from(self.phase == Phase::Emptied);
                Phase::Full
            }
            unchanged => unchanged,
        };
    }
}

impl AlternationWatcher {
    fn new(is_mysql: Vec<bool>) -> Self {
        let servers = is_mysql.len();
        Self {
            busy: vec![Vec::new(); servers],
            queues: vec![QueueWaves::default(); servers],
            is_mysql,
            held: [HeldRequests::default(); 2],
            responses_ms: Vec::new(),
            answered: (0, 0),
            tomcat_states: [0; 3],
        }
    }

    /// Looks at the queues of these servers.
    fn look(&mut self, engine: &Engine, servers: &[usize]) {
        let (mut is_full, mut at_tomcat, mut at_mysql) = (false, 0, 0);
        let queues = self.queues.iter_mut().zip(&self.is_mysql);
        for ((queue, is_mysql), server) in queues.zip(servers) {
            let totals = engine.server_totals(*server);
            queue.note(totals.present);
            match is_mysql {
                true => at_mysql += totals.pending,
                false => at_tomcat += totals.pending,
            }
            is_full |= *is_mysql && totals.present >= FULL;
        }
        let held = &mut self.held[usize::from(is_full)];
        held.looks += 1;
        held.requests += u64::from(at_tomcat.saturating_sub(at_mysql));
        let looks: u64 = self.held.iter().map(|held| held.looks).sum();
        if looks.is_multiple_of(LOOKS) {
            let (answered, sum_ns) = engine.responses(0);
            self.end_window(answered, sum_ns);
        }
    }

    /// Takes the mean response time of the requests that were answered in a window.
    fn end_window(&mut self, answered: u64, sum_ns: u128) {
        let count = answered - self.answered.0;
        if count > 0 {
            self.responses_ms.push((sum_ns - self.answered.1) as f64 / 1e6 / count as f64);
        }
        self.answered = (answered, sum_ns);
    }

    /// Requests that Tomcats hold while a MySQL is full over those while none is.
    fn pushed_back(&self) -> f64 {
        let [without, full] = self.held.map(|held| held.requests as f64 / held.looks as f64);
        full / without
    }

    /// Standard deviation of the response times of the windows, in ms.
    fn response_deviation_ms(&self) -> f64 {
        let count = self.responses_ms.len() as f64;
        let mean = self.responses_ms.iter().sum::<f64>() / count;
        let squares = self.responses_ms.iter().map(|value| (value - mean).powi(2));
        (squares.sum::<f64>() / count).sqrt()
    }

    /// The share of the windows that Tomcats end at P8 less that at P0, in points.
    fn slow_less_fast_points(&self) -> f64 {
        let all: u64 = self.tomcat_states.iter().sum();
        let share = |state: usize| self.tomcat_states[state] as f64 / all as f64;
        100.0 * (share(P8) - share(P0))
    }

    /// Utilisation of the servers of a tier.
    fn tier(&self, is_mysql: bool) -> impl Iterator<Item = &Vec<f64>> {
        let both = self.busy.iter().zip(&self.is_mysql);
        both.filter(move |(_, mysql)| **mysql == is_mysql).map(|(busy, _)| busy)
    }

    /// Correlation of the sums over the servers of each tier, over all windows.
    fn of_tiers(&self) -> f64 {
        let windows = self.busy.iter().map(Vec::len).min().unwrap_or(0);
        let sum = |is_mysql, at: usize| self.tier(is_mysql).map(|busy| busy[at]).sum::<f64>();
        let pairs = (0..windows).map(|at| (sum(false, at), sum(true, at)));
        correlation(&pairs.collect::<Vec<_>>())
    }

    /// The most negative correlation of a Tomcat with a MySQL in any eight seconds.
    fn most_negative(&self) -> f64 {
        let mut least = f64::NAN;
        for tomcat in self.tier(false) {
            for mysql in self.tier(true) {
                let pairs: Vec<_> = tomcat.iter().copied().zip(mysql.iter().copied()).collect();
                least = pairs.chunks_exact(SHOWN).map(correlation).fold(least, f64::min);
            }
        }
        least
    }

    /// The lowest utilisation of a Tomcat in eight seconds, mean over servers and spans, in
    /// percent.
    fn lowest_of_tomcat_percent(&self) -> f64 {
        let spans = self.tier(false).flat_map(|busy| busy.chunks_exact(SHOWN));
        let lowest = spans.map(|span| span.iter().copied().fold(f64::NAN, f64::min));
        let all: Vec<f64> = lowest.collect();
        100.0 * all.iter().sum::<f64>() / all.len() as f64
    }

    /// Waves of a MySQL server's queue in a span of [`COUNTED_S`].
    fn waves(&self, seconds: u64) -> f64 {
        let mysql = self.queues.iter().zip(&self.is_mysql).filter(|(_, mysql)| **mysql);
        let counts: Vec<f64> = mysql.map(|(queue, _)| queue.count as f64).collect();
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        mean * COUNTED_S / seconds as f64
    }
}

/// Seconds of a replication, and how many there are.
fn lengths(setup: &Setup<'_>) -> (u64, u64) {
    setup.either((200, 4), (20, 1))
}

/// Replications that [`rows`] runs.
pub(super) fn replications(setup: &Setup<'_>) -> u64 {
    4 * lengths(setup).1
}

/// Watches configuration 1/2/1/2 with this many clients under a clock.
fn watch(
    clients: u32,
    clock: Clock,
    setup: &Setup<'_>,
) -> Result<Vec<AlternationWatcher>, Failure> {
    let model = NTier::table2(clients).model();
    let (seconds, replications) = lengths(setup);
    let mut trial = trial(&model, clock, &DVFS_TIERS, setup.seed, seconds);
    let is_mysql: Vec<bool> = trial.plants().iter().map(|plant| plant.tier == MYSQL).collect();
    let servers: Vec<usize> = trial.plants().iter().map(|plant| plant.server).collect();
    // It checks the queues at its turns, and changes nothing.
    let looker = servers.len();
    trial.controls.push(Control {
        policy: PolicySource::Registered("unmanaged".to_owned()),
        config: toml::Table::new(),
        tiers: vec!["apache".to_owned()],
        epoch: LOOK.into(),
    });
    let start = || AlternationWatcher::new(is_mysql.clone());
    let runs = trial.replicate(0..replications, &setup.progress, start, |watcher, turned| {
        if turned.plant == looker {
            return watcher.look(turned.engine, &servers);
        }
        let utilisation = turned.seen.cores[0].utilisation.as_ref();
        watcher.busy[turned.plant].push(utilisation.copied().unwrap_or(f64::NAN));
        if !is_mysql[turned.plant] {
            let state = turned.engine.pstate(servers[turned.plant], 0);
            watcher.tomcat_states[state] += 1;
        }
    })?;
    Ok(runs.into_iter().map(|(_, watcher)| watcher).collect())
}

fn mean(runs: &[AlternationWatcher], value: impl Fn(&AlternationWatcher) -> f64) -> Estimate {
    estimate_of(&runs.iter().map(value).collect::<Vec<_>>())
}

/// Rows of Figs. 3 to 5, 7 and 15.
pub(super) fn rows(setup: &Setup<'_>) -> Result<Vec<Row>, Failure> {
    let runs = watch(14_000, Clock::FITTED, setup)?;
    let seconds = lengths(setup).0;
    let chosen = "Fig. 7 shows eight chosen seconds; neither their choice nor the averaging is \
                  printed";
    let name = "14K clients, correlation of Tomcat's and MySQL's utilisation, windows of 50 ms";
    let tiers = mean(&runs, AlternationWatcher::of_tiers);
    let pair = "14K clients, the same of one Tomcat and one MySQL in the 8 s that show it most";
    let waves = "14K clients, times in 7 s that a MySQL's queue empties and fills again";
    let sampled = "a queue is full with 50 requests and empty with none, as printed, looked at \
                   every 1 ms; the paper counts in seven chosen seconds";
    let swings = "14K clients, lowest utilisation of a Tomcat in 8 s, windows of 50 ms";
    let lowest = mean(&runs, AlternationWatcher::lowest_of_tomcat_percent);
    let most = mean(&runs, AlternationWatcher::most_negative);
    let mut rows = vec![
        Row::compared(swings, "%", 60.0, lowest, Absolute(20.0)).because(chosen),
        Row::change(name, "1", -0.97, tiers).because(chosen),
        Row::reported(pair, "1", -0.97, most, chosen),
        Row::change(waves, "times", 9.0, mean(&runs, |it| it.waves(seconds))).because(sampled),
    ];
    rows.extend(shape_rows(&runs, setup)?);
    Ok(rows)
}

/// Figs. 4(b) and 5(c) at 8,000 clients, of which the text says that those at 14,000 are similar.
fn push_back_row(clients: &str, runs: &[AlternationWatcher]) -> Row {
    let name = format!(
        "{clients} clients, requests that Tomcats hold while a MySQL has 50 over those otherwise"
    );
    if runs.iter().any(|run| run.held.iter().any(|held| held.looks == 0)) {
        let why = "in a replication a MySQL always has 50 requests, or none has at any time";
        return Row::reported(name, "times", "pushed back", f64::NAN, why);
    }
    let ours = mean(runs, AlternationWatcher::pushed_back);
    Row::compared(name, "times", "pushed back", ours, AtLeast(1.0)).by_order()
}

/// Returns the rows that the figures show without a number.
fn shape_rows(at_14k: &[AlternationWatcher], setup: &Setup<'_>) -> Result<Vec<Row>, Failure> {
    let [dvfs, full] = [Clock::FITTED, Clock::FullSpeed].map(|clock| watch(8_000, clock, setup));
    let (dvfs, full) = (dvfs?, full?);
    let short = Clock::Step(Nanos::from_millis(50), Windows::Fixed, Down::Lowest);
    let short = watch(14_000, short, setup)?;
    let deviations = dvfs.iter().zip(&full);
    let deviations =
        deviations.map(|(on, off)| on.response_deviation_ms() / off.response_deviation_ms());
    let deviations = estimate_of(&deviations.collect::<Vec<_>>());
    let row = |name: &str, unit, claim, ours, near| {
        Row::compared(name, unit, claim, ours, near).by_order()
    };
    Ok(vec![
        push_back_row("8K", &dvfs),
        push_back_row("14K", at_14k),
        row(
            "14K clients, time of Tomcats at P8 less that at P0",
            "points",
            "prefers P8",
            mean(at_14k, AlternationWatcher::slow_less_fast_points),
            AtLeast(0.0),
        ),
        row(
            "8K clients, deviation of the response time by 50 ms, DVFS over full speed",
            "times",
            "larger under DVFS",
            deviations,
            AtLeast(1.0),
        ),
        row(
            "14K clients, correlation of the utilisations, adjustment period 50 ms",
            "1",
            "alternates",
            mean(&short, AlternationWatcher::of_tiers),
            AtMost(0.0),
        )
        .around(0.0),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wave_is_counted_when_a_queue_that_was_full_has_emptied_and_is_full_again() {
        let waves = |queue: &[u32]| {
            let mut waves = QueueWaves::default();
            queue.iter().for_each(|present| waves.note(*present));
            waves.count
        };
        assert_eq!(waves(&[0, 50, 50]), 0, "the first rise is half of a wave");
        assert_eq!(waves(&[50, 20, 50, 20]), 0, "it never emptied");
        assert_eq!(waves(&[50, 0, 20, 0, 50, 0, 51]), 2);
    }

    #[test]
    fn a_window_has_the_mean_response_of_what_was_answered_in_it() {
        let mut watcher = AlternationWatcher::new(Vec::new());
        for (answered, sum_ns) in [(2, 8_000_000), (2, 8_000_000), (3, 20_000_000)] {
            watcher.end_window(answered, sum_ns);
        }
        assert_eq!(watcher.responses_ms, [4.0, 12.0], "no request was answered in the second");
        assert_eq!(watcher.response_deviation_ms(), 4.0);
    }

    #[test]
    fn the_pair_that_alternates_is_found_behind_sums_that_do_not() {
        let wave = |from: usize| -> Vec<f64> {
            (0..2 * SHOWN)
                .map(|at| if ((at + from) / 10).is_multiple_of(2) { 1.0 } else { 0.6 })
                .collect()
        };
        let (up, down) = (wave(0), wave(10));
        let mut watcher = AlternationWatcher::new(vec![false, false, true, true]);
        watcher.busy = vec![up.clone(), up.clone(), down, up];
        assert!((watcher.most_negative() + 1.0).abs() < 1e-9);
        let sums = watcher.of_tiers();
        assert!(sums.is_nan() || sums.abs() < 0.1, "one MySQL hides the other: {sums}");
        assert!((watcher.lowest_of_tomcat_percent() - 60.0).abs() < 1e-9);
        watcher.held = [(2, 20), (1, 30)].map(|(looks, requests)| HeldRequests { looks, requests });
        assert_eq!(watcher.pushed_back(), 3.0, "10 a look, and 30 while a MySQL is full");
        watcher.tomcat_states = [20, 20, 60];
        assert!((watcher.slow_less_fast_points() - 40.0).abs() < 1e-9);
        watcher.queues[2].count = 100;
        assert!((watcher.waves(50) - 7.0).abs() < 1e-9, "50 waves a server in 50 s");
    }
}
