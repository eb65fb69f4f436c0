//! `lull lab`: what its JSON promises, its pictures, and its refusals.

use crate::support::scene::Scene;

#[test]
fn a_table_as_json_has_the_promised_keys_and_its_pictures_are_written() {
    let scene = Scene::new();
    let figures = scene.path("figures");
    let command = ["lab", "run", "theory", "--quick", "--json", "--figures"].map(AsRef::as_ref);
    let report = scene.run(&[&command[..], &[figures.as_os_str()]].concat()).well().json();
    assert_eq!(report["experiment"], "theory");
    assert!(report["seed_file"].is_string() && report["quick"] == true);
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.len() > 20, "{}", rows.len());
    for row in rows {
        for key in ["row", "paper", "ours", "ci95", "unit", "tolerance", "verdict"] {
            assert!(row.get(key).is_some(), "{key} is missing in {row}");
        }
        let verdict = row["verdict"].as_str().unwrap();
        let known = ["pass", "fail", "contradicts", "open", "reported"];
        assert!(known.contains(&verdict), "{row}");
    }
    for figure in report["figures"].as_array().unwrap() {
        let svg = std::fs::read_to_string(figures.join(figure.as_str().unwrap())).unwrap();
        assert!(svg.contains("</svg>"));
    }
}

#[test]
fn claims_have_their_verdicts_and_an_unsound_claims_file_is_refused_with_its_line() {
    let scene = Scene::new();
    let claims = scene.run(&["lab", "claims", "--paper", "reef"]).well();
    assert!(claims.out.contains("contradicts") && claims.out.contains("Most likely: "));
    let sound = scene.run(&["lab", "check"]).well();
    assert!(sound.out.contains("claims are sound"), "{}", sound.out);
    let file = scene.path("claims.toml");
    let text = "paper = \"A\"\n[systems]\nx = \"ours\"\n[[claim]]\ntext = \"x is fast\"\n\
                printed = 2.0\nsystems = [\"x\", \"z\"]\ntolerance = { at-least = 1.0 }\n\
                none = \"no row\"\n";
    std::fs::write(&file, text).unwrap();
    let command = ["lab", "check"].map(AsRef::as_ref);
    let refused = scene.run(&[&command[..], &[file.as_os_str()]].concat());
    let refused = refused.refused(2, "claims.toml:4: place: is missing");
    for wanted in ["claims.toml:7: systems: `z` is not", "claims.toml:8: tolerance: has no reason"]
    {
        assert!(refused.err.contains(wanted), "{wanted}: {}", refused.err);
    }
}

#[test]
fn the_list_names_every_experiment_and_a_slip_repeats_it() {
    let scene = Scene::new();
    let list = scene.run(&["lab", "list", "--json"]).well().json();
    let names: Vec<_> = list.as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert!(names.len() >= 8, "{names:?}");
    let shown_text =
        scene.run(&["lab", "run", "ntier"]).refused(2, "no experiment is called `ntier`");
    assert!(
        names.iter().all(|name| shown_text.err.contains(name.as_str().unwrap())),
        "{}",
        shown_text.err
    );
}

#[test]
fn a_run_is_of_one_experiment_or_of_all() {
    let scene = Scene::new();
    scene.run(&["lab", "run"]).refused(2, "<NAME>");
    scene.run(&["lab", "run", "--all", "theory"]).refused(2, "--all");
    scene.run(&["lab", "run", "--all", "--parts", "parts"]).refused(2, "--parts");
}

#[test]
fn files_that_cannot_be_written_or_read_are_refused_before_anything_is_measured() {
    let scene = Scene::new();
    let missing = "/no/such/place.csv";
    for command in [
        &["lab", "run", "bayop-silo", "--save", missing][..],
        &["lab", "tune-pid", "--figure", missing],
        &["lab", "mix", "--rate", "20", "--profile", missing],
        &["lab", "check", missing],
    ] {
        scene.run(command).refused(2, missing);
    }
}

#[test]
fn a_recording_is_not_replaced_by_the_trace_that_is_made_of_it() {
    let scene = Scene::new();
    let rows = "0,k,1,1,1,get,0\n1,k,1,1,1,get,0\n2,k,1,1,1,get,0\n";
    let file = scene.write("recording.csv", rows);
    let (file, out) = (file.to_str().unwrap(), scene.path("trace.csv"));
    let trace = ["lab", "trace", file, "--for", "2s", "--bin", "1s", "--out"];
    let run = |out: &str| scene.run(&[&trace[..], &[out]].concat());
    run(file).refused(2, "is read by this command, which would replace it");
    assert_eq!(std::fs::read_to_string(file).unwrap(), rows);
    run(out.to_str().unwrap()).well();
    assert!(std::fs::read_to_string(&out).unwrap().ends_with("time_s,rate_per_s\n0,1\n1,1\n"));
    let from_stdin = |out: &str| {
        let arguments = ["lab", "trace", "-", "--for", "2s", "--bin", "1s", "--out", out];
        let mut command = scene.lull(&arguments);
        command.stdin(std::fs::File::open(file).unwrap()).output().unwrap()
    };
    let refused = from_stdin(file);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(error.contains("is read by this command, which would replace it"), "{error}");
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(std::fs::read_to_string(file).unwrap(), rows);
    assert!(from_stdin(out.to_str().unwrap()).status.success());
}

