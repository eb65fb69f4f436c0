//! Request Clairvoyant: long requests start fast, because it knows them.
//!
//! An oracle for comparison, not for use. EETL (Haque et al., MICRO-50), section
//! 5.5, RC: the longest share of the requests runs on fast cores (or at the
//! highest level); a long one that finds no fast core runs on a slow one until
//! there is one; all others run on slow cores only. Which share meets the target
//! with the least energy is found by trying at every load (`lull lab` does).
//!
//! It needs a plant that knows the work of a request, which only a simulator is;
//! a request of unknown work counts as short.

use super::{DispatcherKind, Site};
use crate::config::{accept_any, config, read, text};
use crate::entry::{ConfigSchema, Entry};
use lull_control::dispatcher::{Answer, DecisionScope, DispatchRequest, Dispatcher};
use lull_measure::Nanos;

/// The registry's entry.
pub(crate) static ENTRY: Entry<DispatcherKind> = Entry {
    name: "clairvoyant",
    paper: "EETL (Haque et al., MICRO-50), section 5.5: Request Clairvoyant",
    summary: "Runs requests it knows to be long on fast cores, all others on slow ones: an oracle.",
    kind: DispatcherKind { needs: "a plant that knows the work of each request (a simulator)" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site| {
        let config: Config = read(table)?;
        Ok(Box::new(Clairvoyant::new(&config, site)))
    },
};

config! {
    /// The requests that count as long.
    struct Config checked by accept_any {
        /// Work, as time on a core of speed 1, from which a request is long.
        #[serde(serialize_with = "text")]
        long: Nanos = Nanos::from_millis(200),
    }
}

struct Clairvoyant {
    long: Nanos,
    fastest: usize,
}

impl Clairvoyant {
    fn new(config: &Config, site: &Site<'_>) -> Self {
        Self { long: config.long, fastest: site.ladder.fastest() }
    }
}

impl Dispatcher for Clairvoyant {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        let long = request.work.is_some_and(|work| work >= self.long);
        let wanted = if long && request.free[self.fastest] > 0 { self.fastest } else { 0 };
        let can = request.free[wanted] > 0;
        match request.on {
            Some(on) if on >= wanted || !can => Answer::stay(None),
            None if !can => Answer::stay(None),
            _ => Answer::on(wanted, None),
        }
    }

    fn decision_scope(&self) -> DecisionScope {
        DecisionScope::All
    }

    /// A short request that waits for a slow core does not delay a long one.
    fn first_come(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{amp_site, build, request};
    use lull_control::dispatcher::{CoreChoice, DispatchRequest};
    use lull_measure::Nanos;

    #[test]
    fn long_requests_get_fast_cores_and_short_ones_never() {
        let mut dispatcher = build("clairvoyant", "long = \"150ms\"", &amp_site());
        let mut place = |work_ms, on, free: [u32; 2]| {
            let work = Some(Nanos::from_millis(work_ms));
            dispatcher.place(&DispatchRequest { work, ..request(0, on, (3, 9), &free) }).place
        };
        assert_eq!(place(150, None, [5, 1]), CoreChoice::On(1));
        assert_eq!(place(150, None, [5, 0]), CoreChoice::On(0), "slow until a fast one is free");
        assert_eq!(place(150, Some(0), [5, 1]), CoreChoice::On(1));
        assert_eq!(place(149, None, [5, 2]), CoreChoice::On(0));
        assert_eq!(place(149, None, [0, 2]), CoreChoice::Stay, "short ones wait for slow cores");
        assert_eq!(place(149, Some(0), [0, 2]), CoreChoice::Stay);
        assert_eq!(place(150, Some(1), [0, 1]), CoreChoice::Stay);
    }
}
