//! The connection before a run: it checks the login, creates tables and prepares the script's
//! statements, so that what the server refuses is an error before the run.

use super::super::{Endpoint, ErrorCode, ProtocolError};
use super::builtin;
use super::session::Work;
use super::wire::{Reply, Wire};
use std::io::ErrorKind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a login and a statement may take.
const LOGIN_PATIENCE: Duration = Duration::from_secs(10);
const STATEMENT_PATIENCE: Duration = Duration::from_secs(120);

/// Why a database cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The connection failed.
    #[error("cannot log in to {server}: {source}; is a database listening there?")]
    Io {
        /// The server.
        server: Endpoint,
        /// The system's error.
        source: std::io::Error,
    },
    /// The login is refused, or the server speaks another protocol.
    #[error("cannot log in to {server}: {source}")]
    Protocol {
        /// The server.
        server: Endpoint,
        /// What the server sent.
        source: ProtocolError,
    },
    /// A statement failed.
    #[error("the server refuses `{statement}`: {code}: {message}")]
    Statement {
        /// The beginning of the statement.
        statement: String,
        /// The server's code.
        code: ErrorCode,
        /// The server's message.
        message: String,
    },
}

/// Logs in, creates the built-in tables if `creates` is set and they are not complete, and
/// prepares the statements.
pub(super) fn run<W: Wire>(
    wire: W,
    server: &Endpoint,
    work: &Work,
    creates: bool,
    stop: &AtomicBool,
) -> Result<(), SetupError> {
    let mut client = Client::connect(wire, server)?;
    if creates && client.run(&builtin::check(work.scale))?.error.is_some() {
        for statement in builtin::creation(work.scale) {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            succeeded(&statement, client.run(&statement)?)?;
        }
    }
    for (at, statement) in work.script.statements.iter().enumerate() {
        if work.is_prepared::<W>(at) {
            let sql = statement.prepared(W::placeholder);
            client.wire.prepare(at, &sql, &mut client.out);
            succeeded(&sql, client.reply()?)?;
        }
    }
    Ok(())
}

fn succeeded(sql: &str, reply: Reply) -> Result<(), SetupError> {
    reply.error.map_or(Ok(()), |error| {
        let statement = sql.chars().take(80).collect();
        Err(SetupError::Statement { statement, code: error.code, message: error.message })
    })
}

/// A blocking connection.
struct Client<'c, W> {
    wire: W,
    server: &'c Endpoint,
    stream: super::super::endpoint::Stream,
    held: Vec<u8>,
    out: Vec<u8>,
}

impl<'c, W: Wire> Client<'c, W> {
    fn connect(wire: W, server: &'c Endpoint) -> Result<Self, SetupError> {
        let failed = |source| SetupError::Io { server: server.clone(), source };
        let stream = server.connect(LOGIN_PATIENCE).map_err(failed)?;
        let mut client = Self { wire, server, stream, held: Vec::new(), out: Vec::new() };
        client.wire.open(&mut client.out);
        client.reply()?;
        client.stream.set_patience(STATEMENT_PATIENCE).map_err(failed)?;
        Ok(client)
    }

    fn run(&mut self, sql: &str) -> Result<Reply, SetupError> {
        self.wire.query(sql, &mut self.out);
        self.reply()
    }

    /// Sends what is to be sent and reads until a reply is complete.
    fn reply(&mut self) -> Result<Reply, SetupError> {
        let io = |source| SetupError::Io { server: self.server.clone(), source };
        let mut chunk = [0; 8192];
        loop {
            let mut sent = 0;
            while sent < self.out.len() {
                sent += self.stream.send(&self.out[sent..]).map_err(io)?;
            }
            self.out.clear();
            let (used, reply) = self
                .wire
                .read(&self.held, &mut self.out)
                .map_err(|source| SetupError::Protocol { server: self.server.clone(), source })?;
            self.held.drain(..used);
            if let Some(reply) = reply {
                return Ok(reply);
            }
            if used == 0 {
                match self.stream.receive(&mut chunk).map_err(io)? {
                    0 => return Err(io(ErrorKind::UnexpectedEof.into())),
                    count => self.held.extend_from_slice(&chunk[..count]),
                }
            }
        }
    }
}
