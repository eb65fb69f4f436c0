//! Plans of policies in Python, and how they become settings of knobs.

use crate::error::plan_error;
use lull_control::{
    AppSpec, Coalescing, CoreId, CoreSet, EnergyPreference, KNOBS, Knob, KnobRow, KnobScope,
    Machine, Scheduling, Setting, Value, ValueKind, WayMask,
};
use lull_measure::escape::visible_line;
use lull_measure::{Hertz, Nanos};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString, PyType};

/// The settings that a policy wants.
///
/// A knob that a plan does not name is left as it is.
///
/// Examples
/// --------
/// >>> plan = lull.Plan()
/// >>> plan.set("cores", "0-2", of="search")
/// >>> plan.set("memory-bandwidth", 30, of="batch")
#[pyclass(module = "lull")]
#[derive(Default)]
pub(crate) struct Plan {
    planned: Vec<PlannedSetting>,
}

/// One setting as it was written.
struct PlannedSetting {
    knob: String,
    value: Py<PyAny>,
    of: Option<Py<PyAny>>,
}

/// A setting in a pickled plan: the knob, the value, and the owner.
type Written = (String, Py<PyAny>, Option<Py<PyAny>>);

#[pymethods]
impl Plan {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Adds the setting of a knob; a later one of the same knob replaces it.
    #[pyo3(signature = (knob, value, of = None))]
    fn set(&mut self, knob: String, value: Py<PyAny>, of: Option<Py<PyAny>>) {
        self.planned.push(PlannedSetting { knob, value, of });
    }

    /// Supports pickling and `copy`: returns the class, and the settings as they were written.
    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (), Vec<Written>) {
        let written = |planned: &PlannedSetting| {
            let of = planned.of.as_ref().map(|of| of.clone_ref(py));
            (planned.knob.clone(), planned.value.clone_ref(py), of)
        };
        (py.get_type::<Self>(), (), self.planned.iter().map(written).collect())
    }

    fn __setstate__(&mut self, state: Vec<Written>) {
        let planned = |(knob, value, of): Written| PlannedSetting { knob, value, of };
        self.planned = state.into_iter().map(planned).collect();
    }

    fn __len__(&self) -> usize {
        self.planned.len()
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let planned = |planned: &PlannedSetting| {
            let of = planned.of.as_ref().map(|of| format!(" of {}", of.bind(py)));
            format!("{}{}: {}", planned.knob, of.unwrap_or_default(), planned.value.bind(py))
        };
        let planned = self.planned.iter().map(planned).collect::<Vec<_>>().join(", ");
        format!("<lull.Plan {}>", visible_line(&planned))
    }
}

/// The machine and the apps that a plan is for.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) apps: &'a [AppSpec],
}

impl Plan {
    /// The settings for a machine.
    ///
    /// # Errors
    /// `PlanError` at the first one that the machine does not have or whose value it cannot be.
    pub(crate) fn settings(&self, py: Python<'_>, target: Target<'_>) -> PyResult<Vec<Setting>> {
        let setting = |planned: &PlannedSetting| {
            target.setting(py, planned).map_err(|why| plan_error(py, why))
        };
        self.planned.iter().map(setting).collect()
    }
}

impl Target<'_> {
    fn setting(self, py: Python<'_>, planned: &PlannedSetting) -> Result<Setting, String> {
        let name = planned.knob.as_str();
        let Some(row) = KNOBS.iter().find(|row| row.name == name) else {
            let names = KNOBS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
            return Err(format!("there is no knob `{name}`; there are: {names}"));
        };
        if let Err(why) = self.machine.capabilities.get(row.capability) {
            return Err(format!("knob `{name}` cannot be set here: {why}"));
        }
        let knob = self.knob(row, planned.of.as_ref().map(|of| of.bind(py)))?;
        let given = planned.value.bind(py);
        let value = value(row.values, given)
            .ok_or_else(|| format!("`{name}` cannot be {given}: {}", wanted(row.values)))?;
        let setting = knob.set_to(value);
        setting.ok_or_else(|| format!("`{name}` cannot be {given}: {}", wanted(row.values)))
    }

    /// The knob of a row that belongs to `of`.
    fn knob(self, row: &KnobRow, of: Option<&Bound<'_, PyAny>>) -> Result<Knob, String> {
        let all = self.machine.knobs(row, self.apps.len());
        let owner = |knob: &Knob| match knob.app() {
            Some(app) => self.apps[app.index()].name.clone(),
            None => knob.number().to_string(),
        };
        let choices = || all.iter().map(owner).collect::<Vec<_>>().join(", ");
        let name = row.name;
        let Some(of) = of else {
            return match all.as_slice() {
                [only] => Ok(*only),
                _ => Err(format!("`{name}` has several owners: give of=, one of {}", choices())),
            };
        };
        let text = of.to_string();
        let found = all.iter().find(|knob| row.scope != KnobScope::Machine && owner(knob) == text);
        found.copied().ok_or_else(|| format!("`{name}` of {text}? There are: {}", choices()))
    }
}

