//! Conversations, in one piece and in any pieces, and what holds for every protocol.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use std::vec::Vec;

/// One turn of a conversation.
#[derive(Debug, Clone)]
pub(super) enum Turn {
    Client(Vec<u8>),
    Server(Vec<u8>),
}

/// The outcome of a conversation.
pub(super) struct Played {
    pub(super) reader: Reader,
    pub(super) requests: Vec<Request>,
    /// Replies that ended.
    pub(super) replies: usize,
    /// The names of the client in the end.
    pub(super) names: Names,
}

/// Plays a conversation whose turns arrive in pieces of this many bytes.
pub(super) fn play(protocol: Protocol, turns: &[Turn], piece: usize) -> Played {
    play_pieces(protocol, turns, |_| (piece, piece))
}

/// The same; `pieces_of` gives the size of the client's and of the server's pieces.
pub(super) fn play_pieces(
    protocol: Protocol,
    turns: &[Turn],
    pieces_of: impl Fn(&Reader) -> (usize, usize),
) -> Played {
    let mut reader = Reader::new(protocol);
    let (mut requests, mut replies, mut names) = (Vec::new(), 0, Names::default());
    for turn in turns {
        let (clients, servers) = pieces_of(&reader);
        match turn {
            Turn::Client(bytes) => {
                replies += usize::from(reader.begins_receive());
                let all = bytes.chunks(clients).map(|piece| {
                    let mut given = Names::default();
                    let request = reader.received(piece, &mut given);
                    names.update(&given);
                    request
                });
                requests.extend(all.filter(|request| *request != Request::None));
            }
            Turn::Server(bytes) => {
                for piece in bytes.chunks(servers) {
                    let mut given = Names::default();
                    replies += usize::from(reader.sent(piece, &mut given));
                    names.update(&given);
                }
            }
        }
    }
    replies += usize::from(reader.begins_receive());
    Played { reader, requests, replies, names }
}

/// That pieces of the server's bytes are read as the whole is.
pub(super) fn check_replies_in_pieces(
    protocol: Protocol,
    turns: &[Turn],
    piece: usize,
) -> Result<(), TestCaseError> {
    let whole = play(protocol, turns, usize::MAX);
    let pieces = play_pieces(protocol, turns, |_| (usize::MAX, piece));
    prop_assert_eq!((pieces.requests, pieces.replies), (whole.requests, whole.replies));
    // A status that was cut off counts as an open transaction.
    prop_assert!(pieces.reader.in_transaction() || !whole.reader.in_transaction());
    Ok(())
}

#[test]
fn names_numbers_and_programs_lead_back_to_their_protocol_alone() {
    for protocol in Protocol::ALL.iter().copied() {
        assert_eq!(Protocol::from_name(protocol.name()), Some(protocol));
        assert_eq!(Protocol::from_code(protocol.code()), Some(protocol));
        assert!((1..256).contains(&protocol.code()), "{protocol:?}: a byte, and 0 is none");
        for program in protocol.row().programs {
            assert_eq!(Protocol::from_program(program), protocol);
        }
    }
    assert_eq!(Protocol::from_name("mongo"), None);
    assert_eq!(Protocol::from_program(b"cat"), Protocol::Generic);
}

#[test]
fn a_connection_is_gated_only_after_its_login() {
    for protocol in Protocol::ALL.iter().copied() {
        let expected = if protocol.is_readable() { Class::New } else { Class::Opaque };
        assert_eq!(Reader::new(protocol).class(), expected, "{protocol:?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_break_a_reader(words: [u64; READER_WORDS], pieces: Vec<(bool, Vec<u8>)>) {
        for protocol in Protocol::ALL {
            let mut words = words;
            words[0] = words[0] & !0xff | u64::from(protocol.code());
            let mut reader = Reader::unpack(words);
            for (is_clients, bytes) in &pieces {
                if *is_clients {
                    reader.begins_receive();
                    reader.received(bytes, &mut Names::default());
                } else {
                    reader.sent(bytes, &mut Names::default());
                }
                prop_assert_eq!(Reader::unpack(reader.pack()), reader);
            }
        }
    }

    #[test]
    fn a_shared_reader_keeps_all_that_a_reader_is_and_ends_replies_as_it_does(
        all: Vec<(u8, [u64; READER_WORDS], bool)>,
    ) {
        let shared = SharedReader::new();
        for (phase, mut words, has_names) in all {
            let [code, _, flags, rest @ ..] = words[0].to_le_bytes();
            let [first, second, ..] = rest;
            words[0] = u64::from_le_bytes([code % 4, phase % 6, flags, first, second, 0, 0, 0]);
            if !has_names {
                words[3..].fill(0);
            }
            let mut reader = Reader::unpack(words);
            shared.store(reader);
            if reader.state.phase.is_unread() {
                prop_assert_eq!(shared.load().pack()[0], reader.pack()[0]);
                continue;
            }
            prop_assert_eq!(shared.load(), reader);
            let is_end = reader.begins_receive();
            prop_assert_eq!(shared.begins_receive(), is_end.then(|| reader.in_transaction()));
            prop_assert_eq!(shared.load(), reader);
        }
    }

    #[test]
    fn any_words_are_a_reader(words: [u64; READER_WORDS]) {
        let reader = Reader::unpack(words);
        prop_assert_eq!(Reader::unpack(reader.pack()), reader);
    }
}
