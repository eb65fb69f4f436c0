//! The distribution of the gaps between requests, scaled to a mean of 1.

use crate::distribution::GeneralisedPareto;
use rand::{Rng, RngExt};
use rand_distr::Exp1;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How gaps between requests vary; scaled to a rate by [`super::Arrivals`].
///
/// As text: `poisson`, `constant`, `gpareto:SHAPE` or `gpareto:SHAPE,LOC`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Process {
    /// Exponential gaps: many independent users.
    #[default]
    Poisson,
    /// Equal gaps.
    Constant,
    /// Generalised Pareto gaps, heavier-tailed than exponential for shapes above 0.
    ///
    /// mutilate's inter-arrival time at Facebook has shape 0.154971 and loc 0.
    GeneralisedPareto {
        /// Shape `k`, above -1 and below 1.
        shape: f64,
        /// The least gap as a share of the mean gap, from 0 to below 1.
        loc: f64,
    },
}

/// Why a text does not name an arrival process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an arrival process: {problem}")]
pub struct ProcessError {
    text: String,
    problem: &'static str,
}

impl Process {
    /// Draws one gap of mean 1.
    pub(crate) fn gap<R: Rng + ?Sized>(self, rng: &mut R) -> f64 {
        match self {
            Self::Poisson => rng.sample(Exp1),
            Self::Constant => 1.0,
            Self::GeneralisedPareto { shape, loc } => {
                // mean = loc + scale/(1 - k) = 1
                let scale = (1.0 - loc) * (1.0 - shape);
                rng.sample(GeneralisedPareto { loc, scale, shape })
            }
        }
    }
}

impl FromStr for Process {
    type Err = ProcessError;

    fn from_str(text: &str) -> Result<Self, ProcessError> {
        let refuse = |problem| ProcessError { text: text.to_owned(), problem };
        let (kind, rest) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
        match (kind, rest) {
            ("poisson", "") => Ok(Self::Poisson),
            ("constant", "") => Ok(Self::Constant),
            ("gpareto", _) => read_pareto(rest).map_err(refuse),
            ("poisson" | "constant", _) => Err(refuse("it takes no parameters")),
            _ => Err(refuse("write poisson, constant or gpareto:SHAPE")),
        }
    }
}

fn read_pareto(text: &str) -> Result<Process, &'static str> {
    let (shape, loc) = text.split_once(',').unwrap_or((text, "0"));
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let shape = number(shape).ok_or("write its shape, such as gpareto:0.154971")?;
    let loc = number(loc).ok_or("write its least gap as a number, such as gpareto:0.15,0.2")?;
    if !(shape > -1.0 && shape < 1.0) {
        return Err("the shape must lie between -1 and 1, else there is no mean gap to set");
    }
    if !(0.0..1.0).contains(&loc) {
        return Err("the least gap is a share of the mean gap, from 0 to below 1");
    }
    Ok(Process::GeneralisedPareto { shape, loc })
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Poisson => f.write_str("poisson"),
            Self::Constant => f.write_str("constant"),
            Self::GeneralisedPareto { shape, loc: 0.0 } => write!(f, "gpareto:{shape}"),
            Self::GeneralisedPareto { shape, loc } => write!(f, "gpareto:{shape},{loc}"),
        }
    }
}

lull_measure::convert_as_text!(Process);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_prints_as_it_is_read() {
        for text in ["poisson", "constant", "gpareto:0.154971", "gpareto:-0.5", "gpareto:0.1,0.3"] {
            assert_eq!(text.parse::<Process>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_refused_with_what_to_write_instead() {
        let cases = [
            ("", "write poisson"),
            ("Poisson", "write poisson"),
            ("poisson:3", "no parameters"),
            ("gpareto", "gpareto:0.154971"),
            ("gpareto:x", "gpareto:0.154971"),
            ("gpareto:1", "no mean gap"),
            ("gpareto:nan", "no mean gap"),
            ("gpareto:0.1,1", "share of the mean gap"),
            ("gpareto:0.1,2ms", "as a number"),
        ];
        for (text, wanted) in cases {
            let error = text.parse::<Process>().unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
