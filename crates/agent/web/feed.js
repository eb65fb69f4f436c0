// The agent's epochs: those before this page was opened, then every new one.
//
// Times are seconds since the run began. If the connection is lost, the page tries to
// reconnect every two seconds; an agent that was restarted is another run, and the page
// discards the epochs of the old one.

const RETRY_MS = 2000;
const KEPT = 900;
/** The last while of every series that a chart draws. */
export class Feed {
  constructor(series, seen) {
    this.series = series;
    this.seen = seen;
    this.run = null;
    this.clear();
  }

  clear() {
    this.times = [];
    this.values = {};
    this.journal = [];
    this.latest = null;
    this.arrived = null;
  }

  /** Returns the seconds since the last epoch ended; null before the first. */
  age() {
    return this.arrived === null ? null : (performance.now() - this.arrived) / 1000;
  }

  /** Begins, and begins again whenever the agent is lost. */
  start() {
    this.load().catch(() => this.lost());
  }

  async load() {
    const facts = await json("api/run");
    if (this.run !== null && this.run !== facts.run) this.clear();
    this.run = facts.run;
    this.seen.facts(facts);
    this.listen();
  }

  listen() {
    const source = new EventSource("api/events");
    // If the agent is lost while the past is fetched, both the stream and the fetch fail.
    let isOpen = true;
    const lose = () => {
      if (!isOpen) return;
      isOpen = false;
      source.close();
      this.lost();
    };
    source.addEventListener("run", (event) => {
      if (event.data !== this.run) return;
      this.catchUp(() => isOpen).then(() => isOpen && this.seen.link(true), lose);
    });
    source.onmessage = (event) => this.add(JSON.parse(event.data));
    source.onerror = lose;
  }

  /** What was before the stream began, unless it is lost meanwhile. */
  async catchUp(isOpen) {
    const past = await json(`api/history?series=${this.series.join(",")}`);
    if (!isOpen()) return;
    const later = this.latest;
    this.times = past.times_s;
    this.values = past.values;
    this.journal = past.journal;
    const last = this.times.at(-1) ?? -1;
    if (later && later.time_s > last) this.append(later);
    if (!later && past.times_s.length > 0) {
      const [latest, age] = [await json("api/epoch"), await ageOfLast()];
      // An epoch may have arrived meanwhile.
      if (this.latest === null) {
        this.latest = latest;
        this.arrived = performance.now() - 1000 * age;
      }
    }
    this.seen.past();
  }

  add(epoch) {
    this.latest = epoch;
    this.arrived = performance.now();
    if (epoch.time_s > (this.times.at(-1) ?? -1)) this.append(epoch);
    this.seen.epoch();
  }

  append(epoch) {
    const before = this.times.length;
    this.times.push(epoch.time_s);
    for (const name of this.series) {
      for (const [label, value] of Object.entries(epoch.values[name] ?? {})) {
        const column = this.column(name, label, before);
        column.push(value);
      }
    }
    for (const labels of Object.values(this.values)) {
      for (const column of Object.values(labels)) {
        while (column.length <= before) column.push(null);
        if (column.length > KEPT) column.shift();
      }
    }
    if (this.times.length > KEPT) this.times.shift();
    this.journal.push(...epoch.journal);
    this.journal.splice(0, Math.max(0, this.journal.length - 300));
  }

  column(name, label, length) {
    this.values[name] ??= {};
    this.values[name][label] ??= new Array(length).fill(null);
    return this.values[name][label];
  }

  /** Returns one column, filled with null if it was not measured. */
  of(name, label = "") {
    return this.values[name]?.[label] ?? new Array(this.times.length).fill(null);
  }

  labels(name) {
    return Object.keys(this.values[name] ?? {});
  }

  lost() {
    this.seen.link(false);
    setTimeout(() => this.start(), RETRY_MS);
  }
}

/** Returns the seconds since the agent's last epoch ended; a large number is not an error. */
async function ageOfLast() {
  const health = await (await fetch("healthz")).json();
  return health.epoch_age_seconds ?? 0;
}

async function json(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}
