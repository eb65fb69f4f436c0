//! An objective on memory pressure, for a unit that the kernel really makes wait for memory.

use super::machine::{
    ALL, CONFIG, RECORDS, cores_of, log_of, remove_unit, settle, start_apps, systemctl, write_unit,
};
use crate::scene::{read, wait_for};
use std::fs;

/// Takes and returns 16 MB five times a second.
const HOG: &str = "[Service]\nExecStart=/bin/sh -c 'while sleep 0.2; do dd if=/dev/zero \
                   of=/dev/null bs=16M count=1 status=none; done'\n";
const PRESSURE: &str = "/sys/fs/cgroup/system.slice/hog.service/memory.pressure";

fn config() -> String {
    format!(
        "[agent]\nepoch = \"500ms\"\nrecord = \"{RECORDS}\"\nstate = \"/run/lull\"\n\
         [policy]\nname = \"tide\"\n\
         [[app]]\nname = \"hog\"\nclass = \"latency-critical\"\nunit = \"hog.service\"\n\
         objectives = [{{ memory_pressure = \"2%\" }}]\n\
         [[app]]\nname = \"web\"\nclass = \"best-effort\"\nsolo = 1.0\n\
         unit = \"web.service\"\n"
    )
}

/// The unit has no pressure while it may take what it wants, and `tide` leaves all cores to
/// best effort; under `MemoryHigh` the kernel makes it wait, and cores are withdrawn.
pub(super) fn steers() {
    settle();
    write_unit("hog.service", HOG);
    systemctl(&["start", "hog.service"]);
    start_apps();
    fs::write(CONFIG, config()).unwrap();
    systemctl(&["restart", "lull"]);
    // The policy begins with one core for best effort and raises that while there is slack.
    wait_for("all cores for best effort", || cores_of("web.service") == ALL);
    let total = || {
        let text = read(PRESSURE);
        let total = text.lines().next().unwrap().rsplit_once("total=").unwrap().1;
        total.parse::<u64>().unwrap()
    };
    let before = total();
    systemctl(&["set-property", "--runtime", "hog.service", "MemoryHigh=4M"]);
    wait_for("half a second of waits for memory", || total() > before + 500_000);
    wait_for(&format!("a core for the unit: {}", log_of("lull")), || {
        cores_of("web.service") != ALL
    });
    systemctl(&["stop", "hog.service"]);
    systemctl(&["revert", "hog.service"]);
    remove_unit("hog.service");
    // Other apps take a new agent.
    systemctl(&["stop", "lull"]);
    settle();
}
