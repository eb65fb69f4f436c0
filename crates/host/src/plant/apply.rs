//! Setting knobs, reading them, and putting them back.

use super::HostPlant;
use super::app::Listed;
use crate::guard::{Key, Original, Patience, Restoration};
use crate::knobs::{
    FrequencyOutcome, KnobError, MachineKnobs, Means, OTHER_WRITER, Share, check_scheduling, cores,
    scheduling, scheduling_from,
};
use crate::sys::sched;
use crate::threads::LiveThread;
use lull_control::{
    AppId, Applied, ApplyOutcome, CoreSet, DomainId, KNOBS, Knob, KnobScope, Outcome, Scheduling,
    Setting,
};
use lull_measure::{Hertz, Nanos};

impl HostPlant {
    pub(super) fn all_settings(&self) -> Vec<Setting> {
        let rows = KNOBS.iter().filter(|row| self.machine.capabilities.has(row.capability));
        let knobs = rows.flat_map(|row| self.machine.knobs(row, self.specs.len()));
        knobs.filter_map(|knob| self.setting(knob)).collect()
    }

    /// A knob as it is now; `None` if it cannot be read or has no thread.
    fn setting(&self, knob: Knob) -> Option<Setting> {
        let threads = |app: AppId| self.alive_threads(app);
        match knob {
            Knob::Cores(app) => cores(threads(app)?).map(|cores| Setting::Cores(app, cores)),
            Knob::Scheduling(app) => {
                scheduling(threads(app)?).map(|class| Setting::Scheduling(app, class))
            }
            Knob::GateCap(_) | Knob::GateBatch(_) | Knob::GateDelay(_) => self.gate_setting(knob),
            Knob::CacheWays(app) => {
                threads(app)?;
                self.partitions.ways(app).map(|ways| Setting::CacheWays(app, ways))
            }
            Knob::MemoryBandwidth(app) => {
                threads(app)?;
                self.partitions.percent(app).map(|share| Setting::MemoryBandwidth(app, share))
            }
            of_machine => self.knobs.get(of_machine),
        }
    }

    /// The threads of an app that has processes.
    fn alive_threads(&self, app: AppId) -> Option<&[LiveThread]> {
        let app = self.apps.get(app.index()).filter(|app| app.is_alive())?;
        Some(app.threads())
    }

    /// The knobs of an app as they were before Lull set them: threads by the ledger, because new
    /// threads may have been set within the epoch, and the others before their first write.
    pub(super) fn owners_settings(&self, app: AppId) -> Vec<Setting> {
        let rows = KNOBS.iter().filter(|row| self.machine.capabilities.has(row.capability));
        let knobs = rows.flat_map(|row| self.machine.knobs(row, self.specs.len()));
        let of_app = knobs.filter(|knob| knob.app() == Some(app));
        of_app.filter_map(|knob| self.owners_setting(knob)).collect()
    }

    fn owners_setting(&self, knob: Knob) -> Option<Setting> {
        let owners = |one: &LiveThread| self.ledger.owners(*one);
        match knob {
            Knob::Cores(app) => {
                let cores_of = |one: &LiveThread| match owners(one) {
                    Some(saved) => cores_from(saved),
                    None => sched::affinity_of(one.tid).ok(),
                };
                let each = self.alive_threads(app)?.iter().filter_map(cores_of);
                let cores = each.reduce(|all, one| all.union(&one));
                cores.map(|cores| Setting::Cores(app, cores))
            }
            Knob::Scheduling(app) => {
                let class_of = |one: &LiveThread| match owners(one) {
                    Some(saved) => class_from(&saved),
                    None => class_now(*one),
                };
                let class = self.alive_threads(app)?.iter().find_map(class_of);
                class.map(|class| Setting::Scheduling(app, class))
            }
            _ => {
                let now = self.setting(knob)?;
                Some(self.originals.get(&knob).cloned().unwrap_or(now))
            }
        }
    }

