//! The pods of a node and the wanted state of each: pure state, from events of the watches to
//! messages for the agent and Events for pods.

use crate::annotations::PodSettings;
use crate::containers::Containers;
use crate::message::{
    Begin, Bound, ContainerId, FromWatcher, Kind, Measured, PODS_MAX, PodOrder, TemplateOffer,
    one_line,
};
use crate::nri::{ContainerChange, RuntimeContainer};
use crate::objective::LatencyObjectiveSpec;
use crate::pods::PodFacts;
use crate::rules::{RuleKey, Rules};
use crate::selector;
use crate::source::LatencyName;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::{Selector, SelectorExt};
use lull_agent::config::CpuManager;
use lull_control::{Class, CoreSet, Objective};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// An Event about a pod or a `LatencyObjective`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PodEvent {
    pub(crate) regarding: ObjectReference,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// The orders and Events that result from the changes since the last [`Table::take`].
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) messages: Vec<FromWatcher>,
    pub(crate) events: Vec<PodEvent>,
}

/// The state of the watcher.
#[derive(Debug)]
pub(crate) struct Table {
    templates: Vec<(Selector, TemplateOffer)>,
    cpu_manager: CpuManager,
    pods: BTreeMap<String, PodFacts>,
    /// The containers as the runtime reports them; `None` while it does not.
    containers: Option<Containers>,
    rules: Rules,
    /// The orders that the agent has, by UID.
    sent: BTreeMap<String, PodOrder>,
    /// Why pods are not managed, by UID; reported once.
    refused: BTreeMap<String, String>,
    /// Whether the rules are known, or cannot be.
    knows_rules: bool,
    /// The pods of a listing that has begun.
    listed: Option<BTreeSet<String>>,
    /// Whether a listing has ended that the agent has not received yet.
    is_listed: bool,
    is_full: bool,
    /// Whether a rule was left out for want of room; reported once.
    is_full_of_rules: bool,
    /// Whether a pod was left out because another one has its UID; reported once.
    has_conflict: bool,
    outcome: Outcome,
}

impl Table {
    /// A table without pods.
    ///
    /// # Errors
    /// A selector of a template that is none.
    pub(crate) fn new(begin: &Begin) -> Result<Self, String> {
        let template =
            |offer: &TemplateOffer| Ok((selector::parse(&offer.selector)?, offer.clone()));
        Ok(Self {
            templates: begin.templates.iter().map(template).collect::<Result<_, String>>()?,
            cpu_manager: begin.cpu_manager,
            pods: BTreeMap::new(),
            containers: None,
            rules: Rules::default(),
            sent: BTreeMap::new(),
            refused: BTreeMap::new(),
            knows_rules: false,
            listed: None,
            is_listed: false,
            is_full: false,
            is_full_of_rules: false,
            has_conflict: false,
            outcome: Outcome::default(),
        })
    }

    /// Returns, once, the results of the changes.
    pub(crate) fn take(&mut self) -> Outcome {
        std::mem::take(&mut self.outcome)
    }

    /// A listing of all pods begins.
    pub(crate) fn begin_list(&mut self) {
        self.listed = Some(BTreeSet::new());
    }

    /// A listing has ended: pods that it did not have are gone.
    pub(crate) fn end_list(&mut self) {
        if let Some(listed) = self.listed.take() {
            let gone: Vec<String> =
                self.pods.keys().filter(|uid| !listed.contains(*uid)).cloned().collect();
            gone.iter().for_each(|uid| self.remove(uid));
        }
        self.is_listed = true;
        self.report_listing();
    }

    /// All rules are known, or the API server refuses to list them: pods are judged from now on.
    /// In the other order each pod would be judged without its rule first, and those that only a
    /// rule selects would end and begin again whenever a watcher starts.
    pub(crate) fn end_rules(&mut self) {
        if !std::mem::replace(&mut self.knows_rules, true) {
            self.decide_all();
            self.report_listing();
        }
    }

    fn report_listing(&mut self) {
        if self.knows_rules && std::mem::take(&mut self.is_listed) {
            self.outcome.messages.push(FromWatcher::Synced);
        }
    }

