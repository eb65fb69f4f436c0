//! Threads and processes that come and go, on a tree and on the real kernel.

use super::*;
use crate::testing::Tree;
use std::process::{Child, Command, Stdio};

/// A tick of `stat` is 10 ms on every Linux that Rust runs on.
const TICK: Nanos = Nanos::from_millis(10);

fn thread(pid: i32, tid: i32, start_ticks: u64) -> LiveThread {
    LiveThread { pid, tid, start_ticks }
}

fn set_process(tree: &Tree, pid: i32, start: u64, own: u64, reaped: u64) {
    let text = format!("{pid} (a) b) S 1 1 1 0 -1 0 0 0 0 0 {own} 0 {reaped} 0 20 0 1 0 {start} 0");
    tree.write(&format!("proc/{pid}/stat"), &text);
}

fn set_thread(tree: &Tree, pid: i32, tid: i32, wait_ns: u64, switches: u64) {
    tree.write(&format!("proc/{pid}/task/{tid}/schedstat"), &format!("7 {wait_ns} {switches}\n"));
}

fn used(cpu: Nanos, wait_ns: u64, switches: u64) -> AppUse {
    AppUse { cpu: Ok(cpu), wait: Ok(Nanos(wait_ns)), switches: Ok(switches) }
}

fn second(seconds: u64) -> Nanos {
    Nanos::from_secs(seconds)
}

#[test]
fn only_what_happens_after_the_first_reading_counts() {
    let tree = Tree::new();
    set_process(&tree, 5, 100, 40, 9);
    set_thread(&tree, 5, 5, 1_000, 10);
    let mut gauge = AppTime::new(&tree.roots());
    let live = [thread(5, 5, 100)];
    assert_eq!(gauge.read(&live, second(10)), used(Nanos::ZERO, 0, 0));
    set_process(&tree, 5, 100, 45, 9);
    set_thread(&tree, 5, 5, 1_500, 13);
    assert_eq!(gauge.read(&live, second(11)), used(TICK * 5, 500, 3));
}

#[test]
fn a_new_thread_counts_from_its_birth_and_one_that_left_is_forgotten() {
    let tree = Tree::new();
    set_process(&tree, 5, 100, 0, 0);
    set_thread(&tree, 5, 5, 0, 1);
    let mut gauge = AppTime::new(&tree.roots());
    gauge.read(&[thread(5, 5, 100)], second(10));
    set_thread(&tree, 5, 6, 70, 7);
    let both = [thread(5, 5, 100), thread(5, 6, 1_050)];
    assert_eq!(gauge.read(&both, second(11)), used(Nanos::ZERO, 70, 7));
    // Listed still, and gone before it is read.
    tree.remove("proc/5/task/6/schedstat");
    assert_eq!(gauge.read(&both, second(12)), used(Nanos::ZERO, 0, 0));
    // The number is taken again.
    set_thread(&tree, 5, 6, 11, 2);
    let again = [thread(5, 5, 100), thread(5, 6, 1_250)];
    assert_eq!(gauge.read(&again, second(13)), used(Nanos::ZERO, 11, 2));
}

#[test]
fn a_process_that_joins_late_does_not_bring_its_past() {
    let tree = Tree::new();
    set_process(&tree, 5, 100, 0, 0);
    set_thread(&tree, 5, 5, 0, 1);
    let mut gauge = AppTime::new(&tree.roots());
    gauge.read(&[thread(5, 5, 100)], second(10));
    set_process(&tree, 8, 300, 5_000, 0);
    set_thread(&tree, 8, 8, 9_000, 90);
    let both = [thread(5, 5, 100), thread(8, 8, 300)];
    assert_eq!(gauge.read(&both, second(11)), used(Nanos::ZERO, 0, 0));
}

#[test]
fn a_child_that_is_reaped_counts_once() {
    let tree = Tree::new();
    let parent = thread(5, 5, 100);
    let child = thread(6, 6, 1_050);
    set_process(&tree, 5, 100, 10, 0);
    set_thread(&tree, 5, 5, 0, 1);
    set_thread(&tree, 6, 6, 0, 1);
    let mut gauge = AppTime::new(&tree.roots());
    gauge.read(&[parent], second(10));
    set_process(&tree, 6, 1_050, 30, 0);
    assert_eq!(gauge.read(&[parent, child], second(11)).cpu, Ok(TICK * 30));
    // It used 4 more, ended and was waited for.
    set_process(&tree, 5, 100, 10, 34);
    assert_eq!(gauge.read(&[parent], second(12)).cpu, Ok(TICK * 4));
    // Another child began and ended between two readings.
    set_process(&tree, 5, 100, 10, 36);
    assert_eq!(gauge.read(&[parent], second(13)).cpu, Ok(TICK * 2));
}

