//! The loop over the in-memory plant: what an operator relies on.

mod late;
mod retries;

use lull_control::conformance::{self, MemoryApp, MemoryPlant};
use lull_control::journal::{Entry, Event, OperatorAct};
use lull_control::*;
use lull_measure::catalogue::{self, ENTROPY_SYSTEM};
use lull_measure::{Hertz, Nanos, Percentile};
use rand::SeedableRng;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

const EPOCH: Nanos = Nanos::from_millis(500);
const LC: AppId = AppId(0);
const BE: AppId = AppId(1);

fn plant() -> MemoryPlant {
    let mut lc = AppSpec::latency_critical("lc", Percentile::P95, Nanos::from_millis(10));
    lc.ideal = Some(Nanos::from_millis(4));
    let mut be = AppSpec::best_effort("be");
    be.solo_per_s = Some(4.0);
    let app = |spec, demand_cores| MemoryApp {
        spec,
        demand_cores,
        service: Nanos::from_millis(1),
        threads: 4,
    };
    MemoryPlant::new(4, vec![app(lc, 1.8), app(be, 0.0)])
}

/// Wants one plan in every epoch.
struct Always(Plan);

impl Policy for Always {
    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        self.0.clone()
    }
}

fn isolate() -> Plan {
    let mut plan = Plan::keep();
    let cores = |text: &str| text.parse().unwrap();
    plan.set(Setting::Cores(LC, cores("0-2")), Reason::Start);
    plan.set(Setting::Cores(BE, cores("3")), Reason::Start);
    let metric = ENTROPY_SYSTEM;
    plan.expected = Some(Expectation { metric, app: None, direction: Direction::Lower, by: None });
    plan
}

fn run(plan: Plan, rules: Rules) -> ControlLoop<MemoryPlant> {
    let plant = plant();
    let controller = Controller::new(Box::new(Always(plan)), rules, &plant).unwrap();
    ControlLoop::new(plant, controller, EPOCH, Rng::seed_from_u64(1))
}

fn events(epoch: &Epoch) -> Vec<&Event> {
    epoch.entries.iter().map(|Entry { event, .. }| event).collect()
}

#[test]
fn the_in_memory_plant_conforms() {
    conformance::check(EPOCH, plant);
}

#[test]
fn a_crippled_in_memory_plant_conforms_too() {
    let lacks = [Capability::Frequency, Capability::Scheduling, Capability::CacheWays];
    conformance::check(EPOCH, || {
        lacks.into_iter().fold(plant(), |plant, what| plant.without(what, "taken away"))
    });
}

#[test]
fn apps_of_the_in_memory_plant_come_and_go() {
    conformance::check_churn(EPOCH, 300, &mut plant(), |plant, app, event| match event {
        RosterEvent::Departed => plant.end(app),
        RosterEvent::Arrived | RosterEvent::Restarted => plant.begin(app),
    });
}

#[test]
fn a_plan_is_applied_once_and_its_effect_is_journalled() {
    let mut run = run(isolate(), Rules::default());
    let first = run.turn().unwrap();
    let decided = events(&first);
    assert!(decided.iter().all(|event| matches!(event, Event::Decision(_))), "{decided:?}");
    assert_eq!(decided.len(), 2);
    let second = run.turn().unwrap();
    let [Event::Effect(effect)] = events(&second)[..] else { panic!("{:?}", second.entries) };
    assert!(effect.as_expected(), "isolation should help here: {effect:?}");
    assert_eq!(effect.before, first.assessment.entropy.system);
    assert_eq!(effect.after, second.assessment.entropy.system);
    assert!(events(&run.turn().unwrap()).is_empty(), "a repeated plan is not a decision");
}

/// The refusals that a policy has received.
type Refusals = Arc<Mutex<Vec<(Setting, String)>>>;

/// Wants a frequency, and records the refusals that it receives.
struct RefusalRecorder(Refusals);

impl Policy for RefusalRecorder {
    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        let mut plan = isolate();
        plan.set(fast(), Reason::Start);
        plan
    }

    fn refused(&mut self, settings: &[(Setting, String)]) {
        self.0.lock().unwrap().extend(settings.iter().cloned());
    }
}

fn fast() -> Setting {
    Setting::Frequency(DomainId(0), Hertz::from_khz(2_000_000))
}

