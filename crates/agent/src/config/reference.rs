//! The reference of all config keys, derived from the parser's own types.
//!
//! Sections, keys, defaults and meanings come from the JSON schema that is derived
//! from the types of `schema.rs` and below: from their fields, their serde
//! attributes and their doc comments. Every key that the parser accepts is therefore listed.

use super::schema::File;
use lull_measure::{Hertz, Nanos};
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt::Write;

/// The JSON schema of a config, for editors and for the tables.
pub fn schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|it| it.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<File>().to_value()
}

/// One table of a config, such as `[agent]` or `[[app]]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Section {
    /// Its path: `agent`, `app.gate`.
    pub name: String,
    /// Whether there may be several of it.
    pub is_list: bool,
    /// The meaning of the key.
    pub meaning: String,
    /// Its keys, as defined by the types.
    pub keys: Vec<Key>,
}

/// One key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Key {
    /// Its name.
    pub name: String,
    /// The form of its value.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its unit; absent where the type says all.
    pub unit: Option<String>,
    /// The default, as written in TOML.
    pub default: Option<String>,
    /// An example value.
    pub example: Option<String>,
    /// Whether the key is required.
    pub is_required: bool,
    /// The meaning of the value.
    pub meaning: String,
}

/// All sections, those inside others after them.
pub fn sections() -> Vec<Section> {
    let root = schema();
    let mut all = Vec::new();
    for (name, property) in properties(&root) {
        let items = property.get("items");
        let table = items.unwrap_or(property);
        add(&mut all, name, table, items.is_some(), text_of(property, "description"));
    }
    all
}

/// Adds a table, and then the tables in it.
fn add(all: &mut Vec<Section>, name: &str, table: &Value, is_list: bool, meaning: String) {
    let required: Vec<&str> =
        table["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let key = |(name, property): (&String, &Value)| {
        key(name, property, required.contains(&name.as_str()))
    };
    let keys = properties(table).map(key).collect();
    all.push(Section { name: name.to_owned(), is_list, meaning, keys });
    for (key, property) in properties(table) {
        let (inner, is_list) = table_in(property);
        if properties(inner).next().is_some() {
            let meaning = text_of(property, "description");
            add(all, &format!("{name}.{key}"), inner, is_list, meaning);
        }
    }
}

fn key(name: &str, property: &Value, is_required: bool) -> Key {
    let inner = present(property);
    let example = property["examples"].as_array().and_then(|all| all.first());
    let default = property.get("default").filter(|default| !default.is_null());
    let is_table = properties(table_in(property).0).next().is_some();
    Key {
        name: name.to_owned(),
        kind: kind(inner),
        unit: property["x-unit"].as_str().filter(|unit| *unit != "none").map(str::to_owned),
        default: default.filter(|_| !is_table).map(|value| written(value, inner)),
        example: example.map(|value| written(value, inner)),
        is_required,
        meaning: meaning(property, inner),
    }
}

/// The keys of a table, in the order of its type.
fn properties(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flat_map(Map::iter)
}

/// A schema without the possibility that nothing is there.
fn present(schema: &Value) -> &Value {
    let is_null = |schema: &Value| schema["type"] == "null";
    let several = schema["anyOf"].as_array().filter(|all| all.iter().any(is_null));
    let mut others = several.into_iter().flatten().filter(|schema| !is_null(schema));
    match (others.next(), others.next()) {
        (Some(only), None) => only,
        _ => schema,
    }
}

/// The table that a key holds, and whether it holds several.
fn table_in(property: &Value) -> (&Value, bool) {
    let inner = present(property);
    inner.get("items").map_or((inner, false), |items| (items, true))
}

