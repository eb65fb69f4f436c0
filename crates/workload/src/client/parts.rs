//! The parts of a load that threads have.
//!
//! All threads draw the same due times, and each takes every n-th of them, so that the requests
//! of a seed are due at the same times whatever the number of threads. The contents of requests
//! are drawn by each thread from a stream of its own.

use super::config::LoadConfig;
use super::report::LoadError;
use crate::Generator;
use crate::arrivals::{Arrivals, Recording, Schedule};
use crate::target::Target;
use lull_measure::Nanos;
use rand::SeedableRng;

/// The due times of one thread.
pub(super) type PartArrivals = Box<dyn Iterator<Item = Nanos> + Send>;

/// When the requests of all threads are due.
pub(super) enum DueTimes {
    /// Each when its connection is free.
    Closed,
    /// Drawn at the rates of a schedule.
    Drawn(Schedule),
    /// Requests as they were recorded.
    Recorded(Recording),
}

impl DueTimes {
    /// Reads the files that the configuration names.
    pub(super) fn read(config: &LoadConfig) -> Result<Self, LoadError> {
        Ok(match (&config.replay, &config.rate) {
            (Some(file), _) => Self::Recorded(Recording::read(file)?),
            (None, Some(rate)) => Self::Drawn(rate.schedule()?),
            (None, None) => Self::Closed,
        })
    }

    /// Returns the due times of all threads, drawn from `gaps`; `None` in a closed loop.
    fn all(&self, config: &LoadConfig, gaps: &Generator) -> Option<PartArrivals> {
        match self {
            Self::Closed => None,
            Self::Drawn(schedule) => {
                Some(Box::new(Arrivals::new(config.process, schedule.clone(), gaps.clone())))
            }
            Self::Recorded(recording) => Some(Box::new(recording.times())),
        }
    }
}

/// The part of the load that one thread sends, and its connections.
pub(super) struct Part {
    pub(super) target: Box<dyn Target>,
    pub(super) connections: usize,
    /// `None` in a closed loop.
    pub(super) arrivals: Option<PartArrivals>,
    /// The generator for the contents of requests.
    pub(super) rng: Generator,
}

/// Divides a load among its threads.
pub(super) fn divide(config: &LoadConfig, due: &DueTimes) -> Result<Vec<Part>, LoadError> {
    let (threads, all) = (config.threads, config.connections);
    let gaps = Generator::seed_from_u64(config.seed);
    let mut rng = gaps.clone();
    let part = |number: usize| {
        // Disjoint streams: due times must not depend on the requests' content.
        rng.jump();
        let arrivals = due.all(config, &gaps).map(|all| -> PartArrivals {
            if threads == 1 { all } else { Box::new(all.skip(number).step_by(threads)) }
        });
        let connections = all / threads + usize::from(number < all % threads);
        Ok(Part { target: config.target.build()?, connections, arrivals, rng: rng.clone() })
    };
    (0..threads).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Rate;

    #[test]
    fn parts_have_all_connections_and_all_due_times_once() {
        let mut config =
            LoadConfig::new("http://localhost/".parse().unwrap(), Rate::constant(1000.0));
        config.connections = 7;
        let due = DueTimes::read(&config).unwrap();
        let times = |threads: usize, each: usize| {
            let config = LoadConfig { threads, ..config.clone() };
            let parts = divide(&config, &due).unwrap();
            assert_eq!(parts.iter().map(|part| part.connections).sum::<usize>(), 7);
            let mut all: Vec<_> =
                parts.into_iter().flat_map(|part| part.arrivals.unwrap().take(each)).collect();
            all.sort_unstable();
            all
        };
        assert_eq!(times(3, 100), times(1, 300));
    }
}
