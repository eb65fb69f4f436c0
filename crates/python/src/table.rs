//! Tables that leave as Arrow data through the PyCapsule interface, without a copy.

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{
    Array, ArrayRef, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray,
};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use lull_measure::escape::visible_line;
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use std::sync::Arc;

/// The values of a column; `None` where one is missing.
#[derive(Debug)]
pub(crate) enum Column {
    Text(Vec<Option<String>>),
    Integer(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
}

/// A table of results.
///
/// It implements the Arrow PyCapsule interface, so that libraries take it as it is:
/// `polars.DataFrame(table)`, `pyarrow.table(table)`, `pandas.DataFrame.from_arrow(table)`,
/// `duckdb.sql("FROM results")`.
#[pyclass(frozen, module = "lull")]
pub(crate) struct Table {
    batch: RecordBatch,
}

impl Column {
    fn into_array(self) -> (DataType, ArrayRef) {
        match self {
            Self::Text(values) => (DataType::Utf8, Arc::new(StringArray::from(values))),
            Self::Integer(values) => (DataType::Int64, Arc::new(Int64Array::from(values))),
            Self::Real(values) => (DataType::Float64, Arc::new(Float64Array::from(values))),
        }
    }

    /// A column of a list in Python; `None` if its values are neither all texts nor all numbers.
    fn from_list(values: &Bound<'_, PyAny>) -> Option<Self> {
        let is_empty = |value: PyResult<Bound<'_, PyAny>>| value.is_ok_and(|it| it.is_none());
        if !values.try_iter().ok()?.all(is_empty) {
            if let Ok(values) = values.extract() {
                return Some(Self::Integer(values));
            }
            if let Ok(values) = values.extract() {
                return Some(Self::Text(values));
            }
        }
        values.extract().ok().map(Self::Real)
    }
}

/// The columns of a pickled table: name, kind, values.
type Columns<'py> = Vec<(String, String, Bound<'py, PyAny>)>;

/// The kinds of columns, as pickled tables name them.
const TEXT: &str = "text";
const INTEGER: &str = "integer";
const REAL: &str = "real";

/// The kind of a column with this type.
fn kind(kind: &DataType) -> String {
    let name = match kind {
        DataType::Utf8 => TEXT,
        DataType::Int64 => INTEGER,
        _ => REAL,
    };
    name.to_owned()
}

/// Rows that are shown as text.
const SHOWN: usize = 40;

