//! The built-in options server over real sockets.

use lull_measure::Nanos;
use lull_workload::apps::options::{Demand, Server, ServerConfig, ServerReport};
use lull_workload::arrivals::{Process, Rate};
use lull_workload::client::{self, LoadConfig};
use lull_workload::target::Address;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn config() -> ServerConfig {
    ServerConfig { listen: (Ipv4Addr::LOCALHOST, 0).into(), workers: 2, ..ServerConfig::default() }
}

/// Runs a server while `clients` talks to it; the server's report.
fn serve(config: ServerConfig, clients: impl FnOnce(SocketAddr)) -> ServerReport {
    let server = Server::bind(config).unwrap();
    let (address, stop) = (server.address(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let stop = StopOnDrop(&stop);
        let running = scope.spawn(|| server.run(stop.0));
        clients(address);
        drop(stop);
        running.join().unwrap().unwrap()
    })
}

/// Lets a failed assertion end the test instead of hanging it.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    fn send(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn reply(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line
    }
}

#[test]
fn a_price_is_answered_with_its_error_and_times() {
    let report = serve(config(), |address| {
        let mut client = Client::connect(address);
        client.send("PRICE 100 100 0.05 0 0.2 1 1 20000 7\n");
        let reply = client.reply();
        let words: Vec<_> = reply.split_whitespace().collect();
        assert_eq!((words.len(), words[0]), (5, "OK"), "{reply}");
        let number = |at: usize| words[at].parse::<f64>().unwrap();
        // Black-Scholes gives 10.4506.
        assert!((number(1) - 10.4506).abs() < 4.0 * number(2), "{reply}");
        client.send("PRICE 100 100 0.05 0 0.2 1 1 20000 7\r\n");
        let again = client.reply();
        assert_eq!(again.split_whitespace().nth(1), Some(words[1]), "the seed does not decide");
    });
    assert_eq!((report.answered_requests, report.connections), (2, 1));
    assert_eq!(report.service.count, 2);
}

#[test]
fn bad_input_is_answered_and_harms_no_other_client() {
    let report = serve(config(), |address| {
        let mut client = Client::connect(address);
        client.send("HELLO\nPRICE 1 2\nPRICE 100 x 0 0 .2 1 1 9 1\n\n");
        for wanted in ["write PRICE", "9 fields", "k must", "write PRICE"] {
            let reply = client.reply();
            assert!(reply.starts_with("ERR ") && reply.contains(wanted), "{reply}");
        }
        client.send("PRICE 100 100 0 0 0.2 1 100000 4000000000 1\n");
        assert!(client.reply().contains("are more than the"));
        client.stream.get_mut().write_all(&[0xff, 0x00, b'\n']).unwrap();
        assert!(client.reply().starts_with("ERR "));
        client.send("PRICE 100 100 0 0 0.2 1 1 100 1\n");
        assert!(client.reply().starts_with("OK "));
        client.send(&"x".repeat(5_000));
        assert!(client.reply().contains("more than 512 bytes"));
        let mut rest = Vec::new();
        // Closed, with a reset since some of the line was never read.
        let _ = client.stream.read_to_end(&mut rest);
        assert!(rest.is_empty());
        let mut another = Client::connect(address);
        another.send("PRICE 100 100 0 0 0.2 1 1 100 1\n");
        assert!(another.reply().starts_with("OK "));
    });
    assert_eq!((report.answered_requests, report.malformed_requests), (2, 7));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    serve(config(), |address| {
        let mut client = Client::connect(address);
        for strike in 0..50 {
            client.send(&format!("PRICE 100 {strike} 0 0 0 1 1 2 1\n"));
        }
        for strike in 0..50 {
            let reply = client.reply();
            let price = format!("OK {} 0 ", 100 - strike);
            assert!(reply.starts_with(&price), "{reply} for {strike}");
        }
    });
}

#[test]
fn a_full_queue_refuses_and_the_server_goes_on() {
    let report = serve(ServerConfig { workers: 1, queue: 1, ..config() }, |address| {
        let mut clients: Vec<_> = (0..8).map(|_| Client::connect(address)).collect();
        for client in &mut clients {
            client.send("PRICE 100 100 0 0 0.2 1 252 20000 1\n");
        }
        let replies: Vec<_> = clients.iter_mut().map(Client::reply).collect();
        let refused = replies.iter().filter(|reply| reply.contains("queue is full")).count();
        let priced = replies.iter().filter(|reply| reply.starts_with("OK ")).count();
        assert!(refused > 0 && priced > 0 && refused + priced == 8, "{replies:?}");
    });
    assert!(report.refused_requests > 0);
}

#[test]
fn a_stop_gives_up_the_request_at_work() {
    let server = Server::bind(ServerConfig { workers: 1, ..config() }).unwrap();
    let (address, stop) = (server.address(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let guard = StopOnDrop(&stop);
        let running = scope.spawn(|| server.run(&stop));
        let (mut first, mut second) = (Client::connect(address), Client::connect(address));
        for client in [&mut first, &mut second] {
            client.send("PRICE 100 100 0 0 0.2 1 100000 2560 1\n");
        }
        // The acceptor reads connections in turn: once this one is answered, the
        // others have been read. One is at work then, or both still wait.
        let mut probe = Client::connect(address);
        probe.send("HELLO\n");
        assert!(probe.reply().starts_with("ERR "));
        assert!(threads_named("opt-worker-0") >= 1 && threads_named("opt-accept") >= 1);
        drop(guard);
        let report = running.join().unwrap().unwrap();
        assert!(first.reply().contains("stopping") && second.reply().contains("stopping"));
        assert_eq!((report.abandoned_requests, report.answered_requests), (2, 0));
    });
}

/// Threads of this process, which all tests of this file share.
fn threads_named(wanted: &str) -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.trim_end() == wanted)
        .count()
}

#[test]
fn a_port_in_use_is_reported() {
    let first = Server::bind(config()).unwrap();
    let second = Server::bind(ServerConfig { listen: first.address(), ..config() });
    let error = second.unwrap_err().to_string();
    assert!(error.contains(&first.address().to_string()) && error.contains("in use"), "{error}");
}

#[test]
fn the_client_and_the_server_agree_on_how_many_were_answered() {
    let mut counted = None;
    let report = serve(config(), |address| {
        let mut load = LoadConfig::new(Address::options(address), Rate::constant(400.0));
        load.target.demand = Demand { base_paths: 3.0, steps: 20 };
        load.process = Process::Constant;
        load.duration = Some(Nanos::from_millis(500));
        load.drain = Nanos::from_secs(20);
        (load.connections, load.depth) = (3, 2);
        let report = client::run(&load, &AtomicBool::new(false)).unwrap();
        assert_eq!((report.due_requests, report.failed_requests), (199, 0), "{report}");
        counted = Some(report.completed_requests + report.outstanding_requests);
    });
    assert_eq!(counted, Some(report.answered_requests));
}
