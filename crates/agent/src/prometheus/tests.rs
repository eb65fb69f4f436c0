//! Answers of all kinds, from a server that says what the test wants.

use super::*;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, SystemTime};

const NOW: f64 = 1_700_000_000.0;

fn vector(values: &[&str]) -> String {
    let series = |value: &&str| format!(r#"{{"metric":{{}},"value":[{NOW},"{value}"]}}"#);
    let all: Vec<String> = values.iter().map(series).collect();
    let result = all.join(",");
    format!(r#"{{"status":"success","data":{{"resultType":"vector","result":[{result}]}}}}"#)
}

/// The tail in a reply, as it reaches the loop.
fn tail(text: &str) -> Gauge<Option<Nanos>> {
    match QueryPurpose::Tail.reply(parse_reply(text, NOW)) {
        Reply::Tail(tail) => tail,
        other => panic!("{other:?}"),
    }
}

fn why(text: &str) -> String {
    tail(text).unwrap_err().to_string()
}

#[test]
fn one_number_of_seconds_is_the_tail() {
    assert_eq!(tail(&vector(&["0.0042"])), Ok(Some(Nanos::from_micros(4200))));
    assert_eq!(tail(&vector(&["0"])), Ok(Some(Nanos::ZERO)));
    let scalar = r#"{"status":"success","data":{"resultType":"scalar","result":[1700000000,"2"]}}"#;
    assert_eq!(tail(scalar), Ok(Some(Nanos::from_secs(2))));
}

#[test]
fn the_quantile_of_no_request_is_no_request() {
    assert_eq!(tail(&vector(&["NaN"])), Ok(None));
}

#[test]
fn any_other_answer_is_missing_with_its_reason() {
    let cases = [
        (vector(&[]), "finds nothing"),
        (vector(&["1", "2", "3"]), "finds 3 series"),
        (vector(&["+Inf"]), "beyond the last bucket"),
        (vector(&["-1"]), "not a latency in seconds"),
        (vector(&["4200000000"]), "not a latency in seconds"),
        (vector(&["soon"]), "not a number"),
        (
            r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#.into(),
            "parse error",
        ),
        (
            r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#.into(),
            "not a number",
        ),
        ("<html>".into(), "no answer of a Prometheus"),
        (String::new(), "no answer of a Prometheus"),
    ];
    for (text, words) in cases {
        assert!(why(&text).contains(words), "{text}: {}", why(&text));
    }
}

#[test]
fn an_answer_of_another_time_is_none() {
    let text = vector(&["1"]);
    assert!(parse_reply(&text, NOW + 9.0).is_ok());
    for now in [NOW + 60.0, NOW - 60.0] {
        assert!(parse_reply(&text, now).unwrap_err().to_string().contains("s old"), "{now}");
    }
}

#[test]
fn an_address_is_http_without_a_query() {
    assert_eq!(Server::parse("http://[::1]:9090/prom/").unwrap().base, "http://[::1]:9090/prom");
    let encrypted = Server::parse("https://x:9090/prom");
    match cfg!(feature = "tls") {
        true => assert!(encrypted.unwrap().is_encrypted()),
        false => assert!(encrypted.unwrap_err().contains("--features tls")),
    }
    let cases = [
        ("ftp://x:9090", "is not an address"),
        ("x:9090", "is not an address"),
        ("http://", "names no host"),
        ("http://:9090", "names no host"),
        ("http://x/api/v1/query?query=up", "write it in `query`"),
        ("http://x y", "names no host"),
    ];
    for (address, words) in cases {
        let error = Server::parse(address).unwrap_err();
        assert!(error.contains(words), "{address}: {error}");
    }
}

/// Starts a server that sends the same answer to every client and returns the requests that it
/// receives.
fn serving(answer: Option<String>) -> (Server, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let (sender, received) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut bytes = [0; 4096];
            let read = stream.read(&mut bytes).unwrap_or(0);
            let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
            if sender.send(text).is_err() {
                return;
            }
            match &answer {
                Some(answer) => drop(stream.write_all(answer.as_bytes())),
                // The connection stays open without an answer.
                None => held.push(stream),
            }
        }
    });
    (Server::parse(&base).unwrap(), received)
}

fn http(status: &str, body: &str) -> Option<String> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}");
    Some(format!("{head}\r\n\r\n{body}"))
}

