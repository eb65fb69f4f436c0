//! The client against servers that stall, die, lie and speak HTTP.

use lull_measure::Nanos;
use lull_measure::push::{LineReader, MAX_LINE_BYTES, Message};
use lull_workload::arrivals::{Process, Rate};
use lull_workload::client::{self, LoadConfig, LoadError, LoadReport};
use lull_workload::push::PushConfig;
use lull_workload::selfcheck::{ReferenceServer, Stall};
use lull_workload::target::Address;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

fn load(address: Address, per_s: f64, millis: u64) -> LoadConfig {
    let mut load = LoadConfig::new(address, Rate::constant(per_s));
    load.process = Process::Constant;
    load.duration = Some(Nanos::from_millis(millis));
    // Ends as soon as all are answered; a busy machine may take its time.
    load.drain = Nanos::from_secs(20);
    load
}

fn run(load: &LoadConfig) -> LoadReport {
    client::run(load, &AtomicBool::new(false)).unwrap()
}

/// Sets its flag when dropped, so that a failed assertion ends the servers too.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn with_reference(stall: Option<Stall>, body: impl FnOnce(SocketAddr)) {
    let server = ReferenceServer::bind(Nanos::ZERO, stall).unwrap();
    let (address, stop) = (server.address(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _guard = StopOnDrop(&stop);
        scope.spawn(|| server.run(&stop).unwrap());
        body(address);
    });
}

#[test]
fn a_recording_is_sent_request_by_request_on_any_number_of_threads() {
    let mut recording = tempfile::NamedTempFile::new().unwrap();
    for number in 0..100 {
        writeln!(recording, "{:.3},/page", 1_700_000_000.0 + 0.002 * f64::from(number)).unwrap();
    }
    with_reference(None, |address| {
        for threads in [1, 3] {
            let replay = Some(recording.path().to_owned());
            let open = load(Address::options(address), 1.0, 1);
            let load = LoadConfig { rate: None, duration: None, replay, threads, ..open };
            let report = run(&load);
            assert_eq!((report.due_requests, report.completed_requests), (100, 100), "{report}");
            assert_eq!(report.process.as_deref(), Some("recorded"));
            assert!(report.rate.starts_with("replay:") && report.corrected.is_none(), "{report}");
        }
    });
}

#[test]
fn requests_due_while_the_server_stalls_are_charged_to_it() {
    let stall = Stall { after: 200, length: Nanos::from_millis(200) };
    with_reference(Some(stall), |address| {
        let load = LoadConfig { connections: 4, ..load(Address::options(address), 1_000.0, 800) };
        let report = run(&load);
        assert_eq!((report.due_requests, report.completed_requests), (799, 799), "{report}");
        // One was due every millisecond of the stall, and waited for its rest. A
        // busy machine only adds to these.
        for (bound_ms, least) in [(20, 170), (100, 90), (150, 40)] {
            let above = report.latencies.count_above(Nanos::from_millis(bound_ms));
            assert!(above >= least, "{above} above {bound_ms} ms: {report}");
        }
        // A client that waits for replies would have seen the stall once for each
        // connection, which is what the time from the write shows.
        assert!(report.wait.max_seconds.unwrap() > 0.1, "{report}");
        assert!(report.service.p95_seconds < report.latency.p95_seconds, "{report}");
    });
}

#[test]
fn a_closed_loop_sees_a_stall_once_and_its_correction_charges_it_in_full() {
    let stall = Stall { after: 200, length: Nanos::from_millis(200) };
    with_reference(Some(stall), |address| {
        let mut load = LoadConfig::closed(Address::options(address));
        load.connections = 1;
        load.duration = Some(Nanos::from_millis(800));
        load.drain = Nanos::from_secs(20);
        let report = run(&load);
        assert_eq!(report.due_requests, report.completed_requests, "{report}");
        assert!(report.completed_requests > 200, "{report}");
        assert!(report.latencies.count_above(Nanos::from_millis(150)) >= 1, "{report}");
        let corrected = report.corrected.unwrap();
        assert!(corrected.count > report.latency.count, "{report}");
        assert!(corrected.p99_seconds > report.latency.p99_seconds, "{report}");
    });
}

