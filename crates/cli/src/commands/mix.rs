//! `lull lab mix`: which cores to buy for a target and a load.

use super::UsageError;
use crate::cli::MixArgs;
use crate::progress::{lab_setup, parts};
use crate::text::table;
use lull_lab::mix::{Compared, Mix, best_mix, compare_at, paper_mixes, parse};
use lull_measure::Nanos;
use lull_sim::dispatch::RequestWork;
use serde::Serialize;
use std::path::Path;

/// One load, as JSON.
#[derive(Serialize)]
struct Answer {
    target: Nanos,
    rate_per_s: f64,
    /// Name of the mix that meets the target with the least energy; null if none meets it.
    best: Option<String>,
    mixes: Vec<Compared>,
}

/// Fewest requests for a p99: five are above it.
const LEAST: usize = 500;

pub(crate) fn run(args: &MixArgs) -> anyhow::Result<()> {
    super::check_rates(&args.rate)?;
    super::check_target(args.target)?;
    let mixes = mixes(&args.mix)?;
    let work = args.profile.as_deref().map(read_profile).transpose()?;
    let bar = parts().with_message("mix");
    let setup = lab_setup(&bar, args.seed, args.quick);
    let answer = |rate_per_s: &f64| -> anyhow::Result<Answer> {
        let compared = compare_at(&setup, &mixes, work.as_ref(), args.target, *rate_per_s)?;
        let best = best_mix(&compared).map(|index| compared[index].mix.name.clone());
        Ok(Answer { target: args.target, rate_per_s: *rate_per_s, best, mixes: compared })
    };
    let answers: Vec<_> = args.rate.iter().map(answer).collect::<Result<_, _>>()?;
    bar.finish_and_clear();
    if args.json {
        return super::print_json(&answers);
    }
    answers.iter().for_each(print);
    Ok(())
}

fn mixes(given: &[String]) -> anyhow::Result<Vec<Mix>> {
    if given.is_empty() {
        return Ok(paper_mixes());
    }
    let read = |text: &String| parse(text).map_err(|error| UsageError(error.to_string()).into());
    given.iter().map(read).collect()
}

/// Reads a file with one duration a line. Empty lines and lines that begin with # are skipped.
fn read_profile(path: &Path) -> anyhow::Result<RequestWork> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        UsageError(format!("cannot read the profile {}: {error}", path.display()))
    })?;
    let mut list = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: &str| UsageError(format!("{}:{}: {why}", path.display(), index + 1));
        let work: Nanos = line.parse().map_err(|error| wrong(&format!("{error}")))?;
        if work == Nanos::ZERO {
            return Err(wrong("a request without work; leave it out").into());
        }
        list.push(work);
    }
    if list.len() < LEAST {
        let what = format!(
            "{}: {} requests, and a p99 needs {LEAST}: record more",
            path.display(),
            list.len()
        );
        return Err(UsageError(what).into());
    }
    Ok(RequestWork::Listed(list))
}

fn print(answer: &Answer) {
    let row = |one: &Compared| {
        let figure = |value: Option<f64>| value.map_or("-".to_owned(), |it| format!("{it:.1}"));
        let star = if answer.best.as_ref() == Some(&one.mix.name) { "*" } else { "" };
        vec![
            format!("{}{star}", one.mix.name),
            format!("{:.1}", one.mix.peak_watts.0),
            figure(one.energy_mj.map(|it| it.mean)),
            figure(one.tail_ms.map(|it| it.mean)),
            if one.meets { "yes" } else { "no" }.to_owned(),
        ]
    };
    println!("target {}, {} requests/s", answer.target, answer.rate_per_s);
    let head = ["mix", "peak (W)", "energy a request (mJ)", "p99 (ms)", "in time"];
    println!("{}", table(&head, answer.mixes.iter().map(row)));
    match &answer.best {
        Some(name) => println!("least energy in time: {name} (a slow core's peak is 1 W)\n"),
        None => println!("none is in time: take more cores, faster ones, or a looser target\n"),
    }
}
