//! HTTP/2 (RFC 9113): GET of one page, with any number of requests under way on a connection.
//!
//! The framing is Lull's own: crates for HTTP/2 bring an asynchronous runtime, whose scheduler
//! would add to the latencies. A client that repeats one request needs little of the protocol. It
//! makes the server use no dynamic header table (HPACK, RFC 7541), and reads only the status of a
//! response.

mod headers;

use super::repeated::Repeated;
use super::{Decoded, Decoder, ErrorCode, MAX_HEAD_BYTES, Outcome, ProtocolError};
use headers::HeaderBlock;
use lull_measure::Nanos;
use std::collections::VecDeque;

const PROTOCOL: &str = "HTTP/2";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// Frame flags.
const ACK: u8 = 0x1;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Identifiers of settings.
const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;

const FRAME_HEAD_BYTES: usize = 9;
/// The longest frame that the client allows a server to send.
const FRAME_BYTES_MAX: usize = MAX_HEAD_BYTES;
const WINDOW_BYTES_MAX: u32 = (1 << 31) - 1;
/// The initial window of a connection.
const WINDOW_BYTES_FIRST: u32 = 65_535;
/// Received bytes after which the window is extended again.
const WINDOW_BYTES_STEP: u32 = 1 << 29;
/// The most bytes that may wait to be sent. A server whose pings need more at once is refused.
const OUT_BYTES_MAX: usize = 64 * 1024;
/// The last stream number of a client, whose streams are odd; a further request needs a new
/// connection.
const STREAM_MAX: u32 = (1 << 31) - 1;

/// Returns GETs of `path` from `host` (with its port).
pub(super) fn get(host: &str, path: &str, is_encrypted: bool) -> Repeated {
    // Fields of the static table: `:method: GET`, and `:scheme: http` or `https`.
    let mut block = vec![0x82, if is_encrypted { 0x87 } else { 0x86 }];
    let agent = concat!("lull/", env!("CARGO_PKG_VERSION"));
    // Names of the static table, with literal values that no table stores; the last index, 58,
    // takes two bytes.
    for (name, value) in [(&[4][..], path), (&[1], host), (&[15, 43], agent)] {
        block.extend_from_slice(name);
        write_string(value, &mut block);
    }
    let mut request = Vec::new();
    write_frame(HEADERS, END_HEADERS | END_STREAM, 0, &block, &mut request);
    Repeated::new::<Responses>(request)
}

/// Appends a string without compression: its length, of which seven bits fit into the first byte,
/// and its bytes.
fn write_string(text: &str, out: &mut Vec<u8>) {
    match text.len().checked_sub(127) {
        None => out.push(text.len() as u8),
        Some(mut rest) => {
            out.push(127);
            while rest >= 128 {
                out.push((rest % 128) as u8 | 0x80);
                rest /= 128;
            }
            out.push(rest as u8);
        }
    }
    out.extend_from_slice(text.as_bytes());
}

fn write_frame(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    out.extend(length);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// The head of a frame.
#[derive(Debug, Clone, Copy)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    /// Bytes of its payload that were not read yet.
    left: usize,
}

/// A request under way.
#[derive(Debug)]
struct Stream {
    number: u32,
    /// The status of its response, once it is known.
    status: Option<u16>,
}

/// Reads the responses of one connection.
#[derive(Debug)]
struct Responses {
    is_begun: bool,
    /// Whether the server has sent its settings.
    is_ready: bool,
    is_last: bool,
    frame: Option<Frame>,
    /// The header block whose end has not arrived.
    block: Option<HeaderBlock>,
    /// The requests under way, in their order.
    streams: VecDeque<Stream>,
    /// Positions in `streams` of the requests whose outcomes were reported.
    ended: VecDeque<usize>,
    next_stream: u32,
    streams_max: usize,
    /// Bytes received since the window was extended.
    received: u32,
    out: Vec<u8>,
}

impl Default for Responses {
    fn default() -> Self {
        Self {
            is_begun: false,
            is_ready: false,
            is_last: false,
            frame: None,
            block: None,
            streams: VecDeque::new(),
            ended: VecDeque::new(),
            next_stream: 1,
            streams_max: usize::MAX,
            received: 0,
            out: Vec::new(),
        }
    }
}

impl Decoder for Responses {
    fn decode(&mut self, input: &[u8], outcomes: &mut Vec<Outcome>) -> Decoded {
        let mut used = 0;
        while let Some(count) = self.step(&input[used..], outcomes)? {
            used += count;
        }
        Ok(used)
    }

    fn is_last(&self) -> bool {
        self.is_last
    }

