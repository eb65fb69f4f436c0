//! Apps that are absent when a run begins, that end and come back, and how they are found.

use crate::support::agent::Agent;
use crate::support::record::Record;
use crate::support::scene::Scene;
use crate::support::threads::cores_of;
use crate::support::{cores, has_forks, is_root, skip};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns a number that no other test of this run uses, and by which a process is recognised.
pub(crate) fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("3{:07}{:03}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A sleeping process, ended when dropped.
pub(crate) struct Sleeper(Child);

impl Sleeper {
    fn new(seconds: &str) -> Self {
        let mut command = Command::new("sleep");
        Self(command.arg(seconds).stdin(Stdio::null()).spawn().unwrap())
    }

    /// A shell that runs a script whose last word is recognised, with pipes.
    pub(crate) fn shell(script: &str) -> Self {
        let mut command = Command::new("sh");
        let piped = command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(piped.spawn().unwrap())
    }

    /// Ends the wait of a script for a line.
    fn proceed(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }

    fn is_set(&self) -> bool {
        is_set(self.pid())
    }
}

/// Whether fewer cores are allowed to a process than to this test.
fn is_set(pid: i32) -> bool {
    let now = cores_of(pid);
    !now.is_empty() && now != cores_of(std::process::id().cast_signed())
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A cgroup of systemd's tree, removed when dropped.
pub(crate) struct Cgroup(pub(crate) PathBuf);

impl Cgroup {
    /// A name below the directory where systemd keeps its services; `None` where no cgroup can
    /// be made.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let tops = ["", "systemd"].map(|top| Path::new("/sys/fs/cgroup").join(top));
        let top = tops.into_iter().find(|top| top.join("cgroup.procs").exists())?;
        let slice = top.join("system.slice");
        is_root().then(|| std::fs::create_dir_all(&slice)).and_then(Result::ok)?;
        Some(Self(slice.join(name)))
    }

    pub(crate) fn add(&self, process: &Sleeper) {
        std::fs::create_dir_all(&self.0).unwrap();
        std::fs::write(self.0.join("cgroup.procs"), process.pid().to_string()).unwrap();
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let is_gone = || std::fs::remove_dir(&self.0).is_ok() || !self.0.exists();
        crate::support::wait_for("an empty cgroup", is_gone);
    }
}

/// Two best-effort apps under `even`: while both are present each has fewer cores than there are.
fn two(first: &str, second: &str) -> String {
    format!(
        "[policy]\nname = \"even\"\n\
         [[app]]\nname = \"first\"\nclass = \"best-effort\"\nsolo = 1.0\n{first}\n\
         [[app]]\nname = \"second\"\nclass = \"best-effort\"\nsolo = 1.0\n{second}\n"
    )
}

fn by_args(seconds: &str) -> String {
    format!("match = {{ args = \"sleep {seconds}\" }}")
}

/// Starts an agent that divides the cores between a process, found by this search, and a second
/// one, and waits until it has.
fn divided(scene: &Scene, first: &Sleeper, search: &str) -> (Sleeper, Agent) {
    let seconds = unique();
    let second = Sleeper::new(&seconds);
    let mut agent = scene.agent(&scene.config("", &two(search, &by_args(&seconds))));
    agent.wait_for("the cores of both", || first.is_set() && second.is_set());
    (second, agent)
}

#[test]
fn apps_that_are_absent_wait_are_managed_when_they_come_and_again_after_a_restart() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let (one, other) = (unique(), unique());
    let mut agent = scene.agent(&scene.config("", &two(&by_args(&one), &by_args(&other))));
    agent.wait_until_printed("`first` waits: processes with args");
    agent.wait_until_printed("second waits for its first process");
    let (first, second) = (Sleeper::new(&one), Sleeper::new(&other));
    agent.wait_for("the cores of both", || first.is_set() && second.is_set());
    drop(first);
    agent.wait_until_printed("first has exited");
    agent.wait_for("all cores for the app that is left", || !second.is_set());
    let again = Sleeper::new(&one);
    agent.wait_for("the cores of the first app again", || again.is_set() && second.is_set());
    drop(second);
    agent.wait_until_printed("second has exited");
    agent.interrupt().well();
    assert!(!again.is_set(), "its cores are not as before");
    let record = Record::open(&scene.records()[0]);
    assert_eq!(record.events("app_waiting").len(), 2);
    assert_eq!(record.events("app_arrived").len(), 3);
    assert_eq!(record.events("app_exited").len(), 2);
    scene.wait_until_quiet();
}

