//! The state by hand, and among real threads.

use super::*;
use crate::sys::sched::affinity_of;
use lull_control::dispatcher::{
    Answer, CoreSpeed, DecisionScope, DispatchObservation, DispatchRequest, Dispatcher,
    MeasurementPeriod, MeasurementRule, Supply,
};
use lull_measure::Percentile;
use proptest::prelude::*;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

/// Starts on the slowest free type, and moves to the fastest at an age.
struct At(Nanos);

impl Dispatcher for At {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        let fastest = request.free.len() - 1;
        match request.on {
            None => request
                .free
                .iter()
                .position(|free| *free > 0)
                .map_or(Answer::stay(None), |kind| Answer::on(kind, Some(self.0))),
            Some(_) if request.age >= self.0 => Answer::on(fastest, None),
            Some(_) => Answer::stay(Some(self.0)),
        }
    }

    fn decision_scope(&self) -> DecisionScope {
        DecisionScope::Oldest(1)
    }
}

const fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// Slow and fast cores, numbered from 0.
fn floor(slow: u16, fast: u16) -> Floor {
    let types = vec![CoreSpeed::new("slow", 1.0, 1.0), CoreSpeed::new("fast", 2.0, 6.8)];
    let numbers = vec![u32::from(slow), u32::from(fast)];
    let cores = vec![CoreSet::first(slow), (slow..slow + fast).map(CoreId).collect()];
    Floor { ladder: Ladder::new(types, Supply::Fixed(numbers)).unwrap(), cores, abandon: ms(1000) }
}

fn new_state(slow: u16, fast: u16) -> DispatchState {
    DispatchState::new(floor(slow, fast), Box::new(At(ms(100)))).unwrap()
}

#[test]
fn a_request_moves_at_its_age_and_its_first_core_is_free_again() {
    let mut state = new_state(1, 1);
    let first = state.arrive(ms(0), ms(0), 11);
    assert_eq!((state.take_orders(), state.next_due()), (vec![Order::On(11, CoreId(0))], ms(100)));
    state.tick(ms(99));
    assert!(!state.has_orders(), "a timer that rings early moves nobody");
    state.tick(ms(100));
    assert_eq!(state.take_orders(), [Order::On(11, CoreId(1))]);
    state.arrive(ms(100), ms(100), 12);
    assert_eq!(state.take_orders(), [Order::On(12, CoreId(0))]);
    state.leave(ms(150), first);
    let tally = state.take_tally(ms(150));
    assert_eq!((tally.moves, tally.latency.count()), (1, 1));
    // 100 ms of the first and 50 of the second on the slow core; 50 on the fast one.
    assert_eq!(tally.spent.busy_s, [0.15, 0.05]);
    assert_eq!(state.take_tally(ms(160)).spent.busy_s, [0.01, 0.0], "counted once");
}

#[test]
fn age_counts_from_the_arrival_and_not_from_the_start_of_a_worker() {
    let mut state = new_state(1, 1);
    state.arrive(ms(70), ms(10), 11);
    assert_eq!(state.next_due(), ms(110));
}

#[test]
fn who_waits_gets_the_first_free_core_the_oldest_first() {
    let mut state = new_state(1, 0);
    let first = state.arrive(ms(0), ms(0), 11);
    let younger = state.arrive(ms(6), ms(5), 12);
    let older = state.arrive(ms(7), ms(4), 13);
    assert!(state.may_run(first) && !state.may_run(younger) && !state.may_run(older));
    state.take_orders();
    state.leave(ms(10), first);
    assert_eq!(state.take_orders(), [Order::On(13, CoreId(0))]);
    assert!(state.may_run(older) && !state.may_run(younger));
}

#[test]
fn a_request_that_never_ends_loses_its_core_to_those_who_wait() {
    let mut state = new_state(1, 0);
    let endless = state.arrive(ms(0), ms(0), 11);
    let next = state.arrive(ms(500), ms(500), 12);
    state.take_orders();
    state.tick(ms(999));
    assert!(!state.may_run(next));
    assert_eq!(state.next_due(), ms(1000));
    state.tick(ms(1000));
    assert_eq!(state.take_orders(), [Order::Slowest(11), Order::On(12, CoreId(0))]);
    assert!(state.may_run(endless), "it goes on, undispatched");
    // Its end, should it come, is no matter.
    state.leave(ms(1200), endless);
    let tally = state.take_tally(ms(1200));
    assert_eq!((tally.abandoned, tally.latency.count(), state.active()), (1, 0, 1));
}

