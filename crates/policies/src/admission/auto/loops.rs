//! Simulated servers with clients in a closed loop: how long a decision takes, and the decision.
//!
//! Clients have no think time. Transactions in service share the server, whose throughput follows
//! from how many there are; one in twenty takes many times as long as the others, so that the p99
//! is several times the mean. Convoys hold transactions up at random, the more the more are in
//! service. Nothing in a block is independent of the blocks before: what was admitted before it
//! ends in it, and the gate has a queue.

use super::super::testing::{Bench, build};
use super::*;
use lull_control::admission::{Answered, ServerTimes};
use lull_measure::Missing;
use rand::RngExt;

/// A server.
#[derive(Debug, Clone, Copy)]
struct Server {
    clients: usize,
    cores: u32,
    /// Transactions a second with one in service on each core.
    full_per_s: f64,
    /// Part of its throughput that a server with all clients in service keeps.
    kept: f64,
    /// Convoys a second with all clients in service; fewer with fewer.
    convoys_per_s: f64,
    /// Whether a limit has any effect.
    is_gated: bool,
}

/// The actions of `auto` at a server, step by step.
struct Loop {
    server: Server,
    admission: Box<dyn Admission>,
    limits: RoundLimits,
    now: Nanos,
    next: Nanos,
    /// Arrivals of transactions at the gate, and of those in service with the shares of work left.
    waiting: std::collections::VecDeque<Nanos>,
    in_service: Vec<(Nanos, u32)>,
    convoy_until: Nanos,
    answered: Vec<Answered>,
    /// When the first block of a limit began.
    first_limit: Option<Nanos>,
    rng: Rng,
}

/// Time of a step.
const STEP: Nanos = Nanos::from_millis(5);
/// One transaction in this many is long, by this factor.
const LONG_ONE_OF: u32 = 20;
const LONG: u32 = 10;
/// Mean shares of work of a transaction.
const SHARES: f64 = 1.0 + (LONG - 1) as f64 / LONG_ONE_OF as f64;

impl Loop {
    fn new(server: Server, config: &str, seed: u64) -> Self {
        let mut bench = Bench::best_effort(1);
        (bench.cores, bench.seed) = (server.cores, seed);
        Self {
            server,
            admission: build("auto", config, &bench),
            limits: RoundLimits::open(1),
            now: Nanos::ZERO,
            next: Nanos::ZERO,
            waiting: vec![Nanos::ZERO; server.clients].into(),
            in_service: Vec::new(),
            convoy_until: Nanos::ZERO,
            answered: Vec::new(),
            first_limit: None,
            rng: Rng::seed_from_u64(seed ^ 0x5eed),
        }
    }

    fn cap(&self) -> usize {
        match self.limits.pace {
            Pace::Open { .. } => usize::MAX,
            _ if !self.server.is_gated => usize::MAX,
            _ => self.limits.cap as usize,
        }
    }

    /// Returns transactions a second with this many in service: the full rate up to twice the
    /// cores, and from there down to the rate with all clients.
    fn per_s(&self, in_service: usize) -> f64 {
        let Server { clients, cores, full_per_s, kept, .. } = self.server;
        let (cores, busy) = (f64::from(cores), in_service as f64);
        let crowded =
            ((busy / (2.0 * cores)).ln() / (clients as f64 / (2.0 * cores)).ln()).max(0.0);
        full_per_s * (busy / cores).min(1.0) * kept.powf(crowded)
    }

    /// Runs one step; returns a decision, if there is one.
    fn step(&mut self) -> Option<String> {
        if self.now >= self.next {
            self.decide();
        }
        let busy_share = self.in_service.len() as f64 / self.server.clients as f64;
        let chance = self.server.convoys_per_s * busy_share * STEP.as_secs_f64();
        if self.rng.random_bool(chance.min(1.0)) {
            self.convoy_until = self.now + Nanos::from_millis(self.rng.random_range(50..400));
        }
        while self.in_service.len() < self.cap().min(self.server.clients) {
            let Some(arrived) = self.waiting.pop_front() else { break };
            let is_long = self.rng.random_ratio(1, LONG_ONE_OF);
            self.in_service.push((arrived, if is_long { LONG } else { 1 }));
        }
        let slower = if self.now < self.convoy_until { 0.25 } else { 1.0 };
        let shares = self.per_s(self.in_service.len()) * SHARES * slower * STEP.as_secs_f64();
        self.now += STEP;
        let rest = u32::from(self.rng.random_bool(shares.fract()));
        self.serve(shares.floor() as u32 + rest);
        self.admission.take_decision()
    }

