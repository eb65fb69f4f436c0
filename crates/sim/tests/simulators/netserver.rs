//! The server behind a network card: what it must do whatever its numbers.

use lull_control::{
    AppSpec, ApplyOutcome, Capability, Coalescing, DomainId, NicId, Plant, Setting, conformance,
};
use lull_measure::{Hertz, Nanos, Percentile};
use lull_sim::machine::{
    Activity, LoadStep, MachineApp, MachineModel, MachinePlant, MachineSimulation,
};
use lull_sim::netserver::{
    EventLoopTotals, Governor, Merge, Moderation, NetServerModel, PingPong, Traffic,
};

const GHZ: fn(u64) -> Hertz = |tenths| Hertz(tenths * 100_000_000);

fn model() -> NetServerModel {
    toml::from_str(include_str!("../../src/netserver/example.toml")).unwrap()
}

fn app() -> AppSpec {
    AppSpec::latency_critical("cache", Percentile::P99, Nanos::from_micros(500))
}

/// Sets the frequency of both cores, or returns it to the governor.
fn hold(server: &mut MachineSimulation, hertz: Option<Hertz>) {
    (0..2).for_each(|core| server.hold(core, hertz));
}

/// A second of the server at a rate, a frequency and a delay, after a warm-up.
fn run(model: &NetServerModel, frequency: Hertz, delay_us: u64) -> EventLoopTotals {
    let mut server = model.simulation(1, 0).unwrap();
    hold(&mut server, Some(frequency));
    server.set_delay(Some(Nanos::from_micros(delay_us)));
    server.run_until(Nanos::from_millis(50));
    server.forget();
    server.run_until(Nanos::from_millis(1050));
    server.event_loop_totals()
}

fn p99_us(totals: &EventLoopTotals) -> f64 {
    totals.latency.quantile(Percentile::P99).unwrap().as_micros_f64()
}

#[test]
fn it_conforms() {
    conformance::check(Nanos::from_millis(20), || model().plant(&app(), 1, 0).unwrap());
}

#[test]
fn it_conforms_without_the_parts_that_it_does_not_need() {
    for (scales, has_power) in [(false, true), (true, false), (false, false)] {
        let mut machine = model().machine();
        machine.scaling = machine.scaling.filter(|_| scales);
        machine.power = machine.power.filter(|_| has_power);
        let make = || MachinePlant::new(&machine, &[app()], 1, 0).unwrap();
        conformance::check(Nanos::from_millis(20), make);
        let seen = make().observe(Nanos::from_millis(20)).unwrap();
        assert_eq!(seen.energy.is_ok(), has_power);
        let apps = &seen.apps[0];
        assert!(apps.latency.as_ref().unwrap().completed_per_s > 15_000.0, "{apps:?}");
    }
}

#[test]
fn every_request_is_answered_once_and_time_is_either_busy_or_idle() {
    let totals = run(&model(), GHZ(29), 50);
    assert!(totals.arrived.abs_diff(20_000) < 600, "{totals:?}");
    assert!(totals.arrived.abs_diff(totals.answered) < 60, "{totals:?}");
    assert_eq!(totals.latency.count(), totals.answered);
    let idle: Nanos = totals.residency.iter().copied().sum();
    let whole = Nanos::from_secs(2);
    assert!((idle + totals.busy).0.abs_diff(whole.0) < 1000, "{idle} {}", totals.busy);
}

#[test]
fn energy_is_what_times_in_states_cost() {
    let model = model();
    let totals = run(&model, GHZ(29), 50);
    let idle: f64 = model
        .idle
        .iter()
        .zip(&totals.residency)
        .map(|(state, span)| state.watts.0 * span.as_secs_f64())
        .sum();
    let busy = 10.35 * totals.busy.as_secs_f64();
    let expected = 18.0 * totals.span.as_secs_f64() + busy + idle;
    assert!((totals.energy.0 / expected - 1.0).abs() < 1e-6, "{} {expected}", totals.energy);
}

