//! The front-end process: gives up its rights, then parses and serves.
//!
//! One thread does everything: the sandbox allows no other, and none is needed. The process
//! ends with the channel to its agent.

use super::frames::{Frames, encode};
use super::handover::Listeners;
use super::message::{FROM_MAX, FromFrontend, OTLP_CLIENT, Ordered, Report, TO_MAX, ToFrontend};
use super::names::AppNames;
use super::registrations::parse_lines;
use crate::VERSION;
use crate::live::{OrderRequest, Server};
use crate::otlp::{OtlpSource, Protection, Receiver};
use crate::prometheus;
use anyhow::Context;
use lull_host::gauges::push::Intake;
use lull_host::sandbox::{self, Gap, Layer};
use lull_host::sys::memory::{self, ProgramPages};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, stdin};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::rc::Rc;
use std::time::SystemTime;
use tokio::net::{TcpListener, UnixDatagram, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::LocalSet;

/// Encoded messages that wait for the channel.
const WAITING_MAX: usize = 64;
/// Orders that wait to be sent.
const ORDERS_MAX: usize = 8;
/// Bytes of push messages that are sent at once.
const CHUNK: usize = 64 << 10;

/// The first message to a front end.
struct Begin {
    apps: Vec<String>,
    otlp: Vec<OtlpSource>,
    names: Vec<String>,
    protection: Protection,
    ends_with_thread: bool,
}

/// Runs a front end until its agent ends; what the program's `frontend` subcommand calls. The
/// agent's channel is the standard input.
///
/// Gives up the rights of the whole process, so nothing else belongs in it.
///
/// # Errors
/// If it was not started by an agent of this version.
pub fn run() -> anyhow::Result<()> {
    let by_agent = "this command is for the agent, which starts it";
    let mut channel = StdUnixStream::from(stdin().as_fd().try_clone_to_owned()?);
    let Listeners { push, page, otlp, lines } = Listeners::receive(&channel).context(by_agent)?;
    let mut frames = Frames::new(TO_MAX);
    let begin = first(&mut channel, &mut frames)?;
    // Signals of the agent's terminal are not for it. Refused only to the leader of a group.
    let _ = rustix::process::setsid();
    // A directory that is in use cannot be unmounted.
    std::env::set_current_dir("/")?;
    let _ = rustix::thread::set_name(c"lull-frontend");
    push.set_nonblocking(true)?;
    channel.set_nonblocking(true)?;
    let addresses = [&page, &otlp].into_iter().flatten();
    addresses.into_iter().try_for_each(|address| address.set_nonblocking(true))?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().enable_time().build();
    let runtime = runtime.context("cannot start the async runtime")?;
    let inside = runtime.enter();
    let channel = Rc::new(UnixStream::from_std(channel)?);
    let page = page.map(TcpListener::from_std).transpose()?;
    let otlp = otlp.map(TcpListener::from_std).transpose()?;
    let lines = lines.map(UnixDatagram::from_std).transpose()?;
    drop(inside);
    // They cannot be found any more once it is confined.
    let pages = ProgramPages::find();
    let gaps = confine(&begin);
    memory::return_freed();
    pages.release();
    let (out, waiting) = mpsc::channel(WAITING_MAX);
    let (orders, orders_in) = mpsc::channel(ORDERS_MAX);
    let Begin { apps, otlp: sources, names, protection, .. } = begin;
    let front = FrontProcess {
        page,
        receiver: otlp.map(|listener| Receiver::new(listener, sources, names)),
        intake: Intake::accepting(push),
        apps: AppNames::new(apps),
        server: None,
        orders,
        answers: Answers::default(),
        out,
    };
    let all = LocalSet::new();
    all.spawn_local(write(Rc::clone(&channel), waiting));
    all.spawn_local(pass_orders(orders_in, Rc::clone(&front.answers), front.out.clone()));
    if let Some(lines) = lines {
        all.spawn_local(parse_lines(lines));
    }
    all.block_on(&runtime, front.serve(&channel, frames, &protection, gaps))
}

/// Reads the first message, while nothing foreign can have come.
fn first(channel: &mut StdUnixStream, frames: &mut Frames) -> anyhow::Result<Begin> {
    let mut bytes = [0; 4096];
    loop {
        if let Some(message) = frames.next_message()? {
            let ToFrontend::Begin { version, apps, otlp, names, protection, ends_with_thread } =
                message
            else {
                anyhow::bail!("the agent did not begin");
            };
            anyhow::ensure!(
                version == VERSION,
                "the agent is of version {version}, and this program of {VERSION}: let the agent \
                 start the `lull` of its own version"
            );
            return Ok(Begin { apps, otlp, names, protection, ends_with_thread });
        }
        let count = channel.read(&mut bytes)?;
        anyhow::ensure!(count > 0, "the agent has ended");
        frames.add(&bytes[..count]);
    }
}

/// Gives up all rights. The signal of the parent's death is lost with a change of the user, and
/// cannot be set any more once system calls are filtered.
fn confine(begin: &Begin) -> Vec<Gap> {
    let mut gaps = sandbox::confine(&[Layer::User]);
    if begin.ends_with_thread {
        // Without the death signal, the end of the channel ends the process, unless it was taken
        // over.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
    gaps.extend(sandbox::confine(&[Layer::Files, Layer::SystemCalls]));
    gaps
}

/// Sends encoded messages to the agent, as fast as it takes them.
async fn write(channel: Rc<UnixStream>, mut waiting: mpsc::Receiver<Vec<u8>>) {
    while let Some(bytes) = waiting.recv().await {
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            if channel.writable().await.is_err() {
                return;
            }
            match channel.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The reader of the channel ends the process.
                Err(_) => return,
            }
        }
    }
}

