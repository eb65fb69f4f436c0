//! A server under TLS that does something else in place of an answer: what comes before that is
//! passed on to a real server.

use rustix::net::sockopt::set_socket_linger;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// A fault that the server sends in place of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Stall,
    Reset,
    Garbage,
}

/// The position of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerTo {
    /// The first message of a handshake.
    Handshake,
    /// The first request.
    Request,
}

/// The type of records that are encrypted (RFC 8446, section 5.1).
const ENCRYPTED: u8 = 23;

/// Listens before a server that speaks TLS 1.3. Returns the port. The threads end with the test's
/// process: some of them stall on purpose.
pub(crate) fn before(server: SocketAddr, fault: Fault, answer: AnswerTo) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            std::thread::spawn(move || serve(client, server, fault, answer));
        }
    });
    port
}

fn serve(
    mut client: TcpStream,
    server: SocketAddr,
    fault: Fault,
    answer: AnswerTo,
) -> io::Result<()> {
    match answer {
        AnswerTo::Handshake => drop(next_record(&mut client)),
        AnswerTo::Request => pass_on(&mut client, server)?,
    }
    match fault {
        Fault::Stall => {}
        // The end of the connection is then a reset.
        Fault::Reset => {
            set_socket_linger(&client, Some(Duration::ZERO))?;
            return Ok(());
        }
        Fault::Garbage => client.write_all(b"\xff\xfe\0 what is this?\r\n\r\n")?,
    }
    io::copy(&mut client, &mut io::sink()).map(drop)
}

/// Passes on what comes before the first request, and what the server sends meanwhile.
fn pass_on(client: &mut TcpStream, server: SocketAddr) -> io::Result<()> {
    let mut server = TcpStream::connect(server)?;
    let (mut from, mut to) = (server.try_clone()?, client.try_clone()?);
    let answers = std::thread::spawn(move || io::copy(&mut from, &mut to));
    let mut encrypted = 0;
    while let Some(record) = next_record(client) {
        encrypted += u32::from(record[0] == ENCRYPTED);
        // The first encrypted record of a client ends its handshake.
        if encrypted > 1 || server.write_all(&record).is_err() {
            break;
        }
    }
    // The server may have closed it already.
    let _ = server.shutdown(Shutdown::Both);
    let _ = answers.join();
    Ok(())
}

/// Reads a record of TLS with its head; `None` at the end of the connection.
fn next_record(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = [0; 5];
    stream.read_exact(&mut head).ok()?;
    let mut record = head.to_vec();
    record.resize(head.len() + usize::from(u16::from_be_bytes([head[3], head[4]])), 0);
    stream.read_exact(&mut record[head.len()..]).ok()?;
    Some(record)
}
