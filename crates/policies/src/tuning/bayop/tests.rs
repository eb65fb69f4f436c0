//! BayOp on a server of formulas, and on what goes wrong.

use super::*;
use crate::search::{Reading, Trial};
use crate::testing::{alive, lc_spec, machine, observation};
use lull_control::{
    AppId, AppObservation, Capabilities, Coalescing, EnergyObservation, EnergySource, Knob,
    LatencyObservation, NicId, Setting,
};
use lull_measure::{Joules, Latency};
use rand::SeedableRng;
use std::ops::Range;

const EPOCH: Nanos = Nanos::from_millis(500);

/// Metered, with coalescing and frequency.
fn metered() -> Machine {
    let mut machine = machine(4);
    machine.capabilities = machine.capabilities.with_capability(Capability::Energy, "test");
    machine
}

fn bayop(text: &str) -> Bayop {
    let table = format!("knobs = [\"coalescing\", \"frequency\"]\n{text}").parse().unwrap();
    Bayop::new(read(&table).unwrap(), &metered(), &[lc_spec("a")]).unwrap()
}

/// A server whose tail grows with the delay, and whose power falls with it
/// and with the frequency; the bound of the app is 10 ms.
struct Server {
    rate_per_s: f64,
    settings: Plan,
    time: Nanos,
    rng: Rng,
    /// Added to every tail, in milliseconds.
    worse_ms: f64,
    /// Delays in microseconds that are refused; what was in force stays.
    refused_us: Range<f64>,
    is_metered: bool,
    has_restarted: bool,
}

impl Server {
    fn new() -> Self {
        Self {
            rate_per_s: 2000.0,
            settings: Plan::keep(),
            time: Nanos::ZERO,
            rng: Rng::seed_from_u64(1),
            worse_ms: 0.0,
            refused_us: 0.0..0.0,
            is_metered: true,
            has_restarted: false,
        }
    }

    fn at(&self) -> (f64, f64) {
        let delay = match self.settings.setting(Knob::Coalescing(NicId(0))) {
            Some(Setting::Coalescing(_, Coalescing::Delay(delay))) => delay.as_micros_f64(),
            _ => 20.0,
        };
        let frequency = self.settings.setting(Knob::Frequency(lull_control::DomainId(0)));
        let ghz = match frequency {
            Some(Setting::Frequency(_, hertz)) => hertz.as_ghz(),
            _ => 2.0,
        };
        (delay, ghz)
    }

    fn see(&self) -> Observation {
        let (delay, ghz) = self.at();
        let tail_ms = self.worse_ms + 0.02 * delay + 2.0 / ghz;
        let watts = 20.0 + 15.0 * ghz + 400.0 / (delay + 20.0);
        let mut window = Latency::default();
        window.record_many(Nanos::from_secs_f64(tail_ms / 1e3), 1000);
        let latency = LatencyObservation {
            window,
            offered_per_s: self.rate_per_s,
            completed_per_s: self.rate_per_s,
            ..LatencyObservation::default()
        };
        let app = AppObservation { latency: Ok(latency), ..alive() };
        let energy = Joules(watts * EPOCH.as_secs_f64());
        let source = EnergySource::Measured("test".to_owned());
        let energy = match self.is_metered {
            true => Ok(EnergyObservation { energy, source }),
            false => Err(Missing::because("the meter has failed")),
        };
        let restarted = if self.has_restarted { vec![AppId(0)] } else { Vec::new() };
        Observation { energy, restarted, ..observation(self.time, EPOCH, vec![app]) }
    }

    fn run(&mut self, policy: &mut Bayop, span: Nanos) {
        let end = self.time + span;
        while self.time < end {
            self.time += EPOCH;
            let plan = policy.decide(&self.see(), &mut self.rng);
            self.apply(policy, plan);
        }
    }

    fn apply(&mut self, policy: &mut Bayop, mut plan: Plan) {
        let knob = Knob::Coalescing(NicId(0));
        if let Some(wanted @ Setting::Coalescing(_, Coalescing::Delay(delay))) = plan.setting(knob)
            && self.refused_us.contains(&delay.as_micros_f64())
        {
            policy.refused(&[(wanted.clone(), "Invalid argument".to_owned())]);
            let stays = Coalescing::Delay(Nanos::from_secs_f64(self.at().0 / 1e6));
            plan.set(Setting::Coalescing(NicId(0), stays), Reason::Start);
        }
        // A second card, where there is one, refuses every delay.
        if let Some(wanted) = plan.setting(Knob::Coalescing(NicId(1))) {
            policy.refused(&[(wanted.clone(), "Operation not supported".to_owned())]);
        }
        self.settings = plan;
    }
}

