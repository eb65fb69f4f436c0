//! Checks of a node's model; errors name the key.

use super::model::{
    Activity, Cache, ClosedClients, LoadStep, Memory, MemoryUse, NodeApp, NodeClient, NodeModel,
    NodeScheduler,
};
use super::presence::Presence;
use crate::model::{Checked, Distribution, Problem, above_0, at_least_one, at_most, fail, range};
use lull_measure::Nanos;
use lull_workload::arrivals::{Schedule, ScheduleError};
use std::collections::BTreeSet;

/// Cores and ways are bits of a word.
const MOST_CORES: u64 = 64;
const MOST_WAYS: u64 = 64;
/// Most threads of one app and of all.
const MOST_THREADS: u64 = 1 << 14;
/// Most clients of an app that wait for answers.
const MOST_CLIENTS: u64 = 1 << 20;

impl NodeModel {
    /// Checks everything that can be checked without running the model.
    ///
    /// # Errors
    /// The first thing found that cannot be simulated, with its key.
    pub fn check(&self) -> Checked {
        at_least_one(u64::from(self.cores), "cores", "cores")?;
        at_most(u64::from(self.cores), MOST_CORES, "cores", "cores")?;
        above_0(self.frequency.0 as f64, "frequency")?;
        span_above_0(self.refresh, "refresh")?;
        check_scheduler(&self.scheduler)?;
        self.cache.as_ref().map_or(Ok(()), check_cache)?;
        self.memory.as_ref().map_or(Ok(()), check_memory)?;
        if self.app.is_empty() {
            return fail("app", Problem::Empty { wanted: "a node needs at least one `[[app]]`" });
        }
        let mut names = BTreeSet::new();
        for (at, app) in self.app.iter().enumerate() {
            let key = format!("app[{at}]");
            if !names.insert(app.name.as_str()) {
                let name = app.name.clone();
                return fail(format!("{key}.name"), Problem::Duplicate { name });
            }
            check_app(app, &key)?;
            self.check_client(app, &key)?;
            check_presence(app, &key)?;
        }
        let threads = self.app.iter().map(|app| u64::from(app.threads)).sum();
        at_most(threads, MOST_THREADS, "threads of all apps", "app")
    }

    /// The client of an app's requests is one of the node's, and is a client.
    fn check_client(&self, app: &NodeApp, key: &str) -> Checked {
        let Activity::Requests { client: Some(NodeClient { app: name, .. }), .. } = &app.activity
        else {
            return Ok(());
        };
        let found = self.app_named(name).map(|at| &self.app[at].activity);
        if matches!(found, Some(Activity::Clients)) {
            return Ok(());
        }
        let problem = "it names no app of this node whose activity is `clients`";
        fail(format!("{key}.activity.requests.client.app"), Problem::Conflict(problem))
    }
}

fn check_scheduler(scheduler: &NodeScheduler) -> Checked {
    span_above_0(scheduler.slice, "scheduler.slice")?;
    span_above_0(scheduler.real_time_slice, "scheduler.real-time-slice")?;
    span_above_0(scheduler.balance, "scheduler.balance")?;
    let chance = scheduler.wakeup_chance;
    range(chance, (0.0..=1.0).contains(&chance), "0 to 1", "scheduler.wakeup-chance")?;
    if scheduler.switch_cost.saturating_add(scheduler.cold_cost) >= scheduler.slice {
        let problem = "a switch that costs a whole slice leaves no time for work: \
                       make `switch-cost` and `cold-cost` less than `slice`";
        return fail("scheduler.switch-cost", Problem::Conflict(problem));
    }
    Ok(())
}

fn check_cache(cache: &Cache) -> Checked {
    at_least_one(u64::from(cache.ways), "ways", "cache.ways")?;
    at_most(u64::from(cache.ways), MOST_WAYS, "ways", "cache.ways")?;
    at_least_one(u64::from(cache.reference_ways.unwrap_or(1)), "ways", "cache.reference-ways")
}

fn check_memory(memory: &Memory) -> Checked {
    above_0(memory.peak_bytes_per_s, "memory.peak-bytes-per-s")?;
    let queueing = memory.queueing;
    range(queueing, (0.0..=1e3).contains(&queueing), "0 to 1000", "memory.queueing")?;
    let Some(throttle) = memory.throttle else { return Ok(()) };
    let [min, step] = [throttle.min_percent, throttle.step_percent].map(f64::from);
    range(min, (1.0..=100.0).contains(&min), "1 to 100", "memory.throttle.min-percent")?;
    range(step, (1.0..=100.0).contains(&step), "1 to 100", "memory.throttle.step-percent")
}

