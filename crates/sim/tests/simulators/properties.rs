//! What holds in every model, whatever its tiers, pools and disciplines.

use lull_measure::Nanos;
use lull_sim::Engine;
use lull_sim::model::{
    App, Closed, Cores, Discipline, Distribution, HardwareModel, Model, Open, PState, Phase, Pool,
    Routing, Schedule, Shape, Source, Spans, Step, Tier, WhenFull,
};
use proptest::prelude::*;

/// Requests arrive for one second; then the system drains.
const LOADED: Nanos = Nanos::from_secs(1);
const DRAINED: Nanos = Nanos::from_secs(400);

fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just(Shape::Exponential),
        Just(Shape::Constant),
        Just(Shape::Uniform),
        Just(Shape::HyperExponential { cv2: 3.0 }),
        Just(Shape::Lognormal { cv2: 1.5 }),
    ]
}

fn work() -> impl Strategy<Value = Distribution> {
    (1u64..8000, shape())
        .prop_map(|(micros, shape)| Distribution { mean: Nanos::from_micros(micros), shape })
}

fn machine() -> impl Strategy<Value = HardwareModel> {
    let group = (1u32..5, 0u32..3, prop_oneof![Just(1.0), Just(0.5), Just(1.7)]).prop_map(
        |(count, domain, speed)| Cores {
            name: format!("speed {speed}"),
            count,
            domain,
            speed,
            activity: 1.3,
            static_watts: lull_measure::Watts(0.4),
            pstates: [(2_000_000, 1.2), (1_500_000, 1.0), (800_000, 0.8)]
                .map(|(khz, volts)| PState { frequency: lull_measure::Hertz::from_khz(khz), volts })
                .to_vec(),
            ..Cores::default()
        },
    );
    (prop::collection::vec(group, 1..3), prop_oneof![Just(0u64), Just(50_000)]).prop_map(
        |(cores, transition)| HardwareModel {
            cores,
            static_watts: lull_measure::Watts(3.0),
            transition: Nanos(transition),
        },
    )
}

fn tier() -> impl Strategy<Value = (HardwareModel, Tier)> {
    let discipline = prop_oneof![
        Just(Discipline::Fcfs),
        Just(Discipline::Sharing),
        Just(Discipline::Priority),
        Just(Discipline::Preemptive),
    ];
    let routing =
        prop_oneof![Just(Routing::Random), Just(Routing::RoundRobin), Just(Routing::LeastPending)];
    let limits = (prop::option::of(1u32..6), prop::option::of(0u32..4), any::<bool>());
    (machine(), 1u32..4, discipline, routing, limits).prop_map(
        |(machine, servers, discipline, routing, (threads, backlog, block))| {
            let when_full =
                if block && threads.is_some() { WhenFull::Block } else { WhenFull::Wait };
            let tier = Tier {
                servers,
                discipline,
                routing,
                threads,
                backlog: threads.and(backlog),
                when_full,
                ..Tier::named("")
            };
            (machine, tier)
        },
    )
}

/// Two apps over three tiers: one calls them nested, with a pool, the other in a row.
fn model() -> impl Strategy<Value = Model> {
    let pool = (1u32..6, prop::option::of(0u32..4));
    let apps = (prop::collection::vec(work(), 6), 1u32..40, 10.0f64..400.0, 0.0f64..0.8);
    (prop::collection::vec(tier(), 3), pool, apps).prop_map(|(tiers, pool, apps)| {
        let mut model = Model::default();
        for (number, (machine, mut tier)) in tiers.into_iter().enumerate() {
            // A shared tier cannot be held up by the one behind it.
            let shared = model.tier.last().is_some_and(|t| t.discipline == Discipline::Sharing);
            if shared || tier.discipline == Discipline::Sharing {
                tier.when_full = WhenFull::Wait;
            }
            tier.name = format!("tier{number}");
            tier.machine = Some(tier.name.clone());
            model.machine.insert(tier.name.clone(), machine);
            model.tier.push(tier);
        }
        let per = Some("tier0".to_owned());
        model.pool = vec![Pool { name: "pool".to_owned(), size: pool.0, per, backlog: pool.1 }];
        model.app = self::apps(apps);
        model
    })
}

