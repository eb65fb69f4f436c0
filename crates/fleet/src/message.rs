//! The messages between the agent and its watcher: typed, bounded, and never a text to parse.
//!
//! The watcher names no path. The agent makes the cgroup of a pod from its UID, its class of
//! service and a container's number ([`crate::cgroup`]), so that a watcher that was taken over
//! can name pods of the node and nothing else.

use crate::annotations::is_service;
use crate::source::LatencyName;
use lull_agent::config::CpuManager;
use lull_agent::discovery::{PodIdentity, ReportKind};
use lull_control::{Class, LatencyOf, Objective};
use lull_host::sandbox::Gap;
use lull_measure::escape::visible_line;
use lull_measure::{Nanos, Percentile};
use serde::{Deserialize, Serialize};

/// Most bytes of a message to the watcher.
pub(crate) const TO_MAX: usize = 256 << 10;
/// Most bytes of a message from the watcher.
pub(crate) const FROM_MAX: usize = 16 << 10;
/// Most bytes of a text.
pub(crate) const TEXT_MAX: usize = 512;
/// Most pods of a node that are followed; the kubelet's usual limit is 110.
pub(crate) const PODS_MAX: usize = 1_024;
/// Most cores of a list, those that it names twice counted twice: kernels are built for at most as
/// many (`NR_CPUS` of x86).
const CORES_MAX: u32 = 8_192;
/// Most objectives of a pod.
const OBJECTIVES_MAX: usize = 8;
/// Longest plausible bound of a latency.
const BOUND_MAX: Nanos = Nanos::from_secs(3_600);

/// Messages from the agent to its watcher.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToWatcher {
    /// The first message.
    Begin(Begin),
    /// Publish an Event on a pod.
    Report {
        /// Its UID.
        uid: String,
        /// The event.
        kind: Kind,
        /// The details.
        text: String,
    },
}

/// The first message to a watcher, with its settings.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Begin {
    /// The agent's version, which must be the watcher's.
    pub(crate) version: String,
    /// The node.
    pub(crate) node: String,
    /// A kubeconfig file; `None` for the service account or the variable `KUBECONFIG`.
    pub(crate) kubeconfig: Option<String>,
    /// The templates for pods, in order.
    pub(crate) templates: Vec<TemplateOffer>,
    /// The socket of the container runtime's NRI, if it is to be used.
    pub(crate) nri: Option<String>,
    /// The configuration of the kubelet's CPU manager.
    pub(crate) cpu_manager: CpuManager,
    /// Whether the thread that has started the watcher lives as long as the agent.
    pub(crate) ends_with_thread: bool,
}

/// A `[[match]]` for pods.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TemplateOffer {
    /// Its label selector.
    pub(crate) selector: String,
    /// Whether its apps are latency-critical.
    pub(crate) is_critical: bool,
    /// The kind of latency of its apps.
    pub(crate) of: Measured,
    /// The source of the latency of requests.
    pub(crate) source: Option<LatencyName>,
    /// The percentile of its tail, if the source knows no other one.
    pub(crate) percent: Option<f64>,
}

/// The kind of latency that is measured: [`LatencyOf`], or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Measured {
    Nothing,
    Requests,
    RunQueue,
    MemoryPressure,
}

impl From<LatencyOf> for Measured {
    fn from(of: LatencyOf) -> Self {
        match of {
            LatencyOf::Requests => Self::Requests,
            LatencyOf::RunQueue => Self::RunQueue,
            LatencyOf::MemoryPressure => Self::MemoryPressure,
        }
    }
}

impl TemplateOffer {
    /// The class of its apps.
    pub(crate) const fn class(&self) -> Class {
        if self.is_critical { Class::LatencyCritical } else { Class::BestEffort }
    }
}

/// Messages from the watcher to the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromWatcher {
    /// The watcher is confined, except for these layers.
    Ready(Vec<Gap>),
    /// A pod is to be managed, or differs from before.
    Pod(Box<PodOrder>),
    /// A pod is gone, or no longer to be managed.
    Gone(String),
    /// All pods of the node were sent: those that were not are gone.
    Synced,
    /// The API server has answered.
    Heard,
    /// The API server cannot be reached, or refuses.
    Lost(String),
    /// Whether the container runtime reports its containers.
    Runtime(bool),
    /// A message for the journal.
    Notice(String),
}

/// The kubelet's class of service of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Service {
    Guaranteed,
    Burstable,
    BestEffort,
}

/// The program that runs a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Runtime {
    Containerd,
    CriO,
    Docker,
}

/// One container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ContainerId {
    /// Its runtime.
    pub(crate) runtime: Runtime,
    /// Its number, written as 64 hexadecimal digits.
    pub(crate) number: [u8; 32],
}

