//! Tail Latency: every request as fast as there are cores.
//!
//! EETL (Haque et al., MICRO-50), section 5.5: the threshold is 0. On cores that
//! scale, all run at the highest level. On asymmetric cores a request starts on
//! the fastest free type, and when a faster core falls idle the oldest request
//! of the next slower type moves to it. The least latency there is, and the
//! energy that the others are compared with.
//!
//! Checked against: figure 9 (2.45 times the energy of EETL at 10 requests per
//! second) by `lull lab run eetl-amp`.

use super::DispatcherKind;
use crate::config::{NoKeys, read};
use crate::entry::{ConfigSchema, Entry};
use crate::toolkit::slow_to_fast::SlowToFast;
use lull_measure::Nanos;

/// The registry's entry.
pub(crate) static ENTRY: Entry<DispatcherKind> = Entry {
    name: "tl",
    paper: "EETL (Haque et al., MICRO-50), sections 4.1 and 5.5",
    summary: "Runs every request as fast as there are cores: the least latency.",
    kind: DispatcherKind { needs: "" },
    config: ConfigSchema::new::<NoKeys>(),
    make: |table, site| {
        read::<NoKeys>(table)?;
        let ages = vec![Nanos::ZERO; site.ladder.types().len() - 1];
        Ok(Box::new(SlowToFast::new(site.ladder, ages, true)))
    },
};

#[cfg(test)]
mod tests {
    use super::super::testing::{amp_site, build, dvfs_site, request};
    use lull_control::dispatcher::CoreChoice;

    #[test]
    fn requests_start_on_the_fastest_core_or_level() {
        let mut dispatcher = build("tl", "", &amp_site());
        assert_eq!(dispatcher.place(&request(0, None, (0, 1), &[13, 2])).place, CoreChoice::On(1));
        assert_eq!(dispatcher.place(&request(0, None, (2, 3), &[13, 0])).place, CoreChoice::On(0));
        assert_eq!(
            dispatcher.place(&request(5, Some(0), (1, 3), &[13, 1])).place,
            CoreChoice::On(1)
        );
        let mut dispatcher = build("tl", "", &dvfs_site());
        assert_eq!(dispatcher.place(&request(0, None, (3, 4), &[1; 5])).place, CoreChoice::On(4));
    }
}
