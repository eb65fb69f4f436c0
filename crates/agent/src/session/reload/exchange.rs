//! Which apps are added to the run by a reload, which are removed, and which are found in another
//! way from then on.
//!
//! An app keeps its id as long as the config has its name, and gets it back if it is added again.

use super::difference::Difference;
use crate::config::{AppSection, Config, LatencySource, Reference};
use crate::located::InputError;
use lull_control::{AppId, AppSpec, LatencyOf};
use lull_measure::Percentile;
use std::collections::BTreeSet;

/// Keys of `[[app]]` that change without a change of its processes.
const OF_APP: [&str; 5] = ["ideal", "max_load", "objectives", "solo", "threads"];
/// The same of `[[match]]`.
const OF_TEMPLATE: [&str; 4] = ["ideal", "objectives", "solo", "threads"];

/// Keys of an `[[app]]` with areas of cores that change as long as it keeps some: the policy of a
/// run leaves the cores of an app to its areas from the start on, or never.
const OF_AREAS: [&str; 2] = ["area", "area_keys"];

/// Why a key is refused.
pub(super) const RESTART: &str = "cannot change while the agent runs: restart it to take it over";

/// The apps that change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Exchange {
    /// Apps whose processes get their former values back.
    pub(super) leaving: Vec<AppId>,
    /// Apps that are searched from now on, with their indices in the new config.
    pub(super) arriving: Vec<(AppId, usize)>,
    /// Indexed by id: the index of each app in the new config; `None` if the app is not in it.
    places: Vec<Option<usize>>,
}

impl Exchange {
    /// Finds out what changes from a former config, in the order of ids and with these apps in
    /// force, to a new one.
    ///
    /// # Errors
    /// The first key that needs a restart.
    pub(super) fn plan(
        former: &Config,
        now: &[AppSpec],
        new: &Config,
        difference: &Difference,
    ) -> Result<Self, InputError> {
        let renewed = renewed(former, new, difference)?;
        check_added(new, difference)?;
        let is_new = |index: usize| {
            let key = new.apps[index].entry(index);
            renewed.contains(&key) || difference.has_added(&key)
        };
        let place = |app: &AppSection| new.apps.iter().position(|other| other.name == app.name);
        let mut places: Vec<Option<usize>> = former.apps.iter().map(place).collect();
        let is_known =
            |index: &usize| former.apps.iter().any(|app| app.name == new.apps[*index].name);
        places.extend((0..new.apps.len()).filter(|index| !is_known(index)).map(Some));
        let ids = || (0u16..).map(AppId);
        let is_in_force = |app: AppId| now.get(app.index()).is_some_and(|spec| !spec.is_removed());
        let leaves =
            |(app, place): &(AppId, &Option<usize>)| is_in_force(*app) && place.is_none_or(is_new);
        let leaving = ids().zip(&places).filter(leaves).map(|(app, _)| app).collect();
        let arrives = |(app, place): (AppId, &Option<usize>)| {
            place.filter(|index| is_new(*index)).map(|index| (app, index))
        };
        let arriving = ids().zip(&places).filter_map(arrives).collect();
        let exchange = Self { leaving, arriving, places };
        exchange.check_leaving(former, new)?;
        exchange.check_measured(former, new, now)?;
        Ok(exchange)
    }

    /// Whether every app stays.
    pub(super) const fn is_empty(&self) -> bool {
        self.leaving.is_empty() && self.arriving.is_empty()
    }

    /// The apps that leave or arrive, or both.
    pub(super) fn changed(&self) -> Vec<AppId> {
        let all = self.leaving.iter().copied().chain(self.arriving.iter().map(|(app, _)| *app));
        all.collect::<BTreeSet<AppId>>().into_iter().collect()
    }