impl ContainerId {
    /// Reads 64 hexadecimal digits.
    pub(crate) fn parse(runtime: Runtime, hex: &str) -> Option<Self> {
        let mut number = [0; 32];
        if hex.len() != 64 || !hex.is_ascii() {
            return None;
        }
        for (at, byte) in number.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).ok()?;
        }
        Some(Self { runtime, number })
    }
}

/// A pod that is to be managed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PodOrder {
    /// Its namespace.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
    /// Its UID, or the hash of its file if it is a static pod.
    pub(crate) uid: String,
    /// The name of the container that is the app; empty if the whole pod is.
    pub(crate) container_name: String,
    /// The name of its owner.
    pub(crate) workload: String,
    /// The `service.name` of its exports by OTLP.
    pub(crate) otlp_service: Option<String>,
    /// Its class of service.
    pub(crate) service: Service,
    /// The container that is the app; the whole pod if there is none.
    pub(crate) container: Option<ContainerId>,
    /// The place of its template in [`Begin::templates`].
    pub(crate) template: u16,
    /// Objectives that replace those of the template.
    pub(crate) objectives: Vec<Bound>,
    /// Whether the kubelet may have given it cores of its own.
    pub(crate) may_be_exclusive: bool,
    /// Whether no container of it is known to run: its cgroup shows when one does.
    pub(crate) is_starting: bool,
    /// The cores that the runtime has set for one of its containers, the fewest; empty if it has
    /// set none, or does not report them.
    pub(crate) cpus: String,
}

/// An objective in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) enum Bound {
    Tail { percent: f64, bound_ns: u64 },
    Throughput { floor_per_s: f64 },
    Disengagement { ratio: f64 },
}

/// [`ReportKind`] for the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum Kind {
    Managed,
    Unmanaged,
    SafeState,
    KnobRefused,
    ForeignWriter,
    /// Events of a `LatencyObjective`; no agent reports them.
    ObjectiveIgnored,
}

impl From<ReportKind> for Kind {
    fn from(kind: ReportKind) -> Self {
        match kind {
            ReportKind::Managed => Self::Managed,
            ReportKind::Unmanaged => Self::Unmanaged,
            ReportKind::SafeState => Self::SafeState,
            ReportKind::KnobRefused => Self::KnobRefused,
            ReportKind::ForeignWriter => Self::ForeignWriter,
        }
    }
}

impl From<Objective> for Bound {
    fn from(objective: Objective) -> Self {
        match objective {
            Objective::Tail { percentile, bound } => {
                Self::Tail { percent: percentile.percent(), bound_ns: bound.0 }
            }
            Objective::Throughput { floor_per_s } => Self::Throughput { floor_per_s },
            Objective::Disengagement { ratio } => Self::Disengagement { ratio },
        }
    }
}

impl Bound {
    /// The objective, if every value is in its range.
    fn check(self) -> Result<Objective, String> {
        match self {
            Self::Tail { percent, bound_ns } => {
                let percentile = Percentile::new(percent).map_err(|error| error.to_string())?;
                let bound = Nanos(bound_ns);
                if bound == Nanos::ZERO || bound > BOUND_MAX {
                    return Err(format!("a bound of {bound}"));
                }
                Ok(Objective::Tail { percentile, bound })
            }
            Self::Throughput { floor_per_s } if floor_per_s > 0.0 && floor_per_s.is_finite() => {
                Ok(Objective::Throughput { floor_per_s })
            }
            Self::Disengagement { ratio } if ratio > 0.0 && ratio < 1.0 => {
                Ok(Objective::Disengagement { ratio })
            }
            Self::Throughput { .. } | Self::Disengagement { .. } => {
                Err(format!("an objective out of range: {self:?}"))
            }
        }
    }
}

impl PodOrder {
    /// How messages name it.
    pub(crate) fn title(&self) -> String {
        format!("pod {}/{}", self.namespace, self.name)
    }

    /// Whether another order of the pod has it in the same cgroup, on the same cores.
    pub(crate) fn is_placed_as(&self, other: &Self) -> bool {
        self.uid == other.uid
            && self.service == other.service
            && self.container == other.container
            && self.cpus == other.cpus
            && self.may_be_exclusive == other.may_be_exclusive
            && self.is_starting == other.is_starting
    }

    /// How metrics and senders of latency name it.
    pub(crate) fn identity(&self) -> PodIdentity {
        PodIdentity {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            uid: self.uid.clone(),
            container: self.container_name.clone(),
            workload: self.workload.clone(),
            service: self.otlp_service.clone(),
        }
    }

