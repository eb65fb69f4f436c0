//! Replies of servers to the load client, in each of its protocols.

use lull_measure::Nanos;
use lull_workload::Generator;
use lull_workload::target::{MAX_HEAD_BYTES, Outcome, Target, TargetConfig};
use rand::SeedableRng;

/// The first byte of an input selects one of them.
const SERVERS: [&str; 7] = [
    "memcached://host",
    "redis://host",
    "http://host/",
    "h2c://host/",
    "options://host",
    "mysql://user@host/test",
    "postgres://user@host/test",
];
/// Requests under way at a time.
const REQUESTS_MAX: usize = 4;

/// A server whose replies are the bytes behind the first two, in pieces whose size the second
/// gives.
pub(crate) fn replies(bytes: &[u8]) {
    let [server, piece, replies @ ..] = bytes else { return };
    let server = SERVERS[usize::from(*server) % SERVERS.len()];
    if let Some(mut target) = target(server) {
        read(target.as_mut(), usize::from(*piece).max(1), replies);
    }
}

fn target(server: &str) -> Option<Box<dyn Target>> {
    let mut config = TargetConfig::new(server.parse().ok()?);
    // Sizes of keys are drawn beforehand.
    config.etc.records = 10;
    config.build().ok()
}

/// Sends requests and reads the replies, as a connection of the client does.
fn read(target: &mut dyn Target, piece: usize, replies: &[u8]) {
    let (mut decoder, mut rng) = (target.decoder(), Generator::seed_from_u64(1));
    let (mut out, mut held, mut outcomes) = (Vec::new(), Vec::new(), Vec::new());
    let mut under_way = 0;
    decoder.proceed(Nanos::ZERO, &mut outcomes, &mut out);
    for bytes in replies.chunks(piece) {
        if decoder.is_ready() && !decoder.is_last() && under_way < REQUESTS_MAX {
            under_way += 1;
            out.clear();
            if !decoder.begin(&mut rng) {
                target.encode(&mut rng, &mut out);
                decoder.number(&mut out);
            }
        }
        held.extend_from_slice(bytes);
        let Ok(used) = decoder.decode(&held, &mut outcomes) else { return };
        held.drain(..used);
        assert!(held.len() <= MAX_HEAD_BYTES, "{} bytes are kept", held.len());
        let now = decoder.wakes_at().unwrap_or_default();
        decoder.proceed(now, &mut outcomes, &mut out);
        for outcome in outcomes.drain(..) {
            if matches!(outcome, Outcome::Retried(_)) {
                continue;
            }
            if under_way == 0 {
                // The client drops a connection with more replies than requests.
                return;
            }
            let place = decoder.position();
            assert!(place < under_way, "the reply to request {place} of {under_way}");
            under_way -= 1;
        }
    }
    decoder.close();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_can_be_sent_requests() {
        for server in SERVERS {
            assert!(target(server).is_some(), "{server}");
        }
    }
}
