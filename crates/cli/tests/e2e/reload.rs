//! A config that changes while the agent runs.

use crate::presence::unique;
use crate::runs::Two;
use crate::support::agent::Ended;
use crate::support::http::{address_of, get};
use crate::support::record::{Record, epochs_so_far};
use crate::support::scene::Scene;
use crate::support::victim::Victim;
use crate::support::{cores, skip};
use rustix::process::Signal;
use std::path::Path;

#[test]
fn a_changed_config_is_taken_over_and_a_broken_one_leaves_the_former_in_force() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let (scene, two) = (Scene::new(), Two::new());
    let config = two.config(&scene, "");
    let text = std::fs::read_to_string(&config).unwrap();
    let reload = |text: &str| reload(&scene, &config, text);
    reload(&text).refused(1, "no agent runs with the state directory");
    let mut agent = scene.agent(&config);
    agent.wait_for("a change", || two.is_changed());
    assert!(reload(&text).well().out.contains("nothing has changed"));
    let broken = text.replace("p95 = \"20us\"", "p95 = \"20parsecs\"");
    let refused = reload(&broken).refused(1, "lull.toml:");
    assert!(refused.err.contains("app[0].objectives"), "{}", refused.err);
    assert!(two.is_changed(), "a refused config changed knobs");
    let refused =
        reload(&text.replace("\"200ms\"", "\"300ms\"")).refused(1, "restart it to take it over");
    assert!(refused.err.contains("agent.epoch"), "{}", refused.err);
    let reloaded = reload(&text.replace("20us", "30us")).well();
    assert!(reloaded.out.contains("reloaded: app[0].objectives"));
    agent.wait_until_printed("config reloaded: app[0].objectives");
    assert!(two.is_changed(), "what is unaffected changed");
    std::fs::write(&config, text.replace("\"even\"", "\"unmanaged\"")).unwrap();
    agent.signal(Signal::HUP);
    agent.wait_until_printed("config reloaded: app[0].objectives, policy.name");
    agent.wait_for("knobs as before", || !two.server.is_changed() && !two.batch.is_changed());
    agent.interrupt().well();
    let record = Record::open(&scene.records()[0]);
    assert_eq!(record.events("operator").len(), 2);
    two.assert_as_before();
    scene.wait_until_quiet();
}

#[test]
fn a_reload_does_not_end_what_takes_over_no_config() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let (scene, two) = (Scene::new(), Two::new());
    let config = two.config(&scene, "");
    let text = std::fs::read_to_string(&config).unwrap();
    let path = config.display().to_string();
    let proof = ["run", &path, "--prove", "1h", "--block", "1s"];
    let mut agent = scene.start(scene.lull(&proof));
    let epochs = || epochs_so_far(scene.records().last());
    agent.wait_for("some epochs", || epochs() > 1);
    let refused = || {
        reload(&scene, &config, &text).refused(1, "does not reload its config: only");
    };
    refused();
    // The file of an earlier run, whose agent had the same number, as in a container.
    let earlier = format!(
        r#"{{"agent":{{"pid":{},"start_ticks":1}},"number":1,"done":true,"text":""}}"#,
        agent.pid()
    );
    scene.write("state/reload.json", &earlier);
    refused();
    let before = epochs();
    agent.wait_for("further epochs", || epochs() > before + 2);
    agent.interrupt().well();
    scene.wait_until_quiet();
}

/// Writes a config and has it reloaded.
fn reload(scene: &Scene, config: &Path, text: &str) -> Ended {
    std::fs::write(config, text).unwrap();
    let state = scene.path("state");
    scene.run(&["reload".as_ref(), "--state".as_ref(), state.as_os_str()])
}