    /// A pod was added, changed or listed. It is left out if another pod has its UID.
    pub(crate) fn apply(&mut self, pod: PodFacts) {
        let uid = pod.uid.clone();
        if let Some(holder) = self.pods.get(&uid).filter(|holder| holder.differs_from(&pod)) {
            let PodFacts { namespace, name, .. } = &pod;
            let text = format!(
                "pod {namespace}/{name} is not managed: it has the UID of {}/{}",
                holder.namespace, holder.name
            );
            if !std::mem::replace(&mut self.has_conflict, true) {
                self.outcome.messages.push(FromWatcher::Notice(one_line(text)));
            }
            return;
        }
        // Most often the object is the one that has the UID already, and no other.
        if self.pods.get(&uid).is_none_or(|known| known.object_uid != pod.object_uid) {
            self.remove_objects(|known| known.object_uid == pod.object_uid && known.uid != uid);
        }
        if let Some(listed) = &mut self.listed {
            listed.insert(uid.clone());
        }
        if !self.pods.contains_key(&uid) && self.pods.len() >= PODS_MAX {
            if !std::mem::replace(&mut self.is_full, true) {
                let text = format!("more than {PODS_MAX} pods on the node: the others are left");
                self.outcome.messages.push(FromWatcher::Notice(text));
            }
            return;
        }
        self.pods.insert(uid.clone(), pod);
        self.decide(&uid);
    }

    /// A pod is gone, by the UID of its object. Another object may have its name by now.
    pub(crate) fn delete(&mut self, object_uid: &str) {
        self.remove_objects(|known| known.object_uid == object_uid);
    }

    fn remove_objects(&mut self, is_gone: impl Fn(&PodFacts) -> bool) {
        let gone = self.pods.values().filter(|pod| is_gone(pod));
        let gone: Vec<String> = gone.map(|pod| pod.uid.clone()).collect();
        gone.iter().for_each(|uid| self.remove(uid));
    }

    fn remove(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.refused.remove(uid);
        self.retract(uid);
    }

    /// A `LatencyObjective` was added or changed (`Some`), or is gone. Returns why it is ignored,
    /// if it is.
    pub(crate) fn set_rule(
        &mut self,
        namespace: &str,
        name: &str,
        spec: Option<&LatencyObjectiveSpec>,
    ) -> Option<String> {
        let key = (namespace.to_owned(), name.to_owned());
        let (why, is_noted) = match spec.map(LatencyObjectiveSpec::rule) {
            Some(Ok(rule)) => match self.rules.insert(key, rule) {
                Ok(()) => {
                    self.decide_inside(namespace);
                    return None;
                }
                Err(why) => (why, std::mem::replace(&mut self.is_full_of_rules, true)),
            },
            Some(Err(why)) => {
                self.remove_rule(&key);
                (why, false)
            }
            None => {
                self.remove_rule(&key);
                return None;
            }
        };
        if !is_noted {
            let text = format!("LatencyObjective {namespace}/{name} is ignored: {why}");
            self.outcome.messages.push(FromWatcher::Notice(one_line(text)));
        }
        Some(why)
    }

    /// Removes a rule. One that has waited may count in its place.
    fn remove_rule(&mut self, key: &RuleKey) {
        let next = self.rules.remove(key);
        self.decide_inside(&key.0);
        if let Some((namespace, name)) = next {
            let text = format!("LatencyObjective {namespace}/{name} has room now, and counts");
            self.outcome.messages.push(FromWatcher::Notice(one_line(text)));
            self.decide_inside(&namespace);
        }
    }

    /// Decides on the pods of a namespace.
    fn decide_inside(&mut self, namespace: &str) {
        let inside = |pod: &&PodFacts| pod.namespace == namespace;
        let uids: Vec<String> =
            self.pods.values().filter(inside).map(|pod| pod.uid.clone()).collect();
        uids.iter().for_each(|uid| self.decide(uid));
    }

    /// Takes what the container runtime has reported, from its first listing on.
    pub(crate) fn take_containers(&mut self, change: ContainerChange) {
        let is_first = self.containers.is_none();
        if is_first && !matches!(change, ContainerChange::All(_)) {
            return;
        }
        let uids = self.containers.get_or_insert_default().take(change);
        if is_first {
            self.decide_all();
        } else {
            uids.iter().for_each(|uid| self.decide(uid));
        }
    }

    /// The container runtime reports nothing any longer: the status of pods counts again.
    pub(crate) fn lose_containers(&mut self) {
        if self.containers.take().is_some() {
            self.decide_all();
        }
    }

    fn decide_all(&mut self) {
        let uids: Vec<String> = self.pods.keys().cloned().collect();
        uids.iter().for_each(|uid| self.decide(uid));
    }

