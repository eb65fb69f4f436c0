//! A database on an empty temporary directory, under the preloaded gate.
//!
//! A run makes two directories that carry its process number: one for the data and the socket,
//! and one in memory for the page that the server shares with the agent. It removes both at its
//! end. What a killed run leaves, with its server, the next run removes.

use crate::error::UsageError;
use crate::library::Library;
use crate::scratch::{self, scratch_directory};
use anyhow::{Context, bail, ensure};
use lull_host::Roots;
use lull_host::oncall::{PageDirectory, Rules, Runtime};
use lull_oncall::protocol::Protocol as GateProtocol;
use lull_oncall::{Mode, Settings};
use lull_workload::target::{Address, Database, DatabaseConfig, Endpoint, Protocol, Statements};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::fs::File;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How the directories of a run are named, before its process.
const PREFIX: &str = "lull-demo-";
/// A directory in memory, because the page would otherwise be written to a disk repeatedly.
const MEMORY: &str = "/dev/shm";
/// The user that the server runs as if this process is root: PostgreSQL refuses root.
const NOBODY: u32 = 65_534;
const START_MAX: Duration = Duration::from_secs(60);
const END_MAX: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
/// Longest path of a unix socket, with its final zero.
const SOCKET_BYTES_MAX: usize = 107;
/// Where servers are that are not in `$PATH`.
const PLACES: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/usr/local/bin"];
/// Where distributions keep the versions of PostgreSQL.
const POSTGRES_VERSIONS: [&str; 2] = ["/usr/lib/postgresql", "/usr"];

/// A database that can be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseEngine {
    /// MariaDB.
    Mariadb,
    /// PostgreSQL.
    Postgresql,
}

/// The programs of an installed database.
#[derive(Debug)]
pub struct DatabasePrograms {
    engine: DatabaseEngine,
    install: PathBuf,
    server: PathBuf,
}

impl DatabasePrograms {
    /// Finds the programs of this database, or of the first that is installed.
    ///
    /// # Errors
    /// If none is installed: how to install one.
    pub fn find(engine: Option<DatabaseEngine>) -> Result<Self, UsageError> {
        let engines = engine
            .map_or(vec![DatabaseEngine::Mariadb, DatabaseEngine::Postgresql], |one| vec![one]);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places: Vec<PathBuf> =
            std::env::split_paths(&path).chain(PLACES.map(PathBuf::from)).collect();
        Self::find_in(&engines, &places)
    }

    fn find_in(engines: &[DatabaseEngine], places: &[PathBuf]) -> Result<Self, UsageError> {
        let found = engines.iter().find_map(|engine| Self::in_places(*engine, places));
        found.ok_or_else(|| {
            let names: Vec<&str> = engines.iter().map(|engine| name(*engine)).collect();
            UsageError(format!(
                "{} is not installed: `apt-get install mariadb-server` or `apt-get install \
                 postgresql` (Debian, Ubuntu), `dnf install mariadb-server` or `dnf install \
                 postgresql-server` (Fedora) brings one; `lull demo` needs none",
                names.join(" or ")
            ))
        })
    }

    fn in_places(engine: DatabaseEngine, places: &[PathBuf]) -> Option<Self> {
        let find = |places: &[PathBuf], name: &str| {
            places.iter().map(|place| place.join(name)).find(|path| path.is_file())
        };
        let [install, server] = match engine {
            DatabaseEngine::Mariadb => ["mariadb-install-db", "mariadbd"],
            DatabaseEngine::Postgresql => ["initdb", "postgres"],
        };
        let mut all = match engine {
            DatabaseEngine::Mariadb => Vec::new(),
            DatabaseEngine::Postgresql => postgres_places(),
        };
        all.extend_from_slice(places);
        // Both programs come from one directory, so that their versions are the same.
        let together = all.iter().find_map(|place| {
            let place = std::slice::from_ref(place);
            Some((find(place, install)?, find(place, server)?))
        });
        let (install, server) =
            together.or_else(|| Some((find(&all, install)?, find(&all, server)?)))?;
        Some(Self { engine, install, server })
    }

