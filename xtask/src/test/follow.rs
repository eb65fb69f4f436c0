//! Follows a command's output to its end, and ends a command that hangs.
//!
//! The longest test takes a minute, and a phase of many prints a line for each. A command that
//! prints nothing for much longer waits for something that does not come: it is killed with all
//! its descendants, so that the other phases still run and the report still comes.

use super::signals;
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, PipeReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// The longest time for which a command may print nothing.
const SILENCE: Duration = Duration::from_secs(15 * 60);

/// How many lines may wait to be read.
const LINES: usize = 1000;

/// When the lines of a command are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Show {
    AsTheyCome,
    AtTheEnd,
}

/// Runs a command to its end and passes on each line that it prints, with its time from the
/// start on; whether the command succeeded. One that prints nothing for 15 minutes is killed,
/// and has not succeeded.
pub(super) fn follow(
    command: &mut Command,
    show: Show,
    see: impl FnMut(&str, Duration),
) -> Result<bool> {
    follow_for(command, show, SILENCE, see)
}

fn follow_for(
    command: &mut Command,
    show: Show,
    silence: Duration,
    mut see: impl FnMut(&str, Duration),
) -> Result<bool> {
    let began = Instant::now();
    let (mut child, lines) = start(command)?;
    let mut kept = String::new();
    let is_silent = loop {
        let line = match lines.recv_timeout(silence) {
            Ok(line) => line.context("cannot read what a program prints")?,
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => break true,
        };
        let line = String::from_utf8_lossy(&line);
        match show {
            Show::AsTheyCome => println!("{line}"),
            Show::AtTheEnd => kept += &format!("{line}\n"),
        }
        see(&line, began.elapsed());
    };
    print!("{kept}");
    if is_silent {
        let silence_s = silence.as_secs();
        println!("== killed with its descendants: it has printed nothing for {silence_s} s");
        kill_tree(&child);
    }
    Ok(child.wait()?.success() && !is_silent)
}

type Lines = Receiver<std::io::Result<Vec<u8>>>;

/// Starts a command whose lines, of both outputs, arrive in the channel.
fn start(command: &mut Command) -> Result<(Child, Lines)> {
    let (reader, writer) = std::io::pipe()?;
    signals::survive_hangup(command);
    command.stdout(writer.try_clone()?).stderr(writer);
    let child = command.spawn().with_context(|| format!("cannot start {command:?}"));
    // The command keeps the writing end, and the pipe would never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (sender, lines) = sync_channel(LINES);
    std::thread::spawn(move || read(reader, &sender));
    Ok((child?, lines))
}

/// Reads lines until the output ends or the receiver is gone.
fn read(reader: PipeReader, lines: &SyncSender<std::io::Result<Vec<u8>>>) {
    for line in BufReader::new(reader).split(b'\n') {
        if lines.send(line).is_err() {
            return;
        }
    }
}

/// Kills a process and all its descendants.
fn kill_tree(child: &Child) {
    let parents = parents();
    let mut tree = vec![child.id()];
    let mut at = 0;
    while let Some(&pid) = tree.get(at) {
        tree.extend(parents.iter().filter(|(_, parent)| **parent == pid).map(|(pid, _)| *pid));
        at += 1;
    }
    for pid in tree {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // The process may have ended meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The parent of each process, from the fourth field of `/proc/PID/stat` (proc(5)).
fn parents() -> HashMap<u32, u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let one = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        Some((pid, rest.split(' ').nth(1)?.parse().ok()?))
    };
    entries.filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    #[test]
    fn lines_of_both_outputs_arrive_with_growing_times() {
        let mut lines = Vec::new();
        let see = |line: &str, at| lines.push((line.to_owned(), at));
        assert!(!follow(&mut shell("echo a; echo b >&2; exit 3"), Show::AtTheEnd, see).unwrap());
        assert_eq!([&lines[0].0, &lines[1].0], ["a", "b"]);
        assert!(lines[0].1 <= lines[1].1);
    }

    #[test]
    fn a_silent_command_is_killed_with_its_descendants_and_has_failed() {
        let mut pid = String::new();
        let see = |line: &str, _| line.clone_into(&mut pid);
        let mut command = shell("sh -c 'sleep 1000 & echo $!; wait'; echo no");
        let silence = Duration::from_millis(300);
        assert!(!follow_for(&mut command, Show::AtTheEnd, silence, see).unwrap());
        let state = |pid: &str| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with('Z'))
        };
        // It is gone, or waits for its new parent to learn of its end.
        while state(&pid) == Some(false) {
            std::thread::yield_now();
        }
    }
}
