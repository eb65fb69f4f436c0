//! Servers of one kind under the same loads, in turn: the servers that take part, the
//! counts of each, and the ratio that one must keep over another.

use super::super::process::{switches, usage};
use super::super::stats::{BoxedContender, Summary, interleave_all, ratios};
use super::Report;
use super::ran::LoadRun;
use anyhow::{Context as _, Result, anyhow};
use lull_measure::statistics::PairedRatio;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

pub(super) const RUN_S: u32 = 10;
/// Rounds where a gain or a loss is large, and where it must be distinguished from two
/// percent: two bare servers differ by 10 to 15 % from run to run.
pub(super) const ROUNDS: usize = 3;
pub(super) const MANY_ROUNDS: usize = 9;
/// Counting takes place in the middle of a run, while all its connections exist: connecting takes a
/// while, and a thread that ends takes its counts along.
const SETTLING: Duration = Duration::from_secs(3);
pub(super) const COUNTING: Duration = Duration::from_secs(5);

/// How a server is run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    /// Options of `lull exec`; `None` without.
    pub(super) exec: Option<&'static [&'static str]>,
    /// Further options of the server.
    pub(super) options: &'static [&'static str],
}

impl Setting {
    /// The port, beside its own, at which the server has clients with objectives.
    pub(super) fn extra_port(&self) -> Option<u16> {
        let of = |option: &&str| option.strip_prefix("--extra-port=")?.parse().ok();
        self.options.iter().find_map(of)
    }
}

pub(super) const BARE: Setting = Setting { name: "bare", exec: None, options: &[] };
pub(super) const STATS: Setting = Setting { name: "watched", exec: Some(&[]), options: &[] };
pub(super) const CAP_16: Setting =
    Setting { name: "cap 16", exec: Some(&["--concurrency", "16"]), options: &[] };

/// A figure of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Figure {
    Throughput,
    P95,
    P99,
    P999,
}

/// The ratio of one setting over another by one figure, and its bound.
pub(super) struct Bound {
    pub(super) setting: &'static str,
    pub(super) over: &'static str,
    figure: Figure,
    keeps: RatioBound,
}

