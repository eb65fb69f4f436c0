//! The options server's requests, each placed on a core.

use lull_marks::Dispatch;
use lull_measure::Nanos;
use lull_workload::apps::options::Around;

/// Workers where requests are placed: those that wait for a core hold one each.
pub const WORKERS: usize = 32;

/// Marks each request of the server.
pub struct Placed(pub Dispatch);

impl Around for Placed {
    fn around(&self, age: Nanos, work: &mut dyn FnMut()) {
        let _mark = self.0.begin(age);
        work();
    }
}
