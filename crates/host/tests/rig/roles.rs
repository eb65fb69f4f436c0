//! What this binary is when a test starts it with a role.

use crate::init::{SERVICE, SUITE, run_as_service};
use crate::scene::ledger;
use lull_control::DomainId;
use lull_host::Roots;
use lull_host::guard::{self, GuardArgs, GuardCommand, GuardState};
use lull_host::knobs::hold::{HoldRequest, hold};
use std::io::{Write, stdout};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

/// Plays the role that the arguments name; `None` if they name none.
pub(crate) fn play() -> Option<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first()?.as_str() {
        "guard" => {
            let args = GuardArgs::parse(std::env::args_os().skip(2)).unwrap();
            Some(if guard::run(&args).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        SERVICE => run_as_service(),
        "app" => be_app(),
        "worker" => crate::counters::be_worker(),
        "server" => crate::dispatch::be_server(Path::new(&args[1])),
        "serve" => be_serving(&args[1..]),
        "hear" => crate::traffic::hear(Path::new(&args[1]), &args[2]),
        "agent" => be_agent(Path::new(&args[1]), &args[2..]),
        _ => None,
    }
}

/// Starts this binary in a role; its standard output can be read.
pub(crate) fn start(role: &str, args: &[&str]) -> Child {
    let mut command = Command::new("/init");
    command.arg(role).args(args).env_remove(SUITE);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap()
}

/// A serving process. Arguments: the number of threads, the file with their pause, and the socket
/// and name of the app unless an agent has set them.
fn be_serving(args: &[String]) -> ! {
    let printed = |at: usize, name: &str| {
        args.get(at).cloned().unwrap_or_else(|| std::env::var(name).unwrap())
    };
    let (socket, app) = (printed(2, "LULL_SOCKET"), printed(3, "LULL_APP"));
    let threads = args[0].parse().unwrap();
    crate::workload::serve(threads, Path::new(&args[1]), (Path::new(&socket), &app))
}

fn be_app() -> ! {
    for _ in 0..2 {
        std::thread::spawn(|| std::thread::sleep(Duration::from_secs(3000)));
    }
    std::thread::sleep(Duration::from_secs(3000));
    std::process::exit(0)
}

pub(crate) fn say(line: &str) {
    let mut out = stdout().lock();
    // A test that has seen enough has closed its end.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Holds some knobs and turns the frequencies all the time, until it is killed.
fn be_agent(dir: &Path, requests: &[String]) -> ! {
    let roots = Roots::default();
    let mut ledger = ledger(dir);
    let command = GuardCommand { program: "/init".into(), args: vec!["guard".into()] };
    let mut guard = guard::spawn(command, &ledger).unwrap();
    say(&format!("guard {}", guard.pid()));
    let requests: Vec<HoldRequest> =
        requests.iter().map(|request| request.parse().unwrap()).collect();
    let _held = hold(&requests, &roots, &mut ledger).unwrap();
    let mut scene = crate::scene::steered(ledger);
    for round in 0u64.. {
        let mhz = [800, 1200, 1600, 2000][(round % 4) as usize];
        for domain in scene.machine_domains() {
            scene.turn(DomainId(domain), mhz);
        }
        if round == 1 {
            say("changed");
        }
        if let Ok(GuardState::Respawned(_)) = guard.poll() {
            say(&format!("guard {}", guard.pid()));
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    unreachable!("it is killed")
}
