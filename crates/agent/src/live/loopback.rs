//! A page at a port of this machine, with an agent that accepts orders: the server of the fuzz
//! target `http`.

use super::server::{OrderRequest, Server};
use super::{Command, Serve, TokenDigest};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Orders that wait.
const ORDERS_MAX: usize = 8;
/// A response on this machine is there sooner, or comes no more until more is sent.
const QUIET: Duration = Duration::from_millis(1);

/// An order that the server passed on, with the token that was presented for it.
type Passed = (String, Command);

/// A page, and the agent behind it, which does nothing.
pub struct Loopback {
    runtime: Runtime,
    _server: Server,
    address: SocketAddr,
    passed: Arc<Mutex<Vec<Passed>>>,
}

impl Loopback {
    /// Serves a page without epochs for this host name, which accepts orders with this token.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(name: &str, token: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (accepted, orders) = mpsc::channel(ORDERS_MAX);
        let inside = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let token = Some(TokenDigest::from_token(token));
        let (run, facts) = ("fuzz".to_owned(), "{}".to_owned());
        let serve = Serve { run, facts, names: vec![name.to_owned()], token };
        let server = Server::start(listener, serve, accepted);
        let passed = Arc::default();
        tokio::spawn(carry_out(orders, Arc::clone(&passed)));
        drop(inside);
        Ok(Self { runtime, _server: server, address, passed })
    }

    /// Sends bytes on a connection of their own, and returns what comes back until the server
    /// closes or, unless `until_closed`, is quiet.
    ///
    /// # Errors
    /// If the server does not accept.
    pub fn exchange(&self, bytes: &[u8], until_closed: bool) -> io::Result<Vec<u8>> {
        self.runtime.block_on(exchange(self.address, bytes, until_closed))
    }

    /// Returns the orders that the server has passed on since the last call.
    pub fn take_passed(&self) -> Vec<Passed> {
        std::mem::take(&mut *self.passed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Answers every order immediately.
async fn carry_out(mut orders: mpsc::Receiver<OrderRequest>, passed: Arc<Mutex<Vec<Passed>>>) {
    while let Some(OrderRequest { command, token, answer }) = orders.recv().await {
        // The client may have gone.
        let _ = answer.send(Ok("done".to_owned()));
        passed.lock().unwrap_or_else(PoisonError::into_inner).push((token, command));
    }
}

async fn exchange(
    address: SocketAddr,
    mut bytes: &[u8],
    until_closed: bool,
) -> io::Result<Vec<u8>> {
    let stream = TcpStream::connect(address).await?;
    let (mut received, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        // A server that refuses a request closes before it has read all of it.
        let is_sent = match stream.try_write(bytes) {
            Ok(count) => {
                bytes = &bytes[count..];
                bytes.is_empty()
            }
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        };
        let is_quiet = match until_closed && is_sent {
            true => stream.readable().await.is_err(),
            false => timeout(QUIET, stream.readable()).await.is_err(),
        };
        match stream.try_read(&mut piece) {
            Ok(0) => return Ok(received),
            Ok(count) => received.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return Ok(received),
        }
        if is_quiet && is_sent {
            return Ok(received);
        }
    }
}
