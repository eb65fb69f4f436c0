//! The report of a load run.

use super::config::{ConfigError, LoadConfig};
use super::ledger::{ErrorCount, KindTotal, RunResult};
use crate::arrivals::{RateError, RecordingError};
use crate::summary::Summary;
use crate::target::{
    Address, Endpoint, ErrorCode, PreloadError, RequestKind, SetupError, TargetError,
};
use lull_measure::{Latency, Nanos};
use serde::Serialize;
use std::fmt;

/// Why a server could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A configuration value is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The rate is not valid.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// The recording cannot be used.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The target cannot be used.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Keys could not be stored ahead of the run.
    #[error(transparent)]
    Preload(#[from] PreloadError),
    /// The login or the tables of a database failed ahead of the run.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// No address of the host accepts a connection.
    #[error("cannot connect to {address}: {source}; is the server running and the address right?")]
    Unreachable {
        /// The target.
        address: Address,
        /// The system's error.
        source: std::io::Error,
    },
    /// The system refuses something.
    #[error("cannot {what}: {source}")]
    System {
        /// The attempted action.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
}

impl LoadError {
    /// Returns whether the values of the caller are wrong, rather than the server or the system.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Config(_) | Self::Rate(_) | Self::Recording(_) => true,
            Self::Target(error) => !matches!(error, TargetError::Resolve { .. }),
            Self::Preload(_) | Self::Setup(_) | Self::Unreachable { .. } | Self::System { .. } => {
                false
            }
        }
    }
}

/// One window of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WindowReport {
    /// Its start, `CLOCK_MONOTONIC`.
    pub start_ns: Nanos,
    /// Its length as it really was.
    pub length_seconds: f64,
    /// Whether the window began before the warm-up was over.
    pub warmup: bool,
    /// Requests whose intended send time lies in it.
    pub due_requests: u64,
    /// Requests written in it.
    pub sent_requests: u64,
    /// Requests answered in it.
    pub completed_requests: u64,
    /// Requests answered with an error or lost with their connection.
    pub failed_requests: u64,
    /// Requests that became too old.
    pub timed_out_requests: u64,
    /// Requests due and not finished at its end.
    pub outstanding_requests: u64,
    /// The age of the oldest of them.
    pub oldest_outstanding_seconds: f64,
    /// Latency from the intended send time to the last byte of the reply.
    pub latency: Summary,
    /// How late the client was.
    pub lag: Summary,
}

/// The messages that were pushed to the agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pushed {
    /// Messages handed to the agent's socket.
    pub sent_messages: u64,
    /// Messages dropped since the agent was away or slow.
    pub dropped_messages: u64,
}

/// The result of the reporter.
#[derive(Debug)]
pub(super) struct Windows {
    pub(super) reports: Vec<WindowReport>,
    pub(super) pushed: Option<Pushed>,
}

/// Errors of one code that the server reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServerErrors {
    /// The server's code: a SQLSTATE, MySQL's number, or the status of HTTP.
    pub code: String,
    /// `deadlock`, `serialization failure`, `lock time-out`, `open transaction` or `other`.
    pub kind: &'static str,
    /// Requests that ended with it.
    pub failed_requests: u64,
    /// Tries that ended with it and were repeated.
    pub retried_requests: u64,
    /// The server's message with the first of them.
    pub message: String,
}

/// Requests of one kind, where a load has several.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KindReport {
    /// The kind of the requests.
    pub kind: RequestKind,
    /// Requests answered.
    pub completed_requests: u64,
    /// Among them: the server had no such key.
    pub missed_requests: u64,
    /// From the intended send time to the last byte of the reply. Requests that timed out before
    /// they were sent are of no kind, and in the latencies of all only.
    pub latency: Summary,
}

