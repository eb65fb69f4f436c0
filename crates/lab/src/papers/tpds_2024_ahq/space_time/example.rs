//! The example of Fig. 9: one slice of a resource, three apps and eight time-slices.

use crate::prelude::*;

const TIME_SLICES: usize = 8;

/// An app of the example, and the time-slices in which it requires the slice.
struct ExampleApp {
    name: &'static str,
    required: &'static [usize],
}

/// The apps in order of priority.
const APPS: [ExampleApp; 3] = [
    ExampleApp { name: "LC1", required: &[1, 2, 6, 7] },
    ExampleApp { name: "LC2", required: &[2, 4, 5, 6, 7] },
    ExampleApp { name: "BE", required: &[3, 4, 5, 6, 8] },
];
/// The app that has the slice under isolation.
const OWNER: usize = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// The slice is the owner's alone, scenario (b).
    Isolated,
    /// All apps may use it, and the first of those that require it does, scenario (c).
    Priority,
}

/// Where each mark is: app across, time-slice up.
#[derive(Debug, Default)]
struct Marks {
    ticks: Vec<Point>,
    triangles: Vec<Point>,
    crosses: Vec<Point>,
    waste: Vec<Point>,
}

fn mark(app: usize, time_slice: usize) -> Point {
    Point::at(app as f64 + 1.0, time_slice as f64)
}

impl Marks {
    fn simulate(sharing: Sharing) -> Self {
        let mut marks = Self::default();
        let mut last_user = None;
        for time_slice in 1..=TIME_SLICES {
            let requires = |app: &usize| APPS[*app].required.contains(&time_slice);
            let requiring: Vec<usize> = (0..APPS.len()).filter(requires).collect();
            let first = requiring.first().copied();
            let user = first.filter(|app| sharing == Sharing::Priority || *app == OWNER);
            match user {
                Some(app) if last_user.is_none_or(|last| last == app) => {
                    marks.ticks.push(mark(app, time_slice));
                }
                Some(app) => marks.triangles.push(mark(app, time_slice)),
                None if first.is_some() => marks.waste.push(mark(OWNER, time_slice)),
                None => {}
            }
            let denied = requiring.into_iter().filter(|app| Some(*app) != user);
            marks.crosses.extend(denied.map(|app| mark(app, time_slice)));
            last_user = user.or(last_user);
        }
        marks
    }

    /// Returns the requirements of each app when it runs alone, scenario (a).
    fn required() -> Self {
        let apps = APPS.iter().enumerate();
        let ticks =
            apps.flat_map(|(number, app)| app.required.iter().map(move |at| mark(number, *at)));
        Self { ticks: ticks.collect(), ..Self::default() }
    }

    /// Time-slices in which some app uses the slice.
    fn used(&self) -> f64 {
        (self.ticks.len() + self.triangles.len()) as f64
    }
}

/// Returns the rows that the text prints about the figure.
pub(super) fn rows() -> Vec<Row> {
    let [isolated, shared] = [Sharing::Isolated, Sharing::Priority].map(Marks::simulate);
    let ours = "of the marks only what the text states survives; these time-slices are ours and \
                have it";
    let row = |name: &str, unit, printed: f64, count: f64, near| {
        Row::compared(name, unit, printed, Formula(count), near).because(ours)
    };
    let equal = Absolute(0.0);
    let (denied, left) = (isolated.crosses.len() as f64, shared.crosses.len() as f64);
    let used = shared.used() / isolated.used();
    vec![
        row("Fig. 9(b): crosses (calibrated)", "crosses", 10.0, denied, equal),
        row("Fig. 9(c): crosses (calibrated)", "crosses", 6.0, left, equal),
        row(
            "Fig. 9(c): triangles (calibrated)",
            "triangles",
            4.0,
            shared.triangles.len() as f64,
            equal,
        ),
        Row::reported(
            "Fig. 9: use, (c) over (b) (calibrated)",
            "times",
            "almost doubled",
            Formula(used),
            "eight time-slices and four crosses fewer allow no less than 2; \"almost\" is the cost \
             of the triangles",
        ),
    ]
}

/// The three scenarios.
pub(super) fn figures() -> Vec<Figure> {
    vec![
        figure("Fig. 9(a): what each app requires alone", Marks::required()),
        figure("Fig. 9(b): isolated for LC1", Marks::simulate(Sharing::Isolated)),
        figure("Fig. 9(c): shared with priority", Marks::simulate(Sharing::Priority)),
    ]
}

fn figure(title: &str, marks: Marks) -> Figure {
    let times = (1..=TIME_SLICES).map(|at| at as f64);
    let y = Axis::linear("time-slice").between(0.5, TIME_SLICES as f64 + 0.5).ticks(times);
    // The markers are a circle, a square, a triangle and a cross in turn.
    Figure::new(title, Axis::names("", APPS.map(|app| app.name)), y)
        .with_curve("tick", CurveStyle::Points, marks.ticks)
        .with_curve("waste", CurveStyle::Points, marks.waste)
        .with_curve("triangle", CurveStyle::Points, marks.triangles)
        .with_curve("cross", CurveStyle::Points, marks.crosses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_required_slice_is_used_or_denied_and_every_time_slice_used_or_wasted() {
        let required = Marks::required().ticks.len();
        for sharing in [Sharing::Isolated, Sharing::Priority] {
            let marks = Marks::simulate(sharing);
            assert_eq!(marks.used() as usize + marks.crosses.len(), required);
            assert_eq!(marks.used() as usize + marks.waste.len(), TIME_SLICES);
        }
    }

    #[test]
    fn the_example_has_what_the_text_states_of_the_figure() {
        let alone = |at: usize| APPS.iter().filter(|app| app.required.contains(&at)).count();
        assert_eq!(alone(6), APPS.len(), "in time-slice 6 all three conflict");
        assert!(!APPS[OWNER].required.contains(&3) && alone(3) > 0, "3 is wasted under isolation");
        let shared = Marks::simulate(Sharing::Priority);
        assert!(shared.triangles.contains(&mark(2, 3)), "the slice goes to BE at 3");
        assert!(shared.triangles.contains(&mark(1, 4)), "and to LC2 at 4");
    }
}
