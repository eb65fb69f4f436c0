//! Processes that register themselves as apps of a running agent.

use crate::support::record::Record;
use crate::support::scene::Scene;
use crate::support::threads::cores_of;
use crate::support::{cores, is_root, send, skip};
use rustix::process::Signal;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A program that runs under `lull register`, ended when dropped.
struct Registered(Child);

impl Registered {
    fn new(scene: &Scene, template: &str, script: &str) -> Self {
        let socket = socket(scene);
        let mut command = scene.lull(&["register", "--as", template, "--socket"]);
        command.arg(socket).args(["--", "sh", "-c", script]).stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    /// Whether fewer cores are allowed to it than to this test.
    fn is_set(&self) -> bool {
        let now = cores_of(self.pid());
        !now.is_empty() && now != cores_of(std::process::id().cast_signed())
    }

    fn program(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/comm", self.pid())).unwrap()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn socket(scene: &Scene) -> PathBuf {
    scene.path("register.sock")
}

/// Two templates under `even`: while both have a process each has fewer cores than there are.
fn config(scene: &Scene, users: &str) -> PathBuf {
    let template = |name: &str| {
        format!(
            "[[match]]\nname = \"{name}\"\nclass = \"best-effort\"\nsolo = 1.0\nmost = 1\n\
             register = \"{users}\"\n"
        )
    };
    let agent = format!("register = {:?}\n", socket(scene));
    let policy = "[policy]\nname = \"even\"\n";
    scene.config(&agent, &format!("{policy}{}{}", template("first"), template("second")))
}

/// A script that sleeps in its own process.
const SLEEP: &str = "exec sleep 3000";

#[test]
fn a_program_is_an_app_from_its_start_to_its_end_under_the_number_that_it_was_started_with() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let mut agent = scene.agent(&config(&scene, "*"));
    agent.wait_until_printed("`first-1` waits: slot 1 of 1 for registrations as `first`");
    let first = Registered::new(&scene, "first", SLEEP);
    let second = Registered::new(&scene, "second", SLEEP);
    agent.wait_for("the cores of both", || first.is_set() && second.is_set());
    assert_eq!(first.program(), "sleep\n");
    let mut third = Registered::new(&scene, "first", SLEEP);
    agent.wait_until_printed("was not registered: all 1 apps of `first` have a process");
    assert_eq!(third.0.wait().unwrap().code(), Some(1));
    drop(first);
    agent.wait_until_printed("first-1 has exited");
    agent.wait_for("all cores for the app that is left", || !second.is_set());
    let again = Registered::new(&scene, "first", SLEEP);
    agent.wait_for("the cores of both again", || again.is_set() && second.is_set());
    agent.interrupt().well();
    assert!(!again.is_set() && !second.is_set(), "cores are not as before");
    assert_eq!(again.program(), "sleep\n", "it runs on without the agent");
    assert!(!socket(&scene).exists(), "the socket is left behind");
    let record = Record::open(&scene.records()[0]);
    assert_eq!(record.events("app_arrived").len(), 3);
    drop((again, second));
    scene.wait_until_quiet();
}

#[test]
fn a_program_that_closes_its_connection_gets_back_what_it_had_and_runs_on() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let mut agent = scene.agent(&config(&scene, "*"));
    agent.wait_until_printed("recording to");
    let go = scene.path("go");
    let script = format!(
        "while ! test -e {}; do sleep 0.05; done\n\
         for n in 3 4 5 6 7 8 9; do eval \"exec $n>&-\"; done\n{SLEEP}",
        go.display()
    );
    let first = Registered::new(&scene, "first", &script);
    let second = Registered::new(&scene, "second", SLEEP);
    agent.wait_for("the cores of both", || first.is_set() && second.is_set());
    std::fs::write(&go, "").unwrap();
    agent.wait_for("what the first had before", || !first.is_set());
    assert_eq!(first.program(), "sleep\n");
    agent.wait_until_printed("first-1 has exited");
    let other = Registered::new(&scene, "first", SLEEP);
    agent.wait_for("the cores of the next", || other.is_set() && second.is_set());
    assert!(!first.is_set(), "it is no app any more");
    agent.interrupt().well();
    assert!(!other.is_set() && !second.is_set(), "cores are not as before");
}

