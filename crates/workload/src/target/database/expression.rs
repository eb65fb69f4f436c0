//! Integer expressions of scripts: `random(1, 100000 * :scale)`.

use crate::Generator;
use rand::RngExt;
use rand_distr::{Distribution, Zipf};

/// The deepest nesting of parentheses and signs.
const DEPTH_MAX: usize = 32;
/// The largest number of sums, differences and products of an expression; each may be a level of
/// its tree, which is evaluated by recursion.
const OPERATIONS_MAX: usize = 500;

/// An expression over 64-bit integers. Sums and products wrap.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expression {
    Number(i64),
    /// The variable of this index.
    Variable(usize),
    Negated(Box<Self>),
    Sum(Box<Self>, Box<Self>),
    Difference(Box<Self>, Box<Self>),
    Product(Box<Self>, Box<Self>),
    /// Evenly distributed between two bounds, both included.
    Random(Box<Self>, Box<Self>),
    /// Between two bounds, the value of rank `i` in proportion to `i^-exponent`.
    Zipfian(Box<Self>, Box<Self>, f64),
}

/// The random numbers and variables of an evaluation.
pub(super) struct Draw<'d> {
    pub(super) variables: &'d [i64],
    pub(super) rng: &'d mut Generator,
    /// Set if the lower bound of a random number was above the upper one; they are exchanged.
    pub(super) has_exchanged_bounds: bool,
}

impl Expression {
    pub(super) fn evaluate(&self, draw: &mut Draw<'_>) -> i64 {
        match self {
            Self::Number(number) => *number,
            Self::Variable(index) => draw.variables[*index],
            Self::Negated(inner) => inner.evaluate(draw).wrapping_neg(),
            Self::Sum(a, b) => a.evaluate(draw).wrapping_add(b.evaluate(draw)),
            Self::Difference(a, b) => a.evaluate(draw).wrapping_sub(b.evaluate(draw)),
            Self::Product(a, b) => a.evaluate(draw).wrapping_mul(b.evaluate(draw)),
            Self::Random(low, high) => {
                let (low, high) = draw.bounds(low, high);
                draw.rng.random_range(low..=high)
            }
            Self::Zipfian(low, high, exponent) => {
                let (low, high) = draw.bounds(low, high);
                let values = high.wrapping_sub(low) as u64 as f64 + 1.0;
                let zipf = Zipf::new(values, *exponent);
                let rank = zipf.map_or(1.0, |zipf| zipf.sample(draw.rng));
                low.saturating_add(rank as i64 - 1).min(high)
            }
        }
    }

    /// Parses a whole text; `variable` returns the index of a name that is set.
    ///
    /// # Errors
    /// The problem, for users.
    pub(super) fn parse(
        text: &str,
        variable: &dyn Fn(&str) -> Option<usize>,
    ) -> Result<Self, String> {
        let mut parser = Parser { rest: text.trim(), variable, depth: 0, operations: 0 };
        let parsed = parser.sum()?;
        match parser.rest {
            "" => Ok(parsed),
            rest => Err(format!("`{rest}` was not expected here")),
        }
    }
}

impl Draw<'_> {
    fn bounds(&mut self, low: &Expression, high: &Expression) -> (i64, i64) {
        let (low, high) = (low.evaluate(self), high.evaluate(self));
        self.has_exchanged_bounds |= low > high;
        (low.min(high), low.max(high))
    }
}

struct Parser<'p> {
    rest: &'p str,
    variable: &'p dyn Fn(&str) -> Option<usize>,
    depth: usize,
    operations: usize,
}

impl<'p> Parser<'p> {
    /// Consumes a symbol and the blanks behind it, if it is next.
    fn take(&mut self, symbol: char) -> bool {
        let rest = self.rest.strip_prefix(symbol);
        self.rest = rest.unwrap_or(self.rest).trim_start();
        rest.is_some()
    }

    fn require(&mut self, symbol: char) -> Result<(), String> {
        match self.take(symbol) {
            true => Ok(()),
            false => Err(format!("`{symbol}` is missing before `{}`", self.rest)),
        }
    }

    fn sum(&mut self) -> Result<Expression, String> {
        let mut sum = self.product()?;
        loop {
            let operation = if self.take('+') {
                Expression::Sum
            } else if self.take('-') {
                Expression::Difference
            } else {
                return Ok(sum);
            };
            self.count_operation()?;
            sum = operation(Box::new(sum), Box::new(self.product()?));
        }
    }

    fn count_operation(&mut self) -> Result<(), String> {
        self.operations += 1;
        match self.operations > OPERATIONS_MAX {
            true => Err(format!(
                "it has more than {OPERATIONS_MAX} sums and products: use several variables"
            )),
            false => Ok(()),
        }
    }

    fn product(&mut self) -> Result<Expression, String> {
        let mut product = self.factor()?;
        while self.take('*') {
            self.count_operation()?;
            product = Expression::Product(Box::new(product), Box::new(self.factor()?));
        }
        Ok(product)
    }

