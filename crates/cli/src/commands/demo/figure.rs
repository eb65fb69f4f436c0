//! The demo as a picture: two quantities over time, blocks under control shaded in blue, and
//! the time in which settings are tried in grey.

use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;
use std::path::Path;

/// The data of the picture.
pub(super) struct Figure<'a> {
    /// When the shaded blocks were, in seconds.
    pub(super) shaded: &'a [Range<f64>],
    /// When settings were tried, in seconds.
    pub(super) trials: Option<Range<f64>>,
    /// End of the time axis in seconds.
    pub(super) end_s: f64,
    /// The panels from top to bottom.
    pub(super) panels: [Panel; 2],
}

/// One quantity over time.
pub(super) struct Panel {
    pub(super) caption: String,
    /// Unit of the quantity.
    pub(super) axis: &'static str,
    /// Upper end of the axis; higher values are drawn there.
    pub(super) top: f64,
    /// (seconds, value).
    pub(super) points: Vec<(f64, f64)>,
    /// A value to mark, and its label.
    pub(super) mark: Option<(f64, String)>,
}

const SIZE: (u32, u32) = (900, 520);
/// Width of the labels at an axis and of its unit, which is written beside them from bottom to
/// top.
const LABELS: u32 = 80;
/// Blue, green and vermilion of Okabe and Ito, which colour-blind readers can distinguish.
const COLOURS: [RGBColor; 2] = [RGBColor(0, 114, 178), RGBColor(0, 158, 115)];
const VERMILION: RGBColor = RGBColor(213, 94, 0);
const SHADE: RGBColor = RGBColor(235, 242, 248);
const TRIALS: RGBColor = RGBColor(238, 238, 238);
const FONT: (&str, u32) = ("sans-serif", 15);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Outcome = Result<(), Box<dyn Error>>;

/// Returns an axis' upper end that shows nearly all points: one stalled epoch must not flatten
/// the rest. `least` is visible in any case.
pub(super) fn axis_top(points: &[(f64, f64)], least: f64) -> f64 {
    let mut sorted: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
    sorted.sort_by(f64::total_cmp);
    let most = sorted.get(sorted.len() * 98 / 100).copied().unwrap_or(least);
    1.15 * most.max(least).max(f64::MIN_POSITIVE)
}

/// The label of a tick on an axis that ends at `end`: with digits behind the point only where
/// ticks differ in them.
fn tick(value: f64, end: f64) -> String {
    let digits = if end >= 10.0 { 0 } else { usize::from(end < 1.0) + 1 };
    format!("{value:.digits$}")
}

impl Figure<'_> {
    /// Writes the picture as SVG.
    pub(super) fn write(&self, file: &Path) -> Outcome {
        let root = SVGBackend::new(file, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (above, below) = root.split_vertically(SIZE.1 / 2);
        for ((area, panel), colour) in [above, below].iter().zip(&self.panels).zip(COLOURS) {
            self.draw(area, panel, colour)?;
        }
        root.present()?;
        Ok(())
    }

    fn draw(&self, area: &Area<'_>, panel: &Panel, colour: RGBColor) -> Outcome {
        let end_s = self.end_s.max(1.0);
        let mut chart = ChartBuilder::on(area)
            .caption(&panel.caption, ("sans-serif", 18))
            .margin(8)
            .set_label_area_size(LabelAreaPosition::Left, LABELS)
            .set_label_area_size(LabelAreaPosition::Bottom, 40)
            .build_cartesian_2d(0.0..end_s, 0.0..panel.top)?;
        let shade = |span: &Range<f64>, colour: RGBColor| {
            Rectangle::new([(span.start, 0.0), (span.end, panel.top)], colour.filled())
        };
        chart.draw_series(self.trials.iter().map(|span| shade(span, TRIALS)))?;
        chart.draw_series(self.shaded.iter().map(|span| shade(span, SHADE)))?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("seconds")
            .y_desc(panel.axis)
            .x_label_formatter(&|time| tick(*time, end_s))
            .y_label_formatter(&|value| tick(*value, panel.top))
            .label_style(FONT)
            .draw()?;
        if let Some((value, label)) = &panel.mark {
            let ends = [(0.0, *value), (end_s, *value)];
            chart.draw_series(LineSeries::new(ends, VERMILION.stroke_width(2)))?;
            let place = (end_s * 0.01, value + panel.top * 0.07);
            let font = FONT.into_font().color(&VERMILION);
            chart.draw_series([Text::new(label.clone(), place, font)])?;
        }
        let points = panel.points.iter().map(|(time, value)| (*time, value.min(panel.top)));
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The picture of a rate in the thousands, with trials from 1 to 12 s.
    fn picture() -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        let panel = |axis, top| Panel {
            caption: String::new(),
            axis,
            top,
            points: vec![(0.0, 1.0), (24.0, 2.0)],
            mark: None,
        };
        let panels = [panel("ms", 9.0), panel("1/s", 12_345.0)];
        let figure = Figure { shaded: &[13.0..14.0], trials: Some(1.0..12.0), end_s: 24.0, panels };
        figure.write(file.path()).unwrap();
        std::fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn trials_are_shaded_unlike_the_blocks() {
        let picture = picture();
        for (colour, name) in [("#EEEEEE", "trials"), ("#EBF2F8", "blocks")] {
            assert_eq!(picture.matches(colour).count(), 2, "{name} in both panels");
        }
    }

    #[test]
    fn labels_leave_room_for_the_unit_beside_them() {
        let picture = picture();
        assert!(picture.contains("\n12000\n") && !picture.contains("12000.0"), "{picture}");
        assert_eq!([tick(0.25, 0.9), tick(2.5, 9.0), tick(4000.0, 9e3)], ["0.25", "2.5", "4000"]);
    }
}
