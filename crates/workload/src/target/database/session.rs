//! One connection to a database: its login, its prepared statements, and the passes through
//! the script, one for each request.

use super::super::{Decoded, Decoder, ErrorCode, Outcome, ProtocolError, RequestKind};
use super::expression::{Draw, Expression};
use super::script::{Script, Step, Transaction};
use super::wire::{Reply, ServerError, Wire};
use crate::Generator;
use lull_measure::Nanos;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// The script and the options that all connections share.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) script: Script,
    pub(super) scale: u32,
    /// Whether statements are prepared or sent as text.
    pub(super) prepares: bool,
    /// How often a transaction is tried that a deadlock or a serialization failure ends.
    pub(super) tries_max: u32,
}

impl Work {
    /// Returns whether a statement is prepared in this protocol.
    pub(super) fn is_prepared<W: Wire>(&self, statement: usize) -> bool {
        self.prepares && (W::PREPARES_ALL || self.script.statements[statement].has_parameters())
    }
}

/// The event that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    New,
    Login,
    /// The reply to the preparation of the statement before this one.
    Preparing(usize),
    Idle,
    /// The next step of the script can be taken.
    Stepping,
    /// The reply to a statement.
    Replying,
    /// The end of a `\sleep`.
    Sleeping(Nanos),
    /// The reply to a ROLLBACK after this error.
    RollingBack(ErrorCode),
}

/// One connection.
pub(super) struct Session<W> {
    wire: W,
    work: Arc<Work>,
    phase: Phase,
    /// The transaction of the request under way.
    transaction: Transaction,
    step: usize,
    variables: Vec<i64>,
    values: Vec<i64>,
    text: String,
    rng: Generator,
    /// Seed of this request: a repeated transaction has the same parameters.
    seed: u64,
    tries: u32,
    /// Whether the request's outcome has been reported.
    is_answered: bool,
    in_transaction: bool,
    out: Vec<u8>,
    message: String,
}

impl<W: Wire> Session<W> {
    pub(super) fn new(wire: W, work: Arc<Work>) -> Self {
        Self {
            wire,
            variables: work.script.variables(work.scale),
            transaction: work.script.transactions[0],
            work,
            phase: Phase::New,
            step: 0,
            values: Vec::new(),
            text: String::new(),
            rng: Generator::seed_from_u64(0),
            seed: 0,
            tries: 0,
            is_answered: false,
            in_transaction: false,
            out: Vec::new(),
            message: String::new(),
        }
    }

    fn start_try(&mut self) {
        self.rng = Generator::seed_from_u64(self.seed);
        // A script may set the variable, and each request begins with the configured value.
        self.variables[0] = i64::from(self.work.scale);
        self.tries += 1;
        self.transaction = self.work.script.choose(&mut self.rng);
        self.step = self.transaction.first;
        self.phase = Phase::Stepping;
    }

    /// Handles a complete reply.
    fn replied(&mut self, reply: Reply, outcomes: &mut Vec<Outcome>) -> Result<(), ProtocolError> {
        self.in_transaction = reply.in_transaction;
        match (self.phase, reply.error) {
            (Phase::Login, None) => self.prepare_from(0),
            (Phase::Preparing(next), None) => self.prepare_from(next),
            (Phase::Login | Phase::Preparing(_) | Phase::RollingBack(_), Some(error)) => {
                return Err(ProtocolError::refused(W::PROTOCOL, error.code, &error.message));
            }
            (Phase::Replying, None) => self.phase = Phase::Stepping,
            (Phase::Replying, Some(error)) => self.fail(error, outcomes),
            (Phase::RollingBack(code), None) => self.end_try(code, outcomes),
            (Phase::New | Phase::Idle | Phase::Stepping | Phase::Sleeping(_), _) => {
                return Err(ProtocolError::unexpected(W::PROTOCOL, b"a reply to nothing"));
            }
        }
        Ok(())
    }

    /// Prepares the next statement, from `first` on, that is to be prepared.
    fn prepare_from(&mut self, first: usize) {
        let work = Arc::clone(&self.work);
        let mut statements = work.script.statements.iter().enumerate().skip(first);
        match statements.find(|(at, _)| work.is_prepared::<W>(*at)) {
            Some((at, statement)) => {
                self.wire.prepare(at, &statement.prepared(W::placeholder), &mut self.out);
                self.phase = Phase::Preparing(at + 1);
            }
            None => self.phase = Phase::Idle,
        }
    }

