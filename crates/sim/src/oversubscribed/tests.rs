//! What holds for every server, whatever the admission controller.

use super::*;
use crate::{Replication, RunLength};
use lull_control::admission::{Admission, Allowance, GateObservation, Pace, RoundLimits};
use lull_measure::{Nanos, Percentile};
use proptest::prelude::*;

/// An admission controller that always decides the same.
struct Fixed(RoundLimits);

impl Admission for Fixed {
    fn decide(&mut self, _: &GateObservation<'_>, admission: &mut RoundLimits) {
        *admission = self.0.clone();
    }
}

fn open(connections: usize) -> Box<dyn Admission> {
    Box::new(Fixed(RoundLimits::open(connections)))
}

fn gate(connections: usize, cap: u32, batch: u32, pace: Pace) -> Box<dyn Admission> {
    let allow = vec![Allowance::turns_of(batch); connections];
    Box::new(Fixed(RoundLimits { allow, cap, pace }))
}

fn flow() -> Pace {
    Pace::Flow { again: Nanos::from_millis(100) }
}

fn rounds(turns: u32, pause_us: u64) -> Pace {
    Pace::Rounds { turns, pause: Nanos::from_micros(pause_us), every: None }
}

/// A small server of one class.
fn model(connections: u32) -> OversubscribedModel {
    toml::from_str(&text(connections)).unwrap()
}

fn text(connections: u32) -> String {
    format!(
        r#"
        cores = 4
        [frequency]
        lowest = "1.2GHz"
        highest = "2.2GHz"
        step = "100MHz"
        governor = {{ ondemand = {{ period = "10ms", up = 0.8, io_is_busy = true }} }}
        [power]
        active_base = 0.6
        active_dynamic = 3.9
        voltage_ratio = 0.8
        fixed = 10.0
        [[idle]]
        name = "C1"
        residency = "2us"
        exit = "2us"
        watts = 0.7
        watts_per_ghz = 0.5
        [[idle]]
        name = "C6"
        residency = "400us"
        exit = "133us"
        watts = 0.3
        entry = {{ energy = 0.00093 }}
        [device]
        channels = 8
        rate_per_s = 3000.0
        burst = 12.0
        order = "random"
        [query]
        before = {{ mean = "180us" }}
        io = {{ mean = "250us" }}
        after = {{ mean = "115us" }}
        round_trip = {{ mean = "150us", shape = "constant" }}
        [[class]]
        name = "all"
        connections = {connections}
        "#
    )
}

fn measure(
    model: &OversubscribedModel,
    admission: Box<dyn Admission>,
    length_ms: u64,
) -> GatedTotals {
    let lengths =
        RunLength { warmup: Nanos::from_millis(500), counted: Nanos::from_millis(length_ms) };
    model.measure(admission, Replication { seed: 1, number: 0 }, lengths).unwrap()
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    let run = |seed| {
        let lengths =
            RunLength { warmup: Nanos::from_millis(100), counted: Nanos::from_millis(500) };
        let admission = gate(64, 3, 2, rounds(3, 500));
        model(64).measure(admission, Replication { seed, number: 0 }, lengths).unwrap()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).answers, run(2).answers);
}

#[test]
fn a_connection_alone_takes_its_demands_and_no_more() {
    let mut model = model(1);
    model.frequency.governor = Governor::Performance;
    model.idle.truncate(1);
    let served = measure(&model, open(1), 20_000);
    // 180 + 250 + 115 us, and two wake-ups of 2 us; then 150 us of round trip.
    let mean_us = served.latency().mean().unwrap().as_micros_f64();
    assert!((mean_us / 549.0 - 1.0).abs() < 0.02, "{mean_us}");
    assert!((served.throughput_per_s() * 699e-6 - 1.0).abs() < 0.02);
    assert!((served.device - 1.0 / 699e-6 / 3000.0).abs() < 0.02);
}

#[test]
fn a_saturated_device_gives_its_rate_whatever_the_gate() {
    for admission in [open(64), gate(64, 16, 1, flow()), gate(64, 16, 4, flow())] {
        let served = measure(&model(64), admission, 4000);
        let rate = served.throughput_per_s();
        assert!((rate / 3000.0 - 1.0).abs() < 0.01, "{rate}");
    }
}

#[test]
fn classes_of_connections_share_a_full_gate_by_their_weights() {
    let few = "[[class]]\nname = \"few\"\nconnections = 32\n\
               [[client_class]]\napp = \"few\"\nshare = { weight = 4 }\n";
    let model: OversubscribedModel = toml::from_str(&format!("{}{few}", text(96))).unwrap();
    let served = measure(&model, gate(128, 4, 1, flow()), 4000);
    // The others are a class of weight 1. Each has more connections than the gate has slots.
    let ratio = served.class_per_s(1) / served.class_per_s(0);
    assert!((ratio / 4.0 - 1.0).abs() < 0.05, "{ratio}");
    assert_eq!(served.most_turns, 4);
}

