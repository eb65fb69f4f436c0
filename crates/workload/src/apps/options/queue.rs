//! The bounded queue between the acceptor and the workers.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};

/// First in, first out, never longer than its bound.
#[derive(Debug)]
pub(super) struct Queue<T> {
    bound: usize,
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<T>,
    closed: bool,
}

impl<T> Queue<T> {
    pub(super) fn new(bound: usize) -> Self {
        let state = State { waiting: VecDeque::new(), closed: false };
        Self { bound, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Appends, or gives the item back if there is no room.
    pub(super) fn push(&self, item: T) -> Result<(), T> {
        let mut state = self.lock();
        if state.closed || state.waiting.len() >= self.bound {
            return Err(item);
        }
        state.waiting.push_back(item);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Waits for an item; `None` once closed.
    pub(super) fn pop(&self) -> Option<T> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(item) = state.waiting.pop_front() {
                return Some(item);
            }
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// Ends all workers. Returns the items that still wait.
    pub(super) fn close(&self) -> VecDeque<T> {
        let mut state = self.lock();
        state.closed = true;
        let left = std::mem::take(&mut state.waiting);
        drop(state);
        self.changed.notify_all();
        left
    }

    /// Ignores poison: no operation panics between two changes of the list, so that a
    /// panicking worker leaves it consistent.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_the_order_and_its_bound() {
        let queue = Queue::new(2);
        assert_eq!((queue.push(1), queue.push(2), queue.push(3)), (Ok(()), Ok(()), Err(3)));
        assert_eq!((queue.pop(), queue.pop()), (Some(1), Some(2)));
    }

    #[test]
    fn closing_wakes_every_waiting_worker() {
        let queue = Queue::<u8>::new(2);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3).map(|_| scope.spawn(|| queue.pop())).collect();
            assert!(queue.close().is_empty());
            for worker in workers {
                assert_eq!(worker.join().unwrap(), None);
            }
        });
        assert_eq!(queue.push(1), Err(1));
    }
}
