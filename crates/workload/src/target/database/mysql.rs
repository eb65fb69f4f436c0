//! The client's side of the protocol of MySQL and MariaDB.
//!
//! A packet has three bytes of length, one of sequence, and a payload. The client does not
//! announce `CLIENT_DEPRECATE_EOF`, so that definitions and rows end with EOF packets, which
//! carry the status flags (dev.mysql.com, "Text Resultset"; mariadb.com, "Result Set Packets").

mod login;

use super::super::{ErrorCode, ProtocolError};
use super::wire::{HEAD_BYTES, Login, Reply, ServerError, Wire, skip};
use login::Step;

const COM_QUERY: u8 = 0x03;
const COM_STMT_PREPARE: u8 = 0x16;
const COM_STMT_EXECUTE: u8 = 0x17;
const MYSQL_TYPE_LONGLONG: u8 = 8;
const STATUS_IN_TRANS: u16 = 1;
const STATUS_MORE_RESULTS: u16 = 8;
/// A packet of this length is continued by the next one.
const LENGTH_MAX: usize = 0xff_ffff;
/// First bytes of a payload.
const OK: u8 = 0x00;
const LOCAL_INFILE: u8 = 0xfb;
const EOF: u8 = 0xfe;
const ERR: u8 = 0xff;
/// An EOF packet is shorter than this; a row that begins with the same byte is longer.
const EOF_BYTES_MAX: usize = 9;

/// The packet that the connection expects next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Greeting,
    LoginReply,
    /// No packet: no command is under way.
    Nothing,
    /// The first packet of a reply to a query or an execution.
    First,
    /// The first packet of a reply to the preparation of this statement.
    Prepared(usize),
    /// This many definitions and an EOF packet, and then the packets that the second field names.
    Definitions(u64, AfterDefinitions),
    Rows,
}

/// The packets that follow definitions and their EOF packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterDefinitions {
    /// The rows of a result set.
    Rows,
    /// The definitions of this many columns of a prepared statement.
    Columns(u16),
    /// None: the reply is complete.
    End,
}

/// One connection.
pub(super) struct Mysql {
    login: Login,
    awaits: Expect,
    /// Bytes of a payload that are still to be skipped.
    skip: usize,
    /// Whether the next packet continues a payload.
    is_continued: bool,
    in_transaction: bool,
    /// The server's number of each prepared statement.
    ids: Vec<u32>,
    /// The login that is sent once the connection is encrypted.
    encrypted_login: Option<Vec<u8>>,
}

/// The part of a packet that is read.
struct Packet<'p> {
    length: usize,
    sequence: u8,
    /// At most [`HEAD_BYTES`] of its payload.
    payload: &'p [u8],
}

impl Mysql {
    pub(super) fn new(login: Login) -> Self {
        Self {
            login,
            awaits: Expect::Greeting,
            skip: 0,
            is_continued: false,
            in_transaction: false,
            ids: Vec::new(),
            encrypted_login: None,
        }
    }

