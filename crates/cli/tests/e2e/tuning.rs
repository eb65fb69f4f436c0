//! `lull sweep` and `lull tune`: a killed command resumes, a damaged file is refused, and a
//! bound that cannot be met is reported.

use crate::support::agent::Ended;
use crate::support::scene::Scene;
use crate::support::skip;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use std::path::Path;
use std::process::Stdio;

/// Two cores, four settings, a load that they carry.
pub(crate) const SMALL: &str = r#"objective = { p99 = "500us" }
rates-per-s = [20000.0]
delays = ["20us", "200us"]
frequencies = ["1.2GHz", "2.9GHz"]
warmup = "5ms"
length = "40ms"

[server]
name = "small server"
cores = 2
packages = 1
frequencies = ["1.2GHz", "2GHz", "2.9GHz"]
idle = [{ name = "C1", residency = "2us", exit = "2us", watts = 1.2 }]

[server.power]
volts = [0.8, 1.05]
active = 9.0
leakage = 1.35
uncore = 18.0
uncore-scales = 0.55

[server.nic]
moderation = "ixgbe"
delay-max = "1022us"
delay-step = "2us"
buckets = 128
budget = 64
tx-interrupts = true
frame = "1230ns"

[server.stack]
run-to-completion = false
interrupt-cycles = 9000.0
rx-cycles = 7000.0
tx-clean-cycles = 1000.0
wake-cycles = 7000.0
poll-cycles = 3000.0
events = 32
sleep-cycles = 2000.0
memory = "500ns"

[server.app]
name = "cache"
cycles = 19000.0
rx-bytes = 120
tx-bytes = 300

[server.traffic.open]
load = [{ from = "0s", rate-per-s = 20000.0 }]
connections = 64
network = "30us"
"#;

fn lull(scene: &Scene, command: &str, text: &str, further: &[&str]) -> Ended {
    let file = scene.write("server.toml", text);
    let mut all: Vec<&std::ffi::OsStr> = command.split(' ').map(AsRef::as_ref).collect();
    all.push(file.as_os_str());
    all.extend(further.iter().map(|argument| AsRef::<std::ffi::OsStr>::as_ref(*argument)));
    scene.run(&all)
}

fn text_of(path: &Path) -> String {
    path.to_str().expect("a path of ours is text").to_owned()
}

#[test]
fn a_search_whose_reader_has_gone_ends_without_a_panic() {
    let scene = Scene::new();
    let file = scene.write("s.toml", SMALL);
    let arguments = ["tune".as_ref(), file.as_os_str(), "--trials".as_ref(), "4".as_ref()];
    let mut command = scene.lull(&arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&ended.stderr);
    assert!(printed.contains("seed of the search") && !printed.contains("panicked"), "{printed}");
}

#[test]
fn a_torn_sweep_goes_on_where_it_was_and_ends_as_a_whole_one() {
    let scene = Scene::new();
    let (torn, whole) = (scene.write("torn.csv", ""), scene.write("whole.csv", ""));
    for path in [&torn, &whole] {
        lull(&scene, "sweep", SMALL, &["--out", &text_of(path)]).well();
    }
    // A kill in the middle of the third row.
    let text = std::fs::read_to_string(&torn).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2 + 4, "{text}");
    std::fs::write(&torn, format!("{}\n{}", lines[..4].join("\n"), &lines[4][..9])).unwrap();
    let ended = lull(&scene, "sweep", SMALL, &["--out", &text_of(&torn)]).well();
    assert!(ended.err.contains("2 settings are there already"), "{}", ended.err);
    let sorted = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap();
        let mut rows: Vec<_> = text.lines().map(str::to_owned).collect();
        rows.sort();
        rows
    };
    assert_eq!(sorted(&torn), sorted(&whole));
}

#[test]
fn parquet_holds_what_the_csv_does_and_marks_the_front() {
    let scene = Scene::new();
    let [csv, parquet, figure] = ["o.csv", "o.parquet", "o.svg"].map(|it| text_of(&scene.path(it)));
    let arguments = ["--out", &csv, "--parquet", &parquet, "--figure", &figure, "--json"];
    let front = lull(&scene, "sweep", SMALL, &arguments).well().json();
    let file = std::fs::File::open(&parquet).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    let mut of_csv = csv::ReaderBuilder::new().comment(Some(b'#')).from_path(&csv).unwrap();
    let mut watts: Vec<f64> =
        of_csv.records().map(|row| row.unwrap()[10].parse().unwrap()).collect();
    let mut of_parquet: Vec<f64> = rows.iter().map(|row| row.get_double(10).unwrap()).collect();
    watts.sort_by(f64::total_cmp);
    of_parquet.sort_by(f64::total_cmp);
    assert_eq!((rows.len(), &watts), (4, &of_parquet));
    let on_front = rows.iter().filter(|row| row.get_bool(14).unwrap()).count();
    assert_eq!(on_front, front.as_array().unwrap().len());
    assert!(std::fs::read_to_string(&figure).unwrap().contains("front"));
    // A path that cannot be written fails before the measurement.
    let ended = lull(&scene, "sweep", SMALL, &["--parquet", "/no/such/place.parquet"]);
    ended.refused(2, "no such directory");
}

