//! Interleaved runs, and their statistics.

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

/// Median and quartiles of repeated runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Summary {
    pub(super) median: f64,
    /// First quartile.
    pub(super) low: f64,
    /// Third quartile.
    pub(super) high: f64,
}

impl Summary {
    /// Sums up at least one run.
    pub(super) fn new(runs: impl IntoIterator<Item = f64>) -> Self {
        let mut runs: Vec<f64> = runs.into_iter().collect();
        runs.sort_by(f64::total_cmp);
        assert!(!runs.is_empty(), "a summary needs a run");
        Self { median: at(&runs, 0.5), low: at(&runs, 0.25), high: at(&runs, 0.75) }
    }
}

/// The value a part of the way through sorted runs, between two by proportion.
fn at(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// One of several that are measured side by side.
pub(super) type Contender<'a> = &'a mut dyn FnMut() -> Result<f64>;

/// Runs all contenders `rounds` times, in turn: A B, B A, A B, ...
///
/// Returns each contender's values in the order of the rounds, so that values of
/// one round can be compared. One round before them warms up and is not counted.
pub(super) fn interleave<const N: usize>(
    rounds: usize,
    contenders: &mut [Contender; N],
) -> Result<[Vec<f64>; N]> {
    let boxed = contenders.iter_mut().map(|run| Box::new(run) as BoxedContender<'_>);
    let mut values = interleave_all(rounds, &mut boxed.collect::<Vec<_>>())?.into_iter();
    Ok(std::array::from_fn(|_| values.next().unwrap_or_default()))
}

/// A contender of which there are as many as the machine or a registry has.
pub(super) type BoxedContender<'a, T = f64> = Box<dyn FnMut() -> Result<T> + 'a>;

/// As [`interleave`], for any number of contenders.
pub(super) fn interleave_all<T>(
    rounds: usize,
    contenders: &mut [BoxedContender<'_, T>],
) -> Result<Vec<Vec<T>>> {
    let count = contenders.len();
    let mut values: Vec<Vec<T>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        for turn in 0..count {
            let which = if round % 2 == 0 { turn } else { count - 1 - turn };
            let value = contenders[which]()?;
            if round > 0 {
                values[which].push(value);
            }
        }
    }
    Ok(values)
}

/// One contender's value over another's, round by round.
pub(super) fn ratios(over: &[f64], under: &[f64]) -> Summary {
    Summary::new(over.iter().zip(under).map(|(over, under)| over / under))
}

/// Nanoseconds of a core that each of `count` operations takes.
///
/// Time on the core and not on the wall: other work on the machine does not count.
pub(super) fn ns_each(count: usize, run: impl FnOnce()) -> f64 {
    let started = on_core_ns();
    run();
    (on_core_ns() - started) / count as f64
}

/// How long this thread has run.
pub(super) fn on_core_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn a_summary_is_the_median_between_the_quartiles() {
        let five = Summary::new([5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!(five, Summary { median: 3.0, low: 2.0, high: 4.0 });
        let two = Summary::new([1.0, 2.0]);
        assert_eq!(two, Summary { median: 1.5, low: 1.25, high: 1.75 });
        let one = Summary::new([7.0]);
        assert_eq!(one, Summary { median: 7.0, low: 7.0, high: 7.0 });
    }

    #[test]
    fn contenders_take_turns_and_the_first_round_does_not_count() {
        let order = RefCell::new(String::new());
        let run = |name: char| {
            order.borrow_mut().push(name);
            Ok(order.borrow().len() as f64)
        };
        let values = interleave(2, &mut [&mut || run('a'), &mut || run('b')]).unwrap();
        assert_eq!(*order.borrow(), "abbaab");
        assert_eq!(values, [vec![4.0, 5.0], vec![3.0, 6.0]]);
    }

    #[test]
    fn ratios_are_those_of_single_rounds() {
        let slow_machine_in_round_two = ratios(&[10.0, 30.0, 10.0], &[5.0, 15.0, 5.0]);
        assert_eq!(slow_machine_in_round_two, Summary { median: 2.0, low: 2.0, high: 2.0 });
    }

    #[test]
    fn a_contender_that_fails_ends_the_benchmark() {
        assert!(interleave(2, &mut [&mut || anyhow::bail!("no")]).is_err());
    }
}
