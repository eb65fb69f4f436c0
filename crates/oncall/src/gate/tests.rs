//! The gate with one thread that acts as all workers, as a simulator does.

mod classes;
mod counts;
use super::*;
use crate::{CAP_MAX, Mode};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::{vec, vec::Vec};

struct Memory {
    control: Control,
    slots: Vec<Lease>,
    waiting: Vec<AtomicU64>,
    entries: Vec<GateEntry>,
}

#[derive(Default)]
struct Woken(RefCell<Vec<u32>>);

impl Wake for Woken {
    fn wake(&self, id: Id, _entry: &GateEntry) {
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
            entries: (0..connections).map(|_| GateEntry::default()).collect(),
        }
    }

    fn gate(&self) -> Gate<'_> {
        Gate::new(&self.control, &self.slots, &self.waiting, &self.entries)
    }
}

const NOW: u64 = 1_000_000_000_000;
const MS: u64 = 1_000_000;

fn closed(cap: u32) -> Settings {
    Settings { mode: Mode::Post, cap, ..Settings::default() }
}

/// Lets workers arrive at once. Returns those that may run.
fn all_arrive(gate: &Gate<'_>, ids: impl Iterator<Item = u32>, woken: &Woken) -> Vec<u32> {
    ids.filter(|id| gate.arrive(Id(*id), false, NOW, woken) == Decision::Run).collect()
}

/// Ends turns until no worker runs. Returns the order in which they ran.
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
fn no_worker_waits_while_slots_are_free() {
    let memory = Memory::new(8, &closed(4));
    let (gate, woken) = (memory.gate(), Woken::default());
    assert_eq!(all_arrive(&gate, 0..4, &woken), [0, 1, 2, 3]);
    assert_eq!((gate.active(NOW), memory.control.counters().parks), (4, 0));
}

#[test]
fn waiting_workers_run_once_each_round_the_ring() {
    let memory = Memory::new(100, &closed(2));
    let (gate, woken) = (memory.gate(), Woken::default());
    let running = all_arrive(&gate, 0..100, &woken);
    assert_eq!(running, [0, 1]);
    let order = run_out(&gate, running, &woken);
    assert_eq!(order, (0..100).collect::<Vec<_>>());
    assert_eq!((gate.active(NOW), memory.control.waiters()), (0, 0));
}

