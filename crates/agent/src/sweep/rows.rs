//! The file of a sweep's rows: a line with the swept settings, then a line of CSV for each trial.
//!
//! A row is appended as soon as its trial ends, so that a kill loses no more than the trial that
//! was running. A last line that is not whole is removed.

use super::{Measured, SweepTrial};
use crate::error::UsageError;
use anyhow::Context;
use csv::StringRecord;
use lull_control::Capability;
use lull_policies::search::{Reading, Refusal, Space};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The first words of the file of a running server's sweep.
const MARK: &str = "# lull sweep of a running server: ";
/// The columns behind those of the knobs.
const COLUMNS: [&str; 9] = [
    "rate_per_s",
    "completed_per_s",
    "tail_us",
    "watts",
    "requests",
    "late",
    "progress_per_s",
    "refused_knob",
    "why",
];

/// The head of a file of rows. Only the same sweep continues with its rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepHead {
    /// The class of the machine.
    pub machine: String,
    /// The app whose tail is read.
    pub app: String,
    /// Its objective.
    pub objective: String,
    /// The levels of each knob.
    pub levels: String,
    /// Length of a trial, and of what passes before it.
    pub trial: String,
    /// Checksum of the config.
    pub config: String,
    /// The seed of the order, which a resumed sweep keeps.
    pub seed: u32,
}

/// An open file of rows.
pub struct SweepFile {
    path: PathBuf,
    file: File,
    seed: u32,
    /// The whole lines behind the head.
    text: String,
}

impl SweepFile {
    /// Opens a file to append rows, or creates it. `seed` is the one that the user gave.
    ///
    /// # Errors
    /// If the file cannot be written, or has the rows of another sweep.
    pub fn open(path: &Path, head: &SweepHead, seed: Option<u32>) -> anyhow::Result<Self> {
        let open =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = open.with_context(|| format!("cannot write {}", path.display()))?;
        let refuse = |what: &str| UsageError(format!("{}: {what}", path.display()));
        let mut text = String::new();
        let strange = "holds something other than the sweep of a running server: name another file";
        file.read_to_string(&mut text).map_err(|_| refuse(strange))?;
        let kept = match text.strip_prefix(MARK).and_then(|rest| rest.split_once('\n')) {
            Some((line, rows)) => {
                let there = serde_json::from_str(line).map_err(|_| refuse(strange))?;
                Some((there, rows))
            }
            // A kill while the head was written leaves a part of it.
            None if MARK.starts_with(&text) || (text.starts_with(MARK) && !text.contains('\n')) => {
                None
            }
            None => return Err(refuse(strange).into()),
        };
        let Some((there, rows)) = kept else {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            writeln!(file, "{MARK}{}", serde_json::to_string(head)?)?;
            let path = path.to_owned();
            return Ok(Self { path, file, seed: head.seed, text: String::new() });
        };
        head.check_is(&there, seed).map_err(|why| refuse(&why))?;
        let whole = rows.rfind('\n').map_or(0, |end| end + 1);
        let begin = text.len() - rows.len();
        file.set_len((begin + whole) as u64)?;
        file.seek(SeekFrom::End(0))?;
        let (path, text) = (path.to_owned(), rows[..whole].to_owned());
        Ok(Self { path, file, seed: there.seed, text })
    }

    /// Returns the seed of the order.
    pub fn seed(&self) -> u32 {
        self.seed
    }

    /// Returns the trials of the file, and writes the names of the columns if there are none.
    ///
    /// # Errors
    /// If a row is damaged, or the file cannot be written.
    pub fn trials(&mut self, space: &Space) -> anyhow::Result<Vec<SweepTrial>> {
        let names = columns(space);
        if self.text.is_empty() {
            let line = line(&names)?;
            self.file.write_all(line.as_bytes()).context("cannot write the rows of the sweep")?;
            return Ok(Vec::new());
        }
        let damaged = |what: String| {
            UsageError(format!("{}: {what}: name another file", self.path.display()))
        };
        let mut reader = csv::Reader::from_reader(self.text.as_bytes());
        let headers = reader.headers().map_err(|error| damaged(error.to_string()))?;
        if !headers.iter().eq(names.iter().map(|name| &**name)) {
            return Err(damaged("its columns differ from those of this sweep".to_owned()).into());
        }
        let rows = reader.records().enumerate().map(|(number, row)| {
            let trial = row.ok().and_then(|row| parse(&row, space));
            trial.ok_or_else(|| damaged(format!("row {} is damaged", number + 1)))
        });
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Appends the row of a trial.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, trial: &SweepTrial, space: &Space) -> anyhow::Result<()> {
        let line = line(&fields(trial, space))?;
        self.file.write_all(line.as_bytes()).context("cannot write a row of the sweep")
    }
}