    fn packet(
        &mut self,
        packet: &Packet<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Reply>, ProtocolError> {
        let unexpected = || Err(ProtocolError::unexpected(Self::PROTOCOL, packet.payload));
        match (self.awaits, packet.payload.first()) {
            (Expect::Nothing | Expect::Greeting, Some(&ERR)) => Err(refused(packet.payload)),
            (Expect::Greeting, _) => {
                let answer = login::answer_greeting(&self.login, packet.payload, packet.sequence)?;
                match answer.tls_request {
                    None => out.extend(answer.login),
                    Some(request) => {
                        out.extend(request);
                        self.encrypted_login = Some(answer.login);
                    }
                }
                self.awaits = Expect::LoginReply;
                Ok(None)
            }
            (Expect::LoginReply, _) => {
                match login::answer(&self.login, packet.payload, packet.sequence)? {
                    Step::Send(bytes) => out.extend(bytes),
                    Step::Wait => {}
                    Step::Done => {
                        self.awaits = Expect::Nothing;
                        return Ok(Some(Reply::default()));
                    }
                }
                Ok(None)
            }
            (Expect::Nothing, _) | (_, None) => unexpected(),
            (Expect::Definitions(0, after), Some(&EOF)) if packet.length < EOF_BYTES_MAX => {
                Ok(self.end_definitions(after))
            }
            (Expect::Definitions(0, _), _) => unexpected(),
            (Expect::Definitions(left, after), _) => {
                self.awaits = Expect::Definitions(left - 1, after);
                Ok(None)
            }
            (_, Some(&ERR)) => self.failed(packet.payload).map(Some),
            (Expect::Rows, Some(&EOF)) if packet.length < EOF_BYTES_MAX => {
                self.end_result(packet.payload.get(3..5))
            }
            (Expect::Rows, _) => Ok(None),
            (Expect::First, Some(&OK)) => {
                let status = skip_integer(&packet.payload[1..]).and_then(skip_integer);
                self.end_result(status.and_then(|rest| rest.get(..2)))
            }
            (Expect::First, Some(&LOCAL_INFILE)) => unexpected(),
            (Expect::First, _) => match integer(packet.payload) {
                Some(columns @ 1..) => {
                    self.awaits = Expect::Definitions(columns, AfterDefinitions::Rows);
                    Ok(None)
                }
                _ => unexpected(),
            },
            (Expect::Prepared(statement), Some(&OK)) => self.prepared(statement, packet.payload),
            (Expect::Prepared(_), _) => unexpected(),
        }
    }

    fn end_definitions(&mut self, after: AfterDefinitions) -> Option<Reply> {
        match after {
            AfterDefinitions::Rows => self.awaits = Expect::Rows,
            AfterDefinitions::Columns(columns @ 1..) => {
                self.awaits = Expect::Definitions(columns.into(), AfterDefinitions::End);
            }
            AfterDefinitions::Columns(0) | AfterDefinitions::End => return Some(self.end(None)),
        }
        None
    }

    fn prepared(
        &mut self,
        statement: usize,
        payload: &[u8],
    ) -> Result<Option<Reply>, ProtocolError> {
        let Some([_, a, b, c, d, e, f, g, h]) = payload.first_chunk::<9>() else {
            return Err(ProtocolError::unexpected(Self::PROTOCOL, payload));
        };
        let id = u32::from_le_bytes([*a, *b, *c, *d]);
        self.ids.resize(self.ids.len().max(statement + 1), 0);
        self.ids[statement] = id;
        let (columns, parameters) = (u16::from_le_bytes([*e, *f]), u16::from_le_bytes([*g, *h]));
        Ok(match parameters {
            0 => self.end_definitions(AfterDefinitions::Columns(columns)),
            _ => {
                self.awaits =
                    Expect::Definitions(parameters.into(), AfterDefinitions::Columns(columns));
                None
            }
        })
    }

    /// Ends a result set with its status flags; another result set may follow.
    fn end_result(&mut self, status: Option<&[u8]>) -> Result<Option<Reply>, ProtocolError> {
        let Some(&[low, high]) = status else {
            return Err(ProtocolError::unexpected(Self::PROTOCOL, b"a reply without its status"));
        };
        let status = u16::from_le_bytes([low, high]);
        self.in_transaction = status & STATUS_IN_TRANS != 0;
        if status & STATUS_MORE_RESULTS != 0 {
            self.awaits = Expect::First;
            return Ok(None);
        }
        Ok(Some(self.end(None)))
    }

    fn failed(&mut self, payload: &[u8]) -> Result<Reply, ProtocolError> {
        let error = read_error(payload);
        let error = error.ok_or_else(|| ProtocolError::unexpected(Self::PROTOCOL, payload))?;
        Ok(self.end(Some(error)))
    }

    fn end(&mut self, error: Option<ServerError>) -> Reply {
        self.awaits = Expect::Nothing;
        Reply { error, in_transaction: self.in_transaction }
    }
}

impl Wire for Mysql {
    const PROTOCOL: &'static str = "MySQL";
    const PREPARES_ALL: bool = false;

    fn placeholder(_: usize) -> String {
        "?".to_owned()
    }

    /// Writes nothing, because the server sends the first packet.
    fn open(&mut self, _: &mut Vec<u8>) {}

    fn begins_tls(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(login) = self.encrypted_login.take() else { return false };
        out.extend(login);
        true
    }

    fn query(&mut self, sql: &str, out: &mut Vec<u8>) {
        self.awaits = Expect::First;
        write_packet(0, &[&[COM_QUERY], sql.as_bytes()], out);
    }

