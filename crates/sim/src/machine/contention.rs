//! MemorySystem of apps for cache and memory.
//!
//! An app with misses `r` (relative to alone with all ways) and memory latency
//! `L` (relative to idle memory) takes `1 + share (r L - 1)` times as long.
//! `L = 1 + q u²/(1 - u)` rises with the utilisation `u` of memory, and the
//! traffic that makes up `u` falls as all apps slow down: a fixed point in
//! one unknown, found by bisection. An app that is throttled to a part of the
//! peak slows down until its own traffic fits.
//!
//! Each way is split among the apps that may fill it in proportion to their
//! miss traffic, which is what keeps lines in a shared cache alive; shares
//! follow slowly, as a cache fills.

use super::model::{Cache, MachineModel, Memory, MemoryUse};

/// How much of the way to their new value shares and activity go at a refresh.
const FOLLOW: f64 = 0.3;
/// Highest latency factor, far above any that apps with a memory share settle at.
const WORST_LATENCY: f64 = 1e4;
/// Halvings of the search interval: a relative error below 1e-6.
const HALVINGS: u32 = 36;
/// Traffic of an idle app, so that unused ways have owners.
const TRICKLE: f64 = 1.0;

/// The state of cache and memory.
#[derive(Debug, Clone)]
pub(super) struct MemorySystem {
    cache: Option<Cache>,
    memory: Option<Memory>,
    apps: Vec<AppFootprint>,
    latency: f64,
}

/// One app's part.
#[derive(Debug, Clone)]
struct AppFootprint {
    wants: MemoryUse,
    /// Ways it may fill.
    mask: u64,
    /// Share of peak bandwidth it may use.
    percent: u8,
    /// Threads running, smoothed.
    running: f64,
    /// Ways it has.
    ways: f64,
    /// Misses relative to alone with all ways.
    misses: f64,
    slowdown: f64,
}

impl MemorySystem {
    /// Creates a state in which every app may use all ways and nothing runs.
    pub(super) fn new(model: &MachineModel) -> Self {
        let ways = model.cache.map_or(0, |cache| cache.ways);
        let mask = all_ways(ways);
        let footprint = |wants| AppFootprint {
            wants,
            mask,
            percent: 100,
            running: 0.0,
            ways: f64::from(ways),
            misses: 1.0,
            slowdown: 1.0,
        };
        let apps = model.app.iter().map(|app| footprint(app.memory)).collect();
        let mut new = Self { cache: model.cache, memory: model.memory, apps, latency: 1.0 };
        (0..new.apps.len()).for_each(|app| new.settle_misses(app));
        new.settle_latency();
        new
    }

    /// How many times as long an app's work takes as alone.
    pub(super) fn slowdown(&self, app: usize) -> f64 {
        self.apps[app].slowdown
    }

    /// Ways that an app may fill.
    pub(super) fn mask(&self, app: usize) -> u64 {
        self.apps[app].mask
    }

    /// Lets an app fill other ways.
    pub(super) fn set_mask(&mut self, app: usize, mask: u64) {
        self.apps[app].mask = mask;
    }

    /// Share of peak bandwidth that an app may use, in percent.
    pub(super) fn percent(&self, app: usize) -> u8 {
        self.apps[app].percent
    }

    /// Throttles an app to this share of peak bandwidth.
    pub(super) fn set_percent(&mut self, app: usize, percent: u8) {
        self.apps[app].percent = percent;
    }

    /// Takes an app off the cache: it fills no way, and its lines are gone.
    pub(super) fn remove(&mut self, app: usize) {
        let footprint = &mut self.apps[app];
        (footprint.mask, footprint.percent, footprint.ways) = (0, 100, 0.0);
    }

    /// Lets an app that was removed fill all ways.
    pub(super) fn admit(&mut self, app: usize) {
        let ways = self.cache.map_or(0, |cache| cache.ways);
        self.apps[app].mask = all_ways(ways);
    }

