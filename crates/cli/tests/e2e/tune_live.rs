//! `lull tune` on a running server: trials survive a kill, knobs are restored, and `lull run`
//! uses the stored finding and stores its own.

use crate::support::scene::Scene;
use crate::support::victim::Victim;
use crate::support::{LULL, cores, free_port, skip};
use rustix::process::{Pid, Signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::path::Path;

/// Writes a config of a server that another process started, with a light load, a power
/// model, and an objective that any core of any machine meets, even one that stalls at times.
/// In a window of 4 s a stall of 120 ms at its end leaves less than 3 % of the requests without
/// an answer, which the search takes for a server that keeps up.
fn config(scene: &Scene, server: &Victim, agent: &str) -> std::path::PathBuf {
    let (pid, address) = (server.pid(), server.address());
    scene.config(
        agent,
        &format!(
            r#"
[policy]
name = "bayop"
knobs = ["cores"]
settle = "200ms"
window = "4s"
trials = 5
load_change = 0.9
allow_modelled = true
[[app]]
name = "server"
class = "latency-critical"
objectives = [{{ p95 = "60s" }}]
pid = {pid}
[[load]]
app = "server"
target = "options://{address}"
rate = "40/s"
arrivals = "constant"
connections = 2
"#
        ),
    )
}

fn trials(store: &Path) -> i64 {
    counted(store, "SELECT count(*) FROM trial")
}

/// Counts the stored settings that meet their objective.
fn count_findings(store: &Path) -> i64 {
    counted(store, "SELECT count(*) FROM spot WHERE meets")
}

fn counted(store: &Path, sql: &str) -> i64 {
    let open = rusqlite::Connection::open(store).ok();
    let count = |it: rusqlite::Connection| it.query_row(sql, [], |row| row.get(0)).ok();
    open.and_then(count).unwrap_or(0)
}

#[test]
fn a_killed_search_leaves_the_server_as_it_was_and_goes_on_with_its_trials() {
    if cores() < 2 {
        return skip("one core is nothing to choose");
    }
    let (scene, server) = (Scene::new(), Victim::server());
    let (config, store) = (config(&scene, &server, ""), scene.path("spots.sqlite"));
    let command = |further: &[&str]| {
        let mut all = vec!["tune".as_ref(), config.as_os_str()];
        all.extend(["--store".as_ref(), store.as_os_str()]);
        all.extend(further.iter().map(AsRef::<std::ffi::OsStr>::as_ref));
        scene.lull(&all)
    };
    let mut search = scene.start(command(&[]));
    // The first trial is the present setting of the server, the second has fewer cores.
    search.wait_for("fewer cores", || server.is_changed());
    search.signal(Signal::KILL);
    drop(search);
    server.wait_until_as_before();
    scene.wait_until_quiet();
    let kept = trials(&store);
    // Trials of another power model are not continued.
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("{text}[power]\nbase_watts = 90.0\n")).unwrap();
    let mut other = scene.start(command(&[]));
    other.wait_until_printed("the seed of the search is");
    let ended = other.interrupt().refused(1, "stopped before the end");
    assert!(!ended.err.contains("resumes with"), "{}", ended.err);
    assert_eq!(trials(&store), kept);
    scene.wait_until_quiet();
    std::fs::write(&config, text).unwrap();
    let ended = scene.start(command(&["--json"])).wait().well();
    assert!(ended.err.contains(&format!("resumes with {kept} trials")), "{}", ended.err);
    let found = &ended.json()[0];
    assert_eq!((&found["trials"], &found["resumed"]), (&5.into(), &kept.into()), "{found}");
    // One core meets the bound, and by the power model fewer busy cores cost no more.
    assert_eq!(found["meets"], true, "{found}");
    assert!(found["energy"].as_str().unwrap().contains("modelled"), "{found}");
    server.assert_as_before();
    scene.wait_until_quiet();
    assert_eq!(trials(&store), 0, "a search that has ended begins afresh next time");
    used_by_run(&scene, &server, &store);
}

/// `lull run` takes the finding from the store.
fn used_by_run(scene: &Scene, server: &Victim, store: &Path) {
    let config = config(scene, server, &format!("spots = {store:?}"));
    let ended = scene.run_for(&config, "4s").well();
    assert!(ended.err.contains("1 settings for `server` are known"), "{}", ended.err);
    server.assert_as_before();
    std::fs::write(store, "this was a database once").unwrap();
    let ended = scene.run_for(&config, "4s").refused(2, "not a store of `lull tune`");
    assert!(ended.err.contains("move it away"), "{}", ended.err);
    server.assert_as_before();
}