/// The bound that the ratio of a [`Bound`] must keep.
enum RatioBound {
    /// Its median lies in this range.
    Range(RangeInclusive<f64>),
    /// The ratio is at least as good as that of these two settings in the same rounds: the 95 %
    /// interval of the difference does not show a loss.
    GainOf([&'static str; 2]),
}

pub(super) const fn at_least(setting: &'static str, over: &'static str, least: f64) -> Bound {
    let keeps = RatioBound::Range(least..=f64::INFINITY);
    Bound { setting, over, figure: Figure::Throughput, keeps }
}

pub(super) const fn at_most(
    setting: &'static str,
    over: &'static str,
    figure: Figure,
    most: f64,
) -> Bound {
    Bound { setting, over, figure, keeps: RatioBound::Range(0.0..=most) }
}

/// The gain of one setting over another must not be less, beyond noise, than the gain of the first
/// of two others over the second.
pub(super) const fn gains_like(
    [setting, over]: [&'static str; 2],
    others: [&'static str; 2],
    figure: Figure,
) -> Bound {
    Bound { setting, over, figure, keeps: RatioBound::GainOf(others) }
}

/// The load that clients send.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    pub(super) script: &'static str,
    pub(super) connections: u32,
}

/// How the runs of these cases are made, for a report's note.
pub(super) fn how(cases: &[Case]) -> String {
    let least = cases.iter().map(|case| case.rounds).min().unwrap_or_default();
    let more = cases.iter().filter(|case| case.rounds > least);
    let more: String = more.map(|case| format!(" ({} with {})", case.rounds, case.title)).collect();
    format!("{RUN_S} s a run, {least} rounds in turn after one to warm up{more}")
}

/// A load and the servers that take turns under it; the first is the bare server.
pub(super) struct Case {
    pub(super) title: String,
    pub(super) load: Load,
    pub(super) settings: &'static [Setting],
    /// How often each has its turn.
    pub(super) rounds: usize,
    pub(super) bounds: Vec<Bound>,
}

/// A server that lives through all cases.
pub(super) trait Served {
    /// The program that loads it, and measures throughput and latency.
    const CLIENT: &'static str;

    fn setting(&self) -> Setting;

    /// Its process, or the agent's above it.
    fn pid(&self) -> u32;

    /// Loads it for this many seconds.
    fn load(&self, load: Load, seconds: u32) -> Result<LoadRun>;
}

/// A run and what the server spent on it.
#[derive(Debug, Clone, PartialEq)]
struct ServerRun {
    ran: LoadRun,
    cpu_us: f64,
    switches: f64,
}

/// Runs a case on those of the servers that take part in it.
pub(super) fn measured<S: Served>(case: &Case, servers: &[S], report: &mut Report) -> Result<()> {
    let seen = in_turn(case.rounds, case.settings, servers, |server| {
        run(server, case.load).with_context(|| case.title.clone())
    })?;
    rows(case, &seen, S::CLIENT, report)
}

/// Runs the servers of these settings in turn, round by round; returns the observations of each
/// except those of the first round, which warms up.
pub(super) fn in_turn<S: Served, T>(
    rounds: usize,
    settings: &[Setting],
    servers: &[S],
    run: impl Fn(&S) -> Result<T>,
) -> Result<Vec<Vec<T>>> {
    let run = &run;
    let contenders = settings.iter().map(|setting| {
        Box::new(move || run(serving(servers, setting)?).context(setting.name))
            as BoxedContender<'_, T>
    });
    interleave_all(rounds, &mut contenders.collect::<Vec<_>>())
}

fn serving<'s, S: Served>(servers: &'s [S], setting: &Setting) -> Result<&'s S> {
    let found = servers.iter().find(|one| one.setting().name == setting.name);
    found.with_context(|| format!("no server runs as `{}`", setting.name))
}

fn rows(case: &Case, seen: &[Vec<ServerRun>], client: &str, report: &mut Report) -> Result<()> {
    for (setting, seen) in case.settings.iter().zip(seen) {
        figures(report, &format!("{}: {}", case.title, setting.name), seen, client);
    }
    case.bounds.iter().try_for_each(|bound| bound.rows(case, seen, report))
}

fn run(server: &impl Served, load: Load) -> Result<ServerRun> {
    let pid = server.pid();
    let before_s = usage(pid)?.cpu_s;
    let (ran, per_s) = counting(|| switches_per_s(pid), || server.load(load, RUN_S))?;
    let cpu_s = usage(pid)?.cpu_s - before_s;
    let (cpu_us, switches) = (cpu_s * 1e6 / ran.queries, per_s / ran.queries_per_s);
    Ok(ServerRun { ran, cpu_us, switches })
}

/// A run, and the counts from the middle of it.
pub(super) fn counting<C: Send>(
    count: impl FnOnce() -> Result<C> + Send,
    run: impl FnOnce() -> Result<LoadRun>,
) -> Result<(LoadRun, C)> {
    let (ran, counted) = std::thread::scope(|scope| {
        let counting = scope.spawn(|| {
            std::thread::sleep(SETTLING);
            count()
        });
        (run(), counting.join())
    });
    let counted = counted.map_err(|_| anyhow!("counting beside a run panicked"))?;
    Ok((ran?, counted?))
}

fn switches_per_s(pid: u32) -> Result<f64> {
    let (before, begun) = (switches(pid)?, Instant::now());
    std::thread::sleep(COUNTING);
    let after = switches(pid)?;
    Ok(new_since(&before, &after) as f64 / begun.elapsed().as_secs_f64())
}

/// Switches of threads that are there still; a thread that is new has all of its own.
fn new_since(before: &BTreeMap<i32, u64>, after: &BTreeMap<i32, u64>) -> u64 {
    let new = |(tid, count): (&i32, &u64)| {
        count.saturating_sub(before.get(tid).copied().unwrap_or_default())
    };
    after.iter().map(new).sum()
}

fn figures(report: &mut Report, what: &str, seen: &[ServerRun], client: &str) {
    let of = |figure: &dyn Fn(&ServerRun) -> f64| Summary::new(seen.iter().map(figure));
    let rate = of(&|one| one.ran.queries_per_s);
    report.reported(&format!("{what}, queries/s ({client})"), rate, "1/s");
    for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)] {
        let quantile = of(&|one| one.ran.quantile_ms(share));
        report.reported(&format!("{what}, {name} ({client})"), quantile, "ms");
    }
    let spent = format!("{what}, CPU a query (/proc/PID/stat)");
    report.reported(&spent, of(&|one| one.cpu_us), "us");
    let switched = format!("{what}, context switches a query (/proc/PID/task)");
    report.reported(&switched, of(&|one| one.switches), "1");
}

impl Figure {
    fn select(self, seen: &ServerRun) -> f64 {
        match self {
            Self::Throughput => seen.ran.queries_per_s,
            Self::P95 => seen.ran.quantile_ms(0.95),
            Self::P99 => seen.ran.quantile_ms(0.99),
            Self::P999 => seen.ran.quantile_ms(0.999),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Throughput => "queries/s",
            Self::P95 => "p95",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
        }
    }
}

