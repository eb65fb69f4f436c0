//! Storing keys in a cache ahead of a run.

use super::{Cache, Decoder, Endpoint, Outcome, ProtocolError, Target, TlsClient, Transport};
use crate::Generator;
use crate::etc::Etc;
use lull_measure::Nanos;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The keys that were stored in a cache ahead of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preloaded {
    /// Keys stored.
    pub stored: u32,
    /// Keys that the server refused to store, most likely because its memory is full.
    pub refused: u32,
}

/// Why keys could not be stored ahead of a run.
#[derive(Debug, thiserror::Error)]
pub enum PreloadError {
    /// The connection failed.
    #[error(
        "cannot store keys in {address} ahead of the run: {source}; is a {protocol} server \
         listening there?"
    )]
    Io {
        /// The protocol that was expected.
        protocol: &'static str,
        /// The server.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// The server sent no reply in time.
    #[error(
        "cannot store keys in {address} ahead of the run: it accepts connections, but sent no \
         reply within {} s. Another program than a {protocol} server may listen there, or the \
         server hangs: check the protocol and the port of the target",
        PATIENCE.as_secs()
    )]
    Silent {
        /// The protocol that was expected.
        protocol: &'static str,
        /// The server.
        address: SocketAddr,
    },
    /// The server refuses to store any key.
    #[error(
        "{address} refuses to store keys ahead of the run: {message}; a password is read from \
         REDISCLI_AUTH"
    )]
    Refused {
        /// The server.
        address: SocketAddr,
        /// Its last error.
        message: String,
    },
    /// The server's reply does not follow the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
}

/// Keys sent before their replies are waited for: 70 KB at most, which the
/// buffers of both ends hold, so that neither end waits for the other.
const BATCH: u32 = 64;
/// How long the server may take to connect, and to reply.
const PATIENCE: Duration = Duration::from_secs(5);

/// Stores every key of the mix once, so that reads hit; ends early when `stop` is set.
///
/// # Errors
/// If the server cannot be reached, does not answer for 5 s, refuses, or speaks another protocol.
pub(crate) fn preload(
    address: SocketAddr,
    tls: Option<&TlsClient>,
    target: &mut Cache,
    rng: &mut Generator,
    stop: &AtomicBool,
) -> Result<Preloaded, PreloadError> {
    let mut connection = Connection::open(address, tls, target)?;
    let mut done = Preloaded { stored: 0, refused: 0 };
    let records = target.records();
    for first in (0..records).step_by(BATCH as usize) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let batch = first..records.min(first.saturating_add(BATCH));
        for record in batch.clone() {
            target.write_set(record, Etc::value_bytes(rng), &mut connection.out);
        }
        let outcomes = connection.exchange(batch.len(), stop)?;
        let stored = outcomes.iter().filter(|outcome| **outcome == Outcome::Done).count() as u32;
        done.stored += stored;
        done.refused += batch.len() as u32 - stored;
    }
    if done.stored == 0 && done.refused > 0 && !connection.decoder.message().is_empty() {
        return Err(PreloadError::Refused {
            address,
            message: connection.decoder.message().to_owned(),
        });
    }
    Ok(done)
}

/// A connection on which one batch of requests follows another.
struct Connection {
    protocol: &'static str,
    address: SocketAddr,
    transport: Transport,
    decoder: Box<dyn Decoder>,
    out: Vec<u8>,
    held: Vec<u8>,
}

impl Connection {
    /// Connects, and logs in where the server requires it.
    fn open(
        address: SocketAddr,
        tls: Option<&TlsClient>,
        target: &Cache,
    ) -> Result<Self, PreloadError> {
        let (protocol, decoder) = (target.name(), target.decoder());
        let transport = connect(address, tls);
        let transport = transport.map_err(|source| failed(protocol, address, source))?;
        let mut connection =
            Self { protocol, address, transport, decoder, out: Vec::new(), held: Vec::new() };
        connection.decoder.proceed(Nanos::ZERO, &mut Vec::new(), &mut connection.out);
        Ok(connection)
    }

    /// Sends the written bytes and returns the outcomes of this many requests, or fewer if a stop
    /// is requested.
    fn exchange(&mut self, wanted: usize, stop: &AtomicBool) -> Result<Vec<Outcome>, PreloadError> {
        let failed = |source| failed(self.protocol, self.address, source);
        self.transport.send_all(&self.out).map_err(failed)?;
        self.out.clear();
        let (mut outcomes, mut chunk) = (Vec::new(), [0; 4096]);
        while outcomes.len() < wanted {
            match self.transport.wait_for_bytes(&mut chunk) {
                Ok(0) => return Err(failed(ErrorKind::UnexpectedEof.into())),
                Ok(count) => self.held.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    continue;
                }
                Err(error) => return Err(failed(error)),
            }
            let used = self.decoder.decode(&self.held, &mut outcomes)?;
            self.held.drain(..used);
        }
        Ok(outcomes)
    }
}

fn connect(address: SocketAddr, tls: Option<&TlsClient>) -> std::io::Result<Transport> {
    let mut transport = Transport::new(Endpoint::Tcp(address).connect(PATIENCE)?);
    if let Some(tls) = tls {
        transport.begin_tls(tls, Vec::new())?;
        transport.shake_hands()?;
    }
    Ok(transport)
}

/// Returns the error of a transfer that failed.
fn failed(protocol: &'static str, address: SocketAddr, source: std::io::Error) -> PreloadError {
    match source.kind() {
        // The time-outs of the socket.
        ErrorKind::WouldBlock | ErrorKind::TimedOut => PreloadError::Silent { protocol, address },
        _ => PreloadError::Io { protocol, address, source },
    }
}
