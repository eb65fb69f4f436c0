//! Tables as Parquet, a block of rows at a time.
//!
//! The library takes its share of a build, so it is the feature `parquet`. Without it a table
//! cannot be made, and the error says how to build a program that can.

use std::io::Write;

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// 64-bit integers.
    Integer,
    /// 64-bit floating-point numbers.
    Real,
    /// UTF-8 text.
    Text,
    /// True or false.
    Truth,
}

/// A column: its name, its type, and whether each row has a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Letters, digits and underscores.
    pub name: String,
    /// Its type.
    pub kind: Kind,
    /// No row lacks a value.
    pub is_required: bool,
}

/// The value of a row in a column. A value of another kind than its column's is missing,
/// except that an integer is a real number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TableValue<'a> {
    /// No value.
    Missing,
    /// A value in a column of integers or real numbers.
    Integer(i64),
    /// A value in a column of real numbers.
    Real(f64),
    /// A value in a column of text.
    Text(&'a str),
    /// A value in a column of truths.
    Truth(bool),
}

impl Column {
    /// Returns a column in which each row has a value.
    pub fn required(name: &str, kind: Kind) -> Self {
        Self { name: name.to_owned(), kind, is_required: true }
    }

    /// Returns a column in which rows may lack a value.
    pub fn optional(name: &str, kind: Kind) -> Self {
        Self { name: name.to_owned(), kind, is_required: false }
    }
}

impl From<Option<f64>> for TableValue<'_> {
    fn from(value: Option<f64>) -> Self {
        value.map_or(Self::Missing, Self::Real)
    }
}

/// Refuses early where this program was built without Parquet.
///
/// # Errors
/// [`ParquetError::NotBuilt`].
pub const fn check_built() -> Result<(), ParquetError> {
    if cfg!(feature = "parquet") { Ok(()) } else { Err(ParquetError::NotBuilt) }
}

/// Why a table could not be written as Parquet.
#[derive(Debug, thiserror::Error)]
pub enum ParquetError {
    /// The library refused it, or the destination did.
    #[cfg(feature = "parquet")]
    #[error(transparent)]
    Library(#[from] parquet::errors::ParquetError),
    /// This program was built without it.
    #[error("this lull was built without Parquet: choose CSV, or build with --features parquet")]
    NotBuilt,
}

#[cfg(feature = "parquet")]
pub use built::ParquetTable;
#[cfg(not(feature = "parquet"))]
pub use not_built::ParquetTable;

#[cfg(feature = "parquet")]
mod built {
    use super::{Column, Kind, ParquetError, TableValue, Write};
    use parquet::basic::Compression;
    use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
    use parquet::schema::parser::parse_message_type;
    use std::sync::Arc;

    /// A table that is being written.
    pub struct ParquetTable<W: Write + Send> {
        columns: Vec<Column>,
        file: SerializedFileWriter<W>,
    }

    impl<W: Write + Send> ParquetTable<W> {
        /// Begins a table.
        ///
        /// # Errors
        /// If a name is not one of Parquet's schema language, or the destination cannot be
        /// written.
        pub fn new(to: W, name: &str, columns: Vec<Column>) -> Result<Self, ParquetError> {
            let schema = Arc::new(parse_message_type(&schema(name, &columns))?);
            // Columns repeat their values so often that their dictionaries are small already.
            let properties = WriterProperties::builder().set_compression(Compression::UNCOMPRESSED);
            let file = SerializedFileWriter::new(to, schema, Arc::new(properties.build()))?;
            Ok(Self { columns, file })
        }

        /// Appends rows; `cell` returns the value of a row in a column, both counted from 0.
        ///
        /// # Errors
        /// If the destination cannot be written.
        pub fn append<'a>(
            &mut self,
            rows: usize,
            cell: impl Fn(usize, usize) -> TableValue<'a>,
        ) -> Result<(), ParquetError> {
            if rows == 0 {
                return Ok(());
            }
            let mut group = self.file.next_row_group()?;
            for (index, column) in self.columns.iter().enumerate() {
                let Some(mut writer) = group.next_column()? else { break };
                let cells: Vec<TableValue<'_>> = (0..rows).map(|row| cell(row, index)).collect();
                write(column, &cells, &mut writer)?;
                writer.close()?;
            }
            group.close()?;
            Ok(())
        }

        /// Ends the table.
        ///
        /// # Errors
        /// If the destination cannot be written.
        pub fn finish(self) -> Result<(), ParquetError> {
            self.file.close()?;
            Ok(())
        }
    }

    fn schema(name: &str, columns: &[Column]) -> String {
        let declared = |column: &Column| {
            let repetition = if column.is_required { "REQUIRED" } else { "OPTIONAL" };
            let (physical, logical) = match column.kind {
                Kind::Integer => ("INT64", ""),
                Kind::Real => ("DOUBLE", ""),
                Kind::Text => ("BYTE_ARRAY", " (UTF8)"),
                Kind::Truth => ("BOOLEAN", ""),
            };
            format!("{repetition} {physical} {}{logical};\n", column.name)
        };
        format!("message {name} {{ {} }}", columns.iter().map(declared).collect::<String>())
    }

    fn write(
        column: &Column,
        cells: &[TableValue<'_>],
        to: &mut SerializedColumnWriter<'_>,
    ) -> Result<(), ParquetError> {
        macro_rules! values {
            ($kind:ty, $of:expr) => {{
                let values: Vec<_> = cells.iter().map($of).collect();
                let levels: Vec<i16> = values.iter().map(|it| i16::from(it.is_some())).collect();
                let levels = (!column.is_required).then_some(&*levels);
                let known: Vec<_> = values.into_iter().flatten().collect();
                to.typed::<$kind>().write_batch(&known, levels, None)?
            }};
        }
        match column.kind {
            Kind::Integer => values!(Int64Type, |cell| match cell {
                TableValue::Integer(value) => Some(*value),
                _ => None,
            }),
            Kind::Real => values!(DoubleType, |cell| match cell {
                TableValue::Real(value) => Some(*value),
                TableValue::Integer(value) => Some(*value as f64),
                _ => None,
            }),
            Kind::Text => values!(ByteArrayType, |cell| match cell {
                TableValue::Text(text) => Some(ByteArray::from(*text)),
                _ => None,
            }),
            Kind::Truth => values!(BoolType, |cell| match cell {
                TableValue::Truth(value) => Some(*value),
                _ => None,
            }),
        };
        Ok(())
    }
}

#[cfg(not(feature = "parquet"))]
mod not_built {
    use super::{Column, ParquetError, TableValue, Write};
    use std::marker::PhantomData;

    /// A table that cannot be made, because the program was built without Parquet.
    pub struct ParquetTable<W>(std::convert::Infallible, PhantomData<W>);

    impl<W: Write + Send> ParquetTable<W> {
        /// Refuses.
        ///
        /// # Errors
        /// [`ParquetError::NotBuilt`].
        pub fn new(_: W, _: &str, _: Vec<Column>) -> Result<Self, ParquetError> {
            Err(ParquetError::NotBuilt)
        }

        /// Is never called.
        ///
        /// # Errors
        /// Never.
        pub fn append<'a>(
            &mut self,
            _: usize,
            _: impl Fn(usize, usize) -> TableValue<'a>,
        ) -> Result<(), ParquetError> {
            match self.0 {}
        }

        /// Is never called.
        ///
        /// # Errors
        /// Never.
        pub fn finish(self) -> Result<(), ParquetError> {
            match self.0 {}
        }
    }
}
