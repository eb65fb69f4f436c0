//! The loop of PSLO and UTSLO, rule by rule.

use super::*;
use lull_control::admission::Answered;
use lull_measure::Percentile;
use proptest::prelude::*;

const BOUND: Nanos = Nanos::from_millis(40);

fn quota(promised: usize, best_effort: usize) -> Quota {
    let tail = Some(Objective::Tail { percentile: Percentile::P99, bound: BOUND });
    let objectives = [vec![tail; promised], vec![None; best_effort]].concat();
    Quota::new(&objectives, Patience::OURS, 100, 2, Nanos::from_secs(1), Limits::Rate)
}

/// Ten looks a second for this many seconds, with this latency of the
/// promised connection 0 and this many best-effort answers a look.
fn run(quota: &mut Quota, latency_ms: u64, best_effort: u32, seconds: u64) {
    let start = quota.since.0 / 100_000_000;
    for look in start + 1..=start + 10 * seconds {
        let answer = |connection, latency_ms, queries| Answered {
            connection,
            latency: Nanos::from_millis(latency_ms),
            queries,
        };
        quota.note(&GateObservation {
            now: Nanos::from_millis(100 * look),
            answered: &[answer(0, latency_ms, 10), answer(1, 1, best_effort)],
            waiting: &[0, 1],
            device: Ok(1.0),
            round: None,
            rested: Ok(0.0),
            connections: Err(lull_measure::Missing::because("no server")),
            under_way: Err(lull_measure::Missing::because("no server")),
            server: Err(lull_measure::Missing::because("no server")),
        });
    }
}

fn seen(now_ms: u64, waiting: &[u32]) -> GateObservation<'_> {
    GateObservation {
        now: Nanos::from_millis(now_ms),
        answered: &[],
        waiting,
        device: Ok(1.0),
        round: None,
        rested: Ok(0.0),
        connections: Err(lull_measure::Missing::because("no server")),
        under_way: Err(lull_measure::Missing::because("no server")),
        server: Err(lull_measure::Missing::because("no server")),
    }
}

#[test]
fn answers_are_counted_over_the_time_since_they_count() {
    let mut quota = quota(1, 1);
    quota.wait(Nanos::from_secs(3600));
    run(&mut quota, 90, 100, 2);
    let limit = quota.best_effort_limit.expect("every answer was late");
    assert!(limit > 500.0, "of 1,000 a second: {limit}");
}

#[test]
fn a_broken_promise_takes_from_best_effort_until_it_is_kept() {
    let mut quota = quota(1, 1);
    run(&mut quota, 50, 100, 1);
    assert_eq!(quota.best_effort_limit, Some(900.0), "10 % less than the 1000/s it had");
    run(&mut quota, 50, 90, 1);
    assert_eq!(quota.best_effort_limit, Some(900.0), "the queue of before drains");
    run(&mut quota, 50, 90, 1);
    assert_eq!(quota.best_effort_limit.map(f64::round), Some(810.0));
    run(&mut quota, 10, 81, 5);
    let kept = quota.best_effort_limit.unwrap();
    assert!(kept > 810.0 && quota.worst() == Some(0.0), "{kept}");
}

#[test]
fn late_answers_from_before_a_cut_are_no_reason_for_another() {
    let mut quota = quota(1, 1);
    run(&mut quota, 50, 100, 1);
    assert_eq!(quota.best_effort_limit, Some(900.0));
    // The window has room for the 100 late answers for one more second.
    run(&mut quota, 10, 90, 2);
    assert!(quota.best_effort_limit.unwrap() > 900.0, "{:?}", quota.best_effort_limit);
}

#[test]
fn a_promised_connection_that_sends_nothing_does_not_keep_the_rate_from_growing() {
    let tail = |bound| Some(Objective::Tail { percentile: Percentile::P99, bound });
    let objectives = [tail(BOUND), None, tail(BOUND * 2)];
    let mut quota =
        Quota::new(&objectives, Patience::OURS, 100, 2, Nanos::from_secs(1), Limits::Rate);
    run(&mut quota, 50, 100, 1);
    assert_eq!(quota.best_effort_limit, Some(900.0));
    run(&mut quota, 10, 90, 2);
    let grown = quota.best_effort_limit.unwrap();
    assert!(grown > 900.0, "connection 2 had no answer: {grown}");
    quota.promises.iter_mut().for_each(Promise::forget);
    (quota.best_effort, quota.all) = (1000, 1000);
    quota.adjust(1.0, Nanos::from_secs(4));
    assert_eq!(quota.best_effort_limit, Some(grown), "no answer at all is no evidence");
}

