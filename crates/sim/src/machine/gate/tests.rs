//! The gate by hand, and against the plain model of it.

mod reference;

use super::*;
use lull_control::admission::Allowance;
use lull_measure::Nanos;
use proptest::prelude::*;
use reference::Plain;

fn gate(connections: usize, cap: u32, batch: u32, pace: Pace) -> Gate {
    let mut gate = Gate::new(connections);
    gate.admission =
        RoundLimits { allow: vec![Allowance::turns_of(batch); connections], cap, pace };
    gate.decided();
    gate
}

fn admitted(gate: &mut Gate) -> Vec<u32> {
    std::iter::from_fn(|| gate.admit()).collect()
}

fn rounds(turns: u32) -> Pace {
    Pace::Rounds { turns, pause: Nanos::ZERO, every: None }
}

fn flow() -> Pace {
    Pace::Flow { again: Nanos::from_millis(1) }
}

#[test]
fn an_open_gate_lets_everything_through() {
    let mut gate = Gate::new(2);
    assert!(gate.offer(0) && gate.offer(1));
    assert!(!gate.answered(0), "no connection holds a turn");
    assert_eq!(gate.running, 0);
}

#[test]
fn no_more_turns_are_held_than_the_cap() {
    let mut gate = gate(5, 2, 1, flow());
    (0..5).for_each(|connection| assert!(!gate.offer(connection)));
    assert_eq!(admitted(&mut gate), [0, 1]);
    gate.answered(1);
    assert_eq!(admitted(&mut gate), [2], "the ring goes on");
    assert_eq!((gate.running, gate.most_running), (2, 2));
}

#[test]
fn a_batch_is_kept_over_round_trips_and_ends_when_used_up_or_idle() {
    let mut gate = gate(2, 1, 2, flow());
    gate.offer(0);
    gate.offer(1);
    assert_eq!(admitted(&mut gate), [0]);
    assert!(gate.answered(0), "one of two is left");
    assert!(gate.offer(0), "the next query of a turn runs at once");
    assert!(!gate.end_lease(0), "not while it is in service");
    assert!(!gate.answered(0));
    assert_eq!(admitted(&mut gate), [1]);
    assert!(gate.answered(1));
    assert!(gate.end_lease(1), "its next query does not come");
    assert_eq!(gate.running, 0);
}

#[test]
fn a_round_gives_each_one_turn_and_the_next_goes_on_where_it_ended() {
    let mut gate = gate(5, 5, 1, rounds(3));
    (0..5).for_each(|connection| assert!(!gate.offer(connection)));
    assert_eq!(gate.start_round(3), 3);
    assert_eq!(admitted(&mut gate), [0, 1, 2]);
    for connection in 0..3 {
        gate.answered(connection);
        assert!(!gate.offer(connection), "no second turn in a round");
    }
    assert!(gate.round_is_over());
    assert_eq!((gate.turns, gate.answers), (3, 3));
    assert_eq!(gate.start_round(3), 3);
    assert_eq!(admitted(&mut gate), [3, 4, 0]);
}

#[test]
fn those_who_go_first_do_and_those_without_allowance_do_not() {
    let mut gate = gate(4, 1, 1, flow());
    gate.admission.allow[0].queries = 0;
    gate.admission.allow[2].first = true;
    gate.decided();
    assert!(!gate.offer(0));
    assert_eq!(admitted(&mut gate), [0; 0], "although no other connection waits");
    [3, 1, 2].into_iter().for_each(|connection| assert!(!gate.offer(connection)));
    assert_eq!(admitted(&mut gate), [3]);
    gate.answered(3);
    assert_eq!(admitted(&mut gate), [2]);
    gate.answered(2);
    assert_eq!(admitted(&mut gate), [1]);
    gate.answered(1);
    assert_eq!(admitted(&mut gate), [0; 0]);
    gate.decided();
    assert_eq!(admitted(&mut gate), [0; 0], "its allowance is still none");
}