/// A whole run, its warm-up left out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadReport {
    /// The server as it was named.
    pub target: String,
    /// The address that it was found at.
    pub server: Endpoint,
    /// The rate as it was named; `closed` for a closed loop, `replay:FILE` for a recording.
    pub rate: String,
    /// The arrival process as it was named, `recorded` for a recording; `None` for a closed loop,
    /// which has none.
    pub process: Option<String>,
    /// Threads that sent.
    pub threads: usize,
    /// Connections.
    pub connections: usize,
    /// Requests at most under way on each.
    pub depth: usize,
    /// Seed of arrivals and requests.
    pub seed: u64,
    /// Time over which requests fell due.
    pub measured_seconds: f64,
    /// Requests due, per second.
    pub offered_requests_per_second: f64,
    /// Requests answered, per second.
    pub completed_requests_per_second: f64,
    /// Requests due.
    pub due_requests: u64,
    /// Requests written to a connection.
    pub sent_requests: u64,
    /// Requests answered.
    pub completed_requests: u64,
    /// Among them: the server had no such key.
    pub missed_requests: u64,
    /// Requests answered with an error or lost with their connection.
    pub failed_requests: u64,
    /// Tries that a deadlock or serialization failure ended and that were repeated.
    pub retried_requests: u64,
    /// Sendings of requests that the server did not take, since it was about to close the
    /// connection; they were sent again.
    pub resent_requests: u64,
    /// Errors that a database or an HTTP server reported, by code.
    pub server_errors: Vec<ServerErrors>,
    /// Requests that became too old; they are in the latencies with their age.
    pub timed_out_requests: u64,
    /// Requests not finished when the run ended, warm-up included.
    pub outstanding_requests: u64,
    /// The age of the oldest of them.
    pub oldest_outstanding_seconds: f64,
    /// Connections lost or not made.
    pub connection_losses: u64,
    /// Cause of the last loss.
    pub last_connection_loss: Option<String>,
    /// Connections whose end the server had announced (GOAWAY, `Connection: close`) and that
    /// were opened again; they are not losses.
    pub announced_closes: u64,
    /// Handshakes of TLS that were completed, those before the run included.
    pub tls_handshakes: u64,
    /// Among them: the connection resumed the session of an earlier one.
    pub resumed_tls_handshakes: u64,
    /// Latency from the intended send time to the last byte of the reply.
    pub latency: Summary,
    /// Requests by kind; empty if all are of one.
    pub kinds: Vec<KindReport>,
    /// Of a closed loop: the latencies with those of the requests that each connection would
    /// have sent meanwhile at its mean rate (the correction of HdrHistogram).
    pub corrected: Option<Summary>,
    /// Latency from the write to the last byte of the reply.
    pub service: Summary,
    /// Time until a connection was free. Values up to 0.13 us, the histogram's first
    /// bucket, mean no wait.
    pub wait: Summary,
    /// How late the client itself was in sending.
    pub lag: Summary,
    /// Latencies in full: base64 of the HDR V2 format.
    pub histogram: String,
    /// Messages pushed to the agent; `None` without an agent.
    pub pushed: Option<Pushed>,
    /// Windows dropped because the reporter was too slow.
    pub dropped_windows: u64,
    /// Every window, warm-up included; the last 100,000 of them.
    #[serde(skip)]
    pub windows: Vec<WindowReport>,
    /// Latencies in full.
    #[serde(skip)]
    pub latencies: Latency,
}

impl LoadReport {
    pub(super) fn new(
        config: &LoadConfig,
        server: Endpoint,
        result: RunResult,
        windows: Windows,
    ) -> Self {
        let (counts, total) = (result.total.counts, result.total);
        let seconds = result.measured.as_secs_f64();
        let interval = seconds * config.connections as f64 / counts.completed.max(1) as f64;
        let corrected = config
            .is_closed()
            .then(|| Summary::from(&corrected(&total.latency, Nanos::from_secs_f64(interval))));
        let (rate, process) = match (&config.replay, &config.rate) {
            (Some(file), _) => (format!("replay:{}", file.display()), Some("recorded".to_owned())),
            (None, Some(rate)) => (rate.to_string(), Some(config.process.to_string())),
            (None, None) => ("closed".to_owned(), None),
        };
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        Self {
            target: config.target.address.to_string(),
            server,
            rate,
            process,
            threads: config.threads,
            connections: config.connections,
            depth: config.depth,
            seed: config.seed,
            measured_seconds: seconds,
            offered_requests_per_second: per_second(counts.due),
            completed_requests_per_second: per_second(counts.completed),
            due_requests: counts.due,
            sent_requests: counts.sent,
            completed_requests: counts.completed,
            missed_requests: counts.missed,
            failed_requests: counts.failed,
            retried_requests: counts.retried,
            resent_requests: counts.resent,
            server_errors: total.errors.into_iter().map(ServerErrors::from).collect(),
            timed_out_requests: counts.timed_out,
            outstanding_requests: result.outstanding,
            oldest_outstanding_seconds: result.oldest.as_secs_f64(),
            connection_losses: result.losses,
            last_connection_loss: result.last_loss,
            announced_closes: result.announced,
            tls_handshakes: result.handshakes.completed,
            resumed_tls_handshakes: result.handshakes.resumed,
            latency: (&total.latency).into(),
            kinds: total.kinds.into_iter().map(KindReport::from).collect(),
            corrected,
            service: (&total.service).into(),
            wait: (&total.wait).into(),
            lag: (&total.lag).into(),
            histogram: total.latency.to_base64(),
            pushed: windows.pushed,
            dropped_windows: result.dropped_windows,
            windows: windows.reports,
            latencies: total.latency,
        }
    }

