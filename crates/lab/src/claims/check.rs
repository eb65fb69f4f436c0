//! Refuses claims files that state a number without its place, a tolerance without its reason,
//! or a system, experiment or row that does not exist.

use super::results::{self, MeasuredRow};
use super::{Claim, FILES, MissedRow, PaperClaims, RESULTS, RowName, SEED_BUDGET, ToleranceEntry};
use crate::registry::find;
use crate::report::Verdict;
use std::fmt;

/// Where the pages are that take a mechanism apart.
const PAGES: &str = "docs/design/";

/// An error in a claims file, with its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The file.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The key.
    pub key: &'static str,
    /// The error and the correction.
    pub what: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, key, what } = self;
        let key = if key.is_empty() { String::new() } else { format!("{key}: ") };
        write!(f, "{file}:{line}: {key}{what}")
    }
}

/// The claims and measured rows of this build.
///
/// # Errors
/// As [`read`], and if the measured rows are damaged.
pub fn embedded() -> Result<(Vec<PaperClaims>, Vec<MeasuredRow>), Vec<Refusal>> {
    let refused = |line, key, what| {
        let file = "crates/lab/src/claims/results.csv".to_owned();
        vec![Refusal { file, line, key, what }]
    };
    let results = results::parse(RESULTS).map_err(|error| {
        let line = error.position().map_or(1, |at| at.line() as usize);
        refused(line, "", error.to_string())
    })?;
    if let Some((line, what)) = over_budget(&results) {
        return Err(refused(line, "seeds", what));
    }
    if let Some((line, what)) = repeated(&results) {
        return Err(refused(line, "row", what));
    }
    let papers = FILES.iter().map(|(path, text)| read(path, text, &results));
    Ok((papers.collect::<Result<_, _>>()?, results))
}

/// Returns the line of the first row with more seeds than the budget, and the fault.
fn over_budget(results: &[MeasuredRow]) -> Option<(usize, String)> {
    let seeds = |row: &MeasuredRow| row.seeds.split_whitespace().count();
    // The first line has the names of the columns.
    let mut lines = results.iter().zip(2..);
    let (row, line) = lines.find(|&(row, _)| seeds(row) > SEED_BUDGET)?;
    let (count, name) = (seeds(row), &row.experiment);
    let what = format!(
        "`{name}` has {count} seeds, and the budget is {SEED_BUDGET}: record it with fewer, or \
         state a larger budget before the run"
    );
    Some((line, what))
}

/// Returns the line of the first row that an earlier line has already, and the fault.
fn repeated(results: &[MeasuredRow]) -> Option<(usize, String)> {
    let is_same = |a: &MeasuredRow, b: &MeasuredRow| a.experiment == b.experiment && a.row == b.row;
    let is_known = |at: usize| results[..at].iter().any(|row| is_same(row, &results[at]));
    let at = (0..results.len()).find(|at| is_known(*at))?;
    let MeasuredRow { experiment, row, .. } = &results[at];
    let what = format!(
        "`{experiment}` has `{row}` on an earlier line too: only the first would be read, so \
         remove one of them"
    );
    Some((at + 2, what))
}

/// Reads a claims file and checks it against the experiments and the measured rows.
///
/// # Errors
/// All faults, with file, line and key.
pub fn read(path: &str, text: &str, results: &[MeasuredRow]) -> Result<PaperClaims, Vec<Refusal>> {
    let parsed: PaperClaims = toml::from_str(text).map_err(|error| {
        let before = error.span().map_or("", |span| &text[..span.start]);
        let line = before.matches('\n').count() + 1;
        vec![Refusal { file: path.to_owned(), line, key: "", what: error.message().to_owned() }]
    })?;
    let claims = parsed.claim.iter().enumerate().map(|(at, claim)| {
        let mut found = wrong(claim, &parsed, results);
        found.extend(wrong_repeat(claim, &parsed.claim[..at]));
        found
    });
    let missed = parsed.missed.iter().map(|missed| wrong_missed(missed, results));
    let mut refusals = Vec::new();
    for (number, found) in claims.chain(missed).enumerate() {
        refusals.extend(found.into_iter().map(|(key, what)| {
            let line = line_of(text, number, key);
            Refusal { file: path.to_owned(), line, key, what }
        }));
    }
    if refusals.is_empty() { Ok(parsed) } else { Err(refusals) }
}

