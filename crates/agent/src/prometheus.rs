//! An app's tail latency, its load and the age of both, queried from a Prometheus server.
//!
//! A thread sends the queries once an epoch and takes the bytes that come back; it does not look
//! into them, but for the records of TLS. They are parsed in the front end ([`crate::frontend`]),
//! whose results the control loop takes without waiting. The result must be one number:
//! <https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries>.

mod address;
mod client;
mod subject;
#[cfg(test)]
#[cfg(feature = "tls")]
mod tls_tests;

pub(crate) use address::Server;
pub(crate) use subject::{Subject, names_pod};

use crate::outbound::Access;
use client::{Client, TIMEOUT};
use lull_host::gauges::reported::{Answer, Expected, Generation, Reply, Reported};
use lull_host::monotonic as now;
use lull_measure::{Gauge, Missing, Nanos, Percentile};
use serde::Deserialize;
use std::sync::mpsc::Sender;

/// Shortest period of the queries.
const PERIOD_MIN: Nanos = Nanos::from_millis(200);
/// Largest difference between now and the time of an answer; beyond it the answer is rejected.
const APART_MAX_S: f64 = 10.0;
/// Most header lines of an answer.
const HEADERS_MAX: usize = 64;
/// Largest plausible latency or age; a larger value is not in seconds.
const SPAN_MAX_S: f64 = 1e6;
/// Largest plausible load.
const LOAD_MAX_PER_S: f64 = 1e12;

/// The Prometheus queries of an app.
#[derive(Debug, Clone)]
pub(crate) struct Queries {
    pub(crate) server: Server,
    pub(crate) access: Access,
    /// The tail, in seconds, at this percentile.
    pub(crate) tail: String,
    pub(crate) at: Percentile,
    /// Requests per second.
    pub(crate) load: Option<String>,
    /// The query for the seconds since the newest sample, and the most that are allowed.
    pub(crate) age: Option<(String, Nanos)>,
}

/// The purpose of a query, which its number in a reply identifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueryPurpose {
    Tail,
    Load,
    Age,
}

impl QueryPurpose {
    /// Checks a number that a front end has parsed, or says why there is none.
    pub(crate) fn reply(self, number: Gauge<Option<f64>>) -> Reply {
        match self {
            Self::Tail => Reply::Tail(number.and_then(|it| it.map(tail_of).transpose())),
            Self::Load => Reply::Load(number.and_then(|it| it.map(load_of).transpose())),
            Self::Age => Reply::Age(number.and_then(|it| it.map(age_of).transpose())),
        }
    }
}

fn tail_of(seconds: f64) -> Gauge<Nanos> {
    if seconds == f64::INFINITY {
        return Err(Missing::because("the tail is +Inf: it lies beyond the last bucket"));
    }
    nanos_of(seconds).ok_or_else(|| no_number(seconds, "latency in seconds"))
}

fn age_of(seconds: f64) -> Gauge<Nanos> {
    // The clock of the server may differ from that of the scraped target.
    nanos_of(seconds.max(0.0)).ok_or_else(|| no_number(seconds, "age in seconds"))
}

fn load_of(per_s: f64) -> Gauge<f64> {
    let is_load = (0.0..=LOAD_MAX_PER_S).contains(&per_s);
    if is_load { Ok(per_s) } else { Err(no_number(per_s, "number of requests per second")) }
}

fn nanos_of(seconds: f64) -> Option<Nanos> {
    let is_span = (0.0..=SPAN_MAX_S).contains(&seconds);
    is_span.then(|| Nanos((seconds * 1e9).round() as u64))
}

fn no_number(number: f64, what: &str) -> Missing {
    Missing::because(format!("`{number}` is not a {what}"))
}

