//! Bytes of connections: push and register socket, the wire protocols of servers, and replies of
//! Prometheus and systemd.

use lull_agent::parse_prometheus_reply;
use lull_control::{AppId, AppSpec};
use lull_host::drivers::systemd::read_message;
use lull_host::gauges::push::PushGauge;
use lull_host::register::parse_datagram;
use lull_measure::push::COUNT_MAX;
use lull_measure::register::{self, Answer};
use lull_measure::{Nanos, Percentile};
use lull_oncall::Names;
use lull_oncall::protocol::{Protocol, Reader, SharedReader};
use std::io::{self, ErrorKind, Write};
use std::os::unix::net::UnixStream;

/// The agent's clock; the windows of the seeds end shortly before.
const NOW: Nanos = Nanos::from_secs(100);

/// An export that arrives at the receiver of OTLP, in which no more requests are counted than it
/// can hold.
pub(crate) fn otlp(bytes: &[u8]) {
    if let Ok((counted, refused)) = lull_agent::otlp::read_export(bytes) {
        let points = bytes.len() as u64;
        assert!(counted <= points.saturating_mul(COUNT_MAX), "{counted} requests");
        assert!(refused <= points, "{refused} points");
    }
}

/// A line of a process that registers, or of an agent that answers; both are read as they were
/// written. What goes to the agent is no longer than it receives.
pub(crate) fn register(bytes: &[u8]) {
    if let Ok(request) = register::parse(bytes) {
        assert_eq!(register::parse(request.to_line().as_bytes()), Ok(request));
    }
    if let Ok(answer) = Answer::parse(bytes) {
        assert_eq!(Answer::parse(answer.to_line().as_bytes()), Ok(answer));
    }
    let connection = 7_u64.to_le_bytes();
    let parsed = parse_datagram(&[&connection[..], bytes].concat());
    let parsed = parsed.expect("a datagram of an agent is parsed");
    assert!(parsed.starts_with(&connection) && parsed.len() < 512, "{parsed:?}");
}

/// All that a Prometheus server has sent. A number is none where the query has no value.
pub(crate) fn prometheus(bytes: &[u8]) {
    if let Ok(number) = parse_prometheus_reply(bytes, 1_800_000_000.0) {
        assert!(number.is_none_or(|number| !number.is_nan()));
    }
}

/// A message of systemd, with no more values than bytes.
pub(crate) fn systemd(bytes: &[u8]) {
    assert!(read_message(bytes).is_none_or(|values| values <= bytes.len()));
}

/// A client that pushes the bytes and leaves, and the two epochs after it.
pub(crate) fn push(bytes: &[u8]) {
    push_and_leave(bytes).expect("a socket of our own can be listened at and reached");
}

fn push_and_leave(bytes: &[u8]) -> io::Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("push");
    let lc = AppSpec::latency_critical("memcached", Percentile::P95, Nanos::from_millis(4));
    let apps = [lc, AppSpec::best_effort("burner")];
    let mut gauge = PushGauge::listen(&path, &apps).map_err(io::Error::other)?;
    let client = UnixStream::connect(&path)?;
    client.set_nonblocking(true)?;
    deliver(&mut gauge, client, bytes);
    for epoch in 0..2 {
        let deadline = NOW + Nanos::from_secs(epoch);
        gauge.drain(deadline, deadline);
        if let Ok(seen) = gauge.latency(AppId(0), deadline) {
            assert!(seen.offered_per_s.is_finite() && seen.completed_per_s.is_finite());
        }
        let _ = gauge.progress(AppId(1), deadline);
    }
    let _ = gauge.take_notices();
    Ok(())
}

/// Writes what the socket takes, and lets the gauge read in between.
fn deliver(gauge: &mut PushGauge, mut client: UnixStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match client.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => gauge.drain(NOW, NOW),
            // The gauge has dropped the client.
            Err(_) => return,
        }
    }
}

/// A connection: the first byte chooses the protocol; then each piece has a byte for its direction
/// and length. A reader that is packed and unpacked continues as before, and a packed one reads
/// common bytes as the full reader does.
pub(crate) fn protocol(bytes: &[u8]) {
    let Some((choice, mut rest)) = bytes.split_first() else { return };
    let protocol = Protocol::ALL[usize::from(*choice) % Protocol::ALL.len()];
    let mut reader = Reader::new(protocol);
    while let Some((head, pieces)) = rest.split_first() {
        let (piece, next) = pieces.split_at(usize::from(head >> 1).min(pieces.len()));
        let mut unpacked = Reader::unpack(reader.pack());
        let shared = SharedReader::new();
        shared.store(reader);
        if head & 1 == 0 {
            let (mut ours, mut theirs) = (Names::default(), Names::default());
            let request = reader.received(piece, &mut theirs);
            assert_eq!(unpacked.received(piece, &mut ours), request);
            assert_eq!(ours, theirs);
            if let Some(common) = shared.received_common(piece) {
                assert_eq!(common, (request, reader.in_transaction()));
                assert_eq!(shared.load(), reader);
            }
        } else {
            let is_end = reader.begins_receive();
            assert_eq!(unpacked.begins_receive(), is_end);
            assert_eq!(shared.begins_receive().is_some(), is_end);
            let (mut ours, mut theirs) = (Names::default(), Names::default());
            assert_eq!(unpacked.sent(piece, &mut ours), reader.sent(piece, &mut theirs));
            assert_eq!(ours, theirs);
            if shared.sent_common(piece) {
                assert_eq!(shared.load(), reader);
            }
        }
        assert_eq!(unpacked, reader);
        rest = next;
    }
}
