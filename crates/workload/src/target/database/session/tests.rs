//! Passes through a script, with a protocol of single letters.

use super::*;
use crate::testing::rng;

/// A protocol whose replies are letters: `k` is success, `t` success within a transaction, `d` and
/// `D` a deadlock outside of and within one, `x` another error.
struct Letters;

impl Wire for Letters {
    const PROTOCOL: &'static str = "letters";
    const PREPARES_ALL: bool = false;

    fn placeholder(_: usize) -> String {
        "?".to_owned()
    }

    fn open(&mut self, out: &mut Vec<u8>) {
        out.extend(b"open;");
    }

    fn begins_tls(&mut self, _: &mut Vec<u8>) -> bool {
        false
    }

    fn query(&mut self, sql: &str, out: &mut Vec<u8>) {
        out.extend(format!("{sql};").as_bytes());
    }

    fn prepare(&mut self, statement: usize, sql: &str, out: &mut Vec<u8>) {
        out.extend(format!("prepare {statement} {sql};").as_bytes());
    }

    fn execute(&mut self, statement: usize, values: &[i64], out: &mut Vec<u8>) {
        out.extend(format!("execute {statement} {values:?};").as_bytes());
    }

    fn read(
        &mut self,
        input: &[u8],
        _: &mut Vec<u8>,
    ) -> Result<(usize, Option<Reply>), ProtocolError> {
        let Some(letter) = input.first() else { return Ok((0, None)) };
        let code = match letter {
            b'd' | b'D' => Some(ErrorCode::from_number(1213)),
            b'x' => Some(ErrorCode::from_number(1146)),
            _ => None,
        };
        let error = code.map(|code| ServerError { code, message: "why".to_owned() });
        Ok((1, Some(Reply { error, in_transaction: matches!(letter, b't' | b'D') })))
    }
}

struct Run {
    session: Session<Letters>,
    outcomes: Vec<Outcome>,
}

impl Run {
    /// Returns a session that has logged in.
    fn new(script: &str, prepares: bool, tries_max: u32) -> Self {
        let script = Script::parse("x", script, 1).unwrap();
        let work = Work { script, scale: 1, prepares, tries_max };
        let session = Session::new(Letters, Arc::new(work));
        let mut run = Self { session, outcomes: Vec::new() };
        assert_eq!(run.proceed(0), "open;");
        run
    }

    fn begin(&mut self) -> String {
        assert!(self.session.is_ready() && self.session.begin(&mut rng(1)));
        self.proceed(0)
    }

    fn proceed(&mut self, now_ms: u64) -> String {
        let mut out = Vec::new();
        self.session.proceed(Nanos::from_millis(now_ms), &mut self.outcomes, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn reply(&mut self, letter: &str) -> String {
        self.session.decode(letter.as_bytes(), &mut self.outcomes).unwrap();
        self.proceed(0)
    }
}

const SCRIPT: &str = "\\set a random(1, 1000000)\nBEGIN;\nUPDATE t SET b = :a;\nCOMMIT;\n";

#[test]
fn statements_with_parameters_are_prepared_once_and_each_waits_for_the_reply_before() {
    let mut run = Run::new(SCRIPT, true, 1);
    assert_eq!(run.reply("k"), "prepare 1 UPDATE t SET b = ?;");
    assert_eq!(run.reply("k"), "");
    assert_eq!(run.begin(), "BEGIN;");
    let first = run.reply("t");
    assert!(first.starts_with("execute 1 ["), "{first}");
    assert_eq!(run.reply("t"), "COMMIT;");
    assert!(run.outcomes.is_empty() && !run.session.is_ready());
    assert_eq!(run.reply("k"), "");
    assert_eq!(run.outcomes, [Outcome::Done]);
    assert_eq!(run.begin(), "BEGIN;");
}

#[test]
fn a_deadlock_is_rolled_back_counted_and_tried_again_with_the_same_parameters() {
    let mut run = Run::new(SCRIPT, false, 2);
    run.reply("k");
    run.begin();
    let update = run.reply("t");
    assert_eq!(run.reply("D"), "ROLLBACK;");
    assert_eq!(run.reply("k"), "BEGIN;");
    let deadlock = ErrorCode::from_number(1213);
    assert_eq!(run.outcomes, [Outcome::Retried(deadlock)]);
    assert_eq!(run.reply("t"), update);
    // The server itself has rolled the transaction back.
    assert_eq!(run.reply("d"), "");
    assert_eq!(run.outcomes, [Outcome::Retried(deadlock), Outcome::Error(deadlock)]);
    assert!(run.session.is_ready() && run.session.message() == "why");
}

#[test]
fn an_error_of_another_kind_is_not_tried_again() {
    let mut run = Run::new(SCRIPT, false, 5);
    run.reply("k");
    run.begin();
    assert_eq!(run.reply("x"), "");
    assert_eq!(run.outcomes, [Outcome::Error(ErrorCode::from_number(1146))]);
}

#[test]
fn a_pause_within_a_request_belongs_to_it_and_one_behind_it_does_not() {
    let mut run = Run::new("SELECT 1;\n\\sleep 5 ms\nSELECT 2;\n\\sleep 7 ms\n", false, 1);
    run.reply("k");
    assert_eq!(run.begin(), "SELECT 1;");
    assert_eq!(run.reply("k"), "");
    assert_eq!(run.session.wakes_at(), Some(Nanos::from_millis(5)));
    assert_eq!(run.proceed(4), "");
    assert_eq!(run.proceed(5), "SELECT 2;");
    assert_eq!(run.outcomes, []);
    assert_eq!(run.reply("k"), "");
    assert_eq!(run.outcomes, [Outcome::Done]);
    assert!(!run.session.is_ready());
    run.proceed(7);
    assert!(run.session.is_ready() && run.outcomes.len() == 1);
}

#[test]
fn a_script_that_ends_within_its_transaction_fails() {
    let mut run = Run::new("BEGIN;\nSELECT 1;\n", false, 3);
    run.reply("k");
    run.begin();
    run.reply("t");
    assert_eq!(run.reply("t"), "ROLLBACK;");
    run.reply("k");
    assert_eq!(run.outcomes, [Outcome::Error(ErrorCode::OPEN)]);
}

#[test]
fn a_failed_login_or_preparation_and_a_reply_to_nothing_end_the_connection() {
    let mut run = Run::new(SCRIPT, true, 1);
    assert!(run.session.decode(b"x", &mut Vec::new()).is_err());
    let mut run = Run::new(SCRIPT, true, 1);
    run.reply("k");
    assert!(run.session.decode(b"x", &mut Vec::new()).is_err());
    let mut run = Run::new(SCRIPT, false, 1);
    run.reply("k");
    assert!(run.session.decode(b"k", &mut Vec::new()).is_err());
}
