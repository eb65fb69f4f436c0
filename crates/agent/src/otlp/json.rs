//! Exports as JSON, rewritten as the protobuf messages that they stand for.
//!
//! Lists are rewritten element by element while they are read: a data point of two characters would
//! otherwise be hundreds of bytes. A count of one digit takes eight bytes as protobuf, so that an
//! export could grow to four times its length. One that has more than [`PLAIN_MAX`] bytes as
//! protobuf is refused as soon as the lists that are being read exceed that together.
//!
//! Source: <https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>.

use super::wire::{ExplicitPoint, ExponentialBuckets, ExponentialPoint};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// Most numbers of one list of a data point; more buckets are refused in any case.
const NUMBERS_MAX: usize = 8_192;

/// Most bytes of an export that was compressed, and as protobuf of one that is JSON.
pub(super) const PLAIN_MAX: usize = 16 << 20;

thread_local! {
    /// How many bytes of protobuf the lists of the export that is being read may still take.
    static ROOM: Cell<usize> = const { Cell::new(PLAIN_MAX) };
}

/// Rewrites an export (`ExportMetricsServiceRequest`).
///
/// # Errors
/// If the bytes are not JSON of that form, or have more than [`PLAIN_MAX`] bytes as protobuf.
pub(super) fn to_protobuf(bytes: &[u8]) -> serde_json::Result<Vec<u8>> {
    rewrite(bytes, PLAIN_MAX)
}

/// Rewrites an export that has at most `bytes_max` bytes as protobuf.
fn rewrite(bytes: &[u8], bytes_max: usize) -> serde_json::Result<Vec<u8>> {
    ROOM.set(bytes_max);
    let request: Request = serde_json::from_slice(bytes)?;
    Ok(request.resource_metrics.bytes)
}

/// A message that can be written as protobuf.
trait Encode {
    fn encode(&self, to: &mut Vec<u8>);
}

/// Writes a field with bytes, a text or a message.
fn put(field: u32, bytes: &[u8], to: &mut Vec<u8>) {
    encode_key(field, WireType::LengthDelimited, to);
    encode_varint(bytes.len() as u64, to);
    to.extend_from_slice(bytes);
}

fn put_message(field: u32, message: &impl Encode, to: &mut Vec<u8>) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    put(field, &bytes, to);
}

fn put_number(field: u32, number: u64, to: &mut Vec<u8>) {
    encode_key(field, WireType::Varint, to);
    encode_varint(number, to);
}

/// A list of messages, written as fields of this number.
struct Repeated<T, const FIELD: u32> {
    bytes: Vec<u8>,
    of: PhantomData<T>,
}

impl<T, const FIELD: u32> Default for Repeated<T, FIELD> {
    fn default() -> Self {
        Self { bytes: Vec::new(), of: PhantomData }
    }
}

impl<'de, T: Deserialize<'de> + Encode, const FIELD: u32> Deserialize<'de> for Repeated<T, FIELD> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Self::default())
    }
}

impl<'de, T: Deserialize<'de> + Encode, const FIELD: u32> Visitor<'de> for Repeated<T, FIELD> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut all: A) -> Result<Self, A::Error> {
        let mut room = ROOM.get();
        while let Some(one) = all.next_element::<T>()? {
            let before = self.bytes.len();
            put_message(FIELD, &one, &mut self.bytes);
            // The element's own lists are copied now, so that their room is free again.
            room = room.checked_sub(self.bytes.len() - before).ok_or_else(|| {
                let why = "it has more than 16 MiB as protobuf (send fewer series in one)";
                A::Error::custom(why)
            })?;
            ROOM.set(room);
        }
        Ok(self)
    }
}

/// A number, or a text that holds one, as JSON has those of 64 bits.
#[derive(Clone, Copy, Default)]
struct Number<T>(T);

impl<'de, T: FromStr> Deserialize<'de> for Number<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(NumberVisitor(PhantomData))
    }
}

struct NumberVisitor<T>(PhantomData<T>);

impl<T: FromStr> Visitor<'_> for NumberVisitor<T> {
    type Value = Number<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Number<T>, E> {
        let number = text.parse().map(Number);
        number.map_err(|_| E::custom("a number cannot be parsed or does not fit its field"))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Number<T>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Number<T>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Number<T>, E> {
        self.visit_str(&number.to_string())
    }
}

/// The numbers of a list of bounded length.
struct Numbers<T>(Vec<T>);

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: FromStr> Deserialize<'de> for Numbers<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Self::default())
    }
}

