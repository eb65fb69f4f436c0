//! Ledgers of agents that ended in every way that leaves a file behind.

mod fields;
mod limits;
mod started;

use super::entry::{Entry, EntryContent};
use super::held::Held;
use super::ledger_file::{Clock, LedgerFile};
use super::*;
use crate::apps::{ProcessId, threads_of};
use crate::drivers::cgroup::CgroupFile;
use crate::sys::sched;
use crate::testing::Tree;
use crate::{LiveThread, Roots};
use lull_control::CoreSet;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

/// The kernel's name for this boot, below the root directory.
const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// A process to change, and a state directory.
struct Scene {
    place: tempfile::TempDir,
    victim: Child,
    roots: Roots,
}

impl Scene {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let victim = Command::new("sleep").arg("600").spawn().unwrap();
        Self { place, victim, roots: Roots::default() }
    }

    fn dir(&self) -> StateDir {
        StateDir::locate(Some(&self.place.path().join("lull"))).unwrap()
    }

    fn file(&self) -> PathBuf {
        self.place.path().join("lull/ledger")
    }

    /// Waits until no process has the directory. A child that another test starts holds
    /// a dropped lock's descriptor until it executes its program.
    fn open(&self) -> Opened {
        for _ in 0..1000 {
            match Ledger::open(self.dir(), &self.roots) {
                Err(LedgerError::Busy { .. }) => std::thread::sleep(Duration::from_millis(5)),
                opened => return opened.unwrap(),
            }
        }
        panic!("{} stays busy", self.file().display());
    }

    fn thread(&self) -> LiveThread {
        let pid = self.victim.id().cast_signed();
        let threads = threads_of(&self.roots, pid).unwrap();
        *threads.first().unwrap()
    }

    fn original(&self) -> Original {
        Original::of_thread(self.thread()).unwrap()
    }

    /// Another affinity and class than the victim had.
    fn write(&self) -> ThreadWrite {
        let thread = self.thread();
        let one: CoreSet = sched::affinity_of(thread.tid).unwrap().iter().take(1).collect();
        let class = FieldValue::Class { policy: libc::SCHED_BATCH as u32, rt_priority: 0 };
        ThreadWrite { thread, values: vec![FieldValue::Cores(one), class] }
    }

    /// Gives the victim these values.
    fn change(&self) {
        let ThreadWrite { thread, values } = self.write();
        values.iter().for_each(|value| value.write(thread.tid).unwrap());
    }

    /// Leaves the ledger of an agent that recorded, changed, and died.
    fn die_after_change(&self) -> Original {
        self.change_under(self.open().ledger)
    }

    /// Records a change in this ledger, makes it, and lets the agent die.
    fn change_under(&self, mut ledger: Ledger) -> Original {
        let before = self.original();
        ledger.record_writes(&[self.write()]).unwrap();
        self.change();
        assert_ne!(self.original(), before);
        before
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.victim.kill().unwrap();
        self.victim.wait().unwrap();
    }
}

fn rewrite(path: &Path, change: impl Fn(String) -> String) {
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, change(text)).unwrap();
}

#[test]
fn the_next_agent_puts_back_what_a_dead_one_left() {
    let scene = Scene::new();
    let before = scene.die_after_change();
    let opened = scene.open();
    assert_eq!(scene.original(), before);
    let recovery = opened.recovery.unwrap();
    let RecoveryAction::Now(done) = &recovery.how else { panic!("{recovery}") };
    assert!(done.done == 1 && done.failed.is_empty(), "{recovery}");
    assert!(recovery.to_string().contains("1 values restored"), "{recovery}");
}

#[test]
fn restoring_by_hand_does_it_once() {
    let scene = Scene::new();
    let before = scene.die_after_change();
    let first = restore_stale(&scene.dir(), &scene.roots).unwrap();
    assert!(matches!(first.unwrap().how, RecoveryAction::Now(_)));
    assert_eq!(scene.original(), before);
    scene.change();
    let second = restore_stale(&scene.dir(), &scene.roots).unwrap();
    assert_eq!(second, None, "it was reported before");
    assert_ne!(scene.original(), before, "a closed ledger was restored again");
    assert_eq!(scene.open().recovery, None);
}

