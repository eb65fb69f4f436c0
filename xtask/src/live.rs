//! Policies on real servers of this machine: one command, one page.

use crate::{here, release, test};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The scenes of examples/live with the subject of each.
const SCENES: [(&str, &str); 4] = [
    ("memcached", "memcached beside a memory-bound app"),
    ("nginx", "nginx beside a memory-bound app"),
    ("options", "the options server beside a memory-bound app"),
    ("all", "all three beside a memory-bound app"),
];

/// The compared policies, the reference first.
const POLICIES: [&str; 7] = ["unmanaged", "even", "lc-first", "parties", "satori", "arq", "tide"];

/// The bound, as a multiple of the app's tail alone.
const ROOM: &str = "2";

/// Fewest cores of a machine on which load clients have a core of their own.
const CORES_FOR_CLIENTS: usize = 3;

/// Where nginx of examples/live leaves files, and how their names begin.
const LEFTOVERS: (&str, &str) = ("/tmp", "lull-nginx-");

const INTRO: &str = "# Co-location on a real machine

Written by `cargo xtask live`; do not edit. It runs `lull compare` on the scenes
of `examples/live`: real servers under open-loop load, a memory-bound
best-effort app beside them, and the policies in turn, a block each, in another
random order every round. A bound is twice the tail that the app had
alone, measured when the scene began; the first half of a block is left out, in
which a policy moves from its initial state to where it settles.
\"% of alone\" is the best-effort app's progress against its progress alone.
";

const LIMITS: &str = "## What this machine can show, and what not

- What is steered is what the table of knobs above says. Without cache ways and
  memory bandwidth, what the best-effort app does to cache and memory is outside
  every policy's reach.
- A policy that moves a unit every 500 ms starts again in every block. One that
  needs longer than half a block to settle is shown on its way.
- Limits of cgroups (`cpu.max`, `cpu.weight`) are not compared here: no
  policy sets them.
- On a virtual machine the host's other guests are in every figure. The
  intervals are wide where that matters; a difference is claimed only where its
  interval excludes zero.
";

const OWN_CORE: &str = "\
- The load clients have a core of their own, which neither apps nor policies use.
";

const SHARED_CORES: &str = "\
- The load clients run on the same cores and belong to no app: every tail has
  their delays in it, and priority for the servers is partly taken from them.
";

const FEW_CORES: &str = "\
- With two cores for apps a partition has one division for two apps, a core each, and none
  for more: policies that partition are refused then, which the tables say. How
  well a policy searches cannot be seen here, only what its kind of division is
  worth.
";

/// Blocks a policy in each scene, and their length: 70 minutes in all.
const ROUNDS: u32 = 5;
const BLOCK_S: u32 = 30;

/// The arguments of `cargo xtask live`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Blocks a policy in each scene
    #[arg(long, default_value_t = ROUNDS)]
    pub(crate) rounds: u32,
    /// Length of a block in seconds
    #[arg(long, default_value_t = BLOCK_S)]
    pub(crate) block_s: u32,
    /// Write the page here instead
    #[arg(long, value_name = "FILE")]
    pub(crate) page: Option<PathBuf>,
}

impl Options {
    /// Returns the longest time of all blocks together; some policies may be refused.
    const fn longest_s(&self) -> u32 {
        (SCENES.len() * POLICIES.len()) as u32 * self.rounds * self.block_s
    }
}

/// Runs every scene and writes the page.
///
/// # Errors
/// If a server is missing, Lull does not build, or a scene fails; the page is
/// then left as it was.
pub(crate) fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    test::provide_all()?;
    let lull = release::binary(root, "lull-cli", "lull")?;
    let parts = release::target(root).join("live");
    std::fs::create_dir_all(&parts).with_context(|| format!("cannot make {}", parts.display()))?;
    println!("== {} min at most, and some seconds before each scene", options.longest_s() / 60);
    let mut page = format!("{INTRO}\n{}", machine(&lull, options)?);
    let mut failed = Vec::new();
    for (scene, title) in SCENES {
        println!("== {title}");
        let part = parts.join(format!("{scene}.md"));
        match compare(root, &lull, (scene, &part), options) {
            Ok(table) => page.push_str(&format!("\n## {}\n\n{table}", capital(title))),
            // The others are of use without it.
            Err(error) => failed.push(format!("{scene}: {error:#}")),
        }
        clear_leftovers();
    }
    if !failed.is_empty() {
        bail!("no page written; tables of the rest are in {}: {failed:?}", parts.display());
    }
    let file = options.page.clone().unwrap_or_else(|| root.join("docs/live-colocation.md"));
    std::fs::write(&file, page).with_context(|| format!("cannot write {}", file.display()))?;
    println!("written: {}", file.display());
    Ok(ExitCode::SUCCESS)
}

/// Compares the policies in one scene; returns its table.
fn compare(
    root: &Path,
    lull: &Path,
    (scene, part): (&str, &Path),
    options: &Options,
) -> Result<String> {
    // The result of an earlier run must not pass for this one's.
    let _ = std::fs::remove_file(part);
    let config = root.join(format!("examples/live/{scene}.toml"));
    let (mut command, config) = match here::cores() {
        cores if cores < CORES_FOR_CLIENTS => (Command::new(lull), config),
        cores => start_off_last_core(lull, &config, &part.with_extension("toml"), cores)?,
    };
    // Paths in the scenes are relative to the root.
    command.current_dir(root).arg("compare").arg(config);
    command.args(["--policies", &POLICIES.join(","), "--room", ROOM]);
    command.args(["--block", &format!("{}s", options.block_s)]);
    command.args(["--settle", &format!("{}ms", options.block_s * 500)]);
    command.args(["--rounds", &options.rounds.to_string()]).arg("--markdown").arg(part);
    let status = command.status().context("cannot start lull")?;
    if !status.success() {
        bail!("lull compare ended with {status}; are the ports of the scene free?");
    }
    std::fs::read_to_string(part).with_context(|| format!("{} was not written", part.display()))
}

