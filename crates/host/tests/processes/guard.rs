//! Whatever dies, the machine gets its settings back.

use crate::scene::{Agent, Scene, runs, wait_for};
use nix::sys::ptrace;
use nix::sys::wait::{WaitStatus, waitpid};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Write;
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("a_clean_end_puts_everything_back_and_the_guard_goes_too", clean_end),
    ("a_killed_agent_is_cleaned_up_after_by_its_guard", killed_at_work),
    ("a_signal_to_the_whole_group_does_not_keep_the_guard_from_its_work", signal_to_group),
    ("a_killed_guard_is_replaced", killed_guard),
    ("a_stopped_guard_is_replaced", stopped_guard),
    ("a_stopped_agent_is_ended_and_cleaned_up_after", stopped_agent),
    ("an_agent_that_spins_and_ignores_sigterm_is_ended_and_cleaned_up_after", spinning_agent),
    ("a_stuck_agent_whose_exit_is_delayed_is_cleaned_up_after_meanwhile", delayed_exit),
    ("an_agent_killed_at_any_moment_is_cleaned_up_after", || agents_killed(10)),
    ("guard_and_agent_killed_in_any_order_leave_a_ledger_to_restore", || both_killed(10)),
];

/// The same at many more moments.
pub(crate) const SLOW_TESTS: &[(&str, fn())] = &[
    ("slow_an_agent_killed_at_any_of_200_moments", || agents_killed(200)),
    ("slow_guard_and_agent_killed_at_any_of_200_moments", || both_killed(200)),
];

fn clean_end() {
    let scene = Scene::new();
    let mut agent = scene.start_agent(1);
    agent.wait_until_changed();
    let (app, guards) = (agent.app(), agent.guards());
    assert_eq!((app.len(), guards.len()), (3, 1), "{app:?} {guards:?}");
    writeln!(agent.process.0.stdin.as_ref().unwrap()).unwrap();
    assert!(agent.process.0.wait().unwrap().success());
    scene.wait_until_as_before();
    assert!(!app.into_iter().chain(guards).any(runs));
}

fn killed_at_work() {
    let scene = Scene::new();
    let mut agent = scene.start_agent(2);
    agent.wait_until_changed();
    assert_ne!(scene.changed(), Vec::<String>::new());
    let (app, guards) = (agent.app(), agent.guards());
    agent.kill();
    scene.wait_until_as_before();
    wait_for("the end of app and guard", || !app.iter().chain(&guards).any(|one| runs(*one)));
    scene.wait_until_as_before();
}

fn signal_to_group() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let scene = Scene::new();
        let mut agent = scene.start_agent(3);
        agent.wait_until_changed();
        let group = Pid::from_raw(agent.process.0.id().cast_signed()).unwrap();
        kill_process_group(group, signal).unwrap();
        assert!(!agent.process.0.wait().unwrap().success());
        scene.wait_until_as_before();
    }
}

fn killed_guard() {
    let scene = Scene::new();
    let mut agent = scene.start_agent(4);
    agent.wait_until_changed();
    for _ in 0..3 {
        let announced = agent.guards_announced();
        agent.kill_guard();
        wait_for("a new guard", || agent.guards_announced() > announced);
    }
    agent.kill();
    scene.wait_until_as_before();
}

fn stopped_guard() {
    let scene = Scene::new();
    let mut agent = scene.start_agent(7);
    agent.wait_until_changed();
    let (announced, guards) = (agent.guards_announced(), agent.guards());
    agent.signal_guard(Signal::STOP);
    wait_for("a new guard", || agent.guards_announced() > announced);
    assert!(!guards.into_iter().any(runs), "the stopped guard was left");
    agent.kill();
    scene.wait_until_as_before();
}

fn stopped_agent() {
    let scene = Scene::new();
    let agent = scene.start_agent(5);
    assert_undone(&scene, agent, |agent| agent.signal(Signal::STOP));
}

