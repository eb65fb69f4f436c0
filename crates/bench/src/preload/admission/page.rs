//! The page that a server shares with agents, and an agent for each block.

use super::super::postgres::NOBODY;
use super::printing::Printing;
use super::setting::Setting;
use anyhow::{Result, bail};
use rustix::process::geteuid;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A directory in memory, where a page belongs.
const MEMORY: &str = "/dev/shm";

/// A page directory, and the program that attaches to it.
pub(super) struct Page {
    lull: PathBuf,
    place: TempDir,
    library: PathBuf,
    protocol: &'static str,
}

impl Page {
    /// A page for servers of a protocol, with its library below `scratch`.
    ///
    /// # Errors
    /// If its directory cannot be made.
    pub(super) fn new(lull: &Path, scratch: &Path, protocol: &'static str) -> Result<Self> {
        let place = tempfile::tempdir_in(MEMORY)?;
        super::super::make_readable(place.path())?;
        let (lull, library) = (lull.to_owned(), scratch.join("library"));
        Ok(Self { lull, place, library, protocol })
    }

    /// Whether its server is PostgreSQL.
    pub(super) fn is_of_postgres(&self) -> bool {
        self.protocol == "postgres"
    }

    fn attach(&self) -> Command {
        let mut command = Command::new(&self.lull);
        let directory = self.place.path().join("page");
        command.arg("attach").arg(directory).arg("--library").arg(&self.library);
        command.args(["--protocol", self.protocol]);
        // PostgreSQL refuses to run as root; MariaDB runs as the user of the benchmark.
        if self.is_of_postgres() && geteuid().is_root() {
            command.arg("--owner").arg(NOBODY.to_string());
        }
        command
    }

    /// The variables that a server needs, as `NAME=VALUE`.
    ///
    /// # Errors
    /// If the files cannot be made.
    pub(super) fn environment(&self) -> Result<Vec<String>> {
        let output = self.attach().arg("--environment").output()?;
        if !output.status.success() {
            bail!("lull attach failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
    }

    /// Starts the agent of a setting, which leaves the gate open when it ends; `None` for the open
    /// gate.
    ///
    /// # Errors
    /// If the agent cannot be started.
    pub(super) fn agent(&self, setting: &Setting) -> Result<Option<Printing>> {
        if setting.options.is_empty() {
            return Ok(None);
        }
        let mut agent = self.attach();
        agent.args(setting.options);
        Printing::start(agent).map(Some)
    }
}
