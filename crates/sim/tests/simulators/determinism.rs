//! Same seed, same bytes; common random numbers.

use lull_measure::Nanos;
use lull_sim::model::Model;
use lull_sim::plant::System;
use lull_sim::stats::{Experiment, Precision, Runs, Warmup};

const TIERS: &str = r#"
[machine.dvfs]
cores = [{ pstates = [
    { frequency = "2.26GHz", volts = 1.35 },
    { frequency = "1.729GHz", volts = 1.05 },
    { frequency = "1.197GHz", volts = 0.75 } ] }]

[[tier]]
name = "tomcat"
servers = 2
machine = "dvfs"
discipline = "sharing"
threads = 20
routing = "least-pending"

[[tier]]
name = "mysql"
servers = 2
machine = "dvfs"
discipline = "sharing"

[[pool]]
name = "connections"
size = 10
per = "tomcat"

[[app]]
name = "rubbos"
source = { closed = { clients = 1000, think = { mean = "700ms" } } }
steps = [{ call = { tier = "tomcat", steps = [
    { work = { mean = "0.48ms" } },
    { hold = { pool = "connections", steps = [
        { call = { tier = "mysql", steps = [{ work = { mean = "1.06ms" } }] } } ] } },
    { work = { mean = "0.48ms" } } ] } }]

[[app]]
name = "batch"
source = { open = { rate_per_s = 100.0, gaps = { hyper-exponential = { cv2 = 4.0 } } } }
steps = [{ call = { tier = "mysql", steps = [
    { choose = [
        { probability = 0.7, steps = [
            { work = { mean = "1ms", shape = { lognormal = { cv2 = 2.0 } } } }] },
        { probability = 0.3, steps = [
            { repeat = { probability = 0.5, steps = [
                { work = { mean = "0.2ms" } }] } }] } ] } ] } }]
"#;

fn model() -> Model {
    toml::from_str(TIERS).unwrap()
}

fn runs(threads: usize) -> Runs {
    let model = model();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let warmup = Warmup::Fixed(Nanos::from_millis(500));
    let experiment = Experiment { warmup, length: Nanos::from_secs(2), first: 0, replications: 3 };
    let precision = Precision { relative: 1e-9, most: 9 };
    let throughput = |totals: &lull_sim::Totals| totals.apps[0].answered as f64;
    pool.install(|| {
        experiment
            .run_until_precise(precision, throughput, |number| Ok(System::new(&model, 42, number)?))
    })
    .unwrap()
}

#[test]
fn one_two_and_four_threads_give_the_same_bytes() {
    let texts: Vec<String> = [1, 2, 4].map(|threads| format!("{:?}", runs(threads))).to_vec();
    assert_eq!(texts[0], texts[1]);
    assert_eq!(texts[0], texts[2]);
    assert_eq!(runs(2).totals.len(), 9, "the precision asked for is out of reach");
}

#[test]
fn another_seed_or_replication_is_another_run() {
    let answered = |seed, replication| {
        let mut system = System::new(&model(), seed, replication).unwrap();
        system.run_until(Nanos::from_secs(1)).unwrap();
        system.engine().responses(0)
    };
    assert_eq!(answered(1, 0), answered(1, 0));
    assert_ne!(answered(1, 0), answered(2, 0));
    assert_ne!(answered(1, 0), answered(1, 1));
}

#[test]
fn a_slower_machine_meets_the_same_requests() {
    // The open app's arrivals and work do not depend on how fast it is served.
    let run = |pstate| {
        let mut system = System::new(&model(), 5, 0).unwrap();
        for server in 0..4 {
            system.engine_mut().set_pstate(server, 0, pstate);
        }
        system.run_until(Nanos::from_secs(5)).unwrap();
        system.engine().totals()
    };
    let (fast, slow) = (run(0), run(2));
    assert_eq!(fast.apps[1].arrived, slow.apps[1].arrived);
    assert!(fast.apps[1].response_ns < slow.apps[1].response_ns);
}

#[test]
fn common_random_numbers_narrow_a_difference() {
    let run = |pstate| {
        let experiment = Experiment {
            warmup: Warmup::Fixed(Nanos::from_millis(500)),
            length: Nanos::from_secs(3),
            first: 0,
            replications: 6,
        };
        let make = |number| {
            let mut system = System::new(&model(), 9, number)?;
            system.engine_mut().set_pstate(2, 0, pstate);
            Ok(system)
        };
        experiment.run(make).unwrap()
    };
    let (fast, slow) = (run(0), run(1));
    let response = |totals: &lull_sim::Totals| totals.apps[1].response_ns as f64;
    let paired = slow.difference(&fast, response).unwrap();
    let (a, b) = (slow.estimate(response).unwrap(), fast.estimate(response).unwrap());
    assert!(paired.mean > 0.0);
    assert!(paired.half_width < a.half_width.hypot(b.half_width), "{paired:?} {a:?} {b:?}");
}
