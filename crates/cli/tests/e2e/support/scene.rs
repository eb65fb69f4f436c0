//! One test's directory, and everything that runs because of the test.

use super::agent::{Agent, Ended};
use super::{LULL, send, wait_or};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The environment variable that marks all processes of a scene and their descendants.
const MARK: &str = "LULL_E2E_SCENE";

/// A directory, and all that runs on its behalf until it is dropped.
pub(crate) struct Scene {
    place: tempfile::TempDir,
    program: PathBuf,
    started: AtomicU32,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        Self { place, program: LULL.into(), started: AtomicU32::new(0) }
    }

    /// Returns a scene with a copy of the program that other users may execute.
    pub(crate) fn with_program_for_all() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let mut scene = Self::new();
        scene.program = scene.path("lull");
        let all = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(scene.place.path(), all).unwrap();
        // Copy in another process: a file that is open for writing cannot be executed, and a child
        // that another test forks meanwhile would inherit the open file.
        let mut install = Command::new("install");
        let copied = install.args(["--mode=755", LULL]).arg(&scene.program).status();
        assert!(copied.unwrap().success());
        scene
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A config with this scene's state and records, of which `body` is the rest;
    /// `agent` are further lines of `[agent]`.
    pub(crate) fn config(&self, agent: &str, body: &str) -> PathBuf {
        let (state, record) = (self.path("state"), self.records_dir());
        let head = format!("[agent]\nepoch = \"200ms\"\nstate = {state:?}\nrecord = {record:?}\n");
        self.write("lull.toml", &format!("{head}{agent}\n{body}"))
    }

    /// Returns the text of a file in `examples/` with these replacements; each must occur in it.
    pub(crate) fn example(&self, name: &str, replaced: &[(&str, String)]) -> String {
        let file = format!("{}/../../examples/{name}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(file).unwrap();
        replaced.iter().fold(text, |text, (from, to)| {
            assert!(text.contains(from), "{name} has no {from}");
            text.replace(from, to)
        })
    }

    /// Returns the line of an example that names its records, and the line for those of this scene.
    pub(crate) fn own_record(&self) -> (&'static str, String) {
        let (state, records) = (self.path("state"), self.records_dir());
        ("record = \"runs\"", format!("record = {records:?}\nstate = {state:?}"))
    }

    pub(crate) fn records_dir(&self) -> PathBuf {
        self.path("records")
    }

    /// Returns the present records, oldest first.
    pub(crate) fn records(&self) -> Vec<PathBuf> {
        let Ok(files) = std::fs::read_dir(self.records_dir()) else { return Vec::new() };
        let files = files.flatten().map(|file| file.path());
        let mut records: Vec<_> =
            files.filter(|path| path.extension().is_some_and(|end| end == "db")).collect();
        records.sort();
        records
    }

    /// The program with arguments, marked as of this scene.
    pub(crate) fn lull<A: AsRef<std::ffi::OsStr>>(&self, arguments: &[A]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments);
        self.mark(&mut command);
        command
    }

    /// As [`Scene::lull`], as the user `nobody`. Needs root.
    pub(crate) fn lull_as_nobody<A: AsRef<std::ffi::OsStr>>(&self, arguments: &[A]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]);
        command.arg(&self.program).args(arguments);
        self.mark(&mut command);
        command
    }

    /// A shell in the scene's directory that finds its copy of the program by name; see
    /// [`Scene::with_program_for_all`].
    pub(crate) fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("bash");
        let inherited = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{inherited}", self.place.path().display()));
        command.args(["-exc", script]).stdin(std::process::Stdio::null());
        self.mark(&mut command);
        command
    }

    fn mark(&self, command: &mut Command) {
        command.env(MARK, self.place.path()).current_dir(self.place.path());
        for inherited in ["LULL_SOCKET", "LULL_APP"] {
            command.env_remove(inherited);
        }
    }

    /// Starts a command; its output goes to files of the scene.
    pub(crate) fn start(&self, command: Command) -> Agent {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let [out, err] = ["out", "err"].map(|end| self.path(&format!("said-{number}.{end}")));
        Agent::start(command, &out, &err)
    }

    /// Runs `lull` with arguments to its end.
    pub(crate) fn run<A: AsRef<std::ffi::OsStr>>(&self, arguments: &[A]) -> Ended {
        self.start(self.lull(arguments)).wait()
    }

    /// Runs `lull run` on a config for a while.
    pub(crate) fn run_for(&self, config: &Path, time: &str) -> Ended {
        self.run(&["run".as_ref(), config.as_os_str(), "--for".as_ref(), time.as_ref()])
    }

    /// Starts `lull run` on a config.
    pub(crate) fn agent(&self, config: &Path) -> Agent {
        self.start(self.lull(&["run".as_ref(), config.as_os_str()]))
    }

    /// The processes that run on behalf of this scene.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let mark = format!("{MARK}={}", self.place.path().display()).into_bytes();
        let is_ours = |pid: &i32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark)
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        all.filter_map(|one| one.file_name().to_str()?.parse().ok()).filter(is_ours).collect()
    }

    /// The one process of this scene with these words among its arguments.
    pub(crate) fn process_with(&self, words: &[&str]) -> Option<i32> {
        self.processes().into_iter().find(|pid| {
            let arguments = super::arguments(*pid);
            words.iter().all(|word| arguments.iter().any(|argument| argument == word))
        })
    }

    /// Waits until all processes that the scene's commands have started have ended.
    pub(crate) fn wait_until_quiet(&self) {
        let left = || {
            let all = self.processes().into_iter();
            all.map(|pid| format!("{pid} {:?}", super::arguments(pid))).collect::<Vec<_>>()
        };
        wait_or(|| format!("still there: {:?}", left()), &mut || self.processes().is_empty());
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for pid in self.processes() {
            send(pid, Signal::KILL);
        }
    }
}
