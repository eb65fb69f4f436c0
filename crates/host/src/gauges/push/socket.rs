//! The listening socket: private to its user, and never two agents on one.

use rustix::fs::{Mode, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Connections that wait to be accepted; clients connect once a run.
const BACKLOG: i32 = 128;

/// Why the agent cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum PushSocketError {
    /// Another process answers at the socket.
    #[error("{path} is in use by another agent: stop that one, or give this one another socket")]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// A file is in the way.
    #[error("{path} exists and is not a socket: remove it, or choose another path")]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// The kernel refused.
    #[error("cannot listen at {path}: {source}; the path must be writable and under 108 bytes")]
    Kernel {
        /// Where.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
}

/// A listening socket; its file is removed when it is dropped.
#[derive(Debug)]
pub struct PushSocket {
    listener: UnixListener,
    path: PathBuf,
    inode: Option<u64>,
}

impl PushSocket {
    /// Listens at a path; a socket that a killed agent left there is replaced.
    ///
    /// # Errors
    /// If another agent listens there, or the socket cannot be made.
    pub fn bind(path: &Path) -> Result<Self, PushSocketError> {
        remove_stale(path)?;
        let failed = |source: io::Error| PushSocketError::Kernel { path: path.to_owned(), source };
        let listener = listener(path).map_err(failed)?;
        let inode = inode_of(path);
        Ok(Self { listener, path: path.to_owned(), inode })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The listening socket, from which another process may accept.
    pub const fn listener(&self) -> &UnixListener {
        &self.listener
    }
}

/// The next connection that is waiting, not blocking itself.
pub(super) fn accept(listener: &UnixListener) -> Option<UnixStream> {
    let (stream, _) = listener.accept().ok()?;
    stream.set_nonblocking(true).ok()?;
    Some(stream)
}

impl Drop for PushSocket {
    fn drop(&mut self) {
        // Another agent may have replaced the file meanwhile.
        if self.inode.is_some() && inode_of(&self.path) == self.inode {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode_of(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|meta| meta.ino())
}

/// Removes a socket on which no process listens any more.
fn remove_stale(path: &Path) -> Result<(), PushSocketError> {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !meta.file_type().is_socket() {
        return Err(PushSocketError::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            let failed = |source| PushSocketError::Kernel { path: path.to_owned(), source };
            std::fs::remove_file(path).map_err(failed)
        }
        // The socket is in use, also where another user's agent refuses the connection.
        _ => Err(PushSocketError::InUse { path: path.to_owned() }),
    }
}

fn listener(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file takes the mode that the socket has when it is bound, so there
    // is no moment in which others could connect.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_agents_user_may_push() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("push");
        let socket = PushSocket::bind(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(socket);
        assert!(!path.exists(), "left behind");
    }

    #[test]
    fn a_second_agent_is_refused_and_a_dead_ones_socket_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("push");
        let first = PushSocket::bind(&path).unwrap();
        let refused = PushSocket::bind(&path).unwrap_err();
        assert!(matches!(refused, PushSocketError::InUse { .. }), "{refused}");
        assert!(
            accept(first.listener()).is_some(),
            "the first goes on; this was the second's question"
        );
        // The state after SIGKILL: the file stays and no process listens. A listener that
        // is dropped here could live on for a moment in a child of another test.
        let abandoned = dir.path().join("abandoned");
        let deaf = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        bind(deaf.unwrap(), &SocketAddrUnix::new(&abandoned).unwrap()).unwrap();
        assert!(abandoned.exists());
        PushSocket::bind(&abandoned).unwrap();
    }

    #[test]
    fn a_file_in_the_way_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        std::fs::write(&path, "mine").unwrap();
        assert!(matches!(PushSocket::bind(&path), Err(PushSocketError::NotASocket { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn a_path_that_cannot_be_is_named() {
        let long = Path::new("/tmp").join("x".repeat(200));
        for path in [long.as_path(), Path::new("/nowhere/push")] {
            let error = PushSocket::bind(path).unwrap_err().to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
    }
}
