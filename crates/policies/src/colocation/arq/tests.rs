//! Algorithm 1 line by line, the corrections, and whole runs on the in-memory plant.

use super::*;
use crate::config::Config as _;
use crate::testing::{alive, be, cores_only, gone, observation};
use lull_control::conformance::{MemoryApp, MemoryPlant};
use lull_control::{AppObservation, CoreSet, Knob, LatencyObservation, Plant};
use lull_measure::{Latency, Percentile};
use rand::SeedableRng;

const EPOCH: Nanos = Nanos::from_millis(500);
const BOUND_MS: u64 = 10;
const A: AppId = AppId(0);
const B: AppId = AppId(1);
const BE: AppId = AppId(2);
const NAMES: [(AppId, &str); 2] = [(A, "a"), (B, "b")];

fn specs(threads: u32) -> Vec<AppSpec> {
    let lc = |name: &str| AppSpec {
        threads: Some(threads),
        ..AppSpec::latency_critical(name, Percentile::P95, Nanos::from_millis(BOUND_MS))
    };
    let be = AppSpec { solo_per_s: Some(100.0), ..AppSpec::best_effort("be") };
    vec![lc("a"), lc("b"), be]
}

fn config(text: &str) -> Config {
    read(&text.parse().unwrap()).unwrap()
}

/// A policy that is shown what the test makes up.
struct Bench {
    arq: Arq,
    time: Nanos,
    rng: Rng,
}

impl Bench {
    fn on_machine(machine: &Machine, text: &str, threads: u32) -> Self {
        let arq = Arq::new(config(text), machine, &specs(threads)).unwrap();
        Self { arq, time: Nanos::ZERO, rng: Rng::seed_from_u64(1) }
    }

    fn new(text: &str) -> Self {
        Self::on_machine(&cores_only(8), text, 8)
    }

    fn see(&mut self, apps: Vec<AppObservation>) -> Plan {
        self.time += EPOCH;
        self.arq.decide(&observation(self.time, EPOCH, apps), &mut self.rng)
    }

    /// One period with these tails, and how much the best-effort app got done.
    fn period(&mut self, a_ms: u64, b_ms: u64, progress: f64) -> Plan {
        self.see(vec![lc(a_ms), lc(b_ms), be(progress)])
    }

    fn cores(&self) -> String {
        self.arq.regions.line(Kind::Cores, &NAMES)
    }
}

fn lc(tail_ms: u64) -> AppObservation {
    let window: Latency = [Nanos::from_millis(tail_ms)].into_iter().collect();
    let seen = LatencyObservation { window, offered_per_s: 100.0, ..LatencyObservation::default() };
    AppObservation { latency: Ok(seen), ..alive() }
}

#[test]
fn the_start_is_everything_shared_and_comfort_is_equilibrium() {
    let mut bench = Bench::new("");
    for _ in 0..3 {
        let plan = bench.period(5, 5, 50.0);
        assert_eq!(bench.cores(), "a:0 b:0 shared:8");
        assert_eq!(plan.expected, None);
        let all = Setting::Cores(BE, CoreSet::first(8));
        assert_eq!(plan.setting(Knob::Cores(BE)), Some(&all));
    }
}

#[test]
fn who_suffers_is_given_a_core_of_the_shared_region() {
    let mut bench = Bench::new("");
    let plan = bench.period(20, 5, 50.0);
    assert_eq!(bench.cores(), "a:1 b:0 shared:7");
    let given = plan.steps().find(|step| step.setting.knob() == Knob::Cores(BE)).unwrap();
    assert_eq!(given.setting, Setting::Cores(BE, CoreSet::first(7)));
    let metric = REMAINING_TOLERANCE;
    let why = Reason::Threshold { metric, app: Some(A), value: 0.0, threshold: 0.05 };
    assert_eq!(given.reason, why);
    assert_eq!(plan.expected.unwrap().direction, Direction::Lower);
}