    /// Keeps only these rules, after a listing.
    pub(crate) fn retain_rules(&mut self, listed: &BTreeSet<RuleKey>) {
        for key in self.rules.unlisted(listed) {
            self.remove_rule(&key);
        }
    }

    /// An Event about a pod that the agent has reported.
    pub(crate) fn event(&self, uid: &str, kind: Kind, text: String) -> Option<PodEvent> {
        Some(PodEvent { regarding: self.pods.get(uid)?.reference(), kind, text })
    }

    /// Whether the object of an Event is still there, if it is a pod.
    pub(crate) fn knows(&self, object: &ObjectReference) -> bool {
        let is_it = |pod: &PodFacts| Some(&pod.object_uid) == object.uid.as_ref();
        object.kind.as_deref() != Some("Pod") || self.pods.values().any(is_it)
    }

    /// Compares the wanted state of a pod with the agent's.
    fn decide(&mut self, uid: &str) {
        let Some(pod) = self.pods.get(uid).filter(|_| self.knows_rules) else { return };
        match self.order_of(pod) {
            Ok(Some(order)) => {
                self.refused.remove(uid);
                if self.sent.get(uid) != Some(&order) {
                    self.sent.insert(uid.to_owned(), order.clone());
                    self.outcome.messages.push(FromWatcher::Pod(Box::new(order)));
                }
            }
            Ok(None) => {
                self.refused.remove(uid);
                self.retract(uid);
            }
            Err(why) => {
                let why = one_line(why);
                let (regarding, title) =
                    (pod.reference(), format!("{}/{}", pod.namespace, pod.name));
                self.retract(uid);
                if self.refused.insert(uid.to_owned(), why.clone()).as_ref() != Some(&why) {
                    let text = one_line(format!("pod {title} is not managed: {why}"));
                    self.outcome.messages.push(FromWatcher::Notice(text));
                    self.outcome.events.push(PodEvent {
                        regarding,
                        kind: Kind::Unmanaged,
                        text: why,
                    });
                }
            }
        }
    }

    fn retract(&mut self, uid: &str) {
        if self.sent.remove(uid).is_some() {
            self.outcome.messages.push(FromWatcher::Gone(uid.to_owned()));
        }
    }

    /// Returns the order for a pod; `None` if there is none.
    ///
    /// # Errors
    /// For its owner: why a pod that requests management is not managed.
    fn order_of(&self, pod: &PodFacts) -> Result<Option<PodOrder>, String> {
        let own = PodSettings::read(&pod.labels, &pod.annotations)?;
        let rule = self.rules.of_pod(pod)?;
        let settings = rule.map_or_else(|| own.clone(), |rule| own.clone().or(&rule.settings));
        let running = self.running_of(pod);
        // Without its status a container's number is unknown, but the pod's cgroup is known.
        let is_starting = running.is_empty()
            && pod.may_run
            && self.containers.is_none()
            && settings.container.is_none();
        if settings.manage == Some(false) || (running.is_empty() && !is_starting) {
            return Ok(None);
        }
        let Some(template) = self.template_of(pod, &settings)? else { return Ok(None) };
        let container = match &settings.container {
            None => None,
            Some(name) if !pod.containers.contains(name) => {
                let known = pod.containers.join(", ");
                return Err(format!("lull.dev/container names `{name}`: there are {known}"));
            }
            Some(name) => match running.get(name) {
                None => return Ok(None),
                Some(None) => {
                    return Err(format!("container `{name}` is of a runtime that is not known"));
                }
                Some(Some(id)) => Some(*id),
            },
        };
        let objectives = settings.objectives.iter().map(|one| Bound::from(one.objective)).collect();
        Ok(Some(PodOrder {
            cpus: self.cpus_of(pod, container),
            container_name: settings.container.unwrap_or_default(),
            workload: pod.workload.clone(),
            otlp_service: settings.service,
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            service: pod.service,
            container,
            template,
            objectives,
            // The runtime reports the cores that the CPU manager sets.
            may_be_exclusive: pod.has_whole_cpus
                && self.cpu_manager != CpuManager::None
                && self.containers.is_none(),
            is_starting,
        }))
    }

