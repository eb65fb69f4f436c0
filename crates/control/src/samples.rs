//! From an epoch to samples of the metric catalogue.
//!
//! Status line, JSON, records, Prometheus and the page all read these.

use crate::{
    AppAssessment, AppObservation, AppSpec, Assessment, ClientAccountObservation,
    ClientClassObservation, CoreObservation, Expectation, KNOBS, Knob, KnobScope,
    LatencyObservation, Observation, Quantiles, Setting, numbered, readings_of_apps,
};
use lull_measure::catalogue::{self as metrics, Metric, Sample};
use lull_measure::{Gauge, Joules, Missing, Nanos, Percentile, SharedText};
use std::collections::BTreeMap;

/// The samples of an app for which room is made at once; most apps have fewer.
const SAMPLES_OF_APP: usize = 32;

/// Every metric of one epoch, in the order of the catalogue's scopes.
pub fn samples(
    apps: &[AppSpec],
    state: &BTreeMap<Knob, Setting>,
    seen: &Observation,
    assessment: &Assessment,
) -> Vec<Sample> {
    let mut all = Vec::with_capacity(SAMPLES_OF_APP * apps.len());
    let epoch = seen.epoch;
    let each = numbered(apps).zip(&seen.apps).zip(&assessment.apps);
    for (((id, spec), seen), stand) in each.filter(|(((_, spec), _), _)| !spec.is_removed()) {
        let mut sink = Sink::new(spec.name.clone(), &mut all);
        app_samples(&mut sink, spec, seen);
        if spec.is_latency_critical() {
            assessment_samples(&mut sink, spec, stand);
        }
        for row in KNOBS.iter().filter(|row| row.scope == KnobScope::App) {
            let set = state.get(&(row.knob)(id.0)).and_then(|setting| setting.value().number());
            if let (Some(metric), Some(number)) = (row.metric, set) {
                sink.put(metric, Ok(number));
            }
        }
    }
    let each = apps.iter().zip(&seen.apps);
    for (spec, seen) in each.filter(|(spec, _)| !spec.is_removed()) {
        for class in &seen.client_classes {
            let label = client_class_label(spec, class);
            client_class_samples(&mut Sink::new(label, &mut all), class, epoch);
        }
        for account in &seen.client_accounts {
            let label = client_account_label(spec, account);
            let (p50, p99) = account.wait_quantiles;
            let mut sink = Sink::new(label, &mut all);
            sink.put(metrics::ACCOUNT_WAIT_P50, Ok(seconds(p50)));
            sink.put(metrics::ACCOUNT_WAIT_P99, Ok(seconds(p99)));
        }
    }
    for (number, core) in seen.cores.iter().enumerate() {
        core_samples(&mut Sink::new(number.to_string(), &mut all), core);
    }
    machine_samples(&mut Sink::new("", &mut all), seen, assessment);
    all
}

/// The value of the metric that a policy has an expectation of.
pub(crate) fn sample_value(
    apps: &[AppSpec],
    assessment: &Assessment,
    expected: &Expectation,
) -> Option<f64> {
    let wanted = |sample: &Sample| sample.metric.place == expected.metric.place;
    let mut all = Vec::new();
    match expected.app {
        Some(app) => {
            let (spec, stand) = (apps.get(app.index())?, assessment.apps.get(app.index())?);
            assessment_samples(&mut Sink::new(spec.name.clone(), &mut all), spec, stand);
        }
        None => entropy_samples(&mut Sink::new("", &mut all), assessment),
    }
    all.into_iter().find(wanted)?.value.ok()
}

struct Sink<'a> {
    label: SharedText,
    all: &'a mut Vec<Sample>,
}

impl<'a> Sink<'a> {
    fn new(label: impl Into<SharedText>, all: &'a mut Vec<Sample>) -> Self {
        Self { label: label.into(), all }
    }

    fn put(&mut self, metric: &'static Metric, value: Gauge<f64>) {
        self.all.push(Sample { metric, label: self.label.clone(), value });
    }
}

fn seconds(span: Nanos) -> f64 {
    span.as_secs_f64()
}

fn app_samples(sink: &mut Sink<'_>, spec: &AppSpec, seen: &AppObservation) {
    if spec.is_latency_critical() {
        latency_samples(sink, &seen.latency);
        sink.put(metrics::TAIL_RESOLUTION, tail_resolution(spec, &seen.latency));
        sink.put(metrics::INSTRUCTIONS_PER_REQUEST, per_request(metrics::INSTRUCTIONS, seen));
        sink.put(metrics::CPU_PER_REQUEST, per_request(metrics::CPU, seen));
    } else {
        let progress = seen.progress.as_ref().map(|progress| progress.per_s);
        sink.put(metrics::PROGRESS, progress.map_err(Clone::clone));
    }
    for (metric, _) in readings_of_apps() {
        sink.put(metric, seen.readings.get(metric));
    }
    sink.put(metrics::THREADS, seen.threads.clone().map(f64::from));
    sink.put(metrics::PRESENT, Ok(f64::from(u8::from(seen.alive))));
}

