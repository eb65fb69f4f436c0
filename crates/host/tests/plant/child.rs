//! An app for tests: this test binary run again, with threads on demand.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The beginning of its lines, by which they differ from those of the test harness.
const MARK: &str = "app:";
/// Set in the environment of an app, and of no other process.
const IS_APP: &str = "LULL_HOST_TEST_APP";

/// A running app with this many workers beside its first thread.
pub(crate) struct App {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl App {
    pub(crate) fn start(workers: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child::be_an_app", "--exact", "--nocapture"])
            .env(IS_APP, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut app = Self { child, input, output };
        for _ in 0..workers {
            app.add_worker();
        }
        app
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Starts a thread that works half of the time. Returns its number.
    pub(crate) fn add_worker(&mut self) -> i32 {
        self.ask("worker")
    }

    /// Lets this many threads come and go, one after the other.
    pub(crate) fn churn(&mut self, threads: usize) {
        self.ask(&format!("churn {threads}"));
    }

    pub(crate) fn end(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it, but does not wait for it, as a careless parent.
    pub(crate) fn end_as_zombie(&mut self) {
        self.child.kill().unwrap();
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        while !stat().contains(") Z ") {
            std::thread::yield_now();
        }
    }

    fn ask(&mut self, what: &str) -> i32 {
        writeln!(self.input, "{what}").unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the app has ended");
            if let Some((_, answer)) = line.split_once(MARK) {
                return answer.trim().parse().unwrap();
            }
        }
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn answer(number: i32) {
    println!("{MARK}{number}");
}

fn my_tid() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

fn work_half_the_time() {
    loop {
        let begin = std::time::Instant::now();
        while begin.elapsed().as_millis() < 2 {
            std::hint::black_box(begin);
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

fn obey(order: &str) {
    match order.split_once(' ') {
        None if order == "worker" => {
            let (sender, result) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                sender.send(my_tid()).unwrap();
                work_half_the_time();
            });
            answer(result.recv().unwrap());
        }
        Some(("churn", threads)) => {
            for _ in 0..threads.parse().unwrap() {
                std::thread::spawn(my_tid).join().unwrap();
            }
            answer(0);
        }
        _ => panic!("{order}"),
    }
}

/// Not a test: the app that tests start.
#[test]
fn be_an_app() {
    if std::env::var_os(IS_APP).is_none() {
        return;
    }
    for order in std::io::stdin().lines() {
        obey(&order.unwrap());
    }
}
