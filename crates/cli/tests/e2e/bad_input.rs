//! Bad input: file, line and key on standard error, status 2, nothing started.

use crate::support::scene::Scene;
use crate::support::{LULL, is_root, skip};

/// A good config whose app would leave a file behind if it were started.
const GOOD: &str = r#"[agent]
state = "state"
record = "records"

[policy]
name = "arq"
period = "500ms"

[[app]]
name = "server"
class = "latency-critical"
objectives = [{ p95 = "4ms" }]
ideal = "2ms"
start = ["touch", "started"]

[[app]]
name = "batch"
class = "best-effort"
solo = 1.0
start = ["touch", "started"]
"#;

/// The text to replace, its replacement, and the beginning of the refusal after the file's name.
const CASES: &[(&str, &str, &str)] = &[
    ("record = ", "recrod = ", "3: agent.recrod: unknown field `recrod`"),
    ("\"4ms\"", "\"4 parsecs\"", "12: app[0].objectives"),
    ("\"4ms\"", "4", "12: app[0].objectives"),
    ("{ p95 = \"4ms\" }", "{ bound = \"4ms\" }", "12: app[0].objectives"),
    ("{ p95 = \"4ms\" }", "", "12: app[0].objectives: `server` is latency-critical"),
    ("ideal = \"2ms\"", "ideal = \"5ms\"", "13: app[0].ideal: `server`: "),
    ("\"batch\"", "\"server\"", "17: app[1].name: two apps are called `server`"),
    ("\"batch\"", "\"../batch\"", "17: app[1].name: must be a word"),
    ("\"arq\"", "\"arc\"", "6: policy.name: "),
    ("period = ", "peroid = ", "7: policy.peroid: "),
    ("\"500ms\"", "\"500\"", "7: policy.period: "),
    ("\"500ms\"", "\"0s\"", "7: policy.period: "),
    ("[policy]", "[limits]\ncores = \"0-4000\"\n[policy]", "6: limits.cores: "),
    ("[policy]", "[limits]\nhysteresis = 2.0\n[policy]", "6: limits.hysteresis: "),
    ("solo = 1.0", "solo = \"measured\"", "19: app[1].solo: "),
    ("solo = 1.0", "solo = -1.0", "19: app[1].solo: is -1: write a rate above zero"),
    ("record = ", "http = \"localhost:7077\"\nrecord = ", "3: agent.http: is not an IP address"),
    ("name = \"arq\"", "", "5: policy: has no name"),
    ("[policy]", "[policy", "5:"),
    ("state = \"state\"", "state = \"state\"\nepoch = \"1ms\"", "3: agent.epoch: is below 10ms"),
    ("record = ", "socket = \"\"\nrecord = ", "3: agent.socket: is an empty path"),
    ("\"records\"", "\"\"", "3: agent.record: is an empty path"),
];

#[test]
fn a_result_without_a_place_is_refused_before_anything_is_started() {
    if !is_root() {
        return skip("only root can mount a directory that takes no file");
    }
    let scene = Scene::new();
    scene.write("good.toml", GOOD);
    std::fs::create_dir(scene.path("sealed")).unwrap();
    let script = format!(
        "unshare -m sh -c 'mount -t tmpfs -o ro none sealed && \
         exec {LULL} compare good.toml --markdown sealed/x.md'"
    );
    let ended = scene.start(scene.shell(&script)).wait();
    ended.refused(2, "sealed/x.md: cannot be written: Read-only file system");
    assert!(!scene.path("started").exists());
}

#[test]
fn every_refusal_names_file_line_and_key_and_nothing_is_started() {
    for (from, to, begin) in CASES {
        let scene = Scene::new();
        assert!(GOOD.contains(from), "the case replaces nothing: {from}");
        let config = scene.write("bad.toml", &GOOD.replacen(from, to, 1));
        let ended = scene.run(&["run".as_ref(), config.as_os_str()]);
        let wanted = format!("{}:{begin}", config.display());
        let ended = ended.refused(2, &wanted);
        assert_eq!(ended.out, "");
        assert!(!scene.path("started").exists(), "{to}: an app was started");
        assert_eq!(scene.records(), Vec::<std::path::PathBuf>::new(), "{to}");
        scene.wait_until_quiet();
    }
}

