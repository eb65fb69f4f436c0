//! What is wrong with a model, and where.

/// A model that cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct ModelError {
    /// Path of the offending key, such as `tier[1].threads`.
    pub key: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// The ways in which a model can be wrong.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Problem {
    /// A size or time of zero where nothing would ever happen.
    #[error("must be at least 1: with {what} of 0 no request ever gets through")]
    Zero {
        /// What was zero.
        what: &'static str,
    },
    /// A number outside its range.
    #[error("is {value}, must be {wanted}")]
    Range {
        /// The number.
        value: f64,
        /// The range, in words.
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
        /// Entries wanted.
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
    /// Nothing where something is needed.
    #[error("is empty: {wanted}")]
    Empty {
        /// What to write.
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
        /// What there are too many of.
        what: &'static str,
        /// How many.
        found: u64,
        /// The bound.
        most: u64,
    },
    /// Two settings that do not go together.
    #[error("{0}")]
    Conflict(&'static str),
}
