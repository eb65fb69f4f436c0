//! Rounds of replications of which some are kept in a store.

use crate::cells::{CellStore, ReplicationCell, Sample, StoreError};
use crate::progress::Progress;
use std::ops::Range;

/// The replications of one policy that a store has, or is to get.
pub(super) struct StoredRound<'a> {
    pub(super) store: &'a dyn CellStore,
    /// The cell of replication 0.
    pub(super) cell: ReplicationCell<'a>,
}

impl<'a> StoredRound<'a> {
    fn at(&self, replication: u64) -> ReplicationCell<'a> {
        ReplicationCell { replication, ..self.cell }
    }

    fn failed(&self, message: String) -> StoreError {
        StoreError { policy: self.cell.label.to_owned(), message }
    }

    fn load(&self, replication: u64) -> Result<Option<Sample>, StoreError> {
        self.store.load(&self.at(replication)).map_err(|error| self.failed(error))
    }

    /// Returns the samples of a round's wanted cells. Those that are not kept are measured, as
    /// many at once as there are threads, and kept as soon as these are finished.
    pub(super) fn run<E: From<StoreError>>(
        &self,
        round: Range<u64>,
        progress: &Progress<'_>,
        mut measure: impl FnMut(Range<u64>) -> Result<Vec<Sample>, E>,
    ) -> Result<Vec<Sample>, E> {
        let mut samples = Vec::new();
        let mut missing = 0..0;
        for replication in round {
            if !self.store.is_wanted(&self.at(replication)) {
                continue;
            }
            let kept = self.load(replication)?;
            let is_next = missing.end == replication && !missing.is_empty();
            let is_full = missing.end - missing.start >= rayon::current_num_threads() as u64;
            if kept.is_some() || !is_next || is_full {
                self.measure(std::mem::take(&mut missing), &mut measure, &mut samples)?;
            }
            match kept {
                Some(sample) => {
                    samples.push(sample);
                    progress.step();
                }
                None if missing.is_empty() => missing = replication..replication + 1,
                None => missing.end = replication + 1,
            }
        }
        self.measure(missing, &mut measure, &mut samples)?;
        Ok(samples)
    }

    fn measure<E: From<StoreError>>(
        &self,
        missing: Range<u64>,
        measure: &mut impl FnMut(Range<u64>) -> Result<Vec<Sample>, E>,
        samples: &mut Vec<Sample>,
    ) -> Result<(), E> {
        if missing.is_empty() {
            return Ok(());
        }
        for (replication, sample) in missing.clone().zip(measure(missing)?) {
            let saved = self.store.save(&self.at(replication), &sample);
            saved.map_err(|error| self.failed(error))?;
            samples.push(sample);
        }
        Ok(())
    }
}