#[test]
fn a_policy_receives_refused_settings_and_the_reasons() {
    let plant = plant().without(Capability::Frequency, "taken away");
    let notices = Arc::new(Mutex::new(Vec::new()));
    let policy = Box::new(RefusalRecorder(notices.clone()));
    let controller = Controller::new(policy, Rules::default(), &plant).unwrap();
    let mut run = ControlLoop::new(plant, controller, EPOCH, Rng::seed_from_u64(1));
    run.turn().unwrap();
    let notices = notices.lock().unwrap();
    let [(setting, why)] = &notices[..] else { panic!("{notices:?}") };
    assert_eq!(*setting, fast());
    assert!(why.contains("taken away"), "{why}");
}

#[test]
fn a_knob_that_accepts_a_setting_and_keeps_the_former_one_has_not_taken_it() {
    let one = |got| Outcome { wanted: fast(), got };
    let slow = Setting::Frequency(DomainId(0), Hertz::from_khz(1_000_000));
    let lie = one(ApplyOutcome::Clamped { to: slow.clone(), why: "limited".to_owned() });
    assert!(lie.failure(Some(&slow)).unwrap().contains("stays: limited"));
    // Something near was set.
    assert_eq!(lie.failure(Some(&fast())), None);
    assert_eq!(one(ApplyOutcome::Done).failure(Some(&slow)), None);
    assert!(one(ApplyOutcome::Refused { why: "no".to_owned() }).failure(None).is_some());
    let plant = plant();
    let notices = Arc::new(Mutex::new(Vec::new()));
    let policy = Box::new(RefusalRecorder(notices.clone()));
    let mut controller = Controller::new(policy, Rules::default(), &plant).unwrap();
    let mut plant = plant;
    let seen = plant.observe(EPOCH).unwrap();
    let turn = controller.turn(&seen, &mut rng());
    let before = plant.settings();
    let stays = |wanted: &Setting| {
        let to = before.iter().find(|it| it.knob() == wanted.knob()).unwrap().clone();
        Outcome { wanted: wanted.clone(), got: ApplyOutcome::Clamped { to, why: String::new() } }
    };
    let applied = Applied { outcomes: turn.changes.iter().map(stays).collect() };
    let count = applied.outcomes.len();
    controller.conclude(turn, applied);
    assert!(count > 0 && notices.lock().unwrap().len() == count);
}

/// A loop of a policy that records its refusals.
fn recording_refusals(rules: Rules) -> (Harness, Refusals) {
    let (plant, refusals) = (plant(), Refusals::default());
    let policy = Box::new(RefusalRecorder(refusals.clone()));
    let controller = Controller::new(policy, rules, &plant).unwrap();
    (Harness { plant, controller, rng: rng() }, refusals)
}

#[test]
fn a_policy_learns_that_another_program_has_its_knob() {
    let (mut harness, refusals) = recording_refusals(Rules::default());
    harness.turn();
    assert!(refusals.lock().unwrap().is_empty());
    harness.plant.interfere(Setting::Cores(BE, "0-1".parse().unwrap()));
    harness.turn();
    let refused = std::mem::take(&mut *refusals.lock().unwrap());
    let [(setting, why)] = &refused[..] else { panic!("{refused:?}") };
    assert_eq!(*setting, Setting::Cores(BE, "3".parse().unwrap()));
    assert!(why.contains("another program"), "{why}");
    // The other program has set what the policy wants.
    let (mut harness, refusals) = recording_refusals(Rules::default());
    harness.plant.interfere(Setting::Cores(BE, "3".parse().unwrap()));
    harness.turn();
    assert!(refusals.lock().unwrap().is_empty());
}

#[test]
fn a_policy_learns_what_a_limit_excludes_and_not_what_waits_for_its_dwell() {
    let limits = Limits { cores: Some("0-2".parse().unwrap()), ..Limits::default() };
    let (mut harness, refusals) = recording_refusals(Rules { limits, ..Rules::default() });
    harness.turn();
    let refused = refusals.lock().unwrap().clone();
    let [(Setting::Cores(BE, _), why)] = &refused[..] else { panic!("{refused:?}") };
    assert!(why.contains("limits.cores"), "{why}");
    let limits = Limits { dwell: Nanos::from_secs(60), ..Limits::default() };
    let (mut harness, refusals) = recording_refusals(Rules { limits, ..Rules::default() });
    harness.turn();
    let other = Box::new(RefusalRecorder(refusals.clone()));
    let now = [Setting::Cores(BE, "0-1".parse().unwrap())];
    harness.controller.set_policy(other, &now);
    let entries = harness.turn();
    let is_held = |entry: &Entry| matches!(entry.event, Event::Held { .. });
    assert!(entries.iter().any(is_held) && refusals.lock().unwrap().is_empty(), "{entries:?}");
}

