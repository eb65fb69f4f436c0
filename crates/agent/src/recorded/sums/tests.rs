//! Tests of sums, on small records that are written as an agent writes them.

use super::*;
use crate::recorded::open;
use lull_measure::{Nanos, Percentile};
use rusqlite::{Connection, params};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const TABLES: &str = "
    PRAGMA synchronous = OFF;
    CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE apps (id INTEGER PRIMARY KEY, name TEXT NOT NULL, spec TEXT NOT NULL);
    CREATE TABLE epochs (number INTEGER PRIMARY KEY, time_ns INTEGER NOT NULL,
                         phase TEXT NOT NULL, safe INTEGER NOT NULL);
    CREATE TABLE machine_epochs (epoch INTEGER, epoch_seconds REAL, energy_joules REAL);
    CREATE TABLE core_epochs (epoch INTEGER, core TEXT, core_utilisation_ratio REAL);
    CREATE TABLE app_epochs (epoch INTEGER, app TEXT, cpu_ratio REAL, progress_per_second REAL);
    CREATE TABLE latencies (epoch INTEGER, app TEXT, hdr_v2_deflate BLOB);
    INSERT INTO run VALUES ('schema', '3'), ('policy', 'arq'), ('machine', 'm'), ('config', 'c'),
                           ('seed', '1'), ('host', 'web-1');";

/// 23:59:00 on 26 November 2026.
const STARTED_UNIX_S: i64 = 1_795_737_540;

/// A record with an app of each class.
struct Made {
    place: TempDir,
    database: Connection,
}

impl Made {
    fn new() -> Self {
        let bound = Nanos::from_millis(10);
        Self::create(AppSpec::latency_critical("lc", Percentile::P95, bound))
    }

    fn create(lc: AppSpec) -> Self {
        let place = tempfile::tempdir().unwrap();
        let database = Connection::open(place.path().join("run.db")).unwrap();
        database.execute_batch(TABLES).unwrap();
        let started = (STARTED_UNIX_S * 1_000_000_000).to_string();
        let sql = "INSERT INTO run VALUES ('started_unix_ns', ?1)";
        database.execute(sql, [started]).unwrap();
        for (id, spec) in [lc, AppSpec::best_effort("be")].iter().enumerate() {
            let spec = serde_json::to_string(spec).unwrap();
            let sql = "INSERT INTO apps VALUES (?1, '', ?2)";
            database.execute(sql, params![id as i64, spec]).unwrap();
        }
        Self { place, database }
    }

    /// Adds an epoch of 20 s that ended this long after the start: 100 J, two cores busy by a
    /// half each, `lc` with half of that, `be` with a quarter.
    fn epoch(&self, end_s: i64, latencies_ms: &[u64], progress: f64) {
        let number = end_s / 20 - 1;
        let run = |sql: &str| self.database.execute_batch(sql).unwrap();
        run(&format!("INSERT INTO epochs VALUES ({number}, {end_s} * 1000000000, 'on', 0)"));
        run(&format!("INSERT INTO machine_epochs VALUES ({number}, 20, 100)"));
        run(&format!("INSERT INTO core_epochs VALUES ({number}, '0', .5), ({number}, '1', .5)"));
        run(&format!(
            "INSERT INTO app_epochs VALUES ({number}, 'lc', .5, NULL),
                                           ({number}, 'be', .25, {progress})"
        ));
        let latency: Latency = latencies_ms.iter().map(|ms| Nanos::from_millis(*ms)).collect();
        let row = params![number, "lc", latency.to_deflated()];
        self.database.execute("INSERT INTO latencies VALUES (?1, ?2, ?3)", row).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.place.path().join("run.db")
    }

    fn sums(&self, from: i64) -> Sums {
        let record = open(&self.file()).unwrap();
        Sums::read(&record, &RunLabel::read(&record).unwrap(), from).unwrap()
    }
}

fn label(file: &Path) -> RunLabel {
    RunLabel::read(&open(file).unwrap()).unwrap()
}

/// Five epochs around midnight; the second and the last miss the bound.
fn five() -> Made {
    with_five(Made::new())
}

