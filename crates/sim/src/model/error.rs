//! Errors of a model, with the key.

/// A model that cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct ModelError {
    /// Path of the offending key, such as `tier[1].threads`.
    pub key: String,
    /// The problem.
    pub problem: Problem,
}

/// The ways in which a model can be wrong.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Problem {
    /// A size or time of zero where nothing would ever happen.
    #[error("must be at least 1: with {what} of 0 no request ever gets through")]
    Zero {
        /// The zero quantity.
        what: &'static str,
    },
    /// A number outside its range.
    #[error("is {value}, must be {wanted}")]
    Range {
        /// The number.
        value: f64,
        /// The range as text.
        wanted: &'static str,
    },
    /// Probabilities that do not sum to 1.
    #[error("probabilities sum to {sum}, must sum to 1")]
    Probabilities {
        /// Their sum.
        sum: f64,
    },
    /// A list of the wrong length.
    #[error("has {found} entries, must have {wanted}")]
    Length {
        /// Entries found.
        found: usize,
        /// Entries required.
        wanted: usize,
    },
    /// A name that nothing has.
    #[error("there is no {what} `{name}`; there are: {known}")]
    Unknown {
        /// Kind of thing.
        what: &'static str,
        /// The name.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// A name that two things have.
    #[error("the name `{name}` is taken by another entry")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A list is empty where an entry is needed.
    #[error("is empty: {wanted}")]
    Empty {
        /// The required form.
        wanted: &'static str,
    },
    /// Work outside any call.
    #[error("work needs a server: put it inside a `call`")]
    NoServer,
    /// A pool per server of a tier that the request has not called here.
    #[error("`{tier}` is not being called here: put this step inside (or after) a call of it")]
    NotCalled {
        /// The tier.
        tier: String,
    },
    /// More than the simulator can hold.
    #[error("{found} {what}, at most {most} fit")]
    TooMany {
        /// The things of which there are too many.
        what: &'static str,
        /// How many.
        found: u64,
        /// The bound.
        most: u64,
    },
    /// Core types that do not form a ladder.
    #[error("{0}")]
    Ladder(Box<lull_control::dispatcher::LadderError>),
    /// Two settings that do not go together.
    #[error("{0}")]
    Conflict(&'static str),
}

impl ModelError {
    /// Replaces the start of the key by that of a model that this one describes: the first of the
    /// pairs whose first half the key begins with.
    pub(crate) fn renamed(self, keys: &[(&str, &str)]) -> Self {
        let found = keys.iter().find_map(|(ours, theirs)| {
            self.key.strip_prefix(ours).map(|rest| format!("{theirs}{rest}"))
        });
        Self { key: found.unwrap_or(self.key), ..self }
    }
}

/// Result of a check.
pub(crate) type Checked = Result<(), ModelError>;

/// Fails a check of `key`.
pub(crate) fn fail(key: impl Into<String>, problem: Problem) -> Checked {
    Err(ModelError { key: key.into(), problem })
}

/// Fails a check of `key` because of what else the model says.
pub(crate) fn conflict(key: impl Into<String>, why: &'static str) -> Checked {
    fail(key, Problem::Conflict(why))
}

/// The same if something is wrong.
pub(crate) fn refuse_if(wrong: bool, key: impl Into<String>, why: &'static str) -> Checked {
    if wrong { conflict(key, why) } else { Ok(()) }
}

/// Fails unless `inside` holds and the value is finite. NaN fails every comparison and
/// therefore `inside`.
pub(crate) fn range(value: f64, inside: bool, wanted: &'static str, key: &str) -> Checked {
    if inside && value.is_finite() { Ok(()) } else { fail(key, Problem::Range { value, wanted }) }
}

/// Fails unless a number is above 0.
pub(crate) fn above_0(value: f64, key: &str) -> Checked {
    range(value, value > 0.0, "above 0", key)
}

/// Fails unless a number is 0 or more.
pub(crate) fn at_least_0(value: f64, key: &str) -> Checked {
    range(value, value >= 0.0, "0 or more", key)
}

/// Fails if there are none of `what`.
pub(crate) fn at_least_one(found: impl Into<u64>, what: &'static str, key: &str) -> Checked {
    if found.into() == 0 { fail(key, Problem::Zero { what }) } else { Ok(()) }
}

/// Fails if there are more than `most` of `what`.
pub(crate) fn at_most(found: u64, most: u64, what: &'static str, key: &str) -> Checked {
    if found > most { fail(key, Problem::TooMany { what, found, most }) } else { Ok(()) }
}
