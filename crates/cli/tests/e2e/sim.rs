//! `lull sim`: tables, JSON, files that can be read back, refusals, interrupts.

use crate::support::agent::Ended;
use crate::support::scene::Scene;
use crate::support::{LULL, skip};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// One server under two policies, with bursts.
pub(crate) const SMALL: &str = r#"title = "small, with a comma"

[run]
warmup = "1s"
length = "4s"
replications = 3

[[machine.dvfs.cores]]
pstates = [{ frequency = "2GHz", volts = 1.2 }, { frequency = "1GHz", volts = 0.8 }]

[[tier]]
name = "web"
machine = "dvfs"

[[app]]
name = "site"
class = "latency-critical"
objectives = [{ p95 = "8ms" }]
source = { open = { bursts = { high = 600.0, low = 200.0, cycle = "1s" } } }
steps = [{ call = { tier = "web", steps = [{ work = { mean = "1ms" } }] } }]

[[policy]]
name = "full-speed"

[[policy]]
name = "powersave"
"#;

/// Runs `lull sim` on a text with further arguments.
fn sim(scene: &Scene, text: &str, arguments: &[&str]) -> Ended {
    let file = scene.write("s.toml", text);
    let mut all = vec!["sim".as_ref(), file.as_os_str()];
    all.extend(arguments.iter().map(|argument| AsRef::<std::ffi::OsStr>::as_ref(*argument)));
    scene.run(&all)
}

fn replaced(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "the test replaces nothing: {from}");
    SMALL.replacen(from, to, 1)
}

/// A file that is mounted by itself, as in a container, cannot be renamed over.
#[test]
fn results_are_written_into_a_file_that_cannot_be_replaced() {
    let scene = Scene::new();
    let (file, out) = (scene.write("s.toml", SMALL), scene.write("out.csv", "old"));
    let unshared = |script: &str| {
        let script = format!("unshare --map-root-user --mount sh -exc '{script}'");
        scene.start(scene.shell(&script)).wait()
    };
    let mount = format!("mount --bind {0} {0}", out.display());
    if !unshared(&mount).status.success() {
        return skip("no mount namespace can be made here");
    }
    let (file, csv) = (file.display(), out.display());
    unshared(&format!("{mount}; exec {LULL} sim {file} --csv {csv}")).well();
    let text = std::fs::read_to_string(&out).unwrap();
    assert!(text.contains("powersave") && !text.contains("old"), "{text}");
}

#[test]
fn results_and_the_table_are_both_in_the_file_that_the_output_goes_to() {
    let scene = Scene::new();
    // The output of a scene's programs goes to files.
    let alone = sim(&scene, SMALL, &["--csv", "out.csv"]).well().out;
    let csv = std::fs::read_to_string(scene.path("out.csv")).unwrap();
    let both = sim(&scene, SMALL, &["--csv", "/dev/stdout"]).well().out;
    assert_eq!(both, format!("{csv}{alone}"));
}

#[test]
fn the_table_has_every_policy_and_the_differences_to_the_first() {
    let scene = Scene::new();
    let out = sim(&scene, SMALL, &[]).well().out;
    assert!(out.starts_with("small, with a comma: 3 replications of 4s, after 1s of warm-up"));
    let words = ["full-speed", "powersave", "site: p99 response", "over the objective of 8ms"];
    let words =
        words.iter().chain(&["energy per request", "web: utilisation", "less `full-speed`"]);
    for word in words {
        assert!(out.contains(word), "{word}:\n{out}");
    }
    assert!(out.lines().any(|line| line.contains("±") && line.contains(" * (+")), "{out}");
}

