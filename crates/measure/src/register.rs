//! The protocol by which a process registers itself with the agent as an app.
//!
//! A process connects to the agent's register socket, a unix stream socket, and writes one JSON
//! object a line, at most [`MAX_LINE_BYTES`] long, ended by `\n`. The agent answers each line
//! with one line.
//!
//! ```json
//! {"v":1,"kind":"register","as":"batch"}
//! {"v":1,"accepted":true,"app":"batch-2"}
//! {"v":1,"kind":"leave"}
//! {"v":1,"accepted":true}
//! ```
//!
//! `as` names a template of the agent's config; it may be absent if the user may register with
//! one template only. A line says nothing else: the process is the one that has connected, as
//! the kernel reports it, and class, objectives and limits are those of the template. The
//! process departs when it writes `leave`, when the connection is closed, or when the process
//! ends. A refusal has a [`Reason`] for programs and a message for people:
//!
//! ```json
//! {"v":1,"accepted":false,"reason":"full","message":"all 8 apps of `batch` have a process"}
//! ```
//!
//! The agent closes the connection after a refusal, unless the process is registered. Unknown
//! keys are ignored; `v` changes only when the meaning of a key does.

use crate::push::MAX_NAME_BYTES;
use serde::{Deserialize, Serialize};

/// The version of the protocol written in `v`.
pub const VERSION: u32 = 1;
/// The longest line, its newline included.
pub const MAX_LINE_BYTES: usize = 4096;

/// A request of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Request {
    /// Requests to become an app.
    Register {
        /// The template; `None` is the only one that the user may name.
        #[serde(rename = "as", default, skip_serializing_if = "Option::is_none")]
        template: Option<String>,
    },
    /// Requests to stop being an app.
    Leave,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The process is this app, or no app any more.
    Accepted {
        /// The name of the app; `None` after a departure.
        app: Option<String>,
    },
    /// The request was refused and nothing has changed.
    Refused(Refusal),
}

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The reason, for programs.
    pub reason: Reason,
    /// The message, for people.
    pub message: String,
}

/// The kinds of refusals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The line is not a request.
    Malformed,
    /// Too many processes connect at once; try again later.
    Busy,
    /// The user may not register with this template, or with any.
    User,
    /// There is no such template, or the user may name several.
    Template,
    /// All apps of the template have a process; try again later.
    Full,
    /// The process is an app already.
    Registered,
    /// The process belongs to another app.
    Owned,
    /// The process cannot be an app.
    Process,
    /// A reason of a later version.
    #[serde(other)]
    Other,
}

/// A line as it is written.
#[derive(Serialize)]
struct Framed<'a> {
    v: u32,
    #[serde(flatten)]
    request: &'a Request,
}

/// The part of a line that is read first.
#[derive(Deserialize)]
struct Envelope {
    v: u32,
}

/// An answer as it is written.
#[derive(Serialize, Deserialize)]
struct WrittenAnswer {
    v: u32,
    accepted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    app: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// Reads one line, without or with its newline.
///
/// # Errors
/// [`Reason::Malformed`] if it is not a request of this version.
pub fn parse(line: &[u8]) -> Result<Request, Refusal> {
    let no_request = |error: serde_json::Error| malformed(format!("not a request: {error}"));
    let Envelope { v } = serde_json::from_slice(line).map_err(no_request)?;
    if v != VERSION {
        return Err(malformed(format!("version {v} is not understood here: send \"v\":{VERSION}")));
    }
    let request: Request = serde_json::from_slice(line).map_err(no_request)?;
    let is_odd = |name: &String| name.is_empty() || name.len() > MAX_NAME_BYTES;
    match &request {
        Request::Register { template: Some(name) } if is_odd(name) => {
            Err(malformed(format!("`as` is empty or longer than {MAX_NAME_BYTES} bytes")))
        }
        _ => Ok(request),
    }
}

fn malformed(message: String) -> Refusal {
    Refusal { reason: Reason::Malformed, message }
}

impl Request {
    /// Returns the line, with its newline.
    pub fn to_line(&self) -> String {
        line_of(&Framed { v: VERSION, request: self })
    }
}

impl Answer {
    /// Returns the line, with its newline.
    pub fn to_line(&self) -> String {
        let empty =
            WrittenAnswer { v: VERSION, accepted: true, app: None, reason: None, message: None };
        let written = match self.clone() {
            Self::Accepted { app } => WrittenAnswer { app, ..empty },
            Self::Refused(Refusal { reason, message }) => WrittenAnswer {
                accepted: false,
                reason: Some(reason),
                message: Some(message),
                ..empty
            },
        };
        line_of(&written)
    }