#[test]
fn between_the_thresholds_nothing_moves() {
    // ReT of 0.07 is neither below 0.05 nor above 0.1.
    let mut bench = Bench::new("beneficiary_below = 0.05\nvictim_above = 0.1");
    bench.period(20, 5, 50.0);
    let seen = |tail_us: u64| {
        let window: Latency = [Nanos::from_micros(tail_us)].into_iter().collect();
        AppObservation {
            latency: Ok(LatencyObservation { window, ..LatencyObservation::default() }),
            ..alive()
        }
    };
    bench.see(vec![seen(9_300), seen(5_000), be(50.0)]);
    assert_eq!(bench.cores(), "a:1 b:0 shared:7");
    bench.see(vec![seen(8_900), seen(5_000), be(50.0)]);
    assert_eq!(bench.cores(), "a:0 b:0 shared:8");
}

#[test]
fn the_rich_give_to_the_poor_before_the_shared_region_does() {
    let mut bench = Bench::new("");
    bench.period(20, 5, 50.0);
    assert_eq!(bench.cores(), "a:1 b:0 shared:7");
    bench.period(5, 20, 50.0);
    assert_eq!(bench.cores(), "a:0 b:1 shared:7");
}

#[test]
fn of_two_violators_the_one_further_off_is_served_first() {
    let mut bench = Bench::new("");
    bench.period(20, 40, 50.0);
    assert_eq!(bench.cores(), "a:0 b:1 shared:7");
    bench.period(30, 30, 50.0);
    assert_eq!(bench.cores(), "a:1 b:1 shared:6", "a tie goes to the first in the list");
}

/// Gives `a` two cores, then comfort, so that it gives one back, which then hurts.
fn a_taking_that_hurts(bench: &mut Bench) -> (Plan, Plan) {
    bench.period(40, 5, 50.0);
    let before = bench.period(20, 5, 50.0);
    assert_eq!(bench.cores(), "a:2 b:0 shared:6");
    bench.period(5, 5, 50.0);
    assert_eq!(bench.cores(), "a:1 b:0 shared:7");
    let after = bench.period(20, 5, 50.0);
    (before, after)
}

#[test]
fn a_taking_that_raises_entropy_is_undone_exactly_and_spared_for_a_minute() {
    let mut bench = Bench::new("");
    let (before, after) = a_taking_that_hurts(&mut bench);
    let settings = |plan: &Plan| plan.steps().map(|step| step.setting.clone()).collect::<Vec<_>>();
    assert_eq!(settings(&before), settings(&after));
    let undone = after.steps().any(|step| matches!(step.reason, Reason::Undo { .. }));
    assert!(undone, "{after:?}");
    // The undo was at 2 s; 60 s are the 120 periods up to 62 s.
    for _ in 0..119 {
        bench.period(5, 5, 50.0);
        assert_eq!(bench.cores(), "a:2 b:0 shared:6");
    }
    bench.period(5, 5, 50.0);
    assert_eq!(bench.cores(), "a:1 b:0 shared:7");
}

#[test]
fn the_printed_ban_of_the_shared_region_locks_up() {
    let cores_after_a_rise = |text: &str| {
        let mut bench = Bench::new(text);
        bench.period(20, 5, 50.0);
        for _ in 0..4 {
            // One noisy rise of entropy, then suffering as before.
            bench.period(30, 5, 50.0);
        }
        bench.cores()
    };
    assert_eq!(cores_after_a_rise(""), "a:5 b:0 shared:3");
    let printed = "ban = \"all\"\nundo = \"all\"";
    assert_eq!(cores_after_a_rise(printed), "a:0 b:0 shared:8", "no app can gain");
}

#[test]
fn no_app_gets_more_cores_than_threads_and_the_next_in_need_is_served() {
    let mut bench = Bench::on_machine(&cores_only(8), "", 2);
    for _ in 0..3 {
        bench.period(40, 20, 50.0);
    }
    assert_eq!(bench.cores(), "a:2 b:1 shared:5");
    for _ in 0..5 {
        bench.period(40, 20, 50.0);
    }
    assert_eq!(bench.cores(), "a:2 b:2 shared:4");
}

#[test]
fn without_a_stated_thread_count_the_one_seen_is_the_cap() {
    let mut apps = specs(8);
    apps[0].threads = None;
    let arq = Arq::new(Config::default(), &cores_only(8), &apps).unwrap();
    let mut bench = Bench { arq, time: Nanos::ZERO, rng: Rng::seed_from_u64(1) };
    for _ in 0..5 {
        bench.see(vec![AppObservation { threads: Ok(3), ..lc(40) }, lc(5), be(50.0)]);
    }
    assert_eq!(bench.cores(), "a:3 b:0 shared:5");
}

