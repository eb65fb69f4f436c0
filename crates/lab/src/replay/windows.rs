//! Selects the part of a long run that is simulated.
//!
//! The counted epochs are cut into windows, and of every `every` windows in
//! order a replication takes one, each replication another: `every`
//! replications together have the whole run once. The windows of one block are
//! joined, so that the policy continues from one to the next; before them comes
//! the block's own beginning, which is not counted.

use super::recording::{RecordedEpoch, Recording};

/// Epochs of a window: ten seconds at the usual half second, in which most
/// policies settle after a jump of the load.
const WINDOW: usize = 20;

/// The part of one block that is simulated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) block: usize,
    /// Epochs of the block played without being counted.
    pub(super) lead: Vec<usize>,
    /// Epochs of the block that count.
    pub(super) counted: Vec<usize>,
}

/// How a recording is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// One window in this many, in order, is used.
    pub(super) every: u64,
}

impl Cut {
    /// Chooses windows so that a replication has about this many requests at most.
    pub(super) fn new(recording: &Recording, requests: u64) -> Self {
        let all: f64 = recording.counted().map(requests_of).sum();
        let windows = windows(recording).len().max(1) as u64;
        let every = (all / requests.max(1) as f64).ceil().max(1.0) as u64;
        Self { every: every.min(windows) }
    }

    /// The part that a replication simulates.
    pub(super) fn parts(self, recording: &Recording, replication: u64) -> Vec<Part> {
        let mine = replication % self.every;
        let taken = (0_u64..).zip(windows(recording));
        let taken = taken.filter(|(number, _)| number % self.every == mine);
        let mut parts: Vec<Part> = Vec::new();
        for (_, (block, epochs)) in taken {
            match parts.last_mut() {
                Some(part) if part.block == block => part.counted.extend(epochs),
                _ => {
                    let lead = (0..recording.lead(&recording.blocks[block])).collect();
                    parts.push(Part { block, lead, counted: epochs.collect() });
                }
            }
        }
        parts
    }

    /// Share of the recording that this many replications simulate.
    pub(super) fn share(self, replications: u64) -> f64 {
        replications.min(self.every) as f64 / self.every as f64
    }
}

/// Block and epochs of each window.
pub(super) fn windows(recording: &Recording) -> Vec<(usize, std::ops::Range<usize>)> {
    let mut all = Vec::new();
    for (at, block) in recording.blocks.iter().enumerate() {
        let (first, end) = (recording.lead(block), block.len());
        // A short rest belongs to the window before it.
        let count = ((end - first) / WINDOW).max(1);
        for number in 0..count {
            let from = first + number * WINDOW;
            let to = if number + 1 == count { end } else { from + WINDOW };
            if from < to {
                all.push((at, from..to));
            }
        }
    }
    all
}

/// Requests of all apps that were due in an epoch.
pub(super) fn requests_of(epoch: &RecordedEpoch) -> f64 {
    let rates = epoch.apps.iter().filter_map(|app| app.offered_per_s);
    rates.sum::<f64>() * epoch.length.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::super::recording::RecordedAppEpoch;
    use super::*;
    use crate::trial::rules;
    use lull_control::{AppSpec, EpochRule, Plant};
    use lull_measure::Nanos;
    use lull_sim::machine::{Activity, MachineApp, MachineModel, MachinePlant};
    use std::collections::BTreeMap;

    const EPOCH: Nanos = Nanos::from_millis(500);

    /// Blocks of this many epochs, at 100 requests an epoch, of which two are skipped.
    fn recording(blocks: &[usize]) -> Recording {
        let app = RecordedAppEpoch { offered_per_s: Some(200.0), ..RecordedAppEpoch::default() };
        let epoch = RecordedEpoch { length: EPOCH, apps: vec![app], busy_cores: None };
        let model = MachineModel {
            app: vec![MachineApp::new("any", 1, Activity::Endless)],
            ..MachineModel::plain("any", 1, lull_measure::Hertz(1))
        };
        Recording {
            machine: MachinePlant::new(&model, &[], 1, 0).unwrap().machine().clone(),
            apps: vec![AppSpec::best_effort("any")],
            rules: rules(),
            epoch: EpochRule::Fixed(EPOCH),
            blocks: blocks.iter().map(|epochs| vec![epoch.clone(); *epochs]).collect(),
            skip: EPOCH * 2,
            clients: vec![None],
        }
    }

    /// How often each counted epoch is simulated by all replications of a cut.
    fn coverage(recording: &Recording, cut: Cut) -> BTreeMap<(usize, usize), usize> {
        let mut times = BTreeMap::new();
        for part in (0..cut.every).flat_map(|number| cut.parts(recording, number)) {
            for at in part.counted {
                *times.entry((part.block, at)).or_default() += 1;
            }
        }
        times
    }

    #[test]
    fn all_replications_together_have_every_counted_epoch_once() {
        for blocks in [vec![200], vec![30, 45, 22], vec![3, 3, 3, 3], vec![2, 50], vec![41]] {
            let recording = recording(&blocks);
            let counted: usize = blocks.iter().map(|epochs| epochs - 2).sum();
            for requests in [1, 500, 3_000, 1_000_000] {
                let cut = Cut::new(&recording, requests);
                let times = coverage(&recording, cut);
                assert_eq!(times.len(), counted, "{blocks:?} {cut:?}");
                assert!(times.values().all(|times| *times == 1), "{blocks:?} {cut:?}");
                assert!(times.keys().all(|(_, at)| *at >= 2), "the beginning does not count");
            }
        }
    }

    #[test]
    fn a_replication_has_about_as_many_requests_as_it_may() {
        let recording = recording(&[1_202]);
        let cut = Cut::new(&recording, 20_000);
        for replication in 0..cut.every {
            let parts = cut.parts(&recording, replication);
            assert_eq!((parts.len(), parts[0].lead.as_slice()), (1, [0, 1].as_slice()));
            let requests = 100 * parts[0].counted.len();
            assert!((18_000..=22_000).contains(&requests), "{requests}");
        }
        assert_eq!(Cut::new(&recording, 1_000_000).share(1), 1.0);
        assert!((cut.share(3) - 0.5).abs() < 1e-9);
    }
}