impl SweepHead {
    /// Refuses rows of another sweep.
    fn check_is(&self, there: &Self, seed: Option<u32>) -> Result<(), String> {
        let pairs = [
            ("on the machine class", &there.machine, &self.machine),
            ("of the app", &there.app, &self.app),
            ("for the objective", &there.objective, &self.objective),
            ("over the levels", &there.levels, &self.levels),
            ("with trials of", &there.trial, &self.trial),
            ("of the config with checksum", &there.config, &self.config),
        ];
        if let Some((what, theirs, ours)) = pairs.iter().find(|(_, a, b)| a != b) {
            return Err(format!(
                "holds a sweep {what} `{theirs}`, and this one has `{ours}`: name another file"
            ));
        }
        match seed {
            Some(seed) if seed != there.seed => Err(format!(
                "holds a sweep with the seed {}: leave out --seed {seed}, or name another file",
                there.seed
            )),
            _ => Ok(()),
        }
    }
}

/// Returns the names of the columns.
pub fn columns(space: &Space) -> Vec<String> {
    let knobs = space.dimensions().iter().map(|it| it.knob.name().replace('-', "_"));
    let behind = COLUMNS.into_iter().map(str::to_owned);
    ["block".to_owned()].into_iter().chain(knobs).chain(behind).collect()
}

/// The fields of a trial's row.
fn fields(trial: &SweepTrial, space: &Space) -> Vec<String> {
    let mut all = vec![(trial.block + 1).to_string()];
    all.extend(space.values(&trial.point).iter().map(f64::to_string));
    match &trial.outcome {
        Ok(Measured { reading, rate_per_s, completed_per_s }) => {
            let Reading { tail_us, watts, requests, late, progress_per_s } = reading;
            all.extend([rate_per_s, completed_per_s, tail_us, watts].map(f64::to_string));
            all.extend([requests, late].map(u64::to_string));
            all.push(progress_per_s.map_or(String::new(), |it| it.to_string()));
            all.extend([String::new(), String::new()]);
        }
        Err(Refusal { knob, why }) => {
            all.extend((0..7).map(|_| String::new()));
            all.push(knob.map_or(String::new(), |knob| knob.name().to_owned()));
            all.push(why.clone());
        }
    }
    all
}

fn parse(row: &StringRecord, space: &Space) -> Option<SweepTrial> {
    let knobs = space.dimensions().len();
    let number = |at: usize| row.get(at)?.parse::<f64>().ok().filter(|it| it.is_finite());
    let count = |at: usize| row.get(at)?.parse::<u64>().ok();
    let block = usize::try_from(count(0)?.checked_sub(1)?).ok()?;
    let values: Option<Vec<f64>> = (1..=knobs).map(number).collect();
    let values = values?;
    let point = space.nearest(&values);
    let at = knobs + 1;
    let why = row.get(at + 8)?;
    if !why.is_empty() {
        let knob = row.get(at + 7)?;
        let knob = Capability::ALL.into_iter().find(|it| it.name() == knob);
        let outcome = Err(Refusal { knob, why: why.to_owned() });
        return Some(SweepTrial { block, point, outcome });
    }
    let (tail_us, watts) = (number(at + 2)?, number(at + 3)?);
    let (requests, late) = (count(at + 4)?, count(at + 5)?);
    // The field is empty without best-effort apps.
    let progress_per_s = match row.get(at + 6)? {
        "" => None,
        _ => Some(number(at + 6)?),
    };
    let reading = Reading { tail_us, watts, requests, late, progress_per_s };
    let (rate_per_s, completed_per_s) = (number(at)?, number(at + 1)?);
    let outcome = Ok(Measured { reading, rate_per_s, completed_per_s });
    (space.values(&point) == values).then_some(SweepTrial { block, point, outcome })
}

