//! `lull policies`: the registry, for people, programs and the docs.

use crate::cli::ListArgs;
use crate::text::table;
use lull_control::Capability;
use lull_policies::{Entry, registry};

pub(crate) fn run(args: &ListArgs) -> anyhow::Result<()> {
    if args.json {
        let all: Vec<_> = registry::ALL.iter().map(|entry| entry.describe()).collect();
        return super::print_json(&all);
    }
    if args.markdown {
        print!("{}", registry::markdown());
        return Ok(());
    }
    let rows = registry::ALL.iter().map(|entry| row(entry));
    println!("{}", table(&["policy", "what it does", "from", "needs", "defaults"], rows));
    Ok(())
}

fn row(entry: &Entry) -> Vec<String> {
    let needs: Vec<_> = entry.needs.iter().copied().map(Capability::name).collect();
    let defaults = entry.defaults();
    let defaults: Vec<_> = defaults.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    vec![
        entry.name.to_owned(),
        entry.summary.to_owned(),
        entry.paper.to_owned(),
        needs.join(", "),
        defaults.join("\n"),
    ]
}
