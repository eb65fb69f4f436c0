//! Tomcat and MariaDB of Debian on directories of their own, a core each.
//!
//! Nothing of the machine's own servers is touched: both listen on free ports of the loopback
//! interface, as the users that their packages made, and end with this process.

use crate::command::done;
use crate::packages::{install_packages, on_path};
use anyhow::{Context, Result, bail, ensure};
use rustix::param::clock_ticks_per_second;
use serde_json::Value;
use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Cores of Tomcat and of MariaDB.
pub(super) const FRONT: u16 = 0;
pub(super) const BACK: u16 = 1;
/// Connections in Tomcat's pool, as in the paper.
pub(super) const CONNECTIONS: u32 = 50;

/// Debian's packages, and a file of each.
const PACKAGES: [(&str, &str); 3] = [
    ("tomcat10", "/usr/share/tomcat10/bin/bootstrap.jar"),
    ("libmariadb-java", "/usr/share/java/mariadb-java-client.jar"),
    ("mariadb-server", "/usr/sbin/mariadbd"),
];
const TOMCAT: &str = "/usr/share/tomcat10";
const DRIVER: &str = "/usr/share/java/mariadb-java-client.jar";
/// How often the page's rows are sorted and written, which makes a request take as long in
/// Tomcat as in MariaDB.
const PASSES: u32 = 3;
const START_MAX: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);
/// Connections of the closed loop that measures what the tiers can do, and how long it runs:
/// first until the Java compiler has compiled the page's code, then to measure.
const CLIENTS: &str = "32";
const WARM: &str = "25s";
const MEASURED: &str = "10s";

/// The demands of a request at full speed.
pub(super) struct Demands {
    /// Requests that both tiers together answer.
    pub(super) capacity_per_s: f64,
    /// CPU time in Tomcat.
    pub(super) tomcat_ms: f64,
    /// CPU time in MariaDB.
    pub(super) mariadb_ms: f64,
}

/// A server that ends with this value.
struct Server {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

/// Both servers.
pub(super) struct Servers {
    tomcat: Server,
    mariadb: Server,
    http_port: u16,
    samples: PathBuf,
}

/// Installs what is missing.
///
/// # Errors
/// If a package is missing and cannot be installed.
pub(super) fn provide() -> Result<()> {
    let is_missing = |(_, file): &&(&str, &str)| !Path::new(file).exists();
    let missing = PACKAGES.iter().filter(is_missing).map(|(package, _)| *package);
    let mut missing: Vec<&str> = missing.collect();
    if on_path("java").is_none() {
        missing.push("default-jre-headless");
    }
    if missing.is_empty() || install_packages(&missing) {
        return Ok(());
    }
    bail!("the two tiers need: apt-get install {}", missing.join(" "))
}

/// A directory that the servers' users can reach, removed at the end.
pub(super) fn directory() -> Result<TempDir> {
    let place = tempfile::Builder::new().prefix("lull-tiers-").tempdir()?;
    std::fs::set_permissions(place.path(), Permissions::from_mode(0o755))?;
    Ok(place)
}

impl Servers {
    /// Starts both servers; returns when the page answers. Tomcat samples the speed of MariaDB's
    /// core from the files of the emulation.
    ///
    /// # Errors
    /// If one cannot be started or does not answer, with the end of its log.
    pub(super) fn start(place: &Path, emulated: &Path) -> Result<Self> {
        let [http_port, database_port] = [free_port()?, free_port()?];
        let mariadb = start_mariadb(place, database_port)?;
        let base = place.join("tomcat");
        make_base(&base, [http_port, database_port])?;
        let samples = base.join("samples.csv");
        let speed = emulated.join(format!("cpufreq/policy{BACK}/scaling_cur_freq"));
        let temporary = base.join("temp");
        let mut command = own_core(FRONT, "tomcat");
        command.args(["java", "-Xmx256m", "-XX:+UseSerialGC"]);
        for (key, value) in [
            ("catalina.home", Path::new(TOMCAT)),
            ("catalina.base", base.as_path()),
            ("java.io.tmpdir", temporary.as_path()),
            ("lull.speed", speed.as_path()),
            ("lull.samples", samples.as_path()),
        ] {
            command.arg(format!("-D{key}={}", value.display()));
        }
        command.args(["-cp", &format!("{TOMCAT}/bin/bootstrap.jar:{TOMCAT}/bin/tomcat-juli.jar")]);
        command.args(["org.apache.catalina.startup.Bootstrap", "start"]);
        let mut tomcat = Server::start("tomcat", &mut command, place)?;
        tomcat.wait_for(|| is_answered(http_port))?;
        Ok(Self { tomcat, mariadb, http_port, samples })
    }

