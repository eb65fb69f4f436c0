//! How one core divided its time: in long sleeps, in short sleeps, awake.
//!
//! C6 opportunity is equation (2) of REEF (`lull_measure::ideal_batch`): the share of core
//! time in sleeps longer than the break-even T. The equation is defined on a finished run,
//! but an epoch ends in the middle of sleeps. A sleep that has already lasted longer than T
//! counts with its length so far, and the rest of it counts in the next epoch. A sleep that
//! has not is left out of both sides of the fraction until it is known to be long or short.
//! So the shares of epochs, weighted with their times, add up to the share of the run.

use super::buckets::{Histogram, TimeBeyond};
use lull_measure::{Gauge, Missing, Nanos};

/// The counts of a core up to an instant.
#[derive(Debug, Clone, Default)]
pub struct CoreTime {
    /// Sleeps that have ended.
    pub sleeps: Histogram,
    /// Time awake between them.
    pub awake: Nanos,
    /// When it woke up, if it is awake.
    pub awake_since: Option<Nanos>,
    /// When it fell asleep, if it is asleep.
    pub asleep_since: Option<Nanos>,
    /// The instant.
    pub now: Nanos,
}

/// Time of a core, or of several, by its possible use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Division {
    /// Time in sleeps longer than the break-even.
    pub long: TimeBeyond,
    /// Time in all sleeps of which it is known whether they exceed the break-even.
    pub asleep: Nanos,
    /// Time awake.
    pub awake: Nanos,
}

/// C6 opportunity and its largest error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Opportunity {
    /// C6 opportunity, in [0, 1].
    pub share: f64,
    /// The largest error of the share, from the bucket that the break-even divides.
    pub error: f64,
}

impl CoreTime {
    /// Divides the time since the core was first seen asleep or awake; `None` if it never
    /// was.
    pub fn divide(&self, break_even: Nanos) -> Option<Division> {
        let is_known = self.awake_since.or(self.asleep_since).is_some()
            || self.awake > Nanos::ZERO
            || self.sleeps.count() > 0;
        let so_far = |since: Option<Nanos>| {
            since.map_or(Nanos::ZERO, |since| self.now.saturating_sub(since))
        };
        let open = Some(so_far(self.asleep_since)).filter(|open| *open > break_even);
        let open = open.unwrap_or_default();
        let TimeBeyond { time, error } = self.sleeps.beyond(break_even);
        is_known.then(|| Division {
            long: TimeBeyond { time: time + open, error },
            asleep: self.sleeps.total() + open,
            awake: self.awake + so_far(self.awake_since),
        })
    }
}

impl Division {
    /// Returns the division of the time since `before`. All fields, the error too, are sums
    /// over buckets, so that their differences belong to the time in between.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            long: TimeBeyond {
                time: self.long.time.saturating_sub(before.long.time),
                error: self.long.error.saturating_sub(before.long.error),
            },
            asleep: self.asleep.saturating_sub(before.asleep),
            awake: self.awake.saturating_sub(before.awake),
        }
    }

    /// Adds the time of another core.
    pub fn and(&self, other: &Self) -> Self {
        Self {
            long: TimeBeyond {
                time: self.long.time + other.long.time,
                error: self.long.error + other.long.error,
            },
            asleep: self.asleep + other.asleep,
            awake: self.awake + other.awake,
        }
    }

    /// Returns the share in long sleeps.
    ///
    /// # Errors
    /// If no time is accounted for yet.
    pub fn opportunity(&self) -> Gauge<Opportunity> {
        let all = (self.asleep + self.awake).0 as f64;
        if all <= 0.0 {
            return Err(Missing::because(
                "the core sleeps, and not yet for longer than the break-even",
            ));
        }
        let share = |part: Nanos| (part.0 as f64 / all).min(1.0);
        Ok(Opportunity { share: share(self.long.time), error: share(self.long.error) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::ideal_batch::c6_opportunity;

    const T: Nanos = Nanos::from_millis(1);

    fn us(micros: u64) -> Nanos {
        Nanos::from_micros(micros)
    }

    /// A core at an instant, after it was awake and asleep in turn for these times.
    fn at(stays: &[Nanos], now: Nanos) -> CoreTime {
        let mut core = CoreTime { now, ..CoreTime::default() };
        let mut begin = Nanos(1);
        for (index, stay) in stays.iter().enumerate() {
            let (asleep, end) = (index % 2 == 1, begin + *stay);
            let since = Some(begin).filter(|_| end > now && begin <= now);
            match asleep {
                true if end <= now => core.sleeps.add(*stay),
                false if end <= now => core.awake += *stay,
                true => core.asleep_since = core.asleep_since.or(since),
                false => core.awake_since = core.awake_since.or(since),
            }
            begin = end;
        }
        core
    }

    #[test]
    fn a_run_is_equation_2() {
        let stays = [300, 2000, 700, 400, 100, 5000, 250, 900].map(us);
        let core = at(&stays, stays.iter().copied().sum::<Nanos>() + Nanos(1));
        let found = core.divide(T).unwrap().opportunity().unwrap();
        let sleeps = stays.iter().copied().skip(1).step_by(2);
        let busy = stays.iter().copied().step_by(2).sum();
        let exact = c6_opportunity(sleeps, busy, T).unwrap();
        assert!((found.share - exact).abs() <= found.error + 1e-9, "{found:?}, {exact}");
    }

    #[test]
    fn epochs_add_up_to_the_run_wherever_they_end() {
        let stays = [300, 40_000, 700, 400, 100, 5000, 250, 700].map(us);
        let end = stays.iter().copied().sum::<Nanos>() + Nanos(1);
        let whole = at(&stays, end).divide(T).unwrap();
        for epoch in [700, 3000, 11_000].map(us) {
            let mut sum = Division::default();
            let mut before = Division::default();
            let mut now = epoch;
            while now < end + epoch {
                let after = at(&stays, now.min(end)).divide(T).unwrap();
                let new = after.since(&before);
                assert!(new.long.time <= new.asleep, "{now:?}: {new:?}");
                sum = sum.and(&new);
                before = after;
                now += epoch;
            }
            assert_eq!((sum.asleep, sum.awake), (whole.asleep, whole.awake), "{epoch:?}");
            assert_eq!(sum.long.time, whole.long.time, "{epoch:?}");
        }
    }

    #[test]
    fn a_sleep_that_may_still_be_short_is_neither_long_nor_short() {
        let stays = [us(10), us(900_000)];
        let before = at(&stays, us(11)).divide(T).unwrap();
        let open = at(&stays, us(500)).divide(T).unwrap();
        assert!(open.since(&before).opportunity().is_err());
        let long = at(&stays, us(3000)).divide(T).unwrap();
        let share = long.since(&open).opportunity().unwrap().share;
        assert!((share - 1.0).abs() < 1e-12, "{share}");
    }

    #[test]
    fn a_core_that_was_never_seen_is_unknown_and_a_busy_one_has_no_opportunity() {
        assert_eq!(CoreTime { now: us(900), ..CoreTime::default() }.divide(T), None);
        let busy = CoreTime { now: us(900), awake_since: Some(us(100)), ..CoreTime::default() };
        let division = busy.divide(T).unwrap();
        assert_eq!(division.awake, us(800));
        assert_eq!(division.opportunity().unwrap().share, 0.0);
    }
}