#[test]
fn json_has_figures_with_intervals_and_paired_differences() {
    let scene = Scene::new();
    let json = sim(&scene, SMALL, &["--json", "--seed", "5", "--seeds", "4"]).well().json();
    assert_eq!((&json["seed"], &json["replications"]), (&5.into(), &4.into()));
    assert_eq!(json["notices"], serde_json::json!([]));
    let find = |list: &serde_json::Value, figure: &str| {
        let all = list["figures"].as_array().unwrap();
        all.iter().find(|one| one["figure"] == figure).unwrap().clone()
    };
    let p95 = find(&json["policies"][1], "p95[site]");
    assert_eq!((&json["policies"][1]["label"], &p95["unit"]), (&"powersave".into(), &"ms".into()));
    let [low, high] = [0, 1].map(|end| p95["ci95"][end].as_f64().unwrap());
    assert!(low < p95["mean"].as_f64().unwrap() && p95["mean"].as_f64().unwrap() < high);
    let difference = find(&json["differences"][0], "mean[site]");
    assert_eq!(json["differences"][0]["less"], "full-speed");
    assert!(difference["mean"].as_f64().unwrap() > 0.0 && difference["percent"].is_number());
}

#[test]
fn csv_and_parquet_hold_the_same_values_and_can_be_read_back() {
    let scene = Scene::new();
    let [csv, parquet, plot] = ["o.csv", "o.parquet", "o.svg"].map(|name| scene.path(name));
    let paths = [&csv, &parquet, &plot].map(|path| path.to_str().unwrap());
    let arguments = ["--csv", paths[0], "--parquet", paths[1], "--plot", paths[2]];
    sim(&scene, SMALL, &arguments).well();
    let rows = read_csv(&csv);
    assert_eq!(rows.len(), 2 * 3 * 10, "policies, replications, figures");
    assert_eq!(rows[0].0, ["small, with a comma", "full-speed", "throughput[site]", "1/s"]);
    assert!(rows.iter().all(|row| row.2.is_some_and(f64::is_finite)));
    assert_eq!(rows, read_parquet(&parquet));
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("powersave") && svg.contains("power (W)"));
    // The file that existed before is replaced.
    let again = ["--csv", paths[0], "--seeds", "1"];
    let shown = sim(&scene, SMALL, &again).well().out;
    assert!(shown.contains("one replication has no interval"), "{shown}");
    assert_eq!(read_csv(&csv).len(), 2 * 10);
}

/// Text columns, replication, value.
type Row = ([String; 4], u64, Option<f64>);

fn read_csv(path: &Path) -> Vec<Row> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    assert_eq!(
        reader.headers().unwrap(),
        vec!["scenario", "policy", "replication", "figure", "unit", "value"]
    );
    let row = |record: csv::StringRecord| {
        let texts = [0, 1, 3, 4].map(|field| record[field].to_owned());
        (texts, record[2].parse().unwrap(), record[5].parse().ok())
    };
    reader.records().map(|record| row(record.unwrap())).collect()
}

fn read_parquet(path: &Path) -> Vec<Row> {
    let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
    let row = |row: parquet::record::Row| {
        let texts = [0, 1, 3, 4].map(|field| row.get_string(field).unwrap().clone());
        (texts, row.get_long(2).unwrap().cast_unsigned(), row.get_double(5).ok())
    };
    reader.get_row_iter(None).unwrap().map(|one| row(one.unwrap())).collect()
}

#[test]
fn check_prints_what_would_run_and_runs_nothing() {
    let scene = Scene::new();
    // Hours of simulation if it were run.
    let long = replaced("length = \"4s\"", "length = \"2000h\"");
    let ended = sim(&scene, &long, &["--check"]).well();
    assert_eq!(ended.out, "small, with a comma: can be run; policies: full-speed, powersave\n");
    let label =
        long.replacen("name = \"powersave\"", "name = \"powersave\"\nlabel = \"low, cold\"", 1);
    let ended = sim(&scene, &label, &["--check"]).well();
    assert!(ended.out.ends_with("policies: full-speed, \"low, cold\"\n"), "{}", ended.out);
    let json = sim(&scene, &long, &["--check", "--json", "--policy", "ondemand"]).well().json();
    assert_eq!(json["policies"], serde_json::json!(["ondemand"]));
    for example in [
        "mmc",
        "bursts",
        "ntier",
        "colocation",
        "areas",
        "gated",
        "gate-search",
        "eetl-amp",
        "eetl-dvfs",
        "tiers-and-machine",
    ] {
        let file = format!("{ROOT}/examples/sim/{example}.toml");
        scene.run(&["sim", &file, "--check"]).well();
    }
}

