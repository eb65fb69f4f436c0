//! The demo as a picture: tail latency and best-effort progress over time,
//! blocks with the policy shaded.

use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;
use std::ops::Range;
use std::path::Path;

/// One epoch in the picture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    /// Seconds since the first block.
    pub(super) time_s: f64,
    /// Tail latency in milliseconds, if requests were answered.
    pub(super) tail_ms: Option<f64>,
    /// Progress of the best-effort app in percent of its progress alone.
    pub(super) progress_percent: Option<f64>,
}

/// The data of the picture.
pub(super) struct Figure<'a> {
    /// `p95`.
    pub(super) percentile: String,
    /// The objective's bound in milliseconds.
    pub(super) bound_ms: f64,
    /// The policy's name.
    pub(super) policy: &'a str,
    /// When the policy acted, in seconds.
    pub(super) on: &'a [Range<f64>],
    /// The epochs.
    pub(super) points: &'a [Point],
}

const SIZE: (u32, u32) = (900, 520);
/// Blue, vermilion and green of Okabe and Ito, which colour-blind readers can distinguish.
const BLUE: RGBColor = RGBColor(0, 114, 178);
const VERMILION: RGBColor = RGBColor(213, 94, 0);
const GREEN: RGBColor = RGBColor(0, 158, 115);
const SHADE: RGBColor = RGBColor(235, 242, 248);
const FONT: (&str, u32) = ("sans-serif", 15);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Outcome = Result<(), Box<dyn Error>>;

impl Figure<'_> {
    /// Writes the picture as SVG.
    pub(super) fn write(&self, file: &Path) -> Outcome {
        let root = SVGBackend::new(file, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (above, below) = root.split_vertically(SIZE.1 / 2);
        self.tails(&above)?;
        self.progress(&below)?;
        root.present()?;
        Ok(())
    }

    fn end_s(&self) -> f64 {
        self.points.last().map_or(1.0, |point| point.time_s).max(1.0)
    }

    fn tails(&self, area: &Area<'_>) -> Outcome {
        let tails = self.points.iter().filter_map(|p| p.tail_ms.map(|tail| (p.time_s, tail)));
        let tails: Vec<_> = tails.collect();
        let mut sorted: Vec<_> = tails.iter().map(|(_, tail)| *tail).collect();
        sorted.sort_by(f64::total_cmp);
        // One stalled epoch must not flatten the rest: the axis ends above the 98th percentile.
        let most = sorted.get(sorted.len() * 98 / 100).copied().unwrap_or(self.bound_ms);
        let top = 1.15 * most.max(self.bound_ms);
        let caption =
            format!("{} of the server, policy {} in shaded blocks", self.percentile, self.policy);
        let points = tails.into_iter().map(|(time, tail)| (time, tail.min(top)));
        let line = Line { caption, axis: "ms", top, colour: BLUE, points: points.collect() };
        self.draw(area, &line, Some((self.bound_ms, VERMILION)))
    }

    fn progress(&self, area: &Area<'_>) -> Outcome {
        let shares = self.points.iter();
        let points = shares.filter_map(|p| p.progress_percent.map(|share| (p.time_s, share)));
        let caption = "Best-effort progress, in percent of its progress alone".to_owned();
        let line = Line { caption, axis: "%", top: 110.0, colour: GREEN, points: points.collect() };
        self.draw(area, &line, None)
    }

    fn draw(&self, area: &Area<'_>, line: &Line, mark: Option<(f64, RGBColor)>) -> Outcome {
        let mut chart = ChartBuilder::on(area)
            .caption(&line.caption, ("sans-serif", 18))
            .margin(8)
            .set_label_area_size(LabelAreaPosition::Left, 62)
            .set_label_area_size(LabelAreaPosition::Bottom, 40)
            .build_cartesian_2d(0.0..self.end_s(), 0.0..line.top)?;
        let shades = self
            .on
            .iter()
            .map(|span| Rectangle::new([(span.start, 0.0), (span.end, line.top)], SHADE.filled()));
        chart.draw_series(shades)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc("seconds")
            .y_desc(line.axis)
            .label_style(FONT)
            .draw()?;
        if let Some((bound, colour)) = mark {
            let ends = [(0.0, bound), (self.end_s(), bound)];
            chart.draw_series(LineSeries::new(ends, colour.stroke_width(2)))?;
            let label = format!("objective {bound:.2} ms");
            let place = (self.end_s() * 0.01, bound + line.top * 0.07);
            chart.draw_series([Text::new(label, place, FONT.into_font().color(&colour))])?;
        }
        let style = line.colour.stroke_width(2);
        chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?;
        Ok(())
    }
}

struct Line {
    caption: String,
    axis: &'static str,
    top: f64,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}
