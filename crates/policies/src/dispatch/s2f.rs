//! Basic slow-to-fast: fixed thresholds from the demand alone.
//!
//! Ren and others' FOLD as EETL (Haque et al., MICRO-50) presents it in section 3
//! and figure 2: one threshold a core type, computed for low load (figure 5),
//! regardless of the load and of other requests that want the fast cores. It meets the
//! target only while requests rarely compete; EETL adds what is missing.
//!
//! A request that finds no slow core takes a free fast one, and waits if there is
//! none. The paper does not define this case; a server does not leave a core idle
//! while requests wait.

use super::{DispatcherKind, Site};
use crate::config::{config, read, texts};
use crate::entry::{ConfigSchema, Entry};
use crate::toolkit::slow_to_fast::SlowToFast;
use crate::toolkit::thresholds::{Profile, solve};
use lull_control::PolicyError;
use lull_control::dispatcher::DispatcherError;
use lull_measure::Nanos;

/// The registry's entry.
pub(crate) static ENTRY: Entry<DispatcherKind> = Entry {
    name: "s2f",
    paper: "EETL (Haque et al., MICRO-50), section 3, figures 2 and 5",
    summary: "Moves requests up at fixed ages computed from the demand for low load.",
    kind: DispatcherKind { needs: "a profile of the demand, or thresholds" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site| {
        let config: Config = read(table)?;
        Ok(Box::new(SlowToFast::new(site.ladder, ages(config, site)?, false)))
    },
};

config! {
    /// The thresholds, if they are not to be computed.
    struct Config checked by check {
        /// Ages at which a request moves to the second type, the third, ...; empty: computed.
        #[serde(serialize_with = "texts")]
        thresholds: Vec<Nanos> = Vec::new(),
    }
}

fn check(config: &Config) -> Result<(), PolicyError> {
    super::ascending("thresholds", &config.thresholds)
}

/// The given thresholds, or those for low load.
fn ages(config: Config, site: &Site<'_>) -> Result<Vec<Nanos>, DispatcherError> {
    if config.thresholds.is_empty() {
        let profile = Profile::new(site.profile, site.percentile)?;
        return Ok(solve(&profile, site.ladder, site.percentile, site.target)?.ages);
    }
    super::one_a_type("thresholds", &config.thresholds, site.ladder)?;
    Ok(config.thresholds)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{OwnedSite, amp_site, build, refused, request};
    use lull_control::dispatcher::{Answer, DispatcherError};
    use lull_measure::{Nanos, Percentile};

    #[test]
    fn thresholds_come_from_the_demand_and_do_not_mind_competition() {
        let mut dispatcher = build("s2f", "", &amp_site());
        let age = dispatcher.thresholds()[0];
        // Tail of work q = 2 L - t by the closed form: the profile's p99 is near 270 ms.
        assert!((110.0..145.0).contains(&age.as_millis_f64()), "{age}");
        assert_eq!(
            dispatcher.place(&request(1, Some(0), (0, 14), &[0, 2])),
            Answer::stay(Some(age))
        );
        assert_eq!(dispatcher.place(&request(500, Some(0), (0, 14), &[0, 2])), Answer::on(1, None));
    }

    #[test]
    fn given_thresholds_need_no_profile() {
        let site = OwnedSite { profile: Vec::new(), ..amp_site() };
        let dispatcher = build("s2f", "thresholds = [\"90ms\"]", &site);
        assert_eq!(dispatcher.thresholds(), [Nanos::from_millis(90)]);
        let none = refused("s2f", "", &site);
        let percentile = Percentile::P99;
        assert_eq!(none, DispatcherError::Profile { found: 0, needed: 500, percentile });
        let two = refused("s2f", "thresholds = [\"90ms\", \"95ms\"]", &site);
        assert!(two.to_string().contains("1 threshold"), "{two}");
    }
}
