//! Debian's packages: fetched with lists of their own, unpacked, never installed.

use crate::command::done;
use anyhow::{Context, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages of one suite.
pub(crate) struct Source {
    /// The name, also of the directory that they are unpacked in.
    pub(crate) name: &'static str,
    pub(crate) suite: &'static str,
    /// The architecture in Debian's terms.
    pub(crate) architecture: &'static str,
    pub(crate) packages: &'static [Package],
}

/// How a package is found.
pub(crate) enum Package {
    /// A package by its name.
    Named(&'static str),
    /// The one with the highest number in its name, between what its name begins
    /// and ends with.
    Newest { begin: &'static str, end: &'static str },
}

/// The directory with the unpacked packages, which are fetched if they are not there yet.
pub(crate) fn provide(source: &Source, place: &Path) -> Result<PathBuf> {
    let root = place.join(source.name);
    std::fs::create_dir_all(place)?;
    // The runs of other clones fetch into the same directory.
    let lock = File::create(place.join("lock"))?;
    lock.lock().context("cannot lock the directory of what is fetched")?;
    if !root.join("done").exists() {
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root)?;
        for package in source.fetch(place)? {
            done(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&root))?;
        }
        std::fs::write(root.join("done"), "")?;
    }
    Ok(root)
}

impl Package {
    fn is(&self, name: &str) -> bool {
        match self {
            Self::Named(own) => name == *own,
            Self::Newest { .. } => self.number(name).is_some(),
        }
    }

    fn number(&self, name: &str) -> Option<u32> {
        let Self::Newest { begin, end } = self else { return None };
        name.strip_prefix(begin)?.strip_suffix(end)?.parse().ok()
    }
}

impl Source {
    /// The packages' files, fetched so that this machine's sources stay as they are.
    fn fetch(&self, place: &Path) -> Result<Vec<PathBuf>> {
        let debs = place.join("debs");
        std::fs::create_dir_all(&debs)?;
        let kept = |package: &Package| self.find_fetched(&debs, package);
        let all: Vec<_> = self.packages.iter().filter_map(kept).collect();
        if all.len() == self.packages.len() {
            return Ok(all);
        }
        let options = self.options(place)?;
        done(Command::new("apt-get").args(&options).args(["-q", "update"]))?;
        for package in self.packages {
            let name = self.newest(&options, package)?;
            let mut download = Command::new("apt-get");
            done(download.current_dir(&debs).args(&options).args(["-q", "download", &name]))?;
        }
        let fetched = |package| kept(package).context("apt-get has fetched something else");
        self.packages.iter().map(fetched).collect()
    }

    fn find_fetched(&self, debs: &Path, package: &Package) -> Option<PathBuf> {
        let files = std::fs::read_dir(debs).into_iter().flatten().flatten();
        let mut found: Vec<_> = files
            .map(|file| file.path())
            .filter(|path| {
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                package.is(file.split('_').next().unwrap_or_default())
            })
            .collect();
        found.sort();
        found.pop()
    }

    fn newest(&self, options: &[String], package: &Package) -> Result<String> {
        let (begin, end) = match package {
            Package::Named(name) => return Ok((*name).to_owned()),
            Package::Newest { begin, end } => (begin, end),
        };
        let quoted = |text: &str| text.replace('.', "\\.").replace('+', "\\+");
        let pattern = format!("^{}[0-9]+{}$", quoted(begin), quoted(end));
        let output = Command::new("apt-cache")
            .args(options)
            .args(["search", "--names-only", &pattern])
            .output()
            .context("cannot start apt-cache")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let names = text.lines().filter_map(|line| line.split(' ').next());
        let newest = names.max_by_key(|name| package.number(name));
        newest.map(str::to_owned).with_context(|| format!("no package {pattern} in {}", self.suite))
    }

    fn options(&self, place: &Path) -> Result<Vec<String>> {
        let apt = place.join(format!("apt-{}", self.name));
        for dir in ["lists/partial", "cache/archives/partial"] {
            std::fs::create_dir_all(apt.join(dir))?;
        }
        let list = apt.join("sources.list");
        let key = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let line = format!("deb [signed-by={key}] {} {} main\n", mirror()?, self.suite);
        std::fs::write(&list, line)?;
        let option =
            |key: &str, value: &Path| ["-o".to_owned(), format!("{key}={}", value.display())];
        Ok([
            option("Dir::Etc::SourceList", &list),
            option("Dir::Etc::SourceParts", Path::new("/dev/null")),
            option("Dir::State::Lists", &apt.join("lists")),
            option("Dir::Cache", &apt.join("cache")),
            option("APT::Sandbox::User", Path::new("root")),
            option("APT::Architecture", Path::new(self.architecture)),
            option("APT::Architectures", Path::new(self.architecture)),
        ]
        .concat())
    }
}

/// The mirror that this machine gets its Debian from.
pub(crate) fn mirror() -> Result<String> {
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI) $(LABEL)", "Created-By: Packages"])
        .output()
        .context("cannot start apt-get: the rig's kernels and emulators are Debian's")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let debian = text.lines().find_map(|line| line.strip_suffix(" Debian"));
    debian.map(str::to_owned).context("apt has no Debian mirror among its sources")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_known_by_what_is_around_its_number() {
        let kernel = Package::Newest { begin: "linux-image-6.12.", end: "+deb12-amd64" };
        assert!(kernel.is("linux-image-6.12.9+deb12-amd64"));
        assert!(!kernel.is("linux-image-6.12.9+deb12-cloud-amd64"));
        assert!(!kernel.is("linux-image-6.1.9+deb12-amd64"));
        let newer = kernel.number("linux-image-6.12.95+deb12-amd64");
        assert!(newer > kernel.number("linux-image-6.12.9+deb12-amd64"));
    }
}
