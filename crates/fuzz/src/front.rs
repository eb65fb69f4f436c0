//! The front end from both sides: requests of HTTP clients, and its messages to the agent.

use lull_agent::frontend::take_messages;
use lull_agent::live::loopback::Loopback;
use std::cell::LazyCell;
use std::io;

const NAME: &str = "fuzz.example";
const STRANGER: &str = "evil.example";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

const METHODS: [&str; 4] = ["GET", "POST", "HEAD", "PUT"];
const PATHS: [&str; 10] = [
    "/",
    "/api/control",
    "/api/run",
    "/api/history?series=tail_latency_seconds&epochs=3",
    "/api/epoch",
    "/api/missing",
    "/api/events",
    "/metrics",
    "/healthz",
    "http://evil.example/api/run",
];
const BODIES: [&str; 3] =
    [r#"{"do":"pause"}"#, r#"{"do":"policy","name":"arq"}"#, r#"{"do":"halt"}"#];
/// Headers that are added by a bit each.
const HEADERS: [&str; 4] = [
    "Content-Type: application/json\r\n",
    "Origin: http://evil.example\r\n",
    "Sec-Fetch-Site: cross-site\r\n",
    "Transfer-Encoding: chunked\r\n",
];
const HEALTH: &str = "GET /healthz HTTP/1.1\r\nHost: fuzz.example\r\nConnection: close\r\n\r\n";

thread_local! {
    static PAGE: LazyCell<io::Result<Loopback>> =
        LazyCell::new(|| Loopback::start(NAME, TOKEN));
}

/// A request, and the results that it must not have.
struct Sent {
    bytes: Vec<u8>,
    is_strange: bool,
    has_token: bool,
}

/// Serves one connection; afterwards another client is answered.
pub(crate) fn http(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let sent = if choice & 1 == 0 { raw(rest) } else { request(rest) };
    PAGE.with(|page| match &**page {
        Ok(page) => {
            if let Err(error) = check_exchange(page, &sent) {
                panic!("the page does not accept: {error}");
            }
        }
        Err(error) => panic!("no port of this machine is free: {error}"),
    });
}

fn check_exchange(page: &Loopback, sent: &Sent) -> io::Result<()> {
    let received = page.exchange(&sent.bytes, false)?;
    // This answer shows that the server has finished with the former client.
    let health = page.exchange(HEALTH.as_bytes(), true)?;
    assert!(health.starts_with(b"HTTP/1.1 503"), "no epoch is over yet: {health:?}");
    let passed = page.take_passed();
    assert!(received.is_empty() || received.starts_with(b"HTTP/1."), "{received:?}");
    assert!(passed.iter().all(|(token, _)| token == TOKEN), "{passed:?}");
    assert!(sent.has_token || passed.is_empty(), "{passed:?}");
    if sent.is_strange {
        assert!(!received[..received.len().min(12)].ends_with(b" 200"), "{received:?}");
        assert!(passed.is_empty(), "{passed:?}");
    }
    Ok(())
}

/// Bytes as they are.
fn raw(bytes: &[u8]) -> Sent {
    let has_token = bytes.windows(TOKEN.len()).any(|part| part == TOKEN.as_bytes());
    Sent { bytes: bytes.to_owned(), is_strange: false, has_token }
}

/// A request of which bytes choose the parts. The rest is its body, or more headers.
fn request(bytes: &[u8]) -> Sent {
    let mut rest = bytes.iter().copied();
    let mut next = || usize::from(rest.next().unwrap_or(0));
    let method = METHODS[next() % METHODS.len()];
    let path = PATHS[next() % PATHS.len()];
    let (host, token, headers, body) = (next(), next(), next(), next());
    let wrong_length = next();
    let more: Vec<u8> = rest.collect();
    let host = [NAME, STRANGER, "127.0.0.1:80", "LOCALHOST"][host % 4];
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n");
    if token & 3 != 0 {
        let token = if token & 1 == 1 { TOKEN } else { "wrong" };
        text += &format!("Authorization: Bearer {token}\r\n");
    }
    for (bit, header) in HEADERS.iter().enumerate() {
        text += if headers >> bit & 1 == 1 { header } else { "" };
    }
    let mut bytes = text.into_bytes();
    let body = BODIES.get(body % 4).map_or(more.as_slice(), |body| body.as_bytes());
    if headers & 0x10 != 0 {
        // The end of the head is one of them, or never comes.
        bytes.extend(&more);
    } else {
        let length = body.len() + if wrong_length & 1 == 1 { wrong_length } else { 0 };
        bytes.extend(format!("Content-Length: {length}\r\n\r\n").into_bytes());
        bytes.extend(body);
    }
    let has_token = bytes.windows(TOKEN.len()).any(|part| part == TOKEN.as_bytes());
    // More headers may be a second request with another host.
    let is_strange = (host == STRANGER || path.contains(STRANGER)) && more.is_empty();
    Sent { bytes, is_strange, has_token }
}

/// Messages of a front end that was taken over. By the first byte, the bytes come in pieces of
/// some length, and either contain their lengths or are the contents of one message.
pub(crate) fn frontend(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let apps = ["a", "b"].map(str::to_owned);
    let piece = usize::from(choice >> 1) * 16;
    if choice & 1 == 0 {
        take_messages(rest, piece, &apps);
        return;
    }
    // Inputs are shorter than a message may be.
    let length = (rest.len() as u32).to_le_bytes();
    take_messages(&[&length[..], rest].concat(), piece, &apps);
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_agent::frontend::sample_messages;
    use std::path::Path;

    #[test]
    fn the_seeds_are_messages_that_pass() {
        let seed = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/frontend/messages");
        let wanted = [&[6][..], &sample_messages()].concat();
        if std::env::var_os("LULL_FUZZ_WRITE_SEEDS").is_some() {
            std::fs::write(&seed, &wanted).unwrap();
        }
        assert_eq!(std::fs::read(&seed).unwrap(), wanted, "LULL_FUZZ_WRITE_SEEDS=1 writes it");
        let apps = ["a", "b"].map(str::to_owned);
        assert_eq!(take_messages(&wanted[1..], 7, &apps), 6);
    }

    #[test]
    fn an_order_passes_with_its_token_and_host_only() {
        let order = |host: u8, token: u8| {
            let sent = request(&[1, 1, host, token, 1, 0, 0]);
            let close = String::from_utf8(sent.bytes).unwrap();
            let close = close.replacen("\r\n", "\r\nConnection: close\r\n", 1);
            PAGE.with(|page| {
                let page = page.as_ref().unwrap();
                (page.exchange(close.as_bytes(), true).unwrap(), page.take_passed())
            })
        };
        let (received, passed) = order(0, 1);
        assert!(received.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&received));
        assert_eq!(passed.len(), 1);
        for (host, token) in [(1, 1), (0, 2), (0, 0)] {
            let (received, passed) = order(host, token);
            assert!(received.starts_with(b"HTTP/1.1 4") && passed.is_empty());
        }
    }
}