#[test]
fn an_app_is_managed_long_before_a_long_epoch_ends() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let (one, other) = (unique(), unique());
    let config = scene.config("", &two(&by_args(&one), &by_args(&other)));
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"200ms\"", "\"1h\"")).unwrap();
    let _second = Sleeper::new(&other);
    let mut agent = scene.agent(&config);
    agent.wait_until_printed("recording to");
    let first = Sleeper::new(&one);
    agent.wait_for("the first app's cores", || first.is_set());
    drop(first);
    let again = Sleeper::new(&one);
    agent.wait_for("the cores of the restarted app", || again.is_set());
    agent.interrupt().well();
    assert!(!again.is_set(), "its cores are not as before");
}

#[test]
fn cgroups_and_units_are_found_by_name_and_glob_when_they_appear() {
    let number = unique();
    let named = |end: &str| Cgroup::named(&format!("lull-e2e-{number}-{end}"));
    let (Some(unit), Some(other)) = (named("a.service"), named("b.scope")) else {
        return skip("no cgroup can be made in systemd's tree");
    };
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    for (first, second) in [
        (
            format!("unit = \"lull-e2e-{number}-a.service\""),
            format!("cgroup = \"system.slice/lull-e2e-{number}-b.scope\""),
        ),
        (
            format!("unit = \"lull-e2e-{number}-[a].service\""),
            format!("cgroup = \"system.slice/lull-e2e-{number}-b.*\""),
        ),
    ] {
        let scene = Scene::new();
        let mut agent = scene.agent(&scene.config("", &two(&first, &second)));
        agent.wait_until_printed("`first` waits: unit");
        agent.wait_until_printed("`second` waits: cgroup");
        let (one, two) = (Sleeper::new("3000"), Sleeper::new("3000"));
        unit.add(&one);
        other.add(&two);
        agent.wait_for("cores of both", || one.is_set() && two.is_set());
        drop(one);
        agent.wait_until_printed("first has exited");
        let again = Sleeper::new("3000");
        unit.add(&again);
        agent.wait_for("cores of the restarted unit", || again.is_set());
        agent.interrupt().well();
        assert!(!again.is_set() && !two.is_set(), "cores are not as before");
        scene.wait_until_quiet();
    }
}

#[test]
fn a_process_that_executes_a_program_that_does_not_match_gets_all_cores_back_at_once() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let one = unique();
    let mut first = Sleeper::shell(&format!("read line; exec sleep 3000 # {one}"));
    let search = format!("match = {{ args = \"*{one}\" }}");
    let (_second, mut agent) = divided(&scene, &first, &search);
    first.proceed();
    agent.wait_for("all cores for what left its app", || !first.is_set());
    agent.wait_until_printed("first has exited");
    // Values that its owner sets from then on stay, also if Lull once wrote the same.
    let cores = cores_of(first.pid());
    let pin = |list: &str| {
        let mut taskset = Command::new("taskset");
        let done = taskset.args(["-pc", list, &first.pid().to_string()]).stdout(Stdio::null());
        done.status().is_ok_and(|status| status.success())
    };
    let is_pinned = pin("0") && cores_of(first.pid()) != cores;
    agent.interrupt().well();
    assert_eq!(first.is_set(), is_pinned);
    scene.wait_until_quiet();
}

#[test]
fn a_process_that_becomes_another_users_leaves_its_app_and_gets_all_cores_back() {
    if cores() < 2 || !is_root() {
        return skip("one core cannot be divided, or only root may become another user");
    }
    let scene = Scene::new();
    let one = unique();
    let of_root = format!("match = {{ args = \"*{one}*\", user = \"0\" }}");
    // The arguments of all three programs match, so that the user alone makes the difference.
    let script = format!("read line; exec setpriv --reuid 65534 sh -c 'read line # {one}'");
    let mut first = Sleeper::shell(&script);
    let (second, mut agent) = divided(&scene, &first, &of_root);
    first.proceed();
    agent.wait_for("all cores for what left its app", || !first.is_set());
    agent.wait_until_printed("first has exited");
    agent.wait_for("all cores for the app that is left", || !second.is_set());
    let status = std::fs::read_to_string(format!("/proc/{}/status", first.pid())).unwrap();
    assert!(status.contains("Uid:\t65534\t65534\t"), "{status}");
    agent.interrupt().well();
    assert!(!first.is_set() && !second.is_set(), "cores are not as before");
    scene.wait_until_quiet();
}

