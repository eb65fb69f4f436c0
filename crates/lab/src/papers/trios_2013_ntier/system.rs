//! The n-tier system of the paper as a model, and its DVFS controllers.
//!
//! Apache, Tomcat, C-JDBC and MySQL with one core per server. A request holds
//! its threads upstream while it is served downstream, and one of a Tomcat's
//! database connections around the call of C-JDBC and MySQL. The paper prints
//! no service demand; those here follow from its throughputs.

use super::paper::paper;
use crate::policy_source::PolicySource;
use crate::trial::{Control, Trial};
use lull_measure::Nanos;
use lull_sim::model::{
    App, Closed, Cores, Discipline, Distribution, HardwareModel, Model, Pool, Routing, Schedule,
    Source, Step, Tier,
};

/// Tiers under DVFS; Apache and C-JDBC always run at full speed (appendix A).
pub(super) const TOMCAT: usize = 1;
/// See [`TOMCAT`].
pub(super) const MYSQL: usize = 3;
/// Both tiers with DVFS.
pub(super) const DVFS_TIERS: [usize; 2] = [TOMCAT, MYSQL];
/// Think time that Table 2 implies: 1000 clients / 143 requests per second.
const THINK: Nanos = Nanos::from_secs(7);
/// The sampling window of Table 1.
const WINDOW: Nanos = Nanos::from_millis(50);
/// Windows above the threshold that trigger a step up (Table 1).
const UP_WINDOWS: u64 = 10;
/// The adjustment period, ten windows.
pub(super) const PERIOD: Nanos = Nanos::from_millis(500);

/// Four think times: the clients, all thinking at first, have spread out.
const WARMUP: Nanos = Nanos::from_secs(28);
/// Burst intervals that eq. 1 averages; not printed.
pub(super) const INTERVALS: usize = 5;

/// Mean work per request of each tier in microseconds at full speed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Demands {
    pub(super) apache_us: u64,
    pub(super) tomcat_us: u64,
    pub(super) cjdbc_us: u64,
    pub(super) mysql_us: u64,
}

impl Demands {
    /// MySQL from 1886 requests/s of two servers; Tomcat from the 90 % CPU at
    /// 14,000 clients of section 2; the others no bottleneck at 1/2/1/2.
    pub(super) const TABLE2: Self =
        Self { apache_us: 300, tomcat_us: 960, cjdbc_us: 200, mysql_us: 1060 };
    /// With four pairs of servers for one Apache, Apache and C-JDBC work half as long, or they
    /// would be the bottleneck.
    pub(super) const TABLE3: Self = Self { apache_us: 150, cjdbc_us: 100, ..Self::TABLE2 };
    /// Configuration 1/1/1 serves 790 requests/s, not 943: 19.4 % more work.
    pub(super) const TABLE3_SINGLE: Self = Self {
        apache_us: 150 * 1194 / 1000,
        tomcat_us: 960 * 1194 / 1000,
        mysql_us: 1060 * 1194 / 1000,
        ..Self::TABLE3
    };
}

/// A configuration of the system and its load.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct NTier {
    /// Apache, Tomcat, C-JDBC (0: none), MySQL.
    pub(super) servers: [u32; 4],
    pub(super) clients: u32,
    pub(super) demands: Demands,
    /// Threads of each Tomcat.
    pub(super) threads: Option<u32>,
    /// Database connections of each Tomcat.
    pub(super) connections: Option<u32>,
    pub(super) routing: Routing,
    /// Clients in the two halves of a burst cycle, and its length.
    pub(super) bursts: Option<(u32, u32, Nanos)>,
}

impl NTier {
    /// 1/2/1/2 as in Table 2.
    pub(super) fn table2(clients: u32) -> Self {
        Self {
            servers: [1, 2, 1, 2],
            clients,
            demands: Demands::TABLE2,
            threads: Some(75),
            connections: Some(50),
            routing: Routing::RoundRobin,
            bursts: None,
        }
    }

    /// 1/2/1/2 without pools, 12,000 and 4,000 clients in turn (section 4.2).
    pub(super) fn bursts(cycle: Nanos) -> Self {
        let bursts = Some((12_000, 4_000, cycle));
        Self { threads: None, connections: None, bursts, ..Self::table2(12_000) }
    }

    /// The model.
    pub(super) fn model(&self) -> Model {
        let mut model = Model::default();
        model.machine.insert("dvfs".to_owned(), dvfs_machine());
        let [apache, tomcat, cjdbc, mysql] = self.servers;
        let tier = |name: &str, servers| Tier {
            servers,
            discipline: Discipline::Sharing,
            routing: self.routing.clone(),
            ..Tier::named(name)
        };
        let machine = || Some("dvfs".to_owned());
        model.tier = vec![
            tier("apache", apache),
            Tier { threads: self.threads, machine: machine(), ..tier("tomcat", tomcat) },
            // Without C-JDBC, its tier exists but no request calls it.
            tier("cjdbc", cjdbc.max(1)),
            Tier { machine: machine(), ..tier("mysql", mysql) },
        ];
        if let Some(size) = self.connections {
            let per = Some("tomcat".to_owned());
            model.pool = vec![Pool { name: "connections".into(), size, per, backlog: None }];
        }
        let (source, steps) = (self.source(), vec![self.request()]);
        model.app = vec![App { name: "rubbos".to_owned(), source, priority: 0, steps }];
        model
    }