#[test]
fn every_interrupt_has_its_row_and_a_longer_delay_has_fewer() {
    let scene = Scene::new();
    let [csv, figure] = ["o.csv", "o.svg"].map(|it| text_of(&scene.path(it)));
    let with = |delay: &str| {
        let arguments = ["--delay", delay, "--frequency", "2GHz", "--out", &csv, "--json"];
        let cores = lull(&scene, "lab interrupts", SMALL, &arguments).well().json();
        let of = |core: &serde_json::Value| core["interrupts"].as_u64().unwrap();
        let counted: u64 = cores.as_array().unwrap().iter().map(of).sum();
        let mut rows = csv::Reader::from_path(&csv).unwrap();
        assert_eq!(&rows.headers().unwrap()[8], "C1_us");
        let gaps_keep = rows.records().map(Result::unwrap).all(|row| &row[9] == delay[..3].trim());
        assert!(gaps_keep, "every interrupt starts the delay that was asked for");
        let rows = csv::Reader::from_path(&csv).unwrap().into_records().count() as u64;
        assert_eq!(rows, counted);
        counted
    };
    let (short, long) = (with("100us"), with("400us"));
    assert!(long < short, "{long} {short}");
    let ended = lull(&scene, "lab interrupts", SMALL, &["--figure", &figure]).well();
    assert!(ended.out.contains("C1 (%)"), "{}", ended.out);
    assert!(std::fs::read_to_string(&figure).unwrap().starts_with("<svg"));
    for (argument, why) in [
        ("--rate=0", "above 0"),
        ("--delay=1h", "the card's longest is 1.022ms"),
        ("--frequency=5GHz", "from 1.2GHz to 2.9GHz"),
    ] {
        lull(&scene, "lab interrupts", SMALL, &[argument]).refused(2, why);
    }
}

#[test]
fn this_machines_interrupts_are_logged_or_the_obstacle_is_reported() {
    let scene = Scene::new();
    let [csv, figure] = ["live.csv", "live.svg"].map(|it| text_of(&scene.path(it)));
    let arguments = [
        "lab",
        "interrupts",
        "--live",
        "300ms",
        "--core",
        "0",
        "--out",
        &csv,
        "--figure",
        &figure,
        "--json",
    ];
    let ended = scene.run(&arguments);
    if ended.status.code() != Some(0) {
        assert!(ended.err.contains("eBPF: ") && ended.err.contains("; "), "{}", ended.err);
        return skip(ended.err.trim());
    }
    let cores = ended.json();
    assert_eq!(cores.as_array().unwrap().len(), 1);
    assert!(cores[0]["cycles"].is_null(), "a live kernel does not tell cycles");
    let mut rows = csv::Reader::from_path(&csv).unwrap();
    let head: Vec<String> = rows.headers().unwrap().iter().map(str::to_owned).collect();
    assert_eq!(head[..4], ["core", "i", "time_us", "rx_desc"]);
    assert_eq!(head[head.len() - 3..], ["delay_us", "irq", "handler_us"]);
    let counted = rows.records().map(Result::unwrap).inspect(|row| {
        assert_eq!((&row[0], &row[4]), ("0", ""), "bytes are not known, and no zero");
    });
    assert_eq!(counted.count() as u64, cores[0]["interrupts"].as_u64().unwrap());
    assert!(std::fs::read_to_string(&figure).unwrap().starts_with("<svg"));
}

#[test]
fn a_log_is_of_a_scenario_or_of_this_machine_and_not_of_both() {
    let scene = Scene::new();
    scene.run(&["lab", "interrupts"]).refused(2, "required");
    scene.run(&["lab", "interrupts", "x.toml", "--live", "1s"]).refused(2, "cannot be used with");
    scene
        .run(&["lab", "interrupts", "--live", "1s", "--core", "9999"])
        .refused(2, "there is no core 9999");
}

#[test]
fn a_file_of_another_sweep_is_refused_and_left_alone() {
    let scene = Scene::new();
    let out = scene.write("other.csv", "# lull sweep of 00000000\nrate_per_s\n");
    let ended = lull(&scene, "sweep", SMALL, &["--out", &text_of(&out)]);
    ended.refused(2, "something other");
    assert!(std::fs::read_to_string(&out).unwrap().ends_with("rate_per_s\n"));
}

