//! Only the fields that Lull set are restored, and only while they hold what it wrote.

use super::*;
use crate::apps::Forks;
use crate::guard::entry::Lines;
use crate::guard::held::Held;
use crate::testing::Cpuset;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

/// The first core that the victim may run on.
fn first_core(scene: &Scene) -> CoreSet {
    sched::affinity_of(scene.thread().tid).unwrap().iter().take(1).collect()
}

fn last_core(scene: &Scene) -> CoreSet {
    sched::affinity_of(scene.thread().tid).unwrap().iter().next_back().into_iter().collect()
}

/// A ledger of an agent that set the victim's cores, and nothing else.
fn with_cores(scene: &Scene, cores: &CoreSet) -> Ledger {
    let mut ledger = scene.open().ledger;
    let values = vec![FieldValue::Cores(cores.clone())];
    ledger.record_writes(&[ThreadWrite { thread: scene.thread(), values }]).unwrap();
    sched::set_affinity(scene.thread().tid, cores).unwrap();
    ledger
}

#[test]
fn a_process_that_is_as_wanted_has_no_line_until_something_is_written_to_it() {
    let scene = Scene::new();
    let mut ledger = scene.open().ledger;
    let lines = |ledger: &Ledger| std::fs::read_to_string(ledger.path()).unwrap().lines().count();
    let before = lines(&ledger);
    let (thread, values) = (scene.thread(), Vec::new());
    ledger.record_writes(&[ThreadWrite { thread, values }]).unwrap();
    assert_eq!(lines(&ledger), before);
    ledger.record_writes(&[scene.write()]).unwrap();
    assert_eq!(lines(&ledger), before + 2, "what it was, and what is written");
}

#[test]
fn a_renice_and_a_change_of_class_survive_an_agent_that_sets_cores() {
    let scene = Scene::new();
    let before = sched::affinity_of(scene.thread().tid).unwrap();
    let ledger = with_cores(&scene, &first_core(&scene));
    let theirs = sched::SchedState { policy: libc::SCHED_BATCH as u32, rt_priority: 0, nice: 7 };
    sched::set_scheduling(scene.thread().tid, theirs).unwrap();
    let restoration = ledger.restore();
    assert_eq!((restoration.done, restoration.left.len()), (1, 0), "{restoration}");
    assert_eq!(sched::affinity_of(scene.thread().tid).unwrap(), before);
    assert_eq!(sched::scheduling_of(scene.thread().tid).unwrap(), theirs);
}

#[test]
fn a_slice_that_the_owner_set_is_restored_after_a_real_time_class() {
    let scene = Scene::new();
    let tid = scene.thread().tid;
    let slice_ns = 5_000_000;
    sched::set_slice(tid, slice_ns).unwrap();
    if sched::own_slice_of(tid).unwrap() != slice_ns {
        return lull_testing::skip("threads have slices of their own since Linux 6.12");
    }
    let before = scene.original();
    let mut ledger = scene.open().ledger;
    let real_time = FieldValue::Class { policy: libc::SCHED_RR as u32, rt_priority: 3 };
    let values = vec![real_time.clone()];
    ledger.record_writes(&[ThreadWrite { thread: scene.thread(), values }]).unwrap();
    if real_time.write(tid).is_err() {
        return lull_testing::skip("sets a real-time class: run as root");
    }
    drop(ledger);
    let _ = scene.open();
    assert_eq!(scene.original(), before);
    assert_eq!(sched::own_slice_of(tid).unwrap(), slice_ns);
}

#[test]
fn a_thread_that_pins_itself_after_the_write_is_not_widened_and_is_listed() {
    let scene = Scene::new();
    let (first, last) = (first_core(&scene), last_core(&scene));
    if first == last {
        return lull_testing::skip("one core cannot be divided");
    }
    let ledger = with_cores(&scene, &first);
    sched::set_affinity(scene.thread().tid, &last).unwrap();
    let restoration = ledger.restore();
    let theirs = (scene.original().key(), FieldValue::Cores(last.clone()));
    assert_eq!(restoration.left, [theirs]);
    let text = restoration.to_string();
    assert!(text.contains("left as another program set it: thread"), "{text}");
    assert_eq!(sched::affinity_of(scene.thread().tid).unwrap(), last);
}

