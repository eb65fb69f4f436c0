//! `lull burn`: a built-in best-effort app.

use crate::cli::BurnArgs;
use crate::signals;
use crate::text::number;
use lull_workload::apps::burner::{self, BurnerConfig};
use lull_workload::push::PushConfig;

pub(crate) fn run(args: BurnArgs) -> anyhow::Result<()> {
    let stop = signals::stop_flag()?;
    let defaults = BurnerConfig::default();
    let config = BurnerConfig {
        work: args.work,
        threads: args.threads.map_or(defaults.threads, usize::from),
        duration: args.duration,
        push: args.push.zip(args.app).map(|(socket, app)| PushConfig { socket, app }),
    };
    let report = burner::run(&config, &stop)?;
    let (sent, dropped) = (report.pushed_messages, report.dropped_messages);
    super::note_unpushed(config.push.as_ref(), sent, dropped);
    if args.json {
        return super::print_json(&report);
    }
    let rate = number(report.progress_per_second);
    println!("{}: {rate} {} a second on {} threads", report.work, report.unit, report.threads);
    Ok(())
}
