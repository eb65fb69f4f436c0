//! Summing up what the test runners say at the end of each binary.

use std::fmt;

/// Which of the two rounds a result belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Round {
    /// All but the slow tests, which count as ignored.
    First,
    /// The slow tests: what it runs was ignored in the first round.
    Slow,
}

/// One `test result:` line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    passed: usize,
    failed: usize,
    ignored: usize,
    filtered_out: usize,
}

/// All results of a run.
#[derive(Debug, Default)]
pub(super) struct Tally {
    passed: usize,
    pub(super) failed: usize,
    /// Left out because something is missing, or slow and not run.
    skipped: usize,
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
    /// Adds one binary's results.
    pub(super) fn add(&mut self, round: Round, counts: &Counts) {
        self.passed += counts.passed;
        self.failed += counts.failed;
        match round {
            Round::First => self.skipped += counts.ignored + counts.filtered_out,
            Round::Slow => {
                self.skipped = self.skipped.saturating_sub(counts.passed + counts.failed);
            }
        }
    }

    /// Adds what was not run at all.
    pub(super) fn leave_out(&mut self, count: usize) {
        self.skipped += count;
    }

    /// Whether nothing failed.
    pub(super) fn is_good(&self) -> bool {
        self.failed == 0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(out, ", {} skipped", self.skipped)?;
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
    fn what_was_left_out_is_skipped_and_no_failure() {
        let mut tally = Tally::default();
        tally.leave_out(2);
        assert_eq!(tally.to_string(), "0 passed, 0 failed, 2 skipped");
        assert!(tally.is_good());
    }

    /// A guest's lines come over a serial line, which ends them otherwise.
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
