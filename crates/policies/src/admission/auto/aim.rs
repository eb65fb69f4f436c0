//! When one setting of the gate is better than another.

use super::evidence::Ratios;
use super::window::WindowReading;
use super::{Config, Goal, Setting};
use lull_control::Objective;
use lull_measure::statistics::Block;
use lull_measure::{Nanos, Percentile};

/// The required gain in throughput, and the required tail over that of the reference.
pub(super) const GAIN: f64 = 1.03;
const LOWER: f64 = 0.9;
/// Share of throughput, or of the inverse of the tail, that must remain where the other is
/// better and no objective permits a loss: in the mean, and shown.
const HARMLESS: f64 = 0.98;
const HARMLESS_SHOWN: f64 = 0.9;
/// The same, shown, as a share of the required mean.
const MARGIN: f64 = HARMLESS_SHOWN / HARMLESS;
/// A setting that keeps less than this share of the required value is not tried again.
const HOPELESS: f64 = 0.6;
/// A bound is kept with certainty by a tail below this share of it.
const MET: f64 = 0.9;
/// Share of the time in which workers must rest for resting to be of use.
const RESTS: f64 = 0.05;

/// The objectives of the server as a whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerObjective {
    pub(super) at: Percentile,
    pub(super) bound_s: Option<f64>,
    floor_per_s: Option<f64>,
}

impl ServerObjective {
    /// Takes the first bound of a tail and the first floor of throughput.
    pub(super) fn from_list(objectives: &[Objective]) -> Self {
        let tail = objectives.iter().find_map(|one| match one {
            Objective::Tail { percentile, bound } => Some((*percentile, bound.as_secs_f64())),
            _ => None,
        });
        let floor_per_s = objectives.iter().find_map(|one| match one {
            Objective::Throughput { floor_per_s } => Some(*floor_per_s),
            _ => None,
        });
        let at = tail.map_or(Percentile::P99, |(at, _)| at);
        Self { at, bound_s: tail.map(|(_, bound_s)| bound_s), floor_per_s }
    }

    fn goal(self) -> Goal {
        match (self.bound_s, self.floor_per_s) {
            (Some(_), _) => Goal::Tail,
            (None, Some(_)) => Goal::Throughput,
            (None, None) => Goal::Both,
        }
    }

    /// Whether so long a tail is within the bound, if there is one, for certain.
    fn is_met(self, tail_s: f64) -> bool {
        self.bound_s.is_some_and(|bound_s| tail_s <= MET * bound_s)
    }
}

/// The evidence of blocks on a setting.
#[derive(Debug, Clone)]
pub(super) struct Evidence {
    throughput: Ratios,
    /// The reference's CPU time a transaction over the setting's, where that counts.
    saved: Ratios,
    /// The reference's lateness over the setting's ([`Aim::log_lateness`]): above one is better.
    shorter: Ratios,
    /// Throughput, and the inverse of the tail, over their required values.
    kept_throughput: Ratios,
    kept_tail: Ratios,
    /// Logarithms of the tails of the setting and of the reference.
    own_tails: Vec<f64>,
    reference_tails: Vec<f64>,
    /// Logarithms of the reference's throughput.
    reference_rates: Vec<f64>,
    /// Whether workers rested in all blocks, where that is known.
    rested: bool,
}

impl Evidence {
    pub(super) fn new() -> Self {
        Self {
            throughput: Ratios::new(1.0, GAIN),
            saved: Ratios::new(1.0, GAIN),
            shorter: Ratios::new(1.0, 1.0 / LOWER),
            kept_throughput: Ratios::new(MARGIN, 1.0),
            kept_tail: Ratios::new(MARGIN, 1.0),
            own_tails: Vec::new(),
            reference_tails: Vec::new(),
            reference_rates: Vec::new(),
            rested: true,
        }
    }

    /// Number of blocks of the setting.
    pub(super) fn tried(&self) -> usize {
        self.own_tails.len()
    }