fn apps((work, clients, rate, again): (Vec<Distribution>, u32, f64, f64)) -> Vec<App> {
    let call = |tier: usize, steps| Step::Call { tier: format!("tier{tier}"), steps };
    let hold = Step::Hold {
        pool: "pool".to_owned(),
        steps: vec![call(1, vec![Step::Work(work[1]), call(2, vec![Step::Work(work[2])])])],
    };
    let nested = call(0, vec![Step::Work(work[0]), hold, Step::Work(work[3])]);
    let repeat = Step::Repeat { probability: again, steps: vec![Step::Work(work[5])] };
    let rows = vec![call(0, vec![Step::Work(work[4])]), call(2, vec![repeat])];
    // Sources fall silent after a second, so that everything ends.
    let silence = |level| {
        let phases = vec![Phase { span: LOADED, level }, Phase { span: LOADED, level: 0.0 }];
        Some(Schedule { phases, cycle: false, spans: Spans::Fixed })
    };
    let closed = Closed {
        clients,
        think: Distribution::exponential(Nanos::from_millis(20)),
        schedule: silence(f64::from(clients)),
    };
    let open = Open { rate_per_s: rate, gaps: Shape::Exponential, schedule: silence(rate) };
    let app = |name: &str, source, priority, steps| App {
        name: name.to_owned(),
        source,
        priority,
        steps,
    };
    vec![
        app("nested", Source::Closed(closed), 1, vec![nested]),
        app("rows", Source::Open(open), 0, rows),
    ]
}

/// Runs a model with P-states changed on the way.
fn run(model: &Model, changes: &[(usize, usize)], until: Nanos) -> Engine {
    let mut engine = Engine::new(model, 11, 0).unwrap();
    for (step, (target, pstate)) in changes.iter().enumerate() {
        engine.run_until(LOADED.scale(step as f64 / changes.len() as f64)).unwrap();
        let server = target % engine.server_count();
        let domain = target % engine.domain_count(server);
        engine.set_pstate(server, domain, *pstate);
    }
    engine.run_until(until).unwrap();
    engine
}

fn changes() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::vec((any::<usize>(), 0usize..3), 0..20)
}