/// The limit of best effort after this many answers of the promised connection, of which so many
/// are late.
fn limit_after(quota: &mut Quota, answers: u64, late: u64, now_s: u64) -> Option<f64> {
    let promise = &mut quota.promises[0];
    promise.forget();
    (0..answers - late).for_each(|_| promise.note(0.0, 2000));
    (0..late).for_each(|_| promise.note(1.0, 2000));
    quota.adjust(1.0, Nanos::from_secs(now_s));
    quota.best_effort_limit
}

#[test]
fn best_effort_grows_at_the_marks_where_intervals_settle_up_to_what_was_too_much() {
    let mut quota = quota(1, 1);
    let mut moved_to = |late: u64, now_s: u64| {
        let limit = quota.best_effort_limit.unwrap_or(1000.0);
        (quota.best_effort, quota.all) = (limit.round() as u64, 1000);
        limit_after(&mut quota, 1000, late, now_s)
    };
    assert_eq!(moved_to(9, 1), None, "no limit yet");
    assert_eq!(moved_to(60, 2), Some(900.0));
    assert_eq!(moved_to(60, 3), Some(900.0), "the queue of before drains");
    assert_eq!(moved_to(9, 4), Some(920.0), "0.9 of what is allowed");
    assert_eq!(moved_to(12, 5), Some(920.0), "too many are late, though not significantly");
    let settled = (6..20).map(|now_s| moved_to(9, now_s)).last();
    assert_eq!(settled, Some(Some(970.0)));
    assert_eq!(moved_to(9, 62), Some(990.0), "after a minute it tries more");
    assert_eq!(moved_to(60, 63), Some(891.0));
    moved_to(9, 64);
    let settled = (65..180).map(|now_s| moved_to(9, now_s)).last();
    assert_eq!(settled, Some(Some(SAFE * 990.0)), "and then waits for two");
}

/// One promised connection, and a hundred of best effort whose level is limited.
fn levelled() -> Quota {
    let tail = Some(Objective::Tail { percentile: Percentile::P99, bound: BOUND });
    let objectives = [vec![tail], vec![None; 100]].concat();
    let second = Nanos::from_secs(1);
    Quota::new(&objectives, Patience::OURS, 2000, 2, second, Limits::Level)
}

#[test]
fn a_level_limits_turns_at_a_time_and_moves_by_the_same_steps() {
    let mut quota = levelled();
    assert_eq!(quota.level(), None, "no promise is broken yet");
    run(&mut quota, 50, 100, 1);
    assert_eq!(quota.level(), Some(91), "90 of 100, and the promised connection");
    let mut allow = vec![Allowance::turns_of(1); 101];
    quota.allow(&seen(2000, &[1; 101]), &mut allow);
    assert_eq!(allow[1], Allowance::turns_of(2), "no rate is in force");
    run(&mut quota, 10, 90, 2);
    assert_eq!(quota.level(), Some(93), "2 % of 90 more");
}

#[test]
fn a_cut_of_a_level_leaves_intervals_as_they_are() {
    let mut quota = levelled();
    quota.promises[0].every = OFTEN;
    run(&mut quota, 50, 100, 1);
    assert_eq!(quota.best_effort_limit, Some(90.0));
    assert!(quota.promises[0].every < OFTEN * 2, "a longer one is late behind the queue");
}

#[test]
fn a_level_grows_only_while_intervals_have_room() {
    let mut quota = levelled();
    quota.best_effort_limit = Some(50.0);
    let mut moved_to = |late: u64, now_s: u64| {
        quota.best_effort = 1000;
        limit_after(&mut quota, 2000, late, now_s)
    };
    assert_eq!(moved_to(19, 1), Some(50.0), "allowed, and above what intervals aim at");
    assert_eq!(moved_to(17, 2), Some(51.0));
}

#[test]
fn a_single_late_answer_is_no_evidence() {
    let mut promise = quota(1, 0).promises.remove(0);
    let mut marks = |late: u32, timely: u32| {
        promise.forget();
        (0..late).for_each(|_| promise.note(1.0, 2000));
        (0..timely).for_each(|_| promise.note(0.0, 2000));
        promise.marks.is_above(0.01)
    };
    assert!(!marks(1, 30), "3 % late, with a standard error as large");
    assert!(!marks(15, 985), "1.5 % late, 1 % allowed");
    assert!(marks(30, 970) && marks(10, 10));
}

