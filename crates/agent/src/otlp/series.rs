//! The series of histograms, and what each data point adds to its series.
//!
//! A cumulative point counts from the start of its series: what it adds is the difference to the
//! point before. A counter that goes back, or another start, is a restart, after which the whole
//! point is new. The first point of a series that began long ago is only where counting starts,
//! because its requests are of the past.
//!
//! A series without a start may be of one service that exports by several collectors, or of several
//! services with the same attributes. Counters of one service do not fall where the address of the
//! sender changes back to a former one, and a point that arrives late is not below the points of
//! earlier times; a series whose counters do or are is refused, because it is not known what is new
//! in its points. For the same reason the first point from another address adds nothing, and points
//! from more addresses than are remembered are refused.

use super::export::Temporality;
use super::histogram::Histogram;
use lull_measure::Nanos;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Most series of all senders.
pub(super) const SERIES_MAX: usize = 100_000;
/// Most counters and bounds of all series, 8 bytes each.
const COUNTERS_MAX: usize = 4_000_000;
/// A series or address without a point for this long is forgotten if there is no room.
const FORGET_AFTER: Nanos = Nanos::from_secs(300);
/// Between two searches for series to forget.
const SWEEP_PAUSE: Nanos = Nanos::from_secs(10);
/// The requests of a series that began at most this long before its first point are of now.
const FIRST_MAX: Nanos = Nanos::from_secs(120);
/// How often a counter may fall, with fewer than [`STEADY_AFTER`] points between.
const FALLS_MAX: u8 = 3;
const STEADY_AFTER: u8 = 10;
/// How long a series is refused after its points have contradicted each other.
const REFUSED_FOR: Nanos = Nanos::from_secs(300);
/// Most addresses that a series is received from in a [`FORGET_AFTER`].
const CLIENTS_MAX: usize = 8;

/// Why a series is refused after its points have contradicted each other.
const CONTRADICTION: &str = "its counters fall again and again: several senders have the same \
                             attributes (set service.instance.id), or it is marked as cumulative \
                             and is delta; it is refused for five minutes after each fall";

/// Identifies a series: a digest of sender, scope, metric, attributes and start.
pub(super) type Key = [u8; 16];

/// A data point of a series, with its context.
pub(super) struct NewPoint {
    pub(super) histogram: Histogram,
    pub(super) temporality: Temporality,
    /// Nanoseconds since 1970 by the sender's clock; 0 if it is not known.
    pub(super) start: u64,
    pub(super) time: u64,
    /// The address that sent it.
    pub(super) client: IpAddr,
    /// When it arrived, `CLOCK_MONOTONIC`.
    pub(super) arrived_at: Nanos,
}

/// The difference that a point adds to its series.
#[derive(Debug, PartialEq)]
pub(super) struct Added {
    pub(super) histogram: Histogram,
    /// The time in which it was added, by the sender's clock; 0 if it is not known.
    pub(super) span: Nanos,
}

#[derive(Debug)]
struct Series {
    start: u64,
    time: u64,
    /// The histogram so far, of cumulative series.
    histogram: Option<Histogram>,
    /// Zero if the counters have fallen since, or there was no other point.
    former: FormerPoint,
    arrived_at: Nanos,
    falls: u8,
    steady: u8,
    /// When it is no longer refused, if it was.
    refused_until: Nanos,
    /// The senders of a series without a start, in the order of their last points.
    clients: Vec<Client>,
    /// The last point, if it was below those before and the first one from its address.
    moved: Option<MovedPoint>,
}

/// The first point of a service that may have been moved to a machine whose clock is behind.
#[derive(Debug)]
struct MovedPoint {
    time: u64,
    histogram: Histogram,
}

/// Time and count of the point before the last one.
#[derive(Debug, Clone, Copy, Default)]
struct FormerPoint {
    time: u64,
    count: u64,
}

/// An address that has sent a series.
#[derive(Debug)]
struct Client {
    address: IpAddr,
    /// When its last point arrived.
    sent_at: Nanos,
}

/// The address of a point, by those of the points before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Same,
    Former,
    New,
}

/// All series.
#[derive(Debug, Default)]
pub(super) struct SeriesTable {
    series: BTreeMap<Key, Series>,
    counters: usize,
    swept_at: Nanos,
}

