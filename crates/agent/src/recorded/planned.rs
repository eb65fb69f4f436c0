//! The frequencies that policies planned, over the epochs of a record.

use super::database::Database;
use anyhow::Context;
use lull_control::{DomainId, Setting};
use lull_measure::Hertz;

/// A frequency that a policy planned for a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedFrequency {
    /// Number of the epoch after which it was planned: it is in force from the end of this epoch
    /// to the next plan for the domain.
    pub epoch: i64,
    /// The domain.
    pub domain: DomainId,
    /// The frequency.
    pub frequency: Hertz,
}

impl PlannedFrequency {
    /// Reads the planned frequencies of all domains, in the order of the epochs.
    ///
    /// # Errors
    /// If the record is damaged.
    pub fn read_all(record: &Database) -> anyhow::Result<Vec<Self>> {
        let sql = "SELECT epoch, setting FROM plans ORDER BY epoch, rowid";
        let mut query = record.database.prepare(sql)?;
        let mut rows = query.query([])?;
        let mut planned = Vec::new();
        while let Some(row) = rows.next()? {
            let (epoch, text): (i64, String) = (row.get(0)?, row.get(1)?);
            let setting = serde_json::from_str(&text)
                .with_context(|| format!("the plan of epoch {epoch} is not a setting: {text}"))?;
            if let Setting::Frequency(domain, frequency) = setting {
                planned.push(Self { epoch, domain, frequency });
            }
        }
        Ok(planned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::Connection;

    fn record(settings: &[(i64, &str)]) -> Database {
        let database = Connection::open_in_memory().unwrap();
        database.execute_batch("CREATE TABLE plans (epoch INTEGER, setting TEXT)").unwrap();
        for (epoch, setting) in settings {
            database.execute("INSERT INTO plans VALUES (?1, ?2)", (epoch, setting)).unwrap();
        }
        Database { database, version: 3 }
    }

    #[test]
    fn plans_of_other_knobs_are_left_out() {
        let fast = Setting::Frequency(DomainId(1), Hertz::from_khz(2_260_000));
        let text = serde_json::to_string(&fast).unwrap();
        let throttle = serde_json::to_string(&Setting::RealTimeThrottle(true)).unwrap();
        let record = record(&[(7, text.as_str()), (3, throttle.as_str()), (5, text.as_str())]);
        let planned = PlannedFrequency::read_all(&record).unwrap();
        assert_eq!(planned.iter().map(|plan| plan.epoch).collect::<Vec<_>>(), [5, 7]);
        assert_eq!(planned[0].domain, DomainId(1));
        assert_eq!(planned[0].frequency, Hertz::from_khz(2_260_000));
    }

    #[test]
    fn a_damaged_plan_is_refused_with_its_epoch() {
        let error = PlannedFrequency::read_all(&record(&[(4, "{}")])).unwrap_err().to_string();
        assert!(error.contains("epoch 4"), "{error}");
    }
}
