//! C6 opportunity, idle gaps and run-queue latency, from the programs of
//! [`crate::bpf`]: counted in the kernel, read here as differences.
//!
//! Where the kernel refuses them, the apps' run-queue wait remains, a sum per
//! app from `schedstat` ([`super::app_time`]); sleeps one by one are nowhere else.

use super::{check_lost, first_reading};
use crate::Roots;
use crate::bpf::{Division, Histogram, Watch, WatchCounts};
use lull_control::Quantiles;
use lull_measure::{Gauge, Missing, Nanos};

/// The programs' counts over epochs.
#[derive(Debug)]
pub struct Events {
    watch: Gauge<Watch>,
    break_even: Nanos,
    last: Option<Counted>,
}

/// The events of one epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct EventsSeen {
    /// C6 opportunity of each core.
    pub cores: Vec<Gauge<f64>>,
    /// The same of all cores that are known.
    pub c6_opportunity: Gauge<f64>,
    /// Sleeps of all cores.
    pub idle_gaps: Gauge<Quantiles>,
    /// Waits of all threads.
    pub run_queue_latency: Gauge<Quantiles>,
}

/// Counts of all cores at an instant.
#[derive(Debug)]
struct Counted {
    cores: Vec<Option<Division>>,
    sleeps: Histogram,
    waits: Histogram,
    lost: u64,
}

impl Events {
    /// No programs, for a reason.
    pub fn none(why: Missing) -> Self {
        Self { watch: Err(why), break_even: Nanos::ZERO, last: None }
    }

    /// Programs on the cores `0..cores`, with the break-even of the deepest
    /// idle state; without them if the kernel refuses.
    pub fn new(cores: usize, break_even: Nanos) -> Self {
        let watch = Watch::begin(cores).map_err(|error| {
            Missing::because(format!("{error}; the apps' run_queue_wait is from schedstat"))
        });
        Self { watch, break_even, last: None }
    }

    /// By which means events are counted, or why they cannot be: found out by
    /// doing it for a moment.
    ///
    /// # Errors
    /// If the kernel refuses, or the roots are not those of the kernel that runs.
    pub fn probe(roots: &Roots) -> Result<String, Missing> {
        if *roots != Roots::default() {
            return Err(Missing::because("events are those of the running kernel alone"));
        }
        Watch::begin(1)?;
        Ok("eBPF at cpu_idle, sched_wakeup, sched_wakeup_new, sched_switch".to_owned())
    }

    /// Returns the events since the last call, on this number of cores.
    pub fn read(&mut self, cores: usize) -> EventsSeen {
        match &self.watch {
            Ok(watch) => {
                let now = Counted::new(&watch.read(), self.break_even);
                let seen = match &self.last {
                    Some(last) => now.since(last),
                    None => EventsSeen::unknown(cores, &first_reading()),
                };
                self.last = Some(now);
                seen
            }
            Err(why) => EventsSeen::unknown(cores, why),
        }
    }
}

impl EventsSeen {
    fn unknown(cores: usize, why: &Missing) -> Self {
        Self {
            cores: vec![Err(why.clone()); cores],
            c6_opportunity: Err(why.clone()),
            idle_gaps: Err(why.clone()),
            run_queue_latency: Err(why.clone()),
        }
    }
}

impl Counted {
    fn new(seen: &WatchCounts, break_even: Nanos) -> Self {
        let (mut sleeps, mut waits) = (Histogram::default(), Histogram::default());
        for core in &seen.cores {
            sleeps.merge(&core.time.sleeps);
            waits.merge(&core.waits);
        }
        let cores = seen.cores.iter().map(|core| core.time.divide(break_even)).collect();
        Self { cores, sleeps, waits, lost: seen.lost }
    }

    fn since(&self, before: &Self) -> EventsSeen {
        let pairs = self.cores.iter().zip(&before.cores);
        let cores: Vec<Gauge<Division>> = pairs.map(|(now, then)| divided(now, then)).collect();
        let all = cores.iter().flatten().copied().reduce(|sum, core| sum.and(&core));
        let all = all.ok_or_else(|| Missing::because("no core has slept or woken up yet"));
        let share = |division: Division| division.opportunity().map(|found| found.share);
        let gaps = quantiles(&self.sleeps.since(&before.sleeps));
        EventsSeen {
            c6_opportunity: all.and_then(share),
            cores: cores.into_iter().map(|core| core.and_then(share)).collect(),
            idle_gaps: gaps.ok_or_else(|| Missing::because("no core woke up in the epoch")),
            run_queue_latency: self.waited(before),
        }
    }

