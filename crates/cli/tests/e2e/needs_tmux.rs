//! `lull top` in a real terminal.

use crate::http::serving;
use crate::support::scene::Scene;
use crate::support::{LULL, wait_for};
use std::process::Command;

/// A terminal of its own, of 110 by 30 letters.
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
fn top_without_a_terminal_is_refused() {
    let scene = Scene::new();
    scene.run(&["top"]).refused(2, "lull top needs a terminal");
}
