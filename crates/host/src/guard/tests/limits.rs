//! Limits of units whose systemd is busy when they are restored.

use super::*;
use crate::apps::Forks;
use crate::drivers::systemd::testing::FakeSystemd;
use crate::drivers::systemd::{UnitProperty, UnitState, UnitValue};

const WEB: &str = "web.service";
const WEIGHT: UnitProperty = UnitProperty::CpuWeight;

/// A limit of a unit that an agent has in its ledger and has set.
struct HeldLimit {
    scene: Scene,
    fake: FakeSystemd,
    roots: Roots,
    ledger: Ledger,
}

impl HeldLimit {
    fn new() -> Self {
        let (scene, fake) = (Scene::new(), FakeSystemd::start());
        let [before, ours] = [200, 50].map(UnitValue::Number);
        fake.put(WEB, WEIGHT, &before);
        let limit = UnitState {
            unit: WEB.to_owned(),
            property: WEIGHT,
            before,
            ours: ours.clone(),
            drop_in: None,
        };
        let roots = Roots { run: fake.run().to_owned(), ..Roots::default() };
        let mut ledger = Ledger::open(scene.dir(), &roots).unwrap().ledger;
        ledger.record(&[Original::Unit(limit)]).unwrap();
        fake.set_property(WEB, WEIGHT, &ours);
        Self { scene, fake, roots, ledger }
    }

    fn has_drop_in(&self) -> bool {
        self.fake.drop_in(WEB, WEIGHT).exists()
    }

    fn weight(&self) -> UnitValue {
        self.fake.value(WEB, WEIGHT)
    }

    /// Restores the ledger as the guard does.
    fn recover(&self, patience: Duration) -> Restoration {
        let (mut file, lines) = LedgerFile::existing(&self.scene.dir()).unwrap().unwrap();
        let clock = Clock::read(&self.roots).unwrap();
        let (forks, roots) = (Forks::default(), &self.roots);
        let recovery =
            recovery::put_all_back(&mut file, &lines, &forks, roots, &clock, patience).unwrap();
        match recovery.unwrap().how {
            RecoveryAction::Now(restoration) => restoration,
            other => panic!("{other:?}"),
        }
    }

    fn is_closed(&self) -> bool {
        LedgerFile::existing(&self.scene.dir()).unwrap().unwrap().1.is_closed()
    }
}

#[test]
fn a_limit_that_fails_is_in_the_ledger_still_and_without_its_drop_in() {
    let held = HeldLimit::new();
    held.fake.hang_up(1);
    let restored = held.ledger.restore();
    assert_eq!((restored.failed.len(), restored.done), (1, 0), "{restored}");
    assert!(!held.has_drop_in(), "the drop-in needs no systemd");
    assert_eq!(held.weight(), UnitValue::Number(50));
    assert!(!held.is_closed());
    let restored = held.ledger.restore();
    assert_eq!((restored.failed.len(), restored.done), (0, 1), "{restored}");
    assert_eq!(held.weight(), UnitValue::Number(200));
    assert!(!held.has_drop_in());
}

#[test]
fn a_guard_restores_a_limit_as_soon_as_systemd_answers_and_then_closes_the_ledger() {
    let held = HeldLimit::new();
    held.fake.hang_up(2);
    let restored = held.recover(Duration::from_secs(600));
    assert_eq!((restored.failed.len(), restored.done), (0, 1), "{restored}");
    assert_eq!(held.weight(), UnitValue::Number(200));
    assert!(held.is_closed() && !held.has_drop_in());
}

#[test]
fn a_guard_that_gives_up_reports_the_limit_and_closes_the_ledger() {
    let held = HeldLimit::new();
    held.fake.hang_up(usize::MAX);
    let restored = held.recover(Duration::ZERO);
    assert_eq!(restored.failed.len(), 1, "{restored}");
    assert!(restored.to_string().contains("CPUWeight of web.service is not as before"));
    assert!(held.is_closed() && !held.has_drop_in());
}
