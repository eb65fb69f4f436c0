//! Faults at the start of a run: a clear message, status 1, and no knob left changed.

use crate::runs::Two;
use crate::support::scene::Scene;
use crate::support::{cores, free_port, is_root, send, skip, wait_for};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

/// One best-effort app; `place` is the line that locates it.
fn batch(place: &str) -> String {
    format!(
        "[policy]\nname = \"even\"\n[[app]]\nname = \"batch\"\nclass = \"best-effort\"\n{place}\n"
    )
}

#[test]
fn an_app_that_exits_at_once_is_quoted() {
    let scene = Scene::new();
    let script = r#"start = ["sh", "-c", "echo no licence found >&2; exit 3"]"#;
    let ended = scene.run_for(&scene.config("", &batch(script)), "1s");
    let ended = ended.refused(1, "app `batch` exited immediately (exit status: 3)");
    assert!(ended.err.contains("no licence found"), "{}", ended.err);
    assert!(scene.records().is_empty());
    scene.wait_until_quiet();
}

#[test]
fn an_app_that_fails_takes_those_started_before_it_along() {
    let scene = Scene::new();
    let first = batch("start = [\"sleep\", \"3000\"]");
    let second = "[[app]]\nname = \"more\"\nclass = \"best-effort\"\nstart = [\"no-such-thing\"]\n";
    let ended = scene.run_for(&scene.config("", &format!("{first}{second}")), "1s");
    ended.refused(1, "cannot start app `more`: `no-such-thing`");
    scene.wait_until_quiet();
}

#[test]
fn a_pid_that_is_gone_is_an_error() {
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let scene = Scene::new();
    let config = scene.config("", &batch(&format!("pid = {}", gone.id())));
    let ended = scene.run_for(&config, "1s").refused(1, "app `batch` cannot be attached");
    assert!(ended.err.contains(&gone.id().to_string()), "{}", ended.err);
    assert!(scene.records().is_empty());
    scene.wait_until_quiet();
}

#[test]
fn an_app_that_contains_lull_is_refused() {
    let scene = Scene::new();
    for (pid, what) in [(1, "the first process"), (std::process::id(), "an ancestor of Lull")] {
        let config = scene.config("", &batch(&format!("pid = {pid}")));
        scene.run_for(&config, "1s").refused(2, what);
    }
    assert!(scene.records().is_empty());
}

#[test]
fn two_apps_by_pid_of_which_one_is_a_child_of_the_other_are_refused_with_both_names() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 3000 & echo $!; wait"]).stdout(Stdio::piped());
    let mut parent = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let child: i32 = line.trim().parse().unwrap();
    let first = batch(&format!("pid = {}", parent.id()));
    let second = format!("[[app]]\nname = \"more\"\nclass = \"best-effort\"\npid = {child}\n");
    let ended = scene.run_for(&scene.config("", &format!("{first}{second}")), "1s");
    send(child, Signal::KILL);
    parent.kill().unwrap();
    parent.wait().unwrap();
    let ended = ended.refused(2, "belongs to both `batch` and `more`");
    assert!(ended.err.contains(&child.to_string()), "{}", ended.err);
    assert!(scene.records().is_empty());
    scene.wait_until_quiet();
}

#[test]
fn a_port_in_use_is_an_error() {
    let scene = Scene::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ended = scene.run(&["serve", "options", "--listen", &address]);
    let ended = ended.refused(1, &address);
    assert!(ended.err.contains("in use"), "{}", ended.err);

    let place = format!("start = [\"sleep\", \"3000\"]\nready = \"{address}\"");
    let ended = scene.run_for(&scene.config("", &batch(&place)), "1s");
    ended.refused(1, &format!("something already accepts connections at {address}"));
    scene.wait_until_quiet();
}

#[test]
fn a_load_without_a_server_fails_and_says_where() {
    let scene = Scene::new();
    let target = format!("options://127.0.0.1:{}", free_port());
    let ended = scene.run(&["load", &target, "--rate", "10/s", "--for", "1s"]);
    ended.refused(1, target.trim_start_matches("options://"));
}