#[test]
fn when_cores_do_not_help_the_next_unit_is_of_another_kind() {
    let machine = MemoryPlant::new(8, Vec::new()).machine().clone();
    let mut bench = Bench::on_machine(&machine, "", 8);
    let units =
        |bench: &Bench| Kind::ALL.map(|kind| bench.arq.regions.units_in(kind, Region::Isolated(A)));
    bench.period(20, 5, 50.0);
    assert_eq!(units(&bench), [1, 0, 0]);
    bench.period(20, 5, 50.0);
    assert_eq!(units(&bench), [2, 0, 0], "no worse, so the wheel stays");
    bench.period(30, 5, 50.0);
    assert_eq!(units(&bench), [2, 1, 0]);
    bench.period(40, 5, 50.0);
    assert_eq!(units(&bench), [2, 1, 1]);
    bench.period(50, 5, 50.0);
    assert_eq!(units(&bench), [3, 1, 1]);
}

#[test]
fn an_idle_app_with_a_bad_last_tail_is_not_in_need_and_a_stuck_one_is() {
    let quiet = |outstanding| {
        let oldest = (outstanding > 0).then_some(Nanos::from_secs(1));
        let seen = LatencyObservation { outstanding, oldest, ..LatencyObservation::default() };
        AppObservation { latency: Ok(seen), ..alive() }
    };
    let mut bench = Bench::new("");
    bench.period(20, 5, 50.0);
    assert_eq!(bench.cores(), "a:1 b:0 shared:7");
    bench.see(vec![quiet(0), lc(5), be(50.0)]);
    assert_eq!(bench.cores(), "a:1 b:0 shared:7");
    bench.see(vec![quiet(3), lc(5), be(50.0)]);
    assert_eq!(bench.cores(), "a:2 b:0 shared:6");
}

#[test]
fn what_an_app_that_exits_held_is_shared_again() {
    let mut bench = Bench::new("");
    bench.period(20, 5, 50.0);
    bench.period(20, 5, 50.0);
    let plan = bench.see(vec![gone(), lc(5), be(50.0)]);
    assert_eq!(bench.cores(), "a:0 b:0 shared:8");
    assert_eq!(plan.setting(Knob::Cores(A)), None, "a dead app has no threads to set");
    let reports_exit = plan.steps().any(|step| step.reason == Reason::Exited { app: A });
    assert!(reports_exit, "{plan:?}");
}

#[test]
fn a_change_of_load_excuses_a_move_only_if_configured() {
    let rises_with_load = |text: &str| {
        let mut bench = Bench::new(text);
        bench.period(20, 5, 50.0);
        bench.period(5, 5, 50.0);
        assert_eq!(bench.cores(), "a:0 b:0 shared:8");
        let mut loaded = lc(5);
        loaded.latency.as_mut().unwrap().offered_per_s = 150.0;
        // E_S rises by the best-effort app alone; all other apps are well below their bounds.
        bench.see(vec![loaded, lc(5), be(20.0)]);
        bench.cores()
    };
    assert_eq!(rises_with_load(""), "a:1 b:0 shared:7");
    assert_eq!(rises_with_load("skip_undo_on_load_change = true"), "a:0 b:0 shared:8");
}

#[test]
fn a_move_is_not_judged_across_an_app_that_speaks_up() {
    let after = |b: fn() -> AppObservation| {
        let mut bench = Bench::new("");
        bench.see(vec![lc(20), b(), be(50.0)]);
        bench.see(vec![lc(5), b(), be(50.0)]);
        assert_eq!(bench.cores(), "a:0 b:0 shared:8");
        // `b` now misses its bound: at its first report, or after slack.
        bench.see(vec![lc(5), lc(20), be(50.0)]);
        bench.cores()
    };
    assert_eq!(after(|| lc(5)), "a:1 b:0 shared:7", "comparable, so undone");
    assert_eq!(after(alive), "a:0 b:1 shared:7", "not comparable, so b is served");
}

#[test]
fn a_rise_within_epsilon_is_no_rise() {
    let after_small_rise = |text: &str| {
        let mut bench = Bench::new(text);
        bench.period(20, 5, 50.0);
        bench.period(5, 5, 50.0);
        bench.period(5, 5, 48.0);
        bench.cores()
    };
    assert_eq!(after_small_rise(""), "a:1 b:0 shared:7");
    assert_eq!(after_small_rise("epsilon = 0.02"), "a:0 b:0 shared:8");
}