    /// Returns the name of the database, as its makers write it.
    pub const fn name(&self) -> &'static str {
        name(self.engine)
    }

    /// Returns the first line of the server's `--version`.
    ///
    /// # Errors
    /// If the server does not run.
    pub fn version(&self) -> anyhow::Result<String> {
        let output = Command::new(&self.server).arg("--version").output();
        let output = output.with_context(|| format!("cannot run {}", self.server.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().next().unwrap_or_default();
        Ok(line.rsplit('/').next().unwrap_or(line).trim().to_owned())
    }

    fn install(&self, place: &Path) -> Command {
        let mut install = Command::new(&self.install);
        let data = place.join("data");
        match self.engine {
            DatabaseEngine::Mariadb => install
                .args(["--no-defaults", "--auth-root-authentication-method=normal"])
                .arg(format!("--datadir={}", data.display())),
            DatabaseEngine::Postgresql => install
                .args(["--auth=trust", "--username=lull", "--no-sync", "--encoding=UTF8"])
                .arg("--locale=C")
                .arg("-D")
                .arg(data),
        };
        install
    }

    fn server(&self, place: &Path, connections: u32) -> Command {
        let mut server = Command::new(&self.server);
        let path = |option: &str, name: &str| format!("--{option}={}", place.join(name).display());
        match self.engine {
            DatabaseEngine::Mariadb => {
                server.args(["--no-defaults", "--skip-networking", "--back-log=1000"]);
                server.args([path("datadir", "data"), path("tmpdir", "tmp")]);
                server.args([path("socket", "run/socket"), path("pid-file", "run/pid")]);
                server.arg(format!("--max-connections={connections}"));
                server.args(["--innodb-buffer-pool-size=256M", "--max-prepared-stmt-count=100000"]);
                server.arg("--innodb-flush-log-at-trx-commit=2");
            }
            DatabaseEngine::Postgresql => {
                server.arg("-D").arg(place.join("data"));
                let socket = format!("unix_socket_directories={}/run", place.display());
                let connections = format!("max_connections={connections}");
                let settings = [
                    "listen_addresses=",
                    &socket,
                    &connections,
                    "shared_buffers=256MB",
                    // Segments in the data directory, which is removed.
                    "dynamic_shared_memory_type=mmap",
                    "fsync=off",
                    "synchronous_commit=off",
                    // Work that one block puts off must not fall into another.
                    "autovacuum=off",
                    "checkpoint_timeout=1d",
                    "max_wal_size=4GB",
                ];
                for setting in settings {
                    server.args(["-c", setting]);
                }
            }
        }
        server
    }

    /// The socket, and the address on it.
    fn address(&self, place: &Path) -> (PathBuf, Address) {
        let (protocol, socket, user, database) = match self.engine {
            DatabaseEngine::Mariadb => (Protocol::Mysql, "run/socket", "root", "test"),
            DatabaseEngine::Postgresql => {
                (Protocol::Postgres, "run/.s.PGSQL.5432", "lull", "postgres")
            }
        };
        let socket = place.join(socket);
        let address = Address::database_on_socket(protocol, &socket, user, database);
        (socket, address)
    }

    fn gate_protocol(&self) -> Option<GateProtocol> {
        GateProtocol::from_name(match self.engine {
            DatabaseEngine::Mariadb => "mysql",
            DatabaseEngine::Postgresql => "postgres",
        })
    }
}

const fn name(engine: DatabaseEngine) -> &'static str {
    match engine {
        DatabaseEngine::Mariadb => "MariaDB",
        DatabaseEngine::Postgresql => "PostgreSQL",
    }
}

/// The directories with programs of PostgreSQL, of the newest version first.
fn postgres_places() -> Vec<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = Vec::new();
    for parent in POSTGRES_VERSIONS {
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let number = name.strip_prefix("pgsql-").unwrap_or(&name).parse();
            versions.extend(number.ok().map(|number| (number, entry.path().join("bin"))));
        }
    }
    versions.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    versions.into_iter().map(|(_, place)| place).collect()
}

/// A running server. It is ended and removed when the value is dropped.
pub struct TemporaryDatabase {
    child: Child,
    address: Address,
    runtime: Arc<Runtime>,
    place: TempDir,
    _directory: PageDirectory,
    _page: TempDir,
    _library: Library,
}

impl TemporaryDatabase {
    /// Installs a database and starts its server with an open gate; returns when it answers.
    ///
    /// # Errors
    /// If a program fails (with the end of its output), or a stop is requested.
    pub fn start(
        programs: &DatabasePrograms,
        connections: u16,
        stop: &AtomicBool,
    ) -> anyhow::Result<Self> {
        remove_leftovers();
        let place = scratch_directory(&std::env::temp_dir(), PREFIX)?;
        let (socket, address) = programs.address(place.path());
        ensure!(
            socket.as_os_str().len() < SOCKET_BYTES_MAX,
            "the path of the unix socket {} is too long: set TMPDIR to a shorter directory",
            socket.display()
        );
        make_own(&place, &["data", "tmp", "run"])?;
        install(programs, place.path(), stop)?;
        let page = scratch_directory(Path::new(MEMORY), PREFIX)
            .or_else(|_| scratch_directory(&std::env::temp_dir(), PREFIX))?;
        let owner = geteuid().is_root().then_some(NOBODY);
        let directory = PageDirectory::open(&page.path().join("page"), owner)?;
        let protocol = programs.gate_protocol();
        let rules = Rules { protocol, gates_unix: true, ..Rules::default() };
        let open = Settings { mode: Mode::Stats, ..Settings::default() };
        let runtime = Runtime::attach(&directory, &open, &rules, &Roots::default())?;
        let library = Library::write()?;
        let mut command = programs.server(place.path(), u32::from(connections) + 20);
        command.env("LD_PRELOAD", library.path()).env("LULL_PAGE", directory.page_path());
        let child = spawn(&mut command, place.path(), "server.log")?;
        let mut server = Self {
            child,
            address,
            runtime: Arc::new(runtime),
            place,
            _directory: directory,
            _page: page,
            _library: library,
        };
        server.wait_until_it_answers(&socket, stop)?;
        Ok(server)
    }

