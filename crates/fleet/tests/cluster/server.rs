//! etcd and kube-apiserver, with the chart installed in them.

use crate::wait_until;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceAccount};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use kube::{Api, Client, Config};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::runtime::Runtime;

/// The namespace of the chart.
const NAMESPACE: &str = "lull";
/// The token of the test, which may do everything.
const ADMIN: &str = "the-token-of-the-test";

/// The programs that the test starts.
pub(crate) struct Programs {
    pub(crate) lull: PathBuf,
    apiserver: PathBuf,
    helm: PathBuf,
    etcd: PathBuf,
    openssl: PathBuf,
    /// A container runtime of the test.
    pub(crate) runtime: PathBuf,
}

impl Programs {
    /// Finds them.
    ///
    /// # Errors
    /// The missing part.
    pub(crate) fn find() -> Result<Self, String> {
        if Path::new("/proc/self").metadata().is_ok_and(|own| own.uid() != 0) {
            return Err("cgroups of pods need root".to_owned());
        }
        Ok(Self {
            apiserver: built("kubernetes-1.34.2/bin/kube-apiserver")?,
            helm: helm()?,
            runtime: of_nri("nri-runtime")?,
            etcd: installed("etcd")?,
            openssl: installed("openssl")?,
            lull: lull()?,
        })
    }
}

/// helm, from the cache.
///
/// # Errors
/// If it is missing.
pub(crate) fn helm() -> Result<PathBuf, String> {
    built("helm-3.19.2/bin/helm")
}

/// A program of this machine.
///
/// # Errors
/// If it is missing.
pub(crate) fn installed(name: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|place| place.join(name));
    places.find(|path| path.is_file()).ok_or_else(|| format!("no {name} on this machine"))
}

/// A program of the cache.
///
/// # Errors
/// If it is missing.
pub(crate) fn built(place: &str) -> Result<PathBuf, String> {
    let path = lull_testing::cache().unwrap_or_default().join(place);
    let hint = "build it with `cargo xtask kubernetes`";
    path.exists().then_some(path).ok_or_else(|| format!("no {place} in the cache: {hint}"))
}

/// A program of `tests/nri`, as it was built from these files.
///
/// # Errors
/// If it is missing.
pub(crate) fn of_nri(program: &str) -> Result<PathBuf, String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nri");
    let digest = lull_testing::digest(&sources).map_err(|error| error.to_string())?;
    built(&format!("nri-runtime-{digest}/bin/{program}"))
}

/// The program beside this test, if it was built with the crate under test.
///
/// # Errors
/// If it was built without, or is missing.
pub(crate) fn lull() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let usual = own.parent().and_then(Path::parent).map(|place| place.join("lull"));
    let named = std::env::var_os("LULL_PROGRAM").map(PathBuf::from);
    let lull = named.or(usual).ok_or("no place for the program")?;
    // Without an agent the command ends at once, and says so.
    let mut pods = Command::new(&lull);
    let output = pods.arg("pods").stdin(Stdio::null()).output().map_err(|why| why.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_fleet = text.contains("for the agent") || text.contains("os error");
    let why = format!("{} was built without the feature fleet: {text}", lull.display());
    is_fleet.then_some(lull).ok_or(why)
}

/// A process that ends with the test.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A cluster without nodes.
pub(crate) struct Server {
    pub(crate) programs: Programs,
    pub(crate) place: tempfile::TempDir,
    pub(crate) runtime: Runtime,
    port: u16,
    etcd_port: u16,
    apiserver: Option<Process>,
    _etcd: Process,
}

impl Server {
    pub(crate) fn start(programs: Programs) -> Self {
        let place = tempfile::tempdir().unwrap();
        let [port, etcd_port, peer_port] = free_ports();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut etcd = Command::new(&programs.etcd);
        etcd.arg("--data-dir").arg(place.path().join("etcd"));
        etcd.args(["--listen-client-urls", &url(etcd_port)]);
        etcd.args(["--advertise-client-urls", &url(etcd_port)]);
        etcd.args(["--listen-peer-urls", &url(peer_port)]);
        etcd.arg("--unsafe-no-fsync");
        let etcd = spawn(&mut etcd, &place.path().join("etcd.log"), &["--unsafe-no-fsync"]);
        make_keys(&programs.openssl, place.path());
        let tokens = format!("{ADMIN},admin,admin,\"system:masters\"\n");
        std::fs::write(place.path().join("tokens.csv"), tokens).unwrap();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        let mut server =
            Self { programs, place, runtime, port, etcd_port, apiserver: None, _etcd: etcd };
        server.run();
        server
    }

