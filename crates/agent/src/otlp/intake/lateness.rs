//! Whether an export is of now, whatever the sender's clock shows.
//!
//! The clocks of two machines differ, so the age of an export is not known from its time alone.
//! The least difference that a sender's exports had is that of its clock; an export that arrives
//! much later than this was kept on its way, by a collector that could not send for a while.

use lull_measure::Nanos;

/// How much later than at best an export may arrive.
const LATE_MAX_NS: i64 = 10_000_000_000;
/// Exports of a sender whose clock was set arrive equally late, up to this.
const NOISE_NS: i64 = 500_000_000;

/// How late the exports of one sender arrive by its own clock.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    least_ns: Option<i64>,
    /// Lateness and time of the last export that was too late.
    too_late: Option<(i64, u64)>,
}

impl Lateness {
    /// Judges an export by its time and its arrival since 1970: whether it is too old, and a notice
    /// for the user.
    pub(super) fn judge(&mut self, time: u64, arrived: Nanos) -> (bool, Option<String>) {
        let signed = |nanos: u64| i64::try_from(nanos).unwrap_or(i64::MAX);
        let now = signed(arrived.0).saturating_sub(signed(time));
        let Some(least) = self.least_ns else {
            self.least_ns = Some(now);
            let is_apart = now.saturating_abs() > LATE_MAX_NS;
            return (false, is_apart.then(|| describe_gap(now)));
        };
        if now.saturating_sub(least) <= LATE_MAX_NS {
            (self.least_ns, self.too_late) = (Some(least.min(now)), None);
            return (false, None);
        }
        // Exports that were queued on their way arrive with decreasing delay; after a clock was set
        // back all are equally late.
        let is_set = self.too_late.is_some_and(|(before, at)| {
            now.abs_diff(before) < NOISE_NS as u64 && signed(time.abs_diff(at)) > NOISE_NS
        });
        if is_set {
            (self.least_ns, self.too_late) = (Some(now), None);
            return (false, Some(describe_gap(now)));
        }
        self.too_late = Some((now, time));
        let late_s = now.saturating_sub(least) / 1_000_000_000;
        let why = "the requests in it are not counted as those of now";
        (true, Some(format!("it was {late_s} s on its way: {why}")))
    }
}

fn describe_gap(gap_ns: i64) -> String {
    let gap_s = gap_ns.unsigned_abs() / 1_000_000_000;
    let side = if gap_ns < 0 { "after" } else { "before" };
    format!("its time is {gap_s} s {side} ours: are both clocks right? It is counted as of now")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const BEGIN: u64 = 1_800_000_000 * SECOND;

    fn judge(lateness: &mut Lateness, time_s: u64, arrived_s: u64) -> bool {
        lateness.judge(BEGIN + time_s * SECOND, Nanos(BEGIN + arrived_s * SECOND)).0
    }

    #[test]
    fn a_clock_that_is_wrong_makes_no_export_late() {
        for offset in [0, 3_600] {
            let mut lateness = Lateness::default();
            for at in 0..50 {
                assert!(!judge(&mut lateness, at * 10, at * 10 + offset), "{offset} {at}");
            }
        }
    }

    #[test]
    fn what_was_kept_on_its_way_is_late_until_the_sender_has_caught_up() {
        let mut lateness = Lateness::default();
        assert!(!judge(&mut lateness, 0, 0));
        let late: Vec<bool> = (1..7).map(|at| judge(&mut lateness, at * 10, 60)).collect();
        assert_eq!(late, [true, true, true, true, false, false]);
    }

    #[test]
    fn a_clock_that_is_set_back_is_recognised_at_the_second_export() {
        let mut lateness = Lateness::default();
        assert!(!judge(&mut lateness, 1_000, 1_000));
        assert!(judge(&mut lateness, 410, 1_010));
        assert!(!judge(&mut lateness, 420, 1_020));
        assert!(!judge(&mut lateness, 430, 1_030));
        let (is_late, notice) = lateness.judge(u64::MAX, Nanos(BEGIN));
        assert!(!is_late && notice.is_none(), "a clock ahead is never late");
    }
}
