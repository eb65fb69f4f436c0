//! The `lull` command end to end: real processes, real signals, real files.
//!
//! Each test has a directory, a state directory and records of its own, and
//! ends what it started. No test asserts a duration: tests
//! wait for events, with a deadline that only a fault reaches.

mod advise;
mod bad_input;
mod calibrate;
mod cells;
mod demo;
mod dispatch;
mod dispatched_alike;
mod ends;
mod entropy;
mod exec;
mod faults;
mod former;
mod frontend;
mod hold;
mod http;
mod kills;
mod lab;
mod lists;
mod needs_chromedriver;
mod needs_memcached;
mod needs_memcached_churn;
mod needs_memcached_tutorial;
mod needs_nginx;
mod needs_prometheus;
mod needs_promtool;
mod needs_tmux;
mod one_file;
mod otlp;
mod placement;
mod presence;
mod prove;
mod records;
mod references;
mod register;
mod reload;
mod replay;
mod report;
mod restoring;
mod run_queue;
mod runs;
mod sim;
mod slurm;
mod start_faults;
mod support;
mod sweep_live;
mod tune_live;
mod tuning;
mod unprivileged;