/// The apps that the page at an address has.
fn apps_at(address: &str) -> Vec<String> {
    let run = get(address, "/api/run").json();
    let names = run["apps"].as_array().unwrap().iter().map(|app| app["name"].clone());
    names.map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// Returns the CPU time that was counted for an app, if any was.
fn cpu_seconds(address: &str, app: &str) -> Option<f64> {
    let metrics = get(address, "/metrics").body;
    let begin = format!("lull_cpu_time_seconds_total{{app=\"{app}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&begin)?.parse().ok())
}

#[test]
fn an_app_is_added_and_another_removed_while_a_third_keeps_knobs_and_statistics() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let (scene, two, other) = (Scene::new(), Two::new(), Victim::sleeper());
    let config = two.config(&scene, "http = \"127.0.0.1:0\"");
    let Two { server, batch } = &two;
    let text = std::fs::read_to_string(&config).unwrap();
    let mut agent = scene.agent(&config);
    let address = address_of(&mut agent);
    agent.wait_for("a change", || two.is_changed());
    agent.wait_for("its CPU time", || cpu_seconds(&address, "batch").is_some());
    let (before, counted) = (server.now(), cpu_seconds(&address, "server").unwrap());
    let new = text.replace("name = \"batch\"", "name = \"other\"");
    let new = new.replace(&format!("pid = {}\n", batch.pid()), &format!("pid = {}\n", other.pid()));
    let done = reload(&scene, &config, &new).well();
    assert!(done.out.contains("reloaded: app `other` added, app `batch` removed"), "{}", done.out);
    batch.assert_as_before();
    assert_eq!(server.now(), before, "an app that stays was changed");
    agent.wait_for("the cores of the new app", || other.is_changed());
    agent.wait_until_printed("config reloaded: app `other` added, app `batch` removed");
    agent.wait_until_printed("other has processes now");
    assert_eq!(server.now(), before, "an app that stays was changed");
    agent.wait_for("the apps of the page", || apps_at(&address) == ["server", "other"]);
    agent.wait_for("its CPU time", || cpu_seconds(&address, "other").is_some());
    assert!(cpu_seconds(&address, "server").unwrap() >= counted, "its counter has fallen");
    assert_eq!(cpu_seconds(&address, "batch"), None);
    // The removed app is added again, and gets back its place in the record.
    let back = reload(&scene, &config, &text).well();
    assert!(back.out.contains("reloaded: app `batch` added, app `other` removed"), "{}", back.out);
    other.assert_as_before();
    agent.wait_for("the cores of the former app", || batch.is_changed());
    assert_eq!(server.now(), before, "an app that stays was changed");
    agent.interrupt().well();
    for victim in [server, batch, &other] {
        victim.assert_as_before();
    }
    let record = Record::open(&scene.records()[0]);
    let of_app =
        |app: &str| record.number(&format!("SELECT count(*) FROM app_epochs WHERE app = '{app}'"));
    assert_eq!(of_app("server"), record.epochs());
    assert!((1..record.epochs()).contains(&of_app("other")), "{}", of_app("other"));
    assert_eq!(of_app("batch") + of_app("other"), record.epochs());
    let names = record.text("SELECT name FROM apps ORDER BY id");
    assert_eq!(names, ["server", "batch", "other"]);
    assert!(record.events("foreign").is_empty() && record.events("app_exited").is_empty());
    scene.wait_until_quiet();
}

#[test]
fn a_template_is_added_changed_and_removed_and_a_match_has_its_knobs_back() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let seconds = [unique(), unique(), unique(), unique()];
    let [first, one, two, none] = seconds.each_ref().map(String::as_str);
    // All exist before they match: their settings are read before the agent finds them.
    let [app, early, late] = [first, one, two].map(Victim::sleeper_for);
    let body = format!(
        "[policy]\nname = \"even\"\n[[app]]\nname = \"first\"\nclass = \"best-effort\"\n\
         solo = 1.0\npid = {}\n",
        app.pid()
    );
    let config = scene.config("", &body);
    let bare = std::fs::read_to_string(&config).unwrap();
    let matching = |seconds: &str| {
        let head = "[[match]]\nname = \"w\"\nclass = \"best-effort\"\nmost = 1\nsolo = 1.0\n";
        format!("{bare}{head}args = \"sleep {seconds}\"\n")
    };
    let mut agent = scene.agent(&config);
    agent.wait_for("some epochs", || epochs_so_far(scene.records().last()) > 1);
    let refused = reload(&scene, &config, &matching(first));
    let refused = refused.refused(1, "belongs to both `first` and `w-1`");
    assert!(refused.err.contains("match[0]:"), "{}", refused.err);
    app.assert_as_before();
    let added = reload(&scene, &config, &matching(none)).well();
    let words = "template `w` added, which has no process yet";
    assert!(added.out.contains(words), "{}", added.out);
    let changed = reload(&scene, &config, &matching(one)).well();
    assert!(changed.out.contains("reloaded: match[0].args"), "{}", changed.out);
    agent.wait_for("the cores of both", || early.is_changed() && app.is_changed());
    let changed = reload(&scene, &config, &matching(two)).well();
    assert!(changed.out.contains("reloaded: match[0].args"), "{}", changed.out);
    early.assert_as_before();
    agent.wait_for("the cores of the other match", || late.is_changed() && app.is_changed());
    let removed = reload(&scene, &config, &bare).well();
    assert!(removed.out.contains("reloaded: template `w` removed"), "{}", removed.out);
    late.assert_as_before();
    agent.wait_for("all cores for the app that is left", || !app.is_changed());
    agent.interrupt().well();
    for victim in [&app, &early, &late] {
        victim.assert_as_before();
    }
    let record = Record::open(&scene.records()[0]);
    assert!(record.events("foreign").is_empty(), "{:?}", record.events("foreign"));
    scene.wait_until_quiet();
}

