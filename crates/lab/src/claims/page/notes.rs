//! Notes below the table of a paper: systems, conditions, and the reasons of tolerances.

use super::super::{Claim, PaperClaims};
use std::fmt::Write;

/// The systems of a paper with what plays them, and each claim with its systems, its conditions
/// and the reason of its tolerance.
pub(super) fn text(paper: &PaperClaims) -> String {
    let mut text = "\n### Systems\n\n".to_owned();
    // Writing to a string cannot fail.
    for (name, what) in &paper.systems {
        let _ = writeln!(text, "- **{name}**: {what}.");
    }
    text.push_str("\n### Systems, conditions and tolerance of each claim\n\n");
    for (claim, number) in paper.claim.iter().zip(1..) {
        let _ = writeln!(text, "- **{number}.** {}", note(claim));
    }
    text
}

fn note(claim: &Claim) -> String {
    let mut note = claim.systems.join(", ");
    if !claim.conditions.is_empty() {
        let _ = write!(note, "; {}", claim.conditions);
    }
    if !claim.why.is_empty() {
        let _ = write!(note, ". Tolerance: {}", claim.why);
    }
    note.push('.');
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_has_its_systems_conditions_and_the_reason_of_its_tolerance() {
        let text = "paper = \"A\"\n[systems]\nx = \"ours\"\ny = \"theirs\"\n[[claim]]\n\
                    text = \"x is fast\"\nplace = \"abstract\"\nsystems = [\"x\", \"y\"]\n\
                    conditions = \"at noon\"\ntolerance = { at-least = 0.0 }\nwhy = \"its sign\"\n\
                    row = { experiment = \"ahq-cores\", name = \"speed\" }\n[[claim]]\n\
                    text = \"x is cheap\"\nsystems = [\"x\"]\nnone = \"no price\"\n";
        let paper: PaperClaims = toml::from_str(text).unwrap();
        let wanted = "\n### Systems\n\n- **x**: ours.\n- **y**: theirs.\n\n\
                      ### Systems, conditions and tolerance of each claim\n\n\
                      - **1.** x, y; at noon. Tolerance: its sign.\n- **2.** x.\n";
        assert_eq!(super::text(&paper), wanted);
    }
}
