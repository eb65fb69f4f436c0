//! Admission controllers that run beside a control loop, with one thread for each gate.

use super::{AdmissionSetup, LiveAdmission};
use lull_control::PolicyError;
use lull_host::oncall::Runtime;
use lull_oncall::{Mode, Settings};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// The admission controllers to start: the app's name, the configuration, and the app's page.
pub type AdmissionSetups = Vec<(String, AdmissionSetup, Arc<Runtime>)>;

/// A change of gate settings by an admission controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The app whose gate it is.
    pub app: String,
    /// The admission controller.
    pub admission: String,
    /// A description of the new gate settings.
    pub gate: String,
    /// The last decision with its evidence, which may be older; `None` before the first one.
    pub decision: Option<String>,
}

/// An order to all admission controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Stop deciding; gates keep their settings, but for what a comparison tries.
    Pause,
    /// Stop deciding and open the gates.
    Open,
    /// Decide again.
    Resume,
    /// A knob of the machine was set, an app arrived or departed, or another gate has a setting by
    /// a decision.
    MachineChanged,
}

/// The channels of the orders to all threads. A thread ends when its channel is closed.
#[derive(Debug, Clone, Default)]
struct Channels(Arc<Mutex<Vec<Sender<Order>>>>);

impl Channels {
    fn lock(&self) -> MutexGuard<'_, Vec<Sender<Order>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an order to all threads but one.
    fn order_others(&self, order: Order, own: Option<usize>) {
        let channels = self.lock();
        for (_, channel) in channels.iter().enumerate().filter(|(at, _)| Some(*at) != own) {
            // Sending fails only if the thread panicked, and then its gate is open.
            let _ = channel.send(order);
        }
    }
}

/// All admission controllers of a run. Dropping this opens their gates.
#[derive(Debug)]
pub struct Threads {
    /// Each thread, and whether its gate is being surveyed.
    all: Vec<(JoinHandle<()>, Arc<AtomicBool>)>,
    channels: Channels,
    changes: Receiver<Changed>,
    sender: Sender<Changed>,
}

impl Default for Threads {
    /// Returns a set without any controller.
    fn default() -> Self {
        let (sender, changes) = channel();
        Self { all: Vec::new(), channels: Channels::default(), changes, sender }
    }
}

impl Threads {
    /// Starts an admission controller at the gate of an app.
    ///
    /// # Errors
    /// As [`AdmissionSetup::admission`].
    pub fn start(
        &mut self,
        app: &str,
        setup: &AdmissionSetup,
        runtime: Arc<Runtime>,
    ) -> Result<(), PolicyError> {
        let admission = LiveAdmission::new(setup, Arc::clone(&runtime))?;
        self.spawn(app, admission, runtime);
        Ok(())
    }

    fn spawn(&mut self, app: &str, admission: LiveAdmission, runtime: Arc<Runtime>) {
        let (orders, orders_out) = channel();
        let (app, sender) = (app.to_owned(), self.sender.clone());
        let (channels, own) = (self.channels.clone(), self.all.len());
        let surveyed = Arc::new(AtomicBool::new(false));
        let is_surveyed = Arc::clone(&surveyed);
        self.channels.lock().push(orders);
        let thread = std::thread::spawn(move || {
            // The guard opens the gate and ends its survey even if the controller panics.
            let gate = OpenOnDrop { runtime, surveyed };
            run_admission(admission, &gate.runtime, &orders_out, |step| {
                gate.surveyed.store(step.is_surveyed, Ordering::Relaxed);
                if step.has_moved {
                    channels.order_others(Order::MachineChanged, Some(own));
                }
                let Some(gate) = step.gate else { return };
                let (app, admission) = (app.clone(), step.admission.to_owned());
                let decision = step.decision.map(str::to_owned);
                // The receiver may be closed already because the run ends.
                let _ = sender.send(Changed { app, admission, gate, decision });
            });
        });
        self.all.push((thread, is_surveyed));
    }

    /// Sends an order to all admission controllers.
    pub fn order(&self, order: Order) {
        self.channels.order_others(order, None);
    }

    /// Returns whether a gate is being surveyed, so that no knob should change.
    pub fn is_surveyed(&self) -> bool {
        self.all.iter().any(|(_, is_surveyed)| is_surveyed.load(Ordering::Relaxed))
    }