/// Returns the form of a value of this kind.
const fn wanted(kind: ValueKind) -> &'static str {
    match kind {
        ValueKind::Cores => "write cores as \"0-2,5\" or as a list of numbers",
        ValueKind::Scheduling => {
            "write \"idle\", \"normal N\" with a nice value, or \"round-robin N\" with a priority"
        }
        ValueKind::Switch => "write True or False",
        ValueKind::Ways => "write ways as \"0-3\" or as a list of numbers",
        ValueKind::Percent => "write a share from 0 to 100",
        ValueKind::Frequency => "write a frequency in Hz or as \"2.2GHz\"",
        ValueKind::Coalescing => "write \"adaptive\", or a delay in seconds or as \"50us\"",
        ValueKind::Count => "write a number of 1 at least",
        ValueKind::Time => "write a time in seconds or as \"5ms\"",
        ValueKind::EnergyPreference => {
            "write a name such as \"balance_power\", or a number from 0 to 255"
        }
    }
}

/// The value of a kind; `None` if it is none.
fn value(kind: ValueKind, given: &Bound<'_, PyAny>) -> Option<Value> {
    // In Python a bool is a number, which a knob's value never is.
    let is_bool = given.is_instance_of::<PyBool>();
    let text = given.cast::<PyString>().ok().map(ToString::to_string);
    let number = || given.extract::<f64>().ok().filter(|number| !is_bool && *number >= 0.0);
    let time = || match &text {
        Some(text) => text.parse::<Nanos>().ok(),
        None => number().map(Nanos::from_secs_f64),
    };
    match kind {
        ValueKind::Cores => numbers(given).filter(|cores| !cores.is_empty()).map(Value::Cores),
        ValueKind::Ways => {
            let ways = numbers(given)?;
            let bit = |way: CoreId| 1_u64.checked_shl(u32::from(way.0));
            let mask = ways.iter().try_fold(0, |mask, way| Some(mask | bit(way)?))?;
            (mask != 0).then_some(Value::Ways(WayMask(mask)))
        }
        ValueKind::Switch => is_bool.then(|| given.is_truthy().ok()).flatten().map(Value::Switch),
        ValueKind::Percent => {
            let percent = number().filter(|percent| *percent <= 100.0)?;
            Some(Value::Percent(percent.round() as u8))
        }
        ValueKind::Frequency => match &text {
            Some(text) => text.parse::<Hertz>().ok().map(Value::Frequency),
            None => number().map(|hertz| Value::Frequency(Hertz(hertz.round() as u64))),
        },
        ValueKind::Coalescing if text.as_deref() == Some("adaptive") => {
            Some(Value::Coalescing(Coalescing::Adaptive))
        }
        ValueKind::Coalescing => time().map(|delay| Value::Coalescing(Coalescing::Delay(delay))),
        ValueKind::Count => {
            let count = given.extract::<u32>().ok().filter(|count| !is_bool && *count > 0);
            count.map(Value::Count)
        }
        ValueKind::Time => time().map(Value::Time),
        ValueKind::EnergyPreference => {
            let whole = || given.extract::<u8>().ok().filter(|_| !is_bool).map(EnergyPreference);
            let named = text.as_deref().map(EnergyPreference::parse);
            named.unwrap_or_else(whole).map(Value::EnergyPreference)
        }
        ValueKind::Scheduling => scheduling(&text?).map(Value::Scheduling),
    }
}

/// A set of numbers: `"0-2,5"`, or anything that can be iterated over.
fn numbers(given: &Bound<'_, PyAny>) -> Option<CoreSet> {
    if let Ok(text) = given.cast::<PyString>() {
        return text.to_string().parse().ok();
    }
    let each = given.try_iter().ok()?;
    each.map(|number| number.ok()?.extract::<u16>().ok().map(CoreId)).collect()
}

fn scheduling(text: &str) -> Option<Scheduling> {
    let (class, number) = text.split_once(' ').unwrap_or((text, "0"));
    match class {
        "idle" if !text.contains(' ') => Some(Scheduling::Idle),
        "normal" => number.parse().ok().map(|nice| Scheduling::Normal { nice }),
        "round-robin" => number.parse().ok().map(|priority| Scheduling::RoundRobin { priority }),
        _ => None,
    }
}
