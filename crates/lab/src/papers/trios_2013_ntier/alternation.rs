//! Figs. 5 and 7: bottlenecks that alternate between Tomcat and MySQL, window by window, and
//! queues that fill and empty, at 14,000 clients.

use super::error::correlation;
use super::system::{Clock, DVFS_TIERS, MYSQL, NTier, trial};
use crate::policy_source::PolicySource;
use crate::prelude::*;
use crate::trial::Control;
use lull_measure::Nanos;
use lull_sim::stats::Failure;

/// Windows of 50 ms in the eight seconds that Fig. 7 shows.
const SHOWN: usize = 160;
/// The span in which the paper counts waves.
const COUNTED_S: f64 = 7.0;
/// Requests at a MySQL server that count as full and as empty, as printed.
const FULL: u32 = 50;
const EMPTY: u32 = 0;
/// How often queues are looked at: windows of 50 ms seldom end while a queue is empty.
const LOOK: Nanos = Nanos::from_millis(1);

/// The utilisations and queues of one replication, by server.
struct AlternationWatcher {
    /// Utilisation by server of both tiers, in it by window.
    busy: Vec<Vec<f64>>,
    /// The queue of each of these servers.
    queues: Vec<QueueWaves>,
    /// Whether the server is one of MySQL.
    is_mysql: Vec<bool>,
}

/// How often a queue emptied after it had been full, and filled again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct QueueWaves {
    phase: Phase,
    count: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    /// Not full yet.
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
        }
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

/// Rows of Figs. 5 and 7.
pub(super) fn rows(setup: &Setup<'_>) -> Result<Vec<Row>, Failure> {
    let model = NTier::table2(14_000).model();
    let (seconds, replications) = setup.either((200, 4), (20, 1));
    let mut trial = trial(&model, Clock::FITTED, &DVFS_TIERS, setup.seed, seconds);
    let is_mysql: Vec<bool> = trial.plants().iter().map(|plant| plant.tier == MYSQL).collect();
    let servers: Vec<usize> = trial.plants().iter().map(|plant| plant.server).collect();
    // Its turns look at the queues, and it changes nothing.
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
            for (queue, server) in watcher.queues.iter_mut().zip(&servers) {
                queue.note(turned.engine.server_totals(*server).present);
            }
            return;
        }
        let utilisation = turned.seen.cores[0].utilisation.as_ref();
        watcher.busy[turned.plant].push(utilisation.copied().unwrap_or(f64::NAN));
    })?;
    let mean = |value: &dyn Fn(&AlternationWatcher) -> f64| {
        estimate_of(&runs.iter().map(|(_, watcher)| value(watcher)).collect::<Vec<_>>())
    };
    let chosen = "Fig. 7 shows eight chosen seconds; neither their choice nor the averaging is \
                  printed";
    let name = "14K clients, correlation of Tomcat's and MySQL's utilisation, windows of 50 ms";
    let tiers = mean(&AlternationWatcher::of_tiers);
    let pair = "14K clients, the same of one Tomcat and one MySQL in the 8 s that show it most";
    let waves = "14K clients, times in 7 s that a MySQL's queue empties and fills again";
    let sampled = "a queue is full with 50 requests and empty with none, as printed, looked at \
                   every 1 ms; the paper counts in seven chosen seconds";
    let swings = "14K clients, lowest utilisation of a Tomcat in 8 s, windows of 50 ms";
    let lowest = mean(&AlternationWatcher::lowest_of_tomcat_percent);
    Ok(vec![
        Row::compared(swings, "%", 60.0, lowest, Absolute(20.0)).because(chosen),
        Row::change(name, "1", -0.97, tiers).because(chosen),
        Row::reported(pair, "1", -0.97, mean(&AlternationWatcher::most_negative), chosen),
        Row::change(waves, "times", 9.0, mean(&|it: &AlternationWatcher| it.waves(seconds)))
            .because(sampled),
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
        watcher.queues[2].count = 100;
        assert!((watcher.waves(50) - 7.0).abs() < 1e-9, "50 waves a server in 50 s");
    }
}