    /// Starts the API server and waits until it is ready.
    pub(crate) fn run(&mut self) {
        let place = self.place.path();
        let file = |name: &str| place.join(name).display().to_string();
        let mut apiserver = Command::new(&self.programs.apiserver);
        apiserver.args(["--etcd-servers", &format!("http://127.0.0.1:{}", self.etcd_port)]);
        apiserver.args(["--bind-address", "127.0.0.1", "--secure-port", &self.port.to_string()]);
        apiserver.args(["--cert-dir", &file("certificates")]);
        apiserver.args(["--token-auth-file", &file("tokens.csv")]);
        apiserver.args(["--service-account-issuer", "https://kubernetes.default.svc"]);
        apiserver.args(["--service-account-key-file", &file("accounts.pem")]);
        apiserver.args(["--service-account-signing-key-file", &file("accounts.key")]);
        apiserver.args(["--service-cluster-ip-range", "10.96.0.0/16"]);
        apiserver.args(["--authorization-mode", "RBAC", "--allow-privileged"]);
        apiserver.args(["--disable-admission-plugins", "ServiceAccount,Priority"]);
        self.apiserver = Some(spawn(&mut apiserver, &place.join("apiserver.log"), &[]));
        let log = place.join("apiserver.log");
        wait_until(&format!("the API server is ready; {}", log.display()), || {
            let certificate = place.join("certificates/apiserver.crt");
            certificate.exists() && self.client().is_some_and(|client| self.is_ready(&client))
        });
        self.write_kubeconfigs();
    }

    fn is_ready(&self, client: &Client) -> bool {
        let request = http_get("/readyz");
        let answer = self.runtime.block_on(client.request_text(request));
        answer.is_ok_and(|text| text == "ok")
    }

    /// Kills the API server.
    pub(crate) fn stop(&mut self) {
        self.apiserver = None;
    }

    /// Stops the API server without ending it, or lets it continue: connections stay, and nothing
    /// answers meanwhile.
    pub(crate) fn freeze(&self, is_frozen: bool) {
        let Some(Process(child)) = &self.apiserver else { return };
        let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
        let signal = if is_frozen { Signal::STOP } else { Signal::CONT };
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// A client that may do everything.
    pub(crate) fn client(&self) -> Option<Client> {
        let _inside = self.runtime.enter();
        let kubeconfig =
            Kubeconfig::from_yaml(&self.kubeconfig(&json!({ "token": ADMIN }))).ok()?;
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options);
        Client::try_from(self.runtime.block_on(config).ok()?).ok()
    }