#[test]
fn a_process_that_pins_itself_after_it_was_saved_gets_its_own_cores_back() {
    let scene = Scene::new();
    let (first, last) = (first_core(&scene), last_core(&scene));
    if first == last {
        return lull_testing::skip("one core cannot be divided");
    }
    let mut ledger = with_cores(&scene, &first);
    let thread = scene.thread();
    let lines = std::fs::read_to_string(scene.file()).unwrap();
    ledger.record_changed(&[thread]).unwrap();
    let now = std::fs::read_to_string(scene.file()).unwrap();
    assert_eq!(now, lines, "it has what Lull wrote");
    sched::set_affinity(thread.tid, &last).unwrap();
    ledger.record_changed(&[thread]).unwrap();
    let values = vec![FieldValue::Cores(first.clone())];
    ledger.record_writes(&[ThreadWrite { thread, values }]).unwrap();
    sched::set_affinity(thread.tid, &first).unwrap();
    drop(ledger);
    let _ = scene.open();
    assert_eq!(sched::affinity_of(thread.tid).unwrap(), last);
}

#[test]
fn a_line_that_a_kill_tore_gives_nothing_up() {
    let scene = Scene::new();
    let last = last_core(&scene);
    if first_core(&scene) == last {
        return lull_testing::skip("one core cannot be divided");
    }
    let thread = scene.thread();
    let before = sched::scheduling_of(thread.tid).unwrap();
    let mut ledger = scene.open().ledger;
    ledger.record_writes(&[scene.write()]).unwrap();
    scene.change();
    sched::set_affinity(thread.tid, &last).unwrap();
    ledger.record_changed(&[thread]).unwrap();
    drop(ledger);
    let bytes = std::fs::read(scene.file()).unwrap();
    std::fs::write(scene.file(), &bytes[..bytes.len() - 9]).unwrap();
    let _ = scene.open();
    assert_eq!(sched::scheduling_of(thread.tid).unwrap(), before);
    assert_eq!(sched::affinity_of(thread.tid).unwrap(), last);
}

/// Set in a process of which the test below is the second thread, and only sleeps.
const SLEEPER: &str = "LULL_TEST_SLEEPER";

/// Starts a process with two threads; returns its threads once it has both.
fn two_threads() -> (Child, Vec<LiveThread>) {
    let test = "guard::tests::fields::a_main_thread_that_pins_itself_pins_no_other_after_the_run";
    let process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads", "2"])
        .env(SLEEPER, "1")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let both = |_| {
        std::thread::sleep(Duration::from_millis(5));
        let threads = threads_of(&Roots::default(), process.id().cast_signed()).ok()?;
        (threads.len() >= 2).then_some(threads)
    };
    let threads = (0..12_000).find_map(both).expect("the process has a second thread");
    (process, threads)
}

#[test]
fn a_main_thread_that_pins_itself_pins_no_other_after_the_run() {
    if std::env::var_os(SLEEPER).is_some() {
        return std::thread::sleep(Duration::from_secs(600));
    }
    let scene = Scene::new();
    let (first, last) = (first_core(&scene), last_core(&scene));
    if first == last {
        return lull_testing::skip("one core cannot be divided");
    }
    let (mut process, threads) = two_threads();
    let main = *threads.iter().find(|thread| thread.is_main()).unwrap();
    let worker = *threads.iter().find(|thread| !thread.is_main()).unwrap();
    let all = sched::affinity_of(worker.tid).unwrap();
    let mut ledger = scene.open().ledger;
    // As a new process is saved when it is first seen.
    ledger.record_threads(&[main]).unwrap();
    sched::set_affinity(main.tid, &last).unwrap();
    ledger.record_changed(&threads).unwrap();
    let values = vec![FieldValue::Cores(first.clone())];
    let write = |thread: LiveThread| ThreadWrite { thread, values: values.clone() };
    ledger.record_writes(&[write(main), write(worker)]).unwrap();
    for thread in threads {
        sched::set_affinity(thread.tid, &first).unwrap();
    }
    drop(ledger);
    let _ = scene.open();
    let after = [main, worker].map(|thread| sched::affinity_of(thread.tid).unwrap());
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(after, [last, all]);
}

