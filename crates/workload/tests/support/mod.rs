//! What the tests on real caches and web servers share.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Held from the search for a free port until a server uses it, because another test could
/// find the same port.
static STARTING: Mutex<()> = Mutex::new(());

/// A server at a free port of this machine, which ends with the test.
pub(crate) struct CacheServer {
    pub(crate) process: Child,
    pub(crate) address: SocketAddr,
}

impl CacheServer {
    /// Starts a program, whose port is set by the option `port`, and waits until it listens.
    pub(crate) fn start(program: &str, port: &str, options: &[&str]) -> Self {
        Self::start_at([0], |[at]| {
            let mut command = Command::new(program);
            command.args([port, &at.to_string()]).args(options);
            command
        })
    }

    /// Starts a program that listens at so many free ports, and waits until it does at the last
    /// one.
    pub(crate) fn start_at<const N: usize>(
        ports: [u16; N],
        command: impl FnOnce([u16; N]) -> Command,
    ) -> Self {
        let _starting = STARTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let held = ports.map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap());
        let ports = held.each_ref().map(|port| port.local_addr().unwrap().port());
        drop(held);
        let mut command = command(ports);
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let process = started.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { process, address: (Ipv4Addr::LOCALHOST, ports[N - 1]).into() }.ready()
    }

    fn ready(mut self) -> Self {
        let begin = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "the server ended: {ended:?}");
            assert!(begin.elapsed() < Duration::from_secs(20), "the server does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        self
    }
}

impl Drop for CacheServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