    fn source(&self) -> Source {
        let think = Distribution::exponential(THINK);
        let schedule = self
            .bursts
            .map(|(high, low, cycle)| Schedule::bursts(f64::from(high), f64::from(low), cycle));
        Source::Closed(Closed { clients: self.clients, think, schedule })
    }

    /// Returns the steps of one request; Tomcat works before and after the database.
    fn request(&self) -> Step {
        let Demands { apache_us, tomcat_us, cjdbc_us, mysql_us } = self.demands;
        let mut database = call("mysql", vec![work(mysql_us)]);
        if self.servers[2] > 0 {
            database = call("cjdbc", vec![work(cjdbc_us), database]);
        }
        if self.connections.is_some() {
            database = Step::Hold { pool: "connections".to_owned(), steps: vec![database] };
        }
        let half = || work(tomcat_us / 2);
        call("apache", vec![work(apache_us), call("tomcat", vec![half(), database, half()])])
    }
}

fn work(mean_us: u64) -> Step {
    Step::Work(Distribution::exponential(Nanos::from_micros(mean_us)))
}

fn call(tier: &str, steps: Vec<Step>) -> Step {
    Step::Call { tier: tier.to_owned(), steps }
}

/// One core with P0, P4 and P8, which starts in P8; power by eq. 3 with C = 1
/// and no static part.
fn dvfs_machine() -> HardwareModel {
    let pstates = paper().pstate.into_iter().map(|named| named.state).collect();
    let cores = Cores { pstates, start: 2, ..Cores::default() };
    HardwareModel { cores: vec![cores], ..HardwareModel::default() }
}

/// How the servers' clocks are run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Clock {
    /// DVFS off.
    FullSpeed,
    /// Eqs. 4 and 5 with an adjustment period.
    Step(Nanos, Windows, Down),
    /// The same with the period of eqs. 1 and 2, down to P8 in one move.
    Adaptive(Windows),
}

/// The parts of an adjustment period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Windows {
    /// As many windows of 50 ms as fit; if the period is shorter than 50 ms, one window of its
    /// length.
    Fixed,
    /// Ten windows, whatever their length.
    Scaled,
}

/// How far a step down goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Down {
    /// A step to P8 immediately (section 3.1: "from P0 to P8").
    Lowest,
    /// A step by one P-state (eq. 4).
    OneStep,
}

impl Clock {
    /// Table 1, and down in one move.
    pub(super) const FITTED: Self = Self::Step(PERIOD, Windows::Fixed, Down::Lowest);
    /// Table 1 and eq. 4 to the letter.
    pub(super) const LITERAL: Self = Self::Step(PERIOD, Windows::Fixed, Down::OneStep);

    /// The control of these tiers.
    fn control(self, tiers: &[usize], model: &Model) -> Control {
        let tiers = tiers.iter().map(|tier| model.tier[*tier].name.clone()).collect();
        let (policy, config, epoch) = match self {
            Self::FullSpeed => ("full-speed", toml::Table::new(), WINDOW),
            Self::Step(period, windows, down) => {
                let mut config = controller(windows, down);
                config.insert("period".to_owned(), format!("{}ns", period.0).into());
                ("step-dvfs", config, windows.epoch(period))
            }
            Self::Adaptive(windows) => {
                // Its shortest period is 50 ms, and the windows follow that.
                let epoch = windows.epoch(WINDOW);
                let mut config = controller(windows, Down::Lowest);
                config.insert("intervals".to_owned(), (INTERVALS as i64).into());
                ("adaptive-dvfs", config, epoch)
            }
        };
        Control {
            policy: PolicySource::Registered(policy.to_owned()),
            config,
            tiers,
            epoch: epoch.into(),
        }
    }
}

impl Windows {
    /// The window of a period, which is how often the policy must look.
    fn epoch(self, period: Nanos) -> Nanos {
        match self {
            Self::Fixed => period.min(WINDOW),
            Self::Scaled => period / UP_WINDOWS,
        }
    }
}

fn controller(windows: Windows, down: Down) -> toml::Table {
    let windows = if windows == Windows::Fixed { "fixed" } else { "scaled" };
    let down = if down == Down::Lowest { "lowest" } else { "one-step" };
    [("windows", windows), ("down", down)]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.into()))
        .collect()
}

/// A trial of a model with these tiers under a clock; the other ones of the
/// two under DVFS run at full speed.
pub(super) fn trial<'m>(
    model: &'m Model,
    clock: Clock,
    tiers: &[usize],
    seed: u64,
    seconds: u64,
) -> Trial<'m> {
    let rest: Vec<usize> = DVFS_TIERS.into_iter().filter(|tier| !tiers.contains(tier)).collect();
    Trial {
        model,
        controls: vec![clock.control(tiers, model), Clock::FullSpeed.control(&rest, model)],
        apps: Vec::new(),
        seed,
        warmup: WARMUP,
        length: Nanos::from_secs(seconds),
    }
}
