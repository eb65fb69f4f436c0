//! TLS of connections to a server, by rustls with ring.

use super::{Access, Timed};
use lull_workload::authorities::{AuthoritiesError, read_authorities, read_certificates};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// A connection over TLS.
pub(super) type Encrypted = StreamOwned<ClientConnection, Timed>;

/// The TLS settings of new connections, read again when one of their files changes.
#[derive(Default)]
pub(super) struct Tls {
    config: Option<(Vec<Option<SystemTime>>, Arc<ClientConfig>)>,
}

impl Tls {
    /// Begins TLS over a connection to this host.
    pub(super) fn wrap(
        &mut self,
        stream: Timed,
        host: &str,
        access: &Access,
    ) -> io::Result<Encrypted> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let config = self.config(access)?;
        let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(StreamOwned::new(connection, stream))
    }

    fn config(&mut self, access: &Access) -> io::Result<Arc<ClientConfig>> {
        let changed = access.files().map(changed_at).collect();
        match &self.config {
            Some((before, config)) if *before == changed => Ok(Arc::clone(config)),
            _ => {
                let config = Arc::new(read_config(access)?);
                self.config = Some((changed, Arc::clone(&config)));
                Ok(config)
            }
        }
    }
}

impl Access {
    fn files(&self) -> impl Iterator<Item = &Path> {
        let own = self.certificate.iter().flat_map(|(certificate, key)| [certificate, key]);
        self.ca.iter().chain(own).map(PathBuf::as_path)
    }
}

fn changed_at(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|file| file.modified()).ok()
}

fn read_config(access: &Access) -> io::Result<ClientConfig> {
    let authorities = read_authorities(access.ca.as_deref()).map_err(|error| match error {
        AuthoritiesError::Unknown => io::Error::other("no authorities are known: give `ca`"),
        AuthoritiesError::Unreadable(path, error) => failed(&path, error),
        AuthoritiesError::Empty(path) => failed(&path, "it has no certificate"),
    })?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    let builder = builder.with_root_certificates(authorities);
    let Some((certificate, key)) = &access.certificate else {
        return Ok(builder.with_no_client_auth());
    };
    let own = read_certificates(certificate).map_err(|error| failed(certificate, error))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, error))?;
    builder.with_client_auth_cert(own, secret).map_err(|error| failed(certificate, error))
}

fn failed(path: &Path, why: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {why}", path.display()))
}
