//! Scripts of statements, in the form of pgbench's: `\set`, `\sleep`, and SQL up to `;`. With
//! `\transaction NAME WEIGHT` a script has several, of which each request is one.

use super::expression::{Draw, Expression};
use crate::Generator;
use lull_measure::Nanos;
use rand::{RngExt, SeedableRng};
use std::fmt;

/// How often a script's numbers are drawn before a run, to find bounds in the wrong order.
const TRIAL_DRAWS: usize = 200;
/// The variable that every script has.
const SCALE: &str = "scale";
const WEIGHT_MAX: u32 = 1_000_000;

/// A script: one request is one pass through it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Script {
    pub(super) steps: Vec<Step>,
    pub(super) statements: Vec<Statement>,
    /// The transactions; there is at least one.
    pub(super) transactions: Vec<Transaction>,
    /// Number of variables. The first is `scale`.
    pub(super) variables: usize,
}

/// A part of a script that is one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Transaction {
    /// Its name, if the script has several.
    pub(super) name: Option<TransactionName>,
    /// Indices of its first step, and of the step behind its last one.
    pub(super) first: usize,
    pub(super) end: usize,
    /// Index of the last step that sends a statement.
    pub(super) last_query: usize,
    /// Its weight: the probability with which it is chosen is in proportion to it.
    weight: u32,
}

/// The name of a transaction, in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransactionName([u8; Self::LENGTH]);

impl TransactionName {
    const LENGTH: usize = 20;

    /// Returns a name of letters, digits, `-` and `_`.
    fn new(text: &str) -> Option<Self> {
        let mut name = [0; Self::LENGTH];
        name.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        let is_legal = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
        (!text.is_empty() && text.bytes().all(is_legal)).then_some(Self(name))
    }
}

impl fmt::Display for TransactionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.0.iter().position(|byte| *byte == 0).unwrap_or(Self::LENGTH);
        f.write_str(&String::from_utf8_lossy(&self.0[..length]))
    }
}

/// One step of a script.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    Set {
        variable: usize,
        value: Expression,
    },
    Sleep {
        time: Expression,
        unit: Nanos,
    },
    /// Sends the statement of this index and waits for its reply.
    Query(usize),
}

/// A statement with its parameters in their places.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Statement {
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Text(String),
    Variable(usize),
}

/// The error of a script that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name}, line {line}: {problem}")]
pub struct ScriptError {
    name: String,
    line: usize,
    problem: String,
}

impl Statement {
    /// Writes the statement with its parameters' values in it.
    pub(super) fn write_text(&self, variables: &[i64], out: &mut String) {
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Variable(index) => {
                    let value = variables[*index];
                    // `-` and a negative number would begin a comment.
                    if value < 0 && out.ends_with('-') {
                        out.push(' ');
                    }
                    out.push_str(&value.to_string());
                }
            }
        }
    }

    /// Returns the statement with placeholders.
    pub(super) fn prepared(&self, placeholder: fn(usize) -> String) -> String {
        let (mut text, mut number) = (String::new(), 0);
        for piece in &self.pieces {
            match piece {
                Piece::Text(part) => text.push_str(part),
                Piece::Variable(_) => {
                    number += 1;
                    text.push_str(&placeholder(number));
                }
            }
        }
        text
    }

    /// Replaces `values` by the values of the parameters, in their order.
    pub(super) fn collect_values(&self, variables: &[i64], values: &mut Vec<i64>) {
        values.clear();
        values.extend(self.parameters().map(|index| variables[index]));
    }

    pub(super) fn has_parameters(&self) -> bool {
        self.parameters().next().is_some()
    }

    fn parameters(&self) -> impl Iterator<Item = usize> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Variable(index) => Some(*index),
            Piece::Text(_) => None,
        })
    }
}

