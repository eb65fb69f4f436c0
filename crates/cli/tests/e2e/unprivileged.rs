//! Without root: missing knobs and gauges are reported, and the others work.

use crate::demo::assert_findings;
use crate::support::scene::Scene;
use crate::support::{cores, free_port, is_root, skip};
use std::path::PathBuf;

/// Returns a scene with a directory that belongs to the user `nobody`, or `None` if the tests
/// do not run as root, because then all other tests already run without privileges.
fn scene() -> Option<(Scene, PathBuf)> {
    if !is_root() {
        skip("not root: all other tests run without rights");
        return None;
    }
    let scene = Scene::with_program_for_all();
    let home = scene.path("home");
    std::fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).unwrap();
    Some((scene, home))
}

#[test]
fn check_names_what_needs_root_and_how_to_get_it() {
    let Some((scene, _)) = scene() else { return };
    let ended = scene.start(scene.lull_as_nobody(&["check", "--json"])).wait().well();
    let lacks = |name: &str| {
        let report = ended.json();
        let all = report["policies"].as_array().unwrap().clone();
        let policy = all.into_iter().find(|policy| policy["name"] == name).unwrap();
        policy["lacks"].as_array().unwrap().len()
    };
    assert_eq!(lacks("arq"), 0);
    assert!(lacks("lc-first") > 0);
    let printed = scene.start(scene.lull_as_nobody(&["check"])).wait().well();
    assert!(printed.out.contains("run as root"), "{}", printed.out);
}

#[test]
fn a_policy_that_needs_root_is_refused_before_anything_starts() {
    let Some((scene, home)) = scene() else { return };
    let started = home.join("started");
    let config = format!(
        "[agent]\nstate = {:?}\nrecord = {:?}\n[policy]\nname = \"lc-first\"\n[[app]]\n\
         name = \"batch\"\nclass = \"best-effort\"\nstart = [\"touch\", {started:?}]\n",
        home.join("state"),
        home.join("records"),
    );
    let config = scene.write("lull.toml", &config);
    let arguments = ["run".as_ref(), config.as_os_str()];
    let ended = scene.start(scene.lull_as_nobody(&arguments)).wait();
    let ended = ended.refused(2, "lull.toml:5: policy.name: ");
    assert!(ended.err.contains("scheduling"), "{}", ended.err);
    assert!(!started.exists());
}

#[test]
fn arq_divides_cores_without_root() {
    let Some((scene, home)) = scene() else { return };
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let port = free_port();
    let config = format!(
        r#"
[agent]
epoch = "200ms"
state = {:?}
record = {:?}
[policy]
name = "arq"
[[app]]
name = "server"
class = "latency-critical"
objectives = [{{ p95 = "20us" }}]
ideal = "10us"
start = ["lull", "serve", "options", "--listen", "127.0.0.1:{port}", "--workers", "2"]
ready = "127.0.0.1:{port}"
[[app]]
name = "burner"
class = "best-effort"
progress = "push"
solo = 1e9
start = ["lull", "burn", "compute", "--threads", "1"]
[[load]]
app = "server"
target = "options://127.0.0.1:{port}"
rate = "50/s"
"#,
        home.join("state"),
        home.join("records"),
    );
    let config = scene.write("lull.toml", &config);
    let arguments = ["run".as_ref(), config.as_os_str()];
    let mut agent = scene.start(scene.lull_as_nobody(&arguments));
    agent.wait_until_printed("burner: cores");
    let ended = agent.interrupt().well();
    assert!(!ended.err.contains("refused"), "{}", ended.err);
    scene.wait_until_quiet();
}

#[test]
fn the_demo_needs_no_root() {
    let Some((scene, home)) = scene() else { return };
    let [state, record] = ["state", "records"].map(|name| home.join(name).display().to_string());
    let arguments =
        ["demo", "--pairs", "1", "--block", "1s", "--json", "--state", &state, "--record", &record];
    let ended = scene.start(scene.lull_as_nobody(&arguments)).wait().well();
    assert_findings(&ended.json(), &home, false);
    scene.wait_until_quiet();
}