proptest! {
    /// The interval between turns settles where the share of late answers is just below
    /// the allowed one, whatever the server adds to it (here up to 28 ms in 99 % of cases).
    #[test]
    fn a_connection_is_served_as_often_as_its_objective_needs_and_no_more(
        seed in 0u64..1000,
        scatter_ms in 1.0f64..6.0,
    ) {
        let mut promise = quota(1, 0).promises.remove(0);
        let mut state = seed.wrapping_mul(2).wrapping_add(1);
        let mut late = 0_u32;
        for answer in 0..60_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let share = (state >> 11) as f64 / (1_u64 << 53) as f64;
            let service = Nanos::from_secs_f64(-scatter_ms / 1e3 * (1.0 - share).ln());
            let mark = promise.mark(promise.every + service, Patience::OURS);
            promise.follow(mark, Patience::OURS);
            late += u32::from(answer >= 20_000 && mark > 0.0);
        }
        let compliance = f64::from(late) / 40_000.0 / 0.01;
        prop_assert!((0.6..=1.0).contains(&compliance), "{compliance}");
    }
}

#[test]
fn a_tightened_promise_restarts_its_judgement_and_others_are_another_quota() {
    let mut quota = quota(1, 1);
    run(&mut quota, 30, 100, 1);
    assert_eq!(quota.worst(), Some(0.0));
    let bound = Nanos::from_millis(20);
    let tight = Some(Objective::Tail { percentile: Percentile::P99, bound });
    assert!(quota.retarget(&[tight, None]));
    assert_eq!(quota.worst(), None);
    run(&mut quota, 30, 100, 1);
    assert_eq!(quota.best_effort_limit, Some(900.0), "30 ms is late now");
    assert!(!quota.retarget(&[None, tight]));
}

#[test]
fn a_rate_that_is_not_used_up_neither_grows_nor_falls() {
    let mut quota = quota(1, 1);
    run(&mut quota, 50, 100, 1);
    run(&mut quota, 10, 10, 100);
    assert_eq!(quota.best_effort_limit, Some(900.0));
}

#[test]
fn a_cut_of_a_rate_that_is_not_used_up_is_one_of_what_is_used() {
    let mut quota = quota(1, 1);
    run(&mut quota, 50, 100, 1);
    run(&mut quota, 10, 60, 2);
    assert_eq!(quota.best_effort_limit, Some(900.0), "600 are used");
    run(&mut quota, 50, 60, 1);
    assert_eq!(quota.best_effort_limit, Some(0.9 * 750.0));
    run(&mut quota, 10, 60, 2);
    run(&mut quota, 50, 1, 1);
    assert!(
        quota.best_effort_limit.unwrap() > 300.0,
        "half at most: {:?}",
        quota.best_effort_limit
    );
}

#[test]
fn best_effort_that_is_back_after_a_pause_has_the_rate_of_before() {
    let mut quota = quota(1, 1);
    run(&mut quota, 50, 100, 1);
    run(&mut quota, 10, 90, 2);
    let before = quota.best_effort_limit;
    assert!(before > Some(900.0));
    run(&mut quota, 10, 0, 100);
    assert_eq!(quota.best_effort_limit, before, "objectives were met in the pause");
    run(&mut quota, 50, 0, 100);
    assert_eq!(quota.best_effort_limit, before, "best effort was not why answers were late");
    run(&mut quota, 10, 90, 1);
    assert!(quota.best_effort_limit >= before, "answers of the pause are no evidence");
}

#[test]
fn best_effort_whose_queries_are_longer_than_a_period_is_cut_for_a_broken_promise() {
    let mut quota = quota(1, 1);
    quota.best_effort_limit = Some(100.0);
    let mut breaks = |best_effort: u64, period: u64| {
        (0..10).for_each(|_| quota.promises[0].note(1.0, 100));
        (quota.best_effort, quota.all) = (best_effort, best_effort + 10);
        quota.adjust(1.01, Nanos::from_millis(1010 * period));
        quota.best_effort_limit
    };
    assert_eq!(breaks(1, 1), Some(45.0), "less than one a second");
    assert_eq!(breaks(1, 2), Some(45.0), "the queue of before drains");
    assert_eq!(breaks(0, 3), Some(45.0), "a query is under way");
    let cut = breaks(1, 4);
    assert!(cut < Some(45.0), "{cut:?}");
    // Best effort is silent for more than ten seconds: its last marks count no longer.
    let paused = (5..20).map(|period| breaks(0, period)).last();
    assert_eq!(paused, Some(cut));
    assert_eq!(quota.worst(), None);
}

