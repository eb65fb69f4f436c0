//! Waiting for an epoch to pass, and reading every gauge at its end.

use super::app::{AppWaits, ProgressFrom, RunningApp, no_socket, progress as measured_progress};
use super::matches::ReportTime;
use super::presence::{CUT_MIN, LOOK};
use super::{EpochWait, HostPlant, now};
use crate::gauges::first_reading;
use crate::gauges::idle::IdleShares;
use crate::gauges::push::PushGauge;
use crate::guard::Key;
use crate::knobs::{
    Affinity, Change, ChangedSetting, KnobError, Means, Share, Taken, ThreadValue, Watched, cores,
    scheduling,
};
use crate::sys::sched::SchedState;
use crate::threads::LiveThread;
use lull_control::{
    AppId, AppObservation, CoreObservation, ForeignChange, Knob, LatencyObservation, Observation,
    PlantError, Progress, Readings, Setting, numbered,
};
use lull_measure::catalogue::MEMORY_PRESSURE;
use lull_measure::{Gauge, Missing, Nanos};
use rustix::time::ClockId;

/// Longest nap between two looks at the push socket: its buffers hold some
/// seconds of windows, and each nap costs a wake-up of a core that may sleep.
const NAP_MAX: Nanos = Nanos::from_millis(500);
/// Shortest time between two drains of the push socket within an epoch, each of which wakes the
/// front end: looks for apps are more frequent than naps.
const DRAIN_MIN: Nanos = Nanos::from_millis(350);
/// Shortest time between two drains if the first one found that nothing had been pushed: an epoch
/// of a second has none before its end. With naps between, two drains are up to 1.25 s apart, in
/// which 256 clients push fewer messages than one drain takes.
const DRAIN_SILENT_MIN: Nanos = Nanos::from_millis(750);
/// Shortest time between two looks for new processes, which cost most of an epoch where all
/// have to be listed; new threads of known processes are found in every epoch.
const LISTING_MIN: Nanos = Nanos::from_millis(250);
/// Shortest time between two looks for new processes of which the later one is at the end of an
/// epoch of at least [`REPORTED_EPOCH_MIN`], where the kernel reports what becomes of processes.
/// The look at the end is then in place of the next one within an epoch, which would be a wake-up
/// of its own.
const REPORTED_MIN: Nanos = Nanos::from_millis(100);
const REPORTED_EPOCH_MIN: Nanos = Nanos::from_millis(500);
/// Shortest time between two interruptions by news. The first one is taken in immediately; where
/// workloads come and go all the time, each interruption costs as much as several of them.
const NEWS_MIN: Nanos = Nanos::from_millis(200);
/// An epoch is never shorter than this share of the requested length, even if it
/// started late.
const SHORTEST_EPOCH: f64 = 0.995;

/// What a search for apps may follow.
#[derive(Debug, Clone, Copy)]
struct Events {
    /// The oldest process of an app has ended, whose end is awaited.
    has_ended_leader: bool,
    /// The kernel has reported something of processes.
    has_report: bool,
}

impl HostPlant {
    /// Waits until a discovery has news or the epoch ends; returns whether it has news, which are
    /// then taken in while the epoch lasts. [`Plant::observe`](lull_control::Plant::observe) with
    /// the same length waits for the rest of the epoch.
    ///
    /// # Errors
    /// As `observe`.
    pub fn wait_for_news(&mut self, epoch: Nanos) -> Result<bool, PlantError> {
        if self.discovery.is_none() {
            return Ok(false);
        }
        let mut wait = match self.epoch_wait {
            Some(wait) => wait,
            None => self.begin_wait(epoch),
        };
        // A cgroup that was assigned to an app since the last wait has processes already.
        self.look_if_due(&mut wait, now(ClockId::Monotonic), self.events());
        self.epoch_wait = Some(wait);
        self.wait_within(epoch, true)
    }

