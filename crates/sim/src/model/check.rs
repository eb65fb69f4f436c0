//! Checks of a model; errors name the key.

use super::{
    App, Checked, Cores, Discipline, Distribution, HardwareModel, Model, Pool, Problem, Routing,
    Schedule, Shape, Source, Step, Tier, WhenFull, at_least_one, at_most, fail, range, refuse_if,
};
use crate::order::{MOST_EVENTS, MOST_OWNERS};
use std::collections::BTreeSet;

/// Longest mean span: ten years, beyond which sums of spans could overflow.
const LONGEST_NS: u64 = 315_360_000_000_000_000;
/// How far from 1 probabilities may sum.
const SUM_TOLERANCE: f64 = 1e-9;
/// Most cores of a machine, and most calls in one app's path.
const MOST_CORES: u64 = 4096;
const MOST_CALLS: u64 = 255;
/// Most steps of an app, and most apps, tiers and named pools.
const MOST_STEPS: u64 = 1 << 14;
const MOST_NAMED: u64 = 1 << 12;
/// Most clients of a closed app: with exponential think times, which share one
/// clock, and with others, which have a timer each.
const MOST_CLIENTS: u64 = 1 << 30;
const MOST_TIMED_CLIENTS: u64 = 1 << 24;

impl Model {
    /// Checks everything that can be checked without running the model.
    ///
    /// # Errors
    /// The first thing found that cannot be simulated, with its key.
    pub fn check(&self) -> Checked {
        some(&self.tier, "tier", "a model needs at least one `[[tier]]`")?;
        some(&self.app, "app", "a model needs at least one `[[app]]`")?;
        unique(self.tier.iter().map(|tier| tier.name.as_str()), "tier")?;
        unique(self.pool.iter().map(|pool| pool.name.as_str()), "pool")?;
        unique(self.app.iter().map(|app| app.name.as_str()), "app")?;
        for (name, machine) in &self.machine {
            check_machine(machine, &format!("machine.{name}"))?;
        }
        for (at, tier) in self.tier.iter().enumerate() {
            self.check_tier(tier, &format!("tier[{at}]"))?;
        }
        for (at, pool) in self.pool.iter().enumerate() {
            self.check_pool(pool, &format!("pool[{at}]"))?;
        }
        for (at, app) in self.app.iter().enumerate() {
            self.check_app(app, &format!("app[{at}]"))?;
        }
        self.check_size()
    }