fn spinning_agent() {
    let scene = Scene::new();
    let agent = scene.start_spinner(8);
    assert_undone(&scene, agent, |agent| {
        writeln!(agent.process.0.stdin.as_ref().unwrap()).unwrap();
        wait_for("an agent that spins", || agent.has_printed("spins"));
        agent.signal(Signal::TERM);
    });
}

/// Asserts that an agent that is made to hang is killed, and that nothing of it is left.
fn assert_undone(scene: &Scene, mut agent: Agent, hang: impl FnOnce(&mut Agent)) {
    agent.wait_until_changed();
    assert_ne!(scene.changed(), Vec::<String>::new());
    let (app, guards) = (agent.app(), agent.guards());
    hang(&mut agent);
    scene.wait_until_as_before();
    assert_killed(&mut agent);
    wait_for("the end of app and guard", || !app.iter().chain(&guards).any(|one| runs(*one)));
    scene.wait_until_as_before();
}

/// Asserts that an agent has ended by SIGKILL, and so not by another signal that it was sent.
fn assert_killed(agent: &mut Agent) {
    let status = agent.process.0.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
}

/// A tracer keeps the killed agent from exiting, as a disk that does not answer does.
fn delayed_exit() {
    let scene = Scene::new();
    let mut agent = scene.start_agent(6);
    agent.wait_until_changed();
    let (app, guards) = (agent.app(), agent.guards());
    let traced = nix::unistd::Pid::from_raw(agent.process.0.id().cast_signed());
    ptrace::seize(traced, ptrace::Options::PTRACE_O_TRACEEXIT).unwrap();
    agent.signal(Signal::STOP);
    wait_until_exiting(traced);
    scene.wait_until_as_before();
    assert!(guards.iter().all(|guard| runs(*guard)), "the guard waits for the exit");
    ptrace::cont(traced, None).unwrap();
    assert_killed(&mut agent);
    wait_for("the end of app and guard", || !app.iter().chain(&guards).any(|one| runs(*one)));
    scene.wait_until_as_before();
}

/// Waits until a traced process is stopped at its exit.
fn wait_until_exiting(traced: nix::unistd::Pid) {
    loop {
        match waitpid(traced, None).unwrap() {
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXIT) => return,
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => panic!("it has exited"),
            _ => {}
        }
    }
}

/// Moments from its start to well into its work, by chance.
fn moment(rng: &mut Xoshiro256PlusPlus) -> Duration {
    Duration::from_micros(rng.random_range(0..600_000))
}

fn agents_killed(rounds: u64) {
    let scene = Scene::new();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(20);
    let mut at_work = 0;
    for seed in 0..rounds {
        let mut agent = scene.start_agent(seed);
        thread::sleep(moment(&mut rng));
        at_work += u32::from(agent.has_changed());
        agent.kill();
        scene.wait_until_as_before();
    }
    // On a machine too slow for the moments, one that is surely at work.
    if at_work == 0 {
        let mut agent = scene.start_agent(rounds);
        agent.wait_until_changed();
        agent.kill();
    }
    scene.restore_by_hand();
    scene.wait_until_as_before();
}

fn both_killed(rounds: u64) {
    let scene = Scene::new();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(21);
    for seed in 0..rounds {
        let mut agent = scene.start_agent(seed);
        agent.wait_until_changed();
        let (app, gap) = (agent.app(), Duration::from_micros(rng.random_range(0..20_000)));
        if rng.random() {
            agent.kill_guard();
            thread::sleep(gap);
            agent.kill();
        } else {
            let guards = agent.guards();
            agent.kill();
            thread::sleep(gap);
            if guards.last().is_some_and(|guard| runs(*guard)) {
                agent.kill_guard();
            }
        }
        scene.restore_by_hand();
        scene.wait_until_as_before();
        assert!(!app.into_iter().any(runs));
    }
}