#[test]
fn the_period_is_kept_under_a_faster_loop() {
    let mut bench = Bench::new("period = \"2s\"");
    let moved = (0..8).map(|_| bench.period(20, 5, 50.0).expected.is_some());
    let wanted = [false, false, false, true, false, false, false, true];
    assert_eq!(moved.collect::<Vec<_>>(), wanted);
    assert_eq!(bench.cores(), "a:2 b:0 shared:6");
}

#[test]
fn priority_in_the_shared_region_is_by_idle_or_by_round_robin() {
    let class = |text: &str, app| {
        let mut bench = Bench::new(text);
        bench.period(5, 5, 50.0).setting(Knob::Scheduling(app)).cloned()
    };
    let first = "priority = \"latency-critical\"";
    let real_time = format!("{first}\npriority_by = \"round-robin\"");
    assert_eq!((class("", A), class("", BE)), (None, None));
    let idle = Setting::Scheduling(BE, Scheduling::Idle);
    assert_eq!((class(first, A), class(first, BE)), (None, Some(idle)));
    let rr = Setting::Scheduling(A, Scheduling::RoundRobin { priority: 1 });
    assert_eq!((class(&real_time, A), class(&real_time, BE)), (Some(rr), None));
}

#[test]
fn priority_needs_the_scheduling_knob_and_equality_does_not() {
    let bare = MemoryPlant::new(2, Vec::new()).without(Capability::Scheduling, "no right");
    let build = |text: &str| ENTRY.build(&text.parse().unwrap(), bare.machine(), &specs(2)).err();
    assert_eq!(build(""), None);
    let refused = build("priority = \"latency-critical\"").unwrap().to_string();
    assert!(refused.contains("no right"), "{refused}");
}

#[test]
fn an_ideal_above_its_bound_is_refused_by_name() {
    let mut apps = specs(2);
    apps[1].ideal = Some(Nanos::from_millis(BOUND_MS + 1));
    let text = Arq::new(Config::default(), &cores_only(8), &apps).err().unwrap().to_string();
    assert!(text.contains("`b`") && text.contains("11ms") && text.contains("10ms"), "{text}");
}

#[test]
fn epochs_without_answers_and_progress_that_is_no_number_move_nothing_by_themselves() {
    let mut bench = Bench::new("");
    for progress in [f64::NAN, f64::INFINITY] {
        let plan = bench.see(vec![alive(), alive(), be(progress)]);
        assert_eq!((bench.cores().as_str(), plan.expected), ("a:0 b:0 shared:8", None));
    }
    bench.period(20, 5, f64::NAN);
    assert_eq!(bench.cores(), "a:1 b:0 shared:7", "who suffers is still served");
}

#[test]
fn without_one_class_the_other_has_everything() {
    for apps in [vec![specs(2).remove(0)], vec![specs(2).remove(2)]] {
        let seen = if apps[0].is_latency_critical() { lc(5) } else { be(50.0) };
        let arq = Arq::new(Config::default(), &cores_only(8), &apps).unwrap();
        let mut bench = Bench { arq, time: Nanos::ZERO, rng: Rng::seed_from_u64(1) };
        for _ in 0..3 {
            let plan = bench.see(vec![seen.clone()]);
            let all = Setting::Cores(A, CoreSet::first(8));
            assert_eq!(plan.setting(Knob::Cores(A)), Some(&all));
        }
    }
}

#[test]
fn thresholds_upside_down_are_refused() {
    let error = read::<Config>(&"beneficiary_below = 0.2".parse().unwrap()).unwrap_err();
    assert!(matches!(&error, PolicyError::Config { key, .. } if key == "beneficiary_below"));
    assert!(Config::KEYS.iter().any(|key| key.name == "beneficiary_below"));
}

/// Two latency-critical apps and a best-effort one on a plant that answers.
fn plant(cores: u16, demands: [f64; 2]) -> MemoryPlant {
    let app = |(spec, demand_cores)| MemoryApp {
        spec,
        demand_cores,
        service: Nanos::from_millis(1),
        threads: 8,
    };
    let solo = f64::from(cores.min(4));
    let mut specs = specs(8);
    specs[2].solo_per_s = Some(solo);
    let apps = specs.into_iter().zip([demands[0], demands[1], 0.0]);
    MemoryPlant::new(cores, apps.map(app).collect())
        .without(Capability::CacheWays, "test")
        .without(Capability::MemoryBandwidth, "test")
}

