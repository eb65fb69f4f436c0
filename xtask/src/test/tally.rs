//! The outcome of a run: how many tests passed, failed and were skipped, why, and how long
//! they took.

use super::failures::Failure;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// The round that a result belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// All but the slow tests, which count as ignored.
    First,
    /// The slow tests, which were ignored in the first round.
    Slow,
}

/// One `test result:` line.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    passed: usize,
    pub(super) failed: usize,
    pub(super) ignored: usize,
    filtered_out: usize,
}

/// How many of the slowest tests are listed.
const SLOWEST: usize = 20;

/// All results of a run.
#[derive(Debug, Default)]
pub(super) struct Tally {
    passed: usize,
    pub(super) failed: usize,
    /// Slow tests that have not run.
    slow: usize,
    /// Tests that `--skip` leaves out, since a program of the system is missing.
    filtered_out: usize,
    /// Other tests that did not run, by reason.
    left_out: BTreeMap<String, usize>,
    /// Tests that could not test anything here, by reason.
    skipped: BTreeMap<String, BTreeSet<String>>,
    /// How long each test took.
    times: Vec<(Duration, String)>,
    /// The output of the failed tests, as it is listed.
    failures: String,
}

impl Counts {
    /// Reads a line such as `test result: ok. 9 passed; 0 failed; 0 ignored; ...`.
    pub(super) fn parse(line: &str) -> Option<Self> {
        let (_, parts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let mut counts = Self::default();
        for part in parts.split("; ") {
            let Some((number, what)) = part.split_once(' ') else { continue };
            let field = match what {
                "passed" => &mut counts.passed,
                "failed" => &mut counts.failed,
                "ignored" => &mut counts.ignored,
                "filtered out" => &mut counts.filtered_out,
                _ => continue,
            };
            *field = number.parse().ok()?;
        }
        Some(counts)
    }
}

impl Tally {
    /// Adds one program's results.
    pub(super) fn add(&mut self, round: Round, counts: &Counts) {
        self.passed += counts.passed;
        self.failed += counts.failed;
        match round {
            Round::First => {
                self.slow += counts.ignored;
                self.filtered_out += counts.filtered_out;
            }
            Round::Slow => self.slow = self.slow.saturating_sub(counts.passed + counts.failed),
        }
    }

    /// Adds tests that were not run at all.
    pub(super) fn leave_out(&mut self, why: &str, count: usize) {
        if count > 0 {
            *self.left_out.entry(why.to_owned()).or_default() += count;
        }
    }

    /// Adds how long the tests of a program took.
    pub(super) fn add_times(&mut self, program: &str, times: Vec<(String, Duration)>) {
        let named = |(test, time): (String, Duration)| (time, format!("{program}: {test}"));
        self.times.extend(times.into_iter().map(named));
    }

    /// Adds what the failed tests of a program printed.
    pub(super) fn add_failures(&mut self, program: &str, failures: &[Failure]) {
        self.failures.extend(failures.iter().map(|failure| failure.text(program)));
    }

    /// The failed tests with the first lines of their output; empty if none failed.
    pub(super) fn failures(&self) -> &str {
        &self.failures
    }

    /// Counts tests as skipped that the test runner counted as passed, from the lines that
    /// `lull_testing::skip` has written.
    pub(super) fn read_skipped(&mut self, lines: &str) {
        for line in lines.lines() {
            let mut parts = line.splitn(3, '\t');
            let (program, test) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
            // A program of cargo's ends with `-` and a hash.
            let program = program.rsplit_once('-').map_or(program, |(name, _)| name);
            let name = format!("{program}: {test}");
            if self.skipped.values().any(|tests| tests.contains(&name)) {
                continue;
            }
            let why = parts.next().unwrap_or("no reason given").to_owned();
            self.skipped.entry(why).or_default().insert(name);
            self.passed = self.passed.saturating_sub(1);
        }
    }

    /// Whether nothing failed.
    pub(super) fn is_good(&self) -> bool {
        self.failed == 0
    }

    /// The slowest tests, one a line; empty if no time is known.
    pub(super) fn slowest(&self) -> String {
        let mut times: Vec<_> = self.times.iter().collect();
        times.sort_by(|a, b| b.cmp(a));
        let line = |(time, test): &&(Duration, String)| {
            format!("   {:6.1} s  {test}\n", time.as_secs_f64())
        };
        times.iter().take(SLOWEST).map(line).collect()
    }