    /// Waits for the epoch's end.
    pub(super) fn wait(&mut self, epoch: Nanos) -> Result<(), PlantError> {
        self.wait_within(epoch, false)?;
        self.epoch_wait = None;
        Ok(())
    }

    /// Begins an epoch. Ends are a fixed distance apart, so that small delays do not add up.
    fn begin_wait(&mut self, epoch: Nanos) -> EpochWait {
        let pace = &mut self.pace;
        let earliest = pace.last.saturating_add(epoch.scale(SHORTEST_EPOCH));
        pace.deadline = pace.deadline.saturating_add(epoch).max(earliest);
        let may_cut = !std::mem::take(&mut self.was_cut);
        let begun = now(ClockId::Monotonic);
        self.note_reports(begun, self.has_report(), ReportTime::SinceSearch);
        EpochWait { may_cut, looked: begun, drained: begun, news_from: Nanos::ZERO }
    }

    /// Waits for the end of the epoch, or for news if those are awaited, taking in pushed reports
    /// meanwhile; returns whether there are news.
    fn wait_within(&mut self, epoch: Nanos, awaits_news: bool) -> Result<bool, PlantError> {
        let mut wait = match self.epoch_wait {
            Some(wait) => wait,
            None => self.begin_wait(epoch),
        };
        let mut is_nudged = false;
        loop {
            self.epoch_wait = Some(wait);
            self.beat_in_wait().map_err(PlantError::Lost)?;
            let time = now(ClockId::Monotonic);
            let left = self.pace.deadline.saturating_sub(time);
            let nap = if self.is_waiting() { LOOK } else { NAP_MAX };
            let (registrations, pause) = self.registrations(time);
            let (reports, until_look) = self.match_reports(time);
            let news_in = wait.news_from.saturating_sub(time);
            let takes_news = awaits_news && news_in == Nanos::ZERO;
            let until_news = if awaits_news && !takes_news { news_in } else { NAP_MAX };
            let longest = left.min(nap).min(pause).min(until_news).min(until_look);
            let others = [
                self.leaders.as_ref(),
                registrations,
                reports,
                self.discovery.as_ref().filter(|_| takes_news),
                (!is_nudged).then(|| self.stop.nudged()),
            ];
            let end = self.stop.wait_beside(longest, others);
            let end = end.map_err(|error| PlantError::Lost(format!("cannot wait: {error}")))?;
            if end.is_requested {
                return Err(PlantError::Stopped);
            }
            let [has_ended_leader, _, has_report, has_news, was_nudged] = end.events;
            self.serve_registrations();
            let is_over = left == Nanos::ZERO;
            let deadline = self.pace.deadline;
            let time = now(ClockId::Monotonic);
            if let Some(push) = &mut self.gauges.push {
                let pause = if push.is_silent() { DRAIN_SILENT_MIN } else { DRAIN_MIN };
                let is_due = left > NAP_MAX && time >= wait.drained.saturating_add(pause);
                if is_over || is_due {
                    push.drain(time, deadline);
                    wait.drained = time;
                }
            }
            if is_over {
                return Ok(false);
            }
            if was_nudged {
                is_nudged = true;
                self.cut_epoch();
            }
            self.look_if_due(&mut wait, time, Events { has_ended_leader, has_report });
            if has_news {
                wait.news_from = time.saturating_add(NEWS_MIN);
                self.epoch_wait = Some(wait);
                return Ok(true);
            }
        }
    }

    /// What has happened by now, without a wait.
    fn events(&self) -> Events {
        Events { has_ended_leader: self.has_ended_leader(), has_report: self.has_report() }
    }

    /// Looks for apps if that is due, and ends the epoch early if one has arrived.
    fn look_if_due(&mut self, wait: &mut EpochWait, time: Nanos, events: Events) {
        self.note_reports(time, events.has_report, ReportTime::Now);
        let is_due = time >= wait.looked.saturating_add(LOOK);
        let has_news = || self.has_registration_news() || self.may_find_matches(time);
        if !is_due && !has_news() && !events.has_ended_leader {
            return;
        }
        wait.looked = time;
        let arrival = self.look(time).filter(|_| wait.may_cut);
        if arrival.is_some_and(|arrival| self.matches.take_cut(arrival, time)) {
            self.was_cut = true;
            self.cut_epoch();
        }
    }

