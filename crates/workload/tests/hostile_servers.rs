//! Servers that stall, reset connections or answer garbage, and HTTP/2 servers that end streams
//! and connections early: every request is accounted for.

use lull_measure::Nanos;
use lull_workload::arrivals::{Process, Rate};
use lull_workload::client::{self, LoadConfig, LoadReport};
use lull_workload::target::{ScriptSource, Statements};
use rustix::net::sockopt::set_socket_linger;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Serves each connection by `talk`. Returns the port. The threads end with the test's process:
/// some of them stall on purpose.
fn serve(talk: impl Fn(&mut TcpStream) -> io::Result<()> + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let talk = Arc::new(talk);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let talk = Arc::clone(&talk);
            std::thread::spawn(move || talk(&mut stream));
        }
    });
    port
}

/// A load of 200 requests a second for a fifth of a second. It ends as soon as each request is
/// answered, lost or timed out.
fn load(address: &str) -> LoadConfig {
    let mut load = LoadConfig::new(address.parse().unwrap(), Rate::constant(200.0));
    load.process = Process::Constant;
    load.connections = 2;
    load.duration = Some(Nanos::from_millis(200));
    load.drain = Nanos::from_secs(60);
    load.preload = false;
    load
}

fn run(load: &LoadConfig) -> LoadReport {
    client::run(load, &AtomicBool::new(false)).unwrap()
}

/// Each request that was due is counted once.
fn assert_all_are_counted(report: &LoadReport) {
    let ended = report.completed_requests + report.failed_requests + report.timed_out_requests;
    assert_eq!(ended + report.outstanding_requests, report.due_requests, "{report}");
    assert!(report.due_requests > 0, "{report}");
}

/// A fault of a server in its response to a request.
#[derive(Clone, Copy)]
enum Fault {
    Stall,
    Reset,
    Garbage,
}

