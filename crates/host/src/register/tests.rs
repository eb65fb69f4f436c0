//! Registrations of real processes.

use super::*;
use crate::apps::ProcessSlots;
use lull_measure::register::Request;
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{geteuid, getuid};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

/// A registrar of this user's processes, at a time that the test moves.
struct Scene {
    registrar: Registrar,
    /// Where lines are parsed, by another process otherwise.
    parser: UnixDatagram,
    time: Nanos,
    dir: tempfile::TempDir,
}

fn template(name: &str, users: &str, most: usize) -> Template {
    Template { name: name.to_owned(), users: users.to_owned(), most }
}

impl Scene {
    fn new(templates: &[Template]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("register.sock");
        let registrar = Registrar::listen(&path, templates, &Roots::default()).unwrap();
        let parser = registrar.parser().unwrap();
        Self { registrar, parser, time: Nanos::from_secs(100), dir }
    }

    fn own() -> Self {
        Self::new(&[template("batch", &getuid().as_raw().to_string(), 2)])
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("register.sock")
    }

    fn serve(&mut self) {
        self.serve_with(&|_| None);
    }

    /// Serves once there is an event, or after the pause by which the time moves: a client that
    /// is slow on a busy machine is not late.
    fn serve_with(&mut self, owner: OwnerOf<'_>) {
        self.serve_unparsed(owner);
        let mut line = vec![0; LINE_DATAGRAM_BYTES];
        while let Ok(length) = self.parser.recv(&mut line) {
            self.parser.send(&parse_datagram(&line[..length]).unwrap()).unwrap();
        }
    }

    /// The same while no process parses.
    fn serve_unparsed(&mut self, owner: OwnerOf<'_>) {
        let pause = Timespec { tv_sec: 0, tv_nsec: PAUSE.0 as i64 };
        poll(&mut [PollFd::new(self.registrar.events(), PollFlags::IN)], Some(&pause)).unwrap();
        self.time = self.time.saturating_add(PAUSE);
        assert!(self.registrar.is_due(self.time));
        self.registrar.serve(self.time, owner);
    }

    fn slots(&self) -> &ProcessSlots {
        self.registrar.slots("batch").unwrap()
    }

    fn taken(&self) -> usize {
        let slots = self.registrar.templates.iter().map(|offer| &offer.slots);
        slots.map(|slots| slots.processes().into_iter().flatten().count()).sum()
    }
}

/// A process that connects and writes the lines that the test gives it; ended when dropped.
///
/// This process is the registrar, so that its own connections are refused.
struct Other(Child);

