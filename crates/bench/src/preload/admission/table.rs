//! The rows of a series: each setting, its ratio to the open gate, and `auto` beside the best fixed
//! limit and each limiter of others.

use super::super::super::report::Report;
use super::super::super::stats::Summary;
use super::client::Outcome;
use super::series::DECIDES_WITHIN_S;
use super::setting::{Kind, Setting};
use anyhow::{Context as _, Result};
use lull_measure::statistics::PairedRatio;

/// Throughput that must remain, over the open gate's or the best limit's.
const REMAINS: f64 = 0.97;
/// The tail of `auto` over that of the best limit, at most.
const TAIL_MAX: f64 = 1.1;
/// The value of a block in which `auto` has not decided: more than any bound.
const UNDECIDED_S: f64 = 60.0;

/// One figure of a block.
type Figure = fn(&Outcome) -> f64;

const FIGURES: [(&str, &str, Figure); 2] =
    [("transactions", "1/s", |outcome| outcome.per_s), ("p99", "ms", |outcome| outcome.p99_ms)];
const THROUGHPUT: Figure = FIGURES[0].2;
const TAIL: Figure = FIGURES[1].2;

/// The outcomes of a series.
pub(super) struct Table<'t> {
    pub(super) title: &'t str,
    pub(super) settings: &'t [Setting],
    /// Indexed by round and setting.
    pub(super) outcomes: &'t [Vec<Outcome>],
    /// Time to the decision of `auto`, by round.
    pub(super) decided_s: &'t [Option<f64>],
    /// The median of these at most.
    pub(super) decides_s: f64,
    /// Whether there are enough rounds for a bound on the lower end of an interval.
    pub(super) is_full: bool,
}

impl Table<'_> {
    /// Adds all rows.
    ///
    /// # Errors
    /// If a throughput or a tail is zero, so that it has no ratio.
    pub(super) fn rows(&self, report: &mut Report) -> Result<()> {
        for (at, setting) in self.settings.iter().enumerate() {
            for (figure, unit, select) in FIGURES {
                let what = format!("{}: {}, {figure}", self.title, setting.name);
                report.reported(&what, Summary::new(self.values(at, select)), unit);
            }
        }
        let open = self.position(Kind::Open).context("no open gate in a series")?;
        let auto = self.position(Kind::Auto).context("no auto in a series")?;
        for (at, setting) in self.settings.iter().enumerate().filter(|(at, _)| *at != open) {
            let loses_nothing = matches!(setting.kind, Kind::Auto | Kind::Paper);
            let [throughput, tail] = self.ratios(at, open)?;
            let what = self.over("transactions", at, open);
            // Student's t of two or three rounds is too wide for a bound.
            if loses_nothing && self.is_full {
                report.bounded_below(&what, throughput, "ratio", REMAINS);
            } else {
                report.reported(&what, throughput, "ratio");
            }
            report.reported(&self.over("p99", at, open), tail, "ratio");
        }
        if let Some(best) = self.best_limit() {
            let [throughput, tail] = self.ratios(auto, best)?;
            let bound = REMAINS..=f64::INFINITY;
            let what = |figure| format!("{}, the best limit", self.over(figure, auto, best));
            report.bounded(&what("transactions"), throughput, "ratio", bound);
            report.bounded(&what("p99"), tail, "ratio", 0.0..=TAIL_MAX);
            self.leads(auto, report)?;
        }
        self.decisions(report);
        Ok(())
    }

    /// `auto` beside each limiter of others.
    fn leads(&self, auto: usize, report: &mut Report) -> Result<()> {
        let peers = self.settings.iter().enumerate();
        for (at, peer) in peers.filter(|(_, setting)| setting.kind == Kind::Peer) {
            let [throughput, tail] = self.ratios(auto, at)?;
            report.reported(&self.over("transactions", auto, at), throughput, "ratio");
            report.reported(&self.over("p99", auto, at), tail, "ratio");
            let lead = lead(throughput.median, tail.median);
            let what = format!("{}: lead of auto over {}", self.title, peer.name);
            let value = Summary { median: lead, low: lead, high: lead };
            report.bounded(&what, value, "ratio", 1.0..=f64::INFINITY);
        }
        Ok(())
    }

    fn decisions(&self, report: &mut Report) {
        let times: Vec<f64> =
            self.decided_s.iter().map(|time| time.unwrap_or(UNDECIDED_S)).collect();
        let what = format!("{}: time to the first decision of auto", self.title);
        report.bounded(&what, Summary::new(times.iter().copied()), "s", 0.0..=self.decides_s);
        let worst = times.iter().copied().fold(0.0, f64::max);
        let value = Summary { median: worst, low: worst, high: worst };
        let bound = 0.0..=f64::from(DECIDES_WITHIN_S);
        report.bounded(&format!("{what}, the longest"), value, "s", bound);
    }

    fn values(&self, setting: usize, figure: Figure) -> Vec<f64> {
        self.outcomes.iter().map(|round| figure(&round[setting])).collect()
    }

    /// Ratios within rounds of throughput and tail, with their intervals.
    fn ratios(&self, ours: usize, theirs: usize) -> Result<[Summary; 2]> {
        let ratio = |figure: Figure| {
            let (ours, theirs) = (self.values(ours, figure), self.values(theirs, figure));
            let ratio = PairedRatio::from_pairs(&ours, &theirs).context("a block without work")?;
            anyhow::Ok(Summary { median: ratio.ratio, low: ratio.low, high: ratio.high })
        };
        Ok([ratio(THROUGHPUT)?, ratio(TAIL)?])
    }

    fn over(&self, figure: &str, ours: usize, theirs: usize) -> String {
        let name = |at: usize| self.settings[at].name;
        format!("{}: {figure}, {} / {} (± 95 %)", self.title, name(ours), name(theirs))
    }

    fn position(&self, kind: Kind) -> Option<usize> {
        self.settings.iter().position(|setting| setting.kind == kind)
    }

    /// Throughput of the best fixed limit over the open gate's, if limits took part.
    ///
    /// # Errors
    /// As [`Self::rows`].
    pub(super) fn gain(&self) -> Result<Option<f64>> {
        let both = self.best_limit().zip(self.position(Kind::Open));
        both.map(|(best, open)| Ok(self.ratios(best, open)?[0].median)).transpose()
    }

    /// The fixed limit with the most throughput.
    fn best_limit(&self) -> Option<usize> {
        let total = |at: usize| -> f64 { self.values(at, THROUGHPUT).iter().sum() };
        let limits = (0..self.settings.len()).filter(|at| self.settings[*at].kind == Kind::Limit);
        limits.max_by(|one, other| total(*one).total_cmp(&total(*other)))
    }
}

