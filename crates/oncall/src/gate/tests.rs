//! The gate with one thread that plays all workers, as a simulator does.

use super::*;
use crate::{CAP_MAX, Mode};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::vec;
use std::vec::Vec;

struct Memory {
    control: Control,
    slots: Vec<Lease>,
    waiting: Vec<AtomicU64>,
    seats: Vec<Seat>,
}

#[derive(Default)]
struct Woken(RefCell<Vec<u32>>);

impl Wake for Woken {
    fn wake(&self, id: Id, _seat: &Seat) {
        self.0.borrow_mut().push(id.0);
    }
}

impl Woken {
    fn take(&self) -> Vec<u32> {
        self.0.take()
    }
}

impl Memory {
    fn new(connections: usize, settings: &Settings) -> Self {
        let control = Control::default();
        control.set(settings);
        control.beat(NOW);
        Self {
            control,
            slots: (0..CAP_MAX).map(|_| Lease::default()).collect(),
            waiting: (0..connections.div_ceil(64)).map(|_| AtomicU64::default()).collect(),
            seats: (0..connections).map(|_| Seat::default()).collect(),
        }
    }

    fn gate(&self) -> Gate<'_> {
        Gate::new(&self.control, &self.slots, &self.waiting, &self.seats)
    }
}

const NOW: u64 = 1_000_000_000_000;
const MS: u64 = 1_000_000;

fn closed(cap: u32) -> Settings {
    Settings { mode: Mode::Post, cap, ..Settings::default() }
}

/// Lets everybody ask at once; who may run.
fn all_ask(gate: &Gate<'_>, ids: impl Iterator<Item = u32>, woken: &Woken) -> Vec<u32> {
    ids.filter(|id| gate.arrive(Id(*id), false, NOW, woken) == Decision::Run).collect()
}

/// Ends turns until nobody runs any more; the order in which they ran.
fn run_out(gate: &Gate<'_>, mut running: Vec<u32>, woken: &Woken) -> Vec<u32> {
    let mut order = Vec::new();
    while !running.is_empty() {
        let id = running.remove(0);
        order.push(id);
        gate.answered(Id(id), false, NOW, woken);
        for id in woken.take() {
            assert_eq!(gate.check(Id(id), NOW, woken), Decision::Run);
            running.push(id);
        }
    }
    order
}

#[test]
fn while_there_is_room_nobody_waits() {
    let memory = Memory::new(8, &closed(4));
    let (gate, woken) = (memory.gate(), Woken::default());
    assert_eq!(all_ask(&gate, 0..4, &woken), [0, 1, 2, 3]);
    assert_eq!((gate.active(NOW), memory.control.counters().parks), (4, 0));
}

#[test]
fn the_others_run_round_the_ring_each_once() {
    let memory = Memory::new(100, &closed(2));
    let (gate, woken) = (memory.gate(), Woken::default());
    let running = all_ask(&gate, 0..100, &woken);
    assert_eq!(running, [0, 1]);
    let order = run_out(&gate, running, &woken);
    assert_eq!(order, (0..100).collect::<Vec<_>>());
    assert_eq!((gate.active(NOW), memory.control.waiters()), (0, 0));
}

