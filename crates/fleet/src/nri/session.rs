//! The dialogue of a plug-in, without a socket: bytes in, containers and bytes out.
//!
//! ```text
//! plug-in ── RegisterPlugin ──▶ runtime
//!         ◀── Configure ──────          the events that the plug-in wants
//!         ◀── Synchronize ────          all pods and containers, in parts if they are many
//!         ◀── PostStartContainer, PostUpdateContainer, StopContainer, RemoveContainer
//! ```
//!
//! Each call is answered at once, because the runtime waits for the answer before it continues with
//! the container, and ends the connection after two seconds. No answer requests a change.

use super::message::{
    CONTAINER_RUNNING, Configure, Configured, Container, ContainerEvent, INVALID_ARGUMENT, PLUGIN,
    PodSandbox, RUNTIME, RegisterPlugin, Request, Response, StateChange, Status, Synchronize,
    Synchronized, UNIMPLEMENTED, event,
};
use super::trunk::{Connection, MessageType, Packet, Trunk, TrunkError, encode};
use crate::message::{ContainerId, Runtime, is_cpus, is_uid};
use prost::encoding::{DecodeContext, decode_key, skip_field};
use prost::{DecodeError, Message};
use std::collections::BTreeMap;
use thiserror::Error;

/// How the plug-in calls itself.
const NAME: &str = "lull";
/// Its place among others: late, since it changes nothing and sees what the others have changed.
const INDEX: &str = "90";
/// Most containers of a listing. A node of 1,024 pods has fewer.
pub(crate) const CONTAINERS_MAX: usize = 16_384;
/// Most entries of a part of a listing: pods and containers.
const ENTRIES_MAX: usize = 2 * CONTAINERS_MAX;
/// Longest name or identifier of a container. Kubernetes allows 63 bytes, and runtimes use 64.
const NAME_MAX: usize = 253;
/// The stream of the only call of the plug-in.
const REGISTRATION: u32 = 1;

/// A container that runs, as its runtime reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuntimeContainer {
    pub(crate) id: ContainerId,
    /// The UID of its pod, as the kubelet reports it.
    pub(crate) pod: String,
    /// Its name in the pod.
    pub(crate) name: String,
    /// The cores that the runtime has set for it (`0-3,7`); empty if none are set.
    pub(crate) cpus: String,
}

/// A change that a runtime has reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ContainerChange {
    /// All containers that run.
    All(Vec<RuntimeContainer>),
    /// A container runs.
    Runs(RuntimeContainer),
    /// The resources of a container have changed; it may not run yet.
    Changed(RuntimeContainer),
    /// A container has ended.
    Ended(ContainerId),
}