#[test]
fn a_child_whose_program_does_not_match_gets_all_cores_at_once() {
    if cores() < 2 || !has_forks() {
        return skip("one core cannot be divided, or the kernel reports no forks");
    }
    let scene = Scene::new();
    let one = unique();
    let shell = format!("match = {{ args = \"*{one}\" }}");
    let script = format!("read line; sleep 3000 & echo $!; read line; kill $! # {one}");
    let mut first = Sleeper::shell(&script);
    let (_second, mut agent) = divided(&scene, &first, &shell);
    first.proceed();
    let mut line = String::new();
    BufReader::new(first.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let child: i32 = line.trim().parse().unwrap();
    agent.wait_for("all cores for the child", || !is_set(child));
    assert!(first.is_set(), "the shell is an app still");
    first.proceed();
    drop(first.0.stdin.take());
    first.0.wait().unwrap();
    agent.interrupt().well();
}

#[test]
fn a_process_that_is_moved_out_of_its_cgroup_gets_all_cores_back_at_once() {
    let name = format!("lull-e2e-{}-moved", unique());
    let Some(group) = Cgroup::named(&name) else {
        return skip("no cgroup can be made in systemd's tree");
    };
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let (scene, first) = (Scene::new(), Sleeper::new("3000"));
    group.add(&first);
    let place = format!("cgroup = \"system.slice/{name}\"");
    let (_second, mut agent) = divided(&scene, &first, &place);
    let outside = group.0.ancestors().nth(2).unwrap();
    std::fs::write(outside.join("cgroup.procs"), first.pid().to_string()).unwrap();
    agent.wait_for("all cores for what was moved", || !first.is_set());
    agent.interrupt().well();
}

#[test]
fn a_process_of_two_apps_is_refused_at_the_start_and_later_left_unmanaged() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let seconds = unique();
    let apps = two(&by_args(&seconds), &format!("match = {{ args = \"*{seconds}\" }}"));
    let config = scene.config("", &apps);
    let mut agent = scene.agent(&config);
    agent.wait_until_printed("recording to");
    let shared = Sleeper::new(&seconds);
    agent.wait_until_printed("is found by both `first` and `second`: it is left unmanaged");
    let ended = agent.interrupt().well();
    assert_eq!(ended.err.matches("is found by both").count(), 1, "{}", ended.err);
    assert!(!shared.is_set());
    let refused = scene.run_for(&config, "1s").refused(2, "belongs to both `first` and `second`");
    assert!(refused.err.contains("lull.toml:"), "{}", refused.err);
}

#[test]
fn a_bound_on_memory_pressure_is_steered_by_and_recorded() {
    let mut tops = ["", "unified"].into_iter().map(|top| Path::new("/sys/fs/cgroup").join(top));
    let top = tops.find(|top| top.join("cgroup.controllers").exists());
    let place = top.map(|top| top.join(format!("lull-e2e-{}", unique())));
    let Some(group) = place.filter(|place| std::fs::create_dir(place).is_ok()).map(Cgroup) else {
        return skip("no cgroup of version 2 can be made");
    };
    if !group.0.join("memory.pressure").exists() {
        return skip("this kernel has no pressure of cgroups");
    }
    let scene = Scene::new();
    let served = Sleeper::new("3000");
    group.add(&served);
    let apps = format!(
        "[policy]\nname = \"tide\"\n[[app]]\nname = \"served\"\nclass = \"latency-critical\"\n\
         objectives = [{{ memory_pressure = \"2%\" }}]\npid = {}\n[[app]]\nname = \"batch\"\n\
         class = \"best-effort\"\nsolo = 1.0\nstart = [\"lull\", \"burn\", \"compute\"]\n",
        served.pid()
    );
    scene.run_for(&scene.config("", &apps), "3s").well();
    let record = Record::open(&scene.records()[0]);
    let of = |column: &str| {
        let table = "app_epochs WHERE app = 'served'";
        record.text(&format!("SELECT printf('%.3f', max({column})) FROM {table}"))
    };
    assert_eq!(of("tail_bound_seconds"), ["0.020"]);
    assert_eq!(of("tail_latency_seconds"), of("memory_pressure_ratio"));
    assert_eq!(record.events("safe_begins").len(), 0, "its latency is not silent");
}

