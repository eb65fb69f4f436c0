//! The work of an app's requests, fitted to a record of a run.

use crate::recorded::{RecordPart, Recorded};
use lull_lab::progress::Progress;
use lull_lab::replay::{Effort, Replay};
use lull_measure::Nanos;
use lull_sim::model::{Distribution, Shape};
use std::path::Path;

/// The demand of a request of an app.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Demand {
    pub(super) work: Distribution,
    pub(super) delay: Option<Distribution>,
}

/// Fits the demand of an app to a record, as `lull replay` does.
///
/// # Errors
/// The reason why the record cannot be used for this app.
pub(super) fn fitted(record: &Path, app: &str) -> Result<Demand, String> {
    let recorded = Recorded::read(record, RecordPart { part: None, skip: None })
        .map_err(|error| format!("{error:#}"))?;
    let apps = &recorded.recording.apps;
    let Some(number) = apps.iter().position(|spec| spec.name == app) else {
        let names: Vec<&str> = apps.iter().map(|spec| spec.name.as_str()).collect();
        let (record, names) = (record.display(), names.join(", "));
        return Err(format!("{record} has no app `{app}`; it has: {names}"));
    };
    let replay = Replay::new(&recorded.recording, recorded.acted(), Effort::default(), &|| false)
        .map_err(|error| format!("{}: {error}", record.display()))?;
    let fit = replay
        .calibrate(&Progress::silent())
        .map_err(|error| format!("{}: {error}", record.display()))?;
    let Some(fit) = fit.apps[number] else {
        return Err(format!("`{app}` is best effort in {}: give no work", record.display()));
    };
    let spread = |mean_ns: f64| Distribution {
        mean: Nanos((mean_ns as u64).max(1)),
        shape: Shape::Lognormal { cv2: fit.cv2 },
    };
    let delay = (fit.delay_ns >= 1.0).then(|| spread(fit.delay_ns));
    Ok(Demand { work: spread(fit.work_ns), delay })
}
