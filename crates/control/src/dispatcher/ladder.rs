//! Core types from slow to fast.

use lull_measure::Watts;
use serde::{Deserialize, Serialize};

/// One core type, or one level of a core that scales: the paper treats both
/// alike (EETL, Haque et al., MICRO-50, section 4).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreSpeed {
    /// A name for people: `slow`, `medium+`.
    pub name: String,
    /// Speed relative to the slowest core of the scenario.
    pub speed: f64,
    /// Power of a busy core beyond its idle power; where powers are relative the slow core's is 1
    /// W.
    pub watts: Watts,
}

/// How cores come by their types.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Supply {
    /// This many cores of each type (AMP): a request migrates to be faster.
    Fixed(Vec<u32>),
    /// This many cores, each of which can take every type (per-core DVFS).
    Any(u32),
}

/// The core types of a machine from slow to fast, and its cores.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ladder {
    types: Vec<CoreSpeed>,
    supply: Supply,
}

/// Core types that do not form a ladder.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LadderError {
    /// There is no type.
    #[error("there are no core types: give at least one with its speed and power")]
    Empty,
    /// Speed or power is not a positive number.
    #[error("core type `{name}`: {what} is {value}, must be above 0")]
    Value {
        /// The type.
        name: String,
        /// The figure.
        what: &'static str,
        /// The value.
        value: f64,
    },
    /// A faster type that is not the dearer one, or types out of order.
    #[error(
        "core types must go from slow to fast in speed and in power: {what} of `{first}` is \
         {low}, of `{second}` after it {high}; {advice}"
    )]
    Order {
        /// The figure.
        what: &'static str,
        /// The earlier type.
        first: String,
        /// Its value.
        low: f64,
        /// The later type.
        second: String,
        /// Its value.
        high: f64,
        /// The correction.
        advice: &'static str,
    },
    /// The numbers of cores do not match the types.
    #[error("{found} numbers of cores for {types} core types: give one number for each type")]
    Cores {
        /// Numbers given.
        found: usize,
        /// Types given.
        types: usize,
    },
    /// No core at all.
    #[error("there is no core: no request would ever run")]
    NoCore,
}

impl CoreSpeed {
    /// A type of this speed and power.
    pub fn new(name: &str, speed: f64, watts: f64) -> Self {
        Self { name: name.to_owned(), speed, watts: Watts(watts) }
    }
}

impl Ladder {
    /// Checks types and numbers of cores.
    ///
    /// # Errors
    /// If types are not ordered by speed and power, or there is no core.
    pub fn new(types: Vec<CoreSpeed>, supply: Supply) -> Result<Self, LadderError> {
        if types.is_empty() {
            return Err(LadderError::Empty);
        }
        for one in &types {
            for (what, value) in [("speed", one.speed), ("power", one.watts.0)] {
                if !(value > 0.0 && value.is_finite()) {
                    return Err(LadderError::Value { name: one.name.clone(), what, value });
                }
            }
        }
        for pair in types.windows(2) {
            ordered(&pair[0], &pair[1])?;
        }
        let cores = match &supply {
            Supply::Fixed(cores) if cores.len() != types.len() => {
                return Err(LadderError::Cores { found: cores.len(), types: types.len() });
            }
            Supply::Fixed(cores) => cores.iter().sum(),
            Supply::Any(cores) => *cores,
        };
        if cores == 0 {
            return Err(LadderError::NoCore);
        }
        Ok(Self { types, supply })
    }

    /// The types, slowest first.
    pub fn types(&self) -> &[CoreSpeed] {
        &self.types
    }

    /// How cores come by their types.
    pub fn supply(&self) -> &Supply {
        &self.supply
    }

    /// Index of the fastest type that has a core.
    pub fn fastest(&self) -> usize {
        (0..self.types.len()).rev().find(|kind| self.cores(*kind) > 0).unwrap_or(0)
    }

    /// Whether every core can take every type.
    pub fn scales(&self) -> bool {
        matches!(self.supply, Supply::Any(_))
    }