/// The line of a key in the claim of this number (missed rows are behind the claims), or of its
/// head if it has none.
fn line_of(text: &str, number: usize, key: &str) -> usize {
    let lines = || text.lines().zip(1..);
    let is_head = |line: &str| ["[[claim]]", "[[missed]]"].contains(&line.trim());
    let heads = lines().filter(|(line, _)| is_head(line)).map(|(_, at)| at);
    let heads: Vec<usize> = heads.collect();
    let head = heads.get(number).copied().unwrap_or(1);
    let end = heads.get(number + 1).copied().unwrap_or(usize::MAX);
    let is_key =
        |line: &str| line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='));
    let inside = lines().filter(|(_, at)| (head..end).contains(at));
    inside.filter(|(line, _)| is_key(line)).map(|(_, at)| at).next().unwrap_or(head)
}

/// Returns the faults of a claim, by key.
fn wrong(
    claim: &Claim,
    paper: &PaperClaims,
    results: &[MeasuredRow],
) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    if claim.text.trim().is_empty() {
        found.push(("text", "is empty: state what is claimed".to_owned()));
    }
    if claim.place.trim().is_empty() {
        let what = "is missing: state the section, figure or table in which it is printed";
        found.push(("place", what.to_owned()));
    }
    if claim.systems.is_empty() {
        found.push(("systems", "is empty: name the systems that are compared".to_owned()));
    }
    for system in claim.systems.iter().filter(|it| !paper.systems.contains_key(*it)) {
        let known: Vec<_> = paper.systems.keys().map(String::as_str).collect();
        let known = known.join(", ");
        found.push(("systems", format!("`{system}` is not in [systems]; there are: {known}")));
    }
    if let Some(tolerance) = claim.tolerance {
        if claim.why.trim().is_empty() {
            found.push(("tolerance", "has no reason: write it as `why`".to_owned()));
        }
        found.extend(wrong_tolerance(tolerance, claim.printed));
    }
    if claim.calibrated && claim.row.is_none() {
        found.push(("calibrated", "has no `row` that could be: remove it".to_owned()));
    }
    match (&claim.row, claim.none.trim().is_empty()) {
        (Some(_), true) => found.extend(wrong_row(claim, results)),
        (None, false) => {}
        (Some(_), false) => {
            found.push(("none", "contradicts `row`: keep one of them".to_owned()));
        }
        (None, true) => {
            let what = "is missing: name an experiment and a row, or the reason as `none`";
            found.push(("row", what.to_owned()));
        }
    }
    found
}

/// Returns the fault of a claim whose row an earlier claim has.
fn wrong_repeat(claim: &Claim, earlier: &[Claim]) -> Option<(&'static str, String)> {
    let row = claim.row.as_ref()?;
    let first = earlier.iter().position(|it| it.row.as_ref() == Some(row))? + 1;
    let RowName { experiment, name } = row;
    let what = format!(
        "`{experiment}` `{name}` answers claim {first} already, so that one run would count twice: \
         give this claim a row of its own, or the reason why there is none as `none`"
    );
    Some(("row", what))
}

/// Returns the fault of a tolerance.
fn wrong_tolerance(
    tolerance: ToleranceEntry,
    printed: Option<f64>,
) -> Option<(&'static str, String)> {
    use ToleranceEntry::{Absolute, Between, HalfOfChange, HalfOfRatio, Relative};
    let what = match tolerance {
        HalfOfChange(false) | HalfOfRatio(false) => {
            "is `false`, which states no tolerance: write `true`, or another tolerance".to_owned()
        }
        Between([low, high]) if low > high => {
            format!("is between {low} and {high}, which no value is: write the lower bound first")
        }
        Relative(_) | Absolute(_) | HalfOfChange(_) | HalfOfRatio(_) if printed.is_none() => {
            "is around the printed number, and there is none: add `printed`, or write `at-least`, \
             `at-most` or `between`"
                .to_owned()
        }
        _ => return None,
    };
    Some(("tolerance", what))
}