#[test]
fn children_of_a_registered_process_are_managed_and_cannot_register_again() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let mut agent = scene.agent(&config(&scene, "*"));
    agent.wait_until_printed("recording to");
    let mut lull = scene.lull(&["register"]);
    lull.arg("--socket").arg(socket(&scene));
    let program = lull.get_program().to_string_lossy().into_owned();
    let (go, code) = (scene.path("go"), scene.path("code"));
    let script = format!(
        "while ! test -e {go}; do sleep 0.05; done\n\
         {program} register --as second --socket {socket} -- true\n\
         echo $? > {code}.new; mv {code}.new {code}\nsleep 3000 & {SLEEP}",
        go = go.display(),
        socket = socket(&scene).display(),
        code = code.display()
    );
    let first = Registered::new(&scene, "first", &script);
    let second = Registered::new(&scene, "second", SLEEP);
    agent.wait_for("the cores of both", || first.is_set() && second.is_set());
    std::fs::write(&go, "").unwrap();
    agent.wait_for("the child's answer", || code.exists());
    assert_eq!(std::fs::read_to_string(&code).unwrap(), "1\n");
    agent.wait_until_printed("the process belongs to app `first-1`");
    let children = format!("/proc/{0}/task/{0}/children", first.pid());
    let child = || std::fs::read_to_string(&children).ok()?.split(' ').next()?.parse::<i32>().ok();
    if child().is_some() {
        let own = cores_of(std::process::id().cast_signed());
        agent.wait_for("the child's cores", || child().is_some_and(|pid| cores_of(pid) != own));
    }
    agent.interrupt().well();
}

#[test]
fn a_process_registers_after_the_front_end_which_parses_its_request_was_killed() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let mut agent = scene.agent(&config(&scene, "*"));
    agent.wait_until_printed("recording to");
    let frontend = || scene.process_with(&["frontend"]);
    let former = frontend().unwrap();
    send(former, Signal::KILL);
    agent.wait_for("another front end", || frontend().is_some_and(|pid| pid != former));
    let first = Registered::new(&scene, "first", SLEEP);
    // The program does not run before an answer accepts it.
    agent.wait_for("the program", || first.program() == "sleep\n");
    agent.interrupt().well();
}

#[test]
fn who_may_not_register_learns_why_and_the_program_does_not_run() {
    let scene = Scene::with_program_for_all();
    let ran = scene.path("ran");
    let touch = ["--", "touch"].map(Into::into);
    let register = |user: Option<&str>, options: &[&str]| {
        let mut arguments: Vec<std::ffi::OsString> = vec!["register".into(), "--socket".into()];
        arguments.push(socket(&scene).into());
        arguments.extend(options.iter().map(Into::into));
        arguments.extend(touch.iter().cloned());
        arguments.push(ran.clone().into());
        let command = match user {
            Some(_) => scene.lull_as_nobody(&arguments),
            None => scene.lull(&arguments),
        };
        scene.start(command).wait()
    };
    register(None, &[]).refused(1, "is an agent running");
    let text = std::fs::read_to_string(config(&scene, "0")).unwrap();
    let own = rustix::process::getuid().as_raw().to_string();
    let config = scene.write("lull.toml", &text.replace("\"0\"", &format!("\"{own}\"")));
    let mut agent = scene.agent(&config);
    agent.wait_until_printed("recording to");
    register(None, &[]).refused(1, "name one of `first`, `second`");
    register(None, &["--as", "moon"]).refused(1, "there is no template `moon`");
    if is_root() {
        let text = "user 65534 may not register with any template";
        register(Some("nobody"), &["--as", "first"]).refused(1, text);
        agent.wait_until_printed(text);
    }
    assert!(!ran.exists(), "a program ran all the same");
    let ended = register(None, &["--optional", "--as", "moon"]).well();
    assert!(ended.err.contains("not registered: "), "{}", ended.err);
    assert!(ran.exists());
    agent.interrupt().well();
}

#[test]
fn a_config_whose_registrations_make_no_sense_is_refused_by_line_and_key() {
    let scene = Scene::new();
    let good = std::fs::read_to_string(config(&scene, "*")).unwrap();
    let cases = [
        (good.replace("register = \"*\"", "exe = \"x\""), "agent.register: needs a [[match]]"),
        (good.replace("register = \"*\"", "register = \"{a\""), "match[0].register: `{a` is no"),
        (
            good.replacen("register = \"*\"", "register = \"*\"\nunit = \"*\"", 1),
            "match[0].name: needs what matches",
        ),
    ];
    for (text, wanted) in cases {
        let config = scene.write("lull.toml", &text);
        let ended = scene.run_for(&config, "1s").refused(2, wanted);
        assert!(ended.err.contains("lull.toml:"), "{}", ended.err);
    }
    let mut taken = Command::new("touch");
    assert!(taken.arg(socket(&scene)).status().unwrap().success());
    let ended = scene.run_for(&scene.write("lull.toml", &good), "1s");
    ended.refused(1, "exists and is not a socket");
}
