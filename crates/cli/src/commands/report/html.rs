//! The page of a report: one file that loads nothing else.

use super::RecordedRun;
use super::charts::{self, Chart};
use super::summary::{Summary, Table};
use lull_agent::proof::Proof;
use lull_measure::escape::html as escape;
use std::fmt::Write;

/// Content security policy: no script, and nothing from other places.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
const STYLE: &str = include_str!("report.css");

/// The page.
pub(super) fn page(all: &[RecordedRun], summary: &Summary) -> anyhow::Result<String> {
    let names: Vec<&str> = all.iter().map(|recorded| recorded.name.as_str()).collect();
    let title = escape(&format!("Lull: {}", names.join(", ")));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n"
    );
    page.push_str(&section("What ran where", &table(&summary.runs)));
    page.push_str(&section("Results", &table(&summary.parts)));
    let compared = charts::of_all(summary)?;
    if !compared.is_empty() {
        page.push_str(&section("Side by side", &figures(&compared)));
    }
    for recorded in all {
        page.push_str(&of_run(recorded, all.len() > 1)?);
    }
    page.push_str("</main>\n</body>\n</html>\n");
    Ok(page)
}

fn of_run(recorded: &RecordedRun, is_one_of_many: bool) -> anyhow::Result<String> {
    let of = if is_one_of_many { format!(": {}", recorded.name) } else { String::new() };
    let mut text = String::new();
    if let Some(proof) = &recorded.proof {
        text.push_str(&section(&format!("What the policy changes{of}"), &proved(proof)));
    }
    text.push_str(&section(&format!("Over time{of}"), &figures(&charts::of_run(recorded)?)));
    let journal = &recorded.journal;
    if journal.total > 0 {
        let lines = journal.lines.iter();
        let line = |(time_s, said): &(f64, String)| {
            format!("<li><b>{time_s:.1} s</b> {}</li>\n", escape(said))
        };
        let lines: String = lines.map(line).collect();
        let shown = journal.lines.len();
        let count = format!(
            "<p>{shown} of the journal's {} entries: what was out of the ordinary, and the moves \
             after which the metric that they aimed at moved most.</p>\n",
            journal.total
        );
        text.push_str(&section(&format!("Journal{of}"), &format!("{count}<ol>\n{lines}</ol>\n")));
    }
    Ok(text)
}

fn proved(proof: &Proof) -> String {
    let notes: String =
        proof.notes().iter().map(|note| format!("<p>{}</p>\n", escape(note))).collect();
    table(&Table::of_proof(proof)) + &notes
}

fn section(title: &str, body: &str) -> String {
    format!("<section>\n<h2>{}</h2>\n{body}</section>\n", escape(title))
}

/// Returns a table that scrolls horizontally if it is wide, also with the keyboard.
fn table(table: &Table) -> String {
    let mut text =
        String::from("<div class=\"wide\" tabindex=\"0\">\n<table>\n<thead><tr><td></td>");
    for name in &table.columns {
        let _ = write!(text, "<th scope=\"col\">{}</th>", escape(name));
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for (name, cells) in &table.rows {
        let _ = write!(text, "<tr><th scope=\"row\">{}</th>", escape(name));
        for cell in cells {
            let _ = write!(text, "<td>{}</td>", escape(cell));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody>\n</table>\n</div>\n");
    text
}

fn figures(charts: &[Chart]) -> String {
    let figure = |chart: &Chart| {
        let caption = escape(&chart.caption);
        // The drawing contains its title; a screen reader reads the title as the label.
        format!(
            "<figure role=\"img\" aria-label=\"{caption}\" tabindex=\"0\">\n{}</figure>\n",
            chart.svg
        )
    };
    charts.iter().map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_text_whatever_stands_in_it() {
        let text = escape("</td><script>alert('x')</script>\" onload=\"&\u{0}");
        assert!(!text.contains(['<', '>', '"', '\'', '\u{0}']), "{text}");
        assert!(text.contains("&lt;script&gt;") && text.contains("&amp;"), "{text}");
    }
}
