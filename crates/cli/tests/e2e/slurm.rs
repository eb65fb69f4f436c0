//! The lines of docs/cells.md for SLURM, run by SLURM itself on a cluster of this machine.
//!
//! It is skipped without root, and without Debian's `slurm-wlm` and `munge`: no other test needs
//! them, and `cargo xtask test` does not install them.

use crate::sim::SMALL;
use crate::support::agent::Agent;
use crate::support::scene::Scene;
use crate::support::{free_port, is_root, skip, wait_for};
use std::fs::Permissions;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// The programs that the test starts: messages between SLURM's programs are signed by munged.
const PROGRAMS: [&str; 4] = ["munged", "slurmctld", "slurmd", "sbatch"];

/// A cluster of one node, which ends with the test.
struct Cluster {
    config: PathBuf,
    _daemons: [Agent; 3],
}

impl Cluster {
    fn start(scene: &Scene) -> Self {
        let key = scene.write("key", &"a key of this test only ".repeat(4));
        std::fs::set_permissions(&key, Permissions::from_mode(0o400)).unwrap();
        let ports = [free_port(), free_port()];
        let config = scene.write("slurm.conf", &config(scene, ports));
        let daemon = |line: &str| {
            let mut command = scene.shell(line);
            command.env("SLURM_CONF", &config);
            scene.start(command)
        };
        let munged = daemon(
            "exec munged --foreground --force --key-file=$PWD/key --socket=$PWD/munge.socket \
             --pid-file=$PWD/munge.pid --log-file=$PWD/munge.log --seed-file=$PWD/munge.seed",
        );
        wait_for("munged's socket", || scene.path("munge.socket").exists());
        let mut controller = daemon("exec slurmctld -D");
        // slurmd registers with slurmctld when it starts, and else only when it tries again.
        controller
            .wait_for("slurmctld's port", || TcpStream::connect(("127.0.0.1", ports[0])).is_ok());
        let daemons = [munged, controller, daemon("exec slurmd -D -N $(hostname -s)")];
        wait_for("an idle node", || {
            let mut state = scene.shell("sinfo --noheader --format=%t");
            let state = state.env("SLURM_CONF", &config).output().unwrap();
            state.stdout.starts_with(b"idle")
        });
        Self { config, _daemons: daemons }
    }
}

/// A configuration with all files in the scene, and the ports of slurmctld and slurmd.
///
/// `sbatch --wait` polls after 2 s and then every 8 s; with the default of `MinJobAge` the interval
/// grows to 32 s. An ended job is kept for two intervals, so that a late poll still finds it.
fn config(scene: &Scene, [control, node]: [u16; 2]) -> String {
    let place = scene.path("");
    let place = place.display();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host = host.split('.').next().unwrap();
    format!(
        "ClusterName=lull\n\
         SlurmctldHost={host}(127.0.0.1)\n\
         SlurmUser=root\n\
         AuthType=auth/munge\n\
         AuthInfo=socket={place}/munge.socket\n\
         SlurmctldPort={control}\n\
         SlurmdPort={node}\n\
         SlurmctldPidFile={place}/slurmctld.pid\n\
         SlurmdPidFile={place}/slurmd.pid\n\
         StateSaveLocation={place}/state\n\
         SlurmdSpoolDir={place}/spool\n\
         SlurmctldLogFile={place}/slurmctld.log\n\
         SlurmdLogFile={place}/slurmd.log\n\
         ProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\n\
         JobAcctGatherType=jobacct_gather/none\n\
         AccountingStorageType=accounting_storage/none\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_CPU\n\
         MpiDefault=none\n\
         ReturnToService=2\n\
         MinJobAge=16\n\
         SchedulerParameters=batch_sched_delay=0,sched_interval=2\n\
         NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN\n\
         PartitionName=all Nodes=ALL Default=YES State=UP\n"
    )
}

#[test]
fn an_array_of_slurm_runs_the_parts_of_a_simulation() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&str| std::env::split_paths(&path).any(|at| at.join(name).is_file());
    if let Some(missing) = PROGRAMS.iter().find(|name| !is_there(name)) {
        return skip(&format!("no {missing}: apt-get install slurm-wlm munge"));
    }
    if !is_root() {
        return skip("the daemons of SLURM need root");
    }
    let scene = Scene::with_program_for_all();
    scene.write("s.toml", SMALL);
    for name in ["state", "spool"] {
        std::fs::create_dir(scene.path(name)).unwrap();
    }
    let cluster = Cluster::start(&scene);
    let page = include_str!("../../../../docs/cells.md");
    let (_, rest) = page.split_once("```text\n#!/bin/sh\n#SBATCH").unwrap();
    let (lines, _) = rest.split_once("```").unwrap();
    let parts = scene.path("parts").display().to_string();
    let script = format!("#!/bin/sh\n#SBATCH{lines}").replace("/shared/parts", &parts);
    scene.write("job.sh", &script.replace("=1-20", "=1-4").replace("/20", "/4"));
    let mut submit = scene.shell("sbatch --wait --output=$PWD/task-%a.out job.sh");
    submit.env("SLURM_CONF", &cluster.config);
    scene.start(submit).wait().well();
    let merged = scene.run(&["sim", "s.toml", "--parts", &parts, "--csv", "merged.csv"]).well();
    assert!(merged.err.contains("0 cells run, 6 were in"), "{}", merged.err);
    scene.run(&["sim", "s.toml", "--csv", "whole.csv"]).well();
    let [merged, whole] = ["merged.csv", "whole.csv"].map(|it| std::fs::read(scene.path(it)));
    assert_eq!(merged.unwrap(), whole.unwrap());
}