    /// Ends the epoch as soon as it has lasted long enough to measure in.
    fn cut_epoch(&mut self) {
        let earliest = self.pace.last.saturating_add(CUT_MIN).max(now(ClockId::Monotonic));
        self.pace.deadline = self.pace.deadline.min(earliest);
    }

    /// Everything seen in the span that ends now.
    pub(super) fn read(&mut self, span: Nanos) -> Observation {
        let mut cores = self.read_cores(span);
        let events = self.gauges.events.read(cores.len());
        for (core, share) in cores.iter_mut().zip(events.cores) {
            core.c6_opportunity = share;
        }
        let energy = self.gauges.energy.read(span, &cores);
        let cpu_pressure = self.gauges.pressure.read(span);
        let interrupts_per_s = self.gauges.traffic.interrupts(span);
        let packets_per_s = self.gauges.traffic.packets(span);
        self.refresh(self.listing_min(span));
        let apps = self.read_apps(span);
        let restarted = self.note_roster();
        let mut foreign = std::mem::take(&mut self.early_foreign);
        foreign.extend(self.watch());
        if let Some(push) = &mut self.gauges.push {
            self.notices.borrow_mut().extend(push.take_notices());
        }
        // Served once an epoch: any user can have connections refused, at any rate.
        if let Some(registrar) = &mut self.registrar {
            self.notices.borrow_mut().extend(registrar.take_notices());
        }
        let time = self.pace.last.saturating_sub(self.pace.begin);
        Observation {
            time,
            epoch: span,
            apps,
            cores,
            energy,
            cpu_pressure,
            interrupts_per_s,
            packets_per_s,
            c6_opportunity: events.c6_opportunity,
            idle_gaps: events.idle_gaps,
            run_queue_latency: events.run_queue_latency,
            foreign,
            restarted,
        }
    }

    /// Shortest time between the last look for processes and that at the end of an epoch of this
    /// length.
    fn listing_min(&self, span: Nanos) -> Nanos {
        match self.matches.is_reported() && span >= REPORTED_EPOCH_MIN {
            true => REPORTED_MIN,
            false => LISTING_MIN,
        }
    }

    /// Follows which apps are present; returns those that were restarted.
    fn note_roster(&mut self) -> Vec<AppId> {
        let (mut restarted, mut departed) = (Vec::new(), Vec::new());
        self.note_presences();
        for index in 0..self.apps.len() {
            let app = &mut self.apps[index];
            let was_observed = app.presence.was_observed();
            if app.note_restart() {
                restarted.push(AppId(index as u16));
            }
            let has_ended = was_observed && !app.presence.was_observed();
            // Only a match of a template that returns soon has the settings of the former one.
            if app.presence.has_departed(was_observed)
                || (has_ended && !app.handle.is_of_template())
            {
                departed.push(AppId(index as u16));
            }
        }
        self.forget_departed(&departed);
        restarted
    }

    fn read_cores(&mut self, span: Nanos) -> Vec<CoreObservation> {
        let utilisation = self.gauges.utilisation.read();
        let idle = self.gauges.idle.read(span);
        let frequency = self.gauges.frequency.read();
        let cores = utilisation.into_iter().zip(idle).zip(frequency);
        let seen = cores.map(|((utilisation, idle), frequency)| CoreObservation {
            utilisation,
            idle_residency: idle.as_ref().map(IdleShares::all).map_err(Clone::clone),
            deep_idle_residency: idle.map(|shares| shares.deepest()),
            frequency,
            ..CoreObservation::unknown(&first_reading())
        });
        seen.collect()
    }

