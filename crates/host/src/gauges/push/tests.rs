//! Real clients on a real socket.

use super::*;
use lull_measure::push::{LatencyWindow, MAX_LINE_BYTES, Progress};
use lull_measure::{Latency, Percentile};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use tempfile::TempDir;

/// The agent's clock in these tests.
const NOW: Nanos = Nanos::from_secs(100);
const LC: AppId = AppId(0);
const BE: AppId = AppId(1);

fn gauge() -> (PushGauge, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let lc = AppSpec::latency_critical("memcached", Percentile::P95, Nanos::from_millis(4));
    let apps = [lc, AppSpec::best_effort("burner")];
    (PushGauge::listen(&dir.path().join("push"), &apps).unwrap(), dir)
}

fn connect(gauge: &PushGauge) -> UnixStream {
    UnixStream::connect(gauge.path()).unwrap()
}

fn window(app: &str, end: Nanos) -> Vec<u8> {
    let window = LatencyWindow {
        app: app.to_owned(),
        start_ns: end - Nanos::from_millis(100),
        length_ns: Nanos::from_millis(100),
        due: 2,
        completed: 2,
        histogram: [1, 2].map(Nanos::from_millis).into_iter().collect(),
        ..LatencyWindow::default()
    };
    let mut line = Vec::new();
    Message::Latency(Box::new(window)).encode(&mut line).unwrap();
    line
}

fn is_closed(mut stream: &UnixStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    matches!(stream.read(&mut [0]), Ok(0))
}

#[test]
fn windows_of_many_clients_arrive_in_any_pieces() {
    let (mut gauge, _dir) = gauge();
    let clients: Vec<_> = (0..3).map(|_| connect(&gauge)).collect();
    let line = window("memcached", NOW);
    for mut client in &clients {
        client.write_all(&line[..40]).unwrap();
    }
    gauge.drain(NOW, NOW);
    assert!(gauge.latency(LC, NOW).is_err(), "half a line is not a window");
    for mut client in &clients {
        client.write_all(&line[40..]).unwrap();
    }
    gauge.drain(NOW, NOW);
    let seen = gauge.latency(LC, NOW).unwrap();
    assert_eq!((seen.window.count(), seen.completed_per_s), (6, 60.0));
    assert!(gauge.progress(BE, NOW).unwrap_err().reason.contains("no progress"));
}

#[test]
fn what_a_client_sent_before_it_left_counts() {
    let (mut gauge, _dir) = gauge();
    connect(&gauge).write_all(&window("memcached", NOW)).unwrap();
    gauge.drain(NOW, NOW);
    assert!(!gauge.is_silent());
    assert_eq!(gauge.latency(LC, NOW).unwrap().window.count(), 2);
    assert_eq!(gauge.take_notices(), [""; 0]);
    gauge.drain(NOW, NOW);
    assert!(gauge.is_silent());
}

