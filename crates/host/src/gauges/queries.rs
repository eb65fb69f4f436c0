//! Latency of an app's queries as the kernel sees them at its sockets, for apps
//! into which no library can be preloaded ([`crate::bpf::QueryWatch`]).
//!
//! The app's sockets are found by the ports on which it listens, which are read from
//! `/proc/PID/net/tcp` and the app's open files. The ports are searched for in every
//! epoch until there are some, and then at longer intervals.

use super::{check_lost, first_reading};
use crate::Roots;
use crate::bpf::{QueriesSeen, QueryWatch};
use crate::files::read_text;
use crate::listener::Listener;
use lull_control::{CoreSet, LatencyObservation};
use lull_measure::{Gauge, Latency, Missing, Nanos};
use std::collections::BTreeSet;

/// Time between two looks for ports where some are known.
const LOOKING: Nanos = Nanos::from_secs(10);

/// One app's queries, from one reading to the next.
#[derive(Debug)]
pub struct Queries {
    roots: Roots,
    watch: Gauge<QueryWatch>,
    looked: Option<Nanos>,
    last: Option<(Nanos, QueriesSeen)>,
}

impl Queries {
    /// Begins to watch, or says why that cannot be done.
    pub fn new(roots: &Roots) -> Self {
        let watch = begin(roots);
        Self { roots: roots.clone(), watch, looked: None, last: None }
    }

    /// Why nothing will be seen, if that is so.
    pub fn refusal(&self) -> Option<&Missing> {
        self.watch.as_ref().err()
    }

    /// By which means queries are seen, or why they cannot be: found out by doing it
    /// for a moment.
    ///
    /// # Errors
    /// If the kernel refuses, or the roots are not those of the kernel that runs.
    pub fn probe(roots: &Roots) -> Result<String, Missing> {
        begin(roots).map(|_| "eBPF at sock_recv_length, sock_send_length".to_owned())
    }

    /// Returns latencies since the last reading, `now` by `CLOCK_MONOTONIC`. `processes`
    /// returns the app's processes; it is called only when the ports are searched for.
    pub fn latency(
        &mut self,
        processes: impl FnOnce() -> BTreeSet<i32>,
        now: Nanos,
    ) -> Gauge<LatencyObservation> {
        let watch = self.watch.as_mut().map_err(|why| why.clone())?;
        let is_due = self.looked.is_none_or(|looked| now >= looked.saturating_add(LOOKING));
        if is_due || watch.ports().is_empty() {
            self.looked = Some(now);
            if let Some(found) = Listener::find(&self.roots, processes().into_iter()) {
                watch.set_listener(found.namespace, &found.ports)?;
            }
        }
        let seen = watch.read();
        let latency = match &self.last {
            _ if watch.ports().is_empty() => Err(Missing::because(
                "none of its processes listens at a TCP port: queries are seen at those alone",
            )),
            None => Err(first_reading()),
            Some((before, old)) => since((*before, old), (now, &seen)),
        };
        self.last = Some((now, seen));
        latency
    }
}

fn begin(roots: &Roots) -> Gauge<QueryWatch> {
    if *roots != Roots::default() {
        return Err(Missing::because(
            "sockets can be observed on the running kernel only, not under other roots",
        ));
    }
    Ok(QueryWatch::begin(cores(roots)?)?)
}

/// How many numbers of cores there can be.
pub(super) fn cores(roots: &Roots) -> Gauge<usize> {
    let path = roots.sys.join("devices/system/cpu/possible");
    let text = read_text(&path).map_err(|error| super::unreadable(&path, &error))?;
    let cores: Option<CoreSet> = text.parse().ok();
    let last = cores.and_then(|cores| cores.iter().last());
    let last = last.ok_or_else(|| Missing::because(format!("{}: `{text}`", path.display())))?;
    Ok(usize::from(last.0) + 1)
}

/// Returns the queries between two readings.
fn since(
    (before, old): (Nanos, &QueriesSeen),
    (now, new): (Nanos, &QueriesSeen),
) -> Gauge<LatencyObservation> {
    let answered = new.latencies.since(&old.latencies);
    let lost = new.lost.saturating_sub(old.lost);
    check_lost(answered.count(), lost, "queries", "too many connections send queries at once")?;
    let mut window = Latency::default();
    answered.means().for_each(|(latency, queries)| window.record_many(latency, queries));
    let (outstanding, begun) = new.pending;
    let pending = (outstanding, begun.map(|begun| now.saturating_sub(begun)));
    Ok(LatencyObservation::on_server(window, now.saturating_sub(before), pending, old.pending.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn seen(latencies_us: &[u64], lost: u64, pending: (u64, Option<Nanos>)) -> QueriesSeen {
        let mut all = QueriesSeen { lost, pending, ..QueriesSeen::default() };
        latencies_us.iter().for_each(|us| all.latencies.add(Nanos::from_micros(*us)));
        all
    }

    #[test]
    fn rates_and_latencies_are_those_of_the_epoch() {
        let second = Nanos::from_secs(1);
        let old = seen(&[5_000], 0, (1, Some(Nanos(1))));
        let new = seen(&[5_000, 100, 100, 900], 0, (2, Some(second)));
        let seen = since((second, &old), (second * 3, &new)).unwrap();
        assert_eq!((seen.window.count(), seen.completed_per_s), (3, 1.5));
        assert_eq!((seen.offered_per_s, seen.outstanding), (2.0, 2));
        assert_eq!(seen.oldest, Some(second * 2));
        let longest = seen.window.quantile(lull_measure::Percentile::P99).unwrap();
        assert!(longest.0.abs_diff(900_000) < 10_000, "{longest:?}");
    }

    #[test]
    fn queries_are_missing_where_too_many_were_lost() {
        let second = Nanos::from_secs(1);
        let (old, many) = (seen(&[], 0, (0, None)), vec![100; 1000]);
        assert!(since((Nanos::ZERO, &old), (second, &seen(&many, 10, (0, None)))).is_ok());
        let lossy = since((Nanos::ZERO, &old), (second, &seen(&many, 11, (0, None))));
        let why = lossy.unwrap_err().to_string();
        assert!(why.contains("11 of 1011 queries"), "{why}");
    }

    #[test]
    fn a_tree_of_files_has_no_sockets() {
        let tree = Tree::new();
        let mut queries = Queries::new(&tree.roots());
        let why = queries.latency(|| [1].into(), Nanos(1)).unwrap_err().to_string();
        assert!(why.contains("running kernel"), "{why}");
    }
}