/// Returns the faults of a claim's stated attempts.
fn wrong_attempts(claim: &Claim, is_missed: bool) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let tried = claim.tried.trim().to_lowercase();
    let is_none = ["nothing", "not tried"].iter().any(|words| tried.starts_with(words));
    if is_none || tried.contains("not tried yet") {
        let what = "states that nothing was tried: remove it and write `untried = true`, or state \
                    what was tried";
        found.push(("tried", what.to_owned()));
    }
    if claim.untried && !tried.is_empty() {
        found.push(("untried", "contradicts `tried`: keep one of them".to_owned()));
    }
    if is_missed && tried.is_empty() && !claim.untried {
        let what = "is missing: the claim is missed, so state what was tried, or `untried = true`";
        found.push(("tried", what.to_owned()));
    }
    if is_missed && claim.mechanism.trim().is_empty() {
        let what = "is missing: the claim is missed, so state the most likely reason";
        found.push(("mechanism", what.to_owned()));
    }
    found
}

/// Returns the faults of a row that is stated to miss its bound.
fn wrong_missed(missed: &MissedRow, results: &[MeasuredRow]) -> Vec<(&'static str, String)> {
    let mut found = Vec::from_iter(wrong_tolerance(missed.tolerance, None));
    if missed.why.trim().is_empty() {
        let what = "is empty: state where the bound is from and the most likely reason";
        found.push(("why", what.to_owned()));
    }
    let finding = missed.judge(results);
    if !finding.verdict().is_some_and(Verdict::is_miss) {
        let name = &missed.row.name;
        let what = format!("`{name}` does not miss its bound ({finding}): remove the entry");
        found.push(("row", what));
    }
    found
}