/// Returns the number of plans of a record that have a reason; records are read while they are
/// written.
fn reasons(scene: &Scene, number: usize, reason: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM plans WHERE reason LIKE '%\"{reason}\":{{%'");
    scene.records().get(number).map_or(0, |file| counted(file, &sql))
}

#[test]
#[ignore = "slow: a live search, whose readings count only beside few other tests"]
fn a_run_keeps_what_it_found_and_the_next_one_uses_it_without_a_trial() {
    if cores() < 2 {
        return skip("one core is nothing to choose");
    }
    let (scene, server) = (Scene::new(), Victim::server());
    let store = scene.path("spots.sqlite");
    let config = config(&scene, &server, &format!("spots = {store:?}"));
    scene.run(&["check".as_ref(), config.as_os_str()]).well();
    assert!(!store.exists(), "a check makes no store");
    let nowhere = scene.write(
        "nowhere.toml",
        &std::fs::read_to_string(&config).unwrap().replace("spots.sqlite", "no/s"),
    );
    scene.run(&["check".as_ref(), nowhere.as_os_str()]).refused(2, "there is no directory");
    let mut first = scene.agent(&config);
    first.wait_for("what its search finds", || count_findings(&store) == 1);
    let ended = first.interrupt().well();
    assert!(ended.err.contains("0 settings for `server` are known"), "{}", ended.err);
    assert!(ended.err.contains("found in 5 trials"), "{}", ended.err);
    server.assert_as_before();
    scene.wait_until_quiet();
    assert!(reasons(&scene, 0, "trial") > 0, "the first run has tried nothing");
    let mut second = scene.agent(&config);
    second.wait_for("the setting that is known", || reasons(&scene, 1, "found") > 0);
    let ended = second.interrupt().well();
    assert!(ended.err.contains("1 settings for `server` are known"), "{}", ended.err);
    assert_eq!(reasons(&scene, 1, "trial"), 0, "{}", ended.err);
    server.assert_as_before();
    assert_eq!(count_findings(&store), 1);
}

#[test]
fn a_knob_that_is_refused_leaves_the_search_and_a_run_uses_what_is_found_of_the_rest() {
    if cores() < 2 {
        return skip("one core is nothing to choose");
    }
    let (scene, server) = (Scene::new(), Victim::server());
    let store = scene.path("spots.sqlite");
    let path = config(&scene, &server, &format!("spots = {store:?}"));
    let text = std::fs::read_to_string(&path).unwrap();
    // Everything that the machine claims; here its network card may refuse every delay.
    std::fs::write(&path, text.replacen("knobs = [\"cores\"]\n", "", 1)).unwrap();
    let all = ["tune".as_ref(), path.as_os_str(), "--store".as_ref(), store.as_os_str()];
    let ended = scene.run(&[&all[..], &["--json".as_ref()]].concat()).well();
    let found = &ended.json()[0];
    assert_eq!(found["meets"], true, "{found} {}", ended.err);
    server.assert_as_before();
    scene.wait_until_quiet();
    // Both numbers of cores meet the bound; the one that is not in force shows that it is used.
    let open = rusqlite::Connection::open(&store).unwrap();
    open.execute("UPDATE spot SET knob_values = '[1.0]' WHERE knobs = 'cores'", []).unwrap();
    drop(open);
    let mut run = scene.agent(&path);
    run.wait_for("the setting that is known", || reasons(&scene, 1, "found") > 0);
    let ended = run.interrupt().well();
    assert!(ended.err.contains("1 settings for `server` are known"), "{}", ended.err);
    server.assert_as_before();
}

#[test]
fn a_trial_whose_knob_another_program_changes_in_its_window_has_no_reading() {
    if cores() < 2 {
        return skip("one core is nothing to choose");
    }
    let (scene, server) = (Scene::new(), Victim::server());
    let (path, store) = (config(&scene, &server, ""), scene.path("spots.sqlite"));
    let all = ["tune".as_ref(), path.as_os_str(), "--store".as_ref(), store.as_os_str()];
    let mut search = scene.start(scene.lull(&[&all[..], &["--json".as_ref()]].concat()));
    search.wait_for("fewer cores", || server.is_changed());
    // The epoch that sets all threads ends, and the window of the trial begins.
    std::thread::sleep(std::time::Duration::from_millis(800));
    let (thread, whole) = (Pid::from_raw(server.other_thread()), sched_getaffinity(None).unwrap());
    let mut last = CpuSet::new();
    last.set((0..CpuSet::MAX_CPU).rev().find(|core| whole.is_set(*core)).unwrap());
    sched_setaffinity(thread, &last).unwrap();
    // A knob of two levels leaves the search with it, which is then an error of the same reason.
    let ended = search.wait();
    let text = format!("{}{}", ended.out, ended.err);
    assert!(text.contains("did not stay: another program has changed thread"), "{text}");
    sched_setaffinity(thread, &whole).unwrap();
    server.assert_as_before();
}