/// Lets a policy steer a plant; the trajectory of cores and of E_S.
fn run(plant: &mut MemoryPlant, arq: &mut Arq, periods: usize) -> Vec<(String, f64)> {
    let mut rng = Rng::seed_from_u64(1);
    let one = |_| {
        let plan = arq.decide(&plant.observe(EPOCH).unwrap(), &mut rng);
        let settings: Vec<_> = plan.steps().map(|step| step.setting.clone()).collect();
        let applied = plant.apply(&settings);
        assert!(applied.outcomes.iter().all(|one| one.in_force().is_some()), "{applied:?}");
        (arq.regions.line(Kind::Cores, &NAMES), arq.entropy)
    };
    (0..periods).map(one).collect()
}

fn arq_on(plant: &MemoryPlant, text: &str) -> Arq {
    Arq::new(config(text), plant.machine(), plant.apps()).unwrap()
}

fn lines(trajectory: &[(String, f64)]) -> Vec<&str> {
    trajectory.iter().map(|(line, _)| line.as_str()).collect()
}

#[test]
fn a_violating_app_gets_cores_until_it_meets_its_objective_and_entropy_falls() {
    let mut plant = plant(9, [2.8, 1.0]);
    let mut arq = arq_on(&plant, "");
    let trajectory = run(&mut plant, &mut arq, 8);
    assert_eq!(
        lines(&trajectory),
        [
            "a:1 b:0 shared:8",
            "a:2 b:0 shared:7",
            // The tail is well below its bound, so a unit is returned; entropy rises, so this is
            // undone and not tried again.
            "a:1 b:0 shared:8",
            "a:2 b:0 shared:7",
            "a:2 b:0 shared:7",
            "a:2 b:0 shared:7",
            "a:2 b:0 shared:7",
            "a:2 b:0 shared:7",
        ]
    );
    let (first, last) = (trajectory[0].1, trajectory[7].1);
    assert!(last < 0.5 * first, "E_S went from {first} to {last}");
}

#[test]
fn cores_go_back_when_the_load_falls() {
    let mut plant = plant(9, [2.8, 1.0]);
    let mut arq = arq_on(&plant, "");
    run(&mut plant, &mut arq, 2);
    plant.set_demand(A, 0.5);
    let trajectory = run(&mut plant, &mut arq, 4);
    assert_eq!(
        lines(&trajectory),
        ["a:1 b:0 shared:8", "a:0 b:0 shared:9", "a:0 b:0 shared:9", "a:0 b:0 shared:9"]
    );
}

#[test]
fn the_printed_undo_keeps_an_app_that_needs_two_cores_from_getting_them() {
    let settled = |text: &str| {
        let mut plant = plant(4, [2.4, 0.1]);
        let mut arq = arq_on(&plant, text);
        run(&mut plant, &mut arq, 40).pop().unwrap()
    };
    let (printed, ours) = (settled("undo = \"all\""), settled(""));
    assert!(ours.1 < 0.6 * printed.1, "ours {ours:?}, printed {printed:?}");
}

#[test]
fn priority_for_latency_critical_apps_lowers_entropy_without_isolation() {
    let mut entropies = ["", "priority = \"latency-critical\""].map(|text| {
        let mut plant = plant(9, [2.8, 1.0]);
        let mut arq = arq_on(&plant, text);
        run(&mut plant, &mut arq, 4).pop().unwrap()
    });
    entropies.sort_by(|a, b| a.1.total_cmp(&b.1));
    assert_eq!(entropies[0].0, "a:0 b:0 shared:9");
}

#[test]
fn the_entropy_by_which_it_decides_follows_corrected_references() {
    let mut bench = Bench::new("");
    let seen = observation(EPOCH, EPOCH, vec![lc(5), lc(5), be(200.0)]);
    assert_eq!(bench.arq.assessor.assess(&seen).entropy.be, Some(0.0));
    let mut apps = specs(8);
    apps[BE.index()].solo_per_s = Some(400.0);
    bench.arq.references_changed(&apps);
    assert_eq!(bench.arq.assessor.assess(&seen).entropy.be, Some(0.5));
}
