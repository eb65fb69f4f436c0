//! What a record holds, and that a full disk is said.

use super::*;
use lull_control::conformance::{MemoryApp, MemoryPlant};
use lull_control::{AppId, Plant};
use lull_control::{ControlLoop, Controller, Observation, Plan, Policy, Reason, Rng, Rules};
use lull_measure::{Latency, Nanos, Percentile};
use rand::SeedableRng;

struct OneCore;

impl Policy for OneCore {
    fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
        let mut plan = Plan::keep();
        let cores = "0".parse().expect("a legal list");
        plan.set(Setting::Cores(AppId(1), cores), Reason::Fixed);
        plan
    }
}

fn run() -> ControlLoop<MemoryPlant> {
    let lc = AppSpec::latency_critical("lc", Percentile::P95, Nanos::from_millis(10));
    let app =
        |spec| MemoryApp { spec, demand_cores: 1.0, service: Nanos::from_millis(1), threads: 2 };
    let plant = MemoryPlant::new(2, vec![app(lc), app(AppSpec::best_effort("be"))]);
    let controller = Controller::new(Box::new(OneCore), Rules::default(), &plant).unwrap();
    ControlLoop::new(plant, controller, Nanos::from_millis(500), Rng::seed_from_u64(1))
}

fn record(file: &Path, epochs: usize) -> Result<(), RecordError> {
    let mut run = run();
    let (machine, apps) = (run.plant().machine().clone(), run.plant().apps().to_vec());
    let head = Head {
        config: "# test",
        machine: &machine,
        policy: "one-core",
        seed: 1,
        started_unix_ns: 7,
    };
    let mut recorder = Recorder::create(file, &head)?;
    recorder.describe_apps(&apps)?;
    for _ in 0..epochs {
        let epoch = run.turn().unwrap();
        recorder.write(&apps, run.controller().state(), &epoch, "on")?;
    }
    // A killed agent never closes the file.
    std::mem::forget(recorder);
    Ok(())
}

#[test]
fn a_record_that_was_never_closed_is_read_whole() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("made/too/run.db");
    record(&file, 5).unwrap();
    let database = Connection::open(&file).unwrap();
    let one = |sql: &str| database.query_row(sql, [], |row| row.get::<_, f64>(0)).unwrap();
    assert_eq!(one("SELECT count(*) FROM epochs"), 5.0);
    assert_eq!(one("SELECT count(*) FROM app_epochs"), 10.0);
    assert_eq!(one("SELECT count(*) FROM core_epochs"), 10.0);
    assert!(one("SELECT avg(tail_latency_seconds) FROM app_epochs WHERE app = 'lc'") > 0.0);
    assert!(one("SELECT avg(progress_per_second) FROM app_epochs WHERE app = 'be'") > 0.0);
    assert_eq!(one("SELECT count(*) FROM journal WHERE event LIKE '%decision%'"), 1.0);
    let packed: String = database
        .query_row("SELECT hdr_v2_base64 FROM latencies LIMIT 1", [], |row| row.get(0))
        .unwrap();
    assert_eq!(Latency::from_base64(&packed).unwrap().count(), 1_000);
}

#[test]
fn a_run_without_an_epoch_leaves_no_record() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("run.db");
    let run = run();
    let machine = run.plant().machine();
    let head = Head { config: "", machine, policy: "p", seed: 1, started_unix_ns: 7 };
    let recorder = Recorder::create(&file, &head).unwrap();
    assert!(file.exists());
    drop(recorder);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_missing_value_is_null_and_its_reason_is_written_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("run.db");
    record(&file, 5).unwrap();
    let database = Connection::open(&file).unwrap();
    let nulls: i64 = database
        .query_row(
            "SELECT count(*) FROM machine_epochs WHERE cpu_pressure_ratio IS NULL",
            [],
            |r| r.get(0),
        )
        .unwrap();
    assert_eq!(nulls, 5);
    let sql = "SELECT count(*), min(reason) FROM missing WHERE metric = 'cpu_pressure_ratio'";
    let (count, reason): (i64, String) =
        database.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert_eq!(count, 1);
    assert!(reason.contains("no such gauge"), "{reason}");
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let error = record(Path::new("/proc/lull/run.db"), 1).unwrap_err().to_string();
    assert!(error.contains("/proc/lull/run.db") && error.contains("agent.record"), "{error}");
}

#[test]
fn names_of_records_sort_by_time_and_never_clash() {
    let directory = tempfile::tempdir().unwrap();
    // 2026-11-20 23:18:05 UTC.
    let first = fresh_path(directory.path(), "arq", 1_795_216_685);
    assert!(first.ends_with("20261120-231805-arq.db"), "{first:?}");
    std::fs::write(&first, "").unwrap();
    let second = fresh_path(directory.path(), "arq", 1_795_216_685);
    assert!(second.ends_with("20261120-231805-arq-2.db"), "{second:?}");
}
