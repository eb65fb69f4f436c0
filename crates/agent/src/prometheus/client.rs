//! Sending queries.

use super::address::Server;
use crate::outbound::{Access, Outbound};
use lull_measure::Nanos;
use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

/// Longest time of a query, from the connection to the last byte of the answer.
pub(super) const TIMEOUT: Nanos = Nanos::from_secs(1);
/// Longest answer that is read, in bytes.
const BYTES_MAX: usize = 64 * 1024;

/// Queries one server.
pub(super) struct Client {
    server: Server,
    outbound: Outbound,
}

impl Client {
    pub(super) fn new(server: Server, access: Access) -> Self {
        Self { server, outbound: Outbound::new(access) }
    }

    /// Sends a query and returns the reply, up to the end of the connection.
    pub(super) fn fetch(&mut self, query: &str) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + Duration::from(TIMEOUT);
        let request = self.server.request(query, &self.outbound.authorization()?);
        let mut connection = self.outbound.connect(self.server.endpoint(), deadline)?;
        connection.write_all(request.as_bytes())?;
        connection.flush()?;
        let (mut all, mut part) = (Vec::new(), [0; 4096]);
        loop {
            match connection.read(&mut part) {
                Ok(0) => return Ok(all),
                Ok(count) => all.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A server may answer and keep the connection, or cut it.
                Err(_) if !all.is_empty() => return Ok(all),
                Err(error) => return Err(error),
            }
            if all.len() > BYTES_MAX {
                return Err(io::Error::other("the answer exceeds the limit of 64 KiB"));
            }
        }
    }
}