#[test]
fn a_dry_run_touches_nothing_and_says_what_it_would() {
    let mut run = run(isolate(), Rules { dry_run: true, ..Rules::default() });
    let before = run.plant().settings();
    let epoch = run.turn().unwrap();
    assert_eq!(run.plant().settings(), before);
    let held = events(&epoch);
    assert_eq!(held.len(), 2);
    assert!(held.iter().all(|event| matches!(event, Event::Held { why, .. } if why == "dry run")));
}

#[test]
fn a_silent_latency_source_means_the_safe_state_until_it_speaks() {
    let plant = plant();
    let controller =
        Controller::new(Box::new(Always(isolate())), Rules::default(), &plant).unwrap();
    let mut harness = Harness { plant, controller, rng: Rng::seed_from_u64(1) };
    harness.turn();
    harness.plant.set_silent(LC, true);
    let silent: Vec<_> = (0..4).map(|_| harness.turn()).collect();
    let begins = |entries: &Vec<Entry>| {
        entries.iter().any(|entry| matches!(entry.event, Event::SafeBegins { .. }))
    };
    // Heard at 0.5 s; silent for 2 s at 2.5 s, which is the fourth silent epoch.
    assert_eq!(silent.iter().map(begins).collect::<Vec<_>>(), [false, false, false, true]);
    let all = Setting::Cores(LC, CoreSet::first(4));
    assert!(harness.plant.settings().contains(&all), "safe state is all cores");
    harness.plant.set_silent(LC, false);
    let back = harness.turn();
    assert!(back.iter().any(|entry| entry.event == Event::SafeEnds));
    let isolated = Setting::Cores(BE, "3".parse().unwrap());
    assert!(harness.plant.settings().contains(&isolated), "the policy is followed again");
}

#[test]
fn the_time_before_the_first_epoch_is_no_silence() {
    let mut harness = harness(Rules::default());
    // The apps took a minute to start.
    harness.plant.observe(Nanos::from_secs(60)).unwrap();
    harness.plant.set_silent(LC, true);
    let begins: Vec<bool> = (0..4)
        .map(|_| {
            let mut entries = harness.turn().into_iter();
            entries.any(|entry| matches!(entry.event, Event::SafeBegins { .. }))
        })
        .collect();
    assert_eq!(begins, [false, false, false, true]);
}

/// Wants one plan, but is at fault in some of its decisions.
struct AtFault(std::vec::IntoIter<Option<&'static str>>, Option<&'static str>);

impl Policy for AtFault {
    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        self.1 = self.0.next().flatten();
        isolate()
    }

    fn fault(&self) -> Option<String> {
        self.1.map(str::to_owned)
    }
}

#[test]
fn a_plan_of_a_policy_at_fault_is_replaced_by_the_safe_state() {
    let plant = plant();
    let policy = AtFault(vec![None, Some("it is lost"), Some("still"), None].into_iter(), None);
    let controller = Controller::new(Box::new(policy), Rules::default(), &plant).unwrap();
    let mut harness = Harness { plant, controller, rng: Rng::seed_from_u64(1) };
    let isolated = Setting::Cores(BE, "3".parse().unwrap());
    harness.turn();
    assert!(harness.plant.settings().contains(&isolated));
    let begins = |entries: &[Entry]| {
        entries.iter().any(
            |entry| matches!(&entry.event, Event::SafeBegins { cause } if cause == "it is lost"),
        )
    };
    assert!(begins(&harness.turn()));
    let all = Setting::Cores(LC, CoreSet::first(4));
    assert!(harness.plant.settings().contains(&all), "the safe state is all cores");
    assert!(!begins(&harness.turn()), "the journal has the first cause only");
    let back = harness.turn();
    assert!(back.iter().any(|entry| entry.event == Event::SafeEnds));
    assert!(harness.plant.settings().contains(&isolated), "the policy is followed again");
}

