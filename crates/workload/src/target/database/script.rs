//! Scripts of statements, in the form of pgbench's: `\set`, `\sleep`, and SQL up to `;`.

use super::expression::{Draw, Expression};
use crate::Generator;
use lull_measure::Nanos;
use rand::SeedableRng;

/// How often a script's numbers are drawn before a run, to find bounds in the wrong order.
const TRIAL_DRAWS: usize = 200;

/// A script: one request is one pass through it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Script {
    pub(super) steps: Vec<Step>,
    pub(super) statements: Vec<Statement>,
    /// Index of the last step that sends a statement.
    pub(super) last_query: usize,
    /// Number of variables. The first is `scale`.
    pub(super) variables: usize,
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

/// Why a script cannot be used.
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

    /// Replaces `values` by those of the parameters, in their order.
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
    /// The first line that is wrong, and why.
    pub(super) fn parse(name: &str, text: &str, scale: u32) -> Result<Self, ScriptError> {
        let wrong = |line: usize, problem: String| ScriptError {
            name: name.to_owned(),
            line: line + 1,
            problem,
        };
        let mut parser = Parser { names: vec!["scale".to_owned()], ..Parser::default() };
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
        let last_query = parser.steps.iter().rposition(|step| matches!(step, Step::Query(_)));
        let last_query = last_query.ok_or_else(|| wrong(end, "it has no statement".to_owned()))?;
        let Parser { steps, statements, names, .. } = parser;
        let script = Self { steps, statements, last_query, variables: names.len() };
        match script.step_with_exchanged_bounds(scale) {
            Some(step) => {
                let problem = "the lower bound of a random number is above the upper one";
                Err(wrong(sets[step], problem.to_owned()))
            }
            None => Ok(script),
        }
    }

    /// The variables before a pass.
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
    names: Vec<String>,
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
            _ => Err(format!("`\\{verb}` is not known; write \\set NAME VALUE or \\sleep TIME ms")),
        }
    }

    fn set(&mut self, text: &str) -> Result<(), String> {
        let (name, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        if name.is_empty() || name_length(name) != name.len() {
            return Err(format!("`{name}` is no name of a variable"));
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

    /// Takes one line of SQL in.
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

/// Length of the name at the beginning of a text; 0 if there is none.
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
        assert_eq!((script.steps.len(), script.statements.len(), script.last_query), (5, 3, 4));
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
    fn a_wrong_line_is_named() {
        let cases = [
            ("SELECT 1;\nSELECT :b;\n", "x, line 2: the variable `:b` is not set"),
            ("\\let a 1\nSELECT 1;", "x, line 1: `\\let` is not known"),
            ("\\set 1a 1\nSELECT 1;", "x, line 1: `1a` is no name"),
            ("\\sleep 5\nSELECT 1;", "x, line 1: end it with a unit"),
            ("SELECT 1;\nSELECT 2\n", "x, line 2: a statement does not end"),
            ("\\set a 1\n", "x, line 1: it has no statement"),
            ("", "x, line 1: it has no statement"),
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
            text in "(\\\\set |\\\\sleep |[-a-z:;'\"`0-9()\\n é]){0,40}",
        ) {
            let _ = Script::parse("x", &text, 1);
        }
    }
}