#[test]
fn windows_add_up_to_the_total_and_warm_up_is_left_out() {
    with_reference(None, |address| {
        let mut load = load(Address::options(address), 500.0, 600);
        let all = run(&load);
        let sum =
            |count: fn(&client::WindowReport) -> u64| all.windows.iter().map(count).sum::<u64>();
        assert_eq!(sum(|window| window.due_requests), all.due_requests);
        assert_eq!(sum(|window| window.completed_requests), all.completed_requests);
        assert_eq!(sum(|window| window.latency.count), all.latency.count);
        assert_eq!(all.dropped_windows, 0);
        load.warmup = Nanos::from_millis(400);
        let part = run(&load);
        // Due at 400, 402, ... 598 ms.
        assert_eq!((all.due_requests, part.due_requests), (299, 100));
        assert_eq!(part.latency.count, part.completed_requests);
    });
}

#[test]
fn several_threads_send_the_same_load_as_one() {
    with_reference(None, |address| {
        let mut load = load(Address::options(address), 1_000.0, 600);
        load.process = Process::Poisson;
        let one = run(&load);
        load.threads = 3;
        let three = run(&load);
        assert_eq!((one.due_requests, one.threads), (three.due_requests, 1));
        assert_eq!((three.completed_requests, three.threads), (three.due_requests, 3));
        let due = three.windows.iter().map(|window| window.due_requests);
        assert_eq!(due.sum::<u64>(), three.due_requests);
        assert_eq!(three.latency.count, three.completed_requests);
        assert_eq!(three.dropped_windows, 0);
        // Windows of the threads are put together, and not reported apart.
        assert!((5..=9).contains(&three.windows.len()), "{}", three.windows.len());
    });
}

#[test]
fn the_same_seed_makes_the_same_requests_due() {
    with_reference(None, |address| {
        let mut load = load(Address::options(address), 400.0, 300);
        load.process = Process::Poisson;
        assert_eq!(run(&load).due_requests, run(&load).due_requests);
    });
}

#[test]
fn a_stop_ends_an_endless_load() {
    with_reference(None, |address| {
        let (stop, mut load) = (AtomicBool::new(false), load(Address::options(address), 500.0, 1));
        load.duration = None;
        let mut windows = 0;
        let report = client::run_watched(&load, &stop, |_, _| {
            windows += 1;
            stop.store(windows >= 2, Ordering::Relaxed);
        })
        .unwrap();
        assert!(report.due_requests > 50 && windows >= 2, "{report}");
    });
}

#[test]
fn a_missing_server_is_reported_at_once() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let error = client::run(&load(Address::options(free), 10.0, 100), &AtomicBool::new(false));
    let Err(error @ LoadError::Unreachable { .. }) = error else { panic!("{error:?}") };
    assert!(error.to_string().contains("is the server running"), "{error}");
}

/// A server of one thread a connection, each running `talk` until it returns.
fn with_server(talk: impl Fn(TcpStream) + Sync, body: impl FnOnce(SocketAddr)) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (talk, stop) = (&talk, &stop);
        scope.spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                scope.spawn(move || talk(stream));
            }
        });
        let _wake = WakeOnDrop(address, stop);
        body(address);
    });
}

struct WakeOnDrop<'a>(SocketAddr, &'a AtomicBool);

impl Drop for WakeOnDrop<'_> {
    fn drop(&mut self) {
        self.1.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.0);
    }
}

/// Reads up to an end of line; whether there was one.
fn skip_line(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    while stream.read(&mut byte).is_ok_and(|count| count == 1) {
        if byte[0] == b'\n' {
            return true;
        }
    }
    false
}

#[test]
fn lost_connections_are_made_again_and_their_requests_counted() {
    // Answers three requests, hangs up on the fourth.
    let talk = |mut stream: TcpStream| {
        for _ in 0..3 {
            if !skip_line(&mut stream) || stream.write_all(b"OK 0 0 0 0\n").is_err() {
                return;
            }
        }
        skip_line(&mut stream);
    };
    with_server(talk, |address| {
        let load = LoadConfig { connections: 2, ..load(Address::options(address), 200.0, 600) };
        let report = run(&load);
        assert!(report.failed_requests >= 2 && report.completed_requests >= 6, "{report}");
        assert!(report.connection_losses >= report.failed_requests, "{report}");
        assert_eq!(report.completed_requests + report.failed_requests, 119, "{report}");
    });
}

