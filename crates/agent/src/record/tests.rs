//! Tests of the contents of a record and of the error on a full disk.

use super::*;
use lull_control::conformance::{MemoryApp, MemoryPlant};
use lull_control::{AppId, Plant};
use lull_control::{
    ControlLoop, Controller, Observation, Plan, Policy, Reason, Rng, Rules, Setting, samples,
};
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
    record_keeping(file, epochs, None)
}

fn record_keeping(file: &Path, epochs: usize, keep: Option<Nanos>) -> Result<(), RecordError> {
    let mut run = run();
    let (machine, apps) = (run.plant().machine().clone(), run.plant().apps().to_vec());
    let head = Head {
        config: "# test",
        machine: &machine,
        policy: "one-core",
        seed: 1,
        started_unix_ns: 7,
        keep,
    };
    let mut recorder = Recorder::create(file, &head)?;
    recorder.describe_apps(&apps)?;
    for _ in 0..epochs {
        let epoch = run.turn().unwrap();
        let samples = samples(&apps, run.controller().state(), &epoch.seen, &epoch.assessment);
        recorder.write(&EpochRecord {
            apps: &apps,
            epoch: &epoch,
            samples: &samples,
            phase: "on",
            shadow: &[],
            pods: &BTreeMap::new(),
        })?;
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
    let classes = "SELECT count(*) FROM client_class_epochs WHERE app = 'lc' AND \
                   client_class = 'others' AND client_turns_per_second = 200";
    assert_eq!(one(classes), 5.0);
    assert!(one("SELECT avg(tail_latency_seconds) FROM app_epochs WHERE app = 'lc'") > 0.0);
    assert!(one("SELECT avg(progress_per_second) FROM app_epochs WHERE app = 'be'") > 0.0);
    assert_eq!(one("SELECT count(*) FROM journal WHERE event LIKE '%decision%'"), 1.0);
    let packed: Vec<u8> = database
        .query_row("SELECT hdr_v2_deflate FROM latencies LIMIT 1", [], |row| row.get(0))
        .unwrap();
    assert_eq!(Latency::from_deflated(&packed).unwrap().count(), 1_000);
    let plans: Vec<(i64, String, String)> = database
        .prepare("SELECT epoch, setting, reason FROM plans")
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let wanted = (0, r#"{"cores":[1,"0"]}"#.to_owned(), r#""fixed""#.to_owned());
    assert_eq!(plans, [wanted], "a plan is written when it changes");
    let source: String = database
        .query_row("SELECT source FROM sources WHERE metric LIKE 'progress%'", [], |r| r.get(0))
        .unwrap();
    assert_eq!(source, "simulated work");
}

#[test]
fn a_run_without_an_epoch_leaves_no_record() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("run.db");
    let run = run();
    let machine = run.plant().machine();
    let head = Head { config: "", machine, policy: "p", seed: 1, started_unix_ns: 7, keep: None };
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
fn a_bounded_record_forgets_the_oldest_epochs_and_stays_as_large() {
    let directory = tempfile::tempdir().unwrap();
    let size = |epochs| {
        let file = directory.path().join(format!("{epochs}.db"));
        record_keeping(&file, epochs, Some(Nanos::from_secs(60))).unwrap();
        let database = Connection::open(&file).unwrap();
        database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        let one = |sql: &str| database.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        // 120 epochs of half a second, and up to 64 that are not forgotten yet.
        let kept = one("SELECT count(*) FROM epochs");
        assert!((120..=184).contains(&kept), "{kept}");
        let first = one("SELECT min(number) FROM epochs");
        assert_eq!(one("SELECT max(number) FROM epochs"), epochs as i64 - 1);
        for table in ["app_epochs", "core_epochs", "machine_epochs", "latencies"] {
            assert_eq!(one(&format!("SELECT min(epoch) FROM {table}")), first, "{table}");
        }
        assert_eq!(one("SELECT count(*) FROM plans"), 1, "what still holds is not forgotten");
        assert!(one("SELECT count(*) FROM missing") > 0);
        drop(database);
        std::fs::metadata(&file).unwrap().len()
    };
    let (short, long) = (size(400), size(2_000));
    assert!(long <= short + short / 5, "{short} bytes became {long}");
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let error = record(Path::new("/proc/lull/run.db"), 1).unwrap_err().to_string();
    assert!(error.contains("/proc/lull/run.db") && error.contains("agent.record"), "{error}");
}

#[test]
fn names_of_records_sort_by_time_and_never_clash() {
    let directory = tempfile::tempdir().unwrap();
    let run = run();
    let machine = run.plant().machine();
    // 2026-11-20 23:18:05 UTC.
    let started_unix_ns = 1_795_216_685_000_000_000;
    let head = Head { config: "", machine, policy: "arq", seed: 1, started_unix_ns, keep: None };
    // At once, as agents that are started together.
    let create = || Recorder::create_in(directory.path(), &head).unwrap();
    let made: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..6).map(|_| scope.spawn(create)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let names = made.iter().map(|one| one.file().file_name().unwrap().to_str().unwrap());
    let names: BTreeSet<_> = names.map(str::to_owned).collect();
    let stamp = "20261120-231805-arq";
    let wanted = (2..7).map(|number| format!("{stamp}-{number}.db"));
    assert_eq!(names, wanted.chain([format!("{stamp}.db")]).collect());
}

#[test]
fn the_pods_of_an_app_are_recorded_when_they_change() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("run.db");
    record(&file, 1).unwrap();
    let database = Connection::open(&file).unwrap();
    let pods = |name: Option<&str>| {
        let pod = name.map(|name| PodIdentity { name: name.to_owned(), ..PodIdentity::default() });
        pod.into_iter().map(|pod| ("critical-1".to_owned(), pod)).collect()
    };
    let mut known = BTreeMap::new();
    for (number, name) in [Some("a"), Some("a"), None, Some("b")].into_iter().enumerate() {
        write_pods(&database, number as i64, &pods(name), &mut known).unwrap();
    }
    let mut query = database.prepare("SELECT epoch, pod FROM pods ORDER BY rowid").unwrap();
    let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let rows: Vec<(i64, String)> = rows.map(Result::unwrap).collect();
    let row = |epoch, pod: &str| (epoch, pod.to_owned());
    assert_eq!(rows, [row(0, "a"), row(2, ""), row(3, "b")]);
}
