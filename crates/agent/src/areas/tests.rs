//! Plans, and what `qos-wc` makes of classes.

use super::*;
use lull_control::conformance::MemoryPlant;
use lull_control::{Machine, Plant};
use lull_host::oncall::{ClientClass, ClientMatch, ConnectionSeen, Counts, Rules};
use lull_measure::Nanos;
use lull_oncall::{Class, ClassShare, Id, Peer, Settings};

fn area(text: &str) -> Area {
    toml::from_str(text).unwrap()
}

fn fixed(class: &str, cores: &str) -> Area {
    area(&format!("client_class = \"{class}\"\ncores = \"{cores}\""))
}

fn promised(class: &str) -> Area {
    let promise = "connections = 4\nobjective = { p95 = \"20ms\" }";
    area(&format!("client_class = \"{class}\"\n{promise}"))
}

fn plan(areas: &[Area], keys: &str) -> Result<AreaPlan, (usize, String)> {
    AreaPlan::new(areas, keys.parse().unwrap())
}

fn cores(text: &str) -> CoreSet {
    text.parse().unwrap()
}

/// A decider for a plan on four cores, with the classes `others`, `web` and `batch`.
fn decider(plan: &AreaPlan) -> Result<Decider, AreaError> {
    let machine: Machine = MemoryPlant::new(4, Vec::new()).machine().clone();
    let classes = ["others", "web", "batch"].map(str::to_owned);
    let wants = classes.each_ref().map(|name| {
        plan.areas.iter().find(|(class, _)| class == name).map(|(_, wants)| wants.clone())
    });
    match plan.areas.first() {
        // On all of these cores, not only on those of the machine that runs the test.
        Some((_, CoreDemand::Objective { .. })) => {
            Decider::by_policy(&classes, &wants, &plan.keys, &machine)
        }
        _ => plan.decider(&classes, machine),
    }
}

fn connection(client_class: usize) -> ConnectionSeen {
    ConnectionSeen {
        id: Id(client_class as u32),
        generation: 1,
        worker: (1, 1),
        peer: Peer::default(),
        local_port: 3306,
        class: Class::Gated,
        client_class,
        latency: Counts::default(),
        queries: 0,
        transactions: 0,
        parked: (0, Nanos::ZERO),
        waits: false,
        pending: None,
    }
}

#[test]
fn areas_that_make_no_sense_are_refused_with_their_index() {
    let error = |areas: &[Area], keys: &str| plan(areas, keys).unwrap_err();
    let web = || fixed("web", "0");
    let (at, message) = error(&[web(), area("client_class = \"batch\"")], "");
    assert!(at == 1 && message.contains("needs cores"), "{message}");
    assert!(error(&[fixed("web", "")], "").1.contains("needs cores"));
    let both = area("client_class = \"web\"\ncores = \"0\"\nconnections = 1");
    assert!(error(&[both], "").1.contains("needs cores"));
    let none = "client_class = \"web\"\nconnections = 0\nobjective = { p95 = \"20ms\" }";
    assert!(error(&[area(none)], "").1.contains("connections is 0"));
    assert_eq!(error(&[web(), web()], "").1, "class `web` has an area already");
    assert!(error(&[web(), promised("batch")], "").1.contains("cannot be fixed"));
    assert!(error(&[web()], "areas = 2").1.contains("keys"));
    assert!(toml::from_str::<Area>("client_class = \"web\"\ncore = \"0\"").is_err());
    assert!(plan(&[web(), fixed("batch", "1-3")], "").is_ok());
}