#[test]
fn a_server_that_speaks_something_else_fails_requests_and_says_why() {
    let talk = |mut stream: TcpStream| {
        skip_line(&mut stream);
        let _ = stream.write_all(b"SSH-2.0-nonsense\r\n");
    };
    with_server(talk, |address| {
        let report = run(&load(Address::options(address), 100.0, 300));
        assert_eq!(report.completed_requests, 0);
        let why = report.last_connection_loss.unwrap();
        assert!(why.contains("lull options"), "{why}");
    });
}

#[test]
fn requests_that_are_never_answered_time_out_and_are_in_the_tail() {
    let talk = |mut stream: TcpStream| while skip_line(&mut stream) {};
    with_server(talk, |address| {
        let mut load = load(Address::options(address), 200.0, 500);
        (load.connections, load.timeout) = (2, Nanos::from_millis(150));
        let report = run(&load);
        assert_eq!((report.completed_requests, report.sent_requests), (0, 2), "{report}");
        assert_eq!(report.timed_out_requests + report.outstanding_requests, 99, "{report}");
        assert!(report.timed_out_requests > 50, "{report}");
        let tail = report.latencies.count_above(Nanos::from_millis(149));
        assert_eq!(tail, report.timed_out_requests);
    });
}

#[test]
fn http_is_loaded_over_kept_and_over_closed_connections() {
    for (keep, reply) in [
        (
            true,
            &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"[..],
        ),
        (false, b"HTTP/1.0 200 OK\r\n\r\nhello until the end"),
    ] {
        let talk = move |mut stream: TcpStream| {
            let mut head = Vec::new();
            let mut byte = [0];
            while stream.read(&mut byte).is_ok_and(|count| count == 1) {
                head.push(byte[0]);
                if head.ends_with(b"\r\n\r\n") {
                    assert!(head.starts_with(b"GET /page?x=1 HTTP/1.1\r\nHost: 127.0.0.1:"));
                    head.clear();
                    if stream.write_all(reply).is_err() || !keep {
                        return;
                    }
                }
            }
        };
        with_server(talk, |address| {
            let page = Address::http(address, "/page?x=1");
            let report = run(&LoadConfig { connections: 4, ..load(page, 200.0, 400) });
            assert_eq!((report.completed_requests, report.failed_requests), (79, 0), "{report}");
            assert_eq!(report.connection_losses, 0, "{report}");
        });
    }
}

#[test]
fn an_agent_receives_every_window() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("agent");
    let listener = UnixListener::bind(&socket).unwrap();
    with_reference(None, |address| {
        let mut load = load(Address::options(address), 500.0, 450);
        load.push = Some(PushConfig { socket, app: "options".to_owned() });
        let report = run(&load);
        let (mut agent, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        agent.read_to_end(&mut bytes).unwrap();
        let windows = decode(&bytes);
        assert_eq!(windows.len(), report.windows.len());
        assert_eq!(report.pushed.unwrap().sent_messages, windows.len() as u64);
        let mut end = Nanos::ZERO;
        let (mut due, mut answered) = (0, 0);
        for window in windows {
            let Message::Latency(window) = window else { panic!("another kind") };
            assert_eq!(window.app, "options");
            assert!(window.start_ns >= end, "windows overlap");
            end = window.start_ns + window.length_ns;
            due += window.due;
            answered += window.histogram.count();
        }
        assert_eq!((due, answered), (report.due_requests, report.completed_requests));
    });
}

fn decode(mut bytes: &[u8]) -> Vec<Message> {
    let (mut lines, mut messages) = (LineReader::new(MAX_LINE_BYTES), Vec::new());
    while !bytes.is_empty() {
        lines.fill(&mut bytes).unwrap();
        while let Some(line) = lines.next_line() {
            messages.push(Message::decode(line.unwrap()).unwrap());
        }
    }
    messages
}

#[test]
fn twenty_thousand_requests_a_second_are_all_sent() {
    with_reference(None, |address| {
        // Whether they are sent in time is a measurement; that none is left out is not.
        let report = run(&load(Address::options(address), 20_000.0, 1_000));
        assert_eq!((report.due_requests, report.completed_requests), (19_999, 19_999), "{report}");
        assert_eq!(report.measured_seconds, 1.0);
    });
}