fn with_five(made: Made) -> Made {
    made.epoch(20, &[1, 2], 10.0);
    made.epoch(40, &[1, 30], 20.0);
    made.epoch(60, &[1], 30.0);
    made.epoch(80, &[2, 3], 40.0);
    made.epoch(100, &[20], 50.0);
    made
}

fn date(text: &str) -> Date {
    text.parse().unwrap()
}

#[test]
fn an_epoch_is_of_the_minute_and_day_in_which_it_ended() {
    let sums = five().sums(0);
    let [first, second] = ["2026-11-26", "2026-11-27"].map(|day| &sums.days[&date(day)]);
    assert_eq!((first.epochs, second.epochs), ((0, 1), (2, 4)), "midnight is of the day it begins");
    let starts: Vec<_> = first.minutes.keys().chain(second.minutes.keys()).cloned().collect();
    let arq = || "arq".to_owned();
    assert_eq!(starts, [(STARTED_UNIX_S, arq()), (STARTED_UNIX_S + 60, arq())]);
    assert_eq!(first.ends_unix_s, (STARTED_UNIX_S + 20, STARTED_UNIX_S + 40));
}

#[test]
fn late_requests_and_missed_epochs_are_counted_by_the_first_objective() {
    let sums = five().sums(0);
    let day = &sums.days[&date("2026-11-26")];
    let minute = day.minutes.values().next().unwrap();
    assert_eq!((minute.epochs, minute.judged_epochs, minute.missed_epochs), (2, 2, 1));
    let lc = day.app_minutes.iter().find(|((_, _, of), _)| of.app == "lc").unwrap().1;
    assert_eq!((lc.requests, lc.late_requests), (4, 1));
    let counts = day.latencies.iter().find(|(key, _)| key.of.app == "lc").unwrap().1;
    assert_eq!(counts.values().sum::<u64>(), 4);
    assert!(counts.keys().all(|ns| *ns >= 1_000_000), "{counts:?}");
}

#[test]
fn late_requests_are_counted_by_the_objective_of_their_epoch() {
    let made = five();
    // A pod with an objective of its own has the app in the second epoch and in the third.
    made.database
        .execute_batch(
            "ALTER TABLE app_epochs ADD COLUMN tail_bound_seconds REAL;
             ALTER TABLE app_epochs ADD COLUMN tail_objective_ratio REAL;
             UPDATE app_epochs SET tail_bound_seconds = .01, tail_objective_ratio = .95;
             UPDATE app_epochs SET tail_bound_seconds = .0005, tail_objective_ratio = .99
                 WHERE epoch IN (1, 2);",
        )
        .unwrap();
    let sums = made.sums(0);
    let minutes = sums.days.values().flat_map(|day| &day.app_minutes);
    let late = |minute_unix_s: i64| {
        let of_lc = |((minute, _, of), _): &(&(i64, String, AppInstance), &AppMinuteSums)| {
            *minute == minute_unix_s && of.app == "lc"
        };
        minutes.clone().find(of_lc).unwrap().1.late_requests
    };
    assert_eq!(late(STARTED_UNIX_S), 2, "both of the second epoch, none of the first");
    assert_eq!(late(STARTED_UNIX_S + 60), 1 + 1, "that of the third epoch and that of the last");
    let minutes = sums.days.values().flat_map(|day| day.minutes.values());
    let missed: Vec<u64> = minutes.map(|minute| minute.missed_epochs).collect();
    assert_eq!(missed, [1, 2]);
    let mut counted = BTreeMap::<_, u64>::new();
    for (key, counts) in sums.days.values().flat_map(|day| &day.latencies) {
        let objective = key.objective.map(|it| (it.bound.0, it.percent()));
        *counted.entry(objective.map(|(ns, percent)| (ns, percent.to_string()))).or_default() +=
            counts.values().sum::<u64>();
    }
    let of = |ns, percent: &str| Some((ns, percent.to_owned()));
    let expected = [(of(500_000, "99"), 2 + 1), (of(10_000_000, "95"), 2 + 2 + 1)];
    assert_eq!(counted, BTreeMap::from(expected), "histograms are by objective, too");
}