#[test]
fn what_a_guard_restored_is_reported_once_and_what_it_could_not_is_every_time() {
    let scene = Scene::new();
    let clock = Clock::read(&scene.roots).unwrap();
    let reported = |outcome: &Restoration| {
        let entries = [EntryContent::Restored(outcome.clone()), EntryContent::Closed]
            .map(|it| clock.entry(it));
        LedgerFile::create(&scene.dir(), &entries).unwrap();
        let report = || restore_stale(&scene.dir(), &scene.roots).unwrap().map(|it| it.how);
        [report(), report()]
    };
    let complete = Restoration { done: 3, ..Restoration::default() };
    let failed = vec![(Key::Threads, "read-only".to_owned())];
    let incomplete = Restoration { done: 3, failed, ..Restoration::default() };
    assert_eq!(reported(&complete), [Some(RecoveryAction::ByGuard(complete)), None]);
    let left = Restoration { failed: incomplete.failed.clone(), ..Restoration::default() };
    assert_eq!(
        reported(&incomplete),
        [incomplete, left].map(|it| Some(RecoveryAction::ByGuard(it)))
    );
}

#[test]
fn a_clean_close_leaves_nothing_to_do() {
    let scene = Scene::new();
    let before = scene.original();
    let mut ledger = scene.open().ledger;
    ledger.record_writes(&[scene.write()]).unwrap();
    scene.change();
    let restoration = ledger.restore();
    assert_eq!((restoration.done, restoration.failed.len()), (1, 0));
    assert_eq!(scene.original(), before);
    ledger.close().unwrap();
    assert_eq!(scene.open().recovery, None);
}

#[test]
fn a_second_agent_is_refused_with_the_process_that_runs() {
    let scene = Scene::new();
    let _first = scene.open();
    let refused = Ledger::open(scene.dir(), &scene.roots).unwrap_err();
    let me = std::process::id();
    assert!(matches!(refused, LedgerError::Busy { pid, .. } if pid == me.cast_signed()));
    assert!(refused.to_string().contains(&format!("process {me}")), "{refused}");
    assert!(matches!(restore_stale(&scene.dir(), &scene.roots), Err(LedgerError::Busy { .. })));
}

/// The kernel releases the lock of a killed agent before the agent counts as ended.
#[test]
fn a_restore_waits_for_the_end_of_an_agent_that_lost_its_lock() {
    let scene = Scene::new();
    let before = scene.die_after_change();
    let mut agent = Command::new("sleep").arg("600").spawn().unwrap();
    let id = ProcessId::lookup(&scene.roots, agent.id().cast_signed()).unwrap();
    let header =
        EntryContent::Header { format: entry::FORMAT, agent: id, version: "0.1.0".to_owned() };
    let (_, lines) = LedgerFile::existing(&scene.dir()).unwrap().unwrap();
    let clock = Clock::read(&scene.roots).unwrap();
    let rest = lines
        .entries
        .into_iter()
        .filter(|entry| !matches!(entry.what, EntryContent::Header { .. }));
    let entries: Vec<Entry> = [clock.entry(header)].into_iter().chain(rest).collect();
    LedgerFile::create(&scene.dir(), &entries).unwrap();

    let (dir, roots) = (scene.dir(), scene.roots.clone());
    let restoring = std::thread::spawn(move || restore_stale(&dir, &roots).map(|_| ()));
    std::thread::sleep(Duration::from_millis(200));
    assert!(!restoring.is_finished(), "an agent that runs was not waited for");
    agent.kill().unwrap();
    agent.wait().unwrap();
    restoring.join().unwrap().unwrap();
    assert_eq!(scene.original(), before);
}

#[test]
fn a_torn_last_line_costs_only_itself() {
    let scene = Scene::new();
    let before = scene.die_after_change();
    rewrite(&scene.file(), |text| text + "0badc0de {\"boot\":\"torn in the mid");
    let recovery = scene.open().recovery.unwrap();
    assert_eq!(recovery.damaged, Vec::<String>::new());
    assert_eq!(scene.original(), before);
}

#[test]
fn a_damaged_line_is_reported_and_the_rest_is_restored() {
    let scene = Scene::new();
    let before = scene.die_after_change();
    rewrite(&scene.file(), |text| text.replacen("header", "hEader", 1));
    let recovery = scene.open().recovery.unwrap();
    assert_eq!(recovery.agent, None);
    assert!(recovery.to_string().contains("line 1: its checksum is wrong"), "{recovery}");
    assert_eq!(scene.original(), before);
}