    fn proceed(&mut self, _: Nanos, _: &mut Vec<Outcome>, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.begin();
        }
        out.append(&mut self.out);
    }

    fn is_ready(&self) -> bool {
        self.is_ready
    }

    fn number(&mut self, request: &mut [u8]) {
        let stream = self.next_stream.to_be_bytes();
        request[FRAME_HEAD_BYTES - stream.len()..FRAME_HEAD_BYTES].copy_from_slice(&stream);
        self.streams.push_back(Stream { number: self.next_stream, status: None });
        self.is_last |= self.next_stream >= STREAM_MAX;
        self.next_stream = self.next_stream.saturating_add(2);
    }

    fn position(&mut self) -> usize {
        self.ended.pop_front().unwrap_or_default()
    }

    fn message(&self) -> &str {
        "the status of a response, or RST and the code with which the server reset its stream"
    }
}

impl Responses {
    /// Writes the client's preface, which begins a connection.
    fn begin(&mut self) {
        self.out.extend_from_slice(PREFACE);
        let settings =
            [(HEADER_TABLE_SIZE, 0), (ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, WINDOW_BYTES_MAX)];
        let payload: Vec<u8> =
            settings.iter().flat_map(|(key, value)| setting(*key, *value)).collect();
        write_frame(SETTINGS, 0, 0, &payload, &mut self.out);
        self.extend_window(WINDOW_BYTES_MAX - WINDOW_BYTES_FIRST);
    }

    fn extend_window(&mut self, by: u32) {
        write_frame(WINDOW_UPDATE, 0, 0, &by.to_be_bytes(), &mut self.out);
    }

