//! Classes of clients at the gate: shares, orders, and what holds for any content of memory.

use super::*;
use crate::sync::Ordering;
use crate::{CLIENT_CLASSES, ClassShare, ClientClasses};
use std::collections::VecDeque;

/// A gate with classes, whose connections ask again as soon as their turns have ended.
struct Saturated {
    memory: Memory,
    classes: ClientClasses,
    tickets: Vec<AtomicU32>,
    running: VecDeque<u32>,
    /// The classes whose turns began after a wait, in order.
    turns: Vec<usize>,
}

fn weighted(weight: u32, order: u32, turn_within: u32) -> ClassShare {
    ClassShare { weight, order, turn_within }
}

impl Saturated {
    /// A gate with this cap; `shares` are the classes, each with as many connections.
    fn new(cap: u32, shares: &[ClassShare], connections: usize) -> Self {
        let all = connections * shares.len();
        let memory = Memory::new(all, &closed(cap));
        let classes = ClientClasses::default();
        assert!(classes.set(shares));
        for (id, entry) in memory.entries.iter().enumerate() {
            entry.set_client_class((id % shares.len()) as u32);
        }
        let tickets = (0..2 * all * CLIENT_CLASSES).map(|_| AtomicU32::new(0)).collect();
        Self { memory, classes, tickets, running: VecDeque::new(), turns: Vec::new() }
    }

    fn gate(&self) -> Gate<'_> {
        self.memory.gate().with_classes(&self.classes, &self.tickets)
    }

    fn class(&self, id: u32) -> usize {
        self.memory.entries[id as usize].client_class()
    }

    fn arrive(&mut self, id: u32) {
        let woken = Woken::default();
        if self.gate().arrive(Id(id), false, NOW, &woken) == Decision::Run {
            self.running.push_back(id);
        }
        self.begin(&woken, Some(id));
    }

    /// Ends the turn that began first. Returns its connection.
    fn end_one(&mut self) -> Option<u32> {
        let (id, woken) = (self.running.pop_front()?, Woken::default());
        self.gate().answered(Id(id), false, NOW, &woken);
        self.begin(&woken, None);
        Some(id)
    }

    fn begin(&mut self, woken: &Woken, known: Option<u32>) {
        for id in woken.take().into_iter().filter(|id| Some(*id) != known) {
            assert_eq!(self.gate().check(Id(id), NOW, woken), Decision::Run);
            self.turns.push(self.class(id));
            self.running.push_back(id);
        }
    }

    /// Lets all connections arrive, and ends and begins this many turns.
    fn run(&mut self, turns: usize) {
        (0..self.memory.entries.len() as u32).for_each(|id| self.arrive(id));
        self.turns.clear();
        while self.turns.len() < turns {
            let id = self.end_one().unwrap();
            self.arrive(id);
        }
    }

    fn counts(&self) -> Vec<usize> {
        let count = |class| self.turns.iter().filter(|turn| **turn == class).count();
        (0..self.classes.count()).map(count).collect()
    }
}

#[test]
fn a_class_of_four_times_the_weight_has_four_of_five_turns() {
    let shares = [weighted(1, 0, 100), weighted(4, 0, 100)];
    let mut gate = Saturated::new(4, &shares, 20);
    gate.run(1000);
    assert_eq!(gate.counts(), [200, 800]);
}

#[test]
fn a_class_of_a_later_order_has_its_least_share_and_no_more_while_others_wait() {
    let shares = [weighted(1, 0, 100), weighted(1, 1, 20)];
    let mut gate = Saturated::new(2, &shares, 8);
    gate.run(1000);
    assert_eq!(gate.counts(), [950, 50]);
}

#[test]
fn connections_of_a_class_run_in_the_order_in_which_they_began_to_wait() {
    let mut gate = Saturated::new(1, &[weighted(1, 0, 100), weighted(3, 0, 100)], 4);
    // All of class 1 but the first, which runs.
    let order = [1, 7, 3, 5];
    order.iter().for_each(|id| gate.arrive(*id));
    let ran: Vec<u32> = std::iter::from_fn(|| gate.end_one()).collect();
    assert_eq!(ran, order, "not round the ring");
}

#[test]
fn a_connection_that_left_and_waits_again_is_behind_the_others() {
    let mut gate = Saturated::new(1, &[weighted(1, 0, 100)], 4);
    (0..4).for_each(|id| gate.arrive(id));
    assert!(gate.gate().leave(Id(1)));
    gate.arrive(1);
    let ran: Vec<u32> = std::iter::from_fn(|| gate.end_one()).collect();
    assert_eq!(ran, [0, 2, 3, 1]);
}

#[test]
fn a_class_that_did_not_wait_has_saved_no_turns() {
    let shares = [weighted(1, 0, 10_000), weighted(1, 0, 10_000)];
    let mut gate = Saturated::new(1, &shares, 8);
    (0..16).step_by(2).for_each(|id| gate.arrive(id));
    for _ in 0..100 {
        let id = gate.end_one().unwrap();
        gate.arrive(id);
    }
    (1..16).step_by(2).for_each(|id| gate.arrive(id));
    gate.turns.clear();
    for _ in 0..20 {
        let id = gate.end_one().unwrap();
        gate.arrive(id);
    }
    assert_eq!(gate.counts(), [10, 10]);
}

