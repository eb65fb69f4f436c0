//! Fig. 3: instructions per query over the number of threads.

use super::SEED_FILE;
use super::system::{GateBench, choices, mongo, mysql, set_connections, throughput};
use crate::prelude::*;
use lull_sim::oversubscribed::GatedTotals;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "reef-ipq",
    paper: "Li et al. 2025, Fig. 3",
    seed_file: SEED_FILE,
    summary: "Instructions a query by the number of threads, with and without REEF",
    run,
};

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let bench = GateBench::settled(setup);
    let (mongo, parameters) = mongo();
    let (mysql, others) = mysql();
    let mut report = EXPERIMENT.report("REEF, Fig. 3", setup);
    report.choices = choices(&parameters);
    report.choices.extend(crate::sourced::choices(&others));
    let instructions = |served: &GatedTotals| served.instructions;
    for (threads, printed) in [(64, 1.05), (128, 1.27), (512, 1.27)] {
        let cell = bench.cell(&set_connections(&mongo, threads), "open", "")?;
        let row = format!("MongoDB, {threads} threads");
        let paper = printed;
        let held = Relative(0.05);
        report.rows.push(Row::held(row, "1", paper, cell.mean(instructions), held));
    }
    for (threads, printed) in [(64, 1.11), (512, 6.14)] {
        let cell = bench.cell(&set_connections(&mysql, threads), "open", "")?;
        report.rows.push(Row::reported(
            format!("MySQL, {threads} threads"),
            "1",
            printed,
            cell.mean(instructions),
            "two numbers fitted to two points: nothing is tested",
        ));
    }
    for (name, model) in [("MongoDB", &mongo), ("MySQL", &mysql)] {
        let config = format!("cap = 23\nbatch = 2\nload_per_s = {:?}", model.device.rate_per_s);
        let open = bench.cell(model, "open", "")?;
        let reef = bench.cell(model, "reef", &config)?;
        let claim = "as without oversubscription";
        let row = format!("{name}, 512 threads, REEF");
        let held = AtMost(1.05);
        report.rows.push(Row::held(row, "1", claim, reef.mean(instructions), held));
        report.rows.push(Row::reported(
            format!("{name}, 512 threads, REEF: throughput over self-serving"),
            "1",
            Printed::Nothing,
            reef.over(&open, throughput),
            "the figure has none",
        ));
    }
    Ok(report)
}