    pub(super) fn apply_all(&mut self, wanted: &[Setting]) -> Applied {
        // Old values are synchronised to disk before knobs are written, which may take long.
        let guarded = self.beat(Patience::Long);
        let answer = |setting: &Setting| {
            let set = guarded.clone().and_then(|()| self.set(setting));
            let got = set.unwrap_or_else(|why| ApplyOutcome::Refused { why });
            Outcome { wanted: setting.clone(), got }
        };
        let outcomes = wanted.iter().map(answer).collect();
        // A guard that ends now is missed by the next beat.
        let _ = self.beat(Patience::Usual);
        Applied { outcomes }
    }

    /// Sets one knob and returns the outcome, or why it was refused.
    fn set(&mut self, wanted: &Setting) -> Result<ApplyOutcome, String> {
        let knob = wanted.knob();
        self.check(wanted)?;
        if let Setting::Frequency(domain, hertz) = wanted {
            return self.set_frequency(*domain, *hertz);
        }
        let before = self.setting(knob).ok_or_else(|| self.unreadable(knob))?;
        if before == *wanted {
            return Ok(ApplyOutcome::Already);
        }
        // Also if the setting is refused: the ledger may have what could not be taken back of it.
        self.touched.insert(knob);
        self.write(wanted).map_err(|error| error.to_string())?;
        self.originals.entry(knob).or_insert(before);
        match self.setting(knob) {
            Some(now) if now == *wanted => Ok(ApplyOutcome::Done),
            Some(to) => Ok(ApplyOutcome::Clamped { to, why: limited(knob) }),
            None => Err(self.unreadable(knob)),
        }
    }

    /// A domain under a governor that chooses has no setting to begin with.
    fn set_frequency(&mut self, domain: DomainId, wanted: Hertz) -> Result<ApplyOutcome, String> {
        let nearest = self.machine.domain(domain).and_then(|domain| domain.nearest(wanted));
        let nearest =
            nearest.ok_or_else(|| format!("there is no frequency domain {}", domain.0))?;
        let knob = Knob::Frequency(domain);
        let before = self.setting(knob);
        let outcome = self.knobs.frequencies.set(domain, nearest, &mut self.ledger);
        let outcome = outcome.map_err(|error| {
            self.touched.insert(knob);
            error.to_string()
        })?;
        if let Some(before) = before {
            self.originals.entry(knob).or_insert(before);
        }
        if outcome == FrequencyOutcome::Already && nearest == wanted {
            return Ok(ApplyOutcome::Already);
        }
        self.touched.insert(knob);
        let clamped = |to, why: &str| {
            let to = Setting::Frequency(domain, to);
            Ok(ApplyOutcome::Clamped { to, why: why.to_owned() })
        };
        match outcome {
            FrequencyOutcome::Held(to) => {
                clamped(to, "scaling_min_freq and scaling_max_freq allow no other")
            }
            _ if nearest != wanted => clamped(nearest, "the nearest frequency that the domain has"),
            _ => Ok(ApplyOutcome::Done),
        }
    }

    /// Refuses what makes no sense here.
    fn check(&self, wanted: &Setting) -> Result<(), String> {
        let capability = wanted.knob().capability();
        self.machine.capabilities.get(capability).map_err(|why| why.to_string())?;
        if let Setting::Cores(_, cores) = wanted {
            let all = self.machine.all_cores();
            if cores.is_empty() || !cores.is_subset(&all) {
                return Err(format!("`{cores}` are not cores of this machine, which has {all}"));
            }
        }
        match *wanted {
            Setting::CacheWays(_, ways) => self.partitions.check(Share::Ways(ways)),
            Setting::MemoryBandwidth(_, percent) => self.partitions.check(Share::Percent(percent)),
            _ if MachineKnobs::row(wanted.knob()).is_some() => self.check_presence(wanted.knob()),
            _ => self.check_gate(wanted),
        }
    }

    /// Refuses a knob of the machine that belongs to something that is not there.
    fn check_presence(&self, knob: Knob) -> Result<(), String> {
        if self.machine.knobs(knob.row(), self.specs.len()).contains(&knob) {
            return Ok(());
        }
        let what = match knob.row().scope {
            KnobScope::Interface => "network interface",
            KnobScope::Domain => "frequency domain",
            _ => knob.row().name,
        };
        Err(format!("there is no {what} {}", knob.number()))
    }

