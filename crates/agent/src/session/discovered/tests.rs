//! Workloads that come and go, and what is reported to them.

use super::*;
use lull_control::journal::Decision;
use lull_control::{ApplyOutcome, ForeignChange, Outcome, Reason, Scheduling, Setting};
use lull_measure::Nanos;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};

/// Returns these findings once, and passes reports on.
struct Found(Vec<Finding>, Option<Sender<Vec<Report>>>);

impl Discovery for Found {
    fn poll(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.0)
    }

    fn report(&mut self, reports: Vec<Report>) {
        if let Some(to) = &self.1 {
            to.send(reports).unwrap();
        }
    }

    fn silence(&self) -> Nanos {
        Nanos::ZERO
    }

    fn wakes(&self) -> Option<OwnedFd> {
        None
    }
}

fn workload(id: u64) -> Workload {
    Workload {
        id,
        name: format!("pod {id}"),
        template: 0,
        cgroup: PathBuf::from(format!("kubepods/{id}")),
        cores: None,
        objectives: None,
        pod: None,
    }
}

/// A discovery with so many slots that returns these findings.
fn discovered(slots: usize, found: Vec<Finding>) -> Discovered {
    Discovered {
        discovery: Box::new(Found(found, None)),
        templates: BTreeMap::from([(0, (0, CgroupSlots::new("pod", slots)))]),
        placed: BTreeMap::new(),
        waiting: BTreeMap::new(),
        later: Vec::new(),
        reports: Vec::new(),
        entries: Vec::new(),
        safe_cause: None,
    }
}

#[test]
fn a_workload_that_waits_for_a_berth_is_reported_once() {
    let found = [1, 2].map(|id| Finding::Present(workload(id)));
    let mut discovered = discovered(1, found.into());
    assert_eq!(discovered.poll().len(), 1);
    let text = "pod 2 is not managed: all 1 apps of its [[match]] are taken: raise `most`";
    assert_eq!(std::mem::take(&mut discovered.entries), [text]);
    let mut changed = Changed::new();
    for _ in 0..3 {
        assert!(discovered.poll().is_empty());
        discovered.accept(workload(2), &mut changed);
    }
    assert!(changed.is_empty() && discovered.entries.is_empty(), "{:?}", discovered.entries);
    discovered.remove(1, &mut changed);
    assert_eq!(discovered.poll().len(), 1, "it has the slot that has become free");
    assert!(discovered.placed.contains_key(&2) && discovered.waiting.is_empty());
}

#[test]
fn only_new_workloads_are_taken_in_while_an_epoch_lasts() {
    let present = |id| Finding::Present(workload(id));
    let mut discovered = discovered(2, vec![present(1)]);
    assert_eq!(discovered.poll_arrivals().len(), 1);
    let objectives = Some(vec![Objective::Throughput { floor_per_s: 1.0 }]);
    let other = Finding::Present(Workload { objectives, ..workload(1) });
    // The last one comes back, and one finds no slot before the first is gone.
    let found = [other, Finding::Gone(1), present(2), Finding::Gone(2), present(2), present(3)];
    discovered.discovery = Box::new(Found(found.into(), None));
    assert_eq!(discovered.poll_arrivals().into_keys().collect::<Vec<_>>(), [AppId(1)]);
    assert!(discovered.placed.contains_key(&1), "it has its slot until the epoch ends");
    let slots = discovered.templates[&0].1.clone();
    assert!(!slots.is_looked_for(0) && slots.is_full(), "nothing is looked for any longer");
    assert!(discovered.waiting.is_empty() && discovered.entries.is_empty());
    discovered.poll();
    let placed: Vec<u64> = discovered.placed.keys().copied().collect();
    assert_eq!((placed, discovered.later.len()), (vec![2, 3], 0));
    assert!(slots.is_looked_for(0) && slots.is_looked_for(1));
    assert!(discovered.waiting.is_empty());
}