/// A model in which requests can be locked out for ever: blocking callers that
/// wait for each other do not occur, for every path takes the tiers in order.
fn checked(model: &Model) -> bool {
    model.check().is_ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_request_is_answered_or_lost_and_nothing_is_left(
        model in model(), changes in changes(),
    ) {
        prop_assume!(checked(&model));
        let engine = run(&model, &changes, DRAINED);
        prop_assert_eq!(engine.in_flight(), 0);
        let totals = engine.totals();
        for app in &totals.apps {
            prop_assert_eq!(app.arrived, app.answered + app.lost);
            prop_assert_eq!(app.latency.count(), app.answered);
        }
        for server in &totals.servers {
            prop_assert_eq!((server.present, server.waiting, server.pending), (0, 0, 0));
            prop_assert_eq!(server.arrivals, server.departures);
        }
    }

    #[test]
    fn littles_law_is_exact_once_everybody_has_left(model in model(), changes in changes()) {
        prop_assume!(checked(&model));
        let totals = run(&model, &changes, DRAINED).totals();
        for server in &totals.servers {
            prop_assert_eq!(server.area_ns, server.response_ns);
        }
    }

    #[test]
    fn cores_are_busy_for_no_longer_than_there_is_time(model in model(), changes in changes()) {
        prop_assume!(checked(&model));
        let totals = run(&model, &changes, LOADED).totals();
        for domain in totals.servers.iter().flat_map(|server| &server.domains) {
            prop_assert!(domain.busy.0 <= totals.span.0 * u64::from(domain.cores));
            let stays: Nanos = domain.residency.iter().copied().sum();
            prop_assert_eq!(stays, totals.span);
        }
    }

    #[test]
    fn energy_is_the_sum_of_its_parts(model in model(), changes in changes()) {
        prop_assume!(checked(&model));
        let engine = run(&model, &changes, LOADED);
        let totals = engine.totals();
        for (number, server) in totals.servers.iter().enumerate() {
            let dynamic: f64 =
                server.domains.iter().map(|d| d.dynamic_energy.as_ref().unwrap().0).sum();
            let watts = 3.0 + 0.4 * f64::from(server.cores);
            let whole = server.energy().unwrap().0;
            let parts = dynamic + watts * totals.span.as_secs_f64();
            prop_assert!((whole - parts).abs() < 1e-9, "{whole} {parts}");
            prop_assert!((engine.energy(number).unwrap().0 - whole).abs() < 1e-9);
            // Between all the busy time at the slowest and at the fastest P-state.
            let busy: u64 = server.domains.iter().map(|domain| domain.busy.0).sum();
            let at = |volts: f64, ghz: f64| 1.3 * volts * volts * ghz * busy as f64 / 1e9;
            prop_assert!(at(0.8, 0.8) <= dynamic + 1e-9 && dynamic <= at(1.2, 2.0) + 1e-9);
        }
    }

    #[test]
    fn a_server_does_the_work_that_it_was_given(
        amounts in prop::collection::vec(work(), 1..4),
        cores in 1u32..4,
        sharing in any::<bool>(),
        pstates in prop::collection::vec(0usize..3, 0..10),
    ) {
        // Constant work makes the sum known; the busy time times the speed must equal it.
        let discipline = if sharing { Discipline::Sharing } else { Discipline::Fcfs };
        let states = [(2_000_000, 1.2), (1_000_000, 1.0), (500_000, 0.8)]
            .map(|(khz, volts)| PState { frequency: lull_measure::Hertz::from_khz(khz), volts });
        let group = Cores { count: cores, pstates: states.to_vec(), ..Cores::default() };
        let machine = HardwareModel { cores: vec![group], ..HardwareModel::default() };
        let mut model = Model::default();
        model.machine.insert("m".to_owned(), machine);
        let tier = Tier { machine: Some("m".to_owned()), discipline, ..Tier::named("tier") };
        model.tier = vec![tier];
        let phases = vec![Phase { span: LOADED, level: 200.0 }, Phase { span: LOADED, level: 0.0 }];
        let schedule = Some(Schedule { phases, cycle: false, spans: Spans::Fixed });
        let open = Open { rate_per_s: 200.0, gaps: Shape::Exponential, schedule };
        let steps = amounts
            .iter()
            .map(|work| Step::visit("tier", Distribution::constant(work.mean)))
            .collect();
        let source = Source::Open(open);
        model.app = vec![App { name: "app".to_owned(), source, priority: 0, steps }];
        let mut engine = Engine::new(&model, 3, 0).unwrap();
        // Busy time in each state, read at the changes.
        let (mut done, mut before, mut speed) = (0.0, 0, 1.0);
        for (step, pstate) in pstates.iter().chain([&0]).enumerate() {
            engine.run_until(LOADED.scale((step + 1) as f64 / 10.0)).unwrap();
            let busy = engine.busy(0, 0).0;
            done += (busy - before) as f64 * speed;
            engine.set_pstate(0, 0, *pstate);
            (before, speed) = (busy, [1.0, 0.5, 0.25][*pstate]);
        }
        engine.run_until(DRAINED).unwrap();
        done += (engine.busy(0, 0).0 - before) as f64 * speed;
        let each: u64 = amounts.iter().map(|work| work.mean.0).sum();
        let wanted = each as f64 * engine.totals().apps[0].answered as f64;
        let pieces = engine.totals().servers[0].departures as f64;
        // Each event's time is rounded to a nanosecond.
        let rounding = 2.0 * f64::from(cores) * pieces + 1e-9 * wanted;
        prop_assert!((done - wanted).abs() <= rounding, "{done} {wanted}");
    }
}
