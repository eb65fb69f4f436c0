//! `lull tune`: searches a server's settings for the least power within its
//! bound, and remembers what it found.
//!
//! Trials and findings are kept in a store (SQLite) by app, machine and load,
//! as they come: a search that is killed goes on with its trials, and what was
//! found is there for the policy `bayop` (its key `known`).

mod store;

use super::UsageError;
use super::sweep::read;
use crate::cli::TuneArgs;
use crate::located::Located;
use crate::progress::parts;
use crate::say::told;
use crate::text::{number, table};
use lull_control::{AppId, Got, Plant, Rng};
use lull_lab::server::ServerScenario;
use lull_measure::Nanos;
use lull_policies::tuning::{
    Choice, Gather, Gathered, Method, Place, Protocol, Reading, Rules, Search,
};
use lull_sim::netserver::NetServerPlant;
use rand::SeedableRng;
use serde::Serialize;
use store::{Key, Store};

/// Epochs of a trial's window.
const EPOCHS: u64 = 10;

/// What a search came to.
#[derive(Debug, Serialize)]
struct Tuned {
    machine: String,
    app: String,
    rate_per_s: f64,
    trials: usize,
    resumed: usize,
    /// Whether the setting is believed to meet the bound.
    meets: bool,
    setting: String,
    values: Vec<f64>,
    tail_us: f64,
    watts: f64,
    /// Share of the search's requests that were over the bound.
    harm: f64,
}

pub(crate) fn run(args: &TuneArgs) -> anyhow::Result<()> {
    let source = Located::read(&args.scenario)?;
    let scenario = read(&source)?;
    let rates = if args.rate.is_empty() { &scenario.rates_per_s } else { &args.rate };
    super::check_rates(rates)?;
    let store = Store::open(&args.store)?;
    let tuned: Vec<Tuned> =
        rates.iter().map(|rate| tune(&scenario, *rate, args, &store)).collect::<Result<_, _>>()?;
    if args.json {
        return super::print_json(&tuned);
    }
    print(&tuned);
    Ok(())
}

/// Searches at one load.
fn tune(
    scenario: &ServerScenario,
    rate_per_s: f64,
    args: &TuneArgs,
    store: &Store,
) -> anyhow::Result<Tuned> {
    let Some((percentile, bound)) = scenario.app.tail() else {
        return Err(UsageError("the app has no tail objective".to_owned()).into());
    };
    let model = scenario.model.at_rate(rate_per_s);
    let run = scenario.run;
    let mut plant = NetServerPlant::new(&model, scenario.app.clone(), run.seed, run.replication)?;
    let method = method(&args.method)?;
    let rules = Rules {
        harm_max: args.harm_max,
        ..Rules::new(method, bound.as_micros_f64(), usize::from(args.trials))
    };
    let mut search = Search::new(scenario.grid.only(), rules);
    let key = Key::of(&plant, &search, (args.method.as_str(), rate_per_s), &scenario.run);
    let resumed = resume(&mut search, &key, store)?;
    let protocol = Protocol {
        app: AppId(0),
        percentile,
        bound,
        settle: run.warmup,
        window: run.length,
        cut: args.cut,
        allow_modelled: false,
    };
    let searched = go_on(&mut plant, &mut search, protocol, (&key, store));
    // Whatever happened, the server is left as it was found.
    let _ = plant.restore();
    searched?;
    let found = finish(&search, (&key, store))?;
    Ok(Tuned {
        machine: plant.machine().name.clone(),
        app: scenario.app.name.clone(),
        rate_per_s,
        trials: search.trials().len(),
        resumed,
        meets: found.meets,
        setting: search.space().describe(&found.place),
        values: search.space().values(&found.place),
        tail_us: found.tail_us,
        watts: found.watts,
        harm: search.harm(),
    })
}

fn method(name: &str) -> Result<Method, UsageError> {
    match name {
        "apart" => Ok(Method::Apart),
        "penalty" => Ok(Method::Penalty),
        "random" => Ok(Method::Random),
        other => Err(UsageError(format!("--method {other}: write apart, penalty or random"))),
    }
}

/// Takes over the trials of a search that was interrupted.
fn resume(search: &mut Search, key: &Key, store: &Store) -> anyhow::Result<usize> {
    let mut count = 0;
    for trial in store.trials(key)? {
        if search.space().contains(&trial.place) {
            search.tell(trial.place, trial.came);
            count += 1;
        }
    }
    if count > 0 {
        told(format_args!("goes on with {count} trials of a search before"));
    }
    Ok(count)
}

/// Trials until the search is over, each kept as it comes.
fn go_on(
    plant: &mut impl Plant,
    search: &mut Search,
    protocol: Protocol,
    (key, store): (&Key, &Store),
) -> anyhow::Result<()> {
    let bar = parts().with_message("tune");
    bar.set_length(search.rules().trials as u64);
    loop {
        bar.set_position(search.trials().len() as u64);
        // A generator a trial, so that a resumed search goes on as it would have.
        let mut rng = Rng::seed_from_u64(search.trials().len() as u64);
        let Some(next) = search.ask(&mut rng) else { break };
        let came = trial(plant, search, &next.place, protocol)?;
        store.keep_trial(key, search.trials().len(), &next.place, &came)?;
        search.tell(next.place, came);
        if let Some(best) = search.choice() {
            bar.set_message(format!("best {} W", number(best.watts)));
        }
    }
    bar.finish_and_clear();
    Ok(())
}

/// One trial; a place that a knob refuses is told as such.
fn trial(
    plant: &mut impl Plant,
    search: &Search,
    place: &Place,
    protocol: Protocol,
) -> anyhow::Result<Result<Reading, String>> {
    let applied = plant.apply(&search.space().settings(place));
    let refused = applied.outcomes.iter().find_map(|outcome| match &outcome.got {
        Got::Refused { why } => Some(format!("{} was refused: {why}", outcome.wanted)),
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
            Gathered::Nothing(why) => return Ok(Err(why)),
        }
    }
}

/// The place that stays; where none meets the bound, the fastest, and said so.
fn finish(search: &Search, (key, store): (&Key, &Store)) -> anyhow::Result<Choice> {
    let Some(choice) = search.choice() else {
        let why = search.trials().iter().find_map(|trial| trial.came.as_ref().err());
        let why = why.map_or("no trial was made", String::as_str);
        anyhow::bail!("no trial gave a reading: {why}");
    };
    let choice = match choice.meets {
        true => choice,
        false => {
            told(format_args!(
                "no setting of {} meets the bound of {} us; the best tail was {} us. The fastest \
                 setting is left",
                search.trials().len(),
                search.rules().bound_us,
                number(choice.tail_us)
            ));
            Choice { place: search.space().fastest(), ..choice }
        }
    };
    store.keep_spot(key, search.space(), &choice)?;
    Ok(choice)
}

fn print(tuned: &[Tuned]) {
    let row = |it: &Tuned| {
        vec![
            format!("{}", it.rate_per_s),
            it.setting.clone(),
            number(it.tail_us),
            if it.meets { "met" } else { "missed" }.to_owned(),
            number(it.watts),
            format!("{} ({} kept)", it.trials, it.resumed),
            format!("{:.2} %", 100.0 * it.harm),
        ]
    };
    let head = ["requests/s", "setting", "tail (us)", "objective", "power (W)", "trials", "late"];
    println!("{}", table(&head, tuned.iter().map(row)));
}
