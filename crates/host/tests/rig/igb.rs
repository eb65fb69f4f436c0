//! A second driver with interrupt delays: igb, which other than e1000e keeps them
//! in microseconds and has one for what is sent.

use crate::Tests;
use crate::hold::Holding;
use crate::scene::Scene;
use crate::traffic::{Effect, connect, effect};
use lull_control::{ApplyOutcome, Coalescing, NicId, Setting};
use lull_host::drivers::ethtool::{self, Coalescing as Parameters};
use lull_measure::Nanos;

pub(crate) const TESTS: Tests = &[
    ("igb::packets_wait_longer_the_longer_the_delay", waits),
    ("igb::beyond_8191_us_the_card_would_wait_less_and_is_not_asked_to", wrapped),
    ("igb::every_delay_is_kept_as_it_is_asked_for", exact),
    ("igb::what_the_driver_refuses_is_said_and_changes_nothing", refused),
    ("igb::the_plants_knob_is_set_and_put_back", steered),
];

/// Delays that the driver accepts: the whole range, without values that mean something else to it.
const DELAYS_US: [u64; 6] = [10, 33, 200, 999, 4000, 8191];

const RX_10_MS: Parameters =
    Parameters { rx_us: Some(10_000), tx_us: None, adaptive_rx: None, adaptive_tx: None };

/// Measures the wait of packets under a delay, which is then restored.
fn effect_of(us: u64) -> Effect {
    connect();
    let before = ethtool::get("eth0").unwrap();
    let holding = Holding::start(&[&format!("coalescing=eth0:rx-usecs:{us}")]);
    let effect = effect();
    assert_eq!(holding.end().done, 1);
    assert_eq!(ethtool::get("eth0").unwrap(), before);
    println!("rx-usecs {us}: {effect:?}");
    effect
}

fn waits() {
    let effects = [100, 500, 2000, 4000].map(effect_of);
    for pair in effects.windows(2) {
        assert!(pair[1].mean_us > pair[0].mean_us * 1.3, "{effects:?}");
        assert!(pair[1].interrupts < pair[0].interrupts, "{effects:?}");
    }
}

/// The register has 13 bits for microseconds (Intel 82576 data sheet, section
/// 8.8.12), and the driver cuts off what is above without a word.
fn wrapped() {
    let [shorter, got] = [4000, 10_000 - 8192].map(effect_of);
    let before = ethtool::get("eth0").unwrap();
    ethtool::set("eth0", &RX_10_MS).unwrap();
    let applied = effect();
    let refused = Holding::try_start(&["coalescing=eth0:rx-usecs:9000"]).err().unwrap();
    ethtool::set("eth0", &before).unwrap();
    assert!(refused.contains("8191") && refused.contains("808"), "{refused}");
    assert!((applied.mean_us / got.mean_us - 1.0).abs() < 0.25, "{applied:?} and {got:?}");
    assert!(applied.mean_us * 1.5 < shorter.mean_us, "{applied:?} and {shorter:?}");
}

fn exact() {
    connect();
    for us in DELAYS_US {
        let holding = Holding::start(&[&format!("coalescing=eth0:rx-usecs:{us}")]);
        assert_eq!(ethtool::get("eth0").unwrap().rx_us.map(u64::from), Some(us));
        assert_eq!(holding.end().done, 1);
    }
}

fn refused() {
    connect();
    let before = ethtool::get("eth0").unwrap();
    for us in [4, 9] {
        let request = format!("coalescing=eth0:rx-usecs:{us}");
        let why = Holding::try_start(&[&request])
            .err()
            .unwrap_or_else(|| panic!("{request} was granted"));
        assert!(why.contains("eth0") && why.contains("Invalid argument"), "{why}");
        assert_eq!(ethtool::get("eth0").unwrap(), before);
    }
}

fn steered() {
    connect();
    let before = ethtool::get("eth0").unwrap();
    let mut scene = Scene::new();
    for us in DELAYS_US {
        let wanted = Setting::Coalescing(NicId(0), Coalescing::Delay(Nanos::from_micros(us)));
        assert_eq!(scene.set(wanted).got, ApplyOutcome::Done);
        assert_eq!(ethtool::get("eth0").unwrap().rx_us.map(u64::from), Some(us));
    }
    drop(scene);
    assert_eq!(ethtool::get("eth0").unwrap(), before);
}
