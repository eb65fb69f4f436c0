//! A dataset in a directory.

use super::Store;
use anyhow::Context;
use std::fs::{self, DirEntry};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A directory, which is made with the first file.
pub(super) struct Directory {
    root: PathBuf,
}

impl Directory {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The entries of a folder; none if it does not exist.
    fn entries(&self, folder: &str) -> anyhow::Result<Vec<DirEntry>> {
        let place = self.root.join(folder);
        let read = match fs::read_dir(&place) {
            Ok(entries) => entries.collect(),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        };
        let mut entries: Vec<DirEntry> =
            read.with_context(|| format!("cannot read {}", place.display()))?;
        entries.sort_by_key(DirEntry::file_name);
        Ok(entries)
    }

    fn named(folder: &str, entry: &DirEntry) -> Option<String> {
        entry.file_name().to_str().map(|name| format!("{folder}/{name}"))
    }

    fn replace(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.root.join(path);
        let folder = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder)?;
        // The group of the directory may be that of its readers.
        let mut file = tempfile::Builder::new()
            .prefix(".lull-")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o640))
            .tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(&path)?;
        Ok(())
    }
}

impl Store for Directory {
    fn is_empty(&self) -> anyhow::Result<bool> {
        Ok(self.entries("")?.is_empty())
    }

    fn folders(&self, below: &str) -> anyhow::Result<Vec<String>> {
        let entries = self.entries(below)?;
        // A link may lead out of the dataset, and is not a folder of it.
        let folders =
            entries.iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        Ok(folders.filter_map(|entry| Self::named(below, entry)).collect())
    }

    fn list(&self, below: &str) -> anyhow::Result<Vec<String>> {
        let mut all = Vec::new();
        for folder in self.folders(below)? {
            let entries = self.entries(&folder)?;
            let files =
                entries.iter().filter(|entry| !entry.file_type().is_ok_and(|kind| kind.is_dir()));
            all.extend(files.filter_map(|entry| Self::named(&folder, entry)));
        }
        Ok(all)
    }

    fn read(&self, path: &str) -> anyhow::Result<Option<Vec<u8>>> {
        let path = self.root.join(path);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    fn write(&self, path: &str, bytes: Vec<u8>) -> anyhow::Result<()> {
        let cannot = || format!("cannot write {}", self.root.join(path).display());
        self.replace(path, &bytes).with_context(cannot)
    }

    fn remove(&self, path: &str) -> anyhow::Result<()> {
        let path = self.root.join(path);
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        // Day and host. A folder with something in it stays.
        for folder in path.ancestors().skip(1).take(2) {
            if fs::remove_dir(folder).is_err() {
                break;
            }
        }
        Ok(())
    }
}
