//! The apps that a reload adds to the run, found before anything changes.

use super::exchange::Exchange;
use crate::config::{AppOrigin, AppSection, Config};
use crate::located::InputError;
use crate::session::Session;
use crate::session::open::launch::target_of;
use crate::session::open::sources::Sources;
use lull_control::{AppId, AppSpec, Plant};
use lull_host::apps::{self, AppHandle, AttachError, GRACE};
use lull_host::{HostApp, HostError, Roots};

impl Session {
    /// Attaches to the apps that arrive, and starts those that are programs of the agent. Nothing
    /// else has changed then.
    ///
    /// # Errors
    /// If one cannot be looked for, has a process of another app, or does not start.
    pub(super) fn attach(
        &mut self,
        new: &Config,
        exchange: &Exchange,
        specs: &[AppSpec],
    ) -> Result<Vec<(AppId, HostApp)>, InputError> {
        let mut found = Vec::new();
        for (_, index) in &exchange.arriving {
            found.extend(handles_of(new, *index, &self.roots)?);
        }
        let mut arriving = self.host_apps(new, exchange, specs, found);
        let plant = self.control.plant_mut();
        let checked = plant.check_arrivals(&mut arriving, &exchange.leaving);
        checked.map_err(|error| located(new, &error))?;
        // Programs are started last, because a start that proves useless has effects all the same.
        let started = self.start_arrivals(new, exchange)?;
        arriving.extend(self.host_apps(new, exchange, specs, started));
        arriving.sort_by_key(|(id, _)| *id);
        Ok(arriving)
    }

    /// Returns the apps that have these handles, with their sources of readings.
    fn host_apps(
        &self,
        new: &Config,
        exchange: &Exchange,
        specs: &[AppSpec],
        handles: Vec<AppHandle>,
    ) -> Vec<(AppId, HostApp)> {
        let sources = Sources::new(new, self.plant().machine(), &self.roots, &self.pod_apps);
        let host_app = |handle: AppHandle| {
            let mut all = exchange.arriving.iter();
            let (id, index) = all.find(|(_, index)| new.apps[*index].name == handle.name())?;
            let host_app = sources.host_app(*id, &new.apps[*index], handle, None);
            Some((*id, HostApp { spec: specs[id.index()].clone(), ..host_app }))
        };
        handles.into_iter().filter_map(host_app).collect()
    }

    /// Starts the apps that arrive as programs of the agent, without a wait until they are ready;
    /// if one does not start, those before it are ended again.
    fn start_arrivals(
        &mut self,
        new: &Config,
        exchange: &Exchange,
    ) -> Result<Vec<AppHandle>, InputError> {
        let mut started = Vec::new();
        for (_, index) in &exchange.arriving {
            let app = &new.apps[*index];
            let Ok(AppOrigin::Start(argv)) = app.origin() else { continue };
            let launch = self.launcher.launch(&app.name, argv, &app.name, None);
            let ledger = self.control.plant_mut().ledger_mut();
            let one = launch.and_then(|it| Ok(AppHandle::start(&it, &self.roots, ledger)?));
            match one {
                Ok(one) => started.push(one),
                Err(error) => {
                    let _ = apps::stop(&mut started, &self.roots, GRACE);
                    let key = format!("{}.start", app.entry(*index));
                    return Err(new.source.error(&key, crate::error::describe(&error)));
                }
            }
        }
        Ok(started)
    }
}

/// Attaches to an app that is not started, or with the first app of a template to all apps of it.
fn handles_of(new: &Config, index: usize, roots: &Roots) -> Result<Vec<AppHandle>, InputError> {
    let app = &new.apps[index];
    let refuse = |why: String| new.source.error(&app.entry(index), why);
    let place = app.origin().map_err(refuse)?;
    if matches!(place, AppOrigin::Start(_)) {
        return Ok(Vec::new());
    }
    let target = target_of(place).map_err(|error| refuse(error.to_string()))?;
    let failed = |error: AttachError| {
        refuse(format!("cannot be attached: {}", crate::error::describe(&error.into())))
    };
    match app.slot {
        None => Ok(vec![AppHandle::attach(&app.name, &target, roots).map_err(failed)?]),
        Some(slot) if slot.index == 0 => {
            let is_of = |app: &&AppSection| app.slot.is_some_and(|it| it.template == slot.template);
            let names = new.apps.iter().filter(is_of).map(|app| app.name.clone());
            let names: Vec<String> = names.collect();
            AppHandle::attach_each(&names, &target, roots).map_err(failed)
        }
        Some(_) => Ok(Vec::new()),
    }
}

/// Names the entry of the config whose app has a process of another app.
fn located(new: &Config, error: &HostError) -> InputError {
    let mut apps = new.apps.iter().enumerate();
    let key = match error {
        HostError::Shared { second, .. } => apps.find(|(_, app)| app.name == *second),
        _ => None,
    };
    let key = key.map(|(index, app)| app.entry(index)).unwrap_or_default();
    new.source.error(&key, error.to_string())
}
