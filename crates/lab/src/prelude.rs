//! The imports of nearly every experiment: its own type, rows with their tolerances, and figures.

pub(crate) use crate::experiment::{Experiment, LabError, Setup};
pub(crate) use crate::figure::{Axis, CurveStyle, Figure, Point};
pub(crate) use crate::report::Tolerance::{Absolute, AtLeast, AtMost, Between, Relative};
pub(crate) use crate::report::{Drawing, Formula, Printed, Report, Row, Tolerance};
pub(crate) use crate::trial::{change_percent, estimate_of, paired_ratio};
