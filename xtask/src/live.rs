//! Policies on real servers of this machine: one command, one page.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The scenes of examples/live with what each shows.
const SCENES: [(&str, &str); 4] = [
    ("memcached", "memcached beside a memory-bound app"),
    ("nginx", "nginx beside a memory-bound app"),
    ("options", "the options server beside a memory-bound app"),
    ("all", "all three beside a memory-bound app"),
];

/// What is compared, the point of comparison first.
const POLICIES: &str = "unmanaged,even,lc-first,parties,arq,tide";

/// A bound of so many times what the app has alone.
const ROOM: &str = "2";

const INTRO: &str = "# Co-location on a real machine

Written by `cargo xtask live`; do not edit. It runs `lull compare` on the scenes
of `examples/live`: real servers under open-loop load, a memory-bound
best-effort app beside them, and the policies in turn, a block each, every
round beginning with another one. A bound is twice the tail that the app had
alone, measured when the scene began; the first quarter of a block is left out.
\"% of alone\" is the best-effort app's progress against its progress alone.

## What this machine can show, and what not

- Cores and scheduling classes are steered; cache ways and memory bandwidth only
  where `lull check` finds them. Without them what the best-effort app does to
  cache and memory is outside every policy's reach.
- With two cores a partition has one division for two apps, a core each, and
  none for more: policies that partition are refused then, which the tables say.
- The load clients run on the same cores and are nobody's app: every tail has
  their delays in it, and priority for the servers is partly taken from them.
- On a virtual machine the host's other guests are in every figure. The
  intervals are wide where that matters; a difference is claimed only where its
  interval excludes zero.
";

/// How long to measure, and where the page goes.
pub(crate) struct Options {
    pub(crate) rounds: u32,
    pub(crate) block: String,
    pub(crate) page: Option<PathBuf>,
}

/// Runs every scene and writes the page.
pub(crate) fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    build(root)?;
    let parts = root.join("target/live");
    std::fs::create_dir_all(&parts).with_context(|| format!("cannot make {}", parts.display()))?;
    let mut page = format!("{INTRO}\n{}\n", machine());
    for (scene, title) in SCENES {
        println!("== {title}");
        let part = parts.join(format!("{scene}.md"));
        compare(root, scene, &part, options)?;
        let table = std::fs::read_to_string(&part)
            .with_context(|| format!("{} was not written", part.display()))?;
        page.push_str(&format!("\n## {}\n\n{table}", capital(title)));
    }
    let file = options.page.clone().unwrap_or_else(|| root.join("docs/live-colocation.md"));
    std::fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))?;
    println!("written: {}", file.display());
    Ok(ExitCode::SUCCESS)
}

fn build(root: &Path) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["build", "--release", "--package", "lull-app"]);
    if !cargo.status().context("cannot start cargo")?.success() {
        bail!("the lull command does not build");
    }
    Ok(())
}

fn compare(root: &Path, scene: &str, part: &Path, options: &Options) -> Result<()> {
    let mut lull = Command::new(root.join("target/release/lull"));
    // Paths in the scenes are relative to the root.
    lull.current_dir(root).arg("compare").arg(format!("examples/live/{scene}.toml"));
    lull.args(["--policies", POLICIES, "--room", ROOM, "--block", &options.block]);
    lull.args(["--rounds", &options.rounds.to_string()]).arg("--markdown").arg(part);
    if !lull.status().context("cannot start lull")?.success() {
        bail!("scene {scene} failed: are memcached and nginx installed, and their ports free?");
    }
    Ok(())
}

/// Processor, cores and kernel, as the page's readers need them.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split_once(": ")).map_or("unknown", |(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("Machine: {model}, {cores} cores, Linux {}", read("/proc/sys/kernel/osrelease").trim())
}

fn capital(title: &str) -> String {
    let mut letters = title.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scene_has_its_example() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/live");
        for (scene, _) in SCENES {
            let text = std::fs::read_to_string(root.join(format!("{scene}.toml"))).unwrap();
            assert!(
                text.contains("class = \"best-effort\"") && text.contains("[[load]]"),
                "{scene}"
            );
        }
    }

    #[test]
    fn headings_begin_with_a_capital() {
        assert_eq!(capital("nginx beside"), "Nginx beside");
        assert_eq!(capital(""), "");
    }
}