#[test]
fn the_cores_are_those_that_all_workloads_may_use() {
    let on =
        |id, cores: &str| Finding::Present(Workload { cores: cores.parse().ok(), ..workload(id) });
    let (mut discovered, mut pool) = (discovered(3, Vec::new()), None);
    let mut cores_after = |found: Vec<Finding>| {
        discovered.discovery = Box::new(Found(found, None));
        let others = discovered.poll();
        pool = discovered.shared_cores(pool.as_ref());
        (others.len(), pool.as_ref().map(ToString::to_string))
    };
    assert_eq!(cores_after(vec![Finding::Present(workload(1))]), (1, None));
    assert_eq!(cores_after(vec![on(2, "0-5")]), (1, Some("0-5".to_owned())));
    // The kubelet changes one after the other.
    assert_eq!(cores_after(vec![on(1, "0-3")]), (0, Some("0-3".to_owned())));
    assert_eq!(cores_after(vec![on(2, "0-3")]), (0, Some("0-3".to_owned())));
    assert_eq!(cores_after(vec![on(1, "4-5")]), (0, Some("0-3".to_owned())), "none is left");
    assert_eq!(cores_after(vec![on(2, "4-5")]), (0, Some("4-5".to_owned())));
    let gone = [1, 2].map(Finding::Gone);
    assert_eq!(cores_after(gone.into()), (2, Some("4-5".to_owned())), "no pod shows the pool");
    let all = [3, 4].map(|id| Finding::Present(workload(id)));
    assert_eq!(cores_after(all.into()), (2, None), "they may use all cores again");
}

#[test]
fn a_workload_hears_of_the_safe_state_and_of_its_own_knobs() {
    let mut discovered = discovered(2, [1, 2].map(|id| Finding::Present(workload(id))).into());
    discovered.poll();
    let (reports, received) = channel();
    discovered.discovery = Box::new(Found(Vec::new(), Some(reports)));
    let classes = [Scheduling::Idle, Scheduling::Normal { nice: 0 }];
    let [ours, found] = classes.map(|class| Setting::Scheduling(AppId(1), class));
    let wanted = Setting::Scheduling(AppId(0), Scheduling::Idle);
    let whom = "thread 7 of pod-2".to_owned();
    let change = ForeignChange { knob: ours.knob(), ours, found, whom };
    let got = ApplyOutcome::Refused { why: "no right".to_owned() };
    let decision = Decision {
        from: None,
        reason: Reason::Start,
        outcome: Outcome { wanted: wanted.clone(), got },
        limit: None,
        expected: None,
    };
    let safe = || Event::SafeBegins { cause: "no latency".to_owned() };
    // A safe state that lasts is reported when it begins.
    let foreign = Event::Foreign { change, yielded: true };
    let events = [safe(), safe(), foreign, Event::Decision(decision), Event::SafeEnds, safe()];
    let entries = events.map(|event| Entry { time: Nanos::ZERO, event });
    discovered.report_epoch(&entries);
    assert!(received.try_recv().is_err(), "all are passed on at once");
    discovered.pass_reports();
    let report = |workload, kind, text: &str| Report { workload, kind, text: text.to_owned() };
    let of_safe = [1, 2].map(|id| report(id, ReportKind::SafeState, "no latency"));
    let refused = format!("{wanted} was refused: no right");
    let own = [
        report(2, ReportKind::ForeignWriter, "thread 7 of pod-2 was changed by another program"),
        report(1, ReportKind::KnobRefused, &refused),
    ];
    let expected = [&of_safe[..], &own, &of_safe].concat();
    assert_eq!(received.try_iter().collect::<Vec<_>>(), [expected]);
    // A workload that arrives while it lasts hears of it as well.
    let managed = report(3, ReportKind::Managed, "as app `pod-3`");
    discovered.report_managed(&workload(3), "pod-3");
    let expected = [managed.clone(), report(3, ReportKind::SafeState, "no latency")];
    assert_eq!(std::mem::take(&mut discovered.reports), expected);
    discovered.report_epoch(&[Entry { time: Nanos::ZERO, event: Event::SafeEnds }]);
    discovered.report_managed(&workload(3), "pod-3");
    assert_eq!(discovered.reports, [managed]);
}
