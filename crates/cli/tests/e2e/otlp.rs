//! Exports by OTLP to a running agent: what counts, what is refused, what is left of a sender.

use crate::runs::attached;
use crate::support::agent::Agent;
use crate::support::http::{Answer, address_of, get};
use crate::support::scene::Scene;
use crate::support::victim::Victim;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{SystemTime, UNIX_EPOCH};

/// A field of protobuf that holds a message or text of less than 2^14 bytes.
fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let length = [bytes.len() as u8 | 128, (bytes.len() >> 7) as u8];
    [&[tag << 3 | 2][..], &length[..], bytes].concat()
}

/// A field of eight bytes.
fn fixed(tag: u8, value: u64) -> Vec<u8> {
    [&[tag << 3 | 1][..], &value.to_le_bytes()[..]].concat()
}

/// An attribute with a text.
fn attribute(key: &str, value: &str) -> Vec<u8> {
    [field(1, key.as_bytes()), field(2, &field(1, value.as_bytes()))].concat()
}

/// A cumulative histogram of a service with this many requests of at most 10 ms, and at most
/// 100 ms, which started two seconds ago.
fn export(service: &str, counts: [u64; 2]) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = u64::try_from(now.as_nanos()).unwrap();
    let numbers = |all: &[u64]| all.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>();
    let point = [
        fixed(2, 1_700_000_000_000_000_000),
        fixed(3, now),
        fixed(4, counts.iter().sum()),
        field(6, &numbers(&[counts[0], counts[1], 0])),
        field(7, &numbers(&[0.01_f64.to_bits(), 0.1_f64.to_bits()])),
    ];
    let histogram = [field(1, &point.concat()), vec![2 << 3, 2]].concat();
    let name = field(1, b"http.server.request.duration");
    let metric = [name, field(3, b"s"), field(9, &histogram)].concat();
    let resource = field(1, &field(1, &attribute("service.name", service)));
    field(1, &[resource, field(2, &field(2, &metric))].concat())
}

/// Sends a body to the receiver.
fn post(address: &str, head: &str, body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let request = format!("POST /v1/metrics HTTP/1.0\r\nContent-Length: {length}\r\n{head}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    // A body that is too long is refused before all of it is read.
    let _ = stream.write_all(body);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or(0);
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// Starts an agent with an app whose latency arrives by OTLP. Returns the addresses of the receiver
/// and of the page.
fn receiving(scene: &Scene, server: &Victim, batch: &Victim) -> (Agent, String, String) {
    let lines = "http = \"127.0.0.1:0\"\notlp = \"127.0.0.1:0\"\nsilence = \"1h\"";
    let source = "ideal = \"10us\"\nlatency = \"otlp\"\notlp = { service = \"shop\" }";
    let text = attached("unmanaged", server, batch).replacen("ideal = \"10us\"", source, 1);
    let mut agent = scene.agent(&scene.config(lines, &text));
    let page = address_of(&mut agent);
    let printed = agent.err();
    let receiver = printed.split("OTLP at http://").nth(1).unwrap().split('/').next().unwrap();
    (agent, receiver.to_owned(), page)
}

const PROTOBUF: &str = "Content-Type: application/x-protobuf\r\n";

#[test]
fn requests_that_a_service_exports_are_counted_with_the_error_of_their_tail() {
    let scene = Scene::new();
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let (mut agent, receiver, page) = receiving(&scene, &server, &batch);
    let head = format!("Host: {receiver}\r\n{PROTOBUF}");
    let value = |name: &str| {
        let metrics = get(&page, "/metrics").body;
        let start = format!("{name}{{app=\"server\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&start).map(str::to_owned));
        line.map(|value| value.parse::<f64>().unwrap())
    };
    // Counting starts at the first export of an old series.
    assert_eq!(post(&receiver, &head, &export("shop", [500, 0])).status, 200);
    let mut counts = [500, 0];
    agent.wait_for("a resolution of the tail", || {
        counts = [counts[0] + 10, counts[1] + 10];
        assert_eq!(post(&receiver, &head, &export("shop", counts)).status, 200);
        let resolution = value("lull_tail_resolution_seconds");
        resolution.is_some_and(|width| (width - 0.09).abs() < 1e-9)
    });
    let tail = value("lull_tail_latency_seconds").unwrap();
    assert!((0.01..=0.1).contains(&tail), "{tail}");
    let new = (counts[0] - 500 + counts[1]) as f64;
    agent.wait_for("all requests", || value("lull_requests_total") == Some(new));
    agent.interrupt().well();
    server.assert_as_before();
    batch.assert_as_before();
}

#[test]
fn what_is_no_export_is_refused_and_the_agent_goes_on() {
    let scene = Scene::new();
    let (server, batch) = (Victim::server(), Victim::sleeper());
    let (mut agent, receiver, page) = receiving(&scene, &server, &batch);
    let host = format!("Host: {receiver}\r\n");
    let json = format!("{host}Content-Type: application/json\r\n");
    let text = format!("{host}Content-Type: text/plain\r\n");
    let protobuf = format!("{host}{PROTOBUF}");
    let gzip = format!("{protobuf}Content-Encoding: gzip\r\n");
    let bomb = {
        // 64 MiB of zeros are 64 KiB of gzip.
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        (0..64).for_each(|_| packed.write_all(&vec![0; 1 << 20]).unwrap());
        packed.finish().unwrap()
    };
    let whole = export("shop", [1, 1]);
    let foreign = format!("Host: evil.example\r\n{PROTOBUF}");
    let cases: [(&str, &[u8], u16, &str); 8] = [
        (&json, b"{}", 200, "{}"),
        (&json, b"{\"resourceMetrics\":7}", 400, "\"message\":\"it is not an export as JSON"),
        (&text, b"{}", 415, "application/json"),
        (&host, &whole, 415, "Content-Type"),
        (&protobuf, &whole[..whole.len() - 3], 400, "longer than its message"),
        (&gzip, &whole, 400, "not gzip"),
        (&gzip, &bomb, 400, "16 MiB"),
        (&foreign, &whole, 421, ""),
    ];
    for (head, body, status, words) in cases {
        let answer = post(&receiver, head, body);
        assert!(answer.status == status && answer.body.contains(words), "{head}: {answer:?}");
    }
    // The answer may be lost with the rest of the body, which the server does not read.
    let long = post(&receiver, &protobuf, &vec![0; 5 << 20]).status;
    assert!([413, 0].contains(&long), "{long}");
    assert_eq!(post(&receiver, &protobuf, &export("other", [1, 1])).status, 200);
    agent.wait_for("an epoch", || get(&page, "/healthz").status == 200);
    agent.interrupt().well();
}