    /// Moves on by one refresh, in which this many threads of each app ran on average.
    pub(super) fn refresh(&mut self, running: impl Iterator<Item = f64>) {
        for (app, now) in self.apps.iter_mut().zip(running) {
            app.running += FOLLOW * (now - app.running);
        }
        if self.cache.is_some() {
            self.share_ways();
        }
        self.settle_latency();
    }

    fn share_ways(&mut self) {
        let traffic: Vec<f64> = self.apps.iter().map(|app| app.traffic() + TRICKLE).collect();
        let mut wanted = vec![0.0; self.apps.len()];
        let mut left = self.apps.iter().fold(0, |all, app| all | app.mask);
        while left != 0 {
            let first = left & left.wrapping_neg();
            let users = |app: &AppFootprint| app.mask & first != 0;
            // All ways with exactly these users at once.
            let region = self.apps.iter().fold(left, |region, app| {
                if users(app) { region & app.mask } else { region & !app.mask }
            });
            left &= !region;
            let ways = f64::from(region.count_ones());
            let all: f64 = self.among(&traffic, first).sum();
            for (app, wanted) in wanted.iter_mut().enumerate() {
                if self.apps[app].mask & first != 0 {
                    *wanted += ways * traffic[app] / all;
                }
            }
        }
        for (app, wanted) in wanted.into_iter().enumerate() {
            self.apps[app].ways += FOLLOW * (wanted - self.apps[app].ways);
            self.settle_misses(app);
        }
    }

    /// Values of the apps that may fill the way of this bit.
    fn among<'a>(&'a self, values: &'a [f64], way: u64) -> impl Iterator<Item = f64> + 'a {
        let users = self.apps.iter().zip(values).filter(move |(app, _)| app.mask & way != 0);
        users.map(|(_, value)| *value)
    }

    fn settle_misses(&mut self, app: usize) {
        let Some(cache) = self.cache else { return };
        let all = f64::from(cache.reference_ways.unwrap_or(cache.ways));
        let AppFootprint { wants, ways, .. } = self.apps[app];
        let misses = |ways: f64| wants.floor + (1.0 - wants.floor) * (-ways / wants.ways).exp();
        self.apps[app].misses = misses(ways) / misses(all);
    }

    /// Finds the latency that is consistent with the traffic at that latency (fixed point).
    fn settle_latency(&mut self) {
        let Some(memory) = self.memory else {
            self.apps.iter_mut().for_each(|app| app.slowdown = app.slowed(1.0, None));
            return;
        };
        let (mut low, mut high) = (1.0, WORST_LATENCY);
        for _ in 0..HALVINGS {
            // The geometric middle: latencies matter by their ratio.
            let middle = f64::sqrt(low * high);
            if self.latency_at(&memory, middle) > middle {
                low = middle;
            } else {
                high = middle;
            }
        }
        self.latency = low;
        for app in &mut self.apps {
            app.slowdown = app.slowed(low, Some(&memory));
        }
    }

    /// The latency that traffic at this latency leads to.
    fn latency_at(&self, memory: &Memory, latency: f64) -> f64 {
        let traffic = |app: &AppFootprint| app.demand() / app.slowed(latency, Some(memory));
        let load = self.apps.iter().map(traffic).sum::<f64>() / memory.peak_bytes_per_s;
        if load < 1.0 { 1.0 + memory.queueing * load * load / (1.0 - load) } else { f64::INFINITY }
    }
}

/// The mask of this many ways.
fn all_ways(ways: u32) -> u64 {
    if ways == 0 { 0 } else { u64::MAX >> (64 - ways) }
}

impl AppFootprint {
    /// Bytes per second if nothing slowed it down.
    fn demand(&self) -> f64 {
        self.running * self.wants.bytes_per_s * self.misses
    }

    /// Bytes per second as it is.
    fn traffic(&self) -> f64 {
        self.demand() / self.slowdown
    }