#[test]
fn a_thread_that_died_frees_its_core() {
    let mut state = new_state(1, 0);
    state.arrive(ms(0), ms(0), 11);
    let next = state.arrive(ms(1), ms(1), 12);
    state.end_thread(ms(2), 11);
    assert!(state.may_run(next));
    assert_eq!(state.take_tally(ms(2)).died, 1);
}

#[test]
fn cores_that_do_not_go_with_the_types_are_refused() {
    let refused = |floor: &Floor| floor.check().unwrap_err().to_string();
    let short = Floor { cores: vec![CoreSet::first(1)], ..floor(1, 1) };
    assert!(refused(&short).contains("1 sets of cores for 2"));
    let few = Floor { cores: vec![CoreSet::first(1), CoreSet::default()], ..floor(1, 1) };
    assert!(refused(&few).contains("`fast` has 0 cores listed and 1 counted"));
    let twice = Floor { cores: vec![CoreSet::first(1), CoreSet::first(1)], ..floor(1, 1) };
    assert!(refused(&twice).contains("core 0 is of two types"));
    assert!(refused(&Floor { cores: floor(1, 1).cores, ..scaling(2) }).contains("give one"));
    let few = Floor { cores: vec![CoreSet::first(1)], ..scaling(2) };
    assert!(refused(&few).contains("1 cores listed and 2 counted"));
    let unset = Dispatch::start(scaling(1), Box::new(At(ms(1)))).err().unwrap().to_string();
    assert!(unset.contains("a frequency for each of 2 core types"), "{unset}");
}

/// This many cores, each slow or fast.
fn scaling(cores: u16) -> Floor {
    let types = floor(1, 1).ladder.types().to_vec();
    let ladder = Ladder::new(types, Supply::Any(u32::from(cores))).unwrap();
    Floor { ladder, cores: vec![CoreSet::first(cores)], abandon: ms(1000) }
}

#[test]
fn where_cores_scale_a_request_stays_and_its_core_gets_faster() {
    let mut state = DispatchState::new(scaling(2), Box::new(At(ms(100)))).unwrap();
    let first = state.arrive(ms(0), ms(0), 11);
    let on = |tid, core| Order::On(tid, CoreId(core));
    let speed = |core, kind| Order::Speed(CoreId(core), kind);
    assert_eq!(state.take_orders(), [on(11, 1)], "cores are slow until somebody needs speed");
    let second = state.arrive(ms(40), ms(40), 12);
    state.arrive(ms(50), ms(50), 13);
    assert_eq!(state.take_orders(), [on(12, 0)], "the third waits");
    state.tick(ms(100));
    assert_eq!(state.take_orders(), [speed(1, 1)]);
    state.leave(ms(120), first);
    assert_eq!(state.take_orders(), [speed(1, 0), on(13, 1)], "who waited begins slow");
    state.tick(ms(140));
    state.leave(ms(145), second);
    assert_eq!(state.take_orders(), [speed(0, 1), speed(0, 0)], "an idle core is slow");
    let tally = state.take_tally(ms(150));
    // 100 + 100 + 30 ms slow, 20 + 5 ms fast.
    assert_eq!((tally.moves, tally.spent.busy_s), (2, vec![0.23, 0.025]));
}

/// Sends what it is shown after each answer.
struct Shown(Sender<DispatchObservation>);

impl Dispatcher for Shown {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        if request.free[0] > 0 { Answer::on(0, None) } else { Answer::stay(None) }
    }

    fn measurement_rule(&self) -> Option<MeasurementRule> {
        let every = MeasurementPeriod::Answers(1);
        Some(MeasurementRule { every, window: 10, percentile: Percentile::P50, bound: None })
    }

    fn adjust(&mut self, seen: &DispatchObservation) {
        self.0.send(*seen).unwrap();
    }
}

#[test]
fn dispatchers_that_take_turns_see_their_own_time_and_requests_only() {
    let (to, from) = channel();
    let mut state = DispatchState::new(floor(2, 0), Box::new(Shown(to))).unwrap();
    let serve = |state: &mut DispatchState, from: u64, until: u64| {
        let id = state.arrive(ms(from), ms(from), 11);
        state.leave(ms(until), id);
    };
    serve(&mut state, 0, 10);
    let shown = state.exchange(ms(20), ActiveDispatcher::new(Box::new(At(ms(100)))));
    serve(&mut state, 30, 300);
    let foreign = state.arrive(ms(390), ms(390), 12);
    state.exchange(ms(400), shown);
    state.leave(ms(405), foreign);
    serve(&mut state, 410, 420);
    let seen: Vec<DispatchObservation> = from.try_iter().collect();
    let times: Vec<_> = seen.iter().map(|one| one.now).collect();
    assert_eq!(times, [ms(10), ms(40)], "380 ms of the other's are not its own");
    assert_eq!((seen[1].samples, seen[1].tail), (2, Some(ms(10))));
}

