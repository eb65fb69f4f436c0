//! A Prometheus over TLS that demands a certificate of its clients.

use super::{start, tails};
use crate::http::serving;
use crate::runs::attached;
use crate::support::record::{Record, epochs_so_far};
use crate::support::scene::Scene;
use crate::support::skip;
use crate::support::victim::Victim;
use std::process::Command;

/// Makes an authority and a certificate by it, for 127.0.0.1: `NAME.pem`, `NAME-leaf.pem` and
/// `NAME-leaf.key`.
fn certify(scene: &Scene, name: &str) {
    let openssl = |arguments: &str| {
        let mut command = Command::new("openssl");
        command.current_dir(scene.path("")).args(arguments.split(' '));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!(
        "req -x509 {key} -days 2 -subj /CN={name} -keyout {name}.key -out {name}.pem"
    ));
    openssl(&format!("req -new {key} -subj /CN=leaf -keyout {name}-leaf.key -out {name}.csr"));
    scene.write("names", "subjectAltName=IP:127.0.0.1\n");
    openssl(&format!(
        "x509 -req -in {name}.csr -CA {name}.pem -CAkey {name}.key -CAcreateserial -days 2 \
         -extfile names -out {name}-leaf.pem"
    ));
}

/// The configuration of a Prometheus that serves by the certificate of `servers` those whose
/// certificate is by the authority `clients`.
fn web_config(scene: &Scene) -> String {
    let file = |name: &str| scene.path(name).display().to_string();
    let text = format!(
        "tls_server_config:\n  cert_file: {}\n  key_file: {}\n  \
         client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {}\n",
        file("servers-leaf.pem"),
        file("servers-leaf.key"),
        file("clients.pem"),
    );
    format!("--web.config.file={}", scene.write("web.yml", &text).display())
}

/// Two apps whose tail is read over TLS, of which the second has no certificate to show.
fn over_tls(scene: &Scene, address: &str, apps: [&Victim; 3]) -> String {
    let file = |name: &str| scene.path(name).display().to_string();
    let ca = format!("ca = {:?}", file("servers.pem"));
    let own = format!(
        "certificate = {:?}, key = {:?}",
        file("clients-leaf.pem"),
        file("clients-leaf.key")
    );
    let source = |access: &str| {
        format!(
            "ideal = \"10us\"\nlatency = \"prometheus:https://{address}\"\n\
             query = 'max(lull_tail_latency_seconds{{app=\"server\"}})'\n\
             prometheus = {{ {access} }}"
        )
    };
    let [server, bare, batch] = apps;
    let certified = source(&format!("{ca}, {own}"));
    let text = attached("unmanaged", server, batch).replacen("ideal = \"10us\"", &certified, 1);
    format!(
        "{text}\n[[app]]\nname = \"bare\"\nclass = \"latency-critical\"\n\
         objectives = [{{ p95 = \"20us\" }}]\npid = {}\n{}\n",
        bare.pid(),
        source(&ca)
    )
}

#[test]
fn a_prometheus_over_tls_answers_the_agent_whose_certificate_it_knows() {
    if !cfg!(feature = "tls") {
        return skip("lull is built without the feature tls");
    }
    let (seen, blind) = (Scene::new(), Scene::new());
    let (first, target) = serving(&seen, "unmanaged", "");
    certify(&seen, "servers");
    certify(&seen, "clients");
    let (mut prometheus, address) = start(&seen, &target, &[&web_config(&seen)]);
    prometheus.wait_until_printed("Server is ready to receive web requests");
    let apps = [Victim::server(), Victim::server(), Victim::sleeper()];
    let text = over_tls(&seen, &address, apps.each_ref());
    let mut second = blind.agent(&blind.config("silence = \"1h\"", &text));
    // A record has no tables before its first epoch.
    second.wait_for("an epoch", || epochs_so_far(blind.records().last()) > 0);
    let file = blind.records().remove(0);
    second.wait_for("a tail", || !tails(&file, "server").is_empty());
    let reasons = "SELECT reason FROM missing WHERE label = 'bare' AND reason LIKE '%https://%'";
    second.wait_for("a refusal", || !Record::open(&file).text(reasons).is_empty());
    second.interrupt().well();
    first.interrupt().well();
    let pushed = tails(&seen.records()[0], "server");
    for tail in tails(&file, "server") {
        assert!(pushed.contains(&tail), "{tail} is none of {pushed:?}");
    }
    assert_eq!(tails(&file, "bare"), [""; 0], "it has no certificate");
}
