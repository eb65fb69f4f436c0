//! `just-in-time`: runs a request no faster than the tail needs, and not at all fast once it
//! is late.
//!
//! A request moves to a fast core at the last moment at which it still completes the tail's
//! work q by a deadline. This is EETL's plan at low load:
//!
//! ```text
//! deadline - age = (q - done) / fast speed
//! ```
//!
//! Two things differ from EETL:
//!
//! - **Late requests are given up.** A request past the target counts as late whatever
//!   follows, so a fast core no longer helps the percentile. It moves back to a slow core if
//!   one is free, and the fast core serves a request that can still be in time.
//! - **The controller counts late requests instead of measuring the tail.** Giving up makes
//!   late requests later, and the p99 of 2000 requests, the 20th largest, is a skewed
//!   estimate: a controller that brings its mean to the target stays too far below it. The
//!   share of late requests has no such skew. In milliseconds, with the mean excess m of the
//!   profile beyond q: `error = m (1 - late / allowed)`.
//!
//! The deadline moves the tail one to one at any load, unlike EETL's threshold (figure 3), so
//! one set of gains serves: half of the first in table 2, for twice the slope. With more than
//! two core types the middle ones are used between the work of figure 5's stages, stretched
//! with the deadline.
//!
//! Giving up saves 0.7 to 1.5 % of energy, counting late requests 1.3 to 2.5 % more. In all
//! it equals EETL up to 66 requests/s, so it does not replace EETL. Results, the bound
//! without knowledge of the work, and what did not help: `docs/design/just-in-time.md`.
//!
//! Source: ours, after EETL (Haque et al., MICRO-50). Checked by
//! `lull lab run eetl-clairvoyant`.

use super::{DispatcherKind, Site};
use crate::config::{config, read, wrong};
use crate::entry::{ConfigSchema, Entry};
use crate::toolkit::pid::{self, Band, Pid};
use crate::toolkit::thresholds::{Profile, solve};
use lull_control::PolicyError;
use lull_control::dispatcher::{
    Answer, DecisionScope, DispatchObservation, DispatchRequest, Dispatcher, DispatcherError,
    Ladder, MeasurementPeriod, MeasurementRule, samples_needed,
};
use lull_measure::Nanos;