proptest! {
    #[test]
    fn no_core_has_two_requests_and_none_is_idle_while_a_request_waits(
        steps in prop::collection::vec((0u8..4, 0usize..8, 1u64..60), 1..120),
    ) {
        let mut state = new_state(2, 1);
        let (mut now, mut tid, mut under_way) = (0, 100, Vec::new());
        for (what, which, span) in steps {
            now += span;
            match what {
                0 | 1 => {
                    tid += 1;
                    let age = ms(span).min(ms(now));
                    under_way.push(state.arrive(ms(now), ms(now).saturating_sub(age), tid));
                }
                2 if !under_way.is_empty() => {
                    let id = under_way.remove(which % under_way.len());
                    state.leave(ms(now), id);
                }
                _ => state.tick(ms(now)),
            }
            let on: Vec<CoreId> =
                state.active.iter().filter_map(|one| one.on).map(|(_, core)| core).collect();
            let distinct: CoreSet = on.iter().copied().collect();
            prop_assert_eq!(distinct.len(), on.len());
            prop_assert_eq!(state.pool.running(), on.len());
            let free: u32 = state.pool.free().iter().sum();
            prop_assert_eq!(free as usize + on.len(), 3);
            prop_assert!(free == 0 || state.active.iter().all(|one| one.on.is_some()));
        }
    }
}

/// A floor of one core that this process may run on.
fn one_core() -> Floor {
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    let core = affinity_of(me).unwrap().iter().next().unwrap();
    let ladder =
        Ladder::new(vec![CoreSpeed::new("only", 1.0, 1.0)], Supply::Fixed(vec![1])).unwrap();
    Floor { ladder, cores: vec![[core].into_iter().collect()], abandon: Nanos::from_secs(3600) }
}

fn affinity() -> CoreSet {
    affinity_of(rustix::thread::gettid().as_raw_nonzero().get()).unwrap()
}

#[test]
fn a_thread_is_on_its_core_from_begin_to_end_and_then_where_it_was() {
    let floor = one_core();
    let core = floor.cores[0].clone();
    let dispatch = Dispatch::start(floor, Box::new(At(ms(1)))).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let before = affinity();
            let mark = dispatch.begin(Nanos::ZERO);
            assert_eq!(affinity(), core);
            drop(mark);
            assert_eq!(affinity(), before);
        });
    });
    assert_eq!(dispatch.take_tally().unwrap().latency.count(), 1);
}

#[test]
fn requests_of_many_threads_have_the_core_one_after_the_other() {
    let dispatch = Dispatch::start(one_core(), Box::new(At(ms(1)))).unwrap();
    let inside = Mutex::new(());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let mark = dispatch.begin(Nanos::ZERO);
                    assert!(inside.try_lock().is_ok(), "two requests on one core");
                    drop(mark);
                }
            });
        }
    });
    assert_eq!((dispatch.take_tally().unwrap().latency.count(), dispatch.active()), (160, 0));
}

#[test]
fn the_core_of_a_thread_that_vanished_is_given_on() {
    let dispatch = Arc::new(Dispatch::start(one_core(), Box::new(At(ms(1)))).unwrap());
    let vanishing = Arc::clone(&dispatch);
    std::thread::spawn(move || std::mem::forget(vanishing.begin(Nanos::ZERO))).join().unwrap();
    // Waits until the dead one is found.
    drop(dispatch.begin(Nanos::ZERO));
    assert_eq!(dispatch.take_tally().unwrap().died, 1);
}

#[test]
fn a_panic_in_a_request_ends_it() {
    let dispatch = Arc::new(Dispatch::start(one_core(), Box::new(At(ms(1)))).unwrap());
    let failing = Arc::clone(&dispatch);
    let ended = std::thread::spawn(move || {
        let _mark = failing.begin(Nanos::ZERO);
        panic!("as a request may");
    });
    assert!(ended.join().is_err());
    drop(dispatch.begin(Nanos::ZERO));
    assert_eq!(dispatch.active(), 0);
}

