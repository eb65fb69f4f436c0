//! The web server of a running agent: page, JSON, events, `/metrics`.
//!
//! It runs in the front end ([`crate::frontend`]), which receives every epoch from the control
//! loop and never holds it up: if the server is behind, an epoch is not shown, but the record
//! still contains it. Operators' orders go the other way and are carried out between two epochs.

mod assets;
mod backoff;
mod checks;
mod connections;
mod encryption;
mod epoch_snapshot;
mod exposition;
mod facts;
mod history;
#[doc(hidden)]
pub mod loopback;
mod openmetrics;
mod operator;
mod outgoing;
mod protobuf;
mod regions;
mod routes;
mod server;
mod token;

pub use checks::is_hostname;
pub(crate) use connections::Peer;
pub(crate) use encryption::{Encryption, ServerIdentity};
pub use epoch_snapshot::{EpochSnapshot, GateState, Scene};
pub(crate) use exposition::{Family, Labels, Values, families};
pub use facts::{Facts, Head};
pub use operator::Command;
pub(crate) use server::{OrderRequest, Server, Serving, serve_routes};
pub(crate) use token::{Token, TokenDigest};

use serde::{Deserialize, Serialize};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

/// Why the web server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The address is in use by another process or does not belong to this machine.
    #[error(
        "cannot listen at {address}: {cause}; choose another address with --http or agent.http \
         (port 0 takes a free one)"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// The operators' token cannot be written.
    #[error("cannot write the operators' token to {}: {cause}", file.display())]
    Token {
        /// The token's file.
        file: PathBuf,
        /// The error of the operating system.
        cause: std::io::Error,
    },
    /// The facts about the run cannot be written as JSON.
    #[error("cannot write the facts about the run: {0}")]
    Facts(#[from] serde_json::Error),
}

/// Options of the web server.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address to listen at.
    pub address: SocketAddr,
    /// Host names of this machine, beside addresses and `localhost`.
    pub names: Vec<String>,
    /// The file for the operators' token; without one the page is read-only.
    pub token: Option<PathBuf>,
}

/// A page whose address is bound and that is not served yet. The address is bound before
/// anything is started, so that an address in use fails early.
#[derive(Debug)]
pub struct BoundServer {
    listener: TcpListener,
    address: SocketAddr,
    names: Vec<String>,
    token: Option<PathBuf>,
}

impl BoundServer {
    /// Binds the address.
    pub fn bind(options: Options) -> Result<Self, LiveError> {
        let Options { address, names, token } = options;
        let listen = |cause| LiveError::Listen { address, cause };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        Ok(Self { listener, address, names, token })
    }

    /// Returns whether orders will be accepted.
    pub fn takes_orders(&self) -> bool {
        self.token.is_some()
    }

    /// The listening socket.
    pub fn listener(&self) -> &TcpListener {
        &self.listener
    }

    /// Draws the operators' token, and returns what the front end needs to serve the page.
    ///
    /// # Errors
    /// If the token cannot be written.
    pub fn open(self, facts: &Facts) -> Result<Page, LiveError> {
        let Self { address, names, token, .. } = self;
        let token =
            token.map(|file| Token::make(&file).map_err(|cause| LiveError::Token { file, cause }));
        let token = token.transpose()?;
        let description = describe_address(address, token.as_ref());
        let serve = Serve {
            run: facts.run.clone(),
            facts: serde_json::to_string(facts)?,
            names,
            token: token.as_ref().map(Token::digest),
        };
        Ok(Page { description, serve, token })
    }
}

/// A page that can be served.
#[derive(Debug)]
pub struct Page {
    /// Describes for users where it is.
    pub(crate) description: String,
    /// The content that it serves.
    pub(crate) serve: Serve,
    /// The secret, which stays with the agent.
    pub(crate) token: Option<Token>,
}

/// The content with which a server starts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Serve {
    /// Identifies the run.
    run: String,
    /// [`Facts`] as JSON.
    facts: String,
    /// Host names of this machine.
    names: Vec<String>,
    /// How the server recognises the token; without it the page is read-only.
    token: Option<TokenDigest>,
}

impl Serve {
    /// Replaces the facts about the run, as JSON.
    pub(crate) fn set_facts(&mut self, facts: String) {
        self.facts = facts;
    }
}

/// Describes for users where the page is.
fn describe_address(address: SocketAddr, token: Option<&Token>) -> String {
    let mut text = format!("page at http://{address}/");
    if !address.ip().is_loopback() {
        text.push_str(", open to other machines and not encrypted");
    }
    if let Some(token) = token {
        text.push_str(&format!("; orders need the token in {}", token.file().display()));
    }
    text
}
