//! Real servers under TLS, and HTTP/2.

mod database_programs;
mod support;
mod tls_faults;

use database_programs::{postgres_program, unprivileged};
use lull_measure::Nanos;
use lull_workload::arrivals::Rate;
use lull_workload::client::{self, LoadConfig, LoadReport};
use lull_workload::target::{Address, ScriptSource, TlsConfig};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use support::CacheServer;
use tls_faults::{AnswerTo, Fault};

/// A certificate of its own for 127.0.0.1, with its key, in a directory that any user may enter.
struct Certificate {
    place: tempfile::TempDir,
}

/// The names of this machine in a certificate.
const HERE: &str = "IP:127.0.0.1, DNS:localhost";
/// How a key is made.
const KEY: [&str; 5] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

impl Certificate {
    fn new() -> Self {
        let certificate = Self::unmade(HERE);
        certificate.make();
        certificate
    }

    /// As [`Certificate::new`], for another host.
    fn for_elsewhere() -> Self {
        let certificate = Self::unmade("DNS:elsewhere");
        certificate.make();
        certificate
    }

    /// As [`Certificate::new`], and valid on the first day of 2020 only.
    fn expired() -> Self {
        let certificate = Self::unmade(HERE);
        std::fs::write(certificate.path("index"), "").unwrap();
        std::fs::write(certificate.path("serial"), "01\n").unwrap();
        for file in ["index", "serial"] {
            let all = PermissionsExt::from_mode(0o666);
            std::fs::set_permissions(certificate.path(file), all).unwrap();
        }
        let request = [&["req", "-new"][..], &KEY, &["-keyout", "key.pem", "-out", "request.pem"]];
        certificate.openssl(&request.concat());
        let sign = ["ca", "-batch", "-notext", "-selfsign", "-keyfile", "key.pem"];
        let day = ["-startdate", "20200101000000Z", "-enddate", "20200102000000Z"];
        let files = ["-extensions", "more", "-in", "request.pem", "-out", "cert.pem"];
        certificate.openssl(&[&sign[..], &day, &files].concat());
        certificate
    }

    /// A directory in which a certificate for these names can be made.
    fn unmade(names: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let certificate = Self { place };
        let text = format!(
            "[req]\ndistinguished_name = name\nx509_extensions = more\nprompt = no\n\
             [name]\nCN = localhost\n[more]\nbasicConstraints = critical, CA:FALSE\n\
             subjectAltName = {names}\n[ca]\ndefault_ca = own\n[own]\ndatabase = index\n\
             new_certs_dir = .\nserial = serial\ndefault_md = sha256\npolicy = any\n\
             [any]\ncommonName = supplied\n"
        );
        std::fs::write(certificate.path("openssl.cnf"), text).unwrap();
        certificate
    }

    fn make(&self) {
        let files = ["-keyout", "key.pem", "-out", "cert.pem"];
        self.openssl(&[&["req", "-x509", "-days", "2"][..], &KEY, &files].concat());
    }

