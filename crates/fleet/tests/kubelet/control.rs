//! The API server of the node: one that the test starts, or, in a guest of the rig, one that this
//! test has started on the machine outside.

use crate::cluster::server::{Programs, Server, list_events, lull, set_mode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::events::v1::Event;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

/// In a guest: the kubeconfig of the API server outside.
const GUEST: &str = "LULL_FLEET_KUBECONFIG";
/// The first address of services, for which the certificate of the API server is, too. In the
/// network of the guest it is that of the machine outside.
const OUTSIDE: &str = "10.96.0.1";

/// Whether this is a guest, where nothing may be missing.
pub(crate) fn is_guest() -> bool {
    std::env::var_os(GUEST).is_some()
}

/// How to reach the API server, and the program under test.
pub(crate) struct ControlPlane {
    pub(crate) runtime: Runtime,
    /// Where node and agent have their files.
    pub(crate) place: TempDir,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) lull: PathBuf,
    client: OnceCell<Client>,
    _server: Option<Server>,
}

impl ControlPlane {
    /// Starts an API server, or takes that of a guest.
    ///
    /// # Errors
    /// The missing part.
    pub(crate) fn find() -> Result<Self, String> {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let place = tempfile::tempdir().unwrap();
        set_mode(place.path(), 0o755);
        if let Some(outside) = std::env::var_os(GUEST) {
            let kubeconfig = PathBuf::from(outside);
            let (lull, client) = (lull()?, OnceCell::new());
            return Ok(Self { runtime, place, kubeconfig, lull, client, _server: None });
        }
        let programs = Programs::find()?;
        let lull = programs.lull.clone();
        let server = Server::start(programs);
        // The watcher reads the certificate of the API server without rights of root.
        set_mode(server.place.path(), 0o755);
        let kubeconfig = server.place.path().join("admin.yaml");
        let client = OnceCell::new();
        Ok(Self { runtime, place, kubeconfig, lull, client, _server: Some(server) })
    }

    /// A client that may do everything. There is one, because connections are slow under emulation.
    pub(crate) fn client(&self) -> Client {
        self.client.get_or_init(|| self.connect()).clone()
    }

    fn connect(&self) -> Client {
        let _inside = self.runtime.enter();
        let kubeconfig = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options);
        Client::try_from(self.runtime.block_on(config).unwrap()).unwrap()
    }

    /// Whether an Event with this reason is on a pod.
    pub(crate) fn has_event(&self, reason: &str, pod: &str) -> bool {
        let is_on =
            |event: &Event| event.regarding.as_ref().and_then(|it| it.name.as_deref()) == Some(pod);
        list_events(&self.runtime, self.client(), reason).iter().any(is_on)
    }
}

/// Runs an API server until standard input ends, for a guest of this machine.
pub(crate) fn serve(programs: Programs, place: &Path) {
    let server = Server::start(programs);
    // The file appears when it is complete.
    let unfinished = place.join("kubeconfig.new");
    std::fs::write(&unfinished, for_guest(&server)).unwrap();
    std::fs::rename(unfinished, place.join("kubeconfig")).unwrap();
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
}

/// The kubeconfig with another address of the API server, and its certificate in it.
fn for_guest(server: &Server) -> String {
    let text = std::fs::read_to_string(server.place.path().join("admin.yaml")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let cluster = &mut config["clusters"][0]["cluster"];
    let url = cluster["server"].as_str().unwrap().replace("127.0.0.1", OUTSIDE);
    let certificate = std::fs::read(cluster["certificate-authority"].as_str().unwrap()).unwrap();
    *cluster = json!({ "server": url, "certificate-authority-data": STANDARD.encode(certificate) });
    config.to_string()
}
