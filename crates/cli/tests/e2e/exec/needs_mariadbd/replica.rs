//! A replica of a server behind a gate: it follows, and takes over.

use super::*;

/// Rows that each client inserts, and clients at a time.
const ROWS: u32 = 20;
const CLIENTS: u32 = 8;

impl Database {
    /// Has this many clients insert rows with keys from `first` on.
    fn insert_from(&self, first: u32) {
        let insert = |client: u32| {
            let keys = (0..ROWS).map(|row| first + client * ROWS + row);
            let all: Vec<String> =
                keys.map(|key| format!("insert into t values ({key}, 0)")).collect();
            self.client(&all.join("; "))
        };
        let clients: Vec<Child> = (0..CLIENTS).map(insert).collect();
        clients.into_iter().for_each(|client| drop(ended(client)));
    }

    fn inserted(&self) -> u32 {
        self.admin("select count(*) from sbtest.t where a >= 100").trim().parse().unwrap()
    }
}

#[test]
#[ignore = "slow: a second server follows the first and takes over"]
fn a_replica_of_a_gated_server_follows_it_and_takes_over_with_all_transactions() {
    let [first, second] = [Scene::new(), Scene::new()];
    let (options, log) = (["--concurrency", "2"], first.path("log"));
    let log = format!("--log-bin={}", log.display());
    let primary = Database::start_with(&first, &options, &["--server-id=1", &log]);
    let replica = Database::start_with(&second, &options, &["--server-id=2"]);
    let user = "repl@'127.0.0.1'";
    primary.admin(&format!("create user {user}; grant replication slave on *.* to {user}"));
    // Both have the same tables by now.
    let position = primary.admin("select @@gtid_current_pos");
    replica.admin(&format!("set global gtid_slave_pos = '{}'", position.trim()));
    replica.admin(&format!(
        "change master to master_host = '127.0.0.1', master_port = {}, master_user = 'repl', \
         master_use_gtid = slave_pos; start slave",
        primary.server.port
    ));
    primary.insert_from(100);
    assert_eq!(primary.inserted(), CLIENTS * ROWS);
    wait_for("a replica that has all", || replica.inserted() == CLIENTS * ROWS);
    assert_eq!(primary.server.seen()["gate"]["waited_too_long"], 0);
    replica.admin("stop slave");
    replica.insert_from(1000);
    assert_eq!(replica.inserted(), 2 * CLIENTS * ROWS);
    assert_eq!(replica.server.seen()["gate"]["waited_too_long"], 0);
}
