//! A proof as text: the cells of its table, and a sentence for each difference that it does not
//! show.

use super::{Difference, Disturbance, Figure, PAIRS_MIN, Proof};
use crate::text::number;

/// Apps that arrived or departed and are named.
const NAMED_MAX: usize = 8;

impl Proof {
    /// The headings of [`Proof::cells`].
    pub fn header(&self) -> [&str; 5] {
        ["", &self.design.against, &self.design.policy, "difference", "a difference?"]
    }

    /// Returns the notes below the table.
    pub fn notes(&self) -> Vec<String> {
        let Self { design, pairs, .. } = self;
        let mut notes = vec![format!(
            "{pairs} of {} pairs of blocks of {}, their order random (seed {}); means of \
             blocks, differences within pairs with 95 % intervals (bootstrap of pairs).",
            design.planned_pairs, design.block_ns, design.seed
        )];
        notes.push(
            "A difference is claimed only if, over all these figures together, chance alone \
             would show one in at most 5 of 100 such runs."
                .to_owned(),
        );
        if *pairs < PAIRS_MIN {
            notes.push(format!("{PAIRS_MIN} pairs are the least that can show anything."));
        }
        match (&self.energy_source, &self.energy_missing) {
            (_, Some(why)) => notes.push(format!("Energy: not measured here: {why}.")),
            (Some(source), None) => notes.push(format!("Energy {source}.")),
            (None, None) => {}
        }
        if self.safe_epochs > 0 {
            notes.push(format!(
                "In {} epochs the SLO-safe state was in force: the figures are of it, too.",
                self.safe_epochs
            ));
        }
        notes.extend(self.disturbed());
        notes
    }

    /// Lists the apps that arrived or departed, if any did.
    fn disturbed(&self) -> Option<String> {
        let count = |it: &Disturbance| format!("{} ({}, {})", it.app, it.off, it.on);
        let mut each: Vec<String> = self.disturbances.iter().map(count).collect();
        let others = each.len().saturating_sub(NAMED_MAX);
        each.truncate(NAMED_MAX);
        if others > 0 {
            each.push(format!("{others} more"));
        }
        let (off, on) = (&self.design.against, &self.design.policy);
        let text = format!(
            "Apps were absent or restarted in some epochs (under {off}, under {on}): {}. The \
             figures of these epochs are of other work.",
            each.join(", ")
        );
        (!each.is_empty()).then_some(text)
    }

    /// Quantity, off, on, difference, verdict.
    pub fn cells(&self, figure: &Figure) -> [String; 5] {
        let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        let Figure { quantity, unit, .. } = figure;
        let whose = figure.app.as_ref().map(|app| format!("{app}: ")).unwrap_or_default();
        [
            format!("{whose}{quantity}, {unit}"),
            shown(figure.off),
            shown(figure.on),
            figure.difference.as_ref().map_or_else(|| "-".to_owned(), interval),
            self.verdict(figure),
        ]
    }

    fn verdict(&self, figure: &Figure) -> String {
        let Some(found) = &figure.difference else {
            let is_energy = figure.app.is_none() && self.energy_missing.is_some();
            return if is_energy { "not measured here" } else { "no value" }.to_owned();
        };
        if found.shown {
            let way = if found.mean < 0.0 { "lower" } else { "higher" };
            let share = figure.off.filter(|off| *off != 0.0).map(|off| 100.0 * found.mean / off);
            let share = share.map(|share| format!(" by {:.1} %", share.abs())).unwrap_or_default();
            return format!("yes: {way}{share}");
        }
        let more = match found.more_pairs {
            Some(more) => {
                let minutes = 2.0 * self.design.block_ns.as_secs_f64() * more as f64 / 60.0;
                format!("; for one so large about {more} more pairs ({} min)", number(minutes))
            }
            None => String::new(),
        };
        format!("no difference shown{more}")
    }
}

/// A mean with the ends of its interval.
fn interval(found: &Difference) -> String {
    let mean = number(found.mean);
    match found.interval {
        Some([low, high]) => format!("{mean} ({} to {})", number(low), number(high)),
        None => mean,
    }
}