/// Writes the scene with load clients on the last core; returns a command that keeps the agent and
/// the apps that it starts off that core, and the config for it.
fn start_off_last_core(
    lull: &Path,
    scene: &Path,
    to: &Path,
    cores: usize,
) -> Result<(Command, PathBuf)> {
    let text = std::fs::read_to_string(scene)
        .with_context(|| format!("cannot read {}", scene.display()))?;
    std::fs::write(to, with_own_core(&text, cores))
        .with_context(|| format!("cannot write {}", to.display()))?;
    let mut command = Command::new("taskset");
    command.args(["-c", &format!("0-{}", cores - 2)]).arg(lull);
    Ok((command, to.to_owned()))
}

/// Returns the text of a scene whose load clients run on the last core, and whose policies assign
/// the others.
fn with_own_core(scene: &str, cores: usize) -> String {
    let (last, others) = (cores - 1, cores - 2);
    let loads = scene.replace("[[load]]\n", &format!("[[load]]\ncores = \"{last}\"\n"));
    format!("[limits]\ncores = \"0-{others}\"\n\n{loads}")
}

/// Processor, cores, kernel and knobs, as the page's readers need them.
fn machine(lull: &Path, options: &Options) -> Result<String> {
    let sentence = here::describe_machine();
    let Options { rounds, block_s, .. } = options;
    let checked = Command::new(lull).arg("check").output().context("cannot start lull")?;
    let checked = String::from_utf8_lossy(&checked.stdout);
    let knobs = knobs(&checked).context("lull check shows no knobs")?;
    let cores = here::cores();
    let clients = if cores < CORES_FOR_CLIENTS { SHARED_CORES } else { OWN_CORE };
    let few = if cores <= CORES_FOR_CLIENTS { FEW_CORES } else { "" };
    Ok(format!(
        "{sentence} {rounds} blocks of {block_s} s a policy and scene.\n\n\
         ```text\n{knobs}\n```\n\n{LIMITS}{clients}{few}"
    ))
}

/// The table of knobs in what `lull check` prints.
fn knobs(checked: &str) -> Option<&str> {
    checked.split("\n\n").find(|part| part.trim_start().starts_with("knobs ")).map(str::trim_end)
}

/// Removes what servers of examples/live leave behind.
pub(crate) fn clear_leftovers() {
    clear(Path::new(LEFTOVERS.0), LEFTOVERS.1);
}

/// Removes the entries of a directory whose names begin like this. Entries that cannot be removed
/// are reused by the next run.
fn clear(directory: &Path, beginning: &str) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(beginning) {
            let path = entry.path();
            let _ = if path.is_dir() {
                std::fs::remove_dir_all(path)
            } else {
                std::fs::remove_file(path)
            };
        }
    }
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
    fn with_the_defaults_it_takes_about_an_hour() {
        let options = Options { rounds: ROUNDS, block_s: BLOCK_S, page: None };
        assert!((55 * 60..=75 * 60).contains(&options.longest_s()));
    }

    #[test]
    fn where_there_are_three_cores_every_client_of_a_scene_has_the_last_one() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/live");
        for (scene, _) in SCENES {
            let text = std::fs::read_to_string(root.join(format!("{scene}.toml"))).unwrap();
            let text = with_own_core(&text, 3);
            assert!(text.starts_with("[limits]\ncores = \"0-1\"\n"), "{text}");
            let loads = text.matches("[[load]]\n").count();
            assert_eq!(text.matches("[[load]]\ncores = \"2\"\n").count(), loads);
            assert!(loads > 0 && !text[9..].contains("[limits]"), "{text}");
        }
    }

    #[test]
    fn nginx_writes_only_what_is_cleared_away() {
        let conf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/live/nginx.conf");
        let text = std::fs::read_to_string(conf).unwrap();
        let written = text
            .lines()
            .map(str::trim)
            .filter(|line| line.contains("_path ") || line.starts_with("pid "));
        let place = format!(" {}/{}", LEFTOVERS.0, LEFTOVERS.1);
        assert!(written.clone().count() > 1 && written.clone().all(|line| line.contains(&place)));
        let scratch = std::env::temp_dir().join(format!("lull-live-{}", std::process::id()));
        std::fs::create_dir_all(scratch.join("lull-nginx-body/0")).unwrap();
        std::fs::write(scratch.join("other"), "").unwrap();
        clear(&scratch, LEFTOVERS.1);
        let left: Vec<_> = std::fs::read_dir(&scratch).unwrap().flatten().collect();
        std::fs::remove_dir_all(&scratch).unwrap();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn the_page_has_the_knobs_and_nothing_else_of_the_check() {
        let text = "lull 1 on x\n2 cores (only)\n\n knobs  by\n cores  yes\n\n gauges\n ipc  no\n";
        assert_eq!(knobs(text), Some(" knobs  by\n cores  yes"));
        assert_eq!(knobs(""), None);
    }

    #[test]
    fn headings_begin_with_a_capital() {
        assert_eq!(capital("nginx beside"), "Nginx beside");
        assert_eq!(capital(""), "");
    }
}
