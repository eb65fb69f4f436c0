//! The messages between the agent and its front end: typed, bounded, and never a text to parse.

use crate::discovery::PodIdentity;
use crate::live::{Command, EpochSnapshot, Serve};
use crate::otlp::{OtlpSource, Protection};
use lull_host::sandbox::Gap;
use lull_measure::push::{LatencyWindow, Message, Progress};
use lull_measure::{Buckets, Nanos, RequestSample, SampledRequest};
use serde::{Deserialize, Serialize};

/// Most bytes of a message to the front end: an epoch of a few hundred apps.
pub(super) const TO_MAX: usize = 4 << 20;
/// Most bytes of a message from the front end: a window with every bucket of its histogram.
pub(super) const FROM_MAX: usize = 512 << 10;
/// Most bytes of a text from the front end.
pub(super) const TEXT_MAX: usize = 512;
/// Set in the number of a client that is a sender of OTLP, and not of a push client.
pub(super) const OTLP_CLIENT: u64 = 1 << 31;
/// Most buckets of a histogram: there are no more that differ.
const BUCKETS_MAX: usize = 32_768;

/// Messages from the agent to its front end. None is a command to access anything.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToFrontend {
    /// The first message.
    Begin {
        /// The agent's version, which must be the front end's.
        version: String,
        /// Names of the apps, whose places are their numbers.
        apps: Vec<String>,
        /// The series that apps read by OTLP.
        otlp: Vec<OtlpSource>,
        /// Host names under which the OTLP receiver may be requested.
        names: Vec<String>,
        /// The protection of the receiver.
        protection: Protection,
        /// Whether the thread that has started the front end lives as long as the agent.
        ends_with_thread: bool,
    },
    /// These are the apps from now on, by number; one that was removed has no name.
    Apps(Vec<String>),
    /// An app is this pod from now on, or none.
    Assign {
        /// The app's number.
        app: u16,
        /// The pod.
        pod: Option<PodIdentity>,
    },
    /// The receiver of OTLP is protected by this from now on.
    Protect(Protection),
    /// Serve the page.
    Serve(Box<Serve>),
    /// Serve these facts about the run, as JSON, from now on.
    Facts(String),
    /// Show an epoch.
    Epoch(Box<EpochSnapshot>),
    /// Close every connection of the page.
    EndPage,
    /// Read what push clients have sent, and answer with [`FromFrontend::Drained`].
    Drain(u32),
    /// Disconnect a push client, whose messages were refused.
    Disconnect(u64),
    /// Answer an order.
    Answer {
        /// Its number.
        order: u32,
        /// The result of the order, or the reason for its refusal.
        answer: Result<String, String>,
    },
    /// Parse what a Prometheus server replied to a query.
    Reply {
        /// The number of the query.
        query: u32,
        /// The generation of its app when it was sent.
        generation: u64,
        /// All that the server has sent.
        bytes: Vec<u8>,
    },
}

/// Messages from the front end to the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromFrontend {
    /// The front end is confined, except for these layers, and serves.
    Ready(Vec<Gap>),
    /// A push client's message.
    Pushed {
        /// The number of its connection.
        client: u64,
        /// Its process, if the kernel says.
        pid: Option<i32>,
        /// The message.
        report: Report,
    },
    /// An error of a push client.
    Notice(String),
    /// All messages that had arrived before a drain were sent.
    Drained(u32),
    /// An operator's order.
    Order {
        /// Numbers the orders.
        number: u32,
        /// The token that the operator presents.
        token: String,
        /// The order.
        order: Ordered,
    },
    /// The result of a query of a Prometheus server.
    Number {
        /// The number of the query.
        query: u32,
        /// The generation that the reply was sent with.
        generation: u64,
        /// `None` if there is none (NaN), or why it is not known.
        number: Result<Option<f64>, String>,
    },
}

/// [`Command`] in a form that has no field names.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ordered {
    Pause,
    Resume,
    Restore,
    Policy(String),
}

impl From<Command> for Ordered {
    fn from(command: Command) -> Self {
        match command {
            Command::Pause => Self::Pause,
            Command::Resume => Self::Resume,
            Command::Restore => Self::Restore,
            Command::Policy { name } => Self::Policy(name),
        }
    }
}

impl From<Ordered> for Command {
    fn from(order: Ordered) -> Self {
        match order {
            Ordered::Pause => Self::Pause,
            Ordered::Resume => Self::Resume,
            Ordered::Restore => Self::Restore,
            Ordered::Policy(name) => Self::Policy { name },
        }
    }
}

