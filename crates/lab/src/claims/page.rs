//! The claims as tables: for the terminal, and as the page `docs/reproduction.md`.

mod notes;
mod runs;

use super::results::MeasuredRow;
use super::{Claim, Finding, MissedRow, PaperClaims};
use crate::report::{Verdict, number_text};
use lull_sim::stats::Estimate;
use serde::Serialize;
use std::fmt::Write;

/// Heads of the columns of [`cells`].
pub const HEADER: [&str; 7] =
    ["claim", "printed in", "printed", "ours", "run", "tolerance", "verdict"];

/// A claim as cells of a table.
pub fn cells(claim: &Claim, results: &[MeasuredRow]) -> Vec<String> {
    let finding = claim.judge(results);
    let printed =
        claim.printed.map_or("-".to_owned(), |number| quantity(number_text(number), &claim.unit));
    let ours = ours_text(finding, &claim.unit);
    let tolerance = claim.tolerance_text();
    let run = run_text(claim, results);
    let place = claim.place.clone();
    vec![claim.text.clone(), place, printed, ours, run, tolerance, finding.to_string()]
}

/// A number with its unit.
fn quantity(number: String, unit: &str) -> String {
    if unit == "1" || unit.is_empty() { number } else { format!("{number} {unit}") }
}

/// A measured row with its interval.
fn ours_text(finding: Finding, unit: &str) -> String {
    let (Finding::Judged(_, estimate) | Finding::Quick(estimate)) = finding else {
        return "-".to_owned();
    };
    let Estimate { mean, half_width, values } = estimate;
    let mean = number_text(mean);
    match values {
        0 => quantity(mean, unit) + ", exact",
        _ if half_width == 0.0 => format!("{} (all {values} equal)", quantity(mean, unit)),
        _ => {
            let text = format!("{mean} ± {}", number_text(half_width));
            format!("{} (n = {values})", quantity(text, unit))
        }
    }
}

/// How the row of a claim was measured: `reef-os, full, seeds 1 2`.
fn run_text(claim: &Claim, results: &[MeasuredRow]) -> String {
    let Some(row) = claim.measured(results).filter(|row| row.mean.is_some()) else {
        return "-".to_owned();
    };
    let word = if row.seeds.contains(' ') { "seeds" } else { "seed" };
    let calibrated = if claim.is_calibrated() { ", calibrated" } else { "" };
    format!("{}, {}, {word} {}{calibrated}", row.experiment, row.length, row.seeds)
}

/// Returns the remark on a claim beyond its table row: the reason why no row answers it, the
/// attempts and the likely mechanism of a miss, the runs that an open row needs, or the attempts
/// before a parameter was chosen.
pub fn remark(claim: &Claim, results: &[MeasuredRow]) -> Option<String> {
    match claim.judge(results) {
        Finding::NoRow => Some(claim.none.clone()),
        Finding::Judged(verdict, _) if verdict.is_miss() => {
            let tried = match claim.untried {
                true => "Not tried: no run was made to test that".to_owned(),
                false => format!("Tried: {}", claim.tried.trim_end_matches('.')),
            };
            Some(format!("Most likely: {}. {tried}.", claim.mechanism.trim_end_matches('.')))
        }
        Finding::Judged(Verdict::Open, ours) => Some(runs::open_text(claim, &ours, results)),
        Finding::Judged(..) if claim.is_calibrated() && !claim.tried.is_empty() => {
            Some(format!("Calibrated. Tried before: {}.", claim.tried.trim_end_matches('.')))
        }
        Finding::Judged(..) | Finding::Quick(_) | Finding::TooFew => None,
    }
}

/// A paper's claims with their findings, for JSON.
#[derive(Debug, Serialize)]
pub struct PaperSummary<'c> {
    paper: &'c str,
    claims: Vec<ClaimSummary<'c>>,
}

/// A claim with its finding.
#[derive(Debug, Serialize)]
struct ClaimSummary<'c> {
    #[serde(flatten)]
    claim: &'c Claim,
    calibrated: bool,
    finding: Finding,
    run: String,
}

/// The claims of a paper with their findings.
pub fn summary<'c>(paper: &'c PaperClaims, results: &[MeasuredRow]) -> PaperSummary<'c> {
    let each = paper.claim.iter();
    let claims = each.map(|claim| ClaimSummary {
        claim,
        calibrated: claim.is_calibrated(),
        finding: claim.judge(results),
        run: run_text(claim, results),
    });
    PaperSummary { paper: &paper.paper, claims: claims.collect() }
}

