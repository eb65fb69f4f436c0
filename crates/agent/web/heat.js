// Cores over time as a heat map: a row a core, a column an epoch.

import { colour } from "./charts.js";
import { clock } from "./format.js";

const LEFT = 34;
const BELOW = 18;

export class Heat {
  constructor(figure, options) {
    this.figure = figure;
    this.options = options;
    this.canvas = figure.querySelector("canvas");
  }

  draw(feed, span) {
    const { series, unit, title } = this.options;
    const cores = feed.labels(series).sort((a, b) => a - b);
    const columns = cores.map((core) => feed.of(series, core));
    const has = columns.some((column) => column.some((value) => value !== null));
    const why = this.figure.querySelector(".why");
    why.hidden = has;
    this.canvas.hidden = !has;
    if (!has) {
      why.textContent = this.options.why(feed);
      return;
    }
    const low = this.options.low ?? least(columns);
    const high = Math.max(this.options.high ?? most(columns), low + 1e-9);
    const key = this.figure.querySelector(".keys");
    key.textContent = `faint ${unit(low)}, strong ${unit(high)}`;
    this.paint(feed.times, columns, span, (value) => (value - low) / (high - low));
    const last = cores.map((core, at) => `core ${core} ${unit(columns[at].at(-1) ?? null)}`);
    this.canvas.setAttribute("aria-label", `${title}, last: ${last.join(", ")}`);
  }

  paint(times, columns, span, share) {
    const { canvas } = this;
    const scale = globalThis.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const end = times.at(-1);
    const begin = Math.max(0, end - span, Math.min(times[0], end - 30));
    const x = (time) => LEFT + ((time - begin) / (end - begin)) * (width - LEFT);
    const row = (height - BELOW) / columns.length;
    const heat = colour("heat");
    columns.forEach((column, core) => {
      times.forEach((time, at) => {
        if (time < begin || column[at] === null) return;
        const before = at > 0 ? times[at - 1] : time - 1;
        const left = Math.max(LEFT, x(before));
        const gap = row > 6 ? 1 : 0;
        const depth = Math.min(1, Math.max(0, share(column[at])));
        pen.fillStyle = `rgba(${heat}, ${0.08 + 0.92 * depth})`;
        pen.fillRect(left, core * row, x(time) - left + 0.5, row - gap);
      });
    });
    pen.fillStyle = colour("soft");
    pen.font = "12px system-ui, sans-serif";
    const every = Math.ceil(14 / row);
    columns.forEach((_, core) => {
      if (core % every === 0) pen.fillText(String(core), 6, core * row + row / 2 + 4);
    });
    pen.fillText(clock(begin), LEFT, height - 4);
    const now = clock(end);
    pen.fillText(now, width - pen.measureText(now).width, height - 4);
  }
}

const known = (columns) => columns.flat().filter((value) => value !== null);
const least = (columns) => known(columns).reduce((a, b) => Math.min(a, b), Infinity);
const most = (columns) => known(columns).reduce((a, b) => Math.max(a, b), -Infinity);