#[test]
fn bad_input_is_refused_by_file_line_and_key_with_status_2() {
    let cases = [
        ("title =", "titel =", "s.toml:1: titel: unknown field `titel`"),
        ("replications = 3", "replicatoins = 3", "s.toml:6: run.replicatoins: unknown field"),
        ("replications = 3", "replications = 0", "s.toml:6: run.replications: is 0"),
        ("warmup = \"1s\"", "warmup = \"soon\"", "s.toml:4: run.warmup: expected a time such as"),
        ("length = \"4s\"", "length = 4", "s.toml:5: run.length: "),
        ("volts = 1.2", "volts = nan", "s.toml:9: machine.dvfs.cores[0].pstates[0].volts: is NaN"),
        ("machine = \"dvfs\"", "machine = \"dfvs\"", "s.toml:13: tier[0].machine: there is no"),
        ("machine = \"dvfs\"", "servers = 5000000000", "s.toml:13: tier[0].servers: "),
        ("machine = \"dvfs\"", "threads = 0", "s.toml:13: tier[0].threads: must be at least 1"),
        ("\"8ms\"", "\"8\"", "s.toml:18: app[0].objectives"),
        ("high = 600.0", "high = -1.0", "s.toml:19: app[0].source.open.bursts.high: is -1"),
        ("cycle = \"1s\"", "cylce = \"1s\"", "s.toml:19: app[0].source"),
        (
            "{ bursts = { high = 600.0, low = 200.0, cycle = \"1s\" } }",
            "{ rate_per_s = inf }",
            "s.toml:19: app[0].source.open.rate_per_s: is inf, must be above 0",
        ),
        ("tier = \"web\"", "tier = \"wbe\"", "s.toml:20: app[0].steps[0].call.tier: there is no"),
        ("name = \"powersave\"", "name = \"powersvae\"", "s.toml:26: policy[1].name: no policy is"),
        ("name = \"powersave\"", "name = \"ondemand\"\nup = 2", "s.toml:27: policy[1].up: unknown"),
        ("name = \"powersave\"", "name = \"arq\"", "s.toml:26: policy[1].name: policy `arq` needs"),
        ("[[policy]]", "[[policy]", "s.toml:22:"),
    ];
    let scene = Scene::new();
    for (from, to, wanted) in cases {
        let ended = sim(&scene, &replaced(from, to), &["--csv", "o.csv"]).refused(2, wanted);
        assert_eq!(ended.out, "", "{to}");
    }
    let none = SMALL.split("[[policy]]").next().unwrap();
    sim(&scene, none, &[]).refused(2, "s.toml: policy: there is none: write [[policy]]");
    sim(&scene, SMALL, &["--policy", "x"]).refused(2, "s.toml: --policy: no policy is called `x`");
    sim(&scene, SMALL, &["--seeds", "0"]).refused(2, "--seeds");
    sim(&scene, SMALL, &["--csv", "no/o.csv"]).refused(2, "no/o.csv: cannot be written: there is");
    sim(&scene, SMALL, &["--grid", "5"]).refused(2, "--find-worst-cycle");
    let steady =
        replaced("bursts = { high = 600.0, low = 200.0, cycle = \"1s\" }", "rate_per_s = 9.0");
    sim(&scene, &steady, &["--find-worst-cycle"]).refused(2, "s.toml:15: app: no app has bursts");
    scene.run(&["sim", "gone.toml"]).refused(2, "gone.toml: cannot be read");
    assert!(!scene.path("o.csv").exists());
}