#[test]
fn power_falls_with_frequency_and_voltage_as_the_formula_says() {
    let model = model().at_rate(20_000.0);
    let totals = run(&model, GHZ(12), 50);
    let (share, volts) = (1.2 / 2.9, 0.8 / 1.05);
    let busy_watts = (9.0 * share + 1.35) * volts * volts;
    let uncore = 18.0 * (0.45 + 0.55 * share * volts * volts);
    let states = model.idle.iter().zip(&totals.residency);
    let idle: f64 = states.map(|(state, span)| state.watts.0 * span.as_secs_f64()).sum();
    let expected =
        uncore * totals.span.as_secs_f64() + busy_watts * totals.busy.as_secs_f64() + idle;
    assert!((totals.energy.0 / expected - 1.0).abs() < 1e-6, "{} {expected}", totals.energy);
}

#[test]
fn what_a_machine_counts_of_event_loops_agrees_with_their_own_totals() {
    let model = model();
    let mut server = model.simulation(1, 0).unwrap();
    server.run_until(Nanos::from_millis(50));
    server.forget();
    server.run_until(Nanos::from_millis(1050));
    let (loops, machine) = (server.event_loop_totals(), server.totals());
    let app = &machine.apps[0];
    assert_eq!((app.arrived, app.answered), (loops.arrived, loops.answered));
    let busy: f64 = machine.utilisation.iter().sum();
    assert!((busy - loops.busy.as_secs_f64()).abs() < 1e-9, "{busy} {}", loops.busy);
    assert!((app.busy_cores - busy).abs() < 1e-9);
    assert!((1e9 * loops.cycles / GHZ(29).0 as f64 / 1e9 - app.work_per_s).abs() < 1e-6);
    // Little's law, without the time in the network.
    let inside_s = loops.latency.mean().unwrap().as_secs_f64() - 30e-6;
    let expected = loops.answered as f64 * inside_s;
    assert!((app.outstanding / expected - 1.0).abs() < 0.02, "{} {expected}", app.outstanding);
    assert!(machine.events > 5 * loops.answered, "{}", machine.events);
}

#[test]
fn event_loops_are_written_as_an_activity_of_an_app() {
    let text = r#"
        name = "cache"
        threads = 2

        [activity.event-loops]
        cycles = 19000.0
        frame = "1230ns"

        [activity.event-loops.stack]
        run-to-completion = false
        interrupt-cycles = 9000.0
        rx-cycles = 7000.0
        tx-clean-cycles = 1000.0
        wake-cycles = 7000.0
        poll-cycles = 3000.0
        events = 32
        sleep-cycles = 2000.0
        memory = "500ns"

        [activity.event-loops.traffic.open]
        load = [{ from = "0s", rate-per-s = 20000.0 }]
        connections = 64
        network = "30us"
    "#;
    let written: MachineApp = toml::from_str(text).unwrap();
    assert_eq!(vec![written], model().machine().app);
}

#[test]
fn parts_that_couple_cores_are_refused_beside_event_loops_and_missing_ones_are_named() {
    let refused = |change: &dyn Fn(&mut MachineModel)| {
        let mut machine = model().machine();
        change(&mut machine);
        MachineSimulation::new(&machine, 1, 0).unwrap_err().key
    };
    assert_eq!(refused(&|it| it.card = None), "card");
    assert_eq!(refused(&|it| it.interference = 0.1), "interference");
    assert_eq!(refused(&|it| it.app[0].threads = 3), "app[0].threads");
    assert_eq!(refused(&|it| it.card.as_mut().unwrap().receive = Nanos(1)), "card.receive");
    let connections = &|it: &mut MachineModel| it.card.as_mut().unwrap().connections = 65;
    assert_eq!(refused(connections), "card.connections");
    let latency = Nanos::from_micros(10);
    assert_eq!(refused(&|it| it.scaling.as_mut().unwrap().latency = latency), "scaling.latency");
    assert_eq!(refused(&|it| it.scaling.as_mut().unwrap().steps.reverse()), "scaling.steps");
    assert_eq!(
        refused(&|it| it.power.as_mut().unwrap().uncore_scales = 2.0),
        "power.uncore_scales"
    );
    let beside = |it: &mut MachineModel| {
        let mut other = it.app[0].clone();
        (other.name, other.activity) = ("batch".to_owned(), Activity::Endless);
        it.app.push(other);
    };
    assert_eq!(refused(&beside), "app");
}