/// Formats one cell in one line, numbers with at most four decimal places.
fn cell(array: &ArrayRef, row: usize) -> String {
    let any = array.as_any();
    if array.is_null(row) {
        return "-".to_owned();
    }
    if let Some(texts) = any.downcast_ref::<StringArray>() {
        return visible_line(texts.value(row)).into_owned();
    }
    if let Some(numbers) = any.downcast_ref::<Int64Array>() {
        return numbers.value(row).to_string();
    }
    let number = any.downcast_ref::<Float64Array>().map_or(f64::NAN, |all| all.value(row));
    let text = format!("{number:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// An error of Arrow as an exception.
fn wrong(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

impl Table {
    /// Makes a table of columns of the same length.
    ///
    /// # Errors
    /// If they differ in length.
    pub(crate) fn new(columns: Vec<(String, Column)>) -> PyResult<Self> {
        let (mut fields, mut arrays) = (Vec::new(), Vec::new());
        for (name, column) in columns {
            let (kind, array) = column.into_array();
            fields.push(Field::new(name, kind, true));
            arrays.push(array);
        }
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays);
        Ok(Self { batch: batch.map_err(wrong)? })
    }
}

#[pymethods]
impl Table {
    /// A table of columns, which are lists of texts or numbers with None where one is missing.
    ///
    /// Parameters
    /// ----------
    /// columns : dict of str to list
    ///     Lists of the same length. A list of whole numbers is a column of them; one without a
    ///     value is a column of numbers.
    #[staticmethod]
    fn from_dict(columns: &Bound<'_, PyDict>) -> PyResult<Self> {
        let mut all = Vec::new();
        for (name, values) in columns {
            let name = name.extract::<String>()?;
            let column = Column::from_list(&values).ok_or_else(|| {
                let message = format!("column `{name}` is not a list of texts or of numbers");
                PyTypeError::new_err(message)
            })?;
            all.push((name, column));
        }
        Self::new(all)
    }

    /// The names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.batch.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    /// The values of a column as a list, with None where one is missing.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let array = self.batch.column_by_name(name).ok_or_else(|| {
            let names = self.column_names().join(", ");
            PyKeyError::new_err(format!("there is no column `{name}`; there are: {names}"))
        })?;
        let any = array.as_any();
        if let Some(texts) = any.downcast_ref::<StringArray>() {
            return texts.iter().collect::<Vec<_>>().into_pyobject(py);
        }
        if let Some(numbers) = any.downcast_ref::<Int64Array>() {
            return numbers.iter().collect::<Vec<_>>().into_pyobject(py);
        }
        let numbers = any.downcast_ref::<Float64Array>();
        numbers.into_iter().flatten().collect::<Vec<_>>().into_pyobject(py)
    }

    /// The columns as a dictionary of lists.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = PyDict::new(py);
        for name in self.column_names() {
            let values = self.column(py, &name)?;
            all.set_item(name, values)?;
        }
        Ok(all)
    }

    /// Supports pickling: returns the kind and the values of each column.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Columns<'py>,))> {
        let schema = self.batch.schema();
        let column = |field: &Arc<Field>| -> PyResult<_> {
            let name = field.name().clone();
            let values = self.column(py, &name)?;
            Ok((name, kind(field.data_type()), values))
        };
        let columns = schema.fields().iter().map(column).collect::<PyResult<_>>()?;
        Ok((py.get_type::<Self>().getattr("from_columns")?, (columns,)))
    }

    /// A table of columns with their kinds, as pickling stores them.
    #[staticmethod]
    fn from_columns(columns: Columns<'_>) -> PyResult<Self> {
        let column = |(name, kind, values): (String, String, Bound<'_, PyAny>)| -> PyResult<_> {
            let column = match kind.as_str() {
                TEXT => Column::Text(values.extract()?),
                INTEGER => Column::Integer(values.extract()?),
                _ => Column::Real(values.extract()?),
            };
            Ok((name, column))
        };
        Self::new(columns.into_iter().map(column).collect::<PyResult<_>>()?)
    }

    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    fn __repr__(&self) -> String {
        let (rows, names) = (self.batch.num_rows(), self.column_names().join(", "));
        format!("<lull.Table of {rows} rows: {}>", visible_line(&names))
    }

    /// The first rows as text, for people.
    fn __str__(&self) -> String {
        let shown = self.batch.num_rows().min(SHOWN);
        let schema = self.batch.schema();
        let columns = schema.fields().iter().zip(self.batch.columns()).map(|(field, array)| {
            let cells = (0..shown).map(|row| cell(array, row));
            let name = visible_line(field.name()).into_owned();
            std::iter::once(name).chain(cells).collect::<Vec<_>>()
        });
        let columns: Vec<Vec<String>> = columns.collect();
        let width = |column: &Vec<String>| column.iter().map(|it| it.chars().count()).max();
        let widths: Vec<usize> = columns.iter().map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in 0..=shown {
            let cells = columns.iter().zip(&widths);
            let cells = cells.map(|(column, width)| format!("{:<width$}", column[row]));
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        if shown < self.batch.num_rows() {
            text.push_str(&format!("... {} rows\n", self.batch.num_rows()));
        }
        text
    }

    /// The table as an ArrowArrayStream; it has one schema, so a requested one is not regarded.
    #[pyo3(signature = (requested_schema = None))]
    pub(crate) fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let batches = [Ok(self.batch.clone())].into_iter();
        let reader = RecordBatchIterator::new(batches, self.batch.schema());
        let stream = FFI_ArrowArrayStream::new(Box::new(reader));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    /// The schema as an ArrowSchema.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.batch.schema().as_ref()).map_err(wrong)?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }
}