    /// Reads one line.
    ///
    /// # Errors
    /// [`Reason::Malformed`] if it is no answer.
    pub fn parse(line: &[u8]) -> Result<Self, Refusal> {
        let written: WrittenAnswer = serde_json::from_slice(line)
            .map_err(|error| malformed(format!("the agent's answer is not understood: {error}")))?;
        Ok(match written.accepted {
            true => Self::Accepted { app: written.app },
            false => Self::Refused(Refusal {
                reason: written.reason.unwrap_or(Reason::Other),
                message: written.message.unwrap_or_default(),
            }),
        })
    }
}

fn line_of(value: &impl Serialize) -> String {
    let mut line = serde_json::to_string(value).expect("names and numbers can be written as JSON");
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn register(name: Option<&str>) -> Request {
        Request::Register { template: name.map(str::to_owned) }
    }

    #[test]
    fn lines_written_by_hand_are_understood() {
        let cases = [
            (r#"{"v":1,"kind":"register","as":"batch"}"#, register(Some("batch"))),
            (r#"{"v":1,"kind":"register"}"#, register(None)),
            (r#"{"kind":"register","class":"best-effort","v":1,"pid":1}"#, register(None)),
            ("{\"v\":1,\"kind\":\"leave\"}\n", Request::Leave),
        ];
        for (line, wanted) in cases {
            assert_eq!(parse(line.as_bytes()), Ok(wanted), "{line}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused_with_what_is_wrong() {
        let long = format!(r#"{{"v":1,"kind":"register","as":"{}"}}"#, "x".repeat(129));
        let cases = [
            ("", "not a request"),
            ("register", "not a request"),
            (r#"{"kind":"register"}"#, "`v`"),
            (r#"{"v":2,"kind":"register"}"#, "version 2"),
            (r#"{"v":-1,"kind":"register"}"#, "not a request"),
            (r#"{"v":1}"#, "`kind`"),
            (r#"{"v":1,"kind":"steer"}"#, "steer"),
            (r#"{"v":1,"kind":"register","as":""}"#, "`as` is empty"),
            (r#"{"v":1,"kind":"register","as":7}"#, "not a request"),
            (long.as_str(), "longer than 128 bytes"),
        ];
        for (line, wanted) in cases {
            let refusal = parse(line.as_bytes()).unwrap_err();
            assert_eq!(refusal.reason, Reason::Malformed);
            assert!(refusal.message.contains(wanted), "{line}: {refusal}");
        }
    }

    #[test]
    fn answers_come_through_and_those_of_a_later_version_keep_their_message() {
        let refusal = Refusal { reason: Reason::Full, message: "all \"8\" are taken".to_owned() };
        let app = Some("batch-2".to_owned());
        let answers = [
            Answer::Accepted { app },
            Answer::Accepted { app: None },
            Answer::Refused(refusal.clone()),
        ];
        for answer in answers {
            assert_eq!(Answer::parse(answer.to_line().as_bytes()), Ok(answer));
        }
        let later = r#"{"v":1,"accepted":false,"reason":"moon","message":"full moon"}"#;
        let Ok(Answer::Refused(refusal)) = Answer::parse(later.as_bytes()) else {
            panic!("read as another answer");
        };
        assert_eq!((refusal.reason, refusal.message.as_str()), (Reason::Other, "full moon"));
        assert!(Answer::parse(b"yes").is_err());
    }

    /// Values that a hostile process may give a key.
    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            3 => Just(json!("register")),
            2 => Just(json!("leave")),
            3 => Just(json!(1)),
            1 => Just(Value::Null),
            1 => any::<u64>().prop_map(Value::from),
            1 => any::<f64>().prop_map(Value::from),
            1 => any::<bool>().prop_map(Value::from),
            2 => ".{0,200}".prop_map(Value::from),
            1 => prop::collection::vec(any::<i64>(), 0..4).prop_map(Value::from),
            1 => Just(json!({ "as": "batch" })),
        ]
    }

    proptest! {
        #[test]
        fn whatever_the_values_what_is_understood_is_one_of_the_requests(
            v in value(), kind in value(), template in value(), more in value(),
        ) {
            let line = json!({ "v": v, "kind": kind, "as": template, "pid": more }).to_string();
            if let Ok(request) = parse(line.as_bytes()) {
                prop_assert_eq!(&v, &json!(1));
                match request {
                    Request::Leave => prop_assert_eq!(kind, "leave"),
                    Request::Register { template: None } => prop_assert_eq!(template, Value::Null),
                    Request::Register { template: Some(name) } => {
                        prop_assert!((1..=MAX_NAME_BYTES).contains(&name.len()));
                        prop_assert_eq!(template, Value::String(name));
                    }
                }
            }
        }

        #[test]
        fn a_request_is_read_as_it_was_written(name in prop::option::of(".{1,30}")) {
            let request = Request::Register { template: name };
            let line = request.to_line();
            prop_assert_eq!(line.matches('\n').count(), 1);
            prop_assert_eq!(parse(line.as_bytes()), Ok(request));
        }

        #[test]
        fn no_bytes_can_make_the_parser_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let _ = (parse(&bytes), Answer::parse(&bytes));
        }
    }
}
