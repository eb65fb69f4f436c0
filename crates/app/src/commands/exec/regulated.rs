//! A regulator at the gate of a live server: the code that the simulator runs.
//!
//! In mode epoll the gate is one whose workers rest: C and N are those of the
//! regulator, and so is D, but for the break-even, below which nobody rests. There
//! a worker's statistics begin when it has read its query, so that the wait for a
//! round is not in them: whoever compares latencies would take a gate that costs
//! up to D for one that costs nothing, and is refused.

use super::{BREAK_EVEN, UsageError};
use crate::cli::ExecArgs;
use crate::say;
use lull_control::regulator::{Admission, Answered, Pace, Regulator, Seen};
use lull_host::oncall::{Runtime, Statistics};
use lull_measure::{Missing, Nanos};
use lull_oncall::{CAP_MAX, Mode, Settings};
use lull_policies::regulators::{self, Site};
use std::time::{Duration, Instant};

/// Time between decisions of a regulator that goes by rounds: the library
/// does not tell when one ends.
const ROUND: Duration = Duration::from_millis(100);

/// What decides, and what it decided last.
pub(super) struct Regulated {
    name: String,
    regulator: Box<dyn Regulator>,
    statistics: Statistics,
    admission: Admission,
    /// The gate as it is when it is closed.
    closed: Settings,
    begun: Instant,
    next: Instant,
}

impl Regulated {
    /// The regulator that was asked for, if one was; the gate is open until it decides.
    ///
    /// # Errors
    /// No such regulator, a key at fault, or one that must know its connections
    /// beforehand; one that makes no sense in the mode of the closed gate.
    pub(super) fn of(
        args: &ExecArgs,
        runtime: &Runtime,
        closed: Settings,
    ) -> Result<Option<Self>, UsageError> {
        let Some(name) = &args.regulator else { return Ok(None) };
        // All connections are one to it; there are this many, for a search to end at.
        let objectives = [None; CAP_MAX as usize];
        let site = Site { objectives: &objectives, cores: cores() };
        let keys = table(&args.keys)?;
        let regulator = regulators::build(name, &keys, &site)
            .map_err(|error| UsageError(format!("--regulator {name}: {error}")))?;
        if let Some(reason) = unfit(name, closed.mode) {
            return Err(UsageError(format!("--regulator {name} in mode epoll: {reason}")));
        }
        Ok(Some(Self {
            name: name.clone(),
            regulator,
            statistics: runtime.statistics(),
            admission: Admission::open(objectives.len()),
            closed,
            begun: Instant::now(),
            next: Instant::now(),
        }))
    }

    /// Decides if it is time to; when it will be next.
    pub(super) fn attend(&mut self, runtime: &Runtime) -> Instant {
        if Instant::now() >= self.next {
            self.decide(runtime);
            self.next = Instant::now() + again(self.admission.pace);
        }
        self.next
    }

    fn decide(&mut self, runtime: &Runtime) {
        let now = Nanos(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let took = self.statistics.transactions();
        let answered: Vec<Answered> = took
            .buckets()
            .map(|(latency, queries)| Answered { connection: 0, latency, queries })
            .collect();
        let device = Err(Missing::because("the library sees no device"));
        let seen = Seen { now, answered: &answered, waiting: &[], device, round: None };
        self.regulator.decide(&seen, &mut self.admission);
        let settings = settings(&self.admission, &self.closed);
        if settings != runtime.settings() {
            runtime.set(&settings);
            say::told(format_args!("{}: {}", self.name, in_words(&settings)));
        }
    }
}

/// Why a regulator makes no sense at a gate of this mode; `None` if it does.
fn unfit(name: &str, mode: Mode) -> Option<&'static str> {
    match name {
        _ if mode != Mode::Epoll => None,
        "auto" => Some(
            "it compares latencies with those of the open gate, and the wait for a round is not \
             in them: leave out --mode, or take manual, gate-fifo, apples or reef",
        ),
        "open" => Some("it never closes the gate, so that no worker would rest"),
        _ => None,
    }
}

/// Settings of the gate for what a regulator wants.
fn settings(admission: &Admission, closed: &Settings) -> Settings {
    let (mode, pause) = match admission.pace {
        Pace::Open { .. } => (Mode::Stats, Nanos::ZERO),
        Pace::Flow { .. } => (closed.mode, Nanos::ZERO),
        Pace::Rounds { pause, .. } => (closed.mode, pause),
    };
    let pause = if mode == Mode::Epoll { pause.max(BREAK_EVEN) } else { pause };
    let batch = admission.allow.first().map_or(1, |allowance| allowance.batch);
    Settings {
        mode,
        cap: admission.cap.clamp(1, CAP_MAX),
        batch: batch.max(1),
        isr_delay_ns: pause.0,
        ..*closed
    }
}

