//! A series: rounds of blocks, one of each setting in random order, beside one client.

use super::client::{Site, Transactions};
use super::page::Page;
use super::printing::{Line, Printing, now_s};
use super::setting::{Kind, Setting};
use anyhow::{Context as _, Result};
use lull_control::Rng;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use std::time::{Duration, Instant};

/// The order of blocks is that of this seed and the number of the server's process.
const SEED: u64 = 1;
/// The time before the first block, for connections and caches.
const WARM_UP_S: u32 = 16;
/// A client on a busy machine may be late with its report by this.
const LATENESS: Duration = Duration::from_secs(120);
/// `auto` counts as it is after this time, decided or not.
pub(super) const DECIDES_WITHIN_S: u32 = 40;
/// Intervals that other controllers have to find their limit.
const SETTLES: u32 = 2;
/// With fewer rounds there is no interval.
const ROUNDS_MIN: usize = 2;
/// Words in the line of an agent that has decided.
const DECIDED: &str = "decided: ";

/// How long a series takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Length of an interval, of which the last of each block counts.
    pub(super) interval_s: u32,
    pub(super) rounds_max: usize,
    /// No round begins that would likely end later.
    pub(super) budget: Duration,
}

/// One block.
#[derive(Debug, Clone)]
pub(super) struct Block {
    /// Index of the setting.
    pub(super) setting: usize,
    /// Seconds since the Unix epoch.
    pub(super) begin_s: f64,
    /// Both ends of the interval that counts.
    pub(super) counted_s: [f64; 2],
    /// The client's report of it.
    pub(super) report: String,
    /// Time from the agent's start to its first decision, if it has reported one.
    pub(super) decided_s: Option<f64>,
}

/// The parameters of a series.
pub(super) struct Series<'s> {
    pub(super) transactions: Transactions,
    pub(super) connections: u32,
    pub(super) settings: &'s [Setting],
    pub(super) page: &'s Page,
    pub(super) site: &'s Site,
    pub(super) pace: Pace,
}

impl Series<'_> {
    /// Runs the series on a process of the server; returns the blocks of each round by setting.
    ///
    /// # Errors
    /// If the client or an agent fails.
    pub(super) fn run(&self, process: u64) -> Result<Vec<Vec<Block>>> {
        let interval_s = self.pace.interval_s;
        let command = self.transactions.command(self.connections, interval_s, self.site)?;
        let mut client = Printing::start(command)?;
        let begun = Instant::now();
        for _ in 0..WARM_UP_S.div_ceil(interval_s) {
            self.interval(&mut client)?;
        }
        let mut rng = Rng::seed_from_u64(SEED + process);
        let (mut rounds, mut longest) = (Vec::new(), Duration::ZERO);
        while rounds.len() < ROUNDS_MIN
            || (rounds.len() < self.pace.rounds_max && begun.elapsed() + longest < self.pace.budget)
        {
            let round_begun = Instant::now();
            let mut order: Vec<usize> = (0..self.settings.len()).collect();
            order.shuffle(&mut rng);
            let blocks = order.into_iter().map(|setting| self.block(setting, &mut client));
            let mut blocks = blocks.collect::<Result<Vec<Block>>>()?;
            blocks.sort_by_key(|block| block.setting);
            rounds.push(blocks);
            longest = longest.max(round_begun.elapsed());
            eprintln!("  {} rounds, {} s", rounds.len(), begun.elapsed().as_secs());
        }
        // pgbench writes its buffered log together with later output.
        self.interval(&mut client)?;
        Ok(rounds)
    }

    /// Waits for the end of the client's present interval.
    fn interval(&self, client: &mut Printing) -> Result<Line> {
        let is_interval = |line: &str| self.transactions.is_interval(line);
        let longest = Duration::from_secs(self.pace.interval_s.into()) + LATENESS;
        client.wait_for(is_interval, longest)
    }

    fn block(&self, setting: usize, client: &mut Printing) -> Result<Block> {
        let name = self.settings[setting].name;
        self.block_of(setting, client).with_context(|| format!("block of {name}"))
    }

    fn block_of(&self, setting: usize, client: &mut Printing) -> Result<Block> {
        let begin_s = now_s()?;
        let mut agent = self.page.agent(&self.settings[setting])?;
        let kind = self.settings[setting].kind;
        let mut left = passes(kind, self.pace.interval_s);
        let (mut decided_s, mut passed_s) = (None, begin_s);
        while left > 0 {
            passed_s = self.interval(client)?.at_s;
            left -= 1;
            let at_s = agent.as_mut().map(|agent| agent.time_of(DECIDED)).transpose()?.flatten();
            if kind == Kind::Auto && decided_s.is_none() && at_s.is_some() {
                decided_s = at_s.map(|at_s| at_s - begin_s);
                // Transactions that were admitted before the decision end within one more interval.
                left = left.min(1);
            }
        }
        let counted = self.interval(client)?;
        if let Some(agent) = &mut agent {
            agent.time_of(DECIDED)?;
        }
        let counted_s = [passed_s, counted.at_s];
        Ok(Block { setting, begin_s, counted_s, report: counted.text, decided_s })
    }
}

/// The intervals at the beginning of a block that do not count, at most.
fn passes(kind: Kind, interval_s: u32) -> u32 {
    match kind {
        // Transactions that were admitted before have ended after one interval.
        Kind::Open | Kind::Limit => 1,
        Kind::Auto => DECIDES_WITHIN_S.div_ceil(interval_s) + 1,
        Kind::Peer | Kind::Paper | Kind::Promising => SETTLES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_has_the_time_to_decide_and_what_was_admitted_before_never_counts() {
        for interval_s in [4, 6] {
            assert_eq!(passes(Kind::Open, interval_s), 1);
            assert!((passes(Kind::Auto, interval_s) - 1) * interval_s >= DECIDES_WITHIN_S);
            assert!(passes(Kind::Peer, interval_s) > passes(Kind::Limit, interval_s));
        }
    }
}
