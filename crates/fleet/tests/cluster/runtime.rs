//! A container runtime without containers: the side of NRI that containerd has, from the library
//! that it uses (`tests/nri`).

use super::server::{Process, Server};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// A runtime at whose socket plug-ins can connect.
pub(crate) struct Runtime {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    _process: Process,
}

impl Runtime {
    /// Starts it with containers that run already: the UIDs of their pods, and their numbers.
    pub(crate) fn start(program: &Path, server: &Server, running: &[(String, String)]) -> Self {
        let place = server.place.path();
        let mut command = Command::new(program);
        command.arg(socket(server)).arg(place.join("plug-ins"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut runtime = Self { orders, answers, _process: Process(child) };
        for (pod, id) in running {
            runtime.report("start", pod, id, "");
        }
        runtime.report("listen", "", "", "");
        runtime
    }

    /// Reports what has happened to a container, with the cores that it may use, and waits for the
    /// answers of all plug-ins.
    pub(crate) fn report(&mut self, event: &str, pod: &str, id: &str, cpus: &str) {
        let order = json!({ "Event": event, "Pod": pod, "ID": id, "Name": "main", "Cpus": cpus });
        writeln!(self.orders, "{order}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer, "<nil>\n", "{event} of {pod}");
    }
}

/// The socket of the runtime.
pub(crate) fn socket(server: &Server) -> String {
    server.place.path().join("nri/nri.sock").display().to_string()
}