    fn prepare(&mut self, statement: usize, sql: &str, out: &mut Vec<u8>) {
        self.awaits = Expect::Prepared(statement);
        write_packet(0, &[&[COM_STMT_PREPARE], sql.as_bytes()], out);
    }

    fn execute(&mut self, statement: usize, values: &[i64], out: &mut Vec<u8>) {
        self.awaits = Expect::First;
        let id = self.ids.get(statement).copied().unwrap_or_default();
        let mut body = vec![COM_STMT_EXECUTE];
        body.extend(id.to_le_bytes());
        // Flags: no cursor; iterations: one.
        body.extend([0, 1, 0, 0, 0]);
        if !values.is_empty() {
            body.resize(body.len() + values.len().div_ceil(8), 0);
            body.push(1);
            body.extend([MYSQL_TYPE_LONGLONG, 0].repeat(values.len()));
            body.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        write_packet(0, &[&body], out);
    }

    fn read(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<Reply>), ProtocolError> {
        if let Some(skipped) = skip(&mut self.skip, input) {
            return Ok((skipped, None));
        }
        if self.encrypted_login.is_some() && !input.is_empty() {
            // Bytes in the clear behind the greeting can be from any host between: an answer to
            // them could have the password in it.
            return Err(ProtocolError::unexpected(Self::PROTOCOL, input));
        }
        let Some([a, b, c, sequence]) = input.first_chunk::<4>() else { return Ok((0, None)) };
        let length = u32::from_le_bytes([*a, *b, *c, 0]) as usize;
        // Text of another protocol has a letter here, and its supposed length would never be
        // reached.
        if self.awaits == Expect::Greeting && *sequence > 1 {
            return Err(ProtocolError::unexpected(Self::PROTOCOL, input));
        }
        if self.is_continued {
            self.is_continued = length == LENGTH_MAX;
            self.skip = length;
            return Ok((4, None));
        }
        let head = length.min(HEAD_BYTES);
        let Some(payload) = input.get(4..4 + head) else { return Ok((0, None)) };
        self.skip = length - head;
        self.is_continued = length == LENGTH_MAX;
        let reply = self.packet(&Packet { length, sequence: *sequence, payload }, out)?;
        Ok((4 + head, reply))
    }
}

/// Appends a packet of these parts.
fn write_packet(sequence: u8, parts: &[&[u8]], out: &mut Vec<u8>) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    debug_assert!(length < LENGTH_MAX, "statements are shorter than a packet");
    let [a, b, c, ..] = (length as u32).to_le_bytes();
    out.extend([a, b, c, sequence]);
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Reads an ERR packet: number, `#` and a SQLSTATE where the login is over, message.
fn read_error(payload: &[u8]) -> Option<ServerError> {
    let (&[_, low, high], rest) = payload.split_first_chunk::<3>()?;
    let message = match rest.split_first() {
        Some((b'#', rest)) => rest.get(5..).unwrap_or_default(),
        _ => rest,
    };
    Some(ServerError {
        code: ErrorCode::from_number(u16::from_le_bytes([low, high])),
        message: String::from_utf8_lossy(message).into_owned(),
    })
}

/// Returns the error of a connection that the server refuses or ends.
fn refused(payload: &[u8]) -> ProtocolError {
    match read_error(payload) {
        Some(error) => ProtocolError::refused(Mysql::PROTOCOL, error.code, &error.message),
        None => ProtocolError::unexpected(Mysql::PROTOCOL, payload),
    }
}

/// Reads a length-encoded integer.
fn integer(bytes: &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first()?;
    let size = match first {
        0..=0xfa => return Some((*first).into()),
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        _ => return None,
    };
    let mut value = [0; 8];
    value[..size].copy_from_slice(rest.get(..size)?);
    Some(u64::from_le_bytes(value))
}

/// Skips a length-encoded integer, and returns the bytes behind it.
fn skip_integer(bytes: &[u8]) -> Option<&[u8]> {
    let size = match bytes.first()? {
        0xfc => 3,
        0xfd => 4,
        0xfe => 9,
        _ => 1,
    };
    bytes.get(size..)
}

#[cfg(test)]
mod tests;
