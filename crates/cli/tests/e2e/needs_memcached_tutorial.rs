//! The commands of docs/tutorial.md, and those for memcached of docs/quickstart.md, with other
//! times than the pages have.

use crate::support::free_port;
use crate::support::scene::Scene;
use std::path::Path;

/// Replacements of times, from the words of the page to those of the test: shorter, or longer where
/// a busy machine needs it. A change of the page that makes one of them useless fails the test.
const OTHER_TIMES: [(&str, &str); 7] = [
    ("--for 1m", "--for 3s"),
    ("--for 20s", "--for 3s"),
    ("calibrate first.toml", "calibrate first.toml --trial 200ms --budget 20s --all-cores-only"),
    ("--policy tide", "--policy tide --max-error 1000"),
    ("sleep 20", "sleep 12"),
    ("sleep 2\n", "sleep 8\n"),
    ("--prove 30m", "--prove 24s --block 2s"),
];

/// Replacements for the quick start: the time, the package's files, and the rights.
const IN_QUICK_START: [(&str, &str); 3] =
    [("--for 30s", "--for 3s"), ("/usr/share/doc/lull/", ""), ("sudo ", "")];

/// Commands that install and build are left out: the tests have done both.
const LEFT_OUT: [&str; 2] = ["sudo apt-get", "cargo build"];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The lines in blocks of shell commands.
fn commands(text: &str) -> Vec<&str> {
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let lines = blocks.flat_map(str::lines);
    lines.filter(|line| !LEFT_OUT.iter().any(|start| line.starts_with(start))).collect()
}

/// The commands as a script, each word replaced that must differ.
fn script(text: &str, replaced: &[(&str, &str)]) -> String {
    replaced.iter().fold(commands(text).join("\n"), |script, (from, to)| {
        assert!(script.contains(from), "the page has no `{from}` any more");
        script.replace(from, to)
    })
}

fn page(name: &str) -> String {
    std::fs::read_to_string(root().join("docs").join(name)).unwrap()
}

/// The examples in the scene, with a free port and this scene's state.
fn copy_examples(scene: &Scene) {
    std::fs::create_dir_all(scene.path("examples/sim")).unwrap();
    let state = format!("[agent]\nstate = {:?}", scene.path("state"));
    let replaced = [("[agent]", state), ("21211", free_port().to_string())];
    scene.write("examples/memcached.toml", &scene.example("memcached.toml", &replaced));
    let simulated = "sim/colocation.toml";
    scene.write(&format!("examples/{simulated}"), &scene.example(simulated, &[]));
}

#[test]
#[ignore = "slow: ten steps with a real server, a calibration and a proof among them"]
fn every_command_does_what_the_page_says() {
    let scene = Scene::with_program_for_all();
    copy_examples(&scene);
    let script = script(&page("tutorial.md"), &OTHER_TIMES);
    let state = scene.path("state").display().to_string();
    let script = script.replace("lull restore", &format!("lull restore --state {state}"));
    let ended = scene.shell(&script).output().unwrap();
    let printed =
        [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(ended.status.success(), "{}", printed.concat());
    // The agent may have had no knob changed when it was killed.
    let restored = ["restored by its guard", "nothing to restore"];
    assert!(restored.iter().any(|words| printed[0].contains(words)), "{}", printed.concat());
    scene.wait_until_quiet();
    for made in ["report.html", "first-run", "first.toml"] {
        assert!(scene.path(made).exists(), "no {made}");
    }
}

#[test]
#[ignore = "slow: a server under a load, after its ideal and the other app's progress alone"]
fn the_quick_start_manages_a_memcached() {
    let scene = Scene::with_program_for_all();
    copy_examples(&scene);
    let text = page("quickstart.md");
    let (_, section) = text.split_once("## memcached").unwrap();
    let (section, _) = section.split_once("## MariaDB").unwrap();
    let ended = scene.shell(&script(section, &IN_QUICK_START)).output().unwrap();
    let printed =
        [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(ended.status.success(), "{}", printed.concat());
    assert!(printed[0].contains(".html"), "no report: {}", printed.concat());
    scene.wait_until_quiet();
    assert!(scene.path("first.toml").exists());
}
