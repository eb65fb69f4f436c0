//! memcached's text protocol.
//!
//! <https://github.com/memcached/memcached/blob/master/doc/protocol.txt>

use super::{Decoded, Decoder, Outcome, ProtocolError, first_line};
use std::io::Write;

pub(super) const PROTOCOL: &str = "memcached";

pub(super) fn write_get(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"get ");
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn write_set(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"set ");
    out.extend_from_slice(key);
    write!(out, " 0 0 {}\r\n", value.len()).expect("writing to memory cannot fail");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// The part of a reply that the next bytes belong to.
#[derive(Debug, Default)]
enum Expect {
    #[default]
    Line,
    /// The rest, of this length, of a value, then its line ending.
    Value(u64),
    ValueEnd,
}

/// Reads replies to GET and SET.
#[derive(Debug, Default)]
pub(super) struct Replies {
    expect: Expect,
    /// Whether a value has arrived since the last `END`.
    hit: bool,
}

impl Decoder for Replies {
    fn decode(&mut self, input: &[u8], outcomes: &mut Vec<Outcome>) -> Decoded {
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
    /// Reads a line; returns the outcome if it ends a reply.
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

#[cfg(test)]
mod tests {
    use super::super::testing::feed;
    use super::*;
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
}
