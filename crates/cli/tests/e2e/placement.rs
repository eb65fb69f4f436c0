//! Commands about core types: answers as data, bad input refused.

use crate::support::scene::Scene;

#[test]
fn mix_names_the_cores_in_time_with_the_least_energy() {
    let scene = Scene::new();
    let arguments = ["lab", "mix", "--quick", "--rate", "20", "--target", "200ms"];
    let given = ["--mix", "slow:15", "--mix", "slow:8,fast:1", "--mix", "fast:2"];
    let all: Vec<_> = arguments.iter().chain(&given).chain(&["--json"]).copied().collect();
    let answer = scene.run(&all).well().json();
    assert_eq!(answer[0]["best"], "slow:8,fast:1");
    let mixes = answer[0]["mixes"].as_array().unwrap();
    assert_eq!((mixes.len(), &mixes[0]["meets"]), (3, &false.into()));
    let printed: Vec<_> = arguments.iter().chain(&given).copied().collect();
    assert!(scene.run(&printed).well().out.contains("slow:8,fast:1*"));
}

#[test]
fn mix_refuses_what_it_cannot_buy_or_know() {
    let scene = Scene::new();
    let tiny = scene.write("tiny", "10ms\n# a comment\n20ms\n");
    let wrong = scene.write("wrong", "10ms\nten\n");
    let (tiny, wrong) = (tiny.to_str().unwrap(), wrong.to_str().unwrap());
    let cases: [(&[&str], &str); 7] = [
        (&["--rate", "0"], "requests per second above 0"),
        (&["--rate", "20", "--mix", "big:1"], "there is no core type `big`"),
        (&["--rate", "20", "--mix", "fast:1,slow:1"], "from slow to fast"),
        (&["--rate", "20", "--mix", "slow:60,fast:5"], "more cores than a machine can have, 64"),
        (&["--rate", "20", "--target", "0s"], "--target 0s: write a time"),
        (&["--rate", "20", "--profile", tiny], "2 requests, and a p99 needs 500"),
        (&["--rate", "20", "--profile", wrong], "wrong:2: `ten`"),
    ];
    for (arguments, why) in cases {
        let all: Vec<_> = ["lab", "mix"].iter().chain(arguments).copied().collect();
        let ended = scene.run(&all);
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {}", ended.err);
        assert!(ended.err.contains(why), "{arguments:?}: {}", ended.err);
    }
}

#[test]
fn tune_pid_gives_gains_a_lag_and_a_figure() {
    let scene = Scene::new();
    let figure = scene.path("steps.svg");
    let path = figure.to_str().unwrap();
    let answer =
        scene.run(&["lab", "tune-pid", "--quick", "--rate", "25", "--figure", path, "--json"]);
    let tuned = answer.well().json();
    assert!(tuned[0]["kp"].as_f64().unwrap() > 0.0 && tuned[0]["ki"].as_f64().unwrap() > 0.0);
    assert!(std::fs::read_to_string(&figure).unwrap().contains("</svg>"));
}

#[test]
fn tune_pid_says_where_there_is_nothing_to_control() {
    let scene = Scene::new();
    let cases: [(&[&str], &str); 2] = [
        (&["--rate", "220"], "more than the cores serve"),
        (&["--rate", "25", "--target", "0s"], "--target 0s: write a time"),
    ];
    for (arguments, why) in cases {
        let all: Vec<_> = ["lab", "tune-pid", "--quick"].iter().chain(arguments).copied().collect();
        let ended = scene.run(&all);
        assert_eq!(ended.status.code(), Some(2), "{}", ended.err);
        assert!(ended.err.contains(why), "{}", ended.err);
    }
}
