//! Checks of a scenario as a whole: bounds, policies, and load against capacity.

use super::choice::Labelled;
use super::file::PrecisionSection;
use super::{InvalidKey, Quantity, Scenario, TargetPrecision, Variant};
use crate::backlog::pieces;
use crate::trial::CheckError;
use lull_control::EpochRule;
use lull_measure::Nanos;
use lull_sim::model::{Model, Source};

/// Default bound on the events of a replication: about half an hour of simulation, so that
/// a wrong unit ends the run with an error.
pub(super) const EVENTS: u64 = 10_000_000_000;
/// Default bound on the requests in the system at a time: about 200 MB for each thread.
pub(super) const IN_FLIGHT: u32 = 1_000_000;
/// Turns of all controllers in one replication; each costs as much as some events.
const TURNS: f64 = 1e9;
/// Events of all replications above which a notice states that the run is long.
const MANY_EVENTS: f64 = 1e11;
/// Most replications.
const REPLICATIONS: u64 = 100_000;
/// Most values kept: replications times policies times figures.
const VALUES: u64 = 100_000_000;
/// Longest run: ten years, as for any span of a model.
const LONGEST: Nanos = Nanos::from_secs(315_360_000);

impl Scenario {
    /// Checks the sections together, and adds notices about doubtful values.
    pub(super) fn check(&mut self, bounded: bool) -> Result<(), InvalidKey> {
        self.check_run()?;
        self.check_events(self.span(), "run.length")?;
        for variant in &self.variants {
            self.check_turns(variant)?;
        }
        for variant in &self.variants {
            self.check_policy(variant)?;
        }
        self.notices.extend(overloads(&self.model, bounded));
        self.notices.extend(self.length_notice());
        Ok(())
    }

    fn check_run(&self) -> Result<(), InvalidKey> {
        self.size(&self.quantities()).check(self.precision.as_ref())
    }

    /// Returns the precision to reach, with its figure found.
    pub(super) fn target_precision(
        &self,
        written: &PrecisionSection,
    ) -> Result<TargetPrecision, InvalidKey> {
        self.size(&self.quantities()).target_precision(written)
    }

    fn size<'q>(&self, quantities: &'q [Quantity]) -> RunSize<'q> {
        RunSize {
            quantities,
            replications: self.replications,
            policies: self.variants.len(),
            span: [self.warmup.unwrap_or_default(), self.length],
        }
    }

    /// Simulated time of a replication.
    fn span(&self) -> Nanos {
        self.warmup.unwrap_or_default().saturating_add(self.length)
    }

    /// Rejects a replication that would exceed its bound on events.
    pub(super) fn check_events(&self, span: Nanos, key: &str) -> Result<(), InvalidKey> {
        check_events(&self.model, span, key)
    }

    /// A notice about runs that take hours.
    fn length_notice(&self) -> Option<String> {
        let most = self.precision.map_or(self.replications, |target| target.most);
        let each = all_events(&self.model, self.span());
        let events = each * most as f64 * self.variants.len() as f64;
        let long = events > MANY_EVENTS;
        long.then(|| format!("long: up to {events:.1e} events in all; some 1e7 a second and core"))
    }

    fn check_turns(&self, variant: &Variant) -> Result<(), InvalidKey> {
        let plants = self.trial(variant).plants().len();
        check_turns(&variant.control.epoch, plants, self.span())
            .map_err(|wrong| InvalidKey::at(variant.key_of(&wrong.key), wrong.message))
    }

    fn check_policy(&self, variant: &Variant) -> Result<(), InvalidKey> {
        let wrong = |error| match error {
            CheckError::Failure(failure) => InvalidKey::at(variant.key_of(""), failure.to_string()),
            CheckError::Policy(_, error) => variant.policy_error(error),
        };
        self.trial(variant).check().map_err(wrong)
    }
}

/// Rejects epochs so short that a replication would take more decisions than are simulated. The
/// key is the one below the policy.
fn check_turns(rule: &EpochRule, plants: usize, span: Nanos) -> Result<(), InvalidKey> {
    let (epoch, key) = shortest(rule);
    let turns = plants as f64 * span.as_secs_f64() / epoch.as_secs_f64();
    if turns <= TURNS {
        return Ok(());
    }
    let message = format!(
        "epochs of {epoch} on {plants} servers make {turns:.1e} decisions in a replication, at \
         most {TURNS:.0e} are taken: make the epoch longer or the run shorter"
    );
    Err(InvalidKey::at(key, message))
}

/// Rejects epochs of one machine that are too short for a replication of this span, or longer
/// than what is counted of it: a machine is simulated to the end of each epoch, and only epochs
/// that begin after the warm-up count. The key is the one below the policy.
pub(super) fn check_epoch(
    rule: &EpochRule,
    span: Nanos,
    counted: Nanos,
    counted_key: &str,
) -> Result<(), InvalidKey> {
    let (epoch, key) = shortest(rule);
    if epoch > counted {
        let message = format!(
            "an epoch of {epoch} is longer than {counted_key}, {counted}: no whole epoch would be \
             counted; make the epoch shorter or {counted_key} longer"
        );
        return Err(InvalidKey::at(key, message));
    }
    check_turns(rule, 1, span)
}

/// The shortest epoch of a rule, and the key that states it.
fn shortest(rule: &EpochRule) -> (Nanos, &'static str) {
    match rule {
        EpochRule::Fixed(epoch) => (*epoch, "epoch"),
        EpochRule::Adaptive(rule) => (rule.rhythm.shortest, "adaptive_epoch"),
    }
}