/// The state of the process.
struct FrontProcess {
    page: Option<TcpListener>,
    receiver: Option<Receiver>,
    intake: Intake,
    apps: AppNames,
    server: Option<Server>,
    orders: mpsc::Sender<OrderRequest>,
    answers: Answers,
    out: mpsc::Sender<Vec<u8>>,
}

/// The clients that wait for the answers to their orders, by the numbers of the orders.
type Answers = Rc<RefCell<BTreeMap<u32, oneshot::Sender<Result<String, String>>>>>;

impl FrontProcess {
    async fn serve(
        mut self,
        channel: &UnixStream,
        mut frames: Frames,
        protection: &Protection,
        gaps: Vec<Gap>,
    ) -> anyhow::Result<()> {
        self.protect(protection).await;
        send(&self.out, &[FromFrontend::Ready(gaps)]).await;
        let mut bytes = vec![0; CHUNK];
        loop {
            while let Some(message) = frames.next_message()? {
                self.take(message).await;
            }
            channel.readable().await?;
            match channel.try_read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(count) => frames.add(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The agent was killed.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn take(&mut self, message: ToFrontend) {
        match message {
            ToFrontend::Begin { .. } => {}
            ToFrontend::Apps(apps) => self.apps.rename(apps),
            ToFrontend::Assign { app, pod } => {
                self.apps.assign(app, pod.as_ref());
                if let Some(receiver) = &self.receiver {
                    receiver.assign(app, pod.as_ref());
                }
            }
            ToFrontend::Protect(protection) => self.protect(&protection).await,
            ToFrontend::Serve(serve) => {
                let page = self.page.take();
                self.server = page.map(|page| Server::start(page, *serve, self.orders.clone()));
            }
            ToFrontend::Facts(facts) => {
                if let Some(server) = &self.server {
                    server.set_facts(facts);
                }
            }
            ToFrontend::Epoch(snapshot) => {
                if let Some(server) = &self.server {
                    server.show(*snapshot);
                }
            }
            ToFrontend::EndPage => self.server = None,
            ToFrontend::Drain(number) => self.drain(number).await,
            ToFrontend::Disconnect(client) => self.intake.disconnect(client),
            ToFrontend::Answer { order, answer } => {
                // The client may have disconnected; the journal records the order.
                let waits = self.answers.borrow_mut().remove(&order);
                let _ = waits.map(|waits| waits.send(answer));
            }
            ToFrontend::Reply { query, generation, bytes } => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                let number = prometheus::parse(&bytes, now.unwrap_or_default().as_secs_f64());
                let number = number.map_err(|why| why.to_string());
                send(&self.out, &[FromFrontend::Number { query, generation, number }]).await;
            }
        }
    }

    /// Protects the receiver of OTLP, which does not serve before its certificate is valid.
    async fn protect(&mut self, protection: &Protection) {
        let protected = self.receiver.as_mut().map(|receiver| receiver.protect(protection));
        if let Some(Err(why)) = protected {
            let text =
                format!("the receiver of OTLP does not serve with the files that it has: {why}");
            send(&self.out, &[FromFrontend::Notice(text)]).await;
        }
    }

    /// Reads what push clients have sent, and passes it on with the exports by OTLP.
    async fn drain(&mut self, number: u32) {
        let Self { intake, apps, receiver, .. } = self;
        let (mut chunks, mut notices) = (vec![Vec::new()], Vec::new());
        let mut pass = |message: &FromFrontend| {
            if chunks.last().is_none_or(|chunk: &Vec<u8>| chunk.len() >= CHUNK) {
                chunks.push(Vec::new());
            }
            let chunk = chunks.last_mut();
            chunk.map_or(Ok(()), |chunk| encode(message, FROM_MAX, chunk))
        };
        intake.drain(
            &mut |client, message| {
                let app = apps.number(message.app())?;
                let report = Report::new(app, &message);
                let (client, pid) = (client.number, client.pid);
                pass(&FromFrontend::Pushed { client, pid, report }).map_err(|why| why.to_string())
            },
            &mut |text| notices.push(FromFrontend::Notice(text)),
        );
        if let Some(receiver) = receiver {
            let (windows, texts) = receiver.drain();
            for window in &windows {
                let report = Report::new(window.app, &window.to_message());
                let client = OTLP_CLIENT | u64::from(window.sender);
                // A window has fewer buckets than a message can hold.
                let _ = pass(&FromFrontend::Pushed { client, pid: None, report });
            }
            notices.extend(texts.into_iter().map(FromFrontend::Notice));
        }
        notices.push(FromFrontend::Drained(number));
        for chunk in chunks {
            let _ = self.out.send(chunk).await;
        }
        send(&self.out, &notices).await;
    }
}

/// Passes orders on to the agent, and notes the clients that wait for their answers.
async fn pass_orders(
    mut orders_in: mpsc::Receiver<OrderRequest>,
    answers: Answers,
    out: mpsc::Sender<Vec<u8>>,
) {
    let mut number = 0_u32;
    while let Some(OrderRequest { command, token, answer }) = orders_in.recv().await {
        number = number.wrapping_add(1);
        {
            let mut answers = answers.borrow_mut();
            answers.retain(|_, waits| !waits.is_closed());
            answers.insert(number, answer);
        }
        let order = Ordered::from(command);
        send(&out, &[FromFrontend::Order { number, token, order }]).await;
    }
}

/// Sends messages to the agent.
async fn send(out: &mpsc::Sender<Vec<u8>>, messages: &[FromFrontend]) {
    let mut bytes = Vec::new();
    for message in messages {
        // Every text here is bounded where it was read.
        let _ = encode(message, FROM_MAX, &mut bytes);
    }
    let _ = out.send(bytes).await;
}