    /// Lists the threads of all apps again, and searches processes too if the last search is `age`
    /// old.
    pub(super) fn refresh(&mut self, age: Nanos) {
        let since_boot = now(ClockId::Boottime);
        let is_due = since_boot >= self.listed.saturating_add(age);
        if is_due || self.has_registration_news() {
            self.listed = since_boot;
            if let Err(error) = self.table.refresh_changed() {
                self.notice(format!("cannot list processes: {error}"));
            }
            self.matches.note_look(now(ClockId::Monotonic), self.table.listing());
        }
        let parent_of = |pid| self.table.facts(pid).map(|facts| facts.parent);
        for app in &mut self.apps {
            self.notices.borrow_mut().extend(app.refresh(&self.table));
            self.notices.borrow_mut().extend(app.page_notices());
            if let Err(error) = self.ledger.record_descendants(app.threads(), parent_of) {
                let name = app.handle.name();
                self.notices.borrow_mut().push(format!("{name}: new processes: {error}"));
            }
        }
        self.let_go();
        self.settle_owners();
        self.release_strays();
        let each = self.apps.iter().enumerate();
        let processes = each.flat_map(|(index, app)| {
            app.handle.processes().map(move |process| (index, process.pid))
        });
        let complaint = self.gauges.waits.follow(processes);
        self.notices.borrow_mut().extend(complaint);
    }

    fn read_apps(&mut self, span: Nanos) -> Vec<AppObservation> {
        let listed = self.listed;
        let deadline = self.pace.deadline;
        let mut all = Vec::with_capacity(self.apps.len());
        for ((id, spec), app) in numbered(&self.specs).zip(&mut self.apps) {
            let mut work = app.work(span, listed, self.partitions.group(id));
            let for_cores = self.gauges.waits.latency(id.index(), self.pace.last);
            self.gauges.waits.fill(id.index(), &for_cores, &mut work);
            let waits = AppWaits { for_cores, for_memory: work.get(MEMORY_PRESSURE), span };
            let push = &mut self.gauges.push;
            let latency =
                app.latency(id, push.as_mut(), waits, deadline, self.pace.last).map(|seen| {
                    LatencyObservation { sample: seen.sample.since(self.pace.begin), ..seen }
                });
            let progress = match spec.is_latency_critical() {
                true => Err(Missing::because("progress is read of best-effort apps")),
                false => progress(push.as_mut(), id, deadline, app.progress, &work),
            };
            all.push(seen(app, latency, progress, work));
        }
        all
    }

    /// Applies settings to new threads, and finds settings by other programs.
    fn watch(&mut self) -> Vec<ForeignChange> {
        let mut foreign = Vec::new();
        for index in 0..self.apps.len() {
            let id = AppId(index as u16);
            let cores = self.watch_cores(index);
            let cores = cores.map(|(change, ours)| self.foreign(id, &change, ours));
            let class = self.watch_scheduling(index);
            let class = class.map(|(change, ours)| self.foreign(id, &change, ours));
            foreign.extend(cores.into_iter().chain(class).flatten());
            foreign.extend(self.watch_shares(id));
        }
        foreign.extend(self.watch_machine());
        foreign
    }

    pub(super) fn watch_shares(&mut self, id: AppId) -> Vec<ForeignChange> {
        let app = &self.apps[id.index()];
        let taken = self.partitions.watch(id, app.threads()).unwrap_or_else(|error| {
            self.notice(format!("{}: new threads: {error}", app.handle.name()));
            Vec::new()
        });
        let setting = |share| match share {
            Share::Ways(ways) => Setting::CacheWays(id, ways),
            Share::Percent(percent) => Setting::MemoryBandwidth(id, percent),
        };
        let mut foreign = Vec::new();
        for Taken { ours, found, whom, key } in taken {
            if self.foreign_wins {
                self.release(&[key]);
            }
            let (ours, found) = (setting(ours), setting(found));
            foreign.push(ForeignChange { knob: ours.knob(), ours, found, whom });
        }
        foreign
    }