/// How many of the claims have each finding, such as `12 pass, 3 open`.
pub fn tally<'c>(claims: impl Iterator<Item = &'c Claim>, results: &[MeasuredRow]) -> String {
    let findings: Vec<String> = claims.map(|claim| claim.judge(results).to_string()).collect();
    let verdicts = [Verdict::Pass, Verdict::Open, Verdict::Fail, Verdict::Contradicts];
    let names = verdicts.map(|verdict| verdict.to_string().to_lowercase()).into_iter();
    let rest = ["quick run only".to_owned(), Finding::TooFew.to_string()];
    let names = names.chain(rest).chain([Finding::NoRow.to_string()]);
    let counts = names.filter_map(|name| {
        let count = findings.iter().filter(|finding| **finding == name).count();
        (count > 0).then(|| format!("{count} {name}"))
    });
    counts.collect::<Vec<_>>().join(", ")
}

const HEAD: &str = "\
# Reproduction

What five papers claim, and what Lull's simulations of their systems give. To repeat a line, and
to write this page again:

    lull lab claims --experiments          # which experiment and row answers each claim
    lull lab run NAME --seeds 5            # runs it
    lull lab run NAME --save crates/lab/src/claims/results.csv && cargo xtask docs

Written by `lull lab claims --markdown`; do not edit.
";

const RULES: &str = "\
- **pass**: the whole 95 % interval (Student's t over n independent replications on the stated
  seeds) is inside the tolerance; **fail**: all of it is outside; **open**: it reaches across.
- **contradicts**: the interval excludes the printed sign, or the order of the systems that the
  paper states.
- **quick run only**: the figure is of a run with `--quick`, which is too short to decide.
- **too few values**: fewer than five independent values are recorded.
- **no row**: no experiment answers it, for the stated reason.

A tolerance of half to twice a printed change says that sign and order of size are compared: the
machines here are models, and their parameters are not those of the authors' machines. It has no
upper side where the claim says \"up to\" or \"at least\", and none that matters where a reduction
of more than 50 % is printed. Of a ratio below 1, twice is that of its inverse.

The column *run* states experiment, length (full or quick) and seeds. An experiment that
replicates each cell at least five times needs one seed; of n equal values a model without
random numbers is the reason. *Calibrated* marks a row whose figure a parameter of the model was
set to, or by whose miss a parameter was chosen: it shows that the model can have the figure, and
tests nothing.

More than half of the claims were written after their rows had been recorded, with the tolerance
that claims of the same kind or their rows had: such a verdict says less than one whose tolerance
was stated before the run.
Comparisons that a paper states in words have a line where an experiment has a recorded row for
them, also where it misses; claims that print a number are counted by themselves as well.
Numbers that are inputs of a model, or that only describe the authors' set-up, are no claims. Of
Ah-Q's Table II only the rows of the system are claims (`ahq-table2` has all cells), and the
full-speed column of the testbed in Table 2 of Wang et al. has none. ARQ has two readings:
latency-critical apps with or without priority in the shared region. A claim that does not say
*without priority* is judged by the reading with it; where an experiment records the other one,
that has a line of its own.
";

/// The page.
pub fn page(papers: &[PaperClaims], results: &[MeasuredRow]) -> String {
    let all = || papers.iter().flat_map(|paper| &paper.claim);
    let headline = tally(all().filter(|claim| claim.is_headline()), results);
    let (count, tallied) = (all().count(), tally(all(), results));
    let mut page = format!(
        "{HEAD}\nClaims of abstracts and conclusions: {headline}.\nAll {count} claims: {tallied}.\n"
    );
    let calibrated = || all().filter(|claim| claim.is_calibrated());
    if calibrated().next().is_some() {
        let tally = tally(calibrated(), results);
        let _ = writeln!(page, "Of these, {} are calibrated: {tally}.", calibrated().count());
    }
    let _ = writeln!(page, "{}", held_out_text(all(), results));
    let numbered = || all().filter(|claim| claim.printed.is_some());
    if numbered().next().is_some() {
        let (count, tally) = (numbered().count(), tally(numbered(), results));
        let _ = writeln!(page, "{count} claims print a number: {tally}.");
        let _ = writeln!(page, "{}", shares_text(numbered(), results));
    }
    let _ = write!(page, "\n{RULES}\n{}", runs::seeds_text(papers, results));
    for paper in papers {
        add_paper(&mut page, paper, results);
    }
    page.push_str(&runs::table(results));
    page
}

