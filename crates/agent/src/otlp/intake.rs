//! Sums of exports, by app and sender.

mod flow;
mod lateness;

use super::export::{Metric, Point, ResourceMetrics, Temporality, resources, text_of};
use super::histogram::Unit;
use super::senders::{Claim, Senders};
use super::series::{Key, NewPoint, SeriesTable};
use super::wire::{KeyValue, WireError};
use super::{OtlpSource, ROUTE};
use crate::discovery::PodIdentity;
use flow::Flow;
use lateness::Lateness;
use lull_measure::{Buckets, Nanos};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Most senders whose exports are counted.
const SENDERS_MAX: usize = 4_096;
/// A sender without an export for this long is forgotten.
const FORGET_AFTER: Nanos = Nanos::from_secs(300);
/// Between two searches for senders to forget.
const SWEEP_PAUSE: Nanos = Nanos::from_secs(10);
/// The attribute of requests that failed.
const ERROR: &str = "error.type";
/// Most texts that are noted in a [`NOTED_FOR`], each once. Senders that come and go would use up
/// any number for good, and hide all that is wrong later.
const NOTED_MAX: usize = 64;
const NOTED_FOR: Nanos = Nanos::from_secs(3_600);

/// When an export has arrived.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    /// `CLOCK_MONOTONIC`.
    pub(super) monotonic: Nanos,
    /// The time since 1970.
    pub(super) unix: Nanos,
    /// The address that sent it.
    pub(super) client: IpAddr,
}

/// The result of an export.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Data points of the config's histograms that cannot be counted.
    pub(super) rejected: u64,
    /// Why the first of them cannot.
    pub(super) why: Option<String>,
}

impl Outcome {
    fn reject(&mut self, metric: &str, why: &str) {
        self.rejected += 1;
        self.why.get_or_insert_with(|| format!("histogram `{metric}`: {why}"));
    }
}

/// The requests of one app that one sender has exported since the last window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    /// The app's number.
    pub(crate) app: u16,
    /// Numbers the senders.
    pub(crate) sender: u32,
    /// When its last export arrived, `CLOCK_MONOTONIC`.
    pub(crate) end: Nanos,
    /// The time in which the requests were answered.
    pub(crate) length: Nanos,
    /// Requests that failed: those with the attribute `error.type`.
    pub(crate) errors: u64,
    /// All requests.
    pub(crate) buckets: Buckets,
}

/// Counts the exports of all senders.
#[derive(Debug)]
pub(crate) struct Intake {
    sources: Vec<OtlpSource>,
    series: SeriesTable,
    senders: BTreeMap<Key, Sender>,
    next_sender: u32,
    swept_at: Nanos,
    /// Notes since the last report.
    noted: BTreeSet<String>,
    noted_since: Nanos,
    notices: Vec<String>,
}

/// One resource that exports.
#[derive(Debug, Default)]
struct Sender {
    number: u32,
    last_export: Nanos,
    lateness: Lateness,
    /// Indexed by source.
    flows: BTreeMap<usize, Flow>,
}

/// An export of one sender while it is read.
struct Export<'a> {
    sender: &'a mut Sender,
    key: Key,
    arrival: Arrival,
    /// Whether it was delayed on its way; `None` until its first point is read.
    is_late: Option<bool>,
    outcome: &'a mut Outcome,
}

impl Export<'_> {
    /// Refuses a metric or a point of these sources.
    fn refuse(&mut self, sources: &[usize], metric: &str, why: &str) {
        self.outcome.reject(metric, why);
        for source in sources {
            self.sender.flows.entry(*source).or_default().refuse();
        }
    }
}

/// One histogram of an export while its points are read.
struct Reading<'a> {
    scope: &'a [u8],
    name: &'a str,
    unit: Unit,
    temporality: Temporality,
    /// The sources with this metric.
    sources: Vec<usize>,
}

impl Intake {
    /// Counts for these apps from now on.
    pub(crate) fn new(sources: Vec<OtlpSource>) -> Self {
        Self {
            sources,
            series: SeriesTable::default(),
            senders: BTreeMap::new(),
            next_sender: 0,
            swept_at: Nanos::ZERO,
            noted: BTreeSet::new(),
            noted_since: Nanos::ZERO,
            notices: Vec::new(),
        }
    }

    /// Notes the pod that an app is from now on; exports for the former one do not count.
    pub(crate) fn assign(&mut self, app: u16, assigned: Option<&PodIdentity>) {
        for (at, source) in self.sources.iter_mut().enumerate() {
            let Senders::Pod { pod, .. } = &mut source.from else { continue };
            if source.app == app {
                *pod = assigned.cloned();
                self.senders.values_mut().for_each(|sender| drop(sender.flows.remove(&at)));
            }
        }
    }

