// Time series with uPlot: lines, stacked areas, bounds.

import { clock, tick } from "./format.js";

const uPlot = globalThis.uPlot;

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Distances between numbers on an axis of seconds, and of whole things. */
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600];
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];
/** A new run is not drawn as a sliver at the edge. */
const SPAN_MIN = 30;

/** Colours in turn; those of Okabe and Ito. */
export const COLOURS = ["c0", "c1", "c2", "c3", "c4", "c5", "c6"];

/**
 * A chart in a figure: `lines` are {name, colour, dash, values()}, and with
 * `stacked` each is drawn on top of those before it.
 */
export class Chart {
  constructor(figure, options) {
    this.figure = figure;
    this.options = options;
    this.plot = null;
    this.place = figure.querySelector(".plot");
  }

  /** Draws the last `span` seconds. */
  draw(feed, span) {
    const lines = this.options.lines(feed);
    const shape = lines.map((line) => line.name).join("\n");
    const end = feed.times.at(-1) ?? 0;
    const from = feed.times.findIndex((time) => time >= end - span);
    const first = from < 0 ? 0 : from;
    const columns = lines.map((line) => line.values.slice(first));
    const has = columns.some((column) => column.some((value) => value !== null));
    this.explain(has, feed);
    if (!has) return;
    if (shape !== this.shape || this.width !== this.place.clientWidth) this.build(lines, shape);
    const data = this.options.stacked ? stack(columns) : columns;
    this.top = this.options.robust ? robust(columns) : null;
    this.plot.setData([feed.times.slice(first), ...data], false);
    const begin = Math.max(end - span, Math.min(feed.times[first], end - SPAN_MIN), 0);
    this.plot.setScale("x", { min: begin, max: Math.max(end, begin + SPAN_MIN) });
    this.label(lines);
  }

  explain(has, feed) {
    const why = this.figure.querySelector(".why");
    why.hidden = has;
    this.place.hidden = !has;
    if (!has) why.textContent = this.options.why?.(feed) ?? "nothing was measured yet";
  }

  build(lines, shape) {
    this.shape = shape;
    this.width = this.place.clientWidth;
    this.plot?.destroy();
    const key = this.figure.querySelector(".keys");
    key.replaceChildren(...lines.filter((line) => line.name).map(keyOf));
    const stacked = this.options.stacked;
    const series = lines.map((line) => ({
      stroke: colour(line.colour),
      width: stacked ? 1 : 1.6,
      dash: line.dash ? [6, 4] : undefined,
      fill: stacked ? colour(line.colour) + (line.faint ? "" : "cc") : undefined,
      paths: this.options.steps ? uPlot.paths.stepped({ align: -1 }) : undefined,
      points: { show: false },
      spanGaps: false,
    }));
    const ink = colour("soft");
    const grid = { stroke: colour("line"), width: 1 };
    const axis = { stroke: ink, grid, ticks: grid, font: "12px system-ui, sans-serif" };
    // The lower areas are drawn last, on top of what reaches up behind them.
    this.order = stacked ? lines.map((_, index) => lines.length - index) : null;
    this.plot = new uPlot(
      {
        width: this.width,
        height: this.place.clientHeight || 190,
        legend: { show: false },
        cursor: { y: false, points: { size: 6 } },
        scales: {
          x: { time: false },
          y: { range: (_, low, high) => range(low, this.top ?? high) },
        },
        axes: [
          { ...axis, size: 30, incrs: SECONDS, values: (_, ticks) => ticks.map(clock) },
          {
            ...axis,
            size: 62,
            ...(stacked ? { incrs: WHOLE } : {}),
            values: (_, ticks) => ticks.map((value) => tick(this.options.unit(value))),
          },
        ],
        series: [{}, ...(stacked ? series.reverse() : series)],
      },
      [[], ...lines.map(() => [])],
      this.place,
    );
  }

  /** Sets the label for screen readers: the last value of each line. */
  label(lines) {
    const last = lines
      .filter((line) => line.name)
      .map((line) => `${line.name} ${this.options.unit(line.values.at(-1) ?? null)}`);
    this.place.setAttribute("aria-label", `${this.options.title}, last: ${last.join(", ")}`);
  }
}

function keyOf(line) {
  const key = document.createElement("span");
  const mark = document.createElement("i");
  key.className = "key";
  if (line.dash) mark.className = "dash";
  if (line.dash) mark.style.borderColor = colour(line.colour);
  else mark.style.background = colour(line.colour);
  key.append(mark, line.name);
  return key;
}

/** Columns on top of each other, the highest first. */
function stack(columns) {
  const sums = [];
  let below = columns[0]?.map(() => 0) ?? [];
  for (const column of columns) {
    below = column.map((value, at) => (value === null ? below[at] : below[at] + value));
    sums.unshift(below);
  }
  return sums;
}

/** From zero, with room above; never flat. */
function range(low, high) {
  const most = Math.max(high ?? 0, 0);
  return [Math.min(low ?? 0, 0), most > 0 ? most * 1.08 : 1];
}

/** Where an axis ends so that one stalled epoch does not flatten the rest. */
function robust(columns) {
  const last = (column) => {
    const all = column.filter((value) => value !== null).sort((a, b) => a - b);
    return all.length > 0 ? all[Math.floor((all.length - 1) * 0.98)] : 0;
  };
  return Math.max(...columns.map(last)) * 1.1;
}
