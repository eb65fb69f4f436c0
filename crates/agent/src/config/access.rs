//! How other machines are recognised, and recognise the agent: certificates and tokens.

use crate::outbound::Access;
use schemars::JsonSchema;
use serde::Deserialize;
use std::path::PathBuf;

/// A faulty key of one of these sections and the error.
pub(super) type KeyError = (&'static str, &'static str);

/// Refuses a certificate without its key, and a key without its certificate.
pub(super) fn check_pair(
    certificate: Option<&PathBuf>,
    key: Option<&PathBuf>,
) -> Result<(), KeyError> {
    match certificate.is_some() == key.is_some() {
        true => Ok(()),
        false => Err(("certificate", "and `key` belong together: give both")),
    }
}

/// `[agent.export_access]`: how a collector is reached over `https`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccessSection {
    /// PEM file of the authorities that the collector may be certified by; those of the system if
    /// absent.
    #[schemars(example = &"/etc/lull/ca.pem")]
    pub ca: Option<PathBuf>,
    /// PEM file of the certificate that the agent shows, with `key`.
    #[schemars(example = &"/etc/lull/client.pem")]
    pub certificate: Option<PathBuf>,
    /// PEM file of its private key.
    #[schemars(example = &"/etc/lull/client.key")]
    pub key: Option<PathBuf>,
    /// File with a bearer token, read for each export.
    #[schemars(example = &"/etc/lull/collector.token")]
    pub token: Option<PathBuf>,
}

impl AccessSection {
    /// Returns the first key that does not fit the others, and why; `plain` is the error of any
    /// key on a connection that is not encrypted.
    pub(super) fn check(&self, is_encrypted: bool, plain: &'static str) -> Result<(), KeyError> {
        check_pair(self.certificate.as_ref(), self.key.as_ref())?;
        let files = [("ca", &self.ca), ("certificate", &self.certificate), ("token", &self.token)];
        match files.into_iter().find(|(_, file)| file.is_some()) {
            Some((key, _)) if !is_encrypted => Err((key, plain)),
            _ => Ok(()),
        }
    }

    /// Returns the files as they are used.
    pub(crate) fn access(&self) -> Access {
        let Self { ca, certificate, key, token } = self.clone();
        Access { ca, certificate: certificate.zip(key), token }
    }
}

/// `[agent.otlp_access]`: how the receiver of OTLP is protected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReceiverSection {
    /// PEM file of the receiver's certificate, with `key`: it then accepts TLS only.
    #[schemars(example = &"/etc/lull/receiver.pem")]
    pub certificate: Option<PathBuf>,
    /// PEM file of its private key.
    #[schemars(example = &"/etc/lull/receiver.key")]
    pub key: Option<PathBuf>,
    /// File with the bearer token that services must send. At an address that other machines reach
    /// it needs `certificate`.
    #[schemars(example = &"/etc/lull/receiver.token")]
    pub token: Option<PathBuf>,
}

impl ReceiverSection {
    /// Returns the first key that does not fit the others, and why. `is_local` says whether only
    /// this machine reaches the receiver.
    pub(super) fn check(&self, is_local: bool) -> Result<(), KeyError> {
        check_pair(self.certificate.as_ref(), self.key.as_ref())?;
        if self.certificate.is_some() && !cfg!(feature = "tls") {
            return Err((
                "certificate",
                "is for TLS, which this program was built without: use Lull's package, or build \
                 it with --features tls",
            ));
        }
        if self.token.is_some() && self.certificate.is_none() && !is_local {
            return Err((
                "token",
                "would cross the network unencrypted: give `certificate` and `key`",
            ));
        }
        Ok(())
    }
}