#[test]
fn a_delay_is_the_least_gap_between_interrupts() {
    let mut server = model().simulation(1, 0).unwrap();
    server.set_delay(Some(Nanos::from_micros(200)));
    server.keep_interrupts(1000);
    server.run_until(Nanos::from_millis(500));
    for core in 0..2 {
        let log = server.interrupts(core);
        assert!(log.len() > 500);
        // The log is written where handling begins, an exit from idle later.
        let gaps = log.windows(2).skip(1).map(|pair| pair[1].time - pair[0].time);
        let least = gaps.min().unwrap();
        assert!(least >= Nanos::from_micros(200 - 104), "{least}");
        let received: u64 = log.iter().map(|entry| entry.rx_packets).sum();
        assert!(received > 2 * log.len() as u64 / 2, "batches: {received} in {}", log.len());
    }
}

#[test]
fn longer_delays_save_interrupts_cycles_and_energy_and_cost_latency() {
    let model = model().at_rate(50_000.0);
    let all: Vec<_> = [0, 50, 200, 400].map(|delay| run(&model, GHZ(29), delay)).into();
    for pair in all.windows(2) {
        assert!(pair[1].interrupts < pair[0].interrupts);
        assert!(pair[1].cycles < pair[0].cycles);
        assert!(pair[1].energy.0 < pair[0].energy.0);
    }
    assert!(p99_us(&all[3]) > p99_us(&all[1]));
}

#[test]
fn at_a_low_frequency_no_delay_is_slower_than_some() {
    // Where interrupts eat the core, batching is what keeps it up.
    let model = model().at_rate(50_000.0);
    let without = p99_us(&run(&model, GHZ(12), 0));
    let with = p99_us(&run(&model, GHZ(12), 100));
    assert!(without > 1.5 * with, "{without} {with}");
}

#[test]
fn overload_is_seen_as_such() {
    let totals = run(&model().at_rate(200_000.0), GHZ(12), 20);
    assert!((totals.answered as f64) < 0.9 * totals.arrived as f64);
}

#[test]
fn the_governor_follows_the_load_until_a_policy_sets_a_frequency() {
    let mean = |rate: f64| {
        let mut server = model().at_rate(rate).simulation(1, 0).unwrap();
        server.run_until(Nanos::from_millis(100));
        server.frequency(0)
    };
    assert_eq!(mean(500.0), GHZ(12));
    assert!(mean(60_000.0) > GHZ(12));
    let mut server = model().at_rate(500.0).simulation(1, 0).unwrap();
    hold(&mut server, Some(GHZ(29)));
    server.run_until(Nanos::from_millis(100));
    assert_eq!(server.frequency(0), GHZ(29));
    hold(&mut server, None);
    server.run_until(Nanos::from_millis(200));
    assert_eq!(server.frequency(0), GHZ(12));
}

#[test]
fn a_governor_that_does_not_sample_has_its_frequency_from_the_start_and_again_when_released() {
    for (governor, wanted) in [(Governor::Performance, GHZ(29)), (Governor::Powersave, GHZ(12))] {
        let mut server = NetServerModel { governor, ..model() }.simulation(1, 0).unwrap();
        server.run_until(Nanos::from_millis(50));
        assert_eq!(server.frequency(0), wanted, "{governor:?}");
        hold(&mut server, Some(GHZ(20)));
        server.run_until(Nanos::from_millis(100));
        assert_eq!(server.frequency(0), GHZ(20), "{governor:?}");
        hold(&mut server, None);
        assert_eq!(server.frequency(0), wanted, "{governor:?}");
    }
}

#[test]
fn how_a_run_is_cut_into_epochs_changes_nothing() {
    let whole = {
        let mut server = model().simulation(7, 3).unwrap();
        server.run_until(Nanos::from_millis(300));
        server.event_loop_totals()
    };
    let mut server = model().simulation(7, 3).unwrap();
    for end_us in (0..=300_000).step_by(700).chain([300_000]) {
        server.run_until(Nanos::from_micros(end_us));
    }
    let parts = server.event_loop_totals();
    assert_eq!((whole.answered, whole.interrupts), (parts.answered, parts.interrupts));
    assert_eq!(whole.latency, parts.latency);
    assert!((whole.energy.0 - parts.energy.0).abs() < 1e-9 * whole.energy.0);
}