    /// The address of the page.
    pub(super) fn page(&self) -> String {
        format!("http://127.0.0.1:{}/shop.jsp", self.http_port)
    }

    /// The processes of Tomcat and of MariaDB.
    pub(super) fn pids(&self) -> [u32; 2] {
        [self.tomcat.child.id(), self.mariadb.child.id()]
    }

    /// Where Tomcat writes its samples.
    pub(super) fn samples(&self) -> &Path {
        &self.samples
    }

    /// Loads the page in a closed loop, and measures what a request takes once it is compiled.
    ///
    /// # Errors
    /// If the load client fails or requests do.
    pub(super) fn measure(&self, lull: &Path) -> Result<Demands> {
        self.load(lull, WARM)?;
        let cpu_s = |server: &Server| cpu_time_s(server.child.id());
        let before_s = [cpu_s(&self.tomcat)?, cpu_s(&self.mariadb)?];
        let report = self.load(lull, MEASURED)?;
        let after_s = [cpu_s(&self.tomcat)?, cpu_s(&self.mariadb)?];
        let number =
            |key: &str| report[key].as_f64().with_context(|| format!("lull load reports no {key}"));
        let answered = number("completed_requests")?;
        ensure!(
            number("failed_requests")? == 0.0,
            "requests failed: see {}",
            self.tomcat.log.display()
        );
        let ms = |tier: usize| 1e3 * (after_s[tier] - before_s[tier]) / answered;
        Ok(Demands {
            capacity_per_s: number("completed_requests_per_second")?,
            tomcat_ms: ms(0),
            mariadb_ms: ms(1),
        })
    }

    fn load(&self, lull: &Path, time: &str) -> Result<Value> {
        let mut command = Command::new(lull);
        command.arg("load").arg(self.page());
        command.args(["--closed", "--connections", CLIENTS, "--for", time, "--json"]);
        let output = command.stderr(Stdio::inherit()).output().context("cannot start lull")?;
        ensure!(output.status.success(), "lull load ended with {}", output.status);
        serde_json::from_slice(&output.stdout).context("lull load prints no JSON")
    }
}

impl Server {
    fn start(name: &'static str, command: &mut Command, place: &Path) -> Result<Self> {
        let log = place.join(format!("{name}.log"));
        let output = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name, child, log })
    }

    fn wait_for(&mut self, mut is_ready: impl FnMut() -> bool) -> Result<()> {
        let begun = Instant::now();
        while !is_ready() {
            let ended = self.child.try_wait()?;
            if ended.is_some() || begun.elapsed() > START_MAX {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                let end: Vec<&str> = log.lines().rev().take(20).collect();
                let end: Vec<&str> = end.into_iter().rev().collect();
                let state =
                    ended.map_or_else(|| "does not answer".to_owned(), |it| format!("ended: {it}"));
                bail!("{} {state}\n{}", self.name, end.join("\n"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server has nothing to save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that runs on one core, as the user of a package, and no longer than this process.
fn own_core(core: u16, user: &str) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string(), "setpriv", "--reuid", user, "--regid", user]);
    command.args(["--clear-groups", "--pdeathsig", "KILL"]);
    command
}

/// An empty MariaDB with the items.
fn start_mariadb(place: &Path, port: u16) -> Result<Server> {
    let data = place.join("data");
    // A server deletes all files in its directory of temporary tables at its start, also those of
    // other servers.
    let temporary = place.join("mariadb-tmp");
    std::fs::create_dir(&temporary)?;
    done(Command::new("chown").arg("mysql:mysql").arg(&temporary))?;
    let mut install = Command::new("mariadb-install-db");
    install.env("TMPDIR", &temporary);
    install.args(["--no-defaults", "--user=mysql", "--auth-root-authentication-method=socket"]);
    install.arg(format!("--datadir={}", data.display())).stdout(Stdio::null());
    done(&mut install)?;
    let socket = data.join("socket");
    let mut command = own_core(BACK, "mysql");
    command.args(["mariadbd", "--no-defaults", "--bind-address=127.0.0.1"]);
    command.arg(format!("--port={port}")).arg(format!("--datadir={}", data.display()));
    command.arg(format!("--socket={}", socket.display()));
    command.arg(format!("--pid-file={}", data.join("pid").display()));
    command.arg(format!("--tmpdir={}", temporary.display()));
    command.args(["--innodb-buffer-pool-size=128M", "--max-connections=100"]);
    let mut server = Server::start("mariadb", &mut command, place)?;
    let client = |statements: &str| -> Result<()> {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "--user=root", "--socket"]).arg(&socket);
        client.stdout(Stdio::null()).stderr(Stdio::null());
        done(client.args(["--execute", statements]))
    };
    server.wait_for(|| client("SELECT 1").is_ok())?;
    client(include_str!("shop.sql")).context("the table of items cannot be made")?;
    Ok(server)
}