/// A worker that another program has set since its process was saved, by whether the worker has a
/// line of its own.
fn a_worker_that_was_set_alone_gets_its_own_cores_back(has_line: bool) {
    let scene = Scene::new();
    let (first, last) = (first_core(&scene), last_core(&scene));
    if first == last {
        return lull_testing::skip("one core cannot be divided");
    }
    let (mut process, threads) = two_threads();
    let main = *threads.iter().find(|thread| thread.is_main()).unwrap();
    let worker = *threads.iter().find(|thread| !thread.is_main()).unwrap();
    let all = sched::affinity_of(main.tid).unwrap();
    let mut ledger = scene.open().ledger;
    ledger.record_threads(if has_line { &threads } else { std::slice::from_ref(&main) }).unwrap();
    sched::set_affinity(worker.tid, &last).unwrap();
    ledger.record_changed(&[worker]).unwrap();
    let write = |thread: &LiveThread| ThreadWrite {
        thread: *thread,
        values: vec![FieldValue::Cores(first.clone())],
    };
    ledger.record_writes(&threads.iter().map(write).collect::<Vec<_>>()).unwrap();
    for thread in &threads {
        sched::set_affinity(thread.tid, &first).unwrap();
    }
    // Values that Lull wrote are not another program's.
    ledger.record_changed(&threads).unwrap();
    drop(ledger);
    let _ = scene.open();
    let after = [main, worker].map(|thread| sched::affinity_of(thread.tid).unwrap());
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!(after, [all, last]);
}

#[test]
fn a_saved_worker_that_was_set_alone_gets_its_own_cores_back() {
    a_worker_that_was_set_alone_gets_its_own_cores_back(true);
}

#[test]
fn a_new_worker_that_was_set_alone_gets_its_own_cores_back() {
    a_worker_that_was_set_alone_gets_its_own_cores_back(false);
}

#[test]
fn a_class_that_was_set_once_is_restored_after_many_moves_of_cores() {
    let scene = Scene::new();
    let (first, last) = (first_core(&scene), last_core(&scene));
    if first == last {
        return lull_testing::skip("one core cannot be divided");
    }
    let (thread, before) = (scene.thread(), scene.original());
    let mut ledger = scene.open().ledger;
    let class = FieldValue::Class { policy: libc::SCHED_BATCH as u32, rt_priority: 0 };
    ledger.record_writes(&[ThreadWrite { thread, values: vec![class.clone()] }]).unwrap();
    class.write(thread.tid).unwrap();
    for cores in [&first, &last].into_iter().cycle().take(25) {
        let values = vec![FieldValue::Cores(cores.clone())];
        ledger.record_writes(&[ThreadWrite { thread, values }]).unwrap();
    }
    sched::set_affinity(thread.tid, &first).unwrap();

    let (_, lines) = LedgerFile::existing(&scene.dir()).unwrap().unwrap();
    let clock = Clock::read(&scene.roots).unwrap();
    let held = Held::from_lines(&lines, clock.boot());
    let compact = Lines { entries: held.alive(&scene.roots, &clock), ..Lines::default() };
    let again = Held::from_lines(&compact, clock.boot());
    assert_eq!(held.lulls(thread, Field::Class), [class]);
    assert_eq!(held.lulls(thread, Field::Cores), [first, last].map(FieldValue::Cores));
    for field in [Field::Cores, Field::Class] {
        assert_eq!(again.lulls(thread, field), held.lulls(thread, field));
    }

    let restoration = ledger.restore();
    assert_eq!((restoration.done, restoration.left.len()), (1, 0), "{restoration}");
    assert_eq!(scene.original(), before);
}

#[test]
fn a_write_that_a_kill_cut_short_is_undone_or_was_not_done() {
    let scene = Scene::new();
    let before = scene.original();
    let (first, last) = (first_core(&scene), last_core(&scene));
    let mut ledger = with_cores(&scene, &first);
    let values = vec![FieldValue::Cores(last)];
    ledger.record_writes(&[ThreadWrite { thread: scene.thread(), values }]).unwrap();
    drop(ledger);
    let _ = scene.open();
    assert_eq!(scene.original(), before);

    let mut ledger = scene.open().ledger;
    ledger.record_writes(&[scene.write()]).unwrap();
    let restoration = ledger.restore();
    assert_eq!((restoration.done, restoration.already), (0, 1), "{restoration}");
}