/// Starts a thread that sends the queries once an epoch, until the receiver is dropped. Queries
/// with a subject are about the pod that it has at the time, and are sent as soon as it has one.
///
/// `parser` gets the address of the server for reasons, the purpose of a query, and the destination
/// of replies. It returns a function that has a reply of the given generation parsed, and that
/// returns `false` once no reply is needed any more.
pub(crate) fn follow<P>(
    queries: Queries,
    subject: Option<Subject>,
    epoch: Nanos,
    mut parser: impl FnMut(String, QueryPurpose, Sender<Answer>) -> P,
) -> Reported
where
    P: Fn(u64, Vec<u8>) -> bool + Send + 'static,
{
    let Queries { server, access, tail, at, load, age } = queries;
    let period = epoch.max(PERIOD_MIN);
    // Each query may take its time.
    let count = 1 + u64::from(load.is_some()) + u64::from(age.is_some());
    let patience = period * 2 + TIMEOUT * count;
    let age_max = age.as_ref().map(|(_, most)| *most);
    let generation =
        subject.as_ref().map_or_else(Generation::default, |subject| subject.generation().clone());
    let (sender, reported) = Reported::new(Expected { at, patience, age_max }, generation.clone());
    let age = age.map(|(query, _)| (QueryPurpose::Age, query));
    let load = load.map(|query| (QueryPurpose::Load, query));
    let all = age.into_iter().chain([(QueryPurpose::Tail, tail)]).chain(load);
    let base = server.base.clone();
    let all: Vec<(QueryPurpose, String, P)> = all
        .map(|(purpose, query)| (purpose, query, parser(base.clone(), purpose, sender.clone())))
        .collect();
    std::thread::spawn(move || {
        let mut client = Client::new(server, access);
        let about = |query: &str| match &subject {
            Some(subject) => subject.fill(query).ok_or_else(|| "no pod is this app".to_owned()),
            None => Ok(query.to_owned()),
        };
        loop {
            let begun = now();
            for (purpose, query, have_parsed) in &all {
                // A pod that is exchanged between this and the query makes the answer void.
                let generation = generation.get();
                let fetched = about(query).and_then(|query| {
                    client.fetch(&query).map_err(|error| format!("{base}: {error}"))
                });
                let is_needed = match fetched {
                    Ok(bytes) => have_parsed(generation, bytes),
                    Err(why) => {
                        let reply = purpose.reply(Err(Missing::because(why)));
                        sender.send(Answer { generation, received_at: now(), reply }).is_ok()
                    }
                };
                if !is_needed {
                    return;
                }
            }
            let taken = now().saturating_sub(begun);
            let left = period.saturating_sub(taken);
            match &subject {
                Some(subject) => subject.pause(left),
                None => std::thread::sleep(left.into()),
            }
        }
    });
    reported
}

/// Parses all that a server has sent: the number, `None` for NaN, the quantile of no request.
///
/// # Errors
/// If the answer has no number, with the reason.
pub fn parse(bytes: &[u8], now_unix_s: f64) -> Gauge<Option<f64>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let refuse = |why: String| Missing::because(why);
    let head = match response.parse(bytes) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) => return Err(refuse("the answer was cut short".to_owned())),
        Err(error) => return Err(refuse(format!("no answer by http ({error})"))),
    };
    let status = response.code.unwrap_or_default();
    let is_success = (200..300).contains(&status);
    let text = String::from_utf8_lossy(&bytes[head..]);
    match parse_reply(&text, now_unix_s) {
        // The server's own message explains more than the status code.
        Err(why) if !is_success => Err(refuse(format!("status {status}: {why}"))),
        Ok(_) if !is_success => Err(refuse(format!("status {status}"))),
        reply => reply,
    }
}

/// A response of the Prometheus API.
#[derive(Debug, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
enum Response {
    Success { data: Data },
    Error { error: String },
}

/// The result of a query, by its type.
#[derive(Debug, Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "snake_case")]
enum Data {
    Scalar(Sample),
    Vector(Vec<Series>),
    Matrix(serde::de::IgnoredAny),
    String(serde::de::IgnoredAny),
}

#[derive(Debug, Deserialize)]
struct Series {
    value: Sample,
}

/// Seconds since 1970, and the value as text.
#[derive(Debug, Deserialize)]
struct Sample(f64, String);

/// Parses the number from an answer's text; `None` for NaN, which is the quantile of no request.
fn parse_reply(text: &str, now_unix_s: f64) -> Gauge<Option<f64>> {
    let refuse = |why: String| Err(Missing::because(why));
    let read = serde_json::from_str(text);
    let data = match read {
        Ok(Response::Success { data }) => data,
        Ok(Response::Error { error }) => return refuse(error),
        Err(error) => return refuse(format!("no answer of a Prometheus ({error})")),
    };
    let Sample(time_s, value) = match data {
        Data::Scalar(sample) => sample,
        Data::Vector(mut all) if all.len() == 1 => all.remove(0).value,
        Data::Vector(all) if all.is_empty() => {
            return refuse("the query finds nothing: is the app scraped, and up?".to_owned());
        }
        Data::Vector(all) => {
            let count = all.len();
            return refuse(format!(
                "the query finds {count} series: make one of them, or pick one"
            ));
        }
        Data::Matrix(_) | Data::String(_) => {
            return refuse("the query's result is not a number".to_owned());
        }
    };
    let age_s = now_unix_s - time_s;
    if age_s.abs() > APART_MAX_S {
        return refuse(format!("the answer is {age_s:.0} s old: is its clock right?"));
    }
    match value.parse::<f64>() {
        Ok(number) if number.is_nan() => Ok(None),
        Ok(number) => Ok(Some(number)),
        Err(_) => refuse(format!("`{value}` is not a number")),
    }
}

#[cfg(test)]
mod tests;
