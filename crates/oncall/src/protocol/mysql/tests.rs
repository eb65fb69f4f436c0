//! Conversations of MySQL's protocol.

use crate::protocol::tests::Turn::{self, Client, Server};
use crate::protocol::tests::{Played, check_replies_in_pieces, play, play_pieces};
use crate::protocol::{Protocol, Reader, Request};
use crate::{Class, NameHash, Names};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// A MySQL packet.
fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_le_bytes()[..3].to_vec();
    bytes.push(sequence);
    bytes.extend_from_slice(payload);
    bytes
}

fn command(code: u8, text: &[u8]) -> Turn {
    Client(packet(0, &[&[code], text].concat()))
}

/// A login packet: capabilities, and padding up to a length.
fn login(capabilities: u32, length: usize) -> Turn {
    let mut payload = capabilities.to_le_bytes().to_vec();
    payload.resize(length, 1);
    Client(packet(1, &payload))
}

const AUTOCOMMIT: u16 = 2;
const OPEN: u16 = 1 | AUTOCOMMIT;

fn ok(sequence: u8, status: u16) -> Vec<u8> {
    let [low, high] = status.to_le_bytes();
    packet(sequence, &[0, 1, 0xfc, 7, 9, low, high, 0, 0])
}

fn eof(sequence: u8, status: u16) -> Vec<u8> {
    let [low, high] = status.to_le_bytes();
    packet(sequence, &[0xfe, 0, 0, low, high])
}

/// A result set of the text protocol with one column and two rows.
fn rows(status: u16) -> Vec<u8> {
    let column = packet(2, b"\x03def\x00\x00\x00\x01a\x00");
    let row = packet(4, b"\x05hello");
    [packet(1, &[1]), column, eof(3, status), row.clone(), row, eof(6, status)].concat()
}

fn logged_in() -> Vec<Turn> {
    vec![
        Server(packet(0, b"\x0a8.0.33\0rest")),
        login(1 << 9, 60),
        Server(packet(2, b"\xfemysql_native_password\0salt")),
        Client(packet(3, &[7; 20])),
        Server(ok(4, AUTOCOMMIT)),
    ]
}

fn play_after_login(turns: Vec<Turn>) -> Played {
    play(Protocol::Mysql, &[logged_in(), turns].concat(), usize::MAX)
}

fn class_after(turns: Vec<Turn>) -> Class {
    play_after_login(turns).reader.class()
}

#[test]
fn a_login_is_no_query_and_passes() {
    for turns in 0..4 {
        let played = play(Protocol::Mysql, &logged_in()[..turns], usize::MAX);
        assert_eq!(played.reader.class(), Class::New, "{turns}");
        assert_eq!((played.requests.len(), played.replies), (0, 0), "{turns}");
    }
    assert_eq!(class_after(vec![]), Class::Gated);
}

#[test]
fn a_transaction_is_open_from_begin_to_commit() {
    let begin = vec![command(3, b"begin"), Server(ok(1, OPEN))];
    assert!(play_after_login(begin.clone()).reader.in_transaction());
    let select = [begin, vec![command(3, b"select 1"), Server(rows(OPEN))]].concat();
    assert!(play_after_login(select.clone()).reader.in_transaction());
    let commit = [select, vec![command(3, b"commit"), Server(ok(1, AUTOCOMMIT))]].concat();
    let played = play_after_login(commit);
    assert!(!played.reader.in_transaction());
    assert_eq!((played.requests, played.replies), (vec![Request::Query; 3], 3));
}

#[test]
fn a_deadlock_ends_the_transaction_and_another_error_does_not() {
    let is_open_after = |code: u16| {
        let [low, high] = code.to_le_bytes();
        let turns = vec![
            command(3, b"begin"),
            Server(ok(1, OPEN)),
            command(3, b"update"),
            Server(packet(1, &[0xff, low, high, b'#'])),
        ];
        play_after_login(turns).reader.in_transaction()
    };
    assert!(!is_open_after(1213));
    assert!(is_open_after(1062));
}

