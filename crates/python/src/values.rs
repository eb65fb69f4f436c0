//! Other values at some keys of a scenario.

use std::str::FromStr;
use toml::{Table, Value};

/// One step of a key such as `app[search].threads`.
#[derive(Debug)]
enum Step {
    /// A key of a section.
    Key(String),
    /// An entry of an array, by number.
    Index(usize),
    /// An entry of an array, by its `name`.
    Name(String),
}

/// Where a value of a scenario is.
#[derive(Debug)]
pub(crate) struct KeyPath(Vec<Step>);

impl FromStr for KeyPath {
    type Err = String;

    fn from_str(key: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{key}` is not a key: write a key such as node.cores, app[0].threads or \
                 app[search].threads"
            )
        };
        let mut steps = Vec::new();
        for part in key.split('.') {
            let (name, mut rest) = part.split_at(part.find('[').unwrap_or(part.len()));
            if name.is_empty() || name.contains(']') {
                return Err(wrong());
            }
            steps.push(Step::Key(name.to_owned()));
            while !rest.is_empty() {
                let inner = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
                let (entry, behind) = inner.filter(|it| !it.0.is_empty()).ok_or_else(wrong)?;
                let step = entry.parse().map_or_else(|_| Step::Name(entry.to_owned()), Step::Index);
                steps.push(step);
                rest = behind;
            }
        }
        Ok(Self(steps))
    }
}

impl KeyPath {
    /// Sets the value; a section that the scenario does not have is made.
    ///
    /// # Errors
    /// If a part of the key is not a section or no entry of the scenario.
    pub(crate) fn set(&self, scenario: &mut Table, value: Value) -> Result<(), String> {
        let [Step::Key(first), rest @ ..] = self.0.as_slice() else {
            return Err("a key begins with the name of a section".to_owned());
        };
        let mut at = scenario.entry(first.as_str()).or_insert_with(|| Value::Table(Table::new()));
        let mut name = first.clone();
        for step in rest {
            let next = match (step, at) {
                (Step::Key(key), Value::Table(section)) => {
                    section.entry(key.as_str()).or_insert_with(|| Value::Table(Table::new()))
                }
                (Step::Key(_), other) => {
                    return Err(format!("{name} is not a section: it is {}", kind(other)));
                }
                (Step::Index(_) | Step::Name(_), Value::Array(entries)) => {
                    let count = entries.len();
                    let at = match step {
                        Step::Name(wanted) => entries.iter().position(|it| is_called(it, wanted)),
                        Step::Index(index) => Some(*index),
                        Step::Key(_) => None,
                    };
                    at.and_then(|at| entries.get_mut(at)).ok_or_else(|| match step {
                        Step::Name(wanted) => {
                            format!("{name} has no entry with the name `{wanted}`")
                        }
                        _ => format!("{name} has {count} entries, counted from 0"),
                    })?
                }
                (_, other) => return Err(format!("{name} is not a list: it is {}", kind(other))),
            };
            at = next;
            match step {
                Step::Key(key) => name.push_str(&format!(".{key}")),
                Step::Index(index) => name.push_str(&format!("[{index}]")),
                Step::Name(entry) => name.push_str(&format!("[{entry}]")),
            }
        }
        *at = value;
        Ok(())
    }
}

fn is_called(entry: &Value, name: &str) -> bool {
    entry.get("name").and_then(Value::as_str) == Some(name)
}

/// Returns the kind of a value as text.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Table(_) => "a section",
        Value::Array(_) => "a list: write the number or the name of an entry, as in app[0]",
        Value::String(_) => "a text",
        _ => "a number, a truth value or a time",
    }
}
