//! A server that is executed as another user than the agent's, which owns the page.

use super::*;
use crate::support::skip;

#[test]
fn processes_of_another_user_share_a_gate_that_root_sets() {
    if !is_root() {
        return skip("gives a page to another user: run as root");
    }
    let scene = Scene::with_program_for_all();
    let page = scene.path("page").display().to_string();
    let attach = ["attach", &page, "--owner", "nobody"];
    let environment = scene.run(&[&attach[..], &["--environment"]].concat()).well().out;
    let (command, port) = installed(&scene, &program("postgres"), &[]);
    let mut server = Command::new(AS_NOBODY[0]);
    server.args(&AS_NOBODY[1..]).args(["--", "env"]).args(environment.lines()).args(&command);
    let database = Database::from_server(Server::from_agent(scene.start(server), port));
    let mut agent =
        scene.start(scene.lull(&[&attach[..], &["--json", "--concurrency", "2"]].concat()));
    agent.wait_until_printed("attached to");
    run_transactions(&database, "disable");
    assert_transactions_gated(&agent.interrupt().well().json(), 8);
}