    fn check_size(&self) -> Checked {
        let lanes = |tier: &Tier| {
            let machine = self.machine_of(tier);
            machine.cores.iter().map(|group| u64::from(group.domains())).sum::<u64>()
        };
        let sizes: Vec<u64> =
            self.tier.iter().map(|tier| u64::from(tier.servers) * lanes(tier)).collect();
        let largest = (0..sizes.len()).max_by_key(|at| sizes[*at]).unwrap_or(0);
        let total = sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size));
        let key = format!("tier[{largest}].servers");
        at_most(total, MOST_OWNERS as u64 / 2, "frequency domains of all servers", &key)?;
        at_most(self.app.len() as u64, MOST_NAMED, "apps", "app")?;
        at_most(self.tier.len() as u64, MOST_NAMED, "tiers", "tier")?;
        at_most(self.pool.len() as u64, MOST_NAMED, "pools", "pool")?;
        at_most(self.limits.events, MOST_EVENTS - 1, "events", "limits.events")?;
        at_least_one(self.limits.in_flight, "a limit", "limits.in_flight")?;
        let permits = |pool: &Pool| pool.per.as_ref().map_or(1, |tier| self.servers_of(tier));
        let pools = self.pool.iter().map(|pool| u64::from(permits(pool))).sum();
        at_most(pools, 1 << 20, "pools", "pool")
    }

    fn servers_of(&self, name: &str) -> u32 {
        self.tier.iter().find(|tier| tier.name == name).map_or(1, |tier| tier.servers)
    }

    fn check_tier(&self, tier: &Tier, key: &str) -> Checked {
        at_least_one(tier.servers, "servers", &format!("{key}.servers"))?;
        if let Some(threads) = tier.threads {
            at_least_one(threads, "threads", &format!("{key}.threads"))?;
        }
        if let Some(name) = &tier.machine
            && !self.machine.contains_key(name)
        {
            let known = self.machine.keys().map(String::as_str);
            return unknown("machine", name, known, &format!("{key}.machine"));
        }
        if tier.host.is_some() {
            let key = |name| format!("{key}.{name}");
            let own =
                "the tier runs on its `host`, which is a machine: leave out one of the two keys";
            refuse_if(tier.machine.is_some(), key("machine"), own)?;
            let rules = "the `host` schedules its threads by its own rules: leave it out";
            refuse_if(tier.discipline != Discipline::Fcfs, key("discipline"), rules)?;
        }
        let blocks = tier.when_full == WhenFull::Block;
        let kept = "threads of machines keep no core while they wait: write \"wait\" where a tier \
                    has a `host`";
        let any_host = self.tier.iter().any(|tier| tier.host.is_some());
        refuse_if(blocks && any_host, format!("{key}.when_full"), kept)?;
        if tier.threads.is_none() {
            let idle = "has no effect without `threads`, the number that a server admits";
            let key = |name| format!("{key}.{name}");
            refuse_if(tier.backlog.is_some(), key("backlog"), idle)?;
            refuse_if(tier.when_full != WhenFull::Wait, key("when_full"), idle)?;
        }
        self.check_routing(tier, &format!("{key}.routing"))
    }

    fn check_routing(&self, tier: &Tier, key: &str) -> Checked {
        match &tier.routing {
            Routing::Probabilities(list) => {
                let (found, wanted) = (list.len(), tier.servers as usize);
                if found != wanted {
                    return fail(key, Problem::Length { found, wanted });
                }
                probabilities(list.iter().copied(), key)
            }
            Routing::SameAs(name) => self.tier_named(name, key),
            Routing::Random | Routing::RoundRobin | Routing::LeastPending => Ok(()),
        }
    }

    fn check_pool(&self, pool: &Pool, key: &str) -> Checked {
        at_least_one(pool.size, "permits", &format!("{key}.size"))?;
        pool.per.as_ref().map_or(Ok(()), |name| self.tier_named(name, &format!("{key}.per")))
    }

    fn tier_named(&self, name: &str, key: &str) -> Checked {
        if self.tier.iter().any(|tier| tier.name == name) {
            return Ok(());
        }
        unknown("tier", name, self.tier.iter().map(|tier| tier.name.as_str()), key)
    }

    fn check_app(&self, app: &App, key: &str) -> Checked {
        check_source(&app.source, &format!("{key}.source"))?;
        let key = format!("{key}.steps");
        some(&app.steps, &key, "say what a request does")?;
        let mut path =
            Path { model: self, inside: Vec::new(), called: BTreeSet::new(), calls: 0, taken: 0 };
        path.steps(&app.steps, &key)?;
        let idle = "no work is certain on this path: a request could end in no time";
        refuse_if(!works(&app.steps), &key, idle)?;
        at_most(path.taken, MOST_STEPS, "steps", &key)?;
        at_most(path.calls, MOST_CALLS, "calls", &key)
    }
}

/// Where on a path the check is.
struct Path<'m> {
    model: &'m Model,
    /// Tiers of the calls around.
    inside: Vec<&'m Tier>,
    /// Tiers called so far.
    called: BTreeSet<&'m str>,
    calls: u64,
    /// Steps so far.
    taken: u64,
}

