//! `area` of an app: the cores of the threads that serve a class of its clients.

use super::Config;
use super::client_class::client_classes;
use super::latency::LatencySource;
use super::schema::AppSection;
use crate::areas::{AreaError, AreaPlan, shared_threads};
use crate::located::InputError;
use lull_control::{CoreSet, Machine, PolicyError};
use lull_host::oncall::client_class_names;

impl AppSection {
    /// Returns the areas of its clients' classes within these cores, if it has any.
    ///
    /// # Errors
    /// The index of the invalid area and the reason.
    pub fn areas(&self, within: Option<&CoreSet>) -> Result<Option<AreaPlan>, (usize, String)> {
        if self.area.is_empty() {
            return Ok(None);
        }
        let keys = self.area_keys.clone().unwrap_or_default();
        AreaPlan::new(&self.area, keys).map(|plan| Some(plan.within(within.cloned())))
    }

    /// Returns the names of its clients' classes, in the order of their numbers.
    fn class_names(&self) -> Vec<String> {
        client_classes(&self.client_class)
            .map(|classes| client_class_names(&classes))
            .unwrap_or_default()
    }

    /// Whether its clients have a class of this name; where they have classes, `others` is one.
    pub(super) fn has_class(&self, name: &str) -> bool {
        self.class_names().iter().any(|class| class == name)
    }
}

impl Config {
    /// Rejects areas that make no sense on any machine.
    pub(super) fn check_areas(
        &self,
        app: &AppSection,
        at: &dyn Fn(&str) -> String,
    ) -> Result<(), InputError> {
        let fail = |key: &str, message: &str| -> Result<(), InputError> {
            Err(self.source.error(&at(key), message))
        };
        let of_area = |(index, message): (usize, String)| fail(&format!("area[{index}]"), &message);
        let Some(plan) = app.areas(None).or_else(|wrong| of_area(wrong).map(|()| None))? else {
            return match app.area_keys {
                Some(_) => fail("area_keys", "divides no cores: write [[app.area]]"),
                None => Ok(()),
            };
        };
        if app.latency != LatencySource::Preload {
            return fail("area", "needs latency = \"preload\"");
        }
        plan.check_classes(&app.class_names()).or_else(of_area)?;
        let Some(reason) = shared_threads(app.start.as_deref().unwrap_or_default()) else {
            return Ok(());
        };
        let message = format!(
            "{reason}, which are of several classes; servers with a thread or a process for each \
             connection can have areas: MariaDB, MySQL, PostgreSQL"
        );
        fail("area", &message)
    }

    /// Rejects areas that a machine cannot have.
    ///
    /// # Errors
    /// The area or the key at fault.
    pub(crate) fn check_area_cores(&self, machine: &Machine) -> Result<(), InputError> {
        let within = self.limits.cores.as_ref();
        for (index, app) in self.apps.iter().enumerate() {
            // The areas themselves were checked when the file was read.
            let Ok(Some(plan)) = app.areas(within) else { continue };
            let Err(error) = plan.check(&app.class_names(), machine) else { continue };
            let (key, message) = match &error {
                AreaError::Area(at, message) => (format!("area[{at}]"), message.clone()),
                AreaError::Policy(PolicyError::Config { key, message }) if !key.is_empty() => {
                    (format!("area_keys.{key}"), message.clone())
                }
                AreaError::Policy(_) | AreaError::Other(_) => {
                    ("area".to_owned(), error.to_string())
                }
            };
            return Err(self.source.error(&format!("{}.{key}", app.entry(index)), message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::located::Located;
    use lull_control::Plant;
    use lull_control::conformance::MemoryPlant;

    /// A database with a class of clients, in twelve lines.
    const DATABASE: &str = "[policy]\nname = \"even\"\n[[app]]\nname = \"db\"\n\
                            class = \"latency-critical\"\nobjectives = [{ p99 = \"50ms\" }]\n\
                            ideal = \"1ms\"\nlatency = \"preload\"\nstart = [\"mariadbd\"]\n\
                            [[app.client_class]]\nname = \"web\"\nmatch = [{ user = \"web\" }]\n";
    const FIXED: &str = "[[app.area]]\nclient_class = \"web\"\ncores = \"0-2\"\n";
    const PROMISED: &str = "[[app.area]]\nclient_class = \"web\"\nconnections = 4\n\
                            objective = { p95 = \"20ms\" }\n";

    fn load(text: &str) -> Result<Config, InputError> {
        Config::from_located(Located::embedded("lull.toml", text))
    }

    #[test]
    fn areas_need_a_class_of_the_app_and_no_gate() {
        let config = load(&format!("{DATABASE}{FIXED}")).unwrap();
        let plan = config.apps[0].areas(None).unwrap();
        assert!(plan.is_some() && config.apps[0].concurrency.is_none());
        assert!(load(&format!("{DATABASE}{PROMISED}[app.area_keys]\nareas = 1\n")).is_ok());
        let others = FIXED.replace("web", "others");
        assert!(load(&format!("{DATABASE}{others}")).is_ok());
        let error = load(DATABASE).unwrap_err().to_string();
        assert!(error.contains("app[0].client_class: needs a gate"), "{error}");
    }

    #[test]
    fn areas_that_make_no_sense_are_refused_with_file_line_and_key() {
        let with = |areas: &str| format!("{DATABASE}{areas}");
        let none = "[[app.area]]\nclient_class = \"web\"\n";
        let twice = format!("{FIXED}{FIXED}");
        let keys = "[app.area_keys]\nareas = 1\n";
        for (text, why) in [
            (with(none), "lull.toml:13: app[0].area[0]: needs cores"),
            (with(&twice), "lull.toml:16: app[0].area[1]: class `web` has an area already"),
            (with(&FIXED.replace("web", "shop")), "app[0].area[0]: class `shop` is not a class"),
            (with(&format!("{FIXED}{keys}")), "app[0].area[0]: is fixed: keys are for areas"),
            (
                with(keys).replace("[[app.client_class]]", "concurrency = 4\n[[app.client_class]]"),
                "app[0].area_keys: divides no cores",
            ),
            (with(FIXED).replace("cores", "core"), "unknown field `core`"),
            (with(FIXED).replace("latency = \"preload\"\n", ""), "app[0].area: needs latency"),
            (with(FIXED).replace("mariadbd", "memcached"), "app[0].area: a thread of memcached"),
        ] {
            let error = load(&text).unwrap_err().to_string();
            assert!(error.contains(why), "wanted: {why}\nsaid: {error}");
        }
    }

    #[test]
    fn cores_and_keys_that_a_machine_or_its_limits_do_not_have_are_refused_with_their_key() {
        let plant = MemoryPlant::new(4, Vec::new());
        let check = |more: &str| {
            let config = load(&format!("{DATABASE}{more}")).unwrap();
            config.check_area_cores(plant.machine()).map_err(|error| error.to_string())
        };
        assert_eq!(check(FIXED), Ok(()));
        let beyond = check(&FIXED.replace("0-2", "3-4")).unwrap_err();
        let why = "lull.toml:13: app[0].area[0]: cores 3-4: this machine has 0-3";
        assert_eq!(beyond, why);
        let limited = check(&format!("{FIXED}[limits]\ncores = \"0-1\"\n")).unwrap_err();
        assert!(
            limited.contains("app[0].area[0]: cores 0-2: limits.cores allows 0-1"),
            "{limited}"
        );
        let key = check(&format!("{PROMISED}[app.area_keys]\nareass = 1\n")).unwrap_err();
        assert!(key.starts_with("lull.toml:18: app[0].area_keys.areass: "), "{key}");
    }
}
