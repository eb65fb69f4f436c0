//! Figs. 1 and 2: NetPIPE, one connection that plays ping-pong.

use super::SEED_FILE;
use super::system::{Scenario, run as length, scenario};
use crate::prelude::*;
use crate::server::{Cell, ServerSetting, sweep};
use lull_measure::Nanos;
use lull_sim::netserver::{Merge, NetServerModel};
use lull_sim::stats::Failure;

/// The experiment.
pub(crate) static EXPERIMENT: Experiment = Experiment {
    name: "bayop-netpipe",
    paper: "Dong et al. 2026, Figs. 1 and 2",
    seed_file: SEED_FILE,
    summary: "round trips of one message at a time over interrupt delays, against the driver's own",
    run,
};

/// Message sizes of Table 1, in bytes.
const SIZES: [u64; 4] = [64, 8 << 10, 64 << 10, LARGEST];
const LARGEST: u64 = 512 << 10;
const DELAYS_US: [f64; 12] = [0.0, 2.0, 4.0, 8.0, 12.0, 16.0, 20.0, 26.0, 32.0, 50.0, 100.0, 200.0];
const FREQUENCIES_GHZ: [f64; 4] = [1.3, 1.8, 2.4, 2.9];

/// Receive-side coalescing of the 82599: packets of at most 64 KB, which cost no core a frame.
const BY_THE_CARD: Merge = Merge { frames: 45, cycles: 0.0 };

/// All settings at one size, and the driver with its own.
struct MessageSize {
    bytes: u64,
    cells: Vec<Cell>,
    own: Cell,
}

fn run(setup: &Setup<'_>) -> Result<Report, LabError> {
    let (scenario, choices) = scenario();
    let on = |stack: &NetServerModel, bytes| measure(setup, &scenario.netpipe(stack, bytes), bytes);
    let linux = scenario.linux();
    let sizes = SIZES.map(|bytes| on(&linux, bytes)).into_iter().collect::<Result<Vec<_>, _>>()?;
    let ebbrt = on(&scenario.ebbrt(), LARGEST)?;
    let mut report = EXPERIMENT.report("CCDS 2026, Figs. 1 and 2: NetPIPE", setup);
    report.choices = choices;
    report.choices.push(
        "the client takes as long for a message as the server: both ends run the same system with \
         the same settings. Its acknowledgements come at once. A round of polling of fewer packets \
         than its budget ends polling on Linux, whose thread reads a message while it arrives; \
         memcached's costs were fitted with polling until no packets are left"
            .to_owned(),
    );
    report.rows = rows(&sizes);
    report.rows.extend(growth_row(&sizes));
    report.rows.push(
        Row::compared(
            "512 KB: delay of the best pair on EbbRT",
            "us",
            26.0,
            ebbrt.best_delay_us(),
            Absolute(8.0),
        )
        .because(WINDOW),
    );
    let mut coalescing = scenario.ebbrt();
    coalescing.stack.merge = Some(BY_THE_CARD);
    let why = "one version of the authors' driver has the card merge frames, and those with the \
               counters of the study do not";
    report.rows.push(Row::reported(
        "512 KB: delay of the best pair on EbbRT whose card merges frames",
        "us",
        26.0,
        on(&coalescing, LARGEST)?.best_delay_us(),
        why,
    ));
    let spread = adapts(setup, &scenario)?;
    report.rows.push(Row::held(
        "64 KB: distinct delays that the driver's rule takes",
        "1",
        "extreme variability",
        spread,
        AtLeast(2.0),
    ));
    report.figures = vec![Drawing::from_figures(EXPERIMENT.name, &figures(&sizes))?];
    Ok(report)
}

fn measure(setup: &Setup<'_>, model: &NetServerModel, bytes: u64) -> Result<MessageSize, LabError> {
    let setting = |delay: f64| {
        FREQUENCIES_GHZ.map(|ghz| ServerSetting { delay_us: Some(delay), frequency_ghz: Some(ghz) })
    };
    let settings: Vec<_> = DELAYS_US.into_iter().flat_map(setting).collect();
    let run = length(setup);
    let cells = sweep(model, &[0.0], &settings, run, &setup.progress).map_err(Failure::from)?;
    let own = Cell::measure(model, 0.0, ServerSetting::DEFAULT, run).map_err(Failure::from)?;
    Ok(MessageSize { bytes, cells, own })
}

impl MessageSize {
    fn name(&self) -> String {
        match self.bytes {
            bytes if bytes < 1024 => format!("{bytes} B"),
            bytes => format!("{} KB", bytes >> 10),
        }
    }

    /// Energy of a round trip, in arbitrary units that all settings share.
    fn energy(cell: &Cell) -> f64 {
        cell.watts / (cell.answered as f64).max(1.0)
    }

