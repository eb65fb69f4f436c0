//! AddressSanitizer in the preloaded library, inside servers that know nothing of it.
//!
//! The library is built once more with each of its own accesses checked. The
//! checks' runtime is the C compiler's, which the loader is told to load before
//! it: rustc has one for programs alone. The switch is not a stable one of rustc's,
//! hence `RUSTC_BOOTSTRAP`.

use super::logs;
use crate::support::scene::Scene;
use std::process::Command;
use std::sync::LazyLock;

/// What stands before a server's command line so that it runs with such a library
/// instead of the usual one, and further options of the sanitizer's.
pub(super) fn before(scene: &Scene, options: &str) -> [String; 3] {
    let log = scene.path(LOG);
    // It would look for leaks by stopping all threads; the library allocates nothing.
    let usual = format!("detect_leaks=0:log_path={}", log.display());
    let libraries = format!("LD_PRELOAD={} {}", runtime(), *LIBRARY);
    ["env".to_owned(), libraries, format!("ASAN_OPTIONS={usual}:{options}")]
}

/// What the sanitizer has found; it writes nothing where all is well.
pub(super) fn findings(scene: &Scene) -> Vec<String> {
    logs(scene, LOG)
}

const LOG: &str = "sanitizer-log";

/// Where it is; built once, however many servers it is for.
static LIBRARY: LazyLock<String> = LazyLock::new(library);

fn runtime() -> String {
    let asked = Command::new("cc").arg("-print-file-name=libasan.so").output().unwrap();
    let path = String::from_utf8(asked.stdout).unwrap().trim().to_owned();
    assert!(path.starts_with('/'), "the C compiler has no libasan.so, only {path:?}");
    path
}

fn library() -> String {
    let target = concat!(env!("CARGO_TARGET_TMPDIR"), "/asan");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--release", "--package", "lull-preload", "--manifest-path"]);
    build.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../preload/Cargo.toml"));
    build.args(["--target-dir", target]);
    // Whatever these tests were built with is not for this library.
    for variable in ["RUSTC_WORKSPACE_WRAPPER", "CARGO_ENCODED_RUSTFLAGS"] {
        build.env_remove(variable);
    }
    build.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address");
    build.env("CARGO_PROFILE_RELEASE_PANIC", "abort");
    // Who reads a finding wants to know the line.
    build.env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only");
    assert!(build.status().unwrap().success(), "the library does not build with its checks");
    format!("{target}/release/liblull_preload.so")
}