    fn openssl(&self, arguments: &[&str]) {
        let mut openssl = unprivileged(Path::new("openssl"));
        openssl.args(arguments).args(["-config", "openssl.cnf"]).current_dir(&self.place);
        let made = openssl.output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// The certificate as an option of a server.
    fn option(&self, option: &str, name: &str) -> String {
        format!("{option}{}", self.path(name).display())
    }
}

fn run(load: &LoadConfig) -> LoadReport {
    client::run(load, &AtomicBool::new(false)).unwrap()
}

fn refusal(load: &LoadConfig) -> String {
    client::run(load, &AtomicBool::new(false)).unwrap_err().to_string()
}

/// A load that trusts the certificate.
fn load(address: Address, certificate: &Certificate) -> LoadConfig {
    let mut load = LoadConfig::new(address, Rate::constant(400.0));
    load.target.tls.ca = Some(certificate.path("cert.pem"));
    load.target.etc.records = 500;
    load.connections = 4;
    load.duration = Some(Nanos::from_millis(500));
    load.drain = Nanos::from_secs(20);
    load
}

fn assert_all_are_answered(load: &LoadConfig) {
    let report = run(load);
    assert!(report.due_requests > 100, "{report}");
    assert_eq!(report.completed_requests, report.due_requests, "{report}");
    assert_eq!((report.failed_requests, report.connection_losses), (0, 0), "{report}");
}

/// An unknown authority is refused before the run, with what to do, unless any is accepted.
fn assert_certificates_are_checked(load: &LoadConfig) {
    let mut load = load.clone();
    let another = Certificate::new();
    load.target.tls.ca = Some(another.path("cert.pem"));
    let refused = refusal(&load);
    assert!(refused.contains("certificate") && refused.contains("--tls-insecure"), "{refused}");
    load.target.tls.ca = None;
    load.target.tls.is_insecure = true;
    assert_all_are_answered(&load);
    load.target.tls.is_insecure = false;
    load.target.tls.ca = Some("/nonexistent".into());
    let refused = refusal(&load);
    assert!(refused.contains("/nonexistent"), "{refused}");
}

mod needs_redis_server {
    use super::*;

    #[test]
    fn redis_is_spoken_to_under_tls_and_its_certificate_is_checked() {
        let certificate = Certificate::new();
        let paths = ["cert.pem", "key.pem", "cert.pem"].map(|name| certificate.option("", name));
        let [cert, key, ca] = &paths;
        let options = [
            ["--port", "0"],
            ["--save", ""],
            ["--tls-cert-file", cert],
            ["--tls-key-file", key],
            ["--tls-ca-cert-file", ca],
            ["--tls-auth-clients", "no"],
        ];
        let server = CacheServer::start("redis-server", "--tls-port", options.as_flattened());
        let load = load(Address::redis(server.address).with_tls(), &certificate);
        assert_all_are_answered(&load);
        assert_all_are_answered(&LoadConfig { depth: 8, threads: 2, ..load.clone() });
        assert_certificates_are_checked(&load);
        let mut clear = load;
        clear.target.address = Address::redis(server.address);
        assert!(!refusal(&clear).is_empty(), "in the clear nothing is answered");
    }
}

mod needs_memcached {
    use super::*;

    fn server(certificate: &Certificate) -> CacheServer {
        let chain = certificate.option("ssl_chain_cert=", "cert.pem");
        let files = format!("{chain},{}", certificate.option("ssl_key=", "key.pem"));
        let options = ["-l", "127.0.0.1", "-U", "0", "-t", "1", "-u", "nobody", "-Z", "-o", &files];
        CacheServer::start("memcached", "-p", &options)
    }

    #[test]
    fn certificates_of_another_host_and_of_another_time_are_refused() {
        let cases = [
            (Certificate::for_elsewhere(), "not valid for name"),
            (Certificate::expired(), "expired"),
        ];
        for (certificate, reason) in cases {
            let server = server(&certificate);
            let mut load = load(Address::memcached(server.address).with_tls(), &certificate);
            let refused = refusal(&load);
            assert!(refused.contains(reason) && refused.contains("--tls-insecure"), "{refused}");
            load.target.tls = TlsConfig { ca: None, is_insecure: true };
            assert_all_are_answered(&load);
        }
    }

    /// A load of a server before which something else may answer.
    fn load_behind(
        server: &CacheServer,
        certificate: &Certificate,
        fault: Fault,
        answer: AnswerTo,
    ) -> LoadConfig {
        let port = tls_faults::before(server.address, fault, answer);
        let address = Address::memcached((Ipv4Addr::LOCALHOST, port).into()).with_tls();
        let mut load = load(address, certificate);
        load.preload = false;
        load
    }