/// Changes happen when they are due. Clients that come and go are refused, for they would leave
/// requests without a sender.
fn check_presence(app: &NodeApp, key: &str) -> Checked {
    let first = app.presence.changes().first().map(|(.., key)| *key);
    if let (Activity::Clients, Some(which)) = (&app.activity, first) {
        let problem = "an app of clients must be present for the whole run: let the app that \
                       serves its requests come and go instead";
        return fail(format!("{key}.presence.{which}"), Problem::Conflict(problem));
    }
    app.presence.check(key)
}

fn check_app(app: &NodeApp, key: &str) -> Checked {
    at_least_one(u64::from(app.threads), "threads", &format!("{key}.threads"))?;
    above_0(app.ipc, &format!("{key}.ipc"))?;
    check_use(&app.memory, &format!("{key}.memory"))?;
    match &app.activity {
        Activity::Endless | Activity::Clients => Ok(()),
        Activity::Phases { work } => check_work(work, &format!("{key}.activity.phases.work")),
        Activity::Requests { work, load, closed, delay, client, .. } => {
            check_work(work, &format!("{key}.activity.requests.work"))?;
            let client = client.as_ref().map(|client| &client.work);
            for (what, work) in [("delay", delay.as_ref()), ("client.work", client)] {
                work.map_or(Ok(()), |work| {
                    check_work(work, &format!("{key}.activity.requests.{what}"))
                })?;
            }
            if let Some(closed) = closed {
                return check_closed(closed, app, &format!("{key}.activity.requests"));
            }
            match schedule(load) {
                Ok(_) => Ok(()),
                Err(error) => fail(format!("{key}.activity.requests.load"), problem(error)),
            }
        }
    }
}

/// Clients that wait have no rate, and go on for the whole run.
fn check_closed(closed: &ClosedClients, app: &NodeApp, key: &str) -> Checked {
    let clients = u64::from(closed.clients);
    at_least_one(clients, "clients", &format!("{key}.closed.clients"))?;
    at_most(clients, MOST_CLIENTS, "clients", &format!("{key}.closed.clients"))?;
    check_work(&closed.think, &format!("{key}.closed.think"))?;
    if let Activity::Requests { load, .. } = &app.activity
        && !load.is_empty()
    {
        let problem = "clients that wait for answers have no rate: leave one of both out";
        return fail(format!("{key}.load"), Problem::Conflict(problem));
    }
    if app.presence != Presence::default() {
        let problem = "clients that wait for answers would wait for ever where their app departs: \
                       give it a rate instead";
        return fail(format!("{key}.closed"), Problem::Conflict(problem));
    }
    Ok(())
}

/// The arrival rate over time that load steps mean.
pub(super) fn schedule(load: &[LoadStep]) -> Result<Schedule, ScheduleError> {
    let begins = load.first().is_none_or(|first| first.from == Nanos::ZERO);
    let ascends = load.is_sorted_by(|a, b| a.from < b.from);
    if !begins || !ascends {
        return Err(ScheduleError::Time);
    }
    let points: Vec<_> =
        load.iter().map(|step| (step.from.as_secs_f64(), step.rate_per_s)).collect();
    Schedule::steps(&points)
}

fn problem(error: ScheduleError) -> Problem {
    Problem::Conflict(match error {
        ScheduleError::Rate => "a rate must lie between 0 and 1e9 requests/s",
        ScheduleError::Time => "the first step begins at 0s, and each later than the one before",
        ScheduleError::Idle => "no request would ever come: give a rate above 0",
    })
}

fn check_work(work: &Distribution, key: &str) -> Checked {
    span_above_0(work.mean, &format!("{key}.mean"))?;
    let cv2 = work.shape.cv2();
    range(cv2, cv2.is_finite() && cv2 >= 0.0, "at least 0", &format!("{key}.shape.cv2"))
}

fn check_use(memory: &MemoryUse, key: &str) -> Checked {
    let MemoryUse { share, bytes_per_s, floor, ways } = *memory;
    range(share, (0.0..=1.0).contains(&share), "0 to 1", &format!("{key}.share"))?;
    let traffic = bytes_per_s.is_finite() && bytes_per_s >= 0.0;
    range(bytes_per_s, traffic, "at least 0", &format!("{key}.bytes-per-s"))?;
    range(floor, floor > 0.0 && floor <= 1.0, "above 0, at most 1", &format!("{key}.floor"))?;
    above_0(ways, &format!("{key}.ways"))?;
    if bytes_per_s > 0.0 && share == 0.0 {
        let what = "an app with memory traffic waits for it: give a `share` above 0";
        return fail(format!("{key}.share"), Problem::Conflict(what));
    }
    Ok(())
}

fn span_above_0(span: Nanos, key: &str) -> Checked {
    above_0(span.as_secs_f64(), key)
}
