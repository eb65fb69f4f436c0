//! Marks: the levels that violated a bound, by load.
//!
//! A level that violated an app's bound at some load is not retried at that load for a while; each
//! further violation doubles the while. Loads are grouped into tenths of what the app's threads
//! can carry. A mark does not hold for higher loads: the p95 of a hundred requests violates a
//! bound by chance where the p95 of a thousand does not.

use lull_measure::Nanos;

/// Tenths of an app's capacity, and one for all above.
const TENTHS: usize = 11;

/// The marks of one app.
#[derive(Debug, Clone, Default)]
pub(super) struct Marks {
    by_load: [Option<Mark>; TENTHS],
}

#[derive(Debug, Clone, Copy)]
struct Mark {
    /// The highest level that may be tried.
    level: usize,
    until: Nanos,
    held_for: Nanos,
}

/// Times for which marks hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hold {
    pub(super) first: Nanos,
    pub(super) longest: Nanos,
}

/// The tenth that a load is in.
fn tenth(load: f64) -> usize {
    ((load * 10.0).max(0.0) as usize).min(TENTHS - 1)
}

impl Marks {
    /// This level broke the app at this load.
    pub(super) fn add_violation(&mut self, load: f64, level: usize, now: Nanos, hold: Hold) {
        let mark = &mut self.by_load[tenth(load)];
        let below = level.saturating_sub(1);
        let held_for = match *mark {
            // The same again: it is remembered for longer.
            Some(old) if below >= old.level => (old.held_for * 2).min(hold.longest),
            _ => hold.first,
        };
        *mark = Some(Mark { level: below, until: now + held_for, held_for });
    }

    /// The highest level that may be tried at this load; `None` where nothing is known.
    pub(super) fn limit(&self, load: f64, now: Nanos) -> Option<usize> {
        self.by_load[tenth(load)].filter(|mark| now < mark.until).map(|mark| mark.level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLD: Hold = Hold { first: Nanos::from_secs(10), longest: Nanos::from_secs(30) };

    fn at(seconds: u64) -> Nanos {
        Nanos::from_secs(seconds)
    }

    #[test]
    fn what_broke_at_a_load_limits_that_load_for_a_while() {
        let mut marks = Marks::default();
        assert_eq!(marks.limit(0.9, at(0)), None);
        marks.add_violation(0.52, 7, at(0), HOLD);
        let limits = [0.49, 0.55, 0.9, 3.0].map(|load| marks.limit(load, at(9)));
        assert_eq!(limits, [None, Some(6), None, None]);
        assert_eq!(marks.limit(0.55, at(10)), None);
        marks.add_violation(7.0, 3, at(0), HOLD);
        assert_eq!(marks.limit(1.2, at(1)), Some(2), "all above the capacity are one");
    }

    #[test]
    fn what_breaks_again_is_remembered_twice_as_long_up_to_a_bound() {
        let mut marks = Marks::default();
        let held = [0, 100, 200, 300].map(|now| {
            marks.add_violation(0.5, 7, at(now), HOLD);
            (0..60).take_while(|after| marks.limit(0.5, at(now + after)).is_some()).count()
        });
        assert_eq!(held, [10, 20, 30, 30]);
        marks.add_violation(0.5, 3, at(400), HOLD);
        assert_eq!(marks.limit(0.5, at(410)), None, "another level starts its own count");
    }

    #[test]
    fn the_lowest_level_can_break_too() {
        let mut marks = Marks::default();
        marks.add_violation(0.5, 0, at(0), HOLD);
        assert_eq!(marks.limit(0.5, at(1)), Some(0));
    }
}
