//! A policy that decides on a thread of its own and within a time limit.
//!
//! For policies of the library's callers, whose code may fail or never return. The thread that
//! runs the epochs waits for a decision as long as the limit allows; afterwards the policy is at
//! fault ([`Policy::fault`]) until it has returned and decides in time again. A thread that never
//! returns stays until the process ends; with [`THREADS_MAX`] of them the policy is not built
//! again.

use lull_control::{AppSpec, Machine, Observation, Plan, Policy, PolicyError, Rng, Setting};
use lull_lab::CustomPolicy;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long a policy may take to be built. With a decision it is shorter than the guard waits
/// for a beat, because a policy may be built again between two epochs.
const START_LIMIT: Duration = Duration::from_secs(3);

/// The longest limit of a decision, for the same reason.
const LIMIT_MAX: Duration = Duration::from_secs(1);
/// Most threads of a policy at a time: all but the last one have not returned.
const THREADS_MAX: u32 = 4;

/// Returns the policy with each decision limited to `limit`, at most [`LIMIT_MAX`].
pub(crate) fn limited(policy: &CustomPolicy, limit: Duration) -> CustomPolicy {
    let (inner, limit) = (policy.clone(), limit.min(LIMIT_MAX));
    let threads = Arc::new(AtomicU32::new(0));
    CustomPolicy::new(policy.name(), move |machine, apps| {
        let target = (machine.clone(), apps.to_vec());
        let started = LimitedPolicy::start(&inner, target, limit, &threads);
        started.map(|policy| Box::new(policy) as Box<dyn Policy>)
    })
}

/// A policy on a thread of its own.
struct LimitedPolicy {
    name: String,
    limit: Duration,
    requests: Sender<Request>,
    answers: Receiver<Answer>,
    /// When the policy got the observation on which it has not decided yet.
    busy_since: Option<Instant>,
    fault: Option<String>,
}

/// One of the threads of a policy, counted until it ends.
struct Counted(Arc<AtomicU32>);

