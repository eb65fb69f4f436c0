//! `cargo xtask kubernetes`: the agent with Kubernetes, at a real API server.
//!
//! kube-apiserver and helm are built from the Go module proxy into [`xtask::cache`], once: a
//! quarter of an hour of one core for both. So is a container runtime that has only the part that
//! plug-ins see. etcd is Debian's. Then the test `crates/fleet/tests/cluster.rs` starts them and
//! installs the chart. With [`WHOLE_NODE`] also containerd and a kubelet are built, some minutes
//! more, for the test `crates/fleet/tests/kubelet.rs`, whose runc is Debian's. `cargo xtask test`
//! runs the same tests where the cache has the programs, the second only with the variable, and
//! builds none. `cargo xtask rig kubelet` runs that one in a guest.

use crate::command::{done, read_output};
use crate::packages::{install_packages, on_path};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The version of Kubernetes; the libraries that it publishes are v0 of the same.
const KUBERNETES: &str = "1.34.2";
const HELM: &str = "3.19.2";
const CONTAINERD: &str = "2.4.2";
/// The variable with which containerd and a kubelet are built and tested, too.
const WHOLE_NODE: &str = "LULL_FLEET_KUBELET";
/// Programs and their Debian packages.
const PACKAGES: [(&str, &str); 2] = [("etcd", "etcd-server"), ("openssl", "openssl")];
const RUNC: (&str, &str) = ("runc", "runc");

/// A program that is built from a Go module.
struct GoProgram {
    /// The name of the directory in the cache.
    name: String,
    module: &'static str,
    version: String,
    package: &'static str,
    program: &'static str,
    /// Further flags of the linker.
    flags: String,
}

/// Builds missing programs, and runs the test.
///
/// # Errors
/// If a program cannot be had or the test fails.
pub(crate) fn run(root: &Path) -> Result<ExitCode> {
    let is_whole = std::env::var_os(WHOLE_NODE).is_some();
    let of_node = if is_whole { provide_node()? } else { Vec::new() };
    if is_whole {
        provide_packages(&[RUNC])?;
    }
    let others = provide_server(root)?;
    for program in others.iter().chain(&of_node) {
        println!("{}", program.display());
    }
    let mut build = Command::new("cargo");
    build.current_dir(root).args(["build", "--package", "lull-cli", "--features", "fleet"]);
    done(&mut build)?;
    let mut test = Command::new("cargo");
    test.current_dir(root).args(["test", "--package", "lull-fleet", "--test", "cluster"]);
    test.args(["--test", "kubelet"]);
    done(test.args(["--", "--nocapture"]))?;
    Ok(ExitCode::SUCCESS)
}

/// Provides what serves the API, helm, and a container runtime that is one for plug-ins alone.
/// Returns the programs that were built; the last one is that of containers.
///
/// # Errors
/// If a program cannot be had.
pub(crate) fn provide_server(root: &Path) -> Result<Vec<PathBuf>> {
    provide_packages(&PACKAGES)?;
    let of_runtime = nri_runtime(root)?.join("bin");
    let runtimes = ["nri-runtime", "pause"].map(|program| of_runtime.join(program));
    let built = [kube_apiserver(), helm()].map(|program| program.provide());
    built.into_iter().chain(runtimes.map(Ok)).collect()
}

/// Provides containerd and a kubelet; runc is another package's.
///
/// # Errors
/// If a program cannot be had.
pub(crate) fn provide_node() -> Result<Vec<PathBuf>> {
    of_containerd().iter().chain([&kubelet()]).map(GoProgram::provide).collect()
}

fn provide_packages(packages: &[(&str, &str)]) -> Result<()> {
    let missing = packages.iter().filter(|(program, _)| on_path(program).is_none());
    let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if !missing.is_empty() && !install_packages(&missing) {
        bail!("apt-get install {}", missing.join(" "));
    }
    Ok(())
}

fn kube_apiserver() -> GoProgram {
    GoProgram {
        name: format!("kubernetes-{KUBERNETES}"),
        module: "k8s.io/kubernetes",
        version: format!("v{KUBERNETES}"),
        package: "k8s.io/kubernetes/cmd/kube-apiserver",
        program: "kube-apiserver",
        flags: format!(" -X k8s.io/component-base/version.gitVersion=v{KUBERNETES}"),
    }
}

fn kubelet() -> GoProgram {
    GoProgram { package: "k8s.io/kubernetes/cmd/kubelet", program: "kubelet", ..kube_apiserver() }
}