#[test]
fn a_scenario_that_makes_no_sense_is_refused_with_line_and_key() {
    let scene = Scene::new();
    for (from, to, key) in [
        ("cores = 2", "cores = 0", "server.cores"),
        ("[20000.0]", "[-1.0]", "rates-per-s[0]"),
        ("p99 = \"500us\"", "throughput = 5.0", "objective"),
        ("length = \"40ms\"", "lenght = \"40ms\"", "lenght"),
        ("p99 = \"500us\"", "\"p99.9\" = \"500us\"", "length = \"250ms\""),
    ] {
        let ended = lull(&scene, "sweep", &SMALL.replacen(from, to, 1), &[]);
        let ended = ended.refused(2, key);
        assert!(ended.err.contains("server.toml:"), "{}", ended.err);
    }
}

#[test]
fn a_search_finds_a_setting_and_says_what_it_cost() {
    let scene = Scene::new();
    let store = text_of(&scene.path("store.sqlite"));
    let ended = lull(&scene, "tune", SMALL, &["--store", &store, "--trials", "8", "--json"]).well();
    let found = ended.json();
    assert_eq!((&found[0]["meets"], &found[0]["trials"]), (&true.into(), &8.into()), "{found}");
    assert_eq!(found[0]["resumed"], 0);
    let evidence = &found[0]["evidence"];
    assert!(evidence["at_most"].as_f64() <= Some(0.01), "{found}");
    assert!(evidence["trials"].as_u64() >= Some(3), "{found}");
    // The lower frequency and the longer delay: the least power of the four.
    assert_eq!(found[0]["values"], serde_json::json!([200.0, 1.2]), "{found}");
}

#[test]
fn a_safe_search_tries_the_setting_of_another_load_only_once_it_can_predict() {
    let scene = Scene::new();
    let second_setting = |store: &str, further: &[&str]| {
        let store = text_of(&scene.path(store));
        let arguments = ["--store", &store, "--trials", "8", "--json"];
        let found = lull(&scene, "tune", SMALL, &arguments).well().json();
        assert_eq!(found[0]["values"], serde_json::json!([200.0, 1.2]), "{found}");
        let at_another_load = [&arguments[..], &["--rate", "26000"], further].concat();
        let ended = lull(&scene, "tune", SMALL, &at_another_load).well();
        assert!(ended.err.contains("which is another load"), "{}", ended.err);
        ended.json()[0]["tried"][1]["values"].clone()
    };
    let of_other_load = serde_json::json!([200.0, 1.2]);
    assert_eq!(second_setting("bold.sqlite", &[]), of_other_load);
    assert_ne!(second_setting("safe.sqlite", &["--safe"]), of_other_load);
    let ended = lull(&scene, "tune", SMALL, &["--safe", "--method", "random"]);
    ended.refused(2, "--safe: the methods penalty and random predict no tail");
}

#[test]
fn searches_differ_unless_they_have_the_same_seed() {
    let scene = Scene::new();
    let search = |store: &str, further: &[&str]| {
        let store = text_of(&scene.path(store));
        let mut arguments =
            vec!["--store", &store, "--trials", "6", "--method", "random", "--json"];
        arguments.extend(further);
        let ended = lull(&scene, "tune", SMALL, &arguments).well();
        let found = ended.json();
        let seed = found[0]["seed"].as_u64().unwrap();
        assert!(ended.err.contains(&format!("--seed {seed}")), "{}", ended.err);
        let tried = found[0]["tried"].as_array().unwrap().iter();
        (seed, tried.map(|trial| trial["values"].to_string()).collect::<Vec<_>>())
    };
    let (seed, first) = search("a.sqlite", &[]);
    let again = search("b.sqlite", &["--seed", &seed.to_string()]);
    assert_eq!(again, (seed, first.clone()));
    let others: Vec<_> =
        ["c.sqlite", "d.sqlite", "e.sqlite"].iter().map(|store| search(store, &[])).collect();
    assert!(others.iter().all(|other| other.0 != seed), "{others:?}");
    // Six draws of four settings: three searches are all alike once in 10^10.
    assert!(others.iter().any(|other| other.1 != first), "{others:?} {first:?}");
}

#[test]
fn an_objective_out_of_reach_is_reported_and_the_fastest_setting_stays() {
    let scene = Scene::new();
    let store = text_of(&scene.path("store.sqlite"));
    let text = SMALL.replacen("500us", "20us", 1);
    let arguments = ["--store", &store, "--trials", "6", "--json"];
    let ended = lull(&scene, "tune", &text, &arguments).well();
    assert!(ended.err.contains("is shown to meet the bound of 20 us"), "{}", ended.err);
    let found = ended.json();
    assert_eq!(found[0]["meets"], false);
    assert_eq!(found[0]["values"], serde_json::json!([20.0, 2.9]), "{found}");
    // The evidence agrees, and the next search does not try the refuted setting again.
    let evidence = &found[0]["evidence"];
    assert!(evidence["at_least"].as_f64() > evidence["allowed"].as_f64(), "{found}");
    let refuted = found[0]["refuted"].as_array().unwrap();
    assert!(!refuted.is_empty(), "{found}");
    let again = lull(&scene, "tune", &text, &arguments).well().json();
    let tried = again[0]["tried"].as_array().unwrap();
    for values in refuted.iter().filter(|it| **it != serde_json::json!([20.0, 2.9])) {
        assert!(tried.iter().all(|trial| trial["values"] != *values), "{again}");
    }
}