    /// The setting of least energy a round trip.
    fn least_energy(&self) -> Option<&Cell> {
        let energy = |cell: &Cell| Self::energy(cell);
        self.cells.iter().min_by(|a, b| energy(a).total_cmp(&energy(b)))
    }

    /// Its interrupt delay.
    fn best_delay_us(&self) -> f64 {
        self.least_energy().and_then(|cell| cell.delay_us).unwrap_or(0.0)
    }

    fn quickest(&self) -> Option<&Cell> {
        self.cells.iter().max_by_key(|cell| cell.answered)
    }
}

fn rows(sizes: &[MessageSize]) -> Vec<Row> {
    let mut rows = Vec::new();
    for size in sizes {
        let (Some(frugal), Some(quick)) = (size.least_energy(), size.quickest()) else { continue };
        let name = size.name();
        let saved = 100.0 * (1.0 - MessageSize::energy(frugal) / MessageSize::energy(&size.own));
        let faster = 100.0 * (quick.answered as f64 / size.own.answered as f64 - 1.0);
        let is_printed = size.bytes == 64 << 10;
        let row = |name: String, printed: f64, ours: f64, why| match is_printed {
            true => Row::change(name, "%", printed, ours).because(why),
            false => Row::reported(name, "%", Printed::Nothing, ours, why),
        };
        let why = "which settings the other end had is not printed; here it has those of the \
                   server. One core works, and ondemand lowers the other package, which a pair \
                   for all cores cannot";
        rows.push(row(
            format!("{name}: energy a round trip saved by the best pair"),
            50.0,
            saved,
            why,
        ));
        rows.push(row(format!("{name}: more round trips by the quickest pair"), 60.0, faster, why));
        let (delay, name) = (size.best_delay_us(), format!("{name}: delay of the best pair"));
        rows.push(match size.bytes {
            LARGEST => Row::compared(name, "us", 28.0, delay, Absolute(8.0)).because(WINDOW),
            _ => Row::reported(name, "us", Printed::Nothing, delay, WINDOW),
        });
    }
    rows.extend(shapes(sizes));
    rows
}

const WINDOW: &str = "the delay that saves most follows the window and what a frame costs, which \
                      are not printed";

/// Whether the best delay grows with the message, from 8 KB on (section 3.5.1), by a step of the
/// grid at least.
fn growth_row(sizes: &[MessageSize]) -> Option<Row> {
    let [_, small, .., large] = sizes else { return None };
    let name = format!("delay of the best pair, {} less {}", large.name(), small.name());
    let grown = large.best_delay_us() - small.best_delay_us();
    Some(Row::compared(name, "us", "grows", grown, AtLeast(2.0)).because(WINDOW))
}

/// Returns the rows that must hold for every client and window: long delays cost round trips on
/// small messages.
fn shapes(sizes: &[MessageSize]) -> Vec<Row> {
    let mut rows = Vec::new();
    if let Some(size) = sizes.first() {
        let at = |delay: f64| {
            let same =
                |cell: &&Cell| cell.delay_us == Some(delay) && cell.frequency_ghz == Some(2.9);
            size.cells.iter().find(same).map_or(0.0, |cell| cell.answered as f64)
        };
        rows.push(Row::held(
            "64 B, 2.9 GHz: round trips at a delay of 200 us over none",
            "1",
            "sub-optimal settings exist",
            at(200.0) / at(0.0),
            AtMost(0.8),
        ));
    }
    rows
}

/// Fig. 2: how many delays the driver's rule takes during a run.
fn adapts(setup: &Setup<'_>, scenario: &Scenario) -> Result<f64, LabError> {
    let model = scenario.netpipe(&scenario.linux(), 64 << 10);
    let mut server = model.simulation(setup.seed, 0).map_err(Failure::from)?;
    server.keep_interrupts(100_000);
    server.run_until(Nanos::from_millis(100));
    let mut delays: Vec<_> = server.interrupts(0).iter().map(|entry| entry.delay).collect();
    delays.sort_unstable();
    delays.dedup();
    Ok(delays.len() as f64)
}

fn figures(sizes: &[MessageSize]) -> Vec<Figure> {
    let panel = |size: &MessageSize| {
        let frame = Figure::new(
            format!("NetPIPE, {}", size.name()),
            Axis::linear("time of a round trip (us)"),
            Axis::linear("energy of a round trip (mJ)"),
        );
        let point = |cell: &Cell| {
            let trips = (cell.answered as f64).max(1.0);
            Point::at(250_000.0 / trips, cell.watts * 250.0 / trips)
        };
        let mut points: Vec<_> = size.cells.iter().map(point).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        frame.with_curve("Linux-static", CurveStyle::Points, points).with_curve(
            "Linux",
            CurveStyle::Points,
            [point(&size.own)],
        )
    };
    sizes.iter().map(panel).collect()
}
