//! Netlink sockets: generic netlink, which carries the kernel's own words on a refusal, and
//! the process connector, which reports forks.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with,
};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// `SOL_NETLINK` and two of its options (linux/netlink.h).
const SOL_NETLINK: libc::c_int = 270;
const NETLINK_CAP_ACK: libc::c_int = 10;
const NETLINK_EXT_ACK: libc::c_int = 11;
/// `NETLINK_GENERIC`.
const GENERIC: u32 = 16;
/// Longer than any answer that is requested here.
const ANSWER_BYTES: usize = 16 << 10;

/// A socket to the kernel's generic netlink families.
#[derive(Debug)]
pub struct GenericNetlink {
    socket: OwnedFd,
}

impl GenericNetlink {
    /// Opens a socket; needs no privilege.
    ///
    /// # Errors
    /// The kernel's error, as where netlink is filtered.
    pub fn open() -> io::Result<Self> {
        let protocol = rustix::net::Protocol::from_raw(
            rustix::net::RawProtocol::new(GENERIC).expect("16 is not 0"),
        );
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(protocol),
        )?;
        for option in [NETLINK_EXT_ACK, NETLINK_CAP_ACK] {
            // A kernel that does not know them says less on a refusal.
            let _ = set_option(&socket, SOL_NETLINK, option, 1);
        }
        Ok(Self { socket })
    }

    /// Sends one message and answers with the next datagram.
    ///
    /// # Errors
    /// The kernel's error to either.
    pub fn ask(&self, message: &[u8]) -> io::Result<Vec<u8>> {
        send(&self.socket, message, SendFlags::empty())?;
        self.next()
    }

    /// The next datagram.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn next(&self) -> io::Result<Vec<u8>> {
        let mut answer = vec![0; ANSWER_BYTES];
        let (length, _) = recv(&self.socket, &mut answer[..], RecvFlags::empty())?;
        answer.truncate(length);
        Ok(answer)
    }
}

/// `NETLINK_CONNECTOR`, and the index and value of the process connector (linux/connector.h).
const CONNECTOR: u32 = 11;
const PROCESSES: u32 = 1;
/// The host's process and user namespaces, and their inodes (`PROC_PID_INIT_INO` and
/// `PROC_USER_INIT_INO` of linux/proc_ns.h). From others the kernel takes no subscription.
const HOST_NAMESPACES: [(&str, u64); 2] =
    [("/proc/self/ns/pid", 0xEFFF_FFFC), ("/proc/self/ns/user", 0xEFFF_FFFD)];
/// Longest time for the kernel to confirm a subscription. It does before the request returns.
const CONFIRM_MS: i32 = 50;
/// Room for some ten thousand events that were not read yet.
const EVENTS_BYTES: libc::c_int = 16 << 20;
/// Bytes of a netlink message, of the connector's message in it, and of the head of an event.
const NLMSG: usize = 16;
const CN_MSG: usize = 20;
const EVENT_HEAD: usize = 16;
/// Room for such a message with an event, which has 76 bytes.
const EVENT_MAX: usize = 128;
/// Datagrams that are received by one call.
const BATCH: usize = 16;
/// Kinds of events (linux/cn_proc.h).
const FORK: u32 = 0x0000_0001;
const EXEC: u32 = 0x0000_0002;
const UID: u32 = 0x0000_0004;
const EXIT: u32 = 0x8000_0000;

/// A process event that the kernel reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessEvent {
    /// `parent` made the process `child`.
    Forked {
        /// The process that made it.
        parent: i32,
        /// The new process.
        child: i32,
    },
    /// A process has executed another program, or has another user.
    Became(i32),
    /// A process has ended.
    Exited(i32),
    /// Events were dropped, because they were not read in time.
    Lost,
}

/// The kernel's process connector: every fork, executed program, change of user and exit on the
/// machine.
#[derive(Debug)]
pub struct ProcessEvents {
    socket: OwnedFd,
}

