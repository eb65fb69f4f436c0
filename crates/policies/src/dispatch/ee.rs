//! Energy Efficient: slow cores until they run out.
//!
//! EETL (Haque et al., MICRO-50), section 5.5: the threshold is infinite. Each
//! request runs on the slowest free type; only when more requests are there
//! than slow cores do the oldest move up. It misses the target and shows the
//! least dynamic energy. On cores that scale it is the lowest level.

use super::DispatcherKind;
use crate::config::{NoKeys, read};
use crate::entry::{ConfigSchema, Entry};
use crate::toolkit::slow_to_fast::SlowToFast;
use lull_measure::Nanos;

/// The registry's entry.
pub(crate) static ENTRY: Entry<DispatcherKind> = Entry {
    name: "ee",
    paper: "EETL (Haque et al., MICRO-50), sections 4.1 and 5.5",
    summary: "Runs every request on the slowest core there is: the least dynamic energy.",
    kind: DispatcherKind { needs: "" },
    config: ConfigSchema::new::<NoKeys>(),
    make: |table, site| {
        read::<NoKeys>(table)?;
        let ages = vec![Nanos::MAX; site.ladder.types().len() - 1];
        Ok(Box::new(SlowToFast::new(site.ladder, ages, true)))
    },
};

#[cfg(test)]
mod tests {
    use super::super::testing::{amp_site, build, request};
    use lull_control::dispatcher::Answer;

    #[test]
    fn no_age_is_enough_but_need_is() {
        let mut dispatcher = build("ee", "", &amp_site());
        assert_eq!(dispatcher.place(&request(0, None, (0, 1), &[13, 2])), Answer::on(0, None));
        assert_eq!(
            dispatcher.place(&request(10_000, Some(0), (0, 13), &[0, 2])),
            Answer::stay(None)
        );
        assert_eq!(dispatcher.place(&request(1, Some(0), (0, 14), &[0, 2])), Answer::on(1, None));
    }
}