const QUICK: &str = "window = \"1s\"\nsettle = \"500ms\"\ntrials = 12\n";

#[test]
fn a_search_ends_near_the_best_point_within_the_bound() {
    let (mut policy, mut server) = (bayop(QUICK), Server::new());
    server.run(&mut policy, Nanos::from_secs(30));
    let Stage::Holding(Holding { meets: true, .. }) = policy.stage else {
        panic!("{:?}", policy.stage)
    };
    // Best: 1 GHz (tail 2 ms) and the longest delay within 10 ms, 400 us.
    let (delay, ghz) = server.at();
    assert_eq!(ghz, 1.0);
    assert!((200.0..=400.0).contains(&delay), "{delay}");
    let reasons: Vec<_> = server.settings.steps().map(|step| step.reason.to_string()).collect();
    assert!(reasons.iter().all(|text| text.contains("the best of 12 trials")), "{reasons:?}");
}

#[test]
fn a_point_that_a_knob_refuses_is_a_trial_without_a_reading() {
    // A trial that is none is one fewer.
    let (mut policy, mut server) = (bayop(&QUICK.replace("12", "40")), Server::new());
    server.refused_us = 100.0..200.0;
    let mut refused = Vec::new();
    for _ in 0..150 {
        server.run(&mut policy, EPOCH);
        if let Stage::Trying(TrialInProgress { search, .. }) = &policy.stage {
            let delay = |point: &SearchPoint| search.space().values(point)[0];
            let trials = search.trials().iter();
            refused = trials.map(|trial| (delay(&trial.point), trial.outcome.is_err())).collect();
        }
    }
    assert!(refused.iter().any(|(_, is_refused)| *is_refused), "{refused:?}");
    let is_gap = |delay: f64| (100.0..200.0).contains(&delay);
    assert!(refused.iter().all(|(delay, was)| *was == is_gap(*delay)), "{refused:?}");
    let Stage::Holding(Holding { meets: true, .. }) = policy.stage else {
        panic!("{:?}", policy.stage)
    };
    assert!(!is_gap(server.at().0), "{:?}", server.at());
}

#[test]
fn another_load_begins_a_search_and_a_known_one_gets_its_point_back() {
    let (mut policy, mut server) = (bayop(QUICK), Server::new());
    server.run(&mut policy, Nanos::from_secs(30));
    let first = server.at();
    server.rate_per_s = 4000.0;
    server.run(&mut policy, Nanos::from_secs(4));
    assert!(matches!(policy.stage, Stage::Trying(_)));
    server.run(&mut policy, Nanos::from_secs(30));
    assert_eq!(policy.known.len(), 2);
    server.rate_per_s = 2000.0;
    server.run(&mut policy, Nanos::from_secs(4));
    assert!(matches!(policy.stage, Stage::Holding(_)), "reused, not searched");
    assert_eq!(server.at(), first);
}

#[test]
fn a_search_at_a_new_load_begins_with_the_setting_of_the_next_load() {
    let known = |rate: u32, delay: u32| {
        format!("{{ rate_per_s = {rate}.0, values = [{delay}.0, 1.0], late_at_most = 0.01 }}")
    };
    let all = format!("known = [{}, {}]\n", known(1000, 400), known(4000, 200));
    let (mut policy, mut server) = (bayop(&format!("{QUICK}{all}")), Server::new());
    server.run(&mut policy, Nanos::from_secs(8));
    let Stage::Trying(TrialInProgress { search, .. }) = &policy.stage else {
        panic!("{:?}", policy.stage)
    };
    let second = &search.trials()[1].point;
    assert_eq!(search.space().values(second), [200.0, 1.0], "that of the higher load");
}