    fn unreadable(&self, knob: Knob) -> String {
        match knob {
            Knob::Cores(app)
            | Knob::Scheduling(app)
            | Knob::CacheWays(app)
            | Knob::MemoryBandwidth(app) => match self.specs.get(app.index()) {
                Some(spec) => format!("{} has no live process", spec.name),
                None => format!("there is no app number {}", app.0),
            },
            of_machine => format!("the state of {} cannot be read", of_machine.capability()),
        }
    }

    fn write(&mut self, wanted: &Setting) -> Result<(), KnobError> {
        match wanted {
            Setting::Cores(app, cores) => self.write_cores(*app, cores),
            Setting::Scheduling(app, class) => self.write_scheduling(*app, *class),
            Setting::CacheWays(app, ways) => self.write_share(*app, Share::Ways(*ways)),
            Setting::MemoryBandwidth(app, share) => self.write_share(*app, Share::Percent(*share)),
            Setting::GateCap(app, _) | Setting::GateBatch(app, _) | Setting::GateDelay(app, _) => {
                self.write_gate(*app, wanted);
                Ok(())
            }
            of_machine => {
                let mut means = Means {
                    save: &mut self.ledger,
                    is_privileged: self.is_privileged,
                    roots: &self.roots,
                };
                self.knobs.set(of_machine, &mut means)
            }
        }
    }

    fn write_share(&mut self, app: AppId, share: Share) -> Result<(), KnobError> {
        let name = self.specs[app.index()].name.clone();
        let handle = &mut self.apps[app.index()].handle;
        let mut listed = Listed { handle, table: &mut self.table };
        self.partitions.set(app, &name, share, &mut listed, &mut self.ledger)
    }

    /// Whether the owner of an app has given it this setting, and Lull another one since.
    fn is_owners(&self, app: AppId, setting: &Setting) -> bool {
        let is_saved = |thread: &LiveThread| self.ledger.owners(*thread).is_some();
        self.apps[app.index()].threads().iter().any(is_saved)
            && self.owners_setting(setting.knob()).as_ref() == Some(setting)
    }

    fn write_cores(&mut self, app: AppId, wanted: &CoreSet) -> Result<(), KnobError> {
        let is_owners = self.is_owners(app, &Setting::Cores(app, wanted.clone()));
        let app = &mut self.apps[app.index()];
        let mut means =
            Means { save: &mut self.ledger, is_privileged: self.is_privileged, roots: &self.roots };
        let mut listed = Listed { handle: &mut app.handle, table: &mut self.table };
        match is_owners {
            true => app.cores.give_back(wanted, &mut listed, &mut means),
            false => app.cores.set(wanted, &mut listed, &mut means),
        }
    }

    fn write_scheduling(&mut self, app: AppId, wanted: Scheduling) -> Result<(), KnobError> {
        let is_owners = self.is_owners(app, &Setting::Scheduling(app, wanted));
        let app = &mut self.apps[app.index()];
        check_scheduling(wanted, app.threads(), self.is_privileged, &self.roots)?;
        let mut means =
            Means { save: &mut self.ledger, is_privileged: self.is_privileged, roots: &self.roots };
        let mut listed = Listed { handle: &mut app.handle, table: &mut self.table };
        match is_owners {
            true => app.scheduling.give_back(&wanted, &mut listed, &mut means),
            false => app.scheduling.set(&wanted, &mut listed, &mut means),
        }
    }