    fn waited(&self, before: &Self) -> Gauge<Quantiles> {
        let (new, lost) = (self.waits.since(&before.waits), self.lost.saturating_sub(before.lost));
        check_lost(new.count(), lost, "waits", "too many threads wait at once")?;
        quantiles(&new).ok_or_else(|| Missing::because("no thread waited in the epoch"))
    }
}

/// A core that was not known before is counted from when it was first seen.
fn divided(now: &Option<Division>, before: &Option<Division>) -> Gauge<Division> {
    let unseen = || Missing::because("the core has neither slept nor woken up yet");
    let now = now.ok_or_else(unseen)?;
    Ok(now.since(&before.unwrap_or_default()))
}

fn quantiles(all: &Histogram) -> Option<Quantiles> {
    let (p50, p95, p99) = (all.quantile(0.5)?, all.quantile(0.95)?, all.quantile(0.99)?);
    Some(Quantiles { p50, p95, p99 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::CoreCounts;
    use crate::testing::Tree;

    const T: Nanos = Nanos::from_millis(1);

    fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    /// Cores with these sleeps, 10 ms awake between, and these waits.
    fn seen(cores: &[&[u64]], waits_us: &[u64], lost: u64) -> WatchCounts {
        let core = |sleeps: &&[u64]| {
            let mut core = CoreCounts::default();
            sleeps.iter().for_each(|sleep| core.time.sleeps.add(ms(*sleep)));
            core.time.awake = ms(10) * sleeps.len() as u64;
            waits_us.iter().for_each(|wait| core.waits.add(Nanos::from_micros(*wait)));
            core
        };
        WatchCounts { cores: cores.iter().map(core).collect(), lost }
    }

    fn epoch(before: &WatchCounts, after: &WatchCounts) -> EventsSeen {
        Counted::new(after, T).since(&Counted::new(before, T))
    }

    #[test]
    fn cores_and_machine_have_their_shares_of_the_epoch() {
        let before = seen(&[&[50], &[], &[]], &[], 0);
        let new = epoch(&before, &seen(&[&[50, 30], &[90], &[]], &[], 0));
        assert_eq!(new.cores[..2], [Ok(0.75), Ok(0.9)]);
        assert!(new.cores[2].as_ref().unwrap_err().reason.contains("neither slept nor woken"));
        assert_eq!(new.c6_opportunity, Ok(120.0 / 140.0));
        assert_eq!(new.idle_gaps.unwrap().p99, ms(90));
    }

    #[test]
    fn nothing_that_happened_is_a_reason_and_no_zero() {
        let still = seen(&[&[50]], &[10], 0);
        let new = epoch(&still, &still);
        assert!(new.c6_opportunity.is_err() && new.cores[0].is_err());
        assert!(new.idle_gaps.unwrap_err().reason.contains("no core woke up"));
        assert!(new.run_queue_latency.unwrap_err().reason.contains("no thread waited"));
    }

    #[test]
    fn waits_are_missing_where_too_many_were_lost() {
        let (none, many) = (seen(&[&[]], &[], 0), vec![100; 1000]);
        let kept = epoch(&none, &seen(&[&[]], &many, 10)).run_queue_latency.unwrap();
        assert_eq!((kept.p50, kept.p99), (Nanos::from_micros(100), Nanos::from_micros(100)));
        let why = epoch(&none, &seen(&[&[]], &many, 11)).run_queue_latency.unwrap_err();
        assert!(why.reason.contains("11 of 1011 waits"), "{why}");
    }

    #[test]
    fn without_programs_every_core_has_the_reason() {
        let mut events = Events::none(Missing::because("not asked for"));
        let seen = events.read(2);
        assert_eq!(seen.cores, vec![Err(Missing::because("not asked for")); 2]);
        assert!(seen.run_queue_latency.is_err());
    }

    #[test]
    fn a_tree_of_files_has_no_events() {
        let why = Events::probe(&Tree::new().roots()).unwrap_err();
        assert!(why.reason.contains("running kernel"), "{why}");
    }

    #[test]
    fn the_real_kernel_answers_one_way_or_the_other() {
        let mut events = Events::new(1, T);
        let first = events.read(1);
        assert!(first.c6_opportunity.is_err(), "a change needs two readings");
        match Events::probe(&Roots::default()) {
            Ok(_) => assert!(events.watch.is_ok()),
            Err(_) => {
                let why = events.watch.unwrap_err();
                assert!(why.reason.contains("schedstat"), "{why}");
            }
        }
    }
}