/// Returns the faults of the row that a claim names.
fn wrong_row(claim: &Claim, results: &[MeasuredRow]) -> Vec<(&'static str, String)> {
    let Some(row) = &claim.row else { return Vec::new() };
    if let Err(error) = find(&row.experiment) {
        return vec![("row", error.to_string())];
    }
    if claim.tolerance.is_none() {
        return vec![("tolerance", "is missing: a row is compared with one".to_owned())];
    }
    let Some(measured) = claim.measured(results) else {
        let name = &row.experiment;
        let what = format!(
            "`{name}` has no recorded row `{}`: correct it, or record the rows with `lull lab run \
             {name} --save crates/lab/src/claims/results.csv`",
            row.name
        );
        return vec![("row", what)];
    };
    let mut found = Vec::new();
    if measured.unit != claim.unit {
        let what = format!("is `{}`, and the row's unit is `{}`", claim.unit, measured.unit);
        found.push(("unit", what));
    }
    if let (Some(ours), Some(theirs)) = (claim.printed, measured.paper)
        && (ours - theirs).abs() > 1e-3 * theirs.abs()
    {
        found.push(("printed", format!("is {ours}, and the row prints {theirs}")));
    }
    let verdict = claim.judge(results).verdict();
    found.extend(wrong_attempts(claim, verdict.is_some_and(Verdict::is_miss)));
    let is_contradicted = verdict == Some(Verdict::Contradicts) && claim.is_headline();
    if is_contradicted && !claim.mechanism.contains(PAGES) {
        let what = format!(
            "names no page: the claim is one of abstract or conclusion, and is contradicted, so \
             write a page that takes the mechanism apart, and name it here as `{PAGES}NAME.md`"
        );
        found.push(("mechanism", what));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Finding;
    use super::*;

    const GOOD: &str = "paper = \"A\"\n[systems]\nx = \"ours\"\ny = \"theirs\"\n\n[[claim]]\n\
                        text = \"x is faster\"\nplace = \"abstract\"\nprinted = 2.0\nunit = \"1\"\n\
                        systems = [\"x\", \"y\"]\ntolerance = { half-of-ratio = true }\n\
                        why = \"a model\"\n\
                        row = { experiment = \"ahq-cores\", name = \"speed\" }\n";

    fn measured(mean: f64) -> Vec<MeasuredRow> {
        let header = "experiment,row,unit,paper,mean,half_width,values,length,seeds,commit\n";
        let row = format!("ahq-cores,speed,1,2,{mean},0.1,5,full,1 2 3 4 5,abc\n");
        results::parse(&(header.to_owned() + &row)).unwrap()
    }

    fn refusals(text: &str, mean: f64) -> Vec<String> {
        let refused = read("claims.toml", text, &measured(mean)).unwrap_err();
        refused.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_claim_is_judged_by_the_interval_of_its_row() {
        let paper = read("claims.toml", GOOD, &measured(1.9)).unwrap();
        let verdict = |mean| paper.claim[0].judge(&measured(mean)).verdict().unwrap().to_string();
        assert_eq!([1.9, 1.5, 1.2, 0.7].map(verdict), ["pass", "open", "FAIL", "CONTRADICTS"]);
        assert_eq!([2.8, 3.0, 3.4].map(verdict), ["pass", "open", "FAIL"], "twice the change is 3");
        let up_to = GOOD.replace("x is faster", "x is up to twice as fast");
        let up_to = read("claims.toml", &up_to, &measured(3.4)).unwrap();
        assert_eq!(up_to.claim[0].judge(&measured(3.4)).verdict(), Some(Verdict::Pass));
        let mut few = measured(1.9);
        few[0].values = 4;
        assert_eq!(paper.claim[0].judge(&few), Finding::TooFew);
        let mut quick = measured(1.9);
        quick[0].length = results::Length::Quick;
        assert!(matches!(paper.claim[0].judge(&quick), Finding::Quick(it) if it.values == 5));
    }

    #[test]
    fn bad_claims_are_refused_with_file_line_and_key() {
        let cases = [
            ("place = \"abstract\"\n", "", "claims.toml:6: place: is missing"),
            ("why = \"a model\"\n", "", "claims.toml:12: tolerance: has no reason"),
            ("\"x\", \"y\"]", "\"x\", \"z\"]", "claims.toml:11: systems: `z` is not in [systems]"),
            ("\"ahq-cores\"", "\"ahq\"", "claims.toml:14: row: no experiment is called `ahq`"),
            (
                "\"speed\"",
                "\"sped\"",
                "claims.toml:14: row: `ahq-cores` has no recorded row `sped`",
            ),
            (
                "printed = 2.0",
                "printed = 3.0",
                "claims.toml:9: printed: is 3, and the row prints 2",
            ),
            ("unit = \"1\"", "unit = \"%\"", "claims.toml:10: unit: is `%`"),
            ("place =", "plaice =", "claims.toml:8: unknown field `plaice`"),
        ];
        for (from, to, wanted) in cases {
            let found = refusals(&GOOD.replace(from, to), 1.9);
            assert!(found.iter().any(|it| it.starts_with(wanted)), "{wanted}: {found:?}");
        }
        let row = "row = { experiment = \"ahq-cores\", name = \"speed\" }\n";
        let found = refusals(&GOOD.replace(row, "calibrated = true\nnone = \"no row\"\n"), 1.9);
        assert!(found[0].starts_with("claims.toml:14: calibrated: has no `row`"), "{found:?}");
        let found = refusals(GOOD, 0.7);
        assert!(found[0].starts_with("claims.toml:6: tried: is missing"), "{found:?}");
    }

    #[test]
    fn a_tolerance_that_states_nothing_is_refused() {
        let cases = [
            ("half-of-ratio = true", "half-of-ratio = false", "is `false`"),
            ("half-of-ratio = true", "between = [3.0, 1.0]", "is between 3 and 1"),
        ];
        for (from, to, wanted) in cases {
            let found = refusals(&GOOD.replace(from, to), 1.9);
            let wanted = format!("claims.toml:12: tolerance: {wanted}");
            assert!(found[0].starts_with(&wanted), "{found:?}");
        }
        let unprinted = GOOD.replace("printed = 2.0\n", "");
        for kind in ["relative = 0.1", "absolute = 1.0", "half-of-change = true"] {
            let found = refusals(&unprinted.replace("half-of-ratio = true", kind), 1.9);
            assert!(found[0].contains("is around the printed number"), "{kind}: {found:?}");
        }
    }

    #[test]
    fn a_row_that_answers_two_claims_or_is_twice_in_the_results_is_refused() {
        let second = GOOD.split("\n\n").nth(1).unwrap();
        let found = refusals(&format!("{GOOD}{second}"), 1.9);
        assert!(found[0].contains("answers claim 1 already"), "{found:?}");
        let mut rows = measured(1.9);
        assert_eq!(repeated(&rows), None);
        rows.extend(measured(2.0));
        let (line, what) = repeated(&rows).unwrap();
        assert!(line == 3 && what.contains("on an earlier line too"), "{what}");
    }

    #[test]
    fn an_attempt_is_stated_or_stated_to_be_missing() {
        let page = "mechanism = \"a queue (docs/design/arq.md)\"\n";
        let with = |keys: &str| format!("{GOOD}{page}{keys}");
        for tried in ["nothing beyond the experiment yet", "Not tried yet", "a. Not tried yet: b"] {
            let found = refusals(&with(&format!("tried = \"{tried}\"\n")), 0.7);
            assert!(found[0].contains("tried: states that nothing was tried"), "{found:?}");
        }
        assert!(read("claims.toml", &with("untried = true\n"), &measured(0.7)).is_ok());
        let both = refusals(&with("untried = true\ntried = \"other seeds\"\n"), 0.7);
        assert!(both[0].contains("untried: contradicts `tried`"), "{both:?}");
    }

    #[test]
    fn a_contradicted_claim_of_an_abstract_names_the_page_that_takes_it_apart() {
        let with = |mechanism: &str| format!("{GOOD}untried = true\nmechanism = \"{mechanism}\"\n");
        let found = refusals(&with("a queue"), 0.7);
        assert!(found[0].starts_with("claims.toml:16: mechanism: names no page"), "{found:?}");
        assert!(read("claims.toml", &with("a queue (docs/design/arq.md)"), &measured(0.7)).is_ok());
        let elsewhere = with("a queue").replace("\"abstract\"", "\"section 5\"");
        assert!(read("claims.toml", &elsewhere, &measured(0.7)).is_ok());
        assert!(read("claims.toml", &with("a queue"), &measured(1.2)).is_ok(), "it only fails");
    }

    #[test]
    fn pages_that_claims_name_exist() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (papers, _) = embedded().unwrap();
        let claims = papers.iter().flat_map(|paper| &paper.claim);
        let texts = claims.flat_map(|claim| [&claim.mechanism, &claim.tried, &claim.why]);
        let pages = texts.flat_map(|text| text.match_indices(PAGES).map(|(at, _)| &text[at..]));
        let pages: Vec<_> = pages.map(|text| text.split([')', ',', ';', ' ']).next()).collect();
        assert!(!pages.is_empty());
        for page in pages.into_iter().flatten() {
            assert!(root.join(page).is_file(), "{page}");
        }
    }

    #[test]
    fn a_row_is_missed_only_as_long_as_it_misses_its_bound() {
        let missed = "[[missed]]\nrow = { experiment = \"ahq-cores\", name = \"speed\" }\n\
                      tolerance = { at-least = 2.5 }\nwhy = \"ours\"\n";
        let text = GOOD.to_owned() + missed;
        assert!(read("claims.toml", &text, &measured(1.9)).is_ok());
        let found = refusals(&text, 2.8);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("claims.toml:16: row: `speed` does not miss"), "{found:?}");
        let found = refusals(&text.replace("\"ours\"\n", "\"\"\n"), 1.9);
        assert!(found[0].starts_with("claims.toml:18: why: is empty"), "{found:?}");
    }

    #[test]
    fn a_row_of_more_seeds_than_the_budget_is_refused() {
        let mut rows = measured(1.9);
        assert_eq!(over_budget(&rows), None);
        rows[0].seeds = vec!["1"; SEED_BUDGET + 1].join(" ");
        let (line, what) = over_budget(&rows).unwrap();
        assert!(line == 2 && what.contains("has 21 seeds, and the budget is 20"), "{what}");
    }

    #[test]
    fn the_claims_of_this_build_are_sound() {
        let (papers, results) = embedded().unwrap_or_else(|refused| {
            let lines: Vec<_> = refused.iter().map(ToString::to_string).collect();
            panic!("{}", lines.join("\n"))
        });
        assert_eq!(papers.len(), FILES.len());
        assert!(papers.iter().all(|paper| paper.claim[0].is_headline()));
        assert!(!results.is_empty());
    }
}