#[test]
fn the_safe_state_gives_a_pinned_app_no_more_cores_than_its_owner_did() {
    let mut plant = plant();
    let owners = Setting::Cores(LC, CoreSet::first(2));
    let _ = plant.apply(std::slice::from_ref(&owners));
    let mut plan = Plan::keep();
    plan.set(Setting::Cores(LC, CoreSet::first(1)), Reason::Start);
    let controller = Controller::new(Box::new(Always(plan)), Rules::default(), &plant).unwrap();
    let mut harness = Harness { plant, controller, rng: Rng::seed_from_u64(1) };
    harness.turn();
    assert!(!harness.plant.settings().contains(&owners), "the policy sets one core");
    harness.plant.set_silent(LC, true);
    (0..4).for_each(|_| drop(harness.turn()));
    assert!(harness.plant.settings().contains(&owners), "{:?}", harness.plant.settings());
}

/// Wants a value of every knob, and may be at fault from its second decision on.
struct Wants {
    plan: Plan,
    fails: bool,
    decisions: usize,
}

impl Policy for Wants {
    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        self.decisions += 1;
        self.plan.clone()
    }

    fn fault(&self) -> Option<String> {
        (self.fails && self.decisions > 1).then(|| "it is lost".to_owned())
    }
}

/// What the owner gave before Lull began: of each kind less than the machine has.
fn owners_bounds() -> Vec<Setting> {
    vec![
        Setting::Cores(LC, CoreSet::first(3)),
        Setting::CacheWays(LC, WayMask::run(0, 8)),
        Setting::MemoryBandwidth(LC, 70),
        Setting::Frequency(DomainId(0), Hertz::from_khz(1_000_000)),
        Setting::UncoreFrequency(DialId(0), Hertz::from_khz(1_500_000)),
    ]
}

#[test]
fn every_knob_has_its_owners_value_and_no_more_on_each_way_into_the_safe_state() {
    for fails in [false, true] {
        let mut plant = plant();
        let applied = plant.apply(&owners_bounds());
        assert!(applied.outcomes.iter().all(|outcome| outcome.got == ApplyOutcome::Done));
        let owners = plant.settings();
        let mut plan = Plan::keep();
        let wanted = conformance::plausible(&plant);
        wanted.iter().for_each(|setting| plan.set(setting.clone(), Reason::Start));
        plan.set(fast(), Reason::Start);
        let policy = Wants { plan, fails, decisions: 0 };
        let controller = Controller::new(Box::new(policy), Rules::default(), &plant).unwrap();
        let mut harness = Harness { plant, controller, rng: Rng::seed_from_u64(1) };
        harness.turn();
        let moved = harness.plant.settings();
        harness.plant.set_silent(LC, !fails);
        (0..6).for_each(|_| drop(harness.turn()));
        assert!(harness.controller.is_safe());
        assert_eq!(harness.plant.settings(), owners, "after {fails}");
        let away = owners.iter().filter(|owners| !moved.contains(owners));
        let kinds: BTreeSet<_> = away.map(|owners| owners.knob().row().name).collect();
        let bounded = ["cores", "cache-ways", "memory-bandwidth", "frequency", "uncore-frequency"];
        for seam in bounded.into_iter().chain(["scheduling", "coalescing", "gate-cap"]) {
            assert!(kinds.contains(seam), "{seam} was never away from its safe value: {kinds:?}");
        }
    }
}

#[test]
fn a_knob_that_had_no_value_gets_the_most_in_the_safe_state() {
    let plant = plant();
    let plan = safe_plan(plant.machine(), plant.apps(), &[], "a test");
    assert_eq!(plan.setting(fast().knob()), Some(&fast()));
    assert_eq!(plan.setting(Knob::Scheduling(LC)), None, "its row has no most");
}

#[test]
fn a_paused_loop_watches_and_touches_nothing_until_it_is_resumed() {
    let mut run = run(isolate(), Rules::default());
    let before = run.plant().settings();
    run.pause();
    let epoch = run.turn().unwrap();
    assert_eq!(events(&epoch), [&Event::Operator(OperatorAct::Paused)]);
    assert!(epoch.plan.is_empty() && run.controller().is_paused());
    run.turn().unwrap();
    assert_eq!(run.plant().settings(), before);
    run.resume();
    let epoch = run.turn().unwrap();
    assert_eq!(*events(&epoch)[0], Event::Operator(OperatorAct::Resumed));
    assert_ne!(run.plant().settings(), before);
    assert_eq!(epoch.plan, isolate());
}

