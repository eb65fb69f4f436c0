//! The client's side of PostgreSQL's protocol, version 3.
//!
//! A message has a byte of type and four of length, which count themselves. A reply ends with
//! `ReadyForQuery`, which carries the state of the transaction (postgresql.org, "Message
//! Formats").

mod login;

use super::super::{ErrorCode, ProtocolError};
use super::wire::{HEAD_BYTES, Login, Reply, ServerError, Wire, skip, split_at_nul};
use login::Authentication;
pub(super) use login::SaltedPasswords;

const VERSION: u32 = 0x3_0000;
/// The code of a request for TLS, which is sent in place of the version.
const TLS_REQUEST: u32 = 80_877_103;
/// The longest message that is accepted, which is PostgreSQL's own limit of 1 GiB.
const LENGTH_MAX: usize = 1 << 30;

/// The state of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// TLS was requested: the reply is one byte.
    RequestingTls,
    /// The server has agreed to TLS.
    BeginningTls,
    Login,
    Idle,
    Replying,
}

/// One connection.
pub(super) struct Postgres {
    login: Login,
    authentication: Authentication,
    state: State,
    /// Bytes of a message that are still to be skipped.
    skip: usize,
    /// The first error of the reply.
    error: Option<ServerError>,
}

impl Postgres {
    pub(super) fn new(login: Login, salted: SaltedPasswords) -> Self {
        Self {
            login,
            authentication: Authentication::new(salted),
            state: State::Login,
            skip: 0,
            error: None,
        }
    }

    fn message(
        &mut self,
        kind: u8,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Reply>, ProtocolError> {
        match (kind, self.state) {
            (b'R', State::Login) => {
                if let Some(answer) = self.authentication.answer(&self.login, body)? {
                    write_message(b'p', &[&answer], out);
                }
                Ok(None)
            }
            (b'E', _) => {
                let (error, is_last) = read_error(body)
                    .ok_or_else(|| ProtocolError::unexpected(Self::PROTOCOL, body))?;
                if is_last || self.state != State::Replying {
                    return Err(ProtocolError::refused(Self::PROTOCOL, error.code, &error.message));
                }
                self.error.get_or_insert(error);
                Ok(None)
            }
            (b'Z', State::Login | State::Replying) => {
                self.state = State::Idle;
                let in_transaction = body != b"I";
                Ok(Some(Reply { error: self.error.take(), in_transaction }))
            }
            // Ignored: notices, parameters, notifications, and the key that cancels a query.
            (b'N' | b'S' | b'A' | b'K', _) => Ok(None),
            (b'v', State::Login) => Ok(None),
            // Ignored: rows and their description, and the ends of commands, parses and binds.
            (
                b'T' | b'D' | b'C' | b'I' | b'1' | b'2' | b'3' | b'n' | b't' | b's',
                State::Replying,
            ) => Ok(None),
            (b'G' | b'H' | b'W', State::Replying) => Err(ProtocolError::unsupported(
                Self::PROTOCOL,
                "the script uses COPY, which `lull load` does not support",
            )),
            _ => Err(ProtocolError::unexpected(Self::PROTOCOL, &[&[kind], body].concat())),
        }
    }
}

impl Wire for Postgres {
    const PROTOCOL: &'static str = "PostgreSQL";
    const PREPARES_ALL: bool = true;

    fn placeholder(number: usize) -> String {
        format!("${number}")
    }

    fn open(&mut self, out: &mut Vec<u8>) {
        if self.login.is_tls && self.state == State::Login {
            self.state = State::RequestingTls;
            write_body(&[&TLS_REQUEST.to_be_bytes()], out);
            return;
        }
        let (user, database) = (self.login.user.as_bytes(), self.login.database.as_bytes());
        let fields: [&[u8]; 8] = [
            &VERSION.to_be_bytes(),
            b"user\0",
            user,
            b"\0database\0",
            database,
            b"\0application_name\0",
            b"lull\0",
            b"\0",
        ];
        write_body(&fields, out);
    }

