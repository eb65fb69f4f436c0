//! `lull lab claims` and `lull lab check`: the papers' claims, and whether their files are sound.

use super::UsageError;
use crate::cli::{LabCheckArgs, LabClaimsArgs};
use crate::text::table;
use lull_lab::claims::check::{Refusal, embedded, read};
use lull_lab::claims::results::{self, MeasuredRow};
use lull_lab::claims::{PaperClaims, RESULTS, page};

/// Prints the claims of all papers, or of one.
pub(crate) fn print(args: &LabClaimsArgs) -> anyhow::Result<()> {
    let (papers, results) = embedded().map_err(refused)?;
    if args.markdown {
        print!("{}", page::page(&papers, &results));
        return Ok(());
    }
    let wanted = |paper: &&PaperClaims| match &args.paper {
        Some(word) => paper.paper.to_lowercase().contains(&word.to_lowercase()),
        None => true,
    };
    let chosen: Vec<_> = papers.iter().filter(wanted).collect();
    if chosen.is_empty() {
        let known: Vec<_> = papers.iter().map(|paper| paper.paper.as_str()).collect();
        let word = args.paper.as_deref().unwrap_or_default();
        let error = format!("no paper has `{word}` in its name; there are: {}", known.join(", "));
        return Err(UsageError(error).into());
    }
    if args.json {
        let all: Vec<_> = chosen.iter().map(|paper| page::summary(paper, &results)).collect();
        return super::print_json(&all);
    }
    for paper in chosen {
        println!("{}: {}\n", paper.paper, page::tally(paper.claim.iter(), &results));
        if args.experiments { print_rows(paper) } else { print_claims(paper, &results) }
    }
    Ok(())
}

fn print_claims(paper: &PaperClaims, results: &[MeasuredRow]) {
    let header: Vec<_> = [""].into_iter().chain(page::HEADER).collect();
    let rows = paper.claim.iter().zip(1..).map(|(claim, number)| {
        let mut cells = page::cells(claim, results);
        cells.insert(0, number.to_string());
        cells
    });
    println!("{}\n", table(&header, rows));
    for (claim, number) in paper.claim.iter().zip(1..) {
        if let Some(remark) = page::remark(claim, results) {
            println!("{number}. {remark}");
        }
    }
    println!();
}

fn print_rows(paper: &PaperClaims) {
    let rows = paper.claim.iter().map(|claim| {
        let (experiment, row) = match &claim.row {
            Some(row) => (row.experiment.clone(), row.name.clone()),
            None => ("-".to_owned(), format!("none: {}", claim.none)),
        };
        vec![claim.text.clone(), experiment, row]
    });
    println!("{}\n", table(&["claim", "experiment", "row"], rows));
}

/// Checks claims files, or those that are built in.
pub(crate) fn check(args: &LabCheckArgs) -> anyhow::Result<()> {
    let mut claims = 0;
    if args.files.is_empty() {
        let (papers, _) = embedded().map_err(refused)?;
        claims = papers.iter().map(|paper| paper.claim.len()).sum();
    }
    let results = results::parse(RESULTS)?;
    for path in &args.files {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| UsageError(format!("cannot read {name}: {error}")))?;
        claims += read(&name, &text, &results).map_err(refused)?.claim.len();
    }
    println!("{claims} claims are sound");
    Ok(())
}

fn refused(refusals: Vec<Refusal>) -> anyhow::Error {
    let lines: Vec<_> = refusals.into_iter().map(|refusal| refusal.to_string()).collect();
    UsageError(lines.join("\n")).into()
}
