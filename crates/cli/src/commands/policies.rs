//! `lull policies`: the registries, as a table, as JSON and as docs/policies.md.

use crate::cli::ListArgs;
use crate::progress::parts;
use crate::text::table_of_lines;
use anyhow::Context;
use lull_lab::portrait;
use lull_policies::{ADMISSION_CONTROLLERS, DISPATCHERS, Entry, Kind, POLICIES, markdown};
use rayon::prelude::*;
use std::path::Path;

pub(crate) fn run(args: &ListArgs) -> anyhow::Result<()> {
    if args.json {
        let policies = POLICIES.iter().map(|entry| serde_json::to_value(entry.describe()));
        let dispatchers = DISPATCHERS.iter().map(|entry| serde_json::to_value(entry.describe()));
        let admission_controllers =
            ADMISSION_CONTROLLERS.iter().map(|entry| serde_json::to_value(entry.describe()));
        let all: Vec<_> =
            policies.chain(dispatchers).chain(admission_controllers).collect::<Result<_, _>>()?;
        return super::print_json(&all);
    }
    if let Some(directory) = &args.figures {
        return figures(directory);
    }
    if args.markdown {
        print!("{}", markdown::page());
        return Ok(());
    }
    let header = |what| [what, "what it does", "from", "needs", "defaults"];
    let rows = POLICIES.iter().map(row);
    println!("{}", table_of_lines(&header("policy"), rows));
    let rows = DISPATCHERS.iter().map(row);
    println!("\n{}", table_of_lines(&header("dispatcher"), rows));
    let rows = ADMISSION_CONTROLLERS.iter().map(row);
    println!("\n{}", table_of_lines(&header("admission controller"), rows));
    Ok(())
}

/// Draws the picture of each policy that has one, with one thread for each core.
fn figures(directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))?;
    let names = portrait::names();
    let bar = parts().with_message("drawing");
    bar.set_length(names.len() as u64);
    let one = |name: &&str| {
        let drawn = portrait::draw(name).with_context(|| format!("policy `{name}`"))?;
        let path = directory.join(format!("{name}.svg"));
        std::fs::write(&path, drawn).with_context(|| format!("cannot write {}", path.display()))?;
        bar.inc(1);
        Ok(())
    };
    let written: anyhow::Result<()> = names.par_iter().try_for_each(one);
    bar.finish_and_clear();
    written
}

fn listed(defaults: &toml::Table) -> String {
    let lines: Vec<_> = defaults.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    lines.join("\n")
}

fn row<K: Kind>(entry: &Entry<K>) -> Vec<String> {
    vec![
        entry.name.to_owned(),
        entry.summary.to_owned(),
        entry.paper.to_owned(),
        entry.kind.needs(),
        listed(&entry.defaults()),
    ]
}
