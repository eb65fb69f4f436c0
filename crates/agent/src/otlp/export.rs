//! The levels of an export: resources, metrics, data points.

use super::histogram::Histogram;
use super::wire::{
    ExplicitPoint, ExponentialPoint, KeyValue, Resource, Value, WireError, decode, fields, parts,
};

/// `DataPointFlags.NO_RECORDED_VALUE_MASK`: the series has ended.
const NO_RECORDED_VALUE: u32 = 1;

/// The start from which the counters of a metric count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Temporality {
    /// The point before.
    Delta,
    /// The start of the series.
    Cumulative,
}

/// One resource of an export.
pub(super) struct ResourceMetrics<'a> {
    pub(super) attributes: Vec<KeyValue>,
    bytes: &'a [u8],
}

/// Returns the resources of an export.
pub(super) fn resources(
    bytes: &[u8],
) -> impl Iterator<Item = Result<ResourceMetrics<'_>, WireError>> {
    parts(bytes, 1).map(|part| {
        let bytes = part?;
        let resource: Resource = match parts(bytes, 1).next() {
            Some(resource) => decode(resource?)?,
            None => Resource::default(),
        };
        Ok(ResourceMetrics { attributes: resource.attributes, bytes })
    })
}

impl<'a> ResourceMetrics<'a> {
    /// The value of an attribute that is a text.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        text_of(&self.attributes, key)
    }

    /// Calls `take` with each metric and its scope.
    pub(super) fn each_metric(
        &self,
        mut take: impl FnMut(&'a [u8], &Metric<'a>) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        for scope_metrics in parts(self.bytes, 2) {
            let scope_metrics = scope_metrics?;
            let scope = parts(scope_metrics, 1).next().transpose()?.unwrap_or_default();
            for metric in parts(scope_metrics, 2) {
                take(scope, &Metric::parse(metric?)?)?;
            }
        }
        Ok(())
    }
}

/// Returns the value of an attribute that is a text.
pub(super) fn text_of<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    attributes.iter().find(|attribute| attribute.key == key)?.text()
}

/// One metric, its points not read.
pub(super) struct Metric<'a> {
    pub(super) name: &'a str,
    pub(super) unit: &'a str,
    data: Data<'a>,
}

enum Data<'a> {
    Explicit(&'a [u8]),
    Exponential(&'a [u8]),
    /// Gauges, sums and summaries.
    Other,
}

impl<'a> Metric<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut metric = Self { name: "", unit: "", data: Data::Other };
        for field in fields(bytes) {
            let (tag, Value::Bytes(value)) = field? else { continue };
            match tag {
                1 => metric.name = std::str::from_utf8(value).unwrap_or_default(),
                3 => metric.unit = std::str::from_utf8(value).unwrap_or_default(),
                9 => metric.data = Data::Explicit(value),
                10 => metric.data = Data::Exponential(value),
                _ => {}
            }
        }
        Ok(metric)
    }

    /// Its kind of data; `None` if it is not a histogram.
    pub(super) fn histogram(&self) -> Option<HistogramData<'a>> {
        let (bytes, is_exponential) = match self.data {
            Data::Explicit(bytes) => (bytes, false),
            Data::Exponential(bytes) => (bytes, true),
            Data::Other => return None,
        };
        Some(HistogramData { bytes, is_exponential })
    }
}

/// The points of a histogram.
pub(super) struct HistogramData<'a> {
    bytes: &'a [u8],
    is_exponential: bool,
}

/// One data point.
pub(super) struct Point {
    /// The start in nanoseconds since 1970, by the sender's clock; 0 if unknown.
    pub(super) start: u64,
    pub(super) time: u64,
    pub(super) attributes: Vec<KeyValue>,
    /// The counts, or why they are refused; `None` if the series has ended.
    pub(super) histogram: Option<Result<Histogram, String>>,
}

impl<'a> HistogramData<'a> {
    /// Returns the start from which its counters count, or the reason why it is unknown.
    pub(super) fn temporality(&self) -> Result<Temporality, String> {
        let temporality = fields(self.bytes).flatten().find_map(|field| match field {
            (2, Value::Number(number)) => Some(number),
            _ => None,
        });
        match temporality {
            Some(1) => Ok(Temporality::Delta),
            Some(2) => Ok(Temporality::Cumulative),
            _ => Err("its temporality is neither delta nor cumulative".to_owned()),
        }
    }

    /// Decodes its points one by one.
    pub(super) fn points(&self) -> impl Iterator<Item = Result<Point, WireError>> + use<'a> {
        let is_exponential = self.is_exponential;
        parts(self.bytes, 1).map(move |part| match is_exponential {
            true => Ok(Point::exponential(decode(part?)?)),
            false => Ok(Point::explicit(decode(part?)?)),
        })
    }
}

impl Point {
    fn explicit(mut point: ExplicitPoint) -> Self {
        let attributes = std::mem::take(&mut point.attributes);
        let (start, time) = (point.start_time_unix_nano, point.time_unix_nano);
        let has_value = point.flags & NO_RECORDED_VALUE == 0;
        let histogram = has_value.then(|| Histogram::explicit(point));
        Self { start, time, attributes, histogram }
    }

    fn exponential(mut point: ExponentialPoint) -> Self {
        let attributes = std::mem::take(&mut point.attributes);
        let (start, time) = (point.start_time_unix_nano, point.time_unix_nano);
        let has_value = point.flags & NO_RECORDED_VALUE == 0;
        let histogram = has_value.then(|| Histogram::exponential(point));
        Self { start, time, attributes, histogram }
    }
}