#[test]
fn a_number_that_is_reused_is_left_alone() {
    let scene = Scene::new();
    let mut ledger = scene.open().ledger;
    let earlier = LiveThread { start_ticks: scene.thread().start_ticks - 1, ..scene.thread() };
    ledger.record_writes(&[ThreadWrite { thread: earlier, ..scene.write() }]).unwrap();
    scene.change();
    let changed = scene.original();
    let restoration = ledger.restore();
    assert_eq!((restoration.done, restoration.gone), (0, 1));
    assert_eq!(scene.original(), changed);
}

#[test]
fn values_of_an_earlier_boot_are_dropped_and_reported() {
    let scene = Scene::new();
    let agent = ProcessId { pid: 4711, start_ticks: 9 };
    let header = EntryContent::Header { format: entry::FORMAT, agent, version: "0.1.0".to_owned() };
    let earlier = |what| Entry { boot: "another boot".to_owned(), at_ticks: 10, what };
    let old = earlier(EntryContent::Old(scene.original()));
    LedgerFile::create(&scene.dir(), &[earlier(header), old]).unwrap();
    scene.change();
    let changed = scene.original();
    let recovery = scene.open().recovery.unwrap();
    assert_eq!(recovery.how, RecoveryAction::OtherBoot { values: 1 });
    assert!(recovery.to_string().contains("agent 4711"), "{recovery}");
    assert_eq!(scene.original(), changed);
}

#[test]
fn a_ledger_of_a_later_format_is_refused() {
    let scene = Scene::new();
    let agent = ProcessId { pid: 4711, start_ticks: 9 };
    let header = EntryContent::Header { format: 99, agent, version: "9.0.0".to_owned() };
    let clock = Clock::read(&scene.roots).unwrap();
    LedgerFile::create(&scene.dir(), &[clock.entry(header)]).unwrap();
    let refused = Ledger::open(scene.dir(), &scene.roots).unwrap_err();
    assert!(refused.to_string().contains("format 99"), "{refused}");
}

#[test]
fn a_value_is_saved_once_as_it_was_first() {
    let scene = Scene::new();
    let before = scene.original();
    let mut ledger = scene.open().ledger;
    ledger.record_writes(&[scene.write()]).unwrap();
    scene.change();
    let length = std::fs::metadata(scene.file()).unwrap().len();
    ledger.record_writes(&[scene.write()]).unwrap();
    ledger.record(&[scene.original()]).unwrap();
    assert_eq!(std::fs::metadata(scene.file()).unwrap().len(), length);
    let _ = ledger.restore();
    assert_eq!(scene.original(), before);
}

/// A file of the machine with this text, and its former text in a ledger.
fn machine_file(scene: &Scene, ledger: &mut Ledger, texts: &[&str]) -> PathBuf {
    let path = scene.place.path().join("scaling_governor");
    std::fs::write(&path, "schedutil\n").unwrap();
    for text in texts {
        let found = std::fs::read_to_string(&path).unwrap().trim().to_owned();
        ledger.record(&[Original::of_text(path.clone(), found, text)]).unwrap();
        std::fs::write(&path, format!("{text}\n")).unwrap();
    }
    path
}

fn text_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap().trim().to_owned()
}

#[test]
fn a_file_that_an_administrator_sets_after_the_agents_death_is_not_restored() {
    let scene = Scene::new();
    let mut ledger = scene.open().ledger;
    let path = machine_file(&scene, &mut ledger, &["performance"]);
    drop(ledger);
    std::fs::write(&path, "powersave\n").unwrap();
    let recovery = restore_stale(&scene.dir(), &scene.roots).unwrap().unwrap();
    assert_eq!(text_of(&path), "powersave");
    let text = recovery.to_string();
    assert!(
        text.contains("left as another program set it") && text.contains("powersave"),
        "{text}"
    );
}

#[test]
fn what_could_not_be_restored_is_tried_again_by_hand() {
    let scene = Scene::new();
    let mut ledger = scene.open().ledger;
    let path = machine_file(&scene, &mut ledger, &["performance"]);
    drop(ledger);
    std::fs::remove_file(&path).unwrap();
    let restore = || restore_stale(&scene.dir(), &scene.roots).unwrap();
    for _ in 0..2 {
        assert!(restore().unwrap().has_failed());
    }
    std::fs::write(&path, "performance\n").unwrap();
    let recovery = restore().unwrap();
    assert!(!recovery.has_failed(), "{recovery}");
    assert_eq!(text_of(&path), "schedutil");
    // Nothing is tried again that was restored.
    std::fs::write(&path, "performance\n").unwrap();
    assert_eq!(restore(), None);
    assert_eq!(text_of(&path), "performance");
}

