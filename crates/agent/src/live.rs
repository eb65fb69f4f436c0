//! The web server of a running agent: page, JSON, events, `/metrics`.
//!
//! The control loop sends every epoch to the server's thread and never waits for it:
//! if that thread is behind, an epoch is not shown, but the record still contains
//! it. Operators' requests return over a channel and are carried out between
//! two epochs.

mod assets;
mod backoff;
mod checks;
mod connections;
mod facts;
mod history;
mod moment;
mod openmetrics;
mod operator;
mod regions;
mod routes;
mod server;
mod token;

pub use checks::is_hostname;
pub use facts::{Facts, Head};
pub use moment::{Moment, Scene};
pub use operator::{Command, Order};

use server::Serving;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread::JoinHandle;
use token::Token;
use tokio::sync::mpsc as tokio_mpsc;

/// Most epochs queued for the server's thread; further ones are dropped.
const MOMENTS_MAX: usize = 64;
/// Most orders that wait for the end of the epoch; further ones are refused.
const ORDERS_MAX: usize = 8;

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
    /// The server's thread or its async runtime could not be started.
    #[error("cannot start the web server: {0}")]
    Start(std::io::Error),
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

/// A web server that listens but does not serve yet. The address is bound before anything is
/// started, so that an address in use fails early.
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

    /// Starts to serve.
    pub fn open(self, facts: Facts) -> Result<Live, LiveError> {
        let Self { listener, address, names, token } = self;
        let token =
            token.map(|file| Token::make(&file).map_err(|cause| LiveError::Token { file, cause }));
        let token = token.transpose()?;
        let description = describe_address(address, token.as_ref());
        let (moments, moments_in) = tokio_mpsc::channel(MOMENTS_MAX);
        let (orders_out, orders) = mpsc::sync_channel(ORDERS_MAX);
        let serving = Serving { listener, names, facts, token, orders: orders_out };
        let thread = serving.start(moments_in)?;
        Ok(Live { description, moments: Some(moments), orders, thread: Some(thread) })
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

/// The control loop's handle of a running web server.
#[derive(Debug)]
pub struct Live {
    description: String,
    moments: Option<tokio_mpsc::Sender<Moment>>,
    orders: mpsc::Receiver<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Live {
    /// Describes for users where the page is.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Sends an epoch to the server; drops it if the server is behind.
    pub fn show(&self, moment: Moment) {
        if let Some(moments) = &self.moments {
            let _ = moments.try_send(moment);
        }
    }

    /// Returns the operators' orders since the last call.
    pub fn orders(&self) -> Vec<Order> {
        self.orders.try_iter().collect()
    }
}

impl Drop for Live {
    /// Ends every connection.
    fn drop(&mut self) {
        drop(self.moments.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
