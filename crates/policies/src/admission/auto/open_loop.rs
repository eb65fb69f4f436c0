//! The settings that a survey compares where clients do not wait for the server.
//!
//! Of N connections L have a transaction under way. Clients that begin their next transaction some
//! time after an answer would have N / (N - L) of the throughput if transactions took no time at
//! all (Little's law); clients that begin them at times of their own would have none more. Where
//! that is less than the gain that is wanted, no limit can show one: arrivals set the throughput,
//! and what a limit may save is CPU time a transaction.
//!
//! This assumes that each client uses its connection. A pool most of whose connections are idle
//! looks the same even if its clients wait, and its limit is then chosen by CPU time.

use super::Auto;
use super::aim::GAIN;
use super::window::WindowReading;

impl Auto {
    /// Chooses what the next survey compares, and returns whether the block that was scouted lacks
    /// it: the next one then has it, unless the server's times cannot be read.
    pub(super) fn chooses_outcome(&mut self, scouted: WindowReading) -> bool {
        let is_wanted = self.aim.may_count_cpu_time()
            && is_set_by_arrivals(self.connections, scouted.under_way_mean);
        let has_waited = self.window.require_cpu_time(is_wanted);
        let must_wait = is_wanted && scouted.cpu_s.is_none() && !has_waited;
        let counts = is_wanted && scouted.cpu_s.is_some();
        self.window.require_cpu_time(counts || must_wait);
        self.aim.count_cpu_time(counts);
        must_wait
    }
}

/// Returns whether no limit can gain enough throughput with this many under way.
fn is_set_by_arrivals(connections: u32, under_way: f64) -> bool {
    let idle = f64::from(connections) - under_way;
    idle > 0.0 && f64::from(connections) / idle < GAIN
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::{Bench, build};
    use super::*;
    use lull_control::admission::{Admission, Pace, RoundLimits, ServerTimes};
    use lull_measure::{Missing, Nanos};

    #[test]
    fn arrivals_set_the_throughput_where_few_connections_are_under_way() {
        assert!(is_set_by_arrivals(1000, 20.0));
        assert!(!is_set_by_arrivals(1000, 40.0), "without any latency 4 % more");
        assert!(!is_set_by_arrivals(64, 64.0) && !is_set_by_arrivals(10, 64.0), "a closed loop");
        assert!(!is_set_by_arrivals(0, 20.0), "nothing is known");
    }

    /// A server of 1,000 connections and 1,000 transactions a second of 20 ms, whatever the gate
    /// does, that uses so many cores with an open gate and with a limit. Its times are read once
    /// a second, or never if it uses none.
    fn decide(open: f64, limited: f64, seconds: u64) -> (RoundLimits, Vec<String>) {
        let mut bench = Bench::best_effort(1);
        (bench.cores, bench.latency) = (2, Nanos::from_millis(20));
        bench.connections = Ok(1000);
        let mut auto: Box<dyn Admission> = build("auto", "", &bench);
        let (mut limits, mut decisions) = (RoundLimits::open(1), Vec::new());
        let (look, mut used) = (Nanos::from_millis(100), Nanos::ZERO);
        for tenths in 1..=10 * seconds {
            auto.decide(&bench.seen(), &mut limits);
            decisions.extend(auto.take_decision());
            let is_open = matches!(limits.pace, Pace::Open { .. });
            used += look.scale(if is_open { open } else { limited });
            bench.pass(look, 1000.0);
            let missing = Missing::because("times are read once a second");
            bench.server = match tenths.is_multiple_of(10) && used > Nanos::ZERO {
                true => Ok(ServerTimes {
                    span: look * 10,
                    cpu: std::mem::take(&mut used),
                    run_queue: look,
                }),
                false => Err(missing),
            };
        }
        (limits, decisions)
    }

    #[test]
    fn a_limit_that_saves_cpu_time_is_found_where_arrivals_set_the_throughput() {
        let (limits, decisions) = decide(1.5, 1.1, 120);
        assert!(!matches!(limits.pace, Pace::Open { .. }), "{decisions:?}");
        let why = decisions.iter().find(|one| one.contains(" at a time: ")).unwrap();
        assert!(why.contains("1/CPU time a transaction times 1.3"), "{why}");
    }

    #[test]
    fn a_limit_that_saves_nothing_leaves_the_gate_open_where_arrivals_set_the_throughput() {
        for (open, limited) in [(1.5, 1.5), (1.5, 1.8), (0.0, 0.0)] {
            let (limits, decisions) = decide(open, limited, 400);
            assert!(matches!(limits.pace, Pace::Open { .. }), "{limited}: {decisions:?}");
            let is_open = decisions.iter().all(|one| one.starts_with("open: "));
            assert!(is_open && !decisions.is_empty(), "{limited}: {decisions:?}");
        }
    }
}
