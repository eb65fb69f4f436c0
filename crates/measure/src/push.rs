//! The push protocol, by which apps and load clients report to the agent.
//!
//! Any process that may open the agent's unix stream socket can push: it connects and
//! writes one JSON object a line, at most [`MAX_LINE_BYTES`] long, ended by `\n`. The
//! agent never answers. It closes the connection after a line that it cannot
//! read, and its journal records why.
//!
//! Latency of one window, usually 100 ms, by a client that knows when its
//! requests were due:
//!
//! ```json
//! {"v":1,"kind":"latency","app":"memcached","start_ns":81230000000,"length_ns":100000000,
//!  "due":2011,"sent":2011,"completed":2009,"errors":0,"outstanding":2,"oldest_ns":41000,
//!  "lag_p99_ns":9100,"histogram":"HISTEwAAA..."}
//! ```
//!
//! A client may add some of the requests one by one, every n-th:
//!
//! ```json
//! "sample":{"one_in":128,"requests":[{"due_ns":81230004100,"wait_ns":0,"latency_ns":61000}]}
//! ```
//!
//! Progress of a best-effort app, a running total in a unit of its own:
//!
//! ```json
//! {"v":1,"kind":"progress","app":"burner","unit":"paths","total":120500,"time_ns":81330000000}
//! ```
//!
//! Instants (`start_ns`, `time_ns`) are `CLOCK_MONOTONIC` of the machine that
//! both ends run on. `histogram` is base64 of the HDR V2 format, not deflated. Windows are
//! [`LENGTH_MIN`] to [`LENGTH_MAX`] long, counts and `one_in` at most [`COUNT_MAX`], latencies
//! and ages at most [`SPAN_MAX`], totals at most [`TOTAL_MAX`]. Unknown keys are ignored, so
//! that a later client can report more to an older agent; `v` changes only when the meaning of
//! a key does.

mod bounds;
mod lines;

pub use bounds::{COUNT_MAX, LENGTH_MAX, LENGTH_MIN, SPAN_MAX, TOTAL_MAX};
pub use lines::{Fill, LineReader, LineTooLong};

use crate::{Buckets, Latency, Nanos, RequestSample};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The version of the protocol written in `v`.
pub const VERSION: u32 = 1;
/// The longest line, its newline included.
pub const MAX_LINE_BYTES: usize = 256 * 1024;
/// Most requests in the sample of one window.
pub const SAMPLE_MAX: usize = 64;
/// The longest name of an app, in bytes.
pub const MAX_NAME_BYTES: usize = 128;

/// One line of the protocol.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Message {
    /// A client's window of requests.
    Latency(Box<LatencyWindow>),
    /// How far a best-effort app has come.
    Progress(Progress),
}

/// The requests of one app in one window, as its client saw them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyWindow {
    /// The app's name in the agent's configuration.
    pub app: String,
    /// Start of the window, `CLOCK_MONOTONIC`.
    pub start_ns: Nanos,
    /// Length of the window as it really was.
    pub length_ns: Nanos,
    /// Requests whose intended send time lies in the window.
    pub due: u64,
    /// Requests written to a connection in the window.
    pub sent: u64,
    /// Requests answered in the window.
    pub completed: u64,
    /// Requests that failed or timed out in the window.
    pub errors: u64,
    /// Requests due and not finished when the window ended.
    pub outstanding: u64,
    /// Age of the oldest of them since its intended send time; 0 if there is none.
    pub oldest_ns: Nanos,
    /// How late the client itself was: 99th percentile of taking up a request
    /// after its intended send time; 0 if none was due.
    #[serde(default)]
    pub lag_p99_ns: Nanos,
    /// Latency of the requests that finished in the window, from the intended
    /// send time; a request that timed out counts with its age.
    #[serde(with = "base64_hdr")]
    pub histogram: Latency,
    /// Some of those requests one by one, if the client says; at most
    /// [`SAMPLE_MAX`]. Instants are `CLOCK_MONOTONIC` as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample: Option<RequestSample>,
    /// The buckets that `histogram` was made from, if the source reports buckets. Not part of
    /// the line: clients push each latency.
    #[serde(skip)]
    pub buckets: Buckets,
}

/// A running total of work done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The app's name in the agent's configuration.
    pub app: String,
    /// The counted unit, in the plural: `paths`, `bytes`, `frames`.
    pub unit: String,
    /// Everything done since the app started; never falls.
    pub total: f64,
    /// When the total was read, `CLOCK_MONOTONIC`.
    pub time_ns: Nanos,
}

