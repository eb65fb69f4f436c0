//! A scenario with `[node]` as it is written.

use super::NodeScene;
use crate::colocation::GateKeepers;
use crate::scenario::file::RunSection;
use crate::scenario::node_section::{NodeAppSection, NodeSection};
use crate::trial::rules;
use lull_measure::Nanos;
use serde::Deserialize;

/// A scenario of a node as it is written, before it is checked.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColocatedFile {
    title: String,
    #[serde(default)]
    run: RunSection,
    node: Box<NodeSection>,
    app: Vec<NodeAppSection>,
    #[serde(default)]
    policy: Vec<toml::Table>,
}

impl From<ColocatedFile> for NodeScene {
    fn from(file: ColocatedFile) -> Self {
        Self {
            model: file.node.model(&file.title, &file.app),
            apps: file.app.iter().map(NodeAppSection::spec).collect(),
            title: file.title,
            run: file.run,
            rules: rules(),
            policies: file.policy,
            epoch: None,
            admission: GateKeepers::default(),
            groups: Vec::new(),
            shortest_epoch: Nanos::ZERO,
            notices: Vec::new(),
        }
    }
}