    #[test]
    fn requests_under_tls_are_counted_where_a_server_stalls_resets_or_sends_garbage() {
        let certificate = Certificate::new();
        let server = server(&certificate);
        for fault in [Fault::Stall, Fault::Reset, Fault::Garbage] {
            let mut load = load_behind(&server, &certificate, fault, AnswerTo::Request);
            let is_stalled = fault == Fault::Stall;
            load.timeout = Nanos::from_millis(if is_stalled { 100 } else { 2000 });
            let report = run(&load);
            let ended =
                report.completed_requests + report.failed_requests + report.timed_out_requests;
            let counted = ended + report.outstanding_requests;
            assert_eq!(counted, report.due_requests, "{fault:?}: {report}");
            assert!(report.due_requests > 0 && report.tls_handshakes > 0, "{fault:?}: {report}");
            assert_eq!(report.completed_requests, 0, "{fault:?}: {report}");
            if is_stalled {
                assert_eq!(report.timed_out_requests, report.due_requests, "{report}");
            } else {
                assert!(report.failed_requests > 0 && report.connection_losses > 0, "{report}");
                assert!(report.last_connection_loss.is_some(), "{fault:?}: {report}");
            }
        }
    }

    #[test]
    fn a_handshake_that_stalls_or_fails_is_refused_before_the_run_with_the_reason() {
        let certificate = Certificate::new();
        let server = server(&certificate);
        for (fault, reason) in [
            (Fault::Stall, "no answer to the handshake of TLS"),
            (Fault::Reset, "reset"),
            (Fault::Garbage, "does a TLS server listen at this port?"),
        ] {
            let refused = refusal(&load_behind(&server, &certificate, fault, AnswerTo::Handshake));
            assert!(refused.contains(reason), "{fault:?}: {refused}");
        }
    }

    #[test]
    fn memcached_is_spoken_to_under_tls_and_its_certificate_is_checked() {
        let certificate = Certificate::new();
        let server = server(&certificate);
        let address = Address::memcached(server.address).with_tls();
        assert_eq!(address.to_string(), format!("memcacheds://{}", server.address));
        let load = load(address, &certificate);
        assert_all_are_answered(&load);
        assert_all_are_answered(&LoadConfig { depth: 8, threads: 2, ..load.clone() });
        assert_certificates_are_checked(&load);
    }
}

mod needs_nginx {
    use super::*;

    /// An nginx that speaks HTTP/1.1 and HTTP/2, in the clear at its address, and under TLS at
    /// the port that is returned.
    fn server(certificate: &Certificate) -> (CacheServer, u16) {
        let place = certificate.place.path().display().to_string();
        std::fs::write(certificate.path("page"), "x".repeat(200_000)).unwrap();
        std::fs::write(certificate.path("small"), "hello").unwrap();
        let mut encrypted = 0;
        let server = CacheServer::start_at([0, 0], |ports| {
            let config = certificate.path("nginx.conf");
            std::fs::write(&config, configuration(&place, ports)).unwrap();
            encrypted = ports[0];
            let mut nginx = Command::new("nginx");
            nginx.args(["-p", &place, "-c"]).arg(&config).stderr(Stdio::null());
            nginx
        });
        (server, encrypted)
    }

    fn configuration(place: &str, [encrypted, clear]: [u16; 2]) -> String {
        format!(
            "daemon off; master_process off; pid {place}/pid; error_log {place}/error;\n\
             events {{}}\nhttp {{\n\
             access_log off; default_type text/plain; root {place};\n\
             client_body_temp_path {place}/a; proxy_temp_path {place}/b;\n\
             fastcgi_temp_path {place}/c; uwsgi_temp_path {place}/d; scgi_temp_path {place}/e;\n\
             server {{ listen 127.0.0.1:{encrypted} ssl http2;\n\
             ssl_certificate {place}/cert.pem; ssl_certificate_key {place}/key.pem;\n\
             location /ten {{ keepalive_requests 10; alias {place}/small; }} }}\n\
             server {{ listen 127.0.0.1:{clear} http2; http2_max_concurrent_streams 16; }}\n}}\n"
        )
    }

