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

/// Pieces of a conversation of MySQL's protocol after the login: packets that are whole or nearly,
/// their parts, and any bytes, each with whether they are the client's.
fn pieces() -> impl Strategy<Value = Vec<(bool, Vec<u8>)>> {
    let payload = prop_oneof![
        // Commands, of which few begin a query.
        (0_u8..0x20, prop::collection::vec(any::<u8>(), 0..9)).prop_map(|(command, rest)| [
            &[command][..],
            &rest
        ]
        .concat()),
        // OK packets, some of them with long numbers.
        (any::<u8>(), 0xf8_u8..=0xff, any::<u8>()).prop_map(|(rows, id, status)| [
            0,
            rows % 3,
            id,
            status,
            0,
            0,
            0
        ]
        .to_vec()),
        (0_u8..3, any::<u8>()).prop_map(|(rows, status)| [0, rows, 0, status, 0].to_vec()),
        // The end of rows, a request for a file, a deadlock.
        any::<u8>().prop_map(|status| [0xfe, 0, 0, status, 0].to_vec()),
        Just([0xfb, b'f'].to_vec()),
        Just([0xff, 0xbd, 0x04].to_vec()),
        prop::collection::vec(any::<u8>(), 0..12),
    ];
    let packet = (payload, 0_u8..3).prop_map(|(payload, sequence)| {
        [&[payload.len() as u8, 0, 0, sequence / 2][..], &payload].concat()
    });
    // A whole packet, its header and its payload, two packets, or one with a byte less or more.
    let several = (packet.clone(), packet, 0_u8..8).prop_map(|(first, second, how)| match how {
        0..=2 => Vec::from([first]),
        3..=5 => Vec::from([first[..4].to_vec(), first[4..].to_vec()]),
        6 => Vec::from([[first, second].concat()]),
        _ => Vec::from([
            first[..first.len() - 1].to_vec(),
            [&first[first.len() - 1..], &[0]].concat(),
        ]),
    });
    prop::collection::vec((any::<bool>(), several), 1..20).prop_map(|turns| {
        let turn = |(is_clients, pieces): (bool, Vec<Vec<u8>>)| {
            pieces.into_iter().map(move |piece| (is_clients, piece))
        };
        turns.into_iter().flat_map(turn).collect()
    })
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
    fn what_is_common_is_read_in_its_words_as_a_reader_reads_it(pieces in pieces()) {
        let mut reader = Reader::new(Protocol::Mysql);
        reader.state.phase = Phase::Ready;
        let shared = SharedReader::new();
        shared.store(reader);
        for (is_clients, bytes) in pieces {
            if is_clients {
                let is_end = reader.begins_receive().then(|| reader.in_transaction());
                prop_assert_eq!(shared.begins_receive(), is_end);
                let request = reader.received(&bytes, &mut Names::default());
                match shared.received_common(&bytes) {
                    Some(common) => prop_assert_eq!(common, (request, reader.in_transaction())),
                    None => shared.store(reader),
                }
            } else {
                prop_assert!(!reader.sent(&bytes, &mut Names::default()));
                if !shared.sent_common(&bytes) {
                    shared.store(reader);
                }
            }
            if reader.state.phase.is_unread() {
                return Ok(());
            }
            prop_assert_eq!(shared.load(), reader);
        }
    }

    #[test]
    fn any_words_are_a_reader(words: [u64; READER_WORDS]) {
        let reader = Reader::unpack(words);
        prop_assert_eq!(Reader::unpack(reader.pack()), reader);
    }
}
