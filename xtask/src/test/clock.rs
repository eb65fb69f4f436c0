//! How long each test of a program took, from the times at which its results arrive.
//!
//! The test runner starts the tests in the order of their names, as many at once as it has
//! threads, and the next one when one of them ends. So the ends give the starts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// The end of a test, from the start of its program on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) test: String,
    pub(super) at: Duration,
}

/// Reads `test a::b ... ok`; none for other lines and for tests that did not run.
pub(super) fn ended(line: &str, at: Duration) -> Option<Ended> {
    let (test, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let test = test.strip_suffix(" - should panic").unwrap_or(test);
    let has_run = ["ok", "FAILED"].contains(&result.trim_end());
    has_run.then(|| Ended { test: test.to_owned(), at })
}

/// How long each test took.
pub(super) fn durations(mut all: Vec<Ended>, threads: usize) -> Vec<(String, Duration)> {
    // When each thread becomes free, the earliest on top.
    let mut ends: Vec<Duration> = all.iter().map(|ended| ended.at).collect();
    ends.sort();
    let mut free: BinaryHeap<Reverse<Duration>> =
        std::iter::repeat_n(Reverse(Duration::ZERO), threads).collect();
    let mut ends = ends.into_iter();
    all.sort_by(|a, b| a.test.cmp(&b.test));
    let taken = all.into_iter().map(|Ended { test, at }| {
        let Reverse(start) = free.pop().unwrap_or_default();
        free.extend(ends.next().map(Reverse));
        (test, at.saturating_sub(start))
    });
    taken.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(ends_s: &[(&str, u64)]) -> Vec<Ended> {
        let one = |(test, at): &(&str, u64)| Ended {
            test: (*test).to_owned(),
            at: Duration::from_secs(*at),
        };
        ends_s.iter().map(one).collect()
    }

    #[test]
    fn tests_after_each_other_take_the_time_between_their_ends() {
        let took = durations(all(&[("a", 2), ("b", 5), ("c", 6)]), 1);
        let took: Vec<u64> = took.iter().map(|(_, time)| time.as_secs()).collect();
        assert_eq!(took, [2, 3, 1]);
    }

    #[test]
    fn a_test_starts_when_the_first_of_two_threads_is_free() {
        // a from 0 to 9 on one thread; b, c and d after each other on the other.
        let took = durations(all(&[("b", 2), ("c", 5), ("a", 9), ("d", 11)]), 2);
        let took: Vec<_> =
            took.iter().map(|(test, time)| (test.as_str(), time.as_secs())).collect();
        assert_eq!(took, [("a", 9), ("b", 2), ("c", 3), ("d", 6)]);
    }

    #[test]
    fn only_results_of_tests_that_have_run_count() {
        let at = Duration::from_secs(1);
        let read = |line| ended(line, at).map(|ended| ended.test);
        assert_eq!(read("test a::b ... ok"), Some("a::b".to_owned()));
        assert_eq!(read("test a - should panic ... FAILED\r"), Some("a".to_owned()));
        for line in ["test a ... ignored, slow: 9 s", "test result: ok. 1 passed", "a ... ok", ""] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
