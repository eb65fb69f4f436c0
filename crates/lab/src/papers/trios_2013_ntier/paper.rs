//! The printed numbers, read from `paper.toml`.

use lull_sim::model::PState;
use serde::Deserialize;

/// The values printed in the paper.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Paper {
    pub(super) title: String,
    pub(super) authors: String,
    pub(super) venue: String,
    pub(super) seed_file: String,
    pub(super) pstate: Vec<NamedPState>,
    pub(super) table2: Vec<Table2Row>,
    pub(super) table3: Vec<Table3Row>,
}

/// A P-state with its name.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct NamedPState {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) state: PState,
}

/// A row of Table 2.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table2Row {
    pub(super) clients: u32,
    pub(super) simulated: Pair,
    pub(super) measured: Pair,
    pub(super) note: Option<String>,
}

/// Throughput with DVFS off and on, in requests/s.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pair {
    pub(super) full_speed: f64,
    pub(super) dvfs_on: f64,
}

/// A row of Table 3.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table3Row {
    /// Apache, Tomcat, C-JDBC, MySQL.
    pub(super) servers: [u32; 4],
    pub(super) full_speed: f64,
    pub(super) dvfs_on: f64,
    pub(super) loss_percent: f64,
    pub(super) note: Option<String>,
}

impl Pair {
    /// Throughput lost by DVFS, in percent.
    pub(super) fn loss_percent(self) -> f64 {
        100.0 * (1.0 - self.dvfs_on / self.full_speed)
    }
}

impl Table3Row {
    /// The configuration as the paper writes it.
    pub(super) fn name(&self) -> String {
        let servers = self.servers.iter().filter(|servers| **servers > 0);
        servers.map(ToString::to_string).collect::<Vec<_>>().join("/")
    }
}

/// The paper.
pub(super) fn paper() -> Paper {
    toml::from_str(include_str!("paper.toml")).expect("a test reads the embedded file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_numbers_agree_with_each_other_within_their_rounding() {
        let paper = paper();
        assert!(!paper.title.is_empty() && paper.authors.contains("Wang"));
        assert_eq!(paper.venue, "TRIOS 2013");
        assert_eq!((paper.table2.len(), paper.table3.len(), paper.pstate.len()), (6, 6, 3));
        for row in &paper.table2 {
            // Think time 7 s: no row can have more requests than clients allow.
            assert!(row.measured.full_speed <= f64::from(row.clients) / 6.8, "{row:?}");
        }
        for row in &paper.table3 {
            let pair = Pair { full_speed: row.full_speed, dvfs_on: row.dvfs_on };
            assert!((pair.loss_percent() - row.loss_percent).abs() < 0.06, "{row:?}");
        }
    }

    #[test]
    fn configurations_are_written_as_in_the_paper() {
        let names: Vec<_> = paper().table3.iter().map(Table3Row::name).collect();
        assert_eq!(names[0], "1/1/1");
        assert_eq!(names[5], "8/32/8/32");
    }
}
