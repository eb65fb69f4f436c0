// The figures: which there are, what each draws, and in which order.

import { Chart, COLOURS } from "./charts.js";
import { hertz, joules, number, percent, seconds, watts } from "./format.js";
import { Heat } from "./heat.js";

const SHARED = "(shared)";
const UNUSED = "(unused)";

/** Every series that some figure draws. */
export const SERIES = [
  "tail_latency_seconds", "tail_bound_seconds", "offered_requests_per_second",
  "completed_requests_per_second", "progress_per_second", "cpu_ratio", "entropy_system_ratio",
  "entropy_lc_ratio", "entropy_be_ratio", "power_watts", "energy_per_request_joules",
  "core_frequency_hertz", "core_idle_residency_ratio", "core_utilisation_ratio",
  "region_cores", "region_cache_ways",
];

/** Makes the figures of a run in `place`. */
export function panels(place, facts, missing) {
  place.replaceChildren();
  const critical = facts.apps.filter((app) => app.class === "latency-critical");
  const all = [
    ...critical.map((app) => latency(app)),
    ...critical.map((app) => load(app)),
    entropy(),
    regions("Cores by region", "region_cores", facts),
    ...(facts.machine.cache_ways ? [regions("Cache ways by region", "region_cache_ways", facts)]
      : []),
    progress(facts),
    power(),
    perRequest(),
  ];
  const charts = all.map((options) => {
    const why = options.series && (() => missing(options.series, options.label));
    return new Chart(figure(place, options.title, "plot"), { why, ...options });
  });
  const heats = cores().map((options) => {
    const why = () => missing(options.series);
    return new Heat(figure(place, options.title, "heat"), { ...options, why });
  });
  return [...charts, ...heats];
}

function figure(place, title, kind) {
  const made = document.createElement("figure");
  const caption = document.createElement("figcaption");
  const heading = document.createElement("h3");
  heading.textContent = title;
  const keys = document.createElement("span");
  keys.className = kind === "heat" ? "keys key" : "keys row";
  caption.append(heading, keys);
  const body = document.createElement(kind === "heat" ? "canvas" : "div");
  body.className = kind;
  body.setAttribute("role", "img");
  body.setAttribute("aria-label", title);
  const why = document.createElement("p");
  why.className = "why";
  why.hidden = true;
  made.append(caption, body, why);
  place.append(made);
  return made;
}

const latency = (app) => ({
  title: `${app.name}: ${app.percentile} latency`,
  series: "tail_latency_seconds",
  label: app.name,
  unit: seconds,
  robust: true,
  lines: (feed) => [
    { name: "measured", colour: "c0", values: feed.of("tail_latency_seconds", app.name) },
    { name: "bound", colour: "c1", dash: true, values: feed.of("tail_bound_seconds", app.name) },
  ],
});

const load = (app) => ({
  title: `${app.name}: requests a second`,
  series: "offered_requests_per_second",
  label: app.name,
  unit: number,
  lines: (feed) => [
    { name: "due", colour: "c4", values: feed.of("offered_requests_per_second", app.name) },
    { name: "answered", colour: "c2", values: feed.of("completed_requests_per_second", app.name) },
  ],
});

const entropy = () => ({
  title: "System entropy E_S and its parts",
  series: "entropy_system_ratio",
  unit: number,
  lines: (feed) => [
    { name: "E_S", colour: "c0", values: feed.of("entropy_system_ratio") },
    { name: "E_LC", colour: "c1", values: feed.of("entropy_lc_ratio") },
    { name: "E_BE", colour: "c2", values: feed.of("entropy_be_ratio") },
  ],
});

const regions = (title, series, facts) => ({
  title,
  stacked: true,
  steps: true,
  unit: number,
  lines: (feed) => {
    const own = facts.apps.map((app, at) => ({
      name: app.name,
      colour: COLOURS[at % (COLOURS.length - 1)],
      values: feed.of(series, app.name),
    }));
    const shared = { name: "shared", colour: "c6", values: feed.of(series, SHARED) };
    const unused = { name: "unused", colour: "free", faint: true, values: feed.of(series, UNUSED) };
    const some = (line) => line.values.some((value) => value > 0);
    return [...own, shared, unused].filter(some);
  },
});

/** Best-effort work, as a share of what each does alone or did best. */
const progress = (facts) => ({
  title: "Best-effort progress",
  series: "progress_per_second",
  unit: percent,
  lines: (feed) => {
    const quiet = facts.apps.filter((app) => app.class === "best-effort");
    return quiet.map((app, at) => {
      const values = feed.of("progress_per_second", app.name);
      const best = values.reduce((most, value) => Math.max(most, value ?? 0), 0);
      const alone = app.solo_per_second ?? best;
      const of = app.solo_per_second ? "of alone" : "of its best";
      const share = values.map((value) => (value === null || !alone ? null : value / alone));
      return { name: `${app.name} ${of}`, colour: COLOURS[at % COLOURS.length], values: share };
    });
  },
});

const power = () => ({
  title: "Power",
  series: "power_watts",
  unit: watts,
  lines: (feed) => {
    const source = feed.latest?.energy_measured ? "measured" : "modelled";
    return [{ name: source, colour: "c3", values: feed.of("power_watts") }];
  },
});

const perRequest = () => ({
  title: "Energy per request, all apps together",
  series: "energy_per_request_joules",
  unit: joules,
  lines: (feed) => {
    const source = feed.latest?.energy_measured ? "measured" : "modelled";
    return [{ name: source, colour: "c3", values: feed.of("energy_per_request_joules") }];
  },
});

const cores = () => [
  {
    title: "Utilisation by core",
    series: "core_utilisation_ratio",
    unit: percent,
    low: 0,
    high: 1,
  },
  { title: "Frequency by core", series: "core_frequency_hertz", unit: hertz },
  {
    title: "Time in idle states by core",
    series: "core_idle_residency_ratio",
    unit: percent,
    low: 0,
    high: 1,
  },
];