/// Why a line is not a message.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// The line is longer than the protocol allows.
    #[error(transparent)]
    TooLong(#[from] LineTooLong),
    /// The line is not JSON, or a key is missing or of the wrong type.
    #[error("not a push message: {0}; see the push protocol for the keys of each kind")]
    Malformed(#[from] serde_json::Error),
    /// Written for another version.
    #[error("push protocol version {found} is not understood here: send \"v\":{VERSION}")]
    Version {
        /// The value of `v`.
        found: u32,
    },
    /// A value that is well formed and makes no sense.
    #[error("push message with `{key}` {problem}")]
    Value {
        /// The offending key.
        key: &'static str,
        /// The fault.
        problem: &'static str,
    },
}

/// A message with its version, as it is written to the line.
#[derive(Serialize)]
struct Framed<'a> {
    v: u32,
    #[serde(flatten)]
    message: &'a Message,
}

/// The part of a line that is read first, to find its version.
#[derive(Deserialize)]
struct Envelope {
    v: u32,
}

impl Message {
    /// Appends the message and its newline to `out`.
    ///
    /// # Errors
    /// [`PushError::TooLong`], with `out` unchanged, if the line would exceed
    /// [`MAX_LINE_BYTES`]; [`PushError::Value`] as for [`Message::decode`].
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), PushError> {
        self.check()?;
        let start = out.len();
        serde_json::to_writer(&mut *out, &Framed { v: VERSION, message: self })?;
        out.push(b'\n');
        if out.len() - start > MAX_LINE_BYTES {
            out.truncate(start);
            return Err(LineTooLong { limit: MAX_LINE_BYTES }.into());
        }
        Ok(())
    }

    /// Reads one line, without or with its newline.
    ///
    /// # Errors
    /// If the line is not a message of this version, or one of its values is out of range: an
    /// empty or overlong name, or a number beyond the constants of this module.
    pub fn decode(line: &[u8]) -> Result<Self, PushError> {
        let Envelope { v } = serde_json::from_slice(line)?;
        if v != VERSION {
            return Err(PushError::Version { found: v });
        }
        let message: Self = serde_json::from_slice(line)?;
        message.check()?;
        Ok(message)
    }

    /// The app that the message is about.
    pub fn app(&self) -> &str {
        match self {
            Self::Latency(window) => &window.app,
            Self::Progress(progress) => &progress.app,
        }
    }

    /// Checks every value, as [`Message::decode`] does.
    ///
    /// # Errors
    /// [`PushError::Value`] for the first one that is out of range.
    pub fn check(&self) -> Result<(), PushError> {
        let refuse = |key, problem| Err(PushError::Value { key, problem });
        if self.app().is_empty() || self.app().len() > MAX_NAME_BYTES {
            return refuse("app", "empty or longer than 128 bytes");
        }
        match self {
            Self::Latency(window) => bounds::check_window(window),
            Self::Progress(progress) if progress.unit.len() > MAX_NAME_BYTES => {
                refuse("unit", "longer than 128 bytes")
            }
            Self::Progress(progress) => bounds::check_progress(progress),
        }
    }
}

/// Histograms as the protocol writes them.
mod base64_hdr {
    use super::{Deserialize, Deserializer, Latency, Serializer};
    use serde::de::Error as _;

