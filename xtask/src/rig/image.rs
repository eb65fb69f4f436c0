//! The disk of machines that boot Debian itself: Debian 12 with systemd as process 1.
//!
//! `mmdebstrap` installs Debian's packages into a directory and `mke2fs` makes a file
//! system of it, once a user, in [`xtask::cache`]. Guests write to a snapshot, so that each
//! boots what was made. Nothing of Lull is in it: `initramfs.rs` brings it along.

use crate::command::done;
use crate::debian;
use crate::packages::{install_packages, on_path};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const SUITE: &str = "bookworm";
/// systemd without udev: there is no device that needs a rule. memcached is a server that
/// tests attach; apparmor loads profiles; secilc compiles a policy of SELinux; rpm runs the
/// scripts of an RPM; runc and iproute2 are those of a node with a kubelet.
const PACKAGES: &str =
    "systemd,systemd-sysv,init-system-helpers,memcached,apparmor,secilc,rpm,runc,iproute2";
/// Profiles of Debian, which no test needs, are not compiled at each start.
const MASK: &str = "ln -sf /dev/null \"$1/etc/systemd/system/apparmor.service\"";
/// Paths that no test reads.
const EXCLUDED: [&str; 3] = ["/usr/share/man/*", "/usr/share/locale/*", "/usr/share/doc/*"];
/// Room for what tests install and record; the image is sparse.
const SIZE: &str = "700M";
/// Further packages that make an image, as they are called.
const MAKERS: [(&str, &str); 2] = [("mmdebstrap", "mmdebstrap"), ("mke2fs", "e2fsprogs")];

/// The image, which is made if it is not there yet.
///
/// # Errors
/// If this is not root, or Debian's packages cannot be had.
pub(super) fn provide(place: &Path) -> Result<PathBuf> {
    let (image, recipe_path) = (place.join("debian-12.ext4"), place.join("debian-12.recipe"));
    std::fs::create_dir_all(place)?;
    // The runs of other clones make the same file.
    let lock = File::create(place.join("lock"))?;
    lock.lock().context("cannot lock the directory of images")?;
    let recipe = format!("{SUITE} {PACKAGES} {EXCLUDED:?} {SIZE} {MASK}\n");
    if image.exists() && std::fs::read_to_string(&recipe_path).is_ok_and(|made| made == recipe) {
        return Ok(image);
    }
    let missing: Vec<_> = MAKERS.iter().filter(|(program, _)| on_path(program).is_none()).collect();
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    if !packages.is_empty() && !install_packages(&packages) {
        bail!(
            "the Debian disk image needs more programs; run: apt-get install {}",
            packages.join(" ")
        );
    }
    make(place, &image)?;
    std::fs::write(recipe_path, recipe)?;
    Ok(image)
}

fn make(place: &Path, image: &Path) -> Result<()> {
    if place.metadata()?.uid() != 0 {
        bail!(
            "only root can make the Debian disk image, whose files belong to root; run this as root"
        );
    }
    let root = place.join("debian-12");
    // Remove the remains of an interrupted run.
    remove(&root)?;
    let mut make = Command::new("mmdebstrap");
    make.args(["--mode=root", "--variant=essential", "--include", PACKAGES]);
    make.args(EXCLUDED.map(|path| format!("--dpkgopt=path-exclude={path}")));
    // The documentation of the package under test is installed.
    make.arg("--dpkgopt=path-include=/usr/share/doc/lull/*");
    make.arg(format!("--customize-hook={MASK}"));
    make.args([SUITE.as_ref(), root.as_os_str()]).arg(debian::mirror()?);
    done(&mut make).context("mmdebstrap cannot install Debian 12 with systemd")?;
    let unfinished = image.with_extension("unfinished");
    remove(&unfinished)?;
    let mut format = Command::new("mke2fs");
    format.args(["-q", "-t", "ext4", "-d"]).args([&root, &unfinished]).arg(SIZE);
    done(&mut format)?;
    remove(&root)?;
    std::fs::rename(unfinished, image)?;
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    let removed = match path.is_dir() {
        true => std::fs::remove_dir_all(path),
        false if path.exists() => std::fs::remove_file(path),
        false => Ok(()),
    };
    removed.with_context(|| format!("cannot remove {}", path.display()))
}