/// Returns the first observation of a following thread from a server with this answer, and the
/// request that it sent.
fn first(answer: Option<String>, query: &str) -> (Gauge<lull_control::LatencyObservation>, String) {
    let (server, received) = serving(answer);
    let mut reported = follow(queries(server, query), None, PERIOD_MIN, in_process);
    let received = received.recv().unwrap();
    loop {
        let seen = reported_now(&mut reported);
        match &seen {
            Err(why) if why.reason.contains("not answered yet") => {
                std::thread::sleep(Duration::from_millis(5));
            }
            _ => return (seen, received),
        }
    }
}

fn queries(server: Server, tail: &str) -> Queries {
    let (access, tail, at) = (Access::default(), tail.to_owned(), Percentile::P95);
    Queries { server, access, tail, at, load: None, age: None }
}

/// Parses answers as the front end does, and sends the replies where it does.
fn in_process(
    base: String,
    purpose: QueryPurpose,
    to: Sender<Answer>,
) -> impl Fn(u64, Vec<u8>) -> bool + Send + 'static {
    move |generation, bytes| {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let number = parse(&bytes, time.as_secs_f64());
        let number = number.map_err(|why| Missing::because(format!("{base}: {why}")));
        to.send(Answer { generation, received_at: now(), reply: purpose.reply(number) }).is_ok()
    }
}

fn reported_now(reported: &mut Reported) -> Gauge<lull_control::LatencyObservation> {
    reported.harvest(now())
}

#[test]
fn a_query_reaches_the_server_unchanged_and_its_answer_the_loop() {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let body = vector(&["0.25"]).replace(&NOW.to_string(), &time.to_string());
    let (seen, received) = first(http("200 OK", &body), "a{b=\"c d\"} + 1");
    assert_eq!(seen.unwrap().tail(Percentile::P95), Some(Nanos::from_millis(250)));
    let line = received.lines().next().unwrap();
    assert!(line.starts_with("GET /api/v1/query?query=a"), "{received}");
    assert!(line.contains("%7B") && line.contains("%2B") && !line.contains("c d"), "{line}");
}

#[test]
fn a_server_that_fails_stalls_or_floods_is_a_reason() {
    let bad = r#"{"status":"error","errorType":"bad_data","error":"unknown function"}"#;
    let cases = [
        (http("503 Service Unavailable", "starting"), "status 503"),
        (http("400 Bad Request", bad), "unknown function"),
        (http("200 OK", &" ".repeat(100_000)), "limit"),
        (Some("nonsense\r\n\r\n".to_owned()), "http"),
        (None, "timed out"),
    ];
    for (answer, words) in cases {
        let why = first(answer, "up").0.unwrap_err().to_string();
        assert!(why.contains(words) && why.contains("http://127.0.0.1:"), "{words}: {why}");
    }
}

#[test]
fn no_listener_is_a_reason_too() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Server::parse(&format!("http://127.0.0.1:{port}")).unwrap();
    assert!(Client::new(server, Access::default()).fetch("up").is_err());
}

#[test]
fn any_bytes_of_a_server_are_an_answer_or_a_reason() {
    let answer = http("200 OK", &vector(&["0.25"])).unwrap();
    assert_eq!(parse(answer.as_bytes(), NOW), Ok(Some(0.25)));
    for end in 0..answer.len() {
        assert!(parse(&answer.as_bytes()[..end], NOW).is_err(), "{end}");
    }
}

#[test]
fn tail_load_and_age_are_queried_of_one_server_each_under_its_own_bound() {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let body = vector(&["0.25"]).replace(&NOW.to_string(), &time.to_string());
    let (server, received) = serving(http("200 OK", &body));
    let all = Queries {
        load: Some("load".to_owned()),
        age: Some(("age".to_owned(), Nanos::from_secs(1))),
        ..queries(server, "tail")
    };
    let mut reported = follow(all, None, PERIOD_MIN, in_process);
    let received: Vec<String> = (0..4).map(|_| received.recv().unwrap()).collect();
    for (request, name) in received.iter().zip(["age", "tail", "load", "age"]) {
        assert!(request.contains(&format!("query={name} ")), "{request}");
    }
    let seen = reported_now(&mut reported).unwrap();
    assert_eq!((seen.offered_per_s, seen.has_rates()), (0.25, true));
    let loads = [(1_000.0, true), (-1.0, false), (f64::INFINITY, false)];
    for (number, is_load) in loads {
        let reply = QueryPurpose::Load.reply(Ok(Some(number)));
        assert!(matches!(reply, Reply::Load(load) if load.is_ok() == is_load), "{number}");
    }
}
