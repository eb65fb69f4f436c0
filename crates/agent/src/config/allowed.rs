//! The cores that Lull may use, and the other rules that hold under every policy.

use super::Config;
use lull_control::{CoreSet, Limits, Rules};

impl Config {
    /// Returns the rules that apply to the controller under every policy.
    pub fn rules(&self, dry_run: bool) -> Rules {
        Rules {
            limits: Limits { cores: self.allowed_cores(), ..self.limits.clone() },
            importance: self.agent.importance,
            silence_max: self.agent.silence,
            override_foreign: self.agent.override_foreign,
            dry_run,
        }
    }

    /// Returns the cores of `limits.cores` that the pods may use; all if `None`. The kernel refuses
    /// the other ones, so that `limits.cores` alone counts if the pods may use none of them.
    pub(crate) fn allowed_cores(&self) -> Option<CoreSet> {
        let both = self.limits.cores.as_ref().zip(self.pool.as_ref());
        let within = both.map(|(limit, pool)| limit.intersection(pool));
        within
            .filter(|cores| !cores.is_empty())
            .or_else(|| self.limits.cores.clone())
            .or_else(|| self.pool.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::located::Located;

    #[test]
    fn cores_are_limited_by_the_config_and_by_the_pool_of_the_pods() {
        let text = "[policy]\nname = \"even\"\n[[app]]\nname = \"a\"\nclass = \"best-effort\"\n\
                    pid = 1\n";
        let cores = |limits: &str, pool: Option<&str>| {
            let source = Located::embedded("lull.toml", &format!("{text}{limits}"));
            let mut config = Config::from_located(source).unwrap();
            config.pool = pool.map(|cores| cores.parse().unwrap());
            config.rules(false).limits.cores.map(|cores| cores.to_string())
        };
        let limits = "[limits]\ncores = \"0-3\"\n";
        assert_eq!(cores("", None), None);
        assert_eq!(cores("", Some("2-5")).as_deref(), Some("2-5"));
        assert_eq!(cores(limits, None).as_deref(), Some("0-3"));
        assert_eq!(cores(limits, Some("2-5")).as_deref(), Some("2-3"));
        assert_eq!(cores(limits, Some("4-5")).as_deref(), Some("0-3"), "they have none in common");
    }
}
