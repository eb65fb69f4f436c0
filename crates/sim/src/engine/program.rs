//! Programs: an app's nested steps, flattened into operations.
//!
//! A request is a program counter. The compiler turns `call` into enter and
//! leave, `hold` into acquire and release, and writes for every operation that
//! can lose a request a *way out*: the operations that give back what is held
//! there, in reverse order.

use super::request::NONE;
use crate::model::{App, Distribution, Model, Pool, Routing, Step, Tier, WhenFull};

/// No visit: the pool is not per server, the routing needs no earlier call.
pub(crate) const NO_VISIT: u8 = u8::MAX;

/// One operation of a request's program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Op {
    /// Chooses a server of the tier and takes one of its threads.
    Enter { tier: u16, visit: u8, same_as: u8, way_out: u32 },
    /// A call that is one piece of work and nothing else, of a tier that is
    /// only called so: choice of the server, work, and no bookkeeping of
    /// calls. It replaces the three operations that follow it; those run
    /// instead where calls of the tier are observed.
    Visit { tier: u16, visit: u8, same_as: u8, amount: u16 },
    /// The same where there is no choice and nothing later refers to it.
    VisitOnly { server: u32, amount: u16 },
    /// Gives back the core that was kept until the tier behind had room.
    FreeCore,
    /// Computes on the visit's server, an amount drawn at arrival.
    Work { visit: u8, amount: u16, keeps_core: bool },
    /// The same on a machine with cores, which runs outside the engine.
    Away { visit: u8, amount: u16 },
    /// Draws the amount now (inside a repetition), then the `Work` behind it computes.
    Draw { amount: u16 },
    /// Returns the thread, because the call is answered.
    Leave { visit: u8 },
    /// Gives back the thread, the call having failed.
    Abandon { visit: u8 },
    /// Takes a permit.
    Acquire { pool: u16, visit: u8, way_out: u32 },
    /// Gives back the permit.
    Release { pool: u16, visit: u8 },
    /// Continues at one of the ways from `first` on.
    Choose { first: u32 },
    /// Continues elsewhere.
    Jump { to: u32 },
    /// Goes back with a probability (an index).
    Repeat { chance: u32, to: u32 },
    /// The request is answered.
    Done,
    /// The request was refused somewhere.
    Lost,
}

/// The programs of all apps.
#[derive(Debug, Clone, Default)]
pub(crate) struct Programs {
    /// Operations of all apps.
    pub(crate) ops: Vec<Op>,
    /// Each app's first operation.
    pub(crate) entries: Vec<u32>,
    /// Each app's amounts of work and whether they are drawn at arrival.
    pub(crate) amounts: Vec<Vec<(Distribution, bool)>>,
    /// Tiers whose calls are not counted separately from their work: each call is
    /// one piece of work and nothing else, and no plant watches the tier.
    pub(crate) plain: Vec<bool>,
    /// Most calls of any app.
    pub(crate) visits: usize,
    /// Ways of choices: (probability up to and with this one, where to continue).
    pub(crate) ways: Vec<(f64, u32)>,
    /// Probabilities of repetitions.
    pub(crate) chances: Vec<f64>,
}

/// A resource that a request holds, and releases on its way out.
#[derive(Debug, Clone, Copy)]
enum Held {
    Thread { visit: u8 },
    Permit { pool: u16, visit: u8 },
}

/// Compiles one app.
struct Compiler<'m> {
    model: &'m Model,
    to: &'m mut Programs,
    amounts: Vec<(Distribution, bool)>,
    /// Calls so far.
    visits: usize,
    /// Calls certain to have been made here: (tier, visit).
    made: Vec<(usize, u8)>,
    held: Vec<Held>,
    /// Operations that can lose a request, with the resources held there.
    exits: Vec<(usize, Vec<Held>)>,
    /// Depth of repetitions around.
    repeats: u32,
}

impl Programs {
    /// Makes calls of a tier, whose first server is `first`, be counted one by
    /// one from now on.
    pub(crate) fn count_calls(&mut self, tier: usize, first: u32) {
        self.plain[tier] = false;
        for at in 0..self.ops.len() {
            let plain = match self.ops[at] {
                Op::Visit { tier: called, .. } => usize::from(called) == tier,
                Op::VisitOnly { server, .. } => server == first,
                _ => false,
            };
            if plain {
                self.ops[at] = Op::Jump { to: at as u32 + 1 };
            }
        }
    }
}

/// Compiles a checked model.
pub(crate) fn compile(model: &Model) -> Programs {
    let mut programs = Programs { plain: plain_tiers(model), ..Programs::default() };
    for app in &model.app {
        compile_app(model, app, &mut programs);
    }
    programs
}

