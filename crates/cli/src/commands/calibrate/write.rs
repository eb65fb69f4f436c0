//! Writes the findings into the config; comments, order and spacing stay.

use anyhow::{Context, bail};
use lull_measure::Nanos;
use toml_edit::{DocumentMut, Item, Table, Value};

/// Keys of one app that were found.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Keys {
    pub(super) ideal: Option<Nanos>,
    pub(super) max_load: Option<f64>,
    pub(super) solo: Option<f64>,
}

/// The config's text with the keys of these apps, by name.
///
/// # Errors
/// If the text is not a config, or has no app of a name.
pub(super) fn with_keys(text: &str, found: &[(String, Keys)]) -> anyhow::Result<String> {
    let mut document: DocumentMut = text.parse().context("the config is no longer TOML")?;
    for (name, keys) in found {
        let app = app_named(&mut document, name)?;
        if let Some(ideal) = keys.ideal {
            put(app, "ideal", format!("{ideal:.3}").into());
        }
        if let Some(max_load) = keys.max_load {
            put(app, "max_load", rounded(max_load).into());
        }
        if let Some(solo) = keys.solo {
            put(app, "solo", rounded(solo).into());
        }
    }
    Ok(document.to_string())
}

fn app_named<'a>(document: &'a mut DocumentMut, name: &str) -> anyhow::Result<&'a mut Table> {
    let apps = document.get_mut("app").and_then(Item::as_array_of_tables_mut);
    let has_name = |app: &&mut Table| app.get("name").and_then(Item::as_str) == Some(name);
    match apps.and_then(|apps| apps.iter_mut().find(has_name)) {
        Some(app) => Ok(app),
        None => bail!("the config has no [[app]] called `{name}` to write to"),
    }
}

/// Sets a key; a comment behind the old value stays behind the new one.
fn put(app: &mut Table, key: &str, mut value: Value) {
    if let Some(old) = app.get(key).and_then(Item::as_value) {
        *value.decor_mut() = old.decor().clone();
        app[key] = Item::Value(value);
    } else {
        app.insert(key, Item::Value(value));
    }
}

/// Rounds to four digits, more than a measurement is accurate to.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let unit = 10f64.powf(value.abs().log10().floor() - 3.0);
    // Round through decimal text, so that no digits of the binary fraction remain.
    let digits = (-unit.log10()).max(0.0).round() as usize;
    format!("{:.digits$}", (value / unit).round() * unit).parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# my config\n[policy]\nname = \"arq\"\n\n[[app]]\n\
        name = \"a\"   # the first\nideal = \"measure\"  # alone\n\
        class = \"latency-critical\"\n\n[[app]]\n# the second\n\
        name = \"b\"\nclass = \"best-effort\"\n";

    #[test]
    fn values_change_and_nothing_else_does() {
        let keys = Keys { ideal: Some(Nanos(1_234_567)), max_load: Some(1234.567), solo: None };
        let text = with_keys(TEXT, &[("a".to_owned(), keys)]).unwrap();
        let wanted = TEXT
            .replace("\"measure\"  # alone", "\"1.235ms\"  # alone")
            .replace("\"latency-critical\"\n", "\"latency-critical\"\nmax_load = 1235.0\n");
        assert_eq!(text, wanted);
        let again = Keys { solo: Some(2.5e9), ..Keys::default() };
        let text = with_keys(&text, &[("b".to_owned(), again)]).unwrap();
        assert!(text.contains("class = \"best-effort\"\nsolo = 2500000000.0\n"), "{text}");
        assert!(text.contains("# the second\nname = \"b\""), "{text}");
    }

    #[test]
    fn an_app_that_is_not_there_is_named() {
        let error = with_keys(TEXT, &[("c".to_owned(), Keys::default())]).unwrap_err();
        assert!(error.to_string().contains("`c`"), "{error}");
    }

    #[test]
    fn four_digits_are_kept_at_any_size() {
        let cases = [(0.012_345_6, 0.01235), (1234.567, 1235.0), (98_765.4, 98_770.0), (0.0, 0.0)];
        for (value, wanted) in cases {
            assert_eq!(rounded(value), wanted);
        }
    }
}
