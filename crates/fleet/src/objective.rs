//! `LatencyObjective`: the objectives of pods that a selector finds, as a resource of the cluster.
//!
//! The definition that the chart installs is made from this type
//! (`packaging/helm/lull/crds/latencyobjectives.json`; a test compares them).

use crate::annotations::{PodSettings, parse_objectives};
use crate::source::LatencyName;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::CustomResource;
use kube::core::{Rule, Selector};
use lull_control::Class;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Objectives of the pods of its namespace that it selects. What a pod says by its own
/// annotations overrules it.
#[derive(Debug, Clone, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "lull.dev",
    version = "v1alpha1",
    kind = "LatencyObjective",
    namespaced,
    shortname = "lo",
    category = "lull",
    printcolumn = r#"{"name":"Class","type":"string","jsonPath":".spec.class"}"#,
    printcolumn = r#"{"name":"Objectives","type":"string","jsonPath":".spec.objectives"}"#,
    printcolumn = r#"{"name":"Policy","type":"string","jsonPath":".spec.policy"}"#,
    validation = class_rule(),
    validation = latency_rule()
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LatencyObjectiveSpec {
    /// Selects the pods of its namespace.
    pub selector: LabelSelector,
    /// Whether requests wait for them.
    #[serde(default)]
    pub class: ClassName,
    /// Bounds as in the annotation `lull.dev/objective`: `p99=50ms`, `run_queue_p99=1ms`,
    /// `memory_pressure=2%`, `throughput=1000`.
    #[serde(default)]
    #[schemars(length(max = 8), inner(length(max = 64), regex(pattern = OBJECTIVE)))]
    pub objectives: Vec<String>,
    /// The source of their latency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyName>,
    /// The treatment of the selected pods.
    #[serde(default)]
    pub policy: PodPolicy,
}

/// The form of an objective. A number above zero is `0*[1-9][0-9]*(\.[0-9]+)?`, or is below one.
const OBJECTIVE: &str = concat!(
    r"^((run_queue_)?p[1-9][0-9]?(\.[0-9]{1,4})?=",
    r"(0*[1-9][0-9]*(\.[0-9]+)?|0+\.[0-9]*[1-9][0-9]*)(us|ms|s)",
    r"|memory_pressure=(0*[1-9][0-9]?(\.[0-9]+)?|0+\.[0-9]*[1-9][0-9]*)%",
    r"|throughput=(0*[1-9][0-9]*(\.[0-9]+)?|0+\.[0-9]*[1-9][0-9]*)",
    r"|disengagement=0\.[0-9]*[1-9][0-9]*)$",
);

/// Returns the rule that the API server checks beyond the types.
fn class_rule() -> Rule {
    let has_class = "self.spec.class != 'latency-critical' || self.spec.policy != 'Manage'";
    Rule::new(format!("{has_class} || size(self.spec.objectives) > 0"))
        .message("a latency-critical class needs objectives")
}

/// The API server refuses what [`parse_objectives`] would: bounds of two kinds of latency.
fn latency_rule() -> Rule {
    let exists = |begins: &[&str]| {
        let begins: Vec<String> = begins.iter().map(|it| format!("o.startsWith('{it}')")).collect();
        format!("self.spec.objectives.exists(o, {})", begins.join(" || "))
    };
    let kinds = [exists(&["p", "disengagement="]), exists(&["run_queue_"]), exists(&["memory_"])];
    Rule::new(format!("[{}].filter(kind, kind).size() <= 1", kinds.join(", ")))
        .message("the objectives bound more than one kind of latency: keep one")
}

/// The class of an app.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClassName {
    /// Requests wait for it.
    #[default]
    LatencyCritical,
    /// The pod uses the resources that are left.
    BestEffort,
}

/// The treatment of pods by the agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodPolicy {
    /// They are apps of the agent, which follows the policy of the node.
    #[default]
    Manage,
    /// They are left alone.
    LeaveAlone,
}