    /// Its objectives, if names, numbers and every value are in their ranges; `None` for those of
    /// its template, of which there are `templates`.
    pub(crate) fn check(&self, templates: usize) -> Result<Option<Vec<Objective>>, String> {
        if !is_name(&self.namespace) || !is_name(&self.name) || !is_uid(&self.uid) {
            return Err("a pod whose name or UID no API server allows".to_owned());
        }
        let container = &self.container_name;
        let has_names = (container.is_empty() || is_name(container)) && is_name(&self.workload);
        if !has_names {
            return Err("a pod whose container or workload no API server allows".to_owned());
        }
        if self.otlp_service.as_ref().is_some_and(|service| !is_service(service)) {
            return Err("a pod with a service.name that is none".to_owned());
        }
        if !is_cpus(&self.cpus) {
            return Err("a pod whose cores are not a list".to_owned());
        }
        if usize::from(self.template) >= templates {
            return Err(format!("a pod of template {}", self.template));
        }
        if self.objectives.len() > OBJECTIVES_MAX {
            return Err(format!("a pod with {} objectives", self.objectives.len()));
        }
        let all: Result<Vec<_>, _> = self.objectives.iter().map(|bound| bound.check()).collect();
        all.map(|all| (!all.is_empty()).then_some(all))
    }
}

/// Whether a text may be the name of an object: a DNS subdomain.
fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    (1..=253).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// Whether a text may be a UID, which becomes a part of a path.
pub(crate) fn is_uid(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    (1..=64).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// Whether a text may be a list of cores such as `0-3,7`, or empty. One that names more cores than
/// a machine has, some of them often, would take the agent long to read for each pod.
pub(crate) fn is_cpus(text: &str) -> bool {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let [first, last]: [u16; 2] = [first.parse().ok()?, last.parse().ok()?];
        Some(u32::from(last.checked_sub(first)?) + 1)
    };
    let is_short = text.len() <= TEXT_MAX;
    let is_plain = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b',' | b'-'));
    let parts = text.split(',').filter(|part| !part.is_empty());
    is_short
        && is_plain
        && parts.map(count).sum::<Option<u32>>().is_some_and(|all| all <= CORES_MAX)
}

/// Returns a text as one line of at most [`TEXT_MAX`] bytes without hidden characters. Journals
/// and Events quote what users of the cluster write into pods and objectives.
pub(crate) fn one_line(mut text: String) -> String {
    text = visible_line(&text).into_owned();
    text.truncate(text.floor_char_boundary(TEXT_MAX));
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn order(uid: &str) -> PodOrder {
        PodOrder {
            namespace: "shop".to_owned(),
            name: format!("web-{uid}"),
            uid: uid.to_owned(),
            container_name: String::new(),
            workload: "web".to_owned(),
            otlp_service: None,
            service: Service::Burstable,
            container: None,
            template: 0,
            objectives: Vec::new(),
            may_be_exclusive: false,
            is_starting: false,
            cpus: String::new(),
        }
    }

    #[test]
    fn what_no_api_server_sends_is_refused_from_a_watcher() {
        assert_eq!(order("0a-1").check(1), Ok(None));
        let with = |change: fn(&mut PodOrder)| {
            let mut order = order("0a-1");
            change(&mut order);
            order.check(1).is_err()
        };
        assert!(with(|order| order.uid = "../../system.slice".to_owned()));
        assert!(with(|order| order.uid = String::new()));
        assert!(with(|order| order.name = "a/b".to_owned()));
        assert!(with(|order| order.namespace = "a\u{1b}[2J".to_owned()));
        assert!(with(|order| order.template = 1));
        assert!(with(|order| order.cpus = "0-3\n".to_owned()));
        assert!(with(|order| order.cpus = "3-1".to_owned()));
        assert!(with(|order| order.cpus = ["0-8191"; 50].join(",")));
        assert!(!with(|order| order.cpus = "0-8189,8190,8191".to_owned()));
        assert!(with(|order| order.container_name = "\"} or x{".to_owned()));
        assert!(with(|order| order.otlp_service = Some("a\n".to_owned())));
        let tail = |percent, bound_ns| Bound::Tail { percent, bound_ns };
        assert!(with(|order| order.objectives = vec![Bound::Throughput { floor_per_s: 1.0 }; 9]));
        for bound in [
            tail(99.0, 0),
            tail(99.0, u64::MAX),
            tail(f64::NAN, 5),
            tail(100.5, 5),
            Bound::Throughput { floor_per_s: f64::INFINITY },
            Bound::Disengagement { ratio: 1.0 },
        ] {
            assert!(bound.check().is_err(), "{bound:?}");
        }
        let objective = Objective::Tail { percentile: Percentile::P99, bound: Nanos(50) };
        assert_eq!(Bound::from(objective).check(), Ok(objective));
    }

    #[test]
    fn any_bytes_are_a_checked_order_or_an_error() {
        let whole = postcard::to_allocvec(&FromWatcher::Pod(Box::new(order("0a-1")))).unwrap();
        let (mut taken, mut refused) = (0, 0);
        for at in 0..whole.len() {
            for byte in 0..=255 {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                match postcard::from_bytes(&bytes) {
                    Ok(FromWatcher::Pod(order)) if order.check(1).is_ok() => taken += 1,
                    _ => refused += 1,
                }
            }
        }
        assert!(taken > 0 && refused > 0, "{taken} taken, {refused} refused");
    }
}
