//! An unknown protocol: received bytes are a request, sent bytes its reply.
//!
//! Such a connection has statistics and is never gated, since nothing says where a
//! transaction ends.

use super::wire::{Phase, Request, State, WireProtocol};
use crate::client::Names;

/// Any protocol.
pub(super) struct Generic;

impl WireProtocol for Generic {
    const NAME: &'static str = "generic";
    const FIRST_PHASE: Phase = Phase::Opaque;

    fn received(_state: &mut State, _bytes: &[u8], _names: &mut Names) -> Request {
        Request::Command
    }

    fn sent(_state: &mut State, _bytes: &[u8], _names: &mut Names) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::Class;
    use crate::protocol::tests::{Turn, play};
    use crate::protocol::{Protocol, Request};
    use std::vec;

    #[test]
    fn what_is_received_is_a_request_and_what_is_sent_its_reply() {
        let turns = [Turn::Client(b"get a\r\n".to_vec()), Turn::Server(b"END\r\n".to_vec())];
        let played = play(Protocol::Generic, &turns, usize::MAX);
        assert_eq!((played.requests, played.replies), (vec![Request::Command], 1));
        assert_eq!(played.reader.class(), Class::Opaque);
    }
}