/// The shares that pass of the claims with a number: of all, of those that an experiment answers,
/// and of those of them to whose rows no parameter was set.
fn shares_text<'c>(
    numbered: impl Iterator<Item = &'c Claim> + Clone,
    results: &[MeasuredRow],
) -> String {
    let share = |claims: Vec<&Claim>| {
        let is_passed = |claim: &&&Claim| claim.judge(results).verdict() == Some(Verdict::Pass);
        let (passed, count) = (claims.iter().filter(is_passed).count(), claims.len());
        let percent = 100.0 * passed as f64 / count.max(1) as f64;
        format!("{passed} of {count} ({percent:.0} %)")
    };
    let answered = numbered.clone().filter(|claim| claim.row.is_some());
    let held_out = answered.clone().filter(|claim| !claim.is_calibrated());
    format!(
        "Of the claims that print a number, {} pass; without those that no experiment answers {}; \
         held out {}.",
        share(numbered.collect()),
        share(answered.collect()),
        share(held_out.collect())
    )
}

/// The share of the answered claims to whose rows no parameter was set, and their findings.
fn held_out_text<'c>(
    claims: impl Iterator<Item = &'c Claim> + Clone,
    results: &[MeasuredRow],
) -> String {
    let answered = claims.filter(|claim| claim.row.is_some());
    let held_out = answered.clone().filter(|claim| !claim.is_calibrated());
    let (count, of) = (held_out.clone().count(), answered.count());
    let findings =
        if count == 0 { String::new() } else { format!(": {}", tally(held_out, results)) };
    format!("Held out, no parameter being set to them: {count} of the {of} with a row{findings}.")
}

fn add_paper(page: &mut String, paper: &PaperClaims, results: &[MeasuredRow]) {
    // Writing to a string cannot fail.
    let _ = writeln!(page, "\n## {}\n", paper.paper);
    let _ = writeln!(page, "{}.", tally(paper.claim.iter(), results));
    let _ = writeln!(page, "{}\n", held_out_text(paper.claim.iter(), results));
    let _ = writeln!(page, "| | {} |\n|{}", HEADER.join(" | "), "---|".repeat(HEADER.len() + 1));
    for (claim, number) in paper.claim.iter().zip(1..) {
        let cells = cells(claim, results).join(" | ").replace('\n', " ");
        let _ = writeln!(page, "| {number} | {cells} |");
    }
    let remarks = paper.claim.iter().zip(1..);
    let remarks = remarks.filter_map(|(claim, at)| Some((at, remark(claim, results)?)));
    for (at, (number, remark)) in remarks.enumerate() {
        let blank = if at == 0 { "\n" } else { "" };
        let _ = writeln!(page, "{blank}- **{number}.** {remark}");
    }
    add_missed(page, &paper.missed, results);
    page.push_str(&notes::text(paper));
}

/// The rows that answer no claim, and miss their bounds.
fn add_missed(page: &mut String, missed: &[MissedRow], results: &[MeasuredRow]) {
    if missed.is_empty() {
        return;
    }
    let head = "Rows that answer no claim, and miss the bound that we set them:";
    let _ = writeln!(page, "\n{head}\n");
    for one in missed {
        let finding = one.judge(results);
        let unit = one.row.measured(results).map_or("", |row| row.unit.as_str());
        let (experiment, name) = (&one.row.experiment, &one.row.name);
        let (ours, bound, why) = (ours_text(finding, unit), one.comparison().tolerance, &one.why);
        let _ =
            writeln!(page, "- {experiment}, *{name}*: {ours}, bound {bound}: {finding}. {why}.");
    }
}

#[cfg(test)]
mod tests {
    use super::super::{check, results};
    use super::*;

    #[test]
    fn the_page_of_the_book_is_of_these_claims_and_results() {
        let (papers, measured) = check::embedded().unwrap_or_default();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reproduction.md");
        let found = std::fs::read_to_string(path).unwrap();
        assert_eq!(found, page(&papers, &measured), "write it again: cargo xtask docs");
    }

    #[test]
    fn a_calibrated_claim_says_what_was_tried_before() {
        let row = "speed (calibrated)";
        let text = format!(
            "paper = \"A\"\n[systems]\nx = \"ours\"\n[[claim]]\ntext = \"x is fast\"\n\
             place = \"abstract\"\nunit = \"%\"\nsystems = [\"x\"]\n\
             tolerance = {{ at-least = 0.0 }}\nwhy = \"its sign\"\n\
             row = {{ experiment = \"ahq-cores\", name = \"{row}\" }}\ntried = \"-40 %.\"\n"
        );
        let header = "experiment,row,unit,paper,mean,half_width,values,length,seeds,commit\n";
        let rows = format!("{header}ahq-cores,{row},%,,3,0.5,5,full,1 2 3 4 5,\n");
        let rows = results::parse(&rows).unwrap();
        let paper = check::read("claims.toml", &text, &rows).unwrap();
        let page = page(&[paper], &rows);
        assert!(page.contains("- **1.** Calibrated. Tried before: -40 %.\n"), "{page}");
        assert!(page.contains("Of these, 1 are calibrated: 1 pass."), "{page}");
    }

