//! The knobs of a node.

use super::NodeSimulation;
use super::queue::{IDLE, IDLE_WEIGHT, NICE_0_WEIGHT, NORMAL, ThreadScheduling, weight_of_nice};
use lull_control::{AppId, CoreId, CoreSet, Got, Machine, Scheduling, Setting, WayMask};

/// Lowest and highest nice value.
const NICE: std::ops::RangeInclusive<i8> = -20..=19;
/// Lowest and highest SCHED_RR priority.
const PRIORITY: std::ops::RangeInclusive<u8> = 1..=99;

/// Result of checking a setting.
enum SettingCheck {
    /// It is legal, or this legal setting replaces it for the reason given.
    Set(Setting, Option<String>),
    /// It is refused for this reason.
    Refuse(String),
}

impl NodeSimulation {
    /// The knobs of an app as they are; `class` is what was last set.
    pub(super) fn settings_of(
        &self,
        app: usize,
        id: AppId,
        class: Scheduling,
        machine: &Machine,
    ) -> Vec<Setting> {
        let mask = self.apps[app].treatment.mask;
        let cores = (0..64).filter(|core| mask & 1 << core != 0).map(CoreId);
        let mut all =
            vec![Setting::Cores(id, cores.collect::<CoreSet>()), Setting::Scheduling(id, class)];
        if machine.cache.is_some() {
            all.push(Setting::CacheWays(id, WayMask(self.contention.mask(app))));
        }
        if machine.bandwidth.is_some() {
            all.push(Setting::MemoryBandwidth(id, self.contention.percent(app)));
        }
        all
    }

    /// Applies a legal setting of an app.
    fn put(&mut self, app: usize, setting: &Setting) {
        let treatment = self.apps[app].treatment;
        match setting {
            Setting::Cores(_, cores) => {
                let mask = cores.iter().fold(0, |mask, core| mask | 1 << core.0);
                self.treat(app, ThreadScheduling { mask, ..treatment });
            }
            Setting::Scheduling(_, class) => {
                let (rank, weight) = match class {
                    Scheduling::Idle => (IDLE, IDLE_WEIGHT),
                    Scheduling::Normal { nice } => (NORMAL, weight_of_nice(*nice)),
                    Scheduling::RoundRobin { priority } => (NORMAL + priority, NICE_0_WEIGHT),
                };
                self.treat(app, ThreadScheduling { rank, weight, ..treatment });
            }
            Setting::CacheWays(_, ways) => self.contention.set_mask(app, ways.0),
            Setting::MemoryBandwidth(_, percent) => self.contention.set_percent(app, *percent),
            // The node has no other knob, and `judge` refuses what it does not have.
            _ => {}
        }
    }

    /// Sets a knob of the app with this number, if that is legal.
    pub(super) fn set(
        &mut self,
        app: Option<usize>,
        wanted: &Setting,
        now: &[Setting],
        machine: &Machine,
    ) -> Got {
        let (app, to, clamped) = match (app, check_setting(wanted, machine)) {
            (_, SettingCheck::Refuse(why)) => return Got::Refused { why },
            (None, _) => return Got::Refused { why: "the node has no such app".to_owned() },
            (Some(app), SettingCheck::Set(to, clamped)) => (app, to, clamped),
        };
        let already = now.contains(&to);
        if !already {
            self.put(app, &to);
        }
        match clamped {
            Some(why) => Got::Clamped { to, why },
            None if already => Got::Already,
            None => Got::Done,
        }
    }
}

fn check_setting(wanted: &Setting, machine: &Machine) -> SettingCheck {
    if let Err(why) = machine.capabilities.get(wanted.knob().capability()) {
        return SettingCheck::Refuse(why.to_string());
    }
    let legal = || SettingCheck::Set(wanted.clone(), None);
    match wanted {
        Setting::Cores(_, cores) if cores.is_empty() => {
            SettingCheck::Refuse("an app needs at least one core".to_owned())
        }
        Setting::Cores(_, cores) if !cores.is_subset(&machine.all_cores()) => {
            SettingCheck::Refuse(format!("the node has cores {} only", machine.all_cores()))
        }
        Setting::Scheduling(_, Scheduling::Normal { nice }) if !NICE.contains(nice) => {
            SettingCheck::Refuse(format!("nice {nice} is outside -20 to 19"))
        }
        Setting::Scheduling(_, Scheduling::RoundRobin { priority })
            if !PRIORITY.contains(priority) =>
        {
            SettingCheck::Refuse(format!("priority {priority} is outside 1 to 99"))
        }
        Setting::CacheWays(_, ways) => check_ways(*ways, wanted, machine),
        Setting::MemoryBandwidth(app, percent) => check_percent(*app, *percent, machine),
        _ => legal(),
    }
}

fn check_ways(mask: WayMask, wanted: &Setting, machine: &Machine) -> SettingCheck {
    let ways = machine.cache.as_ref().map_or(0, |cache| cache.ways);
    if mask.0 == 0 || mask.0 & !WayMask::run(0, ways).0 != 0 {
        return SettingCheck::Refuse(format!("{mask} is no part of the cache's {ways} ways"));
    }
    if !mask.is_contiguous() {
        return SettingCheck::Refuse(format!("{mask} is not one run of ways"));
    }
    SettingCheck::Set(wanted.clone(), None)
}

fn check_percent(app: AppId, percent: u8, machine: &Machine) -> SettingCheck {
    let Some(control) = &machine.bandwidth else {
        return SettingCheck::Refuse("the node's bandwidth cannot be divided".to_owned());
    };
    let step = u32::from(control.step_percent);
    let stepped = (u32::from(percent).div_ceil(step) * step).min(100) as u8;
    let to = stepped.max(control.min_percent);
    let why = format!("shares are steps of {step} % from {} % on", control.min_percent);
    SettingCheck::Set(Setting::MemoryBandwidth(app, to), (to != percent).then_some(why))
}