    fn kubeconfig(&self, user: &Value) -> String {
        // JSON is YAML, too.
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{ "name": "test", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.port),
                "certificate-authority": self.place.path().join("certificates/apiserver.crt"),
            } }],
            "users": [{ "name": "test", "user": user }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        })
        .to_string()
    }

    fn write_kubeconfigs(&self) {
        let place = self.place.path();
        let admin = self.kubeconfig(&json!({ "token": ADMIN }));
        std::fs::write(place.join("admin.yaml"), admin).unwrap();
        let token = place.join("account/token");
        let agent = self.kubeconfig(&json!({ "tokenFile": token }));
        std::fs::write(place.join("agent.yaml"), agent).unwrap();
    }

    /// Installs the chart as it is, for the config and the rights of the agent.
    pub(crate) fn install_chart(&self) {
        self.helm(&["install", "lull", "--create-namespace"]);
        self.renew_token();
    }

    fn helm(&self, arguments: &[&str]) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let (action, more) = arguments.split_at(2);
        let mut helm = Command::new(&self.programs.helm);
        helm.args(action).arg(root.join("packaging/helm/lull")).args(more);
        helm.arg("--kubeconfig").arg(self.place.path().join("admin.yaml"));
        helm.args(["--namespace", NAMESPACE]);
        helm.arg("--values").arg(root.join("crates/fleet/tests/cluster/values.yaml"));
        helm.env("HOME", self.place.path());
        let output = helm.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The config that the chart gives to the agent.
    pub(crate) fn config(&self) -> String {
        let maps = Api::<ConfigMap>::namespaced(self.client().unwrap(), NAMESPACE);
        let map = self.runtime.block_on(maps.get("lull")).unwrap();
        map.data.unwrap().remove("lull.toml").unwrap()
    }

    /// Writes a token of the chart's service account where the agent reads it.
    pub(crate) fn renew_token(&self) {
        let accounts = Api::<ServiceAccount>::namespaced(self.client().unwrap(), NAMESPACE);
        let spec = TokenRequestSpec { expiration_seconds: Some(3_600), ..Default::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let how = PostParams::default();
        let made = accounts.create_token_request("lull", &how, &request);
        let made = self.runtime.block_on(made).unwrap();
        self.write_token(&made.status.unwrap().token);
    }

    /// Makes every token so far worthless, those that clients still remember too: the service
    /// account is replaced by one of the same name.
    pub(crate) fn revoke_tokens(&self) {
        let accounts = Api::<ServiceAccount>::namespaced(self.client().unwrap(), NAMESPACE);
        self.runtime.block_on(async {
            let mut account = accounts.get("lull").await.unwrap();
            accounts.delete("lull", &DeleteParams::default()).await.unwrap();
            account.metadata.resource_version = None;
            account.metadata.uid = None;
            accounts.create(&PostParams::default(), &account).await.unwrap();
        });
    }

    /// Replaces the token as the kubelet does: at once.
    pub(crate) fn write_token(&self, token: &str) {
        let place = self.place.path().join("account");
        std::fs::create_dir_all(&place).unwrap();
        // The watcher has no rights of root by then.
        for path in [self.place.path(), &place] {
            set_mode(path, 0o755);
        }
        std::fs::write(place.join("new"), token).unwrap();
        set_mode(&place.join("new"), 0o644);
        std::fs::rename(place.join("new"), place.join("token")).unwrap();
    }

    /// Makes a `LatencyObjective` for latency-critical pods.
    pub(crate) fn create_objective(&self, name: &str, objectives: &Value) -> Result<(), String> {
        self.create_objective_for(name, "Exists", objectives)
    }

    /// The same with another operator of its selector.
    pub(crate) fn create_objective_for(
        &self,
        name: &str,
        operator: &str,
        objectives: &Value,
    ) -> Result<(), String> {
        let selector = json!({ "matchExpressions": [{ "key": "critical", "operator": operator }] });
        self.create_objective_of(name, &json!({ "selector": selector, "objectives": objectives }))
    }

    /// The same with this specification.
    pub(crate) fn create_objective_of(&self, name: &str, spec: &Value) -> Result<(), String> {
        let kind = GroupVersionKind::gvk("lull.dev", "v1alpha1", "LatencyObjective");
        let resource = ApiResource::from_gvk(&kind);
        let all =
            Api::<DynamicObject>::namespaced_with(self.client().unwrap(), "default", &resource);
        let object = json!({
            "apiVersion": "lull.dev/v1alpha1", "kind": "LatencyObjective",
            "metadata": { "name": name }, "spec": spec,
        });
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let created = self.runtime.block_on(all.create(&PostParams::default(), &object));
        created.map(drop).map_err(|error| error.to_string())
    }

    /// Creates the Job of docs/cells.md, of which the API server must know every field.
    pub(crate) fn accepts_the_job_for_cells(&self) {
        let page = include_str!("../../../../docs/cells.md");
        let (_, rest) = page.split_once("```yaml\n").unwrap();
        let (manifest, _) = rest.split_once("```").unwrap();
        let path = "/apis/batch/v1/namespaces/default/jobs?fieldValidation=Strict";
        let request = http::Request::post(path).header("Content-Type", "application/yaml");
        let request = request.body(manifest.as_bytes().to_vec()).unwrap();
        let client = self.client().unwrap();
        let answer = self.runtime.block_on(client.request_text(request)).unwrap();
        let job: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(job["spec"]["completionMode"], "Indexed", "{job}");
        let container = &job["spec"]["template"]["spec"]["containers"][0];
        let line = "lull sim s.toml --parts /shared/parts --cells $((JOB_COMPLETION_INDEX + 1))/20";
        assert_eq!(container["args"], json!([line]), "{job}");
    }

    /// Waits until so many Events with this reason are on pods.
    pub(crate) fn wait_for_events(&self, reason: &str, count: usize) {
        wait_until(&format!("{count} Events {reason}"), || self.events(reason).len() == count);
    }

    /// Waits until an Event is new or was repeated since `before`. It may be on any pod: of many
    /// Events at once the agent publishes those on the oldest pods and holds back the rest.
    pub(crate) fn wait_for_a_new_event(&self, reason: &str, before: &[Event]) {
        let is_new = |event: &Event| !before.contains(event);
        wait_until(&format!("a new Event {reason}"), || self.events(reason).iter().any(is_new));
    }

    pub(crate) fn events(&self, reason: &str) -> Vec<Event> {
        list_events(&self.runtime, self.client().unwrap(), reason)
    }

    /// Installs the chart with the receiver behind a Service, which the API server must accept.
    pub(crate) fn receiver_has_a_service(&self) {
        let receiver = "otlp.enabled=true,otlp.secret=lull-otlp,otlp.service.enabled=true";
        self.helm(&["upgrade", "lull", "--set", receiver]);
        let services = Api::<Service>::namespaced(self.client().unwrap(), NAMESPACE);
        let service = self.runtime.block_on(services.get("lull-otlp")).unwrap();
        let spec = service.spec.unwrap();
        assert_eq!(spec.internal_traffic_policy.as_deref(), Some("Local"));
        let ports = self.container()["ports"].clone();
        assert!(ports.to_string().contains("\"name\":\"otlp\""), "{ports}");
        assert!(self.config().contains("http_names = [\"page.example\",\"lull-otlp.lull.svc\""));
    }

    /// Compares what the switch of the chart adds with what docs/kubernetes.md says.
    pub(crate) fn steering_has_exactly_its_capabilities(&self) {
        let reading = self.container();
        let arguments = |container: &Value| container["args"].to_string();
        assert!(arguments(&reading).contains("--dry-run"));
        assert!(!reading["securityContext"]["capabilities"].to_string().contains("SYS_ADMIN"));
        self.helm(&["upgrade", "lull", "--set", "steering=true,policy=tide"]);
        let steering = self.container();
        assert!(!arguments(&steering).contains("--dry-run"));
        let added = |container: &Value| {
            let all = container["securityContext"]["capabilities"]["add"].as_array().cloned();
            all.unwrap_or_default()
        };
        let before = added(&reading);
        let new: Vec<Value> =
            added(&steering).into_iter().filter(|one| !before.contains(one)).collect();
        assert_eq!(new, ["SYS_NICE", "SYS_ADMIN"]);
        assert_eq!(steering["securityContext"]["privileged"], Value::Null);
        let profile = &steering["securityContext"]["appArmorProfile"]["type"];
        assert_eq!(profile, "Unconfined");
        let mount = |container: &Value| {
            let mounts = container["volumeMounts"].as_array().cloned().unwrap_or_default();
            mounts.into_iter().find(|one| one["mountPath"] == "/sys")
        };
        assert_eq!(mount(&reading).unwrap()["recursiveReadOnly"], "IfPossible");
        assert_eq!(mount(&steering).unwrap()["readOnly"], Value::Null);
    }

    fn container(&self) -> Value {
        let all = Api::<DaemonSet>::namespaced(self.client().unwrap(), NAMESPACE);
        let set = self.runtime.block_on(all.get("lull")).unwrap();
        let set = serde_json::to_value(set).unwrap();
        set["spec"]["template"]["spec"]["containers"][0].clone()
    }
}