/// Counts its decisions and wants nothing.
struct Counting(Arc<Mutex<u32>>);

impl Policy for Counting {
    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        *self.0.lock().unwrap() += 1;
        Plan::keep()
    }
}

#[test]
fn a_policy_skips_epochs_while_a_gate_is_surveyed_unless_a_bound_is_broken() {
    let mut plant = plant();
    plant.set_demand(LC, 0.2);
    let decisions = Arc::new(Mutex::new(0));
    let policy = Counting(Arc::clone(&decisions));
    let controller = Controller::new(Box::new(policy), Rules::default(), &plant).unwrap();
    let mut run = ControlLoop::new(plant, controller, EPOCH, Rng::seed_from_u64(1));
    let decided = || *decisions.lock().unwrap();
    run.set_surveyed(true);
    run.turn().unwrap();
    assert_eq!(decided(), 1, "the first decision is not put off");
    assert_eq!(events(&run.turn().unwrap()), [&Event::SurveyBegins]);
    assert!(events(&run.turn().unwrap()).is_empty());
    assert_eq!(decided(), 1);
    run.plant_mut().set_demand(LC, 1.8);
    assert_eq!(events(&run.turn().unwrap()), [&Event::SurveyEnds]);
    assert_eq!(decided(), 2, "a bound is broken");
    run.plant_mut().set_demand(LC, 0.2);
    assert_eq!(events(&run.turn().unwrap()), [&Event::SurveyBegins]);
    run.set_surveyed(false);
    assert_eq!(events(&run.turn().unwrap()), [&Event::SurveyEnds]);
    assert_eq!(decided(), 3, "the survey is over");
    run.set_surveyed(true);
    (0..240).for_each(|_| drop(run.turn().unwrap()));
    assert_eq!(decided(), 3);
    run.turn().unwrap();
    assert_eq!(decided(), 4, "two minutes are over");
}

#[test]
fn restoring_puts_all_back_and_leaves_it_so() {
    let mut run = run(isolate(), Rules::default());
    let before = run.plant().settings();
    run.turn().unwrap();
    assert_ne!(run.plant().settings(), before);
    let restored = run.restore();
    assert!(restored.outcomes.iter().all(|outcome| outcome.in_force().is_some()));
    assert_eq!(run.plant().settings(), before);
    assert!(run.turn().unwrap().plan.is_empty());
    assert_eq!(run.plant().settings(), before, "the policy was not to act");
    run.resume();
    run.turn().unwrap();
    assert_ne!(run.plant().settings(), before);
}

/// A loop whose plant the test can disturb between epochs.
struct Harness {
    plant: MemoryPlant,
    controller: Controller,
    rng: Rng,
}

impl Harness {
    fn turn(&mut self) -> Vec<Entry> {
        let seen = self.plant.observe(EPOCH).unwrap();
        let turn = self.controller.turn(&seen, &mut self.rng);
        let applied = self.plant.apply(&turn.changes);
        self.controller.conclude(turn, applied).1
    }
}

fn harness(rules: Rules) -> Harness {
    let plant = plant();
    let controller = Controller::new(Box::new(Always(isolate())), rules, &plant).unwrap();
    Harness { plant, controller, rng: Rng::seed_from_u64(1) }
}

#[test]
fn a_foreign_writer_wins_by_default() {
    let mut harness = harness(Rules::default());
    harness.turn();
    let theirs = Setting::Cores(BE, "0-1".parse().unwrap());
    harness.plant.interfere(theirs.clone());
    let entries = harness.turn();
    let notices =
        entries.iter().any(|entry| matches!(entry.event, Event::Foreign { yielded: true, .. }));
    assert!(notices, "{entries:?}");
    harness.turn();
    assert!(harness.plant.settings().contains(&theirs), "Lull fought over a knob");
}

