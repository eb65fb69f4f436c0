//! The authorities that are trusted under TLS: those of a file, or of the system.

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use std::path::{Path, PathBuf};

/// Where distributions keep the certificates of authorities, one of them on each.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why no authority is known.
#[derive(Debug)]
pub enum AuthoritiesError {
    /// No file is given, and the system has none.
    Unknown,
    /// A file cannot be read.
    Unreadable(PathBuf, PemError),
    /// A file has no certificate.
    Empty(PathBuf),
}

/// Reads the authorities of a PEM file; those of the system without one.
///
/// # Errors
/// If there is no file, or it has no certificate that can be read.
pub fn read_authorities(file: Option<&Path>) -> Result<RootCertStore, AuthoritiesError> {
    let system = || SYSTEM.iter().map(Path::new).find(|path| path.exists());
    let path = file.or_else(system).ok_or(AuthoritiesError::Unknown)?;
    let certificates = read_certificates(path)
        .map_err(|error| AuthoritiesError::Unreadable(path.to_owned(), error))?;
    let mut authorities = RootCertStore::empty();
    match authorities.add_parsable_certificates(certificates) {
        (0, _) => Err(AuthoritiesError::Empty(path.to_owned())),
        _ => Ok(authorities),
    }
}

/// Reads all certificates of a PEM file.
///
/// # Errors
/// If it cannot be read, or one of them is wrong.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, PemError> {
    CertificateDer::pem_file_iter(path)?.collect()
}