/// Events of a replication of this length, about.
fn all_events(model: &Model, span: Nanos) -> f64 {
    (0..model.app.len()).map(|app| expected_events(model, app, span)).sum()
}

/// Rejects a replication of a model that would exceed its bound on events.
pub(super) fn check_events(model: &Model, span: Nanos, key: &str) -> Result<(), InvalidKey> {
    let (events, most) = (all_events(model, span), model.limits.events);
    if events <= most as f64 {
        return Ok(());
    }
    let message = format!(
        "a replication would take about {events:.1e} events, more than limits.events = {most}: \
         run shorter, send less, or raise limits.events"
    );
    Err(InvalidKey::at(key, message))
}

/// The sizes that decide how long a scenario takes to simulate.
pub(super) struct RunSize<'q> {
    pub(super) quantities: &'q [Quantity],
    pub(super) replications: u64,
    pub(super) policies: usize,
    /// Warm-up and counted time.
    pub(super) span: [Nanos; 2],
}

impl RunSize<'_> {
    /// Returns the precision to reach, with its figure found.
    pub(super) fn target_precision(
        &self,
        written: &PrecisionSection,
    ) -> Result<TargetPrecision, InvalidKey> {
        let at =
            |key: &str, message: String| InvalidKey::at(format!("run.precision.{key}"), message);
        let all = self.quantities;
        let exact = all.iter().position(|quantity| quantity.id == written.figure);
        let mut short = (0..all.len()).filter(|at| all[*at].kind() == written.figure);
        let short = short.next().filter(|_| short.next().is_none());
        let quantity = exact.or(short).ok_or_else(|| {
            let known: Vec<_> = all.iter().map(|quantity| quantity.id.as_str()).collect();
            let known = known.join(", ");
            at("figure", format!("there is no figure `{}`; there are: {known}", written.figure))
        })?;
        if !(written.relative > 0.0 && written.relative < 1.0) {
            let message = format!("is {}: write a share such as 0.02", written.relative);
            return Err(at("relative", message));
        }
        if written.most < self.replications || written.most > REPLICATIONS {
            let message = format!(
                "is {}, must be from {} (run.replications) to {REPLICATIONS}",
                written.most, self.replications
            );
            return Err(at("most", message));
        }
        Ok(TargetPrecision { quantity, relative: written.relative, most: written.most })
    }

    /// Rejects runs without counted time and runs with more values than fit in memory.
    pub(super) fn check(&self, precision: Option<&TargetPrecision>) -> Result<(), InvalidKey> {
        let [warmup, length] = self.span;
        if length == Nanos::ZERO {
            return Err(InvalidKey::at("run.length", "is zero: nothing would be counted"));
        }
        for (key, span) in [("run.length", length), ("run.warmup", warmup)] {
            if span > LONGEST {
                return Err(InvalidKey::at(
                    key,
                    format!("is {span}, at most ten years can be run"),
                ));
            }
        }
        if !(1..=REPLICATIONS).contains(&self.replications) {
            let message = format!("is {}, must be from 1 to {REPLICATIONS}", self.replications);
            return Err(InvalidKey::at("run.replications", message));
        }
        let most = precision.map_or(self.replications, |target| target.most);
        let values = most * (self.policies * self.quantities.len()) as u64;
        if values > VALUES {
            let message =
                format!("{most} replications make {values} values, above {VALUES}: run fewer");
            return Err(InvalidKey::at("run.replications", message));
        }
        Ok(())
    }
}

/// The approximate number of events of an app's requests in a span: each arrival and each
/// end of work is one.
fn expected_events(model: &Model, app: usize, span: Nanos) -> f64 {
    let requests = match &model.app[app].source {
        Source::Open(open) => match &open.schedule {
            Some(schedule) => schedule.level_seconds(span),
            None => open.rate_per_s * span.as_secs_f64(),
        },
        Source::Closed(closed) => {
            let per_s = f64::from(closed.clients) / closed.think.mean.as_secs_f64();
            per_s.min(bottleneck_per_s(model, app)) * span.as_secs_f64()
        }
    };
    requests * (1.0 + pieces(model, app).iter().sum::<f64>())
}

/// Requests of an app per second that its slowest tier can serve.
fn bottleneck_per_s(model: &Model, app: usize) -> f64 {
    let demands = model.demands_s(app);
    let capacity =
        |tier: &lull_sim::model::Tier| f64::from(tier.servers) * model.machine_of(tier).capacity();
    let rates = model.tier.iter().zip(demands).map(|(tier, demand_s)| capacity(tier) / demand_s);
    rates.fold(f64::INFINITY, f64::min)
}

/// Notices about tiers that open apps overload.
fn overloads(model: &Model, bounded: bool) -> Vec<String> {
    let loses = model.tier.iter().any(|tier| tier.backlog.is_some())
        || model.pool.iter().any(|pool| pool.backlog.is_some());
    if loses {
        return Vec::new();
    }
    let most = model.limits.in_flight;
    let bound = if bounded { "limits.in_flight" } else { "the default of limits.in_flight" };
    let over = model.tier.iter().zip(model.offered_load()).filter(|(_, load)| *load >= 1.0);
    over.map(|(tier, load)| {
        format!(
            "unstable: tier `{}` is offered {load:.3} times what it can do at full speed and \
             rejects no request (no `backlog`), so that requests pile up until the run ends or \
             {most} are in the system ({bound}); its response times depend on the length of the \
             run, not on the speed of the system",
            tier.name
        )
    })
    .collect()
}
