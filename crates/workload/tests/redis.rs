//! The ETC load on a real Redis.

mod needs_redis_server {
    use lull_measure::Nanos;
    use lull_workload::arrivals::Rate;
    use lull_workload::client::{self, LoadConfig};
    use lull_workload::target::{Address, RequestKind};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
    use std::process::{Child, Command, Stdio};
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    /// Held from asking for a free port to using it, or a test beside might get it too.
    static STARTING: Mutex<()> = Mutex::new(());

    /// A Redis without files that ends with the test.
    struct Redis {
        process: Child,
        address: SocketAddr,
    }

    impl Redis {
        fn start(options: &[&str]) -> Self {
            let _starting = STARTING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let address =
                TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
            let mut command = Command::new("redis-server");
            command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
            command.args(["--save", "", "--appendonly", "no"]).args(options);
            let started = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
            let process =
                started.unwrap_or_else(|error| panic!("redis-server does not start: {error}"));
            Self { process, address }.ready()
        }

        fn ready(mut self) -> Self {
            let begin = Instant::now();
            while TcpStream::connect(self.address).is_err() {
                let ended = self.process.try_wait().unwrap();
                assert!(ended.is_none(), "redis-server ended: {ended:?}");
                assert!(begin.elapsed() < Duration::from_secs(20), "redis-server does not listen");
                std::thread::sleep(Duration::from_millis(5));
            }
            self
        }

        fn load(&self) -> LoadConfig {
            let mut load = LoadConfig::new(Address::redis(self.address), Rate::constant(2_000.0));
            load.target.etc.records = 1_000;
            load.duration = Some(Nanos::from_millis(500));
            load.drain = Nanos::from_secs(10);
            load
        }
    }

    impl Drop for Redis {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    #[test]
    fn every_request_is_answered_and_gets_and_sets_are_reported_apart() {
        let server = Redis::start(&["--requirepass", "s3cret"]);
        for depth in [1, 8] {
            let mut load = LoadConfig { depth, ..server.load() };
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
        let server = Redis::start(&[]);
        let mut load = LoadConfig { preload: false, ..server.load() };
        load.target.etc.set_share = 0.0;
        let report = client::run(&load, &AtomicBool::new(false)).unwrap();
        assert_eq!(report.missed_requests, report.completed_requests, "{report}");
        assert_eq!(report.kinds[0].missed_requests, report.missed_requests, "{report}");
    }

    #[test]
    fn a_missing_or_wrong_password_is_refused_with_where_it_is_read() {
        let server = Redis::start(&["--requirepass", "s3cret"]);
        let mut load = server.load();
        let error = client::run(&load, &AtomicBool::new(false)).unwrap_err().to_string();
        assert!(error.contains("NOAUTH") && error.contains("REDISCLI_AUTH"), "{error}");
        load.target.redis_password = "wrong".to_owned();
        let error = client::run(&load, &AtomicBool::new(false)).unwrap_err().to_string();
        assert!(error.contains("WRONGPASS"), "{error}");
    }

    #[test]
    fn writes_that_a_full_redis_refuses_are_errors_with_their_code() {
        let server = Redis::start(&["--maxmemory", "1mb"]);
        let mut load = LoadConfig { preload: false, ..server.load() };
        load.target.etc.set_share = 1.0;
        let report = client::run(&load, &AtomicBool::new(false)).unwrap();
        let codes: Vec<_> = report.server_errors.iter().map(|it| it.code.as_str()).collect();
        assert_eq!(codes, ["OOM"], "{report}");
    }
}
