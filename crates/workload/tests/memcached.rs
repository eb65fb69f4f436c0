//! The ETC load on a real memcached.

mod support;

mod needs_memcached {
    use crate::support::CacheServer;
    use lull_measure::Nanos;
    use lull_workload::arrivals::Rate;
    use lull_workload::client::{self, LoadConfig};
    use lull_workload::target::Address;
    use std::sync::atomic::AtomicBool;

    fn start() -> CacheServer {
        let options = ["-l", "127.0.0.1", "-U", "0", "-t", "1", "-m", "64", "-u", "nobody"];
        CacheServer::start("memcached", "-p", &options)
    }

    fn load(server: &CacheServer) -> LoadConfig {
        let mut load = LoadConfig::new(Address::memcached(server.address), Rate::constant(2_000.0));
        load.target.etc.records = 1_000;
        load.duration = Some(Nanos::from_millis(500));
        load.drain = Nanos::from_secs(10);
        load
    }

    #[test]
    fn every_request_of_the_mix_is_answered_and_reads_hit() {
        let server = start();
        for depth in [1, 8] {
            let report =
                client::run(&LoadConfig { depth, ..load(&server) }, &AtomicBool::new(false))
                    .unwrap();
            assert!(report.due_requests > 800, "{report}");
            assert_eq!(report.completed_requests, report.due_requests, "{report}");
            assert_eq!((report.missed_requests, report.failed_requests), (0, 0), "{report}");
            assert_eq!(report.connection_losses, 0, "{report}");
        }
    }

    #[test]
    fn reads_of_an_empty_memcached_are_reported_as_misses() {
        let server = start();
        let mut load = LoadConfig { preload: false, ..load(&server) };
        load.target.etc.set_share = 0.0;
        let report = client::run(&load, &AtomicBool::new(false)).unwrap();
        assert_eq!(report.missed_requests, report.completed_requests, "{report}");
        assert_eq!(report.completed_requests, report.due_requests, "{report}");
    }

    #[test]
    fn a_memcached_that_dies_during_the_run_costs_requests_and_no_panic() {
        let mut server = start();
        let mut load = load(&server);
        load.duration = Some(Nanos::from_millis(1_500));
        load.drain = Nanos::from_millis(200);
        let mut windows = 0;
        let report = client::run_watched(&load, &AtomicBool::new(false), |_, _| {
            windows += 1;
            if windows == 2 {
                server.process.kill().unwrap();
            }
        })
        .unwrap();
        assert!(report.completed_requests > 0, "{report}");
        assert!(report.outstanding_requests > 0 && report.connection_losses > 0, "{report}");
        let why = report.last_connection_loss.unwrap();
        assert!(why.contains("refused"), "{why}");
    }

    /// Also prints how late and how long, by
    /// `cargo test --release -p lull-workload --test memcached -- --ignored --nocapture`.
    #[test]
    #[ignore = "slow: 8 s of load"]
    fn twenty_thousand_requests_a_second_are_answered_over_any_number_of_connections() {
        let server = start();
        for connections in [16, 256] {
            let mut load = load(&server);
            load.rate = Some(Rate::constant(20_000.0));
            load.connections = connections;
            load.target.etc.records = 10_000;
            (load.duration, load.warmup) = (Some(Nanos::from_secs(4)), Nanos::from_secs(1));
            let report = client::run(&load, &AtomicBool::new(false)).unwrap();
            println!("{connections} connections: {report}");
            assert_eq!(report.completed_requests, report.due_requests, "{report}");
        }
    }
}
