//! A server in a container of runc, which has the page directory at the path that it has outside.

use super::*;
use serde_json::json;
use std::path::Path;

const RUNC: &str = "/usr/sbin/runc";
/// Directories of the host with the libraries that programs are linked with.
const OF_HOST: [&str; 3] = ["/usr", "/lib", "/lib64"];

/// A container as another user, in PID and mount namespaces of its own, which ends with the test.
struct Container<'s> {
    scene: &'s Scene,
    id: String,
}

impl<'s> Container<'s> {
    fn new(scene: &'s Scene) -> Self {
        std::fs::create_dir_all(scene.path("bundle/rootfs")).unwrap();
        Self { scene, id: format!("lull-e2e-{}", free_port()) }
    }

    fn runc(&self) -> Command {
        let mut runc = Command::new(RUNC);
        runc.arg("--root").arg(self.scene.path("runc"));
        runc
    }

    /// Returns the command that runs these words in the container, with lines of variables.
    fn running(&self, words: &[&str], environment: &str) -> Command {
        let bind = |path: &Path, access: &str| {
            let options = ["rbind", access];
            json!({ "destination": path, "source": path, "type": "bind", "options": options })
        };
        let mut mounts = vec![
            json!({ "destination": "/proc", "source": "proc", "type": "proc" }),
            json!({ "destination": "/dev", "source": "tmpfs", "type": "tmpfs" }),
        ];
        let of_host = OF_HOST.map(Path::new).into_iter().filter(|path| path.exists());
        mounts.extend(of_host.map(|path| bind(path, "ro")));
        mounts.push(bind(&self.scene.path(""), "ro"));
        mounts.push(bind(Path::new(&page_directory(self.scene)), "rw"));
        let namespaces = ["pid", "mount", "ipc", "uts"].map(|kind| json!({ "type": kind }));
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": { "uid": 65534, "gid": 65534 },
                "args": words,
                "env": environment.lines().collect::<Vec<_>>(),
                "cwd": "/",
                "noNewPrivileges": true,
            },
            "root": { "path": "rootfs", "readonly": true },
            "mounts": mounts,
            "linux": { "namespaces": namespaces },
        });
        self.scene.write("bundle/config.json", &config.to_string());
        let mut run = self.runc();
        run.args(["run", "--bundle"]).arg(self.scene.path("bundle")).arg(&self.id);
        run
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let _ = self.runc().args(["delete", "--force", &self.id]).output();
    }
}

#[test]
fn a_server_in_a_container_is_gated_by_an_agent_outside_and_leaves_no_records() {
    if !is_root() || !Path::new(RUNC).exists() {
        return skip("makes a container: run as root, with runc installed");
    }
    let scene = Scene::with_program_for_all();
    let environment = environment(&scene, &["--owner", "nobody"]);
    let environment = std::fs::read_to_string(environment).unwrap();
    let (program, port) = (built(&scene, "threads"), free_port());
    let container = Container::new(&scene);
    let tried = container.running(&["/usr/bin/true"], "").output().unwrap();
    if !tried.status.success() {
        return skip(&format!("runc: {}", String::from_utf8_lossy(&tried.stderr)));
    }
    let at = port.to_string();
    let words = [program.as_str(), at.as_str(), "-1"];
    let mut server = scene.start(container.running(&words, &environment));
    server.wait_for("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let agent = attached(&scene, &GATE_OF_ONE);
    let mut client = Client::connect_to(port);
    queries(&mut client, 5);
    // The record of the check for the server's port may exist for a moment.
    wait_for("the record of one worker", || workers(&scene) == 1);
    let seen = agent.interrupt().well().json();
    assert_eq!(of_class(&seen, "gated"), [5], "{seen}");
    let _agent = attached(&scene, &GATE_OF_ONE);
    let killed = container.runc().args(["kill", &container.id, "KILL"]).status();
    assert!(killed.unwrap().success());
    wait_for("the end of the server", || client.query("work").is_none());
    wait_for("free records of the container", || workers(&scene) == 0);
}
