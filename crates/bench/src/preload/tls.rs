//! The cost of the library to a query under TLS, and the gain by the gate there: on one server with
//! TLS and in the clear, in turn.

use super::super::process::printed;
use super::super::stats::{Summary, interleave};
use super::contest::{BARE, Bound, CAP_16, Figure, Load, Served, Setting, gains_like};
use super::ran::LoadRun;
use super::{Report, found, succeeded};
use anyhow::{Context as _, Result};
use serde::Deserialize;
use std::cell::RefCell;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const ROUNDS: usize = 9;
/// Bound of the design, in nanoseconds over a plain query.
const BEYOND_PLAIN_MAX_NS: f64 = 300.0;
/// Client and server in one thread (`query.c`).
const SOURCE: &str = "crates/bench/src/preload/query.c";

/// The measurements of one process.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct Costs {
    pub(super) plain: Cost,
    tls: Cost,
}

/// The server's part of a query.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct Cost {
    /// Time by the functions behind those that the library replaces.
    ns: f64,
    /// Further time by the replaced functions on the same connection.
    pub(super) beyond_ns: f64,
}

/// The program that measures a query of MySQL's protocol, plain and under TLS.
pub(super) struct QueryProgram {
    place: TempDir,
    files: Files,
}

impl QueryProgram {
    /// Builds it from the sources at `root`.
    ///
    /// # Errors
    /// If there is no compiler or no `openssl`, or one of them fails.
    pub(super) fn build(root: &Path) -> Result<Self> {
        let place = tempfile::tempdir()?;
        let files = Files::create(place.path())?;
        let built = Self { place, files };
        let mut cc = Command::new(found("cc")?);
        cc.args(["-O2", "-o"]).arg(built.path()).arg(root.join(SOURCE));
        succeeded(cc.args(["-l:libssl.so.3", "-l:libcrypto.so.3"]))?;
        Ok(built)
    }

    fn path(&self) -> PathBuf {
        self.place.path().join("query")
    }

    /// Runs it bare, or under `lull exec` with these arguments.
    ///
    /// # Errors
    /// If it fails, or prints no figures.
    pub(super) fn run(&self, lull: &Path, exec: Option<&[&str]>) -> Result<Costs> {
        let mut command = super::command(lull, exec, &self.path());
        command.arg(self.files.key()).arg(self.files.certificate());
        costs(&printed(&mut command)?.text)
    }
}

const BARE_TLS: Setting = Setting { name: "bare over TLS", ..BARE };
const CAP_16_TLS: Setting = Setting { name: "cap 16 over TLS", ..CAP_16 };
/// The servers, and the ways in which they are loaded, in the order of [`in_both_ways`].
pub(super) const SERVERS: &[Setting] = &[BARE, CAP_16];
pub(super) const WAYS: &[Setting] = &[BARE, CAP_16, BARE_TLS, CAP_16_TLS];
/// Rounds of a comparison of two gains, each of which is a ratio of two runs.
pub(super) const GAIN_ROUNDS: usize = 7;

/// A server whose clients connect in the clear, or over TLS.
pub(super) trait OverTls: Served {
    /// Loads it over TLS for this many seconds.
    fn load_over_tls(&self, load: Load, seconds: u32) -> Result<LoadRun>;
}

/// A server with one way to load it.
pub(super) struct LoadedServer<'s, S> {
    server: &'s S,
    setting: Setting,
    is_over_tls: bool,
}

impl<S: OverTls> Served for LoadedServer<'_, S> {
    const CLIENT: &'static str = S::CLIENT;

    fn setting(&self) -> Setting {
        self.setting
    }

    fn pid(&self) -> u32 {
        self.server.pid()
    }

    fn load(&self, load: Load, seconds: u32) -> Result<LoadRun> {
        if self.is_over_tls {
            self.server.load_over_tls(load, seconds)
        } else {
            self.server.load(load, seconds)
        }
    }
}

/// The servers of [`SERVERS`], each in the clear and over TLS.
pub(super) fn in_both_ways<S: OverTls>(servers: &[S]) -> Vec<LoadedServer<'_, S>> {
    let count = servers.len();
    let way = move |(at, setting): (usize, &Setting)| LoadedServer {
        server: &servers[at % count],
        setting: *setting,
        is_over_tls: at >= count,
    };
    WAYS.iter().enumerate().map(way).collect()
}

/// The gain in the clear must be had over TLS, within noise.
pub(super) fn gain_over_tls(figure: Figure) -> Bound {
    let over_tls = [CAP_16_TLS.name, BARE_TLS.name];
    gains_like(over_tls, [CAP_16.name, BARE.name], figure)
}

pub(super) fn measure_query(lull: &Path, root: &Path, report: &mut Report) -> Result<()> {
    let program = QueryProgram::build(root)?;
    let (bare, watched) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    let take = |exec: Option<&[&str]>, all: &RefCell<Vec<Costs>>| {
        all.borrow_mut().push(program.run(lull, exec)?);
        Ok(0.0)
    };
    interleave(
        ROUNDS,
        &mut [&mut || take(None, &bare), &mut || take(Some(&["--protocol", "mysql"]), &watched)],
    )?;
    // The first round warms up.
    rows(report, &bare.into_inner()[1..], &watched.into_inner()[1..]);
    report.note(format!(
        "Queries: {ROUNDS} processes of each kind in turn, each client and server in one thread \
         over loopback, by CPU time of the server's part: two reads and a write, of MySQL's \
         protocol. In each process the replaced functions and those behind them take turns on \
         the same connection, and what the library adds is by how much more they differ. Under TLS \
         both call the replaced read and write of the socket, a lookup of its descriptor."
    ));
    Ok(())
}

