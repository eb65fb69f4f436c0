//! When requests are due: a [`Process`] of gaps over a [`Schedule`] of rates.
//!
//! The process draws gaps `e` of mean 1 in *operational time*, where one
//! request is due per unit on average; the schedule maps operational time to
//! real time by inverting its integrated rate `L(t) = integral of rate(s) ds`.
//! Request `n` is due at `t_n = L^-1(e_1 + ... + e_n)`.
//!
//! For unit exponential gaps this is exact, not an approximation: by the
//! time-rescaling theorem (Çinlar, *Introduction to Stochastic Processes*,
//! 1975, section 4.7) the `t_n` are a Poisson process whose rate at `t` is
//! `rate(t)`, jumps included. No draw is thrown away as in thinning, so a
//! request's random numbers do not depend on the schedule. For other processes
//! the gaps keep their shape in operational time, and a constant rate gives
//! gaps of exactly the process's distribution scaled to that rate.

mod cache_trace;
mod process;
mod rate;
mod recording;
mod schedule;
mod trace;

pub use cache_trace::{Binning, CacheTraceError, bin};
pub use process::{Process, ProcessError};
pub use rate::{Rate, RateError};
pub use recording::{Recording, RecordingError};
pub use schedule::{Schedule, ScheduleError};
pub use trace::{Steps, TraceError, parse as parse_trace};

use lull_measure::Nanos;
use rand::Rng;
use schedule::Cursor;

/// The intended send times of one run, ascending, counted from its start.
///
/// Endless, unless the schedule ends at rate 0.
///
/// ```
/// use lull_workload::arrivals::{Arrivals, Process, Rate};
/// use lull_measure::Nanos;
/// use rand::SeedableRng;
///
/// let rng = rand_xoshiro::Xoshiro256PlusPlus::seed_from_u64(1);
/// let schedule = "4/s".parse::<Rate>()?.schedule()?;
/// let due: Vec<_> = Arrivals::new(Process::Constant, schedule, rng).take(2).collect();
/// assert_eq!(due, [Nanos::from_millis(250), Nanos::from_millis(500)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Arrivals<R> {
    process: Process,
    cursor: Cursor,
    rng: R,
}

impl<R: Rng> Arrivals<R> {
    /// Arrivals from the start of `schedule`, drawn from `rng` alone.
    pub fn new(process: Process, schedule: Schedule, rng: R) -> Self {
        Self { process, cursor: Cursor::new(schedule), rng }
    }
}

impl<R: Rng> Iterator for Arrivals<R> {
    type Item = Nanos;

    fn next(&mut self) -> Option<Nanos> {
        let gap = self.process.gap(&mut self.rng);
        self.cursor.advance(gap).map(Nanos::from_secs_f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{kolmogorov_distance, moments, rng};
    use statrs::distribution::{ContinuousCDF, Exp};

    fn times(process: &str, rate: &str, count: usize) -> Vec<f64> {
        let schedule = rate.parse::<Rate>().unwrap().schedule().unwrap();
        Arrivals::new(process.parse().unwrap(), schedule, rng(7))
            .take(count)
            .map(Nanos::as_secs_f64)
            .collect()
    }

    fn gaps(times: &[f64]) -> Vec<f64> {
        times.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    #[test]
    fn every_process_keeps_the_requested_rate() {
        for process in ["poisson", "constant", "gpareto:0.154971", "gpareto:0.1,0.3"] {
            let times = times(process, "2000/s", 100_000);
            let rate = times.len() as f64 / times.last().unwrap();
            assert!((rate / 2000.0 - 1.0).abs() < 0.015, "{process}: {rate}");
        }
    }

    #[test]
    fn poisson_gaps_are_exponential() {
        let gaps = gaps(&times("poisson", "2000/s", 20_000));
        let law = Exp::new(2000.0).unwrap();
        assert!((moments(&gaps).1 - 1.0).abs() < 0.05);
        let distance = kolmogorov_distance(gaps, |gap| law.cdf(gap));
        assert!(distance < 2.7 / 141.4, "{distance}");
    }

    #[test]
    fn pareto_gaps_vary_as_their_shape_says() {
        // cv² = 1/(1 - 2k) for a generalised Pareto from 0.
        for shape in [0.0, 0.154_971, -0.5] {
            let gaps = gaps(&times(&format!("gpareto:{shape}"), "100/s", 200_000));
            let wanted = 1.0 / (1.0 - 2.0 * shape);
            assert!((moments(&gaps).1 / wanted - 1.0).abs() < 0.05, "{shape}");
        }
    }

    #[test]
    fn constant_gaps_do_not_vary() {
        let gaps = gaps(&times("constant", "8000/s", 10_000));
        assert!(gaps.iter().all(|gap| (gap - 125e-6).abs() < 2e-9));
    }

    #[test]
    fn bursts_alternate_every_half_cycle() {
        let times = times("poisson", "burst:12000,4000,2s", 160_000);
        let last = times.last().unwrap().floor() as usize;
        for second in 0..last {
            let here = times.iter().filter(|at| at.floor() as usize == second).count() as f64;
            let wanted = if second % 2 == 0 { 12_000.0 } else { 4_000.0 };
            // Five standard deviations of a Poisson count.
            assert!((here - wanted).abs() < 5.0 * f64::sqrt(wanted), "{second}: {here}");
        }
    }

    #[test]
    fn arrivals_of_a_changing_rate_are_uniform_in_operational_time() {
        // Given their number, the instants of a Poisson process are independent
        // draws from the density rate(t): with a ramp from 0 the cumulative is t².
        let schedule = Schedule::ramps(&[(0.0, 0.0), (10.0, 4_000.0), (10.0, 0.0)]).unwrap();
        let times: Vec<_> = Arrivals::new(Process::Poisson, schedule, rng(9)).collect();
        assert!((times.len() as f64 - 20_000.0).abs() < 5.0 * f64::sqrt(20_000.0));
        let distance =
            kolmogorov_distance(times.iter().map(|at| at.as_secs_f64()).collect(), |at| {
                (at / 10.0).powi(2)
            });
        assert!(distance < 2.7 / 141.0, "{distance}");
    }

    #[test]
    fn the_same_generator_gives_the_same_times() {
        assert_eq!(times("poisson", "2000/s", 50), times("poisson", "2000/s", 50));
    }
}