impl SeriesTable {
    /// Number of series.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.series.len()
    }

    /// Returns what a point adds; `None` if it is the first of an older series, or was received
    /// before.
    ///
    /// # Errors
    /// If there is no room, or the series contradicts its temporality.
    pub(super) fn take(&mut self, key: Key, point: NewPoint) -> Result<Option<Added>, String> {
        let Some(series) = self.series.get_mut(&key) else { return self.begin(key, point) };
        if point.arrived_at > series.arrived_at {
            series.arrived_at = point.arrived_at;
        }
        match point.temporality {
            Temporality::Delta => series.add_delta(point).map(Some).or_else(|why| match why {
                Some(why) => Err(why),
                None => Ok(None),
            }),
            Temporality::Cumulative => {
                let before = series.counters();
                let added = series.add_cumulative(point);
                self.counters = self.counters + series.counters() - before;
                added
            }
        }
    }

    fn begin(&mut self, key: Key, point: NewPoint) -> Result<Option<Added>, String> {
        let counters = match point.temporality {
            Temporality::Cumulative => point.histogram.len(),
            Temporality::Delta => 0,
        };
        self.make_room(point.arrived_at, counters)?;
        self.counters += counters;
        let NewPoint { histogram, temporality, start, time, client, arrived_at } = point;
        let age = (start > 0).then(|| Nanos(time.saturating_sub(start)));
        let is_cumulative = temporality == Temporality::Cumulative;
        // A series that the sender's exports did not have before is not new for that reason: a
        // collector splits exports, and a restarted front end has forgotten all.
        let is_of_now = !is_cumulative || age.is_some_and(|age| age <= FIRST_MAX);
        let added = is_of_now
            .then(|| Added { histogram: histogram.clone(), span: age.unwrap_or_default() });
        let histogram = is_cumulative.then_some(histogram);
        let client = Client { address: client, sent_at: arrived_at };
        let series = Series {
            start,
            time,
            histogram,
            former: FormerPoint::default(),
            arrived_at,
            falls: 0,
            steady: 0,
            refused_until: Nanos::ZERO,
            clients: if start == 0 { vec![client] } else { Vec::new() },
            moved: None,
        };
        self.series.insert(key, series);
        Ok(added)
    }

    fn make_room(&mut self, now: Nanos, counters: usize) -> Result<(), String> {
        let is_full = |table: &Self| {
            table.series.len() >= SERIES_MAX || table.counters + counters > COUNTERS_MAX
        };
        if is_full(self) && now >= self.swept_at.saturating_add(SWEEP_PAUSE) {
            self.swept_at = now;
            self.series.retain(|_, it| now.saturating_sub(it.arrived_at) < FORGET_AFTER);
            self.counters = self.series.values().map(Series::counters).sum();
        }
        if is_full(self) {
            return Err(format!(
                "{} series with {} counts and bounds are counted already, and {SERIES_MAX} with \
                 {COUNTERS_MAX} are the most: drop attributes by a view",
                self.series.len(),
                self.counters
            ));
        }
        Ok(())
    }
}

impl Series {
    fn counters(&self) -> usize {
        let moved = self.moved.as_ref().map(|moved| &moved.histogram);
        self.histogram.iter().chain(moved).map(Histogram::len).sum()
    }

    /// Takes a delta point; `Err(None)` if it was received before.
    fn add_delta(&mut self, point: NewPoint) -> Result<Added, Option<String>> {
        let NewPoint { histogram, start, time, .. } = point;
        if (start, time) == (self.start, self.time) && time > 0 {
            return Err(None);
        }
        let is_same_start = start > 0 && start == self.start && time > self.time;
        (self.start, self.time) = (start, time);
        if is_same_start {
            let why = "it is marked as delta, and its start does not move: it is cumulative";
            return Err(Some(why.to_owned()));
        }
        let span = if start == 0 { 0 } else { time.saturating_sub(start) };
        Ok(Added { histogram, span: Nanos(span) })
    }

