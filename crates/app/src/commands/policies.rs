//! `lull policies`: the registry, for people, programs and the docs.

use crate::cli::ListArgs;
use crate::text::table;
use lull_control::Capability;
use lull_policies::{Entry, beside, placers, registry, regulators};

pub(crate) fn run(args: &ListArgs) -> anyhow::Result<()> {
    if args.json {
        let policies = registry::ALL.iter().map(|entry| serde_json::to_value(entry.describe()));
        let placers = placers::ALL.iter().map(|entry| serde_json::to_value(entry.describe()));
        let regulators = regulators::ALL.iter().map(|entry| serde_json::to_value(entry.describe()));
        let all: Vec<_> = policies.chain(placers).chain(regulators).collect::<Result<_, _>>()?;
        return super::print_json(&all);
    }
    if args.markdown {
        print!("{}", registry::markdown());
        return Ok(());
    }
    let header = |what| [what, "what it does", "from", "needs", "defaults"];
    let rows = registry::ALL.iter().map(|entry| row(entry));
    println!("{}", table(&header("policy"), rows));
    let rows = placers::ALL.iter().map(|entry| row_beside(entry));
    println!("\n{}", table(&header("placer"), rows));
    let rows = regulators::ALL.iter().map(|entry| row_beside(entry));
    println!("\n{}", table(&header("regulator"), rows));
    Ok(())
}

fn row_beside<M>(entry: &beside::Entry<M>) -> Vec<String> {
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
