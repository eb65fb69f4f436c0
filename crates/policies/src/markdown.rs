//! docs/policies.md, written from the registries.

use crate::config::Key;
use crate::entry::{Entry, Family, Kind};
use crate::registry::{ADMISSION_CONTROLLERS, DISPATCHERS, POLICIES};
use std::fmt::Write;

/// Returns the page: every entry with its source, needs, config and picture.
pub fn page() -> String {
    let mut page = String::from(
        "# Policies\n\n\
         Generated from the registry by `cargo run -p lull-policies --example markdown`; \
         do not edit.\n\
         A policy is chosen by `[policy] name = \"...\"`; its keys are beside the name.\n\n\
         Pictures are of the simulator, one scene for all of a kind \
         (`crates/lab/src/portrait`); `lull policies --figures docs/policies` draws them again, \
         to the same bytes.\n",
    );
    for family in Family::ALL {
        let _ = write!(page, "\n## {}\n", family.title());
        for entry in POLICIES.iter().filter(|entry| entry.kind.family == family) {
            page.push_str(&section(entry));
        }
    }
    page.push_str(
        "\n## Where each request runs\n\nDispatchers decide for single requests, beside the \
         policy of the machine; their keys are under `[dispatcher]`.\n",
    );
    page.extend(DISPATCHERS.iter().map(section));
    page.push_str(
        "\n## How many queries each connection runs\n\nAdmission controllers set at the gate \
         before a server's workers how many queries run at once; their keys are under \
         `[admission]`. Pictures count 4 s after the first 12 s; that of `auto` after 60 s, when \
         its surveys are over. While it surveys, the latency is that of every setting that it \
         tries ([auto](design/auto.md#while-it-surveys)).\n",
    );
    page.extend(ADMISSION_CONTROLLERS.iter().map(section));
    page
}

fn section<K: Kind>(entry: &Entry<K>) -> String {
    let mut text = format!("\n### {}\n\n{}\n\n", entry.name, entry.summary);
    let mut line = |title: &str, value: &str| {
        let _ = writeln!(text, "- {title}: {value}");
    };
    line("From", entry.paper);
    let needs = entry.kind.needs();
    line("Needs", if needs.is_empty() { "nothing" } else { &needs });
    for (title, value) in entry.kind.facts() {
        line(title, &value);
    }
    let picture = format!("\n![{0} at work](policies/{0}.svg)\n", entry.name);
    text + &keys_table(entry.keys(), &entry.defaults()) + &picture
}

/// Writes the keys with their defaults and meanings; empty if there are none.
fn keys_table(keys: &[Key], defaults: &toml::Table) -> String {
    if keys.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n| key | default | meaning |\n|---|---|---|\n");
    for key in keys {
        let default = defaults.get(key.name).map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "| `{}` | `{default}` | {} |", key.name, key.help.trim());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_is_the_one_that_the_registries_give() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/policies.md");
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(written, page(), "run the command in the first lines of docs/policies.md");
    }
}
