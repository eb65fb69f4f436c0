//! HTTP/1.1 GET of one page over kept connections.

use super::repeated::Repeated;
use super::{Decoded, Decoder, ErrorCode, MAX_HEAD_BYTES, Outcome, ProtocolError, first_line};
use httparse::Status;

const PROTOCOL: &str = "HTTP/1.1";
/// The largest number of header lines of a response.
const MAX_HEADERS: usize = 64;

/// Returns GETs of `path` from `host` (as in the `Host` header, with its port).
pub(super) fn get(host: &str, path: &str) -> Repeated {
    let agent = concat!("lull/", env!("CARGO_PKG_VERSION"));
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\nAccept: */*\r\n\r\n"
    );
    Repeated::new::<Responses>(request.into_bytes())
}

/// The part of a response that the next bytes belong to.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Expect {
    #[default]
    Head,
    /// The rest, of this length, of a body of known length.
    Body(u64),
    ChunkSize,
    Chunk(u64),
    ChunkEnd,
    /// The lines behind the last chunk, up to an empty one.
    Trailer,
    /// A body that ends with the connection.
    UntilClose,
}

/// Reads responses to GET.
#[derive(Debug)]
struct Responses {
    awaits: Expect,
    outcome: Outcome,
    last: bool,
}

impl Default for Responses {
    fn default() -> Self {
        Self { awaits: Expect::Head, outcome: Outcome::Done, last: false }
    }
}

impl Decoder for Responses {
    fn decode(&mut self, input: &[u8], outcomes: &mut Vec<Outcome>) -> Decoded {
        let mut used = 0;
        while used < input.len() {
            let (count, next) = self.step(&input[used..])?;
            if count == 0 && next == self.awaits {
                break;
            }
            used += count;
            self.awaits = next;
            if next == Expect::Body(0) {
                self.awaits = Expect::Head;
                outcomes.push(self.outcome);
            }
        }
        Ok(used)
    }

    fn close(&mut self) -> Option<Outcome> {
        let whole = self.awaits == Expect::UntilClose;
        whole.then(|| {
            self.awaits = Expect::Head;
            self.outcome
        })
    }

    fn is_last(&self) -> bool {
        self.last
    }

    fn message(&self) -> &str {
        "the status of a response"
    }
}

impl Responses {
    /// Reads the beginning of `input`. Returns the number of bytes used and the next part;
    /// `Body(0)` ends a response.
    fn step(&mut self, input: &[u8]) -> Result<(usize, Expect), ProtocolError> {
        let some = |left: u64| left.min(input.len() as u64);
        Ok(match self.awaits {
            Expect::Head => return self.head(input),
            Expect::Body(left) => (some(left) as usize, Expect::Body(left - some(left))),
            Expect::UntilClose => (input.len(), Expect::UntilClose),
            Expect::ChunkSize => return chunk_size(input),
            Expect::Chunk(left) if some(left) == left => (left as usize, Expect::ChunkEnd),
            Expect::Chunk(left) => (input.len(), Expect::Chunk(left - some(left))),
            Expect::ChunkEnd => match input {
                [b'\r', b'\n', ..] => (2, Expect::ChunkSize),
                [] | [b'\r'] => (0, Expect::ChunkEnd),
                _ => return Err(ProtocolError::unexpected(PROTOCOL, input)),
            },
            Expect::Trailer => match first_line(PROTOCOL, input)? {
                Some(([], length)) => (length, Expect::Body(0)),
                Some((_, length)) => (length, Expect::Trailer),
                None => (0, Expect::Trailer),
            },
        })
    }

    fn head(&mut self, input: &[u8]) -> Result<(usize, Expect), ProtocolError> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let window = &input[..input.len().min(MAX_HEAD_BYTES)];
        match response.parse(window) {
            Err(_) => Err(ProtocolError::unexpected(PROTOCOL, input)),
            Ok(Status::Partial) if input.len() >= MAX_HEAD_BYTES => {
                Err(ProtocolError::TooLong { protocol: PROTOCOL })
            }
            Ok(Status::Partial) => Ok((0, Expect::Head)),
            Ok(Status::Complete(length)) => {
                let head = Head::parse(&response, input)?;
                self.outcome = head.outcome();
                self.last |= head.is_last();
                Ok((length, head.body()))
            }
        }
    }
}

fn chunk_size(input: &[u8]) -> Result<(usize, Expect), ProtocolError> {
    match httparse::parse_chunk_size(input) {
        Ok(Status::Complete((length, 0))) => Ok((length, Expect::Trailer)),
        Ok(Status::Complete((length, size))) => Ok((length, Expect::Chunk(size))),
        Ok(Status::Partial) if input.len() < MAX_HEAD_BYTES => Ok((0, Expect::ChunkSize)),
        Ok(Status::Partial) => Err(ProtocolError::TooLong { protocol: PROTOCOL }),
        Err(_) => Err(ProtocolError::unexpected(PROTOCOL, input)),
    }
}

/// The length of a response's body and the end of the connection, as its head specifies them (RFC
/// 9112, sections 6 and 9).
#[derive(Debug, Default)]
struct Head {
    status: u16,
    old: bool,
    length: Option<u64>,
    chunked: bool,
    close: bool,
    keep: bool,
}

impl Head {
    fn parse(response: &httparse::Response<'_, '_>, input: &[u8]) -> Result<Self, ProtocolError> {
        let mut head = Self {
            status: response.code.unwrap_or(0),
            old: response.version == Some(0),
            ..Self::default()
        };
        for header in &*response.headers {
            head.note(header.name, header.value)
                .ok_or_else(|| ProtocolError::unexpected(PROTOCOL, input))?;
        }
        Ok(head)
    }

    /// Reads a header line; `None` if a length is not a number.
    fn note(&mut self, name: &str, value: &[u8]) -> Option<()> {
        let value = std::str::from_utf8(value).unwrap_or("").trim();
        let has = |word: &str| value.split(',').any(|part| part.trim().eq_ignore_ascii_case(word));
        if name.eq_ignore_ascii_case("content-length") {
            self.length = Some(value.parse().ok()?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            self.chunked |= has("chunked");
        } else if name.eq_ignore_ascii_case("connection") {
            self.close |= has("close");
            self.keep |= has("keep-alive");
        }
        Some(())
    }

    fn outcome(&self) -> Outcome {
        match self.status {
            200..400 => Outcome::Done,
            status => Outcome::Error(ErrorCode::from_number(status)),
        }
    }

    fn body(&self) -> Expect {
        match self {
            // The final response follows an interim one.
            Self { status: 100..200, .. } => Expect::Head,
            Self { status: 204 | 304, .. } => Expect::Body(0),
            Self { chunked: true, .. } => Expect::ChunkSize,
            Self { length: Some(length), .. } => Expect::Body(*length),
            _ => Expect::UntilClose,
        }
    }

    fn is_last(&self) -> bool {
        self.close || (self.old && !self.keep) || self.body() == Expect::UntilClose
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::feed;
    use super::*;
    use proptest::prelude::*;

    const RESPONSES: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello\
        HTTP/1.1 204 No Content\r\n\r\n\
        HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
        4\r\nWiki\r\n1;x=y\r\n!\r\n0\r\nX: y\r\n\r\n\
        HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n\
        HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";

    proptest! {
        #[test]
        fn portions_of_any_size_give_the_same_outcomes(step in 1usize..300) {
            let mut decoder = Responses::default();
            let outcomes = feed(&mut decoder, RESPONSES, step).unwrap();
            let (done, busy) = (Outcome::Done, Outcome::Error(ErrorCode::from_number(503)));
            let wanted = [done, done, done, busy, done];
            prop_assert_eq!(outcomes, wanted);
            prop_assert!(decoder.is_last());
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..400), step in 1usize..50,
        ) {
            let _ = feed(&mut Responses::default(), &bytes, step);
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            let _ = feed(&mut Responses::default(), &[head, &bytes[..]].concat(), step);
        }
    }

    #[test]
    fn a_body_without_length_ends_with_the_connection() {
        let mut decoder = Responses::default();
        let outcomes = feed(&mut decoder, b"HTTP/1.0 200 OK\r\n\r\nsome text", 7).unwrap();
        assert_eq!(outcomes, []);
        assert!(decoder.is_last());
        assert_eq!(decoder.close(), Some(Outcome::Done));
        assert_eq!(decoder.close(), None);
    }

    #[test]
    fn a_connection_cut_within_a_body_completes_nothing() {
        let mut decoder = Responses::default();
        feed(&mut decoder, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", 100).unwrap();
        assert_eq!(decoder.close(), None);
    }

    #[test]
    fn what_is_no_http_is_refused() {
        for bytes in [&b"STORED\r\n"[..], b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"] {
            assert!(feed(&mut Responses::default(), bytes, 100).is_err());
        }
        let endless = [b"HTTP/1.1 200 OK\r\nX: ", &[b'x'; 40_000][..]].concat();
        let error = feed(&mut Responses::default(), &endless, 1000).unwrap_err();
        assert_eq!(error, ProtocolError::TooLong { protocol: PROTOCOL });
    }
}