#[test]
fn a_transaction_keeps_its_slot_and_its_later_queries_pass() {
    let memory = Memory::new(2, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    all_ask(&gate, 0..2, &woken);
    gate.answered(Id(0), true, NOW, &woken);
    assert_eq!(gate.arrive(Id(0), true, NOW, &woken), Decision::Run);
    assert!(woken.take().is_empty());
    gate.answered(Id(0), false, NOW, &woken);
    assert_eq!(woken.take(), [1]);
}

#[test]
fn a_slot_that_is_held_too_long_counts_no_more_and_its_holder_runs_on() {
    let memory = Memory::new(3, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    all_ask(&gate, 0..3, &woken);
    let later = NOW + 60 * MS;
    memory.control.beat(later);
    assert_eq!(gate.check(Id(2), NOW + 10 * MS, &woken), Decision::Park);
    assert_eq!(gate.check(Id(2), later, &woken), Decision::Park, "its turn is after 1's");
    assert_eq!(woken.take(), [1]);
    assert_eq!(gate.check(Id(1), later, &woken), Decision::Run);
    // The first ends its transaction late: the slot is not its to give.
    gate.answered(Id(0), false, later, &woken);
    assert!(woken.take().is_empty());
    gate.answered(Id(1), false, later, &woken);
    assert_eq!(woken.take(), [2]);
    assert_eq!(memory.control.counters().overruns, 1);
}

#[test]
fn a_silent_agent_opens_the_gate_for_all() {
    let memory = Memory::new(64, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    all_ask(&gate, 0..64, &woken);
    let later = NOW + 71 * MS;
    assert_eq!(gate.check(Id(5), later, &woken), Decision::Run);
    let woken: BTreeSet<u32> = woken.take().into_iter().collect();
    assert_eq!(woken, (1..64).collect());
    assert_eq!(gate.arrive(Id(0), false, later, &Woken::default()), Decision::Run);
}

#[test]
fn one_waiter_looks_within_28_ms_and_many_share_the_looking() {
    let memory = Memory::new(512, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    assert!(gate.deadline_ns(Id(7), NOW) <= NOW + 29 * MS);
    all_ask(&gate, 0..512, &woken);
    let mut looks: Vec<u64> = (1..512).map(|id| gate.deadline_ns(Id(id), NOW)).collect();
    looks.sort_unstable();
    let gaps = looks.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(gaps.max().unwrap() <= 10 * MS, "no long time without a look");
    assert!(looks[looks.len() - 1] - looks[0] > 900 * MS, "and not all at once");
}

#[test]
fn who_is_exempt_or_has_no_seat_runs_without_a_slot() {
    let memory = Memory::new(2, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    all_ask(&gate, 0..1, &woken);
    assert_eq!(gate.arrive(Id(1), true, NOW, &woken), Decision::Run);
    assert_eq!(gate.arrive(Id(2), false, NOW, &woken), Decision::Run);
    assert_eq!(gate.active(NOW), 1);
}

#[test]
fn a_connection_without_budget_misses_its_turns_until_it_has_one() {
    let memory = Memory::new(3, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.seats[1].set_budget(Some(0));
    let running = all_ask(&gate, 0..3, &woken);
    assert_eq!(run_out(&gate, running, &woken), [0, 2]);
    memory.seats[1].set_budget(Some(1));
    gate.pump(NOW, &woken);
    assert_eq!(woken.take(), [1]);
}

#[test]
fn a_connection_without_budget_waits_though_nobody_else_does() {
    let memory = Memory::new(2, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.seats[0].set_budget(Some(0));
    assert_eq!(gate.arrive(Id(0), false, NOW, &woken), Decision::Park);
    assert_eq!(gate.arrive(Id(1), false, NOW, &woken), Decision::Run, "there is a slot");
}

/// Answers a query that runs, and asks the next one.
fn goes_on(gate: &Gate<'_>, id: u32, woken: &Woken) -> Decision {
    gate.answered(Id(id), false, NOW, woken);
    gate.arrive(Id(id), false, NOW, woken)
}

#[test]
fn without_a_limit_turns_follow_each_other() {
    let memory = Memory::new(1, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    all_ask(&gate, 0..1, &woken);
    assert!((0..1000).all(|_| goes_on(&gate, 0, &woken) == Decision::Run));
}

#[test]
fn with_one_query_left_a_connection_has_one_turn_until_it_is_given_more() {
    let memory = Memory::new(2, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.seats[0].allow(None, Some(1));
    assert_eq!(all_ask(&gate, 0..1, &woken), [0]);
    assert_eq!(goes_on(&gate, 0, &woken), Decision::Park, "though nobody else is there");
    gate.pump(NOW, &woken);
    assert_eq!(gate.check(Id(0), NOW, &woken), Decision::Park);
    memory.seats[0].allow(None, Some(2));
    gate.pump(NOW, &woken);
    assert_eq!((woken.take(), gate.check(Id(0), NOW, &woken)), (vec![0], Decision::Run));
    assert_eq!(goes_on(&gate, 0, &woken), Decision::Run, "the second");
    assert_eq!(goes_on(&gate, 0, &woken), Decision::Park);
}

#[test]
fn whose_queries_are_used_up_misses_its_turns_among_others_until_it_is_given_more() {
    let memory = Memory::new(3, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.seats[0].allow(None, Some(1));
    assert_eq!(all_ask(&gate, 0..3, &woken), [0]);
    let mut runs = 0;
    let mut order = Vec::new();
    for turn in 0..6 {
        if turn == 4 {
            memory.seats[0].allow(None, Some(1));
        }
        assert_eq!(goes_on(&gate, runs, &woken), Decision::Park);
        runs = woken.take()[0];
        assert_eq!(gate.check(Id(runs), NOW, &woken), Decision::Run);
        order.push(runs);
    }
    assert_eq!((order, memory.seats[0].left()), (vec![1, 2, 1, 2, 0, 1], Some(0)));
}

#[test]
fn what_a_turn_does_not_use_does_not_come_back_before_the_next_decision() {
    let memory = Memory::new(1, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.seats[0].allow(Some(3), Some(4));
    all_ask(&gate, 0..1, &woken);
    assert_eq!(goes_on(&gate, 0, &woken), Decision::Run, "the same turn");
    gate.answered(Id(0), false, NOW, &woken);
    gate.idle(Id(0), false, NOW, &woken);
    assert_eq!(memory.seats[0].left(), Some(1));
    all_ask(&gate, 0..1, &woken);
    assert_eq!(goes_on(&gate, 0, &woken), Decision::Park, "a turn of one, and none after");
    memory.seats[0].allow(Some(3), Some(4));
    assert_eq!(gate.check(Id(0), NOW, &woken), Decision::Run);
}

#[test]
fn who_is_admitted_as_its_queries_are_taken_away_gives_the_slot_to_the_next() {
    let memory = Memory::new(3, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    all_ask(&gate, 0..3, &woken);
    gate.answered(Id(0), false, NOW, &woken);
    assert_eq!(woken.take(), [1]);
    memory.seats[1].allow(None, Some(0));
    assert_eq!(gate.check(Id(1), NOW + MS, &woken), Decision::Park);
    assert_eq!(woken.take(), [2]);
    assert_eq!(memory.seats[1].asked_ns(), NOW, "it waits since it asked");
    assert_eq!(gate.check(Id(2), NOW, &woken), Decision::Run);
    gate.answered(Id(2), false, NOW, &woken);
    assert_eq!((gate.active(NOW), memory.control.waiters()), (0, 1));
}

#[test]
fn a_new_connection_is_not_held_to_what_the_one_before_it_had() {
    let memory = Memory::new(1, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.seats[0].allow(Some(0), Some(0));
    gate.open_seat(Id(0));
    all_ask(&gate, 0..1, &woken);
    assert_eq!(goes_on(&gate, 0, &woken), Decision::Run);
}

#[test]
fn those_who_go_first_do_and_the_ring_goes_on_where_it_was() {
    let memory = Memory::new(6, &Settings { ranks: true, ..closed(1) });
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.seats[1].set_first(true);
    let mut running = all_ask(&gate, [5, 2, 3, 4].into_iter(), &woken);
    assert_eq!(running, [5]);
    gate.answered(Id(5), false, NOW, &woken);
    assert_eq!(woken.take(), [2], "the ring begins");
    gate.check(Id(2), NOW, &woken);
    assert_eq!(gate.arrive(Id(1), false, NOW, &woken), Decision::Park);
    running = vec![2];
    assert_eq!(run_out(&gate, running, &woken), [2, 1, 3, 4]);
}

#[test]
fn a_turn_lasts_as_many_queries_as_its_budget_or_until_there_is_none() {
    let memory = Memory::new(2, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.seats[0].set_budget(Some(3));
    all_ask(&gate, 0..2, &woken);
    for _ in 0..2 {
        gate.answered(Id(0), false, NOW, &woken);
        assert_eq!(gate.arrive(Id(0), false, NOW, &woken), Decision::Run);
    }
    assert!(woken.take().is_empty());
    gate.answered(Id(0), false, NOW, &woken);
    assert_eq!(woken.take(), [1]);
    assert_eq!(gate.arrive(Id(0), false, NOW, &woken), Decision::Park);
    gate.check(Id(1), NOW, &woken);
    memory.seats[0].set_budget(Some(3));
    gate.answered(Id(1), false, NOW, &woken);
    gate.check(Id(0), NOW, &woken);
    assert_eq!(gate.arrive(Id(1), false, NOW, &woken), Decision::Park);
    woken.take();
    gate.idle(Id(0), false, NOW, &woken);
    assert_eq!(woken.take(), [1], "a turn ends when no query is at hand");
}

#[test]
fn rounds_are_a_pause_apart_and_who_comes_late_waits_for_the_next() {
    let settings = Settings { isr_delay_ns: 2 * MS, joins: false, ..closed(2) };
    let memory = Memory::new(4, &settings);
    let (gate, woken) = (memory.gate(), Woken::default());
    assert_eq!(all_ask(&gate, 0..3, &woken), [0], "the first begins a round");
    // There is a free slot, but the round has begun without them.
    assert_eq!((gate.active(NOW), memory.control.waiters()), (1, 2));
    woken.take();
    gate.answered(Id(0), false, NOW, &woken);
    assert_eq!((woken.take(), memory.control.counters().rounds), (Vec::new(), 1));
    let deadline = gate.deadline_ns(Id(1), NOW);
    let pause = NOW + 2 * MS - 1024..NOW + 3 * MS;
    assert!(pause.contains(&deadline), "it looks at the pause's end");
    assert_eq!(gate.check(Id(1), NOW + MS, &woken), Decision::Park);
    assert_eq!(gate.check(Id(1), NOW + 2 * MS, &woken), Decision::Run);
    assert_eq!(woken.take(), [1, 2]);
}

#[test]
fn without_a_pause_the_next_round_begins_while_the_last_ones_run() {
    let settings = Settings { joins: false, ..closed(1) };
    let memory = Memory::new(4, &settings);
    let (gate, woken) = (memory.gate(), Woken::default());
    let running = all_ask(&gate, [2, 1, 3].into_iter(), &woken);
    assert_eq!(running, [2]);
    gate.answered(Id(2), false, NOW, &woken);
    assert_eq!(woken.take(), [1]);
    gate.check(Id(1), NOW, &woken);
    // 2 is ahead of 3 on the ring by its wait, but its round is the next.
    assert_eq!(gate.arrive(Id(2), false, NOW, &woken), Decision::Park);
    gate.answered(Id(1), false, NOW, &woken);
    assert_eq!(woken.take(), [3]);
    gate.check(Id(3), NOW, &woken);
    gate.answered(Id(3), false, NOW, &woken);
    assert_eq!(woken.take(), [2]);
}

#[test]
fn who_leaves_or_is_expelled_is_passed_over() {
    let memory = Memory::new(4, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    all_ask(&gate, 0..4, &woken);
    assert!(gate.leave(Id(1)));
    gate.expel(Id(2), &woken);
    assert_eq!(woken.take(), [2]);
    assert_eq!(gate.check(Id(2), NOW, &woken), Decision::Run);
    gate.close_seat(Id(0), NOW, &woken);
    assert_eq!(woken.take(), [3]);
    assert!(!gate.leave(Id(3)), "it was admitted");
}

#[test]
fn nobody_waits_longer_than_the_longest() {
    let memory = Memory::new(2, &Settings { park_max_ns: 20 * MS, ..closed(1) });
    let (gate, woken) = (memory.gate(), Woken::default());
    all_ask(&gate, 0..2, &woken);
    assert_eq!(gate.check(Id(1), NOW + 19 * MS, &woken), Decision::Park);
    assert_eq!(gate.check(Id(1), NOW + 20 * MS, &woken), Decision::Run);
    assert_eq!(memory.control.counters().expired, 1);
}

fn on_call(cap: u32) -> Settings {
    Settings { mode: Mode::Epoll, isr_delay_ns: 2 * MS, ..closed(cap) }
}

#[test]
fn a_resting_worker_is_called_once_its_query_has_come_and_a_slot_is_free() {
    let memory = Memory::new(4, &on_call(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    assert!((0..3).all(|id| gate.rest(Id(id), NOW)));
    assert_eq!(gate.check(Id(0), NOW, &woken), Decision::Park, "it looks in vain");
    [2, 0].into_iter().for_each(|id| gate.came(Id(id), NOW, &woken));
    assert_eq!((woken.take(), memory.control.waiters()), (Vec::new(), 2));
    gate.pump(NOW, &woken);
    assert_eq!(woken.take(), [0], "nobody keeps a pause but who looks at the sockets");
    assert_eq!(gate.check(Id(0), NOW, &woken), Decision::Run);
    assert_eq!(gate.arrive(Id(0), false, NOW, &woken), Decision::Run, "its query has the slot");
    gate.answered(Id(0), false, NOW, &woken);
    assert_eq!(woken.take(), [2]);
    assert!(memory.seats[1].is_resting());
    let counters = memory.control.counters();
    assert_eq!((counters.calls, counters.admissions), (2, 2));
}

#[test]
fn nobody_rests_who_holds_a_slot_or_at_a_gate_that_does_not_call() {
    let memory = Memory::new(2, &on_call(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    assert_eq!(gate.arrive(Id(0), false, NOW, &woken), Decision::Run);
    assert!(!gate.rest(Id(0), NOW));
    assert!(!gate.rest(Id(1), NOW + 71 * MS), "the agent is silent");
    assert!(!gate.rest(Id(2), NOW), "there is no such seat");
    memory.control.set(&closed(1));
    assert!(!gate.rest(Id(1), NOW));
}

#[test]
fn a_resting_worker_runs_without_a_slot_when_the_agent_is_silent_or_its_connection_ends() {
    let memory = Memory::new(3, &on_call(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    assert!((0..3).all(|id| gate.rest(Id(id), NOW)));
    gate.expel(Id(2), &woken);
    let later = NOW + 71 * MS;
    gate.came(Id(0), later, &woken);
    gate.pump(later, &woken);
    assert_eq!(woken.take(), [2, 0]);
    for id in [0, 2] {
        assert_eq!(gate.check(Id(id), later, &woken), Decision::Run);
    }
    assert!(memory.seats[1].is_resting() && gate.rise(Id(1)));
    assert_eq!((gate.active(later), memory.control.waiters()), (0, 0));
}

#[test]
fn who_was_called_and_has_waited_for_as_long_as_anybody_may_is_relieved() {
    let memory = Memory::new(2, &Settings { park_max_ns: 20 * MS, ..on_call(1) });
    let (gate, woken) = (memory.gate(), Woken::default());
    gate.arrive(Id(0), false, NOW, &woken);
    assert!(gate.rest(Id(1), NOW));
    gate.came(Id(1), NOW, &woken);
    gate.relieve(NOW + 19 * MS, &woken);
    assert_eq!(woken.take(), []);
    gate.relieve(NOW + 20 * MS, &woken);
    assert_eq!((woken.take(), memory.control.counters().expired), (vec![1], 1));
}

/// What a worker of the random plays does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Resting,
    Parked,
    Running,
}

/// Those that were woken run if the gate lets them.
fn wake(gate: &Gate<'_>, woken: &Woken, phases: &mut [Phase; 12], now: u64) {
    for id in woken.take() {
        let phase = &mut phases[id as usize];
        if matches!(phase, Phase::Parked | Phase::Resting)
            && gate.check(Id(id), now, woken) == Decision::Run
        {
            *phase = Phase::Running;
        }
    }
}

/// Everybody ends what runs and asks for what it waits for.
fn settle(gate: &Gate<'_>, woken: &Woken, phases: &mut [Phase; 12], now: u64) {
    for id in 0..12u32 {
        match phases[id as usize] {
            Phase::Running => {
                gate.answered(Id(id), false, now, woken);
                gate.idle(Id(id), false, now, woken);
                phases[id as usize] = Phase::Idle;
            }
            Phase::Resting => {
                gate.came(Id(id), now, woken);
                gate.relieve(now, woken);
            }
            Phase::Parked if gate.check(Id(id), now, woken) == Decision::Run => {
                phases[id as usize] = Phase::Running;
            }
            _ => {}
        }
        wake(gate, woken, phases, now);
    }
}

proptest! {
    #[test]
    fn no_order_of_events_breaks_the_cap_or_loses_a_worker(
        cap in 1u32..5,
        joins: bool,
        batch in 1u32..3,
        isr_delay_ns in prop_oneof![Just(0), Just(MS)],
        mode in prop_oneof![Just(Mode::Post), Just(Mode::Epoll)],
        events in prop::collection::vec((0u32..12, 0u8..9), 0..300),
    ) {
        let settings = Settings { mode, joins, batch, isr_delay_ns, ..closed(cap) };
        let memory = Memory::new(12, &settings);
        let (gate, woken) = (memory.gate(), Woken::default());
        let mut phases = [Phase::Idle; 12];
        let mut now = NOW;
        for (id, action) in events {
            memory.control.beat(now);
            let phase = phases[id as usize];
            match (phase, action) {
                (Phase::Idle, 0..5) => {
                    let may = gate.arrive(Id(id), false, now, &woken);
                    phases[id as usize] =
                        if may == Decision::Run { Phase::Running } else { Phase::Parked };
                }
                (Phase::Running, 0..4) => {
                    gate.answered(Id(id), false, now, &woken);
                    gate.idle(Id(id), false, now, &woken);
                    phases[id as usize] = Phase::Idle;
                }
                (Phase::Running, 4) => gate.answered(Id(id), true, now, &woken),
                (Phase::Parked, 0) if gate.leave(Id(id)) => phases[id as usize] = Phase::Idle,
                (Phase::Idle, 8) if gate.rest(Id(id), now) => phases[id as usize] = Phase::Resting,
                (Phase::Resting, 0) if gate.rise(Id(id)) => phases[id as usize] = Phase::Idle,
                (Phase::Resting, 1..=6) => {
                    gate.came(Id(id), now, &woken);
                    gate.pump(now, &woken);
                }
                (_, 7) => now += MS,
                _ => {}
            }
            wake(&gate, &woken, &mut phases, now);
            prop_assert!(gate.active(now) <= cap as usize);
        }
        // Once everybody ends, everybody has run: time alone brings the rest.
        for _ in 0..200 {
            now += 2 * MS;
            memory.control.beat(now);
            settle(&gate, &woken, &mut phases, now);
        }
        prop_assert_eq!(phases, [Phase::Idle; 12]);
        prop_assert_eq!((gate.active(now), memory.control.waiters()), (0, 0));
    }

    #[test]
    fn no_connection_has_more_queries_answered_than_its_last_decision_gave_it(
        cap in 1u32..4,
        batch in 1u32..4,
        events in prop::collection::vec((0u32..6, 0u8..12, 0u32..6), 0..300),
    ) {
        let memory = Memory::new(6, &Settings { batch, ..closed(cap) });
        let (gate, woken) = (memory.gate(), Woken::default());
        let mut phases = [Phase::Idle; 12];
        // Given by the last decision, and left of the turn that each is in.
        let (mut given, mut turn) = ([u32::MAX; 6], [0; 6]);
        for (id, action, draw) in events {
            let index = id as usize;
            match (phases[index], action) {
                (_, 0) => {
                    given[index] = if draw == 5 { u32::MAX } else { draw };
                    let queries = Some(draw).filter(|draw| *draw < 5);
                    memory.seats[index].allow(None, queries);
                    gate.pump(NOW, &woken);
                }
                (Phase::Idle, 1..7) => {
                    let may = gate.arrive(Id(id), false, NOW, &woken);
                    phases[index] =
                        if may == Decision::Run { Phase::Running } else { Phase::Parked };
                    // One that was admitted as it came was told to run already.
                    woken.0.borrow_mut().retain(|woken| *woken != id || may == Decision::Park);
                }
                (Phase::Idle, 7) => gate.idle(Id(id), false, NOW, &woken),
                (Phase::Running, _) => {
                    gate.answered(Id(id), false, NOW, &woken);
                    turn[index] -= 1;
                    prop_assert_eq!(memory.seats[index].is_admitted(), turn[index] > 0);
                    phases[index] = Phase::Idle;
                }
                _ => {}
            }
            wake(&gate, &woken, &mut phases, NOW);
            for (index, seat) in memory.seats.iter().enumerate() {
                if !seat.is_admitted() {
                    turn[index] = 0;
                } else if turn[index] == 0 {
                    turn[index] = batch.min(given[index]);
                    prop_assert!(turn[index] > 0, "nobody has a turn without a query");
                    given[index] -= if given[index] == u32::MAX { 0 } else { turn[index] };
                }
                let left = Some(given[index]).filter(|left| *left != u32::MAX);
                prop_assert_eq!(seat.left(), left);
            }
        }
        // Once there is no limit and no turn is kept, everybody has its own.
        memory.seats.iter().for_each(|seat| seat.allow(None, None));
        for id in (0..6).filter(|id| phases[*id as usize] == Phase::Idle) {
            gate.idle(Id(id), false, NOW, &woken);
        }
        gate.pump(NOW, &woken);
        wake(&gate, &woken, &mut phases, NOW);
        (0..20).for_each(|_| settle(&gate, &woken, &mut phases, NOW));
        prop_assert_eq!(phases, [Phase::Idle; 12]);
    }

    #[test]
    fn whatever_stands_in_memory_every_call_ends_and_everybody_runs_in_time(
        words in prop::collection::vec(any::<u64>(), 40),
        ids in prop::collection::vec(0u32..200, 1..20),
    ) {
        let memory = Memory::new(64, &closed(2));
        memory.hostile(&words);
        let (gate, woken) = (memory.gate(), Woken::default());
        for id in ids {
            let mut now = NOW;
            let mut may = gate.arrive(Id(id), false, now, &woken);
            for _ in 0..200 {
                if may == Decision::Run {
                    break;
                }
                now = gate.deadline_ns(Id(id), now);
                may = gate.check(Id(id), now, &woken);
            }
            prop_assert_eq!(may, Decision::Run);
            gate.answered(Id(id), false, now, &woken);
            gate.close_seat(Id(id), now, &woken);
        }
    }
}

impl Memory {
    /// Fills everything that a worker reads with what does not belong there.
    fn hostile(&self, words: &[u64]) {
        use crate::sync::Ordering::Relaxed;
        let mut words = words.iter().copied().cycle();
        let mut next = || words.next().unwrap();
        for (slot, word) in self.slots.iter().zip(words_of(&mut next, self.slots.len())) {
            let free = slot.read();
            slot.take(free, word as u32, word);
        }
        for word in &self.waiting {
            word.store(next(), Relaxed);
        }
        for seat in &self.seats {
            seat.word().0.store(next() as u32, Relaxed);
            let left = next() as u32;
            let left = [None, Some(0), Some(1), Some(left)][left as usize % 4];
            seat.allow(Some(next() as u32 & 1), left);
        }
        self.control.ring.waiters.store(next() as u32, Relaxed);
        self.control.ring.set_cursor(next() as usize);
        let turn = self.control.ring.turn();
        self.control.ring.change(turn, turn.next(next()));
    }
}

fn words_of(next: &mut impl FnMut() -> u64, count: usize) -> Vec<u64> {
    (0..count).map(|_| next()).collect()
}