fn compile_app(model: &Model, app: &App, to: &mut Programs) {
    to.entries.push(to.ops.len() as u32);
    let mut compiler = Compiler {
        model,
        to,
        amounts: Vec::new(),
        visits: 0,
        made: Vec::new(),
        held: Vec::new(),
        exits: Vec::new(),
        repeats: 0,
    };
    compiler.steps(&app.steps, NO_VISIT, false);
    compiler.emit(Op::Done);
    compiler.ways_out();
    let (amounts, visits) = (compiler.amounts, compiler.visits);
    to.amounts.push(amounts);
    to.visits = to.visits.max(visits);
}

impl<'m> Compiler<'m> {
    fn emit(&mut self, op: Op) -> usize {
        self.to.ops.push(op);
        self.to.ops.len() - 1
    }

    fn here(&self) -> u32 {
        self.to.ops.len() as u32
    }

    /// `blocks` is whether a blocking tier is called right after the last step.
    fn steps(&mut self, steps: &'m [Step], visit: u8, blocks: bool) {
        let mut left_open = None;
        for (at, step) in steps.iter().enumerate() {
            let last = at + 1 == steps.len();
            let next_blocks =
                steps.get(at + 1).map_or(last && blocks, |next| is_blocking(self.model, next));
            match step {
                Step::Work(work) => self.work(*work, visit, next_blocks),
                Step::Call { tier, steps } => {
                    let stays = next_blocks && matches!(steps.last(), Some(Step::Work(_)));
                    let inner = self.call(tier, steps, stays, left_open.take());
                    left_open = stays.then_some(inner);
                }
                Step::Hold { pool, steps } => self.hold(pool, steps, visit),
                Step::Choose(_) => self.choose(step, visit),
                Step::Repeat { probability, steps } => self.repeat(*probability, steps, visit),
            }
        }
    }

    fn tier(&self, name: &str) -> usize {
        let found = self.model.tier.iter().position(|tier| tier.name == name);
        found.expect("a checked model names only tiers that exist")
    }

    fn work(&mut self, work: Distribution, visit: u8, keeps_core: bool) {
        let amount = self.amounts.len() as u16;
        self.amounts.push((work, self.repeats == 0));
        if self.repeats > 0 {
            self.emit(Op::Draw { amount });
        }
        // A machine schedules its threads itself: none keeps a core.
        self.emit(match self.is_hosted(visit) {
            true => Op::Away { visit, amount },
            false => Op::Work { visit, amount, keeps_core },
        });
    }

    /// Whether the server of a visit is a machine.
    fn is_hosted(&self, visit: u8) -> bool {
        let made = self.made.iter().rfind(|(_, made)| *made == visit);
        made.is_some_and(|(tier, _)| self.model.tier[*tier].host.is_some())
    }

    /// Compiles a call. With `stays` the caller leaves it open, for it ends
    /// only when the blocking call behind has been admitted; `before` is such
    /// an open call.
    fn call(&mut self, tier: &str, steps: &'m [Step], stays: bool, before: Option<u8>) -> u8 {
        let (tier, visit) = (self.tier(tier), self.visits as u8);
        let same_as = match &self.model.tier[tier].routing {
            Routing::SameAs(other) => self.visit_of(self.tier(other)),
            _ => NO_VISIT,
        };
        self.visits += 1;
        self.made.push((tier, visit));
        if let ([Step::Work(work)], true, 0) = (steps, self.to.plain[tier], self.repeats) {
            let amount = self.amounts.len() as u16;
            self.amounts.push((*work, true));
            let tier = tier as u16;
            self.emit(match self.only_server(tier.into()) {
                Some(server) => Op::VisitOnly { server, amount },
                None => Op::Visit { tier, visit, same_as, amount },
            });
            self.emit(Op::Enter { tier, visit, same_as, way_out: NONE });
            self.emit(Op::Work { visit, amount, keeps_core: false });
            self.emit(Op::Leave { visit });
            return visit;
        }
        let enter = self.emit(Op::Enter { tier: tier as u16, visit, same_as, way_out: NONE });
        let unlimited = self.model.tier[tier].backlog.is_none();
        self.can_lose(enter, unlimited);
        if self.model.tier[tier].when_full == WhenFull::Block {
            self.emit(Op::FreeCore);
        }
        if let Some(visit) = before {
            self.held.pop();
            self.emit(Op::Leave { visit });
        }
        self.held.push(Held::Thread { visit });
        self.steps(steps, visit, stays);
        if !stays {
            self.held.pop();
            self.emit(Op::Leave { visit });
        }
        visit
    }

    /// The server of a tier that has one, if no pool or routing refers to it.
    fn only_server(&self, tier: usize) -> Option<u32> {
        let Tier { name, servers, .. } = &self.model.tier[tier];
        let pools = self.model.pool.iter().filter_map(|pool| pool.per.as_ref());
        let routings = self.model.tier.iter().filter_map(|tier| match &tier.routing {
            Routing::SameAs(other) => Some(other),
            _ => None,
        });
        let referred = pools.chain(routings).any(|other| other == name);
        let first = self.model.tier[..tier].iter().map(|tier| tier.servers).sum();
        (*servers == 1 && !referred).then_some(first)
    }