/// A resource as the watcher uses it.
#[derive(Debug, Clone)]
pub(crate) struct ObjectiveRule {
    pub(crate) selector: Selector,
    pub(crate) settings: PodSettings,
}

impl LatencyObjectiveSpec {
    /// Reads the rule.
    ///
    /// # Errors
    /// A fault that the schema did not refuse.
    pub(crate) fn rule(&self) -> Result<ObjectiveRule, String> {
        let selector = Selector::try_from(self.selector.clone());
        let selector = selector.map_err(|error| format!("selector: {error}"))?;
        let objectives = parse_objectives(self.objectives.iter().map(String::as_str))
            .map_err(|why| format!("objectives {why}"))?;
        let class = match self.class {
            ClassName::LatencyCritical => Class::LatencyCritical,
            ClassName::BestEffort => Class::BestEffort,
        };
        let settings = PodSettings {
            class: Some(class),
            objectives,
            latency: self.latency,
            container: None,
            service: None,
            manage: Some(self.policy == PodPolicy::Manage),
        };
        Ok(ObjectiveRule { selector, settings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::CustomResourceExt;
    use serde_json::{Value, json};

    fn rule(spec: Value) -> Result<ObjectiveRule, String> {
        let spec: LatencyObjectiveSpec =
            serde_json::from_value(spec).map_err(|error| error.to_string())?;
        spec.rule()
    }

    #[test]
    fn a_resource_says_what_annotations_say() {
        let selector = json!({ "matchLabels": { "tier": "web" } });
        let read = rule(json!({ "selector": selector, "objectives": ["p99=50ms"] })).unwrap();
        assert_eq!(read.settings.class, Some(Class::LatencyCritical));
        assert_eq!((read.settings.objectives.len(), read.settings.manage), (1, Some(true)));
        let left = json!({ "selector": selector, "policy": "LeaveAlone", "class": "best-effort" });
        assert_eq!(rule(left).unwrap().settings.manage, Some(false));
        let wrong =
            rule(json!({ "selector": selector, "objectives": ["p99=5ms", "memory_pressure=2%"] }));
        assert!(wrong.unwrap_err().contains("keep one"));
        assert!(rule(json!({ "selector": selector, "objective": ["p99=50ms"] })).is_err());
    }

    #[test]
    fn the_chart_has_the_definition_of_this_type() {
        let made = serde_json::to_string_pretty(&LatencyObjective::crd()).unwrap() + "\n";
        let path = "../../packaging/helm/lull/crds/latencyobjectives.json";
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        if std::env::var_os("LULL_WRITE_CRD").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let chart = std::fs::read_to_string(&path).unwrap();
        assert_eq!(chart, made, "write it again with LULL_WRITE_CRD=1");
    }

    #[test]
    fn the_schema_bounds_every_field() {
        let crd = serde_json::to_value(LatencyObjective::crd()).unwrap();
        let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let of = |name: &str| &spec["properties"][name];
        assert_eq!(of("objectives")["maxItems"], 8);
        assert_eq!(of("objectives")["items"]["pattern"], OBJECTIVE);
        assert_eq!(of("class")["enum"], json!(["latency-critical", "best-effort"]));
        assert_eq!(of("policy")["enum"], json!(["Manage", "LeaveAlone"]));
        assert_eq!(spec["required"], json!(["selector"]));
    }

    #[test]
    fn the_rules_of_the_definition_name_every_kind_of_latency() {
        let crd = serde_json::to_value(LatencyObjective::crd()).unwrap();
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let rules = schema["x-kubernetes-validations"].as_array().unwrap();
        assert_eq!(rules.len(), 2, "{rules:?}");
        let rule = rules[1]["rule"].as_str().unwrap();
        let exists = "self.spec.objectives.exists(o, o.startsWith(";
        assert_eq!(rule.matches(exists).count(), 3, "{rule}");
    }
}
