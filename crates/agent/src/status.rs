//! The live status line of a run, and journal entries in words.

use crate::text::number;
use lull_control::journal::{Entry, Event, OperatorAct};
use lull_control::{
    AppAssessment, AppId, AppObservation, AppSpec, ApplyOutcome, Correction, EnergySource, Epoch,
    Expectation, Knob, Outcome, Setting, numbered,
};
use lull_measure::escape::visible_line;
use std::collections::BTreeMap;

/// One line: time, E_S, each app, power with its source.
pub fn line(
    policy: &str,
    apps: &[AppSpec],
    state: &BTreeMap<Knob, Setting>,
    epoch: &Epoch,
) -> String {
    let acting = if epoch.safe { "SLO-safe" } else { policy };
    let entropy = epoch.assessment.entropy.known().map_or_else(|| "-".to_owned(), number);
    let mut line = format!("{:.0} s  {acting}  E_S {entropy}", epoch.seen.time.as_secs_f64());
    let each = numbered(apps).zip(&epoch.seen.apps).zip(&epoch.assessment.apps);
    for (((id, spec), seen), stand) in each.filter(|(((_, spec), _), _)| !spec.is_removed()) {
        line.push_str(&format!("  | {} {}", spec.name, app(spec, seen, stand)));
        if let Some(Setting::Cores(_, cores)) = state.get(&Knob::Cores(id)) {
            line.push_str(&format!(" on {cores}"));
        }
    }
    if let Ok(energy) = &epoch.seen.energy {
        let power = energy.energy.over(epoch.seen.epoch).unwrap_or_default();
        let source = match energy.source {
            EnergySource::Measured(_) => "measured",
            EnergySource::Modelled(_) => "modelled",
        };
        line.push_str(&format!("  | {power:.1} {source}"));
    }
    line
}

fn app(spec: &AppSpec, seen: &AppObservation, stand: &AppAssessment) -> String {
    if !seen.alive {
        return "absent".to_owned();
    }
    if let Some((percentile, bound)) = spec.tail() {
        return match (stand.tail, &seen.latency) {
            (Some(tail), Ok(latency)) => {
                let old = if tail.stale { " (old)" } else { "" };
                let rate =
                    latency.has_rates().then(|| format!(", {}/s", number(latency.completed_per_s)));
                let rate = rate.unwrap_or_default();
                format!("{percentile} {:.2}{old} of {bound}{rate}", tail.latency)
            }
            (None, Ok(_)) => "no request yet".to_owned(),
            (_, Err(_)) => "no latency".to_owned(),
        };
    }
    match (stand.be, &seen.progress) {
        (Some(be), _) => format!("{:.0} %", 100.0 * be.real / be.solo),
        (None, Ok(_)) => "0 %".to_owned(),
        (None, Err(_)) => "no progress gauge".to_owned(),
    }
}

/// Describes a journal entry with its time.
pub fn describe(apps: &[AppSpec], entry: &Entry) -> String {
    format!("{:8.2} s  {}", entry.time.as_secs_f64(), describe_event(apps, &entry.event))
}

/// Describes an event in one line without hidden characters.
pub fn describe_event(apps: &[AppSpec], event: &Event) -> String {
    visible_line(&event_text(apps, event)).into_owned()
}

