//! TLS of a server's connections, by rustls with ring. It can be exchanged while the server runs,
//! since certificates are renewed.

#[cfg(feature = "tls")]
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use serde::{Deserialize, Serialize};
#[cfg(feature = "tls")]
use std::sync::{Arc, PoisonError, RwLock};

/// A certificate and its private key, PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerIdentity {
    /// The certificate with those of the authorities in between.
    pub(crate) certificate: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

/// How connections of a server are encrypted. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Encryption {
    #[cfg(feature = "tls")]
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

#[cfg(feature = "tls")]
impl Encryption {
    /// Encrypts with this identity.
    ///
    /// # Errors
    /// If it is none.
    pub(crate) fn new(identity: &ServerIdentity) -> Result<Self, String> {
        Ok(Self { config: Arc::new(RwLock::new(Arc::new(config_of(identity)?))) })
    }

    /// Encrypts new connections with this identity.
    ///
    /// # Errors
    /// If it is none; the one before stays.
    pub(crate) fn renew(&self, identity: &ServerIdentity) -> Result<(), String> {
        let config = Arc::new(config_of(identity)?);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Begins an encrypted connection.
    pub(super) async fn accept(
        &self,
        stream: tokio::net::TcpStream,
    ) -> std::io::Result<tokio_rustls::server::TlsStream<tokio::net::TcpStream>> {
        let config = Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner));
        tokio_rustls::TlsAcceptor::from(config).accept(stream).await
    }
}

#[cfg(feature = "tls")]
fn config_of(identity: &ServerIdentity) -> Result<ServerConfig, String> {
    let chain =
        CertificateDer::pem_slice_iter(&identity.certificate).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| format!("its certificate cannot be read: {error}"))?;
    let key = PrivateKeyDer::from_pem_slice(&identity.key);
    let key = key.map_err(|error| format!("its private key cannot be read: {error}"))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?.with_no_client_auth();
    let config = builder.with_single_cert(chain, key);
    config.map_err(|error| format!("its certificate and its key do not fit: {error}"))
}

#[cfg(not(feature = "tls"))]
impl Encryption {
    /// Refuses, since the program was built without TLS.
    pub(crate) fn new(_: &ServerIdentity) -> Result<Self, String> {
        Err("this program was built without TLS".to_owned())
    }

    /// Refuses, since the program was built without TLS.
    pub(crate) fn renew(&self, identity: &ServerIdentity) -> Result<(), String> {
        Self::new(identity).map(drop)
    }
}
