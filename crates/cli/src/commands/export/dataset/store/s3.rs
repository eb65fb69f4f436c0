//! A dataset in a bucket of S3, or of a server that speaks its protocol.
//!
//! Region, endpoint and credentials are those of the environment (`AWS_REGION`,
//! `AWS_ENDPOINT`, `AWS_ACCESS_KEY_ID`, ...), of the machine's role or of the pod's identity.

use super::Store;
use anyhow::Context;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt};
use tokio::runtime::{self, Runtime};

/// A prefix of a bucket.
pub(super) struct Bucket {
    place: String,
    prefix: Path,
    objects: AmazonS3,
    runtime: Runtime,
}

impl Bucket {
    /// # Errors
    /// If the address or the environment cannot be used.
    pub(super) fn new(place: &str) -> anyhow::Result<Self> {
        let cannot = || format!("cannot use {place}");
        // Fails if another part of the program has chosen one, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let objects = AmazonS3Builder::from_env().with_url(place).build().with_context(cannot)?;
        let inner = place.strip_prefix("s3://").unwrap_or(place);
        let prefix = inner.split_once('/').map_or("", |(_, prefix)| prefix);
        let prefix = Path::parse(prefix).with_context(cannot)?;
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { place: place.to_owned(), prefix, objects, runtime })
    }

    /// The key of a path of the dataset.
    fn key(&self, path: &str) -> Path {
        path.split('/').filter(|part| !part.is_empty()).fold(self.prefix.clone(), Path::join)
    }

    /// The path of a key, which is below the prefix.
    fn path(&self, key: &Path) -> Option<String> {
        let parts: Vec<String> =
            key.prefix_match(&self.prefix)?.map(|part| part.as_ref().to_owned()).collect();
        Some(parts.join("/"))
    }

    fn cannot(&self, doing: &str, path: &str) -> String {
        format!("cannot {doing} {}/{path}", self.place.trim_end_matches('/'))
    }
}

impl Store for Bucket {
    fn is_empty(&self) -> anyhow::Result<bool> {
        let list = self.objects.list_with_delimiter(Some(&self.prefix));
        let found = self.runtime.block_on(list).with_context(|| self.cannot("list", ""))?;
        Ok(found.objects.is_empty() && found.common_prefixes.is_empty())
    }

    fn folders(&self, below: &str) -> anyhow::Result<Vec<String>> {
        let key = self.key(below);
        let list = self.objects.list_with_delimiter(Some(&key));
        let found = self.runtime.block_on(list).with_context(|| self.cannot("list", below))?;
        Ok(found.common_prefixes.iter().filter_map(|key| self.path(key)).collect())
    }

    fn list(&self, below: &str) -> anyhow::Result<Vec<String>> {
        use futures_util::TryStreamExt;
        let key = self.key(below);
        let list = self.objects.list(Some(&key)).try_collect::<Vec<_>>();
        let found = self.runtime.block_on(list).with_context(|| self.cannot("list", below))?;
        Ok(found.iter().filter_map(|object| self.path(&object.location)).collect())
    }

    fn read(&self, path: &str) -> anyhow::Result<Option<Vec<u8>>> {
        let key = self.key(path);
        let read = async { self.objects.get(&key).await?.bytes().await };
        match self.runtime.block_on(read) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error).with_context(|| self.cannot("read", path)),
        }
    }

    fn write(&self, path: &str, bytes: Vec<u8>) -> anyhow::Result<()> {
        let key = self.key(path);
        let put = self.objects.put(&key, bytes.into());
        self.runtime.block_on(put).with_context(|| self.cannot("write", path))?;
        Ok(())
    }

    fn remove(&self, path: &str) -> anyhow::Result<()> {
        let key = self.key(path);
        let delete = self.objects.delete(&key);
        self.runtime.block_on(delete).with_context(|| self.cannot("remove", path))
    }
}