    /// Returns the pooled observation of all blocks of the reference, of which `last` is the last:
    /// one block alone may be a convoy.
    fn pooled_reference(&self, last: WindowReading) -> WindowReading {
        let per_s = mean(&self.reference_rates).unwrap_or(last.per_s);
        let tail_s = mean(&self.reference_tails).unwrap_or(last.tail_s);
        WindowReading { per_s, tail_s, ..last }
    }

    fn blocks(&self) -> usize {
        self.own_tails.len() + self.reference_tails.len()
    }
}

/// How a block was chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drawn {
    /// Whether the toss of a coin chose it out of the setting and the reference.
    pub(super) is_drawn: bool,
    /// Whether the block before was one of the reference.
    pub(super) follows_reference: bool,
}

impl Drawn {
    const fn block(self, is_treated: bool, outcome: f64) -> Block {
        let Self { is_drawn, follows_reference } = self;
        Block { is_treated, is_drawn, follows_treated: !follows_reference, outcome }
    }
}

/// A block of a setting that is tried.
#[derive(Debug, Clone, Copy)]
pub(super) struct TriedBlock {
    pub(super) look: WindowReading,
    pub(super) drawn: Drawn,
    /// The last block of the reference.
    pub(super) reference: WindowReading,
}

/// Logarithms of the covariates of a block, where they are known.
#[derive(Debug, Clone, Copy)]
struct Covariates {
    throughput: Option<f64>,
    others: Option<f64>,
}

/// Error probabilities with which a setting is reported to be better.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alpha {
    /// The figure that gains.
    pub(super) gain: f64,
    /// The other figure, of which this share must remain.
    pub(super) kept: f64,
}

/// The evidence of blocks on the throughput that must remain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Proof {
    /// Error probability of this figure.
    pub(super) alpha: f64,
    /// Evidence that all of it remains, as the logarithm of a capital.
    pub(super) log_capital: f64,
}

/// Returns the geometric mean of values whose logarithms these are; `None` without any.
fn mean(logs: &[f64]) -> Option<f64> {
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// The criterion by which settings are judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Aim {
    goal: Goal,
    objective: ServerObjective,
    /// Share of throughput that a lower tail may cost.
    loss: f64,
    /// Whether a gain is less CPU time a transaction, because arrivals set the throughput.
    counts_cpu_time: bool,
}

impl Aim {
    pub(super) fn new(config: &Config, objective: ServerObjective) -> Self {
        let goal = if config.goal == Goal::Objectives { objective.goal() } else { config.goal };
        Self { goal, objective, loss: config.loss_percent / 100.0, counts_cpu_time: false }
    }

    pub(super) const fn objective(&self) -> ServerObjective {
        self.objective
    }

    pub(super) const fn is_tail(&self) -> bool {
        matches!(self.goal, Goal::Tail)
    }

    /// Whether the tail counts, by itself or beside throughput.
    pub(super) const fn counts_tail(&self) -> bool {
        self.objective.bound_s.is_some() || !matches!(self.goal, Goal::Throughput)
    }

    /// Whether nothing is promised, so that CPU time a transaction may count instead of
    /// throughput.
    pub(super) const fn may_count_cpu_time(&self) -> bool {
        let is_promised = self.objective.bound_s.is_some() || self.objective.floor_per_s.is_some();
        !is_promised && matches!(self.goal, Goal::Both | Goal::Objectives)
    }

    /// Sets whether CPU time a transaction counts instead of throughput.
    pub(super) const fn count_cpu_time(&mut self, counts: bool) {
        self.counts_cpu_time = counts;
    }

