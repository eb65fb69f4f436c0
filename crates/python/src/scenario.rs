//! Scenarios: read from TOML or built from dictionaries.

use crate::background;
use crate::error::{config_error, simulation_error};
use crate::values::KeyPath;
use lull_agent::located::{InputError, Located};
use lull_agent::scenario_file::read_scenario;
use lull_lab::scenario::{AnyScenario, Choice, Kind};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};
use std::path::PathBuf;
use std::sync::Arc;

/// A checked scenario: a system, its load, and the policies to compare on it.
///
/// `Scenario.from_toml` and `Scenario.from_dict` make one; docs/scenario.md lists every key.
#[pyclass(frozen, skip_from_py_object, module = "lull")]
#[derive(Clone)]
pub(crate) struct Scenario {
    source: Located,
    /// The file or the name of the text, as errors show it.
    name: String,
    /// The directory of files that the scenario names.
    base: PathBuf,
    title: String,
    policies: Vec<String>,
    notices: Vec<String>,
}

/// The sections of the policies to compare, one for each kind of scenario.
const POLICIES: [&str; 3] = ["policy", "dispatcher", "scheme"];

/// The figure of a precision that names none, where the scenario names none either.
const FIGURE: &str = "p95";

/// Behind the name of a scenario with other values, whose text is not that of the file.
const CHANGED: &str = " (changed)";

impl Scenario {
    /// Checks a scenario. One without policies is checked with the policy that does nothing,
    /// because the policies are given when it is run.
    fn new(py: Python<'_>, source: Located, name: String, base: PathBuf) -> PyResult<Self> {
        let wrong = |error: InputError| config_error(py, &error);
        let table: toml::Table = source.parse().map_err(wrong)?;
        let has_policies = POLICIES.iter().any(|section| table.contains_key(*section));
        let is_steered =
            matches!(Kind::from_table(&table), Kind::Tiers | Kind::Node | Kind::NetServer);
        let policies = if has_policies || !is_steered { vec![] } else { vec!["unmanaged".into()] };
        let choice = Choice { policies, ..Choice::default() };
        // Values that a scenario leaves out are measured, which can take a while.
        let (text, place) = (source.clone(), base.clone());
        let checked =
            background::run(py, &Arc::default(), move |_| read_scenario(&text, &place, &choice))?;
        let checked = checked.map_err(wrong)?;
        let labels = checked.labels().into_iter().map(str::to_owned);
        Ok(Self {
            title: checked.title().to_owned(),
            policies: if has_policies { labels.collect() } else { Vec::new() },
            notices: checked.notices().to_vec(),
            source,
            name,
            base,
        })
    }

    fn embedded(py: Python<'_>, text: &str, name: String, base: PathBuf) -> PyResult<Self> {
        Self::new(py, Located::embedded(&name, text), name, base)
    }

    /// The same scenario with other values at these keys.
    fn changed(&self, py: Python<'_>, values: Vec<(String, toml::Value)>) -> PyResult<Self> {
        let wrong = |error: InputError| config_error(py, &error);
        let mut scenario: toml::Table = self.source.parse().map_err(wrong)?;
        for (key, value) in values {
            let set = key.parse::<KeyPath>().and_then(|path| path.set(&mut scenario, value));
            set.map_err(|why| config_error(py, &self.source.error(&key, why)))?;
        }
        let text = toml::to_string(&scenario);
        let text = text.map_err(|error| simulation_error(py, error.to_string()))?;
        let name = self.name.strip_suffix(CHANGED).unwrap_or(&self.name);
        Self::embedded(py, &text, format!("{name}{CHANGED}"), self.base.clone())
    }

    /// The scenario with this choice of policies, seed and replications.
    pub(crate) fn read(&self, choice: &Choice) -> Result<AnyScenario, InputError> {
        read_scenario(&self.source, &self.base, choice)
    }

    /// Whether it names policies to compare.
    pub(crate) fn has_policies(&self) -> bool {
        !self.policies.is_empty()
    }
}

#[pymethods]
impl Scenario {
    /// A scenario from TOML: the text, or the path of a file.
    ///
    /// Parameters
    /// ----------
    /// text_or_path : str or os.PathLike
    ///     A path, or a text; a `str` with a line break or a `=` is a text.
    ///
    /// Raises
    /// ------
    /// ConfigError
    ///     With the text, file, line and key that `lull sim` reports.
    #[staticmethod]
    fn from_toml(py: Python<'_>, text_or_path: &Bound<'_, PyAny>) -> PyResult<Self> {
        let text = text_or_path.cast::<PyString>().ok().map(ToString::to_string);
        match text.filter(|text| text.contains(['\n', '='])) {
            Some(text) => Self::embedded(py, &text, "scenario".to_owned(), PathBuf::from(".")),
            None => {
                let path: PathBuf = text_or_path.extract()?;
                let source = Located::read(&path).map_err(|error| config_error(py, &error))?;
                let base = path.parent().map(PathBuf::from).unwrap_or_default();
                Self::new(py, source, path.display().to_string(), base)
            }
        }
    }