fn event_text(apps: &[AppSpec], event: &Event) -> String {
    let name = |app: &AppId| apps.get(app.index()).map_or("?", |spec| &spec.name);
    match event {
        Event::Decision(decision) => {
            let mut text = format!("{}: {}", outcome(&name, &decision.outcome), decision.reason);
            if let Some(expected) = &decision.expected {
                text.push_str(&format!("; expects {}", expectation(expected)));
            }
            text
        }
        Event::Held { wanted, reason, why } => {
            format!("not done ({why}): {}: {reason}", setting(&name, wanted))
        }
        Event::Effect(effect) => {
            let verdict = if effect.as_expected() { "as expected" } else { "not as expected" };
            let (metric, change) = (effect.expected.metric.name, effect.measured_change());
            format!("{metric} changed by {change:+.3}, {verdict}")
        }
        Event::Foreign { change, yielded } => {
            let then = if *yielded { "left alone from now on" } else { "will be set again" };
            let found = setting(&name, &change.found);
            format!("{} was changed by another program to {found}; {then}", change.whom)
        }
        Event::SafeBegins { cause } => format!("SLO-safe state: {cause}"),
        Event::SafeEnds => "the policy is followed again".to_owned(),
        Event::SurveyBegins => {
            "a gate is surveyed: the policy skips epochs without a broken bound".to_owned()
        }
        Event::SurveyEnds => "the policy decides in each epoch again".to_owned(),
        Event::AppExited { app } => format!("{app} has exited: no process of it is left"),
        Event::AppWaiting { app } => format!("{app} waits for its first process"),
        Event::AppArrived { app } => format!("{app} has processes now"),
        Event::AppRestarted { app } => format!("{app} was restarted: all its processes are new"),
        Event::PolicyRebuilt { apps, failed: None } => {
            format!("the policy is rebuilt because of a change of {apps}")
        }
        Event::PolicyRebuilt { apps, failed: Some(why) } => {
            format!(
                "the policy cannot be rebuilt after a change of {apps}, so the former one \
                 continues: {why}"
            )
        }
        Event::GateChanged { app, admission, gate } => format!("{app}: {gate}: by {admission}"),
        Event::AreasChanged { app, by, areas } => format!("{app}: {areas}: areas by {by}"),
        Event::ReferenceCorrected { app, correction } => corrected(app, *correction),
        Event::Discovery { text } => text.clone(),
        Event::Operator(act) => operator(act),
    }
}

fn corrected(app: &str, correction: Correction) -> String {
    match correction {
        Correction::Ideal { was, now } => format!(
            "{app}: its tail beside other apps is below its ideal {was:.2}: the ideal is {now:.2} \
             from now on"
        ),
        Correction::Solo { was, now } => format!(
            "{app}: its progress beside other apps is above its solo progress {}/s: the solo \
             progress is {}/s from now on",
            number(was),
            number(now)
        ),
    }
}

fn operator(act: &OperatorAct) -> String {
    let but = |left: &[String]| match left {
        [] => String::new(),
        left => format!(", but not {}", left.join("; ")),
    };
    match act {
        OperatorAct::Reloaded { changed } => format!("config reloaded: {}", changed.join(", ")),
        OperatorAct::Paused => "paused by the operator: knobs stay as they are".to_owned(),
        OperatorAct::Resumed => "resumed by the operator".to_owned(),
        OperatorAct::Restored { left } => {
            format!("all knobs restored and paused by the operator{}", but(left))
        }
        OperatorAct::Switched { to, left } => {
            let but = but(left);
            format!("policy {to} from now on, by the operator; all knobs restored before{but}")
        }
    }
}

fn setting<'a>(name: &impl Fn(&AppId) -> &'a str, setting: &Setting) -> String {
    match setting.knob().app() {
        Some(app) => format!("{}: {setting}", name(&app)),
        None => setting.to_string(),
    }
}

fn outcome<'a>(name: &impl Fn(&AppId) -> &'a str, outcome: &Outcome) -> String {
    let wanted = setting(name, &outcome.wanted);
    match &outcome.got {
        ApplyOutcome::Done | ApplyOutcome::Already => wanted,
        ApplyOutcome::Clamped { to, why } => format!("{wanted} became {to} ({why})"),
        ApplyOutcome::Refused { why } => format!("{wanted} was refused ({why})"),
    }
}

fn expectation(expected: &Expectation) -> String {
    let way = match expected.direction {
        lull_control::Direction::Lower => "lower",
        lull_control::Direction::Higher => "higher",
    };
    match expected.by {
        Some(by) => format!("{} {way} by {by:.3}", expected.metric.name),
        None => format!("{} {way}", expected.metric.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stays_in_its_line_whatever_it_quotes() {
        let event = Event::Discovery { text: "x\n9.00 s  all is well\u{1b}[2J".to_owned() };
        assert_eq!(describe_event(&[], &event), r"x\u{a}9.00 s  all is well\u{1b}[2J");
    }
}