#[test]
fn a_load_that_nothing_answers_reports_it_and_fails() {
    let scene = Scene::new();
    // Connections wait in the backlog, since nothing accepts them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("memcached://{}", silent.local_addr().unwrap());
    let brief = ["--for", "600ms", "--warmup", "0s", "--timeout", "200ms", "--no-preload"];
    let load = ["load", &target, "--rate", "50/s", "--connections", "2"];
    let ended = scene.run(&[&load[..], &brief].concat());
    assert!(ended.out.contains("timed out"), "{}", ended.out);
    let ended = ended.refused(3, "answered none of");
    assert!(
        ended.err.contains("--timeout") && ended.err.contains("over 2 connections"),
        "{ended:?}"
    );
}

#[test]
fn a_load_of_which_every_request_is_refused_says_with_what_and_fails() {
    let scene = Scene::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("http://{}/missing", server.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut client in server.incoming().flatten() {
            std::thread::spawn(move || {
                while client.read(&mut [0; 1024]).is_ok_and(|count| count > 0) {
                    let missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
                    if client.write_all(missing).is_err() {
                        break;
                    }
                }
            });
        }
    });
    let ended = scene.run(&["load", &target, "--rate", "50/s", "--for", "500ms", "--warmup", "0s"]);
    assert!(ended.out.contains("error 404"), "{}", ended.out);
    let ended = ended.refused(3, "answered none of");
    assert!(ended.err.contains("the server reports error 404"), "{}", ended.err);
}

#[test]
fn a_second_agent_is_refused_with_the_pid_of_the_first() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let two = Two::new();
    let config = two.config(&scene, "");
    let mut first = scene.agent(&config);
    first.wait_for("the first agent's change", || two.is_changed());
    let whole = format!("another agent, process {}, already controls", first.pid());
    scene.run_for(&config, "1s").refused(1, &whole);
    let state = scene.path("state");
    let restore = ["restore".as_ref(), "--state".as_ref(), state.as_os_str()];
    scene.run(&restore).refused(1, &whole);
    assert!(two.is_changed(), "the second agent has undone what the first did");
    first.interrupt().well();
    assert_eq!(scene.records().len(), 1, "the refused agent left a record");
    two.assert_as_before();
}

#[test]
fn a_push_socket_of_a_live_agent_is_not_taken_from_it() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let two = Two::new();
    let socket = scene.path("push.sock");
    let agent = format!("socket = {socket:?}");
    let mut first = scene.agent(&two.config(&scene, &agent));
    first.wait_for("the first agent's change", || two.is_changed());

    let other = Scene::new();
    let started = batch("start = [\"sleep\", \"3000\"]");
    let ended = other.run_for(&other.config(&agent, &started), "1s");
    ended.refused(1, &format!("{} is in use by another agent", socket.display()));
    other.wait_until_quiet();
    assert!(socket.exists());
    first.interrupt().well();
    two.assert_as_before();
}

#[test]
fn a_record_directory_that_cannot_be_written_ends_it_before_it_begins() {
    let scene = Scene::new();
    let two = Two::new();
    let text = std::fs::read_to_string(two.config(&scene, "")).unwrap();
    let records = format!("{:?}", scene.records_dir());
    let config = scene.write("lull.toml", &text.replace(&records, "\"/proc/lull-records\""));
    let ended = scene.run_for(&config, "1s");
    let ended = ended.refused(1, "the record /proc/lull-records/");
    assert!(ended.err.contains("set agent.record elsewhere"), "{}", ended.err);
    two.assert_as_before();
    scene.wait_until_quiet();
}

