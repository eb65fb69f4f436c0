//! Built-in scripts, and the tables that they use.
//!
//! The tables have names of their own, so that those of pgbench and of applications are
//! never touched.

use super::rows::{empty, insert, insert_in_batches};
use super::tpcc;

/// The transaction of TPC-B as pgbench runs it: five statements, of which the update of a
/// branch contends if there are more connections than branches.
pub(super) const TPCB_LIKE: &str = "\
\\set aid random(1, 100000 * :scale)
\\set bid random(1, :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE lull_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM lull_accounts WHERE aid = :aid;
UPDATE lull_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE lull_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO lull_history (tid, bid, aid, delta, mtime)
  VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
COMMIT;
";

/// A short transaction in which all connections contend for twelve rows.
pub(super) const HOT_ROWS: &str = "\
\\set account random(1, 100000 * :scale)
\\set other random(1, 100000 * :scale)
\\set hot random(1, 12)
\\set delta random(-5000, 5000)
BEGIN;
SELECT abalance FROM lull_accounts WHERE aid = :account;
SELECT abalance FROM lull_accounts WHERE aid = :other;
UPDATE lull_accounts SET abalance = abalance + :delta WHERE aid = :account;
UPDATE lull_hot SET hbalance = hbalance + :delta WHERE hid = :hot;
INSERT INTO lull_history (tid, bid, aid, delta, mtime)
  VALUES (:hot, 1, :account, :delta, CURRENT_TIMESTAMP);
COMMIT;
";

const ACCOUNTS: u32 = 100_000;

/// The tables of a built-in script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tables {
    /// The tables of `tpcb-like` and `hot-rows`.
    Accounts,
    /// The tables of `tpcc-like`.
    Warehouses,
}

impl Tables {
    const fn complete(self) -> &'static str {
        match self {
            Self::Accounts => "lull_complete",
            Self::Warehouses => "lull_warehouses_complete",
        }
    }

    /// Returns a statement that succeeds only if the tables of this scale are complete.
    pub(super) fn check(self, scale: u32) -> String {
        format!("SELECT scale_{scale} FROM {}", self.complete())
    }

    /// Returns the statements that create the tables, in order. The table that marks them as
    /// complete is dropped first and created last.
    pub(super) fn creation(self, scale: u32) -> impl Iterator<Item = String> {
        let complete = self.complete();
        let tables: Box<dyn Iterator<Item = String>> = match self {
            Self::Accounts => Box::new(accounts(scale)),
            Self::Warehouses => Box::new(tpcc::creation(scale)),
        };
        std::iter::once(format!("DROP TABLE IF EXISTS {complete}"))
            .chain(tables)
            .chain([format!("CREATE TABLE {complete} (scale_{scale} int)")])
    }
}

fn accounts(scale: u32) -> impl Iterator<Item = String> {
    let tables = [
        ("lull_accounts", "aid int PRIMARY KEY, bid int, abalance int, filler char(84)"),
        ("lull_branches", "bid int PRIMARY KEY, bbalance int, filler char(88)"),
        ("lull_tellers", "tid int PRIMARY KEY, bid int, tbalance int, filler char(84)"),
        ("lull_hot", "hid int PRIMARY KEY, hbalance int, filler char(84)"),
        ("lull_history", "tid int, bid int, aid int, delta int, mtime timestamp, filler char(22)"),
    ];
    let into = "lull_accounts (aid, bid, abalance, filler)";
    let accounts = insert_in_batches(into, ACCOUNTS * scale, |aid| {
        format!("({aid}, {}, 0, '')", (aid - 1) / ACCOUNTS + 1)
    });
    let branches = insert("lull_branches (bid, bbalance)", 1, scale, |bid| format!("({bid}, 0)"));
    let tellers = insert("lull_tellers (tid, bid, tbalance)", 1, 10 * scale, |tid| {
        format!("({tid}, {}, 0)", (tid - 1) / 10 + 1)
    });
    let hot = insert("lull_hot (hid, hbalance)", 1, 12, |hid| format!("({hid}, 0)"));
    empty(tables).chain(accounts).chain([branches, tellers, hot])
}

#[cfg(test)]
mod tests {
    use super::super::script::Script;
    use super::*;

    fn created(tables: Tables) -> Vec<String> {
        tables.creation(2).filter(|one| one.starts_with("CREATE TABLE")).collect()
    }

    #[test]
    fn the_built_in_scripts_are_whole_and_use_tables_that_are_created() {
        let of = [
            (TPCB_LIKE.to_owned(), Tables::Accounts),
            (HOT_ROWS.to_owned(), Tables::Accounts),
            (tpcc::script(), Tables::Warehouses),
        ];
        for (text, tables) in of {
            Script::parse("built-in", &text, 2).unwrap();
            let created = created(tables);
            let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            for table in words.filter(|word| word.starts_with("lull_")) {
                let create = format!("CREATE TABLE {table} (");
                assert!(created.iter().any(|one| one.starts_with(&create)), "{table}");
            }
        }
        let (accounts, warehouses) = (created(Tables::Accounts), created(Tables::Warehouses));
        assert!(accounts.iter().all(|one| !warehouses.contains(one)), "they share none");
    }

    #[test]
    fn every_account_is_inserted_once() {
        let inserts = || Tables::Accounts.creation(2).filter(|one| one.contains("lull_accounts ("));
        let inserts = || inserts().filter(|one| one.starts_with("INSERT"));
        let rows: usize = inserts().map(|one| one.matches("0, '')").count()).sum();
        assert_eq!(rows, 200_000);
        let last = inserts().last().unwrap();
        assert!(last.ends_with("(200000, 2, 0, '')"), "{}", &last[last.len() - 40..]);
    }
}