impl Other {
    /// Connects, writes what it is given and prints what it reads.
    fn new(path: &Path) -> Self {
        let script = "import socket, sys\n\
                      s = socket.socket(socket.AF_UNIX)\n\
                      s.connect(sys.argv[1])\n\
                      f = s.makefile('r')\n\
                      for line in sys.stdin:\n    \
                          s.sendall(line.encode())\n    \
                          print(f.readline(), end='', flush=True)\n";
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    fn say(&mut self, line: &str) {
        self.0.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }

    /// Serves until an answer has come.
    fn answer(&mut self, scene: &mut Scene, owner: OwnerOf<'_>) -> Answer {
        self.answer_while(|| scene.serve_with(owner))
    }

    /// The same, where the registrar is served by `serve`.
    fn answer_while(&mut self, mut serve: impl FnMut()) -> Answer {
        let output = self.0.stdout.as_mut().unwrap();
        rustix::io::ioctl_fionbio(&*output, true).unwrap();
        let mut line = Vec::new();
        loop {
            serve();
            let mut byte = [0; 1];
            while let Ok(count) = output.read(&mut byte) {
                assert_eq!(count, 1, "the process ended without an answer");
                line.push(byte[0]);
                if byte[0] == b'\n' {
                    return Answer::parse(&line).unwrap();
                }
            }
        }
    }

    fn request(&mut self, scene: &mut Scene, request: &Request) -> Answer {
        self.say(&request.to_line());
        self.answer(scene, &|_| None)
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn register_as(name: &str) -> Request {
    Request::Register { template: Some(name.to_owned()) }
}

fn reason(answer: Answer) -> Reason {
    match answer {
        Answer::Refused(refusal) => refusal.reason,
        Answer::Accepted { app } => panic!("accepted as {app:?}"),
    }
}

mod needs_python3 {
    use super::*;

    #[test]
    fn a_process_is_an_app_until_it_leaves_closes_or_ends() {
        let mut scene = Scene::own();
        let accepted = |app: &str| Answer::Accepted { app: Some(app.to_owned()) };
        let mut first = Other::new(&scene.path());
        let mut second = Other::new(&scene.path());
        assert_eq!(first.request(&mut scene, &register_as("batch")), accepted("batch-1"));
        let any = Request::Register { template: None };
        assert_eq!(second.request(&mut scene, &any), accepted("batch-2"));
        let found = scene.slots().processes().into_iter().map(|one| one.unwrap().pid);
        assert_eq!(found.collect::<Vec<_>>(), [first.pid(), second.pid()]);
        let mut third = Other::new(&scene.path());
        assert_eq!(reason(third.request(&mut scene, &register_as("batch"))), Reason::Full);
        assert_eq!(first.request(&mut scene, &Request::Leave), Answer::Accepted { app: None });
        assert_eq!(scene.taken(), 1);
        let mut fourth = Other::new(&scene.path());
        assert_eq!(fourth.request(&mut scene, &register_as("batch")), accepted("batch-1"));
        // Killed, so that it closes its connection and ends.
        drop(second);
        while scene.taken() == 2 {
            scene.serve();
        }
        fourth.0.kill().unwrap();
        while scene.taken() == 1 {
            scene.serve();
        }
    }

    #[test]
    fn a_request_that_no_process_has_made_is_ignored() {
        let mut scene = Scene::own();
        let mut other = Other::new(&scene.path());
        while scene.registrar.connections.is_empty() {
            scene.serve();
        }
        let number = *scene.registrar.connections.keys().next().unwrap();
        let register = [number.to_le_bytes().as_slice(), &[1]].concat();
        let datagrams: [&[u8]; 4] = [&register, &register[..8], b"", &[255; 400]];
        for datagram in datagrams {
            scene.parser.send(datagram).unwrap();
        }
        scene.serve();
        assert_eq!((scene.taken(), scene.registrar.connections.len()), (0, 1));
        let answer = other.request(&mut scene, &register_as("batch"));
        assert_eq!(answer, Answer::Accepted { app: Some("batch-1".to_owned()) });
        // Not once more for the same line.
        let leave = [number.to_le_bytes().as_slice(), &[0]].concat();
        scene.parser.send(&leave).unwrap();
        scene.serve();
        assert_eq!(scene.taken(), 1);
    }

    #[test]
    fn requests_wait_for_a_process_that_parses_them_and_are_refused_in_time() {
        let mut scene = Scene::own();
        let mut early = Other::new(&scene.path());
        early.say(&register_as("batch").to_line());
        let is_sent = |scene: &Scene| scene.registrar.connections.values().any(Connection::is_sent);
        while !is_sent(&scene) {
            scene.serve_unparsed(&|_| None);
        }
        scene.time = scene.time.saturating_add(PATIENCE);
        scene.serve_unparsed(&|_| None);
        assert_eq!(reason(early.answer(&mut scene, &|_| None)), Reason::Busy);
        let mut late = Other::new(&scene.path());
        let answer = late.request(&mut scene, &register_as("batch"));
        assert_eq!(answer, Answer::Accepted { app: Some("batch-1".to_owned()) });
        assert_eq!(scene.taken(), 1, "the request that was refused came back in vain");
    }

    #[test]
    fn a_registered_process_stays_while_too_many_requests_wait() {
        let mut scene = Scene::own();
        let mut other = Other::new(&scene.path());
        other.request(&mut scene, &register_as("batch"));
        // As many lines as there is room for, of a connection that has gone.
        while scene.registrar.parser.send(0, b"{}") {}
        other.say(&Request::Leave.to_line());
        let answer = other.answer_while(|| scene.serve_unparsed(&|_| None));
        assert_eq!((reason(answer), scene.taken()), (Reason::Busy, 1));
        let mut line = vec![0; LINE_DATAGRAM_BYTES];
        while scene.parser.recv(&mut line).is_ok() {}
        let answer = other.request(&mut scene, &Request::Leave);
        assert_eq!((answer, scene.taken()), (Answer::Accepted { app: None }, 0));
    }

    #[test]
    fn a_process_departs_when_it_ends_even_if_a_child_holds_its_connection() {
        let mut scene = Scene::own();
        let mut parent = Other::new(&scene.path());
        parent.request(&mut scene, &register_as("batch"));
        let pid = rustix::process::Pid::from_raw(parent.pid()).unwrap();
        // A copy of the connection in this process replaces a child that has inherited it.
        let handle = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
        let copy = rustix::process::pidfd_getfd(
            handle.unwrap(),
            3,
            rustix::process::PidfdGetfdFlags::empty(),
        );
        if let Err(error) = &copy {
            return lull_testing::skip(&format!("no copy of another's descriptor: {error}"));
        }
        assert_eq!(scene.taken(), 1);
        drop(parent);
        while scene.taken() == 1 {
            scene.serve();
        }
        drop(copy);
    }

    #[test]
    fn a_process_has_one_app_at_most() {
        let mut scene = Scene::own();
        let mut other = Other::new(&scene.path());
        other.request(&mut scene, &register_as("batch"));
        assert_eq!(reason(other.request(&mut scene, &register_as("batch"))), Reason::Registered);
        assert_eq!(scene.taken(), 1, "the first registration stays");
        let mut owned = Other::new(&scene.path());
        let pid = owned.pid();
        owned.say(&register_as("batch").to_line());
        let owner = |process: ProcessId| (process.pid == pid).then(|| "web".to_owned());
        let Answer::Refused(refusal) = owned.answer(&mut scene, &owner) else {
            panic!("accepted");
        };
        assert_eq!(refusal.reason, Reason::Owned);
        assert!(refusal.message.contains("`web`"), "{refusal}");
    }

    #[test]
    fn a_line_that_is_no_request_is_refused_and_ends_the_connection() {
        for line in ["{\"v\":1}\n", "null\n", "\n", "{\"v\":1,\"kind\":\"leave\"}\n"] {
            let mut scene = Scene::own();
            let mut other = Other::new(&scene.path());
            other.say(line);
            let refused = reason(other.answer(&mut scene, &|_| None));
            assert!(matches!(refused, Reason::Malformed | Reason::Process), "{line}");
            assert!(scene.registrar.connections.is_empty());
            assert_eq!(scene.registrar.take_notices().len(), 1);
        }
    }

    #[test]
    fn templates_are_named_by_those_who_may() {
        let user = getuid().as_raw().to_string();
        let mut scene = Scene::new(&[
            template("batch", &user, 1),
            template("web", &user, 1),
            template("other", "nobody-*", 1),
        ]);
        let mut ask = |name: Option<&str>| {
            let template = name.map(str::to_owned);
            Other::new(&scene.path()).request(&mut scene, &Request::Register { template })
        };
        assert_eq!(reason(ask(None)), Reason::Template);
        assert_eq!(reason(ask(Some("moon"))), Reason::Template);
        assert_eq!(reason(ask(Some("other"))), Reason::User);
        assert!(matches!(ask(Some("web")), Answer::Accepted { .. }));
    }
}

#[test]
fn this_process_itself_and_its_ancestors_are_refused() {
    let mut scene = Scene::own();
    let client = std::thread::spawn({
        let path = scene.path();
        move || register(&path, Some("batch")).unwrap_err()
    });
    while !client.is_finished() {
        scene.serve();
    }
    let RegisterError::Refused(refusal) = client.join().unwrap() else { panic!("not refused") };
    assert_eq!(refusal.reason, Reason::Process);
    assert!(refusal.message.contains("Lull itself"), "{refusal}");
    assert_eq!(scene.taken(), 0);
}

#[test]
fn a_link_in_the_place_of_the_socket_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (target, path) = (dir.path().join("shadow"), dir.path().join("register.sock"));
    std::fs::write(&target, "").unwrap();
    let before = std::fs::metadata(&target).unwrap().permissions();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    assert!(admit_all(&path).unwrap_err().to_string().contains("replaced"));
    assert_eq!(std::fs::metadata(&target).unwrap().permissions(), before);
}

#[test]
fn a_user_who_matches_no_template_is_refused_without_a_line() {
    let mut scene = Scene::new(&[template("batch", "nobody-at-all", 2)]);
    let mut stream = UnixStream::connect(scene.path()).unwrap();
    scene.serve();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let Ok(Answer::Refused(refusal)) = Answer::parse(text.as_bytes()) else { panic!("{text}") };
    assert_eq!(refusal.reason, Reason::User);
    assert!(refusal.message.contains(&geteuid().as_raw().to_string()), "{refusal}");
}

#[test]
fn five_thousand_connections_are_bounded_and_then_others_are_served_again() {
    let mut scene = Scene::own();
    let mut held = Vec::new();
    for count in 0..5_000 {
        if let Ok(stream) = UnixStream::connect(scene.path()) {
            held.push(stream);
        }
        if count % 20 == 0 {
            scene.serve();
            assert!(scene.registrar.connections.len() <= NEWCOMERS_OF_USER_MAX);
        }
        // This process may not have so many descriptors.
        held.truncate(200);
    }
    let notices = scene.registrar.take_notices();
    assert!(notices.len() <= NOTICES_MAX + 1, "{}", notices.len());
    assert!(notices.iter().any(|text| text.contains("try again later")), "{notices:?}");
    drop(held);
    for _ in 0..10 {
        scene.serve();
    }
    assert!(scene.registrar.connections.is_empty());
    let _stream = UnixStream::connect(scene.path()).unwrap();
    scene.serve();
    assert_eq!(scene.registrar.connections.len(), 1);
}

#[test]
fn a_client_that_stalls_is_closed_in_time() {
    let mut scene = Scene::own();
    let mut stream = UnixStream::connect(scene.path()).unwrap();
    stream.write_all(b"{\"v\":1,").unwrap();
    scene.serve();
    assert_eq!(scene.registrar.connections.len(), 1);
    scene.time = scene.time.saturating_add(PATIENCE);
    scene.serve();
    assert!(scene.registrar.connections.is_empty());
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("no request within 10"), "{text}");
}

#[test]
fn one_line_of_a_connection_waits_to_be_parsed_at_a_time() {
    let mut scene = Scene::own();
    let mut stream = UnixStream::connect(scene.path()).unwrap();
    let lines = register_as("batch").to_line().repeat(LINES_MAX as usize);
    stream.write_all(lines.as_bytes()).unwrap();
    for _ in 0..4 {
        scene.serve_unparsed(&|_| None);
    }
    let mut line = vec![0; LINE_DATAGRAM_BYTES];
    let waiting = std::iter::repeat_with(|| scene.parser.recv(&mut line)).take_while(Result::is_ok);
    assert_eq!(waiting.count(), 1);
}

#[test]
fn a_client_that_never_reads_or_writes_without_end_is_closed() {
    let mut scene = Scene::own();
    let mut endless = UnixStream::connect(scene.path()).unwrap();
    endless.write_all(&[b'x'; 20_000]).unwrap();
    let mut many = UnixStream::connect(scene.path()).unwrap();
    many.write_all("{}\n".repeat(1_000).as_bytes()).unwrap();
    for _ in 0..4 {
        scene.serve();
    }
    assert!(scene.registrar.connections.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_a_process_writes_it_holds_no_slot_that_it_may_not_have(
        chunks in prop::collection::vec(prop_oneof![
            3 => Just(register_as("batch").to_line().into_bytes()),
            1 => Just(Request::Leave.to_line().into_bytes()),
            2 => prop::collection::vec(any::<u8>(), 0..100),
            1 => Just(vec![b'\n'; 30]),
            1 => Just(b"{\"v\":1,\"kind\":\"register\",\"as\":null,\"pid\":1}\n".to_vec()),
        ], 0..8),
    ) {
        let mut scene = Scene::own();
        let mut stream = UnixStream::connect(scene.path()).unwrap();
        for chunk in chunks {
            // The registrar may have closed it.
            let _ = stream.write_all(&chunk);
            scene.serve();
            // This process is the registrar, which cannot be an app.
            prop_assert_eq!(scene.taken(), 0);
            prop_assert!(scene.registrar.connections.len() <= 1);
        }
    }
}
