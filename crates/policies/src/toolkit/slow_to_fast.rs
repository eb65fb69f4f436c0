//! Slow to fast: a request moves to a faster core with its age, and when others need its core.
//!
//! Algorithm 1 of EETL (Haque et al., MICRO-50), and what "a similar algorithm"
//! for more than two types is taken to be. A request whose age has passed k
//! thresholds wants type k or faster. Where cores are of fixed types:
//!
//! - only as many of the oldest may want a type as there are cores of it or
//!   faster (`i <= |F|`);
//! - with more requests than cores of the types up to k, the oldest that are
//!   too many go above k before their age (`i <= n - |S|`), so that the young
//!   find a slow core;
//! - a request that finds no core of the wanted type takes the next faster, then the
//!   next slower that is still faster than its own; no request ever moves down.
//!
//! "Runs at low priority" of line 17 is a queue here: a request that finds no
//! core waits, oldest first. With two types this is Algorithm 1 (tested).
//! Where each core takes every speed, there is no competition and only the age
//! counts.
//!
//! With fixed thresholds this is a dispatcher by itself: S2F, TL and EE use it with
//! different thresholds.

use lull_control::dispatcher::{Answer, DecisionScope, DispatchRequest, Dispatcher, Ladder};
use lull_measure::Nanos;

/// The mechanism of EETL, S2F, TL and EE.
#[derive(Debug, Clone)]
pub(crate) struct SlowToFast {
    ladder: Ladder,
    /// Ages at which a request needs the next type; [`Nanos::MAX`]: never.
    ages: Vec<Nanos>,
    /// Indexed by type: its cores and faster ones.
    from: Vec<usize>,
    /// Indexed by type: its cores and slower ones.
    up_to: Vec<usize>,
    /// Whether the oldest requests move to a faster type before their age, so that younger ones
    /// find a core.
    makes_room: bool,
}

impl SlowToFast {
    /// The mechanism with these thresholds, one for each type from the second.
    pub(crate) fn new(ladder: &Ladder, ages: Vec<Nanos>, makes_room: bool) -> Self {
        let types = ladder.types().len();
        let cores = |kinds: std::ops::Range<usize>| kinds.map(|kind| ladder.cores(kind)).sum();
        Self {
            ladder: ladder.clone(),
            ages,
            from: (0..types).map(|kind| cores(kind..types)).collect(),
            up_to: (0..types).map(|kind| cores(0..kind + 1)).collect(),
            makes_room,
        }
    }

    /// Changes the thresholds.
    pub(crate) fn ages_mut(&mut self) -> &mut [Nanos] {
        &mut self.ages
    }

    /// A core's own level: upwards, if it has one at all.
    fn level(&self, request: &DispatchRequest<'_>, wanted: usize) -> Option<usize> {
        match request.on {
            Some(kind) => (wanted > kind).then_some(wanted),
            None => (request.free[wanted] > 0).then_some(wanted),
        }
    }

    /// A free core of a type, if it is an improvement.
    fn core(&self, request: &DispatchRequest<'_>, mut wanted: usize) -> Option<usize> {
        while wanted > 0 && request.older >= self.from[wanted] {
            wanted -= 1;
        }
        let target = wanted.max(self.room(request));
        let lowest = request.on.map_or(0, |kind| kind + 1);
        if request.on.is_some() && target < lowest {
            return None;
        }
        let free = |kind: &usize| request.free[*kind] > 0;
        let faster = (target..request.free.len()).find(free);
        faster.or_else(|| (lowest..target).rev().find(free))
    }

    /// The type that a request must reach for the young to find a core.
    fn room(&self, request: &DispatchRequest<'_>) -> usize {
        if !self.makes_room {
            return 0;
        }
        let types = self.up_to.len();
        let full = |kind: &usize| {
            let cores = self.up_to[*kind];
            request.older + cores < request.active && request.older < self.from[*kind + 1]
        };
        (0..types - 1).rev().find(full).map_or(0, |kind| kind + 1)
    }
}