#[test]
fn the_adaptive_mode_is_tried_if_the_config_says_so_and_only_then() {
    for is_adaptive in [true, false] {
        let text = format!("{QUICK}adaptive = {is_adaptive}");
        let (mut policy, mut server) = (bayop(&text), Server::new());
        let mut was_tried = false;
        for _ in 0..40 {
            server.run(&mut policy, EPOCH);
            let setting = server.settings.setting(Knob::Coalescing(NicId(0)));
            was_tried |= matches!(setting, Some(Setting::Coalescing(_, Coalescing::Adaptive)));
        }
        assert_eq!(was_tried, is_adaptive);
    }
    // A setting that was stored by a search with the mode is left out by one without it.
    let known = "known = [{ rate_per_s = 2000.0, values = [-1.0, 1.0], late_at_most = 0.01 }]";
    assert!(bayop(&format!("{QUICK}{known}")).known.is_empty());
    assert_eq!(bayop(&format!("{QUICK}{known}\nadaptive = true")).known.len(), 1);
}

#[test]
fn a_safe_search_needs_a_method_that_predicts_tails() {
    let refused = |method: &str| {
        let table = format!("safe = true\nmethod = \"{method}\"").parse().unwrap();
        read::<Config>(&table).err().map(|error| error.to_string())
    };
    assert!(refused("penalty").unwrap().contains("safe"));
    assert!(refused("random").is_some());
    assert_eq!((refused("apart"), refused("front")), (None, None));
}

#[test]
fn a_point_known_from_before_is_used_at_its_load_without_a_trial() {
    let known = "known = [{ rate_per_s = 2100.0, values = [300.0, 1.0], late_at_most = 0.01 }]\n";
    let (mut policy, mut server) = (bayop(&format!("{QUICK}{known}")), Server::new());
    server.run(&mut policy, Nanos::from_secs(4));
    assert!(matches!(policy.stage, Stage::Holding(_)), "{:?}", policy.stage);
    assert_eq!(server.at(), (300.0, 1.0));
    // It no longer does: the search that follows begins with it.
    server.worse_ms = 3.0;
    server.run(&mut policy, Nanos::from_secs(8));
    let Stage::Trying(TrialInProgress { search, .. }) = &policy.stage else {
        panic!("{:?}", policy.stage)
    };
    assert!(search.trials().len() >= 2, "{}", search.trials().len());
    assert_eq!(search.space().values(&search.trials()[1].point), [300.0, 1.0]);
    // At another load nothing is known.
    let (mut policy, mut server) = (bayop(&format!("{QUICK}{known}")), Server::new());
    server.rate_per_s = 4000.0;
    server.run(&mut policy, Nanos::from_secs(4));
    assert!(matches!(policy.stage, Stage::Trying(_)), "{:?}", policy.stage);
}

#[test]
fn findings_are_reported_once_and_settings_that_stay_at_each_reading() {
    let (mut policy, mut server) = (bayop(QUICK), Server::new());
    server.run(&mut policy, Nanos::from_secs(10));
    assert!(policy.discoveries().is_empty(), "the search is under way");
    while !matches!(policy.stage, Stage::Holding(_)) {
        server.run(&mut policy, EPOCH);
    }
    let found = policy.discoveries();
    let [found] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((found.app, found.trials, found.meets), (AppId(0), 12, true));
    let (delay, ghz) = server.at();
    assert_eq!(found.values, [delay, ghz]);
    assert!(found.settings.len() >= 2 && found.rate_per_s == 2000.0, "{found:?}");
    assert!(policy.discoveries().is_empty(), "said once");
    // Windows at the point that stays: the newest of them, with its own figures.
    server.run(&mut policy, Nanos::from_secs(10));
    let again = policy.discoveries();
    let [again] = again.as_slice() else { panic!("{again:?}") };
    assert_eq!((again.trials, again.meets, &again.values), (0, true, &found.values));
    let tail_us = 1e3 * (0.02 * delay + 2.0 / ghz);
    assert!((again.tail_us / tail_us - 1.0).abs() < 0.02, "{again:?} {tail_us}");
    // A setting that misses the bound is not reported to hold; its replacement is.
    server.worse_ms = 4.0;
    server.run(&mut policy, Nanos::from_secs(30));
    let all = policy.discoveries();
    assert!(all.iter().any(|one| one.trials == 12 && one.meets), "{all:?}");
}

#[test]
fn that_nothing_meets_the_bound_is_reported_too() {
    let (mut policy, mut server) = (bayop(QUICK), Server::new());
    server.worse_ms = 50.0;
    server.run(&mut policy, Nanos::from_secs(30));
    let found = policy.discoveries();
    let [found] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((found.trials, found.meets, found.values.as_slice()), (12, false, &[20.0, 2.0][..]));
}

