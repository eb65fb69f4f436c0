//! memcached's text protocol under the ETC mix.
//!
//! <https://github.com/memcached/memcached/blob/master/doc/protocol.txt>

use super::{Decoder, Outcome, ProtocolError, Target, first_line};
use crate::Generator;
use crate::etc::{Etc, EtcRequest};
use rand::Rng;
use rand::SeedableRng;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PROTOCOL: &str = "memcached";
/// The largest value stored.
const VALUE_BYTES: usize = 1024;

/// GETs and SETs of the ETC mix.
#[derive(Debug, Clone)]
pub struct Memcached {
    etc: Etc,
    /// What values are made of: a value is a prefix of it.
    filler: Vec<u8>,
}

impl Memcached {
    /// A client of the mix.
    pub fn new(etc: Etc) -> Self {
        let mut filler = vec![0; VALUE_BYTES];
        Generator::seed_from_u64(0).fill_bytes(&mut filler);
        Self { etc, filler }
    }

    fn write_get(&self, record: u32, out: &mut Vec<u8>) {
        out.extend_from_slice(b"get ");
        self.etc.write_key(record, out);
        out.extend_from_slice(b"\r\n");
    }

    fn write_set(&self, record: u32, bytes: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(b"set ");
        self.etc.write_key(record, out);
        write!(out, " 0 0 {bytes}\r\n").expect("writing to memory cannot fail");
        out.extend_from_slice(&self.filler[..bytes]);
        out.extend_from_slice(b"\r\n");
    }
}

impl Target for Memcached {
    fn encode(&mut self, rng: &mut Generator, out: &mut Vec<u8>) {
        match self.etc.request(rng) {
            EtcRequest::Get(record) => self.write_get(record, out),
            EtcRequest::Set(record, bytes) => self.write_set(record, bytes, out),
        }
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::<Replies>::default()
    }
}

/// What the next bytes are.
#[derive(Debug, Default)]
enum Expect {
    #[default]
    Line,
    /// This much of a value, then its line ending.
    Value(u64),
    ValueEnd,
}

/// Reads replies to GET and SET.
#[derive(Debug, Default)]
struct Replies {
    expect: Expect,
    /// Whether a value has arrived since the last `END`.
    hit: bool,
}

impl Decoder for Replies {
    fn decode(
        &mut self,
        input: &[u8],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<usize, ProtocolError> {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            match self.expect {
                Expect::Value(left) => {
                    let take = left.min(rest.len() as u64);
                    used += take as usize;
                    if take < left {
                        self.expect = Expect::Value(left - take);
                        return Ok(used);
                    }
                    self.expect = Expect::ValueEnd;
                }
                Expect::ValueEnd => match rest {
                    [b'\r', b'\n', ..] => {
                        used += 2;
                        self.expect = Expect::Line;
                    }
                    [] | [b'\r'] => return Ok(used),
                    _ => return Err(ProtocolError::unexpected(PROTOCOL, rest)),
                },
                Expect::Line => {
                    let Some((line, length)) = first_line(PROTOCOL, rest)? else { return Ok(used) };
                    used += length;
                    outcomes.extend(self.line(line)?);
                }
            }
        }
    }
}

impl Replies {
    /// Takes a line in; the outcome if it ends a reply.
    fn line(&mut self, line: &[u8]) -> Result<Option<Outcome>, ProtocolError> {
        let word = line.split(|byte| *byte == b' ').next().unwrap_or(line);
        let outcome = match word {
            b"VALUE" => {
                self.expect = Expect::Value(value_length(line)?);
                self.hit = true;
                return Ok(None);
            }
            b"END" if std::mem::take(&mut self.hit) => Outcome::Done,
            b"END" => Outcome::Miss,
            b"STORED" => Outcome::Done,
            b"NOT_STORED" | b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR" => Outcome::Failed,
            _ => return Err(ProtocolError::unexpected(PROTOCOL, line)),
        };
        Ok(Some(outcome))
    }
}

/// `VALUE <key> <flags> <bytes>`
fn value_length(line: &[u8]) -> Result<u64, ProtocolError> {
    let field = line.split(|byte| *byte == b' ').nth(3);
    let number = field.and_then(|field| std::str::from_utf8(field).ok()?.parse::<u64>().ok());
    number.ok_or_else(|| ProtocolError::unexpected(PROTOCOL, line))
}

/// What [`preload`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preloaded {
    /// Keys stored.
    pub stored: u32,
    /// Keys that the server refused to store, for want of memory most likely.
    pub refused: u32,
}