#[test]
fn a_child_that_is_waited_for_one_reading_later_counts_once() {
    let tree = Tree::new();
    let (parent, child) = (thread(5, 5, 100), thread(6, 6, 200));
    set_process(&tree, 5, 100, 0, 0);
    set_process(&tree, 6, 200, 30, 0);
    let mut gauge = AppTime::new(&tree.roots());
    gauge.read(&[parent, child], second(10));
    assert_eq!(gauge.read(&[parent], second(11)).cpu, Ok(Nanos::ZERO));
    set_process(&tree, 5, 100, 0, 33);
    assert_eq!(gauge.read(&[parent], second(12)).cpu, Ok(TICK * 3));
}

#[test]
fn an_unreadable_entry_is_a_reason_and_not_a_zero() {
    let tree = Tree::new();
    set_process(&tree, 5, 100, 0, 0);
    tree.write("proc/5/task/5/schedstat", "nonsense\n");
    let mut gauge = AppTime::new(&tree.roots());
    let seen = gauge.read(&[thread(5, 5, 100)], second(10));
    assert_eq!(seen.cpu, Ok(Nanos::ZERO));
    assert!(seen.wait.unwrap_err().reason.contains("task/5/schedstat"));
    assert!(seen.switches.is_err());
    tree.write("proc/5/stat", "5 (a) S 1 1");
    assert!(gauge.read(&[thread(5, 5, 100)], second(11)).cpu.is_err());
}

fn spawn(script: &str) -> Child {
    Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap()
}

fn main_thread(child: &Child) -> LiveThread {
    let pid = child.id().cast_signed();
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap();
    thread(pid, pid, Stat::parse(&stat).unwrap().start)
}

fn since_boot() -> Nanos {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Nanos(now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned())
}

#[test]
fn a_real_process_is_seen_to_work_and_its_unseen_children_too() {
    // Two loops: one in the shell, one in a child that no listing contains.
    let script = "read _; i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; \
                  sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; echo done; read _";
    let mut child = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let live = [main_thread(&child)];
    let mut gauge = AppTime::new(&Roots::default());
    gauge.read(&live, since_boot());
    let mut input = child.stdin.take().unwrap();
    io::Write::write_all(&mut input, b"\n").unwrap();
    let mut line = String::new();
    let mut output = io::BufReader::new(child.stdout.take().unwrap());
    io::BufRead::read_line(&mut output, &mut line).unwrap();
    let own = process_cpu_time(live[0].pid).unwrap();
    let seen = gauge.read(&live, since_boot());
    drop(input);
    child.wait().unwrap();
    assert!(seen.cpu.clone().unwrap() > own, "the child's time is missing: {seen:?}, own {own}");
    assert!(seen.switches.unwrap() > 0);
}

#[test]
fn a_process_that_is_gone_is_no_error() {
    let mut child = spawn("exit 0");
    let live = [main_thread(&child)];
    child.wait().unwrap();
    let mut gauge = AppTime::new(&Roots::default());
    assert_eq!(gauge.read(&live, since_boot()), used(Nanos::ZERO, 0, 0));
}

#[test]
fn the_probe_recognises_a_kernel_without_statistics() {
    let tree = Tree::new();
    assert!(probe(&tree.roots()).unwrap_err().reason.contains("schedstat cannot be read"));
    tree.write("proc/self/schedstat", "0 0 0\n");
    assert!(probe(&tree.roots()).unwrap_err().reason.contains("CONFIG_SCHED_INFO"));
    tree.write("proc/self/schedstat", "0 0 1\n");
    assert!(probe(&tree.roots()).is_ok());
    assert!(probe(&Roots::default()).is_ok());
}

#[test]
fn a_process_that_rests_is_known_until_it_works_or_ends() {
    let mut child = spawn("read go; while :; do :; done");
    let live = [main_thread(&child)];
    let mut gauge = AppTime::new(&Roots::default());
    gauge.read(&live, since_boot());
    // The shell waits for its input at some time, and its clock does not move.
    while gauge.read(&live, since_boot()).cpu.unwrap() > Nanos::ZERO {}
    assert!(gauge.any_alive());
    io::Write::write_all(&mut child.stdin.take().unwrap(), b"go\n").unwrap();
    let mut worked = Nanos::ZERO;
    while worked < TICK {
        worked += gauge.read(&live, since_boot()).cpu.unwrap();
    }
    child.kill().unwrap();
    // It has ended and is not waited for.
    while gauge.any_alive() {
        gauge.read(&live, since_boot());
    }
    child.wait().unwrap();
}

#[test]
fn a_cpu_time_that_was_read_in_the_epoch_is_not_read_again() {
    let mut child = spawn("while :; do :; done");
    let live = [main_thread(&child)];
    let mut gauge = AppTime::new(&Roots::default());
    gauge.read(&live, since_boot());
    let own = gauge.processes[&live[0].pid].last.own;
    while process_cpu_time(live[0].pid).unwrap() <= own {
        std::thread::yield_now();
    }
    let seen = gauge.read_after(&live, since_boot(), |_| Some(own));
    assert_eq!(seen, used(Nanos::ZERO, 0, 0), "as known, it has not run");
    let seen = gauge.read_after(&live, since_boot(), |_| Some(own + TICK));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(seen.cpu.unwrap() > Nanos::ZERO, "as known, it has run");
}