    /// The new config with its apps in the order of their ids. An app that was removed keeps its
    /// place, so that its name has the same id if it is added again.
    pub(super) fn arrange(&self, former: &Config, new: &Config) -> Config {
        let app = |(id, place): (usize, &Option<usize>)| match place {
            Some(index) => new.apps[*index].clone(),
            None => {
                let mut removed = former.apps[id].clone();
                removed.slot = None;
                removed
            }
        };
        let apps = self.places.iter().enumerate().map(app).collect();
        Config { apps, ..new.clone() }
    }

    /// The apps by id. Those that stay keep the references that `now` has, measured or corrected,
    /// unless the text gives another number than the former one; an arriving app is another
    /// program, even under the same name.
    pub(super) fn specs(&self, former: &Config, new: &Config, now: &[AppSpec]) -> Vec<AppSpec> {
        let spec = |(id, place): (usize, &Option<usize>)| {
            let Some(index) = place else { return AppSpec::removed() };
            let spec = new.apps[*index].spec();
            let is_arriving = self.arriving.iter().any(|(app, _)| app.index() == id);
            let both = now.get(id).zip(former.apps.get(id)).filter(|_| !is_arriving);
            let Some((now, before)) = both else { return spec };
            let before = before.spec();
            // A corrected ideal applies to the percentile at which it was measured.
            let is_same_tail = percentile(&spec) == percentile(&before);
            AppSpec {
                ideal: match is_same_tail || spec.ideal.is_none() {
                    true => reference(spec.ideal, before.ideal, now.ideal),
                    false => spec.ideal,
                },
                solo_per_s: reference(spec.solo_per_s, before.solo_per_s, now.solo_per_s),
                ..spec
            }
        };
        self.places.iter().enumerate().map(spec).collect()
    }

    /// Refuses to remove an app that only a restart can end.
    fn check_leaving(&self, former: &Config, new: &Config) -> Result<(), InputError> {
        for app in &self.leaving {
            let section = &former.apps[app.index()];
            let is_removed = self.places[app.index()].is_none();
            if let Some(key) = fixed_key(section).filter(|_| is_removed) {
                let place = if section.slot.is_some() { "match" } else { "app" };
                let what = format!(
                    "`{}` has `{key}` and cannot be removed while the agent runs: restart it to \
                     take it over",
                    section.name
                );
                return Err(new.source.error(place, what));
            }
        }
        Ok(())
    }

    /// Refuses references that would have to be measured, for which all other apps would wait.
    fn check_measured(
        &self,
        former: &Config,
        new: &Config,
        now: &[AppSpec],
    ) -> Result<(), InputError> {
        let specs = self.specs(former, new, now);
        for (app, index) in &self.arriving {
            let (section, spec) = (&new.apps[*index], &specs[app.index()]);
            let ideal = matches!(section.ideal, Some(Reference::Measure(_)));
            let solo = matches!(section.solo, Some(Reference::Measure(_)));
            let missing = [
                ("ideal", ideal && spec.ideal.is_none()),
                ("solo", solo && spec.solo_per_s.is_none()),
            ];
            if let Some((key, _)) = missing.into_iter().find(|(_, is_missing)| *is_missing) {
                let what = "cannot be measured while the agent runs: give a number, or restart it";
                return Err(new.source.error(&format!("{}.{key}", section.entry(*index)), what));
            }
        }
        Ok(())
    }
}

/// The percentile of an app's first objective.
fn percentile(spec: &AppSpec) -> Option<Percentile> {
    spec.tail().map(|(percentile, _)| percentile)
}

/// The number that the text gives, if it is another one than `before`, or else the one in force.
fn reference<T: Copy + PartialEq>(
    given: Option<T>,
    before: Option<T>,
    now: Option<T>,
) -> Option<T> {
    if given == before { now } else { given.or(now) }
}