    /// Returns the changes since the last call.
    pub fn take_changes(&self) -> Vec<Changed> {
        self.changes.try_iter().collect()
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.channels.lock().clear();
        for (thread, _) in self.all.drain(..) {
            // A thread that panicked has already printed its message.
            let _ = thread.join();
        }
    }
}

/// The decision of a controller at one call.
struct Step<'a> {
    /// Its name.
    admission: &'a str,
    /// Its last decision with the evidence.
    decision: Option<&'a str>,
    /// A description of new settings of the gate.
    gate: Option<String>,
    /// Whether the gate moved outside of a comparison.
    has_moved: bool,
    is_surveyed: bool,
}

impl<'a> Step<'a> {
    fn new(admission: &'a mut LiveAdmission, gate: Option<String>) -> Self {
        let (has_moved, is_surveyed) = (admission.take_has_moved(), admission.is_surveyed());
        let decision = admission.decision();
        Self { admission: admission.name(), decision, gate, has_moved, is_surveyed }
    }
}

/// Decides until the channel of orders is closed.
fn run_admission(
    mut admission: LiveAdmission,
    runtime: &Runtime,
    orders: &Receiver<Order>,
    report: impl Fn(Step<'_>),
) {
    let mut is_paused = false;
    loop {
        let gate = if is_paused { None } else { admission.poll() };
        report(Step::new(&mut admission, gate));
        let wait = admission.next().saturating_duration_since(Instant::now());
        let order = match is_paused {
            true => orders.recv().map_err(RecvTimeoutError::from),
            false => orders.recv_timeout(wait),
        };
        match order {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(Order::Pause) if is_paused => {}
            Ok(Order::Pause) => {
                is_paused = true;
                let gate = admission.pause();
                report(Step::new(&mut admission, gate));
            }
            Ok(Order::Open) => {
                is_paused = true;
                admission.end_survey_turn();
                open(runtime);
            }
            Ok(Order::MachineChanged) => admission.machine_changed(),
            Ok(Order::Resume) if is_paused => {
                is_paused = false;
                admission.skip();
            }
            Ok(Order::Resume) => {}
        }
    }
}

fn open(runtime: &Runtime) {
    runtime.set(&Settings { mode: Mode::Stats, ..runtime.settings() });
}

/// A guard that opens a gate when it is dropped, so that no gate stays closed, or counts as being
/// surveyed, without an admission controller.
struct OpenOnDrop {
    runtime: Arc<Runtime>,
    surveyed: Arc<AtomicBool>,
}

impl Drop for OpenOnDrop {
    fn drop(&mut self) {
        open(&self.runtime);
        self.surveyed.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::turn::SurveyTurn;
    use super::*;
    use lull_control::admission::{Admission, GateObservation, Pace, RoundLimits};
    use lull_host::Roots;
    use lull_host::oncall::Rules;
    use lull_measure::Nanos;
    use lull_policies::admission::Workers;
    use std::cell::RefCell;
    use std::time::Duration;

    fn manual() -> AdmissionSetup {
        AdmissionSetup {
            name: "manual".to_owned(),
            keys: "cap = 3".parse().unwrap(),
            closed: Settings { mode: Mode::Post, ..Settings::default() },
            workers: Workers::Wait,
            objectives: Vec::new(),
            promises: Vec::new(),
            seed: 1,
        }
    }

    #[test]
    fn a_gate_is_closed_while_its_admission_controller_lives_and_no_longer() {
        let open = Settings { mode: Mode::Stats, ..Settings::default() };
        let runtime = Arc::new(Runtime::start(&open, &Rules::default()).unwrap());
        let mut threads = Threads::default();
        threads.start("db", &manual(), Arc::clone(&runtime)).unwrap();
        let next = || threads.changes.recv_timeout(Duration::from_secs(60)).unwrap();
        let changed = next();
        assert_eq!((changed.app.as_str(), changed.admission.as_str()), ("db", "manual"));
        assert!(changed.gate.starts_with("3 transactions at a time"), "{}", changed.gate);
        assert_eq!((runtime.settings().mode, runtime.settings().cap), (Mode::Post, 3));
        assert_eq!(threads.take_changes(), []);
        // Orders are processed in sequence, so the last change implies all earlier ones.
        threads.order(Order::Open);
        threads.order(Order::Resume);
        assert_eq!(next(), changed, "it was open in between");
        drop(threads);
        assert_eq!(runtime.settings().mode, Mode::Stats);
    }

    #[test]
    fn a_gate_that_moves_notifies_all_others_and_not_itself() {
        let channels = Channels::default();
        let receivers = [(); 3].map(|()| {
            let (orders, orders_out) = channel();
            channels.lock().push(orders);
            orders_out
        });
        channels.order_others(Order::MachineChanged, Some(1));
        let received = receivers.each_ref().map(|orders| orders.try_iter().collect::<Vec<_>>());
        assert_eq!(received, [vec![Order::MachineChanged], vec![], vec![Order::MachineChanged]]);
    }

    /// A controller that tries a limit of 3 beside one of 9 while it may.
    struct TwoLimits(bool);

    impl Admission for TwoLimits {
        fn decide(&mut self, _: &GateObservation<'_>, limits: &mut RoundLimits) {
            limits.cap = if self.0 { 3 } else { 9 };
            limits.pace = Pace::Flow { again: Nanos::from_millis(100) };
        }

        fn wants_survey(&self) -> bool {
            true
        }

        fn allow_survey(&mut self, is_allowed: bool) {
            self.0 = is_allowed;
        }
    }

    #[test]
    fn a_pause_ends_what_a_comparison_tries() {
        let open = Settings { mode: Mode::Stats, ..Settings::default() };
        let runtime = Arc::new(Runtime::start(&open, &Rules::default()).unwrap());
        let mut live = LiveAdmission::new(&manual(), Arc::clone(&runtime)).unwrap();
        let tree = tempfile::tempdir().unwrap();
        live.survey_turn = SurveyTurn::new(&Roots::under(tree.path()));
        live.admission = Box::new(TwoLimits(false));
        let (orders, orders_out) = channel();
        orders.send(Order::Pause).unwrap();
        orders.send(Order::Pause).unwrap();
        drop(orders);
        let steps = RefCell::new(Vec::new());
        run_admission(live, &runtime, &orders_out, |step| {
            steps.borrow_mut().extend(step.gate.map(|gate| (gate, step.is_surveyed)));
        });
        let all = steps.into_inner();
        let [(tried, true), (left, false)] = all.as_slice() else { panic!("{all:?}") };
        assert!(tried.starts_with("3 transactions") && left.starts_with("9 transactions"));
        assert_eq!((runtime.settings().mode, runtime.settings().cap), (Mode::Post, 9));
    }

    /// A controller that compares settings once and then fails.
    struct Failing(bool);

    impl Admission for Failing {
        fn decide(&mut self, _: &GateObservation<'_>, limits: &mut RoundLimits) {
            assert!(!std::mem::replace(&mut self.0, true), "the second decision fails");
            limits.cap = 3;
            limits.pace = Pace::Flow { again: Nanos::from_millis(1) };
        }

        fn wants_survey(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_controller_that_panics_during_its_survey_leaves_the_gate_open_and_not_surveyed() {
        let open = Settings { mode: Mode::Stats, ..Settings::default() };
        let runtime = Arc::new(Runtime::start(&open, &Rules::default()).unwrap());
        let mut live = LiveAdmission::new(&manual(), Arc::clone(&runtime)).unwrap();
        let tree = tempfile::tempdir().unwrap();
        live.survey_turn = SurveyTurn::new(&Roots::under(tree.path()));
        live.admission = Box::new(Failing(false));
        let mut threads = Threads::default();
        threads.spawn("db", live, Arc::clone(&runtime));
        threads.changes.recv_timeout(Duration::from_secs(60)).unwrap();
        while !threads.all[0].0.is_finished() {
            std::thread::yield_now();
        }
        assert!(!threads.is_surveyed());
        assert_eq!(runtime.settings().mode, Mode::Stats);
    }

    #[test]
    fn an_admission_controller_that_cannot_be_had_leaves_the_gate_alone() {
        let closed = Settings { mode: Mode::Post, ..Settings::default() };
        let runtime = Arc::new(Runtime::start(&closed, &Rules::default()).unwrap());
        let setup = AdmissionSetup { name: "pslo".to_owned(), ..manual() };
        assert!(Threads::default().start("db", &setup, Arc::clone(&runtime)).is_err());
        assert_eq!(runtime.settings().mode, Mode::Post);
    }
}
