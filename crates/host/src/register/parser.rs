//! The lines of processes that register, parsed by another process.
//!
//! The agent knows from the kernel which process has connected, and reads of what that process
//! writes nothing but where a line ends. Each line goes as a datagram to a process without rights,
//! which returns a request of the few kinds that there are. If that process is taken over, it can
//! change the request of a process that has written one: to another template that the user of the
//! process may name, or to a departure.
//!
//! The socket pair outlives the process that parses: lines wait in it until there is another one.

use lull_measure::push::MAX_NAME_BYTES;
use lull_measure::register::{MAX_LINE_BYTES, Reason, Refusal, Request, parse};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;

/// Bytes of the number of a connection, with which each datagram begins.
const HEAD: usize = size_of::<u64>();
/// Most bytes of a datagram with a line.
pub const LINE_DATAGRAM_BYTES: usize = HEAD + MAX_LINE_BYTES;
/// Most bytes of a description of a line's fault, and of a name.
const TEXT_BYTES: usize = 300;
/// Most bytes of a datagram with a request.
const REQUEST_DATAGRAM_BYTES: usize = HEAD + 1 + TEXT_BYTES;

/// Kinds of requests, the byte after the number; the last two are followed by a text.
const LEAVE: u8 = 0;
const REGISTER: u8 = 1;
const REGISTER_AS: u8 = 2;
const MALFORMED: u8 = 3;

/// The agent's end, and the end that it hands over.
#[derive(Debug)]
pub(super) struct Parser {
    ours: UnixDatagram,
    theirs: UnixDatagram,
}

/// A line as it was parsed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parsed {
    /// The number of the connection that has written it.
    pub(super) connection: u64,
    pub(super) request: Result<Request, Refusal>,
}

impl Parser {
    pub(super) fn new() -> io::Result<Self> {
        let (ours, theirs) = UnixDatagram::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        Ok(Self { ours, theirs })
    }

    /// The end at which lines are parsed, for [`parse_datagram`].
    pub(super) fn parsing_end(&self) -> io::Result<UnixDatagram> {
        self.theirs.try_clone()
    }

    /// Becomes readable when a line was parsed.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.ours.as_fd()
    }

    /// Sends a line; returns whether there was room for it.
    pub(super) fn send(&self, connection: u64, line: &[u8]) -> bool {
        let datagram = [connection.to_le_bytes().as_slice(), line].concat();
        self.ours.send(&datagram).is_ok_and(|count| count == datagram.len())
    }

    /// Returns the next line that was parsed; `None` if the other end has sent something else.
    ///
    /// # Errors
    /// `EAGAIN` if there is none now.
    pub(super) fn receive(&self) -> io::Result<Option<Parsed>> {
        // One byte more than a request has, so that a longer datagram is recognised.
        let mut datagram = [0; REQUEST_DATAGRAM_BYTES + 1];
        let length = self.ours.recv(&mut datagram)?;
        Ok(decode(&datagram[..length]))
    }
}

/// Parses a datagram with a line and returns the datagram to answer with; `None` if the agent has
/// sent no line.
pub fn parse_datagram(datagram: &[u8]) -> Option<Vec<u8>> {
    let (connection, line) = datagram.split_first_chunk::<HEAD>()?;
    Some(encode(*connection, &parse(line)))
}

fn encode(connection: [u8; HEAD], request: &Result<Request, Refusal>) -> Vec<u8> {
    let (kind, text) = match request {
        Ok(Request::Leave) => (LEAVE, ""),
        Ok(Request::Register { template: None }) => (REGISTER, ""),
        Ok(Request::Register { template: Some(name) }) => (REGISTER_AS, name.as_str()),
        Err(refusal) => (MALFORMED, refusal.message.as_str()),
    };
    let text = &text[..text.floor_char_boundary(TEXT_BYTES)];
    [connection.as_slice(), &[kind], text.as_bytes()].concat()
}