/// The registry's entry.
pub(crate) static ENTRY: Entry<DispatcherKind> = Entry {
    name: "just-in-time",
    paper: "ours, after EETL (Haque et al., MICRO-50)",
    summary: "Gives a request a fast core at the last moment that its own progress allows.",
    kind: DispatcherKind { needs: "a profile of the demand" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site| {
        let config: Config = read(table)?;
        Ok(Box::new(JustInTime::new(config, site)?))
    },
};

config! {
    /// The controller's observations, and the techniques, each of which can be left out.
    struct Config checked by check {
        /// Answers between two steps of the controller (as EETL's).
        epoch: u32 = 500,
        /// Answers the tail is measured over (as EETL's).
        window: usize = 2000,
        /// Proportional gain, deadline to tail (half of EETL's first).
        kp: f64 = 0.06,
        /// Integral gain (half of EETL's first).
        ki: f64 = 0.25,
        /// Whether requests beyond the target go back to slow cores.
        gives_up: bool = true,
        /// Whether each request's own progress counts; else it is assumed to be undisturbed.
        own_pace: bool = false,
        /// Whether late answers are counted; else the tail is measured, as EETL does.
        counts_late: bool = true,
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    pid::check("ki", &[band(config)])?;
    if config.epoch == 0 || config.window < 2 {
        let message = "`epoch` must be at least 1 answer and `window` at least 2".to_owned();
        return Err(wrong("epoch", message));
    }
    Ok(())
}

fn band(config: &Config) -> Band {
    Band { up_to_per_s: None, kp: config.kp, ki: config.ki, kd: 0.0 }
}

/// Moments nearer than this are now: it is what a timer is late.
const NEAR_MS: f64 = 0.05;

struct JustInTime {
    ladder: Ladder,
    fastest: usize,
    config: Config,
    pid: Pid,
    /// The tail's work, in ms at speed 1.
    tail_ms: f64,
    /// Work at which middle types are left, at the target; as in figure 5.
    ends_ms: Vec<f64>,
    target_ms: f64,
    deadline: Nanos,
    rule: MeasurementRule,
    needed: usize,
    /// Mean time of a late request beyond the target, in ms.
    excess_ms: f64,
    /// Share that may be late.
    allowed: f64,
}

/// The largest deviation of late answers that the controller uses, in allowed shares: beyond it the
/// count only means "far too many".
const MOST_LATE: f64 = 5.0;

impl JustInTime {
    fn new(config: Config, site: &Site<'_>) -> Result<Self, DispatcherError> {
        let profile = Profile::new(site.profile, site.percentile)?;
        let low = solve(&profile, site.ladder, site.percentile, site.target)?;
        let target_ms = site.target.as_millis_f64();
        let tail_ms = profile.quantile_ms(site.percentile.fraction());
        let top = site.ladder.types()[site.ladder.fastest()].speed;
        Ok(Self {
            // A profile without anything beyond its tail still needs an answer to lateness.
            excess_ms: (profile.excess_ms(tail_ms) / top).max(0.01 * target_ms),
            allowed: 1.0 - site.percentile.fraction(),
            fastest: site.ladder.fastest(),
            pid: Pid::new(vec![band(&config)], target_ms, 2.0 * target_ms),
            tail_ms,
            ends_ms: low.ends_ms,
            target_ms,
            deadline: site.target,
            rule: MeasurementRule {
                every: MeasurementPeriod::Answers(config.epoch),
                window: config.window,
                percentile: site.percentile,
                bound: Some(site.target),
            },
            needed: samples_needed(site.percentile),
            ladder: site.ladder.clone(),
            config,
        })
    }

    fn speed(&self, kind: usize) -> f64 {
        self.ladder.types()[kind].speed
    }

    /// How much of an undisturbed core's work this request has got done.
    fn pace(&self, request: &DispatchRequest<'_>, kind: usize) -> f64 {
        let ideal_ms = request.age.as_millis_f64() * self.speed(kind);
        // A request has no pace yet in its first moments.
        if !self.config.own_pace || ideal_ms < 1.0 {
            return 1.0;
        }
        (request.done.as_millis_f64() / ideal_ms).clamp(0.5, 1.0)
    }

    /// Returns the age from which the request must have the fast core, on its present type.
    fn moment_ms(&self, request: &DispatchRequest<'_>, kind: usize) -> f64 {
        let (age_ms, done_ms) = (request.age.as_millis_f64(), request.done.as_millis_f64());
        let pace = self.pace(request, kind);
        let (here, fast) = (pace * self.speed(kind), pace * self.speed(self.fastest));
        let plan_ms = self.deadline.as_millis_f64();
        if here >= fast {
            return f64::INFINITY;
        }
        // deadline - a = (q - done - (a - age) here) / fast, solved for a.
        (plan_ms - (self.tail_ms - done_ms + age_ms * here) / fast) / (1.0 - here / fast)
    }

    /// The middle core type that suits the work done so far.
    fn stage(&self, request: &DispatchRequest<'_>) -> usize {
        let stretch = self.deadline.as_millis_f64() / self.target_ms;
        let done_ms = request.done.as_millis_f64();
        let middle = self.ends_ms.iter().take(self.fastest.saturating_sub(1));
        middle.take_while(|end| done_ms >= **end * stretch).count()
    }

    fn is_past_target(&self, request: &DispatchRequest<'_>) -> bool {
        self.config.gives_up && request.age.as_millis_f64() > self.target_ms
    }

    /// Returns a free core: of the requested type, then of a faster one, then of a slower one.
    fn find(&self, request: &DispatchRequest<'_>, wanted: usize) -> Option<usize> {
        let free = |kind: &usize| request.can(*kind, &self.ladder);
        let faster = (wanted..=self.fastest).find(free);
        faster.or_else(|| (0..wanted).rev().find(free))
    }

    fn running(&self, request: &DispatchRequest<'_>, on: usize) -> Answer {
        if self.is_past_target(request) {
            let down = on > 0 && request.can(0, &self.ladder);
            return if down { Answer::on(0, None) } else { Answer::stay(None) };
        }
        let missed = Nanos::from_secs_f64(self.target_ms / 1e3) + Nanos(1);
        let moment_ms = self.moment_ms(request, on);
        let late = request.age.as_millis_f64() + NEAR_MS >= moment_ms;
        let wanted = if late { self.fastest } else { self.stage(request).max(on) };
        let again = if late || on == self.fastest {
            missed
        } else {
            let next = Nanos::from_secs_f64(moment_ms.min(2.0 * self.target_ms) / 1e3);
            next.min(self.stage_end(request, on)).min(missed)
        };
        match self.find(request, wanted).filter(|kind| *kind > on) {
            Some(kind) => Answer::on(kind, Some(again)),
            None => Answer::stay(Some(again)),
        }
    }

    /// The age at which the present stage's work is done, on its own type.
    fn stage_end(&self, request: &DispatchRequest<'_>, on: usize) -> Nanos {
        let stretch = self.deadline.as_millis_f64() / self.target_ms;
        if on + 1 >= self.fastest || self.ends_ms[on].is_infinite() {
            return Nanos::MAX;
        }
        let left_ms = self.ends_ms[on] * stretch - request.done.as_millis_f64();
        let speed = self.speed(on) * self.pace(request, on);
        request.age + Nanos::from_secs_f64((left_ms / speed).max(NEAR_MS) / 1e3)
    }
}

impl Dispatcher for JustInTime {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        if let Some(on) = request.on {
            return self.running(request, on);
        }
        let late = !self.is_past_target(request)
            && request.age.as_millis_f64() >= self.moment_ms(request, 0);
        let wanted = if late { self.fastest } else { 0 };
        // The next decision follows immediately, where the request runs, and sets its age.
        match self.find(request, wanted) {
            Some(kind) => Answer::on(kind, Some(request.age + Nanos::from_micros(50))),
            None => Answer::stay(None),
        }
    }

    fn decision_scope(&self) -> DecisionScope {
        if self.ladder.scales() { DecisionScope::Ages } else { DecisionScope::All }
    }

    fn measurement_rule(&self) -> Option<MeasurementRule> {
        Some(self.rule)
    }

    fn adjust(&mut self, seen: &DispatchObservation) {
        if seen.samples < self.needed {
            return;
        }
        let error_ms = match (seen.late, seen.tail) {
            (Some(late), _) if self.config.counts_late => {
                self.excess_ms * (1.0 - (late / self.allowed).min(MOST_LATE))
            }
            (_, Some(tail)) => self.target_ms - tail.as_millis_f64(),
            (_, None) => return,
        };
        self.deadline = Nanos::from_secs_f64(self.pid.step(error_ms, None) / 1e3);
    }

    /// The deadline that the plan is made for, as the one threshold there is.
    fn thresholds(&self) -> &[Nanos] {
        std::slice::from_ref(&self.deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{OwnedSite, amp_site, build, dvfs_site, refused, request, seen};
    use lull_control::dispatcher::{Answer, CoreChoice, DispatchObservation, DispatchRequest};
    use lull_measure::Nanos;

    fn done<'a>(done_ms: u64, changed: DispatchRequest<'a>) -> DispatchRequest<'a> {
        DispatchRequest { done: Nanos::from_millis(done_ms), ..changed }
    }

    /// 2F-13S whose p99 of work is 265 ms to the millisecond.
    fn site() -> OwnedSite {
        let mut profile = vec![Nanos::from_millis(80); 989];
        profile.extend([Nanos::from_millis(265); 11]);
        OwnedSite { profile, ..amp_site() }
    }

    #[test]
    fn an_undisturbed_request_moves_at_the_closed_forms_moment() {
        let mut dispatcher = build("just-in-time", "", &site());
        // 135 ms slow, then (265 - 135)/2 = 65 ms fast: 200 ms.
        let early = dispatcher.place(&done(60, request(60, Some(0), (0, 3), &[10, 2])));
        assert_eq!(early, Answer::stay(Some(Nanos::from_millis(135))));
        let due = dispatcher.place(&done(135, request(135, Some(0), (0, 3), &[10, 2])));
        assert_eq!(due.place, CoreChoice::On(1));
    }

    #[test]
    fn by_own_pace_who_was_held_up_moves_earlier() {
        let mut dispatcher = build("just-in-time", "own_pace = true", &site());
        // With 54 of 60 ms done its pace is 0.9: 400 - 265/0.9 = 105.6 ms.
        let answer = dispatcher.place(&done(54, request(60, Some(0), (0, 3), &[10, 2])));
        let again_ms = answer.again.unwrap().as_millis_f64();
        assert!((again_ms - 105.555).abs() < 0.01, "{again_ms}");
        let mut blind = build("just-in-time", "", &site());
        let answer = blind.place(&done(54, request(60, Some(0), (0, 3), &[10, 2])));
        assert!(answer.again.unwrap() > Nanos::from_millis(120));
    }

    #[test]
    fn who_cannot_be_helped_makes_room() {
        let mut dispatcher = build("just-in-time", "", &site());
        let late = || done(270, request(201, Some(1), (0, 3), &[3, 0]));
        assert_eq!(dispatcher.place(&late()).place, CoreChoice::On(0));
        let full = DispatchRequest { free: &[0, 0], ..late() };
        assert_eq!(dispatcher.place(&full).place, CoreChoice::Stay, "no slow core is free");
        let mut stubborn = build("just-in-time", "gives_up = false", &site());
        assert_eq!(stubborn.place(&late()).place, CoreChoice::Stay);
    }

    #[test]
    fn the_deadline_follows_the_share_of_late_answers() {
        let mut dispatcher = build("just-in-time", "", &amp_site());
        let with =
            |late, samples| DispatchObservation { late: Some(late), ..seen(200, samples, 80.0) };
        dispatcher.adjust(&with(0.01, 2000));
        assert_eq!(dispatcher.thresholds(), [Nanos::from_millis(200)], "as many as allowed");
        dispatcher.adjust(&with(0.03, 2000));
        let after = dispatcher.thresholds()[0];
        assert!(after < Nanos::from_millis(195), "{after}");
        dispatcher.adjust(&with(0.9, 499));
        assert_eq!(dispatcher.thresholds(), [after], "too few answers");
        dispatcher.adjust(&with(0.9, 2000));
        let far = dispatcher.thresholds()[0];
        assert!(far > Nanos::from_millis(100), "one epoch does not throw it: {far}");
        for _ in 0..20 {
            dispatcher.adjust(&with(0.0, 2000));
        }
        assert!(dispatcher.thresholds()[0] > Nanos::from_millis(195));
    }

    #[test]
    fn the_tail_can_be_followed_instead() {
        let mut dispatcher = build("just-in-time", "counts_late = false", &site());
        dispatcher.adjust(&seen(220, 2000, 80.0));
        assert!(dispatcher.thresholds()[0] < Nanos::from_millis(195));
    }

    #[test]
    fn middle_levels_are_used_by_work() {
        let mut dispatcher = build("just-in-time", "", &dvfs_site());
        let mut level = |age_ms, done_ms| match dispatcher
            .place(&done(done_ms, request(age_ms, Some(0), (0, 1), &[3; 5])))
            .place
        {
            CoreChoice::On(level) => level,
            CoreChoice::Stay => 0,
        };
        assert_eq!(level(20, 20), 0);
        let middle = level(125, 125);
        assert!((1..4).contains(&middle), "{middle}");
        assert_eq!(level(190, 150), 4);
    }

    #[test]
    fn it_needs_a_profile_and_a_target_in_reach() {
        let none = OwnedSite { profile: Vec::new(), ..amp_site() };
        assert!(refused("just-in-time", "", &none).to_string().contains("needs 500"));
        let steep = OwnedSite { target: Nanos::from_millis(90), ..amp_site() };
        assert!(refused("just-in-time", "", &steep).to_string().contains("cannot be met"));
        assert!(refused("just-in-time", "ki = 0.0", &amp_site()).to_string().contains("`ki`"));
    }
}