    /// Returns the figure in which a gain is required beside the tail.
    const fn gained<'e>(&self, evidence: &'e Evidence) -> &'e Ratios {
        if self.counts_cpu_time { &evidence.saved } else { &evidence.throughput }
    }

    /// Number of figures in which a gain closes the gate.
    pub(super) const fn endpoints(&self) -> usize {
        if self.takes_either() { 2 } else { 1 }
    }

    /// Whether a gain in either figure closes the gate: of a server with a bound that is kept,
    /// more throughput is a gain.
    const fn takes_either(&self) -> bool {
        match self.goal {
            Goal::Throughput => false,
            Goal::Tail => self.objective.bound_s.is_some(),
            Goal::Both | Goal::Objectives => true,
        }
    }

    /// Returns the logarithm of how late a block is: the share of its transactions over the bound,
    /// beside what the percentile leaves, or the tail where no bound is promised.
    fn log_lateness(&self, look: WindowReading) -> f64 {
        match look.late {
            // A share far below the objective is worth no more, and is only noise.
            Some(late) => (late + 1.0 - self.objective.at.fraction()).ln(),
            None => look.tail_s.ln(),
        }
    }

    /// Returns what the setting of a block does not move: the number of connections when it began,
    /// or, where arrivals set the throughput, those.
    fn covariates(&self, look: WindowReading) -> Covariates {
        if self.counts_cpu_time {
            return Covariates { throughput: None, others: look.offered_per_s.map(f64::ln) };
        }
        let connections = look.connections.map(f64::ln);
        Covariates { throughput: connections, others: connections }
    }

    /// Returns the least throughput of a setting with a better tail, over the reference's.
    fn least_throughput(&self, reference: WindowReading) -> f64 {
        let least = match self.goal {
            Goal::Throughput => 1.0,
            // The bound is met already, so a better tail may cost no throughput.
            Goal::Tail if self.objective.is_met(reference.tail_s) => HARMLESS,
            Goal::Tail => 1.0 - self.loss,
            Goal::Both | Goal::Objectives => HARMLESS,
        };
        let floor = self.objective.floor_per_s.map_or(0.0, |floor| floor / reference.per_s);
        least.max(floor.min(1.0))
    }

    /// Returns the share of the reference's throughput below which a setting costs something: less
    /// than one only where the objectives give throughput away for the tail.
    pub(super) fn charged_below(&self, reference: WindowReading) -> f64 {
        if self.is_tail() { self.least_throughput(reference) } else { 1.0 }
    }

    /// Adds a block of a setting.
    pub(super) fn add_tried(&self, evidence: &mut Evidence, setting: Setting, tried: TriedBlock) {
        let TriedBlock { look, drawn, reference } = tried;
        let least = self.must_remain(setting, evidence.pooled_reference(reference));
        let (log_per_s, log_late) = (look.per_s.ln(), self.log_lateness(look));
        let block = |outcome| drawn.block(true, outcome);
        let Covariates { throughput, others } = self.covariates(look);
        evidence.throughput.push(block(log_per_s), throughput);
        if let Some(cpu_s) = look.cpu_s.filter(|_| self.counts_cpu_time) {
            evidence.saved.push(block(-cpu_s.ln()), others);
        }
        evidence.shorter.push(block(-log_late), others);
        evidence.kept_throughput.push(block(log_per_s - least.ln()), throughput);
        evidence.kept_tail.push(block(-log_late - HARMLESS.ln()), others);
        evidence.own_tails.push(look.tail_s.ln());
        evidence.rested &= look.rested.is_none_or(|share| share >= RESTS);
    }

    /// Adds a block of the reference.
    pub(super) fn add_reference(&self, evidence: &mut Evidence, look: WindowReading, drawn: Drawn) {
        let (log_per_s, log_late) = (look.per_s.ln(), self.log_lateness(look));
        let block = |outcome| drawn.block(false, outcome);
        let Covariates { throughput, others } = self.covariates(look);
        for ratios in [&mut evidence.throughput, &mut evidence.kept_throughput] {
            ratios.push(block(log_per_s), throughput);
        }
        for ratios in [&mut evidence.shorter, &mut evidence.kept_tail] {
            ratios.push(block(-log_late), others);
        }
        if let Some(cpu_s) = look.cpu_s.filter(|_| self.counts_cpu_time) {
            evidence.saved.push(block(-cpu_s.ln()), others);
        }
        evidence.reference_tails.push(look.tail_s.ln());
        evidence.reference_rates.push(log_per_s);
    }

    /// Returns the share of the reference's throughput that must remain with a setting.
    pub(super) fn must_remain(&self, setting: Setting, reference: WindowReading) -> f64 {
        match setting {
            Setting::Rests { .. } => HARMLESS,
            Setting::Open | Setting::Flow { .. } => self.least_throughput(reference),
        }
    }

    /// Returns the evidence on the required throughput.
    pub(super) fn proof(&self, evidence: &Evidence, alpha: f64) -> Proof {
        Proof { alpha, log_capital: evidence.kept_throughput.log_capital_above(1.0) }
    }

    /// Whether one block is so bad that neither the setting nor a harsher one is tried again.
    pub(super) fn is_ruled_out(
        &self,
        setting: Setting,
        look: WindowReading,
        reference: WindowReading,
    ) -> bool {
        let is_late = || self.objective.bound_s.is_some_and(|bound_s| look.tail_s > bound_s);
        let kept = self.must_remain(setting, reference);
        let is_late = matches!(setting, Setting::Rests { .. }) && is_late();
        is_late || look.per_s < HOPELESS * kept * reference.per_s
    }

    /// Whether the setting is shown to be better than the reference, with these error
    /// probabilities. The required value must be kept in the mean, and shown to be nearly kept.
    pub(super) fn is_shown(&self, setting: Setting, evidence: &Evidence, alpha: Alpha) -> bool {
        let Alpha { gain, kept } = alpha;
        let is_shown = |gains: &[&Ratios]| Ratios::is_any_above(gains, gain);
        self.is_better(setting, evidence, is_shown, |it| it.is_above(kept))
    }

    /// Whether the setting is better in the mean, which is enough to keep one that was shown to be
    /// better before.
    pub(super) fn is_estimated(&self, setting: Setting, evidence: &Evidence) -> bool {
        evidence.tried() > 0 && self.is_better(setting, evidence, |_| true, |_| true)
    }

    fn is_better(
        &self,
        setting: Setting,
        evidence: &Evidence,
        is_shown: impl Fn(&[&Ratios]) -> bool,
        is_kept_shown: impl Fn(&Ratios) -> bool,
    ) -> bool {
        let is_kept = |kept: &Ratios| kept.mean() >= 1.0 && is_kept_shown(kept);
        let Evidence { shorter, kept_throughput, kept_tail, .. } = evidence;
        let gained = self.gained(evidence);
        let is_faster = || gained.mean() >= GAIN;
        let is_shorter = || shorter.mean() >= 1.0 / LOWER;
        // A gain in throughput keeps it.
        let keeps = || !self.counts_cpu_time || is_kept(kept_throughput);
        let gains = || is_faster() && is_shown(&[gained]) && keeps();
        let lowers = || is_shorter() && is_shown(&[shorter]);
        // Evidence of either is evidence of a gain, but not of which: both have to be kept.
        let improves = || (is_faster() || is_shorter()) && is_shown(&[gained, shorter]);
        match (setting, self.goal) {
            (Setting::Rests { .. }, _) => {
                is_kept(kept_throughput) && self.may_rest(evidence, false)
            }
            (_, Goal::Throughput) => gains() && kept_throughput.mean() >= 1.0,
            _ if self.takes_either() => {
                (gains() && is_kept(kept_tail))
                    || (lowers() && is_kept(kept_throughput))
                    || (improves() && is_kept(kept_tail) && is_kept(kept_throughput))
            }
            _ => lowers() && is_kept(kept_throughput),
        }
    }

    /// Whether as much throughput remains in the mean as must.
    pub(super) fn is_harmless(&self, evidence: &Evidence) -> bool {
        evidence.kept_throughput.mean() >= 1.0
    }

    /// Whether the setting is shown to be insufficient: each gain is below the required one, or
    /// costs more than it may.
    pub(super) fn is_futile(&self, setting: Setting, evidence: &Evidence, alpha: f64) -> bool {
        self.lacks(setting, evidence, |ratios, _| ratios.is_below(alpha))
    }

    /// Whether another block of the setting is probably wasted.
    pub(super) fn is_unlikely(&self, setting: Setting, evidence: &Evidence) -> bool {
        self.lacks(setting, evidence, Ratios::is_unlikely)
    }

    fn lacks(
        &self,
        setting: Setting,
        evidence: &Evidence,
        is_below: impl Fn(&Ratios, f64) -> bool,
    ) -> bool {
        let costs = || is_below(&evidence.kept_throughput, 1.0);
        let no_gain = || is_below(self.gained(evidence), GAIN) || (self.counts_cpu_time && costs());
        let no_lower = || is_below(&evidence.shorter, 1.0 / LOWER) || costs();
        match (setting, self.goal) {
            (Setting::Rests { .. }, _) => costs() || !self.may_rest(evidence, true),
            (_, Goal::Throughput) => no_gain(),
            _ if self.takes_either() => no_gain() && no_lower(),
            _ => no_lower(),
        }
    }

    /// A rest is good if it is one and the bound is kept all the same: in the mean, for clients
    /// that connect make a tail of their own. Without a block of the setting or of the reference,
    /// the bound is `unknown`.
    fn may_rest(&self, evidence: &Evidence, unknown: bool) -> bool {
        let is_met = |logs: &[f64]| mean(logs).map_or(unknown, |tail| self.objective.is_met(tail));
        evidence.rested && is_met(&evidence.own_tails) && is_met(&evidence.reference_tails)
    }

    /// How good a setting is, as logarithms, one a pair.
    pub(super) fn values(&self, setting: Setting, evidence: &Evidence) -> Vec<f64> {
        let (gained, shorter) = (self.gained(evidence).ranked(), evidence.shorter.ranked());
        match (setting, self.goal) {
            (Setting::Rests { pause }, _) => vec![pause.as_secs_f64().ln(); evidence.tried()],
            (_, Goal::Throughput) => gained,
            _ if self.takes_either() => {
                gained.iter().zip(&shorter).map(|(one, other)| one + other).collect()
            }
            _ => shorter,
        }
    }

    /// Describes the evidence of blocks.
    pub(super) fn describe(&self, evidence: &Evidence, alpha: f64) -> String {
        let shown = |ratios: &Ratios| {
            format!("{:.2} ({})", ratios.mean(), describe_interval(ratios.interval(alpha)))
        };
        let at = self.objective.at;
        let lateness = match self.objective.bound_s {
            Some(bound_s) => {
                let (bound, leaves) = (Nanos::from_secs_f64(bound_s), 100.0 - at.percent());
                format!("1/(share over {bound} + {leaves:.1} %)")
            }
            None => format!("1/{at}"),
        };
        let saved = match self.counts_cpu_time {
            true => format!(", 1/CPU time a transaction times {}", shown(&evidence.saved)),
            false => String::new(),
        };
        format!(
            "throughput times {}, {lateness} times {}{saved}, {} blocks, error {:.2} %",
            shown(&evidence.throughput),
            shown(&evidence.shorter),
            evidence.blocks(),
            100.0 * alpha
        )
    }

    /// Throughput over the reference's.
    pub(super) fn throughput(&self, evidence: &Evidence) -> f64 {
        evidence.throughput.mean()
    }
}