#[test]
fn a_run_of_all_experiments_goes_on_after_an_error_and_states_it_at_its_end() {
    let scene = Scene::new();
    let file = scene.path("results.csv");
    std::fs::write(&file, "no table\n1,2\n").unwrap();
    let command = ["lab", "run", "--all", "--quick", "--save"].map(AsRef::as_ref);
    let run = scene.run(&[&command[..], &[file.as_os_str()]].concat());
    let run = run.refused(1, "experiments failed:\ntheory: ");
    assert!(run.err.contains("\nbayop-policy: "), "{}", run.err);
    assert!(run.out.contains("0 of "), "{}", run.out);
}

#[test]
fn recorded_rows_are_replaced_by_a_lesser_run_only_by_force() {
    let scene = Scene::new();
    let file = scene.path("results.csv");
    let text = "experiment,row,unit,paper,mean,half_width,values,length,seeds,commit\n\
                reef-c6,a row,1,,2.0,0.5,5,full,1 2 3,abc\n";
    std::fs::write(&file, text).unwrap();
    let run = |further: &[&str]| {
        let command = ["lab", "run", "reef-c6", "--quick", "--save", file.to_str().unwrap()];
        scene.run(&[&command[..], further].concat())
    };
    run(&[]).refused(2, "`reef-c6` is recorded at full length on 3 seeds");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    run(&["--force"]).well();
    let after = std::fs::read_to_string(&file).unwrap();
    assert!(!after.contains("a row,") && after.contains(",quick,1,"), "{after}");
}

#[test]
fn a_quick_run_says_that_its_tolerances_need_not_hold() {
    let scene = Scene::new();
    let quick = scene.run(&["lab", "run", "theory", "--quick", "--seed", "7"]).well();
    assert!(quick.out.contains("a quick run, tolerances need not hold"), "{}", quick.out);
    assert!(quick.out.contains("(seed 7, commit "), "{}", quick.out);
}

#[test]
fn a_verdict_says_which_seeds_numbers_were_found_on_and_is_not_given_on_them() {
    let scene = Scene::new();
    let run = |seed| scene.run(&["lab", "run", "eetl-spikes", "--quick", "--seed", seed]);
    let quick = run("7").well();
    let shown = "(seed 7, none of those on which numbers were fitted, [5, ";
    assert!(quick.out.contains(shown), "{}", quick.out);
    run("5").refused(2, "were fitted on seed 5");
}

#[test]
fn seeds_that_are_run_apart_become_the_report_of_one_process() {
    let scene = Scene::new();
    let parts = scene.path("parts");
    let run = |further: &[&str]| {
        let command = ["lab", "run", "theory", "--quick", "--seeds", "3"];
        scene.run(&[&command[..], further].concat())
    };
    let kept = ["--parts", parts.to_str().unwrap()];
    let one = run(&["--json"]).well();
    let part = |cells| run(&[&kept[..], &["--cells", cells]].concat());
    assert!(part("1").well().err.contains("1 cells run, 0 were in"));
    let second = part("1-2").well();
    assert!(second.err.contains("1 cells run, 1 were in") && second.out.is_empty());
    let whole = run(&[&kept[..], &["--json"]].concat()).well();
    assert!(whole.err.contains("1 cells run, 2 were in"), "{}", whole.err);
    assert_eq!(whole.out, one.out);
    let rows = std::fs::read_to_string(parts.join("cell-000002.csv")).unwrap();
    assert!(rows.starts_with("scenario,version,seed,cell,experiment,row,"), "{rows}");
    // Another number of seeds extends the directory; another length of the runs does not fit.
    assert!(part("4").refused(2, "--cells: there is no cell 4").out.is_empty());
    let full = [&["lab", "run", "theory"], &kept[..], &["--cells", "1"]].concat();
    scene.run(&full).refused(2, "give another directory to --parts");
    let file = parts.join("cell-000001.csv");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("relative", "about").replace("exact", "about")).unwrap();
    run(&kept).refused(2, "is damaged or no cell of this command");
}
