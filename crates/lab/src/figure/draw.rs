//! Drawing: title, legend, axes, curves.

use super::scale::{Scale, tick_text};
use super::{Curve, CurveStyle, Figure, Mark, Point};
use lull_measure::escape::visible;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, Cross, PathElement, Rectangle, Text, TriangleMarker};
use plotters::prelude::SVGBackend;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoFont, RGBColor, ShapeStyle, TextStyle};

const WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 430;
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(222, 222, 222);
const PAPER: RGBColor = RGBColor(255, 255, 255);
/// Okabe and Ito's palette without yellow, which is too light for lines.
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

/// Why a figure could not be drawn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot draw the figure: {0}")]
pub struct DrawError(String);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Scale, Scale>>;
type Drawn = Result<(), DrawError>;

/// The figures below each other as one SVG text, without hidden characters: titles and labels
/// may come from a record or a scenario of another user.
///
/// # Errors
/// If the drawing library gives up.
pub fn svg(panels: &[Figure]) -> Result<String, DrawError> {
    let mut text = String::new();
    {
        let height = PANEL_HEIGHT * panels.len().max(1) as u32;
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        root.fill(&PAPER).map_err(failed)?;
        for (area, figure) in root.split_evenly((panels.len().max(1), 1)).iter().zip(panels) {
            panel(area, figure)?;
        }
        root.present().map_err(failed)?;
    }
    // The drawing library escapes markup.
    Ok(visible(&text).into_owned())
}

fn failed(error: impl std::fmt::Display) -> DrawError {
    DrawError(error.to_string())
}

fn panel(area: &Area<'_>, figure: &Figure) -> Drawn {
    let (head, body) = area.split_vertically(if has_legend(figure) { 74 } else { 42 });
    heading(&head, figure)?;
    let points = || figure.curves.iter().flat_map(|curve| &curve.points);
    let heights = points().flat_map(|point| {
        let [low, high] = point.interval.unwrap_or([point.y, point.y]);
        [low, point.y, high]
    });
    let marks = figure.marks.iter().map(|mark| mark.y);
    let x = Scale::fit(&figure.x, points().map(|point| point.x));
    let y = Scale::fit(&figure.y, heights.chain(marks));
    let left = *x.ticks.first().unwrap_or(&0.0);
    let mut chart = ChartBuilder::on(&body)
        .margin_left(14)
        .margin_right(26)
        .margin_top(6)
        .margin_bottom(8)
        .x_label_area_size(54)
        .y_label_area_size(82)
        .build_cartesian_2d(x, y)
        .map_err(failed)?;
    axes(&mut chart, figure)?;
    figure.marks.iter().try_for_each(|mark| draw_mark(&chart, mark, left))?;
    figure.curves.iter().try_for_each(|curve| draw_curve(&chart, curve))
}

fn font(size: u32) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", size).into_font()).color(&INK)
}

fn has_legend(figure: &Figure) -> bool {
    named(figure).count() > 1
}

/// Returns the curves that the legend names; one without a name continues another.
fn named(figure: &Figure) -> impl Iterator<Item = &Curve> {
    figure.curves.iter().filter(|curve| !curve.name.is_empty())
}

/// Title and legend above the axes, where they cover nothing.
fn heading(area: &Area<'_>, figure: &Figure) -> Drawn {
    let title = Text::new(figure.title.clone(), (14, 12), font(19));
    area.draw(&title).map_err(failed)?;
    if !has_legend(figure) {
        return Ok(());
    }
    let mut left = 22;
    for curve in named(figure) {
        let (number, colour) = (curve.style, colour(curve.style));
        if !matches!(curve.look, CurveStyle::Dots | CurveStyle::Points) {
            let line = PathElement::new([(left - 6, 56), (left + 14, 56)], colour.stroke_width(2));
            area.draw(&line).map_err(failed)?;
        }
        if matches!(curve.look, CurveStyle::Line | CurveStyle::Dots | CurveStyle::Points) {
            marker(area, (left + 4, 56), number, curve.look)?;
        }
        area.draw(&Text::new(curve.name.clone(), (left + 22, 48), font(15))).map_err(failed)?;
        left += 52 + (curve.name.chars().count() as f64 * 6.8) as i32;
    }
    Ok(())
}

fn axes(chart: &mut Chart<'_, '_>, figure: &Figure) -> Drawn {
    let text = |value: &f64| tick_text(*value);
    let across = |value: &f64| {
        let name = figure.x.names.get((value.round() as usize).wrapping_sub(1));
        name.cloned().unwrap_or_else(|| tick_text(*value))
    };
    chart
        .configure_mesh()
        .light_line_style(PAPER.mix(0.0))
        .bold_line_style(GRID)
        .axis_style(INK)
        .x_desc(&figure.x.label)
        .y_desc(&figure.y.label)
        .x_label_formatter(&across)
        .y_label_formatter(&text)
        .label_style(font(14))
        .axis_desc_style(font(16))
        .draw()
        .map_err(failed)
}

