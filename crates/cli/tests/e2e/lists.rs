//! Commands that only print: valid JSON, and no panic when the reader closes the pipe.

use crate::support::scene::Scene;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::process::Stdio;

#[test]
fn check_lists_every_capability_and_policy() {
    let scene = Scene::new();
    let report = scene.run(&["check", "--json"]).well().json();
    assert!(!report["machine"]["cores"].as_array().unwrap().is_empty());
    assert!(report["kernel"].as_str().unwrap().starts_with("Linux "));
    let policies = report["policies"].as_array().unwrap();
    let arq = policies.iter().find(|policy| policy["name"] == "arq").unwrap();
    assert!(arq["lacks"].is_array());
    let resources = report["resources"].as_array().unwrap();
    let names: Vec<_> = resources.iter().map(|one| one["resource"].as_str().unwrap()).collect();
    assert_eq!(names, ["cores", "cache ways", "memory bandwidth"]);
    assert_eq!(resources[0]["class"], report["dip"], "cores are the most that a host offers");
    for one in resources {
        assert!(one["can"].is_string() && one["cannot"].is_string());
        assert!(one["isolate"]["by"].is_string() || one["isolate"]["missing"].is_string());
    }
    let shown_text = scene.run(&["check"]).well();
    assert!(shown_text.out.contains("memory bandwidth") && shown_text.out.contains("cannot"));
    assert!(
        shown_text.out.contains("by, or why not") && shown_text.out.contains("sched_setaffinity")
    );
}

#[test]
fn a_result_that_cannot_be_printed_is_a_failure_and_no_panic() {
    let scene = Scene::new();
    let commands: [&[&str]; 6] = [
        &["policies"],
        &["policies", "--markdown"],
        &["check", "--machine"],
        &["keys"],
        &["completions", "bash"],
        &["burn", "compute", "--threads", "1", "--for", "0s"],
    ];
    for arguments in commands {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = scene.lull(arguments).stdout(full).output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {err}");
        assert!(
            err.contains("lull: cannot print the result: No space left"),
            "{arguments:?}: {err}"
        );
    }
}

#[test]
fn work_that_no_agent_hears_of_says_so() {
    let scene = Scene::new();
    let burn = ["burn", "compute", "--threads", "1", "--for", "500ms"];
    let push = ["--app", "batch", "--push", "/nonexistent/push.sock"];
    let ended = scene.run(&[&burn[..], &push].concat()).well();
    assert!(ended.err.contains("nothing was pushed to /nonexistent/push.sock"), "{}", ended.err);
    assert!(scene.run(&burn).well().err.is_empty());
}

#[test]
fn check_claims_an_interrupt_delay_only_if_it_could_be_changed() {
    let shown_text = Scene::new().run(&["check"]).well();
    // The first table lists the knobs that policies set; the table of `lull hold` follows.
    let line = shown_text.out.lines().find(|line| line.trim_start().starts_with("coalescing"));
    let line = line.unwrap_or_else(|| panic!("{}", shown_text.out));
    let is_claimed = line.split_whitespace().nth(1) == Some("yes");
    let is_honest = ["written and read back", "not tried"].iter().any(|it| line.contains(it));
    assert!(!is_claimed || is_honest, "{line}");
}

#[test]
fn lists_are_data_with_what_their_tables_show() {
    let scene = Scene::new();
    for (list, key) in [("policies", "name"), ("metrics", "key"), ("keys", "name")] {
        let all = scene.run(&[list, "--json"]).well().json();
        let shown_text = scene.run(&[list]).well().out;
        let all = all.as_array().unwrap();
        assert!(!all.is_empty());
        for one in all {
            // A counter has no key in records.
            let name = one.get(key).unwrap_or(&one["prometheus"]).as_str().unwrap();
            assert!(shown_text.contains(name), "{name} is not in the table of {list}");
        }
    }
}

#[test]
fn the_completions_are_a_script_that_bash_accepts() {
    let scene = Scene::new();
    let script = scene.run(&["completions", "bash"]).well().out;
    assert!(script.contains("_lull()") && script.contains("policies"));
    let file = scene.write("lull.bash", &script);
    match std::process::Command::new("bash").arg("-n").arg(file).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => crate::support::skip(&format!("no bash: {error}")),
    }
}

#[test]
fn every_command_has_a_manual_page_and_hidden_ones_have_none() {
    let scene = Scene::new();
    let directory = scene.path("new/man");
    scene.run(&["man".as_ref(), directory.as_os_str()]).well();
    let page = |name: &str| std::fs::read_to_string(directory.join(name));
    let run = page("lull-run.1").unwrap();
    for words in [".TH lull-run 1", ".SH SYNOPSIS", ".SH OPTIONS", "\\-\\-prove"] {
        assert!(run.contains(words), "{words}: {run}");
    }
    assert!(page("lull.1").is_ok() && page("lull-lab-run.1").is_ok());
    assert!(page("lull-guard.1").is_err(), "an internal command has a page");
    let file = scene.write("file", "");
    let ended = scene.run(&["man".as_ref(), file.as_os_str()]);
    ended.refused(1, "cannot write manual pages to");
}

#[test]
fn a_list_whose_reader_has_gone_ends_quietly() {
    let scene = Scene::new();
    for list in ["policies", "metrics", "keys", "check"] {
        let mut command = scene.lull(&[list]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let ended = child.wait_with_output().unwrap();
        assert!(!first.is_empty());
        let shown = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(shown, "", "{list} has complained about a closed pipe");
    }
}

#[test]
fn restoring_when_nothing_is_left_says_so_and_makes_no_directory() {
    let scene = Scene::new();
    let state = scene.path("state");
    let restored = || {
        let ended = scene.run(&["restore".as_ref(), "--state".as_ref(), state.as_os_str()]);
        ended.well().out
    };
    let missing = restored();
    assert!(missing.contains("nothing to restore: there is no directory"), "{missing}");
    assert!(!state.exists());
    DirBuilder::new().mode(0o700).create(&state).unwrap();
    let empty = restored();
    assert!(empty.contains("nothing to restore in"), "{empty}");
}

#[test]
fn a_restore_that_cannot_read_what_is_to_be_restored_fails_and_says_so() {
    let scene = Scene::new();
    let state = scene.path("state");
    DirBuilder::new().mode(0o700).create(&state).unwrap();
    std::fs::write(state.join("ledger"), "no line of a ledger\n").unwrap();
    for json in [None, Some(OsStr::new("--json"))] {
        let restore = ["restore".as_ref(), "--state".as_ref(), state.as_os_str()];
        let arguments: Vec<&OsStr> = restore.into_iter().chain(json).collect();
        let ended = scene.run(&arguments).refused(1, "some values were not restored");
        assert!(ended.out.contains("line 1: its checksum is wrong"), "{}", ended.out);
    }
}
