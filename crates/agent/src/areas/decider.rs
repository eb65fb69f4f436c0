//! Decides on the cores of each class of clients: they are fixed, or `qos-wc` sees each class as
//! an app.

use super::{AreaError, CoreDemand, POLICY};
use lull_control::{
    AppId, AppObservation, AppSpec, Class, CoreSet, Knob, LatencyObservation, Machine, Observation,
    Plan, Policy, Rng, Setting,
};
use lull_host::oncall::ConnectionSeen;
use lull_host::sys::sched::affinity_of;
use lull_measure::{Latency, Missing, Nanos};
use lull_policies::POLICIES;
use rand::SeedableRng;

/// Time between two observations that the policy is shown.
const EPOCH: Nanos = Nanos::from_millis(100);

/// The areas of all classes, and what decides on them.
pub(super) struct Decider {
    areas: Vec<Option<CoreSet>>,
    policy: Option<ClassPolicy>,
}

/// A policy that sees each class of clients as an app.
struct ClassPolicy {
    policy: Box<dyn Policy>,
    rng: Rng,
    windows: Vec<Window>,
    /// When the windows and the first one began.
    last: Option<Nanos>,
    begun: Nanos,
}

/// Observations of one class since the last decision.
#[derive(Debug, Default)]
struct Window {
    latency: Latency,
    /// Queries under way at the last reading, and the age of the oldest.
    outstanding: u64,
    oldest: Option<Nanos>,
    /// Queries under way at the last observation.
    were_outstanding: u64,
}

impl Decider {
    /// Returns a decider for classes with these names, of which some want something.
    ///
    /// # Errors
    /// The policy's error about its keys or the cores.
    pub(super) fn new(
        classes: &[String],
        wants: &[Option<CoreDemand>],
        keys: &toml::Table,
        machine: Machine,
    ) -> Result<Self, AreaError> {
        let by_policy =
            wants.iter().flatten().any(|one| matches!(one, CoreDemand::Objective { .. }));
        if by_policy {
            let own = affinity_of(rustix::thread::gettid().as_raw_nonzero().get());
            let own = own.map_err(|error| {
                AreaError::Other(format!("the cores of this process are not known: {error}"))
            })?;
            let machine = machine.restricted_to(&own);
            return Self::by_policy(classes, wants, keys, &machine);
        }
        let cores = |wanted: &Option<CoreDemand>| match wanted {
            Some(CoreDemand::Cores(cores)) => Some(cores.clone()),
            Some(CoreDemand::Objective { .. }) | None => None,
        };
        Ok(Self { areas: wants.iter().map(cores).collect(), policy: None })
    }

    /// As [`Decider::new`], with the policy deciding on the cores of this machine.
    pub(super) fn by_policy(
        classes: &[String],
        wants: &[Option<CoreDemand>],
        keys: &toml::Table,
        machine: &Machine,
    ) -> Result<Self, AreaError> {
        let apps: Vec<AppSpec> =
            classes.iter().zip(wants).map(|(name, wanted)| app(name, wanted.as_ref())).collect();
        let policy = POLICIES.build(POLICY, keys, machine, &apps).map_err(AreaError::Policy)?;
        let policy = ClassPolicy {
            policy,
            // The policy draws no random number.
            rng: Rng::seed_from_u64(1),
            windows: classes.iter().map(|_| Window::default()).collect(),
            last: None,
            begun: Nanos::ZERO,
        };
        Ok(Self { areas: vec![None; classes.len()], policy: Some(policy) })
    }

    /// Returns what decides.
    pub(super) const fn name(&self) -> &'static str {
        if self.policy.is_some() { POLICY } else { "fixed" }
    }

    /// Returns the area of each class; `None` for its threads' own cores.
    pub(super) fn areas(&self) -> &[Option<CoreSet>] {
        &self.areas
    }

    /// Takes in the observations of the connections since the last call. Returns the reason if
    /// areas have changed. While the gate is bypassed, threads are in no area, so that nothing is
    /// learned or decided.
    pub(super) fn look(
        &mut self,
        now: Nanos,
        connections: &[ConnectionSeen],
        is_bypassed: bool,
    ) -> Option<String> {
        let policy = self.policy.as_mut()?;
        if is_bypassed {
            policy.forget(now);
            return None;
        }
        policy.take_in(connections);
        let plan = policy.decide(now)?;
        let mut reason = None;
        for (at, area) in self.areas.iter_mut().enumerate() {
            let knob = Knob::Cores(AppId(at as u16));
            let Some(Setting::Cores(_, cores)) = plan.setting(knob) else { continue };
            if area.as_ref() != Some(cores) {
                *area = Some(cores.clone());
                let step = plan.steps().find(|step| step.setting.knob() == knob);
                reason = step.map(|step| step.reason.to_string());
            }
        }
        reason
    }
}

/// Returns a class of clients as the policy sees it.
fn app(name: &str, wanted: Option<&CoreDemand>) -> AppSpec {
    let Some(CoreDemand::Objective { connections, objective }) = wanted else {
        return AppSpec::best_effort(name);
    };
    let class = if objective.bounds_latency() { Class::LatencyCritical } else { Class::BestEffort };
    AppSpec {
        class,
        objectives: vec![*objective],
        threads: Some(*connections),
        ..AppSpec::best_effort(name)
    }
}

impl ClassPolicy {
    /// Discards the observations since the last decision.
    fn forget(&mut self, now: Nanos) {
        for window in &mut self.windows {
            *window = Window::default();
        }
        self.last = Some(now);
    }

    fn take_in(&mut self, connections: &[ConnectionSeen]) {
        for window in &mut self.windows {
            (window.outstanding, window.oldest) = (0, None);
        }
        for one in connections {
            // A client that bypasses the gate is in none.
            let Some(window) = self.windows.get_mut(one.client_class) else { continue };
            one.latency.add_to(&mut window.latency);
            window.outstanding += u64::from(one.pending.is_some());
            window.oldest = window.oldest.max(one.pending);
        }
    }

    /// Returns the plan of the policy if an observation is due.
    fn decide(&mut self, now: Nanos) -> Option<Plan> {
        let Some(last) = self.last else {
            (self.last, self.begun) = (Some(now), now);
            return None;
        };
        let epoch = now.saturating_sub(last);
        if epoch < EPOCH {
            return None;
        }
        self.last = Some(now);
        let missing = Missing::because("it is not read of a class of clients");
        let app = |window: &mut Window| AppObservation {
            alive: true,
            latency: Ok(window.take(epoch)),
            ..AppObservation::unknown(&missing)
        };
        let apps = self.windows.iter_mut().map(app).collect();
        let time = now.saturating_sub(self.begun);
        let seen = Observation { apps, ..Observation::unknown(time, epoch, &missing) };
        Some(self.policy.decide(&seen, &mut self.rng))
    }
}

impl Window {
    /// Returns the observations of a span, and begins the next.
    fn take(&mut self, span: Nanos) -> LatencyObservation {
        let latency = std::mem::take(&mut self.latency);
        let before = std::mem::replace(&mut self.were_outstanding, self.outstanding);
        LatencyObservation::on_server(latency, span, (self.outstanding, self.oldest), before)
    }
}