#[test]
fn two_settings_meet_the_same_requests() {
    let (a, b) = (run(&model(), GHZ(29), 0), run(&model(), GHZ(20), 300));
    assert_eq!(a.arrived, b.arrived);
}

#[test]
fn a_specialised_stack_needs_less_and_has_no_threads_to_wake() {
    let linux = model();
    let mut lean = linux.clone();
    lean.stack.run_to_completion = true;
    lean.nic.tx_interrupts = false;
    let (linux, lean) = (run(&linux, GHZ(29), 50), run(&lean, GHZ(29), 50));
    assert!(lean.cycles < 0.8 * linux.cycles, "{} {}", lean.cycles, linux.cycles);
    assert!(lean.answered.abs_diff(linux.answered) < 10);
    assert!(p99_us(&lean) < p99_us(&linux));
}

#[test]
fn a_ping_pong_goes_round_faster_without_a_delay_on_small_messages() {
    let mut model = model();
    model.traffic = Traffic::PingPong(PingPong {
        bytes: 64,
        segment: 1448,
        window: 44,
        network: Nanos::from_micros(5),
        turnaround: Nanos::from_micros(15),
        mirrored: false,
        cycles_per_byte: 0.5,
    });
    let (fast, slow) = (run(&model, GHZ(29), 0), run(&model, GHZ(29), 100));
    assert!(fast.answered > 15_000, "{}", fast.answered);
    assert!(slow.answered < fast.answered, "{} {}", slow.answered, fast.answered);
    assert!(slow.answered > 8_000, "one delay a message at most: {}", slow.answered);
}

#[test]
fn polling_that_ends_below_its_budget_interrupts_again_for_what_has_arrived() {
    let mut model = model().at_rate(30_000.0);
    let until_none = run(&model, GHZ(29), 0);
    model.stack.ends_polling_below_budget = true;
    let below = run(&model, GHZ(29), 0);
    assert!(below.interrupts > until_none.interrupts, "{}", below.interrupts);
    assert!(below.answered.abs_diff(until_none.answered) < 50, "{}", below.answered);
}

#[test]
fn longer_delays_merge_more_frames_and_read_them_in_fewer_parts() {
    let mut model = model();
    model.stack.ends_polling_below_budget = true;
    model.stack.merge = Some(Merge { frames: 45, cycles: 700.0 });
    model.traffic = Traffic::PingPong(PingPong {
        bytes: 512 * 1024,
        segment: 1448,
        window: 88,
        network: Nanos::from_micros(5),
        turnaround: Nanos::from_micros(15),
        mirrored: true,
        cycles_per_byte: 0.5,
    });
    let cycles = |model: &NetServerModel, delay_us| {
        let totals = run(model, GHZ(29), delay_us);
        assert!(totals.answered > 50, "{}", totals.answered);
        totals.cycles / totals.answered as f64
    };
    let (at_once, merged) = (cycles(&model, 0), cycles(&model, 30));
    assert!(merged < 0.8 * at_once, "{merged} {at_once}");
    model.stack.merge = None;
    let alone = cycles(&model, 0);
    assert!(at_once < alone, "a frame costs less than a packet: {at_once} {alone}");
}

#[test]
fn a_client_that_answers_within_a_round_of_polling_is_served_after_it() {
    let mut model = model();
    model.stack.run_to_completion = true;
    model.nic.tx_interrupts = false;
    model.traffic = Traffic::PingPong(PingPong {
        bytes: 512 * 1024,
        segment: 1448,
        window: 44,
        network: Nanos::from_micros(1),
        turnaround: Nanos::ZERO,
        mirrored: false,
        cycles_per_byte: 0.5,
    });
    let totals = run(&model, GHZ(12), 50);
    assert!(totals.answered > 100, "{}", totals.answered);
    let idle: Nanos = totals.residency.iter().copied().sum();
    let both = idle + totals.busy;
    let whole = Nanos(2 * totals.span.0);
    assert!(both.0.abs_diff(whole.0) < 1_000_000, "time never goes back: {both} of {whole}");
}

