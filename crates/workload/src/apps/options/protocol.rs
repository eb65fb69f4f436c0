//! A request as a line of text.

use std::io::Write;
use std::str::{FromStr, SplitAsciiWhitespace};

/// Longest request line, newline included.
pub(crate) const MAX_LINE_BYTES: usize = 512;

/// An Asian call option on one underlying, and how closely to price it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AsianCall {
    /// Price of the underlying today, above 0.
    pub spot: f64,
    /// Strike, not negative.
    pub strike: f64,
    /// Risk-free rate per year, continuously compounded.
    pub rate: f64,
    /// Dividend yield per year, continuously compounded.
    pub dividend: f64,
    /// Volatility per square root of a year, not negative.
    pub volatility: f64,
    /// Years to maturity, above 0.
    pub years: f64,
    /// Steps that the mean is taken over, at least 1.
    pub steps: u32,
    /// Paths to simulate, at least 2.
    pub paths: u32,
    /// Seed of the random numbers: the same request has the same answer.
    pub seed: u64,
}

/// Why a line is not a request; its text is that of the `ERR` reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The line does not begin with `PRICE`.
    #[error("write PRICE s0 k r q sigma t m n seed")]
    Verb,
    /// Fewer or more than nine fields.
    #[error("PRICE takes 9 fields: s0 k r q sigma t m n seed")]
    Fields,
    /// A field is not the number it should be.
    #[error("{field} must be {wanted}")]
    Field {
        /// The field's name in the protocol.
        field: &'static str,
        /// The required form.
        wanted: &'static str,
    },
    /// More work than the server takes on.
    #[error("m * n = {steps} path steps are more than the {limit} accepted: request fewer paths")]
    TooMuch {
        /// Path steps of the request.
        steps: u64,
        /// Path steps allowed.
        limit: u64,
    },
}

impl AsianCall {
    /// Appends the request's line.
    pub fn write(&self, out: &mut Vec<u8>) {
        let Self { spot, strike, rate, dividend, volatility, years, steps, paths, seed } = self;
        writeln!(
            out,
            "PRICE {spot} {strike} {rate} {dividend} {volatility} {years} {steps} {paths} {seed}"
        )
        .expect("writing to memory cannot fail");
    }

    /// Returns the steps of all paths together: the work of the request.
    pub fn path_steps(&self) -> u64 {
        u64::from(self.steps) * u64::from(self.paths)
    }
}

impl FromStr for AsianCall {
    type Err = RequestError;

    fn from_str(line: &str) -> Result<Self, RequestError> {
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some("PRICE") {
            return Err(RequestError::Verb);
        }
        let mut fields = Fields(words);
        let call = Self {
            spot: fields.number("s0", "a number above 0, at most 1e9", |x| x > 0.0)?,
            strike: fields.number("k", "a number from 0 to 1e9", |x| x >= 0.0)?,
            rate: fields.number("r", "a number from -1 to 1", |x| x.abs() <= 1.0)?,
            dividend: fields.number("q", "a number from -1 to 1", |x| x.abs() <= 1.0)?,
            volatility: fields
                .number("sigma", "a number from 0 to 5", |x| (0.0..=5.0).contains(&x))?,
            years: fields.number("t", "years above 0, at most 100", |x| x > 0.0 && x <= 100.0)?,
            steps: fields.whole("m", "a whole number from 1", 1)?,
            paths: fields.whole("n", "a whole number from 2", 2)?,
            seed: fields.whole("seed", "a whole number", 0)?,
        };
        fields.0.next().is_none().then_some(call).ok_or(RequestError::Fields)
    }
}

/// The fields not read yet.
struct Fields<'a>(SplitAsciiWhitespace<'a>);

impl Fields<'_> {
    fn number(
        &mut self,
        field: &'static str,
        wanted: &'static str,
        legal: fn(f64) -> bool,
    ) -> Result<f64, RequestError> {
        let text = self.0.next().ok_or(RequestError::Fields)?;
        // No price of this world exceeds 1e9; the bound keeps all sums finite.
        let number = text.parse::<f64>().ok().filter(|x| x.abs() <= 1e9 && legal(*x));
        number.ok_or(RequestError::Field { field, wanted })
    }

    fn whole<T: FromStr + PartialOrd + Copy>(
        &mut self,
        field: &'static str,
        wanted: &'static str,
        least: T,
    ) -> Result<T, RequestError> {
        let text = self.0.next().ok_or(RequestError::Fields)?;
        let number = text.parse::<T>().ok().filter(|x| *x >= least);
        number.ok_or(RequestError::Field { field, wanted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_that_is_no_request_is_answered_with_what_is_wrong() {
        let cases = [
            ("", "write PRICE"),
            ("price 100", "write PRICE"),
            ("PRICE 100", "9 fields"),
            ("PRICE 100 100 0 0 .2 1 252 100 1 9", "9 fields"),
            ("PRICE 0 100 0 0 .2 1 252 100 1", "s0 must"),
            ("PRICE 1e300 100 0 0 .2 1 252 100 1", "s0 must"),
            ("PRICE 100 x 0 0 .2 1 252 100 1", "k must"),
            ("PRICE 100 100 0 0 -1 1 252 100 1", "sigma must"),
            ("PRICE 100 100 0 0 nan 1 252 100 1", "sigma must"),
            ("PRICE 100 100 0 0 .2 1 0 100 1", "m must"),
            ("PRICE 100 100 0 0 .2 1 252 1 1", "n must"),
            ("PRICE 100 100 0 0 .2 1 252 5000000000 1", "n must"),
            ("PRICE 100 100 0 0 .2 1 252 100 -1", "seed must"),
        ];
        for (line, wanted) in cases {
            let error = line.parse::<AsianCall>().unwrap_err().to_string();
            assert!(error.contains(wanted), "{line}: {error}");
        }
    }

    proptest! {
        #[test]
        fn writing_and_reading_keep_a_request(
            spot in 0.01f64..1e6, strike in 0.0f64..1e6, rate in -1.0f64..1.0,
            volatility in 0.0f64..5.0, years in 0.01f64..100.0,
            steps in 1u32.., paths in 2u32.., seed in any::<u64>(),
        ) {
            let dividend = -rate;
            let call =
                AsianCall { spot, strike, rate, dividend, volatility, years, steps, paths, seed };
            let mut line = Vec::new();
            call.write(&mut line);
            prop_assert!(line.len() <= MAX_LINE_BYTES);
            prop_assert_eq!(std::str::from_utf8(&line).unwrap().parse(), Ok(call));
        }

        #[test]
        fn no_line_makes_the_reader_panic(line in "(PRICE )?[ -~]{0,80}") {
            let _ = line.parse::<AsianCall>();
        }
    }
}