impl<'m> Path<'m> {
    fn steps(&mut self, steps: &'m [Step], key: &str) -> Checked {
        at_most(self.inside.len() as u64, 64, "nested calls", key)?;
        self.taken += steps.len() as u64;
        for (at, step) in steps.iter().enumerate() {
            self.step(step, &format!("{key}[{at}]"))?;
            if let Some(Step::Call { tier, .. }) = steps.get(at + 1) {
                let caller = self.last_at_work(step);
                self.may_block(caller, tier, &format!("{key}[{}].call", at + 1))?;
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &'m Step, key: &str) -> Checked {
        match step {
            Step::Work(work) => self.work(*work, &format!("{key}.work")),
            Step::Call { tier, steps } => self.call(tier, steps, &format!("{key}.call")),
            Step::Hold { pool, steps } => self.hold(pool, steps, &format!("{key}.hold")),
            Step::Choose(ways) => {
                let key = format!("{key}.choose");
                some(ways, &key, "list the ways")?;
                probabilities(ways.iter().map(|way| way.probability), &key)?;
                ways.iter().enumerate().try_for_each(|(at, way)| {
                    // A server that only one of the branches calls may not have been called.
                    let before = self.called.clone();
                    let checked = self.steps(&way.steps, &format!("{key}[{at}].steps"));
                    self.called = before;
                    checked
                })
            }
            Step::Repeat { probability, steps } => {
                let key = format!("{key}.repeat");
                let wanted = "at least 0 and below 1";
                let inside = (0.0..1.0).contains(probability);
                range(*probability, inside, wanted, &format!("{key}.probability"))?;
                some(steps, &key, "say what is repeated")?;
                self.steps(steps, &format!("{key}.steps"))
            }
        }
    }

    fn work(&self, work: Distribution, key: &str) -> Checked {
        if self.inside.is_empty() {
            return fail(key, Problem::NoServer);
        }
        check_distribution(work, key)
    }

    fn call(&mut self, tier: &str, steps: &'m [Step], key: &str) -> Checked {
        self.model.tier_named(tier, &format!("{key}.tier"))?;
        some(steps, &format!("{key}.steps"), "say what the called server does")?;
        let found = self.model.tier.iter().find(|known| known.name == tier);
        let called = found.expect("the tier was looked up above");
        if let Routing::SameAs(other) = &called.routing {
            self.was_called(other, key)?;
        }
        self.calls += 1;
        self.called.insert(&called.name);
        self.inside.push(called);
        let inner = self.steps(steps, &format!("{key}.steps"));
        self.inside.pop();
        inner
    }

    fn hold(&mut self, pool: &str, steps: &'m [Step], key: &str) -> Checked {
        let known = || self.model.pool.iter().map(|pool| pool.name.as_str());
        let Some(found) = self.model.pool.iter().find(|known| known.name == pool) else {
            return unknown("pool", pool, known(), &format!("{key}.pool"));
        };
        if let Some(tier) = &found.per {
            self.was_called(tier, key)?;
        }
        some(steps, &format!("{key}.steps"), "say what is done while the permit is held")?;
        self.steps(steps, &format!("{key}.steps"))
    }

    fn was_called(&self, tier: &str, key: &str) -> Checked {
        if self.called.contains(tier) {
            return Ok(());
        }
        fail(key, Problem::NotCalled { tier: tier.to_owned() })
    }

    /// The tier whose core a request holds when `step` is over.
    fn last_at_work(&self, step: &Step) -> Option<&'m Tier> {
        match step {
            Step::Work(_) => self.inside.last().copied(),
            Step::Call { tier, steps } if matches!(steps.last(), Some(Step::Work(_))) => {
                self.model.tier.iter().find(|known| known.name == *tier)
            }
            _ => None,
        }
    }

    /// A caller can only keep a core that is its own.
    fn may_block(&self, caller: Option<&Tier>, callee: &str, key: &str) -> Checked {
        let blocks = |tier: &Tier| tier.name == callee && tier.when_full == WhenFull::Block;
        let blocking = self.model.tier.iter().any(blocks);
        let shared = caller.is_some_and(|tier| tier.discipline == Discipline::Sharing);
        let why = "a `when_full = \"block\"` tier holds its caller's core, \
                   so the caller cannot be a `sharing` tier";
        refuse_if(blocking && shared, key, why)
    }
}

/// Whether some work is done on every branch.
fn works(steps: &[Step]) -> bool {
    steps.iter().any(|step| match step {
        Step::Work(_) => true,
        Step::Call { steps, .. } | Step::Hold { steps, .. } | Step::Repeat { steps, .. } => {
            works(steps)
        }
        Step::Choose(ways) => ways.iter().all(|way| works(&way.steps)),
    })
}

fn check_machine(machine: &HardwareModel, key: &str) -> Checked {
    some(&machine.cores, &format!("{key}.cores"), "a machine needs cores")?;
    at_most(u64::from(machine.core_count()), MOST_CORES, "cores", key)?;
    let watts = machine.static_watts.0;
    range(watts, watts >= 0.0, "0 or more", &format!("{key}.static_watts"))?;
    for (at, group) in machine.cores.iter().enumerate() {
        check_cores(group, &format!("{key}.cores[{at}]"))?;
    }
    Ok(())
}

fn check_cores(group: &Cores, key: &str) -> Checked {
    at_least_one(group.count, "cores", &format!("{key}.count"))?;
    let positive =
        |value: f64, name: &str| range(value, value > 0.0, "above 0", &format!("{key}.{name}"));
    positive(group.speed, "speed")?;
    let amount =
        |value: f64, name: &str| range(value, value >= 0.0, "0 or more", &format!("{key}.{name}"));
    amount(group.activity, "activity")?;
    amount(group.static_watts.0, "static_watts")?;
    for (at, state) in group.pstates.iter().enumerate() {
        positive(state.frequency.0 as f64, &format!("pstates[{at}].frequency"))?;
        positive(state.volts, &format!("pstates[{at}].volts"))?;
    }
    let ascending = group.pstates.windows(2).any(|pair| pair[0].frequency <= pair[1].frequency);
    let order = "list P-states from the fastest to the slowest";
    refuse_if(ascending, format!("{key}.pstates"), order)?;
    let is_none = group.start >= group.pstates.len().max(1);
    refuse_if(is_none, format!("{key}.start"), "is not an index into `pstates`")
}

fn check_source(source: &Source, key: &str) -> Checked {
    match source {
        Source::Closed(closed) => {
            let key = format!("{key}.closed");
            at_least_one(closed.clients, "clients", &format!("{key}.clients"))?;
            let timed = closed.think.shape != Shape::Exponential;
            let most = if timed { MOST_TIMED_CLIENTS } else { MOST_CLIENTS };
            at_most(closed.clients.into(), most, "clients", &format!("{key}.clients"))?;
            check_distribution(closed.think, &format!("{key}.think"))?;
            let why = "a schedule of clients needs exponential think times";
            refuse_if(timed && closed.schedule.is_some(), format!("{key}.schedule"), why)?;
            check_schedule(closed.schedule.as_ref(), closed.clients.into(), &key)
        }
        Source::Open(open) => {
            let key = format!("{key}.open");
            let rate = open.rate_per_s;
            let inside = rate > 0.0 && rate <= 1e9;
            range(rate, inside, "above 0 and at most 1e9", &format!("{key}.rate_per_s"))?;
            check_shape(open.gaps, &format!("{key}.gaps"))?;
            check_schedule(open.schedule.as_ref(), 1e9, &key)
        }
    }
}

fn check_schedule(schedule: Option<&Schedule>, most: f64, key: &str) -> Checked {
    let Some(schedule) = schedule else { return Ok(()) };
    let key = format!("{key}.schedule.phases");
    some(&schedule.phases, &key, "list the phases")?;
    for (at, phase) in schedule.phases.iter().enumerate() {
        let key = format!("{key}[{at}]");
        check_span(phase.span.0, "a span", &format!("{key}.span"))?;
        let inside = phase.level >= 0.0 && phase.level <= most;
        let wanted = "0 or more, and at most the clients (closed) or 1e9 per second (open)";
        range(phase.level, inside, wanted, &format!("{key}.level"))?;
    }
    let silent = schedule.phases.iter().all(|phase| phase.level == 0.0);
    refuse_if(silent, key, "every phase has level 0: nothing ever arrives")
}

pub(crate) fn check_distribution(distribution: Distribution, key: &str) -> Checked {
    check_span(distribution.mean.0, "a mean", &format!("{key}.mean"))?;
    check_shape(distribution.shape, &format!("{key}.shape"))
}

fn check_span(span_ns: u64, what: &'static str, key: &str) -> Checked {
    if span_ns == 0 {
        return fail(key, Problem::Zero { what });
    }
    at_most(span_ns, LONGEST_NS, "ns", key)
}

pub(crate) fn check_shape(shape: Shape, key: &str) -> Checked {
    let cv2 = |value: f64, inside: bool, wanted| range(value, inside, wanted, key);
    match shape {
        Shape::Erlang { stages } => at_least_one(stages, "stages", &format!("{key}.stages")),
        Shape::HyperExponential { cv2: v } => cv2(v, (1.0..=1e6).contains(&v), "from 1 to 1e6"),
        Shape::Lognormal { cv2: v } | Shape::Gamma { cv2: v } => {
            cv2(v, v > 1e-6 && v <= 1e6, "above 1e-6 and at most 1e6")
        }
        Shape::Exponential | Shape::Constant | Shape::Uniform => Ok(()),
    }
}

fn probabilities(list: impl Iterator<Item = f64>, key: &str) -> Checked {
    let mut sum = 0.0;
    for (at, value) in list.enumerate() {
        range(value, (0.0..=1.0).contains(&value), "from 0 to 1", &format!("{key}[{at}]"))?;
        sum += value;
    }
    if (sum - 1.0).abs() > SUM_TOLERANCE {
        return fail(key, Problem::Probabilities { sum });
    }
    Ok(())
}

pub(crate) fn some<T>(list: &[T], key: &str, wanted: &'static str) -> Checked {
    if list.is_empty() { fail(key, Problem::Empty { wanted }) } else { Ok(()) }
}

pub(crate) fn unknown<'a>(
    what: &'static str,
    name: &str,
    known: impl Iterator<Item = &'a str>,
    key: &str,
) -> Checked {
    let known: Vec<&str> = known.collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    fail(key, Problem::Unknown { what, name: name.to_owned(), known })
}

pub(crate) fn unique<'a>(names: impl Iterator<Item = &'a str>, key: &str) -> Checked {
    let mut seen = BTreeSet::new();
    for (at, name) in names.enumerate() {
        if !seen.insert(name) {
            return fail(format!("{key}[{at}].name"), Problem::Duplicate { name: name.to_owned() });
        }
    }
    Ok(())
}