/// A push message in numbers. Instants and spans are nanoseconds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    Latency(Box<Window>),
    Progress { app: u16, unit: String, total: f64, time_ns: u64 },
}

/// The numbers of a [`LatencyWindow`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Window {
    app: u16,
    start_ns: u64,
    length_ns: u64,
    due: u64,
    sent: u64,
    completed: u64,
    errors: u64,
    outstanding: u64,
    oldest_ns: u64,
    lag_p99_ns: u64,
    /// Latencies with their counts; empty if there are buckets.
    histogram: Vec<(u64, u64)>,
    /// Lower bound, upper bound if there is one, and count of each bucket.
    buckets: Vec<(u64, Option<u64>, u64)>,
    /// The requests of a sample, and the number of requests for each of them.
    sample: Option<(u64, Vec<RequestTimes>)>,
}

/// When a request was due, how long it waited, and its latency.
type RequestTimes = (u64, u64, u64);

impl Report {
    /// A message of the app with this number.
    pub(super) fn new(app: u16, message: &Message) -> Self {
        match message {
            Message::Latency(window) => Self::Latency(Box::new(Window::new(app, window))),
            Message::Progress(Progress { unit, total, time_ns, .. }) => {
                Self::Progress { app, unit: unit.clone(), total: *total, time_ns: time_ns.0 }
            }
        }
    }

    /// The message, if the app exists and every value is in its range.
    pub(super) fn check(self, apps: &[String]) -> Result<Message, String> {
        let number = match &self {
            Self::Latency(window) => window.app,
            Self::Progress { app, .. } => *app,
        };
        let name = apps.get(usize::from(number));
        let name = name.ok_or_else(|| format!("no app has number {number}"))?;
        let message = match self {
            Self::Latency(window) => Message::Latency(Box::new(window.into_message(name)?)),
            Self::Progress { unit, total, time_ns, .. } => {
                let (app, time_ns) = (name.clone(), Nanos(time_ns));
                Message::Progress(Progress { app, unit, total, time_ns })
            }
        };
        message.check().map_err(|error| error.to_string())?;
        Ok(message)
    }
}

impl Window {
    fn new(app: u16, window: &LatencyWindow) -> Self {
        let request = |one: &SampledRequest| (one.due_ns.0, one.wait_ns.0, one.latency_ns.0);
        let sample = window.sample.as_ref();
        let has_buckets = !window.buckets.is_empty();
        let each = window.histogram.buckets().filter(|_| !has_buckets);
        Self {
            app,
            start_ns: window.start_ns.0,
            length_ns: window.length_ns.0,
            due: window.due,
            sent: window.sent,
            completed: window.completed,
            errors: window.errors,
            outstanding: window.outstanding,
            oldest_ns: window.oldest_ns.0,
            lag_p99_ns: window.lag_p99_ns.0,
            histogram: each.map(|(at, count)| (at.0, count)).collect(),
            buckets: window.buckets.iter().map(bucket_in_numbers).collect(),
            sample: sample.map(|all| (all.one_in, all.requests.iter().map(request).collect())),
        }
    }

    fn into_message(self, app: &str) -> Result<LatencyWindow, String> {
        if self.histogram.len() > BUCKETS_MAX {
            return Err(format!("a histogram of {} buckets", self.histogram.len()));
        }
        if self.buckets.len() > BUCKETS_MAX {
            return Err(format!("a histogram of {} buckets", self.buckets.len()));
        }
        if !self.histogram.is_empty() && !self.buckets.is_empty() {
            return Err("its latencies are sent twice, by value and in buckets".to_owned());
        }
        let mut buckets = Buckets::default();
        for (low, high, count) in self.buckets {
            buckets.add(Nanos(low), high.map(Nanos), count);
        }
        let mut histogram = buckets.to_latency();
        for (at, count) in self.histogram {
            histogram.record_many(Nanos(at), count);
        }
        let request = |(due, wait, latency)| SampledRequest {
            due_ns: Nanos(due),
            wait_ns: Nanos(wait),
            latency_ns: Nanos(latency),
        };
        let sample = self.sample.map(|(one_in, all)| RequestSample {
            one_in,
            requests: all.into_iter().map(request).collect(),
        });
        Ok(LatencyWindow {
            app: app.to_owned(),
            start_ns: Nanos(self.start_ns),
            length_ns: Nanos(self.length_ns),
            due: self.due,
            sent: self.sent,
            completed: self.completed,
            errors: self.errors,
            outstanding: self.outstanding,
            oldest_ns: Nanos(self.oldest_ns),
            lag_p99_ns: Nanos(self.lag_p99_ns),
            histogram,
            sample,
            buckets,
        })
    }
}