#[test]
fn a_bad_client_is_dropped_with_the_reason_and_others_go_on() {
    let (mut gauge, _dir) = gauge();
    let good = connect(&gauge);
    let overlong = vec![b'x'; MAX_LINE_BYTES + 1];
    let ahead = window("memcached", NOW + Nanos::from_secs(5));
    // A rate at which thinning the sample never ended.
    let coarse = window("memcached", NOW);
    let coarse = String::from_utf8(coarse).unwrap();
    let sample = format!(
        r#","sample":{{"one_in":9223372036854775808,"requests":[{}]}}}}"#,
        [r#"{"due_ns":1,"wait_ns":1,"latency_ns":1}"#; 17].join(",")
    );
    let coarse = coarse.replace("}\n", &format!("{sample}\n"));
    let long = "x".repeat(129);
    let long_app = String::from_utf8(window("memcached", NOW)).unwrap().replace("memcached", &long);
    let progress =
        Progress { app: "burner".to_owned(), unit: "paths".to_owned(), total: 1.0, time_ns: NOW };
    let mut line = Vec::new();
    Message::Progress(progress).encode(&mut line).unwrap();
    let long_unit = String::from_utf8(line).unwrap().replace("paths", &long);
    let mut most = Latency::default();
    // The format has no larger count.
    most.record_many(Nanos::from_millis(1), i64::MAX as u64);
    let two: Latency = [1, 2].map(Nanos::from_millis).into_iter().collect();
    let countless = String::from_utf8(window("memcached", NOW)).unwrap();
    let countless = countless.replace(&two.to_base64(), &most.to_base64());
    let cases: [(&[u8], &str); 8] = [
        (countless.as_bytes(), "`histogram` above"),
        (long_app.as_bytes(), "`app` empty or longer than 128 bytes"),
        (long_unit.as_bytes(), "`unit` longer than 128 bytes"),
        (coarse.as_bytes(), "`one_in` is outside"),
        (b"hello\n", "not a push message"),
        (&window("nginx", NOW), "no app is called `nginx`: the apps are burner, memcached"),
        (&overlong, "was skipped"),
        (&ahead, "5s ahead of time"),
    ];
    for (bytes, wanted) in cases {
        let bad = connect(&gauge);
        // A socket takes less than the longest line at once.
        let sender = {
            let (mut bad, bytes) = (bad.try_clone().unwrap(), bytes.to_vec());
            std::thread::spawn(move || drop(bad.write_all(&bytes)))
        };
        let mut notices = Vec::new();
        while notices.is_empty() {
            gauge.drain(NOW, NOW);
            notices = gauge.take_notices();
        }
        assert_eq!(notices.len(), 1);
        let me = format!("process {} was dropped", std::process::id());
        assert!(notices[0].contains(wanted) && notices[0].contains(&me), "{notices:?}");
        sender.join().unwrap();
        drop(bad);
    }
    (&good).write_all(&window("memcached", NOW)).unwrap();
    gauge.drain(NOW, NOW);
    assert_eq!(gauge.latency(LC, NOW).unwrap().window.count(), 2);
    assert!(!is_closed(&good));
}

#[test]
fn windows_older_than_ten_seconds_are_ignored_and_reported_once() {
    let (mut gauge, _dir) = gauge();
    let mut client = connect(&gauge);
    for _ in 0..3 {
        client.write_all(&window("memcached", NOW - Nanos::from_secs(11))).unwrap();
        gauge.drain(NOW, NOW);
    }
    assert!(gauge.latency(LC, NOW).is_err());
    let notices = gauge.take_notices();
    assert_eq!(notices.len(), 1);
    assert!(notices[0].contains("more than 10 s ago"), "{notices:?}");
    assert!(!is_closed(&client));
}

#[test]
fn a_client_that_pushes_without_pause_has_turns_as_others_and_loses_nothing() {
    let (mut gauge, _dir) = gauge();
    let progress =
        Progress { app: "burner".to_owned(), unit: "paths".to_owned(), total: 1.0, time_ns: NOW };
    let mut line = Vec::new();
    Message::Progress(progress).encode(&mut line).unwrap();
    let turn = client::TURN_MESSAGES;
    connect(&gauge).write_all(&line.repeat(2 * turn + 5)).unwrap();
    connect(&gauge).write_all(&line).unwrap();
    let mut order = Vec::new();
    let mut note = |client: ClientId, _: Message| {
        order.push(client.number);
        Ok(())
    };
    gauge.source.drain(&mut note, &mut |text| panic!("{text}"));
    assert_eq!(order.len(), 2 * turn + 6, "all of it is taken at once");
    assert_eq!(order.iter().position(|client| *client == order[0] + 1), Some(turn));
}

#[test]
fn too_many_clients_are_distinguished_from_silence() {
    let (mut gauge, _dir) = gauge();
    let mut clients = Vec::new();
    for _ in 0..=CLIENTS_MAX {
        clients.push(connect(&gauge));
        gauge.drain(NOW, NOW);
    }
    assert!(is_closed(clients.last().unwrap()));
    assert!(gauge.take_notices()[0].contains("256 clients push already"));
}

#[test]
fn an_app_that_is_added_is_pushed_for_and_one_that_is_removed_is_not() {
    let (mut gauge, _dir) = gauge();
    let late = AppId(2);
    gauge.add_app(late, "late");
    gauge.remove_app(BE);
    let clients = ["late", "memcached", "burner"].map(|app| {
        let mut client = connect(&gauge);
        client.write_all(&window(app, NOW)).unwrap();
        client
    });
    gauge.drain(NOW, NOW);
    for app in [late, LC] {
        assert_eq!(gauge.latency(app, NOW).unwrap().window.count(), 2);
    }
    assert_eq!(clients.each_ref().map(is_closed), [false, false, true]);
    let notices = gauge.take_notices().join("\n");
    assert!(
        notices.contains("no app is called `burner`: the apps are late, memcached"),
        "{notices}"
    );
    // Reports for the app that had its id before are not its own.
    gauge.add_app(late, "later");
    assert!(gauge.latency(late, NOW).is_err());
}