/// Keys as a config would have them, each in its argument.
fn table(keys: &[String]) -> Result<toml::Table, UsageError> {
    let read = |key: &String| {
        let table: Result<toml::Table, _> = key.parse();
        table.map_err(|error| UsageError(format!("--key {key}: {}", error.message())))
    };
    let mut all = toml::Table::new();
    for key in keys {
        all.extend(read(key)?);
    }
    Ok(all)
}

fn in_words(settings: &Settings) -> String {
    match (settings.mode, settings.isr_delay_ns) {
        (Mode::Epoll, pause_ns) => {
            let (cap, pause) = (settings.cap, Nanos(pause_ns));
            format!("{cap} transactions at a time, called every {pause} at most")
        }
        (Mode::Post, 0) => format!("{} transactions at a time", settings.cap),
        (Mode::Post, pause_ns) => {
            let (cap, pause) = (settings.cap, Nanos(pause_ns));
            format!("{cap} transactions at a time, a pause of {pause} between rounds")
        }
        _ => "the gate is open".to_owned(),
    }
}

/// Time to the next decision; a gate without rounds that end has none of its own.
fn again(pace: Pace) -> Duration {
    match pace {
        Pace::Open { again } | Pace::Flow { again } => Duration::from_nanos(again.0),
        Pace::Rounds { .. } => ROUND,
    }
}

/// Cores that workers may use.
fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::regulator::Allowance;

    fn at(mode: Mode, pace: Pace, cap: u32) -> Settings {
        let admission = Admission { allow: vec![Allowance::turns_of(2)], cap, pace };
        settings(&admission, &Settings { mode, ..Settings::default() })
    }

    fn under(pace: Pace, cap: u32) -> Settings {
        at(Mode::Post, pace, cap)
    }

    #[test]
    fn workers_that_rest_are_never_called_sooner_than_it_pays() {
        let again = Nanos::from_millis(100);
        let flow = at(Mode::Epoll, Pace::Flow { again }, 4);
        assert_eq!((flow.mode, flow.cap, flow.batch), (Mode::Epoll, 4, 2));
        assert_eq!(flow.isr_delay_ns, BREAK_EVEN.0);
        let rounds = |pause| at(Mode::Epoll, Pace::Rounds { turns: 4, pause, every: None }, 4);
        assert_eq!(rounds(Nanos::from_micros(200)).isr_delay_ns, BREAK_EVEN.0);
        let long = rounds(Nanos::from_millis(3));
        assert_eq!((long.mode, long.isr_delay_ns), (Mode::Epoll, 3_000_000));
        assert!(in_words(&long).contains("every 3ms"), "{}", in_words(&long));
        assert_eq!(at(Mode::Epoll, Pace::Open { again }, 4).mode, Mode::Stats);
    }

    #[test]
    fn who_cannot_see_the_wait_for_a_round_is_kept_from_modes_that_have_one() {
        for entry in regulators::ALL {
            assert_eq!(unfit(entry.name, Mode::Post), None, "{}", entry.name);
            let is_unfit = unfit(entry.name, Mode::Epoll).is_some();
            assert_eq!(is_unfit, ["auto", "open"].contains(&entry.name), "{}", entry.name);
        }
    }

    #[test]
    fn what_a_regulator_wants_is_what_the_gate_is_told() {
        let again = Nanos::from_millis(100);
        assert_eq!(under(Pace::Open { again }, u32::MAX).mode, Mode::Stats);
        let flow = under(Pace::Flow { again }, 16);
        assert_eq!((flow.mode, flow.cap, flow.batch, flow.isr_delay_ns), (Mode::Post, 16, 2, 0));
        let pause = Nanos::from_millis(1);
        let rounds = under(Pace::Rounds { turns: 4, pause, every: None }, 4);
        assert_eq!((rounds.mode, rounds.cap, rounds.isr_delay_ns), (Mode::Post, 4, 1_000_000));
        assert_eq!(under(Pace::Flow { again }, u32::MAX).cap, CAP_MAX);
    }

    #[test]
    fn keys_are_those_of_a_config_and_a_slip_is_told_as_it_was_written() {
        let keys = ["goal=\"tail\"", "rounds=5"].map(str::to_owned);
        let table = table(&keys).unwrap();
        assert_eq!(table["rounds"].as_integer(), Some(5));
        assert_eq!(table["goal"].as_str(), Some("tail"));
        let error = super::table(&["goal=tail".to_owned()]).unwrap_err().0;
        assert!(error.starts_with("--key goal=tail: "), "{error}");
    }
}
