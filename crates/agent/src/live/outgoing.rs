//! Bounds the memory of long answers to clients that read slowly, or not at all.
//!
//! A history can have megabytes, and is kept until its client has read it. All that are being sent
//! share a bound. One that exceeds it cuts off those that have been sent for longest, because a
//! client that reads is done in a moment. So slow clients neither fill the memory nor keep others
//! from their answers.

use axum::body::{Body, Bytes};
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio_stream::Stream;

/// Bytes that a connection gets at once.
const PIECE: usize = 64 << 10;

/// The answers that are being sent.
#[derive(Debug, Clone)]
pub(super) struct Outgoing {
    table: Arc<Mutex<Table>>,
}

#[derive(Debug)]
struct Table {
    /// Answers by number, in the order of their begin.
    answers: BTreeMap<u64, String>,
    next: u64,
    /// Most bytes of all; one alone may be longer.
    most: usize,
}

impl Outgoing {
    /// Without answers; all answers together may have `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        let table = Table { answers: BTreeMap::new(), next: 0, most };
        Self { table: Arc::new(Mutex::new(table)) }
    }

    /// Returns the body of an answer.
    pub(super) fn body(&self, text: String) -> Body {
        Body::from_stream(self.begin(text))
    }

    fn begin(&self, text: String) -> Sending {
        let mut table = self.table();
        let number = table.next;
        table.next += 1;
        table.make_room(text.len());
        table.answers.insert(number, text);
        Sending { outgoing: self.clone(), number, sent: 0 }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn make_room(&mut self, bytes: usize) {
        let mut all = bytes + self.answers.values().map(String::len).sum::<usize>();
        while all > self.most
            && let Some((_, oldest)) = self.answers.pop_first()
        {
            all -= oldest.len();
        }
    }
}

/// An answer that is being sent.
#[derive(Debug)]
struct Sending {
    outgoing: Outgoing,
    number: u64,
    sent: usize,
}

impl Stream for Sending {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let rest = self.outgoing.table().answers.get(&self.number).map(|text| {
            let rest = &text.as_bytes()[self.sent..];
            // A copy, because a part of the text would keep all of it.
            Bytes::copy_from_slice(&rest[..rest.len().min(PIECE)])
        });
        Poll::Ready(match rest {
            None => Some(Err(io::Error::other("cut off: others needed its memory"))),
            Some(piece) if piece.is_empty() => None,
            Some(piece) => {
                self.sent += piece.len();
                Some(Ok(piece))
            }
        })
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.outgoing.table().answers.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn poll(answer: &mut Sending) -> Option<io::Result<Bytes>> {
        match Pin::new(answer).poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(piece) => piece,
            Poll::Pending => panic!("it waits for nothing"),
        }
    }

    fn rest(answer: &mut Sending) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(piece) = poll(answer) {
            all.extend(piece?);
        }
        Ok(all)
    }

    #[test]
    fn an_answer_is_sent_whole_and_then_kept_no_longer() {
        let outgoing = Outgoing::new(10);
        let text = "ab".repeat(PIECE);
        let mut answer = outgoing.begin(text.clone());
        assert_eq!(rest(&mut answer).unwrap(), text.as_bytes(), "one alone may exceed the bound");
        drop(answer);
        assert!(outgoing.table().answers.is_empty());
    }

    #[test]
    fn an_answer_without_room_cuts_off_those_that_were_sent_for_longest() {
        let outgoing = Outgoing::new(3 * PIECE);
        let mut answers: Vec<_> = (0..3).map(|_| outgoing.begin("a".repeat(PIECE))).collect();
        assert!(poll(&mut answers[0]).is_some_and(|piece| piece.is_ok()));
        let mut long = outgoing.begin("b".repeat(2 * PIECE));
        let [first, second, third] = &mut answers[..] else { panic!("three answers") };
        assert!(rest(first).is_err() && rest(second).is_err());
        assert_eq!(rest(third).unwrap().len(), PIECE);
        assert_eq!(rest(&mut long).unwrap().len(), 2 * PIECE);
        drop((answers, long));
        assert!(outgoing.table().answers.is_empty());
    }
}
