//! Starting and attaching the apps and load clients of a config.

use super::{Agent, watch_of};
use crate::config::{AppOrigin, AppSection, Config, LoadSection, PodsAs, RegisterAs, TemplateSlot};
use crate::library::Library;
use crate::session::discovered::TemplateSlots;
use anyhow::Context;
use lull_host::Roots;
use lull_host::apps::{AppHandle, Endpoint, Launch, Output, Ready, Target};
use lull_host::guard::Ledger;
use lull_host::oncall::Watch;
use lull_host::own_directory::OwnDirectory;
use lull_host::plant::Stop;
use lull_host::register::{Registrar, Template};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a started app may take to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// Settings that all apps of a run share when they start.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub(super) roots: &'a Roots,
    pub(super) socket: &'a Path,
    pub(super) stop: &'a Stop,
    pub(super) library: Option<&'a Library>,
}

/// Where the apps of templates are found, besides among all processes.
#[derive(Clone, Copy)]
pub(super) struct TemplateSources<'a> {
    pub(super) registrar: Option<&'a Registrar>,
    pub(super) pod_slots: &'a TemplateSlots,
}

/// The environment of programs that a run starts, besides their own arguments.
#[derive(Debug)]
pub(in crate::session) struct Launcher {
    /// The `lull` program, if it is not the running executable.
    program: Option<PathBuf>,
    /// Where they push.
    socket: PathBuf,
    /// Where their output goes.
    logs: PathBuf,
}

impl Launcher {
    /// Started programs learn from the environment where to push and under which name.
    pub(in crate::session) fn launch(
        &self,
        name: &str,
        mut argv: Vec<String>,
        app: &str,
        ready: Option<Ready>,
    ) -> anyhow::Result<Launch> {
        // The examples must work where `lull` is not installed.
        if let Some(program) = argv.first_mut().filter(|program| *program == "lull") {
            let lull = self.program.clone().map_or_else(std::env::current_exe, Ok)?;
            *program = lull.to_string_lossy().into_owned();
        }
        let env = vec![
            ("LULL_SOCKET".to_owned(), self.socket.display().to_string()),
            ("LULL_APP".to_owned(), app.to_owned()),
        ];
        OwnDirectory::make(&self.logs).context("the logs of apps cannot be written")?;
        let output = Output::Log(self.logs.join(format!("{name}.log")));
        Ok(Launch { name: name.to_owned(), argv, env, output, ready })
    }
}

impl Agent<'_> {
    pub(super) fn start_app(
        &self,
        app: &AppSection,
        around: &Surroundings<'_>,
        ledger: &mut Ledger,
    ) -> anyhow::Result<(AppHandle, Option<Watch>)> {
        let Surroundings { roots, socket, stop, library } = *around;
        let watch = watch_of(app, roots)?;
        let target = match app.origin().map_err(anyhow::Error::msg)? {
            AppOrigin::Start(argv) => {
                let ready = app.ready.as_deref().map(|address| ready_at(address, stop));
                let mut launch = self.launcher(socket).launch(&app.name, argv, &app.name, ready)?;
                if let Some((watch, library)) = watch.as_ref().zip(library) {
                    launch.env.extend(watch.environment(library.path()));
                }
                let handle = AppHandle::start(&launch, roots, ledger)?;
                return Ok((handle, watch));
            }
            place => target_of(place)?,
        };
        let handle = AppHandle::attach(&app.name, &target, roots)
            .with_context(|| format!("app `{}` cannot be attached", app.name))?;
        Ok((handle, watch))
    }

    /// Returns the next app of a template; the call for its first app creates all of them.
    pub(super) fn attach_slot(
        &self,
        slot: TemplateSlot,
        roots: &Roots,
        found_by: TemplateSources<'_>,
        slots: &mut VecDeque<AppHandle>,
    ) -> anyhow::Result<(AppHandle, Option<Watch>)> {
        if slot.index == 0 {
            let is_of = |app: &&AppSection| app.slot.is_some_and(|it| it.template == slot.template);
            let all: Vec<_> = self.config.apps.iter().filter(is_of).collect();
            let names: Vec<_> = all.iter().map(|app| app.name.clone()).collect();
            let place = all.first().context("a template has an app")?.origin();
            let handles = match place.map_err(anyhow::Error::msg)? {
                AppOrigin::Register(one) => {
                    let slots =
                        found_by.registrar.and_then(|registrar| registrar.slots(&one.template));
                    let slots = slots.context("a template of registrations has slots")?;
                    AppHandle::attach_registered(&names, slots)
                }
                AppOrigin::Pods(_) => {
                    let slots = found_by.pod_slots.get(&slot.template);
                    let slots = slots.context("a template of pods has slots")?;
                    AppHandle::attach_assigned(&names, slots)
                }
                place => AppHandle::attach_each(&names, &target_of(place)?, roots)
                    .with_context(|| format!("`{}` cannot be looked for", names[0]))?,
            };
            *slots = handles.into();
        }
        Ok((slots.pop_front().context("a template has as many apps as its slots")?, None))
    }

    /// Returns the environment for the programs of this run.
    pub(super) fn launcher(&self, socket: &Path) -> Launcher {
        let (program, logs) = (self.program.clone(), crate::session::logs_of(&self.config));
        Launcher { program, socket: socket.to_owned(), logs }
    }

    pub(super) fn load_launch(
        &self,
        number: usize,
        load: &LoadSection,
        socket: &Path,
    ) -> anyhow::Result<Launch> {
        // Several loads may be on one app; each has its own log.
        let name = format!("load-{number}-{}", load.app);
        self.launcher(socket).launch(&name, load.arguments(), &load.app, None)
    }
}

/// Listens for processes that register themselves, if a template lets them.
pub(super) fn registrar_of(
    config: &Config,
    state: &Path,
    roots: &Roots,
) -> anyhow::Result<Option<Registrar>> {
    let mut templates: Vec<Template> = Vec::new();
    for RegisterAs { template, users } in config.apps.iter().filter_map(|app| app.register.clone())
    {
        match templates.iter_mut().find(|one| one.name == template) {
            Some(one) => one.most += 1,
            None => templates.push(Template { name: template, users, most: 1 }),
        }
    }
    if templates.is_empty() {
        return Ok(None);
    }
    let path = config.agent.register.clone().unwrap_or_else(|| state.join("register.sock"));
    Ok(Some(Registrar::listen(&path, &templates, roots)?))
}

/// Where processes are that Lull does not start.
pub(in crate::session) fn target_of(place: AppOrigin) -> anyhow::Result<Target> {
    Ok(match place {
        AppOrigin::Pid(pid) => Target::Pid(i32::try_from(pid).unwrap_or(i32::MAX)),
        AppOrigin::Cgroup(path) => Target::Cgroup(path),
        AppOrigin::Unit(unit) => Target::Unit(unit),
        AppOrigin::Match(pattern) => Target::Pattern(pattern),
        AppOrigin::Start(argv) => anyhow::bail!("{argv:?} is started, not looked for"),
        AppOrigin::Register(RegisterAs { template, .. })
        | AppOrigin::Pods(PodsAs { template, .. }) => {
            anyhow::bail!("`{template}` is not looked for")
        }
    })
}

fn ready_at(address: &str, stop: &Stop) -> Ready {
    let endpoint = match address.strip_prefix("unix:") {
        Some(path) => Endpoint::Unix(path.into()),
        None => Endpoint::Tcp(address.to_owned()),
    };
    Ready { endpoint, timeout: READY_TIMEOUT, stop: Some(stop.clone()) }
}
