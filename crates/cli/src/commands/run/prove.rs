//! `lull run --prove`: compares the policy with doing nothing, in blocks in random order.
//! Gates of admission controllers are open in the blocks in which nothing is done.

use super::display::Display;
use super::{UsageError, check_alive};
use crate::cli::RunArgs;
use crate::text::table;
use anyhow::Context;
use lull_agent::config::Config;
use lull_agent::proof::{AGAINST, Block, Design, PAIRS_MIN, Pair, Proof, order};
use lull_agent::session::{Session, TurnError, policy_of};
use lull_control::{AppSpec, Plant, PlantError, Rng};
use lull_measure::{Nanos, escape};
use rand::SeedableRng;
use std::io::Write;

/// Share of a block that is left out while things settle.
const SETTLE: f64 = 0.25;
/// Shortest block, in epochs.
const EPOCHS_MIN: u64 = 4;

/// The design of the comparison and its config.
pub(super) struct Plan {
    design: Design,
    config: Config,
}

impl Plan {
    /// Plans blocks for `time`.
    ///
    /// # Errors
    /// If the config has nothing to compare, or blocks or time are too short.
    pub(super) fn from_args(
        args: &RunArgs,
        config: &Config,
        time: Nanos,
    ) -> Result<Self, UsageError> {
        let refuse = |what: String| Err(UsageError(what));
        let Some(policy) = proved(config) else {
            return refuse(format!(
                "--prove compares policy and admission controllers with `{AGAINST}` and open \
                 gates, which is all that {} has: name another in [policy], or give an app \
                 `concurrency`",
                args.config.display()
            ));
        };
        let least = config.epoch_rule().longest() * EPOCHS_MIN;
        if args.block < least {
            let block = args.block;
            return refuse(format!(
                "--block {block} has less than {EPOCHS_MIN} epochs: {least} is the least"
            ));
        }
        let planned_pairs = usize::try_from(time.0 / (2 * args.block.0)).unwrap_or(usize::MAX);
        if planned_pairs < PAIRS_MIN {
            let (block, needed) = (args.block, args.block * 2 * PAIRS_MIN as u64);
            return refuse(format!(
                "--prove {time} is too short: with blocks of {block} at least {needed} \
                 ({PAIRS_MIN} pairs), or say a shorter --block"
            ));
        }
        let design = Design {
            policy,
            against: AGAINST.to_owned(),
            block_ns: args.block,
            planned_pairs,
            seed: config.agent.seed(),
        };
        Ok(Self { design, config: config.clone() })
    }
}

/// The measured blocks, and the random generator of their resampling.
pub(super) struct Blocks {
    design: Design,
    apps: Vec<AppSpec>,
    pairs: Vec<Pair>,
    rng: Rng,
}

impl Blocks {
    /// The figures with their intervals; takes a while.
    pub(super) fn judge(mut self) -> Proof {
        Proof::from_pairs(self.design, &self.apps, &self.pairs, &mut self.rng)
    }
}

/// Runs block after block. However the run ends, the complete pairs are the proof.
pub(super) fn alternate(
    session: &mut Session,
    args: &RunArgs,
    plan: Plan,
    measured: &mut Option<Blocks>,
) -> anyhow::Result<()> {
    // A separate stream, so that the policy draws the same random numbers as in any run.
    let mut rng = Rng::seed_from_u64(plan.design.seed);
    rng.jump();
    let order = order(plan.design.planned_pairs, &mut rng);
    let mut alternation =
        Alternation { session, display: Display::new(args.json), plan: &plan, pairs: Vec::new() };
    let ended = alternation.all(&order);
    let pairs = alternation.pairs;
    let apps = session.apps().to_vec();
    *measured = Some(Blocks { design: plan.design, apps, pairs, rng });
    ended
}

/// Prints the proof as text, or as one last line of JSON.
pub(super) fn tell(proof: &Proof, json: bool) -> anyhow::Result<()> {
    let text = if json {
        escape::json(&serde_json::json!({ "prove": proof }).to_string()).into_owned()
    } else {
        escape::visible(&proof_text(proof)).into_owned()
    };
    writeln!(std::io::stdout(), "{text}").context("cannot write to standard output")
}

/// Returns the subject of the comparison: the policy, or the admission controllers if the policy
/// does nothing.
fn proved(config: &Config) -> Option<String> {
    let admission_controllers = config.admission_controllers();
    match config.policy == AGAINST {
        false => Some(config.policy.clone()),
        true => (!admission_controllers.is_empty()).then(|| admission_controllers.join("+")),
    }
}

struct Alternation<'a> {
    session: &'a mut Session,
    display: Display,
    plan: &'a Plan,
    pairs: Vec<Pair>,
}

impl Alternation<'_> {
    fn all(&mut self, order: &[bool]) -> anyhow::Result<()> {
        for (number, on_first) in order.iter().enumerate() {
            let mut pair = Pair::default();
            for on in [*on_first, !on_first] {
                let Some(block) = self.one_block(number, on)? else { return Ok(()) };
                if on { pair.on = block } else { pair.off = block }
            }
            self.pairs.push(pair);
        }
        Ok(())
    }

    /// Runs one block; returns `None` if a signal stopped it.
    fn one_block(&mut self, number: usize, on: bool) -> anyhow::Result<Option<Block>> {
        let config = &self.plan.config;
        let config = if on { config.clone() } else { config.under(AGAINST) };
        let plant = self.session.plant();
        let policy = policy_of(&config, plant.machine(), plant.apps())?;
        self.session.switch(&config.policy, policy);
        self.session.set_admission(on);
        let Design { policy, against, .. } = &self.plan.design;
        let phase = format!("{}-{number}", if on { policy } else { against });
        let length = self.plan.design.block_ns;
        let mut block = Block::default();
        let mut elapsed = Nanos::ZERO;
        while elapsed < length {
            let epoch = match self.session.turn(&phase) {
                Ok(epoch) => epoch,
                Err(TurnError::Plant(PlantError::Stopped)) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            self.display.show(self.session, &epoch)?;
            // An epoch counts only if all of it lies after the settling.
            if elapsed >= length.scale(SETTLE) {
                block.add(&epoch);
            }
            elapsed += epoch.seen.epoch;
            check_alive(self.session, &epoch)?;
        }
        Ok(Some(block))
    }
}

/// A proof as a table with its notes below.
fn proof_text(proof: &Proof) -> String {
    let notes = proof.notes().join("\n");
    if proof.pairs == 0 {
        return notes;
    }
    let rows = proof.figures.iter().map(|figure| proof.cells(figure).to_vec());
    format!("{}\n\n{notes}", table(&proof.header(), rows))
}