/// Describes the form of a value.
fn kind(schema: &Value) -> String {
    if let Some(format) = schema["format"].as_str().filter(|it| is_ours(it)) {
        return format.to_owned();
    }
    let words = |all: &Vec<Value>| all.iter().map(kind).collect::<Vec<_>>().join(" or ");
    if let Some(all) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        let all = all.iter().filter(|it| it["type"] != "null").cloned().collect();
        return words(&all);
    }
    if let Some(word) = schema["const"].as_str() {
        return format!("`\"{word}\"`");
    }
    if let Some(all) = schema["enum"].as_array() {
        let words: Vec<String> = all.iter().map(|word| format!("`{word}`")).collect();
        return words.join(" or ");
    }
    match type_of(schema) {
        "string" => "text",
        "integer" => "whole number",
        "number" => "number",
        "boolean" => "`true` or `false`",
        "array" => return format!("list of {}", kind(&schema["items"])),
        _ => schema["title"].as_str().unwrap_or("table"),
    }
    .to_owned()
}

/// Formats that name a quantity; those of schemars say how wide a number is.
fn is_ours(format: &str) -> bool {
    matches!(format, "time" | "frequency")
}

/// The type of a schema that is not a `null`.
fn type_of(schema: &Value) -> &str {
    let several = schema["type"].as_array().into_iter().flatten();
    let mut all = schema["type"].as_str().into_iter().chain(several.filter_map(Value::as_str));
    all.find(|it| *it != "null").unwrap_or_default()
}

/// The meaning of a key, and of each word that may be its value.
fn meaning(property: &Value, inner: &Value) -> String {
    let mut text = text_of(property, "description");
    let several = inner["oneOf"].as_array().into_iter().flatten();
    for one in several.filter(|one| one["const"].is_string()) {
        let word = one["const"].as_str().unwrap_or_default();
        let _ = write!(text, " `{word}`: {}", text_of(one, "description"));
    }
    text
}

/// A text of a schema on one line.
fn text_of(schema: &Value, key: &str) -> String {
    schema[key].as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A value as it is written in TOML.
fn written(value: &Value, schema: &Value) -> String {
    match (schema["format"].as_str(), value) {
        (Some("time"), Value::Number(nanos)) => {
            format!("\"{}\"", Nanos(nanos.as_u64().unwrap_or_default()))
        }
        (Some("frequency"), Value::Number(hertz)) => {
            format!("\"{}\"", Hertz(hertz.as_u64().unwrap_or_default()))
        }
        (_, value) => {
            toml::Value::try_from(value).map_or_else(|_| value.to_string(), |it| it.to_string())
        }
    }
}

/// The page of the book.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Every key of a config\n\n\
         Generated by `cargo xtask docs` from the types that the parser reads into \
         (`crates/agent/src/config/schema.rs` and what it names); do not edit. \
         [config.md](config.md) says how they belong together, `lull keys --schema` prints the \
         JSON schema for an editor.\n\n\
         A *time* is a text with a unit (`\"4.2ms\"`, `\"500us\"`, `\"10min\"`), so is a \
         *frequency* (`\"2.2GHz\"`). Any other key is refused with file, line and key.\n",
    );
    for section in sections() {
        let _ = write!(page, "\n## `{}`\n\n", section.heading());
        if !section.meaning.is_empty() {
            let _ = writeln!(page, "{}\n", section.meaning);
        }
        page.push_str("| key | type | unit | default | meaning |\n|---|---|---|---|---|\n");
        section.keys.iter().for_each(|key| page.push_str(&key.row()));
    }
    page
}

impl Section {
    /// Returns the section's heading in TOML: `[agent]`, `[[app]]`.
    pub fn heading(&self) -> String {
        if self.is_list { format!("[[{}]]", self.name) } else { format!("[{}]", self.name) }
    }
}

impl Key {
    /// Returns the default as text, or `must be given`, or `absent`.
    pub fn default_text(&self) -> String {
        match &self.default {
            _ if self.is_required => "must be given".to_owned(),
            Some(default) => format!("`{default}`"),
            None => "absent".to_owned(),
        }
    }

    fn row(&self) -> String {
        let cell = |text: &str| text.replace('|', "\\|");
        let example = self.example.as_ref().map(|it| format!(" Such as `{it}`."));
        format!(
            "| `{}` | {} | {} | {} | {}{} |\n",
            self.name,
            cell(&self.kind),
            self.unit.as_deref().unwrap_or_default(),
            cell(&self.default_text()),
            cell(&self.meaning),
            cell(&example.unwrap_or_default())
        )
    }
}

#[cfg(test)]
mod tests;