    /// Puts back every knob that was written, through the ledger, which knows
    /// each thread's own value.
    pub(super) fn put_back(&mut self) -> Applied {
        let touched = std::mem::take(&mut self.touched);
        self.unrestored.clear();
        let restored = match touched.is_empty() {
            false => self.ledger.restore(),
            true => Restoration::default(),
        };
        if !restored.failed.is_empty() {
            // The next restore tries again, and if there is none, the guard does.
            self.touched.clone_from(&touched);
        }
        for app in &mut self.apps {
            app.cores.restored();
            app.scheduling.restored();
        }
        self.knobs.restored();
        self.partitions.restored();
        self.put_back_gates();
        self.refresh(Nanos::ZERO);
        self.report_unsettled(&restored);
        let knobs: Vec<_> = self.originals.iter().map(|(knob, was)| (*knob, was.clone())).collect();
        let outcome = |(knob, wanted): (Knob, Setting)| {
            let was_touched = touched.contains(&knob);
            let got = match (self.failure(knob, &restored), self.setting(knob)) {
                (Some(why), _) => ApplyOutcome::Refused { why },
                (None, None) => return None,
                (None, Some(to)) if to != wanted => {
                    ApplyOutcome::Clamped { to, why: changed_since(knob) }
                }
                _ if was_touched => ApplyOutcome::Done,
                _ => ApplyOutcome::Already,
            };
            Some(Outcome { wanted, got })
        };
        Applied { outcomes: knobs.into_iter().filter_map(outcome).collect() }
    }

    /// Reports values that no knob's outcome reports: threads and files that could not be restored
    /// and belong to no knob (a domain under a governor had no single frequency before), settings
    /// by other programs, and processes that may have been missed.
    fn report_unsettled(&mut self, restored: &Restoration) {
        for (key, why) in &restored.failed {
            let concerns = |knob: &Knob| self.failures(*knob, restored).any(|(one, _)| one == key);
            if !self.originals.keys().any(concerns) {
                self.unrestored.push(format!("{key} is not as before: {why}"));
            }
        }
        let left = restored.describe_left();
        if !left.is_empty() {
            self.notice(format!("left as another program set it: {}", left.join(", ")));
        }
        self.missed.extend(restored.missed.iter().cloned());
    }

    /// Why a knob is not as it was, if the ledger could not put it back.
    fn failure(&self, knob: Knob, restored: &Restoration) -> Option<String> {
        let (key, why) = self.failures(knob, restored).next()?;
        Some(format!("{key} is not as before: {why}"))
    }

    /// Returns the values of a knob that could not be restored.
    fn failures<'a>(
        &'a self,
        knob: Knob,
        restored: &'a Restoration,
    ) -> impl Iterator<Item = &'a (Key, String)> {
        let concerns = move |key: &Key| match (knob, key) {
            (Knob::Cores(app) | Knob::Scheduling(app), Key::Thread(tid, start)) => {
                let mut threads = self.apps[app.index()].threads().iter();
                threads.any(|thread| (thread.tid, thread.start_ticks) == (*tid, *start))
            }
            (Knob::CacheWays(app) | Knob::MemoryBandwidth(app), key) => {
                self.partitions.is_of(app, key)
            }
            (of_machine, key) => self.knobs.is_of(of_machine, key),
        };
        restored.failed.iter().filter(move |(key, _)| concerns(key))
    }
}

fn cores_from(thread: Original) -> Option<CoreSet> {
    let Original::Thread { affinity, .. } = thread else { return None };
    Some(affinity)
}

fn class_from(thread: &Original) -> Option<Scheduling> {
    let Original::Thread { policy, rt_priority, nice, .. } = thread else { return None };
    scheduling_from(*policy, *rt_priority, *nice)
}

fn class_now(thread: LiveThread) -> Option<Scheduling> {
    let now = sched::scheduling_of(thread.tid).ok()?;
    scheduling_from(now.policy, now.rt_priority, now.nice)
}

/// Why less than wanted was set.
fn limited(knob: Knob) -> String {
    match knob {
        Knob::MemoryBandwidth(_) => "the nearest share that the hardware has",
        Knob::Cores(_) => "the other cores are offline, or outside the cpuset of the app",
        of_machine => MachineKnobs::row(of_machine).map_or(OTHER_WRITER, |row| row.limited),
    }
    .to_owned()
}

fn changed_since(knob: Knob) -> String {
    match knob.row().scope {
        KnobScope::App => "another program has set it since, or threads have come and gone",
        _ => "another program has set it since",
    }
    .to_owned()
}
