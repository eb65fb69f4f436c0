//! ThreadSanitizer in the preloaded library, inside a threaded server that is built without it.
//!
//! `cargo xtask tsan` builds the library with nightly Rust and names it in `LULL_TSAN_LIBRARY`.
//! The C compiler's runtime, preloaded before the library, sees the server's threads and locks. It
//! lacks three functions that rustc calls, which a small library in C provides.

use super::super::logs;
use super::does_all;
use crate::support::scene::Scene;
use std::process::Command;

/// The functions that only LLVM's runtime has; those of libc are intercepted by any.
const COPIES: &str = "#include <string.h>
void *__tsan_memcpy(void *to, const void *from, size_t n) { return memcpy(to, from, n); }
void *__tsan_memmove(void *to, const void *from, size_t n) { return memmove(to, from, n); }
void *__tsan_memset(void *to, int byte, size_t n) { return memset(to, byte, n); }
";

const LOG: &str = "race-log";

/// The words before a server's command line that preload the runtime and the library.
fn before(scene: &Scene, library: &str) -> Vec<String> {
    let (source, copies) = (scene.path("copies.c"), scene.path("copies.so"));
    scene.write("copies.c", COPIES);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-fno-builtin", "-fPIC", "-shared", "-o"]).arg(&copies).arg(&source);
    assert!(cc.status().unwrap().success());
    let found = Command::new("cc").arg("-print-file-name=libtsan.so").output().unwrap();
    let runtime = String::from_utf8(found.stdout).unwrap().trim().to_owned();
    assert!(runtime.starts_with('/'), "the C compiler has no libtsan.so, only {runtime:?}");
    // The server forks while it has threads, and its child continues; functions that its own
    // handlers call do not concern the library.
    let options = "verbosity=1:die_after_fork=0:report_signal_unsafe=0";
    vec![
        "env".to_owned(),
        format!("LD_PRELOAD={runtime} {library} {}", copies.display()),
        format!("TSAN_OPTIONS=log_path={}:{options}", scene.path(LOG).display()),
    ]
}

#[test]
#[ignore = "slow: a server with a detector of races; cargo xtask tsan builds the library"]
fn the_library_has_no_data_race_in_a_threaded_server() {
    let Ok(library) = std::env::var("LULL_TSAN_LIBRARY") else {
        return lull_testing::skip("LULL_TSAN_LIBRARY is not set; run cargo xtask tsan");
    };
    does_all(
        |scene| before(scene, &library),
        (16, 50),
        |scene, way| {
            let logs = logs(scene, LOG);
            let is_active = |log: &String| log.contains("Running under ThreadSanitizer");
            assert!(logs.iter().any(is_active), "{way}: no runtime in the server: {logs:?}");
            let is_race = |log: &&String| log.contains("WARNING: ThreadSanitizer");
            assert_eq!(logs.iter().find(is_race), None, "{way}");
        },
    );
}
