//! Label selectors as `kubectl` reads them: `tier=web,env!=test,!canary,zone in (a,b)`.

use kube::core::{Expression, Selector};

/// Reads a selector; an empty text selects everything.
///
/// # Errors
/// The part that is not a requirement.
pub(crate) fn parse(text: &str) -> Result<Selector, String> {
    let parts = split(text);
    parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()).map(expression).collect()
}

/// Splits at the commas that are not in parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    text.split(move |letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    })
    .collect()
}

fn expression(part: &str) -> Result<Expression, String> {
    let wrong = || {
        format!(
            "`{part}` is not a requirement: write key=value, key!=value, key, !key, or key in (a,b)"
        )
    };
    let key = |text: &str| {
        let text = text.trim();
        let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
        let is_key = !text.is_empty() && text.chars().all(is_allowed);
        is_key.then(|| text.to_owned()).ok_or_else(wrong)
    };
    if let Some(set) = part.strip_suffix(')') {
        let (left, values) = set.split_once('(').ok_or_else(wrong)?;
        let values = values.split(',').map(key).collect::<Result<_, _>>()?;
        return match left.trim().rsplit_once(' ') {
            Some((name, "in")) => Ok(Expression::In(key(name)?, values)),
            Some((name, "notin")) => Ok(Expression::NotIn(key(name)?, values)),
            _ => Err(wrong()),
        };
    }
    let value = |text: &str| if text.trim().is_empty() { Ok(String::new()) } else { key(text) };
    if let Some((left, right)) = part.split_once("!=") {
        return Ok(Expression::NotEqual(key(left)?, value(right)?));
    }
    if let Some((left, right)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(Expression::Equal(key(left)?, value(right)?));
    }
    match part.strip_prefix('!') {
        Some(name) => Ok(Expression::DoesNotExist(key(name)?)),
        None => Ok(Expression::Exists(key(part)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::SelectorExt;
    use std::collections::BTreeMap;

    fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels: BTreeMap<String, String> =
            labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        parse(selector).unwrap().matches(&labels)
    }

    #[test]
    fn every_requirement_must_hold() {
        let web = [("tier", "web"), ("env", "prod")];
        for selector in [
            "",
            "tier=web",
            "tier==web, env!=test",
            "tier,!canary",
            "env in (prod,test),tier=web",
            "zone notin (a,b)",
            "zone!=a",
        ] {
            assert!(matches(selector, &web), "{selector}");
        }
        for selector in
            ["tier=db", "!tier", "canary", "env in (a)", "tier notin (web)", "env!=prod"]
        {
            assert!(!matches(selector, &web), "{selector}");
        }
    }

    #[test]
    fn what_is_no_requirement_is_named() {
        for selector in ["tier=web=db", "a b", "in (a)", "a in b)", "=x", "tier in (a;b)", "!"] {
            let error = parse(selector).unwrap_err();
            assert!(error.contains("is not a requirement"), "{selector}: {error}");
        }
    }
}