#[test]
fn an_unknown_policy_comes_with_the_nearest_name() {
    let scene = Scene::new();
    let config = scene.write("bad.toml", &GOOD.replacen("\"arq\"", "\"arc\"", 1));
    let ended = scene.run(&["run".as_ref(), config.as_os_str()]);
    ended.refused(2, "Did you mean `arq`?");
    scene.run(&["demo", "--policy", "evne"]).refused(2, "Did you mean `even`?");
    assert!(!scene.path("runs").exists(), "a demo that cannot begin has made a directory");
}

#[test]
fn a_config_that_cannot_be_read_is_bad_input() {
    let scene = Scene::new();
    scene.run(&["run", "missing.toml"]).refused(2, "missing.toml: cannot be read: No such file");
    scene.run(&["run", "/"]).refused(2, "/: cannot be read");
}

/// The address of a database that does not run.
const DATABASE: &str = "mysql://root@127.0.0.1:1/test";

#[test]
fn a_server_that_does_not_run_is_no_bad_input_and_its_error_is_printed_once() {
    let scene = Scene::new();
    let ended = scene.run(&["load", DATABASE, "--closed"]).refused(1, "is the server running");
    assert_eq!(ended.err.matches("refused").count(), 1, "{}", ended.err);
}

#[test]
fn a_gate_without_a_page_comes_with_what_to_name() {
    let scene = Scene::new();
    let ended = scene.run(&["gate", "status", "./none"]);
    ended.refused(1, "no page of a gate in ./none: name the directory given to `lull attach`");
}

#[test]
fn a_gate_can_be_named_by_its_page_and_a_page_with_a_blank_in_its_path_is_not_made() {
    let scene = Scene::new();
    let [directory, odd] = ["db", "a b"].map(|name| scene.path(name).display().to_string());
    scene.run(&["attach", &directory, "--environment"]).well();
    for named in [&directory, &format!("{directory}/page")] {
        let status = scene.run(&["gate", "status", named]).well().out;
        assert!(status.contains("no server connected"), "{status}");
    }
    scene.run(&["attach", &odd, "--environment"]).refused(2, "name a directory of letters");
    assert!(!scene.path("a b").exists());
}

#[test]
fn bad_arguments_are_refused_by_name() {
    let scene = Scene::new();
    let cases: [(&[&str], &str); 14] = [
        (&["run", "x.toml", "--for", "8"], "--for"),
        (&["run", "x.toml", "--http", "localhost:7077"], "write 127.0.0.1:7077"),
        (&["load", "http//nowhere", "--rate", "1/s"], "http//nowhere"),
        (&["load", "http://127.0.0.1:1/", "--rate", "many"], "--rate"),
        (&["load", "http://127.0.0.1:1/"], "--rate <RATE>|--replay <FILE>|--closed"),
        (&["load", "http://127.0.0.1:1/", "--closed", "--arrivals", "constant"], "--arrivals"),
        (&["load", DATABASE, "--closed", "--scale", "0"], "scale = 0"),
        (&["load", DATABASE, "--closed", "--tries", "0"], "tries = 0"),
        (&["load", DATABASE, "--closed", "--depth", "2"], "depth = 2"),
        (&["load", DATABASE, "--closed", "--script", "none.sql"], "the script none.sql: No such"),
        (&["load", DATABASE, "--closed", "--hdr", "none/x.hdr"], "--hdr none/x.hdr"),
        (&["load", DATABASE, "--rate", "trace:none.csv"], "none.csv"),
        (&["burn", "coal"], "coal"),
        (&["demo", "--pairs", "0"], "--pairs"),
    ];
    for (arguments, words) in cases {
        scene.run(arguments).refused(2, words);
    }
}

#[test]
fn a_load_that_the_client_would_refuse_is_refused_before_anything_starts() {
    let scene = Scene::new();
    let load = "[[load]]\napp = \"server\"\ntarget = \"options://127.0.0.1:1\"\nrate = \"2000\"\n";
    let config = scene.write("bad.toml", &format!("{GOOD}{load}"));
    let ended = scene.run(&["run".as_ref(), config.as_os_str()]);
    ended.refused(2, "bad.toml:24: load[0].rate: ");
    assert!(!scene.path("started").exists(), "an app was started");
}
