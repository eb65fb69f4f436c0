//! `lull keys`: every key of a config, for people, editors and the docs.

use crate::cli::KeysArgs;
use crate::text::table;
use lull_agent::config::reference::{markdown, schema, sections};

pub(crate) fn run(args: &KeysArgs) -> anyhow::Result<()> {
    if args.json {
        return super::print_json(&sections());
    }
    if args.schema {
        return super::print_json(&schema());
    }
    if args.markdown {
        print!("{}", markdown());
        return Ok(());
    }
    for section in sections() {
        println!("{}\n", section.heading());
        let rows = section.keys.iter().map(|key| {
            let unit = key.unit.clone().unwrap_or_default();
            let plain = |text: &str| text.replace('`', "");
            let default = plain(&key.default_text());
            vec![key.name.clone(), plain(&key.kind), unit, default, plain(&key.meaning)]
        });
        println!("{}\n", table(&["key", "type", "unit", "default", "meaning"], rows));
    }
    Ok(())
}
