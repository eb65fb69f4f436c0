//! Threads of a server that end by `pthread_cancel` and `pthread_exit`, which unwind the stack
//! through the library's functions.

use super::*;
use crate::support::threads::cores_of;

/// Has the server end threads in each call of the library, and serves on.
fn ends_threads(server: Server, way: &str) {
    let mut client = Client::connect(&server);
    // The thread has its cores noted with its first query.
    assert!(client.query("work").is_some(), "{way}");
    assert!(client.query("cancel").is_some(), "the server was aborted: {way}");
    assert!(client.query("work").is_some(), "{way}");
    drop(client);
    drop(server.seen());
}

#[test]
fn a_thread_that_is_cancelled_in_a_call_runs_its_clean_up_and_the_server_serves_on() {
    for mode in MODES {
        let scene = Scene::new();
        ends_threads(start(&scene, mode, &[], "-1"), mode);
    }
}

#[test]
fn a_thread_that_a_dispatched_thread_has_started_may_be_cancelled_or_exit() {
    let scene = Scene::new();
    let mine = cores_of(std::process::id().cast_signed());
    let first: String = mine.chars().take_while(char::is_ascii_digit).collect();
    let text = format!(
        "percentile = \"p99\"\ntarget = \"100ms\"\n[dispatcher]\nname = \"ee\"\n\
         [[core]]\nname = \"only\"\nspeed = 1.0\nwatts = 1.0\ncores = \"{first}\"\n"
    );
    let file = scene.write("dispatch.toml", &text);
    let options = ["--dispatch", file.to_str().unwrap()];
    ends_threads(start_with(&scene, &options, &[], "-1"), "dispatched");
}
