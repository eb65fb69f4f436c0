//! RESP2, the protocol of Redis, Valkey and KeyDB.
//!
//! <https://redis.io/docs/latest/develop/reference/protocol-spec/>

use super::{Decoded, Decoder, ErrorCode, Outcome, ProtocolError, first_line};
use lull_measure::Nanos;
use std::io::Write;

pub(super) const PROTOCOL: &str = "Redis";

/// Appends a command, an array of strings.
pub(super) fn write_command(words: &[&[u8]], out: &mut Vec<u8>) {
    let infallible = "writing to memory cannot fail";
    write!(out, "*{}\r\n", words.len()).expect(infallible);
    for word in words {
        write!(out, "${}\r\n", word.len()).expect(infallible);
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// The part of a reply that the next bytes belong to.
#[derive(Debug, Clone, Copy)]
enum Expect {
    /// A line that begins a reply.
    Line,
    /// The rest, of this length, of a string with its line ending.
    Text(u64),
}

/// Whether the connection may carry requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Login {
    Due,
    Sent,
    Done,
}

/// Reads replies to GET and SET, and logs in first if there is a password.
#[derive(Debug)]
pub(super) struct Replies {
    expect: Expect,
    login: Login,
    password: Vec<u8>,
    /// The last error of the server.
    message: String,
}

impl Replies {
    pub(super) fn new(password: &str) -> Self {
        Self {
            expect: Expect::Line,
            login: if password.is_empty() { Login::Done } else { Login::Due },
            password: password.as_bytes().to_vec(),
            message: String::new(),
        }
    }

    /// Reads the first line of a reply; returns the outcome if the reply ends with it.
    fn line(&mut self, line: &[u8]) -> Result<Option<Outcome>, ProtocolError> {
        let unexpected = || ProtocolError::unexpected(PROTOCOL, line);
        match line {
            [b'-', error @ ..] => self.error(error).map(Some),
            [b'+', ..] if self.login == Login::Sent => {
                self.login = Login::Done;
                Ok(None)
            }
            [b'+', ..] => Ok(Some(Outcome::Done)),
            b"$-1" => Ok(Some(Outcome::Miss)),
            [b'$', length @ ..] => {
                let length = std::str::from_utf8(length).ok().and_then(|text| text.parse().ok());
                let length: u64 =
                    length.filter(|bytes| *bytes <= LONGEST).ok_or_else(unexpected)?;
                self.expect = Expect::Text(length + 2);
                Ok(None)
            }
            _ => Err(unexpected()),
        }
    }

    /// Reads an error such as `NOAUTH Authentication required.`, whose first word is the code.
    fn error(&mut self, error: &[u8]) -> Result<Outcome, ProtocolError> {
        let word = error.split(|byte| *byte == b' ').next().unwrap_or(error);
        let code = ErrorCode::from_bytes(&word[..word.len().min(ErrorCode::LENGTH)]);
        let code = code.ok_or_else(|| ProtocolError::unexpected(PROTOCOL, error))?;
        self.message = String::from_utf8_lossy(error).into_owned();
        if self.login == Login::Sent {
            return Err(ProtocolError::refused(PROTOCOL, code, &self.message));
        }
        Ok(Outcome::Error(code))
    }
}

/// The longest string that Redis has (`proto-max-bulk-len`).
const LONGEST: u64 = 512 << 20;

impl Decoder for Replies {
    fn decode(&mut self, input: &[u8], outcomes: &mut Vec<Outcome>) -> Decoded {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            match self.expect {
                Expect::Text(left) => {
                    let take = left.min(rest.len() as u64);
                    used += take as usize;
                    if take < left {
                        self.expect = Expect::Text(left - take);
                        return Ok(used);
                    }
                    self.expect = Expect::Line;
                    outcomes.push(Outcome::Done);
                }
                Expect::Line => {
                    let Some((line, length)) = first_line(PROTOCOL, rest)? else { return Ok(used) };
                    used += length;
                    outcomes.extend(self.line(line)?);
                }
            }
        }
    }

    fn proceed(&mut self, _: Nanos, _: &mut Vec<Outcome>, out: &mut Vec<u8>) {
        if self.login == Login::Due {
            write_command(&[b"AUTH", &self.password], out);
            self.login = Login::Sent;
        }
    }

    fn is_ready(&self) -> bool {
        self.login == Login::Done
    }

    fn message(&self) -> &str {
        &self.message
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::feed;
    use super::*;
    use proptest::prelude::*;

    const REPLIES: &[u8] = b"$5\r\nE\r\nD!\r\n$-1\r\n+OK\r\n\
        -OOM command not allowed when used memory > 'maxmemory'.\r\n$0\r\n\r\n";

    fn replies() -> Replies {
        Replies::new("")
    }

    proptest! {
        #[test]
        fn portions_of_any_size_give_the_same_outcomes(step in 1usize..200) {
            let mut decoder = replies();
            let outcomes = feed(&mut decoder, REPLIES, step).unwrap();
            let oom = Outcome::Error(ErrorCode::from_bytes(b"OOM").unwrap());
            let (done, miss) = (Outcome::Done, Outcome::Miss);
            prop_assert_eq!(outcomes, [done, miss, done, oom, done]);
            prop_assert!(decoder.message().starts_with("OOM command not allowed"));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..400), step in 1usize..50,
        ) {
            let _ = feed(&mut replies(), &bytes, step);
        }
    }

    #[test]
    fn other_protocols_and_impossible_lengths_are_refused() {
        for text in ["HTTP/1.1 400 Bad Request\r\n", "ERROR\r\n", "$x\r\n", "$9999999999\r\n"] {
            let error = feed(&mut replies(), text.as_bytes(), 100).unwrap_err().to_string();
            assert!(error.contains("is this a Redis server"), "{error}");
        }
    }

    #[test]
    fn a_password_is_sent_first_and_a_wrong_one_ends_the_connection() {
        let (mut decoder, mut out, mut outcomes) = (Replies::new("s3"), Vec::new(), Vec::new());
        decoder.proceed(Nanos::ZERO, &mut outcomes, &mut out);
        decoder.proceed(Nanos::ZERO, &mut outcomes, &mut out);
        assert_eq!(out, b"*2\r\n$4\r\nAUTH\r\n$2\r\ns3\r\n");
        assert!(!decoder.is_ready());
        assert_eq!(feed(&mut decoder, b"+OK\r\n+OK\r\n", 100).unwrap(), [Outcome::Done]);
        assert!(decoder.is_ready());
        let mut decoder = Replies::new("s3");
        decoder.proceed(Nanos::ZERO, &mut outcomes, &mut out);
        let error = feed(&mut decoder, b"-WRONGPASS invalid username-password pair\r\n", 100);
        assert!(error.unwrap_err().to_string().contains("WRONGPASS"), "a refused login");
    }
}