#[test]
fn a_damaged_store_is_refused_and_left_alone() {
    let scene = Scene::new();
    let store = scene.write("store.sqlite", "this was a database once");
    let ended = lull(&scene, "tune", SMALL, &["--store", &text_of(&store)]);
    let ended = ended.refused(2, "not a store of `lull tune`");
    assert!(ended.err.contains("move it away"), "{}", ended.err);
    assert_eq!(std::fs::read_to_string(&store).unwrap(), "this was a database once");
}

#[test]
fn settings_of_another_machine_class_are_reported_and_not_used() {
    let scene = Scene::new();
    let store = text_of(&scene.path("store.sqlite"));
    let arguments = ["--store", &store, "--trials", "8", "--json"];
    let first = lull(&scene, "tune", SMALL, &arguments).well();
    assert!(!first.err.contains("another class of machine"), "{}", first.err);
    let other = SMALL.replacen("small server", "another server", 1);
    let second = lull(&scene, "tune", &other, &arguments).well();
    assert!(second.err.contains("1 settings for `cache`"), "{}", second.err);
    assert!(second.err.contains("another class of machine"), "{}", second.err);
    assert!(!second.err.contains("an earlier search found"), "{}", second.err);
}

#[test]
fn a_load_that_no_setting_can_serve_is_no_success() {
    let scene = Scene::new();
    let store = text_of(&scene.path("store.sqlite"));
    let arguments = ["--store", &store, "--trials", "6", "--rate", "900000", "--json"];
    let ended = lull(&scene, "tune", SMALL, &arguments).well();
    let found = ended.json();
    assert_eq!(found[0]["meets"], false, "{found}");
}

#[test]
fn a_killed_search_goes_on_with_its_trials() {
    let scene = Scene::new();
    let file = scene.write("server.toml", &SMALL.replacen("\"40ms\"", "\"400ms\"", 1));
    let store = scene.path("store.sqlite");
    let arguments = ["tune".as_ref(), file.as_os_str(), "--store".as_ref(), store.as_os_str()];
    let mut search = scene.start(scene.lull(&arguments));
    let trials = || {
        let open = rusqlite::Connection::open(&store).ok();
        open.and_then(|it| {
            it.query_row("SELECT count(*) FROM trial", [], |row| row.get::<_, i64>(0)).ok()
        })
        .unwrap_or(0)
    };
    search.wait_for("three trials", || trials() >= 3);
    search.signal(rustix::process::Signal::KILL);
    drop(search);
    let kept = trials();
    // Trials of another server are left alone.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("19000.0", "19001.0", 1)).unwrap();
    let ended = scene.run(&arguments).well();
    assert!(!ended.err.contains("resumes with") && trials() == kept, "{}", ended.err);
    std::fs::write(&file, text).unwrap();
    let ended = scene.run(&arguments).well();
    assert!(ended.err.contains(&format!("resumes with {kept} trials")), "{}", ended.err);
    assert_eq!(trials(), 0, "a search that has ended begins afresh next time");
}

#[test]
fn parts_of_a_sweep_become_the_result_of_one_process() {
    let scene = Scene::new();
    let [parts, merged, whole] = ["parts", "m.csv", "w.csv"].map(|it| text_of(&scene.path(it)));
    for cells in ["1/2", "4", "3-4"] {
        let ended = lull(&scene, "sweep", SMALL, &["--parts", &parts, "--cells", cells]).well();
        assert!(ended.out.is_empty(), "{}", ended.out);
    }
    let ended = lull(&scene, "sweep", SMALL, &["--parts", &parts, "--out", &merged]).well();
    assert!(ended.err.contains("0 cells run, 4 were in"), "{}", ended.err);
    let one = lull(&scene, "sweep", SMALL, &["--out", &whole]).well();
    assert_eq!(ended.out, one.out);
    let sorted = |path: &str| {
        let text = std::fs::read_to_string(path).unwrap();
        let mut rows: Vec<_> = text.lines().map(str::to_owned).collect();
        rows.sort();
        rows
    };
    assert_eq!(sorted(&merged), sorted(&whole));
    lull(&scene, "sweep", SMALL, &["--parts", &parts, "--cells", "5"]).refused(2, "no cell 5");
}
