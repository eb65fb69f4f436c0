//! Dispatching of the options server's requests to cores.

use lull_marks::Dispatch;
use lull_measure::Nanos;
use lull_workload::apps::options::RequestHook;

/// Number of workers under a dispatcher, where each request that waits for a core occupies one.
pub const WORKERS: usize = 32;

/// Marks each request of the server.
pub struct DispatchMarks(pub Dispatch);

impl RequestHook for DispatchMarks {
    fn around(&self, age: Nanos, work: &mut dyn FnMut()) {
        let _mark = self.0.begin(age);
        work();
    }
}