fn latency_samples(sink: &mut Sink<'_>, latency: &Gauge<LatencyObservation>) {
    let no_answer = || Missing::because("no request was answered in the epoch");
    let only_tail = || Missing::because("the app's latency source reports a tail only");
    let has_more: fn(&LatencyObservation) -> bool = |seen| seen.reported.is_none();
    let read = |value: &dyn Fn(&LatencyObservation) -> Option<Nanos>| match latency {
        Ok(seen) => {
            let why = if has_more(seen) { no_answer } else { only_tail };
            value(seen).map(seconds).ok_or_else(why)
        }
        Err(why) => Err(why.clone()),
    };
    let quantiles = [
        (metrics::LATENCY_P50, Percentile::P50),
        (metrics::LATENCY_P95, Percentile::P95),
        (metrics::LATENCY_P99, Percentile::P99),
        (metrics::LATENCY_P999, Percentile::P999),
    ];
    for (metric, at) in quantiles {
        sink.put(metric, read(&|seen| seen.tail(at)));
    }
    sink.put(metrics::LATENCY_MEAN, read(&|seen| seen.window.mean()));
    let known = |is_known: fn(&LatencyObservation) -> bool,
                 value: fn(&LatencyObservation) -> f64| match latency {
        Ok(seen) if is_known(seen) => Ok(value(seen)),
        Ok(_) => Err(only_tail()),
        Err(why) => Err(why.clone()),
    };
    sink.put(metrics::OFFERED, known(LatencyObservation::has_rates, |seen| seen.offered_per_s));
    sink.put(metrics::COMPLETED, known(LatencyObservation::has_rates, |seen| seen.completed_per_s));
    sink.put(metrics::OUTSTANDING, known(has_more, |seen| seen.outstanding as f64));
}

/// A reading that is a rate, over the rate of answers.
fn per_request(reading: &'static Metric, seen: &AppObservation) -> Gauge<f64> {
    let latency = seen.latency.as_ref().map_err(Clone::clone)?;
    if !latency.has_rates() {
        return Err(Missing::because("the app's latency source reports a tail only"));
    }
    if latency.completed_per_s <= 0.0 {
        return Err(Missing::because("no request was answered in the epoch"));
    }
    Ok(seen.readings.get(reading)? / latency.completed_per_s)
}

/// How far the tail of the epoch may be off, if its source reports buckets.
fn tail_resolution(spec: &AppSpec, latency: &Gauge<LatencyObservation>) -> Gauge<f64> {
    let seen = latency.as_ref().map_err(Clone::clone)?;
    let because = |why: &'static str| Missing::because(why);
    let (at, _) = spec.tail().ok_or_else(|| because("the app has no tail objective"))?;
    let range =
        seen.tail_range(at).ok_or_else(|| because("no bucket was reported in the epoch"))?;
    let width = range.width().map(seconds);
    width.ok_or_else(|| because("the tail lies beyond the last bucket"))
}

fn assessment_samples(sink: &mut Sink<'_>, spec: &AppSpec, stand: &AppAssessment) {
    let no_tail = || Missing::because("no tail latency yet");
    let tail = stand.tail.map(|tail| seconds(tail.latency)).ok_or_else(no_tail);
    let bound = spec.tail().map(|(_, bound)| seconds(bound));
    let bound = bound.ok_or_else(|| Missing::because("the app has no tail objective"));
    let slack = match (&tail, &bound) {
        (Ok(tail), Ok(bound)) => Ok((bound - tail) / bound),
        (Err(why), _) | (_, Err(why)) => Err(why.clone()),
    };
    sink.put(metrics::TAIL_LATENCY, tail);
    sink.put(metrics::TAIL_BOUND, bound);
    let share = spec.tail().map(|(percentile, _)| percentile.fraction());
    let share = share.ok_or_else(|| Missing::because("the app has no tail objective"));
    sink.put(metrics::TAIL_OBJECTIVE, share);
    sink.put(metrics::SLACK, slack);
    let reading = stand.lc.ok_or_else(no_tail);
    let ideal = spec.ideal.ok_or_else(|| Missing::because("no ideal latency: set `ideal`"));
    let with_ideal = reading.clone().and_then(|reading| ideal.map(|_| reading));
    sink.put(metrics::TOLERANCE, with_ideal.clone().map(|lc| lc.tolerance()));
    sink.put(metrics::INTERFERENCE, with_ideal.map(|lc| lc.interference()));
    sink.put(metrics::REMAINING_TOLERANCE, reading.clone().map(|lc| lc.remaining_tolerance()));
    sink.put(metrics::UNTOLERATED, reading.map(|lc| lc.untolerated()));
}

