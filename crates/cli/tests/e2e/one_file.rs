//! One file that is checked, simulated and run: the config of an agent with a described machine.

use crate::support::agent::Ended;
use crate::support::free_port;
use crate::support::record::Record;
use crate::support::scene::Scene;

/// A machine of four cores, as `lull check --machine` writes it.
const MACHINE: &str = r#"[machine]
name = "four"

[[machine.cores]]
count = 4
domain = 1
steps = ["1GHz", "2GHz"]

[machine.cache]
ways = 8
"#;

/// A config that is only simulated: its apps are started nowhere.
const CONFIG: &str = r#"[policy]
name = "arq"
period = "250ms"

[[app]]
name = "web"
class = "latency-critical"
objectives = [{ p95 = "8ms" }]
threads = 4
unit = "web.service"

[[app]]
name = "batch"
class = "best-effort"
start = ["lull", "burn", "compute"]

[[client]]
app = "web"
rate = "800/s"
work = { mean = "1ms" }

[run]
warmup = "1s"
length = "4s"
replications = 2
"#;

/// Simulates a config on a machine.
fn sim(scene: &Scene, config: &str, machine: &str, further: &[&str]) -> Ended {
    let config = scene.write("c.toml", config).display().to_string();
    let machine = scene.write("m.toml", machine).display().to_string();
    let arguments = ["sim", &config, "--machine", &machine];
    scene.run(&arguments.iter().chain(further).collect::<Vec<_>>())
}

#[test]
fn the_same_file_is_checked_simulated_and_run() {
    let scene = Scene::new();
    let port = free_port().to_string();
    let short = "warmup = \"1s\"\nlength = \"3s\"\nreplications = 2".to_owned();
    let replaced = [
        scene.own_record(),
        ("21300", port),
        ("warmup = \"10s\"\nlength = \"60s\"\nreplications = 4", short),
    ];
    let text = scene.example("one-file.toml", &replaced);
    let file = scene.write("one-file.toml", &text).display().to_string();
    let checked = scene.run(&["check", &file]).well().out;
    assert!(checked.contains("can run here; policy arq every 500ms; apps: options, paths"));
    let machine = scene.run(&["check", "--machine"]).well().out;
    let machine = scene.write("machine.toml", &machine).display().to_string();
    let json = scene.run(&["sim", &file, "--machine", &machine, "--json"]).well().json();
    let labels = ["unmanaged", "arq"];
    for (at, label) in labels.iter().enumerate() {
        assert_eq!(json["policies"][at]["label"], *label);
        assert_eq!(json["policies"][at]["epoch"], "500ms");
    }
    let notices = json["notices"].to_string();
    let line = 1 + text.lines().position(|line| line == "[[load]]").unwrap();
    let left_out = format!("one-file.toml:{line}: load[0]: its client is simulated");
    assert!(notices.contains(&left_out), "{notices}");
    assert!(
        notices.contains("machine.toml:") && notices.contains("machine.scheduler"),
        "{notices}"
    );
    let ended = scene.run(&["run", &file, "--for", "3s"]).well();
    assert!(ended.err.contains("knobs are as they were"), "{}", ended.err);
    let record = Record::open(&scene.records().pop().unwrap());
    assert_eq!(record.fact("policy").as_deref(), Some("arq"));
    assert!(record.number("SELECT count(*) FROM latencies WHERE app = 'options'") > 0);
}

#[test]
fn a_config_is_simulated_with_its_policy_epoch_limits_and_a_load_from_a_file() {
    let scene = Scene::new();
    let busy = CONFIG.replace("800/s", "2000/s");
    let json = sim(&scene, &busy, MACHINE, &["--json"]).well().json();
    let of = |policy: usize, figure: &str| {
        let all = json["policies"][policy]["figures"].as_array().unwrap();
        let found = all.iter().find(|one| one["figure"] == figure);
        found.unwrap_or_else(|| panic!("{json:#}"))["mean"].as_f64().unwrap()
    };
    assert_eq!(json["policies"][1]["epoch"], "250ms", "the policy's period");
    assert!((of(1, "throughput[web]") - 2000.0).abs() < 150.0);
    assert!(of(1, "p95[web]") < of(0, "p95[web]"), "arq protects the server");
    // An epoch in the file holds for every policy; the command line names others.
    let paced = format!("[agent]\nepoch = \"100ms\"\n{CONFIG}");
    let policies = ["--json", "--policy", "schedutil", "parties"];
    let json = sim(&scene, &paced, MACHINE, &policies).well().json();
    let epochs = [0, 1].map(|at| json["policies"][at]["epoch"].clone());
    assert_eq!(epochs, ["100ms", "100ms"]);
    // Without one, each has its own, but none below what a host can measure.
    let json = sim(&scene, CONFIG, MACHINE, &policies).well().json();
    let epochs = [0, 1].map(|at| json["policies"][at]["epoch"].clone());
    assert_eq!(epochs, ["10ms", "500ms"]);
    // Clients that wait for their answers, from a file of their own.
    let (alone, _) = CONFIG.split_once("[[client]]").unwrap();
    let load = "[run]\nwarmup = \"1s\"\nlength = \"4s\"\nreplications = 2\n[[client]]\n\
                app = \"web\"\nclients = 8\nthink.mean = \"9ms\"\nwork = { mean = \"1ms\" }\n";
    let load = scene.write("load.toml", load).display().to_string();
    let json = sim(&scene, alone, MACHINE, &["--json", "--load", &load]).well().json();
    let rate = json["policies"][0]["figures"][0]["mean"].as_f64().unwrap();
    assert!(rate > 400.0 && rate < 889.0, "eight clients, 9 ms of thought each: {rate}");
}