impl Script {
    /// Parses a script; `name` is for errors.
    ///
    /// # Errors
    /// The first invalid line, and the reason.
    pub(super) fn parse(name: &str, text: &str, scale: u32) -> Result<Self, ScriptError> {
        let wrong = |line: usize, problem: String| ScriptError {
            name: name.to_owned(),
            line: line + 1,
            problem,
        };
        let mut parser = Parser { names: vec![SCALE.to_owned()], ..Parser::default() };
        let mut sets = Vec::new();
        for (at, line) in text.lines().enumerate() {
            match line.trim().strip_prefix('\\').filter(|_| parser.is_between_statements()) {
                Some(command) => parser.command(command).map_err(|why| wrong(at, why))?,
                None => parser.sql(line).map_err(|why| wrong(at, why))?,
            }
            sets.resize(parser.steps.len(), at);
        }
        let end = text.lines().count().saturating_sub(1);
        if !parser.is_between_statements() {
            return Err(wrong(end, "a statement does not end: `;` is missing".to_owned()));
        }
        parser.end_transaction().map_err(|why| wrong(end, why))?;
        let Parser { steps, statements, names, transactions, .. } = parser;
        let script = Self { steps, statements, transactions, variables: names.len() };
        match script.step_with_exchanged_bounds(scale) {
            Some(step) => {
                let problem = "the lower bound of a random number is above the upper one";
                Err(wrong(sets[step], problem.to_owned()))
            }
            None => Ok(script),
        }
    }

    /// Chooses the transaction of a request.
    pub(super) fn choose(&self, rng: &mut Generator) -> Transaction {
        let last = self.transactions[self.transactions.len() - 1];
        if self.transactions.len() == 1 {
            return last;
        }
        let all: u32 = self.transactions.iter().map(|one| one.weight).sum();
        let mut place = rng.random_range(0..all);
        let chosen = self.transactions.iter().find(|one| {
            let is_here = place < one.weight;
            place = place.saturating_sub(one.weight);
            is_here
        });
        chosen.copied().unwrap_or(last)
    }

    /// Returns the variables before a pass.
    pub(super) fn variables(&self, scale: u32) -> Vec<i64> {
        let mut variables = vec![0; self.variables];
        variables[0] = i64::from(scale);
        variables
    }

    fn step_with_exchanged_bounds(&self, scale: u32) -> Option<usize> {
        let (mut variables, mut rng) = (self.variables(scale), Generator::seed_from_u64(1));
        for _ in 0..TRIAL_DRAWS {
            for (at, step) in self.steps.iter().enumerate() {
                let (Step::Set { value, .. } | Step::Sleep { time: value, .. }) = step else {
                    continue;
                };
                let mut draw =
                    Draw { variables: &variables, rng: &mut rng, has_exchanged_bounds: false };
                let value = value.evaluate(&mut draw);
                if draw.has_exchanged_bounds {
                    return Some(at);
                }
                if let Step::Set { variable, .. } = step {
                    variables[*variable] = value;
                }
            }
        }
        None
    }
}

#[derive(Debug, Default)]
struct Parser {
    /// The names of variables; empty for a variable that only another transaction sets.
    names: Vec<String>,
    transactions: Vec<Transaction>,
    /// Name and weight of the transaction that is being read.
    header: Option<(TransactionName, u32)>,
    steps: Vec<Step>,
    statements: Vec<Statement>,
    statement: Statement,
    text: String,
    /// The quote in which the text ended.
    quote: Option<char>,
}

impl Parser {
    fn is_between_statements(&self) -> bool {
        self.statement.pieces.is_empty() && self.text.trim().is_empty() && self.quote.is_none()
    }

    fn index(names: &[String], name: &str) -> Option<usize> {
        names.iter().position(|known| known == name)
    }