    fn hold(&mut self, pool: &str, steps: &'m [Step], visit: u8) {
        let found = self.model.pool.iter().position(|known| known.name == pool);
        let index = found.expect("a checked model names only pools that exist");
        let Pool { per, backlog, .. } = &self.model.pool[index];
        let per = per.as_ref().map_or(NO_VISIT, |tier| self.visit_of(self.tier(tier)));
        let pool = index as u16;
        let acquire = self.emit(Op::Acquire { pool, visit: per, way_out: NONE });
        self.can_lose(acquire, backlog.is_none());
        self.held.push(Held::Permit { pool, visit: per });
        self.steps(steps, visit, false);
        self.held.pop();
        self.emit(Op::Release { pool, visit: per });
    }

    /// The request's last visit of a tier.
    fn visit_of(&self, tier: usize) -> u8 {
        let last = self.made.iter().rfind(|(visited, _)| *visited == tier);
        last.expect("a checked model refers only to tiers called before").1
    }

    fn choose(&mut self, step: &'m Step, visit: u8) {
        let Step::Choose(ways) = step else { return };
        let first = self.to.ways.len();
        let mut sum = 0.0;
        self.to.ways.extend(ways.iter().map(|way| {
            sum += way.probability;
            (sum, 0)
        }));
        // The last way takes what rounding left over.
        self.to.ways[first + ways.len() - 1].0 = f64::INFINITY;
        self.emit(Op::Choose { first: first as u32 });
        let mut ends = Vec::new();
        for (at, way) in ways.iter().enumerate() {
            self.to.ways[first + at].1 = self.here();
            let made = self.made.len();
            self.steps(&way.steps, visit, false);
            self.made.truncate(made);
            ends.push(self.emit(Op::Jump { to: 0 }));
        }
        let to = self.here();
        ends.into_iter().for_each(|end| self.to.ops[end] = Op::Jump { to });
    }

    fn repeat(&mut self, probability: f64, steps: &'m [Step], visit: u8) {
        let (to, chance) = (self.here(), self.to.chances.len() as u32);
        self.to.chances.push(probability);
        self.repeats += 1;
        self.steps(steps, visit, false);
        self.repeats -= 1;
        self.emit(Op::Repeat { chance, to });
    }

    fn can_lose(&mut self, op: usize, unlimited: bool) {
        if !unlimited {
            self.exits.push((op, self.held.clone()));
        }
    }

    fn ways_out(&mut self) {
        for (op, held) in std::mem::take(&mut self.exits) {
            let start = self.here();
            for held in held.into_iter().rev() {
                self.emit(match held {
                    Held::Thread { visit } => Op::Abandon { visit },
                    Held::Permit { pool, visit } => Op::Release { pool, visit },
                });
            }
            self.emit(Op::Lost);
            match &mut self.to.ops[op] {
                Op::Enter { way_out, .. } | Op::Acquire { way_out, .. } => *way_out = start,
                _ => {}
            }
        }
    }
}

/// Returns the tiers that are only called for one piece of work, known at arrival.
fn plain_tiers(model: &Model) -> Vec<bool> {
    let mut plain: Vec<bool> = model
        .tier
        .iter()
        .map(|tier| {
            let is_station = tier.threads.is_none() && tier.host.is_none();
            is_station && tier.routing != Routing::LeastPending
        })
        .collect();
    for app in &model.app {
        rule_out(model, &app.steps, false, &mut plain);
    }
    plain
}

/// Whether a step calls a tier that holds its caller's core while it is full.
fn is_blocking(model: &Model, step: &Step) -> bool {
    let Step::Call { tier: called, .. } = step else { return false };
    model.tier.iter().any(|tier| tier.name == *called && tier.when_full == WhenFull::Block)
}

/// Rules out tiers that steps call otherwise. A tier in front of a blocking
/// one is ruled out too: its calls end later than its work.
fn rule_out(model: &Model, steps: &[Step], repeated: bool, plain: &mut [bool]) {
    let tier = |name: &str| model.tier.iter().position(|tier| tier.name == name);
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Work(_) => {}
            Step::Call { tier: name, steps: inner } => {
                let simple = matches!(inner.as_slice(), [Step::Work(_)]) && !repeated;
                if let Some(called) = tier(name)
                    && (!simple || steps.get(at + 1).is_some_and(|next| is_blocking(model, next)))
                {
                    plain[called] = false;
                }
                rule_out(model, inner, repeated, plain);
            }
            Step::Hold { steps, .. } => rule_out(model, steps, repeated, plain),
            Step::Choose(ways) => {
                ways.iter().for_each(|way| rule_out(model, &way.steps, repeated, plain));
            }
            Step::Repeat { steps, .. } => rule_out(model, steps, true, plain),
        }
    }
}
