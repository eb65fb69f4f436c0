//! Statements whose messages differ from those of a query and its rows.

use super::*;

/// Data of a client, rows that a cursor fetches, notifications, several statements in a query,
/// data that the server refuses, and a transaction that another one ends. The last line is a
/// count of rows.
const SCRIPT: &str = "create table d (a int);\n\
    listen c;\nnotify c, 'news';\n\
    copy d from stdin;\n1\n2\n\\.\n\
    copy d to stdout;\n\
    begin;\ndeclare k cursor for select a from d;\nfetch 1 from k;\nclose k;\ncommit;\n\
    prepare p as select 5;\nexecute p;\n\
    select 1\\; select 2;\n\
    copy d from stdin;\nno number\n\\.\n\
    begin;\ninsert into d values (3);\nprepare transaction 'x';\ncommit prepared 'x';\n\
    select count(*) from d;\n";

#[test]
fn copies_cursors_notifications_and_prepared_transactions_pass_a_gate_of_one() {
    let allowed = |_: &Scene| vec!["max_prepared_transactions=4".to_owned()];
    let (database, scene) = Database::start_with(&["--concurrency", "1"], allowed);
    // Others want the only slot meanwhile.
    let mut crowd = database.client(&["-n", "-c", "4", "-T", "60"]).spawn().unwrap();
    wait_for("the crowd", || gate(&scene, &database)["workers"].as_u64() >= Some(4));
    let script = scene.write("script.sql", SCRIPT);
    let output = database.psql().arg("-f").arg(script).output().unwrap();
    let printed = text(&output);
    assert_eq!(printed.lines().last(), Some("3"), "{printed}");
    assert!(printed.contains("Asynchronous notification \"c\" with payload \"news\""), "{printed}");
    let refused = String::from_utf8_lossy(&output.stderr);
    assert!(refused.contains("invalid input syntax"), "{refused}");
    let pipeline = "\\startpipeline\nselect 1;\nselect 2;\n\\endpipeline\n";
    let pipeline = scene.write("pipeline.sql", pipeline);
    let pipeline =
        ["-n", "-M", "extended", "-c", "2", "-t", "10", "-f", pipeline.to_str().unwrap()];
    let done = text(&database.pgbench(&pipeline));
    assert!(done.contains("20/20"), "{done}");
    crowd.kill().unwrap();
    crowd.wait().unwrap();
    wait_for("the slots of all", || gate(&scene, &database)["under_way"] == 0);
    let seen = database.server.seen();
    assert_eq!(seen["gate"]["waited_too_long"], 0, "{seen}");
    assert!(seen["gate"]["admissions_after_a_wait"].as_u64().unwrap() > 0, "{seen}");
}