fn rows(report: &mut Report, bare: &[Costs], watched: &[Costs]) {
    let beyond = |figure: fn(&Costs) -> f64| {
        Summary::new(watched.iter().zip(bare).map(|(watched, bare)| figure(watched) - figure(bare)))
    };
    let plain = Summary::new(bare.iter().map(|one| one.plain.ns));
    report.reported("query of MySQL's protocol, bare", plain, "ns");
    let tls = Summary::new(bare.iter().map(|one| one.tls.ns));
    report.reported("the same under TLS, bare", tls, "ns");
    report.reported("query, beyond bare", beyond(|one| one.plain.beyond_ns), "ns");
    report.reported("query under TLS, beyond bare", beyond(|one| one.tls.beyond_ns), "ns");
    let more = beyond(|one| one.tls.beyond_ns - one.plain.beyond_ns);
    let range = f64::NEG_INFINITY..=BEYOND_PLAIN_MAX_NS;
    report.bounded("query under TLS, beyond a plain one", more, "ns", range);
}

/// Reads the costs in a process's output, which may have its server's lines too.
fn costs(text: &str) -> Result<Costs> {
    let line = text.lines().find(|line| line.starts_with('{'));
    Ok(serde_json::from_str(line.context("the program printed no figures")?)?)
}

/// A key and a certificate that signs itself, under the names that sysbench expects in its
/// working directory.
pub(super) struct Files(PathBuf);

impl Files {
    pub(super) fn create(directory: &Path) -> Result<Self> {
        let files = Self(directory.to_owned());
        let mut openssl = Command::new(found("openssl")?);
        openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]);
        openssl.args(["-subj", "/CN=127.0.0.1", "-keyout"]).arg(files.key());
        succeeded(openssl.arg("-out").arg(files.certificate()).stderr(Stdio::null()))?;
        std::fs::copy(files.certificate(), directory.join("cacert.pem"))?;
        Ok(files)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.0
    }

    fn key(&self) -> PathBuf {
        self.0.join("client-key.pem")
    }

    fn certificate(&self) -> PathBuf {
        self.0.join("client-cert.pem")
    }

    /// Copies key and certificate into the directory of a PostgreSQL server, under the names that
    /// it expects, for the user whose directory that is.
    pub(super) fn copy_into(&self, data: &Path) -> Result<()> {
        let owner = std::fs::metadata(data)?;
        for (from, name) in [(self.key(), "server.key"), (self.certificate(), "server.crt")] {
            let to = data.join(name);
            std::fs::copy(from, &to)?;
            std::fs::set_permissions(&to, Permissions::from_mode(0o600))?;
            chown(&to, Some(owner.uid()), Some(owner.gid()))?;
        }
        Ok(())
    }

    /// Options of a MariaDB server.
    pub(super) fn options(&self) -> [String; 5] {
        let option = |name: &str, path: PathBuf| format!("--ssl-{name}={}", path.display());
        // sysbench sends a certificate, which the server verifies.
        [
            option("key", self.key()),
            option("cert", self.certificate()),
            option("ca", self.certificate()),
            // Handshakes of 512 connections at once take longer than MariaDB's usual backlog, and
            // than the 10 s that it gives a login, on a machine with two cores.
            "--back-log=600".to_owned(),
            "--connect-timeout=60".to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Server(Setting);

    impl Served for Server {
        const CLIENT: &'static str = "client";

        fn setting(&self) -> Setting {
            self.0
        }

        fn pid(&self) -> u32 {
            1
        }

        fn load(&self, _load: Load, _seconds: u32) -> Result<LoadRun> {
            Ok(LoadRun::new(1.0, 1.0, Vec::new()))
        }
    }

    impl OverTls for Server {
        fn load_over_tls(&self, _load: Load, _seconds: u32) -> Result<LoadRun> {
            Ok(LoadRun::new(2.0, 1.0, Vec::new()))
        }
    }

    #[test]
    fn each_server_is_loaded_in_the_clear_and_over_tls_by_the_name_of_its_setting() {
        let servers: Vec<Server> = SERVERS.iter().copied().map(Server).collect();
        let load = Load { script: "script", connections: 1 };
        for way in in_both_ways(&servers) {
            let own = way.server.setting().name;
            let name = way.setting().name;
            let per_s = way.load(load, 1).unwrap().queries_per_s;
            assert!(name.starts_with(own), "{name}");
            assert_eq!(per_s == 2.0, name.ends_with("over TLS"), "{name}");
            assert_eq!(way.server.setting().exec, way.setting().exec, "{name}");
        }
    }

    #[test]
    fn figures_are_read_among_other_lines() {
        let line = "{\"plain\": {\"ns\": 3.0, \"beyond_ns\": -0.5}, \
                    \"tls\": {\"ns\": 7.0, \"beyond_ns\": 2.0}}";
        let read = costs(&format!("lull: exec\n{line}\n")).unwrap();
        assert_eq!((read.plain.beyond_ns, read.tls.ns), (-0.5, 7.0));
        assert!(costs("query: connecting failed").is_err());
    }
}
