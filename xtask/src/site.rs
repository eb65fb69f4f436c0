//! `cargo xtask site`: the pages of `docs/` and of the root as a searchable site.
//!
//! mdBook builds it from a copy of the pages with the same paths, so that their links hold on the
//! site as they do in the repository. `docs/SUMMARY.md` is the table of contents; tidy checks that
//! it lists every page. Each policy has a page of its own, from its section of
//! `docs/policies.md` and the header of its module. All links of the result are checked.

mod links;
mod policies;
mod stage;

use crate::command::done;
use crate::release;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The version of mdBook that is built into the cache.
const MDBOOK: &str = "0.5.4";

/// The page that links to the references of the crates, from the root of the site.
const API: &str = "api/lull_agent/index.html";

/// Builds the site in `target/site`; without `api` the references of the crates are left out.
///
/// # Errors
/// If mdBook cannot be built, or a page or the references cannot be built.
pub(crate) fn run(root: &Path, api: bool) -> Result<ExitCode> {
    let target = release::target(root);
    let (book, site) = (target.join("site-book"), target.join("site"));
    for directory in [&book, &site] {
        if directory.exists() {
            std::fs::remove_dir_all(directory)
                .with_context(|| format!("cannot remove {}", directory.display()))?;
        }
    }
    let count = stage::stage(root, &book, api.then_some(API))?;
    let mut build = Command::new(mdbook()?);
    done(build.arg("build").arg(&book).arg("--dest-dir").arg(&site))?;
    if api {
        document(root, &site.join("api"))?;
    }
    let dead = links::check(&site)?;
    dead.iter().for_each(|link| println!("{link}"));
    if !dead.is_empty() {
        bail!("{} links of the site lead nowhere", dead.len());
    }
    println!("site: {count} pages in {}", site.join("index.html").display());
    Ok(ExitCode::SUCCESS)
}

/// Returns mdBook's program, which cargo builds once.
fn mdbook() -> Result<PathBuf> {
    let place = xtask::cache().join(format!("mdbook-{MDBOOK}"));
    let program = place.join("bin/mdbook");
    if program.is_file() {
        return Ok(program);
    }
    println!("== building mdBook {MDBOOK}");
    let mut install = Command::new("cargo");
    install.args(["install", "mdbook", "--quiet", "--locked", "--version", MDBOOK]);
    install.args(["--no-default-features", "--features", "search", "--root"]).arg(&place);
    done(&mut install).context("mdBook does not build")?;
    Ok(program)
}

/// Writes the references of our crates.
fn document(root: &Path, place: &Path) -> Result<()> {
    let mut doc = Command::new("cargo");
    doc.current_dir(root).args(["doc", "--no-deps", "--workspace", "--all-features", "--quiet"]);
    done(&mut doc)?;
    stage::copy_tree(&release::target(root).join("doc"), place)
}