impl<'de, T: FromStr> Visitor<'de> for Numbers<T> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut all: A) -> Result<Self, A::Error> {
        while let Some(Number(number)) = all.next_element()? {
            if self.0.len() >= NUMBERS_MAX {
                return Err(A::Error::custom("a data point has more than 8192 numbers"));
            }
            self.0.push(number);
        }
        Ok(self)
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Request {
    resource_metrics: Repeated<ResourceMetrics, 1>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ResourceMetrics {
    resource: Resource,
    scope_metrics: Repeated<ScopeMetrics, 2>,
}

impl Encode for ResourceMetrics {
    fn encode(&self, to: &mut Vec<u8>) {
        put(1, &self.resource.attributes.bytes, to);
        to.extend_from_slice(&self.scope_metrics.bytes);
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resource {
    attributes: Repeated<Attribute, 1>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ScopeMetrics {
    scope: Scope,
    metrics: Repeated<Metric, 2>,
}

impl Encode for ScopeMetrics {
    fn encode(&self, to: &mut Vec<u8>) {
        put_message(1, &self.scope, to);
        to.extend_from_slice(&self.metrics.bytes);
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Scope {
    name: String,
    version: String,
    attributes: Repeated<Attribute, 3>,
}

impl Encode for Scope {
    fn encode(&self, to: &mut Vec<u8>) {
        put(1, self.name.as_bytes(), to);
        put(2, self.version.as_bytes(), to);
        to.extend_from_slice(&self.attributes.bytes);
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metric {
    name: String,
    unit: String,
    histogram: Option<Histogram<Explicit>>,
    exponential_histogram: Option<Histogram<Exponential>>,
}

impl Encode for Metric {
    fn encode(&self, to: &mut Vec<u8>) {
        put(1, self.name.as_bytes(), to);
        put(3, self.unit.as_bytes(), to);
        if let Some(histogram) = &self.histogram {
            put_message(9, histogram, to);
        }
        if let Some(histogram) = &self.exponential_histogram {
            put_message(10, histogram, to);
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound = "T: Deserialize<'de> + Encode")]
struct Histogram<T> {
    #[serde(default)]
    data_points: Repeated<T, 1>,
    #[serde(default)]
    aggregation_temporality: Number<u8>,
}

impl<T> Encode for Histogram<T> {
    fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.data_points.bytes);
        put_number(2, u64::from(self.aggregation_temporality.0), to);
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Explicit {
    attributes: Repeated<Attribute, 9>,
    start_time_unix_nano: Number<u64>,
    time_unix_nano: Number<u64>,
    count: Number<u64>,
    bucket_counts: Numbers<u64>,
    explicit_bounds: Numbers<f64>,
    flags: Number<u32>,
}

impl Encode for Explicit {
    fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.attributes.bytes);
        let point = ExplicitPoint {
            start_time_unix_nano: self.start_time_unix_nano.0,
            time_unix_nano: self.time_unix_nano.0,
            count: self.count.0,
            bucket_counts: self.bucket_counts.0.clone(),
            explicit_bounds: self.explicit_bounds.0.clone(),
            flags: self.flags.0,
            ..ExplicitPoint::default()
        };
        to.extend(point.encode_to_vec());
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Exponential {
    attributes: Repeated<Attribute, 1>,
    start_time_unix_nano: Number<u64>,
    time_unix_nano: Number<u64>,
    count: Number<u64>,
    scale: Number<i32>,
    zero_count: Number<u64>,
    zero_threshold: Number<f64>,
    positive: ExponentialSide,
    negative: ExponentialSide,
    flags: Number<u32>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ExponentialSide {
    offset: Number<i32>,
    bucket_counts: Numbers<u64>,
}

impl ExponentialSide {
    fn buckets(&self) -> Option<ExponentialBuckets> {
        let (offset, bucket_counts) = (self.offset.0, self.bucket_counts.0.clone());
        (!bucket_counts.is_empty()).then_some(ExponentialBuckets { offset, bucket_counts })
    }
}

impl Encode for Exponential {
    fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.attributes.bytes);
        let point = ExponentialPoint {
            attributes: Vec::new(),
            start_time_unix_nano: self.start_time_unix_nano.0,
            time_unix_nano: self.time_unix_nano.0,
            count: self.count.0,
            scale: self.scale.0,
            zero_count: self.zero_count.0,
            positive: self.positive.buckets(),
            negative: self.negative.buckets(),
            flags: self.flags.0,
            zero_threshold: self.zero_threshold.0,
        };
        to.extend(point.encode_to_vec());
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Attribute {
    key: String,
    value: AnyValue,
}

impl Encode for Attribute {
    fn encode(&self, to: &mut Vec<u8>) {
        put(1, self.key.as_bytes(), to);
        put_message(2, &self.value, to);
    }
}

/// `opentelemetry.proto.common.v1.AnyValue`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AnyValue {
    string_value: Option<String>,
    bool_value: Option<bool>,
    int_value: Option<Number<i64>>,
    double_value: Option<Number<f64>>,
    array_value: Option<ListOf<AnyValue>>,
    kvlist_value: Option<ListOf<Attribute>>,
    bytes_value: Option<String>,
}

#[derive(Deserialize)]
#[serde(bound = "T: Deserialize<'de> + Encode")]
struct ListOf<T> {
    #[serde(default)]
    values: Repeated<T, 1>,
}

impl Encode for AnyValue {
    fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Self { string_value: Some(text), .. } => put(1, text.as_bytes(), to),
            Self { bool_value: Some(is_set), .. } => put_number(2, u64::from(*is_set), to),
            Self { int_value: Some(Number(number)), .. } => {
                put_number(3, number.cast_unsigned(), to);
            }
            Self { double_value: Some(Number(number)), .. } => {
                encode_key(4, WireType::SixtyFourBit, to);
                to.extend(number.to_le_bytes());
            }
            Self { array_value: Some(list), .. } => put(5, &list.values.bytes, to),
            Self { kvlist_value: Some(list), .. } => put(6, &list.values.bytes, to),
            // Values that are not text only distinguish series, for which the letters do.
            Self { bytes_value: Some(letters), .. } => put(7, letters.as_bytes(), to),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