    fn address(scheme: &str, port: u16, path: &str) -> Address {
        format!("{scheme}://127.0.0.1:{port}/{path}").parse().unwrap()
    }

    #[test]
    fn both_versions_of_http_are_answered_in_full_under_tls_and_in_the_clear() {
        let certificate = Certificate::new();
        let (server, port) = server(&certificate);
        let clear = server.address.port();
        for (scheme, port) in [("https", port), ("h2", port), ("h2c", clear)] {
            for path in ["small", "page"] {
                let load = load(address(scheme, port, path), &certificate);
                assert_all_are_answered(&load);
                assert_all_are_answered(&LoadConfig { depth: 8, ..load });
            }
            let missing = run(&load(address(scheme, port, "missing"), &certificate));
            assert_eq!(missing.server_errors.len(), 1, "{missing}");
            assert_eq!(missing.server_errors[0].code, "404", "{missing}");
            assert_eq!(missing.completed_requests, 0, "{missing}");
        }
        assert_certificates_are_checked(&load(address("https", port, "small"), &certificate));
    }

    #[test]
    fn a_connection_that_is_opened_again_resumes_a_session() {
        let certificate = Certificate::new();
        let (_server, port) = server(&certificate);
        let load = load(address("https", port, "ten"), &certificate);
        let report = run(&load);
        assert_eq!(report.completed_requests, report.due_requests, "{report}");
        assert_eq!((report.failed_requests, report.connection_losses), (0, 0), "{report}");
        assert!(report.announced_closes > 0, "{report}");
        // Each connection takes ten requests.
        assert!(report.tls_handshakes >= report.announced_closes, "{report}");
        assert!(report.resumed_tls_handshakes > report.announced_closes / 2, "{report}");
    }

    #[test]
    fn requests_beyond_what_an_http_2_server_allows_are_refused_with_what_to_write() {
        let certificate = Certificate::new();
        let (server, _) = server(&certificate);
        let load = load(address("h2c", server.address.port(), "small"), &certificate);
        let load = LoadConfig { depth: 64, connections: 1, rate: None, ..load };
        let report = run(&load);
        let loss = report.last_connection_loss.as_deref().unwrap_or_default();
        assert!(loss.contains("--depth 16"), "{report}");
    }

    #[test]
    fn a_server_without_http_2_is_named() {
        let certificate = Certificate::new();
        let (_server, port) = server(&certificate);
        // In the clear to the port of TLS.
        let refused = run(&load(address("h2c", port, "small"), &certificate));
        assert_eq!(refused.completed_requests, 0, "{refused}");
        let loss = refused.last_connection_loss.as_deref().unwrap_or_default();
        assert!(loss.contains("is this a HTTP/2 server?"), "{refused}");
    }
}

/// Waits until a database takes transactions under TLS, then sends some.
fn assert_transactions_are_encrypted(load: &LoadConfig) {
    let begun = std::time::Instant::now();
    while let Err(error) = client::run(load, &AtomicBool::new(false)) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{error}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    for script in [ScriptSource::HotRows, ScriptSource::TpcbLike] {
        let mut load = load.clone();
        load.target.database.script = script;
        let report = run(&load);
        assert!(report.completed_requests > 0, "{report}");
        assert_eq!((report.failed_requests, report.connection_losses), (0, 0), "{report}");
    }
    let mut other = load.clone();
    let another = Certificate::new();
    other.target.tls.ca = Some(another.path("cert.pem"));
    let refused = refusal(&other);
    assert!(refused.contains("certificate") && refused.contains("--tls-insecure"), "{refused}");
}

/// A closed loop of a script that says whether its connection is encrypted.
fn database(address: &str, certificate: &Certificate, script: &str) -> LoadConfig {
    let mut load = load(address.parse().unwrap(), certificate);
    let file = certificate.path("script.sql");
    std::fs::write(&file, script).unwrap();
    load.target.database.script = ScriptSource::File(file);
    LoadConfig { rate: None, ..load }
}

mod needs_mariadbd {
    use super::*;

