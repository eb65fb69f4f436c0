//! An app's tail latency, queried from a Prometheus server.
//!
//! A thread sends the query once an epoch and passes the answer on; the control loop never
//! waits for it. The answer must be one number of seconds:
//! <https://prometheus.io/docs/prometheus/latest/querying/api/#instant-queries>.

use lull_host::gauges::reported::{Answer, Reported};
use lull_host::monotonic as now;
use lull_measure::{Gauge, Missing, Nanos, Percentile};
use serde::Deserialize;
use std::time::{Duration, SystemTime};

/// Longest wait for an answer.
const TIMEOUT: Nanos = Nanos::from_secs(1);
/// Shortest period of the queries.
const PERIOD_MIN: Nanos = Nanos::from_millis(200);
/// Largest difference between now and the time of an answer; beyond it the answer is rejected.
const APART_MAX_S: f64 = 10.0;
/// Longest answer that is read, in bytes.
const BYTES_MAX: u64 = 64 * 1024;
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

    fn ask(&self, agent: &ureq::Agent, query: &str) -> Gauge<Option<Nanos>> {
        let failed = |why: String| Missing::because(format!("{}: {why}", self.base));
        let asked = agent.get(format!("{}/api/v1/query", self.base)).query("query", query).call();
        let mut answer = asked.map_err(|error| failed(error.to_string()))?;
        let status = answer.status();
        let text = answer.body_mut().with_config().limit(BYTES_MAX).read_to_string();
        let text = text.map_err(|error| failed(error.to_string()))?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let reply = parse_reply(&text, now.as_secs_f64());
        match reply {
            // The server's own message explains more than the status code.
            Err(why) if !status.is_success() => Err(failed(format!("status {status}: {why}"))),
            Ok(_) if !status.is_success() => Err(failed(format!("status {status}"))),
            reply => reply.map_err(|why| failed(why.to_string())),
        }
    }
}

/// Starts a thread that sends the query once an epoch, until the receiver is dropped.
pub(crate) fn follow(server: Server, query: String, at: Percentile, epoch: Nanos) -> Reported {
    let period = epoch.max(PERIOD_MIN);
    let (sender, reported) = Reported::new(at, period * 2 + TIMEOUT);
    let config = ureq::Agent::config_builder()
        .proxy(None)
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_global(Some(Duration::from(TIMEOUT)))
        .build();
    let agent = ureq::Agent::new_with_config(config);
    std::thread::spawn(move || {
        loop {
            let begun = now();
            let tail = server.ask(&agent, &query);
            let came = now();
            if sender.send(Answer { received_at: came, tail }).is_err() {
                return;
            }
            std::thread::sleep(period.saturating_sub(came.saturating_sub(begun)).into());
        }
    });
    reported
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
