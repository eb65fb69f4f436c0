//! Models in which each parameter states its source.
//!
//! In such a file every number is written as `{ value, source, why }`. [`read`] returns the
//! plain model and the list of its parameters with their sources.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fmt;
use toml::{Table, Value};

/// The source of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ParameterSource {
    /// The paper prints it.
    Printed,
    /// Chosen so that the model reproduces printed results.
    Fitted,
    /// Chosen by us, because the paper states nothing.
    Ours,
}

/// One number of a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parameter {
    /// Its path, such as `xapian.memory.share`.
    pub(crate) key: String,
    /// The value as written in the file.
    pub(crate) value: String,
    pub(crate) source: ParameterSource,
    /// The reason; may be empty.
    pub(crate) why: String,
}

/// A leaf of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Leaf {
    value: Value,
    source: ParameterSource,
    #[serde(default)]
    why: String,
}

impl fmt::Display for ParameterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Printed => "printed",
            Self::Fitted => "fitted to what is printed",
            Self::Ours => "ours",
        })
    }
}

/// The plain model of an embedded file, and its parameters.
pub(crate) fn read<M: DeserializeOwned>(text: &str) -> (M, Vec<Parameter>) {
    parse(text).expect("a test reads the embedded file")
}

fn parse<M: DeserializeOwned>(text: &str) -> Result<(M, Vec<Parameter>), toml::de::Error> {
    let table: Table = toml::from_str(text)?;
    let mut parameters = Vec::new();
    let plain = strip(Value::Table(table), "", &mut parameters)?;
    Ok((plain.try_into()?, parameters))
}

fn strip(
    value: Value,
    path: &str,
    parameters: &mut Vec<Parameter>,
) -> Result<Value, toml::de::Error> {
    match value {
        Value::Table(table) if table.contains_key("source") => {
            let Leaf { value, source, why } = table.try_into()?;
            let (key, text) = (path.to_owned(), value.to_string());
            parameters.push(Parameter { key, value: text, source, why });
            Ok(value)
        }
        Value::Table(table) => {
            let entries = table.into_iter().map(|(key, value)| {
                let below = join(path, &key);
                Ok((key, strip(value, &below, parameters)?))
            });
            Ok(Value::Table(entries.collect::<Result<_, toml::de::Error>>()?))
        }
        Value::Array(entries) => {
            let entries = entries.into_iter().map(|entry| {
                // Entries are known by their names, not by their lists.
                let name = entry.get("name").and_then(Value::as_str).unwrap_or(path).to_owned();
                strip(entry, &name, parameters)
            });
            Ok(Value::Array(entries.collect::<Result<_, _>>()?))
        }
        plain => Ok(plain),
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// One line a source, for the choices of a report: every parameter with its value.
pub(crate) fn choices(parameters: &[Parameter]) -> Vec<String> {
    let line = |source: ParameterSource| {
        let of_it = parameters.iter().filter(|parameter| parameter.source == source);
        let text = |parameter: &Parameter| {
            let Parameter { key, value, why, .. } = parameter;
            let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
            format!("{key} = {value}{why}")
        };
        let all: Vec<_> = of_it.map(text).collect();
        (!all.is_empty()).then(|| format!("parameters {source}: {}", all.join("; ")))
    };
    [ParameterSource::Printed, ParameterSource::Fitted, ParameterSource::Ours]
        .into_iter()
        .filter_map(line)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_gives_its_value_to_the_model_and_its_source_to_the_reader() {
        let text = "n = { value = 2, source = \"printed\" }\n[[app]]\nname = \"x\"\n\
                    m.k = { value = 0.5, source = \"ours\", why = \"a guess\" }\n";
        let (model, parameters): (Table, _) = read(text);
        assert_eq!(model["n"], Value::Integer(2));
        assert_eq!(model["app"][0]["m"]["k"], Value::Float(0.5));
        let lines = choices(&parameters);
        let wanted = ["parameters printed: n = 2", "parameters ours: x.m.k = 0.5 (a guess)"];
        assert_eq!(lines, wanted);
    }
}