#[test]
fn an_objective_of_a_pod_counts_while_the_pod_has_the_app_and_no_longer() {
    let with_tail = AppSpec::latency_critical("lc", Percentile::P95, Nanos::from_millis(10));
    let without = AppSpec { objectives: Vec::new(), ..with_tail.clone() };
    for of_config in [with_tail, without] {
        let made = with_five(Made::create(of_config));
        // The pods of the other epochs have none.
        made.database
            .execute_batch(
                "ALTER TABLE app_epochs ADD COLUMN tail_bound_seconds REAL;
                 ALTER TABLE app_epochs ADD COLUMN tail_objective_ratio REAL;
                 UPDATE app_epochs SET tail_bound_seconds = .0005, tail_objective_ratio = .99
                     WHERE epoch IN (1, 2);",
            )
            .unwrap();
        let sums = made.sums(0);
        let apps = sums.days.values().flat_map(|day| day.app_minutes.values());
        assert_eq!(apps.map(|sums| sums.late_requests).sum::<u64>(), 2 + 1);
        let minutes = sums.days.values().flat_map(|day| day.minutes.values());
        let judged: Vec<_> =
            minutes.map(|minute| (minute.judged_epochs, minute.missed_epochs)).collect();
        assert_eq!(judged, [(1, 1), (1, 1)]);
    }
}

#[test]
fn energy_is_shared_by_busy_time_and_never_more_than_there_is() {
    let made = five();
    let joules = |app: &str| {
        let sums = made.sums(0);
        let all = sums.days.values().flat_map(|day| &day.app_minutes);
        all.filter(|((_, _, of), _)| of.app == app).map(|(_, sums)| sums.joules).sum::<f64>()
    };
    assert_eq!((joules("lc"), joules("be")), (250.0, 125.0), "a quarter is of no app");
    // The clock of processes is finer than that of cores.
    made.database.execute("UPDATE core_epochs SET core_utilisation_ratio = 0", []).unwrap();
    let all = joules("lc") + joules("be");
    assert!((all - 500.0).abs() < 1e-9, "{all}");
}

#[test]
fn energy_that_is_not_known_is_not_zero() {
    let made = five();
    made.database.execute("UPDATE machine_epochs SET energy_joules = NULL", []).unwrap();
    let sums = made.sums(0);
    for day in sums.days.values() {
        assert!(day.minutes.values().all(|sums| sums.measured_seconds == 0.0));
        assert!(day.app_minutes.values().all(|sums| sums.measured_seconds == 0.0));
        assert!(day.app_minutes.values().any(|sums| sums.cpu_seconds > 0.0));
    }
}

#[test]
fn the_sums_of_two_parts_are_those_of_the_whole() {
    let made = five();
    let (whole, late) = (made.sums(0), made.sums(3));
    made.database.execute("DELETE FROM epochs WHERE number >= 3", []).unwrap();
    let early = made.sums(0);
    let total = |all: &[&Sums]| {
        let days = all.iter().flat_map(|sums| sums.days.values());
        days.fold((0, 0, 0, 0.0, 0.0), |(epochs, missed, late, joules, progress), day| {
            let (minutes, apps) = (day.minutes.values(), day.app_minutes.values());
            (
                epochs + minutes.clone().map(|sums| sums.epochs).sum::<u64>(),
                missed + minutes.clone().map(|sums| sums.missed_epochs).sum::<u64>(),
                late + apps.clone().map(|sums| sums.late_requests).sum::<u64>(),
                joules + minutes.map(|sums| sums.joules).sum::<f64>(),
                progress + apps.map(|sums| sums.progress_per_s_sum).sum::<f64>(),
            )
        })
    };
    assert_eq!(total(&[&early, &late]), total(&[&whole]));
    assert_eq!(total(&[&whole]), (5, 2, 2, 500.0, 150.0));
    assert!(made.sums(5).days.is_empty());
}

