//! The API server: its address, the watched objects, and its errors.

use super::backoff::{PatientBackoff, Throttle};
use crate::message::Begin;
use crate::objective::LatencyObjective;
use crate::pods::WatchedPod;
use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, select};
use http::Response;
use kube::client::{ClientBuilder, DynBody};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Config};
use lull_host::sandbox::ClientRights;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tower::util::MapResponseLayer;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest silence of a connection; the server ends a watch after 290 s itself.
const READ_TIMEOUT: Duration = Duration::from_secs(295);
/// Longest wait for the answer to a probe.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The files that the C library reads to resolve a name.
const RESOLVER_FILES: [&str; 5] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf"];
/// Pods of one answer to a list. A pod has some ten kilobytes of JSON, so that an answer with all
/// pods of a node would be most of the memory of this process.
const PAGE: u32 = 50;
/// The port of name servers, for long answers.
const NAME_SERVER_PORT: u16 = 53;

/// A change of a watched object.
#[derive(Debug)]
pub(super) enum Change {
    Pod(Box<watcher::Result<watcher::Event<WatchedPod>>>),
    Rule(Box<watcher::Result<watcher::Event<LatencyObjective>>>),
}

/// The changes, for as long as the watches last.
pub(super) type Changes = BoxStream<'static, Change>;

