//! `lull top` in a real terminal.

use crate::http::serving;
use crate::support::scene::Scene;
use crate::support::{LULL, send, wait_for};
use crate::tuning::SMALL;
use rustix::process::Signal;
use std::process::Command;

/// A terminal of 110 by 30 characters for one test.
struct Terminal {
    server: String,
}

impl Terminal {
    fn start(scene: &Scene, command: &str) -> Self {
        let terminal = Self { server: scene.path("tmux").display().to_string() };
        let size = ["-x", "110", "-y", "30"];
        terminal.tmux(&[&["new-session", "-d"][..], &size, &[command]].concat());
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.env_remove("TMUX").args(["-f", "/dev/null", "-S", &self.server]);
        let output = command.args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn shown(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

#[test]
fn top_shows_a_run_says_when_it_is_lost_and_leaves_the_terminal_as_it_was() {
    let scene = Scene::new();
    let (agent, address) = serving(&scene, "arq", "");
    let program = format!("{LULL} top {address}; echo left with $?; exec sleep 1000");
    let terminal = Terminal::start(&scene, &program);
    for words in ["live", "arq", "server", "burner", "E_S over time", "cores ", "Decisions"] {
        wait_for(words, || terminal.shown().contains(words));
    }
    agent.interrupt().well();
    wait_for("word that it is lost", || terminal.shown().contains("lost: "));
    terminal.tmux(&["send-keys", "q"]);
    wait_for("the shell", || terminal.shown().contains("left with 0"));
    assert!(!terminal.shown().contains("E_S over time"), "{}", terminal.shown());
}

#[test]
fn top_that_is_terminated_leaves_the_terminal_as_it_was() {
    let scene = Scene::new();
    let number = scene.path("number");
    let top = format!("echo $$ > {}; exec {LULL} top 127.0.0.1:1", number.display());
    let program = format!("sh -c '{top}'; echo left with $?; stty -a; exec sleep 1000");
    let terminal = Terminal::start(&scene, &program);
    let words = "no agent listens (start it with --http) at 127.0.0.1:1; q ends";
    wait_for("the view", || terminal.shown().contains(words));
    let top: i32 = std::fs::read_to_string(number).unwrap().trim().parse().unwrap();
    send(top, Signal::TERM);
    wait_for("the terminal's settings", || terminal.shown().contains("icanon"));
    let shown = terminal.shown();
    assert!(shown.contains("left with 0") && !shown.contains("q ends"), "{shown}");
    assert!(!shown.contains("-icanon") && !shown.contains("-echo "), "{shown}");
}

#[test]
fn a_search_in_a_terminal_ends_with_its_table() {
    let scene = Scene::new();
    let config = scene.write("small.toml", SMALL);
    let store = scene.path("store.sqlite");
    let tune = format!("{LULL} tune {} --store {} --trials 4", config.display(), store.display());
    let program = format!("{tune}; echo left with $?; exec sleep 1000");
    let terminal = Terminal::start(&scene, &program);
    wait_for("the shell", || terminal.shown().contains("left with"));
    let shown = terminal.shown();
    assert!(shown.contains("left with 0") && shown.contains("power: of the simulated"), "{shown}");
}

#[test]
fn top_without_a_terminal_is_refused() {
    let scene = Scene::new();
    scene.run(&["top"]).refused(2, "lull top needs a terminal");
}