#[test]
fn progress_alone_is_the_best_of_the_run_unless_it_is_given() {
    let made = five();
    let solo =
        |from| made.sums(from).apps.into_iter().map(|app| app.solo_per_s).collect::<Vec<_>>();
    assert_eq!(solo(4), [None, Some(50.0)]);
    let given = AppSpec { solo_per_s: Some(80.0), ..AppSpec::best_effort("be") };
    let given = serde_json::to_string(&given).unwrap();
    made.database.execute("UPDATE apps SET spec = ?1 WHERE id = 1", [given]).unwrap();
    assert_eq!(solo(0), [None, Some(80.0)]);
}

#[test]
fn a_copy_of_a_record_is_of_the_same_run_and_another_seed_is_not() {
    let made = five();
    let copy = made.place.path().join("copy.db");
    std::fs::copy(made.file(), &copy).unwrap();
    let ours = label(&made.file());
    assert_eq!(ours, label(&copy));
    assert!(ours.run.starts_with("20261126-235900-") && ours.run.len() == 24, "{}", ours.run);
    assert_eq!(ours.host.as_deref(), Some("web-1"));
    made.database.execute("UPDATE run SET value = '2' WHERE key = 'seed'", []).unwrap();
    assert_ne!(label(&made.file()).run, ours.run);
}

#[test]
fn damaged_times_are_refused() {
    let made = five();
    made.database.execute("UPDATE run SET value = 'x' WHERE key = 'started_unix_ns'", []).unwrap();
    assert!(RunLabel::read(&open(&made.file()).unwrap()).is_err());
    let sql = "UPDATE run SET value = '253402200000000000000' WHERE key = 'started_unix_ns'";
    made.database.execute(sql, []).unwrap();
    made.database.execute("UPDATE epochs SET time_ns = 9223372036854775807", []).unwrap();
    let record = open(&made.file()).unwrap();
    let error = Sums::read(&record, &label(&made.file()), 0).unwrap_err().to_string();
    assert!(error.contains("outside the calendar"), "{error}");
}

/// Requests by namespace, pod and workload, over all days.
fn requests_of_pods(sums: &Sums) -> BTreeMap<[String; 3], u64> {
    let mut all = BTreeMap::new();
    for ((_, _, of), minute) in sums.days.values().flat_map(|day| &day.app_minutes) {
        let PodNames { namespace, pod, workload, .. } = (*of.pod).clone();
        *all.entry([namespace, pod, workload]).or_default() += minute.requests;
    }
    all
}

#[test]
fn requests_are_of_the_pod_that_the_app_was_in_their_epoch() {
    let made = five();
    let names = |all: [&str; 3]| all.map(str::to_owned);
    let older = BTreeMap::from([(names(["", "", ""]), 8)]);
    assert_eq!(requests_of_pods(&made.sums(0)), older, "a record without the table has no pods");
    made.database
        .execute_batch(
            "CREATE TABLE pods (epoch INTEGER, app TEXT, namespace TEXT, pod TEXT,
                                container TEXT, workload TEXT, uid TEXT);
             INSERT INTO pods VALUES (1, 'lc', 'shop', 'web-a', '', 'web', '1'),
                                     (3, 'lc', '', '', '', '', ''),
                                     (4, 'lc', 'shop', 'web-b', '', 'web', '2');",
        )
        .unwrap();
    let expected = BTreeMap::from([
        (names(["", "", ""]), 2 + 2),
        (names(["shop", "web-a", "web"]), 2 + 1),
        (names(["shop", "web-b", "web"]), 1),
    ]);
    let sums = made.sums(0);
    assert_eq!(requests_of_pods(&sums), expected);
    let counted = sums.days.values().flat_map(|day| &day.latencies);
    let of_b: u64 = counted
        .filter(|(key, _)| key.of.pod.pod == "web-b")
        .map(|(_, counts)| counts.values().sum::<u64>())
        .sum();
    assert_eq!(of_b, 1, "histograms are by pod, too");
    let late = made.sums(2);
    let of_a = names(["shop", "web-a", "web"]);
    assert_eq!(requests_of_pods(&late)[&of_a], 1, "the pod of an epoch was named before it");
}
