//! Requests placed on cores of the machine, and cores made slower.

use crate::support::scene::Scene;
use crate::support::threads::{cores_of, threads};
use crate::support::{cores, is_root, skip, wait_for};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

/// A dispatch file with one core of one type.
fn one_core(dispatcher: &str) -> String {
    let mine = cores_of(std::process::id().cast_signed());
    let first: String = mine.chars().take_while(char::is_ascii_digit).collect();
    format!(
        "percentile = \"p99\"\ntarget = \"100ms\"\n\n[dispatcher]\n\
         name = \"{dispatcher}\"\n\n[[core]]\n\
         name = \"only\"\nspeed = 1.0\nwatts = 1.0\ncores = \"{first}\"\n"
    )
}

#[test]
fn the_options_server_places_its_requests() {
    let scene = Scene::new();
    let file = scene.write("dispatch.toml", &one_core("ee"));
    let file = file.to_str().unwrap();
    let arguments = ["serve", "options", "--listen", "127.0.0.1:0", "--dispatch", file];
    let mut server = scene.start(scene.lull(&arguments));
    let mut address = String::new();
    let printed = server.out_file();
    server.wait_for("its address", || {
        let out = std::fs::read_to_string(&printed).unwrap();
        let found = out.lines().find_map(|line| line.strip_prefix("listening on "));
        address = found.unwrap_or_default().to_owned();
        !address.is_empty()
    });
    let clients = (0..3).map(|client| {
        let address = address.clone();
        std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            for seed in 0..5 {
                writeln!(stream, "PRICE 100 100 0.05 0 0.2 1 252 20 {}", 10 * client + seed)
                    .unwrap();
                let mut reply = String::new();
                BufReader::new(&stream).read_line(&mut reply).unwrap();
                assert!(reply.starts_with("OK "), "{reply}");
            }
        })
    });
    clients.collect::<Vec<_>>().into_iter().for_each(|client| client.join().unwrap());
    let ended = server.interrupt().well();
    assert!(ended.err.contains("placed 15 requests, moved 0, gave up on 0"), "{}", ended.err);
}

#[test]
fn a_file_that_places_nothing_is_refused_with_line_and_key() {
    let scene = Scene::new();
    let good = one_core("ee");
    let cases = [
        (good.replace("\"ee\"", "\"eee\""), "wrong.toml:5: dispatcher.name"),
        (good.replace("speed = 1.0", "speed = 0.0"), "wrong.toml:7: core"),
        (good.replace("target", "goal"), "wrong.toml:2: goal"),
        (good.replace("\"ee\"", "\"s2f\""), "wrong.toml: profile"),
        (good.replace("target = ", "abandon = \"1ms\"\ntarget = "), "wrong.toml:2: abandon"),
    ];
    for (text, place) in cases {
        let file = scene.write("wrong.toml", &text);
        let file = file.to_str().unwrap();
        let ended = scene.run(&["serve", "options", "--listen", "127.0.0.1:0", "--dispatch", file]);
        assert_eq!(ended.code(), 2, "{}", ended.err);
        assert!(ended.err.contains(place), "{place}: {}", ended.err);
    }
}

#[test]
fn slow_downs_that_cannot_be_are_bad_usage() {
    let scene = Scene::new();
    let emulate = |core: &str, slowdown: &str| {
        scene.run(&["lab", "emulate", "--core", core, "--slowdown", slowdown, "--", "true"])
    };
    for slowdown in ["1", "0.5", "nan", "1000000"] {
        emulate("0", slowdown).refused(2, "write more than 1");
    }
    emulate("1023", "2").refused(1, "core 1023");
    scene.run(&["lab", "dispatch", "--slow", "0", "--fast", "0"]).refused(2, "name two");
    let nameless = ["lab", "dispatch", "--slow", "0", "--fast", "1", "--dispatchers", "no-such"];
    if cores() > 1 {
        scene.run(&nameless).refused(2, "no-such");
    }
}

#[test]
fn a_killed_emulation_leaves_no_thread_on_its_core() {
    if !is_root() {
        return skip("only root may make threads real-time");
    }
    let scene = Scene::new();
    let mut emulation =
        scene.start(scene.lull(&["lab", "emulate", "--core", "0", "--slowdown", "1.3"]));
    let pid = emulation.pid();
    // SCHED_FIFO is 1.
    emulation.wait_for("a real-time thread", || threads(pid).values().any(|one| one.policy == "1"));
    emulation.signal(Signal::KILL);
    let _ = emulation.wait();
    wait_for("its end", || threads(pid).is_empty());
}

#[test]
fn p_states_that_cannot_be_are_bad_usage() {
    let scene = Scene::new();
    let files = scene.path("emulated").display().to_string();
    let emulate = |cores: &str, frequencies: &str| {
        let first = ["lab", "cpufreq", "--cores", cores, "--frequencies", frequencies];
        scene.run(&[&first[..], &["--files", &files, "--", "true"]].concat())
    };
    if !std::path::Path::new("/sys/devices/system/cpu/cpufreq").is_dir() {
        return skip("the kernel has no cpufreq");
    }
    emulate("0", "2GHz").refused(2, "two different frequencies");
    emulate("0", "2GHz,2GHz").refused(2, "two different frequencies");
    emulate("0", "1MHz,2GHz").refused(2, "write more than 1");
}

/// The command sets the low frequency of core 0 as an agent does, and reports what it sees.
const PLAY: &str = "cd /sys/devices/system/cpu/cpufreq/policy0
    echo userspace > scaling_governor
    echo 1000000 > scaling_setspeed
    for look in $(seq 1000); do
        if [ $(cat scaling_cur_freq) = 1000000 ]; then break; fi
        sleep .01
    done
    echo speed $(cat scaling_cur_freq)
    echo domain $(cat scaling_available_frequencies)
    echo stat $(grep -c '^cpu0 ' /proc/stat) $(grep -c '^intr' /proc/stat || true)";

#[test]
fn a_command_sees_p_states_that_nothing_else_sees() {
    if !is_root() {
        return skip("only root may make threads real-time");
    }
    let scene = Scene::new();
    let files = scene.path("emulated").display().to_string();
    let kernel = "/sys/devices/system/cpu/cpufreq/policy0/scaling_driver";
    let before = std::fs::read_to_string(kernel).ok();
    let first = ["lab", "cpufreq", "--cores", "0", "--frequencies", "1GHz,2GHz", "--files"];
    let ended = scene.run(&[&first[..], &[&files, "--", "sh", "-e", "-c", PLAY]].concat());
    for lacking in ["times slower, planned", "unshare: ", "mount: ", "cpuidle", "without cpufreq"] {
        if !ended.status.success() && ended.err.contains(lacking) {
            return skip("this machine cannot emulate P-states now");
        }
    }
    let ended = ended.well();
    assert!(ended.err.contains("core 0 plays 1GHz"), "{}", ended.err);
    assert_eq!(ended.out, "speed 1000000\ndomain 1000000 2000000\nstat 1 0\n");
    assert_eq!(std::fs::read_to_string(kernel).ok(), before, "seen from outside");
}
