//! An app's tail latency, queried from a Prometheus server.
//!
//! A thread sends the query once an epoch and takes the bytes that come back; it does not look
//! into them. They are parsed in the front end ([`crate::frontend`]), whose results the control
//! loop takes without waiting. The result must be one number of seconds:
//! <https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries>.

use lull_host::gauges::reported::{Answer, Reported};
use lull_host::monotonic as now;
use lull_measure::{Gauge, Missing, Nanos, Percentile};
use serde::Deserialize;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// Longest wait for an answer.
const TIMEOUT: Nanos = Nanos::from_secs(1);
/// Shortest period of the queries.
const PERIOD_MIN: Nanos = Nanos::from_millis(200);
/// Largest difference between now and the time of an answer; beyond it the answer is rejected.
const APART_MAX_S: f64 = 10.0;
/// Longest answer that is read, in bytes.
const BYTES_MAX: usize = 64 * 1024;
/// Most header lines of an answer.
const HEADERS_MAX: usize = 64;
/// Largest plausible latency; a larger value is not in seconds.
const LATENCY_MAX_S: f64 = 1e6;

/// The address of a Prometheus server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    base: String,
}

impl Server {
    /// Parses `http://HOST:PORT`, with a path if it is served under one.
    pub fn parse(address: &str) -> Result<Self, String> {
        let refuse = |why: &str| Err(format!("`{address}` {why}"));
        let Some(rest) = address.strip_prefix("http://") else {
            return match address.starts_with("https://") {
                true => {
                    refuse("is encrypted (TLS), which is not supported yet: use a tunnel (ssh -L)")
                }
                false => refuse("is no address: write \"prometheus:http://127.0.0.1:9090\""),
            };
        };
        if rest.contains(['?', '#']) {
            return refuse("has a query: write it in `query`");
        }
        let is_odd = |letter: char| letter.is_whitespace() || letter.is_control();
        if rest.is_empty() || rest.starts_with(['/', ':']) || rest.contains(is_odd) {
            return refuse("names no host: write \"prometheus:http://127.0.0.1:9090\"");
        }
        Ok(Self { base: address.trim_end_matches('/').to_owned() })
    }

    /// Sends a query and returns all that comes back until the server closes.
    ///
    /// HTTP/1.0 has no transfer in pieces, and its answers end with the connection, so that
    /// nothing of them need be understood here.
    fn fetch(&self, query: &str) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + Duration::from(TIMEOUT);
        let left = || {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() { Err(io::Error::from(ErrorKind::TimedOut)) } else { Ok(left) }
        };
        let mut stream = self.connect(left)?;
        stream.set_write_timeout(Some(left()?))?;
        stream.write_all(self.request(query).as_bytes())?;
        let (mut all, mut part) = (Vec::new(), [0; 4096]);
        loop {
            stream.set_read_timeout(Some(left()?))?;
            match stream.read(&mut part) {
                Ok(0) => return Ok(all),
                Ok(count) => all.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A server may answer and keep the connection.
                Err(_) if !all.is_empty() => return Ok(all),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Err(ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
            if all.len() > BYTES_MAX {
                return Err(io::Error::other("the answer exceeds the limit of 64 KiB"));
            }
        }
    }

    fn connect(&self, left: impl Fn() -> io::Result<Duration>) -> io::Result<TcpStream> {
        let host = self.host();
        let has_port = host.rsplit(':').next().is_some_and(|port| port.parse::<u16>().is_ok());
        let host = if has_port { host.to_owned() } else { format!("{host}:80") };
        let mut failed = io::Error::other("the name has no address");
        for address in host.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, left()?) {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Host and port, if there is one.
    fn host(&self) -> &str {
        let rest = self.base.trim_start_matches("http://");
        rest.split_once('/').map_or(rest, |(host, _)| host)
    }

    fn request(&self, query: &str) -> String {
        let rest = self.base.trim_start_matches("http://");
        let path = rest.split_once('/').map_or(String::new(), |(_, path)| format!("/{path}"));
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        let encoded: String = query
            .bytes()
            .map(|byte| match is_plain(byte) {
                true => char::from(byte).to_string(),
                false => format!("%{byte:02X}"),
            })
            .collect();
        let host = self.host();
        format!(
            "GET {path}/api/v1/query?query={encoded} HTTP/1.0\r\nHost: {host}\r\n\
             Accept: application/json\r\nConnection: close\r\n\r\n"
        )
    }
}

/// Starts a thread that sends the query once an epoch, until the receiver is dropped.
///
/// `parser` gets the address of the server, for reasons, and where tails go, and returns what
/// has an answer parsed; that returns `false` once no tail is needed any more.
pub(crate) fn follow<P>(
    server: Server,
    query: String,
    at: Percentile,
    epoch: Nanos,
    parser: impl FnOnce(String, Sender<Answer>) -> P,
) -> Reported
where
    P: Fn(Vec<u8>) -> bool + Send + 'static,
{
    let period = epoch.max(PERIOD_MIN);
    let (sender, reported) = Reported::new(at, period * 2 + TIMEOUT);
    let have_parsed = parser(server.base.clone(), sender.clone());
    std::thread::spawn(move || {
        loop {
            let begun = now();
            let fetched = server.fetch(&query);
            let came = now();
            let is_needed = match fetched {
                Ok(bytes) => have_parsed(bytes),
                Err(error) => {
                    let tail = Err(Missing::because(format!("{}: {error}", server.base)));
                    sender.send(Answer { received_at: came, tail }).is_ok()
                }
            };
            if !is_needed {
                return;
            }
            std::thread::sleep(period.saturating_sub(came.saturating_sub(begun)).into());
        }
    });
    reported
}

/// Parses all that a server has sent: the tail, `None` for the quantile of no request.
pub(crate) fn parse(bytes: &[u8], now_unix_s: f64) -> Gauge<Option<Nanos>> {
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
enum Reply {
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

/// Parses the tail from an answer's text; `None` for NaN, which is the quantile of no request.
fn parse_reply(text: &str, now_unix_s: f64) -> Gauge<Option<Nanos>> {
    let refuse = |why: String| Err(Missing::because(why));
    let read = serde_json::from_str(text);
    let data = match read {
        Ok(Reply::Success { data }) => data,
        Ok(Reply::Error { error }) => return refuse(error),
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
            return refuse("the query's result is no number".to_owned());
        }
    };
    let age_s = now_unix_s - time_s;
    if age_s.abs() > APART_MAX_S {
        return refuse(format!("the answer is of {age_s:.0} s ago: is its clock right?"));
    }
    match value.parse::<f64>() {
        Ok(seconds) if seconds.is_nan() => Ok(None),
        Ok(seconds) if seconds.is_infinite() => {
            refuse(format!("the tail is {value}: it lies beyond the last bucket"))
        }
        Ok(seconds) if (0.0..=LATENCY_MAX_S).contains(&seconds) => {
            Ok(Some(Nanos((seconds * 1e9).round() as u64)))
        }
        _ => refuse(format!("`{value}` is no latency in seconds")),
    }
}

#[cfg(test)]
mod tests;