/// Describes an interval of a ratio. An end that few blocks leave open is 0 or infinite.
fn describe_interval([low, high]: [f64; 2]) -> String {
    match (low > 0.0, high.is_finite()) {
        (true, true) => format!("{low:.2} to {high:.2}"),
        (true, false) => format!("at least {low:.2}"),
        (false, true) => format!("at most {high:.2}"),
        (false, false) => "too few blocks for an interval".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_that_few_blocks_leave_open_is_described() {
        let mut ratios = Ratios::new(1.0, 1.0);
        let mut push = |blocks: u32| {
            for at in 0..blocks {
                let is_treated = 0x5a3c_96e1_u32.rotate_left(at) & 1 == 1;
                let outcome = if is_treated { 1.3_f64.ln() } else { 0.0 };
                let block = Block { is_treated, is_drawn: true, follows_treated: false, outcome };
                ratios.push(block, None);
            }
            describe_interval(ratios.interval(0.001))
        };
        assert_eq!(push(6), "too few blocks for an interval");
        let text = push(60);
        assert!(text.contains(" to 1."), "{text}");
        assert_eq!(describe_interval([0.5, f64::INFINITY]), "at least 0.50");
        assert_eq!(describe_interval([0.0, 2.0]), "at most 2.00");
    }
}