    /// Takes a cumulative point. Points are in the order of their counts, since a sender's clock
    /// may be set back and an export may be repeated.
    fn add_cumulative(&mut self, point: NewPoint) -> Result<Option<Added>, String> {
        if let Some(outcome) = self.follow_move(&point) {
            return outcome;
        }
        let NewPoint { histogram, start, time, client, arrived_at, .. } = point;
        let before = self.histogram.get_or_insert_with(|| histogram.clone());
        let added = histogram.since(before);
        let is_late = time <= self.time && added.as_ref().is_none_or(|it| it.count() == 0);
        // A late point may be below the last one, but not below a point of an earlier time.
        let is_below_former = time >= self.former.time && histogram.count() < self.former.count;
        let is_of_another = || is_below_former || before.since(&histogram).is_none();
        let is_lower = is_late && start == 0 && added.is_none() && is_of_another();
        if is_late && !is_lower {
            return Ok(None);
        }
        let before_count = before.count();
        let origin = self.note_client(client, arrived_at)?;
        if is_lower && origin == Origin::New {
            self.moved = Some(MovedPoint { time, histogram });
            return Ok(None);
        }
        if is_lower {
            self.refused_until = arrived_at.saturating_add(REFUSED_FOR);
            return Err(CONTRADICTION.to_owned());
        }
        let span = Nanos(time.saturating_sub(self.time));
        self.former = match &added {
            Some(_) => FormerPoint { time: self.time, count: before_count },
            None => FormerPoint::default(),
        };
        (self.start, self.time) = (start, time);
        match &added {
            Some(_) => self.note_rise(),
            None => self.note_fall(origin, arrived_at),
        }
        let added = Added { histogram: added.unwrap_or_else(|| histogram.clone()), span };
        self.histogram = Some(histogram);
        if arrived_at < self.refused_until {
            return Err(CONTRADICTION.to_owned());
        }
        Ok((origin != Origin::New).then_some(added))
    }

    /// Takes a point that continues [`Series::moved`]: the service was moved. `None` if it does not
    /// continue that: points from several addresses in turn are of several services.
    fn follow_move(&mut self, point: &NewPoint) -> Option<Result<Option<Added>, String>> {
        let moved = self.moved.take()?;
        if self.clients.last().is_none_or(|last| last.address != point.client) {
            return None;
        }
        if point.time == moved.time {
            self.moved = Some(moved);
            return Some(Ok(None));
        }
        let added = point.histogram.since(&moved.histogram);
        let histogram = added.filter(|_| point.time > moved.time)?;
        self.former = FormerPoint { time: moved.time, count: moved.histogram.count() };
        (self.time, self.histogram) = (point.time, Some(point.histogram.clone()));
        self.note_fall(Origin::New, point.arrived_at);
        if let Some(last) = self.clients.last_mut() {
            last.sent_at = point.arrived_at;
        }
        if point.arrived_at < self.refused_until {
            return Some(Err(CONTRADICTION.to_owned()));
        }
        let span = Nanos(point.time - moved.time);
        Some(Ok(Some(Added { histogram, span })))
    }

    /// Notes the address of a point, if the series has no start.
    ///
    /// # Errors
    /// If too many addresses send the series.
    fn note_client(&mut self, address: IpAddr, now: Nanos) -> Result<Origin, String> {
        if self.start > 0 {
            return Ok(Origin::Same);
        }
        let known = self.clients.iter().position(|client| client.address == address);
        let is_last = known.is_some_and(|at| at + 1 == self.clients.len());
        if let Some(at) = known {
            self.clients.remove(at);
        } else if self.clients.len() >= CLIENTS_MAX {
            // The first one has been silent for longest.
            let is_silent = |it: &Client| now.saturating_sub(it.sent_at) >= FORGET_AFTER;
            if !self.clients.first().is_some_and(is_silent) {
                return Err(format!(
                    "it has no start, and more than {CLIENTS_MAX} addresses have sent it within \
                     five minutes, so that it is not known what is new in its points: let SDK or \
                     collector send a start, or export by fewer collectors"
                ));
            }
            self.clients.remove(0);
        }
        self.clients.push(Client { address, sent_at: now });
        Ok(match known {
            Some(_) if is_last => Origin::Same,
            Some(_) => Origin::Former,
            None => Origin::New,
        })
    }

    fn note_rise(&mut self) {
        self.steady = self.steady.saturating_add(1);
        if self.steady >= STEADY_AFTER {
            self.falls = 0;
        }
    }

    /// Notes that a counter has fallen: the series was reset, perhaps where its service was moved,
    /// unless that happens all the time or the series has a former address again.
    fn note_fall(&mut self, origin: Origin, arrived_at: Nanos) {
        self.steady = 0;
        self.falls = self.falls.saturating_add(1);
        if origin == Origin::New {
            // A service that was moved does not return.
            self.clients.drain(..self.clients.len() - 1);
        }
        let is_contradiction = origin == Origin::Former || self.falls > FALLS_MAX;
        if is_contradiction || arrived_at < self.refused_until {
            self.refused_until = arrived_at.saturating_add(REFUSED_FOR);
        }
    }
}

#[cfg(test)]
mod tests;
