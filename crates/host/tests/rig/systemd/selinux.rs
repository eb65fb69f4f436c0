//! A server that SELinux confines, with the module that is shipped for it.

use super::machine::run;
use super::packages;
use crate::scene::wait_for;
use rustix::fs::{XattrFlags, setxattr};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};

const PAGE: &str = "/run/lull-db";
const LIBRARY: &str = "/usr/local/lib/lull";
/// As `restorecon` sets it by the module.
const PAGE_LABEL: &[u8] = b"system_u:object_r:lull_page_t:s0\0";
const SELINUX: &str = "/sys/fs/selinux";
/// The file into which `secilc` writes the labels of files.
const CONTEXTS: &str = "/run/contexts";
const POLICY: &str = include_str!("selinux.cil");
const MODULE: &str = include_str!("../../../../../packaging/selinux/lull.cil");
/// Domains, and whether a server in them has the library and the page.
const DOMAINS: [(&str, bool, bool); 3] =
    [("other_t", false, false), ("loaded_t", true, false), ("mysqld_t", true, true)];

/// Writes to a file of the kernel at once.
fn put(file: &str, bytes: &[u8]) {
    let path = Path::new(SELINUX).join(file);
    let written = OpenOptions::new().write(true).open(path).and_then(|mut to| to.write(bytes));
    assert_eq!(written.unwrap(), bytes.len(), "{file}");
}

fn load_policy() {
    fs::write("/run/policy.cil", POLICY).unwrap();
    fs::write("/run/module.cil", MODULE).unwrap();
    let files = ["-o", "/run/policy", "-f", CONTEXTS, "/run/policy.cil", "/run/module.cil"];
    run("secilc", &files);
    if !Path::new(SELINUX).join("load").exists() {
        run("mount", &["-t", "selinuxfs", "none", SELINUX]);
    }
    put("load", &fs::read("/run/policy").unwrap());
}

/// Starts a server in a domain, with these variables from before it enters the domain.
fn start(domain: &str, environment: &str, address: &str) -> Child {
    let (host, port) = address.split_once(':').unwrap();
    let script = format!(
        "printf %s system_u:system_r:{domain}:s0 > /proc/self/attr/exec && \
         exec /usr/bin/memcached -u memcache -l {host} -p {port} -U 0"
    );
    let variables = environment.lines().filter_map(|line| line.split_once('='));
    let mut server = Command::new("sh");
    server.envs(variables).args(["-c", &script]).spawn().unwrap()
}

/// A server needs the two rules of the module: one to be given the library, and one to map the
/// page.
pub(super) fn by_the_module() {
    packages::dpkg_install(&packages::brought().1);
    fs::create_dir_all(LIBRARY).unwrap();
    let environment = run("lull", &["attach", PAGE, "--library", LIBRARY, "--environment"]);
    load_policy();
    let page = format!("{PAGE}/page");
    let contexts = fs::read_to_string(CONTEXTS).unwrap();
    for looked_up in [page.clone(), format!("/var{page}")] {
        let is_labelled = |line: &str| line.split_whitespace().next() == Some(looked_up.as_str());
        assert!(contexts.lines().any(is_labelled), "{looked_up}: {contexts}");
    }
    setxattr(&page, "security.selinux", PAGE_LABEL, XattrFlags::empty()).unwrap();
    put("enforce", b"1");
    for (number, (domain, has_library, has_page)) in DOMAINS.into_iter().enumerate() {
        let address = format!("127.0.0.1:{}", 11300 + number);
        let mut server = start(domain, &environment, &address);
        wait_for(domain, || TcpStream::connect(&address).is_ok());
        let proc = format!("/proc/{}", server.id());
        let label = fs::read_to_string(format!("{proc}/attr/current")).unwrap();
        assert_eq!(label.trim_end_matches('\0'), format!("system_u:system_r:{domain}:s0"));
        let maps = fs::read_to_string(format!("{proc}/maps")).unwrap();
        let has = [LIBRARY, &page].map(|file| maps.contains(file));
        assert_eq!(has, [has_library, has_page], "{domain}: {maps}");
        server.kill().unwrap();
        server.wait().unwrap();
    }
    put("enforce", b"0");
}
