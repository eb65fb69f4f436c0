//! Table 1, section 4.2's arithmetic, the two readings, and the worst burst cycle.

use super::fluid::mean_backlog_s;
use super::*;
use crate::toolkit::domains::testing::{run, xeon};

const P0: u64 = 2_260;
const P4: u64 = 1_729;
const P8: u64 = 1_197;

fn stepper(text: &str) -> Stepper {
    Stepper::new(read(&text.parse().unwrap()).unwrap())
}

#[test]
fn from_p8_to_p0_takes_two_periods_and_back_two_windows() {
    let mut loads = vec![1.0; 20];
    loads.extend([0.1; 2]);
    let states = run(&mut stepper(""), &xeon(), &loads);
    // Windows of 50 ms: the tenth ends the first 500 ms, the twentieth the second.
    assert_eq!((states[8], states[9]), (P8, P4));
    assert_eq!((states[18], states[19]), (P4, P0));
    assert_eq!(states[20..], [P4, P8]);
}

#[test]
fn the_other_reading_falls_to_p8_at_once() {
    let mut loads = vec![1.0; 20];
    loads.push(0.1);
    let states = run(&mut stepper("down = \"lowest\""), &xeon(), &loads);
    assert_eq!(states[19..], [P0, P8]);
}

#[test]
fn between_the_thresholds_it_stays_and_a_break_starts_the_count_again() {
    let mut loads = vec![1.0; 9];
    loads.push(0.7);
    loads.extend([1.0; 9]);
    assert!(run(&mut stepper(""), &xeon(), &loads).iter().all(|state| *state == P8));
    let kept = run(&mut stepper("start = \"highest\""), &xeon(), &[0.66, 0.79, 0.66]);
    assert_eq!(kept, [P0; 3]);
}

#[test]
fn an_unknown_window_starts_the_count_again() {
    let mut governor = stepper("");
    let table = xeon();
    run(&mut governor, &table, &[1.0; 9]);
    assert_eq!(governor.after(&table, None, Nanos::ZERO), None);
    assert_eq!(governor.busy_in_a_row, 0);
}

#[test]
fn a_period_is_reached_by_number_or_by_length_of_windows() {
    let shape = |text: &str| {
        let stepper = stepper(text);
        (stepper.window.as_millis_f64(), stepper.up_windows)
    };
    let cases = [
        ("", (50.0, 10)),
        ("windows = \"scaled\"", (50.0, 10)),
        ("period = \"125ms\"", (50.0, 3)),
        ("period = \"125ms\"\nwindows = \"scaled\"", (12.5, 10)),
        ("period = \"8ms\"", (8.0, 1)),
        ("period = \"8ms\"\nwindows = \"scaled\"", (0.8, 10)),
        ("period = \"50ms\"", (50.0, 1)),
    ];
    for (text, wanted) in cases {
        assert_eq!(shape(text), wanted, "{text}");
    }
}

#[test]
fn the_worst_burst_cycle_is_near_the_time_to_climb_and_both_ends_are_better() {
    // Figure 8: worst at 2 s, bad from 0.5 to 4 s.
    let cycles = [0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0, 16.0];
    let backlogs = cycles.map(|cycle_s| mean_backlog_s(&mut stepper(""), cycle_s));
    let worst = backlogs.iter().copied().fold(0.0, f64::max);
    let at = cycles[backlogs.iter().position(|backlog| *backlog == worst).unwrap()];
    assert!((1.5..=4.0).contains(&at), "worst at {at} s: {backlogs:?}");
    assert!(backlogs[0] < 0.65 * worst && backlogs[7] < 0.65 * worst, "{backlogs:?}");
}

#[test]
fn a_shorter_period_breaks_the_anti_synchrony() {
    // Section 5.1.
    let slow = mean_backlog_s(&mut stepper(""), 2.0);
    let fast = mean_backlog_s(&mut stepper("period = \"125ms\""), 2.0);
    assert!(fast < 0.25 * slow, "{fast} against {slow}");
}

#[test]
fn numbers_that_confirm_nothing_are_refused() {
    for (text, at) in [
        ("up_windows = 0", "up_windows"),
        ("down_windows = 0", "down_windows"),
        ("states = 1", "states"),
        ("reference = 80", "reference"),
        ("window = \"0s\"", "window"),
    ] {
        let error = read::<Config>(&text.parse().unwrap()).unwrap_err();
        assert!(matches!(&error, PolicyError::Config { key, .. } if key == at), "{error:?}");
    }
}
