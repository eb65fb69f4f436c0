//! A setting that the plant does not take is not written at every epoch.

use super::*;

/// A loop on a plant without the knob that its policy wants.
fn without_frequency() -> (Harness, Refusals) {
    let plant = plant().without(Capability::Frequency, "taken away");
    let refusals = Refusals::default();
    let policy = Box::new(RefusalRecorder(refusals.clone()));
    let controller = Controller::new(policy, Rules::default(), &plant).unwrap();
    (Harness { plant, controller, rng: rng() }, refusals)
}

/// The times at which the frequency was written.
fn attempts(entries: &[Entry]) -> Vec<Nanos> {
    let is_attempt = |entry: &&Entry| match &entry.event {
        Event::Decision(decision) => decision.outcome.wanted == fast(),
        _ => false,
    };
    entries.iter().filter(is_attempt).map(|entry| entry.time).collect()
}

#[test]
fn a_refused_setting_is_tried_again_after_pauses_that_double_up_to_a_minute() {
    let (mut harness, refusals) = without_frequency();
    let turns = 560;
    let entries: Vec<Entry> = (0..turns).flat_map(|_| harness.turn()).collect();
    let attempts = attempts(&entries);
    let pauses: Vec<f64> = attempts.windows(2).map(|two| (two[1] - two[0]).as_secs_f64()).collect();
    assert_eq!(pauses, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]);
    let heard = refusals.lock().unwrap().len();
    assert_eq!(heard, turns, "at each epoch the policy hears that its setting is not in force");
}

#[test]
fn another_policy_tries_at_once_what_the_former_one_was_refused() {
    let (mut harness, refusals) = without_frequency();
    assert_eq!(attempts(&harness.turn()).len(), 1);
    assert_eq!(attempts(&harness.turn()).len(), 0);
    let settings = harness.plant.settings();
    harness.controller.set_policy(Box::new(RefusalRecorder(refusals)), &settings);
    assert_eq!(attempts(&harness.turn()).len(), 1);
}
