//! Running phases: two lanes beside each other, one of programs and one of cargo commands.
//!
//! The test programs run one after the other in the first lane, and tests within a program
//! beside each other. Cargo commands that build and check something else run in the second
//! lane. Each lane has half of the cores while the other one is busy. What the second lane
//! prints is shown in one piece when its phase ends.

use super::clock::{self, Ended};
use super::failures::{Failure, Failures};
use super::follow::{Show, follow};
use super::phase::{Phase, Step};
use super::programs::{self, Program};
use super::tally::{Counts, Round, Tally};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The state that the phases of a run share.
pub(super) struct Runner<'a> {
    root: &'a Path,
    /// `--release`, or nothing.
    profile: &'a [&'a str],
    /// The tests that each test program leaves out.
    skips: Vec<String>,
    pub(super) started: Instant,
    /// Where tests record that they are skipped.
    skipped: PathBuf,
    pub(super) tally: Mutex<Tally>,
    /// The programs that were built, with how many slow tests each has.
    programs: Mutex<Vec<(Program, usize)>>,
    /// How many lanes are busy.
    lanes: AtomicUsize,
}

impl<'a> Runner<'a> {
    pub(super) fn new(root: &'a Path, profile: &'a [&'a str]) -> Result<Self> {
        let target = crate::release::target(root);
        std::fs::create_dir_all(&target)?;
        let skipped = target.join("skipped-tests");
        // Discard the records of an earlier run.
        std::fs::write(&skipped, "").context("cannot record which tests are skipped")?;
        Ok(Self {
            root,
            profile,
            skips: Vec::new(),
            started: Instant::now(),
            skipped,
            tally: Mutex::default(),
            programs: Mutex::default(),
            lanes: AtomicUsize::new(1),
        })
    }

    /// Gives the test programs these arguments, which leave out tests.
    pub(super) fn leave_out(&mut self, skips: &[&str]) {
        self.skips = skips.iter().map(|text| (*text).to_owned()).collect();
    }

    /// Runs phases one after the other until one fails; returns whether all succeeded.
    pub(super) fn run_until_failure(&self, phases: &[Phase]) -> Result<bool> {
        for phase in phases {
            if !self.run(phase)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs two lists of phases beside each other. All phases run, so that one run shows every
    /// failure.
    pub(super) fn run_beside(&self, first: &[Phase], second: &[Phase]) -> Result<()> {
        let lane = |phases: &[Phase]| {
            let outcome = phases.iter().try_for_each(|phase| self.run(phase).map(drop));
            self.lanes.fetch_sub(1, Ordering::Relaxed);
            outcome
        };
        self.lanes.store(2, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| lane(second));
            let first = lane(first);
            first.and(second.join().expect("a lane returns its errors"))
        })
    }

    /// Closes the run: the tests that recorded that they were skipped.
    pub(super) fn close(&self) -> Result<MutexGuard<'_, Tally>> {
        let mut tally = self.lock();
        tally.read_skipped(&std::fs::read_to_string(&self.skipped)?);
        Ok(tally)
    }

    fn lock(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("no lane panics while it counts")
    }

    /// Runs a phase and returns whether it succeeded. A failure that no test explains counts
    /// as one failed test.
    fn run(&self, phase: &Phase) -> Result<bool> {
        println!("== {} ({} s): {}", phase.name, self.started.elapsed().as_secs(), phase.repeat());
        let (began, failed) = (Instant::now(), self.lock().failed);
        let is_good = self.step(phase)?;
        let took_s = began.elapsed().as_secs();
        if is_good {
            println!("== {}: {took_s} s", phase.name);
            return Ok(true);
        }
        let mut tally = self.lock();
        if tally.failed == failed {
            tally.failed += 1;
            tally.add_failures(phase.name, &[Failure::of_phase("the phase")]);
        }
        println!("== {} failed after {took_s} s; again with: {}", phase.name, phase.repeat());
        Ok(false)
    }

    fn step(&self, phase: &Phase) -> Result<bool> {
        let mut command = phase.command(self.root);
        command.stdin(Stdio::null()).env(lull_testing::SKIPPED_FILE, &self.skipped);
        match phase.step {
            Step::Here(task) => Ok(task(self.root)? == ExitCode::SUCCESS),
            Step::Cargo => Ok(command.status().context("cannot start cargo")?.success()),
            Step::Build => self.build(phase),
            Step::Programs(round) => self.programs(round),
            Step::Aside(_) => {
                let half = threads(2).to_string();
                command.env("CARGO_BUILD_JOBS", &half).env("RUST_TEST_THREADS", &half);
                let mut failures = Failures::default();
                let see = |line: &str, _: Duration| {
                    failures.read(line);
                    if let Some(counts) = Counts::parse(line) {
                        self.lock().add(Round::First, &counts);
                    }
                };
                let outcome = follow(&mut command, Show::AtTheEnd, see);
                self.lock().add_failures(phase.name, &failures.into_list());
                outcome
            }
        }
    }