#[test]
fn a_promise_broken_without_best_effort_takes_nothing_from_it() {
    let mut quota = quota(1, 1);
    run(&mut quota, 50, 0, 3);
    assert_eq!(quota.best_effort_limit, None, "every answer was late");
    run(&mut quota, 50, 100, 1);
    assert_eq!(quota.best_effort_limit, Some(900.0));
}

#[test]
fn without_a_broken_promise_nothing_is_limited() {
    let mut quota = quota(1, 2);
    run(&mut quota, 10, 100, 10);
    assert_eq!(quota.best_effort_limit, None);
    let mut allow = vec![Allowance::turns_of(1); 3];
    quota.allow(&seen(10_000, &[0, 1, 1]), &mut allow);
    assert!(allow[0].first && !allow[1].first);
    assert_eq!(allow[1], Allowance::turns_of(2));
}

#[test]
fn a_promised_connection_comes_as_often_as_its_bound_needs() {
    let mut quota = quota(1, 1);
    let mut allow = vec![Allowance::turns_of(1); 2];
    let mut served = |quota: &mut Quota, from_ms: u64| -> u32 {
        (from_ms..from_ms + 100)
            .map(|now_ms| {
                quota.allow(&seen(now_ms, &[1, 1]), &mut allow);
                allow[0].queries
            })
            .sum()
    };
    assert_eq!(served(&mut quota, 1000), 5, "half of 40 ms");
    run(&mut quota, 50, 100, 1);
    assert_eq!(served(&mut quota, 10_000), 5, "a cut begins again");
    (0..100).for_each(|_| quota.promises[0].follow(1.0, Patience::OURS));
    assert_eq!(quota.promises[0].every, OFTEN, "100 late answers");
    assert_eq!(served(&mut quota, 15_000), 100);
    run(&mut quota, 10, 100, 60);
    assert!(served(&mut quota, 80_000) < 5, "{}", quota.promises[0].every);
}

#[test]
fn best_effort_shares_its_rate_in_turn() {
    let mut quota = quota(1, 4);
    quota.best_effort_limit = Some(400.0);
    let mut allow = vec![Allowance::turns_of(1); 5];
    let mut turns = |now_ms, waiting: &[u32]| -> Vec<u32> {
        quota.allow(&seen(now_ms, waiting), &mut allow);
        allow[1..].iter().map(|one| one.queries).collect()
    };
    // 10 ms at 400/s are 4 queries: 2 turns of 2.
    assert_eq!(turns(10, &[0, 1, 1, 1, 1]), [2, 2, 0, 0]);
    assert_eq!(turns(20, &[0, 1, 1, 1, 1]), [0, 0, 2, 2]);
    assert_eq!(turns(30, &[0, 0, 1, 0, 1]), [0, 2, 0, 2], "only who waits");
}

#[test]
fn disengagement_counts_by_how_long_users_wait() {
    let users = Some(Objective::Disengagement { ratio: 0.001 });
    let mut quota =
        Quota::new(&[users, None], Patience::OURS, 100, 1, Nanos::from_secs(1), Limits::Rate);
    run(&mut quota, 15, 10, 1);
    assert_eq!(quota.worst(), Some(0.0), "no connection leaves within 20 ms");
    let promise = &mut quota.promises[0];
    promise.forget();
    // 1 - exp(-20 ms / 2 s) = 0.995 % of an allowed 0.1 %.
    promise.note(promise.mark(Nanos::from_millis(40), Patience::OURS), 100);
    assert!((quota.worst().unwrap() - 9.95).abs() < 0.01);
}

proptest! {
    #[test]
    fn no_more_is_let_in_than_the_rate_and_what_was_saved(
        steps in prop::collection::vec((1u64..30, prop::collection::vec(0u32..2, 8)), 1..60),
        rate in 50.0f64..5000.0,
    ) {
        let mut quota = quota(0, 8);
        quota.best_effort_limit = Some(rate);
        let (mut now_ms, mut given) = (0, 0.0);
        let mut allow = vec![Allowance::turns_of(1); 8];
        for (step_ms, waiting) in &steps {
            now_ms += step_ms;
            quota.allow(&seen(now_ms, waiting), &mut allow);
            given += allow.iter().map(|one| f64::from(one.queries)).sum::<f64>();
        }
        prop_assert!(given <= rate * now_ms as f64 / 1e3 + 2.0 + 1e-6, "{given}");
    }
}
