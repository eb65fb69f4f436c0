//! The listening sockets, handed over with the first byte of the channel.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

/// Most descriptors: all sockets.
const SOCKETS_MAX: usize = 4;

/// Bits of the byte that comes with the descriptors: which optional sockets follow the first.
const HAS_PAGE: u8 = 1;
const HAS_OTLP: u8 = 2;
const HAS_LINES: u8 = 4;

/// The listeners of a front end, and the source of lines of registered processes.
#[derive(Debug)]
pub(super) struct Listeners {
    /// The push socket.
    pub(super) push: UnixListener,
    /// The page's address.
    pub(super) page: Option<TcpListener>,
    /// The address of the OTLP receiver.
    pub(super) otlp: Option<TcpListener>,
    /// Where the agent sends the lines of processes that register.
    pub(super) lines: Option<UnixDatagram>,
}

impl Listeners {
    /// Sends them to the other end of a channel that blocks.
    pub(super) fn send(&self, channel: &UnixStream) -> io::Result<()> {
        let mut all: Vec<BorrowedFd<'_>> = vec![self.push.as_fd()];
        all.extend([&self.page, &self.otlp].into_iter().flatten().map(AsFd::as_fd));
        all.extend(self.lines.as_ref().map(AsFd::as_fd));
        let has = |is_there: bool, bit| if is_there { bit } else { 0 };
        let which = has(self.page.is_some(), HAS_PAGE)
            | has(self.otlp.is_some(), HAS_OTLP)
            | has(self.lines.is_some(), HAS_LINES);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&all));
        sendmsg(channel, &[IoSlice::new(&[which])], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives them.
    pub(super) fn receive(channel: &UnixStream) -> io::Result<Self> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut parts = [IoSliceMut::new(&mut byte)];
        recvmsg(channel, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut sockets = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(sockets) => sockets.collect::<Vec<OwnedFd>>(),
            _ => Vec::new(),
        });
        let push = sockets.next().ok_or_else(|| io::Error::other("no socket was handed over"))?;
        let [which] = byte;
        let mut next_if = |bit| if which & bit == 0 { None } else { sockets.next() };
        Ok(Self {
            push: push.into(),
            page: next_if(HAS_PAGE).map(TcpListener::from),
            otlp: next_if(HAS_OTLP).map(TcpListener::from),
            lines: next_if(HAS_LINES).map(UnixDatagram::from),
        })
    }
}