/// Why keys could not be stored ahead of a run.
#[derive(Debug, thiserror::Error)]
pub enum PreloadError {
    /// The connection failed.
    #[error(
        "cannot store keys in {address} ahead of the run: {source}; is memcached listening there?"
    )]
    Io {
        /// The server.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// No reply in time.
    #[error(
        "cannot store keys in {address} ahead of the run: it accepts connections, but sent no \
         reply within {} s. Another program than memcached may listen there, or the server hangs: \
         check the protocol and the port of the target",
        PATIENCE.as_secs()
    )]
    Silent {
        /// The server.
        address: SocketAddr,
    },
    /// The server answers something else.
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
/// If the server cannot be reached, does not answer for 5 s, or is no memcached.
pub fn preload(
    address: SocketAddr,
    target: &Memcached,
    rng: &mut Generator,
    stop: &AtomicBool,
) -> Result<Preloaded, PreloadError> {
    let io = |source| failed(address, source);
    let mut stream = connect(address).map_err(io)?;
    let mut done = Preloaded { stored: 0, refused: 0 };
    let mut request = Vec::new();
    let records = target.etc.records();
    for first in (0..records).step_by(BATCH as usize) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        request.clear();
        let batch = first..records.min(first.saturating_add(BATCH));
        for record in batch.clone() {
            target.write_set(record, Etc::value_bytes(rng), &mut request);
        }
        stream.write_all(&request).map_err(io)?;
        let outcomes = read_replies(&mut stream, address, batch.len(), stop)?;
        let stored = outcomes.iter().filter(|outcome| **outcome == Outcome::Done).count() as u32;
        done.stored += stored;
        done.refused += batch.len() as u32 - stored;
    }
    Ok(done)
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Returns the error of a transfer that failed.
fn failed(address: SocketAddr, source: std::io::Error) -> PreloadError {
    match source.kind() {
        // The time-outs of the socket.
        ErrorKind::WouldBlock | ErrorKind::TimedOut => PreloadError::Silent { address },
        _ => PreloadError::Io { address, source },
    }
}

fn read_replies(
    stream: &mut TcpStream,
    address: SocketAddr,
    wanted: usize,
    stop: &AtomicBool,
) -> Result<Vec<Outcome>, PreloadError> {
    let io = |source| failed(address, source);
    let (mut decoder, mut outcomes) = (Replies::default(), Vec::new());
    let (mut held, mut chunk) = (Vec::new(), [0; 4096]);
    while outcomes.len() < wanted {
        match stream.read(&mut chunk) {
            Ok(0) => return Err(io(ErrorKind::UnexpectedEof.into())),
            Ok(count) => held.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                continue;
            }
            Err(error) => return Err(io(error)),
        }
        let used = decoder.decode(&held, &mut outcomes)?;
        held.drain(..used);
    }
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use super::super::testing::feed;
    use super::*;
    use crate::etc::EtcConfig;
    use crate::testing::rng;
    use proptest::prelude::*;

    const REPLIES: &[u8] = b"VALUE k 0 5\r\nE\r\nD!\r\nEND\r\nEND\r\nSTORED\r\n\
        SERVER_ERROR out of memory storing object\r\nVALUE k 0 0\r\n\r\nEND\r\n";

    proptest! {
        #[test]
        fn portions_of_any_size_give_the_same_outcomes(step in 1usize..200) {
            let outcomes = feed(&mut Replies::default(), REPLIES, step).unwrap();
            let (done, miss, failed) = (Outcome::Done, Outcome::Miss, Outcome::Failed);
            let wanted = [done, miss, done, failed, done];
            prop_assert_eq!(outcomes, wanted);
        }

        #[test]
        fn no_bytes_make_the_decoder_panic_or_keep_them_for_good(
            bytes in prop::collection::vec(any::<u8>(), 0..400), step in 1usize..50,
        ) {
            let _ = feed(&mut Replies::default(), &bytes, step);
        }
    }

    #[test]
    fn another_protocol_is_refused_by_its_first_line() {
        let error =
            feed(&mut Replies::default(), b"HTTP/1.1 400 Bad Request\r\n", 100).unwrap_err();
        assert!(error.to_string().contains("HTTP/1.1 400"), "{error}");
    }

    #[test]
    fn a_line_without_end_is_given_up() {
        let error = feed(&mut Replies::default(), &[b'x'; 40_000], 1000).unwrap_err();
        assert_eq!(error, ProtocolError::TooLong { protocol: PROTOCOL });
    }

    #[test]
    fn a_value_that_is_longer_than_announced_is_refused() {
        assert!(feed(&mut Replies::default(), b"VALUE k 0 2\r\nabc\r\nEND\r\n", 100).is_err());
    }

    #[test]
    fn requests_are_those_of_the_protocol() {
        let etc = Etc::new(&EtcConfig { set_share: 0.5, ..EtcConfig::default() }).unwrap();
        let (mut target, mut rng, mut out) = (Memcached::new(etc), rng(1), Vec::new());
        for _ in 0..200 {
            out.clear();
            target.encode(&mut rng, &mut out);
            let line_end = out.iter().position(|byte| *byte == b'\n').unwrap();
            let line = std::str::from_utf8(&out[..line_end]).unwrap().trim_end();
            let words: Vec<_> = line.split(' ').collect();
            match words[..] {
                ["get", _] => assert_eq!(out.len(), line_end + 1),
                ["set", _, "0", "0", length] => {
                    let length: usize = length.parse().unwrap();
                    assert_eq!(out.len(), line_end + 1 + length + 2);
                }
                _ => panic!("{line}"),
            }
        }
    }
}
