//! A confined process that tries what it must not do.
//!
//! Each layer is tried alone and all together, and nothing is confined once, so that a refusal is
//! the layer's doing.

use crate::roles::{argv, say};
use crate::scene::Ends;
use lull_host::Roots;
use lull_host::sandbox::{self, ClientRights, Layer};
use lull_host::sys::sched;
use lull_testing::skip;
use nix::sys::ptrace;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use std::fs::{File, OpenOptions, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("what_is_tried_without_confinement_succeeds", unconfined),
    ("a_user_without_rights_reaches_no_process_and_no_file_of_root", as_nobody),
    ("landlock_alone_refuses_files_programs_connections_and_signals", without_files),
    ("the_filter_alone_refuses_every_system_call_that_reaches_out", without_calls),
    ("all_layers_together_refuse_everything", confined),
    ("a_client_keeps_its_file_and_its_port_and_nothing_else", as_client),
];

/// The attempts, in this order: the last one replaces the process where it succeeds.
const TRIED: [&str; 11] = [
    "write", "create", "read", "remove", "affinity", "ptrace", "signal", "pidfd", "tcp", "unix",
    "execve",
];

/// The rights of a client, among the names of layers.
const CLIENT: &str = "Client";

/// Confines itself with the layers whose names are given, tries everything and prints what was
/// refused.
pub(crate) fn be_confined(args: &[String]) -> ExitCode {
    let [layers, place, victim, port] = args else { panic!("confined got {args:?}") };
    let place = Path::new(place);
    let victim: i32 = victim.parse().unwrap();
    let pid = Pid::from_raw(victim).unwrap();
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let cores = sched::affinity_of(victim).unwrap();
    if layers == CLIENT {
        let (files, ports) = (vec![place.join("secret")], vec![port.parse().unwrap()]);
        let gaps = sandbox::confine_client(&ClientRights { files, ports });
        assert!(gaps.is_empty(), "{gaps:?}");
    }
    let layers: Vec<Layer> =
        Layer::ALL.into_iter().filter(|layer| layers.contains(&format!("{layer:?}"))).collect();
    let gaps = sandbox::confine(&layers);
    assert!(gaps.is_empty(), "{gaps:?}");
    let tried = |what: &str, is_done: bool| {
        if !is_done {
            say(what);
        }
    };
    tried("write", OpenOptions::new().write(true).open(place.join("open")).is_ok());
    tried("create", File::create_new(place.join("new")).is_ok());
    tried("read", File::open(place.join("secret")).is_ok());
    tried("remove", std::fs::remove_file(place.join("doomed")).is_ok());
    tried("affinity", sched::set_affinity(victim, &cores).is_ok());
    let traced = ptrace::seize(nix::unistd::Pid::from_raw(victim), ptrace::Options::empty());
    tried("ptrace", traced.is_ok());
    tried("signal", kill_process(pid, Signal::WINCH).is_ok());
    tried("pidfd", pidfd_send_signal(&pidfd, Signal::WINCH).is_ok());
    tried("tcp", std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok());
    tried("unix", UnixStream::connect(place.join("socket")).is_ok());
    let _is_refused = Command::new("/bin/true").stdin(Stdio::null()).exec();
    say("execve");
    ExitCode::SUCCESS
}

/// The things that a process confined by these layers is refused.
fn refused(layers: &[Layer]) -> Vec<String> {
    let names: String = layers.iter().map(|layer| format!("{layer:?}")).collect();
    refused_as(&names)
}

/// The same by the names of layers, or of a client's rights.
fn refused_as(names: &str) -> Vec<String> {
    let place = tempfile::tempdir().unwrap();
    // Others may enter, and only root may read one of the files.
    std::fs::set_permissions(place.path(), Permissions::from_mode(0o777)).unwrap();
    for (name, mode) in [("open", 0o666), ("secret", 0o600), ("doomed", 0o666)] {
        let path = place.path().join(name);
        std::fs::write(&path, "text").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    let _unix = UnixListener::bind(place.path().join("socket")).unwrap();
    std::fs::set_permissions(place.path().join("socket"), Permissions::from_mode(0o666)).unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port().to_string();
    let sleeper = Ends(Command::new("sleep").arg("3000").spawn().unwrap());
    let victim = sleeper.0.id().to_string();
    let argv = argv("confined", &[names, place.path().to_str().unwrap(), &victim, &port]);
    let output = Command::new(&argv[0]).args(&argv[1..]).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Whether the kernel offers a layer; a test without it is skipped.
fn lacks(layer: Layer) -> bool {
    let offers = sandbox::offers(&Roots::default());
    let why = offers.into_iter().find(|(one, _)| *one == layer).and_then(|(_, how)| how.err());
    why.iter().for_each(|why| skip(&format!("{layer}: {why}")));
    why.is_some()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn unconfined() {
    assert_eq!(refused(&[]), [""; 0]);
}

fn as_nobody() {
    if !is_root() {
        return skip("only root can become another user");
    }
    assert_eq!(refused(&[Layer::User]), ["read", "affinity", "ptrace", "signal", "pidfd"]);
}

fn without_files() {
    if lacks(Layer::Files) {
        return;
    }
    let refused = refused(&[Layer::Files]);
    // Landlock restricts networks and signals since Linux 6.7 and 6.12.
    for what in ["write", "create", "read", "remove", "ptrace", "execve"] {
        assert!(refused.iter().any(|one| one == what), "{what} is allowed: {refused:?}");
    }
}

fn without_calls() {
    if !lacks(Layer::SystemCalls) {
        assert_eq!(refused(&[Layer::SystemCalls]), TRIED);
    }
}

fn confined() {
    if !lacks(Layer::SystemCalls) && !lacks(Layer::Files) {
        assert_eq!(refused(&Layer::ALL), TRIED);
    }
}

fn as_client() {
    if !lacks(Layer::SystemCalls) && !lacks(Layer::Files) {
        let allowed = ["read", "tcp"];
        let others = TRIED.into_iter().filter(|what| !allowed.contains(what));
        assert_eq!(refused_as(CLIENT), others.collect::<Vec<_>>());
    }
}
