//! The ETC load on a real Redis.

mod support;

mod needs_redis_server {
    use crate::support::CacheServer;
    use lull_measure::Nanos;
    use lull_workload::arrivals::Rate;
    use lull_workload::client::{self, LoadConfig};
    use lull_workload::target::{Address, RequestKind};
    use std::sync::atomic::AtomicBool;

    /// Starts a Redis without files.
    fn start(options: &[&str]) -> CacheServer {
        let common = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        CacheServer::start("redis-server", "--port", &[&common[..], options].concat())
    }

    fn load(server: &CacheServer) -> LoadConfig {
        let mut load = LoadConfig::new(Address::redis(server.address), Rate::constant(2_000.0));
        load.target.etc.records = 1_000;
        load.duration = Some(Nanos::from_millis(500));
        load.drain = Nanos::from_secs(10);
        load
    }

    #[test]
    fn every_request_is_answered_and_gets_and_sets_are_reported_apart() {
        let server = start(&["--requirepass", "s3cret"]);
        for depth in [1, 8] {
            let mut load = LoadConfig { depth, ..load(&server) };
            load.target.redis_password = "s3cret".to_owned();
            let report = client::run(&load, &AtomicBool::new(false)).unwrap();
            assert!(report.due_requests > 800, "{report}");
            assert_eq!(report.completed_requests, report.due_requests, "{report}");
            assert_eq!((report.missed_requests, report.failed_requests), (0, 0), "{report}");
            assert_eq!(report.connection_losses, 0, "{report}");
            let kinds: Vec<_> = report.kinds.iter().map(|it| it.kind).collect();
            assert_eq!(kinds, [RequestKind::Get, RequestKind::Set]);
            let all: u64 = report.kinds.iter().map(|it| it.completed_requests).sum();
            assert_eq!(all, report.completed_requests, "{report}");
            // Three quarters are reads.
            assert!(report.kinds[0].completed_requests > 2 * report.kinds[1].completed_requests);
        }
    }

    #[test]
    fn reads_of_an_empty_redis_miss() {
        let server = start(&[]);
        let mut load = LoadConfig { preload: false, ..load(&server) };
        load.target.etc.set_share = 0.0;
        let report = client::run(&load, &AtomicBool::new(false)).unwrap();
        assert_eq!(report.missed_requests, report.completed_requests, "{report}");
        assert_eq!(report.kinds[0].missed_requests, report.missed_requests, "{report}");
    }

    #[test]
    fn a_missing_or_wrong_password_is_refused_with_where_it_is_read() {
        let server = start(&["--requirepass", "s3cret"]);
        let mut load = load(&server);
        let error = client::run(&load, &AtomicBool::new(false)).unwrap_err().to_string();
        assert!(error.contains("NOAUTH") && error.contains("REDISCLI_AUTH"), "{error}");
        load.target.redis_password = "wrong".to_owned();
        let error = client::run(&load, &AtomicBool::new(false)).unwrap_err().to_string();
        assert!(error.contains("WRONGPASS"), "{error}");
    }

    #[test]
    fn writes_that_a_full_redis_refuses_are_errors_with_their_code() {
        let server = start(&["--maxmemory", "1mb"]);
        let mut load = LoadConfig { preload: false, ..load(&server) };
        load.target.etc.set_share = 1.0;
        let report = client::run(&load, &AtomicBool::new(false)).unwrap();
        let codes: Vec<_> = report.server_errors.iter().map(|it| it.code.as_str()).collect();
        assert_eq!(codes, ["OOM"], "{report}");
    }
}