#[test]
fn what_cannot_come_or_go_in_a_run_is_named_with_its_key_and_nothing_changes() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let (scene, two) = (Scene::new(), Two::new());
    let config = two.config(&scene, "");
    let text = std::fs::read_to_string(&config).unwrap();
    let mut agent = scene.agent(&config);
    agent.wait_for("a change", || two.is_changed());
    let before = (two.server.now(), two.batch.now());
    let with = |entry: &str| format!("{text}{entry}class = \"best-effort\"\nsolo = 1.0\n");
    let pid = format!("pid = {}\n", two.batch.pid());
    let instead = |place: &str| text.replace(&pid, &format!("{place}\n"));
    let load = "[[load]]\napp = \"server\"\ntarget = \"options://127.0.0.1:1\"\nrate = \"1/s\"\n";
    let cases = [
        (
            with("[[match]]\nname = \"m\"\nregister = \"*\"\nmost = 1\n"),
            "match[0].register: cannot be added while the agent runs",
        ),
        (instead("start = [\"sleep\", \"3\"]"), "app[1].pid: cannot change while the agent runs"),
        (instead("pid = 1"), "app[1].pid: process 1 is"),
        (instead(&format!("pid = {}", two.server.pid())), "belongs to both `server` and `batch`"),
        (instead("match = { exe = \"[\" }"), "app[1].match.exe"),
        (text.replace("solo = 1.0", "solo = \"high\""), "app[1].solo"),
        (format!("{text}{load}connections = 1\n"), "load: cannot change while the agent runs"),
    ];
    for (new, words) in cases {
        let refused = reload(&scene, &config, &new).refused(1, words);
        assert!(refused.err.contains("lull.toml:"), "{}", refused.err);
        assert_eq!((two.server.now(), two.batch.now()), before, "a refused config changed knobs");
    }
    assert!(reload(&scene, &config, &text).well().out.contains("nothing has changed"));
    agent.interrupt().well();
    let record = Record::open(&scene.records()[0]);
    assert!(record.events("operator").is_empty(), "{:?}", record.events("operator"));
    scene.wait_until_quiet();
}

#[test]
fn a_program_is_started_and_ended_by_reloads_and_one_that_does_not_start_is_refused() {
    let scene = Scene::new();
    let (seconds, app) = (unique(), Victim::sleeper());
    let body = format!(
        "[policy]\nname = \"unmanaged\"\n[[app]]\nname = \"first\"\nclass = \"best-effort\"\n\
         solo = 1.0\npid = {}\n",
        app.pid()
    );
    let config = scene.config("", &body);
    let bare = std::fs::read_to_string(&config).unwrap();
    let starting = |name: &str, argv: &str| {
        let head = format!("[[app]]\nname = \"{name}\"\nclass = \"best-effort\"\nsolo = 1.0\n");
        format!("{head}start = {argv}\n")
    };
    let program = || scene.process_with(&["sleep", &seconds]);
    let mut agent = scene.agent(&config);
    agent.wait_for("some epochs", || epochs_so_far(scene.records().last()) > 1);
    let with_program = bare.clone() + &starting("own", &format!("[\"sleep\", \"{seconds}\"]"));
    let missing = with_program.clone() + &starting("bad", "[\"./no-such-program\"]");
    reload(&scene, &config, &missing).refused(1, "app[2].start: cannot start app `bad`");
    assert_eq!(program(), None, "what was started in vain runs on");
    let added = reload(&scene, &config, &with_program).well();
    assert!(added.out.contains("reloaded: app `own` added"), "{}", added.out);
    assert!(program().is_some());
    agent.wait_until_printed("own has processes now");
    let removed = reload(&scene, &config, &bare).well();
    assert!(removed.out.contains("reloaded: app `own` removed"), "{}", removed.out);
    assert_eq!(program(), None, "a removed program runs on");
    agent.interrupt().well();
    app.assert_as_before();
    scene.wait_until_quiet();
}
