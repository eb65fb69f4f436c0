//! Embeds two things in the binary: the commit, because a run is reproduced from its seed
//! and its commit, and the library that `lull exec` preloads, so that `lull` is one file.

use std::path::Path;
use std::process::Command;

fn main() {
    commit();
    library();
}

/// Builds the preloaded library in a separate target directory, because the outer cargo
/// holds the lock of the usual one. The library is optimised even in a debug build, because
/// it runs inside the user's server.
fn library() {
    for source in ["preload", "oncall"] {
        println!("cargo::rerun-if-changed=../{source}/src");
        println!("cargo::rerun-if-changed=../{source}/Cargo.toml");
    }
    let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    let target = Path::new(&out).join("preload");
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut build = Command::new(cargo);
    build.args(["build", "--release", "--package", "lull-preload", "--manifest-path"]);
    build.arg("../preload/Cargo.toml").arg("--target-dir").arg(&target);
    // The library is embedded in the binary: without symbols it is a tenth of the size.
    build.env("CARGO_PROFILE_RELEASE_STRIP", "symbols").env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    // Every call of a server passes through it: one codegen unit lets the compiler inline the
    // whole path of a query.
    build.env("CARGO_PROFILE_RELEASE_LTO", "fat").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
    // Threads of the server may be cancelled below the library's functions: `preload/src/lib.rs`.
    build.env("CARGO_PROFILE_RELEASE_PANIC", "abort");
    // Wrappers and flags of the outer build (clippy, coverage, static linking) must not apply:
    // a library that contains its own libc cannot be preloaded.
    let outer = ["RUSTC_WORKSPACE_WRAPPER", "CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "CLIPPY_ARGS"];
    for variable in outer {
        build.env_remove(variable);
    }
    let foreign = foreign_target();
    build.args(foreign.iter().flat_map(|target| ["--target", target]));
    let built = build.status().expect("cargo can be started").success();
    assert!(built, "the preloaded library does not build: cargo build -p lull-preload");
    let target = foreign.map_or_else(|| target.clone(), |foreign| target.join(foreign));
    let library = target.join("release/liblull_preload.so");
    println!("cargo::rustc-env=LULL_PRELOAD={}", library.display());
}

/// The target of the library, if the program is for another processor than this machine's: with
/// glibc, as servers have it, also where the program itself is for musl.
fn foreign_target() -> Option<String> {
    let variable = |name| std::env::var(name).expect("cargo sets the variables of build scripts");
    // The first word of a target, as `riscv64gc`; `CARGO_CFG_TARGET_ARCH` is `riscv64`.
    let processor = |name| variable(name).split('-').next().unwrap_or_default().to_owned();
    let (host, target) = (processor("HOST"), processor("TARGET"));
    (target != host).then(|| format!("{target}-unknown-linux-gnu"))
}

fn commit() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // In a git work tree these files are elsewhere. Only existing files are named, because
    // cargo rebuilds each time if a named file is absent.
    for file in ["HEAD", "logs/HEAD"] {
        let path = git(&["rev-parse", "--git-path", file]);
        if let Some(path) = path.filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    // A source tree without git (a release tarball) has no commit to state.
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=LULL_COMMIT={commit}");
}