#[test]
fn epochs_shorter_than_a_round_of_a_specialised_stack_can_be_observed() {
    let mut model = model().at_rate(60_000.0);
    model.stack.run_to_completion = true;
    model.nic.tx_interrupts = false;
    let mut plant = model.plant(&app(), 1, 0).unwrap();
    let delay = Coalescing::Delay(Nanos::from_micros(200));
    let _ = plant.apply(&[Setting::Coalescing(NicId(0), delay)]);
    let mut answered = 0.0;
    for _ in 0..10_000 {
        let seen = plant.observe(Nanos::from_micros(1)).unwrap();
        answered += seen.apps[0].latency.as_ref().unwrap().completed_per_s / 1e6;
    }
    assert!((400.0..700.0).contains(&answered), "about 600 in 10 ms: {answered}");
}

#[test]
fn shallow_idle_states_take_power_and_spare_each_wake_up_its_exit_latency() {
    let seen = |us: u64| {
        let mut plant = model().at_rate(500.0).plant(&app(), 1, 0).unwrap();
        let _ = plant.apply(&[Setting::IdleLatency(Nanos::from_micros(us))]);
        plant.observe(Nanos::from_millis(100)).unwrap();
        let seen = plant.observe(Nanos::from_secs(2)).unwrap();
        let mean = seen.apps[0].latency.as_ref().unwrap().window.mean().unwrap();
        (mean, seen.energy.unwrap().energy)
    };
    let ((quick, shallow), (slow, deep)) = (seen(2), seen(104));
    // Most requests wake a core that was idle for long.
    assert!(slow > quick + Nanos::from_micros(30), "{slow} {quick}");
    assert!(shallow.0 > 1.05 * deep.0, "{shallow} {deep}");
}

#[test]
fn a_rule_that_chooses_no_idle_state_leaves_no_limit_to_set() {
    let mut model = model();
    model.idle_rule = lull_sim::idle::IdleRule::Always(1);
    let mut plant = model.plant(&app(), 1, 0).unwrap();
    let why = plant.machine().capabilities.get(Capability::IdleLatency).unwrap_err();
    assert!(why.reason.contains("no choice"), "{why}");
    let got = plant.apply(&[Setting::IdleLatency(Nanos::from_micros(2))]).outcomes[0].got.clone();
    assert!(matches!(got, ApplyOutcome::Refused { .. }), "{got:?}");
}

#[test]
fn knobs_are_rounded_refused_and_given_back() {
    let mut plant = model().plant(&app(), 1, 0).unwrap();
    assert!(plant.machine().capabilities.has(Capability::Coalescing));
    let before = plant.settings();
    let idle = |us| Setting::IdleLatency(Nanos::from_micros(us));
    assert_eq!(before, [Setting::Coalescing(NicId(0), Coalescing::Adaptive), idle(104)]);
    let wanted = [
        Setting::Frequency(DomainId(0), GHZ(21)),
        Setting::Coalescing(NicId(0), Coalescing::Delay(Nanos::from_micros(101))),
        Setting::Coalescing(NicId(0), Coalescing::Delay(Nanos::from_millis(100))),
        idle(50),
    ];
    let outcomes = plant.apply(&wanted).outcomes;
    let became: Vec<_> = outcomes.iter().map(|outcome| outcome.in_force().cloned()).collect();
    let delay = |us| Setting::Coalescing(NicId(0), Coalescing::Delay(Nanos::from_micros(us)));
    let frequency = Setting::Frequency(DomainId(0), GHZ(20));
    assert_eq!(became, [Some(frequency), Some(delay(102)), Some(delay(1022)), Some(idle(2))]);
    let _ = plant.restore();
    assert_eq!(plant.settings(), before);
}

#[test]
fn a_step_that_is_longer_than_the_clock_counts_never_ends() {
    let mut endless = model();
    endless.stack.wake_cycles = 1e308;
    let totals = run(&endless, GHZ(29), 50);
    assert!(totals.arrived > 19_000, "{totals:?}");
    assert_eq!(totals.answered, 0);
}

