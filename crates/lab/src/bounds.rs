//! Bounds on the cost of one replication, estimated before it runs, so that a wrong unit ends a
//! command with an error instead of all memory.

use lull_measure::Nanos;
use lull_sim::netserver::NetServerModel;

/// Most requests of an app in a replication: about half an hour of simulation.
pub const REQUESTS_MAX: f64 = 1e9;
/// Most requests that wait at a time: some hundred bytes each, in each thread.
pub const BACKLOG_MAX: f64 = 4e6;

/// Requests that arrive at a machine for some time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Amount {
    /// Requests per second that arrive.
    pub rate_per_s: f64,
    /// Requests per second that the machine can serve at most.
    pub capacity_per_s: f64,
    /// The span.
    pub span: Nanos,
}

impl Amount {
    /// Requests at a network server, against what its cores could do without a network stack.
    pub(crate) fn at_server(model: &NetServerModel, rate_per_s: f64, span: Nanos) -> Self {
        let cycles_per_s = f64::from(model.cores) * model.highest().0 as f64;
        Self { rate_per_s, capacity_per_s: cycles_per_s / model.app.cycles, span }
    }

    /// Refuses a run that would take too long or too much memory.
    ///
    /// # Errors
    /// The bound, and how to stay below it.
    pub fn check(self) -> Result<(), String> {
        let Self { rate_per_s, capacity_per_s, span } = self;
        let seconds = span.as_secs_f64();
        let requests = rate_per_s * seconds;
        if requests > REQUESTS_MAX {
            return Err(format!(
                "{rate_per_s} requests/s for {span} are {requests:.1e} requests, at most \
                 {REQUESTS_MAX:.0e} are simulated: send less, or run shorter"
            ));
        }
        let waiting = (rate_per_s - capacity_per_s) * seconds;
        if waiting > BACKLOG_MAX {
            return Err(format!(
                "{rate_per_s} requests/s are more than the cores serve, {capacity_per_s:.0}/s: \
                 after {span} {waiting:.1e} would wait, at most {BACKLOG_MAX:.0e} are kept: send \
                 less, run shorter, or describe more cores"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_requests_and_too_many_that_wait_are_refused_with_the_bound() {
        let amount = |rate_per_s, capacity_per_s, s| {
            Amount { rate_per_s, capacity_per_s, span: Nanos::from_secs(s) }.check()
        };
        assert_eq!(amount(2e4, 3e4, 60), Ok(()));
        // An overloaded machine can be looked at for a while.
        assert_eq!(amount(1e4, 5e3, 60), Ok(()));
        let long = amount(1e9, 2e9, 60).unwrap_err();
        assert!(long.contains("6.0e10 requests, at most 1e9"), "{long}");
        let flooded = amount(1e6, 1e3, 60).unwrap_err();
        assert!(flooded.contains("would wait, at most 4e6 are kept: send less"), "{flooded}");
        assert!(amount(f64::INFINITY, 1.0, 1).is_err());
    }
}
