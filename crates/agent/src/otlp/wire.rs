//! The protobuf messages of OTLP, as far as they are read.
//!
//! The outer messages are walked ([`fields`]) and never held as a tree: two bytes can stand for an
//! empty message of hundreds of bytes, so that decoding an export as a whole could cost a
//! hundred times its length. Only the innermost messages are decoded, one at a time, and none
//! longer than [`POINT_MAX`].

use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};

/// Most bytes of one data point, and of one resource.
pub(super) const POINT_MAX: usize = 64 << 10;

/// Why bytes are not an export.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// They are not protobuf.
    #[error("it is not a protobuf message ({0})")]
    Malformed(#[from] DecodeError),
    /// A field is cut short.
    #[error("a field is longer than its message")]
    CutShort,
    /// A message is too long.
    #[error("a data point or resource has {0} bytes, and 65536 are the most")]
    TooLong(usize),
}

/// The value of a field: a message, a text or bytes, or a small number.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value<'a> {
    Bytes(&'a [u8]),
    Number(u64),
    /// A type that no field that is read has.
    Other,
}

/// Walks the fields of a message; ends with the first error.
pub(super) fn fields(
    mut bytes: &[u8],
) -> impl Iterator<Item = Result<(u32, Value<'_>), WireError>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let field = next_field(&mut bytes);
        if field.is_err() {
            bytes = &[];
        }
        Some(field)
    })
}

fn next_field<'a>(bytes: &mut &'a [u8]) -> Result<(u32, Value<'a>), WireError> {
    let (tag, kind) = decode_key(bytes)?;
    let value = match kind {
        WireType::LengthDelimited => {
            let length = usize::try_from(decode_varint(bytes)?).unwrap_or(usize::MAX);
            let (value, _) = bytes.split_at_checked(length).ok_or(WireError::CutShort)?;
            bytes.advance(length);
            Value::Bytes(value)
        }
        WireType::Varint => Value::Number(decode_varint(bytes)?),
        _ => {
            skip_field(kind, tag, bytes, DecodeContext::default())?;
            Value::Other
        }
    };
    Ok((tag, value))
}

/// The messages and texts in the fields with this number.
pub(super) fn parts(bytes: &[u8], number: u32) -> impl Iterator<Item = Result<&[u8], WireError>> {
    fields(bytes).filter_map(move |field| match field {
        Ok((tag, Value::Bytes(part))) if tag == number => Some(Ok(part)),
        Ok(_) => None,
        Err(error) => Some(Err(error)),
    })
}

/// Decodes an innermost message.
pub(super) fn decode<T: Message + Default>(bytes: &[u8]) -> Result<T, WireError> {
    if bytes.len() > POINT_MAX {
        return Err(WireError::TooLong(bytes.len()));
    }
    Ok(T::decode(bytes)?)
}

/// `opentelemetry.proto.common.v1.KeyValue`, its value not decoded, since values nest.
#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
}

impl KeyValue {
    /// The value, if it is a text.
    pub(super) fn text(&self) -> Option<&str> {
        let text = parts(&self.value, 1).next()?.ok()?;
        std::str::from_utf8(text).ok()
    }
}

/// `opentelemetry.proto.resource.v1.Resource`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

/// `opentelemetry.proto.metrics.v1.HistogramDataPoint`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExplicitPoint {
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(super) time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    pub(super) count: u64,
    #[prost(double, optional, tag = "5")]
    pub(super) sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    pub(super) bucket_counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    pub(super) explicit_bounds: Vec<f64>,
    #[prost(uint32, tag = "10")]
    pub(super) flags: u32,
}

/// `opentelemetry.proto.metrics.v1.ExponentialHistogramDataPoint`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExponentialPoint {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "2")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    pub(super) time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    pub(super) count: u64,
    #[prost(sint32, tag = "6")]
    pub(super) scale: i32,
    #[prost(fixed64, tag = "7")]
    pub(super) zero_count: u64,
    #[prost(message, optional, tag = "8")]
    pub(super) positive: Option<ExponentialBuckets>,
    #[prost(message, optional, tag = "9")]
    pub(super) negative: Option<ExponentialBuckets>,
    #[prost(uint32, tag = "10")]
    pub(super) flags: u32,
    #[prost(double, tag = "14")]
    pub(super) zero_threshold: f64,
}

/// `ExponentialHistogramDataPoint.Buckets`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExponentialBuckets {
    #[prost(sint32, tag = "1")]
    pub(super) offset: i32,
    #[prost(uint64, repeated, tag = "2")]
    pub(super) bucket_counts: Vec<u64>,
}

/// `ExportMetricsServiceResponse`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Response {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

/// `ExportMetricsPartialSuccess`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected_data_points: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

/// `google.rpc.Status`, the body of a refusal.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(string, tag = "2")]
    pub(super) message: String,
}