#[test]
fn the_figures_of_the_fastest_setting_are_its_own() {
    let mut policy = bayop(QUICK);
    let protocol = policy.protocol.unwrap();
    let mut search = Search::new(policy.space.clone(), policy.rules(protocol));
    // None meets the bound of 10 ms, and one without a delay has the lowest tail.
    let points = [policy.space.fastest(), policy.space.nearest(&[0.0, 2.0])];
    for (point, tail_us, watts) in [(&points[0], 50e3, 60.0), (&points[1], 30e3, 70.0)] {
        for _ in 0..3 {
            let (requests, late) = (2000, 2000);
            let reading = Reading { tail_us, watts, requests, late, progress_per_s: None };
            search.tell(point.clone(), Ok(reading));
        }
    }
    assert_eq!(search.choice().unwrap().point, points[1]);
    policy.settle(&search, protocol, Nanos::ZERO);
    let found = policy.discoveries().remove(0);
    assert_eq!((found.meets, found.values.as_slice()), (false, &[20.0, 2.0][..]));
    assert!(found.tail_us > 45e3 && found.watts < 63.0, "{found:?}");
}

#[test]
fn a_few_windows_of_the_setting_in_force_are_no_evidence() {
    let known = "known = [{ rate_per_s = 2000.0, values = [300.0, 1.0], late_at_most = 0.0 }]\n";
    let (mut policy, mut server) = (bayop(&format!("{QUICK}{known}")), Server::new());
    let mut evidence = Vec::new();
    for _ in 0..24 {
        server.run(&mut policy, EPOCH);
        evidence.extend(policy.discoveries().into_iter().map(|one| one.evidence));
    }
    assert!(evidence.len() >= 5 && evidence[..2] == [None, None], "{evidence:?}");
    let last = evidence.last().unwrap().unwrap();
    assert!(last.trials >= 3 && last.is_within() && last.probability >= 0.95, "{last}");
}

/// The search that is in progress.
fn in_progress(policy: &Bayop) -> &Search {
    let Stage::Trying(trial) = &policy.stage else { panic!("{:?}", policy.stage) };
    &trial.search
}

#[test]
fn a_search_goes_on_when_a_meter_that_has_failed_answers_again() {
    for measured in [Nanos::ZERO, Nanos::from_secs(6)] {
        let (mut policy, mut server) = (bayop(QUICK), Server::new());
        server.run(&mut policy, measured);
        server.is_metered = false;
        server.run(&mut policy, Nanos::from_secs(20));
        let trials = in_progress(&policy).trials();
        assert!(trials.iter().all(|trial| trial.outcome.is_ok()), "{trials:?}");
        assert_eq!(server.at(), (20.0, 2.0), "the fastest setting stays");
        let reasons: Vec<_> = server.settings.steps().map(|it| it.reason.to_string()).collect();
        assert!(reasons.iter().all(|it| it.contains("the meter has failed")), "{reasons:?}");
        server.is_metered = true;
        server.run(&mut policy, Nanos::from_secs(30));
        assert!(matches!(policy.stage, Stage::Holding(Holding { meets: true, .. })));
    }
}

#[test]
fn a_restart_of_the_app_is_not_held_against_the_setting_of_its_trial() {
    for epochs in 0..3 {
        let (mut policy, mut server) = (bayop(QUICK), Server::new());
        server.run(&mut policy, Nanos::from_secs(6) + EPOCH * epochs);
        (server.has_restarted, server.worse_ms) = (true, 1000.0);
        server.run(&mut policy, EPOCH);
        assert_eq!(server.at(), (20.0, 2.0), "the fastest setting is measured next");
        (server.has_restarted, server.worse_ms) = (false, 0.0);
        server.run(&mut policy, Nanos::from_secs(3));
        let trials = in_progress(&policy).trials();
        let is_warm = |trial: &Trial| trial.outcome.as_ref().is_ok_and(|it| it.tail_us < 100_000.0);
        assert!(trials.iter().all(is_warm), "{trials:?}");
    }
}