#[test]
fn models_that_make_no_sense_are_refused_by_key() {
    let refused = |change: &dyn Fn(&mut NetServerModel)| {
        let mut model = model();
        change(&mut model);
        model.simulation(1, 0).unwrap_err().to_string()
    };
    assert!(refused(&|it| it.cores = 0).starts_with("cores"));
    assert!(refused(&|it| it.packages = 3).starts_with("packages"));
    assert!(refused(&|it| it.frequencies.reverse()).starts_with("frequencies"));
    assert!(refused(&|it| it.idle.clear()).starts_with("idle"));
    assert!(refused(&|it| it.idle[1].watts = it.idle[0].watts).starts_with("idle[1].watts"));
    assert!(refused(&|it| it.power.volts = [1.2, 1.0]).starts_with("power.volts"));
    assert!(refused(&|it| it.nic.budget = 0).starts_with("nic.budget"));
    assert!(refused(&|it| it.app.cycles = f64::NAN).starts_with("app.cycles"));
    assert!(refused(&|it| it.stack.events = 0).starts_with("stack.events"));
    let ondemand = |period, up| Governor::Ondemand { period, up, io_is_busy: true };
    let governor = ondemand(Nanos::ZERO, 0.9);
    assert!(refused(&|it| it.governor = governor).starts_with("governor.ondemand.period"));
    let governor = ondemand(Nanos::from_millis(10), 0.0);
    assert!(refused(&|it| it.governor = governor).starts_with("governor.ondemand.up"));
    let governor =
        Governor::Ondemand { period: Nanos::from_millis(10), up: 0.95, io_is_busy: false };
    assert!(refused(&|it| it.governor = governor).starts_with("governor.ondemand.io_is_busy"));
    let late = LoadStep { from: Nanos::from_secs(1), rate_per_s: 1.0 };
    let with = |load: Vec<LoadStep>| {
        refused(&|it| {
            if let Traffic::Open { load: now, .. } = &mut it.traffic {
                now.clone_from(&load);
            }
        })
    };
    assert!(with(vec![late]).starts_with("traffic.open.load"));
    assert!(with(Vec::new()).starts_with("traffic.open.load"));
    let wrong = LoadStep { from: Nanos::ZERO, rate_per_s: f64::NAN };
    assert!(with(vec![wrong]).starts_with("traffic.open.load[0].rate-per-s"));
}

#[test]
fn a_message_of_more_frames_than_can_be_simulated_is_refused() {
    let with = |bytes| {
        let mut model = model();
        model.traffic = Traffic::PingPong(PingPong {
            bytes,
            segment: 1448,
            window: 44,
            network: Nanos::from_micros(5),
            turnaround: Nanos::ZERO,
            mirrored: false,
            cycles_per_byte: 0.5,
        });
        model.simulation(1, 0).map(|_| ()).map_err(|error| error.to_string())
    };
    let most = 1448 << 20;
    assert_eq!(with(most), Ok(()));
    let refused = with(most + 1).unwrap_err();
    assert!(refused.starts_with("traffic.ping-pong.bytes: 1048577 frames"), "{refused}");
    // More than 32 bits of frames are not taken for a short message.
    assert!(with(1448 << 32).unwrap_err().starts_with("traffic.ping-pong.bytes"));
}

#[test]
fn every_driver_moderates_within_its_own_range() {
    for (driver, most_us) in
        [(Moderation::Ixgbe, 126), (Moderation::IxgbeClassic, 125), (Moderation::E1000e, 250)]
    {
        let mut model = model().at_rate(60_000.0);
        model.nic.moderation = driver;
        let mut server = model.simulation(1, 0).unwrap();
        server.keep_interrupts(5000);
        server.run_until(Nanos::from_millis(300));
        let delays: Vec<_> = server.interrupts(0).iter().map(|entry| entry.delay).collect();
        let most = delays.iter().max().unwrap();
        assert!(*most <= Nanos::from_micros(most_us + 1), "{driver:?}: {most}");
        assert!(delays.iter().any(|delay| delay != &delays[0]), "{driver:?} adapts");
    }
}
