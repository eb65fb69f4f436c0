//! Progress totals of one app, as rates over epochs.

use super::check_room;
use lull_control::{Progress, ProgressSource};
use lull_measure::push;
use lull_measure::{Gauge, Missing, Nanos};
use std::collections::BTreeMap;

/// A report is overdue this many intervals after the last.
const OVERDUE_INTERVALS: u64 = 2;
/// How long a client may take for its second report, before which its
/// interval is not known.
const SECOND_REPORT_MAX: Nanos = Nanos::from_secs(10);

/// The reports for one app.
#[derive(Debug, Default)]
pub(super) struct Totals {
    unit: Option<String>,
    reporters: BTreeMap<u64, Reporter>,
    heard: Option<Nanos>,
}

/// One client's reports.
#[derive(Debug, Clone, Copy)]
struct Reporter {
    /// The last report of the epoch before.
    base: Report,
    latest: Report,
    rate_per_s: Option<f64>,
    interval: Nanos,
}

#[derive(Debug, Clone, Copy)]
struct Report {
    total: f64,
    time: Nanos,
}

impl Totals {
    /// Files a report.
    ///
    /// # Errors
    /// If it counts in another unit than the clients that report for the app, or too many other
    /// clients do.
    pub(super) fn add(&mut self, client: u64, reported: &push::Progress) -> Result<(), String> {
        if self.reporters.is_empty() {
            self.unit = None;
        }
        let unit = self.unit.get_or_insert_with(|| reported.unit.clone());
        if *unit != reported.unit {
            return Err(format!(
                "it counts `{}`, but `{}` were counted before",
                reported.unit, unit
            ));
        }
        check_room(&self.reporters, client)?;
        let now = Report { total: reported.total, time: reported.time_ns };
        let first = Reporter { base: now, latest: now, rate_per_s: None, interval: Nanos::ZERO };
        self.reporters.entry(client).or_insert(first).add(now);
        self.heard = self.heard.max(Some(now.time));
        Ok(())
    }

    /// Progress in the epoch that ended at `deadline`.
    pub(super) fn harvest(&mut self, deadline: Nanos) -> Gauge<Progress> {
        self.reporters.retain(|_, reporter| reporter.close(deadline));
        let rates = self.reporters.values().filter_map(|reporter| reporter.rate_per_s);
        let sum = rates.reduce(|sum, rate| sum + rate);
        match (sum, &self.unit, self.heard) {
            (Some(per_s), Some(unit), _) => {
                Ok(Progress { per_s, source: ProgressSource::Pushed(unit.clone()) })
            }
            (_, _, None) => Err(Missing::because("no progress was pushed yet")),
            (_, _, Some(_)) if !self.reporters.is_empty() => {
                Err(Missing::because("one report of progress so far: a rate needs two"))
            }
            (_, _, Some(heard)) => {
                let silent = deadline.saturating_sub(heard).as_secs_f64();
                Err(Missing::because(format!("no progress was pushed for {silent:.1} s")))
            }
        }
    }
}

impl Reporter {
    fn add(&mut self, now: Report) {
        if now.total < self.latest.total {
            // The app was restarted; its progress before this report is unknown.
            (self.base, self.latest) = (now, now);
        } else if now.time > self.latest.time {
            self.interval = now.time - self.latest.time;
            self.latest = now;
        }
    }

    /// Ends the epoch; `false` if the client is overdue and no longer counts.
    fn close(&mut self, deadline: Nanos) -> bool {
        let span = self.latest.time.saturating_sub(self.base.time);
        if span > Nanos::ZERO {
            self.rate_per_s = Some((self.latest.total - self.base.total) / span.as_secs_f64());
            self.base = self.latest;
            return true;
        }
        let patience = match self.interval {
            Nanos::ZERO => SECOND_REPORT_MAX,
            interval => Nanos(interval.0.saturating_mul(OVERDUE_INTERVALS)),
        };
        deadline.saturating_sub(self.latest.time) < patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(total: f64, at_ms: u64) -> push::Progress {
        let (app, unit) = ("b".to_owned(), "paths".to_owned());
        push::Progress { app, unit, total, time_ns: Nanos::from_millis(at_ms) }
    }

    fn rate(totals: &mut Totals, deadline_ms: u64) -> Option<f64> {
        totals.harvest(Nanos::from_millis(deadline_ms)).ok().map(|seen| seen.per_s)
    }

    #[test]
    fn progress_is_the_change_of_the_total_over_the_time_it_took() {
        let mut totals = Totals::default();
        totals.add(1, &report(1000.0, 900)).unwrap();
        let why = totals.harvest(Nanos::from_millis(1000)).unwrap_err();
        assert!(why.reason.contains("needs two"), "{why}");
        totals.add(1, &report(1050.0, 1400)).unwrap();
        totals.add(1, &report(1100.0, 1900)).unwrap();
        assert_eq!(rate(&mut totals, 2000), Some(100.0));
        totals.add(1, &report(1100.0, 2900)).unwrap();
        assert_eq!(rate(&mut totals, 3000), Some(0.0), "standing still is not silence");
    }

    #[test]
    fn reporters_add_up_and_a_silent_one_is_left_out() {
        let mut totals = Totals::default();
        for (client, total) in [(1, 10.0), (2, 20.0)] {
            totals.add(client, &report(0.0, 500)).unwrap();
            totals.add(client, &report(total, 1000)).unwrap();
        }
        assert_eq!(rate(&mut totals, 1000), Some(60.0));
        totals.add(1, &report(15.0, 1500)).unwrap();
        totals.add(1, &report(20.0, 2000)).unwrap();
        assert_eq!(rate(&mut totals, 2000), Some(10.0));
        let why = totals.harvest(Nanos::from_millis(5000)).unwrap_err();
        assert!(why.reason.contains("no progress was pushed for 3.0 s"), "{why}");
    }

    #[test]
    fn an_app_that_restarts_never_goes_backwards() {
        let mut totals = Totals::default();
        totals.add(1, &report(1000.0, 500)).unwrap();
        totals.add(1, &report(3.0, 900)).unwrap();
        totals.add(1, &report(8.0, 1400)).unwrap();
        assert_eq!(rate(&mut totals, 1500), Some(10.0));
    }

    #[test]
    fn two_units_for_one_app_are_refused() {
        let mut totals = Totals::default();
        totals.add(1, &report(1.0, 1)).unwrap();
        let other = push::Progress { unit: "bytes".to_owned(), ..report(1.0, 1) };
        assert!(totals.add(2, &other).unwrap_err().contains("`bytes`, but `paths`"));
    }

    #[test]
    fn an_app_that_counts_in_another_unit_after_a_silence_is_believed() {
        let mut totals = Totals::default();
        totals.add(1, &report(1.0, 1)).unwrap();
        assert_eq!(rate(&mut totals, 60_000), None);
        let bytes =
            |total, at_ms| push::Progress { unit: "bytes".to_owned(), ..report(total, at_ms) };
        totals.add(2, &bytes(0.0, 60_500)).unwrap();
        totals.add(2, &bytes(10.0, 61_000)).unwrap();
        let progress = totals.harvest(Nanos::from_millis(61_000)).unwrap();
        assert_eq!(progress.source, ProgressSource::Pushed("bytes".to_owned()));
    }
}