#[test]
fn a_load_at_which_trials_are_too_short_is_not_searched_until_it_rises() {
    for known in ["", "known = [{ rate_per_s = 900.0, values = [300.0, 1.0] }]\n"] {
        let (mut policy, mut server) = (bayop(&format!("{QUICK}{known}")), Server::new());
        server.rate_per_s = 10.0;
        server.run(&mut policy, Nanos::from_secs(8));
        let Stage::Holding(held) = &policy.stage else { panic!("{:?}", policy.stage) };
        assert!(!held.meets && server.at() == (20.0, 2.0), "{:?}", server.at());
        let reasons: Vec<_> = server.settings.steps().map(|it| it.reason.to_string()).collect();
        // Twelve trials of a p95 take 28 requests each.
        let advice = "too short for p95: write window = \"3s\"";
        assert!(reasons.iter().all(|it| it.contains(advice)), "{reasons:?}");
        server.rate_per_s = 2000.0;
        server.run(&mut policy, Nanos::from_secs(30));
        assert!(matches!(policy.stage, Stage::Holding(Holding { meets: true, .. })));
    }
}

#[test]
fn a_network_card_that_refuses_leaves_the_search_and_the_other_one_stays() {
    let mut two = metered();
    let second = lull_control::Nic { id: NicId(1), ..two.nics[0].clone() };
    two.nics.push(second);
    let table = format!("knobs = [\"coalescing\", \"frequency\"]\n{QUICK}").parse().unwrap();
    let mut policy = Bayop::new(read(&table).unwrap(), &two, &[lc_spec("a")]).unwrap();
    let mut server = Server::new();
    server.run(&mut policy, Nanos::from_secs(40));
    let Stage::Holding(Holding { meets: true, .. }) = policy.stage else {
        panic!("{:?}", policy.stage)
    };
    let found = policy.discoveries().remove(0);
    assert_eq!(found.knobs, [Capability::Coalescing, Capability::Frequency]);
    assert!(server.at().0 >= 200.0, "{:?}", server.at());
    assert!(server.settings.setting(Knob::Coalescing(NicId(1))).is_none());
}

#[test]
fn of_two_points_that_are_known_the_one_of_the_nearer_load_is_used() {
    let known = "known = [{ rate_per_s = 1900.0, values = [100.0, 2.0], late_at_most = 0.01 }, \
                 { rate_per_s = 2020.0, values = [300.0, 1.0], late_at_most = 0.01 }]\n";
    let (mut policy, mut server) = (bayop(&format!("{QUICK}{known}")), Server::new());
    server.run(&mut policy, Nanos::from_secs(4));
    assert_eq!(server.at(), (300.0, 1.0));
}

#[test]
fn a_point_that_no_longer_does_is_searched_again() {
    let (mut policy, mut server) = (bayop(QUICK), Server::new());
    server.run(&mut policy, Nanos::from_secs(30));
    server.worse_ms = 4.0;
    server.run(&mut policy, Nanos::from_secs(8));
    assert!(matches!(policy.stage, Stage::Trying(_)), "{:?}", server.at());
    server.run(&mut policy, Nanos::from_secs(30));
    assert!(matches!(policy.stage, Stage::Holding(Holding { meets: true, .. })));
}

#[test]
fn a_bound_that_nothing_meets_leaves_the_fastest_point_and_is_not_searched_for_ever() {
    let (mut policy, mut server) = (bayop(QUICK), Server::new());
    server.worse_ms = 50.0;
    server.run(&mut policy, Nanos::from_secs(30));
    assert!(matches!(policy.stage, Stage::Holding(Holding { meets: false, .. })));
    assert_eq!(server.at(), (20.0, 2.0));
    let reasons: Vec<_> = server.settings.steps().map(|step| step.reason.to_string()).collect();
    let names = |text: &String| text.contains("trials meets p95 < 10ms");
    assert!(reasons.iter().all(names), "{reasons:?}");
    server.run(&mut policy, Nanos::from_secs(60));
    assert!(matches!(policy.stage, Stage::Holding(_)));
}

#[test]
fn a_safe_search_whose_steps_are_refused_leaves_the_fastest_setting_and_says_why() {
    let table = format!("knobs = [\"coalescing\"]\nsafe = true\n{QUICK}").parse().unwrap();
    let mut policy = Bayop::new(read(&table).unwrap(), &metered(), &[lc_spec("a")]).unwrap();
    let mut server = Server::new();
    server.refused_us = 21.0..1e9;
    server.run(&mut policy, Nanos::from_secs(30));
    let Stage::Holding(Holding { meets: true, .. }) = policy.stage else {
        panic!("{:?}", policy.stage)
    };
    let reasons: Vec<_> = server.settings.steps().map(|step| step.reason.to_string()).collect();
    let names = |text: &String| text.contains("every step from the fastest setting was refused");
    assert!(reasons.iter().all(names) && !reasons.is_empty(), "{reasons:?}");
    assert!(reasons[0].contains("Invalid argument"), "{reasons:?}");
    let found = policy.discoveries().remove(0);
    assert_eq!((found.meets, found.values.as_slice()), (true, &[20.0][..]));
}

