//! PostgreSQL 17 and 18, with OpenSSL 1.1: connections that begin in the clear, that change to
//! TLS, and that begin by TLS.

use super::*;
use crate::support::skip;
use lull_testing::fetched::{self, POSTGRESQL_VERSIONS};

/// A copy of a version in the scene, where the user of the server may execute it.
fn copied(scene: &Scene, version: &str) -> Result<PathBuf, String> {
    let (from, to) = (fetched::postgresql(version)?, scene.path("postgresql"));
    let mut copy = Command::new("cp");
    copy.args(["--recursive", "--no-dereference"]).arg(from).arg(&to);
    assert!(copy.status().unwrap().success());
    Ok(to)
}

/// Requests five rows on a connection that begins with TLS, which psql does since version 17; with
/// the libraries of the server's version, the older psql does so too.
fn ask_by_direct_tls(database: &Database, installed: &Path) {
    let mut psql = database.psql();
    psql.env("LD_LIBRARY_PATH", installed.join("lib"));
    psql.env("PGSSLMODE", "require").env("PGSSLNEGOTIATION", "direct");
    let which = "select ssl, version from pg_stat_ssl where pid = pg_backend_pid()";
    psql.args(["-c", which]).args(["-c", "select 7"].repeat(4));
    let printed = text(&psql.output().unwrap());
    assert_eq!(printed.trim(), "t|TLSv1.3\n7\n7\n7\n7");
}

#[test]
fn postgresql_17_and_18_are_gated_in_the_clear_and_under_tls_however_it_begins() {
    for version in POSTGRESQL_VERSIONS {
        let scene = Scene::with_program_for_all();
        let installed = match copied(&scene, version) {
            Ok(installed) => installed,
            Err(why) => return skip(&why),
        };
        let (postgres, settings) = (installed.join("bin/postgres"), with_tls(&scene));
        let database = Database::start_in(&scene, &postgres, &["--concurrency", "2"], &settings);
        let shown = database.sql("show server_version");
        assert!(version.starts_with(shown.trim()), "{version}: {shown}");
        for tls in ["disable", "require"] {
            run_transactions(&database, tls);
        }
        ask_by_direct_tls(&database, &installed);
        let seen = database.server.seen();
        assert_transactions_gated(&seen, 16);
        let direct = of_class(&seen, "gated").iter().filter(|queries| **queries == 5).count();
        assert_eq!(direct, 1, "{version}: {seen}");
        assert!(of_class(&seen, "opaque").is_empty(), "{version}: {seen}");
        assert_eq!(seen["gate"]["waited_too_long"], 0, "{version}: {seen}");
    }
}
