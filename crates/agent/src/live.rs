//! What others may see of a running agent: page, JSON, events, `/metrics`.
//!
//! The loop hands every epoch to a thread of its own and never waits for it:
//! if that thread is behind, an epoch is not shown, and the record still has
//! it. Operators' requests come back over a channel and are carried out between
//! two epochs.

mod assets;
mod checks;
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

/// Epochs on their way to the server's thread; more are left out.
const MOMENTS_MAX: usize = 64;
/// Orders that wait for the end of the epoch; more are refused.
const ORDERS_MAX: usize = 8;

/// Why nobody can be shown anything.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The address is somebody else's, or none of this machine's.
    #[error(
        "cannot listen at {address}: {cause}; choose another address with --http or agent.http \
         (port 0 takes a free one)"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        cause: std::io::Error,
    },
    /// The token of operators cannot be kept.
    #[error("cannot write the operators' token to {}: {cause}", file.display())]
    Token {
        /// Where.
        file: PathBuf,
        /// Why not.
        cause: std::io::Error,
    },
    /// No thread or no runtime.
    #[error("cannot start the web server: {0}")]
    Start(std::io::Error),
}

/// How to be seen.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where to listen.
    pub address: SocketAddr,
    /// Names by which this machine is reached, beside addresses and `localhost`.
    pub names: Vec<String>,
    /// Where to keep the operators' token; without it the page only shows.
    pub token: Option<PathBuf>,
}

/// A place to be seen at, taken before anything is started.
#[derive(Debug)]
pub struct Stand {
    listener: TcpListener,
    address: SocketAddr,
    names: Vec<String>,
    token: Option<PathBuf>,
}

impl Stand {
    /// Takes the address.
    pub fn take(options: Options) -> Result<Self, LiveError> {
        let Options { address, names, token } = options;
        let listen = |cause| LiveError::Listen { address, cause };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        Ok(Self { listener, address, names, token })
    }

    /// Whether orders will be taken.
    pub fn takes_orders(&self) -> bool {
        self.token.is_some()
    }

    /// Begins to serve.
    pub fn open(self, facts: Facts) -> Result<Live, LiveError> {
        let Self { listener, address, names, token } = self;
        let token =
            token.map(|file| Token::make(&file).map_err(|cause| LiveError::Token { file, cause }));
        let token = token.transpose()?;
        let told = told(address, token.as_ref());
        let (moments, moments_in) = tokio_mpsc::channel(MOMENTS_MAX);
        let (orders_out, orders) = mpsc::sync_channel(ORDERS_MAX);
        let serving = Serving { listener, names, facts, token, orders: orders_out };
        let thread = serving.start(moments_in)?;
        Ok(Live { told, moments: Some(moments), orders, thread: Some(thread) })
    }
}

/// Where the page is, for people.
fn told(address: SocketAddr, token: Option<&Token>) -> String {
    let mut text = format!("page at http://{address}/");
    if !address.ip().is_loopback() {
        text.push_str(", open to other machines and not encrypted");
    }
    if let Some(token) = token {
        text.push_str(&format!("; orders need the token in {}", token.file().display()));
    }
    text
}

/// A running server, from the loop's side.
#[derive(Debug)]
pub struct Live {
    told: String,
    moments: Option<tokio_mpsc::Sender<Moment>>,
    orders: mpsc::Receiver<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Live {
    /// Where it is, for people.
    pub fn told(&self) -> &str {
        &self.told
    }

    /// Shows an epoch, if the server keeps up.
    pub fn show(&self, moment: Moment) {
        if let Some(moments) = &self.moments {
            let _ = moments.try_send(moment);
        }
    }

    /// What operators have asked for since the last call.
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