/// Returns by how much the first of two settings is ahead, by the ratios of throughput and tail:
/// in throughput if its tail is no longer, in the inverse of the tail if its throughput is no less,
/// each within the margin that is allowed beside the best limit. 0 if it is behind in both.
fn lead(throughput: f64, tail: f64) -> f64 {
    let by_throughput = if tail <= TAIL_MAX { throughput } else { 0.0 };
    let by_tail = if throughput >= REMAINS { 1.0 / tail } else { 0.0 };
    by_throughput.max(by_tail)
}

#[cfg(test)]
mod tests {
    use super::super::super::super::machine::Machine;
    use super::super::setting::settings;
    use super::*;

    /// Two rounds, the second twice as fast: every setting has a throughput and a tail.
    fn page(
        figures: impl Fn(&Setting) -> (f64, f64),
        decided_s: &[Option<f64>],
        is_full: bool,
    ) -> String {
        let settings = settings(true, true);
        let round = |speed: f64| -> Vec<Outcome> {
            let outcome = |setting: &Setting| {
                let (per_s, p99_ms) = figures(setting);
                Outcome { per_s: per_s * speed, p99_ms: p99_ms / speed }
            };
            settings.iter().map(outcome).collect()
        };
        let outcomes = [round(1.0), round(2.0)];
        let mut report = Report::default();
        let (settings, outcomes) = (&settings, &outcomes);
        let title = "load";
        let table = Table { title, settings, outcomes, decided_s, decides_s: 20.0, is_full };
        table.rows(&mut report).unwrap();
        report.markdown("name", "About", &Machine::here(&xtask::root()))
    }

    #[test]
    fn a_machine_that_changes_its_speed_changes_no_ratio() {
        let figures = |setting: &Setting| match setting.name {
            "auto" => (198.0, 50.0),
            "limit 16" => (200.0, 50.0),
            "vegas" => (150.0, 50.0),
            "cinnamon" => (240.0, 50.0),
            "reef" => (90.0, 100.0),
            _ => (100.0, 100.0),
        };
        let page = page(figures, &[Some(12.0), None], true);
        for row in [
            "auto / open (± 95 %) | 1.98 | 1.98 .. 1.98 | ratio | lower end >= 0.970 | kept |",
            "reef / open (± 95 %) | 0.900 | 0.900 .. 0.900 | ratio | lower end >= 0.970 | missed |",
            "transactions, auto / limit 16 (± 95 %), the best limit | 0.990 |",
            "lead of auto over vegas | 1.32 |",
            "lead of auto over cinnamon | 0.825 | 0.825 .. 0.825 | ratio | >= 1.00 | missed |",
            "decision of auto | 36.0 | 24.0 .. 48.0 | s | <= 20.0 | missed |",
            "the longest | 60.0 |",
        ] {
            assert!(page.contains(row), "{row}\n{page}");
        }
    }

    #[test]
    fn the_interval_of_few_rounds_is_reported_without_a_bound() {
        let figures = |setting: &Setting| match setting.kind {
            Kind::Auto => (80.0, 100.0),
            _ => (100.0, 100.0),
        };
        let page = page(figures, &[Some(12.0), Some(12.0)], false);
        let row = "auto / open (± 95 %) | 0.800 | 0.800 .. 0.800 | ratio | – | reported |";
        assert!(page.contains(row), "{page}");
    }

    #[test]
    fn a_lead_counts_only_where_the_other_figure_is_no_worse() {
        assert_eq!(lead(1.2, 1.0), 1.2);
        assert_eq!(lead(1.0, 0.5), 2.0);
        assert_eq!(lead(1.5, 2.0), 0.5);
        assert_eq!(lead(0.8, 0.5), 0.8);
        assert_eq!(lead(0.8, 2.0), 0.0);
    }
}