    /// Takes in an export (`ExportMetricsServiceRequest`).
    ///
    /// # Errors
    /// If the bytes are not an export. Data points before the error are counted.
    pub(super) fn take(&mut self, bytes: &[u8], arrival: Arrival) -> Result<Outcome, WireError> {
        let mut outcome = Outcome::default();
        if arrival.monotonic >= self.noted_since.saturating_add(NOTED_FOR) {
            (self.noted, self.noted_since) = (BTreeSet::new(), arrival.monotonic);
        }
        let read = resources(bytes)
            .try_for_each(|resource| self.take_resource(&resource?, arrival, &mut outcome));
        if let Some(why) = &outcome.why {
            self.note(format!("an export by OTLP: {why}"));
        }
        read.map(|()| outcome)
    }

    /// Returns the counts since the last call.
    pub(crate) fn drain(&mut self) -> Vec<Window> {
        let mut windows = Vec::new();
        for sender in self.senders.values_mut() {
            for (source, flow) in &mut sender.flows {
                let Some(source) = self.sources.get(*source) else { continue };
                windows.extend(flow.drain(source.app, sender.number));
            }
        }
        windows
    }

    /// Returns the notices since the last call.
    pub(crate) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Number of series that are counted.
    #[cfg(test)]
    fn series(&self) -> usize {
        self.series.len()
    }

    fn take_resource(
        &mut self,
        resource: &ResourceMetrics<'_>,
        arrival: Arrival,
        outcome: &mut Outcome,
    ) -> Result<(), WireError> {
        let sources = match self.sources_of(resource) {
            Ok(sources) => sources,
            Err(why) => {
                let service = resource.text("service.name").unwrap_or_default();
                let service: String = service.chars().take(100).collect();
                self.note(format!("service `{service}` exports by OTLP, and {why}"));
                return Ok(());
            }
        };
        let key = digest(&[], &resource.attributes, 0);
        let Some(mut sender) = self.take_sender(key, arrival.monotonic) else {
            outcome.reject("of all names", "4096 senders export already, the most");
            return Ok(());
        };
        let mut export = Export { sender: &mut sender, key, arrival, is_late: None, outcome };
        let read = resource.each_metric(|scope, metric| {
            let wanted = sources.iter().copied();
            let sources: Vec<usize> =
                wanted.filter(|source| self.sources[*source].metric == metric.name).collect();
            match sources.is_empty() {
                true => Ok(()),
                false => self.take_metric(&mut export, scope, metric, sources),
            }
        });
        for source in sources {
            let is_counted = sender.flows.entry(source).or_default().end_export(arrival.monotonic);
            if !is_counted {
                let OtlpSource { from, metric, .. } = &self.sources[source];
                let text = format!(
                    "{from} exports by OTLP, but has not sent the histogram `{metric}` \
                             twice yet"
                );
                self.note(text);
            }
        }
        sender.last_export = arrival.monotonic;
        self.senders.insert(key, sender);
        read
    }

