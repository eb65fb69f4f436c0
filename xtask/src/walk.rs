//! `cargo xtask walk`: the commands of `docs/quickstart.md`, from the package to a managed
//! server, with the time that they take.
//!
//! Each section of the page with commands has a Debian 12 of its own, with the servers that the
//! page takes for granted: a directory that mmdebstrap makes once, below an overlay, in
//! namespaces of processes and mounts that end with the walk. systemd does not run there; its
//! `systemctl` accepts commands and ignores them. Time counts from before the package is
//! installed, mounting included.

use crate::command::done;
use crate::debian;
use crate::package;
use crate::packages::{install_packages, on_path};
use crate::release;
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

const PAGE: &str = "docs/quickstart.md";
const TIME_MAX: Duration = Duration::from_secs(120);
const SUITE: &str = "bookworm";
const SERVERS: &str = "init-system-helpers,mariadb-server,memcached,systemd";

/// Mounts the file systems of a machine, creates the directories of /run as a start of the machine
/// does, and runs the section's commands. Arguments: the Debian, a directory for output, and the
/// package. The shell stays process 1 and outside of the root, by which `systemctl` recognises that
/// systemd does not run there.
const SCRIPT: &str = "
    set -e
    root=$2/root
    mkdir \"$2/upper\" \"$2/work\" \"$root\"
    mount -t overlay -o \"lowerdir=$1,upperdir=$2/upper,workdir=$2/work\" overlay \"$root\"
    mount -t proc proc \"$root/proc\"
    mount --rbind /sys \"$root/sys\"
    mount --rbind /dev \"$root/dev\"
    PATH=/usr/sbin:/usr/bin:/sbin:/bin
    chroot \"$root\" systemd-tmpfiles --create mariadb.conf
    cp \"$3\" \"$2/commands\" \"$root/root\"
    env --ignore-environment PATH=\"$PATH\" HOME=/root \\
        chroot \"$root\" bash -c 'cd && bash -eux commands'
    exit 0
";

/// Runs each section of the page, with a package of this tree or another.
///
/// # Errors
/// If this is not root, or the package or Debian cannot be had.
pub(crate) fn run(root: &Path, package: Option<PathBuf>) -> Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        bail!("a walk installs a package in a directory, which takes root");
    }
    let place = xtask::cache().join("walk");
    std::fs::create_dir_all(&place)?;
    // Other clones walk in the same directory; one with another recipe removes and makes it again.
    let lock = File::create(place.join("lock"))?;
    lock.lock().context("cannot lock the directory of walks")?;
    let debian = provide(&place)?;
    let package = package.map_or_else(|| package::debian(root), Ok)?;
    let page = std::fs::read_to_string(root.join(PAGE)).with_context(|| PAGE.to_owned())?;
    let mut is_good = true;
    for (name, commands) in sections(&page) {
        println!("== walk {name}");
        let begun = Instant::now();
        let outcome = walk(root, &debian, &package, &commands);
        let time = begun.elapsed();
        let verdict = match &outcome {
            Err(error) => format!("failed: {error:#}"),
            Ok(()) if time > TIME_MAX => "too slow".to_owned(),
            Ok(()) => "passed".to_owned(),
        };
        println!("== walk {name}: {verdict} in {} s", time.as_secs());
        is_good &= outcome.is_ok() && time <= TIME_MAX;
    }
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The sections of a page that install the package, and their commands. The page is for users;
/// the walk is root, and has no `sudo`.
fn sections(page: &str) -> Vec<(String, String)> {
    let section = |text: &str| {
        let (name, rest) = text.split_once('\n')?;
        let (_, rest) = rest.split_once("```sh\n")?;
        let (commands, _) = rest.split_once("```")?;
        let is_walk = commands.contains("apt-get install");
        is_walk.then(|| (name.to_owned(), commands.replace("sudo ", "")))
    };
    page.split("\n## ").skip(1).filter_map(section).collect()
}

fn walk(root: &Path, debian: &Path, package: &Path, commands: &str) -> Result<()> {
    let place = tempfile::tempdir_in(release::target(root))?;
    std::fs::write(place.path().join("commands"), commands)?;
    let package = package.canonicalize().with_context(|| package.display().to_string())?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", SCRIPT, "sh"]);
    done(command.arg(debian).arg(place.path()).arg(package))
}

/// A directory with Debian and the servers, made if it is not there yet.
fn provide(place: &Path) -> Result<PathBuf> {
    let (debian, recipe_path) = (place.join("debian-12"), place.join("debian-12.recipe"));
    let recipe = format!("{SUITE} {SERVERS}\n");
    if debian.exists() && std::fs::read_to_string(&recipe_path).is_ok_and(|made| made == recipe) {
        return Ok(debian);
    }
    if on_path("mmdebstrap").is_none() && !install_packages(&["mmdebstrap"]) {
        bail!("a directory with Debian needs: apt-get install mmdebstrap");
    }
    // A directory without its recipe is made again, also one that an interrupted run has left.
    if recipe_path.exists() {
        std::fs::remove_file(&recipe_path)
            .with_context(|| format!("cannot remove {}", recipe_path.display()))?;
    }
    if debian.exists() {
        std::fs::remove_dir_all(&debian)
            .with_context(|| format!("cannot remove {}", debian.display()))?;
    }
    let mut make = Command::new("mmdebstrap");
    make.args(["--mode=root", "--variant=apt", "--include", SERVERS, SUITE]).arg(&debian);
    done(make.arg(debian::mirror()?)).context("mmdebstrap cannot install Debian 12")?;
    std::fs::write(recipe_path, recipe)?;
    Ok(debian)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_walk_to_memcached_and_one_to_mariadb() {
        let page = std::fs::read_to_string(xtask::root().join(PAGE)).unwrap();
        let sections = sections(&page);
        let names: Vec<&str> = sections.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["memcached", "MariaDB"]);
        for (name, commands) in &sections {
            assert!(commands.starts_with("apt-get install --yes ./lull_"), "{name}: {commands}");
            assert!(!commands.contains("sudo"), "{name}: {commands}");
        }
    }
}
