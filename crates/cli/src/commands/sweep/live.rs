//! The sweep of a running server: every setting of a grid of its knobs, in random order, block
//! by block.
//!
//! It runs under a session with its record, limits and guard, as `lull run` does: however the
//! sweep ends, every knob is restored. Each trial is a row of the file as soon as it ends
//! ([`lull_agent::sweep::rows`]), and the same command continues after an interruption. The result
//! is a front of power, tail and throughput, and the best setting of the load for a profile.

mod output;

use crate::cli::SweepArgs;
use crate::commands::UsageError;
use crate::commands::live_trials::{Moved, Trials, check_length, close, describe_as_it_is};
use crate::commands::save::{self, Destination};
use crate::progress::parts;
use crate::say::notice;
use crate::signals::stop_request;
use crate::text::number;
use lull_agent::config::Config;
use lull_agent::located::Located;
use lull_agent::profile::{Profile, objective_text};
use lull_agent::session::{Agent, Session, search_of, tuning_of};
use lull_agent::sweep::rows::{SweepFile, SweepHead};
use lull_agent::sweep::{Sweep, SweepTrial, describe_levels};
use lull_agent::tuning_store::machine_class;
use lull_control::Plant;
use lull_policies::search::{Protocol, Tuning};
use output::Swept;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

/// Settings that a sweep tries at most, unless the command line says otherwise.
const SETTINGS: u16 = 24;
/// Blocks, unless the command line says otherwise.
const BLOCKS: u16 = 3;
/// Blocks that a profile takes at least: a setting's own spread takes three trials.
const PROFILE_BLOCKS: u16 = 3;

/// The error of a sweep that is stopped.
const STOPPED: &str = "stopped before the end; with --out the rows are kept, and the \
                       same command continues with them";

/// Where the results go.
struct Destinations {
    parquet: Option<Destination>,
    figure: Option<Destination>,
    profile: Option<(Destination, PathBuf)>,
}

pub(super) fn run(source: Located, args: &SweepArgs) -> anyhow::Result<()> {
    check(args)?;
    let checksum = format!("{:08x}", crc32fast::hash(source.text().as_bytes()));
    let mut config = Config::from_located(source)?;
    search_of(&config)?;
    // Orders of an operator would distort the trials.
    config.agent.control = false;
    let to = Destinations::new(args)?;
    let say = |text: &str| notice(text);
    let mut session = Agent::new(config).stop(stop_request()?).notify(&say).start()?;
    let swept = sweep(&mut session, args, &checksum);
    let (swept, profile) = close(session, swept)?;
    save_all(&to, &swept, profile)?;
    // All knobs are restored: from here on a closed pipe may end the process.
    sigpipe::reset();
    swept.show(args.json)
}

fn check(args: &SweepArgs) -> Result<(), UsageError> {
    if args.cells.parts.is_some() {
        let what = "--parts is for a simulated server: the trials of a running one follow each \
                    other, and --out keeps them";
        return Err(UsageError(what.to_owned()));
    }
    let blocks = args.live.blocks.unwrap_or(BLOCKS);
    if args.live.profile.is_some() && blocks < PROFILE_BLOCKS {
        return Err(UsageError(format!(
            "--blocks {blocks}: no setting of a profile is shown to meet its bound with fewer \
             than {PROFILE_BLOCKS} trials"
        )));
    }
    Ok(())
}

impl Destinations {
    /// Checks that all files can be written, and that an earlier profile is one.
    fn new(args: &SweepArgs) -> Result<Self, UsageError> {
        let read = [args.config.as_path()];
        let one = |path: &Path| Destination::new(path).and_then(|to| to.apart_from(&read));
        let to = |path: &Option<PathBuf>| path.as_deref().map(one).transpose();
        let profile = args.live.profile.clone();
        if let Some(path) = profile.as_deref().filter(|path| path.exists()) {
            Profile::read(path)?;
        }
        let profile = to(&profile)?.zip(profile);
        Ok(Self { parquet: to(&args.parquet)?, figure: to(&args.figure)?, profile })
    }
}

/// Sweeps at the current load. Returns the trials, and the profile as it was before.
fn sweep(
    session: &mut Session,
    args: &SweepArgs,
    checksum: &str,
) -> anyhow::Result<(Swept, Profile)> {
    let Tuning { space, rules, protocol, load_change } =
        tuning_of(session.config(), session.plant().machine(), session.apps())?;
    let space = space.at_most(usize::from(args.live.settings.unwrap_or(SETTINGS)));
    let app = session.apps()[protocol.app.index()].name.clone();
    let objective = (protocol.percentile, protocol.bound);
    let profile = profile_of(session, args, &app, protocol)?;
    let mut head = SweepHead {
        machine: machine_class(session.plant().machine()),
        app: app.clone(),
        objective: objective_text(objective),
        levels: describe_levels(&space),
        trial: format!("{} after {}", protocol.window, protocol.settle),
        config: checksum.to_owned(),
        // The keys of a hash map are random in each process.
        seed: args.live.seed.unwrap_or_else(|| RandomState::new().hash_one(0) as u32),
    };
    let opened = args.out.as_deref().map(|path| SweepFile::open(path, &head, args.live.seed));
    let mut rows = opened.transpose()?;
    if let Some(rows) = &rows {
        head.seed = rows.seed();
    }
    let blocks = usize::from(args.live.blocks.unwrap_or(BLOCKS));
    let mut sweep = Sweep::new(space, &rules, blocks, head.seed);
    if let Some(rows) = &mut rows {
        rows.trials(sweep.space())?.into_iter().for_each(|trial| sweep.tell(trial));
    }
    announce(&sweep, protocol);
    let mut trials = Trials::new(session, "sweep", protocol, STOPPED);
    let before = trials.read_as_it_is()?;
    notice(describe_as_it_is(&before, trials.energy()));
    check_length(sweep.rules(), protocol, before.rate_per_s)?;
    check_load(&sweep, before.rate_per_s, load_change)?;
    trials.hold_load(before.rate_per_s, load_change);
    make_trials(&mut sweep, &mut trials, rows.as_mut())?;
    let energy = trials.energy().to_owned();
    let machine = head.machine;
    Ok((Swept { sweep, machine, app, objective, energy }, profile))
}