impl ProcessEvents {
    /// Subscribes.
    ///
    /// # Errors
    /// `EPERM` without `CAP_NET_ADMIN` before Linux 6.6, `ETIMEDOUT` in another process or user
    /// namespace than the host's, others from a kernel without it.
    pub fn subscribe() -> io::Result<Self> {
        // In the host's network namespace, events for another subscriber of the host would arrive
        // and look like the confirmation. A kernel without a kind of namespace lacks its file.
        let is_foreign = |(path, inode): (&str, u64)| {
            std::fs::metadata(path).is_ok_and(|namespace| namespace.ino() != inode)
        };
        if HOST_NAMESPACES.into_iter().any(is_foreign) {
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        let raw = rustix::net::RawProtocol::new(CONNECTOR).expect("11 is not 0");
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(rustix::net::Protocol::from_raw(raw)),
        )?;
        // Above the limit of the system, which only a privileged process may exceed.
        let _ = set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, EVENTS_BYTES);
        join(&socket, PROCESSES)?;
        send(&socket, &subscription(&[1]), SendFlags::empty())?;
        let events = Self { socket };
        if !events.wait(CONFIRM_MS)? {
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        // Since Linux 6.6 a subscriber may choose its events; other kernels ignore the choice.
        let _ =
            send(&events.socket, &subscription(&[1, FORK | EXEC | UID | EXIT]), SendFlags::empty());
        Ok(events)
    }

