//! An image that holds the static program and its notices: made by buildah, without a base image
//! and without a registry, and then started once.

use crate::command::{done, read_output};
use crate::packages::{install_packages, on_path};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = "/usr/bin/lull";
const ENTRY: &str = "[\"/usr/bin/lull\"]";
const NOTICES: &str = "/usr/share/doc/lull/";

/// Makes `lull-VERSION-ARCHITECTURE.oci.tar`, which `podman load`, `skopeo copy` and `ctr image
/// import` read.
///
/// # Errors
/// If there is no buildah, the image cannot be made, or its program does not start.
pub(super) fn make(root: &Path, place: &Path, program: &Path, version: &str) -> Result<PathBuf> {
    if on_path("buildah").is_none() && !install_packages(&["buildah"]) {
        bail!("an image takes buildah: apt-get install buildah");
    }
    // The image store of this run, apart from the user's own images.
    let store = tempfile::tempdir_in(place)?;
    let builder = Builder { store: store.path() };
    let container = read_output(builder.command("from").arg("scratch"))?;
    let container = container.trim();
    let licence = root.join("LICENSE");
    let third_party = place.join("THIRD-PARTY-NOTICES.txt");
    let mut copy = builder.command("copy");
    done(copy.args(["--chmod", "755", container]).arg(program).arg(PROGRAM))?;
    let mut copy = builder.command("copy");
    done(copy.args(["--chmod", "644", container]).args([licence, third_party]).arg(NOTICES))?;
    let label = format!("org.opencontainers.image.version={version}");
    let mut config = builder.command("config");
    done(config.args(["--entrypoint", ENTRY, "--cmd", "--help", "--label", &label, container]))?;
    let file = place.join(format!("lull-{version}-{}.oci.tar", super::ARCHITECTURE));
    if file.exists() {
        std::fs::remove_file(&file)?;
    }
    let archive = format!("oci-archive:{}:lull:{version}", file.display());
    done(builder.command("commit").args(["--rm", container, &archive]))?;
    builder.start(&archive).context("the image does not start")?;
    Ok(file)
}

/// buildah with a store of its own.
struct Builder<'a> {
    store: &'a Path,
}

impl Builder<'_> {
    fn command(&self, task: &str) -> Command {
        let mut command = Command::new("buildah");
        command.arg("--root").arg(self.store.join("root"));
        command.arg("--runroot").arg(self.store.join("run"));
        // Needs no right to mount, which the build machine may not give.
        command.args(["--storage-driver", "vfs", task]);
        command
    }

    /// Starts the program of an image, from the file that others get.
    fn start(&self, archive: &str) -> Result<()> {
        let container = read_output(self.command("from").arg(archive))?;
        let container = container.trim();
        for argument in ["--version", "check"] {
            let mut run = self.command("run");
            run.args(["--isolation", "chroot", container, "--"]);
            done(run.args([PROGRAM, argument]))?;
        }
        done(self.command("rm").arg(container))
    }
}