    #[test]
    #[ignore = "slow: a database is installed and loaded"]
    fn transactions_are_done_under_tls() {
        let certificate = Certificate::new();
        let at = |option: &str, name: &str| certificate.option(option, name);
        for directory in ["data", "tmp"] {
            let path = certificate.path(directory);
            std::fs::create_dir(&path).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
        }
        let data = at("--datadir=", "data");
        let mut install = unprivileged(Path::new("mariadb-install-db"));
        install.args(["--no-defaults", &data, "--auth-root-authentication-method=normal"]);
        install.env("TMPDIR", certificate.path("tmp")).stdout(Stdio::null());
        assert!(install.status().unwrap().success());
        let server = CacheServer::start_at([0], |[port]| {
            let mut server = unprivileged(Path::new("mariadbd"));
            server.args(["--no-defaults", &data, "--bind-address=127.0.0.1"]);
            server.args([at("--socket=", "socket"), at("--pid-file=", "pid")]);
            server.args([at("--ssl-cert=", "cert.pem"), at("--ssl-key=", "key.pem")]);
            server.args([at("--tmpdir=", "tmp"), format!("--port={port}")]);
            server.args(["--skip-name-resolve", "--require-secure-transport=on"]);
            server.arg("--innodb-flush-log-at-trx-commit=0").stderr(Stdio::null());
            server
        });
        let address = format!("mysql://root@{}/test?tls", server.address);
        let load = database(&address, &certificate, "SELECT 1;\n");
        assert_transactions_are_encrypted(&load);
        let clear = address.trim_end_matches("?tls");
        let refused = refusal(&database(clear, &certificate, "SELECT 1;\n"));
        assert!(refused.contains("Access denied"), "the server insists on TLS: {refused}");
    }
}

mod needs_postgres {
    use super::*;

    #[test]
    #[ignore = "slow: a database is installed and loaded"]
    fn transactions_are_done_under_tls() {
        let certificate = Certificate::new();
        let data = certificate.path("data");
        let mut install = unprivileged(&postgres_program("initdb"));
        install.arg("-D").arg(&data).args(["--auth=trust", "--username=postgres", "--no-sync"]);
        let installed = install.current_dir(&certificate.place).stdout(Stdio::null()).status();
        assert!(installed.unwrap().success());
        // A client in the clear is refused.
        let only_tls = "hostssl all all 127.0.0.1/32 trust\n";
        std::fs::write(certificate.path("hba"), only_tls).unwrap();
        let server = CacheServer::start_at([0], |[port]| {
            let mut server = unprivileged(&postgres_program("postgres"));
            server.arg("-D").arg(&data).current_dir(&certificate.place).stderr(Stdio::null());
            let settings = [
                "listen_addresses=127.0.0.1".to_owned(),
                "unix_socket_directories=".to_owned(),
                "fsync=off".to_owned(),
                "ssl=on".to_owned(),
                format!("port={port}"),
                certificate.option("ssl_cert_file=", "cert.pem"),
                certificate.option("ssl_key_file=", "key.pem"),
                certificate.option("hba_file=", "hba"),
            ];
            server.args(settings.iter().flat_map(|one| ["-c", one]));
            server
        });
        let address = format!("postgres://postgres@{}/postgres?tls", server.address);
        let load = database(&address, &certificate, "SELECT 1;\n");
        assert_transactions_are_encrypted(&load);
        let clear = address.trim_end_matches("?tls");
        let refused = refusal(&database(clear, &certificate, "SELECT 1;\n"));
        assert!(refused.contains("no encryption"), "the server insists on TLS: {refused}");
    }
}