/// Checks all that the other end may have sent.
fn decode(datagram: &[u8]) -> Option<Parsed> {
    let (connection, rest) = datagram.split_first_chunk::<HEAD>()?;
    let (kind, text) = rest.split_first()?;
    let text = str::from_utf8(text).ok()?;
    let request = match *kind {
        LEAVE if text.is_empty() => Ok(Request::Leave),
        REGISTER if text.is_empty() => Ok(Request::Register { template: None }),
        REGISTER_AS if (1..=MAX_NAME_BYTES).contains(&text.len()) => {
            Ok(Request::Register { template: Some(text.to_owned()) })
        }
        MALFORMED if text.len() <= TEXT_BYTES => {
            Err(Refusal { reason: Reason::Malformed, message: text.to_owned() })
        }
        _ => return None,
    };
    Some(Parsed { connection: u64::from_le_bytes(*connection), request })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            2 => prop::option::of(".{1,40}").prop_map(|template| {
                Request::Register { template }.to_line().into_bytes()
            }),
            1 => Just(Request::Leave.to_line().into_bytes()),
            1 => prop::collection::vec(any::<u8>(), 0..200),
            1 => "[{\":,a-z0-9}é]{0,600}".prop_map(String::into_bytes),
        ]
    }

    proptest! {
        #[test]
        fn a_line_parsed_elsewhere_is_what_it_is_here(connection in any::<u64>(), line in lines()) {
            let parser = Parser::new().unwrap();
            prop_assert!(parser.send(connection, &line));
            let parsing_end = parser.parsing_end().unwrap();
            let mut datagram = vec![0; LINE_DATAGRAM_BYTES];
            let length = parsing_end.recv(&mut datagram).unwrap();
            parsing_end.send(&parse_datagram(&datagram[..length]).unwrap()).unwrap();
            let parsed = parser.receive().unwrap().unwrap();
            prop_assert_eq!(parsed.connection, connection);
            match (parsed.request, parse(&line)) {
                (Err(sent), Err(own)) => prop_assert!(own.message.starts_with(&sent.message)),
                (sent, own) => prop_assert_eq!(sent, own),
            }
        }

        #[test]
        fn whatever_the_other_end_sends_is_a_request_of_bounded_length_or_ignored(
            datagram in prop::collection::vec(any::<u8>(), 0..400),
            kind in 0_u8..6,
        ) {
            let parser = Parser::new().unwrap();
            let mut datagram = datagram;
            if let Some(byte) = datagram.get_mut(HEAD) {
                *byte = kind;
            }
            parser.parsing_end().unwrap().send(&datagram).unwrap();
            match parser.receive().unwrap().map(|parsed| parsed.request) {
                Some(Ok(Request::Register { template: Some(name) })) => {
                    prop_assert!((1..=MAX_NAME_BYTES).contains(&name.len()));
                }
                Some(Err(refusal)) => {
                    prop_assert_eq!(refusal.reason, Reason::Malformed);
                    prop_assert!(refusal.message.len() <= TEXT_BYTES);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn a_datagram_that_is_too_short_or_too_long_is_no_request() {
        let parser = Parser::new().unwrap();
        let parsing_end = parser.parsing_end().unwrap();
        let long = encode(
            [7; HEAD],
            &Err(Refusal { reason: Reason::Malformed, message: "x".repeat(TEXT_BYTES) }),
        );
        parsing_end.send(&long).unwrap();
        assert!(parser.receive().unwrap().is_some());
        for datagram in [vec![], vec![0; HEAD], [long, vec![b'x']].concat(), vec![3; 5_000]] {
            parsing_end.send(&datagram).unwrap();
            assert_eq!(parser.receive().unwrap(), None, "{} bytes", datagram.len());
        }
        assert_eq!(parser.receive().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(parse_datagram(&[0; HEAD - 1]), None);
    }

    #[test]
    fn lines_wait_while_no_process_parses_and_no_more_than_there_is_room_for() {
        let parser = Parser::new().unwrap();
        let sent = (0..10_000).take_while(|number| parser.send(*number, &[b'x'; 4_000])).count();
        // A kernel may have room for ten datagrams only (`net.unix.max_dgram_qlen`).
        assert!((1..5_000).contains(&sent), "{sent}");
        let mut datagram = vec![0; LINE_DATAGRAM_BYTES];
        let length = parser.parsing_end().unwrap().recv(&mut datagram).unwrap();
        assert_eq!((length, datagram[..HEAD].iter().all(|byte| *byte == 0)), (HEAD + 4_000, true));
    }
}
