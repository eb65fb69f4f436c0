//! Responses of a server as bytes, in any portions.

use super::super::testing::feed;
use super::*;
use proptest::prelude::*;

const SETTINGS_FIRST: &[u8] = &[0, 0, 6, SETTINGS, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame(kind, flags, stream, payload, &mut out);
    out
}

/// A decoder with so many requests under way, and their bytes.
fn with_requests(count: usize) -> (Responses, Vec<u8>) {
    let mut target = Http2::new("web:80", "/", false);
    let (mut decoder, mut rng) = (Responses::default(), rand::SeedableRng::seed_from_u64(1));
    let mut out = Vec::new();
    for _ in 0..count {
        let begin = out.len();
        target.encode(&mut rng, &mut out);
        decoder.number(&mut out[begin..]);
    }
    (decoder, out)
}

fn done(status: u16) -> Outcome {
    if status < 400 { Outcome::Done } else { Outcome::Error(ErrorCode::from_number(status)) }
}

#[test]
fn requests_have_odd_numbers_and_the_fields_that_a_server_needs() {
    let (_, out) = with_requests(2);
    let (first, second) = out.split_at(out.len() / 2);
    assert_eq!((&first[3..9], &second[3..9]), (&[1, 5, 0, 0, 0, 1][..], &[1, 5, 0, 0, 0, 3][..]));
    // `GET`, `http`, and `/`, and `web:80` as they are.
    assert_eq!(first[9..14], [0x82, 0x86, 4, 1, b'/']);
    assert_eq!(first[14..22], *b"\x01\x06web:80");
}

#[test]
fn a_long_path_has_a_length_of_several_bytes() {
    let mut out = Vec::new();
    // RFC 7541, C.1.2: 1337 with a prefix of five bits is 31, 154, 10; with seven 127, 186, 9.
    write_string(&"x".repeat(1337), &mut out);
    assert_eq!(out[..4], [127, 186, 9, b'x']);
    out.clear();
    write_string(&"x".repeat(126), &mut out);
    assert_eq!(out[..2], [126, b'x']);
}

#[test]
fn a_status_is_read_in_each_form_that_hpack_has() {
    let literal = |head: &[u8], text: &[u8]| [head, text].concat();
    let cases = [
        (vec![0x88], Some(200)),
        (vec![0x8e, 0x40], Some(500)),
        // RFC 7541, C.6.1: `302` in the code of Huffman, behind an update of the table's size.
        (vec![0x3f, 0x20, 0x48, 0x82, 0x64, 0x02], Some(302)),
        (vec![0x20, 0x48, 0x82, 0x64, 0x02], Some(302)),
        (literal(&[0x08, 3], b"503"), Some(503)),
        // Go names the last of the seven places that the field has in the table.
        (literal(&[0x0e, 3], b"503"), Some(503)),
        (vec![0x4e, 0x82, 0x64, 0x02], Some(302)),
        (literal(&[0x18, 3], b"099"), None),
        (vec![0x48, 0x82, 0xff, 0xff], None),
        (vec![0xbe], None),
        (vec![], None),
    ];
    for (block, wanted) in cases {
        let found = status_of(&block);
        // The first case of an update has a size of two bytes, which goes to 0 here only.
        if block.first() != Some(&0x3f) {
            assert_eq!(found, wanted, "{block:x?}");
        }
    }
    assert_eq!(huffman(&[0x64, 0x0e, 0xff]), Some(307), "RFC 7541, C.6.2");
}

#[test]
fn responses_may_come_in_any_order_and_their_places_are_those_of_the_requests() {
    let (mut decoder, _) = with_requests(3);
    let bytes = [SETTINGS_FIRST.to_vec(), frame(SETTINGS, ACK, 0, &[])];
    let error = feed(&mut decoder, &bytes.concat(), 7).unwrap_err().to_string();
    assert!(error.contains("--depth 2"), "three are under way: {error}");

    let (mut decoder, _) = with_requests(2);
    let bytes = [
        SETTINGS_FIRST.to_vec(),
        // An interim response, a response with padding, a body in two pieces, and trailers.
        frame(HEADERS, END_HEADERS, 3, &[0x08, 3, b'1', b'0', b'3']),
        frame(HEADERS, END_HEADERS | PADDED, 3, &[1, 0x88, 0]),
        frame(DATA, 0, 3, b"hello"),
        frame(HEADERS, END_HEADERS, 1, &[0x8d]),
        frame(DATA, 0, 3, b""),
        frame(HEADERS, END_HEADERS | END_STREAM, 3, &[0x40, 1, b'x', 1, b'y']),
        frame(DATA, END_STREAM, 1, b"gone"),
    ];
    for step in [1, 5, 1000] {
        let (mut fresh, _) = with_requests(2);
        let outcomes = feed(&mut fresh, &bytes.concat(), step).unwrap();
        assert_eq!(outcomes, [done(200), done(404)]);
        assert_eq!([fresh.position(), fresh.position()], [1, 0]);
    }
    feed(&mut decoder, &bytes.concat(), 3).unwrap();
    assert!(decoder.is_ready() && !decoder.is_last());
}

