//! `lull policies`: the registry, for people, programs and the docs.

use crate::cli::ListArgs;
use crate::text::table;
use lull_control::Capability;
use lull_policies::{Entry, placers, registry};

pub(crate) fn run(args: &ListArgs) -> anyhow::Result<()> {
    if args.json {
        let policies = registry::ALL.iter().map(|entry| serde_json::to_value(entry.describe()));
        let placers = placers::ALL.iter().map(|entry| serde_json::to_value(entry.describe()));
        let all: Vec<_> = policies.chain(placers).collect::<Result<_, _>>()?;
        return super::print_json(&all);
    }
    if args.markdown {
        print!("{}", registry::markdown());
        return Ok(());
    }
    let rows = registry::ALL.iter().map(|entry| row(entry));
    println!("{}", table(&["policy", "what it does", "from", "needs", "defaults"], rows));
    let rows = placers::ALL.iter().map(|entry| placer_row(entry));
    println!("\n{}", table(&["placer", "what it does", "from", "needs", "defaults"], rows));
    Ok(())
}

fn placer_row(entry: &placers::Entry) -> Vec<String> {
    let texts = [entry.name, entry.summary, entry.paper, entry.needs].map(str::to_owned);
    texts.into_iter().chain([listed(&entry.defaults())]).collect()
}

fn listed(defaults: &toml::Table) -> String {
    let lines: Vec<_> = defaults.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    lines.join("\n")
}

fn row(entry: &Entry) -> Vec<String> {
    let needs: Vec<_> = entry.needs.iter().copied().map(Capability::name).collect();
    vec![
        entry.name.to_owned(),
        entry.summary.to_owned(),
        entry.paper.to_owned(),
        needs.join(", "),
        listed(&entry.defaults()),
    ]
}