fn of_containerd() -> [GoProgram; 3] {
    let program = |program, package| GoProgram {
        name: format!("containerd-{CONTAINERD}"),
        module: "github.com/containerd/containerd/v2",
        version: format!("v{CONTAINERD}"),
        package,
        program,
        flags: String::new(),
    };
    [
        program("containerd", "github.com/containerd/containerd/v2/cmd/containerd"),
        program(
            "containerd-shim-runc-v2",
            "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
        ),
        program("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
    ]
}

fn helm() -> GoProgram {
    GoProgram {
        name: format!("helm-{HELM}"),
        module: "helm.sh/helm/v3",
        version: format!("v{HELM}"),
        package: "helm.sh/helm/v3/cmd/helm",
        program: "helm",
        flags: String::new(),
    }
}

/// Builds the runtime of `crates/fleet/tests/nri` and the program of its containers, which the
/// tests start, unless they were built from the same files.
fn nri_runtime(root: &Path) -> Result<PathBuf> {
    let sources = root.join("crates/fleet/tests/nri");
    let digest = lull_testing::digest(&sources)
        .with_context(|| format!("cannot read {}", sources.display()))?;
    let place = xtask::cache().join(format!("nri-runtime-{digest}"));
    let _lock = lock(&place)?;
    for (program, package) in [("pause", "./pause"), ("nri-runtime", ".")] {
        let program = place.join("bin").join(program);
        if program.exists() {
            continue;
        }
        let new = program.with_extension("new");
        let mut build = go(&sources);
        // Built without plug-ins that are compiled to WebAssembly.
        build.args(["build", "-p", "1", "-trimpath", "-tags", "nri_no_wasm", "-o"]);
        done(build.arg(&new).arg(package))?;
        std::fs::rename(&new, program)?;
    }
    Ok(place)
}

/// Creates a directory of programs and locks it until the file is closed, because the runs of other
/// clones build into the same one.
fn lock(place: &Path) -> Result<File> {
    std::fs::create_dir_all(place.join("bin"))?;
    let lock = File::create(place.join("lock"))?;
    lock.lock().with_context(|| format!("cannot lock {}", place.display()))?;
    Ok(lock)
}

/// The output of `go mod download -json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Downloaded {
    go_mod: PathBuf,
}

impl GoProgram {
    /// The program, which is built if it is not in the cache yet.
    fn provide(&self) -> Result<PathBuf> {
        let place = xtask::cache().join(&self.name);
        let program = place.join("bin").join(self.program);
        let _lock = lock(&place)?;
        if !program.exists() {
            self.build(&place, &program)?;
        }
        Ok(program)
    }

    fn build(&self, place: &Path, program: &Path) -> Result<()> {
        println!("== building {} {}: some minutes", self.program, self.version);
        let source = place.join("src");
        let _ = std::fs::remove_dir_all(&source);
        std::fs::create_dir_all(&source)?;
        let versioned = format!("{}@{}", self.module, self.version);
        let json = read_output(go(place).args(["mod", "download", "-json", &versioned]))?;
        let Downloaded { go_mod } = serde_json::from_str(&json)?;
        let text = std::fs::read_to_string(&go_mod)?;
        std::fs::write(source.join("go.mod"), own_module(&text, self.module, &self.version))?;
        let tools = format!("//go:build tools\n\npackage tools\n\nimport _ {:?}\n", self.package);
        std::fs::write(source.join("tools.go"), tools)?;
        done(go(&source).args(["mod", "tidy"]))?;
        let flags = format!("-s -w{}", self.flags);
        let new = program.with_extension("new");
        let mut build = go(&source);
        build.args(["build", "-p", "1", "-trimpath", "-ldflags", &flags, "-o"]);
        done(build.arg(&new).arg(self.package))?;
        std::fs::rename(&new, program)?;
        Ok(())
    }
}

/// Go at the lowest priority, without C.
fn go(place: &Path) -> Command {
    let mut go = Command::new("nice");
    go.args(["-n", "19", "go"]).current_dir(place).env("CGO_ENABLED", "0");
    go
}

/// Returns a module that requires another with all that its `go.mod` has, because only the main
/// module can state replacements. Kubernetes replaces its libraries by directories that its module
/// does not contain: they are published as v0 of the same version.
fn own_module(go_mod: &str, module: &str, version: &str) -> String {
    let published = format!("v0.{}", version.split_once('.').map_or("", |(_, rest)| rest));
    let line = |line: &str| {
        let local = line.split_once("=> ./staging/src/");
        match local {
            Some((before, library)) => format!("{before}=> {library} {published}"),
            None if line.starts_with("module ") => {
                format!("module lull.invalid/build\n\nrequire {module} {version}")
            }
            None => line.to_owned(),
        }
    };
    go_mod.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_of_kubernetes_are_required_as_they_are_published() {
        let of_kubernetes = "module k8s.io/kubernetes\n\ngo 1.24.0\n\nreplace (\n\tk8s.io/api => \
                             ./staging/src/k8s.io/api\n)\n";
        let own = own_module(of_kubernetes, "k8s.io/kubernetes", "v1.34.2");
        assert!(
            own.starts_with("module lull.invalid/build\n\nrequire k8s.io/kubernetes v1.34.2\n")
        );
        assert!(own.contains("\tk8s.io/api => k8s.io/api v0.34.2\n"), "{own}");
        assert!(own.contains("go 1.24.0\n") && !own.contains("staging"));
    }
}