impl Counted {
    /// Counts one more, unless there are [`THREADS_MAX`].
    fn new(threads: &Arc<AtomicU32>) -> Option<Self> {
        let more = |count| (count < THREADS_MAX).then_some(count + 1);
        let counted = threads.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        counted.ok().map(|_| Self(Arc::clone(threads)))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A request to the thread of a policy.
enum Request {
    Decide(Box<Observation>, Rng),
    Refused(Vec<(Setting, String)>),
}

/// A decision, and the generator after it.
struct Answer {
    plan: Plan,
    fault: Option<String>,
    rng: Rng,
}

impl LimitedPolicy {
    /// Builds the policy on its thread.
    fn start(
        policy: &CustomPolicy,
        target: (Machine, Vec<AppSpec>),
        limit: Duration,
        threads: &Arc<AtomicU32>,
    ) -> Result<Self, PolicyError> {
        let (requests, orders) = channel();
        let (sender, answers) = channel();
        let (built, is_built) = channel();
        let (name, policy) = (policy.name().to_owned(), policy.clone());
        let failed = |message: String| PolicyError::Config { key: String::new(), message };
        let no_thread = |error: io::Error| failed(format!("`{name}` has no thread: {error}"));
        let Some(counted) = Counted::new(threads) else {
            let message = format!("{THREADS_MAX} threads of `{name}` have not returned");
            return Err(failed(message));
        };
        let work = move || {
            let _counted = counted;
            match policy.build(&target.0, &target.1) {
                Ok(policy) => {
                    let _ = built.send(Ok(()));
                    serve(policy, &orders, &sender);
                }
                Err(error) => {
                    let _ = built.send(Err(error));
                }
            }
        };
        thread::Builder::new().name("lull-policy".to_owned()).spawn(work).map_err(no_thread)?;
        match is_built.recv_timeout(START_LIMIT) {
            Ok(built) => built?,
            Err(RecvTimeoutError::Timeout) => {
                let waited = START_LIMIT.as_secs();
                let message = format!("`{name}` is not ready {waited} s after its start");
                return Err(failed(message));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(failed(format!("`{name}` panicked when it was built")));
            }
        }
        Ok(Self { name, limit, requests, answers, busy_since: None, fault: None })
    }

    fn ask(&mut self, seen: &Observation, rng: &mut Rng) -> Result<Plan, String> {
        let ended = || format!("policy `{}` has panicked", self.name);
        if let Some(since) = self.busy_since {
            match self.answers.try_recv() {
                // A decision on an observation of the past, which must not be applied any more.
                Ok(_) => self.busy_since = None,
                Err(TryRecvError::Empty) => {
                    let busy_s = since.elapsed().as_secs_f64();
                    return Err(format!(
                        "policy `{}` has not returned for {busy_s:.1} s",
                        self.name
                    ));
                }
                Err(TryRecvError::Disconnected) => return Err(ended()),
            }
        }
        let request = Request::Decide(Box::new(seen.clone()), rng.clone());
        self.requests.send(request).map_err(|_| ended())?;
        let begun = Instant::now();
        match self.answers.recv_timeout(self.limit) {
            Ok(answer) => {
                *rng = answer.rng;
                answer.fault.map_or(Ok(answer.plan), Err)
            }
            Err(RecvTimeoutError::Timeout) => {
                self.busy_since = Some(begun);
                let limit_s = self.limit.as_secs_f64();
                Err(format!("policy `{}` did not decide within {limit_s} s", self.name))
            }
            Err(RecvTimeoutError::Disconnected) => Err(ended()),
        }
    }
}

impl Policy for LimitedPolicy {
    fn decide(&mut self, seen: &Observation, rng: &mut Rng) -> Plan {
        let decided = self.ask(seen, rng);
        self.fault = decided.as_ref().err().cloned();
        decided.unwrap_or_default()
    }

    fn fault(&self) -> Option<String> {
        self.fault.clone()
    }

    fn refused(&mut self, refused: &[(Setting, String)]) {
        if self.busy_since.is_none() {
            // A thread that has ended is reported by the next decision.
            let _ = self.requests.send(Request::Refused(refused.to_vec()));
        }
    }
}

/// Answers requests until the other side is dropped.
fn serve(mut policy: Box<dyn Policy>, requests: &Receiver<Request>, answers: &Sender<Answer>) {
    for request in requests {
        match request {
            Request::Decide(seen, mut rng) => {
                let plan = policy.decide(&seen, &mut rng);
                let answer = Answer { plan, fault: policy.fault(), rng };
                if answers.send(answer).is_err() {
                    return;
                }
            }
            Request::Refused(refused) => policy.refused(&refused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::conformance::{MemoryApp, MemoryPlant};
    use lull_control::journal::Event;
    use lull_control::{
        AppId, AppSpec, ControlLoop, Controller, CoreSet, Epoch, Plant, Reason, Rules,
    };
    use lull_measure::Nanos;
    use rand::SeedableRng;
    use std::sync::Mutex;

    /// Wants one core, after it has waited for an act of the test or the end of the sender.
    struct Obeys(Receiver<Act>);

    enum Act {
        Panic,
    }

    impl Policy for Obeys {
        fn decide(&mut self, _: &Observation, _: &mut Rng) -> Plan {
            match self.0.recv() {
                // Without the hook, which may take longer than the limit to print a backtrace.
                Ok(Act::Panic) => std::panic::resume_unwind(Box::new("a policy that panics")),
                _ => {
                    let mut plan = Plan::keep();
                    plan.set(Setting::Cores(AppId(0), CoreSet::first(1)), Reason::Fixed);
                    plan
                }
            }
        }
    }

    fn control(limit: Duration) -> (Sender<Act>, ControlLoop<MemoryPlant>) {
        let app = MemoryApp {
            spec: AppSpec::best_effort("be"),
            demand_cores: 1.0,
            service: Nanos::from_millis(1),
            threads: 4,
        };
        let plant = MemoryPlant::new(4, vec![app]);
        let (acts, receiver) = channel();
        let receiver = Mutex::new(Some(receiver));
        let policy = CustomPolicy::new("obeys", move |_, _| {
            let acts = receiver.lock().unwrap().take().unwrap();
            Ok(Box::new(Obeys(acts)))
        });
        let policy = limited(&policy, limit).build(plant.machine(), plant.apps()).unwrap();
        let controller = Controller::new(policy, Rules::default(), &plant).unwrap();
        let rng = Rng::seed_from_u64(1);
        (acts, ControlLoop::new(plant, controller, Nanos::from_millis(100), rng))
    }

    fn cause(epoch: &Epoch) -> Option<&str> {
        epoch.entries.iter().find_map(|entry| match &entry.event {
            Event::SafeBegins { cause } => Some(cause.as_str()),
            _ => None,
        })
    }

    #[test]
    fn a_policy_that_does_not_return_is_replaced_by_the_safe_state_until_it_does() {
        let (acts, mut control) = control(Duration::from_millis(20));
        let late = control.turn().unwrap();
        assert!(late.safe);
        assert_eq!(cause(&late), Some("policy `obeys` did not decide within 0.02 s"));
        let still = control.turn().unwrap();
        assert!(still.safe && cause(&still).is_none(), "the journal has it once");
        // From here on it returns immediately: the decision on the first observation is discarded.
        drop(acts);
        let again = std::iter::from_fn(|| Some(control.turn().unwrap()));
        let followed = again.skip_while(|epoch| epoch.safe).find(|epoch| !epoch.safe).unwrap();
        assert!(followed.entries.iter().any(|entry| entry.event == Event::SafeEnds));
        let wanted = Setting::Cores(AppId(0), CoreSet::first(1));
        assert_eq!(control.controller().state().get(&wanted.knob()), Some(&wanted));
    }

    #[test]
    fn threads_that_do_not_return_are_bounded() {
        let (end, waits) = channel::<()>();
        let waits = Arc::new(Mutex::new(waits));
        let policy = CustomPolicy::new("hangs", move |_, _| {
            let _ = waits.lock().unwrap().recv();
            Err(PolicyError::Config { key: String::new(), message: "ended".to_owned() })
        });
        let threads = Arc::new(AtomicU32::new(0));
        let held: Vec<_> = (0..THREADS_MAX).map(|_| Counted::new(&threads).unwrap()).collect();
        let target = (MemoryPlant::new(1, Vec::new()).machine().clone(), Vec::new());
        let start = || {
            let limit = Duration::from_secs(1);
            LimitedPolicy::start(&policy, target.clone(), limit, &threads).err().unwrap()
        };
        assert_eq!(start().to_string(), "4 threads of `hangs` have not returned");
        drop((held, end));
        assert_eq!(start().to_string(), "ended", "threads that have returned count no more");
    }

    #[test]
    fn a_policy_that_panics_is_replaced_by_the_safe_state() {
        let (acts, mut control) = control(Duration::from_secs(60));
        acts.send(Act::Panic).unwrap();
        let epoch = control.turn().unwrap();
        assert_eq!(cause(&epoch), Some("policy `obeys` has panicked"));
        assert!(control.turn().unwrap().safe);
    }

    #[test]
    fn a_policy_that_cannot_be_built_is_reported_with_its_own_words() {
        let policy = CustomPolicy::new("never", |_, _| {
            Err(PolicyError::Config { key: String::new(), message: "no weights".to_owned() })
        });
        let plant = MemoryPlant::new(1, Vec::new());
        let built = limited(&policy, Duration::from_secs(1)).build(plant.machine(), &[]);
        assert_eq!(built.err().unwrap().to_string(), "no weights");
    }
}