#[test]
fn opening_the_gate_frees_those_who_wait() {
    let mut gate = gate(3, 1, 1, flow());
    (0..3).for_each(|connection| assert!(!gate.offer(connection)));
    gate.admission = RoundLimits::open(3);
    gate.decided();
    assert_eq!(admitted(&mut gate), [0, 1, 2]);
}

/// Where a connection's query is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Client,
    Gate,
    Server,
}

/// The gate and the plain model of it, played alike.
struct Pair {
    ours: Gate,
    plain: Plain,
    at: Vec<At>,
}

const CONNECTIONS: usize = 9;

impl Pair {
    fn new() -> Self {
        let (ours, plain) = (Gate::new(CONNECTIONS), Plain::new(CONNECTIONS));
        Self { ours, plain, at: vec![At::Client; CONNECTIONS] }
    }

    /// A decision; allowances are drawn from the bits of `draw`.
    fn decide(&mut self, cap: u32, pace: Pace, draw: u64) {
        let allow = |index: usize| {
            let bits = draw >> (6 * index);
            let queries = [0, 1, 3, u32::MAX][(bits & 3) as usize];
            Allowance { queries, batch: (bits >> 2 & 3) as u32, first: bits >> 4 & 3 == 0 }
        };
        let allow = (0..CONNECTIONS).map(allow).collect();
        let admission = RoundLimits { allow, cap, pace };
        (self.ours.admission, self.plain.admission) = (admission.clone(), admission);
        self.ours.decided();
        self.plain.refill();
        if let Pace::Rounds { turns, .. } = pace {
            assert_eq!(self.ours.start_round(turns), self.plain.start_round(turns));
        }
    }

    /// The connection's next step, if it is its turn to make one.
    fn step(&mut self, connection: u32, lapses: bool) {
        let at = &mut self.at[connection as usize];
        match at {
            At::Client if lapses => {
                assert_eq!(self.ours.end_lease(connection), self.plain.end_lease(connection));
            }
            At::Client => {
                let runs = self.ours.offer(connection);
                assert_eq!(runs, self.plain.offer(connection));
                *at = if runs { At::Server } else { At::Gate };
            }
            At::Server => {
                assert_eq!(self.ours.answered(connection), self.plain.answered(connection));
                *at = At::Client;
            }
            At::Gate => {}
        }
    }