impl Bound {
    fn rows(&self, case: &Case, seen: &[Vec<ServerRun>], report: &mut Report) -> Result<()> {
        let values = |name: &str| -> Result<Vec<f64>> {
            let at = case.settings.iter().position(|setting| setting.name == name);
            let seen = &seen[at.with_context(|| format!("a bound on no setting: {name}"))?];
            Ok(seen.iter().map(|one| self.figure.select(one)).collect())
        };
        let (ours, theirs) = (values(self.setting)?, values(self.over)?);
        let figure = format!("{}: {}", case.title, self.figure.name());
        let what = format!("{figure}, {} / {}", self.setting, self.over);
        match &self.keeps {
            RatioBound::Range(range) => {
                report.bounded(&what, ratios(&ours, &theirs), "ratio", range.clone());
            }
            RatioBound::GainOf(others) => {
                let [other, over] = *others;
                let gains = [quotients(&ours, &theirs), quotients(&values(other)?, &values(over)?)];
                let what = format!("{what}, beside that of {other} / {over}");
                self.gain_rows(&what, &gains, report)?;
            }
        }
        Ok(())
    }

    /// Returns the rows of the difference between two gains, and whether its 95 % interval shows a
    /// loss.
    fn gain_rows(
        &self,
        what: &str,
        [ours, theirs]: &[Vec<f64>; 2],
        report: &mut Report,
    ) -> Result<()> {
        let between = PairedRatio::from_pairs(ours, theirs);
        let PairedRatio { low, high, .. } = between.context("a figure that is not above zero")?;
        report.reported(what, ratios(ours, theirs), "ratio");
        let ends = [(low, "lower end of the 95 % interval"), (high, "upper end")];
        let is_throughput = matches!(self.figure, Figure::Throughput);
        for (at, (end, name)) in ends.into_iter().enumerate() {
            let (what, end) = (format!("{what}, {name}"), Summary::new([end]));
            match (is_throughput, at) {
                (true, 1) => report.bounded(&what, end, "ratio", 1.0..=f64::INFINITY),
                (false, 0) => report.bounded(&what, end, "ratio", 0.0..=1.0),
                _ => report.reported(&what, end, "ratio"),
            }
        }
        Ok(())
    }
}

fn quotients(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter().zip(under).map(|(over, under)| over / under).collect()
}

#[cfg(test)]
pub(super) mod testing {
    use super::{BARE, Case, RatioBound};

    /// Every bound is on settings that take part, and the bare server is the first.
    pub(in super::super) fn check(cases: &[Case]) {
        for case in cases {
            let names: Vec<&str> = case.settings.iter().map(|setting| setting.name).collect();
            assert_eq!(names[0], BARE.name, "{}", case.title);
            for bound in &case.bounds {
                assert!(names.contains(&bound.setting), "{}", case.title);
                assert!(names.contains(&bound.over), "{}", case.title);
                if let RatioBound::GainOf(others) = &bound.keeps {
                    assert!(others.iter().all(|name| names.contains(name)), "{}", case.title);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_new_or_gone_takes_none_of_the_others_switches_away() {
        let before = BTreeMap::from([(1, 10), (2, 100)]);
        let after = BTreeMap::from([(1, 15), (3, 7)]);
        assert_eq!(new_since(&before, &after), 12);
    }

    fn seen(queries_per_s: f64, p99_ms: f64) -> ServerRun {
        let ran = LoadRun::new(queries_per_s, queries_per_s, vec![(p99_ms, 1)]);
        ServerRun { ran, cpu_us: 1.0, switches: 1.0 }
    }

    /// Bounds missed where the first of two pairs of settings gains this much of the second's.
    fn missed(share: f64) -> usize {
        const SETTINGS: [Setting; 4] = [
            BARE,
            CAP_16,
            Setting { name: "other", ..BARE },
            Setting { name: "other cap", ..BARE },
        ];
        let figures = [Figure::Throughput, Figure::P99];
        let like = |figure| gains_like(["other cap", "other"], [CAP_16.name, BARE.name], figure);
        let bounds = figures.map(like).into_iter().collect();
        let load = Load { script: "script", connections: 1 };
        let case = Case { title: "title".to_owned(), load, settings: &SETTINGS, rounds: 4, bounds };
        testing::check(std::slice::from_ref(&case));
        let noise = [0.98, 1.03, 1.0, 0.97];
        let of = |per_s: f64, ms: f64| noise.map(|noise| seen(per_s * noise, ms / noise)).to_vec();
        let others = of(300.0 * share, 20.0 / share);
        // The pairs of a round differ by noise, or there would be no interval.
        let all = [of(100.0, 60.0), of(200.0, 30.0), vec![seen(150.0, 40.0); 4], others];
        let mut report = Report::default();
        case.bounds.iter().try_for_each(|bound| bound.rows(&case, &all, &mut report)).unwrap();
        report.missed()
    }

    #[test]
    fn a_gain_is_that_of_another_pair_unless_its_interval_shows_a_loss() {
        assert_eq!(missed(1.0), 0);
        assert_eq!(missed(0.99), 0);
        assert_eq!(missed(1.5), 0);
        assert_eq!(missed(0.7), 2);
    }
}