    fn build(&self, phase: &Phase) -> Result<bool> {
        let built = match programs::build(self.root, &phase.arguments()) {
            Ok(built) => built,
            Err(error) => {
                println!("{error:#}");
                return Ok(false);
            }
        };
        let mut programs = self.programs.lock().expect("no lane panics while it builds");
        *programs = built.into_iter().map(|program| (program, 0)).collect();
        Ok(true)
    }

    /// Runs all programs, in the second round those with slow tests.
    fn programs(&self, round: Round) -> Result<bool> {
        let mut programs = self.programs.lock().expect("no lane panics while it tests");
        let mut is_good = true;
        for (program, slow) in &mut *programs {
            if round == Round::First || *slow > 0 {
                let counts = self.program(program, round)?;
                is_good &= counts.is_some_and(|counts| counts.failed == 0);
                *slow = counts.unwrap_or_default().ignored;
            }
        }
        Ok(is_good)
    }

    /// Runs one program; none if it ends without a result.
    fn program(&self, program: &Program, round: Round) -> Result<Option<Counts>> {
        let waiting = if round == Round::First { program.tests_per_thread() } else { 1 };
        let threads = waiting * threads(self.lanes.load(Ordering::Relaxed));
        let skips = self.skips.iter().map(String::as_str);
        let ignored = (round == Round::Slow).then_some("--ignored");
        let arguments: Vec<&str> = ignored.into_iter().chain(skips).collect();
        let mut command = program.command();
        command.args(&arguments).args(["--test-threads", &threads.to_string()]);
        command.stdin(Stdio::null()).env(lull_testing::SKIPPED_FILE, &self.skipped);
        let (mut ended, mut counts) = (Vec::<Ended>::new(), None);
        let mut failures = Failures::default();
        let began = Instant::now();
        let is_good = follow(&mut command, Show::AsTheyCome, |line, at| {
            ended.extend(clock::ended(line, at));
            failures.read(line);
            counts = Counts::parse(line).or(counts);
        })?;
        let mut tally = self.lock();
        tally.add(round, &counts.unwrap_or_default());
        tally.add_times(&program.name(), clock::durations(ended, threads));
        tally.add_failures(&program.name(), &failures.into_list());
        if !is_good && counts.is_none_or(|counts| counts.failed == 0) {
            tally.failed += 1;
            tally.add_failures(&program.name(), &[Failure::of_phase("the program")]);
            counts = None;
        }
        println!("== {}: {:.1} s", program.name(), began.elapsed().as_secs_f64());
        if !is_good {
            println!("== failed; again with: {}", program.cargo(self.profile, &arguments));
        }
        Ok(counts)
    }
}

/// Returns how many tests or builds each of this many lanes runs at once.
fn threads(lanes: usize) -> usize {
    (crate::here::cores() / lanes.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A phase that succeeds, one that fails without a failed test, and one that fails here.
    fn phases() -> [Phase; 3] {
        [
            Phase::new("version", &["--version"], Step::Cargo),
            Phase::new("unknown", &["no-such-command"], Step::Aside(None)),
            Phase::new("broken", &["xtask"], Step::Here(|_| Ok(ExitCode::FAILURE))),
        ]
    }

    #[test]
    fn a_failure_without_a_failed_test_counts_as_one_and_ends_a_sequence() {
        let root = crate::root();
        let runner = Runner::new(&root, &[]).unwrap();
        assert!(runner.run_until_failure(&phases()[..1]).unwrap());
        assert!(runner.lock().is_good());
        assert!(!runner.run_until_failure(&phases()).unwrap());
        assert_eq!(runner.lock().to_string(), "0 passed, 1 failed");
        assert_eq!(runner.lock().failures(), "   unknown: the phase as a whole\n");
    }

    #[test]
    fn lanes_run_all_their_phases_and_show_every_failure() {
        let root = crate::root();
        let runner = Runner::new(&root, &[]).unwrap();
        runner.run_beside(&phases(), &phases()[..1]).unwrap();
        assert_eq!(runner.lock().to_string(), "0 passed, 2 failed");
    }

    #[test]
    fn lanes_share_the_cores_and_each_has_one() {
        assert_eq!(threads(1), crate::here::cores());
        assert!(threads(2) * 2 <= crate::here::cores().max(2));
        assert_eq!(threads(1000), 1);
    }
}
