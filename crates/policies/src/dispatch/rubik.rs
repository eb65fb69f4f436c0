//! Rubik-like: each core just fast enough for its own request, by statistics.
//!
//! Kasture et al., Rubik: Fast Analytical Power Management, MICRO-48. For each
//! request on a core, c is the tail of the work that it still has, given the
//! work it has done; the core runs at the lowest level with
//! `c / (target - age) <= speed`. A request that has done much is likely to be
//! long, so its core speeds up: slow to fast by statistics instead of by age.
//!
//! "-like": Rubik has a queue for each core and counts the requests behind the running
//! one; here all wait in one queue, so while some wait, all cores run at their highest level.
//! The tail is read off the profile instead of convolutions. Decisions are
//! renewed every `step`, as Rubik's tables have rows of elapsed work. Rubik's
//! PI trim of the target by the measured tail is not part of it.

use super::{DispatcherKind, Site, must_scale};
use crate::config::{config, positive_time, read, text};
use crate::entry::{ConfigSchema, Entry};
use crate::toolkit::thresholds::Profile;
use lull_control::PolicyError;
use lull_control::dispatcher::{
    Answer, DecisionScope, DispatchRequest, Dispatcher, DispatcherError,
};
use lull_measure::Nanos;

/// The registry's entry.
pub(crate) static ENTRY: Entry<DispatcherKind> = Entry {
    name: "rubik",
    paper: "Rubik, MICRO-48, in the form of section E of its published code",
    summary: "Runs each core just fast enough for the tail of the work its request may still have.",
    kind: DispatcherKind { needs: "cores that each take every speed, a profile of the demand" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site| {
        let config: Config = read(table)?;
        Ok(Box::new(Rubik::new(&config, site)?))
    },
};

config! {
    /// How finely it looks.
    struct Config checked by check {
        /// Time after which a request's level is decided again.
        #[serde(serialize_with = "text")]
        step: Nanos = Nanos::from_millis(5),
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    positive_time("step", config.step)
}

struct Rubik {
    profile: Profile,
    speeds: Vec<f64>,
    cores: usize,
    share: f64,
    target: Nanos,
    step: Nanos,
}

impl Rubik {
    fn new(config: &Config, site: &Site<'_>) -> Result<Self, DispatcherError> {
        must_scale("rubik", site)?;
        Ok(Self {
            profile: Profile::new(site.profile, site.percentile)?,
            speeds: site.ladder.types().iter().map(|one| one.speed).collect(),
            cores: site.ladder.all_cores(),
            share: site.percentile.fraction(),
            target: site.target,
            step: config.step,
        })
    }

    fn level(&self, request: &DispatchRequest<'_>) -> usize {
        let top = self.speeds.len() - 1;
        let room_ms = self.target.saturating_sub(request.age).as_millis_f64();
        if request.active > self.cores || room_ms <= 0.0 {
            return top;
        }
        let needed = self.profile.left_ms(request.done.as_millis_f64(), self.share) / room_ms;
        self.speeds.iter().position(|speed| *speed >= needed).unwrap_or(top)
    }
}

impl Dispatcher for Rubik {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        let again = (request.age < self.target).then(|| request.age + self.step);
        if request.on.is_none() && request.free[0] == 0 {
            return Answer::stay(None);
        }
        Answer::on(self.level(request), again)
    }

    fn decision_scope(&self) -> DecisionScope {
        DecisionScope::All
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{build, dvfs_site, request};
    use lull_control::dispatcher::{CoreChoice, DispatchRequest};
    use lull_measure::Nanos;

    #[test]
    fn a_request_speeds_up_as_its_work_and_its_age_grow() {
        let mut dispatcher = build("rubik", "", &dvfs_site());
        let mut level = |age_ms, done_ms| {
            let done = Nanos::from_millis(done_ms);
            let changed = DispatchRequest { done, ..request(age_ms, Some(0), (0, 1), &[3; 5]) };
            match dispatcher.place(&changed).place {
                CoreChoice::On(level) => level,
                CoreChoice::Stay => panic!("it runs"),
            }
        };
        // p99 of the work is near 270 ms: 200 ms allow speed 1.35.
        assert_eq!(level(0, 0), 2);
        assert!(level(120, 120) > level(40, 60));
        assert_eq!(level(250, 200), 4, "beyond its target nothing but speed is left");
    }

    #[test]
    fn while_others_wait_all_cores_run_at_their_highest_level() {
        let mut dispatcher = build("rubik", "", &dvfs_site());
        assert_eq!(
            dispatcher.place(&request(10, Some(0), (0, 5), &[0; 5])).place,
            CoreChoice::On(4)
        );
        assert_eq!(dispatcher.place(&request(10, None, (4, 5), &[0; 5])).place, CoreChoice::Stay);
    }
}
