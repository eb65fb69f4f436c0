//! Dispatchers on real cores of this machine, one of them made slow: one command, one page.

use crate::{here, release};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const INTRO: &str = "# Dispatchers on real cores

Written by `cargo xtask place`; do not edit. It runs `lull lab dispatch`: the built-in
options server under open-loop load, each request placed on a slow or a fast
core by EETL, TL, EE and S2F in turn, a block each, in another random order every
round. The slow core is one of this machine's with a duty cycler on it
(`lull lab emulate`), accepted when a loop of known work is slowed as planned within
5 %.
";

const LIMITS: &str = "## What this shows, and what not

- The paper's page has 13 slow cores and 2 fast ones; this one has as many as
  two. With one slow core a second request under way takes the fast one under
  every dispatcher, so they differ by less, and by less the higher the load.
- The load client and the server's own threads run on the same two cores, which
  the paper keeps apart: their delays are in every tail.
- Energy is modelled from core time: an emulated core takes its full power
  whatever speed it is declared to have. Powers are EETL's table 4.
- A controller steps every 500 answers: within the first rounds EETL is still
  on its way from its first threshold, half of the target.
- On a virtual machine the host's other guests are in every figure.
";

/// Blocks a dispatcher, and their length: sixteen minutes in all.
const ROUNDS: u32 = 8;
const BLOCK_S: u32 = 30;

/// The arguments of `cargo xtask place`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Blocks a dispatcher
    #[arg(long, default_value_t = ROUNDS)]
    pub(crate) rounds: u32,
    /// Length of a block in seconds
    #[arg(long, default_value_t = BLOCK_S)]
    pub(crate) block_s: u32,
    /// The core that is made slow
    #[arg(long, default_value_t = 1)]
    pub(crate) slow: u16,
    /// The fast one
    #[arg(long, default_value_t = 0)]
    pub(crate) fast: u16,
    /// Write the page here instead
    #[arg(long, value_name = "FILE")]
    pub(crate) page: Option<PathBuf>,
}

/// Runs the comparison and writes the page.
///
/// # Errors
/// If Lull does not build or the comparison fails; the page is then left as it was.
pub(crate) fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let lull = release::binary(root, "lull-cli", "lull")?;
    let part = release::target(root).join("place.md");
    // The result of an earlier run must not pass for this one's.
    let _ = std::fs::remove_file(&part);
    let (rounds, block) = (options.rounds.to_string(), format!("{}s", options.block_s));
    let (slow, fast) = (options.slow.to_string(), options.fast.to_string());
    println!("== {} s in all", 4 * options.rounds * options.block_s);
    let status = Command::new(lull)
        .args(["lab", "dispatch", "--emulate", "--slow", &slow, "--fast", &fast])
        .args(["--rounds", &rounds, "--block", &block, "--markdown"])
        .arg(&part)
        .status()
        .context("cannot start lull")?;
    if !status.success() {
        bail!("lull lab dispatch ended with {status}; it needs root, for the duty cycler");
    }
    let table = std::fs::read_to_string(&part)
        .with_context(|| format!("{} was not written", part.display()))?;
    let page = format!("{INTRO}\n{}\n\n{table}\n{LIMITS}", here::describe_machine());
    let file = options.page.clone().unwrap_or_else(|| root.join("docs/live-dispatch.md"));
    std::fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))?;
    println!("written: {}", file.display());
    Ok(ExitCode::SUCCESS)
}