#[test]
fn the_refusals_of_the_docs_are_word_for_word() {
    let page = std::fs::read_to_string(format!("{ROOT}/docs/scenario.md")).unwrap();
    let (_, block) = page.split_once("```toml\n").unwrap();
    let (text, _) = block.split_once("```").unwrap();
    let (_, table) = page.split_once("## What is refused").unwrap();
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| `")).collect();
    assert!(rows.len() >= 7, "{rows:?}");
    let scene = Scene::new();
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").collect();
        let [from, to, wanted] =
            [0, 1, 2].map(|at: usize| cells[at].trim().trim_matches('`').trim());
        assert!(text.contains(from), "{from} is not in the page's first scenario");
        let file = scene.write("site.toml", &text.replacen(from, to, 1));
        scene.run(&["sim".as_ref(), file.as_os_str(), "--check".as_ref()]).refused(2, wanted);
    }
}

#[test]
fn an_unstable_system_is_reported_first_and_ends_at_its_bound_with_status_1() {
    let scene = Scene::new();
    let over = replaced("high = 600.0, low = 200.0", "high = 3000.0, low = 1000.0");
    let ended = sim(&scene, &format!("{over}\n[limits]\nin_flight = 500\n"), &["--csv", "o.csv"]);
    let ended = ended.refused(1, "unstable: tier `web` is offered 2.000 times what it can do");
    assert!(ended.err.contains("policy `full-speed`: replication 0: stopped at "), "{}", ended.err);
    assert!(ended.err.contains("500 requests in the system, the bound `limits.in_flight`"));
    assert!(!scene.path("o.csv").exists());
    let shown_text = sim(&scene, &over, &["--json"]).well().json();
    assert!(
        shown_text["notices"][0].as_str().unwrap().starts_with("unstable: tier `web`"),
        "{shown_text}"
    );
}

#[test]
fn an_interrupt_leaves_no_file_and_keeps_what_stood_there() {
    let scene = Scene::new();
    // Hours of simulation, within its limits. The notice that it is unstable shows that it has
    // started.
    let long = replaced("high = 600.0, low = 200.0", "high = 1600.0, low = 500.0");
    let long = long.replace("length = \"4s\"", "length = \"10000s\"").replace("= 3\n", "= 5000\n");
    let file = scene.write("s.toml", &long);
    let old = scene.write("old.csv", "old");
    let new: PathBuf = scene.path("new.svg");
    let command = scene.lull(&[
        "sim".as_ref(),
        file.as_os_str(),
        "--csv".as_ref(),
        old.as_os_str(),
        "--plot".as_ref(),
        new.as_os_str(),
    ]);
    let mut running = scene.start(command);
    running.wait_until_printed("unstable");
    let ended = running.interrupt();
    assert_eq!(ended.status.signal(), Some(2), "{ended:?}");
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "old");
    let left: Vec<_> = std::fs::read_dir(scene.path("")).unwrap().flatten().collect();
    let odd = left.iter().map(|one| one.file_name().into_string().unwrap());
    let odd: Vec<_> = odd.filter(|name| name.starts_with(".lull") || name == "new.svg").collect();
    assert_eq!(odd, Vec::<String>::new());
}

#[test]
fn the_worst_cycle_is_reported_in_words_numbers_and_files() {
    let scene = Scene::new();
    let arguments = ["--find-worst-cycle", "--policy", "powersave", "--grid", "3", "--refine", "1"];
    let ends = ["--shortest", "200ms", "--longest", "2s"];
    let all = [&arguments[..], &ends[..]].concat();
    let out = sim(&scene, SMALL, &[&all[..], &["--csv", "w.csv", "--plot", "w.svg"]].concat());
    let out = out.well().out;
    assert!(out.contains("policy `powersave`") && out.contains("worst at a cycle of"), "{out}");
    let json = sim(&scene, SMALL, &[&all[..], &["--json"]].concat()).well().json();
    let found = &json["policies"][0];
    assert_eq!(found["cycles"].as_array().unwrap().len(), 4);
    assert!(found["worst"]["cycle_s"].as_f64().unwrap() >= 0.2);
    assert!(found["times_shortest"]["mean"].as_f64().unwrap() >= 1.0);
    let csv = std::fs::read_to_string(scene.path("w.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 4 * 3 * 4, "cycles, replications, figures");
    assert!(std::fs::read_to_string(scene.path("w.svg")).unwrap().contains("burst cycle (s)"));
}