/// Root wrote a record through a symbolic link of another user, into a file of root's.
#[test]
fn nothing_is_written_through_a_link_or_into_a_directory_of_another_user() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
    let scene = Scene::new();
    let app = batch("start = [\"sleep\", \"3000\"]");
    let config = scene.config("", &app);
    let victim = scene.write("victim", "kept");
    std::fs::create_dir_all(scene.records_dir().join("logs")).unwrap();
    let log = scene.records_dir().join("logs/batch.log");
    symlink(&victim, &log).unwrap();
    scene.run_for(&config, "400ms").well();
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept");
    for file in scene.records().iter().chain([&log]) {
        let found = std::fs::symlink_metadata(file).unwrap();
        assert!(found.is_file() && found.mode() & 0o777 == 0o600, "{file:?}: {found:?}");
    }
    let open = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(scene.records_dir(), open(0o777)).unwrap();
    scene.run_for(&config, "1s").refused(1, "can be written by other users");
    std::fs::set_permissions(scene.records_dir(), open(0o755)).unwrap();
    if is_root() {
        chown(scene.records_dir(), Some(65534), None).unwrap();
        scene.run_for(&config, "1s").refused(1, "belongs to user 65534");
    }
    assert_eq!(scene.records().len(), 1);
    scene.wait_until_quiet();
}

#[test]
fn a_state_directory_that_others_could_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new();
    std::fs::create_dir(scene.path("state")).unwrap();
    let open = PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(scene.path("state"), open).unwrap();
    let app = batch("start = [\"sleep\", \"3000\"]");
    let ended = scene.run_for(&scene.config("", &app), "1s");
    ended.refused(1, "can be written by other users");
    assert!(scene.records().is_empty());
}

#[test]
fn an_interrupt_while_an_app_gets_ready_ends_it() {
    let scene = Scene::new();
    let place = format!("start = [\"sleep\", \"3000\"]\nready = \"127.0.0.1:{}\"", free_port());
    let agent = scene.agent(&scene.config("", &batch(&place)));
    wait_for("the app", || scene.process_with(&["sleep", "3000"]).is_some());
    let ended = agent.interrupt();
    assert_eq!(ended.code(), 1, "{}", ended.err);
    assert!(ended.err.contains("stopped"), "{}", ended.err);
    scene.wait_until_quiet();
    assert!(scene.records().is_empty());
}

/// A tmpfs that is unmounted when dropped.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(at: &'a Path) -> Option<Self> {
        std::fs::create_dir(at).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=512k,mode=700", "lull-test"];
        let mounted = Command::new("mount").args(options).arg(at).status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(at))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_in_mid_run_ends_it_with_all_as_before_and_the_record_readable() {
    if !is_root() {
        return skip("only root can mount a small disk");
    }
    let scene = Scene::new();
    let records = scene.records_dir();
    let Some(_disk) = SmallDisk::mount(&records) else {
        return skip("a tmpfs cannot be mounted here");
    };
    let two = Two::new();
    let text = std::fs::read_to_string(two.config(&scene, "")).unwrap();
    let text = text.replace("epoch = \"200ms\"", "epoch = \"20ms\"");
    let ended = scene.agent(&scene.write("lull.toml", &text)).wait();
    let ended = ended.refused(1, "cannot be written: ");
    assert_eq!(ended.err.matches("free some space").count(), 1, "{}", ended.err);
    two.assert_as_before();
    scene.wait_until_quiet();
    let file = scene.records().pop().expect("the record is gone");
    // As a user would after copying it from the full disk.
    for end in ["", "-wal"] {
        let from = format!("{}{end}", file.display());
        if Path::new(&from).exists() {
            std::fs::copy(from, scene.path(&format!("copy.db{end}"))).unwrap();
        }
    }
    let record = crate::support::record::Record::open(&scene.path("copy.db"));
    assert!(record.epochs() > 0);
    assert!(cores() < 2 || !record.events("decision").is_empty(), "no knob was changed");
}

#[test]
fn a_guard_started_by_hand_says_what_to_use() {
    let scene = Scene::new();
    scene.run(&["guard"]).refused(1, "lull restore");
}

#[test]
fn a_stop_signal_does_not_end_the_guard() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let two = Two::new();
    let mut agent = scene.agent(&two.config(&scene, ""));
    agent.wait_for("the agent's change", || two.is_changed());
    let guard = scene.process_with(&["guard"]).expect("no guard runs");
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        send(guard, signal);
    }
    agent.signal(Signal::KILL);
    two.server.wait_until_as_before();
    two.batch.wait_until_as_before();
    scene.wait_until_quiet();
}
