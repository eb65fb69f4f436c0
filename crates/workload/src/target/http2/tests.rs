//! Responses of a server as bytes, in any portions.

use super::super::Target;
use super::super::testing::feed;
use super::headers::{huffman, status_of};
use super::*;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

const SETTINGS_FIRST: &[u8] = &[0, 0, 6, SETTINGS, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame(kind, flags, stream, payload, &mut out);
    out
}

/// Returns a decoder with this many requests under way, and their bytes.
fn with_requests(count: usize) -> (Responses, Vec<u8>) {
    let mut target = get("web:80", "/", false);
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
    // `GET`, `http` and `/` by index, and `web:80` as a literal.
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
        // RFC 7541, C.6.1: `302` in the Huffman code, behind an update of the table's size.
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

/// A header block in pieces of this many bytes: a HEADERS frame, and CONTINUATION frames.
fn block_frames(flags: u8, stream: u32, block: &[u8], piece: usize) -> Vec<u8> {
    let pieces: Vec<&[u8]> = block.chunks(piece).collect();
    let last = pieces.len() - 1;
    let frames = pieces.iter().enumerate().map(|(at, piece)| {
        let end = if at == last { END_HEADERS } else { 0 };
        match at {
            0 => frame(HEADERS, flags | end, stream, piece),
            _ => frame(CONTINUATION, end, stream, piece),
        }
    });
    frames.collect::<Vec<_>>().concat()
}

#[test]
fn a_status_is_read_from_any_frame_of_its_header_block() {
    // An update of the table's size, then `302` in the Huffman code, and another field.
    let redirect = [0x20, 0x48, 0x82, 0x64, 0x02, 0x40, 1, b'x', 1, b'y'];
    for piece in 1..=redirect.len() {
        let bytes = [
            SETTINGS_FIRST.to_vec(),
            block_frames(0, 3, &redirect, piece),
            // Trailers that span frames, and a response without a body, whose first frame ends its
            // stream.
            block_frames(END_STREAM, 3, &[0x40, 1, b'x', 1, b'y'], piece),
            block_frames(END_STREAM, 1, &[0x48, 3, b'5', b'0', b'3'], piece),
        ];
        for step in [1, 7, 1000] {
            let (mut decoder, _) = with_requests(2);
            let outcomes = feed(&mut decoder, &bytes.concat(), step).unwrap();
            assert_eq!(outcomes, [done(302), done(503)], "pieces of {piece}");
            assert_eq!([decoder.position(), decoder.position()], [1, 0]);
        }
    }
}

#[test]
fn padding_and_priority_are_no_part_of_a_header_block() {
    let (mut decoder, _) = with_requests(1);
    let first = [&[2, 0, 0, 0, 0, 16, 0x48, 3, b'4'][..], &[0; 2]].concat();
    let bytes = [
        SETTINGS_FIRST.to_vec(),
        frame(HEADERS, PADDED | PRIORITY | END_STREAM, 1, &first),
        frame(CONTINUATION, END_HEADERS, 1, b"29"),
    ];
    assert_eq!(feed(&mut decoder, &bytes.concat(), 4).unwrap(), [done(429)]);
    let (mut decoder, _) = with_requests(1);
    // More padding than there are bytes.
    let bytes = [SETTINGS_FIRST.to_vec(), frame(HEADERS, END_HEADERS | PADDED, 1, &[3, 0x88, 0])];
    assert!(feed(&mut decoder, &bytes.concat(), 100).is_err());
}

#[test]
fn a_header_block_that_is_interrupted_or_does_not_end_is_refused() {
    let open = [SETTINGS_FIRST.to_vec(), frame(HEADERS, 0, 1, &[0x88])].concat();
    let others = [
        frame(DATA, END_STREAM, 1, b""),
        frame(HEADERS, END_HEADERS, 1, &[0x88]),
        frame(CONTINUATION, END_HEADERS, 3, &[]),
        frame(PING, 0, 0, b"12345678"),
        frame(RST_STREAM, 0, 1, &[0; 4]),
    ];
    for other in others {
        let (mut decoder, _) = with_requests(2);
        let error = feed(&mut decoder, &[&open[..], &other].concat(), 100).unwrap_err();
        assert!(matches!(error, ProtocolError::Unexpected { .. }), "{error}");
    }
    let (mut decoder, _) = with_requests(1);
    let alone = [SETTINGS_FIRST, &frame(CONTINUATION, END_HEADERS, 1, &[0x88])].concat();
    assert!(feed(&mut decoder, &alone, 100).is_err(), "a continuation of nothing");
    // A block without end, and one whose frames have no bytes.
    for payload in [&[b'x'; 100][..], &[]] {
        let (mut decoder, _) = with_requests(1);
        let endless = [open.clone(), frame(CONTINUATION, 0, 1, payload).repeat(2_000)].concat();
        let error = feed(&mut decoder, &endless, 1000).unwrap_err();
        assert_eq!(error, ProtocolError::TooLong { protocol: PROTOCOL });
    }
}

#[test]
fn headers_of_a_stream_that_was_reset_are_read_and_dropped() {
    let (mut decoder, _) = with_requests(2);
    let bytes = [
        SETTINGS_FIRST.to_vec(),
        frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()),
        block_frames(END_STREAM, 1, &[0x48, 3, b'2', b'0', b'0'], 2),
        frame(DATA, END_STREAM, 1, b"late"),
        frame(HEADERS, END_HEADERS | END_STREAM, 3, &[0x88]),
    ];
    let outcomes = feed(&mut decoder, &bytes.concat(), 9).unwrap();
    assert_eq!(outcomes, [Outcome::Error(reset_code(8)), Outcome::Done]);
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
    // The server accepts the first of three requests and no other.
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

/// Frames of any kind, most of them for the two requests under way.
fn any_frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let payload = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..20),
        Just(vec![0x88]),
        Just(vec![0x48, 3, b'5', b'0', b'0']),
        Just(vec![0; 8]),
    ];
    let one = (0u8..11, any::<u8>(), 0u32..6, payload)
        .prop_map(|(kind, flags, stream, payload)| frame(kind, flags, stream, &payload));
    prop::collection::vec(one, 0..16)
}

