//! `--parts` and `--cells`: parts of several processes become the result of one, to the byte,
//! and neither a kill nor a slip spoils them.

use crate::sim::SMALL;
use crate::support::agent::Ended;
use crate::support::scene::Scene;
use crate::support::{send, wait_for};
use rustix::process::Signal;
use std::ffi::OsStr;
use std::path::Path;

fn lull(scene: &Scene, command: &str, text: &str, further: &[&str]) -> Ended {
    let file = scene.write("scenario.toml", text);
    let mut all: Vec<&OsStr> = vec![command.as_ref(), file.as_os_str()];
    all.extend(further.iter().map(AsRef::<OsStr>::as_ref));
    scene.run(&all)
}

fn text_of(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// The names of the finished cells of a directory.
fn finished(directory: &Path) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(directory) else { return Vec::new() };
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with("cell-")).collect();
    names.sort();
    names
}

#[test]
fn parts_of_a_simulation_become_the_result_of_one_process() {
    let scene = Scene::new();
    let [parts, merged, whole] = ["parts", "m.csv", "w.csv"].map(|it| text_of(&scene.path(it)));
    let one = lull(&scene, "sim", SMALL, &["--csv", &whole]).well();
    // Each part as a machine of its own would run it, one of them by numbers.
    for (cells, run) in [("1/3", 2), ("3-4", 2), ("3/3", 2)] {
        let ended = lull(&scene, "sim", SMALL, &["--parts", &parts, "--cells", cells]).well();
        let summary = format!("{run} cells run, 0 were in {parts} already");
        assert!(ended.err.contains(&summary) && ended.out.is_empty(), "{}", ended.err);
    }
    let again = lull(&scene, "sim", SMALL, &["--parts", &parts, "--cells", "2/3"]).well();
    assert!(again.err.contains("0 cells run, 2 were in"), "{}", again.err);
    let all = lull(&scene, "sim", SMALL, &["--parts", &parts, "--csv", &merged]).well();
    assert!(all.err.contains("0 cells run, 6 were in"), "{}", all.err);
    assert_eq!(all.out, one.out, "the table with its paired differences");
    assert_eq!(std::fs::read(&merged).unwrap(), std::fs::read(&whole).unwrap());
    // More replications extend the existing results.
    let more = lull(&scene, "sim", SMALL, &["--parts", &parts, "--seeds", "4"]).well();
    assert!(more.err.contains("2 cells run, 6 were in"), "{}", more.err);
}

#[test]
fn a_killed_part_goes_on_and_ends_as_a_whole_one() {
    let scene = Scene::new();
    let long = SMALL.replace("replications = 3", "replications = 100");
    let file = scene.write("scenario.toml", &long);
    let parts = scene.path("parts");
    let arguments = ["sim".as_ref(), file.as_os_str(), "--parts".as_ref(), parts.as_os_str()];
    let killed = scene.start(scene.lull(&arguments));
    wait_for("a finished cell", || !finished(&parts).is_empty());
    send(killed.pid(), Signal::KILL);
    killed.wait();
    let there = finished(&parts).len();
    assert!(there < 200, "it ended before it was killed");
    // The remains of a kill in the middle of a cell.
    std::fs::write(parts.join(".lull-torn"), "scenario,vers").unwrap();
    let [merged, whole] = ["m.csv", "w.csv"].map(|name| text_of(&scene.path(name)));
    let parts = text_of(&parts);
    let resumed = lull(&scene, "sim", &long, &["--parts", &parts, "--csv", &merged]).well();
    let summary = format!("{} cells run, {there} were in", 200 - there);
    assert!(resumed.err.contains(&summary), "{}: {}", summary, resumed.err);
    lull(&scene, "sim", &long, &["--csv", &whole]).well();
    assert_eq!(std::fs::read(&merged).unwrap(), std::fs::read(&whole).unwrap());
}

#[test]
fn the_lines_for_kubernetes_and_slurm_run_their_part() {
    let scene = Scene::new();
    scene.write("s.toml", SMALL);
    let page = include_str!("../../../../docs/cells.md");
    let line = |variable: &str| {
        let lines = page.lines().map(str::trim);
        let mut lines =
            lines.filter(|line| line.starts_with("lull sim") && line.contains(variable));
        lines.next().unwrap().to_owned()
    };
    std::os::unix::fs::symlink(crate::support::LULL, scene.path("lull")).unwrap();
    for (variable, first) in [("JOB_COMPLETION_INDEX", 0), ("SLURM_ARRAY_TASK_ID", 1)] {
        let parts = scene.path(variable);
        let written = line(variable);
        assert!(written.contains("/shared/parts") && written.contains("/20"), "{written}");
        let script = written.replace("/shared/parts", &text_of(&parts)).replace("/20", "/2");
        for index in [first, first + 1] {
            let script = format!("cd {}; {script}", text_of(&scene.path("")));
            let mut command = scene.shell(&script);
            command.env(variable, index.to_string());
            scene.start(command).wait().well();
        }
        assert_eq!(finished(&parts).len(), 6, "{written}");
    }
}

#[test]
fn parts_of_another_scenario_and_damaged_cells_are_refused() {
    let scene = Scene::new();
    let parts = scene.path("parts");
    let arguments = ["--parts", &text_of(&parts), "--cells", "1"];
    lull(&scene, "sim", SMALL, &arguments).well();
    let other = SMALL.replace("length = \"4s\"", "length = \"5s\"");
    let refused = lull(&scene, "sim", &other, &arguments).refused(2, "is a cell of scenario ");
    assert!(refused.err.contains("; this run is scenario "), "{}", refused.err);
    let seeded = [&arguments[..], &["--seed", "9"]].concat();
    let refused = lull(&scene, "sim", SMALL, &seeded).refused(2, "with seed 9");
    assert!(refused.err.contains("with seed 1; this run is"), "{}", refused.err);
    let cell = parts.join("cell-000001.csv");
    let text = std::fs::read_to_string(&cell).unwrap();
    let newer = text.replace(env!("CARGO_PKG_VERSION"), "99.0");
    std::fs::write(&cell, newer).unwrap();
    lull(&scene, "sim", SMALL, &arguments).refused(2, "by lull 99.0");
    for torn in [&text[..text.len() - 3], "", &text[..text.rfind("requests").unwrap() - 20]] {
        std::fs::write(&cell, torn).unwrap();
        lull(&scene, "sim", SMALL, &arguments).refused(2, "delete it and run again");
    }
}

#[test]
fn cells_that_do_not_exist_are_refused() {
    let scene = Scene::new();
    let parts = text_of(&scene.path("parts"));
    for (cells, why) in [("4/3", "no part 4 of 3"), ("1/0", "N of 1 or more"), ("7", "no cell 7")] {
        lull(&scene, "sim", SMALL, &["--parts", &parts, "--cells", cells]).refused(2, why);
    }
    lull(&scene, "sim", SMALL, &["--cells", "1/2"]).refused(2, "--parts");
    let precise = SMALL.replace(
        "replications = 3",
        "replications = 3\nprecision = { figure = \"p95[site]\", relative = 0.1 }",
    );
    lull(&scene, "sim", &precise, &["--parts", &parts]).refused(2, "fix it with --seeds N");
}
