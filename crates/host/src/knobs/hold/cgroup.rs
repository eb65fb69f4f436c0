//! CPU weight, CPU limit and cores of a cgroup, version 2
//! (Documentation/admin-guide/cgroup-v2.rst).
//!
//! Version 1 has other files with other meanings and is refused. A file that
//! is missing has its controller not delegated to the cgroup.

use super::super::KnobError;
use super::{CgroupControl, HoldRequest};
use crate::Roots;
use crate::drivers::text::read;
use crate::drivers::texts::TextWrite;
use lull_measure::Nanos;
use std::path::{Path, PathBuf};

/// Bounds of the kernel: a quota of 1 ms or more, a period of 1 ms to 1 s.
const QUOTA_MIN: Nanos = Nanos::from_millis(1);
const PERIOD_MAX: Nanos = Nanos::from_secs(1);

/// `PATH:cpu.weight:50`, `PATH:cpu.max:50ms/100ms`, `PATH:cpuset.cpus:0-3`.
pub(super) fn parse(value: &str) -> Result<HoldRequest, String> {
    let form = || {
        "write cgroup=PATH:cpu.weight:N, PATH:cpu.max:TIME/PERIOD or PATH:cpuset.cpus:CORES"
            .to_owned()
    };
    let mut parts = value.rsplitn(3, ':');
    let (Some(text), Some(file), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(form());
    };
    let control = match file {
        "cpu.weight" => CgroupControl::Weight(text.parse().map_err(|_| form())?),
        "cpu.max" if text == "max" => CgroupControl::Max(None),
        "cpu.max" => {
            let (quota, period) = text.split_once('/').ok_or_else(form)?;
            let time = |text: &str| text.parse::<Nanos>().map_err(|error| error.to_string());
            CgroupControl::Max(Some((time(quota)?, time(period)?)))
        }
        "cpuset.cpus" => CgroupControl::Cores(text.parse().map_err(|_| form())?),
        _ => return Err(form()),
    };
    Ok(HoldRequest::Cgroup { path: path.to_owned(), control })
}

/// The write of one control of a cgroup.
pub(super) fn control(
    roots: &Roots,
    path: &str,
    control: &CgroupControl,
) -> Result<Vec<TextWrite>, KnobError> {
    let top = unified(roots)?;
    let dir = top.join(path.trim_start_matches('/'));
    let (file, text) = control.text().map_err(KnobError::Nonsense)?;
    if !dir.is_dir() {
        return Err(KnobError::Nonsense(format!("there is no cgroup {}", dir.display())));
    }
    let file = dir.join(file);
    if !file.exists() {
        return Err(KnobError::Nonsense(not_delegated(&dir, &file)));
    }
    Ok(vec![TextWrite::exactly(file, text)])
}

/// Where cgroup v2 is mounted.
pub(super) fn unified(roots: &Roots) -> Result<PathBuf, KnobError> {
    let top = roots.sys.join("fs/cgroup");
    let is_second = |dir: &Path| dir.join("cgroup.controllers").exists();
    if is_second(&top) {
        return Ok(top);
    }
    let where_from = top.display();
    Err(KnobError::Nonsense(match top.join("cpu").exists() || is_second(&top.join("unified")) {
        true => format!(
            "{where_from} is cgroup v1 or hybrid, which Lull does not set: boot with \
             systemd.unified_cgroup_hierarchy=1"
        ),
        false => format!("no cgroup v2 at {where_from}: mount -t cgroup2 none {where_from}"),
    }))
}

impl CgroupControl {
    pub(super) fn text(&self) -> Result<(&'static str, String), String> {
        let us = |time: Nanos| time.0 / 1000;
        Ok(match self {
            Self::Weight(weight @ 1..=10_000) => ("cpu.weight", weight.to_string()),
            Self::Weight(weight) => return Err(format!("cpu.weight {weight} is not 1 to 10000")),
            Self::Max(None) => ("cpu.max", "max 100000".to_owned()),
            Self::Max(Some((quota, period))) => {
                if *quota < QUOTA_MIN || !(QUOTA_MIN..=PERIOD_MAX).contains(period) {
                    return Err(format!(
                        "cpu.max {quota}/{period}: at least 1 ms in a period of 1 ms to 1 s"
                    ));
                }
                ("cpu.max", format!("{} {}", us(*quota), us(*period)))
            }
            Self::Cores(cores) => ("cpuset.cpus", cores.to_string()),
        })
    }
}

fn not_delegated(dir: &Path, file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let controller = name.split('.').next().unwrap_or_default();
    let Some(parent) = dir.parent() else { return format!("the top cgroup has no {name}") };
    let above = read(&parent.join("cgroup.controllers")).unwrap_or_default();
    match above.split_whitespace().any(|known| known == controller) {
        true => format!(
            "{} has no {name}: echo +{controller} > {}/cgroup.subtree_control",
            dir.display(),
            parent.display()
        ),
        false => format!(
            "{} has no {name}, and controller {controller} is not delegated to {}",
            dir.display(),
            parent.display()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn scene() -> Tree {
        let tree = Tree::new();
        tree.write("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io\n");
        tree.write("sys/fs/cgroup/web/cpu.weight", "100\n");
        tree.write("sys/fs/cgroup/web/cpu.max", "max 100000\n");
        tree
    }

    fn text(tree: &Tree, value: &str) -> Result<String, String> {
        let HoldRequest::Cgroup { path, control: wanted } = parse(value)? else { unreachable!() };
        let writes = control(&tree.roots(), &path, &wanted).map_err(|error| error.to_string())?;
        Ok(writes[0].text.clone())
    }

    #[test]
    fn values_are_those_of_the_kernel() {
        let tree = scene();
        assert_eq!(text(&tree, "/web:cpu.weight:50").unwrap(), "50");
        assert_eq!(text(&tree, "web:cpu.max:50ms/100ms").unwrap(), "50000 100000");
        assert_eq!(text(&tree, "web:cpu.max:max").unwrap(), "max 100000");
    }

    #[test]
    fn what_the_kernel_would_refuse_is_refused_before() {
        let tree = scene();
        for (value, hint) in [
            ("web:cpu.weight:0", "1 to 10000"),
            ("web:cpu.weight:10001", "1 to 10000"),
            ("web:cpu.max:500us/100ms", "at least 1 ms"),
            ("web:cpu.max:5ms/2s", "1 ms to 1 s"),
            ("none:cpu.weight:5", "there is no cgroup"),
            ("web:cpuset.cpus:0-1", "echo +cpuset >"),
            ("web:memory.max:1", "write cgroup="),
            ("web", "write cgroup="),
        ] {
            let error = text(&tree, value).unwrap_err();
            assert!(error.contains(hint), "{value}: {error}");
        }
    }

    #[test]
    fn version_one_is_refused_by_name() {
        let tree = Tree::new();
        let why = |tree: &Tree| unified(&tree.roots()).unwrap_err().to_string();
        assert!(why(&tree).contains("mount -t cgroup2"));
        tree.write("sys/fs/cgroup/cpu/tasks", "");
        assert!(why(&tree).contains("cgroup v1"));
    }
}
