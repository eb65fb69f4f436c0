//! The page of a report: one file that loads nothing else.

use super::RecordedRun;
use super::charts::{self, Chart};
use super::journal::Highlights;
use super::summary::{Summary, Table};
use lull_agent::proof::Proof;
use lull_measure::escape::html as escape;
use maud::{DOCTYPE, Markup, PreEscaped, Render, html};

/// Content security policy: no script, and nothing from other places.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";
const STYLE: &str = include_str!("report.css");

/// Text from a record. Control characters become visible besides what HTML needs.
#[derive(Clone, Copy)]
struct Text<'a>(&'a str);

impl Render for Text<'_> {
    fn render_to(&self, buffer: &mut String) {
        buffer.push_str(&escape(self.0));
    }
}

/// The page.
pub(super) fn page(all: &[RecordedRun], summary: &Summary) -> anyhow::Result<String> {
    let names: Vec<&str> = all.iter().map(|recorded| recorded.name.as_str()).collect();
    let title = format!("Lull: {}", names.join(", "));
    let compared = charts::of_all(summary)?;
    let runs = all.iter().map(|recorded| run(recorded, all.len() > 1));
    let runs = runs.collect::<anyhow::Result<Vec<Markup>>>()?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (Text(&title)) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    h1 { (Text(&title)) }
                    (section("What ran where", &table(&summary.runs)))
                    (section("Results", &table(&summary.parts)))
                    @if !compared.is_empty() {
                        (section("Side by side", &figures(&compared)))
                    }
                    @for run in &runs { (run) }
                }
            }
        }
    };
    Ok(page.into_string())
}

fn run(recorded: &RecordedRun, is_one_of_many: bool) -> anyhow::Result<Markup> {
    let of = if is_one_of_many { format!(": {}", recorded.name) } else { String::new() };
    let over_time = figures(&charts::of_run(recorded)?);
    Ok(html! {
        @if let Some(proof) = &recorded.proof {
            (section(&format!("What the policy changes{of}"), &proved(proof)))
        }
        (section(&format!("Over time{of}"), &over_time))
        @if recorded.journal.total > 0 {
            (section(&format!("Journal{of}"), &journal(&recorded.journal)))
        }
    })
}

fn journal(journal: &Highlights) -> Markup {
    html! {
        p {
            (journal.lines.len()) " of the journal's " (journal.total) " entries: what was out of \
            the ordinary, and the moves after which the metric that they aimed at moved most."
        }
        ol {
            @for (time_s, text) in &journal.lines {
                li { b { (format!("{time_s:.1} s")) } " " (Text(text)) }
            }
        }
    }
}

fn proved(proof: &Proof) -> Markup {
    html! {
        (table(&Table::of_proof(proof)))
        @for note in proof.notes() { p { (Text(&note)) } }
    }
}

fn section(title: &str, body: &Markup) -> Markup {
    html! {
        section {
            h2 { (Text(title)) }
            (body)
        }
    }
}

/// Returns a table that scrolls horizontally if it is wide, also with the keyboard.
fn table(table: &Table) -> Markup {
    html! {
        div.wide tabindex="0" {
            table {
                thead {
                    tr {
                        td {}
                        @for name in &table.columns { th scope="col" { (Text(name)) } }
                    }
                }
                tbody {
                    @for (name, cells) in &table.rows {
                        tr {
                            th scope="row" { (Text(name)) }
                            @for cell in cells { td { (Text(cell)) } }
                        }
                    }
                }
            }
        }
    }
}

fn figures(charts: &[Chart]) -> Markup {
    html! {
        @for chart in charts {
            // The drawing contains its title; a screen reader reads the title as the label.
            figure role="img" aria-label=(Text(&chart.caption)) tabindex="0" {
                (PreEscaped(&chart.svg))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_text_whatever_it_contains() {
        let text = Text("</td><script>alert('x')</script>\" onload=\"&\u{0}");
        let page = html! { td title=(text) { (text) } }.into_string();
        assert_eq!(page.matches(['<', '>']).count(), 4, "{page}");
        assert_eq!(page.matches('"').count(), 2, "{page}");
        assert!(!page.contains(['\'', '\u{0}']) && page.contains("&lt;script&gt;"), "{page}");
    }
}
