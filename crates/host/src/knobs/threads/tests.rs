//! Settings of real threads, which other programs set, too, and which come and go.

use super::*;
use crate::apps::threads_of;
use crate::guard::{Ledger, StateDir};
use crate::knobs::Affinity;
use crate::sys::sched;
use crate::testing::{Cpuset, Tree};
use lull_control::CoreSet;
use rustix::fs::{CWD, Mode, mkfifoat};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

type Knob = ThreadKnob<Affinity>;

/// Threads that do not change.
struct Listed(Vec<LiveThread>);

impl Threads for Listed {
    fn list(&self) -> &[LiveThread] {
        &self.0
    }

    fn refresh(&mut self) {}
}

/// A process that sleeps until this is dropped.
struct Victim(Child);

impl Victim {
    fn new() -> Self {
        Self(Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().unwrap())
    }

    fn thread(&self) -> LiveThread {
        main_of(self.0.id().cast_signed())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn main_of(pid: i32) -> LiveThread {
    threads_of(&Roots::default(), pid).unwrap()[0]
}

fn ledger_in(place: &tempfile::TempDir) -> Ledger {
    let dir = StateDir::locate(Some(&place.path().join("lull"))).unwrap();
    Ledger::open(dir, &Roots::default()).unwrap().ledger
}

/// The cores of a thread, and the first and the last of them.
struct Cores {
    all: CoreSet,
    first: CoreSet,
    last: CoreSet,
}

impl Cores {
    fn of_thread(tid: i32) -> Self {
        let all = sched::affinity_of(tid).unwrap();
        let first = all.iter().take(1).collect();
        let last = all.iter().next_back().into_iter().collect();
        Self { all, first, last }
    }
}

#[test]
fn a_thread_is_restored_after_two_settings_that_were_refused() {
    let (place, roots) = (tempfile::tempdir().unwrap(), Roots::default());
    let mut ledger = ledger_in(&place);
    let victim = Victim::new();
    let pid = victim.thread().pid;
    let mut threads = Listed(threads_of(&roots, pid).unwrap());
    let Cores { all, first, .. } = Cores::of_thread(pid);
    let mut knob = Knob::default();
    let mut means = Means { save: &mut ledger, is_privileged: true, roots: &roots };
    knob.set(&first, &mut threads, &mut means).unwrap();
    // Cores that this machine does not have.
    let refused = ["1022", "1023"].map(|core| {
        let cores: CoreSet = core.parse().unwrap();
        knob.set(&cores, &mut threads, &mut means).is_err()
    });
    let steered = sched::affinity_of(pid).unwrap();
    let restoration = ledger.restore();
    let after = sched::affinity_of(pid).unwrap();
    assert_eq!((refused, steered, after), ([true; 2], first, all));
    assert!(restoration.failed.is_empty() && restoration.left.is_empty(), "{restoration}");
}

#[test]
fn a_cpuset_that_changes_is_no_other_writer_and_the_setting_returns() {
    let (place, roots) = (tempfile::tempdir().unwrap(), Roots::default());
    let mut ledger = ledger_in(&place);
    let victim = Victim::new();
    let pid = victim.thread().pid;
    let Cores { all, first, last } = Cores::of_thread(pid);
    let cpuset = Cpuset::new(pid, &all).filter(|_| first != last);
    let outcomes = cpuset.map(|cpuset| {
        let mut threads = Listed(threads_of(&roots, pid).unwrap());
        let mut knob = Knob::default();
        let mut means = Means { save: &mut ledger, is_privileged: true, roots: &roots };
        knob.set(&first, &mut threads, &mut means).unwrap();
        let mut allow = |cores: &CoreSet| {
            cpuset.allow(cores);
            let found = knob.watch(threads.list(), &mut means);
            let is_foreign = found.map(|change| change.is_some()).map_err(|it| it.to_string());
            (is_foreign, sched::affinity_of(pid).unwrap())
        };
        let by_cpuset = [allow(&last), allow(&last), allow(&all)];
        sched::set_affinity(pid, &last).unwrap();
        (by_cpuset, allow(&all))
    });
    let Some(([(refused, cores), once, back], foreign)) = outcomes else {
        return lull_testing::skip("no cpuset of two cores can be made here");
    };
    assert!(refused.unwrap_err().contains("in the app's cpuset"), "it has no core of the app");
    assert_eq!((cores, once), (last.clone(), (Ok(false), last.clone())));
    assert_eq!((back, foreign), ((Ok(false), first), (Ok(true), last)));
}

/// A process that makes a child for each line, and ends with them.
struct Parent {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Parent {
    fn new() -> Self {
        let script = "while read line; do sleep 600 & all=\"$all $!\"; echo $!; done; kill $all";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, input, output }
    }

    fn main(&self) -> LiveThread {
        main_of(self.process.id().cast_signed())
    }

    /// The main thread of a new child.
    fn child(&mut self) -> LiveThread {
        writeln!(self.input.as_mut().unwrap()).unwrap();
        let mut printed = String::new();
        self.output.read_line(&mut printed).unwrap();
        main_of(printed.trim().parse().unwrap())
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        drop(self.input.take());
        self.process.wait().unwrap();
    }
}

#[test]
fn a_child_made_while_cores_are_given_back_gets_them_and_is_saved_as_given_them() {
    let (place, roots) = (tempfile::tempdir().unwrap(), Roots::default());
    let mut ledger = ledger_in(&place);
    let mut parent = Parent::new();
    let main = parent.main();
    let Cores { all, first, .. } = Cores::of_thread(main.tid);
    if all == first {
        return lull_testing::skip("one core has no other");
    }
    let mut knob = Knob::default();
    let mut means = Means { save: &mut ledger, is_privileged: true, roots: &roots };
    knob.set(&first, &mut Listed(vec![main]), &mut means).unwrap();
    let [in_time, late] = [parent.child(), parent.child()];
    knob.give_back(&all, &mut Listed(vec![main, in_time]), &mut means).unwrap();
    let cores = |thread: LiveThread| sched::affinity_of(thread.tid).unwrap();
    assert_eq!([main, in_time, late].map(cores), [all.clone(), all.clone(), first.clone()]);
    let mut threads = vec![main, in_time, late];
    let mut look = |threads: &[LiveThread]| {
        assert!(knob.watch(threads, &mut means).unwrap().is_none(), "no foreign change");
    };
    look(&threads);
    assert_eq!(cores(late), all, "it was made before, and listed later");
    look(&threads);
    let pinned = parent.child();
    sched::set_affinity(pinned.tid, &first).unwrap();
    threads.push(pinned);
    look(&threads);
    assert_eq!(cores(pinned), first, "its owner has set it");
    // A thread that is in the ledger as given all cores follows its cpuset after the run.
    let lines = std::fs::read_to_string(ledger.path()).unwrap();
    let value = serde_json::to_string(&FieldValue::Cores(all)).unwrap();
    for child in [in_time, late] {
        let thread = format!("[{},{}]", child.tid, child.start_ticks);
        let is_its = |line: &&str| line.contains(&thread) && line.contains(&value);
        assert!(lines.lines().any(|line| is_its(&line)), "{value} of {thread}: {lines}");
    }
}

#[test]
fn another_programs_change_keeps_no_late_child_from_the_cores_of_its_owner() {
    let (place, roots) = (tempfile::tempdir().unwrap(), Roots::default());
    let mut ledger = ledger_in(&place);
    let mut parent = Parent::new();
    let main = parent.main();
    let Cores { all, first, last } = Cores::of_thread(main.tid);
    if first == last {
        return lull_testing::skip("one core has no other");
    }
    let mut knob = Knob::default();
    let mut means = Means { save: &mut ledger, is_privileged: true, roots: &roots };
    knob.set(&first, &mut Listed(vec![main]), &mut means).unwrap();
    let late = [parent.child(), parent.child()];
    knob.give_back(&all, &mut Listed(vec![main]), &mut means).unwrap();
    sched::set_affinity(main.tid, &last).unwrap();
    let change = knob.watch(&[main, late[0]], &mut means).unwrap();
    assert_eq!(change.unwrap().threads, [main]);
    let again = knob.watch(&[main, late[0], late[1]], &mut means).unwrap();
    assert!(again.is_none(), "the change was reported");
    let cores = [main, late[0], late[1]].map(|it| sched::affinity_of(it.tid).unwrap());
    assert_eq!(cores, [last, all.clone(), all]);
}

/// A process is seen, pins itself, and is then brought under a setting in some way.
fn a_process_that_pins_itself_gets_its_own_cores_back(
    bring_under: impl Fn(&mut Knob, &CoreSet, &mut Listed, &mut Means<'_, Ledger>),
) {
    let (place, roots) = (tempfile::tempdir().unwrap(), Roots::default());
    let mut ledger = ledger_in(&place);
    let victim = Victim::new();
    let pid = victim.thread().pid;
    let mut threads = Listed(threads_of(&roots, pid).unwrap());
    let Cores { first, last, .. } = Cores::of_thread(pid);
    // As a new process is when it is first seen; `set` does not have it yet.
    ledger.record_threads(&threads.0).unwrap();
    sched::set_affinity(pid, &last).unwrap();
    let mut knob = Knob::default();
    let mut means = Means { save: &mut ledger, is_privileged: true, roots: &roots };
    bring_under(&mut knob, &first, &mut threads, &mut means);
    let steered = sched::affinity_of(pid).unwrap();
    let restoration = ledger.restore();
    let after = sched::affinity_of(pid).unwrap();
    assert!(restoration.failed.is_empty(), "{restoration}");
    assert_eq!((steered, after), (first, last));
}

#[test]
fn a_process_that_pinned_itself_before_its_app_was_set_gets_its_own_cores_back() {
    a_process_that_pins_itself_gets_its_own_cores_back(|knob, first, threads, means| {
        knob.set(first, threads, means).unwrap();
    });
}

#[test]
fn a_process_that_pins_itself_between_two_settings_gets_its_own_cores_back() {
    a_process_that_pins_itself_gets_its_own_cores_back(|knob, first, threads, means| {
        let pid = threads.0[0].tid;
        let last = sched::affinity_of(pid).unwrap();
        let me = std::process::id().cast_signed();
        sched::set_affinity(pid, &sched::affinity_of(me).unwrap()).unwrap();
        knob.set(first, threads, means).unwrap();
        // As if it had done so before the first setting was read back.
        sched::set_affinity(pid, &last).unwrap();
        knob.set = values(&threads.0).collect();
        knob.set(first, threads, means).unwrap();
    });
}

#[test]
fn a_process_that_pinned_itself_before_it_was_brought_under_gets_its_own_cores_back() {
    a_process_that_pins_itself_gets_its_own_cores_back(|knob, first, threads, means| {
        knob.goal = Some(Goal { wanted: first.clone(), is_owners: false });
        let foreign = knob.watch(threads.list(), means).unwrap();
        assert!(foreign.is_none(), "it is new");
    });
}

/// Makes a thread's `stat` in a tree a directory, so that a read of it fails, and not because there
/// is no such file.
fn unreadable(tree: &Tree, thread: LiveThread) -> PathBuf {
    let stat = stat_in(tree, thread);
    std::fs::create_dir_all(&stat).unwrap();
    stat
}

fn stat_in(tree: &Tree, LiveThread { pid, tid, .. }: LiveThread) -> PathBuf {
    tree.path(&format!("proc/{pid}/task/{tid}/stat"))
}

/// Makes a thread's `stat` in a tree a pipe. Once it is read, what the thread has there cannot be
/// read from then on, as what others have there; the reader gets this text.
fn readable_once(
    tree: &Tree,
    thread: LiveThread,
    others: &[LiveThread],
    text: String,
) -> JoinHandle<()> {
    let stat = unreadable(tree, thread);
    std::fs::remove_dir(&stat).unwrap();
    mkfifoat(CWD, &stat, Mode::RUSR | Mode::WUSR).unwrap();
    let replaced = [thread].iter().chain(others).map(|one| stat_in(tree, *one)).collect::<Vec<_>>();
    std::thread::spawn(move || {
        let mut pipe = OpenOptions::new().write(true).open(&stat).unwrap();
        for path in replaced {
            std::fs::remove_file(&path).unwrap();
            std::fs::create_dir(&path).unwrap();
        }
        pipe.write_all(text.as_bytes()).unwrap();
    })
}

fn text_of_stat(LiveThread { pid, tid, .. }: LiveThread) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap()
}

#[test]
fn a_thread_that_cannot_be_looked_up_is_an_error_and_others_get_their_values_back() {
    let (place, tree) = (tempfile::tempdir().unwrap(), Tree::new());
    let (victims, roots) = ([Victim::new(), Victim::new()], tree.roots());
    let [set, unknown] = victims.each_ref().map(Victim::thread);
    let Cores { all, first, .. } = Cores::of_thread(set.tid);
    if all == first {
        return lull_testing::skip("one core has no other");
    }
    let stat = stat_in(&tree, set);
    std::fs::create_dir_all(stat.parent().unwrap()).unwrap();
    std::fs::write(&stat, text_of_stat(set)).unwrap();
    let reader = readable_once(&tree, unknown, &[set], String::new());
    let mut ledger = ledger_in(&place);
    let mut means = Means { save: &mut ledger, is_privileged: true, roots: &roots };
    let outcome = Knob::default().set(&first, &mut Listed(vec![set, unknown]), &mut means);
    reader.join().unwrap();
    let text = outcome.unwrap_err().to_string();
    let what = format!("cannot set cores of thread {}, which cannot be looked up", unknown.tid);
    assert!(text.starts_with(&what), "{text}");
    for thread in [set, unknown] {
        assert_eq!(sched::affinity_of(thread.tid).unwrap(), all);
    }
}

#[test]
fn a_thread_that_cannot_be_looked_up_after_a_write_has_its_former_value_and_that_is_an_error() {
    let (place, tree) = (tempfile::tempdir().unwrap(), Tree::new());
    let (victim, roots) = (Victim::new(), tree.roots());
    let thread = victim.thread();
    let Cores { all, first, .. } = Cores::of_thread(thread.tid);
    if all == first {
        return lull_testing::skip("one core has no other");
    }
    let reader = readable_once(&tree, thread, &[], text_of_stat(thread));
    let mut ledger = ledger_in(&place);
    let mut means = Means { save: &mut ledger, is_privileged: true, roots: &roots };
    let outcome = Knob::default().set(&first, &mut Listed(vec![thread]), &mut means);
    reader.join().unwrap();
    assert!(matches!(outcome, Err(KnobError::NoLookUp { .. })), "{outcome:?}");
    assert_eq!(sched::affinity_of(thread.tid).unwrap(), all);
}

#[test]
fn a_new_thread_that_cannot_be_looked_up_is_set_by_the_next_look() {
    let (place, tree) = (tempfile::tempdir().unwrap(), Tree::new());
    let (victim, roots) = (Victim::new(), tree.roots());
    let thread = victim.thread();
    let Cores { all, first, .. } = Cores::of_thread(thread.tid);
    if all == first {
        return lull_testing::skip("one core has no other");
    }
    let stat = unreadable(&tree, thread);
    let mut ledger = ledger_in(&place);
    let mut means = Means { save: &mut ledger, is_privileged: true, roots: &roots };
    let goal = Some(Goal { wanted: first.clone(), is_owners: false });
    let mut knob = Knob { goal, ..Knob::default() };
    let outcome = knob.watch(&[thread], &mut means);
    assert!(matches!(outcome, Err(KnobError::NoLookUp { .. })), "{outcome:?}");
    std::fs::remove_dir(&stat).unwrap();
    std::fs::write(&stat, text_of_stat(thread)).unwrap();
    assert!(knob.watch(&[thread], &mut means).unwrap().is_none());
    assert_eq!(sched::affinity_of(thread.tid).unwrap(), first);
}
