//! The program that `cargo xtask fuzz` builds with libFuzzer and coverage counters.
//!
//! `LULL_FUZZ_TARGET` names the target, since all targets are in one program.
#![cfg_attr(fuzzing, no_main)]
// The macro of libFuzzer exports the function that it calls.
#![cfg_attr(fuzzing, allow(unsafe_code))]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    static RUN: std::sync::LazyLock<lull_fuzz::Run> = std::sync::LazyLock::new(|| {
        let name = std::env::var("LULL_FUZZ_TARGET").unwrap_or_default();
        lull_fuzz::find_target(&name).expect("LULL_FUZZ_TARGET is the name of a target")
    });
    RUN(bytes);
});

#[cfg(not(fuzzing))]
fn main() -> Result<(), &'static str> {
    Err("built without libFuzzer; run: cargo xtask fuzz NAME --seconds 60")
}
