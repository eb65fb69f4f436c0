//! The built-in options server's line protocol.

use super::{Decoded, Decoder, Outcome, ProtocolError, RequestKind, Target, first_line};
use crate::Generator;
use crate::apps::options::Demand;

const PROTOCOL: &str = "lull options";

/// Requests for prices, drawn from a [`Demand`].
#[derive(Debug, Clone)]
pub struct Options {
    demand: Demand,
}

impl Options {
    /// Creates a client with this demand.
    pub const fn new(demand: Demand) -> Self {
        Self { demand }
    }
}

impl Target for Options {
    fn encode(&mut self, rng: &mut Generator, out: &mut Vec<u8>) -> RequestKind {
        self.demand.draw(rng).write(out);
        RequestKind::Only
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Replies)
    }
}

/// Reads `OK ...` and `ERR ...` lines.
#[derive(Debug)]
struct Replies;

impl Decoder for Replies {
    fn decode(&mut self, input: &[u8], outcomes: &mut Vec<Outcome>) -> Decoded {
        let mut used = 0;
        while let Some((line, length)) = first_line(PROTOCOL, &input[used..])? {
            used += length;
            outcomes.push(match line {
                [b'O', b'K', b' ', ..] => Outcome::Done,
                [b'E', b'R', b'R', b' ', ..] => Outcome::Failed,
                _ => return Err(ProtocolError::unexpected(PROTOCOL, line)),
            });
        }
        Ok(used)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::feed;
    use super::*;

    #[test]
    fn prices_and_errors_are_distinguished_in_any_portions() {
        let replies = b"OK 1.5 0.1 300 12\nERR the queue is full\nOK 2 0.2 1 1\n";
        for step in 1..replies.len() {
            let outcomes = feed(&mut Replies, replies, step).unwrap();
            assert_eq!(outcomes, [Outcome::Done, Outcome::Failed, Outcome::Done]);
        }
    }

    #[test]
    fn another_protocol_is_refused() {
        assert!(feed(&mut Replies, b"END\r\n", 10).is_err());
    }
}