#[test]
fn a_waiting_connection_without_a_ticket_is_served_when_no_other_waits() {
    let mut gate = Saturated::new(1, &[weighted(1, 0, 100)], 3);
    (0..3).for_each(|id| gate.arrive(id));
    gate.tickets.iter().for_each(|ticket| ticket.store(0, Ordering::Relaxed));
    let ran: Vec<u32> = std::iter::from_fn(|| gate.end_one()).collect();
    assert_eq!(ran, [0, 1, 2]);
    // A worker's own check gives it a ticket again, at the end.
    (0..3).for_each(|id| gate.arrive(id));
    gate.tickets.iter().for_each(|ticket| ticket.store(0, Ordering::Relaxed));
    let woken = Woken::default();
    assert_eq!(gate.gate().check(Id(2), NOW, &woken), Decision::Park);
    let ran: Vec<u32> = std::iter::from_fn(|| gate.end_one()).collect();
    assert_eq!(ran, [0, 2, 1]);
}

#[test]
fn classes_may_come_and_go_while_workers_wait() {
    let mut gate = Saturated::new(1, &[weighted(1, 0, 100), weighted(2, 0, 100)], 3);
    (0..3).for_each(|id| gate.arrive(id));
    assert!(gate.classes.set(&[]));
    (3..6).for_each(|id| gate.arrive(id));
    assert!(gate.classes.set(&[weighted(1, 0, 100)]));
    let mut ran: Vec<u32> = std::iter::from_fn(|| gate.end_one()).collect();
    ran.sort_unstable();
    assert_eq!(ran, [0, 1, 2, 3, 4, 5]);
    assert!(!gate.classes.set(&[ClassShare::default(); CLIENT_CLASSES + 1]));
}

fn shares(orders: u32) -> impl Strategy<Value = Vec<ClassShare>> {
    let share = (1u32..20, 0..orders, 5u32..50);
    let share = share.prop_map(|(weight, order, within)| weighted(weight, order, within));
    prop::collection::vec(share, 1..=CLIENT_CLASSES)
}

proptest! {
    #[test]
    fn shares_are_kept_within_one_turn_of_each_class(
        mut shares in shares(1),
        cap in 1u32..6,
        turns in 1usize..600,
    ) {
        shares.iter_mut().for_each(|share| share.turn_within = 10_000);
        let mut gate = Saturated::new(cap, &shares, 8);
        gate.run(turns);
        // Start-time fair queueing (Goyal 1996, theorem 1): at any instant.
        let each: Vec<(f64, f64)> = (gate.counts().iter().zip(&shares))
            .map(|(turns, share)| (*turns as f64, f64::from(share.weight)))
            .collect();
        for (turns, weight) in &each {
            for (others, other_weight) in &each {
                let apart = (turns / weight - others / other_weight).abs();
                prop_assert!(apart <= 1.01 * (1.0 / weight + 1.0 / other_weight), "{each:?}");
            }
        }
    }

    #[test]
    fn no_class_waits_for_more_turns_than_its_least_share_says(
        shares in shares(4),
        cap in 1u32..6,
    ) {
        let mut gate = Saturated::new(cap, &shares, 8);
        gate.run(800);
        for (class, share) in shares.iter().enumerate() {
            // Others may be overdue at the same time, and go first once each.
            let most = share.turn_within as usize + shares.len();
            for window in gate.turns.windows(most) {
                prop_assert!(window.contains(&class), "class {class} of {shares:?}");
            }
        }
    }

    #[test]
    fn no_slot_is_free_while_a_worker_waits_and_classes_are_first_in_first_out(
        shares in shares(3),
        cap in 1u32..4,
        steps: Vec<(bool, u8)>,
    ) {
        let mut gate = Saturated::new(cap, &shares, 4);
        let all = gate.memory.entries.len() as u32;
        let mut queues = vec![VecDeque::new(); shares.len()];
        for (arrives, step) in steps {
            let id = u32::from(step) % all;
            let before = gate.running.clone();
            let is_idle =
                !gate.running.contains(&id) && !gate.memory.entries[id as usize].is_waiting();
            if arrives && is_idle {
                queues[gate.class(id)].push_back(id);
                gate.arrive(id);
            } else if !arrives {
                gate.end_one();
            }
            for id in gate.running.clone() {
                if !before.contains(&id) || queues[gate.class(id)].contains(&id) {
                    let class = gate.class(id);
                    prop_assert_eq!(queues[class].pop_front(), Some(id));
                }
            }
            let waiting = gate.gate().count_waiters();
            prop_assert!(waiting == 0 || gate.gate().active(NOW) == cap as usize);
        }
    }

    #[test]
    fn no_content_of_the_queues_strands_a_worker(
        words: Vec<(u16, u32)>,
        steps in 1usize..40,
        seed: u64,
    ) {
        let shares = [weighted(1, 0, 10), weighted(3, 1, 10), weighted(9, 0, 5)];
        let mut gate = Saturated::new(2, &shares, 5);
        for id in 0..15 {
            gate.arrive(id);
        }
        for (at, word) in words {
            gate.tickets[at as usize % gate.tickets.len()].store(word, Ordering::Relaxed);
        }
        gate.classes.overwrite(seed);
        let mut ran = BTreeSet::new();
        for _ in 0..steps {
            gate.memory.entries[steps % 15].set_client_class(seed as u32);
            ran.extend(gate.end_one());
        }
        while let Some(id) = gate.end_one() {
            ran.insert(id);
        }
        prop_assert_eq!(ran.len(), 15);
        prop_assert_eq!(gate.gate().count_waiters(), 0);
    }
}