    /// Returns whether requests were due and the server has replied to none in its protocol.
    /// An error without the loss of a connection is a reply.
    fn is_unanswered(&self) -> bool {
        self.due_requests > 0
            && self.completed_requests == 0
            && self.server_errors.is_empty()
            && (self.failed_requests == 0 || self.connection_losses > 0)
    }
}

/// The latencies with the requests that a closed loop did not send while it waited: for each
/// latency `L` also `L - interval`, `L - 2 interval`, ... down to `interval`, the expected time
/// between two requests of a connection.
///
/// Source: HdrHistogram, `copyCorrectedForCoordinatedOmission`.
fn corrected(latencies: &Latency, interval: Nanos) -> Latency {
    let mut all = latencies.clone();
    let interval = interval.max(Nanos::from_micros(1));
    for (latency, count) in latencies.buckets() {
        let mut missing = latency.saturating_sub(interval);
        while missing >= interval {
            all.record_many(missing, count);
            missing = missing.saturating_sub(interval);
        }
    }
    all
}

impl From<(RequestKind, KindTotal)> for KindReport {
    fn from((kind, total): (RequestKind, KindTotal)) -> Self {
        Self {
            kind,
            completed_requests: total.completed,
            missed_requests: total.missed,
            latency: (&total.latency).into(),
        }
    }
}

impl From<(ErrorCode, ErrorCount)> for ServerErrors {
    fn from((code, count): (ErrorCode, ErrorCount)) -> Self {
        Self {
            code: code.to_string(),
            kind: code.kind(),
            failed_requests: count.failed,
            retried_requests: count.retried,
            message: count.message,
        }
    }
}

impl LoadReport {
    /// Whether requests were outstanding at the end that would change the tail: one for a hundred
    /// that were answered, and older than the p99. A server that stops answering has such.
    fn lacks_late_requests(&self) -> bool {
        let age = self.oldest_outstanding_seconds;
        self.outstanding_requests > 0
            && self.outstanding_requests * 100 >= self.completed_requests
            && self.latency.p99_seconds.is_none_or(|p99| age > p99)
    }

