//! The search on a simulated server.

use super::picture::Picture;
use super::{STOPPED, StoredSearch, Tuned};
use crate::cli::TuneArgs;
use crate::commands::{UsageError, check_amount, check_rates, sweep};
use crate::signals::stop_flag;
use lull_agent::located::Located;
use lull_agent::tuning_store::{Key, Store, Subject};
use lull_control::{AppId, ApplyOutcome, Plant};
use lull_lab::server::ServerScenario;
use lull_measure::Nanos;
use lull_policies::search::{
    Gather, Gathered, Method, Protocol, Reading, Refusal, Rules, Search, SearchPoint,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// Epochs of a trial's window.
const EPOCHS: u64 = 10;
/// Trials of a search (BayOp, Dong et al. 2026, section 5.2.1).
const TRIALS: u16 = 30;
/// The defaults of policy `bayop`.
const HARM_MAX: f64 = 0.05;
const CUT: f64 = 2.0;

/// Searches at every load.
pub(super) fn tune(source: &Located, args: &TuneArgs) -> anyhow::Result<Vec<Tuned>> {
    let scenario = sweep::read(source)?;
    let rates = if args.rate.is_empty() { &scenario.rates_per_s } else { &args.rate };
    check_rates(rates)?;
    // The file's own rates are checked with its keys.
    scenario.run.check(rates).map_err(|error| UsageError(format!("--rate: {error}")))?;
    check_amount(&scenario, rates)?;
    let store = Store::open(&args.store)?;
    let mut picture = Picture::new(args.json);
    let stop = stop_flag()?;
    let server =
        Server { scenario: &scenario, checksum: crc32fast::hash(source.text().as_bytes()) };
    let mut all = |rate: &f64| one(&server, *rate, args, &store, &mut picture, &stop);
    rates.iter().map(&mut all).collect()
}

/// A server, and the checksum of its file: trials of a changed file are not continued.
struct Server<'s> {
    scenario: &'s ServerScenario,
    checksum: u32,
}

fn one(
    Server { scenario, checksum }: &Server<'_>,
    rate_per_s: f64,
    args: &TuneArgs,
    store: &Store,
    picture: &mut Picture,
    stop: &AtomicBool,
) -> anyhow::Result<Tuned> {
    let Some((percentile, bound)) = scenario.app.tail() else {
        return Err(UsageError("the app has no tail objective".to_owned()).into());
    };
    let model = scenario.model.at_rate(rate_per_s);
    let run = scenario.run;
    let mut plant = model.plant(&scenario.app, run.seed, run.replication)?;
    let trials = usize::from(args.trials.unwrap_or(TRIALS));
    let rules = Rules {
        harm_max: args.harm_max.unwrap_or(HARM_MAX),
        safe: args.safe,
        ..Rules::new(method(args)?, bound.as_micros_f64(), trials).at(percentile)
    };
    let search = Search::new(scenario.grid.only(), rules);
    let protocol = Protocol {
        app: AppId(0),
        percentile,
        bound,
        settle: run.warmup,
        window: run.length,
        cut: args.cut.unwrap_or(CUT),
        allow_modelled: false,
    };
    store.rename_class(plant.machine())?;
    let (machine, app) = (plant.machine(), &scenario.app.name);
    let subject = Subject::new(machine, app, percentile, bound, search.space());
    let plant_of = format!("{rate_per_s}/s, seed {}, {checksum:08x}", run.seed);
    let key = Key::new(subject, &search, &protocol, &plant_of, rate_per_s);
    let mut hunt = StoredSearch::new(search, key, store, args.seed)?;
    let searched = hunt.run_trials(picture, |search, point| {
        anyhow::ensure!(!stop.load(Ordering::Relaxed), STOPPED);
        trial(&mut plant, search, point, protocol)
    });
    // Restore the server also after an error.
    let _ = plant.restore();
    picture.close();
    searched?;
    let energy = "of the simulated server's model".to_owned();
    hunt.tuned((&plant.machine().name, &scenario.app.name), rate_per_s, energy)
}

fn method(args: &TuneArgs) -> Result<Method, UsageError> {
    let name = args.method.as_deref().unwrap_or("apart");
    let method = name.parse::<Method>();
    let method = method.map_err(|error| UsageError(format!("--method {name}: {error}")))?;
    if args.safe {
        method.check_safe().map_err(|error| UsageError(format!("--safe: {error}")))?;
    }
    Ok(method)
}

/// Makes one trial; returns the reason if a knob refuses a setting of the point.
fn trial(
    plant: &mut impl Plant,
    search: &Search,
    point: &SearchPoint,
    protocol: Protocol,
) -> anyhow::Result<Result<Reading, Refusal>> {
    let applied = plant.apply(&search.space().settings(point));
    let refused = applied.outcomes.iter().find_map(|outcome| match &outcome.got {
        ApplyOutcome::Refused { why } => {
            let why = format!("{} was refused: {why}", outcome.wanted);
            Some(Refusal::of_knob(outcome.wanted.knob().capability(), why))
        }
        _ => None,
    });
    if let Some(why) = refused {
        return Ok(Err(why));
    }
    let epoch = (protocol.window / EPOCHS).max(Nanos(1));
    let mut gather = Gather::new(protocol);
    loop {
        match gather.add(&plant.observe(epoch)?) {
            Gathered::More => {}
            Gathered::Reading(reading, _) => return Ok(Ok(reading)),
            Gathered::Nothing(why) => return Ok(Err(why.into())),
        }
    }
}