/// The text to replace, its replacement, which of the two files has it, and the beginning of the
/// refusal.
const REFUSED: [(&str, &str, &str); 21] = [
    (
        "[[machine.cores]]\ncount = 4\ndomain = 1\nsteps = [\"1GHz\", \"2GHz\"]",
        "cores = []",
        "m.toml:4: machine.cores: is empty",
    ),
    ("\"1GHz\", \"2GHz\"", "\"0Hz\", \"2GHz\"", "m.toml:7: machine.cores[0].steps[0]: 0"),
    ("count = 4", "count = 0", "m.toml:5: machine.cores[0].count: is 0"),
    ("count = 4", "count = 65", "m.toml:4: machine.cores: has 65 in all"),
    ("count = 4", "count = 4\nspeed = -1.0", "m.toml:6: machine.cores[0].speed: is -1"),
    ("\"1GHz\", \"2GHz\"", "\"2GHz\", \"1GHz\"", "m.toml:7: machine.cores[0].steps[1]: 1GHz after"),
    (
        "[machine.cache]",
        "[[machine.idle]]\nname = \"C6\"\nexit = \"133us\"\nresidency = \"20us\"\n[machine.cache]",
        "m.toml:12: machine.idle[0].residency: is 20us, below the exit latency",
    ),
    (
        "[machine.cache]",
        "[[machine.cores]]\ncount = 2\nspeed = 0.5\n[machine.cache]",
        "m.toml:11: machine.cores[1].speed: is 0.5, below that of",
    ),
    (
        "[machine.cache]",
        "[[machine.idle]]\nname = \"C1\"\nexit = \"2us\"\nwatts = 1.0\n\
         [[machine.idle]]\nname = \"C6\"\nexit = \"9us\"\nwatts = 1.0\n[machine.cache]",
        "m.toml:16: machine.idle[1].watts: is 1, not less than",
    ),
    (
        "[machine.cache]",
        "[machine.power]\nbase_watts = 1.0\nbusy_core_watts = 1.0\nidle_core_watts = 2.0\n\
         [machine.cache]",
        "m.toml:12: machine.power.idle_core_watts: is 2, above busy_core_watts",
    ),
    ("ways = 8", "ways = 80", "m.toml:10: machine.cache.ways: is 80"),
    ("ways = 8", "wyas = 8", "m.toml:10: machine.cache.wyas: unknown field"),
    ("\"arq\"\nperiod = \"250ms\"", "\"bayop\"", "c.toml:2: policy.name: "),
    ("period = ", "peroid = ", "c.toml:3: policy.peroid: unknown field"),
    ("p95 = \"8ms\"", "run_queue_p95 = \"8ms\"", "c.toml:8: app[0].objectives: bounds run-queue"),
    ("threads = 4", "", "c.toml:5: app[0].threads: is missing"),
    ("rate = \"800/s\"", "", "c.toml:17: client[0].rate: has neither rate nor clients"),
    ("rate = \"800/s\"", "rate = \"900000000/s\"", "c.toml:19: client[0].rate: a replication of"),
    (
        "rate = \"800/s\"\nwork = { mean = \"1ms\" }",
        "clients = 1000000\nwork = { mean = \"1ns\" }",
        "c.toml:19: client[0].clients: a replication of",
    ),
    (
        "[run]\n",
        "[[client]]\napp = \"batch\"\nrate = \"9/s\"\n[run]\n",
        "c.toml:24: client[1].rate: describes requests without their work",
    ),
    ("app = \"web\"", "app = \"wbe\"", "c.toml:18: client[0].app: there is no app called `wbe`"),
];

