//! Statements whose replies differ from those of a query: transactions in two phases, several
//! results, and prepared statements.

use super::*;

#[test]
fn two_phases_several_results_and_prepared_statements_pass_a_gate_of_one() {
    let scene = Scene::new();
    let database = Database::start(&scene, &["--concurrency", "1"]);
    database.admin("create procedure sbtest.two() select 4");
    // Another one wants the only slot meanwhile.
    let other = database.client(&"begin; select b from t; commit;".repeat(100));
    let done = ended(database.client(
        "xa start 'x'; insert into t values (3, 7); xa end 'x'; xa prepare 'x'; xa commit 'x'; \
         prepare s from 'select b from t where a = ?'; set @a = 3; execute s using @a; \
         deallocate prepare s; call two(); handler t open; handler t read first; \
         handler t close; select 5",
    ));
    let numbers: Vec<&str> = done.lines().collect();
    assert_eq!(numbers, ["7", "4", "1\t0", "5"], "{done}");
    ended(other);
    let seen = database.server.seen();
    assert_eq!(seen["gate"]["waited_too_long"], 0, "{seen}");
    assert!(!of_class(&seen, "gated").is_empty(), "{seen}");
}
