//! The same server with OpenSSL 1.1, which the tests have with PostgreSQL 17 and 18.

use super::*;
use crate::support::skip;
use lull_testing::fetched;

/// Returns the compiler's arguments to link with OpenSSL 1.1; records why the test is skipped
/// without it.
fn openssl_1_1() -> Option<Vec<String>> {
    let place = fetched::openssl_1_1().map_err(|why| skip(&why)).ok()?;
    let place = place.display();
    let options = [format!("-L{place}"), format!("-Wl,-rpath,{place}")];
    let libraries = ["-l:libssl.so.1.1", "-l:libcrypto.so.1.1"].map(str::to_owned);
    Some([options, libraries].concat())
}

/// Runs a check of the module above with OpenSSL 1.1 where the tests have it.
fn with_openssl_1_1(check: fn(&OpenSsl)) {
    if let Some(openssl) = openssl_1_1() {
        check(&openssl);
    }
}

#[test]
fn queries_under_openssl_1_1_are_gated_and_counted_however_the_server_reads_them() {
    with_openssl_1_1(assert_gated_in_all_ways);
}

#[test]
fn no_worker_rests_while_openssl_1_1_may_hold_data() {
    with_openssl_1_1(assert_rests_only_after_all_is_read);
}

#[test]
fn resumed_sessions_of_openssl_1_1_are_gated() {
    with_openssl_1_1(assert_resumed_sessions_are_gated);
}

#[test]
fn a_renegotiation_by_openssl_1_1_is_no_query() {
    with_openssl_1_1(assert_renewed_handshakes_are_no_queries);
}

#[test]
fn a_transaction_under_openssl_1_1_keeps_its_slot() {
    with_openssl_1_1(assert_a_query_waits_for_a_transaction);
}

#[test]
fn openssl_1_1_of_a_plug_in_is_called_though_the_program_has_openssl_3() {
    with_openssl_1_1(|openssl| assert_gated_in_a_plug_in(openssl, &openssl_3()));
}
