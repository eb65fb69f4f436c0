//! `lull entropy` on records that runs have left.

use crate::support::free_port;
use crate::support::scene::Scene;
use std::path::PathBuf;

/// A record of two seconds under this policy, on these cores.
fn record(scene: &Scene, policy: &str, cores: &str) -> PathBuf {
    let port = free_port();
    let config = scene.config(
        "",
        &format!(
            r#"[policy]
name = "{policy}"
[limits]
cores = "{cores}"
[[app]]
name = "server"
class = "latency-critical"
objectives = [{{ p95 = "20us" }}]
ideal = "10us"
start = ["lull", "serve", "options", "--listen", "127.0.0.1:{port}", "--workers", "1"]
ready = "127.0.0.1:{port}"
[[app]]
name = "burner"
class = "best-effort"
progress = "push"
solo = 1e12
start = ["lull", "burn", "compute", "--threads", "1"]
[[load]]
app = "server"
target = "options://127.0.0.1:{port}"
rate = "200/s"
connections = 4
"#
        ),
    );
    let before = scene.records();
    scene.run_for(&config, "2s").well();
    scene.wait_until_quiet();
    scene.records().into_iter().find(|file| !before.contains(file)).unwrap()
}

#[test]
fn runs_have_their_entropy_and_two_policies_an_equivalence_where_cores_differ() {
    let scene = Scene::new();
    let file = record(&scene, "unmanaged", "0");
    let found = scene.run(&["entropy".as_ref(), file.as_os_str(), "--json".as_ref()]).well().json();
    let part = &found["parts"][0];
    assert_eq!((part["name"].as_str(), part["cores"].as_f64()), (Some("unmanaged"), Some(1.0)));
    // A bound of 20 us cannot be met, and a burner cannot make a million million steps a second.
    let number = |key: &str| part[key].as_f64().unwrap();
    assert!(number("lc") > 0.5 && number("be") > 0.9 && number("missed") == 1.0, "{part}");
    let space_time = &part["space_time"];
    let used = space_time["used_cores"].as_f64().unwrap();
    // Both apps want the only core; a kernel without schedstat does not show who waits.
    assert!(used > 0.0 && space_time["crosses"].as_f64().is_none_or(|it| it > 0.0), "{part}");
    // Every thread may run on the only core, which is idle only while none waits.
    let waste = space_time["waste_cores_at_most"].as_f64();
    assert!(waste.is_none_or(|waste| (0.0..=1.0).contains(&waste)), "{part}");
    let system = 0.8 * number("lc") + 0.2 * number("be");
    assert!((number("system") - system).abs() < 1e-9);
    assert!(found["equivalence"].as_array().unwrap().is_empty());
    // A missed bound needs priority in any case.
    let check = ["check".as_ref(), "--record".as_ref(), file.as_os_str(), "--json".as_ref()];
    let advice = scene.run(&check).well().json()["advice"][0].clone();
    assert_eq!(
        (advice["part"].as_str(), advice["scarce"].as_bool()),
        (Some("unmanaged"), Some(true))
    );
    assert!(advice["needs"].as_str().is_none_or(|needs| needs.ends_with('P')), "{advice}");
    let printed = scene.run(&["entropy".as_ref(), file.as_os_str()]).well().out;
    assert!(printed.contains("E_LC") && printed.contains("several numbers of cores"), "{printed}");
}

#[test]
fn what_is_no_record_is_refused_by_name() {
    let scene = Scene::new();
    let file = scene.write("none.db", "no record");
    let ended = scene.run(&["entropy".as_ref(), file.as_os_str()]);
    ended.refused(2, "none.db is not a record of a run");
    scene.run(&["entropy", "gone.db"]).refused(2, "gone.db cannot be opened");
    scene.run(&["entropy", "gone.db", "--at", "2"]).refused(2, "--at 2");
}