    /// Writes a line for each kind of event that a sound run has none of, and one of handshakes.
    fn fmt_events(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in &self.server_errors {
            let ServerErrors { code, kind, failed_requests, retried_requests, message } = error;
            writeln!(
                f,
                "error {code} ({kind})  failed {failed_requests}  repeated {retried_requests}: \
                 {message}"
            )?;
        }
        if let Some(loss) = &self.last_connection_loss {
            writeln!(f, "lost connections {}, the last: {loss}", self.connection_losses)?;
        }
        if self.announced_closes > 0 {
            writeln!(
                f,
                "connections that the server closed as announced {}, requests sent again {}",
                self.announced_closes, self.resent_requests
            )?;
        }
        if self.tls_handshakes > 0 {
            let (all, resumed) = (self.tls_handshakes, self.resumed_tls_handshakes);
            writeln!(f, "TLS handshakes {all}, of which {resumed} resumed a session")?;
        }
        if self.is_unanswered() {
            writeln!(
                f,
                "no reply to any request: does another program listen at {}, or does the server \
                 hang? Check the protocol and the port of the target",
                self.server
            )?;
        }
        if self.lacks_late_requests() {
            writeln!(
                f,
                "{} requests were outstanding at the end, the oldest for {:.1}, and are in no \
                 latency: the percentiles are too low",
                self.outstanding_requests,
                Nanos::from_secs_f64(self.oldest_outstanding_seconds)
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for LoadReport {
    /// Writes a line of rates, a line of counts, then one line for each distribution.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = match &self.process {
            Some(process) => format!("{process} {}", self.rate),
            None => "closed loop".to_owned(),
        };
        writeln!(
            f,
            "{}  {load}  {:.1} s: {:.0} requests/s due, {:.0} answered",
            self.target,
            self.measured_seconds,
            self.offered_requests_per_second,
            self.completed_requests_per_second
        )?;
        writeln!(
            f,
            "requests  due {}  answered {}  missed {}  failed {}  timed out {}  outstanding {}",
            self.due_requests,
            self.completed_requests,
            self.missed_requests,
            self.failed_requests,
            self.timed_out_requests,
            self.outstanding_requests
        )?;
        self.fmt_events(f)?;
        writeln!(f, "latency  {}", self.latency)?;
        for KindReport { kind, completed_requests, missed_requests, latency } in &self.kinds {
            writeln!(
                f,
                "  {kind}    {latency}  ({completed_requests} answered, {missed_requests} missed)"
            )?;
        }
        if let Some(corrected) = &self.corrected {
            writeln!(f, "corrected {corrected}")?;
        }
        writeln!(f, "service  {}", self.service)?;
        writeln!(f, "wait     {}", self.wait)?;
        write!(f, "lag      {}", self.lag)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::{Counts, Handshakes, Total};
    use super::*;
    use crate::arrivals::Rate;

    fn report(config: &LoadConfig, counts: Counts, losses: u64) -> LoadReport {
        let server = Endpoint::Unix("/server".into());
        let result = RunResult {
            total: Total { counts, ..Total::default() },
            measured: Nanos::from_secs(1),
            outstanding: 0,
            oldest: Nanos::ZERO,
            losses,
            last_loss: None,
            announced: 0,
            handshakes: Handshakes::default(),
            dropped_windows: 0,
        };
        LoadReport::new(config, server, result, Windows { reports: Vec::new(), pushed: None })
    }

    #[test]
    fn a_closed_loop_has_no_arrival_process() {
        let mut config = LoadConfig::closed("http://localhost/".parse().unwrap());
        let closed = report(&config, Counts::default(), 0);
        assert_eq!((closed.process.as_deref(), closed.rate.as_str()), (None, "closed"));
        let text = closed.to_string();
        assert!(text.contains("closed loop") && !text.contains("poisson"), "{text}");
        config.rate = Some(Rate::constant(10.0));
        let text = report(&config, Counts::default(), 0).to_string();
        assert!(text.contains("poisson 10"), "{text}");
    }

    #[test]
    fn a_server_without_a_reply_comes_with_what_to_check() {
        let config = LoadConfig::closed("http://localhost/".parse().unwrap());
        let hint = "no reply to any request: does another program listen at /server";
        let cases = [
            (Counts { due: 5, ..Counts::default() }, 0, true),
            (Counts { due: 5, failed: 5, ..Counts::default() }, 5, true),
            // Pages that are missing, and a server that answers at times.
            (Counts { due: 5, failed: 5, ..Counts::default() }, 0, false),
            (Counts { due: 5, failed: 4, completed: 1, ..Counts::default() }, 4, false),
            (Counts::default(), 0, false),
        ];
        for (counts, losses, is_hinted) in cases {
            let text = report(&config, counts, losses).to_string();
            assert_eq!(text.contains(hint), is_hinted, "{text}");
        }
    }

    #[test]
    fn requests_that_a_stopped_server_owes_are_reported_as_in_no_latency() {
        let config = LoadConfig::closed("http://localhost/".parse().unwrap());
        let with = |outstanding_requests| LoadReport {
            completed_requests: 177,
            outstanding_requests,
            oldest_outstanding_seconds: 2.5,
            ..report(&config, Counts::default(), 0)
        };
        let text = with(259).to_string();
        let words = "259 requests were outstanding at the end, the oldest for 2.5s";
        assert!(text.contains(words) && text.contains("too low"), "{text}");
        for few in [0, 1] {
            assert!(!with(few).to_string().contains("too low"));
        }
    }

    #[test]
    fn ends_that_a_server_announced_are_reported_and_are_no_losses() {
        let config = LoadConfig::closed("http://localhost/".parse().unwrap());
        let counts = Counts { due: 5, completed: 5, resent: 2, ..Counts::default() };
        let quiet = report(&config, counts, 0);
        assert!(!quiet.to_string().contains("as announced"), "{quiet}");
        let ended = LoadReport { announced_closes: 1, ..quiet };
        let text = ended.to_string();
        assert!(text.contains("closed as announced 1, requests sent again 2"), "{text}");
        assert!(!text.contains("lost connections"), "{text}");
    }

    #[test]
    fn handshakes_are_added_up_and_reported_where_there_is_tls() {
        let config = LoadConfig::closed("http://localhost/".parse().unwrap());
        let clear = report(&config, Counts::default(), 0);
        assert!(!clear.to_string().contains("handshakes"), "{clear}");
        let each =
            [Handshakes { completed: 3, resumed: 2 }, Handshakes { completed: 1, resumed: 0 }];
        let all: Handshakes = each.into_iter().sum();
        let encrypted = LoadReport {
            tls_handshakes: all.completed,
            resumed_tls_handshakes: all.resumed,
            ..clear
        };
        let text = encrypted.to_string();
        assert!(text.contains("TLS handshakes 4, of which 2 resumed"), "{text}");
    }

    #[test]
    fn a_stall_of_a_closed_loop_is_charged_for_the_requests_that_it_prevented() {
        let mut latencies = Latency::default();
        latencies.record_many(Nanos::from_millis(1), 99);
        latencies.record(Nanos::from_millis(100));
        let all = corrected(&latencies, Nanos::from_millis(2));
        // 98, 96, ... 2 ms.
        assert_eq!(all.count(), 100 + 49);
        assert_eq!(all.count_above(Nanos::from_millis(51)), 25);
        assert_eq!(corrected(&latencies, Nanos::from_secs(1)).count(), 100);
    }
}
