// One request as a lane in time: a drawing of its marks, and the same marks as a table.

import { h, seconds, write } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const MAX_TRACKS = 6;
const HEIGHT = 10;
/** The width of what goes on: the drawing ends at the present, which cuts it. */
const FOR_LONG = 1e6;
/** A rectangle without width is not drawn; its outline makes it as wide as a line. */
const THINNEST = 0.001;

/** Wall-clock times are too large for the numbers of a drawing: all are from here. */
let zero = 0;
export const setZero = (at) => (zero ||= at);

/** Which track each mark is on: models on the first, the rest beside each other. */
function tracks(marks) {
  const free = [];
  const placed = marks.map((mark) => {
    if (mark.kind === "model" || mark.kind === "note") return 0;
    let track = free.findIndex((until) => until <= mark.from);
    if (track < 0) track = Math.min(free.length, MAX_TRACKS - 2);
    free[track] = mark.to ?? Infinity;
    return track + 1;
  });
  return { placed, count: Math.min(free.length + 1, MAX_TRACKS) };
}

export const isFailed = (mark) => mark.kind !== "note" && mark.ending !== "" && !["ok", "deferred"].includes(mark.ending);

function kindOf(mark) {
  return isFailed(mark) ? `${mark.kind} failed` : mark.kind;
}

/** In words: "tool read_file: timed_out after 3.2 s". */
export function inWords(mark, now) {
  if (mark.kind === "note") return `${mark.name}: ${mark.text || mark.ending}`;
  const took = seconds((mark.to ?? now) - mark.from);
  return `${mark.kind} ${mark.name}: ${mark.ending ? `${mark.ending} after ${took}` : `for ${took}`}`;
}

export class Lane {
  constructor() {
    this.element = document.createElementNS(SVG, "svg");
    this.element.setAttribute("preserveAspectRatio", "none");
    this.element.setAttribute("aria-hidden", "true");
    this.element.setAttribute("class", "lane");
  }

  draw(row, now) {
    this.row = row;
    const { placed, count } = tracks(row.marks);
    this.height = count * HEIGHT;
    this.element.setAttribute("class", `lane tracks-${count}`);
    this.element.replaceChildren(...row.marks.map((mark, at) => bar(mark, placed[at], now)));
  }

  /** The time that is shown ends now; 0 seconds: it is the request's own. */
  move(now, windowSeconds) {
    const { begun_at: begun, ended_at: ended } = this.row;
    const until = windowSeconds ? now : ended ?? now;
    const shown = windowSeconds || Math.max(0.05, until - begun);
    this.element.setAttribute("viewBox", `${(until - shown - zero).toFixed(3)} 0 ${shown.toFixed(3)} ${this.height}`);
  }
}

function bar(mark, track, now) {
  const made = document.createElementNS(SVG, "rect");
  const tall = mark.kind === "note" ? HEIGHT : HEIGHT - 3;
  made.setAttribute("class", kindOf(mark));
  made.setAttribute("x", (mark.from - zero).toFixed(3));
  made.setAttribute("width", (mark.to === null ? FOR_LONG : Math.max(THINNEST, mark.to - mark.from)).toFixed(3));
  made.setAttribute("y", track * HEIGHT + (HEIGHT - tall) / 2);
  made.setAttribute("height", tall);
  const title = document.createElementNS(SVG, "title");
  title.textContent = inWords(mark, now);
  made.append(title);
  return made;
}

/** The marks of a request as a table, the reason of each end among them. */
export function marksTable(row, now) {
  const rows = row.marks.map((mark) =>
    h(
      "tr",
      { class: isFailed(mark) ? "failed" : "" },
      h("td", { class: "number" }, `+${(mark.from - row.begun_at).toFixed(2)} s`),
      h("td", {}, mark.kind),
      h("th", { scope: "row" }, mark.name),
      h("td", { class: "number" }, mark.kind === "note" ? "" : seconds((mark.to ?? now) - mark.from)),
      h("td", {}, mark.ending || (mark.to === null ? "goes on" : "")),
      h("td", {}, mark.text),
    ),
  );
  const heads = ["Begun", "What", "Name", "Took", "Ended", "Why"];
  const table = h("table", { class: "marks" }, h("thead", {}, h("tr", {}, ...heads.map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, ...rows));
  if (!row.dropped) return table;
  return h("div", {}, h("p", { class: "quiet" }, `${row.dropped} earlier marks are no longer kept.`), table);
}

/** What is at the end of a request's row, in a few words. */
export function writeEnd(element, row) {
  const failed = row.marks.filter(isFailed).map((mark) => `${mark.name}: ${mark.ending}`);
  const words = [row.reason, ...new Set(failed)].filter(Boolean).slice(0, 3).join(" · ");
  write(element, words);
}