    /// A scenario from a dictionary with the keys of the file.
    ///
    /// Parameters
    /// ----------
    /// sections : dict
    ///     What `tomllib` would read from a file; None values are left out.
    ///
    /// Raises
    /// ------
    /// ConfigError
    ///     If it cannot be simulated. Lines are those of [`Scenario.toml`].
    #[staticmethod]
    fn from_dict(py: Python<'_>, sections: &Bound<'_, PyDict>) -> PyResult<Self> {
        let table = table(sections)?;
        let text = toml::to_string(&table);
        let text = text.map_err(|error| simulation_error(py, error.to_string()))?;
        Self::embedded(py, &text, "scenario".to_owned(), PathBuf::from("."))
    }

    /// The same scenario with other values at some keys.
    ///
    /// Parameters
    /// ----------
    /// values : dict of str to object
    ///     The value of each key. A key is what errors show, `app[0].threads`, where an entry
    ///     may be given by its name: `app[search].threads`. A section that is missing is made.
    ///
    /// Raises
    /// ------
    /// ConfigError
    ///     If there is no such key, or the scenario cannot be simulated with these values. Lines
    ///     are those of the new scenario's `toml`, which has no comments.
    fn with_values(&self, py: Python<'_>, values: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut all = Vec::new();
        for (key, given) in values {
            all.push((key.extract::<String>()?, value(&given)?));
        }
        self.changed(py, all)
    }

    /// The same scenario with a precision to reach; see `lull.simulate`.
    fn with_precision(
        &self,
        py: Python<'_>,
        relative: f64,
        figure: Option<String>,
        replications: Option<u64>,
    ) -> PyResult<Self> {
        let wrong = |error: InputError| config_error(py, &error);
        let scenario: toml::Table = self.source.parse().map_err(wrong)?;
        let written = scenario.get("run").and_then(|run| run.get("precision"));
        let figure = figure.or_else(|| written.is_none().then(|| FIGURE.to_owned()));
        let mut values = vec![("run.precision.relative".to_owned(), toml::Value::Float(relative))];
        if let Some(figure) = figure {
            values.push(("run.precision.figure".to_owned(), toml::Value::String(figure)));
        }
        if let Some(replications) = replications {
            let number = toml::Value::Integer(i64::try_from(replications).unwrap_or(i64::MAX));
            values.push(("run.replications".to_owned(), number));
        }
        self.changed(py, values)
    }

    /// Supports pickling: builds a scenario from its text, name, and directory.
    #[classmethod]
    fn from_text(
        class: &Bound<'_, PyType>,
        text: &str,
        name: String,
        base: PathBuf,
    ) -> PyResult<Self> {
        Self::embedded(class.py(), text, name, base)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Parts)> {
        let restore = py.get_type::<Self>().getattr("from_text")?;
        Ok((restore, (self.source.text().to_owned(), self.name.clone(), self.base.clone())))
    }

    /// The text of the scenario.
    #[getter]
    fn toml(&self) -> &str {
        self.source.text()
    }

    /// The title.
    #[getter]
    fn title(&self) -> &str {
        &self.title
    }

    /// The labels of its policies, the reference first; empty if it names none.
    #[getter]
    fn policies(&self) -> Vec<String> {
        self.policies.clone()
    }

    /// Notices about how far the figures are valid.
    #[getter]
    fn notices(&self) -> Vec<String> {
        self.notices.clone()
    }

    fn __repr__(&self) -> String {
        format!("<lull.Scenario {:?}>", self.title)
    }
}

/// Text, name and base of a pickled scenario.
type Parts = (String, String, PathBuf);

/// A dictionary as a table of TOML.
fn table(sections: &Bound<'_, PyDict>) -> PyResult<toml::Table> {
    let mut all = toml::Table::new();
    for (key, given) in sections {
        if !given.is_none() {
            all.insert(key.extract()?, value(&given)?);
        }
    }
    Ok(all)
}

fn value(given: &Bound<'_, PyAny>) -> PyResult<toml::Value> {
    // A bool is a number in Python, so it is checked first.
    if given.is_instance_of::<PyBool>() {
        Ok(toml::Value::Boolean(given.extract()?))
    } else if given.is_instance_of::<PyInt>() {
        Ok(toml::Value::Integer(given.extract()?))
    } else if given.is_instance_of::<PyFloat>() {
        Ok(toml::Value::Float(given.extract()?))
    } else if let Ok(text) = given.cast::<PyString>() {
        Ok(toml::Value::String(text.to_string()))
    } else if let Ok(sections) = given.cast::<PyDict>() {
        Ok(toml::Value::Table(table(sections)?))
    } else if given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>() {
        let items = given.try_iter()?.map(|item| value(&item?));
        Ok(toml::Value::Array(items.collect::<PyResult<_>>()?))
    } else if let Ok(number) = given.extract::<i64>() {
        // Numbers of other libraries, such as numpy.int64.
        Ok(toml::Value::Integer(number))
    } else if let Ok(number) = given.extract::<f64>() {
        Ok(toml::Value::Float(number))
    } else {
        let kind = given.get_type().name()?;
        let message = format!("{given}, a {kind}, has no form in TOML: write a text or a number");
        Err(PyTypeError::new_err(message))
    }
}