#[test]
fn the_reply_to_prepare_has_no_status() {
    let prepared = packet(1, &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let turns =
        vec![command(3, b"begin"), Server(ok(1, OPEN)), command(0x16, b"x"), Server(prepared)];
    assert!(play_after_login(turns).reader.in_transaction());
}

#[test]
fn several_results_are_one_reply_with_the_status_of_the_last() {
    const MORE: u16 = 8;
    let several = |last: u16| {
        let results = [ok(1, OPEN | MORE), rows(OPEN | MORE), ok(1, last)].concat();
        play_after_login(vec![command(3, b"begin; select 1; x"), Server(results)])
    };
    let played = several(AUTOCOMMIT);
    assert_eq!((played.requests, played.replies), (vec![Request::Query], 1));
    assert!(!played.reader.in_transaction());
    assert!(several(OPEN).reader.in_transaction());
}

#[test]
fn rows_that_a_cursor_fetches_are_a_command_that_passes() {
    const CURSOR: u16 = 0x40;
    let opened = [packet(1, &[1]), packet(2, b"\x03def"), eof(3, OPEN | CURSOR)].concat();
    let fetched = [packet(1, b"\0\0\x05hello"), eof(2, OPEN | CURSOR)].concat();
    let turns = vec![
        command(0x17, &[1, 0, 0, 0, 1, 1, 0, 0, 0]),
        Server(opened),
        command(0x1c, &[1, 0, 0, 0, 1, 0, 0, 0]),
        Server(fetched),
    ];
    let played = play_after_login(turns);
    assert_eq!((played.requests, played.replies), (vec![Request::Query, Request::Command], 2));
    assert!(played.reader.in_transaction() && !played.reader.is_pending());
}

#[test]
fn queries_that_are_read_at_once_are_one_with_the_state_of_the_last() {
    let three = [packet(0, b"\x03begin"), packet(0, b"\x03select"), packet(0, b"\x03commit")];
    let replies = [ok(1, OPEN), rows(OPEN), ok(1, AUTOCOMMIT)].map(Server);
    let turns = [vec![Client(three.concat())], replies.to_vec()].concat();
    let played = play_after_login(turns.clone());
    assert_eq!((played.requests, played.replies), (vec![Request::Query], 1));
    assert!(!played.reader.in_transaction());
    // The transaction is open as long as the server says so.
    assert!(play_after_login(turns[..3].to_vec()).reader.in_transaction());
}

#[test]
fn commands_without_a_reply_leave_no_request_pending() {
    let (one_way, gated) = (Request::OneWay, Request::GatedOneWay);
    for (code, expected) in [(0x01, one_way), (0x18, one_way), (0x19, gated)] {
        let played = play_after_login(vec![command(code, b"1234")]);
        assert_eq!((played.requests, played.reader.is_pending()), (vec![expected], false));
    }
    let (close, query, quit) =
        (packet(0, &[0x19, 1, 0, 0, 0]), packet(0, b"\x03x"), packet(0, &[1]));
    for at_once in [[&close, &query], [&query, &close], [&query, &quit]] {
        let played = play_after_login(vec![Client(at_once.map(Vec::as_slice).concat())]);
        assert_eq!((played.requests, played.reader.is_pending()), (vec![Request::Query], true));
    }
}

#[test]
fn a_ping_has_a_latency_and_is_not_delayed() {
    let played = play_after_login(vec![command(0x0e, b""), Server(ok(1, AUTOCOMMIT))]);
    assert_eq!((played.requests, played.replies), (vec![Request::Command], 1));
    assert!(!played.reader.is_pending());
}

#[test]
fn tls_compression_and_replication_are_never_gated() {
    let greeting = Server(packet(0, b"\x0a8.0.33\0rest"));
    for (capabilities, length) in [(1 << 11 | 1 << 9, 32), (1 << 5, 60), (1 << 26, 60)] {
        let turns = [greeting.clone(), login(capabilities, length)];
        let played = play(Protocol::Mysql, &turns, usize::MAX);
        assert_eq!(played.reader.class(), Class::Opaque);
    }
    for code in [0x12, 0x15, 0x1e, 0x20, 0x21] {
        assert_eq!(class_after(vec![command(code, b"1234")]), Class::Exempt, "{code:#x}");
    }
}

#[test]
fn what_is_no_login_is_never_gated() {
    let greeting = Server(packet(0, b"\x0a8.0.33\0rest"));
    // The headers of the PROXY protocol, and the first message of MySQL's X protocol.
    let (text, binary) =
        (&b"PROXY TCP4 10.0.0.1 10.0.0.2 4000 3306\r\n"[..], b"\r\n\r\n\0\r\nQUIT\n");
    for first in [text, binary, b"\x10\0\0\0\x02\x0a\x0e\x0a\x0c"] {
        let turns = [greeting.clone(), Client(first.to_vec()), Server(ok(2, AUTOCOMMIT))];
        let played = play(Protocol::Mysql, &turns, usize::MAX);
        assert_eq!((played.reader.class(), played.requests.as_slice()), (Class::Opaque, &[][..]));
    }
}

#[test]
fn a_request_for_tls_begins_it_and_compression_does_not() {
    let greeting = Server(packet(0, b"\x0a8.0.33\0rest"));
    let is_encrypted = |capabilities, length| {
        let turns = [greeting.clone(), login(capabilities, length)];
        play(Protocol::Mysql, &turns, usize::MAX).reader.is_encrypted()
    };
    assert!(is_encrypted(1 << 11 | 1 << 9, 32));
    // A request for TLS may also announce compression, which the login repeats.
    assert!(is_encrypted(1 << 11 | 1 << 5, 32));
    assert!(!is_encrypted(1 << 5, 60) && !is_encrypted(1 << 26, 60));
    // The login within TLS still has the capability, and the whole length.
    assert!(!is_encrypted(1 << 11 | 1 << 9, 60));
}

#[test]
fn the_login_within_tls_is_read_by_a_new_reader() {
    // The login is the client's second packet, and compression may begin with it.
    let within = |capabilities: u32| {
        let payload = [&capabilities.to_le_bytes()[..], &[1; 56]].concat();
        let turns = [
            Client(packet(2, &payload)),
            Server(ok(3, AUTOCOMMIT)),
            command(3, b"begin"),
            Server(ok(1, OPEN)),
        ];
        play(Protocol::Mysql, &turns, usize::MAX).reader
    };
    let reader = within(1 << 11 | 1 << 9);
    assert_eq!((reader.class(), reader.in_transaction()), (Class::Gated, true));
    assert_eq!(within(1 << 11 | 1 << 5).class(), Class::Opaque);
}

#[test]
fn a_file_from_the_client_is_no_command_and_ends_no_reply() {
    let file_request = packet(1, b"\xfb/tmp/a");
    let turns = vec![command(3, b"load data local"), Server(file_request)];
    let played = play_after_login(turns.clone());
    assert_eq!((played.requests.len(), played.replies), (1, 0));
    assert!(played.reader.is_pending());
    // A long file has more packets than there are sequence numbers.
    let lines = |sequence: u8| Client(packet(sequence, b"\x03lines"));
    let file = [lines(2), lines(255), lines(0), Client(packet(1, b"")), Server(ok(2, AUTOCOMMIT))];
    let played = play_after_login([turns, file.to_vec()].concat());
    assert_eq!((played.requests.len(), played.replies), (1, 1));
    assert!(!played.reader.is_pending() && !played.reader.in_transaction());
    let next = play_after_login(vec![
        command(3, b"x"),
        Server(packet(1, b"\xfb/a")),
        lines(2),
        Server(ok(3, AUTOCOMMIT)),
        command(3, b"y"),
    ]);
    assert_eq!((next.requests.len(), next.reader.is_pending()), (2, true));
}

#[test]
fn a_change_of_user_is_another_login() {
    assert_eq!(class_after(vec![command(0x11, b"u")]), Class::New);
    let played = play_after_login(vec![command(0x11, b"u"), Server(ok(1, AUTOCOMMIT))]);
    assert_eq!((played.reader.class(), played.reader.is_pending()), (Class::Gated, false));
}

#[test]
fn a_change_of_user_gives_its_names_when_the_server_accepts_it() {
    let request = command(0x11, b"batch\0\x01\x07stock\0");
    let switch = Server(packet(1, b"\xfemysql_native_password\0salt"));
    let answer = Client(packet(2, &[7; 20]));
    let after = |reply: Vec<u8>| {
        play_after_login(vec![request.clone(), switch.clone(), answer.clone(), Server(reply)])
    };
    let before = play_after_login(vec![]).names;
    assert_eq!(play_after_login(vec![request.clone()]).names, before, "not before the reply");
    let refused = after(packet(3, b"\xff\x15\x04#28000denied"));
    assert_eq!((refused.names, refused.reader.class()), (before, Class::Gated));
    assert!(!refused.reader.is_pending() && !refused.reader.in_transaction());
    let accepted = after(ok(3, AUTOCOMMIT));
    assert_eq!(accepted.names.user, NameHash::from_bytes(b"batch"));
    assert_eq!(accepted.names.database, NameHash::from_bytes(b"stock"));
    assert_eq!(accepted.reader.class(), Class::Gated);
    // The first login has no user of before: the server closes the connection.
    let login = [&logged_in()[..4], &[Server(packet(4, b"\xff\x15\x04#28000denied"))]].concat();
    assert_eq!(play(Protocol::Mysql, &login, usize::MAX).reader.class(), Class::New);
}

fn conversation() -> impl Strategy<Value = Vec<Turn>> {
    let turn = prop_oneof![
        Just(vec![command(3, b"begin"), Server(ok(1, OPEN))]),
        Just(vec![command(3, b"select"), Server(rows(OPEN))]),
        Just(vec![command(0x19, b"1234")]),
        Just(vec![command(3, b"commit"), Server(ok(1, AUTOCOMMIT))]),
    ];
    prop::collection::vec(turn, 0..6).prop_map(|turns| [logged_in(), turns.concat()].concat())
}

proptest! {
    #[test]
    fn a_server_may_send_its_replies_in_any_pieces(turns in conversation(), piece in 6usize..40) {
        check_replies_in_pieces(Protocol::Mysql, &turns, piece)?;
    }

    #[test]
    fn a_client_may_send_its_packets_in_any_pieces(turns in conversation(), piece in 1usize..9) {
        let whole = play(Protocol::Mysql, &turns, usize::MAX);
        let pieces = play_pieces(Protocol::Mysql, &turns, |reader| {
            // A login packet that arrives in pieces makes the connection opaque.
            let is_login = reader.class() == Class::New;
            (if is_login { usize::MAX } else { piece }, usize::MAX)
        });
        prop_assert_eq!(pieces.requests, whole.requests);
    }
}

#[test]
fn a_reply_that_is_cut_off_within_a_packet_does_not_end_with_one() {
    let (mut reader, mut names) = (Reader::new(Protocol::Mysql), Names::default());
    for turn in logged_in().into_iter().chain([command(3, b"select a")]) {
        match turn {
            Client(bytes) => {
                reader.received(&bytes, &mut names);
            }
            Server(bytes) => {
                reader.sent(&bytes, &mut names);
            }
        }
    }
    let reply = rows(AUTOCOMMIT);
    for (sent, is_whole) in [(2, false), (4, false), (5, true), (7, false), (reply.len(), true)] {
        let mut reader = reader;
        reader.sent(&reply[..sent], &mut names);
        assert_eq!(reader.has_sent_whole_packets(), is_whole, "{sent} bytes");
    }
}