#[test]
fn every_so_often_it_searches_again() {
    let mut policy = bayop(&format!("{QUICK}every = \"40s\"\n"));
    let mut server = Server::new();
    server.run(&mut policy, Nanos::from_secs(30));
    assert!(matches!(policy.stage, Stage::Holding(_)));
    server.run(&mut policy, Nanos::from_secs(36));
    assert!(matches!(policy.stage, Stage::Trying(_)));
}

#[test]
fn a_known_point_must_fit_the_search() {
    let wrong = "knobs = [\"coalescing\", \"frequency\"]\n\
                 known = [{ rate_per_s = 100.0, values = [1.0] }]";
    let config = read(&wrong.parse().unwrap()).unwrap();
    let refused = Bayop::new(config, &metered(), &[lc_spec("a")]).err().unwrap();
    assert!(refused.to_string().contains("this search has 2"), "{refused}");
}

#[test]
fn without_a_meter_it_refuses_unless_a_model_will_do() {
    let refused = Bayop::new(Config::default(), &machine(4), &[lc_spec("a")]).err().unwrap();
    assert!(refused.to_string().contains("allow_modelled"), "{refused}");
    let allowed = Config { allow_modelled: true, ..Config::default() };
    assert!(Bayop::new(allowed, &machine(4), &[lc_spec("a")]).is_ok());
}

#[test]
fn the_response_model_needs_delay_and_frequency() {
    let text = "knobs = [\"coalescing\"]\nprior = \"response\"";
    let config = read(&text.parse().unwrap()).unwrap();
    let refused = Bayop::new(config, &metered(), &[lc_spec("a")]).err().unwrap();
    assert!(refused.to_string().contains("prior = \"constant\""), "{refused}");
    let mut policy = bayop(&format!("{QUICK}prior = \"response\"\n"));
    let mut server = Server::new();
    server.run(&mut policy, Nanos::from_secs(30));
    assert!(
        matches!(policy.stage, Stage::Holding(Holding { meets: true, .. })),
        "{:?}",
        policy.stage
    );
    assert_eq!(server.at().1, 1.0);
}

#[test]
fn a_machine_without_a_numeric_knob_is_refused_with_the_reasons() {
    let mut bare = metered();
    bare.capabilities = Capabilities::default().with_capability(Capability::Energy, "test");
    let refused = Bayop::new(Config::default(), &bare, &[lc_spec("a")]).err().unwrap();
    assert!(refused.to_string().contains("nothing to search"), "{refused}");
}

#[test]
fn config_out_of_range_is_refused_by_key() {
    for (text, key) in [
        ("trials = 0", "trials"),
        ("patience = 0", "patience"),
        ("floor = 1.5", "floor"),
        ("cut = 0.5", "cut"),
        ("window = \"0s\"", "window"),
        ("known = [{ rate_per_s = 0.0, values = [] }]", "known"),
    ] {
        let refused = read::<Config>(&text.parse().unwrap()).unwrap_err();
        assert!(
            matches!(&refused, PolicyError::Config { key: at, .. } if at == key),
            "{refused:?}"
        );
    }
}

#[test]
fn a_known_point_without_evidence_is_tried_and_not_trusted() {
    for late in ["", ", late_at_most = 0.2", ", late_at_most = 0.01, probability = 0.5"] {
        let known = format!("known = [{{ rate_per_s = 2000.0, values = [300.0, 1.0]{late} }}]\n");
        let (mut policy, mut server) = (bayop(&format!("{QUICK}{known}")), Server::new());
        server.run(&mut policy, Nanos::from_secs(8));
        let Stage::Trying(TrialInProgress { search, .. }) = &policy.stage else {
            panic!("{:?}", policy.stage)
        };
        assert_eq!(search.space().values(&search.trials()[1].point), [300.0, 1.0]);
    }
}

