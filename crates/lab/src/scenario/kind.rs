//! The kinds of scenarios, distinguished by their sections.

use super::choice::Labelled;
use super::{
    Choice, Colocated, ColocatedFile, DispatchFile, DispatchScenario, Gated, GatedFile,
    HostedScenario, InvalidKey, NetServerFile, NetServerScenario, Outcome, RunError, Scenario,
    ScenarioFile,
};
use crate::progress::Progress;
use std::path::Path;

/// The kind of system that a scenario describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Tiers of servers that call each other.
    Tiers,
    /// `[node]`: one machine that apps share.
    Node,
    /// `[dispatch]`: one machine whose dispatcher assigns requests to core speeds.
    Dispatch,
    /// `[gated]`: one server with more threads than cores, behind a gate.
    Gated,
    /// `[server]`: one server behind a network card.
    NetServer,
}

/// A scenario of any kind as it is written.
#[derive(Debug, Clone)]
pub enum AnyFile {
    /// A scenario of tiers.
    Tiers(ScenarioFile),
    /// A scenario of a node.
    Node(ColocatedFile),
    /// A scenario of dispatched requests.
    Dispatch(DispatchFile),
    /// A scenario of a gated server.
    Gated(Box<GatedFile>),
    /// A scenario of a network server.
    NetServer(Box<NetServerFile>),
}

/// A checked scenario of any kind.
#[derive(Debug, Clone)]
pub enum AnyScenario {
    /// A scenario of tiers.
    Tiers(Box<Scenario>),
    /// A scenario of tiers of which some are machines with cores.
    Hosted(Box<HostedScenario>),
    /// A scenario of a node.
    Node(Box<Colocated>),
    /// A scenario of dispatched requests.
    Dispatch(Box<DispatchScenario>),
    /// A scenario of a gated server.
    Gated(Box<Gated>),
    /// A scenario of a network server.
    NetServer(Box<NetServerScenario>),
}

impl Kind {
    /// Returns the kind of a scenario by its sections: tiers unless it has the section of
    /// another kind.
    pub fn from_table(scenario: &toml::Table) -> Self {
        match () {
            () if scenario.contains_key("node") => Self::Node,
            () if scenario.contains_key("dispatch") => Self::Dispatch,
            () if scenario.contains_key("gated") => Self::Gated,
            () if scenario.contains_key("server") => Self::NetServer,
            () => Self::Tiers,
        }
    }
}

/// Evaluates one expression for a scenario of tiers, or the other for the frame of any other kind.
macro_rules! of_kind {
    ($any:ident, $tiers:ident => $of_tiers:expr, $frame:ident => $of_frame:expr) => {
        match $any {
            Self::Tiers($tiers) => $of_tiers,
            Self::Hosted(scenario) => of_kind!(scenario, $frame, $of_frame),
            Self::Node(scenario) => of_kind!(scenario, $frame, $of_frame),
            Self::Dispatch(scenario) => of_kind!(scenario, $frame, $of_frame),
            Self::Gated(scenario) => of_kind!(scenario, $frame, $of_frame),
            Self::NetServer(scenario) => of_kind!(scenario, $frame, $of_frame),
        }
    };
    ($scenario:ident, $frame:ident, $of_frame:expr) => {{
        let $frame = &$scenario.frame;
        $of_frame
    }};
}

impl AnyScenario {
    /// Checks a scenario; `base` is the directory of files that it names.
    ///
    /// # Errors
    /// The first key that cannot be simulated.
    pub fn new(file: AnyFile, base: &Path, choice: &Choice) -> Result<Self, InvalidKey> {
        if let (AnyFile::Dispatch(_) | AnyFile::Gated(_), Some(custom)) =
            (&file, choice.custom.first())
        {
            let name = custom.name();
            let message = format!(
                "`{name}` is not a policy of the registry: a scenario with [dispatch] or [gated] \
                 takes only those of the registry; your own run on tiers, [node] and [server]"
            );
            return Err(InvalidKey::at("--policy", message));
        }
        Ok(match file {
            AnyFile::Tiers(file) if !file.host.is_empty() => {
                Self::Hosted(Box::new(HostedScenario::new(file, base, choice)?))
            }
            AnyFile::Tiers(file) => Self::Tiers(Box::new(Scenario::new(file, base, choice)?)),
            AnyFile::Node(file) => Self::Node(Box::new(Colocated::new(file.into(), choice)?)),
            AnyFile::Dispatch(file) => {
                Self::Dispatch(Box::new(DispatchScenario::new(file, choice)?))
            }
            AnyFile::Gated(file) => Self::Gated(Box::new(Gated::new(*file, choice)?)),
            AnyFile::NetServer(file) => {
                Self::NetServer(Box::new(NetServerScenario::new(*file, base, choice)?))
            }
        })
    }

    /// Its title.
    pub fn title(&self) -> &str {
        of_kind!(self, tiers => &tiers.title, frame => &frame.contents.title)
    }

    /// The labels of the policies, the reference first.
    pub fn labels(&self) -> Vec<&str> {
        of_kind!(
            self,
            tiers => tiers.variants.iter().map(Labelled::label).collect(),
            frame => frame.labels()
        )
    }

    /// The number of replications of each policy; `None` if a precision decides it.
    pub fn replications(&self) -> Option<u64> {
        of_kind!(
            self,
            tiers => tiers.precision.is_none().then_some(tiers.replications),
            frame => frame.fixed_replications()
        )
    }

    /// Seed of all random numbers.
    pub fn seed(&self) -> u64 {
        of_kind!(self, tiers => tiers.seed, frame => frame.seed)
    }

    /// Notices about how far the figures are valid.
    pub fn notices(&self) -> &[String] {
        of_kind!(self, tiers => &tiers.notices, frame => &frame.contents.notices)
    }

    /// Runs all policies on the same replications.
    ///
    /// # Errors
    /// The first simulation that cannot be set up or reaches a bound.
    pub fn run(&self, progress: &Progress<'_>) -> Result<Outcome, RunError> {
        match self {
            Self::Tiers(scenario) => scenario.run(progress),
            Self::Hosted(scenario) => scenario.run(progress),
            Self::Node(scenario) => scenario.run(progress),
            Self::Dispatch(scenario) => scenario.run(progress),
            Self::Gated(scenario) => scenario.run(progress),
            Self::NetServer(scenario) => scenario.run(progress),
        }
    }
}