#[test]
fn a_foreign_writer_is_overruled_when_the_operator_says_so() {
    let mut harness = harness(Rules { override_foreign: true, ..Rules::default() });
    harness.turn();
    harness.plant.interfere(Setting::Cores(BE, "0-1".parse().unwrap()));
    harness.turn();
    let ours = Setting::Cores(BE, "3".parse().unwrap());
    assert!(harness.plant.settings().contains(&ours));
}

#[test]
fn a_reserved_knob_is_never_set_also_after_its_app_was_replaced() {
    let mut harness = harness(Rules::default());
    harness.controller.reserve([Knob::Cores(BE)]);
    let of_be = |plant: &MemoryPlant| {
        plant.settings().into_iter().find(|now| now.knob() == Knob::Cores(BE))
    };
    let before = of_be(&harness.plant);
    harness.turn();
    harness.plant.end(BE);
    harness.turn();
    harness.plant.begin(BE);
    (0..3).for_each(|_| drop(harness.turn()));
    assert_eq!(of_be(&harness.plant), before);
    assert!(harness.controller.yielded().contains(&Knob::Cores(BE)));
    assert!(harness.controller.reserved().contains(&Knob::Cores(BE)));
    let ours = Setting::Cores(LC, "0-2".parse().unwrap());
    assert!(harness.plant.settings().contains(&ours), "other knobs are set");
}

#[test]
fn an_app_that_exits_is_reported_once_and_is_no_reason_for_the_safe_state() {
    let mut harness = harness(Rules::default());
    harness.turn();
    harness.plant.end(LC);
    let entries: Vec<_> = (0..6).flat_map(|_| harness.turn()).collect();
    let exits = entries.iter().filter(|entry| matches!(entry.event, Event::AppExited { .. }));
    assert_eq!(exits.count(), 1);
    assert!(!harness.controller.is_safe());
}

#[test]
fn switching_policies_starts_the_new_one_from_untouched_knobs() {
    let before = plant().settings();
    let mut run = run(isolate(), Rules::default());
    run.turn().unwrap();
    let _ = run.switch(Box::new(Always(Plan::keep())));
    assert_eq!(run.plant().settings(), before);
    let _ = run.switch(Box::new(Always(isolate())));
    run.turn().unwrap();
    let again = events(&run.turn().unwrap()).len();
    assert_eq!(run.plant().settings().iter().filter(|now| !before.contains(now)).count(), 2);
    assert_eq!(again, 1, "the plan was applied once and its effect is told");
}

#[test]
fn finish_puts_every_knob_back() {
    let before = plant().settings();
    let mut run = run(isolate(), Rules::default());
    run.turn().unwrap();
    let (plant, restored) = run.finish();
    assert!(restored.outcomes.iter().all(|outcome| outcome.in_force().is_some()));
    assert_eq!(plant.settings(), before);
}

#[test]
fn every_metric_of_the_catalogue_is_produced() {
    let mut run = run(isolate(), Rules::default());
    let mut epoch = run.turn().unwrap();
    let account = ClientAccountObservation {
        name: "web@shop".to_owned(),
        waits: 1,
        wait_quantiles: (Nanos::from_millis(1), Nanos::from_millis(2)),
    };
    epoch.seen.apps[0].client_accounts.push(account);
    let state = run.controller().state();
    let produced: BTreeSet<_> = samples(run.plant().apps(), state, &epoch.seen, &epoch.assessment)
        .into_iter()
        .map(|sample| sample.metric.name)
        .collect();
    let mut described: BTreeSet<_> = catalogue::gauges().map(|metric| metric.name).collect();
    // An agent adds it whose apps a discovery finds.
    assert!(described.remove(catalogue::DISCOVERY_SILENCE.name));
    assert_eq!(produced, described);
}

#[test]
fn instructions_and_cpu_time_are_given_over_the_requests_answered() {
    let mut run = run(isolate(), Rules::default());
    let mut epoch = run.turn().unwrap();
    let state = run.controller().state().clone();
    let read = |seen: &Observation, metric: &catalogue::Metric| {
        let all = samples(run.plant().apps(), &state, seen, &epoch.assessment);
        all.into_iter()
            .find(|it| it.metric.name == metric.name && it.label.as_str() == "lc")
            .unwrap()
            .value
    };
    let app = &mut epoch.seen.apps[0];
    app.readings.set(catalogue::INSTRUCTIONS, Ok(3e9));
    app.readings.set(catalogue::CPU, Ok(0.5));
    app.latency.as_mut().unwrap().completed_per_s = 1000.0;
    let seen = epoch.seen.clone();
    assert_eq!(read(&seen, catalogue::INSTRUCTIONS_PER_REQUEST), Ok(3e6));
    assert_eq!(read(&seen, catalogue::CPU_PER_REQUEST), Ok(0.0005));
    let mut idle = seen;
    idle.apps[0].latency.as_mut().unwrap().completed_per_s = 0.0;
    let why = read(&idle, catalogue::CPU_PER_REQUEST).unwrap_err();
    assert!(why.reason.contains("no request was answered"), "{why}");
}

