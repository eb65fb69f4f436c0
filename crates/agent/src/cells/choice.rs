//! Which cells of a command a process is to run.

use std::collections::BTreeSet;
use std::ops::Range;
use std::str::FromStr;

/// Some cells of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CellChoice {
    /// The `part`-th of `of` equal parts, from 1.
    Part {
        /// The number of the part.
        part: u64,
        /// How many parts there are.
        of: u64,
    },
    /// Cells by number, from 1.
    List(Vec<Range<u64>>),
}

impl FromStr for CellChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            let wrong = |_| format!("`{text}` is not a number: write K/N or numbers such as 3,7");
            text.trim().parse::<u64>().map_err(wrong)
        };
        if let Some((part, of)) = text.split_once('/') {
            let (part, of) = (number(part)?, number(of)?);
            return match (part, of) {
                (_, 0) => Err("there are no 0 parts: write K/N with N of 1 or more".to_owned()),
                (0, _) => Err(format!("parts count from 1: write 1/{of} to {of}/{of}")),
                _ if part > of => Err(format!("there is no part {part} of {of}")),
                _ => Ok(Self::Part { part, of }),
            };
        }
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            match (number(first)?, number(last)?) {
                (0, _) => Err("cells count from 1".to_owned()),
                (first, last) if first > last => Err(format!("{first}-{last} has no cell")),
                (first, last) => Ok(first - 1..last),
            }
        };
        Ok(Self::List(text.split(',').map(range).collect::<Result<_, _>>()?))
    }
}

impl CellChoice {
    /// Returns the numbers, from 0, of the chosen cells out of `total`.
    ///
    /// # Errors
    /// If one does not exist.
    pub fn choose(&self, total: u64) -> Result<BTreeSet<u64>, String> {
        match self {
            Self::Part { part, of } => {
                let end = |part: u64| u128::from(part) * u128::from(total) / u128::from(*of);
                // Both are at most `total`.
                Ok((end(part - 1) as u64..end(*part) as u64).collect())
            }
            Self::List(ranges) => match ranges.iter().find(|range| range.end > total) {
                Some(range) => Err(format!("there is no cell {}: the last is {total}", range.end)),
                None => Ok(ranges.iter().cloned().flatten().collect()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(text: &str, total: u64) -> Vec<u64> {
        text.parse::<CellChoice>().unwrap().choose(total).unwrap().into_iter().collect()
    }

    #[test]
    fn parts_are_disjoint_complete_and_equal_to_one_cell() {
        for (total, of) in [(12, 4), (13, 4), (3, 5), (0, 2), (1, 1)] {
            let parts: Vec<_> =
                (1..=of).map(|part| chosen(&format!("{part}/{of}"), total)).collect();
            assert_eq!(parts.concat(), (0..total).collect::<Vec<_>>(), "{total} cells, {of} parts");
            let sizes = parts.iter().map(Vec::len);
            assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
        }
    }

    #[test]
    fn a_list_counts_from_one_and_each_cell_once() {
        assert_eq!(chosen("3,7,9-12", 12), [2, 6, 8, 9, 10, 11]);
        assert_eq!(chosen("2-3,3", 3), [1, 2]);
    }

    #[test]
    fn what_is_no_choice_is_refused() {
        for (text, why) in [
            ("1/0", "N of 1 or more"),
            ("0/4", "count from 1: write 1/4"),
            ("5/4", "no part 5 of 4"),
            ("0", "count from 1"),
            ("4-2", "4-2 has no cell"),
            ("", "`` is not a number"),
            ("1/x", "`x` is not a number"),
            ("a,2", "`a` is not a number"),
        ] {
            let error = text.parse::<CellChoice>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let error = "2,13".parse::<CellChoice>().unwrap().choose(12).unwrap_err();
        assert_eq!(error, "there is no cell 13: the last is 12");
    }
}