fn line(fields: &[String]) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(fields)?;
    Ok(String::from_utf8(writer.into_inner()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_policies::search::SearchPoint;

    fn space() -> Space {
        let values =
            [(Capability::Cores, vec![1.0, 2.0]), (Capability::GateCap, vec![1.0, 4.0, 16.0])];
        Space::from_values(&values).unwrap()
    }

    fn head() -> SweepHead {
        SweepHead {
            machine: "a CPU 0123abcd".to_owned(),
            app: "server".to_owned(),
            objective: "p95 < 60ms".to_owned(),
            levels: "cores 1 2".to_owned(),
            trial: "1s after 200ms".to_owned(),
            config: "89abcdef".to_owned(),
            seed: 7,
        }
    }

    fn trials() -> Vec<SweepTrial> {
        let reading = Reading {
            tail_us: 1234.5,
            watts: 0.1 + 0.2,
            requests: 200,
            late: 3,
            progress_per_s: None,
        };
        let measured = Measured { reading, rate_per_s: 199.9, completed_per_s: 198.7 };
        let reading = Reading { progress_per_s: Some(0.1 + 0.7), ..reading };
        let with_progress = Measured { reading, ..measured };
        let refusal = Refusal::of_knob(Capability::GateCap, "no \"gate\", here\nat all".to_owned());
        [
            (0, vec![0, 2], Ok(measured)),
            (0, vec![1, 0], Err(refusal)),
            (1, vec![1, 1], Ok(with_progress)),
        ]
        .map(|(block, point, outcome)| SweepTrial { block, point: SearchPoint(point), outcome })
        .into()
    }

    /// Writes the trials into a new file.
    fn written(path: &Path) {
        let mut rows = SweepFile::open(path, &head(), None).unwrap();
        assert!(rows.trials(&space()).unwrap().is_empty());
        trials().iter().for_each(|trial| rows.write(trial, &space()).unwrap());
    }

    #[test]
    fn rows_read_back_and_keep_their_seed_and_a_torn_line_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("rows.csv");
        written(&path);
        let whole = std::fs::read_to_string(&path).unwrap();
        let other_seed = SweepHead { seed: 8, ..head() };
        let mut again = SweepFile::open(&path, &other_seed, None).unwrap();
        assert_eq!((again.trials(&space()).unwrap(), again.seed()), (trials(), 7));
        std::fs::write(&path, format!("{whole}2,1,4,19")).unwrap();
        let mut torn = SweepFile::open(&path, &head(), Some(7)).unwrap();
        assert_eq!(torn.trials(&space()).unwrap(), trials());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), whole);
        // A kill while the head was written.
        std::fs::write(&path, &whole[..MARK.len() + 9]).unwrap();
        let mut begun = SweepFile::open(&path, &head(), None).unwrap();
        assert!(begun.trials(&space()).unwrap().is_empty());
    }

    #[test]
    fn rows_of_another_sweep_and_damaged_ones_are_refused_and_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("rows.csv");
        written(&path);
        let whole = std::fs::read_to_string(&path).unwrap();
        let refused = |head: &SweepHead, seed: Option<u32>| {
            let error = SweepFile::open(&path, head, seed).err().unwrap();
            assert!(error.is::<UsageError>(), "{error}");
            error.to_string()
        };
        let other = SweepHead { machine: "another CPU".to_owned(), ..head() };
        assert!(refused(&other, None).contains("on the machine class `a CPU 0123abcd`"));
        let other = SweepHead { config: "0".to_owned(), ..head() };
        assert!(refused(&other, None).contains("name another file"));
        assert!(refused(&head(), Some(9)).contains("the seed 7"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), whole);
        std::fs::write(&path, "rate_per_s,delay_us\n").unwrap();
        assert!(refused(&head(), None).contains("holds something other"));
        for (from, to) in [("1234.5", "12x4"), ("refused_knob", "refused"), ("1,1,16", "1,1,15")] {
            assert!(whole.contains(from));
            std::fs::write(&path, whole.replacen(from, to, 1)).unwrap();
            let mut rows = SweepFile::open(&path, &head(), None).unwrap();
            assert!(rows.trials(&space()).is_err(), "{to}");
        }
    }
}