#[test]
fn the_loop_quickens_with_the_rhythm_of_the_load() {
    let plant = plant();
    let keep = Box::new(Always(Plan::keep()));
    let controller = Controller::new(keep, Rules::default(), &plant).unwrap();
    let rule = EpochRule::Adaptive(AdaptiveEpoch::default());
    let mut run = ControlLoop::new(Bursty { plant, time: Nanos::ZERO }, controller, rule, rng());
    let epochs: Vec<_> = (0..60).map(|_| run.turn().unwrap().seen.epoch).collect();
    assert_eq!(epochs[0], Nanos::from_millis(500));
    let last_ms = epochs[59].as_millis_f64();
    assert!((last_ms - 200.0).abs() < 40.0, "a 2 s cycle wants 200 ms, got {last_ms}");
}

fn rng() -> Rng {
    Rng::seed_from_u64(1)
}

/// The in-memory plant under requests that come in bursts every 2 s.
struct Bursty {
    plant: MemoryPlant,
    time: Nanos,
}

impl Plant for Bursty {
    fn machine(&self) -> &Machine {
        self.plant.machine()
    }

    fn apps(&self) -> &[AppSpec] {
        self.plant.apps()
    }

    fn observe(&mut self, epoch: Nanos) -> Result<Observation, PlantError> {
        let mut seen = self.plant.observe(epoch)?;
        let middle = (self.time + epoch / 2).as_secs_f64();
        self.time += epoch;
        let rate = if middle % 2.0 < 1.0 { 500.0 } else { 1_500.0 };
        for latency in seen.apps.iter_mut().filter_map(|app| app.latency.as_mut().ok()) {
            latency.offered_per_s = rate;
        }
        Ok(seen)
    }

    fn settings(&self) -> Vec<Setting> {
        self.plant.settings()
    }

    fn apply(&mut self, wanted: &[Setting]) -> Applied {
        self.plant.apply(wanted)
    }

    fn restore(&mut self) -> Applied {
        self.plant.restore()
    }
}

/// Records the changes that it is notified of, and wants one plan.
struct ChangeRecorder {
    plan: Plan,
    adapts: bool,
    changes: Arc<Mutex<Vec<RosterChange>>>,
}

impl Policy for ChangeRecorder {
    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        self.plan.clone()
    }

    fn roster_changed(&mut self, changes: &[RosterChange]) -> bool {
        self.changes.lock().unwrap().extend(changes);
        self.adapts
    }
}

fn recording(adapts: bool) -> (Harness, Arc<Mutex<Vec<RosterChange>>>) {
    let changes = Arc::new(Mutex::new(Vec::new()));
    let mut harness = harness(Rules::default());
    let policy = ChangeRecorder { plan: isolate(), adapts, changes: Arc::clone(&changes) };
    let settings = harness.plant.settings();
    harness.controller.set_policy(Box::new(policy), &settings);
    (harness, changes)
}

#[test]
fn an_app_that_comes_back_is_set_again_at_once_and_was_not_written_while_it_was_absent() {
    let (mut harness, changes) = recording(true);
    harness.turn();
    let ours = Setting::Cores(LC, "0-2".parse().unwrap());
    harness.plant.end(LC);
    let entries: Vec<_> = (0..3).flat_map(|_| harness.turn()).collect();
    let refused = |entry: &Entry| matches!(&entry.event, Event::Decision(_));
    assert!(!entries.iter().any(refused), "an absent app was written: {entries:?}");
    harness.plant.begin(LC);
    let entries = harness.turn();
    assert!(
        entries
            .iter()
            .any(|entry| matches!(&entry.event, Event::AppArrived { app } if app == "lc"))
    );
    assert!(harness.plant.settings().contains(&ours), "{entries:?}");
    harness.plant.begin(LC);
    let entries = harness.turn();
    assert!(entries.iter().any(|entry| matches!(&entry.event, Event::AppRestarted { .. })));
    assert!(harness.plant.settings().contains(&ours), "{entries:?}");
    let events: Vec<_> = changes.lock().unwrap().iter().map(|change| change.event).collect();
    assert_eq!(events, [RosterEvent::Departed, RosterEvent::Arrived, RosterEvent::Restarted]);
}

