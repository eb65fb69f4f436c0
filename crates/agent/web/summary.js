// How things stand in the last epoch: tiles, apps, knobs, and what is wrong.

import { clock, joules, number, percent, seconds, watts } from "./format.js";

const byId = (id) => document.getElementById(id);

/** A cell, with a class for its colour. */
function cell(text, kind = "") {
  const made = document.createElement("td");
  made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function header(text) {
  const made = document.createElement("th");
  made.scope = "row";
  made.textContent = text;
  return made;
}

export function showFacts(facts) {
  const cores = `${facts.machine.cores} cores`;
  byId("machine").textContent = `${facts.machine.name}, ${cores}, run ${facts.run}`;
  byId("version").textContent = `Lull ${facts.version}`;
  const titles = ["app", "class", "tail latency", "bound", "slack", "ReT", "requests/s",
    "progress", "CPU, cores", "may use"];
  const row = document.createElement("tr");
  for (const title of titles) {
    const made = document.createElement("th");
    made.scope = "col";
    made.textContent = title;
    row.append(made);
  }
  byId("apps").tHead.replaceChildren(row);
}

export function showEpoch(facts, epoch) {
  const value = (name, label = "") => epoch.values[name]?.[label] ?? null;
  tiles(facts, epoch, value);
  banner(facts, epoch);
  byId("apps").tBodies[0].replaceChildren(...facts.apps.map((app) => appRow(app, epoch, value)));
  byId("knobs").tBodies[0].replaceChildren(...epoch.knobs.map(knobRow));
  showGates(epoch.gates);
  showClasses(epoch, value);
}

/** A row for each gate. */
function showGates(gates) {
  const rows = gates.map((gate) => {
    const row = document.createElement("tr");
    row.append(
      header(gate.app),
      cell(number(gate.under_way)),
      cell(number(gate.waiting)),
      cell(gate.limit, "words"),
      cell(gate.decision || "–", "words"),
      cell(gate.areas || "–", "words"),
    );
    return row;
  });
  byId("gates").hidden = rows.length === 0;
  byId("gates").querySelector("tbody").replaceChildren(...rows);
}

/** A row for each class of clients; their labels are `APP/CLASS`. */
function showClasses(epoch, value) {
  const classes = Object.keys(epoch.values.client_connections ?? {});
  const rows = classes.map((label) => {
    const of = (name) => value(name, label);
    const row = document.createElement("tr");
    row.append(
      header(label.replace("/", ": ")),
      cell(number(of("client_connections"))),
      cell(number(of("client_under_way"))),
      cell(number(of("client_waiting"))),
      cell(number(of("client_turns_per_second"))),
      cell(seconds(of("client_wait_p50_seconds"))),
      cell(seconds(of("client_wait_p99_seconds"))),
    );
    return row;
  });
  byId("classes").hidden = rows.length === 0;
  byId("classes").querySelector("tbody").replaceChildren(...rows);
}

function tiles(facts, epoch, value) {
  const acting = epoch.paused ? "paused" : epoch.safe ? "SLO-safe" : epoch.policy;
  const source = epoch.energy_source || "no figure";
  const parts = `E_LC ${number(value("entropy_lc_ratio"))}, E_BE ${
    number(value("entropy_be_ratio"))}`;
  const all = [
    ["policy", acting, `${clock(epoch.time_s)} into the ${facts.dry_run ? "dry run" : "run"}`],
    ["E_S, 0 is best", number(value("entropy_system_ratio")), parts],
    ["power", watts(value("power_watts")), epoch.energy_measured ? source : "modelled"],
    ["energy a request", joules(value("energy_per_request_joules")), "all apps together"],
    ["epoch", seconds(epoch.epoch_s), "between two decisions"],
  ];
  byId("tiles").replaceChildren(...all.map(([name, now, more]) => tile(name, now, more, source)));
}

function tile(name, now, more, source) {
  const made = document.createElement("div");
  const title = document.createElement("dt");
  const body = document.createElement("dd");
  const small = document.createElement("small");
  title.textContent = name;
  small.textContent = more;
  body.append(now, small);
  if (name === "power") made.title = source;
  made.append(title, body);
  return made;
}

/** What an operator should see first; nothing if all is well. */
function banner(facts, epoch) {
  const all = [];
  if (epoch.paused) all.push("Paused by an operator: knobs stay as they are.");
  if (epoch.safe) all.push("SLO-safe state: the policy is not followed; the journal says why.");
  for (const app of epoch.absent) all.push(`${app} has no process: nothing of it is set.`);
  const place = byId("banner");
  const text = all.join(" ");
  place.hidden = text === "";
  // Set only when it changes, because a screen reader reads every update of the banner.
  if (place.textContent !== text) place.textContent = text;
}

function appRow(app, epoch, value) {
  const row = document.createElement("tr");
  const of = (name) => value(name, app.name);
  const [tail, bound] = [of("tail_latency_seconds"), of("tail_bound_seconds")];
  const missed = tail !== null && bound !== null && tail > bound;
  const kind = tail === null ? "soft" : missed ? "bad" : "good";
  const progress = of("progress_per_second");
  const alone = app.solo_per_second;
  const share = alone && progress !== null ? percent(progress / alone) : number(progress);
  const count = of("app_cores");
  const cores = count === null ? "all cores" : `${count} core${count === 1 ? "" : "s"}`;
  const ways = of("app_cache_ways") === null ? "" : `, ${of("app_cache_ways")} ways`;
  const tailText = tail === null ? "–" : `${app.percentile} ${seconds(tail)}`;
  row.append(
    header(app.name),
    cell(app.class === "latency-critical" ? "LC" : "BE", "soft"),
    cell(missed ? `${tailText} (missed)` : tailText, app.percentile ? kind : "soft"),
    cell(seconds(bound)),
    cell(percent(of("slack_ratio"))),
    cell(number(of("remaining_tolerance_ratio"))),
    cell(number(of("completed_requests_per_second"))),
    cell(share),
    cell(number(of("cpu_ratio"))),
    cell(epoch.absent.includes(app.name) ? "absent" : cores + ways),
  );
  return row;
}

function knobRow(knob) {
  const row = document.createElement("tr");
  const own = knob.reserved ? "areas of cores: the policy leaves it" : "Lull, or as found";
  const whose = knob.foreign ? "another program: left alone" : own;
  row.append(header(knob.of), cell(knob.setting), cell(whose, knob.foreign ? "bad" : "soft"));
  return row;
}

/** What has no value here, each with its reason once. */
export function showMissing(missing) {
  const reasons = new Map();
  for (const [key, label, why] of missing) {
    const names = reasons.get(why) ?? [];
    names.push(label ? `${key} (${label})` : key);
    reasons.set(why, names);
  }
  const lines = [...reasons].map(([why, names]) => {
    const line = document.createElement("li");
    const more = names.length > 3 ? ` and ${names.length - 3} more` : "";
    line.textContent = `${names.slice(0, 3).join(", ")}${more}: ${why}`;
    return line;
  });
  byId("unknown").querySelector("ul").replaceChildren(...lines);
  byId("unknown").hidden = lines.length === 0;
}