/// A protocol's address, and the server's part of what precedes a request.
type Protocol = (&'static str, fn(&mut TcpStream) -> io::Result<()>);

const PROTOCOLS: [Protocol; 6] = [
    ("http://127.0.0.1:PORT/", |_| Ok(())),
    ("h2c://127.0.0.1:PORT/", begin_http2),
    ("memcached://127.0.0.1:PORT", |_| Ok(())),
    ("redis://127.0.0.1:PORT", |_| Ok(())),
    ("postgres://u@127.0.0.1:PORT/d", |stream| {
        let login = stream.read(&mut [0; 4096])?;
        stream.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I")?;
        if login == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }),
    ("mysql://u@127.0.0.1:PORT/d", |stream| {
        let greeting = b"\x0a8.0.33\0\x01\0\0\0saltsalt\0\xff\xf7\x2d\x02\0\xff\x81\x15\
                         \0\0\0\0\0\0\0\0\0\0saltsaltsalt\0mysql_native_password\0";
        stream.write_all(&[&[greeting.len() as u8, 0, 0, 0][..], greeting].concat())?;
        let login = stream.read(&mut [0; 4096])?;
        stream.write_all(b"\x07\0\0\x02\0\0\0\x02\0\0\0")?;
        if login == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }),
];

/// Loads a server of each protocol that has this fault. Returns the reports.
fn load_with(fault: Fault, timeout: Nanos) -> Vec<LoadReport> {
    let loads = PROTOCOLS.map(|(address, begin)| {
        let port = serve(move |stream| {
            begin(stream)?;
            if address.starts_with("h2c") {
                next_request(stream)?;
            } else {
                stream.read(&mut [0; 4096]).map(drop)?;
            }
            match fault {
                Fault::Stall => {}
                // The end of the connection is then a reset.
                Fault::Reset => {
                    set_socket_linger(&*stream, Some(Duration::ZERO))?;
                    return Ok(());
                }
                Fault::Garbage => stream.write_all(b"\xff\xfe\0 what is this?\r\n\r\n")?,
            }
            io::copy(stream, &mut io::sink()).map(drop)
        });
        let place = tempfile::tempdir().unwrap();
        let script = place.path().join("script.sql");
        std::fs::write(&script, "SELECT 1;\n").unwrap();
        let mut load = load(&address.replace("PORT", &port.to_string()));
        load.timeout = timeout;
        load.target.database.script = ScriptSource::File(script);
        load.target.database.statements = Statements::Simple;
        run(&load)
    });
    loads.into()
}

#[test]
fn requests_to_a_server_that_stalls_time_out_whatever_the_protocol() {
    for report in load_with(Fault::Stall, Nanos::from_millis(100)) {
        assert_all_are_counted(&report);
        assert_eq!(report.timed_out_requests, report.due_requests, "{report}");
        assert_eq!(report.latency.count, report.due_requests, "they are in the tail: {report}");
    }
}

#[test]
fn connections_that_a_server_resets_fail_their_requests_whatever_the_protocol() {
    for report in load_with(Fault::Reset, Nanos::from_secs(2)) {
        assert_all_are_counted(&report);
        assert!(report.failed_requests > 0 && report.completed_requests == 0, "{report}");
        assert!(report.connection_losses >= report.failed_requests, "{report}");
        assert!(report.last_connection_loss.is_some(), "{report}");
    }
}

#[test]
fn garbage_is_no_answer_whatever_the_protocol() {
    for report in load_with(Fault::Garbage, Nanos::from_secs(2)) {
        assert_all_are_counted(&report);
        assert_eq!(report.completed_requests, 0, "{report}");
        if report.target.starts_with("mysql") {
            // These are the beginning of a packet of 64 KiB there, whose rest is missing.
            assert_eq!(report.timed_out_requests, report.due_requests, "{report}");
            continue;
        }
        assert!(report.failed_requests > 0 && report.connection_losses > 0, "{report}");
        let loss = report.last_connection_loss.as_deref().unwrap_or_default();
        assert!(loss.contains("is this a "), "{report}");
    }
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let head = [0, 0, payload.len() as u8, kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

/// The server's part of the beginning of a connection.
fn begin_http2(stream: &mut TcpStream) -> io::Result<()> {
    let mut preface = [0; 24];
    stream.read_exact(&mut preface)?;
    assert_eq!(&preface[..14], b"PRI * HTTP/2.0");
    stream.write_all(&frame(SETTINGS, 0, 0, &[]))
}

/// Reads frames up to the next request. Returns the number of its stream.
fn next_request(stream: &mut TcpStream) -> io::Result<u32> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let [a, b, c, kind, _, number @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload)?;
        if kind == HEADERS {
            return Ok(u32::from_be_bytes(number));
        }
    }
}

/// A page whose status is in two frames, neither of which has all of it.
fn page(stream: u32) -> Vec<u8> {
    let frames = [
        frame(HEADERS, 0, stream, &[0x48, 3, b'2']),
        frame(CONTINUATION, 0, stream, b"0"),
        frame(CONTINUATION, END_HEADERS, stream, b"0"),
        frame(DATA, END_STREAM, stream, b"page"),
    ];
    frames.concat()
}

#[test]
fn http_2_is_answered_in_header_blocks_of_several_frames() {
    let port = serve(|stream| {
        begin_http2(stream)?;
        loop {
            let number = next_request(stream)?;
            stream.write_all(&page(number))?;
        }
    });
    let report = run(&LoadConfig { depth: 4, ..load(&format!("h2c://127.0.0.1:{port}/")) });
    assert_all_are_counted(&report);
    assert_eq!(report.completed_requests, report.due_requests, "{report}");
    assert_eq!((report.connection_losses, report.announced_closes), (0, 0), "{report}");
}

#[test]
fn streams_that_an_http_2_server_resets_are_counted_by_their_code() {
    const CANCEL: [u8; 4] = [0, 0, 0, 8];
    let port = serve(|stream| {
        begin_http2(stream)?;
        loop {
            let number = next_request(stream)?;
            let answer = match number % 4 {
                1 => frame(RST_STREAM, 0, number, &CANCEL),
                _ => page(number),
            };
            stream.write_all(&answer)?;
        }
    });
    let report = run(&LoadConfig { depth: 4, ..load(&format!("h2c://127.0.0.1:{port}/")) });
    assert_all_are_counted(&report);
    assert!(report.failed_requests > 0 && report.completed_requests > 0, "{report}");
    assert_eq!(report.completed_requests + report.failed_requests, report.due_requests, "{report}");
    let [error] = &report.server_errors[..] else { panic!("{report}") };
    assert_eq!((&*error.code, error.failed_requests), ("RST:8", report.failed_requests));
    assert_eq!(report.connection_losses, 0, "{report}");
}

#[test]
fn requests_that_an_http_2_server_does_not_take_are_sent_again_and_counted() {
    let ended = AtomicUsize::new(0);
    let port = serve(move |stream| {
        begin_http2(stream)?;
        let mut number = next_request(stream)?;
        // The first two connections end: they answer the first request of three.
        if ended.fetch_add(1, Ordering::Relaxed) < 2 {
            next_request(stream)?;
            next_request(stream)?;
            let last = [number.to_be_bytes(), [0; 4]].concat();
            stream.write_all(&[page(number), frame(GOAWAY, 0, 0, &last)].concat())?;
            return io::copy(stream, &mut io::sink()).map(drop);
        }
        loop {
            stream.write_all(&page(number))?;
            number = next_request(stream)?;
        }
    });
    let load = LoadConfig { depth: 8, ..load(&format!("h2c://127.0.0.1:{port}/")) };
    let report = run(&load);
    assert_all_are_counted(&report);
    assert_eq!(report.completed_requests, report.due_requests, "{report}");
    assert_eq!((report.announced_closes, report.connection_losses), (2, 0), "{report}");
    assert!(report.resent_requests >= 4, "two of each connection at least: {report}");
    assert_eq!(report.sent_requests, report.due_requests, "{report}");
}

#[test]
fn an_http_2_server_that_ends_a_connection_for_a_reason_is_quoted() {
    let port = serve(|stream| {
        begin_http2(stream)?;
        next_request(stream)?;
        let reason = b"\0\0\0\0\0\0\0\x0bcalm down";
        stream.write_all(&frame(GOAWAY, 0, 0, reason))?;
        io::copy(stream, &mut io::sink()).map(drop)
    });
    let report = run(&load(&format!("h2c://127.0.0.1:{port}/")));
    assert_all_are_counted(&report);
    assert!(report.failed_requests > 0 && report.completed_requests == 0, "{report}");
    assert!(report.connection_losses > 0 && report.announced_closes == 0, "{report}");
    let loss = report.last_connection_loss.as_deref().unwrap_or_default();
    assert!(loss.contains("RST:11") && loss.contains("calm down"), "{report}");
}
