// The decision journal, newest first.

import { clock } from "./format.js";

const WORDS = {
  decision: "did",
  held: "held back",
  confirmed: "effect",
  missed: "contrary",
  foreign: "others",
  safe: "SLO-safe",
  operator: "operator",
  app: "app",
  shadow: "shadow",
};

const list = document.getElementById("lines");
const kinds = document.getElementById("kinds");

export function showJournal(journal) {
  const wanted = kinds.value.split(" ").filter((kind) => kind !== "");
  const lines = journal.filter((line) => wanted.length === 0 || wanted.includes(line.kind));
  // Keep the scroll position of a user who has scrolled down to read.
  const before = list.scrollTop > 8 ? list.scrollHeight - list.scrollTop : null;
  list.replaceChildren(...lines.toReversed().map(lineOf));
  if (lines.length === 0) list.append(none());
  if (before !== null) list.scrollTop = list.scrollHeight - before;
}

function lineOf(line) {
  const made = document.createElement("li");
  made.className = line.kind;
  const time = document.createElement("time");
  time.textContent = clock(line.time_s);
  const kind = document.createElement("b");
  kind.textContent = WORDS[line.kind] ?? line.kind;
  const text = document.createElement("span");
  text.textContent = line.text;
  made.append(time, kind, text);
  return made;
}

function none() {
  const made = document.createElement("li");
  made.className = "none";
  made.textContent = "nothing of this kind yet";
  return made;
}

export function onKinds(show) {
  kinds.addEventListener("change", show);
}