    #[test]
    fn a_claim_is_calibrated_by_its_own_key_as_by_the_name_of_its_row() {
        let header = "experiment,row,unit,paper,mean,half_width,values,length,seeds,commit\n";
        let rows = format!("{header}ahq-cores,speed,%,,3,0.5,5,full,1 2 3 4 5,\n");
        let rows = results::parse(&rows).unwrap();
        let text = |key: &str| {
            format!(
                "paper = \"A\"\n[systems]\nx = \"ours\"\n[[claim]]\ntext = \"x is fast\"\n\
                 place = \"abstract\"\nunit = \"%\"\nsystems = [\"x\"]\n\
                 tolerance = {{ at-least = 0.0 }}\nwhy = \"its sign\"\n{key}\
                 row = {{ experiment = \"ahq-cores\", name = \"speed\" }}\n"
            )
        };
        for (key, is_calibrated) in [("", false), ("calibrated = true\n", true)] {
            let paper = check::read("claims.toml", &text(key), &rows).unwrap();
            let stated = serde_json::to_value(summary(&paper, &rows)).unwrap();
            assert_eq!(stated["claims"][0]["calibrated"], is_calibrated, "{stated}");
            let page = page(&[paper], &rows);
            assert_eq!(page.contains("seeds 1 2 3 4 5, calibrated |"), is_calibrated, "{page}");
            assert_eq!(page.contains("Of these, 1 are calibrated: 1 pass."), is_calibrated);
            let held_out = match is_calibrated {
                true => "to them: 0 of the 1 with a row.",
                false => "to them: 1 of the 1 with a row: 1 pass.",
            };
            assert!(page.contains(held_out), "{page}");
        }
    }

    #[test]
    fn a_missed_claim_says_what_was_tried_and_an_unanswered_one_why() {
        let text = "paper = \"A\"\n[systems]\nx = \"ours\"\n[[claim]]\ntext = \"x is fast\"\n\
                    place = \"abstract\"\nunit = \"%\"\nsystems = [\"x\"]\n\
                    tolerance = { at-least = 0.0 }\nneutral = 0.0\nwhy = \"its sign\"\n\
                    row = { experiment = \"ahq-cores\", name = \"speed\" }\n\
                    tried = \"other seeds.\"\n\
                    mechanism = \"a queue (docs/design/x.md)\"\n[[claim]]\n\
                    text = \"x is cheap\"\nplace = \"Fig. 2\"\nsystems = [\"x\"]\n\
                    printed = 2.0\nnone = \"no price is printed\"\n[[missed]]\n\
                    row = { experiment = \"ahq-cores\", name = \"noise\" }\n\
                    tolerance = { at-most = 1.0 }\nwhy = \"ours\"\n";
        let header = "experiment,row,unit,paper,mean,half_width,values,length,seeds,commit\n";
        let rows = format!(
            "{header}ahq-cores,speed,%,,-3,0.5,5,full,1 2 3 4 5,\n\
             ahq-cores,noise,ms,,2,0.5,5,full,1 2 3 4 5,\n"
        );
        let rows = results::parse(&rows).unwrap();
        let paper = check::read("claims.toml", text, &rows).unwrap();
        let page = page(&[paper], &rows);
        let wanted = [
            "Claims of abstracts and conclusions: 1 contradicts.",
            "All 2 claims: 1 contradicts, 1 no row.",
            "1 claims print a number: 1 no row.",
            "| -3 ± 0.5 % (n = 5) | ahq-cores, full, seeds 1 2 3 4 5 | >= 0 | contradicts |",
            "- **1.** Most likely: a queue (docs/design/x.md). Tried: other seeds.\n",
            "- **2.** no price is printed\n",
            "- ahq-cores, *noise*: 2 ± 0.5 ms (n = 5), bound <= 1: fail. ours.\n",
            "| ahq-cores | full | 1 2 3 4 5 | - |",
        ];
        for line in wanted {
            assert!(page.contains(line), "{line}: {page}");
        }
    }
}
