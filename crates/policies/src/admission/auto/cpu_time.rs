//! CPU time a transaction in a block, from readings of the server's times.
//!
//! A live server is read once a second. A reading counts if its whole span is in the part of the
//! block that counts, with what was answered in that span.

use lull_control::admission::GateObservation;
use lull_measure::Nanos;

/// CPU time used in one block.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CpuTime {
    /// Answers since the last reading.
    answers: u64,
    /// Answers and CPU time of the readings that count.
    counted: u64,
    used_s: f64,
}

impl CpuTime {
    /// Takes in the answers, and a reading if there is one. The block counts from `since` on, or
    /// does not count yet.
    pub(super) fn note(&mut self, seen: &GateObservation<'_>, since: Option<Nanos>) {
        self.answers += seen.answered.iter().map(|one| u64::from(one.queries)).sum::<u64>();
        let Ok(times) = &seen.server else { return };
        let answers = std::mem::take(&mut self.answers);
        let begun = seen.now.saturating_sub(times.span);
        if since.is_some_and(|since| begun >= since) {
            self.counted += answers;
            self.used_s += times.cpu.as_secs_f64();
        }
    }

    /// Returns CPU time a transaction, in seconds; `None` without a reading that counts.
    pub(super) fn per_transaction_s(&self) -> Option<f64> {
        let is_known = self.counted > 0 && self.used_s > 0.0;
        is_known.then(|| self.used_s / self.counted as f64)
    }

    /// Begins a block. The span of the next reading may have begun before it.
    pub(super) const fn begin(&mut self) {
        (self.counted, self.used_s) = (0, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::admission::{Answered, ServerTimes};
    use lull_measure::Missing;

    const TENTH: Nanos = Nanos::from_millis(100);

    /// A tenth of a second that ends now, with this many answers; in each tenth of a second the
    /// server uses so much CPU time.
    fn note(time: &mut CpuTime, tenths: u64, queries: u32, cpu: Nanos, since: Option<Nanos>) {
        let missing = || Missing::because("times are read once a second");
        let span = TENTH * 10;
        let read = ServerTimes { span, cpu: cpu * 10, run_queue: span };
        time.note(
            &GateObservation {
                now: TENTH * tenths,
                answered: &[Answered { connection: 0, latency: TENTH, queries }],
                waiting: &[0],
                connections: Err(missing()),
                under_way: Err(missing()),
                device: Err(missing()),
                round: None,
                rested: Err(missing()),
                server: if tenths.is_multiple_of(10) { Ok(read) } else { Err(missing()) },
            },
            since,
        );
    }

    #[test]
    fn only_readings_that_lie_within_a_block_count() {
        let (mut time, mut other) = (CpuTime::default(), Nanos::from_millis(90));
        // From 1.5 s on the block counts, and answers cost a third: the reading at 2 s has both.
        for tenths in 1..=30 {
            let since = (tenths > 15).then_some(TENTH * 15);
            if tenths > 15 {
                other = Nanos::from_millis(30);
            }
            assert_eq!(time.per_transaction_s(), None, "at {tenths} tenths");
            note(&mut time, tenths, 100, other, since);
        }
        assert!((time.per_transaction_s().unwrap() - 0.0003).abs() < 1e-9);
        time.begin();
        assert_eq!(time.per_transaction_s(), None);
    }

    #[test]
    fn a_server_that_answers_nothing_has_no_cpu_time_a_transaction() {
        let mut time = CpuTime::default();
        (1..=40).for_each(|tenths| note(&mut time, tenths, 0, TENTH, Some(Nanos::ZERO)));
        assert_eq!(time.per_transaction_s(), None);
    }
}