#[test]
fn a_thread_that_was_pinned_before_never_gets_more_cores_than_that() {
    let scene = Scene::new();
    let (first, last) = (first_core(&scene), last_core(&scene));
    let tid = scene.thread().tid;
    sched::set_affinity(tid, &last).unwrap();
    let before = scene.original();
    let is_bound = matches!(&before, Original::Thread { follows_cpuset: Some(false), .. });
    assert!(is_bound || first == last, "{before:?}");
    drop(with_cores(&scene, &first));
    let _ = scene.open();
    assert_eq!(scene.original(), before);
}

#[test]
fn a_restored_thread_follows_its_cpuset_as_before() {
    let scene = Scene::new();
    let tid = scene.thread().tid;
    let all = sched::affinity_of(tid).unwrap();
    let (first, last) = (first_core(&scene), last_core(&scene));
    let Some(cpuset) = Cpuset::new(tid, &all).filter(|_| first != last) else {
        return lull_testing::skip("no cpuset of two cores can be made here");
    };
    drop(with_cores(&scene, &first));
    let _ = scene.open();
    assert_eq!(sched::affinity_of(tid).unwrap(), all);
    cpuset.allow(&last);
    assert_eq!(sched::affinity_of(tid).unwrap(), last, "it is still bound");
    cpuset.allow(&all);
    assert_eq!(sched::affinity_of(tid).unwrap(), all, "it is bound to what it was allowed");
}

#[test]
fn a_thread_to_which_lull_has_given_all_its_cores_follows_its_cpuset_as_before() {
    let scene = Scene::new();
    let tid = scene.thread().tid;
    let all = sched::affinity_of(tid).unwrap();
    let (first, last) = (first_core(&scene), last_core(&scene));
    let Some(cpuset) = Cpuset::new(tid, &first).filter(|_| first != last) else {
        return lull_testing::skip("no cpuset of two cores can be made here");
    };
    let ledger = with_cores(&scene, &first);
    let restoration = ledger.restore();
    assert_eq!((restoration.done, restoration.already), (0, 1), "{restoration}");
    cpuset.allow(&all);
    assert_eq!(sched::affinity_of(tid).unwrap(), all, "it is bound to what it was allowed");
}

#[test]
fn a_cpuset_that_changes_under_a_steered_thread_is_no_foreign_change() {
    let scene = Scene::new();
    let tid = scene.thread().tid;
    let all = sched::affinity_of(tid).unwrap();
    let (first, last) = (first_core(&scene), last_core(&scene));
    let Some(cpuset) = Cpuset::new(tid, &all).filter(|_| first != last) else {
        return lull_testing::skip("no cpuset of two cores can be made here");
    };
    let ledger = with_cores(&scene, &first);
    cpuset.allow(&first);
    let restoration = ledger.restore();
    assert!(restoration.failed.is_empty() && restoration.left.is_empty(), "{restoration}");
    cpuset.allow(&all);
    assert_eq!(sched::affinity_of(tid).unwrap(), all);
}

/// A daemon: its parent ends at once, so that its parent is process 1 when it is seen.
const DAEMONS: &str = "read line; (setsid sh -c 'echo $$; exec sleep 600' &) ; read line";

/// Lets a shell with Lull's setting make a daemon; returns the shell, and the daemon's number.
fn make_daemon(scene: &Scene) -> (Child, i32, Ledger) {
    let mut shell = Command::new("sh")
        .args(["-c", DAEMONS])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = shell.id().cast_signed();
    let main = threads_of(&scene.roots, pid).unwrap()[0];
    let mut ledger = scene.open().ledger;
    ledger.forks().subscribe();
    let one = first_core(scene);
    let values = vec![FieldValue::Cores(one.clone())];
    ledger.record_writes(&[ThreadWrite { thread: main, values }]).unwrap();
    sched::set_affinity(pid, &one).unwrap();
    writeln!(shell.stdin.as_mut().unwrap()).unwrap();
    let mut printed = String::new();
    BufReader::new(shell.stdout.as_mut().unwrap()).read_line(&mut printed).unwrap();
    let daemon = printed.trim().parse().unwrap();
    (shell, daemon, ledger)
}