/// Reads how to reach the API server, while the process may read every file.
pub(super) async fn config_of(begin: &Begin) -> anyhow::Result<Config> {
    let mut config = match &begin.kubeconfig {
        Some(path) => {
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await?
        }
        None => match Config::incluster() {
            Ok(config) => config,
            // The error of `infer` names both the kubeconfig and the cluster's environment.
            Err(_) => Config::infer().await?,
        },
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // Whether and when a request is repeated is decided in one place, by the watch.
    config.default_retry = false;
    read_identity(&mut config.auth_info)?;
    Ok(config)
}

/// Replaces the files of a client certificate by their contents, since clients are made when the
/// process may no longer read them.
fn read_identity(auth: &mut AuthInfo) -> anyhow::Result<()> {
    let read = |path: &str| {
        let bytes = std::fs::read(path);
        bytes.map(|bytes| STANDARD.encode(bytes)).with_context(|| format!("cannot read {path}"))
    };
    if auth.client_certificate_data.is_none()
        && let Some(path) = auth.client_certificate.take()
    {
        auth.client_certificate_data = Some(read(&path)?);
    }
    if auth.client_key_data.is_none()
        && let Some(path) = auth.client_key.take()
    {
        auth.client_key_data = Some(read(&path)?.into());
    }
    Ok(())
}

/// Makes a client that notes the time for which the server requests no load.
pub(super) fn client(config: &Config, throttle: &Throttle) -> kube::Result<Client> {
    let throttle = throttle.clone();
    let note = move |response: Response<Box<DynBody>>| {
        throttle.note(&response, Instant::now());
        response
    };
    let builder = ClientBuilder::try_from(config.clone())?;
    Ok(builder.with_layer(&MapResponseLayer::new(note)).build())
}

/// Returns the rights that a client of this server needs.
pub(super) fn rights_of(config: &Config) -> ClientRights {
    let url = &config.cluster_url;
    let usual = if url.scheme_str() == Some("http") { 80 } else { 443 };
    let mut files: Vec<PathBuf> = RESOLVER_FILES.iter().map(PathBuf::from).collect();
    // The kubelet replaces the token by way of links within its directory.
    let token = config.auth_info.token_file.as_ref();
    files.extend(token.and_then(|token| Some(Path::new(token).parent()?.to_owned())));
    files.extend(config.root_cert_file.clone());
    ClientRights { files, ports: vec![url.port_u16().unwrap_or(usual), NAME_SERVER_PORT] }
}

/// Watches the pods of a node, and all `LatencyObjective`s. After an error each watch waits longer
/// and longer, up to 30 s and not before the server wants a request, and begins again where it
/// was.
pub(super) fn watch(client: &Client, node: &str, throttle: &Throttle) -> Changes {
    let patience = || PatientBackoff::new(throttle.clone());
    let of_node = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let of_node = of_node.page_size(PAGE);
    let pods = watcher(Api::<WatchedPod>::all(client.clone()), of_node).backoff(patience());
    let rules = Api::<LatencyObjective>::all(client.clone());
    let rules = watcher(rules, watcher::Config::default()).backoff(patience());
    let pods = pods.map(|change| Change::Pod(Box::new(change)));
    let rules = rules.map(|change| Change::Rule(Box::new(change)));
    select(pods, rules).boxed()
}

/// Checks whether the API server answers.
///
/// # Errors
/// The reason why it is not.
pub(super) async fn probe(client: &Client) -> Result<(), String> {
    probe_within(client, ANSWER_TIMEOUT).await
}

async fn probe_within(client: &Client, most: Duration) -> Result<(), String> {
    match tokio::time::timeout(most, client.apiserver_version()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if code(&error).is_some_and(|code| code < 500) => Ok(()),
        Ok(Err(error)) => Err(format!("the API server cannot be reached: {}", chain(&error))),
        Err(_) => {
            let waited_s = most.as_secs_f64();
            Err(format!("the API server cannot be reached: no answer within {waited_s} s"))
        }
    }
}

/// Explains an error of a watch.
pub(super) fn describe(error: &watcher::Error, what: &str) -> String {
    match code_of(error) {
        Some(401) => "the API server refuses the token, which may have expired; its file is read \
                      again"
            .to_owned(),
        Some(403) => format!("the service account may not list and watch {what}: {}", chain(error)),
        Some(404) => format!("the API server knows no {what}"),
        Some(429) => "the API server is throttling: the watch begins again later".to_owned(),
        _ if is_unreadable(error) => {
            format!("this version cannot read the {what} of the API server: {}", chain(error))
        }
        _ => format!("the API server cannot be reached: {}", chain(error)),
    }
}

/// Whether a token was refused.
pub(super) fn is_unauthorized(error: &watcher::Error) -> bool {
    code_of(error) == Some(401)
}

/// Whether the server has answered, with a refusal or with what this version cannot read. It may
/// answer other requests meanwhile, so that these say nothing about when to watch again.
pub(super) fn is_answer(error: &watcher::Error) -> bool {
    code_of(error).is_some() || is_unreadable(error)
}

/// Whether the server may list the same later: it throttles, or a token has expired.
pub(super) fn is_temporary(error: &watcher::Error) -> bool {
    matches!(code_of(error), Some(401 | 429 | 503))
}

/// Whether the server has answered that there is no such thing for this client.
pub(super) fn is_refusal(error: &watcher::Error) -> bool {
    matches!(code_of(error), Some(403 | 404))
}

/// Whether the server has answered with what this version cannot read.
pub(super) fn is_unreadable(error: &watcher::Error) -> bool {
    matches!(
        error,
        watcher::Error::InitialListFailed(kube::Error::SerdeError(_))
            | watcher::Error::WatchStartFailed(kube::Error::SerdeError(_))
            | watcher::Error::WatchFailed(kube::Error::SerdeError(_))
    )
}

fn code_of(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => code(error),
        watcher::Error::WatchError(status) => Some(status.code),
        watcher::Error::NoResourceVersion => None,
    }
}

fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn answered(code: u16) -> watcher::Error {
        let status = Status { code, message: "why".to_owned(), ..Status::default() };
        watcher::Error::InitialListFailed(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn an_error_says_what_to_look_at() {
        let cases = [
            (401, "refuses the token"),
            (403, "may not list and watch pods"),
            (404, "knows no pods"),
            (429, "throttling"),
            (500, "cannot be reached"),
        ];
        for (code, wanted) in cases {
            let text = describe(&answered(code), "pods");
            assert!(text.contains(wanted), "{code}: {text}");
            assert_eq!(is_unauthorized(&answered(code)), code == 401);
            assert_eq!(is_refusal(&answered(code)), [403, 404].contains(&code));
            assert_eq!(is_temporary(&answered(code)), [401, 429].contains(&code));
            assert!(is_answer(&answered(code)));
            assert!(!is_unreadable(&answered(code)));
        }
        let wrong = serde_json::from_str::<bool>("1").unwrap_err();
        let wrong = watcher::Error::InitialListFailed(kube::Error::SerdeError(wrong));
        assert!(is_answer(&wrong) && is_unreadable(&wrong));
        assert!(describe(&wrong, "pods").contains("cannot read the pods"));
    }

    #[test]
    fn a_server_that_throttles_gets_one_request_and_is_left_alone() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut bytes = [0; 4096];
                let count = stream.read(&mut bytes).unwrap();
                sender.send(String::from_utf8_lossy(&bytes[..count]).into_owned()).unwrap();
                let answer = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 70\r\n\
                              Content-Length: 0\r\nConnection: close\r\n\r\n";
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let mut config = Config::new(format!("http://{address}").parse().unwrap());
        config.default_retry = false;
        let throttle = Throttle::default();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_io().enable_time().build().unwrap();
        let error = runtime.block_on(async {
            let client = client(&config, &throttle).unwrap();
            let mut changes = watch(&client, "node", &throttle);
            loop {
                match changes.next().await {
                    Some(Change::Pod(change)) => {
                        if let Err(error) = *change {
                            break error;
                        }
                    }
                    Some(Change::Rule(_)) => {}
                    None => panic!("the watch has ended"),
                }
            }
        });
        assert!(is_answer(&error) && describe(&error, "pods").contains("throttling"), "{error:?}");
        let left = throttle.remaining(Instant::now());
        assert!(left > Duration::from_secs(40) && left <= Duration::from_secs(70), "{left:?}");
        let requests = requests.try_iter().filter(|request| request.contains("/pods?"));
        let to_pods: Vec<String> = requests.collect();
        assert_eq!(to_pods.len(), 1);
        assert!(to_pods[0].contains("fieldSelector=spec.nodeName%3Dnode&"), "{to_pods:?}");
    }

    #[test]
    fn a_server_behind_a_partition_is_lost_though_its_connection_stays() {
        // The kernel accepts the connection into the backlog, and nothing answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        let mut config = Config::new(format!("http://{address}").parse().unwrap());
        config.default_retry = false;
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_io().enable_time().build().unwrap();
        let probed = runtime.block_on(async {
            let client = client(&config, &Throttle::default()).unwrap();
            probe_within(&client, Duration::from_millis(100)).await
        });
        assert!(probed.unwrap_err().contains("no answer within 0.1 s"));
    }

    #[test]
    fn a_client_certificate_is_read_while_the_process_may() {
        let place = tempfile::tempdir().unwrap();
        let file = |name: &str| place.path().join(name).display().to_string();
        std::fs::write(file("cert"), "certificate").unwrap();
        std::fs::write(file("key"), "key").unwrap();
        let mut auth = AuthInfo {
            client_certificate: Some(file("cert")),
            client_key: Some(file("key")),
            ..AuthInfo::default()
        };
        read_identity(&mut auth).unwrap();
        assert_eq!(auth.client_certificate_data, Some(STANDARD.encode("certificate")));
        assert!(auth.client_key_data.is_some() && auth.client_key.is_none());
        auth = AuthInfo { client_key: Some(file("none")), ..AuthInfo::default() };
        assert!(read_identity(&mut auth).unwrap_err().to_string().contains("none"));
    }

    #[test]
    fn a_client_keeps_the_port_of_its_server_and_the_directory_of_its_token() {
        let mut config = Config::new("https://10.0.0.1:6443/".parse().unwrap());
        config.auth_info.token_file = Some("/var/run/secrets/sa/token".to_owned());
        let rights = rights_of(&config);
        assert_eq!(rights.ports, [6443, 53]);
        assert_eq!(rights.files.last(), Some(&PathBuf::from("/var/run/secrets/sa")));
        let usual = Config::new("https://kubernetes.default.svc/".parse().unwrap());
        assert_eq!(rights_of(&usual).ports, [443, 53]);
    }
}