#[test]
fn a_search_waits_for_a_server_that_restarts_and_repeats_its_trial() {
    if cores() < 2 {
        return skip("one core is nothing to choose");
    }
    let address = format!("127.0.0.1:{}", free_port());
    let (scene, server) = (Scene::new(), Victim::server_at(&address));
    let (path, store) = (config(&scene, &server, ""), scene.path("spots.sqlite"));
    let text = std::fs::read_to_string(&path).unwrap();
    let args = format!("{LULL} serve options --listen {address} --workers 2");
    let pid = format!("pid = {}", server.pid());
    let text = text.replacen(&pid, &format!("match = {{ args = {args:?} }}"), 1);
    std::fs::write(&path, text).unwrap();
    let all = ["tune".as_ref(), path.as_os_str(), "--store".as_ref(), store.as_os_str()];
    let mut search = scene.start(scene.lull(&[&all[..], &["--json".as_ref()]].concat()));
    search.wait_for("fewer cores", || server.is_changed());
    drop(server);
    search.wait_until_printed("`server` is absent");
    let server = Victim::server_at(&address);
    let ended = search.wait().well();
    assert!(ended.err.contains("has restarted in the trial: it is repeated"), "{}", ended.err);
    let found = &ended.json()[0];
    assert_eq!((&found["trials"], &found["meets"]), (&5.into(), &true.into()), "{found}");
    let tried = found["tried"].as_array().unwrap();
    assert!(tried.iter().all(|trial| trial["why"].is_null()), "{found}");
    server.assert_as_before();
}

#[test]
fn trials_that_are_too_short_for_the_percentile_are_refused_with_their_length() {
    let (scene, server) = (Scene::new(), Victim::server());
    let path = config(&scene, &server, "");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("p95", "\"p99.99\"", 1)).unwrap();
    let ended = scene.run(&["tune".as_ref(), path.as_os_str()]);
    let ended = ended.refused(2, "too short for p99.99");
    assert!(ended.err.contains("window = \""), "{}", ended.err);
    server.assert_as_before();
}

#[test]
fn plans_that_are_only_journalled_find_nothing() {
    if cores() < 2 {
        return skip("one core is nothing to choose");
    }
    let (scene, server) = (Scene::new(), Victim::server());
    let store = scene.path("spots.sqlite");
    let config = config(&scene, &server, &format!("spots = {store:?}"));
    let (run, time) = ("run".as_ref(), "--for".as_ref());
    scene.run(&[run, config.as_os_str(), "--dry-run".as_ref(), time, "8s".as_ref()]).well();
    assert!(reasons(&scene, 0, "trial") > 0, "its search has not begun");
    // A dry run applies no setting, so that no measurement is of a trial's setting.
    assert_eq!(count_findings(&store), 0);
    server.assert_as_before();
}

#[test]
fn a_gate_that_is_not_there_is_refused_with_line_and_key() {
    let (scene, server) = (Scene::new(), Victim::server());
    let path = config(&scene, &server, "");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("\"cores\"", "\"gate-cap\", \"gate-delay\"", 1)).unwrap();
    for command in ["tune", "run"] {
        let ended = scene.run(&[command.as_ref(), path.as_os_str()]);
        let ended = ended.refused(2, "policy.knobs: there is no gate-cap to search");
        assert!(ended.err.contains("lull.toml:") && ended.err.contains("no app has a gate"));
    }
    assert!(scene.records().is_empty(), "refused before anything starts");
    server.assert_as_before();
}

#[test]
fn a_config_of_another_policy_and_a_rate_are_refused() {
    let (scene, server) = (Scene::new(), Victim::server());
    let path = config(&scene, &server, "");
    let tune = |further: &[&str]| {
        let mut all = vec!["tune".as_ref(), path.as_os_str()];
        all.extend(further.iter().map(AsRef::<std::ffi::OsStr>::as_ref));
        scene.run(&all)
    };
    tune(&["--rate", "100"]).refused(2, "a running one has the load it has");
    tune(&["--method", "magic"]).refused(2, "policy.method");
    tune(&["--method", "random", "--safe"]).refused(2, "policy.safe");
    let text = std::fs::read_to_string(&path).unwrap();
    let other = text.replacen("name = \"bayop\"", "name = \"even\"", 1);
    let (begin, end) = (other.find("knobs").unwrap(), other.find("[[app]]").unwrap());
    std::fs::write(&path, format!("{}{}", &other[..begin], &other[end..])).unwrap();
    tune(&[]).refused(2, "write name = \"bayop\"");
    server.assert_as_before();
}