    /// Returns the numbers of the sources that a resource's exports are read for.
    ///
    /// # Errors
    /// If there is none, or it is not known which one.
    fn sources_of(&self, resource: &ResourceMetrics<'_>) -> Result<Vec<usize>, &'static str> {
        let claims = (0..).zip(&self.sources);
        let claims = claims.filter_map(|(at, it)| Some((at, it.from.claim(resource)?)));
        let (certain, by_service): (Vec<_>, Vec<_>) =
            claims.partition(|(_, claim)| *claim == Claim::Certain);
        let all = match (certain.len(), by_service.len()) {
            (0, 0) => return Err("no app of the config has that service, or is that pod"),
            (0, 1) => by_service,
            (0, _) => {
                return Err("several pods of this node have that service: let it name its pod, \
                            OTEL_RESOURCE_ATTRIBUTES=k8s.pod.uid=$(POD_UID)");
            }
            _ => certain,
        };
        Ok(all.into_iter().map(|(at, _)| at).collect())
    }

    /// Takes a sender out of the table, or makes a new one; `None` if there is no room.
    fn take_sender(&mut self, key: Key, now: Nanos) -> Option<Sender> {
        if let Some(sender) = self.senders.remove(&key) {
            return Some(sender);
        }
        let is_due = now >= self.swept_at.saturating_add(SWEEP_PAUSE);
        if self.senders.len() >= SENDERS_MAX && is_due {
            self.swept_at = now;
            self.senders.retain(|_, it| now.saturating_sub(it.last_export) < FORGET_AFTER);
        }
        self.next_sender = self.next_sender.wrapping_add(1);
        let sender = Sender { number: self.next_sender, ..Sender::default() };
        (self.senders.len() < SENDERS_MAX).then_some(sender)
    }

    fn take_metric(
        &mut self,
        export: &mut Export<'_>,
        scope: &[u8],
        metric: &Metric<'_>,
        sources: Vec<usize>,
    ) -> Result<(), WireError> {
        let name = metric.name;
        let Some(data) = metric.histogram() else {
            export.refuse(&sources, name, "it is not a histogram");
            return Ok(());
        };
        let both = data.temporality().and_then(|kind| Ok((kind, Unit::parse(metric.unit)?)));
        let (temporality, unit) = match both {
            Ok(both) => both,
            Err(why) => {
                export.refuse(&sources, name, &why);
                return Ok(());
            }
        };
        let reading = Reading { scope, name, unit, temporality, sources };
        for point in data.points() {
            let point = point?;
            let sources = self.sources_of_route(&reading, &point);
            if sources.is_empty() {
                continue;
            }
            if let Err(why) = self.take_point(export, &reading, &sources, point) {
                export.refuse(&sources, name, &why);
            }
        }
        Ok(())
    }

    /// Returns the numbers of the sources whose route a point has.
    fn sources_of_route(&self, reading: &Reading<'_>, point: &Point) -> Vec<usize> {
        let route = text_of(&point.attributes, ROUTE);
        let is_of_route = |source: &OtlpSource| {
            source.route.as_ref().is_none_or(|wanted| Some(wanted.as_str()) == route)
        };
        let sources = reading.sources.iter().copied();
        sources.filter(|source| is_of_route(&self.sources[*source])).collect()
    }

    /// Counts a point for the apps of these sources.
    fn take_point(
        &mut self,
        export: &mut Export<'_>,
        reading: &Reading<'_>,
        sources: &[usize],
        point: Point,
    ) -> Result<(), String> {
        let Point { start, time, attributes, histogram } = point;
        let Some(histogram) = histogram else { return Ok(()) };
        let histogram = histogram?;
        let is_late = self.is_late(export, time);
        // Two cumulative series that differ in their start are two processes.
        let is_cumulative = reading.temporality == Temporality::Cumulative;
        let identity = if is_cumulative { start } else { 0 };
        let parts = [&export.key[..], reading.scope, reading.name.as_bytes()];
        let key = digest(&parts, &attributes, identity);
        let added = self.series.take(
            key,
            NewPoint {
                histogram,
                temporality: reading.temporality,
                start,
                time,
                client: export.arrival.client,
                arrived_at: export.arrival.monotonic,
            },
        )?;
        let is_error = attributes.iter().any(|attribute| attribute.key == ERROR);
        for source in sources {
            let flow = export.sender.flows.entry(*source).or_default();
            match is_late {
                true => flow.skip(time),
                false => flow.add(added.as_ref(), time, reading.unit, is_error),
            }
        }
        Ok(())
    }

    /// Whether an export is too old to describe the present.
    fn is_late(&mut self, export: &mut Export<'_>, time: u64) -> bool {
        if let Some(is_late) = export.is_late {
            return is_late;
        }
        let (is_late, notice) = export.sender.lateness.judge(time, export.arrival.unix);
        export.is_late = Some(is_late);
        if let Some(notice) = notice {
            self.note(format!("an export by OTLP: {notice}"));
        }
        is_late
    }

    /// Reports a text, once in a [`NOTED_FOR`].
    fn note(&mut self, text: String) {
        if self.noted.len() < NOTED_MAX && self.noted.insert(text.clone()) {
            self.notices.push(text);
        }
    }
}

/// Returns the identity of something with these parts, attributes in any order, and start.
fn digest(parts: &[&[u8]], attributes: &[KeyValue], start: u64) -> Key {
    let mut sorted: Vec<&KeyValue> = attributes.iter().collect();
    sorted.sort_unstable_by(|one, other| (&one.key, &one.value).cmp(&(&other.key, &other.value)));
    let mut hash = Sha256::new();
    let texts = sorted.iter().flat_map(|it| [it.key.as_bytes(), it.value.as_slice()]);
    for part in parts.iter().copied().chain(texts) {
        // The length is hashed too, so that no two sequences of parts are the same text.
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.update(start.to_le_bytes());
    let mut key = Key::default();
    for (ours, theirs) in key.iter_mut().zip(hash.finalize()) {
        *ours = theirs;
    }
    key
}

#[cfg(test)]
mod tests;