    /// The containers of a pod that run, by name: as its runtime reports them, else as the API
    /// server does.
    fn running_of(&self, pod: &PodFacts) -> BTreeMap<String, Option<ContainerId>> {
        if self.containers.is_none() {
            return pod.running.clone();
        }
        let reported = self.reported_of(pod);
        reported.map(|one| (one.name.clone(), Some(one.id))).collect()
    }

    /// Returns the reported containers of a pod, without those that only prepare it.
    fn reported_of<'a>(&'a self, pod: &'a PodFacts) -> impl Iterator<Item = &'a RuntimeContainer> {
        let all = self.containers.as_ref().map_or(&[][..], |all| all.of_pod(&pod.uid));
        all.iter().filter(move |one| pod.containers.contains(&one.name))
    }

    /// The cores that the runtime has set for a container of a pod, or for any of them; the fewest.
    fn cpus_of(&self, pod: &PodFacts, container: Option<ContainerId>) -> String {
        let reported = self.reported_of(pod);
        let of_app = reported.filter(|one| container.is_none_or(|id| one.id == id));
        let set =
            of_app.filter_map(|one| Some((one.cpus.parse::<CoreSet>().ok()?.len(), &one.cpus)));
        // An empty list has no cores.
        let fewest = set.filter(|(count, _)| *count > 0).min();
        fewest.map(|(_, cpus)| cpus.clone()).unwrap_or_default()
    }

    /// The number of the first template that selects a pod and offers what it requests, else of the
    /// first that offers it; `None` if no template selects it and it requests nothing.
    fn template_of(&self, pod: &PodFacts, settings: &PodSettings) -> Result<Option<u16>, String> {
        let needs = Needs::from_settings(settings)?;
        let all = || (0_u16..).zip(&self.templates).filter(|(_, (_, offer))| needs.fit(offer));
        let mut selected = all().filter(|(_, (selector, _))| selector.matches(&pod.labels));
        if let Some((number, _)) = selected.next() {
            return Ok(Some(number));
        }
        if needs.class.is_none() && needs.of.is_none() {
            return Ok(None);
        }
        if let Some((number, _)) = all().next() {
            return Ok(Some(number));
        }
        Err(format!("this node's agent has no [[match]] with `pods` for {needs}"))
    }
}

/// The requirements that a pod has of a template.
struct Needs {
    class: Option<Class>,
    of: Option<Measured>,
    source: Option<LatencyName>,
    /// The percentile of its tail.
    percent: Option<f64>,
}

impl Needs {
    fn from_settings(settings: &PodSettings) -> Result<Self, String> {
        let measured = settings.objectives.iter().find(|one| one.objective.bounds_latency());
        let of = match (measured, settings.latency) {
            (Some(one), Some(_)) if Measured::from(one.of) != Measured::Requests => {
                let of = one.of.name();
                return Err(format!("lull.dev/latency is not read for an objective of {of}"));
            }
            (Some(one), _) => Some(Measured::from(one.of)),
            (None, Some(_)) => Some(Measured::Requests),
            (None, None) => None,
        };
        let percent = settings.objectives.iter().find_map(|one| match one.objective {
            Objective::Tail { percentile, .. } => Some(percentile.percent()),
            _ => None,
        });
        Ok(Self { class: settings.class, of, source: settings.latency, percent })
    }

    fn fit(&self, offer: &TemplateOffer) -> bool {
        let percents = self.percent.zip(offer.percent);
        self.class.is_none_or(|class| class == offer.class())
            && self.of.is_none_or(|of| of == offer.of)
            && self.source.is_none_or(|source| Some(source) == offer.source)
            && percents.is_none_or(|(ours, theirs)| (ours - theirs).abs() < 1e-9)
    }
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = self.class.map_or("any class".to_owned(), |class: Class| class.to_string());
        let of = self.of.map_or("nothing in particular", describe);
        write!(f, "{class} with an objective of {of}")?;
        if let Some(source) = self.source {
            write!(f, ", latency = \"{}\"", source.name())?;
        }
        match self.percent {
            // A query of a Prometheus server is of one percentile.
            Some(percent) if self.source.is_none_or(|it| it == LatencyName::Prometheus) => {
                write!(f, " and percentile p{percent}")
            }
            _ => Ok(()),
        }
    }
}

const fn describe(of: Measured) -> &'static str {
    match of {
        Measured::Nothing => "nothing",
        Measured::Requests => "latency of requests",
        Measured::RunQueue => "run-queue latency",
        Measured::MemoryPressure => "memory pressure",
    }
}

#[cfg(test)]
mod tests;