/// The entries of the new config whose apps are found, read or treated in another way than before.
fn renewed(
    former: &Config,
    new: &Config,
    difference: &Difference,
) -> Result<BTreeSet<String>, InputError> {
    let mut renewed = BTreeSet::new();
    for key in &difference.keys {
        let Some((entry, rest)) = key.split_once('.') else { continue };
        let mut all = new.apps.iter().enumerate();
        let Some((_, app)) = all.find(|(index, app)| app.entry(*index) == entry) else { continue };
        let before = former.apps.iter().find(|before| before.name == app.name);
        let has_areas = !app.area.is_empty() && before.is_some_and(|app| !app.area.is_empty());
        if has_areas && OF_AREAS.contains(&rest) {
            continue;
        }
        let can_change: &[&str] = if app.slot.is_some() { &OF_TEMPLATE } else { &OF_APP };
        let is_same = before.is_some_and(|before| {
            source_of(before) == source_of(app)
                && before.controller().is_none()
                && app.controller().is_none()
        });
        if is_same && can_change.contains(&rest) {
            continue;
        }
        let is_fixed = |app: &AppSection| app.start.is_some() || fixed_key(app).is_some();
        if before.is_some_and(is_fixed) || is_fixed(app) {
            return Err(new.source.error(key, RESTART));
        }
        renewed.insert(entry.to_owned());
    }
    Ok(renewed)
}

/// Refuses to add an app that needs a source which is only opened at the start.
fn check_added(new: &Config, difference: &Difference) -> Result<(), InputError> {
    for (index, app) in new.apps.iter().enumerate() {
        let entry = app.entry(index);
        if let Some(key) = fixed_key(app).filter(|_| difference.has_added(&entry)) {
            let what = "cannot be added while the agent runs: restart it to take it over";
            return Err(new.source.error(&format!("{entry}.{key}"), what));
        }
    }
    Ok(())
}

/// Returns the key because of which an app can only be added and removed with a restart, because a
/// source of it is opened at the start.
fn fixed_key(app: &AppSection) -> Option<&'static str> {
    let is_plain = matches!(app.latency, LatencySource::Push | LatencySource::Ebpf);
    let keys = [
        ("register", app.register.is_some()),
        ("pods", app.pods.is_some()),
        ("latency", !is_plain),
    ];
    keys.into_iter().find_map(|(key, is_given)| is_given.then_some(key))
}