fn http_get(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path).body(Vec::new()).unwrap()
}

/// The Events with this reason on pods.
pub(crate) fn list_events(runtime: &Runtime, client: Client, reason: &str) -> Vec<Event> {
    let events = Api::<Event>::namespaced(client, "default");
    let mut all = runtime.block_on(events.list(&ListParams::default())).unwrap().items;
    all.retain(|event| event.reason.as_deref() == Some(reason));
    all
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// The end of a log, without long lines: what a test shows that has failed.
pub(crate) fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_else(|error| error.to_string());
    let lines: Vec<&str> = text.lines().filter(|line| line.len() < 400).collect();
    let last = &lines[lines.len().saturating_sub(40)..];
    format!("the end of {}:\n{}", log.display(), last.join("\n"))
}

/// Starts a program with its output in a file; without the arguments that an older version lacks.
pub(crate) fn spawn(command: &mut Command, log: &Path, optional: &[&str]) -> Process {
    let log = File::create(log).unwrap();
    let help = || Command::new(command.get_program()).arg("--help").output().ok();
    let help = (!optional.is_empty()).then(help).flatten();
    let help = help.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let lacks =
        |one: &&str| help.as_ref().is_some_and(|help| !help.contains(one.trim_start_matches('-')));
    let dropped: Vec<&str> = optional.iter().copied().filter(|one| lacks(one)).collect();
    let mut again = Command::new(command.get_program());
    again.args(command.get_args().filter(|one| !dropped.iter().any(|it| *one == *it)));
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => again.env(name, value),
            None => again.env_remove(name),
        };
    }
    again.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    Process(again.spawn().unwrap())
}

/// The keys of the tokens of service accounts.
fn make_keys(openssl: &Path, place: &Path) {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(openssl);
        let status = command.current_dir(place).args(arguments).stderr(Stdio::null()).status();
        assert!(status.unwrap().success(), "openssl {arguments:?}");
    };
    run(&["genrsa", "-out", "accounts.key", "2048"]);
    run(&["rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pem"]);
}

pub(crate) fn free_ports() -> [u16; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// How long a program may take to end by itself.
pub(crate) const END: Duration = Duration::from_secs(60);