#[test]
fn classes_of_clients_that_fit_no_gate_are_refused_by_key() {
    let refused = |class: &str| {
        let text = format!("{}[[client_class]]\n{class}\n", text(8));
        toml::from_str::<OversubscribedModel>(&text).unwrap().check().unwrap_err().to_string()
    };
    let cases = [
        ("app = \"none\"", "client_class[0].app"),
        ("app = \"all\"\nshare = { weight = 0 }", "client_class[0].share"),
        ("app = \"all\"\nshare = { order = 8 }", "client_class[0].share"),
        ("app = \"all\"\n[[client_class]]\napp = \"all\"", "client_class[1].app"),
    ];
    for (class, key) in cases {
        let error = refused(class);
        assert!(error.starts_with(key), "{error}");
    }
}

#[test]
fn the_tail_of_turns_of_n_is_n_means() {
    // A share 1/N of all queries waits for a whole cycle of the ring, the rest hardly.
    for batch in [2, 4, 8] {
        let served = measure(&model(256), gate(256, 3, batch, rounds(3, 200)), 20_000);
        let ratio = served.tail_over_mean(Percentile::P99).unwrap();
        assert!((ratio / f64::from(batch) - 1.0).abs() < 0.08, "{batch}: {ratio}");
    }
}

#[test]
fn random_order_at_the_device_makes_the_tail_and_arrival_order_does_not() {
    let mut model = model(256);
    let random = measure(&model, open(256), 4000).tail_over_mean(Percentile::P99).unwrap();
    model.device.order = Order::Fifo;
    let fifo = measure(&model, open(256), 4000).tail_over_mean(Percentile::P99).unwrap();
    // Waiting a geometric number of turns has a p99 of ln 100 = 4.6 means.
    assert!((3.5..5.0).contains(&random), "{random}");
    assert!(fifo < 1.2, "{fifo}");
}

#[test]
fn rests_between_rounds_let_cores_sleep() {
    let no_rest = measure(&model(64), gate(64, 3, 2, rounds(3, 0)), 4000);
    let rest = measure(&model(64), gate(64, 3, 2, rounds(3, 3000)), 4000);
    let threshold = Nanos::from_millis(1);
    let slept = |served: &GatedTotals| served.c6_opportunity(threshold).unwrap();
    assert!(slept(&rest) > slept(&no_rest) + 0.2, "{} {}", slept(&rest), slept(&no_rest));
    assert!(rest.residency_share(1) > no_rest.residency_share(1));
    assert!(rest.power() < no_rest.power());
}

#[test]
fn waiting_for_io_keeps_the_frequency_up_only_where_it_counts_as_busy() {
    let mut model = model(64);
    let busy = measure(&model, open(64), 2000).mean_hertz;
    model.frequency.governor =
        Governor::Ondemand { period: Nanos::from_millis(10), up: 0.8, io_is_busy: false };
    let idle = measure(&model, open(64), 2000).mean_hertz;
    assert!(busy > 1.3 * idle, "{busy} {idle}");
}

#[test]
fn instructions_grow_with_the_queries_in_service() {
    let mut model = model(64);
    model.contention = Contention { sigma: 0.0, kappa: 1.65e-5, most: 128, spins_on: None };
    assert!((model.contention.instructions(128) - 1.2682).abs() < 1e-3);
    assert_eq!(model.contention.instructions(512), model.contention.instructions(128));
    let crowd = measure(&model, open(64), 2000).instructions;
    let few = measure(&model, gate(64, 2, 1, flow()), 2000).instructions;
    assert!(crowd > 1.05 && (few - 1.0).abs() < 1e-3, "{crowd} {few}");
}

#[test]
fn a_cap_of_one_serves_one_at_a_time() {
    let served = measure(&model(16), gate(16, 1, 1, flow()), 2000);
    assert_eq!(served.most_turns, 1);
    // One query in service on average, or less while the next is on its way.
    let in_service = served.threads.running + served.threads.disk;
    assert!((0.5..=1.0).contains(&in_service), "{in_service}");
}

