//! A request rate, as written on a command line or in a config.

use super::schedule::{Schedule, ScheduleError};
use super::trace::{self, Steps, TraceError};
use lull_measure::Nanos;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// How many requests are due, over time.
///
/// As text: `2000/s`, `90/min`, `burst:HIGH,LOW,CYCLE` with rates per second
/// (`burst:12000,4000,2s`), `burst:HIGH,LOW,CYCLE,SHARE` where the high part is
/// another share of the cycle than a half, `trace:FILE` or `trace:FILE,linear`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Rate {
    /// The same all the time.
    Constant {
        /// Requests per second.
        per_s: f64,
    },
    /// High and low in turn, beginning high.
    Burst {
        /// Requests per second while high.
        high_per_s: f64,
        /// Requests per second while low.
        low_per_s: f64,
        /// High and low together.
        cycle: Nanos,
        /// The share of the cycle that is high.
        high_share: f64,
    },
    /// Rates from a CSV file of `time_s,rate_per_s`.
    Trace {
        /// The file.
        file: PathBuf,
        /// Whether rates hold or change evenly between rows.
        steps: Steps,
    },
}

/// Why a text is not a rate, or a rate cannot be a schedule.
#[derive(Debug, thiserror::Error)]
pub enum RateError {
    /// The text has none of the known forms.
    #[error("`{text}` is not a rate: {problem}")]
    Text {
        /// The text as written.
        text: String,
        /// The error and the correction.
        problem: &'static str,
    },
    /// The numbers make no schedule.
    #[error("rate `{text}`: {source}")]
    Schedule {
        /// The text as written.
        text: String,
        /// The fault.
        source: ScheduleError,
    },
    /// The trace cannot be used.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl Rate {
    /// The same rate all the time.
    pub const fn constant(per_s: f64) -> Self {
        Self::Constant { per_s }
    }

    /// The rate for every instant; reads the file of a trace.
    ///
    /// # Errors
    /// If numbers are out of range or the trace cannot be read; the message
    /// names file and line.
    pub fn schedule(&self) -> Result<Schedule, RateError> {
        let made = match self {
            Self::Constant { per_s } => Schedule::constant(*per_s),
            Self::Burst { high_per_s, low_per_s, cycle, high_share } => {
                let cycle_s = cycle.as_secs_f64();
                let high_s = cycle_s * high_share;
                Schedule::burst(*high_per_s, high_s, *low_per_s, cycle_s - high_s)
            }
            Self::Trace { file, steps } => return Ok(trace::read(file, *steps)?),
        };
        made.map_err(|source| RateError::Schedule { text: self.to_string(), source })
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let refuse = |problem| RateError::Text { text: text.to_owned(), problem };
        let read = match text.trim().split_once(':') {
            None => read_constant(text.trim()),
            Some(("burst", rest)) => read_burst(rest),
            Some(("trace", rest)) => read_trace(rest),
            Some(_) => Err("write 2000/s, burst:HIGH,LOW,CYCLE or trace:FILE"),
        };
        let rate = read.map_err(refuse)?;
        if !matches!(rate, Self::Trace { .. }) {
            rate.schedule()?;
        }
        Ok(rate)
    }
}

fn read_constant(text: &str) -> Result<Rate, &'static str> {
    let wrong = "write a number per second or minute, such as 2000/s";
    let (number, unit) = text.split_once('/').ok_or(wrong)?;
    let seconds = match unit.trim() {
        "s" => 1.0,
        "min" => 60.0,
        _ => return Err(wrong),
    };
    let number: f64 = number.trim().parse().map_err(|_| wrong)?;
    Ok(Rate::Constant { per_s: number / seconds })
}

fn read_burst(text: &str) -> Result<Rate, &'static str> {
    let wrong = "write burst:HIGH,LOW,CYCLE with rates per second, such as burst:12000,4000,2s";
    let parts: Vec<_> = text.split(',').map(str::trim).collect();
    let (high, low, cycle, share) = match parts[..] {
        [high, low, cycle] => (high, low, cycle, "0.5"),
        [high, low, cycle, share] => (high, low, cycle, share),
        _ => return Err(wrong),
    };
    let rate =
        |text: &str| text.strip_suffix("/s").unwrap_or(text).trim().parse().map_err(|_| wrong);
    let high_share: f64 = share.parse().map_err(|_| wrong)?;
    if !(high_share > 0.0 && high_share < 1.0) {
        return Err("the share of the cycle that is high must lie between 0 and 1");
    }
    let cycle: Nanos = cycle.parse().map_err(|_| "the cycle needs a unit, such as 2s")?;
    Ok(Rate::Burst { high_per_s: rate(high)?, low_per_s: rate(low)?, cycle, high_share })
}

fn read_trace(text: &str) -> Result<Rate, &'static str> {
    let (file, steps) = match text.rsplit_once(',') {
        Some((file, "linear")) => (file, Steps::Linear),
        Some((file, "step")) => (file, Steps::Hold),
        _ => (text, Steps::Hold),
    };
    if file.is_empty() {
        return Err("write the file, such as trace:rates.csv");
    }
    Ok(Rate::Trace { file: file.into(), steps })
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant { per_s } => write!(f, "{per_s}/s"),
            Self::Burst { high_per_s, low_per_s, cycle, high_share } => {
                write!(f, "burst:{high_per_s},{low_per_s},{cycle}")?;
                if *high_share == 0.5 { Ok(()) } else { write!(f, ",{high_share}") }
            }
            Self::Trace { file, steps: Steps::Hold } => write!(f, "trace:{}", file.display()),
            Self::Trace { file, steps: Steps::Linear } => {
                write!(f, "trace:{},linear", file.display())
            }
        }
    }
}

lull_measure::convert_as_text!(Rate);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_prints_as_it_is_read() {
        let texts = [
            "2000/s",
            "0.5/s",
            "burst:12000,4000,2s",
            "burst:300,0,500ms,0.2",
            "trace:a,b.csv",
            "trace:rates.csv,linear",
        ];
        for text in texts {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_rate_per_minute_is_a_rate_per_second() {
        assert_eq!("90/min".parse::<Rate>().unwrap(), Rate::constant(1.5));
    }

    #[test]
    fn nonsense_is_refused_with_what_to_write_instead() {
        let cases = [
            ("2000", "2000/s"),
            ("2000ms", "2000/s"),
            ("2000/h", "2000/s"),
            ("many/s", "2000/s"),
            ("0/s", "no request"),
            ("-5/s", "between 0 and"),
            ("nan/s", "between 0 and"),
            ("burst:1,2", "burst:HIGH"),
            ("burst:1,2,3", "needs a unit"),
            ("burst:1,2,0s", "times must be"),
            ("burst:1,x,3s", "burst:HIGH"),
            ("burst:1,2,3s,1", "share of the cycle"),
            ("trace:", "trace:rates.csv"),
            ("ramp:1", "trace:FILE"),
        ];
        for (text, wanted) in cases {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