    fn fail(&mut self, error: ServerError, outcomes: &mut Vec<Outcome>) {
        self.message = error.message;
        if self.in_transaction {
            self.wire.query("ROLLBACK", &mut self.out);
            self.phase = Phase::RollingBack(error.code);
        } else {
            self.end_try(error.code, outcomes);
        }
    }

    fn end_try(&mut self, code: ErrorCode, outcomes: &mut Vec<Outcome>) {
        if code.is_transient() && self.tries < self.work.tries_max && !self.is_answered {
            outcomes.push(Outcome::Retried(code));
            self.start_try();
            return;
        }
        if !self.is_answered {
            outcomes.push(Outcome::Error(code));
        }
        self.phase = Phase::Idle;
    }

    /// Takes the next step of the script.
    fn advance(&mut self, now: Nanos, outcomes: &mut Vec<Outcome>) {
        let work = Arc::clone(&self.work);
        let steps = &work.script.steps[..self.transaction.end];
        let Some(step) = steps.get(self.step) else {
            if self.in_transaction {
                let message = "the script ends within a transaction".to_owned();
                return self.fail(ServerError { code: ErrorCode::OPEN, message }, outcomes);
            }
            self.answer(outcomes);
            self.phase = Phase::Idle;
            return;
        };
        self.step += 1;
        match step {
            Step::Set { variable, value } => self.variables[*variable] = self.evaluate(value),
            Step::Sleep { time, unit } => {
                let time = u64::try_from(self.evaluate(time)).unwrap_or_default();
                // A pause behind the last statement is the client's own.
                if self.step > self.transaction.last_query && !self.in_transaction {
                    self.answer(outcomes);
                }
                self.phase =
                    Phase::Sleeping(now.saturating_add(Nanos(time.saturating_mul(unit.0))));
            }
            Step::Query(statement) => {
                self.send(*statement);
                self.phase = Phase::Replying;
            }
        }
    }

    fn answer(&mut self, outcomes: &mut Vec<Outcome>) {
        if !std::mem::replace(&mut self.is_answered, true) {
            outcomes.push(Outcome::Done);
        }
    }

    fn evaluate(&mut self, value: &Expression) -> i64 {
        value.evaluate(&mut Draw {
            variables: &self.variables,
            rng: &mut self.rng,
            has_exchanged_bounds: false,
        })
    }

    fn send(&mut self, at: usize) {
        let statement = &self.work.script.statements[at];
        if self.work.is_prepared::<W>(at) {
            statement.collect_values(&self.variables, &mut self.values);
            self.wire.execute(at, &self.values, &mut self.out);
        } else {
            self.text.clear();
            statement.write_text(&self.variables, &mut self.text);
            self.wire.query(&self.text, &mut self.out);
        }
    }
}

impl<W: Wire> Decoder for Session<W> {
    fn decode(&mut self, input: &[u8], outcomes: &mut Vec<Outcome>) -> Decoded {
        let mut used = 0;
        loop {
            let (count, reply) = self.wire.read(&input[used..], &mut self.out)?;
            used += count;
            if let Some(reply) = reply {
                self.replied(reply, outcomes)?;
            }
            if count == 0 {
                return Ok(used);
            }
        }
    }

    fn begin(&mut self, rng: &mut Generator) -> bool {
        self.seed = rng.next_u64();
        (self.tries, self.is_answered) = (0, false);
        self.start_try();
        true
    }

    fn proceed(&mut self, now: Nanos, outcomes: &mut Vec<Outcome>, out: &mut Vec<u8>) {
        match self.phase {
            Phase::New => {
                self.wire.open(&mut self.out);
                self.phase = Phase::Login;
            }
            Phase::Sleeping(until) if until <= now => self.phase = Phase::Stepping,
            _ => {}
        }
        while self.phase == Phase::Stepping {
            self.advance(now, outcomes);
        }
        out.append(&mut self.out);
    }

    fn begins_tls(&mut self) -> bool {
        self.wire.begins_tls(&mut self.out)
    }

    fn kind(&self) -> RequestKind {
        self.transaction.name.map_or(RequestKind::Only, RequestKind::Transaction)
    }

    fn is_ready(&self) -> bool {
        self.phase == Phase::Idle
    }

    fn wakes_at(&self) -> Option<Nanos> {
        match self.phase {
            Phase::Sleeping(until) => Some(until),
            _ => None,
        }
    }

    fn message(&self) -> &str {
        &self.message
    }
}

#[cfg(test)]
mod tests;