fn draw_mark(chart: &Chart<'_, '_>, mark: &Mark, left: f64) -> Drawn {
    let range = chart.x_range();
    // Dark enough to be read: 5.7 to 1 on paper.
    let grey = RGBColor(102, 102, 102);
    let line = PathElement::new([(range.start, mark.y), (range.end, mark.y)], grey.stroke_width(1));
    let above = font(13).color(&grey).pos(Pos::new(HPos::Left, VPos::Bottom));
    let area = chart.plotting_area();
    area.draw(&line).map_err(failed)?;
    area.draw(&Text::new(mark.label.clone(), (left, mark.y), above)).map_err(failed)
}

fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

fn draw_curve(chart: &Chart<'_, '_>, curve: &Curve) -> Drawn {
    let number = curve.style;
    let area = chart.plotting_area();
    let finite = |point: &&Point| point.x.is_finite() && point.y.is_finite();
    let points: Vec<_> = curve.points.iter().filter(finite).copied().collect();
    let path: Vec<_> = match curve.look {
        CurveStyle::Steps => steps(&points),
        CurveStyle::Line | CurveStyle::Trace | CurveStyle::Dots | CurveStyle::Points => {
            points.iter().map(|p| (p.x, p.y)).collect()
        }
    };
    let width = if curve.look == CurveStyle::Line { 2 } else { 1 };
    if !matches!(curve.look, CurveStyle::Dots | CurveStyle::Points) {
        let line = PathElement::new(path, colour(number).stroke_width(width));
        area.draw(&line).map_err(failed)?;
    }
    if !matches!(curve.look, CurveStyle::Line | CurveStyle::Dots | CurveStyle::Points) {
        return Ok(());
    }
    for point in points {
        if let Some([low, high]) = point.interval {
            let style = colour(number).stroke_width(1);
            area.draw(&PathElement::new([(point.x, low), (point.x, high)], style))
                .map_err(failed)?;
        }
        let at = area.map_coordinate(&(point.x, point.y));
        marker(&area.strip_coord_spec(), relative(area.get_base_pixel(), at), number, curve.look)?;
    }
    Ok(())
}

/// A point of the picture as a point of the area at `base`.
fn relative(base: (i32, i32), at: (i32, i32)) -> (i32, i32) {
    (at.0 - base.0, at.1 - base.1)
}

fn steps(points: &[Point]) -> Vec<(f64, f64)> {
    let corners =
        points.windows(2).flat_map(|pair| [(pair[0].x, pair[0].y), (pair[1].x, pair[0].y)]);
    corners.chain(points.last().map(|last| (last.x, last.y))).collect()
}

/// The curve's own marker: circle, square, triangle, cross in turn.
fn marker(area: &Area<'_>, at: (i32, i32), number: usize, look: CurveStyle) -> Drawn {
    let colour = colour(number);
    let hollow = look == CurveStyle::Dots;
    let style = || if hollow { colour.stroke_width(2) } else { ShapeStyle::from(&colour).filled() };
    let (x, y) = at;
    match number % 4 {
        0 => area.draw(&Circle::new(at, 4, style())),
        1 => area.draw(&Rectangle::new([(x - 4, y - 4), (x + 4, y + 4)], style())),
        2 => area.draw(&TriangleMarker::new(at, 5, style())),
        _ => area.draw(&Cross::new(at, 4, colour.stroke_width(2))),
    }
    .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, CurveStyle, Figure, Point};
    use super::svg;

    fn figure() -> Figure {
        let points = (1..=5).map(|x| {
            let x = f64::from(x);
            Point { x, y: x * x, interval: Some([x * x - 1.0, x * x + 1.0]) }
        });
        Figure::new("squares", Axis::log("x (s)"), Axis::linear("y (ms)"))
            .with_curve("ours <&>", CurveStyle::Line, points.clone())
            .with_curve("paper", CurveStyle::Dots, points)
            .mark(20.0, "limit")
    }

    #[test]
    fn a_figure_is_the_same_text_each_time_and_well_formed() {
        let text = svg(&[figure(), figure()]).unwrap();
        assert_eq!(text, svg(&[figure(), figure()]).unwrap());
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert!(text.contains("response") || text.contains("y (ms)"));
        assert!(!text.contains("ours <&>"), "text must be escaped");
    }

    #[test]
    fn hidden_characters_of_titles_and_labels_are_shown() {
        let hostile = Figure::new("a\u{1b}[2J", Axis::linear("b\u{9b}"), Axis::linear("c\u{202e}"));
        let text = svg(&[hostile.mark(1.0, "d\u{7f}")]).unwrap();
        assert!(text.contains("a\\u{1b}[2J") && text.contains("c\\u{202e}"), "{text}");
        assert!(!text.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\u{7f}']), "{text}");
    }

    #[test]
    fn a_figure_without_points_can_be_drawn() {
        let empty = Figure::new("nothing", Axis::log("x"), Axis::linear("y"));
        assert!(svg(&[empty.with_curve("none", CurveStyle::Line, [])]).is_ok());
    }
}
