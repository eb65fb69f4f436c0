//! The reference is what the parser takes: no key more, and none less.

use super::*;
use std::collections::BTreeSet;

/// As little as the parser takes.
const LEAST: &str = "
[policy]
name = \"arq\"
[[app]]
name = \"batch\"
class = \"best-effort\"
[[load]]
app = \"cache\"
target = \"memcached://127.0.0.1:11211\"
rate = \"2000/s\"
";

fn parse(config: &toml::Table) -> Result<File, String> {
    toml::from_str(&config.to_string()).map_err(|error| error.to_string())
}

/// The table of this path, made with what it requires where it is missing.
fn table_of<'a>(config: &'a mut toml::Table, path: &str) -> &'a mut toml::Table {
    let mut at = config;
    let mut so_far = String::new();
    for part in path.split('.') {
        so_far = if so_far.is_empty() { part.to_owned() } else { format!("{so_far}.{part}") };
        let required = required(&so_far);
        let is_list = sections().iter().any(|one| one.name == so_far && one.is_list);
        let table = toml::Value::Table(required);
        let made = || if is_list { toml::Value::Array(vec![table]) } else { table };
        let entry = at.entry(part).or_insert_with(made);
        at = match entry {
            toml::Value::Array(all) => all[0].as_table_mut().unwrap(),
            other => other.as_table_mut().unwrap(),
        };
    }
    at
}

fn required(section: &str) -> toml::Table {
    let all = sections();
    let section = all.iter().find(|it| it.name == section).unwrap();
    let keys = section.keys.iter().filter(|key| key.is_required);
    let value = |key: &Key| match &key.example {
        Some(example) => value_of(example),
        None => vec![required(&format!("{}.{}", section.name, key.name))].into(),
    };
    keys.map(|key| (key.name.clone(), value(key))).collect()
}

fn value_of(text: &str) -> toml::Value {
    let mut table: toml::Table = format!("it = {text}").parse().unwrap();
    table.remove("it").unwrap()
}

/// Returns the smallest valid config with one key of a section set.
fn config_with_key(section: &str, key: &str, value: toml::Value) -> toml::Table {
    let mut config: toml::Table = LEAST.parse().unwrap();
    table_of(&mut config, section).insert(key.to_owned(), value);
    config
}

#[test]
fn every_documented_key_is_taken_with_its_example_and_its_default() {
    for section in sections() {
        for key in &section.keys {
            let name = format!("{}.{}", section.name, key.name);
            for text in key.example.iter().chain(&key.default) {
                let config = config_with_key(&section.name, &key.name, value_of(text));
                let taken = parse(&config);
                assert!(taken.is_ok(), "{name} = {text}: {}", taken.unwrap_err());
            }
        }
    }
}

#[test]
fn a_documented_default_is_what_holds_without_the_key() {
    for section in sections() {
        let mut config: toml::Table = LEAST.parse().unwrap();
        table_of(&mut config, &section.name);
        let without = format!("{:?}", parse(&config).unwrap());
        for key in &section.keys {
            let Some(default) = &key.default else { continue };
            let config = config_with_key(&section.name, &key.name, value_of(default));
            let parsed_config = format!("{:?}", parse(&config).unwrap());
            assert_eq!(parsed_config, without, "{}.{} = {default}", section.name, key.name);
        }
    }
}

#[test]
fn the_parser_takes_the_documented_keys_and_no_others() {
    for section in sections().iter().filter(|section| section.name != "policy") {
        let config = config_with_key(&section.name, "no_such_key", true.into());
        let refused = parse(&config).unwrap_err();
        assert!(refused.contains("unknown field `no_such_key`"), "{}: {refused}", section.name);
        // The parser names all that it would have taken.
        let (_, listed) = refused.split_once("expected ").unwrap();
        let takes: BTreeSet<&str> = listed.split('`').skip(1).step_by(2).collect();
        let documented: BTreeSet<&str> = section.keys.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(takes, documented, "{}", section.name);
    }
    let mut config: toml::Table = LEAST.parse().unwrap();
    config.insert("no_such_section".to_owned(), toml::Table::new().into());
    let refused = parse(&config).unwrap_err();
    for section in sections().iter().filter(|section| !section.name.contains('.')) {
        assert!(refused.contains(&format!("`{}`", section.name)), "{refused}");
    }
}

#[test]
fn every_key_says_what_it_means_what_to_write_and_its_unit() {
    let root = schema().to_string();
    assert!(!root.contains("$ref"), "a table behind a reference would not be listed");
    for section in sections() {
        for key in &section.keys {
            let name = format!("{}.{}", section.name, key.name);
            assert!(!key.meaning.is_empty(), "{name} has no doc comment");
            assert!(!key.kind.is_empty(), "{name} has no type");
            let is_table = ["table", "list of table"].contains(&key.kind.as_str());
            let is_shown = key.example.is_some() || key.default.is_some() || is_table;
            assert!(is_shown, "{name} has neither default nor example");
        }
    }
    let unitless = sections().into_iter().flat_map(|section| {
        let numeric = |key: &&Key| key.kind.contains("number") && key.unit.is_none();
        section.keys.iter().filter(numeric).map(|key| key.name.clone()).collect::<Vec<_>>()
    });
    let unitless: Vec<String> = unitless.collect();
    let wanted = [
        "seed",
        "pid",
        "order",
        "weight",
        "port",
        "exempt_ports",
        "port",
        "port",
        "kappa",
        "sigma",
        "queueing",
        "seed",
    ];
    assert_eq!(unitless, wanted, "numbers that count nothing");
}