#[test]
fn pings_and_settings_are_answered_and_the_window_is_extended() {
    let (mut decoder, _) = with_requests(1);
    let mut out = Vec::new();
    decoder.proceed(Nanos::ZERO, &mut Vec::new(), &mut out);
    assert!(out.starts_with(PREFACE) && !decoder.is_ready());
    out.clear();
    let bytes = [SETTINGS_FIRST.to_vec(), frame(PING, 0, 0, b"12345678")].concat();
    feed(&mut decoder, &bytes, 4).unwrap();
    decoder.proceed(Nanos::ZERO, &mut Vec::new(), &mut out);
    let wanted = [frame(SETTINGS, ACK, 0, &[]), frame(PING, ACK, 0, b"12345678")].concat();
    assert_eq!(out, wanted);
    out.clear();
    decoder.count_received(WINDOW_BYTES_STEP);
    decoder.proceed(Nanos::ZERO, &mut Vec::new(), &mut out);
    assert_eq!(out, frame(WINDOW_UPDATE, 0, 0, &WINDOW_BYTES_STEP.to_be_bytes()));
}

#[test]
fn a_reset_is_an_error_and_an_announced_end_is_none() {
    let (mut decoder, _) = with_requests(1);
    let bytes = [
        SETTINGS_FIRST.to_vec(),
        frame(RST_STREAM, 0, 1, &7_u32.to_be_bytes()),
        frame(GOAWAY, 0, 0, &[0; 8]),
    ];
    let outcomes = feed(&mut decoder, &bytes.concat(), 6).unwrap();
    assert_eq!(outcomes, [Outcome::Error(reset_code(7))]);
    assert_eq!(reset_code(7).to_string(), "RST:7");
    assert!(decoder.is_last());
    let (mut three, _) = with_requests(3);
    // The server takes the first of three requests and no other.
    let bytes =
        [SETTINGS_FIRST[..9].to_vec(), vec![0; 6], frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0])];
    assert_eq!(feed(&mut three, &bytes.concat(), 6).unwrap(), [Outcome::Untaken; 2]);
    assert_eq!([three.position(), three.position()], [1, 1]);
    let bytes = frame(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\x0bcalm down");
    let error = feed(&mut decoder, &bytes, 100).unwrap_err().to_string();
    assert!(error.contains("RST:11") && error.contains("calm down"), "{error}");
}

#[test]
fn what_is_no_http_2_is_refused() {
    for bytes in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"\0\0\0\x06\0\0\0\0\0"] {
        let error = feed(&mut Responses::default(), bytes, 100).unwrap_err();
        assert!(matches!(error, ProtocolError::Unexpected { .. }), "{error}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400), step in 1usize..50,
    ) {
        let (mut decoder, _) = with_requests(2);
        let _ = feed(&mut decoder, &[SETTINGS_FIRST, &bytes[..]].concat(), step);
    }

    #[test]
    fn no_frame_makes_the_decoder_panic(
        frames in prop::collection::vec(
            (0u8..10, any::<u8>(), 0u32..6, prop::collection::vec(any::<u8>(), 0..20)), 0..12,
        ),
        step in 1usize..50,
    ) {
        let (mut decoder, _) = with_requests(2);
        let frames = frames.iter().map(|(kind, flags, stream, payload)| {
            frame(*kind, *flags, *stream, payload)
        });
        let bytes = [SETTINGS_FIRST.to_vec(), frames.collect::<Vec<_>>().concat()].concat();
        if let Ok(outcomes) = feed(&mut decoder, &bytes, step) {
            prop_assert!(outcomes.len() <= 2);
        }
    }
}
