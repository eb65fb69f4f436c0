//! What failed tests printed, from the lines of their program, to be listed at the end.
//!
//! The test runner prints `test NAME ... FAILED` when a test ends, and after all tests the
//! output of each failed one below `---- NAME stdout ----`.

/// A failed test with the first lines of its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) test: String,
    output: Vec<String>,
}

/// How many lines of a failed test's output are listed.
const LINES: usize = 20;
/// How many characters of a line: a value printed by `{:?}` may have thousands.
const WIDTH: usize = 300;

/// Reads the lines of one program.
#[derive(Debug, Default)]
pub(super) struct Failures {
    found: Vec<Failure>,
    /// The test whose output follows, as an index into `found`.
    current: Option<usize>,
}

impl Failures {
    /// Reads the next line.
    pub(super) fn read(&mut self, line: &str) {
        let line = line.trim_end();
        let header = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(test) = failed(line).or(header) {
            let at = self.index_of(test);
            self.current = header.map(|_| at);
        } else if line == "failures:" {
            self.current = None;
        } else if let Some(at) = self.current {
            let output = &mut self.found[at].output;
            if output.len() < LINES && !line.is_empty() {
                output.push(line.chars().take(WIDTH).collect());
            }
        }
    }

    /// The failed tests, in the order in which they ended.
    pub(super) fn into_list(self) -> Vec<Failure> {
        self.found
    }

    fn index_of(&mut self, test: &str) -> usize {
        self.found.iter().position(|failure| failure.test == test).unwrap_or_else(|| {
            self.found.push(Failure { test: test.to_owned(), output: Vec::new() });
            self.found.len() - 1
        })
    }
}

/// The test of a line `test a::b ... FAILED`.
fn failed(line: &str) -> Option<&str> {
    let (test, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let test = test.strip_suffix(" - should panic").unwrap_or(test);
    (result == "FAILED").then_some(test)
}

impl Failure {
    /// The failure of a whole program or phase, which no test explains.
    pub(super) fn of_phase(name: &str) -> Self {
        Self { test: format!("{name} as a whole"), output: Vec::new() }
    }

    /// The test and its output, indented.
    pub(super) fn text(&self, program: &str) -> String {
        let mut text = format!("   {program}: {}\n", self.test);
        for line in &self.output {
            text += &format!("      {line}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "running 3 tests
test a ... ok
test b::c ... FAILED
test d - should panic ... FAILED

failures:

---- b::c stdout ----

thread 'b::c' panicked at x.rs:1:
left is not right

---- d stdout ----
note: test did not panic as expected

failures:
    b::c
    d

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";

    fn read(text: &str) -> Vec<Failure> {
        let mut failures = Failures::default();
        text.lines().for_each(|line| failures.read(line));
        failures.into_list()
    }

    #[test]
    fn each_failed_test_is_listed_once_with_its_own_output() {
        let all = read(OUTPUT);
        assert_eq!(all.len(), 2);
        let text = all[0].text("lull-sim lib");
        assert!(text.starts_with("   lull-sim lib: b::c\n"), "{text}");
        assert!(text.ends_with("      left is not right\n"), "{text}");
        assert_eq!(all[1].output, ["note: test did not panic as expected"]);
    }

    #[test]
    fn a_test_whose_program_died_is_listed_without_output_and_long_output_is_cut() {
        assert_eq!(read("test a ... FAILED\r\ntest b ... ok")[0].text("p"), "   p: a\n");
        let long = format!("---- a stdout ----\n{}", "line\n".repeat(100));
        assert_eq!(read(&long)[0].output.len(), LINES);
    }
}
