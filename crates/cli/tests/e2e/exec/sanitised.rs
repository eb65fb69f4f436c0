//! AddressSanitizer in the preloaded library, inside servers that are built without it.
//!
//! The library is built a second time with AddressSanitizer, which checks each memory access
//! of the library. `LD_PRELOAD` names the C compiler's sanitizer runtime before the library,
//! because rustc's runtime works only in programs. The compiler flag is unstable, so that the
//! build sets `RUSTC_BOOTSTRAP`.

use super::logs;
use crate::support::scene::Scene;
use std::process::Command;
use std::sync::LazyLock;

/// Returns the words before a server's command line that preload such a library instead of
/// the usual one, with further options of the sanitizer.
pub(super) fn before(scene: &Scene, options: &str) -> [String; 3] {
    let log = scene.path(LOG);
    // The search for leaks stops all threads, and the library does not allocate.
    let usual = format!("detect_leaks=0:log_path={}", log.display());
    let libraries = format!("LD_PRELOAD={} {}", runtime(), *LIBRARY);
    ["env".to_owned(), libraries, format!("ASAN_OPTIONS={usual}:{options}")]
}

/// Returns the sanitizer's findings; without a fault it writes no file.
pub(super) fn findings(scene: &Scene) -> Vec<String> {
    logs(scene, LOG)
}

const LOG: &str = "sanitizer-log";

/// Path of the library, which is built once for all servers.
static LIBRARY: LazyLock<String> = LazyLock::new(library);

fn runtime() -> String {
    let output = Command::new("cc").arg("-print-file-name=libasan.so").output().unwrap();
    let path = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    assert!(path.starts_with('/'), "the C compiler has no libasan.so, only {path:?}");
    path
}

fn library() -> String {
    let target = concat!(env!("CARGO_TARGET_TMPDIR"), "/asan");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--release", "--package", "lull-preload", "--manifest-path"]);
    build.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../preload/Cargo.toml"));
    build.args(["--target-dir", target]);
    // The build flags of these tests do not apply to this library.
    for variable in ["RUSTC_WORKSPACE_WRAPPER", "CARGO_ENCODED_RUSTFLAGS"] {
        build.env_remove(variable);
    }
    build.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
    build.env("CARGO_PROFILE_RELEASE_PANIC", "abort");
    // Findings need line numbers.
    build.env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only");
    assert!(build.status().unwrap().success(), "the library does not build with its checks");
    format!("{target}/release/liblull_preload.so")
}