/// Two templates, or one twice, of sleepers.
fn templates(first: &str, second: &str) -> String {
    let template = |name: &str, keys: &str| {
        format!("[[match]]\nname = \"{name}\"\nclass = \"best-effort\"\nsolo = 1.0\n{keys}\n")
    };
    format!(
        "[policy]\nname = \"even\"\n{}{}",
        template("a", first),
        if second.is_empty() { String::new() } else { template("b", second) }
    )
}

#[test]
fn each_process_that_a_template_matches_is_an_app_while_it_lasts() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let seconds = unique();
    let keys = format!("args = \"sleep {seconds}\"\nmost = 2");
    let mut agent = scene.agent(&scene.config("", &templates(&keys, "")));
    agent.wait_until_printed("`a-1` waits: processes with args");
    let (one, two) = (Sleeper::new(&seconds), Sleeper::new(&seconds));
    agent.wait_for("cores of both", || one.is_set() && two.is_set());
    assert_ne!(cores_of(one.pid()), cores_of(two.pid()), "each is an app of its own");
    let third = Sleeper::new(&seconds);
    agent.wait_until_printed("more than 2 processes with args");
    assert!(!third.is_set(), "no app is free for it");
    drop(one);
    agent.wait_for("cores of the third, in place of the first", || third.is_set());
    agent.interrupt().well();
    assert!(!two.is_set() && !third.is_set(), "cores are not as before");
    scene.wait_until_quiet();
}

#[test]
fn a_match_of_a_template_that_restarts_is_managed_long_before_a_long_epoch_ends() {
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    let scene = Scene::new();
    let (one, other) = (unique(), unique());
    let template = templates(&format!("args = \"sleep {one}\"\nmost = 1"), "");
    let app = "[[app]]\nname = \"other\"\nclass = \"best-effort\"\nsolo = 1.0\n";
    let config = scene.config("", &format!("{template}{app}{}\n", by_args(&other)));
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"200ms\"", "\"1h\"")).unwrap();
    let first = Sleeper::new(&one);
    let mut agent = scene.agent(&config);
    agent.wait_until_printed("recording to");
    // Its arrival has the policy decide, which it does not before the end of an epoch.
    let _other = Sleeper::new(&other);
    agent.wait_for("the cores of the match", || first.is_set());
    drop(first);
    let again = Sleeper::new(&one);
    agent.wait_for("the cores of the restarted match", || again.is_set());
    agent.interrupt().well();
    assert!(!again.is_set(), "its cores are not as before");
}

#[test]
fn a_process_of_two_templates_is_refused_with_both_named() {
    let scene = Scene::new();
    let seconds = unique();
    let keys = |glob: &str| format!("args = \"{glob}{seconds}\"\nmost = 1");
    let _shared = Sleeper::new(&seconds);
    let config = scene.config("", &templates(&keys("sleep "), &keys("*")));
    if cores() < 2 {
        return skip("one core cannot be divided");
    }
    scene.run_for(&config, "1s").refused(2, "belongs to both `a-1` and `b-1`");
}

#[test]
fn a_run_ends_with_the_app_that_it_was_to_end_with() {
    let scene = Scene::new();
    let apps = two("start = [\"sleep\", \"2\"]", &by_args(&unique()));
    let config = scene.config("", &apps);
    let run = |app: &str| {
        scene.run(&["run".as_ref(), config.as_os_str(), "--exit-with".as_ref(), app.as_ref()])
    };
    run("third").refused(2, "there are the apps first, second");
    run("first").well();
    scene.wait_until_quiet();
}

#[test]
fn patterns_that_are_none_are_refused_with_line_and_key() {
    let scene = Scene::new();
    for (place, key) in [
        ("match = {}", "app[0].match: is empty"),
        ("match = { exe = \"a[\" }", "app[0].match.exe: `a[` is not a pattern"),
        ("match = { name = \"a\" }", "app[0].match.name: unknown field"),
        ("unit = \"a[.service\"", "app[0].unit: `a[.service` is not a pattern"),
        ("cgroup = \"a{\"", "app[0].cgroup: `a{` is not a pattern"),
        ("match = { exe = \"a\" }\npid = 2", "more than one of start, pid, cgroup, unit and match"),
    ] {
        let config = scene.config("", &two(place, &by_args("1")));
        let ended = scene.run_for(&config, "1s").refused(2, key);
        assert!(ended.err.contains("lull.toml:"), "{}", ended.err);
    }
}