    /// Serves this many shares of work of transactions that are drawn, one at a time.
    fn serve(&mut self, shares: u32) {
        for _ in 0..shares {
            if self.in_service.is_empty() {
                return;
            }
            let at = self.rng.random_range(0..self.in_service.len());
            let (arrived, left) = &mut self.in_service[at];
            *left -= 1;
            if *left == 0 {
                let latency = self.now - *arrived;
                self.answered.push(Answered { connection: 0, latency, queries: 1 });
                self.in_service.swap_remove(at);
                self.waiting.push_back(self.now);
            }
        }
    }

    fn decide(&mut self) {
        let arrivals = self.in_service.iter().map(|(arrived, _)| arrived).chain(&self.waiting);
        let under_way: Vec<Nanos> = arrivals.map(|arrived| self.now - *arrived).collect();
        let cpu = Nanos(STEP.0 * u64::from(self.server.cores));
        let seen = GateObservation {
            now: self.now,
            answered: &self.answered,
            waiting: &[0],
            connections: Ok(self.server.clients as u32),
            under_way: Ok(&under_way),
            device: Ok(0.0),
            round: None,
            rested: Ok(0.0),
            server: Ok(ServerTimes { span: STEP, cpu, run_queue: Nanos::ZERO }),
        };
        self.admission.decide(&seen, &mut self.limits);
        if !matches!(self.limits.pace, Pace::Open { .. }) {
            self.first_limit.get_or_insert(self.now);
        }
        self.answered.clear();
        self.next = self.now + Nanos::from_millis(100);
    }

    /// All clients leave with their transactions under way.
    fn leave(&mut self) {
        self.waiting.clear();
        self.in_service.clear();
    }

    /// All clients return.
    fn come_back(&mut self) {
        self.waiting = vec![self.now; self.server.clients].into();
    }

    /// Runs until a decision closes the gate or leaves it open; the time, and the decision.
    fn first_decision(&mut self, most: Nanos) -> Option<(Nanos, String)> {
        while self.now < most {
            if let Some(decision) = self.step() {
                return Some((self.now, decision));
            }
        }
        None
    }
}

/// First decisions of some starts.
struct Decisions {
    /// The times to them, and to the first block of a limit, in order.
    times: Vec<f64>,
    limits: Vec<f64>,
    /// How many closed the gate, and the blocks of these in order.
    closed: usize,
    blocks: Vec<u32>,
}

impl Decisions {
    fn measure(server: Server, starts: u64) -> Self {
        let mut all = Self { times: Vec::new(), limits: Vec::new(), closed: 0, blocks: Vec::new() };
        for seed in 0..starts {
            let mut start = Loop::new(server, "", seed);
            let found = start.first_decision(Nanos::from_secs(300));
            let (took, why) = found.unwrap_or((Nanos::from_secs(300), "none".to_owned()));
            all.times.push(took.as_secs_f64());
            all.limits.extend(start.first_limit.map(Nanos::as_secs_f64));
            if why.starts_with(|first: char| first.is_ascii_digit()) {
                all.closed += 1;
                let blocks =
                    why.split_once(" blocks, error").and_then(|(text, _)| text.rsplit(' ').next());
                all.blocks.push(blocks.map_or(0, |text| text.parse().expect("a number of blocks")));
            }
        }
        all.times.sort_by(f64::total_cmp);
        all.limits.sort_by(f64::total_cmp);
        all.blocks.sort_unstable();
        all
    }

    /// The time within which this share of the decisions was made.
    fn within(&self, share: f64) -> f64 {
        self.times[((self.times.len() - 1) as f64 * share) as usize]
    }
}

const fn server(clients: usize, full_per_s: f64, kept: f64, convoys_per_s: f64) -> Server {
    Server { clients, cores: 2, full_per_s, kept, convoys_per_s, is_gated: true }
}