/// Tomcat's directory with the page.
fn make_base(base: &Path, [http_port, database_port]: [u16; 2]) -> Result<()> {
    for directory in ["conf", "lib", "logs", "temp", "work", "webapps/ROOT"] {
        std::fs::create_dir_all(base.join(directory))?;
    }
    let server = include_str!("server.xml")
        .replace("@HTTP_PORT@", &http_port.to_string())
        .replace("@DATABASE_PORT@", &database_port.to_string())
        .replace("@CONNECTIONS@", &CONNECTIONS.to_string());
    std::fs::write(base.join("conf/server.xml"), server)?;
    std::fs::copy(format!("{TOMCAT}/etc/web.xml"), base.join("conf/web.xml"))?;
    let page = include_str!("shop.jsp").replace("@PASSES@", &PASSES.to_string());
    std::fs::write(base.join("webapps/ROOT/shop.jsp"), page)?;
    symlink(DRIVER, base.join("lib/mariadb-java-client.jar"))?;
    done(Command::new("chown").args(["-R", "tomcat:tomcat"]).arg(base))
}

/// A port of the loopback interface that is free now.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Whether the page is served without an error.
fn is_answered(port: u16) -> bool {
    let request = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.write_all(b"GET /shop.jsp HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    request().is_ok_and(|answer| {
        answer.split_once(' ').is_some_and(|(_, status)| status.starts_with("200"))
    })
}

/// The CPU time of a process and of its threads so far (proc_pid_stat(5)).
fn cpu_time_s(pid: u32) -> Result<f64> {
    let file = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    let ticks = cpu_ticks(&text).with_context(|| format!("{file} has no CPU time"))?;
    Ok(ticks as f64 / clock_ticks_per_second() as f64)
}

/// Fields 14 and 15, `utime` and `stime`. The name in brackets before may have blanks.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some(ticks()? + ticks()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_that_in_user_and_kernel_mode_whatever_the_name() {
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 250 50 3 4 20 0 40";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("7 (short) S 1"), None);
        assert!(cpu_time_s(std::process::id()).unwrap() >= 0.0);
    }

    #[test]
    fn all_places_in_the_servers_files_are_filled() {
        let base = include_str!("server.xml");
        for place in ["@HTTP_PORT@", "@DATABASE_PORT@", "@CONNECTIONS@"] {
            assert!(base.contains(place), "{place}");
        }
        assert!(include_str!("shop.jsp").contains("PASSES = @PASSES@;"));
    }
}
