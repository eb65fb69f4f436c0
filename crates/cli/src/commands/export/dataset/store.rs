//! Where a dataset is: a directory, or a prefix of a bucket of S3.

mod directory;
#[cfg(feature = "s3")]
mod s3;

use crate::commands::UsageError;
use directory::Directory;
use std::path::Path;

/// Files by their paths from the root of a dataset, with `/` between folders.
pub(super) trait Store {
    /// Whether nothing is there.
    fn is_empty(&self) -> anyhow::Result<bool>;

    /// Returns the paths of the folders directly below a folder; none if it does not exist.
    fn folders(&self, below: &str) -> anyhow::Result<Vec<String>>;

    /// Returns the paths of all files of the folders directly below a folder of a host.
    fn list(&self, below: &str) -> anyhow::Result<Vec<String>>;

    /// Returns the contents of a file; `None` if there is none.
    fn read(&self, path: &str) -> anyhow::Result<Option<Vec<u8>>>;

    /// Writes a file, which appears whole or not at all.
    fn write(&self, path: &str, bytes: Vec<u8>) -> anyhow::Result<()>;

    /// Removes a file, and the folders of day and host if nothing is left in them.
    fn remove(&self, path: &str) -> anyhow::Result<()>;
}

/// Opens a directory, or `s3://BUCKET/PREFIX`.
///
/// # Errors
/// If the place cannot be used, or this program was built without S3.
pub(super) fn open(place: &str) -> anyhow::Result<Box<dyn Store>> {
    if place.starts_with("s3://") {
        return open_s3(place);
    }
    if place.contains("://") {
        let what = format!("{place}: a dataset is a directory or s3://BUCKET/PREFIX");
        return Err(UsageError(what).into());
    }
    Ok(Box::new(Directory::new(Path::new(place))))
}

#[cfg(feature = "s3")]
fn open_s3(place: &str) -> anyhow::Result<Box<dyn Store>> {
    Ok(Box::new(s3::Bucket::new(place)?))
}

#[cfg(not(feature = "s3"))]
fn open_s3(place: &str) -> anyhow::Result<Box<dyn Store>> {
    let what = format!(
        "{place}: this lull was built without S3: name a directory, or build with --features s3"
    );
    Err(UsageError(what).into())
}