#[test]
fn an_app_that_is_absent_from_the_start_waits_and_is_no_exit() {
    let mut plant = plant();
    plant.end(BE);
    let policy = Box::new(Always(isolate()));
    let controller = Controller::new(policy, Rules::default(), &plant).unwrap();
    let mut harness = Harness { plant, controller, rng: Rng::seed_from_u64(1) };
    let entries = harness.turn();
    let is = |wanted: fn(&Event) -> bool| entries.iter().any(|entry| wanted(&entry.event));
    assert!(is(|event| matches!(event, Event::AppWaiting { app } if app == "be")), "{entries:?}");
    assert!(!is(|event| matches!(event, Event::AppExited { .. })));
}

#[test]
fn a_policy_that_cannot_adapt_is_rebuilt_and_one_that_cannot_be_goes_on() {
    for fails in [false, true] {
        let (mut harness, changes) = recording(false);
        let count = Arc::clone(&changes);
        harness.controller.set_rebuild(Box::new(move |apps| {
            assert_eq!(apps.len(), 2);
            let other =
                ChangeRecorder { plan: Plan::keep(), adapts: true, changes: Arc::clone(&count) };
            if fails { Err("no".to_owned()) } else { Ok(Box::new(other)) }
        }));
        harness.turn();
        harness.plant.begin(LC);
        let entries = harness.turn();
        let rebuilt = entries.iter().find_map(|entry| match &entry.event {
            Event::PolicyRebuilt { apps, failed } => Some((apps.clone(), failed.is_some())),
            _ => None,
        });
        assert_eq!(rebuilt, Some(("lc".to_owned(), fails)));
        let decided = entries.iter().any(|entry| matches!(entry.event, Event::Decision(_)));
        assert_eq!(decided, fails, "the rebuilt policy keeps everything: {entries:?}");
    }
}

#[test]
fn an_app_that_is_added_arrives_and_one_that_is_removed_is_no_exit_and_is_not_seen_again() {
    let mut control = run(isolate(), Rules::default());
    control.turn().unwrap();
    let app = MemoryApp {
        spec: AppSpec::best_effort("late"),
        demand_cores: 0.0,
        service: Nanos::from_millis(1),
        threads: 4,
    };
    control.plant_mut().remove(BE);
    let late = control.plant_mut().add(app);
    let specs = control.plant().apps().to_vec();
    assert!(!control.reconfigure(Rules::default(), &specs), "its policy is of other apps");
    let mut plan = isolate();
    plan.set(Setting::Cores(late, "3".parse().unwrap()), Reason::Start);
    control.replace_policy(Box::new(Always(plan)));
    control.exchange_apps(&[BE, late]);
    let epoch = control.turn().unwrap();
    let is = |wanted: fn(&Event) -> bool| events(&epoch).into_iter().any(wanted);
    assert!(is(|event| matches!(event, Event::AppArrived { app } if app == "late")));
    assert!(!is(|event| matches!(event, Event::AppExited { .. })), "{:?}", epoch.entries);
    let set: Vec<Knob> = epoch
        .entries
        .iter()
        .filter_map(|entry| match &entry.event {
            Event::Decision(decision) => Some(decision.outcome.wanted.knob()),
            _ => None,
        })
        .collect();
    assert_eq!(set, [Knob::Cores(late)], "the others keep what they have");
    let state = control.controller().state();
    let samples = samples(&specs, state, &epoch.seen, &epoch.assessment);
    let labels: BTreeSet<&str> = samples
        .iter()
        .filter(|sample| sample.metric.scope == catalogue::Scope::App)
        .map(|sample| sample.label.as_str())
        .collect();
    assert_eq!(labels, BTreeSet::from(["late", "lc"]));
    Totals::default().add(&specs, &epoch);
}
