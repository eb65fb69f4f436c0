// The page: joins the feed to what shows it.

import { Feed } from "./feed.js";
import { onKinds, showJournal } from "./journal.js";
import { showOperator } from "./operator.js";
import { panels, SERIES } from "./panels.js";
import { showEpoch, showFacts, showMissing } from "./summary.js";

const link = document.getElementById("link");
// As `/healthz`: the next epoch is overdue after twice its length and these seconds.
const LATE_S = 5;
const span = document.getElementById("span");
let facts = null;
let figures = [];
let missing = [];
// Whether the reasons why series are missing were fetched since the last connection.
let hasReasons = false;
let due = false;
let linked = false;

const feed = new Feed(SERIES, {
  facts(now) {
    facts = now;
    document.title = `Lull: ${now.run}`;
    showFacts(now);
    showOperator(now);
    figures = panels(document.getElementById("charts"), now, why);
  },
  past() {
    hasReasons = false;
    showNext();
  },
  epoch: showNext,
  link(is) {
    linked = is;
    showLink();
  },
});

/** Says whether the agent answers, and how old the last epoch is. */
function showLink() {
  const age = feed.age();
  const late = age !== null && age > 2 * feed.latest.next_epoch_s + LATE_S;
  link.className = linked && !late ? "live" : "lost";
  if (!linked) link.textContent = "the agent does not answer; retrying";
  else if (late) link.textContent = `no epoch for ${age.toFixed(0)} s: the agent may be stuck`;
  else link.textContent = age === null ? "live" : `live, last epoch ${age.toFixed(0)} s ago`;
}

/** Draws at most once a frame, and not while the page is hidden. */
function draw() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    if (facts === null || feed.latest === null) return;
    showEpoch(facts, feed.latest);
    showJournal(feed.journal);
    for (const figure of figures) figure.draw(feed, Number(span.value));
  });
}

/** Why a series has no values. */
function why(series, label) {
  const found = missing.find(([key, of]) => key === series && (!label || of === label));
  return found ? found[2] : "nothing was measured yet";
}

/** Draws, and fetches the reasons once an epoch is over, before which there are none. */
function showNext() {
  if (!hasReasons && feed.latest !== null) {
    hasReasons = true;
    fetchReasons().catch(() => {});
  }
  draw();
}

async function fetchReasons() {
  const answer = await fetch("api/missing");
  if (!answer.ok) return;
  missing = await answer.json();
  showMissing(missing);
  draw();
}

span.addEventListener("change", draw);
onKinds(() => showJournal(feed.journal));
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  // The charts read their colours from the style sheet, so they are rebuilt.
  for (const figure of figures) figure.shape = null;
  draw();
});
setInterval(showLink, 1000);
setInterval(() => {
  if (hasReasons) fetchReasons().catch(() => {});
}, 30_000);
feed.start();