/// Returns the profile of the command line, or an empty one; one of another machine class, app
/// or objective is refused.
fn profile_of(
    session: &Session,
    args: &SweepArgs,
    app: &str,
    protocol: Protocol,
) -> anyhow::Result<Profile> {
    let objective = (protocol.percentile, protocol.bound);
    let machine = session.plant().machine();
    let new = Profile::new(machine, app, objective);
    let Some(path) = args.live.profile.as_deref().filter(|path| path.exists()) else {
        return Ok(new);
    };
    let there = Profile::read(path)?.with_present_class(machine);
    let refuse = |why: String| UsageError(format!("{} {why}", path.display()));
    there.check_is_of(&new).map_err(refuse)?;
    Ok(there)
}

/// Says what the sweep will do, and the seed.
fn announce(sweep: &Sweep, protocol: Protocol) {
    let (settings, done) = (sweep.space().size(), sweep.trials().len());
    if done > 0 {
        notice(format_args!("continues with {done} trials of the file"));
    }
    let left = sweep.length().saturating_sub(done);
    let takes = (protocol.settle + protocol.window).as_secs_f64() * left as f64;
    notice(format_args!(
        "{settings} settings, at most {left} trials and about {} s; the seed of the order is {}: \
         --seed {} repeats it",
        number(takes),
        sweep.seed(),
        sweep.seed()
    ));
}

/// Refuses to mix trials of two loads in one file. Settings may change the load of their rows, so
/// that one row at this load is enough.
fn check_load(sweep: &Sweep, rate_per_s: f64, load_change: f64) -> Result<(), UsageError> {
    let Some(kept) = output::mean_rate(sweep) else { return Ok(()) };
    let is_here = |rate: f64| (rate - rate_per_s).abs() <= load_change * rate.max(rate_per_s);
    if output::rates(sweep).any(is_here) {
        return Ok(());
    }
    let (kept, now) = (number(kept), number(rate_per_s));
    let what = format!("the rows of --out are of {kept} requests/s, and the load is {now}");
    Err(UsageError(format!("{what}: name another file, or wait for that load")))
}

fn make_trials(
    sweep: &mut Sweep,
    trials: &mut Trials<'_>,
    mut rows: Option<&mut SweepFile>,
) -> anyhow::Result<()> {
    let bar = parts().with_message("sweep");
    bar.set_length(sweep.length() as u64);
    while let Some((block, point)) = sweep.next_trial() {
        bar.set_position(sweep.trials().len() as u64);
        let settings = sweep.space().settings(&point);
        let outcome = trials.one(&settings, sweep.trials().len() + 1);
        let outcome = outcome.map_err(|error| match error.is::<Moved>() {
            true => error.context(
                "the sweep has stopped; with --out repeat the command once the load is as before, \
                 and it continues with the rows that are there",
            ),
            false => error,
        })?;
        let trial = SweepTrial { block, point, outcome };
        if let Some(rows) = &mut rows {
            rows.write(&trial, sweep.space())?;
        }
        sweep.tell(trial);
    }
    bar.finish_and_clear();
    if sweep.trials().iter().all(|trial| trial.outcome.is_err()) {
        let mut refusals = sweep.trials().iter().filter_map(|trial| trial.outcome.as_ref().err());
        let why = refusals.next().map_or("there are no settings", |refusal| &refusal.why);
        anyhow::bail!("no setting could be measured: {why}");
    }
    Ok(())
}

/// Writes the files of the command line.
fn save_all(to: &Destinations, swept: &Swept, mut profile: Profile) -> anyhow::Result<()> {
    let mut files = Vec::new();
    if let Some(parquet) = &to.parquet {
        files.push((parquet, swept.parquet()?));
    }
    if let Some(figure) = &to.figure {
        files.push((figure, swept.figure()?));
    }
    if let Some((destination, path)) = &to.profile {
        let entry = swept.profiled();
        let found = entry.is_some();
        profile.replace(swept.rate_per_s(), entry);
        files.push((destination, profile.to_toml()?.into_bytes()));
        let loads = profile.loads.len();
        notice(match found {
            true => format!("{} has {loads} loads", path.display()),
            false => format!("{} has no setting for this load", path.display()),
        });
    }
    save::all(&files)
}
