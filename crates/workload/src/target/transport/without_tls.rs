//! A program without TLS: no client can be created, so that there are no sessions.

use super::super::endpoint::Stream;
use super::{TlsConfig, TlsError};
use std::io;

/// No value of this type exists.
#[derive(Debug, Clone)]
pub(crate) enum TlsClient {}

impl TlsClient {
    pub(crate) const fn new(
        _: &TlsConfig,
        _: &str,
        _: Option<&'static [u8]>,
        _: bool,
    ) -> Result<Self, TlsError> {
        Err(TlsError::Absent)
    }

    pub(super) fn begin(&self, _: Vec<u8>) -> io::Result<Session> {
        match *self {}
    }
}

/// No value of this type exists.
#[derive(Debug)]
pub(super) enum Session {}

impl Session {
    pub(super) fn encrypt(&mut self, _: &[u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn flush(&mut self, _: &Stream) -> io::Result<()> {
        match *self {}
    }

    pub(super) fn fill(&mut self, _: &Stream) -> io::Result<usize> {
        match *self {}
    }

    pub(super) fn take(&mut self, _: &mut [u8]) -> io::Result<Option<usize>> {
        match *self {}
    }

    pub(super) fn is_open(&self) -> bool {
        match *self {}
    }

    pub(super) fn take_handshake(&mut self) -> Option<bool> {
        match *self {}
    }

    pub(super) fn has_received(&self) -> bool {
        match *self {}
    }

    pub(super) fn has_output(&self) -> bool {
        match *self {}
    }
}