#[test]
fn a_waiting_connection_that_a_dead_process_has_lost_is_put_back_into_the_ring() {
    let memory = Memory::new(3, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    assert_eq!(all_arrive(&gate, 0..3, &woken), [0]);
    // It took the second one out and died before it could give it the slot.
    assert!(gate.dequeue(Id(1)));
    (0..3).for_each(|id| gate.requeue(Id(id)));
    assert_eq!(memory.control.waiters(), 2, "one that does not wait is not put in");
    assert_eq!(run_out(&gate, vec![0], &woken), [0, 1, 2]);
}

#[test]
fn a_transaction_keeps_its_slot_and_its_later_queries_pass() {
    let memory = Memory::new(2, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    all_arrive(&gate, 0..2, &woken);
    gate.answered(Id(0), true, NOW, &woken);
    assert_eq!(gate.arrive(Id(0), true, NOW, &woken), Decision::Run);
    assert!(woken.take().is_empty());
    gate.answered(Id(0), false, NOW, &woken);
    assert_eq!(woken.take(), [1]);
}

#[test]
fn a_slot_whose_lease_expired_does_not_count_and_its_holder_continues() {
    let memory = Memory::new(3, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    all_arrive(&gate, 0..3, &woken);
    let later = NOW + 60 * MS;
    memory.control.beat(later);
    assert_eq!(gate.check(Id(2), NOW + 10 * MS, &woken), Decision::Park);
    assert_eq!(gate.check(Id(2), later, &woken), Decision::Park, "its turn is after 1's");
    assert_eq!(woken.take(), [1]);
    assert_eq!(gate.check(Id(1), later, &woken), Decision::Run);
    // The first ends its transaction late: the slot is no longer its own.
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
    all_arrive(&gate, 0..64, &woken);
    let later = NOW + 71 * MS;
    assert_eq!(gate.check(Id(5), later, &woken), Decision::Run);
    let woken: BTreeSet<u32> = woken.take().into_iter().collect();
    assert_eq!(woken, (1..64).collect());
    assert_eq!(gate.arrive(Id(0), false, later, &Woken::default()), Decision::Run);
}

#[test]
fn one_waiting_worker_checks_within_28_ms_and_many_share_the_checks() {
    let memory = Memory::new(512, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    assert!(gate.deadline_ns(Id(7), NOW) <= NOW + 29 * MS);
    all_arrive(&gate, 0..512, &woken);
    let mut checks: Vec<u64> = (1..512).map(|id| gate.deadline_ns(Id(id), NOW)).collect();
    checks.sort_unstable();
    let gaps = checks.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(gaps.max().unwrap() <= 10 * MS, "no long time without a check");
    assert!(checks[checks.len() - 1] - checks[0] > 900 * MS, "and not all at once");
}

#[test]
fn an_exempt_worker_or_one_without_an_entry_runs_without_a_slot() {
    let memory = Memory::new(2, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    all_arrive(&gate, 0..1, &woken);
    assert_eq!(gate.arrive(Id(1), true, NOW, &woken), Decision::Run);
    assert_eq!(gate.arrive(Id(2), false, NOW, &woken), Decision::Run);
    assert_eq!(gate.active(NOW), 1);
}

#[test]
fn a_connection_without_budget_misses_its_turns_until_it_has_one() {
    let memory = Memory::new(3, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.entries[1].set_budget(Some(0));
    let running = all_arrive(&gate, 0..3, &woken);
    assert_eq!(run_out(&gate, running, &woken), [0, 2]);
    memory.entries[1].set_budget(Some(1));
    gate.pump(NOW, &woken);
    assert_eq!(woken.take(), [1]);
}

#[test]
fn a_connection_without_budget_waits_although_no_other_does() {
    let memory = Memory::new(2, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.entries[0].set_budget(Some(0));
    assert_eq!(gate.arrive(Id(0), false, NOW, &woken), Decision::Park);
    assert_eq!(gate.arrive(Id(1), false, NOW, &woken), Decision::Run, "there is a slot");
}

/// Ends a worker's query, and lets it arrive with the next one.
fn next_query(gate: &Gate<'_>, id: u32, woken: &Woken) -> Decision {
    gate.answered(Id(id), false, NOW, woken);
    gate.arrive(Id(id), false, NOW, woken)
}

#[test]
fn without_a_limit_turns_follow_each_other() {
    let memory = Memory::new(1, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    all_arrive(&gate, 0..1, &woken);
    assert!((0..1000).all(|_| next_query(&gate, 0, &woken) == Decision::Run));
}

#[test]
fn with_one_query_left_a_connection_has_one_turn_until_it_is_given_more() {
    let memory = Memory::new(2, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.entries[0].allow(None, Some(1));
    assert_eq!(all_arrive(&gate, 0..1, &woken), [0]);
    assert_eq!(next_query(&gate, 0, &woken), Decision::Park, "although no other worker is there");
    gate.pump(NOW, &woken);
    assert_eq!(gate.check(Id(0), NOW, &woken), Decision::Park);
    memory.entries[0].allow(None, Some(2));
    gate.pump(NOW, &woken);
    assert_eq!((woken.take(), gate.check(Id(0), NOW, &woken)), (vec![0], Decision::Run));
    assert_eq!(next_query(&gate, 0, &woken), Decision::Run, "the second");
    assert_eq!(next_query(&gate, 0, &woken), Decision::Park);
}

#[test]
fn a_connection_without_queries_left_misses_its_turns_among_others_until_it_is_given_more() {
    let memory = Memory::new(3, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.entries[0].allow(None, Some(1));
    assert_eq!(all_arrive(&gate, 0..3, &woken), [0]);
    let mut runs = 0;
    let mut order = Vec::new();
    for turn in 0..6 {
        if turn == 4 {
            memory.entries[0].allow(None, Some(1));
        }
        assert_eq!(next_query(&gate, runs, &woken), Decision::Park);
        runs = woken.take()[0];
        assert_eq!(gate.check(Id(runs), NOW, &woken), Decision::Run);
        order.push(runs);
    }
    assert_eq!((order, memory.entries[0].left()), (vec![1, 2, 1, 2, 0, 1], Some(0)));
}

#[test]
fn queries_that_a_turn_does_not_use_are_lost_until_the_next_decision() {
    let memory = Memory::new(1, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.entries[0].allow(Some(3), Some(4));
    all_arrive(&gate, 0..1, &woken);
    assert_eq!(next_query(&gate, 0, &woken), Decision::Run, "the same turn");
    gate.answered(Id(0), false, NOW, &woken);
    gate.idle(Id(0), false, NOW, &woken);
    assert_eq!(memory.entries[0].left(), Some(1));
    all_arrive(&gate, 0..1, &woken);
    assert_eq!(next_query(&gate, 0, &woken), Decision::Park, "a turn of one, and none after");
    memory.entries[0].allow(Some(3), Some(4));
    assert_eq!(gate.check(Id(0), NOW, &woken), Decision::Run);
}

#[test]
fn a_worker_admitted_while_its_queries_are_withdrawn_passes_its_slot_on() {
    let memory = Memory::new(3, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    all_arrive(&gate, 0..3, &woken);
    gate.answered(Id(0), false, NOW, &woken);
    assert_eq!(woken.take(), [1]);
    memory.entries[1].allow(None, Some(0));
    assert_eq!(gate.check(Id(1), NOW + MS, &woken), Decision::Park);
    assert_eq!(woken.take(), [2]);
    assert_eq!(memory.entries[1].waiting_since_ns(), NOW, "it waits since it arrived");
    assert_eq!(gate.check(Id(2), NOW, &woken), Decision::Run);
    gate.answered(Id(2), false, NOW, &woken);
    assert_eq!((gate.active(NOW), memory.control.waiters()), (0, 1));
}

#[test]
fn a_new_connection_does_not_inherit_the_limits_of_the_one_before() {
    let memory = Memory::new(1, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.entries[0].allow(Some(0), Some(0));
    gate.open_connection(Id(0));
    all_arrive(&gate, 0..1, &woken);
    assert_eq!(next_query(&gate, 0, &woken), Decision::Run);
}

#[test]
fn prioritised_connections_go_first_and_the_ring_continues_where_it_was() {
    let memory = Memory::new(6, &Settings { ranks: true, ..closed(1) });
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.entries[1].set_first(true);
    let mut running = all_arrive(&gate, [5, 2, 3, 4].into_iter(), &woken);
    assert_eq!(running, [5]);
    gate.answered(Id(5), false, NOW, &woken);
    assert_eq!(woken.take(), [2], "the ring begins");
    gate.check(Id(2), NOW, &woken);
    assert_eq!(gate.arrive(Id(1), false, NOW, &woken), Decision::Park);
    running = vec![2];
    assert_eq!(run_out(&gate, running, &woken), [2, 1, 3, 4]);
}

#[test]
fn a_turn_lasts_for_its_budget_or_until_there_is_no_query() {
    let memory = Memory::new(2, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    memory.entries[0].set_budget(Some(3));
    all_arrive(&gate, 0..2, &woken);
    for _ in 0..2 {
        gate.answered(Id(0), false, NOW, &woken);
        assert_eq!(gate.arrive(Id(0), false, NOW, &woken), Decision::Run);
    }
    assert!(woken.take().is_empty());
    gate.answered(Id(0), false, NOW, &woken);
    assert_eq!(woken.take(), [1]);
    assert_eq!(gate.arrive(Id(0), false, NOW, &woken), Decision::Park);
    gate.check(Id(1), NOW, &woken);
    memory.entries[0].set_budget(Some(3));
    gate.answered(Id(1), false, NOW, &woken);
    gate.check(Id(0), NOW, &woken);
    assert_eq!(gate.arrive(Id(1), false, NOW, &woken), Decision::Park);
    woken.take();
    gate.idle(Id(0), false, NOW, &woken);
    assert_eq!(woken.take(), [1], "a turn ends when no query is at hand");
}

#[test]
fn rounds_are_a_pause_apart_and_a_late_worker_waits_for_the_next() {
    let settings = Settings { isr_delay_ns: 2 * MS, joins: false, ..closed(2) };
    let memory = Memory::new(4, &settings);
    let (gate, woken) = (memory.gate(), Woken::default());
    assert_eq!(all_arrive(&gate, 0..3, &woken), [0], "the first begins a round");
    // There is a free slot, but the round has begun without them.
    assert_eq!((gate.active(NOW), memory.control.waiters()), (1, 2));
    woken.take();
    gate.answered(Id(0), false, NOW, &woken);
    assert_eq!((woken.take(), memory.control.counters().rounds), (Vec::new(), 1));
    let deadline = gate.deadline_ns(Id(1), NOW);
    let pause = NOW + 2 * MS - 1024..NOW + 3 * MS;
    assert!(pause.contains(&deadline), "it checks at the end of the pause");
    assert_eq!(gate.check(Id(1), NOW + MS, &woken), Decision::Park);
    assert_eq!(gate.check(Id(1), NOW + 2 * MS, &woken), Decision::Run);
    assert_eq!(woken.take(), [1, 2]);
}

#[test]
fn without_a_pause_the_next_round_begins_while_the_last_ones_run() {
    let settings = Settings { joins: false, ..closed(1) };
    let memory = Memory::new(4, &settings);
    let (gate, woken) = (memory.gate(), Woken::default());
    let running = all_arrive(&gate, [2, 1, 3].into_iter(), &woken);
    assert_eq!(running, [2]);
    gate.answered(Id(2), false, NOW, &woken);
    assert_eq!(woken.take(), [1]);
    gate.check(Id(1), NOW, &woken);
    // 2 precedes 3 on the ring, but its turn is in the next round.
    assert_eq!(gate.arrive(Id(2), false, NOW, &woken), Decision::Park);
    gate.answered(Id(1), false, NOW, &woken);
    assert_eq!(woken.take(), [3]);
    gate.check(Id(3), NOW, &woken);
    gate.answered(Id(3), false, NOW, &woken);
    assert_eq!(woken.take(), [2]);
}

#[test]
fn a_worker_that_leaves_or_is_expelled_is_passed_over() {
    let memory = Memory::new(4, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    all_arrive(&gate, 0..4, &woken);
    assert!(gate.leave(Id(1)));
    gate.evict(Id(2), &woken);
    assert_eq!(woken.take(), [2]);
    assert_eq!(gate.check(Id(2), NOW, &woken), Decision::Run);
    gate.close_connection(Id(0), NOW, &woken);
    assert_eq!(woken.take(), [3]);
    assert!(!gate.leave(Id(3)), "it was admitted");
}

#[test]
fn no_worker_waits_longer_than_the_longest_time_allowed() {
    let memory = Memory::new(2, &Settings { park_max_ns: 20 * MS, ..closed(1) });
    let (gate, woken) = (memory.gate(), Woken::default());
    all_arrive(&gate, 0..2, &woken);
    assert_eq!(gate.check(Id(1), NOW + 19 * MS, &woken), Decision::Park);
    assert_eq!(gate.check(Id(1), NOW + 20 * MS, &woken), Decision::Run);
    assert_eq!(memory.control.counters().expired, 1);
}

#[test]
fn a_worker_among_many_checks_when_its_longest_wait_ends() {
    let memory = Memory::new(600, &Settings { park_max_ns: 100 * MS, ..closed(1) });
    let (gate, woken) = (memory.gate(), Woken::default());
    all_arrive(&gate, 0..600, &woken);
    // Without that end, each of 600 workers would check once a second.
    for id in 1..600 {
        let check_ns = gate.deadline_ns(Id(id), NOW);
        assert!(check_ns <= NOW + 100 * MS, "{id}: {check_ns}");
        let check_ns = gate.deadline_ns(Id(id), NOW + 99 * MS);
        assert!(check_ns <= NOW + 100 * MS, "{id}: {check_ns}");
    }
    // A wait that has ended, or whose beginning was overwritten, causes no check without a pause.
    assert!(gate.deadline_ns(Id(1), NOW + 100 * MS) > NOW + 100 * MS);
}

#[test]
fn no_page_makes_a_worker_wait_for_more_than_five_seconds() {
    let memory = Memory::new(1, &Settings { park_max_ns: u64::MAX, ..closed(1) });
    assert_eq!(memory.control.settings().park_max_ns, 5_000 * MS);
    assert_eq!(Settings::default().park_max_ns, 5_000 * MS);
}

fn on_call(cap: u32) -> Settings {
    Settings { mode: Mode::Epoll, isr_delay_ns: 2 * MS, ..closed(cap) }
}

#[test]
fn a_resting_worker_is_called_once_its_query_has_arrived_and_a_slot_is_free() {
    let memory = Memory::new(4, &on_call(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    assert!((0..3).all(|id| gate.rest(Id(id), NOW)));
    assert_eq!(gate.check(Id(0), NOW, &woken), Decision::Park, "it has no query");
    [2, 0].into_iter().for_each(|id| gate.query_arrived(Id(id), NOW, &woken));
    assert_eq!((woken.take(), memory.control.waiters()), (Vec::new(), 2));
    gate.pump(NOW, &woken);
    assert_eq!(woken.take(), [0], "the gate keeps no pause in mode epoll");
    assert_eq!(gate.check(Id(0), NOW, &woken), Decision::Run);
    assert_eq!(gate.arrive(Id(0), false, NOW, &woken), Decision::Run, "its query has the slot");
    gate.answered(Id(0), false, NOW, &woken);
    assert_eq!(woken.take(), [2]);
    assert!(memory.entries[1].is_resting());
    let counters = memory.control.counters();
    assert_eq!((counters.calls, counters.admissions), (2, 2));
}

#[test]
fn no_worker_rests_that_holds_a_slot_or_at_a_gate_that_does_not_call() {
    let memory = Memory::new(2, &on_call(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    assert_eq!(gate.arrive(Id(0), false, NOW, &woken), Decision::Run);
    assert!(!gate.rest(Id(0), NOW));
    assert!(!gate.rest(Id(1), NOW + 71 * MS), "the agent is silent");
    assert!(!gate.rest(Id(2), NOW), "there is no such entry");
    memory.control.set(&closed(1));
    assert!(!gate.rest(Id(1), NOW));
}

#[test]
fn a_resting_worker_runs_without_a_slot_when_the_agent_is_silent_or_its_connection_ends() {
    let memory = Memory::new(3, &on_call(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    assert!((0..3).all(|id| gate.rest(Id(id), NOW)));
    gate.evict(Id(2), &woken);
    let later = NOW + 71 * MS;
    gate.query_arrived(Id(0), later, &woken);
    gate.pump(later, &woken);
    assert_eq!(woken.take(), [2, 0]);
    for id in [0, 2] {
        assert_eq!(gate.check(Id(id), later, &woken), Decision::Run);
    }
    assert!(memory.entries[1].is_resting() && gate.end_rest(Id(1)));
    assert_eq!((gate.active(later), memory.control.waiters()), (0, 0));
}

#[test]
fn a_called_worker_that_has_waited_for_the_longest_time_allowed_is_released() {
    let memory = Memory::new(2, &Settings { park_max_ns: 20 * MS, ..on_call(1) });
    let (gate, woken) = (memory.gate(), Woken::default());
    gate.arrive(Id(0), false, NOW, &woken);
    assert!(gate.rest(Id(1), NOW));
    gate.query_arrived(Id(1), NOW, &woken);
    gate.release_expired(NOW + 19 * MS, &woken);
    assert_eq!(woken.take(), []);
    gate.release_expired(NOW + 20 * MS, &woken);
    assert_eq!((woken.take(), memory.control.counters().expired), (vec![1], 1));
}

/// Checks at its deadlines, with an agent that beats. Returns when the worker may run.
fn wait_until_run(memory: &Memory, id: u32, mut now: u64, woken: &Woken) -> u64 {
    let gate = memory.gate();
    for _ in 0..1_000 {
        memory.control.beat(now);
        if gate.check(Id(id), now, woken) == Decision::Run {
            return now;
        }
        now = gate.deadline_ns(Id(id), now);
    }
    panic!("worker {id} does not run");
}

/// The state of a worker in the random tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Resting,
    Parked,
    Running,
}

/// Lets workers that were woken run if the gate admits them.
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

/// Lets every worker end its query, or check again.
fn settle(gate: &Gate<'_>, woken: &Woken, phases: &mut [Phase; 12], now: u64) {
    for id in 0..12u32 {
        match phases[id as usize] {
            Phase::Running => {
                gate.answered(Id(id), false, now, woken);
                gate.idle(Id(id), false, now, woken);
                phases[id as usize] = Phase::Idle;
            }
            Phase::Resting => {
                gate.query_arrived(Id(id), now, woken);
                gate.release_expired(now, woken);
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
                (Phase::Resting, 0) if gate.end_rest(Id(id)) => phases[id as usize] = Phase::Idle,
                (Phase::Resting, 1..=6) => {
                    gate.query_arrived(Id(id), now, &woken);
                    gate.pump(now, &woken);
                }
                (_, 7) => now += MS,
                _ => {}
            }
            wake(&gate, &woken, &mut phases, now);
            prop_assert!(gate.active(now) <= cap as usize);
        }
        // Once all queries end, every worker runs: the others need only time to pass.
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
        // Queries given by the last decision, and left of each worker's turn.
        let (mut given, mut turn) = ([u32::MAX; 6], [0; 6]);
        for (id, action, draw) in events {
            let index = id as usize;
            match (phases[index], action) {
                (_, 0) => {
                    given[index] = if draw == 5 { u32::MAX } else { draw };
                    let queries = Some(draw).filter(|draw| *draw < 5);
                    memory.entries[index].allow(None, queries);
                    gate.pump(NOW, &woken);
                }
                (Phase::Idle, 1..7) => {
                    let may = gate.arrive(Id(id), false, NOW, &woken);
                    phases[index] =
                        if may == Decision::Run { Phase::Running } else { Phase::Parked };
                    // A worker that was admitted on arrival runs already.
                    woken.0.borrow_mut().retain(|woken| *woken != id || may == Decision::Park);
                }
                (Phase::Idle, 7) => gate.idle(Id(id), false, NOW, &woken),
                (Phase::Running, _) => {
                    gate.answered(Id(id), false, NOW, &woken);
                    turn[index] -= 1;
                    prop_assert_eq!(memory.entries[index].is_admitted(), turn[index] > 0);
                    phases[index] = Phase::Idle;
                }
                _ => {}
            }
            wake(&gate, &woken, &mut phases, NOW);
            for (index, entry) in memory.entries.iter().enumerate() {
                if !entry.is_admitted() {
                    turn[index] = 0;
                } else if turn[index] == 0 {
                    turn[index] = batch.min(given[index]);
                    prop_assert!(turn[index] > 0, "no turn begins without a query");
                    given[index] -= if given[index] == u32::MAX { 0 } else { turn[index] };
                }
                let left = Some(given[index]).filter(|left| *left != u32::MAX);
                prop_assert_eq!(entry.left(), left);
            }
        }
        // Once there is no limit and no turn is kept, every worker has its own.
        memory.entries.iter().for_each(|entry| entry.allow(None, None));
        for id in (0..6).filter(|id| phases[*id as usize] == Phase::Idle) {
            gate.idle(Id(id), false, NOW, &woken);
        }
        gate.pump(NOW, &woken);
        wake(&gate, &woken, &mut phases, NOW);
        (0..20).for_each(|_| settle(&gate, &woken, &mut phases, NOW));
        prop_assert_eq!(phases, [Phase::Idle; 12]);
    }

    /// Words that count or point are overwritten between any two calls. Slots, entries and the
    /// ring are left: their content is who waits and who runs.
    #[test]
    fn with_any_counts_no_worker_waits_much_longer_than_the_others_run(
        words in prop::collection::vec(any::<u64>(), 7),
        cap in 1u32..4,
    ) {
        let memory = Memory::new(64, &closed(cap));
        let (gate, woken) = (memory.gate(), Woken::default());
        let mut words = words.iter().copied().cycle();
        let mut scramble = || memory.scramble_counts(&mut || words.next().unwrap());
        let running = all_arrive(&gate, 0..12, &woken);
        let mut now = NOW;
        for id in running {
            scramble();
            gate.answered(Id(id), false, now, &woken);
        }
        for id in cap..12 {
            scramble();
            now = wait_until_run(&memory, id, now, &woken);
            scramble();
            gate.answered(Id(id), false, now, &woken);
        }
        // Each of them may have to wait for its own check, or for a lease of 50 ms.
        prop_assert!(now - NOW < 12 * 100 * MS, "{} ms", (now - NOW) / MS);
    }

    #[test]
    fn with_any_content_of_memory_every_call_ends_and_every_worker_runs_in_time(
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
            gate.close_connection(Id(id), now, &woken);
        }
    }
}

impl Memory {
    fn set_waiters(&self, count: u32) {
        self.control.ring.waiters.store(count, crate::sync::Ordering::Relaxed);
    }

    fn scramble_counts(&self, next: &mut impl FnMut() -> u64) {
        // Small numbers are the ones that are taken for true.
        self.set_waiters([0, 1, 3, next() as u32][next() as usize % 4]);
        self.control.ring.set_cursor(next() as usize);
        let turn = self.control.ring.turn();
        self.control.ring.change(turn, turn.next(next()));
        self.control.counts.admissions.store(next(), crate::sync::Ordering::Relaxed);
    }

    /// Fills every word that a worker reads with an arbitrary value.
    fn hostile(&self, words: &[u64]) {
        use crate::sync::Ordering::Relaxed;
        let mut words = words.iter().copied().cycle();
        let mut next = || words.next().unwrap();
        for (slot, word) in self.slots.iter().zip(words_of(&mut next, self.slots.len())) {
            let free = slot.read();
            slot.take(free, word as u32 % OWNERS_MAX, word);
        }
        for word in &self.waiting {
            word.store(next(), Relaxed);
        }
        for entry in &self.entries {
            entry.word().0.store(next() as u32, Relaxed);
            let left = next() as u32;
            let left = [None, Some(0), Some(1), Some(left)][left as usize % 4];
            entry.allow(Some(next() as u32 & 1), left);
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

#[test]
fn a_bypass_releases_all_at_once_and_holds_whatever_agents_set() {
    for mode in [Mode::Post, Mode::Epoll] {
        let memory = Memory::new(100, &Settings { mode, ..closed(2) });
        let (gate, woken) = (memory.gate(), Woken::default());
        assert!(gate.rest(Id(99), NOW) == (mode == Mode::Epoll));
        assert_eq!(all_arrive(&gate, 0..90, &woken).len(), 2);
        assert!(memory.control.bypass(1_700_000_000) && !memory.control.bypass(1_800_000_000));
        gate.pump(NOW, &woken);
        assert_eq!(woken.take().len(), 88, "{mode:?}");
        assert!((2..90).all(|id| gate.check(Id(id), NOW, &woken) == Decision::Run));
        // An agent attaches, and one more later; each opens the gate before it closes it.
        for _ in 0..2 {
            memory.control.set(&Settings { mode: Mode::Stats, ..closed(2) });
            memory.control.set(&Settings { mode, ..closed(1) });
            memory.control.beat(NOW);
            assert_eq!(
                (memory.control.mode(), memory.control.settings().mode),
                (Mode::Stats, mode)
            );
            assert_eq!(all_arrive(&gate, 90..99, &woken).len(), 9);
        }
        // A worker that rested is called as its query arrives.
        gate.query_arrived(Id(99), NOW, &woken);
        gate.pump(NOW, &woken);
        assert_eq!(gate.check(Id(99), NOW, &woken), Decision::Run);
        assert!(!gate.rest(Id(99), NOW), "no worker rests at a bypassed gate");
        assert_eq!(memory.control.bypassed_since_s(), Some(1_700_000_000));
        assert!(memory.control.end_bypass() && !memory.control.end_bypass());
        assert_eq!((memory.control.mode(), memory.control.bypassed_since_s()), (mode, None));
        assert_eq!(gate.arrive(Id(7), false, NOW, &woken), Decision::Park);
    }
}