fn end(mut shell: Child, daemon: i32) {
    shell.kill().unwrap();
    shell.wait().unwrap();
    let daemon = rustix::process::Pid::from_raw(daemon).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_daemon_gets_what_its_creator_had() {
    if !Forks::default().subscribe() {
        return lull_testing::skip("the kernel does not report forks here");
    }
    let scene = Scene::new();
    let before = sched::affinity_of(scene.thread().tid).unwrap();
    let (shell, daemon, ledger) = make_daemon(&scene);
    let changed = sched::affinity_of(daemon).unwrap();
    let restoration = ledger.restore();
    let after = sched::affinity_of(daemon).unwrap();
    end(shell, daemon);
    assert_eq!((changed, after), (first_core(&scene), before));
    // Processes of other tests have the same parent, and may be missed.
    let own = format!("process {daemon} ");
    assert!(!restoration.missed.iter().any(|one| one.starts_with(&own)), "{restoration}");
    assert!(restoration.failed.is_empty(), "{restoration}");
}

#[test]
fn a_daemon_of_which_nothing_is_known_is_possibly_missed() {
    let scene = Scene::new();
    if first_core(&scene) == last_core(&scene) {
        return lull_testing::skip("one core cannot be divided");
    }
    let (shell, daemon, ledger) = make_daemon(&scene);
    drop(ledger);
    let recovery = restore_stale(&scene.dir(), &scene.roots).unwrap().unwrap();
    end(shell, daemon);
    let RecoveryAction::Now(restoration) = &recovery.how else { panic!("{recovery}") };
    let name = format!("process {daemon} (sleep) has cores");
    assert!(restoration.missed.iter().any(|one| one.starts_with(&name)), "{recovery}");
}

fn restore_as_guard(scene: &Scene, forks: &Forks) -> Restoration {
    let (mut file, lines) = LedgerFile::existing(&scene.dir()).unwrap().unwrap();
    let (clock, roots) = (Clock::read(&scene.roots).unwrap(), &scene.roots);
    let recovery =
        recovery::put_all_back(&mut file, &lines, forks, roots, &clock, Duration::ZERO).unwrap();
    let Some(Recovery { how: RecoveryAction::Now(restoration), .. }) = recovery else {
        panic!("no outcome")
    };
    restoration
}

/// The agent may add lines to the ledger between the guard's last look at it and the agent's end.
#[test]
fn a_daemon_of_a_process_that_the_guard_does_not_follow_yet_gets_what_its_creator_had() {
    let (scene, forks) = (Scene::new(), Forks::default());
    if !forks.subscribe() {
        return lull_testing::skip("the kernel does not report forks here");
    }
    let before = sched::affinity_of(scene.thread().tid).unwrap();
    let (shell, daemon, ledger) = make_daemon(&scene);
    drop(ledger);
    let restoration = restore_as_guard(&scene, &forks);
    let after = sched::affinity_of(daemon).unwrap();
    end(shell, daemon);
    assert_eq!(after, before, "{restoration}");
}

#[test]
fn a_daemon_that_was_made_before_its_guard_began_is_possibly_missed() {
    let (scene, forks) = (Scene::new(), Forks::default());
    if first_core(&scene) == last_core(&scene) {
        return lull_testing::skip("one core cannot be divided");
    }
    let (shell, daemon, ledger) = make_daemon(&scene);
    drop(ledger);
    let is_reported = forks.subscribe();
    let restoration = restore_as_guard(&scene, &forks);
    end(shell, daemon);
    if !is_reported {
        return lull_testing::skip("the kernel does not report forks here");
    }
    let name = format!("process {daemon} (sleep) has cores");
    assert!(restoration.missed.iter().any(|one| one.starts_with(&name)), "{restoration}");
}

#[test]
fn a_daemon_that_the_agent_saw_is_restored_after_all_have_been_killed() {
    if !Forks::default().subscribe() {
        return lull_testing::skip("the kernel does not report forks here");
    }
    let scene = Scene::new();
    let before = sched::affinity_of(scene.thread().tid).unwrap();
    let (shell, daemon, mut ledger) = make_daemon(&scene);
    ledger.forks().read();
    let threads = threads_of(&scene.roots, daemon).unwrap();
    // It is a child of process 1 since its parent has ended.
    ledger.record_descendants(&threads, |_| Some(1)).unwrap();
    drop(ledger);
    let _ = scene.open();
    let after = sched::affinity_of(daemon).unwrap();
    end(shell, daemon);
    assert_eq!(after, before);
}