#[test]
fn a_file_that_an_administrator_sets_during_a_hold_is_not_restored_at_its_end() {
    let scene = Scene::new();
    let mut ledger = scene.open().ledger;
    let path = machine_file(&scene, &mut ledger, &["performance"]);
    std::fs::write(&path, "powersave\n").unwrap();
    let restoration = ledger.restore();
    assert_eq!((restoration.left_values.len(), restoration.done), (1, 0), "{restoration}");
    assert_eq!(text_of(&path), "powersave");
}

#[test]
fn each_write_of_a_file_is_saved_with_the_first_text_and_the_one_before_may_be_in_force() {
    let scene = Scene::new();
    let mut ledger = scene.open().ledger;
    let path = machine_file(&scene, &mut ledger, &["performance", "ondemand", "userspace"]);
    let lines = std::fs::read_to_string(scene.file()).unwrap();
    assert_eq!(lines.matches("\"text\":\"schedutil\"").count(), 3, "{lines}");
    for (text, is_restored) in [("userspace", true), ("ondemand", true), ("performance", false)] {
        std::fs::write(&path, text).unwrap();
        let _ = ledger.restore();
        assert_eq!(text_of(&path) == "schedutil", is_restored, "{text}");
    }
    drop(ledger);
    std::fs::write(&path, "userspace").unwrap();
    let _ = scene.open();
    assert_eq!(text_of(&path), "schedutil");
}

/// Former versions saved no texts of Lull's.
#[test]
fn a_file_in_a_ledger_without_lulls_texts_is_restored_whatever_it_has() {
    let scene = Scene::new();
    let ledger = scene.open().ledger;
    let path = scene.place.path().join("knob");
    std::fs::write(&path, "another\n").unwrap();
    let line = serde_json::json!({ "text": { "path": path, "text": "first", "safe": null } });
    let original: Original = serde_json::from_value(line).unwrap();
    assert_eq!(original.restore(&scene.roots), Restored::Done);
    assert_eq!(text_of(&path), "first");
    drop(ledger);
}

#[test]
fn a_change_made_by_others_wins() {
    let scene = Scene::new();
    let mut ledger = scene.open().ledger;
    ledger.record_writes(&[scene.write()]).unwrap();
    scene.change();
    let theirs = scene.original();
    ledger.release(&[theirs.key()]).unwrap();
    ledger.record_threads(&[scene.thread()]).unwrap();
    drop(ledger);
    let _ = scene.open();
    assert_eq!(scene.original(), theirs);
}

#[test]
fn what_the_owner_sets_after_a_dismissal_stays_and_is_saved_before_the_next_write() {
    let scene = Scene::new();
    let before = scene.original();
    let process = ProcessId::lookup(&scene.roots, scene.thread().pid).unwrap();
    let processes = BTreeSet::from([process]);
    let mut ledger = scene.open().ledger;
    ledger.record_writes(&[scene.write()]).unwrap();
    scene.change();
    assert!(ledger.restore_processes(&processes).failed.is_empty());
    assert_eq!(scene.original(), before);
    ledger.dismiss(&processes).unwrap();
    // The owner sets what Lull had written.
    scene.change();
    let owners = scene.original();
    assert_eq!(ledger.restore().done, 0);
    drop(ledger);
    let mut ledger = scene.open().ledger;
    assert_eq!(scene.original(), owners);

    ledger.record_writes(&[scene.write()]).unwrap();
    ledger.dismiss(&processes).unwrap();
    let usual = FieldValue::Class { policy: libc::SCHED_OTHER.cast_unsigned(), rt_priority: 0 };
    let values = vec![usual.clone()];
    ledger.record_writes(&[ThreadWrite { thread: scene.thread(), values }]).unwrap();
    usual.write(scene.thread().tid).unwrap();
    assert_ne!(scene.original(), owners);
    drop(ledger);
    let _ = scene.open();
    assert_eq!(scene.original(), owners);
}