    /// Returns the address of its unix socket.
    pub fn address(&self) -> Address {
        self.address.clone()
    }

    /// Returns the runtime of its gate.
    pub const fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    fn wait_until_it_answers(&mut self, socket: &Path, stop: &AtomicBool) -> anyhow::Result<()> {
        let (endpoint, begun) = (Endpoint::Unix(socket.to_owned()), Instant::now());
        // Statements are not prepared, because there are no tables yet.
        let simple = DatabaseConfig { statements: Statements::Simple, ..DatabaseConfig::default() };
        let database = Database::new(&self.address, &simple)?;
        loop {
            if stop.load(Ordering::Relaxed) {
                bail!("stopped before the end");
            }
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "the server ended with {status}:\n{}",
                    end_of_log(self.place.path(), "server.log")
                );
            }
            match database.set_up(&endpoint, false, stop) {
                Ok(()) => return Ok(()),
                Err(error) if begun.elapsed() > START_MAX => {
                    return Err(error).context("the server does not answer after a minute");
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}

impl Drop for TemporaryDatabase {
    fn drop(&mut self) {
        // SIGQUIT ends all processes of PostgreSQL immediately and frees its shared memory. There
        // is nothing to save, so that MariaDB is killed.
        let signal = match self.address.protocol() {
            Protocol::Postgres => Signal::QUIT,
            _ => Signal::KILL,
        };
        let _ = kill_process(Pid::from_child(&self.child), signal);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > END_MAX {
                let _ = self.child.kill();
            }
            std::thread::sleep(PAUSE);
        }
        end_all(self.place.path());
    }
}

/// Makes directories that the server's user can write to.
fn make_own(place: &TempDir, names: &[&str]) -> anyhow::Result<()> {
    let owner = geteuid().is_root().then_some(NOBODY);
    for path in names.iter().map(|name| place.path().join(name)) {
        std::fs::create_dir(&path)
            .and_then(|()| chown(&path, owner, owner))
            .with_context(|| format!("cannot make {}", path.display()))?;
    }
    Ok(())
}

/// Starts a program as the server's user, in a process group of its own, so that Ctrl-C
/// reaches this program only.
fn spawn(command: &mut Command, place: &Path, log: &str) -> anyhow::Result<Child> {
    let log = File::create(place.join(log))?;
    command.current_dir(place).env("TMPDIR", place.join("tmp")).process_group(0);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    if geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let failed = || format!("cannot start {}", command.get_program().display());
    let failed = failed();
    command.spawn().context(failed)
}

fn install(programs: &DatabasePrograms, place: &Path, stop: &AtomicBool) -> anyhow::Result<()> {
    let mut command = programs.install(place);
    // Marks the program's processes for `end_all`.
    let mut child = spawn(command.env("LULL_DEMO", place), place, "install.log")?;
    loop {
        if let Some(status) = child.try_wait()? {
            let program = programs.install.display();
            let end = || end_of_log(place, "install.log");
            ensure!(status.success(), "{program} ended with {status}:\n{}", end());
            return Ok(());
        }
        if stop.load(Ordering::Relaxed) {
            let _ = child.kill();
            child.wait()?;
            end_all(place);
            bail!("stopped before the end");
        }
        std::thread::sleep(PAUSE);
    }
}

fn end_of_log(place: &Path, log: &str) -> String {
    let text = std::fs::read(place.join(log)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

/// Ends all processes with this directory in their environment, by SIGQUIT and then SIGKILL.
fn end_all(place: &Path) {
    let begun = Instant::now();
    loop {
        let Ok(users) = scratch::users(place) else { return };
        if users.is_empty() {
            return;
        }
        let is_late = begun.elapsed() > END_MAX;
        let signal = if is_late { Signal::KILL } else { Signal::QUIT };
        for pid in users.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
        if begun.elapsed() > 2 * END_MAX {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Ends the servers and removes the directories of runs that were killed.
fn remove_leftovers() {
    for parent in [std::env::temp_dir(), PathBuf::from(MEMORY)] {
        for path in scratch::leftovers(&parent, PREFIX) {
            end_all(&path);
            // A directory that cannot be removed now is removed by the next start.
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_database_comes_with_how_to_install_it() {
        let empty = tempfile::tempdir().unwrap();
        let places = [empty.path().to_owned()];
        let refused =
            DatabasePrograms::find_in(&[DatabaseEngine::Mariadb], &places).unwrap_err().to_string();
        assert!(refused.starts_with("MariaDB is not installed: `apt-get install "), "{refused}");
        for name in ["mariadb-install-db", "mariadbd"] {
            std::fs::write(empty.path().join(name), "").unwrap();
        }
        let found = DatabasePrograms::in_places(DatabaseEngine::Mariadb, &places).unwrap();
        assert_eq!(found.server, empty.path().join("mariadbd"));
    }
}