    /// Returns the slow-down at a memory latency, and at least that of its throttle.
    fn slowed(&self, latency: f64, memory: Option<&Memory>) -> f64 {
        let free = 1.0 + self.wants.share * (self.misses * latency - 1.0);
        match memory {
            Some(memory) if self.percent < 100 => {
                let most = memory.peak_bytes_per_s * f64::from(self.percent) / 100.0;
                free.max(self.demand() / most)
            }
            _ => free,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(apps: &str) -> MachineModel {
        let machine = "name = \"n\"\ncores = 4\nfrequency = \"2GHz\"\n\
                       cache = { ways = 20, way-bytes = 1000 }\n\
                       memory = { peak-bytes-per-s = 10e9, queueing = 0.5 }\n";
        toml::from_str(&format!("{machine}{apps}")).unwrap()
    }

    fn endless(name: &str, share: f64, traffic: f64) -> String {
        format!(
            "[[app]]\nname = \"{name}\"\nthreads = 4\nactivity = \"endless\"\n\
             memory = {{ share = {share}, bytes-per-s = {traffic}, floor = 0.2, ways = 5.0 }}\n"
        )
    }

    fn settled(contention: &mut MemorySystem, running: &[f64]) {
        (0..200).for_each(|_| contention.refresh(running.iter().copied()));
    }

    #[test]
    fn memory_never_carries_more_than_its_peak() {
        let mut state = MemorySystem::new(&model(&endless("stream", 0.9, 8e9)));
        settled(&mut state, &[4.0]);
        let traffic = state.apps[0].traffic();
        assert!((8e9..10e9).contains(&traffic), "{traffic}");
        assert!(state.slowdown(0) > 3.2, "32 GB/s wanted of 10");
    }

    #[test]
    fn shared_ways_go_to_the_app_that_misses_more_and_isolation_protects() {
        let apps = endless("quiet", 0.3, 0.2e9) + &endless("stream", 0.9, 4e9);
        let mut state = MemorySystem::new(&model(&apps));
        settled(&mut state, &[1.0, 2.0]);
        assert!(state.apps[1].ways > 5.0 * state.apps[0].ways, "{:?}", state.apps);
        assert!((state.apps[0].ways + state.apps[1].ways - 20.0).abs() < 1e-6);
        let shared = state.slowdown(0);
        state.set_mask(0, 0x3ff);
        state.set_mask(1, 0xffc00);
        settled(&mut state, &[1.0, 2.0]);
        assert!((state.apps[0].ways - 10.0).abs() < 1e-6);
        assert!(state.slowdown(0) < shared);
    }

    #[test]
    fn a_throttled_app_keeps_to_its_part_and_helps_the_others() {
        let apps = endless("lc", 0.5, 1e9) + &endless("stream", 0.9, 8e9);
        let mut state = MemorySystem::new(&model(&apps));
        settled(&mut state, &[2.0, 4.0]);
        let before = state.slowdown(0);
        state.set_percent(1, 20);
        settled(&mut state, &[2.0, 4.0]);
        let traffic = state.apps[1].traffic();
        assert!(traffic <= 2e9 * 1.0001, "{traffic}");
        assert!(state.slowdown(0) < before);
    }

    #[test]
    fn alone_with_all_ways_and_quiet_memory_nothing_is_slowed() {
        let mut state = MemorySystem::new(&model(&endless("calm", 0.3, 1e3)));
        settled(&mut state, &[4.0]);
        assert!((state.slowdown(0) - 1.0).abs() < 1e-6, "{}", state.slowdown(0));
    }

    #[test]
    fn fewer_ways_than_measured_with_are_slower() {
        let mut model = model(&endless("calm", 0.3, 1e3));
        let slowdown_with = |model: &MachineModel| MemorySystem::new(model).slowdown(0);
        let full = slowdown_with(&model);
        model.cache.as_mut().unwrap().reference_ways = Some(20);
        model.cache.as_mut().unwrap().ways = 4;
        assert!(slowdown_with(&model) > 1.2 * full);
    }
}