#[test]
fn a_model_that_cannot_be_is_refused_by_its_key() {
    let refused = |change: &dyn Fn(&mut OversubscribedModel)| {
        let mut model = model(4);
        change(&mut model);
        model.check().expect_err("refused").to_string()
    };
    assert!(refused(&|model| model.cores = 0).starts_with("cores: "));
    assert!(refused(&|model| model.device.rate_per_s = f64::NAN).contains("device.rate_per_s"));
    assert!(refused(&|model| model.device.burst = 0.5).contains("device.burst"));
    assert!(refused(&|model| model.power.voltage_ratio = 2.0).contains("power.voltage_ratio"));
    assert!(refused(&|model| model.class[0].connections = 0).contains("class[0].connections"));
    assert!(refused(&|model| model.idle.reverse()).contains("idle[1].residency"));
    assert!(refused(&|model| model.class.push(model.class[0].clone())).contains("`all`"));
    assert!(
        refused(&|model| model.frequency.lowest = lull_measure::Hertz(9_000_000_000))
            .contains("frequency.lowest")
    );
    assert!(refused(&|model| model.contention.kappa = -1.0).contains("contention.kappa"));
    let error =
        toml::from_str::<OversubscribedModel>(&(text(4) + "foo = 1\n")).unwrap_err().to_string();
    assert!(error.contains("foo"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn queries_time_and_energy_are_conserved(
        connections in 1u32..80,
        cap in 1u32..40,
        batch in 1u32..6,
        turns in 1u32..40,
        pause_us in 0u64..3000,
        kind in 0u8..4,
        seed in 0u64..1000,
    ) {
        let count = connections as usize;
        let every = Some(Nanos::from_micros(pause_us + 100));
        let admission = match kind {
            0 => open(count),
            1 => gate(count, cap, batch, flow()),
            2 => gate(count, cap, batch, rounds(turns, pause_us)),
            _ => gate(count, cap, batch, Pace::Rounds { turns, pause: Nanos::ZERO, every }),
        };
        let model = model(connections);
        let mut server = model.start(admission, Replication { seed, number: 0 }).unwrap();
        server.run_until(Nanos::from_millis(50));
        server.forget();
        let before = server.gated_totals().threads;
        prop_assert_eq!(before, MeanThreads { sleeping: f64::from(connections), ..before });
        let mut wasted = false;
        for step in 51..=250 {
            server.run_until(Nanos::from_millis(step));
            wasted |= server.wastes();
        }
        let served = server.gated_totals();
        prop_assert!(!wasted, "a core rested while a thread waited for one");

        // Each connection has one query at most, so all but one of those that arrived are answered.
        for (arrivals, answers) in served.arrivals.iter().zip(&served.answers) {
            prop_assert!(arrivals.abs_diff(*answers) <= 1, "{arrivals} {answers}");
        }
        let recorded: u64 = served.classes.iter().map(lull_measure::Latency::count).sum();
        prop_assert_eq!(recorded, served.answers.iter().sum::<u64>());
        if kind != 0 {
            prop_assert!(served.most_turns <= cap, "{} > {cap}", served.most_turns);
        }

        // Cores are busy or idle all the time, and energy is that of the parts.
        let idle: Nanos = served.residency.iter().copied().sum();
        let all = served.span * u64::from(model.cores);
        prop_assert_eq!(served.busy + idle, all);
        let states = served.residency.iter().zip(&model.idle);
        let least: f64 = states.map(|(stay, state)| state.watts.during(*stay).0).sum();
        prop_assert!(served.energy.idle.0 >= least - 1e-12);
        let busiest = f64::from(model.cores) * 4.5 * served.span.as_secs_f64();
        prop_assert!(served.energy.active.0 <= busiest + 1e-9);
        let parts = served.energy.active + served.energy.idle + served.energy.fixed;
        prop_assert_eq!(served.energy.total(), parts);
        prop_assert_eq!(served.energy.fixed, model.power.fixed.during(served.span));

        // Threads are in one state each; the device gives no more than its rate and a burst.
        let threads = served.threads;
        prop_assert!(threads.running >= 0.0 && threads.disk >= 0.0 && threads.sleeping >= -1e-6);
        let most = model.device.rate_per_s * served.span.as_secs_f64() + model.device.burst + 80.0;
        prop_assert!((recorded as f64) <= most);
    }

    #[test]
    fn littles_law_holds(connections in 4u32..60, cap in 1u32..20, seed in 0u64..100) {
        let admission = gate(connections as usize, cap, 2, flow());
        let lengths = RunLength { warmup: Nanos::from_millis(300), counted: Nanos::from_secs(4) };
        let streams = Replication { seed, number: 0 };
        let model = model(connections);
        let served = model.measure(admission, streams, lengths).unwrap();
        let mean_s = served.classes[0].mean().unwrap().as_secs_f64();
        let queries = served.throughput_per_s() * mean_s;
        // Queries in the system at either end are counted on one side only.
        prop_assert!((queries / served.threads.queries - 1.0).abs() < 0.02,
            "{queries} {}", served.threads.queries);
    }
}