#[test]
fn fixed_areas_are_as_written_and_never_change() {
    let plan = plan(&[fixed("web", "0-1")], "").unwrap();
    let mut decider = decider(&plan).unwrap();
    assert_eq!((decider.name(), decider.areas()), ("fixed", &[None, Some(cores("0-1")), None][..]));
    assert_eq!(decider.look(Nanos::from_secs(1), &[connection(1)], false), None);
    let refused = |plan: AreaPlan, why: &str| {
        let Err(AreaError::Area(at, message)) = self::decider(&plan) else { panic!("{why}") };
        assert!(at == 1 && message.contains(why), "{at}: {message}");
    };
    let both = |cores: &str| self::plan(&[fixed("web", "0"), fixed("batch", cores)], "").unwrap();
    refused(both("3-4"), "this machine has 0-3");
    refused(both("1-2").within(Some(cores("0-1"))), "limits.cores allows 0-1");
    let unknown = self::plan(&[fixed("web", "0"), fixed("shop", "1")], "").unwrap();
    refused(unknown, "`shop` is not a class");
}

#[test]
fn qos_wc_divides_all_cores_between_classes_with_an_objective_and_the_others() {
    let plan = plan(&[promised("web")], "profile = [100.0, 200.0, 300.0, 400.0]").unwrap();
    let mut decider = decider(&plan).unwrap();
    assert_eq!((decider.name(), decider.areas()), ("qos-wc", &[None, None, None][..]));
    let seen = [connection(0), connection(1), connection(77)];
    for ms in [0, 20, 99] {
        let reason = decider.look(Nanos::from_millis(ms), &seen, false);
        assert_eq!(reason, None, "no observation is due after {ms} ms");
    }
    assert_eq!(decider.look(Nanos::from_millis(100), &seen, true), None, "it is bypassed");
    assert_eq!(decider.look(Nanos::from_millis(190), &seen, false), None, "it was bypassed");
    assert_eq!(decider.look(Nanos::from_millis(200), &seen, false).as_deref(), Some("start"));
    let (hot, warm) = (Some(cores("0-2")), Some(cores("3")));
    assert_eq!(decider.areas(), &[warm.clone(), hot, warm][..]);
}

#[test]
fn a_key_that_qos_wc_does_not_have_is_refused() {
    let plan = plan(&[promised("web")], "area = 2").unwrap();
    let Err(AreaError::Policy(error)) = decider(&plan) else { panic!("a key too many") };
    let PolicyError::Config { key, .. } = &error else { panic!("{error}") };
    assert_eq!(key, "area");
}

#[test]
fn servers_with_an_event_loop_or_a_pool_of_threads_are_known_by_their_command_line() {
    assert!(shared_threads(&["/usr/bin/memcached", "-t", "4"]).is_some());
    assert!(shared_threads(&["mariadbd", "--thread_handling=pool-of-threads"]).is_some());
    assert_eq!(shared_threads(&["mariadbd", "--port=3307"]), None);
    assert_eq!(shared_threads::<&str>(&[]), None);
}

#[test]
fn areas_of_a_live_gate_have_its_classes_and_end_with_the_flag_of_moved_threads() {
    let clients = vec![ClientMatch { port: Some(1), ..ClientMatch::default() }];
    let class = ClientClass { name: "web".to_owned(), share: ClassShare::default(), clients };
    let rules = Rules { client_classes: vec![class], ..Rules::default() };
    let runtime = Arc::new(Runtime::start(&Settings::default(), &rules).unwrap());
    let unknown = plan(&[fixed("shop", "0")], "").unwrap();
    let error = LiveAreas::start(&unknown, &runtime).unwrap_err().to_string();
    assert!(error.contains("`shop` is not a class"), "{error}");
    let areas = LiveAreas::start(&plan(&[fixed("web", "0")], "").unwrap(), &runtime).unwrap();
    assert_eq!(areas.name(), "fixed");
    while areas.seen().classes.is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(areas.describe(), "fixed: web on cores 0");
    assert_eq!(areas.take_change().as_deref(), Some("web on cores 0"), "that they begin");
    areas.order(Order::Open);
    areas.order(Order::Resume);
    let seen = areas.finish();
    let class =
        |name: &str, cores| ClassArea { client_class: name.to_owned(), cores, threads_most: 0 };
    assert_eq!(seen.classes, [class("others", None), class("web", Some(cores("0")))]);
    assert_eq!((seen.moves, seen.refused, seen.pools), (0, 0, 0));
    assert_eq!(seen.to_string(), "\n  area of web (fixed): cores 0, 0 threads at most");
}