    /// Cores that can be of this type.
    pub fn cores(&self, kind: usize) -> usize {
        match &self.supply {
            Supply::Fixed(cores) => cores[kind] as usize,
            Supply::Any(cores) => *cores as usize,
        }
    }

    /// Cores in all.
    pub fn all_cores(&self) -> usize {
        match &self.supply {
            Supply::Fixed(cores) => cores.iter().map(|cores| *cores as usize).sum(),
            Supply::Any(cores) => *cores as usize,
        }
    }

    /// Cores of faster types than this one; where cores scale, none are.
    pub fn cores_above(&self, kind: usize) -> usize {
        match &self.supply {
            Supply::Fixed(cores) => cores[kind + 1..].iter().map(|cores| *cores as usize).sum(),
            Supply::Any(_) => 0,
        }
    }

    /// Energy of a unit of work (a second on a core of speed 1), in joules.
    pub fn joules_per_work_s(&self, kind: usize) -> f64 {
        self.types[kind].watts.0 / self.types[kind].speed
    }
}

fn ordered(first: &CoreSpeed, second: &CoreSpeed) -> Result<(), LadderError> {
    let figures = [
        ("speed", first.speed, second.speed, "list them from slow to fast"),
        (
            "power",
            first.watts.0,
            second.watts.0,
            "a slower type that takes no less is of no use: leave it out",
        ),
    ];
    for (what, low, high, advice) in figures {
        if low >= high {
            let (first, second) = (first.name.clone(), second.name.clone());
            return Err(LadderError::Order { what, first, low, second, high, advice });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(values: &[(f64, f64)]) -> Vec<CoreSpeed> {
        let name = |index: usize| format!("t{index}");
        let one = |(index, (speed, watts)): (usize, &(f64, f64))| {
            CoreSpeed::new(&name(index), *speed, *watts)
        };
        values.iter().enumerate().map(one).collect()
    }

    #[test]
    fn the_cores_of_the_papers_machine_are_counted() {
        let amp = Ladder::new(types(&[(1.0, 1.0), (2.0, 6.8)]), Supply::Fixed(vec![13, 2]));
        let amp = amp.unwrap();
        assert_eq!(
            (amp.all_cores(), amp.cores(0), amp.cores_above(0), amp.fastest()),
            (15, 13, 2, 1)
        );
        let dvfs = Ladder::new(types(&[(1.0, 1.7), (2.0, 6.8)]), Supply::Any(4)).unwrap();
        assert_eq!((dvfs.all_cores(), dvfs.cores(1), dvfs.cores_above(0)), (4, 4, 0));
        assert!((dvfs.joules_per_work_s(1) - 3.4).abs() < 1e-12);
    }

    #[test]
    fn types_out_of_order_are_refused_by_name_with_advice() {
        let refused = |values: &[(f64, f64)]| {
            Ladder::new(types(values), Supply::Any(1)).unwrap_err().to_string()
        };
        let text = refused(&[(2.0, 6.8), (1.0, 1.0)]);
        assert!(text.contains("speed of `t0` is 2") && text.contains("slow to fast"), "{text}");
        let text = refused(&[(1.0, 2.0), (2.0, 2.0)]);
        assert!(text.contains("power of `t0` is 2") && text.contains("leave it out"), "{text}");
        assert!(refused(&[(0.0, 2.0)]).contains("speed is 0"));
        assert!(refused(&[(1.0, f64::NAN)]).contains("power is NaN"));
        assert!(refused(&[]).contains("no core types"));
    }

    #[test]
    fn cores_must_go_with_types() {
        let two = || types(&[(1.0, 1.0), (2.0, 6.8)]);
        let wrong = Ladder::new(two(), Supply::Fixed(vec![13]));
        assert_eq!(wrong, Err(LadderError::Cores { found: 1, types: 2 }));
        assert_eq!(Ladder::new(two(), Supply::Fixed(vec![0, 0])), Err(LadderError::NoCore));
        let slow = Ladder::new(two(), Supply::Fixed(vec![3, 0])).unwrap();
        assert_eq!(slow.fastest(), 0, "a type without a core cannot be run on");
    }
}
