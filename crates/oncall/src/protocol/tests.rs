//! Conversations as servers hold them, in one piece and in any pieces.

use super::*;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

/// One turn of a conversation.
#[derive(Debug, Clone)]
enum Said {
    Client(Vec<u8>),
    Server(Vec<u8>),
}
use Said::{Client, Server};

/// A MySQL packet.
fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_le_bytes()[..3].to_vec();
    bytes.push(sequence);
    bytes.extend_from_slice(payload);
    bytes
}

fn command(code: u8, text: &[u8]) -> Said {
    Client(packet(0, &[&[code], text].concat()))
}

/// A login packet: capabilities, and something after.
fn login(can: u32, length: usize) -> Said {
    let mut payload = can.to_le_bytes().to_vec();
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

fn logged_in() -> Vec<Said> {
    vec![
        Server(packet(0, b"\x0a8.0.33\0rest")),
        login(1 << 9, 60),
        Server(packet(2, b"\xfemysql_native_password\0salt")),
        Client(packet(3, &[7; 20])),
        Server(ok(4, AUTOCOMMIT)),
    ]
}

/// Plays a conversation; the reader after it, and what was heard that asks.
fn play(protocol: Protocol, said: &[Said], piece: usize) -> (Reader, Vec<Heard>, usize) {
    let mut reader = Reader::new(protocol);
    let (mut heard, mut answers) = (Vec::new(), 0);
    for said in said {
        match said {
            Client(bytes) => {
                answers += usize::from(reader.receives());
                let all = bytes.chunks(piece).map(|piece| reader.received(piece));
                heard.extend(all.filter(|heard| *heard != Heard::More));
            }
            Server(bytes) => {
                for piece in bytes.chunks(piece) {
                    answers += usize::from(reader.sent(piece));
                }
            }
        }
    }
    answers += usize::from(reader.receives());
    (reader, heard, answers)
}

fn mysql(said: Vec<Said>) -> (Reader, Vec<Heard>, usize) {
    play(Protocol::Mysql, &[logged_in(), said].concat(), usize::MAX)
}

#[test]
fn a_mysql_login_is_no_query_and_passes() {
    for turns in 0..4 {
        let (reader, heard, answers) = play(Protocol::Mysql, &logged_in()[..turns], usize::MAX);
        assert_eq!((reader.class(), heard.len(), answers), (Class::New, 0, 0), "{turns}");
    }
    let (reader, ..) = mysql(vec![]);
    assert_eq!(reader.class(), Class::Gated);
}

#[test]
fn a_mysql_transaction_is_open_from_begin_to_commit() {
    let begin = vec![command(3, b"begin"), Server(ok(1, OPEN))];
    assert!(mysql(begin.clone()).0.in_transaction());
    let select = [begin, vec![command(3, b"select 1"), Server(rows(OPEN))]].concat();
    assert!(mysql(select.clone()).0.in_transaction());
    let commit = [select, vec![command(3, b"commit"), Server(ok(1, AUTOCOMMIT))]].concat();
    let (reader, heard, answers) = mysql(commit);
    assert!(!reader.in_transaction());
    assert_eq!((heard, answers), (vec![Heard::Query; 3], 3));
}

#[test]
fn a_deadlock_ends_the_transaction_and_another_error_does_not() {
    let error = |code: u16| {
        let [low, high] = code.to_le_bytes();
        let said = [
            command(3, b"begin"),
            Server(ok(1, OPEN)),
            command(3, b"update"),
            Server(packet(1, &[0xff, low, high, b'#'])),
        ];
        mysql(said.to_vec()).0.in_transaction()
    };
    assert!(!error(1213));
    assert!(error(1062));
}

#[test]
fn what_prepare_answers_is_no_status() {
    let prepared = packet(1, &[0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let said = [command(3, b"begin"), Server(ok(1, OPEN)), command(0x16, b"x"), Server(prepared)];
    assert!(mysql(said.to_vec()).0.in_transaction());
}

#[test]
fn commands_without_an_answer_are_silent_and_leave_no_query_behind() {
    let (silent, chore) = (Heard::Silent, Heard::Chore);
    for (code, expected) in [(0x01, silent), (0x18, silent), (0x19, chore)] {
        let (reader, heard, _) = mysql(vec![command(code, b"1234")]);
        assert_eq!((heard, reader.is_pending()), (vec![expected], false));
    }
    let closed_and_asked = Client([packet(0, &[0x19, 1, 0, 0, 0]), packet(0, b"\x03x")].concat());
    assert_eq!(mysql(vec![closed_and_asked]).1, [Heard::Query]);
}

#[test]
fn a_ping_is_watched_and_does_not_wait() {
    let (reader, heard, answers) = mysql(vec![command(0x0e, b""), Server(ok(1, AUTOCOMMIT))]);
    assert_eq!((heard, answers, reader.is_pending()), (vec![Heard::Command], 1, false));
}

#[test]
fn tls_compression_and_replication_are_never_gated() {
    let greeting = Server(packet(0, b"\x0a8.0.33\0rest"));
    for (can, length) in [(1 << 11 | 1 << 9, 32), (1 << 5, 60), (1 << 26, 60)] {
        let said = [greeting.clone(), login(can, length)];
        let (reader, ..) = play(Protocol::Mysql, &said, usize::MAX);
        assert_eq!(reader.class(), Class::Opaque);
    }
    assert_eq!(mysql(vec![command(0x12, b"1234")]).0.class(), Class::Exempt);
}

#[test]
fn a_file_that_the_client_sends_is_no_command_and_no_end() {
    let wants_file = packet(1, b"\xfb/tmp/a");
    let said = vec![command(3, b"load data local"), Server(wants_file)];
    let (reader, heard, answers) = mysql(said.clone());
    assert_eq!((heard.len(), answers), (1, 0));
    assert!(reader.is_pending());
    let file = [Client(packet(2, b"\x03lines")), Client(packet(3, b"")), Server(ok(4, AUTOCOMMIT))];
    let (reader, heard, answers) = mysql([said, file.to_vec()].concat());
    assert_eq!((heard.len(), answers, reader.is_pending()), (1, 1, false));
}

#[test]
fn a_change_of_user_is_a_login_again() {
    let (reader, ..) = mysql(vec![command(0x11, b"u")]);
    assert_eq!(reader.class(), Class::New);
    let (reader, ..) = mysql(vec![command(0x11, b"u"), Server(ok(1, AUTOCOMMIT))]);
    assert_eq!((reader.class(), reader.is_pending()), (Class::Gated, false));
}

/// A PostgreSQL message of the server.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32 + 4).to_be_bytes();
    [&[kind], &length[..], body].concat()
}

fn ready(status: u8) -> Vec<u8> {
    message(b'Z', &[status])
}

fn startup(code: u32, text: &[u8]) -> Said {
    let length = (text.len() as u32 + 8).to_be_bytes();
    Client([&length[..], &code.to_be_bytes(), text].concat())
}

fn postgres(said: &[Said]) -> (Reader, Vec<Heard>, usize) {
    let start =
        [startup(196_608, b"user\0a\0\0"), Server([message(b'R', &[0; 4]), ready(b'I')].concat())];
    play(Protocol::Postgres, &[&start, said].concat(), usize::MAX)
}

#[test]
fn postgres_says_where_an_answer_ends_and_whether_a_transaction_is_open() {
    let begin = [
        Client(message(b'Q', b"begin\0")),
        Server([message(b'C', b"BEGIN\0"), ready(b'T')].concat()),
    ];
    let (reader, heard, answers) = postgres(&begin);
    assert_eq!((heard, answers), (vec![Heard::Query], 1));
    assert!(reader.in_transaction() && reader.class() == Class::Gated);
    let part = [Client(message(b'Q', b"select\0")), Server(message(b'D', b"row"))];
    let (reader, _, answers) = postgres(&part);
    assert!(reader.is_pending() && answers == 0);
}

#[test]
fn postgres_logins_tls_and_replicas_pass() {
    let class = |said: &[Said]| play(Protocol::Postgres, said, usize::MAX).0.class();
    let asks = startup(80_877_103, b"");
    assert_eq!(class(&[startup(196_608, b"user\0a\0\0")]), Class::New);
    assert_eq!(class(&[asks.clone(), Server(b"S".to_vec())]), Class::Opaque);
    assert_eq!(class(&[asks, Server(b"N".to_vec())]), Class::New);
    assert_eq!(class(&[startup(196_608, b"replication\0true\0\0")]), Class::Exempt);
    assert_eq!(class(&[startup(80_877_102, b"12345678")]), Class::Exempt);
}

#[test]
fn without_a_protocol_what_is_received_asks_and_what_is_sent_answers() {
    let said = [Client(b"get a\r\n".to_vec()), Server(b"END\r\n".to_vec())];
    let (reader, heard, answers) = play(Protocol::Generic, &said, usize::MAX);
    assert_eq!((heard, answers, reader.class()), (vec![Heard::Command], 1, Class::Opaque));
}

fn conversation() -> impl Strategy<Value = (Protocol, Vec<Said>)> {
    let mysql_turn = prop_oneof![
        Just(vec![command(3, b"begin"), Server(ok(1, OPEN))]),
        Just(vec![command(3, b"select"), Server(rows(OPEN))]),
        Just(vec![command(0x19, b"1234")]),
        Just(vec![command(3, b"commit"), Server(ok(1, AUTOCOMMIT))]),
    ];
    let postgres_turn = prop_oneof![
        Just(vec![Client(message(b'Q', b"begin\0")), Server(ready(b'T'))]),
        Just(vec![Client(message(b'Q', b"end\0")), Server(ready(b'I'))]),
    ];
    let start = vec![startup(196_608, b"user\0a\0\0"), Server(ready(b'I'))];
    prop_oneof![
        prop::collection::vec(mysql_turn, 0..6)
            .prop_map(|turns| (Protocol::Mysql, [logged_in(), turns.concat()].concat())),
        prop::collection::vec(postgres_turn, 0..6)
            .prop_map(move |turns| (Protocol::Postgres, [start.clone(), turns.concat()].concat())),
    ]
}

proptest! {
    #[test]
    fn a_server_may_send_its_answers_in_any_pieces(
        (protocol, said) in conversation(),
        piece in 6usize..40,
    ) {
        let (whole, heard, answers) = play(protocol, &said, usize::MAX);
        let mut reader = Reader::new(protocol);
        let (mut heard_too, mut answers_too) = (Vec::new(), 0);
        for said in &said {
            match said {
                Client(bytes) => {
                    answers_too += usize::from(reader.receives());
                    heard_too.extend(Some(reader.received(bytes)).filter(|it| *it != Heard::More));
                }
                Server(bytes) => {
                    let ends = bytes.chunks(piece).map(|piece| reader.sent(piece));
                    answers_too += ends.filter(|end| *end).count();
                }
            }
        }
        answers_too += usize::from(reader.receives());
        prop_assert_eq!((heard_too, answers_too), (heard, answers));
        // What was cut off may be anything, and then it counts as open.
        prop_assert!(reader.in_transaction() || !whole.in_transaction());
    }

    #[test]
    fn a_mysql_client_may_send_its_packets_in_any_pieces(
        (_, said) in conversation(),
        piece in 1usize..9,
    ) {
        let (_, heard, _) = play(Protocol::Mysql, &said, usize::MAX);
        let mut reader = Reader::new(Protocol::Mysql);
        let mut heard_too = Vec::new();
        for said in &said {
            match said {
                Client(bytes) => {
                    // The login packet comes whole, or the connection is opaque.
                    let piece = if reader.class() == Class::New { usize::MAX } else { piece };
                    let all = bytes.chunks(piece).map(|piece| reader.received(piece));
                    heard_too.extend(all.filter(|it| *it != Heard::More));
                }
                Server(bytes) => { reader.sent(bytes); }
            }
        }
        prop_assert_eq!(heard_too, heard);
    }

    #[test]
    fn no_bytes_break_a_reader(words: [u64; 3], pieces: Vec<(bool, Vec<u8>)>) {
        let mut reader = Reader::unpack(words);
        for (is_clients, bytes) in pieces {
            if is_clients {
                reader.receives();
                reader.received(&bytes);
            } else {
                reader.sent(&bytes);
            }
            prop_assert_eq!(Reader::unpack(reader.pack()), reader);
        }
    }
}
