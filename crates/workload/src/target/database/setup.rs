//! The connection before a run: it checks the login, creates tables and prepares the script's
//! statements, so that a refusal of the server is an error before the run.

use super::super::{Endpoint, ErrorCode, ProtocolError, TlsClient, Transport};
use super::Server;
use super::builtin::Tables;
use super::session::Work;
use super::wire::{Reply, Wire};
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a login and a statement may take.
const LOGIN_PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });
const STATEMENT_PATIENCE: Duration = Duration::from_secs(120);

/// The error of a database that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The connection failed.
    #[error("cannot log in to {server}: {source}; is a database listening there?")]
    Io {
        /// The server.
        server: Endpoint,
        /// The system's error.
        source: io::Error,
    },
    /// No complete reply to the login arrived in time.
    #[error(
        "cannot log in to {server}: it accepts connections, but sent {received} within {} s. \
         Another program than a {protocol} server may listen there, or the server hangs: check \
         the protocol and the port of the target",
        LOGIN_PATIENCE.as_secs()
    )]
    Silent {
        /// The server.
        server: Endpoint,
        /// The protocol of the connection.
        protocol: &'static str,
        /// A description of the received bytes.
        received: String,
    },
    /// No complete reply to a statement arrived in time.
    #[error(
        "{server} did not reply to a statement within {} s: the server hangs, or another session \
         holds locks on the tables",
        STATEMENT_PATIENCE.as_secs()
    )]
    Slow {
        /// The server.
        server: Endpoint,
    },
    /// A stop was requested.
    #[error("stopped before the run")]
    Stopped,
    /// The login is refused, or the server speaks another protocol.
    #[error("cannot log in to {server}: {source}")]
    Protocol {
        /// The server.
        server: Endpoint,
        /// The error in the server's bytes.
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

/// Logs in, creates built-in tables if they are wanted and not complete, and prepares the
/// statements.
pub(super) fn run<W: Wire>(
    wire: W,
    server: &Server<'_>,
    work: &Work,
    tables: Option<Tables>,
    stop: &AtomicBool,
) -> Result<(), SetupError> {
    let mut client = Client::connect(wire, server, stop)?;
    let missing = match tables {
        Some(tables) if client.run(&tables.check(work.scale))?.error.is_some() => Some(tables),
        _ => None,
    };
    for statement in missing.into_iter().flat_map(|tables| tables.creation(work.scale)) {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        succeeded(&statement, client.run(&statement)?)?;
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
    tls: Option<&'c TlsClient>,
    stop: &'c AtomicBool,
    transport: Transport,
    is_logged_in: bool,
    held: Vec<u8>,
    out: Vec<u8>,
}

impl<'c, W: Wire> Client<'c, W> {
    fn connect(wire: W, server: &Server<'c>, stop: &'c AtomicBool) -> Result<Self, SetupError> {
        let Server { endpoint: server, tls } = *server;
        let failed = |source| SetupError::Io { server: server.clone(), source };
        let transport = Transport::new(server.connect(LOGIN_PATIENCE).map_err(failed)?);
        let (held, out) = (Vec::new(), Vec::new());
        let mut client =
            Self { wire, server, tls, stop, transport, is_logged_in: false, held, out };
        client.wire.open(&mut client.out);
        client.reply()?;
        client.is_logged_in = true;
        client.transport.set_patience(STATEMENT_PATIENCE).map_err(failed)?;
        Ok(client)
    }

    fn run(&mut self, sql: &str) -> Result<Reply, SetupError> {
        self.wire.query(sql, &mut self.out);
        self.reply()
    }

    /// Sends the pending bytes and reads until a reply is complete.
    fn reply(&mut self) -> Result<Reply, SetupError> {
        let mut chunk = [0; 8192];
        loop {
            self.send()?;
            if self.wire.begins_tls(&mut self.out) {
                self.begin_tls()?;
                continue;
            }
            let (used, reply) = self
                .wire
                .read(&self.held, &mut self.out)
                .map_err(|source| SetupError::Protocol { server: self.server.clone(), source })?;
            self.held.drain(..used);
            if let Some(reply) = reply {
                return Ok(reply);
            }
            if used == 0 {
                match self.transport.wait_for_bytes(&mut chunk) {
                    Ok(0) => return Err(self.failed(ErrorKind::UnexpectedEof.into())),
                    Ok(count) => self.held.extend_from_slice(&chunk[..count]),
                    Err(error) => {
                        self.interrupted(error)?;
                    }
                }
            }
        }
    }

    fn send(&mut self) -> Result<(), SetupError> {
        let mut sent = 0;
        while sent < self.out.len() {
            let count = self.transport.send(&self.out[sent..]);
            sent += count.or_else(|error| self.interrupted(error))?;
        }
        self.out.clear();
        while let Err(error) = self.transport.flush() {
            self.interrupted(error)?;
        }
        Ok(())
    }

    fn begin_tls(&mut self) -> Result<(), SetupError> {
        let Some(tls) = self.tls else { return Ok(()) };
        if !self.held.is_empty() {
            // In the clear behind the server's agreement the bytes can be from any host between.
            return Err(self.failed(ErrorKind::InvalidData.into()));
        }
        let begun = self.transport.begin_tls(tls, Vec::new());
        begun.and_then(|()| self.transport.shake_hands()).map_err(|error| self.failed(error))
    }

    /// Continues after a signal that requests no stop: no bytes were transferred.
    fn interrupted(&self, error: io::Error) -> Result<usize, SetupError> {
        match error.kind() {
            ErrorKind::Interrupted if self.stop.load(Ordering::Relaxed) => Err(SetupError::Stopped),
            ErrorKind::Interrupted => Ok(0),
            _ => Err(self.failed(error)),
        }
    }

    /// Returns the error of a transfer that failed.
    fn failed(&self, source: io::Error) -> SetupError {
        let server = self.server.clone();
        match (source.kind(), self.is_logged_in) {
            // The time-outs of the socket.
            (ErrorKind::WouldBlock | ErrorKind::TimedOut, true) => SetupError::Slow { server },
            (ErrorKind::WouldBlock | ErrorKind::TimedOut, false) => {
                let (protocol, received) = (W::PROTOCOL, self.received());
                SetupError::Silent { server, protocol, received }
            }
            (ErrorKind::UnexpectedEof, _) => {
                let text = format!("it closed the connection and had sent {}", self.received());
                let source = io::Error::new(ErrorKind::UnexpectedEof, text);
                SetupError::Io { server, source }
            }
            _ => SetupError::Io { server, source },
        }
    }

    /// Describes the bytes of an incomplete reply.
    fn received(&self) -> String {
        match self.held.get(..self.held.len().min(40)) {
            None | Some([]) => "nothing".to_owned(),
            Some(bytes) => format!("only `{}`", bytes.escape_ascii()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mysql::Mysql;
    use super::super::script::Script;
    use super::super::wire::Login;
    use super::*;
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener};

    /// The error of a login to a server that sends these bytes, and then closes the connection
    /// or sends nothing more.
    fn refusal(bytes: &'static [u8], closes: bool) -> SetupError {
        let script = Script::parse("one", "SELECT 1;", 1).unwrap();
        let work = Work { script, scale: 1, prepares: false, tries_max: 1 };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let endpoint = Endpoint::Tcp(listener.local_addr().unwrap());
        let server = Server { endpoint: &endpoint, tls: None };
        std::thread::scope(|scope| {
            let stop = AtomicBool::new(false);
            let accepted = scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(bytes).unwrap();
                (!closes).then_some(stream)
            });
            let wire = Mysql::new(Login::default());
            let error = run(wire, &server, &work, None, &stop).unwrap_err();
            drop(accepted.join());
            error
        })
    }

    #[test]
    fn a_server_that_never_greets_is_named_with_what_to_check() {
        let error = refusal(b"", false);
        assert!(matches!(error, SetupError::Silent { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("sent nothing within 2 s") && text.contains("MySQL"), "{text}");
        assert!(text.contains("check the protocol and the port"), "{text}");
    }

    #[test]
    fn a_greeting_that_does_not_end_is_quoted() {
        let text = refusal(b"+OK", false).to_string();
        assert!(text.contains("sent only `+OK` within 2 s"), "{text}");
    }

    #[test]
    fn a_connection_that_is_closed_at_once_is_reported_with_what_was_received() {
        let text = refusal(b"", true).to_string();
        assert!(text.contains("it closed the connection and had sent nothing"), "{text}");
    }
}
