//! HTTP requests as bytes on a socket, exactly as a test writes them.

use super::agent::Agent;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// In lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Waits until an agent prints the address of its page; returns host and port.
pub(crate) fn address_of(agent: &mut Agent) -> String {
    agent.wait_until_printed("page at http://");
    let printed = agent.err();
    let from = printed.split("page at http://").nth(1).unwrap();
    from.split('/').next().unwrap().to_owned()
}

/// Sends these bytes and reads until the other end closes.
pub(crate) fn exchange(address: &str, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(super::PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let (mut bytes, mut part) = (Vec::new(), [0; 65_536]);
    // A server that refuses a body may reset the connection after its answer, and
    // one that ignores `Connection: close` keeps it.
    while !is_whole(&bytes) {
        match stream.read(&mut part) {
            Ok(read) if read > 0 => bytes.extend_from_slice(&part[..read]),
            _ => break,
        }
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// Returns whether an answer has as many bytes as its head states; one without a length ends with
/// its connection.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    length
        .and_then(|it| it.trim().parse::<usize>().ok())
        .is_some_and(|it| bytes.len() >= end + 4 + it)
}

/// Sends a GET with this `Host`.
pub(crate) fn get_as(address: &str, host: &str, path: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    exchange(address, &request)
}

pub(crate) fn get(address: &str, path: &str) -> Answer {
    get_as(address, address, path)
}

/// An order with further header lines.
pub(crate) fn order(address: &str, lines: &[&str], body: &str) -> Answer {
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    let head = format!("POST /api/control HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    exchange(address, &format!("{head}Content-Length: {length}\r\n{lines}\r\n{body}"))
}

/// A viewer of the agent's epochs.
pub(crate) struct Viewer {
    lines: BufReader<TcpStream>,
}

impl Viewer {
    /// Requests the stream; nothing of it is read yet.
    pub(crate) fn open(address: &str) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(super::PATIENCE)).unwrap();
        let request = format!("GET /api/events HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        Self { lines: BufReader::new(stream) }
    }

    /// The next epoch; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<serde_json::Value> {
        let mut line = String::new();
        while self.lines.read_line(&mut line).is_ok_and(|read| read > 0) {
            if let Some(epoch) = line.strip_prefix("data: ").filter(|it| it.starts_with('{')) {
                return Some(serde_json::from_str(epoch).unwrap());
            }
            line.clear();
        }
        None
    }
}