    pub(super) fn serialize<S: Serializer>(set: &Latency, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&set.to_base64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Latency, D::Error> {
        let text = String::deserialize(from)?;
        Latency::from_base64(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SampledRequest;
    use proptest::prelude::*;
    use serde_json::json;

    /// Values at the edges of every range and of the type, and ordinary ones.
    fn extreme() -> impl Strategy<Value = u64> {
        let edges = vec![0, 1, 1_000, LENGTH_MAX.0, COUNT_MAX, COUNT_MAX + 1, SPAN_MAX.0, 1 << 63];
        prop_oneof![
            4 => 1u64..2_000,
            1 => prop::sample::select(edges),
            1 => Just(u64::MAX),
            1 => any::<u64>(),
        ]
    }

    fn window(latencies: impl IntoIterator<Item = u64>) -> LatencyWindow {
        LatencyWindow {
            app: "memcached".to_owned(),
            start_ns: Nanos::from_secs(81),
            length_ns: Nanos::from_millis(100),
            due: 2011,
            histogram: latencies.into_iter().map(Nanos).collect(),
            ..LatencyWindow::default()
        }
    }

    fn line(message: &Message) -> Vec<u8> {
        let mut line = Vec::new();
        message.encode(&mut line).unwrap();
        line
    }

    #[test]
    fn a_line_written_by_hand_is_understood() {
        let text =
            br#"{"v":1,"kind":"progress","app":"b","unit":"paths","total":12.5,"time_ns":7}"#;
        let Message::Progress(progress) = Message::decode(text).unwrap() else {
            panic!("read as another kind");
        };
        assert_eq!((progress.total, progress.time_ns), (12.5, Nanos(7)));
    }

    #[test]
    fn a_newer_client_may_say_more() {
        let text =
            br#"{"v":1,"kind":"progress","app":"b","unit":"x","total":1,"time_ns":7,"hue":3}"#;
        assert!(Message::decode(text).is_ok());
    }

    #[test]
    fn the_keys_are_those_of_the_documented_example() {
        let line = line(&Message::Latency(Box::new(window([5_000]))));
        let value: serde_json::Value = serde_json::from_slice(&line).unwrap();
        let keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let mut wanted = [
            "v",
            "kind",
            "app",
            "start_ns",
            "length_ns",
            "due",
            "sent",
            "completed",
            "errors",
            "outstanding",
            "oldest_ns",
            "lag_p99_ns",
            "histogram",
        ];
        wanted.sort_unstable();
        assert_eq!(keys, wanted);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_key_that_is_wrong() {
        let cases = [
            (r#"{"v":2,"kind":"progress"}"#, "version 2"),
            (r#"{"v":1,"kind":"mood"}"#, "mood"),
            (r#"{"v":1,"kind":"progress","app":"b","unit":"x","total":1}"#, "time_ns"),
            (r#"{"v":1,"kind":"progress","app":"","unit":"x","total":1,"time_ns":7}"#, "app"),
            (r#"{"v":1,"kind":"progress","app":"b","unit":"x","total":-1,"time_ns":7}"#, "total"),
            (
                r#"{"v":1,"kind":"latency","app":"a","start_ns":1,"length_ns":1,"due":1,"sent":1,
                "completed":1,"errors":0,"outstanding":0,"oldest_ns":0,"histogram":"SGVsbG8="}"#,
                "HDR",
            ),
            (
                r#"{"v":1,"kind":"latency","app":"a","start_ns":1,"length_ns":1000,"due":1,"sent":1,
                "completed":1,"errors":0,"outstanding":0,"oldest_ns":0,"histogram":"EMPTY",
                "sample":{"one_in":0,"requests":[]}}"#,
                "sample",
            ),
            ("hello", "push message"),
        ];
        let empty = Latency::default().to_base64();
        for (text, wanted) in cases {
            let text = text.replace("EMPTY", &empty);
            let error = Message::decode(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn a_sample_of_requests_comes_through_and_is_bounded() {
        let request =
            SampledRequest { due_ns: Nanos(7), wait_ns: Nanos(1), latency_ns: Nanos(5_000) };
        let sample = |count| Some(RequestSample { one_in: 4, requests: vec![request; count] });
        let with = |count| {
            Message::Latency(Box::new(LatencyWindow { sample: sample(count), ..window([5_000]) }))
        };
        let Message::Latency(back) = Message::decode(&line(&with(2))).unwrap() else {
            panic!("read as another kind");
        };
        assert_eq!(back.sample, sample(2));
        let refused = with(SAMPLE_MAX + 1).encode(&mut Vec::new());
        assert!(matches!(refused, Err(PushError::Value { key: "sample", .. })));
    }

    #[test]
    fn a_number_out_of_range_is_refused_by_its_key() {
        let request = SampledRequest { due_ns: Nanos(7), ..SampledRequest::default() };
        let good = LatencyWindow {
            sample: Some(RequestSample { one_in: 4, requests: vec![request; 17] }),
            ..window([5_000])
        };
        let line = line(&Message::Latency(Box::new(good)));
        let cases = [
            ("/length_ns", 0, "length_ns"),
            ("/length_ns", LENGTH_MAX.0 + 1, "length_ns"),
            ("/due", COUNT_MAX + 1, "due"),
            ("/sent", u64::MAX, "sent"),
            ("/completed", u64::MAX, "completed"),
            ("/errors", u64::MAX, "errors"),
            ("/outstanding", u64::MAX, "outstanding"),
            ("/oldest_ns", SPAN_MAX.0 + 1, "oldest_ns"),
            ("/lag_p99_ns", u64::MAX, "lag_p99_ns"),
            ("/sample/one_in", 0, "sample"),
            ("/sample/one_in", 9_223_372_036_854_775_808, "sample"),
            ("/sample/requests/3/due_ns", u64::MAX, "sample"),
            ("/sample/requests/3/wait_ns", u64::MAX, "wait_ns"),
            ("/sample/requests/3/latency_ns", u64::MAX, "latency_ns"),
        ];
        for (place, value, wanted) in cases {
            let mut changed: serde_json::Value = serde_json::from_slice(&line).unwrap();
            *changed.pointer_mut(place).unwrap() = value.into();
            let refused = Message::decode(changed.to_string().as_bytes());
            assert!(
                matches!(refused, Err(PushError::Value { key, .. }) if key == wanted),
                "{place} = {value}: {refused:?}"
            );
        }
    }

    #[test]
    fn a_message_that_cannot_be_sent_leaves_the_buffer_alone() {
        let mut out = b"before".to_vec();
        let nameless = Message::Latency(Box::default());
        assert!(matches!(nameless.encode(&mut out), Err(PushError::Value { key: "app", .. })));
        assert_eq!(out, b"before");
    }

    #[test]
    fn the_fullest_window_fits_a_line() {
        // Every bucket of the histogram in use: far more than a window of 100 ms can hold.
        let everywhere = (0..30_000u32).map(|step| 1.0008_f64.powi(step as i32) as u64 + 100);
        let full = Message::Latency(Box::new(window(everywhere)));
        assert!(line(&full).len() <= MAX_LINE_BYTES);
    }

    proptest! {
        #[test]
        fn encoding_and_decoding_keep_a_window(
            counts in prop::array::uniform6(0u64..1 << 40),
            latencies in prop::collection::vec(100u64..1 << 39, 0..50),
        ) {
            let [due, sent, completed, errors, outstanding, oldest] = counts;
            let before = LatencyWindow {
                due, sent, completed, errors, outstanding, oldest_ns: Nanos(oldest),
                ..window(latencies)
            };
            let sent = line(&Message::Latency(Box::new(before.clone())));
            let Message::Latency(after) = Message::decode(&sent).unwrap() else {
                panic!("read as another kind");
            };
            prop_assert_eq!(&after.histogram.to_base64(), &before.histogram.to_base64());
            prop_assert_eq!(after.histogram.count(), before.histogram.count());
            let histogram = before.histogram.clone();
            prop_assert_eq!(LatencyWindow { histogram, ..*after }, before);
        }

        #[test]
        fn what_is_decoded_is_within_the_bounds_whatever_the_values(
            values in prop::array::uniform12(extreme()),
            one_in in extreme(),
            total in any::<f64>(),
        ) {
            let [start, length, due, sent, completed, errors, outstanding, oldest, lag,
                due_ns, wait_ns, latency_ns] = values;
            let request = json!({ "due_ns": due_ns, "wait_ns": wait_ns, "latency_ns": latency_ns });
            let window = json!({
                "v": 1, "kind": "latency", "app": "a", "start_ns": start, "length_ns": length,
                "due": due, "sent": sent, "completed": completed, "errors": errors,
                "outstanding": outstanding, "oldest_ns": oldest, "lag_p99_ns": lag,
                "histogram": Latency::default().to_base64(),
                "sample": { "one_in": one_in, "requests": vec![request; 17] },
            });
            if let Ok(Message::Latency(window)) = Message::decode(window.to_string().as_bytes()) {
                let counts = [due, sent, completed, errors, outstanding, one_in];
                prop_assert!(counts.iter().all(|count| *count <= COUNT_MAX) && one_in > 0);
                prop_assert!([oldest, lag, wait_ns, latency_ns].iter().all(|ns| *ns <= SPAN_MAX.0));
                prop_assert!((LENGTH_MIN..=LENGTH_MAX).contains(&window.length_ns));
            }
            let report = json!({
                "v": 1, "kind": "progress", "app": "a", "unit": "x", "total": total,
                "time_ns": start,
            });
            if let Ok(Message::Progress(report)) = Message::decode(report.to_string().as_bytes()) {
                prop_assert!((0.0..=TOTAL_MAX).contains(&report.total));
            }
        }

        #[test]
        fn no_bytes_can_make_the_decoder_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = Message::decode(&bytes);
        }
    }
}