    /// The skipped tests by reason, one reason a line.
    pub(super) fn reasons(&self) -> String {
        let mut text = String::new();
        for (why, tests) in &self.skipped {
            let names = tests.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            text += &format!("   {:4}  {why}: {names}\n", tests.len());
        }
        let missing = "they need a program that is missing here, see above";
        let counted = [("slow, not run", self.slow), (missing, self.filtered_out)];
        let left_out = self.left_out.iter().map(|(why, count)| (why.as_str(), *count));
        for (why, count) in counted.into_iter().chain(left_out).filter(|(_, count)| *count > 0) {
            text += &format!("   {count:4}  {why}\n");
        }
        text
    }

    fn skipped(&self) -> usize {
        let recorded: usize = self.skipped.values().map(BTreeSet::len).sum();
        self.slow + self.filtered_out + self.left_out.values().sum::<usize>() + recorded
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped() > 0 {
            write!(out, ", {} skipped", self.skipped())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "test result: FAILED. 7 passed; 1 failed; 2 ignored; 0 measured; \
                         3 filtered out; finished in 0.02s";

    #[test]
    fn a_result_line_is_read_and_other_lines_are_not() {
        let wanted = Counts { passed: 7, failed: 1, ignored: 2, filtered_out: 3 };
        assert_eq!(Counts::parse(FIRST), Some(wanted));
        for line in ["", "running 3 tests", "test a ... ok", "test result", "x test result: ok. 1"]
        {
            assert_eq!(Counts::parse(line), None, "{line}");
        }
    }

    #[test]
    fn slow_tests_are_skipped_until_they_run() {
        let mut tally = Tally::default();
        tally.add(Round::First, &Counts::parse(FIRST).unwrap());
        assert_eq!(tally.to_string(), "7 passed, 1 failed, 5 skipped");
        let slow = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 8 filtered out";
        tally.add(Round::Slow, &Counts::parse(slow).unwrap());
        assert_eq!(tally.to_string(), "9 passed, 1 failed, 3 skipped");
        assert!(!tally.is_good());
    }

    #[test]
    fn machines_that_do_not_boot_are_skipped_and_no_failure() {
        let mut tally = Tally::default();
        tally.leave_out("no kernel 6.1", 2);
        assert_eq!(tally.to_string(), "0 passed, 0 failed, 2 skipped");
        assert_eq!(tally.reasons(), "      2  no kernel 6.1\n");
        assert!(tally.is_good());
    }

    #[test]
    fn a_recorded_test_is_skipped_once_and_not_passed() {
        let mut tally = Tally { passed: 3, ..Tally::default() };
        tally.read_skipped("e2e-1f\ta::b\tone core\ne2e-1f\ta::b\ttwice\ne2e-1f\ta::c\tone core\n");
        assert_eq!(tally.to_string(), "1 passed, 0 failed, 2 skipped");
        assert_eq!(tally.reasons(), "      2  one core: e2e: a::b, e2e: a::c\n");
    }

    #[test]
    fn the_slowest_twenty_tests_are_listed_the_slowest_first() {
        let mut tally = Tally::default();
        let times = (0..30).map(|s| (format!("t{s}"), Duration::from_secs(s))).collect();
        tally.add_times("lull-sim lib", times);
        let text = tally.slowest();
        assert!(text.starts_with("     29.0 s  lull-sim lib: t29\n"), "{text}");
        assert_eq!(text.lines().count(), 20);
    }

    /// A guest's lines arrive over a serial line, which ends them with a carriage return.
    #[test]
    fn a_guests_result_line_is_read() {
        let line = "test result: ok. 4 passed; 0 failed; 1 ignored; 0 measured; \
                    2 filtered out; finished in 15.23s\r";
        let wanted = Counts { passed: 4, failed: 0, ignored: 1, filtered_out: 2 };
        assert_eq!(Counts::parse(line), Some(wanted));
    }

    #[test]
    fn nothing_skipped_is_not_mentioned() {
        assert_eq!(Tally::default().to_string(), "0 passed, 0 failed");
    }
}