#[test]
fn what_is_found_carries_its_evidence_and_what_is_refuted_is_remembered() {
    let (mut policy, mut server) = (bayop(QUICK), Server::new());
    // Of the longest delays, all are over; two trials refute a setting.
    server.worse_ms = 1.0;
    while !matches!(policy.stage, Stage::Holding(_)) {
        server.run(&mut policy, EPOCH);
    }
    let found = policy.discoveries().pop().unwrap();
    let evidence = found.evidence.unwrap();
    assert!(found.meets && evidence.is_within() && evidence.trials >= 4, "{evidence}");
    // Nothing meets the bound: what was tried is refuted, and the next search leaves it out.
    let mut policy = bayop(&QUICK.replace("12", "6"));
    server.worse_ms = 50.0;
    server.run(&mut policy, Nanos::from_secs(30));
    let found = policy.discoveries().remove(0);
    assert!(!found.meets && found.evidence.unwrap().is_beyond(), "{found:?}");
    assert!(!found.refuted.is_empty() && policy.refuted.len() == found.refuted.len());
}

#[test]
fn a_setting_that_stays_is_searched_again_if_its_windows_refute_it() {
    let known = "known = [{ rate_per_s = 2000.0, values = [300.0, 1.0], late_at_most = 0.0 }]\n";
    let (mut policy, mut server) = (bayop(&format!("{QUICK}{known}")), Server::new());
    server.run(&mut policy, Nanos::from_secs(4));
    assert!(matches!(policy.stage, Stage::Holding(_)), "{:?}", policy.stage);
    // Every second window is over, never three in a row.
    for window in 0..12 {
        server.worse_ms = if window % 2 == 0 { 20.0 } else { 0.0 };
        server.run(&mut policy, Nanos::from_millis(1500));
        if matches!(policy.stage, Stage::Trying(_)) {
            return;
        }
    }
    panic!("{:?}", policy.stage);
}

#[test]
fn trials_at_another_load_are_not_counted_together() {
    let (mut policy, mut server) = (bayop(QUICK), Server::new());
    server.run(&mut policy, Nanos::from_secs(8));
    server.rate_per_s = 3000.0;
    server.run(&mut policy, Nanos::from_secs(4));
    let Stage::Trying(TrialInProgress { search, load, .. }) = &policy.stage else {
        panic!("{:?}", policy.stage)
    };
    assert!(search.trials().len() <= 2, "{}", search.trials().len());
    assert!(load.is_none_or(|load| load == 3000.0), "{load:?}");
}

#[test]
fn a_knob_that_is_always_refused_leaves_the_search_and_the_rest_is_searched() {
    let known = "known = [{ rate_per_s = 4000.0, values = [300.0, 1.0], late_at_most = 0.0 }]\n";
    let (mut policy, mut server) = (bayop(&format!("{QUICK}{known}")), Server::new());
    server.refused_us = 0.0..1e9;
    server.run(&mut policy, Nanos::from_secs(40));
    let Stage::Holding(Holding { meets: true, .. }) = policy.stage else {
        panic!("{:?}", policy.stage)
    };
    let found = policy.discoveries().remove(0);
    assert_eq!((found.knobs, found.values), (vec![Capability::Frequency], vec![1.0]));
    assert!(server.settings.setting(Knob::Coalescing(NicId(0))).is_none());
    assert_eq!(policy.known[0].1, SearchPoint(vec![0]), "what is known keeps its frequency");
}

#[test]
fn a_setting_that_is_known_for_the_knobs_that_are_left_is_used_without_a_search() {
    let known = "known = [{ rate_per_s = 2000.0, knobs = [\"frequency\"], values = [1.0], \
                 late_at_most = 0.0 }]\n";
    let (mut policy, mut server) = (bayop(&format!("{QUICK}{known}")), Server::new());
    assert!(policy.known.is_empty(), "it has no delay");
    server.refused_us = 0.0..1e9;
    server.run(&mut policy, Nanos::from_secs(8));
    let Stage::Holding(Holding { meets: true, .. }) = policy.stage else {
        panic!("{:?}", policy.stage)
    };
    assert_eq!(server.at(), (20.0, 1.0));
    let reasons: Vec<_> = server.settings.steps().map(|step| step.reason.to_string()).collect();
    assert!(reasons.iter().all(|text| text.contains("the best of 0 trials")), "{reasons:?}");
}