/// Returns the source of an app's latency.
fn source_of(app: &AppSection) -> LatencyOf {
    app.latency_of().unwrap_or(LatencyOf::Requests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::located::Located;
    use lull_measure::Nanos;

    const OLD: &str = "[policy]\nname = \"unmanaged\"\n\
        [[app]]\nname = \"server\"\nclass = \"latency-critical\"\n\
        objectives = [{ p95 = \"4ms\" }]\nideal = \"2ms\"\npid = 7\n\
        [[app]]\nname = \"batch\"\nclass = \"best-effort\"\nsolo = 1.0\npid = 8\n\
        [[match]]\nname = \"w\"\nclass = \"best-effort\"\nexe = \"sleep\"\nmost = 2\n";
    const START: &str = "start = [\"x\"]";
    const REGISTERED: &str =
        "[[match]]\nname = \"r\"\nclass = \"best-effort\"\nregister = \"*\"\nmost = 1\n";
    const LATE: &str = "[[app]]\nname = \"late\"\nclass = \"best-effort\"\nsolo = 1.0\npid = 9\n";

    fn config(text: &str) -> Config {
        Config::from_located(Located::embedded("lull.toml", text)).unwrap()
    }

    fn difference(former: &Config, new: &Config) -> Difference {
        Difference::between(&former.source.parse().unwrap(), &new.source.parse().unwrap())
    }

    fn plan(former: &Config, now: &[AppSpec], new: &Config) -> Result<Exchange, String> {
        let difference = difference(former, new);
        Exchange::plan(former, now, new, &difference).map_err(|error| error.to_string())
    }

    /// Returns the ids that leave, and the apps that arrive under each id.
    fn moves(exchange: &Exchange, new: &Config) -> (Vec<u16>, Vec<(u16, String)>) {
        let arriving = exchange.arriving.iter();
        let arriving = arriving.map(|(app, index)| (app.0, new.apps[*index].name.clone()));
        (exchange.leaving.iter().map(|app| app.0).collect(), arriving.collect())
    }

    fn named(all: &[(u16, &str)]) -> Vec<(u16, String)> {
        all.iter().map(|(id, name)| (*id, (*name).to_owned())).collect()
    }

    #[test]
    fn objectives_change_without_an_exchange() {
        let (former, new) = (config(OLD), config(&OLD.replace("4ms", "5ms")));
        let exchange = plan(&former, &former.specs(), &new).unwrap();
        assert!(exchange.is_empty() && exchange.changed().is_empty());
        let specs = exchange.specs(&former, &new, &former.specs());
        assert_eq!(specs[0].objectives, new.specs()[0].objectives);
    }

    #[test]
    fn an_added_app_has_a_new_id_and_a_removed_one_leaves_a_gap_that_its_name_gets_back() {
        let former = config(OLD);
        let without = OLD.replace("name = \"batch\"", "name = \"late\"").replace("= 8", "= 9");
        let new = config(&without);
        let exchange = plan(&former, &former.specs(), &new).unwrap();
        assert_eq!(moves(&exchange, &new), (vec![1], named(&[(4, "late")])));
        let specs = exchange.specs(&former, &new, &former.specs());
        let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["server", "", "w-1", "w-2", "late"]);
        let arranged = exchange.arrange(&former, &new);
        let names: Vec<&str> = arranged.apps.iter().map(|app| app.name.as_str()).collect();
        assert_eq!(names, ["server", "batch", "w-1", "w-2", "late"]);
        // And back again.
        let back = config(OLD);
        let exchange = plan(&arranged, &specs, &back).unwrap();
        assert_eq!(moves(&exchange, &back), (vec![4], named(&[(1, "batch")])));
        assert_eq!(exchange.changed(), [AppId(1), AppId(4)]);
    }

    #[test]
    fn a_template_is_added_removed_and_renewed_as_a_whole() {
        let former = config(OLD);
        let (without, _) = OLD.split_once("[[match]]").unwrap();
        let new = config(without);
        let exchange = plan(&former, &former.specs(), &new).unwrap();
        assert_eq!(moves(&exchange, &new), (vec![2, 3], vec![]));
        let arranged = exchange.arrange(&former, &new);
        let again = config(&OLD.replace("most = 2", "most = 3"));
        let specs = exchange.specs(&former, &new, &former.specs());
        let exchange = plan(&arranged, &specs, &again).unwrap();
        let arriving = named(&[(2, "w-1"), (3, "w-2"), (4, "w-3")]);
        assert_eq!(moves(&exchange, &again), (vec![], arriving));
        let (more, less) = (again, config(&OLD.replace("most = 2", "most = 1")));
        let exchange = plan(&more, &more.specs(), &less).unwrap();
        assert_eq!(moves(&exchange, &less), (vec![2, 3, 4], named(&[(2, "w-1")])));
    }

    #[test]
    fn an_app_that_is_found_or_judged_in_another_way_leaves_and_arrives() {
        let former = config(OLD);
        for (from, to) in
            [("pid = 8", "match = { exe = \"x\" }"), ("[{ p95 = ", "[{ run_queue_p95 = ")]
        {
            let new = config(&OLD.replace(from, to));
            let exchange = plan(&former, &former.specs(), &new).unwrap();
            let id = if from.contains("pid") { (1, "batch") } else { (0, "server") };
            assert_eq!(moves(&exchange, &new), (vec![id.0], named(&[id])), "{to}");
        }
    }

    #[test]
    fn an_app_that_is_found_in_another_way_does_not_keep_what_was_measured_of_the_former_one() {
        let measured = OLD.replace("solo = 1.0", "solo = \"measure\"");
        let former = config(&measured);
        let mut now = former.specs();
        now[1].solo_per_s = Some(3.0);
        let stays = config(&measured.replace("4ms", "5ms"));
        let exchange = plan(&former, &now, &stays).unwrap();
        assert_eq!(exchange.specs(&former, &stays, &now)[1].solo_per_s, Some(3.0));
        let refused = plan(&former, &now, &config(&measured.replace("pid = 8", "pid = 9")));
        let refused = refused.unwrap_err();
        assert!(refused.contains("app[1].solo: cannot be measured"), "{refused}");
        let given = config(&OLD.replace("pid = 8", "pid = 9"));
        let exchange = plan(&former, &now, &given).unwrap();
        assert_eq!(exchange.specs(&former, &given, &now)[1].solo_per_s, Some(1.0));
    }

    #[test]
    fn a_corrected_reference_stays_until_the_text_gives_another_one() {
        let former = config(OLD);
        let mut now = former.specs();
        (now[0].ideal, now[1].solo_per_s) = (Some(Nanos::from_millis(1)), Some(3.0));
        let references = |text: &str| {
            let new = config(text);
            let exchange = plan(&former, &now, &new).unwrap();
            let specs = exchange.specs(&former, &new, &now);
            (specs[0].ideal.map(|ideal| ideal.0 / 1_000_000), specs[1].solo_per_s)
        };
        assert_eq!(references(&OLD.replace("4ms", "5ms")), (Some(1), Some(3.0)));
        assert_eq!(references(&format!("{OLD}[limits]\ndwell = \"1s\"\n")), (Some(1), Some(3.0)));
        assert_eq!(references(&OLD.replace("\"2ms\"", "\"3ms\"")), (Some(3), Some(3.0)));
        assert_eq!(references(&OLD.replace("solo = 1.0", "solo = 2.0")), (Some(1), Some(2.0)));
        assert_eq!(references(&OLD.replace("p95", "p99")), (Some(2), Some(3.0)));
        let other_program = OLD.replace("pid = 8", "pid = 9");
        assert_eq!(references(&other_program), (Some(1), Some(1.0)));
    }

    #[test]
    fn a_program_that_the_agent_starts_comes_and_goes_and_does_not_change() {
        let (without, with) =
            (config(OLD), config(&format!("{OLD}{LATE}").replace("pid = 9", START)));
        let exchange = plan(&without, &without.specs(), &with).unwrap();
        assert_eq!(moves(&exchange, &with), (vec![], named(&[(4, "late")])));
        let exchange = plan(&with, &with.specs(), &without).unwrap();
        assert_eq!(moves(&exchange, &without), (vec![2], vec![]));
        let other = config(&with.source.text().replace("\"x\"", "\"y\""));
        let refused = plan(&with, &with.specs(), &other).unwrap_err();
        assert!(refused.contains("app[2].start: cannot change while the agent runs"), "{refused}");
    }

    #[test]
    fn what_comes_and_goes_with_the_agent_only_is_refused_by_its_key() {
        let former = config(&format!("{OLD}{LATE}"));
        let started = format!("{OLD}{LATE}").replace("pid = 9", START);
        let refusal =
            |former: &Config, new: &str| plan(former, &former.specs(), &config(new)).unwrap_err();
        let changed = refusal(&former, &started);
        assert!(changed.contains("app[2].pid: cannot change while the agent runs"), "{changed}");
        let registered = format!("{OLD}{REGISTERED}");
        let added = refusal(&config(OLD), &registered);
        assert!(added.contains("match[1].register: cannot be added"), "{added}");
        let removed = refusal(&config(&registered), OLD);
        assert!(removed.contains("match: `r-1` has `register` and cannot"), "{removed}");
        let measured =
            format!("{OLD}{LATE}").replace("solo = 1.0\npid = 9", "solo = \"measure\"\npid = 9");
        let measured = refusal(&config(OLD), &measured);
        assert!(measured.contains("app[2].solo: cannot be measured"), "{measured}");
    }
}