    fn watch_machine(&mut self) -> Vec<ForeignChange> {
        let Watched { changes, notices } = self.knobs.watch();
        self.notices.borrow_mut().extend(notices);
        let mut foreign = Vec::new();
        for ChangedSetting { ours, found, whom, keys } in changes {
            if self.foreign_wins {
                self.release(&keys);
            }
            foreign.push(ForeignChange { knob: ours.knob(), ours, found, whom });
        }
        foreign
    }

    pub(super) fn watch_cores(&mut self, index: usize) -> Option<(Vec<LiveThread>, Setting)> {
        let app = &mut self.apps[index];
        let mut means =
            Means { save: &mut self.ledger, is_privileged: self.is_privileged, roots: &self.roots };
        let found = app.cores.watch(app.handle.threads(), &mut means);
        let Change { ours, threads } = self.change_or_notice::<Affinity>(index, found)?;
        Some((threads, Setting::Cores(AppId(index as u16), ours)))
    }

    pub(super) fn watch_scheduling(&mut self, index: usize) -> Option<(Vec<LiveThread>, Setting)> {
        let app = &mut self.apps[index];
        let mut means =
            Means { save: &mut self.ledger, is_privileged: self.is_privileged, roots: &self.roots };
        let found = app.scheduling.watch(app.handle.threads(), &mut means);
        let Change { ours, threads } = self.change_or_notice::<SchedState>(index, found)?;
        Some((threads, Setting::Scheduling(AppId(index as u16), ours)))
    }

    /// Returns the change, or writes a notice that new threads could not be set.
    fn change_or_notice<V: ThreadValue>(
        &self,
        index: usize,
        found: Result<Option<Change<V>>, KnobError>,
    ) -> Option<Change<V>> {
        found.unwrap_or_else(|error| {
            self.notice(format!("{}: new threads: {error}", self.apps[index].handle.name()));
            None
        })
    }

    /// Reports settings by other programs. A restoration leaves them alone, because the field does
    /// not hold Lull's value.
    pub(super) fn foreign(
        &self,
        id: AppId,
        threads: &[LiveThread],
        ours: Setting,
    ) -> Option<ForeignChange> {
        let app = &self.apps[id.index()];
        let found = match ours.knob() {
            Knob::Cores(_) => Setting::Cores(id, cores(app.threads())?),
            _ => Setting::Scheduling(id, scheduling(threads)?),
        };
        let first = threads.first()?.tid;
        let whom = match threads.len() {
            1 => format!("thread {first} of {}", app.handle.name()),
            count => format!("{count} threads of {} ({first} first)", app.handle.name()),
        };
        Some(ForeignChange { knob: ours.knob(), ours, found, whom })
    }

    fn release(&mut self, keys: &[Key]) {
        if let Err(error) = self.ledger.release(keys) {
            self.notice(format!("the restore will overwrite what other programs set: {error}"));
        }
    }
}

fn progress(
    push: Option<&mut PushGauge>,
    app: AppId,
    deadline: Nanos,
    from: ProgressFrom,
    work: &Readings,
) -> Gauge<Progress> {
    match from {
        ProgressFrom::Push => push.ok_or_else(no_socket)?.progress(app, deadline),
        ProgressFrom::Instructions | ProgressFrom::CpuTime => measured_progress(work, from),
    }
}

fn seen(
    app: &mut RunningApp,
    latency: Gauge<LatencyObservation>,
    progress: Gauge<Progress>,
    readings: Readings,
) -> AppObservation {
    if !app.is_alive() {
        let why = Missing::because(format!("{} has no live process", app.handle.name()));
        return AppObservation { latency, ..AppObservation::unknown(&why) };
    }
    let threads = Ok(app.threads().len() as u32);
    let (client_classes, client_accounts) = (app.client_classes(), app.client_accounts());
    AppObservation {
        alive: true,
        latency,
        progress,
        readings,
        threads,
        client_classes,
        client_accounts,
    }
}