/// Read-write, 64 connections; TPC-C with 128 and 400; read-write with 512.
const CONTENDED: [(&str, Server); 4] = [
    ("64", server(64, 1900.0, 0.7, 0.3)),
    ("128", server(128, 1400.0, 0.75, 0.5)),
    ("400", server(400, 1500.0, 0.46, 0.5)),
    ("512", server(512, 1055.0, 0.53, 0.5)),
];

#[test]
#[ignore = "slow: as many starts as LULL_STARTS says on each of eight servers"]
fn the_times_of_the_documentation() {
    let starts = std::env::var("LULL_STARTS");
    let starts = starts.map_or(7, |text| text.parse().expect("LULL_STARTS is a number"));
    for (name, server) in CONTENDED {
        let all = Decisions::measure(server, starts);
        let closed = all.closed;
        let [median, ninety, worst] = [0.5, 0.9, 1.0].map(|share| all.within(share));
        let blocks = all.blocks.get(closed / 2).copied().unwrap_or(0);
        let first = all.limits.get(all.limits.len() / 2).copied().unwrap_or(0.0);
        println!(
            "{name}: {closed} of {starts} closed; {median:.1} s, {ninety:.1} s, {worst:.1} s; \
             {blocks} blocks, the first of a limit after {first:.1} s"
        );
        assert!(7 * closed as u64 >= 6 * starts, "{name}: {closed} of {starts} closed");
    }
    for clients in [64, 128, 400, 512] {
        let server = Server { is_gated: false, ..server(clients, 1500.0, 0.7, 0.5) };
        let all = Decisions::measure(server, starts);
        let (closed, median) = (all.closed, all.within(0.5));
        println!("{clients}, alike: {closed} of {starts} closed; median {median:.1} s");
        assert_eq!(closed, 0, "{clients} clients, limits without an effect");
    }
}

/// A block in which all latencies are alike ends long before its length.
#[test]
fn a_survey_begins_where_all_latencies_are_alike() {
    const CLIENTS: u64 = 512;
    let (latency, look) = (Nanos::from_secs(1), Nanos::from_millis(100));
    let mut auto = Auto::new(Config::default(), &Site::new(&[None], 2)).unwrap();
    let (mut limits, mut now) = (RoundLimits::open(1), Nanos::ZERO);
    while !auto.is_surveying() {
        now += look;
        assert!(now <= Nanos::from_secs(20), "no survey: {:?}", auto.window);
        // Clients follow each other at equal distances.
        let age = |client: u64| Nanos((now.0 + client * latency.0 / CLIENTS) % latency.0);
        let under_way: Vec<Nanos> = (0..CLIENTS).map(age).collect();
        let queries = under_way.iter().filter(|age| **age < look).count() as u32;
        let missing = || Missing::because("there is no server");
        let seen = GateObservation {
            now,
            answered: &[Answered { connection: 0, latency, queries }],
            waiting: &[0],
            connections: Err(missing()),
            under_way: Ok(&under_way),
            device: Err(missing()),
            round: None,
            rested: Err(missing()),
            server: Err(missing()),
        };
        auto.decide(&seen, &mut limits);
    }
}

#[test]
fn clients_that_leave_in_a_block_of_a_limit_cost_nothing_and_delay_no_decision() {
    let (_, server) = CONTENDED[0];
    for seed in 0..4 {
        let mut run = Loop::new(server, "", seed);
        while run.first_limit.is_none() {
            assert_eq!(run.step(), None, "seed {seed}");
        }
        run.leave();
        let back = run.now + Nanos::from_secs(30);
        assert_eq!(run.first_decision(back), None, "seed {seed}: no client is there");
        run.come_back();
        let (_, why) = run.first_decision(back + Nanos::from_secs(60)).unwrap();
        assert!(why.contains(" at a time: "), "seed {seed}: {why}");
    }
}

#[test]
fn a_limit_that_helps_is_found_within_seconds() {
    for (name, server) in CONTENDED {
        let Decisions { times, closed, .. } = Decisions::measure(server, 7);
        let most = [12.0, 16.0, 40.0][(server.clients / 128).min(2)];
        assert!(closed >= 6 && times[3] <= most, "{name}: {closed} of 7 closed, {times:?}");
    }
}
