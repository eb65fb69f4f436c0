//! One level for all cores, always.
//!
//! Not a policy of its own but what Pegasus' ideal table is made from: EETL
//! (Haque et al., MICRO-50), section 5.5, sweeps the levels at every load and
//! keeps the lowest that meets the target.

use super::{DispatcherKind, must_be_a_type, must_scale};
use crate::config::{accept_any, config, read};
use crate::entry::{ConfigSchema, Entry};
use lull_control::dispatcher::{Answer, DispatchRequest, Dispatcher};

/// The registry's entry.
pub(crate) static ENTRY: Entry<DispatcherKind> = Entry {
    name: "level",
    paper: "EETL (Haque et al., MICRO-50), section 5.5: one setting of Pegasus' sweep",
    summary: "Keeps all cores at one level.",
    kind: DispatcherKind { needs: "cores that each take every speed" },
    config: ConfigSchema::new::<Config>(),
    make: |table, site| {
        let config: Config = read(table)?;
        must_scale("level", site)?;
        must_be_a_type("level", config.level, site.ladder)?;
        Ok(Box::new(Level(config.level)))
    },
};

config! {
    /// The level.
    struct Config checked by accept_any {
        /// Number of the level, 0 is the slowest.
        level: usize = 0,
    }
}

struct Level(usize);

impl Dispatcher for Level {
    fn place(&mut self, request: &DispatchRequest<'_>) -> Answer {
        if request.free[self.0] > 0 || request.on.is_some() {
            return Answer::on(self.0, None);
        }
        Answer::stay(None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{amp_site, build, dvfs_site, refused, request};
    use lull_control::dispatcher::CoreChoice;

    #[test]
    fn it_is_kept_and_must_exist() {
        let mut dispatcher = build("level", "level = 3", &dvfs_site());
        assert_eq!(dispatcher.place(&request(0, None, (0, 1), &[1; 5])).place, CoreChoice::On(3));
        assert_eq!(dispatcher.place(&request(0, None, (0, 1), &[0; 5])).place, CoreChoice::Stay);
        assert!(
            refused("level", "level = 5", &dvfs_site())
                .to_string()
                .contains("0, the slowest, to 4")
        );
        assert!(refused("level", "", &amp_site()).to_string().contains("per-core DVFS"));
    }
}