#[test]
fn a_child_made_under_lulls_settings_gets_what_its_parent_had() {
    let scene = Scene::new();
    let script = "read line; sleep 600 & echo $!; read line; kill $!";
    let mut shell = Command::new("sh")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let pid = shell.id().cast_signed();
    let main = threads_of(&scene.roots, pid).unwrap()[0];
    let before = Original::of_thread(main).unwrap();
    let mut ledger = scene.open().ledger;
    let one: CoreSet = sched::affinity_of(pid).unwrap().iter().take(1).collect();
    let values = vec![FieldValue::Cores(one.clone())];
    ledger.record_writes(&[ThreadWrite { thread: main, values }]).unwrap();
    sched::set_affinity(pid, &one).unwrap();

    let mut input = shell.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, b"\n").unwrap();
    let mut printed = String::new();
    let mut output = std::io::BufReader::new(shell.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut printed).unwrap();
    let child: i32 = printed.trim().parse().unwrap();
    assert_eq!(sched::affinity_of(child).unwrap(), one);
    drop(ledger);
    let _ = scene.open();
    for tid in [pid, child] {
        let Original::Thread { affinity, .. } = &before else { unreachable!() };
        assert_eq!(&sched::affinity_of(tid).unwrap(), affinity);
    }
    drop(input);
    shell.wait().unwrap();
}

#[test]
fn a_shorter_ledger_keeps_what_cannot_be_read() {
    let (scene, tree) = (Scene::new(), Tree::new());
    // Each read of a file below these fails, and not because there is no such file.
    ["proc", "sys"].iter().for_each(|name| tree.write(name, ""));
    let cgroup = CgroupFile {
        path: tree.path("sys/web/cpu.weight"),
        cgroup: 1,
        before: "100".to_owned(),
        ours: "50".to_owned(),
    };
    let originals = [
        scene.original(),
        Original::Cgroup(cgroup),
        Original::Group { path: tree.path("sys/group") },
        Original::Stopped { pid: 7, start_time_ticks: 1 },
        Original::Started { pid: 8, start_time_ticks: 1 },
    ];
    let written = EntryContent::Write { threads: vec![(9, 1)], values: vec![FieldValue::Nice(5)] };
    let clock = Clock::read(&scene.roots).unwrap();
    let mut held = Held::default();
    for what in originals.into_iter().map(EntryContent::Old).chain([written]) {
        // A main thread that was saved a moment ago is kept in any case.
        held.take(&Entry { at_ticks: 1, ..clock.entry(what) });
    }
    // One more line for the values written to threads that are gone.
    assert_eq!(held.alive(&tree.roots(), &clock).len(), 7);
}

#[test]
fn a_shorter_ledger_keeps_what_was_written_to_threads_that_are_gone_and_when() {
    let clock = Clock::read(&Roots::default()).unwrap();
    let values = vec![FieldValue::Nice(5)];
    let what = EntryContent::Write { threads: vec![(100_000_000, 1)], values: values.clone() };
    let mut held = Held::default();
    held.take(&Entry { at_ticks: 7, ..clock.entry(what) });
    for _ in 0..2 {
        let lines = held.alive(&Roots::default(), &clock);
        assert_eq!(lines.len(), 1, "{lines:?}");
        held = Held::default();
        lines.iter().for_each(|line| held.take(line));
        assert_eq!(held.first_write_ticks(), Some(7));
        assert!(held.all_written().iter().eq(&values));
    }
}

#[test]
fn threads_that_cannot_be_listed_are_not_forgotten() {
    let (scene, tree) = (Scene::new(), Tree::new());
    for file in [format!("proc/{}/stat", std::process::id()), BOOT_ID.to_owned()] {
        tree.write(&file, &std::fs::read_to_string(format!("/{file}")).unwrap());
    }
    tree.write("proc/7", "");
    let mut ledger = Ledger::open(scene.dir(), &tree.roots()).unwrap().ledger;
    let dismissed = ledger.dismiss(&BTreeSet::from([ProcessId { pid: 7, start_ticks: 1 }]));
    assert!(matches!(dismissed, Err(LedgerError::Read { .. })), "{dismissed:?}");
}

#[test]
fn a_ledger_of_many_dead_processes_stays_short() {
    let scene = Scene::new();
    let mut ledger = scene.open().ledger;
    let before = scene.original();
    ledger.record_writes(&[scene.write()]).unwrap();
    scene.change();
    let dead = |pid| Original::Stopped { pid, start_time_ticks: 1 };
    for hundred in 0..100 {
        let many: Vec<Original> =
            (0..100).map(|one| dead(100_000_000 + hundred * 100 + one)).collect();
        ledger.record(&many).unwrap();
    }
    assert!(std::fs::metadata(scene.file()).unwrap().len() < 1 << 20);
    drop(ledger);
    let recovery = scene.open().recovery.unwrap();
    assert!(matches!(&recovery.how, RecoveryAction::Now(done) if done.done == 1), "{recovery}");
    assert_eq!(scene.original(), before);
}

