//! Which pod an app of a record was in each epoch.

use super::Database;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The table of a record with pods; records of older agents do not have it.
const TABLE: &str = "pods";

/// The pod that an app was. All names are empty while it was none.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodNames {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// The container that was the app; empty if the whole pod was.
    pub container: String,
    /// The owner of the pod, such as a Deployment; empty if it was unknown.
    pub workload: String,
}

/// An app and the pod that it was.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AppInstance {
    /// The name of the app in the record.
    pub app: String,
    /// The pod. Thousands of epochs share one.
    pub pod: Arc<PodNames>,
}

/// The pods of all apps of a record.
#[derive(Debug, Default)]
pub(super) struct PodHistory {
    /// Indexed by app: the epochs from which it was each pod, ascending.
    by_app: BTreeMap<String, Vec<(i64, Arc<PodNames>)>>,
    none: Arc<PodNames>,
}

impl PodHistory {
    pub(super) fn read(record: &Database) -> anyhow::Result<Self> {
        let mut history = Self::default();
        if !record.tables()?.contains(&TABLE) {
            return Ok(history);
        }
        let sql = "SELECT app, epoch, namespace, pod, container, workload FROM pods \
                   ORDER BY app, epoch, rowid";
        let mut query = record.database.prepare(sql)?;
        let mut rows = query.query([])?;
        while let Some(row) = rows.next()? {
            let pod = PodNames {
                namespace: row.get(2)?,
                pod: row.get(3)?,
                container: row.get(4)?,
                workload: row.get(5)?,
            };
            let changes = history.by_app.entry(row.get(0)?).or_default();
            changes.push((row.get(1)?, Arc::new(pod)));
        }
        Ok(history)
    }

    /// Returns an app with the pod that it was in an epoch.
    pub(super) fn instance(&self, app: &str, epoch: i64) -> AppInstance {
        let changes = self.by_app.get(app).map_or(&[][..], Vec::as_slice);
        let begun = changes.partition_point(|(from, _)| *from <= epoch);
        let pod = begun.checked_sub(1).map_or(&self.none, |last| &changes[last].1);
        AppInstance { app: app.to_owned(), pod: Arc::clone(pod) }
    }
}
