//! The printed numbers, read from `paper.toml`.

use lull_measure::Nanos;
use lull_measure::entropy::LcReading;
use serde::Deserialize;

/// The values printed in the paper.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Paper {
    pub(super) title: String,
    pub(super) authors: String,
    pub(super) venue: String,
    pub(super) seed_file: String,
    /// Table IV.
    pub(super) app: Vec<TableIvRow>,
    pub(super) table2: Vec<TableIiBlock>,
}

/// A column of Table IV.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TableIvRow {
    pub(super) name: String,
    /// M, the tail latency threshold.
    pub(super) bound_ms: f64,
    /// Requests per second.
    pub(super) max_load: f64,
}

/// Table II at one number of cores.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TableIiBlock {
    pub(super) cores: u16,
    pub(super) e_lc: f64,
    pub(super) e_be: f64,
    pub(super) e_s: f64,
    pub(super) system: Means,
    pub(super) app: Vec<TableIiRow>,
}

/// The "System" row.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Means {
    pub(super) a: f64,
    pub(super) r: f64,
    pub(super) ret: f64,
}

/// One app's row.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TableIiRow {
    pub(super) name: String,
    pub(super) ideal_ms: f64,
    pub(super) tail_ms: f64,
    pub(super) a: f64,
    pub(super) r: f64,
    pub(super) ret: f64,
    pub(super) q: f64,
}

impl Paper {
    /// M and max load of an app; `None` for one that Table IV lacks.
    pub(super) fn app(&self, name: &str) -> Option<&TableIvRow> {
        self.app.iter().find(|app| app.name == name)
    }

    /// The latencies of a row of Table II.
    pub(super) fn reading(&self, row: &TableIiRow) -> Option<LcReading> {
        let bound = ms(self.app(&row.name)?.bound_ms);
        LcReading::new(ms(row.ideal_ms), ms(row.tail_ms), bound).ok()
    }

    /// TL_i0 of Table II, where it has the app.
    pub(super) fn ideal(&self, name: &str) -> Option<Nanos> {
        let rows = self.table2.iter().flat_map(|block| &block.app);
        rows.into_iter().find(|row| row.name == name).map(|row| ms(row.ideal_ms))
    }

    /// Title of a report about this part of the paper.
    pub(super) fn titled(&self, part: &str) -> String {
        format!("{}, {part}: {}", self.venue, self.title)
    }
}

/// Milliseconds as a span.
pub(super) fn ms(value: f64) -> Nanos {
    Nanos((value * 1e6).round() as u64)
}

/// The paper.
pub(super) fn paper() -> Paper {
    toml::from_str(include_str!("paper.toml")).expect("a test reads the embedded file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ideals_are_one_number_an_app_and_below_its_bound() {
        let paper = paper();
        assert!(!paper.title.is_empty() && paper.authors.contains("Liu"));
        assert_eq!((paper.app.len(), paper.table2.len()), (6, 3));
        for row in paper.table2.iter().flat_map(|block| &block.app) {
            assert_eq!(paper.ideal(&row.name), Some(ms(row.ideal_ms)));
            assert!(paper.reading(row).is_some(), "{row:?}");
        }
    }
}
