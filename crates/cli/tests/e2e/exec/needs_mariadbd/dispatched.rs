//! A database without marks, whose requests move between a slow and a fast core by their age.

use super::*;
use crate::support::threads::{cores_of, threads};
use crate::support::{cores, skip, wait_or};

/// A query that computes for seconds; the test ends it.
const LONG: &str = "select benchmark(2000000000, md5('a'))";

/// Two cores of this process, a slow and a fast one, in a file of docs/dispatch.md; `None` on a
/// machine with one.
fn two_cores(scene: &Scene) -> Option<(String, [String; 2])> {
    let all = cores_of(std::process::id().cast_signed());
    let first: Vec<String> = all.split([',', '-']).map(str::to_owned).collect();
    let [fast, .., slow] = first.as_slice() else { return None };
    let core = |name: &str, speed: f64, core: &str| {
        let speeds = format!("speed = {speed:?}\nwatts = {speed:?}");
        format!("[[core]]\nname = \"{name}\"\n{speeds}\ncores = \"{core}\"\n")
    };
    let text = format!(
        "percentile = \"p99\"\ntarget = \"100ms\"\n[dispatcher]\nname = \"eetl\"\n{}{}",
        core("slow", 1.0, slow),
        core("fast", 2.0, fast)
    );
    let file = scene.write("dispatch.toml", &text);
    Some((file.to_str().unwrap().to_owned(), [slow.clone(), fast.clone()]))
}

/// How many threads of a process may run on these cores only.
fn on(pid: i32, core: &str) -> usize {
    threads(pid).values().filter(|thread| thread.cores == core).count()
}

/// The threads of a process that may not run on all these cores, with their names.
fn moved(pid: i32, all: &str) -> Vec<String> {
    let name = |tid: i32| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
    let moved = threads(pid).into_iter().filter(|(_, thread)| thread.cores != all);
    moved.map(|(tid, thread)| format!("{:?} on {}", name(tid), thread.cores)).collect()
}

#[test]
fn an_old_request_moves_to_the_fast_core_and_short_ones_stay_on_the_slow_one() {
    let scene = Scene::new();
    let Some((file, [slow, fast])) = two_cores(&scene).filter(|_| cores() > 1) else {
        return skip("a machine with two cores");
    };
    let database = Database::start(&scene, &["--dispatch", &file]);
    let pid = database.pid();
    let mut long = database.client(LONG);
    wait_for("the old request on the fast core", || on(pid, &fast) == 1);
    // The sleep keeps the connection open for many readings of the page, so that one sees it.
    let short = format!("select sleep(0.5);{}", "select 1;".repeat(200));
    assert_eq!(ended(database.client(&short)).lines().count(), 201);
    assert_eq!(on(pid, &fast), 1, "one request a core");
    let resting = database.client("select sleep(2)");
    wait_for("a thread that rests on the slow core", || on(pid, &slow) >= 1);
    ended(resting);
    let of_it = "from information_schema.processlist where info like 'select benchmark%'";
    let id = database.admin(&format!("select id {of_it}"));
    database.admin(&format!("kill query {}", id.trim()));
    long.wait().unwrap();
    wait_for("an idle fast core", || on(pid, &fast) == 0);
    let seen = database.server.seen();
    let count = |key: &str| seen["dispatch"][key].as_u64().unwrap();
    assert!(count("moves") >= 1 && count("requests") >= 200, "{}", seen["dispatch"]);
    assert_eq!((count("refused"), count("shared")), (0, 0), "{}", seen["dispatch"]);
}

#[test]
fn threads_take_their_cores_back_when_the_dispatcher_is_killed() {
    let scene = Scene::new();
    let Some((file, _)) = two_cores(&scene).filter(|_| cores() > 1) else {
        return skip("a machine with two cores");
    };
    // A thread without a connection would keep its core until it has one.
    let uncached = ["--thread-cache-size=0"];
    let database = Database::start_with(&scene, &["--dispatch", &file], &uncached);
    let (pid, all) = (database.pid(), cores_of(std::process::id().cast_signed()));
    let mut client = database.client(&"do sleep(0.1);".repeat(600));
    let moved = || moved(pid, &all);
    wait_for("a dispatched thread", || !moved().is_empty());
    database.server.signal(Signal::KILL);
    wait_or(|| format!("not on all cores: {:?}", moved()), &mut || moved().is_empty());
    client.kill().unwrap();
    client.wait().unwrap();
    send(pid, Signal::KILL);
}

#[test]
fn servers_whose_threads_serve_several_connections_are_refused() {
    let scene = Scene::new();
    let Some((file, _)) = two_cores(&scene) else { return skip("a machine with two cores") };
    let pool = ["--", "mariadbd", "--thread-handling=pool-of-threads"];
    for command in [&["--", "redis-server"][..], &pool] {
        let arguments = [&["exec", "--dispatch", &file][..], command].concat();
        scene.run(&arguments).refused(2, "serve");
    }
    scene.run(&["exec", "--dispatch", "eetl", "--", "true"]).refused(2, "needs a bound");
    scene.run(&["exec", "--objective", "p99=9ms", "--", "true"]).refused(2, "admission controller");
}
