//! Databases of one protocol from two makers: what their programs are called,
//! and how one is made.

use super::{found, succeeded};
use anyhow::{Context as _, Result, bail};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Says where MySQL was unpacked.
const MYSQL: &str = "LULL_MYSQL";

/// The maker of the database.
#[derive(Debug, Clone)]
pub(super) enum Product {
    /// The one that `cargo xtask test` installs.
    MariaDb,
    /// MySQL, unpacked here, since Debian does not package it.
    MySql(PathBuf),
}

/// The unix socket of a server with this directory.
pub(super) fn socket(data: &Path) -> PathBuf {
    data.join("socket")
}

impl Product {
    /// MySQL, where the environment says that it is.
    ///
    /// # Errors
    /// If it says nothing, or there is no server.
    pub(super) fn mysql() -> Result<Self> {
        let base = std::env::var_os(MYSQL).map(PathBuf::from);
        let base = base.with_context(|| {
            format!(
                "set {MYSQL} to where MySQL is unpacked: a directory with bin/mysqld, \
                 as in its makers' archives for Linux"
            )
        })?;
        let program = base.join("bin/mysqld");
        if !program.is_file() {
            bail!("{MYSQL}: {} is missing", program.display());
        }
        Ok(Self::MySql(base))
    }

    /// Returns its makers' name for it.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::MariaDb => "MariaDB",
            Self::MySql(_) => "MySQL",
        }
    }

    /// The server.
    pub(super) fn program(&self) -> Result<PathBuf> {
        match self {
            Self::MariaDb => found("mariadbd"),
            Self::MySql(base) => Ok(base.join("bin/mysqld")),
        }
    }

    /// Options of a server with this directory and address.
    pub(super) fn options(&self, data: &Path, address: SocketAddr) -> Vec<String> {
        let path = |option: &str, name: &str| format!("--{option}={}", data.join(name).display());
        let all = [
            "--no-defaults",
            "--user=root",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--max-connections=600",
            "--max-prepared-stmt-count=100000",
            "--innodb-flush-log-at-trx-commit=2",
        ];
        let own = [
            format!("--datadir={}", data.display()),
            format!("--tmpdir={}", data.display()),
            format!("--port={}", address.port()),
            format!("--socket={}", socket(data).display()),
            path("pid-file", "pid"),
        ];
        all.map(str::to_owned).into_iter().chain(own).chain(self.further_options()).collect()
    }

    fn further_options(&self) -> Vec<String> {
        match self {
            Self::MariaDb => Vec::new(),
            Self::MySql(base) => vec![
                format!("--basedir={}", base.display()),
                format!("--lc-messages-dir={}", base.join("share").display()),
                "--mysqlx=OFF".to_owned(),
                // MariaDB's default, so that both write the same.
                "--skip-log-bin".to_owned(),
            ],
        }
    }

    /// Returns the statements that root sends over the socket of an empty database, so that
    /// sysbench finds a schema and may connect over TCP.
    pub(super) fn first_statements(&self) -> &'static str {
        match self {
            Self::MariaDb => "create database sbtest",
            // Its root connects from `localhost` only, which no address is without names.
            Self::MySql(_) => {
                "create database sbtest; \
                 create user root@127.0.0.1 identified with mysql_native_password; \
                 grant all on *.* to root@127.0.0.1"
            }
        }
    }

    /// Makes an empty database whose root has no password.
    pub(super) fn initialise(&self, data: &Path, place: &Path) -> Result<()> {
        let (program, how) = match self {
            Self::MariaDb => {
                (found("mariadb-install-db")?, "--auth-root-authentication-method=normal")
            }
            Self::MySql(_) => (self.program()?, "--initialize-insecure"),
        };
        let mut install = Command::new(program);
        install.args(["--no-defaults", how, "--user=root"]).args(self.further_options());
        // A server that starts removes others' temporary tables where they share a directory.
        install.arg(format!("--datadir={}", data.display())).env("TMPDIR", place);
        succeeded(install.stdout(Stdio::null()).stderr(Stdio::null()))
    }
}