/// Why a connection with a runtime ends.
#[derive(Debug, Error)]
pub(crate) enum SessionError {
    #[error("it has sent {0}")]
    Trunk(#[from] TrunkError),
    #[error("it has sent bytes that are not a ttrpc message: {0}")]
    Message(#[from] DecodeError),
    #[error("it refuses the plug-in: {0}")]
    Refused(String),
    #[error("it is `{0}`, and only containerd and cri-o are known")]
    Unknown(String),
    #[error("it has more containers than a node may run")]
    TooMany,
    #[error("it has listed its containers before it has named itself")]
    Unnamed,
}

/// The state of a connection with a runtime.
#[derive(Debug, Default)]
pub(super) struct Session {
    trunk: Trunk,
    runtime: Option<Runtime>,
    /// Parts of a listing that has not ended: UIDs of pods by sandbox, and containers.
    sandboxes: BTreeMap<String, String>,
    listed: Vec<Container>,
    changes: Vec<ContainerChange>,
    /// The bytes to send.
    pub(super) out: Vec<u8>,
}

impl Session {
    /// A session that registers the plug-in.
    pub(super) fn new() -> Self {
        let mut session = Self::default();
        let plugin = RegisterPlugin { plugin_name: NAME.to_owned(), plugin_idx: INDEX.to_owned() };
        let call = Request {
            service: RUNTIME.to_owned(),
            method: "RegisterPlugin".to_owned(),
            payload: plugin.encode_to_vec(),
        };
        let packet = Packet {
            connection: Connection::Runtime,
            stream: REGISTRATION,
            kind: MessageType::Request,
            payload: call.encode_to_vec(),
        };
        encode(&packet, &mut session.out);
        session
    }

    /// Takes bytes of the runtime and returns their reports.
    ///
    /// # Errors
    /// The reason why the connection cannot continue.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<Vec<ContainerChange>, SessionError> {
        for packet in self.trunk.add(bytes)? {
            match (packet.connection, packet.kind) {
                (Connection::Plugin, MessageType::Request) => self.answer(&packet)?,
                (Connection::Runtime, MessageType::Response) => registered(&packet)?,
                _ => {}
            }
        }
        Ok(std::mem::take(&mut self.changes))
    }

    /// Answers a call of the runtime.
    fn answer(&mut self, packet: &Packet) -> Result<(), SessionError> {
        let Request { service, method, payload } = Request::decode(packet.payload.as_slice())?;
        let called = if service == PLUGIN { method.as_str() } else { "" };
        let response = match self.call(called, &payload)? {
            Ok(payload) => Response { status: None, payload },
            Err((code, message)) => {
                Response { status: Some(Status { code, message }), payload: Vec::new() }
            }
        };
        let packet = Packet {
            connection: Connection::Plugin,
            stream: packet.stream,
            kind: MessageType::Response,
            payload: response.encode_to_vec(),
        };
        encode(&packet, &mut self.out);
        Ok(())
    }

    /// Returns the answer to a call, or a status: a code and a text for the runtime's log.
    ///
    /// # Errors
    /// The reason why the connection cannot continue.
    fn call(
        &mut self,
        method: &str,
        payload: &[u8],
    ) -> Result<Result<Vec<u8>, (i32, String)>, SessionError> {
        let done = match method {
            "Configure" => match Configure::decode(payload) {
                Ok(configure) => return Ok(Ok(self.configure(&configure)?)),
                Err(error) => Err(error),
            },
            "Synchronize" => return self.synchronize(payload).map(Ok),
            "PostStartContainer" => self.event(event::POST_START_CONTAINER, payload),
            "PostUpdateContainer" => self.event(event::POST_UPDATE_CONTAINER, payload),
            "StopContainer" => self.event(event::STOP_CONTAINER, payload),
            "RemoveContainer" => self.event(event::REMOVE_CONTAINER, payload),
            "StateChange" => StateChange::decode(payload).map(|change| {
                let StateChange { event, pod, container } = change;
                self.note(event, ContainerEvent { pod, container });
            }),
            "Shutdown" => Ok(()),
            _ => return Ok(Err((UNIMPLEMENTED, format!("{NAME} knows no {}", shown(method))))),
        };
        Ok(done.map(|()| Vec::new()).map_err(|error| (INVALID_ARGUMENT, error.to_string())))
    }

    fn configure(&mut self, configure: &Configure) -> Result<Vec<u8>, SessionError> {
        self.runtime = Some(match configure.runtime_name.as_str() {
            "containerd" => Runtime::Containerd,
            "cri-o" | "crio" => Runtime::CriO,
            other => return Err(SessionError::Unknown(shown(other))),
        });
        let events = event::ALL.iter().fold(0, |mask, event| mask | (1 << (event - 1)));
        Ok(Configured { events }.encode_to_vec())
    }

    /// Takes a part of a listing.
    fn synchronize(&mut self, payload: &[u8]) -> Result<Vec<u8>, SessionError> {
        if self.runtime.is_none() {
            return Err(SessionError::Unnamed);
        }
        // An entry of two bytes takes a hundred once it is decoded.
        if count_fields(payload)? > ENTRIES_MAX {
            return Err(SessionError::TooMany);
        }
        let Synchronize { pods, containers, more } = Synchronize::decode(payload)?;
        let of_kubelet = |pod: &PodSandbox| pod.id.len() <= NAME_MAX && is_uid(&pod.uid);
        let pods = pods.into_iter().filter(of_kubelet);
        self.sandboxes.extend(pods.map(|pod| (pod.id, pod.uid)));
        let runs = |one: &Container| one.state == CONTAINER_RUNNING && is_sound(one);
        self.listed.extend(containers.into_iter().filter(runs));
        if self.listed.len().max(self.sandboxes.len()) > CONTAINERS_MAX {
            return Err(SessionError::TooMany);
        }
        if !more {
            let sandboxes = std::mem::take(&mut self.sandboxes);
            let listed = std::mem::take(&mut self.listed);
            let running = listed.into_iter().filter_map(|container| {
                let pod = sandboxes.get(&container.pod_sandbox_id)?;
                self.read(container, pod)
            });
            let all = ContainerChange::All(running.collect());
            self.changes.push(all);
        }
        Ok(Synchronized { more }.encode_to_vec())
    }

    fn event(&mut self, event: i32, payload: &[u8]) -> Result<(), DecodeError> {
        let read = ContainerEvent::decode(payload)?;
        self.note(event, read);
        Ok(())
    }

    fn note(&mut self, event: i32, read: ContainerEvent) {
        let ContainerEvent { pod, container } = read;
        let Some(container) = container else { return };
        match event {
            event::POST_START_CONTAINER | event::POST_UPDATE_CONTAINER => {
                let PodSandbox { uid, .. } = pod.unwrap_or_default();
                let is_start = event == event::POST_START_CONTAINER;
                let change =
                    if is_start { ContainerChange::Runs } else { ContainerChange::Changed };
                let read = self.read(container, &uid);
                self.changes.extend(read.map(change));
            }
            event::STOP_CONTAINER | event::REMOVE_CONTAINER => {
                self.changes.extend(self.id(&container.id).map(ContainerChange::Ended));
            }
            _ => {}
        }
    }

    /// A container of a pod; `None` if it is not a container of a kubelet's.
    fn read(&self, container: Container, pod: &str) -> Option<RuntimeContainer> {
        let id = self.id(&container.id)?;
        let is_known = is_uid(pod) && is_sound(&container);
        let (pod, cpus) = (pod.to_owned(), container.cpus().to_owned());
        is_known.then_some(RuntimeContainer { id, pod, name: container.name, cpus })
    }

    fn id(&self, hex: &str) -> Option<ContainerId> {
        ContainerId::parse(self.runtime?, hex)
    }
}

/// Whether the texts of a container are such as a kubelet's container has.
fn is_sound(container: &Container) -> bool {
    let Container { id, pod_sandbox_id, name, .. } = container;
    [id, pod_sandbox_id, name].iter().all(|text| text.len() <= NAME_MAX)
        && is_cpus(container.cpus())
}

/// The number of fields of a message, entries of lists among them.
fn count_fields(mut bytes: &[u8]) -> Result<usize, DecodeError> {
    let mut count = 0;
    while !bytes.is_empty() {
        let (tag, wire_type) = decode_key(&mut bytes)?;
        skip_field(wire_type, tag, &mut bytes, DecodeContext::default())?;
        count += 1;
    }
    Ok(count)
}

/// Reads the answer to the registration.
fn registered(packet: &Packet) -> Result<(), SessionError> {
    let Response { status, .. } = Response::decode(packet.payload.as_slice())?;
    match status {
        Some(Status { code, message }) if code != 0 => Err(SessionError::Refused(shown(&message))),
        _ => Ok(()),
    }
}

/// A text of the runtime as messages show it.
fn shown(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(128).collect()
}

#[cfg(test)]
mod tests;
