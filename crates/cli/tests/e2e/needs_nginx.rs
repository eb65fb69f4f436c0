//! `lull compare` on a real nginx: every policy has its turn and its row.

use crate::support::record::Record;
use crate::support::scene::Scene;
use crate::support::{cores, free_port};
use std::path::PathBuf;

const POLICIES: [&str; 6] = ["unmanaged", "even", "lc-first", "parties", "arq", "tide"];

/// The example with free ports and this scene's directories.
fn example(scene: &Scene) -> PathBuf {
    let port = free_port().to_string();
    let place = scene.path("").display().to_string();
    let replaced = [("21280", port.clone()), ("/tmp/", format!("{place}/"))];
    let file = scene.write("nginx.conf", &scene.example("live/nginx.conf", &replaced));
    let replaced = [
        scene.own_record(),
        ("epoch = \"500ms\"", "epoch = \"200ms\"".to_owned()),
        ("examples/live/nginx.conf", file.display().to_string()),
        ("21280", port),
    ];
    let text = scene.example("live/nginx.toml", &replaced);
    scene.write("nginx.toml", &text)
}

#[test]
#[ignore = "slow: six policies, two blocks of two seconds each, beside a real server"]
fn every_policy_has_its_blocks_and_its_row() {
    let scene = Scene::new();
    let config = example(&scene);
    let page = scene.path("page.md");
    let words = ["compare", config.to_str().unwrap(), "--rounds", "2", "--block", "2s"];
    let more = ["--room", "2", "--markdown", page.to_str().unwrap(), "--json"];
    let found = scene.run(&[&words[..], &more[..]].concat()).well().json();
    scene.wait_until_quiet();
    let names = |key: &str| -> Vec<String> {
        let all = found[key].as_array().unwrap().iter();
        all.map(|one| one["policy"].as_str().unwrap().to_owned()).collect()
    };
    let (ran, refused) = (names("rows"), names("refused"));
    assert_eq!(ran.len() + refused.len(), POLICIES.len(), "{ran:?} {refused:?}");
    assert!(ran.contains(&"unmanaged".to_owned()));
    if cores() >= 2 {
        assert!(ran.contains(&"tide".to_owned()) && ran.contains(&"parties".to_owned()));
    }
    for row in found["rows"].as_array().unwrap() {
        let values: Vec<Option<f64>> =
            row["values"].as_array().unwrap().iter().map(|value| value["mean"].as_f64()).collect();
        // E_S, E_LC, E_BE, epochs missed, nginx in ms, stream in percent.
        assert_eq!(values.len(), 6);
        assert!(values[4].unwrap() > 0.0 && values[5].unwrap() > 0.0, "{row}");
        assert!((0.0..=1.0).contains(&values[0].unwrap()), "{row}");
    }
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(ran.iter().all(|policy| text.contains(&format!("| {policy} |"))), "{text}");
    let record = Record::open(&scene.records()[0]);
    let phases = record.text("SELECT DISTINCT phase FROM epochs");
    assert_eq!(phases.len(), 2 * ran.len(), "{phases:?}");
    assert_eq!(record.fact("ended").as_deref(), Some("orderly"));
}

#[test]
fn what_cannot_be_compared_is_refused_before_anything_starts() {
    let scene = Scene::new();
    let config = example(&scene);
    let run = |more: &[&str]| scene.run(&[&["compare", config.to_str().unwrap()], more].concat());
    run(&["--policies", "arq,ark"]).refused(2, "no policy is called `ark`");
    run(&["--policies", "arq,tide,arq"]).refused(2, "`arq` twice");
    run(&["--policies", "arq"]).refused(2, "names one policy");
    run(&["--markdown", "none/x.md"]).refused(2, "no such directory");
    run(&["--block", "500ms"]).refused(2, "less than four epochs");
    run(&["--block", "4s", "--settle", "4s"]).refused(2, "--settle 4s leaves less than three");
    run(&["--room", "1"]).refused(2, "--room");
    assert!(scene.records().is_empty() && scene.processes().is_empty());
}
