// Numbers and times for people.

/** Three significant digits; a dash for what is missing. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  const places = Math.min(6, Math.max(0, digits - 1 - size));
  return value.toFixed(places);
}

/** A span in the unit that suits it. */
export function seconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${number(value * 1e6)} µs`;
  if (size < 1) return `${number(value * 1e3)} ms`;
  return `${number(value)} s`;
}

export function percent(value) {
  return value === null || value === undefined ? "–" : `${number(100 * value)} %`;
}

export function watts(value) {
  return value === null || value === undefined ? "–" : `${number(value)} W`;
}

export function joules(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 1 ? `${number(value * 1e3)} mJ` : `${number(value)} J`;
}

export function hertz(value) {
  return value === null || value === undefined ? "–" : `${number(value / 1e9)} GHz`;
}

/** A number on an axis: `1.50 s` is `1.5 s` there. */
export function tick(text) {
  return text.replace(/(\.\d*?)0+(?=\s|$)/, "$1").replace(/\.(?=\s|$)/, "");
}

/** Seconds of a run as minutes and seconds. */
export function clock(value) {
  const whole = Math.floor(value);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  const two = (part) => String(part).padStart(2, "0");
  const tail = `${two(minutes)}:${two(whole % 60)}`;
  return hours > 0 ? `${hours}:${tail}` : tail;
}