/// Fails as no dispatcher should.
struct Broken;

impl Dispatcher for Broken {
    fn place(&mut self, _: &DispatchRequest<'_>) -> Answer {
        panic!("as no dispatcher should");
    }
}

#[test]
fn with_a_broken_dispatcher_requests_run_undispatched() {
    let dispatch = Arc::new(Dispatch::start(one_core(), Box::new(Broken)).unwrap());
    let first = Arc::clone(&dispatch);
    assert!(std::thread::spawn(move || first.begin(Nanos::ZERO)).join().is_err());
    let mark = dispatch.begin(Nanos::ZERO);
    assert_eq!(mark.id(), 0, "nothing is known of it");
    drop(mark);
    assert!(dispatch.take_tally().is_none());
}

/// Places this many requests or ages, and fails on the next.
struct Fails(u32);

impl Dispatcher for Fails {
    fn place(&mut self, _: &DispatchRequest<'_>) -> Answer {
        self.0 = self.0.checked_sub(1).expect("a test: the dispatcher fails");
        Answer::on(0, Some(ms(1)))
    }
}

/// How a request ends, or the dispatch of it, whose mark the thread has.
type Way = (&'static str, Floor, Box<dyn Dispatcher>, fn(Dispatch, Mark));

/// Each way into the safe state of a dispatcher, and the usual end.
fn ways() -> [Way; 4] {
    let at = || Box::new(At(Nanos::from_secs(3600)));
    [
        ("its request ends", one_core(), at(), |_, mark| drop(mark)),
        ("the dispatch ends", one_core(), at(), |dispatch, mark| {
            drop(dispatch);
            drop(mark);
        }),
        ("the dispatcher fails", one_core(), Box::new(Fails(1)), |dispatch, mark| {
            while dispatch.take_tally().is_some() {
                std::thread::yield_now();
            }
            drop(mark);
        }),
        ("it takes too long", Floor { abandon: ms(1), ..one_core() }, at(), |dispatch, mark| {
            while dispatch.take_tally().unwrap().abandoned == 0 {
                std::thread::yield_now();
            }
            drop(mark);
        }),
    ]
}

#[test]
fn on_each_way_into_the_safe_state_a_thread_has_the_cores_of_its_owner() {
    let Some(other) = affinity().iter().nth(1) else {
        return lull_testing::skip("the owner of a thread needs a second core to pin it to");
    };
    let owners = CoreSet::from_iter([other]);
    let core = one_core().cores[0].clone();
    let pin = |owners: &CoreSet| {
        let me = rustix::thread::gettid().as_raw_nonzero().get();
        crate::sys::sched::set_affinity(me, owners).unwrap();
    };
    for (way, floor, dispatcher, end) in ways() {
        let dispatch = Dispatch::start(floor, dispatcher).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                pin(&owners);
                let mark = dispatch.begin(Nanos::ZERO);
                assert_eq!(affinity(), core, "{way}");
                end(dispatch, mark);
                affinity()
            });
            assert_eq!(thread.join().unwrap(), owners, "{way}");
        });
    }
    let dispatch = Dispatch::start(one_core(), Box::new(Fails(0))).unwrap();
    let fails = || drop(dispatch.begin(Nanos::ZERO));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin(&owners);
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(fails)).is_err());
            affinity()
        });
        assert_eq!(thread.join().unwrap(), owners, "the dispatcher fails at the first request");
    });
}

#[test]
fn a_thread_started_within_a_request_does_not_keep_the_core_of_that_request() {
    let all = affinity();
    if all.len() < 2 {
        return lull_testing::skip("the cores of a server must not be those of a request");
    }
    let core = one_core().cores[0].clone();
    let dispatch = Dispatch::start(one_core(), Box::new(At(ms(1)))).unwrap();
    std::thread::scope(|scope| {
        let mark = dispatch.begin(Nanos::ZERO);
        let started = scope.spawn(|| {
            let inherited = affinity();
            drop(dispatch.begin(Nanos::ZERO));
            [inherited, affinity()]
        });
        drop(mark);
        assert_eq!(started.join().unwrap(), [core, all]);
    });
}

#[test]
fn a_core_that_is_not_ours_is_refused_at_the_start() {
    let mut floor = one_core();
    floor.cores = vec![[CoreId(1023)].into_iter().collect()];
    let error = Dispatch::start(floor, Box::new(At(ms(1)))).err().unwrap();
    assert!(error.to_string().contains("core 1023"), "{error}");
}