    /// Runs the connections that may run now, after checking that both gates agree.
    fn admit(&mut self) {
        let ours = admitted(&mut self.ours);
        let plain: Vec<u32> = std::iter::from_fn(|| self.plain.admit()).collect();
        assert_eq!(ours, plain);
        ours.into_iter().for_each(|connection| self.at[connection as usize] = At::Server);
        assert_eq!(self.ours.running, self.plain.running);
        assert_eq!(self.ours.most_running, self.plain.most_running);
        assert_eq!(self.ours.waiting, self.plain.waiting);
        assert_eq!(self.ours.round_is_over(), self.plain.round_is_over());
        let active = self.ours.memory.gate().active(NOW_NS);
        assert_eq!(active, self.ours.running as usize);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Rounds that overlap have no cap (`reef`): in which order they would
    /// wait for one, the plain model and the ring see differently.
    #[test]
    fn the_on_call_gate_admits_whom_the_plain_model_does(
        kind in 0u8..3,
        cap in 1u32..6,
        turns in 1u32..12,
        events in prop::collection::vec((0u32..9, 0u8..12, any::<u64>()), 0..400),
    ) {
        let mut pair = Pair::new();
        let cap = if kind == 2 { u32::MAX } else { cap };
        for (connection, action, draw) in events {
            let pace = match kind {
                0 if draw >> 60 == 0 => Pace::Open { again: Nanos::from_millis(1) },
                0 => flow(),
                1 => rounds(turns),
                _ => Pace::Rounds { turns, pause: Nanos::ZERO, every: Some(Nanos(1)) },
            };
            match action {
                0 if kind != 1 || pair.ours.round_is_over() => pair.decide(cap, pace, draw),
                0 => {}
                _ => pair.step(connection, action == 1),
            }
            pair.admit();
        }
    }
}

/// A gate whose connections each are of one of these classes, all of them waiting.
fn crowd(shares: &[ClassShare], connections: usize, cap: u32) -> (Gate, Vec<u32>) {
    let of: Vec<u32> = (0..connections).map(|at| (at % shares.len()) as u32).collect();
    let mut gate = Gate::new(connections).with_classes(shares, &of);
    gate.admission =
        RoundLimits { allow: vec![Allowance::turns_of(1); connections], cap, pace: flow() };
    gate.decided();
    (0..connections as u32).for_each(|connection| assert!(!gate.offer(connection)));
    (gate, of)
}

/// The turns of each class in so many that end, while each answer is followed by a query.
fn turns_of_crowd(shares: &[ClassShare], connections: usize, cap: u32, turns: usize) -> Vec<u64> {
    let (mut gate, of) = crowd(shares, connections, cap);
    let mut counts = vec![0; shares.len()];
    let mut running: VecDeque<u32> = admitted(&mut gate).into();
    for _ in 0..turns {
        let ends = running.pop_front().unwrap();
        counts[of[ends as usize] as usize] += 1;
        gate.answered(ends);
        gate.offer(ends);
        running.extend(admitted(&mut gate));
        assert_eq!(running.len(), cap as usize, "no slot stays free while a connection waits");
    }
    counts
}

#[test]
fn a_class_of_a_lower_order_goes_first_and_the_others_have_their_least_share() {
    let first = ClassShare::new(1, 0, 0.01).unwrap();
    let later = ClassShare::new(100, 1, 0.05).unwrap();
    let counts = turns_of_crowd(&[first, later], 40, 4, 4000);
    assert!((190..=240).contains(&counts[1]), "one turn of twenty: {counts:?}");
}

#[test]
fn a_gate_of_a_machine_names_the_apps_that_are_classes() {
    let text = r#"
        query = { before = { mean = "1ms" }, io = { mean = "1ms" }, after = { mean = "1ms" },
                  round_trip = { mean = "1ms" } }
        device = { channels = 1, rate_per_s = 1.0, burst = 1.0, order = "fifo" }
        [[client-class]]
        app = "web"
        share = { weight = 4, least-share = 0.36 }
        [[client-class]]
        app = "batch"
    "#;
    let gate: crate::machine::GateModel = toml::from_str(text).unwrap();
    let shares: Vec<_> = gate.client_class.iter().map(|class| class.share.in_gate()).collect();
    let web = ClassShare { weight: 4, order: 0, turn_within: 2 };
    assert_eq!(shares, [Some(web), Some(ClassShare::default())]);
}

#[test]
fn without_classes_turns_go_round() {
    let mut gate = Gate::new(3).with_classes(&[], &[0; 3]);
    gate.admission = RoundLimits { allow: vec![Allowance::turns_of(1); 3], cap: 1, pace: flow() };
    gate.decided();
    [2, 0, 1].into_iter().for_each(|connection| assert!(!gate.offer(connection)));
    assert_eq!(admitted(&mut gate), [2], "it found the slot free");
    gate.answered(2);
    assert_eq!(admitted(&mut gate), [0]);
    assert_eq!(gate.memory.client_classes.count(), 0);
}

proptest! {
    #[test]
    fn classes_that_wait_share_the_turns_by_their_weights(
        weights in prop::collection::vec(1u32..20, 2..6),
        cap in 1u32..6,
    ) {
        let shares: Vec<ClassShare> =
            weights.iter().map(|weight| ClassShare::new(*weight, 0, 0.0001).unwrap()).collect();
        // More connections of each class than slots, so that each waits all the time.
        let connections = shares.len() * (cap as usize + 1);
        let counts = turns_of_crowd(&shares, connections, cap, 2000);
        let all: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        for (count, weight) in counts.iter().zip(&weights) {
            let wanted = 2000.0 * f64::from(*weight) / all;
            let off = (*count as f64 - wanted).abs();
            prop_assert!(off <= 2.0 + f64::from(cap), "{counts:?} by {weights:?}");
        }
    }
}