    /// Reads the reports so far.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn read(&self, mut take: impl FnMut(ProcessEvent)) -> io::Result<()> {
        let mut batch = Batch { bytes: [[0; EVENT_MAX]; BATCH] };
        loop {
            match batch.receive(&self.socket) {
                Ok(datagrams) => datagrams.filter_map(event_in).for_each(&mut take),
                Err(Errno::NOBUFS) => take(ProcessEvent::Lost),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Returns a descriptor that is readable while something reported was not read yet.
    ///
    /// # Errors
    /// If this process has no descriptor left.
    pub fn wakes(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone()
    }

    fn wait(&self, at_most_ms: i32) -> io::Result<bool> {
        let nanos = i64::from(at_most_ms) * 1_000_000;
        let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: nanos };
        let mut ready = [rustix::event::PollFd::new(&self.socket, rustix::event::PollFlags::IN)];
        Ok(rustix::event::poll(&mut ready, Some(&time))? > 0)
    }
}

/// Datagrams that are received by one call.
#[derive(Debug)]
struct Batch {
    bytes: [[u8; EVENT_MAX]; BATCH],
}

impl Batch {
    /// Receives what has arrived, at most [`BATCH`] datagrams, without waiting; of a longer one
    /// its first [`EVENT_MAX`] bytes.
    fn receive(&mut self, socket: &OwnedFd) -> Result<impl Iterator<Item = &[u8]>, Errno> {
        let mut parts = self
            .bytes
            .each_mut()
            .map(|bytes| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
        let mut heads = parts.each_mut().map(|part| {
            // SAFETY: all bytes zero are a `mmsghdr`, of no address and no data.
            let mut head: libc::mmsghdr = unsafe { std::mem::zeroed() };
            (head.msg_hdr.msg_iov, head.msg_hdr.msg_iovlen) = (part, 1);
            head
        });
        let socket = socket.as_raw_fd();
        // SAFETY: each of the heads points to one part and that to bytes of its length, all of
        // which live and are written to by the kernel alone until the call returns.
        let count = unsafe {
            let (flags, no_limit) = (libc::MSG_DONTWAIT, std::ptr::null_mut());
            libc::recvmmsg(socket, heads.as_mut_ptr(), BATCH as u32, flags as _, no_limit)
        };
        let Ok(count) = usize::try_from(count) else {
            let error = io::Error::last_os_error();
            return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        };
        let lengths = heads.map(|head| head.msg_len as usize);
        let received = self.bytes.iter().zip(lengths).take(count);
        Ok(received.map(|(bytes, length)| &bytes[..length.min(EVENT_MAX)]))
    }
}

/// A message to the connector with these words: 1 (listen), and the events to listen to.
fn subscription(words: &[u32]) -> Vec<u8> {
    let data = words.len() * 4;
    let mut message = Vec::with_capacity(NLMSG + CN_MSG + data);
    let length = (NLMSG + CN_MSG + data) as u32;
    message.extend(length.to_ne_bytes());
    message.extend((libc::NLMSG_DONE as u16).to_ne_bytes());
    // Flags, sequence number and sender.
    message.extend([0; 10]);
    message.extend(PROCESSES.to_ne_bytes());
    message.extend(PROCESSES.to_ne_bytes());
    // Sequence number and acknowledgement.
    message.extend([0; 8]);
    message.extend((data as u16).to_ne_bytes());
    message.extend([0; 2]);
    words.iter().for_each(|word| message.extend(word.to_ne_bytes()));
    message
}

/// Returns the event of a process; `None` for new threads and for other events.
fn event_in(datagram: &[u8]) -> Option<ProcessEvent> {
    let word = |at: usize| {
        let bytes = datagram.get(NLMSG + CN_MSG + at..)?.first_chunk::<4>()?;
        Some(u32::from_ne_bytes(*bytes))
    };
    let number = |index: usize| Some(word(EVENT_HEAD + index * 4)?.cast_signed());
    match word(0)? {
        FORK => {
            let (parent, child, of_process) = (number(1)?, number(2)?, number(3)?);
            (child == of_process).then_some(ProcessEvent::Forked { parent, child })
        }
        EXEC | UID => {
            let (thread, process) = (number(0)?, number(1)?);
            (thread == process).then_some(ProcessEvent::Became(process))
        }
        EXIT => {
            let (thread, process) = (number(0)?, number(1)?);
            (thread == process).then_some(ProcessEvent::Exited(process))
        }
        _ => None,
    }
}

/// Binds a netlink socket to one multicast group.
fn join(socket: &OwnedFd, group: u32) -> io::Result<()> {
    // SAFETY: an address of zeros is valid: the kernel chooses the port.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_groups = group;
    let pointer: *const libc::sockaddr_nl = &raw const address;
    let size = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
    // SAFETY: the kernel reads `size` bytes at `pointer`, which is that long.
    let done = unsafe { libc::bind(socket.as_raw_fd(), pointer.cast(), size) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set_option(
    socket: &OwnedFd,
    level: libc::c_int,
    option: libc::c_int,
    number: libc::c_int,
) -> io::Result<()> {
    let value: *const libc::c_int = &raw const number;
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads `size` bytes at `value`, which is that long.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value.cast(), size) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn what_becomes_of_a_process_is_reported_where_the_kernel_allows_it() {
        let Ok(events) = ProcessEvents::subscribe() else {
            return lull_testing::skip("the process connector is not available");
        };
        let mut child = Command::new("true").spawn().unwrap();
        let pid = child.id().cast_signed();
        child.wait().unwrap();
        let me = std::process::id().cast_signed();
        let mut seen = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(30);
        while !seen.contains(&ProcessEvent::Exited(pid)) {
            assert!(Instant::now() < deadline, "not reported: {seen:?}");
            events.read(|event| seen.push(event)).unwrap();
        }
        assert!(seen.contains(&ProcessEvent::Forked { parent: me, child: pid }), "{seen:?}");
        assert!(seen.contains(&ProcessEvent::Became(pid)), "{seen:?}");
    }

    #[test]
    fn a_batch_has_all_datagrams_in_their_order_and_the_first_bytes_of_long_ones() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let receiver = OwnedFd::from(receiver);
        let mut batch = Batch { bytes: [[0; EVENT_MAX]; BATCH] };
        assert_eq!(batch.receive(&receiver).err(), Some(Errno::AGAIN), "nothing has arrived");
        let lengths = [1, EVENT_MAX, EVENT_MAX + 1, 0].into_iter().cycle().take(BATCH + 3);
        let sent: Vec<Vec<u8>> = lengths.zip(0..).map(|(length, at)| vec![at; length]).collect();
        sent.iter().for_each(|one| assert_eq!(sender.send(one).unwrap(), one.len()));
        let (mut received, mut counts) = (Vec::<Vec<u8>>::new(), Vec::new());
        while received.len() < sent.len() {
            let before = received.len();
            received.extend(batch.receive(&receiver).unwrap().map(<[u8]>::to_vec));
            counts.push(received.len() - before);
        }
        assert_eq!(counts, [BATCH, 3]);
        let kept = |one: &Vec<u8>| one[..one.len().min(EVENT_MAX)].to_vec();
        assert_eq!(received, sent.iter().map(kept).collect::<Vec<_>>());
    }

    #[test]
    fn threads_and_other_events_are_left_out() {
        let event = |what: u32, numbers: [i32; 4]| {
            let mut datagram = vec![0; NLMSG + CN_MSG];
            datagram.extend(what.to_ne_bytes());
            datagram.extend([0; EVENT_HEAD - 4]);
            numbers.iter().for_each(|number| datagram.extend(number.to_ne_bytes()));
            event_in(&datagram)
        };
        let forked = ProcessEvent::Forked { parent: 7, child: 9 };
        assert_eq!(event(FORK, [8, 7, 9, 9]), Some(forked));
        assert_eq!(event(FORK, [8, 7, 10, 9]), None, "a thread");
        assert_eq!(event(EXIT, [9, 9, 0, 0]), Some(ProcessEvent::Exited(9)));
        assert_eq!(event(EXIT, [10, 9, 0, 0]), None, "a thread");
        assert_eq!(event(EXEC, [9, 9, 0, 0]), Some(ProcessEvent::Became(9)));
        assert_eq!(event(UID, [9, 9, 0, 0]), Some(ProcessEvent::Became(9)));
        assert_eq!(event(UID, [10, 9, 0, 0]), None, "a thread");
        assert_eq!(event(0x40, [9, 9, 0, 0]), None, "a group");
        assert_eq!(event_in(&[0; 20]), None);
    }

    /// Set for this program when it runs in a process namespace of its own.
    const INSIDE: &str = "LULL_TEST_IN_PROCESS_NAMESPACE";

    #[test]
    fn events_of_the_hosts_subscribers_confirm_none_in_another_process_namespace() {
        if std::env::var_os(INSIDE).is_some() {
            let refused = ProcessEvents::subscribe().unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ETIMEDOUT), "{refused}");
            return;
        }
        let Ok(_subscribed) = ProcessEvents::subscribe() else {
            return lull_testing::skip("the process connector is not available");
        };
        let unshare = |command: &str| {
            let mut unshare = Command::new("unshare");
            unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc", command]);
            unshare
        };
        if !unshare("true").status().is_ok_and(|status| status.success()) {
            return lull_testing::skip("makes a PID namespace: run as root, with CAP_SYS_ADMIN");
        }
        let program = std::env::current_exe().unwrap();
        let name = "events_of_the_hosts_subscribers_confirm_none_in_another_process_namespace";
        let mut command = unshare(program.to_str().unwrap());
        command.arg(name).env(INSIDE, "1").stdout(Stdio::piped());
        let mut inside = command.spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(120);
        while inside.try_wait().unwrap().is_none() && Instant::now() < deadline {
            // Its events reach the other namespace.
            Command::new("true").status().unwrap();
        }
        // After the deadline: what runs inside ends with it, so that the output does, too.
        inside.kill().unwrap();
        let output = inside.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{}: {text}", output.status);
    }
}
