//! The log of the machine that this runs on.

use super::{Log, MOST, Row};
use crate::commands::UsageError;
use crate::signals;
use lull_control::CoreId;
use lull_host::bpf::{self, InterruptLog, LogRows};
use lull_host::gauges::idle::IdleState;
use lull_host::{Roots, probe};
use lull_measure::Nanos;
use std::time::Instant;

/// How often the kernel's buffer is read. It holds some hundred thousand events, and
/// rare wake-ups of this process disturb the recording little.
const PAUSE: Nanos = Nanos::from_millis(20);

/// Records for `span`, or until a signal stops it.
pub(super) fn log(span: Nanos, only: Option<u16>) -> anyhow::Result<Log> {
    let roots = Roots::default();
    let cores = probe::machine(&roots)?.cores.len();
    if span == Nanos::ZERO {
        return Err(UsageError("--live 0s records nothing".to_owned()).into());
    }
    if let Some(core) = only.filter(|core| usize::from(*core) >= cores) {
        return Err(
            UsageError(format!("there is no core {core}: they are 0 to {}", cores - 1)).into()
        );
    }
    let stop = signals::stop_request()?;
    let mut source = InterruptLog::begin(only.map(CoreId))?;
    let (mut rows, begun) = (LogRows::new(cores, MOST), Instant::now());
    let elapsed = || Nanos(begun.elapsed().as_nanos() as u64);
    loop {
        while let Some(event) = source.pop() {
            rows.add(&event);
        }
        let left = span.saturating_sub(elapsed());
        if left == Nanos::ZERO || stop.wait(left.min(PAUSE))? {
            break;
        }
    }
    let span = elapsed();
    let lost = source.lost();
    drop(source);
    let wanted = |core: &usize| only.is_none_or(|only| usize::from(only) == *core);
    let of = |core: usize| (core, rows.rows(core).iter().map(row).collect());
    Ok(Log {
        states: states(&roots, rows.states()),
        cores: (0..cores).filter(wanted).map(of).collect(),
        span,
        is_live: true,
        notes: notes(lost, rows.left_out()),
    })
}

/// Returns the names of the idle states; a state without a name gets its number.
fn states(roots: &Roots, seen: usize) -> Vec<String> {
    let named = IdleState::read_all(roots, CoreId(0)).unwrap_or_default();
    let mut names: Vec<_> = named.into_iter().map(|state| state.name).collect();
    names.extend((names.len()..seen).map(|number| format!("state{number}")));
    names
}

fn notes(lost: u64, left_out: u64) -> Vec<String> {
    let mut notes = Vec::new();
    if lost > 0 {
        notes.push(format!(
            "{lost} events are lost: they arrived faster than they were read; record one core \
             (--core)"
        ));
    }
    if left_out > 0 {
        notes.push(format!(
            "{left_out} interrupts are left out: a core has room for {MOST}; record for less long"
        ));
    }
    notes
}

fn row(it: &bpf::Row) -> Row {
    Row {
        time: it.time,
        counts: [Some(it.frames), None, None, None],
        cycles: None,
        idle: it.idle.clone(),
        delay: None,
        interrupt: Some(it.interrupt),
        handler: it.handler,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_events_are_reported_with_their_count_and_nothing_else() {
        assert!(notes(0, 0).is_empty());
        let lines = notes(7, 3);
        assert!(lines[0].starts_with("7 events are lost") && lines[1].starts_with("3 interrupts"));
    }

    #[test]
    fn states_without_names_have_their_numbers() {
        let nowhere = Roots::under(std::path::Path::new("/no/such/tree"));
        assert_eq!(states(&nowhere, 2), ["state0", "state1"]);
    }
}