/// Feeds bytes behind the settings. Checks that no request ends twice, and that each outcome has a
/// position among the requests under way.
fn check_hostile(bytes: &[u8], step: usize) -> Result<(), TestCaseError> {
    let (mut decoder, _) = with_requests(2);
    let bytes = [SETTINGS_FIRST, bytes].concat();
    let (mut held, mut outcomes) = (Vec::new(), Vec::new());
    for portion in bytes.chunks(step) {
        held.extend_from_slice(portion);
        let Ok(used) = decoder.decode(&held, &mut outcomes) else { break };
        prop_assert!(used <= held.len());
        held.drain(..used);
    }
    prop_assert_eq!(outcomes.len() + decoder.streams.len(), 2);
    for left in (1..=2).rev().take(outcomes.len()) {
        prop_assert!(decoder.position() < left);
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_bytes_make_the_decoder_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400), step in 1usize..50,
    ) {
        check_hostile(&bytes, step)?;
    }

    #[test]
    fn no_frames_end_a_request_twice(frames in any_frames(), step in 1usize..50) {
        check_hostile(&frames.concat(), step)?;
    }

    #[test]
    fn frames_with_changed_bytes_end_no_request_twice(
        frames in any_frames(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        step in 1usize..50,
    ) {
        let mut bytes = frames.concat();
        if !bytes.is_empty() {
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        check_hostile(&bytes, step)?;
    }

    #[test]
    fn responses_in_frames_of_any_size_have_the_same_outcomes(
        piece in 1usize..12, step in 1usize..60, statuses in prop::collection::vec(200u16..600, 2),
    ) {
        let responses = statuses.iter().zip([1, 3]).map(|(status, stream)| {
            let block = [&[0x08, 3][..], status.to_string().as_bytes()].concat();
            let mut frames = block_frames(0, stream, &block, piece);
            frames.extend(frame(DATA, END_STREAM, stream, b"page"));
            frames
        });
        let bytes = [SETTINGS_FIRST.to_vec(), responses.collect::<Vec<_>>().concat()].concat();
        let (mut decoder, _) = with_requests(2);
        let outcomes = feed(&mut decoder, &bytes, step).unwrap();
        prop_assert_eq!(outcomes, [done(statuses[0]), done(statuses[1])]);
    }
}
