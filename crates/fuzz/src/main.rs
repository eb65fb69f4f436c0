//! The program that `cargo xtask fuzz` builds with libFuzzer and coverage counters.
//!
//! `LULL_FUZZ_TARGET` names the target, since all targets are in one program.
#![cfg_attr(fuzzing, no_main)]
// The macro of libFuzzer exports the function that it calls.
#![cfg_attr(fuzzing, allow(unsafe_code))]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static RUN: std::sync::LazyLock<lull_fuzz::Run> = std::sync::LazyLock::new(|| {
        ignore_broken_pipes();
        let name = std::env::var("LULL_FUZZ_TARGET").unwrap_or_default();
        lull_fuzz::find_target(&name).expect("LULL_FUZZ_TARGET is the name of a target")
    });
    RUN(bytes);
});

/// Lets a write to a closed connection fail. Rust's runtime ignores SIGPIPE before `main`; with
/// libFuzzer's `main` it does not run, and the signal would end the process.
#[cfg(fuzzing)]
fn ignore_broken_pipes() {
    let flag = std::sync::Arc::default();
    signal_hook::flag::register(signal_hook::consts::SIGPIPE, flag)
        .expect("a handler for SIGPIPE can be registered");
}

#[cfg(not(fuzzing))]
fn main() -> Result<(), &'static str> {
    Err("built without libFuzzer; run: cargo xtask fuzz NAME --seconds 60")
}