    fn factor(&mut self) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(format!("parentheses or signs nest more than {DEPTH_MAX} deep"));
        }
        let factor = self.any_factor();
        self.depth -= 1;
        factor
    }

    fn any_factor(&mut self) -> Result<Expression, String> {
        if self.take('-') {
            return Ok(Expression::Negated(Box::new(self.factor()?)));
        }
        if self.take('(') {
            let inner = self.sum()?;
            self.require(')')?;
            return Ok(inner);
        }
        if self.take(':') {
            let name = self.word();
            let index = (self.variable)(name);
            return match index {
                Some(index) => Ok(Expression::Variable(index)),
                None => Err(format!("the variable `:{name}` is not set")),
            };
        }
        let word = self.word();
        match word {
            "random" | "random_zipfian" => self.random(word),
            _ => word.parse().map(Expression::Number).map_err(|_| {
                format!(
                    "`{word}` is not a number, :variable, random(a, b) or random_zipfian(a, b, s)"
                )
            }),
        }
    }

    fn random(&mut self, function: &str) -> Result<Expression, String> {
        self.require('(')?;
        let low = Box::new(self.sum()?);
        self.require(',')?;
        let high = Box::new(self.sum()?);
        if function == "random" {
            self.require(')')?;
            return Ok(Expression::Random(low, high));
        }
        self.require(',')?;
        let word = self.word();
        let exponent: Option<f64> = word.parse().ok();
        let exponent = exponent.filter(|exponent| *exponent > 0.0 && *exponent <= 1000.0);
        let exponent = exponent.ok_or_else(|| {
            format!("`{word}` is not an exponent: write a number above 0, at most 1000")
        })?;
        self.require(')')?;
        Ok(Expression::Zipfian(low, high, exponent))
    }

    /// Consumes letters, digits, `_` and `.`.
    fn word(&mut self) -> &'p str {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::rng;
    use proptest::prelude::*;

    fn evaluate(text: &str) -> Result<i64, String> {
        let parsed = Expression::parse(text, &|name| (name == "scale").then_some(0))?;
        let (mut rng, variables) = (rng(1), [7]);
        let mut draw = Draw { variables: &variables, rng: &mut rng, has_exchanged_bounds: false };
        Ok(parsed.evaluate(&mut draw))
    }

    #[test]
    fn products_bind_stronger_than_sums() {
        let cases = [("1 + 2 * 3", 7), ("(1+2)*3", 9), ("10 - 2 - 3", 5), ("-:scale * 2", -14)];
        for (text, wanted) in cases {
            assert_eq!(evaluate(text), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn random_numbers_lie_within_their_bounds_and_zipfian_ones_prefer_the_first() {
        let (mut rng, variables) = (rng(3), [2]);
        let mut draw = Draw { variables: &variables, rng: &mut rng, has_exchanged_bounds: false };
        let parse = |text| Expression::parse(text, &|_| Some(0)).unwrap();
        let (even, zipf) = (parse("random(-5, 5 * :a)"), parse("random_zipfian(1, 100, 1.2)"));
        let mut firsts = 0;
        for _ in 0..2_000 {
            assert!((-5..=10).contains(&even.evaluate(&mut draw)));
            let rank = zipf.evaluate(&mut draw);
            assert!((1..=100).contains(&rank));
            firsts += u32::from(rank == 1);
        }
        // The harmonic sum of 100 ranks at 1.2 is 3.6.
        assert!((450..700).contains(&firsts), "{firsts}");
        assert!(!draw.has_exchanged_bounds);
        parse("random(5, 1)").evaluate(&mut draw);
        assert!(draw.has_exchanged_bounds);
    }

    #[test]
    fn a_slip_is_named() {
        let cases = [
            ("random(1)", "`,` is missing"),
            ("random(1, 2", "`)` is missing"),
            (":other", "`:other` is not set"),
            ("1 2", "`2` was not expected"),
            ("five", "`five` is not a number"),
            ("random_zipfian(1, 2, 0)", "`0` is not an exponent"),
            ("", "`` is not a number"),
        ];
        for (text, wanted) in cases {
            let error = evaluate(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
        assert!(evaluate(&"(".repeat(10_000)).unwrap_err().contains("deep"));
        for operation in ["1+", "1-", "1*"] {
            let long = |count: usize| evaluate(&(operation.repeat(count) + "1"));
            assert!(long(OPERATIONS_MAX).is_ok());
            assert!(long(100_000).unwrap_err().contains("more than 500 sums and products"));
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_or_an_evaluation_panic(text in "[-+*(),:0-9a-z_. ]{0,60}") {
            let _ = evaluate(&text);
        }

        #[test]
        fn bounds_of_any_size_can_be_drawn_from(a: i64, b: i64) {
            let number = |value| Box::new(Expression::Number(value));
            let (mut rng, none) = (rng(1), []);
            let mut draw = Draw { variables: &none, rng: &mut rng, has_exchanged_bounds: false };
            for one in [
                Expression::Random(number(a), number(b)),
                Expression::Zipfian(number(a), number(b), 1.1),
            ] {
                prop_assert!((a.min(b)..=a.max(b)).contains(&one.evaluate(&mut draw)));
            }
        }
    }
}
