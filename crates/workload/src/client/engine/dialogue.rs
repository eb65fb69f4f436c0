//! The bytes that a connection sends when a request begins, after a reply and at the end of a
//! pause, and the end of requests.

use super::{Engine, RequestSlot};
use crate::client::ledger::Request;
use crate::clock;
use crate::target::Outcome;
use lull_measure::Nanos;
use std::cmp::Reverse;

impl Engine<'_> {
    /// Writes a request to a connection's buffer.
    pub(super) fn send(&mut self, index: usize, due: Nanos, ready: Nanos) {
        let connection = &mut self.connections[index];
        let is_dialogue = connection.decoder.begin(&mut self.rng);
        let kind = match is_dialogue {
            true => connection.decoder.kind(),
            false => connection.write(&mut *self.target, &mut self.rng),
        };
        let request = Request { due, ready, sent: ready, kind, timed_out: false };
        if connection.push(request) {
            self.unflushed.push(index);
        }
        if is_dialogue {
            connection.is_offered = false;
            self.proceed(index);
        }
    }

    /// Lets a connection's decoder write the bytes to send now, and sets its wake-up.
    pub(super) fn proceed(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let begun = connection.proceed(clock::now(), self.place.tls.as_ref(), &mut self.outcomes);
        if let Err(loss) = begun {
            self.outcomes.clear();
            return self.lose(index, &loss);
        }
        let connection = &mut self.connections[index];
        let wakes_at = connection.decoder.wakes_at();
        if let Some(at) = wakes_at.filter(|_| wakes_at != connection.wakes_at) {
            self.wakeups.push(Reverse((at, index)));
        }
        connection.wakes_at = wakes_at;
    }

    /// Continues the dialogues whose pauses have ended.
    pub(super) fn wake(&mut self, now: Nanos) {
        let mut has_woken = false;
        while let Some(Reverse((at, index))) = self.wakeups.peek().copied() {
            if at > now {
                break;
            }
            has_woken = true;
            self.wakeups.pop();
            // A connection that was lost meanwhile has another wake-up, or none.
            if self.connections[index].wakes_at == Some(at) {
                self.proceed(index);
                self.settle(index, now);
                self.flush(index);
            }
        }
        if has_woken {
            self.dispatch(now);
        }
    }

    /// Records the outcomes of a connection. Returns whether there were more outcomes
    /// than requests.
    pub(super) fn settle(&mut self, index: usize, now: Nanos) -> bool {
        let connection = &mut self.connections[index];
        let slot = RequestSlot { connection: index, generation: connection.generation };
        let last = connection.is_last();
        for outcome in self.outcomes.drain(..) {
            if let Outcome::Retried(code) = outcome {
                let due = connection.in_flight.front().map_or(now, |request| request.due);
                self.ledger.error(due, code, true, connection.decoder.message());
                continue;
            }
            let position = connection.decoder.position();
            let Some(request) = connection.in_flight.remove(position) else { return true };
            // After a dialogue the slot is free when the connection is ready again.
            if !last && connection.is_offered {
                self.free.push_back(slot);
            }
            match outcome {
                _ if request.timed_out => {}
                Outcome::Done => self.ledger.completed(&request, now, false),
                Outcome::Miss => self.ledger.completed(&request, now, true),
                Outcome::Error(code) => {
                    self.ledger.error(request.due, code, false, connection.decoder.message());
                }
                Outcome::Untaken => {
                    self.ledger.untaken(request.due);
                    // Requests stay in the order of due times, on which time-outs rely.
                    let at = self.waiting.partition_point(|due| *due <= request.due);
                    self.waiting.insert(at, request.due);
                }
                Outcome::Failed | Outcome::Retried(_) => self.ledger.failed(request.due),
            }
        }
        self.offer(index);
        false
    }

    /// Makes the slots of a connection free that has just become usable.
    pub(super) fn offer(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if connection.offer() {
            let slot = RequestSlot { connection: index, generation: connection.generation };
            self.free.extend(std::iter::repeat_n(slot, self.config.depth));
        }
    }
}