#[test]
fn what_cannot_be_simulated_is_refused_by_file_line_and_key() {
    let scene = Scene::new();
    for (from, to, wanted) in REFUSED {
        let texts = [CONFIG, MACHINE].map(|text| text.replacen(from, to, 1));
        assert_ne!(texts, [CONFIG, MACHINE], "the case replaces nothing: {from}");
        let ended = sim(&scene, &texts[0], &texts[1], &["--check"]).refused(2, wanted);
        assert_eq!(ended.out, "", "{to}");
    }
    let config = scene.write("c.toml", CONFIG).display().to_string();
    let none = "c.toml: has no [machine] to be simulated on";
    scene.run(&["sim", &config]).refused(2, none);
    let example = scene.write("s.toml", crate::sim::SMALL).display().to_string();
    let machine = scene.write("m.toml", MACHINE).display().to_string();
    scene.run(&["sim", &example, "--machine", &machine]).refused(2, "is a scenario, which has its");
}

#[test]
fn a_config_that_cannot_run_on_this_machine_is_refused_by_check_as_by_run() {
    let scene = Scene::new();
    let wrong = format!("[limits]\ncores = \"0-4000\"\n{CONFIG}");
    let config = scene.write("c.toml", &wrong).display().to_string();
    let wanted = "c.toml:2: limits.cores: `0-4000` is not part of this machine";
    scene.run(&["check", &config]).refused(2, wanted);
    scene.run(&["run", &config]).refused(2, wanted);
}

#[test]
fn a_config_whose_app_is_not_there_is_refused_by_check() {
    let scene = Scene::new();
    let check = |place: &str, words: &str| {
        let app = "[policy]\nname = \"unmanaged\"\n[[app]]\nname = \"batch\"\n\
            class = \"best-effort\"\nsolo = 1.0\n";
        let config = scene.write("c.toml", &format!("{app}{place}\n")).display().to_string();
        scene.run(&["check", &config]).refused(2, words);
    };
    check("start = [\"no-such-thing\"]", "c.toml:7: app[0].start: no program `no-such-thing`");
    check("start = [\"/etc/passwd\"]", "c.toml:7: app[0].start: /etc/passwd may not be executed");
    check("start = [\"./no-such-thing\"]", "app[0].start: no program");
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    check(&format!("pid = {}", gone.id()), "c.toml:7: app[0].pid: no process");
    assert!(scene.records().is_empty());
}

#[test]
fn a_governor_on_the_command_line_has_its_own_epoch_and_it_is_shown() {
    let scene = Scene::new();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/sim/bursts.toml");
    let arguments = ["sim", file, "--policy", "schedutil", "full-speed", "--seeds", "2", "--json"];
    let json = scene.run(&arguments).well().json();
    assert_eq!(json["policies"][0]["epoch"], "2ms");
    assert_eq!(json["policies"][1]["epoch"], "500ms");
    let mean = json["policies"][0]["figures"][1]["mean"].as_f64().unwrap();
    assert!(mean < 20.0, "at 500 ms the mean response was 140 ms: {mean}");
}

#[test]
fn rates_beyond_all_memory_end_with_the_bound() {
    let scene = Scene::new();
    let server = scene.example("tune/netserver.toml", &[]);
    let server = scene.write("server.toml", &server).display().to_string();
    for (arguments, wanted) in [
        (vec!["lab", "mix", "--rate", "1e9", "--quick"], "1000000000 requests/s for"),
        (vec!["lab", "interrupts", &server, "--rate", "1e9"], "--rate: 1000000000 requests/s"),
        (vec!["tune", &server, "--rate", "1e9"], "--rate: 1000000000 requests/s"),
    ] {
        let ended = scene.run(&arguments);
        assert_ne!(ended.code(), 0);
        assert!(ended.err.contains(wanted), "{arguments:?}: {}", ended.err);
    }
    let rates = "rates-per-s = [1e9]";
    let text = std::fs::read_to_string(&server).unwrap();
    let line = text.lines().find(|line| line.starts_with("rates-per-s")).unwrap();
    let flooded = scene.write("flooded.toml", &text.replace(line, rates)).display().to_string();
    let rows = scene.path("rows.csv").display().to_string();
    scene
        .run(&["sweep", &flooded, "--out", &rows])
        .refused(2, "rates-per-s[0]: 1000000000 requests");
    let dispatched = scene.example("sim/eetl-amp.toml", &[]);
    let line = dispatched.lines().find(|line| line.contains("rate_per_s")).unwrap();
    let at = line.find("rate_per_s = ").unwrap() + "rate_per_s = ".len();
    let end = at + line[at..].find([' ', ',', '}']).unwrap();
    let flooded = dispatched.replacen(line, &format!("{}1e9{}", &line[..at], &line[end..]), 1);
    let flooded = scene.write("dispatched.toml", &flooded).display().to_string();
    scene.run(&["sim", &flooded]).refused(2, "dispatch.load[0].rate_per_s: 1000000000 requests/s");
    scene.run(&["burn", "compute", "--threads", "1000000000"]).refused(2, "--threads");
}