/// A bucket in numbers: nanoseconds, and the count.
fn bucket_in_numbers((low, high, count): (Nanos, Option<Nanos>, u64)) -> (u64, Option<u64>, u64) {
    (low.0, high.map(|high| high.0), count)
}

/// Shortens a text from the front end to [`TEXT_MAX`] bytes.
pub(super) fn shorten(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(TEXT_MAX));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_measure::push::COUNT_MAX;

    fn window() -> LatencyWindow {
        let request = SampledRequest { due_ns: Nanos(7), ..SampledRequest::default() };
        LatencyWindow {
            app: "b".to_owned(),
            start_ns: Nanos::from_secs(1),
            length_ns: Nanos::from_millis(100),
            due: 12,
            histogram: (1..4_000).map(|at| Nanos(at * at * 977)).collect(),
            sample: Some(RequestSample { one_in: 4, requests: vec![request; 3] }),
            ..LatencyWindow::default()
        }
    }

    fn sent(report: &Report) -> Report {
        postcard::from_bytes(&postcard::to_allocvec(report).unwrap()).unwrap()
    }

    #[test]
    fn a_window_is_the_same_on_the_other_side() {
        let apps = ["a", "b"].map(str::to_owned);
        let before = Message::Latency(Box::new(window()));
        let Message::Latency(after) = sent(&Report::new(1, &before)).check(&apps).unwrap() else {
            panic!("read as another kind");
        };
        let before = window();
        assert!(after.histogram.buckets().eq(before.histogram.buckets()));
        assert_eq!(after.histogram.max(), before.histogram.max());
        let histogram = before.histogram.clone();
        assert_eq!(LatencyWindow { histogram, ..*after }, before);
    }

    #[test]
    fn what_a_decoder_would_refuse_is_refused_from_a_front_end_too() {
        let apps = ["a", "b"].map(str::to_owned);
        let with = |change: fn(&mut Window)| {
            let mut window = Window::new(1, &window());
            change(&mut window);
            sent(&Report::Latency(Box::new(window))).check(&apps).unwrap_err()
        };
        assert!(with(|window| window.app = 2).contains("no app has number 2"));
        assert!(with(|window| window.due = COUNT_MAX + 1).contains("due"));
        assert!(with(|window| window.length_ns = 0).contains("length_ns"));
        assert!(with(|window| window.histogram.push((5, u64::MAX))).contains("histogram"));
        assert!(with(|window| window.histogram = vec![(5, 1); 40_000]).contains("40000 buckets"));
        assert!(with(|window| window.buckets = vec![(5, None, 1)]).contains("sent twice"));
        assert!(with(|window| window.sample = Some((1 << 63, vec![]))).contains("sample"));
        let progress = |total, unit: &str| {
            let unit = unit.to_owned();
            Report::Progress { app: 0, unit, total, time_ns: 7 }.check(&apps)
        };
        assert!(progress(1.0, "paths").is_ok());
        assert!(progress(f64::NAN, "paths").is_err() && progress(1.0, &"u".repeat(200)).is_err());
    }

    /// Bytes of a front end that was taken over: those of a message, with some changed.
    #[test]
    fn any_bytes_are_a_checked_message_or_an_error() {
        let apps = ["a", "b"].map(str::to_owned);
        let report = Report::new(1, &Message::Latency(Box::new(window())));
        let whole = FromFrontend::Pushed { client: 7, pid: Some(9), report };
        let whole = postcard::to_allocvec(&whole).unwrap();
        let mut state = 7_u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..3_000 {
            let end = if draw(2) == 0 { whole.len() } else { 1 + draw(whole.len()) };
            let mut bytes = whole[..end].to_vec();
            for _ in 0..draw(4) {
                let at = draw(bytes.len().min(60));
                bytes[at] = draw(256) as u8;
            }
            match postcard::from_bytes(&bytes) {
                Ok(FromFrontend::Pushed { report, .. }) => match report.check(&apps) {
                    Ok(message) => {
                        taken += 1;
                        assert!(message.check().is_ok() && message.app() == "b");
                    }
                    Err(_) => refused += 1,
                },
                Ok(_) | Err(_) => refused += 1,
            }
        }
        assert!(taken > 0 && refused > 0, "{taken} taken, {refused} refused");
    }

    #[test]
    fn texts_are_shortened_between_letters() {
        let text = shorten("ä".repeat(400));
        assert!(text.len() <= TEXT_MAX && text.chars().all(|letter| letter == 'ä'));
    }
}