    fn command(&mut self, command: &str) -> Result<(), String> {
        let (verb, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        match verb {
            "set" => self.set(rest.trim()),
            "sleep" => self.sleep(rest.trim()),
            "transaction" => self.transaction(rest.trim()),
            _ => Err(format!(
                "`\\{verb}` is not known; write \\set NAME VALUE, \\sleep TIME ms or \\transaction \
                 NAME WEIGHT"
            )),
        }
    }

    /// Begins a transaction.
    fn transaction(&mut self, text: &str) -> Result<(), String> {
        if self.header.is_none() && !self.steps.is_empty() {
            return Err("write \\transaction before the first step, or nowhere".to_owned());
        }
        if self.header.is_some() {
            self.end_transaction()?;
        }
        let (name, weight) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let known = TransactionName::new(name).ok_or_else(|| {
            format!("`{name}` is not a name: write 1 to 20 letters, digits, - and _")
        })?;
        if self.transactions.iter().any(|one| one.name == Some(known)) {
            return Err(format!("there is a transaction `{name}` already: choose another name"));
        }
        let weight = weight.trim().parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight));
        let weight = weight.ok_or("write its weight behind its name: 1 to 1000000")?;
        // A variable that another transaction sets is not set in this one.
        self.names.iter_mut().skip(1).for_each(String::clear);
        self.header = Some((known, weight));
        Ok(())
    }

    fn end_transaction(&mut self) -> Result<(), String> {
        let first = self.transactions.last().map_or(0, |one| one.end);
        let queries = self.steps[first..].iter();
        let last = queries.enumerate().rfind(|(_, step)| matches!(step, Step::Query(_)));
        let (last, _) = last.ok_or_else(|| match self.header {
            Some((name, _)) => format!("transaction `{name}` has no statement"),
            None => "it has no statement".to_owned(),
        })?;
        self.transactions.push(Transaction {
            name: self.header.map(|(name, _)| name),
            first,
            end: self.steps.len(),
            last_query: first + last,
            weight: self.header.map_or(1, |(_, weight)| weight),
        });
        Ok(())
    }

    fn set(&mut self, text: &str) -> Result<(), String> {
        let (name, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        if name.is_empty() || name_length(name) != name.len() {
            return Err(format!("`{name}` is not a name: write letters, digits and _"));
        }
        let value = self.expression(value)?;
        let variable = Self::index(&self.names, name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        self.steps.push(Step::Set { variable, value });
        Ok(())
    }

    fn sleep(&mut self, text: &str) -> Result<(), String> {
        let units = [
            ("us", Nanos::from_micros(1)),
            ("ms", Nanos::from_millis(1)),
            ("s", Nanos::from_secs(1)),
        ];
        let unit = units.into_iter().find_map(|(name, unit)| {
            let time = text.strip_suffix(name)?;
            time.ends_with(|c: char| c.is_whitespace() || c.is_ascii_digit() || c == ')')
                .then_some((time, unit))
        });
        let (time, unit) = unit.ok_or("end it with a unit: us, ms or s")?;
        let time = self.expression(time)?;
        self.steps.push(Step::Sleep { time, unit });
        Ok(())
    }

    fn expression(&self, text: &str) -> Result<Expression, String> {
        Expression::parse(text, &|name| Self::index(&self.names, name))
    }

    /// Reads one line of SQL.
    fn sql(&mut self, line: &str) -> Result<(), String> {
        let mut rest = line;
        while let Some(c) = rest.chars().next() {
            let mut length = c.len_utf8();
            match (self.quote, c) {
                (Some(quote), _) => self.quote = Some(quote).filter(|quote| *quote != c),
                (None, '\'' | '"' | '`') => self.quote = Some(c),
                (None, '-') if rest.starts_with("--") => break,
                (None, ';') => {
                    self.end_statement();
                    rest = &rest[length..];
                    continue;
                }
                (None, ':') if rest.starts_with("::") => length = 2,
                (None, ':') if name_length(&rest[1..]) > 0 => {
                    let name = &rest[1..=name_length(&rest[1..])];
                    let index = Self::index(&self.names, name);
                    let index = index.ok_or_else(|| {
                        format!("the variable `:{name}` is not set: write \\set {name} ... before")
                    })?;
                    self.end_text();
                    self.statement.pieces.push(Piece::Variable(index));
                    rest = &rest[1 + name.len()..];
                    continue;
                }
                (None, _) => {}
            }
            self.text.push_str(&rest[..length]);
            rest = &rest[length..];
        }
        self.text.push('\n');
        Ok(())
    }

    fn end_text(&mut self) {
        if !self.text.is_empty() {
            let text = std::mem::take(&mut self.text);
            self.statement.pieces.push(Piece::Text(text));
        }
    }

    fn end_statement(&mut self) {
        if self.is_between_statements() {
            self.text.clear();
            return;
        }
        self.end_text();
        let mut statement = std::mem::take(&mut self.statement);
        if let Some(Piece::Text(first)) = statement.pieces.first_mut() {
            *first = first.trim_start().to_owned();
        }
        self.steps.push(Step::Query(self.statements.len()));
        self.statements.push(statement);
    }
}

/// Returns the length of the name at the beginning of a text; 0 if there is none.
fn name_length(text: &str) -> usize {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    if begins { end } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "\\set a random(1, 10 * :scale)\nBEGIN; -- first\n\
        UPDATE t SET b = b -:a\n  WHERE c = ':a' AND d::text = \"x;y\";\n\\sleep 5 ms\nCOMMIT;\n";

    #[test]
    fn statements_end_at_semicolons_and_parameters_are_not_sought_in_quotes() {
        let script = Script::parse("x", TEXT, 1).unwrap();
        assert_eq!((script.steps.len(), script.statements.len()), (5, 3));
        let only = script.choose(&mut Generator::seed_from_u64(1));
        assert_eq!((only.name, only.first, only.end, only.last_query), (None, 0, 5, 4));
        assert_eq!(script.variables(3), [3, 0]);
        let mut text = String::new();
        script.statements[1].write_text(&[1, -4], &mut text);
        let wanted = "UPDATE t SET b = b - -4\n  WHERE c = ':a' AND d::text = \"x;y\"";
        assert_eq!(text, wanted);
        let prepared = script.statements[1].prepared(|number| format!("${number}"));
        assert!(prepared.contains("b -$1\n"), "{prepared}");
        assert!(!script.statements[0].has_parameters() && script.statements[1].has_parameters());
    }

    #[test]
    fn transactions_are_chosen_by_their_weights_and_share_no_variables() {
        let text = "\\transaction buy 3\n\\set a 1\nSELECT :a;\n\\sleep 1 ms\n\
                    \\transaction look 1\n\\set a 2\nSELECT :a;SELECT :scale;\n";
        let script = Script::parse("x", text, 1).unwrap();
        let mut rng = Generator::seed_from_u64(1);
        let chosen: Vec<_> = (0..4_000).map(|_| script.choose(&mut rng)).collect();
        let buys = chosen.iter().filter(|one| one.name == TransactionName::new("buy"));
        assert!((2_850..3_150).contains(&buys.count()), "three quarters");
        let [buy, look] = &script.transactions[..] else { panic!("{script:?}") };
        assert_eq!((buy.first, buy.end, buy.last_query), (0, 3, 1));
        assert_eq!((look.first, look.end, look.last_query), (3, 6, 5));
        assert_eq!(script.variables(1).len(), 3, "each has its own");
        assert_eq!(look.name.unwrap().to_string(), "look");
    }

    #[test]
    fn a_wrong_line_is_named() {
        let cases = [
            ("SELECT 1;\nSELECT :b;\n", "x, line 2: the variable `:b` is not set"),
            ("\\let a 1\nSELECT 1;", "x, line 1: `\\let` is not known"),
            ("\\set 1a 1\nSELECT 1;", "x, line 1: `1a` is not a name"),
            ("\\sleep 5\nSELECT 1;", "x, line 1: end it with a unit"),
            ("SELECT 1;\nSELECT 2\n", "x, line 2: a statement does not end"),
            ("\\set a 1\n", "x, line 1: it has no statement"),
            ("", "x, line 1: it has no statement"),
            ("\\set a 1\n\\transaction b 1\n", "x, line 2: write \\transaction before"),
            ("\\transaction b\nSELECT 1;", "x, line 1: write its weight"),
            ("\\transaction b 0\nSELECT 1;", "x, line 1: write its weight"),
            ("\\transaction é 1\nSELECT 1;", "x, line 1: `é` is not a name"),
            ("\\transaction b 1\nSELECT 1;\n\\transaction b 1", "x, line 3: there is a"),
            ("\\transaction b 1\n\\transaction c 1", "x, line 2: transaction `b` has no"),
            (
                "\\transaction b 1\n\\set a 1\nSELECT :a;\n\\transaction c 1\nSELECT :a;",
                "x, line 5: the variable `:a` is not set",
            ),
            ("SELECT 1;\n\\set a random(:scale, 0)", "x, line 2: the lower bound"),
        ];
        for (text, wanted) in cases {
            let error = Script::parse("x", text, 1).unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(
            text in "(\\\\set |\\\\sleep |\\\\transaction b 1|[-a-z:;'\"`0-9()\\n é]){0,40}",
        ) {
            let _ = Script::parse("x", &text, 1);
        }
    }
}