    /// Reads the beginning of `input`; returns `None` if more is needed.
    fn step(
        &mut self,
        input: &[u8],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<Option<usize>, ProtocolError> {
        let Some(mut frame) = self.frame else { return self.begin_frame(input) };
        let here = frame.left.min(input.len());
        if frame.kind == DATA && frame.left > here {
            frame.left -= here;
            self.frame = Some(frame);
            return Ok((here > 0).then_some(here));
        }
        let Some(payload) = input.get(..frame.left) else { return Ok(None) };
        self.frame = None;
        self.end_frame(frame, payload, outcomes)?;
        Ok(Some(payload.len()))
    }

    fn begin_frame(&mut self, input: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let Some(head) = input.first_chunk::<FRAME_HEAD_BYTES>() else { return Ok(None) };
        self.check_streams()?;
        let [a, b, c, kind, flags, stream @ ..] = *head;
        let frame = Frame {
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & STREAM_MAX,
            left: u32::from_be_bytes([0, a, b, c]) as usize,
        };
        // A server of HTTP/2 begins with its settings; another one does not.
        let is_expected = self.is_ready || (kind == SETTINGS && flags & ACK == 0);
        if !is_expected
            || !self.may_follow(&frame)
            || kind == PUSH_PROMISE
            || frame.left > FRAME_BYTES_MAX
        {
            return Err(ProtocolError::unexpected(PROTOCOL, input));
        }
        if kind == DATA {
            self.count_received(frame.left as u32);
        }
        self.frame = Some(frame);
        Ok(Some(FRAME_HEAD_BYTES))
    }

    /// Returns whether a frame may arrive now: other frames do not interrupt those of a header
    /// block.
    fn may_follow(&self, frame: &Frame) -> bool {
        match &self.block {
            Some(block) => frame.kind == CONTINUATION && frame.stream == block.stream,
            None => frame.kind != CONTINUATION,
        }
    }

    fn count_received(&mut self, bytes: u32) {
        self.received += bytes;
        if self.received >= WINDOW_BYTES_STEP {
            let received = std::mem::take(&mut self.received);
            self.extend_window(received);
        }
    }

    fn end_frame(
        &mut self,
        frame: Frame,
        payload: &[u8],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), ProtocolError> {
        let at = self.find(frame.stream);
        let word = |at: usize| {
            let bytes = payload.get(at..at + 4)?.first_chunk::<4>()?;
            Some(u32::from_be_bytes(*bytes))
        };
        let unexpected = || ProtocolError::unexpected(PROTOCOL, payload);
        match (frame.kind, at) {
            (HEADERS | CONTINUATION, _) => self.read_headers(frame, payload, outcomes)?,
            (DATA, Some(at)) if frame.flags & END_STREAM != 0 => {
                let outcome = self.streams[at].outcome().ok_or_else(unexpected)?;
                self.end(at, outcome, outcomes);
            }
            (RST_STREAM, Some(at)) => {
                let code = word(0).ok_or_else(unexpected)?;
                self.end(at, Outcome::Error(reset_code(code)), outcomes);
            }
            (SETTINGS, _) if frame.flags & ACK == 0 => self.read_settings(payload),
            (PING, _) if frame.flags & ACK == 0 => self.answer_ping(payload)?,
            (GOAWAY, _) => {
                let (last, code) = word(0).zip(word(4)).ok_or_else(unexpected)?;
                self.go_away(code, &payload[8..])?;
                self.give_back_from(last & STREAM_MAX, outcomes);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the position of a request under way.
    fn find(&self, stream: u32) -> Option<usize> {
        self.streams.iter().position(|one| one.number == stream)
    }

    /// Reads a frame of a header block, and the block once it is complete. The block of a stream
    /// that has ended is ignored.
    fn read_headers(
        &mut self,
        frame: Frame,
        payload: &[u8],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), ProtocolError> {
        let unexpected = || ProtocolError::unexpected(PROTOCOL, payload);
        let mut block = self.block.take().unwrap_or_else(|| HeaderBlock::new(frame));
        if !block.push(frame, payload)? {
            self.block = Some(block);
            return Ok(());
        }
        let Some(at) = self.find(block.stream) else { return Ok(()) };
        self.streams[at].read_status(&block).ok_or_else(unexpected)?;
        if block.is_last {
            let outcome = self.streams[at].outcome().ok_or_else(unexpected)?;
            self.end(at, outcome, outcomes);
        }
        Ok(())
    }

    fn end(&mut self, at: usize, outcome: Outcome, outcomes: &mut Vec<Outcome>) {
        self.streams.remove(at);
        self.ended.push_back(at);
        outcomes.push(outcome);
    }

    /// Ends the requests behind the last one that the server accepts.
    fn give_back_from(&mut self, last_stream: u32, outcomes: &mut Vec<Outcome>) {
        let is_behind = |stream: &Stream| stream.number > last_stream;
        while let Some(at) = self.streams.iter().position(is_behind) {
            self.end(at, Outcome::Untaken, outcomes);
        }
    }

    fn answer_ping(&mut self, payload: &[u8]) -> Result<(), ProtocolError> {
        if payload.len() != 8 || self.out.len() > OUT_BYTES_MAX {
            return Err(ProtocolError::unexpected(PROTOCOL, payload));
        }
        write_frame(PING, ACK, 0, payload, &mut self.out);
        Ok(())
    }

    fn read_settings(&mut self, payload: &[u8]) {
        for entry in payload.chunks_exact(6) {
            let (key, value) = entry.split_at(2);
            let value = value.iter().fold(0, |all, byte| (all << 8) | usize::from(*byte));
            if key == MAX_CONCURRENT_STREAMS.to_be_bytes() {
                self.streams_max = value;
            }
        }
        self.is_ready = true;
        write_frame(SETTINGS, ACK, 0, &[], &mut self.out);
    }

    /// Refuses more requests at a time than the server allows.
    fn check_streams(&self) -> Result<(), ProtocolError> {
        if self.streams.len() <= self.streams_max {
            return Ok(());
        }
        let problem = format!(
            "the server allows {} requests at a time on a connection: write --depth {0}",
            self.streams_max
        );
        Err(ProtocolError::unsupported(PROTOCOL, &problem))
    }

    /// Notes that the server accepts no more requests. Returns an error unless it ends the
    /// connection in an orderly way.
    fn go_away(&mut self, code: u32, message: &[u8]) -> Result<(), ProtocolError> {
        self.is_last = true;
        match code {
            0 => Ok(()),
            _ => {
                let message = message.escape_ascii().to_string();
                Err(ProtocolError::refused(PROTOCOL, reset_code(code), &message))
            }
        }
    }
}

/// Returns the code with which a server resets a stream or ends a connection (RFC 9113, section 7).
fn reset_code(code: u32) -> ErrorCode {
    ErrorCode::from_bytes(format!("RST:{code}").as_bytes()).unwrap_or(ErrorCode::RESET)
}

impl Stream {
    /// Reads the status from the header block of a response; later blocks are trailers.
    fn read_status(&mut self, block: &HeaderBlock) -> Option<()> {
        // An interim response is followed by another one.
        if self.status.is_some_and(|status| status >= 200) {
            return Some(());
        }
        self.status = Some(block.status()?);
        Some(())
    }

    fn outcome(&self) -> Option<Outcome> {
        Some(match self.status? {
            200..400 => Outcome::Done,
            status => Outcome::Error(ErrorCode::from_number(status)),
        })
    }
}

fn setting(key: u16, value: u32) -> impl Iterator<Item = u8> {
    key.to_be_bytes().into_iter().chain(value.to_be_bytes())
}

#[cfg(test)]
mod tests;