/// The label of a class of clients ([`metrics::Scope::ClientClass`]).
pub(crate) fn client_class_label(app: &AppSpec, class: &ClientClassObservation) -> String {
    format!("{}/{}", app.name, class.name)
}

/// The label of an account ([`metrics::Scope::ClientAccount`]).
pub(crate) fn client_account_label(app: &AppSpec, account: &ClientAccountObservation) -> String {
    format!("{}/{}", app.name, account.name)
}

fn client_class_samples(sink: &mut Sink<'_>, class: &ClientClassObservation, epoch: Nanos) {
    sink.put(metrics::CLIENT_CONNECTIONS, Ok(class.connections as f64));
    sink.put(metrics::CLIENT_UNDER_WAY, Ok(class.under_way as f64));
    sink.put(metrics::CLIENT_WAITING, Ok(class.waiting as f64));
    sink.put(metrics::CLIENT_TURNS, Ok(class.turns as f64 / epoch.max(Nanos(1)).as_secs_f64()));
    let waits = class.wait_quantiles.ok_or_else(|| Missing::because("no turn waited"));
    sink.put(metrics::CLIENT_WAIT_P50, waits.clone().map(|(p50, _)| seconds(p50)));
    sink.put(metrics::CLIENT_WAIT_P99, waits.map(|(_, p99)| seconds(p99)));
}

fn core_samples(sink: &mut Sink<'_>, core: &CoreObservation) {
    sink.put(metrics::CORE_UTILISATION, core.utilisation.clone());
    sink.put(metrics::CORE_IDLE_RESIDENCY, core.idle_residency.clone());
    sink.put(metrics::CORE_DEEP_IDLE_RESIDENCY, core.deep_idle_residency.clone());
    sink.put(metrics::CORE_C6_OPPORTUNITY, core.c6_opportunity.clone());
    sink.put(metrics::CORE_FREQUENCY, core.frequency.clone().map(|hertz| hertz.0 as f64));
}

fn quantile_samples(sink: &mut Sink<'_>, metrics: [&'static Metric; 3], seen: &Gauge<Quantiles>) {
    let times: [fn(&Quantiles) -> Nanos; 3] = [|it| it.p50, |it| it.p95, |it| it.p99];
    for (metric, time) in metrics.into_iter().zip(times) {
        sink.put(metric, seen.as_ref().map(|seen| seconds(time(seen))).map_err(Clone::clone));
    }
}

fn entropy_samples(sink: &mut Sink<'_>, assessment: &Assessment) {
    let entropy = assessment.entropy;
    let part = |part: Option<f64>, what| part.ok_or_else(|| Missing::because(what));
    let none = "no app has shown latency or progress yet";
    sink.put(metrics::ENTROPY_SYSTEM, part(entropy.known(), none));
    sink.put(metrics::ENTROPY_LC, part(entropy.lc, "no latency-critical app has a tail yet"));
    sink.put(metrics::ENTROPY_BE, part(entropy.be, "no best-effort app has progress yet"));
}

fn machine_samples(sink: &mut Sink<'_>, seen: &Observation, assessment: &Assessment) {
    entropy_samples(sink, assessment);
    let energy = seen.energy.as_ref().map(|seen| seen.energy).map_err(Clone::clone);
    let power = energy.clone().and_then(|energy| {
        energy.over(seen.epoch).ok_or_else(|| Missing::because("the epoch was empty"))
    });
    sink.put(metrics::POWER, power.map(|power| power.0));
    sink.put(metrics::ENERGY, energy.clone().map(|Joules(joules)| joules));
    let requests = seen.completed().filter(|count| *count > 0);
    let requests = requests.ok_or_else(|| Missing::because("no request was answered"));
    let each = energy.and_then(|energy| requests.map(|count| energy.0 / count as f64));
    sink.put(metrics::ENERGY_PER_REQUEST, each);
    sink.put(metrics::CPU_PRESSURE, seen.cpu_pressure.clone());
    sink.put(metrics::INTERRUPTS, seen.interrupts_per_s.clone());
    sink.put(metrics::PACKETS, seen.packets_per_s.clone());
    sink.put(metrics::C6_OPPORTUNITY, seen.c6_opportunity.clone());
    let gaps = [metrics::IDLE_GAP_P50, metrics::IDLE_GAP_P95, metrics::IDLE_GAP_P99];
    quantile_samples(sink, gaps, &seen.idle_gaps);
    let waits = [
        metrics::RUN_QUEUE_LATENCY_P50,
        metrics::RUN_QUEUE_LATENCY_P95,
        metrics::RUN_QUEUE_LATENCY_P99,
    ];
    quantile_samples(sink, waits, &seen.run_queue_latency);
    sink.put(metrics::EPOCH, Ok(seconds(seen.epoch)));
}