impl Dispatcher for SlowToFast {
    #[inline]
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        let wanted = self.ages.iter().take_while(|age| request.age >= **age).count();
        let again = self.ages.get(wanted).copied().filter(|age| *age < Nanos::MAX);
        let to = if self.ladder.scales() {
            self.level(request, wanted)
        } else {
            self.core(request, wanted)
        };
        to.map_or(Answer::stay(again), |kind| Answer::on(kind, again))
    }

    fn decision_scope(&self) -> DecisionScope {
        match self.ladder.cores_above(0) {
            0 => DecisionScope::Ages,
            cores => DecisionScope::Oldest(cores),
        }
    }

    fn thresholds(&self) -> &[Nanos] {
        &self.ages
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::testing::{amp, amp_three, dvfs, request};
    use lull_control::dispatcher::CoreChoice;
    use proptest::prelude::*;

    const T: Nanos = Nanos::from_millis(100);

    fn two() -> SlowToFast {
        SlowToFast::new(&amp(), vec![T], true)
    }

    #[test]
    fn a_young_request_starts_slow_and_asks_again_at_the_threshold() {
        let answer = two().place(&request(0, None, (0, 1), &[13, 2]));
        assert_eq!(answer, Answer::on(0, Some(T)));
        assert_eq!(two().place(&request(50, Some(0), (0, 1), &[12, 2])), Answer::stay(Some(T)));
    }

    #[test]
    fn past_the_threshold_the_oldest_move_if_a_fast_core_is_free() {
        assert_eq!(two().place(&request(100, Some(0), (1, 5), &[9, 1])), Answer::on(1, None));
        assert_eq!(two().place(&request(100, Some(0), (1, 5), &[9, 0])).place, CoreChoice::Stay);
        // i <= |F|: the third oldest stays even if a core happens to be free.
        assert_eq!(two().place(&request(100, Some(0), (2, 5), &[9, 1])).place, CoreChoice::Stay);
        assert_eq!(two().place(&request(500, Some(1), (0, 5), &[9, 1])).place, CoreChoice::Stay);
    }

    #[test]
    fn the_oldest_make_room_when_slow_cores_run_out() {
        // 14 requests, 13 slow cores: one is too many, the oldest.
        assert_eq!(two().place(&request(10, Some(0), (0, 14), &[0, 2])).place, CoreChoice::On(1));
        assert_eq!(two().place(&request(9, Some(0), (1, 14), &[1, 1])).place, CoreChoice::Stay);
        let mut proud = SlowToFast::new(&amp(), vec![T], false);
        assert_eq!(proud.place(&request(10, Some(0), (0, 14), &[0, 2])).place, CoreChoice::Stay);
    }

    #[test]
    fn who_finds_no_core_waits_and_takes_a_fast_one_rather_than_none() {
        assert_eq!(two().place(&request(0, None, (15, 16), &[0, 0])).place, CoreChoice::Stay);
        assert_eq!(two().place(&request(0, None, (13, 14), &[0, 1])).place, CoreChoice::On(1));
    }

    #[test]
    fn a_threshold_of_zero_starts_on_the_fastest_core() {
        let mut tail = SlowToFast::new(&amp_three(), vec![Nanos::ZERO; 2], true);
        assert_eq!(tail.place(&request(0, None, (0, 1), &[7, 2, 2])).place, CoreChoice::On(2));
        assert_eq!(tail.place(&request(0, None, (2, 3), &[7, 2, 0])).place, CoreChoice::On(1));
        assert_eq!(tail.place(&request(0, None, (4, 5), &[7, 0, 0])).place, CoreChoice::On(0));
        assert_eq!(tail.place(&request(0, Some(1), (1, 5), &[7, 0, 1])).place, CoreChoice::On(2));
    }

    #[test]
    fn cores_that_scale_go_by_age_alone() {
        let mut levels =
            SlowToFast::new(&dvfs(), [50, 80, 100, 120].map(Nanos::from_millis).to_vec(), true);
        assert_eq!(levels.decision_scope(), DecisionScope::Ages);
        let next = Some(Nanos::from_millis(100));
        assert_eq!(levels.place(&request(85, Some(0), (9, 40), &[0; 5])), Answer::on(2, next));
        assert_eq!(levels.place(&request(85, None, (9, 40), &[0; 5])), Answer::stay(next));
        assert_eq!(levels.place(&request(0, None, (0, 1), &[4; 5])).place, CoreChoice::On(0));
    }

    /// Algorithm 1 as printed, for a request that can or cannot find cores.
    fn printed(request: &DispatchRequest<'_>, t: Nanos, cores: (usize, usize)) -> CoreChoice {
        let (slow, fast) = cores;
        let (i, n) = (request.older + 1, request.active);
        let to = |kind: usize| {
            if request.free[kind] > 0 { CoreChoice::On(kind) } else { CoreChoice::Stay }
        };
        if i <= fast && request.age >= t || n > slow && i <= fast && i <= n - slow {
            return if request.on == Some(1) { CoreChoice::Stay } else { to(1) };
        }
        match request.on {
            None if i > fast + slow || request.free[0] == 0 => CoreChoice::Stay,
            None => to(0),
            Some(_) => CoreChoice::Stay,
        }
    }

    proptest! {
        #[test]
        fn two_types_are_algorithm_1(
            age_ms in 0u64..200,
            on in prop::option::of(0usize..2),
            older in 0usize..20,
            younger in 0usize..10,
            free in (0u32..3, 0u32..3),
        ) {
            let free = [free.0, free.1];
            let request = request(age_ms, on, (older, older + 1 + younger), &free);
            let ours = two().place(&request).place;
            let theirs = printed(&request, T, (13, 2));
            // Line 17's low priority is our queue, whose oldest take what is free.
            let queued = request.on.is_none() && theirs == CoreChoice::Stay;
            prop_assert!(ours == theirs || queued, "{request:?}: {ours:?}, printed {theirs:?}");
        }

        #[test]
        fn no_request_moves_down_or_to_a_core_that_is_not_free(
            age_ms in 0u64..300,
            on in prop::option::of(0usize..3),
            older in 0usize..20,
            younger in 0usize..10,
            free in prop::collection::vec(0u32..3, 3),
        ) {
            let ages = [60, 120].map(Nanos::from_millis).to_vec();
            let mut three = SlowToFast::new(&amp_three(), ages, true);
            let request = request(age_ms, on, (older, older + 1 + younger), &free);
            if let CoreChoice::On(kind) = three.place(&request).place {
                prop_assert!(free[kind] > 0);
                prop_assert!(on.is_none_or(|on| kind > on));
            } else if on.is_none() {
                prop_assert!(free.iter().all(|free| *free == 0), "no core stands idle");
            }
        }
    }
}
