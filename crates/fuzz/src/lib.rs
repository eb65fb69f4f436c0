//! Fuzz targets: every part of Lull that reads input of other programs.
//!
//! A target is a function of bytes that must neither panic nor run for long, whatever the
//! bytes are. `cargo xtask fuzz NAME` runs one under libFuzzer, guided by coverage. The tests
//! of this crate run each target on its seeds and on random changes of them, which finds less,
//! and needs no other build.

mod documents;
mod front;
mod ledger;
mod node;
mod page;
mod replies;
mod trees;
mod wire;

/// The function of a target, which panics if the bytes break its promise.
pub type Run = fn(&[u8]);

/// The function of each target of `targets.toml`.
const TARGETS: [(&str, Run); 24] = [
    ("config", documents::config),
    ("scenario", documents::scenario),
    ("core-mix", documents::core_mix),
    ("trace", documents::trace),
    ("record", documents::record),
    ("histogram", documents::histogram),
    ("escape", documents::escape),
    ("push", wire::push),
    ("protocol", wire::protocol),
    ("page", page::page),
    ("ledger", ledger::ledger),
    ("http", front::http),
    ("frontend", front::frontend),
    ("otlp", wire::otlp),
    ("replies", replies::replies),
    ("register", wire::register),
    ("prometheus", wire::prometheus),
    ("systemd", wire::systemd),
    ("nri", node::nri),
    ("pods", node::pods),
    ("machine", trees::machine),
    ("process", trees::process),
    ("program", trees::program),
    ("script", documents::script),
];

/// Returns the function of the target with a name.
pub fn find_target(name: &str) -> Option<Run> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, run)| *run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::Rng;
    use rand::{RngExt, SeedableRng};
    use std::path::{Path, PathBuf};

    /// Changes of each seed; each target has about a thousand inputs a second at least.
    const CHANGES: u64 = 300;
    /// Fewer changes for targets that wait, as a restore does, or write many files.
    const SLOW: [(&str, u64); 2] = [("ledger", 60), ("machine", 100)];

    /// A number that may be set for a longer run: `LULL_FUZZ_CHANGES`, `LULL_FUZZ_SEED`.
    fn number(variable: &str, usual: u64) -> u64 {
        std::env::var(variable).map_or(usual, |text| text.parse().unwrap())
    }

    fn usual_changes(name: &str) -> u64 {
        SLOW.iter().find(|(slow, _)| *slow == name).map_or(CHANGES, |(_, changes)| *changes)
    }

    /// Flips, inserts, removes, repeats or cuts some bytes.
    fn change(bytes: &mut Vec<u8>, rng: &mut Rng) {
        for _ in 0..rng.random_range(1..8) {
            let at = rng.random_range(0..=bytes.len());
            let end = (at + rng.random_range(0..32)).min(bytes.len());
            match rng.random_range(0..6) {
                0 => bytes.insert(at, rng.random()),
                1 => drop(bytes.drain(at..end)),
                2 => bytes.truncate(at),
                3 => {
                    let part = bytes[at..end].to_vec();
                    bytes.splice(at..at, part);
                }
                4 => bytes.splice(at..end, *b"-9223372036854775809").for_each(drop),
                _ => bytes[at..end].iter_mut().for_each(|byte| *byte ^= 1 << (at % 8)),
            }
        }
    }

    /// The directories of seeds of each target.
    fn seeds() -> Vec<(String, Vec<PathBuf>)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let table: toml::Table = include_str!("../targets.toml").parse().unwrap();
        let directories = |value: &toml::Value| {
            let seeds = value["seeds"].as_array().unwrap().iter();
            seeds.map(|seed| root.join(seed.as_str().unwrap())).collect()
        };
        table.iter().map(|(name, value)| (name.clone(), directories(value))).collect()
    }

    fn run_changes_of_seeds(name: &str) {
        let run = find_target(name).unwrap();
        let (_, directories) = seeds().into_iter().find(|(known, _)| known == name).unwrap();
        let mut rng = Rng::seed_from_u64(number("LULL_FUZZ_SEED", 1));
        let changes = number("LULL_FUZZ_CHANGES", usual_changes(name));
        for directory in directories {
            let mut seeds: Vec<_> =
                directory.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
            seeds.retain(|path| path.is_file());
            seeds.sort();
            assert!(!seeds.is_empty(), "{} has no seeds", directory.display());
            for seed in seeds {
                let bytes = std::fs::read(&seed).unwrap();
                run(&bytes);
                for _ in 0..changes {
                    let mut changed = bytes.clone();
                    change(&mut changed, &mut rng);
                    run(&changed);
                }
            }
        }
        run(&[]);
    }

    macro_rules! each_target {
        ($($test:ident = $name:literal,)+) => {
            $(#[test] fn $test() { run_changes_of_seeds($name); })+

            #[test]
            fn every_target_has_a_test() {
                let names = TARGETS.map(|(name, _)| name);
                assert_eq!([$($name),+], names);
                let table = seeds().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
                assert_eq!(table, names);
            }
        };
    }

    each_target! {
        changed_configs_are_read_or_refused = "config",
        changed_scenarios_are_read_or_refused = "scenario",
        changed_core_mixes_are_read_or_refused = "core-mix",
        changed_traces_are_read_or_refused = "trace",
        changed_records_are_read_or_refused = "record",
        changed_histograms_are_read_or_refused = "histogram",
        changed_texts_are_escaped = "escape",
        changed_lines_are_taken_or_refused = "push",
        changed_connections_are_followed = "protocol",
        pages_that_change_meanwhile_delay_no_worker = "page",
        damaged_ledgers_restore_old_values_or_none = "ledger",
        changed_requests_are_answered_or_refused = "http",
        changed_messages_of_a_front_end_are_checked = "frontend",
        changed_exports_are_counted_or_refused = "otlp",
        changed_replies_are_read_or_refused = "replies",
        changed_registrations_are_requests_or_refused = "register",
        changed_answers_of_a_prometheus_are_numbers_or_refused = "prometheus",
        changed_messages_of_systemd_are_read_or_refused = "systemd",
        changed_calls_of_a_runtime_report_the_same_in_pieces = "nri",
        changed_messages_of_a_watcher_are_checked = "pods",
        changed_machines_are_read_in_order = "machine",
        changed_processes_are_reported_in_a_line = "process",
        changed_programs_are_linked_or_others = "program",
        changed_scripts_are_read_or_refused = "script",
    }
}
