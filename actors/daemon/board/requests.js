// Requests: who asked and for what, each as a lane in time; and what of them has failed.

import { $, careful, h, KeyedList, number, seconds, write } from "./dom.js";
import { isFailed, Lane, marksTable, writeEnd } from "./lanes.js";
import { act, curlButton, firstOf, idButton, now, requestPath, rowsOf } from "./rows.js";

const WINDOW_KEPT = "callboard.window";
let windowSeconds = Number(sessionStorage.getItem(WINDOW_KEPT) ?? 60);

function requestRow(row) {
  const lane = new Lane();
  const [stateAt, took, end] = [h("span", { class: "state" }), h("span", { class: "number took" }), h("span", { class: "why" })];
  const about = h("span", { class: "about quiet" });
  const cancel = careful("Cancel", `Cancel request ${row.key}`, (button) => act(button, `${requestPath(row.key)}/cancel`, { reason: "cancelled on the board" }, "Cancelling"));
  const { button, shown } = curlButton("GET", requestPath(row.key), null, `request ${row.key}`);
  const details = h("div", { class: "details", hidden: true });
  const asked = h("button", { type: "button", class: "asked", "aria-expanded": "false" });
  const element = h(
    "li", { class: "request", tabindex: "-1" },
    h("div", { class: "who" }, asked, h("div", { class: "small" }, idButton(row.key), about)),
    lane.element, h("div", { class: "actions" }, stateAt, took, cancel, button), end, shown, details,
  );
  let at = row;
  const showDetails = () => details.replaceChildren(marksTable(at, now()));
  asked.addEventListener("click", () => {
    details.hidden = !details.hidden;
    asked.setAttribute("aria-expanded", String(!details.hidden));
    if (!details.hidden) showDetails();
  });
  const tick = (isFirst) => {
    if (isFirst || !at.ended_at || windowSeconds) lane.move(now(), windowSeconds);
    if (isFirst || !at.ended_at) write(took, seconds((at.ended_at ?? now()) - at.begun_at));
  };
  const update = (next) => {
    at = next;
    element.className = `request ${next.outcome || "running"}`;
    write(asked, next.asked || "(a question without text)");
    asked.title = next.asked;
    write(about, [next.by, next.about, next.model].filter(Boolean).join(" · "));
    about.title = about.textContent;
    write(stateAt, next.state);
    cancel.hidden = next.ended_at !== null;
    lane.draw(next, now());
    writeEnd(end, next);
    if (!details.hidden) showDetails();
    tick(true);
  };
  return { element, tick, update };
}

export const list = new KeyedList($("#request-rows"), requestRow);

function writeAxis() {
  const [from, until] = document.querySelectorAll("#axis i");
  write(from, windowSeconds ? `${seconds(windowSeconds)} ago` : "begun");
  write(until, windowSeconds ? "now" : "ended, or now");
}

export const runningCount = () => rowsOf("requests").filter((row) => row.ended_at === null).length;

const wordsOf = (row) => `${row.key} ${row.asked} ${row.by} ${row.about} ${row.model} ${row.state}`.toLowerCase();

export function showRequests() {
  const all = rowsOf("requests");
  const words = $("#filter").value.trim().toLowerCase();
  const found = words ? all.filter((row) => wordsOf(row).includes(words)) : all;
  write($("#requests .count"), all.length ? `${number(runningCount())} running` : "");
  write($("#requests .empty"), words ? "No request has these words." : "No requests yet.");
  $("#requests .empty").hidden = found.length > 0;
  $("#requests").classList.toggle("is-empty", !all.length);
  $("#requests .tools").hidden = !all.length;
  $("#axis").hidden = !found.length;
  return list.show(firstOf("requests", found));
}

export function listenToWindow() {
  $("#window").value = String(windowSeconds);
  $("#window").addEventListener("change", (event) => {
    windowSeconds = Number(event.target.value);
    sessionStorage.setItem(WINDOW_KEPT, event.target.value);
    writeAxis();
    for (const each of list.shown.values()) each.tick(true);
  });
  writeAxis();
}

// -- what has failed

/** Ends that are no failures: the rest is. */
const WENT_WELL = ["", "answered", "calls_outside", "cancelled"];
/** Ends of calls that someone wanted. */
const WANTED = ["cancelled", "denied"];
const found = new WeakMap();

/** What has failed in a request: itself, and calls of it. */
function failuresOf(row) {
  if (found.has(row)) return found.get(row);
  const isEnd = !WENT_WELL.includes(row.outcome);
  const made = row.marks
    .filter((mark) => isFailed(mark) && !WANTED.includes(mark.ending) && !(isEnd && mark.kind === "model")) // it says the same
    .map((mark) => ({ kind: mark.ending, what: mark.name, why: mark.text, at: mark.to, request: row }));
  if (isEnd) made.push({ kind: row.outcome, what: "request", why: row.reason, at: row.ended_at, request: row });
  found.set(row, made);
  return made;
}

/** Like failures together, the latest first. */
export function failures() {
  const groups = new Map();
  for (const row of rowsOf("requests")) {
    for (const each of failuresOf(row)) {
      // A reason may name a time or a number of its own.
      const key = each.what === "request" ? `${each.kind}/${each.why.replace(/\d[\d.,]*/g, "#")}` : `${each.kind}/${each.what}`;
      const group = groups.get(key) ?? { key, count: 0, at: 0 };
      groups.set(key, group);
      group.count += 1;
      if (each.at >= group.at) Object.assign(group, each);
    }
  }
  return [...groups.values()].sort((one, other) => other.at - one.at);
}
