//! Wrong counts of waiting workers in the shared page.

use super::*;

/// The counts that another program may leave in the ring.
const WRONG_COUNTS: [u32; 5] = [0, 1, 2, 1_000_000, u32::MAX];

/// A worker waited for the longest time allowed, then 10 s, where the count was wrong.
#[test]
fn a_wrong_count_of_waiting_workers_delays_no_worker() {
    for count in WRONG_COUNTS {
        let memory = Memory::new(64, &closed(1));
        let (gate, woken) = (memory.gate(), Woken::default());
        assert_eq!(all_arrive(&gate, 0..4, &woken), [0]);
        memory.set_waiters(count);
        gate.answered(Id(0), false, NOW, &woken);
        let mut now = NOW;
        for id in 1..4 {
            now = wait_until_run(&memory, id, now, &woken);
            memory.set_waiters(count);
            gate.answered(Id(id), false, now, &woken);
        }
        let waited = now - NOW;
        assert!(waited < 200 * MS, "count {count}: {} ms", waited / MS);
    }
}

#[test]
fn a_wrong_count_does_not_keep_workers_at_an_open_gate() {
    for count in WRONG_COUNTS {
        let memory = Memory::new(64, &closed(1));
        let (gate, woken) = (memory.gate(), Woken::default());
        all_arrive(&gate, 0..4, &woken);
        // The agent is silent from here on.
        let later = NOW + 100 * MS;
        for id in 1..4 {
            memory.set_waiters(count);
            assert_eq!(gate.check(Id(id), later, &woken), Decision::Run, "count {count}");
        }
    }
}

/// A correction by a worker, beside a call that removes it from the ring, left the count too high.
#[test]
fn a_worker_that_waits_leaves_a_wrong_count_to_the_agent() {
    for count in WRONG_COUNTS {
        let memory = Memory::new(64, &closed(1));
        let (gate, woken) = (memory.gate(), Woken::default());
        all_arrive(&gate, 0..4, &woken);
        memory.set_waiters(count);
        assert_eq!(gate.check(Id(1), NOW, &woken), Decision::Park);
        gate.deadline_ns(Id(1), NOW);
        assert_eq!(memory.control.waiters(), count);
    }
}

#[test]
fn the_count_is_corrected_by_the_agent() {
    let memory = Memory::new(100, &closed(1));
    let (gate, woken) = (memory.gate(), Woken::default());
    all_arrive(&gate, 0..80, &woken);
    for count in WRONG_COUNTS {
        memory.set_waiters(count);
        gate.recount_waiters();
        assert_eq!((memory.control.waiters(), gate.count_waiters()), (79, 79));
    }
}
