//! The areas of cores of the apps' servers, beside the control loop.
//!
//! Each server with areas has a thread that moves its threads ([`LiveAreas`]), as under
//! `lull exec`. The policy of the run leaves the cores of such an app alone.

use crate::admission::Order;
use crate::areas::{AreaPlan, AreasSummary, LiveAreas};
use crate::config::Config;
use lull_control::journal::{Entry, Event};
use lull_control::{AppId, Knob};
use lull_host::apps::AppHandle;
use lull_host::oncall::{Runtime, Watch};
use lull_measure::Nanos;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The areas of all apps that have any. They begin with [`AppAreas::start`].
pub(super) struct AppAreas {
    all: Vec<ServerAreas>,
    /// The last order of an operator.
    order: Cell<Order>,
}

/// The areas of one app.
struct ServerAreas {
    id: AppId,
    app: String,
    plan: AreaPlan,
    runtime: Arc<Runtime>,
    live: Option<LiveAreas>,
    /// Changes that the journal does not have yet: the source of the areas, and their description.
    news: Vec<(&'static str, String)>,
}

impl AppAreas {
    /// Returns the areas of a config, whose apps have these pages.
    pub(super) fn new(config: &Config, apps: &[(AppHandle, Option<Watch>)]) -> Self {
        let both = (0u16..).map(AppId).zip(&config.apps).zip(apps);
        let all = both.filter_map(|((id, app), (_, watch))| {
            Some(ServerAreas {
                id,
                app: app.name.clone(),
                // The config was checked when it was read.
                plan: app.areas(config.limits.cores.as_ref()).ok()??,
                runtime: watch.as_ref()?.runtime(),
                live: None,
                news: Vec::new(),
            })
        });
        Self { all: all.collect(), order: Cell::new(Order::Resume) }
    }

    /// Begins to keep threads in their areas, unless it is a dry run.
    ///
    /// # Errors
    /// If a class, a core or a key does not exist, or no thread can be started.
    pub(super) fn start(&mut self, dry_run: bool, say: &dyn Fn(&str)) -> anyhow::Result<()> {
        for one in &mut self.all {
            let app = &one.app;
            if dry_run {
                say(&format!("{app}: a dry run moves no thread to an area of cores"));
                continue;
            }
            let live = LiveAreas::start(&one.plan, &one.runtime).map_err(|error| {
                anyhow::anyhow!("app `{app}`: its areas of cores cannot be kept: {error}")
            })?;
            say(&format!("{app}: its clients have areas of cores: the policy leaves its cores"));
            one.live = Some(live);
        }
        Ok(())
    }

    /// Returns the knobs that the policy leaves alone.
    pub(super) fn knobs(&self) -> impl Iterator<Item = Knob> {
        self.all.iter().map(|one| Knob::Cores(one.id))
    }

    /// Stops all decisions, restores all threads' own cores, or lets areas continue.
    pub(super) fn order(&self, order: Order) {
        self.order.set(order);
        self.all.iter().filter_map(|one| one.live.as_ref()).for_each(|live| live.order(order));
    }

    /// Continues with the areas of a changed config, which was checked. Areas that did not change
    /// keep their threads in place.
    pub(super) fn reload(&mut self, config: &Config) {
        for one in &mut self.all {
            let section = config.apps.iter().find(|app| app.name == one.app);
            let plan = section.and_then(|app| app.areas(config.limits.cores.as_ref()).ok()?);
            let Some(plan) = plan.filter(|plan| *plan != one.plan) else { continue };
            one.plan = plan;
            // A dry run has no threads to move.
            let Some(live) = one.live.take() else { continue };
            let by = live.name();
            one.news.extend(live.finish().refusals().map(|text| (by, text)));
            match LiveAreas::start(&one.plan, &one.runtime) {
                Ok(live) => {
                    live.order(self.order.get());
                    one.live = Some(live);
                }
                Err(error) => one.news.push((by, format!("no areas from now on: {error}"))),
            }
        }
    }

    /// Returns the changes since the last call, for the journal.
    pub(super) fn take_changes(&mut self, time: Nanos) -> Vec<Entry> {
        let mut all = Vec::new();
        for one in &mut self.all {
            if let Some(live) = &mut one.live {
                let by = live.name();
                one.news.extend(live.take_change().map(|change| (by, change)));
                one.news.extend(live.take_pool_report().map(|text| (by, text.to_owned())));
            }
            let entry = |(by, areas): (&str, String)| Entry {
                time,
                event: Event::AreasChanged { app: one.app.clone(), by: by.to_owned(), areas },
            };
            all.extend(one.news.drain(..).map(entry));
        }
        all
    }

    /// Describes the areas of an app as they are now; empty without any.
    pub(super) fn describe(&self, app: &str) -> String {
        let of_app = self.all.iter().find(|one| one.app == app);
        match of_app.and_then(|one| one.live.as_ref()) {
            Some(_) if self.order.get() == Order::Open => {
                "threads have their own cores until the run is resumed".to_owned()
            }
            Some(live) => live.describe(),
            None => String::new(),
        }
    }

    /// Gives all threads their own cores back. Returns what the areas of each app have counted.
    pub(super) fn finish(self) -> BTreeMap<String, AreasSummary> {
        let summary = |one: ServerAreas| Some((one.app, one.live?.finish()));
        self.all.into_iter().filter_map(summary).collect()
    }
}