/// A file system of two pages as a state directory, which hold the lock and a short ledger.
struct Disk(PathBuf);

impl Disk {
    /// `None` where it cannot be mounted: only root can.
    fn mount(scene: &Scene) -> Option<Self> {
        let disk = scene.place.path().join("lull");
        std::fs::create_dir(&disk).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=8k,mode=700", "lull-test"];
        run_mount(&options, &disk).then_some(Self(disk))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A child that another test starts has files of it open until it executes its program.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Runs `mount`; returns whether it has succeeded.
fn run_mount(options: &[&str], at: &Path) -> bool {
    let mut mount = Command::new("mount");
    mount.args(options).arg(at).stderr(std::process::Stdio::null());
    mount.status().is_ok_and(|status| status.success())
}

#[test]
fn a_read_only_disk_keeps_nothing_from_being_restored() {
    let scene = Scene::new();
    let Some(disk) = Disk::mount(&scene) else {
        return lull_testing::skip("a tmpfs cannot be mounted here");
    };
    let mut ledger = scene.open().ledger;
    let path = machine_file(&scene, &mut ledger, &["performance"]);
    let before = scene.change_under(ledger);
    std::fs::remove_file(&path).unwrap();
    // A child that another test starts has the ledger open until it executes its program.
    assert!((0..1000).any(|_| run_mount(&["-o", "remount,ro"], &disk.0)));
    let outcome = restore_stale(&scene.dir(), &scene.roots);
    assert_eq!(scene.original(), before);
    let text = outcome.unwrap_err().to_string();
    let failed = format!("{} is not as before", path.display());
    for part in ["1 values restored", &failed, "cannot be closed: Read-only file system"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_full_disk_saves_all_of_a_batch_or_nothing() {
    let scene = Scene::new();
    let Some(disk) = Disk::mount(&scene) else {
        return lull_testing::skip("a tmpfs cannot be mounted here");
    };
    let before = scene.die_after_change();
    let found = fill_and_recover(&scene);
    // As a child that another test starts has it open.
    let _open = std::fs::File::open(scene.file()).unwrap();
    drop(disk);
    assert!(found.contains("No space left") && found.contains("no knob was changed"), "{found}");
    assert_eq!(scene.original(), before);
}

/// Fills the disk with the ledger; returns the error of the failed write.
fn fill_and_recover(scene: &Scene) -> String {
    let (mut file, lines) = LedgerFile::existing(&scene.dir()).unwrap().unwrap();
    let clock = Clock::read(&scene.roots).unwrap();
    let many = |pid| clock.entry(EntryContent::Old(Original::Stopped { pid, start_time_ticks: 1 }));
    let batch: Vec<Entry> = (1..=10).map(|one| many(100_000_000 + one)).collect();
    let mut whole = lines.entries.len();
    let error = loop {
        match file.append(&batch) {
            Ok(()) => whole += batch.len(),
            Err(error) => break error.to_string(),
        }
    };
    let (_, lines) = LedgerFile::existing(&scene.dir()).unwrap().unwrap();
    assert!(!lines.torn && lines.damaged.is_empty());
    assert_eq!(lines.entries.len(), whole);
    let _ = restore_stale(&scene.dir(), &scene.roots).unwrap().unwrap();
    error
}

/// Changes of the roster that the ledger sees, where the environment does not say: enough for it
/// to be compacted.
const CHANGES: usize = 2_000;

#[test]
#[ignore = "slow: thousands of lines, each synchronised to disk"]
fn a_ledger_does_not_grow_with_apps_that_come_and_go() {
    let changes = std::env::var("LULL_ROSTER_CHANGES")
        .map_or(CHANGES, |text| text.parse().expect("LULL_ROSTER_CHANGES is a number"));
    let scene = Scene::new();
    let mut ledger = scene.open().ledger;
    let process = ProcessId::lookup(&scene.roots, scene.thread().pid).unwrap();
    let written = ThreadWrite { thread: scene.thread(), values: vec![FieldValue::Nice(5)] };
    let mut longest = 0;
    for _ in 0..changes {
        ledger.record_writes(std::slice::from_ref(&written)).unwrap();
        ledger.dismiss(&BTreeSet::from([process])).unwrap();
        longest = longest.max(std::fs::metadata(scene.file()).unwrap().len());
    }
    let lines = 4096;
    assert!(longest <= (1 << 20) + lines, "{longest} bytes after {changes} changes");
    assert!(ledger.owners(scene.thread()).is_none(), "nothing is held of the app");
}