    fn begins_tls(&mut self, out: &mut Vec<u8>) -> bool {
        if self.state != State::BeginningTls {
            return false;
        }
        // After the request for TLS, `open` writes the login.
        self.open(out);
        self.state = State::Login;
        true
    }

    fn query(&mut self, sql: &str, out: &mut Vec<u8>) {
        self.state = State::Replying;
        write_message(b'Q', &[sql.as_bytes(), b"\0"], out);
    }

    fn prepare(&mut self, statement: usize, sql: &str, out: &mut Vec<u8>) {
        self.state = State::Replying;
        // The server infers the types of the parameters.
        let name = statement.to_string();
        write_message(b'P', &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0", &[0, 0]], out);
        write_message(b'S', &[], out);
    }

    fn execute(&mut self, statement: usize, values: &[i64], out: &mut Vec<u8>) {
        self.state = State::Replying;
        let name = statement.to_string();
        // All parameters are sent as text.
        let mut parameters = Vec::from([0, 0]);
        parameters.extend((values.len() as u16).to_be_bytes());
        for value in values {
            let text = value.to_string();
            parameters.extend((text.len() as u32).to_be_bytes());
            parameters.extend(text.as_bytes());
        }
        write_message(b'B', &[b"\0", name.as_bytes(), b"\0", &parameters, &[0, 0]], out);
        // All rows are requested.
        write_message(b'E', &[b"\0", &[0; 4]], out);
        write_message(b'S', &[], out);
    }

    fn read(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<Reply>), ProtocolError> {
        if let Some(skipped) = skip(&mut self.skip, input) {
            return Ok((skipped, None));
        }
        if self.state == State::RequestingTls {
            return self.read_tls_reply(input);
        }
        let Some([kind, a, b, c, d]) = input.first_chunk::<5>() else { return Ok((0, None)) };
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        if !(4..LENGTH_MAX).contains(&length) {
            return Err(ProtocolError::unexpected(Self::PROTOCOL, input));
        }
        let body = length - 4;
        // Only these messages are read; others may be long.
        let head = if matches!(kind, b'R' | b'E' | b'Z') { body.min(HEAD_BYTES) } else { 0 };
        let Some(bytes) = input.get(5..5 + head) else { return Ok((0, None)) };
        self.skip = body - head;
        let reply = self.message(*kind, bytes, out)?;
        Ok((5 + head, reply))
    }
}

impl Postgres {
    /// Reads the reply to a request for TLS. Bytes that follow it in the clear can be from any host
    /// between, and are refused.
    fn read_tls_reply(&mut self, input: &[u8]) -> Result<(usize, Option<Reply>), ProtocolError> {
        match input {
            [] => Ok((0, None)),
            [b'S'] => {
                self.state = State::BeginningTls;
                Ok((1, None))
            }
            [b'N'] => Err(ProtocolError::unsupported(
                Self::PROTOCOL,
                "the server has no TLS: set `ssl = on` there, or leave out `?tls`",
            )),
            _ => Err(ProtocolError::unexpected(Self::PROTOCOL, input)),
        }
    }
}

fn write_message(kind: u8, parts: &[&[u8]], out: &mut Vec<u8>) {
    out.push(kind);
    write_body(parts, out);
}

fn write_body(parts: &[&[u8]], out: &mut Vec<u8>) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.extend((length as u32 + 4).to_be_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Reads the fields of an `ErrorResponse`. Returns the error, and whether it ends the connection.
fn read_error(body: &[u8]) -> Option<(ServerError, bool)> {
    let (mut code, mut message, mut is_last) = (None, String::new(), false);
    let mut rest = body;
    while let Some((kind @ 1.., field)) = rest.split_first() {
        // A long message is cut off.
        let (text, behind) = split_at_nul(field).unwrap_or((field, &[]));
        match kind {
            b'C' => code = Some(ErrorCode::from_bytes(text)?),
            b'M' => message = String::from_utf8_lossy(text).into_owned(),
            // The severity, which is not translated.
            b'V' => is_last = matches!(text, b"FATAL" | b"PANIC"),
            _ => {}
        }
        rest = behind;
    }
    Some((ServerError { code: code?, message }, is_last))
}

#[cfg(test)]
mod tests;
